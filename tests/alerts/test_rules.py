"""When something is an alert: each thing once, healthy runs never, and the rates are those that are stated."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quietsum.alerts import (
    Alert,
    AlertKind as Kind,
    BudgetFact,
    Course,
    RoundFact,
    Severity,
    Subject,
    Thresholds,
    finding,
)
from quietsum.alerts.rules import ATTACKED
from quietsum.errors import InvalidParameter

PARTIES = [f"bank-{number}" for number in range(10)]


def alerts(course: Course, rounds: list[RoundFact]) -> list[Alert]:
    return [alert for fact in rounds for alert in course.round(fact)]


def facts(count: int, **more: Any) -> list[RoundFact]:
    return [RoundFact(round=number, asked=10, kept=PARTIES, **more) for number in range(1, count + 1)]


def scored(*values: float, name: str = "accuracy") -> list[RoundFact]:
    return [RoundFact(round=number, metrics={name: value}) for number, value in enumerate(values, start=1)]


# ------------------------------------------------------------------------------------------------- budget


def lifetime(share: float) -> BudgetFact:
    return BudgetFact(share=share, epsilon=8, unit="record", subject_kind=Subject.PARTY, subject="Basel", dataset="v")


def test_a_lifetime_budget_is_told_at_four_fifths_and_once() -> None:
    course = Course()
    found = [alert for share in (0.2, 0.79, 0.8, 0.9, 0.99) for alert in course.budget(lifetime(share))]
    assert [(one.kind, one.severity, one.value, one.threshold) for one in found] == [
        (Kind.BUDGET_LOW, Severity.WARNING, 0.8, 0.8)
    ]
    assert found[0].sentence == "80 % of the lifetime budget of Basel on v, ε = 8 per record, is reserved"
    raised = [alert for share in (0.4, 0.85) for alert in course.budget(lifetime(share))]
    assert len(raised) == 1  # the budget was raised, and is nearly used up again


def test_budgets_of_many_parties_that_are_low_together_are_one_alert() -> None:
    facts = [
        BudgetFact(share=0.8 + number / 100, epsilon=2, unit="record", subject_kind=Subject.PARTY, subject=f"p{number}")
        for number in range(8)
    ]
    found = Course().budget(*facts)
    assert [(one.subject, one.value) for one in found] == [("p0, p1, p2, p3, p4 and 3 more", 0.8 + 7 / 100)]


def test_a_run_that_uses_its_own_epsilon_is_a_notice_and_no_alert() -> None:
    found = Course().budget(BudgetFact(share=0.9, epsilon=1, unit="record", planned=True))
    assert [one.severity for one in found] == [Severity.NOTICE]


def test_a_budget_that_is_gone_is_critical_and_told_once() -> None:
    course = Course()
    first, second = course.budget_gone("does not fit"), course.end("budget", reason="does not fit")
    assert [one.severity for one in first] == [Severity.CRITICAL] and second == []
    assert [one.kind for one in Course().end("budget", reason="x")] == [Kind.BUDGET_GONE]


# ------------------------------------------------------------------------------------------------- drop-outs


def losing(many: int, rounds: int = 11) -> list[RoundFact]:
    """So many parties are lost in each round, others than in the round before."""
    halves = PARTIES[:5], PARTIES[5:]
    lost = [halves[number % 2][:many] for number in range(rounds)]
    return [
        RoundFact(round=number, asked=10, kept=[one for one in PARTIES if one not in gone], lost=gone)
        for number, gone in enumerate(lost, start=1)
    ]


def test_half_of_the_parties_lost_is_told_after_a_few_rounds_and_once() -> None:
    found = alerts(Course(), losing(5))
    assert [(one.kind, one.round, one.value) for one in found] == [(Kind.DROP_OUTS, 3, 0.5)]
    assert alerts(Course(), losing(4)) == []  # the control


def test_a_party_that_is_lost_three_times_in_a_row_is_named_and_told_again_after_it_was_back() -> None:
    pattern = [1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1]
    rounds = [
        RoundFact(round=n, asked=10, kept=PARTIES[lost:], lost=PARTIES[:lost])
        for n, lost in enumerate(pattern, start=1)
    ]
    found = alerts(Course(), rounds)
    assert [(one.round, one.subject) for one in found] == [(6, "bank-0"), (11, "bank-0")]


def test_ten_thousand_lost_parties_are_one_alert() -> None:
    many = [f"client-{n}" for n in range(10_000)]
    found = alerts(Course(), [RoundFact(round=n, asked=40_000, lost=many) for n in (1, 2, 3)])
    assert len(found) == 1 and found[0].subject.endswith("and 9995 more")


# ------------------------------------------------------------------------------------------------- rejected


def judged(rate: dict[str, float], rounds: int, seed: int) -> list[RoundFact]:
    draw = random.Random(seed)
    found = []
    for number in range(1, rounds + 1):
        out = [party for party in PARTIES if draw.random() < rate.get(party, 0.0)]
        found.append(RoundFact(round=number, asked=10, kept=[p for p in PARTIES if p not in out], rejected=out))
    return found


def test_two_banks_that_are_rejected_in_nine_of_ten_rounds_are_told_and_honest_ones_are_not() -> None:
    rate = {party: 0.4 for party in PARTIES} | {"bank-3": 0.95, "bank-8": 0.95}
    for seed in range(20):
        named = {
            name
            for one in alerts(Course(parties=10), judged(rate, 40, seed))
            if one.kind is Kind.REJECTED and one.subject_kind is Subject.PARTY
            for name in one.subject.split(", ")
        }
        assert named == {"bank-3", "bank-8"}, seed


def test_a_party_that_turns_bad_late_is_told_too() -> None:
    early, late = judged({party: 0.1 for party in PARTIES}, 60, 1), judged({"bank-3": 1.0}, 40, 2)
    found = [one for one in alerts(Course(parties=10), early + late) if one.subject == "bank-3"]
    assert len(found) == 1 and "no proof of bad faith" in found[0].sentence and "malicious" not in found[0].sentence


def test_false_alarms_about_honest_parties_are_as_rare_as_stated() -> None:
    """At the largest honest rate, over 100 rounds: Ville's bound at α = 0.1 is kept; the control breaks the premise."""

    def alarms(rate: float) -> int:
        count = 0
        for seed in range(150):
            course = Course(Thresholds(false_alarms=0.1, rejected=1.0), parties=10)
            count += any(alerts(course, judged({party: rate for party in PARTIES}, 100, seed)))
        return count

    assert alarms(0.4) <= 150 * 0.1 + 3 * (150 * 0.1 * 0.9) ** 0.5
    assert alarms(0.75) > 75


