"""A task from a table: each row is encoded by itself, its gradient is right, and what does not fit counts as zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietsum.cli.sites.check import task_at_site
from quietsum.errors import DataMissing, InvalidParameter, PlanRefused
from quietsum.learning import private_steps
from quietsum.mechanisms import system_randomness
from quietsum.party import load_policy
from quietsum.party.site_task import make_task
from quietsum.plan import Plan, TaskPlan
from quietsum.sampling import Everyone
from quietsum.tasks import TableOptions, TableTask, find_blanks, task_of, toml_of
from quietsum.tasks.table.models import RowModel

LABEL = {"name": "back", "kind": "category", "categories": ["no", "yes"]}
AGE = {"name": "age", "kind": "number", "bounds": [0, 100]}
WARD = {"name": "ward", "kind": "category", "categories": ["north", "south"]}
LINES = ["34,north,no,p1", "51,south,yes,p2", "78,north,yes,p1", "12,south,no,p3"]


def write_table(folder: Path, lines: list[str] = LINES, header: str = "age,ward,back,patient") -> Path:
    path = folder / "visits.csv"
    path.write_bytes("\n".join([header, *lines, ""]).encode("utf-8", "surrogateescape"))
    return path


def make_table(path: Path | str, **options: Any) -> TableTask:
    stated: dict[str, Any] = {
        "name": "visits", "label": LABEL, "columns": [AGE, WARD], "sites": [{"name": "here", "size": 10}],
        "table": str(path), **options,
    }  # fmt: skip
    return TableTask.from_options(stated)


# --------------------------------------------------------------------------------------------------- models


def loss(model: RowModel, params: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The loss of each row, written down a second time."""
    scores = model.scores(params, features)
    if not model.classes:
        return 0.5 * (scores[:, 0] - labels) ** 2
    if model.classes == 2:
        return np.logaddexp(0, scores[:, 0]) - labels * scores[:, 0]
    places = labels.astype(int)
    return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(scores)), places]


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("hidden", [0, 4])
def test_a_gradient_is_the_slope_of_its_rows_loss(classes: int, hidden: int) -> None:
    model, draw = RowModel(inputs=5, classes=classes, hidden=hidden), np.random.default_rng(3)
    features = draw.uniform(-1, 1, (6, 5))
    labels = draw.integers(0, classes, 6).astype(float) if classes else draw.uniform(-1, 1, 6)
    params = draw.normal(size=model.dimension) / 2
    found = model.gradients(params, features, labels)
    for place in range(model.dimension):
        step = np.zeros(model.dimension)
        step[place] = 1e-6
        slope = (loss(model, params + step, features, labels) - loss(model, params - step, features, labels)) / 2e-6
        np.testing.assert_allclose(found[:, place], slope, atol=1e-6)


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("hidden", [0, 7])
def test_a_rows_gradient_is_the_same_bits_in_any_batch(classes: int, hidden: int) -> None:
    model, draw = RowModel(inputs=37, classes=classes, hidden=hidden), np.random.default_rng(4)
    features = draw.uniform(-1, 1, (100, 37))
    labels = draw.integers(0, max(classes, 1), 100).astype(float)
    params = draw.normal(size=model.dimension)
    together = model.gradients(params, features, labels)
    for some in (slice(0, 1), slice(17, 18), slice(3, 90)):
        assert (together[some] == model.gradients(params, features[some], labels[some])).all()
    # Negative control: the comparison sees the last bit, in which a matrix product may differ.
    assert not (together == model.gradients(np.nextafter(params, 9), features, labels)).all()


