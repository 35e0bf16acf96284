"""Sites without a network: real services with ledgers on disk, and a carrier made of two lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quietsum.errors import QuietsumError
from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.transport import Arrival
from quietsum.ledger import Ledger
from quietsum.party.policy import AllowedTask, CoordinatorAddress, Policy, Rules, SiteDataset, SiteName, UnitPolicy
from quietsum.party.service import SiteService
from quietsum.plan import Plan, load_plan
from quietsum.tasks import task_of

PLAN = """
[task]
name = "heart"
[federation]
rounds = 2
spare_attempts = 4
deadline = 20.0
[training]
sample_rate = 0.2
local_steps = 2
[privacy]
style = "sample"
record = { epsilon = 4.0, delta = 1e-4 }
"""
CLIENTS = """
[task]
name = "heart"
[federation]
rounds = 2
spare_attempts = 2
deadline = 20.0
sampling = { kind = "poisson", rate = 0.5 }
[training]
sample_rate = 0.2
local_steps = 2
[privacy]
style = "user"
client = { noise_multiplier = 2.0, delta = 1e-4, max_norm = 1.0 }
"""
RECORD = UnitPolicy(epsilon=10.0, delta=1e-4, run=5.0)


def plan_of(text: str = PLAN, **changes: Any) -> Plan:
    return load_plan(text)


def facts_of(plan: Plan) -> Mapping[str, Any]:
    return {facts.name: facts for facts in task_of(plan).parties()}


def policy_for(name: str, folder: Path, plan: Plan | None = None, **changes: Any) -> Policy:
    """A policy of a heart hospital that protects its records."""
    facts = facts_of(plan or plan_of())[name]
    values: dict[str, Any] = {
        "site": SiteName(name=name),
        "coordinator": CoordinatorAddress(address="127.0.0.1:9092"),
        "dataset": SiteDataset(name=facts.dataset, size=facts.size),
        "tasks": (AllowedTask(name="heart"),),
        "rules": Rules(aggregation=("mean", "noisy-sum", "party-noise")),
        "record": RECORD,
        "folder": folder,
    }
    return Policy(**{**values, **changes})


@dataclasses.dataclass
class Place:
    """A site's folder, from which it can be started again and again."""

    policy: Policy
    folder: Path
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def start(self) -> SiteService:
        self.folder.mkdir(parents=True, exist_ok=True)
        ledger = Ledger.open(self.folder / "ledger.db", create=True)
        return SiteService(self.policy, ledger, **self.options)

    def books(self) -> Ledger:
        return Ledger.open(self.folder / "ledger.db", read_only=True)


class Carrier:
    """Messages are answered when somebody looks for replies. ``spoil`` may change or lose what comes back."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.sites: dict[str, Callable[[bytes], bytes]] = dict(sites)
        self.spoil: Callable[[str, bytes], bytes | None] = lambda node, content: content
        self.sent: list[tuple[str, bytes]] = []
        self._waiting: list[tuple[str, str, bytes]] = []
        self._forgotten: set[str] = set()
        self.closed = False

    def nodes(self) -> Sequence[str]:
        return tuple(self.sites)

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        if self.closed:
            raise QuietsumError("the carrier is gone")
        name = str(len(self.sent))
        self.sent.append((node, content))
        self._waiting.append((name, node, content))
        return name

    def receive(self, wait: float) -> Sequence[Arrival]:
        found: list[Arrival] = []
        waiting, self._waiting = self._waiting, []
        for name, node, content in waiting:
            if name in self._forgotten:
                continue
            if node not in self.sites:
                found.append(Arrival(message=name, problem="the node is gone"))
                continue
            reply = self.spoil(node, self.sites[node](content))
            if reply is not None:
                found.append(Arrival(message=name, content=reply))
        return found

    def forget(self, message: str) -> None:
        self._forgotten.add(message)

    def close(self) -> None:
        self.closed = True


def places_for(plan: Plan, folder: Path, **changes: Any) -> dict[str, Place]:
    return {
        name: Place(policy_for(name, folder / name, plan, **changes), folder / name) for name in sorted(facts_of(plan))
    }


def remote(places: Mapping[str, Place], **options: Any) -> tuple[RemoteFederation, Carrier, dict[str, SiteService]]:
    """A federation over started sites."""
    services = {name: place.start() for name, place in places.items()}
    carrier = Carrier({f"node-{name}": service.answer for name, service in services.items()})
    return RemoteFederation(carrier, roster=None, patience=5.0, **options), carrier, services
