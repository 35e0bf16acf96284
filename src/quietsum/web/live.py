"""A run while it goes on: server-sent events, each the part of the page that has changed.

A stream looks once a second whether the run's files have changed, which costs a few calls of the system, and sends the
part anew if they have. However many look on, it is worked out once for each change. The last event is ``end``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from typing import final

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from quietsum.errors import QuietsumError
from quietsum.runs import RunFolder
from quietsum.web.pages import runs
from quietsum.web.rendering import View

__all__ = ["Streams"]

EVERY = 1.0
"""Seconds between two looks."""
QUIET = 15
"""Looks without news after which a comment is sent, so that a reader who has left is noticed."""
MOST = 16
"""Streams at a time; a page that is opened later stays without news."""
LONGEST = 3600
"""Looks after which a stream ends; a browser then begins another one."""


@final
class Streams:
    """The streams that are open."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._open = 0
        self._drawn: dict[str, tuple[Hashable, str]] = {}
        self._lock = asyncio.Lock()

    async def follow(self, request: Request) -> Response:
        """The stream of one run."""
        folder = await run_sync(self._view.reader.find, request.path_params["name"])
        if not isinstance(folder, RunFolder):
            return PlainTextResponse("no such run\n", 404)
        if self._open >= MOST:
            return PlainTextResponse("busy\n", 503)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._events(folder), media_type="text/event-stream", headers=headers)

    async def _events(self, folder: RunFolder) -> AsyncIterator[str]:
        self._open += 1
        try:
            seen: Hashable = None
            quiet = 0
            for _ in range(LONGEST):
                stamp = await run_sync(self._view.reader.stamp, folder)
                if stamp != seen:
                    seen, quiet = stamp, 0
                    yield _event("round", await self._draw(folder, stamp))
                    if folder.model.is_file() or not await run_sync(folder.busy):
                        yield _event("end", "")
                        return
                elif (quiet := quiet + 1) % QUIET == 0:
                    yield ": still here\n\n"
                await asyncio.sleep(EVERY)
        finally:
            self._open -= 1

    async def _draw(self, folder: RunFolder, stamp: Hashable) -> str:
        """The part of the page, worked out once for all streams of the run."""
        async with self._lock:
            known = self._drawn.get(folder.path.name)
            if known is None or known[0] != stamp:
                text = await run_sync(self._text, folder)
                known = self._drawn[folder.path.name] = (stamp, text)
                while len(self._drawn) > MOST:
                    del self._drawn[next(iter(self._drawn))]
            return known[1]

    def _text(self, folder: RunFolder) -> str:
        try:
            return self._view.render("live.html", **runs.live_values(self._view, folder))
        except QuietsumError as error:
            return self._view.render("notice.html", sentence=self._view.reader.say(error))


def _event(name: str, text: str) -> str:
    lines = "".join(f"data: {line}\n" for line in text.splitlines()) or "data: \n"
    return f"event: {name}\n{lines}\n"
