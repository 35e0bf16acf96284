"""What a model keeps of the records that pass through it, and batch norms in odd places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from quietsum.errors import InvalidParameter
from quietsum.learning.checks.before_training import check_step
from quietsum.learning.clipping import Flat
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.engines.batch_mixing import (
    SteadyEngine,
    fix_batch_norm,
    keep_unchanged,
    mixes_examples,
    refuse_mixing,
    what_remembers,
)
from quietsum.learning.engines.protocol import Batch, engine_for
from quietsum.learning.rows.records import Records
from quietsum.learning.step import cross_entropy


def rows(count: int = 4) -> Batch:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(1)), torch.arange(count) % 2


class Watching(nn.Module):
    """A linear model whose forward pass does something to its buffers, in a way that ``kind`` names."""

    seen: Tensor
    batches: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.hidden = torch.zeros(3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        given = x.detach()
        if self.kind == "added in place":
            self.seen += given.sum(0)
        elif self.kind == "assigned":
            self.seen = torch.maximum(self.seen, given.amax(0))
        elif self.kind == "rows counted":
            self.batches += len(given)
        elif self.kind == "registered late":
            self.register_buffer("late", given.mean(0))
        elif self.kind == "only when odd":
            self.seen = self.seen + given.isnan().sum(0)
        elif self.kind == "a weight":
            with torch.no_grad():
                self.inner.weight.add_(1e-3 * given.mean(0))
        elif self.kind == "no buffer":
            shift = self.hidden
            self.hidden = self.hidden * 0.5 + given.mean(0)
            return self.inner(x - shift)
        elif self.kind == "batches counted":
            self.batches += 1
        elif self.kind == "scaled by their number":
            self.batches += 1
            return self.inner(x * (1.0 + self.batches))
        elif self.kind == "batches counted anew":
            self.batches = self.batches + 1
        return self.inner(x)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("added in place", "seen"),
        ("assigned", "seen"),
        ("rows counted", "batches"),
        ("registered late", "late"),
        ("only when odd", "seen"),
        ("a weight", "inner.weight"),
        ("no buffer", "hidden"),
        ("batches counted", None),
        ("batches counted anew", None),
        ("nothing", None),
    ],
)
def test_what_a_forward_pass_keeps_of_its_rows_is_found_and_what_it_keeps_of_none_passes(
    kind: str, found: str | None
) -> None:
    assert what_remembers(Watching(kind), cross_entropy, rows()) == found


def test_a_spectral_norm_and_dropout_remember_nothing() -> None:
    model = nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Dropout(0.5), nn.Linear(4, 2))
    for name, value in model.state_dict().items():
        if name.endswith("_u"):
            value.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))  # far from where its iteration ends
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert what_remembers(model, cross_entropy, rows()) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(rows()[0])  # the control: its vectors do change in a forward pass
    assert not all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_model_that_refuses_broken_rows_is_no_finding() -> None:
    class Careful(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not bool(x.isfinite().all()):
                raise ValueError("not a number")
            return super().forward(x)

    assert what_remembers(Careful(3, 2), cross_entropy, rows()) is None
    assert not mixes_examples(Careful(3, 2), cross_entropy, rows())


@pytest.mark.parametrize("kind", ["added in place", "assigned", "registered late", "a weight"])
def test_buffers_come_back_by_name_as_the_same_tensors_with_the_same_values(kind: str) -> None:
    model = Watching(kind)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    with keep_unchanged(model):
        model(rows()[0] * float("nan"))
        after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        assert after.keys() != tensors.keys() or any(not torch.equal(after[n], values[n]) for n in after)  # control
    back = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert back.keys() == tensors.keys()
    assert all(back[name] is tensors[name] and torch.equal(back[name], values[name]) for name in back)
    mixes_examples(model, cross_entropy, rows())
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.named_buffers())


def test_buffers_come_back_after_an_error_too() -> None:
    model = Watching("assigned")
    with pytest.raises(KeyError), keep_unchanged(model):
        model(rows()[0])
        raise KeyError
    assert torch.equal(model.get_buffer("seen"), torch.zeros(3))


def test_mixing_is_seen_in_whole_numbers_of_an_odd_batch() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(2, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.table(tokens) * tokens.sum()

    tokens = torch.tensor([0, 1, 0])  # the last is like the first
    assert mixes_examples(Counted(), cross_entropy, (tokens, torch.zeros(3, dtype=torch.int64)))
    assert not mixes_examples(nn.Embedding(2, 2), cross_entropy, (tokens, torch.zeros(3, dtype=torch.int64)))


# ----------------------------------------------------------------------------------------------- the fix


def test_a_batch_norm_in_two_places_is_one_group_norm_in_both() -> None:
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(nn.Linear(3, 8), norm, nn.Sequential(nn.Linear(8, 8), norm), norm)
    fixed = fix_batch_norm(model)
    assert not any(isinstance(module, nn.BatchNorm1d) for _, module in fixed.named_modules(remove_duplicate=False))
    assert isinstance(fixed[1], nn.GroupNorm) and fixed[1] is fixed[2][1] is fixed[3]  # type: ignore[index]
    assert fixed[1].weight is norm.weight  # type: ignore[index]


def test_a_lazy_batch_norm_is_fixed_after_it_has_seen_its_channels_and_refused_before() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.LazyBatchNorm1d())
    with pytest.raises(InvalidParameter, match="run the model once"):
        fix_batch_norm(model)
    assert isinstance(model[1], nn.BatchNorm1d), "a refusal leaves the model as it was"
    with pytest.raises(InvalidParameter, match="run the model once"):
        fix_batch_norm(nn.LazyBatchNorm2d())
    model(rows()[0])
    fixed = fix_batch_norm(model)
    assert [m.num_channels for m in fixed.modules() if isinstance(m, nn.GroupNorm)] == [6, 6]


# ----------------------------------------------------------------------------------- buffers that may move


@pytest.mark.parametrize("wrapped", [True, False], ids=["steady", "the control"])
@pytest.mark.parametrize(("name", "micro_batch"), [("naive", None), ("bookkeeping", 2), ("bookkeeping", None)])
def test_a_counter_in_a_buffer_does_not_tell_how_many_rows_were_drawn(
    name: str, micro_batch: int | None, wrapped: bool
) -> None:
    counts = set()
    for drawn in ((0, 0, 0), (4, 1, 0), (4, 5, 6)):
        model = Watching("batches counted")
        engine = engine_for(name, model, cross_entropy, Flat(max_norm=1.0), micro_batch=micro_batch)
        if wrapped:
            engine = SteadyEngine(engine, model, cross_entropy)
        for count in drawn:
            engine.clipped_sum(rows(count))
            with torch.no_grad():
                model.inner.weight += 0.1  # a step
        counts.add(int(model.get_buffer("batches")))
    assert (counts == {3}) if wrapped else (len(counts) > 1)


@pytest.mark.parametrize(("name", "micro_batch"), [("naive", None), ("bookkeeping", 2)])
def test_where_buffers_move_a_record_counts_the_same_whoever_comes_before_it(
    name: str, micro_batch: int | None
) -> None:
    model = Watching("scaled by their number")
    raw = engine_for(name, model, cross_entropy, Flat(max_norm=100.0), micro_batch=micro_batch)
    steady = SteadyEngine(raw, model, cross_entropy)
    parts = rows(8)

    def apart(engine: Any) -> float:
        together = engine.clipped_sum(parts)
        halves = [engine.clipped_sum(tuple(part[some] for part in parts)) for some in (slice(0, 4), slice(4, 8))]
        return max(float((t - a - b).abs().max()) for t, a, b in zip(together, *halves, strict=True))

    assert apart(steady) < 1e-5
    assert int(model.get_buffer("batches")) == 1
    assert apart(raw) > 1e-2  # the control


def test_small_norms_are_counted_over_all_passes_and_still_buffers_cost_nothing() -> None:
    def steady(kind: str) -> tuple[SteadyEngine, Any]:
        model = Watching(kind)
        raw = engine_for("bookkeeping", model, cross_entropy, Flat(max_norm=100.0), micro_batch=2)
        return SteadyEngine(raw, model, cross_entropy), raw

    for kind in ("batches counted", "nothing"):
        engine, raw = steady(kind)
        engine.clipped_sum(rows(7))
        assert int(engine.small_norms()) == 7 and engine.name == raw.name and engine.why == raw.why
        engine.clipped_sum(rows(0))
        assert all(float(part.abs().sum()) == 0 for part in engine.clipped_sum(rows(0)))


def critic(seed: int) -> nn.Module:
    """A spectral norm whose power iteration is at its fixed point from the start: a matrix of one row."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), spectral_norm(nn.Linear(16, 1)), nn.Linear(1, 2))


