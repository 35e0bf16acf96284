"""Write the reference pages that are made from code: one for each command, from what it says itself, and one for each
room, from its door. ``make docs`` calls this; ``python docs/generate.py FOLDER`` writes the pages elsewhere.

The pages are not kept in the repository, so they cannot be out of date. What they are made of is held by tests: every
command, option and argument says what it does, and every name at a door has a sentence (``tests/test_reference.py``).
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import shutil
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ALIASES = (types.GenericAlias, types.UnionType, type(typing.Any | None), type(typing.List[int]))  # noqa: UP006
HERE = Path(__file__).resolve().parent
HOUSE = HERE.parent / "src" / "quietsum"


# ------------------------------------------------------------------------------------------------- commands


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """A command with its words, ``("ledger", "verify")`` say, its help and its parameters."""

    words: tuple[str, ...]
    panel: str
    about: str
    usage: str
    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        """As it is typed."""
        return " ".join(("quietsum", *self.words))

    @property
    def page(self) -> str:
        """The name of its page."""
        return "-".join(self.words)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """An argument or an option: how it is written, what it takes, and what it does."""

    names: tuple[str, ...]
    takes: str
    about: str
    default: str
    is_argument: bool


def list_commands() -> list[Command]:
    """All commands, in the order of ``quietsum --help``; those of a group stand behind each other."""
    import typer

    from quietsum.cli.app import app
    from quietsum.cli.shared.arguments import restore_help

    command = typer.main.get_command(app)
    restore_help(command)
    return list(_walk(command, (), ""))


def _walk(command: Any, words: tuple[str, ...], panel: str) -> Iterator[Command]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _walk(inner, (*words, name), panel or getattr(inner, "rich_help_panel", None) or "")
        return
    context = _context(command, words)
    parameters = tuple(_parameter(one, context) for one in command.params if not getattr(one, "hidden", False))
    usage = " ".join(("quietsum", *words, *command.collect_usage_pieces(context)))
    about = inspect.cleandoc(command.help or "")
    yield Command(words=words, panel=_text(panel), about=about, usage=usage, parameters=parameters)


def _context(command: Any, words: tuple[str, ...]) -> Any:
    return command.context_class(command, info_name=words[-1])


def _parameter(one: Any, context: Any) -> Parameter:
    argument = one.param_type_name == "argument"
    names = (one.make_metavar(context),) if argument else (*one.opts, *one.secondary_opts)
    takes = "" if argument or one.is_flag or getattr(one, "count", False) else str(one.make_metavar(context))
    about = _text(getattr(one, "help", None) or "")
    default, shown = one.default, getattr(one, "show_default", True)
    stated = "" if default in (None, False, (), [], 0, "") or callable(default) or shown is False else str(default)
    return Parameter(names=names, takes=takes, about=about, default=stated, is_argument=argument)


def _text(text: str) -> str:
    """Help without what a terminal needs: marks of rich, line breaks."""
    return " ".join(text.replace("\\[", "[").split())


def _cell(text: str) -> str:
    """``text`` for Markdown: nothing in it is markup, and options stand in code, where two dashes stay two."""
    plain = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
    return re.sub(r"(?<![\w-])--[a-z][a-z-]*", lambda found: f"`{found[0]}`", plain)


def command_page(command: Command) -> str:
    """The page of one command in Markdown."""
    first, _, rest = command.about.partition("\n\n")
    parts = [f"# {command.name}", _cell(" ".join(first.split())), f"```text\n{command.usage}\n```"]
    for paragraph in filter(None, rest.split("\n\n")):
        plain = " ".join(paragraph.split())
        if plain.startswith("Example:") and "quietsum" in plain:
            parts.append(f"```sh\n{plain.removeprefix('Example:').strip()}\n```")
        else:
            parts.append(_cell(_text(plain)))
    for title, wanted in (("Arguments", True), ("Options", False)):
        chosen = [one for one in command.parameters if one.is_argument is wanted]
        if chosen:
            rows = [f"| {_names(one)} | {_cell(one.about)}{_default(one)} |" for one in chosen]
            parts.append("\n".join([f"## {title}", "", "| | |", "|---|---|", *rows]))
    return "\n\n".join([*parts, ""])


def _names(one: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in one.names)
    return f"{names} `{one.takes}`" if one.takes else names


def _default(one: Parameter) -> str:
    return f" Default: `{one.default}`." if one.default and "default:" not in one.about else ""


# ------------------------------------------------------------------------------------------------- rooms


@dataclasses.dataclass(frozen=True, kw_only=True)
class Name:
    """A name at a door: what kind of thing it is, how it is called, and its first paragraph."""

    name: str
    kind: str
    signature: str
    about: str


def list_rooms() -> dict[str, list[Name]]:
    """By room, the names that its door shows; inner doors that others may use are rooms of their own."""
    import quietsum

    rooms = [one.name for one in pkgutil.iter_modules(quietsum.__path__) if not one.name.startswith("_")]
    inner = [
        ".".join(path.parent.relative_to(HOUSE).parts)
        for path in HOUSE.glob("*/*/__init__.py") if "__all__" in path.read_text(encoding="utf-8")
    ]  # fmt: skip
    found = {}
    for room in sorted([*rooms, *inner]):
        module = importlib.import_module(f"quietsum.{room}")
        names = [_name(module, name) for name in getattr(module, "__all__", ())]
        if names:
            found[room] = names
    return found


def _name(module: Any, name: str) -> Name:
    thing = getattr(module, name)
    if isinstance(thing, type):
        return Name(name=name, kind="class", signature="", about=_paragraph(thing.__doc__, name))
    if inspect.isfunction(inspect.unwrap(thing)):
        return Name(name=name, kind="function", signature=_signature(thing), about=_paragraph(thing.__doc__, name))
    said = _said_below(module, name)
    if isinstance(thing, _ALIASES):
        return Name(name=name, kind="type", signature="", about=_paragraph(said, name) or f"Short for ``{thing}``.")
    return Name(name=name, kind="constant", signature="", about=_paragraph(said, name))


def _signature(thing: Any) -> str:
    names = []
    for one in inspect.signature(thing).parameters.values():
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        names.append(f"{star}{one.name}" + ("" if one.default is one.empty else "=…"))
    return f"({', '.join(names)})"


def _paragraph(text: str | None, name: str) -> str:
    """The first paragraph, in one line; "" for what a dataclass makes up."""
    if not text or text.startswith(f"{name}("):
        return ""
    return " ".join(inspect.cleandoc(text).split("\n\n")[0].split())


def _said_below(module: Any, name: str) -> str | None:
    """The string below the assignment of a constant, or the comment behind it, in the module that defines it."""
    for _ in range(4):  # doors pass names on
        source = inspect.getsource(module)
        tree = ast.parse(source)
        body = [*tree.body, *(inner for node in tree.body if isinstance(node, ast.If) for inner in node.body)]
        for place, node in enumerate(body):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        module, name = importlib.import_module(node.module), alias.name
                        break
                else:
                    continue
                break
            if name in _assigned(node):
                below = body[place + 1] if place + 1 < len(body) else None
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    return str(below.value.value)
                _, mark, comment = source.splitlines()[(node.end_lineno or 1) - 1].partition("  # ")
                return comment.removeprefix("fmt: skip").strip() if mark else None
        else:
            return None
    return None


def _assigned(node: ast.stmt) -> set[str]:
    """The names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    flat = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
    return {one.id for one in flat if isinstance(one, ast.Name)}


