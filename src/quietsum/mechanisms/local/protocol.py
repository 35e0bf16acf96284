"""What every local protocol has: an encoder at each person, an estimator at the collector, an event, a variance.

The collector is not trusted: what leaves a person is already private. ``privatize`` runs at the people, ``estimate`` at
the collector; ``tally`` and ``conclude`` are its two steps, so that a million reports pass through in pieces. All
estimates are unbiased and come with standard errors from the protocol's own variance; what makes them look nicer (no
negative shares, shares that add up to one) is a step after, labelled as such.

Intervals are about the people who answered. What they say about people who were not asked is the survey's question.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Bins, Categories, Domain
from quietsum.mechanisms.rng import RandomSource
from quietsum.privacy import PrivacyEvent, PureDP
from quietsum.validate import open_probability, probability, whole_number

__all__ = ["Estimate", "FrequencyProtocol", "LocalProtocol", "Reports", "Tally", "on_simplex", "two_chances"]

Reports = NDArray[np.void]
"""One report a row; the fields are the columns of a reports file."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tally:
    """All that an estimate needs of the reports seen so far. Tallies of the same protocol add up."""

    users: int
    sums: NDArray[Any]

    def __add__(self, other: Tally) -> Tally:
        return Tally(users=self.users + other.users, sums=self.sums + other.sums)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """Unbiased estimates with their standard errors and intervals, one for each of ``labels``.

    ``projected`` says that ``values`` were moved onto the simplex afterwards: then they are no longer unbiased, and
    ``low`` and ``high`` are still the intervals of the unbiased ones.
    """

    protocol: str
    epsilon: float
    users: int
    labels: tuple[str, ...]
    values: NDArray[np.float64]
    standard_errors: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    confidence: float
    projected: bool = False

    @property
    def intervals(self) -> NDArray[np.float64]:
        """Low and high, one row for each label."""
        return np.column_stack([self.low, self.high])

    def on_simplex(self) -> Estimate:
        """The nearest shares that are not negative and add up to one: post-processing, it costs no privacy."""
        if self.labels == ("mean",):
            raise InvalidParameter("protocol", self.protocol, "estimates no shares", "only shares add up to one")
        return dataclasses.replace(self, values=on_simplex(self.values), projected=True)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values."""
        return {
            "protocol": self.protocol, "epsilon": self.epsilon, "users": self.users, "confidence": self.confidence,
            "projected": self.projected,
            "estimates": [
                {"label": label, "value": value, "standard_error": error, "low": low, "high": high}
                for label, value, error, low, high in zip(
                    self.labels, self.values.tolist(), self.standard_errors.tolist(), self.low.tolist(),
                    self.high.tolist(), strict=True,
                )
            ],
        }  # fmt: skip


class LocalProtocol(abc.ABC):
    """A randomiser for one person's answer, and the estimator that belongs to it.

    Guarantees: under every answer, each possible report is at most e^ε times as likely as under any other answer.
    """

    epsilon: float

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The protocol's name in files and commands."""

    @property
    @abc.abstractmethod
    def answers(self) -> Domain:
        """What may be answered."""

    @property
    @abc.abstractmethod
    def layout(self) -> np.dtype[np.void]:
        """The fields of one report."""

    @property
    @abc.abstractmethod
    def bits(self) -> float:
        """The length of one report in bits."""

    @abc.abstractmethod
    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """The person's half: one report for each answer, with randomness from the operating system."""

    @abc.abstractmethod
    def tally(self, reports: Reports) -> Tally:
        """The collector's first half: sums over reports. Reports that this protocol cannot have made are refused."""

    @abc.abstractmethod
    def conclude(self, tally: Tally, *, confidence: float = 0.95) -> Estimate:
        """The collector's second half: from sums to estimates."""

    @abc.abstractmethod
    def parameters(self) -> dict[str, Any]:
        """What both halves must agree on beside domain and ε: hash seeds and sizes. All of it is public."""

    @final
    def estimate(self, reports: Reports, *, confidence: float = 0.95) -> Estimate:
        """Estimates from all ``reports`` at once."""
        return self.conclude(self.tally(reports), confidence=confidence)

    def event(self) -> PrivacyEvent:
        """What one report costs the person who sent it."""
        return PureDP(epsilon=self.epsilon)

    @final
    def to_dict(self) -> dict[str, Any]:
        """What a reports file states."""
        return {
            "protocol": self.name, "epsilon": self.epsilon, "domain": self.answers.to_dict(),
            "parameters": self.parameters(),
        }  # fmt: skip

    @final
    def fields(self, reports: Reports) -> Reports:
        """``reports``, refused where they have not this protocol's fields."""
        if not isinstance(reports, np.ndarray) or reports.dtype != self.layout or reports.ndim != 1:
            raise InvalidParameter(
                "reports", getattr(reports, "dtype", type(reports)), f"are not reports of {self.name}",
                "estimate with the protocol that made them",
            )  # fmt: skip
        return reports

    @final
    def interval(
        self, labels: tuple[str, ...], users: int, values: NDArray[np.float64], variances: NDArray[np.float64],
        confidence: float,
    ) -> Estimate:  # fmt: skip
        """Estimates with normal intervals: sums of many independent reports."""
        confidence = open_probability("confidence", confidence, "for instance 0.95")
        errors = np.sqrt(np.maximum(variances, 0.0))
        reach = float(ndtri(0.5 + confidence / 2)) * errors
        return Estimate(
            protocol=self.name, epsilon=self.epsilon, users=users, labels=labels, values=values, standard_errors=errors,
            low=values - reach, high=values + reach, confidence=confidence,
        )  # fmt: skip


