"""The books are complete: every layer, every use, every odd way of calling a module, against the naive loop."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer  # noqa: E402
from quietsum.learning.engines import layers  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402

CLIPS: tuple[Clip, ...] = (Flat(max_norm=0.5), PerLayer(max_norm=0.3), Automatic(max_norm=1.0), FlatL1(max_norm=1.0))
ROWS, CLASSES = 6, 3


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross entropy on fixed mixtures of all outputs, whatever their shape."""
    out = model(batch[0])
    out = (out[0] if isinstance(out, tuple) else out).flatten(1)
    mixture = torch.arange(out.shape[1] * CLASSES, dtype=out.dtype).sin().view(-1, CLASSES)
    return F.cross_entropy(out @ mixture, batch[1], reduction="none")


def numbers(*shape: int) -> Tensor:
    return torch.randn(ROWS, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def tokens(length: int) -> Tensor:
    return torch.randint(0, 5, (ROWS, length), generator=torch.Generator().manual_seed(3))


def vector(name: str, model: nn.Module, batch: Any, clip: Clip) -> Tensor:
    return torch.cat([part.flatten() for part in engine_for(name, model, loss, clip).clipped_sum(batch)])


def labels() -> Tensor:
    return torch.randint(0, CLASSES, (ROWS,), generator=torch.Generator().manual_seed(4))


def agrees(model: nn.Module, x: Tensor, name: str = "bookkeeping") -> None:
    """Equal to the loop for every clip rule, in float64 and float32."""
    batch = (x, labels())
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        model = model.to(dtype)
        batch = (x.to(dtype) if x.is_floating_point() else x, batch[1])
        for clip in CLIPS:
            loop = vector("naive", model, batch, clip)
            found = vector(name, model, batch, clip)
            assert float((found - loop).norm() / loop.norm()) < tolerance, (dtype, clip)


def seeded(*parts: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(*parts)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    return model


LAYERS: dict[str, tuple[nn.Module, Tensor]] = {
    "linear": (seeded(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3, bias=False)), numbers(4)),
    "linear, positions": (seeded(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), numbers(7, 4)),
    "linear, two dimensions of positions": (seeded(nn.Linear(4, 5)), numbers(2, 3, 4)),
    "conv1d": (seeded(nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2)), numbers(4, 9)),
    "conv1d, groups": (seeded(nn.Conv1d(4, 6, 3, groups=2, padding="same", bias=False)), numbers(4, 9)),
    "conv1d, circular": (seeded(nn.Conv1d(4, 6, 4, padding=2, padding_mode="circular")), numbers(4, 9)),
    "conv2d": (seeded(nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2))), numbers(4, 6, 5)),
    "conv2d, depthwise": (seeded(nn.Conv2d(4, 8, 3, groups=4, padding="same")), numbers(4, 5, 5)),
    "conv2d, one cell": (seeded(nn.Conv2d(4, 3, 1)), numbers(4, 3, 5)),
    "conv2d, one cell with strides": (seeded(nn.Conv2d(4, 3, 1, stride=2, groups=1)), numbers(4, 5, 5)),
    "conv2d, reflected": (seeded(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect")), numbers(2, 4, 4)),
    "conv2d, even kernel kept the same": (seeded(nn.Conv2d(2, 3, 4, padding="same")), numbers(2, 5, 5)),
    "embedding": (seeded(nn.Embedding(5, 4, padding_idx=0), nn.Flatten(), nn.Linear(24, 3)), tokens(6)),
    "embedding, one token": (seeded(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(4, 3)), tokens(1)),
    "group norm": (seeded(nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(20, 3)), numbers(4, 5)),
    "group norm without positions": (seeded(nn.GroupNorm(2, 4), nn.Linear(4, 3)), numbers(4)),
    "layer norm": (seeded(nn.LayerNorm(5), nn.Linear(5, 3)), numbers(4, 5)),
    "rms norm": (seeded(nn.RMSNorm(5, eps=0.1), nn.Linear(5, 3)), numbers(4, 5)),
    "rms norm over two dimensions": (seeded(nn.RMSNorm([4, 5]), nn.Flatten(), nn.Linear(20, 3)), numbers(4, 5)),
    "layer norm over two dimensions": (seeded(nn.LayerNorm([4, 5]), nn.Flatten(), nn.Linear(20, 3)), numbers(4, 5)),
    "instance norm": (seeded(nn.InstanceNorm2d(4, affine=True), nn.Flatten(), nn.Linear(24, 3)), numbers(4, 2, 3)),
    "gru": (seeded(nn.GRU(4, 5, batch_first=True)), numbers(6, 4)),
    "gru, deep, both ways": (seeded(nn.GRU(4, 5, 2, bidirectional=True, batch_first=True)), numbers(5, 4)),
    "gru without bias": (seeded(nn.GRU(4, 5, bias=False, batch_first=True)), numbers(6, 4)),
    "lstm": (seeded(nn.LSTM(4, 5, 2, batch_first=True)), numbers(6, 4)),
    "rnn": (seeded(nn.RNN(4, 5, nonlinearity="relu", batch_first=True)), numbers(6, 4)),
    "unknown modules": (seeded(nn.Linear(4, 3), nn.PReLU(), nn.Linear(3, 3)), numbers(4)),
    "transposed convolution": (seeded(nn.ConvTranspose1d(4, 3, 3)), numbers(4, 5)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_every_supported_layer_equals_the_loop(case: str) -> None:
    agrees(*LAYERS[case])


@pytest.mark.parametrize("case", LAYERS)
def test_frozen_weights_or_biases_alone_equal_the_loop(case: str) -> None:
    model, x = LAYERS[case]
    for frozen in ("bias", "weight"):
        names = [name for name, _ in model.named_parameters()]
        kept = [name for name in names if frozen not in name]
        if not kept or len(kept) == len(names):
            continue
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in kept)
        try:
            agrees(model, x)
        finally:
            model.requires_grad_(True)


def test_every_plan_for_a_matrix_gives_the_same_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = LAYERS["linear, positions"]
    conv, image = LAYERS["conv2d, depthwise"]
    for plan in ("ghost", "keep", "discard"):
        monkeypatch.setattr(layers, "plan_for", lambda *sizes, plan=plan: plan)
        monkeypatch.setattr("quietsum.learning.engines.convolution.plan_for", lambda *sizes, plan=plan: plan)
        agrees(model, x)
        agrees(conv, image)


def test_small_pieces_give_the_same_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_PIECE_BYTES", {"cpu": 1})
    for case in ("linear, positions", "conv2d", "conv1d, groups", "embedding"):
        agrees(*LAYERS[case])


def test_a_ghost_norm_of_cancelling_positions_is_never_too_small() -> None:
    """Positions that cancel to nothing: the plain formula gives noise around zero, and a clip factor of one."""
    generator = torch.Generator().manual_seed(6)
    a = torch.randn(200, 2, 8, generator=generator) * 1e3
    a[:, 1] = a[:, 0]
    g = torch.randn(200, 2, 8, generator=generator) * 1e3
    g[:, 1] = -g[:, 0] * (1 + 1e-5)
    truth = torch.linalg.matrix_norm(g.double().transpose(1, 2) @ a.double())
    plain = (torch.bmm(a, a.mT) * torch.bmm(g, g.mT)).sum((1, 2)).clamp(min=0).sqrt()
    assert bool((plain < 0.5 * truth).any())  # the control: without care, half or less of the truth
    assert bool((layers.ghost_norms(a, g) >= 0.99 * truth).all())


# ------------------------------------------------------------------------------------ odd ways of using layers


class Twice(nn.Module):
    """One Linear used twice, at different positions."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x))) + self.layer(x[:, :2]).sum(1, keepdim=True)


class TwoConvolutions(nn.Module):
    """One convolution and one norm used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.layer(torch.tanh(self.norm(self.layer(x)))))


class Cells(nn.Module):
    """Cells used once per step."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Tied(nn.Module):
    """A language model in miniature: the table is also the output layer."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(5, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 5)
        self.functional = functional
        if functional:
            del self.head
        else:
            self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(self.table(x)))
        return F.linear(hidden, self.table.weight) if self.functional else self.head(hidden)


