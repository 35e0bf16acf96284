"""How fast are mechanisms? Ours beside the other libraries', in one process on one thread.

    python benchmarks/mechanisms.py --what central [--markdown] [--values 1000000]
    python benchmarks/mechanisms.py --what local [--peers SITE-PACKAGES] [--markdown] [--users 100000] [--answers 64]
    python benchmarks/mechanisms.py --what survey --users 1000000 [--markdown] [--answers 64]

``--what central``: vectors of a million values with secure noise, beside torch's and numpy's float64 normals, which are
not secure, and OpenDP on a fiftieth of them; then one choice among 1,000 and 100,000 options.

``--what local``: local protocols, encode and estimate for 100,000 people and 64 answers at ε = 1, beside pure-ldp and
multi-freq-ldpy. These two are optional; ``--peers`` names the site-packages of an environment that has them
(``pip install pure-ldp statsmodels 'xxhash<4' multi-freq-ldpy``), and one that is missing is said and left out. Both
encode one person a call, as their documentation shows it; numba compiles before the clock starts. What is compared is
not the same promise: theirs draw from seeded generators in floating point, ours from the operating system's in whole
words, and ours have intervals.

``--what survey``: the commands ``quietsum local privatize`` and ``estimate`` on files of ``--users`` answers and of a
tenth of them: CPU seconds and peak memory of the whole process.

Times are CPU seconds of one thread: the best of several runs of ours, and one run of a library that takes seconds.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import importlib
import importlib.metadata
import importlib.util
import math
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

EPSILON = 1.0
FEWER = 50  # OpenDP draws this many times fewer values


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line: what was done, by whom, in how many seconds, and how far estimates were off."""

    what: str
    who: str
    encode: float
    estimate: float
    error: float

    @property
    def seconds(self) -> float:
        """Of both halves."""
        return self.encode + self.estimate


# ---------------------------------------------------------------------------------------------- central mechanisms


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One line of the central table: CPU seconds for ``draws`` values, scaled up where fewer were drawn."""

    what: str
    who: str
    seconds: float
    scaled: bool = False


def cpu(work: Callable[[], object], runs: int = 7) -> float:
    """CPU seconds of the best of several runs, after one to warm up."""
    work()
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def central(draws: int) -> list[Timed]:
    """Vectors with secure noise beside torch's float64 normals, and OpenDP on a fiftieth of the values."""
    from quietsum import mechanisms as q

    values, counts = np.zeros(draws), np.zeros(draws, dtype=np.int64)
    whole = {"sensitivity": q.L2(1), "dimension": draws}
    cases: dict[str, Callable[[], object]] = {
        "GaussianMechanism, L2": partial(
            q.GaussianMechanism(epsilon=1, delta=1e-6, sensitivity=q.L2(1)).release, values
        ),
        "LaplaceMechanism, L1": partial(q.LaplaceMechanism(epsilon=1, sensitivity=q.L1(1)).release, values),
        "LaplaceMechanism, LInf": partial(q.LaplaceMechanism(epsilon=1, sensitivity=q.LInf(1)).release, values),
        "DiscreteLaplaceMechanism": partial(q.DiscreteLaplaceMechanism(epsilon=0.01, sensitivity=1).release, counts),
        "DiscreteGaussianMechanism": partial(q.DiscreteGaussianMechanism(sigma=100, **whole).release, counts),
        "SkellamMechanism": partial(q.SkellamMechanism(variance=1e4, **whole).release, counts),
    }
    rows = [Timed(what=name, who="quietsum", seconds=cpu(release)) for name, release in cases.items()]
    if importlib.util.find_spec("torch"):
        import torch

        torch.set_num_threads(1)
        seconds = cpu(lambda: torch.randn(draws, dtype=torch.float64))
        rows.insert(0, Timed(what="normals, float64, not secure", who="torch", seconds=seconds))
    generator = np.random.default_rng()
    seconds = cpu(lambda: generator.standard_normal(draws))
    rows.insert(1, Timed(what="normals, float64, not secure", who="numpy", seconds=seconds))
    return rows + opendp_vectors(draws // FEWER, FEWER)


def opendp_vectors(few: int, times: int) -> list[Timed]:
    """OpenDP's Gaussian and Laplace noise on vectors of floats and of integers."""
    if not importlib.util.find_spec("opendp"):
        print("opendp is not installed here; left out", file=sys.stderr)
        return []
    import opendp.prelude as dp

    dp.enable_features("contrib")
    rows = []
    laws = (("Gaussian", dp.m.make_gaussian, dp.l2_distance), ("Laplace", dp.m.make_laplace, dp.l1_distance))
    for name, make, metric in laws:
        for kind, zeros in ((float, [0.0] * few), (int, [0] * few)):
            domain = dp.vector_domain(dp.atom_domain(T=kind, nan=False) if kind is float else dp.atom_domain(T=kind))
            measure = make(domain, metric(T=float if name == "Gaussian" else kind), scale=100.0)
            seconds = cpu(partial(measure, zeros), runs=1) * times
            rows.append(Timed(what=f"{name}, {kind.__name__}", who="OpenDP", seconds=seconds, scaled=True))
    return rows


def choices(options: int) -> list[Timed]:
    """One choice among many options, in CPU seconds of a single release."""
    from quietsum import mechanisms as q

    scores = np.random.default_rng(1).integers(0, 1000, options)
    rows = []
    for kind in (q.ExponentialMechanism, q.PermuteAndFlip, q.ReportNoisyMax):
        seconds = cpu(partial(kind(epsilon=1, sensitivity=1).release, scores))
        rows.append(Timed(what=f"{kind.__name__}, {options:,} options", who="quietsum", seconds=seconds))
    if importlib.util.find_spec("opendp"):
        import opendp.prelude as dp

        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int)
        measure = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=2.0)
        seconds = cpu(partial(measure, scores.tolist()), runs=2)
        rows.append(Timed(what=f"noisy max (permute and flip), {options:,} options", who="OpenDP", seconds=seconds))
    return rows


