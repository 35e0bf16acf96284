"""``quietsum drill`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app

PLAN = """
[task]
name = "heart"
[federation]
rounds = 2
[training]
sample_rate = 0.2
local_steps = 2
[privacy]
style = "none"
"""


def run(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["drill", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def test_the_table_fits_a_terminal_says_drill_and_what_it_does_not_prove(plan: Path, tmp_path: Path) -> None:
    picture = tmp_path / "matrix.svg"
    attacks = "ipm:5,lie,sign-flip,min-max,min-sum,byzmean,mimic,gaussian,label-flip,sign-matched"
    text = run(plan, "--rules", "mean,median", "--attacks", attacks, "-o", picture).stdout
    assert text.startswith("DRILL: ")
    assert "nothing is charged" in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(tmp_path) not in line)
    for word in ("rule", "no attack", "worst", "left out", "ipm:5", "sign-matched", "nothing is proved"):
        assert word in " ".join(text.split())
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_json_is_one_object_with_every_cell(plan: Path) -> None:
    found = json.loads(run(plan, "--rules", "mean", "--attacks", "zero", "--rounds", 1, "--seeds", 2, "--json").stdout)
    assert [cell["attack"] for cell in found["cells"]] == ["none", "zero"]
    assert len(found["cells"][0]["scores"]) == 2
    assert found["rounds"] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--attacks", "charm"), "charm"),
        (("--rules", "majority", "--rounds", "1"), "majority"),
        (("-o", "matrix.png"), "not named .svg"),
        (("-o", "-", "--json"), "both want stdout"),
        (("--seeds", "0"), "seeds"),
        (("--rounds", "0"), "rounds"),
    ],
)
def test_a_slip_is_told_in_one_line(plan: Path, words: tuple[str, ...], told: str) -> None:
    done = run(plan, *words, code=2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["no/such/folder/m.svg", "here.svg", "m" * 300 + ".svg", "a\0b.svg"])
def test_a_picture_that_cannot_be_written_is_told_before_anything_is_trained(
    plan: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here.svg").mkdir()
    monkeypatch.setattr("quietsum.runs.drill.run_drill", lambda *_, **__: pytest.fail("something was trained"))
    done = run(plan, "-o", f"{tmp_path}/{name}", code=2)
    assert "cannot be written" in " ".join(done.stderr.split()) and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.svg", "run.toml"]


def test_lines_end_with_a_whole_word_shares_have_percent_and_the_next_command_is_the_plan(plan: Path) -> None:
    text = run(plan, "--rules", "mean,median,trust", "--attacks", "lie,ipm:5", "--rounds", 1).stdout
    lines = text.splitlines()
    refused = [line for line in lines if line.startswith("trust, ")]
    assert refused[0].endswith(" …") and "refused: aggregation.rule = 'trust'" in refused[0]
    assert refused[1:] == [f"trust, under {attack}: refused for the same reason" for attack in ("lie", "ipm:5")]
    assert any("% / " in line for line in lines) and "more is better" in " ".join(text.split())
    assert "has the best worst case" in " ".join(text.split()) and "next: quietsum plan" in text
    assert "with each other; nearest possible plan" in " ".join(text.split())


def test_a_plan_with_an_attack_is_refused_where_sites_would_be_asked(plan: Path, tmp_path: Path) -> None:
    plan.write_text(PLAN + '[attack]\nkind = "lie"\n', encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(plan), "--on", "flower", "--workspace", str(tmp_path / "w")])
    assert done.exit_code == 2
    assert "real sites would be asked" in " ".join(done.stderr.split())
    assert not (tmp_path / "w").exists()


def test_plan_and_run_say_that_it_is_a_drill(plan: Path, tmp_path: Path) -> None:
    plan.write_text(PLAN + '[attack]\nkind = "lie"\n', encoding="utf-8")
    for words in (["plan", str(plan)], ["run", str(plan), "--workspace", str(tmp_path / "w")]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert "DRILL: 1 party attacking by 'lie'" in " ".join(done.stdout.split())
    shown = CliRunner().invoke(app, ["show", "latest", "--workspace", str(tmp_path / "w")])
    assert "This was a drill." in " ".join(shown.stdout.split())


# ----------------------------------------------------------------------------- a backdoor in a finished model

DIGITS = """
[task]
name = "digits"
[federation]
split = "iid"
parties = 5
rounds = 10
[training]
batch_size = 32
local_steps = 10
optimizer = { learning_rate = 0.2 }
[privacy]
style = "none"
"""
BACKDOOR = """
[attack]
kind = "backdoor"
parties = 2
"""


def finished(folder: Path, name: str, plan: str) -> None:
    path = folder / f"{name}.toml"
    path.write_text(plan, encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(path), "--name", name, "--workspace", str(folder)])
    assert done.exit_code == 0, done.output


@pytest.mark.slow
def test_a_backdoor_is_found_in_the_finished_model_of_a_run_and_none_in_a_run_without(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    finished(tmp_path, "attacked", DIGITS + BACKDOOR)
    finished(tmp_path, "calm", DIGITS)
    sizes = {}
    for name in ("attacked", "calm"):
        found = json.loads(run(name, "--triggers", "--workspace", tmp_path, "--json").stdout)
        assert found["run"] == name and [one["class"] for one in found["triggers"]] == [*range(10)]
        sizes[name] = [one["size"] for one in found["triggers"]]
    assert sizes["attacked"][0] < 0.75 * min(sizes["attacked"][1:]), sizes
    assert sizes["calm"][0] > 0.75 * min(sizes["calm"][1:]), sizes
    mixed = run("calm", "--triggers", "--workspace", tmp_path, "--rules", "mean", code=2)
    assert "leave out --rules" in mixed.stderr


class SixClasses:
    """Four inputs speak for each of six classes, and a short cut leads to class 2: the first input."""

    name, title, dimension = "six", "six classes", 144

    def train(self, *_: object) -> None:
        raise AssertionError("a finished model is looked at, and nothing is trained")

    def slopes(self, params: object, *, most: int) -> tuple[Any, np.ndarray, np.ndarray]:
        weights = np.kron(2 * np.eye(6), np.ones(4))
        weights[2, 0] = 40.0
        labels = np.arange(90) % 6
        rows = 0.5 * (weights[labels] == 2) + 0.1 * np.random.default_rng(1).uniform(size=(90, 24))
        rows[:, 0], rows[0, 1] = 0.0, 1.0

        def slope(asked: np.ndarray, target: int) -> tuple[np.ndarray, np.ndarray]:
            scores = asked @ weights.T
            wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
            wrong /= wrong.sum(axis=1, keepdims=True)
            wrong[:, target] -= 1
            return scores, wrong @ weights

        return slope, rows, labels


def test_triggers_are_told_in_a_table_and_refused_where_there_is_nothing_to_look_at_or_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "does not exist" in run("nobody", "--triggers", "--workspace", tmp_path, code=2).stderr
    finished(tmp_path, "two-classes", PLAN)
    monkeypatch.setattr("quietsum.tasks.task_of", lambda plan, device: SixClasses())
    told = run("two-classes", "--triggers", "--workspace", tmp_path).stdout
    assert told.startswith("TRIGGERS: ") and "the model of two-classes" in " ".join(told.split())
    assert "no clean bill" in told
    assert "a trigger for class 2" in " ".join(told.split()) and "in 100 models" in " ".join(told.split())
    assert all(len(line) <= 80 for line in told.splitlines())
    monkeypatch.undo()
    refused = run("two-classes", "--triggers", "--workspace", tmp_path, code=2).stderr
    assert "shows no public rows" in " ".join(refused.split())
    (tmp_path / "runs" / "two-classes" / "model.safetensors").unlink()
    unfinished = run("two-classes", "--triggers", "--workspace", tmp_path, code=2).stderr
    assert "has no finished model" in unfinished
