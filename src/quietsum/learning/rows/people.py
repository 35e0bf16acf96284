"""People with several records: at most k of each person are used, before anything is drawn.

Under record-level privacy ε bounds what one *record* reveals; a person with k records is protected less. So k can be
bounded first: :func:`bound_people` keeps at most k records of each person, chosen by that person's own records alone.
The cost to a whole person is then that of a group of k in every step (Charles et al. 2024 call this example-level
sampling with a user-level bound):

    (Σ_j over the person's k records in the batch) moves the sum by at most Binomial(k, q) · C

The dominating pair is a mixture of k + 1 Gaussians, which :class:`~quietsum.privacy.events.Group` states exactly. One
record's own price rises by the bound: if a person holds more than k, a record that leaves lets another in. Under
add-or-remove it costs what a replaced record costs, so with k = 1 a record costs *more* than a whole person: removing a
person moves the sum by C, removing one of several records of a person by up to 2C.

>>> bound_people(["ada", "bob", "ada", "ada", "cy"], most=2).tolist()
[0, 1, 2, 4]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.validate import whole_number

__all__ = ["bound_people"]


def bound_people(people: Sequence[Any] | NDArray[Any], *, most: int) -> NDArray[np.int64]:
    """The places of the records that are kept: of every person the first ``most``, in their order.

    Guarantees: whether a record is kept depends on records of the same person alone, so that a person who comes or goes
    changes at most ``most`` of the records kept. A single record that leaves may let the next one of its person in: at
    most one out and one in (:class:`~quietsum.privacy.events.OneInOneOut`). One that is replaced and keeps its person
    moves no other.
    """
    most = whole_number("max_records", most, 1, "a person without records is not in the data")
    if any(isinstance(name, list | tuple | set | frozenset | dict | np.ndarray) for name in people):
        problem = "names several people for one record, as where their documents were packed into one row"
        remedy = "give each record rows of one person alone: in one sequence a person's tokens read those of another"
        raise InvalidParameter("people", "some names", problem, remedy)
    names = np.asarray(people)
    if names.ndim != 1:
        raise InvalidParameter("people", names.shape, "is not one name per record", "pass a list with one entry a row")
    if names.dtype.kind == "f" and not np.all(np.isfinite(names)):
        problem = "hold values that are not finite, so that it is unknown whose records those are"
        raise InvalidParameter("people", "…", problem, "give every record the number of its person")
    if not len(names):
        return np.empty(0, dtype=np.int64)
    _, person = np.unique(names, return_inverse=True)
    order = np.argsort(person, kind="stable")
    starts = np.flatnonzero(np.diff(person[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return np.sort(order[rank < most]).astype(np.int64)
