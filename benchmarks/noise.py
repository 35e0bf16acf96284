"""How fast is exact noise? A million draws of ours beside numpy, torch and OpenDP, in one process on one thread.

    python benchmarks/noise.py [--markdown] [--draws 1000000]

OpenDP is optional here (``pip install opendp``). It samples one value at a time, so it is measured on fewer draws and
scaled up; the table says so. What is compared is not the same promise: numpy and torch give floats from a seeded
generator that anyone who knows the state can replay; OpenDP's and our integers have their law exactly, from the
operating system's entropy. Times are the best of several runs, tables built beforehand; building is a line of its own.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import importlib.metadata
import importlib.util
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from quietsum.mechanisms.distributed import KINDS, DistributedNoise
from quietsum.mechanisms.gaussian import ClippedSum, Mode
from quietsum.mechanisms.noise import discrete_gaussian
from quietsum.mechanisms.noise.discrete_gaussian import DiscreteGaussianNoise
from quietsum.mechanisms.noise.laplace import DiscreteLaplaceNoise
from quietsum.mechanisms.noise.skellam import SkellamNoise
from quietsum.mechanisms.rng import system_randomness

SIGMAS = (8.0, 256.0, 4096.0)
FEWER = 20  # OpenDP draws this many times fewer


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. ``group`` is what its ratio is taken within, against the line marked as ours."""

    group: str
    who: str
    seconds: float
    ours: bool = False
    scaled: bool = False


def best(work: Callable[[], object], runs: int = 5) -> float:
    """Seconds of the best of several runs, after one to warm up."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def floats(draws: int) -> list[Row]:
    rng = system_randomness()
    rows = [Row(group="normals, float64", who="quietsum", seconds=best(lambda: rng.normals(draws)), ours=True)]
    generator = np.random.Generator(np.random.PCG64())
    rows.append(
        Row(group="normals, float64", who="numpy PCG64", seconds=best(lambda: generator.standard_normal(draws)))
    )
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        seconds = best(lambda: torch.randn(draws, dtype=torch.float64))
        rows.append(Row(group="normals, float64", who="torch", seconds=seconds))
    return rows


def integers(draws: int) -> list[Row]:
    rng = system_randomness()
    rows = []
    for scale in (2.0**10, 2.0**24):
        name = f"rounded normals, scale 2^{int(np.log2(scale))}"
        seconds = best(lambda scale=scale: rng.rounded_normals(scale, draws))  # type: ignore[misc]
        rows.append(Row(group=name, who="quietsum", seconds=seconds, ours=True))
    for sigma in SIGMAS:
        noise = DiscreteGaussianNoise(sigma=sigma)
        group = f"discrete Gaussian, σ {sigma:g}"
        seconds = best(lambda noise=noise: noise.sample(draws, rng))  # type: ignore[misc]
        rows.append(Row(group=group, who="quietsum", seconds=seconds, ours=True))
        rows += opendp_row(group, "gaussian", sigma, draws)
    laplace = DiscreteLaplaceNoise(scale=256.0)
    seconds = best(lambda: laplace.sample(draws, rng))
    rows.append(Row(group="discrete Laplace, scale 256", who="quietsum", seconds=seconds, ours=True))
    rows += opendp_row("discrete Laplace, scale 256", "laplace", 256.0, draws)
    for sigma in (*SIGMAS, discrete_gaussian.LARGEST_SIGMA):
        start = time.perf_counter()
        discrete_gaussian._gaussian_table.__wrapped__(sigma)
        rows.append(
            Row(group=f"building the table of σ {sigma:g}", who="quietsum", seconds=time.perf_counter() - start)
        )
    return rows


def shared(draws: int) -> list[Row]:
    """Skellam noise of three widths beside two Poisson draws of numpy's, and whole shares of distributed noise."""
    rng, generator, rows = system_randomness(), np.random.Generator(np.random.PCG64()), []
    for deviation in (8.0, 2.0**10, 2.0**20):
        noise, mean = SkellamNoise(variance=deviation**2), deviation**2 / 2
        group = f"Skellam, σ {deviation:g}"
        seconds = best(lambda noise=noise: noise.sample(draws, rng))  # type: ignore[misc]
        rows.append(Row(group=group, who="quietsum", seconds=seconds, ours=True))

        def difference(mean: float = mean) -> object:
            return generator.poisson(mean, draws) - generator.poisson(mean, draws)

        rows.append(Row(group=group, who="numpy PCG64", seconds=best(difference)))
    vector = generator.standard_normal(draws)
    for unit in ("client", "record"):
        for kind in KINDS:
            shares = DistributedNoise(
                max_norm=1.0, noise_multiplier=1.0, honest=4, dimension=draws, unit=unit, kind=kind, parties=5,
                ball=None if unit == "client" else 100.0,
            )  # fmt: skip
            seconds = best(lambda shares=shares: shares.share(vector, rng))  # type: ignore[misc]
            rows.append(Row(group=f"a {unit}'s share", who=kind, seconds=seconds, ours=kind == KINDS[0]))
    return rows


