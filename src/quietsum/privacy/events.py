"""Privacy events: frozen descriptions of what touched the data.

A party reports *events* (this noise, this sampling, so often); only an accountant turns events into ε.
Mechanisms (``Gaussian``, ``Laplace``, …) say what was added, wrappers (``PoissonSampled``, ``Repeated``, …) say
how it was used. All noise is relative to C, the bound on one unit's contribution; see
:mod:`quietsum.privacy.units` for what that means under each neighbouring relation.

Events travel as JSON and are kept for years. Four rules make old events readable for ever:

1. **Kinds are never removed.** What was once written can be read, priced and verified.
2. **New fields are optional only**, with a default that means what the event meant without the field.
3. **The meaning of a kind and of its fields never changes.** A new meaning gets a new kind, and
   :data:`EVENT_VERSION` grows when kinds are added.
4. **Unknown means unsupported.** A kind, field or version that is not known here is refused by name; an accountant
   without a sound bound for an event raises :class:`~quietsum.errors.UnsupportedEvent` and never guesses.

>>> step = PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
>>> run = Repeated(times=10_000, event=step)
>>> from_json(to_json(run)) == run
True
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, final

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.validate import finite_number, non_negative, optional, positive, probability, set_fields, whole_number

__all__ = [
    "EVENT_VERSION",
    "ApproximateDP",
    "Composed",
    "Diagnostic",
    "DiscreteGaussian",
    "DiscreteGaussianSum",
    "DiscreteLaplace",
    "FixedSizeSampled",
    "Gaussian",
    "Group",
    "Laplace",
    "OneInOneOut",
    "PoissonSampled",
    "PrivacyEvent",
    "PureDP",
    "RandomizedResponse",
    "Repeated",
    "Shuffled",
    "Skellam",
    "Zcdp",
    "from_dict",
    "from_json",
    "require_event",
    "to_dict",
    "to_json",
]

EVENT_VERSION = 1
"""The version written into every JSON event."""

_MORE_NOISE = "noise is what makes it private; calibrate it with quietsum.privacy.compute_noise_multiplier"
_RATE = "the rate is the public chance that one unit is drawn, for instance batch_size / dataset_size"


class PrivacyEvent:
    """What all events have in common: immutability, equality, a kind and JSON."""

    __slots__ = ()
    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """This event as plain JSON-ready values (without the version, see :func:`to_json`)."""
        return to_dict(self)


class Diagnostic:
    """A measurement that promises nothing, such as a Bayesian ε. Functions that take events refuse it by name."""

    __slots__ = ()


def require_event(parameter: str, value: object, remedy: str = "pass e.g. Gaussian(noise_multiplier=1.0)") -> None:
    """Refuse what is no event; a diagnostic with the reason."""
    if isinstance(value, Diagnostic):
        raise InvalidParameter(
            parameter,
            value,
            f"is a {type(value).__name__}, which is no privacy event: not a worst-case guarantee, so nothing can be "
            "charged or composed by it",
            "charge the event of the mechanism that made the release",
        )
    if not isinstance(value, PrivacyEvent):
        raise InvalidParameter(parameter, value, "is not a privacy event", remedy)


# ---------------------------------------------------------------------------------------- mechanisms


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gaussian(PrivacyEvent):
    """N(0, (noise_multiplier·C)²) added to a sum whose units are clipped to L2 norm C."""

    kind: ClassVar[str] = "gaussian"
    noise_multiplier: float

    def __post_init__(self) -> None:
        set_fields(self, noise_multiplier=positive("noise_multiplier", self.noise_multiplier, _MORE_NOISE))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Laplace(PrivacyEvent):
    """Laplace noise of scale noise_multiplier·C added to a sum whose units are clipped to **L1** norm C."""

    kind: ClassVar[str] = "laplace"
    noise_multiplier: float

    def __post_init__(self) -> None:
        set_fields(self, noise_multiplier=positive("noise_multiplier", self.noise_multiplier, _MORE_NOISE))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteLaplace(PrivacyEvent):
    """Integer noise with P(k) ∝ exp(−|k| / scale) on an integer sum; one unit moves it by ≤ sensitivity (L1)."""

    kind: ClassVar[str] = "discrete-laplace"
    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        set_fields(
            self,
            scale=positive("scale", self.scale, _MORE_NOISE),
            sensitivity=whole_number("sensitivity", self.sensitivity, 1),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteGaussian(PrivacyEvent):
    """Integer noise with P(k) ∝ exp(−k² / 2 sigma²) on each of ``dimension`` integer coordinates.

    One unit's integer vector has L2 norm ≤ sensitivity. Privacy-loss distributions know the case of one
    dimension; sums in several go through Rényi or zCDP bounds (Canonne, Kamath, Steinke 2020, Theorem 4).
    """

    kind: ClassVar[str] = "discrete-gaussian"
    sigma: float
    sensitivity: float = 1.0
    dimension: int = 1

    def __post_init__(self) -> None:
        set_fields(
            self,
            sigma=positive("sigma", self.sigma, _MORE_NOISE),
            sensitivity=positive("sensitivity", self.sensitivity),
            dimension=whole_number("dimension", self.dimension, 1),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DiscreteGaussianSum(PrivacyEvent):
    """The sum of ``shares`` independent discrete Gaussians of ``sigma`` each, on every of ``dimension`` coordinates.

    What several parties add to one sum. Such a sum is no discrete Gaussian, but close to the one of variance
    shares · sigma² (Kairouz, Liu, Steinke 2021, Theorem 5). One unit's integer vector has L2 norm ≤ sensitivity.
    """

    kind: ClassVar[str] = "discrete-gaussian-sum"
    sigma: float
    shares: int
    sensitivity: float = 1.0
    dimension: int = 1

    def __post_init__(self) -> None:
        set_fields(
            self,
            sigma=positive("sigma", self.sigma, _MORE_NOISE),
            shares=whole_number("shares", self.shares, 1),
            sensitivity=positive("sensitivity", self.sensitivity),
            dimension=whole_number("dimension", self.dimension, 1),
        )


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Skellam(PrivacyEvent):
    """The difference of two Poisson draws with total ``variance`` on each coordinate of an integer vector.

    ``l1_sensitivity`` and ``l2_sensitivity`` bound one unit's integer vector (Agarwal, Kairouz, Liu 2021).
    ``dimension``, how many coordinates there are, may be left open; wide noise of a stated dimension costs less.
    """

    kind: ClassVar[str] = "skellam"
    variance: float
    l1_sensitivity: float
    l2_sensitivity: float
    dimension: int | None = None

    def __post_init__(self) -> None:
        set_fields(
            self,
            variance=positive("variance", self.variance, _MORE_NOISE),
            l1_sensitivity=positive("l1_sensitivity", self.l1_sensitivity),
            l2_sensitivity=positive("l2_sensitivity", self.l2_sensitivity),
            dimension=optional(whole_number, "dimension", self.dimension, 1),
        )
        if self.l2_sensitivity > self.l1_sensitivity:
            raise InvalidParameter(
                "l2_sensitivity",
                self.l2_sensitivity,
                f"exceeds l1_sensitivity = {self.l1_sensitivity}",
                "an L2 norm is never larger than the L1 norm of the same vector",
            )


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RandomizedResponse(PrivacyEvent):
    """Report one's category truthfully with ``keep_probability``, else one of the others evenly.

    The unit's answer is what changes, so this event means the same under every relation: a unit that is absent, null
    or not drawn still answers, for some fixed category and through the same randomiser. Where silence would be
    visible, do not wrap this event in a sampler.
    """

    kind: ClassVar[str] = "randomized-response"
    keep_probability: float
    categories: int = 2

    def __post_init__(self) -> None:
        keep = probability("keep_probability", self.keep_probability)
        set_fields(self, keep_probability=keep, categories=whole_number("categories", self.categories, 2))
        if not 0 < keep < 1:
            raise InvalidParameter("keep_probability", keep, "gives no privacy at all", "choose it inside (0, 1)")

    @property
    def epsilon(self) -> float:
        """The pure ε of one answer, ``|ln(p (k − 1) / (1 − p))|``."""
        keep = self.keep_probability
        return abs(math.log(keep) + math.log(self.categories - 1) - math.log1p(-keep))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PureDP(PrivacyEvent):
    """Anything that is ε-differentially private for the run's own relation."""

    kind: ClassVar[str] = "pure-dp"
    epsilon: float

    def __post_init__(self) -> None:
        set_fields(self, epsilon=non_negative("epsilon", self.epsilon))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApproximateDP(PrivacyEvent):
    """Anything that is (ε, δ)-differentially private for the run's own relation."""

    kind: ClassVar[str] = "approximate-dp"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        set_fields(self, epsilon=non_negative("epsilon", self.epsilon), delta=probability("delta", self.delta))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Zcdp(PrivacyEvent):
    """Anything that is ρ-zero-concentrated DP for the run's own relation (Bun, Steinke 2016)."""

    kind: ClassVar[str] = "zcdp"
    rho: float

    def __post_init__(self) -> None:
        set_fields(self, rho=non_negative("rho", self.rho))


