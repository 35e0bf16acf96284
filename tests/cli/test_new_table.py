"""``quietsum new --from``: a plan from a table's first line and what its holder says; no row is read unless public."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from quietsum.plan import load_plan
from quietsum.tasks import TableTask, task_of
from scenes import invoke, one_line

pytestmark = pytest.mark.usefixtures("empty_folder")

DECLARED = (
    "--declare", "age=number 0..120", "--declare", "pressure=number 60..220", "--declare", "ward=category a b c",
    "--declare", "back=category no yes",
)  # fmt: skip
SITES = ("north", "south", "east", "west", "centre")
SIZES = tuple(word for site in SITES for word in ("--site", f"{site}=200"))
MORE = tuple(word for site in SITES for word in ("--site", f"{site}=1000"))
"""Enough that the noise moves the score by about .01; with 200 it moves it by .1."""


def write_visits(path: str = "visits.csv", rows: int = 600, seed: int = 1) -> None:
    draw = np.random.default_rng(seed)
    back = draw.integers(0, 2, rows)
    age, pressure = draw.normal(50 + 15 * back, 10), draw.normal(125 + 20 * back, 15)
    lines = ["patient,site,age,pressure,ward,back"]
    for place in range(rows):
        site = SITES[place // 2 % 5]
        ward, label = "abc"[place % 3], ("no", "yes")[back[place]]
        lines.append(f"p{place // 2},{site},{age[place]:.0f},{pressure[place]:.0f},{ward},{label}")
    Path(path).write_text("\n".join([*lines, ""]))


def test_from_a_csv_to_a_federation_of_five_sites_with_a_report() -> None:
    write_visits(rows=3000)
    write_visits("volunteers.csv", rows=300, seed=2)
    assert invoke(
        "new", "run.toml", "--from", "visits.csv", "--label", "back", "--site-column", "site", "--person-column",
        "patient", *DECLARED, *MORE, "--holdout", "volunteers.csv", "--holdout-public", "volunteers agreed",
    ).exit_code == 0  # fmt: skip
    planned = invoke("plan", "run.toml")
    assert planned.exit_code == 0 and "5 parties" in planned.output, planned.output
    ran = invoke("run", "run.toml")
    assert ran.exit_code == 0 and "300 rows of volunteers.csv (volunteers agreed)" in ran.output, ran.output
    (report,) = Path("quietsum-workspace/runs").glob("*/report.json")
    found = json.loads(report.read_text())
    accuracy = next(one for one in found["metrics"] if one["name"] == "accuracy")
    assert accuracy["value"] > 0.7 and {one["unit"] for one in found["guarantees"]} == {"record", "person"}


def test_a_run_without_public_rows_has_no_score_and_says_so() -> None:
    write_visits()
    made = invoke(
        "new", "run.toml", "--from", "visits.csv", "--label", "back", "--declare", "site=ignore", *DECLARED, "--site",
        "visits=600",
    )  # fmt: skip
    assert "there will be no score" in made.output
    assert invoke("run", "run.toml").exit_code == 0
    (report,) = Path("quietsum-workspace/runs").glob("*/report.json")
    assert json.loads(report.read_text())["metrics"] == []


def test_what_is_written_and_planned_is_the_same_whatever_the_rows_are() -> None:
    asked = ("--label", "back", "--site-column", "site", *DECLARED, *SIZES)
    texts, outputs = [], []
    for seed, extra in ((1, ""), (2, '\0\0"""\n,,,,,,,,,\n')):
        write_visits(seed=seed)
        with Path("visits.csv").open("a") as file:
            file.write(extra)
        made = invoke("new", "run.toml", "--from", "visits.csv", "--force", *asked)
        outputs.append(made.output + invoke("plan", "run.toml").output)
        texts.append(Path("run.toml").read_text())
    assert texts[0] == texts[1] and outputs[0] == outputs[1]
    # Negative control: rows that are declared public are read.
    public = []
    for rows in (300, 600):
        write_visits(rows=rows)
        invoke("new", "run.toml", "--from", "visits.csv", "--force", "--label", "back", "--public", "made up")
        public.append(Path("run.toml").read_text())
    assert public[0] != public[1]


