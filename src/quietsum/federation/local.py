"""All parties in this process: the quickest way to run a federation, and the one the tests trust.

Parties are asked one after the other. Where the task can train many small ones side by side, they are, and their
updates are folded as they are made, so that memory does not grow with the cohort. With several workers the cohort is
shared out among processes (:mod:`quietsum.federation.workers.crew`), each of which is a federation like this one.

What a party's work raises stays with that party: no other is lost with it. Where the plan promises anything, not
even that it failed is shown: noise alone leaves (:mod:`quietsum.party.work`). Only the owner of the data hears of it,
and in one process that is the reader of its log. Nor does the time of one decide about others: the deadline of the plan
is counted for each party alone, from the moment its own work begins. Parties of a chunk that took longer than that are
trained again one at a time, since the time of each is not known. Work in this process cannot be interrupted; a party
that hangs is a case for workers.

Drop-outs, stragglers and refusals can be simulated. They are drawn from the operating system like everything else, and
they never change what is charged except where a party refuses before it touches its data.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Fold
from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.failpoints import reach
from quietsum.federation.messages import (
    QUESTIONS,
    Federation,
    Lost,
    PartyRefusal,
    Reply,
    StepAnswer,
    StepQuestion,
    Sums,
    TrainRequest,
    Update,
)
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.party import (
    AnsweredBefore,
    Contribution,
    NotTouched,
    SecureSite,
    Site,
    TooLate,
    contribution_of,
    sessions_of,
    terms_of,
)
from quietsum.secagg import Identity, Refused, SessionTerms, Step
from quietsum.tasks import AnyTask, Task, as_task
from quietsum.validate import positive, whole_number

if TYPE_CHECKING:
    from quietsum.learning import PartyCanaries
    from quietsum.plan import LocalOrders, ResolvedPlan

__all__ = ["LocalFederation", "SimulatedLosses", "fates", "too_late"]

log = logging.getLogger(__name__)

Vectors = NDArray[np.float64]


_LOST = "the plan simulates that its reply was lost"
_LATE = "the plan simulates that its reply came after the deadline"


@final
class LocalFederation(Federation):
    """Parties as objects of this process.

    Guarantees: every party of a cohort has one reply, also if it or others fail, and whether it is an update
    depends on that party alone. What leaves a party has gone through its :class:`~quietsum.party.work.Site`, also where
    several were trained side by side. What failed at a party is for its owner alone where anything is promised,
    else by the kind of the failure; it is never refunded.
    """

    carries_secure = True

    def __init__(
        self,
        sites: Mapping[str, Site],
        *,
        drop_outs: float = 0.0,
        stragglers: float = 0.0,
        rng: RandomSource,
        many: Task | None = None,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        resolved: ResolvedPlan | None = None,
    ) -> None:
        """``resolved`` is needed for secure rounds alone."""
        if not sites:
            raise InvalidParameter("sites", dict(sites), "is empty", "a federation needs at least one party")
        self._sites = dict(sites)
        self._drop_outs, self._stragglers, self._rng = drop_outs, stragglers, rng
        self._many = many
        self._deadline = math.inf if deadline is None else positive("deadline", deadline, "seconds for a party")
        self._clock = clock
        self._resolved = resolved
        self._losses = SimulatedLosses(drop_outs, stragglers, rng)
        self._terms: SessionTerms | None = None  # of the session that is open, the same for all
        self._how: Contribution | None = None
        self._secure = {
            name: SecureSite(name, identity=Identity.fresh(), contribute=self._contribution(site))
            for name, site in (sites.items() if resolved is not None and resolved.secure is not None else ())
        }

    @classmethod
    def of(
        cls,
        task: AnyTask,
        resolved: ResolvedPlan,
        *,
        rng: RandomSource | None = None,
        workers: int = 1,
        device: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
        whole: bool = True,
        canaries: Mapping[str, PartyCanaries] | None = None,
    ) -> Federation:
        """The parties of a resolved plan, each with its share of ``task``, in this process or in ``workers`` others.

        Workers make the task anew from its name in the plan, on ``device``, and draw their own randomness. Where the
        plan is a drill, its attackers attack; ``whole`` is False in a worker, which holds some of the updates only.
        ``canaries`` are those of each party, where the plan has them.
        """
        task, attack = as_task(task), resolved.plan.attack
        if attack is not None and whole and resolved.secure is None:
            from quietsum.federation.drills import Drill

            inner = cls.of(task, resolved, rng=rng, workers=workers, device=device, clock=clock, whole=False)
            return Drill(inner, resolved, rng=rng)
        if attack is not None:
            from quietsum.defence import poison_task

            task = poison_task(task, attack, attack.among([party.name for party in resolved.parties]))
        if whole_number("workers", workers, 1) > 1:
            if canaries:
                problem = "cannot keep what is recorded of canaries, which one process does"
                raise InvalidParameter("workers", workers, problem, "leave --workers out, or training.canaries")
            from quietsum.federation.workers.crew import Crew
            from quietsum.federation.workers.keepers import Keepers

            if rng is not None and rng.for_tests:
                problem = "cannot be shared with worker processes, which draw their own"
                raise InvalidParameter("rng", "seeded", problem, "use workers = 1")
            make = Crew if resolved.secure is None else Keepers
            return make(resolved, workers=workers, device=device)
        simulate, chance, owner = resolved.plan.federation.simulate, rng or system_randomness(), _Owner()
        refusing, deadline = frozenset(simulate.refusing), resolved.plan.federation.deadline
        sites = {
            party.name: Site(
                party.name,
                task=task,
                resolved=resolved,
                rng=chance,
                refuses="the plan simulates its refusal" if party.name in refusing else "",
                deadline=math.inf if deadline is None else deadline,
                clock=clock,
                tell=owner.tell,
                canaries=None if canaries is None else canaries[party.name],
            )
            for party in resolved.parties
        }
        clipped = resolved.orders(resolved.parties[0].name, 1).mechanism is not None  # example by example
        many = task if task.trains_many and not clipped else None
        return cls(
            sites,
            drop_outs=simulate.drop_outs,
            stragglers=simulate.stragglers,
            rng=chance,
            many=many,
            deadline=deadline,
            clock=clock,
            resolved=resolved,
        )

    @property
    def counts_deadline(self) -> bool:
        """Where there is a deadline it is counted here, for each party alone."""
        return math.isfinite(self._deadline)

    def registered(self) -> Sequence[str]:
        """All parties, in the order of the plan."""
        return tuple(self._sites)

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """One reply each, as soon as it is there; of parties that are trained side by side, a sum of their updates."""
        key = request.key
        if self._many is None or len(cohort) < 2:
            for name in cohort:
                yield self._ask_one(name, key, request.params)
            return
        begun: dict[str, LocalOrders] = {}
        for name in cohort:
            try:
                begun[name] = self._sites[name].begin(key)
            except (Exception, SystemExit) as error:
                yield self._word_failure(name, error)
        if begun:
            yield from self._side_by_side(self._many, request, begun, fold)

    def nothing(self, request: TrainRequest, cohort: Sequence[str]) -> Iterator[Reply]:
        """One reply each, of the plan's steps on no rows: for parties whose own work has ended a process."""
        for name in cohort:
            site = self._sites[name]
            try:
                orders = site.begin(request.key)
                yield self._send(name, site.finish(orders, site.nothing(request.params.copy(), orders)))
            except (Exception, SystemExit) as error:
                yield self._word_failure(name, error)

    # ------------------------------------------------------------------------------------------ secure rounds

    def identities(self, cohort: Sequence[str]) -> Mapping[str, bytes]:
        """The keys by which the parties of this process know each other; made anew for each run."""
        if not self._secure:
            raise PlanRefused("a LocalFederation needs the resolved plan for secure rounds: use LocalFederation.of()")
        return {name: self._secure[name].public for name in cohort}

    def exchange(self, question: StepQuestion) -> Iterator[StepAnswer | PartyRefusal | Lost]:
        """One word from each party. What it holds unmasked is in its own objects, of this process all the same."""
        if question.step is Step.OPEN:
            assert self._resolved is not None
            self._terms = terms_of(self._resolved, question.request.key[:3], question.request.key[3])
            self._how = contribution_of(self._resolved, question.request.round)
            self._losses.draw(question.letters)
        for name, letter in question.letters.items():
            if fate := self._losses.at(name, question.step):
                yield Lost(party=name, reason=fate)
                continue
            try:
                yield StepAnswer(party=name, content=self._answer(name, question, letter))
                reach("party:sent")
            except (Exception, SystemExit) as error:
                yield self._word_failure(name, error)

    def refusals(self, parties: Sequence[str]) -> dict[str, str]:
        """Which of these would refuse before any data is touched, and why."""
        found = {}
        for name in parties:
            try:
                self._sites[name].check()
            except NotTouched as error:
                found[name] = str(error)
        return found

    def share(self, request: TrainRequest, name: str) -> NDArray[np.uint32] | Lost:
        """The vector of one party, for the process that masks it (:mod:`quietsum.federation.workers.keepers`);
        private."""
        assert self._resolved is not None
        try:
            how = contribution_of(self._resolved, request.round)
            return self._sites[name].contribution(request.key, request.params.copy(), how)
        except (Exception, SystemExit) as error:
            return Lost(party=name, reason=self._word_failure(name, error).reason)

    def _answer(self, name: str, question: StepQuestion, letter: bytes) -> bytes:
        party, key = self._secure[name], question.request.key[:3]
        if question.step is not Step.OPEN:
            params = question.request.params.copy() if question.step is Step.SHARES else None
            return party.answer(key, question.step, letter, params)
        assert self._terms is not None
        self._sites[name].check()
        assert self._resolved is not None
        return party.open(
            self._terms, letter, server=question.server, peers=question.identities,
            sessions=sessions_of(self._resolved),
        )  # fmt: skip

    def _contribution(self, site: Site) -> Callable[[tuple[str, int, int], Vectors], NDArray[np.uint32]]:
        def make(key: tuple[str, int, int], params: Vectors) -> NDArray[np.uint32]:
            assert self._terms is not None and self._how is not None
            return site.contribution((*key, self._terms.model), params, self._how)

        return make

    # ------------------------------------------------------------------------------------------ one at a time

    def _ask_one(self, name: str, key: tuple[str, int, int, str], params: Vectors) -> Reply:
        try:
            return self._send(name, self._sites[name].answer(key, params.copy()))
        except (Exception, SystemExit) as error:
            return self._word_failure(name, error)

    def _alone(self, name: str, params: Vectors, orders: LocalOrders) -> Reply:
        """One party whose work has begun; as :meth:`~quietsum.party.work.Site.answer` does it."""
        site = self._sites[name]
        try:
            return self._send(name, site.finish(orders, site.work(params.copy(), orders)))
        except (Exception, SystemExit) as error:
            return self._word_failure(name, error)

    def _word_failure(self, name: str, error: BaseException) -> PartyRefusal | Lost:
        """A refusal where no data was touched. Otherwise no refund leaves the party; work that was to protect anybody
        does not come here."""
        match error:
            case NotTouched():
                return PartyRefusal(party=name, reason=str(error))
            case AnsweredBefore():
                return Lost(party=name, reason=str(error))
            case TooLate():
                return Lost(party=name, reason=too_late(self._deadline))
            case Refused():
                return Lost(party=name, reason=str(error))
        return Lost(party=name, reason=f"its work failed ({type(error).__name__})")

    def _send(self, name: str, delta: Vectors) -> Reply:
        """What becomes of a reply on its way."""
        reach("party:sent")
        fate = next(self._fates(1))
        return Lost(party=name, reason=fate) if fate else Update(party=name, delta=delta)

    def _fates(self, count: int) -> Iterator[str]:
        return fates(count, drop_outs=self._drop_outs, stragglers=self._stragglers, rng=self._rng)

    # ------------------------------------------------------------------------------------------- side by side

    def _side_by_side(
        self, task: Task, request: TrainRequest, begun: Mapping[str, LocalOrders], fold: Fold[Any]
    ) -> Iterator[Reply]:
        """Parties whose work has begun. Where training them together fails, those that are left go one by one."""
        waiting = dict(begun)
        try:
            for names, rows in self._in_time(
                task.train_many(tuple(begun), request.params.copy(), tuple(begun.values()), self._rng)
            ):
                if len(set(names)) != len(names) or not waiting.keys() >= set(names) or len(rows) != len(names):
                    raise LookupError("train_many answers for others than it was asked to train")
                replies = self._fold(names, rows, begun, fold)
                for name in names:
                    del waiting[name]
                yield from replies
        except (Exception, SystemExit) as error:
            told = f"training together failed ({type(error).__name__})"
            log.info("%s: %d parties are trained one at a time", told, len(waiting))
        for name, orders in waiting.items():
            yield self._alone(name, request.params, orders)

    def _in_time(self, chunks: Iterator[tuple[tuple[str, ...], Vectors]]) -> Iterator[tuple[tuple[str, ...], Vectors]]:
        """Those chunks that were made within the time of a single party; who was late in another is not known."""
        start = self._clock()
        for chunk in chunks:
            if self._clock() - start <= self._deadline:
                yield chunk
            start = self._clock()

    def _fold(
        self, names: Sequence[str], rows: Vectors, begun: Mapping[str, LocalOrders], fold: Fold[Any]
    ) -> list[Reply]:
        """The rows that arrive as one sum (singly where the fold must see them so), and who is not in it."""
        replies: list[Reply] = []
        there: list[int] = []
        for place, (name, fate) in enumerate(zip(names, self._fates(len(names)), strict=True)):
            made = rows[place]
            if (sent := self._sites[name].finish(begun[name], made)) is not made:
                rows[place] = sent
            reach("party:sent")
            if fate:
                replies.append(Lost(party=name, reason=fate))
            elif fold.needs_individuals:
                replies.append(Update(party=name, delta=rows[place].copy()))
            else:
                there.append(place)
        if there:
            arrived, updates = [names[place] for place in there], rows if len(there) == len(names) else rows[there]
            folded, broken = fold.add_many(fold.start(), arrived, updates)
            replies += [Lost(party=name, reason=f"its update {problem}") for name, problem in broken.items()]
            if kept := tuple(folded.kept):
                replies.append(Sums(parties=kept, folded=folded))
        return replies


