"""A record as one vector of length at most 1, so that the noisy sum of all records answers every question of a file.

Each question j has a block b_j(record) with ‖b_j‖₂ ≤ 1 and a share s_j of the budget, Σ s_j = 1. The record's vector is

    v = (√s_1 b_1, …, √s_q b_q),        ‖v‖₂² = Σ s_j ‖b_j‖₂² ≤ 1.

Adding or removing one record therefore moves the sum of a site's vectors by at most 1 in L2, and one Gaussian mechanism
of sensitivity 1 pays for the whole file; block j sees its noise divided by √s_j. Blocks depend on their own record and
on public declarations alone. A record that a filter leaves out, or that lacks a value, adds zeros.

The blocks, x being a number mapped to [−1, 1] by its public bounds, T₂(x) = 2x² − 1:

* **count** (1); **sum** (value / largest |value|).
* **mean** and **variance** (√a, √b x, √c T₂(x)) with a + b + c = 1: |x| ≤ 1 and |T₂(x)| ≤ 1. Σx² = (ΣT₂ + n) / 2 has
  half the noise that x² itself would give at the same length.
* **correlation** the same for two numbers and their product: six parts, each at most 1, with weights that add up to 1.
* **histogram**, **contingency**: the unit vector of the record's cell.
* **quantiles** and **survival** ask for sums over ranges of cells, in which the noise of single cells would pile up. So
  the record in cell t adds column t of a matrix F with F F = A, where A sums up all cells from each one on
  (A_{st} = 1 for s ≤ t): F_{st} = c_{t−s}, c_k = (2k choose k) / 4^k, divided by the length ρ of its longest column.
  Counts are F⁻¹ of what comes, and sums from cell s on have a noise of ρ √(Σ_{k<m−s} c_k²) ≤ 1 + ln(m)/π + … instead of
  √(m − s) (the square root factorization; Fichtenberger, Henzinger and Upadhyay 2023, Henzinger et al. 2023). Survival
  has such a block for each group and each of *died* and *censored*, of which a record touches one.

>>> import numpy as np
>>> factor(4).round(3)
array([[1.   , 0.5  , 0.375, 0.312],
       [0.   , 1.   , 0.5  , 0.375],
       [0.   , 0.   , 1.   , 0.5  ],
       [0.   , 0.   , 0.   , 1.   ]])
>>> (factor(4) @ factor(4)).round(9).tolist()[1]
[0.0, 1.0, 1.0, 1.0]
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import final

import numpy as np
import numpy.typing as npt

from quietsum.analytics.columns import Column
from quietsum.analytics.questions import Question
from quietsum.errors import InvalidParameter

__all__ = ["CORRELATION", "LARGEST", "MEAN", "VARIANCE", "Block", "Design", "counts_of", "factor", "longest_column"]

Floats = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]
LARGEST = 20_000
"""Coordinates of one file's vector."""

MEAN = (0.4, 0.5, 0.1)
"""Shares of n, Σx and ΣT₂(x) where the mean is asked for: ΣT₂ only says how far records spread."""
VARIANCE = (0.25, 0.25, 0.5)
CORRELATION = (0.1, 0.1, 0.1, 0.2, 0.2, 0.3)
"""Shares of n, Σx, Σy, ΣT₂(x), ΣT₂(y) and Σxy."""


def factor(cells: int) -> Floats:
    """F: upper triangular, with F F the matrix that adds up all cells from each one on."""
    first = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, cells))])
    found = np.zeros((cells, cells))
    for row in range(cells):
        found[row, row:] = first[: cells - row]
    return found


def longest_column(matrix: Floats) -> float:
    """The length of the longest column, rounded up, so that dividing by it leaves none above 1."""
    return float(np.sqrt(np.square(matrix).sum(axis=0).max())) * (1 + 1e-12)


