"""Kaplan–Meier and log-rank of five sites at ε = 0.5: level, power and the error of the curve, beside two other ways.

    python benchmarks/survival.py
    python benchmarks/survival.py --permutations 10000 --repeats 1000

Three survival sets that lifelines ships are dealt out to five sites. Groups are dealt out at random, again and again,
and each way tests at 5 % whether they differ: how often it says so is its type-I error. For the power, 2,000 patients
with a hazard ratio of 2 between two arms. The error of a curve is the largest distance, over the grid, from that of
the same rows without noise.

* **without privacy**: the log-rank test of the true counts on the same grid; lifelines gives the same.
* **noise on counts** (quietsum ask): deaths and censorings are noised, at every site or, *masked*, once for all.
* **noise on the curve**: every site adds noise to the points of its own curves, which are averaged, made to fall, and
  turned back into counts for an ordinary test, as other federations do. Its noise is for the smallest sensitivity that
  could be claimed, 1/n a point (a record that is censored can move a curve further), so it is flattered here.

Noise is drawn by the mechanisms themselves, at the multiplier of the resolved plan of such a file.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from quietsum.analytics import Column, Question, QuestionFile, deviation_of, plan_of
from quietsum.analytics.encode import counts_of, factor, longest_column
from quietsum.analytics.questions import AskedSite, Promise
from quietsum.analytics.survival import curve_of, log_rank
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import ResolvedPlan, resolve
from quietsum.privacy.units import PrivacyUnit
from quietsum.tasks import task_of

Floats = NDArray[np.float64]
SITES, CELLS, EPSILON, DELTA, LEVEL = 5, 12, 0.5, 1e-5, 0.05


def resolved_for(sizes: list[int], *, secure: bool) -> ResolvedPlan:
    """The plan of one survival question with two groups, at five sites of these sizes."""
    asked = QuestionFile(
        privacy=Promise(epsilon=EPSILON, delta=DELTA, secure=secure),
        sites=tuple(AskedSite(name=f"site-{index}", size=size) for index, size in enumerate(sizes)),
        columns=(
            Column(name="time", kind="number", bounds=(0, 1), cells=CELLS),
            Column(name="event", kind="category", categories=("0", "1")),
            Column(name="group", kind="category", categories=("a", "b")),
        ),
        questions=(
            Question(name="curve", kind="survival", time="time", event="event", event_value="1", group="group"),
        ),
    )
    plan = plan_of(asked)
    task = task_of(plan)
    return resolve(plan, task.parties(), task.dimension)


def noises(resolved: ResolvedPlan, repeats: int) -> Iterator[Floats]:
    """The noise of all sites' sums, (2, 2, cells) at a time, drawn by the plan's own mechanism."""
    rng, shares = system_randomness(), resolved.noise_shares(PrivacyUnit.RECORD)
    block = 4 * CELLS
    if shares is not None:
        zeros = np.zeros(shares.dimension)
        for _ in range(repeats):
            total = sum(shares.share(zeros, rng).astype(np.int64) for _ in range(SITES))
            yield shares.decode(total).reshape(2, 2, CELLS)
        return
    mechanism = resolved.record_mechanism()
    assert mechanism is not None
    for begin in range(0, repeats, 500):
        count = min(500, repeats - begin)
        zeros = mechanism.sum(mechanism.bound(np.zeros((1, count * block))))
        drawn = sum(mechanism.release(zeros, rng) for _ in range(SITES))
        yield from np.asarray(drawn).reshape(count, 2, 2, CELLS)


def counted(group: NDArray[np.int64], died: NDArray[np.int64], cell: NDArray[np.int64]) -> Floats:
    found = np.zeros((2, 2, CELLS))
    np.add.at(found, (group, 1 - died, cell), 1)
    return found


MATRIX = factor(CELLS)
SCALED = (MATRIX / longest_column(MATRIX)).T


def on_counts(counts: Floats, noise: Floats, tau: float) -> tuple[float, Floats, Floats]:
    """p of the test, noisy counts and their decoding, as quietsum ask makes them."""
    noisy, decode = counts_of(counts @ SCALED + noise)
    return log_rank(noisy[:, 0], noisy[:, 1], decode, tau)["p"], noisy, decode


def true_curve(counts: Floats) -> Floats:
    """S on the grid, of one group's deaths and censorings."""
    return curve_of(counts[0], counts.sum(axis=0), np.eye(CELLS), 0.0).values


