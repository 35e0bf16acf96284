"""What a finished model answers for new rows: one answer a row, in the order of the rows, or none for a broken one.

A row with a value that is no number gets no answer, and changes no other: the model is asked about the other rows
alone.

>>> rows = np.array([[1.0], [np.nan], [-1.0]])
>>> found = answer_rows(rows, lambda rows: np.hstack([rows < 0, rows > 0]), ("no", "yes"))
>>> found.labels(), found.missing
(['yes', '', 'no'], 1)
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import InvalidParameter, QuietsumError

__all__ = ["Predictions", "answer_rows", "fit_shape", "refuse_without_onnx"]

Floats = npt.NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Predictions:
    """Answers to some rows: row i of ``values`` is for row i, NaN throughout if it has no answer.

    ``names`` are the columns of ``values``. With ``chances`` they are classes, and a value is the chance of one;
    without, a value is a number that the model answers. Printing shows how many there are, and no value.
    """

    names: tuple[str, ...]
    values: Floats
    chances: bool

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Predictions({len(self)} rows, {', '.join(self.names)})"

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which rows have an answer."""
        return np.asarray(np.isfinite(self.values).all(axis=1))

    @property
    def missing(self) -> int:
        """How many rows have no answer."""
        return int((~self.answered).sum())

    def labels(self) -> list[str]:
        """For each row the likeliest class, or the number, or the numbers with a space between; "" for no answer."""
        found = []
        for row, known in zip(self.values, self.answered.tolist(), strict=True):
            shown = self.names[int(row.argmax())] if self.chances and known else " ".join(map(_number, row.tolist()))
            found.append(shown if known else "")
        return found

    def to_csv(self) -> str:
        """A table: the number of each row from 1, the prediction, and with ``chances`` a column for each class."""
        file = io.StringIO()
        table = csv.writer(file, lineterminator="\n")
        several = self.chances or len(self.names) > 1
        columns = [f"p_{name}" if self.chances else name for name in self.names] if several else []
        table.writerow(["row", *(["prediction"] if self.chances or not several else []), *columns])
        rows = zip(self.labels(), self.values.tolist(), self.answered.tolist(), strict=True)
        for number, (label, values, known) in enumerate(rows, start=1):
            shown = [_number(value) if known else "" for value in values] if several else []
            table.writerow([number, *([label] if self.chances or not several else []), *shown])
        return file.getvalue()


def _number(value: float) -> str:
    return f"{value:.9g}"


def fit_shape(rows: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    """Raise :class:`~quietsum.errors.InvalidParameter` if a row has another ``shape``: numpy would stretch it."""
    if np.shape(rows)[1:] != shape:
        shown, problem = f"an array of shape {np.shape(rows)}", "do not fit the model"
        raise InvalidParameter("rows", shown, problem, f"pass one of shape {('n', *shape)}".replace("'", ""))


def refuse_without_onnx() -> None:
    """Raise :class:`~quietsum.errors.QuietsumError` if what writes ONNX is not installed."""
    for name in ("torch", "onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise QuietsumError(
                f"writing ONNX needs {name}, which is not installed: pip install 'quietsum[onnx]'. Without it: "
                "quietsum predict, quietsum.load_model, or the .safetensors file beside the model"
            )


def answer_rows(
    rows: npt.NDArray[Any],
    answer: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
    names: Sequence[str] = (),
    *,
    chances: bool = True,
) -> Predictions:
    """What ``answer`` says of those ``rows`` that hold numbers alone; other rows get no answer.

    ``names`` are those of the columns; numbers from zero if omitted. Raises
    :class:`~quietsum.errors.InvalidParameter` if the rows do not fit what answers them.
    """
    rows = np.asarray(rows)
    shown = f"{rows.dtype} of shape {rows.shape}"
    if rows.ndim < 2 or rows.dtype.kind not in "fiub":
        raise InvalidParameter("rows", shown, "are no rows of numbers", "pass an array whose first index is the row")
    whole = (
        np.isfinite(rows).all(axis=tuple(range(1, rows.ndim))) if rows.dtype.kind == "f" else np.ones(len(rows), bool)
    )
    if not whole.any():
        width = len(names) or 1
        named = tuple(names) or ("prediction",)
        return Predictions(names=named, values=np.full((len(rows), width), np.nan), chances=chances and bool(names))
    try:
        told = np.asarray(answer(rows[whole]), dtype=np.float64).reshape(int(whole.sum()), -1)
    except InvalidParameter:
        raise
    except (ValueError, TypeError, IndexError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        problem = f"do not fit the model ({type(error).__name__}: {why})"
        raise InvalidParameter(
            "rows", shown, problem, "pass rows in the form in which the task's own records are"
        ) from None
    if names and told.shape[1] != len(names):
        problem = f"get {told.shape[1]} answers each from a model with {len(names)} names for them"
        raise InvalidParameter("rows", shown, problem, "name one for each answer in the task")
    if not names:
        stem = "" if chances else "output_"
        names = ("prediction",) if told.shape[1] == 1 else tuple(f"{stem}{place}" for place in range(told.shape[1]))
    values = np.full((len(rows), told.shape[1]), np.nan)
    values[whole] = np.where(np.isfinite(told).all(axis=1, keepdims=True), told, np.nan)
    return Predictions(names=tuple(names), values=values, chances=chances)
