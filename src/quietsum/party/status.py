"""What a site has spent, for whom and when: read from its own ledger, nothing else is asked.

With one run, what was spent is an ε. With several, a Rényi filter holds the whole lifetime, because each run may have
been chosen after the results of the one before: what is bounded then is all of them together, by the budget itself, and
what was used is a share of the filter, which is no ε (Feldman, Zrnic 2021). ``held_by`` says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quietsum.ledger import Kind, Ledger, exceeds
from quietsum.privacy import Observer

if TYPE_CHECKING:
    from quietsum.ledger import Book
    from quietsum.party.policy import Policy, UnitPolicy
    from quietsum.privacy import Budget, PrivacyUnit

__all__ = ["FILTER", "NOTHING", "NO_GATE", "ONE_RUN", "OVERDRAWN", "status_of"]

NOTHING, ONE_RUN, FILTER = "nothing spent", "one run", "filter"
"""How a site's account stands while its budget holds: untouched, under one plan, or under a filter over several."""
OVERDRAWN, NO_GATE = "overdrawn", "no gate"
"""How an account stands that no budget holds: more is spent than it allows, or its data is public."""
"""What ``held_by`` may be: nothing has been spent; one run, bounded by its own ε; several, held by the filter; more was
spent than the budget, while the data was public; the ledger still calls the data public and counts nothing."""


def status_of(policy: Policy, ledger: Ledger) -> dict[str, Any]:
    """Budgets by unit, runs with their coordinators, and the heads that were exchanged, as plain values.

    Guarantees: a budget is the book of this site alone. ``bound_epsilon`` bounds everything charged so far
    (infinite where no bound holds), between ``neighbours`` and against every one of ``observers``. ``spent_epsilon`` is
    the same where it is also what was spent, and None where only a share of the filter is known.
    """
    return {
        "site": policy.name,
        "dataset": {"name": policy.dataset.name, "size": policy.dataset.size, "public": policy.dataset.public},
        "ledger": ledger.identity.ledger,
        "head": ledger.head.to_dict(),
        "budgets": _budgets(policy, ledger),
        "secure": policy.rules.to_dict(),
        "draws": _draws(policy, ledger),
        "runs": _runs(policy, ledger),
        "warnings": list(_warnings(policy, ledger)),
    }


def _draws(policy: Policy, ledger: Ledger) -> dict[str, int]:
    """In how many sessions groups were drawn over the dataset's life, and how many of them led to a charge."""
    found = ledger.drawing_sessions(policy.name, policy.dataset.name).values()
    return {"sessions": sum(sessions for sessions, _ in found), "charged": sum(charged for _, charged in found)}


def _budgets(policy: Policy, ledger: Ledger) -> list[dict[str, Any]]:
    books = {book.unit: book for book in _books(policy, ledger) if book.party == policy.name}
    watched = _observers(policy, ledger)
    return [
        _budget(unit, allowed, books.get(unit), watched.get(unit.value, list(policy.observers(unit))))
        for unit, allowed in policy.budgets.items()
    ]


def _budget(unit: PrivacyUnit, allowed: UnitPolicy, book: Book | None, observers: list[Observer]) -> dict[str, Any]:
    budget = allowed.lifetime(unit) if book is None or book.budget is None else book.budget
    held = _find_gate(book, budget)
    guarantee = None if book is None else book.guarantee
    bound = None if held == NO_GATE else 0.0 if guarantee is None else guarantee.epsilon
    return {
        "unit": unit.value,
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "spent_epsilon": None if held == FILTER else bound,
        "spent_fraction": None if held == NO_GATE else 0.0 if book is None else book.spent_fraction,
        "plans": 0 if book is None else book.plans,
        "held_by": held,
        "bound_epsilon": bound,
        "neighbours": None if guarantee is None or held == NOTHING else guarantee.neighbours.value,
        "observers": [observer.value for observer in observers],
    }


def _find_gate(book: Book | None, budget: Budget) -> str:
    if book is None:
        return NOTHING
    if book.guarantee is None:
        return NO_GATE
    if exceeds(book.guarantee.epsilon, budget.epsilon):
        return OVERDRAWN
    if book.guarantee.method == "Rényi filter":
        return FILTER
    return ONE_RUN if book.guarantee.epsilon > 0 else NOTHING


