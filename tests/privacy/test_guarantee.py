"""A guarantee wears its unit, reads well, survives JSON, and cannot be added."""

from __future__ import annotations

import dataclasses
import json
import math
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quietsum.errors import CorruptState, InvalidParameter, MixedUnits
from quietsum.privacy.guarantee import Budget, Guarantee
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit


def guarantee(**values: Any) -> Guarantee:
    return Guarantee(**{"epsilon": 1.5, "epsilon_lower": 1.25, "delta": 1e-5, "method": "by hand", **values})


# ---------------------------------------------------------------------------------------------- what it says


def test_str_says_both_bounds_the_unit_the_observer_the_relation_and_the_method() -> None:
    assert str(guarantee()) == (
        "ε ≤ 1.5 (and ≥ 1.25) at δ = 1e-05 per record, against recipients of the model, "
        "add-or-remove-one neighbours; by hand"
    )
    full = guarantee(
        unit=PrivacyUnit.CLIENT, observer=Observer.SERVER, neighbours=Neighbours.REPLACE_ONE, order=8.5,
        epsilon_lower=0.0, warnings=("first", "second"),
    )  # fmt: skip
    assert str(full) == (
        "ε ≤ 1.5 at δ = 1e-05 per client, against the server, replace-one neighbours; by hand at order 8.5\n"
        "warning: first\nwarning: second"
    )


@given(st.floats(1e-300, 1e300), st.floats(0, 1))
def test_str_rounds_an_upper_bound_up_and_a_lower_bound_down(epsilon: float, share: float) -> None:
    text = str(guarantee(epsilon=epsilon, epsilon_lower=epsilon * share))
    upper = float(text.split()[2])
    assert epsilon * (1 - 1e-12) <= upper <= epsilon * (1 + 2e-5)
    if epsilon * share > 0:
        lower = float(text.split("≥ ")[1].split(")")[0])
        assert lower <= epsilon * share * (1 + 1e-12)


def test_the_control_six_digits_to_the_nearest_would_fall_below() -> None:
    assert f"{1.2500004:.6g}" == "1.25" and str(guarantee(epsilon=1.2500004)).startswith("ε ≤ 1.25001 (")


def test_repr_is_one_short_line() -> None:
    assert repr(guarantee(unit=PrivacyUnit.CLIENT)) == "Guarantee(ε = 1.5 per client at δ = 1e-05, by hand)"
    assert repr(guarantee(epsilon=math.inf)) == "Guarantee(ε = inf per record at δ = 1e-05, by hand)"


@pytest.mark.parametrize(
    ("unit", "size", "words"),
    [
        (PrivacyUnit.RECORD, 1, "record"),
        (PrivacyUnit.PERSON, 1, "person"),
        (PrivacyUnit.PERSON, 3, "person (up to 3 records)"),
        (PrivacyUnit.RECORD, 3, "record (up to 3 records)"),
        (PrivacyUnit.CLIENT, 1, "client"),
        (PrivacyUnit.CLIENT, 2, "group (up to 2 clients)"),
    ],
)
def test_whom_it_protects_is_said_in_words(unit: PrivacyUnit, size: int, words: str) -> None:
    named = guarantee(unit=unit, group_size=size)
    assert named.whom == words
    assert f"per {words}," in str(named)


def test_the_gap_is_how_far_the_bounds_are_apart() -> None:
    assert guarantee().gap == 0.25
    assert guarantee(epsilon=math.inf).gap == math.inf
    assert guarantee(epsilon=math.inf, epsilon_lower=math.inf).gap == math.inf


