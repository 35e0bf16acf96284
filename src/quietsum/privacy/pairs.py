"""From events to dominating pairs: the normal form that every accountant starts from.

An event is dominated by a pair of distributions (P, Q) when no adversary can tell two neighbouring datasets apart
better than P from Q (Zhu, Dong, Wang 2022). :func:`reduce_event` rewrites any event, under a neighbouring relation,
into a list of (pair, how often). Accountants then only ever see the few frozen pairs below; they are hashable,
so that work done for one is done once.

Sources of the reductions:

* Poisson sampling under add-or-remove: P' = (1 − q) Q + q P against Q, both directions (Zhu, Dong, Wang 2022, Thm 11).
* Groups of k under Poisson sampling: binomial mixture of shifts 0 … k (Ganesh 2024, arXiv 2401.10294).
* Poisson sampling of integer sums in several dimensions, of which only moments are known: docs/explanation/
  distributed-noise.md has the proofs, for both directions, groups, and replace-one by way of the data without the unit.
* Poisson sampling under replace-one: (1 − q) N(0) + q N(1) against (1 − q) N(0) + q N(−1); that opposite records are
  the worst ones is shown in docs/explanation/replace-one.md.
* A record of a person whose contributions are bounded: under add-or-remove the pair of replace-one, since a record that
  leaves may let another in (the proof stands at :class:`~quietsum.privacy.events.OneInOneOut`).
* Fixed-size batches: for a single step the worst pair under replace-one is Poisson's at half the noise (Lebeda et al.
  2024, arXiv 2405.20769), but in one direction only, and an attacker who steers the *other* records by what was
  released before may turn round between steps. So each step is reduced to its envelope, which is the worst in both
  directions at once; under zero-out it is a smaller one. docs/explanation/fixed-size.md has the proofs.

Sampling amplifies what happens to the *absence* of a unit. Under add-or-remove that is what neighbours compare. Under
zero-out they compare with a null unit instead, and the two are the same for noisy sums and for randomised answers, but
not for PureDP or ApproximateDP, whose statement says nothing about absence; those are refused there.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import final

from quietsum.errors import MixedUnits, UnsupportedEvent
from quietsum.privacy import events as ev
from quietsum.privacy.old_rules import SingleBatch
from quietsum.privacy.units import Neighbours, PrivacyUnit
from quietsum.validate import whole_number

__all__ = [
    "ApproximatePair",
    "DiscreteGaussianPair",
    "DiscreteGaussianSumPair",
    "DiscreteLaplacePair",
    "EnvelopePair",
    "GaussianPair",
    "LaplacePair",
    "MergedPair",
    "MixturePair",
    "OppositePair",
    "Pair",
    "ResponsePair",
    "SampledPair",
    "SampledSumPair",
    "SkellamPair",
    "VectorDiscreteGaussianPair",
    "ZcdpPair",
    "bounds_contributions",
    "fixed_size_draws",
    "group_size",
    "has_no_lower",
    "has_only_moments",
    "list_attained",
    "reduce_event",
    "unit_of",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A pair (P, Q) that dominates one use of a mechanism."""


@final
@dataclasses.dataclass(frozen=True, slots=True)
class GaussianPair(Pair):
    """N(1, sigma²) against N(0, sigma²); the same in both directions."""

    sigma: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class MixturePair(Pair):
    """Σ_j Binomial(size, rate)(j) · N(j, sigma²) against N(0, sigma²), and the other way round."""

    sigma: float
    rate: float
    size: int = 1


@final
@dataclasses.dataclass(frozen=True, slots=True)
class OppositePair(Pair):
    """(1 − rate) N(0) + rate N(1) against (1 − rate) N(0) + rate N(−1), variance sigma²; mirror-symmetric."""

    sigma: float
    rate: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class EnvelopePair(Pair):
    """What is as bad as every pair of one fixed-size batch, in both directions at once.

    Its losses above 0 are those of (1 − rate) N(0) + rate N(1) against (1 − rate) N(0) + rate N(near), variance sigma²;
    the losses below 0 are their mirror image, and the rest of the mass lies at 0. Shifts are in units of 2 C. Under
    replace-one ``near`` is 0: the record is far from its substitute and from the record that takes its place when it is
    not drawn. Under zero-out it is 1/2: null lies half-way.
    """

    sigma: float
    rate: float
    near: float = 0.0


