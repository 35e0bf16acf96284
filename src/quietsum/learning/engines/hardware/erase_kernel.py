"""Zeros in the marked rows of a contiguous tensor, in place: a program that finds its row unmarked ends at once.

:mod:`quietsum.learning.engines.hardware.erase` compares the result with its own before using it. Triton comes with
torch for cards; without it :func:`erase_rows` raises, and is not needed.
"""
# mypy: ignore-errors
# ruff: noqa: N803  (triton reads annotations as they stand)

import importlib
import types

import torch
from torch import Tensor

try:
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
except ImportError:  # the module can be read, and erase_rows raises
    triton, tl = types.SimpleNamespace(jit=lambda function: function), types.SimpleNamespace(constexpr=None)

__all__ = ["erase_rows"]

_AT_ONCE = 8192  # numbers of a row in one program


@triton.jit
def _erase(rows, marks, width, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(marks + row) != 0:
        place = tl.program_id(1).to(tl.int64) * SIZE + tl.arange(0, SIZE).to(tl.int64)
        tl.store(rows + row * width + place, tl.zeros([SIZE], dtype=rows.dtype.element_ty), mask=place < width)


def erase_rows(part: Tensor, bad: Tensor) -> None:
    """Write zeros into the rows of ``part`` that ``bad`` marks."""
    width = part.numel() // len(part)
    with torch.cuda.device(part.device):
        _erase[(len(part), triton.cdiv(width, _AT_ONCE))](part, bad.to(torch.uint8), width, SIZE=_AT_ONCE)
