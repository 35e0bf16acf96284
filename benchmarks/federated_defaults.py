"""Do the defaults of a federation learn? What ``quietsum new`` writes, beside the best of up to 20 settings.

    python benchmarks/federated_defaults.py                          the table
    python benchmarks/federated_defaults.py --row heart fraud --epsilon 1 --seeds 2
    python benchmarks/federated_defaults.py --workers 15 --out runs.jsonl
    python benchmarks/federated_defaults.py --merge runs.jsonl

Rows are the federations of the examples and of the tasks that have sites, with four sides at ε 1, 3 and 8 per record:

    new      the plan that ``quietsum new --task NAME`` writes, with this ε
    own      the plan that it writes for a task of one's own, which nothing is known of, with the sites of this one
    tuned    the best of up to 20 settings (``grid``), by the score on validation rows with one seed, trained anew

Heart has no rows but those that train and those that are tested on, so its tuned settings are chosen on the test rows:
that flatters them. Kept is what a plan has of the tuned one's gain over chance. Every round is reserved and committed,
as by ``quietsum run``. All rows are published, so choosing is charged to nobody.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import federated_tasks  # beside this file; it finds quietsum
from federated_tasks import Row, Values

from quietsum.errors import QuietsumError
from quietsum.tradeoff.workers import run_in_processes, serve

EPSILONS = (1.0, 3.0, 8.0)
LEAST_GAIN = 0.05

ROWS: dict[str, Row] = {
    "heart": Row(task="heart", metric="auc", delta=1e-5, seeds=5, note="examples/heart.toml",
                 grid={"rounds": (20, 40), "rate": (0.25, 1.0), "steps": (1,), "clip": (0.5,),
                       "move": (0.05, 0.2, 0.5), "momentum": (0.0,)}),
    "heart, two": Row(task="heart", metric="auc", delta=1e-5, seeds=5, note="examples/06_across_machines",
                      grid={"rounds": (4, 20), "rate": (0.25, 1.0), "steps": (1,), "clip": (0.5,),
                            "move": (0.05, 0.2, 0.5), "momentum": (0.0,)}),
    "fraud": Row(task="fraud", metric="auprc", split="iid", parties=10, delta=4e-7, splits=10, seeds=3,
                 note="examples/defended.toml, by the mean",
                 grid={"rounds": (30, 100), "rate": (1.0,), "steps": (1,), "clip": (0.5, 1.2, 2.4),
                       "move": (60.0, 200.0, 600.0), "momentum": (0.0,)}),
    "digits": Row(task="digits", metric="accuracy", split="iid", parties=4, delta=1e-5, seeds=3,
                  note="four sites dealt out alike",
                  grid={"rounds": (40, 80), "rate": (0.25, 1.0), "steps": (1,), "clip": (0.1,),
                        "move": (0.2, 0.4, 0.8), "momentum": (0.0,)}),
    "chest-xray": Row(task="chest-xray", metric="auc", split="iid", parties=4, delta=1e-5, seeds=3,
                      note="four sites dealt out alike",
                      grid={"rounds": (60,), "rate": (1.0, 0.25), "steps": (1,), "clip": (0.1,),
                            "move": (0.05, 0.2, 0.8), "momentum": (0.9, 0.0)}),
    "pose": Row(task="pose", metric="accuracy", delta=1e-3, seeds=5, note="five people, each a site",
                grid={"rounds": (15, 40), "rate": (1.0,), "steps": (1,), "clip": (0.3, 1.0),
                      "move": (1.0, 3.0), "momentum": (0.9, 0.0)}),
}  # fmt: skip
TWO = ("cleveland", "hungarian")


# ------------------------------------------------------------------------------------------------- one run


def work(job: Values) -> Values:
    """One federation by one side's plan."""
    if job.get("until") and time.time() > job["until"]:
        raise QuietsumError("left out: the time was up")
    return federated_tasks.play(plan_of(job), {**job, "device": "cpu"})


def plan_of(job: Values) -> Any:
    """The plan of one side, with the row's sites and the promise of ε."""
    from quietsum.plan import load_plan, template
    from quietsum.plan.text.template import OTHER_DEFAULTS

    row = ROWS[job["row"]]
    if job["side"] in ("choosing", "tuned"):
        plan = federated_tasks.plan_of(row, job["epsilon"], job["how"], job["options"])
    else:
        own = dataclasses.replace(OTHER_DEFAULTS, split=row.split, parties=row.parties)
        plan = load_plan(template(task=row.task, settings=own if job["side"] == "own" else None))
        record = dataclasses.replace(plan.privacy.record, epsilon=job["epsilon"], delta=row.delta)
        plan = dataclasses.replace(
            plan, task=dataclasses.replace(plan.task, options=job["options"]),
            federation=dataclasses.replace(plan.federation, split=row.split, parties=row.parties or ()),
            privacy=dataclasses.replace(plan.privacy, record=record),
        )  # fmt: skip
    if job["row"] == "heart, two":
        plan = dataclasses.replace(plan, federation=dataclasses.replace(plan.federation, parties=TWO))
    return plan


