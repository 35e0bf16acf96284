"""Places where a test may stop the world.

Code that must survive a crash calls :func:`reach` between any two steps whose order matters. In a user's process that
is a call of a function that does nothing. A test installs a hook with :func:`install`, kills the process at the n-th
place, starts again and looks at what was lost.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["install", "reach"]

_hook: Callable[[str], None] | None = None


def reach(place: str) -> None:
    """Say that ``place`` was reached, for instance ``"ledger.reserve:before"``."""
    if _hook is not None:
        _hook(place)


def install(hook: Callable[[str], None] | None) -> None:
    """Call ``hook`` at every place from now on; None takes it away again. For tests."""
    global _hook
    _hook = hook
