"""A plan changed after the fact and signed again: it is refused, or charged for what is really run."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from party.asking import (
    SENT,
    STYLES,
    UNIT,
    Place,
    Server,
    changed,
    plan,
    policy,
    reason,
    searched,
    values_of,
    with_plan,
)
from quietsum.errors import QuietsumError
from quietsum.ledger import Charge
from quietsum.party.books import read_resolved, write_resolved
from quietsum.plan import Plan, ResolvedPlan
from quietsum.privacy.events import PrivacyEvent, Repeated
from quietsum.privacy.units import PrivacyUnit


@pytest.fixture(autouse=True)
def what_leaves(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG, logger="quietsum")
    SENT.clear()
    yield
    searched()


# ------------------------------------------------------------------------------------------------- tampered plans


def limits(resolved: ResolvedPlan, **changes: float) -> list[dict[str, Any]]:
    return [{**limit, **changes} for limit in values_of(resolved)["limits"]]


def parties(resolved: ResolvedPlan, **changes: Any) -> list[dict[str, Any]]:
    first, *others = values_of(resolved)["parties"]
    return [{**first, **changes}, *others]


def twice(resolved: ResolvedPlan) -> list[dict[str, Any]]:
    first, *others = values_of(resolved)["parties"]
    return [first, {**first, "size": 10_000}, *others]


def in_table(resolved: ResolvedPlan, table: str, **keys: Any) -> dict[str, Any]:
    return with_plan(resolved, lambda plan: plan[table].update(keys))


def staged(resolved: ResolvedPlan, noise: float) -> dict[str, Any]:
    def change(plan: dict[str, Any]) -> None:
        plan["schedule"] = [{"rounds": 1}, {"rounds": 1, "noise": noise}]
        plan["federation"]["spare_attempts"] = 0

    return with_plan(resolved, change)


def unpromised(resolved: ResolvedPlan) -> dict[str, Any]:
    def change(plan: dict[str, Any]) -> None:
        plan["privacy"]["style"] = "none"
        del plan["privacy"]["record"]

    return with_plan(resolved, change)


TAMPERED: dict[str, tuple[Callable[[ResolvedPlan], dict[str, Any]], str]] = {
    "noise lowered": (lambda r: changed(r, record_noise=2.0), "the plan costs more than it states"),
    "noise far lowered": (lambda r: changed(r, record_noise=0.1), "is below 1"),
    "noise left out": (lambda r: changed(r, record_noise=None), "style and its noise per record do not fit"),
    "noise for clients added": (lambda r: changed(r, client_noise=2.0), "style and its noise per client do not fit"),
    "ε raised": (lambda r: changed(r, limits=limits(r, epsilon=11.0)), "is more than ε = 10 per record for one run"),
    "ε below what it costs": (lambda r: changed(r, limits=limits(r, epsilon=0.01)), "costs more than it states"),
    "δ raised": (lambda r: changed(r, limits=limits(r, delta=1e-2)), "δ = 0.01 per record is more than 0.001"),
    "no limit": (lambda r: changed(r, limits=[]), "states no ε per record"),
    "another limit": (lambda r: changed(r, limits=limits(r, unit="client")), "states no ε per record"),  # type: ignore[arg-type]
    "an infinite ε": (lambda r: changed(r, limits=limits(r, epsilon="Infinity")), "cannot be read"),  # type: ignore[arg-type]
    "size changed": (lambda r: changed(r, parties=parties(r, size=121)), "public size is 120"),
    "dataset changed": (lambda r: changed(r, parties=parties(r, dataset="visits")), "its dataset is"),
    "name changed": (lambda r: changed(r, parties=parties(r, name="east")), "does not name this site"),
    "holder named": (lambda r: changed(r, parties=parties(r, holder="cloud")), "of one holder"),
    "site named twice": (lambda r: changed(r, parties=twice(r)), "more than once"),
    "no parties": (lambda r: changed(r, parties=[]), "declares no parties"),
    "dimension changed": (lambda r: changed(r, dimension=4), "its task has other parameters than the 4"),
    "digest changed": (lambda r: changed(r, digest="0" * 64), "not the one whose hash came with it"),
    "rounds changed without the hash": (
        lambda r: changed(r, plan={**values_of(r)["plan"], "federation": {"rounds": 50}}), "not the one whose hash"),
    "rounds changed": (lambda r: in_table(r, "federation", rounds=5000), "the plan costs more than it states"),
    "attempts added": (lambda r: in_table(r, "federation", spare_attempts=5000), "the plan costs more than it states"),
    "steps added": (lambda r: in_table(r, "training", local_steps=5000), "the plan costs more than it states"),
    "rate raised": (lambda r: in_table(r, "training", sample_rate=1.0), "the plan costs more than it states"),
    "clip raised": (lambda r: with_plan(r, lambda p: p["privacy"]["record"].update(max_grad_norm=9.0)), "is above 4"),
    "quieter stages": (lambda r: staged(r, 0.01), "is below 1"),
    "impossible stages": (lambda r: staged(r, 1e-300), ""),
    "fast noise": (lambda r: in_table(r, "privacy", noise="fast"), "not floating-point safe"),
    "other batches": (lambda r: in_table(r, "training", batches="shuffled"), "batches"),
    "an unknown task": (lambda r: in_table(r, "task", name="os:system"), "does not allow task 'os:system'"),
    "options of a task": (lambda r: in_table(r, "task", options={"path": "/etc"}), "with these options"),
    "no promise": (lambda r: {**unpromised(r), "record_noise": None, "limits": []}, "the plan promises nothing"),
    "secure aggregation": (lambda r: in_table(r, "aggregation", secure=True), "secure"),
    "an unknown key": (lambda r: changed(r, trusted=True), "other parts than a plan"),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_plan_is_refused_and_nothing_is_written(what: str, caplog: pytest.LogCaptureFixture) -> None:
    change, words = TAMPERED[what]
    place, server, resolved = Place(), Server(), plan()
    values = change(resolved)
    assert values != write_resolved(resolved)
    assert words in reason(server.enrol(place, values))
    told = [record for record in caplog.records if record.name == "quietsum.party.service"]
    assert told and words in caplog.text and not any(record.exc_info for record in told)
    after = reason(server.train(place, resolved, plan=values["digest"]))
    assert after == "the site has not enrolled in this run"
    assert not place.task.touched and place.ledger.head.sequence == 1
    assert server.enrol(place, resolved).kind == "enrolled"  # the plan as it was


@pytest.mark.parametrize("style", ["sample", "user", "hybrid"])
def test_another_plan_under_the_name_of_a_run_is_refused_and_cannot_be_trained(style: str) -> None:
    """Where clients are charged as a whole when the site enrols, nothing but the plan itself bounds its rounds."""
    place, server, resolved = Place(policy(style)), Server(), plan(style)
    longer = plan(style, federation={"rounds": 7, "spare_attempts": 3, "deadline": 20.0})
    assert server.enrol(place, resolved).kind == "enrolled"
    before = place.ledger.head
    assert "enrolled in this run with another plan" in reason(server.enrol(place, longer))
    assert "belongs to another plan" in reason(server.train(place, longer, 3))
    assert "this is round 3" in reason(server.train(place, resolved, 3))
    assert not place.task.touched and place.ledger.head == before
    assert server.train(place, resolved).kind == "update"


def test_a_plan_that_was_refused_by_the_books_is_not_enrolled_in() -> None:
    cost = plan().limits[0].epsilon
    place, server = Place(policy(record=dataclasses.replace(UNIT, epsilon=cost * 1.2, run=cost))), Server()
    assert server.enrol(place, plan(), "before").kind == "enrolled"
    assert [server.train(place, plan(), number, run="before").kind for number in (1, 2)] == ["update", "update"]
    before = place.ledger.head
    assert reason(server.enrol(place, plan())) == "its budget does not allow this plan"
    assert reason(server.train(place, plan())) == "the site has not enrolled in this run"
    assert len(place.task.touched) == 2 and place.ledger.head == before


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in inner:
        yield from leaves(value, (*path, key))


def at(values: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        values = values[key]
    return values


numbers = st.sampled_from([0, 1, 2, 3, 7, 50, -1, 10**7, 0.5, 1.5, 1e-9, 1e-300, 1e300, 0.01, 0.9, 4.5, 16.0])
words = st.sampled_from(
    ["", "north", "south", "sample", "user", "hybrid", "none", "fast", "poisson", "rdp", "zero-out"]
)
others = st.sampled_from([None, True, False, [], {}, [1], {"kind": "poisson", "rate": 0.5}])
scaled = st.sampled_from([0.5, 0.999, 1.001, 2.0, 100.0]).map(lambda factor: ("times", factor))


class Bounds:
    """What the site's books say of a plan it has enrolled in, against what its task was really told to do."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def hold(self) -> None:
        told = self.place.task.touched
        rounds = [body for body in self.place.reserved if body["round"] > 0]
        assert len(rounds) >= len(told)
        for orders, body in zip(told, rounds, strict=False):
            charged = {charge.unit: charge for charge in map(Charge.from_dict, body["charges"])}
            if orders.mechanism is not None:
                done: PrivacyEvent = orders.sampling.amplify(orders.mechanism.event())
                assert charged[PrivacyUnit.RECORD].event == Repeated(times=orders.steps, event=done)
                assert orders.mechanism.event().noise_multiplier >= UNIT.smallest_noise
                assert orders.mechanism.max_norm <= UNIT.largest_clip
            if orders.client is not None:
                assert charged[PrivacyUnit.CLIENT].event == Repeated(times=1, event=orders.client.event())
        (run,) = self.place.ledger.runs()
        for guarantee in self.place.ledger.spending_by_party(run.run).values():
            assert guarantee.epsilon <= 10.0 * (1 + 1e-6)


