"""One round: spend first, ask, release after.

The order is the guarantee. A reservation is on disk before any party hears of the round, and it counts as spent from
then on; the commit is on disk before the new model leaves this function. A crash anywhere can only over-count.

What becomes of the replies is one fold (:mod:`quietsum.aggregation`): the mean of those who replied, or, where whole
clients are protected by noise at the server, the clipped and noised sum over a public denominator. Its noise does not
depend on who replied, so such a round has a step however many did, and an empty draw is a step of noise alone: it
is never drawn again (rule 9).

With secure aggregation there is no reply to fold: the parties' vectors come masked, and one sum is opened after the
commit (:mod:`quietsum.federation.secure`).
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from quietsum.aggregation import (
    ClientSum,
    Combined,
    Fold,
    RobustFold,
    RobustState,
    ServerOptimizer,
    ServerState,
    Trial,
    WeightedMean,
    length_of,
    refuse_beyond_memory,
    server_optimizer,
)
from quietsum.defence import Detector, Finding
from quietsum.errors import InvalidParameter, PlanRefused, TooFewParties
from quietsum.failpoints import reach
from quietsum.federation.canaries import CarriedClients, ClientCanaries
from quietsum.federation.messages import Federation, TrainRequest
from quietsum.federation.replies import Replies, in_time
from quietsum.federation.watch import FindingReported, PartyRejected, RoundStarted, Watcher, guard, tell
from quietsum.mechanisms import QuantileRule
from quietsum.plan import LARGEST, cohort_of, longest_update, noise_in_update
from quietsum.privacy import PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger import Charge, Ledger, Receipt
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders, ResolvedPlan

__all__ = ["RoundResult", "first_state", "fold_of", "limits_of", "optimizer_of", "run_round", "tell_findings"]

log = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The new model, and how many parties were asked and are in it (operator only)."""

    state: ServerState
    receipt: Receipt
    asked: tuple[str, ...]
    kept: tuple[str, ...]
    rejected: tuple[str, ...] = ()


