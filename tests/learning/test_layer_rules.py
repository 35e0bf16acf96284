"""A rule for a layer of one's own: it is used, it is checked, and a wrong one is caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from learning.test_bookkeeping import CLIPS, Tied, agrees, labels, loss, numbers, tokens, vector  # noqa: E402
from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning import rule  # noqa: E402
from quietsum.learning.clipping import Flat  # noqa: E402
from quietsum.learning.engines import layers, rules  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402
from quietsum.learning.engines.shared import tied  # noqa: E402


class Turned(nn.Module):
    """A Linear layer with its weight the other way round, and a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * self.gain


class Faster(Turned):
    """The same with another forward: the rule is not its own."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def right(module: Any, a: Tensor, g: Tensor) -> Any:
    back = g * module.gain
    return {"weight": (a, back), "gain": (g * (a @ module.weight)).sum(1)}


def formed(module: Any, a: Tensor, g: Tensor) -> Any:
    back = g * module.gain
    return {"weight": torch.einsum("nti,nto->nio", a, back), "gain": (g * (a @ module.weight)).sum(1)}


def without_the_gain(module: Any, a: Tensor, g: Tensor) -> Any:
    return {**right(module, a, g), "weight": (a, g)}


def of_the_whole_batch(module: Any, a: Tensor, g: Tensor) -> Any:
    said = right(module, a, g)
    return {**said, "gain": said["gain"].mean(0).expand_as(said["gain"])}


def nothing(module: Any, a: Tensor, g: Tensor) -> Any:
    said = right(module, a, g)
    return {**said, "gain": torch.zeros_like(said["gain"])}


def summed(module: Any, a: Tensor, g: Tensor) -> Any:
    return {**right(module, a, g), "gain": (g * (a @ module.weight)).sum((0, 1))}


def forgotten(module: Any, a: Tensor, g: Tensor) -> Any:
    return {"weight": (a, g * module.gain)}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The table of rules, as it was afterwards."""
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    yield


def model(kind: type[nn.Module] = Turned) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), kind()).double()


@pytest.mark.parametrize("function", [right, formed])
def test_a_rule_of_ones_own_is_used_and_equals_the_loop(function: Callable[..., Any], table: None) -> None:
    calls: list[int] = []

    @rule(Turned)
    def counted(module: Any, a: Tensor, g: Tensor) -> Any:
        calls.append(len(a))
        return function(module, a, g)

    agrees(model(), numbers(5, 4))
    assert calls
    engine = engine_for("bookkeeping", model(), loss, Flat(max_norm=1.0))
    engine.clipped_sum((numbers(5, 4), labels()))
    assert engine.why == "every trainable layer is known, so one backward pass is enough"


@pytest.mark.parametrize("function", [without_the_gain, of_the_whole_batch, nothing])
@pytest.mark.parametrize("name", ["auto", "bookkeeping"])
def test_a_wrong_rule_is_caught_at_the_first_batch(name: str, function: Callable[..., Any], table: None) -> None:
    rule(Turned)(function)
    with pytest.raises(InvalidParameter, match=r"rule = 'Turned' gives other gradients"):
        vector(name, model(), (numbers(5, 4), labels()), Flat(max_norm=0.5))


def test_a_wrong_rule_is_caught_in_half_precision_and_a_right_one_is_not(table: None) -> None:
    net, batch = model().float(), (numbers(5, 4).float(), labels())

    def mixed(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    for function in (without_the_gain, of_the_whole_batch, nothing):
        rule(Turned)(function)
        with pytest.raises(InvalidParameter, match="gives other gradients"):
            engine_for("auto", net, mixed, Flat(max_norm=0.5)).clipped_sum(batch)
    rule(Turned)(right)
    engine_for("bookkeeping", net, mixed, Flat(max_norm=0.5)).clipped_sum(batch)


@pytest.mark.parametrize("function", [summed, forgotten])
def test_a_rule_without_one_gradient_for_each_example_is_refused(function: Callable[..., Any], table: None) -> None:
    rule(Turned)(function)
    with pytest.raises(InvalidParameter, match="does not give the gradient of 'gain' for each example"):
        vector("auto", model(), (numbers(5, 4), labels()), Flat(max_norm=0.5))


def test_a_layer_that_is_called_twice_is_added_up_by_its_rule(table: None) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.back = Turned(), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.back(self.layer(x)))

    for function in (right, formed):
        rule(Turned)(function)
        agrees(Twice(), numbers(5, 4))


