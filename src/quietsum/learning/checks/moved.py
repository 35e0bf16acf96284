"""Is everything that is trained really trained, and is everything that was trained really saved?

An adapter that a wrapper copied, that is switched off, or that the saved file leaves out, trains "completely normally":
nothing raises, the noise is paid for, and the model that is loaded afterwards is the one from before. Noise moves every
parameter that the step knows, so a parameter that stands still was dropped, and one that moves may still be of no use.
So three things are asked:

* before anything is charged, :func:`refuse_dropped`: the step's parameters are those that the model trains, the loss
  depends on every adapter, and the file that PEFT would write holds every one;
* after the first step, before any further one, :meth:`FirstStep.confirm`: each of them has moved, and what would be
  saved of them, written and read again, is the same to the last bit;
* :func:`refuse_others` again before every chunk of steps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.batch_mixing import keep_unchanged
from quietsum.learning.engines.protocol import Batch, Loss, losses_of, trainable

__all__ = ["FirstStep", "refuse_dropped", "refuse_others"]

log = logging.getLogger(__name__)

_LOOKED_AT = 4096  # numbers of each parameter that are compared
_NAMED = 3


def refuse_others(model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
    """Raise where ``model`` trains other parameters than ``parameters``, which are the ones that a step moves."""
    names, found = trainable(model)
    known = {id(one) for one in parameters}
    strange = [name for name, one in zip(names, found, strict=True) if id(one) not in known]
    lost = len(parameters) - (len(found) - len(strange))
    if strange or lost:
        what = f"{_list(strange)} would not be" if strange else f"{lost} that were are not there any more"
        problem = f"has other trained parameters than when it was made private: {what}"
        remedy = "add, freeze and unfreeze before; then make a new trainer, with a plan of its own"
        raise InvalidParameter("model", type(model).__name__, problem, remedy)


def refuse_dropped(model: nn.Module, loss: Loss, rows: Batch, parameters: Sequence[nn.Parameter]) -> None:
    """Raise where an adapter would be trained for nothing; ``rows`` are made up.

    Of other parameters that the loss does not depend on, a head that this loss does not use for instance, it is only
    logged that noise alone moves them. Guarantees: parameters, buffers and modes of the model stay as they are.
    """
    refuse_others(model, parameters)
    unused = _find_unused(model, loss, rows)
    adapters = _adapters(model)
    idle = [name for name in unused if name in adapters]
    if idle:
        problem = f"is trained, and the loss of made-up records does not depend on {_list(idle)}"
        remedy = "unmerge and switch on the adapter (set_adapter), or freeze what is not used: requires_grad_(False)"
        raise InvalidParameter("model", type(model).__name__, problem, remedy)
    if unused:
        log.warning("noise alone will move %s: the loss of made-up records does not depend on it", _list(unused))
    kept = _peft_file(model)
    if kept is not None:
        inside = {_place(value) for value in kept.values()}
        names, found = trainable(model)
        lost = [name for name, one in zip(names, found, strict=True) if _place(one) not in inside]
        if lost:
            problem = f"is trained, and PEFT's save_pretrained would leave out {_list(lost)}"
            remedy = "name these layers in the adapter's modules_to_save, or freeze them with requires_grad_(False)"
            raise InvalidParameter("model", type(model).__name__, problem, remedy)


@final
class FirstStep:
    """What the parameters were before a first step, to be asked after it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        names, found = trainable(model)
        self._before = {name: _sample(one).clone() for name, one in zip(names, found, strict=True)}

    def confirm(self, *, known_rule: bool = True) -> bool:
        """Raise :class:`~quietsum.errors.QuietsumError` unless all has moved and is the same when it is read again.

        A rule that is not one of ours or of torch's may gather several steps before it moves anything: with
        ``known_rule`` False this returns False as long as nothing at all has moved, and True otherwise.
        """
        from safetensors.torch import load, save

        names, found = trainable(self._model)
        if not all(bool(torch.isfinite(one).all()) for one in found):
            return True  # the weights overflow, which has an error of its own
        still = [
            name for name, one in zip(names, found, strict=True)
            if name not in self._before or torch.equal(_sample(one), self._before[name])
        ]  # fmt: skip
        if len(still) == len(names) and not known_rule:
            return False
        if still:
            raise QuietsumError(
                f"the first step has not moved {_list(still)}, although noise moves all that is trained: it was "
                "copied or replaced, or the learning rate is too small for its precision. Nothing further is charged; "
                "what the step has cost stays charged"
            )
        written = {name: one.detach().cpu().contiguous() for name, one in zip(names, found, strict=True)}
        read = load(save({name: part.clone() for name, part in written.items()}))
        lost = [name for name, part in written.items() if name not in read or not _alike(part, read[name])]
        kept = _peft_file(self._model)
        if kept is not None:
            inside = {_place(value) for value in kept.values()}
            lost += [name for name, one in zip(names, found, strict=True) if _place(one) not in inside]
        if lost:
            raise QuietsumError(
                f"{_list(lost)} would not come back from a saved file as trained. Nothing further is charged; what the "
                "step has cost stays charged"
            )
        return True


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one, other)


def _sample(parameter: Tensor) -> Tensor:
    """Some of its numbers, evenly spread: noise moves each of them."""
    flat = parameter.detach().reshape(-1)
    return flat[:: max(1, len(flat) // _LOOKED_AT)]


def _place(value: Tensor) -> tuple[Any, ...]:
    return value.data_ptr(), tuple(value.shape), value.device


def _find_unused(model: nn.Module, loss: Loss, rows: Batch) -> list[str]:
    """Names of the trainable parameters that lie outside the graph of the loss."""
    names, found = trainable(model)
    with keep_unchanged(model), torch.enable_grad():
        losses = losses_of(loss, model, rows, len(rows[0]))
        gradients = torch.autograd.grad(losses.sum(), found, allow_unused=True)
    return [name for name, gradient in zip(names, gradients, strict=True) if gradient is None]


def _adapters(model: nn.Module) -> set[str]:
    """Names of the parameters that belong to adapters of PEFT: its layers name them in ``adapter_layer_names``."""
    found = set()
    for place, module in model.named_modules():
        layers = getattr(module, "adapter_layer_names", ())
        if isinstance(layers, tuple | list):
            begin = f"{place}." if place else ""
            own = (name for name, _ in module.named_parameters())
            found |= {f"{begin}{name}" for name in own if name.split(".")[0] in layers}
    return found


def _peft_file(model: nn.Module) -> Mapping[str, Tensor] | None:
    """The tensors that PEFT's ``save_pretrained`` would write of ``model``; None for any other model."""
    inner: Any = getattr(model, "_orig_mod", model)
    configs = getattr(inner, "peft_config", None)
    if not isinstance(configs, Mapping) or not callable(getattr(inner, "get_base_model", None)):
        return None
    from peft import get_peft_model_state_dict

    found: dict[str, Tensor] = {}
    for name in configs:
        for key, value in get_peft_model_state_dict(inner, adapter_name=name, save_embedding_layers="auto").items():
            found[f"{name}/{key}"] = value
    return found


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
