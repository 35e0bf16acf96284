"""Rows of zeros in place of what is not finite, without a look at which rows they are.

Zero times NaN is NaN, so an example whose norm is not finite must be erased on both sides of a product before its
factor 0 means anything. On a card it is not asked whether there is such an example, since an answer would be waited
for. A copy with the rows masked reads and writes everything, for rows that are nearly never there. A kernel that reads
one byte a row and writes only where it must moves nearly nothing. It writes in place, so it is used for tensors that
belong to the step alone: activations, gradients, and what was made of them.

The kernel (:mod:`quietsum.learning.engines.hardware.erase_kernel`) is compared with the copy before its first use.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor

__all__ = ["erase"]

log = logging.getLogger(__name__)


def erase(part: Tensor, bad: Tensor, *, own: bool = False) -> Tensor:
    """``part`` with zeros in the rows that ``bad`` marks; with ``own`` it may be written to, and may come back itself.

    >>> erase(torch.tensor([[1.0, 2.0], [3.0, float("nan")]]), torch.tensor([False, True])).tolist()
    [[1.0, 2.0], [0.0, 0.0]]
    """
    if own and part.numel() and part.is_contiguous():
        kernel = kernel_for(part.device)
        if kernel is not None:
            kernel(part, bad)
            return part
    return part.masked_fill(bad.view(-1, *[1] * (part.dim() - 1)), 0)


@functools.cache
def kernel_for(device: torch.device) -> Any:
    """A function of rows and marks by triton, if it is there and right; else None."""
    if device.type != "cuda":
        return None
    try:
        from quietsum.learning.engines.hardware.erase_kernel import erase_rows

        for dtype in (torch.float32, torch.bfloat16):
            part = torch.full((7, 3, 5001), float("nan"), dtype=dtype, device=device)
            part[::2] = torch.arange(15003, device=device).view(3, 5001).to(dtype)
            bad = torch.tensor([False, True] * 3 + [False], device=device)
            wanted = part.masked_fill(bad[:, None, None], 0)
            erase_rows(part, bad)
            if not torch.equal(part, wanted):
                log.warning("triton erases other rows on %s than it should; copies are made, which is slower", device)
                return None
    except Exception as problem:  # no triton, no compiler, or a card that it does not know
        log.info("rows on %s are erased by copies: %s", device, type(problem).__name__)
        return None
    return erase_rows
