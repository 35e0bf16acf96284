"""What an argument is for, in the help of its command.

Click 8.5 has a help of its own for arguments and sets it to nothing after typer has set it, so that ``--help`` named
arguments and said nothing about them. :func:`restore_help` puts the sentences back from the signatures of the commands;
where a later typer has done so already, it changes nothing.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from typer.models import ArgumentInfo

__all__ = ["restore_help"]


def restore_help(command: Any) -> None:
    """Give each argument of ``command``, and of the commands below it, the help that its signature states."""
    for one in _commands(command):
        function = getattr(one.callback, "__wrapped__", None)
        if function is None:
            continue
        hints = typing.get_type_hints(function, include_extras=True)
        for parameter in one.params:
            if getattr(parameter, "help", None) is None and parameter.name in hints:
                parameter.help = _stated(hints[parameter.name])


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _commands(inner)


def _stated(hint: Any) -> str | None:
    """The help of the argument that an ``Annotated`` type describes."""
    found = (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, ArgumentInfo))
    return next((one.help for one in found), None)
