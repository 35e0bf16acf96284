"""Broken sums: trainers whose noise and draws are right, and whose sum one record moves by more than they claim.

Each entry of :data:`SUMS` names the tests that must accuse it and gives the sum of a batch for a
:class:`learning.mutants.honest.Trainer`. Many behave until a batch is large, has an odd size or ends in a part
of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np

from learning.mutants.honest import Trainer, clip, clip_to, gradients, lengths
from quietsum.selfcheck import Batch, Floats

__all__ = ["SUMS", "kept_momentum", "previous_kept"]

Total: TypeAlias = Callable[[Trainer, Batch], Floats]
Rows: TypeAlias = Callable[[Trainer, Floats], Floats]


def of_rows(total: Rows) -> Total:
    """The sum as a function of per-example gradients, those of broken rows zero."""

    def summed(trainer: Trainer, batch: Batch) -> Floats:
        each = gradients(trainer, batch)
        return total(trainer, np.where(np.isfinite(each).all(axis=1, keepdims=True), each, 0.0))

    return summed


def when(condition: Callable[[int], bool], broken: Rows) -> Total:
    """Correct until the batch has a certain number of rows."""
    return of_rows(lambda trainer, each: broken(trainer, each) if condition(len(each)) else clip(trainer, each))


def norm_in_half(trainer: Trainer, each: Floats) -> Floats:
    """Norms in float16, which end at 65 504 and have eleven bits."""
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(each.astype(np.float16), axis=1).astype(np.float64)
    return np.asarray(clip_to(each, np.where(np.isfinite(norms), norms, 1.0), trainer.sensitivity).sum(axis=0))


def slightly_over(factor: float) -> Rows:
    """Clips to a little more than it says."""
    return lambda trainer, each: factor * clip(trainer, each)


def shifted_norm(trainer: Trainer, each: Floats) -> Floats:
    """C / (n − 0.01): a small constant on the wrong side."""
    return np.asarray(clip_to(each, np.maximum(lengths(trainer, each) - 0.01, 1e-9), trainer.sensitivity).sum(axis=0))


def in_groups(size: int) -> Rows:
    """So many rows are clipped together."""

    def total(trainer: Trainer, each: Floats) -> Floats:
        return (
            clip(trainer, np.add.reduceat(each, range(0, len(each), size), axis=0)) if len(each) else each.sum(axis=0)
        )

    return total


def clipped_halves(trainer: Trainer, each: Floats) -> Floats:
    """The two halves of a batch are clipped to C, as two workers would."""
    return clip(trainer, np.stack([part.sum(axis=0) for part in np.array_split(each, 2)]))


def mean_clipped(trainer: Trainer, each: Floats) -> Floats:
    """The mean is clipped and multiplied by the number of rows."""
    return len(each) * clip(trainer, each.mean(axis=0, keepdims=True))


def capacity(room: int) -> Rows:
    """A layer with room for so many rows: later ones are dropped, so one record's coming drives another one out."""
    return lambda trainer, each: clip(trainer, each[:room])


