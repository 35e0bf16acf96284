"""Backdoors in a model, and in the records it was trained on. Both need data that needs no protection, or a site's own.

:func:`find_triggers` asks of a model, class by class: what is the smallest change that makes *any* input that class? A
backdoor is a short cut to its class, so its trigger is smaller than the others (Wang et al. 2019, "Neural Cleanse").
The search goes down the gradient with rows that are public or made up; the model is asked through a callable, so any
framework serves (:func:`quietsum.tasks.models.input_gradient` for torch).

:func:`spectral_outliers` looks at records instead: within one class, records with a trigger lie apart along the
direction in which the model's representations of that class differ most (Tran, Li, Madry 2018). It needs the records,
so it is for the site itself or for a root set, and what a site learns of it does not leave.

What they do not see: triggers that are spread out, that depend on the input, or that are larger than what separates two
classes anyway; small images have small natural triggers, and then nothing stands out. "Nothing found" is no clean bill.
benchmarks/detection.py measures how often each is right, and wrong, on digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from quietsum.defence.detection.findings import Finding
from quietsum.defence.detection.outliers import FEWEST, outlying
from quietsum.errors import InvalidParameter
from quietsum.tasks import AnyTask, as_task
from quietsum.validate import positive, probability, whole_number

__all__ = [
    "FoundTrigger", "anomaly_indices", "find_triggers", "model_triggers", "spectral_outliers", "trigger_findings",
]  # fmt: skip

Floats = NDArray[np.float64]
Gradient = Callable[[Floats, int], tuple[Floats, Floats]]
"""(rows, class) → (the model's scores, rows × classes; the gradient of Σ −ln p(class) at each row, of its shape)."""
_DEVIATIONS = 1.4826  # of a Gaussian, for one median absolute deviation


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FoundTrigger:
    """The smallest change that was found for one class: x becomes (1 − mask) · x + mask · pattern.

    ``size`` is Σ mask, in coordinates; ``success`` the share of other classes' rows that it turns to ``target``.
    """

    target: int
    mask: Floats
    pattern: Floats
    size: float
    success: float


def find_triggers(
    gradient: Gradient,
    rows: Floats,
    labels: NDArray[np.int64],
    *,
    classes: int,
    low: float,
    high: float,
    steps: int = 300,
    rate: float = 0.1,
    wanted: float = 0.95,
) -> list[FoundTrigger]:
    """A small trigger for each class, on ``rows`` (n, k) whose values lie in [low, high].

    Adam (Kingma, Ba 2015) on a mask and a pattern behind tanh, as in the paper: cross-entropy to the class plus a
    weight times Σ mask; the weight rises while at least ``wanted`` of the rows are turned and falls while fewer are.
    The smallest mask that turned so many counts; a class whose mask never did has size k.
    """
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(labels) or not np.isfinite(rows).all():
        raise InvalidParameter("rows", rows.shape, "are not finite rows with one label each", "pass (n, k) and (n,)")
    positive("high - low", high - low)
    probability("wanted", wanted)
    whole_number("classes", classes, 2)
    return [
        _smallest(gradient, rows[labels != target], target, low, high, whole_number("steps", steps), rate, wanted)
        for target in range(classes)
    ]


def _smallest(
    gradient: Gradient, rows: Floats, target: int, low: float, high: float, steps: int, rate: float, wanted: float
) -> FoundTrigger:
    """The search for one class."""
    width = rows.shape[1]
    knobs = np.zeros((2, width))  # mask and pattern, each (1 + tanh) / 2 of its knob
    first, second = np.zeros_like(knobs), np.zeros_like(knobs)
    weight = 1e-3
    best = FoundTrigger(target=target, mask=np.ones(width), pattern=np.zeros(width), size=float(width), success=0.0)
    for step in range(1, steps + 1):
        turned = np.tanh(knobs)
        mask, pattern = (1 + turned[0]) / 2, low + (high - low) * (1 + turned[1]) / 2
        scores, slope = gradient((1 - mask) * rows + mask * pattern, target)
        success, size = float((scores.argmax(axis=1) == target).mean()), float(mask.sum())
        if success >= wanted and size < best.size:
            best = FoundTrigger(target=target, mask=mask, pattern=pattern, size=size, success=success)
        weight *= 1.1 if success >= wanted else 1 / 1.15
        slope = slope / len(rows)
        slopes = np.stack([
            ((slope * (pattern - rows)).sum(axis=0) + weight) * (1 - turned[0] ** 2) / 2,
            (slope * mask).sum(axis=0) * (high - low) * (1 - turned[1] ** 2) / 2,
        ])  # fmt: skip
        first, second = 0.5 * first + 0.5 * slopes, 0.9 * second + 0.1 * slopes**2
        fair = (first / (1 - 0.5**step)) / (np.sqrt(second / (1 - 0.9**step)) + 1e-8)
        knobs = np.clip(knobs - rate * fair, -6, 6)
    return best


def model_triggers(task: AnyTask, params: Floats, *, most: int = 500, steps: int = 300) -> list[FoundTrigger]:
    """:func:`find_triggers` for a finished model of ``task``, on at most ``most`` of the public rows it is scored on.

    Raises :class:`~quietsum.errors.InvalidParameter` for a task that shows no such rows, or has fewer than four
    classes: among three nothing can stand out.
    """
    found = as_task(task).slopes(params, most=whole_number("most", most))
    if found is None:
        problem = "shows no public rows with a class each, and triggers are looked for on such rows"
        raise InvalidParameter("task", task.name, problem, "give its torch task a hold_out()")
    slope, rows, labels = found
    classes = slope(rows[:1], 0)[0].shape[1]
    if classes < FEWEST:
        problem = f"tells {classes} classes apart, and a trigger stands out among the others' triggers"
        raise InvalidParameter("task", task.name, problem, f"look where there are {FEWEST} classes or more")
    low, high = float(rows.min()), float(rows.max())
    return find_triggers(slope, rows, labels, classes=classes, low=low, high=high, steps=steps)


def anomaly_indices(sizes: Sequence[float]) -> Floats:
    """(median − size) / (1.4826 · MAD): how far each class's trigger is below the middle one (Neural Cleanse, §IV-C).

    The paper calls a class infected above 2. By chance alone the largest of ten indices is above 2 in about a fifth of
    all cases, so :func:`trigger_findings` goes by a test with a stated rate instead.

    >>> anomaly_indices([10.0, 11.0, 9.0, 2.0]).round(2).tolist()
    [-0.34, -1.01, 0.34, 5.06]
    """
    values = np.asarray(sizes, dtype=np.float64)
    middle = float(np.median(values))
    spread = _DEVIATIONS * float(np.median(np.abs(values - middle)))
    return (middle - values) / max(spread, 1e-12)


def trigger_findings(found: Sequence[FoundTrigger], *, rate: float = 0.01, round: int = 0) -> list[Finding]:
    """Classes whose trigger is smaller than the others' by more than chance: the subject is the model.

    The logarithms of the sizes are held to be one Gaussian sample (:func:`~quietsum.defence.detection.outlying`).
    """
    if len(found) < FEWEST:
        return []
    sizes = np.log([max(one.size, 1e-3) for one in found])
    looked = {f"class {one.target}": one.size for one in found}
    return [
        Finding(
            round=round, rule="trigger", statistic=f"size of a trigger for class {found[one.row].target}",
            value=float(np.exp(one.value)), threshold=float(np.exp(one.threshold)), false_positive_rate=rate,
            subject_kind="model", subject="model", looked=looked,
        )
        for one in outlying(sizes, rate=rate)
        if one.value < one.threshold
    ]  # fmt: skip


def spectral_outliers(
    representations: Floats, labels: NDArray[np.int64], *, rate: float = 0.01
) -> dict[int, NDArray[np.int64]]:
    """By class, the rows that lie apart along its top singular direction; classes without any are left out.

    ``representations`` are a layer's answers, or the rows themselves: on small models the latter see more.

    The projections of a class, centred at their median and over 1.4826 · MAD, are held against the Gaussian bound that
    some row of all classes together passes with a chance of ``rate``. That is exact for Gaussian projections of many
    rows; representations of real classes have heavier tails, and what it errs is measured in benchmarks/detection.py.
    """
    values = np.asarray(representations, dtype=np.float64)
    if values.ndim != 2 or len(values) != len(labels) or not np.isfinite(values).all():
        raise InvalidParameter("representations", values.shape, "are not finite rows with one label each")
    bound = -float(ndtri(probability("rate", rate) / (2 * max(1, len(values)))))
    found = {}
    for label in np.unique(labels).tolist():
        places = np.flatnonzero(labels == label)
        if len(places) < 2 * FEWEST:
            continue
        centred = values[places] - values[places].mean(axis=0)
        top = np.linalg.svd(centred, full_matrices=False)[2][0]
        along = centred @ top
        along -= np.median(along)
        scores = np.abs(along) / max(_DEVIATIONS * float(np.median(np.abs(along))), 1e-12)
        if len(apart := places[scores > bound]):
            found[int(label)] = apart
    return found
