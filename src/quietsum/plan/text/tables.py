"""The tables of ``run.toml``: which keys there are, what they mean and what they may hold.

Only the file edge (:mod:`quietsum.plan.text.files`) looks in here. Each table mirrors one frozen value of
:mod:`quietsum.plan.values`; a test keeps their keys and defaults alike. Descriptions and bounds end up in the published
JSON Schema, and the reference page is checked against them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from quietsum.plan import values

__all__ = ["PlanTable", "Table"]


class Table(BaseModel):
    """What all tables have in common: no unknown keys, no conversions, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    value: ClassVar[type[Any]]


Rounds = Annotated[int, Field(ge=1, le=values.MOST_ROUNDS)]
Steps = Annotated[int, Field(ge=1, le=values.MOST_STEPS)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Delta = Annotated[float, Field(gt=0, lt=1)]


class TaskTable(Table):
    """What is learned."""

    value = values.TaskPlan
    name: str = Field(default="heart", min_length=1, description='A task\'s name, or "my_module:MyTask".')
    options: dict[str, Any] = Field(
        default={}, description="Passed to the task as it stands; what it means is the task's."
    )


class SamplingTable(Table):
    """Which parties are asked in a round."""

    value = values.SamplingPlan
    kind: Literal["everyone", "poisson", "fixed-size"] = Field(
        default="everyone", description="Ask everyone in each round, each party by its own coin, or a fixed number."
    )
    rate: Share | None = Field(default=None, description="With poisson: the chance that a party is asked in a round.")
    size: Steps | None = Field(default=None, description="With fixed-size: how many parties are asked in a round.")


class SimulateTable(Table):
    """Bad luck to rehearse with the local runtime."""

    value = values.SimulatePlan
    drop_outs: float = Field(default=0.0, ge=0, le=1, description="The chance that a party is lost in a round.")
    stragglers: float = Field(default=0.0, ge=0, le=1, description="The chance that a party's reply comes too late.")
    refusing: list[str] = Field(default=[], description="Parties that refuse to take part.")


class FederationTable(Table):
    """Who takes part, and for how many rounds."""

    value = values.FederationPlan
    rounds: Rounds = Field(default=20, description="How many rounds the run has.")
    sampling: SamplingTable = Field(default=SamplingTable(), description="Which parties are asked in a round.")
    split: str = Field(
        default="natural", description='From what parties are made: "natural", "iid" or "dirichlet(0.5)".'
    )
    parties: list[str] | Steps = Field(
        default=[], description="Who takes part: names, none for all of them, or how many clients are made."
    )
    minimum_parties: Rounds = Field(default=1, description="A round with fewer replies than this fails.")
    deadline: Positive | None = Field(
        default=None,
        description="Seconds a round may take; on one machine, each party. If omitted no limit, across machines 600.",
    )
    spare_attempts: int = Field(
        default=0, ge=0, le=values.MOST_ROUNDS, description="Rounds that may be lost and repeated; paid for in advance."
    )
    simulate: SimulateTable = Field(default=SimulateTable(), description="Bad luck to rehearse with the local runtime.")


class OptimizerTable(Table):
    """How a party turns noisy gradients into steps."""

    value = values.OptimizerPlan
    kind: Literal["sgd"] = Field(default="sgd", description="Gradient descent, with momentum if you like.")
    learning_rate: Positive = Field(default=0.5, description="The length of a step.")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="How much of the last step is kept.")


class TrainingTable(Table):
    """What a party does in one round."""

    value = values.TrainingPlan
    engine: str = Field(default="auto", min_length=1, description='Who computes gradients: "auto", or one by name.')
    batch_size: Steps | None = Field(
        default=None,
        description="Records in a batch, in expectation: each is drawn by its own coin. 32 if omitted.",
    )
    sample_rate: Share | None = Field(
        default=None, description="Instead of batch_size: the chance that a record is in a batch, alike at all parties."
    )
    local_epochs: Steps | None = Field(
        default=None, description="Passes over a party's records in a round, in expectation. 1 if omitted."
    )
    local_steps: Steps | None = Field(default=None, description="Instead of local_epochs: steps in a round.")
    batches: Literal["poisson", "shuffled", "fixed-size"] = Field(
        default="poisson", description="How records are drawn; each by its own coin is what is accounted for."
    )
    proximal: float = Field(default=0.0, ge=0, description="FedProx: the pull towards the server's model, 0 for none.")
    optimizer: OptimizerTable = Field(default=OptimizerTable(), description="How noisy gradients become steps.")


class LifetimeTable(Table):
    """What may be spent on a dataset over all runs together."""

    value = values.LifetimePlan
    epsilon: Positive = Field(description="The ε per record of all runs together.")
    delta: Delta = Field(description="The δ that goes with it.")


