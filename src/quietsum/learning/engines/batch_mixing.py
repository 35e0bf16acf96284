"""Modules that mix examples, and what to do about them.

Clipping bounds what one example adds to the sum only if its gradient depends on that example alone. A batch norm takes
the mean over the batch, so one record moves the gradients of all others, and the running statistics carry private data
out of the noise's reach. :func:`refuse_mixing` finds such modules by type, :func:`fix_batch_norm` replaces them, and
:func:`what_mixes` finds any other way of mixing by trying: change, move or remove one example, in batches of many
sizes, and see whether another's loss moves.
:func:`what_remembers` finds in the same way what a model keeps of the examples that pass through it, a sum in a
buffer say, which would be saved beside the weights without any noise; :class:`SteadyEngine` lets a buffer move that
keeps nothing of them.
"""

from __future__ import annotations

import contextlib
import copy
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.spectral_norm import SpectralNorm

from quietsum.errors import InvalidParameter
from quietsum.learning.checks.frozen_randomness import draws_chance, replay_chance, still
from quietsum.learning.checks.memory import Reached, same
from quietsum.learning.engines.hooks import refuse_hooks
from quietsum.learning.engines.protocol import Batch, Engine, Loss, before_each_forward, is_on_card, losses_of, rows_of

__all__ = [
    "NORMS",
    "SteadyEngine",
    "fix_batch_norm",
    "keep_unchanged",
    "mixes_examples",
    "mixing_now",
    "refuse_mixing",
    "what_mixes",
    "what_remembers",
]

NORMS = (_BatchNorm, _InstanceNorm)
"""What may mix examples, depending on its mode."""

_EVERY_SIZE = 64  # up to here every size of a batch is tried, if the model is small:
_SMALL_WORK = 2_000_000_000  # parameters times rows squared, which takes a second or so

_MOST_GROUPS = 32  # Wu and He 2018, "Group Normalization", default


def refuse_mixing(model: nn.Module) -> None:
    """Raise where a module is known to mix examples or to store statistics of them, or has hooks on its gradients.

    A batch norm in eval mode uses stored statistics, touches one example at a time and passes.
    """
    refuse_hooks(model)
    for name, module in model.named_modules():
        if mixing_now(module):
            problem = "takes statistics over the batch, so one record would change the gradients of all others"
            remedy = "replace it by GroupNorm: quietsum.learning.engines.batch_mixing.fix_batch_norm(model)"
            raise InvalidParameter("model", f"{name or 'the model'}: {type(module).__name__}", problem, remedy)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (module.scale_grad_by_freq or module.max_norm):
            problem = "scales by frequencies in the batch or rewrites its weights while it runs"
            remedy = "set scale_grad_by_freq=False and max_norm=None"
            raise InvalidParameter("model", f"{name or 'the model'}: {type(module).__name__}", problem, remedy)
        if any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
            problem = (
                "is under the old torch.nn.utils.spectral_norm, which writes a new weight into the module at every "
                "forward pass, where no engine can tell what one record adds to it"
            )
            remedy = "use torch.nn.utils.parametrizations.spectral_norm, which computes the same"
            raise InvalidParameter("model", f"{name or 'the model'}: {type(module).__name__}", problem, remedy)


def mixing_now(module: nn.Module) -> bool:
    """Whether this module, in its present mode, takes statistics over the batch."""
    if isinstance(module, _BatchNorm):
        return module.training or module.running_mean is None
    return isinstance(module, _InstanceNorm) and module.training and module.track_running_stats


def fix_batch_norm(model: nn.Module) -> nn.Module:
    """Replace every batch norm by a group norm, and forget running statistics of instance norms; in place.

    Weights and biases are kept; the statistics are not, since a group norm has none. Returns the model, or the new
    module if the model itself was a batch norm. A batch norm that stands in two places is one group norm in both.

    >>> fixed = fix_batch_norm(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1]
    >>> type(fixed).__name__, fixed.num_groups
    ('GroupNorm', 24)
    """
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    for name, norm in norms:
        if norm.num_features < 1:
            problem = "is lazy and does not know its channels yet, so no group norm can take its place"
            remedy = "run the model once on a made-up batch, then fix it"
            raise InvalidParameter("model", f"{name or 'the model'}: {type(norm).__name__}", problem, remedy)
    if isinstance(model, _BatchNorm):
        return _group_norm(model)
    new = {id(norm): _group_norm(norm) for _, norm in norms}
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):  # named_children() would name a shared one once
            if id(child) in new:
                module.register_module(name, new[id(child)])
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
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
    """Whether one example's loss depends on the others in its batch: a quick trial on ``batch``, by replay.

    See :func:`what_mixes`. True is a finding. False is strong evidence for this batch and no proof for all.

    >>> centred = lambda model, batch: (model(batch[0]) - model(batch[0]).mean()).square().flatten()
    >>> mixes_examples(nn.Linear(2, 1), centred, (torch.randn(4, 2),))
    True
    """
    return what_mixes(model, loss, batch) is not None


