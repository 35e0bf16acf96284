"""How much of each task's score does privacy leave? Ours beside the same model without privacy, and beside print.

    python benchmarks/utility.py                          the table: every task, private and plain, paired by seed
    python benchmarks/utility.py --task fraud --seeds 3   one task, fewer seeds (fraud: seeds are paired splits)
    python benchmarks/utility.py --device cuda --workers 14 --out runs.jsonl --markdown
    python benchmarks/utility.py --merge runs.jsonl       the table from finished runs, nothing is trained
    python benchmarks/utility.py --choose --chosen best.json    settings chosen on validation rows, from a small grid
    python benchmarks/utility.py --settings best.json     the table with those settings
    python benchmarks/utility.py --quick                  three epochs and two seeds: does everything run?

Settings are chosen on rows that are not tested on: each task's ``evaluate_on="validation"``; for digits, which has
none, four folds of the training rows; for fraud, whose validation rows are few and may be where a run starts, a fifth
of each split's own training rows. Plain runs are tuned the same way, so that the comparison is not with a straw
man. For nuclei and fraud, whose seeds are splits, rows of several splits choose together: a row that chooses in one
split may be tested in another, so the settings have seen it there, never a model. All rows are published,
so choosing is charged to nobody; on protected rows it would be (quietsum tradeoff says how much). A seed decides first
weights, the order of plain batches, and the split where a task has ten. Noise and Poisson batches come from the
operating system. Test rows are scored once, after the last step.

Every finished run is one line of --out, so a run that is cut loses nothing. Data is read below $QUIETSUM_DATA; a task
whose data is missing is left out, and said so. The script needs torch, numpy, scipy and cryptography, and from
scikit-learn the digits; the other dependencies of quietsum may be missing.
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
import threading
import time
import types
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))


def _without_plans() -> None:
    """Where pydantic is missing: quietsum without federations, whose plans no torch task needs."""
    try:
        import pydantic  # noqa: F401
    except ImportError:
        plan = types.ModuleType("quietsum.plan")
        plan.PartyFacts = object  # type: ignore[attr-defined]
        sys.modules["quietsum.plan"] = plan


_without_plans()

from quietsum.errors import QuietsumError
from quietsum.tradeoff.intervals import difference_interval, mean_interval
from quietsum.tradeoff.workers import run_in_processes, serve

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison: a task at some ε, what is aimed at, and what others print."""

    task: str
    name: str = ""  # in the table, where one task has several rows
    options: Values = dataclasses.field(default_factory=dict)  # of the task
    epsilons: tuple[float, ...]
    metric: str
    seeds: int
    delta: float | None = None
    least: Mapping[float, float] = dataclasses.field(default_factory=dict)  # of the mean, by ε
    within: Mapping[float, float] = dataclasses.field(default_factory=dict)  # of the plain run's mean, by ε
    published: Mapping[float | None, str] = dataclasses.field(default_factory=dict)
    also: tuple[str, ...] = ()
    gpu: bool = False
    chosen_by: int = 2  # seeds while settings are chosen: more where validation rows are few

    @property
    def label(self) -> str:
        """How the table calls it."""
        return self.name or self.task


