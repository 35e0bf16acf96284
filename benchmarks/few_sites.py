"""Four to ten sites, some or most of them attackers: rules that compare updates beside rules that try them.

``python benchmarks/few_sites.py [--task digits heart] [--rule trust] [--attack lie] [--seeds 3] [--jobs 2]`` prints a
table for each task and each size, with record-level noise (ε 8) and without. Digits: MLP 64-64-10 in numpy, rows dealt
out evenly, a root set of 100 published rows that no party holds. Heart: logistic regression; with four sites the four
hospitals, with ten their rows dealt out anew; the root set is 60 published hold-out rows that are not scored, and
``trust made-up`` tries updates on 200 made-up patients instead. Each site takes all of its rows in every round, so the
noise is calibrated for rounds without sampling. The score is the mean accuracy of the last ten rounds. ``--rule "trust
near"`` is trust without the trial from afar.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
os.environ["QUIETSUM_TEST_SEEDS"] = "1"  # published rows; seeds make the table the same again

import numpy as np
import robustness as many
from numpy.typing import NDArray

from quietsum import calibrate_noise
from quietsum.aggregation.robust import Sent, TrustedByTrial, find_rule, most_attackers
from quietsum.defence import Seen, attack_named, flip_labels
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.tasks.gallery.heart import HeartTask, make_patients, pool

Floats = NDArray[np.float64]
ROUNDS, LAST, CLIP, EPSILON, DELTA = 40, 10, 1.0, 8.0, 1e-5
RULES = ("mean", "median", "signguard", "fltrust", "trust")
SIZES = ((4, 0), (4, 1), (4, 2), (4, 3), (10, 0), (10, 1), (10, 2), (10, 6))
ATTACKS: dict[str, tuple[str, float | None]] = {
    "sign flip": ("sign-flip", None),
    "label flip": ("label-flip", None),
    "LIE 1": ("lie", 1.0),
    "IPM 5": ("ipm", 5.0),
    "Gaussian": ("gaussian", None),
}


# ---------------------------------------------------------------------------------------------- the problems


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Rows by party, a root set, rows to score on, and a model as three functions."""

    parties: list[tuple[Floats, NDArray[Any]]]
    root: tuple[Floats, NDArray[Any]]
    scored: tuple[Floats, NDArray[Any]]
    first: Floats
    classes: int
    rate: float
    momentum: float
    gradient: Callable[[Floats, Floats, NDArray[Any], float | None], Floats]
    losses: Callable[[Floats, Floats, NDArray[Any]], float]
    right: Callable[[Floats, Floats, NDArray[Any]], float]


def digits(parties: int, seed: int) -> Problem:
    """Handwritten digits."""
    features, labels, shown, right = many.digits(seed)
    root, features, labels = (features[:100], labels[:100]), features[100:], labels[100:]
    own = many.dealt(labels, parties, None, seed)

    def gradient(params: Floats, rows: Floats, wanted: NDArray[Any], clip: float | None) -> Floats:
        return many.gradients(params, rows[None], wanted[None], clip=clip)[0]  # type: ignore[no-any-return]

    def loss(params: Floats, rows: Floats, wanted: NDArray[Any]) -> float:
        return float(-many.answers(params, rows)[np.arange(len(wanted)), wanted].mean())

    def score(params: Floats, rows: Floats, wanted: NDArray[Any]) -> float:
        return float((many.answers(params, rows).argmax(-1) == wanted).mean())

    return Problem(
        parties=[(features[rows], labels[rows]) for rows in own], root=root, scored=(shown, right),
        first=many.first_weights(seed), classes=10, rate=0.5, momentum=0.9, gradient=gradient, losses=loss, right=score,
    )  # fmt: skip


