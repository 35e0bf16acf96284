"""A self-check that fails on a card says which switch lets it round products to 10 bits; on a processor it does not."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from quietsum.learning.checks import before_training  # noqa: E402
from quietsum.learning.checks.before_training import ClaimContradicted, refuse_unsound  # noqa: E402


def on_card(model: nn.Module) -> Any:
    """The model as it would look on a card."""
    held = [SimpleNamespace(is_cuda=True) for _ in model.parameters()]
    return SimpleNamespace(parameters=lambda: held, modules=model.modules)


def failing(monkeypatch: pytest.MonkeyPatch, model: Any) -> str:
    found = SimpleNamespace(test="neighbours", name="moved", lesson="A record moves more than the clip.")
    report = SimpleNamespace(passed=False, failures=[found], step="the training step")
    monkeypatch.setattr(before_training, "one_step", lambda step, rng=None: report)
    monkeypatch.setattr(before_training, "draws_chance", lambda model, run: False)
    monkeypatch.setattr(before_training, "while_checking", lambda model, chance: contextlib.nullcontext())
    with pytest.raises(ClaimContradicted) as caught:
        refuse_unsound(None, model)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.fixture(autouse=True)
def as_before() -> Any:
    kept = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(kept[0])
    torch.backends.cudnn.allow_tf32 = kept[1]


def test_the_hint_names_what_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    linear, convolution = on_card(nn.Linear(2, 2)), on_card(nn.Conv1d(2, 2, 1))
    said = failing(monkeypatch, linear)
    assert said.endswith('try torch.set_float32_matmul_precision("highest") first.') and "cudnn" not in said
    assert "cudnn.allow_tf32 = False" in failing(monkeypatch, convolution)
    torch.set_float32_matmul_precision("highest")
    assert failing(monkeypatch, linear).endswith("A record moves more than the clip.")
    assert failing(monkeypatch, convolution).endswith("try torch.backends.cudnn.allow_tf32 = False first.")


def test_a_processor_gets_no_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_float32_matmul_precision("high")
    assert failing(monkeypatch, nn.Linear(2, 2)).endswith("A record moves more than the clip.")
