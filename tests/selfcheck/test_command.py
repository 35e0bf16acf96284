"""``quietsum selfcheck``: a table or one JSON object, exit code 0 or 5."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from quietsum.cli.train import selfcheck as command
from quietsum.errors import InvalidParameter
from quietsum.selfcheck import TESTS
from quietsum.tasks.gallery.heart import HeartTask


def call(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(command.selfcheck)
    return CliRunner().invoke(app, arguments, standalone_mode=False)


def test_heart_passes_and_every_test_has_a_line() -> None:
    done = call("--task", "heart")
    assert done.return_value == 0
    assert all(f"\n{test:<4} {name}" in done.output for test, name in TESTS.items())
    assert "Nothing speaks against the claim" in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())


def test_json_is_one_object_with_every_finding() -> None:
    found = json.loads(call("--task", "heart", "--noise", "secure", "--json").output)
    assert found["exit_code"] == 0
    assert found["passed"] is True
    assert [finding["test"] for finding in found["findings"]] == list(TESTS)
    assert found["claim"]["noise_multiplier"] == 1.1


def test_a_task_that_mixes_rows_ends_with_exit_code_5(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(self: HeartTask, params: Any, features: Any, labels: Any) -> Any:
        return np.nan_to_num(features) - np.nan_to_num(features).mean(axis=0)

    monkeypatch.setattr(HeartTask, "gradients", mixed)
    done = call("--task", "heart")
    assert done.return_value == 5
    assert "Do not train protected records" in done.output
    assert all(len(line) <= 80 for line in done.output.splitlines())
    assert json.loads(call("--task", "heart", "--json").output)["exit_code"] == 5


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--task", "hart"), "heart"),
        (("--task", "heart", "--engine", "vmap"), "numpy"),
        (("--task", "heart", "--noise", "loud"), "secure"),
        (("--task", "heart", "--sample-rate", "0"), "draws no record"),
        (("--task", "heart", "--sample-rate", "nan"), "finite"),
        (("--task", "heart", "--noise-multiplier", "-1"), "greater than 0"),
        (("--task", "no_such_module:Task"), "no_such_module"),
    ],
)
def test_mistakes_are_answered_by_a_lesson(arguments: tuple[str, ...], word: str) -> None:
    done = call(*arguments)
    assert isinstance(done.exception, InvalidParameter)
    assert word in str(done.exception)


@pytest.mark.parametrize("more", [[], ["--adaptive"]])
def test_the_sum_of_clients_can_be_checked_too(more: list[str]) -> None:
    done = call("--clients", "200", "--sample-rate", "0.2", "--json", *more)
    assert done.return_value == 0
    values = json.loads(done.output)
    assert values["passed"] and values["step"].startswith("sum of 200 clients")


def test_an_adaptive_clip_is_about_clients() -> None:
    done = call("--adaptive")
    assert isinstance(done.exception, InvalidParameter) and "add --clients" in str(done.exception)


@pytest.mark.parametrize("more", [(), ("--clients", "6")], ids=["records", "clients"])
@pytest.mark.some(1)
def test_a_sum_with_noise_in_shares_is_checked_too(more: tuple[str, ...]) -> None:
    found = json.loads(call("--shares", "3", *more, "--json").output)
    assert found["passed"] is True and "3 honest parties" in found["step"]


def test_shares_that_make_no_sense_are_refused() -> None:
    for wrong in (("--shares", "7", "--clients", "6"), ("--shares", "3", "--adaptive"), ("--shares", "0")):
        assert isinstance(call(*wrong).exception, InvalidParameter)
