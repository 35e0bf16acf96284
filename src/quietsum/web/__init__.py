"""The dashboard: pages that show a workspace or a site, and change nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.web.access import DashboardAccess as DashboardAccess
    from quietsum.web.app import create_app as create_app
    from quietsum.web.reading import PageReader as PageReader
    from quietsum.web.serving import Dashboard as Dashboard, open_dashboard as open_dashboard
else:
    _INSTALL = "needs a library that is not installed; pip install 'quietsum[serve]'"
    __getattr__, __dir__, __all__ = open_door(
        __name__, lacking={"starlette": _INSTALL, "uvicorn": _INSTALL, "jinja2": _INSTALL, "anyio": _INSTALL}
    )
