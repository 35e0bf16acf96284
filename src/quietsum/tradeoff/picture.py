"""A trade-off as a picture: the score over ε with error bars, and the score without privacy as a rule."""

from __future__ import annotations

from quietsum.charts import Chart, Series
from quietsum.tradeoff.analysis import Tradeoff

__all__ = ["chart_of"]


_SHARES = ("accuracy", "auc", "auprc", "average", "precision", "recall", "dice", "f1", "iou")


def _is_share(found: Tradeoff) -> bool:
    """Whether the score lies between 0 and 1 by its name, and so does every run."""
    named = found.metric.replace("_", " ").replace("-", " ").lower().split()[0] in _SHARES
    return named and all(0 <= value <= 1 for row in found.rows for value in row.values)


def chart_of(found: Tradeoff, *, title: str = "") -> Chart:
    """The chart of ``found``; error bars are its intervals, where there are any."""
    points = tuple((row.guarantee.epsilon, row.mean) for row in found.rows)
    spans = [row.interval or (row.mean, row.mean) for row in found.rows]
    if _is_share(found):  # an interval of Student's knows of no end at 1
        spans = [(max(low, 0.0), min(high, 1.0)) for low, high in spans]
    bars, marks = tuple(spans), tuple(float(f"{x:.3g}") for x, _ in points)
    drawn = all(row.interval is not None for row in found.rows)
    seeds = f"{len(found.seeds)} seeds" if len(found.seeds) > 1 else "one seed"
    whom = found.rows[0].guarantee.whom
    described = ", ".join(f"{row.mean:.3f} at ε {row.guarantee.epsilon:.3g}" for row in found.rows)
    none = "" if found.plain is None else f"; {found.plain.mean:.3f} without privacy"
    return Chart(
        title=title or f"{found.task}: {found.metric} over ε per {whom}",
        x_label=f"ε per {whom}, δ = {found.rows[0].guarantee.delta:.2g}",
        y_label=found.metric,
        x_log=True,
        x_marks=marks if 2 <= len(marks) <= 7 else (),
        y_from_zero=False,
        description=f"{found.metric} of {found.task}, mean of {seeds}: {described}{none}.",
        series=(Series(label=f"private, {seeds}", points=points, bars=bars if drawn else ()),),
        limit=None if found.plain is None else ("without privacy", float(f"{found.plain.mean:.4g}")),
    )
