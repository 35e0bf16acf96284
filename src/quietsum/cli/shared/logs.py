"""Log lines of quietsum on stderr, for the commands that go on for a while."""

from __future__ import annotations

import logging
from typing import Any

__all__ = ["watch_log"]


def watch_log(verbose: int) -> None:
    """Warnings; with -v what happens, with -vv everything."""
    logger = logging.getLogger("quietsum")
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logger.setLevel(level)
    for old in [handler for handler in logger.handlers if isinstance(handler, _ToStderr)]:
        logger.removeHandler(old)
    handler = _ToStderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)


class _ToStderr(logging.StreamHandler[Any]):
    """Ours, so that a second command in one process replaces it."""
