"""Gaussian sums of clipped rows: clip each row, sum exactly, add noise once, and say what that was.

What must agree is one object here. The value that clips also adds the noise and states the event to account for, so
no σ can be typed that differs from the one used. Two modes:

* ``secure`` works on an integer grid of 2²⁴ steps to the clip norm. Rows are clipped, cut to the grid, and their
  integer norm is verified exactly; sums are integers; the noise is a *rounded* normal with exactly its law. Since
  round(x + N) = x + round(N) for integer x, the release is post-processing of the Gaussian mechanism, and
  ``Gaussian(noise_multiplier)`` holds in any dimension, under any sampling. No float's last bits can betray a row
  (Mironov 2012).
* ``fast`` does the same in float64 and is labelled "not floating-point safe".

>>> from quietsum.mechanisms.rng import system_randomness
>>> mechanism = ClippedSum(max_norm=1.0, noise_multiplier=1.1)
>>> rows = mechanism.bound(np.array([[3.0, 4.0], [0.3, np.nan], [0.0, 0.5]]))
>>> (mechanism.sum(rows) * mechanism.grid_unit).round(6)  # the clipped rows, and nothing of the broken one
array([0.6, 1.3])
>>> mechanism.release(mechanism.sum(rows), system_randomness()).dtype
dtype('float64')
>>> mechanism.event()
Gaussian(noise_multiplier=1.1)
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms.clipping import LARGEST_NORM, SMALLEST_NORM, clip_rows, grid_rows
from quietsum.mechanisms.noise.rounded_normal import FAILURE_PER_DRAW
from quietsum.mechanisms.rng import RandomSource
from quietsum.privacy import Gaussian, Neighbours, log_gaussian_delta
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["LEAST_NOISE", "MOST_NOISE", "ClippedSum", "Mode", "Vectors", "least_noise"]

Vectors: TypeAlias = NDArray[np.int64] | NDArray[np.float64]
"""Bounded rows or their sum: integers of the grid in secure mode, float64 in fast mode."""

_FINEST = 24  # bits of the clip norm on the grid
_COARSEST = 8
_WIDEST = 34  # bits of the noise on the grid, beyond which the grid gets coarser
_LARGEST_TOTAL = 1 << 62  # noise of at most 2^39 comes on top, so int64 cannot overflow
MOST_NOISE = 2.0 ** (_WIDEST - _COARSEST)
LEAST_NOISE = 1e-9


class Mode(enum.StrEnum):
    """How the noise is made."""

    SECURE = "secure"
    """Integers throughout; the noise has exactly its law."""
    FAST = "fast"
    """Float64 throughout; quicker, and not floating-point safe."""


@final
@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """Sums of rows clipped to L2 norm ``max_norm``, each coordinate with noise of ``noise_multiplier`` · ``max_norm``.

    Guarantees: bounding a row depends on that row and on public values alone; one row moves the sum by at most
    ``max_norm`` (verified in integers in secure mode); ``event()`` describes the noise really added. The grid
    depends on ``max_norm`` and ``noise_multiplier`` only, never on data or dimension.
    """

    max_norm: float
    noise_multiplier: float
    mode: Mode = Mode.SECURE

    def __post_init__(self) -> None:
        norm = positive("max_norm", self.max_norm, "one row's L2 norm is clipped to it")
        noise = positive("noise_multiplier", self.noise_multiplier, "noise is what makes it private")
        if not SMALLEST_NORM <= norm <= LARGEST_NORM:
            problem = f"lies outside [{SMALLEST_NORM:g}, {LARGEST_NORM:g}]"
            raise InvalidParameter("max_norm", norm, problem, "rescale the rows")
        if noise > MOST_NOISE:
            raise InvalidParameter("noise_multiplier", noise, f"exceeds {MOST_NOISE:g}", "nothing would be left to see")
        if noise < LEAST_NOISE:
            raise InvalidParameter("noise_multiplier", noise, f"is below {LEAST_NOISE:g}", "it would protect no one")
        try:
            mode = Mode(self.mode)
        except ValueError:
            raise InvalidParameter("mode", self.mode, "is unknown", "choose 'secure' or 'fast'") from None
        for name, value in (("max_norm", norm), ("noise_multiplier", noise), ("mode", mode)):
            object.__setattr__(self, name, value)

    @classmethod
    def calibrated(
        cls,
        *,
        epsilon: float,
        delta: float,
        max_norm: float,
        mode: Mode = Mode.SECURE,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
    ) -> ClippedSum:
        """The least noise with which one release is (ε, δ)-private (Balle, Wang 2018, Theorem 8), rounded up.

        A billionth of δ is left for what :meth:`failure` charges.

        >>> round(ClippedSum.calibrated(epsilon=1.0, delta=1e-5, max_norm=1.0).noise_multiplier, 4)
        3.7306
        """
        noise = least_noise(positive("epsilon", epsilon), open_probability("delta", delta))
        if neighbours is Neighbours.REPLACE_ONE:  # one row becomes another: the sum moves twice as far
            noise *= 2
        return cls(max_norm=max_norm, noise_multiplier=noise, mode=mode)

    # ------------------------------------------------------------------------------------------------ the grid

    @property
    def grid_norm(self) -> int:
        """The clip norm in grid units: 2²⁴, less for noise multipliers above 2¹⁰."""
        bits = _WIDEST - math.ceil(math.log2(self.noise_multiplier))
        return 1 << max(_COARSEST, min(_FINEST, bits))

    @property
    def grid_unit(self) -> float:
        """The width of the grid in the rows' own units: max_norm / grid_norm, exactly."""
        return self.max_norm / self.grid_norm

    @property
    def grid_scale(self) -> float:
        """The noise's standard deviation in grid units: noise_multiplier · grid_norm, exactly."""
        return self.noise_multiplier * self.grid_norm

    # --------------------------------------------------------------------------------------- clip, sum, release

    def bound(self, vectors: NDArray[np.floating]) -> Vectors:
        """Every row (or the one vector) clipped to ``max_norm``; a row with a NaN or an infinity becomes zero.

        Guarantees: in secure mode the exact integer norm of every returned row is at most ``grid_norm``, and a
        row's result is the same bits beside any other rows.
        """
        rows = _rows(vectors)
        if self.mode is Mode.FAST:
            bounded: Vectors = clip_rows(rows, self.max_norm)
        else:
            bounded = grid_rows(rows, self.max_norm, self.grid_norm)
        return bounded.reshape(np.shape(vectors))

    def sum(self, bounded: Vectors) -> Vectors:
        """The sum of bounded rows (zeros for no rows), an exact integer one in secure mode."""
        bounded = self._check("bounded", bounded)
        if bounded.ndim not in (1, 2):
            raise InvalidParameter("bounded", bounded.shape, "is not a shape of rows", "pass what bound() returned")
        if bounded.dtype == np.int64 and bounded.size:
            if max(int(bounded.max()), -int(bounded.min())) > self.grid_norm:
                problem = "exceeds the norm it should be bounded to"
                raise InvalidParameter("bounded", "a row", problem, "pass what bound() returned")
            self.check_rows(bounded.shape[0])
        total: Vectors = bounded.sum(axis=0) if bounded.ndim == 2 else bounded.copy()
        return total

    def check_rows(self, rows: int) -> None:
        """:class:`~quietsum.errors.QuietsumError` where a sum of so many rows may leave the 64-bit grid."""
        _refuse_overflow(self.grid_norm * rows)

    def release(self, total: Vectors, rng: RandomSource) -> NDArray[np.float64]:
        """The noisy sum, in the rows' own units. It never divides: only a public constant may."""
        total = self._check("total", total)
        if total.dtype == np.float64:
            return np.asarray(total + rng.normals(total.shape) * (self.noise_multiplier * self.max_norm))
        if total.size:
            _refuse_overflow(max(int(total.max()), -int(total.min())))
        noisy = total + rng.rounded_normals(self.grid_scale, total.shape)
        return noisy.astype(np.float64) * self.grid_unit

    # ------------------------------------------------------------------------------------------ what it costs

    def event(self) -> Gaussian:
        """The event to account for: the noise really used over the norm really enforced."""
        return Gaussian(noise_multiplier=self.grid_scale / self.grid_norm)

    def failure(self, coordinates: int) -> float:
        """Total variation distance of that many noise draws from the ideal law, to be charged to δ.

        Fast mode knows no such bound; its label says so, and this returns 0.

        >>> ClippedSum(max_norm=1.0, noise_multiplier=1.0).failure(10**6) < 1e-32
        True
        """
        count = whole_number("coordinates", coordinates)
        return min(1.0, count * FAILURE_PER_DRAW) if self.mode is Mode.SECURE else 0.0

    @property
    def label(self) -> str:
        """What a guarantee must say beside its figure; empty for secure mode."""
        return "" if self.mode is Mode.SECURE else "not floating-point safe"

    def _check(self, name: str, values: Vectors) -> Vectors:
        wanted = np.dtype(np.int64 if self.mode is Mode.SECURE else np.float64)
        given = getattr(values, "dtype", type(values).__name__)
        if given != wanted:
            problem = f"is not the {wanted} of {self.mode} mode"
            raise InvalidParameter(f"{name}.dtype", str(given), problem, "pass what bound() and sum() returned")
        if values.dtype == np.float64 and not np.isfinite(values).all():
            raise InvalidParameter(name, "a non-finite number", "cannot be released", "bound() every row first")
        return values