def far(seed: int) -> nn.Module:
    """A spectral norm whose power iteration has a long way to go: two singular values are nearly the same."""
    torch.manual_seed(seed)
    layer = nn.Linear(6, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1.0, 0.99, 0.5, 0.4, 0.3, 0.2])))
    return nn.Sequential(nn.Linear(3, 6), spectral_norm(layer), nn.ReLU(), nn.Linear(6, 2))


def trained(make: Any, name: str, drawn: tuple[int, ...], *, wrapped: bool = True) -> dict[str, Tensor]:
    """The buffers after steps on so many rows each; the weights move alike whatever was drawn."""
    model = make(0)
    engine = engine_for(name, model, cross_entropy, Flat(max_norm=1.0))
    if wrapped:
        engine = SteadyEngine(engine, model, cross_entropy)
    for place, count in enumerate(drawn):
        engine.clipped_sum(rows(count))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place))
    return {buffer: value.clone() for buffer, value in model.named_buffers()}


@pytest.mark.parametrize("wrapped", [True, False], ids=["steady", "the control"])
@pytest.mark.parametrize("name", ["auto", "vmap", "naive"])
@pytest.mark.parametrize("make", [critic, far])
def test_the_vectors_of_a_spectral_norm_do_not_tell_an_empty_batch_from_a_full_one(
    make: Any, name: str, wrapped: bool
) -> None:
    full, empty, mixed = (trained(make, name, drawn, wrapped=wrapped) for drawn in ((5, 5, 5), (0, 0, 0), (3, 7, 0)))
    alike = [all(torch.equal(full[key], other[key]) for key in full) for other in (empty, mixed)]
    assert alike == [wrapped, wrapped]


