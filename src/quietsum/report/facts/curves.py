"""The whole curve behind one ε: its profile δ(ε), what the best attacker can do, and the μ of Gaussian privacy.

One (ε, δ) is one point of a curve. A report states the curve at some fifty points (ε_i, δ_i), each of which is a proven
statement by itself, the noise's distance τ from its ideal law included: δ_i = δ(ε_i) + (1 + e^{ε_i}) τ. All else here
follows from those points alone, so that a reader can compute it again from the report.

**The attacker.** Each point says that no test with false-positive rate α has a false-negative rate below
max(0, 1 − δ_i − e^{ε_i} α, e^{−ε_i} (1 − δ_i − α)) (Kairouz, Oh, Viswanath 2015); the largest of these lines is the
trade-off curve f(α) (Dong, Roth, Su 2022). Points that are left out only make it more careful.

**μ.** A mechanism is μ-Gaussian-private if telling neighbours apart is no easier than telling N(0, 1) from N(μ, 1), for
which δ_μ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2) (Dong, Roth, Su 2022, Corollary 2.13). We state the smallest μ, rounded
up, with δ(ε) ≤ max(δ_μ(ε), s) for every ε, where the *slack* s is the δ of the promise, which leaves that chance out
anyway; then f(α) ≥ G_μ(α) − s for all α. It is proven for all ε between the points, too: δ is convex in x = e^ε, so
between two points it lies below their chord; δ_μ is convex in x with slope −Φ(−ε/μ − μ/2), so the least distance of the
two is found where both slopes are equal. The slack is 0 if the mechanism is Gaussian itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, final

from quietsum.errors import UnsupportedEvent
from quietsum.ledger import Charge
from quietsum.privacy import Gaussian, Neighbours, PrivacyEvent, Repeated, accountant_for

__all__ = ["RATES", "PrivacyCurve", "find_mu", "profile_of", "trade_off", "true_positives"]

RATES = (
    0.0, 1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45,
    0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0,
)  # fmt: skip
"""The false-positive rates at which the trade-off curve is stated."""
_POINTS = 48
_SLACK = 1e-10  # where the profile may end
_MOST = 60.0  # beyond, e^ε is no promise


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyCurve:
    """Points (ε, δ) with ε growing from 0, each a proven bound; ``mu`` is known if the mechanism is Gaussian itself."""

    points: tuple[tuple[float, float], ...]
    mu: float | None = None

    def to_dict(self, delta: float) -> dict[str, Any]:
        """The profile, the trade-off curve and μ as plain values; ``delta`` is the slack of a μ that is not exact."""
        mu, slack = (self.mu, 0.0) if self.mu is not None else (find_mu(self.points, delta), delta)
        return {
            "profile": [list(point) for point in self.points],
            "trade_off": [[rate, trade_off(self.points, rate)] for rate in RATES],
            "gaussian": None if mu is None else {"mu": mu, "slack": slack, "exact": self.mu is not None},
        }


def profile_of(charge: Charge, neighbours: Neighbours, *, points: Sequence[float] = ()) -> PrivacyCurve | None:
    """The curve of everything in ``charge``, by the exact accountant; None if it knows none, or there is no protection.

    ``points`` are the ε to ask at; chosen here if omitted.
    """
    if charge.event is None:
        return None
    try:
        accountant = accountant_for("exact", neighbours=neighbours, unit=charge.unit, events=[charge.event])
        accountant.compose(charge.event)
        asked = tuple(points) or _choose(accountant.epsilon(delta=_SLACK).epsilon)
        found = tuple((one, _with_failure(accountant.delta(epsilon=one), one, charge.failure)) for one in asked)
    except UnsupportedEvent:
        return None
    mu = _gaussian_mu(charge.event, neighbours)
    return PrivacyCurve(points=found, mu=mu if mu is not None and not charge.failure > 1e-15 else None)


def _choose(last: float) -> tuple[float, ...]:
    end = min(last, _MOST) if last > 0 else 1.0
    return tuple(end * index / (_POINTS - 1) for index in range(_POINTS))


def _with_failure(delta: float, epsilon: float, failure: float) -> float:
    return min(1.0, delta + (1.0 + math.exp(epsilon)) * failure)


def _gaussian_mu(event: PrivacyEvent, neighbours: Neighbours) -> float | None:
    """√T Δ/σ of T equal Gaussian releases without sampling (Dong, Roth, Su 2022, Corollary 3.3); None for all else."""
    times = 1
    while isinstance(event, Repeated):
        times, event = times * event.times, event.event
    if not isinstance(event, Gaussian) or not event.noise_multiplier > 0:
        return None
    distance = 2.0 if neighbours is Neighbours.REPLACE_ONE else 1.0
    return distance * math.sqrt(times) / event.noise_multiplier


def trade_off(points: Sequence[Sequence[float]], rate: float) -> float:
    """The least false-negative rate of any attacker whose false-positive rate is ``rate``.

    >>> round(trade_off([(1.0, 0.0)], 0.1), 3)
    0.728
    """
    best = 0.0
    for epsilon, delta in points:
        steep = 1.0 - delta - math.exp(epsilon) * rate
        flat = math.exp(-epsilon) * (1.0 - delta - rate)
        best = max(best, steep, flat)
    return min(best, 1.0 - rate)


def true_positives(points: Sequence[Sequence[float]], rate: float) -> float:
    """The largest share of members that any attacker can point at while accusing at most ``rate`` of the others."""
    return 1.0 - trade_off(points, rate)


# ------------------------------------------------------------------------------------------------ Gaussian privacy


def find_mu(points: Sequence[Sequence[float]], slack: float) -> float | None:
    """The least μ, rounded up to four digits, with δ(ε) ≤ max(δ_μ(ε), ``slack``) for all ε, by these points.

    None if the points do not reach down to ``slack``, the first one promises nothing, or no μ up to 100 is enough.
    """
    if not points or points[0][0] != 0.0 or points[0][1] >= 1.0 or points[-1][1] > slack:
        return None
    low, high = 1e-9, 100.0
    if not _covers(high, points, slack):
        return None
    while high > low * (1 + 1e-7):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _covers(middle, points, slack) else (middle, high)
    digits = 3 - math.floor(math.log10(high))
    rounded = math.ceil(high * 10.0**digits) / 10.0**digits
    return rounded if _covers(rounded, points, slack) else high


def _covers(mu: float, points: Sequence[Sequence[float]], slack: float) -> bool:
    """Whether δ_μ lies nowhere below the chords of the points, as far as these lie above ``slack``."""
    for (left, above), (right, below) in itertools.pairwise(points):
        if above <= slack:
            return True
        begin, end = math.exp(left), math.exp(right)
        slope = (below - above) / (end - begin)
        last = right if below >= slack else min(right, math.log(begin + (slack - above) / slope))
        for epsilon in (left, last, _touching(mu, slope, left, last)):
            if _delta(mu, epsilon) < above + slope * (math.exp(epsilon) - begin):
                return False
    return True


def _touching(mu: float, slope: float, left: float, right: float) -> float:
    """The ε between both at which δ_μ has this slope in e^ε, or the end that is nearer to it."""
    from scipy.special import ndtri

    if not 0.0 < -slope < 1.0:
        return left
    epsilon = -mu * (float(ndtri(-slope)) + mu / 2)
    return min(max(epsilon, left), right)


def _delta(mu: float, epsilon: float) -> float:
    from scipy.special import log_ndtr, ndtr

    far = epsilon + float(log_ndtr(-epsilon / mu - mu / 2))
    return float(ndtr(-epsilon / mu + mu / 2)) - math.exp(far)
