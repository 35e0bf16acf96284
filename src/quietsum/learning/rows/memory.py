"""From this machine's memory to the card that computes, without waiting for the card.

A copy from ordinary memory makes the caller wait until the card has done all that it was asked for before. From pinned
memory the copy is one more thing that the card is asked for: :func:`carry` pins what it copies. :class:`Belt` copies on
a stream of its own, so that the next batch arrives while the last one trains. Records that take no more than
:data:`SHARE` of a card's free memory lie there from the start (:func:`fits`).

On a processor nothing is copied, and nothing here costs anything.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from quietsum.learning.engines.protocol import Batch
from quietsum.validate import positive_share

__all__ = ["SHARE", "Belt", "carry", "fits", "free_memory", "limit_memory", "make_room"]

SHARE = 0.25
"""So much of a card's free memory records may take; the rest is for the model and its gradients."""


def carry(part: Tensor, device: torch.device | None) -> Tensor:
    """``part`` on ``device``. Guarantees: the caller does not wait for a card."""
    if device is None or part.device == device:
        return part
    if device.type == "cuda" and part.device.type == "cpu" and not part.is_pinned():
        part = part.pin_memory()
    return part.to(device, non_blocking=True)


def make_room(
    rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None, home: torch.device | None = None
) -> Tensor:
    """Memory for so many rows on their way to ``device``: this machine's, pinned for a card, or that of ``home``."""
    if home is not None and home.type != "cpu":
        return torch.empty((rows, *shape), dtype=dtype, device=home)
    pinned = device is not None and device.type == "cuda"
    return torch.empty((rows, *shape), dtype=dtype, pin_memory=pinned)


_LIMITS: dict[int, float] = {}
"""The share of each card's memory that this process may take, where it is less than all."""


def limit_memory(device: torch.device, share: float) -> None:
    """Let this process take no more than ``share`` of a card's memory; a processor's has no such limit.

    What asks for more is out of memory, and :func:`free_memory` knows of no more, so that several processes may have a
    card in common.
    """
    share = positive_share("share", share)
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(share, device)
        _LIMITS[device.index or 0] = share


def free_memory(device: torch.device) -> int:
    """Bytes that are free for this process on a card; 0 for a processor, whose memory the records lie in already."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    share = _LIMITS.get(device.index or 0, 1.0)
    return max(0, min(int(free), int(share * total) - torch.cuda.memory_reserved(device))) if share < 1 else int(free)


def fits(records: Batch, free: int) -> bool:
    """Whether records may lie on a card with so many bytes free: they take :data:`SHARE` of them at most.

    >>> fits((torch.zeros(100, 10),), 16_000), fits((torch.zeros(100, 10),), 15_999)
    (True, False)
    """
    return sum(part.numel() * part.element_size() for part in records) <= SHARE * free


@final
class Belt:
    """Carries batches to a card beside what the card computes."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def carry(self, batch: Batch, device: torch.device | None) -> Batch:
        """The batch on ``device``; what is computed with it there begins when it has arrived."""
        if device is None or device.type != "cuda":
            return tuple(carry(part, device) for part in batch)
        side = self._streams.get(device)
        if side is None:
            side = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        here = torch.cuda.current_stream(device)
        with torch.cuda.stream(side):
            moved = tuple(carry(part, device) for part in batch)
        here.wait_stream(side)
        for part in moved:
            part.record_stream(here)  # its memory is not given to others before ``here`` is done with it
        return moved
