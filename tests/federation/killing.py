"""A federation whose processes die and come back, told from outside: what left whom is noted where no kill reaches.

A :class:`Story` is a coordinator and two sites over a carrier made of a list, each with a folder of its own as its
disk. At the chosen failpoint the side that is just working dies: :class:`Killed` flies through it, caught by nobody.

Why that is a kill, and no tidy exit. SIGKILL leaves what the kernel has: files as they were last written, and nothing
of what the process had in mind. So at the failpoint, before anything is unwound, the dying side's whole folder is
*copied* (SQLite's log with its uncommitted pages, half-written neighbours of checkpoints, everything), and the next
life begins from the copy alone. What unwinding does afterwards (a ROLLBACK, a file that is closed and flushed, a log
that is merged) it does to a folder that nobody opens again, with connections that nobody uses again. Locks are left
behind with it, as a dead process leaves them. A power cut that also loses the kernel's unsynced pages is a matter of
fsync, which ``tests/ledger/test_durability.py`` watches. :mod:`federation.killing_children` does the same with SIGKILL
and real processes, and both must leave the same books.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum import failpoints, wire
from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.transport import Arrival
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import system_randomness
from quietsum.party.policy import AllowedTask, CoordinatorAddress, Policy, Rules, SiteDataset, SiteName, UnitPolicy
from quietsum.party.service import SiteService
from quietsum.plan import Plan
from quietsum.runs.folder import Workspace
from quietsum.runs.run import RunResult, resume_run, start
from quietsum.tasks import Rows
from tiny import TinyTask, tiny_plan

COORDINATOR = "coordinator"
SITES = ("north", "south")
SIDES = (COORDINATOR, *SITES)
STYLES = ("records", "clients", "hybrid")
NOISE, RATE, DELTA = 3.0, 0.5, 1e-3
"""Of records and of clients alike; each style has a release of a record, a draw of parties, or both."""


Visit = tuple[str, str, int]
"""A side at a failpoint, for the so-manyth time."""


class Killed(BaseException):
    """The end of one side's process."""


def plan_for(style: str, *, rounds: int = 2, spare: int = 4, noise: float = NOISE) -> Plan:
    """Records, whole clients behind a Poisson draw, or both."""
    federation: dict[str, object] = {"rounds": rounds, "spare_attempts": spare, "deadline": 20.0}
    privacy: dict[str, object] = {"style": {"records": "sample", "clients": "user"}.get(style, style), "record": None}
    if style != "clients":
        privacy["record"] = {"noise_multiplier": noise, "delta": DELTA, "max_grad_norm": 1.0}
    if style != "records":
        privacy["client"] = {"noise_multiplier": noise, "delta": DELTA, "max_norm": 1.0}
        federation["sampling"] = {"kind": "poisson", "rate": RATE}
    return tiny_plan(federation=federation, privacy=privacy)


def policy_of(site: str, style: str, *, trust: bool = False, **changes: Any) -> Policy:
    """A generous policy: what is looked at here is what is written down."""
    facts = {facts.name: facts for facts in TinyTask().parties()}[site]
    budget = UnitPolicy(epsilon=500.0, delta=DELTA)
    values: dict[str, Any] = {
        "site": SiteName(name=site),
        "coordinator": CoordinatorAddress(address="127.0.0.1:9092"),
        "dataset": SiteDataset(name=facts.dataset, size=facts.size),
        "tasks": (AllowedTask(name="tiny:TinyTask"),),
        "rules": Rules(aggregation=("mean", "noisy-sum"), trust_server_sampling=trust),
        "record": None if style == "clients" else budget,
        "client": None if style == "records" else budget,
    }
    return Policy(**{**values, **changes})


class Watched(TinyTask):
    """Counts how often each site's rows are touched."""

    def __init__(self, touched: Counter[str]) -> None:
        super().__init__()
        self.touched = touched

    def rows(self, party: str) -> Rows:
        self.touched[party] += 1
        return super().rows(party)


