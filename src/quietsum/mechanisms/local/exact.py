"""Chances as whole numbers of random words, so that the ε that holds is never above the ε that is claimed.

A local protocol is private by the chances of its coins alone. A chance computed in floating point is a little off, and
nothing says to which side. Here a chance is a whole number ``t`` of the 2⁶⁴ values of a random word: the coin falls
with probability t / 2⁶⁴ exactly, and ``t`` is chosen in rational arithmetic from a lower bound of e^ε, always rounded
to the side that costs accuracy. What is lost is at most one part in 2⁶⁴ of each chance.

>>> cells = Cells.private(1.0, others=1)
>>> cells.high + cells.low == 2**64, cells.high <= exp_below(1.0) * cells.low
(True, True)
"""

from __future__ import annotations

import dataclasses
import decimal
import math
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import RandomSource
from quietsum.validate import positive

__all__ = ["WORD", "Cells", "check_epsilon", "coins", "exp_below", "half_coins", "share"]

WORD = 1 << 64
"""How many values a random word has."""
LEAST, MOST = 1e-6, 20.0
"""Every ε between these has chances that a word resolves."""
_TOP = 48  # a coin looks at 16 bits first, and at these only where they tie


def check_epsilon(value: object, parameter: str = "epsilon") -> float:
    """``value`` as the ε of one report."""
    epsilon = positive(parameter, value, "the ε of one report, for instance 1.0")
    if epsilon > MOST:
        raise InvalidParameter(
            parameter, value, f"is above {MOST:g}, where a report is as good as the answer itself",
            "choose at most 20, or publish the answers and say so",
        )  # fmt: skip
    if epsilon < LEAST:
        raise InvalidParameter(
            parameter, value, f"is below {LEAST:g}, where no number of people gives an estimate", "choose a larger one"
        )
    return epsilon


def exp_below(epsilon: float | Fraction) -> Fraction:
    """A rational number just below e^ε: 60 digits, then one part in 10⁵⁵ less."""
    with decimal.localcontext() as context:
        context.prec = 60
        exponent = Fraction(epsilon)
        value = (decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator)).exp()
    return Fraction(value) * (1 - Fraction(1, 10**55))


def share(threshold: int) -> float:
    """The chance ``threshold`` / 2⁶⁴ as the nearest float, for estimators."""
    return threshold / WORD


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
    """One word cut into cells: ``high`` values for the true answer, ``low`` for each of the ``others``.

    Guarantees: high + others · low = 2⁶⁴ and high ≤ e^ε · low, in integers.
    """

    others: int
    high: int
    low: int

    @classmethod
    def private(cls, epsilon: float, *, others: int) -> Cells:
        """The cells with the largest true share that ε allows."""
        below = exp_below(epsilon)
        low = math.ceil(WORD / (below + others))  # rounded up, so that the true answer gets what is left
        return cls(others=others, high=WORD - others * low, low=low)

    def draw(self, truth: NDArray[np.int64], rng: RandomSource) -> NDArray[np.int64]:
        """Answers 0 … others: each the truth by its share, else any other, from one word each."""
        words = rng.words(truth.size)
        lies = words < np.uint64(self.others * self.low)
        other = (words // np.uint64(self.low)).astype(np.int64)
        other += other >= truth
        return np.where(lies, other, truth)


def coins(rng: RandomSource, threshold: int, count: int) -> NDArray[np.bool_]:
    """``count`` coins, each True with probability ``threshold`` / 2⁶⁴ exactly.

    16 bits decide all but one coin in 65,536; where they tie with the threshold's first 16, the other 48 decide.
    """
    if not 0 <= threshold < WORD:
        raise InvalidParameter("threshold", threshold, "is no chance below one", "pass 0 to 2⁶⁴ − 1")
    short = rng.words(-(-count // 4)).view(np.uint16)[:count]
    first = np.uint16(threshold >> _TOP)
    heads: NDArray[np.bool_] = short < first
    ties = np.flatnonzero(short == first)
    if ties.size:
        heads[ties] = (rng.words(ties.size) >> np.uint64(64 - _TOP)) < np.uint64(threshold & ((1 << _TOP) - 1))
    return heads


def half_coins(rng: RandomSource, count: int) -> NDArray[np.bool_]:
    """``count`` fair coins, a bit each."""
    return np.unpackbits(rng.words(-(-count // 64)).view(np.uint8))[:count].astype(np.bool_)
