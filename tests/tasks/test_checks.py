"""What can be wrong with records is told with the row and without what it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.tasks.checks import check_images, check_labels, one_site_each


def images() -> Any:
    return np.random.default_rng(0).random((5, 4, 4))


def test_good_images_and_labels_pass_unchanged() -> None:
    values = images()
    assert check_images("scans", values, shape=(4, 4)) is values
    assert check_labels("grades", np.array([[0], [1], [2]]), classes=3, rows=3).tolist() == [0, 1, 2]
    assert check_labels("grades", np.array([0.0, 1.0]), classes=2).dtype == np.int64
    assert check_labels("grades", np.array([True, False]), classes=2).tolist() == [1, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_pixel_that_is_no_number_is_found_by_its_row(bad: float) -> None:
    values = images()
    values[3, 1, 2] = bad
    with pytest.raises(InvalidParameter, match=r"NaN or infinite.*row 3.*public constant"):
        check_images("scans", values, shape=(4, 4))


@pytest.mark.parametrize(
    ("values", "lesson"),
    [
        (np.zeros((5, 4)), "are not n × 4 × 4"),
        (np.zeros((5, 4, 5)), "are not n × 4 × 4"),
        (np.zeros((5, 4, 4, 3)), "are not n × 4 × 4"),
        (np.zeros((4, 4)), "are not n × 4 × 4"),
        (np.zeros(()), "are not n × 4 × 4"),
        (np.zeros((0, 4, 4)), "no image at all"),
        (np.full((2, 4, 4), "a"), "are no numbers"),
        (np.zeros((2, 4, 4), dtype=complex), "are no numbers"),
    ],
)
def test_images_of_another_shape_or_kind_are_refused(values: Any, lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        check_images("scans", values, shape=(4, 4))


@pytest.mark.parametrize(
    ("labels", "lesson"),
    [
        ([0, 1, 2], "row 2 lies outside 0 … 1"),
        ([0, -1, 1], "row 1 lies outside"),
        ([0, 0.5, 1], "row 1 lies outside"),
        ([0, np.nan, 1], "row 1 lies outside"),
        ([0, np.inf, 1], "row 1 lies outside"),
        ([0, 2**63, 1], "row 1 lies outside"),
        ([1, 1, 1], "no example of class 0"),
        ([0, 1], "do not fit 3 images"),
        ([], "do not fit 3 images"),
        ([[0, 1], [1, 0], [0, 1]], "one label per row"),
        (["a", "b", "c"], "are no numbers"),
    ],
)
def test_bad_labels_are_refused(labels: Any, lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        check_labels("grades", np.array(labels), classes=2, rows=3)


def test_an_error_names_the_row_and_never_its_value() -> None:
    with pytest.raises(InvalidParameter) as told:
        check_labels("grades", np.array([0, 1, 7341]), classes=2)
    assert "row 2" in str(told.value) and "7341" not in str(told.value)


def test_an_empty_class_may_be_allowed() -> None:
    assert check_labels("grades", np.array([1, 1]), classes=2, every_class=False).tolist() == [1, 1]


def test_one_patient_in_two_sites_is_refused() -> None:
    people, sites = np.array([1, 1, 2, 3]), np.array(["north", "north", "south", "south"])
    one_site_each(people, sites)
    sites[1] = "south"
    with pytest.raises(InvalidParameter, match=r"share 1 of them: one patient in two sites.*ε"):
        one_site_each(people, sites)
    with pytest.raises(InvalidParameter, match="one card in two sites"):
        one_site_each(people, sites, person="card")
    with pytest.raises(InvalidParameter, match="one of each per record"):
        one_site_each(people, sites[:2])


@pytest.mark.parametrize("kind", [object, str, np.int64, np.float64])
def test_people_and_sites_may_be_of_any_kind(kind: Any) -> None:
    people, apart = np.array([1, 1, 2, 3]).astype(kind), np.array([0, 0, 1, 1]).astype(kind)
    one_site_each(people, apart)
    one_site_each(people[:0], apart[:0])
    with pytest.raises(InvalidParameter, match="2 sites, 3 people share 2 of them"):
        one_site_each(people[[0, 1, 2, 2, 3]], apart[[0, 2, 0, 2, 0]])