def run_round(
    run: str,
    number: int,
    state: ServerState,
    *,
    resolved: ResolvedPlan,
    federation: Federation,
    ledger: Ledger,
    rng: RandomSource,
    watchers: Iterable[Watcher] = (),
    clock: Callable[[], float] = time.monotonic,
    own_steps: bool = False,
    trial: Trial | None = None,
    detector: Detector | None = None,
    canaries: ClientCanaries | None = None,
) -> RoundResult:
    """Round ``number`` of ``run``, from ``state`` to the next. ``own_steps`` and ``trial``: see :func:`fold_of`.
    ``detector`` looks on, and what it finds is shown to the watchers; it changes nothing, and its failure is a warning.
    ``canaries`` are the run's canary clients (:mod:`quietsum.federation.canaries`).

    Guarantees: :class:`~quietsum.errors.BudgetExhausted` comes before any message. Every registered party is charged,
    drawn or not, answering or not (rules 1 and 2); only the record and person charges of a party that refused before it
    touched its data are refunded. Without client-level noise, fewer usable updates than the plan's minimum end in
    :class:`~quietsum.errors.TooFewParties`, charged; with it, only where the plan asks for more than one. A secure
    round without a sum ends in it, too.
    """
    refuse_unmasked(resolved, federation)
    watchers, plan = guard(watchers), resolved.plan
    registered = tuple(federation.registered())
    fold = None if resolved.secure else fold_of(resolved, number, state, registered, own_steps=own_steps, trial=trial)
    if detector is not None and fold is not None:
        fold = detector.around(fold)
    _refuse_seeded(rng, resolved)
    _refuse_others(registered, resolved)
    if resolved.secure is not None:
        federation.identities(registered)  # whoever cannot be had at all is heard of before anything is charged
    attempt = ledger.next_attempt(run, number)
    charges = resolved.charges(registered, number)
    reach("round:before-reserve")
    receipt = ledger.reserve(run, number, attempt, charges)
    reach("round:reserved")
    tell(watchers, RoundStarted(round=number, attempt=attempt))

    many = len(registered) + (0 if canaries is None else canaries.inside)
    drawn = resolved.cohort_sampling().draw(many, rng)
    cohort = tuple(registered[index] for index in drawn[drawn < len(registered)])
    behind = drawn[drawn >= len(registered)] - len(registered)
    carried = None if canaries is None else canaries.carry(behind, number=number, attempt=attempt)
    request = TrainRequest(run=run, round=number, attempt=attempt, params=state.params.copy())
    deadline = None if federation.counts_deadline else plan.federation.deadline
    asked = _Asked(
        request=request, cohort=cohort, registered=registered, resolved=resolved, federation=federation, ledger=ledger,
        receipt=receipt, refundable=_refundable(charges, resolved), watchers=watchers,
        deadline=deadline, clock=clock, detector=detector, own_steps=own_steps, carried=carried,
    )  # fmt: skip
    combined = asked.open_sum(state, rng, trial) if fold is None else asked.fold(fold, rng)
    if combined is None:
        return RoundResult(state=state, receipt=receipt, asked=cohort, kept=())
    with np.errstate(over="ignore", invalid="ignore"):
        after = optimizer_of(resolved).step(state, combined.step).with_clip(combined.clip).with_memory(combined.memory)
    if not after.finite:
        raise InvalidParameter(
            "learning_rate", plan.training.optimizer.learning_rate,
            f"made the model overflow in round {number}; the last checkpoint is kept",
            "start a new run with a smaller rate",
        )  # fmt: skip
    if detector is not None:
        tell_findings(lambda: detector.step(number, combined.step), number, watchers)
    for party, reason in combined.rejected.items():
        measured = {name: values[party] for name, values in combined.statistics.items() if party in values}
        log.info("round %d: the rule leaves %s out, %s", number, party, reason)
        rule = plan.aggregation.rule
        tell(watchers, PartyRejected(round=number, party=party, rule=rule, reason=reason, statistics=measured))
    return RoundResult(
        state=after, receipt=receipt, asked=cohort, kept=combined.kept, rejected=tuple(combined.rejected)
    )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Asked:
    """One attempt that is reserved: replies are folded, or a masked sum is opened; the charge is committed before."""

    request: TrainRequest
    cohort: tuple[str, ...]
    registered: tuple[str, ...]
    resolved: ResolvedPlan
    federation: Federation
    ledger: Ledger
    receipt: Receipt
    refundable: frozenset[str]
    watchers: tuple[Watcher, ...]
    deadline: float | None
    clock: Callable[[], float]
    detector: Detector | None = None
    own_steps: bool = False
    carried: CarriedClients | None = None

    def fold(self, fold: Fold[Any], rng: RandomSource) -> Combined | None:
        """What ``fold`` makes of the replies; None where there is no step."""
        number, cohort = self.request.round, self.cohort
        replies = Replies(fold, number, cohort, self.watchers)
        for reply in in_time(self.federation.ask(self.request, cohort, fold), cohort, self.deadline, self.clock):
            reach("round:reply")
            replies.take(reply)
        for party, reason in replies.refused.items():  # only now: who refused and then replied all the same is charged
            replies.drop(party, f"it refused: {reason}", refunded=self._refund(party, reason))
        reach("round:before-commit")
        self._commit()
        reach("round:committed")
        kept = tuple(replies.folded.kept)
        needed = self.resolved.plan.federation.minimum_parties
        if len(kept) < needed and (needed > 1 if self.resolved.client_level else bool(cohort)):
            free = replies.refused.keys() >= set(self.registered) and self.refundable.issuperset(self.registered)
            charged = "It is charged, except to those who refused before they touched data. "
            raise TooFewParties(
                f"round {number}: {len(kept)} of {len(cohort)} parties sent a usable update, the plan needs {needed}. "
                + ("No party had touched data, so nothing was charged. " if free else charged)
                + "See why with -v, then resume"
            )
        if not kept and fold.needs_updates:  # nobody was drawn, or nothing is there to average: no step
            return None
        if self.detector is not None:
            looks, folded = self.detector, replies.folded
            tell_findings(lambda: looks.look(number, folded, self._noise), number, self.watchers)
        if self.carried is not None and isinstance(fold, ClientSum):
            return self.carried.finish(fold, replies.folded, rng)
        return fold.finish(replies.folded, rng)

    def _noise(self, party: str) -> tuple[float, float]:
        """What the plan says about the noise in an update; a task that trains by code of its own may do otherwise."""
        orders = self.resolved.orders(party, self.request.round)
        return (0.0, 0.0) if self.own_steps and orders.client is None else noise_in_update(orders)

    def open_sum(self, state: ServerState, rng: RandomSource, trial: Trial | None) -> Combined:
        """The step from one masked sum (:mod:`quietsum.federation.secure`), or from those of groups."""
        from quietsum.federation.groups import between
        from quietsum.federation.secure import Session

        detector, number = self.detector, self.request.round

        def look(means: RobustState) -> None:
            if detector is not None:
                tell_findings(lambda: detector.look(number, means), number, self.watchers)

        rule = between(self.resolved, memory=state.memory, rng=rng, trial=trial, watchers=self.watchers, look=look)
        return Session(
            self.request, self.cohort, resolved=self.resolved, federation=self.federation, refused=self._refund,
            commit=self._commit, between=rule, watchers=self.watchers, deadline=self.deadline, clock=self.clock,
        ).run()  # fmt: skip

    def _refund(self, party: str, reason: str) -> bool:
        """Whether the charge of ``party``, which refused before it touched its data, was taken back."""
        if party in self.refundable:
            self.ledger.refund(self.receipt, party, reason)
        return party in self.refundable

    def _commit(self) -> None:
        """Durable when this returns, with the sites' own heads beside it."""
        self.ledger.commit(self.receipt, seen=self.federation.testimonies())