def show_central(draws: int, *, markdown: bool) -> None:
    """The tables, and whether secure vector noise keeps its limit beside torch."""
    edge, bar, end = ("| ", " | ", " |") if markdown else ("", "  ", "")

    def line(what: str, who: str, *figures: str) -> None:
        print(f"{edge}{what:<45}{bar}{who:<9}{bar}{bar.join(f'{each:>10}' for each in figures)}{end}")

    rows = central(draws)
    base = next((row.seconds for row in rows if row.who == "torch"), math.nan)
    line(f"{draws:,} values", "by", "CPU ms", "× torch")
    if markdown:
        print("|---|---|---:|---:|")
    for row in rows:
        line(row.what, row.who, f"{1000 * row.seconds:.1f}{' *' if row.scaled else ''}", f"{row.seconds / base:.1f}")
    worst = max(row.seconds for row in rows if row.who == "quietsum") / base
    verdict = "met" if worst <= 10 else "missed"
    print(f"\nsecure noise takes {worst:.1f} times torch's float64 normals or less (wanted 10: {verdict}); ", end="")
    print(f"* on {draws // FEWER:,} values, scaled up\n")
    line("one choice", "by", "CPU ms")
    if markdown:
        print("|---|---|---:|")
    for row in [*choices(1000), *choices(100_000)]:
        line(row.what, row.who, f"{1000 * row.seconds:.2f}")
    names = ("quietsum", "numpy", "torch", "opendp")
    found = {name: next(iter(importlib.metadata.distributions(name=name)), None) for name in names}
    print(f"\nPython {platform.python_version()}, " + ", ".join(f"{k} {v.version}" for k, v in found.items() if v))


# ------------------------------------------------------------------------------------------------- local protocols


def local(users: int, answers: int) -> list[Row]:
    """Every protocol of ours, and each one that a library has too."""
    weights = 1 / np.arange(1, answers + 1)
    counts = np.floor(weights / weights.sum() * users).astype(int)
    counts[0] += users - counts.sum()
    values, shares = np.repeat(np.arange(answers), counts), counts / users
    rows = [measured(name, "quietsum", *ours(name, answers), values, shares, runs=7) for name in OURS]
    for library, cases in (("pure-ldp", pure_ldp), ("multi-freq-ldpy", multi_freq)):
        try:
            found = cases(answers)
        except ImportError as error:
            print(f"{library} is not installed here ({error.name or error}); left out", file=sys.stderr)
            continue
        rows += [measured(name, library, *halves, values, shares, runs=1) for name, halves in found.items()]
    return rows


