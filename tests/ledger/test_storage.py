"""Files, keys, full disks, locks and forks: errors that teach, and nothing half-written."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ledger.build import open_run, play, reserve, sample
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Ledger, StoreFailed
from quietsum.ledger.chain.keys import SigningKey, key_path, load_key
from quietsum.ledger.stores.sqlite import APPLICATION, SqliteStore


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_ledger_makes_its_folder_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)
        files = sorted(file.name for file in path.parent.iterdir())
        assert files == ["ledger.db", "ledger.db-shm", "ledger.db-wal", "ledger.db.head", "ledger.db.key"]
        assert {mode(file) for file in path.parent.iterdir()} == {0o600}
        settings = {
            name: ledger._journal.store._run(f"PRAGMA {name}").fetchone()[0]  # type: ignore[attr-defined]
            for name in ("journal_mode", "synchronous", "application_id", "user_version")
        }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "application_id": APPLICATION, "user_version": 1}


def test_a_reopened_ledger_still_syncs_fully(tmp_path: Path) -> None:
    with Ledger.open(sample(tmp_path / "ledger.db")) as ledger:
        assert ledger._journal.store._run("PRAGMA synchronous").fetchone()[0] == 2  # type: ignore[attr-defined]


def pragmas(ledger: Ledger) -> dict[str, object]:
    store = ledger._journal.store
    assert isinstance(store, SqliteStore)
    names = ("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync")
    return {name: store._run(f"PRAGMA {name}").fetchone()[0] for name in names}


FULL = {"journal_mode": "wal", "synchronous": 2, "fullfsync": 1, "checkpoint_fullfsync": 1}


def test_a_copy_that_lost_its_log_gets_it_back(tmp_path: Path) -> None:
    """VACUUM INTO writes a file with a rollback journal, for which synchronous = FULL is not enough."""
    path, copy = sample(tmp_path / "ledger.db"), tmp_path / "copy.db"
    connection = sqlite3.connect(path)
    connection.execute(f"VACUUM INTO '{copy}'")
    connection.close()
    shutil.copy(key_path(path), key_path(copy))
    connection = sqlite3.connect(copy)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"  # the control
    connection.close()
    for one in (path, copy):
        with Ledger.open(one) as ledger:
            assert pragmas(ledger) == FULL


class NoLog(sqlite3.Connection):
    """A file system on which SQLite can keep no write-ahead log."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        return super().execute("PRAGMA journal_mode = DELETE" if "= WAL" in sql else sql, *values)


def test_where_there_can_be_no_log_the_journal_is_synced_with_its_folder(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path, read_only=True) as known:
        key = load_key(path, known.identity.public_key)
    with Ledger.on(SqliteStore(path, factory=NoLog), key) as ledger:
        assert pragmas(ledger) == {**FULL, "journal_mode": "delete", "synchronous": 3}
        play(ledger, "second", rounds=(3,))
        ledger.verify()


def test_a_missing_ledger_is_an_error_that_names_the_way(tmp_path: Path) -> None:
    with pytest.raises(QuietsumError, match="there is no ledger at"):
        Ledger.open(tmp_path / "ledger.db")
    with pytest.raises(QuietsumError, match="is a folder"):
        Ledger.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(QuietsumError, match="choose another folder"):
        Ledger.open(tmp_path / "file" / "ledger.db", create=True)


# --------------------------------------------------------------------------------------------------- keys


