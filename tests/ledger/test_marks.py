"""The high-water mark: yesterday's ledger is found without a run folder, whoever wrote the newest head."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from ledger.build import open_run, play, reserve, sample, tamper
from quietsum.errors import LedgerBroken
from quietsum.ledger import Head, Ledger
from quietsum.ledger.chain.high_water_mark import Mark, mark_path
from quietsum.ledger.chain.keys import key_path
from quietsum.ledger.chain.verify import verify_file


def marked(path: Path) -> Head:
    return Head.from_dict(json.loads(mark_path(path).read_text()))


def test_after_every_act_the_mark_is_the_newest_head(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        assert marked(path) == ledger.head
        open_run(ledger)
        assert marked(path) == ledger.head
        receipt = reserve(ledger)
        assert marked(path) == ledger.head == receipt.head
        ledger.refund(receipt, "Basel", "refused")
        assert marked(path) == ledger.head
        ledger.commit(receipt)
        ledger.raise_budget(party="Basel", dataset="heart", epsilon=30.0, reason="board")
        ledger.declare_public(party="Basel", dataset="heart", reason="released")
        assert marked(path) == ledger.head
        assert ledger.verify().marked
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ledger.db", "ledger.db.head", "ledger.db.key"]


def roll_back(path: Path) -> Head:
    """A round, then the ledger of before: only the SQLite file is put back."""
    yesterday = path.with_name("yesterday")
    shutil.copy(path, yesterday)
    with Ledger.open(path) as ledger:
        play(ledger, "second", rounds=(7,))
        head = ledger.head
    shutil.copy(yesterday, path)
    return head


def test_yesterdays_ledger_is_found_where_there_is_no_other_anchor(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    head = roll_back(path)
    for options in ({}, {"read_only": True}, {"create": True}):
        with pytest.raises(LedgerBroken, match="older copy") as broken:
            Ledger.open(path, **options)  # type: ignore[arg-type]
        assert broken.value.at == head.sequence and "restore the newest copy" in broken.value.remedy
    with pytest.raises(LedgerBroken, match="older copy"):
        verify_file(path)
    mark_path(path).unlink()  # the control: without the mark nothing is left to tell
    assert not verify_file(path).marked
    with Ledger.open(path) as ledger:
        assert marked(path) == ledger.head != head


def test_a_ledger_that_is_cut_while_open_is_found_by_verify(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        tamper(path, "DELETE FROM entries WHERE sequence > 14")
        with pytest.raises(LedgerBroken, match="cut off"):
            ledger.verify()


def test_the_mark_of_another_ledger_is_refused(tmp_path: Path) -> None:
    path, other = sample(tmp_path / "ledger.db"), sample(tmp_path / "other" / "ledger.db")
    kept = mark_path(path).read_bytes()
    shutil.copy(mark_path(other), mark_path(path))
    with pytest.raises(LedgerBroken, match="head of another one"):
        Ledger.open(path)
    with pytest.raises(LedgerBroken, match="another ledger"):
        verify_file(path)
    mark_path(path).write_bytes(kept)
    Ledger.open(path).close()


def test_a_ledger_is_not_begun_anew_beside_the_mark_of_one_that_is_gone(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    path.unlink()
    key_path(path).unlink()
    with pytest.raises(LedgerBroken, match="would forget what was spent"):
        Ledger.open(path, create=True)
    assert not path.exists()
    mark_path(path).unlink()
    Ledger.open(path, create=True).close()


def test_a_damaged_or_forged_mark_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    values = marked(path).to_dict()
    for text in ("hello", "[1]", "{}", json.dumps({**values, "hash": 1}), "\xff"):
        mark_path(path).write_text(text, encoding="latin-1")
        with pytest.raises(LedgerBroken, match="is no head") as broken:
            Ledger.open(path)
        assert "--anchor" in broken.value.remedy
    mark_path(path).write_text(json.dumps({**values, "sequence": 99, "signature": "0" * 128}))
    with pytest.raises(LedgerBroken, match="did not sign its high-water mark"):
        Ledger.open(path)
    mark_path(path).write_text(json.dumps(values))
    Ledger.open(path).close()


@pytest.mark.parametrize("text", [b"", b"\0" * 4096])
def test_what_a_power_cut_leaves_of_a_mark_is_no_mark(tmp_path: Path, text: bytes) -> None:
    path = sample(tmp_path / "ledger.db")
    mark_path(path).write_bytes(text)
    with Ledger.open(path, read_only=True) as ledger:
        assert not ledger.verify().marked
    with Ledger.open(path) as ledger:
        assert marked(path) == ledger.head


def test_a_mark_that_lags_behind_after_a_crash_is_fine_and_catches_up(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    older = mark_path(path).read_bytes()
    with Ledger.open(path) as ledger:
        reserve(ledger, "second", 9)
    mark_path(path).write_bytes(older)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.verify().marked
    with Ledger.open(path) as ledger:
        assert marked(path) == ledger.head


def test_a_slower_writer_does_not_set_the_mark_back(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        older = ledger.head
        reserve(ledger, "second", 9)
        newer = ledger.head
    Mark(path).advance(older)
    assert marked(path) == newer


def test_the_control_without_its_lock_a_slower_writer_would_set_the_mark_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the slower writer's look and its replacing the quicker one comes through."""
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        older = reserve(ledger, "second", 9).head
        newer = reserve(ledger, "second", 10).head
    honest = os.replace

    def interrupted(old: Any, new: Any) -> None:
        monkeypatch.setattr(os, "replace", honest)
        slow = Path(old).read_bytes()
        Mark(path).advance(newer)
        Path(old).write_bytes(slow)
        honest(old, new)

    mark_path(path).unlink()
    monkeypatch.setattr(Mark, "_alone", lambda self: contextlib.nullcontext())
    monkeypatch.setattr(os, "replace", interrupted)
    Mark(path).advance(older)
    assert marked(path) == older


def test_writers_at_once_leave_the_newest_of_their_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each looks at the mark and replaces it as one act; with a pause in between that is put to the test."""
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        for number in range(9, 17):
            reserve(ledger, "second", number) if number < 11 else ledger.declare_public(
                party="Basel", dataset="heart", reason=f"{number}"
            )
        rows = list(ledger.entries())
        heads = [
            Head(ledger=ledger.identity.ledger, sequence=row.sequence, hash=row.hash, signature=row.signature)
            for row in rows[-8:]
        ]
    honest, started = os.replace, threading.Barrier(len(heads))

    def slow(old: Any, new: Any) -> None:
        threading.Event().wait(0.002)
        honest(old, new)

    def advance(head: Head) -> None:
        started.wait()
        Mark(path).advance(head)

    monkeypatch.setattr(os, "replace", slow)
    mark_path(path).unlink()
    threads = [threading.Thread(target=advance, args=(head,)) for head in reversed(heads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert marked(path) == heads[-1]


def test_a_mark_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry is on disk already; the older mark stays, and somebody is told."""
    path = sample(tmp_path / "ledger.db")
    older = marked(path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with Ledger.open(path) as ledger:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            receipt = reserve(ledger, "second", 9)
        assert marked(path) == older
        assert "high-water mark" in caplog.text
        assert sorted(file.name for file in tmp_path.iterdir() if "new" in file.name) == []
        ledger.commit(receipt)
        assert marked(path) == ledger.head
