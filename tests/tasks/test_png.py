"""PNG files without a library: every filter is undone, every kind of damage is seen."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.errors import DataMissing
from quietsum.tasks.datafiles import sha256_of
from quietsum.tasks.gallery.files import nuclei as reader
from quietsum.tasks.gallery.files.nuclei import read_nuclei, read_official
from quietsum.tasks.gallery.files.png import read_gray, resize


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def predicted(kind: int, left: int, up: int, corner: int) -> int:
    """What the specification subtracts, written as it is written there."""
    if kind == 4:
        guess = left + up - corner
        return min((abs(guess - left), 0, left), (abs(guess - up), 1, up), (abs(guess - corner), 2, corner))[2]
    return (0, left, up, (left + up) // 2)[kind]


def png(pixels: Any, kinds: list[int] | None = None, colour: int | None = None, depth: int = 8) -> bytes:
    """(h, w) or (h, w, channels) bytes as a PNG whose lines use the filters ``kinds`` in turn."""
    height, width = pixels.shape[:2]
    planes = pixels.reshape(height, width, -1)
    step = planes.shape[2]
    flat = planes.reshape(height, -1).astype(int)
    lines = b""
    for row in range(height):
        kind = (kinds or [0])[row % len(kinds or [0])]
        line = bytearray([kind])
        for place, value in enumerate(flat[row]):
            left = flat[row, place - step] if place >= step else 0
            up = flat[row - 1, place] if row else 0
            corner = flat[row - 1, place - step] if row and place >= step else 0
            line.append((value - predicted(kind, left, up, corner)) % 256)
        lines += bytes(line)
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[step] if colour is None else colour
    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    packed = zlib.compress(lines)
    body = chunk(b"IHDR", header) + chunk(b"tEXt", b"made for a test")
    body += chunk(b"IDAT", packed[:20]) + chunk(b"IDAT", packed[20:]) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("kinds", [[0], [1], [2], [3], [4], [4, 3, 2, 1, 0]])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_every_filter_is_undone(tmp_path: Path, kinds: list[int], channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, channels), dtype=np.uint8)
    pixels[3:5] = 0  # lines of zeros take a short cut
    path = tmp_path / "a.png"
    path.write_bytes(png(pixels, kinds))
    wanted = pixels[:, :, 0].astype(float)
    if channels > 2:
        wanted = 0.299 * pixels[:, :, 0] + 0.587 * pixels[:, :, 1] + 0.114 * pixels[:, :, 2]
    np.testing.assert_array_equal(read_gray(path), np.rint(wanted).astype(np.uint8))


@pytest.mark.parametrize("change", ["cut", "flip", "text", "palette", "deep", "gone", "filter", "short"])
def test_damaged_and_foreign_files_are_refused(tmp_path: Path, change: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7), dtype=np.uint8)
    content = png(pixels, [4])
    made = {
        "cut": content[:-20],
        "flip": content[:60] + bytes([content[60] ^ 1]) + content[61:],
        "text": b"no picture at all",
        "palette": png(pixels, colour=3),
        "deep": png(pixels, depth=16),
        "filter": b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 7, 9, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(bytes([9] * 72)))
        + chunk(b"IEND", b""),
        "short": b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 7, 9, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(bytes(50)))
        + chunk(b"IEND", b""),
    }
    path = tmp_path / "a.png"
    if change != "gone":
        path.write_bytes(made[change])
    with pytest.raises(DataMissing, match="fetch it again"):
        read_gray(path)


def test_a_small_file_cannot_claim_a_huge_picture(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    header = struct.pack(">IIBBBBB", 2**31, 2**31, 8, 6, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    with pytest.raises(DataMissing, match="pixels large"):
        read_gray(path)


def test_resizing_keeps_means_and_lines() -> None:
    slope = np.tile(np.arange(200, dtype=np.uint8), (300, 1))
    small = resize(slope, 50)
    assert small.shape == (50, 50) and np.allclose(small[:, 25], small[0, 25])
    assert np.allclose(np.diff(small[0, 2:-2]), 4.0) and abs(small.mean() - slope.mean()) < 0.2
    assert np.allclose(resize(slope[:50, :50], 50), slope[:50, :50])  # nothing to do


# ------------------------------------------------------------------------------------------ the official folder


def stage1(folder: Path) -> tuple[int, str]:
    """Three pictures as the official folder holds them; returns what is then known about it."""
    for number, name in enumerate(("aa", "bb", "cc")):
        (folder / name / "images").mkdir(parents=True)
        (folder / name / "masks").mkdir()
        picture = np.full((20 + number, 30, 4), 40, dtype=np.uint8)
        for nucleus in range(number + 1):
            mask = np.zeros(picture.shape[:2], dtype=np.uint8)
            mask[2:10, 9 * nucleus : 9 * nucleus + 8] = 255
            picture[mask > 0] = 200
            (folder / name / "masks" / f"{nucleus}.png").write_bytes(png(mask, [4]))
        (folder / name / "images" / f"{name}.png").write_bytes(png(picture, [4, 1]))
    return 3, sha256_of(b"20 30 1\n21 30 2\n22 30 3")


def test_the_official_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = stage1(tmp_path / "stage1_train")
    (tmp_path / "stage1_train" / "README.md").write_text("not a picture")
    found = read_official(tmp_path / "stage1_train", known)
    assert found.images.shape == found.masks.shape == (3, 128, 128)
    assert found.sites() == ("20x30", "21x30", "22x30")
    bright = [found.images[row][found.masks[row] == 1].mean() for row in range(3)]
    assert min(bright) > 180 and found.images[0][found.masks[0] == 0].mean() < 60
    assert found.masks.mean((1, 2)).tolist() == pytest.approx(
        [8 * 8 * n / (600 + 30 * (n - 1)) for n in (1, 2, 3)], rel=0.1
    )
    monkeypatch.setattr(reader, "KNOWN_FOLDER", known)
    assert len(read_nuclei(tmp_path).images) == 3  # found without being asked for
    with pytest.raises(DataMissing, match="3 pictures, the published set 664"):
        read_official(tmp_path / "stage1_train", (664, known[1]))


def test_a_folder_that_lacks_something_is_refused(tmp_path: Path) -> None:
    known = stage1(tmp_path)
    (tmp_path / "cc" / "masks" / "2.png").unlink()
    with pytest.raises(DataMissing, match="numbers of nuclei differ"):
        read_official(tmp_path, known)
    (tmp_path / "cc" / "masks" / "2.png").write_bytes(png(np.zeros((5, 5), dtype=np.uint8)))
    with pytest.raises(DataMissing, match="not as large as its picture"):
        read_official(tmp_path, known)
    (tmp_path / "bb" / "images" / "bb.png").unlink()
    with pytest.raises(DataMissing, match="cannot be read"):
        read_official(tmp_path, known)
