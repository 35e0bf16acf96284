"""What do attacks get out of a trained model, with privacy off and on?

    python benchmarks/attacks.py                            the table: digits, chest-xray, pose; five seeds
    python benchmarks/attacks.py --task digits --seeds 3 --out runs.jsonl
    python benchmarks/attacks.py --merge runs.jsonl         the table from finished runs, nothing is trained
    python benchmarks/attacks.py --quick                    one task, one seed: does everything run?

Each task's training and test rows are one pool. RESERVED rows stay out of every training: they are what an attacker
knows of the population. Of the others coins choose who trains, the same for all levels of a seed: DP off with the
task's plain settings, DP off and overfitted (Adam, 200 epochs), ε 8 and ε 1 with the task's private settings and
δ = 1/(10 n). Attacks, each from quietsum.audit:

    membership            loss threshold, and RMIA with four reference models, trained as the model itself
    gradient inversion    100 records, each from its own update, by the closed form of the first layer; private ones
                          with the clip and noise of one step of the plan, the other records of the batch known
    class inversion       an input typical of each class, climbed from zero; counted against RESERVED rows
    attribute inference   one value of a record, from the rest and the label: the one that goes most with the label
    re-identification     pose: whose sequence is it, by the model's answers; the model trains on five people

Shares are means over the seeds. Their intervals are exact and those of one game, since games share rows. The lower
bound on ε holds with 95 % for each game. All rows are published, so nothing that is measured here is charged.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy and torch are imported

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

from quietsum.errors import QuietsumError

Values = dict[str, Any]
TASKS = ("digits", "chest-xray", "pose")
GAMES = {"digits": 1500, "chest-xray": 2400, "pose": 467}
RESERVED = {"digits": 297, "chest-xray": 400, "pose": 100}
LEVELS: tuple[tuple[str, float | None], ...] = (("off", None), ("overfitted", None), ("ε 8", 8.0), ("ε 1", 1.0))
PAIRS = 2
UPDATES = 100
TOO_SMALL = 0.1
"""What is claimed of models without noise, by the curve of a Gaussian mechanism: a claim that no attack bears out."""


@dataclasses.dataclass
class Part:
    """Some rows of a task, as a task that train_plainly takes."""

    task: Any
    rows: tuple[Any, ...]

    def __post_init__(self) -> None:
        self.name, self.public, self.loss, self.model = (
            self.task.name,
            self.task.public,
            self.task.loss,
            self.task.model,
        )
        self.settings = self.task.settings

    def records(self) -> tuple[Any, ...]:
        """The rows."""
        return self.rows


def pool_of(task: Any) -> tuple[Any, ...]:
    """Training and test rows, joined."""
    import torch

    scored = task.hold_out() if task.name == "digits" else task._read_scored()
    return tuple(torch.cat(pair) for pair in zip(task.records(), scored, strict=True))


def take(rows: tuple[Any, ...], chosen: Any) -> tuple[Any, ...]:
    """The chosen rows."""
    import torch

    places = torch.as_tensor(chosen)
    return tuple(part[places] for part in rows)


def private_config(task: Any, size: int, epsilon: float) -> Any:
    """The task's private settings for a declared number of records, with its noise calibrated once."""
    from quietsum import PrivacyConfig
    from quietsum.learning.config import plan_training

    training = {**task.settings.training, "delta": 1 / (10 * size)}
    training["batch_size"] = min(training["batch_size"], size)
    config = PrivacyConfig(**training, epsilon=epsilon, public_size=size)
    return config, plan_training(config, size=size)


def train(task: Any, rows: tuple[Any, ...], level: str, seed: int, config: Any = None) -> Any:
    """A model of these rows."""
    from quietsum import PrivateTrainer
    from quietsum.learning import fresh_model, train_plainly
    from quietsum.tasks import Settings

    if config is not None:
        trainer = PrivateTrainer(fresh_model(task, seed), config, loss=task.loss, selfcheck=False)
        told = task.settings
        trainer.train(rows, learning_rate=told.learning_rate, optimizer=told.optimizer, progress=False)
        return trainer.model
    told = getattr(task, "plain_settings", None)
    if level == "overfitted":
        told = Settings(learning_rate=0.01, optimizer="adam", training={"batch_size": 128, "epochs": 200})
    elif told is None:
        rate = task.settings.learning_rate * min(1.0, task.settings.training["max_grad_norm"])
        told = dataclasses.replace(task.settings, learning_rate=rate)
    return train_plainly(Part(task, rows), settings=told, seed=seed)


