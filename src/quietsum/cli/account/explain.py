"""``quietsum explain``: what a word means, what it does, what to choose and what goes wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import console, print_json, print_next

if TYPE_CHECKING:
    from quietsum.glossary import Term

__all__ = ["explain"]

TermArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[TERM]", help="A parameter, a symbol or a term.", show_default=False)
]


def explain(term: TermArgument = None, as_json: opt.JsonOption = False) -> None:
    """What a parameter or term means, its effect, a sensible range and the common error. Without TERM: all of them."""
    from quietsum.glossary import look_up, sections, terms

    words = " ".join(term or []).strip()
    if not words:
        if as_json:
            print_json({"terms": [entry.to_dict() for entry in terms()]})
        else:
            _list(sections())
        return
    found = look_up(words)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)


def _show(term: Term) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, text in (
        ("meaning", term.meaning), ("effect", term.effect), ("range", term.range), ("common error", term.common_error),
        ("also called", ", ".join(term.aliases)),
    ):  # fmt: skip
        if text:
            table.add_row(name, Text(text))
    title = Text(term.name + (f"  {term.symbol}" if term.symbol else ""), style="bold")
    console().print(Panel(table, title=title, title_align="left", padding=(0, 1)))
    print_next(["explain", term.see[0]] if term.see else ["explain"])


def _list(sections: dict[str, tuple[Term, ...]]) -> None:
    from rich.columns import Columns
    from rich.text import Text

    screen = console()
    for section, entries in sections.items():
        screen.print(Text(section, style="bold"))
        screen.print(Columns([Text(entry.name) for entry in entries], padding=(0, 2), column_first=True))
        screen.print()
    print_next(["explain", "noise_multiplier"])