OURS: dict[str, dict[str, int]] = {
    "k-rr": {}, "oue": {}, "sue": {}, "olh": {}, "hadamard": {}, "cms": {"functions": 64, "width": 256},
    "hcms": {"functions": 64, "width": 256}, "rappor": {"size": 64, "cohorts": 8},
}  # fmt: skip
Halves = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def ours(name: str, answers: int) -> Halves:
    from quietsum.mechanisms.local import make_protocol

    found = make_protocol(name, answers, EPSILON, **OURS[name])
    found.estimate(found.privatize(np.arange(answers)))  # hash tables are built before the clock starts
    return found.privatize, lambda reports: found.estimate(reports).values


def pure_ldp(answers: int) -> dict[str, Halves]:
    """pure-ldp 1.2: a client and a server object for each protocol; values start at 1."""
    oracles = importlib.import_module("pure_ldp.frequency_oracles")
    importlib.import_module("pure_ldp.core._freq_oracle_server").np = _OldNumpy()
    cms, hcms = (oracles.CMSServer(EPSILON, 64, 256, is_hadamard=form) for form in (False, True))
    olh, response = oracles.LHServer(EPSILON, answers, use_olh=True), oracles.HadamardResponseServer(EPSILON, answers)
    blur = 2 / (1 + math.exp(EPSILON / 4))  # f, with two hashes
    filtered = oracles.RAPPORServer(blur, 64, 2, answers, num_of_cohorts=8)
    pairs = {
        "k-rr": (oracles.DEClient(EPSILON, answers), oracles.DEServer(EPSILON, answers)),
        "oue": (oracles.UEClient(EPSILON, answers, use_oue=True), oracles.UEServer(EPSILON, answers, use_oue=True)),
        "sue": (oracles.UEClient(EPSILON, answers), oracles.UEServer(EPSILON, answers)),
        "olh": (oracles.LHClient(EPSILON, answers, use_olh=True), olh),
        "hadamard": (oracles.HadamardResponseClient(EPSILON, answers, response.get_hash_funcs()), response),
        "cms": (oracles.CMSClient(EPSILON, cms.get_hash_funcs(), 256), cms),
        "hcms": (oracles.CMSClient(EPSILON, hcms.get_hash_funcs(), 256, is_hadamard=True), hcms),
        "rappor": (oracles.RAPPORClient(blur, 64, filtered.get_hash_funcs(), num_of_cohorts=8), filtered),
    }

    def halves(client: Any, server: Any) -> Halves:
        def estimate(reports: Any) -> Any:
            for report in reports:
                server.aggregate(report)
            found = [server.estimate(value, suppress_warnings=True) for value in range(1, answers + 1)]
            return np.array(found, dtype=float) / len(reports)

        return lambda values: [client.privatise(int(value) + 1) for value in values], estimate

    return {name: halves(*pair) for name, pair in pairs.items()}


