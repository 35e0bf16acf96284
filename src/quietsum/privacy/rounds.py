"""PrivacyAccountant: the round-by-round front door, in the words that federated training uses.

Two histories are kept apart and never added: what the *records* of each party paid (local DP-SGD) and what whole
*clients* paid (noise on the aggregate). Record-level ε is that of the worst party, since parties hold disjoint data; a
client-level charge falls on every registered client, drawn or not.

The short names return plain floats (upper bounds); :meth:`PrivacyAccountant.guarantees` returns the same with
units, bounds and method.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias, final

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.privacy.accounting import CopyableAccountant, accountant_for
from quietsum.privacy.events import Gaussian, PoissonSampled, PrivacyEvent, PureDP
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import (
    finite_number,
    open_probability,
    optional,
    positive,
    probability,
    set_fields,
    whole_number,
)

__all__ = ["PrivacyAccountant", "RoundCharge", "get_privacy_spent"]

STATE_VERSION = 1
_NOISE = "without noise nothing is private; leave the charge out"

Uses: TypeAlias = list[tuple[PrivacyEvent, int]]
"""Events with how often each is used."""


def get_privacy_spent(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accounting: str = "exact"
) -> tuple[float, float]:
    """(ε, δ) of ``steps`` Poisson-sampled Gaussian steps: the quick answer, per record, add-or-remove neighbours.

    >>> epsilon, delta = get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=100, delta=1e-5)
    >>> round(epsilon, 2)
    7.05
    """
    event = _gaussian_step(noise_multiplier, sample_rate)
    steps = whole_number("steps", steps)
    return accountant_for(accounting).compose(event, steps).epsilon(delta=delta).epsilon, delta


@final
class PrivacyAccountant:
    """Keeps what each round cost.

    For a federation, record what ran in each round:

    >>> accountant = PrivacyAccountant(delta=1e-5)
    >>> for round_num in range(1, 11):
    ...     accountant.record_round(
    ...         round_num=round_num,
    ...         noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=100,
    ...         noise_multiplier_user=0.5, sample_rate_user=0.8, steps_user=1,
    ...     )
    >>> round(accountant.get_cumulative_sample_epsilon(), 1)  # not 2.68
    25.2
    >>> round(accountant.get_cumulative_user_epsilon(), 1)  # not 0.3
    41.1

    For a plain training loop, state the step once and count:

    >>> accountant = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.01, delta=1e-5, max_epsilon=2.0)
    >>> for epoch in range(100):
    ...     epsilon, delta = accountant.step(num_steps=100)
    ...     if accountant.is_budget_exhausted():  # one more epoch like this would exceed it
    ...         break
    >>> epoch, round(epsilon, 3)
    (11, 1.998)
    """

    def __init__(
        self,
        noise_multiplier: float | None = None,
        sample_rate: float | None = None,
        delta: float = 1e-5,
        max_epsilon: float | None = None,
        *,
        max_epsilon_user: float | None = None,
        accounting: str = "exact",
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
    ) -> None:
        if (noise_multiplier is None) != (sample_rate is None):
            missing = "noise_multiplier" if noise_multiplier is None else "sample_rate"
            raise InvalidParameter(missing, None, "is missing", "a plain loop needs both; a federation neither")
        self._step = None
        if noise_multiplier is not None and sample_rate is not None:
            self._step = RoundCharge(round_num=0, noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=1)
        self._last_steps = 1
        self.target_delta = open_probability("delta", delta)
        self.max_epsilon = optional(positive, "max_epsilon", max_epsilon)
        self.max_epsilon_user = optional(positive, "max_epsilon_user", max_epsilon_user)
        self.accounting = accounting
        self.neighbours = neighbours
        self._records = _RecordBook(self._new_accountant(PrivacyUnit.RECORD))
        self._clients = _ClientBook(self._new_accountant(PrivacyUnit.CLIENT))

    def _new_accountant(self, unit: PrivacyUnit) -> CopyableAccountant:
        return accountant_for(self.accounting, neighbours=self.neighbours, unit=unit, observer=Observer.RECIPIENTS)

    # ------------------------------------------------------------------------------------ recording

    def record_round(
        self,
        *,
        round_num: int,
        noise_multiplier_sample: float | None = None,
        sample_rate_sample: float | None = None,
        steps_sample: int | None = None,
        noise_multiplier_user: float | None = None,
        sample_rate_user: float | None = None,
        steps_user: int | None = None,
        party: str | None = None,
    ) -> None:
        """Record one round: local steps at ``party`` (at every party if omitted), and the noisy aggregate.

        The user-level charge belongs to the round, not to a party: when several parties report the same round with the
        same user-level values it is charged once. Anything invalid raises and records nothing.
        """
        whole_number("round_num", round_num)
        sample = _charge_of("sample", round_num, noise_multiplier_sample, sample_rate_sample, steps_sample, party)
        user = _charge_of("user", round_num, noise_multiplier_user, sample_rate_user, steps_user, party)
        if sample is None and user is None:
            raise InvalidParameter(
                "record_round", round_num, "has neither sample- nor user-level values",
                "pass noise_multiplier_sample=, sample_rate_sample=, steps_sample= and / or the same with _user",
            )  # fmt: skip
        if sample is not None:
            self._records.add(sample)
        if user is not None and self._clients.is_new(user):
            self._clients.add(user)

    def record_query(self, *, epsilon: float, times: int = 1, party: str | None = None) -> None:
        """Record ``times`` answers of pure ε each, of Laplace noise for instance, about records of ``party``.

        If ``party`` is omitted, records of every party were asked. Composing by ε alone holds for every mechanism
        that is ε-private (Kairouz, Oh, Viswanath 2015), and is never above the rules of basic and advanced composition.

        >>> accountant = PrivacyAccountant(delta=1e-5)
        >>> accountant.record_query(epsilon=0.1, times=50)
        >>> round(accountant.get_epsilon(), 2)  # 5.0 by adding, 3.92 by advanced composition
        2.84
        """
        self._records.add_query(_QueryCharge(epsilon=epsilon, times=times, party=party))

    def step(self, num_steps: int = 1) -> tuple[float, float]:
        """Record ``num_steps`` steps of the plain loop; returns (ε, δ) spent so far."""
        if self._step is None:
            raise InvalidParameter(
                "noise_multiplier",
                None,
                "was not given",
                "construct PrivacyAccountant(noise_multiplier=, sample_rate=, ...)",
            )
        steps = whole_number("num_steps", num_steps)
        self._last_steps = max(1, steps)
        self._records.add(dataclasses.replace(self._step, round_num=len(self._records.charges) + 1, steps=steps))
        return self.get_budget_spent()

    # -------------------------------------------------------------------------------------- reading

    @property
    def sample_history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sample rate, steps) of each record-level charge, in order."""
        return [(charge.noise_multiplier, charge.sample_rate, charge.steps) for charge in self._records.charges]

    @property
    def user_history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sample rate, steps) of each client-level charge, in order."""
        return [(charge.noise_multiplier, charge.sample_rate, charge.steps) for charge in self._clients.charges]

    @property
    def charges(self) -> tuple[RoundCharge, ...]:
        """Every record-level charge of a round, with its party."""
        return tuple(self._records.charges)

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties named so far."""
        return tuple(self._records.parties)

    def party_guarantee(self, party: str) -> Guarantee:
        """The record-level guarantee of one party."""
        known = self._records.parties
        if party not in known:
            raise InvalidParameter("party", party, "has no charges", f"known parties: {', '.join(known) or 'none'}")
        return self._price(known[party])

    def get_cumulative_sample_epsilon(self) -> float:
        """ε per record, of the worst party."""
        return self._price_worst_party().epsilon

    def get_cumulative_user_epsilon(self) -> float:
        """ε per client."""
        return self._price(self._clients.accountant).epsilon

    def get_epsilon(self) -> float:
        """ε per record spent so far."""
        return self.get_cumulative_sample_epsilon()

    def get_budget_spent(self) -> tuple[float, float]:
        """(ε, δ) per record spent so far.

        >>> accountant = PrivacyAccountant(noise_multiplier=1.2, sample_rate=0.0032, delta=1e-5, max_epsilon=3.0)
        >>> for round_num in range(100):
        ...     epsilon, delta = accountant.step(312)
        >>> accountant.get_budget_spent() == (epsilon, delta), round(epsilon, 2)  # not 1.0
        (True, 2.32)
        """
        return self.get_cumulative_sample_epsilon(), self.target_delta

    def guarantees(self) -> tuple[Guarantee, ...]:
        """One guarantee a unit that was charged: records (worst party), clients. A list, never a sum."""
        records = [self._price_worst_party()] if self._records.charges or self._records.queries else []
        return (*records, self._price(self._clients.accountant)) if self._clients.charges else tuple(records)

    def _price_worst_party(self) -> Guarantee:
        return max(map(self._price, self._records.accountants()), key=lambda guarantee: guarantee.epsilon)

    def _price(self, accountant: CopyableAccountant, more: Uses | None = None) -> Guarantee:
        """The guarantee after what was composed and ``more``; nothing is recorded.

        An exact accountant keeps running sums, whose rounding depends on when it was asked. So only copies are asked:
        the answer depends on what was composed alone, and a resumed run continues with exactly the same numbers.
        """
        future = accountant.copy()
        for event, times in more or ():
            future.compose(event, times)
        return future.epsilon(delta=self.target_delta)

    # --------------------------------------------------------------------------------------- budget

    def would_exceed(
        self, event: PrivacyEvent, times: int = 1, *, party: str | None = None, unit: PrivacyUnit = PrivacyUnit.RECORD
    ) -> bool:
        """Whether charging ``event`` would exceed the budget of its unit. Nothing is recorded."""
        if unit is PrivacyUnit.CLIENT:
            limit, name, accountants = self.max_epsilon_user, "max_epsilon_user", [self._clients.accountant]
        elif unit is PrivacyUnit.RECORD:
            limit, name, accountants = self.max_epsilon, "max_epsilon", self._records.accountants(party)
        else:
            raise InvalidParameter("unit", unit, "has no budget here", "use PrivacyUnit.RECORD or PrivacyUnit.CLIENT")
        if limit is None:
            raise InvalidParameter(
                name, None, "is not set, so nothing can exceed it", f"construct PrivacyAccountant({name}=...)"
            )
        return any(self._price(accountant, [(event, times)]).epsilon > limit for accountant in accountants)

    def is_budget_exceeded(self) -> bool:
        """Whether more than the budget has been spent already; :meth:`is_budget_exhausted` says it one step earlier.

        >>> accountant = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.01, delta=1e-5, max_epsilon=10.0)
        >>> for epoch in range(100):
        ...     _ = accountant.step(num_steps=1000)
        ...     if accountant.is_budget_exceeded():
        ...         break
        >>> epoch, round(accountant.get_epsilon(), 2)
        (22, 10.08)
        """
        limits = ((self.max_epsilon, self.get_epsilon), (self.max_epsilon_user, self.get_cumulative_user_epsilon))
        return any(limit is not None and spent() > limit for limit, spent in limits)

    def is_budget_exhausted(self) -> bool:
        """Whether another step, or for any party another round like its last one, would exceed a budget.

        Ask before it runs. A party that has had enough keeps this true; :meth:`would_exceed` asks for one party.
        """
        if self.is_budget_exceeded():
            return True
        if self.max_epsilon is not None:
            for party in self._records.parties or (None,):
                (accountant,) = self._records.accountants(party)
                if self._price(accountant, self._next_round(party)).epsilon > self.max_epsilon:
                    return True
        if self.max_epsilon_user is not None and self._clients.charges:
            return self._price(self._clients.accountant, self._clients.last_round()).epsilon > self.max_epsilon_user
        return False

    def _next_round(self, party: str | None) -> Uses:
        """What the last round asked of ``party``; in a plain loop, what the last call of step() recorded."""
        if self._step is not None:
            return [(self._step.event, self._last_steps)]
        return self._records.last_round(party)

    # ---------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values, with both ε and a digest, so that a resumed run starts exactly here.

        >>> running, resumed = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.1), PrivacyAccountant()
        >>> spent = running.step(100)
        >>> resumed.load_state_dict(json.loads(json.dumps(running.state_dict())))
        >>> resumed.get_budget_spent() == spent and resumed.step(100) == running.step(100)
        True
        """
        state: dict[str, Any] = {
            "version": STATE_VERSION,
            "target_delta": self.target_delta,
            "max_epsilon": self.max_epsilon,
            "max_epsilon_user": self.max_epsilon_user,
            "accounting": self.accounting,
            "neighbours": self.neighbours.value,
            "step": None if self._step is None else [self._step.noise_multiplier, self._step.sample_rate],
            "last_steps": self._last_steps,
            "sample_history": [dataclasses.asdict(charge) for charge in self._records.charges],
            "user_history": [dataclasses.asdict(charge) for charge in self._clients.charges],
            "user_reports": [[*key, sorted(parties)] for key, parties in self._clients.reports.items()],
            "cumulative_sample_epsilon": _json_number(self.get_cumulative_sample_epsilon()),
            "cumulative_user_epsilon": _json_number(self.get_cumulative_user_epsilon()),
        }
        if self._records.queries:
            state["queries"] = [dataclasses.asdict(query) for query in self._records.queries]
        state["digest"] = _digest(state)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace everything by what :meth:`state_dict` wrote. A state that was truncated or altered, or whose ε does
        not come out again, raises :class:`~quietsum.errors.CorruptState` and changes nothing.
        """
        fresh = _restore(state)
        self.__dict__.clear()
        self.__dict__.update(fresh.__dict__)


