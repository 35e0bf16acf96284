"""Checkpoints: the model, the optimizer's memory, and what it cost, in one file that is written as a whole.

A checkpoint is a safetensors file. ``params`` is the model; all else that a round starts from (an optimizer's memory, a
clip that adapts) lies beside it as ``slots.<name>``. Its header is JSON that any program can read; the key ``quietsum``
holds the round, a hash of every vector, the ledger's signed head and the privacy block. It never holds the state of a
random generator: noise that could be replayed would cancel.

What a rule remembers of each party (FoolsGold's sums of updates, trust's merits) is the operator's alone (rule 5). It
lies in a file of its own beside the checkpoint, ``operator-000020.safetensors``, mode 0600, so that a checkpoint can be
handed on without it. Guarantees: it is on disk before its checkpoint is, and is removed after it; so after a crash at
any moment the newest checkpoint has the memory that it was saved with. The checkpoint's header holds one hash of it,
blinded by a random number that only the operator's file holds: who took part can be guessed, and a bare hash would
confirm the guess.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np

from quietsum import files
from quietsum.aggregation import ServerState
from quietsum.errors import CorruptState, QuietsumError
from quietsum.failpoints import reach
from quietsum.federation import model_hash
from quietsum.files import PRIVATE, write_atomically
from quietsum.ledger import Head
from quietsum.runs.sealed import add_check, take_check
from quietsum.validate import whole_number

__all__ = [
    "KEPT",
    "VERSION",
    "RunCheckpoint",
    "apart",
    "check_space",
    "head_of",
    "header_of",
    "latest_checkpoint",
    "load_checkpoint",
    "newest_checkpoint",
    "read_model",
    "save_checkpoint",
    "save_model",
]

VERSION = 2
WITH_MEMORY = 3
"""The version of a checkpoint with a file beside it: an older quietsum would go on without what is in there."""
KEPT = 3
"""So many checkpoints stay; older ones are removed after a new one is safe."""

HEADER = 64 * 1024
"""More than what stands in a checkpoint beside its vectors."""

_NAME = re.compile(r"round-(\d{6})\.safetensors")
_MEMORY = re.compile(r"operator-(\d{6})\.safetensors")
_SLOT = "slots."
_SAME = ("version", "run", "plan", "round")
"""What a checkpoint and its operator's file say alike."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCheckpoint:
    """Everything a run needs to go on after ``round``, and the head of the ledger that paid for it.

    ``privacy`` is for people and for the check on resume: target δ, the sample and the user history, both cumulative ε.
    """

    run: str
    plan: str
    round: int
    state: ServerState
    head: Head
    privacy: Mapping[str, Any]


def apart(path: Path) -> Path:
    """Where the operator's part of the checkpoint in ``path`` lies: ``round-000020`` → ``operator-000020``."""
    return path.with_name(path.name.replace("round-", "operator-", 1))


def save_checkpoint(folder: Path, checkpoint: RunCheckpoint, *, of_parties: Collection[str] = ()) -> Path:
    """Write ``checkpoint`` into ``folder`` atomically, then remove all but the newest few.

    Slots that are named in ``of_parties`` go into the operator's file beside it.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"round-{checkpoint.round:06d}.safetensors"
    slots = checkpoint.state.slots
    alone = {name: vector for name, vector in slots.items() if name in of_parties}
    shared = {name: vector for name, vector in slots.items() if name not in of_parties}
    about: dict[str, Any] = {
        "version": WITH_MEMORY if alone else VERSION,
        "run": checkpoint.run,
        "plan": checkpoint.plan,
        "round": checkpoint.round,
        "head": checkpoint.head.to_dict(),
        "privacy": checkpoint.privacy,
        "model": model_hash(checkpoint.state.params),
        "slots": {name: model_hash(vector) for name, vector in shared.items()},
    }
    if alone:
        told = {name: about[name] for name in _SAME}
        told |= {"blind": secrets.token_hex(32), "slots": {name: model_hash(vector) for name, vector in alone.items()}}
        about["operator"] = _commitment(told)
        write_atomically(apart(path), _pack(alone, told), mode=PRIVATE)
        reach("checkpoint:memory")
    write_atomically(path, _pack({"": checkpoint.state.params, **shared}, about))
    reach("checkpoint:written")
    for old in _paths(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    kept = {apart(one).name for one in _paths(folder)}
    for old in folder.glob("operator-*.safetensors"):
        if _MEMORY.fullmatch(old.name) and old.name not in kept and not old.is_dir():
            old.unlink(missing_ok=True)
    return path


def _commitment(told: Mapping[str, Any]) -> str:
    """What a checkpoint says of the header of its operator's file: bound to it, and telling nothing of it."""
    text = json.dumps([told["blind"], dict(told["slots"])], sort_keys=True)
    return hashlib.sha256(f"quietsum: what a rule remembers\n{text}".encode()).hexdigest()


