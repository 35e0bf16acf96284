"""Noisy gradient descent in general: the words of the field, and the rows of a paper's table.

What other systems call by other names ends here: :func:`price_training` turns noise, clip, draw and length into events
and names what is wrong with them. Its rules about the clip:

* **per record**: one record moves the sum by at most C. The noise multiplier is what it says.
* **per microbatch** of m records: the mean of m gradients is clipped, and one record can turn it from +C to −C. The
  noise counts half.
* **per batch**: the whole step's gradient is clipped, and one record can turn it round: the noise counts half as well,
  and where it was divided by the batch size it counts that much less.
* **adaptive**: how many records were clipped leaves with the sum. Both are one release: 1/σ² = 1/σ_sum² + 1/σ_count².
* **none**: nothing bounds what a record moves; no noise suffices.
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

from quietsum.audit.claims.registry import reads
from quietsum.audit.claims.steps import (
    Draw,
    claim_line,
    count_steps,
    draw_event,
    gaussian_step,
    relation_of,
    remark_draw,
)
from quietsum.audit.claims.values import NOISE, ClaimLine, Remark, Stated, assumption, mistake, note
from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, NON_NEGATIVE, OPEN_FRACTION, POSITIVE, SHARE, choices, key, table
from quietsum.privacy import (
    Gaussian,
    Laplace,
    Neighbours,
    PoissonSampled,
    PrivacyEvent,
    PrivacyUnit,
    Repeated,
    shuffled_epsilon_lower,
)

__all__ = ["ClaimedTraining", "DpSgdSettings", "price_training"]

CLIPPINGS = ("per-record", "per-microbatch", "per-batch", "adaptive", "none")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimedTraining:
    """A noisy training as it really runs, in any system; ``remarks`` are what its reader has to say besides."""

    noise_multiplier: float
    draw: Draw = Draw.POISSON
    accounted: Draw = Draw.POISSON
    rate: float | None = None
    steps: int | None = None
    epochs: float | None = None
    batches: int | None = None
    clipping: str = "per-record"
    microbatch: int = 1
    batch: float | None = None
    divided: bool = False
    count_stddev: float | None = None
    laplace_dimension: int | None = None
    protects: PrivacyUnit = PrivacyUnit.RECORD
    rounds: int = 1
    cohort_rate: float | None = None
    remarks: tuple[Remark, ...] = ()


def price_training(
    training: ClaimedTraining, stated: Stated, *, delta: float | None, epsilon: float | None = None, label: str = ""
) -> list[ClaimLine]:
    """The lines of a training: one, or one of a round and one of all rounds where the stated ε is about a round."""
    remarks = list(training.remarks)
    relation = relation_of(training.draw, stated)
    factor, extra = _clip_factor(training)
    if factor < 1 and relation is Neighbours.REPLACE_ONE and training.draw in (Draw.EVERYONE, Draw.IN_ORDER):
        factor *= 2  # what is clipped goes from +C to −C already, and a replacement moves it no farther
    step, more = _step(training, factor, relation)
    remarks += [*extra, *more]
    if step is None:
        return [_line(training, stated, None, relation, delta, epsilon, label, remarks)]
    steps, batches = count_steps(
        steps=training.steps, epochs=training.epochs, rate=training.rate, batches=training.batches
    )
    remarks += remark_draw(training.draw, training.accounted, batches)
    if training.cohort_rate is not None and training.cohort_rate < 1 and training.protects is PrivacyUnit.RECORD:
        remarks.append(
            mistake(
                "cohort",
                f"the ε of records was amplified by the draw of sites (rate {training.cohort_rate:g}): the steps of a "
                "round share that one draw, so they are not sampled anew, and the server knows who takes part",
                "account a record by the draws inside its own site alone",
            )
        )
    event = draw_event(step, training.draw, rate=training.rate, steps=steps, batches=batches)
    at = stated.delta if stated.delta is not None else delta
    whole = Repeated(times=training.rounds, event=event)
    if training.rounds == 1 or stated.covers == "run":
        floor = _floor(training, factor, relation, steps, batches, at, training.rounds)
        return [_line(training, stated, whole, relation, delta, epsilon, label, remarks, *floor)]
    unstated = dataclasses.replace(stated, epsilon=None)
    spread = note("one-round", f"the stated ε is that of one round, and there are {training.rounds}", "state the run's")
    floors = [_floor(training, factor, relation, steps, batches, at, rounds) for rounds in (1, training.rounds)]
    first, every = f"{label} one round".strip(), f"{label} all {training.rounds} rounds".strip()
    return [
        _line(training, stated, event, relation, delta, epsilon, first, [*remarks, spread], *floors[0]),
        _line(training, unstated, whole, relation, delta, None, every, [], *floors[1]),
    ]


def _floor(
    training: ClaimedTraining,
    factor: float,
    relation: Neighbours,
    steps: int,
    batches: int,
    delta: float | None,
    rounds: int,
) -> tuple[PrivacyEvent | None, float | None]:
    """(least, floor) where the event that stands for a step allows more than it does, so that its lower bound is none.

    Laplace noise is priced by an L1 norm that no single parameter has; one parameter that moves by C is the least. A
    clip of batches has a record turn its batch from −C to +C, while null leaves it at −C: of batches of fixed size, and
    of replacements, the pair of a single coin counts; of shuffled batches an attack is computed.
    """
    replaced = relation is Neighbours.REPLACE_ONE
    if training.laplace_dimension is not None:
        single = Laplace(noise_multiplier=training.noise_multiplier * factor)
        drawn = draw_event(single, training.draw, rate=training.rate, steps=steps, batches=batches)
        return Repeated(times=rounds, event=drawn), None
    if factor == 1 or training.draw in (Draw.EVERYONE, Draw.IN_ORDER):
        return None, None
    if training.draw is Draw.SHUFFLED:
        if delta is None or batches == 1:
            return None, None
        epochs = max(1, math.ceil(steps / batches)) * rounds
        noise = 2 * training.noise_multiplier * factor
        return None, shuffled_epsilon_lower(
            noise_multiplier=noise, batches=batches, epochs=epochs, delta=delta, batch_clip=True
        )
    if training.draw is Draw.POISSON and not replaced:
        return None, None
    noise = training.noise_multiplier * factor * (2 if replaced else 1)
    coin = PoissonSampled(rate=training.rate or 1.0, event=Gaussian(noise_multiplier=noise))
    return Repeated(times=steps * rounds, event=coin), None


def _line(
    training: ClaimedTraining,
    stated: Stated,
    event: PrivacyEvent | None,
    relation: Neighbours,
    delta: float | None,
    epsilon: float | None,
    label: str,
    remarks: list[Remark],
    least: PrivacyEvent | None = None,
    floor: float | None = None,
) -> ClaimLine:
    return claim_line(
        stated,
        event,
        protects=training.protects,
        neighbours=relation,
        delta=delta,
        epsilon=epsilon,
        label=label,
        remarks=remarks,
        least=least,
        floor=floor,
    )


def _clip_factor(training: ClaimedTraining) -> tuple[float, list[Remark]]:
    """What the noise multiplier is to be multiplied by, for what the clip really bounds."""
    each = "clip the gradient of each record, and add the noise to their sum"
    match training.clipping:
        case "per-microbatch" if training.microbatch > 1:
            text = (
                f"the mean gradient of {training.microbatch} records is clipped: one record can turn it from +C to −C, "
                "so the noise is half of what it is called"
            )
            found = [mistake("microbatch", text, "clip each record alone, or account half the noise multiplier")]
            if training.draw in (Draw.POISSON, Draw.FIXED):
                found.append(
                    assumption(
                        "grouping",
                        "the upper bound supposes that a record which is not drawn moves no other one into "
                        "another microbatch",
                        "clip each record alone",
                    )
                )
            return 0.5, found
        case "per-batch":
            by = training.batch if training.divided and training.batch else 1.0
            shared = f", and it was divided by the batch size of {by:g} besides" if by > 1 else ""
            text = (
                "the gradient of the whole batch is clipped: one record can turn it from +C to −C, however small its "
                f"part, so the noise is half of what it is called{shared}"
            )
            return 0.5 / by, [mistake("batch-clip", text, each)]
        case "none":
            text = "nothing is clipped: one record can move the sum as far as it likes, and no noise hides that"
            return 0.0, [mistake("no-clip", text, each, always=True)]
        case _:
            return 1.0, []


def _step(training: ClaimedTraining, factor: float, relation: Neighbours) -> tuple[PrivacyEvent | None, list[Remark]]:
    """The event of one step on its batch, without its draw."""
    noise = training.noise_multiplier * factor
    if noise == 0:
        return None, []
    if training.laplace_dimension is not None:
        root = math.sqrt(training.laplace_dimension)
        text = (
            "Laplace noise hides an L1 norm, and the clip bounds an L2 norm: over "
            f"{training.laplace_dimension:,} parameters one record moves the sum by up to {root:.4g} C in L1"
        )
        return Laplace(noise_multiplier=noise / root), [
            mistake("laplace-l2", text, "add Gaussian noise, or clip in L1")
        ]
    if training.clipping != "adaptive":
        return gaussian_step(noise), []
    if not training.count_stddev:
        text = "the clip norm follows an exact count of clipped records, which leaves without noise"
        return None, [mistake("count-noise", text, "add noise to the count and count it", always=True)]
    # Replace-one moves the sum by 2C and the count by 1; otherwise the sum moves by C and the count by 1.
    count = training.count_stddev * (2 if relation is Neighbours.REPLACE_ONE else 1)
    joint = 1 / math.hypot(1 / noise, 1 / count)
    text = (
        "the clip norm follows a noisy count of clipped records, which leaves with the sum: together their noise "
        f"counts as {joint:.4g}, not {noise:.4g}"
    )
    return Gaussian(noise_multiplier=joint), [mistake("count-noise", text, "account both as one release")]


# ------------------------------------------------------------------------------------------------ settings


@table
class DpSgdSettings:
    """A noisy training in the words of the field."""

    noise_multiplier: float | None = key("Noise over the clip norm.", default=None, bound=NOISE)
    noise_stddev: float | None = key("Or the standard deviation of the noise on the sum.", default=None, bound=NOISE)
    clip_norm: float | None = key("What a contribution is clipped to.", default=None, bound=POSITIVE)
    sample_rate: float | None = key("The chance that a record is in a step.", default=None, bound=SHARE)
    batch_size: int | None = key("Or the size of a batch, with records.", default=None, bound=COUNT)
    records: int | None = key("How many records there are.", default=None, bound=COUNT)
    steps: int | None = key("Noisy steps in all, or in one round.", default=None, bound=COUNT)
    epochs: float | None = key("Or epochs in all, or in one round.", default=None, bound=POSITIVE)
    rounds: int = key("How many rounds of so many steps.", default=1, bound=COUNT)
    draw: Draw = key("How batches are really made.", default=Draw.POISSON)
    accounted_as: Draw = key("How the stated ε supposes that they are made.", default=Draw.POISSON)
    clipping: str = key("What is clipped.", default="per-record", bound=choices(*CLIPPINGS))
    microbatch_size: int = key("Records in a microbatch.", default=1, bound=COUNT)
    noise_divided: bool = key(
        "Whether the noise was divided by the batch size, though the clip was not.", default=False
    )
    count_stddev: float | None = key("Noise on the count of clipped records.", default=None, bound=NOISE)
    noise: str = key("The law of the noise.", default="gaussian", bound=choices("gaussian", "laplace"))
    dimension: int | None = key("How many parameters there are; for Laplace noise.", default=None, bound=COUNT)
    cohort_rate: float | None = key(
        "The share of sites in a round, if the ε was amplified by it.", default=None, bound=SHARE
    )
    divided_by: str = key(
        "What the sum is divided by: a public number, or how many were drawn.",
        default="public",
        bound=choices("public", "drawn"),
    )
    protects: PrivacyUnit = key("Whose contribution is clipped: a record's, or a client's.", default=PrivacyUnit.RECORD)
    delta: float | None = key("The δ that was accounted.", default=None, bound=OPEN_FRACTION)


@reads("dp-sgd", "noisy gradient descent, in the words of the field", DpSgdSettings)
def read_dp_sgd(settings: DpSgdSettings, stated: Stated) -> list[ClaimLine]:
    """A training whose parts are all stated."""
    return price_training(_training_of(settings), stated, delta=settings.delta)


def _training_of(settings: DpSgdSettings) -> ClaimedTraining:
    noise, remarks = settings.noise_multiplier, []
    if settings.noise_stddev is not None:
        if settings.clip_norm is None:
            raise InvalidParameter(
                "clip_norm", None, "is missing", "noise is worth nothing without what it is measured by"
            )
        real = settings.noise_stddev / settings.clip_norm
        if noise is not None and real < noise * (1 - 1e-9):
            remarks.append(
                mistake(
                    "sensitivity",
                    f"the noise is called {noise:g} times the sensitivity, and is {real:.4g} times the clip norm "
                    f"{settings.clip_norm:g}, which is the sensitivity",
                    "scale the noise by the clip norm",
                )
            )
        noise = real
    if noise is None:
        raise InvalidParameter("noise_multiplier", None, "is missing", "state it, or noise_stddev and clip_norm")
    laplace = settings.noise == "laplace"
    if laplace and settings.dimension is None:
        raise InvalidParameter("dimension", None, "is missing", "Laplace noise is measured in L1: state the parameters")
    if settings.divided_by == "drawn":
        remarks.append(
            assumption(
                "divisor",
                "the sum is divided by how many records were drawn, which is private where coins draw them and "
                "records come and go",
                "divide by the expected batch size, a public number",
            )
        )
    return ClaimedTraining(
        noise_multiplier=noise,
        draw=settings.draw,
        accounted=settings.accounted_as,
        rate=sampling_rate_of(settings.sample_rate, settings.batch_size, settings.records, settings.draw),
        steps=settings.steps,
        epochs=settings.epochs,
        rounds=settings.rounds,
        clipping=settings.clipping,
        microbatch=settings.microbatch_size,
        batch=settings.batch_size,
        divided=settings.noise_divided,
        count_stddev=settings.count_stddev,
        laplace_dimension=settings.dimension if laplace else None,
        protects=settings.protects,
        cohort_rate=settings.cohort_rate,
        remarks=tuple(remarks),
    )


def sampling_rate_of(rate: float | None, batch: int | None, records: int | None, draw: Draw) -> float | None:
    """The sampling rate from what is stated; None where nothing is sampled and nothing stated."""
    if rate is not None and batch is not None:
        raise InvalidParameter("sample_rate", rate, "stands beside batch_size", "state one of them")
    if rate is not None:
        return rate
    if batch is not None and records is not None:
        if batch > records:
            raise InvalidParameter("batch_size", batch, f"is more than all {records} records", "check both")
        return batch / records
    if draw is Draw.EVERYONE:
        return None
    raise InvalidParameter("sample_rate", None, "is missing", "state it, or batch_size and the number of records")


# ------------------------------------------------------------------------------------------- a table of a paper


@table
class TableRow:
    """One row of a table: a training, and the ε that stands beside it."""

    label: str = key("What the row is called.", default="")
    noise_multiplier: float = key("Noise over the clip norm.", bound=NOISE)
    sample_rate: float = key("The chance that a record is in a step.", default=1.0, bound=SHARE)
    steps: int = key("Noisy steps in all.", bound=COUNT)
    delta: float = key("The δ of the row.", bound=OPEN_FRACTION)
    epsilon: float | None = key("The ε of the row.", default=None, bound=NON_NEGATIVE)
    draw: Draw = key("How batches are made.", default=Draw.POISSON)


@table
class TableSettings:
    """A table of a paper, or a CSV file: one row a training."""

    rows: tuple[TableRow, ...] = key("The rows of the table.")


@reads("table", "a table of a paper, one row a training", TableSettings)
def read_settings(settings: TableSettings, stated: Stated) -> list[ClaimLine]:
    """Each row as a line of its own."""
    if not settings.rows:
        raise InvalidParameter("rows", [], "holds no row", "write one row a training")
    if stated.epsilon is not None or stated.delta is not None:
        raise InvalidParameter("claim.epsilon", stated.epsilon, "stands beside rows that state theirs", "leave it out")
    lines: list[ClaimLine] = []
    for number, row in enumerate(settings.rows, start=1):
        training = ClaimedTraining(
            noise_multiplier=row.noise_multiplier, draw=row.draw, rate=row.sample_rate, steps=row.steps
        )
        lines += price_training(
            training, stated, delta=row.delta, epsilon=row.epsilon, label=row.label or f"row {number}"
        )
    return lines
