"""Runs: a folder each, checkpoints that survive anything, and watchers that show what happens."""

from __future__ import annotations

__all__: list[str] = []