class RecordTable(Table):
    """What is promised to each record."""

    value = values.RecordPlan
    epsilon: Positive | None = Field(
        default=None, description="The target ε per record; the noise is calibrated to fit."
    )
    noise_multiplier: Positive | None = Field(
        default=None, description="Instead of epsilon: noise over clip; ε is computed for the whole plan."
    )
    delta: Delta | None = Field(default=None, description="The δ per record, at most 1/(10 n) for the largest party.")
    max_grad_norm: Positive = Field(default=1.0, description="Each record's gradient is clipped to this L2 norm.")
    noise_at: Literal["party", "distributed"] = Field(
        default="party",
        description="Who adds the noise: every party all of it, or each a share, under secure aggregation.",
    )
    lifetime: LifetimeTable | None = Field(
        default=None, description="The budget of a dataset over all runs; the plan's own ε if omitted."
    )


class AdaptiveTable(Table):
    """A clip that follows a quantile of the updates' norms."""

    value = values.AdaptivePlan
    quantile: Delta = Field(default=0.5, description="Which quantile of the norms the clip follows.")
    learning_rate: Positive = Field(default=0.2, description="How fast the clip follows, as a rate of its logarithm.")
    count_noise: Positive | None = Field(
        default=None, description="Noise on the count of small updates; a twentieth of the expected cohort if omitted."
    )


class ClientTable(Table):
    """What is promised to each client."""

    value = values.ClientPlan
    epsilon: Positive | None = Field(
        default=None, description="The target ε per client; the noise is calibrated to fit."
    )
    noise_multiplier: Positive | None = Field(default=None, description="Instead of epsilon: noise over clip.")
    delta: Delta | None = Field(
        default=None, description="The δ per client, at most 1/(10 N) for N registered clients."
    )
    max_norm: Positive = Field(default=1.0, description="Each client's update is clipped to this L2 norm.")
    noise_at: Literal["server", "party", "distributed"] = Field(
        default="server",
        description="Who adds the noise: the server, once; every party, to its own update; or each party a share.",
    )
    against: Literal["recipients", "server"] | None = Field(
        default=None, description="Whom the promise must bind; refused where the noise comes too late for it."
    )
    adaptive: AdaptiveTable | None = Field(default=None, description="Let the clip follow the updates' norms.")
    lifetime: LifetimeTable | None = Field(
        default=None, description="The budget per client over all runs; the plan's own ε if omitted."
    )


class PersonTable(Table):
    """People with several records."""

    value = values.PersonPlan
    id: str = Field(min_length=1, description="What tells people apart, as the task calls it.")
    max_records: Steps = Field(description="How many records of one person are used, at most; bounded before drawing.")
    epsilon: Positive | None = Field(
        default=None, description="The target ε per person; the noise is calibrated to fit."
    )
    delta: Delta | None = Field(default=None, description="The δ per person; the record's if omitted.")


class PrivacyTable(Table):
    """The promise, its numbers, and how they are computed."""

    value = values.PrivacyPlan
    style: Literal["none", "sample", "user", "hybrid"] = Field(
        default="sample", description="Whom the run protects: nobody, each record, each client, both."
    )
    record: RecordTable | None = Field(default=None, description="What is promised to each record.")
    person: PersonTable | None = Field(default=None, description="People with several records, bounded and counted.")
    client: ClientTable | None = Field(default=None, description="What is promised to each client.")
    preset: Literal["privacy_high", "privacy_medium", "performance"] | None = Field(
        default=None, description="Instead of epsilon and delta: a promise with a name."
    )
    accounting: Literal["exact", "rdp", "moments"] = Field(default="exact", description="How ε is computed.")
    neighbours: Literal["add-or-remove-one", "zero-out", "replace-one"] = Field(
        default="add-or-remove-one", description="Which two datasets the promise compares."
    )
    noise: Literal["secure", "fast"] = Field(
        default="secure",
        description="Noise on an integer grid, or floats, labelled as not floating-point safe.",
    )
    distributed_noise: Literal["skellam", "discrete-gaussian"] = Field(
        default="skellam", description="The law of the parties' shares where noise is distributed."
    )


class ServerOptimizerTable(Table):
    """What the server does with the mean update."""

    value = values.ServerOptimizerPlan
    kind: Literal["fedavg", "fedavgm", "fedadam"] = Field(
        default="fedavg", description="Add it, add it with momentum, or scale each coordinate (Adam)."
    )
    learning_rate: Positive = Field(default=1.0, description="The length of the server's step.")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="fedavgm and fedadam: how much of the past is kept.")
    second: float = Field(default=0.99, ge=0, lt=1, description="fedadam: the same for squares.")
    floor: Positive = Field(default=1e-3, description="fedadam: what keeps the divisor from zero.")
    average: float = Field(
        default=0.0, ge=0, lt=1, description="Keep a running mean of the models, with this decay; 0 keeps the last one."
    )


