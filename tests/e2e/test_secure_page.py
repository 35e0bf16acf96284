"""The plans in docs/how-to/secure-aggregation.md run as they stand, and its policy refuses what it says it refuses."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from quietsum.errors import PlanRefused
from quietsum.party.policy_file import parse_policy
from quietsum.plan import AggregationPlan, PartyFacts, Plan, PrivacyPlan, RecordPlan, load_plan, resolve
from quietsum.privacy.units import Observer
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_of

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to" / "secure-aggregation.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
PLANS = [block for block in BLOCKS if block.startswith("[task]")]
SITE = """
[site]
name = "va"
[coordinator]
address = "127.0.0.1:9092"
[dataset]
name = "uci-heart-va"
size = 85
[[tasks]]
name = "heart"
"""


def called(block: str) -> str:
    return str(tomllib.loads(block)["task"]["name"])


def test_the_page_has_a_plan_for_records_one_for_clients_one_with_groups_and_a_policy() -> None:
    assert [called(block) for block in PLANS] == ["heart", "digits", "fraud"] and len(BLOCKS) == 4


def test_the_groups_of_the_page_are_possible_among_a_hundred_parties() -> None:
    stated = tomllib.loads(next(block for block in BLOCKS if "groups" in block))["aggregation"]
    parties = [PartyFacts(name=f"p{at:03d}", dataset=f"d{at}", size=400) for at in range(100)]
    promise = PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-5))
    found = resolve(Plan(privacy=promise, aggregation=AggregationPlan(**stated)), parties, 10).secure
    assert found is not None and found.grouping is not None
    assert (found.grouping.count, found.honest, found.floor) == (20, 3, 4)


@pytest.mark.parametrize("block", PLANS[:2], ids=called)  # tests/test_defence_pages.py runs the one with groups
def test_a_plan_of_the_page_runs_to_its_end_within_its_promise_against_both_observers(
    block: str, tmp_path: Path
) -> None:
    if called(block) == "digits":
        pytest.importorskip("torch")
    plan = load_plan(block)
    result = start(plan, workspace=Workspace.at(tmp_path))
    assert result.outcome == "finished" and result.round == plan.federation.rounds
    assert {claim.observer for claim in result.claims} == set(Observer)
    limit = result.resolved.limit
    assert limit is not None and all(0 < claim.epsilon <= limit.epsilon for claim in result.claims)
    assert "Provided: " in (result.folder.path / "guarantee.md").read_text(encoding="utf-8")


def test_the_policy_of_the_page_takes_its_plan_against_a_lying_server_and_refuses_less() -> None:
    policy = parse_policy(SITE + next(block for block in BLOCKS if block.startswith("[rules]")), "the page")
    plan = load_plan(PLANS[0])
    task = task_of(plan)

    def asked(**keys: object) -> None:
        masks = AggregationPlan(**{"secure": True, "drop_outs": 0.0, "adversary": "semi-malicious", **keys})  # type: ignore[arg-type]
        policy.check(resolve(dataclasses.replace(plan, aggregation=masks), task.parties(), task.dimension))

    asked()
    with pytest.raises(PlanRefused, match="sums of 3 sites would be unmasked, and the policy wants 4"):
        asked(drop_outs=0.25)
    with pytest.raises(PlanRefused, match="adversary = 'semi-malicious'"):
        asked(adversary="curious")


def test_the_threat_model_names_every_clause_that_no_setting_gives() -> None:
    page = " ".join((DOCS / "explanation" / "threat-model.md").read_text(encoding="utf-8").split())
    for words in (
        "Hiding who takes part",
        "One malicious party can shift a masked sum",
        "It is computational",
        "not half",
    ):
        assert words in page
