"""Heads of other ledgers, kept in this one: how two sides that do not share a book hold each other to it.

A chain alone forgets: cut its tail, restore yesterday's file or write it anew, and it verifies. So a coordinator and
its sites exchange their newest heads with every request and reply, and each writes the other's into its chain. A side
that goes back behind a head that the other has kept is found at the next word that two honest sides exchange, and later
by anybody who holds the two ledgers side by side (``quietsum ledger receipts``, then ``quietsum ledger verify
--anchor``). A site alone cannot tell a chain that was rewritten *and made longer*: it sees heads, not what lies between
them.

All heads of one attempt are one entry, however many there are, and exports withhold it: how many sites answered would
tell who did (rule 5).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.ledger.chain.encoding import head_message, label
from quietsum.ledger.chain.entries import Head
from quietsum.ledger.chain.keys import VerifyingKey

LONGEST = 2**53
"""Entries that a ledger may have."""
__all__ = ["Testimony", "check_succession", "heads_from", "heads_to"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Testimony:
    """Another ledger's head with the public key that signed it.

    Guarantees: the key is the one that the ledger's name is made from, and the signature is its own under the head.
    """

    public_key: str
    head: Head

    def __post_init__(self) -> None:
        if not isinstance(self.public_key, str) or not isinstance(self.head, Head):
            raise InvalidParameter("testimony", self.public_key, "is no key with a head", "pass on what came")
        try:
            key = VerifyingKey(bytes.fromhex(self.public_key))
        except ValueError:
            raise InvalidParameter("public_key", self.public_key, "is no Ed25519 key", "pass on what came") from None
        head = self.head
        if head.sequence > LONGEST:
            raise InvalidParameter("head", head.sequence, "is no entry of any ledger")
        if key.hex != self.public_key or key.ledger != head.ledger:
            raise InvalidParameter("public_key", self.public_key, f"is not that of ledger {head.ledger}")
        message = head_message(ledger=head.ledger, sequence=head.sequence, hash=head.hash)
        if not key.accepts(head.signature, message):
            raise InvalidParameter("head", head.sequence, f"was not signed by ledger {head.ledger}")

    @property
    def ledger(self) -> str:
        """The name of the ledger that it is about."""
        return self.head.ledger

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values that :meth:`from_dict` reads back."""
        return {"public_key": self.public_key, "head": self.head.to_dict()}

    @classmethod
    def from_dict(cls, values: object) -> Testimony:
        """The testimony that :meth:`to_dict` wrote; :class:`~quietsum.errors.CorruptState` where it is none."""
        if not isinstance(values, Mapping) or set(values) != {"public_key", "head"}:
            raise CorruptState("a testimony has a public key and a head, and nothing else")
        try:
            return cls(public_key=values["public_key"], head=Head.from_dict(values["head"]))
        except InvalidParameter as error:
            raise CorruptState(f"the testimony does not hold: {error}") from None


def check_succession(name: str, known: Testimony | None, newer: Testimony) -> None:
    """``newer`` may follow what is ``known`` of ``name``: the same ledger, not shorter, and not another at its end."""
    if known is None:
        return
    if newer.ledger != known.ledger:
        raise CorruptState(
            f"{name} answers with another ledger ({newer.ledger}) than before ({known.ledger}): what was spent there "
            "is no longer known; put its own ledger back"
        )
    if newer.head.sequence < known.head.sequence:
        raise CorruptState(
            f"the ledger of {name} ends at entry {newer.head.sequence} and had {known.head.sequence}: its tail was cut "
            "off, or an older copy was put back; restore the newest one"
        )
    if newer.head.sequence == known.head.sequence and newer.head.hash != known.head.hash:
        raise CorruptState(
            f"entry {newer.head.sequence} of the ledger of {name} is not what it was: the ledger was rewritten; "
            "restore an unaltered copy"
        )


def heads_to(heads: Mapping[str, Testimony]) -> dict[str, Any]:
    """Testimonies by name as plain values."""
    return {label("name", name): told.to_dict() for name, told in sorted(heads.items())}


def heads_from(values: object) -> dict[str, Testimony]:
    """What :func:`heads_to` wrote."""
    if not isinstance(values, Mapping):
        raise CorruptState("heads are kept by name")
    return {label("name", name): Testimony.from_dict(told) for name, told in values.items()}
