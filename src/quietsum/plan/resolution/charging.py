"""What a plan does to whom, as events: one round of it, several, or all with spare attempts.

For each unit there is one event a round. Records: the party's steps on batches of its own sampler; drawing parties by
chance earns them nothing, since the steps of a round share one draw (rule 4). Where people's records are bounded, a
record that leaves may let another in, and is charged so (rule 16). People: the same steps seen by k records at once.
Clients: one release of the clipped sum, amplified by the draw of parties where recipients cannot know it, or
unamplified where every party adds its own noise or a share of it.

Noise in shares is charged at its floor, the honest parties of the smallest cohort that is ever unmasked, in every round
(rule 8). For records the party's own draw amplifies it: the draw is made inside the party, so the server knows no more
of it than recipients do. For clients nothing does, against no observer: the noise itself tells how many took part (rule
20).

In groups the floor is that of one group, and what may go wrong with the draw of the groups is in the failure
(:mod:`quietsum.plan.groups`): an honest party may sit with more colluders than its group's noise was made for.

A *span* counts rounds by their noise factor, because a schedule may give rounds different noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from quietsum.privacy import Composed, Observer, PrivacyEvent, PrivacyUnit, Repeated, bound_record_event, person_event

if TYPE_CHECKING:
    from quietsum.ledger import Charge
    from quietsum.plan.resolution.resolved import ResolvedPlan

__all__ = ["BOTH", "charge", "observers", "span", "units"]

BOTH = (Observer.SERVER, Observer.RECIPIENTS)
"""Both see what left the parties."""

Span = Mapping[float, int]


def units(resolved: ResolvedPlan) -> tuple[PrivacyUnit, ...]:
    """Whom the plan charges for; records where nothing is promised, since then everything is released."""
    found = []
    style = resolved.plan.privacy.style
    if style.records or not style.clients:
        found.append(PrivacyUnit.RECORD)
    if resolved.plan.privacy.person is not None and style.records:
        found.append(PrivacyUnit.PERSON)
    if style.clients:
        found.append(PrivacyUnit.CLIENT)
    return tuple(found)


def observers(resolved: ResolvedPlan, unit: PrivacyUnit) -> tuple[Observer, ...]:
    """Against whom the unit is protected: noise at the server protects against recipients alone."""
    return (Observer.RECIPIENTS,) if unit is PrivacyUnit.CLIENT and resolved.central_noise else BOTH


def span(resolved: ResolvedPlan, rounds: int, first: int = 1) -> dict[float, int]:
    """So many rounds from ``first`` on, counted by their noise factor; behind the schedule the factor is 1."""
    found: dict[float, int] = {}
    begin = 1
    left, start = rounds, first
    for stage in resolved.plan.schedule:
        inside = min(left, max(0, begin + stage.rounds - start))
        if inside:
            found[stage.noise] = found.get(stage.noise, 0) + inside
            left, start = left - inside, start + inside
        begin += stage.rounds
    if left:
        found[1.0] = found.get(1.0, 0) + left
    return found


def charge(resolved: ResolvedPlan, account: str, unit: PrivacyUnit, over: Span) -> Charge:
    """What ``account`` pays per ``unit`` for the rounds of ``over``."""
    from quietsum.ledger import Charge

    parts = [_rounds(resolved, account, unit, *part) for part in sorted(over.items())] if resolved.protected else []
    events = tuple(event for event, _ in parts)
    return Charge(
        party=account,
        dataset=resolved.dataset_of(account),
        unit=unit,
        event=Composed(events=events) if len(events) > 1 else events[0] if events else None,
        observers=observers(resolved, unit),
        failure=sum(failure for _, failure in parts),
    )


def _rounds(
    resolved: ResolvedPlan, account: str, unit: PrivacyUnit, factor: float, rounds: int
) -> tuple[PrivacyEvent, float]:
    """The event of ``rounds`` rounds at one noise, and how far its randomness may be from the ideal."""
    if unit is PrivacyUnit.CLIENT:
        return _client_rounds(resolved, factor, rounds)
    mechanism, profile = resolved.mechanism_of(unit, factor), resolved.profile_of_account(account)
    assert mechanism is not None
    event: PrivacyEvent = profile.sampling().amplify(mechanism.event())
    person = resolved.plan.privacy.person
    if person is not None:
        event = person_event(event, person.max_records) if unit is PrivacyUnit.PERSON else bound_record_event(event)
    times = profile.steps * rounds
    failure = mechanism.failure(times * resolved.coordinates(unit)) + rounds * resolved.misplacement_chance(unit)
    return Repeated(times=times, event=event), failure


def _client_rounds(resolved: ResolvedPlan, factor: float, rounds: int) -> tuple[PrivacyEvent, float]:
    mechanism = resolved.mechanism_of(PrivacyUnit.CLIENT, factor)
    assert mechanism is not None
    event: PrivacyEvent = mechanism.event()
    if resolved.central_noise:  # the draw hides who took part, except from whoever made it
        event = resolved.cohort_sampling().amplify(event)
    extra = 1 if resolved.adaptive is not None else 0
    failure = mechanism.failure(rounds * (resolved.coordinates(PrivacyUnit.CLIENT) + extra))
    return Repeated(times=rounds, event=event), failure + rounds * resolved.misplacement_chance(PrivacyUnit.CLIENT)