def test_what_is_not_known_is_blank_and_a_plan_with_blanks_is_refused() -> None:
    write_visits()
    made = invoke("new", "run.toml", "--from", "visits.csv", "--label", "back", "--json")
    assert len(json.loads(made.stdout)["to_fill_in"]) == 3
    refused = invoke("plan", "run.toml")
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert "site, age, pressure, ward have no kind" in told and "visits has no size" in told
    text = Path("run.toml").read_text()
    assert 'name = "patient", kind = "identifier"' in text  # its name says what it is


def test_public_rows_say_what_columns_hold_and_the_reason_stands_in_the_plan() -> None:
    write_visits()
    made = invoke(
        "new", "run.toml", "--from", "visits.csv", "--label", "back", "--site-column", "site", "--public", "made up"
    )
    assert made.exit_code == 0 and "need no protection: made up" in made.output
    task = task_of(load_plan("run.toml")).task  # type: ignore[attr-defined]
    assert isinstance(task, TableTask) and task.encoding.classes == ("no", "yes")
    assert {facts.public for facts in task.parties()} == {"made up"} and len(task.parties()) == 5
    kinds = {column.name: column.kind for column in task.encoding.columns}
    assert kinds == {"age": "number", "pressure": "number", "ward": "category"}
    assert invoke("plan", "run.toml").exit_code == 0


def test_columns_that_public_rows_do_not_explain_are_named_and_not_dropped_in_silence() -> None:
    lines = ["when,ward,same,nothing,age,back"]
    lines += [f"2024-01-{1 + i % 28:02d},w{i % 60},1,,{20 + i % 50},{('no', 'yes')[i % 2]}" for i in range(200)]
    lines[1:] = [line.replace("2024-01", f"20{24 + place % 3}-01") for place, line in enumerate(lines[1:])]
    Path("odd.csv").write_text("\n".join([*lines, ""]))
    told = one_line(invoke("new", "--from", "odd.csv", "--label", "back", "--public", "made up").stdout)
    assert "not learned from: when (dates); ward (60 different values, more than 50); same (one value" in told
    assert "nothing (empty). To use one, say --declare" in told
    options = load_plan(Path("run.toml")).task.options
    assert [one["name"] for one in options["columns"]] == ["age"] and "left_out" not in options
    assert "not learned" not in invoke("new", "--force", "--from", "odd.csv", "--label", "back").stdout  # none was read


def test_columns_come_from_a_data_toml_that_its_operator_has_reviewed() -> None:
    write_visits()
    assert invoke("data", "new", "visits.csv", "--label", "back").exit_code == 0
    asked = ("new", "run.toml", "--from", "visits.csv", "--label", "back", "--columns", "data.toml")
    refused = invoke(*asked, "--site", "visits=600")
    assert refused.exit_code == 2 and "reviewed = true" in refused.output
    draft = Path("data.toml").read_text()
    Path("data.toml").write_text(draft.replace("reviewed = false", "reviewed = true"))
    assert invoke(*asked, "--site", "visits=600", "--declare", "patient=identifier").exit_code == 0
    assert invoke("plan", "run.toml").exit_code == 0


