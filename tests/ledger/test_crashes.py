"""Killed at every step of every act: the ledger never shows less than what was promised, and always opens again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.build import charge, open_run, play, reserve
from quietsum import failpoints
from quietsum.ledger import Ledger
from quietsum.ledger.chain.keys import key_path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

KILLED = 9


def killed_at(number: int, work: Callable[[], None]) -> tuple[bool, list[str]]:
    """Run ``work`` in a forked child that dies at the n-th place; whether it died, and the places it reached."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        seen = 0

        def hook(place: str) -> None:
            nonlocal seen
            os.write(writer, f"{place}\n".encode())
            seen += 1
            if seen == number:
                os._exit(KILLED)

        failpoints.install(hook)
        try:
            work()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        places = pipe.read().split()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), places
    return code == KILLED, places


def session(path: Path) -> None:
    """Everything that a run does to its ledger."""
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger, parties=("Basel", "Bern"), rounds=40, limit=9.0)
        for number in (1, 2):
            receipt = ledger.reserve(
                "first", number, ledger.next_attempt("first", number), [charge(), charge(party="Bern")]
            )
            os.close(os.open(path.with_name(f"sent-{number}"), os.O_CREAT | os.O_WRONLY))  # a party is asked
            if number == 2:
                ledger.refund(receipt, "Bern", "refused")
            ledger.commit(receipt)
            os.close(os.open(path.with_name(f"left-{number}"), os.O_CREAT | os.O_WRONLY))  # the model leaves


def test_a_kill_at_every_step_never_loses_what_was_sent(tmp_path: Path) -> None:
    number = 0
    reached: list[Any] = []
    while True:
        number += 1
        path = tmp_path / str(number) / "ledger.db"
        path.parent.mkdir()
        died, reached = killed_at(number, lambda path=path: session(path))  # type: ignore[misc]
        with Ledger.open(path, create=True) as ledger:
            ledger.verify()
            attempts = {run.run: run.attempts for run in ledger.runs()}.get("first", 0)
            committed = {run.run: run.committed for run in ledger.runs()}.get("first", 0)
            assert attempts >= sum(path.with_name(f"sent-{n}").exists() for n in (1, 2)), reached
            assert committed >= sum(path.with_name(f"left-{n}").exists() for n in (1, 2)), reached
            head = ledger.head
        session(path)  # and it goes on from there
        with Ledger.open(path) as ledger:
            ledger.verify([head])
        if not died:
            break
    acts = {place.split(":")[0] for place in reached}
    assert acts == {"ledger.create", "ledger.open_run", "ledger.reserve", "ledger.refund", "ledger.commit"}
    steps = {place.split(":")[1] for place in reached}
    assert {"before-append", "after-append", "after-sync"} <= steps
    assert number == len(reached) + 1 > 15


def test_before_its_sync_a_reservation_is_not_there_and_after_it_it_is(tmp_path: Path) -> None:
    """The places lie where their names say."""
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)

    def one() -> None:
        with Ledger.open(path) as ledger:
            reserve(ledger)

    expected = {"before-append": 0, "after-append": 0, "after-sync": 1}
    for number, (place, attempts) in enumerate(expected.items(), 1):
        died, reached = killed_at(number, one)
        assert died and reached[-1] == f"ledger.reserve:{place}"
        with Ledger.open(path) as ledger:
            assert ledger.runs()[0].attempts == attempts, place


def test_a_crash_while_a_ledger_begins_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    for number in range(1, 8):
        path = tmp_path / str(number) / "ledger.db"
        killed_at(number, lambda path=path: Ledger.open(path, create=True).close())  # type: ignore[misc]
        with Ledger.open(path, create=True) as ledger:
            play_ok(ledger)
        assert key_path(path).exists()
        assert not path.with_name("ledger.db.key.new").exists()


def play_ok(ledger: Ledger) -> None:
    open_run(ledger)
    play(ledger)
    ledger.verify()
