"""Every plan has five layers of defence, and each is on exactly where its key says so."""

from __future__ import annotations

from typing import Any

import pytest

from quietsum.plan import (
    AggregationPlan,
    ClientPlan,
    FederationPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    TrainingPlan,
    resolve,
)
from quietsum.plan.promises import Style
from quietsum.plan.resolution.layers import AT_SITES, LAYERS, OFF, ON, layers
from quietsum.privacy.units import Neighbours

SITES = tuple(PartyFacts(name=f"site-{at}", dataset=f"visits-{at}", size=400) for at in range(6))
RECORD = RecordPlan(noise_multiplier=0.5, delta=1e-5)
LOUD = RecordPlan(noise_multiplier=40.0, delta=1e-5)


def made(privacy: Any = None, **aggregation: Any) -> ResolvedPlan:
    plan = Plan(
        privacy=privacy or PrivacyPlan(record=RECORD), aggregation=AggregationPlan(**aggregation),
        training=TrainingPlan(sample_rate=1.0, local_steps=1), federation=FederationPlan(rounds=3),
    )  # fmt: skip
    return resolve(plan, SITES, 20)


def client(noise_at: str) -> PrivacyPlan:
    promise = ClientPlan(noise_multiplier=4.0, delta=1e-3, noise_at=noise_at)
    return PrivacyPlan(style=Style.USER, client=promise, neighbours=Neighbours.ZERO_OUT)


STATES = {
    "plain": (made(), [OFF, ON, OFF, OFF, ON]),
    "nothing": (made(PrivacyPlan(style=Style.NONE)), [OFF, OFF, OFF, OFF, ON]),
    "server": (made(client("server")), [OFF, OFF, OFF, OFF, ON]),
    "party": (made(client("party")), [OFF, ON, OFF, OFF, ON]),
    "masked": (made(secure=True, drop_outs=0.1), [OFF, ON, ON, OFF, ON]),
    "judged": (made(rule="signguard", attackers=1), [OFF, ON, OFF, ON, ON]),
}


@pytest.mark.parametrize("name", STATES)
def test_a_layer_is_on_where_its_key_switches_it_on_and_nowhere_else(name: str) -> None:
    resolved, states = STATES[name]
    found = layers(resolved)
    assert [layer.name for layer in found] == list(LAYERS)
    assert [layer.state for layer in found] == states


def test_what_lies_with_the_sites_is_said_to_lie_there() -> None:
    found = layers(made(), sites=True)
    assert found[0].state == AT_SITES and "stays there" in found[0].text
    assert "TLS" in found[2].text and "TLS" not in layers(made())[2].text


def test_every_layer_says_what_it_is_and_which_key_switches_it_on() -> None:
    for resolved, _ in STATES.values():
        for layer in layers(resolved):
            assert layer.text and not layer.text.endswith(".")
            assert any(key in layer.setting for key in ("schema", "privacy.style", "secure", "rule", "alerts.toml"))


def test_a_rule_behind_loud_noise_is_on_and_its_layer_says_what_is_left_of_it() -> None:
    loud = layers(made(PrivacyPlan(record=LOUD), rule="signguard"))[3]
    assert loud.state == ON and "leaves it lengths" in loud.text
    assert "leaves it lengths" not in layers(made(rule="signguard"))[3].text


def test_masks_that_one_holder_simulates_are_off() -> None:
    import dataclasses

    dealt = tuple(dataclasses.replace(site, dataset="visits", holder="lab") for site in SITES)
    plan = Plan(privacy=PrivacyPlan(record=RECORD), aggregation=AggregationPlan(secure=True, drop_outs=0.1),
                training=TrainingPlan(sample_rate=1.0, local_steps=1), federation=FederationPlan(rounds=3))  # fmt: skip
    found = layers(resolve(plan, dealt, 20))[2]
    assert found.state == OFF and "simulated: one holder has all parties and keys" in found.text
    assert "aggregation.secure = true" not in found.setting  # it is set already; what is missing are separate sites


def test_a_rule_that_compares_single_updates_is_told_that_masks_need_groups() -> None:
    assert "aggregation.groups" in layers(made(rule="signguard"))[2].setting
    assert layers(made())[2].setting == "aggregation.secure = true"
