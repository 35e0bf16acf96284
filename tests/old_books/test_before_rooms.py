"""Books of before the source tree was rebuilt: they verify, show, resume, and their formats are today's.

The folder ``before_rooms`` was written by an earlier commit (:mod:`old_books.make_before_rooms`). Every test works on a
copy. ``before_rooms.json`` holds what that commit's formats were, as :func:`today` found them there, with the modules
of :class:`Inside` where that commit had them:

    PYTHONPATH=../before/src:tests python -m old_books.test_before_rooms > tests/old_books/before_rooms.json

A key, option, event or command may be added. None may go, and none may change.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
from click.testing import Result
from typer.testing import CliRunner

HERE = Path(__file__).parent
BOOKS = HERE / "before_rooms"
KEPT = HERE / "before_rooms.json"
SCHEMA = HERE.parents[1] / "docs" / "reference" / "run.schema.json"
RUNS = ("asked", "finished", "groups", "hybrid", "secure", "stopped")
FIGURES = ("guarantees", "lifetime", "limit", "limits", "noise_multiplier", "spent", "sentences", "plan_digest")
EXAMPLES: tuple[dict[str, Any], ...] = (
    {"kind": "gaussian", "noise_multiplier": 1.5},
    {"kind": "laplace", "noise_multiplier": 2.0},
    {"kind": "discrete-laplace", "scale": 3.0, "sensitivity": 2},
    {"kind": "discrete-gaussian", "sigma": 4.0, "sensitivity": 1.0, "dimension": 3},
    {"kind": "discrete-gaussian-sum", "sigma": 4.0, "shares": 5, "sensitivity": 1.0, "dimension": 3},
    {"kind": "skellam", "variance": 9.0, "l1_sensitivity": 2.0, "l2_sensitivity": 1.0},
    {"kind": "skellam", "variance": 9.0, "l1_sensitivity": 2.0, "l2_sensitivity": 1.0, "dimension": 3},
    {"kind": "randomized-response", "keep_probability": 0.75, "categories": 4},
    {"kind": "pure-dp", "epsilon": 0.5},
    {"kind": "approximate-dp", "epsilon": 0.5, "delta": 1e-6},
    {"kind": "zcdp", "rho": 0.125},
    {"kind": "poisson-sampled", "rate": 0.25, "event": {"kind": "gaussian", "noise_multiplier": 1.5}},
    {"kind": "fixed-size-sampled", "rate": 0.25, "event": {"kind": "gaussian", "noise_multiplier": 1.5}},
    {"kind": "shuffled", "batches": 8, "event": {"kind": "gaussian", "noise_multiplier": 1.5}},
    {"kind": "repeated", "times": 7, "event": {"kind": "gaussian", "noise_multiplier": 1.5}},
    {"kind": "composed", "events": [{"kind": "gaussian", "noise_multiplier": 1.5}, {"kind": "zcdp", "rho": 0.125}]},
    {"kind": "group", "size": 3, "event": {"kind": "gaussian", "noise_multiplier": 1.5}},
    {"kind": "one-in-one-out", "event": {"kind": "gaussian", "noise_multiplier": 1.5}},
)


class Inside:
    """All that these tests need of the modules: where one of them moves, this is the place to follow it."""

    def __init__(self) -> None:
        from quietsum import errors, wire
        from quietsum.alerts import settings
        from quietsum.analytics.questions import question_keys
        from quietsum.cli import app as commands
        from quietsum.defence.validation.schema_file import schema_keys
        from quietsum.federation import watch
        from quietsum.ledger import Ledger
        from quietsum.party.policy_file import policy_keys
        from quietsum.plan import keys as plan_keys
        from quietsum.privacy import events
        from quietsum.secagg import keys, messages

        self.errors, self.events, self.watch, self.commands = errors, events, watch, commands
        self.ledger, self.wire, self.frames, self.identity = Ledger, wire, messages, keys.Identity
        self.keys = {
            "run.toml": plan_keys, "policy.toml": policy_keys, "data.toml": schema_keys,
            "questions.toml": question_keys, "alerts.toml": settings.alert_keys,
        }  # fmt: skip


def call(*arguments: object) -> Result:
    return CliRunner().invoke(Inside().commands.app, [str(argument) for argument in arguments])


def succeeds(*arguments: object) -> Result:
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a copy of the books with the modes that git does not keep."""
    place = shutil.copytree(BOOKS, tmp_path / "books")
    workspace = place / "workspace"
    for path in (*workspace.glob("ledger.db*"), *workspace.glob("alerts.log*"), *workspace.rglob("run.db")):
        path.chmod(0o600)
    monkeypatch.chdir(place)
    return place


