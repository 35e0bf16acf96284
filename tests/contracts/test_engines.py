"""Every engine of ours keeps the engines' contract, and the contract catches engines that do not."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from quietsum.contracts import EngineContract  # noqa: E402
from quietsum.contracts.engines import MODELS  # noqa: E402
from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning import Batch, Clip, Engine, Loss, engine_for  # noqa: E402
from quietsum.learning.engines.protocol import ENGINES  # noqa: E402

PROMISES = sorted(name for name in dir(EngineContract) if name.startswith("test_"))
NOT_BY_OPACUS = {"padding", "recurrent"}  # it trains the padding too, and refuses fused layers
SERVED: dict[str, dict[str, Any]] = {
    "opacus": {"models": tuple(kind for kind in MODELS if kind not in NOT_BY_OPACUS)},
    "opacus-ghost": {
        "models": tuple(kind for kind in MODELS if kind not in {*NOT_BY_OPACUS, "shared"}),
        "clips": ("flat", "automatic"),  # it knows one L2 norm for each record
    },
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def contract_of(make: Any, **fields: Any) -> EngineContract:
    words = {"make": lambda self, model, loss, clip, micro_batch=None: make(model, loss, clip, micro_batch), **fields}
    contract: EngineContract = type("Contract", (EngineContract,), words)()
    return contract


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_our_engines_keep_the_contract(name: str, promise: str) -> None:
    def make(model: nn.Module, loss: Loss, clip: Clip, micro_batch: int | None) -> Engine:
        return engine_for(name, model, loss, clip, micro_batch=micro_batch)

    getattr(contract_of(make, **SERVED.get(name, {})), promise)()


# ----------------------------------------------------------------------------------------- broken engines


class Plain:
    """An honest loop over records, of which each mutant overrides one method."""

    name = "plain"
    why = "a loop over records"

    def __init__(self, model: nn.Module, loss: Loss, clip: Clip, micro_batch: int | None) -> None:
        self.model, self.loss, self.clip, self.micro_batch = model, loss, clip, micro_batch
        named = [(name, one) for name, one in model.named_parameters() if self.trains(one)]
        self.parameters = tuple(one for _, one in named)
        self.groups = clip.groups([name for name, _ in named])
        self.norms: list[float] = []

    def trains(self, parameter: nn.Parameter) -> bool:
        return parameter.requires_grad

    def losses(self, batch: Batch) -> Tensor:
        losses = self.loss(self.model, batch)
        if losses.shape != (len(batch[0]),):
            raise InvalidParameter("loss", tuple(losses.shape), "is not one value for each record")
        return losses

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)

    def scale(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        """One record's gradient, clipped, and its norm."""
        sizes = [torch.cat([parts[p].flatten() for p in group]).norm(p=self.clip.order) for group in self.groups]
        factors = self.clip.factors(torch.stack(sizes)[None])[0]
        where = {place: number for number, group in enumerate(self.groups) for place in group}
        whole = float(torch.stack(sizes).norm(p=self.clip.order))
        if not np.isfinite(whole):
            return [torch.zeros_like(part) for part in parts], whole
        return [part * factors[where[place]] for place, part in enumerate(parts)], whole

    def piece(self, batch: Batch) -> list[Tensor]:
        total = [torch.zeros_like(one) for one in self.parameters]
        for row in range(len(batch[0])):
            parts, norm = self.scale(self.gradients(self.losses(tuple(part[row : row + 1] for part in batch))[0]))
            self.norms.append(norm)
            total = [whole + part for whole, part in zip(total, parts, strict=True)]
        return total

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        self.norms = []
        total = [torch.zeros_like(one) for one in self.parameters]
        rows = len(batch[0])
        if rows:
            self.losses(batch)
        for start in range(0, rows, self.micro_batch or max(rows, 1)):
            stop = start + (self.micro_batch or rows)
            found = self.piece(tuple(part[start:stop] for part in batch))
            total = [whole + part for whole, part in zip(total, found, strict=True)]
        return tuple(part.detach() for part in total)

    def small_norms(self) -> Tensor:
        return torch.tensor(sum(norm <= self.clip.max_norm for norm in self.norms))


class ClipsTheBatch(Plain):
    """The gradient of the mean is clipped, and multiplied by the batch."""

    def piece(self, batch: Batch) -> list[Tensor]:
        parts, norm = self.scale(self.gradients(self.losses(batch).mean()))
        self.norms += [norm] * len(batch[0])
        return [len(batch[0]) * part for part in parts]