def test_a_table_with_semicolons_and_decimal_commas_is_read_as_it_is() -> None:
    Path("besuche.csv").write_bytes("Größe;zurück\n1,75;ja\n1,80;nein\n".encode("cp1252"))
    made = invoke(
        "new", "run.toml", "--from", "besuche.csv", "--label", "zurück", "--encoding", "cp1252", "--decimal", ",",
        "--declare", "Größe=number 1..2", "--declare", "zurück=category ja nein", "--site", "bern=100",
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    rows = task_of(load_plan("run.toml")).task.rows("bern")  # type: ignore[attr-defined]
    np.testing.assert_allclose(rows.features[:, 0], [0.5, 0.6])
    assert rows.labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "line", ["63,1,Anna Meier,145,yes", "63,Anna Meier,yes", "1.5;Anna Meier;yes", "63,63,Anna Meier,yes", "7,3,yes"]
)
def test_a_row_in_place_of_the_names_goes_into_no_plan_and_on_no_screen(line: str) -> None:
    Path("visits.csv").write_text(f"{line}\n51,0,Bob,120,no\n")
    for label in ("yes", "back"):
        refused = invoke("new", "run.toml", "--from", "visits.csv", "--label", label)
        assert refused.exit_code == 2 and "may be a row" in " ".join(refused.output.split())
        assert not any(word in refused.output for word in ("Anna", "63", "1.5", "7"))
    assert not Path("run.toml").exists()
    Path("visits.csv").write_text("sex,2019,2020,back\n")
    assert invoke("new", "run.toml", "--from", "visits.csv", "--label", "back").exit_code == 0


