"""JSON that notices its own damage: a hash of everything else lies beside the values, as ``check``.

A liar can compute the hash anew; that is what the ledger's signatures are for. This is for the bit that
a disk or a cable turned: it must not become another answer. Files of older versions have no ``check`` and are read as
they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["add_check", "take_check"]


def add_check(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` with their ``check``.

    >>> take_check(add_check({"round": 2}))
    {'round': 2}
    >>> take_check({**add_check({"round": 2}), "round": 3})
    Traceback (most recent call last):
    ...
    ValueError: it is not what was written
    """
    return {**values, "check": _hash(values)}


def take_check(values: Any) -> dict[str, Any]:
    """The values without their ``check``; ValueError where it does not fit them."""
    if not isinstance(values, dict):
        raise ValueError("it is not an object")
    rest = {name: value for name, value in values.items() if name != "check"}
    if "check" in values and values["check"] != _hash(rest):
        raise ValueError("it is not what was written")
    return rest


def _hash(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
