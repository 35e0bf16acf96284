"""A party's round with a torch model: draw, differentiate, bound, add noise, step; then the change of the weights.

With orders w from the server, B a drawn batch, C the bound, b the *public* expected batch and σ the noise multiplier,

    g = ( Σ_{i in B} clip_C(∇ℓ_i) + N(0, σ²C²) ) / b  +  μ (w_now − w)
    velocity ← momentum · velocity + g
    w_now ← w_now − learning_rate · velocity

(Abadi et al. 2016, algorithm 1; the last term is FedProx, Li et al. 2020, equation 2). It is the loop of
:mod:`quietsum.learning.descent` for models that torch differentiates. Only the sum is released, so division, proximal
term, momentum and step are post-processing. Without a mechanism the sum is an ordinary gradient, from one backward
pass, and there is no guarantee here: at the client level it is the whole update that is bounded, later.

>>> from quietsum.mechanisms.rng import system_randomness
>>> from quietsum.plan.orders import LocalOrders
>>> from quietsum.sampling import Everyone
>>> model = nn.Linear(1, 1, bias=False)
>>> squared = lambda model, batch: (model(batch[0]) - batch[1]).square().flatten() / 2
>>> orders = LocalOrders(steps=1, sampling=Everyone(), expected_batch=2.0, learning_rate=0.5)
>>> records = (torch.tensor([[1.0], [1.0]]), torch.tensor([[3.0], [5.0]]))
>>> local_steps(model, squared, records, np.zeros(1), orders, "auto", system_randomness()).tolist()  # half way to 4
[2.0]
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.canaries.carrying import CarriedLoss, CarriedRecords, CarryingModel, pull_on, read_canary_table
from quietsum.learning.canaries.party import CanaryRound
from quietsum.learning.checks.before_training import refuse_unsound, while_checking
from quietsum.learning.checks.numpy_step import MadeUp
from quietsum.learning.checks.step import CheckedStep
from quietsum.learning.clients.vectors import ModelLayout, Vector
from quietsum.learning.clipping import Flat
from quietsum.learning.distributed.wrapped import refuse_several, refuse_wrapped
from quietsum.learning.engines.batch_mixing import SteadyEngine, keep_unchanged, refuse_mixing
from quietsum.learning.engines.protocol import Batch, Engine, Loss, engine_for, losses_of, rows_of
from quietsum.learning.noise.gradient_noise import TorchNoise, find_uncovered_norms, float_margin, more_noise
from quietsum.learning.rehearsal import rehearse_large, training
from quietsum.learning.rows.people import bound_people
from quietsum.learning.rows.records import Records
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.privacy import PrivacyUnit
from quietsum.sampling import Everyone, Poisson, Sampling

if TYPE_CHECKING:
    from quietsum.mechanisms import ClippedSum
    from quietsum.plan import LocalOrders

__all__ = ["LocalSteps", "local_steps"]

log = logging.getLogger(__name__)

People = Sequence[Any] | NDArray[Any]


def local_steps(
    model: nn.Module,
    loss: Loss,
    records: Batch,
    params: Vector,
    orders: LocalOrders,
    engine: str,
    rng: RandomSource,
    people: People | None = None,
) -> Vector:
    """One round of one party, new − old weights; who has many rounds to run keeps a :class:`LocalSteps`."""
    return LocalSteps(model, loss, engine=engine).run(records, params, orders, rng, people=people)


@final
class LocalSteps:
    """One model and its engine, used for one party after the other. Nothing of a party stays behind.

    Guarantees: with ``orders.mechanism`` the result of :meth:`run` is a function of ``orders.steps`` releases of that
    mechanism's noise on batches of ``orders.sampling``, of ``params`` and of public numbers, so it costs
    ``orders.sampling.amplify(orders.mechanism.event())`` that often; records that cannot be differentiated count as
    zero, in silence. With ``orders.max_records`` no person has more records than that when batches are drawn. Weights,
    buffers and modes of the model do not carry anything from one run to the next.
    """

    def __init__(self, model: nn.Module, loss: Loss, *, engine: str = "auto") -> None:
        refuse_wrapped(model)
        refuse_several("the work of a federation's parties")
        with training(model):
            refuse_mixing(model)  # statistics over a batch do not travel in an update either
        self.layout = ModelLayout.of(model)
        self._model, self._loss, self._name = model, loss, engine
        self._parameters = self.layout.parameters(model)
        self._device = self._parameters[0].device
        self._made: tuple[float, int, Engine] | None = None
        self._with_them: tuple[nn.Module, Loss] | None = None
        self._noise: TorchNoise | None = None
        self._rng: RandomSource | None = None

    def run(
        self,
        records: Batch,
        params: Vector,
        orders: LocalOrders,
        rng: RandomSource,
        *,
        people: People | None = None,
        carried: CanaryRound | None = None,
    ) -> Vector:
        """New − old weights after ``orders.steps`` steps on ``records``, from the weights ``params``.

        With ``carried`` canaries go through every step, and what it releases of them is recorded there; the result has
        the law that it has without them.
        """
        records = _of_people(records, people, orders.max_records)
        if orders.mechanism is None:
            return self._descend(params, orders, self._plainly(records, orders, rng))
        if carried is not None:
            return self._descend(params, orders, self._carrying(records, orders, orders.mechanism, rng, carried))
        step, draw = self._private(orders, orders.mechanism, rng), self._draw(records, orders, rng)
        return self._descend(params, orders, lambda: step.gradient(draw()))

    def run_on_public(self, records: Batch, params: Vector, orders: LocalOrders, rng: RandomSource) -> Vector:
        """The same steps with the clip of ``orders.mechanism`` and **without its noise**: for records that are public.

        Guarantees: none of privacy. Only the server does it, with a root set.
        """
        if orders.mechanism is None:
            return self._descend(params, orders, self._plainly(records, orders, rng))
        step, draw = self._private(orders, orders.mechanism, rng), self._draw(records, orders, rng)
        return self._descend(
            params, orders, lambda: [part / orders.expected_batch for part in step.deterministic(draw())]
        )

    def _draw(self, records: Batch, orders: LocalOrders, rng: RandomSource) -> Callable[[], Batch]:
        """The batches of a round, one a call. Records lie on a card for the round where they are read often enough."""
        rows = Records.of(records)
        draws = (orders.sampling.draw(len(rows), rng) for _ in range(orders.steps))
        batches = rows.read(draws, self._device, stay=orders.steps * orders.expected_batch >= len(rows))
        return lambda: next(batches)[1]

    def _plainly(self, records: Batch, orders: LocalOrders, rng: RandomSource) -> Callable[[], Sequence[Tensor]]:
        draw = self._draw(records, orders, rng)
        return lambda: self._plain(draw(), orders.expected_batch)

    def _descend(self, params: Vector, orders: LocalOrders, gradient: Callable[[], Sequence[Tensor]]) -> Vector:
        """The steps; ``gradient`` draws a batch and returns what a step goes by."""
        with keep_unchanged(self._model, weights=False), training(self._model), torch.enable_grad():
            self.layout.write(self._model, params)
            start = [parameter.detach().clone() for parameter in self._parameters]
            velocity = [torch.zeros_like(parameter) for parameter in start]
            for _ in range(orders.steps):
                self._move(gradient(), start, velocity, orders)
            with torch.no_grad():
                change = [now.double() - old.double() for now, old in zip(self._parameters, start, strict=True)]
        delta = self.layout.join(change)
        if not np.isfinite(delta).all():
            problem = "made the weights overflow"
            raise InvalidParameter("learning_rate", orders.learning_rate, problem, "take smaller steps")
        return delta

    def clipped_sum(
        self, records: Batch, params: Vector, orders: LocalOrders, rng: RandomSource, *,
        max_norm: float, people: People | None = None,
    ) -> Vector:  # fmt: skip
        """Σ clip_C(∇ℓ_i) over one batch of ``orders.sampling``, in float64 and **without noise**: private.

        What a party adds to a sum whose noise is distributed (:mod:`quietsum.mechanisms.distributed`); it never leaves
        the party as it is. Guarantees: the batches are those of :meth:`run`; one record moves the sum by at most
        ``max_norm``, the rounding of the sum included: gradients are clipped to ``max_norm`` / (1 + its allowance,
        :func:`~quietsum.learning.noise.gradient_noise.float_margin`), since here no noise can be made larger for it. A
        record that cannot be differentiated counts as zero, in silence.
        """
        records = _of_people(records, people, orders.max_records)
        rounding = max(float_margin(dtype, orders.expected_batch) for dtype in {p.dtype for p in self._parameters})
        with keep_unchanged(self._model, weights=False), training(self._model), torch.enable_grad():
            step = self._private(orders, _without_noise(max_norm / (1 + rounding)), rng)
            self.layout.write(self._model, params)
            drawn = self._draw(records, dataclasses.replace(orders, steps=1), rng)()
            parts = step.deterministic(drawn)
            total = self.layout.join([part.detach().double() for part in parts])
        return np.where(np.isfinite(total), total, 0.0)

    def _move(
        self, mean: Sequence[Tensor], start: Sequence[Tensor], velocity: list[Tensor], orders: LocalOrders
    ) -> None:
        with torch.no_grad():
            for place, parameter in enumerate(self._parameters):
                pull = mean[place]
                if orders.proximal:
                    pull = pull + orders.proximal * (parameter - start[place])
                velocity[place] = pull if not orders.momentum else orders.momentum * velocity[place] + pull
                parameter.sub_(velocity[place], alpha=orders.learning_rate)

    # ----------------------------------------------------------------------------------------- with privacy

    def _carrying(
        self, records: Batch, orders: LocalOrders, mechanism: ClippedSum, rng: RandomSource, carried: CanaryRound
    ) -> Callable[[], Sequence[Tensor]]:
        """Steps with canaries behind the records; the model goes on with what they release of itself alone."""
        step = self._private(orders, mechanism, rng, canaries=len(carried.included))
        assert self._with_them is not None
        marks = carried.coordinates + 1
        rows = CarriedRecords(Records.of(records), marks, self._with_them)
        carried.more = step.mechanism.more([one.detach() for one in step.engine.parameters])

        def gradient() -> Sequence[Tensor]:
            drawn = orders.sampling.draw(len(rows), rng)
            released: Sequence[Tensor] = step.gradient(rows.batch(drawn, self._device))
            carried.take(rows.coordinates(drawn), read_canary_table(step, released[-1:])[0])
            return released[:-1]

        return gradient

    def _private(
        self, orders: LocalOrders, mechanism: ClippedSum, rng: RandomSource, *, canaries: int = 0
    ) -> PrivateStep:
        """The step of these orders. The engine is made once for each bound; noise that was drawn ahead is used up."""
        if self._made is None or self._made[:2] != (mechanism.max_norm, canaries):
            model, loss = self._model, self._loss
            if canaries:
                model, loss = self._with_them = self._carry(canaries, mechanism.max_norm)
            self._made = (mechanism.max_norm, canaries, _engine(model, loss, self._name, mechanism.max_norm))
        known = self._noise
        alike = known is not None and (known.mode, known.expected_batch) == (mechanism.mode, orders.expected_batch)
        if known is None or not alike or self._rng is not rng:
            known = self._noise = _noise(orders, mechanism, rng)
            self._rng = rng
        noise = known.rescale(noise_multiplier=mechanism.noise_multiplier, sensitivity=mechanism.max_norm)
        return _step(self._made[2], orders, mechanism, noise, rng)

    def _carry(self, canaries: int, max_norm: float) -> tuple[nn.Module, Loss]:
        """Model and loss with so many canaries."""
        return CarryingModel(self._model, canaries), CarriedLoss(self._loss, pull_on(max_norm))

    def check(self, records: Records, orders: LocalOrders) -> None:
        """Refuse a step that is not what it claims: clip, noise and sampling are tried on made-up rows.

        Guarantees: of ``records`` only the shape is looked at, and the model is afterwards what it was. Where records'
        noise comes in shares, the same clip and sampling are tried with noise of that size. Without either nothing is
        claimed, and nothing is checked.
        """
        mechanism = orders.mechanism or _in_place_of_shares(orders)
        if mechanism is None:
            return
        made_up = records.make_up()
        rows = tuple((part.float() if part.dtype is torch.bfloat16 else part).cpu().numpy() for part in made_up)
        with keep_unchanged(self._model), training(self._model):
            classes = 2
            if self._loss is cross_entropy:
                with torch.no_grad(), while_checking(self._model):
                    classes = int(self._model(made_up[0].to(self._device)).shape[-1])

            def make(some: nn.Module) -> PrivateStep:
                engine, rng = _engine(some, self._loss, self._name, mechanism.max_norm), system_randomness()
                return _step(engine, orders, mechanism, _noise(orders, mechanism, rng), rng)

            step = CheckedStep(
                make, self._model, rows=MadeUp.like(rows, below=classes),
                population=max(1, round(orders.expected_batch / _rate(orders.sampling))), name="the local step",
            )  # fmt: skip
            rehearse_large(self._model, self._loss, records, self._device, expected_batch=orders.expected_batch)
            refuse_unsound(step, self._model)
            if orders.canaries:
                self._check_canaries(made_up, orders, mechanism)
        if mechanism.mode.value == "secure" and (told := find_uncovered_norms(self._model)):
            log.warning("%s", told)
        noise = _noise(orders, mechanism, system_randomness())
        if told := more_noise(noise, tuple(p for p in self._model.parameters() if p.requires_grad)):
            log.warning("%s", told)

    def _check_canaries(self, made_up: Batch, orders: LocalOrders, mechanism: ClippedSum) -> None:
        """Try the step with canaries on made-up rows: at a site its failure is hidden, and noise alone would leave."""
        model, loss = self._carry(orders.canaries, mechanism.max_norm)
        rng, rows = system_randomness(), rows_of(made_up)
        engine = _engine(model, loss, self._name, mechanism.max_norm)
        step = _step(engine, orders, mechanism, _noise(orders, mechanism, rng), rng)
        marks = torch.arange(rows).clamp(max=1)  # canary 1 behind the first row
        found = step.deterministic(tuple(part.to(self._device) for part in (*made_up, marks)))[-1].flatten()
        wanted = torch.zeros_like(found)
        wanted[1] = mechanism.max_norm * (rows - 1)
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-3 * mechanism.max_norm):
            problem = "cannot carry canaries: what it makes of theirs is not the clip bound in their own coordinate"
            raise InvalidParameter(
                "training.canaries", orders.canaries, problem, "leave them out, or choose another engine"
            )

    # -------------------------------------------------------------------------------------- without privacy

    def _plain(self, batch: Batch, expected_batch: float) -> Sequence[Tensor]:
        """Σ ∇ℓ_i over the public divisor, by one backward pass; an example that is not finite counts as zero."""
        rows = rows_of(batch)
        if not rows:
            return [torch.zeros_like(parameter) for parameter in self._parameters]
        total = self._sum(batch, rows)
        if not all(bool(torch.isfinite(part).all()) for part in total):
            total = [torch.zeros_like(part) for part in total]
            for row in range(rows):
                one = self._sum(tuple(part[row : row + 1] for part in batch), 1)
                if all(bool(torch.isfinite(part).all()) for part in one):
                    total = [whole + part for whole, part in zip(total, one, strict=True)]
        return [part / expected_batch for part in total]

    def _sum(self, batch: Batch, rows: int) -> list[Tensor]:
        losses = losses_of(self._loss, self._model, batch, rows)
        found = torch.autograd.grad(losses.sum(), self._parameters, allow_unused=True)
        return [torch.zeros_like(p) if part is None else part for part, p in zip(found, self._parameters, strict=True)]


def _in_place_of_shares(orders: LocalOrders) -> ClippedSum | None:
    """The clip of records whose noise comes in shares, with as much noise in one place: for trying the step alone."""
    noise = orders.distributed
    if noise is None or noise.unit is not PrivacyUnit.RECORD:
        return None
    from quietsum.mechanisms import ClippedSum

    return ClippedSum(max_norm=noise.max_norm, noise_multiplier=noise.noise_multiplier)


def _without_noise(max_norm: float) -> ClippedSum:
    """The bound of a step whose noise is added elsewhere; nothing is drawn from it."""
    from quietsum.mechanisms import ClippedSum

    return ClippedSum(max_norm=max_norm, noise_multiplier=1.0)


def _engine(model: nn.Module, loss: Loss, name: str, max_norm: float) -> Engine:
    with training(model):
        made = engine_for(name, model, loss, Flat(max_norm=max_norm))
    return SteadyEngine(made, model, loss)


def _noise(orders: LocalOrders, mechanism: ClippedSum, rng: RandomSource) -> TorchNoise:
    return TorchNoise(
        noise_multiplier=mechanism.noise_multiplier, sensitivity=mechanism.max_norm, mode=mechanism.mode.value,
        expected_batch=orders.expected_batch, source=rng,
    )  # fmt: skip


def _step(
    engine: Engine, orders: LocalOrders, mechanism: ClippedSum, noise: TorchNoise, rng: RandomSource
) -> PrivateStep:
    """The step whose clip, noise, sampling and event are those of the orders."""
    if noise.event() != mechanism.event() or noise.failure(1) != mechanism.failure(1):
        raise QuietsumError("the noise is not the one that was planned and charged; this is a fault of quietsum")
    sampling = Poisson(rate=_rate(orders.sampling))
    return PrivateStep(engine, sampling=sampling, mechanism=noise, expected_batch=orders.expected_batch, rng=rng)


def _rate(sampling: Sampling) -> float:
    """The chance of each record to be in a batch."""
    if isinstance(sampling, Poisson):
        return sampling.rate
    if isinstance(sampling, Everyone):
        return 1.0
    problem = "is not how records are drawn here: each by its own coin, or all of them"
    raise InvalidParameter("sampling", type(sampling).__name__, problem, "use Poisson(rate=…) or Everyone()")


def _of_people(records: Batch, people: People | None, most: int | None) -> Batch:
    """The records that may be drawn: at most ``most`` of each person, in all draws."""
    if most is None:
        return records
    if people is None or len(people) != rows_of(records):
        problem = "cannot be kept: it is not known whose each record is"
        remedy = "give the task people(), one person per record, or leave person = {…} out of the plan"
        raise InvalidParameter("max_records", most, problem, remedy)
    kept = torch.from_numpy(bound_people(people, most=most))
    return tuple(part[kept] for part in records)
