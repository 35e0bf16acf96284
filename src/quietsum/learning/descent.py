"""A private gradient step in numpy: draw, differentiate, bound, sum, release, divide, step. In that order, always.

With B the drawn batch, C the bound, b the *public* expected batch and σ the noise multiplier, one step of DP-SGD is

    g = ( Σ_{i in B} bound_C(∇ℓ_i)  +  N(0, σ²C²) ) / b  +  μ (params − start)
    velocity ← momentum · velocity + g
    params ← params − learning_rate · velocity

(Abadi et al., "Deep Learning with Differential Privacy", 2016, algorithm 1; the last term of g is FedProx, Li et al.
2020, and μ is 0 unless stated). Bounding each example before the sum is
what limits one record's weight; dividing by b and not by |B| is what keeps the batch's size private; an empty batch is
a step like any other, made of noise alone. Only the sum is released, so momentum, the proximal term and the step are
post-processing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import ClippedSum, RandomSource, Vectors
from quietsum.sampling import Sampling
from quietsum.validate import non_negative, positive, probability, whole_number

__all__ = ["Differentiable", "Examples", "clipped_sum", "gradients_of", "private_steps"]

Floats = npt.NDArray[np.float64]
_PIECE = 1 << 23  # numbers of gradients at once


class Examples(Protocol):
    """The rows of one party."""

    @property
    def features(self) -> Floats:
        """Of shape (n, k)."""
        ...

    @property
    def labels(self) -> Floats:
        """Of shape (n,)."""
        ...


class Differentiable(Protocol):
    """What a step asks of a task."""

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One gradient per example, (n, dimension); row i depends on example i alone, to the last bit."""
        ...


def private_steps(
    task: Differentiable,
    params: Floats,
    rows: Examples,
    *,
    steps: int,
    sampling: Sampling,
    mechanism: ClippedSum | None,
    expected_batch: float,
    learning_rate: float,
    momentum: float,
    rng: RandomSource,
    proximal: float = 0.0,
    take: Callable[[npt.NDArray[np.int64], Floats], Floats] | None = None,
) -> Floats:
    """Run ``steps`` steps on ``rows`` and return new − old parameters.

    Guarantees: the result is a function of ``steps`` releases of ``mechanism`` on batches of ``sampling``, of
    ``params`` and of public numbers; its cost is ``sampling.amplify(mechanism.event())``, ``steps`` times. That needs
    ``expected_batch`` to be public, for instance rate × declared size. An example whose gradient is not finite counts
    as zero, and so does one for which the task raises: an error, a warning or a message that depends on one record
    would show that record outside the noise. With ``mechanism`` None the same steps run without bound and noise, and
    there is no guarantee. ``take`` is given the draw and the release of each step and returns what the step goes on
    with: for canaries (:mod:`quietsum.learning.canaries.party`), whose numbers it takes out.
    """
    steps = whole_number("steps", steps, 1)
    expected_batch = positive("expected_batch", expected_batch, "pass sample_rate × declared size, which is public")
    learning_rate = positive("learning_rate", learning_rate)
    if probability("momentum", momentum, "0 is plain descent") == 1:
        raise InvalidParameter("momentum", momentum, "never forgets a step", "stay below 1, for instance 0.9")
    proximal = non_negative("proximal", proximal, "0 is plain descent")
    start = np.array(params, dtype=np.float64)
    if start.ndim != 1 or not np.isfinite(start).all():
        raise InvalidParameter("params", f"an array of shape {start.shape}", "must be one finite vector")
    here, velocity = start, np.zeros_like(start)
    with np.errstate(over="ignore", invalid="ignore"):  # a wild example counts as zero, a wild step is an error below
        for _ in range(steps):
            drawn = sampling.draw(len(rows.labels), rng)
            features, labels = rows.features[drawn], rows.labels[drawn]
            if mechanism is None:
                total = _plain_sum(gradients_of(task, here, features, labels))
            else:
                total = mechanism.release(_sum_bounded(task, here, features, labels, mechanism), rng)
                total = total if take is None else take(drawn, total)
            velocity = momentum * velocity + (total / expected_batch + proximal * (here - start))
            here = here - learning_rate * velocity
        delta: Floats = here - start
    if not np.isfinite(delta).all():
        problem = "made the parameters overflow"
        raise InvalidParameter("learning_rate", learning_rate, problem, "take smaller steps; the charge stands")
    return delta


