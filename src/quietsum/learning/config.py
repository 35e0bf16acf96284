"""What one asks of private training, and the plan that follows from it: every number public, fixed before the start.

:class:`PrivacyConfig` is what a person writes. :func:`plan_training` turns it, with the declared size of the data, into
a :class:`TrainingSchedule`: rate, steps, divisor and the noise of every step. Nothing in a plan depends on what a
record holds, and with a declared ``public_size`` nothing depends on how many there are.

>>> plan = plan_training(PrivacyConfig(epsilon=3.0, epochs=10, batch_size=128, public_size=1280), size=1283)
>>> plan.rate, plan.steps, str(plan.neighbours), plan.forecast.epsilon <= 3.0
(0.1, 100, 'add-or-remove-one', True)
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
import math
from typing import Any, final

from quietsum.errors import InvalidParameter, PlanRefused, UnsupportedEvent
from quietsum.learning.defaults import settle_config
from quietsum.learning.noise.gradient_noise import DEFAULT_NOISE, LAWS, MODES
from quietsum.learning.schedules import (
    Constant,
    Schedule,
    Stage,
    beginning,
    calibrate_schedule,
    find_longest,
    run_event,
    stages,
    step_event,
)
from quietsum.ledger import ACCOUNTINGS, FIRST, PRICING, price_event
from quietsum.privacy import (
    Guarantee,
    Neighbours,
    PrivacyEvent,
    PrivacyUnit,
    Repeated,
    bound_record_event,
    calibrate,
    explain_no_promise,
    person_event,
)
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["CLIPPINGS", "PrivacyConfig", "TrainingSchedule", "plan_training"]

_MOST_EPOCHS = 100_000  # every one is planned, priced and written down
_MOST_EPSILON = 1000.0
_ROOM = 1 - 1e-6  # of ε, for the failure of secure noise that a ledger charges to δ
CLIPPINGS = ("flat", "per-layer", "automatic", "adaptive")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """How private, how long, in which batches.

    Give ``epsilon`` and the noise is calibrated so that the whole run costs no more; give ``noise_multiplier`` and the
    run costs what it costs; give both and the run ends before the step that would exceed ``epsilon``. ``delta`` is
    1/(10 n) unless stated. ``public_size`` declares how many records there are; without it ``len(dataset)`` is taken,
    and the guarantee then names the zero-out relation, under which that number is public. ``max_records`` bounds how
    many records of one person are used; ε stays that of a record, and the person's is stated beside it. A record that
    leaves may then let another of its person in, and is priced so: see :class:`~quietsum.privacy.events.OneInOneOut`.
    ``person_epsilon`` instead of ``epsilon`` calibrates the noise to what a whole person with ``max_records`` pays.
    ``noise`` is ``secure``, as in a plan, unless stated; Laplace noise exists as ``fast`` only, and is then that.
    Epochs, batch, clip norm and kind of clipping that are left open are chosen from the number of records
    (:mod:`quietsum.learning.defaults`).
    """

    epsilon: float | None = None
    delta: float | None = None
    max_grad_norm: float | None = None
    noise_multiplier: float | None = None
    noise_type: str = "gaussian"
    privacy_accounting: str = "exact"
    epochs: int | None = None
    batch_size: int | None = None
    engine: str = "auto"
    clipping: str = ""
    noise: str = ""
    public_size: int | None = None
    neighbours: Neighbours | None = None
    schedule: Schedule = dataclasses.field(default_factory=Constant)
    micro_batch: int | None = None
    ema_decay: float | None = None
    clip_quantile: float = 0.5
    clip_learning_rate: float = 0.2
    count_noise: float | None = None
    max_records: int | None = None
    person_epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None and self.noise_multiplier is None and self.person_epsilon is None:
            remedy = "state epsilon, for instance 3.0, or a noise_multiplier"
            raise InvalidParameter("epsilon", None, "and noise_multiplier are both missing", remedy)
        for name in ("epsilon", "noise_multiplier", "person_epsilon"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name in ("epsilon", "person_epsilon"):
            if (getattr(self, name) or 0.0) > _MOST_EPSILON:
                remedy = "state an ε of 1 to 10, or train without privacy"
                problem = "promises nothing: from about ln(1/δ) on an attacker may be certain"
                raise InvalidParameter(name, getattr(self, name), problem, remedy)
        if self.delta is not None:
            open_probability("delta", self.delta)
        if self.max_grad_norm is not None:
            positive("max_grad_norm", self.max_grad_norm, "one record's gradient is clipped to it")
        if self.epochs is not None:
            _epochs("epochs", self.epochs)
        if self.batch_size is not None:
            whole_number("batch_size", self.batch_size, 1)
        _choice("noise_type", self.noise_type, LAWS)
        _choice("privacy_accounting", self.privacy_accounting, ACCOUNTINGS)
        if self.clipping:
            _choice("clipping", self.clipping, CLIPPINGS)
        if not self.noise:
            object.__setattr__(self, "noise", DEFAULT_NOISE if self.noise_type == "gaussian" else "fast")
        _choice("noise", self.noise, MODES)
        if self.public_size is not None:
            whole_number("public_size", self.public_size, 1)
        for name in ("micro_batch", "max_records"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 1)
        if self.ema_decay is not None:
            open_probability("ema_decay", self.ema_decay, "0.99 averages about the last hundred steps")
        if self.neighbours is not None:
            object.__setattr__(self, "neighbours", Neighbours(self.neighbours))
        self._check_together()

    def _check_together(self) -> None:
        if self.person_epsilon is not None:
            for name in ("epsilon", "noise_multiplier"):
                if getattr(self, name) is not None:
                    problem = f"stands beside {name} = {getattr(self, name):g}, and each says how much noise there is"
                    remedy = "state one of them: person_guarantee() says what a person pays under any noise"
                    raise InvalidParameter("person_epsilon", self.person_epsilon, problem, remedy)
            if self.max_records is None:
                problem = "is missing beside person_epsilon: without a bound a person may be in every record"
                remedy = "state how many records of one person are used, for instance max_records=5"
                raise InvalidParameter("max_records", None, problem, remedy)
        if self.noise_type == "laplace" and self.clipping not in ("", "flat"):
            problem = "bounds an L2 norm, and Laplace noise is scaled by the L1 norm: ε would be up to √d too small"
            raise InvalidParameter("clipping", self.clipping, problem, "use clipping='flat', which then clips in L1")
        if self.noise_type == "laplace" and self.noise == "secure":
            problem = "has no Laplace noise"
            raise InvalidParameter("noise", self.noise, problem, "use noise_type='gaussian', or noise='fast'")
        if self.clipping == "adaptive" and not isinstance(self.schedule, Constant):
            problem = "moves the clip itself"
            raise InvalidParameter("clipping", self.clipping, problem, "use a constant schedule with it")

    @property
    def size_is_private(self) -> bool:
        """Whether a neighbouring data set may hold one record more or less, or none at all."""
        return self.public_size is not None and self.neighbours in (None, Neighbours.ADD_REMOVE)

    @property
    def noise_of_count(self) -> float:
        """σ_b of adaptive clipping: stated, or a twentieth of the batch."""
        return (self.batch_size or 0) / 20 if self.count_noise is None else self.count_noise

    def frozen(self) -> dict[str, Any]:
        """What a resumed run must keep besides its plan: all that its checkpoint or its noise depends on."""
        adaptive = [self.clip_quantile, self.clip_learning_rate, self.noise_of_count]
        return {
            "clipping": self.clipping, "noise": self.noise, "ema_decay": self.ema_decay,
            "adaptive": adaptive if self.clipping == "adaptive" else None, "max_records": self.max_records,
        }  # fmt: skip


def _epochs(name: str, value: int) -> int:
    if whole_number(name, value, 1) > _MOST_EPOCHS:
        problem = f"is more than {_MOST_EPOCHS:,}, and every epoch is planned and charged by itself"
        raise InvalidParameter(name, value, problem, "take larger batches, or fewer epochs")
    return value


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidParameter(name, value, "is not known", f"choose {' or '.join(known)}")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSchedule:
    """A run of private training with every public number spelled out. ``cut`` says that the budget shortened it."""

    size: int
    neighbours: Neighbours
    rate: float
    expected_batch: float
    steps_per_epoch: int
    epochs: int
    epsilon: float | None
    delta: float
    law: str
    accounting: str
    stages: tuple[Stage, ...]
    forecast: Guarantee
    cut: bool
    bounded: bool = False
    """Whether people's records are bounded, so that a record that leaves may let another in."""

    @functools.cached_property
    def steps(self) -> int:
        """All steps of the run."""
        return self._ends[-1]

    @functools.cached_property
    def _ends(self) -> list[int]:
        """How many steps are done when each stage is."""
        return list(itertools.accumulate(stage.steps for stage in self.stages))

    def event(self, steps: int | None = None) -> PrivacyEvent:
        """What the first ``steps`` steps cost a record; all of them unless stated."""
        run = self.stages if steps is None else beginning(self.stages, steps)
        return run_event(run, self.rate, self.law, bounded=self.bounded)

    def stage_at(self, step: int) -> tuple[Stage, int]:
        """The stage of step 0 … steps − 1, and how many of its steps are left, that one included."""
        if not 0 <= step < self.steps:
            raise InvalidParameter("step", step, "lies beyond the plan")
        number = bisect.bisect_right(self._ends, step)
        return self.stages[number], self._ends[number] - step

    def alike(self, step: int, stages: int) -> tuple[Stage, int]:
        """The stage of ``step``, and how many steps from there on are like it, within so many stages."""
        first, count = self.stage_at(step)
        for _ in range(stages - 1):
            if step + count >= self.steps:
                break
            following, more = self.stage_at(step + count)
            if (following.noise_multiplier, following.max_norm) != (first.noise_multiplier, first.max_norm):
                break
            count += more
        return first, count

    def chunk_event(self, stage: Stage, steps: int) -> PrivacyEvent:
        """What ``steps`` steps of one stage cost a record."""
        made = Repeated(times=steps, event=self.event_as_made(stage))
        return bound_record_event(made) if self.bounded else made

    def event_as_made(self, stage: Stage) -> PrivacyEvent:
        """One step of a stage as it is made."""
        return step_event(stage.noise_multiplier, self.rate, self.law)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return {
            "size": self.size, "neighbours": self.neighbours.value, "sample_rate": self.rate,
            "expected_batch": self.expected_batch, "steps_per_epoch": self.steps_per_epoch, "epochs": self.epochs,
            "epsilon": self.epsilon, "delta": self.delta, "noise_type": self.law, "accounting": self.accounting,
            "stages": [dataclasses.asdict(stage) for stage in self.stages],
        }  # fmt: skip