def tell_findings(look: Callable[[], list[Finding]], number: int, watchers: Iterable[Watcher]) -> None:
    """Tell what ``look`` finds. Nothing optional stands between reservation and release (rule 22)."""
    try:
        with np.errstate(all="ignore"):
            found = look()
    except Exception as error:
        log.warning("round %d: nothing was detected, since detection failed (%s)", number, type(error).__name__)
        return
    for finding in found:
        log.info("round %d: %s", number, finding.sentence)
        tell(watchers, FindingReported(round=number, finding=finding))


# ------------------------------------------------------------------------------- what the plan asks for


def fold_of(
    resolved: ResolvedPlan,
    number: int,
    state: ServerState,
    registered: Sequence[str],
    *,
    own_steps: bool = False,
    trial: Trial | None = None,
) -> Fold[Any]:
    """What round ``number`` does with updates, from public numbers and the bound that ``state`` holds.

    A mean leaves out what is longer than the plan allows an honest update to be, which no update of one that follows it
    is, but for a chance of 1e-9. ``own_steps``: the task trains by code of its own, whose length no one can state, so
    only what no model could hold is left out. ``trial`` is the server's root set, for rules that try updates on it.
    """
    mechanism = resolved.client_mechanism(number, state.clip)
    if mechanism is None and resolved.robust is not None:
        if resolved.robust.facts.needs_trial and trial is None:
            raise PlanRefused(
                f"aggregation.rule = '{resolved.plan.aggregation.rule}' tries updates on a root set, and this round "
                "has none: pass trial=…, or choose a rule that compares updates with each other"
            )
        if resolved.robust.facts.pairs:  # before anything is charged
            refuse_beyond_memory(cohort_of(resolved.plan, resolved.parties))
        return RobustFold(
            rule=resolved.robust, registered=tuple(registered), attackers=resolved.attackers,
            dimension=resolved.dimension, memory=state.memory, trial=trial,
            limits=limits_of(resolved, number, length_of(state.params), registered, own_steps=own_steps),
        )  # fmt: skip
    if mechanism is None:
        weights = {name: resolved.weight_of(name) for name in registered}
        return WeightedMean(
            weights=weights,
            dimension=resolved.dimension,
            limits=limits_of(resolved, number, length_of(state.params), registered, own_steps=own_steps),
        )
    rule, adaptive = None, resolved.adaptive
    if adaptive is not None:
        assert adaptive.count_noise is not None  # the resolved plan has filled it in
        rule = QuantileRule(
            count_noise=adaptive.count_noise, quantile=adaptive.quantile, learning_rate=adaptive.learning_rate
        )
    return ClientSum(mechanism=mechanism, denominator=resolved.denominator, dimension=resolved.dimension, adaptive=rule)


