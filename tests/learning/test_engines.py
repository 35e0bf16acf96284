"""Every engine computes the same sum of clipped gradients: a naive loop is the referee, Opacus a second opinion."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from learning.models import MODELS, build, cross_entropy  # noqa: E402
from quietsum.errors import InvalidParameter, QuietsumError  # noqa: E402
from quietsum.learning.clipping import Automatic, Clip, Flat, FlatL1, PerLayer  # noqa: E402
from quietsum.learning.engines import opacus_engine  # noqa: E402
from quietsum.learning.engines.batch_mixing import fix_batch_norm, mixes_examples  # noqa: E402
from quietsum.learning.engines.protocol import ENGINES, engine_for  # noqa: E402

CLIPS: dict[str, Clip] = {
    "flat": Flat(max_norm=0.5),
    "per layer": PerLayer(max_norm=0.3),
    "automatic": Automatic(max_norm=1.0),
    "L1": FlatL1(max_norm=1.0),
}
FAST = ("bookkeeping", "vmap", "opacus", "opacus-ghost")
GHOSTLESS = {("per layer", "opacus-ghost"), ("L1", "opacus-ghost")}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(20)
    yield
    torch.set_num_threads(before)


def summed(name: str, model: nn.Module, batch: Any, clip: Clip, loss: Any = cross_entropy, **more: Any) -> Tensor:
    engine = engine_for(name, model, loss, clip, **more)
    parts = engine.clipped_sum(batch)
    assert [part.shape for part in parts] == [parameter.shape for parameter in engine.parameters]
    assert all(parameter.grad is None for parameter in model.parameters())
    return torch.cat([part.flatten() for part in parts])


def apart(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


def close_enough(dtype: Any) -> float:
    return 1e-10 if dtype == torch.float64 else 1e-5


# -------------------------------------------------------------------------------- the models of the speed table


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.some(4)
def test_every_engine_equals_the_loop_on_the_models_of_the_speed_table(model: str, dtype: Any) -> None:
    subject = build(model, small=True)
    subject.model.to(dtype)
    batch = subject.batch(5, dtype)
    for kind, clip in CLIPS.items():
        loop = summed("naive", subject.model, batch, clip)
        for name in FAST:
            if (kind, name) in GHOSTLESS or (model, name) == ("GRU", "opacus-ghost"):
                continue  # what Opacus' ghost clipping cannot do
            assert apart(summed(name, subject.model, batch, clip), loop) < close_enough(dtype), (kind, name)


def test_the_models_of_the_speed_table_are_all_served_by_bookkeeping() -> None:
    for model in MODELS:
        subject = build(model, small=True)
        engine = engine_for("auto", subject.model, cross_entropy, Flat(max_norm=1.0))
        engine.clipped_sum(subject.batch(3))
        assert engine.name == "bookkeeping"


# --------------------------------------------------------------------------------------- facts of all engines


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 3)).double()


def small_batch(rows: int = 7) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4, dtype=torch.float64) * 3, torch.randint(0, 3, (rows,))


@pytest.mark.parametrize("name", ENGINES)
def test_a_nan_or_infinite_example_contributes_zero_and_spoils_nobody(name: str) -> None:
    model, (x, y) = small_model(), small_batch()
    clean = summed(name, model, (x[[0, 2, 3, 5, 6]], y[[0, 2, 3, 5, 6]]), Flat(max_norm=0.5))
    x[1], x[4, 2] = math.nan, math.inf
    assert apart(summed(name, model, (x, y), Flat(max_norm=0.5)), clean) < 1e-12
    x[:] = math.nan
    assert not summed(name, model, (x, y), Flat(max_norm=0.5)).any()


@pytest.mark.parametrize("name", ENGINES)
def test_an_empty_batch_gives_zeros(name: str) -> None:
    model = small_model()
    engine = engine_for(name, model, cross_entropy, Flat(max_norm=0.5))
    assert not any(part.any() for part in engine.clipped_sum(small_batch(0)))
    assert int(engine.small_norms()) == 0


@pytest.mark.parametrize("name", ENGINES)
def test_micro_batches_change_nothing(name: str) -> None:
    model, batch = small_model(), small_batch()
    whole = summed(name, model, batch, Flat(max_norm=0.5))
    for size in (1, 3, 100):
        assert apart(summed(name, model, batch, Flat(max_norm=0.5), micro_batch=size), whole) < 1e-12


@pytest.mark.parametrize("name", ENGINES)
def test_frozen_parameters_are_left_out(name: str) -> None:
    model, batch = small_model(), small_batch()
    model.get_submodule("0").requires_grad_(False)
    model.get_parameter("3.weight").requires_grad_(False)
    assert (
        apart(summed(name, model, batch, Flat(max_norm=0.5)), summed("naive", model, batch, Flat(max_norm=0.5))) < 1e-12
    )
    assert len(engine_for(name, model, cross_entropy, Flat(max_norm=0.5)).parameters) == 3


@pytest.mark.parametrize("name", ENGINES)
def test_small_norms_counts_examples_below_the_bound(name: str) -> None:
    model, batch = small_model(), small_batch(9)
    each = [summed("naive", model, tuple(p[i : i + 1] for p in batch), Flat(max_norm=1e9)).norm() for i in range(9)]
    middle = float(sorted(each)[4]) * (1 + 1e-9)
    engine = engine_for(name, model, cross_entropy, Flat(max_norm=middle), micro_batch=4)
    engine.clipped_sum(batch)
    assert int(engine.small_norms()) == 5


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", CLIPS)
def test_no_example_adds_more_than_the_sensitivity(name: str, kind: str) -> None:
    if (kind, name) in GHOSTLESS:
        return
    clip, model, (x, y) = CLIPS[kind], small_model(), small_batch(6)
    with_all = summed(name, model, (x * 1e4, y), clip)
    without = summed(name, model, (x[:-1] * 1e4, y[:-1]), clip)
    assert float((with_all - without).norm(p=clip.order)) <= clip.sensitivity * (1 + 1e-9)


# ------------------------------------------------------------------------------------------- negative controls


def forgets_the_bias(model: nn.Module, batch: Any) -> Tensor:
    """A mutant whose norms leave out the biases."""
    total: Tensor | None = None
    parameters = [p for p in model.parameters() if p.requires_grad]
    for row in range(len(batch[0])):
        parts = torch.autograd.grad(cross_entropy(model, tuple(p[row : row + 1] for p in batch)).sum(), parameters)
        norm = torch.cat([part.flatten() for part in parts if part.dim() > 1]).norm()
        one = torch.cat([part.flatten() for part in parts]) * min(1.0, 0.5 / float(norm))
        total = one if total is None else total + one
    assert total is not None
    return total


def clips_the_batch(model: nn.Module, batch: Any) -> Tensor:
    """A mutant that clips the mean gradient and multiplies by the batch."""
    parts = torch.autograd.grad(cross_entropy(model, batch).mean(), list(model.parameters()))
    whole = torch.cat([part.flatten() for part in parts])
    return whole * min(1.0, 0.5 / float(whole.norm())) * len(batch[0])


@pytest.mark.parametrize("mutant", [forgets_the_bias, clips_the_batch])
def test_the_comparison_catches_wrong_engines(mutant: Callable[..., Tensor]) -> None:
    model, batch = build("MLP").model.double(), build("MLP").batch(5, torch.float64)
    assert apart(mutant(model, batch), summed("naive", model, batch, Flat(max_norm=0.5))) > 1e-3


def test_the_comparison_catches_a_layer_whose_norm_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.learning.engines import layers

    right = layers.OuterUse.norms
    monkeypatch.setattr(layers.OuterUse, "norms", lambda self, order: right(self, order)[:1] * 2)
    model, batch = small_model(), small_batch()
    clip = Flat(max_norm=0.5)
    assert apart(summed("bookkeeping", model, batch, clip), summed("naive", model, batch, clip)) > 1e-3


# ------------------------------------------------------------------------------------------------- refusals


def test_a_loss_that_averages_is_refused_with_what_to_do() -> None:
    def mean(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    for name in ("bookkeeping", "vmap", "naive", "opacus"):
        with pytest.raises(InvalidParameter, match="reduction='none'"):
            summed(name, small_model(), small_batch(), Flat(max_norm=1.0), mean)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    for name in ENGINES:
        with pytest.raises(InvalidParameter, match="no trainable parameter"):
            engine_for(name, small_model().requires_grad_(False), cross_entropy, Flat(max_norm=1.0))


def test_an_unknown_engine_and_a_bad_clip_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="choose one of auto"):
        engine_for("magic", small_model(), cross_entropy, Flat(max_norm=1.0))
    for bad in (0.0, -1.0, math.nan, math.inf):
        for kind in (Flat, PerLayer, Automatic, FlatL1):
            with pytest.raises(InvalidParameter):
                kind(max_norm=bad)
    with pytest.raises(InvalidParameter):
        engine_for("auto", small_model(), cross_entropy, Flat(max_norm=1.0), micro_batch=0)


def test_a_batch_of_unequal_parts_is_refused() -> None:
    x, y = small_batch()
    for bad in ((x, y[:-1]), (), x, (x, torch.tensor(1.0))):
        with pytest.raises(InvalidParameter):
            summed("auto", small_model(), bad, Flat(max_norm=1.0))


def test_opacus_missing_is_an_error_that_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opacus.grad_sample.grad_sample_module", None)
    with pytest.raises(QuietsumError, match=r"pip install 'quietsum\[train\]'"):
        opacus_engine.opacus_engine("opacus", small_model(), cross_entropy, Flat(max_norm=1.0))


def test_opacus_leaves_the_model_as_it_was() -> None:
    model, batch = small_model(), small_batch()
    for name in ("opacus", "opacus-ghost"):
        summed(name, model, batch, Flat(max_norm=1.0))
        assert not any("grad_sample" in vars(parameter) for parameter in model.parameters())
        assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def test_opacus_refuses_what_it_would_not_watch() -> None:
    with pytest.raises(InvalidParameter, match=r"model\.train\(\)"):
        summed("opacus", small_model().eval(), small_batch(), Flat(max_norm=1.0))
    with pytest.raises(InvalidParameter, match="ghost norm"):
        engine_for("opacus-ghost", small_model(), cross_entropy, PerLayer(max_norm=1.0))


# ------------------------------------------------------------------------------------------------- mixing


def normed() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 6, 1), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(12, 3))


def conv_batch(rows: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, 4, 2), torch.randint(0, 3, (rows,))


@pytest.mark.parametrize("name", ENGINES)
def test_batch_norm_is_refused_with_the_fix_and_the_fix_works(name: str) -> None:
    model = normed()
    with pytest.raises(InvalidParameter, match="fix_batch_norm"):
        engine_for(name, model, cross_entropy, Flat(max_norm=1.0))
    fixed = fix_batch_norm(model)
    assert isinstance(fixed[1], nn.GroupNorm)  # type: ignore[index]
    assert summed(name, fixed, conv_batch(), Flat(max_norm=1.0)).isfinite().all()


def test_batch_norm_may_run_on_stored_statistics_but_not_be_switched_back() -> None:
    model = normed().eval()
    engine = engine_for("auto", model, cross_entropy, Flat(max_norm=1.0))
    batch = conv_batch()
    loop = summed("naive", model, batch, Flat(max_norm=1.0))
    assert apart(torch.cat([part.flatten() for part in engine.clipped_sum(batch)]), loop) < 1e-5
    model.train()
    with pytest.raises(InvalidParameter, match="fix_batch_norm"):
        engine.clipped_sum(batch)


def test_running_statistics_of_instance_norm_and_batch_frequencies_are_refused() -> None:
    tracked = nn.Sequential(nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(InvalidParameter, match="statistics"):
        engine_for("auto", tracked, cross_entropy, Flat(max_norm=1.0))
    assert summed("auto", fix_batch_norm(tracked), conv_batch(), Flat(max_norm=1.0)).isfinite().all()
    for bad in ({"scale_grad_by_freq": True}, {"max_norm": 1.0}):
        with pytest.raises(InvalidParameter, match="scale_grad_by_freq=False"):
            engine_for("auto", nn.Embedding(3, 2, **bad), cross_entropy, Flat(max_norm=1.0))


def test_the_fix_reaches_nested_and_odd_batch_norms_and_keeps_their_weights() -> None:
    model = nn.Sequential(nn.Sequential(nn.BatchNorm2d(7), nn.BatchNorm1d(1)), nn.BatchNorm3d(64, affine=False))
    weight = model.get_parameter("0.0.weight")
    fixed = fix_batch_norm(model)
    assert [m.num_groups for m in fixed.modules() if isinstance(m, nn.GroupNorm)] == [1, 1, 32]
    assert fixed.get_parameter("0.0.weight") is weight
    assert isinstance(fix_batch_norm(nn.BatchNorm1d(8)), nn.GroupNorm)


class Centred(nn.Module):
    """Subtracts the mean over the batch: mixes examples, and no type gives it away."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x - x.mean(0))


def test_mixing_of_any_other_kind_is_found_by_trying() -> None:
    x, y = small_batch()
    batch = (x.float(), y)
    assert mixes_examples(Centred(), cross_entropy, batch)
    assert mixes_examples(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), cross_entropy, batch)
    assert not mixes_examples(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), cross_entropy, batch)
    assert not mixes_examples(small_model().float(), cross_entropy, batch)
    with pytest.raises(InvalidParameter, match="two rows"):
        mixes_examples(small_model(), cross_entropy, small_batch(1))


def test_looking_for_mixing_leaves_statistics_and_global_randomness_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    batch = (small_batch()[0].float(), small_batch()[1])
    before, state = model.get_buffer("1.running_mean").clone(), torch.get_rng_state()
    mixes_examples(model, cross_entropy, batch)
    assert torch.equal(model.get_buffer("1.running_mean"), before)
    assert torch.equal(torch.get_rng_state(), state)
