"""A site: its data, its work in a round, its refusal."""

from __future__ import annotations

from quietsum.party.work import Site

__all__ = ["Site"]
