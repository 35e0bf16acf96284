"""Optimised local hashing (OLH): hash the answer to one of g values, then randomised response on those.

The person's half draws a hash function of its own, h(x) = ⌊((a x + b) mod 2⁶⁴) / 2³²⌋ scaled to g values, with a and b
from the operating system; over 32-bit keys its values are exactly uniform and pairwise independent (Dietzfelbinger
1996). It answers h(x) truthfully or not, and sends a, b and that. The collector counts, for each answer, the reports
that support it: n · d hashes, which is what makes this protocol slow where d is large.

g = ⌊e^ε⌉ + 1 gives variance 4 e^ε / (n (e^ε − 1)²) for rare answers (Wang, Blocki, Li, Jha 2017, section 4.4); the
formula here is exact for whole g and counts the chance of a collision exactly.

>>> protocol = LocalHashing(domain=categories(100), epsilon=1.0)
>>> protocol.values, protocol.privatize(np.array([7, 7])).dtype.names
(4, ('a', 'b', 'answer'))
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
from quietsum.mechanisms.local.exact import Cells, check_epsilon, share
from quietsum.mechanisms.local.protocol import FrequencyProtocol, Reports, Tally, two_chances
from quietsum.mechanisms.rng import RandomSource, choose_source

__all__ = ["LocalHashing"]

_PIECE = 1 << 16  # hashes at once: what stays in the processor's cache
_HALF = np.uint64(32)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalHashing(FrequencyProtocol):
    """A hash function of one's own, and randomised response on its value.

    Guarantees: a and b do not depend on the answer, and the likelihood ratio of the third field is at most
    high / low ≤ e^ε, in integers.
    """

    domain: Categories | Bins
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", categories(self.domain))
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    @property
    def values(self) -> int:
        """How many values the hash has, ⌊e^ε⌉ + 1, and no more than 2²⁰."""
        return min(1 << 20, max(2, round(math.exp(self.epsilon)) + 1))

    @functools.cached_property
    def cells(self) -> Cells:
        """The chances of the randomised response, in words."""
        return Cells.private(self.epsilon, others=self.values - 1)

    @property
    def name(self) -> str:
        """olh."""
        return "olh"

    @property
    def layout(self) -> np.dtype[np.void]:
        """The hash function, and the answer among its values."""
        return np.dtype([("a", "<u8"), ("b", "<u8"), ("answer", "<u4")])

    @property
    def bits(self) -> float:
        """Two words, and log₂ g."""
        return 128 + math.ceil(math.log2(self.values))

    def parameters(self) -> dict[str, Any]:
        """None: every report brings its own hash function."""
        return {}

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person."""
        truth, rng = self.domain.places(values), choose_source(rng)
        reports: Reports = np.empty(truth.size, dtype=self.layout)
        a, b = rng.words(truth.size), rng.words(truth.size)
        hashed = (((a * truth.astype(np.uint64) + b) >> _HALF) * np.uint64(self.values)) >> _HALF
        reports["a"], reports["b"] = a, b
        reports["answer"] = self.cells.draw(hashed.astype(np.int64), rng)
        return reports

    def tally(self, reports: Reports) -> Tally:
        """At the collector: how many reports support each answer."""
        held, size = self.fields(reports), self.domain.size
        if held.size and int(held["answer"].max()) >= self.values:
            raise InvalidParameter("reports", int(held["answer"].max()), "is no value of the hash", "check the file")
        support = np.zeros(size, dtype=np.int64)
        a, b, answers = (held[name].astype(np.uint64) for name in ("a", "b", "answer"))
        width = min(size, _PIECE)
        rows = max(1, _PIECE // width)
        for first in range(0, size, width):
            items = np.arange(first, min(size, first + width), dtype=np.uint64)[:, None]
            for start in range(0, held.size, rows):
                stop = start + rows
                hashed = items * a[start:stop]
                hashed += b[start:stop]
                hashed >>= _HALF
                hashed *= np.uint64(self.values)
                hashed >>= _HALF
                support[first : first + width] += np.count_nonzero(hashed == answers[start:stop], axis=1)
        return Tally(users=held.size, sums=support)

    @functools.cached_property
    def chances(self) -> tuple[float, float]:
        """The chance that a report supports its own answer, and any other one."""
        whole, rest = divmod(1 << 32, self.values)
        collide = (rest * (whole + 1) ** 2 + (self.values - rest) * whole**2) / (1 << 64)
        p, q = share(self.cells.high), share(self.cells.low)
        return p, p * collide + q * (1 - collide)

    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """(support / n − q*) / (p − q*)."""
        p, q = self.chances
        return (tally.sums / tally.users - q) / (p - q)

    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Wang et al. 2017, equation 3, with the chance of a collision."""
        return two_chances(n, frequencies, *self.chances)
