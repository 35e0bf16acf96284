"""The application: which address shows what, and what happens when something cannot be shown.

Every route reads. A page that fails says in one sentence what is wrong with the workspace, without a path of this
machine; what is a mistake of ours says nothing but that, and the log of the process holds the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from quietsum.errors import QuietsumError
from quietsum.web.access import DashboardAccess, Guard
from quietsum.web.checking import LedgerCheck
from quietsum.web.live import Streams
from quietsum.web.pages import books, parties, planner, results, runs
from quietsum.web.reading import PageReader
from quietsum.web.rendering import Files, View

__all__ = ["create_app"]

log = logging.getLogger(__name__)


def create_app(reader: PageReader, access: DashboardAccess, *, ahead: bool = False) -> ASGIApp:
    """The dashboard of ``reader``'s workspace, for those whom ``access`` lets in.

    ``ahead`` reads the first page, and begins the planner's process, before they are asked for.
    """
    view = View(reader, access, LedgerCheck(reader))
    streams, files = Streams(view), Files()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if ahead:
            view.thinker.begin()
            asyncio.get_running_loop().run_in_executor(None, reader.read_ahead)
        try:
            yield
        finally:
            await view.check.close()
            view.thinker.close()
            reader.close()

    async def fail(request: Request, error: Exception) -> Response:
        return _explain(view, request, error)

    app = Starlette(
        routes=[
            Route("/", runs.list_runs),
            Route("/runs/{name}", runs.show_run),
            Route("/runs/{name}/rounds", runs.show_rounds),
            Route("/runs/{name}/live", streams.follow),
            Route("/runs/{name}/report", results.show_report),
            Route("/compare", results.compare),
            Route("/planner", planner.show_planner),
            Route("/planner/answer", planner.answer),
            Route("/ledger", books.show_books),
            Route("/ledger/state", books.show_state),
            Route("/parties", parties.show_parties),
            Route("/site", parties.show_site),
            Route("/alerts", parties.show_alerts),
            Route("/audits", results.list_audits),
            Route("/questions", results.list_questions),
            Route("/questions/{name}", results.show_answers),
            Route("/static/{name}", files.send),
        ],
        exception_handlers={HTTPException: fail, QuietsumError: fail, OSError: fail, Exception: _fail_quietly},
        lifespan=lifespan,
    )
    app.state.view = view
    return Guard(app, access)


def _explain(view: View, request: Request, error: Exception) -> Response:
    """A page that says what is wrong, with the status that fits."""
    if isinstance(error, HTTPException):
        sentence = {404: "There is nothing at this address.", 400: str(error.detail)}.get(error.status_code, "")
        return view.page(
            request, "problem.html", title="Not found" if error.status_code == 404 else "Not possible",
            sentence=sentence or "This cannot be shown.", code=error.status_code,
        )  # fmt: skip
    if isinstance(error, QuietsumError):
        sentence = view.reader.say(error)
    else:
        log.warning("%s: %s", request.url.path, error)
        sentence = "A file of the workspace cannot be read just now."
    return view.page(request, "problem.html", title="This cannot be shown", sentence=sentence, code=500)


async def _fail_quietly(request: Request, error: Exception) -> Response:
    """What stands in the log of the process, and nowhere else."""
    log.error("%s failed", request.url.path, exc_info=error)
    return PlainTextResponse("something failed\n", 500)
