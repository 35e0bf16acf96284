"""Ten tests of a record of canaries against the mechanism that a run claims to be.

Under the claim the residuals of the record, in units of the claimed noise,

    s = (y − b) / σ

are standard normal and independent, for any draws b, and the draws are independent coins of chance q for each
canary that is in. So each test below has an exact null law, or one with a proven bound, and a threshold of 1e-7 means
that. All together accuse a correct run at most once in a million (Bonferroni).

    noise           Σ s² is χ² with as many degrees as there are numbers
    contribution    Σ b s/σ over √(Σ b/σ²) is standard normal: a canary that is drawn adds C, neither less nor more
    absent          Σ s over √n of those not drawn is standard normal: who is not drawn adds nothing
    draws           how often canaries were drawn is binomial
    once an epoch   so is, for Poisson draws, how many were drawn exactly once in 1/q steps; shuffled ones all are
    together        so is the number of steps that drew a usual number of canaries; joint draws draw all or none
    replay          the signs of s in one step and the next agree as a fair coin does, and with those an epoch before;
    neighbours      as do the signs in one coordinate and the next. Noise that repeats agrees with itself
    shape           the largest gap to the normal distribution function g has P ≤ 2 exp(−2 n g²)
                    (Dvoretzky, Kiefer, Wolfowitz 1956 with Massart's constant, 1990)

:func:`find_power` states for the same tests and the same threshold the smallest fault that each would have found in
nine runs of ten.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from quietsum.errors import CorruptState
from quietsum.learning import CanaryRecord
from quietsum.selfcheck import binomial_p, kolmogorov_p, normal_p, spread_p

__all__ = [
    "FALSE_ALARM", "POWER", "Evidence", "Observed", "Part", "Power", "find_power", "find_power_of_parts",
    "forecast_power", "look_at_parts", "look_at_record", "observe_parts",
]  # fmt: skip

FALSE_ALARM = 1e-6
"""The chance that an audit accuses a correct run."""
TESTS = 10
LEVEL = FALSE_ALARM / TESTS
POWER = 0.9
_Z = float(-special.ndtri(LEVEL / 2))
_Z_POWER = float(special.ndtri(POWER))
_MOST = 1 << 53  # of any count: a float holds it as it is

Floats = NDArray[np.float64]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """One test: what was measured, how probable that is under the claim, and what it means if it is not."""

    name: str
    found: str
    p: float
    lesson: str

    @property
    def contradicts(self) -> bool:
        """Whether the claim cannot be."""
        return self.p < LEVEL

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "contradicts": self.contradicts}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Power:
    """What an audit finds of one kind of fault.

    ``smallest`` is the smallest size that it finds in nine runs of ten, as a share; above 1 it finds none. A fault
    without sizes has ``chance`` instead, that of being found. ``must`` says that an audit that would have missed it is
    inconclusive.
    """

    fault: str
    smallest: float | None = None
    chance: float | None = None
    must: float | None = None

    @property
    def enough(self) -> bool:
        """Whether the audit finds what every audit must find."""
        if self.must is None:
            return True
        if self.chance is not None:
            return self.chance >= self.must
        return self.smallest is not None and self.smallest <= self.must

    @property
    def sentence(self) -> str:
        """The fault with its size."""
        if self.chance is not None:
            return f"{self.fault}, in {math.floor(1000 * self.chance) / 10:g} % of runs"
        if self.smallest is None or self.smallest > 1:
            return f"{self.fault}: not by any share"
        return f"{self.fault}: by {math.ceil(1000 * self.smallest) / 10:g} % or more"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "fault": self.fault, "smallest": self.smallest, "chance": self.chance, "enough": self.enough,
            "sentence": self.sentence,
        }  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One record with what is claimed of it: σ of each recorded step in units of the clip, and the rate q.

    A training has one record, a federation one for each party; noise and draws of different parties are independent.
    """

    record: CanaryRecord
    noise: Floats
    rate: float

    def __post_init__(self) -> None:
        if len(self.noise) != len(self.record.steps) or not (self.noise > 0).all():
            raise CorruptState("the record of canaries and the plan do not fit together; restore them from a backup")

    @property
    def inside(self) -> int:
        """How many canaries are in."""
        return int(self.record.included.sum())

    def residuals(self) -> Floats:
        """y − b."""
        return self.record.released.astype(np.float64) - self.record.drawn

    def scores(self) -> Floats:
        """(y − b) / σ."""
        return self.residuals() / self.noise[:, None]


