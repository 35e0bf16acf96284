"""Masks: the standard's keystream, uniform words, exact cancelling, and all 256 bits of the key."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from scipy.stats import chisquare

from quietsum.errors import InvalidParameter
from quietsum.secagg import keys, masks

WORDS = 1 << 16


def mask_of(key: bytes, size: int) -> NDArray[np.uint32]:
    total = np.zeros(size, dtype=np.uint32)
    masks.add(total, key)
    return total


def test_nist_sp_800_38a_f_5_5_aes_256_ctr(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard's counter block and blocks, through the mask's own keystream: its XOR with the plaintext."""
    from cryptography.hazmat.primitives.ciphers import modes

    monkeypatch.setattr(masks, "_ZERO_COUNTER", modes.CTR(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")))
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = bytes.fromhex(
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    stream = mask_of(key, 16).astype("<u4").tobytes()
    assert bytes(a ^ b for a, b in zip(stream, plain, strict=True)) == cipher


def test_the_counter_starts_at_zero_and_runs_on_over_the_pieces() -> None:
    """Block i of the mask is AES-256 of the number i, across the border of a piece."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = b"k" * 32
    stream = mask_of(key, 3 * masks._PIECE + 5).astype("<u4").tobytes()
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    for place in (0, 1, 4 * masks._PIECE // 16 - 1, 4 * masks._PIECE // 16, 8 * masks._PIECE // 16 + 1):
        assert stream[16 * place : 16 * place + 16] == block.update(place.to_bytes(16, "big"))


@given(
    size=st.sampled_from((0, 1, 3, 4, 5, 1000, masks._PIECE - 1, masks._PIECE, masks._PIECE + 1, 2 * masks._PIECE + 7)),
    signs=st.lists(st.sampled_from((1, -1)), min_size=1, max_size=5),
)
def test_masks_added_together_equal_masks_added_one_by_one_and_cancel_exactly(size: int, signs: list[int]) -> None:
    generator = np.random.default_rng(size)
    start = generator.integers(0, 2**32, size, dtype=np.uint32)
    pairs = [(bytes([place]) * 32, sign) for place, sign in enumerate(signs)]
    together, single = start.copy(), start.copy()
    masks.add_all(together, pairs)  # type: ignore[arg-type]
    for key, sign in pairs:
        masks.add(single, key, sign=sign)  # type: ignore[arg-type]
    assert (together == single).all()
    masks.add_all(together, [(key, -sign) for key, sign in pairs])  # type: ignore[misc]
    assert (together == start).all()


def test_more_masks_than_go_side_by_side_are_all_added() -> None:
    many = [(keys.hash_parts("mask", bytes([place])), 1) for place in range(2 * masks._TOGETHER + 3)]
    together, single = np.zeros(100, dtype=np.uint32), np.zeros(100, dtype=np.uint32)
    masks.add_all(together, iter(many))  # type: ignore[arg-type]
    for key, _ in many:
        masks.add(single, key)
    assert (together == single).all()


def uniform(words: NDArray[np.uint32]) -> float:
    """The smallest p-value of χ² tests of the four bytes of a word, corrected for four looks."""
    return 4 * min(chisquare(np.bincount((words >> shift) & 255, minlength=256)).pvalue for shift in (0, 8, 16, 24))


@pytest.mark.parametrize("value", [0, 1, 2**32 - 1])
def test_a_masked_constant_vector_is_uniform(value: int) -> None:
    vector = np.full(WORDS, value, dtype=np.uint32)
    masks.add(vector, keys.draw_seed())
    assert uniform(vector) > 1e-6
    repeated = np.corrcoef(vector[:-1].astype(float), vector[1:].astype(float))[0, 1]
    assert abs(repeated) < 6 / np.sqrt(WORDS)


def test_a_mask_with_a_fixed_byte_or_an_unmasked_vector_is_not_uniform() -> None:
    """The negative control of the test above: what it must notice."""
    assert uniform(np.zeros(WORDS, dtype=np.uint32)) < 1e-6
    assert uniform(mask_of(b"k" * 32, WORDS) & np.uint32(0xFFFFFF)) < 1e-6
    assert uniform(mask_of(b"k" * 32, WORDS) % np.uint32(2**32 - 2**27)) < 1e-6


def bits_that_matter(maker: Callable[[bytes], NDArray[np.uint32]]) -> int:
    """How many of the 256 bits of a key change the mask."""
    key = keys.hash_parts("any key")
    base = maker(key)
    return sum(
        bool((maker(bytes(b ^ (1 << bit % 8) * (place == bit // 8) for place, b in enumerate(key))) != base).any())
        for bit in range(256)
    )


def folded(key: bytes) -> NDArray[np.uint32]:
    """A mask from a 32-bit seed: the key is XOR-folded first, as a seeded numpy generator would take it."""
    seed = int(np.bitwise_xor.reduce(np.frombuffer(key, dtype=np.uint32)))
    return np.random.RandomState(seed).randint(0, 2**32, 8, dtype=np.uint32)


def collides(maker: Callable[[bytes], NDArray[np.uint32]]) -> bool:
    """Whether two keys that differ in the same bit of two words make one mask."""
    key = bytearray(keys.hash_parts("any key"))
    base = maker(bytes(key))
    key[0] ^= 1
    key[4] ^= 1
    return bool((maker(bytes(key)) == base).all())


def test_the_mask_depends_on_every_bit_of_the_key_and_on_all_of_them_together() -> None:
    assert bits_that_matter(lambda key: mask_of(key, 8)) == 256
    assert not collides(lambda key: mask_of(key, 8))
    seen = set()
    base = int.from_bytes(keys.hash_parts("any key"), "little")
    for first in range(256):  # every pair of neighbouring and far bits: a fold of any width would repeat a mask
        for distance in (1, 8, 16, 28, 31, 32, 64, 128):
            second = (first + distance) % 256
            seen.add(mask_of((base ^ (1 << first) ^ (1 << second)).to_bytes(32, "little"), 4).tobytes())
    pairs = {
        frozenset((first, (first + distance) % 256))
        for first in range(256)
        for distance in (1, 8, 16, 28, 31, 32, 64, 128)
    }
    assert len(seen) == len(pairs)


@pytest.mark.parametrize(
    "broken",
    [
        folded,
        lambda key: mask_of(zlib.crc32(key).to_bytes(4, "big") + bytes(28), 8),
        lambda key: mask_of(key[:4] + bytes(28), 8),
    ],
    ids=["numpy generator", "crc", "cut"],
)
def test_masks_from_a_32_bit_seed_are_caught(broken: Any) -> None:
    """Mutants: with 32 bits left, 131,072 keys repeat a mask, and some bits or pairs of bits make no difference."""
    if bits_that_matter(broken) == 256 and not collides(broken):
        generator = np.random.default_rng(0)
        seen = {broken(generator.bytes(32)).tobytes() for _ in range(1 << 17)}
        assert len(seen) < 1 << 17


def test_the_key_of_a_mask_has_32_bytes_and_the_vector_is_uint32() -> None:
    for key in (b"", bytes(16), bytes(33)):
        with pytest.raises(InvalidParameter, match="32 bytes"):
            masks.add(np.zeros(4, dtype=np.uint32), key)
    for vector in (np.zeros(4), np.zeros((2, 2), dtype=np.uint32), np.zeros(8, dtype=np.uint32)[::2]):
        with pytest.raises(InvalidParameter, match="accumulator"):
            masks.add(vector, bytes(32))  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="sign"):
        masks.add(np.zeros(4, dtype=np.uint32), bytes(32), sign=2)  # type: ignore[arg-type]
