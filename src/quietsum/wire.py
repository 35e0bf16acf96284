"""Letters between a coordinator and a site, as bytes: a signed header in canonical JSON, and what the header names.

::

    b"QSUM1\\n" | length of the header, 4 bytes | header | signature, 64 bytes | vector, float64 little-endian | payload

The header holds the SHA-256 of the vector, and that of the payload where there is one (a step of secure aggregation:
keys, shares, a masked vector), so one Ed25519 signature covers everything. The key that signs is the key
of the sender's *ledger*: the header also holds the newest head of that ledger (:class:`~quietsum.ledger.Testimony`),
and the newest head of the receiver's that the sender has seen. A reply names its request by the hash of that header.

Nothing here is ever unpickled or executed. The size of what arrives is checked before anything else, and every fault in
it raises :class:`UnreadableLetter`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import struct
from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.ledger import Testimony, VerifyingKey, canonical, is_canonical, message_to_sign

__all__ = [
    "HUGE_NUMBER",
    "LARGEST_HEADER",
    "LARGEST_NUMBER",
    "PROTOCOL",
    "Letter",
    "Signer",
    "SigningLedger",
    "UnreadableLetter",
    "holds_huge_number",
    "node_statement",
    "read_letter",
    "write_letter",
]

PROTOCOL = 1
"""The version of the protocol; a letter of another version is refused by its number."""
MAGIC = b"QSUM1\n"
LARGEST_HEADER = 2**20
"""A plan names every site: ten thousand with short names fit, or five thousand that also say in a sentence why
they are public. JSON takes about forty times its size while it is parsed, so this bounds memory, too. In bytes."""
LARGEST_NUMBER = 2**53
"""The largest whole number in a letter: JSON carries it exactly everywhere, and any store can hold it."""
HUGE_NUMBER = "the message holds a whole number beyond 2^53"
"""The refusal of a number that another reader of JSON would round."""
SIGNATURE = 64
_FIELDS = {"protocol", "kind", "id", "to", "answers", "sender", "knows", "vector", "length", "body"}
_PAYLOAD = "payload"  # its SHA-256 and length; a message without a payload does not have the field
_LENGTH = struct.Struct(">I")

Vector = NDArray[np.float64]


class UnreadableLetter(QuietsumError):
    """Bytes that are not a letter: cut, altered, too large, of another version, or with another ledger's signature."""


class Signer(Protocol):
    """The key of a ledger, as far as a signature needs it."""

    def sign(self, message: bytes) -> str:
        """Returns the signature in hexadecimal; the same for the same message (Ed25519, RFC 8032)."""
        ...


