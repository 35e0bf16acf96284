"""A snapshot is a shortcut: with it, without it, with an older or a forged one, a ledger says the same."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from ledger.build import RECORD, STEP, charge, open_run, play, reserve, sample, tamper
from ledger.postgres import server
from quietsum import Budget, Gaussian, PrivacyUnit, Repeated
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Charge, Dataset, Ledger, MemoryStore, Terms
from quietsum.ledger.accounts import Accounts, RunState
from quietsum.ledger.chain import journal as journals
from quietsum.ledger.chain.high_water_mark import mark_path
from quietsum.ledger.chain.journal import Journal, system_clock
from quietsum.ledger.chain.keys import SigningKey, key_path
from quietsum.ledger.chain.packing import APART, REMADE, CannotPack, Lazy, pack, unpack
from quietsum.ledger.chain.snapshots import Snapshot, SnapshotFile, snapshot_path
from quietsum.ledger.chain.verify import verify_file
from quietsum.ledger.chain.witnesses import Testimony as Told
from quietsum.ledger.state import State
from quietsum.ledger.stores.location import write_url
from quietsum.ledger.stores.protocol import Row, read_row

CLIENT = PrivacyUnit.CLIENT


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "EVERY", 1)


# ------------------------------------------------------------------------------------- the same to the last field


def seen(value: Any) -> Any:
    """Everything that can be reached from ``value``, in plain lists; nothing of the code that packs is used."""
    if isinstance(value, Mapping):
        return [[seen(key), seen(value[key])] for key in value]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(seen, value)]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if value is None or isinstance(value, str | int | float | bytes) or dataclasses.is_dataclass(value):
        return repr(value)
    slots = getattr(type(value), "__slots__", None) or vars(value)
    return [type(value).__name__, *([name, seen(getattr(value, name))] for name in sorted(slots) if name not in REMADE)]


def same(one: State, other: State) -> None:
    assert one.key is not None and other.key is not None and one.key.hex == other.key.hex
    assert seen(one) == seen(other)
    for state in (one, other):  # one object for one thing
        for book in state.accounts.books.values():
            for run, share in book.charged.items():
                assert state.accounts.runs[run].shares[book.party, book.unit] is share


def data(party: str, hybrid: bool) -> str:
    return f"{'clients' if hybrid else 'records'} of {party}"


class Players:
    """Acts by number, so that chance can choose them; what the ledger refuses is not done."""

    parties = ("Basel", "Bern", "Zürich")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.open, self.runs = ledger, [], 0  # type: tuple[Ledger, list[Any], int]
        self.others = [Ledger.begin(MemoryStore(), SigningKey.generate()) for _ in range(2)]

    def charges(self, rounds: int, count: int, hybrid: bool) -> list[Charge]:
        found = []
        for party in self.parties[:count]:
            found.append(charge(rounds, party=party, dataset=data(party, hybrid), failure=rounds * 1e-12))
            if hybrid:
                event = Repeated(times=rounds, event=Gaussian(noise_multiplier=30.0))
                found.append(Charge(party=party, dataset=data(party, hybrid), unit=CLIENT, event=event))
        return found

    def act(self, kind: int, a: int, b: int) -> None:
        run, count, hybrid = f"run {a}", 1 + a % 3, a % 2 == 1
        seen = {f"site {b}": Told(public_key=o.identity.public_key, head=o.head) for o in self.others[b % 2 :]}
        match kind:
            case 0:
                enrolled = (CLIENT,) if b == 3 and hybrid else None
                limits = (Budget(epsilon=9.0, delta=1e-5), Budget(epsilon=9.0, delta=1e-5, unit=CLIENT))
                self.ledger.open_run(
                    run, plan={"federation": {"rounds": 4}, "run": run},
                    terms=Terms(limits=limits[: 1 + hybrid], enrolled=enrolled),
                    planned=self.charges(4, count, hybrid),
                    datasets=[
                        Dataset(party=p, dataset=data(p, hybrid), size=9, public="made up" if b == 2 else "")
                        for p in self.parties[:count]
                    ],
                    lifetimes=(Budget(epsilon=50.0, delta=1e-5), Budget(epsilon=50.0, delta=1e-5, unit=CLIENT)),
                )  # fmt: skip
            case 1 | 2 | 3:
                attempt = self.ledger.next_attempt(run, b)
                told = seen if kind == 3 else None
                self.open.append(self.ledger.reserve(run, b, attempt, self.charges(1, count, hybrid), seen=told))
            case 4:
                self.ledger.refund(self.open[-1 - b % len(self.open)], self.parties[a % 3], "no")
            case 5 | 6:
                receipt = self.open.pop(b % len(self.open))
                self.ledger.commit(receipt, seen=seen if kind == 6 else None)
            case 7:
                self.ledger.raise_budget(
                    party=self.parties[a % 3], dataset=data(self.parties[a % 3], hybrid), epsilon=50.0 + b, delta=1e-5,
                    reason="more", unit=CLIENT if b % 2 else RECORD,
                )  # fmt: skip
            case 8:
                who = self.parties[a % 3]
                self.ledger.declare_public(party=who, dataset=data(who, hybrid), reason=f"because {b}")
            case 9:
                self.others[b % 2].declare_public(party="x", dataset="y", reason=str(a))
                self.ledger.witness(run, seen)

    def play(self, acts: list[tuple[int, int, int]]) -> None:
        for act in acts:
            try:
                self.act(*act)
            except (QuietsumError, ZeroDivisionError, IndexError):
                continue


ACTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 3)), max_size=30)
OPENED = [(0, a, 0) for a in (0, 1, 2)]


def replayed(ledger: Ledger) -> State:
    return Ledger.on(ledger._journal.store, None)._journal.state


@settings(max_examples=60)
@given(before=ACTS, after=ACTS)
def test_snapshot_and_tail_say_what_all_entries_say(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    key = SigningKey.generate()
    ledger = Ledger.begin(MemoryStore(), key)
    players = Players(ledger)
    players.play(OPENED + before)
    found = Snapshot.from_bytes(Snapshot.of(ledger._journal.state, key).to_bytes())
    assert found.is_signed_by(key.public)
    same(found.state(key.public), replayed(ledger))
    restored = Journal(ledger._journal.store, key, system_clock, None, Kept(found))
    assert isinstance(restored.state.accounts.runs, Lazy)
    players.play(after)
    restored.follow()
    again = unpack(pack(restored.state))  # with pieces that were read, and pieces that were not
    again.key = key.public
    same(restored.state, replayed(ledger))
    same(again, replayed(ledger))
    going_on = Ledger(restored)
    Players(going_on).play(after)  # the gates stand where they stood
    same(restored.state, replayed(going_on))


class Kept(SnapshotFile):  # type: ignore[misc]
    """A snapshot in memory."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot

    def read(self) -> Snapshot | None:
        return self.snapshot

    def write(self, state: State, key: SigningKey) -> bool:
        self.snapshot = Snapshot.of(state, key)
        return True


