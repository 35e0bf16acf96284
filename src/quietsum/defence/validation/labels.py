"""Do labels agree with the rest of their rows? A look that tells the site's operator of labels which were mixed up.

A simple model, trained on four fifths of the rows, labels the last fifth, five times over; of each class, the share of
rows that it labels otherwise is the class's *disagreement*. The model is least squares on the class indicators with
every class weighing the same and a little shrinkage (Hastie, Tibshirani and Friedman 2009, section 4.2), so a class of
few rows is not drowned. Some labels flipped raise the disagreement; by how much is normal only the operator knows, from
an older table for instance, and declares as ``label.disagreement``. A class is reported where so many rows would
disagree with a chance of at most :data:`RATE` if its true disagreement were what was declared (binomial tail).

What this cannot see: labels that are *all* exchanged agree with the rest of their rows as well as before. Those show in
the declared shares of classes, if the classes are unequal, and else nowhere at the site.

Nothing of it leaves the site: rates of protected rows would have to be charged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.defence.validation.checks import as_table
from quietsum.defence.validation.result import WARNING, Problem
from quietsum.defence.validation.schema import Schema
from quietsum.defence.validation.tables import Floats, Table
from quietsum.defence.validation.tasks import arrays_of

__all__ = ["RATE", "Disagreement", "disagreements", "look_at_labels"]

RATE = 1e-3
"""The chance that a class whose disagreement is as declared is reported all the same."""
FOLDS = 5
_MOST_ROWS, _MOST_FEATURES, _SHRINKAGE = 100_000, 512, 1e-2
_FEWEST = 5 * FOLDS
_SEED = 5


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Of ``rows`` with one label, so many that a model of the other rows labels otherwise."""

    rows: int
    otherwise: int

    @property
    def share(self) -> float:
        """Of the rows."""
        return self.otherwise / self.rows if self.rows else 0.0

    def chance(self, declared: float) -> float:
        """How likely so many are, or more, where each row disagrees with chance ``declared``.

        >>> f"{Disagreement(rows=100, otherwise=20).chance(0.1):.4f}"
        '0.0020'
        """
        from scipy.special import betainc

        return 1.0 if not self.otherwise else float(betainc(self.otherwise, self.rows - self.otherwise + 1, declared))

    def threshold(self, declared: float) -> int:
        """The smallest number of rows that is reported: its chance is at most :data:`RATE` at the ``declared`` share.

        >>> Disagreement(rows=100, otherwise=0).threshold(0.1)
        21
        """
        low, high = 1, self.rows + 1
        while low < high:
            middle = (low + high) // 2
            if dataclasses.replace(self, otherwise=middle).chance(declared) <= RATE:
                high = middle
            else:
                low = middle + 1
        return low


def disagreements(features: Floats, labels: NDArray[np.int64]) -> dict[int, Disagreement]:
    """Of each class in ``labels``, how many of its rows a cross-validated simple model labels otherwise.

    The folds are drawn anew from a fixed seed, so that the same table gives the same answer.

    >>> chance = np.random.default_rng(0)
    >>> labels = np.arange(400) % 2
    >>> features = chance.normal(size=(400, 3)) + 2 * labels[:, None]
    >>> mixed = np.where(chance.random(400) < 0.2, 1 - labels, labels)
    >>> [round(disagreements(features, one)[0].share, 2) for one in (labels, mixed)]
    [0.06, 0.24]
    """
    made = np.random.default_rng(_SEED)
    if len(labels) > _MOST_ROWS:
        chosen = made.choice(len(labels), _MOST_ROWS, replace=False)
        features, labels = features[chosen], labels[chosen]
    inputs = _scale(features, made)
    names, place = np.unique(labels, return_inverse=True)
    wanted = np.eye(len(names))[place]
    fold = made.permutation(len(labels)) % FOLDS
    found = np.zeros(len(labels), dtype=np.int64)
    for number in range(FOLDS):
        held, rest = fold == number, fold != number
        sizes = np.maximum(wanted[rest].sum(axis=0), 1.0)
        weights = (wanted[rest] / sizes).sum(axis=1) / len(names)
        weighed = inputs[rest].T * weights
        gram = weighed @ inputs[rest] + _SHRINKAGE * np.eye(inputs.shape[1])
        scores = inputs[held] @ np.linalg.solve(gram, weighed @ wanted[rest])
        found[held] = scores.argmax(axis=1)
    return {
        int(name): Disagreement(rows=int((place == at).sum()), otherwise=int(((place == at) & (found != at)).sum()))
        for at, name in enumerate(names)
    }