def look_at_record(record: CanaryRecord, *, noise: Floats, rate: float) -> tuple[Evidence, ...]:
    """The ten tests of one record. ``noise`` is the claimed σ of each recorded step, ``rate`` the claimed q."""
    return look_at_parts((Part(record=record, noise=noise, rate=rate),))


def look_at_parts(parts: Sequence[Part]) -> tuple[Evidence, ...]:
    """The ten tests of all records together. Tests whose law depends on the rate are made once for each rate, and one
    whose law depends on the number of canaries once for each record; each counts as often as it was made (Bonferroni).
    """
    scores = [part.scores() for part in parts]
    every = np.concatenate([one.ravel() for one in scores])
    undrawn = np.concatenate([one[~part.record.drawn] for one, part in zip(scores, parts, strict=True)])
    return (
        _noise(every), _contribution(parts), _absent(undrawn), *_draws(parts), *_repeats(parts, scores), _shape(every),
    )  # fmt: skip


def _by_rate(parts: Sequence[Part]) -> list[list[Part]]:
    """The records of each rate."""
    return [[part for part in parts if part.rate == rate] for rate in dict.fromkeys(part.rate for part in parts)]


def _least(found: Sequence[Evidence]) -> Evidence:
    """The least probable of several tests of one name, with its p-value counted as often as there are tests."""
    least = min(found, key=lambda one: one.p)
    return dataclasses.replace(least, p=min(1.0, len(found) * least.p))


def _noise(scores: Floats) -> Evidence:
    small, large = spread_p(scores)
    measured = math.sqrt(float(np.mean(np.square(scores)))) if scores.size else math.nan
    return Evidence(
        name="noise", p=min(1.0, 2 * min(small, large)),
        found=f"the noise is {measured:.4f} times what the claim says, over {scores.size:,} numbers",
        lesson="the noise added is not the noise claimed; ε is that of the noise that was added",
    )  # fmt: skip


def _contribution(parts: Sequence[Part]) -> Evidence:
    weights = [part.record.drawn / np.square(part.noise)[:, None] for part in parts]
    total = sum(float(one.sum()) for one in weights)
    shift = sum(float((part.residuals() * one).sum()) for part, one in zip(parts, weights, strict=True))
    drawn = sum(int(part.record.drawn.sum()) for part in parts)
    share = 1 + shift / total if total else math.nan
    return Evidence(
        name="contribution", p=normal_p(shift / math.sqrt(total)) if total else 1.0,
        found=f"a canary that is drawn adds {share:.4f} of the clip bound, over {drawn:,} draws",
        lesson="a record does not add what the clip promises: the clip is not per record, or the sensitivity is wrong",
    )  # fmt: skip


def _absent(others: Floats) -> Evidence:
    mean = float(others.mean()) if others.size else math.nan
    return Evidence(
        name="absent", p=normal_p(mean * math.sqrt(others.size)) if others.size else 1.0,
        found=f"where no canary was drawn the mean is {mean:+.5f} of the noise, over {others.size:,} numbers",
        lesson="something else moves the canaries' coordinates, or a canary counts where it was not drawn",
    )  # fmt: skip


