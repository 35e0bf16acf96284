"""The private step as one compiled graph: forward, backward, norms, factors and weighted sums.

torch.compile cannot look into an engine that takes notes while a model runs. But what the engine does on a known path
is a fixed list of tensor operations, so it is recorded once for batches of one size (``make_fx``, operation by
operation, autograd included) and the list is what torch.compile fuses. Nothing of the bookkeeping is left in it.

Poisson draws differ in size. A graph serves every batch up to its own size: the rows that are missing are copies of the
first ones, whose factors are 0, so a sum never holds a part of them and no draw is cut. Sizes are multiples of a
sixteenth of the next power of two. Whether a norm is not finite is asked once a batch, behind everything that the card
was given to do.

Guarantees: the first batch of each graph is summed in both ways and must agree, with the same random numbers, or the
graph is not used. A batch with a norm that is not finite, one too large for memory, and all that a graph raises on go
the ordinary way. A recording is forgotten as soon as a parameter, a buffer, a mode (training or not), a hook, autocast
or the bound of the clip is another one than when it was made. What a model reads from elsewhere in Python (a counter, a
schedule in an attribute) is recorded as it was, as by ``torch.jit.trace``: such a model is trained without it. A
self-check, which tries batches of many sizes, is served the ordinary way (:func:`without_graphs`).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from quietsum.learning.checks.frozen_randomness import replay_chance
from quietsum.learning.engines.hardware.room import without_room
from quietsum.learning.engines.protocol import Batch, Block, Loss

__all__ = ["CompiledBlocks", "pad_size", "without_graphs"]

_MOST = 16  # graphs of one engine
_EXACT, _ROUGH, _NOTHING = 1e-9, 3e-2, 1e-30

Recorded = Callable[[Batch, Tensor], tuple[list[Tensor], Tensor]]
"""Batch and a weight for each row to sums and norms."""


def pad_size(rows: int) -> int:
    """The size of the graph that serves so many rows: at most an eighth more, up to rounding.

    >>> [pad_size(rows) for rows in (1, 7, 100, 128, 129, 250, 1000)]
    [1, 7, 104, 128, 144, 256, 1024]
    """
    step = max(1, 1 << max(0, (rows - 1).bit_length() - 4))
    return -(-rows // step) * step


_held: ContextVar[bool] = ContextVar("held", default=False)


@contextlib.contextmanager
def without_graphs() -> Iterator[None]:
    """Inside, every batch is served the ordinary way."""
    token = _held.set(True)
    try:
        yield
    finally:
        _held.reset(token)


@final
class CompiledBlocks:
    """The graphs of one engine. ``run`` is what is recorded; it must not look at values."""

    def __init__(self, model: nn.Module, loss: Loss, run: Recorded, backend: str) -> None:
        self._model, self._loss, self._run, self._backend = model, loss, run, backend
        self._modules = list(model.modules())
        self._dropouts = [module for module in self._modules if isinstance(module, _DropoutNd)]
        self._graphs: dict[Any, Any] = {}
        self._state: tuple[Any, ...] | None = None
        self._tensors: list[Tensor] = []
        self._bounds: set[float] = set()
        self.problem: str | None = None
        """Why no graph is used any more."""

    def begin(self) -> None:
        """A batch begins: graphs of another model than the present one are forgotten."""
        if self.problem is not None:
            return
        tensors = [part for module in self._modules for part in _tensors(module)]
        same = len(tensors) == len(self._tensors) and all(map(_is, tensors, self._tensors))
        device = tensors[0].device.type if tensors else "cpu"
        state = (
            tuple([module.training for module in self._modules]),
            tuple([part.requires_grad for part in tensors]),
            tuple([module.p for module in self._dropouts]),
            tuple([len(module._forward_hooks) + len(module._forward_pre_hooks) for module in self._modules]),
            torch.is_autocast_enabled(device), torch.get_autocast_dtype(device), torch.get_float32_matmul_precision(),
            getattr(self._loss, "max_norm", None),
        )  # fmt: skip
        if not same or state != self._state:
            self._graphs.clear()
            self._tensors, self._state = tensors, state
            if state[-1] is not None:
                self._bounds.add(state[-1])
                if len(self._bounds) > 2:
                    self.problem = "the clip changes from step to step"

    def __call__(self, batch: Batch, rows: int, ordinary: Callable[[], Block]) -> Block | None:
        """Sums and norms of a block by its graph; None where the ordinary way must serve it."""
        if self.problem is not None or _held.get() or is_in_torch_dispatch_mode():
            return None
        size = pad_size(rows)
        key = (size, tuple([(part.shape[1:], part.dtype, part.device) for part in batch]))
        if key not in self._graphs:
            if len(self._graphs) >= _MOST:
                return None
            return self._record(key, self._pad(batch, rows, size), rows, ordinary)
        try:
            with torch.no_grad():
                sums, norms = self._graphs[key](*self._pad(batch, rows, size))
        except torch.OutOfMemoryError:
            return None
        except Exception as found:
            self._give_up(found)
            return None
        return (sums, norms[:rows]) if math.isfinite(norms.sum().item()) else None

    def _pad(self, batch: Batch, rows: int, size: int) -> tuple[Batch, Tensor]:
        weights = torch.zeros(size, device=batch[0].device)
        weights[:rows] = 1
        if size != rows:
            places = torch.arange(size, device=batch[0].device) % rows
            batch = tuple(part[places] for part in batch)
        return batch, weights

    def _record(self, key: Any, padded: tuple[Batch, Tensor], rows: int, ordinary: Callable[[], Block]) -> Block:
        """A new graph, and the block in the ordinary way, which the graph must agree with."""
        from torch.fx.experimental.proxy_tensor import make_fx  # heavy to import

        random = [part.device.index or 0 for part in padded[0] if part.is_cuda]
        try:
            with torch.random.fork_rng(devices=sorted(set(random))), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with without_room(), _compiling():
                    graph = make_fx(lambda batch, weights: self._run(batch, weights))(*padded)
                options: Any = {"fallback_random": True} if self._backend == "inductor" else None
                compiled = torch.compile(graph, backend=self._backend, dynamic=False, options=options)
                with torch.no_grad():
                    with replay_chance(random):
                        found = compiled(*padded)
                    with replay_chance(random):
                        wanted = self._run(*padded)
            if math.isfinite(wanted[1].sum().item()):  # otherwise this batch shows nothing
                self._judge(found, wanted)
                self._graphs[key] = compiled
        except torch.OutOfMemoryError:
            pass
        except Exception as found_problem:
            self._give_up(found_problem)
        return ordinary()

    def _give_up(self, found: Exception) -> None:
        reason = next(iter(str(found).splitlines()), type(found).__name__)
        self.problem = f"the step cannot be recorded and compiled ({reason})"

    @staticmethod
    def _judge(found: tuple[list[Tensor], Tensor], wanted: tuple[list[Tensor], Tensor]) -> None:
        """Up to rounding; what the loss does in half precision is not seen from here."""
        exact = all(part.dtype is torch.float64 for part in wanted[0])
        for one, two in zip([*found[0], found[1]], [*wanted[0], wanted[1]], strict=True):
            apart, size = float((one.double() - two.double()).norm()), float(two.double().norm())
            if not apart <= (_EXACT if exact else _ROUGH) * size + _NOTHING:
                raise ArithmeticError("its sums are others than without the compiler")


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """``torch.compiler.is_compiling()`` is true inside, as in torch.export: libraries then look at no values."""
    kept = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = kept


def _is(one: Tensor, two: Tensor) -> bool:
    return one is two


def _tensors(module: nn.Module) -> list[Tensor]:
    return [part for held in (module._parameters, module._buffers) for part in held.values() if part is not None]
