"""The plain part of YAML, for configuration files of other systems: names, indentation, numbers, words.

YAML has anchors that grow a line into gigabytes, tags that construct objects, and four ways to write a text. A file of
settings needs none of them. What is read here is what stands in such files: ``name: value`` on a line of its own,
tables by indentation, lists of single values. All else is refused, with the advice to write TOML or JSON.

>>> parse_plain_yaml("privacy:\\n  dp_enabled: true\\n  delta: 1e-5  # a comment\\n", where="config.yaml")
{'privacy': {'dp_enabled': True, 'delta': 1e-05}}
"""

from __future__ import annotations

import re
from typing import Any

from quietsum.errors import InvalidParameter

__all__ = ["parse_plain_yaml"]

_LINE = re.compile(r"( *)(?:(- +)?([A-Za-z_][\w.-]*) *:(?: +(.*))?|(- +)(.+))$")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*)?(\.\d*)?([eE][-+]?\d+)?$")
_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "null": None,
    "~": None,
    "": None,
}
_DEEPEST = 8


def parse_plain_yaml(text: str, *, where: str) -> dict[str, Any]:
    """The values of a plain YAML file; ``where`` stands in front of the problem.

    Raises :class:`~quietsum.errors.InvalidParameter` for what is not plain, and for a name that stands twice.
    """
    top: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any]]] = [(-1, top)]
    waiting: tuple[int, dict[str, Any], str] | None = None  # a name without a value: a table, or a list, may follow
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _without_comment(raw)
        if not line.strip() or line.strip() == "---":
            continue
        found = _LINE.match(line)
        if found is None or found[2] or "\t" in line[: len(line) - len(line.lstrip())]:
            raise InvalidParameter(f"{where} line {number}", raw.strip()[:60], "is not plain YAML", _INSTEAD)
        depth = len(found[1])
        if found[5]:  # an item of a list
            if waiting is None or depth < waiting[0]:
                raise InvalidParameter(f"{where} line {number}", raw.strip()[:60], "is an item of no list", _INSTEAD)
            items = waiting[1].setdefault(waiting[2], []) if waiting[1][waiting[2]] is not None else []
            items.append(_value(found[6].strip(), where, number))
            waiting[1][waiting[2]] = items
            continue
        if waiting is not None and depth > waiting[0] and waiting[1][waiting[2]] is None:
            inner: dict[str, Any] = {}
            waiting[1][waiting[2]] = inner
            stack.append((waiting[0], inner))
        while stack[-1][0] >= depth:
            stack.pop()
        if len(stack) > _DEEPEST:
            raise InvalidParameter(f"{where} line {number}", raw.strip()[:60], "is nested too deeply", _INSTEAD)
        table, name = stack[-1][1], found[3]
        if name in table:
            raise InvalidParameter(f"{where} line {number}", name, "stands twice in one table", "keep one of them")
        value = (found[4] or "").strip()
        table[name] = _value(value, where, number)
        waiting = (depth, table, name) if not value else None
    return top


_INSTEAD = "write the settings as TOML or JSON"


def _without_comment(line: str) -> str:
    """``line`` without what stands behind a # that is in no quotes."""
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1] in " \t"):
            return line[:at].rstrip()
    return line.rstrip()


def _value(text: str, where: str, number: int) -> Any:
    """One value: a number, true or false, nothing, or a word."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[0] in "'\"":
        if len(text) > 1 and text[-1] == text[0] and text[0] not in text[1:-1] and "\\" not in text:
            return text[1:-1]
        raise InvalidParameter(f"{where} line {number}", text[:60], "is no plain text in quotes", _INSTEAD)
    if text[0] in "&*!|>[{%@`":
        raise InvalidParameter(f"{where} line {number}", text[:60], "is not plain YAML", _INSTEAD)
    if len(text) <= 40 and text.isascii() and _NUMBER.match(text) and any(letter.isdigit() for letter in text):
        plain = text.replace("_", "")
        return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
    return text
