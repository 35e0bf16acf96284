"""Engines: five ways to the same sum of clipped per-example gradients.

Ordinary training asks for the gradient of the mean loss. Private training must bound each example's gradient *before*
anything is added up, so it needs Σ_i clip(∇loss_i). An :class:`Engine` computes that sum and nothing else: no noise, no
division, no step. All engines give the same answer up to rounding; they differ in what they cost.

    bookkeeping    ours: one forward, one backward to the layers' outputs, norms, one weighted weight gradient
    vmap           torch.func: every example's whole gradient at once; any model without in-place tricks
    opacus         Opacus' hooks: every example's whole gradient, layer by layer
    opacus-ghost   Opacus' ghost clipping: two backward passes
    naive          a loop over examples: slow, obvious, the referee

``compiled`` is bookkeeping as one graph for torch.compile, and nothing else where the model cannot be recorded
(:mod:`quietsum.learning.engines.hardware.compiled`). It pays on graphics cards, after minutes of compilation.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Clip
from quietsum.validate import whole_number

__all__ = ["Batch", "Engine", "Loss", "engine_for"]

Batch: TypeAlias = tuple[Tensor, ...]
"""Tensors with the same first dimension: row i of each belongs to example i."""

Loss: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""The model's loss on a batch, one value per example: shape (n,)."""

Block: TypeAlias = tuple[Sequence[Tensor], Tensor]
"""Of some examples: the clipped sums, one per parameter, and the norms, (n, groups)."""

ENGINES = ("auto", "bookkeeping", "vmap", "opacus", "opacus-ghost", "naive")


class Engine(Protocol):
    """What computes the sum of clipped gradients of one model.

    What is asked of every implementation is tested by :class:`quietsum.contracts.EngineContract`.
    """

    @property
    def name(self) -> str:
        """One of the names above."""
        ...

    @property
    def why(self) -> str:
        """Why this engine, in one sentence."""
        ...

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable parameters, in the model's order; a shared one appears once."""
        ...

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """Σ_i clip(∇loss_i), one tensor per trainable parameter.

        Guarantees: adding or removing one example changes the result by at most ``clip.sensitivity``, up to rounding;
        an example whose gradient is not finite contributes zero; no rows give zeros; ``.grad`` of the parameters is
        left alone.
        """
        ...

    def small_norms(self) -> Tensor:
        """How many examples of the last batch had a gradient of norm at most ``max_norm``. Private: noise it."""
        ...


def engine_for(name: str, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None) -> Engine:
    """The engine called ``name``; "auto" takes bookkeeping where it can and vmap elsewhere, and ``why`` says which.

    ``micro_batch`` bounds how many examples are held in memory at a time; the sum stays the same.
    """
    from quietsum.learning.engines.batch_mixing import refuse_mixing

    if micro_batch is not None:
        micro_batch = whole_number("micro_batch", micro_batch, 1)
    if name not in (*ENGINES, "compiled"):
        raise InvalidParameter("engine", name, "is not known", f"choose one of {', '.join(ENGINES)}, compiled")
    refuse_mixing(model)
    if name in ("auto", "compiled"):
        from quietsum.learning.engines.bookkeeping import AutoEngine

        backend = "inductor" if name == "compiled" else None
        return AutoEngine(model, loss, clip, micro_batch=micro_batch, backend=backend)
    if name == "bookkeeping":
        from quietsum.learning.engines.bookkeeping import BookkeepingEngine

        return BookkeepingEngine(model, loss, clip, micro_batch=micro_batch)
    if name == "vmap":
        from quietsum.learning.engines.vmap import VmapEngine

        return VmapEngine(model, loss, clip, micro_batch=micro_batch)
    if name == "naive":
        from quietsum.learning.engines.naive import NaiveEngine

        return NaiveEngine(model, loss, clip, micro_batch=micro_batch)
    from quietsum.learning.engines.opacus_engine import opacus_engine

    return opacus_engine(name, model, loss, clip, micro_batch=micro_batch)


# ------------------------------------------------------------------------------------- what engines share

LARGEST_BLOCK = 2048
"""Examples whose gradients are summed in the model's own precision; of such blocks longer sums are made, in float64."""


def trainable(model: nn.Module) -> tuple[tuple[str, ...], tuple[nn.Parameter, ...]]:
    """Names and parameters that are to be trained, or an error that teaches when there are none."""
    found = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, parameter in found:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            remedy = "run the model once on an example before making it private"
            raise InvalidParameter("model", name, "is lazy and has no shape yet", remedy)
        if not parameter.is_floating_point():
            raise InvalidParameter("model", name, "is not a real floating-point parameter", "use float32 or float64")
    if not found:
        remedy = "unfreeze at least one layer with requires_grad_(True)"
        raise InvalidParameter("model", type(model).__name__, "has no trainable parameter", remedy)
    return tuple(name for name, _ in found), tuple(parameter for _, parameter in found)


def rows_of(batch: Batch) -> int:
    """How many examples a batch holds; all tensors must agree."""
    if not isinstance(batch, tuple | list) or not batch or not all(isinstance(part, Tensor) for part in batch):
        raise InvalidParameter("batch", type(batch).__name__, "is not a tuple of tensors", "pass (inputs, labels)")
    sizes = {part.shape[0] if part.dim() else None for part in batch}
    if len(sizes) != 1 or None in sizes:
        shapes = [tuple(part.shape) for part in batch]
        raise InvalidParameter("batch", shapes, "has parts of unequal length", "row i of every part is example i")
    return int(batch[0].shape[0])


