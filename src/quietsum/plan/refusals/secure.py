"""Rows about secure aggregation and distributed noise: what a masked sum hides, and what noise in shares rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quietsum.plan.refusals.general import NEEDS_INDIVIDUALS
from quietsum.plan.refusals.groups import has_groups
from quietsum.plan.refusals.row import RefusalRow, client_level, client_of, record_of, taking_part

if TYPE_CHECKING:
    from quietsum.plan.values import PartyFacts, Plan

__all__ = ["ROWS", "distributes_records", "distributing_key", "list_secure_warnings"]

FEWEST_HONEST = 3
"""Honest parties that secure aggregation begins with: each is hidden among two others."""


def distributes_records(plan: Plan) -> bool:
    """Whether records' noise is added in shares."""
    return plan.privacy.style.records and record_of(plan).noise_at == "distributed"


def distributes_clients(plan: Plan) -> bool:
    """Whether clients' noise is added in shares."""
    return client_level(plan) and client_of(plan).noise_at == "distributed"


def distributing_key(plan: Plan) -> str:
    """The key that asks for noise in shares, with its value; "" where none does."""
    if distributes_records(plan):
        return "privacy.record.noise_at = 'distributed'"
    return "privacy.client.noise_at = 'distributed'" if distributes_clients(plan) else ""


def _cohort(plan: Plan, parties: Sequence[PartyFacts]) -> int:
    count = len(taking_part(plan, parties))
    return min(plan.federation.sampling.size or count, count)


def _may_drop(plan: Plan, parties: Sequence[PartyFacts]) -> int | None:
    """How many of a cohort, or of a group, may be lost, as stated; None where nothing is.

    A threshold says it for small ones only: in large ones it counts shares of a party's neighbours.
    """
    stated, count = plan.aggregation, _cohort(plan, parties) // plan.aggregation.groups
    if stated.drop_outs is not None:
        return math.floor(count * stated.drop_outs * (1 + 1e-12))
    return max(count - stated.threshold, 0) if stated.threshold is not None and _complete(count) else None


# ----------------------------------------------------------------------------------------------- masked sums


