"""A budget as a bar: what is spent, what the plan will come to if it runs as planned, and the limit.

>>> picture = gauge_svg(Gauge(spent=0.4, planned=0.9, limit=1.0, title="ε per record"))
>>> picture.count("<rect"), 'class="over"' in picture
(3, False)
>>> 'class="over"' in gauge_svg(Gauge(spent=1.4, planned=1.4, limit=1.0, title="ε per record"))
True
"""

from __future__ import annotations

import dataclasses
import math
from html import escape
from typing import final

from quietsum.charts.lines import number
from quietsum.charts.vector import STYLE
from quietsum.validate import non_negative, positive

__all__ = ["Gauge", "gauge_svg"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Gauge:
    """ε of one unit: ``spent`` so far, ``planned`` for the whole schedule, and the ``limit``. Units are not mixed."""

    title: str
    spent: float
    planned: float
    limit: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", positive("limit", self.limit))
        for name in ("spent", "planned"):
            value = getattr(self, name)
            object.__setattr__(self, name, math.inf if value == math.inf else non_negative(name, value))

    @property
    def sentence(self) -> str:
        """The gauge in words."""
        over = " That is more than the limit." if self.spent > self.limit * (1 + 1e-9) else ""
        return (
            f"{self.title}: {_figure(self.spent)} spent, {_figure(self.planned)} if the schedule runs as planned, of a "
            f"limit of {_figure(self.limit)}.{over}"
        )


def _figure(value: float) -> str:
    """A bound, rounded up to four digits."""
    if value in (0, math.inf):
        return "∞" if value else "0"
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return number(math.ceil(value * scale - 1e-6) / scale)


def gauge_svg(gauge: Gauge, *, width: int = 360, name: str = "gauge", styled: bool = True) -> str:
    """``gauge`` as one SVG; ``name`` and ``styled`` are those of :func:`~quietsum.charts.vector.svg`."""
    height, top, thick, inner = 40, 8, 14, width - 4.0
    high = 1.08 * max(gauge.limit, *(value for value in (gauge.spent, gauge.planned) if math.isfinite(value)))

    def wide(value: float) -> float:
        return inner * min(1.0, value / high)

    over, mark, words = gauge.spent > gauge.limit * (1 + 1e-9), 2 + wide(gauge.limit), f"limit {_figure(gauge.limit)}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-labelledby="{name}-title">',
            f'  <title id="{name}-title">{escape(gauge.sentence)}</title>',
            *([f"  <style>{STYLE}  </style>"] if styled else []),
            f'  <rect class="track" x="2" y="{top}" width="{inner:.1f}" height="{thick}" rx="4"/>',
            f'  <rect class="planned" x="2" y="{top}" width="{wide(gauge.planned):.1f}" height="{thick}" rx="4"/>',
            f'  <rect class="{"over" if over else "spent"}" x="2" y="{top}" width="{wide(gauge.spent):.1f}" '
            f'height="{thick}" rx="4"/>',
            f'  <line class="mark" x1="{mark:.1f}" x2="{mark:.1f}" y1="{top - 5}" y2="{top + thick + 5}"/>',
            f'  <text class="quiet" x="{mark:.1f}" y="{height - 2}" text-anchor="end">{words}</text>',
            "</svg>",
            "",
        ]
    )
