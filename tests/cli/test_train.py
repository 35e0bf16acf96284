"""``quietsum train`` from the command line."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from scipy.stats import norm
from torch import Tensor, nn
from typer.testing import CliRunner

from quietsum import failpoints
from quietsum.cli.app import Commands
from quietsum.cli.train.train import train
from quietsum.learning.step import cross_entropy
from quietsum.ledger import Ledger
from quietsum.tasks import Metrics, Settings

needs_data = pytest.mark.skipif(not os.environ.get("QUIETSUM_DATA"), reason="set QUIETSUM_DATA to read the real files")
app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
app.command()(train)


@app.callback()
def _group() -> None:
    """A group, as the real command line is one."""


def run(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["train", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


class Clouds:
    """Two clouds, for the command line: ``test_train:Clouds``."""

    name, title, size, public, loss = "clouds", "two clouds", 200, "", staticmethod(cross_entropy)
    settings = Settings(learning_rate=0.5, optimizer="sgd", training={"batch_size": 20, "epochs": 3})

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    def records(self) -> tuple[Tensor, ...]:
        labels = torch.arange(200) % 2
        return torch.randn(200, 2, generator=torch.Generator().manual_seed(0)) + 3.0 * labels[:, None], labels

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"accuracy": 0.5}, on="nothing at all")


class Mislabelled(Clouds):
    """One record has a label that is no class."""

    def records(self) -> tuple[Tensor, ...]:
        inputs, labels = super().records()
        labels[7] = 5
        return inputs, labels


class Visits(Clouds):
    """Four records of each person."""

    def people(self) -> list[int]:
        return [row // 4 for row in range(200)]


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> str:
    module = type(sys)("clouds_for_a_test")
    module.Clouds, module.Mislabelled, module.Visits = Clouds, Mislabelled, Visits  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "clouds_for_a_test", module)
    return "clouds_for_a_test:Clouds"


def test_digits_train_and_say_epsilon_with_its_unit_in_at_most_80_columns(tmp_path: Path) -> None:
    done = run("--task", "digits", "--epsilon", 3, "--epochs", 3, "--workspace", tmp_path)
    assert "ε 3.00 of 3 per record" in done.stdout and "per record at δ = 7.4e-05" in done.stdout
    assert "add-or-remove-one" in done.stdout and "floating-point" not in done.stdout  # secure noise, unless stated
    assert "0.1011 by chance" in done.stdout and "No better" not in done.stdout
    assert "next: quietsum show digits-" in done.stdout.replace("\\\n", "")
    for line in done.stdout.splitlines():
        assert len(line) <= 80 or str(tmp_path) in line
        assert "ε" not in line or "per record" in line
        assert "accuracy" not in line or "hold-out" in line


def test_json_is_one_object_with_the_guarantee_and_the_data_of_each_score(tmp_path: Path) -> None:
    done = run("--task", "digits", "--epsilon", 3, "--epochs", 2, "--workspace", tmp_path, "--json")
    values = json.loads(done.stdout)
    assert values["guarantee"]["epsilon"] <= 3.0 and values["guarantee"]["unit"] == "record"
    assert values["metrics"][0]["on"] == "445 published hold-out rows"
    assert values["metrics"][0]["chance"] == pytest.approx(0.1011, abs=1e-4) and values["verdict"] == ""
    assert Path(values["model"]).is_file()
    with Ledger.open(tmp_path / "ledger.db", read_only=True) as ledger:
        assert ledger.spending(values["run"])[-1].epsilon == pytest.approx(values["guarantee"]["epsilon"])


def test_a_score_without_a_baseline_is_called_so(clouds: str, tmp_path: Path) -> None:
    done = run("--task", clouds, "--epsilon", 3, "--epochs", 1, "--fix", "--workspace", tmp_path)
    assert "Without a baseline: nothing says what a model that knows nothing" in " ".join(done.stdout.split())


def test_a_public_task_may_be_trained_again(tmp_path: Path) -> None:
    for _ in range(2):
        run("--task", "digits", "--epsilon", 1, "--epochs", 1, "--workspace", tmp_path)


def test_options_reach_the_plan(tmp_path: Path) -> None:
    options = ["--batch-size", 100, "--max-grad-norm", 0.25, "--delta", 1e-6, "--engine", "vmap", "--noise", "secure"]
    done = run("--task", "digits", "--epsilon", 2, "--epochs", 1, "--workspace", tmp_path, "--json", *options)
    values = json.loads(done.stdout)
    assert values["plan"]["expected_batch"] == 100 and values["plan"]["delta"] == 1e-6
    assert values["plan"]["stages"][0]["max_norm"] == 0.25 and values["engine"].startswith("vmap")
    assert values["guarantee"]["warnings"] == []


def test_a_killed_run_is_resumed_by_its_name_with_its_own_options(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(place: str) -> None:
        if place == "train:checkpointed":
            raise Killed

    failpoints.install(kill)
    try:
        with pytest.raises(Killed):
            CliRunner().invoke(
                app, ["train", "--task", "digits", "--epsilon", "2", "--epochs", "3", "--workspace", str(tmp_path)],
                catch_exceptions=False,
            )  # fmt: skip
    finally:
        failpoints.install(None)
    (name,) = [path.name for path in (tmp_path / "training").iterdir()]
    import gc

    gc.collect()
    done = run("--resume", name, "--workspace", tmp_path)
    assert "goes on after its last checkpoint" in done.stdout and "ε 2.00 of 2 per record" in done.stdout
    for words in (["--epsilon", 5], ["--noise", "fast"], ["--engine", "auto"], ["--fix"]):
        refused = run("--resume", name, *words, "--workspace", tmp_path, code=2)
        assert "keeps its plan" in refused.stderr.replace("\n", " ") and str(words[0]) in refused.stderr
    finished = run("--resume", name, "--workspace", tmp_path, code=3)
    assert "new plan" in finished.stderr


@pytest.mark.parametrize(
    ("words", "lesson"),
    [
        (["--epsilon", "3"], "--task is missing"),
        (["--task", "digits"], "--epsilon is missing"),
        (["--task", "digit", "--epsilon", "3"], 'did you mean "digits"'),
        (["--task", "digits", "--epsilon", "-1"], "greater than 0"),
        (["--task", "digits", "--epsilon", "0.0001"], "is reachable"),
        (["--task", "digits", "--epsilon", "3", "--batch-size", "5000"], "records"),
        (["--task", "digits", "--epsilon", "3", "--engine", "magic"], "engine"),
        (["--task", "digits", "--epsilon", "3", "--noise", "loud"], "fast or secure"),
        (["--task", "digits", "--epsilon", "3", "--delta", "0.5"], "1/n"),
        (["--resume", "nobody"], "known: none yet"),
        (["--task", "no_module_of_that_name:Task", "--epsilon", "3"], "importable"),
    ],
)
def test_mistakes_end_with_one_sentence_and_code_2(tmp_path: Path, words: list[str], lesson: str) -> None:
    refused = run(*words, "--workspace", tmp_path, code=2)
    assert refused.stderr.startswith("error:") and lesson in refused.stderr and "Traceback" not in refused.output


def test_missing_mnist_files_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path))
    refused = run("--task", "mnist", "--epsilon", 3, "--workspace", tmp_path / "w", code=2)
    assert "train-images-idx3-ubyte.gz" in refused.stderr
    assert not (tmp_path / "w" / "ledger.db").exists()


def test_batch_norm_is_refused_and_fixed_on_demand(tmp_path: Path, clouds: str) -> None:
    refused = run("--task", clouds, "--epsilon", 3, "--workspace", tmp_path, code=2)
    assert "GroupNorm" in refused.stderr
    run("--task", clouds, "--epsilon", 3, "--workspace", tmp_path, "--fix")


def test_what_a_whole_person_pays_stands_beside_what_a_record_pays(tmp_path: Path, clouds: str) -> None:
    visits = clouds.replace("Clouds", "Visits")
    options = ["--task", visits, "--epsilon", 2, "--max-records", 3, "--fix", "--workspace"]
    told = run(*options, tmp_path / "words").stdout
    assert "per record at δ" in told and "per person at δ" in told and "of at most 3 records" in told
    values = json.loads(run(*options, tmp_path / "json", "--json").stdout)
    assert values["guarantee"]["unit"] == "record" and values["person"]["unit"] == "person"
    assert values["person"]["group_size"] == 3 and values["person"]["epsilon"] > values["guarantee"]["epsilon"]


def whole_person(task: str, most: int, folder: Path, *words: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The guarantees of a record and of a person with at most so many of them, and the plan among the first."""
    options = ["--task", task, "--epsilon", 1, "--max-records", most, *words, "--workspace", folder, "--json"]
    values = json.loads(run(*options).stdout)
    assert values["guarantee"]["unit"] == "record" and values["guarantee"]["epsilon"] <= 1
    assert values["person"]["unit"] == "person" and values["person"]["group_size"] == most
    assert values["person"]["delta"] == values["guarantee"]["delta"]
    return {**values["guarantee"], "plan": values["plan"]}, values["person"]


