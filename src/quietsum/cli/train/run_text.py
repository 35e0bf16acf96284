"""What ``quietsum run`` prints before its first round and after its last one."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quietsum.cli.shared.output import command, print_json, print_next, text_width
from quietsum.errors import CorruptState

if TYPE_CHECKING:
    from pathlib import Path

    from quietsum.plan import Rehearsal, ResolvedPlan
    from quietsum.running import Run
    from quietsum.runs import RunFolder, Workspace

__all__ = ["print_end", "print_interruption", "print_introduction"]


def print_introduction(resolved: ResolvedPlan, title: str, answer: Rehearsal) -> None:
    """Print whose data, how many rounds, the budget, its noise and the lifetimes, before anything is charged."""
    from quietsum.cli.shared.lifetimes import lifetime_sentences, ungated_sentences
    from quietsum.plan import NO_GUARANTEE

    plan, limits = resolved.plan, resolved.limits
    count = len(resolved.parties)
    names = ", ".join(party.name for party in resolved.parties) if count <= 12 else f"{count:,} parties"
    print(textwrap.fill(f"{title}: {names}; {plan.federation.rounds} rounds", text_width()))
    if not limits:
        print(f"{NO_GUARANTEE}: the plan's style is none")
    for limit in limits:
        label = f", {resolved.label}" if resolved.label else ""
        budget = f"budget ε = {limit.figure} per {limit.unit} at δ = {limit.delta:g}"
        print(textwrap.fill(f"{budget}; noise multiplier {resolved.noise_of(limit.unit):.4g}{label}", text_width()))
    if resolved.secure is not None:
        chosen = resolved.secure.parameters
        text = (
            f"masked: the server sees {resolved.secure.sums} a round, of {resolved.secure.floor} parties or more; "
            f"{chosen.threshold} of {chosen.holders} must collude to unmask one update"
        )
        print(textwrap.fill(text, text_width()))
    reasons = dict.fromkeys(party.public for party in resolved.parties if party.public)
    for reason in reasons:
        text = f"No lifetime budget is used: {reason}. Run it as often as you like."
        print(textwrap.fill(text, text_width()))
    for sentence in (*ungated_sentences(resolved, answer.books), *lifetime_sentences(answer.outlooks)):
        print(textwrap.fill(sentence, text_width()))
    for warning in resolved.warnings:
        print(textwrap.fill(f"warning: {warning}", text_width()))
    print()


def print_interruption(folder: RunFolder | None, where: list[str], as_json: bool, again: list[str]) -> None:
    """Print what an interruption leaves: a run that goes on, and its charges."""
    if folder is None:
        print("stopped before the run began; nothing was charged", file=sys.stderr)
        return
    text = f"stopped: run {folder.run} is kept as its last finished round left it; what was charged stays charged"
    print(textwrap.fill(text, text_width()), file=sys.stderr, flush=True)
    if not as_json:
        print_next(["run", "--resume", folder.run, *again, *where])


def print_end(done: Run, place: Workspace, where: list[str], as_json: bool, again: list[str]) -> int:
    """Print the report's sentences and the next command, or one object with ``as_json``; returns the exit code."""
    values, code = done.report, 0 if done.error is None else done.error.exit_code
    if as_json:
        print_json({"event": "result", "exit_code": code, **values}, indent=None)
        return code
    print()
    for sentence in values["sentences"]:
        print(textwrap.fill(sentence, text_width()), end="\n\n")
    for warning in values["warnings"]:
        print(textwrap.fill(f"warning: {warning}", text_width()), end="\n\n")
    _print_scores(values)
    print(f"wrote {done.path / 'report.html'}")
    _print_alerts(done, place, where)
    _print_rejections(done.path / "run.db")
    if done.error is None:
        print_next(["show", done.name, *where])
        return code
    print(textwrap.fill(f"stopped after round {done.rounds}: {done.error}", text_width()), file=sys.stderr)
    if done.outcome == "budget":
        print_next(["ledger", "show", *where])
    else:
        print_next(["run", "--resume", done.name, *again, *where])
    return code


def _print_alerts(done: Run, place: Workspace, where: list[str]) -> None:
    """How many there were, those that the terminal held back included, and the command that lists all of them."""
    from quietsum.alerts import LOG, AuditLog, Severity

    count, shown = done.alerts, done.alerts_shown
    if not count:
        return
    more = "" if shown >= count else f", {shown or 'none'} of them shown above"
    with contextlib.suppress(CorruptState):  # the command that reads a damaged log says so
        logged = [line.alert for line in AuditLog(place.path / LOG).lines() if line.values.get("run") == done.name]
        before = sum(one is not None and one.severity is not Severity.NOTICE for one in logged) - count
        more += f", and {before} before it was resumed" if before > 0 else ""
    text, see = f"alerts: {count}{more}; see", command(["alerts", done.name, *where])
    print(f"{text} {see}" if len(text) + len(see) < text_width() else f"{text}\n  {see}")


def _print_rejections(database: Path) -> None:
    """How much of the whole run the rule left out and detection found; nothing if ``database`` cannot be read."""
    from quietsum.runs import findings, read_left_out

    with contextlib.suppress(CorruptState):
        found, rejected = len(findings(database)), read_left_out(database)
        updates = 0 if rejected is None else sum(rounds for _, rounds, _ in rejected.parties)
        parts = [f"{updates} update{'s' * (updates > 1)} left out by the rule"] if updates else []
        parts += [f"{found} finding{'s' * (found > 1)}"] if found else []
        if parts:
            print(f"in all: {', '.join(parts)}; see quietsum show")


def _print_scores(values: Mapping[str, Any]) -> None:
    """The first measure, with the models beside it that have no guarantee."""
    if not values["metrics"]:
        return
    metric = values["metrics"][0]
    rows = {"this model": metric["value"], **values["references"]}
    if "chance" in metric:
        rows["by chance"] = metric["chance"]
    width = max(map(len, rows))
    print(f"{metric['name'].replace('_', ' ')} on {metric['on']}")
    for label, score in rows.items():
        print(f"  {label:<{width}}  {score:.3f}")
    if values.get("verdict"):
        print(textwrap.fill(values["verdict"], text_width()))
    print()