@final
class _Owner:
    """The holder of the data of all parties of this process hears of failures: each kind once, not once a party."""

    def __init__(self) -> None:
        self._parties: dict[str, set[str]] = {}

    def tell(self, name: str, what: str) -> None:
        """The work of party ``name`` failed."""
        parties = self._parties.setdefault(what, set())
        if name in parties:
            return
        parties.add(name)
        if math.log10(len(parties)).is_integer():
            more = f" and {len(parties) - 1} more" if len(parties) > 1 else ""
            told = f"the work of {name}{more} failed, so what leaves holds nothing of its data, and is charged: {what}"
            log.warning("%s. This is for the owner of the data alone", told)


def fates(count: int, *, drop_outs: float, stragglers: float, rng: RandomSource) -> Iterator[str]:
    """Why each of so many replies does not arrive in a simulation; empty for those that do."""
    lost = rng.coins(drop_outs, count) if drop_outs else np.zeros(count, dtype=bool)
    late = rng.coins(stragglers, count) if stragglers else np.zeros(count, dtype=bool)
    return (_LOST if gone else _LATE if behind else "" for gone, behind in zip(lost, late, strict=True))


@final
class SimulatedLosses:
    """Bad luck of a secure round: who is lost, and at which of its five steps, each as likely as any other.

    A party that is lost behind its masked input is in the sum, and does not help to open it.
    """

    def __init__(self, drop_outs: float, stragglers: float, rng: RandomSource) -> None:
        self._chances, self._rng = (drop_outs, stragglers), rng
        self._fates: dict[str, tuple[Step, str]] = {}

    def draw(self, parties: Iterable[str]) -> None:
        """The fates of a new session."""
        drop_outs, stragglers = self._chances
        names, self._fates = tuple(parties), {}
        for name, fate in zip(
            names, fates(len(names), drop_outs=drop_outs, stragglers=stragglers, rng=self._rng), strict=True
        ):
            if fate:
                place = int(self._rng.uniforms(1)[0] * len(QUESTIONS))
                self._fates[name] = QUESTIONS[place], fate

    def at(self, party: str, step: Step) -> str:
        """Why ``party`` is not heard at ``step``; empty where it is."""
        when, fate = self._fates.get(party, (None, ""))
        return fate if when is not None and step.turn >= when.turn else ""


def too_late(deadline: float) -> str:
    """What is said of a party that took longer, and by how much is not."""
    return f"it had not replied by the deadline of {deadline:g} s"
