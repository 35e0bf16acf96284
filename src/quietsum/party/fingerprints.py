"""How a task's protected rows are read for the holder's own eyes: see :mod:`quietsum.ledger.fingerprints`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from quietsum.errors import DataMissing
from quietsum.ledger import Parts, as_array

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan

__all__ = ["datasets_of", "rows_of_task"]


def rows_of_task(task: Any, party: str) -> Parts | None:
    """The records of ``party``, for the holder's own eyes; None where the task has no way to show them, or fails.

    Data that is not there at all raises :class:`~quietsum.errors.DataMissing`.
    """
    try:
        if callable(getattr(task, "records_of", None)):
            return tuple(task.records_of(party))
        if callable(getattr(task, "rows", None)):
            rows = task.rows(party)
            return rows.features, rows.labels
    except DataMissing:
        raise
    except (Exception, SystemExit):  # that they cannot be read is said when they are trained on
        return None
    return None


def datasets_of(task: Any, resolved: ResolvedPlan, party: str | None = None) -> dict[str, Callable[[], Parts | None]]:
    """The protected datasets of a plan, or of one party of it, with how each is read.

    Reading one whose file is not there raises :class:`~quietsum.errors.DataMissing`: nothing is reserved yet, so it may
    be said.
    """
    found: dict[str, Callable[[], Parts | None]] = {}
    groups: dict[str, list[str]] = {}
    for facts in resolved.parties:
        if not facts.public and party in (None, facts.name):
            groups.setdefault(facts.dataset, []).append(facts.name)
    for dataset, names in groups.items():

        def read(names: list[str] = names) -> Parts | None:
            parts = [one for one in (rows_of_task(task, name) for name in names) if one is not None]
            if not parts:
                return None
            flat = [[as_array(part) for part in one] for one in parts]
            return tuple(np.concatenate(column) for column in zip(*flat, strict=True))

        found[dataset] = read
    return found
