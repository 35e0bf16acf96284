"""The rows of a task as arrays by name: ``x`` for what goes in, ``label`` for what is learned.

A numpy task shows rows, a torch task records, a task that trains by code of its own perhaps nothing: then a table of
its own has to be checked instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataUnfit
from quietsum.tasks import AnyTask, as_task, optional_part

__all__ = ["arrays_of", "extract_rows"]


def extract_rows(task: AnyTask, party: str | None = None) -> dict[str, NDArray[Any]]:
    """The rows of ``party``, or without one all records of a torch task. Private.

    :class:`~quietsum.errors.DataUnfit` where the task has no way to show them; what its own code raises is raised.
    """
    records = as_task(task).records_of(party) if party is not None else _all_records(task)
    found = None if records is None else arrays_of(records)
    if found is None:
        raise DataUnfit(f"task {task.name} shows no rows; check the table it reads instead: quietsum data check TABLE")
    return found


def _all_records(task: AnyTask) -> tuple[Any, ...] | None:
    own = optional_part(task, "records")
    return None if own is None else tuple(own())


def arrays_of(rows: Any) -> dict[str, NDArray[Any]] | None:
    """Rows of a numpy task, or a tuple of arrays or tensors of which row i together is record i; None for others."""
    if hasattr(rows, "features") and hasattr(rows, "labels"):
        return {"x": np.asarray(rows.features), "label": np.asarray(rows.labels)}
    if not isinstance(rows, tuple | list) or not rows or not all(hasattr(part, "shape") for part in rows):
        return None
    parts = [_array(part) for part in rows]
    last = len(parts) > 1 and parts[-1].ndim == 1
    inputs = parts[:-1] if last else parts
    names = ["x"] if len(inputs) == 1 else [f"x{place}" for place in range(len(inputs))]
    return {**dict(zip(names, inputs, strict=True)), **({"label": parts[-1]} if last else {})}


def _array(part: Any) -> NDArray[Any]:
    if not hasattr(part, "detach"):
        return np.asarray(part)
    held = part.detach().cpu()
    try:
        return np.asarray(held.numpy())
    except TypeError:  # bfloat16, which numpy lacks
        return np.asarray(held.double().numpy())
