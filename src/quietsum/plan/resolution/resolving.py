"""A plan meets its parties: refusals first, then the noise, then everything that follows from it.

:func:`resolve` knows nothing of data. It takes what a task declares (names, datasets, public sizes, the number of
parameters), holds the plan against :mod:`quietsum.plan.refusals`, and calibrates one noise multiplier for the records
of all parties and one for clients.

Guarantees: with the noise that is really added, the whole plan (all rounds and all spare attempts) of *every* party
stays within the limits, per record, per person and per client. Drawing parties by chance earns records nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from quietsum.aggregation import RULES, beyond_memory
from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError
from quietsum.plan import refusals
from quietsum.plan.promises import PRESETS, ClientPlan, RecordPlan
from quietsum.plan.resolution import sight
from quietsum.plan.resolution.forecast import Profile, smallest_noise
from quietsum.plan.resolution.resolved import ResolvedPlan
from quietsum.plan.values import PartyFacts, Plan
from quietsum.privacy import Budget, Neighbours, PrivacyUnit
from quietsum.validate import whole_number

__all__ = ["resolve"]

_SMALLEST = 1e-9  # a budget of 0 is none
MOST_REMEMBERED = 2 * 2**30
"""Bytes that a rule may keep of single parties: written anew in every round, three times on disk, twice in memory."""
_STARTS = 60
_HALVINGS = 60


def resolve(plan: Plan, parties: Sequence[PartyFacts], dimension: int, *, pricing: int | None = None) -> ResolvedPlan:
    """``plan`` for these parties and a model of ``dimension`` parameters, or :class:`PlanRefused` with all reasons.

    ``pricing`` is for a run that was opened under an older version of the prices (:mod:`quietsum.ledger.versions`): its
    noise and its limits are those that were fixed then. What it costs is said by today's prices all the same.
    """
    dimension = whole_number("dimension", dimension, 1)
    refusals.check_plan(plan, parties)
    chosen = refusals.taking_part(plan, parties)
    found = ResolvedPlan(plan=plan, parties=chosen, dimension=dimension, warnings=refusals.warnings(plan, parties))
    try:
        _ = found.secure
    except PlanRefused as error:  # no parameters fit
        raise refusals.explain_refusal([str(error)], plan, parties) from None
    if pricing is None:  # a run that has begun goes on
        _check_memory(found, parties)
    try:
        if plan.privacy.style.records:
            found = _with_records(found, pricing)
        if plan.privacy.style.clients:
            found = _with_clients(found, pricing)
    except InvalidParameter as error:
        if found.distributed_unit is None:
            raise
        raise PlanRefused(f"noise in shares does not fit this plan: {error}{_smaller_ball(found)}") from None
    _check_stages(found)
    return dataclasses.replace(
        found, warnings=(*found.warnings, *_warn_outnumbered(found), *sight.list_sight_warnings(found))
    )


def _warn_outnumbered(resolved: ResolvedPlan) -> tuple[str, ...]:
    """A sentence where more parties attack in a drill than the rule is set up for; () elsewhere."""
    attack, rule = resolved.plan.attack, resolved.robust
    if attack is None or rule is None:
        return ()
    many = len(attack.among([party.name for party in resolved.parties]))
    if many <= resolved.attackers:
        return ()
    return (
        f"DRILL: {many} parties attack, and aggregation.rule = '{rule.name}' is set up for aggregation.attackers = "
        f"{resolved.attackers}, so this attack is beyond what the rule was asked to withstand",
    )


def _check_memory(found: ResolvedPlan, parties: Sequence[PartyFacts]) -> None:
    """A rule must be able to hold what it remembers of parties, and the pairs of updates that it compares."""
    told = _too_large(found)
    if not told:
        return
    moves = [{"aggregation.before": ""}] if found.plan.aggregation.before else []
    offered = []
    for change in (refusals.Change(keys=keys) for keys in (*moves, *({"aggregation.rule": name} for name in RULES))):
        after = change.apply(found.plan)
        if not refusals.find_refusals(after, parties) and not _too_large(dataclasses.replace(found, plan=after)):
            offered.append(change)
    near = offered[:3]
    line = f"\n  nearest possible plan: {'; or '.join(map(str, near))}" if near else ""
    raise PlanRefused(told + line, nearest=tuple(dict(change.keys) for change in near))


def _too_large(found: ResolvedPlan) -> str:
    """What the plan's rule would have to hold and cannot, in words; "" where it can."""
    asked, rule, size = found.plan.aggregation, found.robust, found.remembered
    if size > MOST_REMEMBERED:
        return (
            f"aggregation.rule = '{asked.rule}' remembers {size / 2**30:,.1f} GiB of {len(found.parties):,} parties, "
            f"which is written after every round, and {MOST_REMEMBERED / 2**30:g} GiB are the most; use a rule that "
            "remembers no party, a smaller model or fewer parties"
        )
    rows = asked.groups if asked.groups > 1 else refusals.cohort_of(found.plan, found.parties)
    if rule is None or not rule.facts.pairs or not (problem := beyond_memory(rows)):
        return ""
    before = f" with before = '{asked.before}'" if asked.before else ""
    return (
        f"aggregation.rule = '{asked.rule}'{before} compares {rows:,} updates of a round two by two, {problem}; use a "
        "rule that compares no pairs, or draw fewer parties a round"
    )


