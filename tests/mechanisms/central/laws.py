"""The exact laws of choices, by ways that the library does not take."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Law = NDArray[np.float64]


def exponential_law(scores: Law, rate: float) -> Law:
    weights = np.exp(rate * (scores - scores.max()))
    return np.asarray(weights / weights.sum())


def permute_and_flip_law(scores: Law, rate: float) -> Law:
    """Give every option a uniform time of arrival: P(i) = pᵢ ∫₀¹ Π_{j≠i} (1 − pⱼ t) dt, a polynomial's integral."""
    chances = np.exp(rate * (scores - scores.max()))
    law = []
    for i, chance in enumerate(chances):
        polynomial = np.polynomial.Polynomial([1.0])
        for j, other in enumerate(chances):
            if j != i:
                polynomial *= np.polynomial.Polynomial([1.0, -other])
        law.append(chance * (polynomial.integ()(1.0) - polynomial.integ()(0.0)))
    return np.asarray(law)


def noisy_max_law(scores: Law, rate: float, steps: int = 64) -> Law:
    """Discrete Laplace noise on the integers ``steps`` to a unit of score, summed over the winner's noise.

    Of equal ones the first wins.
    """
    places = np.rint(scores * steps).astype(np.int64)
    ratio = math.exp(-rate / steps)
    reach = math.ceil(60 / rate * steps) + int(np.ptp(places))
    values = np.arange(places.min() - reach, places.max() + reach + 1)

    def mass(at: NDArray[np.int64]) -> Law:
        return np.asarray((1 - ratio) / (1 + ratio) * ratio ** np.abs(at).astype(np.float64))

    def below(at: NDArray[np.int64]) -> Law:  # P(noise ≤ at)
        tail = ratio ** (np.abs(at).astype(np.float64) + 1) / (1 + ratio)
        return np.asarray(np.where(at >= 0, 1 - tail, tail / ratio))

    law = []
    for i, place in enumerate(places):
        chance = mass(values - place)
        for j, other in enumerate(places):
            if j != i:
                chance = chance * below(values - other - (1 if j < i else 0))
        law.append(chance.sum())
    return np.asarray(law)
