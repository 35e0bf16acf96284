"""Modules that mix examples, and what to do about them.

Clipping bounds what one example adds to the sum only if its gradient depends on that example alone. A batch norm takes
the mean over the batch, so one record moves the gradients of all others, and the running statistics carry private data
out of the noise's reach. :func:`refuse_mixing` finds such modules by type, :func:`fix_batch_norm` replaces them, and
:func:`mixes_examples` finds any other way of mixing by trying: change one example, see whether another's loss moves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from quietsum.errors import InvalidParameter
from quietsum.learning.engine import Batch, Loss, losses_of, rows_of

__all__ = ["NORMS", "fix_batch_norm", "mixes_examples", "mixing_now", "refuse_mixing"]

NORMS = (_BatchNorm, _InstanceNorm)
"""What may mix examples, depending on its mode."""

_MOST_GROUPS = 32  # Wu and He 2018, "Group Normalization", default


def refuse_mixing(model: nn.Module) -> None:
    """Raise where a module is known to mix examples or to store statistics of them.

    A batch norm in eval mode uses stored statistics, touches one example at a time and passes.
    """
    for name, module in model.named_modules():
        if mixing_now(module):
            problem = "takes statistics over the batch, so one record would change the gradients of all others"
            remedy = "replace it by GroupNorm: quietsum.learning.mixing.fix_batch_norm(model)"
            raise InvalidParameter("model", f"{name or 'the model'}: {type(module).__name__}", problem, remedy)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (module.scale_grad_by_freq or module.max_norm):
            problem = "scales by frequencies in the batch or rewrites its weights while it runs"
            remedy = "set scale_grad_by_freq=False and max_norm=None"
            raise InvalidParameter("model", f"{name or 'the model'}: {type(module).__name__}", problem, remedy)


def mixing_now(module: nn.Module) -> bool:
    """Whether this module, in its present mode, takes statistics over the batch."""
    if isinstance(module, _BatchNorm):
        return module.training or module.running_mean is None
    return isinstance(module, _InstanceNorm) and module.training and module.track_running_stats


def fix_batch_norm(model: nn.Module) -> nn.Module:
    """Replace every batch norm by a group norm, and forget running statistics of instance norms; in place.

    Weights and biases are kept; the statistics are not, since a group norm has none. Returns the model, or the new
    module if the model itself was a batch norm.

    >>> fixed = fix_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1]
    >>> type(fixed).__name__, fixed.num_groups
    ('GroupNorm', 24)
    """
    if isinstance(model, _BatchNorm):
        return _group_norm(model)
    if isinstance(model, _InstanceNorm) and model.track_running_stats:
        model.track_running_stats = False
        model.running_mean = model.running_var = model.num_batches_tracked = None
        return model
    for name, child in model.named_children():
        fixed = fix_batch_norm(child)
        if fixed is not child:
            setattr(model, name, fixed)
    return model


def _group_norm(old: _BatchNorm) -> nn.GroupNorm:
    channels = old.num_features
    fitting = [g for g in range(1, min(_MOST_GROUPS, channels // 2) + 1) if channels % g == 0]  # two channels or more
    groups = max(fitting, default=1)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


def mixes_examples(model: nn.Module, loss: Loss, batch: Batch) -> bool:
    """Whether one example's loss moves when another example changes: a quick trial on ``batch``, by replay.

    The last example is replaced by another one, scaled, and then by NaN where it holds numbers; the same random
    numbers are replayed. True is a finding. False is strong evidence for this batch and no proof for all.

    >>> centred = lambda model, batch: (model(batch[0]) - model(batch[0]).mean()).square().flatten()
    >>> mixes_examples(nn.Linear(2, 1), centred, (torch.randn(4, 2),))
    True
    """
    rows = rows_of(batch)
    if rows < 2:
        raise InvalidParameter("batch", rows, "is too small to see examples mix", "pass at least two rows")
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    before = _replay(loss, model, batch, rows)
    try:
        for changed in _neighbours(batch):
            after = _replay(loss, model, changed, rows)
            scale = before[:-1].abs().nan_to_num(posinf=0.0, neginf=0.0).amax() * 1e-5
            same = torch.isclose(before[:-1], after[:-1], rtol=1e-5, atol=float(scale), equal_nan=True)
            if not bool(same.all()):
                return True
    finally:
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)
    return False


def _neighbours(batch: Batch) -> list[Batch]:
    """The batch with its last example exchanged: for a stretched copy of the first, and for one of NaN."""
    other, broken = [], []
    for part in batch:
        one, two = part.clone(), part.clone()
        one[-1] = part[0] * 3 + 1 if part.is_floating_point() else part[0]
        two[-1] = math.nan if part.is_floating_point() else part[0]
        other.append(one)
        broken.append(two)
    return [tuple(other), tuple(broken)]


def _replay(loss: Loss, model: nn.Module, batch: Batch, rows: int) -> Tensor:
    devices = sorted({part.device.index or 0 for part in batch if part.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(0)
        return losses_of(loss, model, batch, rows).detach().clone()
