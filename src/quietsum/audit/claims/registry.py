"""Whose settings can be read: one decorated function a system, with a table that declares the settings' keys.

>>> @reads("coin", "A coin that answers")
... def read_coin(settings: CoinSettings, stated: Stated) -> list[Line]: ...    # doctest: +SKIP

The settings are a class made by :func:`quietsum.keys.table`, so that types, bounds, unknown keys and the nearest right
one are checked before a reader sees them. A reader says what really happens, as privacy events; it computes no ε.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Callable
from typing import Any, final

from quietsum.audit.claims.values import ClaimLine, Stated
from quietsum.errors import InvalidParameter

__all__ = ["SystemReader", "list_systems", "reader_of", "reads"]

Read = Callable[[Any, Stated], list[ClaimLine]]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SystemReader:
    """How one system's settings are read."""

    name: str
    title: str
    settings: type[Any]
    read: Read


_READERS: dict[str, SystemReader] = {}
_MODULES = ("dp_sgd", "opacus", "tf_privacy", "flower", "nvflare", "documents")


def reads(name: str, title: str, settings: type[Any]) -> Callable[[Read], Read]:
    """Make the decorated function the reader of ``name``, whose settings ``settings`` declares."""

    def keep(read: Read) -> Read:
        _READERS[name] = SystemReader(name=name, title=title, settings=settings, read=read)
        return read

    return keep


def list_systems() -> tuple[SystemReader, ...]:
    """All systems whose settings can be read, by name."""
    for module in _MODULES:
        importlib.import_module(f"quietsum.audit.claims.{module}")
    return tuple(_READERS[name] for name in sorted(_READERS))


def reader_of(name: str) -> SystemReader:
    """The reader of ``name``; an unknown one is refused with the nearest."""
    known = {one.name: one for one in list_systems()}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.5)
    remedy = f"did you mean {close[0]!r}?" if close else f"choose {', '.join(known)}"
    raise InvalidParameter("system", name, "is not one whose settings can be read", remedy)
