"""What all examples share, with a row for each of them behind it.

A table of positions is looked up once, a class token is one vector, the scale of a normalisation belongs to no example.
Torch adds their gradients up over the batch before a layer's output is reached, and no example's own can be had. A
:class:`Broadcast` looks to the model like the shared tensor. Behind it stands the same tensor repeated for n examples
without a copy, and the graph runs through that: where it meets the examples, example i meets row i, so the gradient at
the repeated tensor is every example's own,

    ∂ loss_i / ∂ shared  =  (∂ Σ_j loss_j / ∂ repeated)_i                as long as loss_i reads row i alone.

Shape changes, casts and functions of shared things alone are carried along and computed when they are needed. Which
tensors hold the examples in their first dimension cannot be read off one batch, where a sequence may be as long as the
batch, so it is learned from runs on several numbers of examples and replayed (:class:`RowPlan`). Anything else raises
:class:`NotCovered`; the engine then takes another way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = ["Broadcast", "NewPath", "NotCovered", "RowPlan"]

Decision: TypeAlias = tuple[str, tuple[bool, ...]]
"""An operation, and which of its tensors hold one row for each example."""

Call: TypeAlias = Callable[[Sequence[Any]], Any]
"""One operation, with other leaves in place of its own."""


class NotCovered(Exception):
    """The books of this model cannot be complete; the message says why."""


class NewPath(Exception):
    """The shared tensors are used in an order that has not been learned yet."""


@final
class RowPlan:
    """Which tensors hold one row for each example, where shared ones meet them: learned once, then replayed.

    A dimension that is n in a run on n examples may be n by chance. So :meth:`learn` is called for runs on different n,
    and only what two of them say alike is kept.
    """

    def __init__(self) -> None:
        self.rows, self.active, self.learning = 0, False, False
        self.seen: list[Decision] = []
        self._known: list[list[Decision]] = []
        self._left: list[list[Decision]] = []
        self._cast: tuple[Tensor, int, Tensor] | None = None

    def begin(self, rows: int) -> None:
        """A run on so many examples begins."""
        self.rows, self.seen, self._left, self._cast = rows, [], self._known, None

    def cast(self, given: Tensor) -> Tensor:
        """What autocast makes of a layer's input, once for layers in a row that are given the same."""
        dtype = torch.get_autocast_dtype(given.device.type)
        if given.dtype is not torch.float32 or dtype is not torch.bfloat16:
            return given
        if self._cast is None or self._cast[0] is not given or self._cast[1] != given._version:
            self._cast = given, given._version, given.to(dtype)
        return self._cast[2]

    def keep(self, seen: list[Decision]) -> None:
        """What two runs have said alike."""
        if seen not in self._known:
            self._known.append(seen)

    def decide(self, operation: str, sizes: Sequence[int]) -> tuple[bool, ...]:
        """For each tensor, from the size of its first dimension, whether that counts the examples."""
        guess = tuple(size == self.rows for size in sizes)
        if self.learning:
            self.seen.append((operation, guess))
            return guess
        place = len(self.seen)
        left = [one for one in self._left if len(one) > place and one[place][0] == operation]
        left = [one for one in left if len(one[place][1]) == len(guess)]
        found = {one[place][1] for one in left}
        if len(found) != 1:
            raise NewPath(operation)
        answer = found.pop()
        if any(said and not seen for said, seen in zip(answer, guess, strict=True)):
            raise NewPath(operation)
        self._left = left
        self.seen.append((operation, answer))
        return answer


_SAME_SHAPE = {
    "add", "__add__", "__radd__", "__iadd__", "add_", "sub", "subtract", "__sub__", "__rsub__", "rsub", "__isub__",
    "sub_", "mul", "multiply", "__mul__", "__rmul__", "__imul__", "mul_", "div", "divide", "true_divide", "__truediv__",
    "__rtruediv__", "__itruediv__", "div_", "pow", "__pow__", "neg", "__neg__", "exp", "log", "sigmoid", "tanh", "relu",
    "softplus", "sqrt", "rsqrt", "square", "clamp", "clip", "abs", "maximum", "minimum", "where", "masked_fill",
    "expand_as", "addcmul", "lerp",
}  # fmt: skip
"""Operations that broadcast their tensors against each other, aligned at the last dimension."""

_CASTS = {"to", "float", "double", "half", "bfloat16", "type", "type_as", "clone", "contiguous"}
_BATCHED = {"scaled_dot_product_attention"}
"""Operations whose every tensor may have the examples first."""

_REPEATS = {"expand", "broadcast_to", "repeat", "tile"}
_RANDOM = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
_CONSTANTS = {"detach", "data", "item", "tolist", "numpy"}


