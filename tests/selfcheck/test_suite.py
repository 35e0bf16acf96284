"""The self-check on steps in numpy: correct ones pass whatever the seed, broken ones are named."""

from __future__ import annotations

import dataclasses
import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import randomness_for_tests, system_randomness
from quietsum.privacy.events import PrivacyEvent, PureDP
from quietsum.selfcheck import (
    TESTS,
    Batch,
    CheckFinding,
    CheckReport,
    CheckVerdict,
    Law,
    TrainerOutput,
    one_step,
    run_selfcheck,
)
from quietsum.selfcheck.probes import draws as sampler_tests, noise as noise_tests, replay as replay_tests
from quietsum.selfcheck.statistics import FALSE_ALARM
from selfcheck.logistic import Floats, LogisticStep, clipped, gradients

STATISTICAL = ("T3", "T4", "T6", "T10", "T11")


def seeded(seed: int, **changes: Any) -> LogisticStep:
    """A correct step with reproducible noise; its settings vary with the seed."""
    settings: dict[str, Any] = {
        "law": (Law.GAUSSIAN, Law.LAPLACE)[seed % 2],
        "features": (4, 9, 17)[seed % 3],
        "rate": (0.03, 0.2, 0.6, 1.0)[seed % 4],
        "population": (7, 60, 400)[seed % 3],
        "noise_multiplier": (0.5, 1.1, 4.0)[seed % 3],
    }
    return LogisticStep(rng=randomness_for_tests(seed), **{**settings, **changes})


def checked(step: Any, seed: int = 1, **how: Any) -> CheckReport:
    return run_selfcheck(step, rng=randomness_for_tests(10_000 + seed), **how)


# ------------------------------------------------------------------------------------------- no false alarm


@pytest.mark.long
def test_a_correct_step_passes_the_short_check_on_a_hundred_seeds() -> None:
    for seed in range(100):
        report = one_step(seeded(seed), rng=randomness_for_tests(5000 + seed))
        assert report.passed, "\n".join(report.lines())


def test_a_correct_step_passes_the_whole_check_and_no_p_value_is_strange() -> None:
    """Passing is a weak fact at a threshold of 1e-8; p-values that are all in order are a strong one."""
    smallest = 1.0
    for seed in range(12):
        report = checked(seeded(seed), seed, seconds=0.2)
        assert report.passed, "\n".join(report.lines())
        assert [finding.test for finding in report.findings] == list(TESTS)
        smallest = min([smallest, *(f.p_value for f in report.findings if f.p_value is not None)])
    assert smallest > 1e-4  # 12 · 5 values: a correct check has one below it with probability 0.6 %


@pytest.mark.slow
@pytest.mark.long
def test_a_correct_step_passes_the_whole_check_on_a_hundred_seeds() -> None:
    for seed in range(100):
        report = checked(seeded(seed), seed, seconds=0.2)
        assert report.passed, "\n".join(report.lines())


def test_a_correct_step_passes_with_randomness_of_the_operating_system() -> None:
    assert run_selfcheck(LogisticStep(), seconds=0.2).passed
    assert one_step(LogisticStep(rng=system_randomness())).passed


def test_thresholds_are_shared_among_all_statistics_of_a_test() -> None:
    """Each test's level, divided among as many statistics as there are at most, and five tests below 1e-6 together."""
    seen: dict[str, int] = {}
    for module, name in ((noise_tests, "_noise_finding"), (sampler_tests, "_finding")):
        made = getattr(module, name)

        def spy(*args: Any, made: Any = made, name: str = name) -> CheckFinding:
            seen[name] = max(seen.get(name, 0), args[-1] if isinstance(args[-1], int) else 1)
            return made(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, spy)
            report = checked(seeded(1), only=("T3", "T4"))
        thresholds = {finding.test: finding.threshold for finding in report.findings}
    assert seen["_noise_finding"] * thresholds["T3"] <= FALSE_ALARM
    assert seen["_finding"] * thresholds["T4"] <= FALSE_ALARM
    assert len(STATISTICAL) * FALSE_ALARM <= 1e-6


# ------------------------------------------------------------------------------------------- broken steps


def mean_clip(batch: Batch, norm: float, law: Law) -> Floats:
    each = gradients(batch)
    if not len(each):
        return np.zeros(batch[0].shape[1])
    mean = np.nan_to_num(each.mean(axis=0))
    return mean * min(1.0, norm / max(float(np.linalg.norm(mean, ord=law.order)), 1e-12))


def no_clip(batch: Batch, norm: float, law: Law) -> Floats:
    return np.nan_to_num(gradients(batch), posinf=0.0, neginf=0.0).sum(axis=0)


def slightly_long(batch: Batch, norm: float, law: Law) -> Floats:
    return clipped(batch, norm * 1.002, law)


