"""Every task as a federation: what is left of its score at ε none, 8 and 1 per record, and per client with many.

    python benchmarks/federated_tasks.py                            the table, with the settings below
    python benchmarks/federated_tasks.py --row pose cards-clients   some rows
    python benchmarks/federated_tasks.py --choose --chosen best.json    settings chosen on validation rows
    python benchmarks/federated_tasks.py --settings best.json --markdown
    python benchmarks/federated_tasks.py --merge runs.jsonl         the table from finished runs
    python benchmarks/federated_tasks.py --quick                    one run of each: does everything run?

Every run goes the whole way: a plan is resolved, a ledger (in memory) reserves and commits every round, parties clip
and add their noise, the server aggregates. Settings are chosen on rows that are not tested on (the task's
``evaluate_on="validation"``; heart has none: its settings are those of ``quietsum new``). Where a task has several
splits the seed is the split; noise and draws come from the operating system. All rows are published, so choosing is
charged to nobody. Data is read below $QUIETSUM_DATA; a row whose data is missing is left out, and said so.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy and torch are imported

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

from quietsum.errors import QuietsumError
from quietsum.tradeoff.intervals import mean_interval
from quietsum.tradeoff.workers import run_in_processes, serve

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One federation: who takes part, what is promised at which ε, and which settings are tried."""

    task: str
    metric: str
    split: str = "natural"
    parties: int | None = None
    style: str = "sample"
    epsilons: tuple[float | None, ...] = (None, 8.0, 1.0)
    delta: float
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    splits: int = 1
    seeds: int = 3
    grid: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    gpu: bool = False
    note: str = ""


# A setting is rounds, rate (of records), steps (local), clip (of records), move (learning rate × clip), cohort (rate of
# parties), norm (clip of clients), momentum (of the server; 0 is FedAvg), average (decay of a running mean). The first
# of each list is the default.
ROWS: dict[str, Row] = {
    "heart": Row(task="heart", metric="accuracy", delta=1e-5, seeds=10, note="4 hospitals; settings of quietsum new"),
    "chest-xray": Row(
        task="chest-xray", metric="auc", split="iid", parties=4, delta=1e-5, gpu=True,
        grid={"rounds": (60, 20), "rate": (1.0, 0.25), "steps": (1, 4), "clip": (0.1,), "move": (0.2, 0.05, 0.8),
              "momentum": (0.9, 0.0)}, note="4 sites dealt out alike",
    ),
    "nuclei": Row(
        task="nuclei", metric="dice", delta=1e-4, splits=5, gpu=True,
        grid={"rounds": (30,), "rate": (1.0,), "steps": (1, 4), "clip": (0.5,), "move": (0.3, 0.1, 1.0),
              "momentum": (0.9,)}, note="sites by picture size",
    ),
    "fraud": Row(
        task="fraud", metric="auprc", split="iid", parties=5, delta=4e-7, splits=10, seeds=5,
        grid={"rounds": (100, 40), "rate": (1.0,), "steps": (1,), "clip": (1.2, 2.4), "move": (600.0, 200.0, 60.0),
              "momentum": (0.0,), "average": (0.9, 0.95)}, note="5 banks dealt out alike",
    ),
    "pose": Row(
        task="pose", metric="accuracy", delta=1e-3, seeds=5,
        grid={"rounds": (15, 40), "rate": (1.0,), "steps": (1, 4), "clip": (1.0,), "move": (1.0, 3.0, 10.0),
              "momentum": (0.9, 0.0), "average": (0.9, 0.0)}, note="5 people, each a party",
    ),
    "digits-clients": Row(
        task="digits", metric="accuracy", split="iid", parties=600, style="user", epsilons=(None, 8.0, 2.0), delta=1e-4,
        seeds=5,
        grid={"rounds": (40, 20, 80), "rate": (1.0,), "steps": (1, 5), "clip": (1.0,), "move": (0.3, 1.0),
              "cohort": (0.3, 1.0), "norm": (0.3, 1.0), "momentum": (0.9, 0.0)}, note="600 clients of 2 or 3 digits",
    ),
    "cards-clients": Row(
        task="cards", metric="auc", parties=2000, style="user", epsilons=(None, 8.0, 2.0), delta=2e-5,
        grid={"rounds": (40,), "rate": (1.0,), "steps": (1, 5), "clip": (1.0,), "move": (1.0, 4.0, 16.0),
              "cohort": (0.25, 1.0), "norm": (0.3, 1.0), "momentum": (0.9,)}, note="2,000 clients of about 13 cards",
    ),
    "pose-hybrid": Row(
        task="pose", metric="accuracy", style="hybrid", epsilons=(8.0,), delta=1e-3, seeds=5,
        grid={"rounds": (15,), "rate": (1.0,), "steps": (1,), "clip": (1.0,), "move": (1.0, 3.0), "norm": (0.1, 1.0),
              "momentum": (0.9,)}, note="5 people: ε 8 per record and ε 8 per client",
    ),
}  # fmt: skip
HEART = {"rounds": 20, "rate": 0.25, "steps": 1, "clip": 0.5, "move": 0.2, "momentum": 0.0}


