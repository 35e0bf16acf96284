"""Every fold of ours keeps the folds' contract, and the contract catches folds that do not."""

from __future__ import annotations

import copy
import dataclasses
import functools
import unittest
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from quietsum.aggregation import (
    BEFORE,
    RULES,
    ClientSum,
    Combined,
    Fold,
    NotingFold,
    RobustFold,
    Vector,
    WeightedMean,
    find_rule,
)
from quietsum.contracts import FoldContract
from quietsum.errors import InvalidParameter, TooFewParties
from quietsum.mechanisms import ClippedSum, Mode, QuantileRule, RandomSource

PROMISES = sorted(name for name in dir(FoldContract) if name.startswith("test_"))
NAMES = FoldContract().parties
DIMENSION = FoldContract.dimension


def mean(**fields: Any) -> WeightedMean:
    weights = {party: 1.0 + place for place, party in enumerate(NAMES)}
    return WeightedMean(weights=weights, dimension=DIMENSION, **fields)


def client_sum(mode: Mode, adaptive: QuantileRule | None = None) -> ClientSum:
    mechanism = ClippedSum(max_norm=0.5, noise_multiplier=1.1, mode=mode)
    return ClientSum(mechanism=mechanism, denominator=10.0, dimension=DIMENSION, adaptive=adaptive)


def robust(rule: str, before: str = "", attackers: int = 0) -> RobustFold:
    chosen = find_rule(rule, before)
    memory = chosen.memory(len(NAMES), DIMENSION)
    return RobustFold(rule=chosen, registered=NAMES, attackers=attackers, dimension=DIMENSION, memory=memory)


# The plan adapts a clip by this rule: half of the norms within it, noise of its own on their number.
QUANTILE = QuantileRule(count_noise=2.0)
COMPARED = sorted(name for name, rule in RULES.items() if not rule.facts.needs_trial)
CASES: dict[str, tuple[Callable[[], Fold[Any]], dict[str, Any]]] = {
    "mean": (mean, {}),
    "mean, limited": (lambda: mean(limits=dict.fromkeys(NAMES, 2.0)), {}),
    "clients, secure": (lambda: client_sum(Mode.SECURE), {"tolerance": 0.0}),
    "clients, fast": (lambda: client_sum(Mode.FAST), {}),
    "clients, adaptive": (lambda: client_sum(Mode.SECURE, QUANTILE), {"tolerance": 0.0}),
    "noted": (lambda: NotingFold(fold=mean(), towards=np.ones(DIMENSION)), {"bytes_a_party": 200}),
    "noted, rows kept": (lambda: NotingFold(fold=mean(), parts=(slice(0, 2),), keep=True), {"grows": True}),
    **{name: (functools.partial(robust, name), {"grows": True, "tolerance": 0.0}) for name in COMPARED},
    **{
        f"median after {before}": (functools.partial(robust, "median", before), {"grows": True, "tolerance": 0.0})
        for before in BEFORE
    },
}


def forge_mean(state: Any) -> Iterator[Any]:
    for total in (np.full(DIMENSION, np.nan), np.full(DIMENSION, 1e9), np.zeros(3), None):
        yield dataclasses.replace(copy.deepcopy(state), total=total)
    yield dataclasses.replace(copy.deepcopy(state), kept={"a stranger": None})


def forge_clients(state: Any) -> Iterator[Any]:
    for total in (np.full(DIMENSION, 2**40), np.full(DIMENSION, 0.1), np.zeros(3, dtype=np.int64), None):
        yield dataclasses.replace(copy.deepcopy(state), total=total)
    yield dataclasses.replace(copy.deepcopy(state), doubled=1000)


def forge_rows(state: Any) -> Iterator[Any]:
    yield dataclasses.replace(copy.deepcopy(state), rows=state.rows[:-1])
    yield dataclasses.replace(copy.deepcopy(state), rows=[np.full(DIMENSION, np.inf), *state.rows[1:]])
    yield dataclasses.replace(copy.deepcopy(state), kept={"a stranger": None}, rows=state.rows[:1])


FORGED: dict[str, Callable[[Any], Iterator[Any]]] = {
    "mean, limited": forge_mean,
    "clients, secure": forge_clients,
    "clients, adaptive": forge_clients,
    "median": forge_rows,
}


def contract_of(make: Callable[[], Fold[Any]], **fields: Any) -> FoldContract:
    forge = fields.pop("forge", None)
    words: dict[str, Any] = {"make": lambda self: make(), **fields}
    if forge is not None:
        words["forge"] = lambda self, state: forge(state)
    contract: FoldContract = type("Contract", (FoldContract,), words)()
    return contract


