"""The promises of every engine, as tests that an engine of your own can run as well.

An engine computes Σ_i clip(∇loss_i), the sum that the noise of DP-SGD is made for. If it clips a batch instead of each
record, forgets a layer in the norm or keeps a gradient of the last batch, the model still learns and the accountant
still prints the same ε, which is then wrong. The suite compares the engine with a loop over single records, written
out here in plain torch, on small models of different kinds, and looks for what may slip in besides.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from quietsum.errors import QuietsumError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quietsum.learning import Batch, Clip, Engine, Loss

__all__ = ["EngineContract"]

CLIPS = ("flat", "per layer", "automatic", "L1")
MODELS = ("linear", "convolution", "embedding", "padding", "recurrent", "shared", "frozen")


class EngineContract:
    """The suite. A subclass says how its engine is made.

    ``models`` and ``clips`` name what the engine serves, out of :data:`MODELS` and :data:`CLIPS`; it must refuse the
    others with an error of :mod:`quietsum.errors`, when it is made or at the first batch. ``margin`` is what its sum
    may differ by from the loop's in float64, relative to the clip norm times the number of records, and
    ``single_margin`` in float32.
    """

    rows = 6
    margin = 1e-10
    single_margin = 1e-5
    models: tuple[str, ...] = MODELS
    clips: tuple[str, ...] = CLIPS

    def make(self, model: nn.Module, loss: Loss, clip: Clip, micro_batch: int | None = None) -> Engine:
        """The engine under test, for ``model``; at most ``micro_batch`` records are in memory at a time, if given."""
        raise NotImplementedError("say in a subclass how your engine is made")

    # ------------------------------------------------------------------------------- words for the tests

    def model(self, kind: str) -> nn.Module:
        """A small model in float64 of one of the kinds in :data:`MODELS`, the same each time."""
        return _build(kind)

    def batch(self, kind: str, rows: int | None = None, seed: int = 0) -> Batch:
        """Inputs, labels and a weight for each record's loss, with gradients on both sides of a norm of 0.5."""
        import torch

        count = self.rows if rows is None else rows
        rng = np.random.default_rng([seed, 17])
        if kind in ("embedding", "padding"):
            inputs = torch.from_numpy(rng.integers(0, 7, size=(count, 4)))
        else:
            shape = {"convolution": (2, 5), "recurrent": (4, 3)}.get(kind, (4,))
            inputs = torch.from_numpy(rng.normal(size=(count, *shape)))
        labels = torch.from_numpy(rng.integers(0, 3, size=count))
        return inputs, labels, torch.from_numpy(np.geomspace(0.01, 30.0, max(count, 1))[:count])

    def clip(self, kind: str = "flat", max_norm: float = 0.5) -> Clip:
        """One of the rules in :data:`CLIPS`."""
        from quietsum.learning import Automatic, Flat, FlatL1, PerLayer

        rules: dict[str, Callable[..., Clip]] = {
            "flat": Flat,
            "per layer": PerLayer,
            "automatic": Automatic,
            "L1": FlatL1,
        }
        return rules[kind](max_norm=max_norm)

    def cases(self) -> Iterator[tuple[nn.Module, Batch, str]]:
        """Each model that the engine serves, with a batch and its kind."""
        for kind in self.models:
            yield self.model(kind), self.batch(kind), kind

    def sum(self, engine: Engine, batch: Batch) -> Tensor:
        """The engine's sum as one vector."""
        import torch

        return torch.cat([part.flatten() for part in engine.clipped_sum(batch)])

    def loop(self, model: nn.Module, batch: Batch, clip: Clip) -> tuple[Tensor, Tensor]:
        """The sum as one vector, and each record's norm, by a loop over records. Those not finite are left out."""
        import torch

        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        groups = clip.groups([name for name, _ in named])
        total = [torch.zeros_like(parameter) for _, parameter in named]
        whole = []
        for row in range(len(batch[0])):
            one = loss_of(model, tuple(part[row : row + 1] for part in batch))[0]
            parts = torch.autograd.grad(one, [p for _, p in named], allow_unused=True, materialize_grads=True)
            sizes = [torch.cat([parts[p].flatten() for p in group]).norm(p=clip.order) for group in groups]
            whole.append(torch.stack(sizes).norm(p=clip.order))
            if not bool(torch.isfinite(whole[-1])):
                continue
            factors = clip.factors(torch.stack(sizes)[None])[0]
            for number, group in enumerate(groups):
                for place in group:
                    total[place] += factors[number] * parts[place]
        return torch.cat([part.flatten() for part in total]), torch.stack(whole)

    def check_same(self, found: Tensor, expected: Tensor, scale: float, margin: float | None = None) -> None:
        """``found`` is ``expected`` but for rounding."""
        assert found.shape == expected.shape, "one number for each trainable number of the model"
        apart = float((found - expected).abs().max()) / scale if found.numel() else 0.0
        limit = self.margin if margin is None else margin
        assert apart <= limit, f"the sum is off by {apart:.2g} of the clip norm times the records, above {limit:.2g}"

    def check_loop(self, engine: Engine, model: nn.Module, batch: Batch, clip: Clip) -> None:
        """The engine's sum is that of the loop."""
        self.check_same(self.sum(engine, batch), self.loop(model, batch, clip)[0], clip.max_norm * len(batch[0]))

    # ------------------------------------------------------------------------------- the promises

    def test_the_sum_is_that_of_a_loop_over_records(self) -> None:
        """On every model, under every rule; with few parameters, shared ones and frozen ones."""
        for model, batch, _ in self.cases():
            for kind in self.clips:
                clip = self.clip(kind)
                self.check_loop(self.make(model, loss_of, clip), model, batch, clip)

    def test_the_sum_is_that_of_the_loop_in_single_precision(self) -> None:
        """Up to the rounding of float32; the sum has the type of its parameter."""
        import torch

        for model, batch, _ in self.cases():
            exact, scale = self.loop(model, batch, self.clip())[0], 0.5 * self.rows
            single = tuple(part.float() if part.is_floating_point() else part for part in batch)
            engine = self.make(model.float(), loss_of, self.clip())
            found = self.sum(engine, single)
            assert found.dtype == torch.float32, "the sum has the type of the parameters"
            self.check_same(found.double(), exact, scale, self.single_margin)

    def test_what_it_does_not_serve_is_refused(self) -> None:
        """With an error of ours, and not with a sum."""
        other = [(kind, "flat") for kind in MODELS if kind not in self.models]
        other += [(self.models[0], kind) for kind in CLIPS if kind not in self.clips]
        for kind, rule in other:
            try:
                self.make(self.model(kind), loss_of, self.clip(rule)).clipped_sum(self.batch(kind))
            except QuietsumError as error:
                assert str(error), "a refusal says what is wrong"
                continue
            raise AssertionError(f"the model {kind!r} under the clip {rule!r} must be refused or listed as served")

    def test_one_tensor_for_each_trainable_parameter(self) -> None:
        """In the model's order, of the parameter's shape, without a graph; frozen parameters get none."""
        for model, batch, kind in self.cases():
            engine = self.make(model, loss_of, self.clip())
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            parts = engine.clipped_sum(batch)
            assert [id(one) for one in engine.parameters] == [id(one) for one in trainable], kind
            assert [part.shape for part in parts] == [one.shape for one in trainable], kind
            assert not any(part.requires_grad for part in parts), "the sum is a value, without a graph"

    def test_no_record_adds_more_than_the_clip_norm(self) -> None:
        """Jointly over all parameters, however large its gradient is and for any other records."""
        for model, (inputs, labels, weights), _ in self.cases():
            for kind in self.clips:
                clip = self.clip(kind)
                engine = self.make(model, loss_of, clip)
                batch = inputs, labels, 1e6 * weights
                everyone = self.sum(engine, batch)
                for row in range(len(labels)):
                    others = [place for place in range(len(labels)) if place != row]
                    moved = float((everyone - self.sum(engine, rows_at(batch, others))).norm(p=clip.order))
                    room = clip.sensitivity * (1 + self.margin * self.rows)
                    assert moved <= room, f"record {row} moves the sum by {moved:.4g}, above {clip.sensitivity:.4g}"

    def test_records_do_not_meet(self) -> None:
        """Their order is irrelevant, a record counts as often as it comes, and parts of a batch add up."""
        for model, batch, _ in self.cases():
            engine, scale = self.make(model, loss_of, self.clip()), 0.5 * self.rows
            everyone, order = self.sum(engine, batch), list(range(self.rows))[::-1]
            self.check_same(self.sum(engine, rows_at(batch, order)), everyone, scale)
            self.check_same(self.sum(engine, rows_at(batch, [*order, *order])), 2 * everyone, 2 * scale)
            parts = [self.sum(engine, rows_at(batch, part)) for part in ([0, 1], order[:-2])]
            self.check_same(parts[0] + parts[1], everyone, scale)

    def test_a_record_without_a_finite_gradient_adds_nothing(self) -> None:
        """Neither to the sum nor to the count of small norms; the others count as if it were absent."""
        import torch

        for model, (inputs, labels, weights), _ in self.cases():
            engine, others = self.make(model, loss_of, self.clip()), [0, 2, 3, 5]
            expected = self.sum(engine, rows_at((inputs, labels, weights), others))
            small = int(engine.small_norms())
            for value in (math.nan, math.inf, -math.inf):
                spoilt = weights.clone()
                spoilt[1], spoilt[4] = value, math.nan
                self.check_same(self.sum(engine, (inputs, labels, spoilt)), expected, 0.5 * self.rows)
                assert int(engine.small_norms()) == small, "a gradient that is not finite has no small norm"
            if inputs.is_floating_point():
                broken = inputs.clone()
                broken[1].fill_(math.nan)
                broken[4].view(-1)[0] = math.nan
                self.check_same(self.sum(engine, (broken, labels, weights)), expected, 0.5 * self.rows)
            nothing = self.sum(engine, (inputs, labels, torch.full_like(weights, math.nan)))
            assert not bool(nothing.any()), "without a finite gradient the sum is zero"

    def test_an_empty_batch_gives_zeros(self) -> None:
        """A Poisson draw may be empty, also as the first one."""
        for model, batch, kind in self.cases():
            engine = self.make(model, loss_of, self.clip())
            for _ in range(2):
                parts = engine.clipped_sum(rows_at(batch, []))
                assert [part.shape for part in parts] == [one.shape for one in engine.parameters], kind
                assert not any(bool(part.any()) for part in parts), "no record, no gradient"
                assert int(engine.small_norms()) == 0, "no record, no norm"
                engine.clipped_sum(batch)

    def test_micro_batches_do_not_change_the_sum(self) -> None:
        """Of one record, of a few with a rest, and larger than the batch."""
        for model, batch, _ in self.cases():
            expected, norms = self.loop(model, batch, self.clip())
            for size in (1, 4, 100):
                engine = self.make(model, loss_of, self.clip(), micro_batch=size)
                self.check_same(self.sum(engine, batch), expected, 0.5 * self.rows)
                assert int(engine.small_norms()) == int((norms <= 0.5).sum()), "norms of all pieces are counted"

    def test_small_norms_are_counted(self) -> None:
        """Those of the last batch that are at most ``max_norm``, over all parameters."""
        for model, batch, _ in self.cases():
            norms = self.loop(model, batch, self.clip())[1].sort().values
            for place in (0, len(norms) // 2, len(norms) - 1):
                engine = self.make(model, loss_of, self.clip(max_norm=float(norms[place]) * (1 + 1e-6)))
                engine.clipped_sum(batch)
                assert int(engine.small_norms()) == place + 1, "norms of at most max_norm are counted, and no others"

    def test_every_batch_begins_anew(self) -> None:
        """Nothing stays of the last batch, nor of weights that were changed since."""
        import torch

        for model, batch, kind in self.cases():
            engine = self.make(model, loss_of, self.clip())
            for seed, rows in ((1, 3), (2, self.rows), (0, self.rows)):
                self.check_loop(engine, model, self.batch(kind, rows, seed), self.clip())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.7)
            self.check_loop(engine, model, batch, self.clip())

    def test_the_model_is_left_as_it_was(self) -> None:
        """Parameters, buffers, ``.grad``, hooks, mode and attributes; also the batch, which is the caller's."""
        import torch

        for model, batch, kind in self.cases():
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
            before, held, given = copy.deepcopy(model.state_dict()), _traces(model), [part.clone() for part in batch]
            self.make(model, loss_of, self.clip()).clipped_sum(batch)
            after = model.state_dict()
            assert list(after) == list(before), f"{kind}: the names of the state"
            assert all(torch.equal(after[name], value) for name, value in before.items()), f"{kind}: the state moved"
            for name, parameter in model.named_parameters():
                assert (parameter.grad is not None) == parameter.requires_grad, f"{kind}: .grad of {name}"
                assert parameter.grad is None or bool((parameter.grad == 1).all()), f"{kind}: .grad of {name}"
            assert _traces(model) == held, f"{kind}: hooks, modes and attributes of the modules"
            assert all(torch.equal(one, other) for one, other in zip(batch, given, strict=True)), "the batch moved"

    def test_an_error_of_the_loss_leaves_no_trace(self) -> None:
        """It is raised, or its records count as zero; the next batch has the right sum."""
        for model, batch, kind in self.cases():
            failing = [False]

            def loss(model: nn.Module, batch: Batch, failing: list[bool] = failing) -> Tensor:
                if failing[0]:
                    raise ArithmeticError("a record that the loss cannot take")
                return loss_of(model, batch)

            engine = self.make(model, loss, self.clip())
            engine.clipped_sum(batch)
            held, failing[0] = _traces(model), True
            try:
                nothing = self.sum(engine, batch)
            except ArithmeticError:
                pass
            else:
                assert not bool(nothing.any()), f"{kind}: records that raise add nothing"
            failing[0] = False
            assert _traces(model) == held, f"{kind}: hooks, modes and attributes of the modules"
            self.check_loop(engine, model, batch, self.clip())

    def test_a_loss_of_the_whole_batch_is_refused(self) -> None:
        """A mean over records leaves none that could be clipped."""
        for model, batch, kind in self.cases():
            try:
                self.make(model, lambda model, batch: loss_of(model, batch).mean(), self.clip()).clipped_sum(batch)
            except QuietsumError as error:
                assert str(error), "a refusal says what is wrong"
                continue
            raise AssertionError(f"{kind}: a loss without a value for each record must be refused")

    def test_global_randomness_is_left_alone(self) -> None:
        """Of torch, numpy and Python: a sum draws nothing that others would draw."""
        import torch

        for model, batch, kind in self.cases():
            before = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
            self.make(model, loss_of, self.clip()).clipped_sum(batch)
            assert torch.equal(torch.get_rng_state(), before[0]), f"{kind}: torch's generator moved"
            assert repr(np.random.get_state(legacy=False)) == repr(before[1]), f"{kind}: numpy's generator moved"
            assert random.getstate() == before[2], f"{kind}: Python's generator moved"

    def test_it_says_its_name_and_why(self) -> None:
        """Reports and the command line print both."""
        for model, batch, _ in self.cases():
            engine = self.make(model, loss_of, self.clip())
            engine.clipped_sum(batch)
            assert engine.name and engine.why, "an engine has a name and a reason"


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy of each record times its weight, the third part of the batch."""
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch[0]), batch[1], reduction="none") * batch[2]


def rows_at(batch: Batch, places: list[int]) -> Batch:
    """The records at ``places``."""
    return tuple(part[places] for part in batch)


def _traces(model: nn.Module) -> Any:
    """What an engine may leave on a model besides numbers."""
    modules = [
        (name, one.training, sorted(vars(one)), type(one), len(one._forward_hooks), len(one._forward_pre_hooks),
         len(one._backward_hooks), len(one._backward_pre_hooks), "forward" in vars(one))
        for name, one in model.named_modules()
    ]  # fmt: skip
    parameters = [(name, sorted(vars(one)), bool(one._backward_hooks)) for name, one in model.named_parameters()]
    return modules, parameters


def _build(kind: str) -> nn.Module:
    import torch
    from torch import nn

    class Words(nn.Module):
        """The mean of a few words' vectors; one word may be padding, which is never trained."""

        def __init__(self, padding: int | None = None) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(7, 4, padding_idx=padding), nn.Linear(4, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(self.words(tokens).mean(1))  # type: ignore[no-any-return]

    class Sequence(nn.Module):
        """An LSTM, of which the last output counts."""

        def __init__(self) -> None:
            super().__init__()
            self.steps, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

        def forward(self, series: Tensor) -> Tensor:
            return self.head(self.steps(series)[0][:, -1])  # type: ignore[no-any-return]

    class Twice(nn.Module):
        """One layer that is used twice, with a buffer between."""

        offset: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
            self.register_buffer("offset", torch.full((4,), 0.1))

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(torch.tanh(self.layer(torch.tanh(self.layer(inputs)) + self.offset)))  # type: ignore[no-any-return]

    makers: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)),
        "convolution": lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(20, 3)
        ),
        "embedding": Words,
        "padding": lambda: Words(0),
        "recurrent": Sequence,
        "shared": Twice,
        "frozen": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)),
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = makers[kind]().double()
    if kind == "frozen":
        model.get_submodule("0").requires_grad_(False)
        model.get_parameter("4.weight").requires_grad_(False)
    return model
