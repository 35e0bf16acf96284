"""The same work for both: softmax regression in float64, a few sites of forty made-up records each.

Needs numpy alone. ``small`` has 784 features and 10 classes (7,850 parameters), ``large`` 10,000 features and 100
classes (1,000,100). A site's round is one step of gradient descent on all of its records; the parameters are one
vector, weights by class first, then biases. Records are made from a fixed seed and the site's number.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

SHAPES = {"small": (784, 10), "large": (10_000, 100)}
EACH = 40
RATE = 0.05


def dimension(model: str) -> int:
    """How many parameters the model has."""
    features, classes = SHAPES[model]
    return classes * features + classes


@functools.cache
def records(model: str, site: int) -> tuple[Any, Any]:
    """Features (40, k), scaled so that a row has a length of about one, and labels (40,)."""
    features, classes = SHAPES[model]
    rng = np.random.default_rng([features, site])
    return rng.standard_normal((EACH, features)) / np.sqrt(features), rng.integers(classes, size=EACH)


def errors(model: str, params: Any, features: Any, labels: Any) -> Any:
    """Probabilities less truth, (n, classes): the gradient of the loss in the scores."""
    width, classes = SHAPES[model]
    weight, bias = params[: classes * width].reshape(classes, width), params[classes * width :]
    scores = features @ weight.T + bias
    found = np.exp(scores - scores.max(axis=1, keepdims=True))
    found /= found.sum(axis=1, keepdims=True)
    found[np.arange(len(labels)), labels.astype(np.int64)] -= 1.0
    return found


def trained(model: str, params: Any, site: int) -> Any:
    """The parameters after a site's round: one step on all of its records."""
    features, labels = records(model, site)
    wrong = errors(model, params, features, labels) / len(labels)
    return params - RATE * np.concatenate([(wrong.T @ features).ravel(), wrong.sum(axis=0)])
