"""The plan of a run as one frozen value: who takes part, how they train, what privacy is promised.

A plan says everything that is decided before data is touched, and nothing else: no path, no seed, no secret. It comes
from a ``run.toml`` (:func:`quietsum.plan.load_plan`), goes back into one (:meth:`Plan.to_toml`), and is known by its
:attr:`Plan.digest`, which does not depend on the order of keys.

Every field is a key of the file, declared once with its bound, its default and what it means (:mod:`quietsum.keys`).
What only makes sense together (a noise multiplier beside a target ε, a batch larger than a site) is refused in one
table, :mod:`quietsum.plan.refusals`, so that an error lists all problems at once.

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
from functools import cached_property
from typing import Any, final

from quietsum.aggregation import BEFORE
from quietsum.errors import InvalidParameter
from quietsum.keys import (
    BELOW_ONE,
    COUNT,
    FRACTION,
    NAME,
    NAMES,
    NON_NEGATIVE,
    POSITIVE,
    ROUNDS,
    SHARE,
    at_default,
    choices,
    key,
    table,
    whole,
)  # fmt: skip
from quietsum.plan.attack import AttackPlan
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
from quietsum.validate import positive, printable_name, whole_number

__all__ = [
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

BATCH_SIZE = 32
"""The batch size where a plan states neither a batch size nor a sample rate."""


# ------------------------------------------------------------------------------------- parts of a plan


@final
@table
class TaskPlan:
    """What is learned."""

    name: str = key(
        'A task\'s name, or "my_module:MyTask".', default="heart", bound=NAME,
        instead='name a task, for instance "heart" or "my_module:MyTask"',
    )  # fmt: skip
    options: Mapping[str, Any] = key(
        "Passed to the task as it stands; what it means is the task's.", default_factory=Options
    )
    base: str = key(
        "SHA-256 of the weights that are not trained, beside adapters; every party compares it with its own.",
        default="", later=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", Options(self.options))
        if self.base and re.fullmatch(r"[0-9a-f]{64}", self.base) is None:
            remedy = "write the 64 digits that quietsum plan prints, or leave it out where all weights are trained"
            raise InvalidParameter("base", self.base, "is no SHA-256", remedy)


@final
@table
class SamplingPlan:
    """Which parties are asked in a round."""

    kind: str = key(
        "Ask everyone in each round, each party by its own coin, or a fixed number.", default="everyone",
        bound=choices("everyone", "poisson", "fixed-size"),
    )  # fmt: skip
    rate: float | None = key("With poisson: the chance that a party is asked in a round.", default=None, bound=SHARE)
    size: int | None = key("With fixed-size: how many parties are asked in a round.", default=None, bound=COUNT)


@final
@table
class SimulatePlan:
    """Bad luck to rehearse with the local runtime."""

    drop_outs: float = key("The chance that a party is lost in a round.", default=0.0, bound=FRACTION)
    stragglers: float = key("The chance that a party's reply comes too late.", default=0.0, bound=FRACTION)
    refusing: tuple[str, ...] = key("Parties that refuse to take part.", default=(), bound=NAMES)


_SPLIT = re.compile(r"dirichlet\((?P<alpha>[0-9.eE+-]+)\)")


@final
@table
class FederationPlan:
    """Who takes part, and for how many rounds.

    ``split`` says from what parties are made: ``natural`` (hospitals, people, cards, as the task knows them), ``iid``
    or ``dirichlet(α)``, which deal out one data set.
    """

    rounds: int = key("How many rounds the run has.", default=20, bound=ROUNDS)
    sampling: SamplingPlan = key("Which parties are asked in a round.", default_factory=SamplingPlan)
    split: str = key('From what parties are made: "natural", "iid" or "dirichlet(0.5)".', default="natural")
    parties: tuple[str, ...] | int = key(
        "Who takes part: names, none for all of them, or how many clients are made.", default=(),
        bound=dataclasses.replace(COUNT, named=True),
    )  # fmt: skip
    minimum_parties: int = key("A round with fewer replies than this fails.", default=1, bound=ROUNDS)
    deadline: float | None = key(
        "Seconds a round may take; on one machine, each party. If omitted no limit, across machines 600.",
        default=None, bound=POSITIVE,
    )  # fmt: skip
    spare_attempts: int = key(
        "Rounds that may be lost and repeated; paid for in advance.", default=0, bound=whole(0, 10**6)
    )
    simulate: SimulatePlan = key("Bad luck to rehearse with the local runtime.", default_factory=SimulatePlan)

    def __post_init__(self) -> None:
        object.__setattr__(self, "split", _normal_split(self.split))

    @property
    def named(self) -> tuple[str, ...]:
        """The parties that are named; none if all take part, or if clients are made by number."""
        return () if isinstance(self.parties, int) else self.parties

    @property
    def alpha(self) -> float | None:
        """The α of a Dirichlet split; None for the others."""
        split = _SPLIT.fullmatch(self.split)
        return float(split["alpha"]) if split else None


def _normal_split(value: str) -> str:
    """``value`` in the form that plans are compared by."""
    remedy = "choose 'natural', 'iid' or 'dirichlet(0.5)'"
    if value in ("natural", "iid"):
        return value
    split = _SPLIT.fullmatch(value.replace(" ", ""))
    if split is None:
        raise InvalidParameter("split", value, "is unknown", remedy)
    try:
        alpha = float(split["alpha"])
    except ValueError:
        raise InvalidParameter("split", value, "has an α that is no number", remedy) from None
    return f"dirichlet({positive('alpha', alpha, 'small means that clients differ much'):g})"


@final
@table
class OptimizerPlan:
    """How a party turns noisy gradients into steps."""

    kind: str = key("Gradient descent, with momentum if you like.", default="sgd", bound=choices("sgd"))
    learning_rate: float = key("The length of a step.", default=0.5, bound=POSITIVE)
    momentum: float = key("How much of the last step is kept.", default=0.0, bound=BELOW_ONE)


@final
@table
class TrainingPlan:
    """What a party does in one round."""

    engine: str = key('Who computes gradients: "auto", or one by name.', default="auto", bound=NAME)
    batch_size: int | None = key(
        "Records in a batch, in expectation: each is drawn by its own coin. 32 if omitted.", default=None, bound=COUNT
    )
    sample_rate: float | None = key(
        "Instead of batch_size: the chance that a record is in a batch, alike at all parties.", default=None,
        bound=SHARE,
    )  # fmt: skip
    local_epochs: int | None = key(
        "Passes over a party's records in a round, in expectation. 1 if omitted.", default=None, bound=COUNT
    )
    local_steps: int | None = key("Instead of local_epochs: steps in a round.", default=None, bound=COUNT)
    batches: str = key(
        "How records are drawn; each by its own coin is what is accounted for.", default="poisson",
        bound=choices("poisson", "shuffled", "fixed-size"),
    )  # fmt: skip
    canaries: int = key(
        "Made-up records that each party's training carries for quietsum audit; 0 for none.", default=0,
        bound=whole(0, 100_000), later=True,
    )  # fmt: skip
    proximal: float = key("FedProx: the pull towards the server's model, 0 for none.", default=0.0, bound=NON_NEGATIVE)
    optimizer: OptimizerPlan = key("How noisy gradients become steps.", default_factory=OptimizerPlan)

    def __post_init__(self) -> None:
        if self.batch_size is None and self.sample_rate is None:
            object.__setattr__(self, "batch_size", BATCH_SIZE)
        if self.local_epochs is None and self.local_steps is None:
            object.__setattr__(self, "local_epochs", 1)


@final
@table
class ServerOptimizerPlan:
    """What the server does with the mean update.

    FedAvg, FedAvgM, FedAdam (Reddi et al. 2021) or Adam (Kingma, Ba 2015). Averaging models costs no privacy.
    """

    kind: str = key(
        "Add it, add it with momentum, or scale each coordinate (Adam).", default="fedavg",
        bound=choices("fedavg", "fedavgm", "fedadam", "adam"),
    )  # fmt: skip
    learning_rate: float = key("The length of the server's step.", default=1.0, bound=POSITIVE)
    momentum: float = key("fedavgm, fedadam and adam: how much of the past is kept.", default=0.9, bound=BELOW_ONE)
    second: float = key("fedadam and adam: the same for squares.", default=0.99, bound=BELOW_ONE)
    floor: float = key("fedadam and adam: what keeps the divisor from zero.", default=1e-3, bound=POSITIVE)
    average: float = key(
        "Keep a running mean of the models, with this decay; 0 keeps the last one.", default=0.0, bound=BELOW_ONE
    )


@final
@table
class StagePlan:
    """Some rounds in a row with factors of their own."""

    rounds: int = key("How many rounds the stage has.", bound=ROUNDS)
    noise: float = key("Times the noise multipliers.", default=1.0, bound=POSITIVE)
    clip: float = key("Times the clips.", default=1.0, bound=POSITIVE)
    learning_rate: float = key("Times the parties' learning rate.", default=1.0, bound=POSITIVE)


@final
@table
class AggregationPlan:
    """How the server combines what the parties send.

    With ``secure`` the server sees one sum of masked updates. ``max_update`` is the ball on which a party projects its
    update, or its sum of gradients, before masking; if omitted, what clip and noise allow, and 100 where neither bounds
    it. ``groups`` cuts a masked cohort at random into so many, with one sum each and the rule between their means;
    ``threshold`` and ``drop_outs`` are then one group's.
    """

    rule: str = key("How updates are combined.", default="mean", bound=NAME, instead='name a rule, for instance "mean"')
    weights: str | None = key(
        "Weigh parties by declared size (the default without client level), or all alike.", default=None,
        bound=choices("size", "equal"),
    )  # fmt: skip
    secure: bool = key("Show the server one masked sum only.", default=False)
    threshold: int | None = key(
        "How many parties must bring their shares to unmask a sum; chosen to fit if omitted.", default=None, bound=COUNT
    )
    adversary: str = key(
        "What the server may do: look at all it gets, or also lie about who dropped out.", default="curious",
        bound=choices("curious", "semi-malicious"), later=True,
    )  # fmt: skip
    colluders: int = key(
        "Parties that may tell the server all they know, those it enrols itself included; at least 1.", default=1,
        bound=COUNT, later=True,
        instead="count at least one: every party receives the model and knows its own share",
    )  # fmt: skip
    drop_outs: float | None = key(
        "The share of a cohort that a round may lose; what the threshold allows if omitted.", default=None,
        bound=BELOW_ONE,
    )  # fmt: skip
    bits: int = key(
        "The width of a masked coordinate; below 32 with a Hadamard rotation.", default=32,
        bound=choices(16, 20, 24, 32), later=True,
    )  # fmt: skip
    max_update: float | None = key(
        "Longer updates or gradient sums are cut to this before masking; if omitted, by clip and noise.", default=None,
        bound=POSITIVE,
    )  # fmt: skip
    attackers: int | None = key(
        "Parties of a round that may send anything; a quarter, or what the rule withstands, if omitted.", default=None,
        bound=whole(0, 10**9),
    )  # fmt: skip
    before: str = key(
        "Mix updates before the rule: each with its nearest (nnm), or two at random (bucketing).", default="",
        bound=choices("", *BEFORE), later=True,
    )  # fmt: skip
    groups: int = key(
        "With secure: random groups of parties, a masked sum of each, and the rule between their means.", default=1,
        bound=COUNT, later=True,
    )  # fmt: skip
    optimizer: ServerOptimizerPlan = key(
        "What the server does with the mean update.", default_factory=ServerOptimizerPlan
    )


# --------------------------------------------------------------------------------------------- the plan


@final
@table
class Plan:
    """A run of quietsum: who takes part, how they train, what privacy is promised.

    See :func:`quietsum.plan.resolve` for what follows from it.
    """

    task: TaskPlan = key("What is learned.", default_factory=TaskPlan)
    federation: FederationPlan = key("Who takes part, and for how many rounds.", default_factory=FederationPlan)
    training: TrainingPlan = key("What a party does in one round.", default_factory=TrainingPlan)
    privacy: PrivacyPlan = key("The promise.", default_factory=PrivacyPlan)
    aggregation: AggregationPlan = key("How updates are combined.", default_factory=AggregationPlan)
    schedule: tuple[StagePlan, ...] = key(
        "Stages with factors for noise, clip and learning rate; together all rounds.", default=()
    )
    attack: AttackPlan | None = key(
        "A drill on this machine: parties that attack. Refused by every site.", default=None
    )

    def stage(self, number: int) -> StagePlan:
        """The stage of round ``number``; one without changes where nothing is scheduled."""
        left = number
        for stage in self.schedule:
            if left <= stage.rounds:
                return stage
            left -= stage.rounds
        return self._unchanged

    @cached_property
    def _unchanged(self) -> StagePlan:
        """The stage of all rounds where nothing is scheduled: made, and its keys checked, once."""
        return StagePlan(rounds=self.federation.rounds)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, every default spelled out; what is not stated (None) is left out.

        So are defaults of keys that came after plans were first written (:class:`~quietsum.keys.Key`): a plan
        that does not use them keeps its digest.
        """
        values: dict[str, Any] = _plain(self)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """The plan that :meth:`to_dict` wrote; unknown keys and wrong types are refused, all at once."""
        from quietsum.plan.text.files import plan_from_values

        return plan_from_values(values, where="the plan")

    def _repr_html_(self) -> str:
        from quietsum.plan.text.notebook_view import show_plan

        return show_plan(self)

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
        return {field.name: _plain(item) for field, item in fields if item is not None and not at_default(field, item)}
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
        printable_name("name", self.name, "name the party")
        printable_name("dataset", self.dataset, "name the dataset; budgets are kept under this name")
        object.__setattr__(self, "size", whole_number("size", self.size, 0))

    @property
    def account(self) -> str:
        """Under whose name the books are kept."""
        return self.holder or self.name
