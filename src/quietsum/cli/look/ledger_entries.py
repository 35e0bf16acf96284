"""The newest entries of a ledger, a line each, and where it went if a move has sealed it."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from quietsum.cli.shared.output import WIDTH, console, line_width

if TYPE_CHECKING:
    from quietsum.ledger import Ledger

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

    from quietsum.report import describe_entry

    last = ledger.head.sequence
    print()
    width = line_width()
    screen = console()
    for entry in ledger.entries(max(1, last - LAST + 1)):
        start = f"{entry.sequence:>{len(str(last))}}  {entry.time[:10]} {entry.time[11:16]}Z  {entry.kind.value:<8} "
        about, run = describe_entry(ledger, entry)
        if run:
            about = f"{about}  {short(run, width - len(start) - len(about) - 2)}"
        line = Text(start + about)
        if width > screen.width:
            print(line.plain)
        else:
            screen.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def short(name: str, room: int) -> str:
    """A name in at most ``room`` columns, with its beginning and its end."""
    from rich.cells import cell_len

    if cell_len(name) <= room:
        return name
    half = max(1, (room - 1) // 2)
    return f"{name[:half]}…{name[-half:]}"
