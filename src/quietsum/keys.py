"""Keys of TOML files, each declared once, as a field of a frozen value: type, bound, default and a sentence.

From a declaration follow the checks of the value itself, the reading of files (:mod:`quietsum.plan.text`), the JSON
Schema, the reference pages and what errors quote. A key without a sentence, of a type that no file holds, or with a
default outside its bound is refused with a ``TypeError`` when its class is made.

>>> @table
... class Throw:
...     "How a ball is thrown."
...     speed: float = key("Metres a second, at the start.", default=10.0, bound=POSITIVE)
>>> Throw(speed=4)
Throw(speed=4.0)
>>> Throw(speed=-1)
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: speed = -1 must be greater than 0; metres a second, at the start
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, dataclass_transform, final

from quietsum.errors import InvalidParameter
from quietsum.validate import choice, finite_number, flag, member, printable_name, whole_number

__all__ = [
    "ANY", "BELOW_ONE", "COUNT", "FILLED", "FRACTION", "NAME", "NAMES", "NON_NEGATIVE", "OPEN_FRACTION", "POSITIVE",
    "ROUNDS", "SHARE", "WORDS",
    "Bound", "Declaration", "Key", "at_default", "choices", "declarations", "key", "no_key", "settle",
    "shorten", "table", "whole",
]  # fmt: skip

_T = TypeVar("_T")


# ---------------------------------------------------------------------------------------------- declaring


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """What a key may hold, beside its type. Bounds of numbers and choices hold for each item of a list.

    ``shortest`` is the least length of a text, or of a list where the key is one, ``longest`` the largest of a list.
    ``named`` texts are printable and not blank. With ``single`` a list may be written as one word.
    """

    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    choices: tuple[str | int, ...] = ()
    shortest: int | None = None
    longest: int | None = None
    named: bool = False
    single: bool = False

    def problem(self, number: float) -> str:
        """What is wrong with ``number``, in words; "" if it is within the bound."""
        if self.above is not None and number <= self.above:
            return f"must be greater than {self.above:g}"
        if self.least is not None and number < self.least:
            return f"must be at least {self.least:,}"
        if self.below is not None and number >= self.below:
            return f"must be below {self.below:g}"
        return f"must be at most {self.most:,}" if self.most is not None and number > self.most else ""


ANY = Bound()
"""No bound."""
POSITIVE = Bound(above=0)
"""A number above 0."""
NON_NEGATIVE = Bound(least=0)
"""A number of 0 or more."""
SHARE = Bound(above=0, most=1)
"""(0, 1]: the rate of a draw."""
FRACTION = Bound(least=0, most=1)
"""[0, 1]."""
OPEN_FRACTION = Bound(above=0, below=1)
"""(0, 1): a δ."""
BELOW_ONE = Bound(least=0, below=1)
"""[0, 1): a decay."""
NAME = Bound(shortest=1, named=True)
"""One name that can be printed."""
NAMES = Bound(named=True)
"""Names that can be printed; there may be none."""
FILLED = Bound(shortest=1)
"""A text, or list, that is not empty."""
WORDS = Bound(single=True)
"""A word, or a list of words."""
ROUNDS = Bound(least=1, most=10**6)
"""A count of rounds; more are a slip of the pen."""
COUNT = Bound(least=1, most=10**9)
"""A count of steps, records or parties; more are a slip of the pen."""


def whole(least: int, most: int | None = None) -> Bound:
    """The bound of a count."""
    return Bound(least=least, most=most)


def choices(*words: str | int, single: bool = False) -> Bound:
    """One of some words."""
    return Bound(choices=words, single=single)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Key:
    """What is declared of a key beside its name, type and default.

    ``instead`` is what an error advises, the sentence if omitted. ``later`` keys came after plans were first written:
    at their default they are left out of files and digests. ``free`` tables are read as plain values, by their owner.
    """

    sentence: str
    bound: Bound = ANY
    instead: str = ""
    later: bool = False
    free: bool = False

    @property
    def remedy(self) -> str:
        """What an error advises."""
        return self.instead or shorten(self.sentence)


_KEY = "key"
_NO_KEY = types.MappingProxyType({_KEY: None})


def key(
    sentence: str,
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    bound: Bound = ANY,
    instead: str = "",
    later: bool = False,
    free: bool = False,
) -> Any:
    """A field that is a key, with the ``sentence`` that says what it means; it must be stated if it has no default."""
    about = {_KEY: Key(sentence=sentence, bound=bound, instead=instead, later=later, free=free)}
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=about)
    return dataclasses.field(default=default, metadata=about)


def no_key(*, default: Any = dataclasses.MISSING, default_factory: Any = dataclasses.MISSING) -> Any:
    """A field of a table's value that no file states."""
    if default_factory is not dataclasses.MISSING:
        return dataclasses.field(default_factory=default_factory, metadata=_NO_KEY)
    return dataclasses.field(default=default, metadata=_NO_KEY)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(key, no_key))
def table(kind: type[_T]) -> type[_T]:
    """Makes a class a frozen dataclass with keyword arguments, whose fields are keys and check themselves.

    Values are settled (:func:`settle`) before the class's own ``__post_init__`` runs. Raises ``TypeError`` for a bad
    declaration.
    """
    own = kind.__dict__.get("__post_init__")

    def prepare(self: Any) -> None:
        settle(self)
        if own is not None:
            own(self)

    kind.__post_init__ = prepare  # type: ignore[attr-defined]
    made: type[_T] = dataclasses.dataclass(frozen=True, kw_only=True)(kind)
    found = tuple(_declare(made))
    made.__keys__ = types.MappingProxyType({one.name: one for one in found})  # type: ignore[attr-defined]
    return made