def applies(case: str, promise: str) -> bool:
    """All promises but two: rules keep single updates, and a state can only be forged where the case says how."""
    if promise == "test_memory_does_not_grow_with_the_cohort":
        return not CASES[case][1].get("grows", False)
    return promise != "test_a_forged_state_is_refused" or case in FORGED


@pytest.mark.parametrize(
    ("case", "promise"), [(case, promise) for case in sorted(CASES) for promise in PROMISES if applies(case, promise)]
)
def test_our_folds_keep_the_contract(case: str, promise: str) -> None:
    make, fields = CASES[case]
    try:
        getattr(contract_of(make, forge=FORGED.get(case), **fields), promise)()
    except unittest.SkipTest as skipped:  # a suite that skipped by itself would look like one that passes
        raise AssertionError(f"{promise} was skipped") from skipped


# ------------------------------------------------------------------------------------------- broken folds


@dataclasses.dataclass(kw_only=True)
class Sum:
    """What an honest fold of this file has folded."""

    total: Vector
    count: float = 0.0
    kept: dict[str, None] = dataclasses.field(default_factory=dict)
    rows: list[Vector] = dataclasses.field(default_factory=list)


class Plain:
    """An honest mean, of which each mutant overrides one method."""

    dimension = DIMENSION
    needs_individuals = False
    needs_updates = True

    def start(self) -> Sum:
        return Sum(total=np.zeros(self.dimension))

    def problem_with(self, update: object, party: str = "") -> str:
        if not isinstance(update, np.ndarray) or update.dtype != np.float64 or update.shape != (self.dimension,):
            return "is no float64 vector"
        return "" if np.isfinite(update).all() else "is not finite"

    def refuse(self, problem: str) -> None:
        if problem:
            raise InvalidParameter("update", "of a party", problem)

    def check_once(self, parties: Sequence[str], kept: dict[str, None]) -> None:
        self.refuse("came twice" if len(set(parties)) < len(parties) or set(parties) & set(kept) else "")

    def fold(self, state: Sum, party: str, update: Vector) -> None:
        state.total += update
        state.count += 1
        state.kept[party] = None

    def add(self, state: Sum, party: str, update: Vector) -> Sum:
        self.check_once((party,), state.kept)
        self.refuse(self.problem_with(update, party))
        self.fold(state, party, update)
        return state

    def add_many(self, state: Sum, parties: Sequence[str], updates: Vector) -> tuple[Sum, dict[str, str]]:
        self.check_once(parties, state.kept)
        broken = {
            party: problem
            for party, row in zip(parties, updates, strict=True)
            if (problem := self.problem_with(row, party))
        }
        for party, row in zip(parties, updates, strict=True):
            if party not in broken:
                self.fold(state, party, row)
        return state, broken

    def merge(self, one: Sum, other: Sum) -> Sum:
        self.check_once(tuple(other.kept), one.kept)
        one.total += other.total
        one.count += other.count
        one.kept.update(other.kept)
        one.rows.extend(other.rows)
        return one

    def finish(self, state: Sum, rng: RandomSource) -> Combined:
        if not state.kept:
            raise TooFewParties("no update arrived")
        return Combined(step=state.total / state.count, kept=tuple(state.kept))


class OrderMatters(Plain):
    """The later an update arrives, the more it counts."""

    def fold(self, state: Sum, party: str, update: Vector) -> None:
        state.total = 0.5 * state.total + 0.5 * update
        state.count = 1
        state.kept[party] = None


class KeepsRows(Plain):
    """A mean that keeps every update."""

    def fold(self, state: Sum, party: str, update: Vector) -> None:
        super().fold(state, party, update)
        state.rows.append(update.copy())


class CountsTheBroken(Plain):
    """A row with a problem is named, and its party counts in the divisor."""

    def add_many(self, state: Sum, parties: Sequence[str], updates: Vector) -> tuple[Sum, dict[str, str]]:
        state, broken = super().add_many(state, parties, updates)
        state.count += len(broken)
        return state, broken


class NamesTheBroken(Plain):
    """A row with a problem is left out of the sum, and its party is said to be in it."""

    def add_many(self, state: Sum, parties: Sequence[str], updates: Vector) -> tuple[Sum, dict[str, str]]:
        state, broken = super().add_many(state, parties, updates)
        state.kept.update(dict.fromkeys(broken))
        return state, broken


class Scales(Plain):
    """The caller's array is scaled in place."""

    def fold(self, state: Sum, party: str, update: Vector) -> None:
        update *= 0.5
        super().fold(state, party, 2 * update)


class LetsNanPass(Plain):
    """Only the shape is looked at."""

    def problem_with(self, update: object, party: str = "") -> str:
        return "" if isinstance(update, np.ndarray) and update.shape == (self.dimension,) else "is no vector"