# ------------------------------------------------------------------------------------ what the formats are today


def today() -> dict[str, Any]:
    """The formats that the code at hand writes and reads, as plain values."""
    return {
        "commands": dict(_commands(typer.main.get_command(Inside().commands.app), "quietsum")),
        "entries": _entries(BOOKS / "workspace" / "ledger.db"),
        "events": _events(),
        "exit codes": _exit_codes(),
        "keys": {name: sorted(keys()) for name, keys in Inside().keys.items()},
        "messages": _messages(),
        "run events": {kind.kind: _fields(kind) for kind in Inside().watch.RunEvent.__subclasses__()},
        "schema of run.toml": sorted(set(_schema_keys(json.loads(SCHEMA.read_text())))),
        "tables": _fresh_tables(),
    }


def _commands(command: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    """Each command by its path, with the names of its options, long and short."""
    options = (one for one in command.params if one.param_type_name == "option")
    yield path, sorted({name for one in options for name in (*one.opts, *one.secondary_opts)})
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")


def _entries(path: Path) -> dict[str, Any]:
    """The hashes of a ledger's entries, in order, and one digest of them all."""
    hashes = [str(row[0]) for row in _rows(path, "SELECT hash FROM entries ORDER BY sequence")]
    return {"hashes": hashes, "sha256": hashlib.sha256("\n".join(hashes).encode()).hexdigest()}


def _events() -> list[dict[str, Any]]:
    """Of each kind of privacy event: its fields, and an example as it is written."""
    events = Inside().events
    made = [events.from_dict(example) for example in EXAMPLES]
    return [{"kind": one.kind, "fields": _fields(type(one)), "json": events.to_json(one)} for one in made]


def _fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _exit_codes() -> dict[str, int]:
    inside = Inside()
    codes = {
        name: int(found.exit_code)  # type: ignore[attr-defined]  # of whichever version is inside
        for name, found in vars(inside.errors).items()
        if isinstance(found, type) and issubclass(found, inside.errors.QuietsumError)
    }
    for name in ("PASSING", "USAGE", "INTERRUPTED", "BROKEN_PIPE"):
        codes[name] = getattr(inside.commands, name)
    return codes


def _messages() -> dict[str, Any]:
    """How a message between machines begins, and a frame of secure aggregation: both are written here."""
    inside = Inside()
    with tempfile.TemporaryDirectory() as folder, inside.ledger.open(Path(folder) / "ledger.db", create=True) as ledger:
        letter, _ = inside.wire.write_letter("hello", {}, ledger, payload=b"more")
    header, _ = json.JSONDecoder().raw_decode(letter[10:].decode("latin-1"))
    frames = inside.frames
    frame = frames.write_frame(
        frames.Step.OPEN, bytes(32), sender="a", receiver="b", payload=b"more", identity=inside.identity.fresh()
    )
    return {
        "message begins": letter[:6].hex(),
        "header": sorted(header),
        "protocol": header["protocol"],
        "frame begins": frame[:5].hex(),
        "frame without its signature": frame[:-64].hex(),
        "steps": {step.name: step.value for step in frames.Step},
    }


def _schema_keys(schema: Mapping[str, Any]) -> Iterator[str]:
    """Every key by its full path, as a JSON schema tells them."""

    def inside(part: Any, path: str, above: tuple[str, ...]) -> Iterator[str]:
        if isinstance(part, list):
            for one in part:
                yield from inside(one, path, above)
        elif isinstance(part, dict):
            name = part.get("$ref", "")
            if name and name not in above:
                yield from inside(schema["$defs"][name.rpartition("/")[2]], path, (*above, name))
            for way in ("anyOf", "oneOf", "allOf", "items"):
                yield from inside(part.get(way), path, above)
            for key, value in part.get("properties", {}).items():
                full = f"{path}.{key}" if path else key
                yield full
                yield from inside(value, full, above)

    yield from inside(dict(schema), "", ())


def _rows(path: Path, question: str) -> list[tuple[Any, ...]]:
    """Rows of a SQLite file. Beside the kept ones nothing is written; what lies in a write-ahead log is read, too."""
    still = "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro{still}", uri=True)) as opened:
        return opened.execute(question).fetchall()