@final
@dataclasses.dataclass(frozen=True, slots=True)
class MergedPair(Pair):
    """(1 − rate) N(0) + rate N(1) against (1 − rate) N(0) + rate N(near), of which only losses above 0 are shown.

    All other outputs are one answer. Two real records attain it, up to that post-processing: for lower bounds.
    """

    sigma: float
    rate: float
    near: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class LaplacePair(Pair):
    """Laplace(1, scale) against Laplace(0, scale); the same in both directions."""

    scale: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class DiscreteLaplacePair(Pair):
    """Noise ∝ exp(−|k| / scale) on the integers, shifted by ``shift`` against not shifted."""

    scale: float
    shift: int


@final
@dataclasses.dataclass(frozen=True, slots=True)
class DiscreteGaussianPair(Pair):
    """Noise ∝ exp(−k² / 2 sigma²) on the integers, shifted by ``shift`` against not shifted."""

    sigma: float
    shift: int


@final
@dataclasses.dataclass(frozen=True, slots=True)
class VectorDiscreteGaussianPair(Pair):
    """A discrete Gaussian sum in several dimensions, shifted by an integer vector of L2 norm ≤ shift.

    Only moments are known to be bounded: (shift / sigma)² / 2-zCDP.
    """

    sigma: float
    shift: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class DiscreteGaussianSumPair(Pair):
    """The sum of ``shares`` discrete Gaussians of ``sigma`` in each of ``dimension`` coordinates, shifted as above.

    Only moments are known to be bounded (:func:`quietsum.privacy.renyi.curves.rdp_of` says how).
    """

    sigma: float
    shares: int
    shift: float
    dimension: int


@final
@dataclasses.dataclass(frozen=True, slots=True)
class SkellamPair(Pair):
    """Skellam noise of ``variance`` a coordinate, shifted by a vector of norms ≤ (l1, l2)."""

    variance: float
    l1: float
    l2: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ResponsePair(Pair):
    """k-ary randomised response: the answers of two neighbours swap the probabilities keep and (1 − keep)/(k − 1)."""

    keep: float
    categories: int


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ApproximatePair(Pair):
    """The worst (ε, δ)-private mechanism: with probability δ it tells all, else it answers at odds e^ε."""

    epsilon: float
    delta: float = 0.0


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ZcdpPair(Pair):
    """Anything ρ-zCDP; only its Rényi curve α·ρ is known."""

    rho: float


@final
@dataclasses.dataclass(frozen=True, slots=True)
class SampledPair(Pair):
    """(1 − rate) Q + rate P against Q for the P and Q of ``base``, and the other way round."""

    rate: float
    base: Pair


@final
@dataclasses.dataclass(frozen=True, slots=True)
class SampledSumPair(Pair):
    """Integer noise on a sum that each of ``size`` units joins by a coin of ``rate``, against the sum without them.

    ``base`` is one unit's pair, shifted by an integer vector of bounded norms; ``replaced`` compares two such sums of
    different units, both beside the same others. Only moments are known (:mod:`quietsum.privacy.renyi.sampled_sums`).
    """

    rate: float
    base: SkellamPair | VectorDiscreteGaussianPair | DiscreteGaussianSumPair
    size: int = 1
    replaced: bool = False


def reduce_event(event: ev.PrivacyEvent, neighbours: Neighbours, times: int = 1) -> list[tuple[Pair, int]]:
    """The pairs that dominate ``times`` uses of ``event`` under ``neighbours``.

    Free events (no repetitions, rate 0, ε = δ = 0) leave nothing behind. Raises
    :class:`~quietsum.errors.UnsupportedEvent` where no sound reduction is known.
    """
    times = whole_number("times", times)
    found: dict[Pair, int] = {}
    for pair, count in _reduce(event, neighbours, 1):
        if count * times:
            found[pair] = found.get(pair, 0) + count * times
    return list(found.items())


def group_size(event: ev.PrivacyEvent) -> int:
    """How many units at once ``event`` speaks of: 1, or the k of its groups. Mixed sizes raise MixedUnits."""
    match event:
        case ev.Group(size=size, event=inner):
            return size * group_size(inner)
        case ev.Composed(events=parts):
            sizes = {group_size(part) for part in parts}
            if len(sizes) > 1:
                raise MixedUnits(
                    f"one composition speaks of groups of {sorted(sizes)} units at once; "
                    "wrap the whole composition in one Group(size=k, event=...)"
                )
            return sizes.pop() if sizes else 1
        case _:
            inner_event = getattr(event, "event", None)
            return group_size(inner_event) if isinstance(inner_event, ev.PrivacyEvent) else 1


