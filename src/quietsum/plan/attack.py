"""A drill in a plan: which parties attack, how, and in which rounds. Never more than a rehearsal on one machine.

``[attack]`` shows what a rule does under an attack. A plan with it runs on the local runtime alone, is labelled as a
drill everywhere, and is refused by every site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, FRACTION, NON_NEGATIVE, ROUNDS, choices, key, table

__all__ = ["ATTACK_DIRECTIONS", "ATTACK_KINDS", "ON_ROWS", "AttackPlan"]

ON_ROWS = ("label-flip", "backdoor", "distributed-backdoor")
"""Attacks on rows: the attackers train as the plan says, on data that they changed."""
ATTACK_KINDS = (
    "sign-flip", "gaussian", "zero", "free-rider", "model-replacement", "lie", "ipm", "min-max", "min-sum", "byzmean",
    "mimic", "sign-matched", "adaptive", *ON_ROWS,
)  # fmt: skip
"""The names of :data:`quietsum.defence.ATTACKS` and :data:`quietsum.defence.DATA_ATTACKS`; a test holds them alike."""
ATTACK_DIRECTIONS = ("rising", "falling", "unit", "sign")


@final
@table
class AttackPlan:
    """What some parties do instead of following the plan, for a drill.

    ``source`` and ``target`` are classes. Rounds count from 1.
    """

    kind: str = key("What the attackers do; docs/explanation/attacks.md tells of each.", bound=choices(*ATTACK_KINDS))
    parties: tuple[str, ...] | int = key(
        "Who attacks: names, or how many of the first parties.", default=1,
        bound=dataclasses.replace(COUNT, named=True),
    )  # fmt: skip
    strength: float | None = key(
        "The attack's one number, its usual value if omitted; on rows, a factor of what is sent.", default=None,
        bound=NON_NEGATIVE,
    )  # fmt: skip
    direction: str = key(
        "Where lie, byzmean, min-max, min-sum and adaptive push.", default="rising", bound=choices(*ATTACK_DIRECTIONS)
    )
    from_round: int = key("The first round that is attacked.", default=1, bound=ROUNDS)
    to_round: int | None = key("The last round that is attacked; to the end if omitted.", default=None, bound=ROUNDS)
    source: int | None = key(
        "label-flip: the class whose labels are flipped; all classes if omitted.", default=None, bound=NON_NEGATIVE
    )
    target: int | None = key(
        "label-flip and backdoors: the class that is stated instead; 0 for backdoors if omitted.", default=None,
        bound=NON_NEGATIVE,
    )  # fmt: skip
    trigger: tuple[int, ...] = key(
        "Backdoors: coordinates of an example that bear the trigger.", default=(0, 1, 2),
        bound=dataclasses.replace(NON_NEGATIVE, shortest=1),
    )  # fmt: skip
    mark: float | None = key(
        "Backdoors: what stands there; the largest number of each example if omitted.", default=None
    )
    share: float = key("Backdoors: the share of an attacker's rows that bear it.", default=0.5, bound=FRACTION)

    def __post_init__(self) -> None:
        if self.to_round is not None and self.to_round < self.from_round:
            problem = f"comes before from_round = {self.from_round}"
            raise InvalidParameter("to_round", self.to_round, problem, "choose a later one")
        if len(set(self.trigger)) != len(self.trigger):
            raise InvalidParameter("trigger", self.trigger, "is no set of coordinates", "write it as [0, 1, 2]")
        if not self.parties:
            raise InvalidParameter("parties", "[]", "names no attacker", "name some, or say how many")

    @property
    def on_rows(self) -> bool:
        """Whether rows are changed rather than updates."""
        return self.kind in ON_ROWS

    def among(self, parties: Sequence[str]) -> tuple[str, ...]:
        """The attackers among ``parties``, in their order."""
        if isinstance(self.parties, int):
            return tuple(parties[: self.parties])
        wanted = frozenset(self.parties)
        return tuple(name for name in parties if name in wanted)

    def active(self, number: int) -> bool:
        """Whether round ``number`` is attacked."""
        return self.from_round <= number and (self.to_round is None or number <= self.to_round)

    @property
    def words(self) -> str:
        """The line that plans, runs and models of a drill show."""
        if isinstance(self.parties, int):
            who = "1 party" if self.parties == 1 else f"{self.parties} parties"
        else:
            who = ", ".join(self.parties)
        return f"DRILL: {who} attacking by '{self.kind}', so the model is good for nothing but judging the defence"
