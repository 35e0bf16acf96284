"""Whole numbers of noise drawn beside the training, while the card is busy with the step before.

Secure noise (:mod:`quietsum.learning.noise.gradient_noise`) is drawn on the processor, where its law is exact to the
last bit. A card would stand still for it. :class:`WholeAhead` has threads draw the noise of the next steps meanwhile;
its law depends on public numbers alone, its scale and how many there are, so it may be drawn before the sum that it is
for.
"""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final

import torch
from torch import Tensor

from quietsum.learning.rows.memory import make_room
from quietsum.mechanisms import RandomSource, system_randomness

__all__ = ["WholeAhead"]

_DRAWS = 2  # of this many steps
_PIECE = 1 << 17  # numbers that one thread draws at a time
_MOST_THREADS = 8


@final
class WholeAhead:
    """Rounded normals for coming steps.

    Guarantees: each number is handed out once, to one caller; every thread draws from a source of its own, which the
    operating system keys. Numbers of another scale, or for another count, are thrown away and drawn anew, and so are
    those that a forked child finds.
    """

    def __init__(self, make_source: Callable[[], RandomSource] = system_randomness) -> None:
        self._make_source, self._lock = make_source, threading.Lock()
        self._asked: tuple[float, int, int] | None = None
        self._coming: deque[tuple[Tensor, list[Future[None]]]] = deque()
        self._own = threading.local()

    def take(self, scale: float, count: int, device: torch.device) -> Tensor:
        """``count`` fresh draws of round(scale · N(0, 1)) in int64, in the memory of this machine, near ``device``."""
        process = os.getpid()
        if self._asked is not None and self._asked[2] != process:  # a fork may have copied a locked lock
            self._lock, self._own = threading.Lock(), threading.local()
        with self._lock:
            if self._asked != (scale, count, process):
                self._asked = scale, count, process
                self._coming.clear()
            while len(self._coming) <= _DRAWS:
                self._coming.append(self._begin(scale, count, device))
            drawn, parts = self._coming.popleft()
        for part in parts:
            part.result()
        return drawn

    def _begin(self, scale: float, count: int, device: torch.device) -> tuple[Tensor, list[Future[None]]]:
        out = make_room(count, (), torch.int64, device)
        threads = _threads(os.getpid())
        starts = range(0, count, _PIECE)
        return out, [threads.submit(self._draw, out[start : start + _PIECE], scale) for start in starts]

    def _draw(self, out: Tensor, scale: float) -> None:
        source: RandomSource | None = getattr(self._own, "source", None)
        if source is None:
            source = self._own.source = self._make_source()
        out.copy_(torch.from_numpy(source.rounded_normals(scale, len(out))))


@functools.lru_cache(maxsize=1)
def _threads(process: int) -> ThreadPoolExecutor:
    """Those of this process: half of its processors, so that the other half is left to the training."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return ThreadPoolExecutor(max(1, min(_MOST_THREADS, cores // 2)), thread_name_prefix="noise")
