"""``quietsum plan``: what a run would cost, whom it would ask, and what refuses it, before anything is spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared.options import JsonOption, WorkspaceOption
from quietsum.errors import PlanRefused, printable

if TYPE_CHECKING:
    from rich.table import Table

    from quietsum.ledger import Book, Outlook
    from quietsum.plan import Forecast, Rehearsal, ResolvedPlan
    from quietsum.privacy import Budget, Neighbours
    from quietsum.tasks import Task

__all__ = ["plan"]

SHOWN = 9
"""Rows of the forecast for people."""
PARTIES = 12
"""Rows of the table of parties for people."""
MOST_ROWS = 10_000
"""Programs get a row for every round, unless there are more rounds than this."""


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The plan, a run.toml.")],
    workspace: WorkspaceOption = None,
    card: Annotated[bool, typer.Option("--card", help="Print the guarantee card instead: who learns what.")] = False,
    as_json: JsonOption = False,
) -> None:
    """What a run would cost, round by round, before anything is spent.

    Example: quietsum plan run.toml
    """
    from quietsum.cli.look.ledger import ledger_path
    from quietsum.plan import read_plan, rehearse, resolve
    from quietsum.tasks import refuse_without_root, task_of

    try:
        read = read_plan(file)
        task = task_of(read)
        resolved = resolve(read, task.parties(), task.dimension)
        refuse_without_root(task, resolved)
        answer = rehearse(resolved, ledger_path(workspace))
        if isinstance(answer.refusal, PlanRefused):
            raise answer.refusal
    except PlanRefused as refused:
        _refuse(refused, as_json)
        raise typer.Exit(refused.exit_code) from None
    if card:
        _print_card(resolved, as_json)
    elif as_json:
        _print_values(resolved, task, answer)
    else:
        _show(file, resolved, task, answer)
    if answer.refusal is not None:
        if as_json:
            raise typer.Exit(answer.refusal.exit_code)
        raise answer.refusal
    if not as_json:
        from quietsum.cli.shared.output import print_next

        print_next(["run", file, *([] if workspace is None else ["--workspace", workspace])])


def _print_card(resolved: ResolvedPlan, as_json: bool) -> None:
    from quietsum.cli.shared.output import console, print_json
    from quietsum.plan import card

    found = card(resolved)
    if as_json:
        print_json(found.to_dict())
    else:
        print(found.to_text(min(max(console().width, 60), 120)))


def _refuse(refused: PlanRefused, as_json: bool) -> None:
    """All reasons, one after the other, on stderr or as JSON."""
    import sys
    import textwrap

    from quietsum.cli.shared.output import print_json, text_width

    lines = str(refused).splitlines()
    if as_json:
        told = lines[:-1] if refused.nearest else lines  # the last one says in words what stands under its own key
        near = {"nearest": [dict(keys) for keys in refused.nearest]} if refused.nearest else {}
        print_json({"refusals": [line.strip() for line in told], **near})
        return
    for line in lines:
        indent = "  " if line.startswith(" ") else ""
        text = f"error: {line}" if not indent else line
        wrapped = textwrap.wrap(text.strip(), text_width(), initial_indent=indent, subsequent_indent=f"{indent}  ",
                                break_long_words=False, break_on_hyphens=False)  # fmt: skip
        print("\n".join(wrapped), file=sys.stderr)


# ------------------------------------------------------------------------------------------------- people


def _show(file: Path, resolved: ResolvedPlan, task: Task, answer: Rehearsal) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from quietsum.cli.shared.lifetimes import lifetime_sentences, ungated_sentences
    from quietsum.cli.shared.output import console, layer_lines, print_wide
    from quietsum.cli.train.plan_secure import other_ways
    from quietsum.plan import layers, predict

    screen = console()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    forecast = resolved.forecast(_rounds_shown(resolved.plan.federation.rounds))
    for name, text in _facts(resolved, task, forecast):
        table.add_row(name, Text(text))
    screen.print(Panel(table, title=f"the plan in {file.name}", title_align="left", padding=(0, 1)))
    print_wide(_party_table(resolved, answer.books))
    if resolved.protected:
        print()
        print_wide(_forecast_table(forecast, resolved))
        print()
        _chart(resolved)
        told = predict(resolved)
        for sentence in (
            *_noise_sentences(resolved), *([] if told is None else [told.sentence]), *_kept_sentences(resolved),
            _length_sentence(resolved, task),
        ):  # fmt: skip
            screen.print(Text(sentence))
    screen.print(Text("Layers of defence:"))
    for line in layer_lines([layer.to_dict() for layer in layers(resolved)], min(screen.width, 100)):
        screen.print(Text(line), soft_wrap=True)
    for sentence in other_ways(resolved):
        screen.print(Text(sentence))
    for sentence in (*ungated_sentences(resolved, answer.books), *lifetime_sentences(answer.outlooks)):
        screen.print(Text(sentence))
    for warning in resolved.warnings:
        screen.print(Text(f"warning: {warning}"))
    screen.print(Text("Nothing was spent."))


def _facts(resolved: ResolvedPlan, task: Task, forecast: Forecast) -> list[tuple[str, str]]:
    from quietsum.cli.train.plan_secure import secure_facts
    from quietsum.plan import NO_GUARANTEE

    plan, federation = resolved.plan, resolved.plan.federation
    spare = f" and {federation.spare_attempts} spare attempts" if federation.spare_attempts else ""
    facts = [
        ("task", f"{plan.task.name}: {printable(task.title)}"),
        ("rounds", f"{federation.rounds}{spare}, {len(resolved.parties):,} parties, {resolved.dimension:,} parameters"),
    ]
    facts += _model_lines(resolved, task)
    if federation.sampling.kind != "everyone":
        facts.append(("a round asks", f"{resolved.denominator:g} parties, {_draw(resolved)}"))
    facts += secure_facts(resolved)
    if resolved.robust is not None and resolved.secure is None:  # that between groups stands among the masks
        least = max(resolved.robust.facts.least(resolved.attackers), 1)
        about = f"{resolved.robust.facts.title}, for {resolved.attackers} that may be anything, from {least} updates on"
        facts.append(("rule", about))
    if resolved.remembered:
        about = f"{_large(resolved.remembered)} of single parties, in a file beside each checkpoint for the operator"
        facts.append(("it remembers", about))
    if not resolved.limits:
        return [*facts, ("privacy", NO_GUARANTEE)]
    whole, rounds = forecast.whole[0], resolved.affordable_rounds
    for limit in resolved.limits:
        facts += _promise_lines(limit, resolved, forecast)
    return [
        *facts,
        ("affordable", f"{'any number of' if rounds is None else f'{rounds:,}'} rounds at this noise{_of(resolved)}"),
        ("neighbours", plan.privacy.neighbours.value),
        ("method", whole.method),
    ]  # fmt: skip


def _model_lines(resolved: ResolvedPlan, task: Task) -> list[tuple[str, str]]:
    """What stays at a party, what travels, and the memory of its work."""
    found, lines = task.footprint, []
    if task.base and found is not None:
        stays = f"{found.weights - found.trained:,} weights stay at home (SHA-256 {task.base[:12]}…)"
        lines.append(("base model", f"{stays}, {found.trained:,} are trained and travel"))
    if found is not None:
        batch = max(_expected_batch(resolved, facts.name) for facts in resolved.parties)
        needs = found.sum_needed(batch, private=resolved.protected)
        said = f"about {_large(needs)} beside Python and torch: {_large(found.weight_bytes)} of weights"
        lines.append(("a party's memory", f"{said}, {_large(found.record_bytes)} a record in batches of {batch:,.0f}"))
    return lines


def _expected_batch(resolved: ResolvedPlan, party: str) -> float:
    return resolved.rate_of(party) * resolved.facts_of(party).size


def _draw(resolved: ResolvedPlan) -> str:
    return "drawn at random" if resolved.plan.federation.sampling.size is not None else "each by its own coin"


def _promise_lines(limit: Budget, resolved: ResolvedPlan, forecast: Forecast) -> list[tuple[str, str]]:
    """Noise, promise and cost of one unit; each unit has lines of its own, and they are never added."""
    from quietsum.cli.shared.output import bounds, figure
    from quietsum.privacy import Observer, PrivacyUnit

    privacy = resolved.plan.privacy
    whole = [one for one in forecast.whole if one.unit is limit.unit]
    clients = limit.unit is PrivacyUnit.CLIENT
    mechanism, noise = resolved.mechanism_of(limit.unit), resolved.noise_of(limit.unit)
    assert mechanism is not None and noise is not None
    stated: Any = privacy.client if clients else privacy.record
    how = "as stated" if stated is not None and stated.noise_multiplier is not None else "calibrated"
    if not clients and privacy.preset:
        how = privacy.preset
    label = f", {resolved.label}" if resolved.label else ""
    clip = "clip adapts" if clients and resolved.adaptive else f"clip {mechanism.max_norm:g}"
    lines = []
    if limit.unit is not PrivacyUnit.PERSON:
        lines.append(("noise", f"noise_multiplier {figure(noise)} ({how}), {clip}{label}{_in_shares(resolved, limit)}"))
    lines.append(("promise", f"ε ≤ {figure(limit.epsilon)} per {whole[0].whom} at δ = {limit.delta:g}"))
    worst = "every client's" if clients else "the worst party's"
    if limit.unit is PrivacyUnit.PERSON:  # rule 12
        worst = "within the worst party (who is at two pays at both)"
    if limit.unit is PrivacyUnit.RECORD and privacy.person is not None:
        lines += _bound_lines(privacy.neighbours)
    apart = len({one.epsilon for one in whole}) > 1 or bool(_in_shares(resolved, limit))
    for one in whole if apart else whole[:1]:
        against = f", against {'the ' if one.observer is Observer.SERVER else ''}{one.observer}" if apart else ""
        lines.append(("whole plan", f"{bounds(one)} per {one.whom}, {worst}{against}"))
    if {one.observer for one in whole} == {Observer.RECIPIENTS}:
        lines.append(("against", "recipients of the model; the server sees each clipped update and is trusted"))
    elif _in_shares(resolved, limit):
        lines.append(
            ("against", "the server and recipients of the model alike: the sum is noisy before it is unmasked")
        )
    else:
        lines.append(("against", "the server and recipients of the model alike: noise is added at each party"))
    return lines


def _in_shares(resolved: ResolvedPlan, limit: Budget) -> str:
    """Of what the noise is counted where each party adds a share of it; "" where none does."""
    from quietsum.privacy import PrivacyUnit

    clients = limit.unit is PrivacyUnit.CLIENT
    if resolved.secure is None or (resolved.distributed_unit is PrivacyUnit.CLIENT) is not clients:
        return ""
    if resolved.distributed_unit is None:
        return ""
    kind = resolved.plan.privacy.distributed_noise.replace("-", " ")
    return f"; {kind} shares that make it from {resolved.secure.honest} parties on"


def _bound_lines(neighbours: Neighbours) -> list[tuple[str, str]]:
    """What a record's price rests on where people's records are bounded; a person's rests on none of it."""
    from quietsum.privacy import BOUNDED, Neighbours as Relation

    if neighbours not in BOUNDED:
        return []
    more = "; no person takes the place of one who leaves" if neighbours is Relation.ADD_REMOVE else ""
    return [("a record", BOUNDED[neighbours] + more)]