class SigningLedger(Signer, Protocol):
    """The part of a ledger that a sender needs."""

    def testimony(self) -> Testimony:
        """Returns the newest head, signed."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Letter:
    """One message: its ``kind``, plain values in ``body``, and a ``vector`` if it carries a model or an update.

    ``payload`` holds bytes of another protocol (secure aggregation); it may be empty.
    ``to`` is the site that a request is for; it is empty in a reply, and in a request to a node of unknown site.
    ``sender`` is the newest head of the sender, ``knows`` the newest head of the receiver that the sender has kept.
    ``digest`` is the SHA-256 of the header; in a reply, ``answers`` is the digest of the request.
    """

    kind: str
    body: Mapping[str, Any]
    sender: Testimony
    id: str
    to: str = ""
    answers: str = ""
    knows: Testimony | None = None
    vector: Vector | None = None
    payload: bytes = b""
    digest: str = ""


def write_letter(
    kind: str,
    body: Mapping[str, Any],
    ledger: SigningLedger,
    *,
    to: str = "",
    knows: Testimony | None = None,
    answers: str = "",
    vector: Vector | None = None,
    payload: bytes = b"",
) -> tuple[bytes, str]:
    """Returns a letter signed by ``ledger``, and the SHA-256 of its header.

    Raises :class:`~quietsum.errors.InvalidParameter` if the header is longer than :data:`LARGEST_HEADER`.
    """
    raw = b"" if vector is None else np.ascontiguousarray(vector, dtype="<f8").tobytes()
    fields = {
        "protocol": PROTOCOL,
        "kind": kind,
        "id": secrets.token_hex(16),
        "to": to,
        "answers": answers,
        "sender": ledger.testimony().to_dict(),
        "knows": None if knows is None else knows.to_dict(),
        "vector": None if vector is None else hashlib.sha256(raw).hexdigest(),
        "length": len(raw),
        "body": body,
    }
    if payload:
        fields[_PAYLOAD] = {"sha256": hashlib.sha256(payload).hexdigest(), "length": len(payload)}
    header = canonical(fields).encode()
    if len(header) > LARGEST_HEADER:
        remedy = f"at most {LARGEST_HEADER:,} fit: take fewer sites into the plan, or shorten what it says of each"
        raise InvalidParameter("body", f"{len(header):,} bytes", "is too long for a message", remedy)
    signature = bytes.fromhex(ledger.sign(header))
    message = b"".join((MAGIC, _LENGTH.pack(len(header)), header, signature, raw, payload))
    return message, hashlib.sha256(header).hexdigest()


def read_letter(content: bytes, *, most: int) -> Letter:
    """Returns the letter in ``content``; raises :class:`UnreadableLetter` if it is not one, or exceeds ``most`` bytes.

    Guarantees: the ledger in ``sender`` has signed the whole letter. The caller decides whether it trusts that ledger.
    """
    header, signature, raw = _split(content, most)
    try:
        text = header.decode("utf-8")
        values = json.loads(text)
        if not isinstance(values, dict) or not is_canonical(text, values):
            raise ValueError("it is not canonical")
    except (ValueError, RecursionError):
        raise UnreadableLetter("its header is not canonical JSON") from None
    if values.get("protocol") != PROTOCOL or type(values.get("protocol")) is not int:
        shown = ascii(values.get("protocol"))[:20]
        raise UnreadableLetter(
            f"it speaks version {shown} of the protocol, this side {PROTOCOL}; use the same quietsum"
        )
    if set(values) - {_PAYLOAD} != _FIELDS or not isinstance(values["body"], dict):
        raise UnreadableLetter("its header has other fields than a message")
    if not all(isinstance(values[name], str) for name in ("kind", "id", "to", "answers")):
        raise UnreadableLetter("its header has fields of another type")
    try:
        sender = Testimony.from_dict(values["sender"])
        knows = None if values["knows"] is None else Testimony.from_dict(values["knows"])
    except (CorruptState, QuietsumError) as error:
        raise UnreadableLetter(f"a head in it does not hold ({error})") from None
    key = VerifyingKey(bytes.fromhex(sender.public_key))
    if not key.accepts(signature.hex(), message_to_sign(header)):
        raise UnreadableLetter("its signature is not that of the ledger it names")
    payload = b""
    if _PAYLOAD in values:
        raw, payload = _take_payload(raw, values[_PAYLOAD])
    return Letter(
        kind=values["kind"],
        body=values["body"],
        sender=sender,
        id=values["id"],
        to=values["to"],
        answers=values["answers"],
        knows=knows,
        vector=_read_vector(raw, values["vector"], values["length"]),
        payload=payload,
        digest=hashlib.sha256(header).hexdigest(),
    )


def _split(content: object, most: int) -> tuple[bytes, bytes, memoryview]:
    if not isinstance(content, bytes | bytearray | memoryview):
        raise UnreadableLetter("it is no bytes")
    view = memoryview(content)
    if len(view) > most:
        raise UnreadableLetter(f"it has {len(view):,} bytes, and {most:,} are allowed")
    start = len(MAGIC) + _LENGTH.size
    if len(view) < start + SIGNATURE or bytes(view[: len(MAGIC)]) != MAGIC:
        raise UnreadableLetter("it is no message of quietsum")
    (length,) = _LENGTH.unpack(view[len(MAGIC) : start])
    if length > LARGEST_HEADER or start + length + SIGNATURE > len(view):
        raise UnreadableLetter("it was cut off, or its header is too long")
    end = start + length
    return bytes(view[start:end]), bytes(view[end : end + SIGNATURE]), view[end + SIGNATURE :]


def _take_payload(raw: memoryview, stated: object) -> tuple[memoryview, bytes]:
    """Returns the bytes of the vector, and the payload behind them."""
    if not isinstance(stated, dict) or set(stated) != {"sha256", "length"}:
        raise UnreadableLetter("its header has fields of another type")
    length = stated["length"]
    if type(length) is not int or not 0 < length <= len(raw):
        raise UnreadableLetter("it was cut off, or something was added")
    payload = bytes(raw[len(raw) - length :])
    if hashlib.sha256(payload).hexdigest() != stated["sha256"]:
        raise UnreadableLetter("its payload is not the one that was signed")
    return raw[: len(raw) - length], payload


def _read_vector(raw: memoryview, stated: object, length: object) -> Vector | None:
    if type(length) is not int or length != len(raw):
        raise UnreadableLetter("it was cut off, or something was added")
    if stated is None:
        if len(raw):
            raise UnreadableLetter("it has bytes that it does not name")
        return None
    if hashlib.sha256(raw).hexdigest() != stated or len(raw) % 8:
        raise UnreadableLetter("its numbers are not those that were signed")
    vector = np.frombuffer(raw, dtype="<f8").astype(np.float64)
    if not np.isfinite(vector).all():
        raise UnreadableLetter("its numbers are not all finite")
    return vector


def holds_huge_number(body: object) -> bool:
    """Whether a whole number beyond :data:`LARGEST_NUMBER` stands anywhere in ``body``, however deep."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            return True
    return False


def node_statement(request: str, party: str, public_key: str) -> bytes:
    """The bytes that a node key signs: it answers this request, under this name, with this ledger."""
    return f"quietsum-node-1\n{request}\n{party}\n{public_key}".encode()
