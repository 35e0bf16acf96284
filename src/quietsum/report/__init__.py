"""What a privacy officer reads: the guarantee, the curve, the ledger's head, and how to check them."""

from __future__ import annotations

from quietsum.report.build import build, write
from quietsum.report.listing import listed
from quietsum.report.page import curve

__all__ = ["build", "curve", "listed", "write"]
