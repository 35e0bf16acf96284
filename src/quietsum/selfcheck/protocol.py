"""What a private step must show of itself, so that it can be checked: its parts, one by one, and its claim.

A step of DP-SGD claims to be ``Σ clip(∇ℓ_i) + noise``, over a Poisson batch. A trained model does not show
whether that is what ran. With the sum, the noise and the draw in separate hands each is a question with an answer,
and so a step is checked through the seams of :class:`StepUnderTest`. Nothing here knows torch: arrays go in, vectors
come out.

The rows are made up. A report that quoted a statistic of protected rows would be a release without a charge, and a
sensitivity must hold for every row that could exist, so :meth:`StepUnderTest.examples` invents rows of the right shape
and no protected record is ever read.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms import RandomSource
from quietsum.privacy import PrivacyEvent

__all__ = ["Batch", "Floats", "Law", "OnAGrid", "StepUnderTest", "TrainerOutput", "Twin"]

Floats: TypeAlias = NDArray[np.float64]
Batch: TypeAlias = tuple[NDArray[Any], ...]
"""Examples as arrays with the same first dimension: features and labels, for instance."""


class Law(enum.StrEnum):
    """Which noise a step claims to add, and with it the norm in which its sensitivity counts."""

    GAUSSIAN = "gaussian"
    """Standard deviation noise_multiplier · sensitivity, sensitivity in L2."""
    LAPLACE = "laplace"
    """Scale noise_multiplier · sensitivity, sensitivity in L1."""

    @property
    def order(self) -> int:
        """The norm of the sensitivity: 2 or 1."""
        return 2 if self is Law.GAUSSIAN else 1


@final
@dataclass(frozen=True, kw_only=True)
class TrainerOutput:
    """What became of some batches: all that the trainer let out.

    ``releases`` holds one noisy sum for each step that was made, ``charged`` the steps in the books so far (before this
    run, too), ``said`` every other number that was returned. What is printed, logged or warned is caught besides.
    """

    releases: tuple[Floats, ...]
    charged: int
    said: Mapping[str, float] = field(default_factory=dict)


class Twin(Protocol):
    """The same sum once more, from copies of the model with the same weights: to tell rounding from a fault."""

    @property
    def precision(self) -> float:
        """The spacing of the floats of :meth:`deterministic`: those of float64, where the model can be run so."""
        ...

    def deterministic(self, batch: Batch) -> Floats:
        """The sum before the noise."""
        ...

    def reference(self, batch: Batch) -> Floats | None:
        """The naive loop's."""
        ...

    def shaken(self, batch: Batch, width: float, rng: RandomSource) -> Floats:
        """The sum, in the step's own precision, after every weight and every float of a row was moved by a random part.

        ``width`` is the standard deviation of that part; 0 moves nothing.
        """
        ...


@runtime_checkable
class OnAGrid(Protocol):
    """A step whose noise lies on a grid by design, as the sum does that it is added to: equal values happen there."""

    @property
    def grain(self) -> float:
        """The spacing of that grid, in the units of the sum; 0 for noise on no grid but that of floats."""
        ...


class StepUnderTest(Protocol):
    """A private step, taken apart."""

    @property
    def name(self) -> str:
        """What to call it in a report."""
        ...

    @property
    def law(self) -> Law:
        """The noise it claims."""
        ...

    @property
    def sensitivity(self) -> float:
        """How far one record may move the sum, at most."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """The noise over the sensitivity, as accounted."""
        ...

    @property
    def rate(self) -> float:
        """The chance that a record is drawn, as accounted."""
        ...

    @property
    def population(self) -> int:
        """How many records there are to draw from."""
        ...

    @property
    def precision(self) -> float:
        """The spacing of the floats it computes with: 1.2e-7 for float32, 2.2e-16 for float64."""
        ...

    @property
    def allowance(self) -> float:
        """By which part the noise may be wider than claimed, as where a grid's rounding is covered by more noise."""
        ...

    @property
    def twin(self) -> Twin | None:
        """Copies that may be shaken; None where floats are double, or no copy can be made."""
        ...

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """``count`` made-up rows of the right shape. Never a protected record."""
        ...

    def deterministic(self, batch: Batch) -> Floats:
        """The sum before the noise, as one vector."""
        ...

    def noise(self) -> Floats:
        """A fresh draw of what is added to that sum."""
        ...

    def beside(self, draws: int) -> Floats:
        """Fresh noise of a lone count that is released with the sum, as standard normal scores; empty without one."""
        ...

    def release(self, batch: Batch) -> Floats:
        """Sum and noise by the way that training takes, in the units of the sum (before any public division)."""
        ...

    def sample(self, population: int) -> NDArray[np.int64]:
        """The indices of one drawn batch."""
        ...

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """Train on exactly these batches, one step each; empty ones are steps too."""
        ...

    def restart(self) -> StepUnderTest:
        """The step as a new process finds it, from what was saved."""
        ...

    def public_constants(self, population: int) -> Mapping[str, float]:
        """Every number that steers the run, were there this many records: rate, divisor, steps, noise, norm."""
        ...

    def event(self) -> PrivacyEvent:
        """The event of one step, as the accountant gets it."""
        ...

    def reference(self, batch: Batch) -> Floats | None:
        """The same sum by a naive loop over the examples; None where there is none."""
        ...
