"""Randomised response: say the truth by a coin, else any other answer (Warner 1965; k answers: Kairouz et al. 2016).

The person's half draws one 64-bit word: of its 2⁶⁴ values ``low`` stand for each false answer and the rest for the true
one. The collector's half counts answers and takes out what the lies put in. With two answers this is Warner's coin.

Variance of one share f, times n: (f p(1 − p) + (1 − f) q(1 − q)) / (p − q)², at f = 0 (d − 2 + e^ε) / (e^ε − 1)².

>>> protocol = KRandomizedResponse(domain=categories(["yes", "no"]), epsilon=1.0)
>>> reports = protocol.privatize(["yes"] * 700 + ["no"] * 300)
>>> estimate = protocol.estimate(reports)
>>> bool(abs(estimate.values[0] - 0.7) < 0.3), protocol.event().kind
(True, 'randomized-response')
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.local.domain import Bins, Categories, categories
from quietsum.mechanisms.local.exact import Cells, check_epsilon, share
from quietsum.mechanisms.local.protocol import FrequencyProtocol, Reports, Tally, two_chances
from quietsum.mechanisms.rng import RandomSource, choose_source
from quietsum.privacy import RandomizedResponse

__all__ = ["KRandomizedResponse"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class KRandomizedResponse(FrequencyProtocol):
    """One answer out of d: the true one e^ε times as likely as each other.

    Guarantees: the likelihood ratio of any report under two answers is at most high / low ≤ e^ε, in integers.
    """

    domain: Categories | Bins
    epsilon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "domain", categories(self.domain))
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))

    @functools.cached_property
    def cells(self) -> Cells:
        """The chances, in words."""
        return Cells.private(self.epsilon, others=self.domain.size - 1)

    @property
    def name(self) -> str:
        """k-rr, for two answers too."""
        return "k-rr"

    @property
    def layout(self) -> np.dtype[np.void]:
        """The answer's place in the domain."""
        return np.dtype([("answer", "<u4")])

    @property
    def bits(self) -> float:
        """log₂ d."""
        return math.ceil(math.log2(self.domain.size))

    def parameters(self) -> dict[str, Any]:
        """None."""
        return {}

    def event(self) -> RandomizedResponse:
        """The event of the chances that are really used, rounded up in the last digit."""
        return RandomizedResponse(
            keep_probability=math.nextafter(share(self.cells.high), 1.0), categories=self.domain.size
        )

    def privatize(self, values: ArrayLike | Iterable[Any], rng: RandomSource | None = None) -> Reports:
        """At the person."""
        truth = self.domain.places(values)
        reports: Reports = np.empty(truth.size, dtype=self.layout)
        reports["answer"] = self.cells.draw(truth, choose_source(rng))
        return reports

    def tally(self, reports: Reports) -> Tally:
        """At the collector: how often each answer was given."""
        answers = self.fields(reports)["answer"]
        if answers.size and int(answers.max()) >= self.domain.size:
            raise InvalidParameter("reports", int(answers.max()), "is no answer of the domain", "check the file")
        return Tally(users=answers.size, sums=np.bincount(answers, minlength=self.domain.size))

    def shares(self, tally: Tally) -> NDArray[np.float64]:
        """(count / n − q) / (p − q)."""
        p, q = share(self.cells.high), share(self.cells.low)
        return (tally.sums / tally.users - q) / (p - q)

    def variances(self, n: int, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        """Wang et al. 2017, equation 3."""
        return two_chances(n, frequencies, share(self.cells.high), share(self.cells.low))
