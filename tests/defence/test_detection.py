"""Detection in a run: who is named and how, what is kept, who reads it, and that it never stands in the way."""

from __future__ import annotations

import html
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.aggregation import ClientSum, WeightedMean
from quietsum.aggregation.fold import length_of
from quietsum.aggregation.notes import NotingFold
from quietsum.aggregation.robust import RobustFold, find_rule
from quietsum.defence.detection import Detector, Finding
from quietsum.defence.detection.copies import clusters, find_copies_of
from quietsum.defence.detection.detector import against_others
from quietsum.errors import CorruptState, InvalidParameter
from quietsum.federation.watch import FindingReported, RunEvent, event_to_dict
from quietsum.mechanisms.gaussian import ClippedSum
from quietsum.mechanisms.rng import system_randomness
from quietsum.report.facts.sections import WITHHELD
from quietsum.runs.folder import Workspace
from quietsum.runs.record import findings
from quietsum.runs.run import start
from tiny import TinyTask, tiny_plan

NAMES = tuple(f"site-{place}" for place in range(10))
Rows = Any


def folded(detector: Detector, fold: Any, rows: Rows, names: tuple[str, ...] = NAMES) -> Any:
    around = detector.around(fold)
    return around.add_many(around.start(), names, rows)[0]


def mean(dimension: int, names: tuple[str, ...] = NAMES) -> WeightedMean:
    return WeightedMean(weights=dict.fromkeys(names, 1.0), dimension=dimension)


def rounds_of(make: Any, *, rounds: int = 16, dimension: int = 200, noise: float = 0.0, **given: Any) -> list[Finding]:
    """What is found in updates that ``make(chance, number)`` makes, a row a party."""
    detector, chance = Detector(NAMES, dimension=dimension, **given), np.random.default_rng(11)
    found = []
    for number in range(1, rounds + 1):
        rows = make(chance, number)
        found += detector.look(number, folded(detector, mean(dimension), rows), lambda party: (noise, noise))
        found += detector.step(number, rows.mean(axis=0))
    return found


def honest(chance: Any, number: int, dimension: int = 200) -> Rows:
    return 1.0 + 0.5 * chance.normal(size=(10, dimension))


def noisy(chance: Any, number: int, dimension: int = 200) -> Rows:
    return 0.3 + 1.0 * chance.normal(size=(10, dimension))


def named(found: list[Finding]) -> set[tuple[str, str]]:
    return {(one.rule, one.subject) for one in found}


# ------------------------------------------------------------------------------------------- what is found


def test_honest_updates_with_and_without_noise_are_not_named() -> None:
    assert rounds_of(honest, rounds=64) == []
    assert rounds_of(noisy, rounds=64, noise=1.0) == []


def test_honest_updates_are_named_as_often_as_stated_and_a_rate_that_lies_is_noticed() -> None:
    from scipy import stats

    names, rate, rounds = tuple("abcdef"), 0.02, 600

    def hits(told: float) -> dict[str, int]:
        detector, chance = Detector(names, dimension=40, rate=told, windows=(1,)), np.random.default_rng(5)
        counted: dict[str, int] = {}
        for number in range(1, rounds + 1):
            rows = 0.15 + chance.normal(size=(6, 40))
            found = detector.look(number, folded(detector, mean(40, names), rows, names), lambda party: (1.0, 1.0))
            for rule in {one.rule for one in found}:
                counted[rule] = counted.get(rule, 0) + 1
        return counted

    most = stats.binom.isf(1e-4, rounds, rate)
    assert all(count <= most for count in hits(rate).values())
    assert max(hits(0.5).values()) > most


def test_a_long_update_an_opposed_one_and_an_empty_one_are_named_each_by_its_rule() -> None:
    def odd(chance: Any, number: int) -> Rows:
        rows = honest(chance, number)
        rows[0] *= 50.0
        rows[1] *= -1.0
        rows[2] = 0.0
        return rows

    found = named(rounds_of(odd, rounds=1))
    assert {("norm", "site-0"), ("direction", "site-1"), ("norm", "site-2")} <= found
    assert {subject for _, subject in found} <= {"site-0", "site-1", "site-2"}


def test_under_noise_a_weak_pull_the_other_way_is_named_over_rounds_and_not_at_once() -> None:
    def odd(chance: Any, number: int) -> Rows:
        rows = 0.15 + chance.normal(size=(10, 200))
        rows[3] = -0.15 + chance.normal(size=200)
        return rows

    found = rounds_of(odd, rounds=16, noise=1.0)
    assert named(found) == {("direction", "site-3")}
    assert min(one.window for one in found) > 1


