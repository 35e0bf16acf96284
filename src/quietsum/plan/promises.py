"""What a plan promises, to whom: each record, each person, each client.

A promise is a target ε, for which the noise is calibrated, or a noise multiplier, from which ε follows. Units are kept
apart: a plan may promise something to records *and* to clients, and prints two lines, never a sum. A preset is a
promise with a name, for those who would rather not choose an ε:

===================  =====  =======
preset                   ε        δ
===================  =====  =======
``privacy_high``       0.1     1e-6
``privacy_medium``       1     1e-5
``performance``         10     1e-4
===================  =====  =======

A δ of 1/n would allow publishing one record in full, so a preset's δ is lowered to 1/(10 n) where that is less, with n
the size of the *largest* party: δ must be small against every party's own n, and 1/n is smallest there.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from types import MappingProxyType
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, FRACTION, NAME, OPEN_FRACTION, POSITIVE, choices, key, table, whole
from quietsum.privacy import Budget, Neighbours, PrivacyUnit

__all__ = [
    "PRESETS", "AdaptivePlan", "ClientPlan", "LifetimePlan", "PersonPlan", "Preset", "PrivacyPlan", "RecordPlan",
    "Style", "safe_delta",
]  # fmt: skip


class Style(enum.StrEnum):
    """Whom the run protects."""

    NONE = "none"
    """No privacy guarantee."""
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
class Preset:
    """A target ε with the largest δ that goes with it."""

    epsilon: float
    delta: float

    def delta_for(self, sizes: Iterable[int]) -> float:
        """min(δ of the preset, 1/(10 n)) over all sizes.

        >>> PRESETS["performance"].delta_for([303, 123])
        0.0001
        >>> PRESETS["performance"].delta_for([303, 50_000])
        2e-06
        """
        return min(self.delta, safe_delta(sizes))


PRESETS = MappingProxyType(
    {
        "privacy_high": Preset(epsilon=0.1, delta=1e-6),
        "privacy_medium": Preset(epsilon=1.0, delta=1e-5),
        "performance": Preset(epsilon=10.0, delta=1e-4),
    }
)
"""The presets that a plan may name. A δ that is too large for the data is lowered."""


def safe_delta(sizes: Iterable[int]) -> float:
    """1/(10 n) for the largest n: a δ that is small against one record in n at every party."""
    return 1 / (10 * max((size for size in sizes if size > 0), default=1))


@final
@table
class LifetimePlan:
    """What may be spent on a dataset over all runs together."""

    epsilon: float = key("The ε per record of all runs together.", bound=POSITIVE)
    delta: float = key("The δ that goes with it.", bound=OPEN_FRACTION)

    def budget(self, unit: PrivacyUnit = PrivacyUnit.RECORD) -> Budget:
        """The same as a budget per ``unit``."""
        return Budget(epsilon=self.epsilon, delta=self.delta, unit=unit)


@final
@table
class RecordPlan:
    """What is promised to each record.

    ``noise_at`` says where noise is added: every ``party`` adds all of it, or each adds a share (``distributed``), so
    that the sum of all has it once; for that the sum must be masked (``aggregation.secure``).
    """

    epsilon: float | None = key(
        "The target ε per record; the noise is calibrated to fit.", default=None, bound=POSITIVE,
        instead="for no privacy at all say style = 'none'",
    )  # fmt: skip
    noise_multiplier: float | None = key(
        "Instead of epsilon: noise over clip; ε is computed for the whole plan.", default=None, bound=POSITIVE
    )
    delta: float | None = key(
        "The δ per record, at most 1/(10 n) for the largest party.", default=None, bound=OPEN_FRACTION
    )
    max_grad_norm: float = key("Each record's gradient is clipped to this L2 norm.", default=1.0, bound=POSITIVE)
    noise_at: str = key(
        "Who adds the noise: every party all of it, or each a share, under secure aggregation.", default="party",
        bound=choices("party", "distributed"), later=True,
    )  # fmt: skip
    lifetime: LifetimePlan | None = key(
        "The budget of a dataset over all runs; the plan's own ε if omitted.", default=None
    )


@final
@table
class AdaptivePlan:
    """A clip that follows a quantile of the updates' norms.

    The quantile is estimated from a noisy count in each round (Andrew et al. 2021). ``count_noise`` is the standard
    deviation of the noise on that count. Count and update are charged together, as one release with the client's noise
    multiplier.
    """

    quantile: float = key("Which quantile of the norms the clip follows.", default=0.5, bound=OPEN_FRACTION)
    learning_rate: float = key("How fast the clip follows, as a rate of its logarithm.", default=0.2, bound=POSITIVE)
    count_noise: float | None = key(
        "Noise on the count of small updates; a twentieth of the expected cohort if omitted.", default=None,
        bound=POSITIVE,
    )  # fmt: skip


@final
@table
class ClientPlan:
    """What is promised to each client.

    ``noise_at`` says who adds the noise, and with it whom the promise binds. At the ``server`` the sum of clipped
    updates gets noise once: recipients of the model cannot tell whether a client took part, the server is trusted. At
    the ``party`` every update gets it before it leaves: the server cannot tell either, and the sum is noisier by far.
    ``distributed``, every party adds a share and the server sees the masked sum alone (``aggregation.secure``): it
    cannot tell, with little more noise than it would add itself.
    """

    epsilon: float | None = key(
        "The target ε per client; the noise is calibrated to fit.", default=None, bound=POSITIVE
    )
    noise_multiplier: float | None = key("Instead of epsilon: noise over clip.", default=None, bound=POSITIVE)
    delta: float | None = key(
        "The δ per client, at most 1/(10 N) for N registered clients.", default=None, bound=OPEN_FRACTION
    )
    max_norm: float = key("Each client's update is clipped to this L2 norm.", default=1.0, bound=POSITIVE)
    noise_at: str = key(
        "Who adds the noise: the server, once; every party, to its own update; or each party a share.",
        default="server", bound=choices("server", "party", "distributed"),
    )  # fmt: skip
    against: str | None = key(
        "Whom the promise must bind; refused where the noise comes too late for it.", default=None,
        bound=choices("recipients", "server"),
    )  # fmt: skip
    adaptive: AdaptivePlan | None = key("Let the clip follow the updates' norms.", default=None)
    canaries: int = key(
        "Made-up clients that the server carries through its aggregation for quietsum audit; 0 for none.", default=0,
        bound=whole(0, 10_000), later=True,
    )  # fmt: skip
    lifetime: LifetimePlan | None = key(
        "The budget per client over all runs; the plan's own ε if omitted.", default=None
    )


@final
@table
class PersonPlan:
    """People with several records.

    The bound is enforced before anything is drawn. With ``epsilon`` the noise is calibrated for the whole person; else
    the person's ε follows from the record's noise and is printed beside it.
    """

    id: str = key("What tells people apart, as the task calls it.", bound=NAME)
    max_records: int = key("How many records of one person are used, at most; bounded before drawing.", bound=COUNT)
    epsilon: float | None = key(
        "The target ε per person; the noise is calibrated to fit.", default=None, bound=POSITIVE
    )
    delta: float | None = key("The δ per person; the record's if omitted.", default=None, bound=OPEN_FRACTION)
    kept: float = key(
        "The share of the declared records that max_records leaves, declared and public: what can be learnt is "
        "counted with it.", default=1.0, bound=FRACTION, later=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not self.kept:
            raise InvalidParameter("kept", self.kept, "leaves no record", "say 0.3 if about a third of them is used")
        if self.max_records > 10**6:
            raise InvalidParameter("max_records", self.max_records, "bounds nothing", "choose a number people reach")


@final
@table
class PrivacyPlan:
    """The promise, its numbers, and how they are computed."""

    style: Style = key("Whom the run protects: none, each record, each client, both.", default=Style.SAMPLE)
    record: RecordPlan | None = key("What is promised to each record.", default=None)
    person: PersonPlan | None = key("People with several records, bounded and counted.", default=None)
    client: ClientPlan | None = key("What is promised to each client.", default=None)
    preset: str | None = key(
        "Instead of epsilon and delta: a promise with a name.", default=None, bound=choices(*PRESETS)
    )
    accounting: str = key("How ε is computed.", default="exact", bound=choices("exact", "rdp", "moments"))
    neighbours: Neighbours = key("Which two datasets the promise compares.", default=Neighbours.ADD_REMOVE)
    noise: str = key(
        "Noise on an integer grid, or floats, labelled as not floating-point safe.", default="secure",
        bound=choices("secure", "fast"),
    )  # fmt: skip
    distributed_noise: str = key(
        "The law of the parties' shares where noise is distributed.", default="skellam",
        bound=choices("skellam", "discrete-gaussian"), later=True,
    )  # fmt: skip
