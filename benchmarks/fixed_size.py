"""What do batches of fixed size cost, and what can an attacker gain? The figures of decision 3.

Replace-one: one record is +C or −C, all others contribute y·C, and the attacker may choose y anew after each release.
Zero-out: the record is +C or null. With V_t(u) the largest hockey-stick divergence at log-odds u over t more steps,
V_{t+1}(u) = max_y E_P[V_t(u − L_y)]: dynamic programming on a grid of u, losses split between neighbouring grid points
so that their means are kept. ``before`` is the worst single batch, composed; ``still`` is the same by this program (the
difference is its own error), ``steered`` the attacker's best, ``printed`` the certified bound.

    python benchmarks/fixed_size.py                        # the tables of decision 3
    python benchmarks/fixed_size.py --random 200 --seed 1  # attacks on random settings: none may exceed what is printed
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve
from scipy.special import ndtr

from quietsum import ExactAccountant, FixedSizeSampled, Gaussian, Neighbours, PoissonSampled
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.old_rules import SingleBatch

Array = npt.NDArray[np.float64]
Choice = tuple[float, float, float]  # the record in P, the record in Q, all others
FARTHEST = 20.0  # loss of a single step
REPLACED: tuple[Choice, ...] = ((1.0, -1.0, -1.0), (1.0, -1.0, 0.0), (1.0, -1.0, 1.0))
ZEROED: tuple[Choice, ...] = tuple((1.0, 0.0, y) for y in (-1.0, -0.5, 0.0, 0.5, 1.0))
ROWS = (
    (2.0, 0.1, 100), (1.2, 0.0032, 1000), (1.0, 0.01, 300), (4.0, 0.5, 50), (8.0, 0.5, 200), (1.5, 0.5, 10),
    (2.0, 0.01, 1000), (4.0, 0.1, 1000), (1.2, 0.0032, 31_200),
)  # fmt: skip
MOST_STEPS = 1000  # longer attacks take minutes


def attacks(neighbours: Neighbours) -> tuple[tuple[Choice, ...], ...]:
    """What an attacker may choose from in each step; one list for each order of the two datasets."""
    choices = REPLACED if neighbours is Neighbours.REPLACE_ONE else ZEROED
    return (choices, tuple((other, mine, third) for mine, other, third in choices))


def step_law(noise: float, rate: float, choice: Choice, spacing: float) -> Array:
    """The law of one step's loss on the grid."""
    x = np.linspace(-1 - 14 * noise, 1 + 14 * noise, 400_001)
    mine, other, absent = (np.diff(ndtr((x - centre) / noise)) for centre in choice)
    p, q = (1 - rate) * absent + rate * mine, (1 - rate) * absent + rate * other
    kept = (p > 1e-300) & (q > 1e-300)
    position = np.log(p[kept] / q[kept]) / spacing
    most = int(FARTHEST / spacing)
    index = np.clip(np.floor(position).astype(int), -most, most - 1)
    share = np.clip(position - index, 0.0, 1.0)
    law = np.zeros(2 * most + 1)
    np.add.at(law, index + most, p[kept] * (1 - share))
    np.add.at(law, index + most + 1, p[kept] * share)
    return law


def best_epsilon(
    noise: float,
    rate: float,
    steps: int,
    delta: float,
    choices: tuple[Choice, ...],
    spacing: float,
    reach: float = 30.0,
) -> float:
    """ε at ``delta`` of an attacker who may choose the others from ``choices`` before every step."""
    count, most = int(reach / spacing), int(FARTHEST / spacing)
    odds = np.arange(-count, count + 1) * spacing
    beyond = -np.expm1(np.arange(-count - most, -count) * spacing)
    laws = [step_law(noise, rate, choice, spacing) for choice in choices]
    value = np.maximum(0.0, -np.expm1(odds))
    for _ in range(steps):
        padded = np.concatenate([beyond, value, np.zeros(most)])
        value = np.max([fftconvolve(padded, law, "valid") for law in laws], axis=0)
        value = np.maximum(value, np.maximum(0.0, -np.expm1(odds)))
    at = int(np.flatnonzero((odds >= 0) & (value <= delta))[0])
    if odds[at] == 0:
        return 0.0
    high, low = np.log(value[at - 1]), np.log(max(value[at], 1e-300))
    return float(odds[at - 1] + spacing * (high - np.log(delta)) / (high - low))


