"""A large vocabulary: a private step makes no more tensors of (texts × tokens × vocabulary) than an ordinary one."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_flatten  # noqa: E402

from learning.decoders import Gpt, next_token  # noqa: E402
from quietsum.learning.clipping import Flat  # noqa: E402
from quietsum.learning.engines import layers  # noqa: E402
from quietsum.learning.engines.protocol import engine_for  # noqa: E402

ROWS, LENGTH, WORDS, WIDTH = 4, 8, 997, 16


class Wide(TorchDispatchMode):
    """Counts tensors of that size that are made, views and what is written in place aside."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {leaf.untyped_storage()._cdata for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)}
        for leaf in tree_flatten(out)[0]:
            new = isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in given
            if new and leaf.untyped_storage().nbytes() >= ROWS * LENGTH * WORDS * leaf.element_size():
                self.made.append(str(func))
        return out


def gpt(tied: bool) -> Gpt:
    torch.manual_seed(0)
    model = Gpt(WORDS, LENGTH, WIDTH, 1, 2)
    if tied:
        model.head.weight = model.tokens.weight
    return model


def text() -> tuple[Tensor, Tensor]:
    tokens = torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def count(tied: bool) -> tuple[list[str], list[str]]:
    """What an ordinary step makes, and a private one."""
    model, batch = gpt(tied), text()
    engine = engine_for("bookkeeping", model, next_token, Flat(max_norm=0.1))
    for _ in range(5):
        engine.clipped_sum(batch)
    with Wide() as plain:
        torch.autograd.grad(next_token(model, batch).mean(), list(model.parameters()))
    with Wide() as ours:
        engine.clipped_sum(batch)
    return plain.made, ours.made


@pytest.mark.parametrize("tied", [False, True])
def test_a_private_step_makes_no_further_tensor_as_wide_as_the_vocabulary(
    tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "_KEEP_BYTES", 0)  # as with a real vocabulary: no table is formed for each text
    plain, ours = count(tied)
    assert plain and len(ours) <= len(plain), (plain, ours)


def test_the_control_a_scaled_gradient_is_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layers._scale

    def wasteful(part: Tensor, factors: Tensor) -> Tensor:
        part.new_empty((ROWS, LENGTH, WORDS))
        return real(part, factors)

    monkeypatch.setattr(layers, "_scale", wasteful)
    plain, ours = count(False)
    assert len(ours) > len(plain)
