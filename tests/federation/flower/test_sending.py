"""A reply on a line that breaks: announced once, pushed until it is there, and given up when nobody wants it."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from quietsum.federation.flower import node as nodes
from quietsum.federation.flower.flwr_calls import CallRefused, NotStored, Unreachable
from quietsum.federation.flower.parcel import CHUNK, INLINE, Parcel, cut


class BrokenEnd:
    """A SuperLink's end whose ``faults`` come first, one a call; then calls succeed."""

    def __init__(self, *faults: Exception | None) -> None:
        self.faults, self.announced, self.pushed, self.stored = list(faults), 0, 0, set[str]()
        self.parcel: Parcel | None = None

    def _call(self) -> None:
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault

    def announce(self, letter: Any, parcel: Parcel, *, problem: str = "") -> tuple[frozenset[str], str]:
        self._call()
        self.announced, self.parcel = self.announced + 1, parcel
        return frozenset((*parcel.chunks, parcel.root)), "the first session"

    def push(self, letter: Any, session: str, name: str, deflated: bytes) -> None:
        assert session == "the first session"
        self.pushed += 1
        self._call()
        self.stored.add(name)


def sent(end: BrokenEnd, monkeypatch: pytest.MonkeyPatch) -> Parcel:
    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None))
    node = nodes._Node(end, end, lambda content: content, "nowhere:1", threading.Event(), 10**9)  # type: ignore[arg-type]
    parcel = cut(bytes(range(256)) * ((INLINE + CHUNK) // 256 + 1))
    node._reply(SimpleNamespace(), parcel, time.monotonic() + 600)  # type: ignore[arg-type]
    return parcel


def test_a_push_that_breaks_is_made_again_without_a_second_announcement(monkeypatch: pytest.MonkeyPatch) -> None:
    end = BrokenEnd(None, None, Unreachable("broken"), Unreachable("broken"))
    parcel = sent(end, monkeypatch)
    assert end.announced == 1 and end.stored == {*parcel.chunks, parcel.root}


def test_an_announcement_that_breaks_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    end = BrokenEnd(Unreachable("broken"))
    parcel = sent(end, monkeypatch)
    assert end.announced == 1 and end.stored == {*parcel.chunks, parcel.root}


def test_a_site_is_done_where_all_was_fetched_while_the_last_answer_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    end = BrokenEnd(None, NotStored("fetched and forgotten"))
    sent(end, monkeypatch)
    assert end.announced == 2 and end.pushed == 1


def test_a_reply_that_nobody_wants_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    end = BrokenEnd(None, NotStored("forgotten"), CallRefused(403, 0, "no message waits", 0.0))
    sent(end, monkeypatch)
    assert end.announced == 1 and end.pushed == 1
