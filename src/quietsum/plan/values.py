"""The plan of a run as one frozen value: who takes part, how they train, what privacy is promised.

A plan says everything that is decided before data is touched, and nothing else: no path, no seed, no secret. It comes
from a ``run.toml`` (:func:`quietsum.plan.load_plan`), goes back into one (:meth:`Plan.to_toml`), and is known by its
:attr:`Plan.digest`, which does not depend on the order of keys.

Each value checks its own fields here. What only makes sense together (a noise multiplier beside a target ε, a batch
larger than a site) is refused in one table, :mod:`quietsum.plan.refusals`, so that all problems are told at once.

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
import re
from collections.abc import Mapping
from typing import Any, final

from quietsum.aggregation import BEFORE
from quietsum.errors import InvalidParameter
from quietsum.plan.attack import AttackPlan
from quietsum.plan.fields import (
    MOST_ROUNDS,
    MOST_STEPS,
    chosen,
    count,
    later,
    maybe,
    named,
    names,
    share,
    store,
    unused,
)
from quietsum.plan.options import Options
from quietsum.plan.promises import (
    AdaptivePlan,
    ClientPlan,
    LifetimePlan,
    PersonPlan,
    PrivacyPlan,
    RecordPlan,
    Style,
)
from quietsum.validate import finite_number, non_negative, positive, probability, whole_number

__all__ = [
    "MOST_ROUNDS",
    "MOST_STEPS",
    "AdaptivePlan",
    "AggregationPlan",
    "AttackPlan",
    "ClientPlan",
    "FederationPlan",
    "LifetimePlan",
    "OptimizerPlan",
    "PartyFacts",
    "PersonPlan",
    "Plan",
    "PrivacyPlan",
    "RecordPlan",
    "SamplingPlan",
    "ServerOptimizerPlan",
    "SimulatePlan",
    "StagePlan",
    "Style",
    "TaskPlan",
    "TrainingPlan",
    "digest_of",
]

ADVERSARIES = ("curious", "semi-malicious")
"""What a server may be expected to do: look at all it gets, or also lie about who dropped out."""
BITS = (16, 20, 24, 32)
"""How wide the coordinates of a masked sum may be."""
COLLUDERS = "count at least one: every party receives the model and knows its own share"
BATCH_SIZE = 32
"""The batch size where a plan states neither a batch size nor a sample rate."""


# ------------------------------------------------------------------------------------- parts of a plan


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """What is learned: a task's name, or "module:Class", and what is passed to it."""

    name: str = "heart"
    options: Mapping[str, Any] = dataclasses.field(default_factory=Options)

    def __post_init__(self) -> None:
        named("name", self.name, 'name a task, for instance "heart" or "my_module:MyTask"')
        store(self, options=Options(self.options))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Which parties are asked in a round: everyone, each by its own coin of ``rate``, or ``size`` of them."""

    kind: str = "everyone"
    rate: float | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        chosen("kind", self.kind, ("everyone", "poisson", "fixed-size"))
        store(
            self,
            rate=maybe(share, "rate", self.rate, "the chance that a party is asked in a round"),
            size=maybe(count, "size", self.size, 1, MOST_STEPS, "how many parties are asked in a round"),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatePlan:
    """Bad luck to rehearse with the local runtime: parties that drop out, come too late, refuse."""

    drop_outs: float = 0.0
    stragglers: float = 0.0
    refusing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lost = probability("drop_outs", self.drop_outs, "the chance that a party is lost in a round") + 0.0
        late = probability("stragglers", self.stragglers, "the chance that a reply comes too late") + 0.0
        store(self, drop_outs=lost, stragglers=late, refusing=names("refusing", self.refusing))


_SPLIT = re.compile(r"dirichlet\((?P<alpha>[0-9.eE+-]+)\)")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FederationPlan:
    """Who takes part, and for how many rounds.

    ``parties`` are names, none for all of them, or how many clients are made. ``split`` says from what: ``natural``
    (hospitals, people, cards: whatever the task knows), ``iid`` or ``dirichlet(α)``, which deal out one data set.
    """

    rounds: int = 20
    sampling: SamplingPlan = dataclasses.field(default_factory=SamplingPlan)
    split: str = "natural"
    parties: tuple[str, ...] | int = ()
    minimum_parties: int = 1
    deadline: float | None = None
    spare_attempts: int = 0
    simulate: SimulatePlan = dataclasses.field(default_factory=SimulatePlan)

    def __post_init__(self) -> None:
        store(
            self,
            rounds=count("rounds", self.rounds, 1, MOST_ROUNDS, "a run has at least one round"),
            split=_checked_split(self.split),
            parties=count("parties", self.parties, 1, MOST_STEPS, "how many clients to make")
            if isinstance(self.parties, int)
            else names("parties", self.parties),
            minimum_parties=count("minimum_parties", self.minimum_parties, 1, MOST_ROUNDS),
            deadline=maybe(
                positive,
                "deadline",
                self.deadline,
                "seconds a round may take, on one machine each party; leave it out for no limit",
            ),
            spare_attempts=count("spare_attempts", self.spare_attempts, 0, MOST_ROUNDS),
        )

    @property
    def named(self) -> tuple[str, ...]:
        """The parties that are named; none where all take part, or where clients are made by number."""
        return () if isinstance(self.parties, int) else self.parties

    @property
    def alpha(self) -> float | None:
        """The α of a Dirichlet split; None for the others."""
        found = _SPLIT.fullmatch(self.split)
        return float(found["alpha"]) if found else None


def _checked_split(value: object) -> str:
    remedy = "choose 'natural', 'iid' or 'dirichlet(0.5)'"
    if value in ("natural", "iid"):
        return str(value)
    found = _SPLIT.fullmatch(value.replace(" ", "")) if isinstance(value, str) else None
    if found is None:
        raise InvalidParameter("split", value, "is unknown", remedy)
    try:
        alpha = float(found["alpha"])
    except ValueError:
        raise InvalidParameter("split", value, "has an α that is no number", remedy) from None
    return f"dirichlet({positive('alpha', alpha, 'small means that clients differ much'):g})"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerPlan:
    """How a party turns noisy gradients into steps."""

    kind: str = "sgd"
    learning_rate: float = 0.5
    momentum: float = 0.0

    def __post_init__(self) -> None:
        chosen("kind", self.kind, ("sgd",))
        momentum = non_negative("momentum", self.momentum, "choose it in [0, 1)") + 0.0
        if momentum >= 1:
            raise InvalidParameter("momentum", self.momentum, "must be below 1", "choose it in [0, 1), 0.9 say")
        store(self, learning_rate=positive("learning_rate", self.learning_rate), momentum=momentum)


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
    batches: str = "poisson"
    proximal: float = 0.0
    optimizer: OptimizerPlan = dataclasses.field(default_factory=OptimizerPlan)

    def __post_init__(self) -> None:
        named("engine", self.engine, 'choose "auto"')
        chosen("batches", self.batches, ("poisson", "shuffled", "fixed-size"))
        batch, rate = self.batch_size, self.sample_rate
        epochs, steps = self.local_epochs, self.local_steps
        if batch is None and rate is None:
            batch = BATCH_SIZE
        if epochs is None and steps is None:
            epochs = 1
        store(
            self,
            batch_size=maybe(count, "batch_size", batch, 1, MOST_STEPS),
            sample_rate=maybe(share, "sample_rate", rate, "the chance that a record is in a batch"),
            local_epochs=maybe(count, "local_epochs", epochs, 1, MOST_STEPS),
            local_steps=maybe(count, "local_steps", steps, 1, MOST_STEPS),
            proximal=non_negative("proximal", self.proximal, "the pull towards the server's model, 0 for none") + 0.0,
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptimizerPlan:
    """What the server does with the mean update: FedAvg, FedAvgM or FedAdam (Reddi et al. 2021).

    With ``average`` the model that is scored and kept is a running mean of all rounds' models, which costs nothing.
    """

    kind: str = "fedavg"
    learning_rate: float = 1.0
    momentum: float = 0.9
    second: float = 0.99
    floor: float = 1e-3
    average: float = 0.0

    def __post_init__(self) -> None:
        chosen("kind", self.kind, ("fedavg", "fedavgm", "fedadam"))
        for name in ("momentum", "second", "average"):
            value = non_negative(name, getattr(self, name), "choose it in [0, 1)") + 0.0
            if value >= 1:
                raise InvalidParameter(name, value, "must be below 1", "choose it in [0, 1), 0.9 say")
            store(self, **{name: value})
        store(
            self,
            learning_rate=positive("learning_rate", self.learning_rate),
            floor=positive("floor", self.floor, "what keeps FedAdam's divisor from zero"),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePlan:
    """Some rounds in a row with their own noise, clip and learning rate, as factors of what the plan states."""

    rounds: int
    noise: float = 1.0
    clip: float = 1.0
    learning_rate: float = 1.0

    def __post_init__(self) -> None:
        factors = {name: positive(name, getattr(self, name), "a factor; 1 changes nothing") for name in self.factors()}
        store(self, rounds=count("rounds", self.rounds, 1, MOST_ROUNDS), **factors)

    @staticmethod
    def factors() -> tuple[str, ...]:
        """What a stage may change."""
        return ("noise", "clip", "learning_rate")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregationPlan:
    """How the server combines what the parties send. ``weights`` if omitted: by size, or alike where clients count.

    With ``secure`` the server sees one sum of masked updates. ``threshold`` is how many parties must bring their shares
    to unmask it (chosen if omitted), ``adversary`` what the server is expected to do, ``colluders`` how many parties
    may share all they know with it, ``drop_outs`` the share of a cohort that may be lost. ``max_update`` is the ball on
    which a party projects its update, or its sum of gradients, before masking; if omitted, what clip and noise allow,
    and 100 where neither bounds it. ``attackers`` is how many parties of a round may send anything, for a robust rule;
    if omitted, a quarter of them, or as many as the rule withstands. ``before`` mixes updates before the rule sees
    them. ``groups`` cuts a masked cohort at random into so many, with one sum each and the rule between their means;
    ``threshold`` and ``drop_outs`` are then one group's.
    """

    rule: str = "mean"
    weights: str | None = None
    secure: bool = False
    threshold: int | None = None
    adversary: str = later("curious")
    colluders: int = later(1)
    drop_outs: float | None = None
    bits: int = later(32)
    max_update: float | None = None
    attackers: int | None = None
    before: str = later("")
    groups: int = later(1)
    optimizer: ServerOptimizerPlan = dataclasses.field(default_factory=ServerOptimizerPlan)

    def __post_init__(self) -> None:
        named("rule", self.rule, 'name a rule, for instance "mean"')
        maybe(chosen, "weights", self.weights, ("size", "equal"))
        if not isinstance(self.secure, bool):
            raise InvalidParameter("secure", self.secure, "is neither true nor false", "write true or false")
        chosen("adversary", self.adversary, ADVERSARIES)
        chosen("before", self.before, ("", *BEFORE))
        if self.bits not in BITS or isinstance(self.bits, bool):
            raise InvalidParameter("bits", self.bits, "is no width of a sum", "choose 32, or 16, 20 or 24")
        lost = maybe(probability, "drop_outs", self.drop_outs, "the share of a cohort that may be lost in a round")
        if lost == 1:
            raise InvalidParameter("drop_outs", self.drop_outs, "leaves nobody", "choose it below 1, 0.1 say")
        store(
            self,
            threshold=maybe(count, "threshold", self.threshold, 1, MOST_STEPS, "so many parties unmask a sum"),
            colluders=count("colluders", self.colluders, 1, MOST_STEPS, COLLUDERS),
            drop_outs=None if lost is None else lost + 0.0,
            max_update=maybe(positive, "max_update", self.max_update, "the length of the longest update"),
            groups=count("groups", self.groups, 1, MOST_STEPS, "so many groups of parties; 1 for one sum over all"),
            attackers=maybe(count, "attackers", self.attackers, 0, MOST_STEPS, "so many parties may send anything"),
        )


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
    schedule: tuple[StagePlan, ...] = ()
    attack: AttackPlan | None = None

    def __post_init__(self) -> None:
        stages = tuple(self.schedule)
        if not all(isinstance(stage, StagePlan) for stage in stages):
            raise InvalidParameter("schedule", self.schedule, "is no list of stages", "pass StagePlan(rounds=...)")
        if self.attack is not None and not isinstance(self.attack, AttackPlan):
            raise InvalidParameter("attack", self.attack, "is no attack", 'pass AttackPlan(kind="lie")')
        store(self, schedule=stages)

    def stage(self, number: int) -> StagePlan:
        """The stage of round ``number``; one without changes where nothing is scheduled."""
        left = number
        for stage in self.schedule:
            if left <= stage.rounds:
                return stage
            left -= stage.rounds
        return StagePlan(rounds=self.federation.rounds)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, every default spelled out; what is not stated (None) is left out.

        So are defaults of keys that came after plans were first written (:func:`~quietsum.plan.fields.later`): a plan
        that does not use them keeps its digest.
        """
        values: dict[str, Any] = _plain(self)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that :meth:`to_dict` wrote; unknown keys and wrong types are refused, all at once."""
        from quietsum.plan.text.files import plan_from_values

        return plan_from_values(values, where="the plan")

    def to_toml(self) -> str:
        """A complete ``run.toml``: reading it back gives this plan."""
        from quietsum.plan.text.files import to_toml

        return to_toml(self)

    def to_json(self) -> str:
        """Canonical JSON: sorted keys, no spaces, plain ASCII."""
        return _json(self.to_dict())

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal."""
        return digest_of(self.to_dict())


def digest_of(values: Mapping[str, Any]) -> str:
    """The :attr:`Plan.digest` of a plan's plain values.

    A ledger's own hash of the same values differs from it where they hold letters beyond ASCII.
    """
    return hashlib.sha256(_json(values).encode("ascii")).hexdigest()


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Options):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {field.name: _plain(item) for field, item in fields if item is not None and not unused(field, item)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyFacts:
    """What a task declares about one of its parties. Sizes are public by declaration.

    ``public`` is the reason why the dataset needs no protection, "" where it does. ``holder`` is set where many clients
    are dealt out of one data set: its books are kept under the holder's name, once for all of them. That is sound
    because every record, person and client of the data set is in one of the parties only, and what is charged is what
    the party with the most costly round pays.
    """

    name: str
    dataset: str
    size: int
    public: str = ""
    holder: str = ""

    def __post_init__(self) -> None:
        named("name", self.name, "name the party")
        named("dataset", self.dataset, "name the dataset; budgets are kept under this name")
        finite_number("size", self.size)
        store(self, size=whole_number("size", self.size, 0))

    @property
    def account(self) -> str:
        """Under whose name the books are kept."""
        return self.holder or self.name
