"""A plan meets its parties: refusals first, then the noise, then everything that follows from it.

:func:`resolve` knows nothing of data. It takes what a task declares (names, datasets, public sizes, the number of
parameters), holds the plan against :mod:`quietsum.refusals`, calibrates **one** noise multiplier for all parties, and
returns a frozen :class:`ResolvedPlan` whose sampler, mechanism, charges and forecast cannot disagree: all are made from
the same few numbers.

Guarantees: with the noise that :attr:`ResolvedPlan.mechanism` really adds, the whole plan (all rounds and all spare
attempts) of *every* party stays within :attr:`ResolvedPlan.limit`. Drawing parties by chance earns records nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, final

from quietsum import refusals
from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError, whole_number
from quietsum.plan.forecast import (
    OBSERVERS,
    Forecast,
    ForecastRow,
    Profile,
    Signal,
    price,
    smallest_noise,
    worst,
)
from quietsum.plan.presets import PRESETS
from quietsum.plan.values import PartyFacts, Plan, RecordPlan, Style
from quietsum.privacy.events import PrivacyEvent, Repeated
from quietsum.privacy.guarantee import Budget, Guarantee
from quietsum.privacy.search import most_steps
from quietsum.privacy.units import PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger.charges import Charge, Dataset, Terms
    from quietsum.mechanisms.gaussian import GaussianMechanism
    from quietsum.sampling import Sampling

__all__ = ["NO_GUARANTEE", "ResolvedPlan", "resolve"]

NO_GUARANTEE = "NO PRIVACY GUARANTEE"
"""What stands wherever a figure would, in a run of style none."""
_MOST_AFFORDABLE = 10**9


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedPlan:
    """A plan with its parties and its noise. Made by :func:`resolve`.

    ``limit`` is what this run may spend: the target, or what a stated noise costs. ``lifetime`` is what all runs on a
    dataset may spend together. Both are None where nothing is promised.
    """

    plan: Plan
    parties: tuple[PartyFacts, ...]
    dimension: int
    mechanism: GaussianMechanism | None = None
    limit: Budget | None = None
    warnings: tuple[str, ...] = ()

    # ----------------------------------------------------------------------------------- what is known

    @property
    def protected(self) -> bool:
        """Whether anything is promised."""
        return self.mechanism is not None

    @property
    def noise_multiplier(self) -> float | None:
        """The noise that is really added, over the clip; None where none is."""
        return None if self.mechanism is None else float(self.mechanism.event().noise_multiplier)

    @property
    def delta(self) -> float | None:
        """The δ of the promise."""
        return None if self.limit is None else self.limit.delta

    @property
    def lifetime(self) -> Budget | None:
        """What all runs on a dataset may spend together: as stated, else this run's own limit."""
        record = self.plan.privacy.record
        return record.lifetime.budget() if record and record.lifetime else self.limit

    def lifetimes(self) -> tuple[Budget, ...]:
        """Lifetime budgets that the plan states, for the ledger to open books with; empty where it states none."""
        record = self.plan.privacy.record
        return (record.lifetime.budget(),) if record and record.lifetime and self.protected else ()

    @property
    def attempts(self) -> int:
        """Rounds and spare attempts: what the whole plan pays for."""
        return self.plan.federation.rounds + self.plan.federation.spare_attempts

    def facts_of(self, party: str) -> PartyFacts:
        """What is declared about ``party``."""
        for facts in self.parties:
            if facts.name == party:
                return facts
        known = ", ".join(facts.name for facts in self.parties)
        raise InvalidParameter("party", party, "takes no part in this plan", f"parties are {known}")

    def rate_of(self, party: str) -> float:
        """The chance of each of the party's records to be in a batch."""
        training, size = self.plan.training, self.facts_of(party).size
        return training.sample_rate if training.sample_rate is not None else (training.batch_size or 0) / size

    def expected_batch(self, party: str) -> float:
        """rate · declared size: public, so it may divide."""
        return self.rate_of(party) * self.facts_of(party).size

    def steps_of(self, party: str) -> int:
        """Steps of ``party`` in one round; an epoch is ⌈1 / rate⌉ of them."""
        training = self.plan.training
        if training.local_steps is not None:
            return training.local_steps
        if training.batch_size is not None:
            batches = -(-self.facts_of(party).size // training.batch_size)
        else:
            batches = math.ceil(1 / self.rate_of(party) - 1e-9)
        return (training.local_epochs or 1) * max(batches, 1)

    def sampling_of(self, party: str) -> Sampling:
        """How ``party`` draws its batches: the sampler also states its amplification."""
        from quietsum.sampling import Everyone, Poisson

        rate = self.rate_of(party)
        return Everyone() if rate == 1 else Poisson(rate=rate)

    def profile_of(self, party: str) -> Profile:
        """Rate and steps of ``party``."""
        return Profile(rate=self.rate_of(party), steps=self.steps_of(party))

    # ------------------------------------------------------------------------------ what is charged for

    def charges(self, parties: Iterable[str | PartyFacts] | None = None) -> tuple[Charge, ...]:
        """One round's charges: one for every registered party, whoever is asked or answers."""
        named = (facts.name for facts in self.parties) if parties is None else parties
        return tuple(self._charge(one if isinstance(one, str) else one.name, 1) for one in named)

    def planned(self) -> tuple[Charge, ...]:
        """The whole plan's charges, spare attempts included: one for each party."""
        return tuple(self._charge(facts.name, self.attempts) for facts in self.parties)

    def _charge(self, party: str, rounds: int) -> Charge:
        from quietsum.ledger.charges import Charge

        return Charge(
            party=party,
            dataset=self.facts_of(party).dataset,
            unit=PrivacyUnit.RECORD,
            event=self._event(party, rounds),
            observers=OBSERVERS,
            failure=self._failure(party, rounds),
        )

    def _event(self, party: str, rounds: int) -> PrivacyEvent | None:
        if self.mechanism is None:
            return None
        step = self.sampling_of(party).amplify(self.mechanism.event())
        return Repeated(times=self.steps_of(party) * rounds, event=step)

    def _failure(self, party: str, rounds: int) -> float:
        if self.mechanism is None:
            return 0.0
        return self.mechanism.failure(self.steps_of(party) * rounds * self.dimension)

    def terms(self) -> Terms:
        """How the ledger shall count, and the limit it shall hold."""
        from quietsum.ledger.charges import Terms

        return Terms(
            accounting=self.plan.privacy.accounting,
            neighbours=self.plan.privacy.neighbours,
            limits=() if self.limit is None else (self.limit,),
        )

    def datasets(self) -> tuple[Dataset, ...]:
        """Whose budgets are touched."""
        from quietsum.ledger.charges import Dataset

        return tuple(
            Dataset(party=facts.name, dataset=facts.dataset, size=facts.size, public=facts.public)
            for facts in self.parties
        )

    # --------------------------------------------------------------------------------- what will happen

    @cached_property
    def _representatives(self) -> dict[Profile, str]:
        """A party for each profile that may be the worst."""
        named = {self.profile_of(facts.name): facts.name for facts in reversed(self.parties)}
        return {profile: named[profile] for profile in worst(named)}

    def _worst(self, rounds: int, delta: float) -> tuple[str, Guarantee]:
        """The party with the largest ε after ``rounds`` rounds, and its guarantee."""
        assert self.mechanism is not None
        privacy = self.plan.privacy
        best: tuple[str, Guarantee] | None = None
        for party in self._representatives.values():
            found = price(
                self._charge(party, rounds),
                delta=delta,
                accounting=privacy.accounting,
                neighbours=privacy.neighbours,
            )
            if best is None or found.epsilon > best[1].epsilon:
                best = (party, found)
        assert best is not None
        if self.mechanism.label:
            told = (*best[1].warnings, self.mechanism.label)
            best = (best[0], dataclasses.replace(best[1], warnings=told, certified=False))
        return best

    def _row(self, rounds: int) -> ForecastRow:
        assert self.limit is not None
        party, guarantee = self._worst(rounds, self.limit.delta)
        told = tuple(dataclasses.replace(guarantee, observer=observer) for observer in OBSERVERS)
        return ForecastRow(round=rounds, party=party, guarantees=told)

    def forecast(self, at: Iterable[int] | None = None) -> Forecast:
        """ε per unit and observer after each round (or after those in ``at``), and of the whole plan."""
        if not self.protected:
            return Forecast()
        rounds = range(1, self.plan.federation.rounds + 1) if at is None else at
        rows = tuple(self._row(whole_number("round", number, 1)) for number in rounds)
        return Forecast(rows=rows, whole=self._row(self.attempts).guarantees)

    @cached_property
    def affordable_rounds(self) -> int | None:
        """The most rounds at this noise within the budget (the lifetime's where one is stated); None: no limit."""
        budget = self.lifetime
        if budget is None:
            return None
        return most_steps(
            lambda rounds: self._worst(rounds, budget.delta)[1],
            budget.epsilon,
            float(self.plan.federation.rounds),
            _MOST_AFFORDABLE,
        )

    def weight_of(self, party: str) -> float:
        """The party's share in the average, from declared sizes."""
        if self.plan.aggregation.weights == "equal":
            return 1 / len(self.parties)
        return self.facts_of(party).size / sum(facts.size for facts in self.parties)

    def signal(self) -> tuple[Signal, ...]:
        """Noise against signal for each party, then for the average of all (party "")."""
        if self.noise_multiplier is None:
            return ()
        alone = {facts.name: self.noise_multiplier / self.expected_batch(facts.name) for facts in self.parties}
        together = math.sqrt(sum((self.weight_of(party) * noise) ** 2 for party, noise in alone.items()))
        root = math.sqrt(self.dimension)
        return tuple(
            Signal(party=party, coordinate=noise, length=noise * root)
            for party, noise in {**alone, "": together}.items()
        )


# ------------------------------------------------------------------------------------------------ resolve


def resolve(plan: Plan, parties: Sequence[PartyFacts], dimension: int) -> ResolvedPlan:
    """``plan`` for these parties and a model of ``dimension`` parameters, or :class:`PlanRefused` with all reasons."""
    dimension = whole_number("dimension", dimension, 1)
    refusals.check(plan, parties)
    chosen = refusals.taking_part(plan, parties)
    bare = ResolvedPlan(plan=plan, parties=chosen, dimension=dimension, warnings=refusals.warnings(plan, parties))
    if plan.privacy.style is Style.NONE:
        return bare
    record = plan.privacy.record or RecordPlan()
    target, delta = _promise(plan, record, chosen)
    if target is None:
        assert record.noise_multiplier is not None
        return _with_noise(bare, record, record.noise_multiplier, delta)
    return _calibrated(bare, record, Budget(epsilon=target, delta=delta))


def _promise(plan: Plan, record: RecordPlan, parties: Sequence[PartyFacts]) -> tuple[float | None, float]:
    """(target ε or None, δ) as the plan or its preset states them."""
    if plan.privacy.preset is not None:
        preset = PRESETS[plan.privacy.preset]
        return preset.epsilon, preset.delta_for(facts.size for facts in parties)
    assert record.delta is not None  # refused otherwise
    return record.epsilon, record.delta


def _mechanism(plan: Plan, record: RecordPlan, noise_multiplier: float) -> GaussianMechanism:
    from quietsum.mechanisms.gaussian import GaussianMechanism, Mode

    return GaussianMechanism(
        max_norm=record.max_grad_norm, noise_multiplier=noise_multiplier, mode=Mode(plan.privacy.noise)
    )


def _with_noise(bare: ResolvedPlan, record: RecordPlan, noise: float, delta: float) -> ResolvedPlan:
    """The plan at a stated noise; its limit is what the whole plan costs."""
    asked = dataclasses.replace(bare, mechanism=_mechanism(bare.plan, record, noise))
    _, guarantee = asked._worst(asked.attempts, delta)
    if not math.isfinite(guarantee.epsilon):
        raise PlanRefused(
            f"privacy.record.noise_multiplier = {noise:g} gives no guarantee at δ = {delta:g}: ε is infinite; add "
            'noise, or say style = "none"'
        )
    limit = Budget(epsilon=max(guarantee.epsilon, 1e-9), delta=delta)  # a budget of 0 is none
    return dataclasses.replace(asked, limit=limit)


def _calibrated(bare: ResolvedPlan, record: RecordPlan, budget: Budget) -> ResolvedPlan:
    """The plan at the smallest noise that fits, as the mechanism rounds it."""
    privacy = bare.plan.privacy
    noise = smallest_noise(
        [bare.profile_of(facts.name) for facts in bare.parties],
        bare.attempts,
        budget,
        accounting=privacy.accounting,
        neighbours=privacy.neighbours,
    )
    for more in (0.0, *(1e-9 * 4**step for step in range(16))):
        found = dataclasses.replace(bare, mechanism=_mechanism(bare.plan, record, noise * (1 + more)), limit=budget)
        if found._worst(found.attempts, budget.delta)[1].epsilon <= budget.epsilon:
            return found
    raise QuietsumError(
        f"no noise near {noise:g} keeps ε ≤ {budget.epsilon:g} at δ = {budget.delta:g} with noise as it is rounded; "
        "allow a larger ε or δ, or fewer rounds"
    )
