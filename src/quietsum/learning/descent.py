"""A private gradient step in numpy: draw, differentiate, bound, sum, release, divide, step. In that order, always.

With B the drawn batch, C the bound, b the *public* expected batch and σ the noise multiplier, one step of DP-SGD is

    g = ( Σ_{i in B} bound_C(∇ℓ_i)  +  N(0, σ²C²) ) / b
    velocity ← momentum · velocity + g
    params ← params − learning_rate · velocity

(Abadi et al., "Deep Learning with Differential Privacy", 2016, algorithm 1). Bounding each example before the sum is
what limits one record's weight; dividing by b and not by |B| is what keeps the batch's size private; an empty batch is
a step like any other, made of noise alone. Only the sum is released, so momentum and the step are post-processing.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter, positive, probability, whole_number
from quietsum.mechanisms.gaussian import GaussianMechanism
from quietsum.mechanisms.rng import RandomSource
from quietsum.sampling import Sampling

__all__ = ["Differentiable", "Examples", "private_steps"]

Floats = npt.NDArray[np.float64]


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
    mechanism: GaussianMechanism | None,
    expected_batch: float,
    learning_rate: float,
    momentum: float,
    rng: RandomSource,
) -> Floats:
    """Run ``steps`` steps on ``rows`` and return new − old parameters.

    Guarantees: the result is a function of ``steps`` releases of ``mechanism`` on batches of ``sampling``, of
    ``params`` and of public numbers; its cost is ``sampling.amplify(mechanism.event())``, ``steps`` times. That needs
    ``expected_batch`` to be public, for instance rate × declared size. An example whose gradient is not finite counts
    as zero. With ``mechanism`` None the same steps run without bound and noise, and there is no guarantee.
    """
    steps = whole_number("steps", steps, 1)
    expected_batch = positive("expected_batch", expected_batch, "pass sample_rate × declared size, which is public")
    learning_rate = positive("learning_rate", learning_rate)
    if probability("momentum", momentum, "0 is plain descent") == 1:
        raise InvalidParameter("momentum", momentum, "never forgets a step", "stay below 1, for instance 0.9")
    start = np.array(params, dtype=np.float64)
    if start.ndim != 1 or not np.isfinite(start).all():
        raise InvalidParameter("params", f"an array of shape {start.shape}", "must be one finite vector")
    here, velocity = start, np.zeros_like(start)
    with np.errstate(over="ignore", invalid="ignore"):  # a wild example counts as zero, a wild step is an error below
        for _ in range(steps):
            drawn = sampling.draw(len(rows.labels), rng)
            examples = _gradients(task, here, rows.features[drawn], rows.labels[drawn])
            total = _plain_sum(examples) if mechanism is None else _quiet_sum(examples, mechanism, rng)
            velocity = momentum * velocity + total / expected_batch
            here = here - learning_rate * velocity
        delta: Floats = here - start
    if not np.isfinite(delta).all():
        problem = "made the parameters overflow"
        raise InvalidParameter("learning_rate", learning_rate, problem, "take smaller steps; the charge stands")
    return delta


def _gradients(task: Differentiable, params: Floats, features: Floats, labels: Floats) -> Floats:
    if not len(labels):
        return np.zeros((0, len(params)))
    examples = np.asarray(task.gradients(params, features, labels), dtype=np.float64)
    if examples.shape != (len(labels), len(params)):
        raise InvalidParameter(
            "gradients", examples.shape, f"should be {(len(labels), len(params))}", "return one gradient per example"
        )
    return examples


def _quiet_sum(examples: Floats, mechanism: GaussianMechanism, rng: RandomSource) -> Floats:
    return mechanism.release(mechanism.sum(mechanism.bound(examples)), rng)


def _plain_sum(examples: Floats) -> Floats:
    finite = np.isfinite(examples).all(axis=1, keepdims=True)
    return np.asarray(np.where(finite, examples, 0.0).sum(axis=0))
