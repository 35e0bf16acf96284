"""Schedules: how noise and clip change over the epochs, and what the whole run then costs.

A private run is fixed before it starts: every step's noise is known, so the run is one (heterogeneous) composition and
has one exact ε. A *schedule* states noise and clip of each epoch relative to the first; calibration then finds the one
factor on all noises with which the whole run fits the budget (:func:`quietsum.privacy.calibration.calibrate`).

>>> [stage.noise_multiplier for stage in stages(Growing(noise=2.0), epochs=3, steps_per_epoch=5, noise=1.0, clip=1.0)]
[1.0, 1.4142135623730951, 2.0]
>>> run_event(stages(Constant(), epochs=3, steps_per_epoch=5, noise=1.0, clip=1.0), rate=0.1)
Repeated(times=15, event=PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0)))
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

from quietsum.errors import InvalidParameter
from quietsum.ledger import price_event
from quietsum.privacy import (
    Composed,
    Gaussian,
    Laplace,
    Neighbours,
    PoissonSampled,
    PrivacyEvent,
    Repeated,
    bound_record_event,
    calibrate,
    calibrate_noise,
)
from quietsum.validate import positive, whole_number

__all__ = [
    "Constant",
    "Growing",
    "Schedule",
    "Stage",
    "Stepwise",
    "beginning",
    "calibrate_schedule",
    "find_longest",
    "run_event",
    "schedule_named",
    "stages",
    "step_event",
]


_LEAST, _MOST = 1e-9, 1e12  # of noise multipliers and clip norms


class Schedule(Protocol):
    """Noise and clip of an epoch, relative to the first one."""

    def factors(self, epoch: int, epochs: int) -> tuple[float, float]:
        """(noise, clip) in epoch 0 … epochs − 1."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """Every step alike."""

    def factors(self, epoch: int, epochs: int) -> tuple[float, float]:
        """(1, 1)."""
        return 1.0, 1.0


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stepwise:
    """Every ``every`` epochs the noise is multiplied by ``noise`` and the clip by ``clip``."""

    every: int
    noise: float = 1.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        whole_number("schedule.every", self.every, 1)
        positive("schedule.noise", self.noise)
        positive("schedule.clip", self.clip)

    def factors(self, epoch: int, epochs: int) -> tuple[float, float]:
        """Powers of both."""
        power = epoch // self.every
        return self.noise**power, self.clip**power


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Growing:
    """From 1 in the first epoch to ``noise`` and ``clip`` in the last, by equal factors. Below 1 it shrinks."""

    noise: float = 1.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        positive("schedule.noise", self.noise)
        positive("schedule.clip", self.clip)

    def factors(self, epoch: int, epochs: int) -> tuple[float, float]:
        """Geometric in the epoch."""
        share = epoch / (epochs - 1) if epochs > 1 else 0.0
        return self.noise**share, self.clip**share


_KINDS: Mapping[str, type[Any]] = {"constant": Constant, "step": Stepwise, "growing": Growing}


def schedule_named(kind: str, **options: float) -> Schedule:
    """``constant``, ``step`` or ``growing`` with its options.

    >>> schedule_named("step", every=2, noise=1.5)
    Stepwise(every=2, noise=1.5, clip=1.0)
    """
    if kind not in _KINDS:
        raise InvalidParameter("schedule", kind, "is not known", "choose constant, step or growing")
    try:
        made: Schedule = _KINDS[kind](**options)
    except TypeError as error:
        raise InvalidParameter("schedule", kind, f"does not take these options ({error})") from None
    return made


# ------------------------------------------------------------------------------------------- whole runs


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """Some steps in a row, all alike: one epoch."""

    steps: int
    noise_multiplier: float
    max_norm: float


def stages(schedule: Schedule, *, epochs: int, steps_per_epoch: int, noise: float, clip: float) -> tuple[Stage, ...]:
    """One stage an epoch."""
    found = []
    for epoch in range(whole_number("epochs", epochs, 1)):
        try:
            of_noise, of_clip = schedule.factors(epoch, epochs)
        except OverflowError:
            of_noise = of_clip = math.inf
        stage = Stage(steps=steps_per_epoch, noise_multiplier=noise * of_noise, max_norm=clip * of_clip)
        if not (_LEAST < stage.noise_multiplier < _MOST and _LEAST < stage.max_norm < _MOST):
            problem = f"leads to noise {stage.noise_multiplier:.3g} and clip {stage.max_norm:.3g} in epoch {epoch + 1}"
            raise InvalidParameter("schedule", schedule, problem, "let it change less often or by less")
        found.append(stage)
    return tuple(found)


def beginning(run: Sequence[Stage], steps: int) -> tuple[Stage, ...]:
    """The first ``steps`` steps of ``run``."""
    found: list[Stage] = []
    for stage in run:
        if steps > 0:
            found.append(dataclasses.replace(stage, steps=min(steps, stage.steps)))
            steps -= stage.steps
    return tuple(found)


def step_event(noise_multiplier: float, rate: float, law: str = "gaussian") -> PrivacyEvent:
    """One Poisson-sampled step."""
    kind = Gaussian if law == "gaussian" else Laplace
    return PoissonSampled(rate=rate, event=kind(noise_multiplier=noise_multiplier))


def run_event(run: Sequence[Stage], rate: float, law: str = "gaussian", *, bounded: bool = False) -> PrivacyEvent:
    """The whole run as one event, equal steps counted together.

    ``bounded``: for a record where people's records are bounded, so that one that leaves may let another in.
    """
    counts: dict[float, int] = {}
    for stage in run:
        counts[stage.noise_multiplier] = counts.get(stage.noise_multiplier, 0) + stage.steps
    events = tuple(
        Repeated(times=steps, event=step_event(noise, rate, law)) for noise, steps in counts.items() if steps
    )
    whole = events[0] if len(events) == 1 else Composed(events=events)
    return bound_record_event(whole) if bounded else whole


def calibrate_schedule(
    schedule: Schedule,
    *,
    epochs: int,
    steps_per_epoch: int,
    rate: float,
    epsilon: float,
    delta: float,
    law: str = "gaussian",
    accounting: str = "exact",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    bounded: bool = False,
) -> float:
    """The smallest noise multiplier of the first epoch with which the whole schedule stays within (ε, δ)."""
    replaced = bounded and neighbours is Neighbours.ADD_REMOVE  # another record may come in: the same pair
    flat = calibrate_noise(
        target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=epochs * steps_per_epoch,
        accounting=accounting, neighbours=Neighbours.REPLACE_ONE if replaced else neighbours,
    )  # fmt: skip
    if law == "gaussian" and isinstance(schedule, Constant):
        return flat

    def make(noise: float) -> PrivacyEvent:
        run = stages(schedule, epochs=epochs, steps_per_epoch=steps_per_epoch, noise=noise, clip=1.0)
        return run_event(run, rate, law, bounded=bounded)

    return calibrate(
        make, target_epsilon=epsilon, target_delta=delta, guess=flat, accounting=accounting, neighbours=neighbours
    )


def find_longest(
    run: Sequence[Stage],
    *,
    rate: float,
    epsilon: float,
    delta: float,
    law: str = "gaussian",
    accounting: str = "exact",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    bounded: bool = False,
) -> tuple[Stage, ...]:
    """The longest beginning of ``run`` that stays within (ε, δ): a run stops before the step that would overspend."""

    def fits(steps: int) -> bool:
        if steps == 0:
            return True
        event = run_event(beginning(run, steps), rate, law, bounded=bounded)
        return price_event(event, delta=delta, accounting=accounting, neighbours=neighbours).epsilon <= epsilon

    low, high = 0, sum(stage.steps for stage in run)
    if fits(high):
        return tuple(run)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return beginning(run, low)