def work(name: str, seed: int) -> list[Values]:
    """All levels of one game, one result each."""
    import numpy as np
    import torch

    from quietsum import audit
    from quietsum.mechanisms import ClippedSum
    from quietsum.privacy import ExactAccountant, Gaussian
    from quietsum.tasks.registry import trainable_task

    torch.set_num_threads(1)
    task = trainable_task(name, {})
    pool = pool_of(task)
    order = np.random.default_rng(seed).permutation(len(pool[0]))
    game, reserve = (take(pool, order[: GAMES[name]]), take(pool, order[-RESERVED[name] :]))
    included = audit.draw_members(GAMES[name])
    inside = audit.draw_references(GAMES[name], pairs=PAIRS)
    column = telling_column(reserve)
    found = []
    for level, epsilon in LEVELS:
        start, size = time.process_time(), GAMES[name] // 2
        config, plan = (None, None) if epsilon is None else private_config(task, size, epsilon)
        model = train(task, take(game, included), level, seed, config)
        references = [
            train(task, take(game, who), level, 1000 * (seed + 1) + index, config) for index, who in enumerate(inside)
        ]
        own = audit.measure_losses(model, task.loss, game)
        others = np.stack([audit.measure_losses(one, task.loss, game) for one in references])
        scores = {
            "loss threshold": audit.score_by_loss(own),
            "RMIA": audit.score_by_references(own, others, inside=inside),
        }
        delta = 1 / (10 * size)
        noise = ClippedSum.calibrated(epsilon=TOO_SMALL, delta=delta, max_norm=1.0).noise_multiplier
        claim = ExactAccountant().compose(Gaussian(noise_multiplier=noise))  # what a run without noise might claim
        told: Values = {"claim": TOO_SMALL}
        if plan is not None:
            claim = ExactAccountant(neighbours=plan.neighbours).compose(plan.event())
            told = {"claim": claim.epsilon(delta=plan.delta).epsilon, "noise": plan.stages[0].noise_multiplier}
        judged = audit.judge_membership(
            scores, included, by_coins=True, claim=claim, delta=delta if plan is None else plan.delta
        )
        step = {} if plan is None else {
            "max_norm": plan.stages[0].max_norm, "noise_multiplier": plan.stages[0].noise_multiplier
        }  # fmt: skip
        first = np.flatnonzero(included)[:UPDATES]
        outcomes = {
            "gradient inversion": audit.attack_gradients(train_fresh(task, seed), task.loss, take(game, first), **step),
            "class inversion": audit.attack_classes(model, reserve[0].float(), reserve[1]),
            "attribute, members": audit.attack_attribute(
                model, task.loss, take(game, included), column, public=reserve[0]
            ),
            "attribute, others": audit.attack_attribute(
                model, task.loss, take(game, ~included), column, public=reserve[0]
            ),
        }
        if name == "pose":
            outcomes.update(link(task, level, seed, epsilon))
        found.append({
            "task": name, "seed": seed, "level": level, "epsilon": epsilon, **told, "judged": judged.to_dict(),
            "outcomes": {key: one.to_dict() for key, one in outcomes.items()},
            "score": accuracy(model, reserve), "members": int(included.sum()), "targets": len(included),
            "seconds": round(time.process_time() - start, 1),
        })  # fmt: skip
        print(f"{name} seed {seed} {level}: {found[-1]['seconds']} s", file=sys.stderr, flush=True)
    return found


def train_fresh(task: Any, seed: int) -> Any:
    """The model before its first step: what the first update is made from."""
    from quietsum.learning import fresh_model

    return fresh_model(task, seed)


def telling_column(rows: tuple[Any, ...]) -> int:
    """The value whose class means differ most, beside its spread."""
    import numpy as np

    values, labels = rows[0].flatten(1).double().numpy(), rows[1].numpy()
    means = np.stack([values[labels == one].mean(axis=0) for one in np.unique(labels)])
    halves = np.abs((values > np.median(values, axis=0)).mean(axis=0) - 0.5) < 0.1
    return int(np.argmax(np.where(halves, means.var(axis=0) / (values.var(axis=0) + 1e-9), -1)))


def accuracy(model: Any, rows: tuple[Any, ...]) -> float:
    """On rows that did not train."""
    import torch

    model.eval()
    with torch.no_grad():
        return float((model(rows[0]).argmax(-1) == rows[1]).double().mean())


def link(task: Any, level: str, seed: int, epsilon: float | None) -> Values:
    """Re-identification by the answers of a model that trained on five people: on those, and on five others."""
    import torch

    from quietsum import audit
    from quietsum.tasks.gallery.pose import _sequences

    records, others = task.records(), task._read_scored()
    config = None if epsilon is None else private_config(task, len(records[0]), epsilon)[0]
    model = train(task, records, level, seed, config)
    facts = _sequences(task._folder)[0]
    found: Values = {}
    for who, rows, chosen in (("trained", records, facts.subject % 2 == 1), ("others", others, facts.subject % 2 == 0)):
        model.eval()
        with torch.no_grad():
            answers = model(rows[0]).log_softmax(-1).double().numpy()
        people, actions, trials = facts.subject[chosen], facts.action[chosen], facts.trial[chosen]
        if who == "trained":
            values = rows[0].flatten(1).double().numpy()
            found["temporal, by the features alone"] = audit.link_recordings(values, people, actions, trials == 1)
            found["subject, by the features alone"] = audit.link_people(values, people, actions)
        found[f"temporal, {who}"] = audit.link_recordings(answers, people, actions, trials == 1)
        found[f"subject, {who}"] = audit.link_people(answers, people, actions)
    return found


