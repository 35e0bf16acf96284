"""A drill of many rules against many attacks: short trainings on public rows, and what each rule was worth.

A matrix trains dozens of models. On protected rows every one of them would be a release to pay for, so only parties
whose rows are declared public take part: there is no way to spend here. The trainings are those of ``quietsum run``,
round by round, with a ledger of their own that is thrown away: it has nothing to remember, since public rows cost
nothing. A single attack on protected rows is a run of a plan with ``[attack]``, charged like any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import RULES, most_attackers
from quietsum.defence import trigger_of
from quietsum.errors import InvalidParameter, PlanRefused, TooFewParties
from quietsum.federation import LocalFederation, first_state, run_round
from quietsum.ledger import Ledger
from quietsum.mechanisms import system_randomness
from quietsum.plan import ATTACK_KINDS, AttackPlan, Plan, ResolvedPlan, resolve
from quietsum.tasks import AnyTask, Task, as_task, more_is_better, rehearse_root, trial_for
from quietsum.validate import whole_number

__all__ = ["DEFAULT_ATTACKS", "Cell", "DrillMatrix", "Drilled", "parse_attack", "run_drill"]

NONE = "none"
DEFAULT_ATTACKS = (
    "sign-flip", "label-flip", "gaussian", "lie", "ipm:5", "min-max", "min-sum", "byzmean", "mimic", "sign-matched",
    "adaptive",
)  # fmt: skip
"""The attacks of a drill where none are named."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Drilled:
    """One training: its score, and the shares of attackers and of others that were asked and are in no step.

    They are means over the rounds; an update may be left out by the rule, or before it as too long or not finite.

    ``success`` is how often a backdoor's trigger won on honest parties' rows; None where it cannot be counted.
    """

    score: float
    caught: float
    accused: float
    success: float | None = None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """All trainings of one rule under one attack; ``refused`` is why there are none."""

    rule: str
    attack: str
    runs: tuple[Drilled, ...] = ()
    refused: str = ""

    @property
    def score(self) -> float:
        """The mean score; NaN where there is none."""
        return statistics.fmean(run.score for run in self.runs) if self.runs else math.nan

    def mean(self, name: str) -> float | None:
        """The mean of ``caught``, ``accused`` or ``success`` where it is known."""
        found = [value for run in self.runs if (value := getattr(run, name)) is not None and math.isfinite(value)]
        return statistics.fmean(found) if found else None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        score, scores = self.score, [run.score for run in self.runs]
        return {
            "rule": self.rule, "attack": self.attack, "refused": self.refused,
            "score": score if math.isfinite(score) else None,
            "scores": [one if math.isfinite(one) else None for one in scores],
            "attackers_left_out": self.mean("caught"), "others_left_out": self.mean("accused"),
            "trigger_wins": self.mean("success"),
        }  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DrillMatrix:
    """Rules × attacks. ``metric`` is the task's first score, on the data it names.

    Which way it is better is what its name says (:func:`quietsum.tasks.scores.more_is_better`): less of a loss or an
    error, more of everything else.
    """

    metric: str
    on: str
    parties: int
    attackers: int
    rounds: int
    rules: tuple[str, ...]
    attacks: tuple[str, ...]
    cells: tuple[Cell, ...]

    def cell(self, rule: str, attack: str) -> Cell:
        """One of them."""
        return next(cell for cell in self.cells if (cell.rule, cell.attack) == (rule, attack))

    @property
    def more_is_better(self) -> bool:
        """Whether a larger score is a better one."""
        return more_is_better(self.metric) is not False

    @property
    def unit(self) -> str:
        """What the numbers are printed in: percent where more is better and every score lies between 0 and 1."""
        return "in percent " if self.more_is_better and all(0 <= score <= 1 for score in self._scores()) else ""

    def figure(self, score: float) -> str:
        """A score for people; a dash where there is none."""
        if math.isnan(score):
            return "–"
        return f"{100 * score:.1f}" if self.unit else f"{score:.3g}"

    def in_words(self, cell: Cell) -> str:
        """A cell for people: its score, a dash where it was refused, ``none`` where its model has no score."""
        return self.figure(cell.score) if not cell.runs or math.isfinite(cell.score) else "none"

    def lost(self, cell: Cell) -> float:
        """What a cell has lost against the best one, from 0 to 1; all of it where its model has no score.

        Of a score s and the best one b that is 1 − s/b where more is better, 1 − b/s where less is; where such a ratio
        has no meaning, the share of the way from the best to the worst score. A refused cell has lost nothing.
        """
        score = cell.score
        if not math.isfinite(score):
            return 1.0 if cell.runs else 0.0
        scores, ahead = self._scores(), 1 if self.more_is_better else -1
        best, worst = max(scores, key=lambda one: ahead * one), min(scores, key=lambda one: ahead * one)
        if best > 0 and worst >= 0:
            return 1 - score / best if self.more_is_better else 1 - best / score
        return 0.0 if best == worst else (best - score) / (best - worst)

    def _scores(self) -> list[float]:
        return [cell.score for cell in self.cells if math.isfinite(cell.score)]

    def worst(self, rule: str) -> Cell | None:
        """The attack with the worst score, one without a score worst of all; None where none was tried."""
        tried = [self.cell(rule, attack) for attack in self.attacks if attack != NONE]
        return max((cell for cell in tried if cell.runs), key=self._badness, default=None)

    def _badness(self, cell: Cell) -> float:
        if not math.isfinite(cell.score):
            return math.inf
        return -cell.score if self.more_is_better else cell.score

    @property
    def safest(self) -> Cell | None:
        """The worst cell of the rule whose worst cell is the best one; None where nothing was attacked."""
        found = [cell for rule in self.rules if (cell := self.worst(rule)) is not None and math.isfinite(cell.score)]
        return min(found, key=self._badness, default=None)

    @property
    def outnumbered(self) -> dict[str, int]:
        """Rules that withstand fewer attackers among so many parties than there are: how many they expect."""
        told = {rule: _state_attackers(rule, self.attackers, self.parties) for rule in self.rules}
        return {rule: count for rule, count in told.items() if count is not None and count < self.attackers}

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        worst = {rule: cell for rule in self.rules if (cell := self.worst(rule)) is not None}
        return {
            "metric": self.metric, "more_is_better": self.more_is_better, "on": self.on,
            "parties": self.parties, "attackers": self.attackers,
            "rounds": self.rounds, "rules": list(self.rules), "attacks": list(self.attacks),
            "withstand_fewer": self.outnumbered,
            "worst": {rule: {"attack": cell.attack, "score": cell.to_dict()["score"]} for rule, cell in worst.items()},
            "cells": [cell.to_dict() for cell in self.cells],
        }  # fmt: skip