# ------------------------------------------------------------------------------------------------- one run


def plan_of(row: Row, epsilon: float | None, setting: Values, options: Values) -> Any:
    """The plan of one run."""
    from quietsum.plan import (
        AggregationPlan,
        ClientPlan,
        FederationPlan,
        OptimizerPlan,
        Plan,
        PrivacyPlan,
        RecordPlan,
        SamplingPlan,
        ServerOptimizerPlan,
        Style,
        TaskPlan,
        TrainingPlan,
    )

    style = Style.NONE if epsilon is None else Style(row.style)
    cohort = setting.get("cohort", 1.0)
    drawn = SamplingPlan() if cohort == 1.0 else SamplingPlan(kind="poisson", rate=cohort)
    kind = "fedavg" if not setting["momentum"] else "fedavgm"
    record = RecordPlan(epsilon=epsilon, delta=row.delta, max_grad_norm=setting["clip"]) if style.records else None
    bound = {"max_norm": setting.get("norm", 1.0)}
    delta = 0.01 if row.style == "hybrid" else row.delta
    return Plan(
        task=TaskPlan(name=row.task, options=options),
        federation=FederationPlan(
            rounds=setting["rounds"], sampling=drawn, split=row.split, parties=row.parties or ()
        ),
        training=TrainingPlan(
            sample_rate=setting["rate"], local_steps=setting["steps"],
            optimizer=OptimizerPlan(learning_rate=setting["move"] / setting["clip"]),
        ),
        privacy=PrivacyPlan(
            style=style, record=record,
            client=ClientPlan(epsilon=epsilon, delta=delta, **bound) if style.clients else None,
        ),
        aggregation=AggregationPlan(
            weights="equal" if style.clients or row.style == "user" else "size",
            optimizer=ServerOptimizerPlan(
                kind=kind, momentum=setting["momentum"] or 0.9, average=setting.get("average", 0.0)
            ),
        ),
    )  # fmt: skip


def work(job: Values) -> Values:
    """One federation from its first round to its score; every round is reserved and committed."""
    row = ROWS[job["row"]]
    return play(plan_of(row, job["epsilon"], job["setting"], job["options"]), job)


