"""Noise that the parties add themselves, in shares: the server's sum is already noisy when it is opened.

Secure aggregation adds integers. So each party brings its vector onto a grid of ``scale`` steps to the unit, adds an
integer share of noise, and sends that, masked. Of all shares, only those of honest parties that stay to the end count:
drop-outs add none, and a colluder knows its own and can subtract it. With h the smallest number of such parties, each
share has the variance (σ C s)² / h, any h of them make σ C of noise, and that is what is charged. When more survive,
the noise is larger; the charge does not change.

**A client's whole vector** is clipped to C, scaled, and rounded at random to one of the neighbouring integers of each
coordinate, again and again until the *integer* norm is within

    Δ₂ = min{Cs + √d, √(C²s² + d/4 + √(2 ln 1/β) (Cs + √d/2))}

(Kairouz, Liu, Steinke 2021, section 4.2; one try fails with probability β at most). The norm is verified in integer
arithmetic, so no rounding of floats takes part in the guarantee.

**A record** is a part of its party's sum, which is rounded as a whole. Let v and v′ be the sums with and without one
record, ‖v − v′‖ ≤ C. They are projected on the ball of radius B, which is convex, so this moves no two points apart.
Rounding R to the nearest integer moves a coordinate by at most ½, so |R(sv)ᵢ − R(sv′)ᵢ| ≤ s|vᵢ − v′ᵢ| + 1, hence

    ‖R(sv) − R(sv′)‖₂ ≤ Cs + √d,    ‖R(sv) − R(sv′)‖₁ ≤ √d (Cs + √d) = √d Cs + d.

What floats may add is in ``margin``: a share of C that the caller states for the sum itself, and what projecting costs
here. s is chosen so that √d ≤ Cs / 1000, where the ring has room. In both cases the L1 norm is at most Δ₂ min(√d, Δ₂),
an integer vector's |k| being at most k².

>>> from quietsum.mechanisms.rng import system_randomness
>>> noise = DistributedNoise(max_norm=1.0, noise_multiplier=1.0, honest=4, dimension=3, unit="client")
>>> shares = [noise.share(np.array([3.0, 4.0, 0.0]), system_randomness()) for _ in range(5)]
>>> noise.decode(np.sum(shares, axis=0)).shape
(3,)
>>> noise.event()
Skellam(variance=4194304.0, l1_sensitivity=3550.24..., l2_sensitivity=2049.73..., dimension=3)
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.clipping import LARGEST_NORM, SMALLEST_NORM, clip_rows, grid_rows
from quietsum.mechanisms.noise.discrete_gaussian import DiscreteGaussianNoise
from quietsum.mechanisms.noise.rejection import LEAST_VARIANCE, WideGaussian
from quietsum.mechanisms.noise.skellam import SkellamNoise
from quietsum.mechanisms.rng import RandomSource
from quietsum.privacy import DiscreteGaussianSum, PrivacyUnit, Skellam
from quietsum.validate import non_negative, positive, whole_number

__all__ = ["KINDS", "DistributedNoise", "NoiseKind"]

NoiseKind: TypeAlias = Literal["skellam", "discrete-gaussian"]
KINDS: tuple[NoiseKind, ...] = ("skellam", "discrete-gaussian")

_BITS = (16, 20, 24, 32)
_FINE = 1000.0  # C in grid steps, over √d
_COARSE = {PrivacyUnit.CLIENT: 2.0, PrivacyUnit.RECORD: 16.0}
_FEWEST, _MOST = 1 << 10, 1 << 25
_MISSED = 1e-3  # β, the chance that one rounding is too long
_TRIES = 40
_WRAPPED = 1e-6  # the chance that some coordinate of a rotated sum leaves a small ring


@final
@dataclass(frozen=True, kw_only=True)
class DistributedNoise:
    """Shares of integer noise, ``honest`` of which are worth ``noise_multiplier`` · ``max_norm``.

    ``unit`` says whether a whole vector is one protected unit (``"client"``) or a sum of records clipped to
    ``max_norm`` (``"record"``, also for persons, whose k records are a ``Group``). ``ball`` bounds the norm of what one
    party sends: ``max_norm`` for clients; for records a public number, for instance twice the norm that is expected.
    ``parties``, if given, makes the grid coarse enough for the sum of so many in ``bits`` bits. ``margin`` is the float
    error of a record sum in units of ``max_norm``. ``steps`` is ``max_norm`` on the grid; if omitted it is chosen.

    Guarantees: what :meth:`share` does depends on the vector and on public values; ``event()`` describes the sum of
    ``honest`` shares and the norm really enforced, never the number that came.
    """

    max_norm: float
    noise_multiplier: float
    honest: int
    dimension: int
    unit: PrivacyUnit | str
    kind: NoiseKind = "skellam"
    ball: float | None = None
    bits: int = 32
    parties: int | None = None
    margin: float = 0.0
    steps: int | None = None

    def __post_init__(self) -> None:
        norm = positive("max_norm", self.max_norm, "one unit's L2 norm is clipped to it")
        if not SMALLEST_NORM <= norm <= LARGEST_NORM:
            problem = f"lies outside [{SMALLEST_NORM:g}, {LARGEST_NORM:g}]"
            raise InvalidParameter("max_norm", norm, problem, "rescale the vectors")
        noise = positive("noise_multiplier", self.noise_multiplier, "noise is what makes it private")
        honest = whole_number("honest", self.honest, 1)
        dimension = whole_number("dimension", self.dimension, 1)
        try:
            unit = PrivacyUnit(self.unit)
        except ValueError:
            raise InvalidParameter("unit", self.unit, "is unknown", "choose 'client' or 'record'") from None
        unit = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
        if self.kind not in KINDS:
            raise InvalidParameter("kind", self.kind, "is unknown", "choose 'skellam' or 'discrete-gaussian'")
        if self.bits not in _BITS:
            raise InvalidParameter("bits", self.bits, "is no ring here", f"choose one of {list(_BITS)}")
        ball = norm if self.ball is None and unit is PrivacyUnit.CLIENT else self.ball
        if ball is None:
            raise InvalidParameter(
                "ball", ball, "is missing", "declare the largest norm of one party's sum of records, a public number"
            )
        ball = positive("ball", ball, "the largest norm of what one party sends")
        if ball < norm or (unit is PrivacyUnit.CLIENT and ball != norm):
            problem = "is below max_norm" if ball < norm else "is not max_norm, to which a client's vector is clipped"
            raise InvalidParameter("ball", ball, problem, f"use {norm:g}")
        parties = self.parties if self.parties is None else whole_number("parties", self.parties, 1)
        if parties is not None and parties < honest:
            raise InvalidParameter("honest", honest, f"exceeds parties = {parties}", "a floor counts survivors")
        values: dict[str, object] = {
            "max_norm": norm, "noise_multiplier": noise, "honest": honest, "dimension": dimension, "unit": unit,
            "ball": ball, "parties": parties, "margin": non_negative("margin", self.margin),
        }  # fmt: skip
        for name, value in values.items():
            object.__setattr__(self, name, value)
        steps = self._choose_steps() if self.steps is None else whole_number("steps", self.steps, 1)
        if steps > _MOST:
            raise InvalidParameter("steps", steps, f"exceeds {_MOST}", "choose a coarser grid")
        object.__setattr__(self, "steps", steps)
        if parties is not None and self.bits == 32 and parties * self.largest >= 1 << 31:
            problem = f"lets the sum of {parties} parties wrap around"
            raise InvalidParameter("steps", steps, problem, "leave it out, or choose a coarser grid")
        self._noise  # noqa: B018  # refused here, not at the first share

    # ------------------------------------------------------------------------------------------------ the grid

    def _choose_steps(self) -> int:
        """C in grid steps: the power of two from 1000 √d on, or the largest one with which the ring has room."""
        root = math.sqrt(self.dimension)
        steps = max(_FEWEST, 1 << math.ceil(math.log2(_FINE * root)))
        if steps > _MOST:
            problem = f"needs a grid of more than {_MOST} steps"
            raise InvalidParameter("dimension", self.dimension, problem, "send the vector in several parts")
        if self.parties is None:
            return steps
        least = _COARSE[PrivacyUnit(self.unit)] * root
        while not self._fits(steps):
            steps //= 2
            if steps < least:
                raise InvalidParameter(
                    "bits",
                    self.bits,
                    f"leaves no room for the sum of {self.parties} parties and its noise on a grid of at least "
                    f"{least:.0f} steps to max_norm",
                    "use 32 bits, a smaller ball, or fewer parties",
                )
        return steps

    def _fits(self, steps: int) -> bool:
        assert self.parties is not None and self.ball is not None
        half = 1 << self.bits - 1
        if self.bits == 32:
            one = math.ceil(self.ball / self.max_norm * steps) + 2
            deviation = self.noise_multiplier * steps / math.sqrt(self.honest)
            return self.parties * (one + 14 * deviation + 24) < half  # no share exceeds 14 deviations and 24 steps
        # Rotated, a coordinate of a vector of norm r is sub-Gaussian with deviation r/√d, and so is the noise's sum.
        spread = self.parties * self.ball / self.max_norm * steps / math.sqrt(self.dimension)
        noise = self.noise_multiplier * steps * math.sqrt(self.parties / self.honest)
        return math.sqrt(2 * math.log(2 * self.dimension / _WRAPPED)) * (spread + noise) < half

    @property
    def scale(self) -> float:
        """Grid steps to the vectors' own unit: s."""
        return self._steps / self.max_norm

    @property
    def _steps(self) -> int:
        assert self.steps is not None
        return self.steps

    @property
    def l2_sensitivity(self) -> float:
        """Δ₂: how far one unit moves the integer sum, in L2."""
        steps, root = float(self._steps), math.sqrt(self.dimension)
        if self.unit is PrivacyUnit.CLIENT:
            longer = math.sqrt(2 * math.log(1 / _MISSED)) * (steps + root / 2)
            return min(steps + root, math.sqrt(steps * steps + self.dimension / 4 + longer))
        assert self.ball is not None
        # Each of two sums is projected with a relative error below (d + 8) 2⁻⁵² of the ball, then scaled and rounded.
        projecting = self.ball / self.max_norm * (self.dimension + 8) * 2.0**-51
        return (steps * (1 + self.margin + projecting) + root) * (1 + 1e-14)

    @property
    def l1_sensitivity(self) -> float:
        """Δ₁ = Δ₂ min(√d, Δ₂)."""
        reach = self.l2_sensitivity
        return reach * max(1.0, min(math.sqrt(self.dimension), reach))

    @property
    def largest(self) -> int:
        """The largest magnitude of a coordinate that one party sends, noise included: it never exceeds this."""
        assert self.ball is not None
        if self.unit is PrivacyUnit.CLIENT:
            return math.floor(self.l2_sensitivity) + self._noise.reach
        return math.ceil(self.ball * self.scale) + 1 + self._noise.reach

    # ----------------------------------------------------------------------------------------- one party's part

    def bound(self, vector: NDArray[np.floating]) -> NDArray[np.float64]:
        """The vector projected on the ball. A vector with a NaN or an infinity becomes zero.

        Guarantees: no two vectors are farther apart afterwards, up to float rounding (see ``l2_sensitivity``).
        """
        given = np.asarray(vector)
        if given.dtype.kind not in "fiu":
            raise InvalidParameter("vector.dtype", str(given.dtype), "holds no real numbers", "pass float64")
        if given.shape != (self.dimension,):
            problem = f"is not the declared ({self.dimension},)"
            raise InvalidParameter("vector.shape", given.shape, problem, "pass one flat vector")
        assert self.ball is not None
        with np.errstate(over="ignore"):
            row = np.ascontiguousarray(given, dtype=np.float64).reshape(1, -1)
        return np.asarray(clip_rows(row, self.ball)[0])

    def round_to_grid(self, vector: NDArray[np.floating], rng: RandomSource) -> NDArray[np.int64]:
        """The vector on the grid, without noise: what must never leave the party.

        Guarantees: a client's integers have Σ kᵢ² ≤ Δ₂², verified exactly; a record sum's are within the ball.
        """
        bounded = self.bound(vector)
        if self.unit is PrivacyUnit.CLIENT:
            return self._conditionally(bounded, rng)
        most = self.largest - self._noise.reach
        with np.errstate(under="ignore"):
            whole = np.rint(bounded * self.scale)
        return np.clip(whole, -most, most).astype(np.int64)

    def _conditionally(self, bounded: NDArray[np.float64], rng: RandomSource) -> NDArray[np.int64]:
        """Each coordinate up or down at random, so that it is right on average, until the integer norm holds."""
        most = math.floor(self.l2_sensitivity * self.l2_sensitivity * (1 - 1e-14))
        with np.errstate(under="ignore"):
            scaled = bounded * self.scale
        floor = np.floor(scaled)
        part = scaled - floor
        below = floor.astype(np.int64)
        for _ in range(_TRIES):
            whole: NDArray[np.int64] = below + (rng.uniforms(part.size) < part)
            if int(np.dot(whole, whole)) <= most:
                return whole
        # 40 misses have a chance below 10⁻¹²⁰. Toward zero no norm grows, and the norm is verified there too.
        return np.asarray(grid_rows(bounded.reshape(1, -1), self.max_norm, self._steps)[0])

    def share(self, vector: NDArray[np.floating], rng: RandomSource) -> NDArray[np.int64]:
        """What the party masks and sends: its vector on the grid, plus its share of the noise."""
        noise: NDArray[np.int64] = self._noise.sample(self.dimension, rng)
        return np.add(self.round_to_grid(vector, rng), noise, out=noise)

    def decode(self, total: NDArray[np.integer]) -> NDArray[np.float64]:
        """A sum of shares in the vectors' own units. It never divides by a count."""
        return np.asarray(total, dtype=np.float64) * (self.max_norm / self._steps)

    @functools.cached_property
    def _noise(self) -> SkellamNoise | DiscreteGaussianNoise | WideGaussian:
        if self.kind == "skellam":
            return SkellamNoise(variance=self.share_variance)
        sigma = math.sqrt(self.share_variance)
        return WideGaussian(sigma) if self.share_variance >= LEAST_VARIANCE else DiscreteGaussianNoise(sigma=sigma)

    # ------------------------------------------------------------------------------------------ what it costs

    @property
    def share_variance(self) -> float:
        """The variance of one party's share, in squared grid steps: (σ C s)² / h."""
        return (self.noise_multiplier * self._steps) ** 2 / self.honest

    def deviation(self, survivors: int) -> float:
        """The standard deviation of the noise in a sum of so many shares, in the vectors' own units."""
        count = whole_number("survivors", survivors)
        return math.sqrt(count * self.share_variance) * self.max_norm / self._steps

    def event(self) -> Skellam | DiscreteGaussianSum:
        """The event of one opened sum: the noise of ``honest`` shares against Δ₁ and Δ₂."""
        if self.kind == "skellam":
            total = self.honest * self.share_variance
            if total > self.honest * Fraction(self.share_variance):
                total = math.nextafter(total, 0.0)
            return Skellam(
                variance=total,
                l1_sensitivity=self.l1_sensitivity,
                l2_sensitivity=self.l2_sensitivity,
                dimension=self.dimension,
            )
        return DiscreteGaussianSum(
            sigma=math.sqrt(self.share_variance),
            shares=self.honest,
            sensitivity=self.l2_sensitivity,
            dimension=self.dimension,
        )

    def failure(self, coordinates: int) -> float:
        """Total variation distance of so many coordinates of the ``honest`` shares from their laws, charged to δ."""
        count = whole_number("coordinates", coordinates)
        return min(1.0, count * self.honest * self._noise.failure)