def _draws(parts: Sequence[Part]) -> tuple[Evidence, ...]:
    alike = _by_rate(parts)
    return (
        _least([_rate_of_draws(some) for some in alike]),
        _least([_once_an_epoch(some) for some in alike]),
        _least([_together(part) for part in parts]),
    )


def _select_drawn(part: Part) -> NDArray[np.bool_]:
    """By step, which of the canaries that are in were drawn."""
    inside: NDArray[np.bool_] = part.record.drawn[:, part.record.included]
    return inside


def _rate_of_draws(parts: Sequence[Part]) -> Evidence:
    count = sum(int(_select_drawn(part).sum()) for part in parts)
    trials, rate = sum(_select_drawn(part).size for part in parts), parts[0].rate
    return Evidence(
        name="draws", p=binomial_p(count, trials, rate),
        found=f"canaries were drawn {_per(count, trials)} of the time, where the rate is {rate:.5g}",
        lesson="batches are not drawn at the rate that amplification was claimed for",
    )  # fmt: skip


def _once_an_epoch(parts: Sequence[Part]) -> Evidence:
    chance, once = _once(parts[0].rate), 0
    for part in parts:
        drawn = _select_drawn(part)
        once += sum(int((drawn[one].sum(0) == 1).sum()) for one in _windows(part.record, part.rate))
    trials = _trials_once(parts)
    return Evidence(
        name="once an epoch", p=binomial_p(once, trials, chance),
        found=f"{_per(once, trials)} were drawn exactly once in an epoch, where coins give {chance:.4f}",
        lesson="batches are not drawn by independent coins: shuffled batches take every record once an epoch",
    )  # fmt: skip


def _trials_once(parts: Sequence[Part]) -> int:
    """Epochs of canaries that are in, of which every step was recorded."""
    return sum(len(_windows(part.record, part.rate)) * part.inside for part in parts)


def _together(part: Part) -> Evidence:
    per_step = _select_drawn(part).sum(1)
    low, high, usual = _usual(part.inside, part.rate)
    within, steps = int(((low <= per_step) & (per_step <= high)).sum()), len(per_step)
    return Evidence(
        name="together", p=binomial_p(within, steps, usual),
        found=f"{_per(within, steps)} of steps drew {low} to {high} canaries, where coins give {usual:.4f}",
        lesson="records are drawn together or by turns, not each by a coin of its own",
    )  # fmt: skip


def _per(count: int, trials: int) -> str:
    return f"{count / trials:.4f}" if trials else "none"


def _windows(record: CanaryRecord, rate: float) -> list[slice]:
    """Epochs, 1/q steps each, of which every step was recorded."""
    length = max(1, round(1 / rate))
    found, steps = [], record.steps
    starts = np.flatnonzero(steps % length == 0)
    for start in starts.tolist():
        end = start + length
        if end <= len(steps) and steps[end - 1] - steps[start] == length - 1:
            found.append(slice(start, end))
    return found


def _once(rate: float) -> float:
    """The chance that a coin of chance q falls exactly once in 1/q throws."""
    length = max(1, round(1 / rate))
    return float(length * rate * (1 - rate) ** (length - 1))


def _usual(canaries: int, rate: float) -> tuple[int, int, float]:
    """The middle half of a binomial law: from, to, and its exact chance."""
    counts = np.arange(canaries + 1, dtype=np.float64)
    upto = special.bdtr(counts, canaries, rate) if rate < 1 else (counts >= canaries).astype(np.float64)
    low, high = int(np.searchsorted(upto, 0.25)), int(np.searchsorted(upto, 0.75))
    low, high = min(low, canaries), min(high, canaries)
    return low, high, float(upto[high] - (upto[low - 1] if low else 0.0))


