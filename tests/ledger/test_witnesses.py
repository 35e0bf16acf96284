"""Heads of other ledgers: who may be believed, how they are kept, and that nobody reads off them who took part."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ledger.build import charge, memory_ledger, open_run, play, reserve, sample, tamper
from ledger.test_tampering import bodies, replace_rows, rewritten, rows_of
from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken, QuietsumError
from quietsum.ledger import Head, Ledger, Terms
from quietsum.ledger.chain import witnesses
from quietsum.ledger.chain.encoding import canonical, digest, head_message
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.export import export_ledger, verify_export
from quietsum.ledger.chain.keys import load_key
from quietsum.ledger.chain.verify import verify_file
from quietsum.ledger.chain.witnesses import check_succession
from quietsum.ledger.stores.protocol import Row


def site(entries: int = 1) -> Ledger:
    """Another ledger, of so many entries."""
    ledger = memory_ledger()
    for number in range(1, entries):
        ledger.declare_public(party="nobody", dataset=f"public {number}", reason="made up")
    return ledger


def grown(ledger: Ledger, name: str = "more") -> witnesses.Testimony:
    ledger.declare_public(party="nobody", dataset=name, reason="made up")
    return ledger.testimony()


def kinds(ledger: Ledger) -> list[str]:
    return [entry.kind.value for entry in ledger.entries()]


# --------------------------------------------------------------------------------------------------- what is believed


def test_a_testimony_travels_as_plain_values() -> None:
    told = site(3).testimony()
    assert witnesses.Testimony.from_dict(json.loads(json.dumps(told.to_dict()))) == told
    assert told.ledger == told.head.ledger and told.head.sequence == 3
    assert witnesses.heads_from(witnesses.heads_to({"north": told})) == {"north": told}


def forged(told: witnesses.Testimony, other: witnesses.Testimony) -> Mapping[str, dict[str, Any]]:
    """Everything that somebody without the key could write instead."""
    right, head = told.to_dict(), told.head.to_dict()
    flipped = head["signature"][:-1] + ("0" if head["signature"][-1] != "0" else "1")
    return {
        "the key of another ledger": {**right, "public_key": other.public_key},
        "the head of another ledger": {**right, "head": other.head.to_dict()},
        "another ledger's name": {**right, "head": {**head, "ledger": other.ledger}},
        "another ledger's name and key": {"public_key": other.public_key, "head": {**head, "ledger": other.ledger}},
        "a signature with another digit": {**right, "head": {**head, "signature": flipped}},
        "the signature of another head": {**right, "head": {**head, "signature": other.head.signature}},
        "a later place": {**right, "head": {**head, "sequence": head["sequence"] + 1}},
        "another hash": {**right, "head": {**head, "hash": other.head.hash}},
        "a key in other letters": {**right, "public_key": told.public_key.upper()},
        "no key": {**right, "public_key": ""},
        "a number as a key": {**right, "public_key": 7},
        "half a key": {**right, "public_key": told.public_key[:32]},
        "no head": {"public_key": told.public_key},
        "one thing more": {**right, "time": "now"},
    }


@pytest.mark.parametrize("lie", sorted(forged(site().testimony(), site(2).testimony())))
def test_a_forged_testimony_is_refused(lie: str) -> None:
    told, other = site(3).testimony(), site(3).testimony()
    with pytest.raises(CorruptState):
        witnesses.Testimony.from_dict(forged(told, other)[lie])
    witnesses.Testimony.from_dict(told.to_dict())


@pytest.mark.parametrize("nothing", [None, [], "head", 7, {}])
def test_what_is_no_testimony_is_refused(nothing: Any) -> None:
    with pytest.raises(CorruptState):
        witnesses.Testimony.from_dict(nothing)
    with pytest.raises(CorruptState):
        witnesses.heads_from({"north": nothing})
    if not isinstance(nothing, dict):
        with pytest.raises(CorruptState):
            witnesses.heads_from(nothing)


def test_a_testimony_is_made_of_a_key_and_a_head_and_nothing_else() -> None:
    told = site().testimony()
    with pytest.raises(InvalidParameter):
        witnesses.Testimony(public_key=told.public_key, head="head")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        witnesses.Testimony(public_key="zz", head=told.head)


def test_no_signed_message_is_ever_taken_for_a_head() -> None:
    """A site that could be made to sign a text of somebody else's choice would sign heads it never had."""
    ledger = site(2)
    head = Head(ledger=ledger.identity.ledger, sequence=9, hash="a" * 64, signature="0" * 128)
    signed = ledger.sign(head_message(ledger=head.ledger, sequence=9, hash=head.hash))
    lie = {**head.to_dict(), "signature": signed}
    with pytest.raises(CorruptState, match="was not signed by ledger"):
        witnesses.Testimony.from_dict({"public_key": ledger.identity.public_key, "head": lie})


