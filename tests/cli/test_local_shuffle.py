"""``quietsum local shuffle``: one file in random order, the central ε with its trust, or a refusal and no file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.mechanisms.shuffle_model import shuffled_epsilon


def local(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["local", *(str(argument) for argument in arguments)])


@pytest.fixture(autouse=True)
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two wards with 300 answers each, privatized."""
    monkeypatch.chdir(tmp_path)
    for ward in ("one", "two"):
        Path(f"{ward}.csv").write_text("smokes\n" + "never\nsometimes\ndaily\n" * 100, encoding="utf-8")
        made = local("privatize", f"{ward}.csv", "-c", "smokes", "-e", 1, "-p", "k-rr",
                     "--domain", "never,sometimes,daily", "-o", f"reports-{ward}.csv")  # fmt: skip
        assert made.exit_code == 0, made.stderr


def refused(result: Result, told: str) -> None:
    assert result.exit_code == 2, result.stdout
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert told in " ".join(result.stderr.split())
    assert not Path("out.csv").exists()


def test_it_prints_the_central_epsilon_with_n_trust_and_cost() -> None:
    result = local("shuffle", "reports-one.csv", "reports-two.csv", "-o", "out.csv", "--delta", "1e-5")
    assert result.exit_code == 0, result.stderr
    text = " ".join(result.stdout.split())
    central = shuffled_epsilon(epsilon0=1.0, n=600, delta=1e-5, categories=3).epsilon
    assert f"ε ≤ {central:.4g} at δ = 1e-05" in text
    for told in ("600 people", "ε₀ = 1 against the shuffler", "the shuffler: it sees", "1,200 messages",
                 "counted, and public", "destroy the files"):  # fmt: skip
        assert told in text
    assert all(len(line) <= 80 for line in result.stdout.splitlines() if not line.startswith("wrote"))


def test_json_carries_the_guarantee_and_the_shuffled_file_estimates_the_same() -> None:
    result = local(
        "shuffle", "reports-one.csv", "reports-two.csv", "-o", "out.jsonl", "--n", 500, "--note", "smokes", "--json"
    )
    values: dict[str, Any] = json.loads(result.stdout)
    assert (values["n"], values["reports"], values["declared"]) == (500, 600, True)
    assert values["guarantee"]["neighbours"] == "replace-one" and values["local_epsilon"] == 1.0
    assert len(values["trusted"]) == 2
    before = json.loads(local("estimate", "reports-one.csv", "reports-two.csv", "--json").stdout)
    after = json.loads(local("estimate", "out.jsonl", "--json").stdout)
    assert before["estimates"] == after["estimates"] and after["note"] == "smokes"


def test_what_cannot_be_shuffled_is_refused_without_a_file() -> None:
    one = "reports-one.csv"
    refused(local("shuffle", one, "-o", "out.csv", "--n", 301), "only 300 reports came")
    refused(local("shuffle", one, one, "-o", "out.csv"), "same file")
    refused(local("shuffle", one, "absent.csv", "-o", "out.csv"), "cannot be read")
    refused(local("shuffle", one, "one.csv", "-o", "out.csv"), "no file of local reports")
    refused(local("shuffle", one, "-o", "out.csv", "--delta", 0), "delta")
    refused(local("shuffle", one, "-o", "out.csv", "--colluders", 300), "leaves no other")
    refused(local("shuffle", one, "-o", "out.csv", "--memory", 0.0000001), "permuted in memory")
    refused(local("shuffle", one, "-o", "out.csv", "--memory", 0), "memory")
    copy = Path("copy.csv")
    copy.write_bytes(Path(one).read_bytes())
    refused(local("shuffle", one, copy, "-o", "out.csv"), "holds the same reports")
    wrong = Path(one).read_text(encoding="utf-8").replace('"epsilon": 1.0', '"epsilon": 2.0')
    Path("wrong.csv").write_text(wrong, encoding="utf-8")
    refused(local("shuffle", one, "wrong.csv", "-o", "out.csv"), "another survey")


def test_an_output_that_exists_is_left_as_it_was() -> None:
    before = Path("reports-two.csv").read_bytes()
    result = local("shuffle", "reports-one.csv", "-o", "reports-two.csv")
    assert result.exit_code == 2 and Path("reports-two.csv").read_bytes() == before


def test_too_large_a_delta_is_said() -> None:
    result = local("shuffle", "reports-one.csv", "-o", "out.csv", "--delta", 0.01)
    assert "not below 1/n" in " ".join(result.stdout.split())


def test_amplify_prints_both_bounds_and_the_attack_without_any_file() -> None:
    text = " ".join(local("amplify", "--epsilon", 1, "--n", 10_000).stdout.split())
    for told in ("ε ≤ 0.04321 at δ = 1e-06", "at least 0.03566", "ε ≤ 0.214 by the closed form", "20,000 messages"):
        assert told in text
    smaller = json.loads(local("amplify", "-e", 1, "--n", 500, "--categories", 9, "--json").stdout)
    assert smaller["guarantee"]["epsilon"] < shuffled_epsilon(epsilon0=1.0, n=500, delta=1e-6).epsilon


def test_amplify_goes_back_from_a_central_epsilon() -> None:
    values = json.loads(local("amplify", "--central", 0.1, "--n", 10_000, "--json").stdout)
    assert values["local_epsilon"] == pytest.approx(1.83, abs=0.01)
    assert values["guarantee"]["epsilon"] <= values["wanted"] == 0.1


def test_amplify_says_where_the_closed_form_ends_and_what_is_missing() -> None:
    assert "no ε₀ at all at n = 50" in " ".join(local("amplify", "-e", 5, "--n", 50).stdout.split())
    for given, told in (
        (("--n", 5), "is missing"),
        (("--n", 5, "-e", 1, "--central", 1), "does not go with --central"),
        (("--n", 0, "-e", 1), "n = 0"),
        (("--n", 5, "-e", -1), "epsilon"),
        (("--n", 5, "-e", "nan"), "epsilon"),
        (("--n", 5, "--central", 0), "epsilon"),
        (("--n", 5, "-e", 1, "--categories", 1), "categories"),
    ):
        refused(local("amplify", *given), told)
