"""The published form of ``report.json``, and a check of a stranger's file against it.

The schema is ``report.schema.json`` beside this file, JSON Schema 2020-12; the documentation publishes the same bytes.
The check knows the few words that the schema uses, so that a report can be read on a machine with the base install
alone. Its bounds on lengths are what keeps a hostile report from asking for endless work.

>>> complain({"type": "integer", "minimum": 1}, 0)
'the value: 0 is below 1'
>>> complain({"type": "integer", "minimum": 1}, 1)
''
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from quietsum.errors import CorruptState

__all__ = ["complain", "report_schema", "require_form"]

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip


@functools.cache
def report_schema() -> Mapping[str, Any]:
    """The schema of ``report.json``."""
    text = resources.files("quietsum.report.signed").joinpath("report.schema.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(text)
    return found


def require_form(values: Mapping[str, Any]) -> None:
    """Raise CorruptState, with the first place that is wrong, if ``values`` are no report."""
    problem = complain(report_schema(), dict(values), root=report_schema())
    if problem:
        raise CorruptState(f"it has not the form of a report: {problem}")


def complain(
    schema: Mapping[str, Any], value: Any, place: str = "the value", root: Mapping[str, Any] | None = None
) -> str:
    """What is wrong with ``value``, and where; empty if nothing is."""
    root = schema if root is None else root
    if "$ref" in schema:
        return complain(root["$defs"][schema["$ref"].rpartition("/")[2]], value, place, root)
    if "anyOf" in schema:
        found = [complain(one, value, place, root) for one in schema["anyOf"]]
        return "" if "" in found else found[0]
    if "const" in schema:
        return "" if value == schema["const"] else f"{place}: is not {schema['const']!r}"
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{place}: is none of {schema['enum']}"
    wanted = schema.get("type")
    if wanted is not None and (
        not isinstance(value, _TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")
    ):
        return f"{place}: is no {wanted}"
    return _complain_of_size(schema, value, place) or _complain_of_parts(schema, value, place, root)


def _complain_of_size(schema: Mapping[str, Any], value: Any, place: str) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{place}: is no finite number"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{place}: {value} is below {schema['minimum']}"
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        return f"{place}: is longer than {schema['maxLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return f"{place}: is not written as {schema['pattern']}"
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        return f"{place}: has more than {schema['maxItems']} entries"
    if "minItems" in schema and len(value) < schema["minItems"]:
        return f"{place}: has fewer than {schema['minItems']} entries"
    return ""


def _complain_of_parts(schema: Mapping[str, Any], value: Any, place: str, root: Mapping[str, Any]) -> str:
    if isinstance(value, list) and "items" in schema:
        for number, one in enumerate(value):
            if problem := complain(schema["items"], one, f"{place}[{number}]", root):
                return problem
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                return f"{place}: has no {name!r}"
        for name, one in value.items():
            if name in properties:
                if problem := complain(
                    properties[name], one, name if place == "the value" else f"{place}.{name}", root
                ):
                    return problem
            elif schema.get("additionalProperties") is False:
                return f"{place}: has {str(name)[:60]!r}, which it should not"
    return ""
