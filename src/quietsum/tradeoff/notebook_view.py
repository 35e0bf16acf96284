"""A trade-off in a notebook: the table of ``quietsum tradeoff``, and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.charts import svg
from quietsum.notebook import show_table
from quietsum.privacy import figure_of
from quietsum.tradeoff.picture import chart_of

if TYPE_CHECKING:
    from quietsum.tradeoff.analysis import Tradeoff
    from quietsum.tradeoff.intervals import Interval

__all__ = ["interval_text", "show_tradeoff"]


def interval_text(interval: Interval | None) -> str:
    """Both ends of an interval, or nothing.

    >>> interval_text((0.85, 0.91)), interval_text(None)
    ('0.8500 – 0.9100', '')
    """
    return "" if interval is None else f"{interval[0]:.4f} – {interval[1]:.4f}"


def show_tradeoff(found: Tradeoff) -> str:
    """The rows of ``found`` and its chart as HTML."""
    whom = found.rows[0].guarantee.whom
    heads = (f"ε per {whom}", "δ", found.metric, f"{100 * found.level:g} % interval", "share kept", "its interval")
    rows = [] if found.plain is None else [
        ("none", "–", f"{found.plain.mean:.4f}", interval_text(found.plain.interval), "1", "")
    ]  # fmt: skip
    for row in found.rows:
        rows.append((
            f"≤ {figure_of(row.guarantee.epsilon)}", f"{row.guarantee.delta:.2g}", f"{row.mean:.4f}",
            interval_text(row.interval), "–" if row.efficiency is None else f"{row.efficiency:.4f}",
            interval_text(row.efficiency_interval),
        ))  # fmt: skip
    seeds = f"mean of {len(found.seeds)} seeds" if len(found.seeds) > 1 else "one seed, so no error bars"
    notes = [f"{seeds}; scores stand on {'; '.join(found.on)}"]
    return show_table(
        f"{found.task}: what privacy costs", rows, heads=heads, notes=notes,
        picture=svg(chart_of(found), width=620, height=360),
    )  # fmt: skip
