"""Flower: ``LocalDpMod`` at the client, and the strategies that add noise at the server.

Read in flwr 1.41. ``LocalDpMod(clipping_norm, sensitivity, epsilon, delta)`` clips the update to ``clipping_norm`` and
adds noise of standard deviation ``sensitivity · √(2 ln(1.25/δ)) / ε``: sensitivity is typed, not taken from the clip,
and the formula is proven for ε ≤ 1 only (Dwork and Roth 2014, theorem A.1; Balle and Wang 2018, section 2.3).

The strategies clip each update to C and add σC/n to the mean of n updates. The mean is weighted by numbers of examples
unless the inner strategy weighs all alike, so a client with most examples moves it up to n times as far as the noise
supposes. Adaptive clipping splits σ between the sum and a count of clipped clients, as if the bits were ±1/2; they are
0 and 1.
"""

from __future__ import annotations

import dataclasses
import math

from quietsum.audit.claims.registry import reads
from quietsum.audit.claims.steps import Draw, claim_line, gaussian_step, relation_of
from quietsum.audit.claims.values import NOISE, ClaimLine, Remark, Stated, assumption, mistake, note
from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, NON_NEGATIVE, OPEN_FRACTION, POSITIVE, SHARE, Bound, choices, key, table
from quietsum.privacy import FixedSizeSampled, Gaussian, Neighbours, Observer, PrivacyEvent, PrivacyUnit, Repeated

__all__ = ["FlowerLocalSettings", "FlowerStrategySettings"]


@table
class FlowerLocalSettings:
    """The arguments of LocalDpMod, in Flower's words."""

    clipping_norm: float = key("What the update is clipped to.", bound=POSITIVE)
    sensitivity: float = key("What the noise is scaled by.", bound=NON_NEGATIVE)
    epsilon: float = key("The privacy budget of one round.", bound=POSITIVE)
    delta: float = key("Its δ, as given.", bound=OPEN_FRACTION)
    rounds: int = key("How many rounds a client takes part in.", default=1, bound=COUNT)


@reads("flower-local-dp", "Flower's LocalDpMod", FlowerLocalSettings)
def read_local(settings: FlowerLocalSettings, stated: Stated) -> list[ClaimLine]:
    """What one client's update gives away to the server, in one round and in all."""
    stddev = settings.sensitivity * math.sqrt(2 * math.log(1.25 / settings.delta)) / settings.epsilon
    multiplier = stddev / settings.clipping_norm
    remarks: list[Remark] = []
    if 0 < settings.sensitivity < settings.clipping_norm:
        ratio = settings.clipping_norm / settings.sensitivity
        remarks.append(
            mistake(
                "sensitivity",
                f"an update is clipped to {settings.clipping_norm:g}, and the noise is scaled to a sensitivity of "
                f"{settings.sensitivity:g}: one client moves its update by {settings.clipping_norm:g}, so the noise is "
                f"{ratio:,.0f} times too small (standard deviation {stddev:.4g})",
                "set sensitivity to clipping_norm; to twice that where one client may be replaced by another",
            )
        )
    elif settings.epsilon > 1:
        remarks.append(
            mistake(
                "gaussian-formula",
                "σ = Δ √(2 ln(1.25/δ)) / ε is proven for ε ≤ 1 only; beyond, it may add too little",
                "calibrate by the exact Gaussian: quietsum calibrate",
            )
        )
    event, relation = gaussian_step(multiplier), relation_of(Draw.EVERYONE, stated)
    if stated.neighbours is None:
        relation = Neighbours.ZERO_OUT  # who takes part is seen; what a client sends is what is hidden
    lines = [
        _local(stated, event, relation, settings, settings.epsilon, "one round" if settings.rounds > 1 else "", remarks)
    ]
    if settings.rounds > 1 and event is not None:
        whole = Repeated(times=settings.rounds, event=event)
        lines.append(_local(stated, whole, relation, settings, None, f"all {settings.rounds} rounds", []))
    return lines


def _local(
    stated: Stated,
    event: PrivacyEvent | None,
    relation: Neighbours,
    settings: FlowerLocalSettings,
    epsilon: float | None,
    label: str,
    remarks: list[Remark],
) -> ClaimLine:
    shown = stated if epsilon is not None else dataclasses.replace(stated, epsilon=None)
    return claim_line(
        shown,
        event,
        protects=PrivacyUnit.CLIENT,
        neighbours=relation,
        delta=settings.delta,
        epsilon=epsilon,
        label=label,
        observer=Observer.SERVER,
        remarks=remarks,
    )


# ---------------------------------------------------------------------------------------------- strategies

_STRATEGIES = (
    "DifferentialPrivacyServerSideFixedClipping",
    "DifferentialPrivacyClientSideFixedClipping",
    "DifferentialPrivacyServerSideAdaptiveClipping",
    "DifferentialPrivacyClientSideAdaptiveClipping",
    "DPFedAvgFixed",
    "DPFedAvgAdaptive",
)