@needs_data
def test_three_payments_of_one_card_are_not_three_strangers(tmp_path: Path) -> None:
    """A record that leaves lets another in and so moves two clip norms; a whole card that leaves moves three."""
    record, card = whole_person("cards", 3, tmp_path, "--epochs", 1)
    assert 1.25 * record["epsilon"] < card["epsilon"] < 10


@needs_data
def test_ten_sequences_of_one_person_cost_what_the_closed_form_says(tmp_path: Path) -> None:
    """Every record in every step: ten together move the sum ten clip norms, T times (Balle and Wang 2018).

    A record that leaves lets another of its person in, so it moves the sum two clip norms.
    """
    record, person = whole_person("pose", 10, tmp_path, "--epochs", 3)
    stage = record["plan"]["stages"][0]

    def delta(moved: int, epsilon: float) -> float:
        shift = moved * 3**0.5 / stage["noise_multiplier"]
        return float(norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift))

    assert delta(2, record["epsilon"]) == pytest.approx(record["delta"], rel=1e-2)
    assert delta(10, person["epsilon"]) == pytest.approx(person["delta"], rel=1e-2)
    assert person["epsilon"] > 5 * record["epsilon"]


@needs_data
def test_the_control_a_person_with_one_sequence_pays_less_than_a_record_that_lets_another_in(tmp_path: Path) -> None:
    record, person = whole_person("pose", 1, tmp_path, "--epochs", 1)
    assert 0.4 * record["epsilon"] < person["epsilon"] < 0.6 * record["epsilon"]