ROWS = (
    Row(task="digits", epsilons=(3.0,), metric="accuracy", seeds=10, least={3.0: 0.94}, chosen_by=8),
    Row(
        task="mnist", epsilons=(2.29, 3.0), metric="accuracy", seeds=5, delta=1.6e-6, gpu=True,
        least={2.29: 0.978, 3.0: 0.985}, published={2.29: ".968 Opacus", 3.0: ".987 ScatterNet", None: ".989 Opacus"},
    ),
    Row(
        task="fashion-mnist", epsilons=(3.0,), metric="accuracy", seeds=5, delta=1.6e-6, gpu=True, least={3.0: 0.89},
        published={3.0: ".897 ScatterNet"},
    ),
    Row(
        task="chest-xray", epsilons=(8.0,), metric="auc", seeds=5, also=("accuracy",), gpu=True, within={8.0: 0.01},
        published={None: ".959, accuracy .880 MedMNIST-DP", 8.0: ".960, accuracy .869 MedMNIST-DP"},
    ),
    Row(
        task="fraud", epsilons=(1.0,), metric="auprc", seeds=10, also=("f1", "auc"), within={1.0: 0.04}, chosen_by=6,
        published={1.0: "F1 .816 NVFLARE"},
    ),
    Row(
        task="fraud", name="fraud from a public tenth", options={"start": "public"}, epsilons=(1.0,), metric="auprc",
        seeds=10, also=("f1", "auc"), chosen_by=6,
    ),  # no aim: the public rows alone come as close
    Row(task="pose", epsilons=(8.0, 3.0), metric="accuracy", seeds=5, chosen_by=5),
    Row(task="nuclei", epsilons=(8.0,), metric="dice", seeds=5, gpu=True),
    Row(task="cards", epsilons=(8.0,), metric="auc", seeds=3, also=("auprc",)),
)  # fmt: skip
BY_LABEL = {row.label: row for row in ROWS}

# What --choose tries: the product of the lists. A learning rate is written as rate × clip, since only that product
# moves the weights where nearly every gradient is clipped. The optimizer is momentum unless the grid names others.
GRIDS: dict[str, list[dict[str, list[Any]]]] = {
    "digits": [{"network": ["mlp"], "batch_size": [128, 256, 512], "epochs": [20, 40], "max_grad_norm": [0.1],
                "move": [0.05, 0.1, 0.2], "clipping": ["flat", "automatic"]}],
    "mnist": [{"network": ["scattering"], "batch_size": [2048, 4096], "epochs": [27, 40], "max_grad_norm": [0.1],
               "move": [0.4, 0.8]}],
    "fashion-mnist": [{"network": ["scattering"], "batch_size": [4096, 8192], "epochs": [40, 60],
                       "max_grad_norm": [0.1], "move": [0.4, 0.8, 1.6]}],
    "chest-xray": [
        {"network": ["scattering", "mlp"], "batch_size": [1024], "epochs": [60, 120], "max_grad_norm": [0.1],
         "move": [0.05, 0.2, 0.8], "clipping": ["flat", "automatic"]},
        {"network": ["cnn"], "batch_size": [1024], "epochs": [60, 120], "max_grad_norm": [0.1], "move": [0.1, 0.3]},
    ],
    "fraud": [{"network": ["linear"], "batch_size": [10**9], "epochs": [100, 200], "max_grad_norm": [0.6, 1.2, 2.4],
               "move": [180.0, 600.0, 1800.0], "optimizer": ["sgd"]}],
    "pose": [
        {"network": ["linear"], "batch_size": [10**9], "epochs": [10, 20, 40], "max_grad_norm": [0.3, 1.0],
         "move": [1.0, 3.0, 10.0], "clipping": ["flat", "automatic"]},
        {"network": ["stgcn"], "batch_size": [10**9], "epochs": [60], "max_grad_norm": [0.5], "move": [0.1, 0.3]},
    ],
    "nuclei": [
        {"network": ["unet"], "batch_size": [128, 256], "epochs": [60], "max_grad_norm": [0.1, 0.5],
         "move": [0.1, 0.3, 1.0]},
        {"network": ["unet"], "batch_size": [256], "epochs": [60, 120], "max_grad_norm": [0.5], "move": [0.1, 0.3, 1.0],
         "clipping": ["automatic"]},
    ],
    "cards": [{"network": ["linear"], "batch_size": [4_000, 16_000], "epochs": [10, 30], "max_grad_norm": [0.5],
               "move": [1.0, 4.0]}],
}  # fmt: skip
PLAIN_APART = ("fraud",)  # a hundred steps of all records are no way to train plainly: around plain_settings instead
PLAIN_FACTORS, PLAIN_LENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (1, 2)  # of the rule's learning rate, and epochs


