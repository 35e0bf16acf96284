"""One bit for each answer, every bit flipped by its own coin: unary encodings, and RAPPOR on a Bloom filter.

**Unary encoding** (Wang, Blocki, Li, Jha 2017). The person's bit stays 1 with chance p, every other bit becomes 1 with
chance q; ε = ln(p(1 − q) / ((1 − p) q)). *Optimised* (OUE): p = ½, q = 1 / (e^ε + 1), variance 4 e^ε / (n (e^ε − 1)²)
for rare answers. *Symmetric* (SUE): p = 1 − q, q = 1 / (e^{ε/2} + 1), which is RAPPOR's basic form.

**RAPPOR** (Erlingsson, Pihur, Korolova 2014). An answer sets ``hashes`` bits of a Bloom filter that depends on the
person's random cohort. A *permanent* response flips every bit once and is kept for ever; each *report* flips the bits
of the permanent response again. One report costs ε, and all reports about an unchanged answer together never more
than ε∞, however many are sent:

    ε = h ln(q*(1 − p*) / (p*(1 − q*))),  ε∞ = 2h ln((1 − f/2) / (f/2))       (their equations 3 to 5)

Here both are given, and f and the second flip follow. The original decodes with a lasso; here the answers are a public
list, so least squares decode without bias, and the variance is exact.

>>> protocol = Rappor(domain=categories(10), epsilon=1.0, permanent_epsilon=4.0)
>>> [protocol.longitudinal_epsilon(reports) for reports in (1, 3, 1000)]
[1.0, 3.0, 4.0]
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Bins, Categories, categories
from quietsum.mechanisms.local.exact import WORD, Cells, check_epsilon, coins, exp_below, half_coins, share
from quietsum.mechanisms.local.protocol import FrequencyProtocol, Reports, Tally, two_chances
from quietsum.mechanisms.rng import RandomSource, choose_source, system_randomness
from quietsum.privacy import PrivacyEvent, PureDP
from quietsum.validate import whole_number

__all__ = [
    "Rappor",
    "UnaryEncoding",
    "column_sums",
    "fresh_seed",
    "pack_bits",
    "pieces",
    "seed_of",
    "sums_by_row",
    "unpack_bits",
]

_PIECE = 1 << 20  # bits of reports that are worked on at once
_MOST_BITS = 1 << 24  # of all filters of all answers
_FILTER = "for instance size = 128, hashes = 2, cohorts = 16"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class UnaryEncoding(FrequencyProtocol):
    """A bit for each answer, flipped; ``optimised`` is OUE, otherwise SUE.

    Guarantees: two answers differ in two bits, so a report's likelihood ratio is at most p(1 − q) / ((1 − p) q) ≤ e^ε,
    in integers.
    """

    domain: Categories | Bins
    epsilon: float
    optimised: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", categories(self.domain))
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    @functools.cached_property
    def thresholds(self) -> tuple[int, int]:
        """(p, q) in words: the chance of a 1 where the answer is, and elsewhere."""
        if self.optimised:
            return WORD // 2, Cells.private(self.epsilon, others=1).low
        low = Cells.private(self.epsilon / 2, others=1).low
        return WORD - low, low

    @property
    def name(self) -> str:
        """oue or sue."""
        return "oue" if self.optimised else "sue"

    @property
    def layout(self) -> np.dtype[np.void]:
        """The bits, eight a byte."""
        return np.dtype([("bits", "u1", (-(-self.domain.size // 8),))])

    @property
    def bits(self) -> float:
        """d."""
        return self.domain.size

    def parameters(self) -> dict[str, Any]:
        """None."""
        return {}

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person."""
        truth, rng, size = self.domain.places(values), choose_source(rng), self.domain.size
        p, q = self.thresholds
        reports: Reports = np.empty(truth.size, dtype=self.layout)
        for piece in pieces(truth.size, size):
            here = truth[piece]
            sent = coins(rng, q, here.size * size).reshape(here.size, size)
            stays = half_coins(rng, here.size) if p == WORD // 2 else coins(rng, p, here.size)
            sent[np.arange(here.size), here] = stays
            reports["bits"][piece] = pack_bits(sent)
        return reports

    def tally(self, reports: Reports) -> Tally:
        """At the collector: how often each bit was set."""
        held = self.fields(reports)["bits"]
        counts = np.zeros(self.domain.size, dtype=np.int64)
        for piece in pieces(held.shape[0], self.domain.size):
            counts += column_sums(unpack_bits(held[piece], self.domain.size))
        return Tally(users=held.shape[0], sums=counts)

    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """(count / n − q) / (p − q)."""
        p, q = map(share, self.thresholds)
        return (tally.sums / tally.users - q) / (p - q)

    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Wang et al. 2017, equation 3."""
        p, q = map(share, self.thresholds)
        return two_chances(n, frequencies, p, q)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Rappor(FrequencyProtocol):
    """A Bloom filter, flipped once for ever and again for each report.

    ``epsilon`` is the price of one report, ``permanent_epsilon`` of all reports for ever about the same answer, as long
    as the same permanent response is kept (:meth:`permanent`, then :meth:`report` as often as wanted). A new
    permanent response for every report, which :meth:`privatize` draws, costs ``epsilon`` each time. If omitted, the
    permanent ε is that of one report, and there is no second flip.

    Guarantees: both hold in integers; two answers differ in at most 2 · hashes bits.
    """

    domain: Categories | Bins
    epsilon: float
    permanent_epsilon: float = -1.0
    size: int = 0
    hashes: int = 2
    cohorts: int = 16
    seed: int = -1

    def __post_init__(self) -> None:
        store = functools.partial(object.__setattr__, self)
        store("domain", categories(self.domain))
        store("epsilon", check_epsilon(self.epsilon))
        permanent = self.epsilon if self.permanent_epsilon == -1 else self.permanent_epsilon
        store("permanent_epsilon", check_epsilon(permanent, "permanent_epsilon"))
        if self.permanent_epsilon < self.epsilon:
            raise InvalidParameter(
                "permanent_epsilon", self.permanent_epsilon, f"is below that of one report, {self.epsilon!r}",
                "what is kept for ever costs at least as much as one report of it",
            )  # fmt: skip
        if self.domain.size > 1024:
            raise InvalidParameter(
                "domain", self.domain.size, "is too large to decode a Bloom filter", "use hadamard or olh"
            )
        store("hashes", whole_number("hashes", self.hashes, 1))
        store("cohorts", whole_number("cohorts", self.cohorts, 1))
        size = self.size or max(32, 1 << (self.domain.size // 4 - 1).bit_length())
        store("size", whole_number("size", size, 8))
        if self.size & (self.size - 1) or self.hashes > 16:
            raise InvalidParameter("size", self.size, "is no power of two, or there are over 16 hashes", _FILTER)
        if self.size * self.cohorts * self.domain.size > _MOST_BITS:
            raise InvalidParameter("size", self.size, "times cohorts times answers is too large to decode", _FILTER)
        store("seed", seed_of(self.seed))

    @functools.cached_property
    def flips(self) -> tuple[int, int]:
        """The chances of the permanent flip and of the flip of each report, in words."""
        bits = 2 * self.hashes
        first = math.ceil(WORD / (1 + exp_below(Fraction(self.permanent_epsilon) / bits)))
        if self.permanent_epsilon == self.epsilon:
            return first, 0
        odds = exp_below(Fraction(self.epsilon) / bits)  # of a bit that was sent as it was set, at most
        kept, flipped = odds / (1 + odds), Fraction(first, WORD)
        second = 1 - (Fraction(1, 2) + (kept - Fraction(1, 2)) / (1 - 2 * flipped))
        return first, max(0, math.ceil(second * WORD))

    @functools.cached_property
    def wrong(self) -> Fraction:
        """The chance that a bit of one report is not what the answer set: of one flip, not of both."""
        first, second = (Fraction(flip, WORD) for flip in self.flips)
        return first * (1 - second) + (1 - first) * second

    @property
    def name(self) -> str:
        """rappor."""
        return "rappor"

    @property
    def layout(self) -> np.dtype[np.void]:
        """The cohort, and the bits, eight a byte."""
        return np.dtype([("cohort", "<u4"), ("bits", "u1", (self.size // 8,))])

    @property
    def bits(self) -> float:
        """The filter and the cohort."""
        return self.size + math.ceil(math.log2(self.cohorts))

    def parameters(self) -> dict[str, Any]:
        """The permanent ε, the filter's sizes, and the seed of the hashes."""
        return {
            "permanent_epsilon": self.permanent_epsilon, "size": self.size, "hashes": self.hashes,
            "cohorts": self.cohorts, "seed": self.seed,
        }  # fmt: skip

    def longitudinal_epsilon(self, reports: int) -> float:
        """What ``reports`` reports about one unchanged answer cost together, from one permanent response."""
        return min(whole_number("reports", reports, 1) * self.epsilon, self.permanent_epsilon)

    def event_forever(self) -> PrivacyEvent:
        """What all reports about one unchanged answer cost, however many there are."""
        return PureDP(epsilon=self.permanent_epsilon)

    @functools.cached_property
    def filters(self) -> NDArray[np.bool_]:
        """The Bloom filter of every answer in every cohort: cohorts × answers × bits."""
        table = np.zeros((self.cohorts, self.domain.size, self.size), dtype=np.bool_)
        for place, label in enumerate(self.domain.labels):
            drawn = hashlib.shake_256(b"quietsum rappor %d " % self.seed + label.encode()).digest(
                4 * self.cohorts * self.hashes
            )
            spots = np.frombuffer(drawn, dtype="<u4").reshape(self.cohorts, self.hashes) % self.size
            table[np.arange(self.cohorts)[:, None], place, spots] = True
        return table

    def permanent(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person, once: what must be kept and never sent."""
        truth, rng = self.domain.places(values), choose_source(rng)
        reports: Reports = np.empty(truth.size, dtype=self.layout)
        cohorts = ((rng.words(truth.size) >> np.uint64(32)) * np.uint64(self.cohorts)) >> np.uint64(32)
        reports["cohort"] = cohorts
        for piece in pieces(truth.size, self.size):
            set_bits = self.filters[cohorts[piece].astype(np.int64), truth[piece]]
            reports["bits"][piece] = pack_bits(set_bits ^ self._flip(rng, self.flips[0], set_bits.shape[0]))
        return reports

    def report(self, permanent: Reports, rng: RandomSource | None = None) -> Reports:
        """At the person, for each report: the permanent response, flipped again."""
        rng, reports = choose_source(rng), self.fields(permanent).copy()
        if self.flips[1]:
            for piece in pieces(reports.size, self.size):
                count = reports[piece].size
                reports["bits"][piece] ^= pack_bits(self._flip(rng, self.flips[1], count))
        return reports

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person: a permanent response that is forgotten, and one report of it."""
        rng = choose_source(rng)
        return self.report(self.permanent(values, rng), rng)

    def _flip(self, rng: RandomSource, threshold: int, users: int) -> NDArray[np.bool_]:
        return coins(rng, threshold, users * self.size).reshape(users, self.size)

    def tally(self, reports: Reports) -> Tally:
        """At the collector: how often each bit was set in each cohort, and last the cohort's size."""
        held = self.fields(reports)
        cohorts = held["cohort"].astype(np.int64)
        if cohorts.size and int(cohorts.max()) >= self.cohorts:
            raise InvalidParameter("reports", int(cohorts.max()), "is no cohort of this protocol", "check the file")
        sums = np.zeros((self.cohorts, self.size + 1), dtype=np.int64)
        sums[:, -1] = np.bincount(cohorts, minlength=self.cohorts)
        sums[:, :-1] = sums_by_row(held["bits"], cohorts, self.cohorts, self.size)
        return Tally(users=held.size, sums=sums)

    @functools.cached_property
    def decoder(self) -> NDArray[np.float64]:
        """The least-squares decoder: answers × (cohorts · bits), the left inverse of the filters."""
        design = self.filters.transpose(0, 2, 1).reshape(-1, self.domain.size).astype(np.float64)
        left, lengths, right = np.linalg.svd(design, full_matrices=False)
        if lengths[-1] <= 1e-9 * lengths[0] or design.shape[0] < self.domain.size:
            raise InvalidParameter(
                "size", self.size, "leaves answers that share all their bits with others", "use more bits or cohorts"
            )
        return np.asarray((right.T / lengths) @ left.T, dtype=np.float64)

    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """Bits without the flips, then least squares; E[bits of cohort i] · cohorts is the mixture of filters."""
        wrong = float(self.wrong)
        cleaned = (tally.sums[:, :-1] - wrong * tally.sums[:, -1:]) / (1 - 2 * wrong)
        return np.asarray(self.decoder @ (cleaned.reshape(-1) * (self.cohorts / tally.users)), dtype=np.float64)

    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Exact. A report is g = cohorts · Σⱼ decoderⱼ (bitⱼ − wrong) / (1 − 2 wrong) over the bits of its cohort i.

        Given the answer v: Var g = C Σᵢ (Σⱼ decoder²ᵢⱼ · s² + (Σⱼ decoderᵢⱼ filterᵢⱼᵥ)²) − [this answer is v], with the
        same s² = wrong(1 − wrong) / (1 − 2 wrong)² for set and unset bits.
        """
        wrong = float(self.wrong)
        noise = wrong * (1 - wrong) / (1 - 2 * wrong) ** 2
        decoder = self.decoder.reshape(self.domain.size, self.cohorts, self.size)
        flips = self.cohorts * noise * np.einsum("xij,xij->x", decoder, decoder)
        spread = np.zeros(self.domain.size)
        for cohort in range(self.cohorts):
            met = decoder[:, cohort] @ self.filters[cohort].T.astype(np.float64)  # answers × answers
            spread += self.cohorts * (met**2 @ frequencies)
        return np.asarray((flips + spread - frequencies) / n, dtype=np.float64)


# ------------------------------------------------------------------------------------------------- bits and seeds


def pieces(count: int, width: int) -> list[slice]:
    """``count`` rows of ``width`` bits in slices that stay small."""
    rows = max(1, _PIECE // max(1, width))
    return [slice(start, min(count, start + rows)) for start in range(0, count, rows)]


def pack_bits(bits: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Eight bits a byte, row by row."""
    return np.packbits(bits, axis=1)


def unpack_bits(held: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """The ``size`` bits of each row. Bits beyond them are refused: no encoder sets them."""
    bits = np.unpackbits(held, axis=1)
    if bits.shape[1] > size and bits[:, size:].any():
        raise InvalidParameter("reports", "", "have bits beyond the domain", "check the file")
    return bits[:, :size]


def column_sums(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Sums of 0s and 1s by column, bytes first: 255 rows fit into one."""
    total = np.zeros(bits.shape[1], dtype=np.int64)
    whole = bits.shape[0] // 255 * 255
    if whole:
        total += bits[:whole].reshape(-1, 255, bits.shape[1]).sum(axis=1, dtype=np.uint8).sum(axis=0, dtype=np.int64)
    return np.asarray(total + bits[whole:].sum(axis=0, dtype=np.int64))


def sums_by_row(held: NDArray[np.uint8], rows: NDArray[np.int64], count: int, size: int) -> NDArray[np.int64]:
    """Sums of packed bits by column, apart for each of ``count`` kinds of rows."""
    total = np.zeros((count, size), dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    held, rows = held[order], rows[order]
    if rows.size >= 16 * count:  # many of a kind: byte sums, kind by kind
        edges = np.searchsorted(rows, np.arange(count + 1))
        for kind, (start, stop) in enumerate(itertools.pairwise(edges.tolist())):
            for piece in pieces(stop - start, size):
                total[kind] += column_sums(unpack_bits(held[start:stop][piece], size))
        return total
    for piece in pieces(rows.size, size):
        kinds, starts = np.unique(rows[piece], return_index=True)
        total[kinds] += np.add.reduceat(unpack_bits(held[piece], size), starts, axis=0, dtype=np.int64)
    return total


def fresh_seed() -> int:
    """A new public seed for hash functions."""
    return int(system_randomness().words(1)[0] >> np.uint64(11))  # 53 bits survive every JSON reader


def seed_of(seed: object) -> int:
    """A seed that was given, or a fresh one for −1."""
    found = fresh_seed() if seed == -1 else whole_number("seed", seed)
    if found >= 1 << 53:
        raise InvalidParameter("seed", found, "has more than 53 bits", "choose one below 2⁵³")
    return found
