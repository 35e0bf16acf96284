"""Watching a model run: which layer saw what, and where in the graph its output sits.

During one forward pass every module with trainable parameters leaves a note in its :class:`Slot`: its input, and the
place of its output in torch's graph (taken at once, so that a later in-place operation cannot move it). After one
backward pass to those places, each slot knows activations and output gradients, and
:mod:`quietsum.learning.engines.layers` does the rest. A module that no rule knows is differentiated on its own, example
by example, from what it was given.

Whether the notes explain every use of every parameter is the question of :mod:`quietsum.learning.engines.completeness`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_unflatten

from quietsum.learning.engines import layers
from quietsum.learning.engines.hardware.half import is_half
from quietsum.learning.engines.layers import Entries, Use
from quietsum.learning.engines.recurrent import can_unroll, names_in
from quietsum.learning.engines.rules import builder_for, is_own, linear
from quietsum.learning.engines.shared.broadcast import Broadcast, NotCovered, RowPlan

__all__ = ["NotCovered", "Slot", "slots_of"]


class Call(NamedTuple):
    """One call of one layer: its input and how often that was written to, and its outputs' and inputs' places.

    ``shape`` is that of the output where its place is that of the tensor behind it: an operation that writes into a
    view changes the history of the whole, and the view's own place is never reached.
    """

    given: Any
    edges: list[GradientEdge]
    version: int
    before: list[Node]
    shape: torch.Size | None = None
    buffers: dict[str, Tensor] | None = None  # of a module on its own, as they were when it ran

    def at_output(self, gradient: Tensor) -> Tensor:
        """A gradient at the noted place, shaped like the output."""
        return gradient if self.shape is None else gradient.view(self.shape)


@dataclasses.dataclass(slots=True)
class Slot:
    """One set of parameters, and what was noted about it in the present batch."""

    label: str
    module: nn.Module
    weight: str  # which of a recurrent module's Linear steps; "" for whole modules
    parameters: tuple[int, ...]
    build: Callable[[Entries, int], Use]
    plan: RowPlan
    names: tuple[str, ...] = ()  # of the parameters, in the module
    free: bool = False  # any number of positions may lie between examples and features
    half: bool = False  # multiplies in half precision under autocast
    checked: bool = False  # the rule is somebody's own, and is compared with torch's gradients
    local: bool = False
    whole: bool = False  # a module with all its children
    direct: bool = False  # its parameters are handed out with a row for each example
    tracing: bool = False
    lent: Any = None
    count: int = 0  # how often it ran
    calls: list[Call] = dataclasses.field(default_factory=list)
    observe: Callable[..., Any] | None = None
    kept: dict[str, nn.Parameter] = dataclasses.field(default_factory=dict)
    following: list[list[bool]] = dataclasses.field(default_factory=list)  # per call and argument, of local ones

    def begin(self) -> None:
        """Forget the last batch."""
        self.count, self.calls = 0, []

    def note(self, given: Any, out: Any, buffers: dict[str, Tensor] | None = None) -> None:
        """Keep what is needed of one call."""
        self.count += 1
        shape = None
        if not self.local and out.grad_fn is not None:
            base = out._base
            if base is not None and base.grad_fn is not None and base.numel() == out.numel():
                out, shape = base, out.shape
            if not self.tracing:  # the usual case, with nothing to spare
                self.calls.append(Call(given, [GradientEdge(out.grad_fn, out.output_nr)], given._version, [], shape))
                return
        if isinstance(out, Tensor):
            if not out.requires_grad:
                self._silent(out)
                return
            edges = [get_gradient_edge(out)]
        else:
            outs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor)]
            if not any(leaf.requires_grad for leaf in outs):
                self._silent(outs[0])
                return
            edges = [get_gradient_edge(leaf) for leaf in outs if leaf.requires_grad]
        before: list[Node] = []
        if self.tracing:
            leaves = tree_flatten(given)[0]
            before = [leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        version = given._version if isinstance(given, Tensor) else 0
        self.calls.append(Call(given, edges, version, before, shape, buffers))

    def _silent(self, out: Tensor) -> None:
        if not self.tracing and torch.is_grad_enabled():
            return
        raise NotCovered(f"{self.label} ran where gradients are switched off")

    def use(self, gradients: deque[Tensor | None], rows: int) -> Use | None:
        """What the layer contributes, given the gradients at its outputs; None when it contributes nothing."""
        entries: list[tuple[Any, Any]] = []
        for number, call in enumerate(self.calls):
            given = call.given
            if isinstance(given, Tensor) and given._version != call.version:
                raise NotCovered(f"the input of {self.label} was overwritten in place after it was used")
            mine = [None if (g := gradients.popleft()) is None else call.at_output(g) for _ in call.edges]
            found = [part for part in mine if part is not None]
            if not found:
                continue
            if any(part.dim() == 0 or part.shape[0] != rows for part in found):
                raise NotCovered(f"{self.label} does not have the examples in its first dimension")
            if self.direct:
                entries.append((given, layers.in_full(found[0])))
            elif self.local:
                entries.append(((given, self._rowwise(number, given, rows), call.buffers or {}), mine))
            else:
                entries.append((given, found[0] if self.half and is_half(found[0]) else layers.in_full(found[0])))
        self.begin()
        if self.direct:
            return self._use_handed_out(entries, rows) if entries else None
        return self.build(entries, rows) if entries else None

    def _use_handed_out(self, entries: Sequence[tuple[str, Tensor]], rows: int) -> Use:
        """The gradients at the rows of the parameters are every example's own."""
        found = dict(entries)
        blank = [(name, getattr(self.module, name)) for name in self.names]
        return layers.InstanceUse(
            [found[name] if name in found else p.new_zeros((rows, *p.shape)) for name, p in blank]
        )

    # --------------------------------------------------------------- which arguments hold one row per example

    def learn(self, few: int) -> None:
        """Note, after a run on ``few`` rows, which arguments may hold one row per example: those of that length."""
        if self.local and not self.direct:
            self.following = [[_long(leaf, few) for leaf in tree_flatten(call.given)[0]] for call in self.calls]

    def confirm(self, rows: int) -> None:
        """After a run on another number of rows: those that followed do, the others are the same for all examples."""
        if self.local and not self.direct:
            seen = [[_long(leaf, rows) for leaf in tree_flatten(call.given)[0]] for call in self.calls]
            if [len(leaves) for leaves in seen] != [len(leaves) for leaves in self.following]:
                raise NotCovered(f"{self.label} is called differently for another number of examples")
            self.following = [
                [one and two for one, two in zip(*pair, strict=True)] for pair in zip(seen, self.following, strict=True)
            ]

    def _rowwise(self, number: int, given: Any, rows: int) -> list[bool]:
        leaves = tree_flatten(given)[0]
        known = self.following[number] if number < len(self.following) else []
        if len(known) != len(leaves) or any(k and not _long(leaf, rows) for k, leaf in zip(known, leaves, strict=True)):
            raise NotCovered(f"{self.label} is not always called in the same way")
        return known

    # ------------------------------------------------------------------- lending the module another forward

    def lend(self) -> None:
        """From now on the module notes what it is given and what it returns."""
        if self.direct:
            self._hand_out()
            return
        lent = self.module.__dict__.get("forward")
        if self.observe is None or lent is not self.lent:
            self.lent, self.observe = lent, self._watch(self.module.forward)
        self.module.__dict__["forward"] = self.observe

    def _watch(self, run: Callable[..., Any]) -> Callable[..., Any]:
        if self.local:

            def observe(*args: Any, **kwargs: Any) -> Any:
                if self.plan.active and any(type(leaf) is Broadcast for leaf in tree_flatten((args, kwargs))[0]):
                    raise NotCovered(f"{self.label} is given what all examples share")
                buffers = {name: buffer.detach().clone() for name, buffer in self.module.named_buffers()}
                out = run(*args, **kwargs)
                self.note((args, kwargs), out, buffers)
                return out
        else:

            def observe(*args: Any, **kwargs: Any) -> Any:
                given = args[0] if args else next(iter(kwargs.values()))
                if self.plan.active and self._is_shared(given):
                    return self._once(run, given, args, kwargs)
                if self.half and len(args) == 1 and torch.is_autocast_enabled(given.device.type):
                    given = self.plan.cast(given)
                    args = (given,)
                out = run(*args, **kwargs)
                self.note(given, out)
                return out

        return observe

    def _is_shared(self, given: Any) -> bool:
        """Whether this call is given what all examples share."""
        if type(given) is Broadcast:
            return True
        return (
            self.free
            and isinstance(given, Tensor)
            and given.dim() > 0
            and not self.plan.decide("call", [len(given)])[0]
        )

    def _once(self, run: Callable[..., Any], given: Tensor, args: Any, kwargs: Any) -> Any:
        """One call for all examples: the rows of its output are noted when something asks for them."""
        if not self.free or not torch.is_grad_enabled() or len(args) + len(kwargs) != 1:
            raise NotCovered(f"{self.label} is given what all examples share")
        self.count += 1
        if type(given) is Broadcast:
            shared: Broadcast = given
            with torch.no_grad():
                plain = run(shared.plain)

            def make() -> Tensor:
                rows = shared.rows_of_it()
                out: Tensor = run(rows)
                self._note_rows(rows, out)
                return out
        else:
            plain = run(given)
            if given.requires_grad:
                raise NotCovered(f"{self.label} is given what all examples share and other parameters made")

            def make() -> Tensor:
                out: Tensor = plain.expand(self.plan.rows, *plain.shape)
                self._note_rows(given.expand(self.plan.rows, *given.shape), out)
                return out

        return Broadcast.over(plain, make, self.label, self.plan)

    def _note_rows(self, given: Tensor, out: Tensor) -> None:
        before = [given.grad_fn] if given.grad_fn is not None else []
        self.calls.append(Call(given, [get_gradient_edge(out)], given._version, before))

    def _hand_out(self) -> None:
        """In place of each parameter stands one that looks the same and has a row for each example."""
        own: dict[str, Any] = self.module._parameters
        kept = {name: own[name] for name in self.names}
        handed = {
            name: Broadcast.over(parameter, functools.partial(self._rows_of, name, parameter), self.label, self.plan)
            for name, parameter in kept.items()
        }
        self.kept = kept
        own.update(handed)

    def _rows_of(self, name: str, parameter: nn.Parameter) -> Tensor:
        self.count += 1
        rows = parameter.expand(self.plan.rows, *parameter.shape)
        self.calls.append(Call(name, [get_gradient_edge(rows)], 0, []))
        return rows

    def take_back(self) -> None:
        """The module is as it was."""
        if self.direct:
            self.module._parameters.update(self.kept)
            self.kept = {}
            return
        if self.lent is None:
            self.module.__dict__.pop("forward", None)
        else:
            self.module.__dict__["forward"] = self.lent


