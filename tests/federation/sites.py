"""Sites without a network: real services with ledgers on disk, and a carrier made of two lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.transport import ListTransport
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


def places_for(plan: Plan, folder: Path, **changes: Any) -> dict[str, Place]:
    return {
        name: Place(policy_for(name, folder / name, plan, **changes), folder / name) for name in sorted(facts_of(plan))
    }


def remote(
    places: Mapping[str, Place], **options: Any
) -> tuple[RemoteFederation, ListTransport, dict[str, SiteService]]:
    """A federation over started sites."""
    services = {name: place.start() for name, place in places.items()}
    carrier = ListTransport({f"node-{name}": service.answer for name, service in services.items()})
    return RemoteFederation(carrier, roster=None, patience=5.0, **options), carrier, services