def play(plan: Any, job: Values) -> Values:
    """What came out of a plan."""
    import torch

    from quietsum.federation.local import LocalFederation
    from quietsum.federation.round import first_state, run_round
    from quietsum.ledger import Ledger, MemoryStore
    from quietsum.ledger.chain.keys import SigningKey
    from quietsum.mechanisms.rng import system_randomness
    from quietsum.plan import resolve
    from quietsum.tasks import task_of
    from quietsum.tasks.federated import FederatedTorch
    from quietsum.tasks.registry import trainable_task

    if job.get("until") and time.time() > job["until"]:
        raise QuietsumError("left out: the time was up")
    torch.set_num_threads(1)
    start, federation_plan = time.time(), plan.federation
    if job["device"] == "cpu" or plan.task.name == "heart":
        task: Any = task_of(plan)
    else:
        inner = trainable_task(plan.task.name, dict(plan.task.options))
        task = FederatedTorch(
            inner, split=federation_plan.split, parties=federation_plan.parties or (), device=job["device"]
        )
    resolved = resolve(plan, task.parties(), task.dimension)
    ledger = Ledger.begin(MemoryStore(), SigningKey.generate())
    ledger.open_run(
        "run", plan=plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(), datasets=resolved.datasets()
    )
    federation, state, rng = (
        LocalFederation.of(task, resolved),
        first_state(resolved, task.initial()),
        system_randomness(),
    )
    for number in range(1, plan.federation.rounds + 1):
        state = run_round("run", number, state, resolved=resolved, federation=federation, ledger=ledger, rng=rng).state
    found = task.evaluate(state.model)
    spent = {f"{one.unit} {one.observer}": one.epsilon for one in resolved.forecast(at=()).whole}
    return {
        "values": dict(found.values), "chance": dict(found.chance), "on": found.on,
        "parties": len(resolved.parties), "spent": spent,
        "noise": resolved.noise_multiplier, "client_noise": resolved.client_noise, "dimension": resolved.dimension,
        "seconds": round(time.time() - start, 1),
    }  # fmt: skip


# -------------------------------------------------------------------------------------------- many of them


def options_of(row: Row, seed: int, *, choosing: bool) -> Values:
    options: Values = dict(row.options)
    if row.splits > 1:
        options["split"] = seed % row.splits
    if choosing:
        options["evaluate_on"] = "validation"
        if row.task == "pose":  # who of the five is left out
            options["split"] = seed % 5
    return options


def settings_in(row: Row) -> list[Values]:
    names = list(row.grid)
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*row.grid.values())]


def jobs_of(asked: argparse.Namespace, chosen: Values) -> list[Values]:
    jobs = []
    for name in asked.row:
        row = ROWS[name]
        few = 5 if row.task == "pose" else 2
        seeds = asked.seeds or (1 if asked.quick else few if asked.choose else row.seeds)
        for seed, epsilon in itertools.product(range(seeds), row.epsilons):
            if asked.choose and row.task == "heart":
                continue
            known = chosen.get(name, {}).get(str(epsilon))
            settings = (
                settings_in(row) if asked.choose else [known or (HEART if row.task == "heart" else settings_in(row)[0])]
            )
            if asked.quick:
                settings = [{**settings[0], "rounds": 3}]
            for setting in settings:
                jobs.append({
                    "row": name, "epsilon": epsilon, "seed": seed, "setting": setting,
                    "options": options_of(row, seed, choosing=asked.choose), "choosing": asked.choose,
                    "device": "cuda" if asked.device == "cuda" and row.gpu else "cpu",
                    "until": None if asked.minutes is None else asked.started + 60 * asked.minutes,
                })  # fmt: skip
    return sorted(jobs, key=lambda job: job["seed"])


def run_all(jobs: list[Values], asked: argparse.Namespace) -> list[Values]:
    lines: list[Values] = []
    out = None if asked.out is None else open(asked.out, "a", encoding="utf-8")  # noqa: SIM115  # closed below

    def told(job: Mapping[str, Any], answer: Any) -> None:
        line = {**job, **answer}
        lines.append(line)
        if out is not None:
            out.write(json.dumps(line) + "\n")
            out.flush()
        what = "none" if job["epsilon"] is None else f"{job['epsilon']:g}"
        head = f"{len(jobs) - len(lines):>4} left  {job['row']:<15} ε {what:<5} seed {job['seed']}"
        if "error" in line:
            print(f"{head} {line['error']}"[:110], flush=True)
            return
        row = ROWS[job["row"]]
        print(f"{head} {row.metric} {line['values'][row.metric]:.4f}  {line['seconds']:.0f} s", flush=True)

    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    run_in_processes(jobs, told, workers=asked.workers, command=command, tolerant=True)
    if out is not None:
        out.close()
    return lines