def write_hostile(kind: str) -> None:
    path = Path("bad.csv")
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "dangling":
            path.symlink_to("nowhere.csv")
        case "loop":
            path.symlink_to("bad.csv")
        case "missing":
            pass
        case _:
            path.write_bytes({
                "empty": b"",
                "blank": b"\n\n\n",
                "twice": b"age,back,age\n1,no,2\n",
                "unnamed": b"age,,back\n1,2,no\n",
                "utf-16": "age,back\n1,no\n".encode("utf-16"),
                "nul": b"age,ba\0ck\n1,no\n",
                "workbook": b"PK\x03\x04....",
                "parquet": b"PAR1....",
                "latin": "größe,back\n1,no\n".encode("latin-1"),
                "control": b"age,\x1b[31mback\n1,no\n",
                "endless": b"x" * (3 << 20),
                "wide": ",".join(f"c{place}" for place in range(100_000)).encode() + b",back\n",
                "wider": ",".join(f"column{place}" for place in range(1_000_000)).encode() + b",back\n",
                "other": b"age,outcome\n1,no\n",
            }[kind])  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("folder", "is a folder"), ("pipe", "is no regular file"), ("device", "is no regular file"),
        ("dangling", "cannot be read"), ("loop", "cannot be read"), ("missing", "cannot be read"),
        ("empty", "is empty"), ("blank", "is empty"), ("twice", "names the column 'age' 2 times"),
        ("unnamed", "without a printable name"), ("utf-16", "--encoding utf-16"), ("nul", "NUL bytes"),
        ("workbook", "save it as CSV"), ("parquet", "save it as CSV"), ("latin", "--encoding cp1252"),
        ("control", "without a printable name"), ("endless", "first line of more than"),
        ("wide", "a model reads at most 2,000"), ("wider", "first line of more than"),
        ("other", "is no column of the table"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused_in_a_sentence(kind: str, told: str) -> None:
    write_hostile(kind)
    result = invoke("new", "run.toml", "--from", "bad.csv", "--label", "back")
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output
    assert "Traceback" not in result.output and not Path("run.toml").exists()


def test_a_mark_at_the_beginning_is_no_part_of_the_first_name() -> None:
    Path("bom.csv").write_bytes("\ufeffage,back\n1,no\n".encode())
    assert invoke("new", "run.toml", "--from", "bom.csv", "--label", "back").exit_code == 0
    assert 'name = "age"' in Path("run.toml").read_text()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--label", "back"), "name it: --from data.csv"),
        (("--declare", "age=number 0..1"), "name it: --from data.csv"),
        (("--from", "visits.csv"), "--label"),
        (("--from", "visits.csv", "--label", "outcome"), "is no column of the table"),
        (("--from", "visits.csv", "--label", "back", "--task", "heart"), "does not go with --from"),
        (("--from", "visits.csv", "--label", "back", "--site", "north"), "is no site with a size"),
        (("--from", "visits.csv", "--label", "back", "--site", "north=-3"), "is no site with a size"),
        (("--from", "visits.csv", "--label", "back", "--declare", "age=number 9..1"), "hold nothing"),
        (("--from", "visits.csv", "--label", "back", "--declare", "age=number"), "is not understood"),
        (("--from", "visits.csv", "--label", "back", "--declare", "height=number 0..3"), "is no column"),
        (("--from", "visits.csv", "--label", "back", "--declare", "age"), "declares nothing"),
        (("--from", "visits.csv", "--label", "back", "--declare", "back=identifier"), "a number or a category"),
        (("--from", "visits.csv", "--label", "back", "--holdout", "rows.csv"), "need no protection"),
        (("--from", "visits.csv", "--label", "back", "--model", "forest"), "choose linear or mlp"),
        (("--from", "visits.csv", "--label", "patient", "--public", "made up"), "too many values for classes"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_to_do(asked: tuple[str, ...], told: str) -> None:
    write_visits()
    result = invoke("new", "run.toml", *asked)
    assert result.exit_code == 2 and told in " ".join(result.output.split()), result.output


def test_the_holder_sees_which_lines_do_not_fit_the_plan() -> None:
    write_visits(rows=100)
    asked = ("--label", "back", "--site-column", "site", "--person-column", "patient", *DECLARED, *SIZES)
    assert invoke("new", "run.toml", "--from", "visits.csv", *asked).exit_code == 0
    for named in (("visits.csv", "--plan", "run.toml"), ("--plan", "run.toml")):
        assert invoke("data", "check", *named).exit_code == 0
    with Path("visits.csv").open("a") as file:
        file.write("p999,north,700,120,a,yes\np999,moon,50,120,d,perhaps\np999,north,50\n")
    found = invoke("data", "check", "visits.csv", "--plan", "run.toml", "--json")
    assert found.exit_code == 2
    told = {(one["check"], one["column"]) for one in json.loads(found.stdout)["problems"]}
    assert {("range", "age"), ("allowed", "ward"), ("allowed", "site"), ("label", "back"), ("lines", "")} <= told
    shown = invoke("data", "check", "visits.csv", "--plan", "run.toml")
    assert "count as zero" in shown.output and "line 102" in shown.output and "700" not in shown.output


def test_weights_move_further_where_the_declared_rows_are_short() -> None:
    def rate_of(*declared: str) -> float:
        words = [word for one in declared for word in ("--declare", one)]
        names = dict.fromkeys([*(one.partition("=")[0] for one in declared), "open", "back"])
        Path("t.csv").write_text(f"{','.join(names)}\n")
        sites = ("--site", "t=1200")
        assert invoke("new", "t.toml", "--from", "t.csv", "--label", "back", "--declare", "back=category no yes",
                      *words, *sites, "--force").exit_code == 0  # fmt: skip
        rate = load_plan("t.toml").aggregation.optimizer.learning_rate
        assert isinstance(rate, float)
        return rate

    usual = 0.05  # 0.4 / √60
    few, many = ("open=number 0..1",), ("open=number 0..1", *(f"c{n}=category a b" for n in range(40)))
    assert rate_of(*few) == pytest.approx(3 * usual, rel=0.05)  # the factor has a limit
    assert rate_of("age=number 0..9", "ward=category a b", *few) == pytest.approx(
        (4 / (5 / 3) ** 0.5) ** 0.75 * usual, rel=0.05
    )
    assert rate_of(*many) == pytest.approx((4 / (40 + 1 / 3) ** 0.5) ** 0.75 * usual, rel=0.05)
    assert rate_of(*few) > rate_of("open=ignore", "ward=category a b")
    assert rate_of("ward=category a b") == usual  # what "open" holds is not declared yet