# ------------------------------------------------------------------------------------------- books


def _gaussian_step(noise_multiplier: float, sample_rate: float) -> PrivacyEvent:
    """One Poisson-sampled step of Gaussian noise."""
    return PoissonSampled(rate=sample_rate, event=Gaussian(noise_multiplier=noise_multiplier))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RoundCharge:
    """One line of a history: ``steps`` Poisson-sampled Gaussian steps at one party (or, with None, at all)."""

    round_num: int
    noise_multiplier: float
    sample_rate: float
    steps: int
    party: str | None = None

    def __post_init__(self) -> None:
        set_fields(  # plain Python numbers, so that a numpy scalar survives the way through JSON
            self,
            round_num=int(whole_number("round_num", self.round_num)),
            noise_multiplier=positive("noise_multiplier", self.noise_multiplier, _NOISE),
            sample_rate=probability("sample_rate", self.sample_rate),
            steps=int(whole_number("steps", self.steps)),
        )
        if self.party is not None and not (isinstance(self.party, str) and self.party):
            raise InvalidParameter("party", self.party, "is no name", "pass a non-empty string, or leave it out")

    @property
    def event(self) -> PrivacyEvent:
        """One step of this charge."""
        return _gaussian_step(self.noise_multiplier, self.sample_rate)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _QueryCharge:
    """``times`` answers of pure ε, asked when ``after`` rounds had been recorded."""

    epsilon: float
    times: int
    party: str | None = None
    after: int = 0

    def __post_init__(self) -> None:
        set_fields(
            self,
            epsilon=positive("epsilon", self.epsilon, "a query without an ε is no private one"),
            times=int(whole_number("times", self.times)),
            after=int(whole_number("after", self.after)),
        )
        if self.party is not None and not (isinstance(self.party, str) and self.party):
            raise InvalidParameter("party", self.party, "is no name", "pass a non-empty string, or leave it out")


