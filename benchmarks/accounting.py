"""How fast are the accountants? Ours beside Opacus, dp-accounting and prv-accountant, in one process, as ratios.

Every timing of ours starts cold: :func:`quietsum.privacy.cache_clear` forgets what was computed for mechanisms. Times
are CPU milliseconds of one thread, the median of several repetitions (one for what takes seconds). Each row prints the
ε it computed, so that speed is never bought with a different answer.

Run ``make bench``; ``--markdown`` prints the table of docs/benchmarks.md, ``--full`` also times what takes minutes.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import io
import logging
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable

import numpy as np
import torch
from dp_accounting import dp_event, mechanism_calibration
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.rdp import rdp_privacy_accountant
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant as MicrosoftAccountant

from quietsum import ExactAccountant, Gaussian, PldAccountant, PoissonSampled, RenyiAccountant
from quietsum.privacy import cache_clear
from quietsum.privacy.calibration import calibrate_noise

Round = tuple[float, float, int]  # noise multiplier, sample rate, steps


@dataclasses.dataclass(frozen=True)
class Timing:
    """One cell: who, how long, and the answer it gave."""

    who: str
    milliseconds: float
    answer: float
    what: str = ""


@dataclasses.dataclass(frozen=True)
class Row:
    """One question with everybody's timing, and what we set out to reach: (ours, of whom, at least this ratio)."""

    question: str
    timings: tuple[Timing, ...]
    targets: tuple[tuple[str, tuple[str, ...], float], ...]


def measure(who: str, work: Callable[[], float], *, repeat: int = 7, what: str = "") -> Timing:
    times = []
    for _ in range(repeat):
        cache_clear()
        start = time.process_time()
        answer = work()
        times.append(1000 * (time.process_time() - start))
    return Timing(who, statistics.median(times), float(answer), what)


# ----------------------------------------------------------------------------------- the contestants


Ours = type[ExactAccountant] | type[RenyiAccountant] | type[PldAccountant]


def ours(accountant: Ours, rounds: list[Round], delta: float) -> float:
    spent = accountant()
    for noise, rate, steps in rounds:
        spent.compose(PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)), steps)
    return spent.epsilon(delta=delta).epsilon


def ours_each_round(accountant: Ours, rounds: list[Round], delta: float) -> float:
    spent = accountant()
    epsilon = 0.0
    for noise, rate, steps in rounds:
        spent.compose(PoissonSampled(rate=rate, event=Gaussian(noise_multiplier=noise)), steps)
        epsilon = spent.epsilon(delta=delta).epsilon
    return epsilon


def opacus(kind: type[RDPAccountant] | type[PRVAccountant], rounds: list[Round], delta: float) -> float:
    accountant = kind()
    accountant.history = list(rounds)
    return accountant.get_epsilon(delta)


def google(accountant: object, rounds: Iterable[Round], delta: float) -> float:
    for noise, rate, steps in rounds:
        accountant.compose(_google_event(noise, rate), steps)  # type: ignore[attr-defined]
    return accountant.get_epsilon(delta)  # type: ignore[attr-defined]


def _google_event(noise: float, rate: float) -> dp_event.DpEvent:
    return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))


def microsoft(noise: float, rate: float, steps: int, delta: float) -> float:
    mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=noise, sampling_probability=rate)
    accountant = MicrosoftAccountant(
        prvs=mechanism, max_self_compositions=steps, eps_error=0.01, delta_error=delta / 1000
    )
    return accountant.compute_epsilon(delta=delta, num_self_compositions=steps)[2]


# -------------------------------------------------------------------------------------- the questions

PLD_PRV = ("Opacus PRV", "dp-accounting PLD", "prv-accountant")
RDP = ("Opacus RDP", "dp-accounting RDP")


