"""Wide noise on the integers, without a table: the Skellam and the discrete Gaussian law by rejection.

A table of a law with standard deviation 10⁶ would have 10⁷ entries. At that width both laws nearly equal a rounded
normal, whose exact draws are cheap (:mod:`quietsum.mechanisms.noise.rounded_normal`). So k = round(s · N) is proposed,
s² being the variance, and kept with probability a(k) = exp(L(k) − top). e^L is the ratio of the wanted weight to the
proposal's:

* φ(k/s)/s · g(k), g(k) = ∫ exp(−u²/2s²) cosh(ku/s²) du over |u| ≤ ½, is the chance of the proposal k;
* discrete Gaussian: L(k) = −ln g(k);
* Skellam of variance m: P(k) = e^{−m} I_k(m), so with N = √(k² + m²) and Debye's sum S (DLMF 10.41.3)
  L(k) = [N − m − k·asinh(k/m) + k²/2m] − ½ ln(N/m) + ln S − ln g(k).

Nearly every draw is kept at once, by a bound on L; for the few others a(k) is computed in float64. A float never
decides what it cannot decide: where a 64-bit uniform lies within :data:`MARGIN` of a(k), 64 more bits are read and the
ratio is computed to 40 digits and more, that of the Skellam law from the exact identity
Σ_j P(k + jM) = (1/M) Σ_t e^{m (cos θ_t − 1)} cos kθ_t, θ_t = 2πt/M.

Guarantees: independent draws, each within total variation distance ``failure`` of the law: what lies beyond ``reach``
(never drawn), and :data:`_DECISIONS` for the rest. No draw exceeds ``reach`` in magnitude.
"""

from __future__ import annotations

import decimal
import functools
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms.rng import RandomSource, Shape, dimensions

__all__ = ["LARGEST_VARIANCE", "LEAST_VARIANCE", "MARGIN", "WideGaussian", "WideSkellam"]

LEAST_VARIANCE = 4096.0
LARGEST_VARIANCE = 2.0**76

MARGIN = 2.0**-30
"""How far a(k) in float64 may lie from the truth. A test against mpmath holds that it is 16 times what is needed."""

_DECISIONS = 2.0**-112
"""Total variation distance of a draw from the cut law: of the proposal (2⁻¹²⁸, at most e times where some are turned
down) and of a decision at 128 bits by a ratio that is right to 2⁻¹²⁰."""

_TAIL = 91.0  # nats: e^-91 is 2^-131
_PIECE = 1 << 15
_WORD = 2.0**64


