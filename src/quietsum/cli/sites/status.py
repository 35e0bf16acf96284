"""How a site's policy and what it has spent are printed: which figure counts, what share is used, and against whom."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quietsum.cli.shared.output import figure, print_rows, text_width
from quietsum.privacy import Neighbours, Observer

if TYPE_CHECKING:
    from quietsum.ledger import Ledger
    from quietsum.party import Policy
    from quietsum.privacy import Budget, PrivacyUnit

__all__ = ["bound", "introduce", "lifetimes_of", "print_budgets", "print_runs", "spent_share"]


def lifetimes_of(policy: Policy, ledger: Ledger) -> dict[PrivacyUnit, Budget]:
    """The budgets that the ledger keeps for this site's dataset; none while it calls the dataset public."""
    mine = (policy.name, policy.dataset.name)
    if mine in ledger.public_datasets():
        return {}
    return {unit: budget for (*whose, unit), budget in ledger.budgets().items() if tuple(whose) == mine}


def introduce(policy: Policy, kept: Mapping[PrivacyUnit, Budget]) -> None:
    """The policy in words. ``kept`` are the ledger's lifetimes, which count; both are printed where they differ."""
    data = policy.dataset
    print(textwrap.fill(f"{policy.name}: dataset {data.name}, {data.size:,} records (declared)", text_width()))
    if data.public:
        print(textwrap.fill(f"no record in it is protected: {data.public}", text_width()))
    for unit, allowed in policy.budgets.items():
        counts = kept.get(unit) or allowed.lifetime(unit)
        one = min(allowed.of_a_run, counts.epsilon)
        print(f"  per {unit}: ε ≤ {counts.epsilon:g} over all runs at δ = {counts.delta:g}, ≤ {one:g} in one")
        if (counts.epsilon, counts.delta) != (allowed.epsilon, allowed.delta):
            said = f"the policy says ε ≤ {allowed.epsilon:g} per {unit} at δ = {allowed.delta:g}"
            indent = "    "
            print(textwrap.fill(f"{indent}by the ledger, which counts; {said}", text_width(), subsequent_indent=indent))
        if len(allowed.neighbours) < len(Neighbours):
            print(f"    between {' or '.join(allowed.neighbours)} neighbours")
        if Observer.SERVER not in policy.observers(unit):
            print("    against recipients of the model only: by noisy-sum the server sees updates")
    known = ", ".join(task.name for task in policy.tasks) or "none"
    print(textwrap.fill(f"  tasks: {known}", text_width(), subsequent_indent="    "))
    if (asked := policy.questions) is not None:
        columns = ", ".join(column.name for column in asked.columns if column.kind != "identifier") or "no column"
        told = f"questions ({', '.join(asked.kinds)}) about {columns}: ε ≤ {asked.epsilon:g} per record for one file"
        print(textwrap.fill(f"  {told}, {asked.day:g} a day", text_width(), subsequent_indent="    "))
    print(textwrap.fill(f"  {policy.rules.demands}", text_width(), subsequent_indent="    "))
    print(textwrap.fill(f"  {policy.rules.accepted}", text_width(), subsequent_indent="    "))
    trusted = "amplified by the server's draw" if policy.rules.trust_server_sampling else "without amplification"
    if "client" in policy.budgets:
        print(f"  the site as a whole is charged {trusted}")


def print_budgets(values: dict[str, Any]) -> None:
    """What was spent of each lifetime, and what holds."""
    from rich.table import Table

    if not values["budgets"]:
        return
    table = Table(box=None, pad_edge=False, title="spent over all runs", title_justify="left")
    for name in ("lifetime budget", "spent", "plans"):
        table.add_column(name, justify="right" if name == "plans" else "left")
    for line in values["budgets"]:
        budget = f"ε {line['epsilon']:g} per {line['unit']}, δ {line['delta']:g}"
        table.add_row(budget, spent_share(line), str(line["plans"]))
    print()
    print_rows(table)
    for line in values["budgets"]:
        if told := bound(line):
            print(textwrap.fill(told, text_width()))


def print_draws(values: dict[str, Any]) -> None:
    """How often random groups were drawn, where they were."""
    found = values["draws"]
    if found["sessions"]:
        told = f"random groups were drawn in {found['sessions']:,} sessions, {found['charged']:,} of them charged"
        print(textwrap.fill(told, text_width()))


def spent_share(line: dict[str, Any]) -> str:
    """What was spent, in the words of ``quietsum ledger show``."""
    from quietsum.party import FILTER, NO_GATE, NOTHING, OVERDRAWN

    words = {NOTHING: "nothing", NO_GATE: "no gate", OVERDRAWN: "more than it"}
    filtered = " (filter)" if line["held_by"] == FILTER else ""
    return words.get(line["held_by"]) or f"{_percent(line['spent_fraction'])}{filtered}"


def _percent(share: float) -> str:
    return "under 0.1 %" if share < 0.0005 else f"{100 * share:.1f} %"


def bound(line: dict[str, Any]) -> str:
    """What holds, between which neighbours and against whom; for several runs, that their share is no ε."""
    from quietsum.party import FILTER, ONE_RUN, OVERDRAWN

    held, unit = line["held_by"], line["unit"]
    if held == OVERDRAWN:
        return f"the budget per {unit} does not hold: the dataset was used beyond it while it was declared public"
    if held not in (ONE_RUN, FILTER):
        return ""
    scope = f"per {unit} at δ = {line['delta']:g}, between {line['neighbours']} neighbours, {_against(line)}"
    if held == ONE_RUN:
        return f"so far ε ≤ {figure(line['bound_epsilon'])} {scope}"
    return (
        f"all runs together ε ≤ {line['bound_epsilon']:g} {scope}. A filter lets no run exceed that; "
        f"{_percent(line['spent_fraction'])} of it is used, which is a share of the filter and no ε"
    )


def _against(line: dict[str, Any]) -> str:
    trusted = "server" not in line["observers"]
    return "against " + ("recipients of the model only" if trusted else "the server and recipients of the model")


def print_runs(values: dict[str, Any]) -> None:
    """Each run: for whom, when, how often the data was paid for, and what it cost."""
    from rich.table import Table

    if not values["runs"]:
        print("\nno run has been enrolled in yet")
        return
    table = Table(box=None, pad_edge=False, title="runs", title_justify="left")
    for name in ("run", "for", "since", "last", "asked", "left"):
        table.add_column(name, justify="right" if name in ("asked", "left") else "left", overflow="fold")
    for line in values["runs"]:
        since, last = (line[name][:16].replace("T", " ") for name in ("enrolled", "last"))
        table.add_row(line["run"], line["coordinator"][:12], since, last, str(line["reserved"]), str(line["committed"]))
    print()
    print_rows(table)
    for line in values["runs"]:
        for spent in line["spent"]:
            text = f"{line['run']}: ε = {figure(spent['epsilon'])} per {spent['unit']} at δ = {spent['delta']:g}"
            here = (values["site"], values["dataset"]["name"]) == (line["party"], line["dataset"])
            where = "" if here else f", as {line['party']} with dataset {line['dataset']}"
            against = "" if "server" in spent["observers"] else f", {_against(spent)}"
            print(textwrap.fill(f"{text}{against}{where}", text_width()))
