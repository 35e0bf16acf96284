"""Do the defaults learn? Every known data set with nothing tuned, beside our tuned settings and Opacus' tutorial.

    python benchmarks/defaults.py                              the table
    python benchmarks/defaults.py --task digits cards --epsilon 3 --seeds 2
    python benchmarks/defaults.py --device cuda --workers 14 --out runs.jsonl
    python benchmarks/defaults.py --merge runs.jsonl --markdown
    python benchmarks/defaults.py --quick                      one task, one ε: does everything run?
    python benchmarks/defaults.py --person --epsilon 4         ε per person, where people are known (cards, pose)

For each task and ε per record there are three sides, all with δ = 1/(10 n) and the task's own model:

    defaults   PrivateTrainer(model, PrivacyConfig(epsilon=ε)).train(records): see quietsum.learning.defaults
    tuned      the best of 14 settings, by their score on validation rows with one seed, trained anew
    Opacus     the settings of Opacus' own MNIST tutorial (SGD, learning rate 0.1, clip 1, batch 64, 10 epochs; its
               CIFAR tutorial takes others), where Opacus is installed

Per person, both sides use at most so many records of each as PEOPLE says, and Opacus, which knows no people, is left
out. ``signal`` is Z of quietsum.plan.Learnable, which ``quietsum plan`` prints: below 5 it says that nothing can be
learnt. What is gained counts over chance: AUC 0.5, the largest class. A row where tuning gains less than 0.05 says
nothing about defaults and leaves the ratio. Test rows are scored once a run, after the last step; all rows are
published, so choosing costs nobody anything. Scores of ``heart`` are those of its four hospitals pooled.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import math
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import utility  # beside this file; it also finds quietsum, with or without its other dependencies

from quietsum.errors import QuietsumError
from quietsum.tradeoff.workers import run_in_processes, serve

Values = dict[str, Any]
TASKS = ("heart", "digits", "pose", "cards", "chest-xray", "fraud", "nuclei", "mnist")
SMALL = ("heart", "digits", "pose")
ON_GPU = ("nuclei", "mnist")
PEOPLE = {"cards": 4, "pose": 4}  # records of each that are used, as in a fresh plan
EPSILONS = (1.0, 3.0, 8.0)
LEAST_GAIN = 0.05


def settings() -> list[Values]:
    """What tuning tries beside the task's own settings. ``move`` is learning rate × clip, as in utility.py."""
    found: list[Values] = []
    for clip, move in itertools.product((0.1, 1.0), (0.05, 0.2, 0.8)):
        found.append({"optimizer": "momentum", "rate": move / clip, "clip": clip, "steps": 200})
    for rate, steps in itertools.product((0.005, 0.02, 0.06), (100, 300)):
        found.append({"optimizer": "adam", "rate": rate, "clip": 1.0, "steps": steps})
    found.append({"optimizer": "adam", "rate": 0.02, "clip": 0.1, "steps": 200})
    return found


# ------------------------------------------------------------------------------------------------- one run


class Heart:
    """The patients of all four hospitals with a torch model, and validation rows taken off them."""

    name = "heart"

    def __init__(self, evaluate_on: str) -> None:
        import numpy as np
        import torch
        from torch import nn

        from quietsum.learning import cross_entropy
        from quietsum.tasks.gallery.heart import HeartTask

        task = HeartTask.from_package()
        rows = [task.rows(facts.name) for facts in task.parties()]
        shown = list(task._held_out.values())
        inputs, labels = (np.concatenate([getattr(part, name) for part in rows]) for name in ("features", "labels"))
        scored, wanted = (np.concatenate([getattr(part, name) for part in shown]) for name in ("features", "labels"))
        if evaluate_on == "validation":
            held = np.arange(len(labels)) % 4 == 0
            scored, wanted, inputs, labels = inputs[held], labels[held], inputs[~held], labels[~held]
        self._records = (torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels, dtype=torch.int64))
        self._shown = (torch.tensor(scored, dtype=torch.float32), wanted.astype(int))
        self.loss, self.size, self.settings = cross_entropy, len(labels), None
        self.model = lambda: nn.Linear(inputs.shape[1], 2)

    def records(self) -> Any:
        """Those that train."""
        return self._records

    def evaluate(self, model: Any) -> Any:
        """AUC on the others."""
        import torch

        from quietsum.tasks import Metrics
        from quietsum.tasks.scores import roc_auc

        with torch.no_grad():
            scores = model(self._shown[0])
        found = {"auc": roc_auc(self._shown[1], (scores[:, 1] - scores[:, 0]).double().numpy())}
        return Metrics(values=found, on="held-out patients", chance={"auc": 0.5})


