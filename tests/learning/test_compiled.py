"""The step as one compiled graph: the same sums, for batches of any size, and never a stale recording."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from learning.decoders import DECODERS, Text, decoder, next_token  # noqa: E402
from quietsum.learning.checks.before_training import while_checking  # noqa: E402
from quietsum.learning.clipping import Clip, Flat, PerLayer  # noqa: E402
from quietsum.learning.engines.bookkeeping import BookkeepingEngine  # noqa: E402
from quietsum.learning.engines.hardware.compiled import pad_size  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402
from quietsum.learning.step import PrivateStep, ScaledClip, ScaledLoss, cross_entropy  # noqa: E402

LOWERED = "aot_eager"  # lowers a graph as the default does, without a compiler; "eager" runs it as it was recorded


def engine_of(
    model: nn.Module, loss: Any, clip: Clip, *, backend: str = "eager", micro_batch: int | None = None
) -> BookkeepingEngine:
    return BookkeepingEngine(model, loss, clip, backend=backend, micro_batch=micro_batch)


def joined(parts: Any) -> Tensor:
    return torch.cat([part.flatten() for part in parts])


def apart(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


def settled(engine: BookkeepingEngine, batch: Any) -> None:
    """The first batches are looked at more closely, and one makes the graph."""
    for _ in range(6):
        engine.clipped_sum(batch)
    assert engine._graphs is not None and engine._graphs._graphs, engine.why


@pytest.mark.parametrize(
    ("name", "dtype", "within"),
    [(name, torch.float64, 1e-10) for name in DECODERS] + [("GPT", torch.float32, 1e-5)],
)
@pytest.mark.some(1)
def test_the_sum_is_that_of_a_loop(name: str, dtype: Any, within: float) -> None:
    text = decoder(name, small=True)
    model, clip = text.model.to(dtype), Flat(max_norm=0.05)
    engine = engine_of(model, next_token, clip, backend=LOWERED if "LoRA" in name else "eager")
    settled(engine, text.batch(16))
    for rows in (16, 11):
        batch = text.batch(rows)
        loop = joined(engine_for("naive", model, next_token, clip).clipped_sum(batch))
        assert apart(joined(engine.clipped_sum(batch)), loop) < within
        assert engine._norms is not None and len(engine._norms) == rows
    assert engine.why.endswith("the step is compiled")


def test_a_graph_serves_batches_up_to_its_size_and_the_rows_that_are_missing_count_nothing() -> None:
    text, clip = decoder("GPT", small=True), Flat(max_norm=0.05)
    engine = engine_of(text.model.double(), next_token, clip)
    settled(engine, text.batch(24))
    graphs = engine._graphs
    assert graphs is not None and pad_size(23) == pad_size(24) == 24
    before = len(graphs._graphs)
    engine.clipped_sum(text.batch(23))
    assert len(graphs._graphs) == before
    whole = joined(engine.clipped_sum(text.batch(24)))
    fewer = tuple(part[:23] for part in text.batch(24))
    last = tuple(part[23:] for part in text.batch(24))
    alone = joined(engine_for("naive", text.model, next_token, clip).clipped_sum(last))
    assert apart(whole - joined(engine.clipped_sum(fewer)), alone) < 1e-8


def test_each_example_is_clipped_with_clips_by_layer_and_in_micro_batches() -> None:
    text, clip = decoder("Llama", small=True), PerLayer(max_norm=0.05)
    engine = engine_of(text.model.double(), next_token, clip, micro_batch=4)
    settled(engine, text.batch(10))
    loop = joined(engine_for("naive", text.model, next_token, clip).clipped_sum(text.batch(10)))
    assert apart(joined(engine.clipped_sum(text.batch(10))), loop) < 1e-10


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def rows_of(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 4, generator=generator, dtype=torch.float64), torch.arange(count) % 3


def test_the_graph_follows_the_weights() -> None:
    model, clip = net(), Flat(max_norm=0.1)
    engine = engine_of(model, cross_entropy, clip)
    settled(engine, rows_of(8))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    loop = joined(engine_for("naive", model, cross_entropy, clip).clipped_sum(rows_of(8)))
    assert apart(joined(engine.clipped_sum(rows_of(8))), loop) < 1e-10


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    model, clip, batch = net(), Flat(max_norm=0.1), rows_of(8)
    engine = engine_of(model, cross_entropy, clip)
    settled(engine, batch)
    batch[0][3] = float("nan")
    loop = joined(engine_for("naive", model, cross_entropy, clip).clipped_sum(batch))
    found = joined(engine.clipped_sum(batch))
    assert bool(torch.isfinite(found).all()) and apart(found, loop) < 1e-10


class Moody(nn.Module):
    """Another function in training than outside of it."""

    scale: Tensor
    inner: nn.Module

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inner(x * self.scale)
        return found * (2 if self.training else 1)


@pytest.mark.parametrize("change", ["mode", "buffer's value", "buffer", "hook"])
@pytest.mark.some(2)
def test_a_recording_of_another_model_is_forgotten(change: str) -> None:
    model, clip = Moody(), Flat(max_norm=0.1)
    engine = engine_of(model, cross_entropy, clip)
    settled(engine, rows_of(8))
    if change == "mode":
        model.eval()
    elif change == "buffer's value":
        model.scale.mul_(3)
    elif change == "buffer":
        model.scale = torch.full((), 3.0, dtype=torch.float64)
    else:
        model.register_forward_hook(lambda module, given, out: out * 0.5)
    loop = joined(engine_for("naive", model, cross_entropy, clip).clipped_sum(rows_of(8)))
    for _ in range(2):
        assert apart(joined(engine.clipped_sum(rows_of(8))), loop) < 1e-10


def test_a_wrong_graph_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a compiler that doubles the sums is found out at the first batch."""
    real = torch.compile

    def wrong(graph: Any, **values: Any) -> Any:
        made = real(graph, **values)

        def doubled(*given: Any) -> Any:
            sums, norms = made(*given)
            return [part * 2 for part in sums], norms

        return doubled

    monkeypatch.setattr(torch, "compile", wrong)
    engine = engine_of(net(), cross_entropy, Flat(max_norm=0.1))
    for _ in range(6):
        found = joined(engine.clipped_sum(rows_of(8)))
    assert engine.why.endswith(
        "not compiled, because the step cannot be recorded and compiled (its sums are others than without the compiler)"
    )
    loop = joined(engine_for("naive", net(), cross_entropy, Flat(max_norm=0.1)).clipped_sum(rows_of(8)))
    assert apart(found, loop) < 1e-10