def _long(leaf: Any, rows: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == rows


def slots_of(model: nn.Module, positions: dict[int, int], plan: RowPlan) -> list[Slot]:
    """A slot for everything that owns trainable parameters; ``positions`` maps id(parameter) to its number."""
    found: list[Slot] = []
    inside: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        label = f"{name or 'the model'} ({type(module).__name__})"
        whole = isinstance(module, nn.MultiheadAttention)
        own = [(n, p) for n, p in module.named_parameters(recurse=whole) if p.requires_grad]
        if whole:
            inside.update(id(child) for child in module.modules())
        if not own:
            continue
        if can_unroll(module):
            found.extend(_recurrent(module, label, positions, plan))
            continue
        known = builder_for(module, {n for n, _ in own}) if not whole else None
        numbers = tuple(positions[id(p)] for _, p in own)
        names = tuple(n for n, _ in own)
        if known is not None:
            slot = Slot(label, module, "", numbers, known.build, plan, names, known.free, known.half, is_own(module))
            found.append(slot)
        else:
            local = _Local(module, names, label)
            found.append(Slot(label, module, "", numbers, local, plan, names, local=True, whole=whole))
    return found


def _recurrent(module: nn.Module, label: str, positions: dict[int, int], plan: RowPlan) -> Iterable[Slot]:
    for weight, bias in names_in(module):
        pair = [getattr(module, name, None) for name in (weight, bias)]
        trained = [part is not None and part.requires_grad for part in pair]
        numbers = tuple(positions[id(p)] for p, t in zip(pair, trained, strict=True) if t)
        if numbers:
            yield Slot(f"{label}.{weight}", module, weight, numbers, linear(*trained), plan)


# ------------------------------------------------------------------------------------- modules on their own


@dataclasses.dataclass(frozen=True, slots=True)
class _Local:
    """An unknown module on its own: for each example, its output gradient pulled back to its parameters."""

    module: nn.Module
    names: Sequence[str]
    label: str

    def __call__(self, entries: Sequence[Any], rows: int) -> Use:
        total: list[Tensor] | None = None
        for (given, rowwise, buffers), gradients in entries:
            found = self._instances(given, rowwise, buffers, gradients)
            total = found if total is None else [one + two for one, two in zip(total, found, strict=True)]
        assert total is not None
        return layers.InstanceUse(total)

    def _instances(
        self, given: Any, rowwise: Sequence[bool], buffers: dict[str, Tensor], gradients: Sequence[Tensor | None]
    ) -> list[Tensor]:
        state = dict(self.module.named_parameters())
        values = {name: state[name].detach() for name in self.names}
        leaves, spec = tree_flatten(given)
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        some = [leaf for leaf, row in zip(leaves, rowwise, strict=True) if row]
        backs = [part for part in gradients if part is not None]
        kept = [position for position, part in enumerate(gradients) if part is not None]

        def one(row: Sequence[Tensor], back: Sequence[Tensor]) -> list[Tensor]:
            mine = iter(row)
            args, kwargs = tree_unflatten(
                [next(mine)[None] if r else leaf for leaf, r in zip(leaves, rowwise, strict=True)], spec
            )

            def run(parameters: dict[str, Tensor]) -> list[Tensor]:
                held = {name: buffer.clone() for name, buffer in buffers.items()}  # it may write into them
                out = torch.func.functional_call(self.module, {**parameters, **held}, args, kwargs)
                outs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, Tensor) and leaf.is_floating_point()]
                return [outs[position][0] for position in kept]

            pull: Any = torch.func.vjp(run, values)[1]
            pulled = pull(list(back))[0]
            return [pulled[name] for name in self.names]

        try:
            return torch.func.vmap(one, randomness="error")(some, backs)
        except (RuntimeError, ValueError, IndexError) as problem:
            reason = str(problem).splitlines()[0]
            raise NotCovered(f"{self.label} cannot be differentiated on its own ({reason})") from problem
