"""Detectors on what a round shows: who sends odd updates, judged by the updates themselves and by public numbers.

Rules, each with a stated rate of false alarms (:data:`RATE` a round, all parties and windows together):

==============  =======================================================  =======================================
``norm``        log |update|, over the deviation of its noise if known   who lies outside (``outlying``)
``noise``       |update|² / s², s of the last step's noise               who lacks the noise (``too_quiet``)
``direction``   cosine with what the others send together                ``outlying``; who is ``opposed``
``class-rows``  the same for each class's row, over 16 rounds or more    the same, each class with its share
``copy``        equal updates, or updates equal to the last step         equality to nine digits
==============  =======================================================  =======================================

The tests are those of :mod:`quietsum.defence.detection.outliers`.

Each is judged every round, and again over windows of 4, 16 and 64 rounds: noise averages out, a habit does not. A
window of w rounds has the share w / (number of windows) of the rate, so that the expected number of false alarms in R
rounds is R · rate for each rule.

What the others send together is the sum of their updates, each cut to the median length, with the weights that the
round's mean gives them, without the one that is judged, plus the same sums of the rounds before, which count for
:data:`FADING` of what they did a round ago. Where rows are not kept (:data:`ROOM`), it is the past steps alone. Either
way the noise of the judged update is in none of it.

What differs by less than :data:`LEAST_COSINE` or a factor of :data:`LEAST_RATIO` is not reported, however surely it
does.

What these rates assume, and what they do not see:

* By comparison (``outlying``): honest parties differ from each other by a Gaussian amount, in a round and as a habit.
  (Logarithms of lengths have heavier tails, and are held to a logistic law where that is wider.)
  The threshold is made of that very spread, so unlike sites widen it. With four parties it is so far away that only the
  grossest update is named; few parties call for a root set (the rule ``trust``), not for comparisons.
* By known noise (``opposed``): an honest update does not point against what the others do together, but for its own
  noise. Sites whose data differ do, a little, so a site that is named must stand apart from the others' spread as well
  (at the rate :data:`SPREAD`), and three quarters of the others must agree.
* ``noise`` assumes nothing but the plan: an honest update holds its own last noise, whole.
* An attack inside the spread of honest updates (LIE, a patient backdoor) passes all of them; see
  :mod:`quietsum.defence.detection.backdoors` and docs/explanation/detection.md for measured rates.

Privacy: all this is post-processing of updates that carry their own noise. Where the server adds the noise to the sum
of whole clients (:class:`~quietsum.aggregation.ClientSum`), single updates carry none: nothing is measured on them, and
only the noisy step is looked at. Under secure aggregation there is only the step as well; between groups of it the
subjects are groups.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import ClientSum, Fold, NotingFold, NotingState, Part, RobustState, length_of
from quietsum.defence.detection.confusion import find_confusions
from quietsum.defence.detection.copies import SAME, clusters, find_copies_of
from quietsum.defence.detection.drift import Drift
from quietsum.defence.detection.findings import Finding, several
from quietsum.defence.detection.outliers import Outlier, find_opposed, outlying, too_quiet
from quietsum.validate import open_probability, whole_number

__all__ = ["FADING", "LEAST_COSINE", "LEAST_RATIO", "RATE", "ROOM", "WINDOWS", "Detector", "Measured", "against_others"]

RATE = 1e-5
"""Expected false alarms a round of each rule."""
WINDOWS = (1, 4, 16, 64)
"""Over how many rounds a habit is looked for."""
ROOM = 32 << 20
"""Bytes of updates that detection keeps in a round; larger ones are judged by what was noted as they arrived."""
FADING = 0.9
"""What a round's direction still counts for in the next one."""
HABIT = 16
"""Class rows are judged over so many rounds or more: a round's batch may hold no record of a class."""
LASTING = 3
"""Rounds in a row for which one class is taken for another before it is reported: an unlucky step mends itself."""
SPREAD = 1e-3
"""The rate, by comparison, at which somebody must also stand apart to be called opposed by known noise."""
LEAST_COSINE = 0.1
"""By how much a cosine must differ from the middle one before it is reported."""
LEAST_RATIO = 1.25
"""By which factor a length must differ from the middle one before it is reported."""
_AGREE = 1.0
"""The score, in deviations, by which three quarters of the others must point one way before somebody is opposed."""

