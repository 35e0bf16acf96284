"""The workload in Flower: its message API, FedAvg, the simulation engine on Ray with one actor a processor."""

from __future__ import annotations

import os

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1", RAY_USAGE_STATS_ENABLED="0")

import workload  # type: ignore[import-not-found]  # isort: skip  # first: it decides about threads

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

torch.set_num_threads(1)
TOLD = workload.arguments() if __name__ == "__main__" else None
HERE = os.path.dirname(os.path.abspath(__file__))


def main() -> None:
    steps, clock = TOLD.steps, workload.Clock()
    client_app, server_app, final = ClientApp(), ServerApp(), []

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        import sys

        sys.path.insert(0, HERE)
        import workload
        from client_memory import model_and_records

        model, features, labels = model_and_records()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        own = workload.rows(int(context.node_config["partition-id"]))
        optimizer = torch.optim.SGD(model.parameters(), lr=workload.RATE)
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features[own]), labels[own]).backward()
            optimizer.step()
        reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": workload.EACH})}
        return Message(RecordDict(reply), reply_to=message)

    class Timed(FedAvg):
        """FedAvg that tells the clock of every round."""

        def configure_train(self, server_round, arrays, config, grid):
            if server_round == 1:
                clock.start()
            return super().configure_train(server_round, arrays, config, grid)

        def aggregate_train(self, server_round, replies):
            found = super().aggregate_train(server_round, replies)
            clock.lap()
            return found

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        model = torch.nn.Linear(workload.FEATURES, workload.CLASSES)
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        strategy = Timed(
            fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=TOLD.clients, min_train_nodes=TOLD.clients
        )
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=TOLD.rounds)
        final.append(result.arrays.to_torch_state_dict())

    run_simulation(
        server_app,
        client_app,
        num_supernodes=TOLD.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": TOLD.workers},
        },
    )
    weights = np.concatenate([final[0][name].numpy().ravel() for name in ("weight", "bias")])
    workload.finish(TOLD.out, weights, clock.seconds)


if __name__ == "__main__":
    main()
