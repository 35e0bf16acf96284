"""Broken noise: trainers whose clip and draws are right and whose noise is not what they claim.

Each entry of :data:`NOISE` is a noise for :class:`learning.mutants.honest.Trainer`: it gets the trainer and
the batch (None where the noise alone is asked for) and returns what is added to the sum. The variance is right in most
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from learning.mutants.honest import Trainer, normal_noise
from quietsum.selfcheck import Batch, Floats

__all__ = ["NOISE", "UNSEEN_NOISE"]

Noise: TypeAlias = Callable[[Trainer, Batch | None], Floats]


def _scale(trainer: Trainer) -> float:
    return trainer.noise_multiplier * trainer.sensitivity


def _layers(trainer: Trainer) -> list[int]:
    return [parameter.numel() for parameter in trainer.model.parameters()]


def _fresh(trainer: Trainer) -> Floats:
    return trainer.rng.normals(trainer.dimension)


def _past(trainer: Trainer) -> list[Floats]:
    """Everything drawn so far, as standard normals."""
    past: list[Floats] = trainer.state.setdefault("past", [])
    return past


def _number(trainer: Trainer) -> int:
    """0, 1, 2, … with every draw."""
    trainer.state["number"] = trainer.state.get("number", -1) + 1
    return int(trainer.state["number"])


# ------------------------------------------------------------------------------------------------ used again


def returns_after(lag: int, share: float) -> Noise:
    """Noise that comes back ``lag`` releases later, times ``share``; −1 turns its sign, so that two releases cancel."""

    def noise(trainer: Trainer, batch: Batch | None) -> Floats:
        past = _past(trainer)
        fresh = _fresh(trainer)
        if abs(share) == 1:  # in blocks: new for ``lag`` releases, then the same ones again
            again = len(past) // lag % 2 == 1
            fresh = share * past[len(past) - lag] if again else fresh
        elif len(past) >= lag:
            fresh = share * past[len(past) - lag] + (1 - share**2) ** 0.5 * fresh
        past.append(fresh)
        return _scale(trainer) * fresh

    return noise


def tree_noise(trainer: Trainer, batch: Batch | None) -> Floats:
    """z_t − ½ z_(t−1), as in DP-FTRL, called independent; the sum over the steps has a quarter of the variance."""
    past, fresh = _past(trainer), _fresh(trainer)
    past.append(fresh)
    return np.asarray(_scale(trainer) * (fresh - 0.5 * past[-2] if len(past) > 1 else fresh) / 1.25**0.5)


def same_for_layers(change: Callable[[Floats, int], Floats]) -> Noise:
    """A generator that is seeded anew for each layer, so that all layers hold the same noise, changed in some way."""

    def noise(trainer: Trainer, batch: Batch | None) -> Floats:
        sizes = _layers(trainer)
        stream = trainer.rng.normals(max(sizes) + 8 * len(sizes))
        parts = [change(stream, i)[:size] for i, size in enumerate(sizes)]
        return np.asarray(_scale(trainer) * np.concatenate(parts))

    return noise


def small_seed(bits: int) -> Noise:
    """A generator seeded in each step with that many bits."""

    def noise(trainer: Trainer, batch: Batch | None) -> Floats:
        seed = int(trainer.rng.words(1)[0]) % 2**bits
        return _scale(trainer) * np.random.default_rng(seed).standard_normal(trainer.dimension)

    return noise


def tenth_refreshed(trainer: Trainer, batch: Batch | None) -> Floats:
    """Only a tenth of the coordinates are drawn anew; the others keep what they had."""
    kept = trainer.state.setdefault("kept", _fresh(trainer))
    new = trainer.rng.coins(0.1, trainer.dimension)
    kept[new] = _fresh(trainer)[new]
    return np.asarray(_scale(trainer) * kept)


def pool_window(trainer: Trainer, batch: Batch | None) -> Floats:
    """A window of 65 536 numbers that were drawn once, at a random place."""
    pool = trainer.state.setdefault("pool", trainer.rng.normals(65_536))
    start = int(trainer.rng.uniforms(1)[0] * (pool.size - trainer.dimension))
    return np.asarray(_scale(trainer) * pool[start : start + trainer.dimension])


def every_tenth_again(trainer: Trainer, batch: Batch | None) -> Floats:
    """Every tenth release repeats the one before it."""
    past = _past(trainer)
    past.append(past[-1] if len(past) % 10 == 9 else _fresh(trainer))
    return _scale(trainer) * past[-1]


def signs_of_a_pool(trainer: Trainer, batch: Batch | None) -> Floats:
    """Fresh signs on sizes that were drawn once."""
    sizes = trainer.state.setdefault("sizes", np.abs(trainer.rng.normals(16 * trainer.dimension)))
    start = _number(trainer) % 16 * trainer.dimension
    signs = np.where(trainer.rng.coins(0.5, trainer.dimension), 1.0, -1.0)
    return np.asarray(_scale(trainer) * signs * sizes[start : start + trainer.dimension])


def three_cancel(trainer: Trainer, batch: Batch | None) -> Floats:
    """Every third release is minus the two before it over √2, so that a combination of the three has no noise."""
    past = _past(trainer)
    past.append(-(past[-1] + past[-2]) / 2**0.5 if len(past) % 3 == 2 else _fresh(trainer))
    return _scale(trainer) * past[-1]


# ------------------------------------------------------------------------------------------------ another law


def drawn_in(dtype: torch.dtype) -> Noise:
    """Drawn in few bits and added to float64: the last digits of a release are those of the sum."""

    def noise(trainer: Trainer, batch: Batch | None) -> Floats:
        return (_scale(trainer) * torch.from_numpy(_fresh(trainer)).to(dtype)).double().numpy()

    return noise


def rounded_to(unit: float) -> Noise:
    """Rounded to a grid on which the sum does not lie."""
    return lambda trainer, batch: np.asarray(np.round(_scale(trainer) * _fresh(trainer) / unit) * unit)


def clamped(limit: float) -> Noise:
    """Cut off at so many standard deviations."""
    return lambda trainer, batch: np.asarray(_scale(trainer) * np.clip(_fresh(trainer), -limit, limit))


def redrawn_beyond(limit: float) -> Noise:
    """Drawn again while it lies beyond so many standard deviations."""

    def noise(trainer: Trainer, batch: Batch | None) -> Floats:
        fresh = _fresh(trainer)
        while (far := np.abs(fresh) > limit).any():
            fresh[far] = trainer.rng.normals(int(far.sum()))
        return _scale(trainer) * fresh

    return noise


def uniform_noise(trainer: Trainer, batch: Batch | None) -> Floats:
    """Uniform, of the claimed variance."""
    return np.asarray(_scale(trainer) * 12**0.5 * (trainer.rng.uniforms(trainer.dimension) - 0.5))


def student_noise(trainer: Trainer, batch: Batch | None) -> Floats:
    """Student's t with eight degrees of freedom, of the claimed variance: heavy tails."""
    squares = np.square(trainer.rng.normals((8, trainer.dimension))).mean(axis=0)
    return np.asarray(_scale(trainer) * _fresh(trainer) / np.sqrt(squares) * 0.75**0.5)