def test_the_evidence_is_the_sum_over_all_beginnings_of_the_likelihood_ratio() -> None:
    """The recursion beside the sum that it stands for."""
    pattern, p = [1, 0, 1, 1, 1, 0, 1, 1, 1, 1], 0.4
    course = Course()
    for number, out in enumerate(pattern, start=1):
        course.round(RoundFact(round=number, kept=[] if out else ["a"], rejected=["a"] if out else []))
    total = 0.0
    for begin in range(1, len(pattern) + 1):
        product = 1.0
        for out in pattern[begin - 1 :]:
            product *= ATTACKED / p if out else (1 - ATTACKED) / (1 - p)
        total += product / (begin * (begin + 1))
    assert course._evidence["a"] == pytest.approx(total, rel=1e-12)


def test_a_rule_that_leaves_out_most_updates_is_told() -> None:
    rounds = [RoundFact(round=n, asked=10, kept=PARTIES[:4], rejected=PARTIES[4:]) for n in range(1, 7)]
    found = [one for one in alerts(Course(), rounds) if one.subject_kind is Subject.RUN]
    assert [(one.kind, one.round, one.value) for one in found] == [(Kind.REJECTED, 5, 0.6)]


# ------------------------------------------------------------------------------------------------- scores


def test_a_score_below_its_start_for_five_rounds_is_a_divergence() -> None:
    course = Course()
    course.begin({"accuracy": 0.5, "auc": 0.5})
    rounds = [RoundFact(round=n, metrics={"accuracy": 0.4, "auc": 0.3}) for n in range(1, 9)]
    found = alerts(course, rounds)
    assert [(one.kind, one.round, one.statistic, one.threshold) for one in found] == [
        (Kind.DIVERGENCE, 5, "accuracy", 0.48)  # auc says the same, and is not told again
    ]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.49, 0.52, 0.47, 0.55, 0.6, 0.7, 0.8, 0.82], 0),  # noise at first, then healthy
     ([0.4, 0.4, 0.4, 0.4, 0.6, 0.4, 0.4, 0.4], 0),  # never five in a row
     ([0.6, 0.7, 0.85, 0.6, 0.6, 0.6, 0.6, 0.6], 1),  # most of the gain is lost
     ([0.6, 0.7, 0.85, 0.75, 0.72, 0.7, 0.7, 0.7], 0)],
)  # fmt: skip
def test_noise_is_no_divergence_and_a_collapse_is(values: list[float], wanted: int) -> None:
    course = Course()
    course.begin({"accuracy": 0.5})
    assert len(alerts(course, scored(*values))) == wanted


