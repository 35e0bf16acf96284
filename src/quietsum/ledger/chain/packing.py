"""What a ledger's entries say, as data that can be put away and taken up again: no code, no pickle, JSON only.

:func:`pack` writes a whole :class:`~quietsum.ledger.state.State`, :func:`unpack` builds one that is the same. What is
written is found by looking, not by a list: every field of every class of the books, under any name. A value of
a class that is not known here is refused (:class:`CannotPack`), never left out. :func:`layout` is a fingerprint of all
classes and rules; what was packed under another one is not unpacked.

Runs and books are many, and an act needs a few of them. So each is a piece of text of its own, with its place in a
table of contents, and is read when somebody asks for it (:class:`Lazy`). Pieces that were not read are copied as they
are when the state is packed again.

JSON has few types, so all others are lists that begin with a letter: ``["t", …]`` is a tuple, ``["o", "Share", …]``
an object of ours with its fields in order, ``["r", 7]`` the eighth of the values that are written down once (events,
terms, budgets, charges and planned tallies, which thousands of runs share).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, final

from quietsum.errors import QuietsumError
from quietsum.ledger import (
    accounts as _accounts,
    books as _books,
    charges as _charges,
    pricing as _pricing,
    state as _state,
    versions as _versions,
)
from quietsum.ledger.accounts import Accounts, RunState
from quietsum.ledger.books import BookState, Share
from quietsum.ledger.chain import entries as _entries, witnesses as _witnesses
from quietsum.ledger.state import State
from quietsum.privacy import (
    Guarantee,
    PrivacyEvent,
    PrivacyUnit,
    from_dict,
    person_event,
    restate_by_old_rules,
    to_dict,
)

__all__ = ["APART", "REMADE", "CannotPack", "Lazy", "layout", "pack", "unpack"]

FORMAT = 1
"""Of this module: it changes when values are written in another way."""

K = TypeVar("K")
V = TypeVar("V")


class CannotPack(QuietsumError):
    """The state holds something that has no place in a packed one."""


# ------------------------------------------------------------------------------------------------ classes


def _module_of(thing: Any) -> ModuleType:
    """Where a name of another room's door lives: all classes beside it may stand in a state, or all rules decide it."""
    return sys.modules[thing.__module__]


def _classes_in(module: Any) -> Iterator[tuple[str, type]]:
    for name, thing in vars(module).items():
        if isinstance(thing, type) and thing.__module__ == module.__name__:
            yield name, thing


_OURS = (_accounts, _books, _charges, _entries, _pricing, _versions, _witnesses)
_MODULES = (*_OURS, *map(_module_of, (Guarantee, PrivacyUnit)))
_RULES = (_state, *map(_module_of, (PrivacyEvent, person_event, restate_by_old_rules)))
_ALL = dict(itertools.chain.from_iterable(map(_classes_in, _MODULES)))
_ENUMS = {name: cls for name, cls in _ALL.items() if issubclass(cls, enum.Enum)}
_VALUES = {
    name: cls
    for name, cls in _ALL.items()
    if dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
}
_OBJECTS = {
    name: cls for name, cls in _ALL.items() if name not in _VALUES and name not in _ENUMS and "__slots__" in vars(cls)
}

REMADE = frozenset({"key", "_prices", "_first", "_redacted", "_known"})
"""Of a state: what is not a statement of its entries. The key is that of the first entry."""
APART = frozenset({"runs", "books", "_names"})
"""Of the accounts: what has a form of its own here."""