def task_of(job: Values) -> Any:
    """The task, scored on its test rows or on rows that choose; its network is its own."""
    name, validation = job["task"], job["choosing"]
    if name == "heart":
        return Heart("validation" if validation else "test")
    options = utility.held_out(utility.BY_LABEL[name], "", 0) if validation else {}
    return utility.made(name, {key: value for key, value in options.items() if value != ""})


def work(job: Values) -> Values:
    """One private run of one side."""
    import torch

    from quietsum.learning.clients.plain import fresh_model
    from quietsum.learning.config import PrivacyConfig
    from quietsum.learning.trainer import PrivateTrainer

    if job.get("until") and time.time() > job["until"]:
        raise QuietsumError("left out: the time was up")
    torch.set_num_threads(job.get("threads", 1))
    start, task = time.time(), task_of(job)
    if job["task"] == "heart":
        torch.manual_seed(job["seed"])
        model = task.model()
    else:
        model = fresh_model(task, job["seed"])
    model = model.to(job["device"])
    records = tuple(part.to(job["device"]) for part in task.records())
    told, how, signal = "", job["how"], None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if job["side"] == "opacus":
            spent = with_opacus(model, task, records, job["epsilon"])
        else:
            trainer = PrivateTrainer(model, config_of(job, task, PrivacyConfig), loss=task.loss, selfcheck=False)
            more: Values = {"people": task.people()} if job.get("unit") == "person" else {}
            if how == "own":
                more |= {"learning_rate": task.settings.learning_rate, "optimizer": task.settings.optimizer}
            elif how is not None:
                more |= {"learning_rate": how["rate"], "optimizer": how["optimizer"]}
            trainer.train(records, progress=False, **more)
            promise = trainer.person_guarantee() if job.get("unit") == "person" else trainer.guarantee()
            spent, told = promise.epsilon, trainer.chosen
            assert trainer.plan is not None
            noise = statistics.fmean(stage.noise_multiplier for stage in trainer.plan.stages)
            signal = trainer.plan.expected_batch * math.sqrt(trainer.plan.steps) / noise
    found = task.evaluate(model)
    metric = next(iter(found.values))
    return {
        "metric": metric, "score": found.values[metric], "chance": found.chance.get(metric, 0.0), "spent": spent,
        "chosen": told, "signal": signal, "on": found.on, "records": task.size,
        "seconds": round(time.time() - start, 1),
    }  # fmt: skip


def config_of(job: Values, task: Any, kind: Any) -> Any:
    """The promise, and what is stated beside it."""
    how, stated = job["how"], {"epsilon": job["epsilon"], "public_size": task.size, "noise": "fast"}
    if job.get("unit") == "person":
        stated = {"person_epsilon": job["epsilon"], "max_records": PEOPLE[job["task"]], "noise": "fast"}
    if how is None:
        return kind(**stated)
    if how == "own":
        return kind(**{**task.settings.training, **stated, "delta": None})
    passes = max(1, min(how["steps"], max(20, round(500_000 / task.size))))
    size = task.size
    if job.get("unit") == "person":  # of each person so many records are kept, and a batch is drawn from those
        import numpy as np

        counts = np.unique(task.people(), return_counts=True)[1]
        size = min(size, int(np.minimum(counts, PEOPLE[job["task"]]).sum()))
    batch = max(1, min(size, round(size * passes / how["steps"])))
    more = {"batch_size": batch, "epochs": passes, "max_grad_norm": how["clip"], "clipping": "flat"}
    return kind(**stated, **more, ema_decay=0.95)