def test_answers_are_chances_of_the_declared_classes(tmp_path: Path) -> None:
    task = make_table(write_table(tmp_path))
    features = task.encode_file(write_table(tmp_path, ["34,north", "?,moon"], "age,ward"))
    found = task.answers(np.linspace(-1, 1, task.dimension), features)
    assert task.answer_names == ("no", "yes") and found.shape == (2, 2)
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_a_number_is_learned_in_its_own_units(tmp_path: Path) -> None:
    label = {"name": "age", "kind": "number", "bounds": [0, 100]}
    task = make_table(write_table(tmp_path), label=label, columns=[WARD])
    np.testing.assert_allclose(task.rows("here").labels, [-0.32, 0.02, 0.56, -0.76])
    features = task.encode_file(tmp_path / "visits.csv")
    np.testing.assert_allclose(task.answers(np.zeros(task.dimension), features)[:, 0], 50)
    assert task.answer_names == ("age",) and task.confusion(task.initial()) is None


# ------------------------------------------------------------------------------------------------------ rows

HOSTILE = [
    '51,"south,yes,p2', "51,south,yes,p2,more", "51,south", "51,so\0uth,yes,p2", "nan,south,yes,p2", "inf,south,yes,p2",
    "1e999,south,yes,p2", "-7,south,yes,p2", "51,moon,yes,p2", "51,south,perhaps,p2", "51,south,,p2", ",,,",
    "5" * 3000 + ",south,yes,p2", "51,south,yes,\udcff", "=cmd|' /C calc'!A0,south,yes,p2", '"""""","""",yes,p2',
    "x" * (1 << 20) + ",south,yes,p2", "1_0,south,yes,p2",
]  # fmt: skip


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: line[:20].encode("ascii", "replace").decode())
def test_whatever_one_line_holds_the_others_are_read_as_if_it_were_not_there(tmp_path: Path, line: str) -> None:
    without = make_table(write_table(tmp_path, [LINES[0], *LINES[2:]])).rows("here")
    beside = make_table(write_table(tmp_path, [LINES[0], line, *LINES[2:]])).rows("here")
    assert len(beside) in (3, 4)
    others = [0, 2, 3] if len(beside) == 4 else [0, 1, 2]
    assert (beside.features[others] == without.features).all() and (beside.labels[others] == without.labels).all()
    assert np.isfinite(beside.features).all() and (np.abs(beside.features) <= 1).all()


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("odd", [b"5", b"\xe2\x82", b"\xff\xfe", b"\x00", b"\x00\xd8", b'"', b"\x81", b"x" * (1 << 22)])
def test_whatever_bytes_are_in_one_line_the_others_are_read_alike(tmp_path: Path, encoding: str, odd: bytes) -> None:
    path, mark = tmp_path / "visits.csv", b"\xfe\xff" if encoding == "utf-16-be" else b""
    lines = [f"{line}\n".encode(encoding).removeprefix(b"\xff\xfe") for line in ["age,ward,back,patient", *LINES]]
    mark = b"\xff\xfe" if encoding == "utf-16" else mark
    known = "utf-16" if encoding.startswith("utf-16") else encoding
    path.write_bytes(mark + b"".join([*lines[:2], *lines[3:]]))
    without = make_table(path, encoding=known).rows("here")
    path.write_bytes(mark + b"".join([*lines[:2], odd + lines[2], *lines[3:]]))
    beside = make_table(path, encoding=known).rows("here")
    others = [0, 2, 3] if len(beside) == 4 else [0, 1, 2]
    assert len(without) == 3 and len(beside) in (3, 4)
    assert (beside.features[others] == without.features).all() and (beside.labels[others] == without.labels).all()


@pytest.mark.parametrize("line", ["51,south,perhaps,p2", "51,south,,p2", '51,"south,yes,p2', "51,south"])
def test_a_row_that_does_not_fit_counts_as_zero_and_nobody_hears_of_it(tmp_path: Path, line: str) -> None:
    def step(lines: list[str]) -> np.ndarray:
        task = make_table(write_table(tmp_path, lines))
        return private_steps(
            task, task.initial(), task.rows("here"), steps=1, sampling=Everyone(), mechanism=None, expected_batch=10,
            learning_rate=1.0, momentum=0.0, rng=system_randomness(),
        )  # fmt: skip

    assert (step([*LINES, line]) == step(LINES)).all()
    assert not (step([*LINES, "51,south,yes,p2"]) == step(LINES)).all()  # Negative control: a good row counts


