"""Shuffled fixed batches: no amplification, and a lower bound that shows why.

An ordinary data loader shuffles once an epoch and cuts the data into batches. Accounting it as Poisson sampling
is the largest error met in practice. Under zero-out neighbours take a record that contributes +C among records that
contribute −C: with B batches an epoch shows B numbers, N(2, σ²) in a random place on one dataset and
N(1, σ²) on the other, N(0, σ²) elsewhere. An attacker who looks at the largest number of each epoch only is one
attacker among many, so what he can tell bounds ε from below (Chua et al. 2024, arXiv 2403.17673, section 4).
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from scipy.special import log_ndtr

from quietsum.errors import open_probability, positive, whole_number
from quietsum.privacy import events as ev

__all__ = ["ShuffledEpochs", "shuffled_epochs", "shuffled_epsilon_lower"]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ShuffledEpochs:
    """``epochs`` epochs of ``batches`` shuffled batches with Gaussian noise, or with another event (None)."""

    noise_multiplier: float | None
    batches: int
    epochs: int

    def warning(self, delta: float) -> str:
        """The sentence a guarantee carries."""
        text = (
            f"{self.epochs} epoch(s) of {self.batches} shuffled batches get no amplification by sampling; "
            "sample with PoissonSampled to have it"
        )
        if self.noise_multiplier is None:
            return text
        lower = shuffled_epsilon_lower(
            noise_multiplier=self.noise_multiplier, batches=self.batches, epochs=self.epochs, delta=delta
        )
        return f"{text} (an attack shows that these epochs alone cost at least ε = {lower:.3g})"


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
        case ev.PoissonSampled(event=inner) | ev.FixedSizeSampled(event=inner) | ev.Group(event=inner):
            return shuffled_epochs(inner, times)
        case _:
            return []


def shuffled_epsilon_lower(*, noise_multiplier: float, batches: int, epochs: int = 1, delta: float) -> float:
    """A lower bound on ε of DP-SGD with shuffled batches, zero-out neighbours.

    Each epoch is reduced to its largest batch sum, sorted into cells; whatever an attacker forgets only lowers ε, so
    every step here is on the safe side: losses of cells are rounded down to a grid, and what the transform may
    have added by rounding is taken off again. 100 epochs of 312 batches at σ = 1 cost at least 18.3, where Poisson
    accounting says 3.17:

    >>> round(shuffled_epsilon_lower(noise_multiplier=1.0, batches=312, epochs=100, delta=1e-5), 1)
    18.3
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    batches = whole_number("batches", batches, 1)
    epochs = whole_number("epochs", epochs, 1)
    delta = open_probability("delta", delta)
    edges = np.concatenate(([-np.inf], np.linspace(-1.0, 2.0 + 9.0 * sigma, 600), [np.inf]))
    others = (batches - 1) * log_ndtr(edges / sigma)
    # The chance that the largest sum lies in each cell, on the two datasets; far cells from the upper tail.
    cells = [np.diff(np.exp(log_ndtr((edges - centre) / sigma) + others)) for centre in (2.0, 1.0)]
    kept = (cells[0] > 1e-15) & (cells[1] > 1e-15)
    mass_p, mass_q = cells[0][kept], cells[1][kept]
    loss = np.log(mass_p / mass_q)
    grid = 2e-4 if epochs <= 1000 else 0.2 / epochs
    index = np.floor(loss / grid).astype(np.int64)
    low, high = int(index.min()), int(index.max())
    length = 1 << math.ceil(math.log2((high - low) * epochs + 1))
    if length > 1 << 22:  # coarser cells, still on the safe side
        grid *= length / (1 << 22)
        index = np.floor(loss / grid).astype(np.int64)
        low, high = int(index.min()), int(index.max())
        length = 1 << math.ceil(math.log2((high - low) * epochs + 1))
    mass = np.bincount(index - low, weights=mass_p, minlength=length)
    total = np.fft.irfft(np.fft.rfft(mass) ** epochs, length) - 1e-15
    total = np.maximum(total[: (high - low) * epochs + 1], 0.0)
    losses = (low * epochs + np.arange(total.size)) * grid
    beyond = np.cumsum(total[::-1])[::-1]  # P(loss ≥ this one)
    weighted = np.cumsum((total * np.exp(-np.minimum(np.maximum(losses, -600.0), 600.0)))[::-1])[::-1]
    # The test "loss ≥ ℓ" shows δ(ε) ≥ beyond − e^ε · weighted, so ε ≥ ln((beyond − δ) / weighted).
    useful = (beyond > delta) & (weighted > 0)
    if not useful.any():
        return 0.0
    return max(0.0, float(np.max(np.log((beyond[useful] - delta) / weighted[useful]))))
