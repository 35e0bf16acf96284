"""What a training run has cost: steps charged, in memory and in a workspace's ledger, and their price.

A schedule is charged step by step, before the steps are made. :class:`Spending` counts the charged steps of one run and
prices them per record; with a workspace, :class:`TrainingBooks` writes each charge to the ledger first, so that a
killed process stays charged. :func:`person_guarantee` prices the same run for a person with several records.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken, PlanRefused, QuietsumError, UnsupportedEvent
from quietsum.learning.config import PrivacyConfig, TrainingSchedule
from quietsum.learning.distributed.processes import OneProcess, Processes
from quietsum.learning.saving import read_model_header
from quietsum.learning.schedules import Stage, run_event
from quietsum.ledger import (
    PRICING,
    Charge,
    Dataset,
    Head,
    Ledger,
    Receipt,
    RunHistory,
    Terms,
    claim_guarantees,
    ledger_exists,
    price_event,
)
from quietsum.privacy import (
    Budget,
    Guarantee,
    Neighbours,
    PrivacyEvent,
    PrivacyUnit,
    explain_no_promise,
    person_event,
)
from quietsum.validate import open_probability, whole_number

__all__ = [
    "OpenedTraining",
    "Spending",
    "TrainingBooks",
    "as_priced_today",
    "check_person",
    "find_opened",
    "person_guarantee",
]


@final
class Spending:
    """How many steps of a schedule were charged. The count only grows, and it grows before the steps that it pays for.

    With ``books`` every charge is written to a ledger first; without, the run's own count is all there is. Of several
    ``processes`` the first one writes, and the others wait for it: one training is charged once.
    """

    def __init__(
        self,
        plan: TrainingSchedule,
        charged: int = 0,
        books: TrainingBooks | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.plan, self.charged, self._books = plan, charged, books
        self._processes = OneProcess() if processes is None else processes

    @property
    def left(self) -> int:
        """Steps that the plan still holds."""
        return self.plan.steps - self.charged

    def charge(self, stage: Stage, steps: int) -> Receipt | None:
        """Charge the next ``steps`` steps, all of ``stage``; returns the ledger's receipt, to be committed."""
        whole_number("steps", steps, 1)
        receipt = self._processes.do("the charge", lambda: self._reserve(stage, steps))
        self.charged += steps
        return receipt

    def _reserve(self, stage: Stage, steps: int) -> Receipt | None:
        if self._books is None:
            return None
        return self._books.reserve(self.charged, self.plan.chunk_event(stage, steps), steps)

    def so_far(self, delta: float | None = None) -> Guarantee:
        """ε of what was charged, if the schedule runs as planned, at the plan's δ unless another one is asked for."""
        plan = self.plan
        if delta is not None:
            open_probability("delta", delta)
        if not self.charged:
            return dataclasses.replace(_nothing(plan), delta=plan.delta if delta is None else delta)
        found = price_event(
            plan.event(self.charged),
            delta=plan.delta if delta is None else delta,
            accounting=plan.accounting,
            neighbours=plan.neighbours,
        )
        return dataclasses.replace(found, certified=False, warnings=plan.forecast.warnings)

    def claim(self) -> Guarantee:
        """What may be said about a model: the whole plan's ε, once anything ran.

        Where to stop may have been decided by somebody who saw results, so nothing smaller is claimed.
        """
        if not self.charged or self.charged >= self.plan.steps:
            return self.plan.forecast if self.charged else _nothing(self.plan)
        return claim_guarantees([self.plan.forecast], finished=False)[0]


def _nothing(plan: TrainingSchedule) -> Guarantee:
    return Guarantee(
        epsilon=0.0,
        delta=plan.delta,
        unit=PrivacyUnit.RECORD,
        neighbours=plan.neighbours,
        method="nothing was released",
    )


def check_person(plan: TrainingSchedule, *, size: int, declared: bool) -> None:
    """Refuse, before anything is charged, a plan whose price per person is not known.

    ``declared`` says that the number of records is declared and stays when records are replaced.
    """
    if plan.neighbours is Neighbours.REPLACE_ONE and size > 1 and not declared:
        raise PlanRefused(
            f"max_records = {size} under replace-one: a person may be replaced by one with fewer records, and the "
            "number of records, which is taken as public here, would tell; declare public_size, or use zero-out"
        )
    try:
        person_guarantee(plan, size=size)
    except UnsupportedEvent as error:
        raise PlanRefused(f"max_records = {size} states a price per person, and there is none: {error}") from None


