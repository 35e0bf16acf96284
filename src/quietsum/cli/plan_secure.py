"""What ``quietsum plan`` says of masked sums: who must collude, what a round survives and costs, the other ways."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan
    from quietsum.plan.secure import SecurePlan
    from quietsum.secagg.cost import Estimate

__all__ = ["other_ways", "secure_facts", "secure_values"]


def secure_facts(resolved: ResolvedPlan) -> list[tuple[str, str]]:
    """Lines for people; none where nothing is masked."""
    secure = resolved.secure
    if secure is None:
        return []
    chosen, cost = secure.parameters, _cost(resolved, secure)
    graph = "each masks with all others" if chosen.complete else f"each masks with {chosen.neighbours} others"
    kind = "looks at all it gets" if chosen.adversary == "curious" else "may lie about drop-outs"
    return [
        ("masked", f"one sum a round, modulo 2^{secure.bits}; {graph}; against a server that {kind}"),
        ("must collude", f"{chosen.threshold} of {chosen.holders}, beside the server, to unmask one update"),
        (
            "assumed",
            f"at most {secure.colluders} of {secure.cohort} collude, so a sum holds {secure.honest} honest or more",
        ),
        ("survives", _survives(secure)),
        ("a party pays", f"{cost.party.summary}, each round"),
        ("the server", f"{cost.server.summary}, each round"),
    ]


def _survives(secure: SecurePlan) -> str:
    lost = f"{secure.may_drop} of {secure.cohort} lost" if secure.may_drop else "no drop-out"
    more = "" if secure.may_drop else f"; say drop_outs = {math.ceil(1000 / secure.cohort) / 1000:g} to survive one"
    return f"{lost} in a round; below {secure.floor} the parties unmask nothing{more}"


def _cost(resolved: ResolvedPlan, secure: SecurePlan) -> Estimate:
    """On this machine, with as many drop-outs as the plan allows for."""
    from quietsum.secagg.cost import estimate, measure
    from quietsum.secagg.rotation import padded

    names = [len(facts.name.encode()) for facts in resolved.parties]
    return estimate(
        secure.parameters,
        dimension=padded(resolved.dimension) if secure.bits < 32 else resolved.dimension,
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
    if resolved.distributed_unit is not None:
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
        "noise_in_shares": None if noise is None else noise.value,
        "party_cost": dataclasses.asdict(cost.party),
        "server_cost": dataclasses.asdict(cost.server),
    }