def room_page(room: str, names: list[Name]) -> str:
    """The page of one room in Markdown."""
    module = importlib.import_module(f"quietsum.{room}")
    about = _plain(_paragraph(module.__doc__, room))
    parts = [f"# quietsum.{room}", about]
    for kind, title in (("function", "Functions"), ("class", "Classes"), ("constant", "Constants"), ("type", "Types")):
        chosen = [one for one in names if one.kind == kind]
        if chosen:
            rows = [f"| `{one.name}` | {_plain(one.about)} |" for one in chosen]
            if kind == "function":
                rows = [f"| `{one.name}{one.signature}` | {_plain(one.about)} |" for one in chosen]
            parts.append("\n".join([f"## {title}", "", "| name | what it is |", "|---|---|", *rows]))
    return "\n\n".join([*parts, ""])


def _plain(text: str) -> str:
    """A docstring's first paragraph for a Markdown table: roles and literals become code."""
    text = re.sub(r":\w+:`~?(?:[^`<]*<)?([^`>]+)>?`", lambda found: f"``{found[1].rpartition('.')[2]}``", text)
    pieces = re.split(r"(``.+?``)", text)
    return "".join(f"`{one[2:-2]}`".replace("|", "\\|") if one.startswith("``") else _cell(one) for one in pieces)


# ------------------------------------------------------------------------------------------------- pages


def pages() -> dict[str, str]:
    """All pages, by their path below the folder of the reference."""
    found = {f"commands/{one.page}.md": command_page(one) for one in list_commands()}
    return found | {
        f"rooms/{room.replace('.', '-')}.md": room_page(room, names) for room, names in list_rooms().items()
    }


def write(folder: Path) -> None:
    """Write all pages below ``folder``; older ones are gone."""
    for inner in ("commands", "rooms"):
        shutil.rmtree(folder / inner, ignore_errors=True)
        (folder / inner).mkdir(parents=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "reference")
