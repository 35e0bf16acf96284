"""Surveys with a known truth, and the exact law of every discrete protocol, written down naively from its integers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from quietsum.mechanisms.local import (
    CountMeanSketch,
    HadamardResponse,
    KRandomizedResponse,
    LocalProtocol,
    MeanProtocol,
    Rappor,
    Reports,
    UnaryEncoding,
    make_protocol,
)

WORD = 1 << 64
Law = dict[tuple[int, ...], Fraction]


def zipf(answers: int, users: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Everybody's answer, and the true shares: the k-th answer is 1/k times as frequent as the first."""
    weights = 1 / np.arange(1, answers + 1)
    counts = np.floor(weights / weights.sum() * users).astype(int)
    counts[0] += users - counts.sum()
    return np.repeat(np.arange(answers), counts), counts / users


def small(name: str, epsilon: float) -> LocalProtocol:
    """A protocol so small that every report can be listed."""
    sizes: dict[str, dict[str, int]] = {
        "rappor": {"size": 8, "hashes": 2, "cohorts": 1, "seed": 5},
        "cms": {"functions": 1, "width": 8, "seed": 5},
        "hcms": {"functions": 2, "width": 8, "seed": 5},
    }
    return make_protocol(name, 3, epsilon, **sizes.get(name, {}))


def bits_law(chances: list[Fraction]) -> Law:
    """Independent bits."""
    law = {}
    for bits in itertools.product((0, 1), repeat=len(chances)):
        law[bits] = Fraction(1)
        for bit, chance in zip(bits, chances, strict=True):
            law[bits] *= chance if bit else 1 - chance
    return law


def law_of(found: LocalProtocol, value: int) -> Law:
    """The chance of every report of an answer, as fractions."""
    if isinstance(found, KRandomizedResponse):
        return {(k,): Fraction(found.cells.high if k == value else found.cells.low, WORD) for k in range(3)}
    if isinstance(found, UnaryEncoding):
        p, q = (Fraction(threshold, WORD) for threshold in found.thresholds)
        return bits_law([p if k == value else q for k in range(3)])
    if isinstance(found, Rappor):
        first, second = (Fraction(flip, WORD) for flip in found.flips)
        wrong = first * (1 - second) + second * (1 - first)
        return bits_law([1 - wrong if bit else wrong for bit in found.filters[0, value]])
    if isinstance(found, HadamardResponse):
        law: Law = {}
        row = value // found.blocks + 1
        for signal in range(found.blocks * found.width):
            block, place = divmod(signal, found.width)
            own = block == value % found.blocks and bin(row & place).count("1") % 2 == 0
            law[(signal,)] = Fraction(found.cells.high if own else found.cells.low, WORD) / (found.width // 2)
        return law
    if isinstance(found, CountMeanSketch):
        flip, law = Fraction(found.flip, WORD), Law()
        for function in range(found.functions):
            place = int(found.places[value, function])
            if not found.hadamard:
                chances = [1 - flip if k == place else flip for k in range(found.width)]
                law |= {(function, *bits): chance for bits, chance in bits_law(chances).items()}
                continue
            for index, bit in itertools.product(range(found.width), (0, 1)):
                same = bin(index & place).count("1") % 2 == bit
                law[function, index, bit] = (1 - flip if same else flip) / (found.functions * found.width)
        return law
    raise TypeError(found)


def report_tuples(found: LocalProtocol, reports: Reports) -> list[tuple[int, ...]]:
    """Reports in the words of :func:`law_of`."""
    columns: list[NDArray[np.int64]] = []
    for name in found.layout.names or ():
        held = reports[name]
        if held.ndim > 1:
            bits = np.unpackbits(held, axis=1)[:, : 3 if isinstance(found, UnaryEncoding) else 8]
            columns += list(bits.T.astype(np.int64))
        elif not (isinstance(found, Rappor) and name == "cohort"):
            columns.append(held.astype(np.int64))
    return list(zip(*(column.tolist() for column in columns), strict=True))


def window_weights(found: MeanProtocol, first: int) -> NDArray[np.object_]:
    """The words of every cell of the piecewise grid, where the window begins at ``first``."""
    window = found.window
    weights = np.full(window.inside + window.outside, window.low, dtype=object)
    weights[first : first + window.inside] = window.high
    return weights
