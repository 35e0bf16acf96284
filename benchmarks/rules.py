"""How fast are the robust rules? 100 updates of a million numbers, each rule beside the plain mean, byzfl and Flower.

Every repeat runs the mean, the rule and its peers one after another on the same matrix, and ratios are taken within a
repeat. With one thread (the default) times are CPU seconds, which a busy machine changes little; ``--threads 2`` lets
rules and torch use two and prints wall-clock seconds. Results are compared on the way: Krum with byzfl's number
of neighbours, since byzfl sums n − f − 1 distances where quietsum and Flower sum n − f − 2; byzfl's geometric median
stops after three steps from the origin, so it is timed and not compared.

``--byzfl PATH`` is a folder that byzfl 0.0.11 can be imported from (``pip install --no-deps --target PATH byzfl``);
without it, the calls of numpy and scipy that byzfl makes for the median, the trimmed mean and Krum stand in its column.
byzfl takes numpy arrays and torch tensors (in single precision): both are timed. ``--peer-repeats 0`` leaves peers out.

``--many 2000,5000`` times every rule with so many parties and a thousand parameters instead, each in a process of its
own: updates that differ, and updates that are all the same; and the memory that the rule takes beside the updates.
"""

from __future__ import annotations

import argparse
import os
import sys

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--parties", type=int, default=100)
parser.add_argument("--parameters", type=int, default=1_000_000)
parser.add_argument("--attackers", type=int, default=20)
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--peer-repeats", type=int, default=2)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--byzfl", default="")
parser.add_argument("--rules", default="")
parser.add_argument("--many", default="", metavar="N,N")
OPTIONS = parser.parse_args()

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(OPTIONS.threads)  # before numpy is imported
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # rules have threads of their own, which wait for nobody

import datetime
import importlib.metadata
import multiprocessing
import platform
import resource
import statistics
import time
import types
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from quietsum.aggregation.robust import RULES, CenteredClipping, Sent, find_rule, most_attackers
from quietsum.mechanisms.rng import system_randomness

Call = Callable[[], Any]
clock = time.process_time if OPTIONS.threads == 1 else time.perf_counter
CORE = (
    "norm-bounded", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centered-clipping",
    "signguard", "signguard-sim", "signguard-dist",
)  # fmt: skip
"""Rules that are timed unless ``--rules`` names others."""


def matrix() -> np.ndarray:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((OPTIONS.parties, OPTIONS.parameters))
    rows += rng.standard_normal(OPTIONS.parameters)
    return rows