class Coins:
    """The operating system's randomness, except that the draw of parties follows a script: all, then south alone."""

    for_tests = False

    def __init__(self) -> None:
        self._source, self._draws = system_randomness(), 0

    def coins(self, probability: float, count: int) -> NDArray[np.bool_]:
        self._draws += 1
        return np.ones(count, dtype=bool) if self._draws % 3 else np.arange(count) == 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


@dataclasses.dataclass(frozen=True)
class Left:
    """An update that left a site, or a request that left the coordinator (then ``content`` is the model's)."""

    site: str
    round: int
    attempt: int
    content: str


@dataclasses.dataclass
class Notes:
    """What the world saw: everything that left anybody."""

    updates: list[Left] = dataclasses.field(default_factory=list)
    requests: list[Left] = dataclasses.field(default_factory=list)
    enrolled: set[str] = dataclasses.field(default_factory=set)
    touched: Counter[str] = dataclasses.field(default_factory=Counter)

    def sent(self, site: str, content: bytes) -> str:
        """A message left the coordinator; its kind."""
        letter = wire.read_letter(content, most=2**20)
        if letter.kind == "train":
            self.requests.append(_left(site, letter))
        return letter.kind

    def replied(self, site: str, content: bytes) -> None:
        """A message left a site."""
        letter = wire.read_letter(content, most=2**20)
        if letter.kind == "update":
            self.updates.append(_left(site, letter))
        if letter.kind == "enrolled":
            self.enrolled.add(site)


def _left(site: str, letter: wire.Letter) -> Left:
    assert letter.vector is not None
    content = hashlib.sha256(letter.vector.tobytes()).hexdigest()
    return Left(site, letter.body["round"], letter.body["attempt"], content)