def with_opacus(model: Any, task: Any, records: Any, epsilon: float) -> float:
    """Opacus with its MNIST tutorial's settings, its own Poisson loader and its PRV accountant."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(*records), batch_size=min(64, len(records[0])))
    optimizer, engine = torch.optim.SGD(model.parameters(), lr=0.1), PrivacyEngine()
    delta = 1 / (10 * len(records[0]))
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model.train(), optimizer=optimizer, data_loader=loader, epochs=10, target_epsilon=epsilon,
        target_delta=delta, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(10):
        for batch in loader:
            optimizer.zero_grad()
            if len(batch[0]):
                task.loss(private, tuple(batch)).mean().backward()
                optimizer.step()
    model.eval()
    return float(engine.get_epsilon(delta))


# -------------------------------------------------------------------------------------------- many of them


def placed(job: Values, asked: argparse.Namespace) -> Values:
    gpu = asked.device == "cuda" and job["task"] in ON_GPU
    until = None if asked.minutes is None else asked.started + 60 * asked.minutes
    return {**job, "device": "cuda" if gpu else "cpu", "threads": 1, "until": until}


def run_all(jobs: list[Values], asked: argparse.Namespace) -> list[Values]:
    """GPU jobs in a few processes, CPU jobs beside them; one line of --out for each as it ends."""
    import threading

    lines: list[Values] = []
    left, lock = len(jobs), threading.Lock()

    def told(job: Mapping[str, Any], answer: Any) -> None:
        nonlocal left
        line = {**job, **answer}
        with lock:
            left -= 1
            if asked.out:
                with open(asked.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            score = line.get("error") or f"{line['score']:.4f}  {line['seconds']:.0f} s"
            print(f"{left:>4} left  {job['task']:<11} ε {job['epsilon']:<4g}{job['side']:<9} {score}"[:80], flush=True)
            if "score" in line:
                lines.append(line)

    command = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    pools = []
    for gpu, workers in ((True, asked.gpu_workers), (False, asked.workers)):
        some = [job for job in jobs if (job["device"] != "cpu") == gpu]
        if some:
            options = {"workers": workers, "command": command, "tolerant": True}
            pools.append(threading.Thread(target=run_in_processes, args=(some, told), kwargs=options))
    for pool in pools:
        pool.start()
    for pool in pools:
        pool.join()
    return lines


def choosing(asked: argparse.Namespace) -> list[Values]:
    jobs = []
    for task, epsilon in itertools.product(asked.task, asked.epsilon):
        tried: list[Any] = settings()[1:13:3] if task in ON_GPU else settings()[:: asked.every]
        for how in [*([] if task == "heart" else ["own"]), *tried[:: 6 if asked.quick else 1]]:
            jobs.append(placed({"task": task, "epsilon": epsilon, "side": "choosing", "how": how, "seed": 0,
                                "unit": asked.unit, "choosing": True}, asked))  # fmt: skip
    return jobs


def scored(asked: argparse.Namespace, lines: Iterable[Values]) -> list[Values]:
    """The runs of the table: defaults, the best choice, and Opacus."""
    best: dict[tuple[str, float], Values] = {}
    for line in lines:
        key = (line["task"], line["epsilon"])
        if line["side"] == "choosing" and (key not in best or line["score"] > best[key]["score"]):
            best[key] = line
    jobs = []
    for task, epsilon, seed in itertools.product(asked.task, asked.epsilon, range(asked.seeds)):
        sides = [("defaults", None)]
        if (task, epsilon) in best:
            sides.append(("tuned", best[task, epsilon]["how"]))
        if asked.unit == "record" and importlib.util.find_spec("opacus") and (task in SMALL or asked.opacus):
            sides.append(("opacus", None))
        for side, how in sides:
            jobs.append(placed({"task": task, "epsilon": epsilon, "side": side, "how": how, "seed": seed,
                                "unit": asked.unit, "choosing": False}, asked))  # fmt: skip
    return jobs


# ------------------------------------------------------------------------------------------------ the table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The means of one task at one ε."""

    task: str
    unit: str
    epsilon: float
    metric: str
    chance: float
    means: Mapping[str, float]
    signal: float
    seeds: int

    @property
    def kept(self) -> float | None:
        """What the defaults keep of what tuning gains; None where tuning gains next to nothing."""
        if "tuned" not in self.means or "defaults" not in self.means:
            return None
        gain = self.means["tuned"] - self.chance
        return None if gain < LEAST_GAIN else (self.means["defaults"] - self.chance) / gain


