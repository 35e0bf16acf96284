"""Lifetime budgets: what one unit of a dataset may ever cost, over all plans that touch it.

A *book* belongs to (party, dataset, unit) and outlives runs: deleting a run's folder refunds nothing, because no run
folder is ever asked. The rule, and why it is sound:

* **One plan.** The plan is frozen when it is opened: every later charge is part of it. Its whole forecast, by the
  plan's accountant at the dataset's δ, must fit the budget. Stopping it early, for any reason, is a function of
  what the whole plan would have released, so the whole plan's ε holds.
* **From the second plan on**, which somebody chose after looking at the results of the first: a Rényi filter, at the
  order that the budget and the first plan's forecast fix, over *all* charges of *all* plans, the first one included.
* **The seam.** Mixing both ("exact for the first, what is left for the next") would let results choose the analysis.
  Whether the first plan's whole forecast fits the filter is known before any data is seen. If it does not, no second
  plan is ever let in, so every possible history is part of one frozen plan, and exact accounting stands. If it does,
  every possible history lies inside the filter. Either way one analysis covers all histories. "First" is the plan
  that charged the book first; plans that were opened and charged nothing do not count.
* **Stopped plans** are charged what they reserved, nothing more: the filter adds up charges, not forecasts. (A plan
  that goes on later meets the gate again at each reservation.)
* **δ belongs to the dataset.** The first budget fixes it; a plan with a smaller δ of its own is accounted at both.
* **Public data** has no gate, and its charges are counted all the same. A budget set later protects it from then on,
  and counts what was charged before: where that is more than the budget, nothing more fits.
* **Raising a budget** is a decision of the data's owner and outside of this proof: the promise is the new (ε, δ), as if
  it had been the budget from the start. Deciding it by what the models showed makes the decision itself a release.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Collection, Sequence
from typing import final

from quietsum.errors import BudgetExhausted, InvalidParameter, PlanRefused, QuietsumError
from quietsum.ledger.charges import Charge, Terms
from quietsum.ledger.pricing import PRICING, Cost, CostTally, Gate, Prices, exceeds
from quietsum.privacy import Budget, Guarantee, Neighbours, Observer, PrivacyUnit

__all__ = ["Book", "BookState", "LifetimeExceeded", "Outlook", "Share", "command_to_raise"]


@final
class LifetimeExceeded(BudgetExhausted):
    """A plan that one book does not admit: ``problem`` says why, ``raised`` is the command's part that would allow it.

    ``raised`` is (dataset, unit, ε), None if no larger lifetime would admit the plan.
    """

    def __init__(self, problem: str, remedy: str, *, party: str, raised: tuple[str, PrivacyUnit, str] | None) -> None:
        super().__init__(f"{problem} {remedy}")
        self.problem, self.party, self.raised = problem, party, raised


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a plan means for one book's lifetime, before it is opened.

    ``fixes`` says whether the plan would open the book and so fix ``budget`` for good, and ``stated`` whether somebody
    chose that budget as a lifetime. ``room`` is the share of the lifetime that later plans may use once this one has
    charged all that it plans; 0 if no later plan would be let in.
    """

    party: str
    dataset: str
    unit: PrivacyUnit
    budget: Budget
    fixes: bool
    stated: bool
    room: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Book:
    """A lifetime account as people see it.

    ``budget`` is None for public data, and ``public`` then says why; of a budget and a declaration the later one
    counts. ``guarantee`` is about everything charged so far: with one plan the ε of what it reserved, if its schedule
    runs as planned; with several the whole budget, since what is left may have steered the next plan.
    ``spent_fraction`` lies between 0 and 1.
    """

    party: str
    dataset: str
    unit: PrivacyUnit
    budget: Budget | None
    public: str
    spent_fraction: float
    plans: int
    guarantee: Guarantee | None