# ------------------------------------------------------------------------------------------------- one run


def made(name: str, options: Values) -> Any:
    """The task; with ``fold`` some of its training rows are scored instead of trained on."""
    from quietsum.tasks.registry import trainable_task

    fold = options.get("fold")
    task = trainable_task(name, {key: value for key, value in options.items() if key != "fold"})
    return task if fold is None else Folded(task, fold)


class Folded:
    """A task whose training rows of one fold are scored instead of trained on.

    Digits have four folds, by row number. Fraud has five, by what a row holds, so that exact copies stay together.
    """

    def __init__(self, task: Any, fold: int) -> None:
        self.name, self.title, self.public, self.loss, self.model = (
            task.name, task.title, task.public, task.loss, task.model
        )  # fmt: skip
        self._records = task.records()
        if task.name == "fraud":
            self._held = by_contents(self._records[0], 5) == fold % 5
            self.plain_settings = task.plain_settings
        else:
            self._held = by_number(self._records[0], 4) == fold % 4
        self.size = int((~self._held).sum())
        training = {**task.settings.training}
        training["batch_size"] = min(training["batch_size"], self.size)
        self.settings = dataclasses.replace(task.settings, training=training)

    def records(self) -> tuple[Any, ...]:
        """The other folds."""
        return tuple(part[~self._held] for part in self._records)

    def evaluate(self, model: Any) -> Any:
        """On the fold: average precision of fraud, accuracy of digits."""
        from quietsum.tasks import Metrics
        from quietsum.tasks.models import log_odds, outputs
        from quietsum.tasks.scores import average_precision

        values, labels = (part[self._held] for part in self._records)
        if self.name == "fraud":
            scores = {"auprc": average_precision(labels.numpy(), log_odds(model, values))}
        else:
            scores = {"accuracy": float((outputs(model, values).argmax(-1) == labels).double().mean())}
        return Metrics(values=scores, on=f"{len(labels)} training rows held out")


def by_number(rows: Any, folds: int) -> Any:
    """The fold of each row, in turn."""
    import torch

    return torch.arange(len(rows)) % folds


def by_contents(rows: Any, folds: int) -> Any:
    """The fold of each row from its own bytes (CRC-32), whatever other rows there are."""
    import torch

    return torch.tensor([zlib.crc32(row.tobytes()) % folds for row in rows.numpy()])


def settings_of(values: Values | None, size: int) -> Any:
    """Settings from JSON; a batch is never larger than the data."""
    from quietsum.tasks import Settings

    if values is None:
        return None
    training = {**values["training"]}
    training["batch_size"] = min(training["batch_size"], size)
    return Settings(learning_rate=values["learning_rate"], optimizer=values["optimizer"], training=training)


