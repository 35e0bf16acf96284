"""Make ``accounting.csv``: what four libraries and a slow referee say about some 240 Poisson-sampled Gaussian runs.

    nice -n 10 python tests/golden/make_accounting.py

Rows are appended as they come and never computed twice, so the script can be stopped and started again; delete the
file to start afresh. Every library call runs in a process of its own with a time and a memory limit. Where a library
fails, its field stays empty and ``notes`` says why: no number here was made up.

All rows are add-or-remove-one. ``referee`` is the true ε (see tests/privacy/referee.py), off by at most
``referee_error``; its first method gave the number, the others confirm it. prv-accountant bounds the "remove"
direction only (its two numbers bracket ε there), dp-accounting's PLD is an upper bound for both directions.
"""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
import math
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402  one thread a process, which has to be said before numpy is loaded

FILE = Path(__file__).with_name("accounting.csv")
SEED = 20_250
RANDOM_ROWS = 225
TIME_LIMIT = 60.0  # seconds for a library's answer
REFEREE_TIME_LIMIT = 240.0
MEMORY_LIMIT = 6 * 2**30
PROCESSES = 2
MOST_POINTS = 3e6  # of a library's lattice; a coarser one is asked for above

COLUMNS = [
    "name", "sigma", "rate", "steps", "delta",
    "referee", "referee_error", "referee_direction", "referee_method",
    "prv_lower", "prv_upper", "prv_eps_error", "pld_upper", "pld_interval", "opacus_rdp", "google_rdp", "notes",
]  # fmt: skip

Setting = tuple[float, float, int, float]

NAMED: dict[str, Setting] = {
    "ten rounds of 100 steps, round 1": (1.0, 0.1, 100, 1e-5),
    "ten rounds of 100 steps, round 2": (1.0, 0.1, 200, 1e-5),
    "ten rounds of 100 steps, round 3": (1.0, 0.1, 300, 1e-5),
    "ten rounds of 100 steps, round 4": (1.0, 0.1, 400, 1e-5),
    "ten rounds of 100 steps, round 5": (1.0, 0.1, 500, 1e-5),
    "ten rounds of 100 steps, round 10": (1.0, 0.1, 1000, 1e-5),
    "client level, one round": (0.5, 0.8, 1, 1e-5),
    "client level, ten rounds": (0.5, 0.8, 10, 1e-5),
    "full batches": (4.0, 1.0, 50, 1e-5),
    "fraud, sigma 1.2": (1.2, 0.0032, 31_200, 1e-5),
    "fraud, sigma 1.0": (1.0, 0.0032, 31_200, 1e-5),
    "fraud, sigma 0.5": (0.5, 0.0032, 31_200, 1e-5),
    "fraud, sigma 5.0": (5.0, 0.0032, 31_200, 1e-5),
    "fraud, clipped per batch": (0.6, 0.0032, 31_200, 1e-5),
    "long run": (1.0, 0.01, 10_000, 1e-5),
    "federated": (0.8, 0.01, 1000, 1e-6),
    "calibrated to 8": (2.051, 0.1, 1000, 1e-5),
    "calibrated to 1": (2.231, 0.0032, 31_200, 1e-5),
    "calibrated to 0.1": (21.28, 0.0032, 31_200, 1e-6),
    "calibrated to 10": (0.607, 0.0032, 31_200, 1e-4),
    "calibrated to 3": (1.56497, 0.01, 10_000, 1e-5),
    "one step": (1.0, 0.1, 1, 1e-5),
    "two steps": (1.0, 0.1, 2, 1e-5),
    "tiny delta": (1.0, 0.01, 1000, 1e-30),
}


def settings() -> list[tuple[str, Setting]]:
    """The named rows, then the random ones: σ .5–10, q 1e-4–1, T 1–1e5 and δ 1e-10–1e-3, all log-uniform."""
    rng = np.random.default_rng(SEED)
    rows = list(NAMED.items())
    for k in range(RANDOM_ROWS):
        sigma, rate, steps, delta = np.exp(rng.uniform(np.log([0.5, 1e-4, 1, 1e-10]), np.log([10, 1, 1e5, 1e-3])))
        if rng.random() < 0.1:
            rate = 1.0
        short = float(f"{sigma:.4g}"), float(f"{rate:.4g}"), round(steps), float(f"{delta:.3g}")
        rows.append((f"random {k + 1}", short))
    return rows


