"""``quietsum ledger receipts``: whose heads are shown, how one names them, and where they are of use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from federation.sites import CLIENTS, PLAN, places_for, plan_of, remote
from ledger.build import memory_ledger, open_run, play, sample
from quietsum.cli.app import app
from quietsum.ledger import Ledger
from quietsum.party.policy import UnitPolicy
from quietsum.report import describe_entry
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start


def quietsum(*words: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["ledger", *map(str, words)])
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def name_of(folder: Path) -> str:
    with Ledger.open(folder / "ledger.db", read_only=True) as ledger:
        return ledger.identity.ledger


@pytest.fixture
def federated(tmp_path: Path) -> Path:
    """A coordinator in ``coordinator`` and a site in each of its folders, after a run."""
    plan = plan_of()
    federation, _, _ = remote(places_for(plan, tmp_path))
    start(plan, workspace=Workspace.at(tmp_path / "coordinator"), federation=federation, name="one")
    return tmp_path


def test_a_party_is_named_as_people_call_it(federated: Path) -> None:
    here = ("--workspace", federated / "coordinator")
    va = name_of(federated / "va")
    found = [
        json.loads(quietsum("receipts", *here, "--of", of, "--json").stdout)["receipts"]
        for of in ("va", "v", va, va[:8])
    ]
    assert {line["head"]["ledger"] for line in found[0]} == {va}
    assert found[0] == found[1] == found[2] == found[3]
    everybody = json.loads(quietsum("receipts", *here, "--json").stdout)["receipts"]
    assert len({line["head"]["ledger"] for line in everybody}) > 1, "the control"


def test_the_table_shows_what_of_takes(federated: Path) -> None:
    told = quietsum("receipts", "--workspace", federated / "coordinator").stdout
    for site in ("va", "cleveland"):
        (line,) = (line for line in told.splitlines() if line.startswith(site))
        assert name_of(federated / site)[:12] in line
    assert max(map(len, told.partition("next:")[0].splitlines())) <= 80
    assert "ledger verify" not in told, "nothing was written, so there is nothing to verify with"
    assert "next: quietsum ledger receipts --of" in told and "--output seen.jsonl" in told


def test_the_next_command_says_where_it_is_run(federated: Path, tmp_path: Path) -> None:
    coordinator, seen = federated / "coordinator", tmp_path / "seen.jsonl"
    told = quietsum("receipts", "--workspace", coordinator, "--of", "va", "--output", seen).stdout
    assert "next, at va: quietsum ledger verify --anchor seen.jsonl" in told
    quietsum("verify", "--workspace", federated / "va", "--anchor", seen)
    told = quietsum("receipts", "--workspace", federated / "va", "--output", seen).stdout
    assert "next, at the coordinator: quietsum ledger verify --anchor seen.jsonl" in told
    quietsum("verify", "--workspace", coordinator, "--anchor", seen)
    told = quietsum("receipts", "--workspace", coordinator, "--output", seen).stdout
    assert "one file for each side" in told and "ledger verify" not in told


def test_heads_of_another_ledger_are_a_mistake_or_a_replaced_ledger(federated: Path, tmp_path: Path) -> None:
    coordinator, seen = federated / "coordinator", tmp_path / "seen.jsonl"
    quietsum("receipts", "--workspace", coordinator, "--of", "va", "--output", seen)
    for folder in (coordinator, federated / "cleveland"):
        told = quietsum("verify", "--workspace", folder, "--anchor", seen, code=4).stderr
        assert f"{seen} holds heads of another ledger, {name_of(federated / 'va')[:16]}…: verify it there." in told
        assert "If the file was kept of the ledger here, that one was replaced" in told
    mixed = tmp_path / "mixed.jsonl"  # heads of a ledger and of the one that took its place would look like this
    quietsum("receipts", "--workspace", coordinator, "--output", mixed)
    told = quietsum("verify", "--workspace", federated / "va", "--anchor", mixed, code=4).stderr
    assert "some kept heads are of another ledger" in told and "Or this ledger was replaced" in told


def test_a_replaced_ledger_is_still_found(tmp_path: Path) -> None:
    path, kept = sample(tmp_path / "ledger.db"), tmp_path / "kept.json"
    kept.write_text(quietsum("show", "--workspace", tmp_path, "--json").stdout)
    quietsum("verify", "--workspace", tmp_path, "--anchor", kept)
    for left in tmp_path.glob("ledger.db*"):
        left.unlink()
    sample(path)
    quietsum("verify", "--workspace", tmp_path)  # the control: by itself it is in order
    assert "was replaced" in quietsum("verify", "--workspace", tmp_path, "--anchor", kept, code=4).stderr


def coordinator(path: Path, *names: str) -> Path:
    """The ledger of a coordinator that has heard of sites with these names."""
    with Ledger.open(path / "ledger.db", create=True) as ledger:
        open_run(ledger, names[0])  # a run may be called as a party is
        ledger.witness(names[0], {name: memory_ledger().testimony() for name in names})
    return path


def test_a_beginning_that_fits_several_is_refused_and_a_whole_name_is_not(tmp_path: Path) -> None:
    here = ("--workspace", coordinator(tmp_path, "north", "northwest", "south"))
    told = quietsum("receipts", *here, "--of", "nor", code=2).stderr
    assert "several names: north (" in told and "northwest (" in told and "south" not in told
    told = quietsum("receipts", *here, "--of", "north", "--output", tmp_path / "seen.jsonl").stdout
    assert "1 heads of 1 ledgers" in told and "next, at north: quietsum" in told
    told = quietsum("receipts", *here, "--of", "nobody", code=2).stderr
    assert "are not in this ledger; it holds those of north (" in told


def test_long_names_do_not_widen_the_page(tmp_path: Path) -> None:
    here = ("--workspace", coordinator(tmp_path, "x" * 190, "y" * 190))
    told = quietsum("receipts", *here).stdout
    assert max(map(len, told.partition("next:")[0].splitlines())) <= 80
    told = quietsum("receipts", *here, "--of", "x", "--output", tmp_path / "seen.jsonl").stdout
    assert max(len(line) for line in told.splitlines() if "wrote" not in line) <= 80


def test_a_ledger_without_receipts_says_where_they_come_from(tmp_path: Path) -> None:
    sample(tmp_path / "ledger.db")
    for more in ((), ("--of", "va")):
        assert "--on flower" in quietsum("receipts", "--workspace", tmp_path, *more, code=2).stderr


# ------------------------------------------------------------------------------- what came outside of rounds


ALL_CLIENTS = CLIENTS.replace("rate = 0.5", "rate = 1.0")
PER_CLIENT = {"record": None, "client": UnitPolicy(epsilon=100.0, delta=1e-3)}


@pytest.mark.parametrize(
    ("text", "policy", "at_site"),
    [(PLAN, {}, "witness  enrolment"), (ALL_CLIENTS, PER_CLIENT, "reserve  enrolment")],
)
def test_show_says_what_came_outside_of_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, policy: dict[str, Any], at_site: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    plan = plan_of(text)
    federation, _, _ = remote(places_for(plan, tmp_path, **policy))
    start(plan, workspace=Workspace.at(tmp_path / "coordinator"), federation=federation, name="one")
    told = quietsum("show", "--workspace", tmp_path / "coordinator").stdout
    assert "witness  end of run  one" in told and "round 0" not in told
    told = quietsum("show", "--workspace", tmp_path / "va").stdout
    assert "witness  enrolled again, or end of run" in told and "round 0" not in told
    with Ledger.open(tmp_path / "va" / "ledger.db", read_only=True) as ledger:
        lines = [f"{entry.kind.value:<8} {describe_entry(ledger, entry)[0]}" for entry in ledger.entries()]
    assert sum("enrolment" in line for line in lines) >= 1 and any(at_site in line for line in lines)
    assert not any("round 0" in line for line in lines)
    assert max(map(len, told.partition("next:")[0].splitlines())) <= 80


def test_rounds_stay_as_they_are(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger)
        play(ledger)
    told = quietsum("show", "--workspace", tmp_path).stdout
    assert told.count("round 1, attempt 1") == 2 and "end of run" not in told