def test_a_loss_that_doubles_is_a_divergence_and_one_that_falls_is_not() -> None:
    for value, wanted in ((5.0, 1), (0.4, 0), (2.5, 0)):
        course = Course()
        course.begin({"loss": 2.3})
        assert len(alerts(course, scored(*[value] * 6, name="loss"))) == wanted


def test_a_first_score_that_is_no_number_any_more_is_told_at_once() -> None:
    course = Course()
    course.begin({"auc": 0.5})
    assert [one.kind for one in alerts(course, scored(float("nan"), name="auc"))] == [Kind.DIVERGENCE]
    course = Course()
    course.begin({"auc": 0.5, "accuracy": 0.5})
    assert [one.statistic for one in alerts(course, scored(0.5))] == ["auc"]  # a task leaves it out
    assert alerts(Course(), [RoundFact(round=1)]) == []


def test_steps_that_explode_are_the_operators_to_know() -> None:
    lengths = [1.0, 1.2, 0.9, 1.0, 1.1, 3, 20, 20, 20, 20, 20, 20]
    found = alerts(Course(), [RoundFact(round=n, step_norm=one) for n, one in enumerate(lengths, start=1)])
    assert [(one.kind, one.round, one.names_party) for one in found] == [(Kind.STEP_NORM, 11, True)]
    assert alerts(Course(), [RoundFact(round=n, step_norm=one) for n, one in enumerate([9, 5, 3, 1, 1] * 4)]) == []
    assert len(alerts(Course(), [RoundFact(round=1, step_norm=float("inf"))])) == 1


@pytest.mark.parametrize(
    ("name", "value", "start", "task", "stated", "wanted"),
    [("auc", 0.51, 0.7, {}, {}, 1), ("auc", 0.55, 0.5, {}, {}, 0),  # a half, whatever it began with
     ("accuracy", 0.56, 0.4, {"accuracy": 0.55}, {}, 1), ("accuracy", 0.6, 0.4, {"accuracy": 0.55}, {}, 0),
     ("accuracy", 0.6, 0.4, {"accuracy": 0.55}, {"accuracy": 0.59}, 1),  # the operator's level comes first
     ("accuracy", 0.11, 0.1, {}, {}, 1), ("accuracy", 0.9, 0.1, {}, {}, 0),  # else the start's
     ("loss", 2.3, 2.3, {}, {}, 1), ("loss", 0.5, 2.3, {}, {}, 0), ("distance", 9.0, 1.0, {}, {}, 0)],
)  # fmt: skip
def test_a_finished_model_is_held_against_chance(
    name: str, value: float, start: float, task: dict[str, float], stated: dict[str, float], wanted: int
) -> None:
    course = Course(Thresholds(chance=stated))
    course.begin({name: start}, task)
    assert alerts(course, scored(value, name=name)) == []
    assert [one.kind for one in course.end("finished") if one.severity > Severity.NOTICE] == [Kind.CHANCE] * wanted


def test_a_healthy_run_has_notices_and_no_alert() -> None:
    course = Course(run="r", parties=10)
    course.begin({"accuracy": 0.5})
    rounds = [RoundFact(round=n, asked=10, kept=PARTIES, metrics={"accuracy": 0.5 + n / 50}) for n in range(1, 20)]
    assert alerts(course, rounds) == []
    ends = course.end("finished")
    assert [(one.kind, one.severity) for one in ends] == [(Kind.RUN_ENDED, Severity.NOTICE)]
    assert [one.severity for one in course.end("too-few-parties", reason="2 of 4")] == [Severity.CRITICAL]
    assert [one.severity for one in course.end("interrupted")] == [Severity.NOTICE]


def test_a_finding_is_a_measurement_and_no_verdict() -> None:
    found = finding(
        rule="direction", statistic="cosine", value=-0.8, threshold=-0.2, subject="Basel", round=3, run="r",
        false_positive_rate=0.01, evidence="ab" * 32, time="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    assert found.kind is Kind.FINDING and found.evidence == "ab" * 32 and found.time.startswith("2026-01-01")
    assert "no verdict" in found.sentence and "malicious" not in found.sentence


@pytest.mark.parametrize(
    "wrong",
    [{"budget": 0.0}, {"budget": 1.5}, {"window": 0}, {"honest_rejections": 0.95}, {"false_alarms": 1.0},
     {"margin": -0.1}, {"growth": 0}, {"chance": {"auc": float("nan")}}, {"chance": 3}, {"in_a_row": 1.5}],
)  # fmt: skip
def test_a_threshold_that_means_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        Thresholds(**wrong)