def test_whoever_leaves_the_noise_out_is_named() -> None:
    def odd(chance: Any, number: int) -> Rows:
        rows = noisy(chance, number)
        rows[4] = 0.3
        rows[5] = 0.0
        return rows

    assert {("noise", "site-4"), ("noise", "site-5")} <= named(rounds_of(odd, rounds=1, noise=1.0))


def test_equal_updates_are_one_finding_for_all_who_sent_them_and_so_are_those_of_the_last_step() -> None:
    last: list[Rows] = []

    def odd(chance: Any, number: int) -> Rows:
        rows = honest(chance, number)
        rows[[2, 5, 6]] = rows[5]
        if last:
            rows[[7, 8]] = last[-1].mean(axis=0)
        last.append(rows)
        return rows

    found = [one for one in rounds_of(odd, rounds=2) if one.rule == "copy"]
    assert [(one.round, one.subjects, one.statistic, one.value) for one in found] == [
        (1, ("site-2", "site-5", "site-6"), "equal updates", 3),
        (2, ("site-7", "site-8"), "updates equal to the last step", 2),
        (2, ("site-2", "site-5", "site-6"), "equal updates", 3),
    ]
    assert found[0].subject == "site-2, site-5, site-6" and all(one.holds() for one in found)
    assert "the same update was sent more than once" in found[0].sentence


def test_all_ten_equal_are_one_finding_that_names_five_and_counts_the_rest() -> None:
    (one,) = [one for one in rounds_of(lambda chance, number: np.ones((10, 200)), rounds=1) if one.rule == "copy"]
    assert one.subject == "site-0, site-1, site-2, site-3, site-4 and 5 more" and len(one.subjects) == 10


def naive(rows: Rows) -> list[tuple[int, ...]]:
    """Every pair is compared."""
    lengths = np.linalg.norm(rows, axis=1)
    left, found = [place for place in range(len(rows)) if lengths[place] > 0], []
    while left:
        near = [one for one in left if np.linalg.norm(rows[one] - rows[left[0]]) <= 1e-9 * lengths[left[0]]]
        found.append(tuple(near))
        left = [one for one in left if one not in near]
    return sorted(cluster for cluster in found if len(cluster) > 1)


@given(
    who=st.lists(st.integers(0, 6), min_size=1, max_size=25),
    scale=st.sampled_from([1e-200, 1.0, 1e150]),
    signs=st.integers(0, 2**25 - 1),
)
@settings(max_examples=60, deadline=None)
def test_equal_updates_are_found_as_by_comparing_every_pair_also_among_opposite_ones_of_one_length(
    who: list[int], scale: float, signs: int
) -> None:
    """Seven updates of one length and their opposites, the last of nothing."""
    base = np.random.default_rng(3).normal(size=(7, 30))
    base = base / np.linalg.norm(base, axis=1)[:, None]
    base[6] = 0.0
    rows = np.stack([base[one] * (-1.0 if signs >> place & 1 else 1.0) for place, one in enumerate(who)])
    scaled = rows * scale
    assert clusters(scaled, np.array([length_of(row) for row in scaled])) == naive(rows)


def test_updates_that_differ_in_the_eighth_digit_are_no_copies_and_the_largest_numbers_are_compared() -> None:
    row = np.random.default_rng(4).normal(size=50)
    near, far = row * (1 + 1e-11), row * (1 + 1e-8)
    rows = np.stack([row, near, far])
    assert clusters(rows, np.linalg.norm(rows, axis=1)) == [(0, 1)]
    huge = np.stack([np.full(4, 1.7e308), np.full(4, -1.7e308), np.full(4, 1.7e308) * [1, 1, 1, 0.1]])
    lengths = np.array([length_of(row) for row in huge])
    assert clusters(huge, lengths) == [] and find_copies_of(huge, lengths, huge[0]) == ()


def test_a_flipped_class_shows_in_its_own_row_and_nowhere_else() -> None:
    parts = {"class 0": np.arange(0, 50), "class 1": np.arange(50, 100)}

    def odd(chance: Any, number: int) -> Rows:
        rows = honest(chance, number)
        rows[8, :50] *= -1.0
        return rows

    found = [one for one in rounds_of(odd, rounds=16, parts=parts) if one.rule == "class-rows"]
    assert {(one.subject, one.statistic) for one in found} == {("site-8", "cosine of class 0")}


