"""Which levers are worth pulling? Each alone, on two tasks, at the same ε per record: with it minus without it.

    python benchmarks/levers.py [--task digits chest-xray] [--lever ema automatic …] [--seeds N]
    python benchmarks/levers.py --device cuda --workers 12 --out levers.jsonl --markdown
    python benchmarks/levers.py --merge levers.jsonl        the table from finished runs

Scores stand on rows that choose (validation images; for digits and fraud folds of the training rows), never on test
rows, since keeping a lever is a choice. A difference is paired by seed: same first weights where the model is the same,
same fold. Its interval is Student's over seeds. Everything else stays as the task has it, which favours what the task
does already: where a lever changes what a good learning rate is, both sides take the best of three, on the same rows.

    batch       the task's large batches and many epochs, against an eighth of the batch and a quarter of the epochs
    tanh        bounded activations in place of ReLU, in a convolutional network without norms
    groupnorm   group norm in that network, against none
    ema         an average of the weights of all steps, against the last ones
    automatic   every gradient scaled to the clip norm, against those that exceed it
    adam        DP-Adam, which takes the noise out of its second moment, against Adam
    views       the loss of a picture averaged over five small shifts (augmentation multiplicity), against the picture
    scattering  a linear model on fixed wavelet features, against a convolutional network
    exact       noise calibrated by the exact accountant, against Rényi accounting
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import utility  # beside this file; it also finds quietsum, with or without its other dependencies

from quietsum.errors import QuietsumError
from quietsum.tradeoff.intervals import difference_interval
from quietsum.tradeoff.workers import run_in_processes, serve

Values = dict[str, Any]
EPSILONS = {"digits": 3.0, "chest-xray": 8.0, "fraud": 1.0, "mnist": 3.0, "fashion-mnist": 3.0}
SHIFTS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lever:
    """Two sides that differ in one thing; ``tasks`` are those on which it can be pulled."""

    name: str
    without: Values
    with_it: Values
    tasks: tuple[str, ...] = ("digits", "chest-xray")
    rates: tuple[float, ...] = (1.0,)  # factors on the learning rate, the best one kept, on either side


CNN = {"network": "cnn"}
BARE = {**CNN, "activation": "relu", "norm": "none"}
LEVERS = (
    Lever(name="batch", without={"batch": 1 / 8, "epochs": 1 / 4}, with_it={}, rates=(0.1, 0.3, 1.0)),
    Lever(name="tanh", without=BARE, with_it={**BARE, "activation": "tanh"}, rates=(0.3, 1.0, 3.0)),
    Lever(name="groupnorm", without=BARE, with_it={**BARE, "norm": "group"}, rates=(0.3, 1.0, 3.0)),
    Lever(name="ema", without={"training": {"ema_decay": None}}, with_it={}, tasks=("digits", "chest-xray", "fraud")),
    Lever(name="automatic", without={"training": {"clipping": "flat"}}, with_it={"training": {"clipping": "automatic"}},
          rates=(0.3, 1.0, 3.0), tasks=("digits", "chest-xray", "fraud")),
    Lever(name="adam", without={"optimizer": "adam", "rate": 0.01}, with_it={"optimizer": "dp-adam", "rate": 0.01},
          rates=(0.3, 1.0, 3.0)),
    Lever(name="views", without=CNN, with_it={**CNN, "views": True}, rates=(0.3, 1.0, 3.0)),
    Lever(name="scattering", without=CNN, with_it={"network": "scattering"}, tasks=("chest-xray", "mnist"),
          rates=(0.3, 1.0, 3.0)),
    Lever(name="exact", without={"training": {"privacy_accounting": "rdp"}}, with_it={},
          tasks=("digits", "chest-xray", "fraud")),
)  # fmt: skip
BY_NAME = {lever.name: lever for lever in LEVERS}


# ------------------------------------------------------------------------------------------------- one run


def work(job: Values) -> Values:
    """One private run of one side of a lever."""
    import torch

    from quietsum.learning.config import PrivacyConfig
    from quietsum.learning.trainer import PrivateTrainer

    if job.get("until") and time.time() > job["until"]:
        raise QuietsumError("left out: the time was up")
    torch.set_num_threads(job.get("threads", 1))
    start, side = time.time(), job["side"]
    task = utility.made(job["task"], job["options"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job["seed"])  # first weights are public
        model = rebuilt(task.model(), side).to(job["device"])
    settings = task.settings
    training = {**settings.training, **side.get("training", {})}
    training["batch_size"] = max(1, round(training["batch_size"] * side.get("batch", 1)))
    training["epochs"] = job.get("epochs") or max(1, round(training["epochs"] * side.get("epochs", 1)))
    config = PrivacyConfig(**{**training, "epsilon": EPSILONS[job["task"]], "public_size": task.size})
    loss = averaged_over_views(task) if side.get("views") else task.loss
    trainer = PrivateTrainer(model, config, loss=loss, selfcheck=False)
    rate = side.get("rate", settings.learning_rate) * job["factor"]
    records = tuple(part.to(job["device"]) for part in task.records())
    trainer.train(records, learning_rate=rate, optimizer=side.get("optimizer", settings.optimizer))
    found, plan = task.evaluate(model), trainer.plan
    assert plan is not None
    return {
        "values": dict(found.values), "on": found.on, "spent": trainer.guarantee().epsilon, "delta": plan.delta,
        "noise_multiplier": plan.stages[0].noise_multiplier, "steps": plan.steps, "engine": trainer.engine,
        "seconds": round(time.time() - start, 1),
    }  # fmt: skip


def rebuilt(model: Any, side: Values) -> Any:
    """``model`` with other activations, or without its norms; weights stay as they are."""
    from torch import nn

    if "activation" not in side:
        return model
    parts: list[Any] = []
    for part in model:
        if isinstance(part, nn.Tanh):
            part = nn.Tanh() if side["activation"] == "tanh" else nn.ReLU()
        if isinstance(part, nn.GroupNorm) and side["norm"] == "none":
            continue
        parts.append(part)
    return nn.Sequential(*parts)


def averaged_over_views(task: Any) -> Any:
    """The mean of the task's loss over five shifts of each picture: one loss per record, so one gradient to clip."""
    import torch

    def loss(model: Any, batch: tuple[Any, ...]) -> Any:
        images, labels = batch
        flat = images.ndim == 2
        pictures = images.reshape(len(images), 1, 8, 8) if flat else images
        losses = [
            task.loss(model, (torch.roll(pictures, shift, (-2, -1)).reshape(images.shape), labels)) for shift in SHIFTS
        ]
        return torch.stack(losses).mean(0)

    return loss


