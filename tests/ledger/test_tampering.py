"""Every way to falsify a ledger that we could think of is found, by the entry's number, beside an untouched control."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.build import charge, open_run, play, sample, tamper
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Head, Ledger, MemoryStore
from quietsum.ledger.chain.encoding import canonical, digest, entry_hash, head_message
from quietsum.ledger.chain.entries import NOTHING, Kind, make_row
from quietsum.ledger.chain.high_water_mark import mark_path
from quietsum.ledger.chain.keys import SigningKey, key_path, load_key
from quietsum.ledger.chain.verify import verify_rows
from quietsum.ledger.stores.protocol import Row
from quietsum.ledger.stores.sqlite import SqliteStore

ENTRIES = 16


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("ledger") / "ledger.db")


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A copy with its key, to be tampered with."""
    for one in (original, key_path(original)):
        shutil.copy(one, tmp_path)
    return tmp_path / "ledger.db"


def head_of(path: Path) -> Head:
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.head


def verify(path: Path, *anchors: Head, every_signature: bool = False) -> Any:
    """As ``quietsum ledger verify`` does."""
    with Ledger.open(path, read_only=True) as ledger:
        return ledger.verify(anchors, every_signature=every_signature)


def rows_of(path: Path) -> list[Row]:
    store = SqliteStore(path, read_only=True)
    rows = list(store.rows())
    store.close()
    return rows


