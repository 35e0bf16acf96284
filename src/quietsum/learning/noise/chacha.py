"""A cryptographic keystream made on the device that needs it: ChaCha20 in torch's integer operations.

Noise for a model on a graphics card is drawn there, since to carry it over would cost more than the step. Torch's own
generator on a card, Philox, is made for simulation and takes a seed of 64 bits: who tries enough seeds can go on from
there. ChaCha20 (Bernstein 2008; RFC 8439, section 2.3) takes a key of 256 bits and is a sequence of additions,
exclusive ors and rotations of 32-bit words, which suits a card.

A block of the keystream is 16 words; block i is a function of key, nonce and i alone, so that all blocks are made side
by side. There are two ways to the same words: :func:`blocks` in torch operations, on any device; and on a card a kernel
in triton, where triton is installed and its first blocks are those of :func:`blocks`. Tests compare with RFC 8439 and
with another library.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from torch import Tensor

from quietsum.errors import InvalidParameter
from quietsum.learning.rows.memory import carry

__all__ = ["KEY_BYTES", "blocks", "words"]

log = logging.getLogger(__name__)

KEY_BYTES = 32
_CONSTANTS = b"expand 32-byte k"
_ROUNDS = 10  # double rounds
_AT_ONCE = 1 << 20  # blocks, in torch operations
_MOST = 1 << 32  # blocks under one key and nonce: the counter has 32 bits
_NO_NONCE = bytes(12)


def words(key: bytes, count: int, device: torch.device | str) -> Tensor:
    """``count`` random 64-bit words as int64 on ``device``, from the keystream of ``key``, which must be fresh.

    Guarantees: a word is two words of one block of ChaCha20, and no two share one. The same key gives the same words on
    every device, in the order in which a card writes them.
    """
    device = torch.device(device)
    total = -(-count // 8)
    _check(key, _NO_NONCE, total)
    if device.type == "cuda":
        kernel = _kernel(device)
        if kernel is not None:
            made: Tensor = kernel(key, total)
            return made[:count]
    parts = [_pair(blocks(key, min(_AT_ONCE, total - start), device, counter=start)) for start in _starts(total)]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    return whole.flatten()[:count]


def _starts(total: int) -> range:
    return range(0, max(total, 1), _AT_ONCE)


def _check(key: bytes, nonce: bytes, total: int) -> None:
    if len(key) != KEY_BYTES or len(nonce) != len(_NO_NONCE):
        raise InvalidParameter("key", f"{len(key)} bytes", "is no key of ChaCha20", "pass 32 bytes, and a nonce of 12")
    if not 0 <= total <= _MOST:
        raise InvalidParameter("count", total, "is more than one key makes", "draw in several calls")


def _pair(made: Tensor) -> Tensor:
    """(16, n) words of 32 bits as (8, n) of 64: words 2k and 2k + 1 of a block, the lower first."""
    low, high = made[0::2].to(torch.int64), made[1::2].to(torch.int64)
    return (high << 32) | (low & 0xFFFFFFFF)


def blocks(
    key: bytes, count: int, device: torch.device | str = "cpu", *, counter: int = 0, nonce: bytes = _NO_NONCE
) -> Tensor:
    """Blocks ``counter`` to ``counter + count − 1`` of the keystream: (16, count) words in int32, by torch operations.

    >>> key = bytes(range(32))
    >>> nonce = bytes([0, 0, 0, 9, 0, 0, 0, 0x4a, 0, 0, 0, 0])
    >>> [f"{int(word) & 0xFFFFFFFF:08x}" for word in blocks(key, 1, counter=1, nonce=nonce)[:2, 0]]   # RFC 8439, 2.3.2
    ['e4e7f110', '15593bd1']
    """
    _check(key, nonce, counter + count)
    fixed = carry(
        torch.frombuffer(bytearray(_CONSTANTS + key + bytes(4) + nonce), dtype=torch.int32), torch.device(device)
    )
    start = fixed[:, None].repeat(1, count)
    start[12] = torch.arange(counter, counter + count, device=device).to(torch.int32)
    a, b, c, d = start.clone().view(4, 4, count).unbind()
    for _ in range(_ROUNDS):
        a, b, c, d = _quarters(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # diagonals become columns
        a, b, c, d = _quarters(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return torch.cat([a, b, c, d]).add_(start)


def _quarters(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds side by side (RFC 8439, 2.1). Sums of int32 wrap around."""
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(word: Tensor, by: int) -> Tensor:
    """To the left. A shift to the right copies the sign, which is cut off."""
    return (word << by) | ((word >> (32 - by)) & ((1 << by) - 1))


# ------------------------------------------------------------------------------------------------ on a card


@functools.cache
def _kernel(device: torch.device) -> Any:
    """A function of key and number of blocks by triton, if it is there and right; else None: torch operations do it."""
    try:
        from quietsum.learning.noise.chacha_kernel import draw_on_card

        key, some = bytes(range(KEY_BYTES)), 1000
        right = torch.equal(draw_on_card(key, some, device), _pair(blocks(key, some, device)).flatten())
    except Exception as problem:  # no triton, no compiler, or a card that it does not know
        log.info("the keystream on %s is made by torch operations: %s", device, type(problem).__name__)
        return None
    if not right:
        log.warning("triton's keystream on %s is not ChaCha20; torch operations make it, which is slower", device)
        return None
    return functools.partial(draw_on_card, device=device)
