"""What is published about the keys of a file: their list, the JSON Schema, and the reference page.

All of it is made from the declarations that errors quote as well (:mod:`quietsum.keys`). ``python -m quietsum.plan
schema`` prints the JSON Schema of ``run.toml``, ``python -m quietsum.plan reference`` its tables; tests hold the pages
under docs/reference to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, get_origin

from quietsum.plan.values import Plan

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from quietsum.plan.text.tables import TomlTable

__all__ = ["json_schema", "keys", "keys_of", "page"]


def keys() -> dict[str, str]:
    """Every key of ``run.toml`` by its full path, with its meaning."""
    return keys_of(Plan)


def keys_of(kind: type[Any]) -> dict[str, str]:
    """Every key of a file that holds a ``kind``, by its full path, with its meaning."""
    from quietsum.plan.text.tables import table_of

    return {path: field.description or "" for path, field in _fields(table_of(kind), "")}


def _fields(table: type[TomlTable], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    from quietsum.plan.text.tables import inner_tables

    for name, field in table.model_fields.items():
        yield f"{prefix}{name}", field
        for kind in inner_tables(field.annotation):
            yield from _fields(kind, f"{prefix}{name}.")


def page(kind: type[Any] = Plan) -> str:
    """The tables of a reference page in Markdown: one for each table of a file that holds a ``kind``."""
    from quietsum.plan.text.tables import inner_tables, table_of

    parts: dict[str, list[str]] = {}
    table = table_of(kind)
    for path, field in _fields(table, ""):
        parts.setdefault(path.partition(".")[0], []).append(_row(path, field))
    for name, rows in parts.items():
        annotation = table.model_fields[name].annotation
        inner = inner_tables(annotation) or annotation == dict[str, Any]
        title = name if not inner else f"[[{name}]]" if get_origin(annotation) is list else f"[{name}]"
        parts[name] = [f"## {title}", "", "| key | default | meaning |", "|---|---|---|", *rows]
    return "\n\n".join("\n".join(lines) for lines in parts.values()) + "\n"


def _row(path: str, field: FieldInfo) -> str:
    from quietsum.plan.text.tables import inner_tables

    default = "must be stated" if field.is_required() else ""
    if not inner_tables(field.annotation) and not field.is_required() and field.default is not None:
        default = f"`{json.dumps(field.default)}`"
    meaning = (field.description or "").replace("|", "\\|")
    return f"| `{path}` | {default} | {meaning} |"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of ``run.toml``, for editors that check while one types."""
    from pydantic.json_schema import GenerateJsonSchema

    from quietsum.plan.text.tables import table_of

    class WithoutNull(GenerateJsonSchema):
        """TOML has no null: an optional key is one that may be left out."""

        def nullable_schema(self, schema: Any) -> dict[str, Any]:
            return self.generate_inner(schema["schema"])

        def default_schema(self, schema: Any) -> dict[str, Any]:
            made = super().default_schema(schema)
            if not isinstance(made.get("default"), str | int | float | list):  # tables have defaults of their own
                made.pop("default", None)
            return made

    schema = table_of(Plan).model_json_schema(schema_generator=WithoutNull)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "run.toml of quietsum"}
