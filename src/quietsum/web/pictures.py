"""The pictures of the dashboard, from :mod:`quietsum.charts`: each in two widths, of which a page shows one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from quietsum.charts import Chart, Gauge, Series, gauge_svg, interval_svg, svg
from quietsum.privacy import PrivacyUnit
from quietsum.runs import RunCourse

__all__ = ["draw", "draw_frontier", "draw_gauge", "draw_intervals", "draw_spending", "draw_utility"]

MOST_POINTS: Final = 240
"""Points of a line: more are not seen, and each costs time."""
SHARES: Final = frozenset({"accuracy", "auc", "auprc", "f1", "balanced_accuracy", "dice", "precision", "recall"})
"""Scores that lie between 0 and 1."""


def draw(chart: Chart, name: str, *, height: int = 330) -> Markup:
    """``chart`` for wide and for narrow screens."""
    wide = svg(chart, name=f"{name}-wide", styled=False, headed=False, width=600, height=height)
    narrow = svg(chart, name=f"{name}-narrow", styled=False, headed=False, width=390, height=300)
    return Markup('<div class="wide">%s</div><div class="narrow">%s</div>') % (Markup(wide), Markup(narrow))


def draw_gauge(gauge: Gauge, name: str) -> Markup:
    """One budget."""
    return Markup(gauge_svg(gauge, name=name, styled=False))


def draw_intervals(title: str, x_label: str, rows: Sequence[tuple[str, float, float, float]], name: str) -> Markup:
    """Named values with their margins, for wide and for narrow screens; the page brings the title."""
    wide, narrow = (
        Markup(interval_svg(title, x_label, rows, styled=False, headed=False, width=width, id_prefix=f"{name}-{kind}"))
        for kind, width in (("wide", 620), ("narrow", 390))
    )
    return Markup('<div class="wide">%s</div><div class="narrow">%s</div>') % (wide, narrow)


def draw_utility(course: RunCourse, unit: PrivacyUnit, delta: float) -> Markup | None:
    """The first score against ε spent, round by round; None where there is no such curve."""
    score = course.score()
    if score is None:
        return None
    points = [
        (one.epsilon[unit], one.scores[score])
        for one in course.rounds
        if score in one.scores and math.isfinite(one.epsilon.get(unit, math.inf))
    ]  # fmt: skip
    if len(points) < 2:
        return None
    share = score in SHARES and all(0 <= value <= 1 for _, value in points)
    chart = Chart(
        title=f"{score} against ε per {unit.value}", x_label=f"ε per {unit.value} spent, δ = {delta:g}",
        y_label=score.replace("_", " "), y_from_zero=False, share=share,
        series=(Series(label=score.replace("_", " "), points=_thin(points)),),
    )  # fmt: skip
    return draw(chart, f"utility-{unit.value}")


def draw_spending(
    course: RunCourse, forecast: Sequence[tuple[int, float]], unit: PrivacyUnit, limit: float | None
) -> Markup | None:
    """ε by round so far, with the forecast dashed and the limit as a rule; None where there is nothing to draw."""
    spent = [
        (float(one.round), one.epsilon[unit])
        for one in course.rounds
        if math.isfinite(one.epsilon.get(unit, math.inf))
    ]  # fmt: skip
    planned = [(float(number), epsilon) for number, epsilon in forecast if math.isfinite(epsilon)]
    series = []
    if planned:
        series.append(Series(label="if the schedule runs as planned", points=_thin(planned), dash="dashed"))
    if spent:
        series.insert(0, Series(label="spent", points=_thin(spent)))
    if not series:
        return None
    rule = None if limit is None or not math.isfinite(limit) else ("limit", float(f"{limit:.4g}"))
    chart = Chart(
        title=f"ε per {unit.value} by round", x_label="round", y_label=f"ε per {unit.value}", series=tuple(series),
        limit=rule,
    )  # fmt: skip
    return draw(chart, f"spending-{unit.value}")


def draw_frontier(rows: Sequence[Mapping[str, Any]], score: str, unit: str, name: str) -> Markup | None:
    """Runs as dots, score over ε; None for fewer than one that has both."""
    points = sorted((row["epsilon"], row["value"]) for row in rows if math.isfinite(row["epsilon"]))
    if not points:
        return None
    share = score in SHARES and all(0 <= value <= 1 for _, value in points)
    best: list[tuple[float, float]] = []
    for point in points:
        if not best or point[1] > best[-1][1]:
            best.append(point)
    series = [Series(label="runs", points=tuple(points), joined=False)]
    if len(best) > 1:
        series.append(Series(label="best score for the ε", points=tuple(best), dash="dashed"))
    positive = points[0][0] > 0 and points[-1][0] > 20 * points[0][0]
    chart = Chart(
        title=f"{score} over ε per {unit}", x_label=f"ε per {unit}", y_label=score.replace("_", " "), x_log=positive,
        x_from_zero=not positive, y_from_zero=False, share=share, series=tuple(series),
    )  # fmt: skip
    return draw(chart, name)


def _thin(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most :data:`MOST_POINTS` of them, the first and the last included."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return tuple(points[round(place * step)] for place in range(MOST_POINTS))
