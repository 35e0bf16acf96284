"""What a site has spent, for whom and when: read from its own ledger, nothing else is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quietsum.ledger import Kind, Ledger

if TYPE_CHECKING:
    from quietsum.party.policy import Policy

__all__ = ["status_of"]


def status_of(policy: Policy, ledger: Ledger) -> dict[str, Any]:
    """Budgets by unit, runs with their coordinators, and the heads that were exchanged, as plain values."""
    return {
        "site": policy.name,
        "dataset": {"name": policy.dataset.name, "size": policy.dataset.size, "public": policy.dataset.public},
        "ledger": ledger.identity.ledger,
        "head": ledger.head.to_dict(),
        "budgets": _budgets(policy, ledger),
        "runs": _runs(ledger),
        "warnings": list(_warnings(policy, ledger)),
    }


def _budgets(policy: Policy, ledger: Ledger) -> list[dict[str, Any]]:
    books = {book.unit: book for book in ledger.lifetime() if book.dataset == policy.dataset.name}
    found = []
    for unit, allowed in policy.budgets.items():
        book = books.get(unit)
        guarantee = None if book is None else book.guarantee
        budget = allowed.lifetime(unit) if book is None or book.budget is None else book.budget
        found.append({
            "unit": unit.value,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "spent_epsilon": 0.0 if guarantee is None else guarantee.epsilon,
            "spent_fraction": 0.0 if book is None else book.spent_fraction,
            "plans": 0 if book is None else book.plans,
        })  # fmt: skip
    return found


def _runs(ledger: Ledger) -> list[dict[str, Any]]:
    """Each run with its coordinator, the rounds that were answered, and when."""
    found: dict[str, dict[str, Any]] = {}
    for entry in ledger.entries():
        name = entry.body.get("run")
        if entry.kind is Kind.RUN:
            plan = entry.body["plan"]
            found[str(name)] = {
                "run": plan.get("run", name),
                "coordinator": plan.get("coordinator", ""),
                "task": plan.get("resolved", {}).get("plan", {}).get("task", {}).get("name", ""),
                "enrolled": entry.time,
                "last": entry.time,
                "reserved": 0,
                "committed": 0,
            }
        elif name in found and entry.kind in (Kind.RESERVE, Kind.COMMIT):
            run = found[str(name)]
            run["last"] = entry.time
            if entry.body["round"] > 0:
                run["reserved" if entry.kind is Kind.RESERVE else "committed"] += 1
    for name, run in found.items():
        run["spent"] = [
            {"unit": unit.value, "epsilon": guarantee.epsilon, "delta": guarantee.delta}
            for (_, unit), guarantee in ledger.spent_by_party(name).items()
        ]
    return list(found.values())


def _warnings(policy: Policy, ledger: Ledger) -> list[str]:
    """Where policy and ledger say different things about a lifetime."""
    told = []
    if policy.budgets and (policy.name, policy.dataset.name) in ledger.declared_public():
        told.append(
            "the ledger still calls the dataset public; the next quietsum party serve sets the policy's budgets, and "
            "what was released before counts"
        )
    for book in ledger.lifetime():
        allowed = policy.budgets.get(book.unit)
        if book.dataset != policy.dataset.name or book.budget is None or allowed is None:
            continue
        if allowed.epsilon > book.budget.epsilon:
            told.append(
                f"the policy allows ε = {allowed.epsilon:g} per {book.unit}; the ledger's ε = {book.budget.epsilon:g} "
                f"per {book.unit} counts, raise it with quietsum ledger raise"
            )
        if allowed.epsilon < book.budget.epsilon or allowed.delta != book.budget.delta:
            told.append(
                f"the ledger's lifetime of ε = {book.budget.epsilon:g} per {book.unit} at δ = {book.budget.delta:g} is "
                f"not the policy's ε = {allowed.epsilon:g} per {book.unit} at δ = {allowed.delta:g}: every plan is "
                "refused"
            )
    return told