def test_parties_that_all_oppose_the_sum_of_the_others_are_not_opposed() -> None:
    """Near the end of training updates of different sites cancel: each points away from what the others do together."""

    def balanced(chance: Any, number: int) -> Rows:
        rows = np.eye(10, 200) * 5 + 0.1 * chance.normal(size=(10, 200))
        return rows - rows.mean(axis=0)

    assert [one for one in rounds_of(balanced, rounds=16, noise=0.1) if one.rule == "direction"] == []


def test_sites_that_differ_are_not_opposed_to_each_other_by_their_noise() -> None:
    """One site's data pull it the other way a little: with weak noise that is sure, and it is no finding."""
    own = np.random.default_rng(8).normal(size=(10, 200))
    own[0] -= 0.5

    def unlike(chance: Any, number: int) -> Rows:
        return 0.4 + own + 0.05 * chance.normal(size=(10, 200))

    assert rounds_of(unlike, rounds=64, noise=0.05) == []


def test_large_updates_are_judged_by_what_was_noted_as_they_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quietsum.defence.detection.detector.ROOM", 100)

    def odd(chance: Any, number: int) -> Rows:
        rows = honest(chance, number)
        rows[0] *= 50.0
        rows[1] *= -1.0
        return rows

    detector, chance = Detector(NAMES, dimension=200), np.random.default_rng(1)
    state = folded(detector, mean(200), odd(chance, 1))
    assert state.rows == {}
    assert named(detector.look(1, state)) == {("norm", "site-0")}, "there is no last step yet"
    detector.step(1, np.ones(200))
    assert {("norm", "site-0"), ("direction", "site-1")} <= named(
        detector.look(2, folded(detector, mean(200), odd(chance, 2)))
    )


def test_rows_of_a_robust_rule_are_looked_at_where_they_are() -> None:
    detector, chance = Detector(NAMES, dimension=200), np.random.default_rng(1)
    fold = RobustFold(rule=find_rule("median"), registered=NAMES, attackers=2, dimension=200)
    rows = honest(chance, 1)
    rows[1] *= -1
    state = folded(detector, fold, rows)
    assert state.rows == {}
    assert ("direction", "site-1") in named(detector.look(1, state))


def test_single_clients_of_a_noised_sum_are_not_looked_at() -> None:
    fold = ClientSum(mechanism=ClippedSum(max_norm=1.0, noise_multiplier=1.0), denominator=10.0, dimension=4)
    detector = Detector(NAMES, dimension=4)
    assert detector.around(fold) is fold
    assert detector.look(1, fold.start()) == []


def test_the_component_along_the_others_is_what_a_naive_sum_gives() -> None:
    chance = np.random.default_rng(2)
    rows, weights, past = chance.normal(size=(7, 9)), chance.uniform(1, 3, size=7), chance.normal(size=9)
    lengths = np.linalg.norm(rows, axis=1)
    for place in range(7):
        rest = past + sum(
            weights[other] / weights.mean() * rows[other] * min(1.0, np.median(lengths) / lengths[other])
            for other in range(7)
            if other != place
        )
        assert against_others(rows, weights, past)[0][place] == pytest.approx(rows[place] @ rest / np.linalg.norm(rest))


@pytest.mark.parametrize("row", [np.full(8, 1e308), np.zeros(8), np.full(8, -1e-320)])
def test_extreme_updates_are_looked_at_without_an_error(row: Rows) -> None:
    detector, rows = Detector(NAMES, dimension=8, parts={"class 0": np.arange(4)}), np.ones((10, 8))
    rows[3] = row
    with np.errstate(all="ignore"):
        detector.look(1, folded(detector, mean(8), rows), lambda party: (0.1, 0.1))
        for one in detector.look(2, folded(detector, mean(8), rows)):
            assert one.holds()


# ------------------------------------------------------------------------------------------- the fold that notes


def test_a_noted_fold_makes_the_same_step_and_carries_notes_of_those_it_folded() -> None:
    chance = np.random.default_rng(3)
    rows, rng = chance.normal(size=(10, 6)), system_randomness()
    plain, around = mean(6), NotingFold(fold=mean(6), towards=np.ones(6), parts=(slice(0, 2),), keep=True)
    whole, _ = plain.add_many(plain.start(), NAMES, rows)
    one, _ = around.add_many(around.start(), NAMES[:4], rows[:4])
    broken = rows[4:].copy()
    broken[0, 0] = np.nan
    two, problems = around.add_many(around.start(), NAMES[4:], broken)
    assert set(problems) == {NAMES[4]}
    two = around.add(two, NAMES[4], rows[4])
    both = around.merge(one, two)
    np.testing.assert_allclose(around.finish(both, rng).step, plain.finish(whole, rng).step, rtol=1e-12)
    assert set(both.notes) == set(both.rows) == set(NAMES)
    np.testing.assert_allclose(both.notes[NAMES[5]][0], [np.linalg.norm(rows[5]), rows[5].sum() / np.sqrt(6)])


