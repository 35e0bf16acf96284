"""From "so many noisy steps on batches drawn so" to a privacy event, and what is wrong if it was accounted otherwise.

What a batch is drawn by decides more than the noise does. Accounting that assumes Poisson coins is right for coins and
for nothing else:

============  ==============================================  =====================================================
drawn          what it costs                                  how we know
============  ==============================================  =====================================================
by coins       the sampled Gaussian, exactly                  both sides, to many digits
fixed size     the worst of both directions, per step         certified bound, zero-out or replace-one
shuffled       at most one unamplified step an epoch; at      no amplification is proven; the lower side is an
               least what an attack shows                     attack (Chua et al. 2024, arXiv 2403.17673)
in order       one unamplified step an epoch, exactly         each record's batch is known
everyone       each step unamplified                          closed form
============  ==============================================  =====================================================
"""

from __future__ import annotations

import enum
import math

from quietsum.audit.claims.values import ClaimLine, Remark, Stated, assumption, mistake, note
from quietsum.errors import InvalidParameter
from quietsum.privacy import (
    FixedSizeSampled,
    Gaussian,
    Group,
    Neighbours,
    Observer,
    PoissonSampled,
    PrivacyEvent,
    PrivacyUnit,
    Repeated,
    Shuffled,
)

__all__ = ["Draw", "claim_line", "count_steps", "draw_event", "relation_of"]


class Draw(enum.StrEnum):
    """How the batches of a training are made."""

    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    IN_ORDER = "in-order"
    EVERYONE = "everyone"


_FREE = {
    Draw.POISSON: Neighbours.ADD_REMOVE,
    Draw.EVERYONE: Neighbours.ADD_REMOVE,
    Draw.FIXED: Neighbours.ZERO_OUT,
    Draw.SHUFFLED: Neighbours.ZERO_OUT,
    Draw.IN_ORDER: Neighbours.ZERO_OUT,
}
"""The relation that costs least among those under which the draw has a price."""


def relation_of(draw: Draw, stated: Stated) -> Neighbours:
    """The stated relation, else the one under which ``draw`` costs least."""
    if stated.neighbours is Neighbours.ADD_REMOVE and draw in (Draw.FIXED, Draw.SHUFFLED, Draw.IN_ORDER):
        return Neighbours.ZERO_OUT  # one record more moves every batch behind it; the nearest relation with a price
    return stated.neighbours or _FREE[draw]


def count_steps(
    *, steps: int | None, epochs: float | None, rate: float | None, batches: int | None = None
) -> tuple[int, int]:
    """(noisy steps, batches an epoch), from what is stated; exactly one of ``steps`` and ``epochs``."""
    if (steps is None) == (epochs is None):
        both = steps is not None
        raise InvalidParameter(
            "steps",
            steps,
            "stands beside epochs" if both else "is missing, and so are epochs",
            "state one of steps and epochs",
        )
    if batches is None:
        batches = 1 if not rate else max(1, math.ceil(1 / rate - 1e-9))
    if steps is not None:
        return steps, batches
    assert epochs is not None
    return max(1, math.ceil(epochs * batches - 1e-9)), batches


def draw_event(step: PrivacyEvent, draw: Draw, *, rate: float | None, steps: int, batches: int) -> PrivacyEvent:
    """The event of a whole training whose steps each are ``step`` on a batch that is made by ``draw``."""
    epochs = max(1, math.ceil(steps / batches))
    match draw:
        case Draw.EVERYONE:
            return Repeated(times=steps, event=step)
        case Draw.IN_ORDER:
            return Repeated(times=epochs, event=step)
        case Draw.SHUFFLED:
            return Repeated(times=epochs, event=Shuffled(batches=batches, event=step))
    if rate is None:
        raise InvalidParameter(
            "sample_rate", None, "is missing", "state it, or the batch size and the number of records"
        )
    sampled = FixedSizeSampled(rate=rate, event=step) if draw is Draw.FIXED else PoissonSampled(rate=rate, event=step)
    return Repeated(times=steps, event=sampled)


def remark_draw(draw: Draw, accounted: Draw, batches: int) -> list[Remark]:
    """What is to be said if batches are made by ``draw`` and were accounted as ``accounted``."""
    if draw is accounted or accounted is not Draw.POISSON:
        return []
    coins = (
        "draw each record by its own coin of that probability (a Poisson sampler), or state the figure of these batches"
    )
    if draw is Draw.SHUFFLED and batches > 1:
        text = (
            "the batches are a shuffled data set cut into pieces, and the ε is that of independent coins: no "
            "amplification by sampling is proven for shuffled batches, and an attack is known to tell more"
        )
        return [mistake("shuffled-as-poisson", text, coins)]
    if draw is Draw.FIXED:
        text = (
            "the batches have a fixed size, and the ε is that of independent coins: the records of a batch then depend "
            "on each other, and two neighbouring data sets differ by a replacement, not by one record more"
        )
        return [mistake("fixed-as-poisson", text, coins)]
    if draw in (Draw.IN_ORDER, Draw.EVERYONE):
        text = "sampling is claimed and not done: which batch a record is in is known, so nothing is amplified"
        return [mistake("no-sampling", text, coins)]
    return []


def gaussian_step(noise_multiplier: float) -> PrivacyEvent | None:
    """One step with that noise; None without noise."""
    return Gaussian(noise_multiplier=noise_multiplier) if noise_multiplier > 0 else None


# ------------------------------------------------------------------------------------------- what all claims share

