"""What was protected, of what and how, with everything that is needed to compute each figure again.

A report states for every unit the charge of the worst party for the whole plan: the event, the noise's distance from
its ideal law, the accountant and the relation. Prices, curves and rounds follow from these alone
(:func:`price_unit`, :func:`price_rows`), so a reader who holds the report computes them again without the workspace,
and without torch. The unit that the plan was calibrated for is called *binding* and stands first.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from quietsum.errors import CorruptState, QuietsumError
from quietsum.ledger import Charge, CostTally, Prices, bound_advantage, cost_of, price_charge
from quietsum.plan import Plan, ResolvedPlan
from quietsum.privacy import (
    FixedSizeSampled,
    Gaussian,
    Group,
    Guarantee,
    Laplace,
    Neighbours,
    Observer,
    OneInOneOut,
    PoissonSampled,
    PrivacyEvent,
    PrivacyUnit,
    from_dict,
    to_dict,
)
from quietsum.report.facts.curves import PrivacyCurve, profile_of, true_positives

__all__ = [
    "NINE",
    "THROUGH_CLIENTS",
    "UnitPromise",
    "binding_unit",
    "describe",
    "name_nine",
    "price_rows",
    "price_unit",
    "read_charge",
    "stages_of",
]

NINE = (
    "target_epsilon", "target_delta", "achieved_epsilon", "noise_multiplier", "max_grad_norm", "sampling_probability",
    "training_steps", "mechanism", "accounting",
)  # fmt: skip
"""The names at the top of every report, about its binding unit."""
THROUGH_CLIENTS = "through the client level"
"""How the method of a guarantee per record says that it is the client's, with one client replaced by another."""
MOST_ROWS = 200


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class UnitPromise:
    """One unit of a run: the worst party's charge for the whole plan, and what it may cost.

    ``rows`` are (round, ε, tally) as the ledger has them and ``forecast`` (round, tally) as planned; ``stated`` says
    whether the plan states an ε, or a noise whose price the budget is.
    """

    charge: Charge
    delta: float
    budget: float
    stated: bool
    clip_norm: float
    noise_multiplier: float | None
    guarantees: tuple[Guarantee, ...]
    rows: tuple[tuple[int, float, CostTally], ...] = ()
    forecast: tuple[tuple[int, CostTally], ...] = ()
    noise_at: str = "party"
    kind: str = "training"


def binding_unit(plan: Plan, units: Sequence[PrivacyUnit]) -> PrivacyUnit | None:
    """The unit for which the noise was chosen: people if an ε is stated for them, else the plan's first."""
    person = plan.privacy.person
    if person is not None and person.epsilon is not None and PrivacyUnit.PERSON in units:
        return PrivacyUnit.PERSON
    return units[0] if units else None


# -------------------------------------------------------------------------------------------- what an event says


def stages_of(event: PrivacyEvent | None) -> list[dict[str, Any]]:
    """The parts of a charge in words people know: law, noise, how it is drawn, and how often."""
    if event is None:
        return []
    charge = Charge(party="-", dataset="-", unit=PrivacyUnit.RECORD, event=event)
    found = [{**_stage(leaf), "steps": times} for leaf, times in cost_of(charge).leaves]
    return sorted(found, key=lambda one: (-one["steps"], str(one)))


def _stage(event: PrivacyEvent) -> dict[str, Any]:
    match event:
        case OneInOneOut(event=inner) | Group(event=inner):
            return _stage(inner)
        case PoissonSampled(rate=rate, event=inner):
            return {**_stage(inner), "sampling": "poisson", "rate": rate}
        case FixedSizeSampled(rate=rate, event=inner):
            return {**_stage(inner), "sampling": "fixed-size", "rate": rate}
        case Gaussian(noise_multiplier=noise):
            return {"law": "Gaussian", "noise_multiplier": noise, "sampling": "everyone", "rate": 1.0}
        case Laplace(noise_multiplier=noise):
            return {"law": "Laplace", "noise_multiplier": noise, "sampling": "everyone", "rate": 1.0}
    name = str(to_dict(event).get("kind", "other"))
    return {"law": name, "noise_multiplier": None, "sampling": "everyone", "rate": 1.0}