def one_query(noise: float, rate: float, steps: int, delta: float) -> Row:
    rounds = [(noise, rate, steps)]
    timings = (
        measure("quietsum exact", lambda: ours(ExactAccountant, rounds, delta), repeat=25),
        measure("quietsum Rényi", lambda: ours(RenyiAccountant, rounds, delta), repeat=25),
        measure("quietsum PLD", lambda: ours(PldAccountant, rounds, delta), repeat=3),
        measure("Opacus RDP", lambda: opacus(RDPAccountant, rounds, delta)),
        measure("dp-accounting RDP", lambda: google(rdp_privacy_accountant.RdpAccountant(), rounds, delta)),
        measure("Opacus PRV", lambda: opacus(PRVAccountant, rounds, delta), repeat=3),
        measure("dp-accounting PLD", lambda: google(pld_privacy_accountant.PLDAccountant(), rounds, delta), repeat=3),
        measure("prv-accountant", lambda: microsoft(noise, rate, steps, delta), repeat=1),
    )
    question = f"one query: σ {noise:g}, q {rate:g}, {steps:,} steps, δ {delta:g}"
    return Row(question, timings, (("quietsum exact", PLD_PRV, 100.0), ("quietsum Rényi", RDP, 20.0)))


def _random_round(generator: np.random.Generator) -> Round:
    return generator.uniform(0.8, 2.0), generator.uniform(0.002, 0.02), int(generator.integers(5, 20))


def many_rounds(full: bool) -> Row:
    generator = np.random.default_rng(0)  # the same 1000 rounds every time
    rounds = [_random_round(generator) for _ in range(1000)]
    few, what = (rounds, "") if full else (rounds[:100], "100 of the rounds")
    google_rdp = rdp_privacy_accountant.RdpAccountant
    timings = (
        measure("quietsum exact", lambda: ours(ExactAccountant, rounds, 1e-5), repeat=3),
        measure("quietsum Rényi", lambda: ours(RenyiAccountant, rounds, 1e-5), repeat=3),
        measure("quietsum exact, 100", lambda: ours(ExactAccountant, few, 1e-5), repeat=3, what=what),
        measure("quietsum Rényi, 100", lambda: ours(RenyiAccountant, few, 1e-5), repeat=3, what=what),
        measure("Opacus RDP", lambda: opacus(RDPAccountant, few, 1e-5), repeat=1, what=what),
        measure("dp-accounting RDP", lambda: google(google_rdp(), few, 1e-5), repeat=1, what=what),
    )
    like = "quietsum Rényi" if full else "quietsum Rényi, 100"
    targets = (("quietsum exact", ("Opacus RDP",), 1.0), (like, RDP, 20.0))
    return Row("1000 different rounds, one query", timings, targets)


def calibration() -> Row:
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_rate": 0.01, "steps": 10_000}

    def google_calibrated() -> float:
        return mechanism_calibration.calibrate_dp_mechanism(
            rdp_privacy_accountant.RdpAccountant,
            lambda noise: dp_event.SelfComposedDpEvent(_google_event(noise, 0.01), 10_000),
            target_epsilon=3.0,
            target_delta=1e-5,
        )

    timings = (
        measure("quietsum exact", lambda: calibrate_noise(**target), repeat=15),
        measure("quietsum Rényi", lambda: calibrate_noise(**target, accounting="rdp"), repeat=15),
        measure("Opacus RDP", lambda: get_noise_multiplier(**target, accountant="rdp"), repeat=3),
        measure("dp-accounting RDP", google_calibrated, repeat=3),
    )
    targets = (("quietsum exact", ("Opacus RDP",), 10.0), ("quietsum Rényi", RDP, 20.0))
    return Row("calibrate σ: ε 3, δ 1e-05, q 0.01, 10,000 steps", timings, targets)


