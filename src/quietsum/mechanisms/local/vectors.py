"""PrivUnit: the mean of vectors in a ball, each reported as one random direction (Bhowmick et al. 2018, algorithm 1).

The person's half draws a direction V on the sphere: with chance p one from the cap ⟨V, u⟩ ≥ γ around its own unit
vector u, else one from outside it. The report stands for V / m, where m = E⟨V, u⟩, which is unbiased. With P the share
of the sphere in the cap, ε = ln(p / (1 − p)) + ln((1 − P) / P); p and γ are those for which m is largest (Asi,
Feldman, Talwar 2022 show that this choice is optimal). Shorter vectors get one more coordinate that makes them unit
vectors.

A report is not V but the 64-bit seed from which everybody derives V (after Feldman, Talwar 2021): the person draws
seeds until one lies where the coin says. So the report is a whole number whose chance depends on two counts alone,
those of seeds inside and outside the cap, and no rounding of V can give u away. It takes about 1 / P seeds; the
cap is kept above P = 2⁻¹⁰.

Guarantees: p is rounded down in whole words. P is known up to rounding, for which p is chosen as if P were smaller by
2⁻²⁰ of itself, and up to how evenly 2⁶⁴ mixed seeds fill the sphere. Under the assumption that the mixing behaves as
random, caps around *all* u hold their share of N = 2⁶⁴ seeds within 2 √(((D + 1) ln 2eN + ln 4/β) / NP) of it,
except with probability β (relative deviations of a class of VC dimension D + 1, after Vapnik; Anthony, Shawe-Taylor
1993). At β = 2⁻¹²⁸ that is taken off as well, with a factor of 3 instead of 2 to spare. It matters from a hundred
dimensions on.

>>> protocol = PrivUnit(domain=Ball(dimension=3), epsilon=4.0)
>>> reports = protocol.privatize(np.tile([0.6, 0.0, 0.8], (500, 1)))
>>> bool(np.abs(protocol.estimate(reports).values - [0.6, 0.0, 0.8]).max() < 0.5)
True
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, betaincinv, betaln, ndtri

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Ball
from quietsum.mechanisms.local.exact import WORD, check_epsilon, coins, exp_below
from quietsum.mechanisms.local.protocol import Estimate, LocalProtocol, Reports, Tally
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.validate import whole_number

__all__ = ["PrivUnit", "draw_directions"]

_LEAST_CAP = 2.0**-10  # the best cap up to about ε = 9
_MARGIN = Fraction(1, 1 << 20)
_UNLIKELY = 2.0**-128  # that seeds are spread less evenly than is allowed for
_PIECE = 1 << 19  # coordinates at once
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivUnit(LocalProtocol):
    """One vector a person, reported as the seed of a direction; the mean is estimated."""

    domain: Ball
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        if not isinstance(self.domain, Ball):
            raise InvalidParameter("domain", self.domain, "is no ball", "pass Ball(dimension=…, radius=…)")

    @property
    def answers(self) -> Ball:
        """The ball."""
        return self.domain

    @property
    def name(self) -> str:
        """privunit."""
        return "privunit"

    @property
    def sphere(self) -> int:
        """The dimension in which vectors are unit vectors: one more than theirs, and at least 2."""
        return self.domain.dimension + 1

    def parameters(self) -> dict[str, Any]:
        """None: cap and chance follow from dimension and ε."""
        return {}

    @property
    def layout(self) -> np.dtype[np.void]:
        """The seed of a direction."""
        return np.dtype([("seed", "<u8")])

    @property
    def bits(self) -> float:
        """One word."""
        return 64

    @functools.cached_property
    def cap(self) -> tuple[float, int]:
        """γ, and the chance of the cap in words: the pair for which reports are shortest."""
        best = max(self._grid(), key=self._length)
        if 3 * self._uneven(self._share(best)) > self.epsilon:  # two caps of one share would be told apart by it
            problem = f"is too small for {self.domain.dimension} coordinates, in which 2⁶⁴ seeds lie unevenly"
            raise InvalidParameter("epsilon", self.epsilon, problem, "report fewer coordinates, or allow a larger ε")
        return best, self._chance(best)

    def _grid(self) -> list[float]:
        """Candidates for γ: shares of the sphere from a half down to the smallest cap, evenly in their logarithm."""
        shares = np.geomspace(0.5, _LEAST_CAP, 400)
        return [0.0, *(float(np.sqrt(_inverse(2 * share, self.sphere))) for share in shares[1:])]

    def _share(self, gamma: float) -> float:
        """P, the share of the sphere with ⟨V, u⟩ ≥ γ ≥ 0."""
        return float(betainc((self.sphere - 1) / 2, 0.5, 1 - gamma**2)) / 2

    def _uneven(self, share: float) -> float:
        """How far the seeds in a cap may be from its share, relative to it, for every direction of the cap."""
        class_size = (self.sphere + 1) * math.log(2 * math.e * WORD) + math.log(4 / _UNLIKELY)
        return 3 * math.sqrt(class_size / (WORD * share))

    def _chance(self, gamma: float) -> int:
        share = self._share(gamma)
        inside = Fraction(share) * (1 - _MARGIN - Fraction(self._uneven(share)))
        odds = exp_below(self.epsilon) * inside / (1 - inside)  # p / (1 − p) at most
        return int(odds / (1 + odds) * WORD)

    def _lean(self, gamma: float) -> float:
        """E[⟨V, u⟩; in the cap] = (1 − γ²)^{(D−1)/2} / ((D − 1) B(½, (D − 1)/2))."""
        rest = (self.sphere - 1) / 2
        return math.exp(rest * math.log1p(-(gamma**2)) - math.log(2 * rest) - float(betaln(0.5, rest)))

    def _length(self, gamma: float) -> float:
        """m = E⟨V, u⟩."""
        chance, inside = self._chance(gamma) / WORD, self._share(gamma)
        return self._lean(gamma) * (chance / inside - (1 - chance) / (1 - inside))

    @functools.cached_property
    def length(self) -> float:
        """m, by which reports are divided."""
        return self._length(self.cap[0])

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person: one row of ``values`` each."""
        unit, rng = self._unit(values), choose_source(rng)
        gamma, chance = self.cap
        wanted = coins(rng, chance, unit.shape[0])
        seeds = np.zeros(unit.shape[0], dtype=np.uint64)
        pending = np.arange(unit.shape[0])
        while pending.size:
            left = []
            rows = max(1, _PIECE // self.sphere)
            for start in range(0, pending.size, rows):
                some = pending[start : start + rows]
                tries = max(1, min(64, rows // some.size))
                drawn = rng.words(some.size * tries).reshape(some.size, tries)
                lean = np.einsum("utd,ud->ut", draw_directions(drawn, self.sphere), unit[some])
                fits = (lean >= gamma) == wanted[some, None]
                first = np.argmax(fits, axis=1)
                found = fits[np.arange(some.size), first]
                seeds[some[found]] = drawn[found, first[found]]
                left.append(some[~found])
            pending = np.concatenate(left)
        reports: Reports = np.empty(seeds.size, dtype=self.layout)
        reports["seed"] = seeds
        return reports

    def _unit(self, values: ArrayLike | Iterable[Any]) -> NDArray[np.float64]:
        rows = np.asarray(values, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.domain.dimension:
            raise InvalidParameter(
                "values", rows.shape, f"are not rows of {self.domain.dimension} numbers", "pass one row a person"
            )
        if not np.isfinite(rows).all():
            raise InvalidParameter("values", "", "hold a number that is not finite", "clip them first")
        rows = rows / self.domain.radius
        squares = np.square(rows).sum(axis=1)
        if squares.size and float(squares.max()) > 1 + 1e-9:
            raise InvalidParameter(
                "values", "", f"hold a vector longer than {self.domain.radius:g}", "clip every vector to the radius"
            )
        full = np.column_stack([rows, np.sqrt(np.maximum(1 - squares, 0.0))])
        unit: NDArray[np.float64] = full / np.linalg.norm(full, axis=1, keepdims=True)
        return unit

    def tally(self, reports: Reports) -> Tally:
        """At the collector: the sum of all directions, and of their squares."""
        seeds, size = self.fields(reports)["seed"], self.domain.dimension
        sums = np.zeros((2, size))
        rows = max(1, _PIECE // self.sphere)
        for start in range(0, seeds.size, rows):
            drawn = draw_directions(seeds[start : start + rows], self.sphere)[:, :size]
            sums += [drawn.sum(axis=0), np.square(drawn).sum(axis=0)]
        return Tally(users=seeds.size, sums=sums)

    def conclude(self, tally: Tally, *, confidence: float = 0.95) -> Estimate:
        """The mean vector; intervals go by the spread of the reports."""
        users = whole_number("users", tally.users, 2, "a mean with an interval needs two reports or more")
        scale = self.domain.radius / self.length
        mean = tally.sums[0] / users
        spread = (tally.sums[1] / users - mean**2) * users / (users - 1)
        labels = tuple(f"[{place}]" for place in range(self.domain.dimension))
        return self.interval(labels, users, scale * mean, scale**2 * spread / users, confidence)

    def variances(self, n: int, vector: ArrayLike) -> NDArray[np.float64]:
        """The variance of each coordinate of the mean, where everybody answers ``vector``.

        With T = E⟨V, u⟩²: (T uᵢ² + (1 − T)(1 − uᵢ²) / (D − 1)) / m² − uᵢ². Over all D coordinates 1 / m² − 1.
        """
        unit = self._unit(np.asarray(vector, dtype=np.float64)[None])[0][: self.domain.dimension]
        gamma, words = self.cap
        chance, inside = words / WORD, self._share(gamma)
        beyond = (1 - float(betainc(1.5, (self.sphere - 1) / 2, gamma**2))) / (2 * self.sphere)  # E[t²; in the cap]
        along = chance * beyond / inside + (1 - chance) * (1 / self.sphere - beyond) / (1 - inside)
        across = (1 - along) / (self.sphere - 1)
        spread = (along * unit**2 + across * (1 - unit**2)) / self.length**2 - unit**2
        return np.asarray(self.domain.radius**2 * spread / n, dtype=np.float64)

    def variance(self, n: int) -> float:
        """E‖estimate − mean‖² at most: (1 / m² − 1) · radius² / n, reached by vectors of full length in the limit."""
        return self.domain.radius**2 * (1 / self.length**2 - 1) / n


def draw_directions(seeds: NDArray[np.uint64], dimension: int) -> NDArray[np.float64]:
    """The unit vector that each seed stands for; the same on every machine up to the last bits."""
    base = _mix(seeds)
    words = base[..., None] + np.arange(1, dimension + 1, dtype=np.uint64) * _GOLDEN
    normals = ndtri(((_mix(words) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
    normals /= np.sqrt(np.einsum("...d,...d->...", normals, normals))[..., None]
    return np.asarray(normals, dtype=np.float64)


def _mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    mixed = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _inverse(share: float, dimension: int) -> float:
    """The γ² beyond which ``share`` of the sphere's ⟨V, u⟩² lie."""
    return 1 - float(betaincinv((dimension - 1) / 2, 0.5, share))
