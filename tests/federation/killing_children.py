"""The control of :mod:`federation.killing`: the same stories with processes and SIGKILL must leave the same books.

The side that is to die runs in a forked child and is killed by the kernel at the chosen failpoint. Run as a program
(``python -m federation.killing_children FOLDER STYLE SIDE COUNT``), so that nothing else is loaded in what forks; it
tells for each kill what a true one and a simulated one left on the disks, then and at the end.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from federation.killing import COORDINATOR, SIDES, Story
from federation.reading import check
from quietsum import failpoints
from quietsum.federation.remote.transport import Arrival

CHILD_FAILED = 70


class Distant:
    """The carrier as a coordinator in a child sees it: every call crosses a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self.now = pipe, 0.0

    def _call(self, name: str, *given: Any) -> Any:
        self._pipe.send((name, *given))
        found = self._pipe.recv()
        self.now = found[1]
        return found[0]

    def nodes(self) -> Sequence[str]:
        found: Sequence[str] = self._call("nodes")
        return found

    def send(self, node: str, content: bytes, *, lasting: float) -> str:
        name = str(self._call("send", node, content))
        failpoints.reach("carrier:sent")
        return name

    def receive(self, wait: float) -> Sequence[Arrival]:
        found: Sequence[Arrival] = self._call("receive", wait)
        return found

    def forget(self, message: str) -> None:
        self._call("forget", message)

    def close(self) -> None:
        pass


class TrueStory(Story):
    """One side lives in a child process until it was killed there; the others live here."""

    def __init__(self, folder: Path, style: str, side: str, number: int, **options: Any) -> None:
        super().__init__(folder, style, **options)
        self.mortal, self.number = side, number
        self.dead = 0
        self._child: tuple[int, Connection] | None = None

    def _fork(self, work: Any) -> tuple[int, Connection]:
        here, there = Pipe()
        child = os.fork()
        if child:
            there.close()
            return child, here
        code = CHILD_FAILED
        try:
            here.close()
            left = self.number

            def hook(place: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            failpoints.install(hook)
            work(there)
            code = 0
        except EOFError:
            code = 0
        finally:
            os._exit(code)

    def _reap(self, child: int) -> None:
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "the child failed by itself"
        self.dead += 1

    # ---------------------------------------------------------------------------------------- a mortal coordinator

    def coordinate(self, transport: Any) -> Any:
        if self.mortal != COORDINATOR or self.dead:
            return super().coordinate(transport)
        child, pipe = self._fork(lambda there: super(TrueStory, self).coordinate(Distant(there)))
        try:
            while True:
                name, *given = pipe.recv()
                found = self.send(*given, lasting=1.0) if name == "send" else getattr(self, name)(*given)
                pipe.send((found, self.now))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pipe.close()
        self._reap(child)
        self.mourn(COORDINATOR)
        return super().coordinate(transport)

    # ------------------------------------------------------------------------------------------------ a mortal site

    def _answer(self, site: str, content: bytes) -> bytes | None:
        if site != self.mortal or self.dead:
            return super()._answer(site, content)
        if self._child is None:
            self._child = self._fork(lambda there: self._serve(site, there))
        child, pipe = self._child
        try:
            pipe.send_bytes(content)
            reply = pipe.recv_bytes()
            self.notes.replied(site, reply)  # it has left
            pipe.recv_bytes()
            return reply
        except (EOFError, BrokenPipeError, ConnectionResetError):
            pipe.close()
            self._child = None
            self._reap(child)
            self._look(site)
            return None

    def _serve(self, site: str, pipe: Connection) -> None:
        service = None
        while True:
            content = pipe.recv_bytes()
            service = service or self.begin_site(site)
            pipe.send_bytes(service.answer(content))
            failpoints.reach("carrier:left")
            pipe.send_bytes(b"alive")


class NthStep(Story):
    """The simulation: the same side dies at the same number of its own steps."""

    def __init__(self, folder: Path, style: str, side: str, number: int, **options: Any) -> None:
        super().__init__(folder, style, **options)
        self.mortal, self.left = side, number

    def _hook(self, place: str) -> None:
        self.places[self.side, place] += 1
        if self.side == self.mortal:
            self.left -= 1
            if self.left == 0:
                self._die(place, (self.side,))


def books(story: Story, *dead: str) -> dict[str, Any]:
    """What lies on the disks, without what differs from run to run: acts of every ledger, and checkpoints."""
    pages = check(story, *dead)
    found: dict[str, Any] = {side: pages[side].acts for side in SIDES}
    home = story.homes[COORDINATOR]
    found["files"] = sorted(str(path.relative_to(home)) for path in home.glob("runs/*/**/*.safetensors"))
    return found


def told(story: Story) -> list[dict[str, Any]]:
    """The books after the kill, and at the end."""
    seen: list[dict[str, Any]] = []
    story.after_kill = lambda *dead: seen.append(books(story, *dead))
    assert story.go().outcome == "finished"
    return [*seen, books(story)]


def main(folder: str, style: str, side: str, count: str) -> None:
    """``count`` kills of ``side``, spread over its steps, each done in both ways; one line of JSON each."""
    logging.getLogger("quietsum").setLevel(logging.CRITICAL)
    quiet = Story(Path(folder) / "quiet", style)
    quiet.go()
    steps = sum(times for (who, _), times in quiet.places.items() if who == side)
    for kill in range(int(count)):
        number = 1 + kill * (steps - 1) // max(1, int(count) - 1)
        true = told(TrueStory(Path(folder) / f"true-{kill}", style, side, number))
        simulated = told(NthStep(Path(folder) / f"simulated-{kill}", style, side, number))
        print(json.dumps({"step": number, "true": true, "simulated": simulated}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
