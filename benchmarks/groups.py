"""Robust rules between the means of random groups: a hundred parties, some of them attackers, digits.

``python benchmarks/groups.py [--seeds 3] [--jobs 2] [--steps 150] [--output FILE.json]`` prints two tables as Markdown:
accuracy for each share of attackers and size of group, beside what the plan says of it (the expected share of groups
with an attacker, and whether a plan is refused); and what the operator learns from flags of groups (how often groups
with and without an attacker are left out, and how well scores from these flags tell attackers apart).

Groups are drawn anew in every step; the sums are made without masks, as vectors, and one step is checked against the
protocol itself: keys, draw, masks and unmasking give the same means up to the grid. The problem is that of
``benchmarks/robustness.py``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
os.environ["QUIETSUM_TEST_SEEDS"] = "1"  # published digits; seeds make the table the same again

import numpy as np
from numpy.typing import NDArray
from robustness import DIMENSION, Floats, Setting, Step, percent, train

from quietsum.aggregation.robust import Sent, find_rule, most_attackers
from quietsum.defence.attribution import Flag, Rates, scores
from quietsum.plan.groups import CONTAMINATED, chances

PARTIES = 100
ROWS = ((5, 10), (10, 2), (10, 5), (10, 10), (20, 2), (20, 4))
"""Attackers of a hundred, and members of a group."""
ATTACKS: dict[str, tuple[str, float | None]] = {
    "none": ("", None), "sign flip": ("sign-flip", None), "LIE 1": ("lie", 1.0), "ByzMean": ("byzmean", None),
    "IPM 5": ("ipm", 5.0),
}  # fmt: skip
RULES = {"signguard": ROWS, "geometric-median": ((5, 10),)}
"""Where each rule is tried; the second takes many times longer on twenty means that attackers pull apart."""
AFTER = (5, 10, 40)


@dataclasses.dataclass(kw_only=True)
class Judged:
    """What became of the groups: flags, and whether each group held an attacker."""

    flags: list[Flag] = dataclasses.field(default_factory=list)
    touched: list[bool] = dataclasses.field(default_factory=list)

    def rate(self, touched: bool) -> float:
        """The share of such groups that was left out."""
        found = [flag.flagged for flag, held in zip(self.flags, self.touched, strict=True) if held is touched]
        return float(np.mean(found)) if found else float("nan")


def between(name: str, size: int, attackers: int, seed: int, judged: Judged) -> Step:
    """A step from group means: what :mod:`quietsum.federation.groups` makes of opened sums."""
    rule, count = find_rule(name), PARTIES // size
    told = min(chances(PARTIES, count, attackers=attackers).likely(), max(most_attackers(rule, count), 0))
    draws, memory = np.random.default_rng([seed, 6]), dict(rule.memory(count, DIMENSION))

    def step(sent: Sent) -> tuple[Floats, NDArray[np.bool_], dict[str, Floats]]:
        nonlocal memory
        groups = draws.permutation(PARTIES).reshape(count, size)
        verdict = rule.combine(
            Sent(
                updates=sent.updates[groups].mean(axis=1), attackers=told, places=np.arange(count), registered=count,
                rng=sent.rng, memory=memory, trial=sent.trial,
            )
        )  # fmt: skip
        memory, kept = dict(verdict.memory), np.zeros(PARTIES, dtype=np.bool_)
        for members, inside in zip(groups, verdict.kept, strict=True):
            kept[members] = inside
            judged.flags.append(Flag(members=tuple(f"p{at:03d}" for at in members), flagged=not inside))
            judged.touched.append(bool(np.any(members < attackers)))
        return verdict.step, kept, {}

    return step


def cell(job: tuple[int, int, str, str, int, int]) -> tuple[float, float, float, tuple[float, ...]]:
    """One training: accuracy, rates of flags, and areas under the curve of the scores after some rounds."""
    attackers, size, name, title, seed, steps = job
    attack, strength = ATTACKS[title]
    judged = Judged()
    setting = Setting(parties=PARTIES, attackers=attackers, steps=steps)
    found = train(
        find_rule(name), attack, strength, seed=seed, setting=setting,
        step=between(name, size, attackers, seed, judged),
    )  # fmt: skip
    if not attack:
        return found.accuracy, float("nan"), judged.rate(True), ()
    after = tuple(auc(judged.flags[: rounds * (PARTIES // size)], attackers) for rounds in AFTER)
    return found.accuracy, judged.rate(True), judged.rate(False), after


def auc(flags: list[Flag], attackers: int) -> float:
    """The chance that an attacker's score is above an honest party's, ties counted half; rates as by default."""
    found = {one.party: one.score for one in scores(flags, parties=PARTIES, attackers=attackers, rates=Rates())}
    bad, good = ([found[f"p{at:03d}"] for at in those] for those in (range(attackers), range(attackers, PARTIES)))
    return float(np.mean([(a > b) + 0.5 * (a == b) for a, b in itertools.product(bad, good)]))


def check() -> float:
    """The largest difference between the protocol's group means and those of plain vectors, in steps of the grid."""
    from quietsum.mechanisms.rng import system_randomness
    from quietsum.party.secure import Weighted
    from quietsum.secagg import Identity, Party, Server, SessionTerms, Step
    from quietsum.secagg.messages import DRAWING
    from quietsum.secagg.parameters import choose_groups

    names = [f"p{at:03d}" for at in range(PARTIES)]
    updates = dict(zip(names, np.random.default_rng(0).normal(size=(PARTIES, DIMENSION)) / 50, strict=True))
    how = Weighted(weights=dict.fromkeys(names, 1 / PARTIES), largest=10.0, dimension=DIMENSION)
    identities, boss = {name: Identity.fresh() for name in names}, Identity.fresh()
    public = {name: one.public for name, one in identities.items()}
    parameters = choose_groups(PARTIES, 20, corrupt=1, drop_outs=0.0, adversary="semi-malicious")
    terms = SessionTerms(run="r", round=1, attempt=1, model="00" * 32, plan="11" * 32, dimension=DIMENSION,
                  parameters=parameters, floor=5)  # fmt: skip
    parties = {
        name: Party(name=name, identity=identities[name], server=boss.public, peers=public, terms=terms)
        for name in names
    }
    server, rng = Server(terms=terms, identity=boss, identities=public), system_randomness()
    letters = server.open()
    while letters:
        assert server.step is not None
        question = Step(server.step - 1)
        for name, letter in letters.items():
            party = parties[name]
            if question in DRAWING:
                said = party.reveal(question, letter)
            elif question is Step.SHARES:
                said = party.mask(letter, how.of(name, updates[name], rng))
            else:
                said = {Step.OPEN: party.advertise, Step.ROSTER: party.share, Step.SURVIVORS: party.agree,
                        Step.AGREED: party.unmask}[question](letter)  # fmt: skip
            if (reason := server.take(name, said)) is not None:
                raise SystemExit(f"{name}: {reason.sentence}")
        letters = server.advance()
    worst = 0.0
    for one in server.sums():
        plain = np.mean([updates[name] for name in one.survivors], axis=0)
        worst = max(worst, float(np.abs(how.step(one.total, one.survivors) - plain).max()))
    return worst * how.grid * parameters.smallest / PARTIES