def crash_on_empty(batch: Batch, norm: float, law: Law) -> Floats:
    if not len(batch[0]):
        raise ZeroDivisionError("the mean of nobody")
    return clipped(batch, norm, law)


def restless(batch: Batch, norm: float, law: Law) -> Floats:
    keep = np.random.default_rng().random(len(batch[0])) < 0.5  # dropout, say
    return clipped(tuple(part[keep] for part in batch), norm, law)


@pytest.mark.parametrize(
    ("changes", "test"),
    [
        ({"scale": 0.95}, "T3"),
        ({"scale": 1.05}, "T3"),
        ({"scale": 0.0}, "T3"),
        ({"total": mean_clip}, "T1"),
        ({"total": mean_clip}, "T2"),
        ({"total": no_clip}, "T1"),
        ({"total": no_clip}, "T6"),
        ({"total": slightly_long}, "T1"),
        ({"total": crash_on_empty}, "T5"),
        ({"total": restless}, "T1"),
        ({"says": lambda batch, release: {"rows": float(len(batch[0]))}}, "T11"),
        ({"says": lambda batch, release: {"mean": float(np.nan_to_num(batch[0]).mean())}}, "T11"),
    ],
)
@pytest.mark.parametrize("law", list(Law))
@pytest.mark.some(12)
def test_a_broken_step_is_caught(law: Law, changes: Mapping[str, Any], test: str) -> None:
    for seed in (1, 2):
        step = LogisticStep(rng=randomness_for_tests(seed), law=law, features=8, **changes)
        assert test in checked(step, seed, only=(test,), seconds=0.5).caught_by


def warns(batch: Batch, release: Floats) -> Mapping[str, float]:
    if len(batch[0]) > 3:
        warnings.warn("a large batch", stacklevel=1)
    return {}


def logs(batch: Batch, release: Floats) -> Mapping[str, float]:
    logging.getLogger("trainer").info("batch of %d", len(batch[0]))
    return {}


def prints_in_words(batch: Batch, release: Floats) -> Mapping[str, float]:
    print("an odd batch" if len(batch[0]) % 2 else "an even batch!")
    return {}


@pytest.mark.parametrize("says", [warns, logs, prints_in_words])
def test_what_is_warned_logged_or_printed_counts_as_said(says: Callable[[Batch, Floats], Mapping[str, float]]) -> None:
    logging.getLogger("trainer").setLevel(logging.NOTSET)
    assert checked(LogisticStep(rng=randomness_for_tests(1), says=says), only=("T11",)).caught_by == ("T11",)


@pytest.mark.parametrize("noise_multiplier", [0.4, 1.1, 3.0])
@pytest.mark.some(2)
def test_functions_of_the_noisy_sum_may_be_said(noise_multiplier: float) -> None:
    """The norm of a release, its sign in a word, a constant: none of them tells more than the release."""

    def says(batch: Batch, release: Floats) -> Mapping[str, float]:
        print("up" if release[0] > 0 else "downwards", f"{release[1]:.3f}")
        return {"norm": float(np.linalg.norm(release)), "learning rate": 0.1, "first": float(release[0])}

    for seed in range(3):
        step = LogisticStep(rng=randomness_for_tests(seed), says=says, noise_multiplier=noise_multiplier)
        assert checked(step, seed, only=("T11",)).passed


def test_a_step_that_raises_is_a_finding_and_not_a_crash() -> None:
    class Raises(LogisticStep):
        def noise(self) -> Floats:
            raise ZeroDivisionError("no noise today")

    report = checked(Raises(rng=randomness_for_tests(1)))
    assert {"T3", "T4", "T6", "T10"} <= set(report.caught_by)
    assert "ZeroDivisionError" in next(finding.lesson for finding in report.failures if finding.test == "T3")


def test_wider_noise_is_forgiven_only_as_far_as_it_is_announced() -> None:
    assert checked(LogisticStep(rng=randomness_for_tests(1), scale=1.2, allowance=0.2), only=("T3", "T10")).passed
    assert not checked(LogisticStep(rng=randomness_for_tests(1), scale=1.2, allowance=0.1), only=("T3",)).passed
    assert not checked(LogisticStep(rng=randomness_for_tests(1), scale=0.95, allowance=0.2), only=("T3",)).passed


def test_an_event_that_the_step_does_not_deserve_is_seen() -> None:
    class Claims(LogisticStep):
        def event(self) -> PrivacyEvent:
            return dataclasses.replace(super().event(), event=PureDP(epsilon=0.1))  # type: ignore[type-var]

    assert checked(Claims(rng=randomness_for_tests(1)), only=("T8",)).caught_by == ("T8",)