def test_histories_reach_every_kind_of_entry() -> None:
    """The control of the test above: what is compared is not empty."""
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    acts = [(1, 0, 1), (4, 0, 0), (6, 0, 0), (3, 2, 1), (7, 1, 1), (8, 1, 1), (9, 0, 1)]
    Players(ledger).play([*OPENED, *acts])
    kinds = {entry.kind.value for entry in ledger.entries()}
    assert kinds >= {"genesis", "run", "budget", "public", "reserve", "refund", "commit", "witness"}


def test_every_field_is_packed_or_named_as_left_out() -> None:
    """A field that somebody adds is packed without anybody's doing; one that has no form is refused."""
    assert vars(State()).keys() >= REMADE
    assert vars(Accounts()).keys() >= APART
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    open_run(ledger)
    play(ledger)
    state = ledger._journal.state
    state.added = {"a": (1, 2.5, float("inf"), [frozenset({RECORD})])}  # type: ignore[attr-defined]
    state.accounts.added = (Budget(epsilon=1.0, delta=1e-5), STEP)  # type: ignore[attr-defined]
    found = unpack(pack(state))
    assert found.added == state.added and found.accounts.added == state.accounts.added  # type: ignore[attr-defined]
    state.accounts.added = object()  # type: ignore[attr-defined]
    with pytest.raises(CannotPack):
        pack(state)


def test_a_share_that_is_not_its_runs_own_is_refused() -> None:
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    open_run(ledger)
    play(ledger)
    (book,) = ledger._journal.state.accounts.books.values()
    (run,) = book.charged
    book.charged[run] = unpack(pack(ledger._journal.state)).accounts.runs[run].shares["Basel", RECORD]
    with pytest.raises(CannotPack, match="not the run's own"):
        pack(ledger._journal.state)


def test_pieces_are_read_when_they_are_asked_for() -> None:
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    for number in range(5):
        open_run(ledger, f"run {number}", dataset=f"data {number}")
    accounts = unpack(pack(ledger._journal.state)).accounts
    runs, books = accounts.runs, accounts.books
    assert isinstance(runs, Lazy) and isinstance(books, Lazy)
    assert isinstance(runs["run 3"], RunState) and runs["run 3"] is runs["run 3"]
    copy = books.copy()
    key = ("Basel", "data 3", RECORD)
    assert copy[key] is books[key]
    assert [name for name in runs if runs.unread(name) is None] == ["run 3"]
    del copy[key]
    assert key in books and len(copy) == 4 and list(books) == list(ledger._journal.state.accounts.books)


