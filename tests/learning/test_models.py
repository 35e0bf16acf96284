"""Models that are unlike a stack of layers: every engine gives the sum of a plain loop, or refuses in plain words."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from quietsum.errors import InvalidParameter
from quietsum.learning import PrivacyConfig, PrivateTrainer, make_private
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer
from quietsum.learning.engines.protocol import engine_for
from quietsum.learning.step import cross_entropy

ENGINES = ("auto", "bookkeeping", "vmap", "opacus", "opacus-ghost", "naive")
CONFIG = PrivacyConfig(epsilon=3.0, epochs=1, batch_size=8)


def rows(count: int = 7) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(5)
    return torch.randn(count, 4, generator=made), torch.arange(count) % 3


def looped(model: nn.Module, batch: tuple[Tensor, Tensor], bound: float) -> list[Tensor]:
    """Σ g · min(1, C / ‖g‖), one example after the other."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for row in range(len(batch[0])):
        model.zero_grad()
        F.cross_entropy(model(batch[0][row : row + 1]), batch[1][row : row + 1]).backward()
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        length = math.sqrt(sum(float(part.double().square().sum()) for part in found))
        total = [whole + part * min(1.0, bound / length) for whole, part in zip(total, found, strict=True)]
    model.zero_grad()
    return total


def apart(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    assert [part.shape for part in found] == [part.shape for part in wanted]
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True) if a.numel())


# ---------------------------------------------------------------------------------------- scalars and nothing