def _tables(path: Path) -> dict[str, Any]:
    """What a SQLite file says of itself: its numbers, and every table, index and trigger as it was made."""
    numbers = {name: _rows(path, f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version")}
    made = _rows(path, "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name")
    return {**numbers, **{f"{kind} {name}": sql for kind, name, sql in made}}


def _fresh_tables() -> dict[str, Any]:
    """The tables of a ledger and of a run's record that a run writes now."""
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder).resolve() / "workspace"
        succeeds("run", BOOKS / "finished.toml", "--name", "fresh", "--workspace", workspace)
        files = {"ledger.db": workspace / "ledger.db", "run.db": workspace / "runs" / "fresh" / "run.db"}
        for path in files.values():
            with contextlib.closing(sqlite3.connect(path)) as opened:
                opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return {name: _tables(path) for name, path in files.items()}


# -------------------------------------------------------------------------------------------- comparing formats


def lost(kept: Any, now: Any, path: str = "") -> list[str]:
    """Where ``now`` lacks or changes something of ``kept``. Mappings and lists of words may have grown."""
    if isinstance(kept, dict) and isinstance(now, dict):
        gone = [f"{path}/{key} is gone" for key in kept if key not in now]
        return gone + [line for key in kept if key in now for line in lost(kept[key], now[key], f"{path}/{key}")]
    if _words(kept) and _words(now):
        return [f"{path}/{word} is gone" for word in kept if word not in now]
    return [] if kept == now else [f"{path} was {kept!r} and is {now!r}"]


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KEPT.read_text())
    return found


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(today()))
    return found


GROWING = ("commands", "exit codes", "keys", "schema of run.toml")
"""To these something may be added; the others are what they were."""
FIXED = ("entries", "messages", "tables")


@pytest.mark.parametrize("part", GROWING)
def test_no_command_option_key_or_exit_code_is_lost_or_changed(
    kept: dict[str, Any], now: dict[str, Any], part: str
) -> None:
    assert kept[part]
    assert lost(kept[part], now[part]) == []


@pytest.mark.parametrize("part", FIXED)
def test_hashes_messages_and_tables_are_what_they_were(kept: dict[str, Any], now: dict[str, Any], part: str) -> None:
    assert kept[part] and now[part] == kept[part]


def test_every_event_of_before_is_read_and_written_again_to_the_letter(kept: dict[str, Any]) -> None:
    events = Inside().events
    assert len({one["kind"] for one in kept["events"]}) == 17
    for one in kept["events"]:
        read = events.from_json(one["json"])
        assert (read.kind, _fields(type(read)), events.to_json(read)) == (one["kind"], one["fields"], one["json"])


def test_an_event_with_a_field_of_another_name_is_not_read(kept: dict[str, Any]) -> None:
    inside = Inside()
    for one in kept["events"]:
        field = next(name for name in one["fields"] if f'"{name}"' in one["json"])
        with pytest.raises(inside.errors.CorruptState):
            inside.events.from_json(one["json"].replace(f'"{field}"', '"another"'))


def test_every_event_of_a_run_has_the_fields_it_had(kept: dict[str, Any], now: dict[str, Any]) -> None:
    assert lost(kept["run events"], now["run events"]) == []
    written = [json.loads(line) for path in sorted(BOOKS.rglob("events.jsonl")) for line in path.open()]
    assert {line["event"] for line in written} >= {"run-started", "round-started", "round-finished", "run-finished"}
    for line in written:
        if line["event"] in kept["run events"]:
            assert set(line) - {"event"} == set(kept["run events"][line["event"]])


def test_a_lost_or_changed_format_is_found(now: dict[str, Any]) -> None:
    assert lost(now, copy.deepcopy(now)) == []
    for part in (*GROWING, "run events"):
        less = copy.deepcopy(now)
        if isinstance(less[part], dict):
            less[part].popitem()
        else:
            less[part].pop()
        assert len(lost(now, less)) == 1
    other = copy.deepcopy(now)
    other["exit codes"]["BudgetExhausted"] = 9
    other["commands"]["quietsum run"].remove("--resume")
    other["tables"]["ledger.db"]["table entries"] = "CREATE TABLE entries (sequence INTEGER)"
    other["entries"]["hashes"][0] = "0" * 64
    assert len(lost(now, other)) == 4


def test_the_kept_files_have_the_tables_that_a_run_writes_now(books: Path, now: dict[str, Any]) -> None:
    assert _tables(books / "workspace" / "ledger.db") == now["tables"]["ledger.db"]
    for run in RUNS:
        assert _tables(books / "workspace" / "runs" / run / "run.db") == now["tables"]["run.db"]


# ------------------------------------------------------------------------------------------------ using the books


def test_the_ledger_and_its_export_verify(books: Path) -> None:
    succeeds("ledger", "verify", "--workspace", "workspace")
    succeeds("ledger", "verify", "--workspace", "workspace", "--every-signature")
    succeeds("ledger", "verify", "--export", "export.jsonl")


