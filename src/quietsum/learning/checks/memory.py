"""What can be reached from a model and its loss, besides parameters and buffers: attributes, containers, closures.

``self.last = x.mean(0)`` in a forward pass keeps a fact about the records where no noise reaches it, and ``torch.save``
of the whole model carries it out. :class:`Reached` walks from a model and a loss through the attributes of all modules,
lists, dicts, sets, arrays, other objects, hooks, closures, class attributes, and the global names that their functions
use. It notes every number, text, array and tensor under a readable name, and :meth:`Reached.undo` puts back what a
forward pass changed of them. :func:`quietsum.learning.engines.batch_mixing.what_remembers` compares the notes after
several batches.

Guarantees: none that it finds everything. A file, a database, a thread or an object of a compiled library is out of
reach; so are containers of more than ten thousand elements, of which only the length is noted.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Reached", "same"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, dict, set, deque, tuple)
_OWN = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training"}  # compared elsewhere
_LIBRARIES = {"torch", "numpy", "quietsum", "functools", "builtins", "typing", "collections", "logging", "threading"}
_LONGEST, _MOST = 10_000, 100_000  # elements of a container, and notes
_LARGEST = 1 << 22  # numbers of a tensor that is copied; of a larger one torch's count of changes is noted


def _library(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "") or "").partition(".")[0] in _LIBRARIES


@final
class Reached:
    """Everything that was reached, by name, and how to put it back."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        self.notes: dict[str, Any] = {}
        self._undo: list[Callable[[], None]] = []
        self._seen: dict[int, Any] = {}  # kept alive, so that no number is used twice
        for tensor in (*model.parameters(), *model.buffers()):
            self._seen[id(tensor)] = tensor
        for name, module in model.named_modules():
            self._module(name, module)
        self._walk("the loss", loss)

    def undo(self) -> None:
        """Put back what was reached: the same objects with what they held."""
        for act in self._undo:
            with contextlib.suppress(Exception):  # what cannot be written was not changed
                act()

    # ------------------------------------------------------------------------------------------- the walk

    def _module(self, name: str, module: nn.Module) -> None:
        if id(module) in self._seen:
            return
        self._seen[id(module)] = module
        self._attributes(name, module)
        self._class(type(module), name or type(module).__name__)

    def _attributes(self, name: str, thing: Any) -> None:
        own = vars(thing)
        held = dict(own)
        self._undo.append(lambda: _restore_names(own, held))
        for key, value in held.items():
            if key not in _OWN:
                self._walk(f"{name}.{key}" if name else key, value)

    def _class(self, kind: type, name: str) -> None:
        """Attributes and functions of a class that no library has made."""
        for base in kind.__mro__:
            if _library(base) or id(base) in self._seen:
                continue
            self._seen[id(base)] = base
            held = {
                key: value for key, value in vars(base).items() if isinstance(value, (Tensor, np.ndarray, *_CONTAINERS))
            }
            self._undo.append(functools.partial(_restore_class, base, held))
            for key, value in vars(base).items():
                if isinstance(value, types.FunctionType) or (key in held and not key.startswith("__")):
                    self._walk(f"{base.__name__}.{key}", value)

    def _walk(self, name: str, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self.notes[name] = value
            return
        if id(value) in self._seen or len(self.notes) > _MOST:
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._tensor(name, value)
        elif isinstance(value, np.ndarray):
            if value.dtype != object and value.size <= _LARGEST:
                held = self.notes[name] = value.copy()
                self._undo.append(lambda: np.copyto(value, held))
        elif isinstance(value, nn.Module):
            for below, module in value.named_modules(prefix=name):  # one that is not registered
                self._module(below, module)
                for own, tensor in (*module._parameters.items(), *module._buffers.items()):
                    if tensor is not None:
                        self._walk(f"{below}.{own}", tensor)
        elif isinstance(value, _CONTAINERS):
            self._container(name, value)
        elif isinstance(value, functools.partial):
            for number, part in enumerate((value.func, value.args, value.keywords)):
                self._walk(f"{name} ({number})", part)
        elif isinstance(value, types.MethodType):
            self._walk(name, value.__self__)
            self._walk(name, value.__func__)
        elif isinstance(value, types.FunctionType):
            self._function(name, value)
        elif (
            not isinstance(value, type | types.ModuleType) and not _library(type(value)) and hasattr(value, "__dict__")
        ):
            self._attributes(name, value)
            self._class(type(value), name)

    def _tensor(self, name: str, tensor: Tensor) -> None:
        try:
            if tensor.numel() > _LARGEST:
                self.notes[name] = (tuple(tensor.shape), tensor._version)
                return
            held = self.notes[name] = tensor.detach().clone()
        except Exception:  # a tensor of some transform that has ended
            return

        def back() -> None:
            if not same(tensor.detach(), held):
                with torch.no_grad():
                    (tensor if tensor.shape == held.shape else tensor.resize_(held.shape)).copy_(held)

        self._undo.append(back)

    def _container(self, name: str, value: Any) -> None:
        if len(value) > _LONGEST:
            self.notes[f"len({name})"] = len(value)
            return
        if isinstance(value, dict):
            held = dict(dict.items(value))  # a subclass may make something new of what is asked for
            self._undo.append(lambda: _restore_names(value, held))
            parts: Iterable[tuple[Any, Any]] = held.items()
        else:
            kept = list(value)
            if isinstance(value, list | deque):
                self._undo.append(functools.partial(_refill, value, tuple(kept), value.extend))
            elif isinstance(value, set):
                self._undo.append(functools.partial(_refill, value, tuple(kept), value.update))
                kept = sorted(kept, key=repr)
            parts = enumerate(kept)
        self.notes[f"len({name})"] = len(value)
        for key, part in parts:
            self._walk(f"{name}[{key!r}]" if isinstance(key, str | int) else f"{name}[…]", part)

    def _function(self, name: str, function: types.FunctionType) -> None:
        for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # an empty cell
                held = cell.cell_contents
                self._undo.append(functools.partial(setattr, cell, "cell_contents", held))
                self._walk(f"{key}, which {name} holds", held)
        self._walk(f"a default of {name}", function.__defaults__)
        if _library(function):
            return
        names = function.__globals__
        for key in function.__code__.co_names:
            held = names.get(key)
            if isinstance(held, (Tensor, np.ndarray, int, float, *_CONTAINERS)):
                self._undo.append(functools.partial(names.__setitem__, key, held))
                self._walk(f"the global {key}", held)


def _refill(container: Any, kept: tuple[Any, ...], fill: Callable[[Iterable[Any]], None]) -> None:
    if len(container) != len(kept) or any(one is not two for one, two in zip(container, kept, strict=True)):
        container.clear()
        fill(kept)


def _restore_names(own: dict[Any, Any], held: dict[Any, Any]) -> None:
    for key in [key for key in own if key not in held]:
        del own[key]
    for key, value in held.items():
        if own.get(key) is not value:
            own[key] = value


def _restore_class(kind: type, held: dict[str, Any]) -> None:
    for key, value in list(vars(kind).items()):
        if isinstance(value, Tensor | np.ndarray) and key not in held:
            delattr(kind, key)
    for key, value in held.items():
        if vars(kind).get(key) is not value:
            setattr(kind, key, value)


def same(one: Any, two: Any) -> bool:
    """Equal in type and to the bit; NaN is NaN."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        if one.shape != two.shape or one.dtype != two.dtype or one.device != two.device:
            return False
        return torch.equal(one, two) or bool(((one == two) | (one.isnan() & two.isnan())).all())
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    return type(one) is type(two) and (one == two or (one != one and two != two))