def strongest(noise: float, rate: float, steps: int, found: Guarantee, spacing: float) -> tuple[float, float]:
    """(ε of the best attack at δ 1e-5, this program's own error): the latter where the answer is known."""
    choices, turned = attacks(found.neighbours)
    still = choices[0] if found.neighbours is Neighbours.REPLACE_ONE else (1.0, 0.0, 0.0)
    known = composed(noise, rate, steps, found.neighbours)
    error = abs(best_epsilon(noise, rate, steps, 1e-5, (still,), spacing) - known)
    return max(best_epsilon(noise, rate, steps, 1e-5, some, spacing) for some in (choices, turned)), error


def composed(noise: float, rate: float, steps: int, neighbours: Neighbours) -> float:
    """ε where the others stay what they are: like the substitute under replace-one, null under zero-out."""
    event = Gaussian(noise_multiplier=noise)
    kind = SingleBatch if neighbours is Neighbours.REPLACE_ONE else PoissonSampled
    return (
        ExactAccountant(neighbours=neighbours).compose(kind(rate=rate, event=event), steps).epsilon(delta=1e-5).epsilon
    )


def printed(noise: float, rate: float, steps: int, neighbours: Neighbours) -> Guarantee:
    """What quietsum says."""
    step = FixedSizeSampled(rate=rate, event=Gaussian(noise_multiplier=noise))
    return ExactAccountant(neighbours=neighbours).compose(step, steps).epsilon(delta=1e-5)


def random_settings(count: int, *, seed: int, most_steps: int) -> Iterator[tuple[float, float, int]]:
    """(noise, rate, steps) with an ε that a grid can hold."""
    rng = np.random.default_rng(seed)
    while count:
        noise = math.exp(rng.uniform(math.log(0.8), math.log(10.0)))
        rate = math.exp(rng.uniform(math.log(3e-3), math.log(0.7)))
        steps = int(math.exp(rng.uniform(math.log(2), math.log(most_steps + 1))))
        if 0.3 < printed(noise, rate, steps, Neighbours.REPLACE_ONE).epsilon < 20:
            count -= 1
            yield noise, rate, steps


def tables() -> None:
    """The tables of decision 3."""
    print("replace-one\nnoise  rate    steps    before    still  steered  printed  factor  seconds   (ε, δ 1e-05)")
    for noise, rate, steps in ROWS:
        start = time.perf_counter()
        found = printed(noise, rate, steps, Neighbours.REPLACE_ONE)
        seconds = time.perf_counter() - start
        before = composed(noise, rate, steps, Neighbours.REPLACE_ONE)
        played = "        –        –"
        if steps <= MOST_STEPS:
            still, steered = (best_epsilon(noise, rate, steps, 1e-5, some, 5e-3) for some in (REPLACED[:1], REPLACED))
            played = f"{still:9.4f}{steered:9.4f}"
        print(
            f"{noise:5g}  {rate:<6g}  {steps:5d}{before:10.4f}{played}{found.epsilon:9.4f}"
            f"  {found.epsilon / before:6.3f}  {seconds:7.3f}{'' if found.certified else '  not certified'}",
            flush=True,
        )
    print("\nzero-out\nnoise  rate    steps     lower  steered  printed  as replace-one   (ε, δ 1e-05)")
    for noise, rate, steps in ROWS:
        found = printed(noise, rate, steps, Neighbours.ZERO_OUT)
        text = "        –"
        if steps <= MOST_STEPS:
            steered = max(best_epsilon(noise, rate, steps, 1e-5, some, 5e-3) for some in attacks(Neighbours.ZERO_OUT))
            text = f"{steered:9.4f}"
        print(
            f"{noise:5g}  {rate:<6g}  {steps:5d}{found.epsilon_lower:10.4f}{text}{found.epsilon:9.4f}"
            f"  {printed(noise, rate, steps, Neighbours.REPLACE_ONE).epsilon:14.4f}",
            flush=True,
        )


def duel(count: int, seed: int) -> int:
    """Attacks on random settings under both relations; the number of those above what is printed."""
    worse, closest = 0, 0.0
    for noise, rate, steps in random_settings(count, seed=seed, most_steps=300):
        for neighbours in (Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT):
            found = printed(noise, rate, steps, neighbours)
            steered, error = strongest(noise, rate, steps, found, 1e-2)
            closest = max(closest, (steered - error) / found.epsilon)
            if steered > found.epsilon + 2 * error + 1e-6 or not found.certified:
                worse += 1
                print(f"σ {noise:.4g} q {rate:.4g} T {steps} {neighbours}: {steered:.5f} > {found}", flush=True)
    print(f"{count} settings, two relations: {worse} attacks above ε, or ε not certified; the closest at {closest:.4f}")
    return worse


def main() -> None:
    """Tables, or attacks on random settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, metavar="N", help="attack N random settings instead")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.random:
        sys.exit(1 if duel(chosen.random, chosen.seed) else 0)
    tables()


if __name__ == "__main__":
    main()
