"""What one run of a comparison brought: a score, the data on which it stands, and what it cost.

An outcome without privacy has no ε, which is not the same as ε = 0: it has no guarantee at all.

>>> plain = Outcome(task="digits", seed=0, metric="accuracy", value=0.97, on="445 published rows")
>>> plain.epsilon is None, plain.guarantee is None
(True, True)
>>> Outcome.from_dict(plain.to_dict()) == plain
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.privacy import Guarantee
from quietsum.validate import finite_number, open_probability, positive, whole_number

__all__ = ["Outcome"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run's score. ``epsilon`` is what was asked for, None without privacy; ``guarantee`` what it came to.

    ``seed`` names the repetition: first weights, order of plain batches, and the split where a task has several. It
    never seeds noise. ``on`` names the data of ``value``; ``metric`` is one where more is better.
    """

    task: str
    seed: int
    metric: str
    value: float
    on: str
    epsilon: float | None = None
    delta: float | None = None
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        for name in ("task", "metric", "on"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidParameter(name, value, "says nothing", "name task, metric and the data of the score")
        whole_number("seed", self.seed)
        object.__setattr__(self, "value", finite_number("value", self.value, "leave out a run without a score"))
        if (self.epsilon is None) != (self.guarantee is None) or (self.epsilon is None) != (self.delta is None):
            problem = "comes with only a part of its guarantee"
            raise InvalidParameter("epsilon", self.epsilon, problem, "give epsilon, delta and guarantee, or none")
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
            open_probability("delta", self.delta)
            if not isinstance(self.guarantee, Guarantee):
                raise InvalidParameter("guarantee", self.guarantee, "is no guarantee", "pass trainer.guarantee()")
            if self.guarantee.epsilon > self.epsilon * (1 + 1e-9) or self.guarantee.delta > self.delta * (1 + 1e-9):  # type: ignore[operator]
                problem = f"costs ε = {self.guarantee.epsilon:.6g} at δ = {self.guarantee.delta:.3g}, more than asked"
                raise InvalidParameter("guarantee", self.epsilon, problem, "record what was really spent")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "guarantee": None if self.guarantee is None else self.guarantee.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """What :meth:`to_dict` wrote; anything else raises :class:`~quietsum.errors.CorruptState`."""
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or set(values) != known:
            raise CorruptState(f"an outcome has exactly the keys {sorted(known)}")
        written = values["guarantee"]
        guarantee = None if written is None else Guarantee.from_dict(written)
        try:
            return cls(**{**values, "guarantee": guarantee})
        except InvalidParameter as error:
            raise CorruptState(f"the outcome holds a bad value: {error}") from None
