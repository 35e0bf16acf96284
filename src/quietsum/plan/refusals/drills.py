"""Rows about drills: plans in which some parties attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.plan.refusals.row import RefusalRow, list_some, taking_part

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["ROWS", "list_drill_warnings"]


def _strangers(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.attack is None or isinstance(plan.attack.parties, int):
        return ""
    known = {party.name for party in taking_part(plan, parties)}
    strange = [name for name in plan.attack.parties if name not in known]
    return f"attack.parties names {list_some(strange)}" if strange and known else ""


def _nobody_honest(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    present = [party.name for party in taking_part(plan, parties)]
    if plan.attack is None or not present or len(plan.attack.among(present)) < len(present):
        return ""
    return f"attack.parties makes attackers of all {len(present)} parties"


def _on_protected(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.attack is None:
        return ""
    kept = [f"'{party.name}'" for party in taking_part(plan, parties) if not party.public]
    return f"[attack] with protected rows at {list_some(kept)}" if kept else ""


def _behind_masks(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    attack = plan.attack
    if attack is None or not plan.aggregation.secure:
        return ""
    if not attack.on_rows:
        return f"attack.kind = '{attack.kind}' with aggregation.secure = true"
    return f"attack.strength = {attack.strength:g} with aggregation.secure = true" if attack.strength else ""


def _rows_for_some_rounds(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    attack = plan.attack
    if attack is None or not attack.on_rows or (attack.from_round == 1 and attack.to_round is None):
        return ""
    return f"attack.from_round or .to_round with kind = '{attack.kind}'"


def _after_the_end(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    attack, rounds = plan.attack, plan.federation.rounds
    return (
        f"attack.from_round = {attack.from_round} of {rounds} rounds" if attack and attack.from_round > rounds else ""
    )


ROWS = (
    RefusalRow(
        name="attack-by-strangers",
        when=_strangers,
        why="they take no part, so no party would attack",
        instead="name parties of the plan, or say how many",
    ),
    RefusalRow(
        name="attack-by-all",
        when=_nobody_honest,
        why="nothing is left to defend",
        instead="leave at least one party honest",
    ),
    RefusalRow(
        name="attack-on-protected",
        when=_on_protected,
        why="attackers read what honest parties send before any noise of the server's, and change rows by their place "
        "among others, so that no ε of such a run would be true",
        instead="drill on rows that are public or made up, of the same shape",
    ),
    RefusalRow(
        name="attack-behind-masks",
        when=_behind_masks,
        why="a drill changes updates where they arrive, and masked ones never do",
        instead="choose an attack on rows (label-flip, backdoor) without strength, or secure = false",
    ),
    RefusalRow(
        name="attack-on-rows-for-some-rounds",
        when=_rows_for_some_rounds,
        why="rows are changed once, for the whole run",
        instead="leave from_round and to_round out, or choose an attack on updates",
    ),
    RefusalRow(
        name="attack-after-the-end",
        when=_after_the_end,
        why="no round would be attacked",
        instead="choose an earlier round",
    ),
)


def list_drill_warnings(plan: Plan) -> list[str]:
    """The sentence that every reader of such a plan sees."""
    return [plan.attack.words] if plan.attack is not None else []