class Temperature(nn.Module):
    """CLIP's logit_scale."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(4, 5), nn.Linear(5, 3, bias=False)
        self.logit_scale = nn.Parameter(torch.tensor(1.2))

    def forward(self, x: Tensor) -> Tensor:
        return self.logit_scale.exp() * F.normalize(self.text(torch.tanh(self.image(x))), dim=-1)


class ReZero(nn.Module):
    """One gate, used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.gate = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = x + self.gate * torch.relu(self.inner(x))
        return self.out(x)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class Nothing(nn.Module):
    """Parameters without an element, and a scalar that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.flat, self.unused = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.zeros(3, 0)), Gain()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.none.sum() + self.flat.sum(1)


def gain_twice() -> nn.Module:
    gain = Gain()
    return nn.Sequential(nn.Linear(4, 4), gain, nn.ReLU(), gain, nn.Linear(4, 3))


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("make", [Temperature, ReZero, gain_twice, Nothing])
@pytest.mark.some(6)
def test_scalar_and_empty_parameters_are_clipped_as_in_a_loop(make: Callable[[], nn.Module], name: str) -> None:
    torch.manual_seed(0)
    model, batch = make(), rows()
    wanted = looped(model, batch, 0.5)
    assert apart(engine_for(name, model, cross_entropy, Flat(max_norm=0.5)).clipped_sum(batch), wanted) < 1e-6
    assert (
        apart(engine_for(name, model, cross_entropy, Flat(max_norm=0.5), micro_batch=2).clipped_sum(batch), wanted)
        < 1e-6
    )
    broken = (
        torch.cat([batch[0], torch.full((1, 4), math.nan)]),
        torch.cat([batch[1], torch.zeros(1, dtype=torch.int64)]),
    )
    assert apart(engine_for(name, model, cross_entropy, Flat(max_norm=0.5)).clipped_sum(broken), wanted) < 1e-6


@pytest.mark.parametrize("clip", [PerLayer(max_norm=0.5), FlatL1(max_norm=0.5), Automatic(max_norm=0.5)], ids=str)
@pytest.mark.parametrize("name", ["bookkeeping", "vmap", "opacus"])
def test_every_rule_knows_scalars(clip: Clip, name: str) -> None:
    torch.manual_seed(0)
    model, batch = Temperature(), rows()
    wanted = engine_for("naive", model, cross_entropy, clip).clipped_sum(batch)
    assert apart(engine_for(name, model, cross_entropy, clip).clipped_sum(batch), wanted) < 1e-6


def test_a_model_with_a_scalar_trains_and_is_saved() -> None:
    torch.manual_seed(0)
    trainer = PrivateTrainer(ReZero(), CONFIG)
    before = trainer.model.get_parameter("gate").item()
    trainer.train(rows(60))
    assert trainer.model.get_parameter("gate").item() != before and trainer.guarantee().epsilon <= 3.0


# ------------------------------------------------------------------------------- rows that go their own way


class Routed(nn.Module):
    """A mixture of experts: each row goes to its best one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        chances = self.gate(x).softmax(-1)
        best = chances.argmax(-1)
        out = torch.zeros(len(x), 3, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            mine = best == number
            if bool(mine.any()):
                out[mine] = expert(x[mine]) * chances[mine, number : number + 1]
        return out


class Sorted(nn.Module):
    """Sorts its rows for one layer and puts them back: row i of that layer is another example."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x.sum(1).argsort()
        hidden = torch.relu(self.inner(x[order]))
        back = torch.empty_like(hidden)
        back[order] = hidden
        return self.out(back)


class Remade(nn.Module):
    """Activation checkpointing."""

    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.reentrant = nn.Linear(4, 6), nn.Linear(6, 3), reentrant
        self.middle = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.middle, torch.relu(self.first(x)), use_reentrant=self.reentrant)
        return self.last(out)


@pytest.mark.parametrize(
    ("make", "engine"),
    [(Routed, "naive"), (Sorted, "vmap"), (Remade, "bookkeeping")],
    ids=["routed", "sorted", "remade"],
)
def test_auto_finds_an_engine_that_gives_the_sum_of_the_loop(make: Callable[[], nn.Module], engine: str) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        model = make()
        made = engine_for("auto", model, cross_entropy, Flat(max_norm=0.5))
        for count in (1, 4, 40):
            assert apart(made.clipped_sum(rows(count)), looped(model, rows(count), 0.5)) < 1e-6
        assert made.name == engine


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("make", [Routed, Sorted, Remade])
def test_every_other_engine_is_right_or_refuses_in_plain_words(make: Callable[[], nn.Module], name: str) -> None:
    torch.manual_seed(0)
    model = make()
    try:
        found = engine_for(name, model, cross_entropy, Flat(max_norm=0.5)).clipped_sum(rows())
    except InvalidParameter as refused:
        assert "auto" in str(refused)
    else:
        assert apart(found, looped(model, rows(), 0.5)) < 1e-6


def test_a_mixture_of_experts_trains_by_a_loop_and_a_log_line_says_that_it_is_slow(caplog: Any) -> None:
    torch.manual_seed(0)
    model = Routed()
    with caplog.at_level(logging.WARNING):
        _, optimizer, loader = make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), rows(40), config=CONFIG)
    assert any(
        "one record at a time" in line.message and "mixture of experts" in line.message for line in caplog.records
    )
    for _ in loader:
        optimizer.step()
    assert optimizer.guarantee().epsilon <= 3.0


@pytest.mark.parametrize("name", ENGINES)
def test_reentrant_checkpointing_is_refused_with_the_switch_to_turn(name: str) -> None:
    with pytest.raises(InvalidParameter, match=r"use_reentrant|auto"):
        engine_for(name, Remade(reentrant=True), cross_entropy, Flat(max_norm=0.5)).clipped_sum(rows())


def test_scalars_travel_in_a_federation(tmp_path: Any) -> None:
    from quietsum.learning.clients.local import LocalSteps

    steps = LocalSteps(Temperature(), cross_entropy)
    vector = steps.layout.join([parameter.detach() for parameter in steps._parameters])
    assert vector.shape == (4 * 5 + 5 + 15 + 1,) and np.isfinite(vector).all()
    steps.layout.write(steps._model, vector * 2)
    assert steps._model.get_parameter("logit_scale").item() == pytest.approx(2.4)


# -------------------------------------------------------------------------------------------- gradient hooks


def hang(kind: str, model: nn.Sequential) -> Any:
    match kind:
        case "0.weight":
            return model.get_parameter("0.weight").register_hook(lambda gradient: 10 * gradient)
        case "2.bias":
            return model.get_parameter("2.bias").register_post_accumulate_grad_hook(lambda parameter: None)
        case "2: Linear":
            return model[2].register_full_backward_hook(
                lambda module, given, out: (cast(tuple[Tensor, ...], given)[0] * 2,)
            )
        case "the model: Sequential":
            return model.register_full_backward_pre_hook(lambda module, out: (cast(tuple[Tensor, ...], out)[0] * 2,))
        case "all modules":
            return nn.modules.module.register_module_full_backward_hook(lambda module, given, out: None)
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["0.weight", "2.bias", "2: Linear", "the model: Sequential", "all modules"])
def test_a_hook_on_gradients_is_refused_by_every_door_and_by_the_name_of_what_it_hangs_on(kind: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_private(model, optimizer, rows(40), config=CONFIG, selfcheck=False)[2]
    handle = hang(kind, model)
    doors: list[Callable[[], Any]] = [
        lambda: PrivateTrainer(model, CONFIG),
        lambda: make_private(model, optimizer, rows(40), config=CONFIG),
        lambda: next(iter(loader)),
        *(lambda name=name: engine_for(name, model, cross_entropy, Flat(max_norm=0.5)) for name in ENGINES),
    ]
    try:
        for door in doors:
            with pytest.raises(InvalidParameter, match="hook") as refused:
                door()
            assert kind in str(refused.value)
    finally:
        handle.remove()
    next(iter(loader))  # the control: without it the door is open


def test_a_hook_that_is_hung_up_between_epochs_is_refused_before_the_next_charge() -> None:
    model = nn.Linear(4, 3)
    config = PrivacyConfig(epsilon=3.0, epochs=3, batch_size=8)
    trainer = PrivateTrainer(model, config, watch=lambda epoch: model.weight.register_hook(lambda g: g) and None)
    with pytest.raises(InvalidParameter, match="weight"):
        trainer.train(rows(40))


def test_hooks_of_the_forward_pass_are_part_of_the_model() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[0].register_forward_hook(lambda module, given, out: out * 2)
    for name in ("auto", "vmap", "naive"):
        found = engine_for(name, model, cross_entropy, Flat(max_norm=0.5)).clipped_sum(rows())
        assert apart(found, looped(model, rows(), 0.5)) < 1e-6
