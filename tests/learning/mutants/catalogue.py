"""Trainers that look private and are not: each is DP-SGD with one mistake that somebody really made.

A check that has never failed proves nothing. These trainers are kept so that the self-check can be tested: each must
be caught, by the tests that should see it. All are the small correct trainer of :mod:`learning.mutants.honest`
with one part exchanged, and each names the tests that must accuse it. Many more live in rooms of their own: noise,
sums, draws and words (:mod:`learning.mutants.noise` and its neighbours).

:data:`UNSEEN` keeps mistakes that no check of a few seconds can see: what begins later than it looks, and what repeats
more seldom than it draws.

>>> sorted(MUTANTS)[:3]
['5 % less noise', 'BatchNorm', 'Laplace after L2 clip']
>>> MUTANTS["batch clip"]().caught_by
('T1', 'T2')
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.mutants.draws import DRAWS, UNSEEN_DRAWS
from learning.mutants.honest import (
    Trainer,
    clip,
    clip_to,
    gradients,
    laplace_noise,
    lengths,
    normal_noise,
)
from learning.mutants.noise import NOISE, UNSEEN_NOISE
from learning.mutants.sums import SUMS, kept_momentum, previous_kept
from learning.mutants.words import WORDS
from quietsum.errors import InvalidParameter
from quietsum.sampling import FixedSize, Poisson
from quietsum.selfcheck import Batch, Floats, Law

__all__ = ["MUTANTS", "UNSEEN"]

MICRO = 4


def batch_clip(trainer: Trainer, batch: Batch) -> Floats:
    """Clips the gradient of the batch instead of each example's: opposed, one record moves it by twice the bound."""
    each = gradients(trainer, batch)
    return clip(trainer, each.mean(axis=0, keepdims=True)) if len(each) else np.zeros(trainer.dimension)


def own_size(trainer: Trainer, batch: Batch) -> Floats:
    """Divides by the size of the batch, which changes with every record."""
    return clip(trainer, gradients(trainer, batch)) * trainer.expected / max(1, len(batch[0]))


def layer_clip(trainer: Trainer, batch: Batch) -> Floats:
    """Clips each parameter to C, so that all together reach √L · C."""
    each = gradients(trainer, batch)
    sizes = np.cumsum([parameter.numel() for parameter in trainer.model.parameters()])[:-1]
    parts = [clip_to(part, lengths(trainer, part), trainer.sensitivity) for part in np.split(each, sizes, axis=1)]
    return np.asarray(np.concatenate(parts, axis=1).sum(axis=0))


def last_layer_norm(trainer: Trainer, batch: Batch) -> Floats:
    """Measures the norm without the biases, so that what is clipped is longer than it looks."""
    each = gradients(trainer, batch)
    weights = np.concatenate(
        [np.full(parameter.numel(), parameter.dim() > 1) for parameter in trainer.model.parameters()]
    )
    norms = lengths(trainer, each[:, weights])
    return np.asarray(clip_to(np.where(np.isfinite(norms)[:, None], each, 0.0), norms, trainer.sensitivity).sum(axis=0))


def micro_clip(trainer: Trainer, batch: Batch) -> Floats:
    """Clips the mean of each micro-batch, as if a few examples were one."""
    each = gradients(trainer, batch)
    means = [each[start : start + MICRO].mean(axis=0) for start in range(0, len(each), MICRO)]
    return clip(trainer, np.stack(means)) if means else np.zeros(trainer.dimension)


def nan_leak(trainer: Trainer, batch: Batch) -> Floats:
    """Clips by min(1, C/‖g‖) and nothing else: a NaN stays a NaN."""
    each = gradients(trainer, batch)
    with np.errstate(all="ignore"):
        factors = np.minimum(1.0, trainer.sensitivity / lengths(trainer, each))
        return np.asarray((each * factors[:, None]).sum(axis=0))


def raises_on_nan(trainer: Trainer, batch: Batch) -> Floats:
    """Validates protected rows aloud."""
    if not all(np.isfinite(part).all() for part in batch):
        raise InvalidParameter("batch", "a row", "is not finite")
    return clip(trainer, gradients(trainer, batch))


def half_gradient(trainer: Trainer, batch: Batch) -> Floats:
    """Private, and not this model's gradient: the second half of each row is forgotten."""
    each = gradients(trainer, batch)
    each[:, each.shape[1] // 2 :] = 0.0
    return clip(trainer, each)


def l2_total(trainer: Trainer, batch: Batch) -> Floats:
    """An L2 clip under a claim of Laplace noise, whose scale must follow the L1 norm."""
    each = gradients(trainer, batch)
    with np.errstate(all="ignore"):
        return np.asarray(clip_to(each, np.linalg.norm(each, axis=1), trainer.sensitivity).sum(axis=0))


def same_seed(trainer: Trainer, batch: Batch | None) -> Floats:
    """Seeds the generator in every step."""
    scale = trainer.noise_multiplier * trainer.sensitivity
    return scale * np.random.default_rng(42).standard_normal(trainer.dimension)


def seeded_by_data(trainer: Trainer, batch: Batch | None) -> Floats:
    """Seeds the generator with the batch, so that the same batch always gets the same noise."""
    if batch is None:
        return normal_noise(trainer)
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in batch)).digest()
    scale = trainer.noise_multiplier * trainer.sensitivity
    return scale * np.random.default_rng(list(digest)).standard_normal(trainer.dimension)


def saved_generator(trainer: Trainer, batch: Batch | None) -> Floats:
    """Uses a generator that starts again from its seed after a restart."""
    scale = trainer.noise_multiplier * trainer.sensitivity
    return np.asarray(scale * trainer.state["generator"].standard_normal(trainer.dimension))