def fixed_size_draws(event: ev.PrivacyEvent, times: int = 1) -> int:
    """How many fixed-size batches with Gaussian noise ``times`` uses of ``event`` price as the worst single one."""
    match event:
        case SingleBatch(rate=rate, event=inner):
            gaussian = 0 < rate < 1 and isinstance(_one_draw(inner, Neighbours.REPLACE_ONE, 1), GaussianPair)
            return times if gaussian else 0
        case ev.Repeated(times=more, event=inner):
            return fixed_size_draws(inner, times * more) if more else 0
        case ev.Composed(events=parts):
            return sum(fixed_size_draws(part, times) for part in parts)
        case _:
            inner_event = getattr(event, "event", None)
            return fixed_size_draws(inner_event, times) if isinstance(inner_event, ev.PrivacyEvent) else 0


def has_no_lower(event: ev.PrivacyEvent) -> bool:
    """Whether ``event`` holds a fixed-size batch of which only (ε, δ) is composed: that bounds nothing from below."""
    for part in _inside(event):
        if isinstance(part, ev.FixedSizeSampled) and 0 < part.rate < 1:
            base = _one_draw(part.event, Neighbours.REPLACE_ONE, 1)
            if isinstance(base, LaplacePair | DiscreteLaplacePair | ResponsePair):
                return True
    return False


def has_only_moments(event: ev.PrivacyEvent) -> bool:
    """Whether ``event`` holds integer noise in several dimensions, of which no accountant knows more than moments."""
    for part in _inside(event):
        if isinstance(part, ev.Skellam | ev.DiscreteGaussianSum):
            return True
        if isinstance(part, ev.DiscreteGaussian) and (part.dimension > 1 or part.sensitivity != int(part.sensitivity)):
            return True
    return False


def list_attained(counts: Mapping[Pair, int]) -> list[dict[Pair, int]]:
    """``counts`` with envelopes replaced by pairs that two real datasets attain: each list is a lower bound.

    Under replace-one the record and its substitute point in opposite directions and all other records are like the
    substitute; under zero-out all other records are null, or all are opposite to the record. That fits the worst pairs
    of all other events. Without envelopes it is ``counts`` itself.
    """
    near = max((pair.near for pair in counts if isinstance(pair, EnvelopePair)), default=0.0)
    found: list[dict[Pair, int]] = []
    for opposite in (False, True) if near else (False,):
        real: dict[Pair, int] = {}
        for pair, count in counts.items():
            if isinstance(pair, EnvelopePair):
                merged = MergedPair(pair.sigma, pair.rate, pair.near)
                pair = merged if opposite else MixturePair(pair.sigma / (1 - pair.near), pair.rate)
            real[pair] = real.get(pair, 0) + count
        found.append(real)
    return found


def unit_of(size: int, unit: PrivacyUnit | None) -> PrivacyUnit:
    """The unit a guarantee wears: as stated, else a record, or a person where groups were composed."""
    if unit is not None:
        return unit
    return PrivacyUnit.RECORD if size == 1 else PrivacyUnit.PERSON


