"""What a plan promises, to whom: each record, each person, each client.

A promise is a target ε, for which the noise is calibrated, or a noise multiplier, from which ε follows. Units are kept
apart: a plan may promise something to records *and* to clients, and prints two lines, never a sum.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.plan.fields import chosen, later, maybe, named, store
from quietsum.privacy import Budget, Neighbours, PrivacyUnit
from quietsum.validate import open_probability, positive, whole_number

__all__ = ["AdaptivePlan", "ClientPlan", "LifetimePlan", "PersonPlan", "PrivacyPlan", "RecordPlan", "Style"]


class Style(enum.StrEnum):
    """Whom the run protects."""

    NONE = "none"
    """Nobody: no privacy guarantee."""
    SAMPLE = "sample"
    """Each record, by noise at its own party."""
    USER = "user"
    """Each client as a whole, by noise on the sum of all updates."""
    HYBRID = "hybrid"
    """Records and clients, each with a budget of its own."""

    @property
    def records(self) -> bool:
        """Whether records are protected at their party."""
        return self in (Style.SAMPLE, Style.HYBRID)

    @property
    def clients(self) -> bool:
        """Whether clients are protected as a whole."""
        return self in (Style.USER, Style.HYBRID)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LifetimePlan:
    """What may be spent on a dataset over all runs together."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        store(self, epsilon=positive("epsilon", self.epsilon), delta=open_probability("delta", self.delta))

    def budget(self, unit: PrivacyUnit = PrivacyUnit.RECORD) -> Budget:
        """The same as a budget per ``unit``."""
        return Budget(epsilon=self.epsilon, delta=self.delta, unit=unit)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordPlan:
    """What is promised to each record: a target ε (the noise is calibrated), or a noise multiplier (ε follows).

    ``noise_at`` says where it is added: every ``party`` adds all of it, or each adds a share (``distributed``), so that
    the sum of all has it once; for that the sum must be masked (``aggregation.secure``).
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    max_grad_norm: float = 1.0
    noise_at: str = later("party")
    lifetime: LifetimePlan | None = None

    def __post_init__(self) -> None:
        store(
            self,
            epsilon=maybe(positive, "epsilon", self.epsilon, "for no privacy at all say style = 'none'"),
            noise_multiplier=maybe(positive, "noise_multiplier", self.noise_multiplier),
            delta=maybe(open_probability, "delta", self.delta),
            max_grad_norm=positive("max_grad_norm", self.max_grad_norm, "the clip of one record's gradient"),
            noise_at=chosen("noise_at", self.noise_at, ("party", "distributed")),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptivePlan:
    """The clip follows a quantile of the updates' norms (Andrew et al. 2021), from a noisy count in each round.

    ``count_noise`` is the standard deviation of the noise on that count; a twentieth of the expected cohort if omitted.
    Count and update are charged together, as one release with the client's noise multiplier.
    """

    quantile: float = 0.5
    learning_rate: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        store(
            self,
            quantile=open_probability("quantile", self.quantile, "0.5 is the median"),
            learning_rate=positive("learning_rate", self.learning_rate),
            count_noise=maybe(positive, "count_noise", self.count_noise),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """What is promised to each client. ``noise_at`` says who adds the noise, and with it whom the promise binds.

    At the ``server`` the sum of clipped updates gets noise once: recipients of the model are kept from knowing whether
    a client took part, the server is trusted. At the ``party`` every update gets it before it leaves: the server is
    kept from it, too, and the sum is noisier by far. ``distributed``, every party adds a share and the server sees the
    masked sum alone (``aggregation.secure``): it is kept from it with little more noise than it would add itself.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    max_norm: float = 1.0
    noise_at: str = "server"
    against: str | None = None
    adaptive: AdaptivePlan | None = None
    lifetime: LifetimePlan | None = None

    def __post_init__(self) -> None:
        store(
            self,
            epsilon=maybe(positive, "epsilon", self.epsilon),
            noise_multiplier=maybe(positive, "noise_multiplier", self.noise_multiplier),
            delta=maybe(open_probability, "delta", self.delta),
            max_norm=positive("max_norm", self.max_norm, "the clip of one client's update"),
            noise_at=chosen("noise_at", self.noise_at, ("server", "party", "distributed")),
            against=maybe(chosen, "against", self.against, ("recipients", "server")),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PersonPlan:
    """Who stands behind several records: the name of the task's ``id``, and how many records of each are used.

    The bound is enforced before anything is drawn. With ``epsilon`` the noise is calibrated for the whole person; else
    the person's ε follows from the record's noise and is printed beside it.
    """

    id: str
    max_records: int
    epsilon: float | None = None
    delta: float | None = None

    def __post_init__(self) -> None:
        store(
            self,
            id=named("id", self.id, "name what tells people apart, as the task calls it"),
            max_records=whole_number("max_records", self.max_records, 1, "records of one person that may be used"),
            epsilon=maybe(positive, "epsilon", self.epsilon),
            delta=maybe(open_probability, "delta", self.delta),
        )
        if self.max_records > 10**6:
            raise InvalidParameter("max_records", self.max_records, "bounds nothing", "choose a number people reach")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """The promise: its style, its numbers, and how they are computed."""

    style: Style = Style.SAMPLE
    record: RecordPlan | None = None
    person: PersonPlan | None = None
    client: ClientPlan | None = None
    preset: str | None = None
    accounting: str = "exact"
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    noise: str = "secure"
    distributed_noise: str = later("skellam")

    def __post_init__(self) -> None:
        from quietsum.plan.presets import PRESETS

        chosen("accounting", self.accounting, ("exact", "rdp", "moments"))
        chosen("noise", self.noise, ("secure", "fast"))
        chosen("distributed_noise", self.distributed_noise, ("skellam", "discrete-gaussian"))
        if self.preset is not None:
            chosen("preset", self.preset, PRESETS)
        store(
            self,
            style=Style(chosen("style", self.style, [style.value for style in Style])),
            neighbours=Neighbours(chosen("neighbours", self.neighbours, [known.value for known in Neighbours])),
        )
