"""Drift of the model's own steps: have they grown, have they turned? It needs no single update.

Two numbers a round, of the server's step: the logarithm of its length, and its cosine with the step before. Each is
compared with its own past, so it works under secure aggregation and with noise, and the subject is the model.

Training slows down by nature: lengths shrink and directions lose their agreement, first fast and then slowly. So a
number is held against the straight line through those before it, and against their mean, and the smaller distance
counts: what is no more than either is no rise. The distance over its own standard error (a recursive residual: Brown,
Durbin, Evans 1975, JRSS B 37(2)) has Student's t-distribution with k − 2 degrees for k numbers on a line with Gaussian
errors, k − 1 where they have one mean; Φ⁻¹ of its distribution function makes it a standard normal number z. Of these a
CUSUM is kept (Page 1954),

    S ← max(0, S + z − ½),      an alarm where S > h.

The average run length of such numbers without a change is about 2 (e^r − r − 1) with r = h + 1.166 (Siegmund 1985,
§2.6, at the reference ½): h is what makes it 1 / rate. Only the last :data:`MEMORY` rounds count. Longer steps are
reported and shorter ones are not; a turn is reported where steps have come to point against the ones before them.

>>> round(height(1e-5), 2), round(run_length(height(1e-5)))
(9.65, 100000)
"""

from __future__ import annotations

import math
from collections import deque
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtr

from quietsum.aggregation import length_of
from quietsum.defence.detection.findings import Finding
from quietsum.validate import open_probability

__all__ = ["MEMORY", "Cusum", "Drift", "height", "run_length"]

MEMORY = 24
"""Rounds of the past that a new step is compared with."""
LEAST = 6
"""Rounds before anything is said."""
_LIMIT = 4.0  # one number counts for no more, so that a single odd round is not yet a drift


def run_length(height: float) -> float:
    """Rounds between false alarms of a one-sided CUSUM with reference ½ (Siegmund's approximation)."""
    reach = height + 1.166
    return 2.0 * (math.exp(reach) - reach - 1.0)


def height(rate: float) -> float:
    """The h whose average run length is 1 / ``rate``."""
    wanted, low, high = 1.0 / open_probability("rate", rate), 0.0, 700.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if run_length(middle) < wanted else (low, middle)
    return high


@final
class Cusum:
    """Whether numbers have risen above the line they were on; otherwise an alarm comes once in 1 / ``rate`` numbers."""

    def __init__(self, rate: float, memory: int = MEMORY) -> None:
        self.height, self.sum = height(rate), 0.0
        self._past: deque[float] = deque(maxlen=memory)

    def add(self, value: float) -> float:
        """Take one number. The sum where it has passed its height, in which case everything begins anew; else zero."""
        if len(self._past) >= LEAST:
            self.sum = max(0.0, self.sum + min(max(self._score(value), -_LIMIT), _LIMIT) - 0.5)
        self._past.append(value)
        found = self.sum
        if found <= self.height:
            return 0.0
        self._past.clear()
        self.sum = 0.0
        return found

    def _score(self, value: float) -> float:
        """How far ``value`` lies above the past, its line and its mean, as a standard normal number at most."""
        past = np.array(self._past)
        count, mean, finest = len(past), float(past.mean()), 1e-6 * max(1.0, float(np.abs(past).max()))
        times = np.arange(count) - (count - 1) / 2
        ahead, around = (count + 1) / 2, float(times @ times)
        slope = float(times @ past) / around
        left = past - mean - slope * times
        spread = max(math.sqrt(float(left @ left) / (count - 2)), finest)
        from_line = (value - mean - slope * ahead) / (spread * math.sqrt(1 + 1 / count + ahead**2 / around))
        from_mean = (value - mean) / (max(float(past.std(ddof=1)), finest) * math.sqrt(1 + 1 / count))
        scores = (stdtr(count - 2, -from_line), stdtr(count - 1, -from_mean))
        return -float(ndtri(max(scores)))


@final
class Drift:
    """Both CUSUMs of a run's steps."""

    def __init__(self, *, rate: float) -> None:
        self._rate = rate
        self._lengths, self._turns = Cusum(rate), Cusum(rate)
        self._last: NDArray[np.float64] | None = None

    def saw(self, number: int, step: NDArray[np.float64]) -> list[Finding]:
        """What the step of round ``number`` shows."""
        found, size = [], length_of(step)
        if not 0 < size < math.inf:
            return []
        if passed := self._lengths.add(math.log(size)):
            found.append(self._finding(number, "step-length", "sum of log lengths", passed, self._lengths.height))
        if self._last is not None:
            cosine = float((step / size) @ self._last)
            if (passed := self._turns.add(-math.atanh(min(max(cosine, -1 + 1e-9), 1 - 1e-9)))) and cosine < 0:
                found.append(self._finding(number, "step-direction", "sum of turns", -passed, -self._turns.height))
        self._last = step / size
        return found

    def _finding(self, number: int, rule: str, statistic: str, value: float, threshold: float) -> Finding:
        return Finding(
            round=number, rule=rule, statistic=statistic, value=value, threshold=threshold,
            false_positive_rate=self._rate, subject_kind="model", subject="model", looked={"model": value},
        )  # fmt: skip