def _books(policy: Policy, ledger: Ledger) -> list[Book]:
    """The dataset's books, under every name of the site."""
    return [book for book in ledger.lifetime() if book.dataset == policy.dataset.name]


def _observers(policy: Policy, ledger: Ledger) -> dict[str, list[Observer]]:
    """Against whom every run so far has protected each unit of this site's dataset."""
    found: dict[str, list[Observer]] = {}
    for entry in ledger.entries():
        if entry.kind is Kind.RUN:
            for one in entry.body["planned"]:
                if (one["party"], one["dataset"]) == (policy.name, policy.dataset.name):
                    before = found.get(one["unit"], list(Observer))
                    found[one["unit"]] = [observer for observer in before if observer.value in one["observers"]]
    return found


def _runs(policy: Policy, ledger: Ledger) -> list[dict[str, Any]]:
    """Each run with its coordinator, under which names it was enrolled, the rounds that were answered, and when."""
    found: dict[str, dict[str, Any]] = {}
    watched: dict[tuple[str, str, str], list[str]] = {}
    for entry in ledger.entries():
        name = str(entry.body.get("run"))
        if entry.kind is Kind.RUN:
            plan, names = entry.body["plan"], {one["party"]: one["dataset"] for one in entry.body["datasets"]}
            party = policy.name if policy.name in names else next(iter(names), "")
            for one in entry.body["planned"]:
                watched[name, one["party"], one["unit"]] = list(one["observers"])
            found[name] = {
                "run": plan.get("run", name),
                "coordinator": plan.get("coordinator", ""),
                "task": plan.get("resolved", {}).get("plan", {}).get("task", {}).get("name", ""),
                "party": party,
                "dataset": names.get(party, ""),
                "enrolled": entry.time,
                "last": entry.time,
                "reserved": 0,
                "committed": 0,
            }
        elif name in found and entry.kind in (Kind.RESERVE, Kind.COMMIT):
            run = found[name]
            run["last"] = entry.time
            if entry.body["round"] > 0:
                run["reserved" if entry.kind is Kind.RESERVE else "committed"] += 1
    for name, run in found.items():
        run["spent"] = [
            {
                "unit": unit.value,
                "epsilon": guarantee.epsilon,
                "delta": guarantee.delta,
                "neighbours": guarantee.neighbours.value,
                "observers": watched[name, party, unit.value],
            }
            for (party, unit), guarantee in ledger.spending_by_party(name).items()
            if party == run["party"]
        ]
    return list(found.values())


def _warnings(policy: Policy, ledger: Ledger) -> Iterator[str]:
    """Where policy and ledger say different things about a lifetime."""
    if policy.budgets and (policy.name, policy.dataset.name) in ledger.public_datasets():
        yield (
            "the ledger still calls the dataset public; the next quietsum party serve sets the policy's budgets, and "
            "what was released before counts"
        )
    books = _books(policy, ledger)
    for name in dict.fromkeys(book.party for book in books if book.party != policy.name):
        yield (
            f"the ledger keeps dataset {policy.dataset.name!r} under the name {name!r}, and this site is called "
            f"{policy.name!r}: every plan is refused until it bears that name again"
        )
    for book in books:
        allowed = policy.budgets.get(book.unit)
        if book.party == policy.name and book.budget is not None and allowed is not None:
            yield from _about(book, book.budget, allowed)


def _about(book: Book, budget: Budget, allowed: UnitPolicy) -> Iterator[str]:
    unit = book.unit
    if allowed.epsilon > budget.epsilon:
        yield (
            f"the policy allows ε = {allowed.epsilon:g} per {unit}; the ledger's ε = {budget.epsilon:g} per {unit} "
            "counts, raise it with quietsum ledger raise"
        )
    if allowed.epsilon < budget.epsilon or allowed.delta != budget.delta:
        yield (
            f"the ledger's lifetime of ε = {budget.epsilon:g} per {unit} at δ = {budget.delta:g} is not the policy's "
            f"ε = {allowed.epsilon:g} per {unit} at δ = {allowed.delta:g}: every plan is refused"
        )
    if (
        book.guarantee is not None
        and book.guarantee.epsilon > 0
        and book.guarantee.neighbours not in allowed.neighbours
    ):
        yield (
            f"what was spent per {unit} is counted between {book.guarantee.neighbours} neighbours, the policy wants "
            f"{' or '.join(allowed.neighbours)}, and the two cannot be added up: every plan is refused"
        )