@pytest.mark.parametrize("name", ["auto", "vmap", "naive"])
@pytest.mark.parametrize("make", [critic, far])
def test_the_same_batch_gives_the_same_sum_of_a_spectral_norm_by_whichever_engine(make: Any, name: str) -> None:
    model, batch = make(1), rows(6)

    def steady(called: str) -> SteadyEngine:
        return SteadyEngine(engine_for(called, model, cross_entropy, Flat(max_norm=0.5)), model, cross_entropy)

    engine = steady(name)
    first = engine.clipped_sum(batch)
    engine.clipped_sum(rows(0))
    again, restarted, other = (
        engine.clipped_sum(batch),
        steady(name).clipped_sum(batch),
        steady("naive").clipped_sum(batch),
    )
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(first, restarted, strict=True))
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(first, other, strict=True))
    raw = engine_for("naive", far(1), cross_entropy, Flat(max_norm=0.5))  # the control: buffers that move on
    assert not all(map(torch.equal, raw.clipped_sum(batch), raw.clipped_sum(batch)))


def test_a_module_with_its_own_parameter_is_differentiated_with_the_buffers_that_it_ran_with() -> None:
    class Gate(nn.Module):
        passes: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))
            self.register_buffer("passes", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            self.passes.mul_(2)
            return x * self.gain * self.passes

    def sums(name: str) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        model = nn.Sequential(Gate(), nn.Linear(3, 2))
        engine = engine_for(name, model, cross_entropy, Flat(max_norm=1e3))
        return SteadyEngine(engine, model, cross_entropy).clipped_sum(rows(5))

    for one, two in zip(sums("bookkeeping"), sums("naive"), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def test_the_old_spectral_norm_is_refused_by_its_name_and_the_new_one_is_named() -> None:
    model = nn.Sequential(nn.Linear(3, 4), torch.nn.utils.spectral_norm(nn.Linear(4, 2)))
    with pytest.raises(
        InvalidParameter, match=r"1: Linear.*torch\.nn\.utils\.spectral_norm.*parametrizations\.spectral_norm"
    ):
        refuse_mixing(model)


@pytest.mark.parametrize("seed", [12, 13])
def test_a_spectral_norm_that_has_not_converged_passes_the_check_before_training(seed: int) -> None:
    torch.manual_seed(0)
    records = Records.of((torch.randn(100, 6), torch.arange(100) % 2))
    torch.manual_seed(seed)
    middle = spectral_norm(nn.Linear(6, 6))
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), middle, nn.ReLU(), nn.Linear(6, 2))
    config = PrivacyConfig(epsilon=3.0, epochs=2, batch_size=8)
    check_step(model, cross_entropy, config, plan_training(config, size=100), records, torch.device("cpu"))
