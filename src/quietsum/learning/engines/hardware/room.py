"""Memory that a layer keeps from step to step.

Fresh pages cost a processor more than the sums they hold; a card's allocator keeps them by itself.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import final

from torch import Tensor

__all__ = ["Room", "without_room"]

_ROOM_BYTES = 1 << 25

_recording: ContextVar[bool] = ContextVar("recording", default=False)


@contextlib.contextmanager
def without_room() -> Iterator[None]:
    """No layer keeps memory inside: what is recorded must not write into what it did not make."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


@final
class Room:
    """Memory that a layer keeps from step to step: fresh pages cost a processor more than the sums they hold.

    A card's allocator does the same by itself, and very large pieces are not kept.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """An uninitialised tensor, valid until the same name is taken again."""
        size = math.prod(shape)
        if like.is_cuda or _recording.get() or size * like.element_size() > _ROOM_BYTES:
            return like.new_empty(tuple(shape))
        found = self._kept.get(name)
        if found is None or found.numel() < size or found.dtype != like.dtype or found.device != like.device:
            found = self._kept[name] = like.new_empty(size + size // 4)  # Poisson batches differ in size
        return found[:size].view(tuple(shape))
