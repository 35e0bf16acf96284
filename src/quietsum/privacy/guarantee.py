"""A guarantee wears its unit: ε and δ never travel without saying of what, against whom and how we know."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NoReturn, final

from quietsum.errors import CorruptState, InvalidParameter, MixedUnits, QuietsumError
from quietsum.notebook import show_table
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import (
    finite_number,
    open_probability,
    optional,
    positive,
    probability,
    set_fields,
    strict_member,
    whole_number,
)

__all__ = ["Budget", "Guarantee"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy with everything one needs to read it.

    ``epsilon`` is an upper bound: the mechanism *is* (epsilon, delta)-private. ``epsilon_lower`` is a lower
    bound: no analysis of the same events can show less (zero where the method gives no lower bound).
    ``certified`` says that quadrature, truncation and floating-point error all lie inside the two bounds.

    Guarantees have no ``+``: adding the ε of records to the ε of clients has no meaning, and adding two ε of
    the same unit throws away what an accountant knows. Compose events instead.

    >>> Guarantee(epsilon=1.25, epsilon_lower=1.25, delta=1e-5, method="closed form")
    Guarantee(ε = 1.25 per record at δ = 1e-05, closed form)
    >>> print(Guarantee(epsilon=1.25, epsilon_lower=1.2, delta=1e-5, method="contour"))
    ε ≤ 1.25 (and ≥ 1.2) at δ = 1e-05 per record, against recipients of the model, add-or-remove-one neighbours; contour
    """

    epsilon: float
    delta: float
    epsilon_lower: float = 0.0
    unit: PrivacyUnit = PrivacyUnit.RECORD
    observer: Observer = Observer.RECIPIENTS
    neighbours: Neighbours = Neighbours.ADD_REMOVE
    method: str
    order: float | None = None
    certified: bool = False
    group_size: int = 1
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (epsilon := _bound("epsilon", self.epsilon)) < 0:
            raise InvalidParameter("epsilon", self.epsilon, "is no privacy bound", "report a number ≥ 0 or infinity")
        if not 0 <= (lower := _bound("epsilon_lower", self.epsilon_lower)) <= epsilon:
            raise InvalidParameter("epsilon_lower", self.epsilon_lower, f"must lie in [0, {epsilon}]")
        set_fields(
            self,
            epsilon=epsilon,
            epsilon_lower=lower,
            delta=probability("delta", self.delta),
            order=optional(finite_number, "order", self.order),
            group_size=whole_number("group_size", self.group_size, 1),
            warnings=tuple(self.warnings),
        )
        strict_member("unit", self.unit, PrivacyUnit)
        strict_member("observer", self.observer, Observer)
        strict_member("neighbours", self.neighbours, Neighbours)

    def __add__(self, other: object) -> NoReturn:
        raise MixedUnits(
            "guarantees are not added: ε of different units have no common meaning, and two ε of one unit "
            "compose better as events; compose the events in one accountant and ask it for epsilon(delta=...)"
        )

    __radd__ = __add__

    @property
    def gap(self) -> float:
        """How far the two bounds are apart."""
        return self.epsilon - self.epsilon_lower if math.isfinite(self.epsilon) else math.inf

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values, one key per field, that ``from_dict`` reads back; infinity is a word there."""
        values = dataclasses.asdict(self)
        values.update(unit=self.unit.value, observer=self.observer.value, neighbours=self.neighbours.value)
        values["warnings"] = list(self.warnings)
        for name in ("epsilon", "epsilon_lower"):
            if math.isinf(values[name]):
                values[name] = "Infinity"
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Guarantee:
        """The guarantee that :meth:`to_dict` wrote; anything else raises :class:`~quietsum.errors.CorruptState`."""
        if not isinstance(values, Mapping):
            raise CorruptState(f"a guarantee is an object, not {values!r}")
        known = {field.name for field in dataclasses.fields(cls)}
        if set(values) != known:
            missing, unknown = sorted(known - set(values)), sorted(set(values) - known, key=str)
            raise CorruptState(
                f"a guarantee has exactly the keys {sorted(known)}; missing {missing}, unknown {unknown}"
            )
        if not isinstance(values["method"], str) or not isinstance(values["certified"], bool):
            raise CorruptState("a guarantee's method is a text and certified is true or false")
        if not isinstance(values["warnings"], list | tuple) or not all(isinstance(w, str) for w in values["warnings"]):
            raise CorruptState(f"a guarantee's warnings are a list of texts, not {values['warnings']!r}")
        bounds = {
            name: math.inf if values[name] == "Infinity" else values[name] for name in ("epsilon", "epsilon_lower")
        }
        try:
            return cls(
                **{
                    **values,
                    **bounds,
                    "unit": PrivacyUnit(values["unit"]),
                    "observer": Observer(values["observer"]),
                    "neighbours": Neighbours(values["neighbours"]),
                }
            )
        except (QuietsumError, ValueError) as error:
            raise CorruptState(f"the guarantee holds a bad value: {error}") from None

    @property
    def whom(self) -> str:
        """The unit in words: ``record``, ``person (up to 3 records)``, ``client``."""
        if self.group_size == 1:
            return self.unit.value
        noun = "clients" if self.unit is PrivacyUnit.CLIENT else "records"
        name = "group" if self.unit is PrivacyUnit.CLIENT else self.unit.value
        return f"{name} (up to {self.group_size} {noun})"

    def __repr__(self) -> str:
        return f"Guarantee(ε = {self.epsilon:.6g} per {self.whom} at δ = {self.delta:g}, {self.method})"

    def __str__(self) -> str:
        from quietsum.privacy.wording import digits_of

        lower = f" (and ≥ {digits_of(self.epsilon_lower, up=False)})" if self.epsilon_lower > 0 else ""
        against = "the server" if self.observer is Observer.SERVER else "recipients of the model"
        order = f" at order {self.order:g}" if self.order is not None else ""
        text = (
            f"ε ≤ {digits_of(self.epsilon)}{lower} at δ = {self.delta:g} per {self.whom}, against {against}, "
            f"{self.neighbours.value} neighbours; {self.method}{order}"
        )
        return "\n".join([text, *(f"warning: {warning}" for warning in self.warnings)])

    def _repr_html_(self) -> str:
        from quietsum.privacy.wording import bounds_of, facts_of

        rows = [("δ", f"{self.delta:g}"), *facts_of(self), *(("warning", warning) for warning in self.warnings)]
        return show_table(f"{bounds_of(self)} per {self.whom}", rows)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be spent on one unit: a gate in front of a release, not a warning after it.

    >>> Budget(epsilon=1.0, delta=1e-5)
    Budget(epsilon=1.0, delta=1e-05, unit=<PrivacyUnit.RECORD: 'record'>)
    """

    epsilon: float
    delta: float
    unit: PrivacyUnit = PrivacyUnit.RECORD

    def __post_init__(self) -> None:
        set_fields(
            self,
            epsilon=positive("epsilon", self.epsilon, "state what may be spent"),
            delta=open_probability("delta", self.delta),
        )
        strict_member("unit", self.unit, PrivacyUnit)

    @property
    def figure(self) -> str:
        """ε for people, rounded up at the fourth decimal as a guarantee's is, so that both read alike.

        >>> Budget(epsilon=2.1996171, delta=1e-5).figure, Budget(epsilon=8.0, delta=1e-5).figure
        ('2.1997', '8')
        """
        if self.epsilon < 0.1 or self.epsilon >= 1e8:
            return f"{self.epsilon:.4g}"
        scaled = self.epsilon * 1e4
        nearest = round(scaled)
        shown = nearest if abs(scaled - nearest) <= 1e-6 * scaled else math.ceil(scaled)
        return f"{shown / 1e4:.4f}".rstrip("0").rstrip(".")

    def allows(self, guarantee: Guarantee) -> bool:
        """Whether ``guarantee`` fits. Another unit, or a δ above the budget's, raises :class:`MixedUnits`."""
        if not isinstance(guarantee, Guarantee):
            raise InvalidParameter(
                "guarantee", guarantee, "is not a worst-case guarantee", "pass an accountant's answer"
            )
        if guarantee.unit is not self.unit:
            raise MixedUnits(
                f"this budget is per {self.unit}, the guarantee per {guarantee.unit}; keep a budget per unit"
            )
        if guarantee.delta > self.delta:
            raise MixedUnits(f"the guarantee was made at δ = {guarantee.delta:g}, the budget holds at {self.delta:g}")
        return guarantee.epsilon <= self.epsilon


def _bound(parameter: str, value: object) -> float:
    """``value`` as a float, infinity allowed."""
    return math.inf if isinstance(value, float) and value == math.inf else finite_number(parameter, value)
