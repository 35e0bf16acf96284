"""The runs behind a trade-off: every ε with every seed, and each seed once without privacy.

A seed stands for first weights, and for the paired split where a task has several (fraud and nuclei have ten). Noise
and Poisson batches come from the operating system, always. Only tasks whose records need no protection are run: a
table of many runs on protected records would cost what :mod:`quietsum.tradeoff.searching` says, and its first line, the
one without privacy, has no price that could be paid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.tasks import trainable_task
from quietsum.tradeoff.outcomes import Outcome
from quietsum.validate import finite_number, positive, whole_number

if TYPE_CHECKING:
    from quietsum.learning import TrainingSchedule
    from quietsum.tasks import Settings, TorchTask

__all__ = ["Job", "epsilons_in", "jobs_for", "outcome_of", "run_here", "schedule_run", "several_splits"]

_MOST_SEEDS = 1000


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run: ``epsilon`` None is the one without privacy. ``split`` None leaves the task's own."""

    task: str
    epsilon: float | None
    seed: int
    split: int | None = None
    delta: float | None = None
    epochs: int | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    selfcheck: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dataclasses.asdict(self)

    def make(self) -> TorchTask:
        """The task of this run."""
        return trainable_task(self.task, {**self.options, **({} if self.split is None else {"split": self.split})})


def several_splits(task: str, options: Mapping[str, Any] | None = None) -> bool:
    """Whether ``task`` has more than one paired split."""
    try:
        trainable_task(task, {**(options or {}), "split": 1})
    except (InvalidParameter, TypeError):  # another split is refused, or not known at all
        return False
    return True


def jobs_for(
    task: str,
    epsilons: Iterable[float],
    seeds: int,
    *,
    delta: float | None = None,
    epochs: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[Job]:
    """All runs of a trade-off, those without privacy first.

    Everything that can be refused without training is refused here: an empty list, an ε that is no positive number or
    out of reach, more seeds than splits, a task with protected records.
    """
    wanted = [positive("epsilons", epsilon, "name positive numbers, as in .5,1,2,4,8") for epsilon in epsilons]
    if not wanted:
        raise InvalidParameter("epsilons", [], "is empty", "name some, as in .5,1,2,4,8")
    if len(set(wanted)) != len(wanted):
        raise InvalidParameter("epsilons", wanted, "names an ε twice", "name each once; --seeds repeats runs")
    count = whole_number("seeds", seeds, 1)
    if count > _MOST_SEEDS:
        raise InvalidParameter("seeds", count, "is more than anybody waits for", f"use at most {_MOST_SEEDS}")
    if epochs is not None:
        whole_number("epochs", epochs, 1)
    known = dict(options or {})
    work = trainable_task(task, known)
    if not work.public.strip():
        raise QuietsumError(
            f"{work.name} has records that somebody needs protected: a trade-off trains on them many times, and once "
            "without privacy, which would publish them; take a public set of the same kind"
        )
    split = several_splits(task, known)
    common: dict[str, Any] = {"task": task, "delta": delta, "epochs": epochs, "options": known}
    jobs = [
        Job(epsilon=epsilon, seed=seed, split=seed if split else None, selfcheck=seed == 0, **common)
        for epsilon in [None, *sorted(wanted)]
        for seed in range(count)
    ]
    for job in jobs[:count]:
        job.make()  # a split that does not exist is heard of now
    for epsilon in sorted(wanted):
        schedule_run(work, epsilon=epsilon, delta=delta, epochs=epochs)
    return jobs


def schedule_run(
    task: TorchTask,
    *,
    epsilon: float,
    delta: float | None = None,
    epochs: int | None = None,
    settings: Settings | None = None,
) -> TrainingSchedule:
    """The plan of a private run, made from declared numbers; no record is read."""
    from quietsum.learning import plan_training

    config = _config(settings or task.settings, task.size, epsilon, delta, epochs)
    return plan_training(config, size=task.size)


def _config(settings: Settings, size: int, epsilon: float, delta: float | None, epochs: int | None) -> Any:
    from quietsum.learning import PrivacyConfig

    stated = {name: value for name, value in (("delta", delta), ("epochs", epochs)) if value is not None}
    return PrivacyConfig(**{**settings.training, "public_size": size, "epsilon": epsilon, **stated})


def outcome_of(
    job: Job,
    *,
    settings: Settings | None = None,
    device: str = "cpu",
    plain_settings: Settings | None = None,
) -> list[Outcome]:
    """Make one run; one outcome for each score that the task reports, the primary one first.

    ``settings`` and ``plain_settings`` replace the task's. Guarantees: a private run's outcome carries the guarantee
    of the trainer that made it.
    """
    from quietsum.learning import PrivateTrainer, fresh_model, train_plainly

    task = job.make()
    model = fresh_model(task, job.seed).to(device)
    guarantee = None
    if job.epsilon is None:
        train_plainly(task, settings=plain_settings, epochs=job.epochs, seed=job.seed, model=model)
    else:
        chosen = settings or task.settings
        config = _config(chosen, task.size, job.epsilon, job.delta, job.epochs)
        trainer = PrivateTrainer(model, config, loss=task.loss, public=task.public, selfcheck=job.selfcheck)
        records = tuple(part.to(device) for part in task.records())
        trainer.train(records, learning_rate=chosen.learning_rate, optimizer=chosen.optimizer, progress=False)
        guarantee = trainer.guarantee()
    scores = task.evaluate(model)
    if not scores.values:
        raise QuietsumError(f"{task.name} reports no finite score on {scores.on}, so there is nothing to compare")
    return [
        Outcome(
            task=task.name, epsilon=job.epsilon, delta=None if guarantee is None else guarantee.delta,
            guarantee=guarantee, seed=job.seed, metric=name, value=value, on=scores.stands_on(name),
        )
        for name, value in scores.values.items()
    ]  # fmt: skip


def run_here(jobs: Sequence[Job], report: Callable[[Job, list[Outcome]], None]) -> None:
    """Make all runs in this process, one after the other."""
    for job in jobs:
        report(job, outcome_of(job))


def epsilons_in(text: str) -> list[float]:
    """The numbers in ``.5,1,2``.

    >>> epsilons_in(".5, 1,8")
    [0.5, 1.0, 8.0]
    """
    found = []
    for word in (word.strip() for word in text.split(",")):
        if not word:
            continue
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        found.append(finite_number("epsilons", value if math.isfinite(value) else word, "write .5,1,2,4,8"))
    return found
