"""Sync before send: a trace of system calls shows that a reservation is on disk before the first byte leaves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import os, sys
from ledger.build import open_run, reserve
from quietsum.ledger import Ledger
folder, synchronous = sys.argv[1], sys.argv[2]
ledger = Ledger.open(os.path.join(folder, "ledger.db"), create=True)
open_run(ledger)
if synchronous == "OFF":
    ledger._journal.store._run("PRAGMA synchronous = OFF")
network = os.open(os.path.join(folder, "network"), os.O_CREAT | os.O_WRONLY)
os.write(network, b"before the reservation")
receipt = reserve(ledger)
os.write(network, b"a request to a party")
ledger.commit(receipt)
os.write(network, b"the model leaves")
"""


def trace(folder: Path, synchronous: str) -> list[tuple[str, str]]:
    """(call, file) of every write and sync, in order."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    if subprocess.run([strace, "-o", os.devnull, "true"], capture_output=True).returncode != 0:
        pytest.skip("tracing is not permitted here")
    folder.mkdir()
    log = folder / "trace"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OPENBLAS_NUM_THREADS": "1"}
    calls = "trace=fdatasync,fsync,write,pwrite64,writev,pwritev,sendto,sendmsg"
    subprocess.run(
        [strace, "-f", "-y", "-e", calls, "-o", log, sys.executable, "-c", CHILD, str(folder), synchronous],
        env=environment,
        check=True,
        timeout=120,
    )
    found = []
    for line in log.read_text().splitlines():
        match = re.match(r"\d+\s+(\w+)\(\d+<([^>]*)>", line)
        if match and (match[2].startswith(str(folder.resolve())) or match[2].startswith(str(folder))):
            found.append((match[1], Path(match[2]).name))
    return found


def synced_before_each_send(calls: list[tuple[str, str]]) -> list[bool]:
    """For each message after the first: was the log written since the last message, and synced after that?"""
    verdicts: list[bool] = []
    written = synced = False
    messages = 0
    for call, file in calls:
        if file == "network":
            if messages:
                verdicts.append(written and synced)
            messages, written, synced = messages + 1, False, False
        elif file == "ledger.db-wal" and "write" in call:
            written, synced = True, False
        elif file == "ledger.db-wal" and call in ("fsync", "fdatasync"):
            synced = True
    return verdicts


def test_a_reservation_and_a_commit_are_synced_before_anything_is_sent(tmp_path: Path) -> None:
    calls = trace(tmp_path / "full", "FULL")
    assert synced_before_each_send(calls) == [True, True], calls


def test_the_check_fails_for_a_ledger_that_does_not_sync(tmp_path: Path) -> None:
    """The control: the same program with synchronous = OFF writes, and does not sync."""
    calls = trace(tmp_path / "off", "OFF")
    assert synced_before_each_send(calls) == [False, False], calls
    assert ("pwrite64", "ledger.db-wal") in calls
