"""Checkpoints and models on disk, with plan and spend in their header.

A training run in a workspace::

    ledger.db  ledger.db.key              shared with all other runs of the workspace
    training/digits-1/
      checkpoint.safetensors              weights, optimizer, averages; the plan, the spend and the ledger's head
      model.safetensors                   the finished model with its guarantee in the header

Every chunk of steps (an epoch) is reserved in the ledger before its first step and committed before anything of it is
written (:mod:`quietsum.learning.spending`). A chunk that was killed stays charged: a resumed run continues after it,
with the weights from before it, so the run never costs more than its plan and the ledger never shows less than what
ran. No file holds the state of a random generator.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.files import RESUME, check_room, no_room, write_atomically

__all__ = [
    "VERSION",
    "Checkpoint",
    "check_checkpoint_fits",
    "fill_model",
    "read_checkpoint",
    "read_headed",
    "read_model_header",
    "save_module",
    "write_checkpoint",
    "write_headed",
]

VERSION = 2
Tensors = dict[str, Tensor]


# ---------------------------------------------------------------------------------------------- files


def save_module(path: str | os.PathLike[str], model: nn.Module, about: Mapping[str, Any]) -> None:
    """The model with plan and spend in its header, there as a whole or not at all."""
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    _write(Path(path), tensors, {**about, "version": VERSION, "kind": "model"})


def write_headed(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Tensors with a header, there as a whole or not at all."""
    _write(path, dict(tensors), {**about, "version": VERSION})


def read_headed(path: Path) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Tensors and header of any file that is written here; a damaged one is refused."""
    return _read(path)


def fill_model(path: str | os.PathLike[str], model: nn.Module) -> Mapping[str, Any]:
    """Fill ``model`` from what :func:`save_module` wrote, and return the header."""
    tensors, about = _read(Path(path))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CorruptState(f"{path} holds another model: {str(error).splitlines()[-1].strip()}") from None
    return about


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights after some chunks, and what they had cost."""

    tensors: Tensors
    about: Mapping[str, Any]

    def part(self, name: str) -> Tensors:
        """The tensors of ``model``, ``optimizer`` or ``average``."""
        prefix = f"{name}/"
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}

    def lost(self, run: str, charged: int) -> int:
        """How many of ``charged`` steps these weights know nothing of; a header that cannot be true is refused."""
        try:
            whose, done, before = self.about["run"], int(self.about["charged_steps"]), int(self.about["lost_steps"])
            float(self.about["clip"])
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptState(f"the checkpoint of {run} says too little of itself ({error})") from None
        if whose != run or not 0 <= before <= done <= charged:
            raise CorruptState(f"the checkpoint of {run} claims more than the ledger has charged, or another run")
        return charged - done + before


def write_checkpoint(path: Path, parts: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """One file, replaced as a whole."""
    tensors = {
        f"{part}/{name}": value.detach().cpu().clone().contiguous()
        for part, named in parts.items()
        for name, value in named.items()
    }
    _write(path, tensors, {**about, "version": VERSION, "kind": "checkpoint"})


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint, None where there is none yet; a damaged one is refused."""
    if not path.is_file():
        return None
    tensors, about = _read(path)
    return Checkpoint(tensors=tensors, about=about)


def check_checkpoint_fits(path: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise :class:`~quietsum.files.DiskFull` where the next checkpoint finds no room: before its steps are paid."""
    size = sum(tensor.nbytes for part in parts.values() for tensor in part.values())
    check_room(path.parent, size + 64 * 1024)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """Of the tensors and of all that the header says of them."""
    said = {name: value for name, value in about.items() if name != "digest"}
    total = hashlib.sha256(json.dumps(said, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _write(path: Path, tensors: Tensors, about: Mapping[str, Any]) -> None:
    from safetensors.torch import save

    text = json.dumps({**about, "digest": _digest(tensors, about)}, sort_keys=True, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_room(f"{path.parent} could not be made: {error.strerror or error}; {RESUME}", error) from None
    write_atomically(path, save(tensors, metadata={"quietsum": text}))


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            about = json.loads((file.metadata() or {})["quietsum"])
        if about["version"] != VERSION:
            raise CorruptState(f"{path} has version {about['version']!r}, this quietsum reads {VERSION}")
        if about["digest"] != _digest(tensors, about):
            raise CorruptState(f"{path} is not what was saved; restore it from a backup")
    except CorruptState:
        raise
    except FileNotFoundError:
        raise InvalidParameter("path", str(path), "does not exist", "train first") from None
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None
    return tensors, about


def read_model_header(path: Path) -> Mapping[str, Any]:
    """The header of a checkpoint or model, which names a ledger's head; raises CorruptState if it does not."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["quietsum"])
        about["head"]
        return about
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup, or delete it") from None