def test_notes_from_elsewhere_that_are_none_are_left_out_and_the_sum_is_taken() -> None:
    around = NotingFold(fold=mean(6), keep=True)
    other, _ = around.add_many(around.start(), NAMES[:2], np.ones((2, 6)))
    other.notes = {NAMES[0]: np.full((1, 2), np.nan), NAMES[1]: np.ones((5, 5)), "stranger": np.ones((1, 2))}
    other.rows = {NAMES[0]: np.ones(3), "stranger": np.ones(6)}
    merged = around.merge(around.start(), other)
    assert (merged.notes, merged.rows, set(merged.kept)) == ({}, {}, set(NAMES[:2]))


# ------------------------------------------------------------------------------------------- findings


def finding(**given: Any) -> Finding:
    values = {
        "round": 4, "rule": "direction", "statistic": "cosine", "value": -0.31, "threshold": -0.12,
        "false_positive_rate": 1e-4, "subject_kind": "party", "subject": "party-3", "looked": {"party-3": -0.31},
    }  # fmt: skip
    return Finding(**{**values, **given})


def test_a_finding_is_a_measurement_and_names_its_rate() -> None:
    text = finding().sentence
    assert text == (
        "party-3: its update points away from the others (cosine -0.31, below -0.12; expected once in 10,000 rounds)"
    )
    assert "malicious" not in json.dumps(finding().to_dict())


def test_evidence_holds_for_the_numbers_it_was_made_of_and_for_no_others() -> None:
    one = finding()
    assert one.holds()
    assert finding(evidence=one.evidence, time="another").holds()
    for changed in ({"value": -0.2}, {"looked": {"party-3": -0.3}}, {"subject": "party-4"}, {"threshold": -0.5}):
        assert not finding(evidence=one.evidence, **changed).holds()


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="rule"):
        finding(rule="malice")


# ------------------------------------------------------------------------------------------- in a run


class Seen:
    def __init__(self) -> None:
        self.events: list[RunEvent] = []

    def saw(self, event: RunEvent) -> None:
        self.events.append(event)


def test_a_finding_of_a_run_is_an_event_for_the_operator_and_a_row_that_can_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quietsum.runs.record import Recorder

    monkeypatch.setattr(Detector, "step", lambda self, number, step: [finding(round=number)])
    seen, path = Seen(), tmp_path / "run.db"
    with Recorder(path) as recorder:
        start(tiny_plan(), workspace=Workspace(path=tmp_path), task=TinyTask(), watchers=[seen, recorder])
    events = [event for event in seen.events if isinstance(event, FindingReported)]
    assert [event.round for event in events] == [1, 2, 3]
    assert all(event.operator_only and event.kind == "finding" for event in events)
    assert json.loads(json.dumps(event_to_dict(events[0])))["finding"]["subject"] == "party-3"
    assert [(one.round, one.evidence) for one in findings(path)] == [
        (event.round, event.finding.evidence) for event in events
    ]
    with sqlite3.connect(path) as database:
        database.execute("UPDATE findings SET value = -0.9 WHERE round = 2")
    database.close()
    with pytest.raises(CorruptState, match="round 2"):
        findings(path)


def test_a_detector_that_fails_costs_a_warning_and_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: Detector, *given: Any) -> list[Finding]:
        raise ArithmeticError("no")

    monkeypatch.setattr(Detector, "look", fails)
    monkeypatch.setattr(Detector, "step", fails)
    result = start(tiny_plan(), workspace=Workspace(path=tmp_path), task=TinyTask())
    assert (result.outcome, result.round) == ("finished", 3)
    assert "detection failed" in caplog.text