@final
class Broadcast(Tensor):
    """A tensor that all examples share; ``rows_of_it()`` is the same with one row for each example, made when needed.

    Its own values are a leaf of torch's graph that belongs to no example: an operation that reached them past this
    class would leave that leaf in the graph, where :mod:`quietsum.learning.engines.completeness` finds it.
    """

    label: str
    plan: RowPlan
    plain: Tensor
    _make: Callable[[], Tensor] | None
    _made: Tensor | None

    @staticmethod
    def over(plain: Tensor, make: Callable[[], Tensor], label: str, plan: RowPlan) -> Broadcast:
        """``plain`` as all see it, ``make`` for (n, …); the label names the layer in refusals."""
        plain = plain.detach()
        shared: Broadcast = Tensor._make_subclass(Broadcast, plain, True)
        shared.__dict__.update(label=label, plan=plan, plain=plain, _make=make, _made=None)
        return shared

    def rows_of_it(self) -> Tensor:
        """(n, …)."""
        kept = self.__dict__
        if kept["_made"] is None:
            kept["_made"] = kept["_make"]()
            kept["_make"] = None
        made: Tensor = kept["_made"]
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry the rows through one operation."""
        name = getattr(func, "__name__", "")
        getter = name == "__get__"
        if getter:
            name = getattr(getattr(func, "__self__", None), "__name__", "")
            if name == "requires_grad":
                return True
        leaves, spec = tree_flatten((args, kwargs or {}))
        places = [place for place, leaf in enumerate(leaves) if type(leaf) is Broadcast]
        first: Broadcast = leaves[places[0]]
        kept = first.__dict__
        label, plan = kept["label"], kept["plan"]

        def call(given: Sequence[Any]) -> Any:
            words, named = tree_unflatten(list(given), spec)
            return func(*words, **named)

        def plainly() -> Any:
            seen = [leaf.__dict__["plain"] if type(leaf) is Broadcast else leaf for leaf in leaves]
            with torch.no_grad():
                return call(seen)

        if (getter and name not in ("T", "mT", "H", "mH")) or name in _CONSTANTS or not torch.is_grad_enabled():
            return plainly()
        if name.startswith("__set") or (_in_place(name) and places[0] == 0):
            raise NotCovered(f"{label} is shared by all examples and written to in place")
        others = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and n not in places and leaf.dim()]
        met: list[int] = []
        if others and name not in _CASTS:
            said = plan.decide(name, [len(leaves[n]) for n in others])
            met = [n for n, yes in zip(others, said, strict=True) if yes]
        if met:
            return _meet(name, call, leaves, places, met, label)
        if name in _REPEATS:
            sizes = _sizes(args[1:], kwargs or {})
            if plan.decide(name, sizes[:1])[0]:
                row = align(first, len(sizes))
                more = [1 if name in ("repeat", "tile") else plan.rows, *sizes[1:]]
                return row.repeat(more) if name in ("repeat", "tile") else row.expand(more)
        return _carry(name, call, plainly, leaves, places, label, plan)


def align(shared: Broadcast, dimensions: int) -> Tensor:
    """The rows with as many dimensions, the examples first: what a sum with (n, …) needs."""
    rows, plain = shared.rows_of_it(), shared.__dict__["plain"]
    spare = dimensions - 1 - plain.dim()
    if spare >= 0:
        return rows.reshape(len(rows), *[1] * spare, *plain.shape)
    if spare == -1 and plain.shape[0] == 1:
        return rows.squeeze(1)
    raise NotCovered(f"{shared.__dict__['label']} is shared by all examples and has no place for their dimension")


def _in_place(name: str) -> bool:
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _sizes(args: Sequence[Any], kwargs: dict[str, Any]) -> list[int]:
    given: Any = args or tuple(kwargs.values())
    if len(given) == 1 and not isinstance(given[0], int):
        given = given[0]
    return list(given)


def _meet(
    name: str,
    call: Call,
    leaves: Sequence[Any],
    places: Sequence[int],
    met: Sequence[int],
    label: str,
) -> Any:
    """Shared tensors and the examples in one operation; what comes out belongs to the examples."""
    if name not in _SAME_SHAPE and name not in _BATCHED:
        raise NotCovered(f"{label} is shared by all examples and meets them in {name}")
    most = max(leaf.dim() for leaf in leaves if isinstance(leaf, Tensor))
    if name in _SAME_SHAPE and any(leaves[n].dim() != most for n in met):
        raise NotCovered(f"{label} is shared by all examples and has more dimensions than they")
    given = list(leaves)
    for place in places:
        given[place] = align(leaves[place], most if name in _SAME_SHAPE else leaves[place].dim())
    return call(given)


def _carry(
    name: str,
    call: Call,
    plainly: Callable[[], Any],
    leaves: Sequence[Any],
    places: Sequence[int],
    label: str,
    plan: RowPlan,
) -> Any:
    """An operation on shared things alone: what comes out is shared, and its rows are made when they are needed."""
    held: list[Any] = []

    def run() -> list[Any]:
        if not held:
            given = list(leaves)
            if name in _SAME_SHAPE or name in _CASTS:
                most = max(leaf.dim() for leaf in leaves if isinstance(leaf, Tensor))
                for place in places:
                    given[place] = align(leaves[place], most + 1)
                held.append(tree_flatten(call(given))[0])
            else:
                held.append(_in_vmap(call, leaves, places, label, "same" if name in _RANDOM else "error"))
        found: list[Any] = held[0]
        return found

    if name in _RANDOM:  # drawn once
        (drawn,) = run()
        return Broadcast.over(drawn[0], lambda: drawn, label, plan)
    seen, spec = tree_flatten(plainly())
    if not any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in seen):
        return tree_unflatten(seen, spec)
    made = [Broadcast.over(leaf, functools.partial(_one_of, run, n), label, plan) for n, leaf in enumerate(seen)]
    return tree_unflatten(made, spec)


def _one_of(run: Callable[[], list[Any]], number: int) -> Tensor:
    found: Tensor = run()[number]
    return found


def _in_vmap(call: Call, leaves: Sequence[Any], places: Sequence[int], label: str, randomness: str) -> list[Any]:
    given = list(leaves)

    def one(*rows: Tensor) -> list[Tensor]:
        for place, row in zip(places, rows, strict=True):
            given[place] = row
        return [leaf for leaf in tree_flatten(call(given))[0] if isinstance(leaf, Tensor)]

    try:
        return list(torch.func.vmap(one, randomness=randomness)(*[leaves[place].rows_of_it() for place in places]))
    except (RuntimeError, ValueError) as problem:
        reason = str(problem).splitlines()[0]
        raise NotCovered(f"{label} is shared by all examples and cannot be followed ({reason})") from problem