def every_round(full: bool) -> Row:
    generator = np.random.default_rng(0)
    kinds = [_random_round(generator) for _ in range(10)]
    rounds = [kinds[k % 10] for k in range(1000)]

    def google_each() -> float:
        accountant = rdp_privacy_accountant.RdpAccountant()
        epsilon = 0.0
        for noise, rate, steps in rounds:
            accountant.compose(_google_event(noise, rate), steps)
            epsilon = accountant.get_epsilon(1e-5)
        return epsilon

    def opacus_each(number: int) -> float:
        accountant = RDPAccountant()
        epsilon = 0.0
        for index in range(number):
            accountant.history.append(rounds[index])
            epsilon = accountant.get_epsilon(1e-5)
        return epsilon

    number = 100 if full else 30
    timings = (
        measure("quietsum exact", lambda: ours_each_round(ExactAccountant, rounds, 1e-5), repeat=3),
        measure("quietsum Rényi", lambda: ours_each_round(RenyiAccountant, rounds, 1e-5), repeat=3),
        measure("dp-accounting RDP", google_each, repeat=1),
        measure("Opacus RDP", lambda: opacus_each(number), repeat=1, what=f"the first {number} rounds only"),
    )
    targets = (("quietsum exact", ("dp-accounting RDP",), 50.0), ("quietsum Rényi", RDP, 20.0))
    return Row("ε after each of 1000 rounds, 10 settings", timings, targets)


# --------------------------------------------------------------------------------------- what is shown


def verdicts(row: Row) -> list[tuple[str, float, float]]:
    """(sentence, ratio reached, ratio wanted) for each target of a row; the fastest of the named peers counts."""
    by_name = {timing.who: timing for timing in row.timings}
    found = []
    for mine, peers, wanted in row.targets:
        fastest = min((by_name[peer] for peer in peers), key=lambda timing: timing.milliseconds)
        note = f" ({fastest.what})" if fastest.what and not by_name[mine].what else ""
        found.append((f"{mine} / {fastest.who}{note}", fastest.milliseconds / by_name[mine].milliseconds, wanted))
    return found


def show(rows: list[Row], markdown: bool) -> bool:
    met = True
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("quietsum", "numpy", "scipy", "opacus", "dp-accounting", "prv-accountant", "torch")
    )
    print(f"{datetime.date.today()}, Python {platform.python_version()}, one thread; {versions}\n")
    for row in rows:
        print(f"## {row.question}\n" if markdown else f"{row.question}")
        if markdown:
            print("| who | CPU ms | answer | |\n|---|---:|---:|---|")
        for timing in row.timings:
            if markdown:
                print(f"| {timing.who} | {timing.milliseconds:,.2f} | {timing.answer:.6g} | {timing.what} |")
            else:
                print(f"  {timing.who:22s} {timing.milliseconds:12,.2f} ms   {timing.answer:<12.6g} {timing.what}")
        if markdown:
            print()
        for sentence, ratio, wanted in verdicts(row):
            ok = ratio >= wanted
            met = met and ok
            text = f"{sentence}: {ratio:,.0f}× faster" if ratio >= 10 else f"{sentence}: {ratio:,.1f}× faster"
            print(f"{'* ' if markdown else '  → '}{text} (wanted {wanted:g}×: {'met' if ok else 'MISSED'})")
        print()
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/benchmarks.md")
    parser.add_argument("--full", action="store_true", help="also time what takes minutes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # orders that others' series leave out
    with contextlib.redirect_stderr(io.StringIO()):
        ours(ExactAccountant, [(2.0, 0.5, 100)], 1e-5)  # imports done before the clock starts
        ours(RenyiAccountant, [(2.0, 0.5, 100)], 1e-5)
        ours(PldAccountant, [(2.0, 0.5, 3)], 1e-5)
        rows = [
            one_query(1.0, 0.01, 10_000, 1e-5),
            one_query(1.0, 0.1, 1_000, 1e-5),
            one_query(1.2, 0.0032, 31_200, 1e-5),
            one_query(0.8, 0.01, 1_000, 1e-6),
            many_rounds(arguments.full),
            calibration(),
            every_round(arguments.full),
        ]
    if not show(rows, arguments.markdown):
        print("Some targets were missed on this machine; other work on it is a common reason.")


if __name__ == "__main__":
    main()
