"""One way to write everything down, so that equal things have equal hashes.

A body is **canonical JSON**: keys sorted by code point, no spaces, UTF-8, whole numbers as digits, and floats as the
shortest decimal that reads back as the same 64 bits (what Python's ``repr`` writes). That decimal is unique for each
float, so the encoding is one-to-one, and a person can read it. −0.0 is written as 0.0, an infinite ε as the word
"Infinity", and NaN is refused: it equals nothing, not even itself.

An entry's hash covers (format, ledger, previous hash, sequence, kind, SHA-256 of the body, time) as one canonical JSON
array. The body enters only as its hash, so that an export may leave a body out and still be verified. A head's
signature covers (format, ledger, sequence, hash). JSON text quotes its strings, so no two different lists of fields
share an encoding.

>>> canonical({"b": 0.1, "a": [1, 2.0, None]})
'{"a":[1,2.0,null],"b":0.1}'
"""

from __future__ import annotations

import enum
import hashlib
import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from quietsum.errors import InvalidParameter

__all__ = [
    "canonical",
    "digest",
    "encode_plain",
    "entry_hash",
    "fold",
    "head_message",
    "is_canonical",
    "label",
    "message_to_sign",
    "read_number",
    "write_number",
]  # fmt: skip

ENTRY_FORMAT = "quietsum-entry-1"
HEAD_FORMAT = "quietsum-head-1"
MESSAGE_FORMAT = "quietsum-message-1"
LONGEST_LABEL = 200


def canonical(value: Any) -> str:
    """``value`` as canonical JSON; what has no exact place in it is refused."""
    return _write(_plain(value))


_write = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.StrEnum):
        return value.value
    if isinstance(value, str):
        return value.encode("utf-8", "strict").decode("utf-8") if _encodable(value) else _refuse(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return write_number(float(value))
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidParameter("body", sorted(map(repr, value)), "has keys that are no texts", "name every value")
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise InvalidParameter("body", value, "has no place in JSON", "use texts, numbers, lists, mappings and None")


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse(text: str) -> str:
    raise InvalidParameter("body", text, "is no valid Unicode text", "remove the lone surrogates")


def write_number(value: float) -> float | str:
    """A float as it is written: itself, or the word for an infinite ε."""
    if math.isnan(value) or value == -math.inf:
        raise InvalidParameter("body", value, "is not a number that a ledger can hold", "find out where it came from")
    return "Infinity" if value == math.inf else value + 0.0  # −0.0 + 0.0 is 0.0


def read_number(value: object) -> float:
    """The float that :func:`write_number` wrote."""
    if value == "Infinity":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidParameter("body", value, "is not a number")
    return float(value)


def encode_plain(value: Any) -> str:
    """Plain values, read from canonical JSON or made to be written there, as canonical JSON; quicker than asking."""
    return _write(value)


def is_canonical(text: str, value: Any) -> bool:
    """Whether ``text``, which was read as ``value``, is the canonical way to write it.

    No second key of the same name, no other order, no spaces, no 1.0 for 1 or 1e0 for 1.0.

    >>> is_canonical('{"a":1,"a":2}', {"a": 2})
    False
    """
    try:
        return (canonical(value) if "-0.0" in text else _write(value)) == text
    except (ValueError, RecursionError):  # NaN, bare infinities
        return False


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def entry_hash(*, ledger: str, previous: str, sequence: int, kind: str, body_hash: str, time: str) -> str:
    """What the next entry, and every signature, will point at."""
    return digest(_write([ENTRY_FORMAT, ledger, previous, sequence, kind, body_hash, time]))


def head_message(*, ledger: str, sequence: int, hash: str) -> bytes:
    """The bytes that an Ed25519 signature of a head covers."""
    return _write([HEAD_FORMAT, ledger, sequence, hash]).encode()


def message_to_sign(message: bytes) -> bytes:
    """The bytes that a ledger's signature of another message covers: nothing that could be a head's."""
    return _write([MESSAGE_FORMAT, hashlib.sha256(message).hexdigest()]).encode()


def label(parameter: str, value: object) -> str:
    """A name that stands for one thing only: Unicode in composed form, printable, without spaces around it or in a row.

    Two ways to type the same "Zürich" must not be two datasets with two budgets.

    >>> label("party", "Zu\\u0308rich ") == label("party", "Zürich")
    True
    """
    remedy = f"use 1 to {LONGEST_LABEL} printable characters, and single spaces"
    if not isinstance(value, str):
        raise InvalidParameter(parameter, value, "is not a text", remedy)
    text = unicodedata.normalize("NFC", value).strip()
    if not text or len(text) > LONGEST_LABEL or not text.isprintable() or "  " in text:
        shown = value if len(value) <= 60 else value[:57] + "..."
        raise InvalidParameter(parameter, shown, "is not a usable name", remedy)
    return text


def fold(name: str) -> str:
    """What is left of a name without the differences that people overlook: width, ligatures, upper and lower case.

    Letters of other alphabets that merely look alike (Cyrillic ones in a Latin word) stay different.

    >>> fold("\\uff22ASEL") == fold("Basel")
    True
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
