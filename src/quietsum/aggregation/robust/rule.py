"""A robust rule: from updates, some of which may be anything, to one step, and the facts that it states.

A rule takes one matrix, a row an update, and returns a :class:`Verdict`: the step, the rows that are in it, and one
number a row for everything that it measured. A verdict says of a row that it is not in the step; it is no statement
about its sender. Rules never see declared or reported sizes: a weight that cannot be verified is a lever.

None of this is privacy. Where updates carry noise of their own, a rule is post-processing (rule 13); noise *after* a
rule needs a sensitivity, and :attr:`Facts.sensitivity` says whether there is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["Facts", "Matrix", "Rule", "Sent", "Trial", "Vector", "Verdict", "measure_memory"]

Matrix = NDArray[Any]
Vector = NDArray[np.float64]


class Trial(Protocol):
    """A small root set that the server holds, public or made up, tried on the model of this round."""

    def update(self) -> Vector:
        """What an honest party with the root set as its data would send in this round."""
        ...

    def losses(self, steps: Matrix) -> Vector:
        """The mean loss on the root set of model + step, for each row of ``steps``."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """What arrived in one round: (n, d) ``updates``, all finite, in the order of the registered parties.

    ``places`` says which of the ``registered`` parties each row is of; ``attackers`` is f, how many of the rows may be
    anything. ``memory`` is what this rule kept from the round before (:meth:`Rule.memory` before the first one).
    """

    updates: Matrix
    attackers: int
    places: NDArray[np.int64]
    registered: int
    rng: RandomSource
    memory: Mapping[str, Vector] = dataclasses.field(default_factory=dict)
    trial: Trial | None = None

    def __len__(self) -> int:
        return len(self.updates)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """The result of a rule.

    ``kept`` marks the rows that are in the step, wholly or in part; a rule that looks at each coordinate alone keeps
    all. ``weights`` are each row's share where the step is a weighted mean, else None. ``statistics`` holds one number
    a row by name (operator only), ``reasons`` why a row is left out, ``memory`` what the next round starts from.
    """

    step: Vector
    kept: NDArray[np.bool_]
    weights: Vector | None = None
    statistics: Mapping[str, Vector] = dataclasses.field(default_factory=dict)
    reasons: Mapping[int, str] = dataclasses.field(default_factory=dict)
    memory: Mapping[str, Vector] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What a rule states about itself, for plans, refusals and pages.

    ``least`` is the smallest n that it works with for f attackers, and what a plan is held to; ``breakdown`` says in
    words up to which share of attackers its result stays bounded, or that none is proved. ``sensitivity`` says
    by how much one update moves the step, None where there is no bound. ``remembers``: it keeps a record of each party
    from round to round. ``pairs``: it compares every two updates, so memory grows with n². ``source`` names the paper.
    """

    title: str
    source: str
    breakdown: str
    least: Callable[[int], int]
    needs_individuals: bool = True
    needs_trial: bool = False
    remembers: bool = False
    pairs: bool = False
    sensitivity: str | None = None
    limits: str = ""


class Rule(Protocol):
    """From updates to a step.

    Guarantees asked of every implementation (:mod:`quietsum.contracts`): the step is finite for all finite numbers
    that arrive; it does not depend on the order of rows, nor on names; a single row, identical rows and rows of zeros
    have a step; nothing is changed in place. Randomness comes from ``sent.rng`` alone.
    """

    @property
    def name(self) -> str:
        """The name in ``run.toml``."""
        ...

    @property
    def facts(self) -> Facts:
        """What it states about itself."""
        ...

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """What it remembers before the first round: named vectors, which checkpoints carry; often none."""
        ...

    def combine(self, sent: Sent) -> Verdict:
        """The step, and what was measured on the way. ``sent`` holds at least one row."""
        ...


def measure_memory(rule: Rule, registered: int, dimension: int) -> int:
    """The bytes of :meth:`Rule.memory`, without making it: it grows in proportion to parties, parameters, or both."""

    def numbers(parties: int, parameters: int) -> int:
        return sum(vector.size for vector in rule.memory(parties, parameters).values())

    one, wide, long, both = numbers(1, 1), numbers(1, 2), numbers(2, 1), numbers(2, 2)
    each = both - wide - long + one  # of a party and a parameter
    parties, parameters = long - one - each, wide - one - each
    fixed = one - parties - parameters - each
    return 8 * (fixed + parties * registered + parameters * dimension + each * registered * dimension)
