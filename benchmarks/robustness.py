"""Rules against attacks on handwritten digits: fifty parties, ten of them attackers, a table with the worst column.

``python benchmarks/robustness.py [--rule signguard] [--attack "LIE 1"] [--seeds 3] [--jobs 2]`` prints the table as
Markdown and says which claims hold. ``--noise`` prints what client-level noise leaves of sign statistics and
``--backdoor`` how often a trigger wins against each rule. ``--parties 10 --attackers 2 --record-noise 1`` makes the
federation small and gives each party's gradients record-level noise; ``--split 0.3`` deals rows out by a Dirichlet law.
``--attack adaptive`` is slow, since it tries each rule sixteen times a step, and stands in no claim.

The digits are scikit-learn's; the model is an MLP 64-64-10 with 4,810 parameters; each party draws 16 of its rows a
step; an update is −0.2 · gradient, and the server adds momentum 0.9. The score is the mean accuracy on held-out rows
after each of the last ten of 200 steps. All parties' gradients are computed together, in numpy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")
os.environ["QUIETSUM_TEST_SEEDS"] = "1"  # published digits; seeds make the table the same again

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation.robust import RULES, Before, Rule, Sent, find_rule, most_attackers
from quietsum.defence import Seen, Trigger, attack_named, flip_labels, plant_backdoor
from quietsum.mechanisms.rng import randomness_for_tests

Floats = NDArray[np.float64]
INPUTS, HIDDEN, CLASSES = 64, 64, 10
DIMENSION = HIDDEN * INPUTS + HIDDEN + CLASSES * HIDDEN + CLASSES
BATCH, RATE, MOMENTUM, STEPS, LAST, ROOT = 16, 0.2, 0.9, 200, 10, 100
TRIGGER = Trigger(places=(0, 1, 2), value=1.0)
TARGET = 0

ATTACKS: dict[str, tuple[str, float | None]] = {
    "none": ("", None),
    "sign flip": ("sign-flip", None),
    "label flip": ("label-flip", None),
    "Gaussian": ("gaussian", None),
    "LIE .3": ("lie", 0.3),
    "LIE 1": ("lie", 1.0),
    "IPM .5": ("ipm", 0.5),
    "IPM 5": ("ipm", 5.0),
    "Min-Max": ("min-max", None),
    "Min-Sum": ("min-sum", None),
    "ByzMean": ("byzmean", None),
    "mimic": ("mimic", None),
    "sign-matched": ("sign-matched", None),
    "adaptive": ("adaptive", None),
}
"""The columns. "Worst" is over the twelve between none and adaptive, which knows the rule and is under no claim."""
PUBLISHED = [title for title in ATTACKS if title not in ("none", "adaptive")]


# ------------------------------------------------------------------------------------------------ the problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One federation."""

    parties: int = 50
    attackers: int = 10
    steps: int = STEPS
    record_noise: float = 0.0
    record_clip: float = 1.0
    alpha: float | None = None
    client_noise: float = 0.0


def layers(params: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """W1 (out, in), b1, W2, b2, in the order of torch."""
    cuts = np.cumsum([HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN])
    first, second, third, last = np.split(params, cuts, axis=-1)
    return first.reshape(HIDDEN, INPUTS), second, third.reshape(CLASSES, HIDDEN), last


def first_weights(seed: int) -> Floats:
    """Uniform in ±1/√fan-in, as torch begins."""
    rng = np.random.default_rng([seed, 1])
    return np.concatenate([
        rng.uniform(-1, 1, HIDDEN * INPUTS + HIDDEN) / INPUTS**0.5,
        rng.uniform(-1, 1, CLASSES * HIDDEN + CLASSES) / HIDDEN**0.5,
    ])  # fmt: skip


def answers(params: Floats, features: Floats) -> Floats:
    """Log probabilities, (…, rows, classes)."""
    w1, b1, w2, b2 = layers(params)
    logits = np.maximum(features @ w1.T + b1, 0) @ w2.T + b2
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))  # type: ignore[no-any-return]


