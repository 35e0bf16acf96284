"""Who takes part: the draw and its amplification side by side, so that they cannot drift apart.

The sampler that draws a batch is the value that states what the draw is worth. A rate is public and belongs to the
sampler; the population's size is passed in. Draws come from a :class:`~quietsum.mechanisms.rng.RandomSource`, stay
secret, and are never repeated: a Poisson batch that comes out empty is a step of noise alone, since drawing again until
the batch suits is no longer Poisson sampling.

>>> from quietsum.privacy import Gaussian
>>> Poisson(rate=0.01).amplify(Gaussian(noise_multiplier=1.0))
PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0))
>>> FixedSize(size=32, population=3200).amplify(Gaussian(noise_multiplier=1.0)).rate
0.01
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import RandomSource
from quietsum.privacy import FixedSizeSampled, Neighbours, PoissonSampled, PrivacyEvent
from quietsum.validate import probability, whole_number

__all__ = ["Everyone", "FixedSize", "Poisson", "Sampling"]


class Sampling(Protocol):
    """How the units of one step are drawn, and what that draw is worth."""

    def draw(self, population: int, rng: RandomSource) -> NDArray[np.int64]:
        """The indices drawn from 0 … population − 1, sorted."""
        ...

    def amplify(self, event: PrivacyEvent) -> PrivacyEvent:
        """What ``event`` on such a draw costs, as an event."""
        ...

    def expected_size(self, population: int) -> float:
        """The expected number of units drawn. As public as ``population`` is, so it may divide."""
        ...

    @property
    def neighbours(self) -> tuple[Neighbours, ...]:
        """The neighbouring relations under which this draw may be accounted."""
        ...


@final
@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Every unit joins by its own coin of probability ``rate``.

    Guarantees: the coins are independent and exact for the float ``rate``. The size of the batch is random and as
    secret as the batch, so divide by :meth:`expected_size`.
    """

    rate: float

    def __post_init__(self) -> None:
        remedy = "the rate is the public chance that one unit is drawn, for instance batch_size / dataset_size"
        object.__setattr__(self, "rate", probability("sample_rate", self.rate, remedy))

    def draw(self, population: int, rng: RandomSource) -> NDArray[np.int64]:
        """Those whose coin fell on heads. An empty draw is an answer; it is never drawn again."""
        return np.flatnonzero(rng.coins(self.rate, _population(population))).astype(np.int64)

    def amplify(self, event: PrivacyEvent) -> PrivacyEvent:
        """``PoissonSampled`` at this rate."""
        return PoissonSampled(rate=self.rate, event=event)

    def expected_size(self, population: int) -> float:
        """rate · population."""
        return self.rate * _population(population)

    @property
    def neighbours(self) -> tuple[Neighbours, ...]:
        """Any relation."""
        return tuple(Neighbours)


@final
@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """A batch of exactly ``size`` of the ``population``, every such batch equally likely.

    Guarantees: exactly uniform without replacement. The size of the population is part of the rate and so public: the
    relation must be replace-one or zero-out.
    """

    size: int
    population: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "population", whole_number("population", self.population, 1))
        object.__setattr__(self, "size", whole_number("size", self.size))
        if self.size > self.population:
            problem = f"exceeds the population of {self.population}"
            raise InvalidParameter("size", self.size, problem, "draw at most everyone, or use Everyone()")

    def draw(self, population: int, rng: RandomSource) -> NDArray[np.int64]:
        """The holders of the ``size`` smallest of random keys. Keys that tie at the edge are all drawn anew."""
        self._check(population)
        if self.size in (0, self.population):
            return np.arange(self.size, dtype=np.int64)
        while True:
            keys = rng.words(self.population)
            edge = np.partition(keys, self.size - 1)[self.size - 1]
            drawn = np.flatnonzero(keys <= edge)
            if drawn.size == self.size:
                return drawn.astype(np.int64)

    def amplify(self, event: PrivacyEvent) -> PrivacyEvent:
        """``FixedSizeSampled`` at size / population."""
        return FixedSizeSampled(rate=self.size / self.population, event=event)

    def expected_size(self, population: int) -> float:
        """The size, in every draw."""
        self._check(population)
        return float(self.size)

    def _check(self, population: int) -> None:
        if _population(population) != self.population:
            problem = f"is not the {self.population} that the rate was stated for"
            raise InvalidParameter("population", population, problem, "declare the size that is really there")

    @property
    def neighbours(self) -> tuple[Neighbours, ...]:
        """Relations under which the population's size is public."""
        return (Neighbours.ZERO_OUT, Neighbours.REPLACE_ONE)


@final
@dataclass(frozen=True, kw_only=True)
class Everyone:
    """No one is left out, and nothing is amplified."""

    def draw(self, population: int, rng: RandomSource) -> NDArray[np.int64]:
        """All of them; no coin is tossed."""
        return np.arange(_population(population), dtype=np.int64)

    def amplify(self, event: PrivacyEvent) -> PrivacyEvent:
        """The event itself."""
        return event

    def expected_size(self, population: int) -> float:
        """All of them."""
        return float(_population(population))

    @property
    def neighbours(self) -> tuple[Neighbours, ...]:
        """Any relation."""
        return tuple(Neighbours)


def _population(population: int) -> int:
    return whole_number("population", population)
