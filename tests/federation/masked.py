"""Secure rounds among four tiny sites, in one process: what the tests of every runtime share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Federation, Lost, PartyRefusal, StepAnswer, StepQuestion
from quietsum.federation.round import RoundResult, first_state, run_round
from quietsum.federation.watch import PartyDropped, PartySilent, RunEvent
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import RandomSource, system_randomness
from quietsum.plan import Plan, ResolvedPlan, resolve
from quietsum.secagg import Step
from tiny import TinyTask, tiny_plan

Floats = NDArray[np.float64]
FOUR = {"east": 10, "north": 12, "south": 8, "west": 14}
NONE: Mapping[str, object] = {"style": "none", "record": None}
RECORDS: Mapping[str, object] = {
    "style": "sample",
    "record": {"noise_multiplier": 1.0, "delta": 1e-3, "noise_at": "distributed"},
}
CLIENTS: Mapping[str, object] = {
    "style": "user", "record": None, "neighbours": "zero-out",
    "client": {"noise_multiplier": 8.0, "delta": 1e-3, "max_norm": 1.0, "noise_at": "distributed"},
}  # fmt: skip
AT_PARTY: Mapping[str, object] = {"style": "sample", "record": {"noise_multiplier": 1.0, "delta": 1e-3}}


def secure_plan(privacy: Mapping[str, object] = NONE, *, secure: bool = True, **tables: Mapping[str, object]) -> Plan:
    aggregation: dict[str, object] = {"secure": secure, **({"drop_outs": 0.25} if secure else {})}
    aggregation.update(tables.pop("aggregation", {}))
    federation: dict[str, object] = {"rounds": 3, "spare_attempts": 5, **tables.pop("federation", {})}
    return tiny_plan(privacy=privacy, aggregation=aggregation, federation=federation, **tables)


class Watched:
    """Four sites, a ledger, and everything that was told."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        task: Callable[..., Any] = TinyTask,
        diary: str | None = None,
        rng: RandomSource | None = None,
        sizes: Mapping[str, int] = FOUR,
        wrap: Callable[[Any], Any] = lambda federation: federation,
        federation: Callable[[Any, ResolvedPlan], Federation] | None = None,
    ) -> None:
        public = "" if plan.privacy.style.records or plan.privacy.style.clients else "made up"
        self.task = task(sizes=sizes, public=public, diary=diary)
        self.resolved = resolve(plan, self.task.parties(), self.task.dimension)
        folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger.open(folder / "ledger.db", create=True)
        self.ledger.open_run(
            "run", plan=plan.to_dict(), terms=self.resolved.terms(), planned=self.resolved.all_charges(),
            datasets=self.resolved.datasets(),
        )  # fmt: skip
        made = federation or (lambda task, resolved: LocalFederation.of(task, resolved, rng=rng))
        self.federation = wrap(made(self.task, self.resolved))
        self.state = first_state(self.resolved, self.task.initial())
        self.events: list[RunEvent] = []

    def saw(self, event: RunEvent) -> None:
        self.events.append(event)

    def round(self, number: int = 1) -> RoundResult:
        self.events.clear()
        found = run_round(
            "run", number, self.state, resolved=self.resolved, federation=self.federation, ledger=self.ledger,
            rng=system_randomness(), watchers=[self],
        )  # fmt: skip
        self.state = found.state
        return found

    @property
    def dropped(self) -> dict[str, PartyDropped]:
        return {event.party: event for event in self.events if isinstance(event, PartyDropped)}

    @property
    def silent(self) -> dict[str, PartySilent]:
        return {event.party: event for event in self.events if isinstance(event, PartySilent)}


class Losing(Federation):
    """A federation in which some parties are lost at some steps, and every byte that passes is kept."""

    carries_secure = True

    def __init__(self, inner: Any, *, losses: Mapping[str, Step] | None = None) -> None:
        self.inner, self.losses = inner, dict(losses or {})
        self.passed: list[tuple[Step, str, bytes]] = []
        self.spoil: Callable[[Step, StepAnswer], Any] = lambda step, answer: answer

    @property
    def counts_deadline(self) -> bool:
        return bool(self.inner.counts_deadline)

    @property
    def processes(self) -> Any:
        return self.inner.processes

    def registered(self) -> Any:
        return self.inner.registered()

    def ask(self, *args: Any) -> Any:
        return self.inner.ask(*args)

    def close(self) -> None:
        self.inner.close()

    def identities(self, cohort: Any) -> Any:
        return self.inner.identities(cohort)

    def exchange(self, question: StepQuestion) -> Iterator[StepAnswer | PartyRefusal | Lost]:
        self.passed += [(question.step, name, letter) for name, letter in question.letters.items()]
        for word in self.inner.exchange(question):
            if self.losses.get(word.party) is question.step:
                yield Lost(party=word.party, reason="its line is dead")
                continue
            if isinstance(word, StepAnswer):
                self.passed.append((question.step, word.party, word.content))
                word = self.spoil(question.step, word)
                if word is None:
                    continue
            yield word
