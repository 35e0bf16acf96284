"""What accountants keep between questions, and how a benchmark makes them forget it."""

from __future__ import annotations

import sys

__all__ = ["cache_clear"]

# Tables that depend on a grid of orders or nodes alone, not on any mechanism: constants of the method.
_TABLES = frozenset({"_alpha", "_conversion_terms", "_frame", "_plan", "_stretching"})


def cache_clear() -> None:
    """Forget everything computed for mechanisms, so that a benchmark's next timing starts cold.

    Tables of a method itself (binomial coefficients of the Rényi orders, nodes of a contour) stay.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("quietsum.privacy."):
            for key, value in list(vars(module).items()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear) and key not in _TABLES:
                    clear()