def gradients(params: Floats, features: Floats, labels: NDArray[np.int64], *, clip: float | None = None) -> Floats:
    """The mean gradient of each party, (parties, dimension), of (parties, rows, 64) features; clipped row by row."""
    w1, b1, w2, b2 = layers(params)
    before = features @ w1.T + b1
    hidden = np.maximum(before, 0)
    logits = hidden @ w2.T + b2
    logits -= logits.max(axis=-1, keepdims=True)
    wrong = np.exp(logits)
    wrong /= wrong.sum(axis=-1, keepdims=True)
    np.put_along_axis(wrong, labels[..., None], np.take_along_axis(wrong, labels[..., None], -1) - 1, -1)
    back = (wrong @ w2) * (before > 0)
    if clip is not None:  # the norm of a row's gradient, from its two outer products
        squares = (back**2).sum(-1) * (1 + (features**2).sum(-1)) + (wrong**2).sum(-1) * (1 + (hidden**2).sum(-1))
        factor = np.minimum(1, clip / np.maximum(np.sqrt(squares), 1e-12))[..., None]
        back, wrong = back * factor, wrong * factor
    count, rows = features.shape[:2]
    return np.concatenate([
        (back.transpose(0, 2, 1) @ features).reshape(count, -1), back.sum(axis=1),
        (wrong.transpose(0, 2, 1) @ hidden).reshape(count, -1), wrong.sum(axis=1),
    ], axis=1) / rows  # fmt: skip


