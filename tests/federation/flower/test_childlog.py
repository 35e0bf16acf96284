"""The log of a SuperLink: lines with a time, without chatter, and never longer than it may be."""

from __future__ import annotations

import errno
import io
import logging
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from quietsum.federation.flower.childlog import keep_short, speak_plainly


def test_a_short_log_stays_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    log.write_bytes(b"a line\n")
    assert not keep_short(log, most=7)
    assert log.read_bytes() == b"a line\n" and list(tmp_path.iterdir()) == [log]


def test_the_end_of_a_long_log_moves_beside_it_while_it_is_written(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    with log.open("ab", buffering=0) as child:  # as the child's standard error: opened once, appended to
        child.write(b"old\n" * 4 + b"new\n" * 2)
        assert keep_short(log, most=8)
        assert log.read_bytes() == b""
        child.write(b"later\n")
        assert log.read_bytes() == b"later\n"  # at the beginning, with no hole before it
        child.write(b"later still\n")
        assert keep_short(log, most=8)
    kept = tmp_path / "superlink.log.1"
    assert kept.read_bytes() == b"r still\n" and stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert sorted(file.name for file in tmp_path.iterdir()) == ["superlink.log", "superlink.log.1"]


def test_a_log_that_cannot_be_copied_stays_whole(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    log.write_bytes(b"a line\n")
    (tmp_path / "superlink.log.1").mkdir()
    with pytest.raises(OSError):
        keep_short(log, most=3)
    assert log.read_bytes() == b"a line\n" and not (tmp_path / "superlink.log.new").exists()


def test_on_a_full_disk_the_old_lines_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "superlink.log"
    log.write_bytes(b"a line\n")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert keep_short(log, most=3) and log.read_bytes() == b"" and list(tmp_path.iterdir()) == [log]


@pytest.fixture
def flower() -> Iterator[logging.Logger]:
    logger = logging.getLogger("a logger like Flower's")
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers[:] = []


def test_lines_have_a_time_and_no_colours_and_the_chatter_is_left_out(
    flower: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = io.StringIO()
    monkeypatch.setattr("sys.stderr", heard)
    flower.addHandler(logging.StreamHandler(coloured := io.StringIO()))
    speak_plainly([flower])
    flower.info("[Fleet.PushMessages] Push replies from node_id=%s", 7)
    flower.info("ControlServicer.ListRuns")
    flower.debug("[Fleet.PullMessages] node_id=%s", 7)
    flower.info("[Fleet.ActivateNode] Activated node_id=%s", 7)
    flower.warning("[Fleet.PushMessages] %s", "it went wrong")
    lines = heard.getvalue().splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "[Fleet.ActivateNode] Activated node_id=7",
        "[Fleet.PushMessages] it went wrong",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", line) for line in lines)
    assert coloured.getvalue() == ""
