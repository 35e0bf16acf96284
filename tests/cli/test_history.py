"""Histories in files: every round counts, the worst party counts, units are never added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum import Gaussian, PoissonSampled
from quietsum.cli.app import app
from quietsum.privacy import PrivacyAccountant
from quietsum.privacy.events import to_dict, to_json


def spend(path: object, *arguments: object, stdin: str | None = None) -> Result:
    words = ["spend", "--history", path, "--delta", 1e-5, *arguments]
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


def spent(path: object, *arguments: object) -> dict[str, Any]:
    result = spend(path, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def written(folder: Path, text: str, name: str = "rounds.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


TEN_ROUNDS = "round,noise_multiplier,sample_rate,steps\n" + "".join(f"{n},1.0,0.1,100\n" for n in range(1, 11))

PARTIES = """round,party,noise_multiplier,sample_rate,steps
1,large,1.0,0.01,100
1,small,1.0,0.1,100
2,large,1.0,0.01,100
"""


def test_ten_equal_rounds_cost_what_one_run_of_all_their_steps_costs(tmp_path: Path) -> None:
    assert spent(written(tmp_path, TEN_ROUNDS))["epsilon"] == pytest.approx(25.2046, abs=2e-4)


def test_a_history_may_come_from_standard_input() -> None:
    result = spend("-", "--json", stdin=TEN_ROUNDS)
    assert json.loads(result.stdout)["epsilon"] == pytest.approx(25.2046, abs=2e-4)


def test_the_worst_party_counts_and_each_is_shown(tmp_path: Path) -> None:
    values = spent(written(tmp_path, PARTIES))
    assert values["epsilon"] == pytest.approx(7.0466, abs=2e-4)
    by_name = {party["party"]: party for party in values["parties"]}
    assert by_name["small"]["epsilon"] == values["epsilon"]
    assert 0 < by_name["large"]["epsilon"] < 2
    shown = spend(written(tmp_path, PARTIES)).stdout
    assert "large" in shown
    assert "the worst, so the run's" in shown


def test_a_row_without_a_party_is_charged_to_every_party(tmp_path: Path) -> None:
    path = written(tmp_path, PARTIES + "3,,1.0,0.1,100\n")
    by_name = {party["party"]: party["epsilon"] for party in spent(path)["parties"]}
    assert by_name["small"] == pytest.approx(9.97, abs=0.01)
    assert by_name["large"] > 7.0466


def test_record_and_client_rows_give_two_guarantees_and_no_sum(tmp_path: Path) -> None:
    path = written(tmp_path, "level,noise_multiplier,sample_rate,steps\nsample,1,0.1,100\nuser,0.5,0.8,1\n")
    values = spent(path)
    record, client = values["guarantees"]
    assert "epsilon" not in values
    assert (record["unit"], client["unit"]) == ("record", "client")
    assert record["epsilon"] == pytest.approx(7.0466, abs=2e-4)
    assert client["epsilon"] == pytest.approx(9.671, abs=1e-3)
    assert "never a sum" in spend(path).stdout


def test_a_wide_row_speaks_the_words_of_record_round(tmp_path: Path) -> None:
    header = "round_num,noise_multiplier_sample,sample_rate_sample,steps_sample,"
    header += "noise_multiplier_user,sample_rate_user,steps_user\n"
    path = written(tmp_path, header + "".join(f"{n},1,0.1,100,0.5,0.8,1\n" for n in range(1, 11)))
    record, client = spent(path)["guarantees"]
    assert record["epsilon"] == pytest.approx(25.2046, abs=2e-4)
    assert client["epsilon"] == pytest.approx(41.13, abs=0.01)


def test_a_json_list_of_rows_of_events_and_a_checkpoint_say_the_same(tmp_path: Path) -> None:
    event = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    rows = [{"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 100}]
    forms = {
        "rows": rows,
        "events": [{"kind": "repeated", "times": 100, "event": to_dict(event)}],
        "versioned": [json.loads(to_json(event)) | {"steps": 100}],
        "checkpoint": {"privacy": {"target_delta": 1e-5, "sample_history": [[1.0, 0.1, 100]], "user_history": []}},
    }
    for name, form in forms.items():
        path = written(tmp_path, json.dumps(form), f"{name}.json")
        assert spent(path)["epsilon"] == pytest.approx(7.0466, abs=2e-4), name


def test_a_row_may_name_its_mechanism_and_sampling(tmp_path: Path) -> None:
    text = "mechanism,sampling,noise_multiplier,sample_rate,steps\ngaussian,none,4,,50\n"
    assert spent(written(tmp_path, text))["epsilon"] == pytest.approx(8.5959, abs=1e-3)
    fixed = "sampling,noise_multiplier,sample_rate,steps\nfixed,1.2,0.0032,31200\n"
    assert spent(written(tmp_path, fixed))["neighbours"] == "replace-one"


def test_rounds_without_steps_cost_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, "noise_multiplier,sample_rate,steps\n1,0.1,0\n")
    assert spent(path)["epsilon"] == 0


def test_people_of_several_parties_are_warned_about(tmp_path: Path) -> None:
    values = spent(written(tmp_path, PARTIES), "--group", 2)
    assert "several" in " ".join(values["warnings"])
    assert values["unit"] == "person"


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ("noise_multiplyer,sample_rate,steps\n1,0.1,100\n", "did you mean 'noise_multiplier'"),
        ("noise_multiplier,samplerate,steps\n1,0.1,100\n", "did you mean 'sample_rate'"),
        ("noise_multiplier;sample_rate;steps\n1;0.1;100\n", "commas"),
        ("noise_multiplier,noise_multiplier,steps\n1,1,1\n", "twice"),
        ("noise_multiplier,sample_rate,steps\n1,0.1,100,7\n", "more cells"),
        ("noise_multiplier,sample_rate,steps\n1,0.1\n", "steps"),
        ("noise_multiplier,sample_rate,steps\nabc,0.1,100\n", "line 2: noise_multiplier = 'abc' is not a number"),
        ("noise_multiplier,sample_rate,steps\n1,0.1,100\n-1,0.1,100\n", "line 3: noise_multiplier"),
        ("noise_multiplier,sample_rate,steps\nnan,0.1,100\n", "not finite"),
        ("noise_multiplier,sample_rate,steps\n1,1.5,100\n", "[0, 1]"),
        ("noise_multiplier,sample_rate,steps\n1,0.1,2.5\n", "whole number"),
        ("noise_multiplier,sample_rate,steps\n1,0.1,-1\n", "at least 0"),
        ("noise_multiplier,sample_rate,steps\n1,0.1,1e300\n", "1e+12"),
        ("level,noise_multiplier,sample_rate,steps\nusers,1,0.1,1\n", "did you mean 'user'"),
        ("level,party,noise_multiplier,sample_rate,steps\nuser,a,1,0.1,1\n", "once a round"),
        ("mechanism,noise_multiplier,sample_rate,steps\ngausian,1,0.1,1\n", "did you mean 'gaussian'"),
        ("noise_multiplier,sample_rate,steps\n", "no rounds"),
        ("[1, 2]", "no object"),
        ("[{]", "not JSON"),
        ('{"sample_history": 3}', "no list"),
        ('{"sample_history": [[1, 2]]}', "three numbers"),
        ('[{"kind": "gauss"}]', "unknown event kind"),
        ('[{"event": {"kind": "gaussian", "noise_multiplier": 1}, "sampling": "fixed"}]', "beside an event"),
        ('[{"version": 9, "event": {"kind": "gaussian", "noise_multiplier": 1}}]', "is not 1"),
        ('[{"noise_multiplier": NaN, "sample_rate": 0.1, "steps": 1}]', "not finite"),
        ('[{"noise_multiplier": true, "sample_rate": 0.1, "steps": 1}]', "not a number"),
        ("[" * 100_000, "not JSON"),
        ("", "empty"),
    ],
)
def test_a_mistake_in_a_history_is_named_with_its_place(tmp_path: Path, text: str, lesson: str) -> None:
    result = spend(written(tmp_path, text))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert lesson in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_missing_files_folders_and_binary_files_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes(bytes(range(256)))
    zeros = tmp_path / "zeros.csv"
    zeros.write_bytes(b"noise_multiplier,sample_rate,steps\n1,0.1,\x00\n")
    for path, lesson in (
        (tmp_path / "gone.csv", "does not exist"), (tmp_path, "folder"), (binary, "not text"), (zeros, "not text"),
    ):  # fmt: skip
        result = spend(path)
        assert (result.exit_code, lesson in result.stderr) == (2, True), result.stderr


def test_parties_that_report_one_client_level_charge_are_charged_once(tmp_path: Path) -> None:
    header = "round,party,noise_multiplier_sample,sample_rate_sample,steps_sample,"
    header += "noise_multiplier_user,sample_rate_user,steps_user\n"
    once = "".join(f"1,{party},1,0.1,100,0.5,0.8,1\n" for party in "abc")
    record, client = spent(written(tmp_path, header + once))["guarantees"]
    assert client["epsilon"] == pytest.approx(9.671, abs=1e-3)
    assert record["epsilon"] == pytest.approx(7.0466, abs=2e-4)
    again = spent(written(tmp_path, header + once + "1,a,1,0.1,100,0.5,0.8,1\n"))["guarantees"][1]
    assert again["epsilon"] > client["epsilon"]


def test_a_saved_accountant_is_a_history_and_an_altered_one_is_refused(tmp_path: Path) -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    for party in "ab":
        accountant.record_round(
            round_num=1, party=party, noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=100,
            noise_multiplier_user=0.5, sample_rate_user=0.8, steps_user=1,
        )  # fmt: skip
    state = accountant.state_dict()
    record, client = spent(written(tmp_path, json.dumps(state), "state.json"))["guarantees"]
    assert record["epsilon"] == pytest.approx(accountant.get_cumulative_sample_epsilon())
    assert client["epsilon"] == pytest.approx(accountant.get_cumulative_user_epsilon())
    altered = spend(written(tmp_path, json.dumps(state | {"sample_history": []}), "altered.json"))
    assert altered.exit_code == 4
    assert "digest" in altered.stderr


def test_a_group_of_records_means_nothing_to_client_level_rows(tmp_path: Path) -> None:
    path = written(tmp_path, "level,noise_multiplier,sample_rate,steps\nuser,1,0.1,1\n")
    assert spend(path, "--group", 3).exit_code == 2


def test_numbers_beside_a_history_are_refused(tmp_path: Path) -> None:
    result = spend(written(tmp_path, TEN_ROUNDS), "--steps", 3)
    assert result.exit_code == 2
    assert "beside --history" in result.stderr
