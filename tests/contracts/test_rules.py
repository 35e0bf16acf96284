"""Every robust rule keeps the rules' contract, and the contract catches rules that do not."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from quietsum.aggregation.robust import (
    RULES,
    CenteredClipping,
    Facts,
    NormBounded,
    Rule,
    Sent,
    Verdict,
    find_rule,
)
from quietsum.contracts import RuleContract

PROMISES = sorted(name for name in dir(RuleContract) if name.startswith("test_"))
CASES: dict[str, Callable[[], Rule]] = {
    **{name: functools.partial(find_rule, name) for name in RULES},
    "norm-bounded, constant": lambda: NormBounded(bound=3.0),
    "centered-clipping, once": lambda: CenteredClipping(iterations=1),
    **{f"{name} after nnm": functools.partial(find_rule, name, "nnm") for name in ("trimmed-mean", "krum")},
    "median after bucketing": lambda: find_rule("median", "bucketing"),
}
OPTIONS: dict[str, dict[str, bool]] = {
    "norm-bounded, constant": {"averages": False},
    "foolsgold": {"withstands": False},  # sybils alone: whoever is on his own counts fully
    "dnc": {"withstands": False},  # one direction a draw: attackers in several directions stay
    "median after bucketing": {"shuffles": True},
    "fltrust": {"averages": False},  # at the length of the root update
    "trust": {"averages": False},  # where the root set finds no merit, the step is its own
}


def contract_of(make: Callable[[], Rule], **fields: Any) -> RuleContract:
    return type("Contract", (RuleContract,), {"make": lambda self: make(), **fields})()


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("case", sorted(CASES))
def test_our_rules_keep_the_contract(case: str, promise: str) -> None:
    getattr(contract_of(CASES[case], alone=True, **OPTIONS.get(case, {})), promise)()


# ------------------------------------------------------------------------------------------- broken rules


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken:
    """A rule whose step is whatever ``how`` makes of the updates."""

    how: Callable[[Sent], np.ndarray]
    least: Callable[[int], int] = lambda attackers: 2 * attackers + 1
    slots: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    name = "broken"

    @property
    def facts(self) -> Facts:
        return Facts(title="broken", source="a test", breakdown="none", least=self.least)

    def memory(self, registered: int, dimension: int) -> Mapping[str, np.ndarray]:
        return self.slots

    def combine(self, sent: Sent) -> Verdict:
        with np.errstate(all="ignore"):
            return Verdict(step=self.how(sent), kept=np.ones(len(sent), dtype=np.bool_))


def in_place(sent: Sent) -> np.ndarray:
    sent.updates.sort(axis=0)
    return np.asarray(sent.updates[len(sent) // 2])


def by_norm(sent: Sent) -> np.ndarray:
    """A median by length that squares without a thought."""
    norms = np.sqrt((sent.updates**2).sum(axis=1))
    return np.asarray((sent.updates * np.minimum(1, np.median(norms) / norms)[:, None]).mean(axis=0))


MUTANTS: dict[str, tuple[Any, str]] = {
    "the first row": (lambda sent: sent.updates[0].astype(float), "test_neither_order_nor_names_change_anything"),
    "rows weighted by place": (
        lambda sent: np.median(sent.updates * (1 + sent.places[:, None] / 1000), axis=0),
        "test_neither_order_nor_names_change_anything",
    ),
    "the mean": (
        lambda sent: sent.updates.mean(axis=0, dtype=float),
        "test_attackers_within_the_stated_number_cannot_carry_the_step_away",
    ),
    "a sort in place": (in_place, "test_nothing_is_changed_in_place"),
    "nan through a median": (
        lambda sent: np.median(sent.updates, axis=0).astype(float),
        "test_rows_that_are_no_numbers_never_reach_the_step",
    ),
    "squares without a scale": (by_norm, "test_any_finite_numbers_have_a_finite_step"),
    "zero over zero": (by_norm, "test_rows_of_zeros_and_rows_that_are_the_same_have_a_step"),
    "its own coins": (
        lambda sent: np.median(sent.updates, axis=0) + 1e-3 * np.random.default_rng().normal(),
        "test_the_same_coins_make_the_same_step",
    ),
    "single precision": (
        lambda sent: np.median(sent.updates, axis=0),
        "test_single_precision_is_accepted",
    ),
    "a slot that is not kept": (
        lambda sent: np.median(sent.updates, axis=0).astype(float),
        "test_a_round_goes_on_from_the_memory_of_the_last",
    ),
    "the sum for one row": (
        lambda sent: 2 * np.median(sent.updates, axis=0).astype(float),
        "test_a_single_row_is_a_step_or_too_few",
    ),
}


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_rule_that_breaks_a_promise_is_caught(name: str) -> None:
    how, promise = MUTANTS[name]
    slots = {"slot": np.zeros(3)} if "slot" in name else {}
    with pytest.raises((AssertionError, ValueError)):
        getattr(contract_of(lambda: Broken(how=how, slots=slots), alone=True), promise)()


def test_a_rule_that_claims_to_need_nothing_is_caught() -> None:
    contract = contract_of(lambda: Broken(how=in_place, least=lambda attackers: 1))
    with pytest.raises(AssertionError, match="more attackers need more rows"):
        contract.test_it_states_its_facts()
    with pytest.raises(AssertionError):
        contract.test_more_attackers_than_stated_have_no_step()
