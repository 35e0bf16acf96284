"""Books of coordinators and sites of before the rebuild: they verify, show, and their federations go on with them.

The folder ``before_sites`` was written by an earlier commit (:mod:`old_books.make_before_sites`). Every test works on a
copy.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from federation.world import NAMES, World
from old_books import make_sites
from old_books.make_before_sites import FOLDER, TEXTS, world
from old_books.test_before_rooms import call, succeeds
from quietsum.errors import LedgerBroken
from quietsum.ledger import Kind, Ledger
from quietsum.ledger.pricing import PRICING

OLDER = FOLDER.with_name("sites")


def copied(tmp_path: Path, source: Path) -> Path:
    """A copy with the modes that git does not keep."""
    place = shutil.copytree(source, tmp_path / source.name)
    for path in place.rglob("*.db*"):
        path.chmod(0o600)
    return place


@contextlib.contextmanager
def joined(made: World) -> Iterator[World]:
    try:
        yield made.join()
    finally:
        made.ledger.close()
        for service in made.services.values():
            service.books.ledger.close()


def ledgers(place: Path) -> dict[str, Path]:
    return {"": place / "coordinator.db", **{name: place / name / "ledger.db" for name in NAMES}}


def alter(path: Path, old: str, new: str) -> None:
    """Every body of the entries with other words, as somebody with the file can do."""
    with contextlib.closing(sqlite3.connect(path)) as opened, opened:
        opened.execute("DROP TRIGGER entries_are_never_changed")
        changed = opened.execute(
            "UPDATE entries SET body = replace(body, ?, ?) WHERE body LIKE ?", (old, new, f"%{old}%")
        )
        assert changed.rowcount > 0


@pytest.mark.parametrize("kind", TEXTS)
def test_every_ledger_verifies_and_a_sites_is_shown(tmp_path: Path, kind: str) -> None:
    place = copied(tmp_path, FOLDER / kind)
    for path in ledgers(place).values():
        with Ledger.open(path, read_only=True) as ledger:
            ledger.verify(every_signature=True)
    for name in NAMES:
        succeeds("ledger", "verify", "--workspace", str(place / name), "--every-signature")
        shown = json.loads(succeeds("ledger", "show", "--workspace", str(place / name), "--json").stdout)
        units = {"record", "client"} if kind == "plain" else {"record"}
        assert {book["unit"] for book in shown["books"]} == units and not shown["corrections"]


@pytest.mark.parametrize("kind", TEXTS)
def test_a_federation_goes_on_with_its_books_and_charges_both_sides_once_a_round(tmp_path: Path, kind: str) -> None:
    place = copied(tmp_path, FOLDER / kind)
    with joined(world(place, kind)) as made:
        reserved = {name: len(made.entries(Kind.RESERVE, name)) for name in ("", *NAMES)}
        for number in (2, 3):
            assert set(made.round(number).kept) == set(NAMES) and not made.dropped
        for name in ("", *NAMES):
            assert len(made.entries(Kind.RESERVE, name)) == reserved[name] + 2
            assert not made.entries(Kind.CORRECTION, name)  # prices are those of then
        ours = {one.unit: one.epsilon for one in made.ledger.spending("run")}
        theirs = made.services["va"].books.ledger
        assert next(one.epsilon for one in theirs.spending(theirs.runs()[0].run) if one.unit.value == "record") == (
            pytest.approx(next(epsilon for unit, epsilon in ours.items() if unit.value == "record"), rel=1e-9)
        )
    for path in ledgers(place).values():
        with Ledger.open(path, read_only=True) as ledger:
            ledger.verify(every_signature=True)


@pytest.mark.parametrize("kind", TEXTS)
def test_the_control_a_byte_altered_in_a_sites_ledger_is_found_and_the_site_does_not_start(
    tmp_path: Path, kind: str
) -> None:
    place = copied(tmp_path, FOLDER / kind)
    alter(place / "va" / "ledger.db", '"size":', '"size":1')
    assert call("ledger", "verify", "--workspace", str(place / "va")).exit_code == 4
    with pytest.raises(LedgerBroken):
        world(place, kind)
    for name in NAMES[:-1]:
        succeeds("ledger", "verify", "--workspace", str(place / name))


def test_the_control_a_sites_ledger_without_its_last_entry_is_found_by_its_mark(tmp_path: Path) -> None:
    place = copied(tmp_path, FOLDER / "plain")
    with contextlib.closing(sqlite3.connect(place / "va" / "ledger.db")) as opened, opened:
        for (trigger,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            opened.execute(f"DROP TRIGGER {trigger}")
        opened.execute("DELETE FROM entries WHERE sequence = (SELECT max(sequence) FROM entries)")
    assert call("ledger", "verify", "--workspace", str(place / "va")).exit_code == 4


def test_a_coordinator_with_older_prices_turns_to_todays_once_and_goes_on(tmp_path: Path) -> None:
    place = copied(tmp_path, OLDER)
    with Ledger.open(place / "coordinator.db", read_only=True) as ledger:
        assert ledger.runs()[0].pricing < PRICING and ledger.corrections() == ((), None)
    with joined(World(place, make_sites.TEXT)) as made:
        for number in (2, 3):
            made.round(number)
        (correction,) = made.entries(Kind.CORRECTION)
        assert correction == {"corrections": [], "operator_only": False, "pricing": PRICING}  # no figure moved
        made.ledger.verify(every_signature=True)
        for name in NAMES:
            made.services[name].books.ledger.verify(every_signature=True)