def _reduce(event: ev.PrivacyEvent, neighbours: Neighbours, size: int) -> list[tuple[Pair, int]]:
    replace = neighbours is Neighbours.REPLACE_ONE
    reach = size * (2 if replace else 1)  # how many C apart the two sums are
    match event:
        case ev.Gaussian(noise_multiplier=sigma):
            return [(GaussianPair(sigma / reach), 1)]
        case ev.Laplace(noise_multiplier=scale):
            return [(LaplacePair(scale / reach), 1)]
        case ev.DiscreteLaplace(scale=scale, sensitivity=sensitivity):
            return [(DiscreteLaplacePair(scale, sensitivity * reach), 1)]
        case ev.DiscreteGaussian(sigma=sigma, sensitivity=sensitivity, dimension=dimension):
            if dimension == 1 and sensitivity == int(sensitivity):
                return [(DiscreteGaussianPair(sigma, int(sensitivity) * reach), 1)]
            return [(VectorDiscreteGaussianPair(sigma, sensitivity * reach), 1)]
        case ev.DiscreteGaussianSum(sigma=sigma, shares=shares, sensitivity=sensitivity, dimension=dimension):
            if shares == 1:
                return [(VectorDiscreteGaussianPair(sigma, sensitivity * reach), 1)]
            return [(DiscreteGaussianSumPair(sigma, shares, sensitivity * reach, dimension), 1)]
        case ev.Skellam(variance=variance, l1_sensitivity=l1, l2_sensitivity=l2):
            return [(SkellamPair(variance, l1 * reach, l2 * reach), 1)]
        case ev.RandomizedResponse(keep_probability=keep, categories=categories):
            return [(ResponsePair(keep, categories), size)]  # each of the k units answers for itself
        case ev.PureDP(epsilon=epsilon):
            return [(_group_pair(epsilon, 0.0, size), 1)] if epsilon else []
        case ev.ApproximateDP(epsilon=epsilon, delta=delta):
            return [(_group_pair(epsilon, delta, size), 1)] if epsilon or delta else []
        case ev.Zcdp(rho=rho):
            return [(ZcdpPair(rho * size * size), 1)] if rho else []
        case ev.Repeated(times=times, event=inner):
            return [(pair, count * times) for pair, count in _reduce(inner, neighbours, size)] if times else []
        case ev.Composed(events=parts):
            return [item for part in parts for item in _reduce(part, neighbours, size)]
        case ev.Group(size=more, event=inner):
            return _reduce(inner, neighbours, size * more)
        case ev.PoissonSampled(rate=rate, event=inner):
            return _reduce_poisson(rate, inner, neighbours, size)
        case ev.FixedSizeSampled(rate=rate, event=inner):
            return _reduce_fixed(rate, inner, neighbours, size)
        case SingleBatch(rate=rate, event=inner):
            return _reduce_fixed(rate, inner, neighbours, size, single=True)
        case ev.OneInOneOut(event=inner):
            return _reduce_one_in_one_out(inner, neighbours, size)
        case ev.Shuffled(batches=batches, event=inner):
            if neighbours is Neighbours.ADD_REMOVE and batches > 1:
                raise UnsupportedEvent(
                    "Shuffled batches under add-or-remove: one more record moves every batch boundary after it, so the "
                    "batches are not comparable; declare neighbours=Neighbours.ZERO_OUT, or sample with PoissonSampled"
                )
            return _reduce(inner, neighbours, size)
        case _:
            raise UnsupportedEvent(
                f"{type(event).__name__} is no event this version knows; compose one of the events of "
                "quietsum.privacy.events, or state what you can prove as PureDP, ApproximateDP or Zcdp"
            )


def _reduce_one_in_one_out(inner: ev.PrivacyEvent, neighbours: Neighbours, size: int) -> list[tuple[Pair, int]]:
    """A record that leaves may let another in: see :class:`~quietsum.privacy.events.OneInOneOut` for why."""
    if size > 1 or group_size(inner) > 1:
        raise UnsupportedEvent(
            "OneInOneOut is about one record, and a group of them was asked for: what several records of one person "
            "cost at once is Group(size=k, event=...) of the event itself"
        )
    for event in _inside(inner):
        if isinstance(event, ev.OneInOneOut):
            raise UnsupportedEvent("OneInOneOut inside OneInOneOut: contributions are bounded once; write one of them")
        if neighbours is not Neighbours.ADD_REMOVE:
            continue
        if isinstance(event, ev.FixedSizeSampled | SingleBatch) or (
            isinstance(event, ev.Shuffled) and event.batches > 1
        ):
            raise UnsupportedEvent(
                f"OneInOneOut of {type(event).__name__} under add-or-remove: one that leaves without another coming in "
                "changes how many there are, and every batch with it; declare Neighbours.ZERO_OUT or REPLACE_ONE, "
                "or sample with PoissonSampled"
            )
        if isinstance(event, ev.PureDP | ev.ApproximateDP | ev.Zcdp | ev.RandomizedResponse):
            raise UnsupportedEvent(
                f"OneInOneOut of {type(event).__name__} under add-or-remove: its statement is about one unit that comes"
                " or goes, not about one that leaves while another comes in; declare Neighbours.ZERO_OUT, or state "
                "what holds for both at once, without OneInOneOut"
            )
    if neighbours is not Neighbours.ADD_REMOVE:
        return _reduce(inner, neighbours, 1)
    try:
        return _reduce(inner, Neighbours.REPLACE_ONE, 1)
    except UnsupportedEvent as error:
        raise UnsupportedEvent(
            "where a person's records are bounded, a record that leaves may let another in, so it is priced as if "
            f"replaced, and that has no bound here ({error}); declare Neighbours.ZERO_OUT, where no other record moves"
        ) from None