def plan_training(
    config: PrivacyConfig, *, size: int, epochs: int | None = None, pricing: int = PRICING
) -> TrainingSchedule:
    """The plan for ``size`` records, which count only where no ``public_size`` is declared.

    ``pricing`` is for a run that was opened under an older version of the prices: its noise and its steps are those of
    then. What it costs is said by today's prices all the same.
    """
    neighbours, public = _declare(config, size)
    config = settle_config(dataclasses.replace(config, epochs=config.epochs if epochs is None else epochs), public)
    assert config.batch_size is not None and config.epochs is not None and config.max_grad_norm is not None
    bounded = config.max_records is not None
    epochs = _epochs("num_epochs", config.epochs)
    if config.batch_size > public:
        problem = f"is more than the {public} records there are"
        raise InvalidParameter("batch_size", config.batch_size, problem, f"use at most {public}")
    rate = config.batch_size / public
    if bounded and pricing != FIRST and config.noise_type == "laplace" and rate < 1:
        _refuse_laplace(neighbours)
    delta = 1 / (10 * public) if config.delta is None else config.delta
    if delta >= 1 / public:
        problem = f"is not below 1/n = {1 / public:.3g}: publishing one whole record at random would pass"
        raise InvalidParameter("delta", delta, problem, f"use at most 1/(10 n) = {1 / (10 * public):.3g}")
    steps = max(1, round(public / config.batch_size))
    terms: dict[str, Any] = {
        "rate": rate, "delta": delta, "law": config.noise_type, "accounting": config.privacy_accounting,
        "neighbours": neighbours, "bounded": bounded and pricing != FIRST,
    }  # fmt: skip
    budget = config.epsilon
    if budget is not None and config.noise == "secure":
        budget *= _ROOM
    noise = config.noise_multiplier
    if config.person_epsilon is not None:
        noise = _find_person_noise(config, config.person_epsilon, epochs, steps, terms)
    if noise is None:
        assert budget is not None
        _refuse_unreachable(config, epochs, steps, terms)
        noise = calibrate_schedule(config.schedule, epochs=epochs, steps_per_epoch=steps, epsilon=budget, **terms)
    whole = stages(config.schedule, epochs=epochs, steps_per_epoch=steps, noise=noise, clip=config.max_grad_norm)
    run = whole if budget is None else find_longest(whole, epsilon=budget, **terms)
    if not run:
        first = price_event(
            run_event(beginning(whole, 1), rate, config.noise_type, bounded=terms["bounded"]), delta=delta,
            accounting=config.privacy_accounting, neighbours=neighbours,
        )  # fmt: skip
        raise PlanRefused(
            f"one step at noise multiplier {noise:g} costs ε = {first.epsilon:.3g} per record, more than the budget "
            f"ε = {config.epsilon:g}; leave noise_multiplier out and it is calibrated"
        )
    forecast = price_event(
        run_event(run, rate, config.noise_type, bounded=bounded), delta=delta, accounting=config.privacy_accounting,
        neighbours=neighbours,
    )  # fmt: skip
    return TrainingSchedule(
        size=public, neighbours=neighbours, rate=rate, expected_batch=float(config.batch_size), steps_per_epoch=steps,
        epochs=epochs, epsilon=config.epsilon, delta=delta, law=config.noise_type,
        accounting=config.privacy_accounting, stages=run, forecast=_word(forecast, config.noise), cut=run != whole,
        bounded=bounded,
    )  # fmt: skip