def what_mixes(model: nn.Module, loss: Loss, batch: Batch) -> str | None:
    """When one example's loss depends on the others in its batch, how that was seen; else None.

    An example is exchanged for another one, scaled, and for NaN where it holds numbers. Examples are taken away, put in
    another order, and made all alike. Batches of every power of two, one more and one less, up to ``batch`` are tried,
    and every size up to 64 where the model is small. No loss may move. The same random numbers are replayed; where the
    number of rows differs torch's are held at their middle (:func:`~quietsum.learning.checks.frozen_randomness.still`),
    and a model that draws others is not judged by these trials.

    >>> def first_only(model, batch):                         # a memory for so many rows, an expert's capacity
    ...     kept = torch.arange(len(batch[0])) < 3
    ...     return torch.where(kept, model(batch[0]).flatten(), 0.0)
    >>> what_mixes(nn.Linear(2, 1), first_only, (torch.randn(4, 2),))
    'in another order'
    """
    rows = rows_of(batch)
    if rows < 2:
        raise InvalidParameter("batch", rows, "is too small to see examples mix", "pass at least two rows")
    with keep_unchanged(model):
        before = _replay(loss, model, batch, rows)
    if _moves_others(loss, model, batch, before, rows - 1):
        return "when another record changes"
    chance = draws_chance(model, lambda: _try(loss, model, batch))
    with still(model, chance=chance):  # what draws at other sizes alone moves there, and is looked at again below
        whole, again = _try(loss, model, batch), _try(loss, model, batch, seed=1)
        if whole is None or again is None or not _alike(whole, again):
            return None
        if _moves_others(loss, model, batch, whole, 0):
            return "when another record changes"
        for how, places in _choose(model, rows):
            found = _try(loss, model, _rows(batch, places))
            apart = found is not None and not _alike(whole[places.to(whole.device)], found)
            if apart and _beyond_rounding(loss, model, batch, places):
                return how
    return None


def _moves_others(loss: Loss, model: nn.Module, batch: Batch, before: Tensor, place: int) -> bool:
    """Whether the other losses move when the example at ``place`` is exchanged."""
    others = torch.arange(len(before), device=before.device) != place
    tried = (_try(loss, model, changed) for changed in _neighbours(batch, place))
    return any(after is not None and not _alike(before[others], after[others]) for after in tried)