# ------------------------------------------------------------------------------------ what was declared


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Declaration:
    """A key as declared: its ``name``, its Python ``type`` and its ``default``, MISSING if it must be stated."""

    name: str
    type: Any
    key: Key
    default: Any

    @property
    def required(self) -> bool:
        """Whether the key must be stated."""
        return self.default is dataclasses.MISSING


def declarations(kind: type[Any]) -> Mapping[str, Declaration]:
    """The keys of a table's class by name, in their order."""
    found: Mapping[str, Declaration] = kind.__keys__
    return found


def at_default(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether ``field`` is a later key at its default, which files and digests leave out."""
    declared = field.metadata.get(_KEY)
    return declared is not None and declared.later and value == field.default


def _declare(kind: type[Any]) -> Iterable[Declaration]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        where = f"{kind.__name__}.{field.name}"
        if _KEY not in field.metadata:
            raise TypeError(f"{where} has no sentence: declare it with key(...), or no_key(...)")
        declared: Key | None = field.metadata[_KEY]
        if declared is None:
            continue
        if len(declared.sentence.split()) < 2 or not declared.sentence.endswith("."):
            raise TypeError(f"{where} has no sentence: say what the key means, with a full stop")
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is not dataclasses.MISSING:
            try:
                _settle(hints[field.name], declared, field.name, default)
            except InvalidParameter as error:
                raise TypeError(f"{where} has a default outside its bound: {error}") from None
        yield Declaration(name=field.name, type=hints[field.name], key=declared, default=default)


# ---------------------------------------------------------------------------------------------- checking


def settle(value: Any) -> None:
    """Checks every key of ``value`` against its type and bound, and stores it in its type: 1 becomes 1.0 for a float.

    Raises :class:`~quietsum.errors.InvalidParameter` for the first that does not fit.
    """
    for one in declarations(type(value)).values():
        found = getattr(value, one.name)
        settled = _settle(one.type, one.key, one.name, found)
        if settled is not found:
            object.__setattr__(value, one.name, settled)


def _settle(kind: Any, declared: Key, name: str, value: Any) -> Any:
    """``value`` as ``kind``, within the bound of its key."""
    if declared.free or kind is Any:
        return value
    parts = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        if value is None and types.NoneType in parts:
            return None
        inner = [part for part in parts if part is not types.NoneType]
        number = isinstance(value, int) and int in inner
        return _settle(int if number else inner[0], declared, name, value)
    if typing.get_origin(kind) is tuple:
        return _settle_items(parts, declared, name, value)
    if typing.get_origin(kind) is Mapping:
        if isinstance(value, Mapping):
            return value
        raise InvalidParameter(name, value, "is not a table", "write it as { name = value }")
    return _SCALARS.get(kind, _settle_other)(kind, declared, name, value)


def _settle_items(parts: tuple[Any, ...], declared: Key, name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str) and declared.bound.single:
        value = (value,)
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise InvalidParameter(name, value, "is not a list", 'write it as ["first", "second"]')
    items = tuple(_settle(parts[0], declared, f"{name}[{at}]", item) for at, item in enumerate(value))
    if declared.bound.shortest is not None and len(items) < declared.bound.shortest:
        raise InvalidParameter(name, list(items), "has too few entries", declared.remedy)
    if declared.bound.longest is not None and len(items) > declared.bound.longest:
        raise InvalidParameter(name, list(items), "has too many entries", declared.remedy)
    return items


def _settle_float(kind: Any, declared: Key, name: str, value: Any) -> float:
    number = finite_number(name, value, declared.remedy) + 0.0  # −0.0 becomes 0.0, so that digests agree
    if problem := declared.bound.problem(number):
        raise InvalidParameter(name, value, problem, declared.remedy)
    return number


def _settle_int(kind: Any, declared: Key, name: str, value: Any) -> int:
    if declared.bound.choices:
        return int(choice(name, value, declared.bound.choices))
    least = -sys.maxsize if declared.bound.least is None else int(declared.bound.least)
    number = whole_number(name, value, least, declared.remedy)
    if problem := declared.bound.problem(number):
        raise InvalidParameter(name, value, problem, declared.remedy)
    return number


def _settle_bool(kind: Any, declared: Key, name: str, value: Any) -> bool:
    return flag(name, value)


def _settle_text(kind: Any, declared: Key, name: str, value: Any) -> str:
    if declared.bound.choices:
        return str(choice(name, value, declared.bound.choices))
    if declared.bound.named:
        return printable_name(name, value, declared.remedy)
    if not isinstance(value, str):
        raise InvalidParameter(name, value, "is not a text", declared.remedy)
    return value


def _settle_other(kind: Any, declared: Key, name: str, value: Any) -> Any:
    """A member of an enumeration, or a table of its own."""
    if issubclass(kind, enum.Enum):
        return member(name, value, kind)
    if not isinstance(value, kind):
        raise InvalidParameter(name, value, f"is no {kind.__name__}", f"pass {kind.__name__}(...)")
    return value


_SCALARS: dict[Any, Callable[[Any, Key, str, Any], Any]] = {
    float: _settle_float, int: _settle_int, bool: _settle_bool, str: _settle_text,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------- words


def shorten(sentence: str) -> str:
    """A sentence as the end of another one."""
    return sentence[:1].lower() + sentence[1:].rstrip(".")
