"""A signed snapshot: what all entries up to some head say, so that opening a ledger does not read them all again.

``<ledger>.snapshot`` lies beside the key and the high-water mark, for a ledger in a file and for one on a server alike.
Its first line binds what follows to (layout, ledger, sequence, head hash, SHA-256 of the packed state), signed with the
ledger's key. A snapshot is only ever a shortcut:

* It counts where its signature is the ledger's, its hash is that of its contents, and the ledger holds, at that
  sequence, an entry with that hash. Any other one (of another ledger, another version, a rewritten chain, a longer
  ledger, cut, altered, empty) is ignored, and all entries are read. It is never an error.
* Entries behind it are taken in with every check. So an older snapshot leads to the same state as a newer one, and
  somebody without the key can do no more than make the opening slow.
* :mod:`quietsum.ledger.chain.verify` never looks at it, and heads kept elsewhere are looked for among the entries.

What opening no longer notices is an entry before the snapshot that was changed in the file. It no longer decides
anything either: what was spent is what the snapshot says, which was signed when that entry had been checked.

Writers write it, when they open or close a ledger and many entries have come since the last one, never between a
reservation and its result. It is written as a whole or not at all, and a disk that takes no more costs a warning.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import final

from quietsum.files import PRIVATE, read_file, write_atomically
from quietsum.ledger.chain.encoding import canonical
from quietsum.ledger.chain.keys import SigningKey, VerifyingKey
from quietsum.ledger.chain.packing import layout, pack, unpack
from quietsum.ledger.state import State

__all__ = ["EVERY", "Snapshot", "SnapshotFile", "snapshot_path"]

log = logging.getLogger(__name__)

SNAPSHOT_FORMAT = "quietsum-snapshot-1"
LARGEST = 1 << 28
EVERY = 2000
"""So many entries are read again rather than written down; of a long ledger, a two hundredth of it."""
LONGEST_LINE = 4096


def snapshot_path(ledger: Path) -> Path:
    """``ledger.db`` → ``ledger.db.snapshot``."""
    return ledger.with_name(ledger.name + ".snapshot")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A packed state and what it is bound to. Nothing in it was looked at before :meth:`state` was asked for."""

    ledger: str
    sequence: int
    hash: str
    data: bytes
    signature: str
    layout: str

    @classmethod
    def of(cls, state: State, key: SigningKey) -> Snapshot:
        """The snapshot of ``state``, signed."""
        bare = cls(
            ledger=state.ledger, sequence=state.sequence, hash=state.hash, data=pack(state), signature="",
            layout=layout(),
        )  # fmt: skip
        return dataclasses.replace(bare, signature=key.sign(bare.message()))

    def message(self) -> bytes:
        """What the signature covers. No head and no other message of a ledger begins like this."""
        parts = [SNAPSHOT_FORMAT, self.layout, self.ledger, self.sequence, self.hash, self._digest()]
        return canonical(parts).encode()

    def _digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def is_signed_by(self, key: VerifyingKey) -> bool:
        """Whether the ledger's key signed all of it, under the layout that this quietsum knows."""
        return self.layout == layout() and self.ledger == key.ledger and key.accepts(self.signature, self.message())

    def state(self, key: VerifyingKey) -> State:
        """The state, where it was :meth:`is_signed_by`."""
        state = unpack(self.data)
        if (state.ledger, state.sequence, state.hash) != (self.ledger, self.sequence, self.hash):
            raise ValueError("the packed state is of another entry")
        state.key = key
        return state

    def to_bytes(self) -> bytes:
        """A line of JSON, then the packed state."""
        about = {
            "layout": self.layout, "ledger": self.ledger, "sequence": self.sequence, "hash": self.hash,
            "signature": self.signature,
        }  # fmt: skip
        return canonical(about).encode() + b"\n" + self.data

    @classmethod
    def from_bytes(cls, text: bytes) -> Snapshot:
        """What :meth:`to_bytes` wrote; ValueError, LookupError or TypeError for anything else."""
        end = text.index(b"\n", 0, LONGEST_LINE)
        about = json.loads(text[:end])
        if set(about) != {"layout", "ledger", "sequence", "hash", "signature"} or type(about["sequence"]) is not int:
            raise ValueError("no snapshot begins like this")
        if not all(isinstance(value, str) for name, value in about.items() if name != "sequence"):
            raise ValueError("no snapshot begins like this")
        return cls(**about, data=text[end + 1 :])


@final
class SnapshotFile:
    """The snapshot beside one ledger. Neither reading nor writing it raises anything."""

    def __init__(self, ledger: Path) -> None:
        self.path = snapshot_path(ledger)

    def read(self) -> Snapshot | None:
        """What lies there, unchecked; None where nothing does, or something else."""
        try:
            return Snapshot.from_bytes(read_file(self.path, LARGEST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            log.info("the ledger's snapshot %s is ignored: %s", self.path, error)
            return None

    def write(self, state: State, key: SigningKey) -> bool:
        """Put the snapshot of ``state`` there; False where that fails, and the older one stays."""
        try:
            write_atomically(self.path, Snapshot.of(state, key).to_bytes(), mode=PRIVATE, sync=False)
        except Exception as error:  # a ledger is whole without a snapshot
            log.warning("no snapshot of the ledger was written, so the next start takes longer: %s", error)
            return False
        return True