@final
class Share:
    """What one run planned and charged on one book."""

    __slots__ = ("failure", "observers", "planned", "pricing", "repriced", "tally", "terms")

    def __init__(
        self,
        planned: CostTally,
        terms: Terms,
        observers: tuple[Observer, ...],
        *,
        repriced: bool = False,
        pricing: int = PRICING,
    ) -> None:
        self.pricing = pricing  # the version by which the run was opened
        self.repriced = repriced  # planned by older rules, and of events whose rules have changed since
        self.planned = planned
        self.failure = planned.failure / max(1, sum(planned.leaves.values()))  # of each event
        self.terms = terms
        self.observers = observers
        self.tally = CostTally()

    @property
    def charged(self) -> bool:
        """Whether anything stands reserved."""
        return bool(self.tally.leaves or self.tally.unprotected or self.tally.failures)

    def check(self, charge: Charge, cost: Cost) -> None:
        """One round's charge has at least one event, and the distance from its law that the plan stated for as many."""
        if cost.protected == bool(self.planned.unprotected):
            word = "a protected event" if cost.protected else "a release without protection"
            raise PlanRefused(f"this charge of {charge.party!r} is {word}, the plan has something else; it is frozen")
        if not cost.protected:
            return
        count = sum(count for _, count in cost.leaves)
        if count < 1:
            raise InvalidParameter(
                "event", charge.event, f"charges {charge.party!r} for nothing",
                "charge what one round of the plan costs",
            )  # fmt: skip
        stated = self.failure * count
        if charge.failure < stated * (1 - _SLACK):
            raise InvalidParameter(
                "failure", charge.failure, f"of {charge.party!r} is below {stated:.3g}, its share of what the plan "
                "stated", "use the same noise as the plan",
            )  # fmt: skip


def command_to_raise(accounts: Sequence[tuple[str, str]], unit: PrivacyUnit, epsilon: str) -> str:
    """What to type to raise the lifetimes of these (party, dataset) to ``epsilon``.

    >>> command_to_raise([("Basel", "heart"), ("Budapest", "heart")], PrivacyUnit.RECORD, "4")
    'quietsum ledger raise --party Basel --party Budapest --dataset heart --epsilon 4 --reason why'
    """
    datasets = [dataset for _, dataset in accounts]
    words = ["quietsum", "ledger", "raise"]
    for party, _ in accounts:
        words += ["--party", party]
    for dataset in datasets[:1] if len(set(datasets)) == 1 else datasets:
        words += ["--dataset", dataset]
    words += [] if unit is PrivacyUnit.RECORD else ["--unit", unit.value]
    return shlex.join([*words, "--epsilon", epsilon, "--reason", "why"])


_NOTHING = CostTally()
_SLACK = 1e-9


