"""Graphics cards: what torch sees on this machine. Nothing needs one; per-example gradients are faster with one."""

from __future__ import annotations

import torch

__all__ = ["list_cards"]


def list_cards() -> tuple[tuple[str, ...], str | None]:
    """The names of the graphics cards, and the version of CUDA that torch is built for, None if for processors only."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.cuda.get_device_name(place) for place in range(count)), torch.version.cuda
