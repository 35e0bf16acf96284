"""The reference of ``run.toml`` as tables of Markdown, made from the same descriptions that errors quote.

``python -m quietsum.plan schema`` prints the JSON Schema, ``python -m quietsum.plan reference`` prints these tables;
the pages under docs/reference are checked against both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quietsum.plan.tables import Table

__all__ = ["page"]


def page() -> str:
    """One table of keys for each table of the file."""
    from quietsum.plan.tables import PlanTable

    parts = []
    for name, field in PlanTable.model_fields.items():
        from quietsum.plan.problems import inner_tables

        rows = "\n".join(row for kind in inner_tables(field.annotation) for row in _rows(kind, f"{name}."))
        about = field.description or ""
        parts.append(
            f"## [{name}]\n\n| key | default | meaning |\n|---|---|---|\n| `{name}` |  | {_cell(about)} |\n{rows}\n"
        )
    return "\n".join(parts)


def _rows(table: Any, prefix: str) -> Iterator[str]:
    from quietsum.plan.problems import inner_tables

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
