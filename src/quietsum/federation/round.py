"""One round: spend first, ask, release after.

The order is the guarantee. A reservation is on disk before any party hears of the round, and it counts as spent from
then on; the commit is on disk before the new model leaves this function. A crash anywhere can only over-count.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from quietsum.aggregation import ServerMomentum, ServerState, WeightedMean
from quietsum.errors import InvalidParameter, TooFewParties, positive
from quietsum.failpoints import reach
from quietsum.federation.messages import Federation, Lost, Refusal, Reply, TrainRequest, Update
from quietsum.federation.watch import PartyDropped, RoundStarted, Watcher, tell
from quietsum.sampling import Everyone, Poisson, Sampling

if TYPE_CHECKING:
    from quietsum.ledger import Ledger, Receipt
    from quietsum.mechanisms.rng import RandomSource
    from quietsum.plan import Plan, ResolvedPlan

__all__ = ["RoundResult", "run_round"]

log = logging.getLogger(__name__)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The new model, and how many parties were asked and are in it (operator only)."""

    state: ServerState
    receipt: Receipt
    asked: tuple[str, ...]
    kept: tuple[str, ...]


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
) -> RoundResult:
    """Round ``number`` of ``run``, from ``state`` to the next.

    Guarantees: :class:`~quietsum.errors.BudgetExhausted` comes before any message. Every registered party is charged,
    whoever answers (DESIGN: replies never lower a charge); only a refusal before data was touched is refunded. With
    fewer usable updates than the plan's minimum the round ends in :class:`~quietsum.errors.TooFewParties`, charged.
    """
    watchers = tuple(watchers)
    plan = resolved.plan
    registered = tuple(federation.registered())
    attempt = ledger.next_attempt(run, number)
    reach("round:before-reserve")
    receipt = ledger.reserve(run, number, attempt, resolved.charges(registered))
    reach("round:reserved")
    tell(watchers, RoundStarted(round=number, attempt=attempt))

    cohort = tuple(registered[index] for index in _cohort_sampling(plan).draw(len(registered), rng))
    request = TrainRequest(run=run, round=number, attempt=attempt, params=state.params.copy())
    mean = WeightedMean(weights={name: resolved.weight_of(name) for name in registered}, dimension=resolved.dimension)
    folded = mean.start()
    heard: set[str] = set()
    refused: dict[str, str] = {}
    for reply in _in_time(federation.ask(request, cohort), cohort, plan.federation.deadline, clock):
        reach("round:reply")
        if reply.party not in cohort or reply.party in heard:  # no second word, and above all no refund after an update
            _drop(watchers, number, reply.party, "it replied twice or was not asked")
            refused.pop(reply.party, None)
            continue
        heard.add(reply.party)
        match reply:
            case Update() if problem := mean.problem_with(reply.delta):
                _drop(watchers, number, reply.party, f"its update {problem}")
            case Update():
                folded = mean.add(folded, reply.party, reply.delta)
            case Refusal():
                refused[reply.party] = reply.reason
            case Lost():
                _drop(watchers, number, reply.party, reply.reason)
    for party, reason in refused.items():  # only now: whoever refused and then replied all the same is charged
        ledger.refund(receipt, party, reason)
        _drop(watchers, number, party, f"it refused: {reason}", refunded=True)
    reach("round:before-commit")
    ledger.commit(receipt)
    reach("round:committed")
    needed = plan.federation.minimum_parties
    if cohort and len(folded.kept) < needed:
        raise TooFewParties(
            f"round {number}: {len(folded.kept)} of {len(cohort)} parties sent a usable update, the plan needs "
            f"{needed}. "
            + (
                "Nobody had touched data, so nothing was charged. "
                if len(refused) == len(cohort)
                else "It is charged. "
            )
            + "See why with -v, then resume"
        )
    if not folded.kept:  # nobody was drawn: a public fact of Poisson sampling, and a step without a step
        return RoundResult(state=state, receipt=receipt, asked=cohort, kept=())
    combined = mean.finish(folded)
    with np.errstate(over="ignore", invalid="ignore"):
        after = ServerMomentum().step(state, combined.step)
    if not (np.all(np.isfinite(after.params)) and np.all(np.isfinite(after.velocity))):
        raise InvalidParameter(
            "learning_rate", plan.training.optimizer.learning_rate,
            f"made the model overflow in round {number}; the last checkpoint is kept",
            "start a new run with a smaller rate",
        )  # fmt: skip
    return RoundResult(state=after, receipt=receipt, asked=cohort, kept=combined.kept)


def _cohort_sampling(plan: Plan) -> Sampling:
    """How the parties of a round are drawn from the registered ones."""
    sampling = plan.federation.sampling
    return Everyone() if sampling.rate is None else Poisson(rate=sampling.rate)


def _in_time(
    replies: Iterable[Reply], cohort: Sequence[str], deadline: float | None, clock: Callable[[], float]
) -> Iterator[Reply]:
    """Replies until the deadline, by a clock that does not jump; whoever is missing then is lost, not refunded."""
    if deadline is None:
        yield from replies
        return
    limit = positive("deadline", deadline)
    start = clock()
    heard: set[str] = set()
    for reply in replies:
        late = clock() - start - limit
        if late > 0 and not isinstance(reply, Refusal):
            reply = Lost(party=reply.party, reason=f"its reply came {late:.3g} s after the deadline of {limit:g} s")
        heard.add(reply.party)
        yield reply
        if clock() - start > limit:
            break
    for party in cohort:
        if party not in heard:
            yield Lost(party=party, reason=f"it had not replied by the deadline of {limit:g} s")


def _drop(watchers: Iterable[Watcher], number: int, party: str, reason: str, *, refunded: bool = False) -> None:
    log.info("round %d: %s is left out, %s", number, party, reason)
    tell(watchers, PartyDropped(round=number, party=party, reason=reason, refunded=refunded))