def shifted(trainer: Trainer, batch: Batch | None) -> Floats:
    """Centred at a twentieth of its width."""
    return _scale(trainer) * (_fresh(trainer) + 0.05)


def biased_coordinate(trainer: Trainer, batch: Batch | None) -> Floats:
    """One coordinate is centred elsewhere."""
    fresh = _fresh(trainer)
    fresh[11] += 0.5
    return _scale(trainer) * fresh


# --------------------------------------------------------------------------------------- another width in parts


def widths(factors: Callable[[Trainer], Floats | float]) -> Noise:
    """Of another width in some values, coordinates or releases; squares of the factors average to 1, mostly."""
    return lambda trainer, batch: np.asarray(_scale(trainer) * factors(trainer) * _fresh(trainer))


def _last(trainer: Trainer, count: int, factor: float) -> Floats:
    factors = np.ones(trainer.dimension)
    factors[trainer.dimension - count :] = factor
    return factors


def _at(trainer: Trainer, places: list[int], factor: float) -> Floats:
    factors = np.ones(trainer.dimension)
    factors[places] = factor
    return factors


def _two(odd: Any, low: float) -> Any:
    """``low`` or what makes the squares average to 1."""
    return np.where(odd, low, (2 - low**2) ** 0.5)


def by_batch(trainer: Trainer, batch: Batch | None) -> Floats:
    """As wide as the batch is large, over the expected batch."""
    rows = trainer.expected if batch is None else max(len(batch[0]), 1)
    return normal_noise(trainer, rows / trainer.expected)


def by_label(trainer: Trainer, batch: Batch | None) -> Floats:
    """A fifth narrower where all labels are the same."""
    same = batch is not None and len(batch[0]) > 1 and np.unique(batch[1]).size == 1
    return normal_noise(trainer, 0.7 if same else 1.0)


def across_the_sum(trainer: Trainer, batch: Batch | None) -> Floats:
    """None in the direction of the sum, \"since that is where the signal is\"."""
    noise = normal_noise(trainer)
    if batch is None or not (total := trainer.total(trainer, batch)).any():
        return noise
    unit = total / np.linalg.norm(total)
    return np.asarray(noise - unit * (unit @ noise))


# ------------------------------------------------------------------------------------------- shared by coordinates


def common_part(trainer: Trainer, batch: Batch | None) -> Floats:
    """A twentieth of the variance is one number for all coordinates of a release."""
    return np.asarray(_scale(trainer) * (0.95**0.5 * _fresh(trainer) + 0.05**0.5 * trainer.rng.normals(1)))


