"""Stacks of dense layers run without torch's graph: the same sums, and torch's own way where something is unusual."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from learning.models import cross_entropy
from quietsum.learning.clipping import Clip, Flat, FlatL1, PerLayer
from quietsum.learning.engines.dense import DenseStack
from quietsum.learning.engines.protocol import engine_for

torch.manual_seed(11)


def rows(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, 5, generator=generator, dtype=torch.float64) * 3
    return inputs, torch.randint(0, 3, (count,), generator=generator)


def tower(activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(5, 7), activation(), nn.Linear(7, 6), activation(), nn.Linear(6, 3)).double()


def passes(model: nn.Module, batch: tuple[Tensor, ...], clip: Clip, loss: Callable[..., Tensor]) -> int:
    """Compare with the loop on three batches; how many ran outside torch's graph, where the first one is checked."""
    ran = 0
    run = DenseStack._run

    def counted(self: DenseStack, x: Tensor) -> Tensor:
        nonlocal ran
        out = run(self, x)
        ran += out.is_leaf
        return out

    engine = engine_for("bookkeeping", model, loss, clip)
    naive = engine_for("naive", model, loss, clip)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DenseStack, "_run", counted)
        for _ in range(3):
            found, wanted = engine.clipped_sum(batch), naive.clipped_sum(batch)
            for one, two in zip(found, wanted, strict=True):
                assert torch.allclose(one, two, rtol=1e-10, atol=1e-12)
    assert "forward" not in model.__dict__ and all("forward" not in m.__dict__ for m in model.modules())
    return ran


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("clip", [Flat(max_norm=0.3), PerLayer(max_norm=0.3), FlatL1(max_norm=2.0)])
def test_a_stack_equals_the_loop_and_runs_outside_the_graph(activation: type[nn.Module], clip: Clip) -> None:
    assert passes(tower(activation), rows(), clip, cross_entropy) == 2


def test_a_stack_that_ends_in_an_activation_equals_the_loop() -> None:
    model = nn.Sequential(*tower(), nn.Sigmoid())
    assert passes(model, rows(), Flat(max_norm=0.3), cross_entropy) == 2


@pytest.mark.parametrize("frozen", [0, 2, 4])
def test_frozen_layers_are_passed_through(frozen: int) -> None:
    model = tower()
    model[frozen].requires_grad_(False)
    assert passes(model, rows(), Flat(max_norm=0.3), cross_entropy) == 2


def test_a_frozen_bias_alone_is_passed_through() -> None:
    model = tower()
    model[2].bias.requires_grad_(False)
    assert passes(model, rows(), Flat(max_norm=0.3), cross_entropy) == 2


class Twice(nn.Module):
    """One stack, used on two halves of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = tower()

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(x) + self.stack(-2 * x)


class Behind(nn.Module):
    """A stack behind a layer that is trained: its input needs gradients, so torch runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5).double()
        self.stack = tower()

    def forward(self, x: Tensor) -> Tensor:
        return self.stack(torch.tanh(self.first(x)))


def test_a_stack_that_is_used_twice_equals_the_loop() -> None:
    model = Twice()
    assert passes(model, rows(), Flat(max_norm=0.3), cross_entropy) == 4


def test_a_stack_behind_trained_layers_is_left_to_torch() -> None:
    assert passes(Behind(), rows(), Flat(max_norm=0.3), cross_entropy) == 0


def test_tied_layers_equal_the_loop() -> None:
    model = tower()
    wide = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), *tower()).double()
    wide[2].weight = wide[0].weight
    assert passes(wide, rows(), Flat(max_norm=0.3), cross_entropy) == 2
    assert model[0].weight is not wide[0].weight


def test_hooks_on_a_layer_still_run() -> None:
    model, heard = tower(), []
    model[2].register_forward_hook(lambda *_: heard.append(1))
    assert passes(model, rows(), Flat(max_norm=0.3), cross_entropy) == 0
    assert heard


def test_a_hook_that_is_added_later_runs() -> None:
    model, heard = tower(), []
    engine = engine_for("bookkeeping", model, cross_entropy, Flat(max_norm=0.3))
    engine.clipped_sum(rows())
    model[0].register_forward_pre_hook(lambda *_: heard.append(1))
    engine.clipped_sum(rows())
    assert heard


def test_a_loss_that_writes_into_the_scores_is_run_by_torch() -> None:
    def doubled(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        scores = model(batch[0])
        scores.mul_(2.0)
        return nn.functional.cross_entropy(scores, batch[1], reduction="none")

    passes(tower(), rows(), Flat(max_norm=0.3), doubled)


def test_an_example_that_is_not_finite_is_dropped_alone() -> None:
    inputs, labels = rows()
    inputs[4, 1] = float("nan")
    assert passes(tower(), (inputs, labels), Flat(max_norm=0.3), cross_entropy) == 2


def test_a_penalty_on_the_weights_is_still_refused() -> None:
    from quietsum.errors import InvalidParameter

    def penalised(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return cross_entropy(model, batch) + model.get_parameter("0.weight").square().sum()

    with pytest.raises(InvalidParameter, match="outside the forward"):
        engine_for("bookkeeping", tower(), penalised, Flat(max_norm=0.3)).clipped_sum(rows())


def test_the_comparison_would_see_a_wrong_slope(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.learning.engines import dense

    wrong = dense._Activation(torch.tanh_, lambda g, out: g)
    monkeypatch.setattr(dense, "_ACTIVATIONS", {**dense._ACTIVATIONS, nn.Tanh: wrong})
    with pytest.raises(AssertionError):
        passes(tower(), rows(), Flat(max_norm=0.3), cross_entropy)
