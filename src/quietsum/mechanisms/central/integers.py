"""Noise on whole numbers: discrete Laplace, discrete Gaussian and Skellam, which keep counts counts.

>>> noisy = DiscreteLaplaceMechanism(epsilon=1, sensitivity=1).release(42)
>>> isinstance(noisy, int)
True
>>> DiscreteGaussianMechanism(epsilon=1, delta=1e-6, sensitivity=2).event()
DiscreteGaussian(sigma=8.45..., sensitivity=2.0, dimension=1)

Values are integers already, so there is nothing to round. Beyond ±2⁶² they are clamped, which moves no two of them
apart.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms.central.additive import check_noise, target
from quietsum.mechanisms.central.lattice import above, integers
from quietsum.mechanisms.central.sensitivity import L1, L2, LInf, Norm, Sensitivity, in_l1, in_l2
from quietsum.mechanisms.gaussian import MOST_NOISE, least_noise
from quietsum.mechanisms.noise.discrete_gaussian import DiscreteGaussianNoise
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise
from quietsum.mechanisms.noise.rejection import WideGaussian
from quietsum.mechanisms.noise.skellam import SkellamNoise
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import DiscreteGaussian, DiscreteLaplace, ExactAccountant, PrivacyEvent, RenyiAccountant, Skellam
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["DiscreteGaussianMechanism", "DiscreteLaplaceMechanism", "SkellamMechanism"]

_TABLE = 64.0  # of sigma; beyond it draws need no table
_LARGEST_SIGMA = 2.0**36
_SPARE = 1e-9  # of δ, for what a sampler's law is off
_WHOLE = "count in whole steps, or use LaplaceMechanism or GaussianMechanism"


@final
@dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceMechanism:
    """Integer noise with P(k) ∝ exp(−|k| ε / sensitivity): the geometric mechanism (Ghosh et al. 2012), for counts.

    ``sensitivity`` is a whole number in the L1 norm: a plain one, ``L1(...)``, or ``LInf(...)`` with the ``dimension``
    that it counts for. The shape of what is released is public.

    Guarantees: ε-differential privacy with δ = ``failure(coordinates)``; the law is exact but for that.
    """

    epsilon: float
    sensitivity: Sensitivity
    dimension: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", target("epsilon", self.epsilon))
        norm = in_l1(self.sensitivity)
        whole_number("sensitivity", norm.bound, 1, _WHOLE)
        object.__setattr__(self, "dimension", whole_number("dimension", self.dimension, 1))
        object.__setattr__(self, "sensitivity", norm)
        check_noise("epsilon", self.epsilon, 1 / self.epsilon)
        _ = self._law  # refuses what is too wide

    @property
    def scale(self) -> float:
        """The noise's scale, sensitivity / ε, rounded up."""
        return above(Fraction(self._moved) / Fraction(self.epsilon))

    @overload
    def release(self, value: int, rng: RandomSource | None = None) -> int: ...
    @overload
    def release(self, value: ArrayLike, rng: RandomSource | None = None) -> NDArray[np.int64]: ...
    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        """``value`` with noise: an int for an int, an array for an array. If omitted, ``rng`` is the system's."""
        return _release(value, self._law.sample, self.dimension if isinstance(self.sensitivity, LInf) else None, rng)

    def event(self) -> DiscreteLaplace:
        """The event to account for, of the whole value."""
        return DiscreteLaplace(scale=self.scale, sensitivity=self._moved)

    def failure(self, coordinates: int = 1) -> float:
        """Total variation distance of that many draws from the ideal law, to be charged to δ."""
        return min(1.0, whole_number("coordinates", coordinates) * self._law.failure)

    @property
    def _moved(self) -> int:
        """How far one unit moves the value in the L1 norm."""
        return int(_bound(self.sensitivity)) * (self.dimension if isinstance(self.sensitivity, LInf) else 1)

    @property
    def _law(self) -> DiscreteLaplaceNoise:
        return DiscreteLaplaceNoise(scale=self.scale)


