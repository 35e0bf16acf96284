"""How a server turns many updates into one step: folds over updates, and what it does with their result."""

from __future__ import annotations

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
