"""ChaCha20 on a card in one kernel: a block stays in registers from its first round to its last.

:mod:`quietsum.learning.noise.chacha` says what is computed and compares the result with its own before using it. Triton
comes with torch for cards; without it :func:`draw_on_card` raises, and is not needed.
"""
# mypy: ignore-errors
# ruff: noqa: N803  (triton reads annotations as they stand)

import importlib
import types

import torch
from torch import Tensor

from quietsum.learning.rows.memory import carry

try:
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
except ImportError:  # the module can be read, and draw_on_card raises
    triton, tl = types.SimpleNamespace(jit=lambda function: function), types.SimpleNamespace(constexpr=None)

__all__ = ["draw_on_card"]

_BLOCKS = 256  # a program


@triton.jit
def _rotate(word, by: tl.constexpr):
    return (word << by) | (word >> (32 - by))


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _store(out, place, total, row, low, high, mask):
    word = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
    tl.store(out + row * total + place, word.to(tl.int64, bitcast=True), mask=mask)


@triton.jit
def _chacha(out, fixed, total, SIZE: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE).to(tl.int64)
    mask = place < total
    blank = tl.zeros([SIZE], dtype=tl.uint32)
    i0 = blank + tl.load(fixed + 0).to(tl.uint32, bitcast=True)
    i1 = blank + tl.load(fixed + 1).to(tl.uint32, bitcast=True)
    i2 = blank + tl.load(fixed + 2).to(tl.uint32, bitcast=True)
    i3 = blank + tl.load(fixed + 3).to(tl.uint32, bitcast=True)
    i4 = blank + tl.load(fixed + 4).to(tl.uint32, bitcast=True)
    i5 = blank + tl.load(fixed + 5).to(tl.uint32, bitcast=True)
    i6 = blank + tl.load(fixed + 6).to(tl.uint32, bitcast=True)
    i7 = blank + tl.load(fixed + 7).to(tl.uint32, bitcast=True)
    i8 = blank + tl.load(fixed + 8).to(tl.uint32, bitcast=True)
    i9 = blank + tl.load(fixed + 9).to(tl.uint32, bitcast=True)
    i10 = blank + tl.load(fixed + 10).to(tl.uint32, bitcast=True)
    i11 = blank + tl.load(fixed + 11).to(tl.uint32, bitcast=True)
    i12 = place.to(tl.uint32)
    i13 = blank
    x0, x1, x2, x3, x4, x5, x6, x7 = i0, i1, i2, i3, i4, i5, i6, i7
    x8, x9, x10, x11, x12, x13, x14, x15 = i8, i9, i10, i11, i12, i13, i13, i13
    for _ in range(10):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    _store(out, place, total, 0, x0 + i0, x1 + i1, mask)
    _store(out, place, total, 1, x2 + i2, x3 + i3, mask)
    _store(out, place, total, 2, x4 + i4, x5 + i5, mask)
    _store(out, place, total, 3, x6 + i6, x7 + i7, mask)
    _store(out, place, total, 4, x8 + i8, x9 + i9, mask)
    _store(out, place, total, 5, x10 + i10, x11 + i11, mask)
    _store(out, place, total, 6, x12 + i12, x13, mask)
    _store(out, place, total, 7, x14, x15, mask)


def draw_on_card(key: bytes, total: int, device: torch.device) -> Tensor:
    """The first ``total`` blocks under ``key``, nonce zero, as (8 · total) words of 64 bits in int64."""
    fixed = carry(torch.frombuffer(bytearray(b"expand 32-byte k" + key), dtype=torch.int32), device)
    out = torch.empty(8 * total, dtype=torch.int64, device=device)
    with torch.cuda.device(device):
        _chacha[(triton.cdiv(total, _BLOCKS),)](out, fixed, total, SIZE=_BLOCKS)
    return out