def _pack(vectors: Mapping[str, np.ndarray], about: Mapping[str, Any]) -> bytes:
    """A safetensors file of slots by name, "" for the model."""
    from safetensors.numpy import save

    named = {f"{_SLOT}{name}" if name else "params": vector for name, vector in vectors.items()}
    text = json.dumps(add_check(dict(about)), sort_keys=True, allow_nan=False)
    return bytes(save(named, metadata={"quietsum": text}))


def check_space(folder: Path, state: ServerState) -> None:
    """Raise :class:`~quietsum.files.DiskFull` where the checkpoint after ``state`` finds no room: before it is paid."""
    vectors = (state.params, *state.slots.values())
    files.check_room(folder, 2 * HEADER + sum(vector.nbytes for vector in vectors))


def latest_checkpoint(folder: Path, *, of_parties: bool = True) -> RunCheckpoint | None:
    """The newest checkpoint in ``folder``; None where there is none yet. A damaged one is refused, not skipped.

    Without ``of_parties`` the operator's file beside it is not looked for, and its slots are missing.
    """
    paths = _paths(folder)
    return load_checkpoint(paths[-1], of_parties=of_parties) if paths else None


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*.safetensors") if _NAME.fullmatch(path.name))


def load_checkpoint(path: Path, *, of_parties: bool = True) -> RunCheckpoint:
    """The checkpoint in ``path``; anything truncated, altered or foreign raises CorruptState.

    So does an operator's file that is missing, or is not the one that this checkpoint was saved with, unless
    ``of_parties`` is False.
    """
    tensors, about = _open(path)
    try:
        if about["version"] not in (VERSION, WITH_MEMORY):
            raise CorruptState(
                f"{path} has version {about['version']!r}, this quietsum reads {VERSION} and {WITH_MEMORY}; use the "
                "one that wrote it"
            )
        hashes = dict(about["slots"])
        if set(tensors) != {"params", *(f"{_SLOT}{name}" for name in hashes)}:
            raise CorruptState(_say_damage(path, "it does not hold the vectors that its header names"))
        slots = {name: tensors[f"{_SLOT}{name}"] for name in hashes}
        _check_vectors(path, {"model": tensors["params"], **slots}, {"model": about["model"], **hashes})
        if of_parties and "operator" in about:
            slots |= _of_parties(path, about)
        return RunCheckpoint(
            run=str(about["run"]),
            plan=str(about["plan"]),
            round=whole_number("round", about["round"]),
            state=ServerState(params=tensors["params"], slots=slots),
            head=Head.from_dict(about["head"]),
            privacy=dict(about["privacy"]),
        )
    except CorruptState:
        raise
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(_say_damage(path, f"{error}")) from None


