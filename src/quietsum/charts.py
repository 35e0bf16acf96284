"""Line charts without a plotting library: braille in a terminal, SVG in a file.

A :class:`Chart` is a frozen value; :func:`show` and :func:`save` are two ways to look at it.

>>> line = Series(label="ε", points=((1.0, 1.0), (2.0, 3.0)))
>>> picture = svg(Chart(title="spent", x_label="steps", y_label="ε", series=(line,)))
>>> picture.startswith("<svg")
True
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import itertools
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Literal, final

from quietsum.errors import InvalidParameter
from quietsum.files import DiskFull, NoRoom, check_output, write_output

__all__ = [
    "STYLE",
    "Chart",
    "Series",
    "check_picture",
    "check_picture_name",
    "decimals",
    "html_table",
    "interval_svg",
    "number",
    "png",
    "save",
    "save_picture",
    "show",
    "svg",
    "terminal",
]

_PRINTED = ("#0969da", "#bc4c00", "#8250df", "#1a7f37")
_COLOURS = ("cyan", "yellow", "magenta", "green")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Series:
    """One line: its name, its (x, y) points from left to right, and how it is drawn, so that no one needs colours.

    ``bars`` are error bars, (low, high) for each point, or none; a terminal does not show them.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    dash: Literal["solid", "dashed", "dotted"] = "solid"
    bars: tuple[tuple[float, float], ...] = ()

    @property
    def heights(self) -> list[float]:
        """Every y that must be seen: those of points and of error bars."""
        return [*(y for _, y in self.points), *itertools.chain.from_iterable(self.bars)]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """Lines over common axes. ``limit`` is a horizontal rule with a name, a budget for instance.

    The legend states where each line ends; with a ``note``, which an SVG shows below the legend, it does not.

    ``x_marks`` are the ticks of the x axis where they are stated. ``y_from_zero`` keeps differences honest; scores that
    all lie close together need it off to be distinguished.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    description: str = ""
    x_log: bool = False
    y_log: bool = False
    limit: tuple[str, float] | None = None
    y_from_zero: bool = True
    note: str = ""
    x_marks: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        points = [point for line in self.series for point in line.points]
        if not points:
            raise InvalidParameter("series", self.series, "holds no points", "give each line at least one point")
        if any(line.bars and len(line.bars) != len(line.points) for line in self.series):
            raise InvalidParameter("bars", self.series, "do not pair with points", "give each point one (low, high)")
        heights = [y for line in self.series for y in line.heights]
        for name, values, log in (("x", [x for x, _ in points], self.x_log), ("y", heights, self.y_log)):
            for value in values:
                if not math.isfinite(value) or (log and value <= 0):
                    raise InvalidParameter(name, value, "cannot be drawn", "leave such points out of the chart")

    @property
    def x_scale(self) -> Scale:
        """From x values to [0, 1]."""
        values = [x for line in self.series for x, _ in line.points]
        return Scale.around(values, log=self.x_log)

    @property
    def y_scale(self) -> Scale:
        """From y values to [0, 1]; starts at zero unless logarithmic, or not wanted."""
        values = [y for line in self.series for y in line.heights]
        if self.limit is not None:
            values.append(self.limit[1])
        if not self.y_log and self.y_from_zero:
            values.append(0.0)
        return Scale.around(values, log=self.y_log, rounded=True)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear or logarithmic axis with its ticks."""

    low: float
    high: float
    log: bool

    @classmethod
    def around(cls, values: Sequence[float], *, log: bool, rounded: bool = False) -> Scale:
        """The axis that shows all ``values``; ``rounded`` widens it to the next ticks."""
        low, high = min(values), max(values)
        if low == high:
            low, high = (low / 2, high * 2) if log else (min(0.0, low), high if high > 0 else low + 1.0)
        scale = cls(low=low, high=high, log=log)
        if rounded and not log:
            step = _step(low, high, 5)
            scale = cls(low=math.floor(low / step) * step, high=math.ceil(high / step - 1e-9) * step, log=False)
        return scale

    def place(self, value: float) -> float:
        """Where ``value`` lies, 0 at the low end and 1 at the high end."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)

    def ticks(self, about: int = 5) -> list[float]:
        """Round numbers inside the axis."""
        if not self.log:
            step = _step(self.low, self.high, about)
            first = math.ceil(self.low / step - 1e-9)
            return [index * step for index in range(first, math.floor(self.high / step + 1e-9) + 1)]
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for digits in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)):
            found = [float(f"{digit}e{power}") for power in decades for digit in digits]
            found = [tick for tick in found if self.low * (1 - 1e-9) <= tick <= self.high * (1 + 1e-9)]
            if len(found) >= 3:
                break
        every = max(1, math.ceil(len(found) / (about + 2)))
        return found[::every] or [self.low, self.high]


def _step(low: float, high: float, about: int) -> float:
    """1, 2 or 5 times a power of ten, about ``about`` of which span the axis."""
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    return next(digit * power for digit in (1.0, 2.0, 5.0, 10.0) if digit * power >= raw * (1 - 1e-9))


def number(value: float) -> str:
    """A tick's label: 0.25, 1500, 10k, 2M, 1e-05.

    >>> [number(value) for value in (0, 0.25, 1500, 31_200, 2e6, 1e-5)]
    ['0', '0.25', '1500', '31.2k', '2M', '1e-05']
    """
    if value == 0:
        return "0"
    for size, name in ((1e6, "M"), (1e3, "k")):
        if 10 * size / (10 if name == "M" else 1) <= abs(value) < 1000 * size:
            return f"{value / size:.4g}{name}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.0e}"


def decimals(errors: Iterable[float], *, most: int = 8) -> int:
    """How many decimals to print of values with these errors: two digits of the smallest error.

    >>> decimals([0.0093, 0.0106]), decimals([0.6]), decimals([1700.0]), decimals([0.0])
    (4, 2, 0, 4)
    """
    found = [float(error) for error in errors if math.isfinite(error) and error > 0]
    return min(most, max(0, 1 - math.floor(math.log10(min(found))))) if found else 4


# ------------------------------------------------------------------------------------------ terminal


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for a notebook; every cell is shown as text, markup included.

    >>> html_table(("ε",), [("<b>",)])
    '<table><tr><th align=left>ε</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    top = "".join(f"<th align=left>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{lines}</table>"


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


# ----------------------------------------------------------------------------------------------- SVG

STYLE = """
    .paper { fill: #ffffff; }
    text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
    .title { font-size: 17px; font-weight: 600; } .quiet { fill: #57606a; }
    .grid { stroke: #d8dee4; stroke-width: 1; } .axis { stroke: #57606a; stroke-width: 1; }
    .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
    .dashed { stroke-dasharray: 9 6; } .dotted { stroke-dasharray: 1 6; }
    .s0 { stroke: #0969da; } .s1 { stroke: #bc4c00; } .s2 { stroke: #8250df; } .s3 { stroke: #1a7f37; }
    .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 2 4; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; }
      .grid { stroke: #2a313c; } .axis { stroke: #9198a1; } .limit { stroke: #ff7b72; }
      .s0 { stroke: #58a6ff; } .s1 { stroke: #f0883e; } .s2 { stroke: #bc8cff; } .s3 { stroke: #3fb950; }
    }
"""
"""What all pictures look like, light and dark."""


def save(chart: Chart, path: str) -> None:
    """Write ``chart`` to a file, as PNG if it is named so, else as SVG; ``-`` is an SVG on stdout."""
    save_picture(png(chart) if path.lower().endswith(".png") else svg(chart), path)


def check_picture_name(option: str, path: str | None) -> None:
    """Raise InvalidParameter if ``path`` is named neither .svg nor .png, or a PNG cannot be drawn here."""
    if path in (None, "-") or str(path).lower().endswith(".svg"):
        return
    if not str(path).lower().endswith(".png"):
        raise InvalidParameter(option, path, "is named neither .svg nor .png", "a picture is one of these")
    if importlib.util.find_spec("matplotlib") is None:
        problem = "needs matplotlib, which is not installed"
        raise InvalidParameter(option, path, problem, "name it .svg, or: pip install 'quietsum[pictures]'")


def save_picture(picture: str | bytes, path: str) -> None:
    """Write a picture to a file, or an SVG to stdout for ``-``."""
    if path == "-":
        sys.stdout.write(str(picture))
        return
    try:
        write_output(Path(path), picture)
    except DiskFull:
        raise
    except (NoRoom, OSError, ValueError) as error:
        reason = str(error).split(": ", 1)[-1].split(";")[0]
        raise InvalidParameter("output", path, f"cannot be written ({reason})", "choose another place") from None


def check_picture(path: str) -> None:
    """InvalidParameter where :func:`save_picture` could not write to ``path``: ask before hours of work.

    Nothing is left behind, and what is there stays.
    """
    if path == "-":
        return
    try:
        check_output(Path(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no name of a file"
        problem = f"cannot be written ({reason}), and nothing was trained"
        raise InvalidParameter("output", path, problem, "choose another place") from None


def svg(chart: Chart, *, width: int = 760, height: int = 440) -> str:
    """``chart`` as one self-contained SVG that follows the reader's light or dark scheme."""
    left, right, top, bottom = 64, 24, 106 if chart.note else 88, 58
    across, down = width - left - right, height - top - bottom
    x_scale, y_scale = chart.x_scale, chart.y_scale

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x_scale.place(x) * across, top + (1 - y_scale.place(y)) * down

    about = chart.description or ", ".join(
        f"{line.label}: {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in chart.series
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="chart-title chart-about">',
        f'  <title id="chart-title">{escape(chart.title)}</title>',
        f'  <desc id="chart-about">{escape(about)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
        f'  <text class="title" x="{left}" y="32">{escape(chart.title)}</text>',
    ]
    for tick in y_scale.ticks(5):
        _, y = at(x_scale.low, tick)
        parts.append(f'  <line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'  <text class="quiet" x="{left - 9}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    base = top + down
    for tick in chart.x_marks or x_scale.ticks(6):
        x, _ = at(tick, y_scale.low)
        parts.append(f'  <line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>')
        parts.append(f'  <text class="quiet" x="{x:.1f}" y="{base + 21}" text-anchor="middle">{number(tick)}</text>')
    parts += [
        f'  <line class="axis" x1="{left}" x2="{width - right}" y1="{base}" y2="{base}"/>',
        f'  <text x="{left + across / 2:.1f}" y="{height - 14}" text-anchor="middle">{escape(chart.x_label)}</text>',
        f'  <text transform="translate(18 {top + down / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>",
        *_legend(chart, left),
        *([f'  <text class="quiet" x="{left}" y="86">{escape(chart.note)}</text>'] if chart.note else []),
    ]
    if chart.limit is not None:
        _, y = at(x_scale.low, chart.limit[1])
        parts.append(f'  <line class="limit" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
    barred = [index for index, line in enumerate(chart.series) if line.bars]
    for index, line in reversed(list(enumerate(chart.series))):
        # bars of several lines stand side by side
        aside = 6.0 * (barred.index(index) - (len(barred) - 1) / 2) if index in barred else 0.0
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in line.points))
        parts.append(f'  <polyline class="line s{index % 4} {line.dash}" points="{places}"/>')
        for (point, _), (low, high) in zip(line.points, line.bars, strict=False):
            (x, bottom_y), (_, top_y) = at(point, low), at(point, high)
            x += aside
            caps = "".join(f"M{x - 5:.1f},{y:.1f}h10" for y in (bottom_y, top_y))
            parts.append(f'  <path class="line s{index % 4}" d="M{x:.1f},{bottom_y:.1f}V{top_y:.1f}{caps}"/>')
        if line.bars:
            dots = "".join(f"M{x + aside:.1f},{y:.1f}h0" for x, y in (at(*point) for point in line.points))
            parts.append(f'  <path class="line s{index % 4}" style="stroke-width: 9" d="{dots}"/>')
    return "\n".join([*parts, "</svg>", ""])


def png(chart: Chart) -> bytes:
    """``chart`` as a PNG, light, drawn by matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.4), dpi=150, layout="constrained")
    axes = figure.subplots()
    styles = {"solid": "-", "dashed": "--", "dotted": ":"}
    for index, line in enumerate(chart.series):
        across, up = zip(*line.points, strict=True)
        axes.plot(across, up, styles[line.dash], color=_PRINTED[index % 4], label=line.label, linewidth=2)
        if line.bars:
            reach = [[y - low for y, (low, _) in zip(up, line.bars, strict=True)],
                     [high - y for y, (_, high) in zip(up, line.bars, strict=True)]]  # fmt: skip
            axes.errorbar(across, up, yerr=reach, fmt="o", color=_PRINTED[index % 4], capsize=4)
    if chart.limit is not None:
        axes.axhline(chart.limit[1], color="#cf222e", linestyle="--", linewidth=1, label=chart.limit[0])
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.x_scale.log:
        axes.set_xscale("log")
    if chart.y_scale.log:
        axes.set_yscale("log")
    axes.grid(visible=True, color="#d8dee4")
    axes.legend()
    if chart.note:
        figure.supxlabel(chart.note, fontsize=8)
    found = io.BytesIO()
    figure.savefig(found, format="png")
    return found.getvalue()


def _legend(chart: Chart, left: int) -> list[str]:
    parts, x = [], float(left)
    entries = [
        (f"line s{index % 4} {line.dash}", line.label if chart.note else f"{line.label} {line.points[-1][1]:.3g}")
        for index, line in enumerate(chart.series)
    ]
    if chart.limit is not None:
        entries.append(("limit", f"{chart.limit[0]} {chart.limit[1]:g}"))
    for style, text in entries:
        parts.append(f'  <line class="{style}" x1="{x:.1f}" x2="{x + 30:.1f}" y1="58" y2="58"/>')
        parts.append(f'  <text x="{x + 38:.1f}" y="62">{escape(text)}</text>')
        x += 38 + 7.0 * len(text) + 22
    return parts


def interval_svg(
    title: str,
    x_label: str,
    rows: Sequence[tuple[str, float, float, float]],
    *,
    note: str = "",
    shown: int | None = None,
    width: int = 760,
) -> str:
    """Named values with error bars, (name, value, low, high), one below the other, as one self-contained SVG.

    ``shown`` are the decimals of the values; if omitted, four at most.

    >>> picture = interval_svg("answers", "share", [("yes", 0.6, 0.5, 0.7), ("no", 0.4, 0.3, 0.5)])
    >>> picture.count("<title"), "yes" in picture
    (1, True)
    """
    if not rows or not all(math.isfinite(number) for _, *numbers in rows for number in numbers):
        raise InvalidParameter("rows", len(rows), "cannot be drawn", "give at least one row of finite numbers")
    left = min(260, 40 + 7 * max(len(name) for name, *_ in rows))
    right, top, line = 96, 88 if note else 62, 26
    height = top + line * len(rows) + 58
    scale = Scale.around([0.0, *(number for _, *numbers in rows for number in numbers)], log=False, rounded=True)

    def figure(value: float) -> str:
        return number(round(value, 4)) if shown is None else f"{value:,.{shown}f}"

    def at(value: float) -> float:
        return left + scale.place(value) * (width - left - right)

    about = "; ".join(f"{name}: {number(value)}, {number(low)} to {number(high)}" for name, value, low, high in rows)
    base = top + line * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="chart-title chart-about">',
        f'  <title id="chart-title">{escape(title)}</title>',
        f'  <desc id="chart-about">{escape(about)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
        f'  <text class="title" x="24" y="32">{escape(title)}</text>',
        f'  <text class="quiet" x="24" y="56">{escape(note)}</text>',
    ]
    for tick in scale.ticks(6):
        x = at(tick)
        parts.append(f'  <line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{base}"/>')
        parts.append(f'  <text class="quiet" x="{x:.1f}" y="{base + 21}" text-anchor="middle">{number(tick)}</text>')
    for place, (name, value, low, high) in enumerate(rows):
        y = top + line * (place + 0.5)
        label = name if len(name) <= 34 else f"{name[:33]}…"
        ends = "".join(f"M{at(end):.1f},{y - 5:.1f}v10" for end in (low, high))
        parts += [
            f'  <text x="{left - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>',
            f'  <path class="line s0" d="M{at(low):.1f},{y:.1f}H{at(high):.1f}{ends}"/>',
            f'  <path class="line s0" style="stroke-width: 9" d="M{at(value):.1f},{y:.1f}h0"/>',
            f'  <text class="quiet" x="{width - right + 12}" y="{y + 4:.1f}">{figure(value)}</text>',
        ]
    middle = left + (width - left - right) / 2
    parts.append(f'  <text x="{middle:.1f}" y="{height - 14}" text-anchor="middle">{escape(x_label)}</text>')
    return "\n".join([*parts, "</svg>", ""])
