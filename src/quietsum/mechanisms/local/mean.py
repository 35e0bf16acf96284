"""The mean of numbers between public bounds: Duchi's two values, the piecewise mechanism, and the hybrid of both.

All three take a number on the scale from −1 to 1 and report an unbiased stand-in for it.

* **Duchi** (Duchi, Jordan, Wainwright 2018): +c or −c with c = (e^ε + 1) / (e^ε − 1). Variance c² − x².
* **Piecewise** (Wang et al. 2019, algorithm 2): a value near x, else one anywhere in [−C, C]. Variance
  x² / (e^{ε/2} − 1) + (e^{ε/2} + 3) / (3 (e^{ε/2} − 1)²); better than Duchi's worst case for ε > 1.29.
* **Hybrid** (their section 3.3): piecewise with chance 1 − e^{−ε/2}, else Duchi's; for ε ≤ 0.61 Duchi's alone.

The piecewise mechanism is continuous in the paper. Here it lives on a grid of N cells of which a window of W is
likelier, and the window's place is rounded at random to keep the mean: no floating-point number decides what may be
reported, and a report is the cell's number. The grid changes the variance by about one part in W².

>>> protocol = MeanProtocol(domain=Interval(low=0, high=100), epsilon=2.0, method="piecewise")
>>> estimate = protocol.estimate(protocol.privatize([30.0] * 2000))
>>> bool(abs(estimate.values[0] - 30) < 20)
True
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, Literal, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Interval
from quietsum.mechanisms.local.exact import WORD, Cells, check_epsilon, coins, exp_below
from quietsum.mechanisms.local.protocol import Estimate, LocalProtocol, Reports, Tally
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.validate import whole_number

__all__ = ["HYBRID_FROM", "MeanProtocol", "Window"]

_ROOT = 405 * math.sqrt(241)
HYBRID_FROM = math.log((-5 + 2 * (6353 - _ROOT) ** (1 / 3) + 2 * (6353 + _ROOT) ** (1 / 3)) / 27)
"""ε*, 0.61: below it the hybrid is Duchi's mechanism (Wang et al. 2019, equation 7)."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Window:
    """A grid of cells. A window of ``inside`` of them is likelier, ``high`` words a cell; the ``outside`` have ``low``.

    Guarantees: inside · high + outside · low = 2⁶⁴ and high ≤ e^ε · low, in integers, wherever the window lies.
    """

    inside: int
    outside: int
    high: int
    low: int

    @classmethod
    def private(cls, epsilon: float) -> Window:
        """The grid for ε, as fine as one word allows; inside is a power of two that divides ``low``."""
        inside = 1 << min(16, int((44 - epsilon / math.log(2)) / 2))
        outside = round(inside * math.exp(epsilon / 2))
        low = math.ceil(WORD / (outside + inside * exp_below(epsilon)) / inside) * inside
        return cls(inside=inside, outside=outside, high=(WORD - outside * low) // inside, low=low)

    @property
    def step(self) -> float:
        """The value of one cell, for which reports are unbiased: E[cell] moves by this much less than the window."""
        return 2 * WORD / ((self.high - self.low) * self.inside * self.outside)

    def draw(self, numbers: NDArray[np.float64], rng: RandomSource) -> NDArray[np.int64]:
        """Cells for numbers from −1 to 1."""
        exact = (numbers + 1) * (self.outside / 2)
        start = np.floor(exact)
        start += rng.uniforms(numbers.size) < exact - start
        first = np.clip(start, 0, self.outside).astype(np.int64)  # where the window begins
        words = rng.words(numbers.size)
        edge = self.outside * self.low
        other = (words // np.uint64(self.low)).astype(np.int64)
        other[other >= first] += self.inside
        within = first + ((words - np.uint64(edge)) // np.uint64(self.high)).astype(np.int64)
        return np.where(words < np.uint64(edge), other, within)

    def values(self, cells: NDArray[np.int64]) -> NDArray[np.float64]:
        """What cells stand for on the scale from −1 to 1; the middle of the grid is 0."""
        return np.asarray((cells - (self.inside + self.outside - 1) / 2) * self.step, dtype=np.float64)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MeanProtocol(LocalProtocol):
    """One number a person, of which the mean is estimated; ``method`` is duchi, piecewise or hybrid.

    Guarantees: reports are whole numbers whose chances under any two answers differ by at most e^ε, in integers.
    """

    domain: Interval
    epsilon: float
    method: Literal["duchi", "piecewise", "hybrid"] = "hybrid"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        if not isinstance(self.domain, Interval):
            raise InvalidParameter("domain", self.domain, "is no interval", "pass Interval(low=…, high=…)")
        if self.method not in ("duchi", "piecewise", "hybrid"):
            raise InvalidParameter("method", self.method, "is not known", "duchi, piecewise or hybrid")

    @property
    def answers(self) -> Interval:
        """The bounds."""
        return self.domain

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method

    @functools.cached_property
    def low(self) -> int:
        """Duchi's smaller chance, in words."""
        return Cells.private(self.epsilon, others=1).low

    @functools.cached_property
    def window(self) -> Window:
        """The piecewise grid."""
        return Window.private(self.epsilon)

    @functools.cached_property
    def piecewise_share(self) -> int:
        """How often the piecewise grid is used, in words; it depends on nothing private."""
        if self.method == "duchi" or (self.method == "hybrid" and self.epsilon <= HYBRID_FROM):
            return 0
        return WORD if self.method == "piecewise" else int(-math.expm1(-self.epsilon / 2) * WORD)

    @property
    def cells(self) -> int:
        """How many cells the grid has; two more reports are Duchi's − and +."""
        return self.window.inside + self.window.outside if self.piecewise_share else 0

    @property
    def layout(self) -> np.dtype[np.void]:
        """A cell of the grid, or after the last one Duchi's − and +."""
        return np.dtype([("cell", "<u8")])

    @property
    def bits(self) -> float:
        """log₂ of the number of cells."""
        return math.ceil(math.log2(self.cells + 2 * (self.piecewise_share < WORD)))

    def parameters(self) -> dict[str, Any]:
        """None: the grid follows from ε."""
        return {}

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person."""
        numbers, rng = self.domain.scale(values), choose_source(rng)
        reports: Reports = np.empty(numbers.size, dtype=self.layout)
        if self.piecewise_share == WORD:
            reports["cell"] = self.window.draw(numbers, rng)
            return reports
        by_grid = coins(rng, self.piecewise_share, numbers.size)
        cells = np.empty(numbers.size, dtype=np.int64)
        cells[by_grid] = self.window.draw(numbers[by_grid], rng) if by_grid.any() else 0
        cells[~by_grid] = self.cells + self._signs(numbers[~by_grid], rng)
        reports["cell"] = cells
        return reports

    def _signs(self, numbers: NDArray[np.float64], rng: RandomSource) -> NDArray[np.int64]:
        """Duchi's coin: + with chance ½ + x (½ − low), held between low and 1 − low in whole words."""
        span = WORD // 2 - self.low
        lean = np.clip(np.rint(numbers * float(span)).astype(np.int64), -span, span)
        chance = lean.astype(np.uint64) + np.uint64(WORD // 2)  # modulo 2⁶⁴, as a negative lean needs
        return (rng.words(numbers.size) < chance).astype(np.int64)

    def _stand_ins(self, cells: NDArray[np.int64]) -> NDArray[np.float64]:
        """What reports stand for on the scale from −1 to 1."""
        sign = np.where(cells == self.cells, -1.0, 1.0) * (WORD / (WORD - 2 * self.low))
        return np.where(cells < self.cells, self.window.values(cells), sign) if self.cells else sign

    def tally(self, reports: Reports) -> Tally:
        """At the collector: the sum of the stand-ins, and of their squares."""
        cells = self.fields(reports)["cell"]
        most = self.cells + 2 * (self.piecewise_share < WORD)
        if cells.size and int(cells.max()) >= most:
            raise InvalidParameter("reports", int(cells.max()), "is no report of this protocol", "check the file")
        found = self._stand_ins(cells.astype(np.int64))
        return Tally(users=cells.size, sums=np.array([found.sum(), np.square(found).sum()]))

    def conclude(self, tally: Tally, *, confidence: float = 0.95) -> Estimate:
        """The mean, in the units of the domain."""
        users = whole_number("users", tally.users, 1, "an estimate needs reports")
        total, squares = (float(value) for value in tally.sums)
        middle, half = self.domain.low / 2 + self.domain.high / 2, self.domain.high / 2 - self.domain.low / 2
        constant, slope = self._line
        mean, square = total / users, 1.0
        if slope > -1:  # E[report²] = constant + (slope + 1) E[x²]
            square = (squares / users - constant) / (slope + 1)
        elif slope < 0:
            square = mean**2  # Duchi's reports do not tell it; it is at least the mean's
        spread = constant + slope * min(1.0, max(square, min(1.0, mean**2)))
        return self.interval(
            ("mean",), users, np.array([middle + half * mean]), np.array([half**2 * spread / users]), confidence
        )

    def variance(self, n: int, value: float | None = None) -> float:
        """The variance of the mean where everybody answers ``value``; if omitted, the largest over all values."""
        half = self.domain.high / 2 - self.domain.low / 2
        constant, slope = self._line
        number = float(slope > 0) if value is None else float(self.domain.scale([value])[0])
        return (constant + slope * number**2) * half**2 / n

    @functools.cached_property
    def _line(self) -> tuple[float, float]:
        """The variance of one report on the scale from −1 to 1 is constant + slope · x².

        The share of each mechanism times its own variance, since both are unbiased.
        """
        root, share = math.expm1(self.epsilon / 2), self.piecewise_share / WORD
        constant = share * (root + 4) / (3 * root**2) + (1 - share) / math.tanh(self.epsilon / 2) ** 2
        return constant, share / root - (1 - share)
