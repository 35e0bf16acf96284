"""Ledgers on PostgreSQL of before the rebuild, restored from their dumps: they verify, show, go on and are corrected.

The folder ``before_postgres`` was written by an earlier commit (:mod:`old_books.make_before_postgres`). Every test
restores a copy into a schema of its own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ledger.postgres import server
from old_books.make_before_postgres import FOLDER, OLDER, SCHEMAS
from old_books.test_before_rooms import call, succeeds
from quietsum.ledger import Ledger

BEFORE = FOLDER
OPEN = ("--workspace", "workspace")


Restore = Callable[..., str]


@pytest.fixture
def restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restore:
    """Puts a kept workspace into the working folder and its ledger on a server that is trusted; returns the schema."""
    monkeypatch.chdir(tmp_path)

    def restored(name: str, altered: tuple[str, str] | None = None) -> str:
        address = put_back(tmp_path, name, altered)
        monkeypatch.setenv("QUIETSUM_LEDGER_URL", address)
        return address.split("schema=")[1]

    return restored


def put_back(place: Path, name: str, altered: tuple[str, str] | None) -> str:
    """The workspace in ``place`` and its ledger on the server, whose address is returned."""
    address = server().schema()
    schema = address.split("schema=")[1]
    text = (BEFORE / f"{name}.sql").read_text().replace(SCHEMAS[name], schema)
    if altered is not None:
        assert altered[0] in text
        text = text.replace(*altered, 1)
    server().sql(text)
    place = shutil.copytree(BEFORE / name, place / "workspace")
    if name == "moved":
        for folder in ("runs", "training"):
            shutil.copytree(OLDER / folder, place / folder)
    (place / "ledger.db.url").write_text(address + "\n")
    for path in (*place.glob("ledger.db*"), *place.glob("alerts.log*"), *place.rglob("run.db")):
        path.chmod(0o600)
    return address


def kinds() -> list[str]:
    with Ledger.open(Path("workspace/ledger.db"), read_only=True) as ledger:
        return [entry.kind.value for entry in ledger.entries()]


def shown(*words: str) -> Any:
    return json.loads(succeeds(*words, *OPEN, "--json").stdout)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_restored_ledger_verifies_and_what_it_spent_is_shown(restore: Restore, name: str) -> None:
    restore(name)
    before = kinds()
    succeeds("ledger", "verify", *OPEN)
    succeeds("ledger", "verify", *OPEN, "--every-signature")
    assert shown("ledger", "show")["books"]
    assert kinds() == before


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_control_one_digit_altered_in_the_dump_is_found(restore: Restore, name: str) -> None:
    restore(name, ('"epsilon":', '"epsilon":1'))
    assert call("ledger", "verify", *OPEN).exit_code == 4


def test_the_control_an_entry_altered_at_the_server_is_found_and_nothing_goes_on(restore: Restore) -> None:
    schema = restore("shared")
    server().sql(
        f"ALTER TABLE {schema}.entries DISABLE TRIGGER ALL",
        f"UPDATE {schema}.entries SET body = replace(body, '\"rounds\":12', '\"rounds\":13')",
        f"ALTER TABLE {schema}.entries ENABLE TRIGGER ALL",
    )
    assert call("ledger", "verify", *OPEN).exit_code == 4
    assert call("run", "--resume", "stopped", *OPEN).exit_code == 4


def test_the_control_a_server_that_was_put_back_is_found_by_the_mark(restore: Restore) -> None:
    schema = restore("shared")
    server().sql(
        f"ALTER TABLE {schema}.entries DISABLE TRIGGER ALL",
        f"DELETE FROM {schema}.entries WHERE sequence = (SELECT max(sequence) FROM {schema}.entries)",
    )
    assert call("ledger", "verify", *OPEN).exit_code == 4


def test_the_runs_are_shown_and_the_stopped_one_goes_on_to_its_end(restore: Restore) -> None:
    restore("shared")
    assert {one["run"]: one["outcome"] for one in shown("runs")["runs"]} == {
        "finished": "finished", "stopped": "interrupted",
    }  # fmt: skip
    before, priced = kinds(), shown("show", "stopped")
    succeeds("run", "--resume", "stopped", *OPEN)
    after = shown("show", "stopped")
    assert (after["outcome"], after["round"]) == ("finished", 12)
    assert after["guarantees"][0]["epsilon"] == pytest.approx(priced["guarantees"][0]["epsilon"], rel=1e-9)
    assert kinds()[: len(before)] == before and len(kinds()) > len(before)
    assert "correction" not in kinds()  # prices are those of then
    succeeds("ledger", "verify", *OPEN, "--every-signature")


def test_a_new_run_is_charged_in_the_old_ledger(restore: Restore) -> None:
    restore("shared")
    before = kinds()
    succeeds("run", str(BEFORE / "finished.toml"), "--name", "again", *OPEN)
    assert kinds()[len(before) :].count("commit") == 4
    succeeds("ledger", "verify", *OPEN)


def test_older_prices_on_a_server_are_corrected_once_by_the_first_charge(restore: Restore) -> None:
    restore("moved")
    lines = {(one["run"], one["unit"]): one for one in shown("ledger", "show")["corrections"]}
    assert lines["people-done", "record"]["after"] > lines["people-done", "record"]["before"]
    assert "correction" not in kinds()  # looking writes nothing
    succeeds("run", "--resume", "stopped", *OPEN)
    succeeds("run", "--resume", "people-zero", *OPEN)
    assert kinds().count("correction") == 1
    succeeds("ledger", "verify", *OPEN, "--every-signature")
    succeeds("ledger", "export", "out.jsonl", *OPEN)
    succeeds("ledger", "verify", "--export", "out.jsonl")


def test_the_ledger_comes_back_into_a_file_and_goes_on_there(restore: Restore) -> None:
    restore("shared")
    before = kinds()
    succeeds("ledger", "move", "--to", "sqlite", *OPEN)
    assert Path("workspace/ledger.db").is_file() and kinds() == before
    succeeds("run", "--resume", "stopped", *OPEN)
    succeeds("ledger", "verify", *OPEN)