def _charge_of(
    level: str, round_num: int, noise: float | None, rate: float | None, steps: int | None, party: str | None
) -> RoundCharge | None:
    """The charge of one level (``sample`` or ``user``), None if nothing of it was given; errors name the level."""
    given = {f"noise_multiplier_{level}": noise, f"sample_rate_{level}": rate, f"steps_{level}": steps}
    if noise is None and rate is None and steps is None:
        return None
    for name, value in given.items():
        if value is None:
            raise InvalidParameter(name, None, "is missing", f"a {level}-level charge needs {', '.join(given)}")
    try:
        return RoundCharge(round_num=round_num, noise_multiplier=noise, sample_rate=rate, steps=steps, party=party)  # type: ignore[arg-type]
    except InvalidParameter as error:
        if error.parameter in ("noise_multiplier", "sample_rate", "steps"):
            raise InvalidParameter(f"{error.parameter}_{level}", error.value, error.problem, error.remedy) from None
        raise


@final
class _RecordBook:
    """What the records of each party paid: an accountant a party, and one for all parties that were not named yet."""

    def __init__(self, accountant: CopyableAccountant) -> None:
        self.charges: list[RoundCharge] = []
        self.queries: list[_QueryCharge] = []
        self.unnamed = accountant
        self.parties: dict[str, CopyableAccountant] = {}
        self._last_rounds: dict[str | None, list[RoundCharge]] = {}

    def add(self, charge: RoundCharge) -> None:
        """Charge one party, or every party if the charge names none."""
        self._compose(charge.party, charge.event, charge.steps)
        self.charges.append(charge)
        last = self._last_rounds.setdefault(charge.party, [])
        if last and last[-1].round_num != charge.round_num:
            last.clear()
        last.append(charge)

    def add_query(self, query: _QueryCharge) -> None:
        """Charge the answers of one query."""
        self._compose(query.party, PureDP(epsilon=query.epsilon), query.times)
        self.queries.append(dataclasses.replace(query, after=len(self.charges)))

    def _compose(self, party: str | None, event: PrivacyEvent, times: int) -> None:
        """Into the books of ``party``, or of all; a party that is new has paid what all did."""
        if party is None:
            for accountant in (self.unnamed, *self.parties.values()):
                accountant.compose(event, times)
            return
        if party not in self.parties:
            self.parties[party] = self.unnamed.copy()
        self.parties[party].compose(event, times)

    def accountants(self, party: str | None = None) -> list[CopyableAccountant]:
        """That of ``party``; if omitted, those of all named parties. The one of unnamed parties if there is none."""
        named = [self.parties.get(party, self.unnamed)] if party is not None else list(self.parties.values())
        return named or [self.unnamed]

    def last_round(self, party: str | None) -> Uses:
        """What the last round in which ``party`` took part asked of it."""
        names = (None,) if party is None else (None, party)
        charges = [charge for name in names for charge in self._last_rounds.get(name, ())]
        newest = max((charge.round_num for charge in charges), default=0)
        return [(charge.event, charge.steps) for charge in charges if charge.round_num == newest]


