"""Scores of predictions, in plain numpy: what is reported after training, on rows that need no protection.

Every function takes labels and scores of test or validation rows and returns a number in [0, 1]. On protected rows such
a number is a statistic like any other and would have to be charged, so no task calls them with training records. That
holds for thresholds too: :func:`best_f1_threshold` looks at labels, so it is given validation rows that were declared
public, and the threshold that it finds is then applied to other rows.

A score that the rows do not define (an AUC where one class is absent) is NaN, and :class:`~quietsum.tasks.Metrics`
leaves it out rather than print a made-up value.

>>> labels, scores = np.array([0, 0, 1, 1]), np.array([0.1, 0.4, 0.35, 0.8])
>>> roc_auc(labels, scores), round(average_precision(labels, scores), 4)
(0.75, 0.8333)
>>> threshold = best_f1_threshold(labels, scores)
>>> threshold, f1_score(labels, scores >= threshold)
(0.35, 0.8)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from quietsum.alerts import SCORES
from quietsum.errors import InvalidParameter

__all__ = [
    "accuracy", "average_precision", "best_f1_threshold", "dice", "f1_score", "majority", "mean_auc",
    "more_is_better", "roc_auc",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def more_is_better(name: str) -> bool | None:
    """Whether a larger score of this name is a better one; None where the name does not say.

    >>> more_is_better("accuracy_Basel"), more_is_better("validation-loss"), more_is_better("points")
    (True, False, None)
    """
    words = name.replace("_", " ").replace("-", " ").lower().split()
    if (known := SCORES.get(" ".join(words))) is not None:
        return known
    known_words = [SCORES[word] for word in words if word in SCORES]
    return all(known_words) if known_words else None


def accuracy(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """The share of rows whose predicted class is the right one."""
    wanted, found = _whole("labels", labels), _whole("predicted", predicted)
    _same_rows(wanted, found, "predicted")
    return float(np.mean(wanted == found))


def majority(labels: npt.ArrayLike) -> float:
    """The accuracy of a model that knows nothing but the largest class; NaN for no rows.

    >>> majority([0, 1, 1, 1])
    0.75
    """
    wanted = _whole("labels", labels)
    return float(np.unique(wanted, return_counts=True)[1].max() / len(wanted)) if len(wanted) else math.nan


def roc_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The probability that a positive row scores above a negative one, ties counting one half (Mann and Whitney 1947).

    AUC = ( Σ ranks of positives − n₊(n₊+1)/2 ) / (n₊ n₋), where tied scores share their mean rank.

    >>> roc_auc([0, 1, 1], [0.5, 0.5, 0.9])
    0.75
    """
    positive, values = _binary(labels, scores)
    wanted = int(positive.sum())
    others = len(positive) - wanted
    if not wanted or not others:
        return math.nan
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[place]
    return float((ranks[positive].sum() - wanted * (wanted + 1) / 2) / (wanted * others))


