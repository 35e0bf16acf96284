"""Two small models in numpy, with one gradient per row: linear scores, and one hidden layer of tanh.

With x the features of a row (the last one is 1), s its scores and ℓ its loss,

    linear   s = W x                        ∂ℓ/∂W = e xᵀ
    mlp      s = V (tanh(U x), 1)           ∂ℓ/∂V = e (a, 1)ᵀ,  ∂ℓ/∂U = ((Vᵀe) ∘ (1 − a²)) xᵀ,  a = tanh(U x)

where e = ∂ℓ/∂s: p − y for the log-loss of one score (two classes) or of several (softmax), and s − y for half the
squared distance of a number.

Each row is added up by itself: a matrix product may round a row differently in another batch, and then the presence of
one record would show in the last bits of the others.
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
import numpy.typing as npt

__all__ = ["RowModel"]

Floats = npt.NDArray[np.float64]
_FIRST_WEIGHTS = 0
"""A public seed: every process starts from the same weights."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowModel:
    """A model with ``inputs`` features: of ``classes`` classes, or of a number if there are none.

    ``hidden`` units of tanh lie between them; 0 is the linear model. Guarantees: a row's scores and gradient are the
    same bits in any batch that holds it.

    >>> RowModel(inputs=4, classes=2).dimension, RowModel(inputs=4, classes=3, hidden=5).dimension
    (4, 38)
    """

    inputs: int
    classes: int
    hidden: int = 0

    @property
    def scores_of_a_row(self) -> int:
        """One for a number or two classes, else one for each class."""
        return self.classes if self.classes > 2 else 1

    @property
    def dimension(self) -> int:
        """How many weights there are."""
        if not self.hidden:
            return self.scores_of_a_row * self.inputs
        return self.hidden * self.inputs + self.scores_of_a_row * (self.hidden + 1)

    def initial(self) -> Floats:
        """Zeros for the linear model; small random weights in the hidden layer, of variance 1 / inputs."""
        found = np.zeros(self.dimension)
        if self.hidden:
            count = self.hidden * self.inputs
            draw = np.random.default_rng(_FIRST_WEIGHTS)
            found[:count] = draw.normal(size=count) / math.sqrt(self.inputs)
        return found

    def _parts(self, params: Floats) -> tuple[Floats, Floats]:
        """(U, V); U is empty for the linear model."""
        count = self.hidden * self.inputs
        width = self.hidden + 1 if self.hidden else self.inputs
        return params[:count].reshape(self.hidden, self.inputs), params[count:].reshape(self.scores_of_a_row, width)

    def _forward(self, params: Floats, features: Floats) -> tuple[Floats, Floats]:
        """What the last layer reads, and the scores (n, k)."""
        first, last = self._parts(params)
        inner = features
        if self.hidden:
            inner = np.concatenate([np.tanh(_times(features, first)), np.ones((len(features), 1))], axis=1)
        return inner, _times(inner, last)

    def scores(self, params: Floats, features: Floats) -> Floats:
        """The scores of each row, (n, k)."""
        return self._forward(params, features)[1]

    def answers(self, params: Floats, features: Floats) -> Floats:
        """The chance of each class, (n, classes); for a number the number itself, (n, 1)."""
        scores = self.scores(params, features)
        if not self.classes:
            return scores
        if self.classes > 2:
            return _softmax(scores)
        chance = 0.5 * (1 + np.tanh(0.5 * scores))
        return np.concatenate([1 - chance, chance], axis=1)

    def layers(self, params: Floats) -> list[tuple[Floats, Floats, str]]:
        """Weights, bias and what follows, layer by layer: the same scores for other programs."""
        first, last = self._parts(params)
        if not self.hidden:
            return [(last, np.zeros(len(last)), "")]
        return [(first, np.zeros(len(first)), "tanh"), (last[:, :-1], last[:, -1], "")]

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        """One gradient per row, (n, dimension); NaN for a row without a label."""
        _, last = self._parts(params)
        inner, scores = self._forward(params, features)
        errors = self._errors(scores, labels)
        outer = (errors[:, :, None] * inner[:, None, :]).reshape(len(labels), -1)
        if not self.hidden:
            return outer
        back = _times(errors, np.ascontiguousarray(last[:, :-1].T)) * (1 - inner[:, :-1] ** 2)
        return np.concatenate([(back[:, :, None] * features[:, None, :]).reshape(len(labels), -1), outer], axis=1)

    def _errors(self, scores: Floats, labels: Floats) -> Floats:
        """∂ℓ/∂s of each row."""
        if not self.classes:
            return scores - labels[:, None]
        if self.classes == 2:
            return 0.5 * (1 + np.tanh(0.5 * scores)) - labels[:, None]
        known = ~np.isnan(labels)
        wanted = np.eye(self.classes)[np.where(known, labels, 0).astype(np.int64)]
        return np.where(known[:, None], _softmax(scores) - wanted, np.nan)


def _times(rows: Floats, weights: Floats) -> Floats:
    """rows · weightsᵀ, each entry added up by itself along memory."""
    return np.asarray((rows[:, None, :] * weights[None, :, :]).sum(axis=2))


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
