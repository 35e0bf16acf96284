"""Does anything but the row itself change when one private row does? If so, something was computed on private rows."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from quietsum.tasks import TorchTask


def assert_row_local(before: TorchTask, after: TorchTask, row: int, *, modules: Iterable[ModuleType] = ()) -> None:
    """``after`` reads the same files as ``before`` but for the contents of training record ``row``.

    Every other record, the declared size, the settings, the words, the fresh model, the scores of one and the same
    model, the people, and the constants of ``modules`` must be the same, to the last bit.
    """
    constants = [_constants(module) for module in modules]
    first, second = before.records(), after.records()
    assert [part.shape for part in first] == [part.shape for part in second], "the number of records changed"
    others = torch.arange(len(first[0])) != row
    assert all(torch.equal(a[others], b[others]) for a, b in zip(first, second, strict=True)), "another record changed"
    assert any(not torch.equal(a[row], b[row]) for a, b in zip(first, second, strict=True)), "the row did not change"
    for name in ("name", "title", "size", "public", "settings"):
        assert getattr(before, name) == getattr(after, name), f"{name} changed"
    fresh, again = _fresh(before), _fresh(after)
    assert _same(fresh.state_dict(), again.state_dict()), "the first model changed"
    assert _same(dict(fresh.named_buffers()), dict(again.named_buffers())), "a constant of the model changed"
    assert before.evaluate(fresh) == after.evaluate(fresh), "scores look at training records"
    if hasattr(before, "people"):
        assert before.people().tolist() == after.people().tolist(), "the people changed"  # type: ignore[attr-defined]
    assert constants == [_constants(module) for module in modules], "a constant changed"


def _fresh(task: TorchTask) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = task.model()
        with torch.no_grad():  # a model of zeros would score alike whatever the rows are
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _constants(module: ModuleType) -> dict[str, Any]:
    return {name: repr(value) for name, value in vars(module).items() if name.strip("_").isupper()}