def digits(seed: int) -> tuple[Floats, NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Features in [0, 1] and labels to train on, in an order of the seed; and the quarter that is held out."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    from quietsum.tasks.gallery.digits import choose_hold_out

    loaded = load_digits()
    features, labels = np.asarray(loaded.data) / 16, np.asarray(loaded.target, dtype=np.int64)
    out = choose_hold_out(labels)
    order = np.random.default_rng([seed, 2]).permutation(int((~out).sum()))
    return features[~out][order], labels[~out][order], features[out], labels[out]


def dealt(labels: NDArray[np.int64], parties: int, alpha: float | None, seed: int) -> list[NDArray[np.int64]]:
    """Which rows each party holds: evenly, or each class by a Dirichlet law."""
    if alpha is None:
        return [np.sort(part) for part in np.array_split(np.arange(len(labels)), parties)]
    rng = np.random.default_rng([seed, 3])
    found: list[list[int]] = [[] for _ in range(parties)]
    for label in range(CLASSES):
        own = np.flatnonzero(labels == label)
        cuts = (np.cumsum(rng.dirichlet([alpha] * parties))[:-1] * len(own)).astype(int)
        for party, part in enumerate(np.split(own, cuts)):
            found[party] += part.tolist()
    spare = iter(rng.permutation(len(labels)).tolist())
    for rows in found:
        while len(rows) < 2:
            rows.append(next(spare))
    return [np.array(sorted(rows)) for rows in found]


class RootSet:
    """The trial of a rule that asks for one: a hundred rows that no party holds."""

    def __init__(self, features: Floats, labels: NDArray[np.int64]) -> None:
        self.features, self.labels, self.params = features, labels, np.zeros(DIMENSION)

    def update(self) -> Floats:
        """What an honest party with these rows would send."""
        return -RATE * gradients(self.params, self.features[None], self.labels[None])[0]  # type: ignore[no-any-return]

    def losses(self, steps: NDArray[Any]) -> Floats:
        """The mean loss of model + step."""
        rows = np.arange(len(self.labels))
        found = [-answers(self.params + step, self.features)[rows, self.labels].mean() for step in steps]
        return np.array(found)


# ----------------------------------------------------------------------------------------------- one training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one training came to. ``caught`` and ``accused`` are the shares of attackers and of others left out."""

    accuracy: float
    caught: float
    accused: float
    success: float = float("nan")
    seconds: float = 0.0


Step = Callable[[Sent], tuple[Floats, NDArray[np.bool_], Mapping[str, Floats]]]


def step_of(rule: Rule | None) -> Step:
    """What a rule does with updates; None is the mean."""
    if rule is None:
        return lambda sent: (sent.updates.mean(axis=0), np.ones(len(sent), dtype=np.bool_), {})

    def combined(sent: Sent) -> tuple[Floats, NDArray[np.bool_], Mapping[str, Floats]]:
        verdict = rule.combine(sent)
        return verdict.step, verdict.kept, verdict.memory

    return combined


def train(
    rule: Rule | None,
    attack: str = "",
    strength: float | None = None,
    *,
    seed: int = 0,
    setting: Setting | None = None,
    step: Step | None = None,
    boost: float = 1.0,
) -> Outcome:
    """Train once; the first ``attackers`` parties attack from the first step on."""
    setting = setting or Setting()
    begun = time.process_time()
    parties, attackers = setting.parties, setting.attackers if attack else 0
    features, labels, shown, right = digits(seed)
    root = RootSet(features[:ROOT], labels[:ROOT])
    features, labels = features[ROOT:], labels[ROOT:]
    own = dealt(labels, parties, setting.alpha, seed)
    labels, features = labels.copy(), features.copy()
    chance, theirs = randomness_for_tests(1000 + seed), randomness_for_tests(2000 + seed)
    for party in range(attackers):
        rows = own[party]
        if attack == "label-flip":
            labels[rows] = flip_labels(labels[rows], classes=CLASSES)
        if attack == "backdoor":
            features[rows], labels[rows] = plant_backdoor(
                features[rows], labels[rows], TRIGGER, target=TARGET, share=0.5, rng=theirs
            )
    draws, made = np.random.default_rng([seed, 4]), np.random.default_rng([seed, 5])
    params, speed = first_weights(seed), np.zeros(DIMENSION)
    stated = setting.attackers if rule is None else min(setting.attackers, max(most_attackers(rule, parties), 0))
    memory = {} if rule is None else dict(rule.memory(parties, DIMENSION))
    combine, scores, caught, accused = step or step_of(rule), [], [], []
    malicious = np.arange(parties) < attackers
    last: Floats | None = None
    for number in range(setting.steps):
        rows = np.stack([draws.choice(part, BATCH, replace=len(part) < BATCH) for part in own])
        clip = setting.record_clip if setting.record_noise else None
        updates = -RATE * gradients(params, features[rows], labels[rows], clip=clip)
        if setting.record_noise:
            scale = RATE * setting.record_noise * setting.record_clip / BATCH
            updates += scale * made.normal(size=updates.shape)
        root.params = params
        if attack in ("backdoor", "label-flip"):
            updates[:attackers] *= boost
        elif attack:
            seen = Seen(
                honest=updates[attackers:], own=updates[:attackers], rng=theirs, rule=rule, stated=stated,
                memory=memory, trial=root, last=last, registered=parties,
                places=np.concatenate([np.arange(attackers, parties), np.arange(attackers)]),
            )  # fmt: skip
            updates[:attackers] = attack_named(attack)(seen, strength)
        if setting.client_noise:  # every party bounds its update and adds noise, attackers too: they hide better
            lengths = np.linalg.norm(updates, axis=1, keepdims=True)
            bound = float(np.median(lengths))
            updates = updates * np.minimum(1, bound / np.maximum(lengths, 1e-12))
            updates += setting.client_noise * bound * made.normal(size=updates.shape)
        sent = Sent(
            updates=updates, attackers=stated, places=np.arange(parties), registered=parties, rng=chance,
            memory=memory, trial=root,
        )  # fmt: skip
        change, kept, memory = combine(sent)
        speed = MOMENTUM * speed + change
        params, last = params + speed, speed
        if attackers:
            caught.append(1 - kept[malicious].mean())
        accused.append(1 - kept[~malicious].mean())
        if number >= setting.steps - LAST:
            scores.append(float((answers(params, shown).argmax(-1) == right).mean()))
    others = right != TARGET
    success = float((answers(params, TRIGGER.stamp(shown[others])).argmax(-1) == TARGET).mean())
    return Outcome(
        accuracy=statistics.fmean(scores), caught=float(np.mean(caught)) if caught else float("nan"),
        accused=float(np.mean(accused)), success=success, seconds=time.process_time() - begun,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- the matrix


MIXED = ("nnm + trimmed-mean", "bucketing + geometric-median")
"""Rules with something before them."""


def named(name: str) -> Rule | None:
    """The rule of that name, "nnm + krum" with what comes before it; the mean may be none of them."""
    before, _, after = name.partition(" + ")
    if after:
        return Before(kind=before, rule=find_rule(after))
    return None if name == "mean" and name not in RULES else find_rule(name)


def cell(job: tuple[str, str, int, Setting]) -> tuple[str, str, int, Outcome]:
    """One training, for a process pool."""
    name, title, seed, setting = job
    attack, strength = ATTACKS[title]
    return name, title, seed, train(named(name), attack, strength, seed=seed, setting=setting)


def percent(values: Iterable[float]) -> str:
    """A mean in percent, with its spread where there are several."""
    found = [100 * value for value in values]
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.fmean(found):.1f}{spread}"


def matrix(names: Sequence[str], titles: Sequence[str], seeds: int, setting: Setting, jobs: int) -> dict[str, Any]:
    """All trainings, as {rule: {attack: [outcomes by seed]}}."""
    todo = [(name, title, seed, setting) for name in names for title in titles for seed in range(seeds)]
    found: dict[str, Any] = {name: {title: [None] * seeds for title in titles} for name in names}
    begun = time.monotonic()
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for count, (name, title, seed, outcome) in enumerate(pool.map(cell, todo, chunksize=1), 1):
            found[name][title][seed] = outcome
            if seed == seeds - 1:
                told = percent(one.accuracy for one in found[name][title])
                print(f"{time.monotonic() - begun:5.0f} s {count:4}/{len(todo)} {name} {title} {told}", file=sys.stderr)
    return found


def worst(row: Mapping[str, Sequence[Outcome]]) -> float:
    """The lowest accuracy over the published attacks, each averaged over seeds."""
    tried = [title for title in PUBLISHED if title in row]
    return min((statistics.fmean(one.accuracy for one in row[title]) for title in tried), default=float("nan"))


def lowest(row: Mapping[str, Sequence[Outcome]]) -> float:
    """The lowest accuracy of any seed and any published attack."""
    every = (one.accuracy for title in PUBLISHED if title in row for one in row[title])
    return min(every, default=float("nan"))


def printed(found: Mapping[str, Any], titles: Sequence[str]) -> None:
    """The matrix in Markdown, and what rules leave out."""
    print("| rule | " + " | ".join(titles) + " | worst | lowest run | CPU s |")
    print("|---|" + "---|" * (len(titles) + 3))
    for name, row in found.items():
        cells = [f"{100 * statistics.fmean(one.accuracy for one in row[title]):.1f}" for title in titles]
        seconds = sum(one.seconds for outcomes in row.values() for one in outcomes)
        print(f"| {name} | {' | '.join(cells)} | {100 * worst(row):.1f} | {100 * lowest(row):.1f} | {seconds:.0f} |")
    judging = {
        name: row for name, row in found.items()
        if any(one.caught > 0 or one.accused > 0 for outcomes in row.values() for one in outcomes)
    }  # fmt: skip
    if judging:
        print("\nLeft out of the step, attackers / others, in percent:\n")
        print("| rule | " + " | ".join(titles) + " |")
        print("|---|" + "---|" * len(titles))
        for name, row in judging.items():
            cells = []
            for title in titles:
                caught = statistics.fmean(one.caught for one in row[title])
                accused = statistics.fmean(one.accused for one in row[title])
                cells.append((f"{100 * caught:.0f} / " if title != "none" else "") + f"{100 * accused:.0f}")
            print(f"| {name} | {' | '.join(cells)} |")


def claims(found: Mapping[str, Any]) -> None:
    """Which of the claims hold; nothing is asserted."""
    lines: list[tuple[str, bool, str]] = []
    if "signguard" in found:
        low = worst(found["signguard"])
        lines.append(("SignGuard has at least 94 % in the worst case", low >= 0.94, f"{100 * low:.1f} %"))
        others = {name: worst(row) for name, row in found.items() if not name.startswith("signguard")}
        if others:
            best = max(others, key=lambda name: others[name])
            told = f"next is {best} with {100 * others[best]:.1f} %"
            lines.append(("SignGuard's worst case is above every rule outside its family", low > others[best], told))
    if "mean" in found and "IPM 5" in found["mean"] and len(found) > 1:
        under = {name: statistics.fmean(one.accuracy for one in row["IPM 5"]) for name, row in found.items()}
        last = min(under, key=lambda name: under[name])
        lines.append(("the mean is last under IPM 5", last == "mean", f"{last} with {100 * under[last]:.1f} %"))
    print()
    for text, holds, told in lines:
        print(f"- {'holds' if holds else 'DOES NOT HOLD'}: {text} ({told})")


# ------------------------------------------------------------------------------------------ negative results


def noisy(job: tuple[str, str, float, int, Setting]) -> tuple[str, str, float, Outcome]:
    """One training with client-level noise at each party, for a process pool."""
    name, title, noise, seed, setting = job
    attack, strength = ATTACKS[title]
    outcome = train(named(name), attack, strength, seed=seed, setting=dataclasses.replace(setting, client_noise=noise))
    return name, title, noise, outcome


def noise_table(seeds: int, setting: Setting, jobs: int, noises: Sequence[float] = (0, 0.03, 0.1, 0.3, 1)) -> None:
    """What noise at each party leaves of sign statistics."""
    titles, names = ["LIE 1", "IPM 5"], ["signguard", "mean"]
    todo = [
        (name, title, z, seed, setting) for name in names for title in titles for z in noises for seed in range(seeds)
    ]
    found: dict[tuple[str, str, float], list[Outcome]] = {}
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for name, title, noise, outcome in pool.map(noisy, todo):
            found.setdefault((name, title, noise), []).append(outcome)
    print(
        "| noise multiplier at each party | "
        + " | ".join(f"{t}: left out, attackers / others; accuracy; mean's" for t in titles)
        + " |"
    )
    print("|---|" + "---|" * len(titles))
    for noise in noises:
        cells = []
        for title in titles:
            ours, plain = found["signguard", title, noise], found["mean", title, noise]
            caught, accused = statistics.fmean(o.caught for o in ours), statistics.fmean(o.accused for o in ours)
            cells.append(
                f"{100 * caught:.0f} / {100 * accused:.0f}; "
                f"{percent(o.accuracy for o in ours)}; {percent(o.accuracy for o in plain)}"
            )
        print(f"| {noise:g} | {' | '.join(cells)} |")


def clipped(noise: float, seed: int) -> Step:
    """The mean of updates cut to their median length, with central noise of ``noise`` · that length on the sum."""
    made = np.random.default_rng([seed, 6])

    def combined(sent: Sent) -> tuple[Floats, NDArray[np.bool_], Mapping[str, Floats]]:
        lengths = np.linalg.norm(sent.updates, axis=1, keepdims=True)
        bound = float(np.median(lengths))
        total = (sent.updates * np.minimum(1, bound / np.maximum(lengths, 1e-12))).sum(axis=0)
        total += noise * bound * made.normal(size=total.shape)
        return total / len(sent), np.ones(len(sent), dtype=np.bool_), {}

    return combined


BACKDOOR = ["mean", "clip", "clip + noise", "median", "multi-krum", "dnc", "flame", "signguard"]


def hidden(job: tuple[str, float, int, Setting]) -> tuple[str, float, Outcome]:
    """One training with a backdoor, for a process pool."""
    name, boost, seed, setting = job
    step = clipped(1.0 if "noise" in name else 0.0, seed) if name.startswith("clip") else None
    rule = None if step else named(name)
    return name, boost, train(rule, "backdoor", seed=seed, setting=setting, step=step, boost=boost)


def backdoor_table(seeds: int, setting: Setting, jobs: int) -> None:
    """How often the trigger wins, and the accuracy beside it; attackers are five of fifty, in every step."""
    names = [name for name in BACKDOOR if name.startswith(("mean", "clip")) or name in RULES]
    found: dict[tuple[str, float], list[Outcome]] = {}
    todo = [(name, boost, seed, setting) for name in names for boost in (1.0, 10.0) for seed in range(seeds)]
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        for name, boost, outcome in pool.map(hidden, todo):
            found.setdefault((name, boost), []).append(outcome)
    print("| rule | trigger wins, as it is | × 10 | accuracy, as it is | × 10 |\n|---|---|---|---|---|")
    for name in names:
        wins = " | ".join(percent(one.success for one in found[name, boost]) for boost in (1.0, 10.0))
        right = " | ".join(percent(one.accuracy for one in found[name, boost]) for boost in (1.0, 10.0))
        print(f"| {name} | {wins} | {right} |")


def main() -> int:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", action="append", help="one rule, more than once for several; all if left out")
    parser.add_argument(
        "--attack", action="append", choices=list(ATTACKS), help="one column, more than once for several"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--parties", type=int, default=50)
    parser.add_argument("--attackers", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--split", type=float, help="the α of a Dirichlet split")
    parser.add_argument("--record-noise", type=float, default=0.0, help="noise over clip, at each party, for records")
    parser.add_argument("--noise", action="store_true", help="client-level noise against sign statistics")
    parser.add_argument("--backdoor", action="store_true", help="a trigger of three pixels against each rule")
    parser.add_argument("--out", type=Path, help="all outcomes, as JSON, written after every rule")
    parser.add_argument("--merge", type=Path, nargs="+", help="print the tables of such files, and train nothing")
    given = parser.parse_args()
    attackers = given.attackers if given.attackers is not None else given.parties // (10 if given.backdoor else 5)
    setting = Setting(
        parties=given.parties,
        attackers=attackers,
        steps=given.steps,
        record_noise=given.record_noise,
        alpha=given.split,
    )
    begun = time.monotonic()
    if given.merge:
        merged: dict[str, Any] = {}
        for path in given.merge:
            for name, row in json.loads(path.read_text(encoding="utf-8")).items():
                known = merged.setdefault(name, {})
                known |= {title: [Outcome(**one) for one in outcomes] for title, outcomes in row.items()}
        titles = [title for title in ATTACKS if all(title in row for row in merged.values())]
        printed(merged, titles)
        if set(titles) & set(PUBLISHED):
            claims(merged)
        return 0
    print(f"n = {given.parties}, f = {attackers}, {given.steps} steps, {given.seeds} seeds; numpy {np.__version__}\n")
    if given.noise:
        noise_table(given.seeds, setting, given.jobs)
    elif given.backdoor:
        backdoor_table(given.seeds, setting, given.jobs)
    else:
        every = [name for name in dict.fromkeys(("mean", *RULES, *MIXED)) if _works(name, setting)]
        names, titles = given.rule or every, given.attack or ["none", *PUBLISHED]
        found: dict[str, Any] = {}
        for name in names:
            found |= matrix([name], titles, given.seeds, setting, given.jobs)
            if given.out:
                plain = {
                    n: {t: [dataclasses.asdict(o) for o in made] for t, made in r.items()} for n, r in found.items()
                }
                given.out.write_text(json.dumps(plain), encoding="utf-8")
        printed(found, titles)
        if set(titles) & set(PUBLISHED):
            claims(found)
    print(f"\n{time.monotonic() - begun:.0f} s, {given.jobs} processes")
    return 0


def _works(name: str, setting: Setting) -> bool:
    rule = named(name)
    return rule is None or most_attackers(rule, setting.parties) >= 0


if __name__ == "__main__":
    sys.exit(main())
