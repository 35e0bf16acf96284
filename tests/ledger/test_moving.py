"""A ledger moves to PostgreSQL: whole or not at all, and never two that can both be continued."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ledger.build import open_run, play, reserve, sample, tamper
from ledger.postgres import server
from quietsum import files
from quietsum.cli.app import app
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Ledger
from quietsum.ledger.chain.export import verify_export
from quietsum.ledger.chain.high_water_mark import mark_path
from quietsum.ledger.chain.keys import key_path
from quietsum.ledger.chain.verify import verify_file
from quietsum.ledger.stores.location import open_store, path_after_move, url_path
from quietsum.ledger.stores.moving import move_to_postgres, move_to_sqlite
from quietsum.ledger.stores.postgres import PostgresStore
from quietsum.ledger.stores.protocol import StoreFailed
from quietsum.ledger.stores.sqlite import SqliteStore
from quietsum.runs.folder import Workspace
from quietsum.runs.run import _ledger_in


def moved(folder: Path) -> tuple[Path, str]:
    """A workspace whose ledger of 16 entries is on the server."""
    folder.mkdir(exist_ok=True)
    path, address = sample(folder / "ledger.db"), server().schema()
    move_to_postgres(path, address)
    return path, address


def second(path: Path, folder: Path) -> Path:
    """What another coordinator is given: the address and the key."""
    folder.mkdir()
    for part in (url_path(path), key_path(path)):
        shutil.copy2(part, folder / part.name)
    return folder / path.name


def tampered(address: str, *statements: str) -> None:
    """What somebody with the owner's role can do."""
    schema = address.split("schema=")[1]
    server().sql(
        f"ALTER TABLE {schema}.entries DISABLE TRIGGER USER",
        *(statement.format(s=schema) for statement in statements),
        f"ALTER TABLE {schema}.entries ENABLE TRIGGER USER",
    )


# --------------------------------------------------------------------------------------------- after a move


def test_a_moved_ledger_is_the_same_and_goes_on(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path, read_only=True) as ledger:
        head, books, entries = ledger.head, ledger.lifetime(), list(ledger.entries())
    found = move_to_postgres(path, server().schema(), anchors=[head])
    assert found.found.head == head and found.found.anchors == 1
    assert not path.exists() and url_path(path).exists() and key_path(path).exists() and mark_path(path).exists()
    with Ledger.open(path) as ledger:
        assert (ledger.head, ledger.lifetime(), list(ledger.entries())) == (head, books, entries)
        play(ledger, "second", rounds=(3,))
        assert ledger.verify([head], every_signature=True).entries == 18
    assert verify_file(path, anchors=[head]).marked


def test_what_stays_behind_is_read_only_and_sealed(tmp_path: Path) -> None:
    path, address = moved(tmp_path)
    kept = path_after_move(path)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o400
    assert not list(tmp_path.glob("*-wal"))
    assert [row.hash for row in SqliteStore(kept, read_only=True).rows()] == [
        row.hash for row in PostgresStore(address).rows()
    ]
    url_path(path).unlink()
    kept.chmod(0o600)
    kept.rename(path)  # by hand, against all advice
    with Ledger.open(path) as ledger, pytest.raises(StoreFailed, match="append-only: this one was moved to postgresql"):
        reserve(ledger, "second", 3)


