"""What is wrong with a file, in words: the full path of the key, what it holds, what to write instead.

``run.toml`` and a site's ``policy.toml`` are both read this way: tables of pydantic say which keys there are, and their
findings are told together, one a line. Each table mirrors one frozen value, which may refuse on its own account.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError, may_pass

if TYPE_CHECKING:
    from quietsum.plan.text.tables import Table

__all__ = ["inner_tables", "keys_of", "parse_toml", "read_toml", "sentence", "value_of"]

LARGEST_FILE = 1_000_000


def value_of(table: type[Table], values: Mapping[str, Any], *, where: str, remedy: str) -> Any:
    """The frozen value that plain values describe; :class:`~quietsum.errors.PlanRefused` tells all problems at once."""
    from pydantic import ValidationError

    problems: list[str] = []
    found: Any = None
    if not isinstance(values, Mapping):
        raise PlanRefused(f"{where} is not a table of tables; {remedy}")
    try:
        found = _build(table.model_validate(dict(values)), "", problems)
    except ValidationError as error:
        told = error.errors(include_url=False)
        problems += dict.fromkeys(_problem(item, table) for item in told)  # in order, each once
    except RecursionError:
        problems.append("it is nested too deeply")
    if not problems and isinstance(found, table.value):
        return found
    if len(problems) == 1:
        raise PlanRefused(f"{where}: {problems[0]}")
    raise PlanRefused("\n".join([f"{where}: {len(problems)} problems", *(f"  {problem}" for problem in problems)]))


def read_toml(path: str | os.PathLike[str], name: str, remedy: str) -> dict[str, Any]:
    """The values in the file at ``path``, which is a ``name`` ("run.toml"); ``remedy`` makes a fresh one."""
    where = os.fspath(path)
    try:
        return parse_toml(_text(Path(path), name, remedy), where, remedy)
    except (OSError, ValueError) as error:
        if isinstance(error, QuietsumError) or (isinstance(error, OSError) and may_pass(error)):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        instead = remedy if isinstance(error, FileNotFoundError) else "check the path and its permissions"
        raise PlanRefused(f"{where!r} cannot be read ({reason}); {instead}") from None


def _text(path: Path, name: str, remedy: str) -> str:
    kind = os.stat(path).st_mode
    if stat.S_ISDIR(kind):
        raise PlanRefused(f"'{path}' is a directory; name the file in it, {path / name} for instance")
    if not stat.S_ISREG(kind):  # a pipe or a device may never end
        raise PlanRefused(f"'{path}' is not a regular file; name a {name}")
    with path.open("rb") as file:
        data = file.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise PlanRefused(f"'{path}' is larger than {LARGEST_FILE:,} bytes, which none is; name a {name}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanRefused(
            f"'{path}' is not UTF-8 text (byte {error.start + 1}); save it as UTF-8, or {remedy}"
        ) from None


def parse_toml(text: str, where: str, remedy: str) -> dict[str, Any]:
    """The values in a text; ``where`` stands in front of the problem."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanRefused(f"{where} is not valid TOML: {sentence(str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise PlanRefused(f"{where} cannot be read: {sentence(str(error))}") from None
    if not values:
        raise PlanRefused(f"{where} is empty; {remedy}")
    return values


def sentence(text: str) -> str:
    """Somebody else's words as a part of ours."""
    text = " ".join(text.split())
    return text[:1].lower() + text[1:300]


def _build(table: Table, path: str, problems: list[str]) -> Any:
    """The frozen value that ``table`` mirrors; what the value itself refuses is added to ``problems``."""
    from quietsum.plan.text.tables import Table

    fields, told = {}, len(problems)
    for name in type(table).model_fields:
        field = getattr(table, name)
        if isinstance(field, Table):
            field = _build(field, f"{path}{name}.", problems)
        elif isinstance(field, list) and field and all(isinstance(item, Table) for item in field):
            parts = enumerate(field)
            field = tuple(_build(item, f"{path}{name}[{index}].", problems) for index, item in parts)
        fields[name] = field
    if len(problems) > told:
        return None  # a part that its value refuses; its problem is told
    try:
        return table.value(**fields)
    except InvalidParameter as error:
        problems.append(f"{path}{error}")
        return None


# --------------------------------------------------------------------------------------------- problems

_NOUNS = {
    "int_type": "a whole number", "int_from_float": "a whole number", "int_parsing": "a whole number",
    "float_type": "a number", "string_type": "a text in quotes", "bool_type": "true or false",
    "list_type": 'a list, as in ["first", "second"]', "dict_type": "a table, as in { name = value }",
    "model_type": "a table, as in { key = value }", "model_attributes_type": "a table, as in { key = value }",
}  # fmt: skip
_CHOICE = re.compile(r"(list\[|constrained-|int$)")  # how pydantic names the branches of a union
_BOUNDS = {
    "greater_than": ("gt", "must be greater than"), "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be below"), "less_than_equal": ("le", "must be at most"),
}  # fmt: skip


def _problem(error: Mapping[str, Any], table: type[Table]) -> str:
    """One of pydantic's findings in our words: the path, what is wrong, what instead."""
    parts = [part for part in error["loc"] if isinstance(part, int) or not _CHOICE.match(part)]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    kind, context = error["type"], error.get("ctx", {})
    shown = _shown(error.get("input"))
    if kind == "extra_forbidden":
        return f"{_printable(path)}: unknown key{_nearest(path, table)}"
    if kind == "missing":
        return f"{path} is missing; {_meaning(path, table)}"
    if kind in _NOUNS:
        return f"{path} = {shown} is not {_NOUNS[kind]}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{path} = {shown} {words} {context[name]:g}; {_meaning(path, table)}"
    if kind == "literal_error":
        return f"{path} = {shown} is unknown; choose {context['expected']!s}{_nearest_choice(error, context)}"
    if kind == "finite_number":
        return f"{path} = {shown} is not a finite number; {_meaning(path, table)}"
    if kind == "string_too_short":
        return f"{path} is empty; {_meaning(path, table)}"
    return f"{path} = {shown} is not usable ({sentence(str(error['msg']))})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{…}"
    text = repr(value) if isinstance(value, str | int | float | list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _printable(path: str) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in path)
    return text if len(text) <= 120 else f"{text[:117]}…"


_ELSEWHERE = {
    **dict.fromkeys(
        (
            "secure_agg_enabled", "secure_agg", "secure_aggregation", "secure_aggregation_enabled", "secagg",
            "secagg_enabled", "use_secure_aggregation", "use_secagg", "masking", "pairwise_masking",
        ),
        "aggregation.secure",
    ),
    **dict.fromkeys(
        ("reconstruction_threshold", "secret_sharing_threshold", "secagg_threshold", "shamir_threshold"),
        "aggregation.threshold",
    ),
    **dict.fromkeys(("dropout_rate", "dropouts", "max_dropouts", "dropout_tolerance"), "aggregation.drop_outs"),
    **dict.fromkeys(("corrupt", "max_colluders", "num_colluders"), "aggregation.colluders"),
    **dict.fromkeys(("dp_enabled", "differential_privacy"), "privacy.style"),
}  # fmt: skip
"""What other systems and the source documents call a key."""


def _nearest(path: str, kind: type[Table]) -> str:
    """Which key was meant: a neighbour in the same table first, then any key with that last name."""
    known = list(keys_of(kind))
    table, _, last = re.sub(r"\[\d+\]", "", path).rpartition(".")
    last = last.replace("-", "_").lower()
    if _ELSEWHERE.get(last) in known:
        return f"; did you mean {_ELSEWHERE[last]}?"
    siblings = [key for key in known if key.rpartition(".")[0] == table]
    names = {key.rpartition(".")[2]: key for key in siblings}
    close = difflib.get_close_matches(last, names, n=1, cutoff=0.6)
    elsewhere = [key for key in known if key.rpartition(".")[2] == last]
    if close and not elsewhere:
        return f"; did you mean {names[close[0]]}?"
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return f"; {table or 'it'} knows {', '.join(names)}" if names else ""


def _nearest_choice(error: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    choices = re.findall(r"'([^']*)'", str(context["expected"]))
    close = difflib.get_close_matches(str(error.get("input")).lower(), choices, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def _meaning(path: str, table: type[Table]) -> str:
    text = keys_of(table).get(re.sub(r"\[\d+\]", "", path), "see the reference")
    return text[:1].lower() + text[1:].rstrip(".")


def keys_of(table: type[Table]) -> dict[str, str]:
    """Every key of a file by its full path, with its meaning."""
    return dict(_keys(table, ""))


def _keys(table: type[Table], prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in table.model_fields.items():
        yield f"{prefix}{name}", field.description or ""
        for kind in inner_tables(field.annotation):
            yield from _keys(kind, f"{prefix}{name}.")


def inner_tables(annotation: Any) -> list[type[Table]]:
    """The tables that a field may hold: itself, one of a union, or the items of a list.

    >>> from quietsum.plan.text.tables import PlanTable
    >>> [kind.__name__ for kind in inner_tables(PlanTable.model_fields["schedule"].annotation)]
    ['StageTable']
    """
    from quietsum.plan.text.tables import Table

    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Table)]
