"""The newest entries of a ledger, a line each, and where it went if a move has sealed it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quietsum.cli.shared.output import WIDTH, console, line_width

if TYPE_CHECKING:
    from quietsum.ledger import Entry, Ledger

__all__ = ["print_corrections", "print_entries", "print_moved", "short"]

LAST = 8


def print_moved(place: str | None) -> None:
    """Say that nothing more is written here, where that is so: everything else looks alive."""
    if place is None:
        return
    where = re.sub(r" \([0-9a-f]{16}\)$", "", place)  # without the word by which an interrupted move knows its own
    text = f"moved   This ledger goes on at {where}. Here it ends, and nothing more can be spent."
    text += " If the move was interrupted, repeat it."
    print(textwrap.fill(text, WIDTH, subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False))


def print_corrections(ledger: Ledger, run: str | None = None) -> None:
    """What earlier prices stated and what it is, one line for all accounts of a run that have the same figures."""
    from quietsum.cli.shared.output import figure

    lines, entry = ledger.corrections()
    alike: dict[str, int] = {}
    for line in lines:
        if run is None or line.run == run:
            told = f"run {line.run}: ε {figure(line.before)} per {line.unit} was stated, it is {figure(line.after)}"
            alike[told] = alike.get(told, 0) + 1
    if not alike:
        return
    written = "by the next charge" if entry is None else f"in entry {entry}"
    print(f"\ncorrected   {written}; budgets go by the new figures (docs/explanation/prices.md)")
    for told, count in alike.items():
        text = told + (f", for {count} parties" if count > 1 else "")
        print(textwrap.fill(text, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 14))


def print_entries(ledger: Ledger) -> None:
    """The last entries, none wider than the screen."""
    from rich.text import Text

    last = ledger.head.sequence
    print()
    width = line_width()
    screen = console()
    for entry in ledger.entries(max(1, last - LAST + 1)):
        start = f"{entry.sequence:>{len(str(last))}}  {entry.time[:10]} {entry.time[11:16]}Z  {entry.kind.value:<8} "
        line = Text(start + _about(ledger, entry, width - len(start)))
        if width > screen.width:
            print(line.plain)
        else:
            screen.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def _about(ledger: Ledger, entry: Entry, room: int) -> str:
    """What an entry says, the run's name last and shortened in its middle where there is not enough room."""
    body = entry.body
    match entry.kind.value:
        case "genesis":
            return f"ledger {body['ledger'][:16]}…"
        case "run":
            about = f"parties: {len(body['datasets'])}"
        case "budget":
            return f"ε {body['epsilon']:g} per {body['unit']}: {body['dataset']} of {body['party']}"
        case "public":
            return f"{body['dataset']} of {body['party']}"
        case "correction":
            count = len(body["corrections"])
            return f"{count} figure{'s' if count != 1 else ''} of earlier prices put right"
        case "refund":
            about = f"{_when(ledger, entry)}, {short(body['party'], 16)}"
        case _:
            about = _when(ledger, entry)
    return f"{about}  {short(body['run'], room - len(about) - 2)}"


def _when(ledger: Ledger, entry: Entry) -> str:
    """Round and attempt; or, in words, what came before the first round or after the last one.

    A coordinator keeps heads outside of rounds when a run ends. A site keeps them when it enrols, when it enrols again
    because one side was started anew, and when the run ends; an entry shows only of the first of these which it is. It
    keeps them, too, when a session is opened in which groups are drawn.
    """
    run, round, attempt = entry.body["run"], entry.body["round"], entry.body["attempt"]
    opened = next((known.sequence for known in ledger.runs() if known.run == run), 0)
    body = next(ledger.entries(opened)).body if opened else {}
    if round > 0 and _is_training(body):  # a training at one site has no rounds; steps are charged some at a time
        return f"steps from {round} on" + (f", attempt {attempt}" if attempt > 1 else "")
    if round > 0:
        return f"round {round}, attempt {attempt}"
    enrolled = body.get("terms", {}).get("enrolled")
    if enrolled is None:
        return f"round {round}, attempt {attempt}" if attempt else "end of run"
    if attempt and not enrolled:
        return f"groups drawn, session {attempt}"
    first = next(later.sequence for later in ledger.entries(opened + 1) if later.body.get("run") == run)
    return "enrolment" if attempt or first == entry.sequence else "enrolled again, or end of run"


def _is_training(opened: Mapping[str, Any]) -> bool:
    """Whether the run that this entry opened trains at one site."""
    plan = opened.get("plan")
    settings = plan.get("training") if isinstance(plan, Mapping) else None
    return isinstance(settings, Mapping) and "steps_per_epoch" in settings


def short(name: str, room: int) -> str:
    """A name in at most ``room`` columns, with its beginning and its end."""
    from rich.cells import cell_len

    if cell_len(name) <= room:
        return name
    half = max(1, (room - 1) // 2)
    return f"{name[:half]}…{name[-half:]}"
