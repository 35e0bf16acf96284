"""Made-up rows turned against the step: scaled, flipped, repeated, broken.

Only floats are made hostile. Whole numbers are labels or tokens, whose range is public: a row of made-up labels is
exchanged for another one, but no label outside the range is invented.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms import RandomSource
from quietsum.selfcheck.protocol import Batch, StepUnderTest

__all__ = [
    "BROKEN",
    "SCALES",
    "join",
    "largest_tested_batch",
    "mix",
    "nothing",
    "repeat",
    "rows",
    "scale_rows",
    "size",
    "spoil",
    "tile",
]

SCALES: Final = (1.0, 10.0, 100.0, 1e3, 1e4)
BROKEN: Final[dict[str, float]] = {
    "NaN": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "1e30": 1e30,
    "zeros": 0.0,
    "1e-30": 1e-30,
}


_ROWS, _BYTES = 1 << 14, 1 << 28  # made-up rows in one batch, and their bytes


def largest_tested_batch(step: StepUnderTest, like: Batch) -> int:
    """The largest batch that training will draw: E + 6√E rows, E = rate · population, both public, and at least 20.

    A larger Poisson batch has a chance of 1e-5 at E = 1, 4e-8 at E = 24 and 1e-8 at E = 128. A batch
    of more than 16 384 rows, or than 256 MiB, is replayed in part.
    """
    expected = step.rate * step.population
    bytes_a_row = max(1, sum(field[:1].nbytes for field in like))
    most = min(int(np.ceil(expected + 6 * expected**0.5)), max(step.population, 1))
    return max(min(max(most, 20), _ROWS, _BYTES // bytes_a_row), 2)


def size(batch: Batch) -> int:
    """How many rows there are."""
    return len(batch[0])


def rows(batch: Batch, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
    """The rows at these places."""
    places = np.asarray(indices, dtype=np.int64)
    return tuple(field[places] for field in batch)


def nothing(batch: Batch) -> Batch:
    """No rows, of the same shape."""
    return rows(batch, [])


def join(*batches: Batch) -> Batch:
    """All rows one after the other."""
    return tuple(np.concatenate(fields) for fields in zip(*batches, strict=True))


def repeat(batch: Batch, times: int) -> Batch:
    """The same rows several times."""
    return join(*[batch] * times)


def tile(batch: Batch, count: int) -> Batch:
    """``count`` rows, the given ones over and over."""
    return rows(batch, np.arange(count) % size(batch))


def mix(batch: Batch, rng: RandomSource) -> Batch:
    """Each row at a scale of its own, of :data:`SCALES`."""
    factors = np.array(SCALES)[(rng.uniforms(size(batch)) * len(SCALES)).astype(int)]

    def stretch(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(values * factors.reshape(-1, *[1] * (values.ndim - 1)).astype(values.dtype))

    return _change(batch, stretch)


def scale_rows(batch: Batch, factor: float) -> Batch:
    """Every float times ``factor``; labels stay."""
    return _change(batch, lambda values: values * values.dtype.type(factor))


def spoil(batch: Batch, kind: str, *, everywhere: bool) -> Batch:
    """Rows with a value of :data:`BROKEN`, in one place or in all."""

    def spoil(values: NDArray[Any]) -> NDArray[Any]:
        spoilt = values.reshape(len(values), -1).copy()
        spoilt[:, : None if everywhere else 1] = BROKEN[kind]
        return spoilt.reshape(values.shape)

    return _change(batch, spoil)


def _change(batch: Batch, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Batch:
    """Floats in rows of several numbers are features; lone floats are labels, unless there is nothing else."""
    features = {i for i, field in enumerate(batch) if field.dtype.kind == "f" and field.ndim > 1}
    features = features or {i for i, field in enumerate(batch) if field.dtype.kind == "f"}
    with np.errstate(all="ignore"):
        return tuple(
            np.asarray(change(field), dtype=field.dtype) if i in features and len(field) else field
            for i, field in enumerate(batch)
        )
