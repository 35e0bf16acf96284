"""``quietsum runs | show | compare``: what was run, what it cost, how good it is; for people and for programs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from quietsum.plan import load_plan
from quietsum.runs import folder as folders
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_named
from scenes import invoke, tiny_toml

TINY = tiny_toml(options='{ public = "made up for a test" }')
MORE_NOISE = TINY.replace("epsilon = 2.0", "epsilon = 0.5").replace("rounds = 3", "rounds = 4")


pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(autouse=True)
def _a_page_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run(text: str, name: str) -> None:
    Path("run.toml").write_text(text, encoding="utf-8")
    result = invoke("run", "run.toml", "--name", name)
    assert result.exit_code == 0, result.output


def stopped(text: str, name: str, after: int = 1) -> None:
    class Stop:
        def saw(self, event: Any) -> None:
            if event.kind == "round-finished" and event.round == after:
                raise KeyboardInterrupt

    plan = load_plan(text)
    task = task_named(plan.task.name, plan.task.options)
    with pytest.raises(KeyboardInterrupt):
        start(plan, workspace=Workspace.at(), name=name, task=task, watchers=[Stop()])


def shown(result: Result) -> str:
    """What a command printed, where it went well, fits 80 columns and names a next command that works."""
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80, result.stdout
    program, *arguments = shlex.split(result.stdout.split("next: ")[-1].replace("\\\n", " "))
    assert program.endswith("quietsum")
    following = invoke(*arguments)
    assert following.exit_code == 0, following.output
    return result.stdout


def words(text: str) -> str:
    return " ".join(text.split())


def test_without_runs_there_is_a_way_to_the_first_one() -> None:
    assert "no runs in quietsum-workspace yet" in shown(invoke("runs"))
    assert not Path("quietsum-workspace").exists()
    assert json.loads(invoke("runs", "--json").stdout)["runs"] == []


def test_every_run_is_listed_with_its_guarantee_and_the_data_it_was_measured_on() -> None:
    run(TINY, "first")
    run(MORE_NOISE, "second")
    text = shown(invoke("runs"))
    for said in ("first", "second", "3/3", "4/4", "finished", "per record", "measured on the true mean"):
        assert said in words(text), said
    values = json.loads(invoke("runs", "--json").stdout)
    assert [(row["run"], row["outcome"], row["round"]) for row in values["runs"]] == [
        ("first", "finished", 3), ("second", "finished", 4),
    ]  # fmt: skip
    assert [[one["unit"] for one in row["guarantees"]] for row in values["runs"]] == [["record"], ["record"]]
    assert values["runs"][0]["guarantees"][0]["epsilon"] == pytest.approx(2.0, rel=1e-3)
    assert values["runs"][1]["guarantees"][0]["epsilon"] == pytest.approx(0.5, rel=1e-3)


def test_one_run_is_shown_with_summary_sentence_curve_metric_and_head() -> None:
    run(TINY, "first")
    text = shown(invoke("show", "first"))
    for said in (
        "a tiny mean: 2 parties, 3 of 3 rounds, finished", "ε ≤ 2 per record at δ = 0.001", "ε per record after each",
        "No lifetime budget was used: made up for a test", "on the true mean, which is public", "ledger entry",
        "next: quietsum ledger verify",
    ):  # fmt: skip
        assert said in words(text), said


def test_a_run_may_be_named_by_its_folder() -> None:
    run(TINY, "first")
    assert shown(invoke("show", "quietsum-workspace/runs/first")) == shown(invoke("show", "first"))


def test_an_unfinished_run_is_shown_as_such_claims_the_whole_plan_and_can_be_resumed() -> None:
    stopped(TINY, "half")
    text = words(shown(invoke("show")))  # shown() also runs the next command, which finishes it
    assert "1 of 3 rounds, not finished" in text
    assert "ε ≤ 2 per record" in text
    assert "3 of 3 rounds, finished" in words(invoke("show").stdout)


def test_a_run_that_nobody_holds_was_interrupted_and_one_that_is_held_goes_on() -> None:
    stopped(TINY, "half")
    assert "interrupted" in shown(invoke("runs"))
    stopped(MORE_NOISE, "other")
    with Workspace.at().find("other").lock():
        rows = {row["run"]: row["outcome"] for row in json.loads(invoke("runs", "--json").stdout)["runs"]}
    assert rows == {"half": "interrupted", "other": "running"}


def test_latest_is_the_run_that_was_started_last(monkeypatch: pytest.MonkeyPatch) -> None:
    # Both start within one second, so a creation time in whole seconds cannot tell them apart.
    monkeypatch.setattr(folders, "utc_now", lambda: "2026-03-01T10:15:00+00:00")
    for name in ("b-first", "a-second"):
        run(TINY, name)
    assert json.loads(invoke("show", "latest", "--json").stdout)["run"] == "a-second"


def test_latest_does_not_depend_on_a_clock_that_was_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that jumps back must not make --resume latest go on with another run than the last one.
    run(TINY, "first")
    monkeypatch.setattr(folders, "utc_now", lambda: "1999-01-01T00:00:00+00:00")
    run(TINY, "second")
    assert json.loads(invoke("show", "latest", "--json").stdout)["run"] == "second"


def test_a_damaged_run_does_not_hide_the_others() -> None:
    # A list that ends at the first damaged folder is no list; that folder may be named as damaged.
    run(TINY, "good")
    run(TINY, "spoilt")
    Path("quietsum-workspace/runs/spoilt/plan.toml").unlink()
    result = invoke("runs")
    assert "good" in result.stdout and "finished" in result.stdout


def test_comparing_says_what_differs_and_nothing_else() -> None:
    run(TINY, "first")
    run(MORE_NOISE, "second")
    text = words(shown(invoke("compare", "first", "second")))
    assert "privacy.record.epsilon: 2.0 | 0.5" in text
    assert "federation.rounds: 3 | 4" in text
    assert "sample_rate" not in text
    values = json.loads(invoke("compare", "first", "second", "--json").stdout)
    assert values["plan"] == {"federation.rounds": [3, 4], "privacy.record.epsilon": [2.0, 0.5]}
    assert [row["run"] for row in values["runs"]] == ["first", "second"]


def test_equal_plans_are_said_to_be_equal() -> None:
    run(TINY, "first")
    run(TINY, "second")
    assert "the plans are equal" in shown(invoke("compare", "first", "second"))


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("show", "nobody"), "known runs: first"),
        (("compare", "first", "first"), "named twice"),
        (("compare", "first", "nobody"), "known runs: first"),
        (("compare", "first"), "Missing argument"),
        (("show", "first", "--workspace", "elsewhere"), "does not exist in elsewhere"),
    ],
)
def test_wrong_names_end_with_2_and_a_lesson(command: tuple[str, ...], told: str) -> None:
    run(TINY, "first")
    result = invoke(*command)
    assert result.exit_code == 2, result.output
    assert told in words(result.stderr) and "Traceback" not in result.output
    assert not Path("elsewhere").exists()


def test_a_run_shown_with_another_workspaces_ledger_is_refused() -> None:
    run(TINY, "first")
    Path("run.toml").write_text(TINY, encoding="utf-8")
    assert invoke("run", "run.toml", "--name", "other", "--workspace", "elsewhere").exit_code == 0
    result = invoke("show", "quietsum-workspace/runs/first", "--workspace", "elsewhere")
    assert result.exit_code in (2, 4)
    assert "is not the ledger of run first" in words(result.stderr)


def test_long_names_do_not_widen_the_page() -> None:
    run(TINY, "n" * 100)
    text = invoke("show").stdout
    lines = [line for line in text.splitlines() if "quietsum-workspace/runs/" not in line and "show n" not in line]
    assert max(len(line) for line in lines if "n" * 100 not in line) <= 80


def test_a_name_is_never_broken_and_a_pipe_gets_one_line_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["heart-20261116-142012-0eec", "n" * 100]
    for name in names:
        run(TINY, name)
    for columns in ("40", "80", "200", None):
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns is not None:
            monkeypatch.setenv("COLUMNS", columns)
        lines = invoke("runs").stdout.splitlines()
        found = [line.split(None, 1) for line in lines if line.startswith(tuple(names))]
        assert [name for name, _ in found] == names, columns
        if columns is None:
            assert [line.split()[0] for line in lines[:3]] == ["run", *names]
            assert all("finished  3/3" in rest and "δ 0.001" in rest and "distance" in rest for _, rest in found)


# --------------------------------------------------------------------------------------- the guarantee card


def test_a_run_folder_and_show_have_the_card_of_the_plan() -> None:
    from quietsum.plan import resolve
    from quietsum.plan.resolution.card import card

    run(TINY, "carded")
    plan = load_plan(TINY)
    task = task_named(plan.task.name, plan.task.options)
    wanted = card(resolve(plan, task.parties(), task.dimension))
    folder = Path("quietsum-workspace/runs/carded")
    assert (folder / "guarantee.md").read_text(encoding="utf-8") == wanted.to_markdown()
    assert json.loads((folder / "guarantee.json").read_text(encoding="utf-8")) == wanted.to_dict()
    shown = invoke("show", "carded").stdout
    assert wanted.to_text() in shown and "NOT PROVIDED: The server sees one sum a round" in shown
    assert json.loads(invoke("show", "carded", "--json").stdout)["card"] == wanted.to_dict()
    assert "NOT PROVIDED" in (folder / "report.html").read_text(encoding="utf-8")


def test_show_lists_the_layers_of_defence_from_the_plan_alone() -> None:
    run(TINY, "layered")
    shown = " ".join(invoke("show", "layered").stdout.split())
    assert "Layers of defence off input validation" in shown and "on local privacy" in shown
    values = json.loads(invoke("show", "layered", "--json").stdout)
    assert [layer["state"] for layer in values["layers"]] == ["off", "on", "off", "off", "on"]
    told = json.dumps(values["layers"])
    assert not any(party["name"] in told for party in values["parties"])  # what happened to whom is the operator's


def test_a_report_of_an_older_version_has_no_card_and_is_shown_all_the_same() -> None:
    from quietsum.report.pages.page import render_page

    run(TINY, "old")
    values = json.loads(Path("quietsum-workspace/runs/old/report.json").read_text(encoding="utf-8"))
    assert "Who learns what" in render_page(values)
    del values["card"]
    assert "Who learns what" not in render_page(values)


# ------------------------------------------------------------------------------------ for the operator alone

JUDGED = """
[task]
name = "tiny:TinyTask"
options = { public = "made up for a test", sizes = { a = 20, b = 20, c = 20, d = 20, e = 20, north-west = 20 } }
[federation]
rounds = 4
[training]
sample_rate = 1.0
local_steps = 1
[privacy]
style = "none"
[aggregation]
rule = "krum"
attackers = 1
[attack]
kind = "sign-flip"
parties = ["north-west"]
strength = 50.0
"""


def test_show_lists_for_the_operator_whom_the_rule_left_out_in_how_many_rounds() -> None:
    Path("run.toml").write_text(JUDGED, encoding="utf-8")
    printed = invoke("run", "run.toml", "--name", "drill").stdout
    assert "5 rejected" in printed and "in all: 20 updates left out by the rule" in printed
    text = shown(invoke("show", "drill"))
    assert "left out by krum, for the operator alone, in how many of 4 rounds" in words(text)
    lines = [line.split() for line in text.splitlines() if line.startswith("  north-west ")]
    assert lines[0][1] == "4" and "attacks in this drill" in words(text) and text.count("this drill") == 1
    assert "verdict" in text and "malicious" not in text
    told = json.loads(invoke("show", "drill", "--json").stdout)["operator_only"]["left_out"]
    assert told["rule"] == "krum" and told["rounds"] == 4
    assert sum(one["rounds"] for one in told["parties"]) == 20  # Krum takes one of six


def test_a_drill_promises_nothing_wherever_it_is_shown() -> None:
    text = JUDGED.replace('style = "none"', 'style = "sample"\nrecord = { epsilon = 2.0, delta = 1e-3 }')
    Path("run.toml").write_text(text, encoding="utf-8")
    printed = words(invoke("run", "run.toml", "--name", "drill").stdout)
    for said in (printed, words(invoke("show", "drill").stdout)):
        assert "A drill promises nothing" in said and "From this run alone" not in said
    assert "This is a drill; the card is that of the plan without [attack]" in words(invoke("show", "drill").stdout)
    page = Path("quietsum-workspace/runs/drill/report.html").read_text(encoding="utf-8")
    assert "The guarantee of the same plan without [attack]" in page
    listed = invoke("runs").stdout
    assert "none: a drill" in listed and "ε" not in listed
    run(TINY, "honest")
    honest = Path("quietsum-workspace/runs/honest/report.html").read_text(encoding="utf-8")
    assert "<h2>The guarantee</h2>" in honest and "ε ≤ 2" in invoke("runs").stdout  # the control
    assert "From this run alone" in words(invoke("show").stdout)


def test_whom_the_rule_left_out_is_in_no_file_for_others() -> None:
    Path("run.toml").write_text(JUDGED, encoding="utf-8")
    invoke("run", "run.toml", "--name", "drill")
    invoke("ledger", "export", "ledger.json")
    folder = Path("quietsum-workspace/runs/drill")
    others = [folder / name for name in ("report.json", "report.html", "guarantee.md", "guarantee.json", "task.json")]
    for path in (*others, folder / "model.safetensors", Path("ledger.json")):
        text = path.read_bytes().decode("utf-8", "replace")
        assert "left_out" not in text and "rejected" not in text and "krum, for the operator" not in text, path
    assert "rejected" in (folder / "events.jsonl").read_text(encoding="utf-8")  # the control: the operator's own file


def test_a_repeated_round_counts_once_and_one_that_was_never_finished_not_at_all(tmp_path: Path) -> None:
    from quietsum.federation.watch import PartyRejected, RoundFinished, RoundStarted
    from quietsum.runs.record import Recorder, read_left_out

    assert read_left_out(tmp_path / "run.db") is None
    with Recorder(tmp_path / "run.db") as recorder:
        for number, attempt, party, finished in ((1, 1, "b", False), (1, 2, "b", True), (2, 1, "a", False)):
            recorder.saw(RoundStarted(round=number, attempt=attempt))
            recorder.saw(PartyRejected(round=number, party=party, rule="krum", reason=f"try {attempt}"))
            if finished:
                recorder.saw(
                    RoundFinished(
                        round=number, rounds=2, asked=6, kept=("a",), metrics={}, metrics_on={}, spent=(), limits={}
                    )
                )
    found = read_left_out(tmp_path / "run.db")
    assert found is not None and found.parties == (("b", 1, "try 2"),) and found.rounds == 1


@pytest.mark.parametrize("bad", [("party", "\x1b[2J"), ("party", b"b"), ("reason", b"\xff"), ("rule", "")])
def test_a_table_of_rejections_that_somebody_has_changed_is_refused_in_one_line(
    tmp_path: Path, bad: tuple[str, object]
) -> None:
    import sqlite3

    from quietsum.errors import CorruptState
    from quietsum.federation.watch import PartyRejected, RoundStarted
    from quietsum.runs.record import Recorder, read_left_out

    with Recorder(tmp_path / "run.db") as recorder:
        recorder.saw(RoundStarted(round=1, attempt=1))
        recorder.saw(PartyRejected(round=1, party="b", rule="krum", reason="far away"))
    with sqlite3.connect(tmp_path / "run.db") as database:
        database.executescript("CREATE TABLE other AS SELECT * FROM rejected; DROP TABLE rejected;")
        database.executescript("ALTER TABLE other RENAME TO rejected; UPDATE rounds SET finished = 1;")
        database.execute(f"UPDATE rejected SET {bad[0]} = ?", (bad[1],))
    with pytest.raises(CorruptState, match=r"cannot be read .*move it away"):
        read_left_out(tmp_path / "run.db")


def test_a_training_at_one_site_is_listed_with_what_it_cost() -> None:
    pytest.importorskip("torch")
    line = ("train", "--task", "digits", "--epsilon", "3", "--epochs", "1", "--json")
    trained = json.loads(invoke(*line).stdout)
    (row,) = json.loads(invoke("runs", "--json").stdout)["trainings"]
    assert (row["run"], row["outcome"]) == (trained["run"], "finished")
    assert row["spent"][0]["epsilon"] == pytest.approx(trained["guarantee"]["epsilon"], rel=1e-6)
    text = shown(invoke("runs"))
    assert trained["run"] in text and "no runs" not in text
    assert row["claim"] == row["spent"] and "charged so far" not in text
    Path("quietsum-workspace/training", trained["run"], "model.safetensors").unlink()
    assert json.loads(invoke("runs", "--json").stdout)["trainings"][0]["outcome"] == "interrupted"


def test_a_training_that_ended_early_is_listed_at_the_price_of_its_whole_plan() -> None:
    pytest.importorskip("torch")
    import torch

    from quietsum.learning import PrivacyConfig, PrivateTrainer
    from quietsum.learning.callbacks import StopTraining

    def stop(epoch: object) -> None:
        raise StopTraining

    rows = torch.randn(200, 3), torch.arange(200) % 2
    config = PrivacyConfig(epsilon=3.0, delta=1e-4, epochs=10, batch_size=20, noise="fast")
    trainer = PrivateTrainer(
        torch.nn.Linear(3, 2), config, workspace="quietsum-workspace", run="early", selfcheck=False, checkpoint_every=1
    )
    trainer.train(rows, callbacks=stop)
    claim, so_far = trainer.guarantee(), trainer.get_privacy_spent()[0]
    trainer.close()
    assert so_far < 1.5 and claim.epsilon > 2.99  # the control: there is a smaller number to print
    Path("quietsum-workspace/training/early/options.json").write_text('{"config": {}}')
    (row,) = json.loads(invoke("runs", "--json").stdout)["trainings"]
    assert row["spent"][0]["epsilon"] == pytest.approx(so_far, rel=1e-6)
    assert row["claim"][0]["epsilon"] == pytest.approx(claim.epsilon, rel=1e-6)
    text = " ".join(shown(invoke("runs")).split())
    assert "ε ≤ 3.0000 per record" in text and "is charged so far" in text
    assert text.count("≤") == 1