@final
class _ClientBook:
    """What whole clients paid: one accountant, since every registered client is charged, drawn or not."""

    def __init__(self, accountant: CopyableAccountant) -> None:
        self.charges: list[RoundCharge] = []
        self.accountant = accountant
        self.reports: dict[tuple[int, float, float, int], set[str]] = {}

    def is_new(self, report: RoundCharge) -> bool:
        """Whether ``report`` is a charge of its own, and not another party's word for a charge already made.

        A party that reports the same values for the same round again speaks of another attempt, which costs again.
        The report is remembered.
        """
        key = (report.round_num, report.noise_multiplier, report.sample_rate, report.steps)
        reported = self.reports.setdefault(key, set())
        if report.party is not None and reported and report.party not in reported:
            reported.add(report.party)
            return False
        self.reports[key] = set() if report.party is None else {report.party}
        return True

    def add(self, charge: RoundCharge) -> None:
        """Charge every client."""
        self.accountant.compose(charge.event, charge.steps)
        self.charges.append(charge)

    def last_round(self) -> Uses:
        """What the round that was charged last asked of every client."""
        newest = self.charges[-1].round_num
        again = itertools.takewhile(lambda charge: charge.round_num == newest, reversed(self.charges))
        return [(charge.event, charge.steps) for charge in again]


