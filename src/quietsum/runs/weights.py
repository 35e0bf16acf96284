"""A finished torch model by the names of its weights: what ``load_state_dict`` takes, beside ``model.safetensors``.

The vector in ``model.safetensors`` is what the federation has averaged, in the order in which the model names its
trainable weights. ``weights.safetensors`` holds the same weights as a state dict, buffers included, so that any program
that reads the format can use them without quietsum. Its header says what the model cost, as that of the vector does,
and two hashes more: of these tensors, and of the vector that they were made of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quietsum.errors import CorruptState
from quietsum.federation import model_hash
from quietsum.files import write_atomically
from quietsum.runs.sealed import add_check, take_check

__all__ = ["read_weights", "save_weights"]

Tensors = Mapping[str, npt.NDArray[Any]]
_AGAIN = "delete it, then quietsum run --resume writes it again from the last checkpoint"


def save_weights(path: Path, tensors: Tensors, params: npt.NDArray[np.float64], about: Mapping[str, Any]) -> None:
    """Write ``tensors`` as a whole or not at all, with ``about`` in the header: they are the model ``params``."""
    from safetensors.numpy import save

    kept = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    told = {**about, "model": model_hash(params), "tensors": _digest(kept)}
    text = json.dumps(add_check(told), sort_keys=True, allow_nan=False)
    write_atomically(path, save(kept, metadata={"format": "pt", "quietsum": text}))


def read_weights(path: Path) -> tuple[dict[str, npt.NDArray[Any]], Mapping[str, Any]]:
    """What :func:`save_weights` wrote; anything truncated, altered or foreign raises CorruptState."""
    from safetensors import SafetensorError, safe_open

    if path.exists() and not path.is_file():
        raise CorruptState(f"{path} is no plain file; {_AGAIN}")
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            about = take_check(json.loads((file.metadata() or {})["quietsum"]))
        if about["tensors"] != _digest(tensors):
            raise CorruptState(f"{path} is not what was saved; {_AGAIN}")
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); {_AGAIN}") from None
    return tensors, about


def _digest(tensors: Tensors) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        total.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode() + b"\n")
        total.update(np.ascontiguousarray(value).tobytes())
    return total.hexdigest()
