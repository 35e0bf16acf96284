"""A federation of many clients, from its plan to its report: two promises, two books, no word about who took part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.report.contents import build
from quietsum.runs.folder import Workspace

pytest.importorskip("torch")
pytest.importorskip("sklearn")

HYBRID = """
[task]
name = "digits"

[federation]
rounds = 3
split = "iid"
parties = 60
sampling = { kind = "poisson", rate = 0.5 }
simulate = { drop_outs = 0.2 }

[training]
sample_rate = 0.5
local_steps = 2

[privacy]
style = "hybrid"
record = { noise_multiplier = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
client = { epsilon = 8.0, delta = 1e-3, max_norm = 0.5 }

[aggregation]
optimizer = { kind = "fedavgm", average = 0.5 }
"""


def quietsum(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return str(result.output)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("clients")
    plan, workspace = folder / "run.toml", folder / "workspace"
    plan.write_text(HYBRID, encoding="utf-8")
    output = quietsum("run", str(plan), "--workspace", str(workspace))
    (run,) = (workspace / "runs").iterdir()
    return run, workspace, output


def test_both_promises_are_printed_and_neither_is_a_sum(finished: tuple[Path, Path, str]) -> None:
    run, _, output = finished
    values = json.loads((run / "report.json").read_text(encoding="utf-8"))
    told = [(one["unit"], one["observer"]) for one in values["guarantees"]]
    assert told == [("record", "server"), ("record", "recipients"), ("client", "recipients")]
    assert "per client at δ = 0.001" in " ".join(output.split())
    assert "per record at δ = 1e-05" in " ".join(output.split())
    assert "each of 60 registered clients" in " ".join(output.split())
    epsilons = {one["unit"]: one["epsilon"] for one in values["guarantees"]}
    assert str(round(epsilons["record"] + epsilons["client"], 3)) not in output


def test_the_ledger_has_a_book_for_each_unit_and_verifies(finished: tuple[Path, Path, str]) -> None:
    _, workspace, _ = finished
    quietsum("ledger", "verify", "--workspace", str(workspace))
    shown = quietsum("ledger", "show", "--workspace", str(workspace))
    assert "none per client" in shown and "none per record" in shown


def test_sixty_clients_of_one_data_set_are_one_line_of_the_report(finished: tuple[Path, Path, str]) -> None:
    run, _, _ = finished
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "60 clients" in page
    assert "client-0001" not in page + (run / "report.json").read_text(encoding="utf-8")


def test_who_took_part_is_not_in_the_report(finished: tuple[Path, Path, str]) -> None:
    """Rule 5: cohorts, drop-outs and norms are the operator's alone."""
    run, _, _ = finished
    text = (run / "report.json").read_text(encoding="utf-8")
    values = json.loads(text)
    assert not {"kept", "asked", "cohort", "dropped", "clip"} & _keys({**values, "plan": {}})
    events = [json.loads(line) for line in (run / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert any(event["event"] == "round-finished" and event["asked"] for event in events)  # the operator knows


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for item in value.values() for key in _keys(item)}
    return {key for item in value for key in _keys(item)} if isinstance(value, list) else set()


def test_the_plan_says_when_so_few_parties_cannot_hide_one_of_them(tmp_path: Path) -> None:
    few = HYBRID.replace("parties = 60", "parties = 4").replace("delta = 1e-3", "delta = 1e-2")
    plan = tmp_path / "run.toml"
    plan.write_text(few, encoding="utf-8")
    told = " ".join(quietsum("plan", str(plan), "--workspace", str(tmp_path / "workspace")).split())
    assert "So few parties cannot hide one of them" in told
    assert "clients would make them equally long" in told
    many = tmp_path / "many.toml"
    many.write_text(HYBRID.replace("parties = 60", "parties = 1300").replace("1e-3", "1e-5"), encoding="utf-8")
    told = " ".join(quietsum("plan", str(many), "--workspace", str(tmp_path / "workspace")).split())
    assert "cannot hide" not in told


PROTECTED = '''
from quietsum.tasks.gallery.digits import DigitsTask


class AtSites(DigitsTask):
    """Digits as if somebody had to be protected, at three sites."""

    name, title, public, site_sizes = "visits", "visits", "", {"north": 452, "south": 450, "west": 450}

    def sites(self):
        return tuple(["north"] * 452 + ["south"] * 450 + ["west"] * 450)
'''


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "protected_sites.py").write_text(PROTECTED, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def natural(noise: str = "secure", **changes: str) -> str:
    text = """
        [task]
        name = "protected_sites:AtSites"
        [federation]
        rounds = 2
        [training]
        sample_rate = 0.2
        local_steps = 1
        [privacy]
        style = "sample"
        noise = "NOISE"
        record = { epsilon = 1.0, delta = 1e-5, lifetime = { epsilon = 9.0, delta = 1e-5 } }
    """.replace("NOISE", noise)
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def test_a_protected_record_has_one_book_however_it_is_trained(sites: Path) -> None:
    (sites / "run.toml").write_text(natural(), encoding="utf-8")
    quietsum("run", "run.toml", "--workspace", "w")
    result = CliRunner().invoke(
        app, ["train", "--task", "protected_sites:AtSites", "--epsilon", "1", "--workspace", "w"]
    )
    assert result.exit_code == 2 and "a second book would let each record be spent twice" in _words(result.output)
    dealt = natural().replace("rounds = 2", 'rounds = 2\n        split = "iid"\n        parties = 4')
    (sites / "dealt.toml").write_text(dealt, encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "dealt.toml", "--workspace", "w"])
    assert result.exit_code == 2 and "their sites keep books of them already" in _words(result.output)


def _words(text: str) -> str:
    return " ".join(text.split())


def test_what_holds_over_all_runs_says_when_one_of_them_was_not_floating_point_safe(sites: Path) -> None:
    for name, noise in (("first", "secure"), ("second", "fast"), ("third", "secure")):
        (sites / f"{name}.toml").write_text(natural(noise), encoding="utf-8")
        told = " ".join(quietsum("run", f"{name}.toml", "--name", name, "--workspace", "w").split())
        assert "From all runs on the same data" in told
        assert ("Some of these runs have noise that is not floating-point safe" in told) == (name != "first")


def test_a_report_owns_up_to_data_that_was_used_beyond_its_budget_while_it_was_public(sites: Path) -> None:
    plain = natural().replace('style = "sample"', 'style = "none"')
    plain = "\n".join(line for line in plain.splitlines() if "record =" not in line)
    (sites / "plain.toml").write_text(plain, encoding="utf-8")
    (sites / "run.toml").write_text(natural(), encoding="utf-8")
    quietsum("run", "plain.toml", "--workspace", "w", code=2)  # protected so far; this makes the ledger
    for site in ("north", "south", "west"):
        named = ["--party", site, "--dataset", f"visits-{site}", "--workspace", "w"]
        quietsum("ledger", "declare-public", *named, "--reason", "we thought so")
    quietsum("run", "plain.toml", "--workspace", "w")
    for site in ("north", "south", "west"):
        named = ["--party", site, "--dataset", f"visits-{site}", "--workspace", "w"]
        quietsum("ledger", "raise", *named, "--epsilon", "9", "--delta", "1e-5", "--reason", "we were wrong")
    told = _words(CliRunner().invoke(app, ["run", "run.toml", "--workspace", "w"]).output)
    assert "no budget covers that" in told  # and the ledger lets nothing more happen
    workspace = Workspace.at("w")
    (sentence,) = [text for text in build(workspace.find("latest"), workspace)["sentences"] if "all runs" in text]
    assert "no bound per record holds" in sentence and "while it was declared public" in sentence