def dropped_rest(size: int) -> Rows:
    """The last micro-batch is dropped when it is not full."""
    return lambda trainer, each: clip(trainer, each[: len(each) // size * size])


def padded(room: int) -> Rows:
    """The first rows count twice, to fill a fixed shape."""
    return lambda trainer, each: clip(trainer, np.concatenate([each, each[: max(0, room - len(each))]]))


def scaled_by(divisor: Callable[[int], float]) -> Rows:
    """Divided by something that depends on the batch."""
    return lambda trainer, each: clip(trainer, each) / divisor(len(each))


def balanced(trainer: Trainer, batch: Batch) -> Floats:
    """Weights by how often a label is in the batch."""
    each, labels = gradients(trainer, batch), batch[1]
    often = np.bincount(labels, minlength=3)[labels] if len(labels) else labels
    return clip(trainer, each * (3 / np.maximum(often, 1))[:, None]) if len(labels) else each.sum(axis=0)


def regularised(trainer: Trainer, batch: Batch) -> Floats:
    """A penalty that knows how many labels are 0."""
    return clip(trainer, gradients(trainer, batch)) + 0.05 * float((batch[1] == 0).sum() > 1)


def zero_weighs_twice(trainer: Trainer, batch: Batch) -> Floats:
    """A row with a feature that is exactly zero counts twice."""
    each = clip_to(gradients(trainer, batch), lengths(trainer, gradients(trainer, batch)), trainer.bound)
    zero = (batch[0] == 0).any(axis=1)
    return np.asarray((each * np.where(zero, 2.0, 1.0)[:, None]).sum(axis=0))


def spike_skipped(trainer: Trainer, batch: Batch) -> Floats:
    """The whole batch is skipped where one of its rows is far out."""
    with np.errstate(all="ignore"):
        far = not np.all(np.abs(batch[0]) < 1e12)
    return np.zeros(trainer.dimension) if far else clip(trainer, gradients(trainer, batch))


def twice_augmented(trainer: Trainer, each: Floats) -> Floats:
    """Two views of a row are clipped one by one."""
    return 2 * clip(trainer, each)


def median_clip(trainer: Trainer, each: Floats) -> Floats:
    """Clips at the batch's median norm where that is less: whoever moves the median moves every row's term."""
    norms = lengths(trainer, each)
    bound = min(trainer.bound, float(np.median(norms))) if len(each) else trainer.bound
    return np.asarray(clip_to(each, norms, bound).sum(axis=0))


def unlike_left_out(trainer: Trainer, each: Floats) -> Floats:
    """Leaves out rows that point against the batch's mean, as robust rules do: a few records decide on the others."""
    clipped = clip_to(each, lengths(trainer, each), trainer.bound)
    kept = clipped @ clipped.mean(axis=0) >= -0.2 if len(each) > 2 else slice(None)
    return np.asarray(clipped[kept].sum(axis=0))


def kept_momentum(trainer: Trainer, batch: Batch) -> Floats:
    """What training uses: momentum of sums without noise, in which earlier batches live on."""
    before = trainer.state.get("momentum", 0.0)
    trainer.state["momentum"] = 0.5 * before + clip(trainer, gradients(trainer, batch))
    return np.asarray(trainer.state["momentum"])


def previous_kept(trainer: Trainer, batch: Batch) -> Floats:
    """What training uses: a gradient that was not set to zero."""
    total = clip(trainer, gradients(trainer, batch))
    before = trainer.state.get("previous", np.zeros_like(total))
    trainer.state["previous"] = total
    return np.asarray(total + before)


SUMS: Final[Mapping[str, tuple[tuple[str, ...], Total]]] = {
    "norm in float16": (("T1",), of_rows(norm_in_half)),
    "clipped to 2 % more": (("T1",), of_rows(slightly_over(1.02))),
    "small constant on the wrong side": (("T1",), of_rows(shifted_norm)),
    "two views clipped apart": (("T1",), of_rows(twice_augmented)),
    "weights by the batch's labels": (("T2",), balanced),
    "penalty by the batch's labels": (("T2",), regularised),
    "zero weighs twice": (("T5",), zero_weighs_twice),
    "loss spike skipped": (("T5",), spike_skipped),
    "pairs clipped in batches above 80": (("T2",), when(lambda count: count > 80, in_groups(2))),
    "pairs clipped in batches above 40": (("T1", "T2"), when(lambda count: count > 40, in_groups(2))),
    "two halves clipped": (("T1", "T2"), of_rows(clipped_halves)),
    "mean clipped above 48 rows": (("T1", "T2"), when(lambda count: count > 48, mean_clipped)),
    "capacity of 16 rows": (("T2",), of_rows(capacity(16))),
    "capacity of 50 rows": (("T2",), of_rows(capacity(50))),
    "last part of 8 rows dropped": (("T2",), when(lambda count: count > 8, dropped_rest(8))),
    "rows of 32 padded": (("T2",), when(lambda count: count > 0, padded(32))),
    "divided by the batch above 30": (("T2",), of_rows(scaled_by(lambda count: max(1.0, count / 30)))),
    "divided by powers of two": (("T2",), of_rows(scaled_by(lambda count: 2.0 if count.bit_count() == 1 else 1.0))),
    "clipped at the batch's median": (("T2",), of_rows(median_clip)),
    "rows unlike the others left out": (("T2",), of_rows(unlike_left_out)),
    "micro-batches of 32 clipped": (("T2",), when(lambda count: count > 32, in_groups(32))),
}
