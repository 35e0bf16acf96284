"""Shared by all rules: refuse too few rows, leave out rows that are not finite, break ties by the values sent.

A fold never passes on a row that is not finite. A direct call of a rule is protected all the same: such rows are left
out, with a reason, and the rule works on the others; each counts as one of the f that may be anything.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust.rows.blocks import NotFinite
from quietsum.aggregation.robust.rule import Matrix, Rule, Sent, Vector, Verdict
from quietsum.errors import InvalidParameter, TooFewParties

__all__ = ["judge_rows", "lowest", "require_finite", "steady_order"]

_TIE = 1e-9  # relative: scores closer than this differ by rounding


def judge_rows(rule: Rule, sent: Sent, work: Callable[[Sent], Verdict]) -> Verdict:
    """``work(sent)``, refused below ``least(f)`` rows, and without the rows that are not finite.

    Raises :class:`~quietsum.errors.TooFewParties` for too few rows, :class:`~quietsum.errors.InvalidParameter` if no
    row is finite.
    """
    count, least = len(sent), max(rule.facts.least(sent.attackers), 1)
    if count < least:
        raise TooFewParties(
            f"{count} updates are too few: rule = '{rule.name}' needs {least} to withstand {sent.attackers} that may "
            "be anything. State fewer attackers, or wait for more parties"
        )
    try:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            return work(sent)
    except NotFinite:
        pass
    finite = np.array([bool(np.isfinite(row).all()) for row in sent.updates])
    if finite.all():
        raise InvalidParameter("updates", f"{count} rows", f"are beyond what rule = '{rule.name}' computes with")
    if not finite.any():
        raise InvalidParameter("updates", f"{count} rows", "hold no row that is finite")
    broken = int(np.count_nonzero(~finite))
    rest = dataclasses.replace(
        sent, updates=sent.updates[finite], places=sent.places[finite], attackers=max(sent.attackers - broken, 0)
    )
    return _spread(judge_rows(rule, rest, work), finite)


def require_finite(work: Callable[[Sent], Verdict]) -> Callable[[Sent], Verdict]:
    """``work`` for :func:`judge_rows`, of a rule whose own arithmetic would not notice a row that is not finite."""

    def check_first(sent: Sent) -> Verdict:
        if not np.isfinite(sent.updates).all():
            raise NotFinite
        return work(sent)

    return check_first


def _spread(verdict: Verdict, finite: NDArray[np.bool_]) -> Verdict:
    """A verdict on the finite rows as one on all rows."""
    rows = np.flatnonzero(finite)
    kept = np.zeros(len(finite), dtype=np.bool_)
    kept[rows] = verdict.kept

    def wide(values: Vector, empty: float) -> Vector:
        found = np.full(len(finite), empty)
        found[rows] = values
        return found

    reasons = {int(rows[row]): text for row, text in verdict.reasons.items()}
    reasons.update({int(row): "holds a value that is not finite" for row in np.flatnonzero(~finite)})
    return dataclasses.replace(
        verdict, kept=kept, reasons=reasons,
        weights=None if verdict.weights is None else wide(verdict.weights, 0.0),
        statistics={name: wide(values, np.nan) for name, values in verdict.statistics.items()},
    )  # fmt: skip


def lowest(scores: Vector, count: int, updates: Matrix) -> NDArray[np.int64]:
    """The ``count`` rows with the lowest scores, in the order of rows; ties go to the row with the smaller numbers.

    Scores that differ by no more than rounding are ties. So the choice depends on what was sent, not on where a row
    stands. "Smaller" is lexicographic.

    >>> lowest(np.array([2.0, 1.0, 1.0, 3.0]), 1, np.array([[0.0], [5.0], [4.0], [0.0]]))
    array([2])
    """
    if count >= len(scores):
        return np.arange(len(scores))
    last = float(np.partition(scores, count - 1)[count - 1])
    slack = _TIE * abs(last) if np.isfinite(last) else 0.0
    sure = np.flatnonzero(scores < last - slack)
    tied = np.flatnonzero((scores >= last - slack) & (scores <= last + slack))
    if len(tied) > count - len(sure):

        def compare(one: int, other: int) -> int:
            differ = np.flatnonzero(updates[one] != updates[other])
            if not len(differ):
                return 0
            return -1 if updates[one, differ[0]] < updates[other, differ[0]] else 1

        tied = np.array(sorted(tied.tolist(), key=functools.cmp_to_key(compare)))[: count - len(sure)]
    return np.sort(np.concatenate([sure, tied])).astype(np.int64)


def steady_order(updates: Matrix) -> NDArray[np.int64]:
    """An order of the rows that depends on what they hold and not on where they stand, for ties and for draws."""
    first = [np.ascontiguousarray(row[:64]).tobytes() for row in updates]
    with np.errstate(over="ignore", invalid="ignore"):
        rest = [float(np.nan_to_num(np.sum(row, dtype=np.float64))) for row in updates]
    return np.array(sorted(range(len(updates)), key=lambda row: (first[row], rest[row])), dtype=np.int64)
