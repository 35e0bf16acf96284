"""Which servers this user has said a ledger is on.

A workspace may come from anybody, and ``ledger.db.url`` in it is data: a command that only looks does not call the
address in it because the file says so. It would tell a stranger who looks and when, and offer this machine's
passwords and certificates to whoever answers there. So somebody has to say it, outside of the workspace:

* ``$QUIETSUM_LEDGER_URL`` holds the same address; or
* this user has written to the ledger at that address before (a run, a training, a move, a site's service). A command
  that writes is told which workspace to spend from, so it calls the server and remembers the address, one a line, in
  ``$XDG_STATE_HOME/quietsum/ledgers`` or ``~/.local/state/quietsum/ledgers``.

What is remembered is a convenience: where it cannot be written, nothing is lost but the need to say it again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from pathlib import Path

from quietsum.errors import QuietsumError
from quietsum.files import PRIVATE, NoRoom, read_file, write_atomically

__all__ = ["VARIABLE", "check_trust", "remember_server"]

VARIABLE = "QUIETSUM_LEDGER_URL"
LONGEST = 1 << 20


def check_trust(url: str, *, place: str, file: Path) -> None:
    """Refuse to call ``url``, which ``file`` names, unless the user said so; ``place`` is how messages call it."""
    if url in (os.environ.get(VARIABLE, "").strip(), *_known_servers()):
        return
    raise QuietsumError(
        f"{file} says that the ledger is at {place}, and nobody has been called: a command that only looks calls no "
        f'server because a file says so. If you trust it, say so: export {VARIABLE}="$(cat {shlex.quote(str(file))})"'
    )


def remember_server(url: str) -> None:
    """This user writes to the ledger at ``url``; harmless where it cannot be kept."""
    path = _path()
    if path is None or url in _known_servers():
        return
    with contextlib.suppress(OSError, NoRoom):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(
            path, "".join(f"{known}\n" for known in sorted({*_known_servers(), url})).encode(), mode=PRIVATE
        )


def _known_servers() -> frozenset[str]:
    path = _path()
    try:
        return frozenset() if path is None else frozenset(read_file(path, LONGEST).decode().splitlines())
    except (OSError, UnicodeDecodeError):
        return frozenset()


def _path() -> Path | None:
    """Where addresses are remembered; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        folder = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder / "quietsum" / "ledgers"
