"""What does it cost that rows lie at several sites? Noise that they share, noise at each, and all rows in one place.

    python benchmarks/apart.py                       the table: fraud at five banks, chest X-rays at four sites
    python benchmarks/apart.py --task fraud --seeds 3
    python benchmarks/apart.py --choose              which learning rates are best on validation rows
    python benchmarks/apart.py --out runs.jsonl      keeps every finished run; --merge runs.jsonl prints the table

Four ways to train the same model for the same rounds on the same rows, all promised the same ε per record:

    distributed   secure aggregation; every site adds a share of the noise, calibrated to the smallest honest cohort h
    party         every site adds all of the noise to its own sum, and the server averages
    one place     one site holds all rows
    allowance     the same with √(n/h) times the noise: what is added when all n sites come, and only h are counted on

The first has the guarantee against the server, too. Every run goes the whole way: plan, ledger, reservation, commit.
Seeds are paired: the split where a task has ten, else the number of the run; noise comes from the operating system.
Learning rates were chosen on validation rows by ``--choose --seeds 2``, for one place and for noise at each site alone,
never for distributed noise, which takes those of one place. Data is read below $QUIETSUM_DATA.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy and torch are imported

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

from quietsum.tradeoff.intervals import difference_interval, mean_interval
from quietsum.tradeoff.workers import run_in_processes, serve

Values = dict[str, Any]
ARMS = ("distributed", "party", "allowance", "one place")
EPSILONS = (1.0, 8.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One task at so many sites. ``moves`` are learning rate × clip, by ε, in one place and with noise at each site."""

    parties: int
    metric: str
    delta: float
    rounds: int
    rate: float
    clip: float
    average: float
    splits: int
    moves: Mapping[float, float]
    apart: Mapping[float, float]
    tried: tuple[float, ...]


TASKS = {
    "fraud": Task(
        parties=5, metric="auprc", delta=4e-7, rounds=100, rate=1.0, clip=1.2, average=0.9, splits=10,
        moves={1.0: 600.0, 8.0: 600.0}, apart={1.0: 600.0, 8.0: 600.0}, tried=(60.0, 200.0, 600.0),
    ),
    "chest-xray": Task(
        parties=4, metric="auc", delta=1e-5, rounds=60, rate=0.25, clip=0.1, average=0.9, splits=1,
        moves={1.0: 0.8, 8.0: 3.2}, apart={1.0: 0.8, 8.0: 3.2}, tried=(0.2, 0.8, 3.2),
    ),
}  # fmt: skip


def plan_of(name: str, arm: str, epsilon: float, move: float, options: Values) -> Any:
    """The plan of one run; the allowance's noise is filled in by :func:`resolved_of`."""
    from quietsum.plan import (
        AggregationPlan,
        FederationPlan,
        OptimizerPlan,
        Plan,
        PrivacyPlan,
        RecordPlan,
        ServerOptimizerPlan,
        TaskPlan,
        TrainingPlan,
    )

    task, together = TASKS[name], arm in ("allowance", "one place")
    shared: Values = {"noise_at": "distributed"} if arm == "distributed" else {}
    secure: Values = {"secure": True, "drop_outs": 0.0} if arm == "distributed" else {}
    return Plan(
        task=TaskPlan(name=name, options=options),
        federation=FederationPlan(rounds=task.rounds, split="iid", parties=1 if together else task.parties),
        training=TrainingPlan(
            sample_rate=task.rate, local_steps=1, optimizer=OptimizerPlan(learning_rate=move / task.clip)
        ),
        privacy=PrivacyPlan(record=RecordPlan(epsilon=epsilon, delta=task.delta, max_grad_norm=task.clip, **shared)),
        aggregation=AggregationPlan(optimizer=ServerOptimizerPlan(average=task.average), **secure),
    )


def resolved_of(plan: Any, task: Any, arm: str, extra: float) -> Any:
    """The plan with its noise: ``extra`` times what its ε needs, for the allowance."""
    from quietsum.plan import resolve

    resolved = resolve(plan, task.parties(), task.dimension)
    if arm != "allowance":
        return resolved
    record = dataclasses.replace(plan.privacy.record, epsilon=None, noise_multiplier=extra * resolved.noise_multiplier)
    noisier = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, record=record))
    return resolve(noisier, task.parties(), task.dimension)


def shortfall(name: str) -> float:
    """√(n/h): how much more noise is added where all come than where the smallest honest cohort does."""
    from quietsum.plan import resolve
    from quietsum.tasks import task_of

    plan = plan_of(name, "distributed", 1.0, 1.0, {})
    task = task_of(plan)
    secure = resolve(plan, task.parties(), task.dimension).secure
    assert secure is not None
    return math.sqrt(TASKS[name].parties / secure.honest)


def work(job: Values) -> Values:
    """One run from its first round to its score."""
    import torch

    from quietsum.federation.local import LocalFederation
    from quietsum.federation.round import first_state, run_round
    from quietsum.ledger import Ledger, MemoryStore
    from quietsum.ledger.chain.keys import SigningKey
    from quietsum.mechanisms.rng import system_randomness
    from quietsum.tasks import task_of

    torch.set_num_threads(1)
    start = time.process_time()
    plan = plan_of(job["task"], job["arm"], job["epsilon"], job["move"], job["options"])
    task: Any = task_of(plan)
    resolved = resolved_of(plan, task, job["arm"], job["extra"])
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        "run", plan=plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(), datasets=resolved.datasets()
    )
    federation, rng = LocalFederation.of(task, resolved), system_randomness()
    state = first_state(resolved, task.initial())
    for number in range(1, plan.federation.rounds + 1):
        state = run_round("run", number, state, resolved=resolved, federation=federation, ledger=ledger, rng=rng).state
    found = task.evaluate(state.model)
    whole = {f"{one.unit} {one.observer}": one.epsilon for one in resolved.forecast(at=()).whole}
    return {
        "values": dict(found.values), "on": found.on, "spent": whole, "seconds": round(time.process_time() - start, 1),
    }  # fmt: skip