def _repeats(parts: Sequence[Part], scores: Sequence[Floats]) -> tuple[Evidence, ...]:
    signs = [one > 0 for one in scores]
    epochs = [max(2, round(1 / part.rate)) for part in parts]
    before = f"{epochs[0]} steps before" if len(set(epochs)) == 1 else "an epoch before"
    return (
        _agree("replay", signs, [_apart(part.record, 1) for part in parts], "the step before"),
        _agree("replay later", signs, [_apart(o.record, lag) for o, lag in zip(parts, epochs, strict=True)], before),
        _count_agreement(
            "neighbours", sum(int((one[:, 1:] == one[:, :-1]).sum()) for one in signs),
            sum(one[:, 1:].size for one in signs), "the coordinate beside it",
        ),
    )  # fmt: skip


def _apart(record: CanaryRecord, lag: int) -> Pairs:
    """Places of steps that are ``lag`` apart."""
    where = np.searchsorted(record.steps, record.steps - lag)
    there = (where < len(record.steps)) & (record.steps[np.minimum(where, len(where) - 1)] == record.steps - lag)
    later = np.flatnonzero(there)
    return where[later], later


def _agree(name: str, signs: Sequence[NDArray[np.bool_]], places: Sequence[Pairs], what: str) -> Evidence:
    count = trials = 0
    for one, (first, second) in zip(signs, places, strict=True):
        count += int((one[first] == one[second]).sum())
        trials += len(first) * one.shape[1]
    return _count_agreement(name, count, trials, what)


def _count_agreement(name: str, count: int, trials: int, what: str) -> Evidence:
    return Evidence(
        name=name, p=binomial_p(count, trials, 0.5),
        found=f"the noise has the sign of that of {what} {_per(count, trials)} of the time",
        lesson="noise was used again: the difference of two releases has none left",
    )  # fmt: skip


