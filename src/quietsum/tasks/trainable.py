"""Tasks for ``quietsum train``: one site, one torch model.

>>> sorted(TRAINABLE)
['cards', 'chest-xray', 'digits', 'fashion-mnist', 'fraud', 'mnist', 'nuclei', 'pose']
>>> trainable_task("digit")
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: task = 'digit' is not known; did you mean "digits"?
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.tasks.classes import TORCH
from quietsum.tasks.protocol import TorchTask
from quietsum.tasks.registry import made_by, nearest_name, refuse_lacking

__all__ = ["TRAINABLE", "trainable_task"]


def _late(where: str) -> Callable[[Mapping[str, Any]], TorchTask]:
    """The class ``module:name``, imported when a task is made of it: torch is heavy."""

    def made(options: Mapping[str, Any]) -> TorchTask:
        module, _, kind = where.partition(":")
        return cast(TorchTask, getattr(importlib.import_module(module), kind)(**options))

    return made


TRAINABLE: Final[Mapping[str, Callable[[Mapping[str, Any]], TorchTask]]] = {
    "digits": _late("quietsum.tasks.gallery.digits:DigitsTask"),
    "mnist": _late("quietsum.tasks.gallery.mnist:MnistTask"),
    "fashion-mnist": _late("quietsum.tasks.gallery.mnist:FashionMnistTask"),
    "chest-xray": _late("quietsum.tasks.gallery.chest_xray:ChestXrayTask"),
    "nuclei": _late("quietsum.tasks.gallery.nuclei:NucleiTask"),
    "fraud": _late("quietsum.tasks.gallery.fraud:FraudTask"),
    "cards": _late("quietsum.tasks.gallery.cards:CardsTask"),
    "pose": _late("quietsum.tasks.gallery.pose:PoseTask"),
}


def trainable_task(name: str, options: Mapping[str, Any] | None = None, *, made: Any = None) -> TorchTask:
    """The task ``name``, or your own as ``"my_module:MyTask"``, made with ``options`` unless it is ``made`` already."""
    options = {} if options is None else options
    if ":" in name:
        task = made_by(name, options, TORCH) if made is None else made
        refuse_lacking(name, task, TORCH)
        return cast(TorchTask, task)
    if name not in TRAINABLE:
        remedy = nearest_name(name, TRAINABLE, 'or write "my_module:MyTask"')
        raise InvalidParameter("task", name, "is not known", remedy)
    require_torch()
    return TRAINABLE[name](options)


def require_torch() -> None:
    """Say how to install torch where it is missing."""
    try:
        importlib.import_module("torch")
    except ImportError:
        raise QuietsumError("training needs torch, which is not installed: pip install 'quietsum[train]'") from None