def jobs_of(asked: argparse.Namespace) -> list[Values]:
    """What is trained, paired by seed."""
    jobs = []
    for name in asked.task:
        task, extra = TASKS[name], asked.extra or shortfall(name)
        for seed, epsilon, arm in itertools.product(
            range(asked.first, asked.first + asked.seeds), asked.epsilon, asked.arm
        ):
            moves = task.apart if arm == "party" else task.moves
            options: Values = {"split": seed % task.splits} if task.splits > 1 else {}
            if asked.choose:
                options["evaluate_on"] = "validation"
            for move in task.tried if asked.choose else (moves[epsilon],):
                jobs.append({
                    "task": name, "arm": arm, "epsilon": epsilon, "seed": seed, "move": move, "options": options,
                    "extra": extra, "choosing": asked.choose,
                })  # fmt: skip
    return sorted(jobs, key=lambda job: int(job["seed"]))


def run_all(jobs: list[Values], asked: argparse.Namespace) -> list[Values]:
    """Every job in a process; finished ones are kept."""
    lines: list[Values] = []
    left = len(jobs)

    def told(job: Mapping[str, Any], answer: Any) -> None:
        nonlocal left
        left -= 1
        line = {**job, **answer}
        lines.append(line)
        if asked.out:
            with open(asked.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        score = line.get("error") or f"{line['values'][TASKS[job['task']].metric]:.4f}, {line['seconds']:g} s"
        head = f"{left:>4} left  {job['task']:<11} ε {job['epsilon']:<4g} {job['arm']:<12} seed {job['seed']}"
        print(f"{head} move {job['move']:g}: {score}"[:160], flush=True)

    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    run_in_processes(jobs, told, workers=asked.workers, command=command, tolerant=True)
    return lines


def chosen(lines: Iterable[Values]) -> None:
    """The mean of each learning rate on validation rows."""
    found: dict[tuple[str, float, str, float], list[float]] = {}
    for line in lines:
        if "values" in line and line["choosing"]:
            key = line["task"], line["epsilon"], line["arm"], line["move"]
            found.setdefault(key, []).append(line["values"][TASKS[line["task"]].metric])
    for (name, epsilon, arm, move), values in sorted(found.items()):
        print(f"{name:<11} ε {epsilon:<4g} {arm:<12} move {move:<6g} {statistics.fmean(values):.4f} of {len(values)}")


def table(lines: Iterable[Values]) -> None:
    """Scores, and what distributed noise loses against each other way, with 95 % intervals of paired differences."""
    found: dict[tuple[str, float, str], dict[int, Values]] = {}
    for line in lines:
        if "values" in line and not line["choosing"]:
            found.setdefault((line["task"], line["epsilon"], line["arm"]), {})[line["seed"]] = line
    print("| task | ε ≤ per record | noise | score | mean ± spread [95 %] | distributed is better by [95 %] | runs |")
    print("|---|---|---|---|---|---|---|")
    for name, epsilon in itertools.product(TASKS, EPSILONS):
        task = TASKS[name]
        ours = found.get((name, epsilon, "distributed"), {})
        for arm in ARMS:
            runs = found.get((name, epsilon, arm), {})
            if len(runs) < 2:
                continue
            scores = {seed: run["values"][task.metric] for seed, run in runs.items()}
            low, high = mean_interval(list(scores.values()))
            mean, spread = statistics.fmean(scores.values()), statistics.stdev(scores.values())
            paired = sorted(set(scores) & set(ours))
            better = "–"
            if arm != "distributed" and len(paired) > 1:
                mine, theirs = [ours[seed]["values"][task.metric] for seed in paired], [scores[seed] for seed in paired]
                least, most = difference_interval(mine, theirs)
                better = f"{statistics.fmean(mine) - statistics.fmean(theirs):+.4f} [{least:+.4f}, {most:+.4f}]"
            cost = max(next(iter(runs.values()))["spent"].values())
            print(
                f"| {name}, {task.parties} sites | {cost:.3f}, δ {task.delta:g} | {arm} | {task.metric} "
                f"| {mean:.4f} ± {spread:.4f} [{low:.4f}, {high:.4f}] | {better} | {len(runs)} |"
            )


def main() -> int:
    """Train, or read what was trained, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--arm", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--epsilon", nargs="+", type=float, choices=EPSILONS, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--choose", action="store_true", help="try all learning rates on validation rows")
    parser.add_argument("--extra", type=float, default=None, help="√(n/h), where it is not asked of the plan")
    parser.add_argument("--out", default=None)
    parser.add_argument("--merge", nargs="+", default=None)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(work)
        return 0
    if asked.merge:
        texts = [line for path in asked.merge for line in Path(path).read_text(encoding="utf-8").splitlines()]
        lines = [json.loads(text) for text in texts if text.strip()]
    else:
        lines = run_all(jobs_of(asked), asked)
    (chosen if asked.choose else table)(lines)
    return 0 if lines and not any("error" in line for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
