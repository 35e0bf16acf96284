"""The badge says what ``quietsum ledger verify`` says, and up to which entry."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from starlette.testclient import TestClient

from web.places import copy_old, look, view_of_app


def wait_for_check(client: TestClient) -> str:
    """The badge when the check has ended; the page itself would read the newest entries."""
    client.get("/ledger/state")
    for _ in range(600):
        text = client.get("/ledger/state").text
        if "being checked" not in text:
            return text
        time.sleep(0.05)
    raise AssertionError("the check did not end")


def test_a_whole_ledger_is_intact_up_to_its_last_entry(tmp_path: Path) -> None:
    from quietsum.ledger import Ledger

    place = copy_old(tmp_path)
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        last = ledger.head.sequence
    with look(place) as client:
        first = client.get("/ledger").text
        text = wait_for_check(client)
    assert "being checked" in first and "chain intact" not in first
    assert "chain intact" in text and f"up to entry {last}." in text


def test_an_entry_that_was_altered_behind_an_open_ledger_is_named(tmp_path: Path) -> None:
    """What is open reads on from its end; the check reads everything."""
    place = copy_old(tmp_path)
    with look(place) as client:
        with view_of_app(client).reader.ledger() as ledger:
            assert ledger.head.sequence > 3
        database = sqlite3.connect(place / "ledger.db")
        for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            database.execute(f'DROP TRIGGER "{name}"')
        database.execute("UPDATE entries SET body = body || ' ' WHERE sequence = 3")
        database.commit()
        database.close()
        text = wait_for_check(client)
    assert "chain broken" in text and "entry 3" in text and str(tmp_path) not in text


def test_a_ledger_that_is_no_longer_itself_is_broken_without_a_check(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    with look(place) as client:
        assert "chain broken" not in client.get("/ledger/state").text
        (place / "ledger.db").write_bytes(b"nothing at all")
        assert "chain broken" in client.get("/ledger/state").text
