"""A ledger that is not there: lost, and then exit code 4 wherever one looks, or never begun, and then a plain word."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ledger.build import open_run, play, sample, tamper
from ledger.postgres import server
from ledger.test_crashes import killed_at
from quietsum.cli.app import app
from quietsum.errors import LedgerBroken
from quietsum.ledger import Ledger
from quietsum.ledger.chain.high_water_mark import mark_path
from quietsum.ledger.chain.keys import key_path
from quietsum.ledger.chain.verify import verify_file
from quietsum.ledger.stores.location import url_path, write_url
from quietsum.ledger.stores.missing import remains_of
from quietsum.ledger.stores.protocol import NoLedger

LOOKS = (("verify",), ("show",), ("show", "--json"), ("export", "out.jsonl"), ("receipts",))
DECISIONS = (
    ("raise", "--party", "Basel", "--dataset", "heart", "--epsilon", "30", "--reason", "more"),
    ("declare-public", "--party", "Basel", "--dataset", "heart", "--reason", "made up"),
)


def run(folder: Path, *arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments), "--workspace", str(folder)])


def a_run(folder: Path) -> Path:
    path = folder / "runs" / "first" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return path


def a_training(folder: Path) -> Path:
    path = folder / "training" / "first" / "checkpoint.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    return path


def a_key(folder: Path) -> Path:
    return key_path(sample(folder / "ledger.db"))


def a_mark(folder: Path) -> Path:
    return mark_path(sample(folder / "ledger.db"))


@pytest.mark.parametrize("left", [a_key, a_mark, a_run, a_training], ids=lambda f: f.__name__)
@pytest.mark.parametrize("empty", [False, True], ids=["deleted", "emptied"])
@pytest.mark.some(4)
def test_a_lost_ledger_is_broken_wherever_one_looks(
    tmp_path: Path, left: Callable[[Path], Path], empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = left(tmp_path)
    for path in tmp_path.glob("ledger.db*"):
        if path != kept:
            path.unlink()
    if empty:
        (tmp_path / "ledger.db").touch()
    for command in (*LOOKS, *DECISIONS):
        result = run(tmp_path, *command)
        assert result.exit_code == 4, (command, result.output)
        assert ("is empty" if empty else "is gone") in result.stderr
        assert "would forget what was spent" in result.stderr
    with pytest.raises(LedgerBroken):  # the words of `quietsum run`
        Ledger.open(tmp_path / "ledger.db", create=True)
    assert not (tmp_path / "out.jsonl").exists()


def test_without_anything_beside_it_a_missing_ledger_was_never_begun(tmp_path: Path) -> None:
    """The control: a mistyped --workspace is a mistake, not a loss."""
    for command in LOOKS:
        result = run(tmp_path, *command)
        assert result.exit_code == 2 and "there is no ledger at" in result.stderr
    with Ledger.open(tmp_path / "ledger.db", create=True):
        pass


def test_a_kill_while_a_ledger_begins_is_called_neither_broken_nor_whole(tmp_path: Path) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    seen: set[str] = set()
    for number in range(1, 20):
        path = tmp_path / str(number) / "ledger.db"
        died, places = killed_at(number, lambda path=path: Ledger.open(path, create=True).close())  # type: ignore[misc]
        if not died:
            break
        result = run(path.parent, "verify")
        if places[-1] == "ledger.create:after-sync":
            assert result.exit_code == 0, result.output
        else:
            assert result.exit_code == 2 and "was never begun" in result.stderr, (places, result.output)
        seen.add(places[-1].split(":")[1])
        with Ledger.open(path, create=True) as ledger:  # and the next start begins it
            open_run(ledger)
            play(ledger)
        assert run(path.parent, "verify").exit_code == 0
    assert seen >= {"after-file", "after-tables", "before-key", "before-append", "after-append", "after-sync"}


def test_a_ledger_whose_entries_were_deleted_is_not_excused(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    tamper(path, "DELETE FROM entries")
    assert run(tmp_path, "verify").exit_code == 4
    mark_path(path).unlink()
    assert run(tmp_path, "verify").exit_code == 4
    kept = shutil.move(key_path(path), tmp_path / "elsewhere.key")
    assert run(tmp_path, "verify").exit_code == 2  # nothing says any more that there ever was an entry
    shutil.move(kept, key_path(path))
    assert run(tmp_path, "verify").exit_code == 4


def test_a_kept_head_says_that_there_was_a_ledger(tmp_path: Path) -> None:
    with Ledger.open(sample(tmp_path / "ledger.db")) as ledger:
        head = ledger.head
    for path in tmp_path.glob("ledger.db*"):
        path.unlink()
    with pytest.raises(NoLedger):
        verify_file(tmp_path / "ledger.db")
    with pytest.raises(LedgerBroken, match="heads of it are kept elsewhere"):
        verify_file(tmp_path / "ledger.db", anchors=[head])


def test_a_database_without_its_tables_is_lost_where_a_key_is_left(tmp_path: Path) -> None:
    path, address = tmp_path / "ledger.db", server().schema()
    write_url(path, address)
    result = run(tmp_path, "verify")
    assert result.exit_code == 2 and "there is no ledger in" in result.stderr
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)
    assert run(tmp_path, "verify").exit_code == 0
    server().sql(f"DROP SCHEMA {address.split('schema=')[1]} CASCADE")
    assert remains_of(path) == key_path(path)
    result = run(tmp_path, "verify")
    assert result.exit_code == 4 and "is gone" in result.stderr
    assert url_path(path).exists() and not path.exists()


def test_entries_of_a_database_are_held_to_their_types_and_named(tmp_path: Path) -> None:
    path, address = tmp_path / "ledger.db", server().schema()
    schema = address.split("schema=")[1]
    write_url(path, address)
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)
        play(ledger)
    off, on = (f"ALTER TABLE {schema}.entries {word} TRIGGER USER" for word in ("DISABLE", "ENABLE ALWAYS"))
    on = on.replace("ENABLE ALWAYS TRIGGER USER", "ENABLE TRIGGER USER")
    loose = [f"ALTER TABLE {schema}.entries ALTER {name} DROP NOT NULL" for name in ("body", "time")]
    server().sql(off, *loose, f"UPDATE {schema}.entries SET body = NULL WHERE sequence = 5", on)
    with pytest.raises(LedgerBroken, match="its body is missing") as broken:
        verify_file(path)
    assert broken.value.at == 5
    server().sql(off, f"ALTER TABLE {schema}.entries ALTER time TYPE bytea USING time::bytea", on)
    with pytest.raises(LedgerBroken, match="its time is bytes") as broken:
        verify_file(path)
    assert broken.value.at == 1


def test_a_byte_that_is_no_utf8_in_a_database_names_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL takes no such byte in a text, so a column of bytes stands for a damaged page here."""
    import psycopg
    from psycopg.types.string import TextLoader

    class Damaged(TextLoader):
        def load(self, data: object) -> str:
            text = bytes(data)  # type: ignore[call-overload]
            return (b"\xff" if b'"round":2' in text else text).decode()

    path = tmp_path / "ledger.db"
    write_url(path, server().schema())
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)
        play(ledger)
    monkeypatch.setattr(psycopg.adapters, "_loaders", [dict(m) for m in psycopg.adapters._loaders])
    psycopg.adapters.register_loader("text", Damaged)
    with pytest.raises(LedgerBroken) as broken:
        verify_file(path)
    assert (broken.value.at, broken.value.exit_code) == (6, 4)


def test_a_damaged_run_db_is_a_clear_error(tmp_path: Path) -> None:
    from quietsum.errors import CorruptState
    from quietsum.runs.record import Recorder, history

    path = tmp_path / "run.db"
    with Recorder(path):
        pass
    data = path.read_bytes()
    assert data.count(b"epsilon_record REAL") == 1
    path.write_bytes(data.replace(b"epsilon_record REAL", b"epsilon_record \xbfEAL"))
    connection = sqlite3.connect(path)
    connection.close()
    path.write_bytes(data.replace(b"CREATE TABLE rounds", b"CREATE TABLE \xbfounds"))
    for use in (Recorder, lambda place: history(place, "accuracy")):
        with pytest.raises(CorruptState, match="move it away"):
            use(path)
    path.write_bytes(data)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(replace(sql, ' REAL', ''), 'STRICT', '')")
    connection.commit()
    connection.close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO rounds (round, attempt, finished, epsilon_record) VALUES (1, 1, 1, 'much')")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptState, match="is not a number"):
        history(path, "accuracy")
