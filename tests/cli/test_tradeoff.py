"""``quietsum tradeoff`` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app

CLOUDS = "tradeoff.made_up:Clouds"


def run(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["tradeoff", *map(str, words)])
    assert done.exit_code == code, done.output
    return done


def test_the_table_begins_without_privacy_and_every_epsilon_says_per_record(tmp_path: Path) -> None:
    picture = tmp_path / "clouds.svg"
    text = run("--task", CLOUDS, "--epsilons", "1,8", "--seeds", 2, "--svg", picture).stdout
    lines = text.splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("ε per record"))
    assert (
        lines[head + 1].startswith("none") and lines[head + 2].startswith("≤ 1.0000") and "≤ 8.0000" in lines[head + 3]
    )
    assert "Scores stand on 100 made-up points." in text and "More ε never hurts" in text
    assert "6/6  ε 8 per record" in text and "Papernot" in text and f"wrote {picture}" in text.replace("\n", " ")
    assert "would cost ε ≤" in text and "No lifetime budget is used: made up." in text
    assert all(len(line) <= 80 for line in lines if not line.startswith("wrote"))
    assert picture.read_text(encoding="utf-8").startswith("<svg")


def test_json_holds_the_table_the_runs_and_the_search(tmp_path: Path) -> None:
    found = json.loads(run("--task", CLOUDS, "--epsilons", "2", "--seeds", 2, "--tried", 5, "--json").stdout)
    assert found["plain"]["mean"] > 0.5 and found["rows"][0]["guarantee"]["unit"] == "record"
    assert len(found["outcomes"]) == 4 and found["search"][0]["trials"] == 5
    assert found["search"][0]["poisson"]["epsilon"] > found["search"][0]["single"]["epsilon"]
    assert found["table"]["epsilon"] > 2.0  # two runs at ε = 2 cost more than one


def test_one_seed_has_no_error_bars_and_says_so() -> None:
    text = run("--task", CLOUDS, "--epsilons", "2", "--seeds", 1).stdout
    assert "One seed has no error bars" in text and "More ε never hurts" not in text


def test_splits_are_paired_with_seeds_and_named() -> None:
    text = " ".join(run("--task", "tradeoff.made_up:Split", "--epsilons", "2", "--seeds", 2).stdout.split())
    assert "points of split 0, and so on: 2 paired splits" in text


def test_the_picture_alone_goes_to_stdout() -> None:
    text = run("--task", CLOUDS, "--epsilons", "2", "--seeds", 1, "--svg", "-").stdout
    assert text.startswith("<svg") and text.rstrip().endswith("</svg>")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "task = None is missing"),
        (["--task", "digit"], 'did you mean "digits"?'),
        (["--task", "nowhere:Nothing"], "cannot be imported"),
        (["--task", "tradeoff.made_up:Protected"], "would publish them"),
        (["--task", CLOUDS, "--epsilons", ""], "is empty"),
        (["--task", CLOUDS, "--epsilons", "1,nan"], "write .5,1,2,4,8"),
        (["--task", CLOUDS, "--epsilons", "1,two"], "write .5,1,2,4,8"),
        (["--task", CLOUDS, "--epsilons", "-1"], "greater than 0"),
        (["--task", CLOUDS, "--epsilons", "1e-9"], "out of reach"),
        (["--task", CLOUDS, "--seeds", "0"], "at least 1"),
        (["--task", CLOUDS, "--workers", "0"], "at least 1"),
        (["--task", CLOUDS, "--tried", "0"], "at least 1"),
        (["--task", CLOUDS, "--delta", "2"], "between 0 and 1"),
        (["--task", CLOUDS, "--epochs", "0"], "at least 1"),
        (["--task", CLOUDS, "--svg", "picture.gif"], "is named neither .svg nor .png"),
        (["--task", CLOUDS, "--svg", "-", "--json"], "both want stdout"),
    ],
)
def test_a_mistake_is_one_sentence_and_never_a_traceback(words: list[str], said: str) -> None:
    done = run(*words, code=2)
    assert said in done.stderr and "Traceback" not in done.output and done.stderr.startswith("error:")


def test_missing_data_says_where_it_should_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path))
    done = run("--task", "chest-xray", "--epsilons", "8", "--seeds", 1, code=2)
    assert "medmnist" in done.stderr and "Traceback" not in done.output


def test_the_help_names_what_is_compared() -> None:
    assert "What privacy costs in score" in CliRunner().invoke(app, ["tradeoff", "--help"]).stdout
