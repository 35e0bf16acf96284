"""What an event costs: events, guarantees and accountants. Needs numpy and scipy only."""

from __future__ import annotations

__all__ = ["cache_clear"]


def cache_clear() -> None:
    """Forget everything computed for single mechanisms. Benchmarks call it so that each timing starts cold."""
    import sys

    for name, module in list(sys.modules.items()):
        if name.startswith("quietsum.privacy."):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear) and value is not cache_clear:
                    clear()