def test_rows_lie_at_the_site_that_their_column_says(tmp_path: Path) -> None:
    sites = [{"name": "north", "size": 5}, {"name": "south", "size": 7}]
    task = make_table(write_table(tmp_path), columns=[AGE], sites=sites, site_column="ward")
    assert [len(task.rows(name)) for name in ("north", "south")] == [2, 2]
    assert [(one.dataset, one.size) for one in task.parties()] == [("visits-north", 5), ("visits-south", 7)]
    with pytest.raises(InvalidParameter, match="is no site of visits"):
        task.rows("moon")


def test_a_site_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    task = make_table("", tables={"here": str(write_table(tmp_path))}, columns=[AGE], site_column="ward")
    assert len(task.rows("here")) == 4
    with pytest.raises(DataMissing, match="no table is named for here"):
        make_table("").look_for_data("here")


def test_people_are_told_apart_by_their_own_rows_alone(tmp_path: Path) -> None:
    task = make_table(write_table(tmp_path), person_column="patient")
    assert task.people is not None and task.person == "patient"
    people = task.people("here")
    assert people[0] == people[2] and len(set(people.tolist())) == 3
    again = make_table(write_table(tmp_path, [LINES[0], LINES[3]]), person_column="patient")
    assert again.people is not None and again.people("here").tolist() == [people[0], people[3]]
    assert make_table(write_table(tmp_path)).people is None


def test_a_table_that_is_none_is_told_before_it_is_read(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv", "\0"):
        with pytest.raises(DataMissing):
            make_table(str(path)).look_for_data("here")


# --------------------------------------------------------------------------------------------------- options


def test_all_blanks_are_told_at_once() -> None:
    columns = [{"name": "age", "kind": ""}, {"name": "stay", "kind": "number"}, {"name": "ward", "kind": "category"}]
    options = {"columns": columns, "sites": [{"name": "north", "size": 0}], "holdout": "public.csv"}
    assert len(list(find_blanks(TableOptions.from_dict(options)))) == 6
    with pytest.raises(PlanRefused, match="age has no kind") as raised:
        TableTask.from_options(options)
    for told in ("label", "stay has no bounds", "ward has no categories", "north has no size", "holdout_public"):
        assert told in str(raised.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"colums": []}, "is no option of a table"),
        ({"held_out": 0.2}, "the rows are protected"),
        ({"held_out": 1.0, "public": "published"}, "leaves no row to train on"),
        ({"columns": [AGE, AGE]}, "stands there twice"),
        ({"columns": [AGE, LABEL]}, "is label, site or person"),
        ({"columns": [{"name": "height", "kind": "number", "bounds": [0, 1]}]}, ""),
        (
            {"columns": [{"name": "patient_id", "kind": "category", "categories": ["a", "b"]}]},
            "tells people apart, which",
        ),
        ({"columns": [{"name": "age", "kind": "number", "bounds": [9, 1]}]}, "does not fit"),
        ({"columns": [{"name": "age", "kind": "identifier"}]}, "leave nothing to learn from"),
        ({"label": {"name": "back", "kind": "identifier"}}, "tells people apart"),
        ({"sites": [{"name": "a", "size": 5}, {"name": "a", "size": 6}]}, "name one twice"),
        ({"sites": [{"nam": "a"}]}, "is no site"),
        ({"decimal": ","}, "separates fields, too"),
        ({"model": "forest"}, "forest"),
        ({"columns": [{"name": f"x{place}", "kind": "identifier"} for place in range(2001)]}, "more than 2,000"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], why: str) -> None:
    if not why:
        make_table("visits.csv", **options)  # Negative control: such a name tells nobody apart
        return
    with pytest.raises(InvalidParameter, match=why):
        make_table("visits.csv", **options)


