"""``data.toml``: which keys there are and what they mean. What follows from them is :mod:`.schema`."""

from __future__ import annotations

import datetime
import os
import shlex
from typing import Annotated, Any

from pydantic import Field

from quietsum.defence.validation import schema as values
from quietsum.plan import TomlTable, keys_of, parse_toml, read_toml, value_of

__all__ = ["SchemaTable", "load_schema", "parse_schema", "schema_keys"]

_NEW = "write a fresh one with: quietsum data new TABLE data.toml"
Share = Annotated[float, Field(ge=0, le=1)]


class ColumnTable(TomlTable):
    """One column."""

    value = values.SchemaColumn
    name: str = Field(min_length=1, description="The column's name in the table's header.")
    type: str = Field(default="number", description="number, integer, text or date.")
    min: int | float | datetime.datetime | datetime.date | None = Field(default=None, description="The smallest value.")
    max: int | float | datetime.datetime | datetime.date | None = Field(default=None, description="The largest value.")
    allowed: list[int | float | str] = Field(default=[], description="The only values there are.")
    missing: Share = Field(default=0.0, description="The largest share of rows without a value: 0 none, 1 any.")
    usual: list[float] | None = Field(
        default=None, description="Two numbers: values outside are outliers, counted and reported."
    )
    format: str = Field(
        default="",
        description='How dates are written, as in "%d.%m.%Y"; if omitted, 2026-01-31, with a time or without.',
    )


class FileTable(TomlTable):
    """How a text file is written."""

    value = values.FileFormat
    delimiter: str = Field(default=",", description='What separates columns: ",", ";" or "\\t".')
    decimal: str = Field(default=".", description='The decimal mark, "." or ",".')
    encoding: str = Field(default="utf-8", description="utf-8 (with or without a mark), latin-1, cp1252 or utf-16.")
    header: bool = Field(default=True, description="Whether the first line names the columns; else their order counts.")
    missing: list[str] = Field(default=list(values.MISSING), description="Words that stand for no value.")
    other_columns: str = Field(
        default="refuse", description="Columns that the schema does not name: refuse the table, or ignore them."
    )


class RowsTable(TomlTable):
    """The table's rows."""

    value = values.RowRules
    least: int = Field(default=1, ge=0, description="The fewest rows.")
    most: int | None = Field(default=None, ge=1, description="The most rows: the declared, public size.")
    duplicates: Share = Field(default=0.0, description="The largest share of rows that repeat an earlier one exactly.")
    keys: list[str | list[str]] = Field(default=[], description="Columns, or lists of columns, that name a row once.")


class LabelTable(TomlTable):
    """What is learned."""

    value = values.Label
    column: str = Field(min_length=1, description="The column that is learned.")
    classes: list[int | float | str] = Field(
        default=[], description="The declared classes; none for a label that is a number."
    )
    least: Share = Field(default=0.0, description="The smallest share of rows that any class may have.")
    most: Share = Field(default=1.0, description="The largest share of rows that any class may have.")
    shares: dict[str, list[float]] = Field(
        default={}, description='Bounds for single classes, as in { "1" = [0.001, 0.01] }.'
    )
    disagreement: Share | None = Field(
        default=None,
        description="For --labels: the share of a class that a simple model is expected to label otherwise.",
    )


class OutliersTable(TomlTable):
    """What counts as unusual."""

    value = values.Outliers
    rule: str = Field(default="robust-z", description="robust-z (median and MAD of the column), or none.")
    threshold: float = Field(default=6.0, gt=0, description="How many robust standard deviations are unusual.")
    most: Share | None = Field(
        default=None,
        description="The largest share of outliers in a column; if omitted, they are reported and refuse nothing.",
    )


class CleaningTable(TomlTable):
    """A rule that looks at one row."""

    value = values.Cleaning
    column: str = Field(min_length=1, description="The column it looks at.")
    when: str = Field(description="missing, unreadable, or outside (the bounds).")
    do: str = Field(description="drop the row, fill in the value, or clamp to the bounds.")
    bounds: list[float] | None = Field(default=None, description="Two public numbers.")
    constant: int | float | str | None = Field(default=None, description="What is filled in, public.")


class SchemaTable(TomlTable):
    """A site's table."""

    value = values.Schema
    columns: list[ColumnTable] = Field(min_length=1, description="The table's columns.")
    reviewed: bool = Field(
        default=True, description="Whether its operator has put what he knows in place of what was read off rows."
    )
    file: FileTable = Field(default=FileTable(), description="How a text file is written.")
    rows: RowsTable = Field(default=RowsTable(), description="The table's rows.")
    label: LabelTable | None = Field(default=None, description="What is learned.")
    outliers: OutliersTable = Field(default=OutliersTable(), description="What counts as unusual.")
    cleaning: list[CleaningTable] = Field(default=[], description="Rules that look at one row, before all checks.")


def load_schema(path: str | os.PathLike[str]) -> values.Schema:
    """The schema in the file at ``path``; all its problems are reported at once."""
    fresh = _NEW if os.path.exists(path) else f"quietsum data new TABLE {shlex.quote(os.fspath(path))} writes a draft"
    return _read(read_toml(path, "data.toml", fresh), os.fspath(path))


def parse_schema(text: str, where: str = "data.toml") -> values.Schema:
    """The schema in a text; ``where`` stands in front of its problems."""
    return _read(parse_toml(text, where, _NEW), where)


def _read(found: dict[str, Any], where: str) -> values.Schema:
    schema: values.Schema = value_of(SchemaTable, found, where=where, remedy=_NEW)
    return schema


def schema_keys() -> dict[str, str]:
    """Every key of ``data.toml`` by its full path, with its meaning."""
    return keys_of(SchemaTable)
