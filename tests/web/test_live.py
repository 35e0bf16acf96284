"""News of a run as it goes on: one event for each change, an end, and no more streams than are worth it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from quietsum.web import live
from web.places import copy_old, look


def test_a_run_that_is_over_has_one_event_and_an_end(tmp_path: Path) -> None:
    with look(copy_old(tmp_path)) as client:
        answer = client.get("/runs/finished/live")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [part.split("\n", 1)[0] for part in answer.text.strip().split("\n\n")]
    assert events == ["event: round", "event: end"]
    assert all(line.startswith(("event: ", "data: ")) for line in answer.text.splitlines() if line)


def test_there_is_no_stream_of_a_run_that_is_none(tmp_path: Path) -> None:
    with look(copy_old(tmp_path)) as client:
        assert client.get("/runs/other/live").status_code == 404
        assert client.get("/runs/digits-20261118-170629-bfd5/live").status_code == 404


def test_a_round_that_ends_is_an_event_and_the_end_of_the_run_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.02)
    place = copy_old(tmp_path)
    folder = place / "runs" / "stopped"

    def go_on() -> None:
        time.sleep(0.3)
        database = sqlite3.connect(folder / "run.db")
        database.execute(
            "INSERT INTO rounds (round, attempt, epsilon_record, delta, finished) VALUES (77, 1, 0.77, 1e-5, 1)"
        )
        database.commit()
        database.close()
        time.sleep(0.3)
        os.close(handle)

    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as the process that runs it
    thread = threading.Thread(target=go_on)
    thread.start()
    with look(place) as client:
        page = client.get("/runs/stopped").text
        text = client.get("/runs/stopped/live").text
    thread.join()
    assert 'sse-connect="/runs/stopped/live"' in page and "running" in page
    assert text.count("event: round") == 3 and text.count("event: end") == 1
    first, second, third = text.split("event: round")[1:]
    assert 'data-spent="0.77"' not in first and 'data-spent="0.77"' in second
    assert "running" in second and "interrupted" in third


def test_a_stream_too_many_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST", 0)
    with look(copy_old(tmp_path)) as client:
        assert client.get("/runs/finished/live").status_code == 503


def test_a_part_that_cannot_be_read_is_an_event_that_says_so(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    (place / "runs" / "finished" / "run.db").write_bytes(b"nothing")
    with look(place) as client:
        text = client.get("/runs/finished/live").text
    assert "cannot be read" in text and str(tmp_path) not in text and "event: end" in text
