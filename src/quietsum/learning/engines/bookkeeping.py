"""Our engine: private gradients for little more than the price of ordinary ones.

An ordinary step runs the model forward (F), propagates gradients back to the layers' outputs (F) and turns them into
weight gradients (F). Per-example gradients need all three; only the last must wait until the clip factors are known:

    1. forward, noting each layer's input a
    2. one backward pass, to the layers' outputs only, giving g
    3. every example's norm from a and g, mostly without forming its gradient
    4. factors c_i, then one weighted weight gradient Σ_i c_i g_i a_iᵀ per layer

which is Bu et al. 2023, "Differentially private optimization on large model at small cost" (book-keeping), with norms
after Goodfellow 2015 and Li et al. 2022. The formulas stand in :mod:`quietsum.learning.engines.layers`.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Clip
from quietsum.learning.engines.batch_mixing import NORMS, mixing_now, refuse_mixing
from quietsum.learning.engines.completeness import find_unaccounted
from quietsum.learning.engines.dense import DenseStack, stacks_in
from quietsum.learning.engines.hardware.compiled import CompiledBlocks
from quietsum.learning.engines.layers import Use, norms_in_one
from quietsum.learning.engines.naive import NaiveEngine
from quietsum.learning.engines.protocol import (
    Batch,
    Block,
    Engine,
    Loss,
    begin_forward,
    count_small,
    group_of,
    in_blocks,
    joint_norm,
    losses_of,
    rows_of,
    safe_factors,
    trainable,
)
from quietsum.learning.engines.recurrent import unroll
from quietsum.learning.engines.shared.broadcast import Broadcast, NewPath, NotCovered, RowPlan
from quietsum.learning.engines.shared.tied import join_uses
from quietsum.learning.engines.tracing import Slot, slots_of
from quietsum.learning.engines.trial import (
    NothingFinite,
    few_of,
    refuse_rule,
    replay_losses,
    same_gradients,
    same_losses,
    sound_first,
)
from quietsum.learning.engines.vmap import NotBatchable, VmapEngine

__all__ = ["AutoEngine", "BookkeepingEngine"]

_LOOKS = 3  # batches whose rows are followed through the layers, besides the first one of each path


@final
class BookkeepingEngine:
    """One forward, one backward to layer outputs, norms, one weighted weight gradient.

    Guarantees: every use of a trainable parameter is accounted for, or the batch is refused; checked on torch's graph
    at the first batch and whenever the model takes a new path. That row i at a layer belongs to example i is checked
    too, on the first few batches and on every new path: a model may sort its rows and put them back.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None, backend: str | None = None
    ) -> None:
        """``backend`` is that of torch.compile, for the step itself; None does not compile it."""
        self._model, self._loss, self._clip, self._micro_batch = model, loss, clip, micro_batch
        self._graphs = None if backend is None else CompiledBlocks(model, loss, self._run_recorded, backend)
        names, self._parameters = trainable(model)
        self._groups = clip.groups(names)
        self._group_of = group_of(self._groups, len(names))
        self._names = names
        self._plan = RowPlan()
        self._slots = slots_of(model, {id(p): number for number, p in enumerate(self._parameters)}, self._plan)
        self._by_step = {(id(slot.module), slot.weight): slot for slot in self._slots if slot.weight}
        owners = [number for slot in self._slots for number in slot.parameters]
        self._shared = {number for number in owners if owners.count(number) > 1}
        self._norm_layers = [module for module in model.modules() if isinstance(module, NORMS)]
        self._whole = [slot for slot in self._slots if not slot.weight]
        self._stacks = stacks_in(model, self._slots)
        stacked = {id(slot) for stack in self._stacks for slot in stack.slots}
        self._loose = [slot for slot in self._whole if id(slot) not in stacked]
        self._handed = [slot for slot in self._slots if slot.local and not slot.whole]
        self._ways = [True, False] if self._handed else [False, True]  # whether shared tensors get rows
        self._checked: set[tuple[int, ...]] = set()
        self._looks = 0
        self._norms: Tensor | None = None
        self._kept_whole: set[str] = set()
        self._problem: NotCovered | None = None
        self._compiled = any(
            "_orig_mod" in module._modules or module._compiled_call_impl is not None for module in model.modules()
        )

    @property
    def name(self) -> str:
        """As in ``engine_for``."""
        return "bookkeeping" if self._graphs is None else "compiled"

    @property
    def why(self) -> str:
        """Why this engine, and which modules it had to treat one by one."""
        local = [slot.label for slot in self._slots if slot.local and not slot.direct]
        known = "every trainable layer is known, so one backward pass is enough"
        if local:
            known = f"most layers are known; per-example gradients by vmap for {', '.join(local)}"
        if self._graphs is None:
            return known
        problem = self._graphs.problem
        return f"{known}; " + ("the step is compiled" if problem is None else f"not compiled, because {problem}")

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable ones."""
        return self._parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        try:
            return self._clipped_sum(batch)
        except NotCovered as problem:
            remedy = "use engine = 'vmap', or 'auto', which falls back by itself"
            raise InvalidParameter("engine", "bookkeeping", f"cannot serve this model: {problem}", remedy) from problem

    def _clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        if any(mixing_now(module) for module in self._norm_layers):
            refuse_mixing(self._model)
        if self._graphs is not None:
            self._graphs.begin()
        try:
            sums, self._norms = in_blocks(batch, self._micro_batch, self._parameters, len(self._groups), self._block)
        except NothingFinite:  # no way of bookkeeping can be tried on this batch; another one will show
            loop = NaiveEngine(self._model, self._loss, self._clip, micro_batch=self._micro_batch)
            sums, self._norms = loop.clipped_sum(batch), loop.norms
        finally:
            for slot in self._slots:
                slot.begin()
            for stack in self._stacks:
                stack.forget()
        return sums

    def small_norms(self) -> Tensor:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        return count_small(self._norms, self._clip)

    # ---------------------------------------------------------------------------------------- one piece

    def _block(self, batch: Batch, rows: int) -> Block:
        if self._graphs is not None and self._checked and self._looks >= _LOOKS:
            begin_forward()
            found = self._graphs(batch, rows, lambda: self._ordinary(batch, rows))
            if found is not None:
                return found
        return self._ordinary(batch, rows)

    def _run_recorded(self, batch: Batch, weights: Tensor) -> tuple[list[Tensor], Tensor]:
        """For :mod:`quietsum.learning.engines.hardware.compiled`: factors times ``weights``, and no look at values."""
        rows = len(weights)
        with torch.enable_grad(), self._eagerly():
            edges, losses = self._edges(self._losses(batch, rows))
            gradients: deque[Tensor | None] = deque(torch.autograd.grad(losses.sum(), edges, allow_unused=True))
        with torch.no_grad():
            uses = self._uses(gradients, rows)
            norms = self._norms_of(uses, rows)
            factors = self._clip.factors(norms) * weights.to(norms.dtype)[:, None]
            columns = [factors.view(-1)] if len(self._groups) == 1 else list(factors.t().contiguous().unbind())
            return self._weigh(uses, columns), norms

    def _ordinary(self, batch: Batch, rows: int) -> Block:
        with torch.enable_grad(), self._eagerly():
            if self._looks < _LOOKS and self._checked and rows > 1:
                self._look(batch, rows)
                self._looks += 1
            edges, losses = self._edges(self._losses(batch, rows))
            if not edges:
                return [torch.zeros_like(p) for p in self._parameters], losses.new_zeros((rows, len(self._groups)))
            gradients: deque[Tensor | None] = deque(torch.autograd.grad(losses.sum(), edges, allow_unused=True))
        del losses, edges
        with torch.no_grad():
            return self._settle(gradients, rows)

    def _edges(self, losses: Tensor) -> tuple[list[Any], Tensor]:
        """Where gradients are wanted."""
        edges: list[Any] = [out for stack in self._stacks for out in stack.outs()]
        return edges + [edge for slot in self._slots for call in slot.calls for edge in call.edges], losses

    def _eagerly(self) -> AbstractContextManager[Any]:
        """A compiled model runs as it was written: no notes can be taken inside of a compiled graph."""
        return torch.compiler.set_stance("force_eager") if self._compiled else contextlib.nullcontext()

    def _uses(self, gradients: deque[Tensor | None], rows: int) -> list[tuple[tuple[int, ...], Use]]:
        """What each set of parameters contributes. Takes the gradients out of the queue."""
        uses = [use for stack in self._stacks for use in stack.uses(gradients, rows)]
        for slot in self._slots:
            use = slot.use(gradients, rows) if slot.calls else None
            if use is not None:
                uses.append((slot.parameters, use))
        return join_uses(uses, self._shared) if self._shared else uses

    def _settle(self, gradients: deque[Tensor | None], rows: int) -> Block:
        """Norms, factors, weighted sums; memory is freed on the way."""
        uses = self._uses(gradients, rows)
        norms = self._norms_of(uses, rows)
        factors, bad = safe_factors(self._clip, norms)
        columns = [factors.view(-1)] if len(self._groups) == 1 else list(factors.t().contiguous().unbind())
        return self._weigh(uses, columns, bad), norms

    def _weigh(
        self, uses: list[tuple[tuple[int, ...], Use]], columns: Sequence[Tensor], bad: Tensor | None = None
    ) -> list[Tensor]:
        """Σ_i c_i times the gradient of example i, for each parameter; ``columns`` are the c_i of each group.

        The examples that ``bad`` marks are erased layer by layer, so that no more than one layer is held twice.
        """
        sums: list[Tensor | None] = [None] * len(self._parameters)
        while uses:
            numbers, use = uses.pop()
            if bad is not None:
                use.drop(bad)
            parts = use.weigh([columns[self._group_of[k]] for k in numbers])
            for number, part in zip(numbers, parts, strict=True):
                sums[number] = part
        return [
            torch.zeros_like(p) if part is None else part if part.dtype is p.dtype else part.to(p.dtype)
            for p, part in zip(self._parameters, sums, strict=True)
        ]

    def _norms_of(self, uses: Sequence[tuple[tuple[int, ...], Use]], rows: int) -> Tensor:
        """(n, groups) norms from those of the parameters."""
        order = self._clip.order
        if len(self._groups) == 1:
            every = norms_in_one([use for _, use in uses], order)
            return joint_norm(every or [self._parameters[0].new_zeros(rows)], order).unsqueeze(1)
        measured: list[list[Tensor]] = [[] for _ in self._groups]
        for numbers, use in uses:
            for number, norm in zip(numbers, use.norms(order), strict=True):
                measured[self._group_of[number]].append(norm)
        blank = [self._parameters[0].new_zeros(rows)]
        return torch.stack([joint_norm(group or blank, order) for group in measured], 1)

    # ------------------------------------------------------------------------------- the way of a batch

    def _losses(self, batch: Batch, rows: int) -> Tensor:
        """The losses of a run whose notes are complete: on a path that is known, or is tried and checked now."""
        if self._checked:
            try:
                losses = self._run(batch, rows)
                if tuple([slot.count for slot in self._slots]) in self._checked:
                    return losses
            except (NewPath, NotCovered):
                if not self._plan.active:
                    raise
        while self._ways:
            try:
                return self._go(self._ways[0], batch, rows)
            except NotCovered as problem:
                if self._ways[0] and self._hand_out_less(str(problem)):
                    continue
                if self._problem is None or not self._ways[0]:
                    self._problem = problem
                self._ways.pop(0)
                self._checked.clear()
        raise self._problem or NotCovered("it is used in ways that cannot be followed")

    def _go(self, sharing: bool, batch: Batch, rows: int) -> Tensor:
        """Try one way on a few examples, then check it on the batch."""
        self._plan.active = sharing
        for slot in self._handed:
            slot.direct = sharing and slot.label not in self._kept_whole
        if sharing or any(slot.checked for slot in self._slots):
            self._try_out(batch, sharing)
        try:
            losses = self._check(batch, rows)
        except NewPath as found:  # a model may go other ways with more examples
            raise NotCovered("what all examples share is used in another way for another number of them") from found
        self._checked.add(tuple([slot.count for slot in self._slots]))
        return losses

    def _hand_out_less(self, problem: str) -> bool:
        """Treat modules of the kind that is named in a refusal on their own, or all; whether that is something new."""
        handed = [slot for slot in self._handed if slot.direct]
        named = {type(slot.module) for slot in handed if slot.label in problem}
        fewer = {slot.label for slot in handed if not named or type(slot.module) in named}
        self._kept_whole |= fewer
        return bool(fewer)

    def _try_out(self, batch: Batch, sharing: bool) -> None:
        """Losses, gradients and norms of a few examples against torch's; which tensors hold the examples' rows."""
        heard: list[Any] = []
        with torch.no_grad():  # the first few that are not broken
            some = few_of(batch, min(len(batch[0]), 64))
            losses = replay_losses(functools.partial(losses_of, self._loss, self._model, some, len(some[0])), some)
            batch = sound_first(some, losses)
        problem = NotCovered("what all examples share is used in another way for another number of them")
        for count in (2, 3, 5):
            few = few_of(batch, count)
            plain = replay_losses(functools.partial(losses_of, self._loss, self._model, few, count), few)
            self._plan.learning = True
            try:
                ours = replay_losses(functools.partial(self._forward, few, count, graph=True), few)
                if not same_losses(ours, plain):
                    raise NotCovered("what all examples share changes the losses if it has rows")
                said = list(self._plan.seen)
                if sharing and said not in heard:
                    heard.append(said)
                    continue
                self._compare(ours, plain, count)
                self._plan.keep(said)
                return
            except (InvalidParameter, NothingFinite, torch.OutOfMemoryError):
                raise
            except NotCovered as found:
                problem = found
            except Exception as found:
                reason = next(iter(str(found).splitlines()), type(found).__name__)
                problem = NotCovered(f"what all examples share cannot be followed ({reason})")
            finally:
                self._plan.learning = False
        raise problem

    def _compare(self, ours: Tensor, plain: Tensor, rows: int) -> None:
        edges = [edge for slot in self._slots for call in slot.calls for edge in call.edges]
        if not edges:
            return
        gradients: deque[Tensor | None] = deque(torch.autograd.grad(ours.sum(), edges, allow_unused=True))
        half = any(part is not None and part.element_size() < 4 for part in gradients)
        with torch.no_grad():
            uses = self._uses(gradients, rows)
            norms = self._norms_of(uses, rows)
        whole = joint_norm(list(norms.unbind(1)), self._clip.order)

        def weigh(row: int) -> list[Tensor]:
            one = torch.zeros(rows, dtype=norms.dtype, device=norms.device)
            one[row] = 1
            with torch.no_grad():
                return self._weigh(list(uses), [one] * len(self._groups))

        wrong = same_gradients(plain, self._parameters, weigh, whole, self._clip.order, half=half)
        if wrong is not None:
            for slot in self._slots:
                if slot.checked and wrong in slot.parameters:
                    raise refuse_rule(type(slot.module).__name__)
            raise NotCovered(f"the gradient of {self._names[wrong]} is another one by the books than by torch")

    # ------------------------------------------------------------------------------------------ watching

    def _run(self, batch: Batch, rows: int) -> Tensor:
        """The losses, as fast as can be."""
        if not self._stacks:
            return self._forward(batch, rows)
        try:
            return self._forward(batch, rows)
        except RuntimeError:  # a loss that writes into the scores, say: torch's own way allows more
            return self._forward(batch, rows, graph=True)

    def _forward(self, batch: Batch, rows: int, *, graph: bool = False) -> Tensor:
        """The losses, with notes in the slots; ``graph``: everything by torch, so that its graph can be walked."""
        stacks, slots = ([], self._whole) if graph or self._plan.active else (self._stacks, self._loose)
        self._plan.begin(rows)
        for slot in self._slots:
            slot.begin()
        for stack in self._stacks:
            stack.forget()
        lending: list[Slot | DenseStack] = [*slots, *stacks]
        lent: list[Slot | DenseStack] = []
        try:
            for one in lending:
                one.lend()
                lent.append(one)
            if not self._by_step:
                losses = losses_of(self._loss, self._model, batch, rows)
            else:
                with unroll(self._model, self._step):
                    losses = losses_of(self._loss, self._model, batch, rows)
            if type(losses) is Broadcast:
                raise NotCovered(f"the losses do not depend on the examples, only on {losses.label}")
            return losses
        finally:
            for one in reversed(lent):
                one.take_back()

    def _step(self, module: nn.Module, weight: str, given: Tensor, out: Tensor) -> None:
        slot = self._by_step.get((id(module), weight))
        if slot is not None:
            slot.note(given, out)

    def _check(self, batch: Batch, rows: int) -> Tensor:
        """Run again with the graph in view; refuse what the books would miss. Returns the losses of that run."""
        few = 1 if rows > 1 else 2
        fewer = tuple(torch.cat([part[:1]] * few) for part in batch)
        self._forward_and_shape(fewer, few)
        for slot in self._slots:
            slot.tracing = True
        try:
            losses = self._forward(batch, rows, graph=True)
            for slot in self._slots:
                slot.confirm(rows)
        finally:
            for slot in self._slots:
                slot.tracing = False
        missing = find_unaccounted(losses, self._slots, self._parameters)
        if missing:
            named = ", ".join(self._names[number] for number in missing)
            raise NotCovered(f"{named} is used outside the forward of the module that owns it")
        self._refuse_moved_rows(losses, rows)
        return losses

    def _look(self, batch: Batch, rows: int) -> None:
        try:
            self._refuse_moved_rows(self._forward(batch, rows, graph=True), rows)
        except (NewPath, NotCovered):
            if not self._plan.active:
                raise
            self._checked.clear()  # another way is looked for

    def _refuse_moved_rows(self, losses: Tensor, rows: int) -> None:
        """Whether the loss of an example reaches each layer in that example's row alone, for the first and the last."""
        places = [(slot.label, call, edge) for slot in self._slots for call in slot.calls for edge in call.edges]
        for row in sorted({0, rows - 1}) if rows > 1 and places and losses.requires_grad else ():
            edges = [edge for _, _, edge in places]  # of one loss: a weight for each would make torch import sympy
            found = torch.autograd.grad(losses[row], edges, retain_graph=True, allow_unused=True)
            for (label, call, _), part in zip(places, found, strict=True):
                if part is None:
                    continue
                part = call.at_output(part)
                others = [part[:row], part[row + 1 :]] if part.dim() and len(part) == rows else [part]
                if any(bool((other.abs() > 0).any()) for other in others):  # NaN is no finding: it is one bad row's
                    raise NotCovered(f"{label} does not have example i in row i")

    def _forward_and_shape(self, batch: Batch, rows: int) -> None:
        """Whether every noted output has the examples first: run on another number of examples and see."""
        losses = self._forward(batch, rows, graph=True)
        for slot in self._slots:
            slot.learn(rows)
        places = [(slot.label, call, edge) for slot in self._slots for call in slot.calls for edge in call.edges]
        if places:
            found = torch.autograd.grad(losses.sum(), [edge for _, _, edge in places], allow_unused=True)
            for (label, call, _), part in zip(places, found, strict=True):
                if part is not None and (part.dim() == 0 or len(call.at_output(part)) != rows):
                    raise NotCovered(f"{label} does not have the examples in its first dimension")