def _declare(config: PrivacyConfig, size: int) -> tuple[Neighbours, int]:
    """The relation and the public size."""
    if config.public_size is not None:
        return config.neighbours or Neighbours.ADD_REMOVE, config.public_size
    if config.neighbours is Neighbours.ADD_REMOVE:
        raise InvalidParameter(
            "neighbours", str(config.neighbours), "makes the number of records private, and the rate follows from it",
            "declare public_size, a round number that stays when a record comes or goes, or use zero-out",
        )  # fmt: skip
    if size < 1:
        remedy = "pass at least one, or declare public_size, with which an empty set trains like any other"
        raise InvalidParameter("data", "the data set", "holds no records", remedy)
    return config.neighbours or Neighbours.ZERO_OUT, whole_number("len(dataset)", size, 1)


def _refuse_laplace(neighbours: Neighbours) -> None:
    """A record that leaves may let another in, a replacement, for which Laplace noise has no price."""
    if neighbours is not Neighbours.ZERO_OUT:
        problem = "has no bound per record where max_records lets another record in for one that leaves"
        remedy = "use noise_type='gaussian', or neighbours='zero-out', under which no other record moves"
        raise InvalidParameter("noise_type", "laplace", problem, remedy)


def _refuse_unreachable(config: PrivacyConfig, epochs: int, steps: int, terms: dict[str, Any]) -> None:
    """Refuse an ε that needs more noise than everything in a batch can weigh, and say which one is in reach.

    With σ > E each coordinate's noise is larger than what all E expected records together can add to it.
    """
    assert config.batch_size is not None
    most = float(config.batch_size)
    run = stages(config.schedule, epochs=epochs, steps_per_epoch=steps, noise=most, clip=1.0)
    event = run_event(run, terms["rate"], terms["law"], bounded=terms["bounded"])
    least = price_event(
        event, delta=terms["delta"], accounting=terms["accounting"], neighbours=terms["neighbours"]
    ).epsilon
    if config.epsilon is not None and config.epsilon < least:
        public = round(config.batch_size / terms["rate"])
        raise PlanRefused(
            f"ε = {config.epsilon:g} per record is out of reach for {public} records in {epochs * steps} steps of "
            f"{config.batch_size}: the noise would outweigh a whole batch. With these settings ε = "
            f"{math.ceil(least * 100) / 100:g} is reachable; take more records, fewer epochs or larger batches"
        )