def test_what_may_follow_a_known_head() -> None:
    ledger = site(2)
    known = ledger.testimony()
    check_succession("north", None, known)
    check_succession("north", known, known)
    later = grown(ledger)
    check_succession("north", known, later)
    with pytest.raises(CorruptState, match="ends at entry 2 and had 3"):
        check_succession("north", later, known)
    with pytest.raises(CorruptState, match="another ledger"):
        check_succession("north", known, site(5).testimony())


def test_another_chain_of_the_same_key_and_length_is_a_rewrite(tmp_path: Path) -> None:
    path = sample(tmp_path / "ledger.db")
    with Ledger.open(path) as ledger:
        known = ledger.testimony()
    rows = rows_of(path)
    key = load_key(path, bodies(rows[0])["public_key"])
    replace_rows(path, rewritten(rows, key, lambda row: {**bodies(row), **_reason(row.kind)}))
    (tmp_path / "ledger.db.head").unlink()
    with Ledger.open(path) as ledger, pytest.raises(CorruptState, match="rewritten"):
        check_succession("north", known, ledger.testimony())


def _reason(kind: str) -> dict[str, str]:
    return {"reason": "another one"} if kind == "budget" else {}


# ------------------------------------------------------------------------------------------------------ how it is kept


def test_heads_of_an_attempt_are_one_entry_before_its_commit() -> None:
    ledger, north, south = memory_ledger(), site(), site(4)
    open_run(ledger)
    ledger.commit(reserve(ledger), seen={"south": south.testimony(), "north": north.testimony()})
    ledger.commit(reserve(ledger, round=2), seen={})
    ledger.commit(reserve(ledger, round=3))
    assert kinds(ledger)[3:] == ["reserve", "witness", "commit", "reserve", "witness", "commit", "reserve", "commit"]
    assert ledger.other_heads() == {"north": north.testimony(), "south": south.testimony()}
    assert [dict(heads) for _, heads in ledger.receipts()] == [dict(ledger.other_heads()), {}]
    ledger.verify(every_signature=True)


def test_a_head_that_came_with_a_request_is_written_with_its_reservation() -> None:
    ledger, coordinator = memory_ledger(), site(3)
    open_run(ledger)
    receipt = ledger.reserve("first", 1, 1, [charge()], seen={"first": coordinator.testimony()})
    assert kinds(ledger)[-2:] == ["reserve", "witness"]
    assert receipt.sequence == ledger.head.sequence - 1 and receipt.head == ledger.head
    ledger.commit(receipt)
    ledger.verify()


def test_an_older_head_than_the_known_one_is_left_out() -> None:
    """Another process of ours may have been quicker; what it has kept stays."""
    ledger, north = memory_ledger(), site()
    open_run(ledger)
    older = north.testimony()
    newer = grown(north)
    ledger.commit(reserve(ledger), seen={"north": newer})
    ledger.commit(reserve(ledger, round=2), seen={"north": older})
    assert ledger.other_heads() == {"north": newer}
    assert [len(heads) for _, heads in ledger.receipts()] == [1, 0]
    ledger.verify()


def test_heads_without_a_round_are_kept_once() -> None:
    ledger, north = memory_ledger(), site()
    open_run(ledger)
    for told in (north.testimony(), north.testimony(), grown(north)):
        ledger.witness("first", {"north": told})
    assert kinds(ledger)[3:] == ["witness", "witness"]
    ledger.witness("first", {})
    assert kinds(ledger)[3:] == ["witness", "witness"]
    with pytest.raises(QuietsumError, match="not in the ledger"):
        ledger.witness("another run", {"north": north.testimony()})
    ledger.verify()


def test_heads_are_known_after_the_ledger_was_opened_again(tmp_path: Path) -> None:
    north = site(2)
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger)
        ledger.commit(reserve(ledger), seen={"north": north.testimony()})
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        assert ledger.other_heads() == {"north": north.testimony()}