# -------------------------------------------------------------------------------------------- many of them


def jobs_of(asked: argparse.Namespace) -> list[Values]:
    jobs = []
    for lever in [BY_NAME[name] for name in asked.lever or BY_NAME]:
        for task, seed, factor in itertools.product(lever.tasks, range(asked.seeds), lever.rates):
            if asked.task and task not in asked.task:
                continue
            for which, side in (("without", lever.without), ("with", lever.with_it)):
                options = utility.held_out(utility.BY_LABEL[task], side.get("network", ""), seed)
                options = {name: value for name, value in options.items() if value != ""}
                gpu = asked.device == "cuda" and (task != "digits" and task != "fraud")
                jobs.append({
                    "lever": lever.name, "which": which, "task": task, "seed": seed, "factor": factor, "side": side,
                    "options": options, "device": "cuda" if gpu else "cpu", "threads": 3 if gpu else 1,
                    "until": None if asked.minutes is None else asked.started + 60 * asked.minutes,
                    "epochs": 2 if asked.quick else None,
                })  # fmt: skip
    return sorted(jobs, key=lambda job: job["seed"])


def run_all(jobs: list[Values], asked: argparse.Namespace, lines: list[Values]) -> None:
    """GPU jobs first, then CPU jobs; one line for each as it ends."""
    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    left = len(jobs)

    def told(job: Mapping[str, Any], answer: Any) -> None:
        nonlocal left
        left -= 1
        line = {**job, **answer}
        if asked.out:
            with open(asked.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        score = line.get("error") or f"{next(iter(line['values'].values())):.4f}  {line['seconds']:.0f} s"
        head = f"{left:>4} left  {job['task']:<11} {job['lever']:<11}{job['which']:<8} seed {job['seed']} "
        print(f"{head}× {job['factor']:<4} {score}"[:80], flush=True)
        if "values" in line:
            lines.append(line)

    for device, count in (("cuda", asked.gpu_workers), ("cpu", asked.workers)):
        some = [job for job in jobs if job["device"] == device]
        if some:
            run_in_processes(some, told, workers=count, command=command, tolerant=True)


# ------------------------------------------------------------------------------------------------ the table


def table(lines: Iterable[Values], *, markdown: bool) -> None:
    """One row for each lever and task."""
    runs: dict[tuple[str, str, str], dict[float, dict[int, Values]]] = {}
    for line in lines:
        if "values" in line:
            side = runs.setdefault((line["lever"], line["task"], line["which"]), {})
            side.setdefault(line["factor"], {})[line["seed"]] = line
    heading = ("lever", "task", "ε", "score", "without", "with", "gain [95 % interval]", "noise")
    rows = []
    for lever, task in itertools.product(LEVERS, EPSILONS):
        sides = [runs.get((lever.name, task, which), {}) for which in ("without", "with")]
        if all(sides):
            rows.append(_cells(lever, task, *(_best(side) for side in sides)))
    if not rows:
        print("no finished runs")
        return
    print("ε per record; scores on rows that choose, mean over seeds.\n")
    if markdown:
        print("| " + " | ".join(heading) + " |\n|" + "---|" * len(heading))
        for cells in rows:
            print("| " + " | ".join(cells) + " |")
        return
    widths = (11, 11, 2, 9, 8, 7, 27, 5)
    print("".join(f"{text:<{width}}" for text, width in zip(heading, widths, strict=True)).rstrip())
    for cells in rows:
        print("".join(f"{text:<{width}}" for text, width in zip(cells, widths, strict=True)).rstrip())


def _best(side: dict[float, dict[int, Values]]) -> dict[int, Values]:
    """The learning rate with the best mean, among those that all seeds have."""
    most = max(len(of_seed) for of_seed in side.values())
    complete = [of_seed for of_seed in side.values() if len(of_seed) == most]
    return max(complete, key=lambda of_seed: statistics.fmean(_score(run) for run in of_seed.values()))


def _score(run: Values) -> float:
    return float(next(iter(run["values"].values())))


def _cells(lever: Lever, task: str, without: dict[int, Values], with_it: dict[int, Values]) -> tuple[str, ...]:
    both = sorted(set(without) & set(with_it))
    before, after = [_score(without[seed]) for seed in both], [_score(with_it[seed]) for seed in both]
    metric = next(iter(without[both[0]]["values"]))
    span = difference_interval(after, before)
    gain = f"{statistics.fmean(after) - statistics.fmean(before):+.4f}"
    if span is not None:
        gain += f" [{span[0]:+.4f}, {span[1]:+.4f}]"
    noise = with_it[both[0]]["noise_multiplier"] / without[both[0]]["noise_multiplier"]
    return (
        lever.name, task, f"{EPSILONS[task]:g}", metric, f"{statistics.fmean(before):.4f}",
        f"{statistics.fmean(after):.4f}", gain, f"{noise:.3f}",
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=sorted(EPSILONS))
    parser.add_argument("--lever", nargs="+", choices=sorted(BY_NAME))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--gpu-workers", type=int, default=4)
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--out", help="append one JSON line per finished run")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="print the table from such files")
    parser.add_argument("--quick", action="store_true", help="two epochs: does everything run?")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.started = time.time()
    if asked.serve:
        serve(work)
        return 0
    lines: list[Values] = utility.read_lines(asked.merge) if asked.merge else []
    if not asked.merge:
        run_all(jobs_of(asked), asked, lines)
    print()
    table(lines, markdown=asked.markdown)
    print(f"\n{time.time() - asked.started:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