class _Law(Protocol):
    """A symmetric law beside the rounded normal of the same variance."""

    @property
    def scale(self) -> float:
        """The proposal's s."""
        ...

    @property
    def reach(self) -> int:
        """The largest magnitude that is ever drawn."""
        ...

    @property
    def span(self) -> tuple[float, float]:
        """Bounds on L over |k| ≤ reach: at least the first, at most the second."""
        ...

    def log_ratio(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """L(k) in float64."""
        ...

    def exact(self, k: int) -> Decimal:
        """e^{L(k)} to 40 digits or more."""
        ...


def _sample(law: _Law, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
    sizes, count = dimensions(shape)
    drawn = np.empty(count, dtype=np.int64)
    filled = 0
    while filled < count:
        wanted = min(_PIECE, count - filled)
        kept = _accept(law, rng.rounded_normals(law.scale, wanted), rng)
        drawn[filled : filled + kept.size] = kept
        filled += kept.size
    return drawn.reshape(sizes)


def _accept(law: _Law, proposed: NDArray[np.int64], rng: RandomSource, margin: float = MARGIN) -> NDArray[np.int64]:
    """What of ``proposed`` is kept, in its order."""
    low, top = law.span
    words = rng.words(proposed.size)
    sizes = np.abs(proposed)
    kept = words < np.uint64(max(0.0, math.exp(low - top) - margin) * _WORD)
    unsure = np.flatnonzero(~kept)
    if unsure.size:
        chances = np.exp(law.log_ratio(sizes[unsure].astype(np.float64)) - top)
        uniforms = words[unsure].astype(np.float64) / _WORD
        kept[unsure] = uniforms < chances
        for index in unsure[np.abs(uniforms - chances) <= margin].tolist():
            kept[index] = _decide(law, int(sizes[index]), int(words[index]), rng)
    kept &= sizes <= law.reach
    return proposed[kept]


def _decide(law: _Law, k: int, word: int, rng: RandomSource) -> bool:
    """Whether a uniform of 128 bits, of which ``word`` is the first half, lies below a(k)."""
    if k > law.reach:
        return False
    uniform = Decimal((word << 64) | int(rng.words(1)[0]))
    with decimal.localcontext() as context:
        context.prec = 60
        return uniform < law.exact(k) * (-Decimal(law.span[1])).exp() * Decimal(1 << 128)


def _log_mean(k: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    """ln g(k) in float64, from the moments of u: 1/12, 1/80, 1/448. |k| is below 17 s and s at least 64."""
    square = (k / variance) * (k / variance)
    half = 0.5 / variance
    # g = 1 + E[cosh(au) e^{−bu²} − 1] with a² = square and b = half, to the sixth order in u
    second = square / 2 - half
    fourth = square * square / 24 - half * square / 2 + half * half / 2
    sixth = square**3 / 720 - half * square * square / 24 + half * half * square / 4 - half**3 / 6
    return np.asarray(np.log1p(second / 12 + fourth / 80 + sixth / 448))


def _mean(k: int, variance: Decimal) -> Decimal:
    """g(k): ∫ exp(−bu²) cosh(au) du = Σ_m Σ_n (−b)^m a^{2n} / (m! (2n)!) · (½)^{2(m+n)} / (2(m + n) + 1)."""
    quarter = Decimal("0.25")
    square = (Decimal(k) / variance) ** 2 * quarter
    half = quarter / (2 * variance)
    total, least = Decimal(0), Decimal(10) ** (-decimal.getcontext().prec)
    outer, m = Decimal(1), 0
    while abs(outer) > least:
        inner, n = outer, 0
        while abs(inner) > least:
            total += inner / (2 * (m + n) + 1)
            n += 1
            inner *= square / ((2 * n - 1) * (2 * n))
        m += 1
        outer *= -half / m
    return total


@final
@dataclass(frozen=True)
class WideGaussian:
    """P(k) ∝ exp(−k² / 2 sigma²) (Canonne, Kamath, Steinke 2020, Definition 1), sigma ≥ 64."""

    sigma: float

    @property
    def scale(self) -> float:
        """The proposal's standard deviation."""
        return self.sigma

    @functools.cached_property
    def reach(self) -> int:
        """⌈√(2 · 91) sigma⌉ + 1: no draw is larger."""
        return math.ceil(math.sqrt(2 * _TAIL) * self.sigma) + 1

    @property
    def span(self) -> tuple[float, float]:
        """−ln g lies between −(reach/2s²)²/2, as g ≤ cosh(k/2s²), and 1/24s², as E u² = 1/12 (Jensen)."""
        variance = self.sigma * self.sigma
        return -((self.reach / (2 * variance)) ** 2) / 2 * (1 + 1e-9), (1 + 1e-9) / (24 * variance)

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the law.

        Beyond the reach K lies at most Σ_{k > K} exp(−k²/2s²) · 2 / Σ exp(−k²/2s²) ≤ 2 e^{−K²/2s²}: the sum from K + 1
        on is below ∫_K^∞, which is below e^{−K²/2s²} s √(π/2), and the whole sum is above s √(2π) (Poisson summation).
        """
        return 2 * math.exp(-_TAIL) + _DECISIONS

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        return _sample(self, shape, rng)

    def log_ratio(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """−ln g(k)."""
        return -_log_mean(k, self.sigma * self.sigma)

    def exact(self, k: int) -> Decimal:
        """1 / g(k)."""
        with decimal.localcontext() as context:
            context.prec = 60
            return 1 / _mean(k, Decimal(self.sigma) ** 2)


@final
@dataclass(frozen=True)
class WideSkellam:
    """P(k) = e^{−variance} I_k(variance): the difference of two Poisson draws of mean variance/2, variance ≥ 4096."""

    variance: float

    @functools.cached_property
    def scale(self) -> float:
        """The proposal's standard deviation, √variance as a float; :meth:`exact` takes that float as it is."""
        return math.sqrt(self.variance)

    @functools.cached_property
    def reach(self) -> int:
        """The first k whose Chernoff bound is below e^−91: no draw is larger."""
        low, high = 0, math.ceil(20 * self.scale)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _chernoff(middle, self.variance) > _TAIL else (middle, high)
        return high

    @property
    def span(self) -> tuple[float, float]:
        """Bounds on L for |k| ≤ K, the parts one by one.

        The bracket lies between 0 and K⁴/24m³: its derivative in k is k/m − asinh(k/m), between 0 and (k/m)³/6.
        ½ ln(N/m) = ¼ ln(1 + k²/m²) lies between 0 and K²/4m². With m ≥ 4096 and k ≤ m/4, |ln S| is below 1/6m: its
        first term is (3 − 5k²/N²)/24N, the rest below 1/10N². −ln g is bounded as for the Gaussian. s² is m up to its
        last bits, which moves k²/2s² by less than 10⁻¹².
        """
        m = self.variance
        slack = 1e-9 / m + 1e-12
        low = -((self.reach / m) ** 2) / 4 - 1 / (6 * m) - (self.reach / (2 * m)) ** 2 / 2
        high = (self.reach / m) ** 4 * m / 24 + 1 / (6 * m) + 1 / (24 * m)
        return low * (1 + 1e-9) - slack, high * (1 + 1e-9) + slack

    @property
    def failure(self) -> float:
        """Total variation distance of one draw from the law: Chernoff's bound beyond the reach, and decisions."""
        return 2 * math.exp(-_TAIL) + _DECISIONS

    def sample(self, shape: Shape, rng: RandomSource) -> NDArray[np.int64]:
        """Independent draws in an array of this shape."""
        return _sample(self, shape, rng)

    def log_ratio(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """L(k) in float64: the bracket by its alternating series in y = k/m ≤ 1/4."""
        m = self.variance
        y = (k / m) ** 2
        series = np.full_like(y, 143 / 163840)  # y²(1/24 − y/80 + 5y²/896 − …): the integral of x − asinh x
        for coefficient in (231 / 186368, 21 / 11264, 7 / 2304, 5 / 896, 1 / 80, 1 / 24):
            series = coefficient - y * series
        size = np.hypot(k, m)
        p = (k / size) ** 2
        first = (3 - 5 * p) / 24
        second = (81 - p * (462 - 385 * p)) / 1152
        third = (30375 - p * (369603 - p * (765765 - 425425 * p))) / 414720
        debye = (first + (second + third / size) / size) / size
        return np.asarray(y * y * m * series - np.log1p(y) / 4 + np.log1p(debye) - _log_mean(k, m))

    def exact(self, k: int) -> Decimal:
        """P(k) over the proposal's chance φ(k/s)/s · g(k), times the constant √(2πs²)/√(2πm) ≈ 1 as one factor."""
        with decimal.localcontext() as context:
            context.prec = 150
            square = Decimal(self.scale) ** 2
            density = (-Decimal(k) * k / (2 * square)).exp() / (2 * _pi(150) * Decimal(self.variance)).sqrt()
            return _skellam(k, Decimal(self.variance), self.scale) / (density * _mean(k, square))


def _chernoff(k: int, variance: float) -> float:
    """−ln of Chernoff's bound on P(X ≥ k): k·asinh(k/m) + m − √(k² + m²), by its series in k/m against cancellation.

    It is k²/2m − k⁴/24m³ + k⁶/80m⁵ − …, alternating, so two terms bound it from below.
    """
    return k * (k / variance) / 2 * (1 - (k / variance) ** 2 / 12) * (1 - 1e-12)


def _skellam(k: int, variance: Decimal, scale: float) -> Decimal:
    """e^{−m} I_k(m) by the trapezoid rule in θ, whose error is known: it adds P(k + jM) for all j ≠ 0.

    With M ≥ 36 s and k ≤ 14.5 s these lie at 21 s or beyond, where Chernoff's bound is below e^−200, against P(k) above
    e^−112 / 3s: 10⁻³⁸ of it. Terms with m (1 − cos θ) > 330 are left out; there are at most M/2 of them.
    """
    points = 2 * math.ceil(18.5 * scale) + 2
    total, t = Decimal(0), 1
    whole = 2 * _pi(decimal.getcontext().prec) / points
    while True:
        exponent = -variance * _versine(whole * t)
        if exponent < -480 or 2 * t >= points:
            break
        total += exponent.exp() * (1 - _versine(whole * ((k * t) % points)))
        t += 1
    return (1 + 2 * total) / points


def _versine(angle: Decimal) -> Decimal:
    """1 − cos angle for 0 ≤ angle < 2π, by Taylor's series of a 16th of it, doubled back: v(2x) = 2 v (2 − v)."""
    square = (angle / 16) ** 2
    term = square / 2
    total, n = Decimal(0), 2
    least = term * Decimal(10) ** (-decimal.getcontext().prec)
    while abs(term) > least:
        total += term
        term *= -square / ((n + 1) * (n + 2))
        n += 2
    for _ in range(4):
        total = 2 * total * (2 - total)
    return total


@functools.lru_cache(maxsize=4)
def _pi(digits: int) -> Decimal:
    """π by Machin's formula."""
    unit = 10 ** (digits + 10)

    def arctangent(divisor: int) -> int:
        term, total, n = unit // divisor, 0, 0
        while term:
            total += term // (2 * n + 1) if n % 2 == 0 else -(term // (2 * n + 1))
            term //= divisor * divisor
            n += 1
        return total

    with decimal.localcontext() as context:
        context.prec = digits + 5
        return Decimal(4 * (4 * arctangent(5) - arctangent(239))) / Decimal(unit)