# ------------------------------------------------------------------------------------------ wrappers


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PoissonSampled(PrivacyEvent):
    """``event`` on a batch that each unit joins by its own independent coin of probability ``rate``.

    The draw must stay secret, and a unit that is not drawn must leave no trace (under zero-out: the trace of a null
    unit). For several units at once put the ``Group`` outside.
    """

    kind: ClassVar[str] = "poisson-sampled"
    rate: float
    event: PrivacyEvent

    def __post_init__(self) -> None:
        set_fields(self, rate=probability("sample_rate", self.rate, _RATE))
        require_event("event", self.event)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FixedSizeSampled(PrivacyEvent):
    """``event`` on a uniformly random batch of fixed size; ``rate`` is batch size / population size.

    The population's size is public here, so the relation must be replace-one or zero-out. With Gaussian noise each step
    is priced as the worst of both directions at once, since what the other records contribute may be steered by earlier
    releases; the bound is certified (docs/explanation/fixed-size.md).
    """

    kind: ClassVar[str] = "fixed-size-sampled"
    rate: float
    event: PrivacyEvent

    def __post_init__(self) -> None:
        set_fields(self, rate=probability("sample_rate", self.rate, _RATE))
        require_event("event", self.event)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shuffled(PrivacyEvent):
    """One epoch: the data is shuffled, cut into ``batches`` fixed batches, and ``event`` runs on each.

    This is what an ordinary data loader does. No amplification is known for it, and accounting it as Poisson
    sampling under-reports by a large factor (Chua et al. 2024), so accountants charge one unamplified
    ``event`` an epoch and add the known lower bound as a warning.
    """

    kind: ClassVar[str] = "shuffled"
    batches: int
    event: PrivacyEvent

    def __post_init__(self) -> None:
        set_fields(self, batches=whole_number("batches", self.batches, 1))
        require_event("event", self.event)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Repeated(PrivacyEvent):
    """``event``, ``times`` times in a row with fresh randomness."""

    kind: ClassVar[str] = "repeated"
    times: int
    event: PrivacyEvent

    def __post_init__(self) -> None:
        set_fields(self, times=whole_number("times", self.times, 0))
        require_event("event", self.event)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Composed(PrivacyEvent):
    """Several events on the same data, one after the other."""

    kind: ClassVar[str] = "composed"
    events: tuple[PrivacyEvent, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.events, Iterable):
            raise InvalidParameter("events", self.events, "is not a list of events", "pass a tuple of events")
        set_fields(self, events=tuple(self.events))
        for index, event in enumerate(self.events):
            require_event(f"events[{index}]", event)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Group(PrivacyEvent):
    """``event`` seen by a group of ``size`` units at once: one person's k records, say."""

    kind: ClassVar[str] = "group"
    size: int
    event: PrivacyEvent

    def __post_init__(self) -> None:
        set_fields(self, size=whole_number("size", self.size, 1))
        require_event("event", self.event)


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class OneInOneOut(PrivacyEvent):
    """``event`` seen by one record, where each person has at most k records in it and a further one takes a free place.

    Of every person the first k records are kept, in the order of the rows. What one record changes then depends on the
    relation. Let x be the record and k′ the number of records that its person holds:

    * **add-or-remove**: without x nothing moves where x was not kept. Where it was and k′ ≤ k, x alone leaves. Where it
      was and k′ > k, the person's record k + 1 comes in: x out, y in, and no record of another person moves. With
      contributions of norm ≤ C the sum moves by up to 2C; under Poisson sampling x and y each have their own coin, of
      which only one is looked at in either dataset. That is a replacement of x by y, and the other two cases are
      replacements of x by null, or by itself. So the price is ``event``'s under replace-one.
    * **zero-out**: a null record keeps its person and its place, so the same records are kept: ``event``'s own price.
    * **replace-one**: ``event``'s own price, *where a replaced record keeps its person*: the same places are kept then,
      and x alone becomes another. A record that changed hands would let one in at the person it left and push one out
      at the person it joined, two out and two in, which this price does not cover. Guarantees say so in words.

    A whole person who comes or goes moves at most k records, and no other person's: that is ``Group``, as ever.

    Steps on fixed-size or shuffled batches stay refused under add-or-remove, since a record that leaves without another
    coming in changes how many there are. ``Group`` and this event do not go together: which k records of one person
    leave at once is the person's price, not a record's.
    """

    kind: ClassVar[str] = "one-in-one-out"
    event: PrivacyEvent

    def __post_init__(self) -> None:
        require_event("event", self.event)