def as_priced_today(stated: Guarantee, about: Mapping[str, Any]) -> Guarantee:
    """The guarantee in the header of a model; one of before prices had a version is put right where they changed.

    Such a header has no ``pricing``, and has ``person`` where people's records were bounded.
    """
    if "pricing" in about or "person" not in about or stated.epsilon == 0:
        return stated
    plan = about["plan"]
    stages = [Stage(**stage) for stage in plan["stages"]]
    event = run_event(stages, plan["sample_rate"], plan["noise_type"], bounded=True)
    found = price_event(event, delta=stated.delta, accounting=plan["accounting"], neighbours=stated.neighbours)
    if found.epsilon == stated.epsilon:
        return stated
    told = (*found.warnings, f"corrected: ε = {stated.epsilon:.6g} was stated, by earlier prices", *stated.warnings)
    lower = found.epsilon_lower if stated.epsilon_lower else 0.0
    return dataclasses.replace(stated, epsilon=found.epsilon, epsilon_lower=lower, warnings=told)


def person_guarantee(plan: TrainingSchedule, *, size: int) -> Guarantee:
    """ε of a person with at most ``size`` records, at the plan's δ, by the plan's accountant."""
    return event_guarantee(
        plan.event(), size=size, delta=plan.delta, accounting=plan.accounting, neighbours=plan.neighbours
    )


def event_guarantee(
    event: PrivacyEvent, *, size: int, delta: float, accounting: str = "exact",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
) -> Guarantee:  # fmt: skip
    """What ``event``, stated for one record, costs a person with ``size`` of them."""
    priced = person_event(event, size)
    found = price_event(priced, delta=delta, accounting=accounting, neighbours=neighbours, unit=PrivacyUnit.PERSON)
    empty = explain_no_promise(found)
    return dataclasses.replace(found, warnings=(*found.warnings, empty)) if empty else found


# ------------------------------------------------------------------------------------------- the ledger


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenedTraining:
    """How a training of the workspace was opened: the version of its prices, and the settings in its frozen plan."""

    pricing: int = PRICING
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def state(self, config: PrivacyConfig) -> PrivacyConfig:
        """``config``, with what it leaves open as the plan has it: today's defaults may be others."""
        if not self.settings:
            return config
        first = self.settings["stages"][0]
        open_ones = {
            "batch_size": config.batch_size is None and round(self.settings["expected_batch"]),
            "epochs": config.epochs is None and self.settings["epochs"],
            "clipping": not config.clipping and self.settings["clipping"],
            "max_grad_norm": config.max_grad_norm is None and first["max_norm"],
        }
        return dataclasses.replace(config, **{name: value for name, value in open_ones.items() if value})

    @property
    def descends(self) -> bool:
        """Whether its weights move by plain descent, which was the rule before any was chosen."""
        return str(self.settings.get("optimizer", "")).startswith("SGD(")


def find_opened(workspace: str | os.PathLike[str], run: str) -> OpenedTraining:
    """How ``run`` of the workspace was opened; as one is opened today if there is no such run."""
    path = Path(workspace) / "ledger.db"
    if not ledger_exists(path):
        return OpenedTraining()
    with Ledger.open(path, read_only=True, trusted=True) as ledger:  # the training goes on to write there
        known = next((one for one in ledger.runs() if one.run == run), None)
        if known is None:
            return OpenedTraining()
        settings = next(ledger.entries(known.sequence)).body["plan"].get("training", {})
    return OpenedTraining(pricing=known.pricing, settings=settings)


