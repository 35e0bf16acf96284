"""Person-level guarantees from any accountant: generic group privacy.

If one unit is (ε, δ)-private then k units together are (kε, δ·(e^{kε} − 1)/(e^ε − 1))-private (Vadhan 2017, Lemma 2.2
and its proof). "Multiply ε by k" is right for pure DP only; δ pays, too. An accountant knows a whole curve δ(ε), so
the best point of it can be taken.

For the Poisson-sampled Gaussian wrap the event in ``Group(size=k, event=...)`` instead: its own dominating pair is
tight (14.4 where this gives 18.2, for ten records at 1.0 each). This function is for everything that has no such
pair.
"""

from __future__ import annotations

import math

from quietsum.errors import InvalidParameter
from quietsum.privacy.accounting import Accountant, check_delta
from quietsum.privacy.events import (
    Composed,
    DiscreteGaussianSum,
    Gaussian,
    Group,
    Laplace,
    OneInOneOut,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
    Skellam,
)
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import PrivacyUnit
from quietsum.validate import whole_number

__all__ = ["bound_record_event", "group_guarantee", "person_event"]


def group_guarantee(accountant: Accountant, *, size: int, delta: float) -> Guarantee:
    """What everything composed in ``accountant`` costs a group of ``size`` of its units, at ``delta``.

    Guarantees: an upper bound for any mechanism, k·ε₁ for the smallest ε₁ found with δ(ε₁)·(e^{kε₁} − 1)/(e^{ε₁} − 1)
    ≤ delta; no lower bound.

    >>> from quietsum.privacy.classical import ClassicalAccountant
    >>> from quietsum.privacy.events import PureDP
    >>> group_guarantee(ClassicalAccountant(rule="basic").compose(PureDP(epsilon=0.5)), size=3, delta=1e-6)
    Guarantee(ε = 1.5 per person (up to 3 records) at δ = 1e-06, basic composition, generic group privacy)
    """
    if not isinstance(accountant, Accountant):
        raise InvalidParameter("accountant", accountant, "is not an accountant", "pass e.g. ExactAccountant()")
    size = whole_number("size", size, 1)
    delta = check_delta(delta)
    single = accountant.epsilon(delta=delta)
    if size == 1:
        return single
    one = _smallest_epsilon(accountant, size, delta, single.epsilon)
    return Guarantee(
        epsilon=size * one,
        delta=delta,
        unit=PrivacyUnit.CLIENT if single.unit is PrivacyUnit.CLIENT else PrivacyUnit.PERSON,
        observer=single.observer,
        neighbours=single.neighbours,
        method=f"{single.method}, generic group privacy",
        group_size=size * single.group_size,
        warnings=single.warnings,
    )


def _smallest_epsilon(accountant: Accountant, size: int, delta: float, start: float) -> float:
    """The smallest ε₁ that satisfies the lemma, by bisection from the safe side; infinity where none does.

    A δ that was rounded to zero counts as the smallest float, lest e^{kε₁} times "nothing" passes for nothing.
    """
    log_delta, tiny = math.log(delta), math.log(5e-324)

    def holds(epsilon: float) -> bool:
        one = accountant.delta(epsilon=epsilon)
        return (math.log(one) if one > 0 else tiny) + _log_factor(epsilon, size) <= log_delta

    if holds(0.0):
        return 0.0
    most = (log_delta - tiny) / (size - 1)  # beyond, e^{(k−1)ε₁} is too much even for the smallest float
    low, high = 0.0, min(most, max(start, 1e-3 * most))
    while not holds(high):
        if high == most:
            return math.inf
        low, high = high, min(most, 1.25 * high)
    while high - low > 1e-10 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_factor(epsilon: float, size: int) -> float:
    """ln((e^{kε} − 1)/(e^ε − 1)), which is ln k at ε = 0."""
    if epsilon == 0:
        return math.log(size)
    return (size - 1) * epsilon + math.log(-math.expm1(-size * epsilon)) - math.log(-math.expm1(-epsilon))


def person_event(event: PrivacyEvent, size: int) -> PrivacyEvent:
    """What a run of steps on Poisson batches, or on everything, costs a person with ``size`` records.

    >>> person_event(PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0)), 3)
    Group(size=3, event=PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0)))
    """
    size = whole_number("max_records", size, 1)
    match event:
        case Repeated():
            return Repeated(times=event.times, event=person_event(event.event, size))
        case Composed():
            return Composed(events=tuple(person_event(part, size) for part in event.events))
        case OneInOneOut():  # what one record of a person costs; the whole person lets nobody in
            return person_event(event.event, size)
        case Gaussian() | Laplace() | PoissonSampled(event=Gaussian() | Laplace()):
            return Group(size=size, event=event)
        case Skellam() | DiscreteGaussianSum() | PoissonSampled(event=Skellam() | DiscreteGaussianSum()):
            return Group(size=size, event=event)  # k records move a rounded sum by at most k times what one does
    raise InvalidParameter("event", event, "is no run of Poisson-sampled steps", "pass TrainingSchedule.event()")


def bound_record_event(event: PrivacyEvent) -> PrivacyEvent:
    """What a run of steps costs one record, where the records of each person are bounded.

    >>> bound_record_event(Repeated(times=5, event=Gaussian(noise_multiplier=2.0)))
    Repeated(times=5, event=OneInOneOut(event=Gaussian(noise_multiplier=2.0)))
    """
    match event:
        case Repeated():
            return Repeated(times=event.times, event=bound_record_event(event.event))
        case Composed():
            return Composed(events=tuple(bound_record_event(part) for part in event.events))
        case OneInOneOut():
            return event
    return OneInOneOut(event=event)
