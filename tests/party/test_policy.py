"""Each line of a policy has a plan that it refuses and a neighbour that it lets pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.party.policy import (
    AllowedTask,
    CoordinatorAddress,
    Policy,
    Rules,
    SiteData,
    SiteDataset,
    SiteName,
    UnitPolicy,
    layers_of,
    mode_of,
)
from quietsum.plan import AttackPlan, PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.privacy.units import Neighbours, PrivacyUnit

FACTS = (
    PartyFacts(name="north", dataset="visits", size=1000),
    PartyFacts(name="south", dataset="visits-south", size=500),
)
RECORD = {"noise_multiplier": 2.0, "delta": 1e-5, "max_grad_norm": 1.0}
CLIENT = {"noise_multiplier": 3.0, "delta": 1e-5, "max_norm": 1.0}
UNIT = UnitPolicy(epsilon=50.0, delta=1e-4)
SITE = SiteName(name="north")
WHERE = CoordinatorAddress(address="127.0.0.1:9092")
DATASET = SiteDataset(name="visits", size=1000)
ALL = Rules(aggregation=("mean", "noisy-sum", "party-noise"))


def plan(*, facts: tuple[PartyFacts, ...] = FACTS, schedule: Any = (), **tables: Mapping[str, Any]) -> ResolvedPlan:
    """A plan for records; ``tables`` replace keys."""
    values: dict[str, Any] = {
        "task": {"name": "visits"},
        "federation": {"rounds": 2},
        "training": {"sample_rate": 0.1, "local_steps": 2},
        "privacy": {"style": "sample", "record": RECORD},
        "aggregation": {},
    }
    for table, keys in tables.items():
        values[table] = {**values[table], **keys} if table != "privacy" else dict(keys)
    return resolve(Plan.from_dict({**values, "schedule": list(schedule)}), facts, 4)


def policy(**changes: Any) -> Policy:
    values: dict[str, Any] = {
        "site": SITE, "coordinator": WHERE, "dataset": DATASET, "tasks": (AllowedTask(name="visits"),), "record": UNIT,
        "rules": ALL, **changes,
    }  # fmt: skip
    return Policy(**values)


def unit(**changes: Any) -> UnitPolicy:
    return dataclasses.replace(UNIT, **changes)


RECORDS = {"style": "sample", "record": RECORD}
CLIENTS = {"style": "user", "client": CLIENT}
BOTH = {"style": "hybrid", "record": RECORD, "client": CLIENT}
REPLACED = {**RECORDS, "neighbours": "replace-one"}
AT_PARTY = {"style": "user", "client": {**CLIENT, "noise_at": "party"}, "neighbours": "replace-one"}
ADAPTIVE = {"style": "user", "client": {**CLIENT, "adaptive": {"count_noise": 2.0}}}
PEOPLE = {"style": "sample", "record": RECORD, "person": {"id": "patient", "max_records": 2}}
NONE = {"style": "none"}
STAGES = ({"rounds": 1, "noise": 1.0, "clip": 1.0}, {"rounds": 1, "noise": 0.5, "clip": 2.0})
LOUD_STAGES = ({"rounds": 1, "noise": 1.0, "clip": 0.5}, {"rounds": 1, "noise": 1.5, "clip": 1.0})
PUBLIC = SiteDataset(name="visits", size=1000, public="made up")
OPEN: dict[str, Any] = {"dataset": PUBLIC, "record": None}
ONLY_CLIENT: dict[str, Any] = {"record": None, "client": UNIT}
TIGHT: dict[str, Any] = {"record": None, "client": unit(largest_clip=1.0)}


FIVE: dict[str, Any] = {
    "facts": (*FACTS, *(PartyFacts(name=name, dataset=f"visits-{name}", size=700) for name in ("east", "west", "isle")))
}


def masked(**keys: Any) -> dict[str, Any]:
    """A plan of five sites with secure aggregation that survives one drop-out, unless ``keys`` say otherwise."""
    return {**FIVE, "aggregation": {"secure": True, **({} if "threshold" in keys else {"drop_outs": 0.2}), **keys}}


def shared() -> dict[str, Any]:
    """The same with records' noise in shares."""
    record = {**RECORD, "noise_at": "distributed"}
    return {
        **masked(),
        "privacy": {"style": "sample", "record": record},
        "training": {"sample_rate": 1.0, "local_steps": 1},
    }