class Graph(nn.Module):
    """A graph convolution whose edges are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.edges, self.mix = nn.Parameter(torch.eye(4) + 0.1), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("nvc,vw->nwc", torch.tanh(self.mix(x)), self.edges)


class Attention(nn.Module):
    """torch's own attention, which uses its projection without calling it."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2, batch_first=batch_first), nn.Linear(4, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        out = self.attention(x, x, x)[0]
        return self.head(out if self.batch_first else out.transpose(0, 1)).mean(1)


class SkippedInput(nn.Module):
    """A weight used by its module, and by a function whose result the module then sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.linear(x, self.layer.weight))


class Positions(nn.Module):
    """A table of positions without the examples' dimension, as long as the batch: a trap."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(ROWS, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(x + self.table(torch.arange(x.shape[1])))).mean(1)


class Sometimes(nn.Module):
    """A second layer joins from the second batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.two(self.one(x)) if self.calls > 4 else self.one(x)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Twice(), numbers(5, 4)),
        (TwoConvolutions(), numbers(4, 6)),
        (Cells(nn.GRUCell), numbers(4, 4)),
        (Cells(nn.LSTMCell), numbers(4, 4)),
        (Cells(nn.RNNCell), numbers(4, 4)),
        (Tied(functional=False), tokens(6)),
        (Graph(), numbers(4, 3)),
        (Attention(batch_first=True), numbers(5, 4)),
        (Positions(), numbers(ROWS, 4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_repeated_tied_and_unknown_parameters_equal_the_loop(model: nn.Module, x: Tensor) -> None:
    agrees(model, x)
    engine = engine_for("auto", model.double(), loss, Flat(max_norm=1.0))
    engine.clipped_sum((x, labels()))
    assert engine.name == "bookkeeping"


@pytest.mark.parametrize(
    ("model", "x", "reason"),
    [
        (Tied(functional=True), tokens(6), "table.weight is used outside"),
        (SkippedInput(), numbers(4), "layer.weight is used outside"),
        (Attention(batch_first=False), numbers(ROWS, 4), "examples in its first dimension"),
        (nn.Sequential(nn.Flatten(0, 1), nn.Linear(4, 3), nn.Unflatten(0, (-1, 5))), numbers(5, 4), "first dimension"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), numbers(4), "first dimension"),
    ],
    ids=["functional tie", "input of itself", "time first", "flattened", "weight norm"],
)
def test_what_the_books_would_miss_is_refused_and_auto_falls_back_saying_why(
    model: nn.Module, x: Tensor, reason: str
) -> None:
    model = model.double()
    with pytest.raises(InvalidParameter, match=reason):
        engine_for("bookkeeping", model, loss, Flat(max_norm=1.0)).clipped_sum((x, labels()))
    engine = engine_for("auto", model, loss, Flat(max_norm=1.0))
    engine.clipped_sum((x, labels()))
    assert engine.name == "vmap"
    assert reason in engine.why
    agrees(model, x, "auto")


def test_an_input_overwritten_after_use_is_refused() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            out = self.layer(x)
            x.mul_(2)
            return out

    with pytest.raises((InvalidParameter, RuntimeError), match=r"in place|inplace"):
        vector("bookkeeping", Careless().double(), (numbers(4), labels()), Flat(max_norm=1.0))


def test_a_new_path_through_the_model_is_checked_again() -> None:
    model = Sometimes().double()
    engine = engine_for("bookkeeping", model, loss, Flat(max_norm=1.0))
    batch = (numbers(4), labels())
    for _ in range(4):
        engine.clipped_sum(batch)
    loop = engine_for("naive", model, loss, Flat(max_norm=1.0)).clipped_sum(batch)
    for one, two in zip(engine.clipped_sum(batch), loop, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    assert loop[2].any()


def test_dropout_draws_a_mask_for_each_example_and_the_model_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 3)).double()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    engine = engine_for("bookkeeping", model, loss, Flat(max_norm=1e9))
    one, two = engine.clipped_sum((numbers(4), labels())), engine.clipped_sum((numbers(4), labels()))
    assert not torch.equal(one[0], two[0])
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert not any(module._forward_hooks for module in model.modules())


def test_why_names_the_modules_that_are_treated_one_by_one() -> None:
    assert "PReLU" in engine_for("auto", LAYERS["unknown modules"][0], loss, Flat(max_norm=1.0)).why
    assert "every trainable layer" in engine_for("auto", LAYERS["linear"][0], loss, Flat(max_norm=1.0)).why
