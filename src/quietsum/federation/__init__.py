"""One round, whoever carries the messages: reserve, draw, ask, commit, step."""

from __future__ import annotations

__all__: list[str] = []