def _of(resolved: ResolvedPlan) -> str:
    lifetime, limit = resolved.lifetime, resolved.limit
    if lifetime is None or lifetime == limit:
        return ""
    return f", within the lifetime's ε = {lifetime.figure} per {lifetime.unit}"


def _party_table(resolved: ResolvedPlan, books: Sequence[Book]) -> Table:
    from rich.table import Table

    left: dict[tuple[str, str], str] = {}
    for book in books:
        key = (book.party, book.dataset)
        left[key] = f"{left[key]}, {_remaining(book)}" if key in left else _remaining(book)
    lengths = {signal.party: f"{signal.length:.3g}" for signal in resolved.signal()}
    table = Table(box=None, padding=(0, 1, 0, 0))
    for name in ("party", "dataset"):
        table.add_column(name, overflow="ignore", no_wrap=True)
    for name in ("records", "rate", "steps", "noise/clip"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("budget left", overflow="fold")
    for facts in resolved.parties[:PARTIES]:
        key = (facts.account, facts.dataset)
        table.add_row(
            facts.name,
            facts.dataset,
            f"{facts.size:,}",
            f"{resolved.rate_of(facts.name):.3g}",
            f"{resolved.steps_of(facts.name):,}",
            lengths.get(facts.name, "none"),
            left.get(key, "public" if facts.public else "untouched"),
        )
    if len(resolved.parties) > PARTIES:
        table.add_row(f"and {len(resolved.parties) - PARTIES:,} more", *[""] * 6)
    return table


def _remaining(book: Book) -> str:
    if book.budget is None:
        return "public"
    left = 100 * (1 - book.spent_fraction)
    share = "nothing" if left <= 0 else "under 0.1 %" if left < 0.1 else f"{left:.3g} %"
    return f"{share} of ε {book.budget.figure} per {book.unit}"


def _rounds_shown(rounds: int, most: int = SHOWN) -> list[int]:
    """At most so many rounds, evenly spread, the first and the last among them.

    >>> _rounds_shown(20)
    [1, 3, 6, 8, 10, 13, 15, 18, 20]
    >>> _rounds_shown(3)
    [1, 2, 3]
    """
    if rounds <= most:
        return list(range(1, rounds + 1))
    return sorted({round(1 + (rounds - 1) * step / (most - 1)) for step in range(most)})


def _forecast_table(forecast: Forecast, resolved: ResolvedPlan) -> Table:
    from rich.table import Table

    from quietsum.cli.shared.output import figure

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("after round", justify="right")
    for guarantee in forecast.whole:
        table.add_column(f"ε per {guarantee.whom}, {guarantee.observer}", justify="right")
    table.add_column("worst party", overflow="ignore", no_wrap=True)
    profiles = {resolved.profile_of_account(account) for account in resolved.accounts}
    differ = resolved.record_noise is not None and (len(profiles) > 1 or len(resolved.parties) == 1)
    for row in forecast.rows:
        table.add_row(
            f"{row.round:,}", *(figure(one.epsilon) for one in row.guarantees), row.party if differ else "all alike"
        )
    if resolved.plan.federation.spare_attempts:
        table.add_row("with spares", *(figure(one.epsilon) for one in forecast.whole), "")
    return table


def _chart(resolved: ResolvedPlan) -> None:
    """The forecast as a line, where there is a terminal to look at it."""
    import sys

    rounds = resolved.plan.federation.rounds
    if not sys.stdout.isatty() or rounds < 3 or resolved.limit is None:
        return
    from quietsum import charts

    rows = resolved.forecast(_rounds_shown(rounds, 41)).rows
    points = tuple((float(row.round), row.epsilon) for row in rows)
    charts.show(
        charts.Chart(
            title="spent, if the schedule runs as planned",
            x_label="rounds",
            y_label=f"ε per {resolved.limit.unit}",
            series=(charts.Series(label="ε", points=points),),
            limit=("limit", resolved.limit.epsilon),
        ),
        height=8,
    )


def _longest(resolved: ResolvedPlan, task: Task) -> dict[str, float | None]:
    """The length of an update beyond which it is left out of the first round, by party; None without a bound."""
    from quietsum.federation import limits_of
    from quietsum.plan import LARGEST

    names = [facts.name for facts in resolved.parties]
    if resolved.client_mechanism(1) is not None:  # every update is cut to the clip
        return dict.fromkeys(names, None)
    found = limits_of(resolved, 1, 0.0, names, own_steps=not task.follows_orders)
    return {name: limit if limit < LARGEST else None for name, limit in found.items()}


def _length_sentence(resolved: ResolvedPlan, task: Task) -> str:
    """What one site may send, in words."""
    if resolved.secure is not None and resolved.secure.grouping is not None:
        return (
            "What a site may send: the server sees no single update, so none is left out for its length; one bad site "
            "can shift the sum of its group, and the rule may leave that group out."
        )
    if resolved.secure is not None:
        return (
            "What a site may send: the server sees no single update, so none is left out for its length; one bad site "
            "can shift the sum."
        )
    if resolved.client_mechanism(1) is not None:
        return "What a site may send: the server cuts every update to the clip."
    lengths = [limit for limit in _longest(resolved, task).values() if limit is not None]
    if not lengths:
        why = "the task trains by code of its own" if resolved.protected else "nothing is clipped"
        return f"What a site may send: no bound on an update is known, since {why}; one bad site can spoil the model."
    most, least = max(lengths), min(lengths)
    told = f"an update longer than {most:.3g} is left out."
    if f"{most:.3g}" != f"{least:.3g}":
        told = f"an update that is too long is left out; each site has its own limit, {least:.3g} to {most:.3g}."
    return (
        f"What a site may send: {told} An honest update is longer with a chance of 1e-9 at most, by clip, noise, rate "
        "and steps."
    )


def _noise_sentences(resolved: ResolvedPlan) -> list[str]:
    """What the noise does to learning, in words: of records, of clients."""
    found = [_noise_sentence(resolved)] if resolved.record_noise is not None else []
    signal = resolved.client_signal()
    if signal is None:
        return found
    told = (
        f"Noise on the mean of clients: with {signal.expected:.4g} of {signal.parties:,} clients expected in a round, "
        f"the noise is {signal.length:.3g} times as long as the longest mean update can be (the clip)."
    )
    if signal.length > 1:
        told += (
            f" About {signal.needed:,} clients would make them equally long, and a few times as many make it bearable."
        )
    if signal.parties < 20 and signal.length > 1:
        told += (
            f" So few parties cannot hide one of them: to protect what {signal.parties} sites hold, say style = "
            '"sample".'
        )
    return [*found, told]


def _kept_sentences(resolved: ResolvedPlan) -> list[str]:
    """With which records the lines about noise and signal are counted, where a person's are bounded."""
    person = resolved.plan.privacy.person
    if person is None or resolved.record_noise is None:
        return []
    if person.kept < 1:
        return [f"Counted with the {person.kept:.3g} of the declared records that max_records keeps, as declared."]
    return [
        f"Counted with all declared records. max_records = {person.max_records} leaves fewer where people have more, "
        f"and the signal shrinks with them: declare the share that is left, privacy.person.kept = 0.5 say."
    ]


def _noise_sentence(resolved: ResolvedPlan) -> str:
    *parties, together = resolved.signal()
    worst = max(parties, key=lambda signal: signal.length)
    if len(parties) == 1:
        return (
            f"Noise against signal: in one step the noise is {worst.length:.3g} times as long as the longest mean "
            "gradient can be (the clip)."
        )
    return (
        f"Noise against signal: in one step at {worst.party} the noise is {worst.length:.3g} times as long as the "
        f"longest mean gradient can be (the clip); averaged over all parties it is {together.length:.3g} times."
    )


# ---------------------------------------------------------------------------------------------- programs


def _footprint_values(resolved: ResolvedPlan, task: Task) -> dict[str, Any] | None:
    found = task.footprint
    if found is None:
        return None
    batches = {facts.name: _expected_batch(resolved, facts.name) for facts in resolved.parties}
    return {
        "weights": found.weights, "trained": found.trained, "base": task.base, "record_bytes": found.record_bytes,
        "bytes": {name: found.sum_needed(batch, private=resolved.protected) for name, batch in batches.items()},
    }  # fmt: skip


def _print_values(resolved: ResolvedPlan, task: Task, answer: Rehearsal) -> None:
    import dataclasses

    from quietsum.cli.shared.output import print_json
    from quietsum.cli.train.plan_secure import secure_values
    from quietsum.plan import NO_GUARANTEE, layers, predict
    from quietsum.privacy import PrivacyUnit

    forecast = resolved.forecast(_rounds_shown(resolved.plan.federation.rounds, MOST_ROWS))
    signals = {signal.party: signal for signal in resolved.signal()}
    clients, clipped = resolved.client_signal(), resolved.mechanism_of(PrivacyUnit.RECORD)
    longest, told = _longest(resolved, task), predict(resolved)

    def signal(party: str) -> dict[str, float] | None:
        found = signals.get(party)
        return None if found is None else {"coordinate": found.coordinate, "length": found.length}

    values: dict[str, Any] = {
        "plan": resolved.plan.to_dict(),
        "digest": resolved.plan.digest,
        "task": {"name": resolved.plan.task.name, "title": task.title, "dimension": resolved.dimension},
        "footprint": _footprint_values(resolved, task),
        "parties": [
            {
                **dataclasses.asdict(facts),
                "sample_rate": resolved.rate_of(facts.name),
                "steps_per_round": resolved.steps_of(facts.name),
                "noise_against_signal": signal(facts.name),
                "longest_update": longest[facts.name],
            }
            for facts in resolved.parties
        ],
        "privacy": "differential privacy" if resolved.protected else NO_GUARANTEE,
        "noise_multiplier": resolved.noise_multiplier,
        "max_grad_norm": None if clipped is None else clipped.max_norm,
        "client_noise_multiplier": resolved.client_noise,
        "secure": secure_values(resolved),
        "robust": _robust_values(resolved),
        "layers": [layer.to_dict() for layer in layers(resolved)],
        "client_noise_against_signal": None if clients is None else dataclasses.asdict(clients),
        "delta": resolved.delta,
        "limit": _budget(resolved.limit),
        "limits": [_budget(limit) for limit in resolved.limits],
        "lifetime": _budget(resolved.lifetime),
        "rounds": [
            {
                "round": row.round,
                "party": row.party,
                "guarantees": [{**one.to_dict(), "whom": one.whom} for one in row.guarantees],
            }
            for row in forecast.rows
        ],
        "whole_plan": [{**one.to_dict(), "whom": one.whom} for one in forecast.whole],
        "affordable_rounds": resolved.affordable_rounds,
        "noise_against_signal": signal(""),
        "learnable": None if told is None else dataclasses.asdict(told),
        "books": [_book(book) for book in answer.books],
        "lifetimes": [_outlook(one) for one in answer.outlooks],
        "budget_exhausted": None if answer.refusal is None else str(answer.refusal),
        "warnings": list(resolved.warnings),
        "refusals": [],
    }
    print_json(values)


def _large(count: int) -> str:
    """A number of bytes, for people."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _robust_values(resolved: ResolvedPlan) -> dict[str, Any] | None:
    """The robust rule, what it is made for and what it sees through the noise; None for the mean."""
    from quietsum.plan import run_ends, sight

    rule = resolved.robust
    if rule is None:
        return None
    short, ends = run_ends(resolved.plan, resolved.parties)
    seen = sight(resolved)
    return {
        "rule": rule.name,
        "attackers": resolved.attackers,
        "least": max(rule.facts.least(resolved.attackers), 1) if resolved.secure is None else None,
        "breakdown": rule.facts.breakdown,
        "limits": rule.facts.limits,
        "bytes_of_parties": resolved.remembered,
        "short_round": short,
        "ends_early": ends,
        "noise": None if seen is None else seen.to_dict(),
    }


def _budget(budget: Any) -> dict[str, Any] | None:
    return None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta, "unit": budget.unit.value}


def _outlook(one: Outlook) -> dict[str, Any]:
    """What the plan leaves of a lifetime: ``room`` is the share that later plans may use."""
    return {
        "party": one.party, "dataset": one.dataset, "budget": _budget(one.budget), "fixed_by_this_plan": one.fixes,
        "stated": one.stated, "room": one.room,
    }  # fmt: skip


def _book(book: Book) -> dict[str, Any]:
    return {
        "party": book.party,
        "dataset": book.dataset,
        "unit": book.unit.value,
        "budget": _budget(book.budget),
        "spent_fraction": book.spent_fraction,
        "plans": book.plans,
        "guarantee": None if book.guarantee is None else book.guarantee.to_dict(),
    }