def on_curves(parts: list[Floats], multiplier: float, rng: np.random.Generator) -> tuple[float, list[Floats]]:
    """p of an ordinary test on counts made of averaged noisy curves, and those curves."""
    whole = np.zeros((2, 2, CELLS))
    curves = []
    for group in range(2):
        sizes = np.array([part[group].sum() for part in parts])
        mean = np.zeros(CELLS)
        for part, size in zip(parts, sizes, strict=True):
            spread = multiplier * np.sqrt(CELLS) / max(size, 1.0)
            mean += size / max(sizes.sum(), 1.0) * (true_curve(part[group]) + rng.normal(0, spread, CELLS))
        curve = np.minimum.accumulate(np.clip(mean, 0.0, 1.0))
        curves.append(curve)
        fallen = -np.diff(np.append(1.0, curve))
        whole[group, 0] = np.rint(sizes.sum() * fallen)
        whole[group, 1, -1] = max(sizes.sum() - whole[group, 0].sum(), 0.0)
    return log_rank(whole[:, 0], whole[:, 1], np.eye(CELLS), 0.0)["p"], curves


def sets() -> dict[str, tuple[Floats, NDArray[np.int64]]]:
    """Times on [0, 1] and events of three published studies."""
    from lifelines.datasets import load_gbsg2, load_kidney_transplant, load_rossi

    breast, kidney, prison = load_gbsg2(), load_kidney_transplant(), load_rossi()
    return {
        "gbsg2 (breast cancer)": (breast["time"].to_numpy() / 2700.0, breast["cens"].to_numpy()),
        "kidney transplants": (kidney["time"].to_numpy() / 3500.0, kidney["death"].to_numpy()),
        "rossi (rearrest)": (prison["week"].to_numpy() / 52.5, prison["arrest"].to_numpy()),
    }


def held_out() -> dict[str, tuple[Floats, NDArray[np.int64]]]:
    """Three more sets, which nobody looked at while the test was made."""
    from lifelines.datasets import load_canadian_senators, load_dd, load_lung

    lung, senate, regimes = load_lung(), load_canadian_senators(), load_dd()
    return {
        "lung cancer": (lung["time"].to_numpy() / 1050.0, lung["status"].to_numpy()),
        "senators (end of term)": (senate["diff_days"].to_numpy() / 18000.0, senate["observed"].to_numpy()),
        "regimes (end of rule)": (regimes["duration"].to_numpy() / 47.5, regimes["observed"].to_numpy()),
    }


def cells_of(times: Floats) -> NDArray[np.int64]:
    edges = np.linspace(0, 1, CELLS + 1)
    return np.searchsorted(edges[1:-1], times, side="left").astype(np.int64)


