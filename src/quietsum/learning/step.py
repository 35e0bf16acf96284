"""One private step, right by construction: draw, clip, sum, add noise, divide by what is public.

    g = ( Σ_{i in B} clip_C(∇ℓ_i) + noise ) / E          (Abadi et al. 2016, algorithm 1)

Every number that must agree with another lives in one object here: the sampler that draws B states the amplification,
the noise that is added states its event, and its scale follows the bound that the engine enforces. E is the *public*
expected batch, so the size of B stays secret; an empty batch is a step of noise alone.

>>> from quietsum.learning.clipping import Flat
>>> model = torch.nn.Linear(3, 2)
>>> step = PrivateStep.build(
...     model, cross_entropy, Flat(max_norm=0.5), noise_multiplier=1.3, rate=0.1, expected_batch=10.0, engine="vmap"
... )
>>> step.event()
PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.3))
>>> [tuple(part.shape) for part in step.gradient((torch.randn(4, 3), torch.tensor([0, 1, 1, 0])))]
[(2, 3), (2,)]
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer, QuantileClip
from quietsum.learning.config import PrivacyConfig, TrainingSchedule
from quietsum.learning.defaults import Balance, settle_config
from quietsum.learning.distributed.processes import OneProcess, Processes
from quietsum.learning.engines.batch_mixing import SteadyEngine
from quietsum.learning.engines.protocol import Batch, Engine, Loss, engine_for, rows_of
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.privacy import Gaussian, PrivacyEvent
from quietsum.sampling import Poisson
from quietsum.validate import positive

__all__ = ["PrivateStep", "ScaledClip", "ScaledLoss", "build_step", "cross_entropy"]


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """The default loss: −ln p(label) of each example.

    A label outside the classes costs zero, so that its record is silent rather than the reason of an error.
    """
    scores, labels = model(batch[0]), batch[1]
    valid = (labels >= 0) & (labels < scores.shape[-1])
    losses = nn.functional.cross_entropy(scores, torch.where(valid, labels, 0), reduction="none")
    return torch.where(valid, losses, 0.0)


@final
class ScaledLoss:
    """A loss divided by C, so that clipping its gradients to 1 and multiplying by C is clipping to C.

    With it C can change between steps and no engine needs to know.
    """

    def __init__(self, loss: Loss, max_norm: float) -> None:
        self.loss, self.max_norm = loss, positive("max_norm", max_norm)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of each example over C."""
        return self.loss(model, batch) / self.max_norm