def counts_of(sums: Floats) -> tuple[Floats, Floats]:
    """Noisy counts of the cells from a block's noisy sums along its last axis, and M: their noise is M times theirs."""
    matrix = factor(sums.shape[-1])
    decode = np.asarray(longest_column(matrix) * np.linalg.inv(matrix), dtype=np.float64)
    return np.asarray(sums @ decode.T, dtype=np.float64), decode


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One question's part of the vector: where it lies, and by which factor √s it is scaled."""

    question: Question
    start: int
    shape: tuple[int, ...]
    scale: float

    @property
    def size(self) -> int:
        """Coordinates."""
        return math.prod(self.shape)

    def of(self, total: Floats) -> Floats:
        """This question's part of a sum of vectors, in its own units."""
        return np.asarray(total[self.start : self.start + self.size].reshape(self.shape) / self.scale)


@final
class Design:
    """All questions of a file over their columns: from a record's values to its vector, and back to each block.

    Guarantees: row i of :meth:`vectors` depends on row i of the values alone, and its L2 norm is at most 1.
    """

    def __init__(self, questions: Sequence[Question], columns: Sequence[Column]) -> None:
        self.questions = tuple(questions)
        read = {name for question in self.questions for name in question.reads}
        self.columns = tuple(column for column in columns if column.name in read)
        if len(self.by_name) < len(self.columns):
            raise InvalidParameter("columns", len(self.columns), "name one twice", "declare each column once")
        if self.dimension > LARGEST:
            problem = f"have {self.dimension:,} cells together, more than {LARGEST:,}"
            raise InvalidParameter("questions", len(self.questions), problem, "use coarser grids, or two files")

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """The columns that are read."""
        return {column.name: column for column in self.columns}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Where each question's part lies."""
        whole = math.fsum(question.weight for question in self.questions)
        found, start = [], 0
        for question in self.questions:
            share = question.weight / whole * (1 - 1e-12)  # so that no rounding makes the shares add up to more than 1
            block = Block(question=question, start=start, shape=self._shape(question), scale=math.sqrt(share))
            found.append(block)
            start += block.size
        return tuple(found)

    @property
    def dimension(self) -> int:
        """Coordinates of a record's vector."""
        return sum(math.prod(self._shape(question)) for question in self.questions)

    def _shape(self, question: Question) -> tuple[int, ...]:
        def cells(name: str) -> int:
            return len(self.by_name[name].labels)

        match question.kind:
            case "count" | "sum":
                return (1,)
            case "mean" | "variance":
                return (3,)
            case "correlation":
                return (6,)
            case "histogram" | "quantiles":
                return (cells(question.column),)
            case "contingency":
                return tuple(cells(name) for name in question.columns)
        groups = len(self.by_name[question.group].categories) if question.group else 1
        return (groups, 2, cells(question.time))

    # --------------------------------------------------------------------------------------- a record's vector

    def encode(self, texts: Mapping[str, Sequence[str]]) -> Floats:
        """The values of a table, one column for each that is read, as numbers: :meth:`Column.encode`."""
        found = [column.encode(texts[column.name]) for column in self.columns]
        if not found:  # nothing but counts of everything
            return np.zeros((len(next(iter(texts.values()), ())), 1))
        return np.column_stack(found)

    def vectors(self, values: Floats) -> Floats:
        """One vector for each row of coded values."""
        rows = len(values)
        found = np.zeros((rows, self.dimension))
        place = {column.name: values[:, index] for index, column in enumerate(self.columns)}
        for block in self.blocks:
            part = found[:, block.start : block.start + block.size]
            self._fill(block.question, place, part)
            part[~self._counts(block.question, place, rows)] = 0.0
            part *= block.scale
        return found

    def _counts(self, question: Question, place: Mapping[str, Floats], rows: int) -> npt.NDArray[np.bool_]:
        """Which rows the filters let through."""
        kept = np.ones(rows, dtype=bool)
        for one in question.where:
            column = self.by_name[one.column]
            cell = column.cell(place[one.column])
            if one.between is None:
                kept &= np.isin(cell, [column.categories.index(word) for word in one.categories])
            else:
                edges = np.array(column.edges)
                first, last = (int(np.abs(edges - edge).argmin()) for edge in one.between)
                kept &= (cell >= first) & (cell < last)
        return kept

    def _unit(self, name: str, place: Mapping[str, Floats]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """A number mapped to [−1, 1], 0 where it is missing, and whether it is there."""
        low, high = self.by_name[name].bounds or (-1.0, 1.0)
        known = ~np.isnan(place[name])
        scaled = (np.where(known, place[name], low) - low) / (high - low) * 2 - 1
        return np.where(known, np.clip(scaled, -1.0, 1.0), 0.0), known

    def _fill(self, question: Question, place: Mapping[str, Floats], part: Floats) -> None:
        match question.kind:
            case "count":
                part[:, 0] = 1.0
            case "sum":
                column = self.by_name[question.column]
                part[:, 0] = np.nan_to_num(np.clip(place[question.column] / largest_value(column), -1.0, 1.0), nan=0.0)
            case "mean" | "variance":
                unit, known = self._unit(question.column, place)
                _set(part, MEAN if question.kind == "mean" else VARIANCE, known, (1.0, unit, 2 * unit**2 - 1))
            case "correlation":
                (x, there), (y, also) = (self._unit(name, place) for name in question.columns)
                parts = (1.0, x, y, 2 * x**2 - 1, 2 * y**2 - 1, x * y)
                _set(part, CORRELATION, there & also, parts)
            case "histogram":
                _mark(part, self._cell(question.column, place))
            case "contingency":
                one, other = (self._cell(name, place) for name in question.columns)
                width = len(self.by_name[question.columns[1]].labels)
                _mark(part, np.where((one < 0) | (other < 0), -1, one * width + other))
            case "quantiles":
                _add_columns(part, self._cell(question.column, place))
            case "survival":
                self._survival(question, place, part)

    def _cell(self, name: str, place: Mapping[str, Floats]) -> Cells:
        return self.by_name[name].cell(place[name])

    def _survival(self, question: Question, place: Mapping[str, Floats], part: Floats) -> None:
        """Its group's block of deaths or of censorings; a time at or behind the grid's end is censored there.

        A clamped time is known to be at least the last edge, never that anything happened then.
        """
        column = self.by_name[question.time]
        cell, ended = self._cell(question.time, place), self._cell(question.event, place)
        groups = self._cell(question.group, place) if question.group else np.zeros(len(part), dtype=np.int64)
        died = self.by_name[question.event].categories.index(question.event_value)
        behind = place[question.time] >= column.edges[-1]
        censored = (ended != died) | behind
        shape = self._shape(question)
        known = (cell >= 0) & (ended >= 0) & (groups >= 0)
        for group in range(shape[0]):
            for kind in range(2):
                begin = (group * 2 + kind) * shape[2]
                mine = known & (groups == group) & (censored == bool(kind))
                _add_columns(part[:, begin : begin + shape[2]], np.where(mine, cell, -1))


def largest_value(column: Column) -> float:
    """The largest absolute value within the bounds."""
    assert column.bounds is not None
    return max(abs(edge) for edge in column.bounds)


def _set(part: Floats, shares: Sequence[float], known: npt.NDArray[np.bool_], values: Sequence[Floats | float]) -> None:
    """The values, each times the root of its share, which leave no row longer than 1 where each is at most 1."""
    for index, (share, value) in enumerate(zip(shares, values, strict=True)):
        part[:, index] = np.where(known, math.sqrt(share) * (1 - 1e-12) * np.asarray(value), 0.0)


def _mark(part: Floats, cell: Cells) -> None:
    """A one at each row's cell."""
    rows = np.flatnonzero(cell >= 0)
    part[rows, cell[rows]] = 1.0


def _add_columns(part: Floats, cell: Cells) -> None:
    """Each row's column of F / ρ."""
    matrix = factor(part.shape[1])
    columns = (matrix / longest_column(matrix)).T
    rows = np.flatnonzero(cell >= 0)
    part[rows] = columns[cell[rows]]
