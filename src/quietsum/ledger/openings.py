"""What a new run brings along: declarations that data is public, and the first budgets of datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quietsum.errors import PlanRefused
from quietsum.ledger.accounts import Accounts
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.charges import Charge, Dataset, Terms, budget_to
from quietsum.ledger.pricing import Prices, cost_of
from quietsum.privacy import Budget, PrivacyUnit

__all__ = ["first_budgets", "opening", "public_declarations"]


def opening(
    accounts: Accounts,
    run: str,
    terms: Terms,
    planned: Sequence[Charge],
    datasets: Sequence[Dataset],
    lifetimes: Sequence[Budget],
    rounds: int | None,
    prices: Prices,
) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """What a new run writes before its own entry; raises at the end where the whole plan does not fit.

    ``accounts`` stay as they are: everything is tried on a copy.
    """
    trial = accounts.copy()
    for dataset in public_declarations(trial, datasets):
        yield Kind.PUBLIC, {"party": dataset.party, "dataset": dataset.dataset, "reason": dataset.public}
        trial.declare(dataset.party, dataset.dataset, dataset.public)
    for charge, budget, reason in first_budgets(trial, planned, terms, lifetimes, run):
        place = {"party": charge.party, "dataset": charge.dataset}
        yield Kind.BUDGET, {**place, **budget_to(budget), "reason": reason}
        trial.set_budget(charge.party, charge.dataset, budget)
    trial.check_run(run, terms, planned, datasets)
    trial.check_plan(run, terms, [(c, cost_of(c)) for c in planned], prices, rounds)


def public_declarations(accounts: Accounts, datasets: Iterable[Dataset]) -> list[Dataset]:
    """Datasets that the run declares public and the ledger does not know as such yet; ``accounts`` learn their names.

    Data with a budget is protected; a task alone cannot lift that, its owner can.
    """
    found = []
    for dataset in datasets:
        accounts.check_names(dataset.party, dataset.dataset)
        accounts.know(dataset.party, dataset.dataset)  # so that two parties of one run are held against each other
        if not dataset.public or (dataset.party, dataset.dataset) in accounts.public:
            continue
        books = [accounts.books.get((dataset.party, dataset.dataset, unit)) for unit in PrivacyUnit]
        if any(book is not None and book.budget is not None for book in books):
            raise PlanRefused(
                f"dataset {dataset.dataset!r} of {dataset.party!r} is protected by a budget, and the task says that "
                "it is public; if it really is: quietsum ledger declare-public "
                f"--party {dataset.party} --dataset {dataset.dataset} --reason why"
            )
        found.append(dataset)
    return found


def first_budgets(
    accounts: Accounts, planned: Iterable[Charge], terms: Terms, lifetimes: Sequence[Budget], run: str
) -> Iterator[tuple[Charge, Budget, str]]:
    """The budget of each protected dataset that has none yet: a stated lifetime, else the plan's own limit."""
    for charge in planned:
        book = accounts.books.get((charge.party, charge.dataset, charge.unit))
        public = (charge.party, charge.dataset) in accounts.public
        if public or charge.event is None or (book is not None and book.budget is not None):
            continue
        stated = next((budget for budget in lifetimes if budget.unit is charge.unit), None)
        budget = stated or terms.limit(charge.unit)
        if budget is not None:
            why = "lifetime stated by" if stated else "no lifetime was stated, so the limit of"
            yield charge, budget, f"{why} its first plan, run {run}"