def test_an_altered_export_is_refused(books: Path) -> None:
    text = Path("export.jsonl").read_text()
    assert '"size":60' in text
    Path("altered.jsonl").write_text(text.replace('"size":60', '"size":61', 1))
    assert call("ledger", "verify", "--export", "altered.jsonl").exit_code == 4


def test_an_altered_ledger_is_refused(books: Path) -> None:
    with contextlib.closing(sqlite3.connect("workspace/ledger.db")) as opened, opened:
        opened.execute("DROP TRIGGER entries_are_never_changed")
        opened.execute("""UPDATE entries SET body = replace(body, '"size":60', '"size":61')""")
    assert call("ledger", "verify", "--workspace", "workspace").exit_code == 4


def test_the_alerts_log_is_in_order_and_an_altered_one_is_not(books: Path) -> None:
    succeeds("alerts", "--verify", "--workspace", "workspace")
    log = Path("workspace/alerts.log")
    text = log.read_text()
    assert "no-better-than-chance" in text
    log.write_text(text.replace("no-better-than-chance", "no-worse-than-chance"))
    assert call("alerts", "--verify", "--workspace", "workspace").exit_code == 4


@pytest.mark.parametrize("run", RUNS)
def test_a_run_is_shown(books: Path, run: str) -> None:
    shown = json.loads(succeeds("show", run, "--workspace", "workspace", "--json").stdout)
    assert shown["run"] == run
    assert shown["outcome"] == ("interrupted" if run == "stopped" else "finished")


def test_all_runs_are_listed_and_compared(books: Path) -> None:
    for command in (["runs"], ["compare", *RUNS]):
        listed = json.loads(succeeds(*command, "--workspace", "workspace", "--json").stdout)
        assert {one["run"] for one in listed["runs"]} == set(RUNS)


def test_the_stopped_run_goes_on_to_its_end(books: Path) -> None:
    before = len(_entries(books / "workspace" / "ledger.db")["hashes"])
    succeeds("run", "--resume", "stopped", "--workspace", "workspace")
    shown = json.loads(succeeds("show", "stopped", "--workspace", "workspace", "--json").stdout)
    assert (shown["outcome"], shown["round"], shown["rounds"]) == ("finished", 12, 12)
    succeeds("ledger", "verify", "--workspace", "workspace", "--every-signature")
    assert len(_entries(books / "workspace" / "ledger.db")["hashes"]) > before


@pytest.mark.parametrize("run", ["finished", "hybrid", "secure", "groups"])
def test_a_report_that_is_written_again_has_the_same_figures(books: Path, run: str) -> None:
    folder = Path("workspace/runs") / run
    kept = json.loads((folder / "report.json").read_text())
    for name in ("report.json", "report.html"):
        (folder / name).unlink()
    succeeds("run", "--resume", run, "--workspace", "workspace")
    again = json.loads((folder / "report.json").read_text())
    kept["sentences"] = [line.replace("nobody who", "no one who") for line in kept["sentences"]]  # a later wording
    assert {name: again[name] for name in FIGURES} == {name: kept[name] for name in FIGURES}
    assert set(again) >= set(kept)
    assert (folder / "report.html").is_file()


def test_the_answers_are_shown_again_at_no_cost(books: Path) -> None:
    before = _entries(books / "workspace" / "ledger.db")
    again = json.loads(succeeds("ask", "--run", "asked", "--workspace", "workspace", "--json").stdout)
    kept = json.loads(Path("workspace/runs/asked/answers.json").read_text())
    assert again["answers"] == kept["answers"]
    assert _entries(books / "workspace" / "ledger.db") == before


def test_the_finished_training_is_known_to_be_done_and_charges_nothing_more(books: Path) -> None:
    (training,) = Path("workspace/training").iterdir()
    before = _entries(books / "workspace" / "ledger.db")
    done = call("train", "--resume", training.name, "--workspace", "workspace")
    assert done.exit_code == 3
    assert "the plan's 22 steps are done" in done.output
    assert _entries(books / "workspace" / "ledger.db") == before


def test_the_policy_is_read_and_only_the_keys_of_a_site_are_missing(books: Path) -> None:
    done = call("party", "check", "policy.toml")
    assert done.exit_code == 2
    assert "Basel: dataset my-dataset, 303 records" in done.output
    told = [line for line in done.output.splitlines() if line.startswith("error:")]
    assert sorted(line.split()[1] for line in told) == ["coordinator.node_key", "coordinator.root_certificate"]


if __name__ == "__main__":
    print(json.dumps(today(), indent=1, sort_keys=True))
