"""How a server turns many updates into one step: folds over updates, and what it does with their result."""

from __future__ import annotations

from quietsum.aggregation.mean import Combined, WeightedMean
from quietsum.aggregation.optimizers import ServerMomentum, ServerState

__all__ = ["Combined", "ServerMomentum", "ServerState", "WeightedMean"]