def limits_of(
    resolved: ResolvedPlan, number: int, model: float, registered: Sequence[str], *, own_steps: bool = False
) -> dict[str, float]:
    """The longest update of each party in round ``number``, from a model of length ``model``."""
    found: dict[tuple[LocalOrders, int], float] = {}
    limits = {}
    for name in registered:
        orders, size = resolved.orders(name, number), resolved.facts_of(name).size
        if own_steps and orders.client is None:
            limits[name] = LARGEST
            continue
        if (orders, size) not in found:
            found[orders, size] = longest_update(orders, size=size, dimension=resolved.dimension, model=model)
        limits[name] = found[orders, size]
    return limits


def optimizer_of(resolved: ResolvedPlan) -> ServerOptimizer:
    """What the server does with the averaged update."""
    asked = resolved.plan.aggregation.optimizer
    return server_optimizer(
        asked.kind,
        learning_rate=asked.learning_rate,
        momentum=asked.momentum,
        second=asked.second,
        floor=asked.floor,
        average=asked.average,
    )


def first_state(resolved: ResolvedPlan, initial: np.ndarray) -> ServerState:
    """What the first round starts from: the model, an optimizer at rest, and the stated bound where it adapts."""
    state = optimizer_of(resolved).start(np.asarray(initial, dtype=np.float64))
    client = resolved.plan.privacy.client
    if resolved.robust is not None:
        grouped = resolved.secure.grouping if resolved.secure is not None else None
        rows = len(resolved.parties) if grouped is None else grouped.count
        state = state.with_memory(resolved.robust.memory(rows, resolved.dimension))
    return state.with_clip(client.max_norm if resolved.adaptive is not None and client is not None else None)


def refuse_unmasked(resolved: ResolvedPlan, federation: Federation) -> None:
    """No round may show the server single updates where the plan promises one masked sum."""
    if resolved.secure is not None and not federation.carries_secure:
        raise PlanRefused(
            f"aggregation.secure = true: {type(federation).__name__} carries updates and no masked sums; give it "
            "identities(), exchange() and carries_secure = True (quietsum.federation.Federation), or say secure = "
            "false with noise at each party"
        )


def _refuse_seeded(rng: RandomSource, resolved: ResolvedPlan) -> None:
    """Noise and cohorts that anybody can draw again protect no one."""
    if rng.for_tests and resolved.client_level and not all(facts.public for facts in resolved.parties):
        raise InvalidParameter(
            "rng", "seeded", "cannot protect the clients", "use quietsum.mechanisms.rng.system_randomness()"
        )


def _refuse_others(registered: Sequence[str], resolved: ResolvedPlan) -> None:
    """Rate and denominator were stated for the plan's parties; with others registered neither would be true."""
    if resolved.client_level and set(registered) != {facts.name for facts in resolved.parties}:
        raise InvalidParameter(
            "registered", f"{len(registered)} parties", f"are not the {len(resolved.parties)} of the plan",
            "register the parties that the plan names; who answers today is another matter",
        )  # fmt: skip


def _refundable(charges: Iterable[Charge], resolved: ResolvedPlan) -> frozenset[str]:
    """Parties that pay for records or people by themselves.

    A client's charge is never refunded: it is for the chance of having been drawn. A holder that stands for many
    clients pays once for all of them, so the refusal of one changes nothing.
    """
    paying = {charge.party for charge in charges if charge.unit is not PrivacyUnit.CLIENT}
    shared = Counter(facts.account for facts in resolved.parties)
    return frozenset(
        facts.name
        for facts in resolved.parties
        if facts.account == facts.name and facts.name in paying and shared[facts.account] == 1
    )
