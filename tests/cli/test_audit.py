"""``quietsum audit`` from the command line, behind a training that carried canaries."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.learning import cross_entropy
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.mechanisms import ClippedSum
from quietsum.tasks import Metrics, Settings


class Clouds:
    """Two clouds of made-up points."""

    name, title, size, public, loss = "clouds", "two clouds", 1000, "made up", staticmethod(cross_entropy)
    settings = Settings(learning_rate=0.5, optimizer="sgd", training={"batch_size": 50, "epochs": 10})

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(2, 2)

    def records(self) -> tuple[Tensor, ...]:
        labels = torch.arange(1000) % 2
        return torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)) + 3.0 * labels[:, None], labels

    def evaluate(self, model: nn.Module) -> Metrics:
        return Metrics(values={"accuracy": 0.5}, on="nothing at all")


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> str:
    module = type(sys)("clouds_to_audit")
    module.Clouds = Clouds  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "clouds_to_audit", module)
    return "clouds_to_audit:Clouds"


def run(*words: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, done.output
    return done


def train(task: str, place: Path, *words: object) -> str:
    done = run("train", "--task", task, "--epsilon", 4, "--workspace", place, "--json", *words)
    return str(json.loads(done.stdout)["run"])


def test_a_training_with_canaries_is_audited_beside_its_claim(clouds: str, tmp_path: Path) -> None:
    done = run("train", "--task", clouds, "--epsilon", 4, "--workspace", tmp_path, "--audit", 400)
    assert "it carries 400 canaries: about 20.0 % more rows; ε stays what it is" in done.stdout.replace("\n", " ")
    assert "100 would be at most a twentieth" in done.stderr.replace("\n", " ")
    assert "quietsum audit clouds-" in done.stdout.replace("\\\n", "").replace("      ", " ")
    (name,) = [path.name for path in (tmp_path / "training").iterdir()]
    shown = run("audit", name, "--workspace", tmp_path).stdout
    assert shown.startswith("The audit is consistent with the claim: 400 canaries")
    assert "ε ≤ 4.0000 per record" in shown and "with 95 % confidence" in shown
    assert "less noise: by" in shown and "a clip of the whole batch, in 100 % of runs" in shown
    assert all(len(line) <= 80 or str(tmp_path) in line for line in shown.splitlines())
    values = json.loads(run("audit", name, "--workspace", tmp_path, "--json").stdout)
    assert values["conclusion"] == "consistent" and len(values["evidence"]) == 10
    assert json.loads((tmp_path / "training" / name / "audit.json").read_text())["sentence"] == values["sentence"]
    assert json.loads(run("audit", "latest", "--workspace", tmp_path, "--json").stdout)["run"] == name
    assert "does not exist" in run("audit", "latest", "--workspace", tmp_path / "none", code=2).stderr


def test_a_run_that_contradicts_its_claim_ends_with_exit_code_5(
    clouds: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = TorchNoise.add
    monkeypatch.setattr(TorchNoise, "add", lambda self, sums: tuple(
        (noisy + part) / 2 for noisy, part in zip(add(self, sums), sums, strict=True)
    ))  # fmt: skip
    monkeypatch.setattr("quietsum.learning.trainer.check_step", lambda *_: None)  # which would have refused it
    name = train(clouds, tmp_path, "--audit", 400)
    shown = run("audit", name, "--workspace", tmp_path, code=5).stdout
    assert shown.startswith("The audit contradicts the claim: the noise is 0.") and "CONTRADICTS THE CLAIM" in shown


def test_a_training_without_canaries_and_a_wrong_number_are_refused_in_a_sentence(clouds: str, tmp_path: Path) -> None:
    name = train(clouds, tmp_path, "--epochs", 1)
    assert "quietsum train … --audit 500" in run("audit", name, "--workspace", tmp_path, code=2).stderr
    assert "is no run of" in run("audit", "other", "--workspace", tmp_path, code=2).stderr
    few = run("train", "--task", clouds, "--epsilon", 4, "--workspace", tmp_path, "--audit", 3, code=2)
    assert "canaries" in few.stderr


def test_a_models_members_are_attacked_and_the_figures_stay_with_their_holder(tmp_path: Path) -> None:
    name = train("digits", tmp_path, "--epochs", 2)
    shown = run("audit", name, "--attack", "membership", "--workspace", tmp_path).stdout
    assert shown.startswith("The audit is inconclusive about the claim: members were not chosen by coins")
    assert "a coin has 0.5" in shown and "inconclusive, as this takes 999 others" in " ".join(shown.split())
    assert "it stays with their holder" in " ".join(shown.split()) and "(mode 0600)" in shown
    path = tmp_path / "training" / name / "attacks.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = json.loads(path.read_text(encoding="utf-8"))["membership"]
    assert values["by_coins"] is False and values["lower_bound"] is None and values["members"] == 1352
    told = json.loads(run("audit", name, "--attack", "membership", "--workspace", tmp_path, "--json").stdout)
    assert told["attacks"] == values["attacks"]


def test_what_cannot_be_attacked_is_said_in_a_sentence(clouds: str, tmp_path: Path) -> None:
    name = train(clouds, tmp_path, "--epochs", 1)
    assert "hold_out()" in run("audit", name, "--attack", "membership", "--workspace", tmp_path, code=2).stderr
    assert "no finished training" in run(
        "audit", "no-such", "--attack", "membership", "--workspace", tmp_path, code=2
    ).stderr.replace("\n", " ")
    assert "--attack clients" in run("audit", name, "--attack", "all", "--workspace", tmp_path, code=2).stderr


def test_the_client_level_of_a_runs_plan_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "run.toml"
    plan.write_text(
        '[task]\nname = "heart"\n[federation]\nrounds = 16\n[training]\n'
        'sample_rate = 0.5\nlocal_steps = 1\n[privacy]\nstyle = "user"\n'
        "client = { noise_multiplier = 4.0, delta = 1e-4, max_norm = 0.5 }\n",
        encoding="utf-8",
    )
    run("run", plan, "--workspace", tmp_path, "--name", "users")
    words = ("audit", "users", "--attack", "clients", "--workspace", tmp_path)
    shown = run(*words).stdout
    assert shown.startswith("The audit is inconclusive:") and "per client" in shown  # 15 parameters, 7 canaries
    assert "no party was asked" in shown
    values = json.loads(run(*words, "--json").stdout)
    assert values["unit"] == "client" and len(values["evidence"]) == 10

    def release(self: ClippedSum, total: Any, rng: Any) -> Any:
        half = ClippedSum(max_norm=self.max_norm, noise_multiplier=self.noise_multiplier / 2)
        return (total + rng.rounded_normals(half.grid_scale, total.shape)) * self.grid_unit

    monkeypatch.setattr(ClippedSum, "release", release)
    assert run(*words, code=5).stdout.startswith("The audit contradicts the claim: the noise is 0.")