def parse_attack(text: str) -> tuple[str, float | None]:
    """``ipm:5`` as a kind and its strength; ``ipm`` has its usual one, ``none`` is no attack."""
    kind, _, strength = text.strip().partition(":")
    if kind != NONE and kind not in ATTACK_KINDS:
        raise InvalidParameter("attack", kind, "is unknown", f"choose among {', '.join(ATTACK_KINDS)}")
    try:
        number = float(strength) if strength else None
    except ValueError:
        raise InvalidParameter("attack", text, "has a strength that is no number", "write ipm:5") from None
    if number is not None and not (math.isfinite(number) and number >= 0):
        raise InvalidParameter("attack", text, "has a strength that is no number from 0 up", "write ipm:5")
    return kind, number


def run_drill(
    plan: Plan,
    task: AnyTask,
    *,
    rules: Sequence[str] = (),
    attacks: Sequence[str] = (),
    rounds: int | None = None,
    repeats: int = 1,
    tell: Callable[[Cell], None] = lambda cell: None,
) -> DrillMatrix:
    """Train ``plan`` once for each rule, attack and repeat; :class:`PlanRefused` where rows are protected.

    Who attacks, and with which trigger or direction, is what ``plan.attack`` says; without it, the first
    ``aggregation.attackers`` parties, or a fifth of all. Rules expect as many attackers as there are, or as
    many as they withstand, and robust ones weigh all parties alike.
    """
    task = as_task(task)
    facts = task.parties()
    protected = [party.name for party in facts if not party.public]
    if protected:
        raise PlanRefused(
            f"a drill trains many models, and the rows of {', '.join(protected[:3])}"
            f"{' and others' if len(protected) > 3 else ''} are protected: each model would be a release that no "
            "budget pays for. Drill with a public task (digits, heart), or run one plan with [attack]: quietsum run "
            "charges it"
        )
    count = whole_number("seeds", repeats, 1)
    length = plan.federation.rounds if rounds is None else whole_number("rounds", rounds, 1)
    plan = dataclasses.replace(
        plan, federation=dataclasses.replace(plan.federation, rounds=length),
        schedule=plan.schedule if length == plan.federation.rounds else (),
    )  # fmt: skip
    present = [party.name for party in facts if not plan.federation.named or party.name in plan.federation.named]
    base = plan.attack or AttackPlan(
        kind="zero", parties=plan.aggregation.attackers or max(1, len(present) // 5)
    )  # its kind is replaced by each attack's
    chosen = tuple(dict.fromkeys(rules)) or _rules(len(present), rooted=bool(task.root_size))
    for rule in chosen:  # before anything is trained
        _check_rule(rule)
    wanted = tuple(dict.fromkeys((NONE, *(attacks or DEFAULT_ATTACKS))))
    cells: list[Cell] = []
    measured = ("", "")
    with _throwaway() as ledger:
        for rule, attack in itertools.product(chosen, wanted):
            cell, found = _cell(plan, base, task, rule, attack, count, ledger, present)
            measured = found or measured
            cells.append(cell)
            tell(cell)
    if not any(cell.runs for cell in cells):
        raise PlanRefused(f"no rule and no attack fit this plan: {cells[0].refused}")
    return DrillMatrix(
        metric=measured[0], on=measured[1], parties=len(present), attackers=len(base.among(present)), rounds=length,
        rules=chosen, attacks=wanted, cells=tuple(cells),
    )  # fmt: skip


@contextlib.contextmanager
def _throwaway() -> Iterator[Ledger]:
    """A ledger that remembers nothing longer than the drill."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="quietsum-drill-"))
        yield stack.enter_context(Ledger.open(Path(folder) / "ledger.db", create=True))


def _rules(parties: int, *, rooted: bool) -> tuple[str, ...]:
    """Every rule that works with so many parties, and without a root set where there is none."""
    able = [
        name
        for name, rule in RULES.items()
        if (rooted or not rule.facts.needs_trial) and most_attackers(rule, parties) >= 0
    ]
    return tuple(dict.fromkeys(("mean", *able)))


def _check_rule(rule: str) -> None:
    if rule != "mean" and rule not in RULES:
        raise InvalidParameter("rule", rule, "is unknown", f"choose among mean, {', '.join(RULES)}")


def _state_attackers(rule: str, attackers: int, parties: int) -> int | None:
    """How many attackers a rule expects: as many as there are, or as it withstands; None for the mean."""
    return min(attackers, max(most_attackers(RULES[rule], parties), 0)) if rule in RULES else None


def _cell(
    plan: Plan, base: AttackPlan, task: Task, rule: str, attack: str, repeats: int, ledger: Ledger, present: list[str]
) -> tuple[Cell, tuple[str, str] | None]:
    """The trainings of one rule under one attack, and what was measured on which data."""
    kind, strength = parse_attack(attack)
    drill = None if kind == NONE else dataclasses.replace(base, kind=kind, strength=strength)
    if drill is not None and drill.on_rows:
        drill = dataclasses.replace(drill, from_round=1, to_round=None)
    _check_rule(rule)
    stated = _state_attackers(rule, len(base.among(present)), len(present))
    asked = plan.aggregation
    own = {"weights": None} if rule in RULES else {"before": ""}  # robust rules count every update once
    aggregation = dataclasses.replace(asked, rule=rule, attackers=stated, **own)
    tried = dataclasses.replace(plan, attack=drill, aggregation=aggregation)
    try:
        resolved = resolve(tried, task.parties(), task.dimension)
        rehearse_root(task, resolved)
        outcomes, measured = [], None
        for repeat in range(repeats):
            run = f"{rule}-{attack}-{repeat}".replace(":", "-")
            one, measured = _train(run, resolved, task, ledger)
            outcomes.append(one)
        return Cell(rule=rule, attack=attack, runs=tuple(outcomes)), measured
    except (PlanRefused, TooFewParties) as refusal:
        return Cell(rule=rule, attack=attack, refused=str(refusal)), None


def _train(run: str, resolved: ResolvedPlan, task: Task, ledger: Ledger) -> tuple[Drilled, tuple[str, str]]:
    """One training, as ``quietsum run`` does it."""
    plan = resolved.plan
    attackers = frozenset(plan.attack.among([party.name for party in resolved.parties])) if plan.attack else frozenset()
    ledger.open_run(
        run, plan=plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(), datasets=resolved.datasets(),
        lifetimes=resolved.lifetimes(),
    )  # fmt: skip
    federation = LocalFederation.of(task, resolved)
    state, rng = first_state(resolved, task.initial()), system_randomness()
    caught, accused = list[float](), list[float]()
    try:
        for number in range(1, plan.federation.rounds + 1):
            tried = trial_for(task, resolved, number)
            result = run_round(
                run, number, state, resolved=resolved, federation=federation, ledger=ledger, rng=rng,
                own_steps=not task.follows_orders, trial=None if tried is None else tried(state.params, rng),
            )  # fmt: skip
            state = result.state
            kept = frozenset(result.kept)
            caught += _share_left_out([name for name in result.asked if name in attackers], kept)
            accused += _share_left_out([name for name in result.asked if name not in attackers], kept)
    finally:
        federation.close()
    before, measured = task.evaluate(np.asarray(task.initial())), task.evaluate(state.model)
    name = next(iter({**before.values, **measured.values}), "")  # the same score for all, also where one has none
    outcome = Drilled(
        score=measured.values.get(name, math.nan), caught=_mean(caught), accused=_mean(accused),
        success=_success(task, plan.attack, state.model, [p.name for p in resolved.parties if p.name not in attackers]),
    )  # fmt: skip
    return outcome, (name, before.stands_on(name) if name else "")


def _share_left_out(names: Sequence[str], kept: frozenset[str]) -> Iterator[float]:
    if names:
        yield sum(name not in kept for name in names) / len(names)


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan


def _success(task: Task, attack: AttackPlan | None, params: NDArray[np.float64], honest: Sequence[str]) -> float | None:
    """How often the whole trigger makes the model answer the target, on honest rows of other classes."""
    if attack is None or "backdoor" not in attack.kind:
        return None
    target, trigger = attack.target or 0, trigger_of(attack)
    hits = total = 0
    for party in honest:
        records, labels = task.records_of(party), task.labels_of(party)
        if records is None or labels is None:
            return None
        others = np.asarray(records[0])[labels != target]
        if len(others):
            answers = task.classes_of(params, trigger.stamp(others))
            if answers is None:
                return None
            hits += int((answers == target).sum())
            total += len(others)
    return hits / total if total else None