class StageTable(Table):
    """Some rounds in a row with factors of their own."""

    value = values.StagePlan
    rounds: Rounds = Field(description="How many rounds the stage has.")
    noise: Positive = Field(default=1.0, description="Times the noise multipliers.")
    clip: Positive = Field(default=1.0, description="Times the clips.")
    learning_rate: Positive = Field(default=1.0, description="Times the parties' learning rate.")


class AggregationTable(Table):
    """How the server combines what the parties send."""

    value = values.AggregationPlan
    rule: str = Field(default="mean", min_length=1, description="How updates are combined.")
    weights: Literal["size", "equal"] | None = Field(
        default=None, description="Weigh parties by declared size (the default without client level), or all alike."
    )
    secure: bool = Field(default=False, description="Show the server one masked sum only.")
    threshold: Steps | None = Field(
        default=None,
        description="How many parties must bring their shares to unmask a sum; chosen to fit if omitted.",
    )
    adversary: Literal["curious", "semi-malicious"] = Field(
        default="curious",
        description="What the server may do: look at all it gets, or also lie about who dropped out.",
    )
    colluders: Steps = Field(
        default=1,
        description="Parties that may tell the server all they know, those it enrols itself included; at least 1.",
    )
    drop_outs: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="The share of a cohort that a round may lose; what the threshold allows if omitted.",
    )
    bits: Literal[16, 20, 24, 32] = Field(
        default=32, description="The width of a masked coordinate; below 32 with a Hadamard rotation."
    )
    max_update: Positive | None = Field(
        default=None,
        description="Longer updates or gradient sums are cut to this before masking; if omitted, by clip and noise.",
    )
    attackers: Annotated[int, Field(ge=0, le=values.MOST_STEPS)] | None = Field(
        default=None,
        description="Parties of a round that may send anything; a quarter, or what the rule withstands, if omitted.",
    )
    before: Literal["", "nnm", "bucketing"] = Field(
        default="",
        description="Mix updates before the rule: each with its nearest (nnm), or two at random (bucketing).",
    )
    groups: Steps = Field(
        default=1,
        description="With secure: random groups of parties, a masked sum of each, and the rule between their means.",
    )
    optimizer: ServerOptimizerTable = Field(
        default=ServerOptimizerTable(), description="What the server does with the mean update."
    )


class AttackTable(Table):
    """What some parties do instead of following the plan, for a drill."""

    value = values.AttackPlan
    kind: Literal[
        "sign-flip", "gaussian", "zero", "free-rider", "model-replacement", "lie", "ipm", "min-max", "min-sum",
        "byzmean", "mimic", "sign-matched", "adaptive", "label-flip", "backdoor", "distributed-backdoor",
    ] = Field(description="What the attackers do; docs/explanation/attacks.md tells of each.")  # fmt: skip
    parties: list[str] | Steps = Field(default=1, description="Who attacks: names, or how many of the first parties.")
    strength: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="The attack's one number, its usual value if omitted; on rows, a factor of what is sent.",
    )
    direction: Literal["rising", "falling", "unit", "sign"] = Field(
        default="rising", description="Where lie, byzmean, min-max, min-sum and adaptive push."
    )
    from_round: Rounds = Field(default=1, description="The first round that is attacked.")
    to_round: Rounds | None = Field(default=None, description="The last round that is attacked; to the end if omitted.")
    source: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="label-flip: the class whose labels are flipped; all classes if omitted."
    )
    target: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="label-flip and backdoors: the class that is told instead; 0 for backdoors if omitted.",
    )
    trigger: list[Annotated[int, Field(ge=0)]] = Field(
        default=[0, 1, 2], min_length=1, description="Backdoors: coordinates of an example that bear the trigger."
    )
    mark: float | None = Field(
        default=None, description="Backdoors: what stands there; the largest number of each example if omitted."
    )
    share: float = Field(
        default=0.5, ge=0, le=1, description="Backdoors: the share of an attacker's rows that bear it."
    )


class PlanTable(Table):
    """A run of quietsum: who takes part, how they train, what privacy is promised."""

    value = values.Plan
    task: TaskTable = Field(default=TaskTable(), description="What is learned.")
    federation: FederationTable = Field(
        default=FederationTable(), description="Who takes part, and for how many rounds."
    )
    training: TrainingTable = Field(default=TrainingTable(), description="What a party does in one round.")
    privacy: PrivacyTable = Field(default=PrivacyTable(), description="The promise.")
    aggregation: AggregationTable = Field(default=AggregationTable(), description="How updates are combined.")
    schedule: list[StageTable] = Field(
        default=[], description="Stages with factors for noise, clip and learning rate; together all rounds."
    )
    attack: AttackTable | None = Field(
        default=None, description="A drill on this machine: parties that attack. Refused by every site."
    )