class Story:
    """One run of one plan by a coordinator and two sites, with kills in between.

    ``post`` says what becomes of requests under way when the coordinator dies: they are ``lost``, they arrive ``first``
    of all in its next life, or ``behind`` newer ones. ``silent``: a site that dies leaves its request unanswered, else
    the carrier says that it is gone.
    """

    def __init__(
        self,
        folder: Path,
        style: str,
        *,
        plan: Plan | None = None,
        post: str = "lost",
        silent: bool = True,
        trust: bool = False,
    ) -> None:
        self.folder, self.style, self.plan = folder, style, plan or plan_for(style)
        self.post, self.silent, self.trust = post, silent, trust
        self.homes = {side: folder / f"{side}-0" for side in SIDES}
        for home in self.homes.values():
            home.mkdir(parents=True)
        self.services: dict[str, SiteService] = {}
        self.notes, self.places, self.kills = Notes(), Counter[tuple[str, str]](), list[Visit]()
        self.now, self.side, self._messages = 0.0, COORDINATOR, 0
        self._dying: set[Visit] = set()
        self._cuts: set[int] = set()
        self._waiting: list[tuple[str, str, bytes]] = []
        self._behind: list[tuple[str, str, bytes]] = []
        self.after_kill: Callable[..., object] = lambda *dead: None

    # -------------------------------------------------------------------------------------------------- the end

    def kill(self, side: str, place: str, visit: int) -> None:
        """``side`` dies when it is at ``place`` for the ``visit``-th time, counted over all its lives."""
        self._dying.add((side, place, visit))

    def power_cuts(self, lives: Iterable[int]) -> None:
        """All die together, after lives of so many steps of anybody."""
        self._cuts = set(itertools.accumulate(lives))

    def _hook(self, place: str) -> None:
        self.places[self.side, place] += 1
        if self.places.total() in self._cuts:
            self._die(place, SIDES)
        if (self.side, place, self.places[self.side, place]) in self._dying:
            self._die(place, (self.side,))

    def _die(self, place: str, dying: Sequence[str]) -> None:
        self.kills.append((self.side, place, self.places[self.side, place]))
        for one in dying:
            self._bury(one)
        raise Killed(*dying)

    def _bury(self, side: str) -> None:
        """The disk as it is at this moment is all that the next life gets."""
        old = self.homes[side]
        stem, _, life = old.name.rpartition("-")
        self.homes[side] = old.with_name(f"{stem}-{int(life) + 1}")
        shutil.copytree(old, self.homes[side])

    @contextmanager
    def _as(self, side: str) -> Iterator[None]:
        before, self.side = self.side, side
        try:
            yield
        finally:
            self.side = before

    # ------------------------------------------------------------------------------------------------- its lives

    def go(self) -> RunResult:
        """To the end of the run, through as many lives as it takes."""
        failpoints.install(self._hook)
        try:
            while True:
                died = len(self.kills)
                try:
                    result = self.coordinate(self)
                    if result.outcome != "too-few-parties" or died == len(self.kills):
                        return result  # else both sites died in one round, and the operator resumes
                except Killed as killed:
                    for side in killed.args:
                        self.services.pop(side, None)
                    self.mourn(*killed.args)
        finally:
            failpoints.install(None)

    def mourn(self, *dead: str) -> None:
        """The coordinator is dead: its messages under way are, or are not."""
        if self.post == "behind":
            self._behind += self._waiting
        if self.post != "first":
            self._waiting = []
        self._look(*dead)

    def _look(self, *dead: str) -> None:
        failpoints.install(None)
        self.after_kill(*dead)
        failpoints.install(self._hook)

    def coordinate(self, transport: Any) -> RunResult:
        """One life of the coordinator."""
        place = Workspace(path=self.homes[COORDINATOR])
        federation = RemoteFederation(transport, roster=None, patience=60.0, clock=lambda: transport.now)
        values: dict[str, Any] = {
            "workspace": place, "task": TinyTask(), "federation": federation,
            "rng": system_randomness() if self.style == "records" else Coins(),
        }  # fmt: skip
        if (place.path / "runs" / "run" / "run.json").exists():
            return resume_run(place.find("run"), **values)
        return start(self.plan, name="run", **values)

    def begin_site(self, site: str) -> SiteService:
        """One life of a site begins, from its folder."""
        ledger = Ledger.open(self.homes[site] / "ledger.db", create=True)
        policy = policy_of(site, self.style, trust=self.trust)
        return SiteService(policy, ledger, task=lambda plan: Watched(self.notes.touched), clock=lambda: self.now)

    # ------------------------------------------------------------------------------------------------ the carrier

    def nodes(self) -> Sequence[str]:
        return SITES

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        self.notes.sent(node, content)
        self._messages += 1
        self._waiting.append((str(self._messages), node, content))
        failpoints.reach("carrier:sent")
        return str(self._messages)

    def receive(self, wait: float) -> Sequence[Arrival]:
        found: list[Arrival] = []
        queue, self._waiting = self._waiting, []
        while queue:
            message, node, content = queue.pop(0)
            reply = self._answer(node, content)
            if reply is not None:
                found.append(Arrival(message=message, content=reply))
                if self._behind and wire.read_letter(content, most=2**20).kind == "train":
                    queue, self._behind = queue + self._behind, []
            elif not self.silent:
                found.append(Arrival(message=message, problem="the node is gone"))
        self.now += 0.001 if found else wait
        return found

    def _answer(self, site: str, content: bytes) -> bytes | None:
        """The site's reply; None where it died, or its reply was lost with it."""
        try:
            with self._as(site):
                if site not in self.services:
                    self.services[site] = self.begin_site(site)
                reply = self.services[site].answer(content)
                self.notes.replied(site, reply)
                failpoints.reach("carrier:left")
            return reply
        except Killed as killed:
            if COORDINATOR in killed.args:
                raise
            self.services.pop(site, None)
            self._look(site)
            return None

    def forget(self, message: str) -> None:
        self._waiting = [one for one in self._waiting if one[0] != message]

    def close(self) -> None:
        pass
