"""What ``quietsum plan`` says of masked sums: who must collude, what a round survives and costs, the other ways."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietsum.plan import Grouping, ResolvedPlan, SecurePlan
    from quietsum.secagg import SessionCost

__all__ = ["other_ways", "secure_facts", "secure_values"]


def secure_facts(resolved: ResolvedPlan) -> list[tuple[str, str]]:
    """Lines for people; none where nothing is masked."""
    secure = resolved.secure
    if secure is None:
        return []
    chosen, cost = secure.parameters, _cost(resolved, secure)
    graph = "each masks with all others" if chosen.complete else f"each masks with {chosen.neighbours} others"
    graph += " of its group" if secure.grouping is not None else ""
    kind = "looks at all it gets" if chosen.adversary == "curious" else "may lie about drop-outs"
    return [
        ("masked", f"{secure.sums} a round, modulo 2^{secure.bits}; {graph}; against a server that {kind}"),
        ("must collude", f"{chosen.threshold} of {chosen.holders}, beside the server, to unmask one update"),
        *_assumptions(resolved, secure),
        ("survives", _survives(secure)),
        ("a party pays", f"{cost.party.summary}, each round"),
        ("the server", f"{cost.server.summary}, each round"),
    ]


def _assumptions(resolved: ResolvedPlan, secure: SecurePlan) -> list[tuple[str, str]]:
    """On how few colluders masks and noise rest, and on how few attackers the rule between groups."""
    seated = secure.grouping
    if seated is None:
        told = f"at most {secure.colluders} of {secure.cohort} collude, so a sum holds {secure.honest} honest or more"
        return [("assumed", told)]
    but = f", but for a chance of {seated.chance_of_run:.2g} over the run" if seated.chance else ""
    return [
        (
            "assumed",
            f"at most {seated.colluders} of {secure.cohort} collude, {secure.colluders} of one group{but}, so a sum "
            f"holds {secure.honest} honest or more",
        ),
        ("among colluders", _among(secure, seated)),
        ("attackers", _attackers(resolved, seated)),
    ]


def _among(secure: SecurePlan, seated: Grouping) -> str:
    """The chance that an honest party has fewer than two other honest ones beside it in its sum."""
    draw = seated.among_colluders(secure.floor)
    told = f"an honest party is summed with fewer than two other honest ones with chance {draw:.2g} a draw, "
    told += f"{min(1.0, draw * seated.draws):.2g} over the run"
    if seated.attackers > seated.colluders:
        both = seated.among_colluders(secure.floor, seated.attackers)
        told += f"; {both:.2g} a draw if the {seated.attackers} attackers colluded, too"
    return told


def _attackers(resolved: ResolvedPlan, seated: Grouping) -> str:
    """How many groups the attackers touch, against what was measured to hold and what the rule withstands."""
    from quietsum.aggregation import most_attackers
    from quietsum.plan import CONTAMINATED

    touched, rule = seated.touched, resolved.robust
    told = (
        f"{seated.attackers} of {seated.parties} may send anything: they sit in {100 * touched.share:.0f} % of the "
        f"groups (bound {100 * CONTAMINATED:.0f} %), in half of them or more with chance {touched.half:.2g} a round"
    )
    if rule is not None:
        most = max(most_attackers(rule, seated.count), 0)
        told += f", in more than the {most} that {rule.name} withstands with chance {touched.beyond(most):.2g}"
    return told


def _survives(secure: SecurePlan) -> str:
    where = "group" if secure.grouping is not None else "round"
    lost = f"{secure.may_drop} of {secure.seats} lost" if secure.may_drop else "no drop-out"
    more = "" if secure.may_drop else f"; say drop_outs = {math.ceil(1000 / secure.seats) / 1000:g} to survive one"
    nothing = "nothing of it, and the other groups go on" if secure.grouping is not None else "nothing"
    return f"{lost} in a {where}; below {secure.floor} the parties unmask {nothing}{more}"


def _cost(resolved: ResolvedPlan, secure: SecurePlan) -> SessionCost:
    """On this machine, with as many drop-outs as the plan allows for."""
    from quietsum.secagg import estimate, measure, pad_to_power

    names = [len(facts.name.encode()) for facts in resolved.parties]
    return estimate(
        secure.parameters,
        dimension=pad_to_power(resolved.dimension) if secure.bits < 32 else resolved.dimension,
        bits=secure.bits,
        machine=measure(),
        noise=resolved.distributed_unit is not None,
        name_bytes=math.ceil(sum(names) / len(names)),
    )


def other_ways(resolved: ResolvedPlan) -> list[str]:
    """When noise alone, or homomorphic encryption, would be the way to go."""
    secure = resolved.secure
    if secure is None:
        return []
    alone = (
        'Noise alone (secure = false, noise_at = "party") rests on no other party and no masks: it is the other way '
        "where parties do not trust each other or cannot wait for each other."
    )
    if resolved.distributed_unit is not None and secure.grouping is not None:
        more = math.sqrt(secure.grouping.count)
        alone += f" One sum over all, without groups, would have about 1/{more:.2g} of this noise."
    elif resolved.distributed_unit is not None:
        alone += f" The sum's noise would be about {math.sqrt(secure.honest):.2g} times as long at the same ε."
    elif resolved.protected:
        alone += " This plan's noise is at each party already, so its ε is the same without masks."
    encrypted = (
        "Homomorphic encryption is the other way where each party can speak only once a round: who holds its key reads "
        "every update, so the key must be shared, and it adds no noise either."
    )
    return [alone, encrypted]


def secure_values(resolved: ResolvedPlan) -> dict[str, Any] | None:
    """The same for programs."""
    import dataclasses

    secure = resolved.secure
    if secure is None:
        return None
    cost = _cost(resolved, secure)
    noise = resolved.distributed_unit
    return {
        **secure.parameters.to_dict(),
        "holders": secure.parameters.holders,
        "floor": secure.floor,
        "honest": secure.honest,
        "bits": secure.bits,
        "simulated": secure.simulated,
        "grouping": _grouping_values(secure),
        "noise_in_shares": None if noise is None else noise.value,
        "party_cost": dataclasses.asdict(cost.party),
        "server_cost": dataclasses.asdict(cost.server),
    }


def _grouping_values(secure: SecurePlan) -> dict[str, Any] | None:
    seated = secure.grouping
    if seated is None:
        return None
    draw, touched = seated.among_colluders(secure.floor), seated.touched
    return {
        "groups": seated.count,
        "smallest": secure.parameters.smallest,
        "largest": secure.parameters.largest,
        "colluders": seated.colluders,
        "colluders_in_a_group": seated.inside,
        "draws": seated.draws,
        "more_colluders_a_draw": seated.chance,
        "more_colluders_over_the_run": seated.chance_of_run,
        "among_colluders_a_draw": draw,
        "among_colluders_over_the_run": min(1.0, draw * seated.draws),
        "attackers": seated.attackers,
        "touched_share": touched.share,
        "touched_half": touched.half,
        "touched_majority": touched.majority,
    }
