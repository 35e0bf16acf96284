"""The reference of ``run.toml`` as tables of Markdown, made from the same descriptions that errors quote.

``python -m quietsum.plan schema`` prints the JSON Schema, ``python -m quietsum.plan reference`` prints these tables;
the pages under docs/reference are checked against both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietsum.plan.text.tables import Table

__all__ = ["page"]


def page(table: type[Table] | None = None) -> str:
    """One table of keys for each table of the file, ``run.toml`` if no other is meant."""
    from quietsum.plan.text.tables import PlanTable

    parts = []
    for name, field in (table or PlanTable).model_fields.items():
        from quietsum.plan.text.problems import inner_tables

        inner = inner_tables(field.annotation)
        rows = "".join(f"{row}\n" for kind in inner for row in _rows(kind, f"{name}."))
        title, default = (f"[{name}]", "") if inner else (name, f"`{_toml(field.default)}`")
        about = _cell(field.description or "")
        parts.append(
            f"## {title}\n\n| key | default | meaning |\n|---|---|---|\n| `{name}` | {default} | {about} |\n{rows}"
        )
    return "\n".join(parts)


def _rows(table: Any, prefix: str) -> Iterator[str]:
    from quietsum.plan.text.problems import inner_tables

    fields: type[Table] = table
    for name, field in fields.model_fields.items():
        inner = inner_tables(field.annotation)
        default = "" if inner or field.is_required() or field.default is None else f"`{_toml(field.default)}`"
        default = "must be stated" if field.is_required() else default
        yield f"| `{prefix}{name}` | {default} | {_cell(field.description or '')} |"
        for kind in inner:
            yield from _rows(kind, f"{prefix}{name}.")


def _toml(value: Any) -> str:
    return "{}" if value == {} else json.dumps(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