def test_without_public_rows_there_is_no_score_and_with_them_it_says_which(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    found = make_table(table).evaluate(np.zeros(6))
    assert not found.values and "no score" in found.on
    holdout = {"holdout": str(table), "holdout_public": "made up"}
    found = make_table("nowhere.csv", **holdout).evaluate(np.zeros(6))
    assert found.on == "4 rows of visits.csv (made up)" and found.values["accuracy"] == 0.5
    assert found.chance == {"accuracy": 0.5, "auc": 0.5}


def test_protected_rows_are_no_holdout_by_whatever_path(tmp_path: Path) -> None:
    path = write_table(tmp_path)
    (tmp_path / "link.csv").symlink_to(path)
    for same in (path, tmp_path / "link.csv", tmp_path / "." / ".." / tmp_path.name / "visits.csv"):
        for where in ({}, {"table": "", "tables": {"here": str(path)}}):
            with pytest.raises(InvalidParameter, match="a release without a charge"):
                make_table(path, holdout=str(same), holdout_public="because", **where)
    make_table(path, holdout=str(path), holdout_public="made up", public="made up")
    other = tmp_path / "other.csv"
    other.write_bytes(path.read_bytes())
    assert "4 rows of other.csv" in make_table(path, holdout=str(other), holdout_public="1990").evaluate(np.zeros(6)).on


def test_public_rows_that_are_scored_are_not_trained_on(tmp_path: Path) -> None:
    lines = [f"{age},north,{'yes' if age > 50 else 'no'},p{age // 3}" for age in range(100)]
    task = make_table(write_table(tmp_path, lines), public="made up", held_out=0.3, person_column="patient")
    trained = task.rows("here")
    assert task.people is not None and task.parties()[0].public == "made up"
    scored = int(task.evaluate(task.initial()).on.split()[0])
    assert 0 < scored < 100 and len(trained) + scored == 100
    counts = np.unique(task.people("here"), return_counts=True)[1]
    assert (np.sort(counts)[1:] == 3).all()  # a person's rows are on one side


def test_a_plan_with_a_table_makes_a_task_that_knows_people_only_with_their_column(tmp_path: Path) -> None:
    options = {"name": "visits", "label": LABEL, "columns": [AGE], "sites": [{"name": "here", "size": 10}]}
    assert task_of(Plan(task=TaskPlan(name="table", options=options))).person is None
    named = {**options, "person_column": "patient"}
    assert task_of(Plan(task=TaskPlan(name="table", options=named))).person == "patient"


def test_a_site_elsewhere_adds_its_own_file_to_the_options_that_its_policy_allows(tmp_path: Path) -> None:
    write_table(tmp_path)
    stated = {"name": "visits", "label": LABEL, "columns": [AGE], "sites": [{"name": "north", "size": 10}]}
    text = f"""
[site]
name = "north"
[coordinator]
address = "server.example.org:9092"
[dataset]
name = "visits"
size = 10
[record]
epsilon = 1.0
delta = 1e-3
[[tasks]]
name = "table"
here = {{ table = "{tmp_path / "visits.csv"}" }}
[tasks.options]
name = "visits"
label = {toml_of(LABEL)}
columns = {toml_of([AGE])}
sites = {toml_of(stated["sites"])}
"""
    (tmp_path / "policy.toml").write_text(text)
    policy = load_policy(tmp_path / "policy.toml")
    plan = Plan(task=TaskPlan(name="table", options=stated))
    task = make_task(policy, plan)
    task.look_for_data("north")
    records = task.records_of("north")
    assert records is not None and len(records[0]) == 4
    assert task_at_site(policy.tasks[0]).name == "visits"  # as quietsum party check makes it
    # Another range is another encoding, and the policy does not allow it.
    other = {**stated, "columns": [{**AGE, "bounds": [0, 50]}]}
    with pytest.raises(PlanRefused, match="table"):
        make_task(policy, Plan(task=TaskPlan(name="table", options=other)))
