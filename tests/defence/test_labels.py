"""Labels that were mixed up disagree with the rest of their rows; labels that were all exchanged do not."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from quietsum.defence.validation import Label, Schema, SchemaColumn, look_at_labels, parse_schema, read_table
from quietsum.defence.validation.labels import RATE, Disagreement, disagreements
from quietsum.tasks.gallery.heart import HeartTask

Numbers = NDArray[np.int64]


def made(rows: int, seed: int, *, apart: float = 3.0) -> tuple[NDArray[np.float64], Numbers]:
    chance = np.random.default_rng(seed)
    labels = np.arange(rows) % 2
    return chance.normal(size=(rows, 4)) + apart / 2 * labels[:, None], labels


def flipped(labels: Numbers, share: float, seed: int = 7) -> Numbers:
    wrong = np.random.default_rng(seed).random(len(labels)) < share
    return np.where(wrong, 1 - labels, labels)


def test_the_chance_of_so_many_is_the_binomial_tail_and_the_threshold_its_first_small_value() -> None:
    for rows, otherwise, declared in ((30, 4, 0.1), (1000, 150, 0.12), (17, 17, 0.5), (5, 0, 0.3)):
        one = Disagreement(rows=rows, otherwise=otherwise)
        assert one.chance(declared) == pytest.approx(binom.sf(otherwise - 1, rows, declared), rel=1e-9)
        least = one.threshold(declared)
        assert binom.sf(least - 1, rows, declared) <= RATE < binom.sf(least - 2, rows, declared)


def test_flipped_labels_raise_the_disagreement_by_about_their_share() -> None:
    features, labels = made(4000, 0)
    clean = disagreements(features, labels)[0].share
    for share in (0.05, 0.1, 0.3):
        found = disagreements(features, flipped(labels, share))
        expected = clean * (1 - share) + (1 - clean) * share
        assert found[0].share == pytest.approx(expected, abs=0.03)


def test_labels_that_are_all_exchanged_are_not_seen() -> None:
    """The negative result which the page states: only declared shares of unequal classes show them."""
    features, labels = made(1000, 1)
    before, after = disagreements(features, labels), disagreements(features, 1 - labels)
    assert {before[0].otherwise, before[1].otherwise} == {after[0].otherwise, after[1].otherwise}


def told(features: NDArray[np.float64], labels: Numbers, declared: float | None) -> list[str]:
    label = Label(column="label", classes=(0, 1), disagreement=declared)
    columns = tuple(SchemaColumn(name=f"x.{place}") for place in range(features.shape[1]))
    schema = Schema(columns=(*columns, SchemaColumn(name="label")), label=label)
    problems, _ = look_at_labels({"x": features, "label": labels}, schema)
    assert all(problem.severity == "warning" for problem in problems), "it informs"
    return [problem.message for problem in problems]


def test_at_the_declared_disagreement_an_alarm_is_as_rare_as_stated_and_flips_are_told() -> None:
    """300 tables whose true disagreement is what was declared: Φ(−√4·3/4) = 6.7 % for means 1.5 apart in 4 columns."""
    declared = 0.0668
    alarms = sum(bool(told(*made(300, seed), declared)) for seed in range(300))
    assert alarms <= 4  # of 600 classes .6 are expected; five or more have a chance of 4e-4
    caught = 0
    for seed in range(20):
        features, labels = made(300, seed)
        caught += bool(told(features, flipped(labels, 0.15, seed), declared))
    assert caught >= 19


def test_labels_without_any_relation_to_their_rows_are_told() -> None:
    features, labels = made(400, 3)
    shuffled = np.random.default_rng(4).permutation(labels)
    assert told(features, shuffled, None) == ["labels agree with the other columns no better than chance"]
    assert not told(features, labels, None)


def test_the_hospitals_labels_agree_and_a_few_rows_are_not_judged() -> None:
    problems, counted = look_at_labels(HeartTask.from_package().rows("cleveland"))
    assert not problems and set(counted) == {"0", "1"}
    (problem,), counted = look_at_labels(HeartTask.from_package().rows("switzerland"))
    assert "not judged" in problem.message and not counted


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308, 0.0])
def test_odd_values_are_answered(value: float) -> None:
    features, labels = made(200, 5)
    features[:7, 0], features[:, 3] = value, value
    assert set(disagreements(features, labels)) == {0, 1}


def test_texts_of_a_table_count_by_their_allowed_values(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "t.csv"
    rows = [f"P{i},{'north' if i % 2 else 'south'},{'yes' if i % 2 else 'no'}" for i in range(80)]
    path.write_text("\n".join(["id,ward,back", *rows, ""]))
    schema = parse_schema(
        'columns = [{ name = "id", type = "text" }, { name = "ward", type = "text", allowed = ["north", "south"] }, '
        '{ name = "back", type = "text" }]\n[rows]\nkeys = ["id"]\n[label]\ncolumn = "back"\nclasses = ["no", "yes"]'
    )
    problems, counted = look_at_labels(read_table(path, schema), schema)
    assert not problems and [one["otherwise"] for one in counted.values()] == [0, 0]
