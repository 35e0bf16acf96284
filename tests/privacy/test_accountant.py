"""PrivacyAccountant: who is charged, what is asked before the fact, and a state that comes back whole or not at all."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings, strategies as st

from quietsum import (
    ExactAccountant,
    Gaussian,
    Guarantee,
    InvalidParameter,
    Laplace,
    Neighbours,
    PoissonSampled,
    PrivacyUnit,
    RenyiAccountant,
)
from quietsum.errors import CorruptState, MixedUnits
from quietsum.privacy import ClassicalAccountant, PrivacyAccountant, PureDP, get_privacy_spent
from quietsum.privacy.rounds import RoundCharge

SAMPLE: dict[str, Any] = {"noise_multiplier_sample": 1.0, "sample_rate_sample": 0.1, "steps_sample": 100}
USER: dict[str, Any] = {"noise_multiplier_user": 0.5, "sample_rate_user": 0.8, "steps_user": 1}


def step(noise: float, rate: float) -> PoissonSampled:
    return PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise))


def exactly(*charges: tuple[float, float, int], delta: float = 1e-5) -> float:
    accountant = ExactAccountant()
    for noise, rate, steps in charges:
        accountant.compose(step(noise, rate), steps)
    return accountant.epsilon(delta=delta).epsilon


def sample(noise: float, rate: float, steps: int) -> dict[str, Any]:
    return {"noise_multiplier_sample": noise, "sample_rate_sample": rate, "steps_sample": steps}


def busy_accountant() -> PrivacyAccountant:
    """Two sites and everybody, records and clients, several rounds, asked now and then."""
    accountant = PrivacyAccountant(delta=1e-5, max_epsilon=50.0, max_epsilon_user=100.0)
    for r in range(1, 4):
        accountant.record_round(round_num=r, **sample(1.0, 0.05, 40), **USER, party="north")
        accountant.record_round(round_num=r, **sample(1.3, 0.1, 20), **USER, party="south")
        accountant.get_cumulative_sample_epsilon()
    accountant.record_round(round_num=4, **sample(0.9, 0.02, 10))
    return accountant


# ------------------------------------------------------------------------------------------ who is charged


def test_one_party_costs_what_the_exact_accountant_and_dp_accounting_say() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    accountant.record_round(round_num=1, **SAMPLE, **USER)
    assert accountant.get_cumulative_sample_epsilon() == exactly((1.0, 0.1, 100))
    assert accountant.get_cumulative_user_epsilon() == exactly((0.5, 0.8, 1))
    for noise, rate, steps, ours in (
        (1.0, 0.1, 100, accountant.get_cumulative_sample_epsilon()),
        (0.5, 0.8, 1, accountant.get_cumulative_user_epsilon()),
    ):
        theirs = PLDAccountant(value_discretization_interval=1e-4)
        theirs.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
        assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


def test_records_pay_what_the_worst_party_paid_and_not_the_mean() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    settings_of = {"north": (2.0, 0.01, 50), "south": (0.8, 0.1, 50), "west": (5.0, 0.01, 50)}
    for party, values in settings_of.items():
        accountant.record_round(round_num=1, **sample(*values), party=party)
    each = {party: exactly(values) for party, values in settings_of.items()}
    assert accountant.get_cumulative_sample_epsilon() == accountant.get_epsilon() == max(each.values()) == each["south"]
    assert {party: accountant.party_guarantee(party).epsilon for party in accountant.parties} == each
    assert accountant.get_epsilon() > 2 * sum(each.values()) / 3


def test_a_charge_without_a_name_falls_on_everybody_also_on_those_named_later() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    accountant.record_round(round_num=1, **sample(1.0, 0.1, 10))
    accountant.record_round(round_num=2, **sample(1.0, 0.1, 10), party="north")
    accountant.record_round(round_num=3, **sample(1.0, 0.1, 10))
    accountant.record_round(round_num=4, **sample(2.0, 0.1, 10), party="late")
    assert accountant.party_guarantee("north").epsilon == pytest.approx(exactly((1.0, 0.1, 30)), rel=1e-9)
    late = exactly((1.0, 0.1, 20), (2.0, 0.1, 10))
    assert accountant.party_guarantee("late").epsilon == pytest.approx(late, rel=1e-9)
    assert accountant.parties == ("north", "late")
    with pytest.raises(InvalidParameter, match="known parties: north, late"):
        accountant.party_guarantee("south")
    with pytest.raises(InvalidParameter, match="known parties: none"):
        PrivacyAccountant().party_guarantee("north")


def test_the_user_level_charge_of_a_round_is_made_once_however_many_parties_report_it() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    for r in (1, 2):
        for party in ("north", "south", "west"):
            accountant.record_round(round_num=r, **SAMPLE, **USER, party=party)
    assert accountant.user_history == [(0.5, 0.8, 1)] * 2
    assert accountant.get_cumulative_user_epsilon() == exactly((0.5, 0.8, 2))
    assert len(accountant.sample_history) == len(accountant.charges) == 6


def test_a_repeated_report_is_another_attempt_and_other_values_are_another_charge() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    for party in ("north", "south", "south", "north"):  # the round was run twice
        accountant.record_round(round_num=1, **USER, party=party)
    assert len(accountant.user_history) == 2
    accountant.record_round(round_num=1, **{**USER, "noise_multiplier_user": 0.7}, party="north")
    assert accountant.user_history[-1] == (0.7, 0.8, 1)
    accountant.record_round(round_num=1, **USER)
    accountant.record_round(round_num=1, **USER)
    assert len(accountant.user_history) == 5


def test_units_stay_apart() -> None:
    accountant = busy_accountant()
    records, clients = accountant.guarantees()
    assert (records.unit, clients.unit) == (PrivacyUnit.RECORD, PrivacyUnit.CLIENT)
    assert records.epsilon == accountant.get_cumulative_sample_epsilon()
    assert clients.epsilon == accountant.get_cumulative_user_epsilon()
    assert accountant.get_budget_spent() == (records.epsilon, 1e-5)
    with pytest.raises(MixedUnits):
        records + clients
    names = [name for name in dir(accountant) if "total" in name or "sum" in name]
    assert not names  # there is nothing to ask for that would be a sum of the two


def test_only_units_that_were_charged_have_a_guarantee() -> None:
    accountant = PrivacyAccountant()
    assert accountant.guarantees() == () and accountant.get_epsilon() == 0.0 == accountant.get_cumulative_user_epsilon()
    accountant.record_round(round_num=1, **USER)
    assert [g.unit for g in accountant.guarantees()] == [PrivacyUnit.CLIENT]
    other = PrivacyAccountant()
    other.record_round(round_num=1, **SAMPLE)
    assert [g.unit for g in other.guarantees()] == [PrivacyUnit.RECORD]
    assert all(isinstance(g, Guarantee) and g.epsilon_lower > 0 for g in other.guarantees())


def test_another_relation_and_another_accounting_are_passed_on() -> None:
    replaced = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.1, neighbours=Neighbours.REPLACE_ONE)
    assert replaced.step(100)[0] > exactly((1.0, 0.1, 100))
    assert replaced.guarantees()[0].neighbours is Neighbours.REPLACE_ONE
    renyi = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.1, accounting="rdp")
    expected = RenyiAccountant().compose(step(1.0, 0.1), 100).epsilon(delta=1e-5).epsilon
    assert renyi.step(100) == (expected, 1e-5)
    moments = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.1, accounting="moments")
    assert moments.step(100)[0] > expected


def test_the_quick_answer_is_the_same_answer() -> None:
    assert get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=100, delta=1e-5) == (
        exactly((1.0, 0.1, 100)),
        1e-5,
    )
    assert get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=0, delta=1e-5) == (0.0, 1e-5)


# ---------------------------------------------------------------------------------------- before the fact


def test_would_exceed_looks_ahead_and_records_nothing() -> None:
    accountant = PrivacyAccountant(delta=1e-5, max_epsilon=8.0, max_epsilon_user=20.0)
    accountant.record_round(round_num=1, **SAMPLE, **USER)
    before = accountant.state_dict()
    assert not accountant.would_exceed(step(1.0, 0.1), 10)
    assert accountant.would_exceed(step(1.0, 0.1), 100)
    assert not accountant.would_exceed(step(0.5, 0.8), 1, unit=PrivacyUnit.CLIENT)
    assert accountant.would_exceed(step(0.5, 0.8), 10, unit=PrivacyUnit.CLIENT)
    assert accountant.would_exceed(Laplace(noise_multiplier=0.1))  # any event, not only Gaussian steps
    assert accountant.state_dict() == before


def test_would_exceed_asks_for_one_party_or_for_all() -> None:
    accountant = PrivacyAccountant(delta=1e-5, max_epsilon=8.0)
    accountant.record_round(round_num=1, **SAMPLE, party="tired")
    accountant.record_round(round_num=1, **sample(4.0, 0.1, 10), party="fresh")
    event = step(1.0, 0.1)
    assert accountant.would_exceed(event, 50, party="tired")
    assert not accountant.would_exceed(event, 50, party="fresh")
    assert not accountant.would_exceed(event, 50, party="unheard of")
    assert accountant.would_exceed(event, 50)


def test_an_unset_budget_cannot_be_asked_about() -> None:
    for unit, name in ((PrivacyUnit.RECORD, "max_epsilon"), (PrivacyUnit.CLIENT, "max_epsilon_user")):
        with pytest.raises(InvalidParameter) as error:
            PrivacyAccountant().would_exceed(step(1.0, 0.1), unit=unit)
        assert error.value.parameter == name
    with pytest.raises(InvalidParameter, match="unit"):
        PrivacyAccountant(max_epsilon=1.0).would_exceed(step(1.0, 0.1), unit=PrivacyUnit.PERSON)
    assert not PrivacyAccountant().is_budget_exceeded() and not PrivacyAccountant().is_budget_exhausted()


@settings(max_examples=25)
@given(
    budget=st.floats(0.2, 20.0),
    noise=st.floats(0.7, 3.0),
    rate=st.floats(0.002, 0.2),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    accounting=st.sampled_from(["exact", "rdp"]),
)
def test_a_loop_that_stops_when_the_budget_is_exhausted_never_overspends(
    budget: float, noise: float, rate: float, sizes: list[int], accounting: str
) -> None:
    """Rounds do not get larger here; a round that is larger than the last one is what would_exceed() is for."""
    accountant = PrivacyAccountant(noise, rate, delta=1e-5, max_epsilon=budget, accounting=accounting)
    sizes = sorted(sizes, reverse=True)
    if accountant.would_exceed(step(noise, rate), sizes[0]):
        accountant.step(sizes[0])
        assert accountant.is_budget_exceeded() and accountant.is_budget_exhausted()
        return
    for size in [sizes[0]] * 3 + sizes:
        epsilon, _ = accountant.step(size)
        assert epsilon <= budget and not accountant.is_budget_exceeded()
        if accountant.is_budget_exhausted():
            assert accountant.would_exceed(step(noise, rate), size)
            break
    assert accountant.get_epsilon() <= budget


def test_before_the_first_step_a_budget_too_small_for_one_is_exhausted() -> None:
    assert PrivacyAccountant(1.0, 0.1, max_epsilon=1.6).is_budget_exhausted()
    assert not PrivacyAccountant(1.0, 0.1, max_epsilon=1.7).is_budget_exhausted()  # one step costs 1.685
    idle = PrivacyAccountant(1.0, 0.1, max_epsilon=1.7)
    assert idle.step(0) == (0.0, 1e-5) and not idle.is_budget_exhausted()


def test_the_next_round_of_every_party_counts_and_not_only_of_the_one_that_reported_last() -> None:
    """The costly party reports first, the cheap one last; another such round would overspend at the costly one."""
    accountant = PrivacyAccountant(delta=1e-5, max_epsilon=9.0)
    accountant.record_round(round_num=1, **SAMPLE, party="costly")
    accountant.record_round(round_num=1, **sample(5.0, 0.01, 1), party="cheap")
    assert accountant.get_epsilon() < 9.0 < exactly((1.0, 0.1, 200))
    assert accountant.is_budget_exhausted()


def test_the_next_round_of_a_party_is_all_that_its_last_round_asked_of_it() -> None:
    """Two charges in one round, one of them for everybody; each alone would fit again, both do not."""
    halves = sample(1.0, 0.1, 50)
    for first, second in ((None, "north"), ("north", "north")):
        accountant = PrivacyAccountant(delta=1e-5, max_epsilon=9.0)
        accountant.record_round(round_num=1, **halves, party=first)
        accountant.record_round(round_num=1, **halves, party=second)
        assert exactly((1.0, 0.1, 150)) < 9.0 < exactly((1.0, 0.1, 200))
        assert accountant.is_budget_exhausted()
    later = PrivacyAccountant(delta=1e-5, max_epsilon=9.0)
    later.record_round(round_num=1, **halves)
    later.record_round(round_num=2, **halves, party="north")  # the next round is like round 2, not like both
    assert not later.is_budget_exhausted()


def test_client_budgets_are_asked_too() -> None:
    accountant = PrivacyAccountant(delta=1e-5, max_epsilon_user=15.0)
    accountant.record_round(round_num=1, **USER)
    assert not accountant.is_budget_exceeded() and not accountant.is_budget_exhausted()
    accountant.record_round(round_num=2, **USER)
    assert exactly((0.5, 0.8, 2)) < 15.0 < exactly((0.5, 0.8, 3))
    assert not accountant.is_budget_exceeded() and accountant.is_budget_exhausted()
    accountant.record_round(round_num=3, **USER)
    assert accountant.is_budget_exceeded() and accountant.is_budget_exhausted()


# -------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("accounting", ["exact", "rdp", "moments"])
def test_a_run_resumed_from_json_has_the_same_epsilon_to_the_last_bit_and_goes_on_identically(accounting: str) -> None:
    running = PrivacyAccountant(1.1, 0.013, delta=1e-6, max_epsilon=5.0, accounting=accounting)
    for size in (7, 311, 50, 1):
        running.step(size)
        running.is_budget_exhausted()
    resumed = PrivacyAccountant()
    resumed.load_state_dict(json.loads(json.dumps(running.state_dict())))
    assert resumed.get_epsilon() == running.get_epsilon()
    assert resumed.state_dict() == running.state_dict()
    for size in (13, 400):
        assert resumed.step(size) == running.step(size)
        assert resumed.is_budget_exhausted() == running.is_budget_exhausted()


def test_a_federation_resumes_with_its_parties_its_reports_and_its_budgets() -> None:
    running = busy_accountant()
    running.record_round(round_num=5, **USER, party="north")  # south has not reported round 5 yet
    resumed = PrivacyAccountant(noise_multiplier=9.0, sample_rate=0.9, delta=0.1)  # all of it is replaced
    resumed.load_state_dict(json.loads(json.dumps(running.state_dict())))
    for each in (running, resumed):
        each.record_round(round_num=5, **USER, party="south")
        each.record_round(round_num=5, **sample(1.0, 0.05, 40), party="late")
    assert resumed.user_history == running.user_history and len(running.user_history) == 4
    assert resumed.state_dict() == running.state_dict()
    assert [resumed.party_guarantee(p) for p in resumed.parties] == [
        running.party_guarantee(p) for p in running.parties
    ]
    assert resumed.target_delta == 1e-5
    with pytest.raises(InvalidParameter, match="noise_multiplier"):
        resumed.step(1)


def test_asking_in_between_does_not_change_the_answer() -> None:
    asked, silent = PrivacyAccountant(delta=1e-5), PrivacyAccountant(delta=1e-5)
    for r in range(1, 30):
        for each in (asked, silent):
            each.record_round(round_num=r, **sample(0.8 + 0.1 * (r % 7), 0.01 * (1 + r % 3), 11))
        asked.get_epsilon()
    assert asked.get_epsilon() == silent.get_epsilon()


def test_numbers_of_numpy_survive_json() -> None:
    accountant = PrivacyAccountant(delta=np.float64(1e-5), max_epsilon=np.float32(8.0))  # type: ignore[arg-type]
    accountant.record_round(
        round_num=np.int64(1),  # type: ignore[arg-type]
        noise_multiplier_sample=np.float32(1.0),  # type: ignore[arg-type]
        sample_rate_sample=np.float64(0.1),
        steps_sample=np.int32(100),  # type: ignore[arg-type]
    )
    resumed = PrivacyAccountant()
    resumed.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert resumed.get_epsilon() == exactly((1.0, 0.1, 100))


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with a digest that fits, as somebody would write who knows the format."""
    body = {key: value for key, value in state.items() if key != "digest"}
    state["digest"] = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return state


