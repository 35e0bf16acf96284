"""T1, T2, T9: the sum before the noise, replayed on neighbouring batches of made-up rows.

**T1, sensitivity.** The noise is scaled to what one record may change, so one record must not change more: ‖f(D + x)
− f(D)‖ ≤ Δ for every D and x. Random rows seldom show the worst case. A clipped *mean*, for instance, only moves by
2Δ when a batch that points one way meets a record that outweighs it the other way. So rows are scaled from 1 to 10⁴,
the most opposed pairs are looked for, x is put in every place, and the best find is improved by a few steps of
search. A step may also behave until a batch is large (a layer with room for so many rows, rows that are clipped in
pairs), so a record is put into batches of up to E + 6√E rows, and taken out of them: the largest that training will
draw. A find above Δ is a proof; finding none is not. For large models fewer pairs are tried, how many follows from the
number of parameters alone.

**T2, superposition.** A sum of per-example terms is additive, f(A ∪ B) = f(A) + f(B), in any order. What mixes
examples (a batch clip, batch statistics, division by the batch's own size) is not, and no search is needed to see it.
Batches range from one row to the largest, on both sides of powers of two, where engines cut them. Some have
rows of short terms, the shortest in one part, so that a bound that follows the batch lies below Δ. One has a crowd that
points one way beside a few rows that point the other: a step that leaves out records unlike the rest fails there.

**T9, equivalence.** Where a naive loop is at hand, the sum equals it.

No chance of a false alarm but by rounding, for which each comparison leaves room
(:mod:`quietsum.selfcheck.probes.rounding`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.probes.rounding import distance, forgiven, rounding
from quietsum.selfcheck.probes.rows import (
    SCALES,
    join,
    largest_tested_batch,
    mix,
    nothing,
    repeat,
    rows,
    scale_rows,
    size,
)
from quietsum.selfcheck.protocol import Batch, Floats, StepUnderTest, Twin
from quietsum.selfcheck.report import CheckFinding, CheckVerdict

__all__ = ["WorstPair", "equivalence", "sensitivity", "superposition"]

_LEEWAY = 1e-4  # of Δ, for rounding in the clip itself
_FOLDED = 1 << 16  # numbers of a term by which opposed rows are looked for
_LARGE = 1 << 21  # parameters beyond which fewer of them are tried
_SIZES = (3, 8, 11, 17, 33, 65, 129, 257)  # of batches that are replayed, besides the largest that will be drawn
_FEW = (3, 11, 17)  # before a training
_SOME, _QUIET = (
    8,
    (0.1, 0.3, 1e-2),
)  # rows of a batch that leans, or whose terms are short: a clip that follows them shows


@final
@dataclass(frozen=True, kw_only=True)
class WorstPair:
    """A batch, the same batch with one record more, and by how much of Δ the sum moved."""

    without: Batch
    within: Batch
    ratio: float


def sensitivity(step: StepUnderTest, rng: RandomSource, *, tries: int) -> tuple[CheckFinding, WorstPair]:
    """T1: look for a record that moves the sum by more than it may."""
    search = _Search(step, rng)
    if not search.repeatable():
        lesson = (
            "The same batch gave two different sums, so the step draws randomness of its own before the noise and "
            "cannot be replayed. Torch's own dropout and noise are held still for the check; switch off other draws "
            "(orders, whole numbers, numpy's) while checking."
        )
        finding = CheckFinding(
            test="T1", name="sensitivity", verdict=CheckVerdict.FAIL, lesson=lesson, statistic=np.inf
        )
        return finding, search.worst
    search.look(tries)
    worst, limit = search.worst, search.limit
    lesson = (
        f"One record moved the sum by {worst.ratio:.4g} times the sensitivity that the noise is made for, so the true "
        "privacy loss is larger than accounted. Clip each example's whole gradient before anything is summed."
    )
    if worst.ratio <= limit:
        lesson = "No record was found that moves the sum by more than the sensitivity."
    return CheckFinding(
        test="T1",
        name="sensitivity",
        verdict=CheckVerdict.PASS if worst.ratio <= limit else CheckVerdict.FAIL,
        lesson=lesson,
        statistic=worst.ratio,
        threshold=limit,
    ), worst


@final
class _Search:
    """Random pairs, opposed pairs, then a climb from the best."""

    def __init__(self, step: StepUnderTest, rng: RandomSource) -> None:
        self._step, self._rng = step, rng
        self._pool = step.examples(16, rng)
        self.worst = WorstPair(without=nothing(self._pool), within=nothing(self._pool), ratio=0.0)
        self._found: tuple[Batch, Batch, int] = (nothing(self._pool), rows(self._pool, [0]), 0)
        self.limit = 1 + _LEEWAY + rounding(step, 1)
        self._signs: Floats | None = None
        self._size = 0  # of the sum, a public number that settles the work before any of it is looked at
        self._base: tuple[Batch, Floats] | None = None

    def repeatable(self) -> bool:
        batch = scale_rows(rows(self._pool, [0, 1, 2]), 3.0)
        first, second = self._step.deterministic(batch), self._step.deterministic(batch)
        self._size = first.size
        return distance(self._step, first, second) <= rounding(self._step, 3) or not np.isfinite(first).all()

    def look(self, tries: int) -> None:
        for number in range(max(tries // 3, 6)):  # one row alone, then in the company of more
            self._weigh(self._some(number % 6), self._one(), self._below(8))
        self._oppose()
        for count in batch_sizes(self._step, self._pool, tries < 24 or self._size > _LARGE)[-2:]:
            self._crowd(count)
        for _ in range(max(tries // (2 if self._size <= _LARGE else 4), 4)):
            self._climb()

    def _weigh(self, batch: Batch, record: Batch, place: int, known: tuple[Batch, Floats] | None = None) -> None:
        """f with and without the record; kept when it is the worst so far."""
        place = min(place, size(batch))
        whole = join(rows(batch, range(place)), record, rows(batch, range(place, size(batch))))
        ratio = self._move(whole, batch, known)
        limit = 1 + _LEEWAY + rounding(self._step, size(whole))
        if ratio - limit <= self.worst.ratio - self.limit:
            return

        def again(twin: Twin) -> float:
            return distance(self._step, twin.deterministic(whole), twin.deterministic(batch)) - 1

        if ratio > limit and forgiven(self._step, whole, ratio - 1, again, self._rng):
            return
        self.worst, self.limit = WorstPair(without=batch, within=whole, ratio=ratio), limit
        self._found = batch, record, place

    def _crowd(self, count: int) -> None:
        """One record more, at the front and at the end of that many rows, and one less, from the front and within."""
        crowd = mix(self._step.examples(count, self._rng), self._rng)
        for place in (0, count):
            self._weigh(crowd, self._one(), place)
        known = self._base  # the crowd's
        for place in (0, count // 2):
            self._weigh(rows(crowd, [i for i in range(count) if i != place]), rows(crowd, [place]), place, known)

    def _move(self, whole: Batch, batch: Batch, known: tuple[Batch, Floats] | None) -> float:
        """By how much of Δ. The sum without the record is kept, since a climb seldom changes the batch.

        So is that of a ``known`` batch which comes back row by row: what gives another sum then is not repeatable.
        """
        if self._base is None or self._base[0] is not batch:
            self._base = batch, self._step.deterministic(batch)
        same = known is not None and all(np.array_equal(*parts) for parts in zip(known[0], whole, strict=True))
        total = known[1] if same and known is not None else self._step.deterministic(whole)
        return distance(self._step, total, self._base[1])

    def _oppose(self) -> None:
        """The rows whose terms point most against each other: one as the batch, one as the record that outweighs it."""
        for low, high in ((1.0, 100.0), (30.0, 1e4)):
            some = rows(self._pool, range(10 if self._size <= _LARGE else 5))
            mirrored = join(some, scale_rows(some, -1.0))
            count = size(mirrored)
            terms = np.stack([self.term(scale_rows(rows(mirrored, [i]), low)) for i in range(count)])
            lengths = np.linalg.norm(terms, axis=1, keepdims=True)
            units = terms / np.where(lengths > 0, lengths, 1.0)
            first, second = divmod(int(np.argmin(units @ units.T)), count)
            for batch_row, record_row in ((first, second), (second, first)):
                crowd = scale_rows(rows(mirrored, [batch_row]), low)
                record = scale_rows(rows(mirrored, [record_row]), high)
                for times in (1, 2, 5):
                    self._weigh(repeat(crowd, times), record, times)

    def term(self, row: Batch) -> Floats:
        """The sum of one row; a long one folded up, signs at random, which keeps the angles between terms (nearly)."""
        term = self._step.deterministic(row)
        if term.size > _FOLDED:
            blocks = term.size // _FOLDED
            if self._signs is None:
                self._signs = np.where(self._rng.uniforms(blocks) < 0.5, -1.0, 1.0)
            rest = term[blocks * _FOLDED :]
            term = self._signs @ term[: blocks * _FOLDED].reshape(blocks, _FOLDED)
            term[: rest.size] += rest
        return np.nan_to_num(term)

    def _climb(self) -> None:
        """Change one thing of the worst pair: the record, the record's scale, a row of the batch, or the place."""
        batch, record, place = self._found
        kind = self._below(4)
        if kind == 0:
            record = self._one()
        elif kind == 1:
            record = scale_rows(record, (0.3, 3.0, 30.0)[self._below(3)])
        elif kind == 2 and size(batch):
            batch = join(rows(batch, range(1, size(batch))), self._one())
        else:
            place = self._below(size(batch) + 1)
        self._weigh(batch, record, place)

    def _one(self) -> Batch:
        sign = 1.0 if self._below(2) else -1.0
        return scale_rows(rows(self._pool, [self._below(16)]), sign * SCALES[self._below(len(SCALES))])

    def _some(self, count: int) -> Batch:
        return join(*[self._one() for _ in range(count)]) if count else nothing(self._pool)

    def _below(self, bound: int) -> int:
        return int(self._rng.uniforms(1)[0] * bound)