def work(job: Values) -> Values:
    """One run: scores, and for a private one what it cost, exactly, at its δ and at 1/(10 n)."""
    import torch

    from quietsum.learning.clients.plain import PlainlyTuned, fresh_model, plain_learning_rate, train_plainly
    from quietsum.learning.config import PrivacyConfig
    from quietsum.learning.trainer import PrivateTrainer
    from quietsum.privacy.exact.accountant import ExactAccountant

    if job.get("until") and time.time() > job["until"]:
        raise QuietsumError("left out: the time was up")
    torch.set_num_threads(job.get("threads", 1))
    start = time.time()
    task = made(job["task"], job["options"])
    model = fresh_model(task, job["seed"]).to(job["device"])
    settings = settings_of(job.get("wanted"), task.size)
    cost: Values = {}
    if job["epsilon"] is None:
        rate = plain_learning_rate(task.settings)
        rule = dataclasses.replace(task.settings, learning_rate=rate)
        told = settings or (task.plain_settings if isinstance(task, PlainlyTuned) else rule)
        if job.get("plain_factor"):  # while plain settings are chosen
            if job["task"] in PLAIN_APART:
                rule, rate = task.plain_settings, task.plain_settings.learning_rate
            training = {**rule.training, "epochs": rule.training["epochs"] * job["plain_length"]}
            told = dataclasses.replace(rule, learning_rate=rate * job["plain_factor"], training=training)
        train_plainly(task, settings=told, epochs=job.get("epochs"), seed=job["seed"], model=model)
    else:
        told = settings or task.settings
        stated = {"delta": job.get("delta"), "epochs": job.get("epochs")}
        options = {**told.training, **{name: value for name, value in stated.items() if value is not None}}
        config = PrivacyConfig(**{**options, "epsilon": job["epsilon"], "public_size": task.size})
        trainer = PrivateTrainer(model, config, loss=task.loss, selfcheck=job.get("selfcheck", False))
        records = tuple(part.to(job["device"]) for part in task.records())
        trainer.train(records, learning_rate=told.learning_rate, optimizer=told.optimizer)
        spent, plan = trainer.guarantee(), trainer.plan
        assert plan is not None
        tenth = ExactAccountant(neighbours=plan.neighbours).compose(plan.event()).epsilon(delta=1 / (10 * task.size))
        cost = {
            "spent": spent.epsilon, "delta": spent.delta, "neighbours": spent.neighbours.value, "steps": plan.steps,
            "noise_multiplier": plan.stages[0].noise_multiplier, "spent_at_tenth": tenth.epsilon,
            "tenth": 1 / (10 * task.size), "engine": trainer.engine.split(":")[0],
        }  # fmt: skip
    found = task.evaluate(model)
    if job.get("epochs"):
        told = dataclasses.replace(told, training={**told.training, "epochs": job["epochs"]})
    return {
        **cost, "values": dict(found.values), "on": found.on, "records": task.size,
        "seconds": round(time.time() - start, 1), "settings": dataclasses.asdict(told),
    }  # fmt: skip


# -------------------------------------------------------------------------------------------- many of them


def run_all(jobs: list[Values], asked: argparse.Namespace, seen: Callable[[Values], None]) -> None:
    """CPU jobs in one-thread processes, GPU jobs in a few processes beside them; ``seen`` hears of each as it ends."""
    lock = threading.Lock()
    out = None if asked.out is None else open(asked.out, "a", encoding="utf-8")  # noqa: SIM115  # closed below
    left = len(jobs)

    def told(job: Mapping[str, Any], answer: Any) -> None:
        nonlocal left
        line = {**job, **answer}
        with lock:
            left -= 1
            if out is not None:
                out.write(json.dumps(line) + "\n")
                out.flush()
            what = "none" if job["epsilon"] is None else f"{job['epsilon']:g}"
            head = f"{left:>4} left  {job['row'][:13]:<13} ε {what:<5} seed {job['seed']:<3}"
            if "error" in line:
                print(f"{head} {line['error']}"[:80], flush=True)
                return
            score = ", ".join(f"{name} {value:.4f}" for name, value in line["values"].items())
            print(f"{head} {score}  {line['seconds']:.0f} s"[:80], flush=True)
            seen(line)

    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    on_gpu = [job for job in jobs if job["device"] != "cpu"]
    pools = [
        threading.Thread(target=run_in_processes, args=(some, told),
                         kwargs={"workers": count, "command": command, "tolerant": True})
        for some, count in ((on_gpu, asked.gpu_workers), ([j for j in jobs if j["device"] == "cpu"], asked.workers))
        if some
    ]  # fmt: skip
    for pool in pools:
        pool.start()
    for pool in pools:
        pool.join()
    if out is not None:
        out.close()


def placed(job: Values, asked: argparse.Namespace) -> Values:
    """Where a job runs, and until when jobs are begun."""
    gpu = asked.device == "cuda" and (BY_LABEL[job["row"]].gpu or job["options"].get("network") in ("cnn", "stgcn"))
    until = None if asked.minutes is None else asked.started + 60 * asked.minutes
    place = {"device": "cuda", "threads": 3} if gpu else {"device": "cpu", "threads": 1}
    return {**job, **place, "until": until, "epochs": 3 if asked.quick else None}


