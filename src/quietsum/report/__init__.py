"""What a privacy officer reads: the guarantee, the curve, the ledger's head, and how to check them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.report.contents import build as build, write as write
    from quietsum.report.listing import list_run as list_run
    from quietsum.report.page import curve as curve
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
