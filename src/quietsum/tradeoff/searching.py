"""What a search over settings costs, when it looks at protected records.

Every setting that is tried is a private run of its own. Two honest ways to pay for k of them:

* **the sum**: all runs are composed by the exact accountant, and every model may be released;
* **repeat and select** (Liu, Talwar 2019; Papernot, Steinke 2022): a *random number* K of runs is made, each with a
  setting drawn at random, and only the best one is shown. If one run is (λ, ε(λ))-Rényi-private for every λ, the
  selected one is (λ, ε′)-Rényi-private with

      K geometric on 1, 2, … with mean k   (their Theorem 2 with η = 1, γ = 1/k):
          ε′ = ε(λ) + min over λ̂ of 2(1 − 1/λ̂)·ε(λ̂) + 2 ln(k)/λ̂  +  ln(k)/(λ − 1)

      K Poisson with mean k                (their Theorem 6), where one run is also (ε̂, δ̂)-private:
          ε′ = ε(λ) + k·δ̂ + ln(k)/(λ − 1),     ε̂ = ln(1 + 1/(λ − 1))

K must be drawn once and kept to: stopping early, or looking at losers, voids the bound. With Poisson K may be 0; then
nothing is trained. The score that selects must not cost anything itself: it stands on rows that need no protection.

>>> from quietsum.privacy.events import Gaussian, PoissonSampled, Repeated
>>> run = Repeated(times=500, event=PoissonSampled(rate=0.05, event=Gaussian(noise_multiplier=2.0)))
>>> cost = search_cost([run], delta=1e-5, trials=100)
>>> cost.single.epsilon < min(cost.geometric.epsilon, cost.poisson.epsilon) < cost.total.epsilon
True
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, final

import numpy as np

from quietsum.errors import InvalidParameter, UnsupportedEvent
from quietsum.privacy import (
    ExactAccountant,
    Guarantee,
    Neighbours,
    PrivacyEvent,
    PrivacyUnit,
    RenyiAccountant,
    failure_of,
)
from quietsum.validate import finite_number, open_probability, whole_number

__all__ = ["SearchCost", "geometric_curve", "poisson_curve", "search_cost"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchCost:
    """What it costs one record to try ``trials`` settings. ``single`` is the dearest run alone.

    ``total`` releases every model; ``geometric`` and ``poisson`` release the best of K runs, K with mean ``trials``.
    """

    trials: int
    single: Guarantee
    total: Guarantee
    geometric: Guarantee
    poisson: Guarantee

    @property
    def best(self) -> Guarantee:
        """The cheapest of the three."""
        return min((self.total, self.geometric, self.poisson), key=lambda each: each.epsilon)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        names = ("single", "total", "geometric", "poisson")
        return {"trials": self.trials, **{name: getattr(self, name).to_dict() for name in names}}


def search_cost(
    runs: Sequence[PrivacyEvent],
    *,
    delta: float,
    trials: int | None = None,
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
) -> SearchCost:
    """The price of a search in which ``runs`` are the settings, each run as one event.

    ``trials`` is how many runs are made, on average where that is random; as many as ``runs`` unless stated. A sum of
    more trials than runs takes the runs in turn. Guarantees: upper bounds on ε per record at ``delta``; which setting
    is drawn looks at no record, so one draw costs at most the dearest setting at every order.
    """
    given = list(runs)
    if not given or not all(isinstance(run, PrivacyEvent) for run in given):
        raise InvalidParameter("runs", given[:3], "holds no privacy events", "pass one event per setting")
    delta = open_probability("delta", delta)
    count = whole_number("trials", len(given) if trials is None else trials, 1)
    accountants = [_renyi(neighbours).compose(run) for run in given]
    if any(failure_of(pair) for accountant in accountants for pair, _ in accountant.history.log):
        raise UnsupportedEvent(
            "repeat-and-select is stated for Rényi curves, and an event that may fail outright has none; account for "
            "such runs by their sum"
        )
    orders = accountants[0].orders
    curve = np.max([accountant.rdp_curve() for accountant in accountants], axis=0)
    singles = [_exact(neighbours).compose(run) for run in given]
    total = _exact(neighbours)
    for place, run in enumerate(given):
        total.compose(run, count // len(given) + (place < count % len(given)))
    deltas = [max(single.delta(epsilon=_other(order)) for single in singles) for order in orders]
    return SearchCost(
        trials=count,
        single=max((single.epsilon(delta=delta) for single in singles), key=lambda each: each.epsilon),
        total=total.epsilon(delta=delta),
        geometric=_price_selection(geometric_curve(orders, curve, count), delta, neighbours, "geometric", count),
        poisson=_price_selection(poisson_curve(orders, curve, deltas, count), delta, neighbours, "Poisson", count),
    )


def geometric_curve(orders: Sequence[float], curve: Sequence[float], mean: float) -> list[float]:
    """The Rényi curve of the best of K runs, K geometric on 1, 2, … with this ``mean`` (Theorem 2, η = 1)."""
    mean = _mean(mean)
    log_mean = math.log(mean)
    pairs = list(zip(orders, curve, strict=True))
    if mean == 1:
        return [float(value) for value in curve]  # K is always one
    extra = min(2 * (1 - 1 / order) * value + 2 * log_mean / order for order, value in pairs)
    return [float(value) + extra + log_mean / (order - 1) for order, value in pairs]


def poisson_curve(orders: Sequence[float], curve: Sequence[float], deltas: Sequence[float], mean: float) -> list[float]:
    """The Rényi curve of the best of K runs, K Poisson with this ``mean`` (Theorem 6).

    ``deltas[i]`` is δ̂ of one run at ε̂ = ln(1 + 1/(orders[i] − 1)).
    """
    mean = _mean(mean)
    parts = zip(orders, curve, deltas, strict=True)
    return [float(value) + mean * delta + math.log(mean) / (order - 1) for order, value, delta in parts]


def _mean(value: float) -> float:
    mean = finite_number("mean", value)
    if mean < 1:
        raise InvalidParameter("mean", value, "is less than one run", "pass how many runs are made on average")
    return mean


def _other(order: float) -> float:
    """The largest ε̂ that Theorem 6 allows at ``order``, rounded down."""
    return math.log1p(1 / (order - 1)) * (1 - 1e-15)


def _renyi(neighbours: Neighbours) -> RenyiAccountant:
    return RenyiAccountant(neighbours=neighbours, unit=PrivacyUnit.RECORD)


def _exact(neighbours: Neighbours) -> ExactAccountant:
    return ExactAccountant(neighbours=neighbours, unit=PrivacyUnit.RECORD)


def _price_selection(curve: list[float], delta: float, neighbours: Neighbours, law: str, mean: int) -> Guarantee:
    found = _renyi(neighbours).compose_rdp(curve).epsilon(delta=delta)
    method = f"best of a {law} number of runs, {mean} on average (Papernot, Steinke 2022), by {found.method}"
    return dataclasses.replace(found, method=method)
