"""Content comes out of a parcel as it went in, or not at all."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, strategies as st

from quietsum.federation.flower import parcel as module
from quietsum.federation.flower.parcel import NONCE, Malformed, Opening, cut


@pytest.fixture(autouse=True, scope="module")
def small() -> object:
    """Small pieces, so that a few bytes make many chunks."""
    before = module.INLINE, module.CHUNK
    module.INLINE, module.CHUNK = 8, 4
    yield
    module.INLINE, module.CHUNK = before


def opened(parcel: module.Parcel, declared: int) -> bytes:
    opening = Opening(parcel.root, declared=declared)
    while (name := opening.wanted) is not None:
        opening.take(parcel.object(name))
    return opening.content()


@given(st.binary(max_size=200))
def test_what_goes_in_comes_out(content: bytes) -> None:
    assert opened(cut(content), len(content)) == content
    assert opened(cut(content).again(), len(content)) == content


def test_equal_pieces_are_carried_once_and_come_out_as_often_as_they_went_in() -> None:
    parcel = cut(bytes(8 + 4 * 10))
    assert len(parcel.chunks) == 1
    assert opened(parcel, 48) == bytes(48)


def test_two_messages_of_one_content_share_chunks_and_no_root() -> None:
    one = cut(b"0123456789abcdef")
    two = one.again()
    assert one.chunks == two.chunks
    assert one.root != two.root


@given(st.binary(min_size=1, max_size=100), st.integers(0, 120))
def test_another_length_than_the_declared_one_is_refused(content: bytes, declared: int) -> None:
    if declared == len(content):
        return
    with pytest.raises(Malformed):
        opened(cut(content), declared)


@given(st.binary(max_size=80), st.binary(max_size=60))
def test_an_object_of_another_hash_is_refused(content: bytes, other: bytes) -> None:
    opening = Opening(cut(content).root, declared=len(content))
    with pytest.raises(Malformed):
        opening.take(other)


@pytest.mark.parametrize(
    "root",
    [
        b"",
        b"Message",
        b"Message  16\0" + bytes(15),  # a body shorter than its head says
        b"Message  3\0abc",  # no room for the nonce
        b"ArrayChunk  16\0" + bytes(16),
        b"Message  x\0" + bytes(16),
        b"Mess\xffage  16\0" + bytes(16),
        b"Message " + b",".join([b"a" * 64] * 1000) + b" 16\0" + bytes(16),  # more chunks than the length allows
    ],
)
def test_a_root_of_another_form_is_refused(root: bytes) -> None:
    opening = Opening(hashlib.sha256(root).hexdigest(), declared=20)
    with pytest.raises(Malformed):
        opening.take(root)


def test_a_chunk_of_another_form_is_refused() -> None:
    foreign = b"Message  4\0abcd"
    name = hashlib.sha256(foreign).hexdigest()
    root = f"Message {name} {NONCE + 8}\0".encode() + bytes(NONCE + 8)
    opening = Opening(hashlib.sha256(root).hexdigest(), declared=12)
    opening.take(root)
    with pytest.raises(Malformed, match="chunk"):
        opening.take(foreign)