@final
class BookState:
    """A book while the ledger is read or written."""

    __slots__ = ("_sum", "budget", "charged", "dataset", "party", "plans", "unit")

    def __init__(self, party: str, dataset: str, unit: PrivacyUnit) -> None:
        self.party, self.dataset, self.unit = party, dataset, unit
        self.budget: Budget | None = None
        self.plans = 0
        self.charged: dict[str, Share] = {}  # runs in the order of their first charge, without those fully refunded
        self._sum: CostTally | None = None  # of several runs; a single one's tally is its own sum

    @property
    def total(self) -> CostTally:
        """Everything charged, by all runs. Not to be changed."""
        if self._sum is not None:
            return self._sum
        return next((share.tally for share in self.charged.values()), _NOTHING)

    def with_budget(self, budget: Budget) -> BookState:
        """The same book under another budget; this one stays as it is."""
        other = BookState(self.party, self.dataset, self.unit)
        other.plans, other.charged, other._sum, other.budget = self.plans, self.charged, self._sum, budget
        return other

    # ------------------------------------------------------------------------------------------- recording

    def charge(self, run: str, share: Share, cost: Cost) -> None:
        """Count one cost of one run."""
        share.tally.add(cost)
        if self._sum is not None:
            self._sum.add(cost)
        if run not in self.charged:
            self.charged[run] = share
            if self._sum is None and len(self.charged) > 1:
                self._sum = CostTally()
                for one in self.charged.values():
                    self._sum.merge(one.tally)

    def refund(self, run: str, share: Share, cost: Cost) -> None:
        """Take one cost back."""
        share.tally.add(cost, -1)
        if self._sum is not None:
            self._sum.add(cost, -1)
        if not share.charged:
            self.charged.pop(run, None)

    # -------------------------------------------------------------------------------------------- the gate

    def admit_plan(self, run: str, planned: CostTally, terms: Terms, prices: Prices, rounds: int | None) -> None:
        """Refuse a plan that does not fit as a whole: BudgetExhausted, with what is left and how to raise it."""
        others = {name: share for name, share in self.charged.items() if name != run}
        self._check_relation(others, terms)
        if not others:
            found = self._alone(planned, terms, prices)
            if exceeds(found.epsilon, self._budget.epsilon):
                raise self._too_much_for_one(planned, terms, prices, rounds)
            return
        used = self._together(next(iter(others.values())), planned, prices)
        if not used <= 1:
            raise self._too_much_for_filter(others, planned, terms, prices, rounds)

    def foresee(self, planned: CostTally, terms: Terms, prices: Prices, *, fixes: bool, stated: bool) -> Outlook:
        """What a plan that is let in leaves of the lifetime for plans after it."""
        first = next(iter(self.charged.values()), None)
        relation = terms.neighbours if first is None else self._relation
        earliest, pricing = (planned, PRICING) if first is None else (first.planned, first.pricing)
        gate, room = prices.gate_after(self._budget, earliest, relation, pricing), 0.0
        if gate.usage(earliest, relation, prices) <= 1:
            total = self.total.copy()
            total.merge(planned)
            room = max(0.0, 1 - gate.usage(total, relation, prices))
        return Outlook(
            party=self.party, dataset=self.dataset, unit=self.unit, budget=self._budget, fixes=fixes, stated=stated,
            room=room,
        )  # fmt: skip

    def admit_charge(self, run: str, after: CostTally, terms: Terms, cost: Cost, prices: Prices) -> None:
        """Refuse a charge that does not fit: BudgetExhausted, and nothing was charged.

        ``after`` is what the run will have charged with it. A run that was opened before others were charged under
        another relation is refused here: PlanRefused.
        """
        self._check_relation([name for name in self.charged if name != run], terms)
        if not self.charged or (len(self.charged) == 1 and run in self.charged):
            found = self._alone(after, terms, prices)
            fits = not exceeds(found.epsilon, self._budget.epsilon)
        else:
            first = next(iter(self.charged.values()))
            fits = self._together(first, CostTally([cost]), prices) <= 1
        if not fits:
            raise BudgetExhausted(
                f"the next charge does not fit what {self} may cost in its lifetime, ε = {self._budget.figure} per "
                f"{self.unit} at δ = {self._budget.delta:g}; nothing was asked of anybody.{self._repricing_note()} "
                f"To allow more: {self.raise_command(None)}"
            )

    def _repricing_note(self) -> str:
        """A sentence where charges of before are priced by corrected rules now."""
        if not any(share.repriced for share in self.charged.values()):
            return ""
        return " What was charged before costs more by corrected prices (quietsum ledger show)."

    def _check_relation(self, others: Collection[str], terms: Terms) -> None:
        if others and terms.neighbours is not self._relation:
            raise PlanRefused(
                f"{self} has been accounted under {self._relation} neighbours, this plan says {terms.neighbours}; "
                f'set privacy.neighbours = "{self._relation}", the two cannot be added up'
            )

    def _alone(self, tally: CostTally, terms: Terms, prices: Prices) -> Guarantee:
        return prices.upper(tally.key(), terms.accounting, terms.neighbours, self.unit, self._budget.delta)

    def _together(self, first: Share, more: CostTally, prices: Prices) -> float:
        """The share of the filter that everything charged and ``more`` use; infinite where the seam is closed."""
        gate, neighbours = self._gate(self._budget, first, prices), self._relation
        if not gate.usage(first.planned, neighbours, prices) <= 1:
            return math.inf
        total = self.total.copy()
        total.merge(more)
        return gate.usage(total, neighbours, prices)

    def _gate(self, budget: Budget, first: Share, prices: Prices) -> Gate:
        return prices.gate_after(budget, first.planned, self._relation, first.pricing)

    @property
    def _budget(self) -> Budget:
        if self.budget is None:
            raise QuietsumError(
                f"{self} has no budget per {self.unit}; open the run first, or: {self.raise_command(None)}"
            )
        return self.budget

    @property
    def _relation(self) -> Neighbours:
        first = next(iter(self.charged.values()), None)
        return Neighbours.ADD_REMOVE if first is None else first.terms.neighbours

    # --------------------------------------------------------------------------------------------- refusals

    def _too_much_for_one(
        self, planned: CostTally, terms: Terms, prices: Prices, rounds: int | None
    ) -> BudgetExhausted:
        budget = self._budget
        needed = self._alone(planned, terms, prices).epsilon
        fraction = _largest(lambda part: not exceeds(self._alone(part, terms, prices).epsilon, budget.epsilon), planned)
        return self._refuse(
            f"the whole plan costs ε = {_up(needed)} per {self.unit} at δ = {budget.delta:g}; {self} has a lifetime of "
            f"ε = {budget.figure} per {self.unit}, of which nothing is spent: {_rounds(fraction, rounds)}.",
            needed,
        )

    def _too_much_for_filter(
        self, others: dict[str, Share], planned: CostTally, terms: Terms, prices: Prices, rounds: int | None
    ) -> BudgetExhausted:
        budget, first = self._budget, next(iter(others.values()))
        if self.total.unprotected:
            return BudgetExhausted(
                f"{self} was released without protection while it was public; no budget covers that, so nothing fits "
                f"its lifetime of ε = {budget.figure} per {self.unit} at δ = {budget.delta:g}. If its records "
                f"need no protection: quietsum ledger declare-public --party {self.party} --dataset {self.dataset} "
                "--reason why"
            )

        def fits(epsilon: float) -> bool:
            gate = self._gate(Budget(epsilon=epsilon, delta=budget.delta, unit=budget.unit), first, prices)
            total = self.total.copy()
            total.merge(planned)
            used = (gate.usage(tally, self._relation, prices) for tally in (first.planned, total))
            return all(part <= 1 for part in used)

        needed = _smallest(fits, budget.epsilon)
        gate = self._gate(budget, first, prices)
        if gate.usage(first.planned, self._relation, prices) <= 1:
            together = self.total.copy()
            together.merge(planned)
            if together.failure > gate.failure and gate.divergence_usage(together, self._relation, prices) <= 1:
                return self._too_inexact(together, gate)
            left = max(0.0, 1 - gate.usage(self.total, self._relation, prices))
            cost = gate.usage(planned, self._relation, prices)
            state = f"about {100 * left:.3g} % of it is left, and {_rounds(left / cost if cost else 0.0, rounds)}"
        else:
            state = (
                "its first plan was accounted by itself and leaves no room for a second one, chosen after its results "
                "were seen: no round of this plan would fit"
            )
        return self._refuse(
            f"{self} has a lifetime of ε = {budget.figure} per {self.unit} at δ = {budget.delta:g}; {state}."
            f"{self._repricing_note()}",
            needed,
        )

    def _refuse(self, problem: str, needed: float) -> LifetimeExceeded:
        if not math.isfinite(needed):
            remedy = "Plan less, or add noise: after its first plan no larger lifetime takes this one"
            return LifetimeExceeded(problem, remedy, party=self.party, raised=None)
        remedy = f"Plan less, add noise, or allow more: {self.raise_command(needed)}"
        return LifetimeExceeded(problem, remedy, party=self.party, raised=(self.dataset, self.unit, _up(needed)))

    def _too_inexact(self, together: CostTally, gate: Gate) -> BudgetExhausted:
        """ε would suffice, and δ does not pay for how far the noise is from the law that its price is for."""
        return BudgetExhausted(
            f"{self} has a lifetime of ε = {self._budget.figure} per {self.unit} at δ = {self._budget.delta:g}. Its "
            f"ε suffices for this plan; but the noise of all its plans may be {together.failure:.2g} away from its "
            f"ideal law, groups drawn badly included, and after its first plan δ pays for {gate.failure:.2g}. A larger "
            "lifetime does not change that: plan fewer rounds, or no groups or fewer of them, as the first plan did"
        )

    def raise_command(self, needed: float | None) -> str:
        """What to type to allow ``needed``."""
        wanted = "EPSILON" if needed is None or not math.isfinite(needed) else _up(needed)
        return command_to_raise([(self.party, self.dataset)], self.unit, wanted)

    def __str__(self) -> str:
        return f"dataset {self.dataset!r} of {self.party!r}"

    # ---------------------------------------------------------------------------------------------- reading

    def view(self, public: str, prices: Prices) -> Book:
        """The book as people see it."""
        budget = None if public else self.budget
        guarantee, fraction = None, 0.0
        if budget is not None:
            shares = list(self.charged.values())
            if len(shares) <= 1:
                terms = shares[0].terms if shares else Terms(neighbours=self._relation)
                guarantee = self._alone(self.total, terms, prices)
                fraction = min(1.0, guarantee.epsilon / budget.epsilon)
            else:
                used = self._together(shares[0], _NOTHING, prices)
                fraction, fits = min(1.0, used), used <= 1
                beyond = "by corrected prices" if self._repricing_note() else "while it was public"
                guarantee = Guarantee(
                    epsilon=budget.epsilon if fits else math.inf, delta=budget.delta, unit=self.unit,
                    neighbours=self._relation, order=self._gate(budget, shares[0], prices).order if fits else None,
                    method="Rényi filter" if fits else f"charged beyond this budget {beyond}",
                )  # fmt: skip
        return Book(
            party=self.party, dataset=self.dataset, unit=self.unit, budget=budget, public=public,
            spent_fraction=fraction, plans=self.plans, guarantee=guarantee,
        )  # fmt: skip