def best_of(lines: Iterable[Values]) -> Values:
    """For each row and ε the setting with the best mean on validation rows."""
    groups: dict[tuple[str, str], dict[str, list[Values]]] = {}
    for line in lines:
        if "values" in line and line.get("choosing"):
            key = line["row"], str(line["epsilon"])
            groups.setdefault(key, {}).setdefault(json.dumps(line["setting"], sort_keys=True), []).append(line)
    best: Values = {}
    for (name, epsilon), tried in sorted(groups.items()):
        metric, most = ROWS[name].metric, max(len(runs) for runs in tried.values())
        ranked = sorted(
            ((statistics.fmean(run["values"][metric] for run in runs), text) for text, runs in tried.items()
             if len(runs) == most), reverse=True,
        )  # fmt: skip
        print(f"{name}, ε {epsilon}: {metric} on {next(iter(tried.values()))[0]['on']}, the best of {len(ranked)}")
        for score, text in ranked[:3]:
            print(textwrap.fill(f"  {score:.4f} {text}", 110, subsequent_indent="    "))
        best.setdefault(name, {})[epsilon] = json.loads(ranked[0][1])
    return best


def table(lines: Iterable[Values], *, markdown: bool) -> None:
    """Means with intervals, one line for each federation and ε."""
    found: dict[tuple[str, str], list[Values]] = {}
    for line in lines:
        if "values" in line and not line.get("choosing"):
            found.setdefault((line["row"], str(line["epsilon"])), []).append(line)
    if markdown:
        print("| federation | parties | ε ≤ | score | mean ± spread [95 %] | settings |\n|---|---|---|---|---|---|")
    for name, row in ROWS.items():
        for epsilon in row.epsilons:
            runs = found.get((name, str(epsilon)), [])
            if not runs:
                continue
            values = [run["values"][row.metric] for run in runs]
            spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            span = mean_interval(values) if len(values) > 1 else None
            inside = "" if span is None else f" [{span[0]:.4f}, {span[1]:.4f}]"
            cost = _cost(row, runs)
            setting = ", ".join(f"{key} {value:g}" for key, value in runs[0]["setting"].items())
            who = f"{runs[0]['parties']:,}: {row.note}"
            cells = (name, who, cost, row.metric, f"{statistics.fmean(values):.4f}{spread}{inside}", setting)
            if markdown:
                print("| " + " | ".join(cells) + " |")
            else:
                print(f"{name:<15} ε {cost:<38} {row.metric} {cells[4]}")
                print(textwrap.fill(f"{who}; {len(runs)} runs; {setting}", 100, initial_indent=" " * 16,
                                    subsequent_indent=" " * 16))  # fmt: skip


def _cost(row: Row, runs: list[Values]) -> str:
    if runs[0]["epsilon"] is None:
        return "none"
    units = dict.fromkeys(key.split()[0] for key in runs[0]["spent"])
    told = []
    for unit in units:
        most = max(value for run in runs for key, value in run["spent"].items() if key.startswith(unit))
        told.append(f"{most:.3f} per {unit}")
    return ", ".join(told) + f", δ {row.delta:g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=sorted(ROWS), default=list(ROWS), help="some of the rows")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--out", help="append one JSON line per finished run")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="from such files, nothing is trained")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--chosen", metavar="FILE", help="where --choose writes its choice")
    parser.add_argument("--settings", metavar="FILE", help="what --choose wrote")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.started = time.time()
    if asked.serve:
        serve(work)
        return 0
    if asked.merge:
        texts = [line for name in asked.merge for line in Path(name).read_text(encoding="utf-8").splitlines()]
        lines = [json.loads(text) for text in texts]
    else:
        chosen = json.loads(Path(asked.settings).read_text(encoding="utf-8")) if asked.settings else {}
        lines = run_all(jobs_of(asked, chosen), asked)
    if asked.choose:
        best = best_of(lines)
        if asked.chosen:
            Path(asked.chosen).write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")
        return 0
    print()
    table(lines, markdown=asked.markdown)
    print(f"\n{time.time() - asked.started:.0f} s in all")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuietsumError as error:
        sys.exit(f"error: {error}")
