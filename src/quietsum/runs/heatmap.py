"""A matrix of a drill as a picture: a row a rule, a column an attack, the more colour the more was lost."""

from __future__ import annotations

import math
from html import escape

from quietsum.charts import STYLE
from quietsum.runs.drill import NONE, Matrix

__all__ = ["heatmap"]

_CELL, _ROW, _LEFT, _TOP = 62, 30, 150, 156
_EXTRA = """
    .lost { fill: #bc4c00; } .cell { stroke: #d8dee4; stroke-width: 1; fill: none; }
    .worst { font-weight: 600; } .small { font-size: 12px; }
    @media (prefers-color-scheme: dark) { .lost { fill: #f0883e; } .cell { stroke: #2a313c; } }
"""


def heatmap(matrix: Matrix, title: str) -> str:
    """``matrix`` as one self-contained SVG that follows the reader's light or dark scheme.

    A cell's colour is the share of the best score that is lost; its number is the score in percent.
    """
    columns = [*matrix.attacks, "worst"]
    foot = f"{matrix.metric} {matrix.unit}on {matrix.on}; the more colour, the more was lost; – is refused"
    width = max(_LEFT + _CELL * len(columns) + 28, 48 + round(6.6 * len(foot)))
    height = _TOP + _ROW * len(matrix.rules) + 60
    scores = [cell.score for cell in matrix.cells if cell.runs and math.isfinite(cell.score)]
    best = max(scores, default=1.0)
    about = "; ".join(
        f"{rule}: {matrix.figure(worst.score)} under {worst.attack}"
        for rule in matrix.rules
        if (worst := matrix.worst(rule)) is not None
    )
    told = f"{matrix.parties} parties, {matrix.attackers} of them attackers, {matrix.rounds} rounds"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="chart-title chart-about">',
        f'  <title id="chart-title">{escape(title)}</title>',
        f'  <desc id="chart-about">{escape(f"the worst of each rule: {about}")}</desc>',
        f"  <style>{STYLE}{_EXTRA}  </style>",
        f'  <rect class="paper" width="{width}" height="{height}" rx="8"/>',
        f'  <text class="title" x="24" y="32">{escape(title)}</text>',
        f'  <text class="quiet" x="24" y="54">{escape(told)}</text>',
    ]
    for at, column in enumerate(columns):
        x = _LEFT + _CELL * at + _CELL / 2 + 4
        bold = ' class="worst"' if column == "worst" else ""
        word = "no attack" if column == NONE else column
        parts.append(f'  <text{bold} transform="translate({x:.0f} {_TOP - 8}) rotate(-40)">{escape(word)}</text>')
    for row, rule in enumerate(matrix.rules):
        y = _TOP + _ROW * row
        parts.append(f'  <text x="{_LEFT - 12}" y="{y + 20}" text-anchor="end">{escape(rule)}</text>')
        worst = matrix.worst(rule)
        for at, column in enumerate(columns):
            cell = worst if column == "worst" else matrix.cell(rule, column)
            score = math.nan if cell is None else cell.score
            lost = 0.0 if math.isnan(score) or best <= 0 else min(max(1 - score / best, 0.0), 1.0)
            parts += _square(_LEFT + _CELL * at, y, matrix.figure(score), lost, bold=column == "worst")
    parts += [f'  <text class="quiet small" x="24" y="{height - 22}">{escape(foot)}</text>', "</svg>", ""]
    return "\n".join(parts)


def _square(x: float, y: float, text: str, lost: float, *, bold: bool) -> list[str]:
    weight = ' class="worst"' if bold else ""
    return [
        f'  <rect class="lost" x="{x}" y="{y}" width="{_CELL}" height="{_ROW}" fill-opacity="{0.75 * lost:.3f}"/>',
        f'  <rect class="cell" x="{x}" y="{y}" width="{_CELL}" height="{_ROW}"/>',
        f'  <text{weight} x="{x + _CELL / 2:.0f}" y="{y + 20}" text-anchor="middle">{text}</text>',
    ]