def test_a_rule_by_name_and_a_subclass_that_changed_the_layer(table: None) -> None:
    rule(f"{Turned.__module__}.Turned")(right)
    assert rules.is_own(Turned()) and not rules.is_own(Faster())
    agrees(model(Faster), numbers(5, 4))  # served without the rule


@pytest.mark.parametrize("layer", [None, 3, nn.Module, Tensor, nn.Linear(2, 1)])
def test_what_is_no_layer_gets_no_rule(layer: Any, table: None) -> None:
    with pytest.raises(InvalidParameter, match="is not a class of modules"):
        rule(layer)
    with pytest.raises(InvalidParameter, match="is not a function"):
        rule(Turned)(3)  # type: ignore[type-var]


# --------------------------------------------------------------------------------------------- tied parameters


class TwoTables(nn.Module):
    """One table looked up in two places, and two products with it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.middle = nn.Embedding(5, 4), nn.Embedding(5, 4, padding_idx=1), nn.Linear(4, 4)
        self.head, self.other = nn.Linear(4, 5), nn.Linear(4, 5)
        self.two.weight = self.head.weight = self.other.weight = self.one.weight
        self.other.bias = self.head.bias

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(self.one(x) + self.two(x.flip(1))))
        return self.head(hidden) + self.other(torch.sin(hidden))


@pytest.mark.parametrize("plan", ["ghost", "keep", None])
def test_tied_tables_have_the_norm_of_the_sum(plan: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if plan is not None:
        monkeypatch.setattr(tied, "plan_for", lambda *sizes: plan)
    for made in (Tied(functional=False), TwoTables()):
        agrees(made, tokens(6))


def test_the_control_norms_of_the_parts_alone_give_another_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cross term the norm is √(‖G₁‖² + ‖G₂‖²)."""
    honest = tied._over_the_table

    def apart(looked: Any, made: Any, like: Tensor) -> Tensor:
        found = honest(looked, made, like)
        count = looked[0].shape[1]
        found[:, :count, count:] = found[:, count:, :count] = 0
        return found

    monkeypatch.setattr(tied, "plan_for", lambda *sizes: "ghost")
    monkeypatch.setattr(tied, "_over_the_table", apart)
    model, batch = Tied(functional=False).double(), (tokens(6), labels())
    loop = vector("naive", model, batch, CLIPS[0])
    assert float((vector("bookkeeping", model, batch, CLIPS[0]) - loop).norm() / loop.norm()) > 1e-4


def test_a_large_vocabulary_is_not_formed_for_each_example(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> Any:
        raise AssertionError("a table for each example")

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(2000, 16), nn.Linear(16, 2000, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.table(x))).flatten(1)

    def next_word(model: nn.Module, batch: Any) -> Tensor:
        return model(batch[0]).square().mean(1)

    model, batch = Words().double(), (tokens(4),)
    loop = engine_for("naive", model, next_word, Flat(max_norm=1e-4)).clipped_sum(batch)
    for use in (layers.EmbeddingUse, layers.MatrixUse):
        monkeypatch.setattr(use, "instances", refuse)
    found = engine_for("bookkeeping", model, next_word, Flat(max_norm=1e-4)).clipped_sum(batch)
    torch.testing.assert_close(found[0], loop[0], rtol=1e-9, atol=1e-14)
