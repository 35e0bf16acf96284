"""A tracking store gets what the operator's circle may see, and no trouble with it ever reaches a run."""

from __future__ import annotations

import contextlib
import http.server
import importlib.util
import json
import logging
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlflow")
pytest.importorskip("alembic")

from typer.testing import CliRunner

from quietsum import report
from quietsum.cli.app import app
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.local import LocalFederation
from quietsum.federation.watch import PartyDropped, RoundFinished, RunEvent, RunFinished, RunStarted, event_to_dict
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.plan import Plan, load_plan, resolve
from quietsum.plan.text.template import template
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Observer, PrivacyUnit
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.progress import EventLines
from quietsum.runs.run import RunResult, resume_run, start
from quietsum.runs.tracking import pieces as tracking, watcher as watching
from quietsum.runs.tracking.address import check_address, without_secrets
from quietsum.runs.tracking.pieces import EarlierRounds, Ending, File, Round, RunOpening, Store, StorePiece
from quietsum.runs.tracking.values import LONGEST_VALUE, collect_spent, flatten_plan
from quietsum.runs.tracking.watcher import MlflowWatcher
from quietsum.tasks import task_of
from tiny import TinyTask, tiny_plan

HEART = template(task="heart", preset=None, style="sample").replace("rounds = 20", "rounds = 4")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow puts mlruns/ into the working folder
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module")
def fresh_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite store with its tables: making them takes a second, copying them nothing."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.tracking import MlflowClient

    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(fresh_store: Path, tmp_path: Path) -> str:
    shutil.copy(fresh_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def runs_in(uri: str) -> list[Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("quietsum")
    return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))


def history(uri: str, run: Any, name: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    return [(one.step, one.value) for one in MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, name)]


def artefacts(run: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(run.info.artifact_uri).iterdir()}


def heart(watcher: MlflowWatcher | None, name: str = "run", *more: Any) -> RunResult:
    """A seeded run of four hospitals, watched or not."""
    plan = load_plan(HEART)
    task = task_of(plan)
    resolved = resolve(plan, task.parties(), task.dimension)
    return start(
        plan, workspace=Workspace(path=Path("workspace")), name=name, task=task,
        federation=LocalFederation.of(task, resolved, rng=randomness_for_tests(7)), rng=randomness_for_tests(8),
        watchers=[*more, *([] if watcher is None else [watcher])],
        opened=None if watcher is None else watcher.open,
    )  # fmt: skip


def model(result: RunResult) -> Any:
    return checkpoints.read_model(result.folder.model)[0]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="quietsum")
    return caplog


# -------------------------------------------------------------------------------------------- a store that works


def test_a_run_in_a_real_store_has_its_epsilons_metrics_plan_and_model(
    store: str, heard: pytest.LogCaptureFixture
) -> None:
    class Spent:
        def __init__(self) -> None:
            self.rounds: list[RoundFinished] = []

        def saw(self, event: RunEvent) -> None:
            if isinstance(event, RoundFinished):
                self.rounds.append(event)

    seen = Spent()
    with MlflowWatcher(store) as watcher:
        result = heart(watcher, "run", seen)
    assert warnings(heard) == []
    (run,) = runs_in(store)
    assert history(store, run, "privacy_epsilon/record") == [
        (one.round, max(found.epsilon for found in one.reserved)) for one in seen.rounds
    ]
    assert history(store, run, "privacy_delta/record") == [(number, 1e-5) for number in (1, 2, 3, 4)]
    assert history(store, run, "accuracy") == [(one.round, one.metrics["accuracy"]) for one in seen.rounds]
    tags, params = run.data.tags, run.data.params
    assert tags["quietsum.metric.accuracy.on"] == "254 published hold-out rows"
    assert "against the server and recipients of the model" in tags["quietsum.privacy.record"]
    assert (tags["quietsum.run"], tags["quietsum.task"], tags["quietsum.style"]) == ("run", "heart", "sample")
    assert (tags["quietsum.outcome"], tags["operator_only"], run.info.status) == ("finished", "true", "FINISHED")
    with Ledger.open(Path("workspace/ledger.db"), read_only=True) as ledger:
        assert tags["quietsum.ledger"] == ledger.identity.ledger
        assert tags["quietsum.ledger.head"] == f"{ledger.head.sequence} {ledger.head.hash}"
    assert params["privacy.record.epsilon"] == "1.0" and params["federation.rounds"] == "4"
    found = artefacts(run)
    assert found["plan.toml"] == (result.folder.path / "plan.toml").read_bytes()
    assert found["model.safetensors"] == result.folder.model.read_bytes()
    assert run.info.user_id == "unknown" and not {name for name in tags if name.startswith("mlflow.source")}


