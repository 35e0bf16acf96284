"""Which class ``"module:Class"`` names. A plan is data, so it is known to be a task before any of its code runs.

A plan, a policy or the options of a training may name a task of the user's own. Importing a module runs it and calling
a class runs its ``__init__``, so a name alone must not do either: ``os:system`` with a command among its options is a
name, too. :func:`class_named` therefore reads before it imports, and looks before anything is called:

1. the name is ``module:Class`` in plain identifiers, and the module is none of the standard library or of quietsum's
   own workings;
2. the module's *source* is found and parsed, without importing it or the packages around it, and has a class of that
   name with what a task has, from its own body or from bases that are found in the same way;
3. only then the module is imported; what the name stands for must be a class that has the shape of a task.

Guarantees: before the third step no code runs that the name has chosen. The caller of the class knows that it is a
class, of a module that says it holds a task, with everything that its protocol lists. What cannot be promised is that
a task means well: it is the user's own code, from an installed package or from the folder where quietsum is started.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from quietsum.errors import InvalidParameter, QuietsumError

__all__ = ["FEDERATED", "NUMPY", "TORCH", "Shape", "class_named", "instantiate", "refuse_path"]


class Shape(NamedTuple):
    """What every task of one kind has: ``stated`` may be set by its ``__init__``, ``done`` are methods of the class."""

    stated: tuple[str, ...]
    done: tuple[str, ...]
    listed: str


FEDERATED: Final = Shape(
    ("name", "title", "dimension"), ("parties", "initial", "evaluate", "train"), "quietsum.tasks.Task"
)
NUMPY: Final = Shape(
    ("name", "title", "dimension"),
    ("parties", "initial", "rows", "gradients", "evaluate"),
    "quietsum.tasks.NumpyTask",
)
TORCH: Final = Shape(
    ("name", "title", "size", "public", "settings", "model", "loss"),
    ("records", "evaluate"),
    "quietsum.tasks.TorchTask",
)

_MODULE: Final = "the module must be importable from where quietsum is started, and hold that class"


def class_named(name: str, kind: Shape | None = None) -> type:
    """The class that ``name`` stands for, checked to be a task (of this ``kind``, else of any) before it is called."""
    module, class_name = _parts(name)
    if module not in sys.modules:  # what is there already ran when somebody else asked for it
        _check_source(name, module, class_name, kind)
    try:
        holder = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # anything that a user's module raises while it is imported
        raise InvalidParameter("task", name, f"cannot be imported ({error})", _MODULE) from error
    found = vars(holder).get(class_name)  # no __getattr__ of the module is asked
    if found is None:
        raise InvalidParameter("task", name, f"cannot be imported (there is no {class_name} in {module})", _MODULE)
    if not issubclass(type(found), type) or type(found).__call__ is not type.__call__:
        problem = "is no task: it is no class, and nothing else that a file names is called"
        raise InvalidParameter("task", name, problem, "name a class that has what quietsum.tasks lists")
    _refuse_lacking(name, _names_of(found), kind)
    return cast(type, found)


def _parts(name: str) -> tuple[str, str]:
    module, _, class_name = name.partition(":")
    words = [*module.split("."), class_name]
    refuse_path(name)
    if not all(word.isidentifier() for word in words) or "__" in name:
        problem = 'cannot be imported (it is no "module:Class")'
        raise InvalidParameter("task", name, problem, "write the module, a colon and the name of one class in it")
    if words[0] in sys.stdlib_module_names or words[0] in sys.builtin_module_names:
        problem = f"is no task: {words[0]} belongs to Python itself, and nothing of it is called because a file says so"
        raise InvalidParameter("task", name, problem, "name a class of your own")
    if words[0] == "quietsum" and (len(words) < 4 or words[1] != "tasks"):
        problem = "is no task: quietsum's own tasks are in quietsum.tasks"
        raise InvalidParameter("task", name, problem, "name one of those, or a class of your own")
    return module, class_name


def refuse_path(name: str) -> None:
    """Raise InvalidParameter if ``name`` is a path and a class; a task is named by its module."""
    module, _, class_name = name.rpartition(":")
    path = module.replace("\\", "/")
    if class_name.isidentifier() and (path.endswith(".py") or "/" in path):
        dotted = path.removesuffix(".py").strip("./").replace("/", ".")
        problem = "names a file, and a task is named by its module"
        raise InvalidParameter("task", name, problem, f'say "{dotted}:{class_name}", where that can be imported from')


def _refuse_lacking(name: str, known: _Names, kind: Shape | None) -> None:
    shape = kind or (FEDERATED if "train" in known.done else TORCH if "model" in known.stated else NUMPY)
    lacking = [each for each in shape.stated if each not in known.stated]
    lacking += [each for each in shape.done if each not in known.done]
    if lacking and not (known.open and any(each in known.done for each in shape.done)):
        problem = f"is no task: it lacks {', '.join(lacking)}"
        raise InvalidParameter("task", name, problem, f"write what {shape.listed} lists")


class _Names:
    """What a class has: ``done`` by its body, ``stated`` by that or by what its methods set; ``open``: perhaps more."""

    def __init__(self) -> None:
        self.done: set[str] = set()
        self.stated: set[str] = set()
        self.open = False

    def add(self, names: set[str]) -> None:
        self.done |= names
        self.stated |= names

    def take(self, other: _Names) -> None:
        self.done |= other.done
        self.stated |= other.stated
        self.open |= other.open


def _names_of(found: type) -> _Names:
    """The names of an imported class, from what lies in it and its bases: nothing is looked up, so nothing runs."""
    known = _Names()
    for base in type.__dict__["__mro__"].__get__(found):
        if base is object:
            continue
        held = type.__dict__["__dict__"].__get__(base)
        known.add({name for name, value in held.items() if value is not None})
        known.add(set(held.get("__annotations__") or ()))
        slots = held.get("__slots__") or ()
        known.stated |= {slots} if isinstance(slots, str) else set(slots)
        for value in held.values():
            if isinstance(value, types.FunctionType):
                known.stated |= set(value.__code__.co_names)  # self.title = … in __init__
    return known


# ------------------------------------------------------------------------------------------- read, not imported


def _check_source(name: str, module: str, class_name: str, kind: Shape | None) -> None:
    source, here = _source(name, module)
    known = _names_in(source, class_name, set())
    if known is None:
        raise InvalidParameter("task", name, f"cannot be imported (there is no class {class_name} in it)", _MODULE)
    _refuse_lacking(name, known, kind)
    if here is not None and here not in sys.path:
        sys.path.append(here)  # last, so that no file beside yours hides an installed module


_Seen = set[tuple[str, str]]
"""Modules and names that were followed: names and imports may go in circles."""


class _Source(NamedTuple):
    """A module that was read: its full name, its statements, and whether it is a package."""

    module: str
    body: list[ast.stmt]
    package: bool


def _source(name: str, module: str) -> tuple[_Source, str | None]:
    """The parsed module, and the working folder where it was found there alone."""
    importlib.invalidate_caches()
    here = os.getcwd()
    found, beside = _read(module), None
    if found is None and here not in sys.path and "" not in sys.path:
        found, beside = _read(module, here), here
    if found is None:
        problem = f"cannot be imported (No module named {module!r})"
        raise InvalidParameter("task", name, problem, _MODULE)
    if isinstance(found, str):
        raise InvalidParameter("task", name, f"is no task: {found}", "name a class of your own")
    return found, beside


def _read(module: str, folder: str | None = None) -> _Source | str | None:
    """``module`` as it is written; a sentence where it may not be named, None where it is not found."""
    path: Sequence[str] | None = None if folder is None else [folder]
    spec: importlib.machinery.ModuleSpec | None = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):  # find_spec of a dotted name would import its packages
        if count > 1 and path is None:
            return None
        spec = _spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
    assert spec is not None
    origin = spec.origin
    if not spec.has_location or origin is None or not origin.endswith(".py"):
        return f"{module} is not written in Python, so it cannot be read before it runs"
    file = Path(origin).resolve()
    if _of_python(file):
        return f"{module} belongs to Python itself, and nothing of it is called because a file says so"
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        return f"{file} cannot be read ({error})"
    return _Source(module, tree.body, path is not None)


def _spec(module: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """Where ``module`` would be imported from; the packages around it are not imported for the answer."""
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = None if find is None else find(module, path)
        except Exception:  # a finder that wants the package imported first does not know the answer
            spec = None
        if isinstance(spec, importlib.machinery.ModuleSpec):
            return spec
    return None


def _of_python(file: Path) -> bool:
    """Whether a file came with the interpreter; ``test`` and its like are not in Python's list of its own names."""
    home = Path(sysconfig.get_path("stdlib")).resolve()
    if not file.is_relative_to(home):
        return False
    return not any(part in ("site-packages", "dist-packages") for part in file.relative_to(home).parts)


