"""What a share that was seen says about a chance: Clopper and Pearson's exact interval (1934).

An attack that succeeds k times in n trials has succeeded by some chance p. The interval holds every p under which
neither so many nor so few successes are rarer than (1 − confidence) / 2. It covers p at least as often as it says, for
every n and p; it is wider than textbook intervals, which fail where an audit looks, near 0 and near 1.
"""

from __future__ import annotations

from scipy import special

from quietsum.errors import InvalidParameter
from quietsum.validate import open_probability, whole_number

__all__ = ["bound_share"]


def bound_share(count: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The lowest and the highest chance that ``count`` successes in ``trials`` do not refute.

    >>> low, high = bound_share(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    >>> bound_share(0, 0)
    (0.0, 1.0)
    """
    count, trials = whole_number("count", count, 0), whole_number("trials", trials, 0)
    if count > trials:
        raise InvalidParameter("count", count, f"is more than the {trials} trials", "pass successes, then trials")
    tail = (1 - open_probability("confidence", confidence, "0.95 is usual")) / 2
    low = float(special.betaincinv(count, trials - count + 1, tail)) if count else 0.0
    high = float(special.betainccinv(count + 1, trials - count, tail)) if count < trials else 1.0
    return low, high