# --------------------------------------------------------------------------------------------------- on disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = sample(tmp_path / "ledger.db")
    Ledger.open(path).close()
    assert snapshot_path(path).exists()
    return path


def state_of(path: Path) -> State:
    """By all entries, without the snapshot."""
    with Ledger.open(path, read_only=True) as ledger:
        return replayed(ledger)


def used(path: Path) -> bool:
    """Whether opening takes the snapshot; the state is the right one either way."""
    with Ledger.open(path, read_only=True) as ledger:
        same(ledger._journal.state, replayed(ledger))
        return isinstance(ledger._journal.state.accounts.runs, Lazy)


def test_a_snapshot_is_for_its_owner_only_and_used(path: Path) -> None:
    assert snapshot_path(path).stat().st_mode & 0o777 == 0o600
    assert used(path)


def test_with_a_snapshot_few_entries_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger, rounds=60, limit=50.0, lifetime=90.0)
        play(ledger, rounds=range(1, 51))
    from quietsum.ledger.stores import sqlite

    read: list[int] = []

    def counted(values: Sequence[Any], at: int) -> Row:
        read.append(at)
        return read_row(values, at)

    monkeypatch.setattr(sqlite, "read_row", counted)
    Ledger.open(path).close()
    assert len(read) < 10
    snapshot_path(path).unlink()
    read.clear()
    Ledger.open(path, read_only=True).close()
    assert len(read) > 100  # the control