# ----------------------------------------------------------------------------- what runs in the workers


def referee(sigma: float, rate: float, steps: int, delta: float) -> tuple[float, float, str, str]:
    sys.path.insert(0, str(FILE.parents[1]))
    from privacy.referee import true_epsilon

    truth = true_epsilon(sigma, rate, steps, delta)
    return truth.epsilon, truth.error, truth.direction, truth.method


def prv(sigma: float, rate: float, steps: int, delta: float, eps_error: float) -> tuple[float, float]:
    from prv_accountant import GaussianMechanism, PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = GaussianMechanism(sigma) if rate == 1 else PoissonSubsampledGaussianMechanism(rate, sigma)
    accountant = PRVAccountant(
        prvs=[mechanism], max_self_compositions=[steps], eps_error=eps_error, delta_error=delta / 1000
    )
    lower, _, upper = accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])
    return float(lower), float(upper)


def pld(sigma: float, rate: float, steps: int, delta: float, interval: float) -> float:
    from dp_accounting.pld import privacy_loss_distribution

    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=interval, sampling_prob=rate, use_connect_dots=True
    )
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def opacus_rdp(sigma: float, rate: float, steps: int, delta: float) -> float:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(sigma, rate, steps)]
    return float(accountant.get_epsilon(delta=delta))


def google_rdp(sigma: float, rate: float, steps: int, delta: float) -> float:
    import dp_accounting

    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    accountant = dp_accounting.rdp.RdpAccountant().compose(event, steps)
    return float(accountant.get_epsilon(delta))


CALLS: dict[str, Callable[..., Any]] = {
    "referee": referee, "prv": prv, "pld": pld, "opacus_rdp": opacus_rdp, "google_rdp": google_rdp,
}  # fmt: skip


def serve(pipe: multiprocessing.connection.Connection) -> None:
    """A worker: answers (call, arguments) with ("ok", result) or ("failed", why)."""
    import logging
    import warnings

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:  # nobody asks any more
            return
        try:
            pipe.send(("ok", CALLS[name](*arguments)))
        except MemoryError:
            pipe.send(("failed", "out of memory"))
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {str(error)[:90]}".replace("\n", " ")))


