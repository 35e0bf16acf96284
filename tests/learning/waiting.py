"""Waits for a card, found without a card: numbers that are read back from tensors which a card would hold.

A program waits for a card where it needs a number of it: ``item()``, ``if tensor:``, ``nonzero()``, a mask as an index,
``cpu()``. :class:`Watch` treats some tensors as a card's, follows what is computed from them by their storages, and
writes down every such reading. On a processor alone the same readings cost nothing, which is why no clock shows them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

_aten = torch.ops.aten
READINGS = {
    _aten._local_scalar_dense, _aten.item, _aten.is_nonzero, _aten.equal, _aten.nonzero, _aten.masked_select,
    _aten.argwhere, _aten._unique2, _aten.unique_consecutive, _aten.unique_dim, _aten.bincount, _aten.repeat_interleave,
    _aten.allclose,
}  # fmt: skip
_MASKS = {_aten.index, _aten.index_put, _aten.index_put_}


class Watch(TorchDispatchMode):
    """Follows the tensors of ``held`` and notes each reading of what was computed from them."""

    def __init__(self, held: Sequence[Tensor]) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._storages: dict[int, Any] = {}
        for part in held:
            self.hold(part)

    def hold(self, part: Tensor) -> None:
        """From now on this tensor lies on the card."""
        storage = part.untyped_storage()
        self._storages[storage._cdata] = storage  # kept, so that no other storage takes its number

    def holds(self, part: Any) -> bool:
        return isinstance(part, Tensor) and part.untyped_storage()._cdata in self._storages

    def note(self, what: str) -> None:
        self.waits.append(what)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        given = [leaf for leaf in tree_flatten((args, kwargs))[0] if self.holds(leaf)]
        packet = func.overloadpacket
        if given and packet in READINGS:
            self.note(str(packet))
        if given and packet in _MASKS:
            places = [one for one in (args[1] if len(args) > 1 else ()) if isinstance(one, Tensor)]
            if any(one.dtype in (torch.bool, torch.uint8) for one in places):
                self.note(f"{packet} by a mask")
        made = func(*args, **kwargs)
        if given:
            for leaf in tree_flatten(made)[0]:
                if isinstance(leaf, Tensor):
                    self.hold(leaf)
        return made


@contextlib.contextmanager
def watched(held: Sequence[Tensor], patch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Inside, these tensors are a card's for quietsum too, and what Python reads of tensors by itself is noted."""
    import quietsum.learning.engines.batch_mixing as mixing
    import quietsum.learning.engines.protocol as protocol
    import quietsum.learning.noise.gradient_noise as noise

    watch = Watch(held)
    with patch.context() as inside:
        for module in (mixing, noise, protocol):
            inside.setattr(module, "is_on_card", watch.holds)
        for name in ("cpu", "numpy", "tolist"):
            inside.setattr(Tensor, name, _noted(watch, name, getattr(Tensor, name)))
        for name in ("to", "cuda"):
            inside.setattr(Tensor, name, _noted_move(watch, name, getattr(Tensor, name)))
        with watch:
            yield watch


def _noted_move(watch: Watch, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """A move from ordinary memory to the card waits for it, unless ``non_blocking`` is said."""

    def move(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        places = [one for one in (*args, kwargs.get("device")) if isinstance(one, torch.device | str)]
        if (places or name == "cuda") and not watch.holds(self) and not kwargs.get("non_blocking"):
            watch.note(f"{name}({', '.join(map(str, places))})")
        return real(self, *args, **kwargs)

    return move


def _noted(watch: Watch, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if watch.holds(self):
            watch.note(name)
        return real(self, *args, **kwargs)

    return read