def splits(task: str) -> bool:
    return task in ("fraud", "nuclei")  # seed s stands for split s


def table_jobs(asked: argparse.Namespace, chosen: Values) -> list[Values]:
    jobs = []
    for row in asked.rows:
        known = chosen.get(row.label, {})
        seeds = asked.seeds or (2 if asked.quick else row.seeds)
        for epsilon, seed in itertools.product((None, *row.epsilons), range(seeds)):
            if epsilon is None:
                best = known.get("plain")
            else:  # chosen at this ε, or at the row's first one
                best = known.get(f"private {epsilon:g}") or known.get(f"private {row.epsilons[0]:g}")
            options = {**row.options, **(best["options"] if best else {})}
            if asked.network:
                options["network"] = asked.network
            if splits(row.task):
                options["split"] = seed
            jobs.append(placed({
                "row": row.label, "task": row.task, "options": options, "epsilon": epsilon, "seed": seed,
                "delta": row.delta, "selfcheck": seed == 0, "wanted": best["settings"] if best else None,
            }, asked))  # fmt: skip
    return sorted(jobs, key=lambda job: job["seed"])


# ------------------------------------------------------------------------------------------------ the table


def row_of(line: Values) -> str:
    return str(line.get("row", line["task"]))  # runs of a time when every task had one row do not name it


def table(lines: Iterable[Values], *, markdown: bool) -> None:
    """Means, spreads, and paired differences to the runs without privacy."""
    found: dict[tuple[str, float | None], dict[int, Values]] = {}
    for line in lines:
        if "values" in line and not line.get("choosing"):
            found.setdefault((row_of(line), line["epsilon"]), {})[line["seed"]] = line
    heading = ("task", "ε ≤ per record", "score", "mean ± spread", "less than plain", "published", "target")
    rows = []
    for row in ROWS:
        plain = found.get((row.label, None), {})
        for epsilon in (None, *row.epsilons):
            runs = found.get((row.label, epsilon), {})
            for metric in (row.metric, *row.also) if runs else ():
                rows.append(_cells(row, epsilon, metric, runs, plain))
    if not rows:
        print("no finished runs")
        return
    print("Mean ± deviation over seeds [95 % interval of the mean]; ε per record.\n")
    if markdown:
        print("| " + " | ".join(heading) + " |\n|" + "---|" * len(heading))
        for cells in rows:
            print("| " + " | ".join(cells) + " |")
    else:
        for cells in rows:  # two lines each, within 80 columns
            if len(cells[0]) > 13:
                print(cells[0])
            short = cells[0] if len(cells[0]) < 14 else ""
            print(f"{short:<14}ε {cells[1]:<20} {cells[2]:<9}{cells[3]}")
            for name, text in zip(heading[4:], cells[4:], strict=True):
                if text not in ("", "–"):
                    print(f"{'':<16}{name} {text}")
    print()
    for row in ROWS:
        for epsilon in (None, *row.epsilons):
            runs = found.get((row.label, epsilon), {})
            if runs:
                _paragraph(_footnote(row, epsilon, list(runs.values())))