def heart(parties: int, seed: int, *, made_up: bool = False) -> Problem:
    """Heart disease: the four hospitals, or their rows dealt out to ten."""
    task = HeartTask.from_options({"root": 60})
    held = [task.rows(party.name) for party in task.parties()]
    if parties != len(held):
        together, order = pool(held), np.random.default_rng([seed, 6]).permutation(sum(map(len, held)))
        shares = np.array_split(order, parties)
        rows = [(together.features[share], together.labels[share]) for share in shares]
    else:
        rows = [(part.features, part.labels) for part in held]
        rows = [rows[place] for place in np.random.default_rng([seed, 6]).permutation(parties)]  # who attacks
    root, scored = make_patients() if made_up else task._root, pool(task._held_out.values())

    def gradient(params: Floats, some: Floats, wanted: NDArray[Any], clip: float | None) -> Floats:
        found = task.gradients(params, some, wanted)
        if clip is not None:
            found = found * np.minimum(1, clip / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12))
        return found.mean(axis=0)  # type: ignore[no-any-return]

    return Problem(
        parties=rows, root=(root.features, root.labels), scored=(scored.features, scored.labels), classes=2,
        first=np.zeros(task.dimension), rate=0.3, momentum=0.5, gradient=gradient,
        losses=lambda params, some, wanted: float(task.losses(params, some, wanted).mean()),
        right=lambda params, some, wanted: float(((some @ params > 0) == (wanted == 1)).mean()),
    )  # fmt: skip


class Tried:
    """The root set at one model."""

    def __init__(self, problem: Problem, clip: float | None) -> None:
        self.problem, self.clip, self.params = problem, clip, problem.first

    def update(self) -> Floats:
        """What an honest party with the root set would send, without noise."""
        return -self.problem.rate * self.problem.gradient(self.params, *self.problem.root, self.clip)

    def losses(self, steps: NDArray[Any]) -> Floats:
        """The mean loss of model + step."""
        return np.array([self.problem.losses(self.params + step, *self.problem.root) for step in steps])


# ----------------------------------------------------------------------------------------------- one training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One training."""

    task: str
    parties: int
    attackers: int
    rule: str
    attack: str
    noise: bool
    seed: int


def train(cell: Cell) -> tuple[Cell, float]:
    """Its accuracy; the first ``attackers`` parties attack from the first round on."""
    seed, count, bad = cell.seed, cell.parties, cell.attackers
    made_up = cell.rule.endswith(" made-up")
    problem = digits(count, seed) if cell.task == "digits" else heart(count, seed, made_up=made_up)
    attack, strength = ATTACKS[cell.attack] if bad else ("", None)
    rows = list(problem.parties)
    if attack == "label-flip":
        rows[:bad] = [(some, flip_labels(labels, classes=problem.classes)) for some, labels in rows[:bad]]
    name = cell.rule.removesuffix(" made-up")
    rule = None if name == "mean" else TrustedByTrial(reaches=(1.0,)) if name == "trust near" else find_rule(name)
    stated = min(bad, max(most_attackers(rule, count), 0)) if rule is not None else bad
    clip, noise = (CLIP, noise_multiplier()) if cell.noise else (None, 0.0)
    tried = Tried(problem, clip)
    chance, theirs = randomness_for_tests(1000 + seed), randomness_for_tests(2000 + seed)
    made = np.random.default_rng([seed, 7])
    params, speed = problem.first.copy(), np.zeros_like(problem.first)
    memory = {} if rule is None else dict(rule.memory(count, len(params)))
    scores = []
    for number in range(ROUNDS):
        updates = np.stack([-problem.rate * problem.gradient(params, *some, clip) for some in rows])
        if noise:
            scale = problem.rate * noise * CLIP / np.array([len(some[1]) for some in rows])
            updates += scale[:, None] * made.normal(size=updates.shape)
        tried.params = params
        if attack and attack != "label-flip":
            seen = Seen(honest=updates[bad:], own=updates[:bad], rng=theirs, rule=rule, stated=stated)
            updates[:bad] = attack_named(attack)(seen, strength)
        if rule is None:
            step = updates.mean(axis=0)
        else:
            verdict = rule.combine(
                Sent(updates=updates, attackers=stated, places=np.arange(count), registered=count, rng=chance,
                     memory=memory, trial=tried)
            )  # fmt: skip
            step, memory = verdict.step, dict(verdict.memory)
        speed = problem.momentum * speed + step
        params = params + speed
        if number >= ROUNDS - LAST:
            scores.append(problem.right(params, *problem.scored))
    return cell, statistics.fmean(scores)


