"""What a robust rule can see through the noise, from public numbers alone, before anything is spent.

A rule that judges updates by signs, directions or distances lives on honest updates being alike. Let s be what two
honest updates have in common and ξ the noise on each, independent, of length τ√d in root mean square. Then

    E[u·u'] = |s|²      and      E|u|² = |s|² + τ²d,      so the cosine is about  1 / (1 + τ²d/|s|²).

Two lengths of s are known without looking at data. **The longest**: every clipped gradient points the same way, and s
is as long as clip, rate and steps allow. With ρ = τ√d over that, the cosine is at most 1/(1 + ρ²), for all data
(:attr:`Sight.noise`). **By chance**: n clipped gradients in random directions have a mean of at most clip/√n, which is
also what a party's own records can state with certainty. κ = ρ√n (:attr:`Sight.against_chance`) is the noise over that.

From κ = 0.2 on (:data:`FAINT`) the plan says so. That bound is a rule of thumb, measured and not proved: a model that
has learnt most of what it can has mean gradients well below clip/√n. On card fraud, where ten banks flip labels or do
not, signs separated flippers from honest banks at κ = 0.15 and no longer at 0.27 and 0.97
(``benchmarks/fraud_defence.py``). Lengths are another matter: an update that is three times as long as most is seen
through any noise that is shorter.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from quietsum.plan.resolution.resolved import ResolvedPlan

__all__ = ["FAINT", "Sight", "list_sight_warnings", "sight"]

FAINT = 0.2
"""Noise over the sampling error of a mean gradient, from which on signs and directions hardly tell updates apart."""
LOUD = 1.0
"""Noise over the longest common part of two updates, from which on their cosine is at most a half for any data."""
_LENGTHS_ALONE = ("norm-bounded",)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sight:
    """Noise on one update of ``party``, where it is worst; on the mean of its group where the rule sees groups.

    ``noise`` is ρ, its length over that of the longest common part; ``against_chance`` is κ, over the sampling error of
    the mean gradient of its records (at most clip/√n), None where whole clients are clipped and no record is counted.
    ``records`` is n.
    """

    party: str
    noise: float
    against_chance: float | None = None
    records: float | None = None

    @property
    def cosine(self) -> float:
        """What the cosine of two honest updates is expected to be at most, for all data.

        >>> Sight(party="a", noise=1.0).cosine
        0.5
        """
        return 1 / (1 + self.noise**2)

    @property
    def faint(self) -> bool:
        """Whether signs and directions hardly tell updates apart."""
        return self.noise >= LOUD or (self.against_chance is not None and self.against_chance >= FAINT)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "cosine": self.cosine, "faint": self.faint}


def sight(resolved: ResolvedPlan) -> Sight | None:
    """The noise on the update of the party where it is largest; None where updates carry none, or are not compared.

    >>> from quietsum.plan import AggregationPlan, PartyFacts, Plan, PrivacyPlan, RecordPlan, TrainingPlan, resolve
    >>> sites = [PartyFacts(name=str(at), dataset=str(at), size=100) for at in range(5)]
    >>> plan = Plan(training=TrainingPlan(sample_rate=1.0, local_steps=4), aggregation=AggregationPlan(rule="median"),
    ...             privacy=PrivacyPlan(record=RecordPlan(noise_multiplier=2.0, delta=1e-3)))
    >>> found = sight(resolve(plan, sites, 25))   # 2·√25 / (100·√4) and √100 times that
    >>> round(found.noise, 6), round(found.against_chance, 6)
    (0.05, 0.5)
    """
    if resolved.secure is not None and resolved.secure.grouping is None:
        return None
    if resolved.robust is None or resolved.robust.name in _LENGTHS_ALONE or resolved.robust.facts.needs_trial:
        return None
    found = [one for facts in resolved.parties if (one := _of(resolved, facts.name)) is not None]
    return max(found, key=lambda one: (one.against_chance or 0.0, one.noise), default=None)


def _of(resolved: ResolvedPlan, party: str) -> Sight | None:
    from quietsum.plan.resolution.lengths import response

    orders, root, size = resolved.orders(party), math.sqrt(resolved.dimension), resolved.facts_of(party).size
    grouping = None if resolved.secure is None else resolved.secure.grouping
    members = 1 if grouping is None else grouping.smallest
    if orders.distributed is not None:  # of a group's sum: all of the noise once, whoever comes
        noise = orders.distributed.noise_multiplier * root / members
        if resolved.client_level:
            return Sight(party=party, noise=noise)
        noise, seen = noise / orders.expected_batch, members * min(float(size), orders.expected_batch)
        return Sight(party=party, noise=noise, against_chance=noise * math.sqrt(seen), records=seen)
    if orders.client is not None:
        return Sight(party=party, noise=orders.client.noise_multiplier * root / math.sqrt(members))
    if orders.mechanism is None or orders.expected_batch <= 0:
        return None
    weights = np.abs(response(orders))
    total, spread = float(weights.sum()), float(np.sqrt(np.square(weights).sum()))
    if not (math.isfinite(total) and math.isfinite(spread)) or total <= 0:
        return None
    noise = orders.mechanism.noise_multiplier * root / orders.expected_batch * spread / total / math.sqrt(members)
    seen = members * min(float(size), orders.expected_batch * orders.steps)
    return Sight(party=party, noise=noise, against_chance=noise * math.sqrt(seen), records=seen)


def list_sight_warnings(resolved: ResolvedPlan) -> tuple[str, ...]:
    """A sentence where the noise hides from the rule what it goes by; () elsewhere."""
    found, rule = sight(resolved), resolved.robust
    if found is None or rule is None or not found.faint:
        return ()
    told = f"noise hides signs, directions and distances from aggregation.rule = '{rule.name}': "
    if found.noise >= LOUD:
        told += (
            f"on one update it is {found.noise:.3g} times as long as what two honest ones can have in common, so their "
            f"cosine is about {found.cosine:.2g} at most, for all data"
        )
    else:
        told += (
            f"on one update it is {found.against_chance:.2g} times as long as the sampling error of a mean gradient of "
            f"{found.records:,.0f} records can be (from {FAINT:g} on, flipped labels were not separated from honest "
            "noise when it was measured)"
        )
    return (f"{told}; only an update's length still tells. A larger ε, more records in a round or fewer rounds help",)