def test_one_release_for_two_batches_is_a_missing_step() -> None:
    class Merges(LogisticStep):
        def run(self, batches: Any) -> TrainerOutput:
            outcome = super().run(batches)
            return dataclasses.replace(outcome, releases=outcome.releases[::2])

    assert "T4" in checked(Merges(rng=randomness_for_tests(1)), only=("T4",)).caught_by


def test_steps_that_are_not_charged_are_seen() -> None:
    class Forgets(LogisticStep):
        def run(self, batches: Any) -> TrainerOutput:
            return dataclasses.replace(super().run(batches), charged=0)

    assert checked(Forgets(rng=randomness_for_tests(1)), only=("T4", "T10")).caught_by == ("T4", "T10")


# --------------------------------------------------------------------------------------------- the report


def test_a_report_is_frozen_and_goes_through_json() -> None:
    report = checked(LogisticStep(rng=randomness_for_tests(1), scale=0.5), only=("T3", "T7"))
    assert json.loads(json.dumps(report.to_dict()))["passed"] is False
    assert report.to_dict()["findings"][0]["verdict"] == "fail"
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.seconds = 0.0  # type: ignore[misc]


def test_lines_are_narrow_and_every_failure_teaches() -> None:
    step = LogisticStep(rng=randomness_for_tests(1), scale=0.5, total=mean_clip, says=warns)
    report = checked(step)
    assert len(report.failures) >= 4
    assert all(len(line) <= 80 for line in report.lines())
    for finding in report.failures:
        assert finding.verdict is CheckVerdict.FAIL
        assert len(finding.lesson.split(". ")) >= 2, "what is wrong, and what to do"


@pytest.mark.parametrize(
    "changes",
    [
        {"sensitivity": 0.0},
        {"sensitivity": float("nan")},
        {"noise_multiplier": -1.0},
        {"rate": 0.0},
        {"rate": 1.5},
        {"population": 0},
    ],
)
def test_a_claim_that_is_none_is_refused(changes: Mapping[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        run_selfcheck(LogisticStep(rng=randomness_for_tests(1), **changes))


def test_unknown_tests_are_refused_by_name() -> None:
    with pytest.raises(InvalidParameter, match="T12"):
        checked(seeded(1), only=("T12",))


def test_the_self_check_needs_neither_torch_nor_scipy_stats() -> None:
    code = "import sys, quietsum.selfcheck, quietsum.learning.checks.numpy_step; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "opacus", "scipy.stats", "scipy.optimize"} & set(done.stdout.split())


# ----------------------------------------------------------------------------------------------- large models


class Counted:
    """A step that counts how often its sum is asked for."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.asked = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deterministic(self, batch: Batch) -> Floats:
        self.asked += 1
        return np.asarray(self._inner.deterministic(batch))


def test_the_work_before_training_is_settled_by_the_size_and_is_less_for_large_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(seed: int) -> int:
        step = Counted(seeded(seed))
        assert one_step(step, rng=randomness_for_tests(seed)).passed
        return step.asked

    small = [work(seed) for seed in range(6)]
    monkeypatch.setattr(replay_tests, "_LARGE", 1)
    monkeypatch.setattr(replay_tests, "_FOLDED", 2)
    large = [work(seed) for seed in range(6)]
    assert max(large) <= 150 < min(small) <= max(small) <= 180


def test_a_long_term_is_folded_up_so_that_angles_stay_what_they_were_nearly() -> None:
    step, rng = seeded(0, features=17), randomness_for_tests(3)
    search = replay_tests._Search(step, rng)
    generator = np.random.default_rng(0)
    one = generator.standard_normal(3 * replay_tests._FOLDED + 77)
    other = one * 0.5 + generator.standard_normal(one.size)
    terms = {}
    for name, term in (("one", one), ("other", other), ("broken", np.full(one.size, np.nan))):
        monkey = pytest.MonkeyPatch()
        monkey.setattr(type(step), "deterministic", lambda self, batch, term=term: term)
        terms[name] = search.term((np.zeros((1, 1)),))
        monkey.undo()
    assert terms["one"].size == replay_tests._FOLDED and not terms["broken"].any()
    true = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    seen = terms["one"] @ terms["other"] / np.linalg.norm(terms["one"]) / np.linalg.norm(terms["other"])
    assert seen == pytest.approx(true, abs=0.03)  # seven standard errors


@pytest.mark.parametrize("size", [10, 300_000])
def test_places_that_are_looked_at_are_distinct_in_order_and_within(size: int) -> None:
    places = noise_tests._some(size, randomness_for_tests(1))
    assert np.all(np.diff(places) > 0) and places[0] >= 0 and places[-1] < size
    assert len(places) == 10 if size == 10 else 40_000 < len(places) <= 50_000
