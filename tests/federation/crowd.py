"""A federation of many clients without any model: what each of them sends is written down, and so are its faults."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing
from quietsum.mechanisms.rng import RandomSource
from quietsum.party.work import NotTouched
from quietsum.plan import PartyFacts, Plan, ResolvedPlan, resolve
from quietsum.plan.orders import LocalOrders
from quietsum.tasks import Metrics

Floats = NDArray[np.float64]


class CrowdTask:
    """Client i sends (1, i, i²); the client called ``at`` (or ``everybody``) has the ``fault`` instead.

    ``now`` is a clock that a slow client moves. Whoever is trained is written to the ``diary``.
    """

    name, title, dimension = "crowd", "a crowd", 3

    def __init__(
        self, *, clients: int = 20, fault: str = "", at: str = "c003", together: str = "", diary: str = ""
    ) -> None:
        self.clients, self.fault, self.at, self.together, self.diary = clients, fault, at, together, diary
        self.now = 0.0

    def parties(self) -> tuple[PartyFacts, ...]:
        names = [f"c{i:03}" for i in range(self.clients)]
        return tuple(PartyFacts(name=name, dataset="crowd", size=1000, holder="crowd") for name in names)

    def initial(self) -> Floats:
        return np.zeros(3)

    def evaluate(self, params: Floats) -> Metrics:
        return Metrics(values={"first": float(params[0])}, on="nothing")

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        if self.diary:
            with open(self.diary, "a", encoding="utf-8") as diary:
                diary.write(f"{party}\n")
        if self.fault and self.at in (party, "everybody"):
            self._fail()
        if self.fault == "later" and party == "c004":
            time.sleep(0.5)
        if party == self.at and self.fault == "nan":
            return np.array([np.nan, 0.0, 0.0])
        if party == self.at and self.fault == "short":
            return np.zeros(2)
        number = int(party[1:])
        return np.array([1.0, number, number**2])

    def _fail(self) -> None:
        match self.fault:
            case "raise":
                raise RuntimeError("record 17 of Ms Smith is broken")
            case "assert":
                raise AssertionError("the age of Ms Smith is 141")
            case "attribute":
                raise AttributeError("'NoneType' of Ms Smith has no attribute 'age'")
            case "memory":
                raise MemoryError("no room for the 141 visits of Ms Smith")
            case "key":
                raise KeyError("Ms Smith, 141")
            case "own":
                raise NotTouched("Ms Smith said no")
            case "missing":
                raise DataMissing("the file is gone")
            case "slow":
                self.now += 10.0
            case "later":
                threading.Timer(0.2, os._exit, [9]).start()
            case "die":
                os._exit(9)
            case "exit":
                raise SystemExit("Ms Smith is 141")
            case "hang":
                time.sleep(600)
            case "print":
                print("hello from a task")
                os.write(1, b"and from its C code\n")


class CrowdTogether(CrowdTask):
    """The same, and many at once; ``together`` is what goes wrong then."""

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Iterator[tuple[tuple[str, ...], Floats]]:
        for start in range(0, len(parties), 8):
            names = tuple(parties[start : start + 8])
            if self.together == "raise" and start:
                raise RuntimeError("no memory is left")
            if self.together == "others":
                names = (*names[:-1], "stranger")
            rows = [self.train(name, params, orders[start], rng) if name in parties else np.zeros(3) for name in names]
            yield names, np.stack(rows)
            if self.together == "twice":
                yield names, np.stack(rows)


def crowd_plan(kind: str = "CrowdTogether", privacy: Mapping[str, object] | None = None, **changes: object) -> Plan:
    """A plan for the crowd; ``changes`` are options of the task, and ``federation`` more of that table."""
    federation = changes.pop("federation", {})
    assert isinstance(federation, dict)
    return Plan.from_dict(
        {
            "task": {"name": f"federation.crowd:{kind}", "options": changes},
            "federation": {"rounds": 3, **federation},
            "training": {"sample_rate": 1.0, "local_steps": 1, "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
            "privacy": privacy or {"style": "none"},
            "aggregation": {"weights": "equal"},
        }
    )


def resolved_crowd(plan: Plan) -> tuple[CrowdTask, ResolvedPlan]:
    """The task of ``plan``, and the plan with its parties; in a drill nobody's rows are protected."""
    kind = {"CrowdTask": CrowdTask, "CrowdTogether": CrowdTogether}[plan.task.name.partition(":")[2]]
    task = kind(**plan.task.options)
    public = "made up" if plan.attack is not None else ""
    parties = tuple(dataclasses.replace(party, public=party.public or public) for party in task.parties())
    return task, resolve(plan, parties, task.dimension)


def expected_sum(names: Sequence[str]) -> Floats:
    """What these clients send, added up."""
    numbers = np.array([int(name[1:]) for name in names], dtype=np.float64)
    return np.array([len(numbers), numbers.sum(), (numbers**2).sum()])