def facts(**changes: Any) -> dict[str, Any]:
    return {"facts": (dataclasses.replace(FACTS[0], **changes), FACTS[1])}


ROWS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]] = [
    # the reason, the policy, the plan that it refuses; then the policy and the plan that pass, None for the same
    ("does not allow task 'x-rays'", {}, {"task": {"name": "x-rays"}}, None, {}),
    ("with these options", {}, {"task": {"options": {"columns": "all"}}}, None, {}),
    ("with these options", {"tasks": (AllowedTask(name="visits", options={"columns": "few"}),)}, {}, None,
     {"task": {"options": {"columns": "few"}}}),
    ("its dataset is 'visits', the plan says 'visits-2'", {}, facts(dataset="visits-2"), None, {}),
    ("its public size is 1000, the plan says 1001", {}, facts(size=1001), None, {}),
    ("its public size is 1000, the plan says 999", {}, facts(size=999), None, {}),
    ("the plan does not name this site", {}, {"federation": {"parties": ["south"]}}, None,
     {"federation": {"parties": ["north"]}}),
    ("deals out the data of one holder", {}, facts(holder="a cloud"), None, facts(holder="")),
    ("ε = 0.", {"record": unit(run=0.1)}, {}, {"record": unit(run=5.0)}, None),
    ("δ = 1e-05 per record is more than 9e-06", {"record": unit(delta=9e-6)}, {}, {"record": unit(delta=1e-5)}, None),
    ("noise multiplier 2 per record is below 2.001", {"record": unit(smallest_noise=2.001)}, {},
     {"record": unit(smallest_noise=2.0)}, None),
    ("noise multiplier 1 per record is below 1.5", {"record": unit(smallest_noise=1.5)}, {"schedule": STAGES}, None,
     {"schedule": LOUD_STAGES}),
    ("the clip 1 per record is above 0.9", {"record": unit(largest_clip=0.9)}, {}, {"record": unit(largest_clip=1.0)},
     None),
    ("the clip 2 per record is above 1", {"record": unit(largest_clip=1.0)}, {"schedule": STAGES}, None,
     {"schedule": LOUD_STAGES}),
    ("noise multiplier 3 per client is below 4", {"record": None, "client": unit(smallest_noise=4.0)},
     {"privacy": CLIENTS}, {"record": None, "client": unit(smallest_noise=3.0)}, None),
    ("noise multiplier 1.5 per client is below 3", {"record": None, "client": unit(smallest_noise=3.0)},
     {"privacy": CLIENTS, "schedule": STAGES}, None, {"privacy": CLIENTS, "schedule": LOUD_STAGES}),
    ("the clip 2 per client is above 1", TIGHT, {"privacy": CLIENTS, "schedule": STAGES}, None,
     {"privacy": CLIENTS, "schedule": LOUD_STAGES}),
    ("the clip per client adapts", TIGHT, {"privacy": ADAPTIVE}, ONLY_CLIENT, None),
    ("noise multiplier 2 per person is below 3", {"person": unit(smallest_noise=3.0)}, {"privacy": PEOPLE},
     {"person": UNIT}, None),
    ("promises nothing per client", {"client": UNIT}, {}, None, {"privacy": BOTH}),
    ("promises nothing per record", {"client": UNIT}, {"privacy": CLIENTS}, None, {"privacy": BOTH}),
    ("promises nothing per person", {"person": UNIT}, {}, None, {"privacy": PEOPLE}),
    ("has no budget per client", {}, {"privacy": BOTH}, {"client": UNIT}, None),
    ("has no budget per person", {}, {"privacy": PEOPLE}, {"person": UNIT}, None),
    ("aggregation by 'mean' is not allowed, only by noisy-sum", {"rules": Rules(aggregation=("noisy-sum",))}, {},
     {"rules": Rules(aggregation=("noisy-sum", "mean"))}, None),
    ("aggregation by 'noisy-sum' is not allowed, only by mean", {**ONLY_CLIENT, "rules": Rules()},
     {"privacy": CLIENTS}, ONLY_CLIENT, None),
    ("aggregation by 'party-noise' is not allowed", {**ONLY_CLIENT, "rules": Rules(aggregation=("noisy-sum",))},
     {"privacy": AT_PARTY}, ONLY_CLIENT, None),
    ("only by nothing", {"rules": Rules(aggregation=())}, {}, {}, None),
    ("is not floating-point safe", {}, {"privacy": {**RECORDS, "noise": "fast"}}, None, {"privacy": RECORDS}),
    ("the plan promises nothing", {}, {"privacy": NONE}, OPEN, None),
    ("the plan protects by add-or-remove-one per record, the policy wants replace-one",
     {"record": unit(neighbours=Neighbours.REPLACE_ONE)}, {}, None, {"privacy": REPLACED}),
    ("the plan protects by replace-one per record, the policy wants add-or-remove-one or zero-out",
     {"record": unit(neighbours=("add-or-remove-one", "zero-out"))}, {"privacy": REPLACED}, None, {}),
    ("the plan protects by add-or-remove-one per person, the policy wants zero-out",
     {"person": unit(neighbours="zero-out")}, {"privacy": PEOPLE}, None,
     {"privacy": {**PEOPLE, "neighbours": "zero-out"}}),
    ("the plan protects by replace-one per client, the policy wants zero-out",
     {"record": None, "client": unit(neighbours="zero-out")}, {"privacy": AT_PARTY}, ONLY_CLIENT, None),
    ("aggregation.rule = 'mean' is not accepted, only signguard or median",
     {"rules": Rules(rule=("signguard", "median"))}, FIVE, {"rules": Rules()}, None),
    ("aggregation.rule = 'median' is not accepted, only signguard",
     {"rules": Rules(rule=("signguard",))}, {**FIVE, "aggregation": {"rule": "median"}}, None,
     {**FIVE, "aggregation": {"rule": "signguard"}}),
    ("aggregation.rule = 'median' is not accepted, only mean",
     {"rules": Rules(rule=("mean",))}, {**FIVE, "aggregation": {"rule": "median"}}, {"rules": Rules()}, None),
    ("secure aggregation is required", {"rules": Rules(secure="required")}, FIVE, None, masked()),
    ("sums of 4 sites would be unmasked, and the policy wants 5", {"rules": Rules(smallest_cohort=5)}, masked(),
     {"rules": Rules(smallest_cohort=4)}, None),
    ("sums of 4 sites would be unmasked", {"rules": Rules(smallest_cohort=5)}, masked(), None, masked(drop_outs=0.0)),
    ("threshold 3 of secure aggregation is below 4", {"rules": Rules(smallest_threshold=4)}, masked(threshold=3), None,
     masked(threshold=4)),
    ("the policy wants adversary = 'semi-malicious'", {"rules": Rules(adversary="semi-malicious")}, masked(), None,
     masked(adversary="semi-malicious")),
    ("aggregation by 'distributed-noise' is not allowed, only by mean", {"rules": Rules()}, shared(),
     {"rules": Rules(aggregation=("distributed-noise",))}, None),
    ("noise multiplier 2 per record is below 2.5",
     {"rules": Rules(aggregation=("distributed-noise",)), "record": unit(smallest_noise=2.5)}, shared(),
     {"rules": Rules(aggregation=("distributed-noise",)), "record": unit(smallest_noise=2.0)}, None),
    ("the clip 1 per record is above 0.5",
     {"rules": Rules(aggregation=("distributed-noise",)), "record": unit(largest_clip=0.5)}, shared(),
     {"rules": Rules(aggregation=("distributed-noise",)), "record": unit(largest_clip=1.0)}, None),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{place}: {row[0]}" for place, row in enumerate(ROWS)])
def test_every_line_refuses_a_plan_and_lets_its_neighbour_pass(row: Any) -> None:
    reason, held, asked, neighbour, other = row
    with pytest.raises(PlanRefused, match=r"^the policy of north refuses: ") as error:
        policy(**held).check(plan(**asked))
    assert reason in str(error.value)
    policy(**(held if neighbour is None else neighbour)).check(plan(**(asked if other is None else other)))


def test_a_policy_that_demands_nothing_takes_masked_and_bare_updates_alike() -> None:
    policy(rules=Rules()).check(plan(**masked()))
    policy(rules=Rules()).check(plan(**FIVE))


@pytest.mark.parametrize("wrong", [{"secure": "always"}, {"adversary": "honest"}, {"smallest_cohort": -1}])
def test_demands_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        Rules(**wrong)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(PlanRefused) as error:
        policy(record=unit(run=0.1, smallest_noise=9.0)).check(plan(task={"name": "x-rays"}, **facts(size=5)))
    told = str(error.value)
    assert all(words in told for words in ("'x-rays'", "public size is 1000", "for one run", "is below 9"))


def test_a_plan_without_a_limit_or_without_noise_is_refused() -> None:
    with pytest.raises(PlanRefused, match="states no ε per record"):
        policy().check(dataclasses.replace(plan(), limits=()))
    both = policy(client=UNIT)
    made = plan(privacy=BOTH)
    both.check(made)
    with pytest.raises(PlanRefused, match="adds no noise per client"):
        both.check(dataclasses.replace(made, client_noise=None))


def test_without_a_limit_for_one_run_the_lifetime_is_the_limit() -> None:
    assert unit(epsilon=3.0).of_a_run == 3.0 and unit(epsilon=3.0, run=1.0).of_a_run == 1.0
    with pytest.raises(PlanRefused, match="for one run"):
        policy(record=unit(epsilon=0.1)).check(plan())


def test_public_data_may_be_used_with_or_without_a_promise() -> None:
    for privacy in (NONE, RECORDS, CLIENTS, BOTH):
        policy(**OPEN).check(plan(privacy=privacy))
    with pytest.raises(PlanRefused, match="not floating-point safe"):
        policy(**OPEN).check(plan(privacy={**RECORDS, "noise": "fast"}))


def test_what_a_plan_says_about_public_data_changes_nothing() -> None:
    """Whether data is public is for the site to say; a server that says so gets no unprotected release."""
    with pytest.raises(PlanRefused, match="the plan promises nothing"):
        policy().check(plan(privacy=NONE, **facts(public="says the server")))


def test_modes_are_named_as_in_a_policy() -> None:
    told = [mode_of(plan(privacy=privacy)) for privacy in (RECORDS, CLIENTS, AT_PARTY, BOTH, NONE)]
    assert told == ["mean", "noisy-sum", "party-noise", "noisy-sum", "mean"]


def test_options_of_this_site_alone_are_not_asked_of_the_plan() -> None:
    allowed = AllowedTask(name="visits", options={"columns": "few"}, here={"folder": "/data"})
    found = policy(tasks=(allowed,)).task("visits", {"columns": "few"})
    assert found.here == {"folder": "/data"}
    with pytest.raises(PlanRefused, match="with these options"):
        policy(tasks=(allowed,)).task("visits", {"columns": "few", "folder": "/etc"})


def test_two_lists_of_options_for_one_task_are_two_tasks() -> None:
    few, all_ = (AllowedTask(name="visits", options={"columns": which}) for which in ("few", "all"))
    both = policy(tasks=(few, all_))
    assert both.task("visits", {"columns": "few"}) is few and both.task("visits", {"columns": "all"}) is all_
    with pytest.raises(PlanRefused, match="with these options"):
        both.task("visits", {})


# ------------------------------------------------------------------------------------------- values that refuse


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, True])
def test_budgets_are_positive_numbers(value: float) -> None:
    for name in ("epsilon", "run", "largest_clip"):
        with pytest.raises(InvalidParameter):
            unit(**{name: value})
    if value != 0.0:
        with pytest.raises(InvalidParameter):
            unit(smallest_noise=value)
    with pytest.raises(InvalidParameter):
        unit(delta=value)


