"""Four hospitals with ledgers on disk, a coordinator, and a carrier whose time is a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from federation.sites import places_for
from quietsum import wire
from quietsum.federation.messages import Federation
from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.sites import SentLetter, Sites
from quietsum.federation.remote.transport import Arrival, ListTransport
from quietsum.federation.round import RoundResult, first_state, run_round
from quietsum.federation.watch import PartyDropped, RunEvent
from quietsum.ledger import Ledger
from quietsum.ledger.chain.entries import Kind
from quietsum.mechanisms.rng import system_randomness
from quietsum.party.policy import UnitPolicy
from quietsum.plan import ResolvedPlan, load_plan, resolve
from quietsum.tasks import task_of

RECORDS = """
[task]
name = "heart"
[federation]
rounds = 3
spare_attempts = 4
deadline = 20.0
[training]
sample_rate = 0.2
local_steps = 2
[privacy]
style = "sample"
record = { noise_multiplier = 3.0, delta = 1e-4 }
"""
CLIENT = "client = { noise_multiplier = 4.0, delta = 1e-4, max_norm = 1.0 }"
POISSON = 'sampling = { kind = "poisson", rate = 0.5 }'
HYBRID = RECORDS.replace('"sample"', '"hybrid"') + CLIENT
USERS = RECORDS[: RECORDS.index("[privacy]")] + '[privacy]\nstyle = "user"\n' + CLIENT
UNIT = UnitPolicy(epsilon=40.0, delta=1e-4, run=20.0)
NAMES = ("cleveland", "hungarian", "switzerland", "va")
OTHERS = NAMES[:3]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Timed(ListTransport):
    """Where nothing arrives, the time that somebody waited has passed. ``before`` is told of every look."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]], clock: Clock) -> None:
        super().__init__(sites)
        self.clock = clock
        self.looks = 0
        self.before: Callable[[int], None] = lambda look: None

    def receive(self, wait: float) -> Sequence[Arrival]:
        self.looks += 1
        self.before(self.looks)
        found = super().receive(wait)
        if not found:
            self.clock.now += wait
        return found


def kind_of(content: bytes) -> str:
    return wire.read_letter(content, most=2**26).kind


class World:
    """Four hospitals, a coordinator with its ledger, and everything between them."""

    def __init__(self, folder: Path, text: str = RECORDS, *, start: Sequence[str] = NAMES, **options: Any) -> None:
        self.plan = load_plan(text)
        units = {"record": UNIT if "record =" in text else None, "client": UNIT if "client =" in text else None}
        self.places = options.pop("places", None) or places_for(self.plan, folder, **units)
        folder.mkdir(parents=True, exist_ok=True)
        self.services = {name: self.places[name].start() for name in start}
        self.clock = Clock()
        self.carrier = Timed({f"node-{name}": self.answers(name) for name in start}, self.clock)
        self.task = task_of(self.plan)
        self.ledger = Ledger.open(folder / "coordinator.db", create=True)
        pricing = next((known.pricing for known in self.ledger.runs() if known.run == "run"), None)
        self.resolved: ResolvedPlan = resolve(self.plan, self.task.parties(), self.task.dimension, pricing=pricing)
        self.events: list[RunEvent] = []
        self.federation = RemoteFederation(
            self.carrier, roster=options.pop("roster", None), patience=5.0, clock=self.clock, **options
        )
        self.state = first_state(self.resolved, self.task.initial())

    @property
    def sites(self) -> Sites:
        """The sites as the coordinator knows them."""
        assert self.federation._joined is not None
        return self.federation._joined.sites

    @property
    def under_way(self) -> Mapping[str, SentLetter]:
        """The letters without a reply so far."""
        return self.sites._sent

    def answers(self, name: str) -> Callable[[bytes], bytes]:
        return lambda content: self.services[name].answer(content)

    def restart(self, name: str) -> None:
        self.services[name].books.ledger.close()
        self.services[name] = self.places[name].start()

    def join(self, resolved: ResolvedPlan | None = None) -> World:
        told = self.resolved if resolved is None else resolved
        self.ledger.open_run(
            "run", plan=told.plan.to_dict(), terms=self.resolved.terms(), planned=self.resolved.all_charges(),
            datasets=self.resolved.datasets(),
        )  # fmt: skip
        self.federation.join("run", told, self.ledger)
        return self

    def saw(self, event: RunEvent) -> None:
        self.events.append(event)

    def round(self, number: int = 1, federation: Federation | None = None) -> RoundResult:
        self.events.clear()
        found = run_round(
            "run", number, self.state, resolved=self.resolved, federation=federation or self.federation,
            ledger=self.ledger, rng=system_randomness(), watchers=[self], clock=self.clock,
        )  # fmt: skip
        self.state = found.state
        return found

    @property
    def dropped(self) -> dict[str, str]:
        return {event.party: event.reason for event in self.events if isinstance(event, PartyDropped)}

    def entries(self, kind: Kind, name: str = "") -> list[Any]:
        ledger = self.services[name].books.ledger if name else self.ledger
        return [entry.body for entry in ledger.entries() if entry.kind is kind]

    def rogue(
        self, change: Callable[[wire.Letter, bytes], bytes | None], kind: str = "update", name: str = "va"
    ) -> None:
        """``name`` sends something else than its replies of this ``kind``."""

        def spoil(node: str, reply: bytes) -> bytes | None:
            letter = wire.read_letter(reply, most=2**26)
            return change(letter, reply) if node == f"node-{name}" and letter.kind == kind else reply

        self.carrier.spoil = spoil

    def signed(self, letter: wire.Letter, name: str = "va", **changes: Any) -> bytes:
        """A reply with other contents, which the site's own ledger has signed."""
        values = {
            "kind": letter.kind,
            "body": letter.body,
            "answers": letter.answers,
            "vector": letter.vector,
            **changes,
        }
        return wire.write_letter(
            values["kind"], values["body"], self.services[name].books.ledger, answers=values["answers"],
            vector=values["vector"],
        )[0]  # fmt: skip


class Repeating(Timed):
    """Hands everything over twice, the newest first, and makes up messages of its own."""

    def receive(self, wait: float) -> Sequence[Arrival]:
        found = list(super().receive(wait))
        made_up = [Arrival(message="nobody's", content=b"x"), Arrival(message="", problem="?")]
        return [*reversed(found), *made_up, *found]
