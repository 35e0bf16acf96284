"""The numpy descent under the self-check, and made-up rows for any step.

:class:`CheckedDescent` runs :func:`~quietsum.learning.descent.private_steps` as it is: a source of silent noise shows
the sum, a real one the release. No torch is needed. :class:`MadeUp` invents rows of a public shape, so that no
protected record is ever read for a check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.learning.descent import Differentiable, Examples, private_steps
from quietsum.mechanisms import ClippedSum, Mode, RandomSource, Shape, dimensions, system_randomness
from quietsum.privacy import PrivacyEvent
from quietsum.sampling import Everyone, Poisson
from quietsum.selfcheck import Batch, Floats, Law, TrainerOutput
from quietsum.validate import positive, probability, whole_number

__all__ = ["CheckedDescent", "Field", "MadeUp", "Silent"]


@final
@dataclass(frozen=True, kw_only=True)
class Field:
    """The public shape of one part of a row: numbers, or whole numbers below ``below`` (labels, tokens)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 0

    def __post_init__(self) -> None:
        if np.dtype(self.dtype).kind in "iub" and self.below < 1:
            problem = "holds whole numbers of unknown range"
            raise InvalidParameter("below", self.below, problem, "say how many classes or tokens there are")


@final
@dataclass(frozen=True, kw_only=True)
class MadeUp:
    """Rows that need no protection: standard normal numbers, uniform labels.

    >>> rows = MadeUp(fields=(Field(shape=(3,)), Field(shape=(), dtype="int64", below=10)))
    >>> [part.shape for part in rows.draw(5, system_randomness())]
    [(5, 3), (5,)]
    """

    fields: tuple[Field, ...]

    @classmethod
    def like(cls, example: Batch, *, below: int = 0) -> MadeUp:
        """Of the shapes and types of ``example``; whole numbers lie below ``below``. No value is looked at."""
        return cls(
            fields=tuple(
                Field(shape=tuple(part.shape[1:]), dtype=str(part.dtype), below=below if _whole(part) else 0)
                for part in example
            )
        )

    def draw(self, count: int, rng: RandomSource) -> Batch:
        """``count`` rows."""
        return tuple(self._part(field, count, rng) for field in self.fields)

    @staticmethod
    def _part(field: Field, count: int, rng: RandomSource) -> NDArray[Any]:
        shape, dtype = (count, *field.shape), np.dtype(field.dtype)
        if dtype.kind == "f" and not field.below:
            return rng.normals(shape).astype(dtype)
        total = dimensions(shape)[1]
        return np.floor(rng.uniforms(total) * field.below).reshape(shape).astype(dtype)


def _whole(part: NDArray[Any]) -> bool:
    return part.dtype.kind in "iub"


@final
@dataclass(frozen=True, kw_only=True)
class _Rows:
    features: Floats
    labels: Floats