# ------------------------------------------------------------------------------------------------------ the table


def show(results: Iterable[Values]) -> None:
    """The table as Markdown."""
    from quietsum.audit.membership.rates import bound_auc

    rows = list(results)
    for name in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == name]
        one = mine[0]
        seeds = len({row["seed"] for row in mine})
        print(
            f"\n### Attacks on {name}: {one['targets']:,} targets, about {one['targets'] // 2:,} train, {seeds} seeds\n"
        )
        levels = [level for level, _ in LEVELS if any(row["level"] == level for row in mine)]
        by_level = {level: [row for row in mine if row["level"] == level] for level in levels}
        print(
            "| attack | guessing | "
            + " | ".join(f"DP {level}" if "ε" not in level else level for level in levels)
            + " |"
        )
        print("|---|---" + "|---" * len(levels) + "|")
        print(_line("accuracy on reserved rows", "", [_mean([r["score"] for r in by_level[k]]) for k in levels]))
        for number, attack in enumerate(("loss threshold", "RMIA")):
            part = {k: [r["judged"]["attacks"][number] for r in by_level[k]] for k in levels}
            cells = []
            for k in levels:
                auc = sum(a["auc"] for a in part[k]) / len(part[k])
                row = by_level[k][0]
                low, high = bound_auc(auc, row["members"], row["targets"] - row["members"])
                cells.append(f"{auc:.3f} [{low:.3f}, {high:.3f}]")
            print(_line(f"{attack}: AUC", "0.500", cells))
            for place, rate in enumerate((0.01, 0.001)):
                cells = []
                for k in levels:
                    points = [a["points"][place] for a in part[k]]
                    if not all(p["measured"] for p in points):
                        cells.append("inconclusive")
                        continue
                    spotted, members = (sum(p[key] for p in points) for key in ("spotted", "members"))
                    claimed = "" if by_level[k][0]["epsilon"] is None else f"; claim ≤ {points[0]['claimed']:.3f}"
                    cells.append(_share(spotted, members, len(points)) + claimed)
                print(_line(f"{attack}: TPR at FPR {rate:.1%}", f"{rate:g}", cells))
            cells = [", ".join(f"{a['lower_bound']:.2f}" for a in part[k]) for k in levels]
            print(_line(f"{attack}: ε ≥, by seed", "0", cells))
        cells = []
        for k in levels:
            claims = {r["claim"] for r in by_level[k]}
            ends = [r["judged"]["conclusion"] for r in by_level[k]]
            cells.append(f"ε {max(claims):.3g}: " + ", ".join(f"{ends.count(e)} {e}" for e in dict.fromkeys(ends)))
        print(_line("claim, by game", "", cells))
        for attack in one["outcomes"]:
            cells = []
            for k in levels:
                done = [r["outcomes"][attack] for r in by_level[k]]
                right, trials = (sum(d[key] for d in done) for key in ("successes", "trials"))
                cells.append(_share(right, trials, len(done)))
            chance = sum(r["outcomes"][attack]["chance"] for r in mine) / len(mine)
            print(_line(attack, f"{chance:.3f}", cells))
        noise = {k: by_level[k][0].get("noise") for k in levels if by_level[k][0].get("noise")}
        said = ", ".join(f"{k}: σ {value:.3g}" for k, value in noise.items())
        print(f"\n{said}; {sum(row['seconds'] for row in mine):.0f} CPU seconds in all.")


def _line(name: str, chance: str, cells: list[str]) -> str:
    return f"| {name} | {chance} | " + " | ".join(cells) + " |"


def _share(count: int, trials: int, games: int) -> str:
    """The share over all games, with the interval that one game of that share has."""
    from quietsum.audit import bound_share

    low, high = bound_share(round(count / games), round(trials / games))
    return f"{count / trials:.3f} [{low:.3f}, {high:.3f}]"


def _mean(values: list[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def main() -> None:
    """Read the options, run the games, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--merge", type=Path, nargs="+")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.merge:
        show(json.loads(line) for path in asked.merge for line in path.read_text(encoding="utf-8").splitlines())
        return
    found: list[Values] = []
    for name in asked.task[:1] if asked.quick else asked.task:
        for seed in range(1 if asked.quick else asked.seeds):
            try:
                results = work(name, seed)
            except QuietsumError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                break
            found += results
            if asked.out is not None:
                with open(asked.out, "a", encoding="utf-8") as file:
                    file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in results)
    show(found)


if __name__ == "__main__":
    main()
