"""Integers with exactly the law of round(s · N(0, 1)), by torch: on the processor, or on the card that needs them.

:mod:`quietsum.mechanisms.noise.rounded_normal` reads the tail probability of a normal as a string of random bits, and
reads on until the rounding is certain. Here 64 of the bits go through torch's inverse error function first, which is
two to three times as quick on a processor, lets go of Python's lock, and runs on a card. That settles a draw where it
lies within :data:`REACH` standard deviations and farther from a half-integer than every rounding error reaches. Of the
others, about three in a thousand, the same bits go to :func:`~quietsum.mechanisms.round_words`, which decides them
exactly. So an integer is that of the exact sampler for the same bits, whichever way it took.

How far a float lies from the normal of its bits, in standard deviations, up to x = 3: a word becomes a float between
−1 and 1 with an error of 2⁻⁵⁴, which the slope of the quantile, √(π/2) · e^(x²/2) ≤ 112.8, turns into 2⁻⁴⁷; erfinv adds
five units in the last place on a card and less in MKL, 2⁻⁴⁸, or 2⁻⁴⁶ as two Newton steps where there is no MKL;
products add 2⁻⁴⁹. Together that is below 2⁻⁴⁵; :data:`MARGIN` allows sixteen times as much, and tests compare with
mpmath. What a device computes is compared with the processor's before the first draw there (:func:`is_exact`).
"""

from __future__ import annotations

import collections
import functools
import logging
import math
import os
from collections.abc import Callable
from typing import TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from quietsum.learning.noise import chacha
from quietsum.learning.noise.chacha import KEY_BYTES
from quietsum.learning.rows.memory import carry, make_room
from quietsum.mechanisms import RandomSource, round_words

__all__ = ["MARGIN", "REACH", "CardDraw", "fill_whole", "is_exact", "round_quickly"]

log = logging.getLogger(__name__)

REACH = 3.0
"""Standard deviations up to which floats may decide."""
MARGIN = 2.0**-41
"""How far a float may lie from the normal that its bits stand for, in standard deviations, up to :data:`REACH`."""

Words: TypeAlias = Callable[[int], NDArray[np.uint64]]

_PIECE = 1 << 15  # draws that stay in the processor's cache
_ON_CARD = 1 << 25  # draws at a time, so that what is between words and integers takes a gibibyte at most
_BEYOND = 0.0027  # of normals lie beyond three standard deviations
_UNDECIDED = 2.0**62  # stands where no draw is yet: were it ever released, it could not be missed
_TESTED, _SCALES = 1 << 14, (2.0**38, 3.0)  # on the wide grid floats alone do round wrongly