def _rows(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """The vectors as contiguous float64 rows."""
    given = np.asarray(vectors)
    if given.dtype.kind not in "fiu":
        raise InvalidParameter("vectors.dtype", str(given.dtype), "holds no real numbers", "pass float64 rows")
    if given.ndim not in (1, 2):
        raise InvalidParameter("vectors.shape", given.shape, "is neither (rows, coordinates) nor (coordinates,)")
    with np.errstate(over="ignore"):  # a longdouble beyond float64 becomes infinite, and its row zero
        return np.ascontiguousarray(np.atleast_2d(given), dtype=np.float64)


def _refuse_overflow(largest: int) -> None:
    if largest > _LARGEST_TOTAL:
        raise QuietsumError(
            "a sum of this many rows may leave the 64-bit grid, and a sum that wraps around has no sensitivity; "
            "sum fewer rows at a time"
        )


def least_noise(epsilon: float, delta: float) -> float:
    """The least noise multiplier whose δ(ε) is within ``delta``, by bisection kept on the safe side."""
    target = math.log(delta) - 1e-9
    low, high = LEAST_NOISE, MOST_NOISE / 2
    if log_gaussian_delta(1 / high, epsilon) > target:
        raise QuietsumError(f"no noise up to {high:g} reaches ε = {epsilon:g} at δ = {delta:g}; allow a larger ε or δ")
    while high - low > 1e-12 * high:
        middle = math.sqrt(low * high) if high > 2 * low else (low + high) / 2
        low, high = (middle, high) if log_gaussian_delta(1 / middle, epsilon) > target else (low, middle)
    return high