def _smaller_ball(found: ResolvedPlan) -> str:
    if found.distributed_unit is not PrivacyUnit.RECORD:
        return ""
    return (
        "; the ball is the longest sum of clipped gradients: aggregation.max_update or a smaller sample_rate bounds it"
    )


def _check_stages(found: ResolvedPlan) -> None:
    """Every stage's clip and noise must be ones that the mechanism can have, before the first round."""
    for place, stage in enumerate(found.plan.schedule):
        try:
            for unit in (PrivacyUnit.RECORD, PrivacyUnit.CLIENT):
                found.mechanism_of(unit, stage.noise, stage.clip)
        except InvalidParameter as error:
            raise PlanRefused(f"schedule[{place}] does not fit: {error}") from None


# ----------------------------------------------------------------------------------------------- records


def _with_records(bare: ResolvedPlan, pricing: int | None) -> ResolvedPlan:
    record = bare.plan.privacy.record or RecordPlan()
    target, delta = _promise(bare, record)
    budgets = [Budget(epsilon=target, delta=delta)] if target is not None else []
    person = bare.plan.privacy.person
    if person is not None and person.epsilon is not None:
        budgets.append(Budget(epsilon=person.epsilon, delta=person.delta or delta, unit=PrivacyUnit.PERSON))
    if budgets:
        found = _calibrate_records(bare, budgets, pricing)
    else:
        assert record.noise_multiplier is not None
        found = dataclasses.replace(bare, record_noise=record.noise_multiplier)
    wanted = [(PrivacyUnit.RECORD, delta)]
    if person is not None:
        wanted.append((PrivacyUnit.PERSON, person.delta or delta))
    stated = {budget.unit: budget for budget in budgets}
    limits = tuple(stated.get(unit) or _price_plan(found, unit, at, pricing) for unit, at in wanted)
    return dataclasses.replace(found, limits=limits)


def _promise(bare: ResolvedPlan, record: RecordPlan) -> tuple[float | None, float]:
    """(target ε or None, δ) as the plan or its preset states them."""
    privacy = bare.plan.privacy
    if privacy.preset is not None:
        preset = PRESETS[privacy.preset]
        return preset.epsilon, preset.delta_for(dataset.size for dataset in bare.datasets())
    person_delta = privacy.person.delta if privacy.person is not None else None
    delta = record.delta or person_delta
    assert delta is not None  # refused otherwise
    return record.epsilon, delta


def _price_plan(found: ResolvedPlan, unit: PrivacyUnit, delta: float, pricing: int | None) -> Budget:
    """What the whole plan costs, as its limit."""
    _, guarantee = found.cost(unit, found.attempts, delta, pricing=pricing)
    if not math.isfinite(guarantee.epsilon):
        where = "client" if unit is PrivacyUnit.CLIENT else "record"
        noise = found.client_noise if unit is PrivacyUnit.CLIENT else found.record_noise
        raise PlanRefused(
            f"privacy.{where}.noise_multiplier = {noise:g} gives no guarantee per {unit} at δ = {delta:g}: ε is "
            'infinite; add noise, or say style = "none"'
        )
    return Budget(epsilon=max(guarantee.epsilon, _SMALLEST), delta=delta, unit=unit)


def _calibrate_records(bare: ResolvedPlan, budgets: Sequence[Budget], pricing: int | None) -> ResolvedPlan:
    """The plan at the smallest noise with which every budget holds, as the mechanism rounds it."""

    def with_noise(noise: float) -> ResolvedPlan:
        return dataclasses.replace(bare, record_noise=noise)

    shared = bare.distributed_unit is not None
    if len(budgets) == 1 and budgets[0].unit is PrivacyUnit.RECORD and not bare.plan.schedule and not shared:
        start = smallest_noise(
            [bare.profile_of_account(account) for account in bare.accounts],
            bare.attempts, budgets[0], accounting=bare.plan.privacy.accounting, neighbours=_relation(bare, pricing),
        )  # fmt: skip
        return _nudge(with_noise, start, budgets, pricing)
    return with_noise(_least_noise(lambda noise: _fits(with_noise(noise), budgets, pricing), budgets))


