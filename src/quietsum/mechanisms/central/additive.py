"""Noise on real numbers: Laplace's for a pure ε, Gaussian for vectors and many releases.

What must agree is one object: the value that adds the noise also states the event to account for.

>>> released = LaplaceMechanism(epsilon=1, sensitivity=1).release(42.0)
>>> isinstance(released, float)
True
>>> LaplaceMechanism(epsilon=0.5, sensitivity=L1(3)).event()
Laplace(noise_multiplier=2.0)
>>> GaussianMechanism(epsilon=1, delta=1e-5, sensitivity=L2(1)).release(np.zeros((2, 3))).shape
(2, 3)

Both put the value on a grid, add an integer of exactly the law of *rounded* noise, and go back
(:mod:`quietsum.mechanisms.central.lattice`). For an integer x, x + round(N) = round(x + N): the release is
post-processing of the ideal mechanism, and its event holds in any dimension and under any sampling.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms.central.lattice import Lattice, above, numbers
from quietsum.mechanisms.central.sensitivity import L1, L2, LInf, Norm, Sensitivity, in_l1, in_l2
from quietsum.mechanisms.gaussian import LEAST_NOISE, MOST_NOISE, least_noise
from quietsum.mechanisms.noise.laplace import LARGEST_LAPLACE_SCALE, RoundedLaplaceNoise
from quietsum.mechanisms.noise.rounded_normal import FAILURE_PER_DRAW, LARGEST_SCALE
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import Gaussian, Laplace
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["GaussianMechanism", "LaplaceMechanism", "check_noise", "target"]

_LARGEST_EPSILON = 1e9


@final
@dataclass(frozen=True, kw_only=True)
class LaplaceMechanism:
    """Laplace noise of scale sensitivity / ε on a number, or on every coordinate of an array (Dwork et al. 2006).

    ``sensitivity`` is an L1 bound: a plain number, ``L1(...)``, or ``LInf(...)``, which counts once for every
    coordinate. An ``L2`` bound is refused. The shape of what is released is public.

    Guarantees: ε-differential privacy with δ = ``failure(coordinates)``, which is below 10⁻²⁷ for a million
    coordinates; floating-point safe. NaN and infinities are refused; no finite value is.
    """

    epsilon: float
    sensitivity: Sensitivity

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
        object.__setattr__(self, "sensitivity", in_l1(self.sensitivity))
        check_noise("epsilon", self.epsilon, self.noise_multiplier)

    @property
    def noise_multiplier(self) -> float:
        """The noise's scale over the sensitivity: 1 / ε, rounded up."""
        return above(1 / Fraction(self.epsilon))

    @property
    def scale(self) -> float:
        """The scale b of the noise on a single number, in its own units; the standard deviation is √2 b."""
        lattice, noise = self._noise(1)
        return noise.scale * lattice.step

    @overload
    def release(self, value: float, rng: RandomSource | None = None) -> float: ...
    @overload
    def release(self, value: ArrayLike, rng: RandomSource | None = None) -> NDArray[np.float64]: ...
    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        """``value`` with noise: a float for a number, an array for an array. If omitted, ``rng`` is the system's."""
        given = numbers(value)
        lattice, noise = self._noise(given.size)
        noisy = lattice.round(given) + noise.sample(given.shape, choose_source(rng))
        return _scalar_or_array(lattice.back(np.asarray(noisy)))

    def event(self) -> Laplace:
        """The event to account for, of the whole value."""
        return Laplace(noise_multiplier=self.noise_multiplier)

    def failure(self, coordinates: int = 1) -> float:
        """Total variation distance of that many draws from the ideal law, to be charged to δ."""
        count = whole_number("coordinates", coordinates)
        return min(1.0, count * self._noise(count)[1].failure)

    def _noise(self, size: int) -> tuple[Lattice, RoundedLaplaceNoise]:
        lattice, scale = _laplace_grid(self.sensitivity, self.noise_multiplier, size)
        return lattice, RoundedLaplaceNoise(scale=scale)