def _asks_without_secure(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated = plan.aggregation
    if stated.secure:
        return ""
    keys = {
        "threshold": None, "adversary": "curious", "colluders": 1, "drop_outs": None, "bits": 32, "max_update": None,
        "groups": 1,
    }  # fmt: skip
    told = [name for name, default in keys.items() if getattr(stated, name) != default]
    return " and ".join(f"aggregation.{name}" for name in told) + " without secure = true" if told else ""


def _with_individuals(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    rule, alone = plan.aggregation.rule, plan.aggregation.secure and not has_groups(plan)
    return f"aggregation.secure with rule = '{rule}'" if alone and rule in NEEDS_INDIVIDUALS else ""


def _with_few(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count = _cohort(plan, parties)
    return f"aggregation.secure with {count} parties" if plan.aggregation.secure and count < 3 else ""


def _few_honest(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count, colluders = _cohort(plan, parties), plan.aggregation.colluders
    if not plan.aggregation.secure or has_groups(plan) or count < 3 or count - colluders >= FEWEST_HONEST:
        return ""
    return f"aggregation.secure with {count} parties of which {colluders} may collude with the server"


def _low_floor(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    count, colluders, lost = _cohort(plan, parties), plan.aggregation.colluders, _may_drop(plan, parties)
    if not plan.aggregation.secure or has_groups(plan) or lost is None or count - colluders < FEWEST_HONEST:
        return ""
    if count - lost - colluders >= 2:
        return ""
    return (
        f"aggregation.secure with {count} parties of which {lost} may be lost and {colluders} may collude leaves a sum "
        f"of {max(count - lost - colluders, 0)} honest"
    )


def _low_threshold(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated, count = plan.aggregation, _cohort(plan, parties)
    if not stated.secure or stated.threshold is None or count < 3 or has_groups(plan) or not _complete(count):
        return ""
    if stated.threshold <= stated.colluders:
        return f"aggregation.threshold = {stated.threshold} with {stated.colluders} that may collude with the server"
    return ""


def _half_threshold(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated, count = plan.aggregation, _cohort(plan, parties)
    if not stated.secure or stated.threshold is None or count < 3 or has_groups(plan) or not _complete(count):
        return ""
    if stated.adversary != "semi-malicious" or 2 * stated.threshold > count + stated.colluders:
        return ""
    return (
        f"aggregation.threshold = {stated.threshold} of {count} parties with adversary = 'semi-malicious' and "
        f"{stated.colluders} that may collude: {2 * stated.threshold} is not more than {count} + {stated.colluders}"
    )


def _high_threshold(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated, count = plan.aggregation, _cohort(plan, parties)
    if not stated.secure or stated.threshold is None or count < 3 or has_groups(plan):
        return ""
    left = count - math.floor(count * (stated.drop_outs or 0.0) * (1 + 1e-12))
    if stated.threshold <= left:
        return ""
    return f"aggregation.threshold = {stated.threshold} with {left} of {count} parties left after drop-outs"


def _complete(count: int) -> bool:
    from quietsum.secagg import SPARSE_FROM

    return count < SPARSE_FROM


def _coin_cohort(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    drawn = plan.federation.sampling
    if not plan.aggregation.secure or drawn.kind != "poisson":
        return ""
    return "aggregation.secure with federation.sampling of kind 'poisson'"


def _central_noise(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not plan.aggregation.secure or not client_level(plan) or client_of(plan).noise_at != "server":
        return ""
    return "aggregation.secure with privacy.client.noise_at = 'server'"


def _narrow(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    stated = plan.aggregation
    if not stated.secure or stated.bits == 32 or distributing_key(plan):
        return ""
    return f"aggregation.bits = {stated.bits} without distributed noise"


def _ball_of_clients(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.aggregation.max_update is None or not distributes_clients(plan):
        return ""
    return f"aggregation.max_update = {plan.aggregation.max_update:g} with privacy.client.noise_at = 'distributed'"


# --------------------------------------------------------------------------------------- noise in shares


def _without_secure(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    told = distributing_key(plan)
    return f"{told} without aggregation.secure = true" if told and not plan.aggregation.secure else ""


def _without_floor(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    told = distributing_key(plan)
    return f"{told} without a floor for drop-outs" if told and _may_drop(plan, parties) is None else ""


def _not_asked_for(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if plan.privacy.style.records or record_of(plan).noise_at != "distributed":
        return ""
    return f"privacy.record.noise_at = 'distributed' beside privacy.style = '{plan.privacy.style}'"


def _steps(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not distributes_records(plan):
        return ""
    training = plan.training
    if training.local_steps is not None:
        many = training.local_steps
        return f"training.local_steps = {many} with noise_at = 'distributed' for records" if many > 1 else ""
    epochs, rates = training.local_epochs or 1, _rates(plan, parties)
    if epochs > 1 or any(rate < 1 for rate in rates):
        return f"training.local_epochs = {epochs} with noise_at = 'distributed' for records"
    return ""


def _rates(plan: Plan, parties: Sequence[PartyFacts]) -> list[float]:
    training = plan.training
    if training.sample_rate is not None:
        return [training.sample_rate]
    return [(training.batch_size or 0) / party.size for party in taking_part(plan, parties) if party.size]


def _uneven(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    rates = _rates(plan, parties) if distributes_records(plan) else []
    if len(set(rates)) < 2 or max(rates) > 1:
        return ""
    sizes = [party.size for party in taking_part(plan, parties)]
    alike = (plan.training.batch_size or 0) * len(sizes) / sum(sizes)
    return (
        f"training.batch_size = {plan.training.batch_size} draws records at rates from {min(rates):.3g} to "
        f"{max(rates):.3g} (sample_rate = {alike:.3g} draws as many in all)"
    )


def _local_momentum(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not distributes_records(plan):
        return ""
    told = [name for name, value in (("optimizer.momentum", plan.training.optimizer.momentum),
                                     ("proximal", plan.training.proximal)) if value]  # fmt: skip
    return f"training.{' and training.'.join(told)} with noise_at = 'distributed' for records" if told else ""


def _hybrid(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not distributes_records(plan) or not client_level(plan):
        return ""
    return "privacy.record.noise_at = 'distributed' under privacy.style = 'hybrid'"


def _equal_weights(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    if not distributes_records(plan) or plan.aggregation.weights != "equal":
        return ""
    return "aggregation.weights = 'equal' with noise_at = 'distributed' for records"


def _fast(plan: Plan, parties: Sequence[PartyFacts]) -> str:
    told = distributing_key(plan)
    return f"privacy.noise = 'fast' with {told}" if told and plan.privacy.noise == "fast" else ""


# ------------------------------------------------------------------------------------------- the table

ROWS: tuple[RefusalRow, ...] = (
    RefusalRow(
        name="secure-unasked",
        when=_asks_without_secure,
        why="it says how sums are masked, and none is",
        instead="say secure = true, or remove it",
    ),
    RefusalRow(
        name="secure-with-individuals",
        when=_with_individuals,
        why="secure aggregation shows the server one sum, so this rule has no single updates to judge",
        instead='say groups = … (random groups, a masked sum of each, the rule between them), or rule = "mean", or '
        "secure = false",
    ),
    RefusalRow(
        name="secure-with-few",
        when=_with_few,
        why="of a sum of two, each knows the other's share by subtracting its own",
        instead="take at least three parties besides those that may collude, or say secure = false",
    ),
    RefusalRow(
        name="too-few-honest",
        when=_few_honest,
        why="fewer than three honest parties hide no update: one of them who tells, and the other's update is known",
        instead="take more parties; at least one always counts as a colluder, and so do those that the server enrols",
    ),
    RefusalRow(
        name="floor-too-low",
        when=_low_floor,
        why="the server and its colluders subtract their own and read what is left",
        instead="allow fewer drop-outs (a larger threshold), count fewer colluders or take more parties",
    ),
    RefusalRow(
        name="threshold-too-low",
        when=_low_threshold,
        why="the colluders would hold enough shares to unmask any single update",
        instead="choose a threshold above the number of colluders, or leave it out",
    ),
    RefusalRow(
        name="threshold-for-lies",
        when=_half_threshold,
        why="a server that tells half of the parties another list of drop-outs collects both kinds of shares",
        instead='choose 2·threshold > parties + colluders, leave threshold out, or say adversary = "curious"',
    ),
    RefusalRow(
        name="threshold-too-high",
        when=_high_threshold,
        why="no round with so many drop-outs could be unmasked",
        instead="choose a smaller threshold or fewer drop_outs, or leave threshold out",
    ),
    RefusalRow(
        name="secure-coin-cohort",
        when=_coin_cohort,
        why="such a cohort may be smaller than the floor that parties insist on",
        instead='say { kind = "fixed-size", size = … } or { kind = "everyone" }',
    ),
    RefusalRow(
        name="secure-with-central-noise",
        when=_central_noise,
        why="the server would see the sum without noise, although the updates were masked",
        instead='say noise_at = "distributed" (the parties add the noise in shares), or secure = false',
    ),
    RefusalRow(
        name="narrow-without-noise",
        when=_narrow,
        why="narrow sums save bytes by a rounding that only noise makes harmless",
        instead="leave bits at 32",
    ),
    RefusalRow(
        name="two-balls",
        when=_ball_of_clients,
        why="privacy.client.max_norm bounds what a client sends, and the noise is made for that",
        instead="remove max_update, or change max_norm",
    ),
    RefusalRow(
        name="distributed-without-secure",
        when=_without_secure,
        why="a party's share of the noise hides little, and only the sum holds all of it",
        instead='say aggregation.secure = true with drop_outs = 0.1 or so, or noise_at = "party"',
    ),
    RefusalRow(
        name="distributed-without-floor",
        when=_without_floor,
        why="parties that drop out take their noise along, so the charge needs the smallest cohort that may be summed",
        instead="say aggregation.drop_outs, the share that a round may lose (0 for none), or for few parties threshold",
    ),
    RefusalRow(
        name="distributed-unasked",
        when=_not_asked_for,
        why="this style adds no noise for records",
        instead='remove it, or say style = "sample"',
    ),
    RefusalRow(
        name="distributed-steps",
        when=_steps,
        why="a second step would start from a model that this party alone has changed, without the others' noise",
        instead="say local_steps = 1; more rounds instead of more steps",
    ),
    RefusalRow(
        name="distributed-rates",
        when=_uneven,
        why="the sum's noise is priced for one public rate at all parties",
        instead="say sample_rate instead of batch_size",
    ),
    RefusalRow(
        name="distributed-momentum",
        when=_local_momentum,
        why="of one step from the server's model nothing is kept and nothing pulls back",
        instead='leave it at 0; momentum at the server is free: aggregation.optimizer = { kind = "fedavgm" }',
    ),
    RefusalRow(
        name="distributed-hybrid",
        when=_hybrid,
        why="a client's clip would cut the records' sum before its noise is complete",
        instead='say record.noise_at = "party" beside client.noise_at = "distributed", or style = "sample"',
    ),
    RefusalRow(
        name="distributed-weights",
        when=_equal_weights,
        why="one noise fits all only where every record counts alike; equal weights count those of small sites more",
        instead='leave weights out, or say "size"',
    ),
    RefusalRow(
        name="distributed-fast",
        when=_fast,
        why="noise in shares is whole numbers on a grid, and there is no faster kind",
        instead='say noise = "secure", or leave it out',
    ),
)


def _failing(plan: Plan, parties: Sequence[PartyFacts]) -> float:
    """The chance that a round of the simulation loses more parties than it survives."""
    count, lost, chance = _cohort(plan, parties), _may_drop(plan, parties), plan.federation.simulate.drop_outs
    if has_groups(plan):
        return 0.0
    if lost is None or not 0 < chance < 1 or count > 1000:
        return float(chance == 1)
    kept = (math.comb(count, gone) * chance**gone * (1 - chance) ** (count - gone) for gone in range(lost + 1))
    return max(0.0, 1 - math.fsum(kept))


def list_secure_warnings(plan: Plan, parties: Sequence[PartyFacts]) -> list[str]:
    """What is allowed under secure aggregation and still worth a sentence."""
    chosen, told = taking_part(plan, parties), []
    if not plan.aggregation.secure:
        return []
    if len({party.account for party in chosen}) == 1 and len(chosen) > 1:
        told.append(
            f"aggregation.secure with parties that '{chosen[0].account}' deals out itself is a simulation: parties "
            "that one holder enrols all collude with it, so the protocol runs and hides nothing from that holder"
        )
    if not plan.privacy.style.records and not client_level(plan):
        told.append(
            "aggregation.secure without noise hides single updates from the server, not what the model tells of them"
        )
    chance, lost = _failing(plan, parties), _may_drop(plan, parties)
    if chance > 0.01 and lost is not None:
        told.append(
            f"federation.simulate.drop_outs = {plan.federation.simulate.drop_outs:g} loses more than {lost} of "
            f"{_cohort(plan, parties)} parties in {100 * chance:.0f} % of rounds, and such a round ends without a sum"
        )
    if distributes_clients(plan) and plan.federation.sampling.kind != "everyone":
        told.append(
            "privacy.client.noise_at = 'distributed': the noise tells how many took part, so the draw of parties "
            "amplifies nothing, and every party is charged every round in full"
        )
    return told