def _of_parties(path: Path, about: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The slots in the operator's file of the checkpoint in ``path``, which says in ``about`` what they are."""
    beside = apart(path)
    if not beside.exists():
        raise CorruptState(
            f"{beside} is missing: it holds what the rule remembers of each party, and is left out where a checkpoint "
            "is handed on; put it back beside the checkpoint, or go on where the run was made"
        )
    try:
        tensors, told = _open(beside)
        hashes = dict(told["slots"])
        if any(told[name] != about[name] for name in _SAME) or _commitment(told) != about["operator"]:
            raise CorruptState(f"it is not the one that {path.name} was saved with")
        if set(tensors) != {f"{_SLOT}{name}" for name in hashes}:
            raise CorruptState("it does not hold the vectors that its header names")
        slots = {name: tensors[f"{_SLOT}{name}"] for name in hashes}
        _check_vectors(beside, slots, hashes)
    except (CorruptState, LookupError, TypeError, ValueError) as error:
        why = str(error).removeprefix(f"{beside}: ").split(";")[0]
        raise CorruptState(
            f"{beside}: {why}; restore it from a backup, or delete {path.name} to go on from the checkpoint before it: "
            "the rounds since then are then made, and charged, once more"
        ) from None
    return slots


def _check_vectors(path: Path, vectors: Mapping[str, np.ndarray], hashes: Mapping[str, Any]) -> None:
    for name, vector in vectors.items():
        if vector.dtype != np.float64 or vector.ndim != 1 or not np.all(np.isfinite(vector)):
            raise CorruptState(f"{path}: the {name} is not a vector of finite float64 numbers")
        if hashes[name] != model_hash(vector):
            raise CorruptState(_say_damage(path, f"the {name} is not what was saved"))


def head_of(path: Path) -> Head:
    """The ledger's head in a checkpoint or a model; its tensors are not read."""
    try:
        return Head.from_dict(header_of(path)["head"])
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptState(_say_damage(path, f"it cannot be read ({error})")) from None


def header_of(path: Path) -> dict[str, Any]:
    """What a checkpoint or a model says of itself; its tensors are not read."""
    from safetensors import SafetensorError, safe_open

    _require_plain(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return take_check(json.loads((file.metadata() or {})["quietsum"]))
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CorruptState(_say_damage(path, f"it cannot be read ({error})")) from None


def newest_checkpoint(folder: Path) -> int | None:
    """The round of the newest checkpoint in ``folder``, which is not read; None where there is none yet."""
    paths = _paths(folder)
    found = _NAME.fullmatch(paths[-1].name) if paths else None
    return None if found is None else int(found[1])


def save_model(path: Path, params: np.ndarray, about: Mapping[str, Any]) -> None:
    """The finished model alone, with its guarantee in the header."""
    from safetensors.numpy import save

    text = json.dumps(add_check({**about, "model": model_hash(params)}), sort_keys=True, allow_nan=False)
    write_atomically(path, save({"params": params}, metadata={"quietsum": text}))


def read_model(path: Path) -> tuple[np.ndarray, Mapping[str, Any]]:
    """What :func:`save_model` wrote."""
    try:
        tensors, about = _open(path)
        params = tensors["params"]
        if "model" in about and about["model"] != model_hash(params):
            raise CorruptState(_say_damage(path, "the model is not what was saved"))
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
        about = take_check(about) if isinstance(about, dict) else about
    except (SafetensorError, OSError, LookupError, ValueError, RecursionError) as error:
        raise CorruptState(_say_damage(path, f"it cannot be read ({error})")) from None
    if not isinstance(about, dict):
        raise CorruptState(_say_damage(path, "its header is not an object"))
    return tensors, about


def _require_plain(path: Path) -> None:
    if path.exists() and not path.is_file():  # a pipe would hold whoever opens it for ever
        raise CorruptState(_say_damage(path, "it is no plain file"))


def _say_damage(path: Path, problem: str) -> str:
    return (
        f"{path}: {problem}; restore it from a backup, or delete it to go on from the checkpoint before it: the rounds "
        "since then are then made, and charged, once more"
    )