class FrequencyProtocol(LocalProtocol):
    """A protocol that estimates what share of the people gave each answer."""

    domain: Categories | Bins

    @property
    @final
    def answers(self) -> Categories | Bins:
        """The list of answers."""
        return self.domain

    @abc.abstractmethod
    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """Unbiased estimates of all shares."""

    @abc.abstractmethod
    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """The variance of each estimate, where ``frequencies`` are the true shares among ``n`` people."""

    @final
    def variance(self, n: int, frequency: float = 0.0) -> float:
        """The variance of the estimate of one share; all other answers are equally frequent."""
        n, frequency = whole_number("n", n, 1), probability("frequency", frequency)
        rest = (1.0 - frequency) / (self.domain.size - 1)
        frequencies = np.full(self.domain.size, rest)
        frequencies[0] = frequency
        return float(self.variances(n, frequencies)[0])

    @final
    def conclude(self, tally: Tally, *, confidence: float = 0.95) -> Estimate:
        """Shares with intervals; the variance is taken at the estimated shares, moved onto the simplex."""
        whole_number("users", tally.users, 1, "an estimate needs reports")
        values = self.shares(tally)
        variances = self.variances(tally.users, on_simplex(values))
        return self.interval(self.domain.labels, tally.users, values, variances, confidence)


def two_chances(n: int, frequencies: NDArray[np.float64], p: float, q: float) -> NDArray[np.float64]:
    """The variance of (count / n − q) / (p − q), where a supporter is counted with chance p and anybody else with q.

    Wang, Blocki, Li, Jha 2017, equation 3: (f p(1 − p) + (1 − f) q(1 − q)) / (n (p − q)²).
    """
    return (frequencies * p * (1 - p) + (1 - frequencies) * q * (1 - q)) / (n * (p - q) ** 2)


def on_simplex(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point whose coordinates are not negative and add up to one (Duchi et al. 2008, figure 1).

    >>> on_simplex(np.array([0.7, 0.5, -0.1])).round(6).tolist()
    [0.6, 0.4, 0.0]
    """
    ordered = np.sort(values)[::-1]
    excess = np.cumsum(ordered) - 1.0
    kept = np.flatnonzero(ordered * np.arange(1, values.size + 1) > excess)
    last = int(kept[-1]) if kept.size else 0
    return np.asarray(np.maximum(values - excess[last] / (last + 1), 0.0))
