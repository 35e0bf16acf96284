"""A mapping whose values are pieces of text until somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, TypeVar, final

__all__ = ["Lazy"]

K = TypeVar("K")
V = TypeVar("V")


@final
class Lazy(MutableMapping[K, V]):
    """Values that lie in ``data`` at known places, each read when it is first asked for, and kept from then on.

    It iterates in the order of ``places``; what is added later comes behind them, as in a dict.
    """

    def __init__(
        self,
        places: dict[K, tuple[int, int]],
        data: bytes,
        read: Callable[[K, bytes], V],
        *,
        once: Sequence[Any] = (),
    ) -> None:
        self._there: dict[K, Any] = dict(places)  # a place, or the value: no value is a tuple
        self._data, self._read = data, read
        self.once = once
        """What the pieces refer to, for whoever writes them again."""

    def __getitem__(self, key: K) -> V:
        found = self._there[key]
        if type(found) is tuple:
            found = self._there[key] = self._read(key, self._data[found[0] : found[1]])
        value: V = found
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._there[key] = value

    def __delitem__(self, key: K) -> None:
        del self._there[key]

    def __contains__(self, key: object) -> bool:
        return key in self._there

    def __iter__(self) -> Iterator[K]:
        return iter(self._there)

    def __len__(self) -> int:
        return len(self._there)

    def copy(self) -> Lazy[K, V]:
        """The same values, each one object for both mappings; what is set in one is not set in the other."""
        return Lazy(self._there, self._data, lambda key, _: self[key], once=self.once)

    def unread(self, key: K) -> bytes | None:
        """The text of a value that nobody has asked for; None where somebody has, or where it was added."""
        found = self._there[key]
        return self._data[found[0] : found[1]] if type(found) is tuple else None