def _mechanism(promise: UnitPromise, stages: Sequence[Mapping[str, Any]]) -> str:
    laws = " and ".join(dict.fromkeys(str(stage["law"]) for stage in stages)) or "none"
    if promise.charge.event is None:
        return "none: released without protection"
    where = {"server": ", noise at the server", "distributed": ", noise in shares"}.get(promise.noise_at, "")
    if promise.kind == "questions":
        return f"clipped sums ({laws}{where})"
    what = "DP-SGD" if promise.charge.unit is not PrivacyUnit.CLIENT else "clipped updates"
    return f"{what} ({laws}{where})"


# ------------------------------------------------------------------------------------------------- the whole block


def describe(
    promises: Sequence[UnitPromise], *, accounting: str, neighbours: Neighbours, pricing: int
) -> dict[str, Any]:
    """The block ``privacy`` of a report; the first promise is the binding one."""
    units = [_describe(one, accounting, neighbours, binding=place == 0) for place, one in enumerate(promises)]
    return {"accounting": accounting, "neighbours": neighbours.value, "pricing": pricing, "units": units}


def _describe(promise: UnitPromise, accounting: str, neighbours: Neighbours, *, binding: bool) -> dict[str, Any]:
    charge, stages = promise.charge, stages_of(promise.charge.event)
    worst = max(promise.guarantees, key=lambda one: (one.epsilon, one.observer is Observer.RECIPIENTS))
    profile = profile_of(charge, neighbours)
    return {
        "unit": charge.unit.value,
        "whom": worst.whom,
        "group_size": worst.group_size,
        "binding": binding,
        "against": [one.observer.value for one in promise.guarantees],
        "budget": {"epsilon": promise.budget, "delta": promise.delta, "stated": promise.stated},
        "epsilon": worst.epsilon,
        "epsilon_lower": worst.epsilon_lower,
        "delta": worst.delta,
        "method": worst.method,
        "worst_party": charge.party,
        "dataset": charge.dataset,
        "mechanism": _mechanism(promise, stages),
        "noise_multiplier": promise.noise_multiplier,
        "clip_norm": promise.clip_norm,
        "sampling": {"kind": stages[0]["sampling"], "rate": max(stage["rate"] for stage in stages)} if stages else None,
        "steps": sum(stage["steps"] for stage in stages),
        "stages": stages,
        "charge": charge.to_dict(),
        **_curve(profile, worst.delta),
        "attacker": attack(worst, charge, profile, accounting, neighbours),
        "by_round": _rows([(number, tally) for number, _, tally in promise.rows], promise, accounting, neighbours),
        "forecast": _rows(promise.forecast, promise, accounting, neighbours),
    }


def _curve(profile: PrivacyCurve | None, delta: float) -> dict[str, Any]:
    return {"profile": [], "trade_off": [], "gaussian": None} if profile is None else profile.to_dict(delta)


def attack(
    guarantee: Guarantee, charge: Charge, profile: PrivacyCurve | None, accounting: str, neighbours: Neighbours
) -> dict[str, float]:
    """The best attacker in three numbers, each an upper bound.

    ``right`` is how often he is right about a unit that took part as likely as not; ``found`` the share of members that
    he can name while accusing one in a thousand of the others; ``odds`` the factor e^ε by which an output moves his
    odds (by more than twice that only with a chance of 2δ).
    """
    own = () if THROUGH_CLIENTS in guarantee.method else (charge,)
    advantage = bound_advantage(guarantee, own, neighbours=neighbours)
    lines = [(guarantee.epsilon, guarantee.delta)] if math.isfinite(guarantee.epsilon) else []
    if profile is not None and own:
        lines += profile.points
    found = true_positives(lines, 0.001) if lines else 1.0
    return {
        "right": 0.5 * (1 + advantage),
        "found": found,
        "odds": math.exp(guarantee.epsilon) if guarantee.epsilon < 700 else math.inf,
    }