@final
class AutoEngine:
    """Bookkeeping where its books are complete, else vmap, else a loop; from the first batch that shows it.

    The loop takes over only if vmap has served no batch yet: what one record raises later does not change the engine.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, clip: Clip, *, micro_batch: int | None = None, backend: str | None = None
    ) -> None:
        """``backend`` as in :class:`BookkeepingEngine`."""
        self._model, self._loss, self._clip, self._micro_batch = model, loss, clip, micro_batch
        self._books: BookkeepingEngine | None = BookkeepingEngine(
            model, loss, clip, micro_batch=micro_batch, backend=backend
        )
        self._engine: Engine = self._books
        self._settled = False

    @property
    def name(self) -> str:
        """The name of the engine at work."""
        return self._engine.name

    @property
    def why(self) -> str:
        """Why it is at work."""
        return self._engine.why

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The trainable ones."""
        return self._engine.parameters

    def clipped_sum(self, batch: Batch) -> tuple[Tensor, ...]:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        if self._books is not None:
            try:
                return self._books._clipped_sum(batch)
            except NotCovered as problem:
                self._books = None
                self._engine = VmapEngine(
                    self._model, self._loss, self._clip, micro_batch=self._micro_batch, why=f"vmap, because {problem}"
                )
        try:
            sums = self._engine.clipped_sum(batch)
        except NotBatchable as problem:
            if self._settled:
                raise
            why = f"a loop over examples, which is slow, because the model {problem.problem}"
            loop = NaiveEngine(self._model, self._loss, self._clip, micro_batch=self._micro_batch, why=why)
            sums = loop.clipped_sum(batch)
            self._engine = loop
        self._settled = self._settled or rows_of(batch) > 0
        return sums

    def small_norms(self) -> Tensor:
        """See :class:`quietsum.learning.engines.protocol.Engine`."""
        return self._engine.small_norms()