def _names_in(source: _Source, class_name: str, seen: _Seen) -> _Names | None:
    """What the class of that name has, by its source and its bases' sources; None where there is no such class."""
    if (source.module, class_name) in seen:
        return None
    seen.add((source.module, class_name))
    for node in _statements(source.body):
        match node:
            case ast.ClassDef() if node.name == class_name:
                return _names_of_body(source, node, seen)
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=other)) if target == class_name:
                return _names_in(source, other, seen)
            case ast.ImportFrom():
                for alias in node.names:
                    if (alias.asname or alias.name) in (class_name, "*"):
                        wanted = class_name if alias.name == "*" else alias.name
                        found = _names_elsewhere(source, node, wanted, seen)
                        if found is not None:
                            return found
    return None


def _names_elsewhere(source: _Source, node: ast.ImportFrom, class_name: str, seen: _Seen) -> _Names | None:
    target = _module_of(source, node)
    if target is None or target.split(".")[0] in sys.stdlib_module_names:
        return None
    other = _read(target) or _read(target, os.getcwd())
    return _names_in(other, class_name, seen) if isinstance(other, _Source) else None


def _module_of(source: _Source, node: ast.ImportFrom) -> str | None:
    if not node.level:
        return node.module
    parts = source.module.split(".")
    kept = parts[: len(parts) - node.level + (1 if source.package else 0)]
    return ".".join([*kept, *([node.module] if node.module else [])]) or None