def test_show_lists_findings_for_the_operator_and_no_report_or_exported_ledger_holds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from quietsum.cli.app import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    monkeypatch.setattr(Detector, "step", lambda self, number, step: [finding(round=number, subject="north-bank")])
    Path("run.toml").write_text(
        '[task]\nname = "tiny:TinyTask"\noptions = { public = "made up for a test" }\n[federation]\nrounds = 3\n'
        "[training]\nsample_rate = 0.5\nlocal_steps = 1\n[privacy]\nrecord = { epsilon = 2.0, delta = 1e-3 }\n"
    )

    def quietsum(*words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    assert "3 findings" in quietsum("run", "run.toml", "--name", "run")
    shown = " ".join(quietsum("show", "run").split())
    assert "detection, for the operator alone: 3 findings, which are no verdicts" in shown
    assert "north-bank: its update points away from the others" in shown
    assert "3 times up to round 3" in shown
    told = json.loads(quietsum("show", "run", "--json"))["operator_only"]["findings"]
    assert [one["round"] for one in told] == [1, 2, 3]
    quietsum("ledger", "export", "exported.jsonl")
    folder = Path("quietsum-workspace/runs/run")
    for path in (folder / "report.json", folder / "report.html", Path("exported.jsonl")):
        text = html.unescape(path.read_text(encoding="utf-8"))
        text = text.replace(f'"findings": "{WITHHELD}"', "").replace(WITHHELD, "")  # in every report of a run
        assert "north-bank" not in text
        assert "finding" not in text.lower() and "its update points away" not in text


def test_between_groups_the_subject_is_a_group() -> None:
    names = tuple(f"group {place + 1}" for place in range(8))
    detector = Detector(names, dimension=50, subject_kind="group", windows=(1,))
    fold = RobustFold(rule=find_rule("median"), registered=names, attackers=1, dimension=50)
    rows = 1.0 + 0.3 * np.random.default_rng(1).normal(size=(8, 50))
    rows[2] *= -1
    found = detector.look(1, fold.add_many(fold.start(), names, rows)[0])
    assert {(str(one.subject_kind), one.subject) for one in found} == {("group", "group 3")}


def test_a_torch_task_tells_the_rows_of_its_classes_and_counts_its_confusion() -> None:
    from quietsum.plan import FederationPlan, Plan, TaskPlan
    from quietsum.tasks import task_of

    task = task_of(Plan(task=TaskPlan(name="digits"), federation=FederationPlan(split="iid", parties=4)))
    rows = task.class_rows()
    assert list(rows) == [f"class {place}" for place in range(10)]
    assert sorted(np.concatenate(list(rows.values()))) == list(range(64 * 65, 4810))
    assert rows["class 3"].tolist() == [*range(64 * 65 + 3 * 64, 64 * 65 + 4 * 64), 4800 + 3]
    counts = task.confusion(task.initial())
    assert counts is not None
    assert counts.shape == (10, 10)
    assert np.trace(counts) / counts.sum() == pytest.approx(task.evaluate(task.initial()).values["accuracy"])


class Findings:
    def __init__(self) -> None:
        self.found: list[Finding] = []

    def saw(self, event: RunEvent) -> None:
        if isinstance(event, FindingReported):
            self.found.append(event.finding)


@pytest.mark.parametrize("noise", ["record = { epsilon = 8.0, delta = 1e-5, max_grad_norm = 0.5 }", 'style = "none"'])
def test_four_unlike_hospitals_that_nobody_attacks_are_not_found_odd(tmp_path: Path, noise: str) -> None:
    from quietsum.plan import load_plan

    plan = load_plan(
        '[task]\nname = "heart"\n[federation]\nrounds = 64\n[training]\nsample_rate = 0.25\nlocal_steps = 1\n'
        f'optimizer = {{ kind = "sgd", learning_rate = 0.4 }}\n[privacy]\n{noise}\n'
    )
    seen = Findings()
    start(plan, workspace=Workspace(path=tmp_path), watchers=[seen])
    assert [one.sentence for one in seen.found] == []


def test_in_a_drill_those_who_flip_signs_are_named_and_nobody_else(tmp_path: Path) -> None:
    from quietsum.plan import load_plan

    plan = load_plan(
        '[task]\nname = "digits"\n[federation]\nrounds = 4\nparties = 10\nsplit = "iid"\n[training]\nbatch_size = 32\n'
        'local_epochs = 1\noptimizer = { learning_rate = 0.2 }\n[privacy]\nstyle = "none"\n[aggregation]\n'
        'rule = "median"\n[attack]\nkind = "sign-flip"\nparties = ["client-0002", "client-0007"]\n'
    )
    seen = Findings()
    start(plan, workspace=Workspace(path=tmp_path), watchers=[seen])
    assert named(seen.found) >= {("direction", "client-0002"), ("direction", "client-0007")}
    assert {one.subject for one in seen.found} == {"client-0002", "client-0007"}
