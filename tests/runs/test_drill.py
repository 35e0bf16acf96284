"""Rules against attacks on public rows: what the matrix holds, and that protected ones have none."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.federation.drills import Drill
from quietsum.plan import AttackPlan, Plan
from quietsum.runs import drill as drills
from quietsum.runs.drill import Cell, Drilled, DrillMatrix, parse_attack, run_drill
from quietsum.runs.pictures import heatmap
from quietsum.tasks import Metrics, task_of
from tiny import TinyTask, tiny_plan

SIX = {name: 10 for name in ("a", "b", "c", "d", "e", "f")}


class Near(TinyTask):
    """The tiny task with a score between 0 and 1, the nearer the better."""

    def evaluate(self, params: Any) -> Metrics:
        distance = float(np.linalg.norm(params - 0.5))
        return Metrics(values={"nearness": 1 / (1 + distance)}, on="the true mean, which is public")


def task(public: str = "made up") -> Near:
    return Near(sizes=SIX, public=public)


def plan(**tables: Any) -> Plan:
    calm: dict[str, Any] = {"privacy": {"style": "none", "record": None}, "training": {"sample_rate": 1.0}, **tables}
    return tiny_plan(**calm)


@pytest.fixture(scope="module")
def matrix() -> DrillMatrix:
    return run_drill(
        plan(), task(), rules=("mean", "median", "signguard"), attacks=("ipm:20", "label-flip"), rounds=6, repeats=2
    )


def test_the_matrix_holds_every_pair_and_the_calm_beside_it(matrix: DrillMatrix) -> None:
    assert matrix.attacks == ("none", "ipm:20", "label-flip")
    assert (matrix.parties, matrix.attackers, matrix.rounds) == (6, 1, 6)
    assert len(matrix.cells) == 9
    assert all(len(cell.runs) == 2 and not cell.refused for cell in matrix.cells)
    assert matrix.metric == "nearness"


def test_the_mean_is_ruined_and_the_median_is_not(matrix: DrillMatrix) -> None:
    assert matrix.cell("mean", "ipm:20").score < 0.3
    assert matrix.cell("median", "ipm:20").score > 0.8
    worst = matrix.worst("mean")
    assert worst is not None
    assert worst.attack == "ipm:20"


def test_what_a_rule_left_out_is_counted_for_attackers_and_for_others(matrix: DrillMatrix) -> None:
    cell = matrix.cell("signguard", "ipm:20")
    assert cell.mean("caught") == 1.0, "an update twenty times as long is never in the step"
    assert matrix.cell("mean", "ipm:20").mean("caught") == 0.0
    assert matrix.cell("mean", "none").mean("caught") is None, "without attackers there is nobody to catch"


def test_rules_that_withstand_fewer_attackers_than_there_are_are_named(matrix: DrillMatrix) -> None:
    assert matrix.outnumbered == {}
    two = dataclasses.replace(plan(), attack=AttackPlan(kind="zero", parties=2))
    found = run_drill(two, task(), rules=("mean", "median", "krum"), attacks=("zero",), rounds=1)
    assert found.outnumbered == {"krum": 1}, "Krum needs 2f + 3 parties, and there are six"
    assert found.to_dict()["withstand_fewer"] == {"krum": 1}


def test_values_of_a_matrix_are_plain_and_complete(matrix: DrillMatrix) -> None:
    values = matrix.to_dict()
    assert values["worst"]["mean"]["attack"] == "ipm:20"
    assert {(cell["rule"], cell["attack"]) for cell in values["cells"]} == {
        (rule, attack) for rule in matrix.rules for attack in matrix.attacks
    }


def test_the_picture_names_every_rule_and_attack_and_is_one_well_formed_file(matrix: DrillMatrix) -> None:
    text = heatmap(matrix, "tiny & small")
    words = [part.text for part in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert {"mean", "median", "signguard", "no attack", "ipm:20", "label-flip", "worst", "tiny & small"} <= set(words)
    for cell in matrix.cells:
        assert matrix.figure(cell.score) in words


def test_protected_rows_are_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    monkeypatch.setattr(drills, "_train", lambda *_: pytest.fail("a model was trained"))
    private = Near(sizes=SIX, diary=str(diary))
    private.public = ""
    with pytest.raises(PlanRefused, match=r"the rows of a, b, c and others are protected.*quietsum run charges it"):
        run_drill(plan(), private)
    assert not diary.exists()


def test_one_protected_party_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = task()
    facts = (*mixed.parties()[:-1], dataclasses.replace(mixed.parties()[-1], public=""))
    monkeypatch.setattr(mixed, "parties", lambda: facts)
    with pytest.raises(PlanRefused, match="the rows of f are protected"):
        run_drill(plan(), mixed)


def test_nothing_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run_drill(plan(), task(), rules=("mean",), attacks=("zero",), rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_who_attacks_is_what_the_plan_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[frozenset[str]] = []
    crafted = Drill._craft

    def noted(self: Drill, *arguments: Any) -> Any:
        seen.append(self._attackers)
        return crafted(self, *arguments)

    monkeypatch.setattr(Drill, "_craft", noted)
    stated = dataclasses.replace(plan(), attack=AttackPlan(kind="zero", parties=("e", "b")))
    assert run_drill(stated, task(), rules=("mean",), attacks=("sign-flip",), rounds=1).attackers == 2
    assert seen == [frozenset({"b", "e"})]


CLIENTS = {"style": "user", "record": None, "client": {"noise_multiplier": 1.0, "delta": 1e-3}}


def test_a_pair_that_a_plan_refuses_is_told_and_the_others_are_trained() -> None:
    found = run_drill(plan(privacy=CLIENTS), task(), rules=("mean", "median"), attacks=("zero",), rounds=1)
    assert "noise at the server after aggregation.rule = 'median'" in found.cell("median", "zero").refused
    assert math.isnan(found.cell("median", "zero").score)
    assert found.worst("median") is None
    assert found.cell("mean", "zero").runs
    assert "–" in heatmap(found, "some are refused")


def test_where_every_pair_is_refused_so_is_the_drill() -> None:
    with pytest.raises(PlanRefused, match="no rule and no attack fit"):
        run_drill(plan(privacy=CLIENTS), task(), rules=("median",), attacks=("zero",), rounds=1)


def test_weights_of_the_plan_are_for_its_mean_alone() -> None:
    weighted = plan(aggregation={"weights": "size"})
    found = run_drill(weighted, task(), rules=("mean", "median"), attacks=("zero",), rounds=1)
    assert all(cell.runs for cell in found.cells)


@pytest.mark.parametrize(
    ("text", "found"), [("ipm", ("ipm", None)), (" lie:.3", ("lie", 0.3)), ("none", ("none", None))]
)
def test_an_attack_is_named_with_its_strength_or_without(text: str, found: tuple[str, float | None]) -> None:
    assert parse_attack(text) == found


@pytest.mark.parametrize("text", ["charm", "ipm:much", "ipm:-1", "ipm:nan", ""])
def test_what_is_no_attack_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="attack"):
        parse_attack(text)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="rule"):
        run_drill(plan(), task(), rules=("majority",), attacks=("zero",), rounds=1)


@pytest.mark.slow
def test_the_success_of_a_trigger_is_counted_and_a_root_set_is_tried() -> None:
    digits = Plan.from_dict({
        "task": {"name": "digits", "options": {"root": 100}},
        "federation": {"split": "iid", "parties": 10, "rounds": 8},
        "training": {"batch_size": 32, "local_steps": 6, "optimizer": {"learning_rate": 0.3}},
        "privacy": {"style": "none"}, "attack": {"kind": "zero", "parties": 2, "target": 3},
    })  # fmt: skip
    found = run_drill(digits, task_of(digits), rules=("mean",), attacks=("backdoor:3", "zero"))
    won = found.cell("mean", "backdoor:3").mean("success")
    assert won is not None
    assert won > 0.6
    assert found.cell("mean", "zero").mean("success") is None
    trusting = run_drill(digits, task_of(digits), rules=("fltrust",), attacks=("zero",), rounds=2)
    assert trusting.cell("fltrust", "zero").runs
    rootless = dataclasses.replace(digits, task=dataclasses.replace(digits.task, options={}))
    with pytest.raises(PlanRefused, match="root"):
        run_drill(rootless, task_of(rootless), rules=("fltrust",), attacks=("zero",), rounds=1)


def test_scores_beyond_one_are_no_percentages() -> None:
    runs = (Drilled(score=12.5, caught=0.0, accused=0.0),)
    cells = tuple(Cell(rule="mean", attack=attack, runs=runs) for attack in ("none", "lie"))
    found = DrillMatrix(
        metric="points", on="made-up rows", parties=4, attackers=1, rounds=1, rules=("mean",), attacks=("none", "lie"),
        cells=cells,
    )  # fmt: skip
    assert found.figure(12.5) == "12.5"
    assert found.unit == ""


def made(metric: str, **scores: tuple[float, ...]) -> DrillMatrix:
    """A matrix of scores by rule; the first is without an attack, and minus infinity is a refusal."""
    attacks = ("none", "lie", "ipm:5", "mimic")[: len(next(iter(scores.values())))]
    cells = [
        Cell(rule=rule, attack=attack, refused="no")
        if score == -math.inf
        else Cell(rule=rule, attack=attack, runs=(Drilled(score=score, caught=0.5, accused=0.1),))
        for rule, row in scores.items()
        for attack, score in zip(attacks, row, strict=True)
    ]
    return DrillMatrix(
        metric=metric, on="made-up rows", parties=4, attackers=1, rounds=1, rules=tuple(scores), attacks=attacks,
        cells=tuple(cells),
    )  # fmt: skip


def depths(text: str) -> dict[str, float]:
    """How deep each cell's colour is, by what its title says."""
    name = "{http://www.w3.org/2000/svg}"
    found: dict[str, float] = {}
    for group in ElementTree.fromstring(text).iter(f"{name}g"):
        title, square = group.find(f"{name}title"), group.find(f"{name}rect")
        if title is None:  # the worst of a rule that was refused throughout
            continue
        assert title.text and square is not None
        found.setdefault(title.text.split(":")[0], float(square.get("fill-opacity", 0.0)))
    return found