def _relation(bare: ResolvedPlan, pricing: int | None) -> Neighbours:
    """The relation whose pair a record's price has: where people's records are bounded, another one comes in."""
    from quietsum.ledger import FIRST

    stated = bare.plan.privacy.neighbours
    bounded = bare.plan.privacy.person is not None and pricing != FIRST
    return Neighbours.REPLACE_ONE if bounded and stated is Neighbours.ADD_REMOVE else stated


def _fits(found: ResolvedPlan, budgets: Sequence[Budget], pricing: int | None) -> bool:
    costs = (found.cost(one.unit, found.attempts, one.delta, pricing=pricing)[1] for one in budgets)
    return all(cost.epsilon <= one.epsilon for cost, one in zip(costs, budgets, strict=True))


def _nudge(
    with_noise: Callable[[float], ResolvedPlan], noise: float, budgets: Sequence[Budget], pricing: int | None
) -> ResolvedPlan:
    """The first noise at or a hair above ``noise`` that fits, with the mechanism's rounding."""
    for more in (0.0, *(1e-9 * 4**step for step in range(16))):
        found = with_noise(noise * (1 + more))
        if _fits(found, budgets, pricing):
            return found
    told = " and ".join(f"ε ≤ {one.epsilon:g} per {one.unit} at δ = {one.delta:g}" for one in budgets)
    raise QuietsumError(
        f"no noise near {noise:g} keeps {told} with noise as it is rounded; allow a larger ε or δ, or fewer rounds"
    )


def _least_noise(fits: Callable[[float], bool], budgets: Sequence[Budget]) -> float:
    """The smallest noise multiplier that fits, to ten digits, from above; more noise never costs more."""
    high = 1.0
    for _ in range(_STARTS):
        if fits(high):
            break
        high *= 2
        if high > 1e7:
            told = " and ".join(f"ε = {one.epsilon:g} per {one.unit}" for one in budgets)
            raise PlanRefused(f"no noise reaches {told}; allow a larger ε or δ, or fewer rounds")
    low = high / 2
    for _ in range(_STARTS):
        if low < 1e-6 or not fits(low):
            break
        low, high = low / 2, low
    for _ in range(_HALVINGS):
        if high - low <= 1e-10 * high:
            break
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


# ----------------------------------------------------------------------------------------------- clients


def _with_clients(bare: ResolvedPlan, pricing: int | None) -> ResolvedPlan:
    client = bare.plan.privacy.client or ClientPlan()
    assert client.delta is not None  # refused otherwise

    def with_noise(noise: float) -> ResolvedPlan:
        return dataclasses.replace(bare, client_noise=noise)

    if client.noise_multiplier is not None:
        found = with_noise(client.noise_multiplier)
        limit = _price_plan(found, PrivacyUnit.CLIENT, client.delta, pricing)
    else:
        assert client.epsilon is not None
        limit = Budget(epsilon=client.epsilon, delta=client.delta, unit=PrivacyUnit.CLIENT)
        found = _calibrate_clients(bare, with_noise, limit, pricing)
    _check_count_noise(found)
    return dataclasses.replace(found, limits=(*bare.limits, limit))


def _calibrate_clients(
    bare: ResolvedPlan, with_noise: Callable[[float], ResolvedPlan], limit: Budget, pricing: int | None
) -> ResolvedPlan:
    """The plan at the smallest noise that fits; the usual draws have a calibration of their own, which is quicker."""
    drawn = bare.plan.federation.sampling
    if bare.plan.schedule or drawn.size is not None or bare.distributed_unit is PrivacyUnit.CLIENT:
        return with_noise(_least_noise(lambda noise: _fits(with_noise(noise), [limit], pricing), [limit]))
    rate = 1.0 if drawn.rate is None or bare.noise_at_party else drawn.rate
    privacy = bare.plan.privacy
    start = smallest_noise(
        [Profile(rate=rate, steps=1)], bare.attempts, limit,
        accounting=bare.plan.privacy.accounting, neighbours=privacy.neighbours,
    )  # fmt: skip
    return _nudge(with_noise, start, [limit], pricing)


def _check_count_noise(found: ResolvedPlan) -> None:
    """Under adaptive clipping the count may not cost more than the whole release."""
    adaptive = found.adaptive
    if adaptive is None:
        return
    assert adaptive.count_noise is not None and found.client_noise is not None
    largest = found.client_noise * max([1.0, *(stage.noise for stage in found.plan.schedule)])
    if 2 * adaptive.count_noise <= largest:
        raise PlanRefused(
            f"privacy.client.adaptive.count_noise = {adaptive.count_noise:g} alone costs more than the noise "
            f"multiplier {largest:g} of the whole release; use more than {largest / 2:g}, which needs a cohort of "
            f"{10 * largest:.0f} or more to be of use"
        )
