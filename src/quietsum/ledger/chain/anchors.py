"""Heads kept elsewhere, found again: in a receipt, a report, an export, or a file of one's own.

A chain alone forgets: with its tail cut off it still verifies. Whoever kept a head can tell. So any JSON file that
holds heads somewhere inside, one object or one a line, can serve as an anchor.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.ledger.chain.entries import Head

__all__ = ["read_anchors"]

_KEYS = {"ledger", "sequence", "hash", "signature"}


def read_anchors(path: str | os.PathLike[str]) -> tuple[Head, ...]:
    """All heads in a JSON or JSON-lines file; a file without any is an error, since it would anchor nothing."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter("anchor", str(path), f"cannot be read ({error})", "name a JSON file") from None
    heads = tuple(dict.fromkeys(head for value in _values(text, str(path)) for head in _heads(value)))
    if not heads:
        raise InvalidParameter(
            "anchor", str(path), "holds no ledger head",
            "use a report.json, a receipt, or the head that `quietsum ledger show --json` prints",
        )  # fmt: skip
    return heads


def _values(text: str, path: str) -> Iterator[Any]:
    try:
        yield json.loads(text)
        return
    except (ValueError, RecursionError):
        pass
    try:
        yield from (json.loads(line) for line in text.splitlines() if line.strip())
    except (ValueError, RecursionError):
        raise InvalidParameter("anchor", path, "is not JSON", "use a report.json or a receipt") from None


def _heads(value: Any) -> Iterator[Head]:
    if isinstance(value, dict):
        if value.keys() >= _KEYS:
            try:
                yield Head.from_dict({key: value[key] for key in _KEYS})
            except CorruptState as error:
                raise InvalidParameter("anchor", value, f"is a damaged head: {error}") from None
        for part in value.values():
            yield from _heads(part)
    elif isinstance(value, list):
        for part in value:
            yield from _heads(part)
