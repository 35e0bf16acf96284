"""Charts as SVG: axes with units, a legend, error bars, and colours that follow the reader's light or dark scheme.

The same functions draw for the report, the dashboard and the notebook. A picture stands alone, with its style inside,
or takes its style from the page (``styled=False``), which a strict content-security policy asks for.

>>> from quietsum.charts.lines import Chart, Series
>>> line = Series(label="ε", points=((1.0, 1.0), (2.0, 3.0)))
>>> picture = svg(Chart(title="spent", x_label="steps", y_label="ε", series=(line,)))
>>> picture.startswith("<svg"), "<style>" in picture
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from quietsum.charts.lines import Chart, Scale, number
from quietsum.errors import InvalidParameter

__all__ = ["STYLE", "interval_svg", "svg"]

STYLE = """
    .paper { fill: #ffffff; }
    text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
    .title { font-size: 17px; font-weight: 600; } .quiet { fill: #57606a; }
    .grid { stroke: #d8dee4; stroke-width: 1; } .axis { stroke: #57606a; stroke-width: 1; }
    .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; stroke-linecap: round; }
    .dashed { stroke-dasharray: 9 6; } .dotted { stroke-dasharray: 1 6; }
    .s0 { stroke: #0969da; } .s1 { stroke: #bc4c00; } .s2 { stroke: #8250df; } .s3 { stroke: #1a7f37; }
    .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 2 4; } .dot { stroke-width: 9; }
    .track { fill: #eaeef2; } .planned { fill: #0969da; fill-opacity: .3; } .spent { fill: #0969da; }
    .over { fill: #cf222e; } .mark { stroke: #cf222e; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9198a1; }
      .grid { stroke: #2a313c; } .axis { stroke: #9198a1; } .limit { stroke: #ff7b72; }
      .s0 { stroke: #58a6ff; } .s1 { stroke: #f0883e; } .s2 { stroke: #bc8cff; } .s3 { stroke: #3fb950; }
      .track { fill: #21262d; } .planned, .spent { fill: #58a6ff; } .over { fill: #ff7b72; } .mark { stroke: #ff7b72; }
    }
    @media print { .paper { fill: #fff; } text { fill: #000; } .quiet { fill: #444; } .grid { stroke: #ccc; }
      .axis { stroke: #444; } .track { fill: #eee; } }
"""
"""What all pictures look like, light and dark."""


def svg(
    chart: Chart, *, width: int = 760, height: int = 440, name: str = "chart", styled: bool = True, headed: bool = True
) -> str:
    """``chart`` as one SVG that follows the reader's light or dark scheme.

    ``name`` begins the ids in it, which must differ on a page with several. Without ``styled`` the page brings
    :data:`STYLE`; without ``headed`` it brings the title, which then stands in the picture for screen readers only.
    """
    ticks = chart.y_scale.ticks(5)
    left = max(64, 34 + 7 * max(len(number(tick)) for tick in ticks))  # long labels do not reach the axis' name
    right, bottom, head = 24, 58, 58 if headed else 20
    legend, rows = _legend(chart, left, width - right, head)
    top = head + 22 * rows + (26 if chart.note else 8)
    across, down = width - left - right, height - top - bottom
    x_scale, y_scale = chart.x_scale, chart.y_scale

    def at(x: float, y: float) -> tuple[float, float]:
        return left + x_scale.place(x) * across, top + (1 - y_scale.place(y)) * down

    about = chart.description or ", ".join(
        f"{line.label}: {number(line.points[0][1])} to {number(line.points[-1][1])}" for line in chart.series
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-labelledby="{name}-title {name}-about">',
        f'  <title id="{name}-title">{escape(chart.title)}</title>',
        f'  <desc id="{name}-about">{escape(about)}</desc>',
        *([f"  <style>{STYLE}  </style>"] if styled else []),
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
        *([f'  <text class="title" x="{left}" y="32">{escape(chart.title)}</text>'] if headed else []),
    ]
    for tick in ticks:
        _, y = at(x_scale.low, tick)
        parts.append(f'  <line class="grid" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'  <text class="quiet" x="{left - 9}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    base = top + down
    for tick in chart.x_marks or x_scale.ticks(6 if width > 500 else 3):
        x, _ = at(tick, y_scale.low)
        parts.append(f'  <line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + 5}"/>')
        parts.append(f'  <text class="quiet" x="{x:.1f}" y="{base + 21}" text-anchor="middle">{number(tick)}</text>')
    parts += [
        f'  <line class="axis" x1="{left}" x2="{width - right}" y1="{base}" y2="{base}"/>',
        f'  <text x="{left + across / 2:.1f}" y="{height - 14}" text-anchor="middle">{escape(chart.x_label)}</text>',
        f'  <text transform="translate(18 {top + down / 2:.1f}) rotate(-90)" text-anchor="middle">'
        f"{escape(chart.y_label)}</text>",
        *legend,
        *([f'  <text class="quiet" x="{left}" y="{top - 20}">{escape(chart.note)}</text>'] if chart.note else []),
    ]
    if chart.limit is not None:
        _, y = at(x_scale.low, chart.limit[1])
        parts.append(f'  <line class="limit" x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}"/>')
    barred = [index for index, line in enumerate(chart.series) if line.bars]
    for index, line in reversed(list(enumerate(chart.series))):
        # bars of several lines stand side by side
        aside = 6.0 * (barred.index(index) - (len(barred) - 1) / 2) if index in barred else 0.0
        placed = [at(*point) for point in line.points]
        if line.joined:
            places = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
            parts.append(f'  <polyline class="line s{index % 4} {line.dash}" points="{places}"/>')
        for (point, _), (low, high) in zip(line.points, line.bars, strict=False):
            (x, bottom_y), (_, top_y) = at(point, low), at(point, high)
            x += aside
            caps = "".join(f"M{x - 5:.1f},{y:.1f}h10" for y in (bottom_y, top_y))
            parts.append(f'  <path class="line s{index % 4}" d="M{x:.1f},{bottom_y:.1f}V{top_y:.1f}{caps}"/>')
        if line.bars or not line.joined or len(placed) == 1:
            dots = "".join(f"M{x + aside:.1f},{y:.1f}h0" for x, y in placed)
            parts.append(f'  <path class="line dot s{index % 4}" d="{dots}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _legend(chart: Chart, left: int, right: int, head: int) -> tuple[list[str], int]:
    """Names of the lines, and in how many rows they stand: one that would pass the right end begins a new row."""
    parts, x, row = [], float(left), 0
    entries = [
        (f"line s{index % 4} {line.dash}" if line.joined else f"line dot s{index % 4}",
         line.label if chart.note or not line.joined else f"{line.label} {line.points[-1][1]:.3g}")
        for index, line in enumerate(chart.series)
    ]  # fmt: skip
    if chart.limit is not None:
        entries.append(("limit", f"{chart.limit[0]} {chart.limit[1]:g}"))
    for style, text in entries:
        wide = 38 + 7.0 * len(text)
        if x > left and x + wide > right:
            x, row = float(left), row + 1
        y = head + 22 * row
        begin, end = (x + 15, x + 15.1) if "dot " in style else (x, x + 30)
        parts.append(f'  <line class="{style}" x1="{begin:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'  <text x="{x + 38:.1f}" y="{y + 4}">{escape(text)}</text>')
        x += wide + 22
    return parts, row + 1


def interval_svg(
    title: str,
    x_label: str,
    rows: Sequence[tuple[str, float, float, float]],
    *,
    note: str = "",
    shown: int | None = None,
    width: int = 760,
    styled: bool = True,
    headed: bool = True,
    id_prefix: str = "chart",
) -> str:
    """Named values with error bars, (name, value, low, high), one below the other, as one self-contained SVG.

    ``shown`` are the decimals of the values; if omitted, four at most. ``styled``, ``headed`` and ``id_prefix`` are
    ``styled``, ``headed`` and ``name`` of :func:`svg`.

    >>> picture = interval_svg("answers", "share", [("yes", 0.6, 0.5, 0.7), ("no", 0.4, 0.3, 0.5)])
    >>> picture.count("<title"), "yes" in picture
    (1, True)
    """
    if not rows or not all(math.isfinite(number) for _, *numbers in rows for number in numbers):
        raise InvalidParameter("rows", len(rows), "cannot be drawn", "give at least one row of finite numbers")
    left = min(260, width * 2 // 5, 40 + 7 * max(len(name) for name, *_ in rows))
    letters = max(8, (left - 22) // 7)
    right, top, line = 96, 10 if not headed else 88 if note else 62, 26
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
        f'role="img" aria-labelledby="{id_prefix}-title {id_prefix}-about">',
        f'  <title id="{id_prefix}-title">{escape(title)}</title>',
        f'  <desc id="{id_prefix}-about">{escape(about)}</desc>',
        *([f"  <style>{STYLE}  </style>"] if styled else []),
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
        *([f'  <text class="title" x="24" y="32">{escape(title)}</text>'] if headed else []),
        *([f'  <text class="quiet" x="24" y="56">{escape(note)}</text>'] if headed else []),
    ]
    for tick in scale.ticks(6 if width > 500 else 3):
        x = at(tick)
        parts.append(f'  <line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{base}"/>')
        parts.append(f'  <text class="quiet" x="{x:.1f}" y="{base + 21}" text-anchor="middle">{number(tick)}</text>')
    for place, (name, value, low, high) in enumerate(rows):
        y = top + line * (place + 0.5)
        label = name if len(name) <= letters else f"{name[: letters - 1]}…"
        ends = "".join(f"M{at(end):.1f},{y - 5:.1f}v10" for end in (low, high))
        parts += [
            f'  <text x="{left - 12}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>',
            f'  <path class="line s0" d="M{at(low):.1f},{y:.1f}H{at(high):.1f}{ends}"/>',
            f'  <path class="line dot s0" d="M{at(value):.1f},{y:.1f}h0"/>',
            f'  <text class="quiet" x="{width - right + 12}" y="{y + 4:.1f}">{figure(value)}</text>',
        ]
    middle = left + (width - left - right) / 2
    parts.append(f'  <text x="{middle:.1f}" y="{height - 14}" text-anchor="middle">{escape(x_label)}</text>')
    return "\n".join([*parts, "</svg>", ""])