def sums_to_zero(trainer: Trainer, batch: Batch | None) -> Floats:
    """The mean of each release is taken out."""
    fresh = _fresh(trainer)
    return np.asarray(_scale(trainer) * (fresh - fresh.mean()) / (1 - 1 / fresh.size) ** 0.5)


def low_rank(trainer: Trainer, batch: Batch | None) -> Floats:
    """Noise in a random subspace of 60 dimensions."""
    if "basis" not in trainer.state:
        trainer.state["basis"] = np.linalg.qr(trainer.rng.normals((trainer.dimension, 60)))[0]
    basis = trainer.state["basis"]
    return np.asarray(_scale(trainer) * (trainer.dimension / 60) ** 0.5 * basis @ trainer.rng.normals(60))


def one_pair(trainer: Trainer, batch: Batch | None) -> Floats:
    """Two coordinates far apart share half of their noise."""
    fresh = _fresh(trainer)
    fresh[70] = 0.5**0.5 * (fresh[70] + fresh[5])
    return _scale(trainer) * fresh


def _even(trainer: Trainer) -> Any:
    return np.arange(trainer.dimension) % 2 == 0


NOISE: Final[Mapping[str, Noise]] = {
    "noise of a tree called independent": tree_noise,
    "antithetic at lag 50": returns_after(50, -1.0),
    "antithetic at lag 7": returns_after(7, -1.0),
    "antithetic at lag 100": returns_after(100, -1.0),
    "the same noise after 40 steps": returns_after(40, 1.0),
    "half the noise returns after 30 steps": returns_after(30, 0.5),
    "a tenth returns, turned, after 3 steps": returns_after(3, -0.1),
    "generator re-seeded for each layer": same_for_layers(lambda stream, layer: stream),
    "layers re-seeded with an offset": same_for_layers(lambda stream, layer: stream[5 * layer :]),
    "layers share noise, sign turned": same_for_layers(lambda stream, layer: stream * (-1) ** layer),
    "layers share noise, order turned": same_for_layers(lambda stream, layer: stream[:: (-1) ** layer]),
    "seed of 16 bits": small_seed(16),
    "a tenth refreshed": tenth_refreshed,
    "window of a pool": pool_window,
    "every tenth release again": every_tenth_again,
    "signs on sizes of a pool": signs_of_a_pool,
    "three releases cancel": three_cancel,
    "drawn in bfloat16": drawn_in(torch.bfloat16),
    "drawn in float16": drawn_in(torch.float16),
    "drawn in float32": drawn_in(torch.float32),
    "rounded to 1e-5": rounded_to(1e-5),
    "clamped at 3 σ": clamped(3.0),
    "clamped at 3.5 σ": clamped(3.5),
    "clamped at 4 σ": clamped(4.0),
    "drawn again beyond 3 σ": redrawn_beyond(3.0),
    "drawn again beyond 3.5 σ": redrawn_beyond(3.5),
    "uniform noise": uniform_noise,
    "Student's noise": student_noise,
    "noise off centre": shifted,
    "one coordinate off centre": biased_coordinate,
    "last layer 10 % short": widths(lambda trainer: _last(trainer, 3, 0.9)),
    "one coordinate 25 % short": widths(lambda trainer: _at(trainer, [40], 0.75)),
    "one coordinate without noise": widths(lambda trainer: _at(trainer, [40], 0.0)),
    "five coordinates 15 % short": widths(lambda trainer: _at(trainer, [3, 20, 41, 60, 77], 0.85)),
    "two widths by turns of coordinates": widths(lambda trainer: _two(_even(trainer), 0.9)),
    "two widths by turns of releases": widths(lambda trainer: _two(_number(trainer) % 2, 0.9)),
    "every seventh release short": widths(lambda trainer: 0.85 if _number(trainer) % 7 == 3 else 1.0),
    "two widths of values": widths(lambda trainer: _two(trainer.rng.coins(0.5, trainer.dimension), 0.75)),
    "two widths of releases": widths(lambda trainer: _two(trainer.rng.coins(0.5, 1), 0.8)),
    "noise that fades": widths(lambda trainer: 1.06 - 1.2e-4 * _number(trainer)),
    "noise by the actual batch": by_batch,
    "noise by the labels": by_label,
    "no noise along the sum": across_the_sum,
    "one part for all coordinates": common_part,
    "noise that sums to zero": sums_to_zero,
    "noise of less rank": low_rank,
    "one pair of coordinates": one_pair,
}


def half_after(count: int) -> Noise:
    """Half the noise, after that many releases."""
    return widths(lambda trainer: 0.5 if _number(trainer) >= count else 1.0)


UNSEEN_NOISE: Final[Mapping[str, Noise]] = {
    "seed of 32 bits": small_seed(32),
    "half the noise after 5000 releases": half_after(5000),
}
