"""TensorFlow Privacy: the arguments of its optimizers and of ``compute_dp_sgd_privacy_statement``.

Read in its documentation and tutorials: batches come from ``model.fit`` or an input pipeline that shuffles, and the
figure supposes Poisson coins; its own pages say so. ``num_microbatches`` below the batch size clips means of records,
which doubles the sensitivity (arXiv 2303.00654, section 5.6).
"""

from __future__ import annotations

import dataclasses

from quietsum.audit.claims.dp_sgd import ClaimedTraining, price_training, sampling_rate_of
from quietsum.audit.claims.registry import reads
from quietsum.audit.claims.steps import Draw
from quietsum.audit.claims.values import NOISE, ClaimLine, Stated
from quietsum.errors import InvalidParameter
from quietsum.keys import COUNT, OPEN_FRACTION, POSITIVE, key, table
from quietsum.privacy import PrivacyUnit

__all__ = ["TfPrivacySettings"]


@table
class TfPrivacySettings:
    """The arguments of TensorFlow Privacy, in its words."""

    number_of_examples: int = key("n, or number_of_examples.", bound=COUNT)
    batch_size: int = key("Records in a batch.", bound=COUNT)
    num_epochs: float = key("Epochs of the training.", bound=POSITIVE)
    noise_multiplier: float = key("As given to the optimizer.", bound=NOISE)
    delta: float | None = key("As given to the statement.", default=None, bound=OPEN_FRACTION)
    l2_norm_clip: float | None = key("As given to the optimizer; ε does not hang on it.", default=None, bound=POSITIVE)
    num_microbatches: int | None = key(
        "As given to the optimizer; if omitted, one a record.", default=None, bound=COUNT
    )
    max_examples_per_user: int | None = key("As given to the statement.", default=None, bound=COUNT)
    sampling: Draw = key("How batches are really made; model.fit shuffles.", default=Draw.SHUFFLED)


@reads("tensorflow-privacy", "TensorFlow Privacy's optimizers and statement", TfPrivacySettings)
def read_tf_privacy(settings: TfPrivacySettings, stated: Stated) -> list[ClaimLine]:
    """What the optimizer does with these arguments."""
    microbatches = settings.num_microbatches or settings.batch_size
    if settings.batch_size % microbatches:
        raise InvalidParameter(
            "num_microbatches", microbatches, f"does not divide batch_size = {settings.batch_size}", "choose a divisor"
        )
    size = settings.batch_size // microbatches
    clipping = "per-record" if size == 1 else "per-batch" if microbatches == 1 else "per-microbatch"
    if stated.unit is PrivacyUnit.PERSON and stated.records_per_unit is None and settings.max_examples_per_user:
        stated = dataclasses.replace(stated, records_per_unit=settings.max_examples_per_user)
    training = ClaimedTraining(
        noise_multiplier=settings.noise_multiplier,
        draw=settings.sampling,
        epochs=settings.num_epochs,
        rate=sampling_rate_of(None, settings.batch_size, settings.number_of_examples, settings.sampling),
        clipping=clipping,
        microbatch=size,
    )
    return price_training(training, stated, delta=settings.delta)
