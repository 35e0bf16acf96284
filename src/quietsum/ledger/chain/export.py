"""A ledger for others to read: everything but who took part, and still verifiable.

One JSON object a line, in order. Who refused a round, and what that saved a party, is for the operator only: who reads
it gets no amplification. So refunds, and commits and corrections after a refund of the same run, travel without their
bodies. So do the heads of the sites' own ledgers, which stand in one entry an attempt, however many answered. Each such
line gives the SHA-256 of the body instead, which is all that the chain covers, so hashes and signatures can still be
checked, and so can every ε that is there. Those bodies hold 128 bits of chance (``blind``), so that their content
cannot be found by hashing guesses. How many refused is not hidden: there is one line for each refund.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.files import PRIVATE, draft_file
from quietsum.ledger.chain.encoding import canonical, digest, entry_hash, is_canonical
from quietsum.ledger.chain.entries import Entry, Head, Kind
from quietsum.ledger.chain.verify import Reading, Verification
from quietsum.ledger.charges import Charge
from quietsum.ledger.history import LedgerIdentity, RunSummary, summarize
from quietsum.ledger.ledger import Ledger
from quietsum.ledger.pricing import Cost
from quietsum.ledger.state import State
from quietsum.ledger.stores.protocol import Row, read_row
from quietsum.privacy import Budget, PrivacyUnit

__all__ = ["ExportedLedger", "export_ledger", "operator_only", "read_export", "verify_export"]

_AGAIN = "export the ledger again, from the original"
_FIELDS = {"sequence", "kind", "time", "previous", "hash", "signature", "body_hash"}


def operator_only(entry: Entry) -> bool:
    """Whether a body says who took part."""
    if entry.kind in (Kind.COMMIT, Kind.CORRECTION):
        return bool(entry.body.get("operator_only"))
    return entry.kind in (Kind.REFUND, Kind.WITNESS)


def export_ledger(ledger: Ledger, path: str | os.PathLike[str]) -> tuple[int, int]:
    """Write the ledger to ``path``; (entries, bodies withheld). The file appears whole or not at all."""
    path = Path(path)
    _refuse_own_books(ledger)
    entries = withheld = 0
    with draft_file(path, mode=PRIVATE, remedy="choose another place") as file:
        for entry in ledger.entries():
            secret = operator_only(entry)
            entries, withheld = entries + 1, withheld + secret
            file.write((canonical(_line(entry, secret)) + "\n").encode())
    return entries, withheld


def _refuse_own_books(ledger: Ledger) -> None:
    """The books of a site itself have an entry for each round that it was asked in, and its amplification rests on
    others not knowing which those were (rule 5)."""
    for entry in ledger.entries():
        if entry.kind is Kind.RUN and entry.body["terms"].get("enrolled"):
            raise QuietsumError(
                f"this is a site's own ledger, and its entries tell in which rounds of {entry.body['run']!r} the site "
                "was drawn; who knows that gets no amplification: hand out the coordinator's export instead"
            )


def _line(entry: Entry, secret: bool) -> dict[str, Any]:
    values: dict[str, Any] = {
        "sequence": entry.sequence,
        "kind": entry.kind.value,
        "time": entry.time,
        "previous": entry.previous,
        "hash": entry.hash,
        "signature": entry.signature,
        "body_hash": digest(canonical(entry.body)),
    }
    return values if secret else {**values, "body": entry.body}


def verify_export(
    path: str | os.PathLike[str], *, anchors: Iterable[Head] = (), every_signature: bool = False
) -> Verification:
    """Check an exported ledger; LedgerBroken names the first bad entry.

    Guarantees: chain, signatures, each body that is there against its hash, and the stated ε of each commit whose body
    is there. What refunds gave back cannot be seen, so budgets are checked up to the first refund only; a commit may
    be withheld behind a refund alone, as the export itself does, so that none can be left out to end those checks.
    """
    reading = Reading(anchors, every_signature=every_signature, redacted=True)
    for entry, withheld in _entries(Path(path), reading.state):
        reading.take(entry, withheld=withheld)
    return reading.conclude()


def read_export(content: bytes, *, anchors: Iterable[Head] = ()) -> ExportedLedger:
    """The exported ledger in ``content``, checked as :func:`verify_export` does, with every signature, and each line
    for its one form: no byte can be another one.

    ``content`` is in memory, so that what is read later is what was checked.
    """
    reading = Reading(anchors, every_signature=True, redacted=True)
    entries = []
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        text = line.decode("utf-8", "surrogateescape")
        entry, withheld = _read(text, reading.state)
        try:
            plain = is_canonical(text, json.loads(text))
        except (ValueError, RecursionError):
            plain = False
        if not plain:
            raise LedgerBroken("is not written in canonical JSON", at=number, remedy=_AGAIN)
        reading.take(entry, withheld=withheld)
        entries.append(entry)
    if not content.endswith(b"\n"):
        raise LedgerBroken("ends in the middle of a line: its end was cut off", at=len(entries) + 1, remedy=_AGAIN)
    found = reading.conclude()
    return ExportedLedger(verification=found, state=reading.state, entries_read=tuple(entries))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedLedger:
    """A verified export, of which :class:`~quietsum.ledger.history.RunHistory` reads what a run was charged.

    Bodies that were withheld are empty. It has no key and writes nothing.
    """

    verification: Verification
    state: State
    entries_read: tuple[Entry, ...]

    @property
    def identity(self) -> LedgerIdentity:
        """The ledger's name and public key."""
        assert self.state.key is not None
        return LedgerIdentity(ledger=self.state.ledger, public_key=self.state.key.hex)

    def entries(self, start: int = 1) -> Iterator[Entry]:
        """Entries from ``start`` on."""
        yield from self.entries_read[start - 1 :]

    def runs(self) -> tuple[RunSummary, ...]:
        """All runs in the order in which they were opened."""
        return tuple(summarize(name, run) for name, run in self.state.accounts.runs.items())

    def run_entry(self, run: str) -> Entry:
        """The entry that opened a run; LedgerBroken if there is none."""
        if run not in self.state.accounts.runs:
            raise LedgerBroken(f"has no run {run!r}", remedy="export the ledger that paid for it")
        return self.entries_read[self.state.accounts.runs[run].entry - 1]

    def cost(self, run: str, charge: Charge) -> Cost:
        """What a charge of a run counts as by today's rules."""
        return self.state.accounts.runs[run].cost(charge)

    def pricing_of(self, run: str) -> int:
        """The version of prices by which a run was opened."""
        return self.state.accounts.runs[run].pricing

    def budgets(self) -> Mapping[tuple[str, str, PrivacyUnit], Budget]:
        """The lifetime budgets, by party, dataset and unit."""
        books = self.state.accounts.books
        return {key: book.budget for key, book in books.items() if book.budget is not None}


