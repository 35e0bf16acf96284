"""Audit: is a finished run what it claims to be, and are the claims of others?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.audit.shares import bound_share as bound_share
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
