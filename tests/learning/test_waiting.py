"""A private step reads no number back from the card that it runs on, so the card never stands still for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learning.waiting import watched
from quietsum.learning.clipping import Automatic, Clip, Flat, PerLayer
from quietsum.learning.step import PrivateStep, cross_entropy

ROWS = 9


class Positions(nn.Module):
    """Attention over a row's own places, with a table of positions as a buffer and one that all rows share."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(5, 5).tril())
        self.table = nn.Parameter(torch.randn(5, 8) * 0.1)
        self.inner, self.norm, self.head = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.table)
        scores = (self.inner(x) @ x.transpose(1, 2)).masked_fill(self.mask == 0, -1e9)
        return self.head((scores.softmax(-1) @ x).mean(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), (4,)),
    "pictures": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
        ),
        (1, 8, 8),
    ),
    "attention with buffers": (Positions, (5, 8)),
}


def made(name: str, clip: Clip | None = None, loss: Any = cross_entropy, **values: Any) -> tuple[PrivateStep, Any]:
    torch.manual_seed(0)
    build, shape = MODELS[name]
    step = PrivateStep.build(
        build(), loss, clip or Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.1, expected_batch=float(ROWS), **values
    )
    rows = torch.randn(ROWS, *shape), torch.arange(ROWS) % 3
    for _ in range(6):  # rows of the first batches are followed through the layers, which looks at numbers
        step.gradient(rows)
    return step, rows


def waits(step: PrivateStep, rows: Any, patch: pytest.MonkeyPatch) -> list[str]:
    with watched([*step.engine.parameters, *rows], patch) as watch:
        step.gradient(rows)
    return watch.waits


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", ["auto", "vmap"])
@pytest.mark.parametrize("mode", ["fast", "secure"])
def test_a_step_never_waits_for_the_card(name: str, engine: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, rows = made(name, engine=engine, mode=mode)
    assert waits(step, rows, monkeypatch) == []


@pytest.mark.parametrize("clip", [PerLayer(max_norm=1.0), Automatic(max_norm=1.0)])
@pytest.mark.parametrize("settings", [{"micro_batch": 4}, {"varying": True}])
def test_nor_with_other_clips_and_micro_batches(
    clip: Clip, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, rows = made("pictures", clip, **settings)
    assert waits(step, rows, monkeypatch) == []


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_what_a_card_does_without_looking_is_what_a_processor_does(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, rows = made(name, engine=engine)
    broken = (rows[0].clone(), rows[1])
    broken[0][2] = float("nan")
    broken[0][5] = float("inf")
    for batch in (rows, broken):
        plain = step.deterministic(batch)
        with watched([*step.engine.parameters, *batch], monkeypatch) as watch:
            found = step.deterministic(batch)
        assert watch.waits == [] and all(bool(torch.isfinite(part).all()) for part in found)
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(plain, found, strict=True))


READINGS: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda losses: losses.sum().item(),
    "bool": lambda losses: bool(losses.isfinite().all()),
    "cpu": lambda losses: losses.detach().cpu(),
    "numpy": lambda losses: losses.detach().numpy(),
    "tolist": lambda losses: losses.detach().tolist(),
    "nonzero": lambda losses: losses.isnan().nonzero(),
    "mask": lambda losses: losses[losses > 0],
    "a table brought over": lambda losses: losses + torch.ones(1).to(losses.device),
}


@pytest.mark.parametrize("how", READINGS)
def test_the_control_a_planted_reading_is_seen(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def looking(model: nn.Module, batch: Any) -> Tensor:
        losses = cross_entropy(model, batch)
        READINGS[how](losses)
        return losses

    step, rows = made("dense", loss=looking)
    assert waits(step, rows, monkeypatch)


def test_the_control_the_look_of_a_processor_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import quietsum.learning.engines.protocol as protocol

    step, rows = made("dense")
    with watched([*step.engine.parameters, *rows], monkeypatch) as watch:
        monkeypatch.setattr(protocol, "is_on_card", lambda part: False)
        step.gradient(rows)
    assert watch.waits


def test_the_way_from_draw_to_weights_has_one_look_at_the_end_of_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records, step and optimizer of a training: what a card would hold is read once, when the chunk is over."""
    import warnings

    import quietsum.learning.trainer as trainer_module
    from quietsum.learning.config import PrivacyConfig

    torch.manual_seed(0)
    model, data = nn.Linear(4, 3), (torch.randn(60, 4), torch.arange(60) % 3)
    config = PrivacyConfig(noise_multiplier=1.0, epochs=3, batch_size=10, clipping="flat", max_grad_norm=1.0)
    trainer = trainer_module.PrivateTrainer(model, config, selfcheck=False)
    chunk, ends, found = trainer._chunk, trainer_module.all_finite, list[str]()

    def watched_chunk(records: Any, rate: Any) -> None:
        if trainer.plan is None or trainer._spending is None or not trainer._spending.charged:
            return chunk(records, rate)  # the first batches are followed
        assert records.tensors is not None
        with watched([*model.parameters(), *records.tensors], monkeypatch) as watch:

            def at_the_end(parts: Any) -> Any:
                found.extend(watch.waits)
                return ends(parts)

            monkeypatch.setattr(trainer_module, "all_finite", at_the_end)
            chunk(records, rate)
        return None

    monkeypatch.setattr(trainer, "_chunk", watched_chunk)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(data, optimizer="dp-adam", learning_rate=0.01)
    assert found == []
