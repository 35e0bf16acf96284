"""``quietsum ledger``: what people see, what programs read, and exit codes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ledger.build import open_run, play, reserve, sample, tamper
from quietsum.cli.app import app
from quietsum.ledger import Ledger

LIFETIME = {"epsilon": 20.0, "delta": 1e-3}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


@pytest.fixture(autouse=True)
def _a_page_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    sample(tmp_path / "ledger.db")
    return tmp_path


def shown(result: Result) -> str:
    """What a command printed, where it went well, fits 80 columns and names the next command."""
    assert result.exit_code == 0, result.stderr
    lines = [re.sub(r"/\S+", "/path", line) for line in result.stdout.splitlines()]  # a path is as long as it is
    assert max(map(len, lines)) <= 80, result.stdout
    assert "next: quietsum" in result.stdout
    return result.stdout


def test_show_lists_budgets_and_the_last_entries(workspace: Path) -> None:
    text = shown(run("show", "--workspace", workspace))
    for part in ("Basel", "Bern", "heart", "ε 25 per record, δ 1e-05", "% (filter)", "head    entry 16", "refund"):
        assert part in text


def test_show_says_what_one_run_spent_and_of_what(workspace: Path) -> None:
    text = shown(run("show", "--run", "first", "--workspace", workspace))
    assert text.count("per record") == 4
    assert "against the server" in text and "against recipients of the model" in text
    result = run("show", "--run", "nobody", "--workspace", workspace)
    assert result.exit_code == 2 and "not in the ledger" in result.stderr


def test_show_as_json_holds_a_head_that_anchors(workspace: Path, tmp_path: Path) -> None:
    values = json.loads(run("show", "--json", "--workspace", workspace).stdout)
    assert [book["party"] for book in values["books"]] == ["Basel", "Bern"]
    assert values["books"][0]["budget"] == {"epsilon": 25.0, "delta": 1e-5}
    anchor = tmp_path / "anchor.json"
    anchor.write_text(json.dumps(values))
    assert "1 kept heads are in the chain" in shown(run("verify", "--anchor", anchor, "--workspace", workspace))
    one = json.loads(run("show", "--run", "first", "--json", "--workspace", workspace).stdout)
    assert {line["party"] for line in one["parties"]} == {"Basel", "Bern"}


def test_long_names_do_not_widen_the_page(tmp_path: Path) -> None:
    name = "Kantonsspital " * 10
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger, "a very long name of a run " * 5, parties=(name,), dataset="admissions " * 12)
        ledger.declare_public(party="x" * 90, dataset="y" * 90, reason="because " * 40)
    shown(run("show", "--workspace", tmp_path))


def test_public_data_is_shown_with_its_reason(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger, public="published in 1988")
        play(ledger)
    text = shown(run("show", "--workspace", tmp_path))
    assert "no gate for Basel/heart: published in 1988" in text


def test_style_none_prints_no_privacy_guarantee(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger, public="published in 1988", step=None)
        play(ledger, step=None)
    assert "NO PRIVACY GUARANTEE per record" in shown(run("show", "--run", "first", "--workspace", tmp_path))
    values = json.loads(run("show", "--run", "first", "--json", "--workspace", tmp_path).stdout)
    assert values["spent"][0]["epsilon"] == "Infinity"


def test_verify_ends_with_zero_or_four(workspace: Path) -> None:
    text = shown(run("verify", "--workspace", workspace))
    assert "16 entries" in text and "7 stated" in text and "would look the same" in text
    assert "mark    the newest head that was written here is in the chain" in text
    values = json.loads(run("verify", "--every-signature", "--json", "--workspace", workspace).stdout)
    assert (values["entries"], values["signatures"], values["withheld"]) == (16, 17, 0)
    assert (values["anchors"], values["anchors_of_runs"], values["marked"]) == (0, 0, True)
    tamper(workspace / "ledger.db", "UPDATE entries SET body = replace(body, '2.0', '3.0') WHERE sequence = 7")
    for command in (("verify",), ("verify", "--json"), ("show",)):
        result = run(*command, "--workspace", workspace)
        assert result.exit_code == 4
        assert "entry 7" in result.stderr and result.stdout == ""


def test_verify_with_an_anchor_finds_a_cut_tail(workspace: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor.json"
    anchor.write_text(run("show", "--json", "--workspace", workspace).stdout)
    tamper(workspace / "ledger.db", "DELETE FROM entries WHERE sequence > 14")
    result = run("verify", "--workspace", workspace)
    assert result.exit_code == 4 and "entry 15" in result.stderr, "the mark beside the ledger finds it"
    (workspace / "ledger.db.head").unlink()
    text = shown(run("verify", "--workspace", workspace))  # the control: a chain alone forgets
    assert "a cut tail or an older copy would look the same" in text and "mark" not in text
    result = run("verify", "--anchor", anchor, "--workspace", workspace)
    assert result.exit_code == 4 and "entry 15" in result.stderr
    result = run("verify", "--anchor", workspace / "nothing.json", "--workspace", workspace)
    assert result.exit_code == 2 and "anchor" in result.stderr


def test_verify_asks_for_every_head_that_the_runs_have_kept(tmp_path: Path) -> None:
    """Checkpoints, models and reports remember, without anybody naming them."""
    from quietsum.runs.folder import Workspace
    from quietsum.runs.run import start
    from tiny import TinyTask, tiny_plan

    for name in ("one", "two"):
        plan = tiny_plan(privacy={"record": {"noise_multiplier": 3.0, "delta": 1e-3, "lifetime": LIFETIME}})
        start(plan, workspace=Workspace(path=tmp_path), task=TinyTask(), name=name)
    heads = {head for _, head in Workspace(path=tmp_path).anchors()}
    assert len(heads) >= 4
    text = shown(run("verify", "--workspace", tmp_path))
    assert f"anchor  {len(heads)} kept heads are in the chain, {len(heads)} of them from run folders" in text
    values = json.loads(run("verify", "--json", "--workspace", tmp_path).stdout)
    assert values["anchors"] == values["anchors_of_runs"] == len(heads)
    tamper(tmp_path / "ledger.db", "DELETE FROM entries WHERE sequence >= (SELECT max(sequence) - 1 FROM entries)")
    (tmp_path / "ledger.db.head").unlink()
    result = run("verify", "--workspace", tmp_path)
    assert result.exit_code == 4 and "cut off" in result.stderr
    shutil.rmtree(tmp_path / "runs")
    shown(run("verify", "--workspace", tmp_path))  # the control: nothing is left that remembers


def test_round_and_attempt_are_readable_whatever_the_name_of_the_run(tmp_path: Path) -> None:
    name = "heart-20261115-224509-2b7b"
    long = "a very long name of a run " * 7 + "2b7b"
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        for one in (name, long):
            open_run(ledger, one, rounds=20, limit=9.0)
            play(ledger, one, rounds=(17,))
        ledger.refund(reserve(ledger, name, 17), "Basel", "refused")
    text = shown(run("show", "--workspace", tmp_path))
    assert f"reserve  round 17, attempt 2  {name}\n" in text
    assert f"commit   round 17, attempt 1  {name}\n" in text
    assert "refund   round 17, attempt 2, Basel  heart-" in text
    (cut,) = [line for line in text.splitlines() if "attempt 1  a very long" in line and "commit" in line]
    assert "…" in cut and cut.endswith("2b7b")


def test_a_budget_on_public_data_is_shown_as_its_gate(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        open_run(ledger, public="published in 1988")
        play(ledger)
    place = ("--party", "Basel", "--dataset", "heart", "--workspace", tmp_path)
    shown(run("raise", *place, "--epsilon", 4, "--delta", 1e-5, "--reason", "board"))
    text = shown(run("show", "--workspace", tmp_path))
    assert "ε 4 per record, δ 1e-05" in text and "no gate" not in text


def test_export_and_verify_it(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)  # a path may be as long as it is
    file = Path("ledger.jsonl")
    text = shown(run("export", file, "--workspace", workspace))
    assert "16 entries, 2 of them without their body" in text
    assert "2 bodies say who took part" in shown(run("verify", "--export", file))
    values = json.loads(run("export", file, "--json", "--workspace", workspace).stdout)
    assert (values["entries"], values["withheld"]) == (16, 2)
    file.write_text(file.read_text().replace("Basel", "Bazel"))
    assert run("verify", "--export", file).exit_code == 4


def test_raise_needs_a_reason_and_goes_up_only(workspace: Path) -> None:
    place = ("--party", "Basel", "--dataset", "heart", "--workspace", workspace)
    text = shown(run("raise", *place, "--epsilon", 30, "--reason", "board, 3 May"))
    assert "entry   17 (budget)" in text and "ε 30 per record at δ 1e-05" in text
    for options, part in (
        (("--epsilon", 1, "--reason", "less"), "below the present budget"),
        (("--epsilon", 40, "--reason", " "), "reason"),
        (("--epsilon", 40), "--reason"),
        (("--epsilon", 40, "--reason", "x", "--delta", 1e-3), "δ belongs to the dataset"),
        (("--epsilon", 40, "--reason", "x", "--unit", "client"), "no budget per client yet"),
    ):
        result = run("raise", *place, *options)
        assert result.exit_code == 2 and part in result.stderr, result.stderr
    values = json.loads(run("raise", *place, "--epsilon", 31, "--reason", "again", "--json").stdout)
    assert values["body"]["reason"] == "again" and values["sequence"] == 18


def test_the_command_in_a_refusal_can_be_typed(workspace: Path) -> None:
    from quietsum.errors import BudgetExhausted

    with Ledger.open(workspace / "ledger.db") as ledger, pytest.raises(BudgetExhausted) as refusal:
        open_run(ledger, "third", rounds=20_000, limit=1000.0)
    words = shlex.split(str(refusal.value)[str(refusal.value).index("quietsum ledger raise") :])
    shown(run(*words[2:], "--workspace", workspace))
    with Ledger.open(workspace / "ledger.db") as ledger:
        open_run(ledger, "third", rounds=20_000, limit=1000.0)


def test_declare_public_is_an_entry_with_a_reason(workspace: Path) -> None:
    place = ("--party", "Basel", "--dataset", "heart", "--workspace", workspace)
    assert "(public)" in shown(run("declare-public", *place, "--reason", "released by its owner"))
    assert run("declare-public", *place, "--reason", "").exit_code == 2
    assert "released by its owner" in shown(run("show", "--workspace", workspace))


def test_the_workspace_comes_from_the_option_the_environment_or_its_usual_name(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIETSUM_WORKSPACE", str(workspace))
    assert "head    entry 16" in shown(run("show"))
    monkeypatch.delenv("QUIETSUM_WORKSPACE")
    monkeypatch.chdir(workspace)
    result = run("show")
    assert result.exit_code == 2 and "quietsum-workspace/ledger.db" in result.stderr
    (workspace / "quietsum-workspace").mkdir()
    sample(workspace / "quietsum-workspace" / "ledger.db")
    shown(run("show"))


def test_without_a_command_the_help_is_shown() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for command in ("show", "verify", "export", "raise", "declare-public"):
        assert command in result.stdout
        text = run(command, "--help").stdout
        assert max(map(len, text.splitlines())) <= 80
