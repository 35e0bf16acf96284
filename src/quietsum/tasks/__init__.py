"""Tasks: what is learned, from whose rows. ``heart`` travels with the package; your own is ``"my_module:MyTask"``.

>>> task_named("heart").dimension
15
>>> task_named("hart")
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: task = 'hart' is not known; did you mean "heart"?
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from quietsum.errors import InvalidParameter
from quietsum.tasks.protocol import Comparable, Metrics, NumpyTask, Rehearsed, Rows

__all__ = ["TASKS", "Comparable", "Metrics", "NumpyTask", "Rehearsed", "Rows", "task_named"]


def _heart(options: Mapping[str, Any]) -> NumpyTask:
    from quietsum.tasks.heart import HeartTask

    return HeartTask.from_options(options)


TASKS: Final[Mapping[str, Callable[[Mapping[str, Any]], NumpyTask]]] = {"heart": _heart}
_NEEDED: Final = ("name", "title", "dimension", "parties", "initial", "rows", "gradients", "evaluate")


def task_named(name: str, options: Mapping[str, Any] | None = None) -> NumpyTask:
    """The task ``name``, made with ``options``; ``"module:Class"`` calls that class with the options by name."""
    options = {} if options is None else options
    if not isinstance(name, str):
        raise InvalidParameter("task", name, "is no name", nearest_name("", TASKS))
    if name in TASKS:
        return TASKS[name](options)
    if ":" in name:
        return _from_module(name, options)
    raise InvalidParameter("task", name, "is not known", nearest_name(name, TASKS, 'or write "my_module:MyTask"'))


def nearest_name(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A remedy: the nearest of the ``known`` names, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known: {', '.join(names)}" + (f"; {otherwise}" if otherwise else "")


def _from_module(name: str, options: Mapping[str, Any]) -> NumpyTask:
    module_name, _, class_name = name.partition(":")
    try:
        made = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # whatever a user's module raises while it is imported
        remedy = "the module must be importable from where quietsum is started, and hold that class"
        raise InvalidParameter("task", name, f"cannot be imported ({error})", remedy) from error
    try:
        task = made(**options)
    except TypeError as error:
        remedy = "[task.options] are the class's keyword arguments"
        raise InvalidParameter("task.options", dict(options), f"do not fit {name} ({error})", remedy) from error
    lacking = [needed for needed in _NEEDED if getattr(task, needed, None) is None]
    if lacking:
        remedy = "write what quietsum.tasks.NumpyTask lists"
        raise InvalidParameter("task", name, f"is no task: it lacks {', '.join(lacking)}", remedy)
    return cast(NumpyTask, task)
