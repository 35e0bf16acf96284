"""A task whose updates are markers that no process but the party's own may hold, and what may go wrong in it."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.plan import PartyFacts
from quietsum.tasks import Metrics

Floats = NDArray[np.float64]
DIMENSION = 512
NAMES = ("east", "north", "south", "west")


def marker(party: str) -> Floats:
    """An update that nothing else in any process looks like."""
    place = np.arange(DIMENSION)
    return np.sin(1.0 + place * (3 + NAMES.index(party))) * 0.01 * (1 + 0.1 * NAMES.index(party))


class Marking:
    """Each party's update is its marker; the party called ``at`` has the ``fault`` instead."""

    name, title, dimension = "marking", "markers", DIMENSION

    def __init__(self, *, fault: str = "", at: str = "south", public: str = "made up") -> None:
        self.fault, self.at, self.public = fault, at, public

    def parties(self) -> tuple[PartyFacts, ...]:
        return tuple(PartyFacts(name=name, dataset=f"marks-{name}", size=100, public=self.public) for name in NAMES)

    def initial(self) -> Floats:
        return np.zeros(DIMENSION)

    def evaluate(self, params: Floats) -> Metrics:
        return Metrics(values={"first": float(params[0])}, on="nothing")

    def train(self, party: str, params: Floats, orders: Any, rng: Any) -> Floats:
        if party == self.at:
            match self.fault:
                case "raise":
                    raise ValueError("row 3 is odd")
                case "die":
                    os._exit(9)
                case "hang":
                    time.sleep(600)
        return marker(party)