def test_a_deleted_ledger_whose_key_is_left_does_not_begin_again(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    path.unlink()
    with pytest.raises(LedgerBroken, match="would forget what was spent"):
        Ledger.open(path, create=True)
    assert not path.exists()
    path.touch()
    with pytest.raises(LedgerBroken, match="would forget what was spent"):
        Ledger.open(path, create=True)


def test_a_missing_foreign_readable_or_broken_key_is_a_clear_error(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    other = sample(tmp_path / "other" / "ledger.db")
    key = key_path(path)
    kept = key.read_bytes()
    Ledger.open(path).close()  # the control
    key.chmod(0o644)
    with pytest.raises(LedgerBroken, match="chmod 600"):
        Ledger.open(path)
    shutil.copy(key_path(other), key)
    with pytest.raises(LedgerBroken, match="another key"):
        Ledger.open(path)
    for text in (b"", b"hello", kept[:60], kept.replace(b"PRIVATE", b"PUBLIC")):
        key.write_bytes(text)
        with pytest.raises(LedgerBroken, match="no Ed25519 key"):
            Ledger.open(path)
    key.unlink()
    with pytest.raises(LedgerBroken, match="is missing"):
        Ledger.open(path)
    with Ledger.open(path, read_only=True) as ledger:
        ledger.verify()
        with pytest.raises(StoreFailed, match="reading only"):
            reserve(ledger, "second", 3)


def test_a_key_is_neither_printed_nor_pickled() -> None:
    key = SigningKey.generate()
    assert key.public.ledger in repr(key) and "PRIVATE" not in repr(key)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(key)


def test_the_key_file_is_a_plain_pem_that_other_tools_read(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    assert key_path(path).read_text().startswith("-----BEGIN PRIVATE KEY-----")
    with Ledger.open(path, read_only=True) as ledger:
        assert load_key(path, ledger.identity.public_key).public.hex == ledger.identity.public_key


# --------------------------------------------------------------------------------------------- read-only


def test_reading_changes_nothing(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    before = path.read_bytes()
    with Ledger.open(path, read_only=True) as ledger:
        ledger.verify()
        assert ledger.lifetime() and ledger.runs()
    assert path.read_bytes() == before


def test_a_copy_on_read_only_media_can_be_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite wants to make files beside a log's database; where nobody can write, nothing can change either."""
    path = sample(tmp_path / "media" / "ledger.db")
    path.parent.chmod(0o500)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    try:
        with Ledger.open(path, read_only=True) as ledger:
            ledger.verify()
            assert sorted(file.name for file in path.parent.iterdir()) == [
                "ledger.db",
                "ledger.db.head",
                "ledger.db.key",
            ]
    finally:
        path.parent.chmod(0o700)


# --------------------------------------------------------------------------------------------- full disk


class FullDisk(sqlite3.Connection):
    """A connection whose disk is full whenever ``full`` is set, at the statement that ``when`` names."""

    full = False
    when = "INSERT"

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if FullDisk.full and sql.startswith(FullDisk.when):
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(sql, *values)


@pytest.mark.parametrize("when", ["INSERT", "COMMIT"])
def test_a_full_disk_stops_the_round_before_anything_is_sent(tmp_path: Path, when: str) -> None:
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as known:
        key = load_key(path, known.identity.public_key)
    ledger = Ledger.on(SqliteStore(path, factory=FullDisk), key)
    before, spent = ledger.head, ledger.spending("second")
    FullDisk.full, FullDisk.when = True, when
    try:
        with pytest.raises(StoreFailed, match="nothing was recorded, so nothing may be sent: free some space"):
            reserve(ledger, "second", 3)
        assert (ledger.head, ledger.spending("second")) == (before, spent)
    finally:
        FullDisk.full = False
    ledger.verify([before])
    ledger.commit(reserve(ledger, "second", 3))
    ledger.verify([before, ledger.head])
    ledger.close()


def test_a_really_full_database_keeps_everything_whole(tmp_path: Path) -> None:
    """SQLite's own limit on pages: the same error as from a disk, from SQLite itself."""
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        store = ledger._journal.store
        assert isinstance(store, SqliteStore)
        store._run(f"PRAGMA max_page_count = {store._pragma('page_count') + 1}")
        for index in range(2000):
            before = ledger.head
            try:
                ledger.raise_budget(party="Basel", dataset="heart", epsilon=25.0 + index, reason="x" * 500)
            except StoreFailed as error:
                assert "free some space" in str(error)
                break
        else:
            raise AssertionError("the database never filled up")
        assert ledger.head == before
        ledger.verify([before])
        store._run("PRAGMA max_page_count = 1000000")
        ledger.raise_budget(party="Basel", dataset="heart", epsilon=9000.0, reason="later")
        ledger.verify([before])


CHILD = """
import resource, sys
from ledger.build import open_run, play
from quietsum.errors import QuietsumError
from quietsum.ledger import Ledger
path = sys.argv[1]
with Ledger.open(path, create=True) as ledger:
    open_run(ledger, rounds=4000, limit=90.0, lifetime=90.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        play(ledger, rounds=range(1, 4000))
    except QuietsumError as error:
        assert "nothing was recorded" in str(error), error
        before = ledger.head
        assert ledger.verify([before]).head == before
        print("stopped", before.sequence)
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_disk_that_fills_up_in_another_process_leaves_a_whole_ledger(tmp_path: Path) -> None:
    """The kernel refuses to let the log grow (RLIMIT_FSIZE); afterwards there is room again."""
    pytest.importorskip("resource")
    path = tmp_path / "ledger.db"
    result = python(CHILD, str(path))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("stopped"), result.stdout
    with Ledger.open(path) as ledger:
        assert ledger.verify().entries >= int(result.stdout.split()[1])
        attempts = {run.run: run.attempts for run in ledger.runs()}["first"]
        play(ledger, rounds=(attempts + 1,))
        ledger.verify([ledger.head])


# -------------------------------------------------------------------------------------- locks and forks


def test_a_writer_that_hangs_is_named_not_waited_for_forever(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    store = SqliteStore(path, patience=0.05)
    with pytest.raises(StoreFailed, match="another process has been writing"), store.transaction():
        pass
    holder.execute("ROLLBACK")
    with store.transaction():
        pass
    holder.close()
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_must_open_the_ledger_itself(tmp_path: Path) -> None:
    with Ledger.open(sample(tmp_path / "ledger.db")) as ledger:
        child = os.fork()
        if child == 0:
            try:
                reserve(ledger, "second", 3)
            except StoreFailed as error:
                os._exit(17 if "after a fork" in str(error) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        reserve(ledger, "second", 3)
        ledger.verify()
