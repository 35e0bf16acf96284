"""What a plan passes on to its task: plain JSON values that cannot be changed any more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, final

from quietsum.errors import InvalidParameter

__all__ = ["Options"]

_DEEPEST = 16


@final
class Options(Mapping[str, Any]):
    """An immutable mapping of texts, numbers, truth values, lists (as tuples) and further mappings.

    >>> options = Options({"folds": [1, 2], "split": {"share": 0.66}})
    >>> options["folds"], options["split"]["share"]
    ((1, 2), 0.66)
    >>> options == {"split": {"share": 0.66}, "folds": (1, 2)}
    True
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None, *, _where: str = "options", _depth: int = 0) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise InvalidParameter(_where, values, "is not a table", "write it as { name = value }")
        self._values = {
            _key(_where, key): _frozen(f"{_where}.{key}", value, _depth) for key, value in (values or {}).items()
        }

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Options({self.to_dict()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain dicts and lists."""
        return {key: _thaw(value) for key, value in self._values.items()}


def _key(where: str, key: object) -> str:
    if not isinstance(key, str):
        raise InvalidParameter(where, key, "is not a name", "option names are texts")
    return _text(where, key)


def _text(where: str, value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidParameter(where, value, "is not text that a file can hold", "remove lone surrogates") from None
    return value


def _frozen(where: str, value: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise InvalidParameter(where, "…", "is nested too deeply", "keep options flat")
    if isinstance(value, Mapping):
        return Options(value, _where=where, _depth=depth + 1)
    if isinstance(value, list | tuple):
        return tuple(_frozen(f"{where}[{index}]", item, depth + 1) for index, item in enumerate(value))
    if isinstance(value, str):
        return _text(where, value)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidParameter(where, value, "is not finite", "pass a finite number")
        return value + 0.0
    raise InvalidParameter(
        where, str(value), f"is a {type(value).__name__}", "options are texts, numbers, true or false, lists and tables"
    )


def _thaw(value: Any) -> Any:
    if isinstance(value, Options):
        return value.to_dict()
    return [_thaw(item) for item in value] if isinstance(value, tuple) else value