def rows_of(lines: Iterable[Values]) -> list[Row]:
    """One row for each task and ε, in the order of TASKS."""
    found: dict[tuple[str, str, float], dict[str, list[Values]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if "score" in line and line["side"] != "choosing":
            found[line["task"], line.get("unit", "record"), line["epsilon"]][line["side"]].append(line)
    rows = []
    for (task, unit, epsilon), sides in sorted(found.items(), key=lambda item: (TASKS.index(item[0][0]), *item[0][1:])):
        one = next(iter(sides.values()))[0]
        means = {side: statistics.fmean(run["score"] for run in runs) for side, runs in sides.items()}
        rows.append(Row(task=task, unit=unit, epsilon=epsilon, metric=one["metric"], chance=one["chance"], means=means,
                        signal=max((run.get("signal") or 0.0 for run in sides.get("defaults", [])), default=0.0),
                        seeds=max(len(runs) for runs in sides.values())))  # fmt: skip
    return rows


def table(rows: list[Row], *, markdown: bool) -> None:
    heading = ("task", "unit", "ε", "signal", "score", "chance", "defaults", "tuned", "Opacus", "kept")
    print("Mean over seeds on test rows; kept = (defaults − chance) / (tuned − chance).\n")
    cells = []
    for row in rows:
        shown = [f"{row.means[side]:.3f}" if side in row.means else "–" for side in ("defaults", "tuned", "opacus")]
        kept = "–" if row.kept is None else f"{row.kept:.2f}"
        cells.append(
            (row.task, row.unit, f"{row.epsilon:g}", f"{row.signal:.0f}", row.metric, f"{row.chance:.3f}", *shown, kept)
        )
    if markdown:
        print("| " + " | ".join(heading) + " |\n|" + "---|" * len(heading))
        print("\n".join("| " + " | ".join(line) + " |" for line in cells))
    else:
        widths = (12, 8, 4, 8, 9, 8, 10, 8, 8, 5)
        for line in (heading, *cells):
            print("".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
    ratios = [row.kept for row in rows if row.kept is not None]
    if ratios:
        mean, worst = statistics.fmean(ratios), min(ratios)
        verdict = "met" if mean >= 0.9 and worst >= 0.75 else "MISSED"
        print(
            f"\nkept: {mean:.3f} in the mean (aim 0.9), {worst:.3f} in the worst of {len(ratios)} (aim 0.75): {verdict}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes for CPU jobs, one thread each")
    parser.add_argument("--gpu-workers", type=int, default=4, help="processes that share the GPU")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    parser.add_argument("--opacus", action="store_true", help="Opacus on the large tasks, too, in batches of 64")
    parser.add_argument("--person", action="store_true", help="ε is that of a person, for tasks that know people")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try every N-th of the 13 settings only")
    parser.add_argument("--only", choices=("defaults", "tuned", "opacus"), help="one side")
    parser.add_argument("--out", help="append one JSON line per finished run")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="print the table from such files")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    asked.started = time.time()
    if asked.serve:
        serve(work)
        return 0
    if asked.quick:
        asked.task, asked.epsilon, asked.seeds = ["heart"], [3.0], 1
    asked.unit = "person" if asked.person else "record"
    if asked.person:
        asked.task = [task for task in asked.task if task in PEOPLE]
    lines: list[Values] = utility.read_lines(asked.merge) if asked.merge else []
    if not asked.merge:
        tries = [] if asked.only in ("defaults", "opacus") else run_all(choosing(asked), asked)
        lines = run_all([job for job in scored(asked, tries) if asked.only in (None, job["side"])], asked)
    print()
    table(rows_of(lines), markdown=asked.markdown)
    print(f"\n{math.ceil(time.time() - asked.started)} s in all")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuietsumError as error:
        sys.exit(f"error: {error}")
