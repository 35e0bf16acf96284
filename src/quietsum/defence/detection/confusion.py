"""Flipped labels by what they do: which class is suddenly taken for which, on rows that need no protection.

The server counts on a public hold-out, or on its root set, which class is taken for which: a matrix with a row for the
true class. Two questions, with the subjects that the server can name:

* :func:`find_confusions`: has the *model* begun to take one class for another since it was at its best? Between two
  models the counts of one cell are compared as two binomial samples (the pooled two-proportion z-test); rate over all
  cells. The earlier model must have known every class well (:data:`KNOWN`), since a model that still learns changes its
  mind. The rows are the same for both models, so the counts are positively dependent and the test errs less than
  stated.
* :func:`confusing`: whose update alone, added to the model, makes it miss a class more than the others' updates do
  (:func:`~quietsum.defence.detection.outlying` over parties, class by class)? Sites that lack a class show here as
  well, and that is why the threshold is made of the parties' own spread.

Both say what happened to answers, which is nearer to harm than any statistic of updates, and both need public rows.

>>> before, after = np.array([[95, 5], [4, 96]]), np.array([[40, 60], [5, 95]])
>>> [one.statistic for one in find_confusions(before, after, rate=1e-3, round=7)]
['share of class 0 taken for class 1']
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quietsum.defence.detection.findings import Finding
from quietsum.defence.detection.outliers import outlying
from quietsum.errors import InvalidParameter
from quietsum.validate import probability

__all__ = ["KNOWN", "LEAST_SHARE", "confusing", "confusion_matrix", "find_confusions"]

KNOWN = 0.8
"""The share of every class that the earlier model must have recognised: before that, answers change by learning."""
LEAST_SHARE = 0.1
"""By how much a share must change before it is reported, however many rows there are."""

Counts = NDArray[Any]


def confusion_matrix(labels: NDArray[np.int64], answers: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """How many rows of each class (first index) were given each answer.

    >>> confusion_matrix(np.array([0, 0, 1]), np.array([0, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    found = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(found, (labels, answers), 1)
    return found


def find_confusions(before: Counts, after: Counts, *, rate: float, round: int) -> list[Finding]:
    """Cells off the diagonal in which ``after`` has more than ``before`` by more than chance: the subject is the model.

    Guarantees: for counts of the same law, some cell is named with a chance of about ``rate`` at most.
    """
    before, after = _counts(before), _counts(after)
    classes = len(before)
    bound = -float(ndtri(probability("rate", rate) / max(1, classes * (classes - 1))))
    rows, later = before.sum(axis=1, keepdims=True), after.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        then, now = before / rows, after / later
        pooled = (before + after) / (rows + later)
        error = np.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / later))
    found: list[Finding] = []
    if not (np.diagonal(then) >= KNOWN).all():
        return found
    for source, target in np.argwhere(np.nan_to_num(now - then) >= LEAST_SHARE).tolist():
        limit = float(then[source, target] + bound * error[source, target])
        if source != target and now[source, target] > limit:
            found.append(
                Finding(
                    round=round, rule="confusion", statistic=f"share of class {source} taken for class {target}",
                    value=float(now[source, target]), threshold=max(limit, float(then[source, target]) + LEAST_SHARE),
                    false_positive_rate=rate, subject_kind="model", subject="model",
                    looked={f"class {place}": float(share) for place, share in enumerate(now[source])},
                )
            )  # fmt: skip
    return found


def confusing(counts: Mapping[str, Counts], *, rate: float, round: int) -> list[Finding]:
    """Parties whose update makes the model miss a class more than the others' updates do.

    ``counts`` holds the confusion of model + update, by party.
    """
    if not counts:
        return []
    recalls = np.array([_recalls(_counts(each)) for each in counts.values()])
    names, classes = list(counts), recalls.shape[1]
    found = []
    for label in range(classes):
        values = recalls[:, label]
        if not np.isfinite(values).all():
            continue
        for one in outlying(values, rate=probability("rate", rate) / classes):
            if one.value < one.threshold and np.median(values) - one.value >= LEAST_SHARE:
                found.append(
                    Finding(
                        round=round, rule="confusion", statistic=f"recall of class {label}", value=one.value,
                        threshold=one.threshold, false_positive_rate=rate / classes, subject_kind="party",
                        subject=names[one.row], looked=dict(zip(names, values.tolist(), strict=True)),
                    )
                )  # fmt: skip
    return found


def _recalls(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        found: NDArray[np.float64] = np.diagonal(counts) / counts.sum(axis=1)
    return found


def _counts(values: Counts) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1] or not np.isfinite(found).all() or (found < 0).any():
        raise InvalidParameter("counts", found.shape, "are no confusion matrix", "pass one row and column a class")
    return found