_BEFORE_FORWARD: ContextVar[Callable[[], None] | None] = ContextVar("before_forward", default=None)


@contextlib.contextmanager
def before_each_forward(begin: Callable[[], None]) -> Iterator[None]:
    """Call ``begin`` before every forward pass that an engine makes inside, whichever engine and however many."""
    token = _BEFORE_FORWARD.set(begin)
    try:
        yield
    finally:
        _BEFORE_FORWARD.reset(token)


def begin_forward() -> None:
    """What must happen before each forward pass."""
    before = _BEFORE_FORWARD.get()
    if before is not None:
        before()


def losses_of(loss: Loss, model: nn.Module, batch: Batch, rows: int) -> Tensor:
    """The loss of each example, or an error that teaches when they were averaged."""
    begin_forward()
    losses = loss(model, batch)
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        what = f"of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
        problem = "is not one value per example, so no example can be clipped on its own"
        remedy = f"return shape ({rows},) for {rows} examples, for instance cross_entropy(..., reduction='none')"
        raise InvalidParameter("loss", what, problem, remedy)
    return losses


def in_blocks(
    batch: Batch, micro_batch: int | None, parameters: Sequence[Tensor], groups: int, one: Callable[[Batch, int], Block]
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Run ``one`` on pieces of at most ``micro_batch`` rows; add up the sums, line up the norms.

    Guarantees: no piece has more than :data:`LARGEST_BLOCK` rows, and pieces are added in float64, so that the rounding
    of a long sum grows with its length and not with the square of it
    (:func:`quietsum.learning.noise.gradient_noise.float_margin`).
    """
    rows, most = rows_of(batch), LARGEST_BLOCK if micro_batch is None else min(micro_batch, LARGEST_BLOCK)
    if not rows:
        return tuple(torch.zeros_like(p) for p in parameters), parameters[0].new_zeros((0, groups))
    if rows <= most:
        sums, norms = one(batch, rows)
        return tuple(sums), norms.detach()
    total = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    every: list[Tensor] = []
    for start in range(0, rows, most):
        piece = tuple(part[start : start + most] for part in batch)
        sums, norms = one(piece, len(piece[0]))
        for whole, part in zip(total, sums, strict=True):
            whole.add_(part)
        every.append(norms)
    return tuple(w.to(p.dtype) for w, p in zip(total, parameters, strict=True)), torch.cat(every).detach()


def group_of(groups: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """For each of ``count`` parameters the group it lies in; refused unless the groups are a partition."""
    found = {position: number for number, group in enumerate(groups) for position in group}
    if sum(map(len, groups)) != count or sorted(found) != list(range(count)):
        raise InvalidParameter("groups", groups, "is no partition of the parameters", "name each position once")
    return tuple(found[position] for position in range(count))


def clip_instances(instances: Sequence[Tensor], clip: Clip, groups: Sequence[Sequence[int]]) -> Block:
    """From per-example gradients, one (n, …) tensor per parameter, the clipped sums and the norms."""
    flat = [flat_rows(part) for part in instances]
    sizes = [torch.linalg.vector_norm(part, ord=clip.order, dim=1) for part in flat]
    norms = torch.stack([joint_norm([sizes[p] for p in group], clip.order) for group in groups], 1)
    factors, bad = safe_factors(clip, norms)
    where = group_of(groups, len(flat))
    sums = []
    for place, part in enumerate(flat):
        part = part if bad is None else part.masked_fill(bad[:, None], 0)
        sums.append((factors[:, where[place]] @ part).view(instances[place].shape[1:]))
    return sums, norms


def flat_rows(part: Tensor) -> Tensor:
    """(n, …) as (n, k): of scalars k is 1, of an empty parameter 0."""
    return part.flatten(1) if part.dim() > 1 else part.unsqueeze(1)


def joint_norm(parts: Sequence[Tensor], order: int) -> Tensor:
    """The norm of several blocks of coordinates, from the norms of the blocks: (n,) each."""
    every = torch.stack(list(parts))
    return every.square_().sum(0).sqrt_() if order == 2 else every.sum(0)


def is_on_card(part: Tensor) -> bool:
    """Whether to read a number of ``part`` is to wait for a graphics card."""
    return part.device.type != "cpu"


def safe_factors(clip: Clip, norms: Tensor) -> tuple[Tensor, Tensor | None]:
    """The factors, zero for every example with a norm that is not finite, and which those are (None: none).

    On a card it is not asked whether there are any, since that would wait for it: they are erased in any case.
    """
    if not is_on_card(norms) and math.isfinite(norms.sum().item()):
        return clip.factors(norms), None
    bad = ~torch.isfinite(norms).all(dim=1)
    return clip.factors(norms).masked_fill_(bad[:, None], 0), bad


def count_small(norms: Tensor | None, clip: Clip) -> Tensor:
    """How many examples lie within ``max_norm``, over all groups together."""
    if norms is None:
        raise InvalidParameter("small_norms", None, "has no batch to speak of", "call clipped_sum first")
    small: Tensor = torch.linalg.vector_norm(norms, ord=clip.order, dim=1) <= clip.max_norm
    return small.sum()