def sent(rows: np.ndarray, rule: Any, attackers: int) -> Sent:
    count, dimension = rows.shape
    return Sent(
        updates=rows, attackers=attackers, places=np.arange(count), registered=count, rng=system_randomness(),
        memory=rule.memory(count, dimension),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ peers


def byzfl() -> Any:
    """byzfl's rules, or None."""
    if not OPTIONS.byzfl:
        return None
    sys.path.append(OPTIONS.byzfl)

    for name in ("byzfl.benchmark", "byzfl.fed_framework"):  # its training framework, which needs more libraries
        sys.modules[name] = types.ModuleType(name)
    import byzfl as found

    return found


def peers(rows: np.ndarray) -> dict[str, dict[str, Call]]:
    """For each rule, calls of other libraries: {rule: {library: call}}."""
    found: dict[str, dict[str, Call]] = {name: {} for name in CORE}
    f = OPTIONS.attackers
    if not OPTIONS.peer_repeats:
        return found

    def krum() -> np.ndarray:
        from scipy.spatial.distance import cdist

        squares = np.sort(cdist(rows, rows) ** 2, axis=1)[:, 1 : len(rows) - f]
        return np.asarray(rows[np.argmin(squares.mean(axis=1))])

    found["median"]["byzfl"] = lambda: np.median(rows, axis=0)
    found["trimmed-mean"]["byzfl"] = lambda: np.sort(rows, axis=0)[f:-f].mean(axis=0)
    found["krum"]["byzfl"] = krum
    if library := byzfl():
        import torch

        torch.set_num_threads(OPTIONS.threads)
        tensor = torch.from_numpy(rows.astype(np.float32))
        makers: dict[str, Callable[[], Any]] = {
            "median": library.Median,
            "trimmed-mean": lambda: library.TrMean(f=f),
            "geometric-median": library.GeometricMedian,
            "krum": lambda: library.Krum(f=f),
            "multi-krum": lambda: library.MultiKrum(f=f),
            "centered-clipping": lambda: library.CenteredClipping(L=3, tau=100.0),
        }
        for name, make in makers.items():
            found[name]["byzfl"] = lambda make=make: make()(rows)
            found[name]["byzfl, torch f32"] = lambda make=make: np.asarray(make()(tensor))
    try:
        from flwr.server.strategy import aggregate
    except ImportError:
        return found
    results = [([row], 1) for row in rows]
    found["median"]["flwr"] = lambda: aggregate.aggregate_median(results)[0]
    found["trimmed-mean"]["flwr"] = lambda: aggregate.aggregate_trimmed_avg(results, f / len(rows) + 1e-9)[0]
    found["krum"]["flwr"] = lambda: aggregate.aggregate_krum(results, f, 0)[0]
    found["multi-krum"]["flwr"] = lambda: aggregate.aggregate_krum(results, f, len(rows) - f)[0]
    return found


def agrees(name: str, library: str, rows: np.ndarray, other: np.ndarray) -> str:
    """Whether our step is theirs, in the same convention."""
    f = OPTIONS.attackers
    if library == "byzfl, torch f32" or (name, library) in {("geometric-median", "byzfl"), ("multi-krum", "byzfl")}:
        return ""
    if name == "centered-clipping":
        ours = CenteredClipping(radius=100.0).combine(sent(rows, CenteredClipping(), f)).step
    else:
        rule = find_rule(name)
        ours = rule.combine(sent(rows, rule, f - 1 if (name, library) == ("krum", "byzfl") else f)).step
    return "equal" if np.allclose(ours, other, rtol=1e-9, atol=1e-12) else "DIFFERS"


# ------------------------------------------------------------------------------------------ measuring


def seconds(call: Call) -> tuple[float, Any]:
    start = clock()
    result = call()
    return clock() - start, result


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


MANY = (
    *(name for name, rule in RULES.items() if not rule.facts.needs_trial), "nnm + trimmed-mean", "bucketing + krum",
)  # fmt: skip
"""Rules that ``--many`` times: all that need no root set, and two with something before them."""


def alone(job: tuple[str, int, int, bool]) -> tuple[float, float]:
    """CPU seconds, and MiB beside the updates, of one rule in a process of its own; updates all ``alike`` or not."""
    name, count, dimension, alike = job
    before, _, after = name.rpartition(" + ")
    rule = find_rule(after, before)
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((count, dimension))
    rows += rng.standard_normal(dimension)
    if alike:
        rows[:] = rows[0]
    small = rows[:30].copy()
    rule.combine(sent(small, rule, 1))  # libraries are loaded
    given = sent(rows, rule, min(count // 5, most_attackers(rule, count)))
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = seconds(lambda: rule.combine(given))[0]
    return spent, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024


def many(counts: Sequence[int], names: Sequence[str]) -> None:
    """The table of ``--many``."""
    dimension = OPTIONS.parameters if OPTIONS.parameters != parser.get_default("parameters") else 1000
    print(
        f"{datetime.date.today()}, Python {platform.python_version()}, numpy {np.__version__}, scipy "
        f"{importlib.metadata.version('scipy')}; {dimension:,} float64, a fifth of the parties may be anything or as "
        f"many as the rule withstands; CPU seconds of {OPTIONS.threads} thread(s), the least of {OPTIONS.repeats}\n"
    )
    heads = [
        f"{count:,} {what}" for count in counts for what in ("that differ, s", "all the same, s", "MiB beside them")
    ]
    print("| rule | " + " | ".join(heads) + " |\n|---|" + "---|" * len(heads))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context, max_tasks_per_child=1) as pool:
        for name in names:
            cells = []
            for count in counts:
                jobs = [(name, count, dimension, alike) for alike in (False, True) for _ in range(OPTIONS.repeats)]
                found = list(pool.map(alone, jobs))
                apart, alike = found[: OPTIONS.repeats], found[OPTIONS.repeats :]
                cells += [f"{min(s for s, _ in some):.2f}" for some in (apart, alike)]
                cells.append(f"{max(size for _, size in found):,.0f}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    if OPTIONS.many:
        chosen = OPTIONS.rules.split(",") if OPTIONS.rules else MANY
        return many([int(count) for count in OPTIONS.many.split(",")], chosen)
    names = tuple(OPTIONS.rules.split(",")) if OPTIONS.rules else CORE
    rows = matrix()
    others = peers(rows)
    unit = "CPU s" if OPTIONS.threads == 1 else "wall s"
    here = {found.metadata["Name"].lower() for found in importlib.metadata.distributions()}
    versions = {name: importlib.metadata.version(name) for name in ("numpy", "scipy", "flwr", "torch") if name in here}
    print(
        f"{datetime.date.today()}, Python {platform.python_version()}, "
        + ", ".join(f"{library} {version}" for library, version in versions.items())
        + f"; {OPTIONS.parties} × {OPTIONS.parameters:,} float64, f = {OPTIONS.attackers}, "
        f"{OPTIONS.threads} thread(s), {OPTIONS.repeats} repeats of ours, {OPTIONS.peer_repeats} of theirs\n"
    )
    print(f"| rule | {unit} | times the mean | byzfl, times ours | on torch, f32 | flwr, times ours | same result |")
    print("|---|---|---|---|---|---|---|")
    mean = lambda: rows.mean(axis=0)  # noqa: E731
    mean()
    print(f"| mean | {min(seconds(mean)[0] for _ in range(OPTIONS.repeats)):.3f} | 1 | | | | |", flush=True)
    for name in names:
        rule = find_rule(name)
        assert name in RULES
        call = lambda rule=rule: rule.combine(sent(rows, rule, OPTIONS.attackers))  # noqa: E731
        call()
        own, ratios = [], []
        for _ in range(OPTIONS.repeats):
            plain, mine = seconds(mean)[0], seconds(call)[0]
            own.append(mine)
            ratios.append(mine / plain)
        columns, same = {}, []
        for library, other in others.get(name, {}).items():
            times = []
            for _ in range(OPTIONS.peer_repeats):
                mine = seconds(call)[0]
                spent, result = seconds(other)
                times.append(spent / mine)
            columns[library] = spread(times)
            if told := agrees(name, library, rows, result):
                same.append(f"{library} {told}")
        cells = [columns.get(library, "") for library in ("byzfl", "byzfl, torch f32", "flwr")]
        line = [name, f"{min(own):.3f}", spread(ratios), *cells, ", ".join(same)]
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
