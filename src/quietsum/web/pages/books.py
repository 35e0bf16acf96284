"""The ledger: whether it is intact, what may still be spent of each dataset, and every entry in words and as JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from quietsum.errors import LedgerBroken
from quietsum.ledger import Book, Entry, Kind, Ledger, exceeds, operator_only
from quietsum.web.checking import CheckState
from quietsum.web.pages.runs import read_whole
from quietsum.web.rendering import View, view_of

__all__ = ["show_books", "show_state"]

PAGE = 40
LONGEST = 12_000
"""Letters of one entry's JSON that a page shows."""
BOOKS = 100


async def show_books(request: Request) -> Response:
    """The ledger, newest entries first; ``before`` begins behind a later one."""
    from anyio.to_thread import run_sync

    view = view_of(request)
    before = read_whole(request, "before", 0)
    values = await run_sync(_read, view, before)
    check = view.check.look(values["head"].sequence)
    return view.page(request, "ledger.html", check=check, **values)


async def show_state(request: Request) -> Response:
    """The badge alone, for a page that waits for a check."""
    from anyio.to_thread import run_sync

    view = view_of(request)

    def read() -> int:
        with view.reader.ledger() as ledger:
            return ledger.head.sequence

    try:
        sequence = await run_sync(read)
        check = view.check.look(sequence)
    except LedgerBroken as error:
        sequence, check = 0, CheckState(intact=False, sentence=view.reader.say(error))
    return HTMLResponse(view.render("badge.html", check=check, sequence=sequence))


def _read(view: View, before: int) -> dict[str, Any]:
    from quietsum.report import describe_entry

    private = view.access.operator or view.reader.policy is not None
    with view.reader.ledger() as ledger:
        head = ledger.head
        end = min(before or head.sequence + 1, head.sequence + 1)
        start = max(1, end - PAGE)
        entries = []
        opened: dict[str, Entry] = {}
        for entry in ledger.entries(start):
            if entry.sequence >= end:
                break
            hidden = not private and (operator_only(entry) or _is_own(ledger, entry, opened))
            about, run = ("withheld: it says who took part", "") if hidden else describe_entry(ledger, entry, opened)
            entries.append({
                "sequence": entry.sequence, "time": entry.time, "kind": entry.kind.value, "about": about, "run": run,
                "hash": entry.hash, "json": "" if hidden else _as_json(entry), "hidden": hidden,
            })  # fmt: skip
        if not entries and before:
            raise HTTPException(404)
        books = view.reader.keep_value("books", head.sequence, ledger.lifetime)
        return {
            "head": head, "ledger": ledger.identity.ledger, "moved_to": ledger.moved_to, "sequence": head.sequence,
            "entries": list(reversed(entries)), "start": start, "private": private,
            "books": [_book(book, private) for book in books[:BOOKS]], "more_books": max(0, len(books) - BOOKS),
            "newer": end + PAGE if end <= head.sequence else None,
        }  # fmt: skip


def _is_own(ledger: Ledger, entry: Entry, opened: dict[str, Entry]) -> bool:
    """Whether it is of a site's own books, whose entries say in which rounds the site was drawn (rule 5)."""
    run = entry.body.get("run")
    if not isinstance(run, str) or entry.kind is Kind.RUN:
        return False
    known = opened[run] = opened.get(run) or ledger.run_entry(run)
    return known.body["terms"].get("enrolled") is not None


def _as_json(entry: Entry) -> str:
    values = {"sequence": entry.sequence, "kind": entry.kind.value, "time": entry.time, "previous": entry.previous,
              "hash": entry.hash, "signature": entry.signature, "body": entry.body}  # fmt: skip
    text = json.dumps(values, indent=2, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n… and {len(text) - LONGEST:,} letters more"


def _book(book: Book, private: bool) -> dict[str, Any]:
    """One lifetime. What share is spent depends on who refused, so it is the operator's alone."""
    budget, guarantee = book.budget, book.guarantee
    over = budget is not None and guarantee is not None and exceeds(guarantee.epsilon, budget.epsilon)
    return {
        "party": book.party, "dataset": book.dataset, "unit": book.unit.value, "budget": book.budget, "over": over,
        "public": book.public, "plans": book.plans, "share": book.spent_fraction if private else None,
    }  # fmt: skip