# -------------------------------------------------------------------------------------------- many of them


def jobs_of(asked: argparse.Namespace, best: Mapping[tuple[str, float], Values] | None) -> list[Values]:
    """The tries, where ``best`` is None; else the runs of the table."""
    until = None if asked.minutes is None else asked.started + 60 * asked.minutes
    jobs = []
    for name, epsilon in itertools.product(asked.row, asked.epsilon):
        row = ROWS[name]
        seeds = range(1) if best is None else range(asked.seeds or row.seeds)
        for seed in seeds:
            choosing = best is None
            options = federated_tasks.options_of(row, seed, choosing=choosing and row.task != "heart")
            sides: list[tuple[str, Any]] = [("new", None), ("own", None)]
            if best is None:
                sides = [("choosing", how) for how in federated_tasks.settings_in(row)[:20]]
            elif (name, epsilon) in best:
                sides.append(("tuned", best[name, epsilon]))
            jobs += [{"row": name, "epsilon": epsilon, "seed": seed, "side": side, "how": how, "options": options,
                      "until": until} for side, how in sides]  # fmt: skip
    return jobs


def run_all(jobs: list[Values], asked: argparse.Namespace) -> list[Values]:
    lines: list[Values] = []

    def told(job: Mapping[str, Any], answer: Any) -> None:
        line = {**job, **answer}
        lines.append(line)
        if asked.out:
            with open(asked.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        score = line.get("error") or f"{line['values'][ROWS[line['row']].metric]:.4f}  {line['seconds']:.0f} s"
        print(f"{len(jobs) - len(lines):>4} left  {job['row']:<11} ε {job['epsilon']:<4g}{job['side']:<9} {score}"[:90],
              flush=True)  # fmt: skip

    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    run_in_processes(jobs, told, workers=asked.workers, command=command, tolerant=True)
    return lines


def best_of(lines: Iterable[Values]) -> dict[tuple[str, float], Values]:
    best: dict[tuple[str, float], tuple[float, Values]] = {}
    for line in lines:
        if line["side"] == "choosing" and "values" in line:
            key, score = (line["row"], line["epsilon"]), line["values"][ROWS[line["row"]].metric]
            if key not in best or score > best[key][0]:
                best[key] = score, line["how"]
    return {key: how for key, (_, how) in best.items()}


def table(lines: Iterable[Values]) -> None:
    found: dict[tuple[str, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    chances: dict[str, float] = {}
    for line in lines:
        if "values" in line and line["side"] != "choosing":
            metric = ROWS[line["row"]].metric
            found[line["row"], line["epsilon"]][line["side"]].append(line["values"][metric])
            chances[line["row"]] = line["chance"].get(metric, 0.5 if metric == "auc" else 0.0)
    print("| federation | sites | ε | score | chance | new | own | tuned | kept, new | kept, own |\n|" + "---|" * 10)
    kept: dict[str, list[float]] = defaultdict(list)
    for (name, epsilon), sides in sorted(found.items(), key=lambda item: (list(ROWS).index(item[0][0]), item[0][1])):
        means, chance = {side: statistics.fmean(values) for side, values in sides.items()}, chances[name]
        shares = []
        gain = means.get("tuned", math.nan) - chance
        for side in ("new", "own"):
            share = (means[side] - chance) / gain if side in means and gain >= LEAST_GAIN else None
            shares.append("–" if share is None else f"{share:.2f}")
            if share is not None:
                kept[side].append(share)
        cells = [f"{means[side]:.3f}" if side in means else "–" for side in ("new", "own", "tuned")]
        row = ROWS[name]
        print(
            f"| {name} | {row.note} | {epsilon:g} | {row.metric} | {chance:.3f} | " + " | ".join(cells + shares) + " |"
        )
    for side, shares_of in kept.items():
        mean, worst = statistics.fmean(shares_of), min(shares_of)
        verdict = "met" if mean >= 0.9 and worst >= 0.75 else "MISSED"
        print(f"\n{side}: kept {mean:.3f} in the mean (aim 0.9), {worst:.3f} in the worst (aim 0.75): {verdict}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--out", help="append one JSON line per finished run")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="print the table from such files")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.started = time.time()
    if asked.serve:
        serve(work)
        return 0
    if asked.merge:
        lines = [json.loads(line) for file in asked.merge for line in Path(file).read_text("utf-8").splitlines()]
    else:
        lines = run_all(jobs_of(asked, best_of(run_all(jobs_of(asked, None), asked))), asked)
    print()
    table(lines)
    print(f"\n{math.ceil(time.time() - asked.started)} s in all")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuietsumError as error:
        sys.exit(f"error: {error}")
