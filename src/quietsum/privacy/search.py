"""Searches for the edge of a budget: few evaluations, and nothing is returned that was not seen to fit.

What is spent is smooth in the logarithms (ε against σ, 1/q or T), so secants meet the target after a handful of steps.
They stay inside a bracket of points that were tried; bounds that wobble cost more steps, never a wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from quietsum.privacy.guarantee import Guarantee

__all__ = ["most_steps", "smallest_parameter"]

_CLOSE = 1e-7  # how far below the target ε may stay, relative


def smallest_parameter(
    spend: Callable[[float], Guarantee], target: float, guess: float, lowest: float, highest: float
) -> float | None:
    """The smallest x that spends at most ``target``, spending falling in x: secants in ln x inside a bracket, bisection
    where they leave it. None where even ``highest`` spends more.
    """
    bottom, top = math.log(lowest), math.log(highest)
    low, high = bottom, top  # too much is spent at low, not at high, once they have been tried
    low_tried = high_tried = False
    point = min(max(math.log(guess), bottom), top)
    last_point = last_value = math.nan
    stride = 1.0
    for _ in range(200):
        spent = spend(math.exp(point))
        value = _excess(spent, target)
        if value > 0:
            if point >= top:
                return None
            low, low_tried = point, True
        else:
            high, high_tried = point, True
            if value > -_close_enough(spent) or point <= bottom:
                break
        if low_tried and high_tried and high - low < 1e-9:
            break
        if math.isfinite(last_value) and math.isfinite(value) and value != last_value:
            slope = (value - last_value) / (point - last_point)
        else:
            slope = -1.25  # between −1 (much noise) and −2 (little)
        stalled = abs(value) > abs(last_value) / 3  # a kink, or noise: secants gain too little
        last_point, last_value = point, value
        point = last_point - (value + 0.5 * _CLOSE) / slope if slope < 0 and math.isfinite(value) else math.nan
        if low_tried and high_tried:
            if stalled or not low < point < high:
                point = (low + high) / 2
        elif not low < point < high:
            point = min(max(last_point + math.copysign(stride, value), bottom), top)
            stride *= 2
    return math.exp(high) if high_tried else None


def most_steps(spend: Callable[[int], Guarantee], target: float, guess: float, most: int) -> int | None:
    """The largest number of steps that spends at most ``target``, by secants in ln T; None where ``most`` still fit."""
    low, high = 0, most + 1  # low fits, high does not
    point = int(min(max(guess, 1.0), float(most)))
    tried: list[tuple[int, float]] = []
    while True:
        value = _excess(spend(point), target)
        if value <= 0:
            low = point
        else:
            high = point
        if low == most:
            return None
        if high - low == 1:
            return low
        tried.append((point, value))
        point = _next_steps(tried)
        if len(tried) % 4 == 0 and low and high <= most:
            point = (low + high) // 2  # secants that creep are helped along
        point = min(max(point, low + 1), high - 1)


def _next_steps(tried: list[tuple[int, float]]) -> int:
    """Where the line through the last two points of (ln T, ln ε) meets the target, rounded down."""
    point, value = tried[-1]
    slope = 0.6  # ε grows like √T at first, like T later
    if not math.isfinite(value):
        return point * 4 if value < 0 else point // 4
    if len(tried) > 1 and math.isfinite(tried[-2][1]):
        slope = (value - tried[-2][1]) / math.log(point / tried[-2][0])
    return int(point * math.exp(min(max(-value / max(slope, 0.05), -4.0), 4.0)))


def _excess(spent: Guarantee, target: float) -> float:
    """ln(ε / target), −inf at ε = 0; above 0 exactly where ε is above the target."""
    if spent.epsilon == 0:
        return -math.inf
    value = math.log(spent.epsilon / target)
    return value if (value > 0) == (spent.epsilon > target) else math.copysign(1e-16, spent.epsilon - target)


def _close_enough(spent: Guarantee) -> float:
    """How far below the target ln ε may stay: where the bounds are wide, trying to come closer chases noise.

    Bounds that are wider than numerical noise are so for another reason (envelopes), and then ε is still smooth.
    """
    gap = spent.gap / spent.epsilon if spent.epsilon_lower > 0 else 0.0
    return max(_CLOSE, gap / 2) if gap < 2e-3 else 1e-6 if spent.certified else 1e-3