def test_a_task_that_knows_no_people_says_so(tmp_path: Path, clouds: str) -> None:
    refused = run("--task", clouds, "--epsilon", 2, "--max-records", 3, "--workspace", tmp_path, "--fix", code=2)
    assert "does not know whose its records are" in refused.stderr


def test_a_protected_task_cannot_be_trained_beyond_its_lifetime(tmp_path: Path, clouds: str) -> None:
    run("--task", clouds, "--epsilon", 2, "--workspace", tmp_path, "--fix")
    refused = CliRunner().invoke(
        app, ["train", "--task", clouds, "--epsilon", "2", "--workspace", str(tmp_path), "--fix"]
    )
    assert refused.exit_code in (2, 3) and "ε" in refused.stderr


def test_a_label_out_of_range_is_told_to_the_person_at_the_screen_and_written_nowhere(
    tmp_path: Path, clouds: str
) -> None:
    task = clouds.replace("Clouds", "Mislabelled")
    refused = run("--task", task, "--epsilon", 2, "--workspace", tmp_path, "--fix", "--json", code=2)
    assert "lie outside 0 … 1" in refused.stderr and "do not pass it on" in refused.stderr
    assert refused.stdout == "" and not (tmp_path / "ledger.db").exists()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all("label" not in path.read_text(encoding="utf-8").replace("Mislabelled", "") for path in written)


def test_a_run_that_was_refused_before_it_was_opened_leaves_nothing_to_resume(tmp_path: Path, clouds: str) -> None:
    mislabelled = clouds.replace("Clouds", "Mislabelled")
    run("--task", mislabelled, "--epsilon", 2, "--workspace", tmp_path, "--fix", code=2)
    run("--task", "digits", "--epsilon", "0.0001", "--workspace", tmp_path, code=2)
    assert not list(tmp_path.rglob("options.json"))
    run("--task", clouds, "--epsilon", 2, "--workspace", tmp_path, "--fix")
    (kept,) = (path.parent.name for path in tmp_path.rglob("options.json"))
    stale = tmp_path / "training" / "stale"
    stale.mkdir()
    (stale / "options.json").write_text("{}")  # of a process that was killed before it opened its run
    refused = run("--resume", "nobody", "--workspace", tmp_path, code=2).stderr.replace("\n", " ")
    assert f"known: {kept}" in refused and "stale" not in refused


