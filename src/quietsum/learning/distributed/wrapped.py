"""Models that are wrapped for several devices already: which are refused, and what to pass instead.

The wrappers of torch average the gradients of whole batches in backward hooks, or keep a piece of every parameter in
each process. Private training calls no ``backward()`` on a batch, and the norm of one record's gradient needs all
pieces of it at once. So it takes the module itself, whole, in every process.
"""

from __future__ import annotations

from torch import nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.distributed.processes import count_processes

__all__ = ["refuse_several", "refuse_wrapped"]

_WHOLE = "pass the module itself, whole and on its device, in every process, and start them with torchrun"
_WRAPPERS = {
    "DistributedDataParallel": (
        "averages the gradients of whole batches in backward hooks, which see them before any clip or noise",
        f"pass model.module: {_WHOLE.removeprefix('pass ')}",
    ),
    "DataParallel": ("cuts every batch up itself, and is out of use in torch", f"pass model.module; or {_WHOLE}"),
    "FullyShardedDataParallel": ("keeps pieces of every parameter, and a record's norm needs all of them", _WHOLE),
    "FSDPModule": ("keeps pieces of every parameter, and a record's norm needs all of them", _WHOLE),
}


def refuse_wrapped(model: nn.Module) -> None:
    """Raise where ``model`` or a part of it is wrapped for several devices, or has parameters that are cut up.

    >>> refuse_wrapped(nn.DataParallel(nn.Linear(2, 1)))
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: model = 'DataParallel' cuts every batch up itself, ...
    """
    for module in model.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")}
        for name, (problem, remedy) in _WRAPPERS.items():
            if name in kinds:
                raise InvalidParameter("model", name, problem, remedy)
    for name, parameter in model.named_parameters():
        if "DTensor" in {type(parameter).__name__, type(parameter.data).__name__}:
            raise InvalidParameter("model", f"{name}: DTensor", "is a piece of a parameter, or may be one", _WHOLE)


def refuse_several(what: str) -> None:
    """Raise where this is one of several processes: ``what`` does not share its work out, and each would do all of it.

    Each would add a noise of its own and charge for itself, while the results look like those of one.
    """
    count = count_processes()
    if count > 1:
        raise QuietsumError(
            f"{what} is done by one process, and this is one of {count}: each would add a noise and a charge "
            "of its own. Start one process, without torchrun"
        )