class Worker:
    """A process that is ended and replaced when a call takes too long."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def call(self, name: str, arguments: tuple[Any, ...], limit: float) -> tuple[Any, str]:
        """(result, "") or (None, why not)."""
        self.pipe.send((name, arguments))
        try:
            if self.pipe.poll(limit):
                status, answer = self.pipe.recv()
                return (answer, "") if status == "ok" else (None, answer)
            problem = f"over {limit:.0f} s"
        except EOFError:
            problem = "process died"
        self.process.kill()
        self.process.join()
        self.start()
        return None, problem


# ------------------------------------------------------------------------------------------- the rows


def pld_interval(sigma: float, rate: float, epsilon: float) -> float:
    """1e-4, finer for small ε (as far as the losses of one step allow), coarser for huge ones."""
    u = (1 + 20 * sigma) / (2 * sigma**2)
    reach = math.log1p(rate * math.expm1(u)) if u < 500 else u + math.log(rate)
    return float(f"{max(min(1e-4, epsilon / 5000), reach / MOST_POINTS, epsilon / MOST_POINTS, 1e-8):.1e}")


def prv_error(steps: int, delta: float, epsilon: float) -> float:
    """0.01, finer for small ε and at most 1 % of a large one, as far as the lattice stays affordable."""
    points_times_error = 2 * (1.1 * epsilon + 3) * math.sqrt(steps / 2 * math.log(12_000 / delta))
    error = max(min(0.01, max(epsilon, 1e-4) / 50), points_times_error / MOST_POINTS)
    return float(f"{error:.1e}")


def make_row(worker: Worker, name: str, setting: Setting) -> dict[str, Any]:
    sigma, rate, steps, delta = setting
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row.update(name=name, sigma=sigma, rate=rate, steps=steps, delta=delta)
    notes: list[str] = []

    def ask(call: str, *more: float, limit: float = TIME_LIMIT) -> Any:
        answer, problem = worker.call(call, (*setting, *more), limit)
        if problem:
            notes.append(f"{call}: {problem}")
        return answer

    row["opacus_rdp"], row["google_rdp"] = ask("opacus_rdp"), ask("google_rdp")
    truth = ask("referee", limit=REFEREE_TIME_LIMIT)
    if truth is not None:
        row["referee"], row["referee_error"], row["referee_direction"], row["referee_method"] = truth
    guess = truth[0] if truth is not None else max(row["opacus_rdp"] or 1.0, 0.0)
    row["pld_interval"] = pld_interval(sigma, rate, guess)
    row["pld_upper"] = ask("pld", row["pld_interval"])
    row["prv_eps_error"] = prv_error(steps, delta, guess)
    if (bounds := ask("prv", row["prv_eps_error"])) is not None:
        row["prv_lower"], row["prv_upper"] = bounds
    for column in ("prv_lower", "prv_upper", "pld_upper", "opacus_rdp", "google_rdp"):
        if isinstance(row[column], float) and not math.isfinite(row[column]):
            notes.append(f"{column}: returned {row[column]}")
            row[column] = ""
    row["notes"] = "; ".join(notes)
    return {key: "" if value is None else value for key, value in row.items()}


def with_remarks(row: dict[str, Any]) -> dict[str, Any]:
    """The row, with a note for each library whose bound contradicts the truth."""
    if row["referee"] == "":
        return row
    truth, error, remarks = float(row["referee"]), float(row["referee_error"]), []
    lower, upper = truth - error - 1e-12 * max(1, truth), truth + error + 1e-12 * max(1, truth)
    for column in ("pld_upper", "opacus_rdp", "google_rdp"):
        if row[column] != "" and max(0.0, float(row[column])) < lower:
            remarks.append(f"{column} is no upper bound: {float(row[column]) - truth:.1e}")
    if row["prv_lower"] != "" and float(row["prv_lower"]) > upper:
        remarks.append(f"prv_lower is no lower bound: {float(row['prv_lower']) - truth:+.1e}")
    if row["prv_upper"] != "" and row["referee_direction"] == "remove" and max(0.0, float(row["prv_upper"])) < lower:
        remarks.append(f"prv_upper is no upper bound: {float(row['prv_upper']) - truth:.1e}")
    kept = [note for note in row["notes"].split("; ") if note and " is no " not in note]
    return {**row, "notes": "; ".join(kept + remarks)}


def key_of(row: dict[str, Any]) -> Setting:
    return float(row["sigma"]), float(row["rate"]), int(row["steps"]), float(row["delta"])


def read() -> dict[Setting, dict[str, Any]]:
    if not FILE.exists():
        return {}
    with FILE.open(encoding="utf-8", newline="") as lines:
        return {key_of(row): row for row in csv.DictReader(line for line in lines if not line.startswith("#"))}


def write(rows: list[dict[str, Any]]) -> None:
    versions = ", ".join(
        f"{package} {importlib.metadata.version(package)}"
        for package in ("dp-accounting", "prv-accountant", "opacus", "mpmath", "numpy", "scipy")
    )
    with FILE.open("w", encoding="utf-8", newline="") as out:
        out.write("# Poisson-sampled Gaussian, add-or-remove-one; made by make_accounting.py, which explains them\n")
        today = datetime.datetime.now(datetime.UTC).date()
        out.write(f"# {today}; Python {sys.version.split()[0]}, {versions}; seed {SEED}\n")
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(with_remarks, rows))


def main() -> None:
    wanted = settings()
    done = {setting: row for setting, row in read().items() if row["referee"]}  # no verdict yet: try again
    write(list(done.values()))
    lock, local = threading.Lock(), threading.local()
    began = time.monotonic()

    def work(item: tuple[str, Setting]) -> None:
        name, setting = item
        if setting in done:
            return
        if not hasattr(local, "worker"):
            local.worker = Worker()
        start = time.monotonic()
        row = make_row(local.worker, name, setting)
        with lock, FILE.open("a", encoding="utf-8", newline="") as out:
            csv.DictWriter(out, COLUMNS, lineterminator="\n").writerow(row)
            done[setting] = row
            took, total = time.monotonic() - start, time.monotonic() - began
            print(f"{total:6.0f} s  {name:36} {took:5.1f} s  ε = {row['referee']:<20}  {row['notes']}", flush=True)

    with ThreadPoolExecutor(PROCESSES) as pool:
        list(pool.map(work, wanted))
    write([done[setting] for _, setting in wanted])


if __name__ == "__main__":
    main()
