"""From what a person types to events: mechanism, sampling, relation."""

from __future__ import annotations

import math
from collections.abc import Iterable

from quietsum import privacy
from quietsum.cli.shared.options import Mechanism, Sampling
from quietsum.errors import InvalidParameter
from quietsum.privacy import Neighbours
from quietsum.validate import positive, probability, whole_number

__all__ = ["MOST_STEPS", "charge_of", "check_group", "choose_neighbours", "mechanism_event"]

MOST_STEPS = 10**12
"""More steps than any training takes; beyond it a number is a typing error."""

_MOST_RECORDS = 1000
_LEAST_NOISE, _MOST_NOISE = 1e-5, 1e9

_RATE = "pass batch_size / dataset_size, or --sampling none when every record is in every step"


def mechanism_event(
    mechanism: Mechanism,
    *,
    noise_multiplier: float | None = None,
    keep_probability: float | None = None,
    step_epsilon: float | None = None,
) -> privacy.PrivacyEvent:
    """One use of ``mechanism``; the number it needs must be there, and no other."""
    needed = {Mechanism.RANDOMIZED_RESPONSE: "keep_probability", Mechanism.PURE: "step_epsilon"}.get(
        mechanism, "noise_multiplier"
    )
    given = {"noise_multiplier": noise_multiplier, "keep_probability": keep_probability, "step_epsilon": step_epsilon}
    for name, value in given.items():
        if value is not None and name != needed:
            raise InvalidParameter(name, value, f"means nothing to {mechanism}", f"it needs {needed} only")
    value = given[needed]
    if value is None:
        raise InvalidParameter(needed, None, "is missing", f"{mechanism} needs it")
    if needed == "noise_multiplier" and 0 < value < _LEAST_NOISE:
        raise InvalidParameter(needed, value, "hides nothing, ε would be infinite", "calibrate it: quietsum calibrate")
    if needed == "noise_multiplier" and _MOST_NOISE < value < math.inf:
        raise InvalidParameter(
            needed, value, f"is more than {_MOST_NOISE:.0e}", "check it; nothing but noise would be left"
        )
    match mechanism:
        case Mechanism.GAUSSIAN:
            return privacy.Gaussian(noise_multiplier=value)
        case Mechanism.LAPLACE:
            return privacy.Laplace(noise_multiplier=value)
        case Mechanism.DISCRETE_LAPLACE:
            return privacy.DiscreteLaplace(scale=positive("noise_multiplier", value))
        case Mechanism.DISCRETE_GAUSSIAN:
            return privacy.DiscreteGaussian(sigma=positive("noise_multiplier", value))
        case Mechanism.SKELLAM:
            return privacy.Skellam(
                variance=positive("noise_multiplier", value) ** 2, l1_sensitivity=1, l2_sensitivity=1
            )
        case Mechanism.RANDOMIZED_RESPONSE:
            return privacy.RandomizedResponse(keep_probability=value)
        case Mechanism.PURE:
            return privacy.PureDP(epsilon=value)


def charge_of(
    event: privacy.PrivacyEvent, sampling: Sampling, sample_rate: float | None, steps: int | None, least_steps: int = 1
) -> tuple[privacy.PrivacyEvent, int]:
    """(what happens at each step, how often). For shuffled batches it is one epoch, and how many."""
    if steps is None:
        raise InvalidParameter("steps", None, "is missing", "pass the number of noisy steps in the whole run")
    steps = whole_number("steps", steps, least_steps)
    if steps > MOST_STEPS:
        raise InvalidParameter("steps", steps, f"is more than {MOST_STEPS:.0e}", "check it; no training takes so many")
    if sampling is Sampling.NONE:
        if sample_rate is not None and sample_rate != 1:
            raise InvalidParameter(
                "sample_rate", sample_rate, "contradicts sampling none", "leave it out, or choose poisson or fixed"
            )
        return event, steps
    if sample_rate is None:
        raise InvalidParameter("sample_rate", None, "is missing", _RATE)
    rate = probability("sample_rate", sample_rate, _RATE)
    if sampling is Sampling.POISSON:
        return privacy.PoissonSampled(rate=rate, event=event), steps
    if sampling is Sampling.FIXED:
        return privacy.FixedSizeSampled(rate=rate, event=event), steps
    batches = math.ceil(1 / rate - 1e-9) if rate * MOST_STEPS >= 1 else MOST_STEPS
    return privacy.Shuffled(batches=batches, event=event), math.ceil(steps / batches)


def check_group(value: int) -> int:
    """``--group``: up to how many records belong to one person."""
    size = whole_number("group", value, 1)
    if size > _MOST_RECORDS:
        raise InvalidParameter(
            "group", value, f"is more than {_MOST_RECORDS}", "protect the whole client instead: add noise to its update"
        )
    return size


def choose_neighbours(stated: Neighbours | None, samplings: Iterable[Sampling]) -> Neighbours:
    """The stated relation, or the one that the sampling implies: its size is public where batches have fixed sizes."""
    if stated is not None:
        return stated
    used = set(samplings)
    if Sampling.FIXED in used:
        return Neighbours.REPLACE_ONE
    return Neighbours.ZERO_OUT if Sampling.SHUFFLED in used else Neighbours.ADD_REMOVE