def test_one_run_may_not_cost_more_than_all_of_them() -> None:
    with pytest.raises(
        InvalidParameter, match=r"run = 50\.1 is more than epsilon = 50, .*all runs together.*lower run"
    ):
        unit(run=50.1)
    assert unit(run=50.0).of_a_run == 50.0


@pytest.mark.parametrize("name", ["record", "person"])
def test_a_delta_is_below_one_in_n_as_in_plans(name: str) -> None:
    """At the same limit, and in the same words, as a plan is refused for it."""
    from quietsum.plan.refusals import REFUSALS

    (row,) = (row for row in REFUSALS if row.name == "delta-too-large")
    for delta in (0.001, 0.5):
        with pytest.raises(InvalidParameter, match=rf"^{name}\.delta = {delta} is not below 1/n ") as error:
            policy(**{name: unit(delta=delta)})
        assert f"for n = 1,000 records: {row.why}; {row.instead}" in str(error.value)
        with pytest.raises(PlanRefused, match=r"record\.delta = .* is not below 1/n for n = 1,000 records"):
            plan(privacy={"style": "sample", "record": {**RECORD, "delta": delta}})
    policy(**{name: unit(delta=0.00099)})
    plan(privacy={"style": "sample", "record": {**RECORD, "delta": 0.00099}})


