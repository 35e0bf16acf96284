"""Charts without a plotting library: braille in a terminal, SVG in a file or on a page.

A :class:`Chart` is a frozen value; :func:`show`, :func:`svg` and :func:`save` are ways to look at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.charts.braille import show as show, terminal as terminal
    from quietsum.charts.gauge import Gauge as Gauge, gauge_svg as gauge_svg
    from quietsum.charts.lines import (
        Chart as Chart,
        Series as Series,
        decimals as decimals,
        number as number,
    )
    from quietsum.charts.saving import (
        check_picture as check_picture,
        check_picture_name as check_picture_name,
        png as png,
        save as save,
        save_picture as save_picture,
    )
    from quietsum.charts.vector import STYLE as STYLE, interval_svg as interval_svg, svg as svg
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