def test_the_command_sends_the_report_too_and_a_resumed_run_goes_on_in_the_same_place(store: str) -> None:
    Path("run.toml").write_text(HEART, encoding="utf-8")
    arguments = ["run", "run.toml", "--name", "run", "--mlflow", store, "--workspace", "workspace"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0 and result.stderr == "", result.output
    (run,) = runs_in(store)
    folder = Path("workspace/runs/run")
    assert artefacts(run) == {
        name: (folder / name).read_bytes() for name in ("plan.toml", "model.safetensors", "report.json", "report.html")
    }
    assert json.loads((folder / "mlflow.json").read_text())["run_id"] == run.info.run_id
    again = CliRunner().invoke(app, ["run", "--resume", "run", "--mlflow", store, "--workspace", "workspace"])
    assert again.exit_code == 0, again.output
    assert [one.info.run_id for one in runs_in(store)] == [run.info.run_id]


class StopAfter:
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def saw(self, event: RunEvent) -> None:
        if isinstance(event, RoundFinished) and event.round == self.rounds:
            raise KeyboardInterrupt


def tiny(store: str, place: str = "workspace", plan: Plan | None = None, **more: Any) -> RunFolder:
    """A tiny run that is stopped after its first round, watched."""
    workspace = Workspace(path=Path(place))
    with MlflowWatcher(store) as watcher, pytest.raises(KeyboardInterrupt):
        start(
            plan or tiny_plan(), workspace=workspace, name="run", task=TinyTask(**more),
            watchers=[watcher, StopAfter(1)], opened=watcher.open,
        )  # fmt: skip
    return workspace.find("run")


def go_on(store: str, folder: RunFolder, place: str = "workspace") -> None:
    with MlflowWatcher(store) as watcher:
        workspace = Workspace(path=Path(place))
        resume_run(folder, workspace=workspace, task=TinyTask(), watchers=[watcher], opened=watcher.open)


@pytest.mark.parametrize("note", ["kept", "lost", "garbage", "of another run"])
def test_a_resumed_run_is_found_again_by_its_note_or_by_its_tags(store: str, note: str) -> None:
    folder = tiny(store)
    (stopped,) = runs_in(store)
    assert (stopped.info.status, stopped.data.tags["quietsum.outcome"]) == ("KILLED", "interrupted")
    path = folder.path / "mlflow.json"
    match note:
        case "lost":
            path.unlink()
        case "garbage":
            path.write_text("{")
        case "of another run":
            other = tiny(store, "elsewhere")
            path.write_bytes((other.path / "mlflow.json").read_bytes())
    go_on(store, folder)
    (run,) = [one for one in runs_in(store) if one.info.run_id == stopped.info.run_id]
    assert [step for step, _ in history(store, run, "privacy_epsilon/record")] == [1, 2, 3]
    assert (run.info.status, run.data.tags["quietsum.outcome"]) == ("FINISHED", "finished")
    assert len(runs_in(store)) == (2 if note == "of another run" else 1)


def opening(folder: Path, run: str, ledger: str = "0123") -> RunOpening:
    tags = {"quietsum.run": run, "quietsum.ledger": ledger}
    folder.mkdir(exist_ok=True)
    return RunOpening(folder=folder, run=run, ledger=ledger, experiment="quietsum", tags=tags, params={})


@pytest.mark.parametrize("name", ["o'brien", 'say "a"', "both ' and \"", "tags.`x` = 'y", "%", "plain", "zoë"])
def test_a_run_is_found_again_whatever_it_is_called(
    store: str, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PAGE", 1)  # so that there are pages
    for folder, run in (("a", "another"), ("b", name), ("c", "o"), ("d", "brien")):
        Store(store).send([opening(tmp_path / folder, run)])
    Store(store).send([opening(tmp_path / "e", name, ledger="4567")])
    (tmp_path / "b" / "mlflow.json").unlink()  # only the tags are left
    Store(store).send([opening(tmp_path / "b", name)])
    assert len(runs_in(store)) == 5
    found = json.loads((tmp_path / "b" / "mlflow.json").read_text())["run_id"]
    (run,) = [one for one in runs_in(store) if one.info.run_id == found]
    assert (run.data.tags["quietsum.run"], run.data.tags["quietsum.ledger"]) == (name, "0123")


def test_the_control_a_quote_in_a_filter_is_no_filter(store: str) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    with pytest.raises(MlflowException):
        MlflowClient(tracking_uri=store).search_runs(["0"], filter_string="tags.`quietsum.run` = 'o'brien'")


def test_runs_of_one_name_in_two_workspaces_are_two_runs_there(store: str) -> None:
    tiny(store, "one")
    tiny(store, "other")
    assert len({run.data.tags["quietsum.ledger"] for run in runs_in(store)}) == 2


def test_a_run_that_was_deleted_there_begins_anew(store: str) -> None:
    from mlflow.tracking import MlflowClient

    folder = tiny(store)
    (gone,) = runs_in(store)
    MlflowClient(tracking_uri=store).delete_run(gone.info.run_id)
    go_on(store, folder)
    (run,) = runs_in(store)
    assert run.info.run_id != gone.info.run_id and run.info.status == "FINISHED"


def test_a_report_of_an_earlier_ending_is_not_sent_again(store: str) -> None:
    folder = tiny(store)
    report.write(folder, Workspace(path=Path("workspace")))
    assert (folder.path / "report.json").exists()
    go_on(store, folder)
    (run,) = runs_in(store)
    assert set(artefacts(run)) == {"plan.toml", "model.safetensors"}


# ------------------------------------------------------------------------------------------------ what is not sent


def test_rule_5_who_took_part_never_reaches_the_store(store: str) -> None:
    folder = tiny(store)
    with MlflowWatcher(store) as watcher:
        watcher.open(folder)
        for event in events():
            watcher.saw(event)
    with contextlib.closing(sqlite3.connect(store.removeprefix("sqlite:///"))) as database:
        text = "\n".join(line for line in database.iterdump() if line.startswith("INSERT"))
    text += "".join(data.decode(errors="replace") for run in runs_in(store) for data in artefacts(run).values())
    assert "privacy_epsilon/record" in text and "accuracy" in text, "the control: what should be there is there"
    for word in ("Smallville", "Bigtown", "caught fire", "asked", "kept", "refund", "4711"):
        assert word not in text


def events() -> Iterator[RunEvent]:
    """A run with a party whose name and fate are nobody's business."""
    yield RunStarted(
        run="run", task="tiny", style="sample", parties=4711, rounds=1, first_round=1, epsilon=1.0, delta=1e-5,
        unit="record", protected=True,
    )  # fmt: skip
    yield PartyDropped(round=2, party="Smallville", reason="it caught fire", refunded=True)
    yield finished_round(2, Guarantee(epsilon=0.5, delta=1e-5, method="exact"))
    yield RunFinished(outcome="too-few-parties", round=2, reason="Smallville caught fire")


def finished_round(number: int, *spent: Guarantee, value: float = 0.75) -> RoundFinished:
    return RoundFinished(
        round=number, rounds=9, asked=4711, kept=("Bigtown",), metrics={"accuracy": value},
        metrics_on={"accuracy": "public rows"}, spent=(), reserved=spent, limits={"record": 1.0},
    )  # fmt: skip


def test_rule_5_the_epsilon_that_is_tracked_does_not_tell_that_the_worst_party_refused(store: str) -> None:
    class Seen(list[RoundFinished]):
        def saw(self, event: RunEvent) -> None:
            if isinstance(event, RoundFinished):
                self.append(event)

    tracked, old_way, told = [], [], []
    for name, refusing in (("everyone", []), ("without", ["south"])):
        plan = tiny_plan(
            federation={"simulate": {"refusing": refusing}, "minimum_parties": 1},
            training={"sample_rate": None, "batch_size": 4},  # of 8 rows in the south, of 12 in the north
        )
        seen = Seen()
        with MlflowWatcher(store) as watcher:
            start(
                plan, workspace=Workspace(path=Path(name)), name=name, task=TinyTask(), watchers=[watcher, seen],
                opened=watcher.open,
            )  # fmt: skip
        (run,) = [one for one in runs_in(store) if one.data.tags["quietsum.run"] == name]
        tracked.append(history(store, run, "privacy_epsilon/record"))
        told.append({key: text for key, text in run.data.tags.items() if key.startswith("quietsum.privacy")})
        old_way.append([collect_spent(one.spent)[0]["privacy_epsilon/record"] for one in seen])
    assert tracked[0] == tracked[1] and len(tracked[0]) == 3 and told[0] == told[1]
    assert [epsilon for _, epsilon in tracked[0]] == old_way[0]
    assert max(old_way[1]) < 0.9 * max(old_way[0]), "the control: by what is spent one sees it"


def test_an_infinite_epsilon_is_a_tag_and_never_a_number(store: str) -> None:
    plan = tiny_plan(privacy={"style": "none", "record": None})
    tiny(store, plan=plan, public="made up for a test")
    (run,) = runs_in(store)
    assert not [name for name in run.data.metrics if name.startswith("privacy")]
    assert run.data.tags["quietsum.privacy"] == "no guarantee"
    numbers, tags = collect_spent((Guarantee(epsilon=float("inf"), delta=1e-5, method="none"),))
    assert numbers == {} and tags["quietsum.privacy.record"].startswith("no guarantee per record")


def test_of_two_observers_the_larger_epsilon_is_sent_with_its_delta_and_its_name() -> None:
    def promise(epsilon: float, delta: float, unit: PrivacyUnit, observer: Observer) -> Guarantee:
        return Guarantee(epsilon=epsilon, delta=delta, unit=unit, observer=observer, method="exact")

    numbers, tags = collect_spent(
        (
            promise(2.0, 1e-5, PrivacyUnit.RECORD, Observer.SERVER),
            promise(1.0, 1e-6, PrivacyUnit.RECORD, Observer.RECIPIENTS),
            promise(3.0, 1e-3, PrivacyUnit.CLIENT, Observer.RECIPIENTS),
            promise(float("inf"), 1e-3, PrivacyUnit.PERSON, Observer.SERVER),
            promise(1.0, 1e-3, PrivacyUnit.PERSON, Observer.RECIPIENTS),
        )
    )
    assert numbers == {
        "privacy_epsilon/record": 2.0, "privacy_delta/record": 1e-5,
        "privacy_epsilon/client": 3.0, "privacy_delta/client": 1e-3,
    }  # fmt: skip
    assert tags["quietsum.privacy.record"].startswith("per record, against the server,")
    assert tags["quietsum.privacy.client"].startswith("per client, against recipients of the model,")
    assert tags["quietsum.privacy.person"] == "no guarantee per person against the server"


def test_long_parameters_are_cut_and_odd_names_made_plain() -> None:
    found = flatten_plan({"task": {"options": {"a(b)": "x" * 9999, "none": None, "on": True}}})
    assert len(found["task.options.a_b_"]) == LONGEST_VALUE and found["task.options.a_b_"].endswith("…")
    assert found["task.options.on"] == "true" and "task.options.none" not in found


def test_a_metric_that_is_no_number_is_a_tag(store: str) -> None:
    folder = tiny(store)
    with MlflowWatcher(store) as watcher:
        watcher.open(folder)
        watcher.saw(next(events()))
        watcher.saw(finished_round(2, value=float("nan")))
    (run,) = runs_in(store)
    assert run.data.tags["quietsum.metric.accuracy.not_finite"] == "round 2" and "accuracy" not in run.data.metrics


# ---------------------------------------------------------------------------------------------- stores in trouble


@pytest.fixture
def silent_server() -> Iterator[str]:
    """It accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in held:
            one.close()


def dead_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://ann:geheim@127.0.0.1:{server.getsockname()[1]}"


def test_a_run_is_the_same_without_a_store_with_one_with_a_dead_and_with_a_silent_one(
    store: str, silent_server: str, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    plain = model(heart(None, "plain"))
    for name, uri, told in (("live", store, 0), ("dead", dead_port(), 2), ("silent", silent_server, 2)):
        heard.clear()
        with MlflowWatcher(uri) as watcher:
            result = heart(watcher, name)
        np.testing.assert_array_equal(model(result), plain)
        assert result.outcome == "finished"
        messages = warnings(heard)
        assert len(messages) == told and "geheim" not in heard.text
        if told:
            assert "does not answer" in messages[0]
            for what in ("4 rounds", "plan.toml", "model.safetensors", "the outcome"):
                assert what in messages[1]


@pytest.mark.parametrize("code", [200, 302, 400, 403, 404, 429, 500, 503])
@pytest.mark.some(3)
def test_whatever_a_web_server_answers_the_run_ends_well(
    code: int, heard: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(b"<html>no tracking store</html>")

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *values: Any) -> None:
            pass

    monkeypatch.setattr(watching, "FIRST_WAIT", 0.001)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with MlflowWatcher(f"http://127.0.0.1:{server.server_port}") as watcher:
            place = Workspace(path=Path("workspace"))
            result = start(
                tiny_plan(), workspace=place, name="run", task=TinyTask(), watchers=[watcher], opened=watcher.open
            )
        server.shutdown()
    assert result.outcome == "finished"
    told = warnings(heard)
    assert len(told) == 2 and "the run goes on" in told[0] and "3 rounds" in told[1]


def test_a_user_who_wants_more_patience_of_mlflow_gets_it_and_what_was_unset_is_unset_again(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    for name in watching.CALM:
        if name != "MLFLOW_HTTP_REQUEST_TIMEOUT":
            monkeypatch.delenv(name, raising=False)
    seen: dict[str, str | None] = {}
    true_send = Store.send

    def send(self: Store, pieces: list[StorePiece]) -> None:
        seen.update({name: os.environ.get(name) for name in watching.CALM})
        true_send(self, pieces)

    monkeypatch.setattr(Store, "send", send)
    tiny(store)
    assert seen == {**watching.CALM, "MLFLOW_HTTP_REQUEST_TIMEOUT": "77"}
    assert {name for name in watching.CALM if name in os.environ} == {"MLFLOW_HTTP_REQUEST_TIMEOUT"}


@pytest.fixture
def web_store() -> Iterator[tuple[str, list[str]]]:
    """As much of a tracking server as one run needs, with a password in its address, and the paths it was asked for."""
    name = secrets.token_hex(16)  # MLflow remembers where the files of a run go, as long as the process lives
    run = {"info": {"run_id": name, "run_uuid": name, "experiment_id": "1", "artifact_uri": "mlflow-artifacts:/1/x"}}
    experiment = {"experiment": {"experiment_id": "1", "name": "quietsum", "lifecycle_stage": "active"}}
    answers = {
        "get-by-name": experiment,
        "create": {"run": run},
        "get": {"run": run},
        "update": {"run_info": run["info"]},
    }
    asked: list[str] = []

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append(path)
            body = json.dumps(answers.get(path.rpartition("/")[2], {})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def do_PUT(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *values: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://ann:geheim@127.0.0.1:{server.server_port}", asked
        server.shutdown()


@pytest.mark.parametrize("said", ["false", None])
def test_mlflow_prints_nothing_into_a_commands_output_and_no_password(
    web_store: tuple[str, list[str]],
    said: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    heard: pytest.LogCaptureFixture,
) -> None:
    (name,) = watching.MUTE
    monkeypatch.delenv(name, raising=False)
    if said is not None:
        monkeypatch.setenv(name, said)
    uri, asked = web_store
    tiny(uri)
    assert asked[-1].endswith("runs/update") and any("mlflow-artifacts" in path for path in asked)
    assert warnings(heard) == [] and os.environ.get(name) == said
    assert capsys.readouterr() == ("", "")


def test_the_control_left_alone_mlflow_prints_the_address_with_its_password(
    web_store: tuple[str, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MUTE", {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "false"})
    tiny(web_store[0])
    assert "geheim" in capsys.readouterr().out


class Scripted:
    """A store whose answers a test decides: errors to raise first, then it takes everything."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.taken = list(errors), list[StorePiece]()
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, uri: str) -> Scripted:
        return self

    def send(self, pieces: list[StorePiece]) -> None:
        self.gate.wait(20)
        if self.errors:
            raise self.errors.pop(0)
        self.taken += pieces

    is_silent = staticmethod(Store.is_silent)
    is_refusal = staticmethod(Store.is_refusal)

    @property
    def rounds(self) -> list[int]:
        return [piece.round for piece in self.taken if isinstance(piece, Round)]


def scripted(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> Scripted:
    made = Scripted(*errors)
    monkeypatch.setattr(watching, "Store", made)
    monkeypatch.setattr(watching, "FIRST_WAIT", 0.001)
    return made


def status(code: str) -> Exception:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ErrorCode

    return MlflowException("what http://ann:geheim@host says", error_code=ErrorCode.Value(code))


def watched(folder: RunFolder, rounds: int, **more: Any) -> None:
    with MlflowWatcher("http://localhost:1", **more) as watcher:
        watcher.open(folder)
        watcher.saw(next(events()))
        for number in range(1, rounds + 1):
            watcher.saw(finished_round(number))
        watcher.saw(RunFinished(outcome="finished", round=rounds, reason=""))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return start(tiny_plan(), workspace=Workspace(path=tmp_path / "w"), name="run", task=TinyTask()).folder


def test_a_store_that_comes_back_gets_everything_in_order(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    made = scripted(monkeypatch, ConnectionError("down"), ConnectionError("down"), TimeoutError("slow"))
    back = threading.Event()
    true_send = made.send

    def send(pieces: list[StorePiece]) -> None:
        true_send(pieces)
        back.set()

    monkeypatch.setattr(made, "send", send)
    with MlflowWatcher("http://localhost:1") as watcher:
        watcher.open(folder)
        watcher.saw(next(events()))
        for number in range(1, 121):
            watcher.saw(finished_round(number))
        assert back.wait(20)
    assert made.rounds == list(range(1, 121))
    assert isinstance(made.taken[0], RunOpening) and isinstance(made.taken[-1], Ending)
    assert [message.split(";")[0].split("1 ")[1] for message in warnings(heard)] == ["does not answer, or not well"]


def test_a_store_that_is_too_slow_loses_rounds_and_holds_up_nobody(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    made = scripted(monkeypatch)
    made.gate.clear()  # the first piece hangs; everything below happens while it does
    watched(folder, 50, room=10, patience=0.1)
    assert made.taken == []
    full, unsent = warnings(heard)
    assert "queue is full" in full and "50 rounds" in unsent and "model.safetensors" in unsent
    made.gate.set()


def test_what_a_store_refuses_is_left_out_and_the_rest_is_sent(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    made = scripted(monkeypatch)
    true_send = made.send

    def send(pieces: list[StorePiece]) -> None:
        if isinstance(pieces[0], File) and pieces[0].path.name == "model.safetensors":
            raise status("INVALID_PARAMETER_VALUE")
        true_send(pieces)

    monkeypatch.setattr(made, "send", send)
    watched(folder, 3)
    assert made.rounds == [1, 2, 3] and isinstance(made.taken[-1], Ending)
    refused, unsent = warnings(heard)
    assert "did not take something" in refused and "geheim" not in refused
    assert "model.safetensors" in unsent and "rounds" not in unsent


def test_what_fails_in_the_same_way_three_times_is_left_out_and_the_rest_is_sent(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    made = scripted(monkeypatch)
    true_send, tries = made.send, list[str]()

    def send(pieces: list[StorePiece]) -> None:
        if isinstance(pieces[0], File):
            tries.append(pieces[0].path.name)
            if pieces[0].path.name == "plan.toml":
                raise status("INTERNAL_ERROR")
        true_send(pieces)

    monkeypatch.setattr(made, "send", send)
    watched(folder, 3)
    assert tries.count("plan.toml") == 3 and tries.count("model.safetensors") == 1
    assert made.rounds == [1, 2, 3] and len(warnings(heard)) == 2 and "plan.toml" in warnings(heard)[1]


@pytest.mark.parametrize("code", ["INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED"])
def test_a_store_that_is_busy_for_a_while_gets_everything_when_it_is_back(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    made = scripted(monkeypatch, *(status(code) for _ in range(12)))
    monkeypatch.setattr(watching, "LONGEST_WAIT", 0.001)
    opened = threading.Event()
    true_send = made.send

    def send(pieces: list[StorePiece]) -> None:
        true_send(pieces)
        opened.set()

    monkeypatch.setattr(made, "send", send)
    with MlflowWatcher("http://localhost:1") as watcher:
        watcher.open(folder)
        watcher.saw(next(events()))
        watcher.saw(finished_round(1))
        assert opened.wait(20)
        if code != "INTERNAL_ERROR":  # a busy answer to rounds is waited for, too
            made.errors += [status(code) for _ in range(5)]
        watcher.saw(finished_round(2))
        watcher.saw(RunFinished(outcome="finished", round=2, reason=""))
        for _ in range(2000):
            if not made.errors:
                break
            threading.Event().wait(0.01)
    assert made.rounds == [1, 2] and isinstance(made.taken[-1], Ending)


def test_an_opening_that_fails_to_the_end_ends_with_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    made = scripted(monkeypatch, *(status("INTERNAL_ERROR") for _ in range(10_000)))
    watched(folder, 3)
    assert made.taken == [] and "3 rounds" in warnings(heard)[-1]
    assert "quietsum run --resume run --mlflow URI sends it" in warnings(heard)[-1]


def numbers_in(events_file: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in events_file.read_text().splitlines()]
    return [
        (one["round"], max(found["epsilon"] for found in one["reserved"]))
        for one in lines
        if one["event"] == "round-finished"
    ]


def test_rounds_that_were_made_without_a_store_are_sent_when_the_run_is_resumed_with_one(store: str) -> None:
    Path("run.toml").write_text(HEART)
    runner = CliRunner()
    assert runner.invoke(app, ["run", "run.toml", "--name", "late", "--workspace", "w"]).exit_code == 0
    folder = Workspace(path=Path("w")).find("late")
    for _ in range(2):  # the second time it has them
        ended = runner.invoke(app, ["run", "--resume", "late", "--workspace", "w", "--mlflow", store])
        assert ended.exit_code == 0, ended.output
        (run,) = runs_in(store)
        assert history(store, run, "privacy_epsilon/record") == numbers_in(folder.path / "events.jsonl")
        assert [step for step, _ in history(store, run, "accuracy")] == [1, 2, 3, 4]
    assert run.info.status == "FINISHED" and "model.safetensors" in artefacts(run)


def test_rounds_for_which_the_queue_had_no_room_are_sent_when_the_store_is_back(
    store: str, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(watching, "LONGEST_WAIT", 0.001)
    true_send, away = Store.send, threading.Event()
    away.set()

    def send(self: Store, pieces: list[StorePiece]) -> None:
        if away.is_set():
            raise ConnectionError("away")
        true_send(self, pieces)

    monkeypatch.setattr(Store, "send", send)

    class Back:
        def saw(self, event: RunEvent) -> None:
            if isinstance(event, RunFinished):
                away.clear()

    workspace = Workspace(path=Path("w"))
    with MlflowWatcher(store, room=1) as watcher:

        def opened(folder: RunFolder) -> None:
            watcher.open(folder)
            watchers.insert(0, lines.enter_context(EventLines(folder.path / "events.jsonl")))

        class Lines:
            def saw(self, event: RunEvent) -> None:
                for one in watchers:
                    one.saw(event)

        watchers: list[Any] = [watcher, Back()]
        with contextlib.ExitStack() as lines:
            start(tiny_plan(), workspace=workspace, name="run", task=TinyTask(), watchers=[Lines()], opened=opened)
    (run,) = runs_in(store)
    assert [step for step, _ in history(store, run, "privacy_epsilon/record")] == [1, 2, 3]
    assert any("queue is full" in text for text in warnings(heard))
    assert not any("not sent" in text for text in warnings(heard))


def test_a_line_of_events_that_is_damaged_or_later_is_passed_over(tmp_path: Path) -> None:
    good = event_to_dict(finished_round(1))
    other = [
        {**good, "round": 2, "reserved": [{}]}, {**good, "round": True}, {**good, "round": 2, "metrics": {"a": "b"}},
        {**good, "round": 9}, {**good, "round": 2, "metrics_on": {"accuracy": 3}}, {**good, "event": "round-started"},
    ]  # fmt: skip
    lines = [json.dumps(one, default=str) for one in (*other, good)] + ["{", '["round-finished"]', "[" * 9999]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    assert [one.round for one in EarlierRounds(path=tmp_path / "events.jsonl", last=8).read()] == [1]
    assert list(EarlierRounds(path=tmp_path / "none.jsonl", last=8).read()) == []


def test_a_store_that_lets_nobody_in_is_asked_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, heard: pytest.LogCaptureFixture
) -> None:
    made = scripted(monkeypatch, status("PERMISSION_DENIED"))
    watched(folder, 3)
    assert made.taken == [] and len(warnings(heard)) == 2


def test_an_event_that_cannot_be_read_harms_nobody(folder: RunFolder, heard: pytest.LogCaptureFixture) -> None:
    watcher = MlflowWatcher("http://localhost:1")
    watcher.open(folder)
    for _ in range(3):
        watcher.saw(RoundFinished(round=1, rounds=1, asked=1, kept=(), metrics={"x": "?"}, metrics_on={"x": ""}, spent=(), limits={}))  # type: ignore[dict-item]  # fmt: skip # noqa: E501
    assert len(warnings(heard)) == 1 and "could not be written" in warnings(heard)[0]
    watcher.close()
    watcher.close()


def test_a_watcher_that_saw_no_run_says_and_sends_nothing(heard: pytest.LogCaptureFixture) -> None:
    with MlflowWatcher("http://localhost:1") as watcher:
        watcher.saw(next(events()))
    assert warnings(heard) == []


# --------------------------------------------------------------------------------------------- mistakes and imports


@pytest.mark.parametrize("uri", ["", "foo", "localhost:5000", "ftp://x", "http", "htttp://ann:geheim@x"])
def test_what_is_no_store_is_refused_before_anything_is_spent(uri: str) -> None:
    with pytest.raises(InvalidParameter, match="no address of a tracking store") as refused:
        MlflowWatcher(uri)
    assert "geheim" not in str(refused.value)
    Path("run.toml").write_text(HEART, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "run.toml", "--mlflow", uri])
    assert result.exit_code == 2 and not Path("quietsum-workspace").exists()


@pytest.mark.parametrize(
    "text",
    [
        "https://ann:geheim@host/x",
        "https://geheim@host/x",
        "https://ann:ge/geheim@host/x",
        "https://ann:a@geheim@host/x",
        "https://ann:geheim?geheim=a&b@host/x",
        "postgresql://ann://geheim@host/x",
        "postgresql://host/x?password=geheim",
        "postgresql://host/x?sslmode=require&password=geheim#geheim",
        "https://host/x?sig=geheim&token=geheim;key=geheim",
        "could not open 'mysql+pymysql://ann:geheim@host/x?a=geheim' (twice: http://host/?t=geheim)",
        "connection to host failed: user=ann password=geheim",
        "{'password': 'geheim', \"access_token\": \"geheim\"}",
        "PGPASSWORD=geheim MLFLOW_TRACKING_TOKEN: geheim",
        "Authorization: Bearer geheim",
        "the header was Basic geheim",
    ],
)
def test_no_secret_of_an_address_is_told(text: str) -> None:
    told = without_secrets(text)
    assert "geheim" not in told and "***" in told
    assert ("host" in told) == ("host" in text), "where it was is still told"
    assert without_secrets(told) == told


@pytest.mark.parametrize("text", ["https://mlflow.example.org:5000/a/b", "sqlite:///mlflow.db", "no such table: runs"])
def test_the_control_what_holds_no_secret_is_told_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


def test_a_very_long_answer_is_masked_in_no_time() -> None:
    assert without_secrets("x" * 10**6) == "x" * 10**6  # a quadratic search would take minutes


def test_where_mlflow_is_missing_one_learns_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(QuietsumError, match=r"pip install 'quietsum\[mlflow\]'"):
        MlflowWatcher("sqlite:///mlflow.db")


CHILD = """
import sys, threading
from pathlib import Path
from quietsum.runs.tracking.watcher import MlflowWatcher
assert "mlflow" not in sys.modules
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from tiny import TinyTask, tiny_plan
with MlflowWatcher(sys.argv[1], patience=float(sys.argv[2])) as watcher:
    start(tiny_plan(), workspace=Workspace(path=Path("w")), name="run", task=TinyTask(), watchers=[watcher],
          opened=watcher.open)
import logging
assert not logging.getLogger("quietsum.runs.tracking.watcher").disabled
if "sqlite" in sys.argv[1]:
    from mlflow.telemetry import get_telemetry_client
    from mlflow.telemetry.utils import _IS_IN_CI_ENV_OR_TESTING
    print("telemetry", get_telemetry_client(), "a test", _IS_IN_CI_ENV_OR_TESTING)
print("end", Path("w/runs/run/model.safetensors").exists())
"""


def child(uri: str, patience: float) -> str:
    """A process of its own, which does not look like a test to MLflow."""
    passed = ("PATH", "HOME", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, uri, str(patience)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mlflow_is_loaded_late_and_its_telemetry_is_off(store: str) -> None:
    assert child(store, 20) == "telemetry None a test False\nend True\n"
    (run,) = runs_in(store)
    assert run.info.status == "FINISHED"


def test_a_process_ends_while_a_silent_server_still_holds_its_connection(silent_server: str) -> None:
    assert child(silent_server, 0.2) == "end True\n"


@pytest.mark.parametrize("uri", ["http://ann:geheim@mlflow.example.org", "http://ann@10.0.0.7:5000"])
def test_no_password_travels_in_the_clear(uri: str) -> None:
    with pytest.raises(InvalidParameter, match="to everybody on the way; use https://") as told:
        check_address(uri)
    assert "geheim" not in str(told.value)


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"])
def test_nor_does_one_from_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "geheim")
    with pytest.raises(InvalidParameter, match="everybody on the way"):
        check_address("http://mlflow.example.org")
    assert (
        check_address("https://mlflow.example.org")
        and check_address("http://127.0.0.1:5000")
        and check_address("sqlite:///x.db")
    )


def test_what_travels_in_the_clear_is_said_and_what_does_not_is_not(caplog: pytest.LogCaptureFixture) -> None:
    for uri in ("http://localhost:5000", "http://[::1]:5000", "http://127.0.0.1", "https://mlflow.example.org"):
        assert check_address(uri) == uri and not caplog.records
    check_address("http://mlflow.example.org:5000")
    assert "travels to mlflow.example.org in the clear" in caplog.text
    with pytest.raises(InvalidParameter, match="is no address"):
        check_address("http://[half")


def test_an_alert_is_a_tag_without_a_name_or_a_count_of_parties(store: str) -> None:
    from quietsum.alerts import Sender
    from quietsum.federation.watch import RunFinished
    from quietsum.runs.coordinator_alerts import AlertWatcher

    with MlflowWatcher(store) as watcher:
        alerts = AlertWatcher(Sender())
        alerts.open(None, watcher)
        heart(watcher)
        for party in ("va", "cleveland"):
            alerts.saw(PartyDropped(round=4, party=party, reason="gone", refunded=False))
        alerts.saw(RunFinished(outcome="too-few-parties", round=4, reason="2 of 4 answered, not va"))
    tags = {name: text for name, text in runs_in(store)[0].data.tags.items() if name.startswith("quietsum.alert")}
    assert tags == {"quietsum.alert.run-ended": "round 4: the run has stopped before its schedule was done (critical)"}