def test_secure_noise_warns_of_norms_in_float32_and_fast_noise_does_not(tmp_path: Path, clouds: str) -> None:
    words = ["--task", clouds, "--epsilon", 2, "--fix"]
    warned = run(*words, "--workspace", tmp_path / "one")
    text = " ".join(warned.stderr.split())
    assert "not that of GroupNorm in float32" in text and "float64" in text
    assert all(len(line) <= 80 for line in warned.stderr.splitlines())
    fast = run(*words, "--noise", "fast", "--workspace", tmp_path / "two")
    assert "GroupNorm" not in fast.stderr and "not floating-point safe" in fast.stdout


def test_the_module_of_the_command_is_light() -> None:
    code = (
        "import sys; import quietsum.cli.train.train; print(sorted({'torch', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_training_has_a_report_that_holds_on_another_machine(tmp_path: Path, clouds: str) -> None:
    """Its scores are bound to its model, and its figures follow from the ledger."""
    from scenes import invoke, quietsum

    work = tmp_path / "work"
    run("--task", clouds, "--epsilon", 3, "--fix", "--workspace", work)
    (folder,) = (work / "training").iterdir()
    quietsum("report", folder.name, "--workspace", work)
    quietsum("ledger", "export", tmp_path / "export.jsonl", "--workspace", work)
    quietsum("report", "--verify", folder / "report.json", "--export", tmp_path / "export.jsonl")
    values = json.loads((folder / "report.json").read_text())
    assert (values["kind"], values["outcome"], values["target_epsilon"]) == ("training", "finished", 3.0)
    assert values["training_steps"] == 30 and values["sampling_probability"] == pytest.approx(0.1)
    assert values["metrics"][0]["value"] == 0.5 and "Without a baseline" in values["verdict"]
    assert [row[0] for row in values["privacy"]["units"][0]["by_round"]["rows"]] == [1, 2, 3]
    quietsum("report", folder.name, "--workspace", work, "--pack", tmp_path / "out.zip")
    quietsum("report", "--verify", tmp_path / "out.zip")
    with (folder / "model.safetensors").open("r+b") as file:  # another model, and the scores are no longer its own
        file.seek(-1, 2)
        file.write(b"\0")
    assert invoke("report", folder.name, "--workspace", work).exit_code == 4


def test_a_person_is_the_binding_unit_where_the_noise_was_chosen_for_people(tmp_path: Path, clouds: str) -> None:
    from quietsum.report import build_training, check_report, find_training, render, sign_report
    from quietsum.runs import Workspace

    work = Workspace.at(tmp_path / "work")
    visits = clouds.replace("Clouds", "Visits")
    run("--task", visits, "--person-epsilon", 4, "--max-records", 4, "--fix", "--workspace", work.path)
    (folder,) = (work.path / "training").iterdir()
    training = find_training(folder.name, work)
    assert training is not None
    values = build_training(training, work)
    units = values["privacy"]["units"]
    assert [(one["unit"], one["binding"], one["group_size"]) for one in units] == [
        ("person", True, 4), ("record", False, 1)
    ]  # fmt: skip
    assert values["target_epsilon"] == 4.0 and 3.5 < values["achieved_epsilon"] <= 4.0
    assert "person" in values["sentences"][0] and "record" in values["sentences"][1]
    check_report(render(sign_report(values, work)))


def test_a_training_is_shown_compared_and_the_latest_like_any_run(tmp_path: Path, clouds: str) -> None:
    from scenes import one_line, quietsum

    work = tmp_path / "work"
    quietsum("new", tmp_path / "run.toml")
    quietsum("run", tmp_path / "run.toml", "--name", "before", "--workspace", work)
    run("--task", clouds, "--epsilon", 3, "--fix", "--workspace", work)
    (folder,) = (work / "training").iterdir()
    for name in ("latest", folder.name, folder):
        shown = one_line(quietsum("show", name, "--workspace", work).stdout)
        assert "Training of one site on" in shown and "ε ≤ 3 per record" in shown and "after each epoch" in shown
        assert f"predict {folder.name}" in shown and "of 3 epochs" in shown
    compared = one_line(quietsum("compare", "before", folder.name, "--workspace", work).stdout)
    assert "training.noise_multiplier: not stated |" in compared and "stages" not in compared
    listed = quietsum("ledger", "show", "--workspace", work).stdout
    assert "steps from" in listed and "round" not in listed  # the last entries are all of the training
    quietsum("run", tmp_path / "run.toml", "--name", "after", "--workspace", work)
    assert "four hospitals" in quietsum("show", "--workspace", work).stdout  # the control: latest is the newest of both