class ClipsTheSum(Plain):
    """All gradients are added, then clipped to as many norms as there are records."""

    def piece(self, batch: Batch) -> list[Tensor]:
        parts = self.gradients(self.losses(batch).sum())
        bound = self.clip.max_norm * len(batch[0])
        norm = float(torch.cat([part.flatten() for part in parts]).norm())
        return [part * min(1.0, bound / norm) for part in parts]


class ClipsEachParameter(Plain):
    """Every parameter is cut at the whole clip norm."""

    def scale(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        _, norm = super().scale(parts)
        return [part * min(1.0, self.clip.max_norm / max(float(part.norm()), 1e-9)) for part in parts], norm


class ForgetsTheBias(Plain):
    """Vectors are scaled, and are not in the norm."""

    def scale(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        norm = float(torch.cat([part.flatten() for part in parts if part.dim() > 1]).norm(p=self.clip.order))
        return [part * min(1.0, self.clip.max_norm / norm) for part in parts], norm


class Averages(Plain):
    """The mean of clipped gradients, not their sum."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(part / max(len(batch[0]), 1) for part in super().clipped_sum(batch))


class DropsTheLast(Plain):
    """One record is left out."""

    def piece(self, batch: Batch) -> list[Tensor]:
        return super().piece(tuple(part[:-1] for part in batch) if len(batch[0]) > 1 else batch)


class NeverClips(Plain):
    """Gradients are added as they are."""

    def scale(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        return list(parts), super().scale(parts)[1]


class Unbatched(Plain):
    """The first record of a batch counts twice."""

    def piece(self, batch: Batch) -> list[Tensor]:
        twice = [0, *range(len(batch[0]))]
        return super().piece(tuple(part[twice] for part in batch))


class LetsNanPass(Plain):
    """Zero times NaN is NaN."""

    def scale(self, parts: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        norm = torch.cat([part.flatten() for part in parts]).norm()
        return [part * (self.clip.max_norm / norm).clamp(max=1.0).nan_to_num(0.0) for part in parts], float(norm)


class DropsTheBatchWithNan(Plain):
    """One bad record takes the others with it."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        found = super().clipped_sum(batch)
        return found if np.isfinite(self.norms).all() else tuple(torch.zeros_like(part) for part in found)


class CountsNanAsSmall(Plain):
    """A norm that is not finite is no large one."""

    def small_norms(self) -> Tensor:
        return torch.tensor(sum(not norm > self.clip.max_norm or norm == np.inf for norm in self.norms))


class Rounds(Plain):
    """What is clipped was rounded to half precision, unless the model is in double."""

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        parts = super().gradients(loss)
        return parts if loss.dtype == torch.float64 else [part.bfloat16().float() for part in parts]


class TrainsTheFrozen(Plain):
    """Frozen parameters are named among the trainable ones, with zeros."""

    def trains(self, parameter: nn.Parameter) -> bool:
        return True

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        some = [one for one in self.parameters if one.requires_grad]
        found = iter(torch.autograd.grad(loss, some, allow_unused=True, materialize_grads=True))
        return [next(found) if one.requires_grad else torch.zeros_like(one) for one in self.parameters]


class KeepsTheGraph(Plain):
    """The sum can be differentiated, and holds every record's activations."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        return tuple(part.requires_grad_() for part in super().clipped_sum(batch))


class NothingForNothing(Plain):
    """An empty batch gives no tensors."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        return super().clipped_sum(batch) if len(batch[0]) else ()


class CountsTheLastPiece(Plain):
    """Of micro-batches only the last one's norms are known."""

    def piece(self, batch: Batch) -> list[Tensor]:
        self.norms = []
        return super().piece(batch)


class ClipsEachPiece(ClipsTheBatch):
    """The mean of each micro-batch is clipped, which is right for pieces of one record."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        self.micro_batch = self.micro_batch or 1
        return super().clipped_sum(batch)


class CountsTheLarge(Plain):
    """How many were cut, not how many were not."""

    def small_norms(self) -> Tensor:
        return torch.tensor(len(self.norms)) - super().small_norms()


class Stale(Plain):
    """What was summed stays, and the next batch is added."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        found, last = super().clipped_sum(batch), getattr(self, "_last", None)
        self._last = found if last is None else tuple(one + two for one, two in zip(found, last, strict=True))
        return self._last


class OldWeights(Plain):
    """Gradients at the weights of the beginning."""

    def __init__(self, model: nn.Module, loss: Loss, clip: Clip, micro_batch: int | None) -> None:
        super().__init__(model, loss, clip, micro_batch)
        here, self.model = self.parameters, copy.deepcopy(model)
        self._there = tuple(one for one in self.model.parameters() if one.requires_grad)
        self.parameters = here

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(loss, self._there, allow_unused=True, materialize_grads=True)


class FillsGrad(Plain):
    """The sum is in ``.grad`` as well."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        found = super().clipped_sum(batch)
        for parameter, part in zip(self.parameters, found, strict=True):
            parameter.grad = part.clone()
        return found


class LeavesHooks(Plain):
    """A hook stays on the first module."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        next(self.model.modules()).register_forward_hook(lambda module, given, made: None)
        return super().clipped_sum(batch)


class MovesWeights(Plain):
    """A weight is a little different afterwards."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        found = super().clipped_sum(batch)
        with torch.no_grad():
            self.parameters[0].mul_(1 + 1e-12)
        return found


class ScalesTheBatch(Plain):
    """The caller's tensors are changed in place."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        found = super().clipped_sum(batch)
        batch[2].mul_(2)
        return found


class StaysInEval(Plain):
    """An error leaves the model in another mode."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        self.model.eval()
        found = super().clipped_sum(batch)
        self.model.train()
        return found


class TakesAnyLoss(Plain):
    """A mean over the batch is taken for every record's loss."""

    def losses(self, batch: Batch) -> Tensor:
        return self.loss(self.model, batch).expand(len(batch[0]))


class Seeds(Plain):
    """Torch's generator is set for its own use."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        return super().clipped_sum(batch)


class Shuffles(Plain):
    """It draws from Python's generator."""

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        random.random()
        return super().clipped_sum(batch)


class Nameless(Plain):
    """Reports would print an empty name."""

    name = ""


MUTANTS: dict[type[Plain], str] = {
    ClipsTheBatch: "test_the_sum_is_that_of_a_loop_over_records",
    ClipsTheSum: "test_the_sum_is_that_of_a_loop_over_records",
    ForgetsTheBias: "test_the_sum_is_that_of_a_loop_over_records",
    Averages: "test_the_sum_is_that_of_a_loop_over_records",
    DropsTheLast: "test_the_sum_is_that_of_a_loop_over_records",
    Rounds: "test_the_sum_is_that_of_the_loop_in_single_precision",
    ClipsEachParameter: "test_no_record_adds_more_than_the_clip_norm",
    NeverClips: "test_no_record_adds_more_than_the_clip_norm",
    Unbatched: "test_records_do_not_meet",
    LetsNanPass: "test_a_record_without_a_finite_gradient_adds_nothing",
    DropsTheBatchWithNan: "test_a_record_without_a_finite_gradient_adds_nothing",
    CountsNanAsSmall: "test_a_record_without_a_finite_gradient_adds_nothing",
    TrainsTheFrozen: "test_one_tensor_for_each_trainable_parameter",
    KeepsTheGraph: "test_one_tensor_for_each_trainable_parameter",
    NothingForNothing: "test_an_empty_batch_gives_zeros",
    CountsTheLastPiece: "test_micro_batches_do_not_change_the_sum",
    ClipsEachPiece: "test_micro_batches_do_not_change_the_sum",
    CountsTheLarge: "test_small_norms_are_counted",
    Stale: "test_every_batch_begins_anew",
    OldWeights: "test_every_batch_begins_anew",
    FillsGrad: "test_the_model_is_left_as_it_was",
    LeavesHooks: "test_the_model_is_left_as_it_was",
    MovesWeights: "test_the_model_is_left_as_it_was",
    ScalesTheBatch: "test_the_model_is_left_as_it_was",
    StaysInEval: "test_an_error_of_the_loss_leaves_no_trace",
    TakesAnyLoss: "test_a_loss_of_the_whole_batch_is_refused",
    Seeds: "test_global_randomness_is_left_alone",
    Shuffles: "test_global_randomness_is_left_alone",
    Nameless: "test_it_says_its_name_and_why",
}


@pytest.mark.parametrize("promise", PROMISES)
def test_the_honest_engine_behind_the_broken_ones_keeps_the_contract(promise: str) -> None:
    getattr(contract_of(Plain), promise)()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_an_engine_that_breaks_a_promise_is_caught(mutant: type[Plain]) -> None:
    with pytest.raises(AssertionError):
        getattr(contract_of(mutant), MUTANTS[mutant])()


def test_an_engine_that_serves_what_it_should_refuse_is_caught() -> None:
    """``Plain`` is right for every model; the contract only knows that its owner said otherwise."""
    for fields in ({"models": ("linear",)}, {"clips": ("flat",)}):
        with pytest.raises(AssertionError, match="must be refused or listed"):
            contract_of(Plain, **fields).test_what_it_does_not_serve_is_refused()


def test_every_promise_has_a_broken_engine_that_it_catches() -> None:
    assert set(MUTANTS.values()) | {"test_what_it_does_not_serve_is_refused"} == set(PROMISES)
