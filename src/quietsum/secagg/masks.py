"""Masks: keystreams of AES-256 in counter mode, added modulo 2³² to a vector in place.

A mask is the keystream of AES-256-CTR (NIST SP 800-38A) under a zero counter block, read as little-endian 32-bit
words. The counter block may be zero because a key has one use (:mod:`quietsum.secagg.keys`); all 256 bits of it
matter. Without the key the mask is indistinguishable from uniform words, so a vector plus a mask is, too, for
every vector.

The keystream is made in pieces that stay in the processor's cache, and is never held as a whole: adding a mask to a
million numbers needs a quarter of a megabyte beside them.

>>> import numpy as np
>>> total = np.zeros(5, dtype=np.uint32)
>>> add(total, bytes(32)); add(total, bytes(32), sign=-1); total.tolist()
[0, 0, 0, 0, 0]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter

__all__ = ["Sign", "add", "add_all"]

Sign = Literal[1, -1]

LONGEST = 1 << 36
"""The most words of one mask: the counter's 128 bits are nowhere near their end, nor is AES near its birthday bound."""

_PIECE = 1 << 15  # words: 128 KiB of keystream and 128 KiB of the vector stay in the second-level cache
_ZEROS = bytes(4 * _PIECE)
_PADDING = 16  # what update_into asks for beyond the data
_ZERO_COUNTER = modes.CTR(bytes(16))
_TOGETHER = 64  # masks that go through the vector side by side


def add(accumulator: NDArray[np.uint32], key: bytes, *, sign: Sign = 1) -> None:
    """Add (or with ``sign`` −1 subtract) the mask of ``key`` to ``accumulator``, modulo 2³², in place."""
    add_all(accumulator, ((key, sign),))


def add_all(accumulator: NDArray[np.uint32], masks: Iterable[tuple[bytes, Sign]]) -> None:
    """Add several masks, each a key and a sign: the same as one :func:`add` after another, with less memory traffic."""
    _require_vector(accumulator)
    group: list[tuple[CipherContext, Any]] = []
    for key, sign in masks:
        group.append((_keystream(key), _operation(sign)))
        if len(group) == _TOGETHER:
            _run(accumulator, group)
            group = []
    if group:
        _run(accumulator, group)


def _run(accumulator: NDArray[np.uint32], group: list[tuple[CipherContext, Any]]) -> None:
    space = bytearray(4 * min(_PIECE, accumulator.size) + _PADDING)
    words = np.frombuffer(space, dtype="<u4", count=(len(space) - _PADDING) // 4)
    for start in range(0, accumulator.size, _PIECE):
        piece = accumulator[start : start + _PIECE]
        zeros = _ZEROS if piece.size == _PIECE else memoryview(_ZEROS)[: 4 * piece.size]
        mask = words[: piece.size]
        for keystream, operation in group:
            keystream.update_into(zeros, space)
            operation(piece, mask, out=piece)


def _keystream(key: bytes) -> CipherContext:
    if len(key) != 32:
        raise InvalidParameter("key", f"{len(key)} bytes", "must have 32 bytes", "derive it with keys.agree")
    return Cipher(algorithms.AES(key), _ZERO_COUNTER).encryptor()


def _operation(sign: Sign) -> Any:
    if sign not in (1, -1):
        raise InvalidParameter("sign", sign, "must be 1 or −1")
    return np.add if sign == 1 else np.subtract


def _require_vector(accumulator: NDArray[np.uint32]) -> None:
    if accumulator.dtype != np.uint32 or accumulator.ndim != 1 or not accumulator.flags.c_contiguous:
        problem = "must be one contiguous row of uint32"
        raise InvalidParameter("accumulator", f"{accumulator.dtype} {accumulator.shape}", problem)
    if not accumulator.flags.writeable or accumulator.size > LONGEST:
        raise InvalidParameter("accumulator", accumulator.shape, f"must be writeable and at most {LONGEST} long")