def _cells(row: Row, epsilon: float | None, metric: str, runs: dict[int, Values], plain: dict[int, Values]) -> Any:
    seeds = sorted(seed for seed in runs if metric in runs[seed]["values"])
    values = [runs[seed]["values"][metric] for seed in seeds]
    if not values:
        return (row.label, "", metric, "–", "–", "–", "–")
    mean = statistics.fmean(values)
    spread = f"{mean:.4f} ± {statistics.stdev(values):.4f}" if len(values) > 1 else f"{mean:.4f}"
    shown = _span(mean_interval(values))
    cost, less, verdict = "none", "–", "–"
    if epsilon is not None:
        cost = f"{max(runs[seed]['spent'] for seed in seeds):.4f}, δ {max(runs[seed]['delta'] for seed in seeds):.2g}"
        both = [seed for seed in seeds if seed in plain and metric in plain[seed]["values"]]
        pairs = [plain[seed]["values"][metric] for seed in both], [runs[seed]["values"][metric] for seed in both]
        if both:
            gap = statistics.fmean(pairs[0]) - statistics.fmean(pairs[1])
            less = f"{gap:+.4f} {_span(difference_interval(*pairs))}".strip()
        if metric == row.metric and epsilon in row.least:
            verdict = f"≥ {row.least[epsilon]:g} {'met' if mean >= row.least[epsilon] else 'MISSED'}"
        elif metric == row.metric and epsilon in row.within:
            verdict = f"≤ {row.within[epsilon]:g} " + ("no plain runs" if not both else "met" if gap <= row.within[epsilon] else "MISSED")  # noqa: E501  # fmt: skip
    published = row.published.get(epsilon, "–") if metric == row.metric or row.task == "fraud" else "–"
    if row.task == "fraud" and metric != "f1":
        published = "–"
    return (row.label, cost, metric, f"{spread} {shown}".strip(), less, published, verdict)


def _paragraph(text: str, indent: str = "") -> None:
    print(textwrap.fill(text, 80, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False))


def _span(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]"


def _footnote(row: Row, epsilon: float | None, runs: list[Values]) -> str:
    one = runs[0]
    what = f"{len(runs)} runs on {one['on']}; {one['records']} records"
    if epsilon is None:
        return f"{row.label}, none: {what}; {_told(one)}"
    tenth = f"ε ≤ {max(run['spent_at_tenth'] for run in runs):.4f} per record at δ = 1/(10 n) = {one['tenth']:.2g}"
    return f"{row.label}, ε {epsilon:g}: {what}; {tenth}; {one['neighbours']}; σ {one['noise_multiplier']:.4g}, {one['steps']} steps; {_told(one)}"  # noqa: E501  # fmt: skip


def _told(run: Values) -> str:
    told = run["settings"]
    some = ", ".join(f"{name} {value}" for name, value in told["training"].items() if name != "delta")
    network = run["options"].get("network", "the task's network")
    return f"{network}, {told['optimizer']} {told['learning_rate']:g}, {some}"


# ---------------------------------------------------------------------------------------------- choosing


