"""Sums of grid losses: tilt, transform, multiply, transform back, and say what may have gone wrong.

The law of a sum of losses is a convolution, hence a product of Fourier transforms: each distinct law costs one
transform, its count only multiplies a logarithm, a question costs one inverse transform. Three things make the result
a bound:

* *Tilting.* Masses are multiplied by e^{cℓ} before the transform. Rounding error is relative to the largest tilted
  mass, which sits where the question is asked, so a δ of 1e-30 is as accurate as one of 1e-3.
* *Wrapping.* A transform of N points is periodic. Mass beyond the window re-appears inside it; that only adds to δ, so
  an upper bound pays merely for P(S beyond the window), a lower bound for all that may have come in. Both are
  Chernoff bounds with the laws' own moments.
* *Rounding.* The error of all tilted masses together is taken to be 4 u (T + log₂ N) in the 2-norm, relative to the
  masses (u the unit round-off): T factors, one transform forth and one back, of which measured errors are a small
  part. This is an allowance, not a proof.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from quietsum.privacy.pld.grid import GridPmf
from quietsum.privacy.pld.losses import Array

__all__ = ["LossSum", "sum_losses"]

Transform = npt.NDArray[np.complex128]

_UNIT_ROUNDOFF = 2.0**-53


@final
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LossSum:
    """A sum of independent losses on a window of the grid.

    ``tilted[j]`` · e^{log_scale − tilt·loss} is the mass at loss = start + j · spacing. ``log_lost`` bounds the mass
    above the window; ``log_stray`` and ``log_rounding`` bound what wrapping and rounding did to δ(ε), each
    as log of a factor that goes with e^{−tilt·ε}. ``infinite`` is the mass at +∞, ``top`` the largest
    finite loss. Nothing is known below ``floor``.
    """

    start: float
    floor: float
    spacing: float
    tilt: float
    tilted: Array
    log_scale: float
    log_lost: float
    log_stray: float
    log_rounding: float
    infinite: float
    top: float

    def upper_delta(self, epsilon: float) -> float:
        """An upper bound on δ(ε)."""
        error = _exp(self.log_rounding - self.tilt * epsilon) + _exp(self.log_lost)
        if epsilon >= self.top:
            return self.infinite
        if epsilon < self.floor:
            return 1.0
        return min(1.0, self._delta(epsilon) + self.infinite + error)

    def lower_delta(self, epsilon: float) -> float:
        """A lower bound on δ(ε), as far as this law of losses is one."""
        error = np.logaddexp(self.log_stray, self.log_rounding) - self.tilt * epsilon
        return max(0.0, self._delta(max(epsilon, self.floor)) + self.infinite - _exp(float(error)))

    def upper_epsilon(self, delta: float) -> float:
        """The smallest ε ≥ 0 above which upper_delta(ε) ≤ delta, or the floor where that is larger; or ∞."""
        if delta < self.infinite:
            return math.inf
        spare = delta - self.infinite - _exp(self.log_lost)
        found = self._solve(math.log(spare), self.log_rounding, 1.0) if spare > 0 else math.inf
        return max(0.0, min(max(found, self.floor), self.top))

    def lower_epsilon(self, delta: float) -> float:
        """The largest ε ≥ 0 of the window at which lower_delta(ε) ≥ delta; 0 where there is none."""
        if delta <= self.infinite:
            return math.inf if self.infinite > 0 else 0.0
        log_error = float(np.logaddexp(self.log_stray, self.log_rounding))
        return max(0.0, self._solve(math.log(delta - self.infinite), log_error, -1.0))

    def _delta(self, epsilon: float) -> float:
        first = max(0, math.floor((epsilon - self.start) / self.spacing))
        loss = self.start + self.spacing * np.arange(first, len(self.tilted))
        share = -np.expm1(np.minimum(epsilon - loss, 0.0))
        return float(np.sum(self.tilted[first:] * share * np.exp(np.minimum(self.log_scale - self.tilt * loss, 700.0))))

    def _solve(self, log_delta: float, log_error: float, sign: float) -> float:
        """The largest ε with Σ mass · (1 − e^{ε−ℓ})₊ + sign · e^{log_error − tilt·ε} > δ, everything divided by δ.

        Sums from the top give the left side at all grid points at once; inside a cell the first part is linear in e^ε.
        """
        # δ(ε) ≤ e^{log_scale − tilt·ε}, so the answer lies below ``ceiling``; far below it numbers would overflow
        ceiling = (self.log_scale - log_delta) / self.tilt
        lowest = max(0.0, self.floor, ceiling - 300 / self.tilt)
        loss = self.start + self.spacing * np.arange(len(self.tilted))
        loss = loss[max(0, math.floor((lowest - self.start) / self.spacing)) :]
        if not len(loss):
            return lowest if sign > 0 else 0.0
        mass = self.tilted[len(self.tilted) - len(loss) :] * np.exp(np.minimum(self.tilt * (ceiling - loss), 350.0))
        above = np.append(np.cumsum(mass[::-1])[::-1], 0.0)
        error = np.exp(np.minimum(log_error - log_delta - self.tilt * loss, 350.0))
        enough = np.flatnonzero(above[:-1] + error > 1)  # the answer is no larger than the last of these
        if not len(enough):
            return float(loss[0]) if sign > 0 else 0.0
        anchor = float(loss[enough[-1]])
        near = max(0, int(enough[-1]) - math.ceil(300 / self.spacing))
        loss, mass, above, error = loss[near:], mass[near:], above[near:], error[near:]
        scaled = np.append(np.cumsum((mass * np.exp(anchor - loss))[::-1])[::-1], 0.0)
        value = above[1:] - scaled[1:] * np.exp(np.minimum(loss - anchor, 700.0)) + sign * error
        beyond = np.flatnonzero(value > 1)
        last = int(beyond[-1]) if len(beyond) else -1
        # the error falls within a cell, so a lower bound may reach δ inside the next one although not at its left end
        for cell in (last + 1, last) if sign < 0 else (last,):
            if 0 <= cell < len(loss):
                totals = float(above[cell + 1]), float(scaled[cell + 1])
                found = self._inside(float(loss[cell]), *totals, anchor, log_error - log_delta, sign)
                if found is not None:
                    return found
        return float(loss[0]) if sign > 0 else 0.0

    def _inside(
        self, left: float, total: float, scaled: float, anchor: float, log_error: float, sign: float
    ) -> float | None:
        """The largest ε of a cell with total − scaled·e^{ε−anchor} + sign·e^{log_error − tilt·ε} > 1, or None."""

        def reaches(epsilon: float) -> bool:
            error = _exp(log_error - self.tilt * epsilon)
            return total - scaled * _exp(epsilon - anchor) + sign * error > 1

        low, high = left, left + self.spacing
        if sign < 0 and scaled > 0:  # concave in ε: begin at its peak
            peak = (math.log(self.tilt / scaled) + log_error + anchor) / (1 + self.tilt)
            low = min(max(low, peak), high)
        if not reaches(low):
            return None
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if reaches(middle) else (low, middle)
        return high if sign > 0 else low


def sum_losses(
    laws: Sequence[tuple[GridPmf, int]],
    *,
    tilt: float,
    orders: tuple[float, float],
    low: float,
    points: int,
    floor: float = -math.inf,
) -> LossSum:
    """The sum of all laws, each as often as its count says, on a window of ``points`` grid points from about ``low``.

    ``orders``, one above the tilt and one below it, say which moments bound what lies beyond the window best. With a
    ``floor``, the answer holds above it only: where T losses of at most floor / T cannot get, one large loss must help,
    and the sum without the other cases is computed by itself, lest rounding errors of the bulk cover a faint tail.
    """
    spacing = laws[0][0].spacing
    offset = math.fsum(count * law.offset for law, count in laws)
    start = math.floor((low - offset) / spacing)
    steps = sum(count for _, count in laws)
    log_scale = math.fsum(count * law.log_moment(tilt) for law, count in laws)
    tilted = np.roll(np.fft.irfft(_transform(laws, tilt, points, floor / steps), points), -(start % points))
    # Cauchy–Schwarz on Σ error(ℓ) e^{−cℓ} (1 − e^{ε−ℓ})₊: the squares of the last factors sum to at most their integral
    # over the spacing plus the largest of them
    kernel = min(float(points), 1 / (2 * tilt * (2 * tilt + 1) * (tilt + 1) * spacing) + 1)
    error = 4 * _UNIT_ROUNDOFF * (steps + math.log2(points)) * float(np.linalg.norm(tilted)) * math.sqrt(kernel)
    begin = offset + spacing * start
    log_lost, log_stray = _beyond(laws, tilt, orders, begin - spacing, begin + spacing * points)
    skipped = max(0, math.floor((floor - begin) / spacing)) if floor > begin else 0
    finite = math.fsum(count * math.log1p(-law.infinite) if law.infinite < 1 else -math.inf for law, count in laws)
    return LossSum(
        start=begin + spacing * skipped,
        floor=max(floor, begin),
        spacing=spacing,
        tilt=tilt,
        tilted=np.maximum(tilted[skipped:], 0.0),
        log_scale=log_scale,
        log_lost=log_lost,
        log_stray=log_stray,
        log_rounding=log_scale + math.log(max(error, 5e-324)),
        infinite=abs(math.expm1(finite)),
        top=math.fsum(count * float(law.loss.max()) for law, count in laws),
    )


def _transform(laws: Sequence[tuple[GridPmf, int]], tilt: float, points: int, small: float) -> Transform:
    """The transform of the tilted sum; without the sums of losses of at most ``small`` each, unless that is −∞.

    With B for the small losses and t for the others, Π (B + t)^T − Π B^T = Π B^T · (e^{Σ T log(1 + t/B)} − 1), whose
    error is relative to t.
    """
    whole = np.zeros(points // 2 + 1, dtype=np.complex128)
    bulk, rise = whole.copy(), whole.copy()
    for law, count in laws:
        weights = np.exp(law.log_mass + tilt * law.loss - law.log_moment(tilt))
        large = law.loss > small
        tail = np.fft.rfft(np.bincount(law.index[large] % points, weights[large], points))
        if small == -math.inf:
            whole += count * _log(tail)
            continue
        base = np.fft.rfft(np.bincount(law.index[~large] % points, weights[~large], points))
        whole += count * _log(base + tail)
        bulk += count * _log(base)
        with np.errstate(all="ignore"):
            ratio = tail / base
            real, imaginary = ratio.real, ratio.imag
            rise += count * (0.5 * np.log1p(real * (2 + real) + imaginary**2) + 1j * np.arctan2(imaginary, 1 + real))
    if small == -math.inf:
        return np.exp(whole)
    with np.errstate(all="ignore"):
        grown = np.expm1(rise.real) * np.cos(rise.imag) - 2 * np.sin(rise.imag / 2) ** 2
        difference = np.exp(bulk) * (grown + 1j * np.exp(rise.real) * np.sin(rise.imag))
    return np.where(np.abs(rise) < 1, difference, np.exp(whole) - np.exp(bulk))


def _log(transform: Transform) -> Transform:
    """Its logarithm; a zero would become NaN once multiplied by a count."""
    return np.log(np.where(transform == 0, 1e-300, transform))


def _beyond(
    laws: Sequence[tuple[GridPmf, int]], tilt: float, orders: tuple[float, float], low: float, high: float
) -> tuple[float, float]:
    """Chernoff bounds on log P(S ≥ high) and log E[e^{tilt·S}; S ≤ low or S ≥ high], from moments near ``orders``."""
    log_lost = log_up = log_down = math.inf
    for stretch in (0.5, 0.7, 1.0, 1.4, 2.0):
        up, down = (tilt + stretch * (order - tilt) for order in orders)
        moment = math.fsum(count * law.log_moment(up) for law, count in laws)
        log_lost = min(log_lost, moment - up * high)
        log_up = min(log_up, moment - (up - tilt) * high)
        moment = math.fsum(count * law.log_moment(down) for law, count in laws)
        log_down = min(log_down, moment + (tilt - down) * low)
    if math.fsum(count * float(law.loss.max()) for law, count in laws) < high:
        log_lost = log_up = -math.inf
    if math.fsum(count * float(law.loss.min()) for law, count in laws) > low:
        log_down = -math.inf
    return min(0.0, log_lost), float(np.logaddexp(log_up, log_down))


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))
