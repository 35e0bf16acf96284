"""NVFLARE's filters: what each promises, if anything.

``PercentilePrivacy`` zeroes the smallest differences and cuts the others off; ``ExcludeVars`` leaves variables out.
Neither draws a random number, so neither promises an ε.

``SVTPrivacy`` draws three: a threshold, a comparison for each parameter, and Laplace noise on each of the c parameters
that are sent, of scale 2γ/ε₃ (``noise_var`` is ε₃). Its ``epsilon`` is the threshold's. Each parameter that is sent
costs by itself, and they add up. A lower bound needs the signs alone: take an update of +γ everywhere and one of −γ.
Both are selected alike, and each parameter that is sent then answers its sign truthfully with probability
1 − e^{−ε₃/2}/2, by its own coin: c randomized responses. No upper bound is stated here.
"""

from __future__ import annotations

import math

from quietsum.audit.claims.registry import reads
from quietsum.audit.claims.steps import claim_line
from quietsum.audit.claims.values import ClaimLine, Remark, Stated, assumption, mistake
from quietsum.keys import COUNT, POSITIVE, SHARE, Bound, choices, key, table
from quietsum.privacy import Neighbours, Observer, PrivacyUnit, RandomizedResponse, Repeated

__all__ = ["NvflareSettings"]

_PURE_DELTA = 1e-5
"""The filters state no δ: theirs is 0, and what holds at 0 holds at any."""


@table
class NvflareSettings:
    """The arguments of one filter, in NVFLARE's words."""

    filter: str = key("Which filter it is.", bound=choices("SVTPrivacy", "PercentilePrivacy", "ExcludeVars"))
    fraction: float = key("SVTPrivacy: the share of the parameters that is sent.", default=0.1, bound=SHARE)
    epsilon: float = key("SVTPrivacy: what its threshold costs.", default=0.1, bound=POSITIVE)
    noise_var: float = key("SVTPrivacy: what each parameter that is sent costs.", default=0.1, bound=POSITIVE)
    gamma: float | None = key("What differences are cut off at; ε does not hang on it.", default=None, bound=POSITIVE)
    tau: float | None = key("SVTPrivacy: the threshold; ε does not hang on it.", default=None)
    percentile: float | None = key("PercentilePrivacy: what is zeroed.", default=None, bound=Bound(least=0, most=100))
    exclude_vars: tuple[str, ...] = key("ExcludeVars: what is left out.", default=(), bound=Bound(single=True))
    parameters: int | None = key("SVTPrivacy: how many parameters the model has.", default=None, bound=COUNT)
    rounds: int = key("How many rounds a client takes part in.", default=1, bound=COUNT)


@reads("nvflare", "NVFLARE's privacy filters", NvflareSettings)
def read_nvflare(settings: NvflareSettings, stated: Stated) -> list[ClaimLine]:
    """What one client's update gives away to the server behind the filter."""
    if settings.filter != "SVTPrivacy":
        what = {
            "PercentilePrivacy": "PercentilePrivacy zeroes the smallest differences and cuts off the largest",
            "ExcludeVars": "ExcludeVars leaves variables out",
        }[settings.filter]
        remark = mistake(
            "no-noise",
            f"{what}: no noise is added, so what is sent is a function of the data and no ε is promised",
            "clip the update's norm and add noise in proportion, and account it",
            always=True,
        )
        return [_line(stated, settings, least=None, epsilon=None, remarks=[remark])]
    count = math.ceil((settings.parameters or 1) * settings.fraction)
    answer = RandomizedResponse(keep_probability=1 - math.exp(-settings.noise_var / 2) / 2)
    remarks = [
        mistake(
            "per-parameter",
            f"ε = {settings.epsilon:g} is what the threshold costs; each of {count:,} parameters that are "
            f"sent costs up to ε₃ = {settings.noise_var:g} besides, and they add up",
            "count every noisy answer: clip the norm of the whole update, add Gaussian noise, account it",
        )
    ]
    if settings.parameters is None:
        remarks = [
            assumption(
                "parameters", "how many parameters are sent is not stated, and each of them costs", "state parameters"
            )
        ]
    least = Repeated(times=count * settings.rounds, event=answer)
    return [_line(stated, settings, least=least, epsilon=settings.epsilon, remarks=remarks)]


def _line(
    stated: Stated, settings: NvflareSettings, *, least: Repeated | None, epsilon: float | None, remarks: list[Remark]
) -> ClaimLine:
    return claim_line(
        stated,
        None,
        least=least,
        protects=PrivacyUnit.CLIENT,
        neighbours=stated.neighbours or Neighbours.REPLACE_ONE,
        delta=_PURE_DELTA,
        epsilon=epsilon,
        observer=Observer.SERVER,
        remarks=remarks,
    )