def assert_refused(state: Any, match: str | None = None) -> None:
    accountant = busy_accountant()
    before = accountant.state_dict()
    with pytest.raises(CorruptState, match=match):
        accountant.load_state_dict(state)
    assert accountant.state_dict() == before
    assert accountant.get_epsilon() == before["cumulative_sample_epsilon"]


@pytest.mark.parametrize("key", sorted(busy_accountant().state_dict()))
def test_a_state_with_any_key_missing_or_altered_is_refused_and_changes_nothing(key: str) -> None:
    state = json.loads(json.dumps(busy_accountant().state_dict()))
    missing = {name: value for name, value in state.items() if name != key}
    assert_refused(missing)
    if key not in ("digest", "version"):
        assert_refused(sealed(dict(missing)))
    wrong: Any
    for wrong in (None, math.nan, "x", [], {}, -1, 1e-3):
        if state[key] == wrong:
            continue
        assert_refused({**state, key: wrong})


@pytest.mark.parametrize(
    "alter",
    [
        pytest.param(lambda s: s.update(target_delta=0.0), id="delta of zero"),
        pytest.param(lambda s: s.update(max_epsilon=-1.0), id="negative budget"),
        pytest.param(lambda s: s.update(accounting="guess"), id="unknown accounting"),
        pytest.param(lambda s: s.update(neighbours="nobody"), id="unknown relation"),
        pytest.param(lambda s: s.update(step=[1.0]), id="half a step"),
        pytest.param(lambda s: s.update(step=5), id="a step that is no list"),
        pytest.param(lambda s: s.update(last_steps=0), id="no last steps"),
        pytest.param(lambda s: s.update(user_reports=[[1, 2]]), id="short report"),
        pytest.param(lambda s: s.update(user_reports=None), id="no reports"),
        pytest.param(lambda s: s["sample_history"].pop(), id="a round forgotten"),
        pytest.param(lambda s: s["user_history"].pop(), id="a client charge forgotten"),
        pytest.param(lambda s: s["sample_history"][0].update(noise_multiplier=2.0), id="more noise than there was"),
        pytest.param(lambda s: s["sample_history"][0].update(noise_multiplier=0.0), id="no noise"),
        pytest.param(lambda s: s["sample_history"][0].update(sample_rate=1.5), id="impossible rate"),
        pytest.param(lambda s: s["sample_history"][0].update(steps=0.5), id="half a step taken"),
        pytest.param(lambda s: s["sample_history"][0].update(party=""), id="nameless party"),
        pytest.param(lambda s: s["sample_history"][0].update(colour="red"), id="unknown field"),
        pytest.param(lambda s: s["sample_history"][0].pop("steps"), id="missing field"),
        pytest.param(lambda s: s["sample_history"].append(7), id="a charge that is a number"),
        pytest.param(lambda s: s.update(cumulative_sample_epsilon=1.0), id="another record epsilon"),
        pytest.param(lambda s: s.update(cumulative_user_epsilon="Infinity"), id="another client epsilon"),
        pytest.param(lambda s: s.update(cumulative_user_epsilon="NaN"), id="no epsilon at all"),
        pytest.param(lambda s: s.update(version=2), id="a later version"),
    ],
)
def test_a_forged_state_is_refused_even_if_its_digest_fits(
    alter: Callable[[dict[str, Any]], Any],
) -> None:
    state = copy.deepcopy(busy_accountant().state_dict())
    alter(state)
    assert_refused(sealed(state))