@settings(max_examples=400)
@given(
    style=st.sampled_from(sorted(STYLES)),
    place=st.integers(0, 10**6),
    value=numbers | words | others | scaled,
    rehash=st.booleans(),
    drop=st.booleans(),
)
def test_any_field_of_a_plan_may_be_changed_and_the_charge_is_right_or_refused(
    style: str, place: int, value: Any, rehash: bool, drop: bool
) -> None:
    resolved = plan(style)
    values = values_of(resolved)
    paths = [path for path in leaves(values) if path]
    path = paths[place % len(paths)]
    if isinstance(value, tuple):
        old = at(values, path)
        value = old * value[1] if isinstance(old, float) else 5
    parent = at(values, path[:-1])
    if drop and isinstance(parent, dict):
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    if rehash:
        with contextlib.suppress(QuietsumError, LookupError, TypeError, AttributeError, ValueError):
            values["digest"] = Plan.from_dict(values["plan"]).digest
    site, server = Place(policy(style)), Server()
    try:
        letter = server.enrol(site, values)
    except QuietsumError:  # what cannot be written is not sent
        SENT.append(b"")
        return
    assert not site.task.touched
    if letter.kind == "refused":
        assert letter.body["reason"] and site.ledger.head.sequence == 1
        assert server.train(site, resolved).kind == "refused" and not site.task.touched
        return
    assert letter.kind == "enrolled", letter.body
    came = read_resolved(values)
    for number in range(1, min(came.plan.federation.rounds, 3) + 1):
        server.train(site, came, number)
    Bounds(site).hold()
    if came.client_level and not came.noise_at_party and not came.plan.schedule:
        whole, noise = Charge.from_dict(site.reserved[0]["charges"][0]), came.joint_mechanism()
        assert noise is not None and noise.event().noise_multiplier >= UNIT.smallest_noise
        assert whole.event == Repeated(times=came.attempts, event=noise.event())
        assert len(site.task.touched) <= came.attempts


def test_the_control_charges_that_are_not_what_was_done_are_found() -> None:
    """The check above fails where the books and the orders differ."""
    place, server, resolved = Place(), Server(), plan()
    server.enrol(place, resolved)
    server.train(place, resolved)
    Bounds(place).hold()
    place.task.touched[0] = dataclasses.replace(place.task.touched[0], steps=3)
    with pytest.raises(AssertionError):
        Bounds(place).hold()
    quiet = dataclasses.replace(resolved, record_noise=1.5).orders("north")
    place.task.touched[0] = quiet
    with pytest.raises(AssertionError):
        Bounds(place).hold()