def _choose(model: nn.Module, rows: int) -> Iterator[tuple[str, Tensor]]:
    """Rows of a batch, each choice with its name: other orders, fewer rows, and one row many times."""
    every = torch.arange(rows)
    yield "in another order", every.flip(0)
    yield "in another order", every.roll(rows // 2)
    for place in sorted({0, rows // 2, rows - 1}):
        yield "when another record is taken away", every[every != place]
    yield "when other records are like it", torch.zeros(rows, dtype=torch.int64)
    powers = [2**power for power in range(rows.bit_length())]
    sizes = {size for power in powers for size in (power - 1, power, power + 1)}
    if rows * rows * sum(parameter.numel() for parameter in model.parameters()) < _SMALL_WORK:
        sizes |= set(range(min(rows, _EVERY_SIZE)))
    for size in sorted(sizes):
        if 0 < size < rows:
            yield f"in a batch of {size}", every[:size]


def _rows(batch: Batch, places: Tensor) -> Batch:
    return tuple(part[places.to(part.device)] for part in batch)


def _try(loss: Loss, model: nn.Module, batch: Batch, *, seed: int = 0) -> Tensor | None:
    """The losses; None where the model refuses such rows, which it does in training too, where they count as zero."""
    with keep_unchanged(model):
        try:
            return _replay(loss, model, batch, rows_of(batch), seed=seed)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            return None


def _beyond_rounding(loss: Loss, model: nn.Module, batch: Batch, places: Tensor) -> bool:
    """Whether losses of another choice of rows differ in float64 too: another number of rows is summed otherwise.

    A model that cannot be copied or run in float64 is judged as it is, by a coarser measure.
    """
    finer, within = batch, 1e-3
    with contextlib.suppress(Exception):
        twin = copy.deepcopy(model).double()
        doubled = tuple(part.double() if part.is_floating_point() else part for part in batch)
        if _try(loss, twin, doubled) is not None:
            model, finer, within = twin, doubled, 1e-6
    with still(model):
        whole, found = _try(loss, model, finer), _try(loss, model, _rows(finer, places))
    return whole is None or found is None or not _alike(whole[places.to(whole.device)], found, within)


def what_remembers(model: nn.Module, loss: Loss, batch: Batch) -> str | None:
    """The name of something that keeps a trace of the examples that pass through ``model``, or None.

    From the same state several batches are tried: ``batch``, a stretched one, one of NaN and one with fewer rows. What
    then differs depends on the examples or on their number, both private: a parameter, a buffer, or what else can be
    reached from model and loss (:mod:`quietsum.learning.checks.memory`), an attribute, a list or a closure say. A
    counter of batches, a table that is built at the first call, or the vectors of a spectral norm, change alike
    for every batch, and pass; so does what differs for one and the same batch, a time of day. What cannot be
    reached is found by what it does: if the loss of ``batch`` depends on the batch before, the answer is "what it
    computes".

    >>> class Watching(nn.Linear):
    ...     def forward(self, x):
    ...         self.seen = x.sum(0)
    ...         return super().forward(x)
    >>> what_remembers(Watching(2, 1), lambda model, batch: model(batch[0]).flatten(), (torch.randn(4, 2),))
    'seen'
    """
    first, losses = _leave_behind(model, loss, batch, batch)
    again, _ = _leave_behind(model, loss, batch, batch)
    restless = {name for name in first.keys() | again.keys() if not _note_alike(name, first, again)}
    for other in _others(batch):
        try:
            second, later = _leave_behind(model, loss, other, batch)
        except Exception:  # refused rows count as zero in training; see mixes_examples
            continue
        for name in sorted((first.keys() | second.keys()) - restless):
            if not _note_alike(name, first, second):
                return name
        if not _alike(losses, later):
            return "what it computes"
    return None


def _note_alike(name: str, one: dict[str, Any], two: dict[str, Any]) -> bool:
    return name in one and name in two and same(one[name], two[name])


def _leave_behind(model: nn.Module, loss: Loss, batch: Batch, then: Batch) -> tuple[dict[str, Any], Tensor]:
    """What is there after ``batch`` has passed; and, from the old parameters and buffers, the losses of ``then``."""
    before = Reached(model, loss)
    try:
        with keep_unchanged(model):
            _replay(loss, model, batch, rows_of(batch))
            named = [*model.named_parameters(), *model.named_buffers()]
            state: dict[str, Any] = {name: value.detach().clone() for name, value in named if not is_lazy(value)}
            state.update((name, note) for name, note in Reached(model, loss).notes.items() if name not in state)
        with keep_unchanged(model):
            return state, _replay(loss, model, then, rows_of(then))
    finally:
        before.undo()


@contextlib.contextmanager
def keep_unchanged(model: nn.Module, *, weights: bool = True) -> Iterator[None]:
    """After the block, parameters (with ``weights``) and buffers are as before, in tensors and values.

    Buffers come back by name, also where a forward pass put another tensor in their place, took one away or added one.
    """
    parameters = model.parameters() if weights else ()
    values: list[tuple[Tensor, Tensor]] = [(p, p.detach().clone()) for p in parameters if not is_lazy(p)]
    kept = [(module, dict(module._buffers)) for module in model.modules()]
    values += [(b, b.detach().clone()) for _, own in kept for b in own.values() if b is not None and not is_lazy(b)]
    try:
        yield
    finally:
        for module, own in kept:
            _put(module, own)
        with torch.no_grad():
            for tensor, value in values:
                if (not weights and is_on_card(tensor)) or not same(tensor.detach(), value):  # a look would wait for it
                    (tensor if tensor.shape == value.shape else tensor.resize_(value.shape)).copy_(value)


def _put(module: nn.Module, buffers: dict[str, Tensor | None]) -> None:
    """These buffers and no others."""
    for name in [name for name in module._buffers if name not in buffers]:
        del module._buffers[name]
        module._non_persistent_buffers_set.discard(name)
    module._buffers.update(buffers)


def _alike(one: Tensor, two: Tensor, within: float = 1e-5) -> bool:
    """Up to rounding."""
    scale = one.abs().nan_to_num(posinf=0.0, neginf=0.0).amax() * within
    return bool(torch.isclose(one, two, rtol=within, atol=float(scale), equal_nan=True).all())


def _others(batch: Batch) -> list[Batch]:
    """Batches that differ in every row, and one that differs in their number."""
    stretched = tuple(p * 3 + 1 if p.is_floating_point() else p[:1].expand_as(p).clone() for p in batch)
    broken = tuple(torch.full_like(p, math.nan) if p.is_floating_point() else p for p in batch)
    return [stretched, broken, tuple(part[:-1] for part in batch)]


def _neighbours(batch: Batch, place: int) -> list[Batch]:
    """The batch with the example at ``place`` exchanged: for a stretched copy of another, and for one of NaN."""
    other, broken = [], []
    for part in batch:
        one, two = part.clone(), part.clone()
        whole = next((row for row in part if not torch.equal(row, part[place])), part[place])
        one[place] = part[0 if place else -1] * 3 + 1 if part.is_floating_point() else whole
        two[place] = math.nan if part.is_floating_point() else whole
        other.append(one)
        broken.append(two)
    return [tuple(other), tuple(broken)]


def _replay(loss: Loss, model: nn.Module, batch: Batch, rows: int, *, seed: int = 0) -> Tensor:
    with torch.no_grad(), replay_chance({part.device.index or 0 for part in batch if part.is_cuda}, seed):
        return losses_of(loss, model, batch, rows).detach().clone()


# ------------------------------------------------------------------------------------- buffers that may move

_MOVED_AT: weakref.WeakKeyDictionary[nn.Module, tuple[int, ...]] = weakref.WeakKeyDictionary()
"""For each model, the count of changes of its weights at which its buffers moved last."""


@final
class SteadyEngine:
    """An engine whose model's buffers move once for every value of the weights, for any batch.

    A counter of batches, or the vectors of a spectral norm, move with every forward pass. How many passes an engine
    makes depends on the number of rows: one each, one a micro-batch, none for an empty batch. That number is private,
    and a saved buffer would tell it. So the passes of a sum run on copies of the buffers, a fresh one each, and one row
    of zeros moves the buffers themselves before the first sum after a change of the weights. Whether they move is never
    guessed from earlier passes: a power iteration at its fixed point stands still until the weights change.

    Guarantees: no batch, empty or not, changes a buffer. What does is one pass of a row of zeros for every change of
    the weights that a sum follows, so the buffers are a function of their first values, of the weights at those passes
    and of chance. Every forward pass of a sum starts from the same buffers: the same batch gives the same sum, and a
    record's gradient does not depend on how many others came before it.
    """

    def __init__(self, inner: Engine, model: nn.Module, loss: Loss) -> None:
        self._inner, self._model, self._loss = inner, model, loss
        self._modules = list(model.modules())

    @property
    def name(self) -> str:
        """That of the engine within."""
        return self._inner.name

    @property
    def why(self) -> str:
        """That of the engine within."""
        return self._inner.why

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those of the engine within."""
        return self._inner.parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """The sum of the engine within."""
        if self._model in _MOVED_AT and not any([module._buffers for module in self._modules]):
            return self._inner.clipped_sum(batch)
        self._move(tuple(part.new_zeros((1, *part.shape[1:])) for part in batch))
        with _on_copies(self._model) as begin, before_each_forward(begin):
            return self._inner.clipped_sum(batch)

    def _move(self, row: Batch) -> None:
        now = tuple([parameter._version for parameter in self._model.parameters()])  # torch counts changes in place
        if now == _MOVED_AT.get(self._model):
            return
        with torch.no_grad(), contextlib.suppress(Exception):  # a model that dislikes zeros moves nothing
            self._loss(self._model, row)
        _MOVED_AT[self._model] = now

    def small_norms(self) -> Tensor:
        """Those of the engine within."""
        return self._inner.small_norms()


@contextlib.contextmanager
def _on_copies(model: nn.Module) -> Iterator[Callable[[], None]]:
    """A function that gives the model fresh copies of its buffers; at the end it has its own again, unchanged."""
    kept = [(module, dict(module._buffers)) for module in model.modules()]

    def begin() -> None:
        copies: dict[int, Tensor] = {}  # one buffer in two places is one copy in both
        for module, own in kept:
            if own or module._buffers:
                _put(module, {name: _copy(buffer, copies) for name, buffer in own.items()})

    with keep_unchanged(model, weights=False):
        yield begin


def _copy(buffer: Tensor | None, copies: dict[int, Tensor]) -> Tensor | None:
    if buffer is None or is_lazy(buffer):
        return buffer
    if id(buffer) not in copies:
        copies[id(buffer)] = buffer.detach().clone()
    return copies[id(buffer)]
