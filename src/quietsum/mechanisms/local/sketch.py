"""Count Mean Sketch and its Hadamard form: k public hash functions to m places (Apple, "Learning with Privacy at
Scale", 2017, algorithms 1 to 6).

The person's half picks one of the k functions and encodes the place of its answer: as m bits of which each is flipped
(CMS), or as one bit of the Hadamard transform, flipped (HCMS). The collector adds reports into a table of k rows and m
places and reads each answer's k places. Answers that share places disturb each other, so the sketch is meant for long
lists of which few answers are frequent; it is unbiased over the choice of the hash functions.

Exact variance, c the gain of one coin ((e^{ε/2} + 1) / (e^{ε/2} − 1) for CMS, (e^ε + 1) / (e^ε − 1) for HCMS):

    CMS   (m/(m−1))² (c² − 1) / 4n + ((1 − f)/n + Σ_{v≠x} f_v (f_v − 1/n) / k) / (m − 1)
    HCMS  (m/(m−1))² (f (c² − 1) + (1 − f)(c² − 1/m²)) / n + Σ_{v≠x} f_v (f_v − 1/n) / (k (m − 1))

The last sum is what collisions add, and more people do not lessen it: more functions do.

>>> protocol = CountMeanSketch(domain=categories(1000), epsilon=4.0, functions=64, width=128)
>>> protocol.privatize(np.array([3, 3, 5])).dtype.names
('function', 'bits')
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Bins, Categories, categories
from quietsum.mechanisms.local.exact import WORD, Cells, check_epsilon, coins
from quietsum.mechanisms.local.hadamard import odd, transform
from quietsum.mechanisms.local.protocol import FrequencyProtocol, Reports, Tally
from quietsum.mechanisms.local.unary import pack_bits, pieces, seed_of, sums_by_row
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.validate import whole_number

__all__ = ["CountMeanSketch"]

_MOST_PLACES = 1 << 27  # of answers times functions
_MOST_CELLS = 1 << 24


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CountMeanSketch(FrequencyProtocol):
    """A sketch of ``functions`` rows and ``width`` places; ``hadamard`` sends one bit instead of ``width``.

    Guarantees: the function and the Hadamard index do not depend on the answer; two answers differ in two of the bits
    (CMS) or in one (HCMS), and flips have chances in whole words with the ratio e^{ε/2} or e^ε at most.
    """

    domain: Categories | Bins
    epsilon: float
    functions: int = 256
    width: int = 256
    seed: int = -1
    hadamard: bool = False

    def __post_init__(self) -> None:
        store = functools.partial(object.__setattr__, self)
        store("domain", categories(self.domain))
        store("epsilon", check_epsilon(self.epsilon))
        store("functions", whole_number("functions", self.functions, 1))
        store("width", whole_number("width", self.width, 8))
        store("seed", seed_of(self.seed))
        if self.functions * self.width > _MOST_CELLS:
            raise InvalidParameter("width", self.width, "times functions is too large a sketch", "256 of each will do")
        if self.width & (self.width - 1) or self.width > 1 << 16:
            raise InvalidParameter("width", self.width, "is no power of two up to 65,536", "for instance 256 or 1024")
        if self.functions > 1 << 16 or self.functions * self.domain.size > _MOST_PLACES:
            most = min(1 << 16, _MOST_PLACES // self.domain.size)
            raise InvalidParameter("functions", self.functions, "are too many for this domain", f"use at most {most:,}")

    @functools.cached_property
    def flip(self) -> int:
        """The chance that a bit is flipped, in words."""
        return Cells.private(self.epsilon if self.hadamard else self.epsilon / 2, others=1).low

    @property
    def name(self) -> str:
        """cms or hcms."""
        return "hcms" if self.hadamard else "cms"

    @property
    def layout(self) -> np.dtype[np.void]:
        """The function, and the bits, or the index of one bit and that bit."""
        if self.hadamard:
            return np.dtype([("function", "<u4"), ("index", "<u4"), ("bit", "u1")])
        return np.dtype([("function", "<u4"), ("bits", "u1", (self.width // 8,))])

    @property
    def bits(self) -> float:
        """log₂ k, and m or 1 + log₂ m."""
        sent = 1 + math.log2(self.width) if self.hadamard else self.width
        return math.ceil(math.log2(self.functions)) + sent

    def parameters(self) -> dict[str, Any]:
        """The sketch's sizes, and the seed of its hash functions."""
        return {"functions": self.functions, "width": self.width, "seed": self.seed}

    @functools.cached_property
    def places(self) -> NDArray[np.uint16]:
        """Where each answer lies in each row: answers × functions, from SHAKE-256 of seed and answer."""
        table = np.empty((self.domain.size, self.functions), dtype=np.uint16)
        start = b"quietsum sketch %d " % self.seed
        for place, label in enumerate(self.domain.labels):
            drawn = hashlib.shake_256(start + label.encode()).digest(2 * self.functions)
            table[place] = np.frombuffer(drawn, dtype="<u2") & np.uint16(self.width - 1)
        return table

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person."""
        truth, rng = self.domain.places(values), choose_source(rng)
        reports: Reports = np.empty(truth.size, dtype=self.layout)
        chosen = (((rng.words(truth.size) >> np.uint64(32)) * np.uint64(self.functions)) >> np.uint64(32)).astype(int)
        place = self.places[truth, chosen].astype(np.int64)
        reports["function"] = chosen
        if self.hadamard:
            index = (rng.words(truth.size) & np.uint64(self.width - 1)).astype(np.int64)
            reports["index"] = index
            reports["bit"] = odd(index & place) ^ coins(rng, self.flip, truth.size)
            return reports
        for piece in pieces(truth.size, self.width):
            here = place[piece]
            sent = coins(rng, self.flip, here.size * self.width).reshape(here.size, self.width)
            sent[np.arange(here.size), here] ^= True
            reports["bits"][piece] = pack_bits(sent)
        return reports

    def tally(self, reports: Reports) -> Tally:
        """At the collector: for each function and place (or index) the bits that are set, less those that are not."""
        held = self.fields(reports)
        chosen = held["function"].astype(np.int64)
        if chosen.size and int(chosen.max()) >= self.functions:
            raise InvalidParameter("reports", int(chosen.max()), "is no function of this sketch", "check the file")
        shape = self.functions, self.width
        if self.hadamard:
            index = held["index"].astype(np.int64)
            if held.size and (int(index.max()) >= self.width or int(held["bit"].max()) > 1):
                raise InvalidParameter("reports", "", "hold an index or a bit that no encoder sends", "check the file")
            cells = chosen * self.width + index
            signs = np.bincount(2 * cells + held["bit"], minlength=2 * self.functions * self.width).reshape(-1, 2)
            return Tally(users=held.size, sums=(signs[:, 0] - signs[:, 1]).reshape(shape))
        sums = 2 * sums_by_row(held["bits"], chosen, self.functions, self.width)
        return Tally(users=held.size, sums=sums - np.bincount(chosen, minlength=self.functions)[:, None])

    @property
    def _gain(self) -> float:
        """c: what a flipped ±1 is multiplied by."""
        return WORD / (WORD - 2 * self.flip)

    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """m/(m − 1) (mean of what lies at the answer's places − 1/m)."""
        table = transform(tally.sums) if self.hadamard else tally.sums
        rows = np.arange(self.functions)
        sums = [table[rows, self.places[some]].sum(axis=1) for some in pieces(self.domain.size, self.functions)]
        found = np.concatenate(sums) * self._gain
        users, width = tally.users, self.width
        met = found / users if self.hadamard else (found / users + 1) / 2
        return (met - 1 / width) * (width / (width - 1))

    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """The module's formula: coins, then collisions."""
        gain, width = self._gain**2, self.width
        crowd = frequencies * np.maximum(frequencies - 1 / n, 0.0)
        collisions = (crowd.sum() - crowd) / (self.functions * (width - 1))
        if self.hadamard:
            own = frequencies * (gain - 1) + (1 - frequencies) * (gain - 1 / width**2)
        else:
            own = (gain - 1) / 4 + (1 - frequencies) * (width - 1) / width**2
        return np.asarray(own * (width / (width - 1)) ** 2 / n + collisions)
