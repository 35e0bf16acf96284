"""How a server turns many updates into one step: folds over updates, and what it does with their result."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietsum.aggregation.clients import ClientSum
    from quietsum.aggregation.fold import Combined, Fold
    from quietsum.aggregation.mean import WeightedMean
    from quietsum.aggregation.optimizers import FedAdam, FedAvg, FedAvgM, ServerOptimizer, ServerState, server_optimizer

__all__ = [
    "ClientSum",
    "Combined",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "Fold",
    "ServerOptimizer",
    "ServerState",
    "WeightedMean",
    "server_optimizer",
]

_PLACES = {"ClientSum": "clients", "Combined": "fold", "Fold": "fold", "WeightedMean": "mean"}


def __getattr__(name: str) -> Any:  # lazy, so that a plan can ask the rules about themselves without loading noise
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_PLACES.get(name, 'optimizers')}"), name)
    globals()[name] = found
    return found