class _OldNumpy:
    """numpy, with the zeros(None) that pure-ldp still asks it for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def zeros(shape: Any, *more: Any) -> Any:
        return np.zeros(() if shape is None else shape, *more)


def multi_freq(answers: int) -> dict[str, Halves]:
    """multi-freq-ldpy 0.2.5: functions, some of them compiled by numba; estimates are clipped and normalised."""
    grr, ue, lh = (
        importlib.import_module(f"multi_freq_ldpy.pure_frequency_oracles.{name}") for name in ("GRR", "UE", "LH")
    )
    grr.GRR_Client(0, answers, EPSILON), ue.UE_Client(0, answers, EPSILON, True)  # compiled now
    ue.UE_Client(0, answers, EPSILON, False), lh.LH_Client(0, answers, EPSILON, True)
    return {
        "k-rr": (
            lambda values: [grr.GRR_Client(value, answers, EPSILON) for value in values],
            lambda reports: grr.GRR_Aggregator_MI(reports, answers, EPSILON),
        ),
        "oue": (
            lambda values: [ue.UE_Client(value, answers, EPSILON, True) for value in values],
            lambda reports: ue.UE_Aggregator_MI(reports, EPSILON, True),
        ),
        "sue": (
            lambda values: [ue.UE_Client(value, answers, EPSILON, False) for value in values],
            lambda reports: ue.UE_Aggregator_MI(reports, EPSILON, False),
        ),
        "olh": (
            lambda values: [lh.LH_Client(value, answers, EPSILON, True) for value in values],
            lambda reports: lh.LH_Aggregator_MI(reports, answers, EPSILON, True),
        ),
    }


def measured(
    what: str, who: str, encode: Callable[[Any], Any], estimate: Callable[[Any], Any], values: Any, shares: Any, *,
    runs: int,
) -> Row:  # fmt: skip
    """The best of several runs of both halves."""
    best = (math.inf, math.inf)
    squares = []
    for _ in range(runs):
        begun = time.process_time()
        reports = encode(values)
        between = time.process_time()
        found = estimate(reports)
        took = (between - begun, time.process_time() - between)
        best = min(best, took, key=sum)
        squares.append(float(np.square(found - shares).mean()))
    print(f"{what:9s} {who:16s} {sum(best):9.4f} s", file=sys.stderr, flush=True)
    return Row(what=what, who=who, encode=best[0], estimate=best[1], error=math.sqrt(np.mean(squares)))


def survey(users: int, answers: int, *, markdown: bool) -> None:
    """Both commands in processes of their own, on files of two sizes."""
    code = (
        "import resource, sys; from quietsum.cli.app import app; app(sys.argv[1:], standalone_mode=False); "
        "found = resource.getrusage(resource.RUSAGE_SELF); "
        "print(found.ru_maxrss / 1024, found.ru_utime + found.ru_stime, file=sys.stderr)"
    )
    heads = ("answers", "protocol", "privatize, s", "estimate, s", "peak, MiB", "reports, MB")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads) if markdown else "  ".join(heads))
    labels = [f"a{place}" for place in range(answers)]
    for people in (users // 10, users):
        for name in ("k-rr", "oue", "olh", "hadamard"):
            with tempfile.TemporaryDirectory() as folder:
                data, reports = Path(folder, "data.csv"), Path(folder, "reports.csv")
                with data.open("w") as file:
                    file.write("x\n")
                    file.writelines(f"{labels[place % answers]}\n" for place in range(people))
                peaks, seconds = [], []
                for words in (
                    ["privatize", data, "-c", "x", "-e", 1, "--domain", ",".join(labels), "-p", name, "-o", reports],
                    ["estimate", reports],
                ):
                    line = [sys.executable, "-c", code, "local", *map(str, words)]
                    done = subprocess.run(line, capture_output=True, text=True, check=True)
                    peak, took = map(float, done.stderr.split()[-2:])
                    peaks.append(peak)
                    seconds.append(took)
                cells = (f"{people:,}", name, *(f"{took:.1f}" for took in seconds), f"{max(peaks):.0f}",
                         f"{reports.stat().st_size / 1e6:.1f}")  # fmt: skip
                print("| " + " | ".join(cells) + " |" if markdown else "  ".join(cells), flush=True)


def show(rows: list[Row], *, markdown: bool) -> None:
    mine = {row.what: row.seconds for row in rows if row.who == "quietsum"}
    heads = ("protocol", "library", "encode, ms", "estimate, ms", "both, ms", "× ours", "error, r.m.s.")
    lines = [
        (
            row.what, row.who, f"{1e3 * row.encode:,.1f}", f"{1e3 * row.estimate:,.1f}", f"{1e3 * row.seconds:,.1f}",
            "" if row.who == "quietsum" else f"{row.seconds / mine[row.what]:,.0f}", f"{row.error:.4f}",
        )
        for row in sorted(rows, key=lambda row: (list(OURS).index(row.what), row.who != "quietsum", row.who))
    ]  # fmt: skip
    if markdown:
        print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    for line in (heads, *lines):
        print("  ".join(f"{cell:>16}" for cell in line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=["central", "local", "survey"], required=True)
    parser.add_argument("--peers", help="site-packages of an environment with the other libraries")
    parser.add_argument("--values", type=int, default=1_000_000, help="of a vector, for --what central")
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    if given.peers:
        sys.path.append(given.peers)
    warnings.simplefilter("ignore")
    if given.what == "central":
        show_central(given.values, markdown=given.markdown)
        return
    if given.what == "survey":
        survey(given.users, given.answers, markdown=given.markdown)
        return
    rows = local(given.users, given.answers)
    names = ("quietsum", "numpy", "pure-ldp", "multi-freq-ldpy", "numba")
    found = {name: next(iter(importlib.metadata.distributions(name=name)), None) for name in names}
    print(f"{given.users:,} people, {given.answers} answers, ε = {EPSILON:g}; Python {platform.python_version()}, "
          + ", ".join(f"{name} {one.version}" for name, one in found.items() if one is not None) + "\n")  # fmt: skip
    show(rows, markdown=given.markdown)


if __name__ == "__main__":
    main()
