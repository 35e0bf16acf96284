"""The work of ``sites.py`` as a task of quietsum.

Without noise a site calls the very function that Flower's client calls. With noise on every record it takes the
package's own private step, which needs a gradient per record: that is the price of privacy, not of the network.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import sites  # type: ignore[import-not-found]

from quietsum.learning.descent import private_steps
from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows


class Sites:
    """Softmax regression at a few sites."""

    name, title = "sites", "softmax regression on made-up records"

    def __init__(self, *, model: str, sites: int, protected: bool) -> None:
        self.model, self.count, self.protected = model, sites, protected

    @property
    def dimension(self) -> int:
        """Parameters."""
        return sites.dimension(self.model)

    def parties(self) -> tuple[PartyFacts, ...]:
        """Made-up records, protected if so told."""
        public = "" if self.protected else "the records are made up"
        return tuple(
            PartyFacts(name=f"site-{i}", dataset=f"records-{i}", size=sites.EACH, public=public)
            for i in range(self.count)
        )

    def initial(self) -> Any:
        """Zeros."""
        return np.zeros(self.dimension)

    def evaluate(self, params: Any) -> Metrics:
        """The length of the model: a score that takes no time, because the peer computes none."""
        return Metrics(values={"length": float(np.linalg.norm(params))}, on="no records at all")

    def train(self, party: str, params: Any, orders: Any, rng: Any) -> Any:
        """One round of one site."""
        site = int(party.rpartition("-")[2])
        if orders.mechanism is None:
            return sites.trained(self.model, params, site) - params
        features, labels = sites.records(self.model, site)
        return private_steps(
            self,
            params,
            Rows(features=features, labels=labels.astype(np.float64)),
            steps=orders.steps,
            sampling=orders.sampling,
            mechanism=orders.mechanism,
            expected_batch=orders.expected_batch,
            learning_rate=orders.learning_rate,
            momentum=orders.momentum,
            rng=rng,
        )

    def gradients(self, params: Any, features: Any, labels: Any) -> Any:
        """One gradient per record, (n, dimension); one record at a time, so that none depends on another's bits."""
        found = np.empty((len(labels), self.dimension))
        for i in range(len(labels)):
            wrong = sites.errors(self.model, params, features[i : i + 1], labels[i : i + 1])[0]
            split = len(wrong) * features.shape[1]
            np.multiply.outer(wrong, features[i], out=found[i, :split].reshape(len(wrong), -1))
            found[i, split:] = wrong
        return found
