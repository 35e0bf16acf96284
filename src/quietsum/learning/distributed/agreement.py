"""What several processes must have in common before they make one step: the same model, settings and records.

A draw names records by number, so number 17 must be the same record everywhere. Data sets that were cut into shards,
one for each process, pass for alike as long as only their length is looked at; :func:`match_processes` compares some
records too. It reads them before anything is charged, like the other checks that speak to the holder of the data, and
what it raises names what differs, and no value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.distributed.processes import Processes
from quietsum.learning.rows.records import Records
from quietsum.learning.saving import Checkpoint

__all__ = ["describe_training", "match_processes", "share_checkpoint"]

_LOOKED_AT = 16  # records that are compared, from the first to the last


def match_processes(processes: Processes, records: Records, settings: Mapping[str, Any]) -> None:
    """Refuse a training whose processes have other ``settings`` or other records than the first one.

    Records that are not the same when they are read twice, as augmented pictures are, cannot be compared: of them the
    number, the shapes and the types are.
    """
    if processes.count == 1:
        return
    facts = {name: _digest(repr(value).encode()) for name, value in settings.items()}
    facts["the number of records"] = _digest(str(len(records)).encode())
    facts["the shapes or types of a record"] = _digest(repr(records.schema).encode())
    if (places := records.places) is not None:
        facts["the places of the records"] = _digest(np.asarray(places, dtype=np.int64).tobytes())
    once, again = _look_at(records), _look_at(records)
    words = [
        json.loads(word)
        for word in processes.gather(
            "a comparison of settings and records", json.dumps([facts, once == again, once]).encode()
        )
    ]
    expected, _, rows = words[0]
    steady = all(word[1] for word in words)
    for rank, (found, _, other) in enumerate(words):
        differing = [name for name in {**expected, **found} if expected.get(name) != found.get(name)]
        if not differing and steady and other != rows:
            differing = ["a record"]
        if differing:
            raise InvalidParameter(
                differing[0], f"that of process {rank}", "is not that of process 0",
                "give every process the same model, settings and whole data set: one draw is shared out among them, so "
                "no process needs a shard of its own",
            )  # fmt: skip


def describe_training(model: nn.Module, loss: Any, config: PrivacyConfig, optimizer: Any) -> dict[str, Any]:
    """What the processes of one training must have in common beside its records."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    optimizer = optimizer if dataclasses.is_dataclass(optimizer) else _describe_optimizer(optimizer)
    return {
        "the model": [(name, tuple(one.shape), one.dtype, one.requires_grad) for name, one in tensors],
        "the loss": getattr(loss, "__qualname__", type(loss).__qualname__), "the config": config,
        "the optimizer": optimizer, "the version of torch": torch.__version__,
    }  # fmt: skip


def _describe_optimizer(optimizer: Any) -> Any:
    groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
    plain = (bool, int, float, str, tuple, type(None))
    settings = [[(name, one[name]) for name in sorted(one) if isinstance(one[name], plain)] for one in groups]
    return type(optimizer).__qualname__, settings


def share_checkpoint(processes: Processes, read: Any) -> Checkpoint | None:
    """What ``read`` returns at the first process, which alone needs the file, at all of them."""
    if processes.count == 1:
        return read()  # type: ignore[no-any-return]
    found: list[Checkpoint | None] = [None]

    def look() -> Any:
        found[0] = read()
        return None if found[0] is None else dict(found[0].about)

    about = processes.decide("the checkpoint", look)
    if about is None:
        return None
    tensors = processes.send_tensors("the checkpoint's tensors", lambda: found[0].tensors if found[0] else {})
    return found[0] if processes.first else Checkpoint(tensors=dict(tensors), about=about)


def _look_at(records: Records) -> list[str]:
    """Digests of some records."""
    count = len(records)
    places = sorted({round(place) for place in np.linspace(0, count - 1, min(count, _LOOKED_AT)).tolist()})
    parts = records.batch(np.array(places, dtype=np.int64))
    return [_digest(b"".join(_octets(part[row]) for part in parts)) for row in range(len(parts[0]))]


def _octets(part: Tensor) -> bytes:
    flat = part.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _digest(word: bytes) -> str:
    return hashlib.sha256(word).hexdigest()
