"""Hadamard response: one of K signals, half of a block of which agrees with the answer (Acharya, Sun, Zhang 2019).

Answers are dealt to B blocks of b signals each, and inside a block every answer has a row of the Hadamard matrix: the
b/2 signals where its row is +1 are *its* signals. The person's half says one of its own signals, each e^ε times as
likely as any other. Rows of the matrix agree in exactly half of their places, so the collector's half is one fast
Hadamard transform of the histogram of signals: O(n + K log K), for any number of answers.

Variance times n, with F the share of all answers of the same block: ((1 + e^ε) F + 2 (1 − F)) (e^ε + 2B − 1) /
(e^ε − 1)² − f. With equal shares it is least near B = (e^ε − 1) / 2, about 8 / (e^ε − 1); B is the power of two for
which the formula is smallest.

>>> protocol = HadamardResponse(domain=categories(1000), epsilon=1.0)
>>> protocol.blocks, protocol.width, protocol.privatize(np.arange(5)).shape
(1, 1024, (5,))
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Bins, Categories, categories
from quietsum.mechanisms.local.exact import WORD, Cells, check_epsilon
from quietsum.mechanisms.local.protocol import FrequencyProtocol, Reports, Tally
from quietsum.mechanisms.rng import RandomSource, choose_source

__all__ = ["HadamardResponse", "odd", "transform"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class HadamardResponse(FrequencyProtocol):
    """One signal of K; those that agree with the answer are e^ε times as likely.

    Guarantees: half blocks are drawn by one word with high ≤ e^ε · low in integers, and inside a half block all signals
    are equally likely, so the likelihood ratio of any signal is at most e^ε.
    """

    domain: Categories | Bins
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", categories(self.domain))
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    @functools.cached_property
    def blocks(self) -> int:
        """B, for which (a / B + 2)(a + 2B) with a = e^ε − 1 is smallest: the variance at equal shares."""
        gain = math.expm1(self.epsilon)
        powers = [1 << power for power in range(self.domain.size.bit_length())]
        return min(powers, key=lambda count: (gain / count + 2) * (gain + 2 * count))

    @property
    def width(self) -> int:
        """b, the signals of one block: a power of two above the number of answers in it."""
        return 1 << (-(-self.domain.size // self.blocks)).bit_length()

    @functools.cached_property
    def cells(self) -> Cells:
        """The chances of the 2B half blocks, in words."""
        return Cells.private(self.epsilon, others=2 * self.blocks - 1)

    @property
    def name(self) -> str:
        """hadamard."""
        return "hadamard"

    @property
    def layout(self) -> np.dtype[np.void]:
        """The signal."""
        return np.dtype([("signal", "<u4")])

    @property
    def bits(self) -> float:
        """log₂ K."""
        return math.ceil(math.log2(self.blocks * self.width))

    def parameters(self) -> dict[str, Any]:
        """The number of blocks, which follows from domain and ε."""
        return {"blocks": self.blocks}

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person."""
        truth, rng = self.domain.places(values), choose_source(rng)
        block, row = truth % self.blocks, truth // self.blocks + 1
        half = self.cells.draw(2 * block, rng)  # 2 · block: where the row is +1; one more: where it is −1
        place = (rng.words(truth.size) & np.uint64(self.width - 1)).astype(np.int64)
        wrong = (half >> 1 == block) & (odd(place & row) != (half & 1).astype(np.bool_))
        place[wrong] ^= row[wrong] & -row[wrong]  # its lowest bit: the other half, two places to one
        reports: Reports = np.empty(truth.size, dtype=self.layout)
        reports["signal"] = (half >> 1) * self.width + place
        return reports

    def tally(self, reports: Reports) -> Tally:
        """At the collector: the histogram of signals."""
        signals, count = self.fields(reports)["signal"], self.blocks * self.width
        if signals.size and int(signals.max()) >= count:
            raise InvalidParameter("reports", int(signals.max()), "is no signal of this protocol", "check the file")
        return Tally(users=signals.size, sums=np.bincount(signals, minlength=count))

    @property
    def _gain(self) -> float:
        """What the mean of ±1 over the own block's signals is for a supporter."""
        return (self.cells.high - self.cells.low) / WORD

    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """Each answer's row times the histogram of its block."""
        sums = transform(tally.sums.reshape(self.blocks, self.width))
        places = np.arange(self.domain.size)
        return sums[places % self.blocks, places // self.blocks + 1] / (tally.users * self._gain)

    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """(P(signal in the block) − f gain²) / (n gain²)."""
        blocks = np.arange(self.domain.size) % self.blocks
        mass = np.bincount(blocks, weights=frequencies, minlength=self.blocks)[blocks]
        rest = frequencies.sum() - mass
        seen = (mass * (self.cells.high + self.cells.low) + rest * 2 * self.cells.low) / WORD
        return np.asarray((seen - frequencies * self._gain**2) / (n * self._gain**2))


def odd(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether an odd number of bits is set: where the Hadamard matrix is −1, for row & column."""
    return (np.bitwise_count(values) & 1).astype(np.bool_)


def transform(table: NDArray[Any]) -> NDArray[np.int64]:
    """The Walsh-Hadamard transform of every row; their length is a power of two.

    >>> transform(np.array([[1, 0, 0, 0], [0, 1, 0, 0]])).tolist()
    [[1, 1, 1, 1], [1, -1, 1, -1]]
    """
    found = np.array(table, dtype=np.int64)
    rows, size = found.shape
    step = 1
    while step < size:
        halves = found.reshape(rows, size // (2 * step), 2, step)
        found = np.stack([halves[:, :, 0] + halves[:, :, 1], halves[:, :, 0] - halves[:, :, 1]], axis=2)
        found = found.reshape(rows, size)
        step *= 2
    return found