def _names_of_body(source: _Source, node: ast.ClassDef, seen: _Seen) -> _Names:
    known = _Names()
    for inner in _statements(node.body):
        match inner:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                known.add({inner.name})
                known.stated |= {each.attr for each in ast.walk(inner) if isinstance(each, ast.Attribute)}
            case ast.ClassDef():
                known.add({inner.name})
            case ast.Assign():
                if not (isinstance(inner.value, ast.Constant) and inner.value.value is None):
                    known.add({each.id for part in inner.targets for each in ast.walk(part)
                               if isinstance(each, ast.Name)})  # fmt: skip
            case ast.AnnAssign(target=ast.Name(id=name)):
                known.add({name})
            case ast.ImportFrom() | ast.Import():
                known.add({alias.asname or alias.name for alias in inner.names})
    for base in node.bases:
        known.take(_names_of_base(source, base, seen))
    return known


def _names_of_base(source: _Source, base: ast.expr, seen: _Seen) -> _Names:
    """What a base brings along. One that no source is found for may bring anything: that is seen on the class."""
    words: list[str] = []
    while isinstance(base, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(base, ast.Attribute):
            words.insert(0, base.attr)
        base = base.func if isinstance(base, ast.Call) else base.value
    found = None
    if isinstance(base, ast.Name):
        found = _names_in(source, base.id, seen)
        if found is None and words:
            found = _names_in_module(source, base.id, words, seen)
    if found is None:
        found = _Names()
        found.open = not (isinstance(base, ast.Name) and base.id in ("object", "Protocol", "Generic", "ABC"))
    return found


def _names_in_module(source: _Source, name: str, words: list[str], seen: _Seen) -> _Names | None:
    """The class ``name.words``, where ``name`` is an imported module."""
    for node in _statements(source.body):
        target = ""
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) == name:
                    target = alias.name if alias.asname else name
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    target = f"{_module_of(source, node)}.{alias.name}"
        if not target or target.split(".")[0] in sys.stdlib_module_names:
            continue
        module = ".".join([target, *words[:-1]])
        other = _read(module) or _read(module, os.getcwd())
        if isinstance(other, _Source) and (found := _names_in(other, words[-1], seen)) is not None:
            return found
    return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or a class, those behind a condition too."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(node, part, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def instantiate(found: type, name: str, options: Mapping[str, Any]) -> Any:
    """A task of the class ``found``, which ``name`` stands for, made with the options."""
    try:
        return found(**options)
    except QuietsumError:
        raise
    except TypeError as error:
        remedy = "[task.options] are the class's keyword arguments"
        raise InvalidParameter("task.options", dict(options), f"do not fit {name} ({error})", remedy) from error
    except (Exception, SystemExit) as error:  # anything that a user's class raises
        problem = f"cannot be made ({type(error).__name__}: {error})"
        raise InvalidParameter("task", name, problem, "mend its __init__") from error
