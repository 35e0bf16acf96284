"""How long an honest update can be: what a plan's clip, noise, rate and steps allow.

A mean believes every party, so one vector of 10³⁰⁸ ruins the model that all others have paid for. But a plan says
nearly all about an update's length. A party's round is linear in what it releases: with u_t = (S_t + Z_t) / b, where
S_t is the clipped sum of step t, Z_t its noise and b the public divisor,

    v_t = β v_{t−1} + u_t + μ x_t,      x_{t+1} = x_t − η v_t,      so      x_T = Σ_t h_{T−t} u_t

with numbers h that depend on rate η, momentum β and proximal term μ alone (:func:`response`). So

    |x_T| ≤ ( C · B · Σ|h|  +  σ C √(Σh²) · (√d + √(2 ln(1/p))) ) / b

but for the chance p of each tail. The second half is the norm of one Gaussian vector, since the Z_t are independent of
each other and h is fixed (Laurent and Massart 2000, lemma 1: |Z| ≤ √d + √(2x) but for e^−x). B bounds the batches of
all T steps (Bernstein's inequality and the union bound). The server may hold every update to that: it looks at what is
released already, so this is post-processing (rule 13).

>>> from quietsum.mechanisms.gaussian import ClippedSum
>>> from quietsum.plan.orders import LocalOrders
>>> from quietsum.sampling import Everyone
>>> mechanism = ClippedSum(max_norm=1.0, noise_multiplier=1.0)
>>> orders = LocalOrders(steps=1, sampling=Everyone(), expected_batch=100.0, learning_rate=0.5, mechanism=mechanism)
>>> round(longest_update(orders, size=100, dimension=25), 3)
1.059
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from quietsum.sampling import Everyone, Poisson, Sampling

if TYPE_CHECKING:
    from quietsum.plan.orders import LocalOrders

__all__ = ["CHANCE", "LARGEST", "largest_batch", "longest_update", "noise_in_update", "response"]

CHANCE = 1e-9
"""With which an honest update is longer than :func:`longest_update`, in one round."""
LARGEST = 1e30
"""No update of any plan is longer: beyond it sums leave the numbers that a model can hold."""
_MORE_ROWS = 2.0
"""A site may hold so many times its declared size: declared numbers are round ones."""
_ROOM = 1 + 1e-3  # for the grid of the noise and the rounding of sums
_SINGLE = 2.0**-22  # of the model's length, for each step: weights in single precision are rounded


def longest_update(orders: LocalOrders, *, size: int, dimension: int, model: float = 0.0) -> float:
    """The length that an honest update of a party of declared ``size`` exceeds with a chance of at most 1e-9.

    ``model`` is the length of the model that was sent. Guarantees: that holds for any rows of a party, up to
    twice as many as declared, where it follows ``orders``; :data:`LARGEST` where nothing is clipped, since rows alone
    decide.
    """
    tail = math.log(2 / CHANCE)
    reach = math.sqrt(dimension) + math.sqrt(2 * tail)
    if orders.client is not None:  # whatever was made before, its length is cut here
        return min(LARGEST, orders.client.max_norm * (1 + orders.client.noise_multiplier * reach) * _ROOM)
    if orders.distributed is not None:  # what is masked lies in its ball, and has a share of the noise
        assert orders.distributed.ball is not None
        return min(LARGEST, (orders.distributed.ball + orders.distributed.deviation(1) * reach) * _ROOM)
    mechanism = orders.mechanism
    if mechanism is None:
        return LARGEST
    weights = response(orders)
    with np.errstate(over="ignore", invalid="ignore"):
        batch = _largest_batch(orders.sampling, _MORE_ROWS * size, tail + math.log(orders.steps))
        signal = mechanism.max_norm * batch * float(np.abs(weights).sum())
        noise = mechanism.max_norm * mechanism.noise_multiplier * float(np.sqrt(np.square(weights).sum())) * reach
        found = (signal + noise) / orders.expected_batch * _ROOM + orders.steps * _SINGLE * model
    return min(LARGEST, found) if math.isfinite(found) else LARGEST


def noise_in_update(orders: LocalOrders) -> tuple[float, float]:
    """The deviation of the noise in each number of a party's update, and of the noise of its last step alone.

    The first is that of Σ h_{T−t} Z_t / b: what all steps' noise makes where gradients do not answer to it. Gradients
    do, from the second step on, and mostly pull back, so it is an upper bound in practice and exact for one step. The
    last step's noise is answered by nothing: it is in every honest update, whole. Zeros where the plan adds none.

    >>> from quietsum.mechanisms.gaussian import ClippedSum
    >>> from quietsum.plan.orders import LocalOrders
    >>> from quietsum.sampling import Everyone
    >>> mechanism = ClippedSum(max_norm=1.0, noise_multiplier=2.0)
    >>> orders = LocalOrders(steps=4, sampling=Everyone(), expected_batch=10.0, learning_rate=0.5, mechanism=mechanism)
    >>> noise_in_update(orders)
    (0.2, 0.1)
    """
    if orders.client is not None:
        deviation = orders.client.max_norm * orders.client.noise_multiplier
        return deviation, deviation
    if orders.mechanism is None:
        return 0.0, 0.0
    weights = response(orders)
    deviation = orders.mechanism.max_norm * orders.mechanism.noise_multiplier / orders.expected_batch
    with np.errstate(over="ignore", invalid="ignore"):
        found = float(np.sqrt(np.square(weights).sum())) * deviation, float(np.abs(weights[0])) * deviation
    return found if all(map(math.isfinite, found)) else (0.0, 0.0)


def response(orders: LocalOrders) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """h: by how much the model has moved, so many steps after a unit of gradient; the last step's stands first."""
    found = np.zeros(orders.steps)
    place, velocity = 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(orders.steps):
            velocity = orders.momentum * velocity + orders.proximal * place + (step == 0)
            place = place - orders.learning_rate * velocity
            found[step] = place
    return found


def largest_batch(sampling: Sampling, size: int) -> float:
    """The size that a batch of a party of declared ``size`` exceeds with a chance of at most 1e-9."""
    return _largest_batch(sampling, float(size), math.log(1 / CHANCE))


def _largest_batch(sampling: Sampling, rows: float, tail: float) -> float:
    """A size that no draw of ``rows`` exceeds, but for a chance of e^−tail."""
    if isinstance(sampling, Everyone) or not isinstance(sampling, Poisson):
        return rows
    mean, variance = rows * sampling.rate, rows * sampling.rate * (1 - sampling.rate)
    above = tail / 3 + math.sqrt((tail / 3) ** 2 + 2 * variance * tail)
    return min(rows, mean + above)