@final
class ScaledClip:
    """A rule at the bound C of the moment, for gradients of a loss that is divided by C.

    Every rule g · f(‖g‖; C) is kept as it is, with what else it is made of: for g' = g / C the factor is f(C ‖g'‖; C),
    and C · g' · f is g · f. So the unit part has a length of at most 1.

    >>> from quietsum.learning.clipping import Automatic
    >>> rule = Automatic(max_norm=2.0, stability=0.5)
    >>> norms = torch.tensor([[3.0], [0.1]])
    >>> torch.equal(ScaledClip(rule, ScaledLoss(cross_entropy, 4.0)).factors(norms / 4), Automatic(
    ...     max_norm=4.0, stability=0.5).factors(norms))
    True
    """

    max_norm = sensitivity = 1.0

    def __init__(self, rule: Clip, scaled: ScaledLoss) -> None:
        self._rule, self._scaled = rule, scaled
        self.order = rule.order

    def groups(self, names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Those of the rule."""
        return self._rule.groups(names)

    def factors(self, norms: Tensor) -> Tensor:
        """Those of the rule at the present bound."""
        bound = self._scaled.max_norm
        now: Clip = dataclasses.replace(self._rule, max_norm=bound)  # type: ignore[type-var]  # the rules are dataclasses
        return now.factors(norms * bound)


@final
class PrivateStep:
    """One step of DP-SGD, in parts that a self-check can take apart.

    Guarantees: the result of :meth:`gradient` on a batch of :meth:`sample` costs :meth:`event`. A record
    of any content moves :meth:`deterministic` by at most ``sensitivity`` up to rounding: a record whose gradient is not
    finite, or for which the loss raises, counts as zero, in silence.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        sampling: Poisson,
        mechanism: TorchNoise,
        expected_batch: float,
        scaled: ScaledLoss | None = None,
        adaptive: QuantileClip | None = None,
        rng: RandomSource | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.micro_batch = micro_batch
        self.engine, self.sampling, self.mechanism = engine, sampling, mechanism
        self.expected_batch = positive("expected_batch", expected_batch, "pass rate × the declared size")
        self.scaled, self.adaptive = scaled, adaptive
        self._rng = system_randomness() if rng is None else rng
        self._stated = mechanism.noise_multiplier
        self._small = 0
        self.balance: Balance | None = None
        """Weights of records by class, 1 at most, so that the bound on one record's part stands."""
        self.processes: Processes = OneProcess()
        """Those that make this step together: each clips its share of a draw, and one adds the noise."""
        if adaptive is not None and (scaled is None or mechanism.law != "gaussian"):
            problem = "needs Gaussian noise and a loss that can be rescaled"
            raise InvalidParameter("clipping", "adaptive", problem, "use noise_type='gaussian'")

    @classmethod
    def build(
        cls,
        model: nn.Module,
        loss: Loss,
        clip: Clip,
        *,
        noise_multiplier: float,
        rate: float,
        expected_batch: float,
        engine: str = "auto",
        mode: str = "fast",
        micro_batch: int | None = None,
        varying: bool = False,
        adaptive: QuantileClip | None = None,
        rng: RandomSource | None = None,
    ) -> PrivateStep:
        """All parts from one clip: its bound scales the noise, its norm (L2 or L1) chooses the noise's law.

        Buffers of the model move once for each change of the weights, for all batches alike.

        ``varying`` allows :meth:`retune` to change the bound; ``adaptive`` changes it itself, after every step.
        """
        rng = system_randomness() if rng is None else rng
        scaled = None
        if varying or adaptive is not None:
            scaled = ScaledLoss(loss, clip.max_norm)
            made = engine_for(engine, model, scaled, ScaledClip(clip, scaled), micro_batch=micro_batch)
        else:
            made = engine_for(engine, model, loss, clip, micro_batch=micro_batch)
        noise = noise_multiplier if adaptive is None else adaptive.gradient_noise(noise_multiplier)
        mechanism = TorchNoise(
            noise_multiplier=noise, sensitivity=clip.sensitivity, law="laplace" if clip.order == 1 else "gaussian",
            mode=mode, expected_batch=expected_batch, source=rng,
        )  # fmt: skip
        step = cls(
            SteadyEngine(made, model, loss), sampling=Poisson(rate=rate), mechanism=mechanism,
            expected_batch=expected_batch, scaled=scaled, adaptive=adaptive, rng=rng, micro_batch=micro_batch,
        )  # fmt: skip
        step._stated = noise_multiplier
        return step

    # ------------------------------------------------------------------------------------- public constants

    @property
    def sensitivity(self) -> float:
        """The bound on one record's part of the sum."""
        return self.mechanism.sensitivity

    @property
    def noise_multiplier(self) -> float:
        """The noise that the accountant counts: for adaptive clipping, that of gradient and count together."""
        if self.adaptive is None:
            return self.mechanism.noise_multiplier
        return min(self._stated, self.adaptive.joint_noise(self.mechanism.noise_multiplier))

    @property
    def rate(self) -> float:
        """The chance that one record is in the batch."""
        return self.sampling.rate

    def event(self) -> PrivacyEvent:
        """What one step costs."""
        if self.adaptive is None:
            return self.sampling.amplify(self.mechanism.event())
        return self.sampling.amplify(Gaussian(noise_multiplier=self.noise_multiplier))

    def retune(self, *, noise_multiplier: float, max_norm: float | None = None) -> None:
        """Another noise and, where the step was built for it, another bound, for the steps that follow."""
        if max_norm is not None and max_norm != self.sensitivity:
            if self.scaled is None:
                raise InvalidParameter("max_norm", max_norm, "cannot change in this step", "build it with varying=True")
            self.scaled.max_norm = max_norm
        bound = self.sensitivity if max_norm is None else max_norm
        noise = noise_multiplier if self.adaptive is None else self.adaptive.gradient_noise(noise_multiplier)
        self.mechanism = self.mechanism.rescale(noise_multiplier=noise, sensitivity=bound)
        self._stated = noise_multiplier

    # -------------------------------------------------------------------------------------------- the step

    def sample(self, population: int) -> NDArray[np.int64]:
        """The indices of one Poisson batch; empty is an answer."""
        return self.sampling.draw(population, self._rng)

    def sample_many(self, population: int, count: int) -> Iterator[NDArray[np.int64]]:
        """The indices of ``count`` of them, of which each of several processes gets its share."""
        return self.processes.share_out(lambda: self.sample(population), count)

    def deterministic(self, batch: Batch) -> tuple[Tensor, ...]:
        """Σ clip(∇ℓ_i) over the rows of this process, before noise. Private."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a batch makes a library say is a fact about the batch
            weighed = [(1.0, batch)] if self.balance is None else self.balance.parts(batch)
            sums = self._clip_batch(weighed[0][1])
            if len(weighed) > 1 or weighed[0][0] != 1:  # in float64, so that classes round no more than one sum does
                total = [part.to(torch.float64) * weighed[0][0] for part in sums]
                for weight, rows in weighed[1:]:
                    total = [
                        whole.add_(part, alpha=weight)
                        for whole, part in zip(total, self._clip_batch(rows), strict=True)
                    ]
                sums = tuple(whole.to(part.dtype) for whole, part in zip(total, sums, strict=True))
        if self.scaled is not None:
            sums = tuple(part * self.scaled.max_norm for part in sums)
        return sums

    def _clip_batch(self, batch: Batch) -> tuple[Tensor, ...]:
        try:
            sums = self.engine.clipped_sum(batch)
            self._small = self._count_small(rows_of(batch))
        except Exception:
            sums = self._row_by_row(batch)
        return sums

    def _row_by_row(self, batch: Batch) -> tuple[Tensor, ...]:
        """The sum of the rows that can be differentiated; one broken record must not erase the others."""
        total = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in self.engine.parameters]
        self._small = 0
        for row in range(rows_of(batch)):
            try:
                sums = self.engine.clipped_sum(tuple(part[row : row + 1] for part in batch))
            except Exception:
                continue
            total = [whole + part for whole, part in zip(total, sums, strict=True)]
            self._small += self._count_small(1)
        return tuple(whole.to(p.dtype) for whole, p in zip(total, self.engine.parameters, strict=True))

    def _count_small(self, rows: int) -> int:
        """How many of the last rows lie within the bound; private, and asked only where it will be noised."""
        return int(self.engine.small_norms()) if self.adaptive is not None and rows else 0

    def noise(self) -> tuple[Tensor, ...]:
        """A fresh draw of what is added to the sum."""
        return self.mechanism.draw([parameter.detach() for parameter in self.engine.parameters])

    def survey(self, batch: Batch) -> None:
        """Release how many records of each class the batch holds, in place of a gradient, and let ``balance`` take it.

        Guarantees: a record adds the step's sensitivity to one number, so the release costs :meth:`event`, like
        :meth:`gradient`, of which one batch must not have both.
        """
        assert self.balance is not None
        found = torch.zeros_like(self.balance.counts)
        try:
            found = self.balance.one_hot(batch)
        except Exception:  # a record that raises takes itself out of the count, and no other one
            for row in range(rows_of(batch)):
                with contextlib.suppress(Exception):
                    found = found + self.balance.one_hot(tuple(part[row : row + 1] for part in batch))
        device = self.engine.parameters[0].device
        sums = (found.to(device) * self.sensitivity,)
        (noisy,) = self.processes.release(sums, self.mechanism.add, sums)
        self.balance.take(noisy.cpu() / self.sensitivity)

    def release(self, sums: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """(sums + noise) / E in the precision of the first parameters, with noise that is fresh at every call.

        Parameters of one type are treated end to end as one vector: a few calls for all of them.
        """
        parameters = self.engine.parameters[: len(sums)]
        if len({parameter.dtype for parameter in parameters}) > 1:
            noisy = self.mechanism.add(sums)
            return tuple(
                part.div_(self.expected_batch).to(parameter.dtype)
                for part, parameter in zip(noisy, parameters, strict=True)
            )
        whole = torch.cat([part.reshape(-1) for part in sums]) if len(sums) > 1 else sums[0].reshape(-1)
        (found,) = self.mechanism.add((whole,))
        flat = found.div_(self.expected_batch).to(parameters[0].dtype)
        pieces = torch.split(flat, [parameter.numel() for parameter in parameters])
        return tuple(piece.view(parameter.shape) for piece, parameter in zip(pieces, parameters, strict=True))

    def gradient(self, batch: Batch, *, released: int | None = None) -> tuple[Tensor, ...]:
        """(Σ clip(∇ℓ_i) + noise) / E in the parameters' own precision, of the first ``released`` parameters or of all.

        This may be seen.
        """
        parameters = self.engine.parameters[:released]
        self.processes.compare(parameters)
        found = self.processes.release(self.deterministic(batch)[:released], self.release, parameters)
        adaptive, scaled = self.adaptive, self.scaled
        if adaptive is not None and scaled is not None:
            small, rows = self.processes.add_counts(self._small, rows_of(batch))
            scaled.max_norm = self.processes.decide("the clip norm", lambda: adaptive.next_norm(
                scaled.max_norm, small=small, batch=rows, expected_batch=self.expected_batch
            ))  # fmt: skip
            self.mechanism = self.mechanism.rescale(
                noise_multiplier=self.mechanism.noise_multiplier, sensitivity=scaled.max_norm
            )
        return found


def build_step(
    model: nn.Module, loss: Loss, config: PrivacyConfig, plan: TrainingSchedule, rng: RandomSource | None = None
) -> PrivateStep:
    """The step that a config asks for, at the noise of the plan's first stage. Buffers move once a step, publicly."""
    config = settle_config(config, plan.size)
    bound = config.max_grad_norm
    assert bound is not None
    rules: dict[str, Clip] = {
        "flat": Flat(max_norm=bound), "per-layer": PerLayer(max_norm=bound), "automatic": Automatic(max_norm=bound),
        "adaptive": Flat(max_norm=bound),
    }  # fmt: skip
    clip = FlatL1(max_norm=bound) if config.noise_type == "laplace" else rules[config.clipping]
    adaptive = None
    if config.clipping == "adaptive":
        made: dict[str, Any] = {} if rng is None else {"rng": rng}
        adaptive = QuantileClip(
            count_noise=config.noise_of_count, quantile=config.clip_quantile, learning_rate=config.clip_learning_rate,
            **made,
        )  # fmt: skip
    return PrivateStep.build(
        model, loss, clip, noise_multiplier=plan.stages[0].noise_multiplier, rate=plan.rate,
        expected_batch=plan.expected_batch, engine=config.engine, mode=config.noise, micro_batch=config.micro_batch,
        varying=len({stage.max_norm for stage in plan.stages}) > 1, adaptive=adaptive, rng=rng,
    )  # fmt: skip
