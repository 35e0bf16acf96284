"""A small DP-SGD in torch, taken apart: correct as it stands, and every part can be exchanged.

It is written apart from the engines on purpose: one gradient per example by ``torch.func``, clipped, summed and
noised in numpy. The self-check's mutants (:mod:`learning.mutants.catalogue`) are this trainer with one part
broken.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.privacy import Gaussian, Laplace, PoissonSampled, PrivacyEvent
from quietsum.sampling import Poisson
from quietsum.selfcheck import Batch, Floats, Law, TrainerOutput

__all__ = ["Trainer", "clip", "clip_to", "gradients", "laplace_noise", "lengths", "normal_noise", "tensors"]

INPUTS, HIDDEN, CLASSES = 6, 8, 3
COUNT_WEIGHT = 0.5  # of a count that is released with the sum, in units of the clip norm


@final
@dataclasses.dataclass(kw_only=True)
class Trainer:
    """DP-SGD in parts. As it stands it is correct; ``dataclasses.replace`` exchanges a part for a broken one.

    ``counts`` releases with the sum how many examples lie within the clip norm, as adaptive clipping does: one more
    coordinate, which a record moves by half of ``COUNT_WEIGHT``, with the same noise times ``count_factor``.
    """

    name: str = "honest"
    caught_by: tuple[str, ...] = ()
    law: Law = Law.GAUSSIAN
    sensitivity: float = 1.0
    noise_multiplier: float = 1.2
    rate: float = 0.08
    population: int = 300
    precision: float = 2.3e-16
    allowance: float = 0.0
    twin: None = None
    normed: bool = False
    counts: bool = False
    count_factor: float = 1.0
    skips_empty: bool = False
    forgets: bool = False
    accounted_rate: float = 0.08
    total: Callable[[Trainer, Batch], Floats] = dataclasses.field(
        default=lambda self, batch: clip(self, gradients(self, batch))
    )
    added: Callable[[Trainer, Batch | None], Floats] = dataclasses.field(default=lambda self, batch: normal_noise(self))
    drawn: Callable[[Trainer, int], NDArray[np.int64]] = dataclasses.field(
        default=lambda self, population: Poisson(rate=self.rate).draw(population, self.rng)
    )
    used: Callable[[Trainer, Batch], Floats] | None = None
    said: Callable[[Trainer, Batch], Mapping[str, float]] = dataclasses.field(default=lambda self, batch: {})
    constants: Callable[[Trainer, int], Mapping[str, float]] = dataclasses.field(default=lambda self, population: {})
    reseeded: Callable[[], Any] = dataclasses.field(default=lambda: None)
    rng: RandomSource = dataclasses.field(default_factory=system_randomness)
    state: dict[str, Any] = dataclasses.field(default_factory=dict)
    charged: int = 0

    def __post_init__(self) -> None:
        self.state = {"generator": self.reseeded()}
        if self.counts:
            self.sensitivity = math.hypot(self.bound, COUNT_WEIGHT / 2)

    @property
    def bound(self) -> float:
        """The clip norm; the sensitivity, unless a count is released as well."""
        return 1.0 if self.counts else self.sensitivity

    @functools.cached_property
    def model(self) -> nn.Module:
        """The same small network every time, in float64."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            middle: list[nn.Module] = [nn.BatchNorm1d(HIDDEN)] if self.normed else []
            return nn.Sequential(nn.Linear(INPUTS, HIDDEN), *middle, nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()

    @property
    def dimension(self) -> int:
        """How many parameters are trained."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def expected(self) -> float:
        """The public expected batch."""
        return self.rate * self.population

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Made-up rows."""
        labels = np.floor(rng.uniforms(count) * CLASSES).astype(np.int64)
        return rng.normals((count, INPUTS)), labels

    def deterministic(self, batch: Batch) -> Floats:
        """The sum."""
        return self._counted(self.total(self, batch), batch)

    def _counted(self, total: Floats, batch: Batch) -> Floats:
        if not self.counts:
            return total
        with np.errstate(all="ignore"):
            small = lengths(self, gradients(self, batch)) <= self.bound
        return np.append(total, COUNT_WEIGHT * (small.sum() - len(small) / 2))

    def noise(self) -> Floats:
        """The noise."""
        return self._noised(self.added(self, None))

    def _noised(self, noise: Floats) -> Floats:
        if not self.counts:
            return noise
        return np.append(noise, self.noise_multiplier * self.sensitivity * self.beside(1))

    def beside(self, draws: int) -> Floats:
        """The count's noise, where there is a count."""
        return self.count_factor * self.rng.normals(draws) if self.counts else np.empty(0)

    def release(self, batch: Batch) -> Floats:
        """Both."""
        return self._counted((self.used or self.total)(self, batch), batch) + self._noised(self.added(self, batch))

    def sample(self, population: int) -> NDArray[np.int64]:
        """One draw."""
        return self.drawn(self, population)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """A step for each batch."""
        made = [batch for batch in batches if len(batch[0]) or not self.skips_empty]
        self.charged += len(made)
        said: dict[str, float] = {}
        for batch in made:
            said.update(self.said(self, batch))
        return TrainerOutput(releases=tuple(self.release(batch) for batch in made), charged=self.charged, said=said)

    def restart(self) -> Trainer:
        """As after a restart: what is not saved is made anew."""
        rng = self.rng if self.rng.for_tests else system_randomness()
        return dataclasses.replace(self, rng=rng, charged=0 if self.forgets else self.charged)

    def public_constants(self, population: int) -> Mapping[str, float]:
        """What steers the run."""
        return {"rate": self.rate, "noise multiplier": self.noise_multiplier, **self.constants(self, population)}

    def event(self) -> PrivacyEvent:
        """What the accountant hears."""
        kind = Gaussian if self.law is Law.GAUSSIAN else Laplace
        return PoissonSampled(rate=self.accounted_rate, event=kind(noise_multiplier=self.noise_multiplier))

    def reference(self, batch: Batch) -> Floats | None:
        """The honest sum, one example at a time."""
        terms = [clip(self, gradients(self, tuple(part[[row]] for part in batch))) for row in range(len(batch[0]))]
        return self._counted(np.sum(terms, axis=0) if terms else np.zeros(self.dimension), batch)


# ------------------------------------------------------------------------------------------------- its parts


def tensors(batch: Batch) -> tuple[Tensor, Tensor]:
    """Features and labels."""
    return torch.from_numpy(np.ascontiguousarray(batch[0])), torch.from_numpy(np.ascontiguousarray(batch[1]))


def gradients(trainer: Trainer, batch: Batch) -> Floats:
    """One gradient per example, (n, dimension)."""
    if not len(batch[0]):
        return np.zeros((0, trainer.dimension))
    if trainer.normed:
        return coupled_gradients(trainer, batch)
    parameters = {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}

    def loss(values: Mapping[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
        scores = torch.func.functional_call(trainer.model, dict(values), (features[None],))
        return nn.functional.cross_entropy(scores, label[None])

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, *tensors(batch))
    return torch.cat([part.reshape(len(part), -1) for part in found.values()], dim=1).numpy()


def lengths(trainer: Trainer, each: Floats) -> Floats:
    """The norm of each row that the law asks for."""
    with np.errstate(all="ignore"):
        return np.asarray(np.linalg.norm(each, ord=trainer.law.order, axis=1))


def clip_to(each: Floats, norms: Floats, bound: float) -> Floats:
    """Rows cut to ``bound``; a row whose norm is not finite is zero."""
    good = np.isfinite(norms)
    factors = np.minimum(1.0, bound / np.where(good & (norms > 0), norms, bound))
    return np.asarray(np.where(good[:, None], each, 0.0) * factors[:, None])


def clip(trainer: Trainer, each: Floats) -> Floats:
    """The sum of clipped rows."""
    return np.asarray(clip_to(each, lengths(trainer, each), trainer.bound).sum(axis=0))


def normal_noise(trainer: Trainer, factor: float = 1.0) -> Floats:
    """Gaussian noise of the claimed scale, times ``factor``."""
    return factor * trainer.noise_multiplier * trainer.sensitivity * trainer.rng.normals(trainer.dimension)


def laplace_noise(trainer: Trainer, scale: float) -> Floats:
    """Laplace noise of that scale."""
    uniform = trainer.rng.uniforms(trainer.dimension) - 0.5
    return np.asarray(-scale * np.sign(uniform) * np.log1p(-2 * np.abs(uniform)))


def coupled_gradients(trainer: Trainer, batch: Batch) -> Floats:
    """Gradients through batch statistics: every example's depends on every other example."""
    features, labels = tensors(batch)
    if len(features) < 2:  # BatchNorm refuses a single row
        features, labels = features.repeat(2, 1), labels.repeat(2)
    losses = nn.functional.cross_entropy(trainer.model(features), labels, reduction="none")[: len(batch[0])]
    rows = [torch.autograd.grad(loss, list(trainer.model.parameters()), retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]).numpy()
