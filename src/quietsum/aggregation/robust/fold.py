"""A robust rule as a fold: rows are kept as they arrive, and the rule sees them all at once, in the registered order.

Memory grows with the cohort, since such rules compare updates with each other. The order in which updates arrived, and
in how many parts, changes nothing: the rule sees the same matrix.

>>> from quietsum.aggregation.robust import find_rule
>>> from quietsum.mechanisms.rng import system_randomness
>>> fold = RobustFold(rule=find_rule("median"), registered=("a", "b", "c"), attackers=1, dimension=1)
>>> state, broken = fold.add_many(fold.start(), ("a", "b", "c"), np.array([[1.0], [2.0], [1e300]]))
>>> fold.finish(state, system_randomness()).step
array([2.])
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from quietsum.aggregation.fold import Combined, Vector, length_of, problem_with_update, refuse_twice, usable_rows
from quietsum.aggregation.robust.rule import Rule, Sent, Trial
from quietsum.errors import InvalidParameter, TooFewParties
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource

__all__ = ["RobustFold", "RobustState"]


@final
@dataclasses.dataclass(kw_only=True)
class RobustState:
    """The updates that arrived, with their parties in the same order; and the parties with an unusable update."""

    rows: list[Vector]
    kept: dict[str, None]
    spoilt: dict[str, None] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RobustFold:
    """The step of ``rule`` on the updates of the ``registered`` parties, ``attackers`` of which may be anything.

    Guarantees: none of privacy (post-processing of updates that carry their own noise, rule 13). No update longer than
    its party's limit reaches the rule. With fewer updates than the rule needs to withstand ``attackers``, there is no
    step: a rule is never quietly used beyond what it was stated for.
    """

    rule: Rule
    registered: tuple[str, ...]
    attackers: int
    dimension: int
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: Mapping[str, Vector] = dataclasses.field(default_factory=dict)
    trial: Trial | None = None
    needs_updates = True

    def __post_init__(self) -> None:
        whole_number("dimension", self.dimension, 1)
        whole_number("attackers", self.attackers, 0)

    def __reduce__(self) -> tuple[Any, ...]:  # another process that folds needs neither the memory nor the trial
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _make_fold, ({**fields, "memory": {}, "trial": None},)

    @property
    def needs_individuals(self) -> bool:
        """As the rule says."""
        return self.rule.facts.needs_individuals

    def start(self) -> RobustState:
        """Nothing folded yet."""
        return RobustState(rows=[], kept={})

    def problem_with(self, update: object, party: str = "") -> str:
        """Why ``update`` of ``party`` cannot be used, or an empty text."""
        problem = problem_with_update(update, self.dimension)
        if not problem and isinstance(update, np.ndarray):
            problem = self._too_long(update, party)
        return problem

    def add(self, state: RobustState, party: str, update: Vector) -> RobustState:
        """``state`` with one more update; a misshapen, non-finite or overlong one raises and changes nothing."""
        self._check_known((party,))
        refuse_twice((party,), state.kept)
        if problem := self.problem_with(update, party):
            raise InvalidParameter("update", f"of {party}", problem)
        state.rows.append(update)
        state.kept[party] = None
        return state

    def add_many(
        self, state: RobustState, parties: Sequence[str], updates: Vector
    ) -> tuple[RobustState, dict[str, str]]:
        """``state`` with the usable rows of ``updates``, and by party what is wrong with the others."""
        self._check_known(parties)
        usable, broken = usable_rows(parties, updates, self.dimension, state.kept)
        for place in usable:
            if problem := self._too_long(updates[place], parties[place]):
                broken[parties[place]] = problem
                continue
            state.rows.append(updates[place])
            state.kept[parties[place]] = None
        state.spoilt.update(dict.fromkeys(broken))
        return state, broken

    def spoil(self, state: RobustState, party: str) -> None:
        """Note that ``party`` sent an unusable update, as no honest party does: it is one of the stated attackers."""
        self._check_known((party,))
        state.spoilt[party] = None

    def merge(self, one: RobustState, other: RobustState) -> RobustState:
        """Both together."""
        self._check_known(other.kept)
        refuse_twice(other.kept, one.kept)
        if len(other.rows) != len(other.kept):
            raise InvalidParameter("updates", f"of {len(other.kept)} parties", "are not one row a party")
        for party, row in zip(other.kept, other.rows, strict=True):
            if problem := self.problem_with(row, party):
                raise InvalidParameter("update", f"of {party}", problem)
        one.rows.extend(other.rows)
        one.kept.update(other.kept)
        one.spoilt.update(dict.fromkeys(party for party in other.spoilt if party in self._names))
        return one

    def finish(self, state: RobustState, rng: RandomSource) -> Combined:
        """The rule's step. Raises :class:`~quietsum.errors.TooFewParties` if too few updates arrived for the rule.

        A party with an unusable update is left out already, and was one of the attackers: there are so many fewer among
        the rest. Otherwise an attacker could end every round by an update that is left out.
        """
        attackers = max(self.attackers - len(state.spoilt.keys() - state.kept.keys()), 0)
        count, least = len(state.rows), max(self.rule.facts.least(attackers), 1)
        if count < least:
            raise TooFewParties(
                f"{count} updates arrived, and rule = '{self.rule.name}' needs {least} to withstand {attackers} "
                "that may be anything; the round is charged all the same. State fewer aggregation.attackers, or wait "
                "until more parties are there, then resume"
            )
        place = {party: index for index, party in enumerate(self.registered)}
        order = sorted(range(count), key=lambda row: place[names[row]]) if (names := list(state.kept)) else []
        sent = Sent(
            updates=np.stack([state.rows[row] for row in order]), attackers=attackers,
            places=np.array([place[names[row]] for row in order], dtype=np.int64), registered=len(self.registered),
            rng=rng, memory=self.memory, trial=self.trial,
        )  # fmt: skip
        verdict = self.rule.combine(sent)
        parties = [names[row] for row in order]
        return Combined(
            step=verdict.step,
            kept=tuple(party for party, kept in zip(parties, verdict.kept, strict=True) if kept),
            rejected={
                party: verdict.reasons.get(row, "the rule left it out")
                for row, (party, kept) in enumerate(zip(parties, verdict.kept, strict=True))
                if not kept
            },
            statistics={
                name: dict(zip(parties, values.tolist(), strict=True)) for name, values in verdict.statistics.items()
            },
            memory=verdict.memory,
        )

    def _too_long(self, update: Vector, party: str) -> str:
        limit = self.limits.get(party, np.inf)
        length = length_of(update)
        return "" if length <= limit else f"has length {length:.3g}, and an honest one has at most {limit:.3g}"

    def _check_known(self, parties: Iterable[str]) -> None:
        for party in parties:
            if party not in self._names:
                raise InvalidParameter("party", party, "is not registered", f"{len(self._names)} parties are")

    @functools.cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.registered)


def _make_fold(fields: dict[str, Any]) -> RobustFold:
    return RobustFold(**fields)