_noise: list[float] = []


def noise_multiplier() -> float:
    """σ of ROUNDS rounds that take every row, for ε 8 per record."""
    if not _noise:
        _noise.append(calibrate_noise(target_epsilon=EPSILON, target_delta=DELTA, sample_rate=1.0, steps=ROUNDS))
    return _noise[0]


# ------------------------------------------------------------------------------------------------ the tables


def percent(values: Sequence[float]) -> str:
    """A mean in percent, with its spread over seeds."""
    found = [100 * value for value in values]
    return f"{statistics.fmean(found):.1f}" + (f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else "")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="*", default=["digits", "heart"])
    parser.add_argument("--rule", nargs="*", default=list(RULES))
    parser.add_argument("--attack", nargs="*", default=list(ATTACKS))
    parser.add_argument("--sizes", nargs="*", default=[f"{n}/{f}" for n, f in SIZES], help="parties/attackers")
    parser.add_argument("--noise", nargs="*", default=["off", "on"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    sizes = [tuple(map(int, size.split("/"))) for size in asked.sizes]
    made_up = ["trust made-up"] if "trust" in asked.rule else []
    rules = {task: [*asked.rule, *(made_up if task == "heart" else [])] for task in asked.task}
    cells = [
        Cell(task=task, parties=n, attackers=f, rule=rule, attack=attack, noise=noise == "on", seed=seed)
        for task in asked.task for n, f in sizes for noise in asked.noise for rule in rules[task]
        for attack in (asked.attack if f else ["none"]) for seed in range(asked.seeds)
    ]  # fmt: skip
    begun, found = time.monotonic(), {}
    with ProcessPoolExecutor(max_workers=asked.jobs) as pool_:
        for place, (cell, accuracy) in enumerate(pool_.map(train, cells, chunksize=4), 1):
            found[cell] = accuracy
            if place % 100 == 0:
                print(f"{time.monotonic() - begun:5.0f} s {place}/{len(cells)}", file=sys.stderr)
    print(f"noise multiplier {noise_multiplier():.3g}, {asked.seeds} seeds, {time.monotonic() - begun:.0f} s\n")
    for task in asked.task:
        titles = [title for title in asked.attack if any(f for _, f in sizes)]
        print(f"**{task}**: accuracy in percent under each attack\n")
        print(f"| sites | attackers | ε | rule | {' | '.join(titles)} | worst |\n|{'---|' * (5 + len(titles))}")
        lowest: dict[tuple[int, int, str], list[str]] = {}
        for n, f in sizes:
            for noise in asked.noise:
                for rule in rules[task]:
                    about = {"task": task, "parties": n, "attackers": f, "rule": rule, "noise": noise == "on"}
                    values = [
                        [found[Cell(**about, attack=title, seed=seed)] for seed in range(asked.seeds)]
                        for title in (titles if f else ["none"])
                    ]
                    told = [percent(value) for value in values]
                    told = told if f else [told[0], *[""] * (len(titles) - 1)]
                    low = f"{100 * min(statistics.fmean(value) for value in values):.1f}"
                    epsilon = "8" if noise == "on" else "∞"
                    lowest.setdefault((n, f, epsilon), []).append(low)
                    print(f"| {n} | {f} | {epsilon} | {rule} | {' | '.join(told)} | {low} |")
        print(f"\n**{task}**: the worst of these attacks\n")
        print(f"| sites | attackers | ε | {' | '.join(rules[task])} |\n|{'---|' * (3 + len(rules[task]))}")
        for (n, f, epsilon), values in lowest.items():
            print(f"| {n} | {f} | {epsilon} | {' | '.join(values)} |")
        print()


if __name__ == "__main__":
    main()
