"""One record's vector: never longer than 1, of its own row alone, and back without loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from analytics.asking import COLUMNS, EVERY, design, people
from quietsum.analytics import Column, Design, Question
from quietsum.analytics.encode import counts_of, factor, longest_column
from quietsum.errors import InvalidParameter

TEXTS = {
    "age": st.one_of(st.floats().map(str), st.sampled_from(["", "nan", "inf", "-1e308", "20", "100", "x", "60.0"])),
    "bmi": st.one_of(st.floats(0, 60).map(str), st.sampled_from(["", "10", "50"])),
    "sex": st.sampled_from(["f", "m", "", "other", " f "]),
    "arm": st.sampled_from(["old", "new", "?"]),
    "weeks": st.one_of(st.floats(-5, 90).map(str), st.sampled_from(["0", "60", "", "1e999"])),
    "died": st.sampled_from(["0", "1", "", "2"]),
}


@settings(max_examples=120, deadline=None)
@given(
    row=st.fixed_dictionaries(TEXTS),
    chosen=st.lists(st.sampled_from(EVERY), min_size=1, max_size=len(EVERY), unique_by=lambda one: one.name),
    weights=st.lists(st.floats(0.01, 100), min_size=len(EVERY), max_size=len(EVERY)),
)
def test_no_record_whatever_it_holds_is_longer_than_one(
    row: dict[str, str], chosen: list[Question], weights: list[float]
) -> None:
    import dataclasses

    asked = [dataclasses.replace(one, weight=weight) for one, weight in zip(chosen, weights, strict=False)]
    made = Design(asked, COLUMNS)
    values = made.encode({name: [text] for name, text in row.items()}) if made.columns else np.zeros((1, 1))
    vector = made.vectors(values)[0]
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) <= 1.0


def test_the_bound_is_reached_so_no_noise_is_wasted() -> None:
    made = design(Question(name="all", kind="count"), Question(name="sexes", kind="histogram", column="sex"))
    assert np.linalg.norm(made.vectors(made.encode({"sex": ["f"]}))[0]) == pytest.approx(1.0, abs=1e-9)


def test_a_row_is_encoded_by_itself_to_the_last_bit() -> None:
    made, texts = design(), people(40, np.random.default_rng(3))
    together = made.vectors(made.encode(texts))
    for index in (0, 17, 39):
        alone = made.vectors(made.encode({name: [column[index]] for name, column in texts.items()}))
        assert (alone[0] == together[index]).all()


def test_the_factor_squared_adds_up_all_cells_from_each_one_on() -> None:
    assert factor(40) @ factor(40) == pytest.approx(np.triu(np.ones((40, 40))), abs=1e-12)
    counts = np.random.default_rng(1).integers(0, 90, (3, 40)).astype(float)
    matrix = factor(40)
    found, _ = counts_of(counts @ (matrix / longest_column(matrix)).T)
    assert found == pytest.approx(counts, abs=1e-9)


def test_sums_over_ranges_have_far_less_noise_than_single_cells_would_give_them() -> None:
    cells = 64
    _, decode = counts_of(np.zeros(cells))
    later = np.triu(np.ones((cells, cells)))
    by_factor, by_cells = np.linalg.norm(later @ decode, axis=1), np.linalg.norm(later, axis=1)
    assert by_factor[0] < 2.6 < 8.0 == by_cells[0]
    assert by_factor.max() < 1 + np.log(cells) / np.pi + 0.4


def test_a_time_behind_the_grid_is_censored_there_and_no_death() -> None:
    made = design(EVERY[-1])
    rows = {"weeks": ["75", "60", "59.9", "0"], "died": ["1", "1", "1", "1"], "arm": ["old"] * 4}
    counts, _ = counts_of(made.blocks[0].of(made.vectors(made.encode(rows)).sum(axis=0)))
    died, censored = counts.round(9)[0]
    assert (died[-1], censored[-1], died[0], died.sum()) == (1, 2, 1, 2)


def test_too_many_cells_are_refused() -> None:
    many = [Question(name=f"q{index}", kind="contingency", columns=("age", "bmi")) for index in range(160)]
    with pytest.raises(InvalidParameter, match="coarser grids"):
        Design(many, COLUMNS)


@pytest.mark.parametrize(
    "name",
    ["id", "ID", "patient_id", "patientId", "Patient ID", "subject", "mrn", "SSN", "nhs_number", "email", "E-Mail",
     "first_name", "name", "phone", "date_of_birth", "birthdate", "case_no", "userCode", "study_number", "uuid",
     "case-number", "Patient.No", "Fall-Nr", "Patientennummer", "Versicherten-Nr", "Geburtsdatum", "Nachname",
     "date de naissance", "AHV-Nummer"],
)  # fmt: skip
def test_a_column_that_is_called_like_an_identifier_is_none_without_a_reason(name: str) -> None:
    with pytest.raises(InvalidParameter, match="tells people apart"):
        Column(name=name, kind="category", categories=("a", "b"))
    assert Column(name=name, kind="identifier").kind == "identifier"
    assert Column(name=name, kind="category", categories=("a", "b"), identifies_nobody="it is a ward").labels


@pytest.mark.parametrize(
    "name",
    ["age", "covid", "paid", "bmi", "sex", "drug_name", "number_of_children", "grade", "tumor_code"],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert Column(name=name, kind="category", categories=("a", "b")).labels == ("a", "b")
