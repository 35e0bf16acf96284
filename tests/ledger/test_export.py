"""An export says everything but who took part, and can still be verified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger.build import charge, memory_ledger, open_run, play, sample
from quietsum.errors import InvalidParameter, LedgerBroken, QuietsumError
from quietsum.ledger import Ledger
from quietsum.ledger.chain.encoding import canonical, digest
from quietsum.ledger.chain.export import export_ledger, verify_export
from quietsum.ledger.chain.verify import read_anchors


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger.open(sample(tmp_path / "ledger.db")) as ledger:
        assert export_ledger(ledger, path) == (16, 2)
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rewrite(path: Path, values: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


def test_an_export_verifies_and_says_how_much_was_withheld(exported: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        head = ledger.head
    found = verify_export(exported, anchors=[head], every_signature=True)
    assert (found.entries, found.withheld, found.anchors, found.head) == (16, 2, 1, head)
    assert found.stated == 5, "two commits before the refund for two parties, one of the other run"


def test_who_took_part_is_not_in_it(exported: Path) -> None:
    """Neither the refund, nor an ε that it lowered; both are there as hashes."""
    hidden = [line for line in lines(exported) if "body" not in line]
    assert [line["kind"] for line in hidden] == ["refund", "commit"]
    assert "its budget is gone" not in exported.read_text(encoding="utf-8")
    spent = [line["body"]["spent"] for line in lines(exported) if line["kind"] == "commit" and "body" in line]
    for parties in spent[:2]:
        assert parties[0]["epsilon"] == parties[1]["epsilon"]


def guesses(entry: dict[str, Any], reserved: int) -> Iterator[dict[str, Any]]:
    """Everything that a refund of round 3 could say, for somebody who knows the parties and the usual reasons."""
    for party in ("Basel", "Bern"):
        for reason in ("busy", "its budget is gone"):
            yield {
                "run": "first", "round": 3, "attempt": 1, "reserve": reserved, "party": party, "reason": reason,
            }  # fmt: skip


def test_a_withheld_body_cannot_be_guessed_from_its_hash(exported: Path, tmp_path: Path) -> None:
    (refund,) = [line for line in lines(exported) if line["kind"] == "refund"]
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        bodies = [dict(entry.body) for entry in ledger.entries() if "blind" in entry.body]
    assert [len(body["blind"]) for body in bodies] == [32, 32], "the refund and the commit after it"
    assert len({body["blind"] for body in bodies}) == 2
    known = {key: value for key, value in bodies[0].items() if key != "blind"}
    tried = list(guesses(refund, known["reserve"]))
    assert known in tried, "the control: without the blind the guess is right, and its hash would tell"
    assert all(digest(canonical(guess)) != refund["body_hash"] for guess in tried)
    assert digest(canonical(bodies[0])) == refund["body_hash"]
    text = exported.read_text(encoding="utf-8")
    assert not any(body["blind"] in text for body in bodies)


def test_without_refunds_nothing_is_withheld(tmp_path: Path) -> None:
    ledger = memory_ledger()
    open_run(ledger)
    play(ledger)
    assert export_ledger(ledger, tmp_path / "out") == (7, 0)
    assert verify_export(tmp_path / "out").stated == 2


def change(path: Path, sequence: int, **values: Any) -> None:
    found = lines(path)
    found[sequence - 1].update(values)
    rewrite(path, found)


def test_a_changed_line_is_named(exported: Path) -> None:
    original = lines(exported)
    for sequence, values in (
        (5, {"body": {**original[4]["body"], "round": 9}}),
        (6, {"time": "2020"}),
        (10, {"body_hash": "0" * 64}),
        (10, {"kind": "commit"}),
        (11, {"previous": "0" * 64}),
        (12, {"kind": "song"}),
        (13, {"extra": 1}),
    ):
        rewrite(exported, original)
        verify_export(exported)  # the control
        change(exported, sequence, **values)
        with pytest.raises(LedgerBroken) as broken:
            verify_export(exported)
        assert broken.value.at == sequence
    for missing in (1, 7, 10):
        rewrite(exported, [line for line in original if line["sequence"] != missing])
        with pytest.raises(LedgerBroken) as broken:
            verify_export(exported)
        assert broken.value.at == missing


def test_only_what_says_who_took_part_may_be_left_out(exported: Path) -> None:
    """An exporter who hides a reservation or a budget is found."""
    original = lines(exported)
    for sequence in (2, 4, 5):
        rewrite(exported, [{k: v for k, v in line.items() if k != "body" or line["sequence"] != sequence}
                           for line in original])  # fmt: skip
        with pytest.raises(LedgerBroken, match="has no body") as broken:
            verify_export(exported)
        assert broken.value.at == sequence


def test_a_cut_export_is_found_by_an_anchor(exported: Path, tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        head = ledger.head
    rewrite(exported, lines(exported)[:-3])
    verify_export(exported)
    with pytest.raises(LedgerBroken) as broken:
        verify_export(exported, anchors=[head])
    assert broken.value.at == 14


def test_files_that_are_no_exports_are_errors(tmp_path: Path) -> None:
    for content in (b"", b"\xff\xfe", b"hello\n", b"{}\n", b"[1]\n"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(LedgerBroken):
            verify_export(tmp_path / "file")
    with pytest.raises(QuietsumError, match="cannot be read"):
        verify_export(tmp_path / "missing")


def test_an_export_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    ledger = memory_ledger()
    open_run(ledger)
    with pytest.raises(QuietsumError, match="cannot be written"):
        export_ledger(ledger, tmp_path / "no" / "such" / "folder")
    (tmp_path / "kept").write_text("what was there")
    ledger.close()
    with pytest.raises(QuietsumError):
        export_ledger(ledger, tmp_path / "kept")
    assert (tmp_path / "kept").read_text() == "what was there"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept"]


# ------------------------------------------------------------------------------------------------ anchors


def test_heads_are_found_wherever_a_file_keeps_them(tmp_path: Path) -> None:
    ledger = memory_ledger()
    open_run(ledger)
    receipt = ledger.reserve("first", 1, 1, [charge()])
    head = ledger.head.to_dict()
    file = tmp_path / "anchor.json"
    for text in (
        json.dumps(head),
        json.dumps({"report": {"ledger": {"head": head}}, "other": [1, {"hash": "x"}]}),
        json.dumps(receipt.to_dict(), indent=2),
        json.dumps(head) + "\n" + json.dumps(receipt.to_dict()) + "\n",
    ):
        file.write_text(text)
        assert read_anchors(file) == (ledger.head,)


def test_a_file_that_anchors_nothing_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "anchor.json"
    for text in ("", "{}", "[]", "hello", '{"ledger": 1, "sequence": 2, "hash": 3, "signature": 4}'):
        file.write_text(text)
        with pytest.raises(InvalidParameter, match="anchor"):
            read_anchors(file)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_anchors(tmp_path / "missing")
