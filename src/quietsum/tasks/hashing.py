"""Public rules that look at one row alone: which part it belongs to, which bucket a name falls into.

A split by shuffling, by rank or by every fourth row changes for all rows when one comes or goes. A hash of the row's
own key does not, and rows with equal keys, a person's for instance, always stay together. The constants are fixed
here, so that everyone has the same split for ever.

>>> places(np.array([7, 8, 7])).round(3).tolist()
[0.39, 0.619, 0.39]
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["bucket_of", "buckets", "places"]


def places(*keys: NDArray[np.integer] | int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row, from its whole-number ``keys`` alone; over many keys they are spread evenly."""
    return (_hashed(keys) >> np.uint64(11)).astype(np.float64) / 2**53


def buckets(keys: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """A bucket 0 … count − 1 for each row, from its key alone."""
    return (places(keys) * count).astype(np.int64)


def bucket_of(words: Iterable[str], count: int) -> NDArray[np.int64]:
    """A bucket for each word; no list of known words is needed, so none is learned from data."""
    return buckets(np.array([zlib.crc32(word.encode("utf-8")) for word in words], dtype=np.uint64), count)


def _hashed(keys: Iterable[NDArray[np.integer] | int]) -> NDArray[np.uint64]:
    found = np.zeros(1, dtype=np.uint64)
    for key in keys:
        found = _mixed(found ^ np.asarray(key).astype(np.uint64))
    return found


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every bit of the result depends on every bit of the value."""
    with np.errstate(over="ignore"):
        found = values + np.uint64(0x9E3779B97F4A7C15)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return found ^ (found >> np.uint64(31))
