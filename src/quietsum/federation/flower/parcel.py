"""Content of any length as the small, hash-named objects that a SuperLink keeps.

A SuperLink stores objects: a head (kind, names of children, length of the body), a zero byte, a body. An object's name
is the SHA-256 of all that. A *parcel* is one root object, whose body is a fresh nonce and the beginning of the content,
and as many chunks as the rest needs, in the order in which the root's head lists them:

    Message <chunk>,<chunk>,… <length>\\0<nonce><beginning>        ArrayChunk  <length>\\0<the next piece>

The nonce gives every message its own name; chunks have none, so one model that goes to twenty sites is stored once.
Small content needs one object only.

>>> parcel = cut(b"a model", nonce=bytes(16))
>>> opening = Opening(parcel.root, declared=7)
>>> while (wanted := opening.wanted) is not None:
...     opening.take(parcel.object(wanted))
>>> opening.content()
b'a model'
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import final

__all__ = ["CHUNK", "INLINE", "LIMIT", "NONCE", "Malformed", "Opening", "Parcel", "cut"]

NONCE = 16
INLINE = 256 * 1024
"""How much of the content travels in the root itself."""
CHUNK = 2 * 1024 * 1024
"""Bytes of a chunk. A carrier of a parcel holds one of them at a time."""
LIMIT = 260 * 1024 * 1024
"""Bytes of a message's content, in both directions, unless said otherwise."""
_ROOT, _PIECE = "Message", "ArrayChunk"


class Malformed(ValueError):
    """Objects that are no parcel, or not the one that was announced."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parcel:
    """Content that is ready to travel: the root's name, the names of its chunks (each once), and how to make each."""

    root: str
    chunks: tuple[str, ...]
    length: int
    _order: tuple[str, ...] = dataclasses.field(repr=False)
    _pieces: Mapping[str, memoryview] = dataclasses.field(repr=False)
    _root: bytes = dataclasses.field(repr=False)

    def object(self, name: str) -> bytes:
        """The object of that name, made when it is asked for: a parcel holds its content once."""
        return self._root if name == self.root else _deflate(_PIECE, (), self._pieces[name])

    def again(self) -> Parcel:
        """The same content for somebody else: the same chunks under a root with a nonce of its own."""
        root = _write_root(self._order, _inflate(self._root)[2][NONCE:], None)
        return dataclasses.replace(self, root=_name(root), _root=root)


def cut(content: bytes, *, nonce: bytes | None = None) -> Parcel:
    """``content`` as a parcel. ``nonce`` is for tests; parcels of one content share chunks, never a root."""
    view = memoryview(content)
    pieces: dict[str, memoryview] = {}
    order: list[str] = []
    for start in range(INLINE, len(view), CHUNK):
        piece = view[start : start + CHUNK]
        name = _name(_deflate(_PIECE, (), piece))
        pieces[name] = piece
        order.append(name)
    root = _write_root(order, bytes(view[:INLINE]), nonce)
    return Parcel(
        root=_name(root), chunks=tuple(pieces), length=len(content), _order=tuple(order), _pieces=pieces, _root=root
    )


@final
class Opening:
    """A parcel on its way in, object by object.

    Guarantees: what :meth:`content` returns has exactly the ``declared`` length, and each of its objects had the hash
    by which it was asked for. Never holds more than ``declared`` bytes and one object.
    """

    def __init__(self, root: str, *, declared: int) -> None:
        self._root, self._declared = root, declared
        self._order: list[str] | None = None
        self._next = 0
        self._held = 0
        self._parts: list[bytes] = []
        self._seen: dict[str, bytes] = {}

    @property
    def wanted(self) -> str | None:
        """The name of the object to bring next; None where all are here."""
        if self._order is None:
            return self._root
        while self._next < len(self._order) and self._order[self._next] in self._seen:
            self._add(self._seen[self._order[self._next]])
        return self._order[self._next] if self._next < len(self._order) else None

    def take(self, deflated: bytes) -> None:
        """Add the object that was :attr:`wanted`; :class:`Malformed` where it is another one."""
        name = self.wanted
        if name is None or _name(deflated) != name:
            raise Malformed("an object does not have the hash it was asked for by")
        kind, children, body = _inflate(deflated)
        if self._order is None:
            if kind != _ROOT or len(body) < NONCE or len(children) > self._declared // CHUNK + 1:
                raise Malformed("the root of a parcel has another form")
            self._order = children
            self._keep(body[NONCE:])
            return
        if kind != _PIECE or children or not body:
            raise Malformed("a chunk of a parcel has another form")
        self._seen[name] = body
        self._add(body)

    def content(self) -> bytes:
        """All of it, once nothing is wanted any more."""
        if self.wanted is not None or self._held != self._declared:
            raise Malformed(f"a parcel of {self._declared} bytes came with {self._held}")
        return b"".join(self._parts)

    def _add(self, body: bytes) -> None:
        self._next += 1
        self._keep(body)

    def _keep(self, body: bytes) -> None:
        self._held += len(body)
        if self._held > self._declared:
            raise Malformed(f"a parcel is longer than the {self._declared} bytes it declared")
        self._parts.append(body)


def _write_root(order: Sequence[str], beginning: bytes, nonce: bytes | None) -> bytes:
    body = (secrets.token_bytes(NONCE) if nonce is None else nonce) + beginning
    return _deflate(_ROOT, order, memoryview(body))


def _deflate(kind: str, children: Sequence[str], body: memoryview) -> bytes:
    return b"".join((f"{kind} {','.join(children)} {len(body)}".encode(), b"\0", body))


def _inflate(deflated: bytes) -> tuple[str, list[str], bytes]:
    end = deflated.find(b"\0")
    try:
        kind, children, length = deflated[: max(end, 0)].decode("ascii").split(" ")
        body = deflated[end + 1 :]
        if int(length) != len(body):
            raise ValueError
    except ValueError:
        raise Malformed("an object has no head that fits its body") from None
    return kind, children.split(",") if children else [], body


def _name(deflated: bytes) -> str:
    return hashlib.sha256(deflated).hexdigest()
