"""Events are frozen, checked, and travel as JSON whose meaning never changes."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.privacy import events as ev

GAUSSIAN = ev.Gaussian(noise_multiplier=1.5)

# One valid event of each kind, with the JSON that this version and every later one must read and write for it.
GOLDEN: dict[str, tuple[ev.PrivacyEvent, str]] = {
    "gaussian": (GAUSSIAN, '{"kind": "gaussian", "noise_multiplier": 1.5}'),
    "laplace": (ev.Laplace(noise_multiplier=0.5), '{"kind": "laplace", "noise_multiplier": 0.5}'),
    "discrete-laplace": (
        ev.DiscreteLaplace(scale=2.0, sensitivity=3),
        '{"kind": "discrete-laplace", "scale": 2.0, "sensitivity": 3}',
    ),
    "discrete-gaussian": (
        ev.DiscreteGaussian(sigma=4.0, sensitivity=2.5, dimension=7),
        '{"dimension": 7, "kind": "discrete-gaussian", "sensitivity": 2.5, "sigma": 4.0}',
    ),
    "discrete-gaussian-sum": (
        ev.DiscreteGaussianSum(sigma=4.0, shares=3, sensitivity=2.5, dimension=7),
        '{"dimension": 7, "kind": "discrete-gaussian-sum", "sensitivity": 2.5, "shares": 3, "sigma": 4.0}',
    ),
    "skellam": (
        ev.Skellam(variance=10.0, l1_sensitivity=3.0, l2_sensitivity=2.0),
        '{"kind": "skellam", "l1_sensitivity": 3.0, "l2_sensitivity": 2.0, "variance": 10.0}',
    ),
    "randomized-response": (
        ev.RandomizedResponse(keep_probability=0.75, categories=4),
        '{"categories": 4, "keep_probability": 0.75, "kind": "randomized-response"}',
    ),
    "pure-dp": (ev.PureDP(epsilon=0.25), '{"epsilon": 0.25, "kind": "pure-dp"}'),
    "approximate-dp": (
        ev.ApproximateDP(epsilon=0.25, delta=1e-6),
        '{"delta": 1e-06, "epsilon": 0.25, "kind": "approximate-dp"}',
    ),
    "zcdp": (ev.Zcdp(rho=0.125), '{"kind": "zcdp", "rho": 0.125}'),
    "poisson-sampled": (
        ev.PoissonSampled(rate=0.01, event=GAUSSIAN),
        '{"event": {"kind": "gaussian", "noise_multiplier": 1.5}, "kind": "poisson-sampled", "rate": 0.01}',
    ),
    "fixed-size-sampled": (
        ev.FixedSizeSampled(rate=0.01, event=GAUSSIAN),
        '{"event": {"kind": "gaussian", "noise_multiplier": 1.5}, "kind": "fixed-size-sampled", "rate": 0.01}',
    ),
    "shuffled": (
        ev.Shuffled(batches=312, event=GAUSSIAN),
        '{"batches": 312, "event": {"kind": "gaussian", "noise_multiplier": 1.5}, "kind": "shuffled"}',
    ),
    "repeated": (
        ev.Repeated(times=1000, event=GAUSSIAN),
        '{"event": {"kind": "gaussian", "noise_multiplier": 1.5}, "kind": "repeated", "times": 1000}',
    ),
    "composed": (
        ev.Composed(events=(GAUSSIAN, ev.PureDP(epsilon=1.0))),
        '{"events": [{"kind": "gaussian", "noise_multiplier": 1.5}, {"epsilon": 1.0, "kind": "pure-dp"}], '
        '"kind": "composed"}',
    ),
    "one-in-one-out": (
        ev.OneInOneOut(event=GAUSSIAN),
        '{"event": {"kind": "gaussian", "noise_multiplier": 1.5}, "kind": "one-in-one-out"}',
    ),
    "group": (
        ev.Group(size=3, event=GAUSSIAN),
        '{"event": {"kind": "gaussian", "noise_multiplier": 1.5}, "kind": "group", "size": 3}',
    ),
}  # fmt: skip
EXAMPLES = [event for event, _ in GOLDEN.values()]

# What each field takes: (values that are refused, beside what is no finite number at all; the name in the error).
POSITIVE, NOT_NEGATIVE, PROBABILITY = (0, -0.0, -1.5), (-1e-9, -3), (-1e-9, 1.0000001, 7)
WHOLE_FROM_ONE, WHOLE_FROM_ZERO = (0, -1, 1.5), (-1, 2.5)
DOMAINS: dict[tuple[str, str], tuple[tuple[float, ...], str]] = {
    ("gaussian", "noise_multiplier"): (POSITIVE, "noise_multiplier"),
    ("laplace", "noise_multiplier"): (POSITIVE, "noise_multiplier"),
    ("discrete-laplace", "scale"): (POSITIVE, "scale"),
    ("discrete-laplace", "sensitivity"): (WHOLE_FROM_ONE, "sensitivity"),
    ("discrete-gaussian", "sigma"): (POSITIVE, "sigma"),
    ("discrete-gaussian", "sensitivity"): (POSITIVE, "sensitivity"),
    ("discrete-gaussian", "dimension"): (WHOLE_FROM_ONE, "dimension"),
    ("discrete-gaussian-sum", "sigma"): (POSITIVE, "sigma"),
    ("discrete-gaussian-sum", "shares"): (WHOLE_FROM_ONE, "shares"),
    ("discrete-gaussian-sum", "sensitivity"): (POSITIVE, "sensitivity"),
    ("discrete-gaussian-sum", "dimension"): (WHOLE_FROM_ONE, "dimension"),
    ("skellam", "variance"): (POSITIVE, "variance"),
    ("skellam", "l1_sensitivity"): (POSITIVE, "l1_sensitivity"),
    ("skellam", "l2_sensitivity"): ((*POSITIVE, 3.5), "l2_sensitivity"),
    ("randomized-response", "keep_probability"): ((*PROBABILITY, 0.0, 1.0), "keep_probability"),
    ("randomized-response", "categories"): ((*WHOLE_FROM_ONE, 1), "categories"),
    ("pure-dp", "epsilon"): (NOT_NEGATIVE, "epsilon"),
    ("approximate-dp", "epsilon"): (NOT_NEGATIVE, "epsilon"),
    ("approximate-dp", "delta"): (PROBABILITY, "delta"),
    ("zcdp", "rho"): (NOT_NEGATIVE, "rho"),
    ("poisson-sampled", "rate"): (PROBABILITY, "sample_rate"),
    ("fixed-size-sampled", "rate"): (PROBABILITY, "sample_rate"),
    ("shuffled", "batches"): (WHOLE_FROM_ONE, "batches"),
    ("repeated", "times"): (WHOLE_FROM_ZERO, "times"),
    ("group", "size"): (WHOLE_FROM_ONE, "size"),
}
NO_NUMBERS: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, "1", b"1", None, True, False, np.bool_(True), 1j, np.complex128(1), [1.0], object(),
    10**400, np.array([1.0, 2.0]),
)  # fmt: skip


def changed(kind: str, **values: Any) -> ev.PrivacyEvent:
    return dataclasses.replace(GOLDEN[kind][0], **values)  # type: ignore[type-var]


# ------------------------------------------------------------------------------------------- validation


def test_the_examples_cover_every_kind_and_the_domains_every_number() -> None:
    assert set(GOLDEN) == {cls.kind for cls in ev.PrivacyEvent.__subclasses__() if cls.__module__ == ev.__name__}
    numbers = {
        (kind, field.name)
        for kind, (event, _) in GOLDEN.items()
        for field in dataclasses.fields(event)  # type: ignore[arg-type]
        if field.name not in ("event", "events") and getattr(event, field.name) is not None
    }
    assert numbers == set(DOMAINS)


@pytest.mark.parametrize(("kind", "field"), DOMAINS)
def test_a_number_outside_its_domain_is_refused_with_name_value_and_remedy(kind: str, field: str) -> None:
    bad, parameter = DOMAINS[kind, field]
    for value in (*bad, *NO_NUMBERS):
        with pytest.raises(InvalidParameter) as caught:
            changed(kind, **{field: value})
        assert caught.value.parameter == parameter
        assert caught.value.remedy
        assert parameter in str(caught.value)
        assert repr(caught.value.value) in str(caught.value)


@pytest.mark.parametrize(("kind", "field"), DOMAINS)
def test_numpy_and_other_numbers_are_stored_as_plain_ones(kind: str, field: str) -> None:
    event = GOLDEN[kind][0]
    plain = getattr(event, field)
    converts: tuple[Callable[[Any], object], ...] = (
        np.float64,
        np.asarray,
        Decimal,
        Fraction,
        *([np.int64] if isinstance(plain, int) else []),
    )
    for convert in converts:
        same = changed(kind, **{field: convert(plain)})
        assert same == event
        assert type(getattr(same, field)) is type(plain)


@pytest.mark.parametrize("value", [None, "gaussian", 3, ev.Gaussian, {"kind": "gaussian", "noise_multiplier": 1.0}])
def test_a_wrapper_holds_events_and_nothing_else(value: Any) -> None:
    for event in EXAMPLES:
        if hasattr(event, "event"):
            with pytest.raises(InvalidParameter, match=r"event = .* is not a privacy event"):
                dataclasses.replace(event, event=value)  # type: ignore[type-var]
    with pytest.raises(InvalidParameter, match=r"events\[1\]"):
        ev.Composed(events=(GAUSSIAN, value))


@pytest.mark.parametrize("value", [None, 3, GAUSSIAN])
def test_a_composition_of_what_is_no_list_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"events = .* is not a list of events"):
        ev.Composed(events=value)


def test_a_composition_takes_any_iterable_and_keeps_a_tuple() -> None:
    assert ev.Composed(events=iter([GAUSSIAN, GAUSSIAN])).events == (GAUSSIAN, GAUSSIAN)  # type: ignore[arg-type]


def test_the_limits_of_the_domains_are_inside() -> None:
    """Each is built, keeps its values, and is read again as the same event."""
    limits: list[tuple[ev.PrivacyEvent, dict[str, Any]]] = [
        (ev.PoissonSampled(rate=0.0, event=GAUSSIAN), {"rate": 0.0}),
        (ev.PoissonSampled(rate=1, event=GAUSSIAN), {"rate": 1.0}),
        (ev.Repeated(times=0, event=GAUSSIAN), {"times": 0}),
        (ev.Composed(events=()), {"events": ()}),
        (ev.PureDP(epsilon=0), {"epsilon": 0.0}),
        (ev.ApproximateDP(epsilon=0, delta=1), {"epsilon": 0.0, "delta": 1.0}),
        (ev.Skellam(variance=1, l1_sensitivity=2, l2_sensitivity=2), {"l1_sensitivity": 2.0, "l2_sensitivity": 2.0}),
    ]
    for event, fields in limits:
        assert {name: getattr(event, name) for name in fields} == fields
        assert ev.from_dict(ev.to_dict(event)) == event


def test_missing_noise_says_how_to_find_some() -> None:
    with pytest.raises(InvalidParameter, match="compute_noise_multiplier"):
        ev.Gaussian(noise_multiplier=0)


def test_fields_have_names_and_no_positions() -> None:
    with pytest.raises(TypeError):
        ev.Gaussian(1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("keep", "categories", "epsilon"),
    [(0.75, 2, math.log(3)), (0.25, 2, math.log(3)), (0.5, 3, math.log(2)), (0.2, 5, 0.0), (0.1, 5, math.log(9 / 4))],
)
def test_randomised_response_knows_its_pure_epsilon(keep: float, categories: int, epsilon: float) -> None:
    """By the definition: the largest ratio of the chances of one answer from two people."""
    event = ev.RandomizedResponse(keep_probability=keep, categories=categories)
    other = (1 - keep) / (categories - 1)
    assert event.epsilon == pytest.approx(abs(math.log(keep / other)), abs=1e-15)
    assert event.epsilon == pytest.approx(epsilon, abs=1e-15)


# ------------------------------------------------------------------------------------------- frozenness


@pytest.mark.parametrize("event", EXAMPLES, ids=GOLDEN)
def test_events_are_frozen_hashable_and_have_no_room_for_more(event: ev.PrivacyEvent) -> None:
    for field in dataclasses.fields(event):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, field.name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(event, field.name)
    with pytest.raises((AttributeError, TypeError)):
        event.note = "mine"  # type: ignore[attr-defined]
    assert not hasattr(event, "__dict__")
    assert hash(event) == hash(copy.deepcopy(event))


@pytest.mark.parametrize("event", EXAMPLES, ids=GOLDEN)
def test_events_survive_copies_and_pickles(event: ev.PrivacyEvent) -> None:
    assert copy.copy(event) == copy.deepcopy(event) == pickle.loads(pickle.dumps(event)) == event


def test_different_kinds_with_equal_fields_are_different_events() -> None:
    events: list[ev.PrivacyEvent] = [ev.Gaussian(noise_multiplier=1.0), ev.Laplace(noise_multiplier=1.0)]
    events += [ev.PoissonSampled(rate=0.1, event=GAUSSIAN), ev.FixedSizeSampled(rate=0.1, event=GAUSSIAN)]
    assert events[0] != events[1] and events[2] != events[3] and len(set(events)) == 4


# -------------------------------------------------------------------------------------------------- JSON


def test_the_version_of_the_format_is_one() -> None:
    """It grows when kinds are added; then this test and the golden strings grow too, and no string changes."""
    assert ev.EVENT_VERSION == 1


@pytest.mark.parametrize("kind", GOLDEN)
def test_the_json_of_each_kind_never_changes(kind: str) -> None:
    event, golden = GOLDEN[kind]
    text = '{"event": ' + golden + ', "version": 1}'
    assert event.kind == kind
    assert ev.to_json(event) == text
    assert ev.from_json(text) == event
    assert event.to_dict() == ev.to_dict(event) == json.loads(golden)
    assert ev.from_dict(json.loads(golden)) == event


def positives() -> st.SearchStrategy[float]:
    return st.floats(min_value=1e-12, max_value=1e12)


def rates() -> st.SearchStrategy[float]:
    return st.floats(min_value=0, max_value=1)


def mechanisms() -> st.SearchStrategy[ev.PrivacyEvent]:
    counts = st.integers(1, 10**6)
    return st.one_of(
        st.builds(ev.Gaussian, noise_multiplier=positives()),
        st.builds(ev.Laplace, noise_multiplier=positives()),
        st.builds(ev.DiscreteLaplace, scale=positives(), sensitivity=counts),
        st.builds(ev.DiscreteGaussian, sigma=positives(), sensitivity=positives(), dimension=counts),
        st.builds(ev.DiscreteGaussianSum, sigma=positives(), shares=counts, sensitivity=positives(), dimension=counts),
        st.builds(
            ev.Skellam,
            dimension=st.none() | counts,
            variance=positives(),
            l1_sensitivity=st.floats(2, 1e6),
            l2_sensitivity=st.floats(1e-3, 2),
        ),
        st.builds(ev.RandomizedResponse, keep_probability=st.floats(1e-9, 1 - 1e-9), categories=st.integers(2, 10**6)),
        st.builds(ev.PureDP, epsilon=st.floats(0, 1e6)),
        st.builds(ev.ApproximateDP, epsilon=st.floats(0, 1e6), delta=rates()),
        st.builds(ev.Zcdp, rho=st.floats(0, 1e6)),
    )


def nested() -> st.SearchStrategy[ev.PrivacyEvent]:
    def wrapped(inner: st.SearchStrategy[ev.PrivacyEvent]) -> st.SearchStrategy[ev.PrivacyEvent]:
        return st.one_of(
            st.builds(ev.PoissonSampled, rate=rates(), event=inner),
            st.builds(ev.FixedSizeSampled, rate=rates(), event=inner),
            st.builds(ev.Shuffled, batches=st.integers(1, 10**9), event=inner),
            st.builds(ev.Repeated, times=st.integers(0, 2**60), event=inner),
            st.builds(ev.Group, size=st.integers(1, 1000), event=inner),
            st.builds(ev.OneInOneOut, event=inner),
            st.builds(ev.Composed, events=st.lists(inner, max_size=3).map(tuple)),
        )

    return st.recursive(mechanisms(), wrapped, max_leaves=6)


@given(nested())
def test_any_event_comes_back_from_json_as_it_was(event: ev.PrivacyEvent) -> None:
    text = ev.to_json(event)
    again = ev.from_json(text)
    assert again == event
    assert hash(again) == hash(event)
    assert ev.to_json(again) == text
    assert "\n" not in text


@given(nested(), st.data())
def test_a_truncated_text_is_never_an_event(event: ev.PrivacyEvent, data: st.DataObject) -> None:
    text = ev.to_json(event)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(CorruptState):
        ev.from_json(text[:cut])


@given(nested(), st.data())
def test_a_text_with_one_changed_character_is_corrupt_or_another_valid_event(
    event: ev.PrivacyEvent, data: st.DataObject
) -> None:
    """No other error and no half-checked event ever comes out of a damaged text."""
    text = ev.to_json(event)
    at = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.sampled_from('0129-+.eE"{}[],: azN\\\x00é'))
    try:
        found = ev.from_json(text[:at] + character + text[at + 1 :])
    except CorruptState:
        return
    assert ev.from_json(ev.to_json(found)) == found


@given(st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5) | st.sampled_from(sorted(GOLDEN)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["kind", "event", "events", "rate", "times", "noise_multiplier", "x"]), inner, max_size=4
    ),
    max_leaves=10,
))  # fmt: skip
def test_whatever_is_read_it_is_an_event_or_corrupt(values: Any) -> None:
    try:
        assert isinstance(ev.from_dict(values), ev.PrivacyEvent)
    except CorruptState as error:
        assert str(error)


INNER = '{"kind": "gaussian", "noise_multiplier": 1.0}'


@pytest.mark.parametrize(
    ("text", "lesson"),
    [
        ("", "not a JSON event"),
        ("null", "exactly the keys"),
        ("[1, 2]", "exactly the keys"),
        ("{}", "exactly the keys"),
        (f'{{"event": {INNER}}}', "exactly the keys"),
        (f'{{"version": 1, "event": {INNER}, "note": 1}}', "exactly the keys"),
        (f'{{"version": 2, "event": {INNER}}}', "version 2 is not 1"),
        (f'{{"version": 0, "event": {INNER}}}', "version 0 is not 1"),
        (f'{{"version": "1", "event": {INNER}}}', "version '1' is not 1"),
        (f'{{"version": true, "event": {INNER}}}', "version True is not 1"),
        (f'{{"version": null, "event": {INNER}}}', "version None is not 1"),
        (f'{{"version": 1, "version": 1, "event": {INNER}}}', "twice"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": 1, "noise_multiplier": 9}}', "twice"),
        ('{"version": 1, "event": 7}', "an object with a kind"),
        ('{"version": 1, "event": [1]}', "an object with a kind"),
        ('{"version": 1, "event": {}}', "unknown event kind None"),
        ('{"version": 1, "event": {"kind": 3}}', "unknown event kind 3"),
        ('{"version": 1, "event": {"kind": ["gaussian"]}}', "unknown event kind"),
        ('{"version": 1, "event": {"kind": "gausian", "noise_multiplier": 1}}', "this version knows approximate-dp"),
        ('{"version": 1, "event": {"kind": "gaussian"}}', "needs exactly the keys ['noise_multiplier'], found []"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": 1, "c": 1}}', "found ['c', "),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": NaN}}', "not finite"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": 1e999}}', "not finite"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": "1"}}', "is not a number"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": true}}', "is not a number"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": null}}', "is not a number"),
        ('{"version": 1, "event": {"kind": "gaussian", "noise_multiplier": 0}}', "greater than 0"),
        ('{"version": 1, "event": {"kind": "repeated", "times": 1.5, "event": ' + INNER + "}}", "not a whole number"),
        ('{"version": 1, "event": {"kind": "repeated", "times": 2, "event": null}}', "an object with a kind"),
        ('{"version": 1, "event": {"kind": "composed", "events": {}}}', "must be a list"),
        ('{"version": 1, "event": {"kind": "composed", "events": "ab"}}', "must be a list"),
        ('{"version": 1, "event": {"kind": "composed", "events": [1]}}', "an object with a kind"),
        ("[" * 200_000, "nested too deeply"),
    ],
)
def test_a_corrupt_text_is_corrupt_state_with_a_lesson(text: str, lesson: str) -> None:
    with pytest.raises(CorruptState) as caught:
        ev.from_json(text)
    assert lesson in str(caught.value)


@pytest.mark.parametrize("value", [None, 3, b"\xff\xfe\x00"])
def test_what_is_no_text_is_corrupt_state(value: Any) -> None:
    with pytest.raises(CorruptState, match="not a JSON event"):
        ev.from_json(value)


def test_events_nested_beyond_reason_are_corrupt_state() -> None:
    values: dict[str, Any] = {"kind": "gaussian", "noise_multiplier": 1.0}
    for _ in range(5000):
        values = {"kind": "group", "size": 1, "event": values}
    with pytest.raises(CorruptState, match="nested too deeply"):
        ev.from_dict(values)


def test_only_events_of_this_package_can_be_written() -> None:
    class Mine(ev.PrivacyEvent):
        kind = "gaussian"  # pretending to be another one
        noise_multiplier = 1.0

    class Nameless(ev.PrivacyEvent):
        pass

    for stranger in (Mine(), Nameless(), "gaussian", None):
        with pytest.raises(InvalidParameter, match="is not an event of quietsum"):
            ev.to_json(stranger)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="is not an event of quietsum"):
        ev.to_json(ev.Repeated(times=2, event=Mine()))


def test_every_refusal_is_an_error_of_quietsum() -> None:
    assert issubclass(CorruptState, QuietsumError)
    assert issubclass(InvalidParameter, QuietsumError)
