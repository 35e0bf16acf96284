"""Hooks on gradients: they belong to ``loss.backward()``, which private training never calls.

A hook on a parameter is called with the gradient of the whole batch, which no engine forms: it would be left out in
silence, and the model would learn from other gradients than its author meant. A backward hook of a module sees the
unclipped, noiseless gradients of protected records, and what it returns or keeps is covered by no noise.
:func:`refuse_hooks` names the first one. Hooks of the forward pass are part of what the model computes; what they keep
is looked for by :func:`quietsum.learning.engines.batch_mixing.what_remembers`.
"""

from __future__ import annotations

from typing import Any

import torch.nn.modules.module as everywhere
from torch import nn

from quietsum.errors import InvalidParameter

__all__ = ["refuse_hooks"]

_REMEDY = (
    "take it away (handle.remove()); put a scale of the gradient into the loss or the learning rate, and look at the "
    "weights or the released gradient instead"
)


def refuse_hooks(model: nn.Module) -> None:
    """Raise where a gradient hook hangs on a parameter or a module of ``model``, or on all modules.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.weight.register_hook(lambda gradient: 10 * gradient)
    >>> refuse_hooks(model)
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: model = 'weight' has a gradient hook, ...
    """
    for name, parameter in model.named_parameters():
        held: Any = parameter
        if held._backward_hooks or getattr(held, "_post_accumulate_grad_hooks", None):
            problem = (
                "has a gradient hook, which no engine calls: records have gradients of their own, without backward()"
            )
            raise InvalidParameter("model", name, problem, _REMEDY)
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            problem = (
                "has a backward hook, which would see gradients of records before any noise, and could change them"
            )
            raise InvalidParameter("model", f"{name or 'the model'}: {type(module).__name__}", problem, _REMEDY)
    if everywhere._global_backward_hooks or everywhere._global_backward_pre_hooks:
        problem = "has a backward hook that was registered for all modules; it would see gradients before any noise"
        raise InvalidParameter("model", type(model).__name__, problem, _REMEDY)
