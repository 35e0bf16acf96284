"""What can an attacker gain who steers the other records of fixed-size batches? The figures of decision 3.

One record is +C or −C, all others contribute y·C, and the attacker may choose y anew after each release. With V_t(u)
the largest hockey-stick divergence at log-odds u over t more steps, V_{t+1}(u) = max_y E_P[V_t(u − L_y)]: dynamic
programming on a grid of u, losses split between neighbouring grid points so that their means are kept. ``reported``
is what ``FixedSizeSampled`` composes to, ``fixed others`` the same by this program (the difference is its own error),
``steered`` the attacker's best.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve
from scipy.special import ndtr

from quietsum import ExactAccountant, FixedSizeSampled, Gaussian, Neighbours

Array = npt.NDArray[np.float64]
REACH = 30.0  # of the grid of log-odds
FARTHEST = 20.0  # loss of a single step


def step_law(noise: float, rate: float, others: float, spacing: float) -> Array:
    """The law of one step's loss on the grid."""
    x = np.linspace(-1 - 14 * noise, 1 + 14 * noise, 400_001)
    absent, plus, minus = (np.diff(ndtr((x - centre) / noise)) for centre in (others, 1.0, -1.0))
    p, q = (1 - rate) * absent + rate * plus, (1 - rate) * absent + rate * minus
    kept = (p > 1e-300) & (q > 1e-300)
    position = np.log(p[kept] / q[kept]) / spacing
    most = int(FARTHEST / spacing)
    index = np.clip(np.floor(position).astype(int), -most, most - 1)
    share = position - np.floor(position)
    law = np.zeros(2 * most + 1)
    np.add.at(law, index + most, p[kept] * (1 - share))
    np.add.at(law, index + most + 1, p[kept] * share)
    return law


def best_epsilon(
    noise: float, rate: float, steps: int, delta: float, choices: tuple[float, ...], spacing: float
) -> float:
    """ε at ``delta`` of an attacker who may choose the others from ``choices`` before every step."""
    count, most = int(REACH / spacing), int(FARTHEST / spacing)
    odds = np.arange(-count, count + 1) * spacing
    beyond = -np.expm1(np.arange(-count - most, -count) * spacing)
    laws = [step_law(noise, rate, others, spacing) for others in choices]
    value = np.maximum(0.0, -np.expm1(odds))
    for _ in range(steps):
        padded = np.concatenate([beyond, value, np.zeros(most)])
        value = np.max([fftconvolve(padded, law, "valid") for law in laws], axis=0)
        value = np.maximum(value, np.maximum(0.0, -np.expm1(odds)))
    at = int(np.flatnonzero((odds >= 0) & (value <= delta))[0])
    high, low = np.log(value[at - 1]), np.log(value[at])
    return float(odds[at - 1] + spacing * (high - np.log(delta)) / (high - low))


def main() -> None:
    print("noise  rate    steps  reported  fixed others  steered   (ε per record, δ 1e-05, replace-one)")
    for noise, rate, steps, spacing in ((2.0, 0.1, 100, 5e-3), (1.2, 0.0032, 1000, 5e-3), (1.0, 0.01, 300, 5e-3)):
        step = FixedSizeSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
        reported = ExactAccountant(neighbours=Neighbours.REPLACE_ONE).compose(step, steps).epsilon(delta=1e-5).epsilon
        still = best_epsilon(noise, rate, steps, 1e-5, (-1.0,), spacing)
        steered = best_epsilon(noise, rate, steps, 1e-5, (-1.0, 0.0, 1.0), spacing)
        print(f"{noise:5g}  {rate:<6g}  {steps:5d}  {reported:8.4f}  {still:12.4f}  {steered:7.4f}", flush=True)


if __name__ == "__main__":
    main()