def test_a_delta_per_client_is_for_the_plan_to_hold_since_no_site_knows_how_many_there_are() -> None:
    built = policy(record=None, client=unit(delta=0.4))
    assert built.record is None and built.client is not None and built.client.delta == 0.4


def test_neighbours_are_words_of_plans_and_all_of_them_where_nothing_is_said() -> None:
    assert UNIT.neighbours == tuple(Neighbours)
    assert unit(neighbours="zero-out").neighbours == (Neighbours.ZERO_OUT,)
    for wrong in ("replace", ["zero-out", "swap"], [None]):
        with pytest.raises(InvalidParameter, match="unknown; choose 'add-or-remove-one', 'zero-out' or 'replace-one'"):
            unit(neighbours=wrong)
    with pytest.raises(InvalidParameter, match="is not a list"):
        unit(neighbours=7)
    nothing: Any
    for nothing in ([], ()):
        with pytest.raises(InvalidParameter, match="allows no plan"):
            unit(neighbours=nothing)


def test_units_have_a_relation_in_common_since_a_plan_has_only_one() -> None:
    replace, zero = unit(neighbours="replace-one"), unit(neighbours="zero-out")
    with pytest.raises(InvalidParameter, match="a plan has one relation for all its units"):
        policy(record=replace, client=zero)
    policy(record=replace, client=unit(neighbours=["zero-out", "replace-one"]))