def round_quickly(words: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """round(scale · x) as floats for the normal x of each word, and where that is certain.

    A word w, signed, stands for x = √2 erfinv(v) with v between w · 2⁻⁶³ and (w + 1) · 2⁻⁶³. What is no number is
    certain nowhere.
    """
    values = words.to(torch.float64).mul_(2.0**-63).erfinv_().mul_(scale * math.sqrt(2.0))
    whole = values.round()
    certain = values.abs() < REACH * scale
    certain &= values.sub_(whole).abs_() < 0.5 - scale * MARGIN
    return whole, certain


def fill_whole(out: Tensor, scale: float, source: RandomSource) -> None:
    """Fill ``out`` with fresh draws of round(scale · N(0, 1)), on the processor."""
    places, words = [], []
    for start in range(0, len(out), _PIECE):
        piece = out[start : start + _PIECE]
        fresh = torch.from_numpy(source.words(len(piece)).view(np.int64))
        whole, certain = round_quickly(fresh, scale)
        piece.copy_(whole)  # what is infinite is not certain, and is decided below
        open_ones = certain.logical_not_().nonzero().view(-1)
        places.append(open_ones + start)
        words.append(fresh[open_ones])
    if places:
        out[torch.cat(places)] = _decide(torch.cat(words), scale, source.words)


def _decide(words: Tensor, scale: float, later: Words) -> Tensor:
    """The exact draws of these words, which lie on the processor."""
    return torch.from_numpy(round_words(as_tails(words.numpy().view(np.uint64)), scale, later))


def as_tails(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Words of :func:`round_quickly` as the exact sampler reads them: the sign in bit 0, above it the tail's bits.

    >>> [hex(int(word)) for word in as_tails(np.array([0, 2**63 - 1, 2**63, 2**64 - 1], dtype=np.uint64))]
    ['0xfffffffffffffffe', '0x0', '0x1', '0xffffffffffffffff']
    """
    negative = words >> np.uint64(63)
    tails = np.where(negative == 1, words, ~words)
    return (tails << np.uint64(1)) | negative


# ------------------------------------------------------------------------------------------- on a card


@final
class CardDraw:
    """Draws that were begun on a device, and are finished when they are needed.

    Guarantees: the words are those of a ChaCha20 key of this draw alone, from the operating system. The card does all
    but the few draws that floats cannot decide; these come back to the processor behind the card's other work, so that
    :meth:`finish` waits for nothing that was asked for after the draw was begun. ``later`` gives fresh words to those.
    """

    def __init__(
        self,
        scale: float,
        count: int,
        device: torch.device,
        later: Words,
        make_key: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._scale, self._device, self._later, self._make_key = scale, device, later, make_key
        self._out = torch.empty(count, dtype=torch.int64, device=device)
        self._parts = collections.deque(
            self._begin(self._out[start : start + _ON_CARD]) for start in range(0, count, _ON_CARD)
        )
        self._done = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(device))

    def _begin(self, out: Tensor) -> tuple[bytes, Tensor, Tensor, Tensor]:
        key = self._make_key(KEY_BYTES)
        words = chacha.words(key, len(out), self._device)
        whole, certain = round_quickly(words, self._scale)
        uncertain = certain.logical_not_()
        out.copy_(whole.masked_fill_(uncertain, _UNDECIDED))
        room = _room(len(out), self._scale)
        places = torch.nonzero_static(uncertain, size=room, fill_value=0).view(-1)
        told = torch.cat([uncertain.sum().view(1), words.index_select(0, places)])
        here = make_room(len(told), (), torch.int64, self._device)
        here.copy_(told, non_blocking=True)
        return key, out, places, here

    def finish(self) -> Tensor:
        """The draws, all of them decided; once."""
        if self._done is not None:
            self._done.synchronize()
        while self._parts:
            key, out, places, here = self._parts.popleft()
            many = int(here[0])
            if many > len(places):  # more than there was room for: all of them are read
                out.copy_(_decide(chacha.words(key, len(out), self._device).cpu(), self._scale, self._later))
            elif many:
                decided = _decide(here[1 : 1 + many].clone(), self._scale, self._later)
                out.index_copy_(0, places[:many], carry(decided, self._device))
        return self._out


def _room(count: int, scale: float) -> int:
    """Room for the draws that floats cannot decide: their mean and twelve standard deviations, never more than all."""
    mean = count * min(1.0, _BEYOND + 2 * scale * MARGIN)
    return min(count, math.ceil(mean + 12 * math.sqrt(mean) + 64))


@functools.cache
def is_exact(device: torch.device) -> bool:
    """Whether a device keeps the promise of :data:`MARGIN`, with eight times less, on fixed words; asked once.

    Where it does not, or has no operation that is needed, the processor draws for it.
    """
    key = bytes(range(KEY_BYTES))
    try:
        words = chacha.words(key, _TESTED, device)
        values = words.to(torch.float64).mul_(2.0**-63).erfinv_().mul_(math.sqrt(2.0)).cpu().numpy()
        for scale in _SCALES:
            found = CardDraw(scale, _TESTED, device, _read_zeros, lambda _: key).finish().cpu()
            if not torch.equal(found, _decide(words.cpu(), scale, _read_zeros)):
                raise ArithmeticError("other integers than the processor's")
        if not _is_close(words.cpu().numpy().view(np.uint64), values):
            raise ArithmeticError("floats that are farther off than is allowed")
    except Exception as problem:  # no such operation there, or a wrong one
        log.warning("secure noise for %s is drawn on the processor, which is slower: %s", device, problem)
        return False
    return True


def _read_zeros(count: int) -> NDArray[np.uint64]:
    """Later words of a draw under test: the same in any order."""
    return np.zeros(count, dtype=np.uint64)


def _is_close(words: NDArray[np.uint64], values: NDArray[np.float64]) -> bool:
    """Whether these normals lie within an eighth of the margin of those that scipy makes of the words' tails."""
    tails = as_tails(words)
    right = -ndtri(((tails >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-64)
    right[(tails & np.uint64(1)) == 1] *= -1.0
    inside = np.abs(right) < REACH
    return bool((np.abs(values - right)[inside] < MARGIN / 8).all())
