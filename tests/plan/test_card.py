"""A guarantee card says NOT PROVIDED wherever the plan does not meet a clause's condition, and only there."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import pytest

from quietsum.plan import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    PartyFacts,
    PersonPlan,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    TaskPlan,
    TrainingPlan,
    resolve,
)
from quietsum.plan.resolution.card import NOT_APPLICABLE, NOT_PROVIDED, SECTIONS, GuaranteeCard, card
from quietsum.privacy.units import Observer, PrivacyUnit

SITES = tuple(PartyFacts(name=f"site-{at}", dataset=f"visits-{at}", size=400) for at in range(5))
DEALT = tuple(dataclasses.replace(site, dataset="visits", holder="lab") for site in SITES)
RECORD = RecordPlan(noise_multiplier=4.0, delta=1e-5)
SHARED = RecordPlan(noise_multiplier=4.0, delta=1e-5, noise_at="distributed")
PERSON = PersonPlan(id="patient", max_records=2)
CENTRAL = ClientPlan(noise_multiplier=4.0, delta=1e-3)
AT_PARTY = ClientPlan(noise_multiplier=4.0, delta=1e-3, noise_at="party")
IN_SHARES = ClientPlan(noise_multiplier=4.0, delta=1e-3, noise_at="distributed")
MASKED = AggregationPlan(secure=True, drop_outs=0.2)
JUDGED = AggregationPlan(rule="signguard", attackers=1)
LYING = AggregationPlan(secure=True, drop_outs=0.2, adversary="semi-malicious")


def made(
    *,
    parties: tuple[PartyFacts, ...] = SITES,
    masks: AggregationPlan | None = None,
    style: Any = "sample",
    noise: str = "secure",
    **promises: Any,
) -> ResolvedPlan:
    neighbours = "zero-out" if promises.get("client") not in (None, CENTRAL) else "add-or-remove-one"
    plan = Plan(
        federation=FederationPlan(rounds=3),
        training=TrainingPlan(sample_rate=1.0, local_steps=1),
        privacy=PrivacyPlan(style=style, noise=noise, neighbours=neighbours, **promises),  # type: ignore[arg-type]
        aggregation=masks or AggregationPlan(),
        task=TaskPlan(name="heart", options={"root": 60}),
    )
    return resolve(plan, parties, 20)


NONE = made(style="none")
SAMPLE = made(record=RECORD)
PEOPLE = made(record=RECORD, person=PERSON)
FAST = made(record=RECORD, noise="fast")
USER = made(style="user", client=CENTRAL)
USER_AT_PARTY = made(style="user", client=AT_PARTY)
JUDGED_NONE = made(style="none", masks=JUDGED)
JUDGED_SAMPLE = made(record=dataclasses.replace(RECORD, noise_multiplier=0.5), masks=JUDGED)
JUDGED_LOUD = made(record=RECORD, masks=JUDGED)
JUDGED_CLIENTS = made(style="user", client=AT_PARTY, masks=JUDGED)
BOUNDED = made(record=RECORD, masks=AggregationPlan(rule="norm-bounded"))
TRIED = made(record=RECORD, masks=AggregationPlan(rule="trust", attackers=2))
COMPARED = made(record=RECORD, masks=AggregationPlan(rule="fltrust", attackers=2))
MASKED_NONE = made(style="none", masks=MASKED)
MASKED_SAMPLE = made(record=RECORD, masks=MASKED)
MASKED_LYING = made(record=RECORD, masks=LYING)
RECORDS_IN_SHARES = made(record=SHARED, masks=MASKED)
CLIENTS_IN_SHARES = made(style="user", client=IN_SHARES, masks=MASKED)
SIMULATED = made(record=RECORD, masks=MASKED, parties=DEALT)
SIMULATED_SHARES = made(record=SHARED, masks=MASKED, parties=DEALT)

ALL = {name: value for name, value in globals().items() if isinstance(value, ResolvedPlan)}

BARE = {"JUDGED_SAMPLE", "JUDGED_LOUD", "BOUNDED", "TRIED", "COMPARED"}

# clause: plans that provide it; every other plan above must not
PROVIDED: dict[str, set[str]] = {
    "separate-parties": set(ALL) - {"SIMULATED", "SIMULATED_SHARES"},
    "one-sum": {"MASKED_NONE", "MASKED_SAMPLE", "MASKED_LYING", "RECORDS_IN_SHARES", "CLIENTS_IN_SHARES"},
    "threshold": {"MASKED_NONE", "MASKED_SAMPLE", "MASKED_LYING", "RECORDS_IN_SHARES", "CLIENTS_IN_SHARES"},
    "floor": {"MASKED_NONE", "MASKED_SAMPLE", "MASKED_LYING", "RECORDS_IN_SHARES", "CLIENTS_IN_SHARES"},
    "lying-server": {"MASKED_LYING"},
    "record-server": {
        "SAMPLE", "PEOPLE", "FAST", "MASKED_SAMPLE", "MASKED_LYING", "RECORDS_IN_SHARES", "SIMULATED", *BARE,
    },
    "person-server": {"PEOPLE"},
    "client-server": {"USER_AT_PARTY", "CLIENTS_IN_SHARES", "JUDGED_CLIENTS"},
    "record-recipients": {
        "SAMPLE", "PEOPLE", "FAST", "MASKED_SAMPLE", "MASKED_LYING", "RECORDS_IN_SHARES", "SIMULATED",
        "SIMULATED_SHARES", *BARE,
    },
    "person-recipients": {"PEOPLE"},
    "client-recipients": {"USER", "USER_AT_PARTY", "CLIENTS_IN_SHARES", "JUDGED_CLIENTS"},
    "released-model": set(ALL) - {"NONE", "MASKED_NONE", "JUDGED_NONE"},
    "differencing": set(ALL) - {"NONE", "MASKED_NONE", "JUDGED_NONE"},
    "participation-recipients": {"USER"},
    "other-parties": set(ALL) - {"SIMULATED", "SIMULATED_SHARES"},
    "bounded-influence": {"SAMPLE", "PEOPLE", "FAST", "USER", "USER_AT_PARTY", "JUDGED_CLIENTS", *BARE},
    "robust-rule": {"JUDGED_NONE", "JUDGED_SAMPLE", "JUDGED_LOUD", "JUDGED_CLIENTS", "BOUNDED", "TRIED", "COMPARED"},
    "rule-sees": {"JUDGED_NONE", "JUDGED_SAMPLE"},
    "robustness": set(),
    "floating-point": set(ALL) - {"NONE", "MASKED_NONE", "JUDGED_NONE", "FAST"},
    "participation-server": set(),
    "unconditional": set(),
    "outside": set(),
}  # fmt: skip


@pytest.mark.parametrize("clause", PROVIDED)
@pytest.mark.parametrize("plan", ALL)
def test_a_clause_is_provided_where_its_condition_holds_and_nowhere_else(plan: str, clause: str) -> None:
    assert card(ALL[plan])[clause].provided is (plan in PROVIDED[clause])


def test_every_card_has_every_clause_once_and_the_table_above_knows_them_all() -> None:
    for resolved in ALL.values():
        names = [clause.name for clause in card(resolved).clauses]
        assert sorted(names) == sorted(PROVIDED)
        assert {clause.section for clause in card(resolved).clauses} == set(SECTIONS)


def test_every_clause_that_a_setting_can_change_flips_in_some_pair_of_plans() -> None:
    never = {"robustness", "participation-server", "unconditional", "outside"}
    for clause in set(PROVIDED) - never:
        assert 0 < len(PROVIDED[clause]) < len(ALL), clause


def test_what_is_not_provided_is_printed_as_such_and_only_that() -> None:
    for resolved in ALL.values():
        found = card(resolved)
        missing = [clause for clause in found.clauses if not clause.provided and clause.applies]
        for page in (found.to_text(80), found.to_text(120), found.to_markdown()):
            assert page.count(f"{NOT_PROVIDED}: ") == len(missing)
        for clause in missing:
            assert not clause.assuming or clause.name in ("threshold", "other-parties")


def test_the_numbers_on_the_card_are_those_of_the_plan() -> None:
    found = card(RECORDS_IN_SHARES)
    secure = RECORDS_IN_SHARES.secure
    assert secure is not None and (secure.floor, secure.honest, secure.parameters.threshold) == (4, 3, 4)
    assert "4 of 5 must collude" in found["threshold"].title and "not half of the parties" in found["threshold"].text
    assert "at least 3 honest updates" in found["one-sum"].text and "survives 1 drop-out" in found["floor"].text
    for observer in Observer:
        told = re.search(r"ε ≤ ([0-9.]+) per record at δ = 1e-05", found[f"record-{observer}"].text)
        limit = RECORDS_IN_SHARES.limit_of(PrivacyUnit.RECORD)
        assert told is not None and limit is not None
        assert limit.epsilon <= float(told[1]) <= limit.epsilon * 1.001


def test_a_charge_at_all_parties_instead_of_the_floor_would_show_on_the_card() -> None:
    """The control: with every share counted the same noise would cost less, and the card's ε would be smaller."""
    honest = RECORDS_IN_SHARES.forecast(()).whole[0].epsilon
    share = RECORDS_IN_SHARES.noise_shares(PrivacyUnit.RECORD)
    assert share is not None and share.honest == 3
    optimistic = resolve(
        dataclasses.replace(
            RECORDS_IN_SHARES.plan,
            privacy=PrivacyPlan(record=dataclasses.replace(SHARED, noise_multiplier=4.0 * math.sqrt(5 / 3))),
        ),
        SITES,
        20,
    )
    assert optimistic.forecast(()).whole[0].epsilon < 0.9 * honest