def test_a_policy_protects_its_data_or_says_why_not() -> None:
    with pytest.raises(InvalidParameter, match="is protected and has no budget"):
        policy(record=None)
    with pytest.raises(InvalidParameter, match="stands beside a budget"):
        policy(dataset=PUBLIC)
    assert policy(dataset=PUBLIC, record=None).budgets == {}
    with pytest.raises(InvalidParameter, match="is protected and has no budget"):
        policy(dataset=SiteDataset(name="visits", size=1000, public="  "), record=None)


def test_a_policy_allows_something() -> None:
    with pytest.raises(InvalidParameter, match="allows nothing"):
        policy(tasks=())


NO_PORT = ("", "server", "server:", ":9092", "server:0", "server:65536", "server:http", "server:²")


@pytest.mark.parametrize("address", [*NO_PORT, "server:" + "9" * 5000, "a b:1", "server/x:1", "me@server:1"])
def test_an_address_is_a_host_with_a_port(address: str) -> None:
    with pytest.raises(InvalidParameter, match="is no host with a port"):
        CoordinatorAddress(address=address)
    assert CoordinatorAddress(address="[::1]:9092")


@pytest.mark.parametrize("address", ["https://127.0.0.1:29092", "grpc://server:9092", "https://server"])
def test_an_address_is_no_url_which_would_be_dialled_for_ever(address: str) -> None:
    with pytest.raises(InvalidParameter, match=r"is a URL; .*host:port, without https://"):
        CoordinatorAddress(address=address)