def level(name: str, times: Floats, died: NDArray[np.int64], permutations: int, seed: int) -> str:
    cell, count, rng = cells_of(times), len(times), np.random.default_rng(seed)
    site = np.arange(count) % SITES
    sizes = [int((site == index).sum()) for index in range(SITES)]
    plans = {secure: resolved_for(sizes, secure=secure) for secure in (False, True)}
    taus = {secure: deviation_of(plan) for secure, plan in plans.items()}
    hits = dict.fromkeys(("plain", "own", "masked", "curve"), 0)
    errors: dict[str, list[float]] = {"own": [], "masked": [], "curve": []}
    multiplier = plans[False].noise_multiplier or 0.0
    drawn = {secure: noises(plan, permutations) for secure, plan in plans.items()}
    for number in range(permutations):
        group = rng.permutation(count) % 2
        counts = counted(group, died, cell)
        hits["plain"] += log_rank(counts[:, 0], counts[:, 1], np.eye(CELLS), 0.0)["p"] < LEVEL
        look = number < 1000
        truth = [true_curve(counts[one]) for one in range(2)] if look else []
        for secure, way in ((False, "own"), (True, "masked")):
            p, noisy, decode = on_counts(counts, next(drawn[secure]), taus[secure])
            hits[way] += p < LEVEL
            for one, true in enumerate(truth):
                found = curve_of(noisy[one, 0], noisy[one].sum(axis=0), decode, taus[secure]).values
                errors[way].append(float(np.abs(found - true).max()))
        parts = [counted(group[site == one], died[site == one], cell[site == one]) for one in range(SITES)]
        p, curves = on_curves(parts, multiplier, rng)
        hits["curve"] += p < LEVEL
        errors["curve"] += [float(np.abs(found - true).max()) for found, true in zip(curves, truth, strict=False)]
    rates = " | ".join(f"{100 * hits[way] / permutations:.2f} %" for way in ("plain", "own", "masked", "curve"))
    far = " | ".join(f"{np.median(errors[way]):.3f}" for way in ("own", "masked", "curve"))
    return f"| {name}, {count} | {rates} | {far} |"


def power(patients: int, ratio: float, repeats: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    site = np.arange(patients) % SITES
    plans = {secure: resolved_for([patients // SITES] * SITES, secure=secure) for secure in (False, True)}
    taus = {secure: deviation_of(plan) for secure, plan in plans.items()}
    drawn = {secure: noises(plan, repeats) for secure, plan in plans.items()}
    hits = dict.fromkeys(("plain", "own", "masked", "curve"), 0)
    for _ in range(repeats):
        group = rng.permutation(patients) % 2
        event, end = rng.exponential(np.where(group == 1, 0.4 / ratio, 0.4)), rng.uniform(0.15, 1.0, patients)
        died, cell = (event < end).astype(np.int64), cells_of(np.minimum(event, end))
        counts = counted(group, died, cell)
        hits["plain"] += log_rank(counts[:, 0], counts[:, 1], np.eye(CELLS), 0.0)["p"] < LEVEL
        for secure, way in ((False, "own"), (True, "masked")):
            hits[way] += on_counts(counts, next(drawn[secure]), taus[secure])[0] < LEVEL
        parts = [counted(group[site == one], died[site == one], cell[site == one]) for one in range(SITES)]
        hits["curve"] += on_curves(parts, plans[False].noise_multiplier or 0.0, rng)[0] < LEVEL
    return (
        f"| {patients:,} | {ratio:g} | "
        + " | ".join(f"{100 * hits[way] / repeats:.1f} %" for way in ("plain", "own", "masked", "curve"))
        + " |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--permutations", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--held-out", action="store_true", help="three other sets, and no power")
    given = parser.parse_args()
    begin = time.perf_counter()
    print(f"type-I error at 5 % over {given.permutations:,} permutations, and the median of the curve's largest error;")
    print(f"ε = {EPSILON} per record at δ = {DELTA:g}, {SITES} sites, {CELLS} cells\n")
    print("| set, records | without privacy | each site's noise | masked | noise on the curve |", end="")
    print(" error, each site's | error, masked | error, on the curve |")
    print("|---|---|---|---|---|---|---|---|")
    for place, (name, (times, died)) in enumerate((held_out() if given.held_out else sets()).items()):
        print(level(name, times, died.astype(np.int64), given.permutations, given.seed + place), flush=True)
    if given.held_out:
        return
    print(f"\npower at 5 % over {given.repeats:,} repetitions\n")
    print("| patients | hazard ratio | without privacy | each site's noise | masked | noise on the curve |")
    print("|---|---|---|---|---|---|")
    for patients, ratio in ((2000, 2.0), (2000, 1.5), (1000, 1.5), (500, 2.0)):
        print(power(patients, ratio, given.repeats, given.seed), flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
