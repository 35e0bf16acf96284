"""The plans in docs/how-to/clients-and-people.md run as they stand, and its fragments fit into the client plan."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quietsum.errors import PlanRefused
from quietsum.plan import Plan, load_plan, resolve
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import task_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "clients-and-people.md"
BLOCKS = re.findall(r"^```toml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
WHOLE = [block for block in BLOCKS if block.startswith("[task]")]
FRAGMENTS = [block for block in BLOCKS if not block.startswith("[task]")]
UNITS = {"heart sample": {"record"}, "cards sample": {"record", "person"}, "digits user": {"client"},
         "digits hybrid": {"record", "client"}}  # fmt: skip


def called(block: str) -> str:
    values = tomllib.loads(block)
    return f"{values['task']['name']} {values['privacy']['style']}"


def user_plan() -> dict[str, Any]:
    return tomllib.loads(next(block for block in WHOLE if called(block) == "digits user"))


def test_the_page_has_a_plan_for_every_unit() -> None:
    assert [called(block) for block in WHOLE] == list(UNITS)
    assert len(FRAGMENTS) == 4


@pytest.mark.parametrize("block", WHOLE, ids=called)
@pytest.mark.some(2)
def test_a_plan_of_the_page_runs_to_its_end_within_its_promises(block: str, tmp_path: Path) -> None:
    if called(block).startswith("cards") and not os.environ.get("QUIETSUM_DATA"):
        pytest.skip("cards needs its files: set QUIETSUM_DATA")
    plan = load_plan(block)
    result = start(plan, workspace=Workspace.at(tmp_path))
    assert result.outcome == "finished" and result.round == plan.federation.rounds
    assert {claim.unit.value for claim in result.claims} == UNITS[called(block)]
    limits = {limit.unit: limit.epsilon for limit in result.resolved.limits}
    assert all(0 < claim.epsilon <= limits[claim.unit] for claim in result.claims)
    if called(block) == "digits user":  # it learns: one in ten would be guessing; failing by chance is out of reach
        assert result.metrics.values["accuracy"] > 0.7


def resolves_with(fragment: str) -> None:
    """The page's client plan with the fragment's tables in place of its own, held against its parties."""
    plan = Plan.from_dict({**user_plan(), **tomllib.loads(fragment)})
    task = task_of(plan)
    resolved = resolve(plan, task.parties(), task.dimension)
    assert resolved.limit is not None and resolved.limit.epsilon == 8.0


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda text: text.split("\n", 1)[0])
def test_a_fragment_of_the_page_fits_into_the_client_plan(fragment: str) -> None:
    resolves_with(fragment)


def test_a_fragment_that_does_not_fit_would_be_noticed() -> None:
    with pytest.raises(PlanRefused, match="minimum_parties"):
        resolves_with('[federation]\nsplit = "iid"\nparties = 600\nminimum_parties = 2\n'
                      'sampling = { kind = "poisson", rate = 0.5 }\n')  # fmt: skip