@final
@dataclass(frozen=True, kw_only=True)
class DiscreteGaussianMechanism:
    """Integer noise with P(k) ∝ exp(−k² / 2σ²) (Canonne, Kamath, Steinke 2020): the least that is (ε, δ)-private.

    One number is calibrated by the exact accountant, ``dimension`` of them by Rényi bounds. State ``sigma`` instead of
    ε and δ to choose the noise yourself. ``sensitivity`` bounds the move of an integer vector in the L2 norm: a plain
    number, ``L2(...)``, ``L1(...)``, or ``LInf(...)``.

    Guarantees: ``event()`` describes the noise really added; ``failure(coordinates)`` is inside δ where δ was given.
    """

    epsilon: float | None = None
    delta: float | None = None
    sensitivity: Sensitivity
    sigma: float | None = None
    dimension: int = 1

    def __post_init__(self) -> None:
        _store_target(self, "sigma")
        dimension = whole_number("dimension", self.dimension, 1)
        object.__setattr__(self, "dimension", dimension)
        object.__setattr__(self, "sensitivity", _integer_l2(self.sensitivity, dimension))
        if self._sigma > _LARGEST_SIGMA:
            raise InvalidParameter("sigma", self._sigma, f"exceeds {_LARGEST_SIGMA:g}", "count in coarser steps")

    @functools.cached_property
    def _sigma(self) -> float:
        if self.sigma is not None:
            return self.sigma
        bound = _bound(self.sensitivity)
        return bound * _least(lambda noise: self._event(noise * bound), self.epsilon, self.delta, self.dimension == 1)

    @property
    def scale(self) -> float:
        """σ, nearly the standard deviation."""
        return self._sigma

    @overload
    def release(self, value: int, rng: RandomSource | None = None) -> int: ...
    @overload
    def release(self, value: ArrayLike, rng: RandomSource | None = None) -> NDArray[np.int64]: ...
    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        """``value`` with noise: an int for an int, an array for an array. If omitted, ``rng`` is the system's."""
        return _release(value, self._law.sample, self.dimension, rng)

    def event(self) -> DiscreteGaussian:
        """The event to account for, of the whole value."""
        return self._event(self._sigma)

    def failure(self, coordinates: int | None = None) -> float:
        """Total variation distance of that many draws (``dimension`` if omitted), to be charged to δ."""
        count = self.dimension if coordinates is None else whole_number("coordinates", coordinates)
        return min(1.0, count * self._law.failure)

    def _event(self, sigma: float) -> DiscreteGaussian:
        return DiscreteGaussian(sigma=sigma, sensitivity=_bound(self.sensitivity), dimension=self.dimension)

    @property
    def _law(self) -> DiscreteGaussianNoise | WideGaussian:
        return DiscreteGaussianNoise(sigma=self._sigma) if self._sigma < _TABLE else WideGaussian(self._sigma)


@final
@dataclass(frozen=True, kw_only=True)
class SkellamMechanism:
    """Skellam noise, the difference of two Poisson draws, on whole numbers (Agarwal, Kairouz, Liu 2021).

    Sums of independent Skellam draws are Skellam again, which is why several parties can make it together
    (:mod:`quietsum.mechanisms.distributed`); alone, a discrete Gaussian does as well. Calibrated by Rényi bounds. State
    ``variance`` instead of ε and δ to choose the noise yourself. ``sensitivity`` is as for the discrete Gaussian; what
    an integer vector of that length can have in the L1 norm is worked out: at most its square, and √d times it.

    Guarantees: ``event()`` describes the noise really added; ``failure(coordinates)`` is inside δ where δ was given.
    """

    epsilon: float | None = None
    delta: float | None = None
    sensitivity: Sensitivity
    variance: float | None = None
    dimension: int = 1

    def __post_init__(self) -> None:
        _store_target(self, "variance")
        dimension = whole_number("dimension", self.dimension, 1)
        object.__setattr__(self, "dimension", dimension)
        norm = in_l2(self.sensitivity)
        object.__setattr__(self, "sensitivity", norm if isinstance(norm, L1) else _integer_l2(norm, dimension))
        _ = self._law  # refuses what is too wide

    @functools.cached_property
    def _variance(self) -> float:
        if self.variance is not None:
            return self.variance
        bound = _bound(self.sensitivity)
        sigma = bound * _least(lambda noise: self._event((noise * bound) ** 2), self.epsilon, self.delta, False)
        return sigma * sigma

    @property
    def scale(self) -> float:
        """The standard deviation."""
        return math.sqrt(self._variance)

    @overload
    def release(self, value: int, rng: RandomSource | None = None) -> int: ...
    @overload
    def release(self, value: ArrayLike, rng: RandomSource | None = None) -> NDArray[np.int64]: ...
    def release(self, value: Any, rng: RandomSource | None = None) -> Any:
        """``value`` with noise: an int for an int, an array for an array. If omitted, ``rng`` is the system's."""
        return _release(value, self._law.sample, self.dimension, rng)

    def event(self) -> Skellam:
        """The event to account for, of the whole value."""
        return self._event(self._variance)

    def failure(self, coordinates: int | None = None) -> float:
        """Total variation distance of that many draws (``dimension`` if omitted), to be charged to δ."""
        count = self.dimension if coordinates is None else whole_number("coordinates", coordinates)
        return min(1.0, count * self._law.failure)

    def _event(self, variance: float) -> Skellam:
        bound = _bound(self.sensitivity)
        l1 = bound if isinstance(self.sensitivity, L1) else min(bound * bound, bound * math.sqrt(self.dimension))
        return Skellam(variance=variance, l1_sensitivity=max(l1, bound), l2_sensitivity=bound, dimension=self.dimension)

    @property
    def _law(self) -> SkellamNoise:
        return SkellamNoise(variance=self._variance)