@table
class FlowerStrategySettings:
    """The arguments of Flower's strategies with central noise, in its words."""

    strategy: str = key("The class of the strategy.", bound=choices(*_STRATEGIES))
    noise_multiplier: float = key("As given to the strategy.", bound=NOISE)
    clipping_norm: float | None = key(
        "The clip norm, or the initial one; ε does not hang on it.", default=None, bound=POSITIVE
    )
    num_sampled_clients: int = key("As given to the strategy.", bound=COUNT)
    num_clients: int | None = key("How many clients there are; if omitted, all take part.", default=None, bound=COUNT)
    rounds: int = key("Rounds of the run.", default=1, bound=COUNT)
    clipped_count_stddev: float | None = key(
        "As given; if omitted, a twentieth of the sampled.", default=None, bound=Bound(above=0, most=1e9)
    )
    weighting: str | None = key(
        "How the inner strategy weighs updates: examples, or uniform.",
        default=None,
        bound=choices("examples", "uniform"),
    )
    largest_weight: float | None = key(
        "The largest share that one client's examples may be.", default=None, bound=SHARE
    )
    delta: float | None = key("The δ that was accounted.", default=None, bound=OPEN_FRACTION)
    cohort_seen: bool = key("Whether those who receive the models may know who took part.", default=False)


@reads("flower-central-dp", "Flower's strategies with noise at the server", FlowerStrategySettings)
def read_strategy(settings: FlowerStrategySettings, stated: Stated) -> list[ClaimLine]:
    """What the models of all rounds give away about one client."""
    cohort, everyone = settings.num_sampled_clients, settings.num_clients
    if everyone is not None and cohort > everyone:
        raise InvalidParameter("num_sampled_clients", cohort, f"is more than num_clients = {everyone}", "check both")
    rate = 1.0 if everyone is None or settings.cohort_seen else cohort / everyone
    draw = Draw.EVERYONE if rate == 1 else Draw.FIXED
    relation = relation_of(draw, stated)
    if stated.neighbours is None:
        relation = Neighbours.ZERO_OUT  # how many take part is public
    weighting = settings.weighting or ("uniform" if settings.strategy.startswith("DPFedAvg") else "examples")
    widest = 1.0 if weighting == "uniform" else cohort * (settings.largest_weight or 1.0)
    remarks: list[Remark] = []
    if weighting == "examples" and widest > 1 + 1e-9:
        remarks.append(
            assumption(
                "weights",
                f"updates are weighed by numbers of examples, which are private, and the noise supposes equal weights: "
                f"a client that holds most of them moves the mean {widest:g} times as far",
                "weigh all clients alike, or by public weights whose largest is accounted",
            )
        )
    if settings.cohort_seen and everyone is not None and cohort < everyone:
        remarks.append(note("cohort-seen", "who takes part is known, so the draw of clients amplifies nothing"))
    sum_noise, count = settings.noise_multiplier, math.inf
    if "Adaptive" in settings.strategy and sum_noise > 0:
        count = settings.clipped_count_stddev or cohort / 20
        if sum_noise >= 2 * count:
            raise InvalidParameter(
                "clipped_count_stddev",
                count,
                f"is not above noise_multiplier/2 = {sum_noise / 2:g}",
                "Flower refuses this, too: raise it, or sample more clients",
            )
        sum_noise = (sum_noise**-2 - (2 * count) ** -2) ** -0.5
        remarks.append(
            note(
                "count-noise",
                f"the noisy count of clipped clients (standard deviation {count:g}) leaves with the mean and is in "
                "these figures",
            )
        )
    return [
        claim_line(
            stated,
            _rounds(sum_noise / max(widest, 1.0), count, rate, settings.rounds, relation),
            least=_rounds(sum_noise, count, rate, settings.rounds, relation) if widest > 1 else None,
            protects=PrivacyUnit.CLIENT,
            neighbours=relation,
            delta=settings.delta,
            remarks=remarks,
        )
    ]


def _rounds(sum_noise: float, count: float, rate: float, rounds: int, relation: Neighbours) -> PrivacyEvent | None:
    """All rounds, each one release of a noisy mean and a noisy count (∞: none) of one draw."""
    if sum_noise == 0:
        return None
    moved = 2.0 if relation is Neighbours.REPLACE_ONE else 1.0  # the count moves by 1 where the sum moves by C or by 2C
    joint = 1 / math.hypot(1 / sum_noise, 1 / (moved * count))
    step: PrivacyEvent = Gaussian(noise_multiplier=joint)
    return Repeated(times=rounds, event=step if rate == 1 else FixedSizeSampled(rate=rate, event=step))
