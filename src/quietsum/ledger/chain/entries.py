"""Entries, heads and receipts: what is written once and never changed.

An *entry* is one act: a run opened, a charge reserved, refunded or committed, a budget set or raised, ε corrected. Each
holds the hash of the one before it. A *head* is the newest entry's hash, signed; a reader who keeps a head (a
checkpoint, a report, a party's receipt) can tell later whether the ledger still contains what it contained then. A
*receipt* says where in the ledger a reservation stands, and is what one commits or refunds.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import Any, TypeVar, final

from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken
from quietsum.ledger.chain.encoding import canonical, digest, entry_hash, label
from quietsum.ledger.stores.protocol import Row
from quietsum.validate import whole_number

__all__ = ["Entry", "Head", "Kind", "Receipt", "check_link", "ledger_name", "make_row"]

NOTHING = "0" * 64
"""The previous hash of the first entry."""


class Kind(enum.StrEnum):
    """What an entry records."""

    GENESIS = "genesis"
    """The ledger begins; its public key."""
    RUN = "run"
    """A plan, its terms and the datasets it will touch."""
    BUDGET = "budget"
    """What one unit of a dataset may ever cost; the first one or a raised one, with the reason."""
    PUBLIC = "public"
    """A dataset whose records need no protection, with the reason."""
    RESERVE = "reserve"
    """Charges of one attempt at one round, before any party is asked."""
    REFUND = "refund"
    """A party that refused before it touched data. Operator-only."""
    COMMIT = "commit"
    """The attempt's result may leave; ε after it."""
    WITNESS = "witness"
    """Heads of the other side's ledgers, as they came with this attempt. Operator-only."""
    CORRECTION = "correction"
    """What runs that were priced by older rules cost by today's. From here on budgets go by these."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """The newest entry of a ledger at some time, signed with the ledger's Ed25519 key."""

    ledger: str
    sequence: int
    hash: str
    signature: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "sequence", whole_number("sequence", self.sequence, 1))
        for name, length in (("ledger", 32), ("hash", 64), ("signature", 128)):
            value = getattr(self, name)
            if not isinstance(value, str) or len(value) != length or not set(value) <= set("0123456789abcdef"):
                raise InvalidParameter(name, value, f"is not {length} hexadecimal digits", "copy the head as it is")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values that :meth:`from_dict` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Head:
        """The head that :meth:`to_dict` wrote; anything else raises :class:`~quietsum.errors.CorruptState`."""
        return _build(cls, values, "head")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Receipt:
    """Where a reservation stands: entry ``sequence``, and the signed head right after it."""

    run: str
    round: int
    attempt: int
    head: Head
    sequence: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", label("run", self.run))
        for name, least in (("round", 0), ("attempt", 1), ("sequence", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if not isinstance(self.head, Head):
            raise InvalidParameter("head", self.head, "is not a head", "keep the receipt that reserve() returned")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values that :meth:`from_dict` reads back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Receipt:
        """The receipt that :meth:`to_dict` wrote; anything else raises :class:`~quietsum.errors.CorruptState`."""
        if not isinstance(values, Mapping) or "head" not in values:
            raise CorruptState(f"a receipt is an object with a head, not {values!r}")
        return _build(cls, {**values, "head": Head.from_dict(values["head"])}, "receipt")


Made = TypeVar("Made", Head, Receipt)


def _build(cls: type[Made], values: Mapping[str, Any], noun: str) -> Made:
    known = {field.name for field in dataclasses.fields(cls)}
    if not isinstance(values, Mapping) or set(values) != known:
        raise CorruptState(f"a {noun} is an object with exactly the keys {sorted(known)}, not {values!r}")
    try:
        return cls(**values)
    except InvalidParameter as error:
        raise CorruptState(f"the {noun} holds a bad value: {error}") from None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger. ``time`` is informative: clocks jump, the order is that of ``sequence``."""

    sequence: int
    kind: Kind
    body: Mapping[str, Any]
    previous: str
    hash: str
    signature: str
    time: str


def make_row(*, ledger: str, previous: str, sequence: int, kind: Kind, body: Mapping[str, Any], time: str) -> Row:
    """A row without its signature, hashed."""
    text = canonical(body)
    hash = entry_hash(
        ledger=ledger, previous=previous, sequence=sequence, kind=kind.value, body_hash=digest(text), time=time
    )
    return Row(
        sequence=sequence, kind=kind.value, time=time, body=text, previous=previous, hash=hash, signature=""
    )  # fmt: skip


def check_link(row: Row, *, ledger: str, previous: str, sequence: int) -> Entry:
    """The row as an entry, where it follows ``previous`` as number ``sequence`` and its hash is its own.

    Guarantees: any change of a body, kind, time or order made without rewriting everything after it is found here.
    """
    if row.sequence != sequence:
        if row.sequence > sequence:
            raise LedgerBroken("is missing", at=sequence, remedy=RESTORE)
        raise LedgerBroken(f"calls itself entry {row.sequence}", at=sequence, remedy=RESTORE)
    if row.previous != previous:
        raise LedgerBroken("does not follow the entry before it", at=sequence, remedy=RESTORE)
    try:
        found = entry_hash(
            ledger=ledger,
            previous=previous,
            sequence=sequence,
            kind=row.kind,
            body_hash=digest(row.body),
            time=row.time,
        )
    except (ValueError, TypeError, AttributeError, RecursionError) as error:  # a store of another make may hold that
        raise LedgerBroken(f"cannot be read: {error}", at=sequence, remedy=RESTORE) from None
    if found != row.hash:
        raise LedgerBroken("was altered: its hash is not that of its contents", at=sequence, remedy=RESTORE)
    try:
        kind, body = Kind(row.kind), json.loads(row.body)
        if not isinstance(body, dict):
            raise ValueError("a body is an object")
    except (ValueError, RecursionError) as error:
        raise LedgerBroken(f"cannot be read: {error}", at=sequence, remedy=UPGRADE) from None
    return Entry(
        sequence=sequence,
        kind=kind,
        body=body,
        previous=previous,
        hash=row.hash,
        signature=row.signature,
        time=row.time,
    )


def ledger_name(row: Row) -> str:
    """The name that a genesis row states; the chain and its public key then show whether it is the right one."""
    try:
        name = json.loads(row.body)["ledger"]
        if not isinstance(name, str):
            raise ValueError("a name is a text")
        return name
    except (ValueError, LookupError, TypeError, RecursionError):
        raise LedgerBroken("is no genesis entry", at=1, remedy=RESTORE) from None


RESTORE = "restore the ledger from an unaltered copy, and run nothing on its datasets until then"
UPGRADE = "use the version of quietsum that wrote it, or restore an unaltered copy"