def test_a_process_that_has_the_file_open_can_write_nothing_more(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    address = server().schema()
    with Ledger.open(path) as early:
        with pytest.raises(StoreFailed, match=r"still has .* open"):
            move_to_postgres(path, address)
        with pytest.raises(StoreFailed, match="was moved to"):
            reserve(early, "second", 3)
    with pytest.raises(LedgerBroken, match="is there twice"):
        Ledger.open(path)
    move_to_postgres(path, address)
    with Ledger.open(path) as ledger:
        reserve(ledger, "second", 3)


def test_two_books_are_refused_for_reading_and_writing(tmp_path: Path) -> None:
    path, _ = moved(tmp_path)
    shutil.copy2(path_after_move(path), path)
    opened: tuple[dict[str, Any], ...] = ({}, {"read_only": True}, {"create": True})
    for options in opened:
        with pytest.raises(LedgerBroken, match="is there twice"):
            Ledger.open(path, **options)
    with pytest.raises(LedgerBroken, match="is there twice"):
        verify_file(path)


def test_no_new_ledger_begins_where_the_address_was_lost(tmp_path: Path) -> None:
    path, _ = moved(tmp_path)
    url_path(path).unlink()
    with pytest.raises(LedgerBroken, match="is gone"):
        Ledger.open(path, create=True)
    for left in (key_path(path), mark_path(path)):
        left.unlink()
    with pytest.raises(LedgerBroken, match="says where to, is gone"):
        Ledger.open(path, create=True)


def test_no_new_ledger_begins_where_the_database_was_emptied(tmp_path: Path) -> None:
    path, address = moved(tmp_path)
    server().sql(f"DROP SCHEMA {address.split('schema=')[1]} CASCADE")
    for left in (key_path(path), mark_path(path)):  # each of them alone tells that there was one
        with pytest.raises(LedgerBroken, match="is gone, but"):
            Ledger.open(path, create=True)
        left.unlink()


def test_a_workspace_with_runs_finds_its_ledger_on_the_server(tmp_path: Path) -> None:
    path, _ = moved(tmp_path)
    workspace = Workspace.at(tmp_path)
    (workspace.runs / "first").mkdir(parents=True)
    (workspace.runs / "first" / "run.json").write_text("{}")
    assert workspace.has_runs()
    with _ledger_in(workspace, create=False) as ledger:
        assert ledger.head.sequence == 16
    url_path(path).unlink()
    with pytest.raises(LedgerBroken, match="is gone, and the workspace holds runs"):
        _ledger_in(workspace, create=False)


def test_a_ledger_may_begin_on_the_server(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    url_path(path).write_text(server().schema() + "\n")
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)
        play(ledger)
        assert ledger.verify().stated == 2
    assert key_path(path).exists() and not path.exists()


@pytest.mark.parametrize("text", ["", "postgresql://ward:hush-hush@db.example/books", "nonsense"])
def test_an_address_that_is_none_is_a_lesson(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger.db.url").write_text(text)
    with pytest.raises(QuietsumError) as caught:
        open_store(tmp_path / "ledger.db")
    assert "hush" not in str(caught.value)


# ------------------------------------------------------------------------------------------ who may be called


def test_who_has_written_to_a_server_may_look_there_and_an_auditor_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path, address = moved(tmp_path / "books")
    Ledger.open(path, read_only=True).close()
    assert stat.S_IMODE((tmp_path / "state" / "quietsum" / "ledgers").stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))  # an auditor, who never wrote
    for look in (lambda: Ledger.open(path, read_only=True), lambda: verify_file(path)):
        with pytest.raises(QuietsumError, match=r"no server has been called.*QUIETSUM_LEDGER_URL"):
            look()
    monkeypatch.setenv("QUIETSUM_LEDGER_URL", address.replace("postgres@", "somebody@"))
    with pytest.raises(QuietsumError, match="no server has been called"):
        verify_file(path)
    monkeypatch.setenv("QUIETSUM_LEDGER_URL", address)
    assert verify_file(path).entries == 16
    monkeypatch.delenv("QUIETSUM_LEDGER_URL")
    Ledger.open(path).close()  # a command that writes is told where to spend from
    Ledger.open(path, read_only=True).close()


@pytest.mark.parametrize("state", ["file", "pipe", "none"])
def test_where_nothing_can_be_remembered_a_writer_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if state == "file":
        (tmp_path / "state").write_text("")
    elif state == "pipe":
        (tmp_path / "state" / "quietsum").mkdir(parents=True)
        os.mkfifo(tmp_path / "state" / "quietsum" / "ledgers")
    else:
        monkeypatch.setattr(files, "state_file", lambda name: None)
    path, _ = moved(tmp_path / "books")
    Ledger.open(path).close()


def test_an_address_in_a_pipe_or_a_device_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ledger.db.url")
    with pytest.raises(QuietsumError, match="is no plain file"):
        open_store(tmp_path / "ledger.db")
    (tmp_path / "ledger.db.url").unlink()
    (tmp_path / "ledger.db.url").symlink_to("/dev/zero")
    with pytest.raises(QuietsumError, match="is no plain file"):
        open_store(tmp_path / "ledger.db")
    (tmp_path / "ledger.db.url").unlink()
    (tmp_path / "ledger.db.url").write_text("x" * 70_000)
    with pytest.raises(QuietsumError, match="is larger than"):
        open_store(tmp_path / "ledger.db")


# ---------------------------------------------------------------------------------------- a second coordinator


def test_a_second_coordinator_needs_the_address_and_the_key(tmp_path: Path) -> None:
    path, _ = moved(tmp_path / "one")
    other = second(path, tmp_path / "two")
    with Ledger.open(path) as first, Ledger.open(other) as ledger:
        receipt = reserve(ledger, "second", 3)
        first.commit(receipt)  # each sees what the other wrote
        assert ledger.head == first.head
    assert mark_path(other).exists()
    key_path(other).unlink()
    with pytest.raises(LedgerBroken, match="has lost its key"):
        Ledger.open(other)
    with Ledger.open(other, read_only=True) as ledger:
        assert ledger.verify().entries == 18


def test_a_database_put_back_from_yesterday_is_found_by_every_mark(tmp_path: Path) -> None:
    path, address = moved(tmp_path / "one")
    other = second(path, tmp_path / "two")
    with Ledger.open(other) as ledger:
        reserve(ledger, "second", 3)
    tampered(address, "DELETE FROM {s}.entries WHERE sequence > 16")
    with pytest.raises(LedgerBroken, match="the tail was cut off"):
        Ledger.open(other)
    with pytest.raises(LedgerBroken, match="cut off"):
        verify_file(other)
    Ledger.open(path).close()  # which saw nothing newer: its mark is at entry 16
    tampered(address, "DELETE FROM {s}.entries WHERE sequence > 15")
    with pytest.raises(LedgerBroken, match="the tail was cut off"):
        Ledger.open(path)


@pytest.mark.parametrize(
    ("statement", "at"),
    [
        ("UPDATE {s}.entries SET body = replace(body, '3.0', '9.0') WHERE sequence = 4", 4),
        ("UPDATE {s}.entries SET body = replace(body, '20.0', '90.0') WHERE sequence = 2", 2),
        ("UPDATE {s}.entries SET time = '2020-01-01T00:00:00.000000Z' WHERE sequence = 7", 7),
        ("DELETE FROM {s}.entries WHERE sequence = 9", 9),
        ("UPDATE {s}.entries SET signature = repeat('0', 128) WHERE sequence = 16", 16),
    ],
)
def test_tampering_is_found_as_it_is_in_a_file(tmp_path: Path, statement: str, at: int) -> None:
    path, address = moved(tmp_path)
    mark_path(path).unlink()
    tampered(address, statement)
    with pytest.raises(LedgerBroken) as caught:
        verify_file(path)
    assert caught.value.at == at
    with pytest.raises(LedgerBroken):
        Ledger.open(path)


# ------------------------------------------------------------------------------------------- what is refused


def test_a_broken_ledger_stays_where_it_is(tmp_path: Path) -> None:
    path, address = sample(tmp_path / "ledger.db"), server().schema()
    tamper(path, "UPDATE entries SET time = '2020-01-01T00:00:00.000000Z' WHERE sequence = 7")
    with pytest.raises(LedgerBroken, match="entry 7"):
        move_to_postgres(path, address)
    assert path.exists() and not url_path(path).exists()
    with pytest.raises(QuietsumError, match="there is no ledger"):
        PostgresStore(address)


def test_a_schema_with_another_ledger_is_refused_and_untouched(tmp_path: Path) -> None:
    _, address = moved(tmp_path / "one")
    (tmp_path / "two").mkdir()
    path = sample(tmp_path / "two" / "ledger.db")
    before = list(PostgresStore(address).rows())
    with pytest.raises(LedgerBroken, match="is another one; choose an empty schema"):
        move_to_postgres(path, address)
    assert list(PostgresStore(address).rows()) == before
    with Ledger.open(path) as ledger:
        reserve(ledger, "second", 3)


def test_a_move_to_a_second_place_is_refused(tmp_path: Path) -> None:
    path, address = moved(tmp_path)
    with pytest.raises(QuietsumError, match="already"):
        move_to_postgres(path, address)
    with pytest.raises(QuietsumError, match="points at another place"):
        move_to_postgres(path, server().schema())
    with pytest.raises(QuietsumError, match="there is no ledger"):
        move_to_postgres(tmp_path / "nothing.db", server().schema())


def test_an_older_copy_of_the_file_does_not_come_back(tmp_path: Path) -> None:
    """A copy that the server has outgrown is put away; one that went its own way is refused."""
    path = sample(tmp_path / "ledger.db")
    copy = tmp_path / "copy.db"
    shutil.copy2(path, copy)
    shutil.copy2(key_path(path), key_path(copy))
    address = server().schema()
    move_to_postgres(path, address)
    with Ledger.open(copy) as ledger:
        reserve(ledger, "second", 3)
    with Ledger.open(path) as ledger:
        reserve(ledger, "second", 3)
    with pytest.raises(LedgerBroken, match="entry 17 is another one"):
        move_to_postgres(copy, address)


# ------------------------------------------------------------------------------------------ killed at each step

DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ledger.test_crashes import killed_at
from quietsum.ledger.stores.moving import move_to_postgres, move_to_sqlite
for number, line in enumerate(sys.stdin, 1):
    path, address = line.rstrip().split("|")
    back = address == "sqlite"
    move = lambda: move_to_sqlite(Path(path)) if back else move_to_postgres(Path(path), address)
    died, places = killed_at(number, move)
    print(int(died), *places, flush=True)
"""
STEPS = 12
"""Of a move, the three of each file that is written durably among them: where to, and that one may look there."""
STEPS_BACK = 11


def kill_moves(moves: list[tuple[Path, str]]) -> list[tuple[bool, list[str]]]:
    """In a process of its own, which may fork: the n-th move dies at the n-th place. Whether it did, and the places."""
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(Path(__file__).parents[1])],
        input="".join(f"{path}|{address}\n" for path, address in moves), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == len(moves)
    return [(died == "1", places) for died, *places in lines]


def sealed_for(path: Path) -> str | None:
    store = SqliteStore(path, read_only=True)
    try:
        return store.read_seal()
    finally:
        store.close()


def can_continue(path: Path) -> bool:
    """Whether an act on the ledger that this path leads to is recorded."""
    try:
        with Ledger.open(path) as ledger:
            ledger.declare_public(party="Bern", dataset="test", reason="a try")
            return True
    except QuietsumError:
        return False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.long
def test_a_move_that_is_killed_at_any_step_never_leaves_two_and_goes_on(tmp_path: Path) -> None:
    moves = []
    for number in range(1, STEPS + 2):
        (tmp_path / str(number)).mkdir()
        moves.append((sample(tmp_path / str(number) / "ledger.db"), server().schema()))
    kills, outcome = kill_moves(moves), {}
    for (path, address), (died, reached) in zip(moves, kills, strict=True):
        if not died:
            break
        pointed = url_path(path).exists()
        as_file = path.exists() and sealed_for(path) is None
        goes_on = can_continue(path)
        place = reached[-1].split(":")[1]
        outcome[f"{place} again" if place in outcome else place] = (as_file, pointed, goes_on)
        assert not (as_file and pointed), "two ledgers"
        entries = 16 + goes_on
        if path.exists():
            move_to_postgres(path, address)  # the same command again
        with Ledger.open(path) as ledger:
            assert ledger.verify(every_signature=True).entries == entries, reached
            reserve(ledger, "second", 3)
        assert not path.exists() and path_after_move(path).exists()
    assert outcome == {
        "before-copy": (True, False, True),
        "after-copy": (True, False, True),
        "before-seal": (True, False, True),
        "after-seal": (False, False, False),
        "written": (False, False, False),  # the file that says where to
        "synced": (False, False, False),
        "renamed": (False, True, False),
        "written again": (False, True, False),  # the user's own note that looking there is fine
        "synced again": (False, True, False),
        "renamed again": (False, True, False),
        "after-url": (False, True, False),
        "after-rename": (False, True, True),
    }
    assert [died for died, _ in kills] == [True] * STEPS + [False]


def test_a_sealed_file_goes_where_it_was_sealed_for(tmp_path: Path) -> None:
    path, address = sample(tmp_path / "ledger.db"), server().schema()
    store = SqliteStore(path)
    with store.transaction():
        store.seal(PostgresStore(address, create=True).name)
    store.close()
    with pytest.raises(QuietsumError, match="was sealed by a move to"):
        move_to_postgres(path, server().schema())
    move_to_postgres(path, address)


# -------------------------------------------------------------------------------------------- and back again


def test_a_ledger_that_moved_back_is_the_same_and_goes_on(tmp_path: Path) -> None:
    path, address = moved(tmp_path / "one")
    other = second(path, tmp_path / "two")
    with Ledger.open(path) as ledger:
        reserve(ledger, "second", 3)
        head = ledger.head
    assert move_to_sqlite(path, anchors=[head]).found.head == head
    assert path.exists() and not url_path(path).exists() and not list((tmp_path / "one").glob("*.mov*ing*"))
    with Ledger.open(path) as ledger:
        assert ledger.head == head
        reserve(ledger, "second", 4)
        assert ledger.verify([head]).entries == 18
    with Ledger.open(other) as ledger, pytest.raises(StoreFailed, match=r"this one was moved to .*ledger\.db on"):
        reserve(ledger, "second", 4)
    with pytest.raises(QuietsumError, match="repeat the move there"):
        move_to_sqlite(other)  # there would be two
    with pytest.raises(QuietsumError, match="is on no server"):
        move_to_sqlite(path)
    path_after_move(path).rename(tmp_path / "elsewhere")
    with pytest.raises(QuietsumError, match="choose another schema"):
        move_to_postgres(path, address)  # a sealed one stays sealed
    move_to_postgres(path, server().schema())
    with Ledger.open(path) as ledger:
        assert ledger.verify([head]).entries == 18


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_move_back_that_is_killed_at_any_step_never_leaves_two_and_goes_on(tmp_path: Path) -> None:
    moves, others = [], []
    for number in range(1, STEPS_BACK + 2):
        moves.append((moved(tmp_path / str(number))[0], "sqlite"))
        others.append(second(moves[-1][0], tmp_path / f"{number}-other"))
    kills, outcome = kill_moves(moves), {}
    for (path, _), other, (died, reached) in zip(moves, others, kills, strict=True):
        if not died:
            break
        here, there = can_continue(path), can_continue(other)
        outcome[reached[-1].split(":")[1]] = (here, there)
        as_file = path.exists() and not url_path(path).exists()
        assert not (as_file and there), "two ledgers"
        if url_path(path).exists():
            move_to_sqlite(path)  # the same command again
        with Ledger.open(path) as ledger:
            assert path.exists() and not url_path(path).exists()
            assert ledger.verify(every_signature=True).entries == 16 + here + there, reached
            reserve(ledger, "second", 3)
        assert not can_continue(other)
    assert outcome == {
        "before-copy": (True, True),
        "written": (True, True),  # the note of the move
        "synced": (True, True),
        "renamed": (True, True),
        "after-file": (True, True),  # of the copy
        "after-tables": (True, True),
        "after-copy": (True, True),
        "before-seal": (True, True),
        "after-seal": (False, False),
        "after-rename": (False, False),
        "after-url": (True, False),
    }
    assert [died for died, _ in kills] == [True] * STEPS_BACK + [False]


# ------------------------------------------------------------------------------------------------- commands


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


def shown(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    lines = [re.sub(r"/\S+", "/path", line) for line in result.stdout.splitlines()]  # a path is as long as it is
    assert "--json" in arguments or max(map(len, lines)) <= 80, result.stdout
    return result.stdout


def test_the_commands_work_on_a_moved_ledger(tmp_path: Path) -> None:
    sample(tmp_path / "ledger.db")
    address, here = server().schema(), ("--workspace", tmp_path)
    said = shown("move", "--to", address, *here)
    assert "16 entries" in said and "ledger.db.moved" in said and "next: quietsum ledger verify" in said
    assert "16 entries" in shown("verify", *here)
    assert "Basel" in shown("show", *here)
    assert json.loads(shown("show", "--run", "first", *here, "--json"))["run"] == "first"
    shown("export", tmp_path / "out.jsonl", *here)
    assert verify_export(tmp_path / "out.jsonl").entries == 16
    shown("raise", "--party", "Basel", "--dataset", "heart", "--epsilon", 30, "--reason", "the board", *here)
    assert json.loads(shown("verify", *here, "--json"))["entries"] == 17
    tampered(address, "DELETE FROM {s}.entries WHERE sequence = 17")
    assert run("verify", *here).exit_code == 4


def test_the_command_moves_back(tmp_path: Path) -> None:
    sample(tmp_path / "ledger.db")
    here = ("--workspace", tmp_path)
    shown("move", "--to", server().schema(), *here)
    assert "sealed for good" in shown("move", "--to", "sqlite", *here)
    assert "16 entries" in shown("verify", *here)
    assert run("move", "--to", "sqlite", *here).exit_code == 2


def test_a_ledger_that_moved_away_does_not_look_alive(tmp_path: Path) -> None:
    path, _ = moved(tmp_path / "one")
    second(path, tmp_path / "two")
    here, there = ("--workspace", tmp_path / "one"), ("--workspace", tmp_path / "two")
    commands = (("show",), ("show", "--run", "first"), ("verify",))
    for command in commands:
        assert "goes on at" not in shown(*command, *there), "the control: it goes on there"
        assert json.loads(shown(*command, *there, "--json"))["moved_to"] is None
    shown("move", "--to", "sqlite", *here)
    for command in commands:
        said = " ".join(shown(*command, *there).split())
        assert f"moved This ledger goes on at {path} on {socket.gethostname()}. Here it ends" in said
        assert str(path) in json.loads(shown(*command, *there, "--json"))["moved_to"]
        assert "goes on at" not in shown(*command, *here), "the control: where it went it goes on"


def test_a_sealed_file_says_so(tmp_path: Path) -> None:
    path, _ = moved(tmp_path)
    url_path(path).unlink()
    path_after_move(path).rename(path)
    for command in ("show", "verify"):
        assert "This ledger goes on at postgresql://" in " ".join(shown(command, "--workspace", tmp_path).split())


def test_the_move_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    sample(tmp_path / "ledger.db")
    result = run("move", "--to", "postgresql://ward:hush-hush@db.example/books", "--workspace", tmp_path)
    assert result.exit_code == 2 and "must not hold a password" in " ".join(result.stderr.split())
    assert "hush" not in result.output + result.stderr
    values = json.loads(shown("move", "--to", server().schema(), "--workspace", tmp_path, "--json"))
    assert values["entries"] == 16 and values["kept"].endswith("ledger.db.moved")
