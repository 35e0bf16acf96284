"""A row as numbers, by itself: from texts and public declarations to features and a label.

A number is mapped to [−1, 1] by its declared bounds and clipped there; what is no number is 0, with 1 in a feature of
its own that says so. A category is 1 in its own place, and anything else, missing or unknown, in the place "other". The
last feature is 1 for every row. A class is its place among the declared ones, a number that is learned is mapped to
[−1, 1] like any other. A label that is neither has no value (NaN): its row then counts as zero in training, in silence.

>>> encoding = Encoding(
...     columns=(Column(name="age", kind="number", bounds=(0, 100)),
...              Column(name="ward", kind="category", categories=("north", "south"))),
...     label=Column(name="back", kind="category", categories=("no", "yes")),
... )
>>> encoding.features({"age": ["50", "?", "1e9"], "ward": ["south", "north", "moon"]}, 3)
array([[0., 0., 0., 1., 0., 1.],
       [0., 1., 1., 0., 0., 1.],
       [1., 0., 0., 0., 1., 1.]])
>>> encoding.labels(["yes", "no", "perhaps"])
array([ 1.,  0., nan])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from quietsum.analytics import Column
from quietsum.errors import InvalidParameter

__all__ = ["Encoding"]

Floats = npt.NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """How rows with these ``columns`` become features, and their ``label`` a number.

    Guarantees: row i of what it returns depends on row i and on the declarations alone, and every feature lies in
    [−1, 1].
    """

    columns: tuple[Column, ...]
    label: Column
    decimal: str = "."

    def __post_init__(self) -> None:
        if not self.columns:
            remedy = "declare a number with bounds, or a category"
            raise InvalidParameter("columns", "none", "leave nothing to learn from", remedy)

    @property
    def classes(self) -> tuple[str, ...]:
        """The declared classes; none where a number is learned."""
        return self.label.categories

    @property
    def names(self) -> tuple[str, ...]:
        """What each feature is."""
        found = []
        for column in self.columns:
            if column.kind == "number":
                found += [column.name, f"{column.name} is missing"]
            else:
                found += [f"{column.name} = {one}" for one in (*column.categories, "other")]
        return (*found, "bias")

    def features(self, texts: Mapping[str, Sequence[str]], count: int) -> Floats:
        """The features of ``count`` rows, given the texts of each column."""
        parts = [self._encode_column(column, texts[column.name]) for column in self.columns]
        return np.ascontiguousarray(np.concatenate([*parts, np.ones((count, 1))], axis=1))

    def _encode_column(self, column: Column, texts: Sequence[str]) -> Floats:
        values = self._values(column, texts)
        known = ~np.isnan(values)
        if column.kind == "number":
            return np.stack([np.where(known, _to_unit(column, values), 0.0), np.where(known, 0.0, 1.0)], axis=1)
        places = np.where(known, values, len(column.categories)).astype(np.int64)
        return np.eye(len(column.categories) + 1)[places]

    def _values(self, column: Column, texts: Sequence[str]) -> Floats:
        if column.kind == "number" and self.decimal == ",":
            texts = ["" if "." in text else text.replace(",", ".") for text in texts]
        return column.encode(texts)

    def labels(self, texts: Sequence[str]) -> Floats:
        """The label of each row, NaN where it has none that is declared."""
        values = self._values(self.label, texts)
        return values if self.classes else _to_unit(self.label, values)

    def in_units(self, values: Floats) -> Floats:
        """Learned numbers in [−1, 1] back in the units of the label."""
        low, high = self.label.bounds or (-1.0, 1.0)
        return np.asarray(low + (np.clip(values, -1, 1) + 1) / 2 * (high - low), dtype=np.float64)


def _to_unit(column: Column, values: Floats) -> Floats:
    low, high = column.bounds or (-1.0, 1.0)
    return np.asarray(2 * ((values - low) / (high - low)) - 1, dtype=np.float64)
