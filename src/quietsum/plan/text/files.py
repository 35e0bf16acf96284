"""Between a plan and its file: ``run.toml`` in, ``plan.toml`` out, and errors that name key and remedy.

Reading is strict. An unknown key is an error that names its full path and the nearest right one, a text is no number,
NaN is no number either, and all problems of a file are told together, one a line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from quietsum.errors import InvalidParameter
from quietsum.plan.text.problems import keys_of, parse_toml, read_toml, value_of
from quietsum.plan.values import Plan

__all__ = ["json_schema", "keys", "load_plan", "plan_from_values", "read_plan", "to_toml"]

_NEW = "write a fresh one with: quietsum new run.toml"


def load_plan(source: str | os.PathLike[str]) -> Plan:
    """The plan in a file, or in a text: a string with a line break is the text itself, anything else names a file.

    >>> plan = load_plan('''
    ... [privacy]
    ... record = { epsilon = 1.0, delta = 1e-5 }
    ... ''')
    >>> plan.privacy.record.epsilon
    1.0
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
    return read_plan(source)


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in the file at ``path``."""
    return plan_from_values(read_toml(path, "run.toml", _NEW), where=os.fspath(path))


def _parse(text: str, where: str) -> Plan:
    return plan_from_values(parse_toml(text, where, _NEW), where=where)


def plan_from_values(values: Mapping[str, Any], *, where: str) -> Plan:
    """The plan that plain values describe; ``where`` stands in front of the problems."""
    from quietsum.plan.text.tables import PlanTable

    plan: Plan = value_of(PlanTable, values, where=where, remedy=_NEW)
    return plan


def keys() -> dict[str, str]:
    """Every key of ``run.toml`` by its full path, with its meaning."""
    from quietsum.plan.text.tables import PlanTable

    return keys_of(PlanTable)


# --------------------------------------------------------------------------------------------- writing


def to_toml(plan: Plan) -> str:
    """``plan`` as a complete TOML file."""
    import tomli_w

    return tomli_w.dumps(plan.to_dict())


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``run.toml``, for editors that check while one types."""
    from pydantic.json_schema import GenerateJsonSchema

    from quietsum.plan.text.tables import PlanTable

    class WithoutNull(GenerateJsonSchema):
        """TOML has no null: an optional key is one that may be left out."""

        def nullable_schema(self, schema: Any) -> dict[str, Any]:
            return self.generate_inner(schema["schema"])

        def default_schema(self, schema: Any) -> dict[str, Any]:
            found = super().default_schema(schema)
            if not isinstance(found.get("default"), str | int | float | list):  # tables have defaults of their own
                found.pop("default", None)
            return found

    schema = PlanTable.model_json_schema(schema_generator=WithoutNull)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "run.toml of quietsum"}
