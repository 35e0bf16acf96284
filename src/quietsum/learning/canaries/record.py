"""What an audited training keeps: which canaries were in, when each was drawn, and what was released of it.

A canary has one coordinate of its own behind the model's parameters. In a step that draws it, its clipped gradient is
the clip bound C in that coordinate; nothing else ever moves there. What a step releases there, divided by C, is
therefore

    y = b + N(0, σ²)        b = 1 if the canary was in and drawn, else 0

if the draw, the clip and the noise are those of the claim. Which canaries are in is a fair coin each, thrown and
written down before the first step.

**Nothing in a record is about a real record.** Canaries are made up, they are drawn by coins of their own, and real
records have no gradient in their coordinates. A faulty trainer may mix the two, so a record stays with the holder of
the data all the same: files are for their owner alone, and a report shows what was concluded and not the record.

A folder holds ``included.safetensors`` and one file for each chunk of steps, each with a digest of its own. Steps that
a kill has lost are absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.files import PRIVATE, no_room, write_atomically
from quietsum.validate import whole_number

__all__ = [
    "Canaries", "CanaryRecord", "choose_canaries", "read_canaries", "read_included", "read_tensors", "write_included",
    "write_steps", "write_tensors",
]  # fmt: skip

FEWEST, MOST = 16, 100_000
USUAL = 2000
_SHARE = 10  # one canary for so many records, of which half are in: a twentieth more rows
_VERSION = 1
_INCLUDED = "included.safetensors"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """How many canaries a training carries; if omitted one for each ten records, 16 to 2,000.

    A training with more epochs than its audit needs carries up to twice as many, in fewer of them.

    >>> Canaries(count=500)
    Canaries(count=500)
    >>> choose_canaries(Canaries(), 2000), choose_canaries(Canaries(), 60_000)
    (200, 2000)
    """

    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and whole_number("canaries", self.count, FEWEST) > MOST:
            raise InvalidParameter("canaries", self.count, f"is more than {MOST:,}", f"{USUAL} are usual")


def choose_canaries(canaries: Canaries, size: int) -> int:
    """The number of canaries for ``size`` records: the stated one, or about a twentieth more rows."""
    return max(FEWEST, min(USUAL, size // _SHARE)) if canaries.count is None else canaries.count


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryRecord:
    """What is known of the canaries of one run.

    ``included`` is the coin of each canary, ``steps`` numbers the recorded steps from 0 on, ``drawn`` says by step and
    canary who was drawn, and ``released`` what came out in its coordinate, in units of the clip bound.
    """

    included: NDArray[np.bool_]
    steps: NDArray[np.int64]
    drawn: NDArray[np.bool_]
    released: NDArray[np.float32]

    def __post_init__(self) -> None:
        shape = (len(self.steps), len(self.included))
        if self.drawn.shape != shape or self.released.shape != shape:
            raise CorruptState("the record of canaries does not fit together; restore it from a backup")
        if (np.diff(self.steps) <= 0).any() or (len(self.steps) and self.steps[0] < 0):
            raise CorruptState("the record of canaries holds a step twice; restore it from a backup")
        if not np.isfinite(self.released).all() or (self.drawn & ~self.included).any():
            raise CorruptState("the record of canaries cannot be true; restore it from a backup")

    @classmethod
    def join(cls, included: NDArray[np.bool_], chunks: Sequence[Mapping[str, NDArray[Any]]]) -> CanaryRecord:
        """One record of several chunks of steps."""
        count = len(included)
        return cls(
            included=included,
            steps=np.concatenate([np.empty(0, np.int64), *(chunk["steps"] for chunk in chunks)]),
            drawn=np.concatenate([np.empty((0, count), np.bool_), *(chunk["drawn"] for chunk in chunks)]),
            released=np.concatenate([np.empty((0, count), np.float32), *(chunk["released"] for chunk in chunks)]),
        )


def write_included(folder: Path, run: str, included: NDArray[np.bool_]) -> None:
    """Write down, before the first step, which canaries are in."""
    write_tensors(folder / _INCLUDED, run, {"included": included.astype(np.uint8)}, 0)


def write_steps(folder: Path, run: str, chunk: Mapping[str, NDArray[Any]]) -> None:
    """Write what some steps in a row released."""
    steps = chunk["steps"]
    tensors = {
        "steps": steps, "released": chunk["released"], "drawn": np.packbits(chunk["drawn"], axis=1),
    }  # fmt: skip
    write_tensors(folder / f"steps-{int(steps[0]):08d}.safetensors", run, tensors, chunk["drawn"].shape[1])


def read_included(folder: Path, run: str) -> NDArray[np.bool_] | None:
    """Which canaries are in; None if none were thrown. Raises CorruptState if that was altered."""
    if not (folder / _INCLUDED).is_file():
        return None
    try:
        found: NDArray[np.bool_] = read_tensors(folder / _INCLUDED, run)["included"].astype(np.bool_)
    except LookupError as error:
        raise CorruptState(f"{folder} holds no record of canaries ({error}); restore it from a backup") from None
    return found


def read_canaries(folder: Path, run: str) -> CanaryRecord | None:
    """The record of ``run`` in ``folder``; None if the run carried none. Raises CorruptState if it was altered."""
    included = read_included(folder, run)
    if included is None:
        return None
    try:
        chunks = []
        for path in sorted(folder.glob("steps-*.safetensors")):
            found = read_tensors(path, run)
            drawn = np.unpackbits(found["drawn"], axis=1, count=len(included)).astype(np.bool_)
            chunks.append({"steps": found["steps"], "drawn": drawn, "released": found["released"]})
        return CanaryRecord.join(included, chunks)
    except (LookupError, ValueError) as error:
        raise CorruptState(f"{folder} holds no record of canaries ({error}); restore it from a backup") from None


def _digest(run: str, tensors: Mapping[str, NDArray[Any]]) -> str:
    total = hashlib.sha256(json.dumps([_VERSION, run]).encode())
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {value.shape}\n".encode())
        total.update(np.ascontiguousarray(value).data)
    return total.hexdigest()


def write_tensors(path: Path, run: str, tensors: Mapping[str, NDArray[Any]], count: int) -> None:
    """Write arrays of ``run`` with their digest into a file for its owner alone."""
    from safetensors.numpy import save

    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    about = {"version": _VERSION, "kind": "canaries", "run": run, "count": count, "digest": _digest(run, whole)}
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise no_room(f"{path.parent} could not be made: {error.strerror or error}", error) from None
    write_atomically(path, save(whole, metadata={"quietsum": json.dumps(about)}), mode=PRIVATE)


def read_tensors(path: Path, run: str) -> dict[str, NDArray[Any]]:
    """What :func:`write_tensors` wrote of ``run``; CorruptState if it is anything else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            about = json.loads((file.metadata() or {})["quietsum"])
        if about["version"] != _VERSION or about["run"] != run:
            raise CorruptState(f"{path} is the record of another run, or of another version")
        if about["digest"] != _digest(run, tensors):
            raise CorruptState(f"{path} is not what was written; restore it from a backup")
        return tensors
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None
