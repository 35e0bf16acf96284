"""bfloat16 under autocast: an example's part of the released sum is no longer than the clip, rounding included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from learning.decoders import DECODERS, decoder, next_token  # noqa: E402
from quietsum import PrivacyConfig, PrivateTrainer  # noqa: E402
from quietsum.learning.clipping import Flat  # noqa: E402
from quietsum.learning.engines import layers  # noqa: E402
from quietsum.learning.engines.hardware import half  # noqa: E402
from quietsum.learning.engines.hardware.room import Room  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402

CLIP = 0.5
PLANS = ("ghost", "discard", "keep")


def cancelling(rows: int, positions: int) -> tuple[Tensor, Tensor]:
    """Neighbours in bfloat16 with opposite signs at one input: what is left of them is less than rounding makes."""
    big = (1 + torch.arange(rows) % 127 / 128)[:, None, None].expand(-1, positions // 2, 3)
    g = torch.cat([big, -(big + 1 / 128)], 1).bfloat16()
    return torch.ones(rows, positions, 4, dtype=torch.bfloat16), g


def ordinary(rows: int, positions: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return (
        torch.randn(rows, positions, 3, generator=generator).bfloat16(),
        torch.randn(rows, positions, 4, generator=generator).bfloat16(),
    )


def use_of(a: Tensor, g: Tensor) -> layers.MatrixUse:
    return layers.MatrixUse(a, g, weight=True, bias=False, room=Room())


def released_norms(a: Tensor, g: Tensor, clip: float = CLIP) -> Tensor:
    """Of each example alone, as it enters the sum, measured in float64."""
    use = use_of(a, g)
    norms = torch.stack(layers.norms_in_one([use], 2)).square().sum(0).sqrt()
    factors = Flat(max_norm=clip).factors(norms[:, None]).flatten()
    found = []
    for row in range(len(a)):
        alone = torch.zeros_like(factors)
        alone[row] = factors[row]
        parts = torch.cat([part.double().flatten() for part in use.weigh([alone])])
        found.append(parts.norm())
    return torch.stack(found)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("make", [cancelling, ordinary])
def test_no_example_is_longer_than_the_clip(
    plan: str, make: Callable[[int, int], tuple[Tensor, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "plan_for", lambda *sizes: plan)
    for positions in (2, 8, 64):
        for clip in (0.5, 0.3, 0.1115, 0.01):
            found = released_norms(*make(127, positions), clip)
            assert float(found.max()) <= clip * (1 + 1e-6), (plan, positions)


@pytest.mark.parametrize("plan", ["ghost", "discard"])
def test_without_the_margin_an_example_is_nearly_twice_as_long(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the same norms without what rounding may add."""
    monkeypatch.setattr(layers, "plan_for", lambda *sizes: plan)
    monkeypatch.setattr(half, "_ROUND", 0.0)
    monkeypatch.setattr(half, "gamma", lambda terms: 0.0)
    clip = 0.515 * 4 / 128 * 12**0.5  # every norm is 4 / 128 · √12, so every factor 0.515: one step becomes two
    assert float(released_norms(*cancelling(127, 8), clip).max()) > 1.9 * clip


@pytest.mark.parametrize("plan", ["ghost", "discard"])
def test_the_bound_lies_above_the_norm_by_no_more_than_it_says(plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "plan_for", lambda *sizes: plan)
    a, g = ordinary(64, 32)
    truth = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).norm(dim=1)
    lengths = (a.double().norm(dim=2) * g.double().norm(dim=2)).sum(1)
    bound = use_of(a, g).norms(2)[0].double()
    assert bool((bound >= truth + lengths / 256).all())
    assert bool((bound <= (truth + lengths / 250 + (1e-4 * lengths.square() / truth)) * 1.001).all())


def test_layers_with_one_input_share_its_products_and_have_the_same_joint_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "plan_for", lambda *sizes: "ghost")
    for dtype, within in ((torch.float64, 1e-10), (torch.bfloat16, 0.05)):
        a, one = (part.to(dtype) for part in ordinary(6, 5))
        two = one.flip(2)[:, :, :2].contiguous()
        together = torch.stack(layers.norms_in_one([use_of(a, one), use_of(a, two)], 2))
        apart = torch.stack([norm for g in (one, two) for norm in use_of(a, g).norms(2)])
        assert len(together) == len(apart) - 1  # one norm for two weights
        torch.testing.assert_close(
            together.square().sum(0), apart.square().sum(0), rtol=within, atol=0, check_dtype=False
        )


def mixed(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return next_token(model, batch)


@pytest.mark.parametrize("name", DECODERS)
def test_each_text_of_a_decoder_is_clipped_in_half_precision(name: str) -> None:
    text = decoder(name, small=True)
    batch = text.batch(9)
    engine = engine_for("bookkeeping", text.model, mixed, Flat(max_norm=0.01))
    assert engine.why == "every trainable layer is known, so one backward pass is enough"
    engine.clipped_sum(batch)
    for row in range(9):
        parts = engine.clipped_sum(tuple(part[row : row + 1] for part in batch))
        assert all(part.dtype == torch.float32 for part in parts)
        length = float(torch.cat([part.double().flatten() for part in parts]).norm())
        assert 0.9 * 0.01 < length <= 0.01 * (1 + 1e-6)


def test_a_trainer_with_autocast_passes_its_self_check() -> None:
    text = decoder("GPT", small=True)
    config = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=16)
    trainer = PrivateTrainer(text.model, config, loss=mixed, check_labels=False)
    trainer.train(torch.utils.data.TensorDataset(*text.batch(48)))
    assert trainer.engine.startswith("bookkeeping: every trainable layer is known")
