"""A line between sites and coordinator that is not loopback: it is slow, it breaks, and now and then it is silent.

``rough_line.py HOST PORT TO_HOST TO_PORT DELAY EVERY SILENT_AFTER SECONDS SIGNS``: every byte takes DELAY seconds;
each EVERY-th connection is broken once 2,500 bytes of the caller went by; once, after SILENT_AFTER bytes of all,
nothing goes by for SECONDS, on old connections and on new ones. What happened is counted in SIGNS. Bytes
are passed on and none is read: TLS ends at the SuperLink.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path

BROKEN_AT = 2500


class Line:
    """What all connections share."""

    def __init__(self, delay: float, every: int, silent_after: int, seconds: float, signs: Path) -> None:
        self.delay, self.every, self.silent_after, self.seconds, self.signs = delay, every, silent_after, seconds, signs
        self.connections = self.broken = self.bytes = 0
        self.silent_until, self.silences = 0.0, 0

    def begun(self) -> int:
        self.connections += 1
        self.tell()
        return self.connections

    def went_by(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self.silent_after and self.seconds and not self.silences:
            self.silent_until, self.silences = time.monotonic() + self.seconds, 1
            self.tell()

    def tell(self) -> None:
        words = {"connections": self.connections, "broken": self.broken, "silences": self.silences, "bytes": self.bytes}
        fresh = self.signs.with_suffix(".new")
        fresh.write_text(json.dumps(words), encoding="utf-8")
        fresh.replace(self.signs)

    async def voice(self) -> None:
        while (left := self.silent_until - time.monotonic()) > 0:
            await asyncio.sleep(left)


async def passed_on(
    line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, breaking: asyncio.Event | None
) -> None:
    """One direction of a connection; sets ``breaking`` once enough has gone by."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)
    seen = 0

    async def read() -> None:
        while piece := await reader.read(65536):
            await queue.put((time.monotonic() + line.delay, piece))
        await queue.put((time.monotonic() + line.delay, b""))

    reading = asyncio.ensure_future(read())
    try:
        while True:
            due, piece = await queue.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await line.voice()
            if not piece:
                return
            writer.write(piece)
            await writer.drain()
            seen += len(piece)
            line.went_by(len(piece))
            if breaking is not None and seen > BROKEN_AT:
                breaking.set()
    finally:
        reading.cancel()


async def main() -> None:
    host, port, to_host, to_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    line = Line(float(sys.argv[5]), int(sys.argv[6]), int(sys.argv[7]), float(sys.argv[8]), Path(sys.argv[9]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = line.begun()
        there = None
        breaking = asyncio.Event()
        with contextlib.suppress(OSError):
            await line.voice()
            far, there = await asyncio.open_connection(to_host, to_port)
            doomed = bool(line.every) and number % line.every == 0
            ways = [
                asyncio.ensure_future(passed_on(line, reader, there, breaking if doomed else None)),
                asyncio.ensure_future(passed_on(line, far, writer, None)),
                asyncio.ensure_future(breaking.wait()),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, there):
            if end is not None:
                end.transport.abort() if breaking.is_set() else end.close()
        line.broken += breaking.is_set()
        line.tell()

    server = await asyncio.start_server(serve, host, port)
    line.tell()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
