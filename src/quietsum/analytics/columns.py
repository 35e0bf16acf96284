"""What is public about a column: its kind, and the bounds, categories or grid that a value is brought to.

A question's answer depends on rows by these declarations alone, so each of them is a public constant: nothing of them
is counted from rows. Bringing a value to them looks at its own row only (rule 7): a number outside its bounds is
clamped, a text that is none of the categories is missing, and so is what is no finite number.

An *identifier* is a column that tells people apart. No question of any kind may read one: see
:func:`quietsum.analytics.questions.QuestionFile`. Columns whose name says that they are (``patient_id``, ``email``) are
taken for identifiers unless ``identifies_nobody`` says why they are not.

>>> age = Column(name="age", kind="number", bounds=(0, 100), cells=4)
>>> age.edges
(0.0, 25.0, 50.0, 75.0, 100.0)
>>> age.encode(["25", "130", "", "nan"]), age.cell(age.encode(["25", "130", "", "nan"]))
(array([ 25., 100.,  nan,  nan]), array([ 0,  3, -1, -1]))
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter
from quietsum.keys import FILLED, Bound, choices, key, table, whole

__all__ = ["KINDS", "MOST_CELLS", "Column"]

Floats = npt.NDArray[np.float64]
KINDS = ("number", "category", "identifier")
MOST_CELLS = 1000
"""Cells of one column; more are a slip of the pen, or an identifier in disguise."""
LARGEST = 1e100
"""The largest bound: squares of such values, added up, are still numbers."""
_IDENTIFIERS = re.compile(
    r"name|person|people|patient|subject|client|customer|citizen|ip|ip_?address|address|street|device|key|"
    r"(?:.*[^a-z])?(?:id|ids|ident|identifier|identity|uid|uuid|guid|mrn|ssn|nhs|passport|e?-?mail|phone|telephone|"
    r"mobile|dob|iban|(?:first|last|full|family|given|sur|patient|person|user)_?name|birth_?(?:date|day)|"
    r"date_?of_?birth|(?:patient|person|personal|case|record|account|card|insurance|security|social_security|hospital|"
    r"medical|medical_record|nhs|national|health|tax|passport|phone|mobile|licen[cs]e|student|employee|member|customer|"
    r"client|user|study|patienten|fall|versicherten|versicherungs|konto|kunden|mitglieds?|akten|dossier|ahv)"
    r"_?(?:no|nr|num|number|nummer|code|key)|ahv|(?:vor|nach|familien)name|geburts_?(?:datum|tag)|telefon|handy|"
    r"adresse|prenom|prénom|nom_de_famille|date_de_naissance|num[ée]ro_(?:de_)?(?:patient|cas|dossier|assur[ée]))"
)
_BETWEEN = re.compile(r"[\s._-]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@final
@table
class Column:
    """A column, as everybody may know it.

    ``cells`` (so many of equal width) or ``grid`` (all edges) cut its ``bounds`` into cells, each open on its left and
    closed on its right, the first one closed on both sides. Histograms, quantiles, survival curves and filters need
    them.
    """

    name: str = key("The column's name in the tables' first line.", bound=FILLED)
    kind: str = key("What its values are.", bound=choices(*KINDS))
    bounds: tuple[float, float] | None = key(
        "A number's smallest and largest value; others are clamped to them.", default=None,
        bound=Bound(shortest=2, longest=2),
    )  # fmt: skip
    cells: int | None = key("So many cells of equal width between the bounds.", default=None, bound=whole(2))
    grid: tuple[float, ...] = key("All edges of its cells, instead of bounds and cells.", default=())
    categories: tuple[str, ...] = key("All categories, as they stand in the tables.", default=())
    identifies_nobody: str = key("Why a column whose name looks like an identifier's is none.", default="")

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.name.isprintable():
            raise InvalidParameter("name", self.name, "is no column", "write the word in the table's first line")
        if self.kind == "number":
            self._check_number()
        elif self.bounds is not None or self.cells is not None or self.grid:
            raise InvalidParameter("kind", self.kind, "has no bounds, cells or grid", "leave them out")
        if self.kind == "category":
            self._check_categories()
        elif self.categories:
            raise InvalidParameter("kind", self.kind, "has no categories", "leave them out, or say kind = 'category'")
        if self.looks_personal and self.kind != "identifier" and not self.identifies_nobody.strip():
            raise InvalidParameter(
                "name", self.name, "looks like what tells people apart, which no question may read",
                "say kind = 'identifier', or say why not in identifies_nobody",
            )  # fmt: skip

    def _check_number(self) -> None:
        edges = self.grid
        if edges and (self.cells is not None or len(edges) < 3 or list(edges) != sorted(set(edges))):
            raise InvalidParameter("grid", self.grid, "is no grid", "write three edges or more, upwards, without cells")
        bounds = self.bounds if self.bounds is not None else (edges[0], edges[-1]) if edges else None
        if bounds is None:
            remedy = "write bounds = [smallest, largest], from what is known without the data"
            raise InvalidParameter("bounds", bounds, "are missing", remedy)
        low, high = bounds
        if not low < high or not math.isfinite(high - low):
            raise InvalidParameter("bounds", bounds, "hold nothing", "write the smaller number first")
        if max(abs(low), abs(high)) > LARGEST:
            problem = f"go beyond {LARGEST:g}, where a variance is no number any more"
            raise InvalidParameter("bounds", bounds, problem, "write the values in a larger unit")
        if (edges and edges[0] != low) or (edges and edges[-1] != high):
            raise InvalidParameter("grid", self.grid, "begins or ends elsewhere than bounds", "leave bounds out")
        if max(self.cells or 0, len(edges) - 1) > MOST_CELLS:
            raise InvalidParameter("cells", self.cells or len(edges) - 1, f"are more than {MOST_CELLS}", "use fewer")
        object.__setattr__(self, "bounds", (low, high))
        if any(left >= right for left, right in itertools.pairwise(self.edges)):
            raise InvalidParameter("cells", self.cells, "are too many for bounds so close", "use fewer, or a grid")

    def _check_categories(self) -> None:
        if len(self.categories) < 2:
            raise InvalidParameter("categories", list(self.categories), "are no choice", "list all that are public")
        for one in self.categories:
            if not isinstance(one, str) or not one.strip() or not one.isprintable():
                raise InvalidParameter("categories", one, "is no text", "write each as it stands in the table")
        if len(set(self.categories)) < len(self.categories):
            raise InvalidParameter("categories", list(self.categories), "name one twice", "name each once")
        if len(self.categories) > MOST_CELLS:
            raise InvalidParameter("categories", len(self.categories), f"are more than {MOST_CELLS}", "use fewer")

    @property
    def looks_personal(self) -> bool:
        """Whether the name says that the column tells people apart.

        >>> [Column(name=name, kind="identifier").looks_personal for name in ("patientId", "E-Mail", "covid", "paid")]
        [True, True, False, False]
        """
        name = _BETWEEN.sub("_", _CAMEL.sub("_", self.name.strip()).lower())
        return _IDENTIFIERS.fullmatch(name) is not None

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of the cells; none where neither cells nor a grid is declared."""
        if self.grid or self.cells is None or self.bounds is None:
            return self.grid
        low, high = self.bounds
        return (*(low + (high - low) * index / self.cells for index in range(self.cells)), high)

    @property
    def labels(self) -> tuple[str, ...]:
        """The cells in words: categories, or ranges."""
        if self.kind == "category":
            return self.categories
        edges = self.edges
        return tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges))

    def encode(self, texts: Sequence[str]) -> Floats:
        """Each text as a number: clamped to the bounds, or a category's place; NaN where it is missing.

        Guarantees: place i depends on text i alone.
        """
        if self.kind == "category":
            places = {category: float(place) for place, category in enumerate(self.categories)}
            return np.array([places.get(text.strip(), math.nan) for text in texts], dtype=np.float64)
        assert self.bounds is not None
        values = np.array([_number(text) for text in texts], dtype=np.float64)
        return np.asarray(np.where(np.isfinite(values), np.clip(values, *self.bounds), np.nan))

    def cell(self, coded: Floats) -> npt.NDArray[np.int64]:
        """The cell of each coded value, −1 for what is missing."""
        known = ~np.isnan(coded)
        if self.kind == "category":
            found = np.where(known, coded, 0.0)
        else:
            found = np.searchsorted(np.array(self.edges[1:-1]), np.where(known, coded, 0.0), side="left")
        return np.where(known, found, -1).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values: what is not stated is left out."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.bounds is not None:
            found["bounds"] = [float(edge) for edge in self.bounds]
        if self.cells is not None:
            found["cells"] = self.cells
        if self.grid:
            found["grid"] = [float(edge) for edge in self.grid]
        if self.categories:
            found["categories"] = list(self.categories)
        if self.identifies_nobody:
            found["identifies_nobody"] = self.identifies_nobody
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Column:
        """The column that :meth:`to_dict` wrote."""
        known = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(values, Mapping) or not set(values) <= known or not {"name", "kind"} <= set(values):
            raise InvalidParameter("columns", "…", "hold what describes no column", f"known are {sorted(known)}")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list | tuple) else value for key, value in values.items()
        }
        return cls(**given)

    def alike(self, other: Column) -> bool:
        """Whether both bring every value to the same place."""
        return (self.kind, self.bounds, self.edges, self.categories) == (
            other.kind, other.bounds, other.edges, other.categories,
        )  # fmt: skip


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