@final
class TrainingBooks:
    """One training run in a workspace's ledger.

    Guarantees: :meth:`reserve` is on disk before it returns, and what is reserved stays charged after any failure.
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        run: str,
        plan: TrainingSchedule,
        *,
        dataset: str,
        party: str = "here",
        public: str = "",
        failure_per_step: float = 0.0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.run, self.plan = Path(workspace) / "training" / run, run, plan
        self._workspace, self._party, self._dataset = Path(workspace), party, dataset
        self._public, self._failure = public, failure_per_step
        self._about = {"training": {**plan.to_dict(), **(details or {})}}
        self._ledger: Ledger | None = None
        self._lock: Any = None

    @property
    def checkpoint(self) -> Path:
        """The file of the checkpoint."""
        return self.folder / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        """The file of the finished model."""
        return self.folder / "model.safetensors"

    @property
    def canaries(self) -> Path:
        """The folder of what an audited training keeps of its canaries."""
        return self.folder / "canaries"

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        assert self._ledger is not None
        return self._ledger

    def open(self, *, resume: bool, allowed: Callable[[Path], None] | None = None) -> int:
        """Open the run, or go on with it; returns how many of its steps are charged already.

        ``allowed`` is called with the ledger's path before a new run is opened, and refuses it by raising.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hold()
        others = any(True for _ in self._anchors())
        self._ledger = Ledger.open(self._workspace / "ledger.db", create=not others)
        self._check_anchors()
        known = any(summary.run == self.run for summary in self._ledger.runs())
        if known and not resume:
            raise InvalidParameter("run", self.run, "was begun already", "go on with resume, or choose another name")
        if resume and not known:
            raise InvalidParameter("run", self.run, "is not in the ledger", "leave resume out to begin it")
        if not resume and allowed is not None:
            allowed(self._workspace / "ledger.db")
        limit = self.plan.forecast.epsilon * (1 + 1e-6) if self.plan.epsilon is None else self.plan.epsilon
        self._ledger.open_run(
            self.run, plan=self._about,
            terms=Terms(
                accounting=self.plan.accounting, neighbours=self.plan.neighbours,
                limits=(Budget(epsilon=limit, delta=self.plan.delta),),
            ),
            planned=[self._charge(self.plan.event(), self.plan.steps)],
            datasets=[Dataset(party=self._party, dataset=self._dataset, size=self.plan.size, public=self._public)],
        )  # fmt: skip
        return self.count_charged()

    def close(self) -> None:
        """Let go of ledger and lock; closing twice is fine."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def count_charged(self) -> int:
        """How many steps the ledger has charged to this run, killed chunks included."""
        paid = RunHistory(self.ledger, self.run).read().paid
        return sum(sum(events.values()) for events in paid.values())

    def price_spent(self) -> Guarantee:
        """ε as the ledger sees it."""
        return self.ledger.spending(self.run)[-1]

    def reserve(self, start: int, event: Any, steps: int) -> Receipt:
        """Charge ``steps`` steps from step ``start`` on, before the first of them."""
        number = start + 1
        return self.ledger.reserve(
            self.run, number, self.ledger.next_attempt(self.run, number), [self._charge(event, steps)]
        )

    def commit(self, receipt: Receipt) -> None:
        """What was reserved may now leave."""
        self.ledger.commit(receipt)

    def _charge(self, event: Any, steps: int) -> Charge:
        return Charge(
            party=self._party, dataset=self._dataset, unit=PrivacyUnit.RECORD, event=event,
            failure=min(1.0, self._failure * steps),
        )  # fmt: skip

    def _hold(self) -> None:
        import fcntl

        self._lock = (self.folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise QuietsumError(f"run {self.run} is being trained by another process; wait for it") from None

    def _anchors(self) -> Iterator[Path]:
        for name in ("checkpoint", "model"):
            yield from sorted((self._workspace / "training").glob(f"*/{name}.safetensors"))
        yield from sorted((self._workspace / "runs").glob("*/run.json"))

    def _check_anchors(self) -> None:
        """Every head that a training run has kept must be in the ledger; one that was rolled back pays for nothing."""
        for path in self._anchors():
            if path.suffix != ".safetensors":
                continue
            try:
                head = Head.from_dict(read_model_header(path)["head"])
            except QuietsumError:
                raise
            except (LookupError, TypeError, ValueError) as error:
                raise CorruptState(f"{path} names no head of a ledger ({error}); restore it from a backup") from None
            if not self.ledger.contains(head):
                raise LedgerBroken(
                    f"does not contain the head that {path} was saved with", at=head.sequence,
                    remedy="it was rolled back, cut or replaced: restore it, then run quietsum ledger verify",
                )  # fmt: skip
