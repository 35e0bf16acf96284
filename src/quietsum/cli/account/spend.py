"""``quietsum spend``: what a run has cost, or will cost."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.account.events import charge_of, check_group, choose_neighbours, mechanism_event
from quietsum.cli.account.pricing import Priced, account
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import bounds, console, facts, figure, meaning, print_json, print_next, renyi_line
from quietsum.errors import InvalidParameter
from quietsum.privacy import Neighbours, PrivacyUnit
from quietsum.validate import open_probability

if TYPE_CHECKING:
    from rich.console import Console

    from quietsum.cli.account.history_files import RoundRow

__all__ = ["spend"]

HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--history",
        metavar="FILE",
        help="Rounds as CSV or JSON instead of the options above; - is stdin.",
        show_default=False,
    ),
]


def spend(
    delta: opt.DeltaOption,
    noise_multiplier: opt.NoiseOption = None,
    sample_rate: opt.RateOption = None,
    steps: opt.StepsOption = None,
    sampling: opt.SamplingOption = None,
    mechanism: opt.MechanismOption = opt.Mechanism.GAUSSIAN,
    keep_probability: opt.KeepOption = None,
    step_epsilon: opt.StepEpsilonOption = None,
    group: opt.GroupOption = 1,
    neighbours: opt.NeighboursOption = None,
    history: HistoryOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """What a run costs: ε from both sides, per record, person or client.

    Example: quietsum spend -s 1 -q 0.01 -T 10000 -d 1e-5

    A history has the columns noise_multiplier, sample_rate and steps, if needed
    also round, party, level (sample or user), mechanism and sampling. Parties
    hold disjoint records, so the worst party counts.
    """
    open_probability("delta", delta)
    check_group(group)
    single: dict[str, object] = {
        "noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps, "sampling": sampling,
        "keep_probability": keep_probability, "step_epsilon": step_epsilon,
    }  # fmt: skip
    if history is not None:
        single["mechanism"] = None if mechanism is opt.Mechanism.GAUSSIAN else mechanism
        for name, value in single.items():
            if value is not None:
                raise InvalidParameter(name, str(value), "stands beside --history", "the file's rows say it")
        _spend_history(history, delta, neighbours, group, as_json)
        return
    how = sampling or opt.Sampling.POISSON
    event = mechanism_event(
        mechanism, noise_multiplier=noise_multiplier, keep_probability=keep_probability, step_epsilon=step_epsilon
    )
    charge = charge_of(event, how, sample_rate, steps)
    relation = choose_neighbours(neighbours, [how])
    answer = account([charge], delta=delta, neighbours=relation, group=group)
    if as_json:
        print_json(_values(answer))
        return
    _show(console(), answer, "what this run costs")
    print_next(_suggestion(answer, mechanism, how, noise_multiplier, sample_rate, steps))


def _values(answer: Priced) -> dict[str, Any]:
    """A guarantee as JSON, with the Rényi bound beside it."""
    values = answer.guarantee.to_dict()
    renyi = answer.renyi
    return {**values, "renyi_epsilon": renyi and renyi.epsilon, "renyi_order": renyi and renyi.order}


def _show(screen: Console, answer: Priced, title: str, explained: bool = True) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    guarantee = answer.guarantee
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    headline = Text(bounds(guarantee), style="bold")
    headline.append(f" at δ = {guarantee.delta:g}")
    table.add_row("exact" if guarantee.order is None else "Rényi", headline)
    if guarantee.order is None:
        table.add_row("Rényi", Text(renyi_line(guarantee, answer.renyi)))
    for name, text in facts(guarantee):
        table.add_row(name, Text(text))
    if explained:
        table.add_row("meaning", Text(meaning(guarantee, answer.accountant)))
    for warning in guarantee.warnings:
        table.add_row(Text("warning", style="yellow"), Text(warning))
    screen.print(Panel(table, title=title, title_align="left", padding=(0, 1)))


def _suggestion(
    answer: Priced,
    mechanism: opt.Mechanism,
    sampling: opt.Sampling,
    noise_multiplier: float | None,
    sample_rate: float | None,
    steps: int | None,
) -> list[object]:
    """A smaller ε when this one is large, the whole curve otherwise."""
    if mechanism is not opt.Mechanism.GAUSSIAN or answer.guarantee.group_size > 1 or sampling is opt.Sampling.SHUFFLED:
        return ["explain", "group privacy" if answer.guarantee.group_size > 1 else "composition"]
    rate = ["--sampling", "none"] if sampling is opt.Sampling.NONE else ["--sample-rate", f"{sample_rate:g}"]
    if sampling is opt.Sampling.FIXED:
        rate += ["--sampling", "fixed"]
    run = [*rate, "--steps", steps, "--delta", f"{answer.guarantee.delta:g}"]
    for target in (8, 3, 1):
        if answer.guarantee.epsilon > target:
            return ["calibrate", "--epsilon", target, *run]
    return ["curve", "--noise-multiplier", f"{noise_multiplier:g}", *run]


# ------------------------------------------------------------------------------------------ histories


def _spend_history(path: str, delta: float, neighbours: Neighbours | None, group: int, as_json: bool) -> None:
    from quietsum.cli.account.history_files import read_rounds

    rounds = read_rounds(path)
    rows = rounds.rows
    relation = choose_neighbours(
        neighbours or rounds.neighbours, [row.sampling for row in rows if row.sampling is not None]
    )
    by_level = {level: [row for row in rows if row.level == level] for level in ("sample", "user")}
    if group > 1 and not by_level["sample"]:
        raise InvalidParameter("group", group, "speaks of records, the history of clients only", "leave it out")
    answers: list[tuple[Priced, dict[str, Priced]]] = []
    if by_level["sample"]:
        answers.append(_records(by_level["sample"], delta, relation, group))
    if by_level["user"]:
        charges = [row.charge for row in by_level["user"]]
        answers.append((account(charges, delta=delta, neighbours=relation, unit=PrivacyUnit.CLIENT), {}))
    if as_json:
        objects = [
            _values(answer) | ({"parties": _party_values(parties)} if parties else {}) for answer, parties in answers
        ]
        print_json(objects[0] if len(objects) == 1 else {"guarantees": objects})
        return
    screen = console()
    for answer, parties in answers:
        count = len(by_level["user" if answer.guarantee.unit is PrivacyUnit.CLIENT else "sample"])
        _show(screen, answer, f"what {count} row{'s' if count > 1 else ''} cost per {answer.guarantee.whom}")
        if parties:
            _show_parties(screen, parties)
    if len(answers) == 2:
        screen.print("Two guarantees about different units: a list, never a sum.")
    print_next(["explain", "hybrid" if len(answers) == 2 else "party" if answers[0][1] else "composition"])


def _records(
    rows: list[RoundRow], delta: float, neighbours: Neighbours, group: int
) -> tuple[Priced, dict[str, Priced]]:
    """The worst party's answer, and everyone's. A row without a party touched the records of all."""
    names = sorted({row.party for row in rows if row.party is not None})
    parties = {
        name: account(
            [row.charge for row in rows if row.party in (None, name)], delta=delta, neighbours=neighbours, group=group
        )
        for name in names
    }
    if not parties:
        return account([row.charge for row in rows], delta=delta, neighbours=neighbours, group=group), {}
    worst = max(parties.values(), key=lambda answer: answer.guarantee.epsilon)
    lower = max(answer.guarantee.epsilon_lower for answer in parties.values())
    warnings = worst.guarantee.warnings
    if group > 1 and len(parties) > 1:
        warnings += ("this holds for a person with records at one party only; at several, compose their rows",)
    guarantee = dataclasses.replace(worst.guarantee, epsilon_lower=lower, warnings=warnings)
    known = [answer.renyi for answer in parties.values()]
    renyi = None if None in known else max((bound for bound in known if bound), key=lambda bound: bound.epsilon)
    return Priced(guarantee=guarantee, renyi=renyi, accountant=worst.accountant), parties


def _party_values(parties: dict[str, Priced]) -> list[dict[str, Any]]:
    keys = ("epsilon", "epsilon_lower", "renyi_epsilon", "renyi_order", "method")
    return [{"party": name} | {key: _values(answer)[key] for key in keys} for name, answer in parties.items()]


def _show_parties(screen: Console, parties: dict[str, Priced]) -> None:
    from rich.table import Table
    from rich.text import Text

    worst = max(answer.guarantee.epsilon for answer in parties.values())
    table = Table("party", "ε at most", "ε at least", "Rényi", "", box=None, padding=(0, 2), header_style="dim")
    for column in table.columns[1:4]:
        column.justify = "right"
    for name, answer in sorted(parties.items(), key=lambda item: -item[1].guarantee.epsilon):
        guarantee, renyi = answer.guarantee, answer.renyi
        table.add_row(
            Text(name), figure(guarantee.epsilon), f"{guarantee.epsilon_lower:.4f}",
            figure(renyi.epsilon) if renyi else "–", "the worst, so the run's" if guarantee.epsilon == worst else "",
        )  # fmt: skip
    screen.print(table)