def _rows(
    rows: Sequence[tuple[int, CostTally]], promise: UnitPromise, accounting: str, neighbours: Neighbours
) -> dict[str, Any]:
    """At most :data:`MOST_ROWS` of these rounds: [round, ε, failure, how often each of the events was charged]."""
    kept = [rows[place] for place in _spread(len(rows))]
    events: list[PrivacyEvent] = list(
        dict.fromkeys(event for _, tally in kept for event in sorted(tally.leaves, key=repr))
    )
    prices = Prices()
    unit = promise.charge.unit
    found = []
    for number, tally in kept:
        epsilon = prices.upper(tally.key(), accounting, neighbours, unit, promise.delta).epsilon
        found.append([number, epsilon, tally.failure, [tally.leaves.get(event, 0) for event in events]])
    return {"events": [to_dict(event) for event in events], "rows": found}


def _spread(count: int, most: int = MOST_ROWS) -> list[int]:
    """Places of at most ``most`` of so many rows, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def name_nine(block: Mapping[str, Any], resolved: ResolvedPlan | None, accounting: str) -> dict[str, Any]:
    """The nine names at the top of a report, about its binding unit; null where nothing is promised."""
    units = block["units"]
    if not units:
        noise = None if resolved is None else resolved.noise_multiplier
        return {
            "target_epsilon": None, "target_delta": None, "achieved_epsilon": "Infinity", "noise_multiplier": noise,
            "max_grad_norm": None, "sampling_probability": None, "training_steps": None,
            "mechanism": "none: released without protection", "accounting": accounting,
        }  # fmt: skip
    first = units[0]
    return {
        "target_epsilon": first["budget"]["epsilon"], "target_delta": first["budget"]["delta"],
        "achieved_epsilon": first["epsilon"],
        "noise_multiplier": first["noise_multiplier"] if resolved is None else resolved.noise_multiplier,
        "max_grad_norm": first["clip_norm"],
        "sampling_probability": None if first["sampling"] is None else first["sampling"]["rate"],
        "training_steps": first["steps"], "mechanism": first["mechanism"], "accounting": accounting,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------- once more


def read_charge(values: Mapping[str, Any]) -> Charge:
    """The charge in a unit of a report; CorruptState if it is none."""
    try:
        return Charge.from_dict(values["charge"])
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(f"a charge in the report cannot be read: {error}") from None


def price_unit(
    charge: Charge, guarantee: Guarantee, *, accounting: str, neighbours: Neighbours, client: Charge | None
) -> Guarantee:
    """What ``charge`` costs, computed anew: the figure that ``guarantee`` states, by its own method.

    ``client`` is the charge per client, from which a record's protection "through the client level" follows.
    """
    if THROUGH_CLIENTS in guarantee.method and client is not None:
        charge = dataclasses.replace(client, unit=PrivacyUnit.RECORD)
        neighbours = Neighbours.REPLACE_ONE
    return price_charge(charge, delta=guarantee.delta, accounting=accounting, neighbours=neighbours)


def price_rows(
    block: Mapping[str, Any], *, unit: PrivacyUnit, delta: float, accounting: str, neighbours: Neighbours
) -> Iterable[tuple[int, float, float]]:
    """(round, ε that is stated, ε computed anew) of each row that :func:`describe` wrote."""
    events = [from_dict(values) for values in block["events"]]
    prices = Prices()
    for number, epsilon, failure, counts in block["rows"]:
        leaves = frozenset((event, count) for event, count in zip(events, counts, strict=True) if count)
        key = (leaves, float(failure), True)
        stated = math.inf if epsilon == "Infinity" else float(epsilon)
        yield int(number), stated, prices.upper(key, accounting, neighbours, unit, delta).epsilon