def test_a_model_that_looks_at_values_is_served_the_ordinary_way() -> None:
    def looking(model: nn.Module, batch: Any) -> Tensor:
        losses = cross_entropy(model, batch)
        return losses * 2 if float(losses.detach().mean()) > 0 else losses

    engine = engine_of(net(), looking, Flat(max_norm=0.1))
    for _ in range(6):
        found = joined(engine.clipped_sum(rows_of(8)))
    assert "not compiled, because the step cannot be recorded" in engine.why
    loop = joined(engine_for("naive", net(), looking, Flat(max_norm=0.1)).clipped_sum(rows_of(8)))
    assert apart(found, loop) < 1e-10


def test_a_bound_that_moves_is_not_recorded_again_and_again() -> None:
    scaled = ScaledLoss(cross_entropy, 0.1)
    engine = engine_of(net(), scaled, ScaledClip(Flat(max_norm=0.1), scaled))
    settled(engine, rows_of(8))
    for bound in (0.2, 0.3, 0.4):
        scaled.max_norm = bound
        found = joined(engine.clipped_sum(rows_of(8))) * bound
        loop = joined(engine_for("naive", net(), cross_entropy, Flat(max_norm=bound)).clipped_sum(rows_of(8)))
        assert apart(found, loop) < 1e-10
    assert "not compiled, because the clip changes from step to step" in engine.why


def test_dropout_is_drawn_anew_at_each_batch() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    engine = engine_of(model, cross_entropy, Flat(max_norm=0.1))
    settled(engine, rows_of(8))
    one, two = (joined(engine.clipped_sum(rows_of(8))) for _ in range(2))
    assert apart(one, two) > 1e-3


@pytest.mark.parametrize("chance", [True, False])
def test_a_self_check_compiles_nothing(chance: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5 * chance), nn.Linear(8, 3)).double()
    engine = engine_of(model, cross_entropy, Flat(max_norm=0.1))
    with while_checking(model, chance=chance):
        for _ in range(7):
            found = joined(engine.clipped_sum(rows_of(8)))
        loop = joined(engine_for("naive", model, cross_entropy, Flat(max_norm=0.1)).clipped_sum(rows_of(8)))
    assert engine._graphs is not None and not engine._graphs._graphs
    assert apart(found, loop) < 1e-10


def test_another_rate_of_dropout_is_another_recording() -> None:
    dropout: Any = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(4, 8), dropout, nn.Linear(8, 3)).double()
    engine = engine_of(model, cross_entropy, Flat(max_norm=0.1))
    settled(engine, rows_of(8))
    dropout.p = 0.0
    loop = joined(engine_for("naive", model, cross_entropy, Flat(max_norm=0.1)).clipped_sum(rows_of(8)))
    for _ in range(2):
        assert apart(joined(engine.clipped_sum(rows_of(8))), loop) < 1e-10


def test_the_step_of_a_model_with_buffers_is_compiled_and_its_buffers_stay() -> None:
    model = Moody().float()
    step = PrivateStep.build(
        model, cross_entropy, Flat(max_norm=0.1), noise_multiplier=1.0, rate=0.1, expected_batch=8.0, engine="auto"
    )
    step.engine._inner = engine_of(model, cross_entropy, Flat(max_norm=0.1))  # type: ignore[attr-defined]
    batch = (rows_of(8)[0].float(), rows_of(8)[1])
    for _ in range(7):
        found = joined(step.deterministic(batch))
    loop = joined(engine_for("naive", model, cross_entropy, Flat(max_norm=0.1)).clipped_sum(batch))
    assert apart(found, loop) < 1e-5
    assert step.engine._inner.why.endswith("the step is compiled")  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.some(1)
def test_a_model_that_was_compiled_by_its_owner_is_served(backend: str) -> None:
    text, clip = decoder("GPT", small=True), Flat(max_norm=0.05)
    model = text.model.double()
    loop = joined(engine_for("naive", model, next_token, clip).clipped_sum(text.batch(5)))
    compiled: Any = torch.compile(model, backend=backend)
    for made in (engine_for("auto", compiled, next_token, clip), engine_of(compiled, next_token, clip)):
        for _ in range(6):
            found = joined(made.clipped_sum(text.batch(5)))
        assert apart(found, loop) < 1e-10


@pytest.mark.long
def test_the_engine_called_compiled_runs_through_the_default_compiler() -> None:
    """What one more repetition shows: that inductor's own fusions keep to the sums, where it finds a C++ compiler."""
    text: Text = decoder("GPT, LoRA", small=True)
    clip = Flat(max_norm=0.05)
    engine = engine_for("compiled", text.model, next_token, clip)
    for _ in range(6):
        found = joined(engine.clipped_sum(text.batch(8)))
    loop = joined(engine_for("naive", text.model, next_token, clip).clipped_sum(text.batch(8)))
    assert apart(found, loop) < 1e-5
    assert engine.name == "compiled" and F is not None
