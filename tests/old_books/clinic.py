"""The tasks of the old books: points at a few sites, with and without people. Old plans name them, so they stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics, Rows

Floats = NDArray[np.float64]


class PointsTask:
    """Least squares to the mean of two-dimensional points; a site's data set is called after the site."""

    name, title, dimension = "points", "the mean of points", 2

    def __init__(self, *, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)

    def parties(self) -> tuple[PartyFacts, ...]:
        return tuple(PartyFacts(name=name, dataset=f"points-{name}", size=size) for name, size in self.sizes.items())

    def initial(self) -> Floats:
        return np.zeros(2)

    def rows(self, party: str) -> Rows:
        count = self.sizes[party]
        return Rows(features=np.column_stack([np.linspace(0, 1, count), np.ones(count)]), labels=np.zeros(count))

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        return params - features

    def evaluate(self, params: Floats) -> Metrics:
        return Metrics(values={"distance": float(np.linalg.norm(params - 0.5))}, on="the true mean, which is public")


class ClinicTask(PointsTask):
    """The same where five rows in a row are one patient's."""

    name, title = "clinic", "the mean of patients' points"

    def people(self, party: str) -> NDArray[np.int64]:
        return np.arange(self.sizes[party]) // 5