# ---------------------------------------------------------------------------------------------- JSON

_KINDS: dict[str, type[Any]] = {
    cls.kind: cls
    for cls in (
        Gaussian, Laplace, DiscreteLaplace, DiscreteGaussian, DiscreteGaussianSum, Skellam, RandomizedResponse, PureDP,
        ApproximateDP, Zcdp, PoissonSampled, FixedSizeSampled, Shuffled, Repeated, Composed, Group, OneInOneOut,
    )
}  # fmt: skip


def to_dict(event: PrivacyEvent) -> dict[str, Any]:
    """``event`` as nested plain values with a ``kind`` each."""
    if not isinstance(event, PrivacyEvent) or _KINDS.get(getattr(event, "kind", "")) is not type(event):
        raise InvalidParameter("event", event, "is not an event of quietsum", f"known kinds are {sorted(_KINDS)}")
    values: dict[str, Any] = {"kind": event.kind}
    for field in dataclasses.fields(event):  # type: ignore[arg-type]  # every kind is a dataclass
        value = getattr(event, field.name)
        if isinstance(value, PrivacyEvent):
            value = to_dict(value)
        elif isinstance(value, tuple):
            value = [to_dict(part) for part in value]
        elif value is None:  # left open, and left out: as it was written before there was such a field
            continue
        values[field.name] = value
    return values


