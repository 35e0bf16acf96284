"""What people and programs read: panels of at most 80 columns, or one JSON object."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietsum.privacy import Guarantee, PrivacyUnit, bounds_of as bounds, facts_of as facts, figure_of as figure

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from quietsum.privacy import Accountant

__all__ = [
    "bounds",
    "command",
    "console",
    "facts",
    "figure",
    "layer_lines",
    "line_width",
    "meaning",
    "print_json",
    "print_next",
    "print_rows",
    "print_warning",
    "print_wide",
    "renyi_line",
    "text_width",
]

WIDTH = 80
_LEAST = 40
"""A narrower screen than this cannot show a table."""
_PIPE = 4096
"""Columns of a table that a program reads: no row is as long."""


def console() -> Console:
    """A console for stdout: as wide as the variable COLUMNS says, else 80 columns at most."""
    from rich.console import Console

    if stated := _stated_width():
        return Console(highlight=False, emoji=False, width=stated)
    screen = Console(highlight=False, emoji=False)
    return screen if screen.width <= WIDTH else Console(highlight=False, emoji=False, width=WIDTH)


def text_width() -> int:
    """How long a line of words may be: what the terminal or COLUMNS leaves, 80 at most, and 80 in a pipe."""
    width = _stated_width() or (shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH)
    return max(_LEAST, min(WIDTH, width))


def line_width() -> int:
    """How long a line of a table may be: as long as it is in a pipe, else what fits on the screen."""
    return console().width if sys.stdout.isatty() or _stated_width() else _PIPE


def print_rows(table: Table) -> None:
    """Print a table with a name in its first column, which is not broken over two lines unless it has spaces.

    In a pipe each row is one line, however long, so that what reads it (``awk``, ``cut``) finds whole rows; on a
    terminal, or where COLUMNS says how wide, the other columns are folded.
    """
    from rich.console import Console

    if sys.stdout.isatty() or _stated_width():
        first, screen = table.columns[0], console()
        names = max((len(str(cell)) for cell in first.cells if " " not in str(cell)), default=0)
        if all(" " not in str(cell) for cell in first.cells):
            first.no_wrap, first.overflow = True, "ignore"
        wide = Console(highlight=False, emoji=False, width=max(screen.width, names + 40))
        (screen if names + 40 <= screen.width else wide).print(table)
    else:
        screen = Console(highlight=False, emoji=False, width=_PIPE)
        with screen.capture() as lines:
            screen.print(table)
        print("\n".join(line.rstrip() for line in lines.get().splitlines()))


def print_wide(table: Table) -> None:
    """Print a table whose words and unbreakable columns stay whole, also on a screen that is a little too narrow.

    Where not even 80 columns would do, names are broken so that the page is not.
    """
    from rich.cells import cell_len
    from rich.console import Console

    screen, whole = console(), []
    for column in table.columns:
        cells = [str(one) for one in (column.header, *column.cells)]
        parts = cells if column.no_wrap else [word for cell in cells for word in cell.split()]
        whole.append(max(map(cell_len, parts), default=0))
    least = sum(whole) + len(whole) * (table.padding[1] + table.padding[3])
    wide = screen.width < least <= WIDTH
    for column, width in zip(table.columns, whole, strict=True):
        if wide:
            column.width = width
        elif least > screen.width:
            column.no_wrap, column.overflow = False, "fold"
    (Console(highlight=False, emoji=False, width=least) if wide else screen).print(table)


def _stated_width() -> int | None:
    """What COLUMNS says, where it is a width that words fit into."""
    said = os.environ.get("COLUMNS", "")
    return int(said) if said.isdecimal() and _LEAST <= int(said) <= _PIPE else None


def print_json(values: Mapping[str, Any], *, indent: int | None = 2) -> None:
    """One object in plain ASCII; infinities as the word "Infinity", never NaN. Without ``indent`` on one line."""
    print(json.dumps(_plain(values), indent=indent, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "Infinity"
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def renyi_line(guarantee: Guarantee, renyi: Guarantee | None) -> str:
    """The Rényi bound beside the tight one."""
    if renyi is None:
        return "no bound for these events"
    order = f" at order {renyi.order:g}" if renyi.order is not None else ""
    looser = ""
    if 0 < guarantee.epsilon < renyi.epsilon < math.inf:
        looser = f", {100 * (renyi.epsilon / guarantee.epsilon - 1):.0f} % looser"
    return f"ε ≤ {figure(renyi.epsilon)}{order}{looser}"


def meaning(guarantee: Guarantee, accountant: Accountant | None) -> str:
    """What the best attacker can do, in one or two sentences."""
    right, found = _attack(guarantee, accountant)
    whether = {
        PrivacyUnit.RECORD: "a given record was used",
        PrivacyUnit.PERSON: "a given person's records were used",
        PrivacyUnit.CLIENT: "a given client took part",
    }[guarantee.unit]
    if right > 99.9:
        return f"This promises nothing: an attacker may be able to tell for sure whether {whether}."
    return (
        f"No attacker can tell whether {whether} and be right more often than {_percent(right)} of the time "
        f"(a coin: 50 %). Who accuses 1 in 1000 wrongly finds at most {_percent(found)} of them."
    )


def _attack(guarantee: Guarantee, accountant: Accountant | None) -> tuple[float, float]:
    """The best attacker in percent: how often he is right at even odds, how many he finds accusing 1 in 1000 wrongly.

    Each (ε, δ) that the accountant knows bounds him; a few of them cost milliseconds and come close to the curve.
    """
    from quietsum.privacy import attacker_advantage, true_positive_rate

    lines = [guarantee]
    advantage = attacker_advantage(guarantee)
    if accountant is not None and guarantee.epsilon < 100:
        advantage = min(advantage, attacker_advantage(accountant))
        quick = guarantee.certified  # a contour or a closed form; distributions take longer
        deltas = (0.9, 0.7, 0.5, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4) if quick else (0.3, 0.01, 1e-3)
        lines += [accountant.epsilon(delta=delta) for delta in deltas]
    return 50 * (1 + advantage), 100 * min(true_positive_rate(line, 0.001) for line in lines)


def _percent(value: float) -> str:
    """Rounded up to a tenth of a percent."""
    return f"{min(100.0, math.ceil(value * 10 - 1e-9) / 10):.1f} %"


def print_next(words: Iterable[object]) -> None:
    """Name the next useful command, broken before an option so that it can be copied."""
    parts: list[str] = []
    for word in (shlex.quote(str(word)) for word in words):
        if parts and parts[-1].startswith("--") and " " not in parts[-1]:
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    lines, line = [], f"next: {_program()}"
    for part in parts:
        if len(line) + len(part) + 3 > text_width():
            lines.append(f"{line} \\")
            line = "     "
        line = f"{line} {part}"
    print("\n".join([*lines, line]))


def print_warning(text: str) -> None:
    """Print ``text`` as a warning, to standard error."""
    print(textwrap.fill(f"warning: {text}", text_width()), file=sys.stderr, flush=True)


def command(words: Iterable[object]) -> str:
    """A command in one line, to be named in a sentence."""
    return " ".join([_program(), *(shlex.quote(str(word)) for word in words)])


def _program() -> str:
    """How to call this program: by its name where the shell finds it, else by the path it was called by."""
    called = Path(sys.argv[0])
    if called.name == "quietsum" and shutil.which("quietsum") is None:
        return shlex.quote(str(called if called.is_absolute() else os.path.normpath(called)))
    return "quietsum"


def layer_lines(layers: Sequence[Mapping[str, Any]], width: int = 80) -> list[str]:
    """The layers of defence, on or off, each with what that means and, where it is not on, the key that would be.

    >>> layer_lines([{"name": "monitoring", "state": "off", "text": "no rule looks", "setting": "alerts.toml"}])
    ['  off           monitoring: no rule looks. Setting: alerts.toml']
    """
    found = []
    for layer in layers:
        text = f"{layer['name']}: {layer['text']}." + (
            "" if layer["state"] == "on" else f" Setting: {layer['setting']}"
        )
        found += textwrap.wrap(
            f"{layer['state']:<13} {text}", width, initial_indent="  ", subsequent_indent=" " * 16,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return found
