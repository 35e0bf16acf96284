"""Is the ledger intact? The answer of ``quietsum ledger verify``, asked now and then by a process of its own.

Opening a ledger checks its head, its high-water mark and what came since its last snapshot. Reading everything
again, with every ε, takes a second for some ten thousand entries, which no page may take. So the command runs beside
the pages, with the lowest priority, one at a time, and at most a twentieth of the time; the badge says which entry it
came to. It reads what the command reads and writes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from quietsum.web.reading import PageReader

__all__ = ["CheckState", "LedgerCheck"]

PATIENCE = 1800.0
"""Seconds after which a check is given up."""
LEAST = 30.0
SHARE = 20.0
"""A check is made again when it is this many times as old as it took, and LEAST seconds at least."""
BROKEN = 4


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckState:
    """What the last check found: ``intact`` is None before the first one; ``entries`` is how many it read."""

    intact: bool | None = None
    entries: int = 0
    sentence: str = ""
    running: bool = False
    finished: float = 0.0
    took: float = 0.0


@final
class LedgerCheck:
    """The check of one reader's ledger."""

    def __init__(self, reader: PageReader) -> None:
        self._reader, self._state = reader, CheckState()
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> CheckState:
        """What is known now."""
        running = self._task is not None and not self._task.done()
        return dataclasses.replace(self._state, running=running)

    def look(self, sequence: int) -> CheckState:
        """What is known, after a check was begun if one is due: the ledger has come to entry ``sequence``."""
        known = self.state
        due = known.finished + max(LEAST, SHARE * known.took) <= time.monotonic() or known.intact is None
        if not known.running and known.entries != sequence and due and self._can():
            self._task = asyncio.get_running_loop().create_task(self._run())
        return self.state

    async def close(self) -> None:
        """End a check that is under way."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def _can(self) -> bool:
        return self._reader.ledger_path.name == "ledger.db"  # what the command reads

    async def _run(self) -> None:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quietsum", "ledger", "verify", "--json",
            "--workspace", str(self._reader.ledger_path.parent),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            output, errors = await asyncio.wait_for(process.communicate(), PATIENCE)
        except TimeoutError:
            self._finish(CheckState(sentence="The check took too long and was given up."), began)
            return
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self._finish(self._judge(process.returncode, output, errors), began)

    def _judge(self, code: int | None, output: bytes, errors: bytes) -> CheckState:
        if code == 0:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                found = json.loads(output)
                return CheckState(intact=True, entries=int(found["entries"]))
        said = errors.decode(errors="replace").strip().removeprefix("error: ")[:600]
        if code == BROKEN:
            return CheckState(intact=False, sentence=self._reader.say(Exception(" ".join(said.split()))))
        return CheckState(sentence="The check could not be made; quietsum ledger verify says why.")

    def _finish(self, state: CheckState, began: float) -> None:
        now = time.monotonic()
        self._state = dataclasses.replace(state, finished=now, took=now - began)
