"""Messages as bytes: what was written is read back, and anything else is Unreadable, whatever it is."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quietsum import wire
from quietsum.errors import InvalidParameter
from quietsum.ledger import Ledger
from quietsum.ledger.chain.encoding import canonical
from quietsum.ledger.chain.keys import SigningKey
from quietsum.ledger.stores.protocol import MemoryStore

MOST = 2**22
START = len(wire.MAGIC) + 4
VECTOR = np.array([0.5, -2.0, 1e-300])


def ledger() -> Ledger:
    return Ledger.begin(MemoryStore(), SigningKey.generate())


LEDGER, OTHER = ledger(), ledger()


def message(**changes: Any) -> bytes:
    values: dict[str, Any] = {"knows": OTHER.testimony(), "vector": VECTOR, **changes}
    return wire.write_letter("train", {"run": "first", "round": 1}, LEDGER, **values)[0]


MESSAGE = message()


def header_of(content: bytes) -> dict[str, Any]:
    (length,) = struct.unpack(">I", content[len(wire.MAGIC) : START])
    found: dict[str, Any] = json.loads(content[START : START + length])
    return found


def signed(header: bytes, raw: bytes = b"", by: Ledger = LEDGER) -> bytes:
    """A message with any header, and the right signature under it."""
    return b"".join((wire.MAGIC, struct.pack(">I", len(header)), header, bytes.fromhex(by.sign(header)), raw))


def with_header(change: Callable[[dict[str, Any]], object], raw: bytes = VECTOR.tobytes()) -> bytes:
    values = header_of(MESSAGE)
    change(values)
    return signed(canonical(values).encode(), raw)


def refused(content: Any, most: int = MOST) -> str:
    with pytest.raises(wire.UnreadableLetter) as error:
        wire.read_letter(content, most=most)
    return str(error.value)


# ------------------------------------------------------------------------------------------------ what is whole


def test_what_was_written_is_read_back() -> None:
    content, digest = wire.write_letter("update", {"a": [1, 0.1, None, "ü"]}, LEDGER, answers="0" * 64, vector=VECTOR)
    letter = wire.read_letter(content, most=len(content))
    assert (letter.kind, letter.body, letter.answers) == ("update", {"a": [1, 0.1, None, "ü"]}, "0" * 64)
    assert letter.sender == LEDGER.testimony() and letter.knows is None
    assert letter.digest == digest and letter.vector is not None
    np.testing.assert_array_equal(letter.vector, VECTOR)
    known = wire.read_letter(MESSAGE, most=MOST)
    assert known.knows == OTHER.testimony() and known.id != letter.id
    assert wire.read_letter(message(vector=None), most=MOST).vector is None
    assert wire.read_letter(message(vector=np.zeros(0)), most=MOST).vector is not None


def test_the_control_a_changed_header_that_is_signed_again_is_read() -> None:
    letter = wire.read_letter(with_header(lambda values: values.update(kind="hello")), most=MOST)
    assert letter.kind == "hello" and letter.digest != wire.read_letter(MESSAGE, most=MOST).digest


def test_a_vector_is_read_as_a_copy_that_can_be_written() -> None:
    content = bytearray(MESSAGE)
    letter = wire.read_letter(bytes(content), most=MOST)
    assert letter.vector is not None and letter.vector.flags.writeable and letter.vector.flags.aligned


def test_a_header_that_is_too_long_is_not_written() -> None:
    with pytest.raises(InvalidParameter, match="too long for a message"):
        wire.write_letter("train", {"run": "x" * wire.LARGEST_HEADER}, LEDGER)


def test_as_many_sites_fit_into_a_plan_that_travels_as_is_said() -> None:
    """Ten thousand with short names; half as many where each says why it is public."""
    facts = {"name": "hospital-00000", "dataset": "heart-00000", "size": 100_000, "public": "", "holder": ""}
    why = {"public": "the open data set of the university hospital, published under CC BY 4.0"}
    for parties in ([facts] * 10_000, [facts | why] * 5_000):
        content, _ = wire.write_letter("enrol", {"resolved": {"parties": parties}}, LEDGER)
        assert wire.read_letter(content, most=MOST).kind == "enrol"
    with pytest.raises(InvalidParameter, match="take fewer sites into the plan"):
        wire.write_letter("enrol", {"resolved": {"parties": [facts | why] * 10_000}}, LEDGER)


# ----------------------------------------------------------------------------------------------- cut and altered


def test_every_truncation_is_unreadable() -> None:
    for end in range(len(MESSAGE)):
        refused(MESSAGE[:end])


@given(place=st.integers(0, len(MESSAGE) - 1), bits=st.integers(1, 255))
def test_a_flipped_byte_anywhere_is_unreadable(place: int, bits: int) -> None:
    refused(MESSAGE[:place] + bytes([MESSAGE[place] ^ bits]) + MESSAGE[place + 1 :])


def test_one_flipped_bit_at_every_place_is_unreadable() -> None:
    for place in range(len(MESSAGE)):
        refused(MESSAGE[:place] + bytes([MESSAGE[place] ^ (1 << place % 8)]) + MESSAGE[place + 1 :])


@given(place=st.integers(0, len(MESSAGE)), more=st.binary(min_size=1, max_size=20))
def test_added_bytes_are_unreadable(place: int, more: bytes) -> None:
    refused(MESSAGE[:place] + more + MESSAGE[place:])


@given(content=st.binary(max_size=400))
def test_garbage_is_unreadable(content: bytes) -> None:
    refused(content)
    refused(wire.MAGIC + content)
    refused(signed(content))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(name=st.sampled_from(sorted(header_of(MESSAGE))), value=anything)
def test_a_header_with_any_other_value_is_read_or_unreadable(name: str, value: Any) -> None:
    """Signed again, so that every check behind the signature is reached; nothing but Unreadable comes out."""
    try:
        content = with_header(lambda values: values.update({name: value}))
    except InvalidParameter:  # text that JSON cannot hold
        return
    free = name in ("kind", "id", "answers") and isinstance(value, str)
    if free or (name == "body" and isinstance(value, dict)) or (name == "knows" and value is None):
        wire.read_letter(content, most=MOST)
    elif header_of(MESSAGE)[name] != value or type(header_of(MESSAGE)[name]) is not type(value):
        refused(content)


@pytest.mark.parametrize("missing", sorted(header_of(MESSAGE)))
def test_a_header_without_one_of_its_fields_is_unreadable(missing: str) -> None:
    refused(with_header(lambda values: values.pop(missing)))


def test_a_header_with_one_more_field_is_unreadable() -> None:
    assert "other fields" in refused(with_header(lambda values: values.update(more=1)))


def test_what_is_no_bytes_is_unreadable() -> None:
    for content in (None, "QSUM1\n", 7, ["x"]):
        assert refused(content) == "it is no bytes"


# --------------------------------------------------------------------------------------------- versions and forms


@pytest.mark.parametrize("version", [0, 2, "1", 1.0, True, None, "2\nforged line", {}])
def test_another_version_is_refused_by_name(version: Any) -> None:
    reason = refused(with_header(lambda values: values.update(protocol=version)))
    assert reason.startswith("it speaks version ") and "use the same quietsum" in reason
    assert reason.isprintable()


def test_another_magic_is_no_message() -> None:
    assert refused(b"QSUM2\n" + MESSAGE[6:]) == "it is no message of quietsum"
    assert refused(b"") == "it is no message of quietsum"


def loose(text: str) -> list[str]:
    return [
        text.replace('"round":1', '"round": 1'),
        text.replace('"round":1', '"round":1.0e0'),
        text.replace('"round":1', '"round":NaN'),
        text.replace('"round":1', '"round":Infinity'),
        text.replace('"round":1', '"round":1e999'),
        text.replace('"round":1', '"round":-0.0'),
        text.replace('"round":1', '"round":1,"round":1'),
        text.replace('"round":1', '"round":"\\u0031"'),
        text.replace('"round":1', '"round":"\\ud800"'),
        text.replace('"round":1', '"round":' + "9" * 5000),
        "\ufeff" + text,
        text + "\n",
        "[" + text + "]",
        "null",
        '"text"',
        "",
    ]


def test_a_header_that_is_not_canonical_is_unreadable() -> None:
    text = canonical(header_of(MESSAGE))
    wire.read_letter(signed(text.encode(), VECTOR.tobytes()), most=MOST)  # the control
    for other in loose(text):
        assert other != text
        assert refused(signed(other.encode(), VECTOR.tobytes())) == "its header is not canonical JSON"
    assert refused(signed(text.encode("utf-16"))) == "its header is not canonical JSON"


def test_deep_nesting_is_unreadable() -> None:
    for depth in (2_000, 100_000, wire.LARGEST_HEADER // 2):
        refused(signed(b"[" * depth + b"]" * depth))
        refused(signed(b'{"a":' * (depth // 4) + b"1" + b"}" * (depth // 4)))


# ------------------------------------------------------------------------------------------------------- sizes


def test_more_bytes_than_allowed_are_not_looked_at() -> None:
    assert refused(MESSAGE, most=len(MESSAGE) - 1).endswith("are allowed")
    wire.read_letter(MESSAGE, most=len(MESSAGE))


@pytest.mark.parametrize("length", [wire.LARGEST_HEADER + 1, 2**32 - 1])
def test_a_header_longer_than_any_is_unreadable(length: int) -> None:
    content = wire.MAGIC + struct.pack(">I", length) + b" " * (wire.LARGEST_HEADER + 200)
    assert refused(content) == "it was cut off, or its header is too long"


def peak(read: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_eight_mebibytes_of_brackets_cost_nothing() -> None:
    for content in (b"[" * 2**23, wire.MAGIC + struct.pack(">I", 2**23 - 100) + b"[" * 2**23):
        assert peak(partial(refused, content, most=2**28)) < 2**20


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"ab",', b"0.1,", b"999,", b"[[[[]]]],"])
@pytest.mark.some(1)
def test_a_header_made_to_grow_is_bounded(part: bytes) -> None:
    """JSON needs many times its size while it is read, so no header is long enough for that to matter."""
    header = b'{"a":[' + part * ((wire.LARGEST_HEADER - 20) // len(part)) + b"1]}"
    content = signed(header)
    assert peak(lambda: refused(content, most=2**28)) < 48 * 2**20


def test_a_vector_is_copied_once() -> None:
    content = message(vector=np.ones(2**20))
    assert peak(lambda: wire.read_letter(content, most=2**24)) < 1.25 * len(content)


def test_a_long_vector_that_was_not_signed_is_not_copied() -> None:
    content = MESSAGE[: -VECTOR.nbytes] + bytes(2**23)
    assert peak(lambda: refused(content, most=2**24)) < 2**20


# ------------------------------------------------------------------------------------------------------ vectors


def vector_message(raw: bytes, **header: Any) -> bytes:
    told = {"vector": hashlib.sha256(raw).hexdigest(), "length": len(raw), **header}
    return with_header(lambda values: values.update(told), raw)


def test_vectors_are_what_the_header_says() -> None:
    wire.read_letter(vector_message(VECTOR.tobytes()), most=MOST)  # the control
    assert "not those that were signed" in refused(vector_message(bytes(12)))
    assert "not those that were signed" in refused(vector_message(bytes(16), vector="0" * 64))
    assert "cut off" in refused(vector_message(bytes(16), length=8))
    assert "cut off" in refused(vector_message(bytes(16), length=16.0))
    assert "cut off" in refused(vector_message(b"", length=False))
    assert "does not name" in refused(vector_message(bytes(16), vector=None))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none_are_unreadable(value: float) -> None:
    assert refused(message(vector=np.array([0.0, value]))) == "its numbers are not all finite"


# --------------------------------------------------------------------------------------------------- signatures


def test_a_signature_by_another_ledger_is_refused() -> None:
    header = canonical(header_of(MESSAGE)).encode()
    assert "not that of the ledger it names" in refused(signed(header, VECTOR.tobytes(), by=OTHER))
    assert "not that of the ledger it names" in refused(
        signed(header)[: START + len(header)] + bytes(64) + VECTOR.tobytes()
    )


def test_a_head_that_is_not_the_senders_is_refused() -> None:
    """Its name is made from its key, so neither can be exchanged; nor can the place or hash of a head."""
    head = OTHER.testimony().to_dict()
    assert "not that of the ledger" in refused(with_header(lambda values: values.update(sender=head)))

    def forged(**changes: Any) -> str:
        def change(values: dict[str, Any]) -> None:
            values["sender"]["head"].update(changes)

        return refused(with_header(change))

    for reason in (
        forged(sequence=9),
        forged(hash="0" * 64),
        forged(signature="0" * 128),
        forged(ledger=OTHER.identity.ledger),
        forged(sequence=0),
        forged(sequence=True),
        forged(signature="zz"),
    ):
        assert reason.startswith("a head in it does not hold")
    for key in ("", "zz", "00" * 31, "00" * 33, OTHER.identity.public_key, LEDGER.identity.public_key.upper(), 7):

        def rekey(values: Any, key: object = key) -> None:
            values["sender"].update(public_key=key)

        assert "does not hold" in refused(with_header(rekey))


def test_a_head_of_ours_that_nobody_signed_is_refused() -> None:
    assert "does not hold" in refused(with_header(lambda values: values["knows"]["head"].update(sequence=5)))


def test_a_head_cannot_be_signed_as_a_message() -> None:
    """What a ledger signs as a message can never be taken for one of its heads, nor the other way round."""
    head = LEDGER.head
    content = MESSAGE[: START + len(canonical(header_of(MESSAGE)).encode())]
    assert "not that of the ledger" in refused(content + bytes.fromhex(head.signature) + VECTOR.tobytes())


def test_a_message_of_a_ledger_on_disk_is_read(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as own:
        letter = wire.read_letter(wire.write_letter("hello", {}, own)[0], most=MOST)
        assert letter.sender.ledger == own.identity.ledger


# ------------------------------------------------------------------------------------------------------- payloads


def test_a_payload_travels_beside_a_vector_and_is_covered_by_the_signature() -> None:
    content = message(payload=b"masked bytes")
    letter = wire.read_letter(content, most=MOST)
    assert letter.payload == b"masked bytes" and letter.vector is not None
    np.testing.assert_array_equal(letter.vector, VECTOR)
    assert wire.read_letter(message(vector=None, payload=b"x"), most=MOST).payload == b"x"
    assert refused(content[:-1] + b"?") == "its payload is not the one that was signed"
    assert refused(content[:-1]) and refused(content + b"more")


def test_a_message_without_a_payload_has_the_fields_that_it_always_had() -> None:
    assert set(header_of(MESSAGE)) == wire._FIELDS
    assert wire.read_letter(MESSAGE, most=MOST).payload == b""


@pytest.mark.parametrize(
    "stated",
    [None, 5, {}, {"sha256": "0", "length": True}, {"sha256": "0", "length": 10**9}, {"sha256": "0", "length": 0}],
)
def test_a_payload_that_is_stated_wrongly_is_unreadable(stated: Any) -> None:
    def change(values: dict[str, Any]) -> None:
        values["payload"] = stated

    assert refused(with_header(change))
