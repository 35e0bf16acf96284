"""Heart with a gate: a hospital waits in the middle of its work for as long as a file of its name lies in $HOLD."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from quietsum.plan import PartyFacts
from quietsum.tasks import Rows
from quietsum.tasks.gallery.heart import HeartTask


class HeldHeart:
    """The packaged rows, protected by declaration, so that every budget is real."""

    name = "held"
    title = "heart disease, with hospitals that can be held up"

    def __init__(self) -> None:
        self._heart = HeartTask.from_package()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._heart, name)

    @property
    def dimension(self) -> int:
        return self._heart.dimension

    def parties(self) -> tuple[PartyFacts, ...]:
        return tuple(
            PartyFacts(name=facts.name, dataset=f"held-{facts.name}", size=facts.size)
            for facts in self._heart.parties()
            if facts.name != "switzerland"
        )

    def initial(self) -> Any:
        return self._heart.initial()

    def rows(self, party: str) -> Rows:
        gate = Path(os.environ["HOLD"]) / party
        while gate.exists():
            time.sleep(0.02)
        return self._heart.rows(party)

    def gradients(self, params: Any, features: Any, labels: Any) -> Any:
        return self._heart.gradients(params, features, labels)

    def evaluate(self, params: Any) -> Any:
        return self._heart.evaluate(params)
