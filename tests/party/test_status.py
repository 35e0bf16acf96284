"""What a site reads about its own budget is neither more nor less than what was spent, of whom and against whom."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from party.asking import FACTS, RECORD, UNIT, Place, Server, plan, policy, reason
from quietsum.party.policy import CoordinatorAddress, Policy, Rules, SiteDataset, SiteName
from quietsum.party.status import status_of
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.privacy import Neighbours

PUBLIC = SiteDataset(name="points-north", size=120, public="made up")


def spent_by(style: str, runs: int, **changes: Any) -> tuple[Policy, Place]:
    held = policy(style, **changes)
    place, server, asked = Place(held), Server(), plan(style)
    for number in range(runs):
        assert server.enrol(place, asked, f"run {number}").kind == "enrolled"
        assert server.train(place, asked, run=f"run {number}").kind == "update"
    return held, place


def only_budget(held: Policy, place: Place) -> dict[str, Any]:
    (line,) = status_of(held, place.ledger)["budgets"]
    return dict(line)


def test_one_run_is_told_by_its_epsilon() -> None:
    line = only_budget(*spent_by("sample", 1))
    assert 0 < line["spent_epsilon"] == line["bound_epsilon"] < 1 and line["epsilon"] == 30.0
    assert line["held_by"] == "one run" and math.isclose(line["spent_fraction"], line["spent_epsilon"] / 30.0)


def test_several_runs_are_told_by_the_share_of_the_filter_that_they_use() -> None:
    """The filter bounds them by the whole budget, whatever they used of it: that is no ε that was spent."""
    line = only_budget(*spent_by("sample", 3))
    assert line["held_by"] == "filter" and line["spent_epsilon"] is None and line["bound_epsilon"] == 30.0
    assert 0 < line["spent_fraction"] < 0.01 and line["plans"] == 3


def test_nothing_spent_is_nothing() -> None:
    for runs in (0, 1):
        held = policy()
        place, server = Place(held), Server()
        for number in range(runs):  # enrolled, never asked
            server.enrol(place, plan(), f"run {number}")
        line = only_budget(held, place)
        assert (line["spent_epsilon"], line["spent_fraction"], line["held_by"]) == (0.0, 0.0, "nothing spent")
        assert line["neighbours"] is None, "no plan has chosen one yet"


def test_an_overdrawn_budget_holds_nothing() -> None:
    place, server = Place(policy(record=None, dataset=PUBLIC)), Server()
    bare = plan(privacy={"style": "none"})
    server.enrol(place, bare)
    server.train(place, bare)
    held = policy()
    place.start(held)
    line = only_budget(held, place)
    assert line["held_by"] == "overdrawn" and line["spent_fraction"] == 1.0 and math.isinf(line["bound_epsilon"])


def test_what_was_released_while_the_ledger_calls_the_data_public_is_not_told_as_nothing() -> None:
    place, server = Place(policy(record=None, dataset=PUBLIC)), Server()
    server.enrol(place, plan())
    server.train(place, plan())
    line = only_budget(policy(), place)
    assert line["held_by"] == "no gate" and line["spent_epsilon"] is None and line["spent_fraction"] is None


@pytest.mark.parametrize(
    ("style", "unit", "observers", "neighbours"),
    [
        ("sample", "record", ["server", "recipients"], "add-or-remove-one"),
        ("user", "client", ["recipients"], "add-or-remove-one"),
        ("party", "client", ["server", "recipients"], "replace-one"),
    ],
)
def test_a_budget_says_against_whom_it_holds_and_between_which_neighbours(
    style: str, unit: str, observers: list[str], neighbours: str
) -> None:
    held, place = spent_by(style, 1)
    line = only_budget(held, place)
    assert (line["unit"], line["observers"], line["neighbours"]) == (unit, observers, neighbours)
    (run,) = status_of(held, place.ledger)["runs"]
    (spent,) = run["spent"]
    assert (spent["unit"], spent["observers"], spent["neighbours"]) == (unit, observers, neighbours)


def test_of_runs_that_protect_against_different_observers_only_what_is_common_is_said() -> None:
    place, server = Place(policy("user")), Server()
    for number, noise_at in enumerate(("party", "server")):
        client = {"noise_multiplier": 8.0, "delta": 1e-3, "max_norm": 1.0, "noise_at": noise_at}
        asked = plan("user", privacy={"style": "user", "client": client, "neighbours": "replace-one"})
        assert server.enrol(place, asked, f"run {number}").kind == "enrolled"
        assert server.train(place, asked, run=f"run {number}").kind == "update"
        expected = ["server", "recipients"] if noise_at == "party" else ["recipients"]
        assert only_budget(policy("user"), place)["observers"] == expected


def test_before_the_first_run_the_rules_say_against_whom_a_client_can_count_on_it() -> None:
    def told(*aggregation: str) -> list[str]:
        held = policy("user", rules=Rules(aggregation=aggregation))
        return list(only_budget(held, Place(held))["observers"])

    assert told("mean", "party-noise") == ["server", "recipients"]
    assert told("noisy-sum", "party-noise") == ["recipients"], "the server may add the noise"


# ------------------------------------------------------------------------------------------- one ledger, other names


def called(name: str, dataset: str = "points-north") -> tuple[Policy, ResolvedPlan]:
    facts = (PartyFacts(name=name, dataset=dataset, size=120), FACTS[1])
    asked = resolve(Plan.from_dict(plan().plan.to_dict()), facts, 3)
    return policy(site=SiteName(name=name), dataset=SiteDataset(name=dataset, size=120)), asked


def test_books_of_another_name_are_not_this_sites_and_it_is_told_whose_they_are() -> None:
    _, place = spent_by("sample", 1)
    renamed, _ = called("clinic-7")
    told = status_of(renamed, place.ledger)
    (line,) = told["budgets"]
    assert line["spent_epsilon"] == 0.0 and line["plans"] == 0
    (warning,) = told["warnings"]
    assert "under the name 'north'" in warning and "every plan is refused" in warning
    assert status_of(policy(), place.ledger)["warnings"] == [], "the control: its own name"


def test_a_budget_of_another_name_is_no_reason_to_warn_of_its_size() -> None:
    _, place = spent_by("sample", 1)
    renamed, _ = called("clinic-7")
    larger = dataclasses.replace(renamed, record=dataclasses.replace(UNIT, epsilon=60.0))
    assert not any("ledger raise" in warning for warning in status_of(larger, place.ledger)["warnings"])
    own = policy(record=dataclasses.replace(UNIT, epsilon=60.0))
    assert any("ledger raise" in warning for warning in status_of(own, place.ledger)["warnings"])


def test_a_run_under_another_dataset_says_so_and_counts_in_no_budget_here() -> None:
    _, place = spent_by("sample", 1)
    other, asked = called("north", "points-2025")
    server = Server()
    pinned = CoordinatorAddress(address="127.0.0.1:9092", ledger=server.ledger.identity.ledger)
    place.start(dataclasses.replace(other, coordinator=pinned))
    assert server.enrol(place, asked, "other").kind == "enrolled"
    assert server.train(place, asked, run="other").kind == "update"
    told = status_of(policy(), place.ledger)
    assert [(run["party"], run["dataset"]) for run in told["runs"]] == [
        ("north", "points-north"), ("north", "points-2025"),
    ]  # fmt: skip
    assert told["budgets"][0]["held_by"] == "one run" and told["warnings"] == []


def test_a_relation_that_the_policy_no_longer_wants_ends_the_book() -> None:
    place, server, by = Place(policy()), Server(), {}
    for word in ("add-or-remove-one", "replace-one"):
        by[word] = plan(privacy={"style": "sample", "record": RECORD, "neighbours": word})
    server.enrol(place, by["add-or-remove-one"])
    server.train(place, by["add-or-remove-one"])
    either = policy(record=dataclasses.replace(UNIT, neighbours=(Neighbours.REPLACE_ONE, Neighbours.ADD_REMOVE)))
    assert status_of(either, place.ledger)["warnings"] == []
    strict = policy(record=dataclasses.replace(UNIT, neighbours=(Neighbours.REPLACE_ONE,)))
    (warning,) = status_of(strict, place.ledger)["warnings"]
    assert "add-or-remove-one" in warning and "replace-one" in warning and "every plan is refused" in warning
    place.start(strict)
    assert "the policy wants replace-one" in reason(server.enrol(place, by["add-or-remove-one"], "second"))
    assert server.enrol(place, by["replace-one"], "second").kind == "refused", "by the ledger"
