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
from typing import Any, final

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.privacy.calibration import Accounts, accountant_for
from quietsum.privacy.charges import RoundCharge, charge_of, gaussian_step
from quietsum.privacy.events import PrivacyEvent
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import finite_number, open_probability, positive, whole_number

__all__ = ["PrivacyAccountant", "RoundCharge", "get_privacy_spent"]

STATE_VERSION = 1


def get_privacy_spent(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float, accounting: str = "exact"
) -> tuple[float, float]:
    """(ε, δ) of ``steps`` Poisson-sampled Gaussian steps: the quick answer, per record, add-or-remove neighbours.

    >>> epsilon, delta = get_privacy_spent(noise_multiplier=1.0, sample_rate=0.1, steps=100, delta=1e-5)
    >>> round(epsilon, 2)
    7.05
    """
    event = gaussian_step(noise_multiplier, sample_rate)
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
        self.target_delta = open_probability("delta", delta)
        self.max_epsilon = None if max_epsilon is None else positive("max_epsilon", max_epsilon)
        self.max_epsilon_user = None if max_epsilon_user is None else positive("max_epsilon_user", max_epsilon_user)
        self.accounting = accounting
        self.neighbours = neighbours
        self._sample: list[RoundCharge] = []
        self._user: list[RoundCharge] = []
        self._reports: dict[tuple[int, float, float, int], set[str]] = {}
        self._everyone = self._new(PrivacyUnit.RECORD)
        self._parties: dict[str, Accounts] = {}
        self._clients = self._new(PrivacyUnit.CLIENT)
        self._last_rounds: dict[str | None, list[RoundCharge]] = {}
        self._last_steps = 1

    def _new(self, unit: PrivacyUnit) -> Accounts:
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
        """Record one round: local steps at ``party`` (at every party without a name), and the noisy aggregate.

        The user-level charge belongs to the round, not to a party: when several parties report the same round with the
        same user-level values it is charged once. Anything invalid raises and records nothing.
        """
        whole_number("round_num", round_num)
        sample = charge_of("sample", round_num, noise_multiplier_sample, sample_rate_sample, steps_sample, party)
        user = charge_of("user", round_num, noise_multiplier_user, sample_rate_user, steps_user, party)
        if sample is None and user is None:
            raise InvalidParameter(
                "record_round", round_num, "has neither sample- nor user-level values",
                "pass noise_multiplier_sample=, sample_rate_sample=, steps_sample= and / or the same with _user",
            )  # fmt: skip
        if sample is not None:
            self._add_sample(sample)
        if user is not None and self._is_new(user):
            self._clients.compose(user.event, user.steps)
            self._user.append(user)

    def _is_new(self, user: RoundCharge) -> bool:
        """Whether this report is a charge of its own, and not another party's word for a charge already made.

        A party that reports the same values for the same round again speaks of another attempt, which costs again.
        """
        key = (user.round_num, user.noise_multiplier, user.sample_rate, user.steps)
        reported = self._reports.setdefault(key, set())
        if user.party is not None and reported and user.party not in reported:
            reported.add(user.party)
            return False
        self._reports[key] = set() if user.party is None else {user.party}
        return True

    def _add_sample(self, charge: RoundCharge) -> None:
        if charge.party is None:
            for accountant in (self._everyone, *self._parties.values()):
                accountant.compose(charge.event, charge.steps)
        else:
            if charge.party not in self._parties:
                self._parties[charge.party] = self._everyone.copy()
            self._parties[charge.party].compose(charge.event, charge.steps)
        self._sample.append(charge)
        last = self._last_rounds.setdefault(charge.party, [])
        if last and last[-1].round_num != charge.round_num:
            last.clear()
        last.append(charge)

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
        self._add_sample(dataclasses.replace(self._step, round_num=len(self._sample) + 1, steps=steps))
        return self.get_budget_spent()

    # -------------------------------------------------------------------------------------- reading

    @property
    def sample_history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sample rate, steps) of each record-level charge, in order."""
        return [(charge.noise_multiplier, charge.sample_rate, charge.steps) for charge in self._sample]

    @property
    def user_history(self) -> list[tuple[float, float, int]]:
        """(noise multiplier, sample rate, steps) of each client-level charge, in order."""
        return [(charge.noise_multiplier, charge.sample_rate, charge.steps) for charge in self._user]

    @property
    def charges(self) -> tuple[RoundCharge, ...]:
        """Every record-level charge with its round and party."""
        return tuple(self._sample)

    @property
    def parties(self) -> tuple[str, ...]:
        """The parties named so far."""
        return tuple(self._parties)

    def party_guarantee(self, party: str) -> Guarantee:
        """The record-level guarantee of one party."""
        if party not in self._parties:
            raise InvalidParameter(
                "party", party, "has no charges", f"known parties: {', '.join(self._parties) or 'none'}"
            )
        return self._ask(self._parties[party])

    def _ask(self, accountant: Accounts) -> Guarantee:
        """What was composed decides the answer to the last bit, and not what was asked in between.

        An exact accountant keeps running sums, whose rounding depends on when it was asked. So the books themselves are
        never asked, only copies of them, and a resumed run continues with exactly the same numbers.
        """
        return accountant.copy().epsilon(delta=self.target_delta)

    def _worst(self) -> Guarantee:
        accountants = list(self._parties.values()) or [self._everyone]
        return max(map(self._ask, accountants), key=lambda guarantee: guarantee.epsilon)

    def get_cumulative_sample_epsilon(self) -> float:
        """ε per record, of the worst party."""
        return self._worst().epsilon

    def get_cumulative_user_epsilon(self) -> float:
        """ε per client."""
        return self._ask(self._clients).epsilon

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
        found = [self._worst()] if self._sample else []
        return (*found, self._ask(self._clients)) if self._user else tuple(found)

    # --------------------------------------------------------------------------------------- budget

    def would_exceed(
        self, event: PrivacyEvent, times: int = 1, *, party: str | None = None, unit: PrivacyUnit = PrivacyUnit.RECORD
    ) -> bool:
        """Whether charging ``event`` would exceed the budget of its unit. Nothing is recorded."""
        if unit is PrivacyUnit.CLIENT:
            limit, name, accountants = self.max_epsilon_user, "max_epsilon_user", [self._clients]
        elif unit is PrivacyUnit.RECORD:
            limit, name = self.max_epsilon, "max_epsilon"
            named = [self._parties.get(party, self._everyone)] if party is not None else list(self._parties.values())
            accountants = named or [self._everyone]
        else:
            raise InvalidParameter("unit", unit, "has no budget here", "use PrivacyUnit.RECORD or PrivacyUnit.CLIENT")
        if limit is None:
            raise InvalidParameter(
                name, None, "is not set, so nothing can exceed it", f"construct PrivacyAccountant({name}=...)"
            )
        return any(self._projected(accountant, [(event, times)]) > limit for accountant in accountants)

    def _projected(self, accountant: Accounts, more: list[tuple[PrivacyEvent, int]]) -> float:
        """ε of ``accountant`` after ``more``; nothing is recorded."""
        future = accountant.copy()
        for event, times in more:
            future.compose(event, times)
        return future.epsilon(delta=self.target_delta).epsilon

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
            for party in self._parties or (None,):
                accountant = self._everyone if party is None else self._parties[party]
                if self._projected(accountant, self._next_round(party)) > self.max_epsilon:
                    return True
        if self.max_epsilon_user is not None and self._user:
            newest = self._user[-1].round_num
            again = list(itertools.takewhile(lambda charge: charge.round_num == newest, reversed(self._user)))
            return self._projected(self._clients, [(c.event, c.steps) for c in again]) > self.max_epsilon_user
        return False

    def _next_round(self, party: str | None) -> list[tuple[PrivacyEvent, int]]:
        """What the last round in which ``party`` took part asked of it; in a plain loop, the last call of step()."""
        if self._step is not None:
            return [(self._step.event, self._last_steps)]
        names = (None,) if party is None else (None, party)
        charges = [charge for name in names for charge in self._last_rounds.get(name, ())]
        newest = max((charge.round_num for charge in charges), default=0)
        return [(charge.event, charge.steps) for charge in charges if charge.round_num == newest]

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
            "sample_history": [dataclasses.asdict(charge) for charge in self._sample],
            "user_history": [dataclasses.asdict(charge) for charge in self._user],
            "user_reports": [[*key, sorted(parties)] for key, parties in self._reports.items()],
            "cumulative_sample_epsilon": _number(self.get_cumulative_sample_epsilon()),
            "cumulative_user_epsilon": _number(self.get_cumulative_user_epsilon()),
        }
        state["digest"] = _digest(state)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace everything by what :meth:`state_dict` wrote. A state that was truncated or altered, or whose ε does
        not come out again, raises :class:`~quietsum.errors.CorruptState` and changes nothing.
        """
        fresh = _restore(state)
        self.__dict__.clear()
        self.__dict__.update(fresh.__dict__)


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity"


def _digest(state: Mapping[str, Any]) -> str:
    body = {key: value for key, value in state.items() if key != "digest"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _restore(state: Mapping[str, Any]) -> PrivacyAccountant:
    if not isinstance(state, Mapping):
        raise CorruptState(f"an accountant's state is a mapping, not {type(state).__name__}")
    if state.get("version") != STATE_VERSION:
        raise CorruptState(
            f"state version {state.get('version')!r} is not {STATE_VERSION}; use the quietsum that wrote it"
        )
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
        for values in state["sample_history"]:
            fresh._add_sample(RoundCharge(**values))
        for values in state["user_history"]:
            charge = RoundCharge(**values)
            fresh._clients.compose(charge.event, charge.steps)
            fresh._user.append(charge)
        for number, noise, rate, steps, parties in state["user_reports"]:
            fresh._reports[number, noise, rate, steps] = set(parties)
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
