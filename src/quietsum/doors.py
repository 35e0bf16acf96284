"""Doors: the names that a room shows to others, each loaded when it is first asked for.

A room's ``__init__`` imports its public names for type checkers, under ``if TYPE_CHECKING``, and calls
:func:`open_door` otherwise. The names stand there once: at run time the door reads them from that block (PEP 562).
Importing a room therefore loads none of its modules, and nothing heavy that they need.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def open_door(
    room: str, lacking: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of the package ``room``, from the imports in its source.

    ``lacking`` says, by the name of an optional library, what to answer if it is not installed. Values are not kept
    here: a name is looked up in its own module each time. Raises ImportError if the package has no source.
    """
    homes = _homes(room)

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        module, original = homes[name]
        try:
            return getattr(importlib.import_module(module), original)
        except ModuleNotFoundError as error:
            advice = (lacking or {}).get(error.name or "")
            if advice is None:
                raise
            raise ImportError(f"{name} {advice}") from None

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[room]), *homes})

    return find, listing, sorted(homes)


def _homes(room: str) -> dict[str, tuple[str, str]]:
    """By public name: the module where it lives, and what it is called there."""
    try:
        source = inspect.getsource(sys.modules[room])
    except OSError:
        raise ImportError(
            f"{room} reads its public names from its source, which is not here; install it with pip"
        ) from None
    homes: dict[str, tuple[str, str]] = {}
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    for name in node.names:
                        homes[name.asname or name.name] = (node.module, name.name)
    return homes