def clipped_sum(
    task: Differentiable,
    params: Floats,
    rows: Examples,
    *,
    sampling: Sampling,
    max_norm: float,
    rng: RandomSource,
) -> Floats:
    """Σ clip_C(∇ℓ_i) over one batch of ``sampling``, **without noise**: private, and no more than a part of a release.

    It is what a party adds to a sum whose noise is distributed (:mod:`quietsum.mechanisms.distributed`); it never
    leaves the party as it is. Guarantees: each row is bounded in integers of the grid of
    :class:`~quietsum.mechanisms.gaussian.ClippedSum` and the rows are added up there, so one row moves the sum
    by at most ``max_norm`` beside any other rows, up to the one rounding of each coordinate on its way back to
    float64. A row whose gradient is not finite, or for which the task raises, counts as zero, in silence.
    """
    here = np.array(params, dtype=np.float64)
    if here.ndim != 1 or not np.isfinite(here).all():
        raise InvalidParameter("params", f"an array of shape {here.shape}", "must be one finite vector")
    grid = ClippedSum(max_norm=max_norm, noise_multiplier=1.0)  # its bound alone; no noise is drawn here
    drawn = sampling.draw(len(rows.labels), rng)
    total = _sum_bounded(task, here, rows.features[drawn], rows.labels[drawn], grid)
    return np.asarray(total.astype(np.float64) * grid.grid_unit)


def gradients_of(task: Differentiable, params: Floats, features: Floats, labels: Floats) -> Floats:
    """One gradient per example, as the task computes them; its errors are raised. For rows that are public."""
    if not len(labels):
        return np.zeros((0, len(params)))
    examples = np.asarray(task.gradients(params, features, labels), dtype=np.float64)
    if examples.shape != (len(labels), len(params)):
        raise InvalidParameter("gradients", "the task's", "have the wrong shape", "return one gradient per example")
    return examples


def _silent_gradients(task: Differentiable, params: Floats, features: Floats, labels: Floats) -> Floats:
    """The same for protected rows: a row that cannot be differentiated is a row of zeros, in silence.

    When the batch fails as a whole its rows are tried one by one. Leaving out the batch instead would let one record
    erase the others, and the sum would move by more than the bound.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return gradients_of(task, params, features, labels)
        except Exception:  # what a row raises is a fact about that row
            return np.stack([_one_gradient(task, params, features[[i]], labels[[i]]) for i in range(len(labels))])


def _one_gradient(task: Differentiable, params: Floats, features: Floats, labels: Floats) -> Floats:
    try:
        return np.asarray(gradients_of(task, params, features, labels)[0])
    except Exception:  # as above
        return np.zeros_like(params)


def _sum_bounded(task: Differentiable, params: Floats, features: Floats, labels: Floats, grid: ClippedSum) -> Vectors:
    """Σ bounded gradients in steps of the grid, some rows at a time: memory that ran out would be a fact about rows."""
    grid.check_rows(len(labels))
    rows = max(1, _PIECE // max(1, len(params)))
    total = grid.sum(grid.bound(_silent_gradients(task, params, features[:rows], labels[:rows])))
    for start in range(rows, len(labels), rows):
        piece = slice(start, start + rows)
        total = total + grid.sum(grid.bound(_silent_gradients(task, params, features[piece], labels[piece])))
    return total


def _plain_sum(examples: Floats) -> Floats:
    finite = np.isfinite(examples).all(axis=1, keepdims=True)
    return np.asarray(np.where(finite, examples, 0.0).sum(axis=0))
