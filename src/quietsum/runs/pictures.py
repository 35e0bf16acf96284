"""A matrix of a drill as a picture: a row a rule, a column an attack, the more colour the more was lost."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator
from html import escape

from quietsum.charts import STYLE
from quietsum.runs.drill import NONE, Cell, DrillMatrix

__all__ = ["heatmap"]

_CELL, _ROW, _EDGE, _LEAST = 62, 30, 24, 520
_GAP = 8
"""Between what was attacked and what was not, and before the worst of a row."""
_LETTER, _SMALL, _LARGE = 7.4, 6.8, 9.8
"""Widths of a letter at 13, 12 and 17 pixels, rather too wide than too narrow."""
_TURN = math.radians(40)
_KEY = (0.0, 0.02, 0.1, 0.3, 0.6, 1.0)
_EXTRA = """
    .lost { fill: #bc4c00; } .cell { stroke: #d8dee4; stroke-width: 1; fill: none; } .refused { fill: #f6f8fa; }
    .worst { font-weight: 600; } .small { font-size: 12px; }
    @media (prefers-color-scheme: dark) {
      .lost { fill: #bd561d; } .cell { stroke: #2a313c; } .refused { fill: #161b22; }
    }
"""


def heatmap(matrix: DrillMatrix, title: str) -> str:
    """``matrix`` as one self-contained SVG that follows the reader's light or dark scheme.

    A cell's colour is what is lost against the best cell (:meth:`~quietsum.runs.drill.Matrix.lost`), on a scale of
    square roots, so that a tenth is seen beside everything; its title, which browsers show under the pointer, says the
    same in words.
    """
    columns = [*matrix.attacks, "worst"]
    words = ["no attack" if column == NONE else column for column in columns]
    left = _EDGE + round(_LETTER * max(len(rule) for rule in matrix.rules)) + 12
    places = [left + _CELL * at + _GAP * ((column != NONE) + (column == "worst")) for at, column in enumerate(columns)]
    ends = [
        _LETTER * len(word) * math.cos(_TURN) + place + _CELL / 2 for place, word in zip(places, words, strict=True)
    ]
    width = max(places[-1] + _CELL + _EDGE, round(max(ends)) + 12, _LEAST)
    wide = width - 2 * _EDGE
    heads = textwrap.wrap(title, int(wide / _LARGE)) or [""]
    told = f"{matrix.parties} parties, {matrix.attackers} of them attackers, {matrix.rounds} rounds"
    top = 38 + 22 * len(heads) + round(_LETTER * max(map(len, words)) * math.sin(_TURN)) + 14
    better = "more" if matrix.more_is_better else "less"
    foot = textwrap.wrap(
        f"{matrix.metric.replace('_', ' ')} {matrix.unit}on {matrix.on}; {better} is better; "
        "– was refused, none has no score",
        int(wide / _SMALL),
    )
    key = top + _ROW * len(matrix.rules) + 18
    height = key + _ROW + 14 + 18 * len(foot) + 10
    about = "; ".join(
        f"{rule}: {matrix.in_words(worst)} under {worst.attack}"
        for rule in matrix.rules
        if (worst := matrix.worst(rule)) is not None
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="chart-title chart-about">',
        f'  <title id="chart-title">{escape(title)}</title>',
        f'  <desc id="chart-about">{escape(f"the worst of each rule: {about}")}</desc>',
        f"  <style>{STYLE}{_EXTRA}  </style>",
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
    ]
    for at, line in enumerate(heads):
        parts.append(f'  <text class="title" x="{_EDGE}" y="{32 + 22 * at}">{escape(line)}</text>')
    parts.append(f'  <text class="quiet" x="{_EDGE}" y="{32 + 22 * len(heads)}">{escape(told)}</text>')
    for place, column, word in zip(places, columns, words, strict=True):
        x = place + _CELL / 2 + 4
        bold = ' class="worst"' if column == "worst" else ""
        parts.append(f'  <text{bold} transform="translate({x:.0f} {top - 8}) rotate(-40)">{escape(word)}</text>')
    for row, rule in enumerate(matrix.rules):
        y = top + _ROW * row
        parts.append(f'  <text x="{left - 12}" y="{y + 20}" text-anchor="end">{escape(rule)}</text>')
        for place, column in zip(places, columns, strict=True):
            cell = matrix.worst(rule) if column == "worst" else matrix.cell(rule, column)
            parts += _square(matrix, cell, place, y, bold=column == "worst")
    parts += _scale(left, key)
    parts += [
        f'  <text class="quiet small" x="{_EDGE}" y="{key + _ROW + 26 + 18 * at}">{escape(line)}</text>'
        for at, line in enumerate(foot)
    ]
    return "\n".join([*parts, "</svg>", ""])


def _square(matrix: DrillMatrix, cell: Cell | None, x: float, y: float, *, bold: bool) -> Iterator[str]:
    """One cell, with the words that a pointer over it shows."""
    text = "–" if cell is None else matrix.in_words(cell)
    refused = cell is None or not cell.runs
    lost = 0.0 if cell is None else matrix.lost(cell)
    weight = ' class="worst"' if bold else ""
    yield "  <g>" + (f"<title>{escape(_title(matrix, cell))}</title>" if cell is not None else "")
    kind = 'class="refused"' if refused else f'class="lost" fill-opacity="{_depth(lost):.3f}"'
    yield f'  <rect {kind} x="{x}" y="{y}" width="{_CELL}" height="{_ROW}"/>'
    yield f'  <rect class="cell" x="{x}" y="{y}" width="{_CELL}" height="{_ROW}"/>'
    yield f'  <text{weight} x="{x + _CELL / 2:.0f}" y="{y + 20}" text-anchor="middle">{text}</text></g>'


def _title(matrix: DrillMatrix, cell: Cell) -> str:
    pair = f"{cell.rule}, {'no attack' if cell.attack == NONE else f'under {cell.attack}'}"
    if cell.refused:
        return f"{pair}: refused, {' '.join(cell.refused.split())}"
    shares = [("attackers", cell.mean("caught")), ("others", cell.mean("accused"))]
    out = ", ".join(f"{100 * share:.0f} % of {name}" for name, share in shares if share is not None)
    return f"{pair}: {matrix.in_words(cell)}" + (f"; left out: {out}" if out else "")


def _scale(x: float, y: float) -> Iterator[str]:
    """What the colours mean."""
    yield f'  <text class="quiet small" x="{x - 12}" y="{y + 20}" text-anchor="end">lost</text>'
    for at, lost in enumerate(_KEY):
        place = x + _CELL * at
        yield (
            f'  <rect class="lost" fill-opacity="{_depth(lost):.3f}" x="{place}" y="{y + 6}" width="{_CELL}" '
            f'height="{_ROW - 10}"/>'
        )
        yield f'  <rect class="cell" x="{place}" y="{y + 6}" width="{_CELL}" height="{_ROW - 10}"/>'
        yield (
            f'  <text class="small" x="{place + _CELL / 2:.0f}" y="{y + 20}" text-anchor="middle">'
            f"{100 * lost:.0f} %</text>"
        )


def _depth(lost: float) -> float:
    return 0.75 * math.sqrt(min(max(lost, 0.0), 1.0))