def replace_rows(path: Path, rows: list[Row]) -> None:
    inserts = [("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(row)) for row in rows]
    tamper(path, "DELETE FROM entries", *inserts)


def rewritten(rows: list[Row], key: SigningKey, change: Callable[[Row], dict[str, Any] | None]) -> list[Row]:
    """The whole chain again with fresh hashes and signatures; ``change`` gives a row another body, None drops it."""
    made: list[Row] = []
    previous, name = NOTHING, key.public.ledger
    for row in rows:
        body = change(row)
        if body is None:
            continue
        if row.kind == "genesis":
            body = {**body, "ledger": name, "public_key": key.public.hex}
        fresh = make_row(
            ledger=name,
            previous=previous,
            sequence=len(made) + 1,
            kind=Kind(row.kind),
            body=body,
            time=row.time,
        )
        message = head_message(ledger=name, sequence=fresh.sequence, hash=fresh.hash)
        made.append(fresh._replace(signature=key.sign(message)))
        previous = fresh.hash
    return made


def bodies(row: Row) -> dict[str, Any]:
    return json.loads(row.body)


def test_the_untouched_ledger_verifies(path: Path) -> None:
    """The control of everything below."""
    head = head_of(path)
    found = verify(path, head, every_signature=True)
    assert (found.entries, found.runs, found.anchors, found.withheld) == (ENTRIES, 2, 1, 0)
    assert found.stated == 7 and found.signatures == ENTRIES + 1
    rows = rows_of(path)
    replace_rows(path, rewritten(rows, load_key(path, bodies(rows[0])["public_key"]), bodies))
    assert rows_of(path) == rows, "an honest rewrite with the same key changes nothing"
    assert verify(path, head).head == head


# ------------------------------------------------------------------------------------------- single rows


@pytest.mark.parametrize(
    ("change", "at"),
    [
        ("UPDATE entries SET body = replace(body, '2.0', '3.0') WHERE sequence = 7", 7),
        ("UPDATE entries SET body = replace(body, 'first', 'firsT') WHERE sequence = 4", 4),
        ("UPDATE entries SET time = '2020-01-01T00:00:00.000000Z' WHERE sequence = 8", 8),
        ("UPDATE entries SET kind = 'refund' WHERE sequence = 8", 8),
        ("UPDATE entries SET previous = hash WHERE sequence = 9", 9),
        ("UPDATE entries SET hash = previous WHERE sequence = 10", 10),
        ("UPDATE entries SET body = body || ' ' WHERE sequence = 12", 12),
        ("DELETE FROM entries WHERE sequence = 6", 6),
        ("DELETE FROM entries WHERE sequence = 1", 1),
        ("UPDATE entries SET sequence = 100 WHERE sequence = 16", 16),
    ],
)
def test_a_changed_row_is_named(path: Path, change: str, at: int) -> None:
    tamper(path, change)
    with pytest.raises(LedgerBroken) as broken:
        verify(path)
    assert broken.value.at == at
    assert broken.value.remedy


def test_opening_finds_a_changed_row_too(path: Path) -> None:
    tamper(path, "UPDATE entries SET body = replace(body, '2.0', '3.0') WHERE sequence = 7")
    with pytest.raises(LedgerBroken) as broken:
        Ledger.open(path)
    assert broken.value.at == 7


def test_swapped_rows_are_found(path: Path) -> None:
    tamper(
        path,
        "UPDATE entries SET sequence = 99 WHERE sequence = 6",
        "UPDATE entries SET sequence = 6 WHERE sequence = 8",
        "UPDATE entries SET sequence = 8 WHERE sequence = 99",
    )
    with pytest.raises(LedgerBroken) as broken:
        verify(path)
    assert broken.value.at == 6


def test_a_forged_signature_is_found_on_the_last_head_and_elsewhere_when_all_are_checked(path: Path) -> None:
    tamper(path, "UPDATE entries SET signature = replace(signature, '0', '1') WHERE sequence = 5")
    assert verify(path).signatures == 7, "genesis, three budgets, two runs and the last head"
    with pytest.raises(LedgerBroken, match="not signed") as broken:
        verify(path, every_signature=True)
    assert broken.value.at == 5
    tamper(path, f"UPDATE entries SET signature = '{'0' * 128}' WHERE sequence = {ENTRIES}")
    with pytest.raises(LedgerBroken, match="not signed") as broken:
        verify(path)
    assert broken.value.at == ENTRIES


@pytest.mark.parametrize("sequence", [1, 2, 4, 12, 13])
def test_the_signature_of_every_decision_is_checked(path: Path, sequence: int) -> None:
    """Genesis, budgets and runs; the control with a reservation stands above."""
    tamper(path, f"UPDATE entries SET signature = '{'0' * 128}' WHERE sequence = {sequence}")
    with pytest.raises(LedgerBroken, match="not signed") as broken:
        verify(path)
    assert broken.value.at == sequence


def test_the_signature_of_each_256th_entry_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger, rounds=200, limit=20.0)
        play(ledger, rounds=range(1, 129))
    for sequence, found in ((255, False), (256, True)):
        tamper(path, f"UPDATE entries SET signature = '{'0' * 128}' WHERE sequence = {sequence}")
        if found:
            with pytest.raises(LedgerBroken, match="not signed") as broken:
                verify(path)
            assert broken.value.at == sequence
        else:
            verify(path)


# ------------------------------------------------------------------- forged without the key, then laundered


def forged(rows: list[Row], change: Callable[[Row], dict[str, Any] | None]) -> list[Row]:
    """What somebody without the key can write: fresh hashes all the way, and signatures made of nothing."""
    made: list[Row] = []
    for row in rows:
        body = change(row)
        if body is None:
            continue
        if (
            body == bodies(row)
            and row.sequence == len(made) + 1
            and row.previous == (made[-1].hash if made else NOTHING)
        ):
            made.append(row)
            continue
        fresh = make_row(
            ledger=bodies(rows[0])["ledger"], previous=made[-1].hash, sequence=len(made) + 1,
            kind=Kind(row.kind), body=body, time=row.time,
        )  # fmt: skip
        made.append(fresh._replace(signature="0" * 128))
    return made


def a_large_budget(row: Row) -> dict[str, Any] | None:
    """The owner raised it to 900, nothing happened after that."""
    if row.sequence > 12:
        return None
    return {**bodies(row), "epsilon": 900.0} if row.sequence == 12 else bodies(row)


def test_nothing_is_appended_to_what_was_forged_without_the_key(path: Path) -> None:
    """An entry on top of it would sign it: the forgery would be laundered by the next honest act."""
    rows = rows_of(path)
    replace_rows(path, forged(rows, a_large_budget))
    for options in ({}, {"read_only": True}, {"create": True}):
        with pytest.raises(LedgerBroken, match="not signed") as broken:
            Ledger.open(path, **options)  # type: ignore[arg-type]
        assert broken.value.at == 12
    replace_rows(path, rows)
    with Ledger.open(path) as ledger:  # the control
        play(ledger, "second", rounds=(3,))


def test_nothing_is_appended_to_what_was_forged_while_the_ledger_was_open(path: Path) -> None:
    """Again and again: what was taken in before the forged signature was seen must not pass the second time."""
    with Ledger.open(path) as ledger:
        rows = rows_of(path)
        body = {**bodies(rows[11]), "epsilon": 900.0}
        row = make_row(
            ledger=ledger.identity.ledger, previous=rows[-1].hash, sequence=ENTRIES + 1, kind=Kind.BUDGET, body=body,
            time=rows[-1].time,
        )  # fmt: skip
        insert = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
        tamper(path, (insert, tuple(row._replace(signature=rows[-1].signature))))
        for _ in range(3):
            with pytest.raises(LedgerBroken, match="not signed") as broken:
                ledger.raise_budget(party="Basel", dataset="heart", epsilon=901.0, reason="on top")
            assert broken.value.at == ENTRIES + 1
        assert len(rows_of(path)) == ENTRIES + 1


def test_the_head_under_the_next_entry_keeps_its_signature(path: Path) -> None:
    with Ledger.open(path) as ledger:
        tamper(path, f"UPDATE entries SET signature = '{'0' * 128}' WHERE sequence = {ENTRIES}")
        with pytest.raises(LedgerBroken, match="cut or replaced"):
            ledger.declare_public(party="Basel", dataset="heart", reason="on top")


def test_the_control_a_journal_that_checks_no_signature_launders_the_forgery(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quietsum.ledger.state import State

    replace_rows(path, forged(rows_of(path), a_large_budget))
    with monkeypatch.context() as patch:
        patch.setattr(State, "require_signature", lambda *_: None)
        with Ledger.open(path) as ledger:
            ledger.commit(ledger.reserve("first", 4, 1, [charge(), charge(party="Bern")]))
    with Ledger.open(path) as ledger:
        assert max(book.budget.epsilon for book in ledger.lifetime() if book.budget) == 900.0
    with pytest.raises(LedgerBroken, match="not signed"):
        verify(path)  # it is a decision; as a reservation it would have passed


# ------------------------------------------------------------------------- what only an anchor can find


def test_a_cut_tail_verifies_by_itself_and_is_found_by_a_kept_head(path: Path) -> None:
    head = head_of(path)
    tamper(path, "DELETE FROM entries WHERE sequence > 12")
    verify(path)
    with pytest.raises(LedgerBroken, match="cut off") as broken:
        verify(path, head)
    assert broken.value.at == 13


def test_yesterdays_file_verifies_by_itself_and_is_found_by_a_kept_head(path: Path, tmp_path: Path) -> None:
    yesterday = tmp_path / "yesterday.db"
    shutil.copy(path, yesterday)
    with Ledger.open(path) as ledger:
        before = ledger.head
        play(ledger, "second", rounds=(3,))
        head = ledger.head
    shutil.copy(yesterday, path)
    with pytest.raises(LedgerBroken, match="older copy"):
        verify(path, before)
    mark_path(path).unlink()
    verify(path, before)
    with pytest.raises(LedgerBroken, match="older copy") as broken:
        verify(path, before, head)
    assert broken.value.at == ENTRIES + 1
    with Ledger.open(path) as ledger:
        assert ledger.contains(before) and not ledger.contains(head)


def without_the_last_reservation(row: Row) -> dict[str, Any] | None:
    """A cheaper history: the open reservation at the end never happened."""
    return None if row.sequence == ENTRIES else bodies(row)


def test_a_rewrite_with_fresh_hashes_and_the_same_key_is_found_by_a_kept_head(path: Path) -> None:
    head, rows = head_of(path), rows_of(path)
    with Ledger.open(path, read_only=True) as ledger:
        middle = Head(ledger=head.ledger, sequence=12, hash=rows[11].hash, signature=rows[11].signature)
        assert ledger.contains(middle)
    key = load_key(path, bodies(rows[0])["public_key"])

    def another_reason(row: Row) -> dict[str, Any]:
        body = bodies(row)
        return {**body, "reason": "nobody knows"} if row.sequence == 12 else body

    replace_rows(path, rewritten(rows, key, another_reason))
    verify(path)
    with pytest.raises(LedgerBroken, match="rewritten") as broken:
        verify(path, middle)
    assert broken.value.at == 12
    replace_rows(path, rewritten(rows, key, without_the_last_reservation))
    verify(path, middle)
    with pytest.raises(LedgerBroken, match="cut off"):
        verify(path, head)


def test_a_rewrite_with_fresh_hashes_and_a_fresh_key_is_found_by_a_kept_head(path: Path) -> None:
    head, key = head_of(path), SigningKey.generate()
    replace_rows(path, rewritten(rows_of(path), key, bodies))
    verify(path, every_signature=True)
    with pytest.raises(LedgerBroken, match="another key") as broken:
        verify(path, head)
    assert broken.value.at == 1
    with pytest.raises(LedgerBroken, match="another key beside it"):
        Ledger.open(path)


def test_another_key_under_the_old_name_is_found_without_an_anchor(path: Path) -> None:
    """The name is derived from the public key, so it cannot be kept."""
    rows, key = rows_of(path), SigningKey.generate()
    old = bodies(rows[0])["ledger"]
    body = {**bodies(rows[0]), "public_key": key.public.hex}
    row = make_row(ledger=old, previous=NOTHING, sequence=1, kind=Kind.GENESIS, body=body, time=rows[0].time)
    replace_rows(path, [row._replace(signature=key.sign(head_message(ledger=old, sequence=1, hash=row.hash)))])
    with pytest.raises(LedgerBroken, match="belongs to its public key") as broken:
        verify(path)
    assert broken.value.at == 1


def test_a_forged_anchor_is_not_believed(path: Path) -> None:
    head = head_of(path)
    forged = Head(ledger=head.ledger, sequence=head.sequence, hash=head.hash, signature="0" * 128)
    with pytest.raises(LedgerBroken, match="not signed"):
        verify(path, forged)


# -------------------------------------------------------- a writer with the key who breaks the rules


def with_body(sequence: int, **changes: Any) -> Callable[[Row], dict[str, Any] | None]:
    return lambda row: {**bodies(row), **changes} if row.sequence == sequence else bodies(row)


def without(sequence: int) -> Callable[[Row], dict[str, Any] | None]:
    return lambda row: None if row.sequence == sequence else bodies(row)


def stated(sequence: int, factor: float) -> Callable[[Row], dict[str, Any] | None]:
    def change(row: Row) -> dict[str, Any]:
        body = bodies(row)
        if row.sequence == sequence:
            body["spent"][0]["epsilon"] *= factor
        return body

    return change


def lines(sequence: int, change: Callable[[list[Any]], list[Any]]) -> Callable[[Row], dict[str, Any] | None]:
    return lambda row: (
        {**bodies(row), "spent": change(bodies(row)["spent"])} if row.sequence == sequence else bodies(row)
    )


def with_charges(sequence: int, change: Callable[[list[Any]], list[Any]]) -> Callable[[Row], dict[str, Any] | None]:
    return lambda row: (
        {**bodies(row), "charges": change(bodies(row)["charges"])} if row.sequence == sequence else bodies(row)
    )


def in_charge(sequence: int, change: Callable[[dict[str, Any]], None]) -> Callable[[Row], dict[str, Any] | None]:
    def first(charges: list[Any]) -> list[Any]:
        change(charges[0])
        return charges

    return with_charges(sequence, first)


def dropped_key(sequence: int, key: str) -> Callable[[Row], dict[str, Any] | None]:
    return lambda row: {k: v for k, v in bodies(row).items() if k != key or row.sequence != sequence}


def quieter(row: Row) -> dict[str, Any]:
    """Every charge of the first run claims twice the noise that was added; its plan does not."""
    body = bodies(row)
    if row.kind == "reserve" and body["run"] == "first":
        body["charges"][0]["event"]["event"]["event"]["noise_multiplier"] = 4.0
    return body


CASES: list[tuple[str, Callable[[Row], dict[str, Any] | None], int, str]] = [
    ("a smaller ε is stated", stated(8, 0.99), 8, "states ε"),
    ("a larger ε is stated", stated(8, 1.01), 8, "states ε"),
    ("an ε off by a millionth", stated(8, 1 + 1e-6), 8, "states ε"),
    ("no ε at all", with_body(6, spent=[]), 6, "one line for each account"),
    ("two ε for one party", lines(6, lambda spent: [*spent, spent[0]]), 6, "one line for each account"),
    ("ε in another order", lines(6, lambda spent: spent[::-1]), 6, "one line for each account"),
    ("ε with a remark", lines(6, lambda spent: [{**spent[0], "about": 1}, spent[1]]), 6, "other keys"),
    ("ε at another δ", lines(6, lambda spent: [{**spent[0], "delta": 1e-4}, spent[1]]), 6, "states ε"),
    ("an infinite ε", lines(6, lambda spent: [{**spent[0], "epsilon": "Infinity"}, spent[1]]), 6, "states ε"),
    ("an ε that is true", lines(6, lambda spent: [{**spent[0], "epsilon": True}, spent[1]]), 6, "states ε"),
    ("a whole number as δ", lines(6, lambda spent: [{**spent[0], "delta": 1}, spent[1]]), 6, "states ε"),
    ("a round that is a float", with_body(5, round=1.0), 5, "whole number"),
    ("a round below zero", with_body(5, round=-1), 5, "whole number"),
    ("an attempt that is true", with_body(5, attempt=True), 5, "whole number"),
    ("a reservation's number as a float", with_body(6, reserve=5.0), 6, "whole number"),
    ("operator_only as a number", with_body(6, operator_only=0), 6, "operator_only"),
    ("one more key", with_body(9, about="x"), 9, "keys of its kind"),
    ("a blind where nothing is withheld", with_body(6, blind="0" * 32), 6, "keys of its kind"),
    ("a refund without its blind", dropped_key(10, "blind"), 10, "keys of its kind"),
    ("a withheld commit without its blind", dropped_key(11, "blind"), 11, "blind"),
    ("a short blind", with_body(10, blind="ab"), 10, "hexadecimal"),
    ("a budget as a whole number", with_body(2, epsilon=20), 2, "the way it is read"),
    ("steps as a float", in_charge(5, lambda charge: charge["event"].update(times=5.0)), 5, "the way it is read"),
    ("a charge with a remark", in_charge(5, lambda charge: charge.update(about=1)), 5, "the way it is read"),
    ("no steps", in_charge(5, lambda charge: charge["event"].update(times=0)), 5, "for nothing"),
    ("a party left out of a round", with_charges(5, lambda charges: charges[:1]), 5, "every registered party"),
    ("nobody charged", with_charges(5, lambda charges: []), 5, "every registered party"),
    ("a party with a space", with_body(2, party="Basel "), 2, "the way names are"),
    ("another spelling", with_body(3, party="basel"), 3, "spelling"),
    ("a commit without its reservation", without(5), 5, "nothing is reserved"),
    ("a commit that was left out", without(6), 0, ""),
    ("a double commit", lambda row: {**bodies(row), "round": 1, "reserve": 5} if row.sequence == 8 else bodies(row), 8,
     "is committed"),
    ("an attempt that skips", with_body(7, attempt=2), 7, "use attempt 1"),
    ("a refund of somebody else", with_body(10, party="Chur"), 10, "no charge per record"),
    ("a refund without a reason", with_body(10, reason=""), 10, "reason"),
    ("a refund that was left out", without(10), 10, "operator_only"),
    ("a run that was left out", without(4), 4, "not in the ledger"),
    ("a budget that was left out", without(2), 3, "no budget"),
    ("a lower budget", with_body(12, epsilon=1.0), 12, "below the present budget"),
    ("another δ", with_body(12, delta=1e-3), 12, "δ belongs to the dataset"),
    ("a budget below the plan", with_body(2, epsilon=0.5), 4, "whole plan costs"),
    ("less charged than planned noise", quieter, 5, "its plan contains none"),
    ("a plan that is not its hash", with_body(4, plan={"federation": {"rounds": 9}}), 4, "hash of the plan"),
    ("a budget that is no number", with_body(12, epsilon=None), 12, "epsilon"),
    ("a body without its keys", lambda row: {} if row.sequence == 9 else bodies(row), 9, "keys of its kind"),
    ("an unknown unit", with_body(12, unit="planet"), 12, "cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "at", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_ledger_with_good_hashes_and_signatures_must_still_keep_the_rules(
    path: Path, change: Callable[[Row], dict[str, Any] | None], at: int, message: str
) -> None:
    """Whoever holds the key can chain and sign anything; verify replays the rules and recomputes every ε."""
    rows = rows_of(path)
    key = load_key(path, bodies(rows[0])["public_key"])
    replaced = rewritten(rows, key, change)
    # later entries point at reservations by number: keep those right where an entry was dropped
    if len(replaced) < len(rows):
        dropped = next(index for index, row in enumerate(rows, 1) if change(row) is None)

        def shifted(row: Row) -> dict[str, Any] | None:
            body = change(row)
            if body is not None and body.get("reserve", 0) > dropped:
                body["reserve"] -= 1
            return body

        replaced = rewritten(rows, key, shifted)
    replace_rows(path, replaced)
    if not at:
        verify(path)  # a commit that is missing is a crash: the charge still counts
        return
    with pytest.raises(LedgerBroken, match=message) as broken:
        verify(path)
    assert broken.value.at == at


def respelled(rows: list[Row], key: SigningKey, sequence: int, old: str, new: str) -> list[Row]:
    """The chain with fresh hashes and signatures, one body's text changed as a text."""
    made: list[Row] = []
    for row in rows:
        previous = made[-1].hash if made else NOTHING
        body = row.body
        if row.sequence == sequence:
            assert old in body
            body = body.replace(old, new, 1)
        hash = entry_hash(
            ledger=key.public.ledger, previous=previous, sequence=row.sequence, kind=row.kind, body_hash=digest(body),
            time=row.time,
        )  # fmt: skip
        signature = key.sign(head_message(ledger=key.public.ledger, sequence=row.sequence, hash=hash))
        made.append(row._replace(body=body, previous=previous, hash=hash, signature=signature))
    return made


@pytest.mark.parametrize(
    ("sequence", "old", "new"),
    [
        (6, '"attempt":1', '"attempt":9,"attempt":1'),
        (6, '{"attempt":1,"operator_only":false', '{"operator_only":false,"attempt":1'),
        (6, ":1,", ": 1,"),
        (2, "20.0", "2e1"),
        (2, "20.0", "20.00"),
        (2, "20.0", "NaN"),
        (2, "1e-05", "0.00001"),
        (4, "heart", "he\\u0061rt"),
        (5, '"failure":0.0', '"failure":-0.0'),
    ],
)
def test_a_body_that_is_spelled_otherwise_is_found(path: Path, sequence: int, old: str, new: str) -> None:
    """Two texts for one thing could be read in two ways: two values for one key above all."""
    rows = rows_of(path)
    key = load_key(path, bodies(rows[0])["public_key"])
    replace_rows(path, respelled(rows, key, sequence, old, old))
    verify(path)  # the control
    replace_rows(path, respelled(rows, key, sequence, old, new))
    with pytest.raises(LedgerBroken, match=r"canonical JSON|breaks a rule") as broken:
        verify(path)
    assert broken.value.at == sequence


def test_a_finite_figure_for_an_unprotected_release_is_found() -> None:
    """|∞ − ε| ≤ tolerance · ∞ is true of every ε; so infinities are compared by themselves."""
    store, key = MemoryStore(), SigningKey.generate()
    ledger = Ledger.begin(store, key)
    open_run(ledger, step=None, public="published in 1988")
    play(ledger, rounds=(1,), step=None)
    honest = list(store.rows())
    assert verify_rows(honest).stated == 1
    changed = rewritten(honest, key, stated_as(len(honest), 0.1))
    with pytest.raises(LedgerBroken, match=r"states ε = 0.1 .* cost Infinity"):
        verify_rows(changed)


def stated_as(sequence: int, epsilon: float) -> Callable[[Row], dict[str, Any] | None]:
    return lines(sequence, lambda spent: [{**spent[0], "epsilon": epsilon}])


# ------------------------------------------------------------------------------------------ whole files


def garbage(path: Path) -> None:
    path.write_bytes(b"this is not a database, it is a shopping list\n" * 500)


def half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def odd_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - 4096 - 77])


def header_only(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def no_table(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE entries")
    connection.execute("CREATE TABLE other (a)")
    connection.commit()
    connection.close()


def no_rows(path: Path) -> None:
    tamper(path, "DELETE FROM entries")


def somebody_elses(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE songs (title)")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [garbage, half, odd_end, header_only, emptied, no_table, no_rows, somebody_elses],
    ids=lambda f: f.__name__,
)
def test_a_damaged_file_is_refused_with_the_remedy_and_left_as_it_is(
    path: Path, damage: Callable[[Path], None]
) -> None:
    damage(path)
    before = path.read_bytes()
    for options in ({}, {"create": True}, {"read_only": True}):
        with pytest.raises(LedgerBroken) as broken, Ledger.open(path, **options) as ledger:  # type: ignore[arg-type]
            ledger.verify()
        assert broken.value.exit_code == 4
        assert broken.value.remedy
    if damage is somebody_elses:
        assert path.read_bytes() == before


def test_a_ledger_of_a_newer_format_is_refused(path: Path) -> None:
    tamper(path, "PRAGMA user_version = 2")
    with pytest.raises(QuietsumError, match="format 2, this quietsum knows format 1"):
        Ledger.open(path)


def test_triggers_refuse_what_sqlite_users_may_try(path: Path) -> None:
    connection = sqlite3.connect(path)
    for statement in (
        "UPDATE entries SET time = 'x' WHERE sequence = 3",
        "DELETE FROM entries WHERE sequence = 16",
        "INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE sequence = 16",
        "INSERT INTO entries SELECT 20, kind, time, body, previous, hash, signature FROM entries WHERE sequence = 16",
        "INSERT INTO entries SELECT NULL, kind, time, body, previous, hash, signature FROM entries LIMIT 1",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(statement)
    with pytest.raises(sqlite3.IntegrityError, match="cannot store"):
        connection.execute("INSERT INTO entries VALUES (17, X'00', '', '', '', '', '')")
    connection.close()
    verify(path)


def test_charges_cannot_hide_under_a_public_declaration_made_later(path: Path) -> None:
    """Declaring data public does not unwrite what was charged before."""
    with Ledger.open(path) as ledger:
        before = ledger.spending("first")
        ledger.declare_public(party="Basel", dataset="heart", reason="released")
        open_run(ledger, "third", limit=90.0, rounds=40)
        ledger.reserve("third", 1, 1, [charge()])
        assert ledger.spending("first") == before
    assert canonical([row.body for row in rows_of(path)[:ENTRIES]])
    verify(path)
