"""The trained parameters alone, in one small file that knows which frozen model they belong to.

With LoRA a few thousand numbers are trained of millions. :func:`save_trained` writes those and the SHA-256 of all the
others; :func:`fill_trained` fills a fresh model from such a file and refuses another base, a missing parameter and one
too many. So a file never ends up on a model that it was not trained on.

>>> base = nn.Linear(2, 2)
>>> base.weight.requires_grad_(False).shape
torch.Size([2, 2])
>>> hash_frozen(base) == hash_frozen(base), len(hash_frozen(base))
(True, 64)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.learning.engines.protocol import trainable
from quietsum.learning.saving import read_headed, write_headed

__all__ = ["fill_trained", "hash_frozen", "is_trained_alone", "save_trained"]

KIND = "trained"


def hash_frozen(model: nn.Module) -> str:
    """SHA-256 of all that is not trained: frozen parameters and saved buffers, with names, types and shapes.

    Empty where nothing is frozen.
    """
    own = set(trainable(model)[0])
    trained = {id(one) for one in trainable(model)[1]}
    found = {
        name: value for name, value in model.state_dict(keep_vars=True).items()
        if name not in own and id(value) not in trained
    }  # fmt: skip
    if not any(isinstance(value, nn.Parameter) for value in found.values()):
        return ""
    total = hashlib.sha256()
    for name in sorted(found):
        value = found[name].detach().cpu().contiguous()
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def save_trained(path: str | os.PathLike[str], model: nn.Module, about: Mapping[str, Any]) -> None:
    """The trainable parameters of ``model``, there as a whole or not at all, with the hash of the rest."""
    names, found = trainable(model)
    tensors: dict[str, Tensor] = {
        name: one.detach().cpu().clone().contiguous() for name, one in zip(names, found, strict=True)
    }
    write_headed(Path(path), tensors, {**about, "kind": KIND, "base": hash_frozen(model)})


def is_trained_alone(path: str | os.PathLike[str]) -> bool:
    """Whether the file holds trained parameters alone; a damaged one is refused."""
    return read_headed(Path(path))[1].get("kind") == KIND


def fill_trained(path: str | os.PathLike[str], model: nn.Module) -> Mapping[str, Any]:
    """Fill the trainable parameters of ``model`` from what :func:`save_trained` wrote, and return the header.

    Guarantees: nothing is changed unless all fits: the frozen part by its hash, every trainable parameter by name,
    shape and type, and none is left over.
    """
    tensors, about = read_headed(Path(path))
    if about.get("kind") != KIND:
        problem = "holds a whole model, not trained parameters alone"
        raise InvalidParameter("path", str(path), problem, "load it with PrivateTrainer.load()")
    if about.get("base") != hash_frozen(model):
        problem = "belongs to another frozen model: what is not trained has another SHA-256"
        raise InvalidParameter("path", str(path), problem, "load the base model that it was trained on")
    names, found = trainable(model)
    parameters = dict(zip(names, found, strict=True))
    lacking, extra = sorted(set(parameters) - set(tensors)), sorted(set(tensors) - set(parameters))
    if lacking or extra:
        what = f"has no {lacking[0]}" if lacking else f"holds {extra[0]}, which the model does not train"
        raise CorruptState(f"{path} {what}; make the model with the same adapters as before")
    for name, one in parameters.items():
        if tensors[name].shape != one.shape or tensors[name].dtype != one.dtype:
            raise CorruptState(f"{path} holds another shape or type of {name}; make the model with the same adapters")
    with torch.no_grad():
        for name, one in parameters.items():
            one.copy_(tensors[name])
    return about