def _find_person_noise(
    config: PrivacyConfig, epsilon: float, epochs: int, steps: int, terms: dict[str, Any]
) -> float:  # fmt: skip
    """The smallest noise multiplier with which a whole person pays no more than ``epsilon``.

    More noise than a batch can weigh is refused, as for a record.
    """
    size = whole_number("max_records", config.max_records, 1)
    delta, accounting, neighbours = terms["delta"], terms["accounting"], terms["neighbours"]

    def make(noise: float) -> PrivacyEvent:
        run = stages(config.schedule, epochs=epochs, steps_per_epoch=steps, noise=noise, clip=1.0)
        return person_event(run_event(run, terms["rate"], terms["law"]), size)

    assert config.batch_size is not None
    most = config.batch_size
    try:
        least = price_event(
            make(float(most)), delta=delta, accounting=accounting, neighbours=neighbours, unit=PrivacyUnit.PERSON
        ).epsilon
    except UnsupportedEvent as error:
        raise PlanRefused(
            f"person_epsilon = {epsilon:g} states a price per person, and there is none: {error}"
        ) from None
    if epsilon < least:
        raise PlanRefused(
            f"ε = {epsilon:g} per person of at most {size} records is out of reach in {epochs * steps} steps of "
            f"{most}: the noise would outweigh a whole batch. With these settings ε = "
            f"{math.ceil(least * 100) / 100:g} is reachable; use fewer records of each person, fewer epochs or larger "
            "batches"
        )
    target = epsilon * _ROOM if config.noise == "secure" else epsilon
    alone = {**terms, "bounded": False}
    guess = size * calibrate_schedule(config.schedule, epochs=epochs, steps_per_epoch=steps, epsilon=target, **alone)
    return calibrate(
        make, target_epsilon=target, target_delta=delta, guess=guess, accounting=accounting, neighbours=neighbours
    )


def _word(guarantee: Guarantee, mode: str) -> Guarantee:
    """The guarantee with what must be said of the noise. The sum's own rounding is not verified, so no certificate."""
    told = ("fast noise is not floating-point safe",) if mode == "fast" else ()
    empty = explain_no_promise(guarantee)
    warnings = (*guarantee.warnings, *told, *([empty] if empty else []))
    return dataclasses.replace(guarantee, certified=False, warnings=warnings)
