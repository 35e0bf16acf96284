"""Several processes that make one private step: one draw is shared out, the sums are added up, one noise is added.

    g = ( Σ_r Σ_{i in B_r} clip_C(∇ℓ_i) + noise ) / E        B_0, B_1, … are the shares of one Poisson batch B

The first process draws B over all records and hands every process its share; each clips the records of its share where
they lie; the sums are added up at the first process, which adds the noise once and sends all what it has released. So
the step has the law of a step of one process, for any number of them, and costs the same: the draw is one Poisson draw,
no record is in two shares, no share is padded, and an empty share adds zeros like any other. If the first process is
missing there is no noise and no step.

:class:`Processes` is what a step and a trainer ask. :class:`OneProcess` is the answer where there is one,
:class:`ManyProcesses` where ``torch.distributed`` has a process group of several; :func:`find_processes` says which.
The words between processes are bytes with a name in front, over a group of gloo's that no card can hold up; only sums
and releases travel by the user's own group (nccl). The draws of some steps travel at once, so that each process may
read ahead of its steps as fast as it can.

Everything that travels here is private but the release: the processes are one party, and their network is inside it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from quietsum.errors import BudgetExhausted, QuietsumError
from quietsum.learning.callbacks import StopTraining

__all__ = ["ManyProcesses", "OneProcess", "ProcessLost", "Processes", "count_processes", "find_processes"]

T = TypeVar("T")
Release = Callable[[Sequence[Tensor]], Sequence[Tensor]]

_FRAME = 4096  # bytes of a word that travel at once
_COMPARED = 64  # one release in so many is preceded by a comparison of the weights
_RAISED: Mapping[str, type[Exception]] = {"BudgetExhausted": BudgetExhausted, "StopTraining": StopTraining}


class ProcessLost(QuietsumError):
    """Another process of the training has ended or does not answer. What was reserved stays charged."""

    exit_code = 1


class Processes(Protocol):
    """Those that make one step together. Each of them calls the same methods in the same order."""

    @property
    def count(self) -> int:
        """How many there are."""
        ...

    @property
    def first(self) -> bool:
        """Whether this is the one that draws, adds the noise, and keeps ledger and files."""
        ...

    def do(self, what: str, act: Callable[[], T]) -> T | None:
        """Let the first process act while the others wait: they get None, or the error that it raised."""
        ...

    def decide(self, what: str, act: Callable[[], T]) -> T:
        """What ``act`` returns at the first process, at all of them. It must be made of JSON's values."""
        ...

    def send_tensors(self, what: str, act: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """Tensors by name of the first process, at all of them; on the CPU."""
        ...

    def share_out(self, draw: Callable[[], NDArray[np.int64]], count: int) -> Iterator[NDArray[np.int64]]:
        """This process's shares of ``count`` draws. Each number of a draw is in exactly one share."""
        ...

    def release(self, sums: Sequence[Tensor], make: Release, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What ``make`` makes at the first process of the sum over all processes; shapes and types are of ``like``."""
        ...

    def add_counts(self, *counts: int) -> tuple[int, ...]:
        """The sums over all processes."""
        ...

    def gather(self, what: str, word: bytes) -> list[bytes]:
        """The words of all processes, in their order."""
        ...

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Write the values of the first process into the tensors of the others."""
        ...

    def compare(self, parameters: Sequence[Tensor], *, now: bool = False) -> None:
        """Raise where the weights are no longer the same, to the bit, at all processes; looked at every so often."""
        ...

    def leave(self) -> None:
        """End what this process has with the others: they hear of it at once, wherever they wait."""
        ...


@final
class OneProcess:
    """No others: everything is done here."""

    count, first = 1, True

    def do(self, what: str, act: Callable[[], T]) -> T | None:
        """What ``act`` returns."""
        return act()

    def decide(self, what: str, act: Callable[[], T]) -> T:
        """What ``act`` returns."""
        return act()

    def send_tensors(self, what: str, act: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """What ``act`` returns."""
        return act()

    def share_out(self, draw: Callable[[], NDArray[np.int64]], count: int) -> Iterator[NDArray[np.int64]]:
        """Whole draws, each made when it is asked for."""
        return (draw() for _ in range(count))

    def release(self, sums: Sequence[Tensor], make: Release, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What ``make`` makes of the sums."""
        return tuple(make(sums))

    def add_counts(self, *counts: int) -> tuple[int, ...]:
        """The counts."""
        return counts

    def gather(self, what: str, word: bytes) -> list[bytes]:
        """The word."""
        return [word]

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Nothing."""

    def compare(self, parameters: Sequence[Tensor], *, now: bool = False) -> None:
        """Nothing."""

    def leave(self) -> None:
        """Nothing."""


def find_processes() -> Processes:
    """The processes of ``torch.distributed``, if it has a process group of several; every one of them must call this.

    Raises QuietsumError where a launcher has started several and none has initialised the group: each would train a
    model of its own, with a noise and a charge of its own.
    """
    return ManyProcesses() if count_processes() > 1 else OneProcess()


def count_processes() -> int:
    """How many processes torch's default group has; 1 without one. Raises as :func:`find_processes` does."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    count = os.environ.get("WORLD_SIZE", "")
    if "RANK" in os.environ and count.isdecimal() and int(count) > 1:
        raise QuietsumError(
            f"this is one of {count} processes (WORLD_SIZE), and torch.distributed has no process group: each would "
            "train a model of its own, with a charge of its own. Call torch.distributed.init_process_group() first; "
            "or, if these trainings have nothing to do with each other, start each without RANK and WORLD_SIZE"
        )
    return 1


@final
class ManyProcesses:
    """The processes of torch's default group, of which the one of rank 0 is the first.

    Guarantees: what :meth:`release` returns holds the noise of the first process alone and the sum of every process,
    or it raises; so does every other method where a process has ended, has left, is elsewhere in the program, or has
    not answered within the time that ``init_process_group(timeout=…)`` was given.
    """

    def __init__(self) -> None:
        self._rank, self.count = dist.get_rank(), dist.get_world_size()
        self._gone, self._releases = False, 0
        with self._answering("the beginning"):
            self._words: Any = dist.new_group(backend="gloo", timeout=_find_patience())
        self._by_card = "cuda:nccl" in dist.get_backend_config()

    @property
    def first(self) -> bool:
        """Whether this is rank 0."""
        return self._rank == 0

    # ------------------------------------------------------------------------------------------------- words

    def do(self, what: str, act: Callable[[], T]) -> T | None:
        """See :class:`Processes`."""
        found = self._act(what, act, lambda _: None)
        return found[0] if found else None

    def decide(self, what: str, act: Callable[[], T]) -> T:
        """See :class:`Processes`."""
        found = self._act(what, act, lambda value: json.dumps(value, default=float))
        return found[0]  # type: ignore[no-any-return]

    def _act(self, what: str, act: Callable[[], Any], write: Callable[[Any], str | None]) -> tuple[Any, ...]:
        """(What ``act`` returned,) at the first; at the others (what they were sent,), or () if that was nothing."""
        if self.first:
            try:
                value = act()
                written = write(value)
            except Exception as error:
                self._pass(what, json.dumps({"error": type(error).__name__, "text": str(error)}).encode())
                raise
            self._pass(what, json.dumps({"done": written}).encode())
            return (value,)
        word = json.loads(self._pass(what))
        if "error" in word:
            raise self._as_error(what, word["error"], word["text"])
        return () if word["done"] is None else (json.loads(word["done"]),)

    def _as_error(self, what: str, kind: str, text: str) -> Exception:
        if kind in _RAISED:
            return _RAISED[kind](text)
        return QuietsumError(f"the first of {self.count} processes could not go on at {what}: {kind}: {text}")

    def send_tensors(self, what: str, act: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
        """See :class:`Processes`."""
        mine: Mapping[str, Tensor] = {}

        def describe() -> list[list[Any]]:
            nonlocal mine
            mine = {name: value.detach().cpu().contiguous() for name, value in act().items()}
            return [[name, str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in mine.items()]

        said = self.decide(what, describe)
        if not self.first:
            mine = {name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, dtype, shape in said}
        self.spread(list(mine.values()))
        return mine

    def gather(self, what: str, word: bytes) -> list[bytes]:
        """See :class:`Processes`."""
        found = []
        for rank in range(self.count):
            found.append(self._pass(what, word if rank == self._rank else b"", rank))
        return found

    def add_counts(self, *counts: int) -> tuple[int, ...]:
        """See :class:`Processes`."""
        words = [json.loads(word) for word in self.gather("counts", json.dumps(counts).encode())]
        return tuple(sum(column) for column in zip(*words, strict=True))

    def _pass(self, what: str, word: bytes = b"", source: int = 0) -> bytes:
        """A word of one process at all of them, with its name, by which they see that they are at the same place."""
        name = what.encode()
        with self._answering(what):
            frame = torch.zeros(_FRAME, dtype=torch.uint8)
            if source == self._rank:
                whole = len(name).to_bytes(8, "little") + len(word).to_bytes(8, "little") + name + word
                rest = _as_bytes(whole)
                frame[: min(_FRAME, len(rest))] = rest[:_FRAME]
            dist.broadcast(frame, src=source, group=self._words)
            if source == self._rank:
                if len(rest) > _FRAME:
                    dist.broadcast(rest[_FRAME:].clone(), src=source, group=self._words)
                return word
            head = frame.numpy().tobytes()
            names, words = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:16], "little")
            if 16 + names + words > _FRAME:
                more = torch.empty(16 + names + words - _FRAME, dtype=torch.uint8)
                dist.broadcast(more, src=source, group=self._words)
                head += more.numpy().tobytes()
        if head[16 : 16 + names] != name:
            other = head[16 : 16 + names].decode(errors="replace")
            self.leave()
            raise ProcessLost(
                f"process {source} is at {other} where this one is at {what}: each of the {self.count} processes must "
                "make the same calls in the same order; what was reserved stays charged"
            )
        return head[16 + names : 16 + names + words]

    @contextlib.contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """Make one sentence of what torch says when a process does not answer."""
        if self._gone:
            raise ProcessLost(f"this process has left the {self.count} of its training; start all of them again")
        try:
            yield
        except RuntimeError as error:
            self.leave()
            said = re.sub(r"^\[[^]]*\]\s*", "", str(error).strip()).partition("\n")[0].partition(". ")[0]
            raise ProcessLost(
                f"another of the {self.count} processes of this training has ended or does not answer, at {what} "
                f"({said}). No step was made without it, and what was reserved stays charged; start all of them again, "
                "and go on with resume=True if there is a workspace"
            ) from None

    # -------------------------------------------------------------------------------------------- draw and sum

    def share_out(self, draw: Callable[[], NDArray[np.int64]], count: int) -> Iterator[NDArray[np.int64]]:
        """See :class:`Processes`. The shares of one draw differ by one number at most."""
        made = [draw() for _ in range(count)] if self.first else []
        word = np.concatenate([[len(one) for one in made], *made]).astype("<i8").tobytes() if made else b""
        numbers = np.frombuffer(self._pass("the draws", word), dtype="<i8").astype(np.int64)
        ends = count + np.cumsum(numbers[:count])
        return iter([one[self._rank :: self.count].copy() for one in np.split(numbers[count:], ends[:-1] - count)])

    def release(self, sums: Sequence[Tensor], make: Release, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """See :class:`Processes`. The sums are added up in float64, so that their order weighs nothing."""
        flat = torch.cat([part.detach().reshape(-1).to(torch.float64) for part in sums])
        total = self._add_up(flat)
        parts = [torch.empty_like(part, requires_grad=False, memory_format=torch.contiguous_format) for part in like]
        if self.first:
            whole = [
                piece.view(part.shape).to(part.dtype)
                for piece, part in zip(torch.split(total, [part.numel() for part in sums]), sums, strict=True)
            ]
            for part, made in zip(parts, make(whole), strict=True):
                part.copy_(made)
        self.spread(parts)
        return tuple(parts)

    def _add_up(self, flat: Tensor) -> Tensor:
        """The sum over all processes, at the first of them; what the others get is nothing to go by."""
        with self._answering("a sum"):
            on_card = self._by_card and flat.device.type == "cuda"
            moved = flat if on_card else flat.cpu()
            dist.reduce(moved, dst=0, group=None if on_card else self._words)
            return moved.to(flat.device)

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """See :class:`Processes`."""
        filled = [tensor for tensor in tensors if tensor.numel()]
        if not filled:
            return
        device = filled[0].device
        octets = torch.cat([part.detach().contiguous().reshape(-1).view(torch.uint8).to(device) for part in filled])
        with self._answering("a release"):
            on_card = self._by_card and device.type == "cuda"
            moved = octets if on_card else octets.cpu()
            dist.broadcast(moved, src=0, group=None if on_card else self._words)
        if self.first:
            return
        with torch.no_grad():
            sizes = [part.numel() * part.element_size() for part in filled]
            for part, piece in zip(filled, torch.split(moved, sizes), strict=True):
                part.detach().copy_(piece.clone().view(part.dtype).view(part.shape))

    def compare(self, parameters: Sequence[Tensor], *, now: bool = False) -> None:
        """See :class:`Processes`."""
        self._releases += 1
        if not now and self._releases % _COMPARED != 1:
            return
        words = self.gather("a comparison of the weights", b"".join(_digest(part) for part in parameters))
        if any(word != words[0] for word in words):
            self.leave()
            raise QuietsumError(
                f"the weights of the {self.count} processes are no longer the same: something other than the private "
                "step has moved them (a scheduler that goes by numbers of its own process, a change by hand, another "
                "kind of card). What was reserved stays charged; go on from the last checkpoint"
            )

    def leave(self) -> None:
        """See :class:`Processes`."""
        if self._gone:
            return
        self._gone = True
        with contextlib.suppress(Exception):  # of a group that is broken already
            dist.destroy_process_group(self._words)
        self._words = None  # the connections end with the last reference


def _as_bytes(word: bytes) -> Tensor:
    return torch.frombuffer(bytearray(word), dtype=torch.uint8)


def _digest(part: Tensor) -> bytes:
    """Two sums over the bits of ``part``, one of them with weights, made where it lies."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[part.element_size()]
    bits = part.detach().contiguous().reshape(-1).view(whole).to(torch.int64)
    place = torch.arange(len(bits), device=bits.device).remainder_(8191).add_(1)
    both = torch.stack([bits.sum(), place.mul_(bits).sum()])  # whole numbers, which add up alike in every order
    return both.cpu().numpy().astype("<i8").tobytes()


def _find_patience() -> datetime.timedelta:
    """The time that the user's group was given to answer; torch's own default where it does not say."""
    default: datetime.timedelta = dist.distributed_c10d.default_pg_timeout
    for kind in ("cpu", "cuda"):
        with contextlib.suppress(Exception):  # torch has no public way to ask
            found: Any = dist.group.WORLD
            return found._get_backend(torch.device(kind)).options._timeout  # type: ignore[no-any-return]
    return default