def choosing_jobs(asked: argparse.Namespace) -> list[Values]:
    """Every candidate on rows held out; all of them at seed 0 first, so that a cut grid is a whole one."""
    jobs: list[Values] = []
    for row in asked.rows:
        seeds, kept = asked.seeds or row.chosen_by, _base(row)
        only = [asked.network] if asked.network else [name for grid in GRIDS[row.task] for name in grid["network"]]
        grids = [{**grid, "network": [name for name in grid["network"] if name in only]} for grid in GRIDS[row.task]]
        for number, (seed, grid) in enumerate(itertools.product(range(seeds), () if asked.plain else grids)):
            names = list(grid)
            for values in itertools.product(*grid.values()):
                tried = dict(zip(names, values, strict=True))
                options = held_out(row, tried.pop("network"), seed)
                optimizer, move = tried.pop("optimizer", "momentum"), tried.pop("move")
                training = {**kept, **tried}
                rate = move / training["max_grad_norm"]
                settings = {"learning_rate": rate, "optimizer": optimizer, "training": training}
                for epsilon in row.epsilons[:1] if row.gpu else row.epsilons:
                    jobs.append({"row": row.label, "task": row.task, "options": options, "epsilon": epsilon,
                                 "seed": seed, "delta": row.delta, "wanted": settings, "choosing": number})  # fmt: skip
        for seed, network, factor, length in itertools.product(
            range(seeds), dict.fromkeys(only), PLAIN_FACTORS, PLAIN_LENGTHS
        ):
            jobs.append({"row": row.label, "task": row.task, "options": held_out(row, network, seed),
                         "epsilon": None, "seed": seed, "plain_factor": factor, "plain_length": length,
                         "choosing": seed})  # fmt: skip
    if asked.quick:
        jobs = jobs[:: max(1, len(jobs) // 12)]
    return [placed(job, asked) for job in sorted(jobs, key=lambda job: job["seed"])]


def held_out(row: Row, network: str, seed: int) -> Values:
    """Options of the task with which rows choose that are not tested on."""
    split = {"split": seed} if splits(row.task) or row.task == "pose" else {}  # pose: who of five is left out
    rows = {"fold": seed} if row.task in ("digits", "fraud") else {"evaluate_on": "validation"}
    return {**row.options, "network": network, **rows, **split}


def _base(row: Row) -> Values:
    """What the grid leaves alone: the average of weights, and δ."""
    from quietsum.tasks.registry import trainable_task

    training = trainable_task(row.task, row.options).settings.training
    return {name: training[name] for name in ("ema_decay", "delta") if name in training}


def best_of(lines: Iterable[Values]) -> Values:
    """For each task and ε the candidate with the best mean on rows held out, over the seeds that all have."""
    groups: dict[tuple[str, str], dict[str, list[Values]]] = {}
    for line in lines:
        if "values" in line and "choosing" in line:
            key = "plain" if line["epsilon"] is None else f"private {line['epsilon']:g}"
            training = line["settings"]["training"]
            if training["batch_size"] >= line["records"]:
                training["batch_size"] = 10**9  # all records, however many: splits differ in it
            name = json.dumps([line["options"].get("network"), line["settings"]], sort_keys=True)
            groups.setdefault((row_of(line), key), {}).setdefault(name, []).append(line)
    best: Values = {}
    for (label, key), candidates in sorted(groups.items()):
        metric = BY_LABEL[label].metric
        most = max(len(runs) for runs in candidates.values())
        ranked = sorted(
            ((statistics.fmean(run["values"][metric] for run in runs), runs) for runs in candidates.values()
             if len(runs) == most), key=lambda pair: pair[0], reverse=True,
        )  # fmt: skip
        print()
        _paragraph(f"{label}, {key}: {metric} on rows held out, {most} runs each, the best of {len(ranked)}")
        for score, runs in ranked[:6]:
            _paragraph(f"{score:.4f}  {_told(runs[0])}", "  ")
        winner = ranked[0][1][0]
        kept = {k: v for k, v in winner["options"].items() if k == "network"}
        best.setdefault(label, {})[key] = {
            "options": kept, "settings": winner["settings"], "score": ranked[0][0], "metric": metric, "runs": most,
        }  # fmt: skip
    return best


# -------------------------------------------------------------------------------------------------- main


def read_lines(paths: Iterable[str]) -> list[Values]:
    """Lines of finished runs; a last line that was cut is left out."""
    found = []
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                print(f"{path}: a line that is no JSON is left out", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=sorted({row.task for row in ROWS}), help="some of the tasks")
    parser.add_argument("--network", help="another network of the task, or the one to choose for")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes for CPU jobs, one thread each")
    parser.add_argument("--gpu-workers", type=int, default=4, help="processes that share the GPU")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--out", help="append one JSON line per finished run")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="print the table, or --choose, from such files")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--plain", action="store_true", help="choose settings of the plain runs alone")
    parser.add_argument("--chosen", metavar="FILE", help="where --choose writes its choice")
    parser.add_argument("--settings", metavar="FILE", help="what --choose wrote")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.started = time.time()
    asked.rows = [row for row in ROWS if not asked.task or row.task in asked.task]
    if asked.serve:
        serve(work)
        return 0
    lines: list[Values] = read_lines(asked.merge) if asked.merge else []
    if not asked.merge:
        chosen = json.loads(Path(asked.settings).read_text(encoding="utf-8")) if asked.settings else {}
        jobs = choosing_jobs(asked) if asked.choose else table_jobs(asked, chosen)
        run_all(jobs, asked, lines.append)
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
