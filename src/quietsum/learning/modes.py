"""Training mode and scoring mode, module by module, so that what a person froze stays frozen.

``model.train()`` and ``model.eval()`` speak to all modules at once. A batch norm in eval mode uses stored statistics
and touches one record at a time; woken up by ``model.train()`` it would mix the records of a batch.

>>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
>>> with training(model):
...     model[0].training, model[1].training
(True, False)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

from quietsum.learning.engines.batch_mixing import NORMS

__all__ = ["scoring", "training"]


@contextlib.contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """In train mode; every module has its own mode back afterwards.

    Modules that were in eval mode inside a model in train mode stay as they are, and norms that may mix records stay so
    in any model.
    """
    with _restored(model):
        frozen = [m for m in model.modules() if not m.training and (model.training or isinstance(m, NORMS))]
        model.train()
        for module in frozen:
            module.training = False
        yield


@contextlib.contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """In eval mode; every module has its own mode back afterwards."""
    with _restored(model):
        model.eval()
        yield


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