def test_the_card_says_what_is_often_said_wrongly() -> None:
    text = " ".join(card(MASKED_LYING).to_text().split())
    for words in (
        "the protection is computational",
        "X25519",
        "AES-256-CTR",
        "AES-256-GCM",
        "who took part in each round, by which identifier",
        "not half of the parties",
        "one malicious party can shift the sum",
        "neither masks, clips nor noise stop",
    ):
        assert words in text, words
    bare = " ".join(card(MASKED_NONE).to_text().split())
    assert "Two sums over cohorts that differ in one party tell that party's update" in bare
    assert "information-theoretic" not in text


def test_a_simulation_is_called_one() -> None:
    found = card(SIMULATED_SHARES)
    assert "this is a simulation" in found["separate-parties"].text
    assert "the holder draws every share" in found["record-server"].text


def test_a_card_is_plain_values_too_and_knows_its_plan() -> None:
    found = card(MASKED_SAMPLE)
    values = json.loads(json.dumps(found.to_dict()))
    assert values["plan"] == MASKED_SAMPLE.plan.digest and len(values["clauses"]) == len(PROVIDED)
    assert {one["name"]: one["provided"] for one in values["clauses"]}["one-sum"] is True
    assert isinstance(found, GuaranteeCard)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    for resolved in ALL.values():
        assert max(map(len, card(resolved).to_text(width).splitlines())) <= width


