"""The edge between files and values: a table of pydantic for each class whose fields are declared as keys.

A table is made from the declarations (:mod:`quietsum.keys`) when a file is read, and holds a file to their types and
bounds: no unknown keys, no conversions, no NaN or infinity.

>>> from quietsum.plan.values import SamplingPlan
>>> list(table_of(SamplingPlan).model_fields)
['kind', 'rate', 'size']
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
import warnings
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from quietsum.keys import Bound, Declaration, declarations

__all__ = ["TomlTable", "inner_tables", "table_of"]


class TomlTable(BaseModel):
    """What all tables have in common: no unknown keys, no conversions, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
    value: ClassVar[type[Any]]


def table_of(kind: type[Any]) -> type[TomlTable]:
    """The table that reads values of ``kind``; ``kind`` itself if it is a table."""
    if issubclass(kind, TomlTable):
        return kind
    if kind not in _MADE:
        _MADE[kind] = _make(kind)
    return _MADE[kind]


_MADE: dict[type[Any], type[TomlTable]] = {}


def _make(kind: type[Any]) -> type[TomlTable]:
    name = f"{kind.__name__.removesuffix('Plan')}Table"
    fields: dict[str, Any] = {one.name: (_annotation(one), _field(one)) for one in declarations(kind).values()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Field name .schema.", UserWarning)  # the old name of model_json_schema
        found: type[TomlTable] = create_model(
            name,
            __base__=TomlTable,
            __module__=kind.__module__,
            __doc__=(kind.__doc__ or "").partition("\n")[0],
            **fields,
        )
    found.value = kind
    return found


def _field(one: Declaration) -> Any:
    if one.required:
        return Field(description=one.key.sentence)
    return Field(default=_plain(one.default, one.key.free), description=one.key.sentence)


def _plain(value: Any, free: bool) -> Any:
    """A default as a file would state it."""
    if free or isinstance(value, Mapping):
        return {}
    if dataclasses.is_dataclass(value):
        return table_of(type(value))()
    if isinstance(value, tuple):
        return [_plain(item, free) for item in value]
    return value.value if isinstance(value, enum.Enum) else value


def _annotation(one: Declaration) -> Any:
    """The type of a key for pydantic, with its bound."""
    return dict[str, Any] if one.key.free else _bound_kind(one.type, one.key.bound)


def _bound_kind(kind: Any, bound: Bound) -> Any:
    parts = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return functools.reduce(lambda one, other: one | other, (_bound_kind(part, bound) for part in parts))
    if typing.get_origin(kind) is tuple:
        items = _bound_kind(parts[0], dataclasses.replace(bound, shortest=None))
        found: Any = Annotated[list[items], Field(min_length=bound.shortest, max_length=bound.longest)]  # type: ignore[valid-type]
        return Annotated[found, BeforeValidator(_as_list)] if bound.single else found
    if typing.get_origin(kind) is Mapping:
        return dict[parts[0], parts[1]]  # type: ignore[valid-type]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return table_of(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return Literal[tuple(member.value for member in kind)]
    if bound.choices and kind in (str, int):
        return Literal[bound.choices]
    if kind in (float, int):
        return Annotated[kind, Field(gt=bound.above, ge=bound.least, lt=bound.below, le=bound.most)]
    return Annotated[str, Field(min_length=bound.shortest)] if kind is str else kind


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def inner_tables(annotation: Any) -> list[type[TomlTable]]:
    """The tables that a field may hold: itself, one of a union, or the items of a list.

    >>> from quietsum.plan.values import Plan
    >>> [kind.__name__ for kind in inner_tables(table_of(Plan).model_fields["schedule"].annotation)]
    ['StageTable']
    """
    kinds = (annotation, *getattr(annotation, "__args__", ()))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, TomlTable)]