_COARSER = {PrivacyUnit.RECORD: 0, PrivacyUnit.PERSON: 1, PrivacyUnit.CLIENT: 2}
NO_NOISE = mistake(
    "no-noise",
    "no noise is added, so no ε is promised: what is clipped, cut or left out still depends on the data",
    "add noise in proportion to the clip norm",
)


def claim_line(
    stated: Stated,
    event: PrivacyEvent | None,
    *,
    protects: PrivacyUnit,
    neighbours: Neighbours,
    delta: float | None,
    epsilon: float | None = None,
    label: str = "",
    observer: Observer = Observer.RECIPIENTS,
    least: PrivacyEvent | None = None,
    floor: float | None = None,
    remarks: list[Remark] | None = None,
) -> ClaimLine:
    """One promise of a claim, with all that does not hang on the system: unit, δ, trials, sums, seeds.

    ``epsilon`` and ``delta`` are the system's own; what ``stated`` says comes first.
    """
    found = list(remarks or [])
    at = stated.delta if stated.delta is not None else delta
    if at is None:
        raise InvalidParameter("claim.delta", None, "is missing", "an ε of Gaussian noise means nothing without its δ")
    if stated.neighbours is not None and stated.neighbours is not neighbours:
        found.append(
            assumption(
                "relation",
                f"it is claimed for {stated.neighbours.value} neighbours, under which one record moves every batch "
                f"behind it and nothing is proven; the figures are those for {neighbours.value}",
                f"state it for {neighbours.value} neighbours",
            )
        )
    unit, size = stated.unit or protects, 1
    if _COARSER[unit] < _COARSER[protects]:
        found.append(_remark_finer(unit, protects, neighbours))
        neighbours = Neighbours.REPLACE_ONE
    elif unit is not protects and event is not None:
        found.append(_remark_coarser(unit, protects, stated.records_per_unit))
        event, least, size = (event, least, stated.records_per_unit) if stated.records_per_unit else (None, event, 1)
    if event is None and least is None and not found:
        found.append(NO_NOISE)
    if size > 1 and event is not None:
        event, least = Group(size=size, event=event), least and Group(size=size, event=least)
    if stated.trials > 1 and event is not None:
        found.append(
            mistake(
                "tuning",
                f"{stated.trials} trainings on the same data were tried and one was kept: the ε is that of one, "
                "and which one is kept tells of the data, too",
                "charge every training, or choose with a private selection (quietsum tradeoff prices one)",
            )
        )
        event, least = Repeated(times=stated.trials, event=event), least or event
    return ClaimLine(
        label=label,
        epsilon=stated.epsilon if stated.epsilon is not None else epsilon,
        delta=at,
        unit=unit,
        neighbours=neighbours,
        observer=observer,
        event=event,
        least=least,
        floor=floor,
        remarks=(*found, *_remark_statement(stated, at, unit)),
    )


def _remark_finer(unit: PrivacyUnit, protects: PrivacyUnit, neighbours: Neighbours) -> Remark:
    """One record of a client, where the noise hides whether the client is there: the change may be twice as large."""
    text = (
        f"the noise protects one {protects} who is there or not, and it is claimed for one {unit}: one {unit} may turn "
        f"the whole contribution of its {protects} round, which moves the sum twice as far"
    )
    instead = f"state it per {protects}, or price one {unit} as a {protects} that is replaced"
    return (note if neighbours is Neighbours.REPLACE_ONE else mistake)("unit", text, instead)


def _remark_coarser(unit: PrivacyUnit, protects: PrivacyUnit, size: int | None) -> Remark:
    """A person or client, where the noise hides one record."""
    text = f"the ε is that of one {protects}, and it is claimed for one {unit}, who may hold more than one"
    instead = f"state it per {protects}, or bound the records of one {unit} and price them all (records_per_unit)"
    if size is None:
        return assumption("unit", f"{text}; how many is not stated", instead)
    return mistake("unit", f"{text}: {size} here", instead)


def _remark_statement(stated: Stated, delta: float, unit: PrivacyUnit) -> list[Remark]:
    """What is wrong with a statement, for any mechanism."""
    found = []
    if stated.units is not None and delta * stated.units >= 1:
        found.append(
            mistake(
                "delta",
                f"δ = {delta:g} is not below 1/n = {1 / stated.units:.3g}: publishing one whole "
                f"{unit} at random would keep this promise",
                f"state ε at δ ≤ 1/(10 n) = {0.1 / stated.units:.2g}",
                always=True,
            )
        )
    if stated.sum_of == "units":
        found.append(
            mistake(
                "summed-units",
                "an ε per record and an ε per client were added: they are about different neighbours, and "
                "their sum is no guarantee about anything",
                "state both, each with its unit",
                always=True,
            )
        )
    if stated.sum_of == "rounds":
        found.append(
            note(
                "summed-rounds",
                "the ε of rounds were added: that is true only if their δ are added, too, and larger than "
                "what the rounds cost together",
                "compose the events of all rounds in one accountant",
            )
        )
    if stated.sum_of == "parties":
        found.append(
            note(
                "summed-parties",
                "the ε of parties with different records were added: a record is at one party, so the "
                "worst party's ε is the figure",
                "state the largest",
            )
        )
    if stated.seeded:
        found.append(
            mistake(
                "seeded",
                "noise and draws come from a seed that is written down: a reader of it can take the noise off",
                "draw from the operating system's generator and keep no seed",
                always=True,
            )
        )
    return found
