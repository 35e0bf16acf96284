"""A plan with its parties and its noise: what each party has to do, what each account is charged, what it will come to.

Sampler, mechanism, charges and forecast of a :class:`ResolvedPlan` are made from the same few numbers, so they cannot
disagree. :func:`quietsum.plan.resolution.resolving.resolve` makes it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from quietsum.aggregation import Rule, find_rule, measure_memory
from quietsum.errors import InvalidParameter
from quietsum.plan.orders import LocalOrders
from quietsum.plan.promises import AdaptivePlan, ClientPlan, RecordPlan
from quietsum.plan.refusals.robust import attackers_of
from quietsum.plan.resolution.charging import charge, observers, span, units
from quietsum.plan.resolution.forecast import ClientSignal, Forecast, ForecastRow, Profile, Signal, price, worst
from quietsum.plan.secure import SecurePlan, secure_plan
from quietsum.plan.values import PartyFacts, Plan, StagePlan
from quietsum.privacy import Budget, Guarantee, Neighbours, Observer, PrivacyUnit, most_steps
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.ledger import Charge, Dataset, Terms
    from quietsum.mechanisms import ClippedSum, DistributedNoise
    from quietsum.sampling import Sampling

__all__ = ["NO_GUARANTEE", "ResolvedPlan"]

NO_GUARANTEE = "NO PRIVACY GUARANTEE"
"""What stands wherever a figure would, in a run of style none."""
_MOST_AFFORDABLE = 10**9
_MARGIN = 1e-5  # of the clip: what a sum of clipped records may lose on its way back to float64


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ResolvedPlan:
    """A plan with its parties and its noise.

    ``limits`` is what this run may spend, one budget a unit: the target, or what a stated noise costs. Empty where
    nothing is promised. ``record_noise`` and ``client_noise`` are the noise multipliers before a schedule's factors.
    """

    plan: Plan
    parties: tuple[PartyFacts, ...]
    dimension: int
    record_noise: float | None = None
    client_noise: float | None = None
    limits: tuple[Budget, ...] = ()
    warnings: tuple[str, ...] = ()

    # ----------------------------------------------------------------------------------- what is known

    @property
    def protected(self) -> bool:
        """Whether anything is promised."""
        return self.record_noise is not None or self.client_noise is not None

    @property
    def client_level(self) -> bool:
        """Whether clients are protected as a whole."""
        return self.plan.privacy.style.clients

    @property
    def noise_at_party(self) -> bool:
        """Whether every party adds the client level's noise itself."""
        return self.client_level and self._client.noise_at == "party"

    @property
    def central_noise(self) -> bool:
        """Whether the server adds the client level's noise, and is trusted to."""
        return self.client_level and self._client.noise_at == "server"

    @property
    def distributed_unit(self) -> PrivacyUnit | None:
        """Whose noise the parties add in shares: records, clients, or None."""
        if self.client_level and self._client.noise_at == "distributed":
            return PrivacyUnit.CLIENT
        style = self.plan.privacy.style
        return PrivacyUnit.RECORD if style.records and self._record.noise_at == "distributed" else None

    @cached_property
    def secure(self) -> SecurePlan | None:
        """Parameters of the secure rounds; None where the server sees single updates."""
        return secure_plan(self.plan, self.parties)

    @property
    def _client(self) -> ClientPlan:
        return self.plan.privacy.client or ClientPlan()

    @property
    def _record(self) -> RecordPlan:
        return self.plan.privacy.record or RecordPlan()

    @property
    def mechanism(self) -> ClippedSum | None:
        """Clip and noise of records before a schedule's factors; None where records are not protected."""
        return self.record_mechanism()

    @property
    def noise_multiplier(self) -> float | None:
        """The noise that is really added to records, else to clients, over the clip; None where none is."""
        return self.noise_of(PrivacyUnit.RECORD) or self.noise_of(PrivacyUnit.CLIENT)

    @property
    def limit(self) -> Budget | None:
        """The first promise: per record where there is one, else per client."""
        return self.limits[0] if self.limits else None

    def limit_of(self, unit: PrivacyUnit) -> Budget | None:
        """What the run may spend per ``unit``."""
        return next((limit for limit in self.limits if limit.unit is unit), None)

    @property
    def delta(self) -> float | None:
        """The δ of the first promise."""
        return None if self.limit is None else self.limit.delta

    @property
    def lifetime(self) -> Budget | None:
        """What all runs on a dataset may spend together, per the first unit: as stated, else this run's own limit."""
        stated = {budget.unit: budget for budget in self.lifetimes()}
        return None if self.limit is None else stated.get(self.limit.unit, self.limit)

    def lifetimes(self) -> tuple[Budget, ...]:
        """Lifetime budgets that the plan states, for the ledger to open books with; empty where it states none."""
        if not self.protected:
            return ()
        stated = ((PrivacyUnit.RECORD, self._record.lifetime), (PrivacyUnit.CLIENT, self._client.lifetime))
        return tuple(one.budget(unit) for unit, one in stated if one is not None and unit in units(self))

    @property
    def attempts(self) -> int:
        """Rounds and spare attempts: what the whole plan pays for."""
        return self.plan.federation.rounds + self.plan.federation.spare_attempts

    @cached_property
    def _by_name(self) -> dict[str, PartyFacts]:
        return {facts.name: facts for facts in self.parties}

    @cached_property
    def _by_account(self) -> dict[str, tuple[PartyFacts, ...]]:
        found: dict[str, list[PartyFacts]] = {}
        for facts in self.parties:
            found.setdefault(facts.account, []).append(facts)
        return {account: tuple(group) for account, group in found.items()}

    @cached_property
    def _records(self) -> int:
        return sum(facts.size for facts in self.parties)

    @property
    def accounts(self) -> tuple[str, ...]:
        """Under whose names the books are kept: every party's own, or a holder's for all that it dealt out."""
        return tuple(self._by_account)

    def facts_of(self, party: str) -> PartyFacts:
        """What is declared about ``party``."""
        if party in self._by_name:
            return self._by_name[party]
        known = ", ".join([facts.name for facts in self.parties[:8]] + ["…"] * (len(self.parties) > 8))
        raise InvalidParameter("party", party, "takes no part in this plan", f"parties are {known}")

    def dataset_of(self, account: str) -> str:
        """The dataset of an account."""
        return self._by_account[account][0].dataset

    # ------------------------------------------------------------------------------------ how it trains

    def rate_of(self, party: str) -> float:
        """The chance of each of the party's records to be in a batch."""
        training, size = self.plan.training, self.facts_of(party).size
        return training.sample_rate if training.sample_rate is not None else (training.batch_size or 0) / size

    def batch_of(self, party: str) -> float:
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
        return self.profile_of(party).sampling()

    def profile_of(self, party: str) -> Profile:
        """Rate and steps of ``party``."""
        return Profile(rate=self.rate_of(party), steps=self.steps_of(party))

    @cached_property
    def _profiles(self) -> dict[str, Profile]:
        found = {}
        for account, group in self._by_account.items():
            profiles = {self.profile_of(facts.name) for facts in group}
            rate, steps = max(one.rate for one in profiles), max(one.steps for one in profiles)
            found[account] = Profile(rate=rate, steps=steps)
        return found

    def profile_of_account(self, account: str) -> Profile:
        """Rate and steps that an account is charged for: no party of it draws more often, or more times."""
        return self._profiles[account]

    def orders(self, party: str, number: int = 1) -> LocalOrders:
        """All that ``party`` gets for round ``number``; the same value for all of one size in one stage."""
        stage, size = self.plan.stage(number), self.facts_of(party).size
        known = self._orders.get((stage, size))
        if known is None:
            known = self._orders[stage, size] = self._local_orders(party, stage)
        return known

    @cached_property
    def _orders(self) -> dict[tuple[StagePlan, int], LocalOrders]:
        return {}

    def _local_orders(self, party: str, stage: StagePlan) -> LocalOrders:
        training, person = self.plan.training, self.plan.privacy.person
        return LocalOrders(
            steps=self.steps_of(party),
            sampling=self.sampling_of(party),
            expected_batch=self.batch_of(party),
            learning_rate=training.optimizer.learning_rate * stage.learning_rate,
            momentum=training.optimizer.momentum,
            proximal=training.proximal,
            mechanism=self.record_mechanism(stage.noise, stage.clip),
            max_records=person.max_records if person is not None and self.record_noise is not None else None,
            client=self.joint_mechanism(stage.noise, stage.clip) if self.noise_at_party else None,
            distributed=self._in_shares(stage.noise, stage.clip),
            canaries=training.canaries,
        )

    def cohort_sampling(self) -> Sampling:
        """How the parties of a round are drawn from the registered ones; also states what the draw is worth."""
        from quietsum.sampling import Everyone, FixedSize, Poisson

        drawn = self.plan.federation.sampling
        if drawn.rate is not None:
            return Poisson(rate=drawn.rate)
        return Everyone() if drawn.size is None else FixedSize(size=drawn.size, population=len(self.parties))

    def divisor(self, survivors: Iterable[str]) -> float:
        """What a masked sum of ``survivors`` is divided by, from public numbers alone.

        Records' noise in shares: their expected batches, so that the sum of gradients becomes a mean. Clients: how many
        they are, which the noise does not hide either. Else the sum of their weights.
        """
        names = tuple(survivors)
        if self.distributed_unit is PrivacyUnit.RECORD:
            return math.fsum(self.batch_of(name) for name in names)
        return float(len(names)) if self.client_level else math.fsum(self.weight_of(name) for name in names)

    @property
    def denominator(self) -> float:
        """The expected cohort: what a sum of clients' updates is divided by, however many replied."""
        return self.cohort_sampling().expected_size(len(self.parties))

    # ------------------------------------------------------------------------------------ clip and noise

    def record_mechanism(self, noise: float = 1.0, clip: float = 1.0) -> ClippedSum | None:
        """Clip and noise of records at each party, with a stage's factors; None where it is added in shares."""
        if self.record_noise is None or self.distributed_unit is PrivacyUnit.RECORD:
            return None
        return _mechanism(self.plan, self._record.max_grad_norm * clip, self.record_noise * noise)

    def joint_mechanism(self, noise: float = 1.0, clip: float = 1.0) -> ClippedSum | None:
        """Clip and noise of clients, as charged: under adaptive clipping, of update and count together.

        None where it is added in shares.
        """
        if self.client_noise is None or self.distributed_unit is PrivacyUnit.CLIENT:
            return None
        return _mechanism(self.plan, self._client.max_norm * clip, self.client_noise * noise)

    def client_mechanism(self, number: int = 1, max_norm: float | None = None) -> ClippedSum | None:
        """The server's clip and noise in round ``number``; None without client level, or with noise at the parties.

        ``max_norm`` is the clip of the moment where it adapts. The update's noise is then σ_Δ, with which update and
        count together cost the noise multiplier that is charged (Andrew et al. 2021).
        """
        if self.client_noise is None or not self.central_noise:
            return None
        stage = self.plan.stage(number)
        noise, adaptive = self.client_noise * stage.noise, self.adaptive
        if adaptive is not None:
            from quietsum.mechanisms import QuantileRule

            assert adaptive.count_noise is not None
            noise = QuantileRule(count_noise=adaptive.count_noise).sum_noise(noise)
        return _mechanism(self.plan, self._client.max_norm * stage.clip if max_norm is None else max_norm, noise)

    def noise_shares(self, unit: PrivacyUnit, number: int = 1) -> DistributedNoise | None:
        """The noise in shares that protects ``unit`` in round ``number``; None where it is added elsewhere.

        Guarantees: calibrated to the floor's honest parties in every round, so that any cohort whose sum is unmasked
        has at least the noise that is charged.
        """
        stage = self.plan.stage(number)
        own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
        return self._in_shares(stage.noise, stage.clip) if own is self.distributed_unit else None

    def _in_shares(self, noise: float = 1.0, clip: float = 1.0) -> DistributedNoise | None:
        unit = self.distributed_unit
        known = self.client_noise if unit is PrivacyUnit.CLIENT else self.record_noise
        if unit is None or known is None or self.secure is None:
            return None
        return self._shares(unit, known * noise, clip)

    def _shares(self, unit: PrivacyUnit, noise: float, clip: float) -> DistributedNoise:
        from quietsum.mechanisms import DistributedNoise
        from quietsum.secagg import error as rotation_error, pad_to_power

        secure, clients = self.secure, unit is PrivacyUnit.CLIENT
        assert secure is not None
        norm = (self._client.max_norm if clients else self._record.max_grad_norm) * clip
        kind: Any = self.plan.privacy.distributed_noise
        longest = 1.0 if clients else max(1.0, min(self._longest_batch, self._stated_ball / norm))
        narrow = secure.bits < 32  # then vectors are added in a rotated basis, whose own rounding is counted
        return DistributedNoise(
            max_norm=norm, noise_multiplier=noise, honest=secure.honest,
            dimension=pad_to_power(self.dimension) if narrow else self.dimension, unit=unit, kind=kind,
            ball=None if clients else longest * norm, bits=secure.bits, parties=secure.parameters.largest,
            margin=0.0 if clients else _MARGIN + (2 * longest * rotation_error(self.dimension) if narrow else 0.0),
        )  # fmt: skip

    @property
    def _stated_ball(self) -> float:
        return self.plan.aggregation.max_update or math.inf

    @cached_property
    def _longest_batch(self) -> float:
        """Records that no party's batch exceeds, but for a chance of 1e-9: so many clips long is the longest sum."""
        from quietsum.plan.resolution.lengths import largest_batch

        return max(largest_batch(self.sampling_of(facts.name), facts.size) for facts in self.parties)

    def mechanism_of(
        self, unit: PrivacyUnit, noise: float = 1.0, clip: float = 1.0
    ) -> ClippedSum | DistributedNoise | None:
        """The mechanism that clips ``unit`` and adds its noise, as charged; None where it is not protected."""
        own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
        if own is self.distributed_unit:
            return self._in_shares(noise, clip)
        return self.joint_mechanism(noise, clip) if own is PrivacyUnit.CLIENT else self.record_mechanism(noise, clip)

    def noise_of(self, unit: PrivacyUnit, noise: float = 1.0, clip: float = 1.0) -> float | None:
        """The noise that is charged for ``unit``, over the clip: of the floor's sum where it is added in shares."""
        own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
        if own is self.distributed_unit:
            in_shares = self._in_shares(noise, clip)
            return None if in_shares is None else in_shares.noise_multiplier
        found = self.joint_mechanism if unit is PrivacyUnit.CLIENT else self.record_mechanism
        added = found(noise, clip)
        return None if added is None else float(added.event().noise_multiplier)

    def misplacement_chance(self, unit: PrivacyUnit) -> float:
        """The chance, for each planned round, that a draw of groups leaves ``unit`` with less noise than is charged."""
        from quietsum.plan.groups import SESSIONS
        from quietsum.secagg import DRAWS

        own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
        if self.secure is None or self.secure.grouping is None or own is not self.distributed_unit:
            return 0.0
        return DRAWS * SESSIONS * self.secure.grouping.chance

    def coordinates(self, unit: PrivacyUnit) -> int:
        """Coordinates that get the noise of ``unit``: the model's, or as many as a rotation makes of them."""
        found = self.noise_shares(unit)
        return self.dimension if found is None else found.dimension

    @property
    def adaptive(self) -> AdaptivePlan | None:
        """How the clients' clip adapts, with its count noise filled in; None where it does not."""
        stated = self._client.adaptive if self.client_level else None
        if stated is None or stated.count_noise is not None:
            return stated
        return dataclasses.replace(stated, count_noise=max(self.denominator / 20, 1e-6))

    # ------------------------------------------------------------------------------ what is charged for

    def charges(self, parties: Iterable[str | PartyFacts] | None = None, number: int = 1) -> tuple[Charge, ...]:
        """The charges of round ``number``: every unit of every registered party, asked or not, answering or not."""
        if parties is None:
            accounts: Iterable[str] = self.accounts
        else:
            named = (one if isinstance(one, str) else one.name for one in parties)
            accounts = dict.fromkeys(self.facts_of(name).account for name in named)
        over = span(self, 1, number)
        return tuple(charge(self, account, unit, over) for account in accounts for unit in units(self))

    def all_charges(self) -> tuple[Charge, ...]:
        """The whole plan's charges, spare attempts included: one for each account and unit."""
        over = span(self, self.attempts)
        return tuple(charge(self, account, unit, over) for account in self.accounts for unit in units(self))

    def terms(self) -> Terms:
        """How the ledger shall count, and the limits it shall hold."""
        from quietsum.ledger import Terms

        privacy = self.plan.privacy
        return Terms(accounting=privacy.accounting, neighbours=privacy.neighbours, limits=self.limits)

    def datasets(self) -> tuple[Dataset, ...]:
        """Whose budgets are touched."""
        from quietsum.ledger import Dataset

        return tuple(
            Dataset(
                party=account, dataset=group[0].dataset, size=sum(facts.size for facts in group), public=group[0].public
            )
            for account, group in self._by_account.items()
        )

    # --------------------------------------------------------------------------------- what will happen

    @cached_property
    def _representatives(self) -> tuple[str, ...]:
        """An account for each profile that may be the worst."""
        named = {profile: account for account, profile in reversed(self._profiles.items())}
        return tuple(named[profile] for profile in worst(named))

    def cost(
        self, unit: PrivacyUnit, rounds: int, delta: float, *, pricing: int | None = None
    ) -> tuple[str, Guarantee]:
        """The account with the largest ε per ``unit`` after ``rounds`` rounds, and its guarantee."""
        privacy, best = self.plan.privacy, None
        accounts = self.accounts[:1] if unit is PrivacyUnit.CLIENT else self._representatives
        for account in accounts:
            found = price(
                charge(self, account, unit, span(self, rounds)),
                delta=delta, accounting=privacy.accounting, neighbours=privacy.neighbours, pricing=pricing,
            )  # fmt: skip
            if best is None or found.epsilon > best[1].epsilon:
                best = (account, found)
        assert best is not None
        return best[0], self._add_label(best[1])

    @property
    def label(self) -> str:
        """What must stand beside the noise: that it is not floating-point safe; "" where it is."""
        return next((one.label for one in (self.record_mechanism(), self.joint_mechanism()) if one is not None), "")

    def _add_label(self, found: Guarantee) -> Guarantee:
        if not self.label:
            return found
        return dataclasses.replace(found, warnings=(*found.warnings, self.label), certified=False)

    def _through_clients(self, rounds: int, delta: float) -> Guarantee:
        """What recipients learn of one record, by the client level alone: its client becomes another one."""
        client = charge(self, self.accounts[0], PrivacyUnit.CLIENT, span(self, rounds))
        found = price(
            dataclasses.replace(client, unit=PrivacyUnit.RECORD),
            delta=delta, accounting=self.plan.privacy.accounting, neighbours=Neighbours.REPLACE_ONE,
        )  # fmt: skip
        return self._add_label(dataclasses.replace(found, method=f"{found.method}, through the client level"))

    def _row(self, rounds: int) -> ForecastRow:
        told: list[Guarantee] = []
        first = ""
        for unit in units(self):
            limit = self.limit_of(unit)
            assert limit is not None
            account, guarantee = self.cost(unit, rounds, limit.delta)
            first = first or account
            for observer in observers(self, unit):
                shown = dataclasses.replace(guarantee, observer=observer)
                if unit is PrivacyUnit.RECORD and self.client_level and observer is Observer.RECIPIENTS:
                    other = self._through_clients(rounds, limit.delta)
                    if other.epsilon < shown.epsilon:
                        shown = dataclasses.replace(other, observer=observer)
                told.append(shown)
        return ForecastRow(round=rounds, party=first, guarantees=tuple(told))

    def forecast(self, at: Iterable[int] | None = None) -> Forecast:
        """ε per unit and observer after each round (or after those in ``at``), and of the whole plan."""
        if not self.protected:
            return Forecast()
        rounds = range(1, self.plan.federation.rounds + 1) if at is None else at
        rows = tuple(self._row(whole_number("round", number, 1)) for number in rounds)
        return Forecast(rows=rows, whole=self._row(self.attempts).guarantees)

    @cached_property
    def affordable_rounds(self) -> int | None:
        """The most rounds at this noise within every budget (the lifetime's where one is stated); None: no limit."""
        if not self.limits:
            return None
        stated = {budget.unit: budget for budget in self.lifetimes()}
        start = float(self.plan.federation.rounds)
        found = []
        for limit in self.limits:
            budget = stated.get(limit.unit, limit)

            def cost(rounds: int, budget: Budget = budget) -> Guarantee:
                return self.cost(budget.unit, rounds, budget.delta)[1]

            found.append(most_steps(cost, budget.epsilon, start, _MOST_AFFORDABLE))
        return min((rounds for rounds in found if rounds is not None), default=None)

    @property
    def robust(self) -> Rule | None:
        """The robust rule between updates; None for the mean."""
        asked = self.plan.aggregation
        return None if asked.rule == "mean" else find_rule(asked.rule, asked.before)

    @property
    def remembered(self) -> int:
        """Bytes that the rule keeps of single parties from round to round; 0 where it keeps nothing of them."""
        rule = self.robust
        if rule is None or not rule.facts.remembers:
            return 0
        return measure_memory(rule, len(self.parties), self.dimension)

    @property
    def attackers(self) -> int:
        """How many updates of a round may be anything: as stated, or a quarter, or as many as the rule withstands."""
        if self.secure is not None and self.secure.grouping is not None:
            return self.secure.grouping.attackers
        return attackers_of(self.plan, self.parties)

    def weight_of(self, party: str) -> float:
        """The party's share in the average, from declared sizes, or the same for all."""
        if self.client_level or self.robust is not None or self.plan.aggregation.weights == "equal":
            return 1 / len(self.parties)
        return self.facts_of(party).size / self._records

    def signal(self) -> tuple[Signal, ...]:
        """Noise against signal of records for each party, then for the average of all (party ""); () without it.

        Where people's records are bounded, the signal is that of the share that the plan says is ``kept``.
        """
        if self.record_noise is None:
            return ()
        share = 1 / math.sqrt(self.secure.honest) if self._records_in_shares and self.secure is not None else 1.0
        noise = share * (self.noise_multiplier or 0.0)
        kept = self.plan.privacy.person.kept if self.plan.privacy.person is not None else 1.0
        alone = {facts.name: noise / (kept * self.batch_of(facts.name)) for facts in self.parties}
        together = math.sqrt(sum((self.weight_of(party) * own) ** 2 for party, own in alone.items()))
        root = math.sqrt(self.dimension)
        return tuple(
            Signal(party=party, coordinate=noise, length=noise * root)
            for party, noise in {**alone, "": together}.items()
        )

    @property
    def _records_in_shares(self) -> bool:
        return self.distributed_unit is PrivacyUnit.RECORD

    def client_signal(self) -> ClientSignal | None:
        """Noise against signal on the clients' mean, and how many parties would make it bearable."""
        if self.client_noise is None:
            return None
        whole = self.client_noise * math.sqrt(self.dimension)
        share = self.denominator / len(self.parties)
        if self.noise_at_party:  # each update has noise of its own; the mean of n has 1/√n of it
            length, needed = whole / math.sqrt(self.denominator), whole**2 / share
        elif self.secure is not None:  # in shares: those of the whole cohort add up to √(cohort / honest) of it
            more = whole * math.sqrt(self.secure.cohort / self.secure.honest)
            length, needed = more / self.denominator, more / share
        else:
            length, needed = whole / self.denominator, whole / share
        return ClientSignal(
            parties=len(self.parties), expected=self.denominator, length=length, needed=math.ceil(needed)
        )


def _mechanism(plan: Plan, max_norm: float, noise: float) -> ClippedSum:
    from quietsum.mechanisms import ClippedSum, Mode

    return ClippedSum(max_norm=max_norm, noise_multiplier=noise, mode=Mode(plan.privacy.noise))