def test_witnesses_cost_nothing_and_count_nowhere() -> None:
    plain, told = memory_ledger(), memory_ledger()
    for ledger in (plain, told):
        open_run(ledger)
    plain.commit(reserve(plain))
    told.commit(reserve(told), seen={"north": site().testimony()})
    assert plain.spending("first") == told.spending("first")
    assert plain.lifetime() == told.lifetime()
    assert [(one.attempts, one.committed) for one in told.runs()] == [(1, 1)]


# ---------------------------------------------------------------------------------------------------------- tampering


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with a witness at entries 5 and 8."""
    north = site(2)
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger)  # 2, 3
        ledger.commit(reserve(ledger), seen={"north": north.testimony()})  # 4, 5, 6
        ledger.commit(reserve(ledger, round=2), seen={"north": grown(north)})  # 7, 8, 9
    (tmp_path / "ledger.db.head").unlink()
    return tmp_path / "ledger.db"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET body = replace(body, 'north', 'nortH') WHERE sequence = 5",
        "UPDATE entries SET body = replace(body, '\"sequence\":2', '\"sequence\":1') WHERE sequence = 5",
        'UPDATE entries SET body = replace(body, \'"blind":"\', \'"blind":"0\') WHERE sequence = 5',
        "UPDATE entries SET kind = 'refund' WHERE sequence = 5",
        "DELETE FROM entries WHERE sequence = 5",
    ],
)
def test_a_changed_witness_is_named(path: Path, change: str) -> None:
    verify_file(path)
    tamper(path, change)
    with pytest.raises(LedgerBroken) as broken:
        verify_file(path)
    assert broken.value.at == 5


def resign(path: Path, change: Any) -> None:
    """Somebody with the key writes the chain anew; ``change`` alters the body of entry 8, the second witness."""
    rows = rows_of(path)
    key = load_key(path, bodies(rows[0])["public_key"])
    made = rewritten(rows, key, lambda row: change(bodies(row)) if row.sequence == 8 else bodies(row))
    replace_rows(path, made)


def _with_head(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    told = body["heads"]["north"]
    return {**body, "heads": {"north": {**told, "head": {**told["head"], **changes}}}}


@pytest.mark.parametrize(
    "change",
    [
        lambda body: _with_head(body, sequence=7),
        lambda body: _with_head(body, signature="0" * 128),
        lambda body: {**body, "heads": {"north": site(1).testimony().to_dict()}},
        lambda body: {**body, "heads": {"north ": body["heads"]["north"]}},
        lambda body: {**body, "heads": []},
        lambda body: {**body, "run": "another"},
        lambda body: {**body, "round": -1},
        lambda body: {**body, "round": 2.0},
        lambda body: {**body, "blind": "short"},
        lambda body: {key: value for key, value in body.items() if key != "blind"},
        lambda body: {**body, "note": "one thing more"},
    ],
)
def test_a_witness_that_breaks_a_rule_is_found_even_with_fresh_hashes(path: Path, change: Any) -> None:
    resign(path, lambda body: body)
    verify_file(path)
    resign(path, change)
    with pytest.raises(LedgerBroken) as broken:
        verify_file(path)
    assert broken.value.at == 8


def test_a_head_that_goes_back_is_found_in_the_chain(path: Path) -> None:
    """The two heads of north change places: the second is then behind the first."""
    rows = rows_of(path)
    key = load_key(path, bodies(rows[0])["public_key"])
    heads = {5: bodies(rows[7])["heads"], 8: bodies(rows[4])["heads"]}

    def change(row: Row) -> dict[str, Any]:
        return {**bodies(row), "heads": heads[row.sequence]} if row.sequence in heads else bodies(row)

    replace_rows(path, rewritten(rows, key, change))
    with pytest.raises(LedgerBroken, match="its tail was cut off") as broken:
        verify_file(path)
    assert broken.value.at == 8


# ------------------------------------------------------------------------------------------------------------ exports


def exported(folder: Path, name: str, answers: int) -> list[dict[str, Any]]:
    """The lines of a ledger in whose rounds so many sites answered."""
    ledger = memory_ledger()
    open_run(ledger)
    for number in (1, 2):
        seen = {f"site {index}": site(1).testimony() for index in range(number * 10, number * 10 + answers)}
        ledger.commit(reserve(ledger, round=number), seen=seen)
    target = folder / f"{name}.jsonl"
    assert export_ledger(ledger, target) == (9, 2)
    found = verify_export(target, anchors=[ledger.head], every_signature=True)
    assert (found.withheld, found.stated) == (2, 2), "both commits are there, and their ε came out again"
    return [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]


def test_how_many_sites_answered_cannot_be_read_off_an_export(tmp_path: Path) -> None:
    """None, one or twenty: the same lines of the same length. The control is the ledger itself, which does tell."""
    shapes = []
    for answers in (0, 1, 20):
        lines = exported(tmp_path, f"of {answers}", answers)
        assert not any("heads" in line.get("body", {}) for line in lines)
        assert "public_key" not in json.dumps(lines[1:])
        shapes.append([(line["kind"], sorted(line), len(canonical(line))) for line in lines])
    assert shapes[0] == shapes[1] == shapes[2]


def test_a_withheld_witness_cannot_be_guessed_from_its_hash(tmp_path: Path) -> None:
    ledger, north = memory_ledger(), site()
    open_run(ledger)
    for number in (1, 2):
        ledger.commit(reserve(ledger, round=number), seen={})
    hashes = {digest(canonical(entry.body)) for entry in ledger.entries() if entry.kind is Kind.WITNESS}
    guess = {"run": "first", "round": 1, "attempt": 1, "heads": witnesses.heads_to({"north": north.testimony()})}
    assert len(hashes) == 2 and digest(canonical(guess)) not in hashes
    (first, second) = (entry.body for entry in ledger.entries() if entry.kind is Kind.WITNESS)
    assert first["blind"] != second["blind"] and len(first["blind"]) == 32
    assert {**guess, "heads": {}} == {key: value for key, value in first.items() if key != "blind"}
    assert digest(canonical({**guess, "heads": {}})) not in hashes, "only its blind keeps the right guess from fitting"


def test_budgets_are_still_checked_behind_a_withheld_witness(tmp_path: Path) -> None:
    """A refund hides what is left of a budget, and a witness does not: a fifth round of four is found in the export."""
    for act, there in (("witness", True), ("refund", False)):
        path = tmp_path / act / "ledger.db"
        with Ledger.open(path, create=True) as ledger:
            open_run(ledger, rounds=4)
            receipt = reserve(ledger)
            if act == "refund":
                ledger.refund(receipt, "Basel", "busy")
                ledger.commit(receipt)
                play(ledger, rounds=(2, 3))
            else:
                ledger.commit(receipt, seen={"north": site().testimony()})
                play(ledger, rounds=(2, 3, 4))
            rows = rows_of(path)
            over = rows[3]._replace(sequence=len(rows) + 1)  # the first reservation again, as one too many
            key = load_key(path, bodies(rows[0])["public_key"])
        (path.parent / "ledger.db.head").unlink()
        more = [over, over._replace(sequence=len(rows) + 2)] if act == "refund" else [over]
        replace_rows(path, rewritten([*rows, *more], key, functools.partial(_later, known=len(rows))))
        with Ledger.open(path, read_only=True) as ledger:
            export_ledger(ledger, tmp_path / f"{act}.jsonl")
        if there:
            with pytest.raises(LedgerBroken, match="its plan contains") as broken:
                verify_export(tmp_path / f"{act}.jsonl")
            assert broken.value.at == len(rows) + 1
        else:
            verify_export(tmp_path / f"{act}.jsonl")


def _later(row: Row, *, known: int) -> dict[str, Any]:
    """What was added behind the ``known`` entries is about rounds that the plan does not have."""
    body = bodies(row)
    return {**body, "round": 4 + row.sequence - known} if row.sequence > known else body


def test_an_altered_line_of_a_withheld_witness_is_found(tmp_path: Path) -> None:
    lines = exported(tmp_path, "whole", 2)
    (at,) = [index for index, line in enumerate(lines) if line["kind"] == "witness"][:1]
    lines[at]["body_hash"] = "0" * 64
    target = tmp_path / "altered.jsonl"
    target.write_text("".join(canonical(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(LedgerBroken) as broken:
        verify_export(target)
    assert broken.value.at == at + 1


# ----------------------------------------------------------------------------------------------------- older ledgers


def test_a_ledger_without_witnesses_is_what_it_was(tmp_path: Path) -> None:
    """Nothing new is written where nobody keeps books elsewhere: what was made before verifies, and reads the same."""
    path = sample(tmp_path / "ledger.db")
    assert verify_file(path).entries == 16
    with Ledger.open(path, read_only=True) as ledger:
        assert "witness" not in kinds(ledger) and not ledger.other_heads() and not list(ledger.receipts())
        terms = [entry.body["terms"] for entry in ledger.entries() if entry.kind is Kind.RUN]
    assert all(set(one) == {"accounting", "neighbours", "limits"} for one in terms)
    assert Terms.from_dict(terms[0]).enrolled is None
