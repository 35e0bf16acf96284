"""The plan of a run as one frozen value: who takes part, how they train, what privacy is promised.

A plan says everything that is decided before data is touched, and nothing else: no path, no seed, no secret. It comes
from a ``run.toml`` (:func:`quietsum.plan.load_plan`), goes back into one (:meth:`Plan.to_toml`), and is known by its
:attr:`Plan.digest`, which does not depend on the order of keys.

Each value checks its own fields here. What only makes sense together (a noise multiplier beside a target ε, a batch
larger than a site) is refused in one table, :mod:`quietsum.refusals`, so that all problems are told at once.

>>> plan = Plan(privacy=PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-5)))
>>> plan.federation.rounds, plan.training.local_epochs, plan.privacy.style.value
(20, 1, 'sample')
>>> plan == Plan.from_dict(plan.to_dict())
True
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, final

from quietsum.errors import (
    InvalidParameter,
    finite_number,
    non_negative,
    open_probability,
    positive,
    probability,
    whole_number,
)
from quietsum.plan.options import Options
from quietsum.privacy.guarantee import Budget
from quietsum.privacy.units import Neighbours

__all__ = [
    "AggregationPlan",
    "ClientPlan",
    "FederationPlan",
    "LifetimePlan",
    "OptimizerPlan",
    "PartyFacts",
    "Plan",
    "PrivacyPlan",
    "RecordPlan",
    "SamplingPlan",
    "SimulatePlan",
    "Style",
    "TaskPlan",
    "TrainingPlan",
]

MOST_ROUNDS = 10**6
"""More rounds than this are a slip of the pen."""
MOST_STEPS = 10**9
"""So are more local steps or epochs than this."""
BATCH_SIZE = 32
"""The batch size where a plan states neither a batch size nor a sample rate."""


class Style(enum.StrEnum):
    """Whom the run protects."""

    NONE = "none"
    """Nobody: no privacy guarantee."""
    SAMPLE = "sample"
    """Each record, by noise at its own party."""
    USER = "user"
    """Each client as a whole (not in this version yet)."""
    HYBRID = "hybrid"
    """Records and clients (not in this version yet)."""


def _store(value: object, **fields: object) -> None:
    for name, field in fields.items():
        object.__setattr__(value, name, field)


def _chosen(parameter: str, value: object, choices: Iterable[str]) -> str:
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InvalidParameter(parameter, value, "is unknown", f"choose {_either(known)}")
    return str(value)


def _either(words: tuple[str, ...]) -> str:
    quoted = [f"'{word}'" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def _named(parameter: str, value: object, remedy: str) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InvalidParameter(parameter, value, "is not a name", remedy)
    return value


def _names(parameter: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidParameter(parameter, values, "is not a list of names", 'write it as ["first", "second"]')
    return tuple(_named(f"{parameter}[{index}]", name, "name a party") for index, name in enumerate(values))


def _count(parameter: str, value: object, minimum: int, most: int, remedy: str = "") -> int:
    number = whole_number(parameter, value, minimum, remedy)
    if number > most:
        raise InvalidParameter(parameter, value, f"is more than {most:,}", "check it; no training takes so many")
    return number


def _share(parameter: str, value: object, remedy: str) -> float:
    """A probability above 0."""
    number = probability(parameter, value, remedy)
    if number == 0:
        raise InvalidParameter(parameter, value, "draws nobody", remedy)
    return number


def _maybe(check: Any, parameter: str, value: object, *more: Any) -> Any:
    return None if value is None else check(parameter, value, *more)


# ------------------------------------------------------------------------------------- parts of a plan


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What is learned: a task's name, or "module:Class", and what is passed to it."""

    name: str = "heart"
    options: Mapping[str, Any] = dataclasses.field(default_factory=Options)

    def __post_init__(self) -> None:
        _named("name", self.name, 'name a task, for instance "heart" or "my_module:MyTask"')
        _store(self, options=Options(self.options))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Which parties are asked in a round: everyone, or each by its own coin of probability ``rate``."""

    kind: str = "everyone"
    rate: float | None = None

    def __post_init__(self) -> None:
        _chosen("kind", self.kind, ("everyone", "poisson"))
        _store(self, rate=_maybe(_share, "rate", self.rate, "the chance that a party is asked in a round"))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatePlan:
    """Bad luck to rehearse with the local runtime: parties that drop out, parties that refuse."""

    drop_outs: float = 0.0
    refusing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        share = probability("drop_outs", self.drop_outs, "the chance that a party is lost in a round") + 0.0
        _store(self, drop_outs=share, refusing=_names("refusing", self.refusing))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FederationPlan:
    """Who takes part, and for how many rounds. No ``parties`` means all parties of the task."""

    rounds: int = 20
    sampling: SamplingPlan = dataclasses.field(default_factory=SamplingPlan)
    parties: tuple[str, ...] = ()
    minimum_parties: int = 1
    deadline: float | None = None
    spare_attempts: int = 0
    simulate: SimulatePlan = dataclasses.field(default_factory=SimulatePlan)

    def __post_init__(self) -> None:
        _store(
            self,
            rounds=_count("rounds", self.rounds, 1, MOST_ROUNDS, "a run has at least one round"),
            parties=_names("parties", self.parties),
            minimum_parties=_count("minimum_parties", self.minimum_parties, 1, MOST_ROUNDS),
            deadline=_maybe(positive, "deadline", self.deadline, "seconds a round may take; leave it out for no limit"),
            spare_attempts=_count("spare_attempts", self.spare_attempts, 0, MOST_ROUNDS),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerPlan:
    """How a party turns noisy gradients into steps."""

    kind: str = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _chosen("kind", self.kind, ("sgd",))
        momentum = non_negative("momentum", self.momentum, "choose it in [0, 1)") + 0.0
        if momentum >= 1:
            raise InvalidParameter("momentum", self.momentum, "must be below 1", "choose it in [0, 1), 0.9 say")
        _store(self, learning_rate=positive("learning_rate", self.learning_rate), momentum=momentum)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What a party does in one round.

    ``batch_size`` or ``sample_rate`` says how records are drawn (each by its own coin); ``local_epochs`` or
    ``local_steps`` says how often. Stated neither way, a batch holds 32 records and a round is one epoch.
    """

    engine: str = "auto"
    batch_size: int | None = None
    sample_rate: float | None = None
    local_epochs: int | None = None
    local_steps: int | None = None
    optimizer: OptimizerPlan = dataclasses.field(default_factory=OptimizerPlan)

    def __post_init__(self) -> None:
        _named("engine", self.engine, 'choose "auto" or "numpy"')
        batch, rate = self.batch_size, self.sample_rate
        epochs, steps = self.local_epochs, self.local_steps
        if batch is None and rate is None:
            batch = BATCH_SIZE
        if epochs is None and steps is None:
            epochs = 1
        _store(
            self,
            batch_size=_maybe(_count, "batch_size", batch, 1, MOST_STEPS),
            sample_rate=_maybe(_share, "sample_rate", rate, "the chance that a record is in a batch"),
            local_epochs=_maybe(_count, "local_epochs", epochs, 1, MOST_STEPS),
            local_steps=_maybe(_count, "local_steps", steps, 1, MOST_STEPS),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LifetimePlan:
    """What may be spent on a dataset over all runs together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _store(self, epsilon=positive("epsilon", self.epsilon), delta=open_probability("delta", self.delta))

    def budget(self) -> Budget:
        """The same as a budget per record."""
        return Budget(epsilon=self.epsilon, delta=self.delta)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """What is promised to each record: a target ε (the noise is calibrated), or a noise multiplier (ε follows)."""

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    max_grad_norm: float = 1.0
    lifetime: LifetimePlan | None = None

    def __post_init__(self) -> None:
        _store(
            self,
            epsilon=_maybe(positive, "epsilon", self.epsilon, "for no privacy at all say style = 'none'"),
            noise_multiplier=_maybe(positive, "noise_multiplier", self.noise_multiplier),
            delta=_maybe(open_probability, "delta", self.delta),
            max_grad_norm=positive("max_grad_norm", self.max_grad_norm, "the clip of one record's gradient"),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """What is promised to each client. A seam: this version reads it and refuses to run it."""

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        _store(
            self,
            epsilon=_maybe(positive, "epsilon", self.epsilon),
            noise_multiplier=_maybe(positive, "noise_multiplier", self.noise_multiplier),
            delta=_maybe(open_probability, "delta", self.delta),
            max_norm=positive("max_norm", self.max_norm),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The promise: its style, its numbers, and how they are computed."""

    style: Style = Style.SAMPLE
    record: RecordPlan | None = None
    client: ClientPlan | None = None
    preset: str | None = None
    accounting: str = "exact"
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    noise: str = "secure"

    def __post_init__(self) -> None:
        from quietsum.plan.presets import PRESETS

        _chosen("accounting", self.accounting, ("exact", "rdp", "moments"))
        _chosen("noise", self.noise, ("secure", "fast"))
        if self.preset is not None:
            _chosen("preset", self.preset, PRESETS)
        _store(
            self,
            style=Style(_chosen("style", self.style, [style.value for style in Style])),
            neighbours=Neighbours(_chosen("neighbours", self.neighbours, [known.value for known in Neighbours])),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregationPlan:
    """How the server combines what the parties send."""

    rule: str = "mean"
    weights: str = "size"
    secure: bool = False

    def __post_init__(self) -> None:
        _named("rule", self.rule, 'name a rule, for instance "mean"')
        _chosen("weights", self.weights, ("size", "equal"))
        if not isinstance(self.secure, bool):
            raise InvalidParameter("secure", self.secure, "is neither true nor false", "write true or false")


# --------------------------------------------------------------------------------------------- the plan


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole run, decided in advance. See :func:`quietsum.plan.resolve` for what follows from it."""

    task: TaskPlan = dataclasses.field(default_factory=TaskPlan)
    federation: FederationPlan = dataclasses.field(default_factory=FederationPlan)
    training: TrainingPlan = dataclasses.field(default_factory=TrainingPlan)
    privacy: PrivacyPlan = dataclasses.field(default_factory=PrivacyPlan)
    aggregation: AggregationPlan = dataclasses.field(default_factory=AggregationPlan)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, every default spelled out; what is not stated (None) is left out."""
        values: dict[str, Any] = _plain(self)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that :meth:`to_dict` wrote; unknown keys and wrong types are refused, all at once."""
        from quietsum.plan.files import plan_from_values

        return plan_from_values(values, where="the plan")

    def to_toml(self) -> str:
        """A complete ``run.toml``: reading it back gives this plan."""
        from quietsum.plan.files import to_toml

        return to_toml(self)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, plain ASCII."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode("ascii")).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Options):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: _plain(item) for name, item in fields if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyFacts:
    """What a task declares about one of its parties. Sizes are public by declaration.

    ``public`` is the reason why the dataset needs no protection, "" where it does.
    """

    name: str
    dataset: str
    size: int
    public: str = ""

    def __post_init__(self) -> None:
        _named("name", self.name, "name the party")
        _named("dataset", self.dataset, "name the dataset; budgets are kept under this name")
        finite_number("size", self.size)
        _store(self, size=whole_number("size", self.size, 0))