# ------------------------------------------------------------------------------------------- what they share


def _bound(sensitivity: Sensitivity) -> float:
    return sensitivity.bound if isinstance(sensitivity, L1 | L2 | LInf) else sensitivity


def _integer_l2(sensitivity: Sensitivity, dimension: int) -> L2:
    """The L2 bound of an integer vector: at least 1, and for one number a whole one."""
    norm: Norm = in_l2(sensitivity)
    bound = norm.bound
    if isinstance(norm, LInf):
        bound = whole_number("sensitivity", bound, 1, _WHOLE) * (
            math.nextafter(math.sqrt(dimension), math.inf) if dimension > 1 else 1.0
        )
    if dimension == 1 or isinstance(norm, L1):
        bound = whole_number("sensitivity", bound, 1, _WHOLE)
    if bound < 1:
        raise InvalidParameter("sensitivity", bound, "is less than one step of an integer vector", _WHOLE)
    return L2(bound)


def _store_target(mechanism: DiscreteGaussianMechanism | SkellamMechanism, noise: str) -> None:
    """Either ε and δ or the noise itself, never both."""
    stated = getattr(mechanism, noise)
    if stated is not None:
        if mechanism.epsilon is not None or mechanism.delta is not None:
            remedy = "state ε and δ, from which the noise follows, or the noise alone"
            raise InvalidParameter(noise, stated, "stands beside a target", remedy)
        object.__setattr__(mechanism, noise, positive(noise, stated, "noise is what makes it private"))
        return
    for name in ("epsilon", "delta"):
        if getattr(mechanism, name) is None:
            remedy = "this noise needs both; for a pure ε use DiscreteLaplaceMechanism"
            raise InvalidParameter(name, None, "is missing", remedy)
    object.__setattr__(mechanism, "epsilon", target("epsilon", mechanism.epsilon))
    object.__setattr__(mechanism, "delta", open_probability("delta", mechanism.delta))


def _least(event: Callable[[float], PrivacyEvent], epsilon: float | None, delta: float | None, exact: bool) -> float:
    """The least noise over the sensitivity with which ``event`` is within (ε, δ), to a ten-thousandth, from above."""
    assert epsilon is not None and delta is not None
    target = delta * (1 - _SPARE)

    def fits(noise: float) -> bool:
        accountant = ExactAccountant() if exact else RenyiAccountant()
        return accountant.compose(event(noise)).epsilon(delta=target).epsilon <= epsilon

    near = least_noise(epsilon, delta)  # the Gaussian's, which all these laws come close to
    low, high = near / 1.002, near * 1.002
    while not fits(high):
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise QuietsumError(
                f"no noise of this law is known to reach ε = {epsilon:g} at δ = {delta:g}; allow a larger ε or δ"
            )
    while low > high / 64 and fits(low):
        low, high = low / 2, low
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _release(
    value: object, sample: Callable[[Any, RandomSource], NDArray[np.int64]], size: int | None,
    rng: RandomSource | None,
) -> Any:  # fmt: skip
    given, single = integers(value)
    if size is not None and given.size != size:
        raise InvalidParameter(
            "dimension", size, f"is not the {given.size} coordinates of the value",
            f"make the mechanism with dimension={given.size}, since its noise or its event depends on it",
        )  # fmt: skip
    noisy = given + sample(given.shape, choose_source(rng))
    return int(noisy) if single else np.asarray(noisy)
