"""Checkpoints: the model, the optimizer's memory, and what it cost, in one file that is written as a whole.

A checkpoint is a safetensors file. ``params`` is the model; whatever else a round starts from (an optimizer's memory, a
clip that adapts) lies beside it as ``slots.<name>``. Its header is JSON that any program can read; the key ``quietsum``
holds the round, a hash of every vector, the ledger's signed head and the privacy block. It never holds the state of a
random generator: noise that could be replayed would cancel.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from quietsum import files
from quietsum.aggregation import ServerState
from quietsum.errors import CorruptState, QuietsumError, whole_number
from quietsum.federation.messages import model_hash
from quietsum.files import write_atomically
from quietsum.ledger import Head
from quietsum.runs.sealed import checked, sealed

__all__ = [
    "KEPT",
    "VERSION",
    "Checkpoint",
    "check_room",
    "head_of",
    "header_of",
    "latest",
    "load_model",
    "newest",
    "read",
    "save_model",
    "write",
]

VERSION = 2
KEPT = 3
"""So many checkpoints stay; older ones are removed after a new one is safe."""

HEADER = 64 * 1024
"""More than what stands in a checkpoint beside its vectors."""

_NAME = re.compile(r"round-(\d{6})\.safetensors")
_SLOT = "slots."


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to go on after ``round``, and the head of the ledger that paid for it.

    ``privacy`` is for people and for the check on resume: target δ, the sample and the user history, both cumulative ε.
    """

    run: str
    plan: str
    round: int
    state: ServerState
    head: Head
    privacy: Mapping[str, Any]


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``checkpoint`` into ``folder`` atomically, then remove all but the newest few."""
    from safetensors.numpy import save

    about = {
        "version": VERSION,
        "run": checkpoint.run,
        "plan": checkpoint.plan,
        "round": checkpoint.round,
        "head": checkpoint.head.to_dict(),
        "privacy": checkpoint.privacy,
        "model": model_hash(checkpoint.state.params),
        "slots": {name: model_hash(vector) for name, vector in checkpoint.state.slots.items()},
    }
    content = save(
        {
            "params": checkpoint.state.params,
            **{f"{_SLOT}{name}": vector for name, vector in checkpoint.state.slots.items()},
        },
        metadata={"quietsum": json.dumps(sealed(about), sort_keys=True, allow_nan=False)},
    )
    folder.mkdir(exist_ok=True)
    path = folder / f"round-{checkpoint.round:06d}.safetensors"
    write_atomically(path, content)
    for old in _paths(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def check_room(folder: Path, state: ServerState) -> None:
    """Raise :class:`~quietsum.files.DiskFull` where the checkpoint after ``state`` finds no room: before it is paid."""
    vectors = (state.params, *state.slots.values())
    files.check_room(folder, HEADER + sum(vector.nbytes for vector in vectors))


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in ``folder``; None where there is none yet. A damaged one is refused, not skipped."""
    paths = _paths(folder)
    return read(paths[-1]) if paths else None


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*.safetensors") if _NAME.fullmatch(path.name))


def read(path: Path) -> Checkpoint:
    """The checkpoint in ``path``; anything truncated, altered or foreign raises CorruptState."""
    tensors, about = _open(path)
    try:
        if about["version"] != VERSION:
            raise CorruptState(
                f"{path} has version {about['version']!r}, this quietsum reads {VERSION}; use the one that wrote it"
            )
        hashes = dict(about["slots"])
        if set(tensors) != {"params", *(f"{_SLOT}{name}" for name in hashes)}:
            raise CorruptState(_damaged(path, "it does not hold the vectors that its header names"))
        state = ServerState(params=tensors["params"], slots={name: tensors[f"{_SLOT}{name}"] for name in hashes})
        for name, vector, saved in (
            ("model", state.params, about["model"]),
            *((name, vector, hashes[name]) for name, vector in state.slots.items()),
        ):
            if vector.dtype != np.float64 or vector.ndim != 1 or not np.all(np.isfinite(vector)):
                raise CorruptState(f"{path}: the {name} is not a vector of finite float64 numbers")
            if saved != model_hash(vector):
                raise CorruptState(_damaged(path, f"the {name} is not what was saved"))
        return Checkpoint(
            run=str(about["run"]),
            plan=str(about["plan"]),
            round=whole_number("round", about["round"]),
            state=state,
            head=Head.from_dict(about["head"]),
            privacy=dict(about["privacy"]),
        )
    except CorruptState:
        raise
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(_damaged(path, f"{error}")) from None


def head_of(path: Path) -> Head:
    """The ledger's head in a checkpoint or a model; its tensors are not read."""
    try:
        return Head.from_dict(header_of(path)["head"])
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptState(_damaged(path, f"it cannot be read ({error})")) from None


def header_of(path: Path) -> dict[str, Any]:
    """What a checkpoint or a model says of itself; its tensors are not read."""
    from safetensors import SafetensorError, safe_open

    _require_plain(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return checked(json.loads((file.metadata() or {})["quietsum"]))
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CorruptState(_damaged(path, f"it cannot be read ({error})")) from None


def newest(folder: Path) -> int | None:
    """The round of the newest checkpoint in ``folder``, which is not read; None where there is none yet."""
    paths = _paths(folder)
    found = _NAME.fullmatch(paths[-1].name) if paths else None
    return None if found is None else int(found[1])


def save_model(path: Path, params: np.ndarray, about: Mapping[str, Any]) -> None:
    """The finished model alone, with its guarantee in the header."""
    from safetensors.numpy import save

    text = json.dumps(sealed({**about, "model": model_hash(params)}), sort_keys=True, allow_nan=False)
    write_atomically(path, save({"params": params}, metadata={"quietsum": text}))


def load_model(path: Path) -> tuple[np.ndarray, Mapping[str, Any]]:
    """What :func:`save_model` wrote."""
    try:
        tensors, about = _open(path)
        params = tensors["params"]
        if "model" in about and about["model"] != model_hash(params):
            raise CorruptState(_damaged(path, "the model is not what was saved"))
    except (CorruptState, LookupError):
        raise CorruptState(
            f"{path} cannot be read; delete it, then quietsum run --resume writes it again from the last checkpoint"
        ) from None
    return params, about


def _open(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    _require_plain(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        about = json.loads(metadata["quietsum"])
        about = checked(about) if isinstance(about, dict) else about
    except (SafetensorError, OSError, LookupError, ValueError, RecursionError) as error:
        raise CorruptState(_damaged(path, f"it cannot be read ({error})")) from None
    if not isinstance(about, dict):
        raise CorruptState(_damaged(path, "its header is not an object"))
    return tensors, about


def _require_plain(path: Path) -> None:
    if path.exists() and not path.is_file():  # a pipe would hold whoever opens it for ever
        raise CorruptState(_damaged(path, "it is no plain file"))


def _damaged(path: Path, problem: str) -> str:
    return (
        f"{path}: {problem}; restore it from a backup, or delete it to go on from the checkpoint before it: the rounds "
        "since then are then made, and charged, once more"
    )