def _shape(scores: Floats) -> Evidence:
    gap, p = kolmogorov_p(scores) if scores.size else (0.0, 1.0)
    return Evidence(
        name="shape", p=p, found=f"the largest gap to the normal law is {gap:.5f}, over {scores.size:,} numbers",
        lesson="the noise has another law than the one that was priced",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------- power


def find_power(record: CanaryRecord, *, noise: Floats, rate: float) -> tuple[Power, ...]:
    """What the tests of this record would have found, given when its canaries were drawn."""
    return find_power_of_parts((Part(record=record, noise=noise, rate=rate),))


def find_power_of_parts(parts: Sequence[Part]) -> tuple[Power, ...]:
    """The same for several records, of a fault that all of them have."""
    return observe_parts(parts).find_power()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Observed:
    """How much was seen: the few numbers from which the power of the tests follows, on any machine.

    ``numbers`` is how many were released in coordinates of canaries. ``information`` is Σ b/σ² over all draws b, and
    ``clipped`` how much of it a clip of the whole batch takes away: canaries have orthogonal gradients, so a batch that
    draws k of them and is clipped as a whole leaves 1/√k of each. ``pairs`` are numbers of one step and the next, and
    ``epochs`` has for each rate how many epochs of canaries were seen; the test is made for each of them.
    """

    numbers: int
    information: float
    clipped: float
    pairs: int
    epochs: tuple[tuple[float, int], ...]

    def find_power(self) -> tuple[Power, ...]:
        """The smallest fault of each kind that is found in nine runs of ten."""
        shift = batch = None
        if self.information > 0:
            shift = (_Z + _Z_POWER) / math.sqrt(self.information)
            batch = float(special.ndtr(self.clipped / math.sqrt(self.information) - _Z))
        return (
            Power(fault="less noise", smallest=_smaller_noise(self.numbers), must=0.5),
            Power(fault="another contribution of a record", smallest=shift),
            Power(fault="a clip of the whole batch", chance=batch or 0.0, must=POWER),
            Power(
                fault="records drawn once an epoch, as by shuffling",
                must=1.0 if any(rate < 1 for rate, _ in self.epochs) else None, smallest=_least_shuffled(self.epochs),
            ),
            Power(fault="noise used again in the next step", smallest=_rise(self.pairs, 0.5)),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "epochs": [list(one) for one in self.epochs]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Observed:
        """What :meth:`to_dict` gave; raises LookupError, TypeError or ValueError if it is anything else."""
        counts = [values["numbers"], values["pairs"], *(count for _, count in values["epochs"])]
        if any(type(one) is not int or not 0 <= one <= _MOST for one in counts):
            raise ValueError("what was observed is no count")
        measured = [float(values["information"]), float(values["clipped"])]
        rates = [float(rate) for rate, _ in values["epochs"]]
        if not all(0 <= one < math.inf for one in measured) or not all(0 < one <= 1 for one in rates):
            raise ValueError("what was observed is no number from 0 on")
        return cls(
            numbers=values["numbers"], information=measured[0], clipped=measured[1], pairs=values["pairs"],
            epochs=tuple(zip(rates, counts[2:], strict=True)),
        )  # fmt: skip


def observe_parts(parts: Sequence[Part]) -> Observed:
    """How much these records show."""
    information = clipped = 0.0
    for part in parts:
        per_step, precise = part.record.drawn.sum(1).astype(np.float64), np.square(1 / part.noise)
        information += float((per_step * precise).sum())
        clipped += float(((per_step - np.sqrt(per_step)) * precise).sum())
    return Observed(
        numbers=sum(part.record.released.size for part in parts), information=information, clipped=clipped,
        pairs=sum(len(_apart(part.record, 1)[0]) * len(part.record.included) for part in parts),
        epochs=tuple((some[0].rate, _trials_once(some)) for some in _by_rate(parts)),
    )  # fmt: skip


def forecast_power(*, canaries: int, steps: int, noise: float, rate: float) -> tuple[Power, ...]:
    """What an audit of so many canaries, of which half are in, will find, before anything has run."""
    inside = canaries // 2
    counts = np.arange(inside + 1)
    chances = np.diff(special.bdtr(counts.astype(float), inside, rate), prepend=0.0) if rate < 1 else counts == inside
    lost = float((chances * (counts - np.sqrt(counts))).sum())
    return Observed(
        numbers=steps * canaries, epochs=((rate, steps // max(1, round(1 / rate)) * inside),), clipped=steps * lost
        / noise**2, information=steps * inside * rate / noise**2, pairs=(steps - 1) * canaries,
    ).find_power()  # fmt: skip


def _smaller_noise(numbers: int) -> float | None:
    """1 − f, where f² χ² falls below the lower threshold of χ² in nine runs of ten."""
    if not numbers:
        return None
    threshold = 2 * float(special.gammaincinv(numbers / 2, LEVEL / 2))
    return 1 - math.sqrt(threshold / (2 * float(special.gammaincinv(numbers / 2, POWER))))


def _least_shuffled(epochs: Sequence[tuple[float, int]]) -> float | None:
    """The least share that the test of any one rate finds, where all of them are shuffled."""
    found = [_rise(trials, _once(rate), tests=len(epochs)) for rate, trials in epochs]
    return min((one for one in found if one is not None), default=None)


def _rise(trials: int, chance: float, *, tests: int = 1) -> float | None:
    """The smallest share w so that Binomial(trials, chance + w (1 − chance)) is beyond the threshold; None if none."""
    if not trials or chance >= 1:
        return None
    low, high, level = int(trials * chance), trials + 1, LEVEL / tests / 2
    while high - low > 1:  # the smallest count that is too large to be
        middle = (low + high) // 2
        low, high = (low, middle) if float(special.bdtrc(middle - 1, trials, chance)) < level else (middle, high)
    if high > trials:
        return None
    smallest, largest = 0.0, 1.0
    for _ in range(50):
        share = (smallest + largest) / 2
        found = float(special.bdtrc(high - 1, trials, min(1 - 1e-15, chance + share * (1 - chance)))) >= POWER
        smallest, largest = (smallest, share) if found else (share, largest)
    return largest