def _entries(path: Path, state: State) -> Iterator[tuple[Entry, bool]]:
    try:
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            for text in file:  # what is no UTF-8 has no canonical form, and ends there as an entry that cannot be read
                yield _read(text, state)
    except OSError as error:
        raise QuietsumError(f"{path} cannot be read: {error.strerror}") from None


def _read(text: str, state: State) -> tuple[Entry, bool]:
    at = state.sequence + 1
    try:
        line = json.loads(text)
        if not isinstance(line, dict) or set(line) - {"body"} != _FIELDS:
            raise ValueError(f"a line has the keys {sorted(_FIELDS)}")
        withheld = "body" not in line
        body = {} if withheld else line["body"]
        if not isinstance(body, dict):
            raise ValueError("a body is an object")
        row = read_row([line["body_hash"] if name == "body" else line[name] for name in Row._fields], at)
        written = row.body if withheld else digest(canonical(body))
        kind, name = Kind(row.kind), state.ledger or body["ledger"]
        found = entry_hash(
            ledger=name, previous=state.hash, sequence=at, kind=row.kind, body_hash=written, time=row.time
        )
    except LedgerBroken as error:
        raise LedgerBroken(error.problem, at=at, remedy=_AGAIN) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise LedgerBroken(f"cannot be read: {error}", at=at, remedy=_AGAIN) from None
    if row.sequence != at or row.previous != state.hash:
        raise LedgerBroken("is missing or does not follow the entry before it", at=at, remedy=_AGAIN)
    if written != row.body:
        raise LedgerBroken("was altered: its body_hash is not that of its body", at=at, remedy=_AGAIN)
    if found != row.hash:
        raise LedgerBroken("was altered: its hash is not that of its contents", at=at, remedy=_AGAIN)
    entry = Entry(
        sequence=at, kind=kind, body=body, previous=row.previous, hash=row.hash, signature=row.signature, time=row.time
    )
    return entry, withheld
