"""A drill in a plan: which parties attack, how, and in which rounds. Never more than a rehearsal on one machine.

Nobody needs a plan to attack a federation. ``[attack]`` exists to see what a rule does when somebody does, so a plan
with it runs on the local runtime alone, is shown as a drill wherever it is shown, and is refused by every site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.plan.fields import MOST_ROUNDS, MOST_STEPS, chosen, count, maybe, names, store
from quietsum.validate import finite_number, non_negative, probability, whole_number

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
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackPlan:
    """What some parties do instead of following the plan, for a drill.

    ``parties`` are names, or how many of the first ones. ``strength`` is the attack's one number, its usual value if
    left out; for attacks on rows it multiplies what the attackers send, 1 if left out. Rounds count from 1.
    ``source`` and ``target`` are classes, ``trigger`` the coordinates of a backdoor, ``mark`` what stands there (the
    largest number of each example if left out), ``share`` how many of an attacker's rows bear it.
    """

    kind: str
    parties: tuple[str, ...] | int = 1
    strength: float | None = None
    direction: str = "rising"
    from_round: int = 1
    to_round: int | None = None
    source: int | None = None
    target: int | None = None
    trigger: tuple[int, ...] = (0, 1, 2)
    mark: float | None = None
    share: float = 0.5

    def __post_init__(self) -> None:
        chosen("kind", self.kind, ATTACK_KINDS)
        chosen("direction", self.direction, ATTACK_DIRECTIONS)
        first = count("from_round", self.from_round, 1, MOST_ROUNDS)
        last = maybe(count, "to_round", self.to_round, 1, MOST_ROUNDS)
        if last is not None and last < first:
            raise InvalidParameter("to_round", last, f"comes before from_round = {first}", "choose a later one")
        places = tuple(self.trigger) if isinstance(self.trigger, Sequence) else ()
        if not places or len(set(places)) != len(places):
            raise InvalidParameter("trigger", self.trigger, "is no set of coordinates", "write it as [0, 1, 2]")
        store(
            self,
            parties=count("parties", self.parties, 1, MOST_STEPS, "how many of the parties attack")
            if isinstance(self.parties, int)
            else names("parties", self.parties),
            strength=maybe(non_negative, "strength", self.strength, "leave it out for the attack's usual one"),
            from_round=first,
            to_round=last,
            source=maybe(whole_number, "source", self.source),
            target=maybe(whole_number, "target", self.target),
            trigger=tuple(whole_number(f"trigger[{at}]", place, 0) for at, place in enumerate(places)),
            mark=maybe(finite_number, "mark", self.mark),
            share=probability("share", self.share, "how many of an attacker's rows bear the trigger") + 0.0,
        )
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
        """What a reader of plans, runs and models is told."""
        if isinstance(self.parties, int):
            who = "1 party" if self.parties == 1 else f"{self.parties} parties"
        else:
            who = ", ".join(self.parties)
        return f"DRILL: {who} attacking by '{self.kind}', so the model is good for nothing but judging the defence"
