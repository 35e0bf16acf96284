"""Learning: private steps on one party's rows."""

from __future__ import annotations

from quietsum.learning.descent import private_steps

__all__ = ["private_steps"]