Vector = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One round's numbers: a row a subject, a column for the whole update and one for each part.

    ``along`` is each update's component along what the others send together, ``noise`` the known deviation of its noise
    (zero where it has none), and ``last_noise`` that of its last step alone.
    """

    names: tuple[str, ...]
    lengths: Vector
    along: Vector
    noise: Vector
    last_noise: Vector
    copies: Sequence[tuple[int, ...]] = ()
    repeated: tuple[int, ...] = ()

    @property
    def cosines(self) -> Vector:
        """Of each update with what the others send together; zero for an update of nothing."""
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.clip(self.along / self.lengths, -1, 1))


def against_others(rows: Vector, weights: Vector | None = None, past: Vector | float = 0.0) -> tuple[Vector, Vector]:
    """The component of each row along the weighted sum of the others, each cut to the median length, plus ``past``.

    Also returns the sum of all of them, with the past: what the next round's ``past`` is made from.

    >>> against_others(np.array([[3.0, 0.0], [2.0, 1.0], [2.0, -1.0], [-90.0, 0.0]]))[0].round(2).tolist()
    [3.0, 1.34, 1.34, -90.0]
    """
    lengths = np.array([length_of(row) for row in rows])
    middle = float(np.median(lengths))
    with np.errstate(all="ignore"):
        cut = np.minimum(1.0, middle / np.where(lengths > 0, lengths, 1.0))
        share = cut if weights is None else cut * weights / weights.mean()
        total = share @ rows + past
        found = np.empty(len(rows))
        for place, row in enumerate(rows):
            rest = total - share[place] * row
            size = length_of(rest)
            found[place] = row @ (rest / size) if size > 0 else 0.0
    return np.nan_to_num(found), total


@final
class Detector:
    """What is remembered over the rounds of a run, and what is found in it.

    ``registered`` are the subjects, ``parts`` the columns that belong together by name (class rows), ``weights`` those
    of the round's mean, if any. In a resumed run its memory begins anew: nothing depends on it but what it finds.
    """

    def __init__(
        self,
        registered: Sequence[str],
        *,
        dimension: int,
        parts: Mapping[str, Part] | None = None,
        weights: Mapping[str, float] | None = None,
        subject_kind: str = "party",
        rounds: int | None = None,
        rate: float = RATE,
        windows: Sequence[int] = WINDOWS,
    ) -> None:
        self._places = {name: place for place, name in enumerate(registered)}
        self._dimension = whole_number("dimension", dimension, 1)
        self._parts = dict(parts or {})
        self._weights = dict(weights or {})
        self._kind = subject_kind
        self._rate = open_probability("rate", rate, "expected false alarms a round, 1e-5 say")
        self._windows = tuple(width for width in windows if rounds is None or width == 1 or width <= rounds)
        columns = 1 + len(self._parts)
        self._memory = {width: _Window(len(self._places), columns) for width in self._windows}
        self._drift = Drift(rate=rate)
        self._keeps = False
        self._best: NDArray[Any] | None = None
        self._lasting: dict[str, int] = {}
        self._last: Vector | None = None
        self._past = np.zeros(0)  # the direction of the rounds before, once there is one

    # ------------------------------------------------------------------------------------------- what it sees

    def around(self, fold: Fold[Any]) -> Fold[Any]:
        """``fold``, noting what :meth:`look` needs; a sum of whole clients is left as it is, and no party is judged."""
        if isinstance(fold, ClientSum):
            return fold
        small = len(self._places) * self._dimension * 8 <= ROOM
        self._keeps = small or fold.needs_individuals
        return NotingFold(
            fold=fold,
            towards=self._past if self._past.any() else None,
            parts=tuple(self._parts.values()),
            keep=small and not fold.needs_individuals,
        )

    def look(
        self, number: int, state: object, noise: Callable[[str], tuple[float, float]] | None = None
    ) -> list[Finding]:
        """What a round's updates show: ``state`` is that of :meth:`around`'s fold, or of a robust one, before its end.

        ``noise`` tells by party the deviation of the noise in each coordinate of its update, and of that of its last
        step, as far as they are known.
        """
        notes: Mapping[str, Vector] = state.notes if isinstance(state, NotingState) else {}
        rows: Mapping[str, Vector] = state.rows if isinstance(state, NotingState) else {}
        inner = state.inner if isinstance(state, NotingState) else state
        if isinstance(inner, RobustState):
            rows = dict(zip(inner.kept, inner.rows, strict=True))
        names = sorted({*notes, *rows} & self._places.keys(), key=self._places.__getitem__)
        if not names:
            return []
        deviations = np.array([noise(name) if noise else (0.0, 0.0) for name in names])
        if all(name in rows for name in names):
            found = self.measure(names, np.stack([rows[name] for name in names]), deviations)
        else:
            numbers = np.stack([notes[name] for name in names])
            found = Measured(
                names=tuple(names), lengths=numbers[:, :, 0], along=numbers[:, :, 1],
                noise=deviations[:, 0], last_noise=deviations[:, 1],
            )  # fmt: skip
            if not self._past.any():  # there is nothing yet to compare directions with
                found = dataclasses.replace(found, along=np.full_like(found.along, np.nan))
        return self.judge(number, found)

    def measure(self, names: Sequence[str], rows: Vector, deviations: Vector | None = None) -> Measured:
        """The numbers of a round from its matrix, a row a subject; its direction is remembered."""
        deviations = np.zeros((len(names), 2)) if deviations is None else deviations
        weights = np.array([self._weights.get(name, 1.0) for name in names])
        everything: list[Part] = [slice(None), *self._parts.values()]
        lengths = np.array([[length_of(row[part]) for part in everything] for row in rows])
        past = self._past if len(self._past) else np.zeros(rows.shape[1])
        pairs = [against_others(rows[:, part], weights, past[part]) for part in everything]
        along = np.stack([found for found, _ in pairs], axis=1)
        self._past = FADING * np.nan_to_num(pairs[0][1])
        return Measured(
            names=tuple(names), lengths=lengths, along=along, noise=deviations[:, 0], last_noise=deviations[:, 1],
            copies=clusters(rows, lengths[:, 0]), repeated=find_copies_of(rows, lengths[:, 0], self._last),
        )  # fmt: skip

    def step(self, number: int, step: Vector) -> list[Finding]:
        """What the round's step shows; it is what the next round's updates are compared with."""
        self._last = np.array(step, dtype=np.float64)
        if not self._keeps:
            self._past = FADING * (self._last + (self._past if len(self._past) else 0.0))
        return self._drift.saw(number, self._last)

    def answers(self, number: int, counts: NDArray[Any]) -> list[Finding]:
        """What the model's confusion on public rows shows, against that of the best model so far, where it lasts."""
        best, self._best = self._best, counts
        if best is None or best.shape != counts.shape:
            return []
        if np.trace(best) > np.trace(counts):
            self._best = best
        found = {one.statistic: one for one in find_confusions(best, counts, rate=self._rate, round=number)}
        self._lasting = {name: self._lasting.get(name, 0) + 1 for name in found}
        return [one for name, one in found.items() if self._lasting[name] % LASTING == 0]

    # ------------------------------------------------------------------------------------------ what it makes of it

    def judge(self, number: int, measured: Measured) -> list[Finding]:
        """Everything that these numbers show, with what was remembered of the rounds before."""
        found = list(self._report_copies(number, measured))
        places = np.array([self._places[name] for name in measured.names])
        for width, memory in self._memory.items():
            memory.add(places, measured)
            if number % width == 0:
                found += self._habits(number, width, memory)
                memory.clear()
        return found

    def _habits(self, number: int, width: int, memory: _Window) -> Iterator[Finding]:
        """One window: rows that were there for half of it."""
        who = np.flatnonzero(memory.count >= max(1, math.ceil(width / 2)))
        if not len(who):
            return
        rate = min(0.5, self._rate * width / len(self._windows))
        names = list(self._places)
        signs = _Signs(number=number, width=width, names=[names[place] for place in who], kind=self._kind)
        count = memory.count[who].astype(np.float64)
        quiet = memory.quiet[who]
        if (memory.known[who] == memory.count[who]).all():
            yield from signs.findings(
                "noise", "sum of squares over noise", quiet, too_quiet(quiet, count * self._dimension, rate=rate), rate
            )
        lengths = memory.lengths[who] / count
        odd = [one for one in outlying(lengths, rate=rate, heavy=True) if _ratio(lengths, one.row) >= LEAST_RATIO]
        name = "length in deviations of its noise" if memory.known[who].all() else "length"
        yield from signs.findings("norm", name, lengths, odd, rate, undo=np.exp)
        directions = memory.directed[who]
        there = directions >= max(1, math.ceil(width / 2))
        if not there.all():
            return
        labels = ["", *self._parts]
        for column, label in enumerate(labels if width >= HABIT else labels[:1]):
            rule = "class-rows" if label else "direction"
            share = rate / (2 * (len(self._parts) if label else 1))  # half each for the two tests of a direction
            name = f"cosine of {label}" if label else "cosine"
            mean = memory.cosines[who, column] / directions
            odd = [
                one
                for one in outlying(mean, rate=share)
                if abs(mean[one.row] - _others(mean, one.row)) >= LEAST_COSINE
                and (not label or one.value < min(0.0, one.threshold))  # who holds most of a class agrees most on it
            ]
            yield from signs.findings(rule, name, mean, odd, share)
            yield from self._opposition(signs, rule, label, who, column, memory, share)

    def _opposition(
        self, signs: _Signs, rule: str, label: str, who: NDArray[np.int64], column: int, memory: _Window, rate: float
    ) -> Iterator[Finding]:
        """Who points against what the others do together, by known noise, where the others do agree."""
        if (memory.noisy[who] < memory.directed[who]).any():
            return
        scores = memory.scores[who, column] / np.sqrt(memory.directed[who])
        apart = {one.row for one in outlying(scores, rate=SPREAD)}
        found = [
            one
            for one in find_opposed(scores, rate=rate)
            if one.row in apart and _common_cosine(scores, one.row) >= _AGREE
        ]
        name = f"component of {label} in deviations" if label else "component in deviations"
        yield from signs.findings(rule, name, scores, found, rate)

    def _report_copies(self, number: int, measured: Measured) -> Iterator[Finding]:
        """One finding for each set of equal updates, however many parties sent them."""
        count = len(measured.names)
        chance = min(1.0, count * (count + 1) / 2 * SAME)
        sets = [("updates equal to the last step", 0, measured.repeated)] if measured.repeated else []
        sets += [("equal updates", 1, rows) for rows in measured.copies if not set(rows) & set(measured.repeated)]
        for statistic, threshold, rows in sets:
            names = [measured.names[row] for row in rows]
            yield Finding(
                round=number, rule="copy", statistic=statistic, value=len(rows), threshold=threshold,
                false_positive_rate=chance, subject_kind=self._kind, subject=several(names),
                looked=dict.fromkeys(names, 1.0),
            )  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Signs:
    """How the outliers of one window become findings."""

    number: int
    width: int
    names: Sequence[str]
    kind: str

    def findings(
        self,
        rule: str,
        statistic: str,
        values: Vector,
        found: Sequence[Outlier],
        rate: float,
        undo: Callable[[Any], Any] = lambda value: value,
    ) -> Iterator[Finding]:
        looked = {name: float(undo(value)) for name, value in zip(self.names, values, strict=True)} if found else {}
        for one in found:
            yield Finding(
                round=self.number, rule=rule, statistic=statistic, value=float(undo(one.value)),
                threshold=float(undo(one.threshold)), false_positive_rate=rate, subject_kind=self.kind,
                subject=self.names[one.row], window=self.width, looked=looked,
            )  # fmt: skip