def test_a_card_names_the_rule_its_attackers_and_that_robustness_is_empirical() -> None:
    text = card(JUDGED_SAMPLE)["robust-rule"].text
    assert "SignGuard (Xu" in text and "up to 1 update of a round" in text and "Robustness is empirical" in text
    assert "At most 1 update of a round may be anything." in card(JUDGED_SAMPLE).to_text(200)
    assert "A mean believes every update" in card(SAMPLE)["robust-rule"].text
    assert "proved for none" in card(JUDGED_SAMPLE)["robustness"].text


def test_a_card_says_with_a_number_when_noise_hides_updates_from_the_rule() -> None:
    assert (
        "0.89 times as long as the sampling error of a mean gradient of 400 records can be"
        in card(JUDGED_LOUD)["rule-sees"].text
    )
    assert "18 times as long as what two honest updates" in card(JUDGED_CLIENTS)["rule-sees"].text


def test_a_clause_that_has_nothing_to_hold_is_not_applicable_and_counted_apart() -> None:
    for name in ("TRIED", "BOUNDED", "SAMPLE"):  # trials, lengths, and no rule at all
        found = card(ALL[name])
        assert found["rule-sees"].mark == NOT_APPLICABLE and not found["rule-sees"].provided, name
        assert f"{NOT_APPLICABLE}: Noise leaves the rule signs" in found.to_text(200)
        assert found.summary.endswith("1 does not apply.") and GuaranteeCard.from_dict(found.to_dict()) == found
    for name in ("JUDGED_LOUD", "COMPARED"):  # signs hidden by noise; a cosine with the root's own update
        assert card(ALL[name])["rule-sees"].mark == NOT_PROVIDED, name
    numbers = [int(part) for part in re.findall(r"\d+", card(TRIED).summary)]
    assert numbers[2] + numbers[4] + numbers[5] == numbers[3] == len(PROVIDED)


def test_a_card_that_an_earlier_version_wrote_is_read_as_it_was() -> None:
    values = card(JUDGED_LOUD).to_dict()
    assert all("applies" not in clause for clause in values["clauses"])
    assert all(clause.applies for clause in GuaranteeCard.from_dict(values).clauses)
