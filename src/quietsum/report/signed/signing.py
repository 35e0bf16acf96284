"""Sign a report with the ledger's key, and write it in the one form in which a signature is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietsum.ledger import key_path, load_key, message_to_sign
from quietsum.report.verifier import REPORT, message_of

__all__ = ["plain_values", "sign"]


def plain_values(value: Any) -> Any:
    """``value`` with lists for tuples, "Infinity" for what is infinite, and no negative zero."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else "Infinity"
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    return value


def sign(document: Mapping[str, Any], ledger: Path, public_key: str, kind: str = REPORT) -> dict[str, Any]:
    """``document`` with its signature, or as it is if the key does not lie beside ``ledger``, as beside a copy.

    Raises LedgerBroken if another ledger's key lies there, or one that others can read.
    """
    said = {name: value for name, value in document.items() if name != "signature"}
    if not key_path(ledger).exists():
        return said
    key = load_key(ledger, public_key)
    signature = key.sign(message_to_sign(message_of(said, kind)))
    signed = {"format": kind, "algorithm": "Ed25519", "public_key": public_key, "signature": signature}
    return {**said, "signature": signed}