def _scale(features: Floats, made: np.random.Generator) -> Floats:
    """Columns around their median, over their spread, far values cut, at most a few hundred of them; and a constant."""
    finite = np.where(np.isfinite(features), features, np.nan)
    with np.errstate(all="ignore"):
        centre = np.nan_to_num(np.nanmedian(np.where(np.isnan(finite).all(axis=0), 0.0, finite), axis=0))
        away = np.nan_to_num(finite - centre, nan=0.0, posinf=0.0, neginf=0.0)
        largest = np.abs(away).max(axis=0, initial=0.0)
        away = away / np.where(largest > 0, largest, 1.0)  # squares of 1e300 overflow
        spread = np.sqrt((away**2).mean(axis=0))
    kept = spread > 0
    inputs = np.clip(away[:, kept] / spread[kept], -5, 5)
    if inputs.shape[1] > _MOST_FEATURES:
        signs = made.choice(np.array([-1.0, 1.0]), size=(inputs.shape[1], _MOST_FEATURES))
        inputs = inputs @ signs / math.sqrt(inputs.shape[1])
    return np.column_stack([inputs, np.ones(len(inputs))])


def look_at_labels(rows: Any, schema: Schema | None = None) -> tuple[tuple[Problem, ...], dict[str, Any]]:
    """Problems with labels, and the disagreement of each class; for the site's operator.

    ``rows`` are what :func:`~quietsum.defence.validation.validate` takes. Nothing is judged where no label has classes,
    or too few rows do.
    """
    table, stated = as_table(rows, schema)
    label = stated.label
    if label is None or not label.classes or label.column not in table.cells:
        return (_not_judged("the schema declares no classes of a label"),), {}
    cells = table.cells[label.column]
    values = cells.texts if cells.texts is not None else cells.numbers
    assert values is not None
    classes = np.full(len(table), -1, dtype=np.int64)
    for place, name in enumerate(label.classes):
        classes[~cells.missing & (values == name)] = place
    features = _features(rows, table, stated, label.column)
    used = classes >= 0
    sizes = np.bincount(classes[used], minlength=len(label.classes))
    judged = np.isin(classes, np.flatnonzero(sizes >= _FEWEST))
    if (sizes >= _FEWEST).sum() < 2 or features is None:
        return (_not_judged(f"fewer than two classes have {_FEWEST} rows, or no column holds numbers"),), {}
    found = disagreements(features[judged], classes[judged])
    problems = list(_problems(found, [str(name) for name in label.classes], label.column, label.disagreement))
    return tuple(problems), {
        str(label.classes[place]): {
            "rows": one.rows, "otherwise": one.otherwise, "declared": label.disagreement,
            "threshold": None if label.disagreement is None else one.threshold(label.disagreement), "rate": RATE,
        }
        for place, one in found.items()
    }  # fmt: skip


def _not_judged(why: str) -> Problem:
    return Problem(check="labels", message=f"labels are not judged: {why}", severity=WARNING)


def _features(rows: Any, table: Table, schema: Schema, label: str) -> Floats | None:
    """Everything but the label as numbers: a task's inputs as they are, a table's columns, texts of few values as
    indicators."""
    arrays = rows if isinstance(rows, Mapping) else None if isinstance(rows, Table) else arrays_of(rows)
    parts: list[Floats] = []
    if arrays is not None and label == "label" and "label" in arrays:
        inputs = [np.asarray(array) for name, array in arrays.items() if name != label]
        if all(array.dtype.kind in "biuf" for array in inputs):
            parts = [array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64) for array in inputs]
    if not parts:
        keys = {name for key in schema.rows.keys if len(key) == 1 for name in key}
        for column in schema.columns:
            cells = table.cells.get(column.name)
            if cells is None or column.name == label or column.name in keys:
                continue
            if cells.numbers is not None:
                parts.append(cells.numbers[:, None])
            elif cells.texts is not None and column.allowed:
                parts.append((cells.texts[:, None] == np.array(column.allowed, dtype=object)).astype(np.float64))
    return np.concatenate(parts, axis=1) if parts else None


def _problems(found: Mapping[int, Disagreement], names: list[str], column: str, declared: float | None) -> Any:
    if declared is not None:
        for place, one in found.items():
            if one.chance(declared) <= RATE:
                yield Problem(
                    check="labels", column=column, severity=WARNING, count=one.otherwise,
                    message=f"class {names[place]}: a simple model labels more of its rows otherwise than the declared "
                    f"{100 * declared:.3g} %",
                    remedy="labels mixed up? If the declared share is the true one, a class is reported with a chance "
                    f"of at most {RATE:g}",
                )  # fmt: skip
    agreed = sum(1 - one.share for one in found.values()) / len(found)
    spread = math.sqrt(sum(one.share * (1 - one.share) / one.rows for one in found.values())) / len(found)
    if agreed < 1 / len(found) + 3.1 * spread:
        yield Problem(
            check="labels", column=column, severity=WARNING,
            message="labels agree with the other columns no better than chance",
            remedy="mixed up, shifted by a row, or related in a way that a simple model cannot see",
        )  # fmt: skip