def steps(draws: int) -> list[Row]:
    """Secure noise of a training step: the exact sampler, floats before it, and these by two threads, in turn."""
    if not importlib.util.find_spec("torch"):
        return []
    import torch

    from quietsum.learning.noise.ahead import WholeAhead
    from quietsum.learning.noise.whole import fill_whole

    rng, ahead, out = system_randomness(), WholeAhead(), torch.empty(draws, dtype=torch.int64)
    group = "secure noise of a step"
    ways: dict[str, tuple[int, Callable[[], object]]] = {
        "exact sampler": (1, lambda: rng.rounded_normals(2.0**24, draws)),
        "one thread": (1, lambda: fill_whole(out, 2.0**24, rng)),
        "two threads": (2, lambda: ahead.draw(2.0**24, draws)),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(11):
        for name, (threads, way) in ways.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    torch.set_num_threads(1)
    return [Row(group=group, who=name, seconds=min(times[name]), ours=name == "one thread") for name in ways]


def opendp_row(group: str, law: str, scale: float, draws: int) -> list[Row]:
    """OpenDP's measurement of a zero vector: its noise, drawn in compiled code."""
    if not importlib.util.find_spec("opendp"):
        return []
    import opendp.prelude as dp

    dp.enable_features("contrib")
    domain = dp.vector_domain(dp.atom_domain(T=int))
    metric = dp.l2_distance(T=float) if law == "gaussian" else dp.l1_distance(T=int)
    make = dp.m.make_gaussian if law == "gaussian" else dp.m.make_laplace
    measurement = make(domain, metric, scale=scale)
    zeros = [0] * max(1, draws // FEWER)
    seconds = best(lambda: measurement(zeros), runs=2) * (draws / len(zeros))
    return [Row(group=group, who="OpenDP", seconds=seconds, scaled=True)]


def releases() -> list[Row]:
    """A whole release: a thousand rows of ten thousand coordinates clipped, summed and noised."""
    rng = system_randomness()
    batch = np.random.default_rng(0).normal(size=(1000, 10_000))
    rows = []
    for mode in Mode:
        mechanism = ClippedSum(max_norm=1.0, noise_multiplier=1.0, mode=mode)

        def release(mechanism: ClippedSum = mechanism) -> object:
            return mechanism.release(mechanism.sum(mechanism.bound(batch)), rng)

        group = "1000 × 10000 clip, sum, release"
        rows.append(Row(group=group, who=f"quietsum, {mode}", seconds=best(release, runs=3), ours=mode is Mode.SECURE))
    return rows


def versions() -> str:
    named = [f"Python {platform.python_version()}"]
    for package in ("quietsum", "numpy", "scipy", "cryptography", "torch", "opendp"):
        try:
            named.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            named.append(f"{package} absent")
    return ", ".join(named)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a million noise draws.")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--draws", type=int, default=1_000_000)
    arguments = parser.parse_args()
    rows = floats(arguments.draws) + integers(arguments.draws) + steps(arguments.draws)
    rows += shared(arguments.draws) + releases()
    own = {row.group: row.seconds for row in rows if row.ours}
    edge, bar = ("| ", " | ") if arguments.markdown else ("", "  ")

    def line(what: str, who: str, time_: str, ratio: str) -> str:
        return f"{edge}{what:<32}{bar}{who:<16}{bar}{time_:>11}{bar}{ratio:>9}{bar if edge else ''}".rstrip()

    print(line(f"{arguments.draws} draws of", "by", "ms", "to ours"))
    if arguments.markdown:
        print("|---|---|---:|---:|")
    for row in rows:
        ratio = f"{row.seconds / own[row.group]:.1f} ×" if row.group in own and not row.ours else ""
        print(line(row.group, row.who, f"{1000 * row.seconds:.1f}{' *' if row.scaled else '  '}", ratio))
    print(f"\n* measured on {arguments.draws // FEWER} draws and scaled up")
    if not importlib.util.find_spec("opendp"):
        print("OpenDP is not installed, so it is left out; pip install opendp to compare.")
    print(versions().replace(", scipy", ",\nscipy"))


if __name__ == "__main__":
    main()