class AddsThenChecks(Plain):
    """The update is in the sum before it is refused."""

    def add(self, state: Sum, party: str, update: Vector) -> Sum:
        state.total[0] += 0.25
        return super().add(state, party, update)


class CountsTwice(Plain):
    """A party may send as often as it likes."""

    def check_once(self, parties: Sequence[str], kept: dict[str, None]) -> None: ...


class ForgetsOnMerge(Plain):
    """The other state's updates are added, and not counted."""

    def merge(self, one: Sum, other: Sum) -> Sum:
        count = one.count
        one = super().merge(one, other)
        one.count = max(count, 1)
        return one


class MergesOneWay(Plain):
    """An empty state swallows the other one."""

    def merge(self, one: Sum, other: Sum) -> Sum:
        return one if not one.kept else super().merge(one, other)


class Remembers(Plain):
    """Every round goes on from the last one."""

    def __init__(self) -> None:
        self._state = Sum(total=np.zeros(self.dimension))

    def start(self) -> Sum:
        self._state.kept = {}
        return self._state


class OwnCoins(Plain):
    """Its noise is not drawn from the source."""

    def finish(self, state: Sum, rng: RandomSource) -> Combined:
        done = super().finish(state, rng)
        return dataclasses.replace(done, step=done.step + 1e-13 * np.random.default_rng().normal(size=self.dimension))


class EmptyIsZero(Plain):
    """No update, and a step of zeros, while it says that it needs updates."""

    def finish(self, state: Sum, rng: RandomSource) -> Combined:
        return Combined(step=state.total / max(state.count, 1), kept=tuple(state.kept))


class LeavesOneOut(Plain):
    """Not every party is in the step, nor among those that were left out."""

    def finish(self, state: Sum, rng: RandomSource) -> Combined:
        return dataclasses.replace(super().finish(state, rng), kept=tuple(state.kept)[1:])


class SinglePrecision(Plain):
    """The step is a float32 vector."""

    def finish(self, state: Sum, rng: RandomSource) -> Combined:
        done = super().finish(state, rng)
        return dataclasses.replace(done, step=done.step.astype(np.float32))


class Sorts(Plain):
    """The order of arrival is lost."""

    def fold(self, state: Sum, party: str, update: Vector) -> None:
        super().fold(state, party, update)
        state.kept = dict.fromkeys(sorted(state.kept))


class StaysHere(Plain):
    """It holds what no other process can have."""

    def __init__(self) -> None:
        self._open = lambda: None


MUTANTS: dict[type[Plain], str] = {
    OrderMatters: "test_neither_order_nor_parts_change_the_step",
    KeepsRows: "test_memory_does_not_grow_with_the_cohort",
    CountsTheBroken: "test_add_many_leaves_out_rows_with_a_problem",
    NamesTheBroken: "test_add_many_leaves_out_rows_with_a_problem",
    Scales: "test_updates_are_left_as_they_were",
    LetsNanPass: "test_an_update_with_a_problem_changes_nothing",
    AddsThenChecks: "test_an_update_with_a_problem_changes_nothing",
    CountsTwice: "test_no_party_counts_twice",
    ForgetsOnMerge: "test_a_merge_is_the_fold_of_all",
    MergesOneWay: "test_a_merge_is_the_fold_of_all",
    Remembers: "test_every_start_begins_anew",
    OwnCoins: "test_the_same_coins_make_the_same_step",
    EmptyIsZero: "test_no_update_is_no_step_or_noise_alone",
    LeavesOneOut: "test_the_step_is_a_finite_vector",
    SinglePrecision: "test_the_step_is_a_finite_vector",
    Sorts: "test_the_state_names_the_parties_in_order_of_arrival",
    StaysHere: "test_a_fold_and_its_state_can_travel",
}


@pytest.mark.parametrize("promise", [name for name in PROMISES if "forged" not in name])
def test_the_honest_fold_behind_the_broken_ones_keeps_the_contract(promise: str) -> None:
    getattr(contract_of(Plain), promise)()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_fold_that_breaks_a_promise_is_caught(mutant: type[Plain]) -> None:
    with pytest.raises((AssertionError, ValueError, AttributeError, TooFewParties)):
        getattr(contract_of(mutant), MUTANTS[mutant])()


def test_a_fold_that_believes_every_state_is_caught() -> None:
    """``Plain`` looks at no sum that comes from elsewhere."""
    with pytest.raises(AssertionError, match="must be refused"):
        contract_of(Plain, forge=forge_mean).test_a_forged_state_is_refused()


def test_every_promise_has_a_broken_fold_that_it_catches() -> None:
    assert set(MUTANTS.values()) | {"test_a_forged_state_is_refused"} == set(PROMISES)