def mean_auc(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The mean over classes of the AUC of one against the others (Hand, Till 2001, in its unweighted form).

    ``scores`` has a column for each class; of two classes the second column is the score. Classes that no row or every
    row has are left out. It says whether rows are ranked well where one class is rare and accuracy says nothing.

    >>> mean_auc([0, 0, 0, 1], [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    1.0
    """
    wanted, values = _whole("labels", labels), np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 2:
        raise InvalidParameter("scores", values.shape, "have no column for each class", "pass (rows, classes)")
    classes = [1] if values.shape[1] == 2 else range(values.shape[1])
    found = [roc_auc(wanted == one, values[:, one]) for one in classes]
    known = [one for one in found if not math.isnan(one)]
    return float(np.mean(known)) if known else math.nan


def average_precision(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The area under the precision-recall curve as a sum of steps: Σ_k (R_k − R_{k−1}) P_k, also called AUPRC.

    The steps go down the distinct scores, so rows with one score enter together and their order in the file does not
    matter. No interpolation, which would be too kind (Davis and Goadrich 2006).
    """
    positive, values = _binary(labels, scores)
    if not positive.any():
        return math.nan
    found, taken, _ = _descending(positive, values)
    gained = np.diff(found, prepend=0) / positive.sum()
    return float(np.sum(gained * found / taken))


def f1_score(labels: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """2 TP / (2 TP + FP + FN) for the positive class 1: the harmonic mean of precision and recall."""
    wanted, chosen = _flags("labels", labels), _flags("predicted", predicted)
    _same_rows(wanted, chosen, "predicted")
    return _overlap(wanted, chosen)


def best_f1_threshold(labels: npt.ArrayLike, scores: npt.ArrayLike) -> float:
    """The threshold t for which ``scores >= t`` has the best F1 on *these* rows; the highest such t where several do.

    It looks at labels: pass rows that were declared public, and report F1 on other rows than these.
    """
    positive, values = _binary(labels, scores)
    if not positive.any():
        raise InvalidParameter("labels", "no positive row", "leave no F1 to choose by", "pass rows of both classes")
    found, taken, thresholds = _descending(positive, values)
    return float(thresholds[int(np.argmax(2 * found / (taken + positive.sum())))])


def dice(masks: npt.ArrayLike, predicted: npt.ArrayLike) -> float:
    """Mean over images of 2 |A ∩ B| / (|A| + |B|); an image that is empty in both counts 1 (Dice 1945).

    The first axis counts images. Each image weighs the same, however large its foreground.

    >>> dice([[1, 1, 0, 0], [0, 0, 0, 0]], [[1, 0, 1, 0], [0, 0, 0, 0]])
    0.75
    """
    wanted, chosen = _flags("masks", masks), _flags("predicted", predicted)
    _same_rows(wanted, chosen, "predicted")
    if wanted.ndim < 2:
        raise InvalidParameter("masks", wanted.shape, "has no axis of pixels", "pass (images, pixels…)")
    pixels = tuple(range(1, wanted.ndim))
    both, sizes = (wanted & chosen).sum(pixels), wanted.sum(pixels) + chosen.sum(pixels)
    return float(np.mean(np.where(sizes > 0, 2 * both / np.maximum(sizes, 1), 1.0)))


# ------------------------------------------------------------------------------------------- what they share


def _overlap(wanted: Flags, chosen: Flags) -> float:
    both = int((wanted & chosen).sum())
    total = int(wanted.sum()) + int(chosen.sum())
    return 2 * both / total if total else math.nan


def _descending(positive: Flags, values: Floats) -> tuple[Floats, Floats, Floats]:
    """For each distinct score from the top: positives at or above it, rows at or above it, and the score."""
    order = np.argsort(-values, kind="stable")
    sorted_values = values[order]
    ends = np.append(np.flatnonzero(np.diff(sorted_values)), len(values) - 1)
    found = np.cumsum(positive[order], dtype=np.float64)[ends]
    return found, ends + 1.0, sorted_values[ends]


def _binary(labels: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[Flags, Floats]:
    positive = _flags("labels", labels)
    values = np.asarray(scores, dtype=np.float64)
    _same_rows(positive, values, "scores")
    if positive.ndim != 1:
        raise InvalidParameter("labels", positive.shape, "is not one label per row", "pass shape (n,)")
    if not np.isfinite(values).all():
        raise InvalidParameter("scores", "NaN or infinity", "has no rank", "look at the model: did training diverge?")
    return positive, values


def _flags(name: str, values: npt.ArrayLike) -> Flags:
    whole = _whole(name, values)
    if not np.isin(whole, (0, 1)).all():
        raise InvalidParameter(name, "a value other than 0 and 1", "is no class here", "pass 0 and 1, or booleans")
    return whole.astype(np.bool_)


def _whole(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    found = np.asarray(values)
    if found.dtype.kind not in "biu" and not (found.dtype.kind == "f" and np.array_equal(found, np.rint(found))):
        raise InvalidParameter(name, str(found.dtype), "holds no whole numbers", "pass classes, not scores")
    if not found.size:
        raise InvalidParameter(name, found.shape, "holds no rows", "pass at least one")
    return found


def _same_rows(wanted: npt.NDArray[Any], found: npt.NDArray[Any], name: str) -> None:
    if wanted.shape != found.shape:
        raise InvalidParameter(name, found.shape, f"does not fit labels of shape {wanted.shape}", "one for each")