@final
@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Gaussian noise on a number, or on every coordinate of an array: the least that is (ε, δ)-private.

    The noise is calibrated by the exact curve (Balle, Wang 2018, Theorem 8), not by the classical formula, which wastes
    noise for ε ≤ 1 and is wrong beyond. For many releases calibrate once (:func:`quietsum.calibrate_noise`) and state
    ``noise_multiplier`` instead of ε and δ. ``sensitivity`` is an L2 bound: a plain number, ``L2(...)``, ``L1(...)``,
    which bounds the L2 norm too, or ``LInf(...)``, which counts √d times for d coordinates.

    Guarantees: ``event()`` describes the noise really added, (ε, δ) includes :meth:`failure`; floating-point safe. NaN
    and infinities are refused; no finite value is.
    """

    epsilon: float | None = None
    delta: float | None = None
    sensitivity: Sensitivity
    noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        if self.noise_multiplier is not None:
            if self.epsilon is not None or self.delta is not None:
                raise InvalidParameter(
                    "noise_multiplier", self.noise_multiplier, "stands beside a target",
                    "state ε and δ, from which the noise follows, or the noise alone",
                )  # fmt: skip
            noise = positive("noise_multiplier", self.noise_multiplier, "noise is what makes it private")
            check_noise("noise_multiplier", noise, noise)
            object.__setattr__(self, "noise_multiplier", noise)
        else:
            for name in ("epsilon", "delta"):
                if getattr(self, name) is None:
                    remedy = "Gaussian noise needs both; for a pure ε use LaplaceMechanism"
                    raise InvalidParameter(name, None, "is missing", remedy)
            object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
            object.__setattr__(self, "delta", open_probability("delta", self.delta))
        object.__setattr__(self, "sensitivity", in_l2(self.sensitivity))
        check_noise("epsilon", self.epsilon, self._multiplier)

    @functools.cached_property
    def _multiplier(self) -> float:
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return least_noise(self.epsilon or 0.0, self.delta or 0.0)

    @property
    def scale(self) -> float:
        """The standard deviation of the noise on a single number, in its own units."""
        lattice, scale = self._grid(1)
        return scale * lattice.step

    @overload
    def release(self, value: float, rng: RandomSource | None = None) -> float: ...
    @overload
    def release(self, value: ArrayLike, rng: RandomSource | None = None) -> NDArray[np.float64]: ...
    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        """``value`` with noise: a float for a number, an array for an array. If omitted, ``rng`` is the system's."""
        given = numbers(value)
        lattice, scale = self._grid(given.size)
        noisy = lattice.round(given) + choose_source(rng).rounded_normals(scale, given.shape)
        return _scalar_or_array(lattice.back(np.asarray(noisy)))

    def event(self) -> Gaussian:
        """The event to account for, of the whole value."""
        return Gaussian(noise_multiplier=self._multiplier)

    def failure(self, coordinates: int = 1) -> float:
        """Total variation distance of that many draws from the ideal law, to be charged to δ.

        A mechanism that was given ε and δ has left a billionth of δ for it.
        """
        return min(1.0, whole_number("coordinates", coordinates) * FAILURE_PER_DRAW)

    def _grid(self, size: int) -> tuple[Lattice, float]:
        return _gaussian_grid(self.sensitivity, self._multiplier, size)


def target(name: str, epsilon: object) -> float:
    """ε as a positive number that means something."""
    value = positive(name, epsilon, "a smaller ε means more noise")
    if value > _LARGEST_EPSILON:
        raise InvalidParameter(name, value, f"exceeds {_LARGEST_EPSILON:g}", "it would protect no one")
    return value


def check_noise(name: str, value: object, multiplier: float) -> None:
    """Refuses noise that hides nothing and noise that leaves nothing; ``value`` of ``name`` is what asked for it."""
    if multiplier < LEAST_NOISE:
        raise InvalidParameter(
            name, value, f"means noise below {LEAST_NOISE:g} of the sensitivity", "it protects no one"
        )
    if multiplier > MOST_NOISE:
        remedy = "nothing would be left to see"
        raise InvalidParameter(name, value, f"means noise of more than {MOST_NOISE:g} times the sensitivity", remedy)


@functools.lru_cache(maxsize=64)
def _laplace_grid(sensitivity: L1 | LInf, multiplier: float, size: int) -> tuple[Lattice, float]:
    """The grid and the noise's scale in its steps: multiplier · the L1 sensitivity of the rounded value."""
    lattice = Lattice.for_noise(sensitivity, multiplier, size, LARGEST_LAPLACE_SCALE)
    steps = lattice.steps_of(sensitivity.bound)
    moved = steps * size if isinstance(sensitivity, LInf) else steps + max(0, size - 1)
    scale = above(Fraction(multiplier) * max(1, moved))
    if scale > LARGEST_LAPLACE_SCALE:
        raise QuietsumError(_TOO_WIDE)
    return lattice, scale


@functools.lru_cache(maxsize=64)
def _gaussian_grid(sensitivity: Norm, multiplier: float, size: int) -> tuple[Lattice, float]:
    """The grid and the noise's deviation in its steps: multiplier · the L2 sensitivity of the rounded value."""
    lattice = Lattice.for_noise(L2(sensitivity.bound) if isinstance(sensitivity, L1) else sensitivity,
                                multiplier, size, LARGEST_SCALE)  # fmt: skip
    steps, root = lattice.steps_of(sensitivity.bound), 1 + math.isqrt(max(0, size - 1))  # ⌈√d⌉
    if isinstance(sensitivity, LInf):
        moved = steps * Fraction(math.nextafter(math.sqrt(max(1, size)), math.inf) if size > 1 else 1)
    else:
        moved = Fraction(steps + (root if size > 1 else 0))
    scale = above(Fraction(multiplier) * moved)
    if scale > LARGEST_SCALE:
        raise QuietsumError(_TOO_WIDE)
    return lattice, scale


_TOO_WIDE = (
    "the noise is too wide for so many coordinates: nothing would be left to see; release fewer, or allow a larger ε"
)


def _scalar_or_array(values: NDArray[np.float64]) -> Any:
    return float(values) if values.ndim == 0 else values