def _up(epsilon: float) -> str:
    """ε with three digits, rounded up, so that a budget typed from it suffices."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / unit * (1 + 1e-9)) * unit:.6g}"


def _rounds(fraction: float, rounds: int | None) -> str:
    fraction = min(max(fraction, 0.0), 1.0)
    if rounds is None:
        return f"about {math.floor(100 * fraction)} % of this plan would fit"
    return f"about {math.floor(fraction * rounds + 1e-9)} of the plan's {rounds} rounds would fit"


def _scale(planned: CostTally, fraction: float) -> CostTally:
    part = CostTally()
    part.leaves = {event: count for event, n in planned.leaves.items() if (count := math.floor(n * fraction))}
    part.failures = dict(planned.failures)
    part.unprotected = planned.unprotected
    return part


def _largest(fits: Callable[[CostTally], bool], planned: CostTally) -> float:
    """The largest share of a plan that fits, to a thousandth."""
    low, high = 0, 1000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(_scale(planned, middle / 1000)) else (low, middle)
    return low / 1000


def _smallest(fits: Callable[[float], bool], start: float) -> float:
    """The smallest ε above ``start`` that fits, to a thousandth; infinite where none up to a million does."""
    low, high = start, start * 2
    while not fits(high):
        low, high = high, high * 2
        if high > 1e6:
            return math.inf
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
