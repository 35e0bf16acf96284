"""What the exact accountant keeps while a history grows: sums of log moments, brought up to date when asked for.

Spectra, tails and moments of one step are cached by (pair, contour); a sum over all steps is one multiply-add for each
log entry that is new to it. All sums carry their rounding errors, or are rounded to the safe side.
"""

from __future__ import annotations

import functools
from typing import final

import numpy as np

from quietsum.privacy.accounting import History
from quietsum.privacy.exact.contour import Spectrum, directions, log_tail, spectrum
from quietsum.privacy.exact.inversion import ContourLine
from quietsum.privacy.exact.mixtures import ROUNDING, Array, Direction
from quietsum.privacy.exact.moments import LADDER, STEPS, ladder_moments, step_moments
from quietsum.privacy.pairs import Pair

__all__ = ["RunningSums"]

_UP = 1 + 4 * ROUNDING  # more than one addition and one product can lose
_spectrum = functools.lru_cache(maxsize=8192)(spectrum)
_long_spectrum = functools.lru_cache(maxsize=32)(spectrum)  # up to 3 MB each
_log_tail = functools.lru_cache(maxsize=65536)(log_tail)


@final
class RunningSums:
    """Sums over everything in ``history``, for each contour that was asked for."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._spectra: dict[ContourLine, tuple[int, Array, Array]] = {}
        self._ladders: dict[Direction, tuple[int, Array]] = {}
        self._tails: dict[ContourLine, tuple[int, float]] = {}
        self._steps: dict[tuple[Direction, float], tuple[int, Array]] = {}

    def copy(self, history: History) -> RunningSums:
        """The same sums for ``history``, a copy of this one's."""
        other = RunningSums(history)
        other._spectra, other._ladders = dict(self._spectra), dict(self._ladders)
        other._tails, other._steps = dict(self._tails), dict(self._steps)
        return other

    def directions(self) -> tuple[Direction, ...]:
        """Both directions, or one where every pair is its own mirror image."""
        both = any(len(directions(pair)) == 2 for pair in self._history.counts)
        return (Direction.REMOVE, Direction.ADD) if both else (Direction.REMOVE,)

    def _news(self, since: int) -> list[tuple[Pair, int]]:
        """What was composed after log entry ``since``, equal pairs merged."""
        log = self._history.log
        if since == 0:
            return list(self._history.counts.items())
        return log[since:]

    def ladder(self, direction: Direction) -> Array:
        """An upper bound on K at each rung."""
        since, total = self._ladders.get(direction, (0, None))
        total = np.zeros_like(LADDER) if total is None else total
        for pair, count in self._news(since):
            total = (total + count * ladder_moments(pair, direction)) * _UP
        self._ladders[direction] = (len(self._history.log), total)
        return total

    def above(self, direction: Direction, c: float) -> Array:
        """An upper bound on K at c · STEPS: what bounds aliasing."""
        since, total = self._steps.get((direction, c), (0, np.zeros(STEPS.size)))
        for pair, count in self._news(since):
            total = (total + count * step_moments(pair, direction, c)) * _UP
        self._steps[direction, c] = (len(self._history.log), total)
        return total

    def tail(self, line: ContourLine) -> float:
        """An upper bound on ln|φ| beyond the last node."""
        since, total = self._tails.get(line, (0, 0.0))
        t = line.s * line.nodes
        for pair, count in self._news(since):
            more = count * _log_tail(pair, line.direction, line.c, t)
            total += more + 4 * ROUNDING * (abs(total) + abs(more))
        self._tails[line] = (len(self._history.log), total)
        return total

    def spectrum(self, line: ContourLine) -> Spectrum:
        """Σ ln φ at the nodes of a line, with error bounds."""
        since, values, errors = self._spectra.get(line, (0, None, None))
        if values is None or errors is None:
            values, errors = np.zeros(line.nodes, complex), np.zeros(line.nodes)
        cached = _spectrum if line.nodes <= 1024 else _long_spectrum
        for pair, count in self._news(since):
            part = cached(pair, line.direction, line.c, line.s, line.nodes)
            more = count * part.log_phi
            values = values + more
            errors = errors + count * part.error + 4 * ROUNDING * (np.abs(values) + np.abs(more))
        if len(self._spectra) > 16:
            self._spectra.clear()
        self._spectra[line] = (len(self._history.log), values, errors)
        return Spectrum(values, errors)