def _fields(cls: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(sorted(vars(cls)["__slots__"]))


@functools.cache
def layout() -> str:
    """Which form and which rules a packed state follows: a fingerprint of the code that makes states.

    It covers all classes with their fields, and every line of the rules that entries are taken in by. So where any of
    that was changed, by a new version say, older snapshots are not used, and the entries themselves decide.
    """
    digest = hashlib.sha256(f"quietsum-packed-{FORMAT}".encode())
    for module in (*_MODULES, *_RULES):
        digest.update(b"\0" + Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:32]


# ------------------------------------------------------------------------------------------------ writing


@final
class _Writer:
    """One packing; ``once`` holds what is written down once, in order."""

    def __init__(self, once: Iterable[Any] = ()) -> None:
        self.once: list[Any] = list(once)  # pieces that are copied as they are point at these by number
        self._places: dict[Any, int] = {}
        self._texts = {json.dumps(value, separators=(",", ":")): place for place, value in enumerate(self.once)}

    def plain(self, value: Any) -> Any:
        """``value`` in JSON's types."""
        kind = type(value)
        if value is None or kind is int or kind is str or kind is bool:
            return value
        if kind is float:
            return value if value - value == 0 else ["f", repr(value)]
        if kind is tuple:
            return ["t", *map(self.plain, value)]
        if kind is list:
            return ["l", *map(self.plain, value)]
        if kind is dict:
            return ["d", *([self.plain(key), self.plain(item)] for key, item in value.items())]
        if kind is set or kind is frozenset:
            return ["s" if kind is set else "z", *sorted(map(self.plain, value), key=repr)]
        name = kind.__name__
        if _ENUMS.get(name) is kind:
            return ["e", name, value.value]
        if isinstance(value, PrivacyEvent) or _VALUES.get(name) is kind:
            return ["r", self._place(value)]
        if _OBJECTS.get(name) is kind:
            return ["o", name, *(self._field(value, field) for field in _fields(kind))]
        raise CannotPack(f"{kind.__module__}.{name} has no place in a snapshot of the ledger")

    def _field(self, value: Any, field: str) -> Any:
        if isinstance(value, Share) and field == "planned":  # only ever read, and one for all runs with the same plan
            return ["r", self._place_text(self.plain(value.planned))]
        return self.plain(getattr(value, field))

    def _place(self, value: Any) -> int:
        """Where a value that never changes is written down."""
        place = self._places.get(value)
        if place is None:
            if isinstance(value, PrivacyEvent):
                text: Any = ["v", to_dict(value)]
            else:
                name = type(value).__name__
                text = ["o", name, *(self.plain(getattr(value, field)) for field in _fields(type(value)))]
            place = self._places[value] = self._place_text(text)
        return place

    def _place_text(self, text: Any) -> int:
        key = json.dumps(text, separators=(",", ":"))
        if key not in self._texts:
            self._texts[key] = len(self.once)
            self.once.append(text)
        return self._texts[key]


def pack(state: State) -> bytes:
    """Everything that ``state`` says; :class:`CannotPack` where something in it has no form here."""
    accounts = state.accounts
    writer = _Writer(accounts.runs.once if isinstance(accounts.runs, Lazy) else ())
    pieces: list[bytes] = []
    runs, books = [], []
    for name, run in _items(accounts.runs):
        piece = run if isinstance(run, bytes) else _text(writer.plain(run))
        runs.append([name, len(piece)])
        pieces.append(piece)
    for key, book in _items(accounts.books):
        piece = book if isinstance(book, bytes) else _text(_book(accounts, book, writer))
        party, dataset, unit = key
        books.append([party, dataset, unit.value, len(piece)])
        pieces.append(piece)
    about = {
        "state": {
            name: writer.plain(value)
            for name, value in vars(state).items()
            if name not in REMADE and name != "accounts"
        },
        "accounts": {name: writer.plain(value) for name, value in vars(accounts).items() if name not in APART},
        "names": [[*key, name] for key, name in accounts._names.items()],
        "runs": runs,
        "books": books,
        "once": writer.once,
    }
    return b"\n".join((_text(about), b"".join(pieces)))


def _items(mapping: dict[K, V] | Lazy[K, V]) -> Iterator[tuple[K, V | bytes]]:
    """Values, or the text of those that were not read since they were unpacked."""
    for key in mapping:
        unread = mapping.unread(key) if isinstance(mapping, Lazy) else None
        yield key, mapping[key] if unread is None else unread


def _book(accounts: Accounts, book: BookState, writer: _Writer) -> Any:
    """A book's fields; what runs have charged to it belongs to the runs, so their names stand for it."""
    for run, share in book.charged.items():
        if accounts.runs[run].shares.get((book.party, book.unit)) is not share:
            raise CannotPack(f"{book.party!r} has a charge of run {run!r} that is not the run's own")
    return [
        list(book.charged) if field == "charged" else writer.plain(getattr(book, field)) for field in _fields(BookState)
    ]


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


# ------------------------------------------------------------------------------------------------ reading


@final
class _Reader:
    """One unpacking; what was written down once is built once."""

    def __init__(self, once: list[Any]) -> None:
        self._texts = once
        self._built: dict[int, Any] = {}

    def value(self, text: Any) -> Any:
        """What :meth:`_Writer.plain` wrote."""
        if type(text) is not list:
            return text
        tag = text[0]
        if tag == "r":
            place = text[1]
            if place not in self._built:
                self._built[place] = self.value(self._texts[place])
            return self._built[place]
        if tag == "t":
            return tuple(map(self.value, text[1:]))
        if tag == "d":
            return {self.value(key): self.value(item) for key, item in text[1:]}
        if tag == "s":
            return set(map(self.value, text[1:]))
        if tag == "e":
            return _ENUMS[text[1]](text[2])
        if tag == "o":
            return self._object(text[1], text[2:])
        if tag == "l":
            return list(map(self.value, text[1:]))
        if tag == "z":
            return frozenset(map(self.value, text[1:]))
        if tag == "v":
            return from_dict(text[1])
        if tag == "f":
            return float(text[1])
        raise CannotPack(f"{tag!r} begins no value")

    def _object(self, name: str, texts: list[Any]) -> Any:
        if name in _VALUES:
            return _VALUES[name](**dict(zip(_fields(_VALUES[name]), map(self.value, texts), strict=True)))
        return self.fill(_OBJECTS[name], map(self.value, texts))

    @staticmethod
    def fill(cls: type[V], values: Iterable[Any]) -> V:
        """An object of a class with slots, as it was."""
        made = cls.__new__(cls)
        for field, value in zip(_fields(cls), values, strict=True):
            setattr(made, field, value)
        return made


def unpack(data: bytes) -> State:
    """The state that :func:`pack` wrote, its key left out. For data that was signed under the same :func:`layout`."""
    end = data.index(b"\n")
    about = json.loads(data[:end])
    reader = _Reader(about["once"])
    state = State()
    for name, text in about["state"].items():
        setattr(state, name, reader.value(text))
    accounts = state.accounts
    for name, text in about["accounts"].items():
        setattr(accounts, name, reader.value(text))
    accounts._names = {tuple(line[:-1]): line[-1] for line in about["names"]}
    place = end + 1
    runs: dict[str, tuple[int, int]] = {}
    for name, length in about["runs"]:
        runs[name] = place, (place := place + length)
    books: dict[tuple[str, str, PrivacyUnit], tuple[int, int]] = {}
    units = {unit.value: unit for unit in PrivacyUnit}
    for party, dataset, unit, length in about["books"]:
        books[party, dataset, units[unit]] = place, (place := place + length)
    if place != len(data):
        raise CannotPack("the pieces are not as long as their table says")

    def read_run(_: str, text: bytes) -> RunState:
        found: RunState = reader.value(json.loads(text))
        return found

    def read_book(key: tuple[str, str, PrivacyUnit], text: bytes) -> BookState:
        account = key[0], key[2]
        fields = zip(_fields(BookState), json.loads(text), strict=True)
        return reader.fill(
            BookState,
            [
                {run: accounts.runs[run].shares[account] for run in part} if name == "charged" else reader.value(part)
                for name, part in fields
            ],
        )

    accounts.runs = Lazy(runs, data, read_run, once=about["once"])
    accounts.books = Lazy(books, data, read_book)
    return state


# ------------------------------------------------------------------------------------------------ lazy


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
        """What the pieces refer to, for the next packing."""

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
        """The text of a value that was not read; None where it was read, or was added."""
        found = self._there[key]
        return self._data[found[0] : found[1]] if type(found) is tuple else None
