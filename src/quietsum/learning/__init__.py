"""Learning: private steps on one party's rows.

``private_steps`` is DP-SGD in numpy. ``PrivateTrainer``, ``PrivacyConfig`` and ``make_private`` train torch models;
they need the extra ``quietsum[train]`` and load torch when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.learning.descent import private_steps

if TYPE_CHECKING:
    from quietsum.learning.config import PrivacyConfig
    from quietsum.learning.trainer import PrivateTrainer
    from quietsum.learning.wrapping import make_private

__all__ = ["PrivacyConfig", "PrivateTrainer", "make_private", "private_steps"]

_LATE = {"PrivacyConfig": "config", "PrivateTrainer": "trainer", "make_private": "wrapping"}


def __getattr__(name: str) -> object:
    """A name that needs torch, from its module."""
    if name not in _LATE:
        raise AttributeError(f"module 'quietsum.learning' has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(f"quietsum.learning.{_LATE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{name} trains torch models; install them with: pip install 'quietsum[train]'") from None
