"""quietsum ask on one machine: answers, books, refusals."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from analytics.asking import EVERY, hospitals, people, questions_of, toml_of, write_table
from quietsum.analytics import Question
from quietsum.analytics.questions import People
from quietsum.cli.app import app
from quietsum.ledger import Ledger
from quietsum.plan import LifetimePlan
from quietsum.runs.sealed import add_check

SIZES = {"bern": 300, "basel": 200, "zug": 250, "genf": 300}


def asked(folder: Path, *questions: Question, change: str = "", to: str = "", **promise: Any) -> Path:
    """A folder with three tables and a file of questions, in which ``change`` may be replaced."""
    hospitals(folder, np.random.default_rng(1), SIZES)
    path = folder / "questions.toml"
    text = toml_of(questions_of(SIZES, *questions, **promise))
    assert change in text
    path.write_text(text.replace(change, to, 1))
    return path


def run(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["ask", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


def test_all_kinds_are_answered_by_one_charge(tmp_path: Path) -> None:
    path = asked(tmp_path, epsilon=8.0)
    told = json.loads(run(path, "--workspace", tmp_path / "w", "--json"))
    found = {answer["name"]: answer["estimates"] for answer in told["answers"]}
    assert set(found) == {question.name for question in EVERY}
    assert found["all"][0]["value"] == pytest.approx(1050, abs=60)
    assert found["age"][0]["value"] == pytest.approx(62, abs=6)
    low, high = found["together"][0]["noise"]
    assert abs(found["together"][0]["value"] - 0.4) < 2 * (high - low)  # eight standard errors
    with Ledger.open(tmp_path / "w" / "ledger.db", read_only=True) as ledger:
        (known,) = ledger.runs()
        spent = {(party, str(unit)): one.epsilon for (party, unit), one in ledger.spending_by_party(known.run).items()}
    assert spent == {(name, "record"): pytest.approx(8.0, abs=1e-6) for name in SIZES}
    assert {one["epsilon"] for one in told["charged"]} == {8.0}
    (folder,) = (tmp_path / "w" / "runs").iterdir()
    assert {"answers.json", "events.jsonl", "run.db", "guarantee.md"} <= {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("secure", [False, True])
def test_with_masks_the_noise_is_that_of_one_sum(tmp_path: Path, secure: bool) -> None:
    path = asked(tmp_path, EVERY[0], secure=secure)
    told = json.loads(run(path, "--workspace", tmp_path / "w", "--json"))
    alone = json.loads(run(asked(tmp_path, EVERY[0]), "--dry-run", "--json"))["questions"][0]["deviation"]
    deviation = told["privacy"]["deviation"]  # with masks 4 shares, 3 of which are worth the noise
    assert deviation == pytest.approx(alone if not secure else alone / np.sqrt(3), rel=0.02)
    (one,) = told["answers"][0]["estimates"]
    assert abs(one["value"] - 1050) < 6 * deviation


def test_answers_are_shown_again_at_no_cost(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0], EVERY[-1])
    first = json.loads(run(path, "--workspace", tmp_path / "w", "--json", "-o", tmp_path / "out.json"))
    again = json.loads(run("--run", "latest", "--workspace", tmp_path / "w", "--json", "--level", "0.5"))
    assert json.loads((tmp_path / "out.json").read_text()) == first
    assert again["answers"][0]["estimates"][0]["value"] == first["answers"][0]["estimates"][0]["value"]
    wide, narrow = (told["answers"][0]["estimates"][0]["noise"] for told in (first, again))
    assert narrow[1] - narrow[0] < wide[1] - wide[0]
    with Ledger.open(tmp_path / "w" / "ledger.db", read_only=True) as ledger:
        assert len(list(ledger.runs())) == 1


def test_a_run_whose_plan_has_umlauts_is_listed_as_whole(tmp_path: Path) -> None:
    path = asked(tmp_path, dataclasses.replace(EVERY[0], name="Überlebende"))
    run(path, "--workspace", tmp_path / "w")
    listed = CliRunner().invoke(app, ["runs", "--workspace", str(tmp_path / "w"), "--json"])
    assert listed.exit_code == 0, listed.output
    told = json.loads(listed.stdout)
    assert told["damaged"] == [] and [one["outcome"] for one in told["runs"]] == ["finished"]
    (marker,) = (tmp_path / "w" / "runs").glob("*/run.json")  # the control: a plan that the ledger does not know
    about = json.loads(marker.read_text())
    about.pop("check")
    about["plan"] = "0" * 64
    marker.write_text(json.dumps(add_check(about)))
    assert CliRunner().invoke(app, ["runs", "--workspace", str(tmp_path / "w")]).exit_code == 4


def test_who_looks_at_answers_again_writes_nothing(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0])
    run(path, "--workspace", tmp_path / "w", "--name", "first")
    kept = {file: file.read_bytes() for file in (tmp_path / "w" / "runs").rglob("*") if file.is_file()}
    out = run("--run", "first", "--workspace", tmp_path / "w", "--level", "0.5")
    assert "wrote" not in out
    assert {file: file.read_bytes() for file in (tmp_path / "w" / "runs").rglob("*") if file.is_file()} == kept
    told = run(path, "--workspace", tmp_path / "w", "--name", "first", code=2)
    assert "ask --run first" in re.sub(r"\s+", " ", told)
    assert "--resume" not in told


def test_the_sum_of_another_run_of_the_same_questions_is_no_answer(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0], lifetime=LifetimePlan(epsilon=10.0, delta=1e-4))
    for name in ("first", "second"):
        run(path, "--workspace", tmp_path / "w", "--name", name)
    first, second = (tmp_path / "w" / "runs" / name / "checkpoints" for name in ("first", "second"))
    shutil.copy(second / "round-000001.safetensors", first)
    told = run("--run", "first", "--workspace", tmp_path / "w", code=4)
    assert "is that of run 'second'" in re.sub(r"\s+", " ", told)


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ("[-8e307, 8e307]", "beyond 1e+100"),  # answered by an overflow, after the charge
        ("[1e16, 10000000000000002.0]", "too many for bounds so close"),
        ("[0.0, 5e-324]", "too many for bounds so close"),
    ],
)
def test_bounds_of_which_no_answer_can_be_computed_are_refused_before_the_charge(
    tmp_path: Path, bounds: str, told: str
) -> None:
    path = asked(tmp_path, EVERY[4], change="[20.0, 100.0]", to=bounds)
    assert told in re.sub(r"\s+", " ", run(path, "--workspace", tmp_path / "w", code=2))
    assert not (tmp_path / "w").exists()


def test_a_picture_of_the_curve_is_drawn(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0], EVERY[5], EVERY[6], EVERY[8], EVERY[-1], secure=True)
    out = run(path, "--workspace", tmp_path / "w", "--plot", tmp_path / "curve.svg", "--question", "curve")
    assert "log-rank test: χ²" in out and "on 1 degree of freedom" in out
    curve = (tmp_path / "curve.svg").read_text()
    assert curve.startswith("<svg") and ">arm = new<" in curve  # a legend that states no figure
    assert "95 % intervals for the population; ε = 2 per record at δ = 1e-05" in curve
    for name, labels in (("ages", ("20 to 25", "95 to 100")), ("sexes", ("f", "m")), ("quartiles", ("quantile 0.5",))):
        run("--run", "latest", "--workspace", tmp_path / "w", "--plot", tmp_path / "one.svg", "--question", name)
        one = (tmp_path / "one.svg").read_text()
        assert all(f">{label}<" in one for label in labels), name
        assert "95 % intervals for the noise alone" in one


def test_show_leads_back_to_the_answers(tmp_path: Path) -> None:
    run(asked(tmp_path, EVERY[0]), "--workspace", tmp_path / "w")
    out = CliRunner().invoke(app, ["show", "latest", "--workspace", str(tmp_path / "w")]).stdout
    assert "answers.json in it" in out and "safetensors" not in out
    assert "next: quietsum ask --run questions-" in out


def test_figures_of_one_answer_have_the_same_decimals(tmp_path: Path) -> None:
    out = run(asked(tmp_path, EVERY[-1]), "--workspace", tmp_path / "w")
    rows = [line for line in out.splitlines() if line.startswith("│ ") and " at " in line]
    assert len(rows) == 24
    shown = {len(figure.split(".")[1]) for row in rows for figure in re.findall(r"\d+\.\d+", row)}
    assert len(shown) == 1 and not re.search(r"e-\d", "".join(rows))


def test_a_level_that_is_none_is_said_before_anything_else(tmp_path: Path) -> None:
    out = run(asked(tmp_path, EVERY[0]), "--workspace", tmp_path / "w", "--level", "95", code=2)
    assert out.startswith("error: level = 95.0 lies outside")
    assert "questions = None is missing" in run(code=2)


def test_a_dry_run_says_what_it_would_cost_and_touches_nothing(tmp_path: Path) -> None:
    path = asked(tmp_path)
    for table in tmp_path.glob("*.csv"):
        table.unlink()
    out = run(path, "--dry-run", "--workspace", tmp_path / "w")
    assert "nothing was charged" in out
    assert not (tmp_path / "w").exists()


def test_a_spent_lifetime_ends_it_before_any_row_is_read(tmp_path: Path) -> None:
    lifetime = LifetimePlan(epsilon=3.0, delta=1e-5)
    path = asked(tmp_path, EVERY[0], epsilon=2.0, lifetime=lifetime)
    run(path, "--workspace", tmp_path / "w")
    out = run(path, "--workspace", tmp_path / "w", "-o", tmp_path / "out.json", code=3)
    assert "lifetime" in out
    assert not (tmp_path / "out.json").exists()


AIMED = {
    "an identifier in where": ('sex = ["f"]', 'patient_id = ["p17"]'),
    "an identifier that is counted": (
        'kind = "histogram"\ncolumn = "age"',
        'kind = "histogram"\ncolumn = "patient_id"',
    ),
    "a column that nobody declared": ('sex = ["f"]', 'ward = ["7"]'),
    "an identifier called a category": ('name = "sex"\nkind', 'name = "patientId"\nkind'),
}


@pytest.mark.parametrize("case", AIMED)
def test_a_question_that_aims_at_one_person_is_refused_from_its_text_alone(tmp_path: Path, case: str) -> None:
    path = asked(tmp_path, change=AIMED[case][0], to=AIMED[case][1])
    for table in tmp_path.glob("*.csv"):
        table.unlink()  # so no row can have decided
    out = run(path, "--workspace", tmp_path / "w", "-o", tmp_path / "out.json", code=2)
    assert "identifier" in out or "declared column" in out or "tells people apart" in out
    assert not (tmp_path / "w").exists() and not (tmp_path / "out.json").exists()


BAD = {
    "no epsilon": ("epsilon = 2.0", "epsilon = 0.0", "greater than 0"),
    "a negative epsilon": ("epsilon = 2.0", "epsilon = -1.0", "greater than 0"),
    "an epsilon that is no number": ("epsilon = 2.0", "epsilon = nan", "finite"),
    "an infinite bound": ("bounds = [20.0, 100.0]", "bounds = [20.0, inf]", "finite"),
    "bounds the wrong way round": ("bounds = [20.0, 100.0]", "bounds = [100.0, 20.0]", "smaller number first"),
    "a key that is misspelt": ("epsilon = 2.0", "epsilom = 2.0", "did you mean privacy.epsilon"),
    "an unknown kind": ('kind = "variance"', 'kind = "varianz"', "did you mean 'variance'"),
    "an edge off the grid": ("from = 40.0", "from = 41.0", "no edge of its grid"),
    "a category that is none": ('sex = ["f"]', 'sex = ["x"]', "is no category"),
    "a delta that is too large": ("delta = 1e-05", "delta = 0.01", "1/n"),
    "a share outside its domain": ("at = [0.25, 0.5, 0.75]", "at = [0.25, 1.5]", "strictly between 0 and 1"),
    "masks over one site": ("delta = 1e-05", "delta = 1e-05\nsecure = true", "four sites"),
    "a missing table": ('table = "zug.csv"', 'table = "zürich.csv"', "is no file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_clear_error_and_leaves_no_file(tmp_path: Path, case: str) -> None:
    change, to, told = BAD[case]
    path = asked(tmp_path, *EVERY[:-1], change=change, to=to)
    if case == "masks over one site":
        begin, end = path.read_text().split("[[sites]]", 1)[0], path.read_text().split("[[columns]]", 1)[1]
        path.write_text(f'{begin}[[sites]]\nname = "bern"\nsize = 300\ntable = "bern.csv"\n[[columns]]{end}')
    out = run(path, "--workspace", tmp_path / "w", "-o", tmp_path / "out.json", code=2)
    assert told in " ".join(out.split()), out
    assert "Traceback" not in out and not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("content", ["", "\n\n", "age,sex\n50,f\n"])
def test_a_table_that_is_empty_or_lacks_a_column_is_said_before_anything_is_charged(
    tmp_path: Path, content: str
) -> None:
    path = asked(tmp_path, EVERY[-1])
    (tmp_path / "zug.csv").write_text(content)
    out = run(path, "--workspace", tmp_path / "w", code=2)
    assert "is empty" in out or "has no column" in out
    assert not (tmp_path / "w").exists()


def test_values_that_are_none_count_as_missing_and_tell_nothing(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0], EVERY[3], change="size = 250", to="size = 260", epsilon=8.0)
    with (tmp_path / "zug.csv").open("a") as file:
        file.write("p1,nan,27,f,old,3,1\np2,inf,27,f,old,3,1\np3,1e400,x,?,?,?\n\np4\n")
    told = json.loads(run(path, "--workspace", tmp_path / "w", "--json"))
    assert told["answers"][0]["estimates"][0]["value"] == pytest.approx(1054, abs=40)


def test_the_same_table_under_another_name_is_noticed(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0])
    run(path, "--workspace", tmp_path / "w")
    path.write_text(path.read_text().replace("registry-zug", "another-name"))
    out = run(path, "--workspace", tmp_path / "w", code=2)
    assert "another-name" in out and "--same-rows" in out


def test_a_declared_size_below_the_rows_is_said_to_the_holder_before_anything_is_charged(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[0], change="size = 250", to="size = 240")
    out = run(path, "--workspace", tmp_path / "w", code=2)
    assert "is too small" in out and "more rows" in out
    with Ledger.open(tmp_path / "w" / "ledger.db", read_only=True) as ledger:
        assert not list(ledger.runs())


def test_a_column_that_hardly_reads_is_told_to_the_holder(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[3])
    table = tmp_path / "zug.csv"
    lines = table.read_text().splitlines()
    table.write_text(
        "\n".join([lines[0], *(re.sub(r",(\d+)\.(\d+),", r',"\1,\2",', line, count=1) for line in lines[1:])])
    )
    for words in (["--dry-run"], []):  # before anything is charged, and again
        result = CliRunner().invoke(app, ["ask", str(path), "--workspace", str(tmp_path / "w"), *words])
        assert result.exit_code == 0 and "most values of age are no number" in result.stderr
        assert (tmp_path / "w").exists() == (not words)


def test_a_place_where_no_file_can_lie_is_said_before_anything_is_charged(tmp_path: Path) -> None:
    path = asked(tmp_path, EVERY[5])
    for words in (
        ("-o", tmp_path / "nowhere" / "a.json"),
        ("--plot", tmp_path / "nowhere" / "a.svg"),
        ("-o", tmp_path),
    ):
        out = run(path, "--workspace", tmp_path / "w", *words, code=2)
        assert "folder" in out
    if Path("/proc").is_dir():  # there even root makes no file
        out = run(path, "--workspace", tmp_path / "w", "--plot", "/proc/a.svg", code=2)
        assert "plot = '/proc/a.svg' cannot be written" in out
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_that_is_drawn_is_the_noise_that_is_stated(tmp_path: Path, secure: bool) -> None:
    """A histogram of 900 empty cells is noise alone."""
    from quietsum.analytics import Column

    column = Column(name="age", kind="number", bounds=(1000, 2000), cells=1000)
    asked_for = dataclasses.replace(
        questions_of(SIZES, Question(name="ages", kind="histogram", column="age"), secure=secure), columns=(column,)
    )
    hospitals(tmp_path, np.random.default_rng(1), SIZES)
    (tmp_path / "questions.toml").write_text(toml_of(asked_for))
    told = json.loads(run(tmp_path / "questions.toml", "--workspace", tmp_path / "w", "--json"))
    values = np.array([one["value"] for one in told["answers"][0]["estimates"]])[1:]
    assert np.std(values) == pytest.approx(told["privacy"]["deviation"], rel=0.1)
    assert abs(np.mean(values)) < 5 * told["privacy"]["deviation"] / np.sqrt(len(values))


@pytest.mark.parametrize("secure", [False, True])
def test_people_with_several_records_are_protected_as_a_whole(tmp_path: Path, secure: bool) -> None:
    """Everybody has five rows, of which two are used; ε is per person, and the noise is that of two records."""
    person = People(column="patient_id", max_records=2)
    sizes = {name: 5 * size for name, size in SIZES.items()}
    rng = np.random.default_rng(1)
    for name, size in SIZES.items():
        texts = people(size, rng)
        write_table(tmp_path / f"{name}.csv", {key: column * 5 for key, column in texts.items()})
    path = tmp_path / "questions.toml"
    path.write_text(toml_of(questions_of(sizes, EVERY[0], epsilon=4.0, person=person, secure=secure)))
    told = json.loads(run(path, "--workspace", tmp_path / "w", "--json"))
    assert (told["privacy"]["epsilon"], told["privacy"]["unit"]) == (4.0, "person")
    assert {(one["unit"], one["epsilon"] <= 4.0) for one in told["charged"]} == {("record", True), ("person", True)}
    (one,) = told["answers"][0]["estimates"]
    assert abs(one["value"] - 2 * 1050) < 6 * told["privacy"]["deviation"]
    path.write_text(toml_of(questions_of(sizes, EVERY[0], epsilon=4.0, secure=secure)))
    single = json.loads(run(path, "--dry-run", "--json"))["questions"][0]["deviation"]
    assert told["privacy"]["deviation"] == pytest.approx(2 * single, rel=0.02)


@pytest.mark.parametrize("column", ["sex", "ward"])
def test_people_are_told_apart_by_a_declared_identifier_alone(tmp_path: Path, column: str) -> None:
    path = asked(tmp_path, EVERY[0], change="delta = 1e-05", to=f"""delta = 1e-05
person = {{ column = "{column}", max_records = 2 }}""")  # fmt: skip
    assert "privacy.person.column" in run(path, "--workspace", tmp_path / "w", code=2)
