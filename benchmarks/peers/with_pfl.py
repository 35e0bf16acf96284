"""The workload in pfl: SimulatedBackend in one process, FederatedAveraging, one torch model that is reused."""

from __future__ import annotations

import workload  # type: ignore[import-not-found]  # isort: skip  # first: it decides about threads

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

torch.set_num_threads(1)


class Softmax(torch.nn.Linear):
    """The model, with what pfl asks for."""

    def loss(self, x, y):
        """The mean over a client's records."""
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        """None."""
        return {}


class Laps(TrainingProcessCallback):
    """Tells the clock of every round."""

    def __init__(self, clock):
        self.clock = clock

    def on_train_begin(self, *, model):
        """The first round begins."""
        self.clock.start()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """A round has ended."""
        self.clock.lap()
        return False, Metrics()


def main() -> None:
    told = workload.arguments()
    features, labels = (torch.from_numpy(part) for part in workload.pool())

    def data_of(client):
        own = workload.rows(client)
        return Dataset((features[own], labels[own]))

    sampler = get_user_sampler("minimize_reuse", list(range(told.clients)))  # with all of them: each once a round
    model = Softmax(workload.FEATURES, workload.CLASSES)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    clock = workload.Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=told.rounds, evaluation_frequency=10**9, train_cohort_size=told.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=FederatedDataset(data_of, sampler), val_data=None),
        wrapped,
        NNTrainHyperParams(local_batch_size=None, local_num_epochs=told.steps, local_learning_rate=workload.RATE),
        callbacks=[Laps(clock)],
    )  # fmt: skip
    weights = np.concatenate([part.detach().numpy().ravel() for part in (model.weight, model.bias)])
    workload.finish(told.out, weights, clock.seconds)


main()
