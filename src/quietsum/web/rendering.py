"""Templates and files: how values become pages, and which files the dashboard sends.

Every text that stands in a page is escaped: strangers may have chosen it, and a run may be called ``<script>``. Only
pictures, whose functions escape what they write, go in as they are. The files are read when the dashboard starts; a
name that is none of theirs does not exist.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from importlib.resources import files as resources
from typing import Any, final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from quietsum.charts import STYLE
from quietsum.errors import printable
from quietsum.report import percent, show_bound, small
from quietsum.web.access import DashboardAccess
from quietsum.web.checking import LedgerCheck
from quietsum.web.reading import PageReader
from quietsum.web.thinking import Thinker

__all__ = ["Files", "View", "view_of"]

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
CONFIG = {
    "allowEval": False, "allowScriptTags": False, "includeIndicatorStyles": False, "selfRequestsOnly": True,
    "historyCacheSize": 0, "refreshOnHistoryMiss": True, "timeout": 20_000,
}  # fmt: skip
"""What htmx may do: swap what this server sends, and nothing else."""


@final
class View:
    """What every page needs: the reader, who may see what, and the templates."""

    def __init__(self, reader: PageReader, access: DashboardAccess, check: LedgerCheck) -> None:
        self.reader, self.access, self.check = reader, access, check
        self.thinker = Thinker()
        self.plans: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
        """Answers of the planner."""
        self._templates = Environment(
            loader=PackageLoader("quietsum.web"), autoescape=True, undefined=StrictUndefined, auto_reload=False,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= {
            "shown": show_bound, "percent": percent, "small": small, "when": _when, "count": _count, "score": _score,
            "plain": lambda text: printable(str(text)), "urlencode": lambda text: quote(str(text), errors="replace"),
        }  # fmt: skip
        self._templates.globals |= {
            "workspace": printable(reader.workspace.path.absolute().name) if reader.policy is None
            else printable(reader.policy.name),
            "operator": access.operator, "site": reader.policy is not None, "config": json.dumps(CONFIG),
            "version": Files.digest(),
        }  # fmt: skip

    def page(self, request: Request, template: str, /, *, code: int = 200, **values: Any) -> Response:
        """A whole page from ``template``."""
        text = self.render(template, path=request.url.path, **values)
        return HTMLResponse(text.encode("utf-8", "replace"), code)

    def render(self, template: str, /, **values: Any) -> str:
        """``template`` with these values."""
        return self._templates.get_template(template).render(**values)


def view_of(request: Request) -> View:
    """The view of the application that a request came to."""
    view: View = request.app.state.view
    return view


def _when(time: str) -> str:
    """A time as it stands in files, to the minute."""
    return str(time).replace("T", " ")[:16]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _score(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.3f}"


@final
class Files:
    """The files under /static: scripts, style and icon, as they lie in the package."""

    def __init__(self) -> None:
        self._files = {name: (content, _TYPES[f".{name.rpartition('.')[2]}"]) for name, content in _read().items()}

    @staticmethod
    def digest() -> str:
        """What changes when a file does; stands in their addresses."""
        return hashlib.sha256(b"".join(content for _, content in sorted(_read().items()))).hexdigest()[:12]

    async def send(self, request: Request) -> Response:
        """The file that the address names; 404 for every other name."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response(status_code=404)
        content, kind = found
        headers: Mapping[str, str] = {"cache-control": "private, max-age=3600", "content-type": kind}
        return Response(content, headers=dict(headers))


def _read() -> dict[str, bytes]:
    place = resources("quietsum.web") / "static"
    found = {one.name: one.read_bytes() for one in place.iterdir() if f".{one.name.rpartition('.')[2]}" in _TYPES}
    return {**found, "charts.css": STYLE.encode()}
