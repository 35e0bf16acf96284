"""Which servers this user has said a ledger is on.

A workspace may come from anybody, and ``ledger.db.url`` in it is data: a command that only looks does not call the
address in it because the file says so. It would tell a stranger who looks and when, and offer this machine's
passwords and certificates to the server that answers there. So somebody has to say it, outside of the workspace:

* ``$QUIETSUM_LEDGER_URL`` holds the same address; or
* this user has written to the ledger at that address before (a run, a training, a move, a site's service). A command
  that writes names the workspace to spend from, so it calls the server and remembers the address, one a line, in
  ``$XDG_STATE_HOME/quietsum/ledgers`` or ``~/.local/state/quietsum/ledgers``.

What is remembered is a convenience: where it cannot be written, nothing is lost but the need to say it again.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from quietsum.errors import QuietsumError
from quietsum.files import read_memory, remember

__all__ = ["MEMORY", "VARIABLE", "check_trust", "remember_server"]

VARIABLE = "QUIETSUM_LEDGER_URL"
MEMORY = "ledgers"
"""In the user's state folder: the addresses that this user has written to, one a line."""


def check_trust(url: str, *, place: str, file: Path) -> None:
    """Refuse to call ``url``, which ``file`` names, unless the user said so; ``place`` is its name in messages."""
    if url in (os.environ.get(VARIABLE, "").strip(), *read_memory(MEMORY)):
        return
    raise QuietsumError(
        f"{file} says that the ledger is at {place}, and no server has been called: a command that only looks calls no "
        f'server because a file says so. If you trust it, say so: export {VARIABLE}="$(cat {shlex.quote(str(file))})"'
    )


def remember_server(url: str) -> None:
    """This user writes to the ledger at ``url``, so commands that only look may call it from now on."""
    remember(MEMORY, url)
