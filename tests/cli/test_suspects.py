"""``quietsum suspects`` and groups in ``quietsum plan``: what the operator reads about a run with random groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quietsum.federation.watch import GroupJudged, RoundStarted
from quietsum.runs.record import Recorder, read_groups
from scenes import quietsum

SIZES = ", ".join(f'"site-{place:02d}" = {10 + place}' for place in range(15))
PLAN = f"""
[task]
name = "tiny:TinyTask"
options = {{ public = "made up for a test", sizes = {{ {SIZES} }} }}
[federation]
rounds = 1
[training]
sample_rate = 0.5
local_steps = 1
[privacy]
style = "none"
[aggregation]
secure = true
rule = "median"
groups = 3
drop_outs = 0.2
"""


pytestmark = pytest.mark.usefixtures("empty_folder")


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_a_run_with_groups_is_recorded_and_scored_for_the_operator() -> None:
    Path("run.toml").write_text(PLAN, encoding="utf-8")
    quietsum("run", "run.toml", "--name", "first")
    database = next(Path().glob("**/first/run.db"))
    found = read_groups(database)
    assert [len(members) for _, members, _ in found] == [5, 5, 5] and all(kept for _, _, kept in found)
    with Recorder(database) as recorder:  # as if two later rounds had left out the groups of one site
        for number in (2, 3):
            recorder.saw(RoundStarted(round=number, attempt=1))
            for group in range(3):
                members = tuple(f"site-{(number * group + place * 3) % 15:02d}" for place in range(1, 5))
                event = GroupJudged(
                    round=number, group=group, members=(*members, "site-00") if group == 0 else members,
                    survivors=(*members, "site-00") if group == 0 else members, kept=group != 0, rule="median",
                    reason="" if group else "the rule left it out", statistics={"distance": 1.5},
                )  # fmt: skip
                recorder.saw(event)
    text = words(quietsum("suspects", "first").output)
    assert "suspicion" in text and "no finding about anybody" in text and "malicious" not in text
    assert "2 of 9 groups were left out" in text and "60 % of groups with an attacker and 25 % of those" in text
    assert "if there are 1 attackers" not in text and "next: quietsum show first" in text
    values = json.loads(quietsum("suspects", "first", "--json", "--true-positive", "0.8").output)
    best: dict[str, Any] = values["suspected"][0]
    assert values["true_positive"] == 0.8 and values["groups"] == 9 and values["left_out"] == 2
    assert best["flagged"] == 2 and 0 < best["score"] < 1


def test_where_no_group_was_left_out_nobody_is_listed() -> None:
    Path("run.toml").write_text(PLAN, encoding="utf-8")
    quietsum("run", "run.toml", "--name", "first")
    text = quietsum("suspects", "first").output
    assert "0 of 3 groups were left out" in text and "site-" not in text
    assert len(json.loads(quietsum("suspects", "first", "--json").output)["suspected"]) == 15


def test_scores_and_groups_stay_out_of_what_recipients_get() -> None:
    Path("run.toml").write_text(PLAN, encoding="utf-8")
    quietsum("run", "run.toml", "--name", "first")
    report = next(Path().glob("**/first/report.json")).read_text(encoding="utf-8")
    assert "judged" not in report and "suspected" not in report


def test_without_groups_there_is_nothing_to_score() -> None:
    plain = PLAN.replace('rule = "median"\ngroups = 3\n', "")
    Path("run.toml").write_text(plain, encoding="utf-8")
    quietsum("run", "run.toml", "--name", "first")
    assert "has judged no groups" in words(quietsum("suspects", "first").output)
    assert json.loads(quietsum("suspects", "first", "--json").output)["suspected"] == []


def test_a_rate_that_is_none_is_a_usage_error() -> None:
    Path("run.toml").write_text(PLAN, encoding="utf-8")
    quietsum("run", "run.toml", "--name", "first")
    quietsum("suspects", "first", "--true-positive", "1.5", code=2)
    quietsum("suspects", "nobody", code=2)


def test_the_plan_prints_what_groups_hide_and_withstand() -> None:
    text = PLAN.replace("groups = 3", "groups = 3\ncolluders = 3\nattackers = 1").replace("drop_outs = 0.2\n", "")
    text = text.replace("colluders = 3", "colluders = 2")
    Path("run.toml").write_text(text, encoding="utf-8")
    told = words(quietsum("plan", "run.toml").output)
    assert "3 sums, one of each random group of 5, a round" in told
    assert "at most 2 of 15 collude, 2 of one group, so a sum holds 3 honest or more" in told
    assert "fewer than two other honest ones with chance 0 a draw, 0 over the run" in told
    assert "1 of 15 may send anything: they sit in 33 % of the groups (bound 42 %)" in told
    assert "in more than the 1 that median withstands with chance 0" in told
    values = json.loads(quietsum("plan", "run.toml", "--json").output)["secure"]["grouping"]
    assert values["groups"] == 3 and values["colluders_in_a_group"] == 2 and values["draws"] == 6
    assert values["touched_share"] == pytest.approx(1 / 3) and values["among_colluders_over_the_run"] == 0


def test_a_refused_plan_names_the_nearest_groups() -> None:
    Path("run.toml").write_text(PLAN.replace("groups = 3", "groups = 5"), encoding="utf-8")
    result = quietsum("plan", "run.toml", code=2)
    told = words(result.output + (result.stderr or ""))
    assert "leaves 3 in a group (3 groups of four or more would do)" in told
    assert "aggregation.groups = 3" in told
