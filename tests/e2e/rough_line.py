"""A line between sites and coordinator that is not loopback: it is slow, it breaks, and once it is silent.

``rough_line.py HOST PORT TO_HOST TO_PORT DELAY SECONDS SIGNS EVENT...``: every byte takes DELAY seconds. An EVENT is
``what,caller,when``, and happens once: at the first words from the address ``caller`` that are about to go by when the
file ``when`` is there or, where ``when`` is a number, with which that caller has sent more bytes than that. ``break``
breaks the connection, and those words are lost; ``silence`` lets nothing by for SECONDS, on old connections and on new
ones. So no event depends on how quick a machine is. What happened is written to SIGNS. Bytes are passed on and none is
read: TLS ends at the SuperLink.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import sys
import time
from pathlib import Path


class Line:
    """What all connections share."""

    def __init__(self, delay: float, seconds: float, signs: Path, events: list[str]) -> None:
        self.delay, self.seconds, self.signs, self.awaited = delay, seconds, signs, events
        self.happened: list[str] = []
        self.bytes: collections.Counter[str] = collections.Counter()
        self.connections, self.silent_until = 0, 0.0

    def begun(self) -> None:
        self.connections += 1
        self.tell()

    def event(self, caller: str, count: int) -> str:
        """What happens to the next ``count`` bytes of ``caller``: nothing, or the first event whose time has come."""
        self.bytes[caller] += count
        for event in self.awaited:
            what, whose, when = event.split(",")
            if whose == caller and (self.bytes[caller] > int(when) if when.isdigit() else Path(when).exists()):
                self.awaited.remove(event)
                self.happened.append(event)
                self.tell()
                return what
        return ""

    def tell(self) -> None:
        words = {"connections": self.connections, "bytes": self.bytes.total(), "happened": self.happened}
        fresh = self.signs.with_suffix(".new")
        fresh.write_text(json.dumps(words), encoding="utf-8")
        fresh.replace(self.signs)

    async def voice(self) -> None:
        while (left := self.silent_until - time.monotonic()) > 0:
            await asyncio.sleep(left)


async def passed_on(
    line: Line,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    caller: str = "",
    breaking: asyncio.Event | None = None,
) -> None:
    """One direction of a connection; sets ``breaking`` where an event says so."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=64)

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
            what = line.event(caller, len(piece)) if caller else ""
            if what == "silence":
                line.silent_until = time.monotonic() + line.seconds
                await line.voice()
            if breaking is not None and what == "break":
                breaking.set()
                return
            writer.write(piece)
            await writer.drain()
    finally:
        reading.cancel()


async def main() -> None:
    host, port, to_host, to_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    line = Line(float(sys.argv[5]), float(sys.argv[6]), Path(sys.argv[7]), sys.argv[8:])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line.begun()
        there = None
        breaking = asyncio.Event()
        caller = writer.get_extra_info("peername")[0]
        with contextlib.suppress(OSError):
            await line.voice()
            far, there = await asyncio.open_connection(to_host, to_port)
            ways = [
                asyncio.ensure_future(passed_on(line, reader, there, caller, breaking)),
                asyncio.ensure_future(passed_on(line, far, writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        for end in (writer, there):
            if end is not None:
                end.transport.abort() if breaking.is_set() else end.close()
        line.tell()

    server = await asyncio.start_server(serve, host, port)
    line.tell()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