@final
class _Window:
    """Sums over the rounds of one window, a row a party."""

    def __init__(self, count: int, columns: int) -> None:
        self.count = np.zeros(count, dtype=np.int64)
        self.directed = np.zeros(count, dtype=np.int64)
        self.noisy, self.known = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.lengths, self.quiet = np.zeros(count), np.zeros(count)
        self.cosines, self.scores = np.zeros((count, columns)), np.zeros((count, columns))

    def clear(self) -> None:
        """Begin the next window."""
        for values in vars(self).values():
            values[...] = 0

    def add(self, places: NDArray[np.int64], measured: Measured) -> None:
        """One more round."""
        whole, noise, last = measured.lengths[:, 0], measured.noise, measured.last_noise
        smallest = max(float(np.median(whole)), np.finfo(np.float64).tiny) * 1e-6
        with np.errstate(all="ignore"):
            expected = np.where(noise > 0, noise, 1.0)
            size = np.log(np.clip(whole, smallest, 1e300)) - np.log(expected)
            self.lengths[places] += np.clip(size, -690, 690)  # so that its exponential is a number again
            self.quiet[places] += np.where(last > 0, np.minimum((whole / last) ** 2, 1e200), 0.0)
            self.count[places] += 1
            self.known[places] += last > 0
            if np.isnan(measured.along).any():
                return
            self.cosines[places] += measured.cosines
            scores = np.clip(measured.along / expected[:, None], -1e100, 1e100)
            self.scores[places] += np.where(noise[:, None] > 0, scores, 0.0)
        self.directed[places] += 1
        self.noisy[places] += noise > 0


def _others(values: Vector, row: int) -> float:
    """The median of all but ``row``."""
    return float(np.median(np.delete(values, row)))


def _common_cosine(scores: Vector, row: int) -> float:
    """What three quarters of the others exceed."""
    rest = np.sort(np.delete(scores, row))
    return float(rest[(len(rest) - 1) // 4])


def _ratio(logarithms: Vector, row: int) -> float:
    """By which factor ``row`` is larger or smaller than the middle of the others."""
    return float(np.exp(min(abs(logarithms[row] - _others(logarithms, row)), 690.0)))
