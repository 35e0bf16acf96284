"""No run is silently the last one: what a run fixes and leaves of a lifetime is printed before anything is spent."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from quietsum.cli.shared.lifetimes import lifetime_sentences
from quietsum.ledger import Ledger, Outlook
from quietsum.privacy import Budget, PrivacyUnit
from scenes import invoke, one_line, tiny_toml

RECORD = "{{ epsilon = 1.0, delta = 1e-3, max_grad_norm = 1.0{more} }}"


def plan(folder: Path, *, lifetime: float | None = None, name: str = "run.toml") -> str:
    more = "" if lifetime is None else f", lifetime = {{ epsilon = {lifetime}, delta = 1e-3 }}"
    path = folder / name
    path.write_text(tiny_toml(record=RECORD.format(more=more)), encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_run_that_would_be_the_last_one_is_announced_for_all_sites_at_once(tmp_path: Path, command: str) -> None:
    text = one_line(invoke(command, plan(tmp_path)).stdout)
    assert text.count("Lifetime of the data of north, south: none is stated") == 1
    assert "is the last one that fits" in text and "lifetime = { epsilon = 4, delta = 0.001 }, say." in text


def test_a_stated_lifetime_is_named_with_what_is_left_and_the_second_run_fits(tmp_path: Path) -> None:
    text = one_line(invoke("plan", plan(tmp_path, lifetime=4.0)).stdout)
    assert "ε = 4 per record at δ = 0.001, which this run fixes for good" in text and "to later runs" in text
    rooms = []
    for _ in range(2):
        values = json.loads(invoke("plan", plan(tmp_path, lifetime=4.0), "--json").stdout)
        rooms.append({one["room"] for one in values["lifetimes"]}.pop())
        assert invoke("run", plan(tmp_path, lifetime=4.0)).exit_code == 0
    assert 0 < rooms[1] < rooms[0] < 1


def test_what_plan_says_is_left_is_what_the_ledger_has_left_afterwards(tmp_path: Path) -> None:
    values = json.loads(invoke("plan", plan(tmp_path, lifetime=4.0), "--json").stdout)
    for _ in range(2):
        invoke("run", plan(tmp_path, lifetime=4.0))
    second = json.loads(invoke("plan", plan(tmp_path, lifetime=4.0), "--json").stdout)
    with Ledger.open("quietsum-workspace/ledger.db", read_only=True) as ledger:
        (book, _) = ledger.lifetime()
    # both runs are alike, and a filter adds up: what one takes is what the other takes
    first, third = values["lifetimes"][0]["room"], second["lifetimes"][0]["room"]
    assert 1 - book.spent_fraction == pytest.approx(2 * first - 1, abs=1e-9)
    assert third == pytest.approx(3 * first - 2, abs=1e-9)


def test_a_refusal_names_all_sites_and_its_command_raises_all_of_them(tmp_path: Path) -> None:
    assert invoke("run", plan(tmp_path)).exit_code == 0
    refused = invoke("run", plan(tmp_path))
    assert refused.exit_code == 3
    said = one_line(refused.stderr)
    assert "does not fit the lifetime of 'south' either" in said
    command = shlex.split(said[said.index("quietsum ledger raise") :])[1:]
    assert invoke(*command).exit_code == 0
    assert invoke("run", plan(tmp_path)).exit_code == 0


def test_of_several_budgets_all_are_raised_or_none(tmp_path: Path) -> None:
    assert invoke("run", plan(tmp_path)).exit_code == 0
    where = ["--party", "north", "--party", "west", "--dataset", "points-north", "--dataset", "points-west"]
    with Ledger.open("quietsum-workspace/ledger.db", read_only=True) as ledger:
        before = ledger.verify().entries
    assert invoke("ledger", "raise", *where, "--epsilon", "4", "--reason", "board").exit_code == 2
    for slip in (["--party", "north", "--party", "north", "--dataset", "points-north"],
                 ["--party", "north", "--dataset", "a", "--dataset", "b"]):  # fmt: skip
        assert invoke("ledger", "raise", *slip, "--epsilon", "4", "--reason", "board").exit_code == 2
    with Ledger.open("quietsum-workspace/ledger.db", read_only=True) as ledger:
        assert ledger.verify().entries == before
    where[3], where[7] = "south", "points-south"
    values = json.loads(invoke("ledger", "raise", *where, "--epsilon", "4", "--reason", "board", "--json").stdout)
    assert [entry["body"]["party"] for entry in values["entries"]] == ["north", "south"]


def test_a_new_plan_for_rows_of_ones_own_says_that_it_would_be_the_last() -> None:
    assert "would be the last one on protected data" in one_line(invoke("new", "own.toml", "--task", "my:Task").stdout)
    assert "last one" not in invoke("new", "heart.toml").stdout  # its data is published
    assert "# lifetime = { epsilon = 4, delta = " in Path("own.toml").read_text(encoding="utf-8")


def test_a_plan_is_not_asked_for_a_lifetime_that_it_cannot_state() -> None:
    (of_record,) = lifetime_sentences([outlook("a", 0.0, stated=False)])
    person = dataclasses.replace(outlook("a", 0.0, stated=False), unit=PrivacyUnit.PERSON)
    (of_person,) = lifetime_sentences([person])
    assert "state one under privacy.record" in of_record
    assert "lifetime =" not in of_person and "quietsum ledger raise --unit person" in of_person


def outlook(party: str, room: float, *, stated: bool = True) -> Outlook:
    budget = Budget(epsilon=2.0, delta=1e-5)
    return Outlook(
        party=party, dataset="d", unit=PrivacyUnit.RECORD, budget=budget, fixes=True, stated=stated, room=room
    )


def test_many_sites_in_one_state_are_one_sentence() -> None:
    (sentence,) = lifetime_sentences(outlook(f"site-{number}", 0.5) for number in range(500))
    assert "site-0, site-1, site-2, site-3 and 496 more" in sentence and "about 50 %" in sentence
    assert len(lifetime_sentences([outlook("a", 0.5), outlook("b", 0.2), outlook("c", 0.5)])) == 2


@pytest.mark.parametrize("command", ["plan", "run"])
def test_data_that_a_rehearsal_declared_public_is_said_to_have_no_lifetime_until_it_has_one(
    tmp_path: Path, command: str
) -> None:
    public = tmp_path / "public.toml"
    public.write_text(tiny_toml(options='{ public = "made up" }'), encoding="utf-8")
    protected = plan(tmp_path)
    assert "declared public" not in invoke(command, protected, "--workspace", "other").stdout  # the control
    assert invoke("run", public).exit_code == 0
    text = one_line(invoke(command, protected).stdout)
    assert "The data of north, south was declared public in this workspace (made up), so no lifetime budget" in text
    told = text[text.index("quietsum ledger raise") : text.index("--reason why") + len("--reason why")]
    assert invoke(*shlex.split(told)[1:]).exit_code == 0
    after = one_line(invoke("plan", protected).stdout)
    assert "declared public" not in after and "Lifetime of the data of north, south: ε = 4 per record" in after
    assert "declared public" not in invoke("plan", public).stdout
