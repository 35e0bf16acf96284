"""A model without chance, for the time of a check: torch's random numbers are held at their middle.

A sum is replayed on neighbouring batches, so it must be a function of the batch. Dropout and added noise make it one of
chance as well. A seed would not help: a mask is drawn for the whole batch at once, so when a row comes or goes all rows
behind it get other numbers, and a sound model looks as if it mixed its examples. So :func:`still` answers torch's draws
with one number for every row: coins fall on 1, uniform numbers lie in the middle, normal ones at their mean. Draws of
whole numbers and orders keep their chance, and so does every generator but torch's global one, that of our noise among
them. A model that draws from these cannot be replayed, and the check says so.

>>> with still(nn.Identity()):
...     torch.nn.functional.dropout(torch.ones(3), 0.5), torch.randn(2)
(tensor([2., 2., 2.]), tensor([0., 0.]))
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["draws_chance", "replay_chance", "still"]


@contextlib.contextmanager
def replay_chance(devices: Collection[int] = (), seed: int = 0) -> Iterator[None]:
    """Torch's generators begin at ``seed``, on the processor and on these cards, and go on as if nothing was drawn.

    For trials on made-up rows and for first weights. ``torch.manual_seed`` would also leave a note for cards that
    torch has not opened yet, with the stack of calls as text: milliseconds each time, and it is never taken away.
    """
    with torch.random.fork_rng(devices=sorted(set(devices))):
        torch.default_generator.manual_seed(seed)
        for device in set(devices):
            torch.cuda.default_generators[device].manual_seed(seed)
        yield


def draws_chance(model: nn.Module, run: Callable[[], object]) -> bool:
    """Whether ``run`` draws from torch's global generator, with the model's dropout at 0."""
    mode = _Still()  # type: ignore[no-untyped-call]
    with still(model, chance=False), mode:
        run()
    return mode.answered > 0


@contextlib.contextmanager
def still(model: nn.Module, *, chance: bool = True) -> Iterator[nn.Module]:
    """The model with its dropout at 0 and torch's random numbers at their middle; all of it comes back afterwards.

    Without ``chance`` random numbers are let alone, which saves a look at every operation: for what draws none.
    """
    kept = [(module, name, getattr(module, name)) for module in model.modules() for name in _dropout_of(module)]
    try:
        for module, name, _ in kept:
            setattr(module, name, 0.0)
        with _Still() if chance else contextlib.nullcontext():  # type: ignore[no-untyped-call]
            yield model
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _dropout_of(module: nn.Module) -> tuple[str, ...]:
    """The attribute that holds a known module's dropout. Others may call anything ``p``: an exponent, say."""
    if isinstance(module, _DropoutNd):
        return ("p",)
    return ("dropout",) if isinstance(module, nn.RNNBase | nn.MultiheadAttention) else ()


@final
class _Still(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers draws from torch's global generator, below autograd and vmap, and lets all else pass."""

    answered = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler, for a second

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        answer = None if given.get("generator") is not None else _ANSWERS.get(func.overloadpacket)
        if answer is None:
            return func(*args, **given)
        self.answered += 1
        return answer(func, args, given)


def _fill_with(middle: Callable[[Sequence[Any], dict[str, Any]], float]) -> Callable[..., Any]:
    """Run the operation, so that shape, type and device are its own, and then fill what it made."""

    def answer(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        made = func(*args, **kwargs)
        return made.fill_(middle(args, kwargs))

    return answer


def _argument(args: Sequence[Any], kwargs: dict[str, Any], place: int, name: str, default: float) -> float:
    value = args[place] if len(args) > place else kwargs.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def _uniform(args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    return (_argument(args, kwargs, 1, "from", 0.0) + _argument(args, kwargs, 2, "to", 1.0)) / 2


def _normal(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Means may be a number or a tensor."""
    made, mean = func(*args, **kwargs), args[0] if args else kwargs.get("mean", 0.0)
    return made.copy_(mean.expand_as(made)) if isinstance(mean, Tensor) else made.fill_(mean)


def _dropout(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)


def _rrelu(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The slope in the middle; ``noise`` is what the backward pass multiplies by."""
    values, noise = args[0], args[1]
    slope = (_argument(args, kwargs, 2, "lower", 1 / 8) + _argument(args, kwargs, 3, "upper", 1 / 3)) / 2
    slopes: Tensor = torch.where(values <= 0, slope, 1.0).to(values.dtype)
    noise.copy_(slopes)
    return values * slopes


_aten = torch.ops.aten
_ANSWERS: Mapping[Any, Callable[..., Any]] = {
    _aten.bernoulli: _fill_with(lambda args, kwargs: 1.0),
    _aten.bernoulli_: _fill_with(lambda args, kwargs: 1.0),
    _aten.rand: _fill_with(lambda args, kwargs: 0.5),
    _aten.rand_like: _fill_with(lambda args, kwargs: 0.5),
    _aten.uniform: _fill_with(_uniform),
    _aten.uniform_: _fill_with(_uniform),
    _aten.randn: _fill_with(lambda args, kwargs: 0.0),
    _aten.randn_like: _fill_with(lambda args, kwargs: 0.0),
    _aten.normal_: _fill_with(lambda args, kwargs: _argument(args, kwargs, 1, "mean", 0.0)),
    _aten.normal: _normal,
    _aten.exponential_: _fill_with(lambda args, kwargs: 1 / _argument(args, kwargs, 1, "lambd", 1.0)),
    _aten.native_dropout: _dropout,
    _aten.rrelu_with_noise: _rrelu,
}
