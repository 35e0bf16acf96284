"""Whole numbers of noise for a step: on a card drawn there a step ahead, on a processor by all threads at once.

Secure noise (:mod:`quietsum.learning.noise.gradient_noise`) has a law that is exact to the last bit; a few draws in a
thousand are decided on the processor (:mod:`quietsum.learning.noise.whole`). A card would stand still for them, so
:class:`WholeAhead` begins each draw a step before it is needed. Its law depends on public numbers alone, its scale and
how many there are, so it may be drawn before the sum that it is for. For a card that cannot draw exactly, threads of
the processor draw ahead.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

import torch
from torch import Tensor

from quietsum.learning.noise.whole import CardDraw, fill_whole, is_exact
from quietsum.learning.rows.memory import make_room
from quietsum.mechanisms import RandomSource, system_randomness

__all__ = ["WholeAhead"]

_DRAWS = 2  # of this many steps, where the processor draws for a card
_PIECE = 1 << 17  # numbers that one thread draws at a time
_MOST_THREADS = 16


@final
class _Drawing:
    """Pieces of one draw, each made by a thread."""

    def __init__(self, out: Tensor, parts: list[Future[None]]) -> None:
        self._out, self._parts = out, parts

    def finish(self) -> Tensor:
        """The whole of it. What went wrong in a thread is raised here, and nothing is handed out."""
        for part in self._parts:
            part.result()
        return self._out


@final
class WholeAhead:
    """Rounded normals for this step and coming ones.

    Guarantees: each number is handed out once, to one caller; every thread draws from a source of its own, which the
    operating system keys, and every draw on a card has a key of its own. Numbers of another scale, for another count,
    or of another stream of a card are thrown away and drawn anew, and so are those that a forked child finds. A thread
    that fails fails the draw.
    """

    def __init__(self, make_source: Callable[[], RandomSource] = system_randomness) -> None:
        self._make_source = make_source
        self._forget()
        _LIVING.add(self)

    def _forget(self) -> None:
        """Begin anew, in this process."""
        self._process, self._lock, self._own = os.getpid(), threading.Lock(), threading.local()
        self._asked: tuple[float, int, torch.device, int] | None = None
        self._coming: deque[CardDraw | _Drawing] = deque()
        self._left, self._left_for, self._stock = torch.empty(0, dtype=torch.int64), 0.0, 0

    def take(self, scale: float, count: int, device: torch.device) -> Tensor:
        """``count`` fresh draws of round(scale · N(0, 1)) in int64, on ``device`` or in the memory near it.

        Those of the next step are begun.
        """
        self._look_for_fork()
        stream = int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0
        with self._lock:
            if self._asked != (scale, count, device, stream):
                self._asked = scale, count, device, stream
                self._coming.clear()
            if not self._coming:
                self._begin(scale, count, device)
            drawn = self._coming.popleft().finish()
            self._begin(scale, count, device)
            return drawn

    def draw(self, scale: float, count: int) -> Tensor:
        """``count`` fresh draws on the processor, by as many threads as torch may use.

        For a small model those of several steps are made at once, and a caller only reads what it is handed.
        """
        if 2 * count <= _PIECE:
            return self._draw_few(scale, count)
        pieces = -(-count // _PIECE)
        if pieces < 2 or min(torch.get_num_threads(), _cores()) < 2:
            out = torch.empty(count, dtype=torch.int64)
            self._fill(out, scale)
            return out
        return self._share_out(torch.empty(count, dtype=torch.int64), scale, torch.get_num_threads()).finish()

    def _draw_few(self, scale: float, count: int) -> Tensor:
        """The next ``count`` of some that were drawn for this scale; twice as many are drawn each time."""
        self._look_for_fork()
        with self._lock:
            if self._left_for != scale or len(self._left) < count:
                self._left = torch.empty(0, dtype=torch.int64)  # should drawing fail, nothing is left
                self._stock = min(_PIECE, max(count, 2 * self._stock if self._left_for == scale else count))
                fresh = torch.empty(self._stock, dtype=torch.int64)
                self._fill(fresh, scale)
                self._left, self._left_for = fresh, scale
            drawn, self._left = self._left[:count], self._left[count:]
            return drawn

    def _look_for_fork(self) -> None:
        if self._process != os.getpid():  # one that Python was not told about
            self._forget()

    def _begin(self, scale: float, count: int, device: torch.device) -> None:
        if _draws_itself(device):
            self._coming.append(CardDraw(scale, count, device, self._source().words))
        while not self._coming or (isinstance(self._coming[0], _Drawing) and len(self._coming) < _DRAWS):
            out = make_room(count, (), torch.int64, device)
            self._coming.append(self._share_out(out, scale, max(1, _cores() - 1)))

    def _share_out(self, out: Tensor, scale: float, threads: int) -> _Drawing:
        pool = _threads(os.getpid(), min(_MOST_THREADS, threads, _cores()))
        pieces = torch.split(out, _PIECE)
        return _Drawing(out, [pool.submit(self._fill, piece, scale) for piece in pieces])

    def _fill(self, out: Tensor, scale: float) -> None:
        fill_whole(out, scale, self._source())

    def _source(self) -> RandomSource:
        """That of this thread."""
        source: RandomSource | None = getattr(self._own, "source", None)
        if source is None:
            source = self._own.source = self._make_source()
        return source


_LIVING: weakref.WeakSet[WholeAhead] = weakref.WeakSet()


def _begin_again() -> None:
    for one in list(_LIVING):
        one._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)  # a fork may have copied a locked lock, and numbers with it


def _draws_itself(device: torch.device) -> bool:
    return device.type != "cpu" and is_exact(device)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.lru_cache(maxsize=2)
def _threads(process: int, many: int) -> ThreadPoolExecutor:
    """Those of this process."""
    return ThreadPoolExecutor(many, thread_name_prefix="noise")
