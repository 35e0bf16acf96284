"""Whatever happens to the bytes of a ledger: exit code 4 with the entry's number, or the same answer as before."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from ledger.build import memory_ledger, open_run, reserve, sample, tamper
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Ledger, Row
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.export import export_ledger, verify_export
from quietsum.ledger.chain.verify import Reading, verify_file
from quietsum.ledger.stores.protocol import read_row
from quietsum.ledger.stores.sqlite import SqliteStore

COLUMNS = ("kind", "time", "body", "previous", "hash", "signature")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = sample(tmp_path_factory.mktemp("original") / "ledger.db")
    settle(path)
    return path


def settle(path: Path) -> None:
    """Everything in one file, none of it in the log."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    for name in ("ledger.db", "ledger.db.key", "ledger.db.head"):
        shutil.copy(original.parent / name, tmp_path / name)
    return tmp_path / "ledger.db"


def loosened(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> None:
    """Change rows of a table that takes any type, as a changed byte in the file does."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(
        "UPDATE sqlite_schema SET sql = replace(replace(sql, 'TEXT NOT NULL', ''), ') STRICT', ')') "
        "WHERE name = 'entries'"
    )
    connection.commit()
    connection.close()
    tamper(path, *statements)


# ------------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("column", COLUMNS)
def test_a_byte_that_is_no_utf8_is_a_broken_ledger_and_names_the_entry(path: Path, column: str) -> None:
    tamper(path, f"UPDATE entries SET {column} = CAST(x'7bff7d' AS TEXT) WHERE sequence = 9")
    for look in (verify_file, lambda place: Ledger.open(place, read_only=True), Ledger.open):
        with pytest.raises(LedgerBroken, match="UTF-8") as broken:
            look(path)
        assert (broken.value.at, broken.value.exit_code) == (9, 4)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("value", [None, 7, 0.5, b"bytes", b""], ids=repr)
def test_a_column_of_another_type_is_a_broken_ledger_and_names_the_entry(path: Path, column: str, value: Any) -> None:
    loosened(path, (f"UPDATE entries SET {column} = ? WHERE sequence = 9", (value,)))
    with pytest.raises(LedgerBroken, match=f"its {column} is (missing|bytes|a number), not a text") as broken:
        verify_file(path)
    assert (broken.value.at, broken.value.exit_code) == (9, 4)


def test_a_text_that_became_bytes_is_found_although_the_bytes_are_the_same(path: Path) -> None:
    loosened(path, "UPDATE entries SET body = CAST(body AS BLOB) WHERE sequence = 5")
    with pytest.raises(LedgerBroken, match="its body is bytes") as broken:
        verify_file(path)
    assert broken.value.at == 5


@pytest.mark.parametrize("at", range(7))
@pytest.mark.parametrize("value", [None, True, 7, 0.5, math.nan, b"x", "\udcff", [], {}], ids=repr)
def test_a_row_is_a_number_and_six_texts_or_no_row(at: int, value: Any) -> None:
    good = [3, "kind", "time", "body", "previous", "hash", "signature"]
    assert read_row(good, 3) == Row(*good)  # type: ignore[arg-type]
    bad = [*good[:at], value, *good[at + 1 :]]
    if at == 0 and value == 7 and value is not True:
        assert read_row(bad, 3).sequence == 7  # a gap is for the chain to find
        return
    with pytest.raises(LedgerBroken) as broken:
        read_row(bad, 3)
    assert broken.value.at == 3


def test_a_page_that_sqlite_cannot_read_names_the_entry_where_it_stops(path: Path) -> None:
    with SqliteStoreOf(path) as store:
        pages = [row.sequence for row in store.rows()]
    assert len(pages) == 16
    data = bytearray(path.read_bytes())
    page = 4096
    leaves = [
        start
        for start in range(0, len(data), page)
        if start and data[start] == 0x0D and b"quietsum" not in data[start : start + 9]
    ]
    last = leaves[-1]
    data[last + 3 : last + 5] = b"\xff\xff"  # the number of cells
    path.write_bytes(bytes(data))
    with pytest.raises(LedgerBroken) as broken:
        verify_file(path)
    assert broken.value.exit_code == 4
    assert broken.value.at is not None and 1 < broken.value.at <= 16


class SqliteStoreOf:
    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path, read_only=True)

    def __enter__(self) -> SqliteStore:
        return self.store

    def __exit__(self, *_: object) -> None:
        self.store.close()


@pytest.mark.parametrize(
    "spelling", ["upper(signature)", "' ' || signature", "substr(signature, 1, 2) || ' ' || substr(signature, 3)"]
)
def test_a_signature_has_one_spelling(path: Path, spelling: str) -> None:
    tamper(path, f"UPDATE entries SET signature = {spelling} WHERE sequence = 16")
    for look in (verify_file, lambda place: Ledger.open(place, read_only=True)):
        with pytest.raises(LedgerBroken, match="is not signed") as broken:
            look(path)
        assert broken.value.at == 16


def test_a_newer_or_damaged_format_number_is_a_broken_ledger(path: Path) -> None:
    tamper(path, "PRAGMA user_version = 3")
    with pytest.raises(LedgerBroken, match="format 3, this quietsum knows format 1") as broken:
        verify_file(path)
    assert broken.value.exit_code == 4


# ------------------------------------------------------------------------------------------ flipped bits


def flips(size: int, count: int, seed: int) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    return [(chance.randrange(size), chance.randrange(8)) for _ in range(count)]


def outcome(path: Path, name: str = "ledger.db") -> object:
    """What verify says of a file; anything but an answer or LedgerBroken is an error of the test.

    That a trigger's text was changed is a warning, and no other answer.
    """
    try:
        return dataclasses.replace(verify_file(path), warnings=())
    except LedgerBroken as error:
        assert error.exit_code == 4
        return None


@pytest.mark.parametrize("apart", [5, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_is_found_or_changes_no_answer(apart: int, path: Path) -> None:
    """Single bits at chance, and three of each of the first 100 bytes, SQLite's header; or a fifth of that."""
    data = path.read_bytes()
    answer = outcome(path)
    found = 0
    header = [(place, bit) for place in range(100) for bit in (0, 3, 7)]
    for place, bit in (header + flips(len(data), 600, seed=14))[::apart]:
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        path.write_bytes(bytes(changed))
        for beside in ("ledger.db-wal", "ledger.db-shm", "ledger.db-journal"):
            path.with_name(beside).unlink(missing_ok=True)
        seen = outcome(path)
        assert seen is None or seen == answer, (place, bit, seen)
        found += seen is None
    assert found > 200 / apart  # the control: bits were flipped


# ---------------------------------------------------------------------------------------------- exports

STRANGE: tuple[Any, ...] = (
    None,
    True,
    7,
    -1,
    0.5,
    math.nan,
    math.inf,
    10**400,
    "",
    "\ud800",
    "x" * 99,
    [],
    [[]],
    {},
    {"a": 1},
)


@pytest.fixture
def exported(path: Path, tmp_path: Path) -> list[dict[str, Any]]:
    with Ledger.open(path, read_only=True) as ledger:
        export_ledger(ledger, tmp_path / "out.jsonl")
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("field", ["sequence", "kind", "time", "previous", "hash", "signature", "body_hash", "body"])
@pytest.mark.some(4)
def test_any_value_of_another_type_in_an_export_names_the_entry(
    exported: list[dict[str, Any]], tmp_path: Path, field: str
) -> None:
    for at in (1, 5, 10, 12, 16):  # a genesis, a reservation, a withheld refund, a budget, the last one
        for value in STRANGE:
            lines = [dict(line) for line in exported]
            lines[at - 1][field] = value
            with pytest.raises(LedgerBroken) as broken:
                verify_export(write(tmp_path / "bad.jsonl", lines), every_signature=True)
            assert broken.value.at == at, (field, value, broken.value)


def test_any_value_of_another_type_in_a_body_names_the_entry(exported: list[dict[str, Any]], tmp_path: Path) -> None:
    for at, line in enumerate(exported, 1):
        for key in line.get("body", ()):
            for value in STRANGE:
                lines = [dict(other) for other in exported]
                lines[at - 1] = {**line, "body": {**line["body"], key: value}}
                if lines[at - 1]["body"] == line["body"]:
                    continue
                with pytest.raises(LedgerBroken) as broken:
                    verify_export(write(tmp_path / "bad.jsonl", lines))
                assert broken.value.at == at


@pytest.mark.parametrize("line", [None, 7, "text", [], {}, math.nan], ids=repr)
def test_a_line_that_is_no_object_of_ours_names_the_entry(
    exported: list[dict[str, Any]], tmp_path: Path, line: Any
) -> None:
    with pytest.raises(LedgerBroken) as broken:
        verify_export(write(tmp_path / "bad.jsonl", [*exported[:3], line, *exported[4:]]))
    assert broken.value.at == 4


def test_a_byte_of_an_export_that_is_no_utf8_names_the_entry(exported: list[dict[str, Any]], tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", exported)
    lines = path.read_bytes().split(b"\n")
    lines[5] = lines[5].replace(b'"time": "2', b'"time": "\xff', 1)
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerBroken) as broken:
        verify_export(path)
    assert broken.value.at == 6


def test_a_body_hash_is_compared_where_the_body_is_there(exported: list[dict[str, Any]], tmp_path: Path) -> None:
    for at in (1, 4, 5, 12):
        lines = [dict(line) for line in exported]
        lines[at - 1]["body_hash"] = "0" * 64
        with pytest.raises(LedgerBroken, match="body_hash") as broken:
            verify_export(write(tmp_path / "bad.jsonl", lines))
        assert broken.value.at == at


def test_a_commit_is_withheld_behind_a_refund_only(exported: list[dict[str, Any]], tmp_path: Path) -> None:
    kinds = [line["kind"] for line in exported]
    assert kinds.index("refund") == 9 and "body" not in exported[10]  # entry 10, and the commit after it
    verify_export(write(tmp_path / "good.jsonl", exported))  # the control
    for at in (6, 8):
        lines = [{k: v for k, v in line.items() if k != "body" or line["sequence"] != at} for line in exported]
        with pytest.raises(LedgerBroken, match="no refund stands before it") as broken:
            verify_export(write(tmp_path / "bad.jsonl", lines))
        assert broken.value.at == at


def test_no_more_commits_are_withheld_than_reservations_are_open() -> None:
    """Somebody with the key cannot pad an export with commits that nothing was reserved for."""
    ledger = memory_ledger()
    open_run(ledger)
    receipt = reserve(ledger)
    ledger.refund(receipt, "Basel", "not today")
    commit, refund = ledger.commit(receipt), next(ledger.entries(5))
    reading = Reading((), redacted=True)
    for entry in ledger.entries():
        reading.take(entry, withheld=entry.kind in (Kind.REFUND, Kind.COMMIT))
    for extra in (commit, refund):
        with pytest.raises(LedgerBroken, match="no reservation is open"):
            reading.take(dataclasses.replace(extra, sequence=commit.sequence + 1), withheld=True)


def test_trouble_that_is_no_damage_keeps_its_exit_code(path: Path) -> None:
    """The control: a locked file is not called broken."""
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(QuietsumError) as error:
            SqliteStore(path, read_only=True, patience=0.05)
        assert not isinstance(error.value, LedgerBroken)
        assert error.value.exit_code == 1
    finally:
        blocker.close()
