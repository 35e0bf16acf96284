"""Flower's server: FedAvg over all sites, which notes when each round began and ended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from across_app import sites  # type: ignore[attr-defined]

app = ServerApp()


class Noted(FedAvg):
    """FedAvg with a file of times, a line an event."""

    times: Path

    def _note(self, event: str, number: int) -> None:
        with self.times.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "round": number, "time": time.time()}) + "\n")

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: Any, grid: Grid) -> Iterable[Message]:
        """Note when sites have been found and the round begins."""
        messages = super().configure_train(server_round, arrays, config, grid)
        self._note("round-started", server_round)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Note when the mean is there."""
        replies = list(replies)
        lost = [reply for reply in replies if reply.has_error()]
        found = super().aggregate_train(server_round, replies)
        self._note("round-finished" if not lost else f"round-lost-{len(lost)}", server_round)
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    """All rounds, then the weights."""
    told, out = context.run_config, Path(str(context.run_config["out"]))
    count = int(told["sites"])
    strategy = Noted(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=count, min_train_nodes=count)
    strategy.times = out / "times.jsonl"
    first = ArrayRecord({"params": Array(np.zeros(sites.dimension(str(told["model"]))))})
    result = strategy.start(grid=grid, initial_arrays=first, num_rounds=int(told["rounds"]), timeout=600)
    np.save(out / "weights.new.npy", result.arrays["params"].numpy())
    (out / "weights.new.npy").rename(out / "weights.npy")
