"""Keys of ``alerts.toml`` as fields of frozen dataclasses: a default, or none, and what the key means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from quietsum.alerts.alert import Audience, Severity

__all__ = ["MUST", "OPERATOR", "OTHERS", "WARNING", "setting"]

MUST: Any = dataclasses.MISSING
OPERATOR, OTHERS, WARNING = Audience.OPERATOR, Audience.OTHERS, Severity.WARNING


def setting(default: Any, meaning: str) -> Any:
    """A field with its meaning, which errors and the reference page quote; without a default if it is ``MUST``."""
    about = {"meaning": meaning}
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=dict, metadata=about)
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=about)
    return dataclasses.field(default=default, metadata=about)