def damages(text: bytes) -> Iterator[tuple[str, bytes]]:
    """What may lie there instead."""
    yield "empty", b""
    yield "cut", text[: len(text) // 2]
    yield "longer", text + b" "
    yield "garbage", os.urandom(500)
    yield "no header", text.partition(b"\n")[2]
    yield "deep", b"[" * 100_000 + b"\n"
    line, _, data = text.partition(b"\n")
    about = json.loads(line)
    for name, value in (
        ("sequence", about["sequence"] - 1), ("sequence", about["sequence"] + 1), ("sequence", 10**40),
        ("sequence", "16"), ("hash", "0" * 64), ("ledger", "0" * 32), ("layout", "0" * 32), ("signature", "00" * 64),
        ("signature", 7), ("signature", ""), ("more", 1),
    ):  # fmt: skip
        yield f"{name} {value}", json.dumps({**about, name: value}).encode() + b"\n" + data
    for word, other in ((b'"plans"', b'"plan"'), (b"0.1", b"0.2"), (b"Basel", b"Bezel"), (b"50", b"51")):
        if word in data:
            yield f"{word!r}", line + b"\n" + data.replace(word, other)


def test_any_other_snapshot_is_ignored(path: Path) -> None:
    text = snapshot_path(path).read_bytes()
    count = 0
    for name, damaged in damages(text):
        assert damaged != text, name
        snapshot_path(path).write_bytes(damaged)
        assert not used(path), name
        verify_file(path)
        count += 1
    assert count > 15
    snapshot_path(path).write_bytes(text)
    assert used(path)  # the control


def test_no_flipped_bit_of_a_snapshot_changes_what_a_ledger_says(path: Path) -> None:
    text = snapshot_path(path).read_bytes()
    for place in range(0, len(text), 37):
        changed = bytearray(text)
        changed[place] ^= 1 << place % 8
        snapshot_path(path).write_bytes(bytes(changed))
        assert not used(path), place


def test_a_folder_in_its_place_and_a_missing_one_are_fine(path: Path) -> None:
    snapshot_path(path).unlink()
    assert not used(path)
    snapshot_path(path).mkdir()
    assert not used(path)
    with Ledger.open(path) as ledger:
        play(ledger, "second", rounds=(3,))


def test_a_snapshot_of_another_ledger_is_ignored(path: Path, tmp_path: Path) -> None:
    other = sample(tmp_path / "other" / "ledger.db")
    Ledger.open(other).close()
    shutil.copy(snapshot_path(other), snapshot_path(path))
    assert not used(path)


def test_an_older_snapshot_leads_to_the_same_state(path: Path) -> None:
    older = [snapshot_path(path).read_bytes()]
    for number in (3, 4):
        with Ledger.open(path) as ledger:
            play(ledger, "second", rounds=(number,))
        older.append(snapshot_path(path).read_bytes())
    assert len(set(older)) == 3
    for text in older:
        snapshot_path(path).write_bytes(text)
        assert used(path)
        with Ledger.open(path, read_only=True) as ledger:
            assert ledger.head.sequence == 20


def test_a_snapshot_of_a_chain_that_was_rolled_back_or_forked_is_ignored(path: Path, tmp_path: Path) -> None:
    """A tail that was cut off does not come back by a snapshot, and what was cut is found by the mark as before."""
    for name in ("ledger.db", "ledger.db.key"):
        shutil.copy(path.with_name(name), tmp_path / f"old-{name}")
    with Ledger.open(path) as ledger:
        play(ledger, "second", rounds=(3, 4))
    newer = snapshot_path(path).read_bytes()
    for beside in ("-wal", "-shm"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    shutil.copy(tmp_path / "old-ledger.db", path)
    with pytest.raises(LedgerBroken, match="the tail was cut off"):
        Ledger.open(path, read_only=True)
    mark_path(path).unlink()
    assert not used(path)  # the snapshot is of entries that are not there
    with Ledger.open(path) as ledger:  # the old copy goes on: a fork
        open_run(ledger, "third", dataset="other")
        play(ledger, "third", rounds=(1, 2), dataset="other")
        assert ledger.head.sequence > 20
    snapshot_path(path).write_bytes(newer)
    assert not used(path)


def test_somebody_without_the_key_cannot_make_one(path: Path) -> None:
    """A forged state, signed with another key, in all the ways it can be put together."""
    with Ledger.open(path, read_only=True) as ledger:
        state = replayed(ledger)
    state.accounts.runs["first"].shares["Basel", RECORD].tally.leaves.clear()
    for key in (SigningKey.generate(), SigningKey.generate()):
        forged = Snapshot.of(state, key)
        snapshot_path(path).write_bytes(forged.to_bytes())
        assert not used(path)


def test_verify_does_not_look_at_a_snapshot(path: Path) -> None:
    """One that was signed with the key over a false state: opening believes it, verify finds every entry in order."""
    from quietsum.ledger.chain.keys import load_key

    honest = verify_file(path)
    with Ledger.open(path) as ledger:
        public = ledger.identity.public_key
        state = replayed(ledger)
    state.accounts.runs["first"].committed = 99
    SnapshotFile(path).write(state, load_key(path, public))
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.runs()[0].committed == 99  # the control: this snapshot is read
        assert dataclasses.replace(ledger.verify(), moved_to=None) == honest
    assert verify_file(path) == honest


def test_an_entry_that_was_changed_before_the_snapshot_decides_nothing_and_is_found_by_verify(path: Path) -> None:
    right = state_of(path)
    tamper(path, "UPDATE entries SET body = replace(body, '\"times\":5', '\"times\":1') WHERE sequence = 5")
    with Ledger.open(path, read_only=True) as ledger:
        same(ledger._journal.state, right)
        with pytest.raises(LedgerBroken) as broken:
            ledger.verify()
    assert broken.value.at == 5


def test_the_entry_at_a_snapshot_and_those_behind_it_are_checked(path: Path) -> None:
    with Ledger.open(path, read_only=True) as ledger:
        last = ledger.head.sequence
    tamper(path, f"UPDATE entries SET body = replace(body, '\"round\":2', '\"round\":3') WHERE sequence = {last}")
    with pytest.raises(LedgerBroken) as broken:
        Ledger.open(path, read_only=True)
    assert broken.value.at == last


def test_readers_write_none_and_writers_only_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "EVERY", 20)
    path = sample(tmp_path / "ledger.db")  # 16 entries
    for _ in range(2):
        Ledger.open(path).close()
        Ledger.open(path, read_only=True).close()
    assert not snapshot_path(path).exists()
    with Ledger.open(path) as ledger:
        play(ledger, "second", rounds=(3, 4))  # 20 by now
        assert not snapshot_path(path).exists()  # never in the middle of things
    assert snapshot_path(path).exists()
    snapshot_path(path).unlink()
    before = {file.name for file in tmp_path.iterdir()}
    with Ledger.open(path, read_only=True):
        pass
    assert "ledger.db.snapshot" not in {file.name for file in tmp_path.iterdir()} | before


@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), MemoryError(), CannotPack("x")], ids=repr)
def test_a_snapshot_that_cannot_be_written_costs_a_warning(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise problem

    before = snapshot_path(path).read_bytes()
    monkeypatch.setattr(os, "replace", fail)
    with caplog.at_level(logging.WARNING), Ledger.open(path) as ledger:
        ledger.commit(reserve(ledger, "second", 3))
    assert "takes longer" in caplog.text
    assert snapshot_path(path).read_bytes() == before and not list(path.parent.glob("*.part"))
    assert used(path)


def test_a_shared_ledger_has_its_snapshot_beside_the_key(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    write_url(path, server().schema())
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger)
        play(ledger)
    assert snapshot_path(path).exists() and key_path(path).exists()
    assert used(path)
    snapshot_path(path).unlink()
    assert not used(path)