def title_is_none(job: tuple[int, int, str, str, int, int]) -> bool:
    """Whether nobody attacks."""
    return job[3] == "none"


def main() -> None:
    """Print both tables."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--jobs", type=int, default=2)
    given.add_argument("--steps", type=int, default=150)
    given.add_argument("--output")
    asked = given.parse_args()
    steps = check()
    print(f"protocol against plain vectors: the means of 20 groups differ by at most {steps:.2f} steps of the grid\n")
    assert steps <= 2.6, "five roundings of half a step each"
    tried = [(attackers, size, name) for name, rows in RULES.items() for attackers, size in rows]
    todo = [
        (attackers, size, name, title, seed, asked.steps)
        for (attackers, size, name), title, seed in itertools.product(tried, ATTACKS, range(asked.seeds))
        if title != "none" or (attackers, size) not in (ROWS[3], ROWS[4])  # without attackers only the size counts
    ]
    begun, found = time.monotonic(), {}
    with ProcessPoolExecutor(max_workers=asked.jobs) as pool:
        for count, (job, outcome) in enumerate(zip(todo, pool.map(cell, todo), strict=True), 1):
            found[job[:5]] = outcome
            if title_is_none(job):
                found.update({(other, *job[1:5]): outcome for other, size in ROWS if size == job[1]})
            if asked.output:  # what there is so far is kept
                values = [{"job": list(one), "outcome": list(its)} for one, its in found.items()]
                Path(asked.output).write_text(json.dumps(values), encoding="utf-8")
            if job[4] == asked.seeds - 1:
                print(f"{time.monotonic() - begun:5.0f} s {count:4}/{len(todo)} {job[:4]}", file=sys.stderr)
    every = range(asked.seeds)
    print(f"| attackers | group | touched | plan | rule | {' | '.join(ATTACKS)} |")
    print(f"|---|---|---|---|---|{'---|' * len(ATTACKS)}")
    for attackers, size, name in sorted(tried, key=lambda one: (ROWS.index(one[:2]), one[2] != "signguard")):
        told = chances(PARTIES, PARTIES // size, attackers=attackers)
        cells = [percent(found[attackers, size, name, title, seed][0] for seed in every) for title in ATTACKS]
        plan = "within" if told.in_bound else "refused"
        print(f"| {attackers} % | {size} | {told.share:.2f} | {plan} | {name} | {' | '.join(cells)} |")
    print(f"\n(touched: expected share of groups with an attacker, bound {CONTAMINATED}; groups of fewer than four are "
          "refused for their privacy, whatever their size does for the rule)\n")  # fmt: skip
    print(f"| attackers | group | attack | left out with one | without | {' | '.join(f'after {r}' for r in AFTER)} |")
    print("|---|---|---|---|---|---|---|---|")
    for (attackers, size), title in itertools.product(((5, 10), (10, 5)), [name for name in ATTACKS if name != "none"]):
        rows = [found[attackers, size, "signguard", title, seed] for seed in every]
        rates = [statistics.fmean(row[at] for row in rows) for at in (1, 2)]
        after = [f"{statistics.fmean(row[3][at] for row in rows):.3f}" for at in range(len(AFTER))]
        told = f"{rates[0]:.2f} | {rates[1]:.2f} | {' | '.join(after)}"
        print(f"| {attackers} % | {size} | {title} | {told} |")


if __name__ == "__main__":
    main()