@final
class Silent:
    """A source whose noise is zero, to see the sum that noise is added to. Only the self-check has one."""

    for_tests = True

    def bytes(self, count: int) -> Any:
        """Zeros."""
        return bytes(count)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Zeros."""
        return np.zeros(count, dtype=np.uint64)

    def uniforms(self, count: int) -> Floats:
        """One half."""
        return np.full(count, 0.5)

    def normals(self, shape: Shape) -> Floats:
        """Zeros."""
        return np.zeros(dimensions(shape)[0])

    def rounded_normals(self, scale: float, shape: Shape) -> NDArray[np.int64]:
        """Zeros."""
        return np.zeros(dimensions(shape)[0], dtype=np.int64)

    def coins(self, probability: float, count: int) -> NDArray[np.bool_]:
        """Tails."""
        return np.zeros(count, dtype=np.bool_)

    def permutation(self, count: int) -> NDArray[np.int64]:
        """In order."""
        return np.arange(count, dtype=np.int64)


@final
class CheckedDescent:
    """:func:`~quietsum.learning.descent.private_steps` under test; labels are 0 or 1 unless ``rows`` differ."""

    law = Law.GAUSSIAN
    allowance = 0.0  # the grid's norm is verified, so nothing needs to be covered
    twin = None  # floats are double

    def __init__(
        self,
        task: Differentiable,
        params: Floats,
        *,
        mechanism: ClippedSum,
        rate: float,
        population: int,
        rows: MadeUp | None = None,
        rng: RandomSource | None = None,
        name: str = "numpy descent",
        charged: int = 0,
    ) -> None:
        self._task, self._params, self._mechanism, self._charged = task, params, mechanism, charged
        self._rng = system_randomness() if rng is None else rng
        self._sampling = Poisson(rate=rate)
        width = Field(shape=(len(params),), dtype="float64")
        self._rows = rows or MadeUp(fields=(width, Field(shape=(), dtype="float64", below=2)))
        self.population = whole_number("population", population, 1)
        self.rate = probability("rate", rate)
        self.sensitivity = positive("max_norm", mechanism.max_norm)
        self.noise_multiplier = mechanism.event().noise_multiplier
        grid = mechanism.grid_unit * len(params) ** 0.5 / (1000 * mechanism.max_norm)  # rows are cut to the grid
        self.precision = max(float(np.finfo(np.float64).eps), grid if mechanism.mode is Mode.SECURE else 0.0)
        self.grain = mechanism.grid_unit if mechanism.mode is Mode.SECURE else 0.0
        self.name = name

    def _steps(self, batch: Batch, rng: RandomSource) -> Floats:
        """One step of descent on all of ``batch`` with a learning rate and a divisor of 1: minus the noisy sum."""
        rows: Examples = _Rows(features=batch[0], labels=batch[1])
        delta = private_steps(
            self._task,
            self._params,
            rows,
            steps=1,
            sampling=Everyone(),
            mechanism=self._mechanism,
            expected_batch=1.0,
            learning_rate=1.0,
            momentum=0.0,
            rng=rng,
        )
        return np.asarray(-delta)

    def examples(self, count: int, rng: RandomSource) -> Batch:
        """Made-up rows."""
        return self._rows.draw(count, rng)

    def deterministic(self, batch: Batch) -> Floats:
        """The step with silent noise."""
        return self._steps(batch, Silent())

    def noise(self) -> Floats:
        """The step on an empty batch."""
        return self._steps(self._rows.draw(0, self._rng), self._rng)

    def beside(self, draws: int) -> Floats:
        """Nothing is released beside the sum."""
        return np.empty(0)

    def release(self, batch: Batch) -> Floats:
        """The step."""
        return self._steps(batch, self._rng)

    def sample(self, population: int) -> NDArray[np.int64]:
        """One draw."""
        return self._sampling.draw(population, self._rng)

    def run(self, batches: Sequence[Batch]) -> TrainerOutput:
        """One charge and one release for each batch."""
        self._charged += len(batches)
        return TrainerOutput(releases=tuple(self.release(batch) for batch in batches), charged=self._charged)

    def restart(self) -> CheckedDescent:
        """Another one from the same settings, with randomness of its own."""
        return CheckedDescent(
            self._task,
            self._params,
            mechanism=self._mechanism,
            rate=self.rate,
            population=self.population,
            rows=self._rows,
            rng=self._rng if self._rng.for_tests else None,
            name=self.name,
            charged=self._charged,
        )

    def public_constants(self, population: int) -> Mapping[str, float]:
        """What steers the run; the number of records is not among it."""
        return {
            "rate": self.rate,
            "noise multiplier": self.noise_multiplier,
            "sensitivity": self.sensitivity,
            "expected batch": self.rate * self.population,
        }

    def event(self) -> PrivacyEvent:
        """What the accountant hears."""
        return self._sampling.amplify(self._mechanism.event())

    def reference(self, batch: Batch) -> Floats | None:
        """One example at a time, clipped as in the textbook."""
        total = np.zeros(len(self._params))
        for row in range(len(batch[0])):
            term = self._task.gradients(self._params, batch[0][[row]], batch[1][[row]])[0]
            length = float(np.linalg.norm(term))
            if np.isfinite(length):
                total += term * min(1.0, self.sensitivity / length) if length > 0 else 0.0
        return total
