"""Every broken trainer is caught, by the test that should see it; the correct one never is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from learning.mutants.catalogue import MUTANTS, UNSEEN
from learning.mutants.honest import Trainer
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.selfcheck import TESTS, CheckReport, one_step, run_selfcheck

ASKED_FOR = {
    "batch clip",
    "noise on the mean",
    "Laplace after L2 clip",
    "shuffled batches",
    "fixed batches",
    "actual-size division",
    "per-layer without root L",
    "BatchNorm",
    "microbatch-mean clip",
    "reused seed",
    "5 % less noise",
    "NaN leak",
    "skipped empty steps",
    "leaked loss",
}
# What the short check leaves to the long one: restarts, other outputs, and sums that are private but wrong.
NOT_IN_ONE_STEP = {"T6", "T9", "T10", "T11"}
# What shows only in as many draws, releases or rows as the long check looks at.
NEEDS_MANY_DRAWS = {
    "truncated batches",
    "rate drifts",
    "two rates by turns",
    "two halves by turns",
    "a tenth of the coins of three draws ago",
    "importance of ten per cent",
    "with replacement, then unique",
    "last quarter of the data 20 % less",
    "one pair shares a coin",
    "first record twice, last never",
    "noise of less rank",
    "one record missing by turns",
    "neighbours never together",
    "batches repeat after 64",
    "pairs clipped in batches above 80",
    "half the noise returns after 30 steps",
    "a tenth returns, turned, after 3 steps",
    "the same noise after 40 steps",
    "antithetic at lag 100",
    "seed of 16 bits",
    "clamped at 3.5 σ",
    "clamped at 4 σ",
    "drawn again beyond 3 σ",
    "drawn again beyond 3.5 σ",
    "drawn in float32",
    "Student's noise",
    "noise off centre",
    "one coordinate off centre",
    "last layer 10 % short",
    "one coordinate 25 % short",
    "five coordinates 15 % short",
    "two widths by turns of coordinates",
    "two widths by turns of releases",
    "every seventh release short",
    "two widths of values",
    "two widths of releases",
    "noise that fades",
    "noise by the labels",
    "one part for all coordinates",
    "one pair of coordinates",
    "no noise along the sum",
}


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """T11 reads what changes in the temporary and the working folder, where other programs write too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def mutant(name: str, seed: int) -> Trainer:
    made = MUTANTS[name]()
    made.rng = randomness_for_tests(seed)
    return made


def row(report: CheckReport) -> str:
    marks = {finding.test: "F" if finding.failed else "·" for finding in report.findings}
    return "".join(f"{marks.get(test, ''):>4}" for test in TESTS)


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.some(10)
def test_a_mutant_is_caught_by_the_tests_that_should_see_it(name: str) -> None:
    broken = mutant(name, 1)
    report = run_selfcheck(broken, rng=randomness_for_tests(101), only=broken.caught_by, seconds=0.3)
    assert set(report.caught_by) == set(broken.caught_by), "\n".join(report.lines())


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.long
def test_a_mutant_is_caught_on_other_seeds_too(name: str) -> None:
    for seed in (2, 3, 4):
        broken = mutant(name, seed)
        report = run_selfcheck(broken, rng=randomness_for_tests(100 + seed), only=broken.caught_by, seconds=0.3)
        assert set(report.caught_by) == set(broken.caught_by), "\n".join(report.lines())


@pytest.mark.parametrize("name", UNSEEN)
def test_what_begins_later_or_repeats_more_seldom_than_the_check_looks_is_not_seen(name: str) -> None:
    """A fact about the check's reach, kept so that the page which says so stays true."""
    broken = UNSEEN[name]()
    broken.rng = randomness_for_tests(1)
    assert run_selfcheck(broken, rng=randomness_for_tests(101), only=("T3", "T4"), seconds=0.3).passed


@pytest.mark.parametrize(
    "name",
    sorted(name for name in set(MUTANTS) - NEEDS_MANY_DRAWS if not set(MUTANTS[name]().caught_by) & NOT_IN_ONE_STEP),
)
@pytest.mark.some(10)
def test_the_short_check_catches_what_a_model_or_an_engine_can_get_wrong(name: str) -> None:
    broken = mutant(name, 1)
    report = one_step(broken, rng=randomness_for_tests(100))
    assert set(broken.caught_by) <= set(report.caught_by), "\n".join(report.lines())


def asked_for_and_one_of_each_kind() -> list[str]:
    first: dict[tuple[str, ...], str] = {}
    for name in MUTANTS:
        first.setdefault(MUTANTS[name]().caught_by, name)
    return [name for name in MUTANTS if name in ASKED_FOR or name in first.values()]


@pytest.mark.slow
@pytest.mark.long
def test_in_a_whole_check_the_tests_that_should_accuse_do_and_the_correct_trainer_passes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prints rows of trainers, F for a test that failed; ``benchmarks/selfcheck.py`` prints all trainers.

    The attack takes its fewest releases, so that no clock decides what is drawn after it.
    """
    lines = [f"{'':<40}" + "".join(f"{test:>4}" for test in TESTS)]
    for name in ("honest", *asked_for_and_one_of_each_kind()):
        broken = mutant(name, 7) if name in MUTANTS else Trainer(rng=randomness_for_tests(7))
        report = run_selfcheck(broken, rng=randomness_for_tests(8), seconds=1e-6)
        lines.append(f"{name:<40}{row(report)}  {report.seconds:.1f} s")
        assert report.passed == (name == "honest"), name
        assert set(broken.caught_by) <= set(report.caught_by), name
    with capsys.disabled():
        print("", *lines, sep="\n")


def test_a_rate_four_per_cent_short_is_seen_with_room_to_spare_on_every_seed() -> None:
    """Draws with replacement, each record once: nothing but the count of all records shows it."""
    for seed in range(10, 18):
        broken = mutant("with replacement, then unique", seed)
        (finding,) = run_selfcheck(broken, rng=randomness_for_tests(100 + seed), only=("T4",)).findings
        assert finding.threshold is not None
        assert finding.statistic < 1e-6 * finding.threshold, finding.lesson


def test_the_correct_trainer_passes_and_its_p_values_are_in_order() -> None:
    report = run_selfcheck(Trainer(rng=randomness_for_tests(0)), rng=randomness_for_tests(50), seconds=0.2)
    assert report.passed, "\n".join(report.lines())
    assert min(finding.p_value for finding in report.findings if finding.p_value is not None) > 1e-4


@pytest.mark.slow
@pytest.mark.long
def test_the_correct_trainer_passes_on_a_hundred_seeds() -> None:
    for seed in range(100):
        report = run_selfcheck(
            Trainer(rng=randomness_for_tests(seed)), rng=randomness_for_tests(seed + 500), seconds=0.2
        )
        assert report.passed, "\n".join(report.lines())


def test_every_mistake_that_was_asked_for_is_kept() -> None:
    assert set(MUTANTS) >= ASKED_FOR
    assert all(MUTANTS[name]().caught_by and MUTANTS[name]().name == name for name in MUTANTS)


def test_every_test_is_needed() -> None:
    """T6 sees what others see as well; each of the others has a mutant that must be caught by it alone."""
    alone = {MUTANTS[name]().caught_by[0] for name in MUTANTS if len(MUTANTS[name]().caught_by) == 1}
    assert alone == set(TESTS) - {"T6"}
