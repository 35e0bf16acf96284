"""Between a value and its TOML file: ``run.toml`` in, ``plan.toml`` out, and errors that name key and remedy.

Reading is strict. An unknown key is an error that names its full path and the nearest right one, a text is no number,
NaN is no number either, and an error lists the problems of a file, one a line: the full path of the key, what it holds,
what to write instead. A site's ``policy.toml`` and the files of questions are read in the same way.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quietsum.errors import InvalidParameter, PlanRefused, QuietsumError, may_pass
from quietsum.keys import shorten
from quietsum.plan.text.reference import keys_of
from quietsum.plan.values import Plan

if TYPE_CHECKING:
    from quietsum.plan.text.tables import TomlTable

__all__ = ["load_plan", "parse_toml", "plan_from_values", "read_plan", "read_toml", "to_toml", "value_of"]

_NEW = "write a fresh one with: quietsum new run.toml"
LARGEST_FILE = 1_000_000
_LISTED = 30  # problems of one file that an error lists


# ------------------------------------------------------------------------------------------------ plans


def load_plan(source: str | os.PathLike[str]) -> Plan:
    """The plan in a file, or in a text: a string with a line break is the text itself, anything else names a file.

    >>> plan = load_plan('''
    ... [privacy]
    ... record = { epsilon = 1.0, delta = 1e-5 }
    ... ''')
    >>> plan.privacy.record.epsilon
    1.0
    >>> load_plan('task.name = "heart"')
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: plan = 'task.name = "heart"' is one line, no path; end it with a line break
    >>> load_plan('''
    ... [privacy]
    ... record = { epsilonn = 1.0 }
    ... ''')
    Traceback (most recent call last):
    ...
    quietsum.errors.PlanRefused: the plan: privacy.record.epsilonn: unknown key; did you mean privacy.record.epsilon?
    """
    if isinstance(source, str) and (not source.strip() or "\n" in source or "\r" in source):
        return _parse(source, "the plan")
    if not isinstance(source, str | os.PathLike):
        raise InvalidParameter("plan", source, "is neither a path nor a text", "pass the path of a run.toml")
    if isinstance(source, str) and "=" in source and _reads_as_toml(source):
        raise InvalidParameter("plan", source, "is one line, no path", "end it with a line break")
    return read_plan(source)


def _reads_as_toml(text: str) -> bool:
    """Whether a text is keys and values, and no name of a file that is there."""
    try:
        return bool(tomllib.loads(text)) and not os.path.lexists(text)
    except (ValueError, RecursionError):
        return False


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in the file at ``path``."""
    return plan_from_values(read_toml(path, "run.toml", _NEW), where=os.fspath(path))


def _parse(text: str, where: str) -> Plan:
    return plan_from_values(parse_toml(text, where, _NEW), where=where)


def plan_from_values(values: Mapping[str, Any], *, where: str) -> Plan:
    """The plan that plain values describe; ``where`` stands in front of the problems."""
    plan: Plan = value_of(Plan, values, where=where, remedy=_NEW)
    return plan


def to_toml(plan: Plan) -> str:
    """``plan`` as a complete TOML file."""
    import tomli_w

    return tomli_w.dumps(plan.to_dict())


# ------------------------------------------------------------------------------------------- any TOML file


def value_of(kind: type[Any], values: Mapping[str, Any], *, where: str, remedy: str) -> Any:
    """The frozen value of class ``kind`` that plain values describe; ``where`` stands in front of the problems.

    Raises :class:`~quietsum.errors.PlanRefused` with its problems, one a line, thirty at most.
    """
    from pydantic import ValidationError

    from quietsum.plan.text.tables import table_of

    table = table_of(kind)
    problems: list[str] = []
    found: Any = None
    if not isinstance(values, Mapping):
        raise PlanRefused(f"{where} is not a table of tables; {remedy}")
    try:
        found = _build(table.model_validate(dict(values)), "", problems)
    except ValidationError as error:
        items = error.errors(include_url=False)
        problems += dict.fromkeys(_problem(item, table) for item in items)  # in order, each once
    except RecursionError:
        problems.append("it is nested too deeply")
    if not problems and isinstance(found, table.value):
        return found
    if len(problems) == 1:
        raise PlanRefused(f"{where}: {problems[0]}")
    lines = [f"  {problem}" for problem in problems[:_LISTED]]
    if len(problems) > _LISTED:
        lines.append(f"  and {len(problems) - _LISTED} more; mend these first")
    raise PlanRefused("\n".join([f"{where}: {len(problems)} problems", *lines]))


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
        raise PlanRefused(f"{where} is not valid TOML: {_quote(str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise PlanRefused(f"{where} cannot be read: {_quote(str(error))}") from None
    if not values:
        raise PlanRefused(f"{where} is empty; {remedy}")
    return values


def _quote(text: str) -> str:
    """A library's message as a part of ours."""
    text = " ".join(text.split())
    return text[:1].lower() + text[1:300]


def _build(table: TomlTable, path: str, problems: list[str]) -> Any:
    """The frozen value that ``table`` mirrors; what the value itself refuses is added to ``problems``."""
    from quietsum.plan.text.tables import TomlTable

    fields, before = {}, len(problems)
    for name in type(table).model_fields:
        field = getattr(table, name)
        if isinstance(field, TomlTable):
            field = _build(field, f"{path}{name}.", problems)
        elif isinstance(field, list) and field and all(isinstance(item, TomlTable) for item in field):
            parts = enumerate(field)
            field = tuple(_build(item, f"{path}{name}[{index}].", problems) for index, item in parts)
        fields[name] = field
    if len(problems) > before:
        return None  # a part was refused by its value, and that problem is listed
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


def _problem(error: Mapping[str, Any], table: type[TomlTable]) -> str:
    """One of pydantic's errors in our words: the path, what is wrong, what instead."""
    parts = [part for part in error["loc"] if isinstance(part, int) or not _CHOICE.match(part)]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    kind, context = error["type"], error.get("ctx", {})
    shown = _show(error.get("input"))
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
    return f"{path} = {shown} is not usable ({_quote(str(error['msg']))})"


def _show(value: object) -> str:
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
    "target_epsilon": "privacy.record.epsilon", "target_delta": "privacy.record.delta",
    "noise_multiplier_user": "privacy.client.noise_multiplier", "max_grad_norm_user": "privacy.client.max_norm",
    "sample_rate_user": "federation.sampling", "sampling_probability": "training.sample_rate",
    "max_epsilon": "privacy.record.epsilon", "mechanism": "privacy.noise", "steps_per_round": "training.local_steps",
    **dict.fromkeys(("steps_user", "training_steps"), "federation.rounds"), "min_clients": "federation.minimum_parties",
    **dict.fromkeys(("strategy", "aggregator", "defense", "defence"), "aggregation.rule"),
    **dict.fromkeys(("signguard", "signguard_enabled", "krum"), "aggregation.rule"),
    "use_opacus": "training.engine", "privacy_accounting": "privacy.accounting",
    **dict.fromkeys(("num_rounds", "n_rounds"), "federation.rounds"),
    **dict.fromkeys(("lr", "server_learning_rate"), "training.optimizer.learning_rate"),
}  # fmt: skip
"""What other systems and the source documents call a key."""


def _nearest(path: str, kind: type[TomlTable]) -> str:
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


def _meaning(path: str, table: type[TomlTable]) -> str:
    return shorten(keys_of(table).get(re.sub(r"\[\d+\]", "", path), "see the reference"))