# ------------------------------------------------------------------------------------------- state


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity"


def _digest(state: Mapping[str, Any]) -> str:
    body = {key: value for key, value in state.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _restore(state: Mapping[str, Any]) -> PrivacyAccountant:
    if not isinstance(state, Mapping):
        raise CorruptState(f"an accountant's state is a mapping, not {type(state).__name__}")
    if "version" not in state:
        raise CorruptState(
            "the state has no version, so state_dict() did not write it; quietsum.compat.import_checkpoint reads the "
            "privacy block of a DP-FedMed checkpoint"
        )
    if state["version"] != STATE_VERSION:
        raise CorruptState(f"state version {state['version']!r} is not {STATE_VERSION}; use the quietsum that wrote it")
    try:
        if state["digest"] != _digest(state):
            raise CorruptState("the state's digest does not match its contents; restore it from an unaltered copy")
        step = state["step"]
        fresh = PrivacyAccountant(
            noise_multiplier=None if step is None else step[0],
            sample_rate=None if step is None else step[1],
            delta=state["target_delta"],
            max_epsilon=state["max_epsilon"],
            max_epsilon_user=state["max_epsilon_user"],
            accounting=state["accounting"],
            neighbours=Neighbours(state["neighbours"]),
        )
        queries = [_QueryCharge(**values) for values in state.get("queries", ())]
        for number, values in enumerate(state["sample_history"]):
            for query in (one for one in queries if one.after == number):
                fresh._records.add_query(query)
            fresh._records.add(RoundCharge(**values))
        for query in (one for one in queries if one.after >= len(state["sample_history"])):
            fresh._records.add_query(query)
        for values in state["user_history"]:
            fresh._clients.add(RoundCharge(**values))
        for number, noise, rate, steps, parties in state["user_reports"]:
            fresh._clients.reports[number, noise, rate, steps] = set(parties)
        fresh._last_steps = whole_number("last_steps", state["last_steps"], 1)
        for name, value in (
            ("cumulative_sample_epsilon", fresh.get_cumulative_sample_epsilon()),
            ("cumulative_user_epsilon", fresh.get_cumulative_user_epsilon()),
        ):
            saved = float(state[name])
            if saved != value and not abs(saved - value) <= 1e-6 * max(1.0, finite_number(name, saved)):
                raise CorruptState(
                    f"{name} was saved as {saved} and comes out as {value}; the history is not what it was"
                )
    except CorruptState:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError, QuietsumError) as error:
        raise CorruptState(f"the accountant's state cannot be read: {error!r}") from None
    return fresh
