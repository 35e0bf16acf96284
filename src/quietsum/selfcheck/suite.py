"""All tests in a row: :func:`run_selfcheck` in seconds, :func:`one_step` before each training of an unknown model."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.selfcheck.probes.attack import measure_attack
from quietsum.selfcheck.probes.claims import check_accounting, public_constants
from quietsum.selfcheck.probes.draws import find_population, sampling
from quietsum.selfcheck.probes.hostile import hostile_rows
from quietsum.selfcheck.probes.noise import noise_law
from quietsum.selfcheck.probes.outputs import compare_outputs
from quietsum.selfcheck.probes.replay import WorstPair, equivalence, sensitivity, superposition
from quietsum.selfcheck.probes.restart import fresh_after_restart
from quietsum.selfcheck.protocol import StepUnderTest
from quietsum.selfcheck.report import CheckFinding, CheckReport, CheckVerdict
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["TESTS", "one_step", "run_selfcheck"]

TESTS = {
    "T1": "sensitivity",
    "T2": "superposition",
    "T3": "noise",
    "T4": "sampling and steps",
    "T5": "hostile rows",
    "T6": "attack",
    "T7": "public constants",
    "T8": "accounting",
    "T9": "equivalence",
    "T10": "restart",
    "T11": "other outputs",
}
"""The checks by their number, and what each looks at."""


def run_selfcheck(
    step: StepUnderTest,
    *,
    rng: RandomSource | None = None,
    seconds: float = 2.0,
    only: Collection[str] = tuple(TESTS),
) -> CheckReport:
    """Is this step what it claims to be? All eleven tests, or ``only`` some ("T3", "T4").

    Guarantees: a step that is what it claims, and whose sum is a function of its batch and its weights up to rounding,
    fails with a probability below 1e-6: the levels of the five tests that involve chance add up to 5e-7. A step whose
    sum is not repeatable is refused by T1, which says so. No protected record is read. ``seconds`` is about how long
    the attack may take; how many releases that allows is settled before any of them is looked at.
    """
    rng = system_randomness() if rng is None else rng
    seconds = positive("seconds", seconds)
    unknown = sorted(set(only) - set(TESTS))
    if unknown or not only:
        raise InvalidParameter("only", unknown, "names no test", f"choose among {', '.join(TESTS)}")
    claim, population = _claim(step), find_population(step)
    first: dict[str, Any] = {}
    worst: list[WorstPair] = []

    def remember() -> None:  # what a generator that starts again would repeat
        first["before"] = [np.asarray(step.noise(), dtype=np.float64) for _ in range(16)]
        first["drawn"] = [np.asarray(step.sample(population)) for _ in range(16)]

    def run_attack() -> CheckFinding:
        if not worst:
            _replay(step, rng, 60, worst)
        return measure_attack(step, worst[0], releases=1500, seconds=seconds)

    def restart() -> CheckFinding:
        return fresh_after_restart(step, rng, population=population, **first)

    with contextlib.suppress(Exception):  # the tests will say what is wrong
        remember()
    return _report(
        step.name,
        claim,
        {
            "T1": lambda: _replay(step, rng, 60, worst),
            "T2": lambda: superposition(step, rng, few=False),
            "T3": lambda: noise_law(step, rng, draws=60_000, releases=24),
            "T4": lambda: sampling(step, rng, draws=int(min(1500, max(160, 2e6 / population)))),
            "T5": lambda: hostile_rows(step, rng),
            "T6": run_attack,
            "T7": lambda: public_constants(step),
            "T8": lambda: check_accounting(step),
            "T9": lambda: equivalence(step, rng, tries=4),
            "T10": restart,
            "T11": lambda: compare_outputs(step, rng),
        },
        only,
    )


def one_step(step: StepUnderTest, *, rng: RandomSource | None = None) -> CheckReport:
    """The tests that an unknown model needs, in some hundred evaluations: T1 to T5, T7 and T8, with less power.

    Guarantees: as :func:`run_selfcheck`. About ten of the evaluations are of the largest batch that training will
    draw. Noise is only known to within about a tenth of its scale.
    """
    rng = system_randomness() if rng is None else rng
    return _report(
        step.name,
        _claim(step),
        {
            "T1": lambda: _replay(step, rng, 12, []),
            "T2": lambda: superposition(step, rng, few=True),
            "T3": lambda: noise_law(step, rng, draws=12_000, releases=6),
            "T4": lambda: sampling(step, rng, draws=64),
            "T5": lambda: hostile_rows(step, rng, everywhere=(True,)),
            "T7": lambda: public_constants(step),
            "T8": lambda: check_accounting(step),
        },
        tuple(TESTS),
    )


def _replay(step: StepUnderTest, rng: RandomSource, tries: int, worst: list[WorstPair]) -> CheckFinding:
    finding, pair = sensitivity(step, rng, tries=tries)
    worst.append(pair)
    return finding


def _claim(step: StepUnderTest) -> dict[str, float]:
    return {
        "sensitivity": positive("sensitivity", step.sensitivity),
        "noise_multiplier": positive("noise_multiplier", step.noise_multiplier),
        "rate": step.rate if step.rate == 1 else open_probability("rate", step.rate),
        "population": float(whole_number("population", step.population, 1)),
    }


def _report(
    name: str, claim: dict[str, float], tests: Mapping[str, Callable[[], CheckFinding]], only: Collection[str]
) -> CheckReport:
    start = time.perf_counter()
    found = tuple(_ran(test, run) for test, run in tests.items() if test in only)
    return CheckReport(step=name, claim=claim, findings=found, seconds=time.perf_counter() - start)


def _ran(test: str, run: Callable[[], CheckFinding]) -> CheckFinding:
    """One test's finding. A step that raises on made-up rows is no step to train with."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return run()
    except Exception as error:  # whatever a model or an engine raises
        text = " ".join(str(error).split())[:200]
        lesson = f"The step raised {type(error).__name__} ({text}). A step answers every batch, an empty one too."
        return CheckFinding(test=test, name=TESTS[test], verdict=CheckVerdict.FAIL, lesson=lesson, statistic=np.inf)
