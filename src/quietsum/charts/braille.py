"""A chart in characters: braille dots on a terminal, or ``*`` and ``o`` where it knows ASCII only."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable

from quietsum.charts.lines import Chart, Scale, Series, number

__all__ = ["show", "terminal"]

_COLOURS = ("cyan", "yellow", "magenta", "green")


def show(chart: Chart, *, height: int = 14) -> None:
    """Print ``chart`` to stdout as well as stdout can show it, at most 80 columns wide."""
    try:
        "⠿┤ε".encode(sys.stdout.encoding or "ascii")
        unicode = True
    except (UnicodeEncodeError, LookupError):
        unicode = False
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = min(78, max(40, shutil.get_terminal_size().columns - 2))
    print(terminal(chart, width=width, height=height, unicode=unicode, colour=colour))


_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille bits by (row, column) of a 2 × 4 cell


def terminal(chart: Chart, *, width: int = 78, height: int = 14, unicode: bool = True, colour: bool = False) -> str:
    """``chart`` in characters: braille dots, or ``*`` and ``o`` where the terminal knows ASCII only."""
    paint = _painter(colour)
    x_scale, y_scale = chart.x_scale, chart.y_scale
    y_ticks = {round((1 - y_scale.place(tick)) * (height - 1)): number(tick) for tick in y_scale.ticks(4)}
    margin = max(len(label) for label in y_ticks.values()) + 1
    ends = _end_labels(chart, y_scale, height, unicode)
    right = max(len(label) for label, _ in ends.values()) + 1
    columns = max(10, width - margin - 1 - right)
    cells = [[(0, -1)] * columns for _ in range(height)]  # (braille bits, which series painted last)
    for index, line in enumerate(chart.series):
        for x, y in _dots(line, x_scale, y_scale, 2 * columns, 4 * height):
            bits, _ = cells[y // 4][x // 2]
            cells[y // 4][x // 2] = (bits | _DOTS[y % 4][x % 2], index)
    rule = None if chart.limit is None else round((1 - y_scale.place(chart.limit[1])) * (height - 1))
    rows = [chart.title, paint(chart.y_label, "dim")]
    for row in range(height):
        axis = ("┤" if row in y_ticks else "│") if unicode else ("+" if row in y_ticks else "|")
        text = "".join(
            paint(_glyph(bits, series, unicode), _COLOURS[series % len(_COLOURS)])
            if series >= 0
            else (paint("─" if unicode else "-", "dim") if row == rule else " ")
            for bits, series in cells[row]
        )
        label, series = ends.get(row, ("", -1))
        tail = " " + paint(label, _COLOURS[series % len(_COLOURS)] if series >= 0 else "dim") if label else ""
        rows.append(f"{y_ticks.get(row, ''):>{margin}}{axis}{text}{tail}".rstrip())
    return "\n".join([*rows, *_x_axis(chart, x_scale, margin, columns, unicode)])


def _painter(colour: bool) -> Callable[[str, str], str]:
    codes = {"dim": "2", "cyan": "36", "yellow": "33", "magenta": "35", "green": "32"}
    if not colour:
        return lambda text, _: text
    return lambda text, style: text if text.isspace() else f"\x1b[{codes[style]}m{text}\x1b[0m"


def _glyph(bits: int, series: int, unicode: bool) -> str:
    return chr(0x2800 + bits) if unicode else "*o+x"[series % 4]


def _dots(line: Series, x_scale: Scale, y_scale: Scale, across: int, down: int) -> Iterable[tuple[int, int]]:
    """The dots of one line on a canvas ``across`` by ``down``; dashed and dotted lines leave gaps."""
    length, filled = {"solid": (1, 1), "dashed": (6, 4), "dotted": (4, 1)}[line.dash]
    placed = [(x_scale.place(x) * (across - 1), (1 - y_scale.place(y)) * (down - 1)) for x, y in line.points]
    if len(placed) == 1:
        placed = placed * 2
    seen = 0
    for (x0, y0), (x1, y1) in itertools.pairwise(placed):
        steps = max(1, math.ceil(max(abs(x1 - x0), abs(y1 - y0))))
        for step in range(steps):
            x, y = x0 + (x1 - x0) * step / steps, y0 + (y1 - y0) * step / steps
            seen += 1
            if seen % length < filled:
                yield round(x), round(y)
    yield round(placed[-1][0]), round(placed[-1][1])


def _end_labels(chart: Chart, y_scale: Scale, height: int, unicode: bool) -> dict[int, tuple[str, int]]:
    """A name at the right end of each line, moved up or down where two would meet."""
    wanted = [
        (line.points[-1][1], (f"{line.label} {line.points[-1][1]:.3g}", index))
        for index, line in enumerate(chart.series)
    ]
    if chart.limit is not None:
        wanted.append((chart.limit[1], (f"{chart.limit[0]} {chart.limit[1]:g}", -1)))
    wanted.sort(key=lambda item: item[0], reverse=True)
    taken: dict[int, tuple[str, int]] = {}
    lowest = -1
    for left, (value, label) in enumerate(wanted):
        row = max(round((1 - y_scale.place(value)) * (height - 1)), lowest + 1)
        lowest = min(row, height - (len(wanted) - left))
        text = label[0] if unicode else label[0].encode("ascii", "replace").decode()
        taken[lowest] = (text, label[1])
    return taken


def _x_axis(chart: Chart, scale: Scale, margin: int, columns: int, unicode: bool) -> list[str]:
    places = {round(scale.place(tick) * (columns - 1)): number(tick) for tick in chart.x_marks or scale.ticks(6)}
    line = "".join(("┬" if unicode else "+") if at in places else ("─" if unicode else "-") for at in range(columns))
    labels = [" "] * (columns + margin + 12)
    free = 0
    for at, text in sorted(places.items()):
        start = max(0, margin + 1 + at - len(text) // 2)
        if start >= free:
            labels[start : start + len(text)] = text
            free = start + len(text) + 2
    name = f"{chart.x_label:>{margin + 1 + columns}}"
    return [" " * margin + ("└" if unicode else "+") + line, "".join(labels).rstrip(), name]