class Cells(HTMLParser):
    """The texts and the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_notebook_view_shows_every_row() -> None:
    cells = Cells(guarantee(order=4.0, certified=True, warnings=("mind the gap",))._repr_html_())
    assert cells.tags == {"table", "caption", "b", "tbody", "tr", "th", "td"}
    title, *texts = cells.texts
    assert title == "1.2500 ≤ ε ≤ 1.5000 per record"
    assert dict(zip(texts[::2], texts[1::2], strict=True)) == {
        "δ": "1e-05",
        "protects": "one record, against recipients of the model",
        "neighbours": "add-or-remove-one",
        "method": "by hand, order 4 (two-sided, every error inside the bounds)",
        "warning": "mind the gap",
    }


def test_the_notebook_view_rounds_an_upper_bound_up() -> None:
    title, *_ = Cells(guarantee(epsilon=1.00001, epsilon_lower=0.0)._repr_html_()).texts
    assert title == "ε ≤ 1.0001 per record"


def test_the_notebook_view_escapes_what_others_wrote() -> None:
    hostile = "<script>alert(1)</script> & \"more\" 'quotes'"
    page = guarantee(method=hostile, warnings=(hostile,))._repr_html_()
    cells = Cells(page)
    assert "script" not in cells.tags
    assert sum(hostile in text for text in cells.texts) == 2
    assert "<script" not in page


# ------------------------------------------------------------------------------------------------- no sums


def test_guarantees_have_no_plus() -> None:
    one, other = guarantee(), guarantee(unit=PrivacyUnit.CLIENT)
    for add in (lambda: one + other, lambda: one + one, lambda: one + 1.0, lambda: 1.0 + one, lambda: sum([one, one])):
        with pytest.raises(MixedUnits, match="compose the events in one accountant"):
            add()


def test_guarantees_have_no_order_and_no_other_arithmetic_either() -> None:
    one = guarantee()
    for act in (lambda: one < one, lambda: one * 2, lambda: one - one, lambda: float(one)):  # type: ignore[operator,arg-type]
        with pytest.raises(TypeError):
            act()


# ------------------------------------------------------------------------------------------------- checks


def test_a_guarantee_is_frozen_and_hashable() -> None:
    one = guarantee()
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.epsilon = 0.1  # type: ignore[misc]
    assert len({one, guarantee(), guarantee(epsilon=2.0)}) == 2


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("epsilon", (-1e-9, math.nan, -math.inf, None, "1", True)),
        ("epsilon_lower", (-1e-9, 1.5000001, math.inf, math.nan, None, "1", True)),
        ("delta", (-1e-9, 1.1, math.nan, math.inf, None, "0.1", True)),
        ("order", (math.nan, math.inf, "2")),
        ("group_size", (0, -1, 1.5, math.nan, None, True)),
        ("unit", ("record", None, Observer.SERVER)),
        ("observer", ("server", None, PrivacyUnit.RECORD)),
        ("neighbours", ("zero-out", None, PrivacyUnit.RECORD)),
    ],
)
def test_a_field_that_makes_no_sense_is_refused_by_name(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidParameter) as caught:
            guarantee(**{field: value})
        assert caught.value.parameter == field


def test_infinity_zero_and_delta_zero_are_bounds() -> None:
    assert guarantee(epsilon=math.inf, epsilon_lower=math.inf).epsilon == math.inf
    assert guarantee(epsilon=0.0, epsilon_lower=0.0, delta=0.0).delta == 0.0


def test_numpy_numbers_become_plain_ones() -> None:
    one = guarantee(epsilon=np.float64(2.0), epsilon_lower=np.float32(1.0), delta=np.float64(0.5), order=np.int64(3))
    assert [type(value) for value in (one.epsilon, one.epsilon_lower, one.delta, one.order)] == [float] * 4
    json.dumps(one.to_dict(), allow_nan=False)


# --------------------------------------------------------------------------------------------------- JSON


def test_to_dict_has_one_plain_value_for_each_field() -> None:
    assert guarantee(order=2.0, warnings=("w",), certified=True).to_dict() == {
        "epsilon": 1.5,
        "delta": 1e-5,
        "epsilon_lower": 1.25,
        "unit": "record",
        "observer": "recipients",
        "neighbours": "add-or-remove-one",
        "method": "by hand",
        "order": 2.0,
        "certified": True,
        "group_size": 1,
        "warnings": ["w"],
    }


@pytest.mark.parametrize("lower", [0.0, 3.0, math.inf])
def test_infinity_is_a_word_in_json(lower: float) -> None:
    one = guarantee(epsilon=math.inf, epsilon_lower=lower)
    text = json.dumps(one.to_dict(), allow_nan=False)
    assert '"epsilon": "Infinity"' in text
    assert Guarantee.from_dict(json.loads(text)) == one


@given(
    epsilon=st.floats(0, allow_nan=False),
    share=st.floats(0, 1),
    delta=st.floats(0, 1),
    unit=st.sampled_from(PrivacyUnit),
    observer=st.sampled_from(Observer),
    neighbours=st.sampled_from(Neighbours),
    method=st.text(),
    order=st.none() | st.floats(1, 1e6),
    certified=st.booleans(),
    size=st.integers(1, 10**6),
    warnings=st.lists(st.text(), max_size=3),
)
def test_a_guarantee_comes_back_from_json_as_it_was(
    epsilon: float, share: float, delta: float, unit: PrivacyUnit, observer: Observer, neighbours: Neighbours,
    method: str, order: float | None, certified: bool, size: int, warnings: list[str],
) -> None:  # fmt: skip
    lower = epsilon * share if math.isfinite(epsilon) else (math.inf if share > 0.5 else share)
    one = Guarantee(
        epsilon=epsilon, epsilon_lower=lower, delta=delta, unit=unit, observer=observer, neighbours=neighbours,
        method=method, order=order, certified=certified, group_size=size, warnings=tuple(warnings),
    )  # fmt: skip
    text = json.dumps(one.to_dict(), allow_nan=False)
    assert Guarantee.from_dict(json.loads(text)) == one


@pytest.mark.parametrize(
    ("change", "lesson"),
    [
        ({"epsilon": -1.0}, "no privacy bound"),
        ({"epsilon": "1.5"}, "is not a number"),
        ({"epsilon": "infinity"}, "is not a number"),
        ({"epsilon_lower": 9.0}, "must lie in"),
        ({"delta": 2}, "must lie in"),
        ({"unit": "household"}, "household"),
        ({"unit": None}, "None"),
        ({"observer": "everyone"}, "everyone"),
        ({"neighbours": "close"}, "close"),
        ({"method": None}, "method is a text"),
        ({"certified": 1}, "true or false"),
        ({"warnings": "careful"}, "list of texts"),
        ({"warnings": [1]}, "list of texts"),
        ({"group_size": 0}, "at least 1"),
        ({"order": "two"}, "is not a number"),
        ({"note": 1}, "unknown ['note']"),
    ],
)
def test_a_changed_value_is_corrupt_state(change: dict[str, Any], lesson: str) -> None:
    with pytest.raises(CorruptState) as caught:
        Guarantee.from_dict({**guarantee().to_dict(), **change})
    assert lesson in str(caught.value)


def test_a_missing_key_or_no_object_at_all_is_corrupt_state() -> None:
    for name in guarantee().to_dict():
        values = guarantee().to_dict()
        del values[name]
        with pytest.raises(CorruptState, match="missing"):
            Guarantee.from_dict(values)
    with pytest.raises(CorruptState, match="is an object"):
        Guarantee.from_dict([1, 2])  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- budgets


def test_a_budget_allows_up_to_its_epsilon_and_no_more() -> None:
    budget = Budget(epsilon=1.5, delta=1e-5)
    assert budget.allows(guarantee())
    assert budget.allows(guarantee(delta=1e-9))
    assert not budget.allows(guarantee(epsilon=math.nextafter(1.5, 2)))
    assert not budget.allows(guarantee(epsilon=math.inf))


def test_a_budget_of_another_unit_or_a_smaller_delta_says_nothing() -> None:
    with pytest.raises(MixedUnits, match="per client, the guarantee per record"):
        Budget(epsilon=1.5, delta=1e-5, unit=PrivacyUnit.CLIENT).allows(guarantee())
    with pytest.raises(MixedUnits, match="δ = 1e-05, the budget holds at 1e-06"):
        Budget(epsilon=1.5, delta=1e-6).allows(guarantee())


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("epsilon", (0, -1, math.nan, math.inf, None, "1", True)),
        ("delta", (0, 1, -1, math.nan, None, "1", True)),
        ("unit", ("record", None)),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_by_name(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InvalidParameter) as caught:
            Budget(**{"epsilon": 1.0, "delta": 1e-5, field: value})
        assert caught.value.parameter == field