def test_a_pinned_ledger_is_a_ledgers_name() -> None:
    CoordinatorAddress(address="a:1", ledger="0" * 32)
    for name in ("0" * 31, "0" * 33, "Z" * 32, "A" * 32):
        with pytest.raises(InvalidParameter, match="is no ledger's name"):
            CoordinatorAddress(address="a:1", ledger=name)


def test_rules_know_their_words() -> None:
    with pytest.raises(InvalidParameter, match="choose 'mean', 'noisy-sum', 'party-noise' or 'distributed-noise'"):
        Rules(aggregation=("average",))
    with pytest.raises(InvalidParameter):
        Rules(largest_message=10)
    with pytest.raises(InvalidParameter, match="choose among mean, "):
        Rules(rule=("median", "best"))
    assert Rules(rule="signguard") == Rules(rule=("signguard", "signguard"))  # type: ignore[arg-type]  # as in a file


def test_a_policy_says_in_words_which_rules_it_accepts() -> None:
    assert Rules().accepted == "updates are combined by any rule"
    assert Rules(rule=("mean", "signguard")).accepted == "updates are combined by mean or signguard"
    assert Rules(rule=("median",)).to_dict()["rule"] == ["median"]


def test_paths_begin_where_the_policy_lies(tmp_path: Path) -> None:
    assert policy(folder=tmp_path).path("ledger.db") == tmp_path / "ledger.db"
    assert policy(folder=tmp_path).path("/var/ledger.db") == Path("/var/ledger.db")


def test_lifetimes_are_budgets_of_their_unit() -> None:
    found = {unit: one.lifetime(unit) for unit, one in policy(client=unit(epsilon=7.0)).budgets.items()}
    assert found[PrivacyUnit.CLIENT].epsilon == 7.0 and found[PrivacyUnit.RECORD].unit is PrivacyUnit.RECORD


def test_no_site_takes_part_in_a_drill() -> None:
    calm = plan()
    policy().check(calm)
    drill = dataclasses.replace(calm, plan=dataclasses.replace(calm.plan, attack=AttackPlan(kind="zero")))
    with pytest.raises(PlanRefused, match=r"the plan is a drill \(\[attack\]\), and a drill uses no site's data"):
        policy().check(drill)


def test_a_site_lists_the_layers_that_its_policy_asks_for_in_every_plan() -> None:
    def states(**changes: Any) -> list[str]:
        return [layer.state for layer in layers_of(policy(**changes))]

    assert states() == ["off", "on", "off", "off", "on"]
    assert states(**OPEN) == ["off", "off", "off", "off", "on"]
    assert states(rules=Rules(secure="required"))[2] == "on"
    assert (
        states(rules=Rules(rule=("signguard",)))[3] == "on" and states(rules=Rules(rule=("mean", "median")))[3] == "off"
    )
    assert states(data=SiteData(schema="data.toml"))[0] == "on"