def batch_sizes(step: StepUnderTest, like: Batch, few: bool) -> list[int]:
    """How many rows to replay at once: some sizes on both sides of powers of two, then the largest batch drawn."""
    largest = largest_tested_batch(step, like)
    return sorted({count for count in (_FEW if few else _SIZES) if count < largest or not few} | {largest})


def superposition(step: StepUnderTest, rng: RandomSource, *, few: bool) -> CheckFinding:
    """T2: the sum of a union is the sum of the sums, in any order; ``few`` sizes before a training."""
    worst, limit = 0.0, rounding(step, 1)
    like = step.examples(1, rng)
    batches: list[tuple[Batch, int]] = []
    for count in batch_sizes(step, like, few or step.deterministic(like).size > _LARGE):
        one = int((0.25 + rng.uniforms(1)[0] / 2) * count)
        batches.append((mix(step.examples(count, rng), rng), one))
    quiets = _QUIET[:1] if few else _QUIET
    batches += [(_order(step, scale_rows(step.examples(_SOME, rng), quiet)), _SOME // 2) for quiet in quiets]
    batches.append((_leaning(step, rng), _SOME))
    for batch, one in batches:
        count = size(batch)
        parts = rows(batch, rng.permutation(count)), rows(batch, range(one)), rows(batch, range(one, count))

        def apart(some: StepUnderTest | Twin, parts: tuple[Batch, Batch, Batch] = parts) -> float:
            together, first, second = (some.deterministic(part) for part in parts)
            return distance(step, together, first + second)

        gap, room = apart(step), rounding(step, count)
        if gap / room < worst / limit or (gap > room and forgiven(step, batch, gap, apart, rng)):
            continue
        worst, limit = gap, room
    lesson = (
        f"The sum of two groups together differs from their sums apart by {worst:.3g} of the sensitivity: examples "
        "influence each other's terms. Batch statistics, clips of a whole batch and division by its size do that."
    )
    return _judge("T2", "superposition", worst, limit, good="Sums add up, in any order.", bad=lesson)


def _order(step: StepUnderTest, pool: Batch) -> Batch:
    """The row of the shortest term several times, then the longest, then the others."""
    order = np.argsort([np.linalg.norm(step.deterministic(rows(pool, [place]))) for place in range(size(pool))])
    return rows(pool, np.concatenate([np.repeat(order[:1], _SOME // 2 - 1), order[-1:], order[1:-1]]))


def _leaning(step: StepUnderTest, rng: RandomSource) -> Batch:
    """A crowd of equal rows, and a few of the row that points most against it."""
    some = step.examples(5, rng)
    pool = scale_rows(join(some, scale_rows(some, -1.0)), SCALES[2])
    search = _Search(step, rng)
    terms = np.stack([search.term(rows(pool, [place])) for place in range(size(pool))])
    lengths = np.linalg.norm(terms, axis=1, keepdims=True)
    units = terms / np.where(lengths > 0, lengths, 1.0)
    first, second = divmod(int(np.argmin(units @ units.T)), size(pool))
    return join(repeat(rows(pool, [first]), _SOME), repeat(rows(pool, [second]), _SOME // 4))


def equivalence(step: StepUnderTest, rng: RandomSource, *, tries: int) -> CheckFinding:
    """T9: the sum is what a naive loop over the examples finds."""
    worst, limit = 0.0, rounding(step, 1)
    for number in range(tries):
        batch = scale_rows(step.examples(1 + 3 * number, rng), (1.0, 30.0)[number % 2])
        if step.reference(batch) is None:
            lesson = "The step offers no naive loop to compare with."
            return CheckFinding(test="T9", name="equivalence", verdict=CheckVerdict.SKIPPED, lesson=lesson)

        def off(some: StepUnderTest | Twin, batch: Batch = batch) -> float:
            expected = some.reference(batch)
            return np.inf if expected is None else distance(step, some.deterministic(batch), expected)

        gap, room = off(step), rounding(step, size(batch))
        if gap / room < worst / limit or (gap > room and forgiven(step, batch, gap, off, rng)):
            continue
        worst, limit = gap, room
    lesson = (
        f"The sum differs from a naive per-example loop by {worst:.3g} of the sensitivity: the engine computes "
        "something else than clipped gradients of this model. Use another engine, and report this one."
    )
    return _judge("T9", "equivalence", worst, limit, good="The engine's sum is the naive loop's.", bad=lesson)


def _judge(test: str, name: str, worst: float, limit: float, *, good: str, bad: str) -> CheckFinding:
    """A pass where the worst deviation lies within its room."""
    passed = worst <= limit
    return CheckFinding(
        test=test, name=name, verdict=CheckVerdict.PASS if passed else CheckVerdict.FAIL,
        lesson=good if passed else bad, statistic=worst, threshold=limit,
    )  # fmt: skip