def bounds_contributions(event: ev.PrivacyEvent) -> bool:
    """Whether ``event`` speaks of a record whose person's contributions are bounded."""
    return any(isinstance(part, ev.OneInOneOut) for part in _inside(event))


def _group_pair(epsilon: float, delta: float, size: int) -> ApproximatePair:
    """Group privacy of (ε, δ): (kε, δ (e^{kε} − 1)/(e^ε − 1)), δ capped at 1 (Vadhan 2017, Lemma 2.2)."""
    if math.isinf(size * epsilon):
        return ApproximatePair(0.0, 1.0)  # what no float holds tells all
    if size == 1 or delta == 0:
        return ApproximatePair(size * epsilon, delta)
    if epsilon == 0:
        return ApproximatePair(0.0, min(1.0, size * delta))
    log_factor = (size - 1) * epsilon + math.log(-math.expm1(-size * epsilon)) - math.log(-math.expm1(-epsilon))
    return ApproximatePair(size * epsilon, math.exp(min(0.0, math.log(delta) + log_factor)))


def _inside(event: ev.PrivacyEvent) -> Iterator[ev.PrivacyEvent]:
    """``event`` and everything it is made of."""
    yield event
    parts = event.events if isinstance(event, ev.Composed) else (getattr(event, "event", None),)
    for part in parts:
        if isinstance(part, ev.PrivacyEvent):
            yield from _inside(part)


def _check_sampled(inner: ev.PrivacyEvent, neighbours: Neighbours) -> None:
    """Refuse what no sampler may stand around."""
    if group_size(inner) > 1:
        raise UnsupportedEvent(
            "a Group inside a sampled event leaves open whether one coin draws the whole group; write "
            "Group(size=k, event=...) around the sampled event where every unit has its own coin, or state the noise "
            "relative to the norm of a whole group where it has not"
        )
    if bounds_contributions(inner):
        raise UnsupportedEvent(
            "OneInOneOut inside a sampled event would let one coin draw the record that leaves and the one that comes; "
            "each has its own: write OneInOneOut(event=...) around the sampled event"
        )
    if neighbours is Neighbours.ZERO_OUT:
        for event in _inside(inner):
            if isinstance(event, ev.PureDP | ev.ApproximateDP):
                raise UnsupportedEvent(
                    f"sampling of {type(event).__name__} under zero-out: its ε compares a unit with a null one, but "
                    "sampling needs it compared with none or with another; declare Neighbours.ADD_REMOVE (Poisson) or "
                    "REPLACE_ONE (fixed size) and state the ε of that relation, or charge the event without sampling"
                )


def _one_draw(inner: ev.PrivacyEvent, neighbours: Neighbours, size: int) -> Pair | None:
    """Everything that happens to one draw, as one pair: Gaussians add up to a Gaussian, others stay alone."""
    items = [(pair, count) for pair, count in _reduce(inner, neighbours, size) if count]
    if not items:
        return None
    if len(items) == 1 and items[0][1] == 1:
        return items[0][0]
    if all(isinstance(pair, GaussianPair) for pair, _ in items):
        shifts = [math.sqrt(count) / pair.sigma for pair, count in items if isinstance(pair, GaussianPair)]
        return GaussianPair(1 / math.hypot(*shifts))
    raise UnsupportedEvent(
        "sampling around several steps that share one draw is only known for Gaussian noise; "
        "draw afresh for every step (Repeated around PoissonSampled), or state the round as one event"
    )


