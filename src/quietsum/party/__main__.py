"""``python -m quietsum.party reference``: the tables of docs/reference/policy-toml.md, made from what errors quote."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import get_origin

from pydantic.fields import FieldInfo

from quietsum.party.policy_file import PolicyTable
from quietsum.plan import inner_tables

__all__ = ["page"]


def page() -> str:
    """One table of keys for each table of ``policy.toml``."""
    return "\n".join(_section(name, field) for name, field in PolicyTable.model_fields.items())


def _section(name: str, field: FieldInfo) -> str:
    title = f"[[{name}]]" if get_origin(field.annotation) is list else f"[{name}]"
    lines = [f"## {title}", "", "| key | default | meaning |", "|---|---|---|", *_rows(name, field)]
    return "\n".join(lines) + "\n"


def _rows(path: str, field: FieldInfo) -> Iterator[str]:
    inner = inner_tables(field.annotation)
    default = "must be stated" if field.is_required() else ""
    if not inner and not field.is_required() and field.default is not None:
        default = f"`{json.dumps(field.default)}`"
    meaning = (field.description or "").replace("|", "\\|")
    yield f"| `{path}` | {default} | {meaning} |"
    for table in inner:
        for name, one in table.model_fields.items():
            yield from _rows(f"{path}.{name}", one)


if __name__ == "__main__":
    if sys.argv[1:] != ["reference"]:
        sys.exit("usage: python -m quietsum.party reference")
    print(page(), end="")