def test_what_is_no_state_at_all_is_refused() -> None:
    nothing: Any
    for nothing in (None, [], "state", 7, {}, {"version": 1}):
        assert_refused(nothing)
    assert_refused({**busy_accountant().state_dict(), "digest": "0" * 64}, match="digest")
    assert_refused({**busy_accountant().state_dict(), "extra": 1}, match="digest")


def test_an_infinite_epsilon_is_saved_as_a_word_and_comes_back() -> None:
    accountant = PrivacyAccountant(1e-160, 1.0, delta=1e-5, accounting="rdp")
    assert accountant.step(1) == (math.inf, 1e-5)
    state = json.loads(json.dumps(accountant.state_dict(), allow_nan=False))
    resumed = PrivacyAccountant()
    resumed.load_state_dict(state)
    assert math.isinf(resumed.get_epsilon())


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("level", ["sample", "user"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_multiplier", 0.0), ("noise_multiplier", -1.0), ("noise_multiplier", math.nan),
        ("noise_multiplier", "1"),
        ("sample_rate", 1.5), ("sample_rate", -0.1), ("sample_rate", math.inf),
        ("steps", -1), ("steps", 1.5), ("steps", True),
        ("noise_multiplier", None), ("sample_rate", None), ("steps", None),
    ],
)  # fmt: skip
def test_bad_input_names_the_parameter_and_its_level_and_records_nothing(level: str, name: str, value: Any) -> None:
    accountant = busy_accountant()
    before = accountant.state_dict()
    good = {**SAMPLE, **USER}
    with pytest.raises(InvalidParameter) as error:
        accountant.record_round(round_num=9, **{**good, f"{name}_{level}": value})
    assert error.value.parameter == f"{name}_{level}"
    assert accountant.state_dict() == before