def _reduce_poisson(rate: float, inner: ev.PrivacyEvent, neighbours: Neighbours, size: int) -> list[tuple[Pair, int]]:
    if rate == 0:
        return []
    if rate == 1:
        return _reduce(inner, neighbours, size)
    if isinstance(inner, ev.PoissonSampled):  # a coin of a coin is a coin
        return _reduce_poisson(rate * inner.rate, inner.event, neighbours, size)
    _check_sampled(inner, neighbours)
    for event in _inside(inner):
        if isinstance(event, ev.FixedSizeSampled | SingleBatch) or (
            isinstance(event, ev.Shuffled) and event.batches > 1
        ):
            raise UnsupportedEvent(
                f"Poisson sampling around {type(event).__name__}: who is drawn changes the batches of all others, so "
                "being left out is not being null; draw each batch by itself with PoissonSampled"
            )
    among = f"{type(inner).__name__}{f' for a group of {size}' if size > 1 else ''}"
    replace = neighbours is Neighbours.REPLACE_ONE
    base = _one_draw(inner, Neighbours.ADD_REMOVE if replace else neighbours, 1)
    match base:
        case None:
            return []
        case GaussianPair(sigma=sigma) if replace and size == 1:
            return [(OppositePair(sigma, rate), 1)]
        case SkellamPair() | VectorDiscreteGaussianPair() | DiscreteGaussianSumPair():
            return [(SampledSumPair(rate, base, size, replace), 1)]
        case _ if replace:
            raise UnsupportedEvent(
                f"Poisson sampling of {among} under replace-one has no bound here; use the add-or-remove or zero-out "
                "relation, where it has"
            )
        case GaussianPair(sigma=sigma):
            return [(MixturePair(sigma, rate, size), 1)]
        case ResponsePair():
            return [(SampledPair(rate, base), size)]  # each of the k units has its own coin and its own answer
        case LaplacePair() | DiscreteLaplacePair() | DiscreteGaussianPair() | ApproximatePair() if size == 1:
            return [(SampledPair(rate, base), 1)]
        case LaplacePair() | DiscreteLaplacePair() | ApproximatePair():
            return [(_group_pair(*amplify(rate, *_as_approximate(base)), size), 1)]
        case _:
            raise UnsupportedEvent(
                f"Poisson sampling of {among} has no sound bound here; use Gaussian noise, or charge the event without "
                "sampling"
            )


def _reduce_fixed(
    rate: float, inner: ev.PrivacyEvent, neighbours: Neighbours, size: int, *, single: bool = False
) -> list[tuple[Pair, int]]:
    """The envelope of one batch of fixed size; with ``single``, the worst pair of a batch that stays the only one.

    Old entries are checked with the latter, so its pairs stay what they are.
    """
    if neighbours is Neighbours.ADD_REMOVE:
        raise UnsupportedEvent(
            "fixed-size batches under add-or-remove: adding a unit changes the law of every batch; declare "
            "neighbours=Neighbours.REPLACE_ONE (the population's size is public then), or sample with PoissonSampled"
        )
    if rate == 0:
        return []
    if rate == 1:
        return _reduce(inner, neighbours, size)
    if size > 1:
        raise UnsupportedEvent(
            "fixed-size batches for a group of units have no tight pair; ask for the single unit and convert with "
            "quietsum.privacy.group_guarantee, or sample with PoissonSampled"
        )
    _check_sampled(inner, neighbours)
    # The record that takes the place of one that is not drawn is another one, so replace-one is the relation inside.
    base = _one_draw(inner, Neighbours.REPLACE_ONE, 1)
    match base:
        case None:
            return []
        case GaussianPair(sigma=sigma):
            near = 0.5 if neighbours is Neighbours.ZERO_OUT else 0.0
            return [(MixturePair(sigma, rate, 1) if single else EnvelopePair(sigma, rate, near), 1)]
        case LaplacePair() | DiscreteLaplacePair() | ResponsePair() | ApproximatePair():
            # Balle, Barthe, Gaboardi 2018, Theorem 9: sampling without replacement under substitution. It holds in both
            # directions at once, and (ε, δ)-private steps compose in any order, so this is an envelope too.
            return [(ApproximatePair(*amplify(rate, *_as_approximate(base))), 1)]
        case _:
            raise UnsupportedEvent(
                f"fixed-size sampling of {type(inner).__name__} has no sound bound here; use Gaussian noise, or no "
                "sampling"
            )


def amplify(rate: float, epsilon: float, delta: float) -> tuple[float, float]:
    """(ln(1 + q (e^ε − 1)), q δ): what sampling at rate q makes of an (ε, δ)-private event."""
    if epsilon > 700:
        return epsilon + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-epsilon)), rate * delta
    return math.log1p(rate * math.expm1(epsilon)), rate * delta


def _as_approximate(pair: Pair) -> tuple[float, float]:
    """(ε, δ) of the pairs that have one."""
    match pair:
        case LaplacePair(scale=scale):
            return 1 / scale, 0.0
        case DiscreteLaplacePair(scale=scale, shift=shift):
            return shift / scale, 0.0
        case ResponsePair(keep=keep, categories=categories):
            return ev.RandomizedResponse(keep_probability=keep, categories=categories).epsilon, 0.0
        case ApproximatePair(epsilon=epsilon, delta=delta):
            return epsilon, delta
        case _:
            raise UnsupportedEvent(f"{type(pair).__name__} is not (ε, δ)-bounded")