def from_dict(values: Mapping[str, Any]) -> PrivacyEvent:
    """The event that :func:`to_dict` wrote; anything else raises :class:`~quietsum.errors.CorruptState`."""
    try:
        return _from_dict(values)
    except CorruptState:
        raise
    except RecursionError:
        raise CorruptState("the event is nested too deeply to be one that was written here") from None
    except QuietsumError as error:
        raise CorruptState(f"the event holds a bad value: {error}") from None


def _from_dict(values: Mapping[str, Any]) -> PrivacyEvent:
    if not isinstance(values, Mapping):
        raise CorruptState(f"an event is an object with a kind, not {values!r}")
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise CorruptState(f"unknown event kind {kind!r}; this version knows {', '.join(sorted(_KINDS))}")
    cls = _KINDS[kind]
    fields = {field.name for field in dataclasses.fields(cls)}
    given = set(values) - {"kind"}
    optional = {field.name for field in dataclasses.fields(cls) if field.default is None}
    if not fields - optional <= given <= fields:
        raise CorruptState(f"event {kind!r} needs exactly the keys {sorted(fields)}, found {sorted(given, key=str)}")
    arguments: dict[str, Any] = {}
    for name in sorted(given):
        value = values[name]
        if name == "event":
            value = _from_dict(value)
        elif name == "events":
            if not isinstance(value, list | tuple):
                raise CorruptState(f"events of {kind!r} must be a list, not {value!r}")
            value = tuple(_from_dict(part) for part in value)
        else:
            finite_number(name, value)
        arguments[name] = value
    event: PrivacyEvent = cls(**arguments)
    return event


def to_json(event: PrivacyEvent) -> str:
    """``event`` as one line of JSON with the version of the format."""
    return json.dumps({"version": EVENT_VERSION, "event": to_dict(event)}, sort_keys=True, allow_nan=False)


def from_json(text: str) -> PrivacyEvent:
    """The event that :func:`to_json` wrote; anything else raises :class:`~quietsum.errors.CorruptState`."""
    try:
        values = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise CorruptState("not a JSON event: nested too deeply") from None
    except CorruptState:
        raise
    except (TypeError, ValueError) as error:
        raise CorruptState(f"not a JSON event: {error}") from None
    if not isinstance(values, dict) or set(values) != {"version", "event"}:
        raise CorruptState("a JSON event is an object with exactly the keys 'version' and 'event'")
    version = values["version"]
    if type(version) is not int or version != EVENT_VERSION:
        raise CorruptState(f"event format version {version!r} is not {EVENT_VERSION}; use the quietsum that wrote it")
    return from_dict(values["event"])


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no key stands twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        raise CorruptState(f"a key stands twice in one object: {[key for key, _ in pairs]}")
    return values