def test_other_bad_input_is_named_too() -> None:
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("round_num", lambda: PrivacyAccountant().record_round(round_num=-1, **SAMPLE)),
        ("round_num", lambda: PrivacyAccountant().record_round(round_num=1.5, **SAMPLE)),  # type: ignore[arg-type]
        ("record_round", lambda: PrivacyAccountant().record_round(round_num=1)),
        ("party", lambda: PrivacyAccountant().record_round(round_num=1, **SAMPLE, party="")),
        ("party", lambda: PrivacyAccountant().record_round(round_num=1, **SAMPLE, party=7)),  # type: ignore[arg-type]
        ("sample_rate", lambda: PrivacyAccountant(noise_multiplier=1.0)),
        ("noise_multiplier", lambda: PrivacyAccountant(sample_rate=0.1)),
        ("noise_multiplier", lambda: PrivacyAccountant(0.0, 0.1)),
        ("sample_rate", lambda: PrivacyAccountant(1.0, 2.0)),
        ("noise_multiplier", lambda: PrivacyAccountant().step(1)),
        ("num_steps", lambda: PrivacyAccountant(1.0, 0.1).step(-1)),
        ("num_steps", lambda: PrivacyAccountant(1.0, 0.1).step(0.5)),  # type: ignore[arg-type]
        ("delta", lambda: PrivacyAccountant(delta=0.0)),
        ("delta", lambda: PrivacyAccountant(delta=1.0)),
        ("max_epsilon", lambda: PrivacyAccountant(max_epsilon=0.0)),
        ("max_epsilon_user", lambda: PrivacyAccountant(max_epsilon_user=math.inf)),
        ("accounting", lambda: PrivacyAccountant(accounting="guess")),
        ("neighbours", lambda: PrivacyAccountant(neighbours="add")),  # type: ignore[arg-type]
        ("steps", lambda: get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=-1, delta=1e-5)),
        ("delta", lambda: get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=1, delta=0.0)),
    ]
    for parameter, attempt in attempts:
        with pytest.raises(InvalidParameter) as error:
            attempt()
        assert error.value.parameter == parameter, parameter
        assert str(error.value.value) in str(error.value) or error.value.value is None


