"""Shuffled fixed batches: no amplification, and a lower bound that shows why.

An ordinary data loader shuffles once an epoch and cuts the data into batches. Accounting it as Poisson sampling
is the largest error met in practice. Under zero-out neighbours take a record that contributes +C among records that
contribute −C: with B batches an epoch shows B numbers, N(2, σ²) in a random place on one dataset and
N(1, σ²) on the other, N(0, σ²) elsewhere. An attacker who looks at the largest number of each epoch only is one
attacker among many, so what he can tell bounds ε from below (Chua et al. 2024, arXiv 2403.17673, section 4).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr

from quietsum.privacy import events as ev
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["ShuffledEpochs", "shuffled_epochs", "shuffled_epsilon_lower"]

Array = npt.NDArray[np.float64]

_MOST_EPOCHS = 1 << 11
_CELLS = 50_000
_POINTS = 1 << 18


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ShuffledEpochs:
    """``epochs`` epochs of ``batches`` shuffled batches with Gaussian noise, or with another event (None)."""

    noise_multiplier: float | None
    batches: int
    epochs: int

    def lower(self, delta: float) -> float:
        """What an attack shows that these epochs cost at least; 0 for other noise than Gaussian."""
        if self.noise_multiplier is None:
            return 0.0
        return shuffled_epsilon_lower(
            noise_multiplier=self.noise_multiplier, batches=self.batches, epochs=self.epochs, delta=delta
        )

    def warning(self, delta: float) -> str:
        """The sentence a guarantee carries."""
        text = (
            f"{self.epochs} epoch(s) of {self.batches} shuffled batches get no amplification by sampling; "
            "sample with PoissonSampled to have it"
        )
        if self.noise_multiplier is None:
            return text
        return f"{text} (an attack shows that these epochs alone cost at least ε = {self.lower(delta):.3g})"


def shuffled_epochs(event: ev.PrivacyEvent, times: int = 1) -> list[ShuffledEpochs]:
    """Every shuffled training inside ``event``."""
    match event:
        case ev.Shuffled(batches=batches, event=inner) if batches > 1 and times:
            noise = inner.noise_multiplier if isinstance(inner, ev.Gaussian) else None
            return [ShuffledEpochs(noise, batches, times)]
        case ev.Repeated(times=more, event=inner):
            return shuffled_epochs(inner, times * more)
        case ev.Composed(events=parts):
            return [epochs for part in parts for epochs in shuffled_epochs(part, times)]
        case ev.Group(event=inner) | ev.OneInOneOut(event=inner):
            return shuffled_epochs(inner, times)
        case ev.PoissonSampled(rate=rate, event=inner) | ev.FixedSizeSampled(rate=rate, event=inner) if rate:
            found = shuffled_epochs(inner, times)  # the attack knows who took part, so it has no number for a sample
            return found if rate == 1 else [dataclasses.replace(epochs, noise_multiplier=None) for epochs in found]
        case _:
            return []


def shuffled_epsilon_lower(
    *, noise_multiplier: float, batches: int, epochs: int = 1, delta: float, batch_clip: bool = False
) -> float:
    """A lower bound on ε of DP-SGD with shuffled batches, zero-out neighbours.

    With ``batch_clip`` the gradient of each batch (or microbatch) is clipped to C as a whole: then the record's batch
    shows N(2, σ²) on one dataset and N(0, σ²), as all batches do, on the other.

    Each epoch is reduced to its largest batch sum, sorted into cells; what an attacker forgets only lowers ε, so
    every step here is on the safe side: losses of cells are rounded down to a grid, and what the transform may
    have added by rounding is taken off again. 100 epochs of 312 batches at σ = 1 cost at least 18.3, where Poisson
    accounting says 3.17:

    >>> round(shuffled_epsilon_lower(noise_multiplier=1.0, batches=312, epochs=100, delta=1e-5), 1)
    18.3
    """
    return _lower(
        positive("noise_multiplier", noise_multiplier),
        whole_number("batches", batches, 1),
        min(whole_number("epochs", epochs, 1), _MOST_EPOCHS),  # an attacker may also forget whole epochs
        open_probability("delta", delta),
        0.0 if batch_clip else 1.0,
    )


@functools.lru_cache(maxsize=256)
def _lower(sigma: float, batches: int, epochs: int, delta: float, null: float) -> float:
    mass_p, mass_q = _cells(2.0, sigma, batches), _cells(null, sigma, batches)
    kept = mass_p > 1e-3 * delta / epochs / _CELLS
    mass_p, mass_q = mass_p[kept], np.maximum(mass_q[kept], 1e-60)
    loss = _loss(mass_p, mass_q)
    grid = (1e-6 + float(np.ptp(loss))) * epochs / (_POINTS - 2 * epochs)
    # Cells that share a grid point are merged. Their losses then lie near the middles of the grid's intervals, so a
    # grid moved there loses next to nothing by rounding down.
    which, member = np.unique(np.floor(loss / grid).astype(np.int64), return_inverse=True)
    mass_p, mass_q = (np.asarray(np.bincount(member, mass), dtype=np.float64) for mass in (mass_p, mass_q))
    share = _loss(mass_p, mass_q) / grid
    moves = np.quantile(share - which, np.linspace(0, 1, 65))
    move = moves[np.argmin([mass_p @ np.mod(share - by, 1.0) for by in moves])]
    index = np.floor(share - move - 1e-9).astype(np.int64)
    low, high = int(index.min()), int(index.max())
    length = 1 << ((high - low) * epochs).bit_length()
    mass = np.bincount(index - low, weights=mass_p, minlength=length)
    total = np.fft.irfft(np.fft.rfft(mass, length) ** epochs, length) - 1e-17 * (10 + epochs)
    total = np.maximum(total[: (high - low) * epochs + 1], 0.0)
    losses = ((low + move) * epochs + np.arange(total.size)) * grid
    total, losses = total[losses > 0], losses[losses > 0]  # a test at ε ≤ 0 shows nothing
    beyond = np.cumsum(total[::-1])[::-1]  # P(loss ≥ this one)
    weighted = np.cumsum((total * np.exp(-np.minimum(losses, 600.0)))[::-1])[::-1]  # at least Q of the same
    # The test "loss ≥ ℓ" shows δ(ε) ≥ beyond − e^ε · weighted, so ε ≥ ln((beyond − δ) / weighted).
    useful = (beyond > delta) & (weighted > 0)
    if not useful.any():
        return 0.0
    return max(0.0, float(np.max(np.log((beyond[useful] - delta) / weighted[useful]))))


def _loss(mass_p: Array, mass_q: Array) -> Array:
    """log(P/Q) of cells, less the rounding of both masses."""
    loss = np.log(mass_p / mass_q)
    return np.asarray(loss - 1e-12 * (1 + np.abs(loss)))


def _cells(centre: float, sigma: float, batches: int) -> Array:
    """The chance that the largest of N(centre, σ²) and ``batches`` − 1 times N(0, σ²) lies in each of some cells.

    Differences of the law's lower or upper tail, whichever is smaller, so that rare cells keep their digits.
    """
    edges = np.concatenate(([-np.inf], np.linspace(-1.0 - 9.0 * sigma, 2.0 + 9.0 * sigma, _CELLS), [np.inf]))
    log_below = log_ndtr((edges - centre) / sigma) + ((batches - 1) * log_ndtr(edges / sigma) if batches > 1 else 0.0)
    below, above = np.exp(log_below), -np.expm1(log_below)
    return np.asarray(np.where(below[1:] < 0.5, np.diff(below), -np.diff(above)))
