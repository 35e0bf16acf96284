"""From a budget to a setting: the noise, steps, rate or rounds that fit, never one that overspends.

Every answer is checked against the accountant's *upper* bound before it is returned. Searches start from the
central-limit guess μ = q √(T (e^{1/σ²} − 1)) (Bu, Dong, Long, Su 2020), which is no bound itself but close. What is
spent is smooth in the logarithms (ε against σ, 1/q or T), so secants meet the target after a handful of exact
evaluations. They stay inside a bracket of points that were tried; bounds that wobble cost more steps, never a wrong
answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.privacy.accounting import accountant_for
from quietsum.privacy.events import FixedSizeSampled, Gaussian, PoissonSampled, PrivacyEvent, Repeated
from quietsum.privacy.exact.closed_forms import log_gaussian_delta
from quietsum.privacy.guarantee import Guarantee
from quietsum.privacy.units import Neighbours
from quietsum.validate import choice, open_probability, positive, probability, whole_number

__all__ = [
    "calibrate",
    "calibrate_noise",
    "calibrate_rate",
    "calibrate_rounds",
    "calibrate_steps",
    "compute_noise_multiplier",
    "most_steps",
    "smallest_parameter",
]

_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e7
_LEAST_RATE = 1e-9
_CLOSE = 1e-7  # how far below the target ε may stay, relative


def _step_event(noise_multiplier: float, sample_rate: float, sampling: str) -> PrivacyEvent:
    noise = Gaussian(noise_multiplier=noise_multiplier)
    match choice("sampling", sampling, ("poisson", "fixed", "none")):
        case "poisson":
            return PoissonSampled(rate=sample_rate, event=noise)
        case "fixed":
            return FixedSizeSampled(rate=sample_rate, event=noise)
        case _:
            return noise


def _relation(neighbours: Neighbours | None, sampling: str) -> Neighbours:
    """As stated; else replace-one for fixed-size batches and add-or-remove for the others."""
    if neighbours is not None:
        return neighbours
    return Neighbours.REPLACE_ONE if sampling == "fixed" else Neighbours.ADD_REMOVE


def calibrate(
    make_event: Callable[[float], PrivacyEvent],
    *,
    target_epsilon: float,
    target_delta: float,
    guess: float,
    accounting: str = "exact",
    neighbours: Neighbours = Neighbours.ADD_REMOVE,
    lowest: float = _LEAST_NOISE,
    highest: float = _MOST_NOISE,
) -> float:
    """The smallest parameter x in [lowest, highest] with ε(make_event(x)) ≤ target_epsilon, ε falling in x.

    ``make_event`` describes a whole run as a function of one noise parameter: a noise multiplier, or a factor on a
    schedule.

    >>> from quietsum import Composed, Gaussian
    >>> halving = lambda x: Composed(events=(Gaussian(noise_multiplier=x), Gaussian(noise_multiplier=x / 2)))
    >>> round(calibrate(halving, target_epsilon=1.0, target_delta=1e-5, guess=5.0), 3)
    8.342
    """
    target = positive("target_epsilon", target_epsilon)
    delta = open_probability("target_delta", target_delta)
    guess, lowest = positive("guess", guess), positive("lowest", lowest)
    if positive("highest", highest) < lowest:
        raise InvalidParameter("highest", highest, f"lies below lowest = {lowest:g}", "swap them")

    def spend(parameter: float) -> Guarantee:
        event = make_event(parameter)
        return accountant_for(accounting, neighbours=neighbours, events=[event]).compose(event).epsilon(delta=delta)

    found = smallest_parameter(spend, target, guess, lowest, highest)
    if found is None:
        raise QuietsumError(
            f"no noise up to {highest:g} reaches ε = {target:g} at δ = {delta:g}; "
            "allow a larger ε or δ, fewer steps or a lower sample rate"
        )
    return found


def calibrate_noise(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps: int,
    accounting: str = "exact",
    sampling: str = "poisson",
    neighbours: Neighbours | None = None,
) -> float:
    """The smallest noise multiplier with which ``steps`` steps stay within (target_epsilon, target_delta).

    >>> round(calibrate_noise(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.0032, steps=31_200), 3)
    2.23
    """
    rate = probability("sample_rate", sample_rate)
    steps = whole_number("steps", steps, 1)
    relation = _relation(neighbours, sampling)
    target = positive("target_epsilon", target_epsilon)
    delta = open_probability("target_delta", target_delta)
    if rate == 0:
        raise InvalidParameter("sample_rate", rate, "draws no record, so any noise is enough", "use a rate above 0")
    guess = _central_limit_noise(target, delta, 1.0 if sampling == "none" else rate, steps)
    if relation is Neighbours.REPLACE_ONE:
        guess *= 2

    def run(noise: float) -> PrivacyEvent:
        return Repeated(times=steps, event=_step_event(noise, rate, sampling))

    return calibrate(
        run, target_epsilon=target, target_delta=delta, guess=guess, accounting=accounting, neighbours=relation
    )


def _central_limit_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """σ for which q √(T (e^{1/σ²} − 1)) is the μ of a Gaussian that costs (ε, δ). A starting point, not a bound."""
    mu = _central_limit_mu(epsilon, delta)
    if rate == 1:
        return math.sqrt(steps) / mu
    return 1 / math.sqrt(math.log1p(mu / rate * (mu / rate) / steps)) if mu / rate < 1e150 else _LEAST_NOISE


def _central_limit_mu(epsilon: float, delta: float) -> float:
    """The μ of the Gaussian that costs (ε, δ), roughly; its δ grows with μ."""
    target = math.log(delta)
    low, high = 1e-9, 1e6
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if log_gaussian_delta(middle, epsilon) <= target else (low, middle)
    return low


def compute_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps_per_round: int,
    num_rounds: int,
    accounting: str = "exact",
) -> float:
    """The smallest noise multiplier for ``num_rounds`` rounds of ``steps_per_round`` Poisson-sampled steps.

    >>> sigma = compute_noise_multiplier(
    ...     target_epsilon=8.0, target_delta=1e-5, sample_rate=0.1, steps_per_round=100, num_rounds=10
    ... )
    >>> round(sigma, 2)  # not 1.0, at which this run costs 25.2
    2.05
    """
    steps = whole_number("steps_per_round", steps_per_round, 1) * whole_number("num_rounds", num_rounds, 1)
    return calibrate_noise(
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        sample_rate=sample_rate,
        steps=steps,
        accounting=accounting,
    )


def _price_steps(
    delta: float, noise: float, rate: float, steps: int, accounting: str, sampling: str, relation: Neighbours
) -> Guarantee:
    accountant = accountant_for(accounting, neighbours=relation)
    return accountant.compose(_step_event(noise, rate, sampling), steps).epsilon(delta=delta)


def calibrate_steps(
    *,
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    sample_rate: float,
    accounting: str = "exact",
    sampling: str = "poisson",
    neighbours: Neighbours | None = None,
    most: int = 10**9,
) -> int:
    """The largest number of steps that stays within the budget; 0 when not even one does.

    >>> calibrate_steps(target_epsilon=3.0, target_delta=1e-5, noise_multiplier=1.0, sample_rate=0.01)
    2666
    """
    target = positive("target_epsilon", target_epsilon)
    delta = open_probability("target_delta", target_delta)
    noise = positive("noise_multiplier", noise_multiplier)
    rate = probability("sample_rate", sample_rate)
    most = whole_number("most", most, 1)
    relation = _relation(neighbours, sampling)

    def spend(steps: int) -> Guarantee:
        return _price_steps(delta, noise, rate, steps, accounting, sampling, relation)

    each = 1.0 if sampling == "none" else rate
    cost = each * math.sqrt(_spread(noise)) * (2 if relation is Neighbours.REPLACE_ONE else 1)
    guess = (_central_limit_mu(target, delta) / cost) ** 2 if cost > 1e-100 else float(most)
    found = most_steps(spend, target, guess, most)
    if found is None:
        raise InvalidParameter(
            "most", most, "steps still fit into the budget", "raise `most`, or train as long as you like"
        )
    return found


def _spread(noise: float) -> float:
    """e^{1/σ²} − 1, capped where it would overflow."""
    return math.expm1(min((1 / noise) * (1 / noise), 600.0))


def calibrate_rounds(
    *,
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    sample_rate: float,
    steps_per_round: int,
    accounting: str = "exact",
) -> int:
    """The largest number of whole rounds that stays within the budget."""
    per_round = whole_number("steps_per_round", steps_per_round, 1)
    steps = calibrate_steps(
        target_epsilon=target_epsilon, target_delta=target_delta, noise_multiplier=noise_multiplier,
        sample_rate=sample_rate, accounting=accounting,
    )  # fmt: skip
    return steps // per_round


def calibrate_rate(
    *,
    target_epsilon: float,
    target_delta: float,
    noise_multiplier: float,
    steps: int,
    accounting: str = "exact",
    sampling: str = "poisson",
    neighbours: Neighbours | None = None,
) -> float:
    """The largest sample rate that stays within the budget, to six digits; 1 when everybody may take part.

    >>> rate = calibrate_rate(target_epsilon=3.0, target_delta=1e-5, noise_multiplier=1.0, steps=10_000)
    >>> round(rate, 5)
    0.00531
    """
    target = positive("target_epsilon", target_epsilon)
    delta = open_probability("target_delta", target_delta)
    noise = positive("noise_multiplier", noise_multiplier)
    steps = whole_number("steps", steps, 1)
    relation = _relation(neighbours, sampling)

    if sampling == "none":
        raise InvalidParameter("sampling", sampling, "has no rate to calibrate", "choose 'poisson' or 'fixed'")

    def spend(inverse: float) -> Guarantee:
        return _price_steps(delta, noise, 1 / inverse, steps, accounting, sampling, relation)

    guess = math.sqrt(steps * _spread(noise)) / _central_limit_mu(target, delta)
    found = smallest_parameter(spend, target, min(max(guess, 1.0), 1 / _LEAST_RATE), 1.0, 1 / _LEAST_RATE)
    if found is None:
        raise QuietsumError(
            f"no sample rate down to {_LEAST_RATE:g} reaches ε = {target:g} at δ = {delta:g} in {steps} steps; "
            "add noise or take fewer steps"
        )
    return 1 / found


# ------------------------------------------------------------------------------------- searches


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