def test_a_charge_is_a_value() -> None:
    charge = RoundCharge(round_num=1, noise_multiplier=1.0, sample_rate=0.1, steps=5, party="north")
    assert charge.event == step(1.0, 0.1)
    with pytest.raises(AttributeError):
        charge.steps = 6  # type: ignore[misc]


@pytest.mark.parametrize(("epsilon", "times"), [(0.1, 50), (1.0, 3), (0.02, 400)])
def test_queries_of_pure_epsilon_compose_as_the_optimal_rule_says(epsilon: float, times: int) -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    accountant.record_query(epsilon=epsilon, times=times)
    oracle = ClassicalAccountant(rule="optimal").compose(PureDP(epsilon=epsilon), times).epsilon(delta=1e-5).epsilon
    assert accountant.get_epsilon() == pytest.approx(oracle, rel=1e-4)
    basic = ClassicalAccountant(rule="basic").compose(PureDP(epsilon=epsilon), times).epsilon(delta=1e-5).epsilon
    assert accountant.get_epsilon() <= basic * (1 + 1e-9)
    assert len(accountant.guarantees()) == 1


def test_queries_and_rounds_of_a_party_are_resumed_exactly() -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    accountant.record_query(epsilon=0.2, times=3)
    accountant.record_round(
        round_num=1, noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=10, party="north"
    )
    accountant.record_query(epsilon=0.3, party="south")
    accountant.record_query(epsilon=0.1)
    state = json.loads(json.dumps(accountant.state_dict()))
    resumed = PrivacyAccountant()
    resumed.load_state_dict(state)
    assert resumed.state_dict() == accountant.state_dict()
    for party in ("north", "south"):
        assert resumed.party_guarantee(party) == accountant.party_guarantee(party)
    forgotten = {**state, "queries": state["queries"][1:]}  # the control: a query that was taken out is missed
    with pytest.raises(CorruptState):
        PrivacyAccountant().load_state_dict(forgotten)


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"epsilon": 1.0, "times": -1},
                                   {"epsilon": 1.0, "party": ""}])  # fmt: skip
def test_a_query_that_is_none_is_refused_and_charges_nothing(wrong: dict[str, Any]) -> None:
    accountant = PrivacyAccountant(delta=1e-5)
    with pytest.raises(InvalidParameter):
        accountant.record_query(**wrong)
    assert accountant.get_epsilon() == 0.0 and not accountant.guarantees()