@pytest.mark.parametrize(("metric", "turned"), [("accuracy", False), ("loss", True), ("mean_squared_error", True)])
def test_of_a_loss_the_largest_is_the_worst_and_the_deepest_and_of_an_accuracy_the_smallest(
    metric: str, turned: bool
) -> None:
    found = made(metric, mean=(0.9, 0.2, 0.8), median=(0.9, 0.7, 0.5))
    worst = {rule: cell.score for rule in found.rules if (cell := found.worst(rule)) is not None}
    assert worst == ({"mean": 0.8, "median": 0.7} if turned else {"mean": 0.2, "median": 0.5})
    assert found.safest is not None and found.safest.rule == "median"
    assert found.to_dict()["more_is_better"] is not turned and bool(found.unit) is not turned
    seen = depths(heatmap(found, "x"))
    best, least = ("mean, under lie", "mean, no attack") if turned else ("mean, no attack", "mean, under lie")
    assert seen[best] == 0.0 and seen[least] == max(seen.values()) > 0.5
    assert f"{'less' if turned else 'more'} is better" in heatmap(found, "x")


@pytest.mark.parametrize("metric", ["accuracy", "loss", "r2", "points"])
@given(
    scores=st.lists(
        st.floats(-1e6, 1e6) | st.sampled_from([0.0, math.nan, math.inf, -math.inf, 1e308, 5e-324]),
        min_size=4, max_size=4,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_what_is_lost_lies_between_nothing_and_all_and_grows_as_the_score_gets_worse(
    metric: str, scores: list[float]
) -> None:
    found = made(metric, mean=(scores[0], scores[1]), median=(scores[2], scores[3]))
    lost = {(cell.rule, cell.attack): found.lost(cell) for cell in found.cells}
    assert all(0 <= value <= 1 for value in lost.values())
    known = [cell for cell in found.cells if math.isfinite(cell.score)]
    for one, other in itertools.combinations(known, 2):
        worse = one.score < other.score if found.more_is_better else one.score > other.score
        assert not worse or found.lost(one) >= found.lost(other)
    assert all(found.lost(cell) == 1.0 for cell in found.cells if cell.runs and not math.isfinite(cell.score))
    ElementTree.fromstring(heatmap(found, "x"))


def test_a_model_without_a_score_is_not_shown_like_a_refused_pair() -> None:
    found = made("accuracy", mean=(0.9, math.nan), median=(0.8, -math.inf))
    assert found.in_words(found.cell("mean", "lie")) == "none" and found.in_words(found.cell("median", "lie")) == "–"
    assert found.worst("mean") is found.cell("mean", "lie") and found.worst("median") is None
    seen = depths(heatmap(found, "x"))
    assert seen["mean, under lie"] == 0.75 and seen["median, under lie"] == 0.0


def test_everything_in_the_picture_lies_inside_it_however_long_its_words_are() -> None:
    found = made("accuracy", **{"centered-clipping": (0.9, 0.1)})
    text = heatmap(found, "a task with a very long title, " * 5)
    root = ElementTree.fromstring(text)
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    for part in root.iter("{http://www.w3.org/2000/svg}text"):
        if part.get("x") is not None:
            x, y, wide = float(part.get("x", 0)), float(part.get("y", 0)), 6.0 * len(part.text or "")
            start = x - wide if part.get("text-anchor") == "end" else x - wide / 2 if part.get("text-anchor") else x
            assert start >= 0 and start + wide <= width and 0 < y < height, part.text
    assert "50 % of attackers" in text


def test_a_rule_that_nobody_knows_is_refused_before_anything_is_trained() -> None:
    told: list[Any] = []
    with pytest.raises(InvalidParameter, match="is unknown"):
        run_drill(plan(), task(), rules=("mean", "nosuch"), attacks=("zero",), tell=told.append)
    assert told == []
