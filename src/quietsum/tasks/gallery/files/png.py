"""PNG pictures as gray values, with numpy and zlib alone: enough for microscope pictures and their masks.

A PNG file is a signature and chunks (length, name, content, CRC). The pixels are one zlib stream in which each line
begins with the number of its filter: the line minus nothing, its left neighbour, the line above, their mean, or
whichever of left, above and above-left predicts best (Paeth). Source: the PNG specification, W3C 2003, §9 and §11.
Eight bits a channel, not interlaced; colours become gray by the luma of ITU-R BT.601.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing

__all__ = ["LARGEST_PICTURE", "read_gray", "resize"]

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}  # gray, RGB, gray with alpha, RGB with alpha
_LARGEST: Final = 10_000  # pixels a side: no microscope picture of this set comes near
LARGEST_PICTURE: Final = 25_000_000
"""Pixels of a picture. A small file may claim more than there is memory for, and one record must not end the others."""


def read_gray(path: Path) -> NDArray[np.uint8]:
    """The picture as (height, width) gray values of 0 … 255."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataMissing(f"{path} cannot be read ({error.strerror}); fetch it again") from None
    header, packed = _chunks(path, content)
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or kind not in _CHANNELS or interlaced:
        raise DataMissing(f"{path} is another kind of PNG than the published ones (8 bits, no palette); fetch it again")
    if not (0 < width <= _LARGEST and 0 < height <= _LARGEST and width * height <= LARGEST_PICTURE):
        raise DataMissing(f"{path} says it is {width} × {height} pixels large; fetch it again")
    channels = _CHANNELS[kind]
    stride = width * channels
    try:
        raw = zlib.decompressobj().decompress(packed, height * (stride + 1) + 1)
    except zlib.error as error:
        raise DataMissing(f"{path} is damaged ({error}); fetch it again") from None
    if len(raw) != height * (stride + 1):
        raise DataMissing(f"{path} holds {len(raw)} bytes of pixels, not {height * (stride + 1)}; fetch it again")
    pixels = _undo_filters(path, raw, height, stride, channels).reshape(height, width, channels)
    if channels < 3:
        return pixels[:, :, 0]
    luma = pixels[:, :, :3].astype(np.float64) @ np.array([0.299, 0.587, 0.114])
    return np.asarray(np.rint(luma), dtype=np.uint8)


def resize(values: NDArray[np.uint8], side: int) -> NDArray[np.float64]:
    """(height, width) values as (side, side): bilinear, each output pixel a weighted mean of those under its triangle.

    >>> resize(np.full((300, 200), 7, dtype=np.uint8), 4).round(6).tolist()[0]
    [7.0, 7.0, 7.0, 7.0]
    """
    down, across = (_triangles(length, side) for length in values.shape)
    return down @ values @ across.T


def _triangles(length: int, side: int) -> NDArray[np.float64]:
    """The (side, length) weights of one axis."""
    scale = length / side
    centres = (np.arange(side) + 0.5) * scale - 0.5
    weights = np.maximum(0.0, 1 - np.abs(np.arange(length) - centres[:, None]) / max(scale, 1.0))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _chunks(path: Path, content: bytes) -> tuple[bytes, bytes]:
    """The header and the packed pixels."""
    if not content.startswith(_SIGNATURE):
        raise DataMissing(f"{path} is no PNG file; fetch it again")
    header, packed, place, ended = b"", [], len(_SIGNATURE), False
    while place + 12 <= len(content) and not ended:
        (length,) = struct.unpack_from(">I", content, place)
        name, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        if content[place + 8 + length : place + 12 + length] != struct.pack(">I", zlib.crc32(name + body)):
            raise DataMissing(f"{path} is truncated or damaged (its check sum differs); fetch it again")
        if name == b"IHDR":
            header = body
        elif name == b"IDAT":
            packed.append(body)
        ended = name == b"IEND"
        place += 12 + length
    if len(header) != 13 or not ended:
        raise DataMissing(f"{path} is truncated; fetch it again")
    return header, b"".join(packed)


def _undo_filters(path: Path, raw: bytes, height: int, stride: int, step: int) -> NDArray[np.uint8]:
    lines = np.frombuffer(raw, dtype=np.uint8).reshape(height, stride + 1)
    found = np.zeros((height + 1, stride), dtype=np.uint8)  # a line of zeros lies above the first
    for number, (kind, line) in enumerate(zip(lines[:, 0].tolist(), lines[:, 1:], strict=True)):
        above = found[number]
        if kind > 4:
            raise DataMissing(f"{path} has a line of filter {kind}, which does not exist; fetch it again")
        if kind == 0:
            found[number + 1] = line
        elif kind == 1:  # a running sum modulo 256
            found[number + 1] = np.cumsum(line.reshape(-1, step), axis=0, dtype=np.uint8).reshape(-1)
        elif kind == 2:
            found[number + 1] = line + above
        elif line.any() or above.any():  # else zeros stay zeros, as most of a mask does
            undo = _mean if kind == 3 else _paeth
            found[number + 1] = np.frombuffer(undo(line.tobytes(), above.tobytes(), step), dtype=np.uint8)
    return found[1:]


def _mean(line: bytes, above: bytes, step: int) -> bytes:
    found = bytearray(line)
    for place, up in enumerate(above):
        left = found[place - step] if place >= step else 0
        found[place] = (found[place] + (left + up) // 2) & 255
    return bytes(found)


def _paeth(line: bytes, above: bytes, step: int) -> bytes:
    found = bytearray(line)
    for place, up in enumerate(above):
        left, corner = (found[place - step], above[place - step]) if place >= step else (0, 0)
        to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
        nearest = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        found[place] = (found[place] + nearest) & 255
    return bytes(found)
