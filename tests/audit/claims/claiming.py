"""Helpers for tests of claims: a claim from plain values, and its single line."""

from __future__ import annotations

from typing import Any

from quietsum.audit import CheckedLine, check_claim, read_claim


def lines(system: str, settings: dict[str, Any], **claim: Any) -> tuple[CheckedLine, ...]:
    """The checked lines of a claim."""
    return check_claim(read_claim({"system": system, "settings": settings, "claim": claim})).lines


def line(system: str, settings: dict[str, Any], **claim: Any) -> CheckedLine:
    """The only line of a claim."""
    (found,) = lines(system, settings, **claim)
    return found


def names(found: CheckedLine, *kinds: str) -> list[str]:
    """The names of a line's remarks, of some kinds."""
    return [one.name for one in found.remarks if str(one.kind) in (kinds or ("mistake", "assumption"))]
