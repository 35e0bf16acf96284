"""The records of a membership game, and who of them trains: by coins, thrown before the training.

A bound on ε from one training needs records that were each put in by a coin of their own (Steinke, Nasr, Jagielski
2023). Rows that happened to be held out are no such records: what sets them apart may be anything. So a game is made:
:func:`draw_members` throws the coins, and who trains on what they say can be judged with a proven bound.

Robust membership inference compares with *reference models*. They come in pairs: one trains on half of the targets, the
other on the other half, so that each target is in exactly half of all references, and out of the others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms import RandomSource, system_randomness
from quietsum.validate import whole_number

__all__ = ["draw_members", "draw_references"]

Mask = NDArray[np.bool_]


def draw_members(targets: int, *, rng: RandomSource | None = None) -> Mask:
    """Which of ``targets`` records train: a fair coin each."""
    count = whole_number("targets", targets, 1)
    return np.asarray((system_randomness() if rng is None else rng).coins(0.5, count), dtype=np.bool_)


def draw_references(targets: int, *, pairs: int = 1, rng: RandomSource | None = None) -> Mask:
    """Who trains which reference model, (2 · pairs, targets): the second of each pair has whom the first has not.

    >>> inside = draw_references(100, pairs=2)
    >>> inside.shape, set(inside.sum(axis=0).tolist())
    ((4, 100), {2})
    """
    halves = [draw_members(targets, rng=rng) for _ in range(whole_number("pairs", pairs, 1))]
    return np.stack([half for first in halves for half in (first, ~first)])
