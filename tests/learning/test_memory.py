"""What a model or a loss keeps of a batch outside of its buffers is found; what it keeps of no batch passes."""

from __future__ import annotations

import collections
import functools
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning import PrivacyConfig, PrivateTrainer, make_private
from quietsum.learning.checks.memory import Reached
from quietsum.learning.engines.batch_mixing import what_remembers
from quietsum.learning.step import cross_entropy

SEEN: list[Tensor] = []
LAST: dict[str, Any] = {"mean": None}


def rows(count: int = 6) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(2)), torch.arange(count) % 2


class Notebook:
    def __init__(self) -> None:
        self.page: Any = None


class Keeping(nn.Module):
    shared: list[Any] = []  # noqa: RUF012  (that is the case)

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind, self.calls = nn.Linear(3, 2), kind, 0
        self.list: list[Any] = []
        self.dict: dict[str, Any] = {}
        self.nested = {"deep": [{"deeper": collections.deque[Any](maxlen=3)}]}
        self.array, self.total = np.zeros(3), torch.zeros(3)
        self.notebook = Notebook()
        self.table: Tensor | None = None
        self.hidden_modules = [nn.Linear(3, 2)]

    def forward(self, x: Tensor) -> Tensor:
        self._keep(x.detach())
        return self.inner(x) + (self.table.sum() if self.table is not None else 0.0)

    def _keep(self, x: Tensor) -> None:
        self.calls += 1
        match self.kind:
            case "attribute":
                self.last = x.mean(0)
            case "number":
                self.highest = float(x.max())
            case "rows":
                self.batch_size = len(x)
            case "list":
                self.list.append(x.mean())
            case "dict":
                self.dict["last"] = x
            case "nested":
                self.nested["deep"][0]["deeper"].append(x.sum())
            case "array":
                self.array += x.sum(0).nan_to_num().numpy()
            case "in place":
                self.total += x.sum(0)
            case "object":
                self.notebook.page = x[0]
            case "global list":
                SEEN.append(x[0])
            case "global dict":
                LAST["mean"] = x.mean()
            case "class":
                Keeping.shared.append(x.mean())
            case "class attribute":
                type(self).latest = x.mean()  # type: ignore[attr-defined]
            case "hidden module":
                with torch.no_grad():
                    self.hidden_modules[0].weight += x.mean()
            case "table":
                if self.table is None:
                    self.table = torch.arange(x.shape[1])  # by the length of a record, which is public
            case "clock":
                self.at = time.perf_counter()
            case "constant":
                self.list.append(1.0)


KEPT = [
    "attribute", "number", "rows", "list", "dict", "nested", "array", "in place", "object", "global list",
    "global dict", "class", "class attribute", "hidden module",
]  # fmt: skip


@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_of_a_batch_is_found_and_put_back(kind: str) -> None:
    model = Keeping(kind)
    found = what_remembers(model, cross_entropy, rows())
    assert found is not None and found != "what it computes"
    assert not SEEN and LAST == {"mean": None} and not Keeping.shared and not hasattr(Keeping, "latest")
    assert not model.list and not model.dict and not model.array.any() and not model.total.any()
    assert not hasattr(model, "last") and model.notebook.page is None and model.calls == 0


@pytest.mark.parametrize("kind", ["nothing", "table", "clock", "constant"])
def test_what_is_kept_of_no_batch_passes(kind: str) -> None:
    assert what_remembers(Keeping(kind), cross_entropy, rows()) is None


class Making(collections.OrderedDict[str, Any]):
    """A table that makes something of what is asked for, as registries of libraries do."""

    def __getitem__(self, key: str) -> Any:
        raise TypeError("asked for")


REGISTRY = Making(relu=(nn.ReLU, {}))


def test_a_registry_is_read_without_asking_it_for_anything() -> None:
    class Registered(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + len(REGISTRY)

    def keeping(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        REGISTRY["last"] = batch[0].mean()
        return cross_entropy(model, batch)

    assert what_remembers(Registered(3, 2), cross_entropy, rows()) is None
    assert what_remembers(Registered(3, 2), keeping, rows()) is not None
    assert list(REGISTRY) == ["relu"]


def test_a_hook_of_the_forward_pass_that_keeps_the_batch_is_found() -> None:
    kept: list[Tensor] = []
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    handle = model[1].register_forward_hook(lambda module, given, out: kept.append(out.detach()))
    assert "kept" in str(what_remembers(model, cross_entropy, rows())) and not kept
    handle.remove()
    assert what_remembers(model, cross_entropy, rows()) is None
    model[0].register_forward_pre_hook(functools.partial(lambda store, module, given: store.append(given[0]), kept))
    assert what_remembers(model, cross_entropy, rows()) is not None


def test_a_loss_that_keeps_something_is_found_whatever_it_is() -> None:
    kept: list[float] = []

    def closure(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        losses = cross_entropy(model, batch)
        kept.append(losses.mean().item())
        return losses

    class Meter:
        total = 0.0

        def __call__(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            losses = cross_entropy(model, batch)
            self.total += losses.sum().item()
            return losses

        def method(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
            return self(model, batch)

    for loss in (closure, Meter(), Meter().method, functools.partial(closure)):
        assert what_remembers(nn.Linear(3, 2), loss, rows()) is not None
    assert not kept


def test_both_doors_refuse_in_plain_words() -> None:
    config, data = PrivacyConfig(epsilon=3.0, epochs=1, batch_size=8), rows(40)
    with pytest.raises(InvalidParameter, match=r"Keeping: last' depends on the records.*a local variable"):
        PrivateTrainer(Keeping("attribute"), config).train(data)
    model = Keeping("list")
    with pytest.raises(InvalidParameter, match="a local variable"):
        make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, config=config)
    PrivateTrainer(Keeping("table"), config, selfcheck=False).train(data)  # the control


def test_the_walk_ends_in_circles_and_in_large_things() -> None:
    model: Any = Keeping("nothing")
    model.self_again, model.list = {"model": model}, [model.list, model]
    model.many = list(range(50_000))
    model.large = torch.zeros(5_000_000)
    notes = Reached(model, cross_entropy).notes
    assert notes["len(many)"] == 50_000 and len(notes) < 1000
