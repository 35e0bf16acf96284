"""Rényi accounting: one number an order, additive over steps, converted to (ε, δ) at the end.

D_α(P‖Q) = ln E_Q[(P/Q)^α] / (α − 1) adds up under composition (Mironov 2017, Proposition 1). It is the accountant of
choice for schedules that depend on what was seen (see :mod:`quietsum.privacy.renyi.filters`) and a fast upper bound
everywhere else; :class:`quietsum.ExactAccountant` is 7–16 % tighter on typical training runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Self, final

import numpy as np

from quietsum.errors import InvalidParameter, MixedUnits, UnsupportedEvent
from quietsum.privacy.accounting import History, check_delta
from quietsum.privacy.events import Gaussian, PrivacyEvent
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.pairs import Pair
from quietsum.privacy.renyi.curves import DEFAULT_ORDERS, MOMENTS_ORDERS, failure_of, rdp_of, require_rdp
from quietsum.privacy.units import Neighbours, Observer, PrivacyUnit
from quietsum.validate import choice, finite_number, non_negative, whole_number

__all__ = ["RenyiAccountant", "check_order", "gaussian_rdp"]

_MOST_TIMES = 10**300  # what a float can multiply


def gaussian_rdp(order: float, noise_multiplier: float) -> float:
    """Rényi divergence α / 2z² of the Gaussian mechanism at one order (Mironov 2017, Proposition 7).

    Without noise nothing is private:

    >>> gaussian_rdp(2.0, 4.0), gaussian_rdp(2.0, 0.0)
    (0.0625, inf)
    """
    order = check_order(order)
    noise = non_negative("noise_multiplier", noise_multiplier, "0 means no noise and costs infinitely much")
    return order / (2 * noise) / noise if noise > 1e-150 else math.inf


def check_order(value: object) -> float:
    """``value`` as a Rényi order: a finite float above 1."""
    order = finite_number("order", value, "Rényi orders are finite numbers above 1")
    if order <= 1:
        raise InvalidParameter("order", value, "must be greater than 1", "use for instance 2.0 or 32")
    return order


@functools.lru_cache(maxsize=64)
def _conversion_terms(orders: tuple[float, ...], conversion: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """α − 1 and the δ-free part of each conversion, per order."""
    alpha = np.array(orders)
    extra = np.zeros_like(alpha)
    if conversion == "improved":
        extra = np.log1p(-1 / alpha) - np.log(alpha) / (alpha - 1)
    return alpha, alpha - 1, extra


@final
class RenyiAccountant:
    """A running Rényi curve.

    ``conversion="improved"`` (default) uses ε = D_α + ln((α−1)/α) − (ln δ + ln α)/(α−1) (Canonne, Kamath, Steinke 2020,
    Proposition 12; Balle et al. 2020, Theorem 21), ``"mironov"`` the looser ε = D_α + ln(1/δ)/(α−1) (Mironov 2017,
    Proposition 3). :meth:`moments_accountant` is the classic setting of Abadi et al. 2016.

    >>> accountant = RenyiAccountant().compose_gaussian(noise_multiplier=4.0, steps=50)
    >>> guarantee = accountant.epsilon(delta=1e-5)
    >>> round(guarantee.epsilon, 2)
    9.23
    >>> loose = RenyiAccountant(conversion="mironov").compose_gaussian(noise_multiplier=4.0, steps=50)
    >>> round(loose.epsilon(delta=1e-5).epsilon, 2)
    10.05
    """

    def __init__(
        self,
        orders: Sequence[float] | None = None,
        *,
        conversion: str = "improved",
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> None:
        if orders is None:
            self._orders = DEFAULT_ORDERS
        else:
            self._orders = tuple(check_order(order) for order in orders)
            if not self._orders:
                raise InvalidParameter("orders", list(orders), "is empty", "leave it out for the standard grid")
        self._conversion = choice("conversion", conversion, ("improved", "mironov"))
        self._curve = np.zeros(len(self._orders))
        self._log_success = 0.0  # Σ ln(1 − δ_i) of approximate events
        self.history = History(neighbours, unit, observer)

    @classmethod
    def moments_accountant(
        cls,
        *,
        neighbours: Neighbours = Neighbours.ADD_REMOVE,
        unit: PrivacyUnit | None = None,
        observer: Observer = Observer.RECIPIENTS,
    ) -> RenyiAccountant:
        """The classic moments accountant: integer moments λ = α − 1 up to 32, tail bound δ = min exp(α(λ) − λε)
        (Abadi et al. 2016, Theorem 2), which is Mironov's conversion on the orders 2 … 33.
        """
        return cls(MOMENTS_ORDERS, conversion="mironov", neighbours=neighbours, unit=unit, observer=observer)

    def copy(self) -> RenyiAccountant:
        """An independent accountant with the same history."""
        other = RenyiAccountant(self._orders, conversion=self._conversion)
        other._curve, other._log_success, other.history = self._curve, self._log_success, self.history.copy()
        return other

    @property
    def orders(self) -> tuple[float, ...]:
        """The orders tracked."""
        return self._orders

    def rdp_curve(self) -> tuple[float, ...]:
        """The accumulated Rényi divergence at each of :attr:`orders`."""
        return tuple(self._curve.tolist())

    def rdp_at(self, order: float) -> float:
        """The accumulated Rényi divergence at one tracked order.

        >>> accountant = RenyiAccountant(orders=[2, 8]).compose_gaussian(noise_multiplier=4.0, steps=50)
        >>> accountant.rdp_at(2), accountant.compose_rdp([0.5, 0.75]).rdp_curve()
        (3.125, (3.625, 13.25))
        """
        order = check_order(order)
        if order not in self._orders:
            nearest = min(self._orders, key=lambda other: abs(other - order))
            raise InvalidParameter("order", order, "is not tracked", f"the nearest tracked order is {nearest:g}")
        return float(self._curve[self._orders.index(order)])

    def total_rdp_mass(self) -> float:
        """The sum of the curve: grows with every step, and is no privacy quantity; never steer a budget by it."""
        return float(self._curve.sum())

    # ------------------------------------------------------------------------------------- composing

    def supports(self, event: PrivacyEvent) -> bool:
        """Whether a Rényi curve of ``event`` is known under this accountant's relation."""
        try:
            self._reduce(event, 1)
        except (UnsupportedEvent, MixedUnits):
            return False
        return True

    def _reduce(self, event: PrivacyEvent, times: int) -> list[tuple[Pair, int]]:
        pairs = self.history.reduce(event, times)
        for pair, count in pairs:
            require_rdp(pair)
            if count > _MOST_TIMES:
                raise InvalidParameter("times", count, "is more than can be counted", "nest fewer repetitions")
        return pairs

    def compose(self, event: PrivacyEvent, times: int = 1) -> Self:
        """Add ``times`` independent uses of ``event``; refused events change nothing."""
        pairs = self._reduce(event, times)
        curve = self._curve.copy()
        log_success = self._log_success
        for pair, count in pairs:
            curve += count * rdp_of(pair, self._orders)
            if failure := failure_of(pair):
                log_success += count * math.log1p(-failure) if failure < 1 else -math.inf
        self.history.add(event, times, pairs)
        self._curve, self._log_success = curve, log_success
        return self

    def compose_gaussian(self, *, noise_multiplier: float, steps: int = 1) -> Self:
        """Add ``steps`` steps of Gaussian noise without sampling; noise 0 costs infinitely much."""
        steps = whole_number("steps", steps)
        noise = non_negative("noise_multiplier", noise_multiplier, "0 means no noise and costs infinitely much")
        if noise > 0:
            return self.compose(Gaussian(noise_multiplier=noise), steps)
        return self.compose_rdp([math.inf] * len(self._orders)) if steps else self

    def compose_rdp(self, rdp_per_order: Sequence[float]) -> Self:
        """Add a mechanism by its own Rényi divergences, one for each of :attr:`orders`, for the unit counted here."""
        try:
            values = np.asarray(list(rdp_per_order), dtype=float)
        except (TypeError, ValueError):
            raise InvalidParameter(
                "rdp_per_order",
                rdp_per_order,
                "is no list of numbers",
                "pass one divergence for each of accountant.orders",
            ) from None
        if values.shape != self._curve.shape:
            raise InvalidParameter(
                "rdp_per_order", f"{values.size} values", f"does not align with {len(self._orders)} orders",
                "pass one value for each of accountant.orders",
            )  # fmt: skip
        if np.isnan(values).any() or (values < 0).any():
            raise InvalidParameter(
                "rdp_per_order", list(rdp_per_order), "holds a NaN or negative value", "divergences are ≥ 0"
            )
        self._curve = self._curve + values
        return self

    # -------------------------------------------------------------------------------------- queries

    def epsilon(self, *, delta: float) -> Guarantee:
        """The smallest ε over all orders, with the order that gives it."""
        delta = check_delta(delta)
        method = f"Rényi, {self._conversion} conversion"
        room = delta + math.expm1(self._log_success) * (1 + 1e-15)  # what approximate events leave of δ
        if room <= 0:
            return self.history.guarantee(
                epsilon=math.inf, delta=delta, method=f"{method}: δ is used up by approximate events"
            )
        curve = self._curve
        if not curve.any():
            why = "nothing composed" if room == delta else "only failures, which δ covers"
            return self.history.guarantee(epsilon=0.0, delta=delta, method=f"{method}: {why}")
        alpha, less_one, extra = _conversion_terms(self._orders, self._conversion)
        values = curve + extra - math.log(room) / less_one
        values[np.isnan(values)] = math.inf  # an order that overflowed promises nothing
        best = int(np.argmin(values))
        value, order = float(values[best]), float(alpha[best])
        if self._conversion == "improved" and -math.expm1(-float(curve.min())) <= room * room:
            value = 0.0  # total variation ≤ √(1 − e^{−KL}) ≤ δ (Bretagnolle, Huber 1979)
        return self.history.guarantee(epsilon=max(0.0, value), delta=delta, method=method, order=order)

    def delta(self, *, epsilon: float) -> float:
        """The smallest δ over all orders at ``epsilon``."""
        epsilon = finite_number("epsilon", epsilon)
        failure = -math.expm1(self._log_success)
        if not self._curve.any():
            return min(1.0, failure + max(0.0, -math.expm1(min(0.0, epsilon))))
        _, less_one, extra = _conversion_terms(self._orders, self._conversion)
        best = float(np.min(less_one * (self._curve + extra - epsilon)))
        return min(1.0, failure + math.exp(min(0.0, best)))
