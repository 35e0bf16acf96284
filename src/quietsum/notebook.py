"""Notebook: a value as a small table of HTML, for the cells of Jupyter and other programs that ask for ``_repr_html_``.

All texts are escaped, since titles, reasons and names may be somebody else's. A table states no colours, so it reads in
a light and in a dark notebook; a picture is an image of its own, whose style cannot reach the page around it and which
follows the reader's light or dark scheme.

>>> show_table("spent", [("ε", "1.25"), ("by", "<b>")]).count("&lt;b&gt;")
1
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from html import escape, unescape

__all__ = ["show_picture", "show_table"]

_CELL = "text-align: left; padding: 0.1em 1.2em 0.1em 0"


def show_table(
    title: str,
    rows: Iterable[Sequence[str]],
    *,
    heads: Sequence[str] = (),
    notes: Iterable[str] = (),
    picture: str = "",
) -> str:
    """Rows of texts below ``title``, as HTML. The first cell of a row names it; ``heads`` name the columns.

    ``notes`` are sentences below the table, and ``picture`` is an SVG below these. Nothing is shortened.
    """
    parts = [
        '<table style="border-collapse: collapse">',
        f'<caption style="text-align: left"><b>{escape(title)}</b></caption>',
    ]
    if heads:
        cells = "".join(f'<th scope="col" style="{_CELL}">{escape(name)}</th>' for name in heads)
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    for name, *values in rows:
        cells = "".join(f'<td style="{_CELL}">{escape(value)}</td>' for value in values)
        parts.append(f'<tr><th scope="row" style="{_CELL}">{escape(name)}</th>{cells}</tr>')
    parts += ["</tbody></table>", *(f"<p>{escape(note)}</p>" for note in notes)]
    return "".join([*parts, show_picture(picture) if picture else ""])


def show_picture(svg: str) -> str:
    """An SVG as an ``<img>`` with its own description: it runs no script there, and loads nothing from outside."""
    found = re.search(r"<desc[^>]*>(.*?)</desc>", svg, re.DOTALL)
    about = unescape(found[1]) if found else ""
    coded = base64.b64encode(svg.encode("utf-8")).decode("ascii")
    return f'<img alt="{escape(about)}" style="max-width: 100%" src="data:image/svg+xml;base64,{coded}">'