def bare_biases(trainer: Trainer, batch: Batch | None) -> Floats:
    """Adds noise to matrices and forgets the biases."""
    weights = [np.full(parameter.numel(), parameter.dim() > 1) for parameter in trainer.model.parameters()]
    return np.asarray(normal_noise(trainer) * np.concatenate(weights))


def shuffled(trainer: Trainer, population: int) -> NDArray[np.int64]:
    """An ordinary data loader: shuffle, then cut into batches until the epoch ends."""
    size = max(1, round(trainer.rate * population))
    left = trainer.state.setdefault(f"epoch of {population}", [])
    if len(left) < size:
        left[:] = trainer.rng.permutation(population).tolist()
    batch, left[:] = left[:size], left[size:]
    return np.array(sorted(batch), dtype=np.int64)


def fixed(trainer: Trainer, population: int) -> NDArray[np.int64]:
    """A random batch of always the same size."""
    size = max(1, round(trainer.rate * population))
    return FixedSize(size=size, population=population).draw(population, trainer.rng)


def again_if_empty(trainer: Trainer, population: int) -> NDArray[np.int64]:
    """Draws until somebody comes."""
    while True:
        batch = Poisson(rate=trainer.rate).draw(population, trainer.rng)
        if batch.size:
            return batch


def with_replacement(trainer: Trainer, population: int) -> NDArray[np.int64]:
    """Draws with replacement: a record may count twice."""
    size = int(trainer.rng.coins(trainer.rate, population).sum())
    return np.floor(trainer.rng.uniforms(size) * population).astype(np.int64)


def truncated(trainer: Trainer, population: int) -> NDArray[np.int64]:
    """Cuts off whoever does not fit into memory, so that one record's coming drives another one out."""
    batch = Poisson(rate=trainer.rate).draw(population, trainer.rng)
    room = int(1.25 * trainer.rate * population) + 1
    return batch[:room]


def unclipped(trainer: Trainer, batch: Batch) -> Floats:
    """What training really adds up, while the part that is shown to a check does clip."""
    return np.asarray(np.nan_to_num(gradients(trainer, batch), posinf=0.0, neginf=0.0).sum(axis=0))


def counted_divisor(trainer: Trainer, population: int) -> Mapping[str, float]:
    """A divisor made from the number of records that happen to be there."""
    return {"divisor": float(int(trainer.rate * population + 1))}


# ------------------------------------------------------------------------------------------------- all of them


def one(name: str, *caught_by: str, **parts: Any) -> tuple[str, Callable[[], Trainer]]:
    """A name, and how to make the trainer of that name."""
    return name, lambda: Trainer(name=name, caught_by=caught_by, **parts)


def _mutants() -> dict[str, Callable[[], Trainer]]:
    generator = functools.partial(np.random.default_rng, 7)
    return dict(
        [
            one("batch clip", "T1", "T2", total=batch_clip),
            one("noise on the mean", "T3", added=lambda self, batch: normal_noise(self, self.expected)),
            one(
                "Laplace after L2 clip", "T1", law=Law.LAPLACE, total=l2_total,
                added=lambda self, batch: laplace_noise(self, self.noise_multiplier * self.sensitivity),
            ),
            one("shuffled batches", "T4", drawn=shuffled),
            one("fixed batches", "T4", drawn=fixed),
            one("actual-size division", "T1", "T2", total=own_size),
            one("per-layer without root L", "T1", total=layer_clip),
            one("BatchNorm", "T1", "T2", normed=True),
            one("microbatch-mean clip", "T1", "T2", total=micro_clip),
            one("reused seed", "T3", added=same_seed),
            one("5 % less noise", "T3", added=lambda self, batch: normal_noise(self, 0.95)),
            one("NaN leak", "T5", total=nan_leak),
            one("skipped empty steps", "T4", skips_empty=True),
            one("same noise after a restart", "T10", added=saved_generator, reseeded=generator),
            one("books lost in a restart", "T10", forgets=True),
            one("divisor counted from the data", "T7", constants=counted_divisor),
            one("half the rate accounted", "T8", accounted_rate=0.04),
            one("no noise on biases", "T3", added=bare_biases),
            one("noise seeded by the batch", "T3", added=seeded_by_data),
            one(
                "Laplace noise called Gaussian", "T3",
                added=lambda self, batch: laplace_noise(self, self.noise_multiplier * self.sensitivity / 2**0.5),
            ),
            one("empty draws drawn again", "T4", drawn=again_if_empty),
            one("drawn with replacement", "T4", drawn=with_replacement),
            one("truncated batches", "T4", drawn=truncated),
            one("a clip for show", "T3", used=unclipped),
            one("norm without biases", "T1", total=last_layer_norm),
            one("error on a NaN row", "T5", total=raises_on_nan),
            one("half a gradient", "T9", total=half_gradient),
            one("count without noise", "T3", counts=True, count_factor=0.0),
            one("count with half its noise", "T3", counts=True, count_factor=0.5),
            one("momentum before the noise", "T3", used=kept_momentum),
            one("previous gradient kept", "T3", used=previous_kept),
            *(one(name, "T3", added=noise) for name, noise in NOISE.items()),
            *(one(name, *caught_by, total=total) for name, (caught_by, total) in SUMS.items()),
            *(one(name, "T4", drawn=drawn) for name, drawn in DRAWS.items()),
            *(one(name, "T11", said=said) for name, said in WORDS.items()),
        ]
    )  # fmt: skip


MUTANTS: Final[Mapping[str, Callable[[], Trainer]]] = _mutants()

UNSEEN: Final[Mapping[str, Callable[[], Trainer]]] = dict(
    [
        *(one(name, added=noise) for name, noise in UNSEEN_NOISE.items()),
        *(one(name, drawn=drawn) for name, drawn in UNSEEN_DRAWS.items()),
    ]
)
