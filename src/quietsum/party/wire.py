"""What travels between a coordinator and a site, as bytes: a signed header in canonical JSON, and what it names.

::

    b"QSUM1\\n" | length of the header, 4 bytes | header | signature, 64 bytes | vector, float64 little-endian | payload

The header holds the SHA-256 of the vector, and that of the payload where there is one (a step of secure aggregation:
keys, shares, a masked vector), so one Ed25519 signature covers everything. The key that signs is the key
of the sender's *ledger*: whoever speaks also shows its newest head (:class:`~quietsum.ledger.Testimony`), and the head
of the other side that it knows of. A reply names the request it answers by the hash of its header.

Nothing here is ever unpickled or executed. Whatever came is checked for its size before it is looked at, and what is
wrong with it is one :class:`Unreadable`.
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

__all__ = ["LARGEST_HEADER", "PROTOCOL", "Letter", "Signs", "Unreadable", "identity_message", "read", "write"]

PROTOCOL = 1
"""Both sides speak one version; another one is refused by name."""
MAGIC = b"QSUM1\n"
LARGEST_HEADER = 2**20
"""A plan names every site: ten thousand with short names fit, or five thousand that also say in a sentence why they are
public. JSON grows about fortyfold while it is read, so this bounds memory, too."""
SIGNATURE = 64
_FIELDS = {"protocol", "kind", "id", "to", "answers", "sender", "knows", "vector", "length", "body"}
_PAYLOAD = "payload"  # its SHA-256 and length; a message without a payload does not have the field
_LENGTH = struct.Struct(">I")

Vector = NDArray[np.float64]


class Unreadable(QuietsumError):
    """Bytes that are no message of ours: cut, altered, too large, of another version, or signed by somebody else."""


class Signs(Protocol):
    """What a sender needs: a ledger."""

    def testimony(self) -> Testimony:
        """Its newest head."""
        ...

    def sign(self, message: bytes) -> str:
        """Its signature."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Letter:
    """One message: its ``kind``, plain values in ``body``, and a ``vector`` where it carries a model or an update.

    ``payload`` are bytes of a protocol of its own, empty where there are none.
    ``to`` is the site that a request is for, empty where that is not known yet or it is a reply.
    ``sender`` is the sender's own newest head, ``knows`` the newest head of the receiver that the sender has kept.
    ``digest`` is the SHA-256 of its header, ``answers`` that of the request to which it is the reply.
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


def write(
    kind: str,
    body: Mapping[str, Any],
    ledger: Signs,
    *,
    to: str = "",
    knows: Testimony | None = None,
    answers: str = "",
    vector: Vector | None = None,
    payload: bytes = b"",
) -> tuple[bytes, str]:
    """A signed message of ``ledger``, and the SHA-256 of its header."""
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


def read(content: bytes, *, most: int) -> Letter:
    """The message in ``content``, which is not longer than ``most`` bytes; :class:`Unreadable` where it is none.

    Guarantees: the signature is that of the ledger in ``sender`` under the whole message. Whether that ledger is one we
    talk to is for the caller to say.
    """
    header, signature, raw = _parts(content, most)
    try:
        text = header.decode("utf-8")
        values = json.loads(text)
        if not isinstance(values, dict) or not is_canonical(text, values):
            raise ValueError("it is not canonical")
    except (ValueError, RecursionError):
        raise Unreadable("its header is not canonical JSON") from None
    if values.get("protocol") != PROTOCOL or type(values.get("protocol")) is not int:
        shown = ascii(values.get("protocol"))[:20]
        raise Unreadable(f"it speaks version {shown} of the protocol, this side {PROTOCOL}; use the same quietsum")
    if set(values) - {_PAYLOAD} != _FIELDS or not isinstance(values["body"], dict):
        raise Unreadable("its header has other fields than a message")
    if not all(isinstance(values[name], str) for name in ("kind", "id", "to", "answers")):
        raise Unreadable("its header has fields of another type")
    try:
        sender = Testimony.from_dict(values["sender"])
        knows = None if values["knows"] is None else Testimony.from_dict(values["knows"])
    except (CorruptState, QuietsumError) as error:
        raise Unreadable(f"a head in it does not hold ({error})") from None
    key = VerifyingKey(bytes.fromhex(sender.public_key))
    if not key.accepts(signature.hex(), message_to_sign(header)):
        raise Unreadable("its signature is not that of the ledger it names")
    payload = b""
    if _PAYLOAD in values:
        raw, payload = _payload(raw, values[_PAYLOAD])
    return Letter(
        kind=values["kind"],
        body=values["body"],
        sender=sender,
        id=values["id"],
        to=values["to"],
        answers=values["answers"],
        knows=knows,
        vector=_vector(raw, values["vector"], values["length"]),
        payload=payload,
        digest=hashlib.sha256(header).hexdigest(),
    )


def _parts(content: object, most: int) -> tuple[bytes, bytes, memoryview]:
    if not isinstance(content, bytes | bytearray | memoryview):
        raise Unreadable("it is no bytes")
    view = memoryview(content)
    if len(view) > most:
        raise Unreadable(f"it has {len(view):,} bytes, and {most:,} are allowed")
    start = len(MAGIC) + _LENGTH.size
    if len(view) < start + SIGNATURE or bytes(view[: len(MAGIC)]) != MAGIC:
        raise Unreadable("it is no message of quietsum")
    (length,) = _LENGTH.unpack(view[len(MAGIC) : start])
    if length > LARGEST_HEADER or start + length + SIGNATURE > len(view):
        raise Unreadable("it was cut off, or its header is too long")
    end = start + length
    return bytes(view[start:end]), bytes(view[end : end + SIGNATURE]), view[end + SIGNATURE :]


def _payload(raw: memoryview, stated: object) -> tuple[memoryview, bytes]:
    """What is left for the vector, and the payload behind it."""
    if not isinstance(stated, dict) or set(stated) != {"sha256", "length"}:
        raise Unreadable("its header has fields of another type")
    length = stated["length"]
    if type(length) is not int or not 0 < length <= len(raw):
        raise Unreadable("it was cut off, or something was added")
    payload = bytes(raw[len(raw) - length :])
    if hashlib.sha256(payload).hexdigest() != stated["sha256"]:
        raise Unreadable("its payload is not the one that was signed")
    return raw[: len(raw) - length], payload


def _vector(raw: memoryview, stated: object, length: object) -> Vector | None:
    if type(length) is not int or length != len(raw):
        raise Unreadable("it was cut off, or something was added")
    if stated is None:
        if len(raw):
            raise Unreadable("it has bytes that it does not name")
        return None
    if hashlib.sha256(raw).hexdigest() != stated or len(raw) % 8:
        raise Unreadable("its numbers are not those that were signed")
    vector = np.frombuffer(raw, dtype="<f8").astype(np.float64)
    if not np.isfinite(vector).all():
        raise Unreadable("its numbers are not all finite")
    return vector


def identity_message(request: str, party: str, public_key: str) -> bytes:
    """What a node key signs: that it answers this request, under this name, with this ledger."""
    return f"quietsum-node-1\n{request}\n{party}\n{public_key}".encode()
