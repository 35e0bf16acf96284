"""A coordinator that may say anything, and a site whose task notes when its data would be touched."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quietsum import wire
from quietsum.ledger import Ledger
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.stores.protocol import MemoryStore
from quietsum.party.books import write_resolved
from quietsum.party.policy import AllowedTask, CoordinatorAddress, Policy, Rules, SiteDataset, SiteName, UnitPolicy
from quietsum.party.service import SiteService
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.plan.orders import LocalOrders
from quietsum.tasks import Metrics

FACTS = (
    PartyFacts(name="north", dataset="points-north", size=120),
    PartyFacts(name="south", dataset="points-south", size=80),
)
RECORD = {"noise_multiplier": 4.0, "delta": 1e-3, "max_grad_norm": 1.0}
CLIENT = {"noise_multiplier": 8.0, "delta": 1e-3, "max_norm": 1.0}
STYLES: dict[str, dict[str, Any]] = {
    "sample": {"style": "sample", "record": RECORD},
    "user": {"style": "user", "client": CLIENT},
    "hybrid": {"style": "hybrid", "record": RECORD, "client": CLIENT},
    "party": {"style": "user", "client": {**CLIENT, "noise_at": "party"}, "neighbours": "replace-one"},
}
UNIT = UnitPolicy(epsilon=30.0, delta=1e-3, run=10.0, smallest_noise=1.0, largest_clip=4.0)
UNITS: dict[str, dict[str, UnitPolicy | None]] = {
    "sample": {"record": UNIT},
    "user": {"record": None, "client": UNIT},
    "hybrid": {"record": UNIT, "client": UNIT},
    "party": {"record": None, "client": UNIT},
}
MODEL = np.zeros(3)
SENT: list[bytes] = []
"""Every reply of every site in these tests."""


class Watched:
    """A task that notes when its data would be touched."""

    name, title, dimension = "points", "points", 3

    def __init__(self, fails: BaseException | None = None) -> None:
        self.touched: list[LocalOrders] = []
        self.fails = fails

    def parties(self) -> tuple[PartyFacts, ...]:
        return FACTS

    def initial(self) -> np.ndarray:
        return MODEL

    def evaluate(self, params: np.ndarray) -> Metrics:
        return Metrics(values={"none": 0.0}, on="nothing")

    def train(self, party: str, params: np.ndarray, orders: LocalOrders, rng: Any) -> np.ndarray:
        self.touched.append(orders)
        if self.fails is not None:
            raise self.fails
        return np.full(3, 0.25)


def plan(style: str = "sample", **changes: Any) -> ResolvedPlan:
    values: dict[str, Any] = {
        "task": {"name": "points"},
        "federation": {"rounds": 2, "spare_attempts": 1, "deadline": 20.0},
        "training": {"sample_rate": 0.25, "local_steps": 2},
        "privacy": STYLES[style],
        **changes,
    }
    return resolve(Plan.from_dict(values), FACTS, 3)


def policy(style: str = "sample", **changes: Any) -> Policy:
    values: dict[str, Any] = {
        "site": SiteName(name="north"),
        "coordinator": CoordinatorAddress(address="127.0.0.1:9092"),
        "dataset": SiteDataset(name="points-north", size=120),
        "tasks": (AllowedTask(name="points"),),
        "rules": Rules(aggregation=("mean", "noisy-sum", "party-noise")),
        **UNITS[style],
        **changes,
    }
    return Policy(**values)


def fresh() -> Ledger:
    return Ledger.begin(MemoryStore(), SigningKey.generate())


class Place:
    """A site's books, from which its process can be started again and again, and the task that its data is behind."""

    def __init__(self, held: Policy | None = None, fails: BaseException | None = None, store: Any = None) -> None:
        self.store, self.key = MemoryStore() if store is None else store, SigningKey.generate()
        self.ledger = Ledger.begin(self.store, self.key)
        self.task: Any = Watched(fails)  # a test may put another one in its place
        self.service = self.start(held or policy())

    def start(self, held: Policy) -> SiteService:
        self.ledger = Ledger.on(self.store, self.key)
        self.service = SiteService(held, self.ledger, task=lambda _: self.task)
        return self.service

    @property
    def reserved(self) -> list[Any]:
        return [entry.body for entry in self.ledger.entries() if entry.kind is Kind.RESERVE]

    @property
    def committed(self) -> int:
        return sum(entry.kind is Kind.COMMIT for entry in self.ledger.entries())


class Server:
    """A coordinator that may say anything: its ledger signs it."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self.ledger = ledger or fresh()

    def write(self, kind: str, body: Mapping[str, Any], vector: np.ndarray | None = None, **more: Any) -> bytes:
        return wire.write_letter(kind, body, self.ledger, vector=vector, **{"to": "north", **more})[0]

    def say(self, place: Place, kind: str, body: Mapping[str, Any], vector: Any = None, **more: Any) -> wire.Letter:
        return hear(place, self.write(kind, body, vector, **more))

    def enrol(self, place: Place, resolved: Any, run: str = "first") -> wire.Letter:
        values = write_resolved(resolved) if isinstance(resolved, ResolvedPlan) else resolved
        return self.say(place, "enrol", {"run": run, "resolved": values})

    def train(
        self,
        place: Place,
        resolved: ResolvedPlan,
        number: Any = 1,
        attempt: Any = 1,
        *,
        run: str = "first",
        **more: Any,
    ) -> wire.Letter:
        body = {"run": run, "round": number, "attempt": attempt, "plan": resolved.plan.digest, **more}
        return self.say(place, "train", body, MODEL)


def hear(place: Place, content: bytes) -> wire.Letter:
    reply = place.service.answer(content)
    SENT.append(reply)
    return wire.read_letter(reply, most=2**22)


def reason(letter: wire.Letter, kind: str = "refused") -> str:
    assert letter.kind == kind, (letter.kind, letter.body)
    assert letter.vector is None
    told: str = letter.body["reason"]
    return told


def body_of(resolved: ResolvedPlan, **changes: Any) -> dict[str, Any]:
    return {"run": "first", "round": 1, "attempt": 1, "plan": resolved.plan.digest, **changes}


def values_of(resolved: ResolvedPlan) -> dict[str, Any]:
    return copy.deepcopy(write_resolved(resolved))


def with_plan(resolved: ResolvedPlan, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The plan's own part changed, with the hash that belongs to it: what a coordinator can sign."""
    values = values_of(resolved)
    change(values["plan"])
    values["digest"] = Plan.from_dict(values["plan"]).digest
    return values


def changed(resolved: ResolvedPlan, **changes: Any) -> dict[str, Any]:
    return {**values_of(resolved), **changes}


def searched() -> None:
    """No reply that left a site tells an ε; but a refusal may quote the plan that came, or the policy."""
    assert SENT, "a test that hears no site shows nothing"
    for reply in SENT:
        assert b'"epsilon"' not in reply
        letter = wire.read_letter(reply, most=2**22)
        header = reply[10 : 10 + int.from_bytes(reply[6:10], "big")].decode()
        if not str(letter.body.get("reason", "")).startswith(("the policy of north refuses", "the plan that came")):
            assert not re.search("ε = [0-9]", header), letter.body
