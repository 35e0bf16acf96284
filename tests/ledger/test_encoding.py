"""One way to write everything down: equal things have equal hashes, different things different ones."""

from __future__ import annotations

import hashlib
import json
import math

import pytest
from hypothesis import given, strategies as st

from ledger.build import memory_ledger, open_run, play
from quietsum.errors import InvalidParameter
from quietsum.ledger.chain.encoding import canonical, digest, entry_hash, head_message, label, read_number

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(
        st.characters(blacklist_categories=["Cs"])
    ),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(blacklist_categories=["Cs"])), inner),
)  # fmt: skip


@given(VALUES)
def test_canonical_json_reads_back_and_writes_the_same_text_again(value: object) -> None:
    text = canonical(value)
    assert canonical(json.loads(text)) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_as_the_same_bits(value: float) -> None:
    read = json.loads(canonical([value]))[0]
    assert read == value and type(read) is float
    assert (value + 0.0).hex() == read.hex()


def test_order_and_spaces_do_not_matter_but_types_do() -> None:
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1}) == '{"a":1,"b":2}'
    assert canonical([1]) != canonical([1.0])
    assert canonical([-0.0]) == canonical([0.0])
    assert canonical({"é": "é"}) == '{"é":"é"}'


def test_infinity_is_a_word_and_nan_is_refused() -> None:
    assert canonical([math.inf]) == '["Infinity"]'
    assert read_number("Infinity") == math.inf
    for value in (math.nan, -math.inf, {1: 2}, {"a": object()}, "\ud800", {"a": b"bytes"}, {1.0, 2.0}):
        with pytest.raises(InvalidParameter):
            canonical([value])
    for wrong in (True, None, "1.0", [1.0]):
        with pytest.raises(InvalidParameter):
            read_number(wrong)


def test_no_field_of_an_entry_can_flow_into_another() -> None:
    """The text of one field, moved to its neighbour, gives another hash."""
    fields = {"ledger": "a", "previous": "b", "sequence": 1, "kind": "c", "body_hash": "d", "time": "e"}
    seen = {entry_hash(**fields)}  # type: ignore[arg-type]
    for name in fields:
        changed = {**fields, name: 11 if name == "sequence" else str(fields[name]) + '","'}
        seen.add(entry_hash(**changed))  # type: ignore[arg-type]
    seen.add(entry_hash(**{**fields, "ledger": 'a","b', "previous": ""}))  # type: ignore[arg-type]
    assert len(seen) == 8


def test_a_ledger_can_be_checked_by_hand_as_the_reference_says() -> None:
    """An independent reading: hashlib and json only, as in docs/reference/ledger.md."""
    ledger = memory_ledger()
    open_run(ledger)
    play(ledger)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    rows = list(ledger._journal.store.rows())
    genesis = json.loads(rows[0].body)
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(genesis["public_key"]))
    assert hashlib.sha256(bytes.fromhex(genesis["public_key"])).hexdigest()[:32] == genesis["ledger"]
    previous = "0" * 64
    for row in rows:
        body = hashlib.sha256(row.body.encode()).hexdigest()
        parts = ["quietsum-entry-1", genesis["ledger"], previous, row.sequence, row.kind, body, row.time]
        text = json.dumps(parts, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(text.encode()).hexdigest() == row.hash
        head = json.dumps(["quietsum-head-1", genesis["ledger"], row.sequence, row.hash], separators=(",", ":"))
        key.verify(bytes.fromhex(row.signature), head.encode())
        assert head.encode() == head_message(ledger=genesis["ledger"], sequence=row.sequence, hash=row.hash)
        assert digest(row.body) == body
        previous = row.hash


def test_names_are_composed_trimmed_and_printable() -> None:
    assert label("party", "  Basel ") == "Basel"
    assert label("party", "Zu\u0308rich") == "Zürich"
    for wrong in ("", "   ", "a\tb", "a\x00b", "a\u202eb", "a  b", "a\u00a0b", "x" * 201, None, 7):
        with pytest.raises(InvalidParameter, match="party"):
            label("party", wrong)
