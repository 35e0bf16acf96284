"""What an answer may be. A domain is public: it is declared before anybody answers, never read off the answers.

>>> Categories(labels=("yes", "no")).places(["no", "yes", "yes"]).tolist()
[1, 0, 0]
>>> Bins(edges=(0, 18, 65, 120)).places([17.5, 18, 120]).tolist()
[0, 1, 2]
>>> Interval(low=0, high=200).scale([0, 50, 200]).tolist()
[-1.0, -0.5, 1.0]
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quietsum.errors import InvalidParameter, Unreadable
from quietsum.validate import finite_number, positive, whole_number

__all__ = ["Ball", "Bins", "Categories", "Domain", "Interval", "categories", "domain_from_dict"]

MOST_LABELS = 1 << 20
MOST_COORDINATES = 1 << 22
LARGEST = 1e100  # of a bound
_NO_LABEL = re.compile("[\r\n\x00\ud800-\udfff]")  # lines of their own, and halves of letters, which no file can hold
_OUTSIDE = "declare a domain that holds every answer people may give, 'other' included"


class Unfit(InvalidParameter):
    """An answer outside the declared domain. ``row`` counts from 0; the answer itself is not quoted."""

    def __init__(self, row: int, problem: str, remedy: str) -> None:
        super().__init__("answer", row, problem, remedy)
        self.row = row
        self.args = (f"answer {row + 1:,} {problem}; {remedy}",)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.row, self.problem, self.remedy)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Categories:
    """A list of different answers, in a fixed order."""

    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        labels = tuple(self.labels)
        if not 2 <= len(labels) <= MOST_LABELS:
            named = ", ".join(str(label) for label in labels[:3])
            problem = f"names {len(labels):,} and not between 2 and {MOST_LABELS:,} answers"
            raise InvalidParameter("domain", named, problem, "name them all")
        if not all(isinstance(label, str) for label in labels):
            raise InvalidParameter("domain", "", "holds something that is no text", "name every answer")
        if len(set(labels)) != len(labels):
            twice = next(label for label, count in collections.Counter(labels).items() if count > 1)
            raise InvalidParameter("domain", twice, "is named twice", "name each answer once")
        if bad := next((label for label in labels if _NO_LABEL.search(label)), None):
            raise InvalidParameter("domain", bad, "is no text of one line", "name answers in one line each")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "_index", {label: place for place, label in enumerate(labels)})
        object.__setattr__(self, "_counted", all(label == str(place) for place, label in enumerate(labels)))

    @property
    def size(self) -> int:
        """How many answers there are."""
        return len(self.labels)

    def places(self, values: ArrayLike | Iterable[Any]) -> NDArray[np.int64]:
        """Where each of ``values`` stands in the list; whole numbers may stand for themselves in a counted domain."""
        counted: bool = self._counted  # type: ignore[attr-defined]
        if counted and isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1:
            outside = np.flatnonzero((values < 0) | (values >= self.size))
            if outside.size:
                raise Unfit(int(outside[0]), "is not in the domain", _OUTSIDE)
            return values.astype(np.int64)
        index: dict[str, int] = self._index  # type: ignore[attr-defined]
        listed = values.tolist() if isinstance(values, np.ndarray) else list(values)  # type: ignore[arg-type]
        found = [index.get(value if isinstance(value, str) else str(value), -1) for value in listed]
        places = np.array(found, dtype=np.int64)
        if places.size and places.min() < 0:
            raise Unfit(int(np.argmin(places)), "is not in the domain", _OUTSIDE)
        return places

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values, with the digest."""
        return {"kind": "categories", "labels": list(self.labels), "digest": _digest("categories", list(self.labels))}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Bins:
    """Numbers by public edges: [e₀, e₁), …, and the last bin with its upper edge."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        edges = tuple(finite_number("edges", edge) for edge in self.edges)
        if len(edges) > MOST_LABELS + 1:
            raise InvalidParameter("edges", len(edges) - 1, f"are more than {MOST_LABELS:,} bins", "use fewer")
        if len(edges) < 3 or any(low >= high for low, high in itertools.pairwise(edges)):
            raise InvalidParameter("edges", edges, "are not three or more rising numbers", "for instance 0,18,65,120")
        object.__setattr__(self, "edges", edges)

    @property
    def labels(self) -> tuple[str, ...]:
        """The bins in words."""
        pairs = list(itertools.pairwise(self.edges))
        last = len(pairs) - 1
        return tuple(f"{low:g} to {'under ' if k < last else ''}{high:g}" for k, (low, high) in enumerate(pairs))

    @property
    def size(self) -> int:
        """How many bins there are."""
        return len(self.edges) - 1

    def places(self, values: ArrayLike | Iterable[Any]) -> NDArray[np.int64]:
        """The bin of each number."""
        numbers = _numbers(values, self.edges[0], self.edges[-1])
        found = np.searchsorted(np.array(self.edges), numbers, side="right") - 1
        return np.minimum(found, self.size - 1).astype(np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values, with the digest."""
        return {"kind": "bins", "edges": list(self.edges), "digest": _digest("bins", list(self.edges))}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Interval:
    """Numbers between two public bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        low, high = finite_number("low", self.low), finite_number("high", self.high)
        if not low < high or not math.isfinite(high - low):
            raise InvalidParameter("high", high, f"is not above low = {low!r}", "give the lower bound first")
        if max(abs(low), abs(high)) > LARGEST:
            problem = f"or low goes beyond {LARGEST:g}, where the square of an error is no number any more"
            raise InvalidParameter("high", high, problem, "state numbers in a larger unit")
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def scale(self, values: ArrayLike | Iterable[Any]) -> NDArray[np.float64]:
        """Numbers on the scale from −1 to 1."""
        numbers = _numbers(values, self.low, self.high)
        middle, half = self.low / 2 + self.high / 2, self.high / 2 - self.low / 2
        return np.clip((numbers - middle) / half, -1.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values, with the digest."""
        return {
            "kind": "interval", "low": self.low, "high": self.high, "digest": _digest("interval", [self.low, self.high])
        }  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ball:
    """Vectors of a public dimension whose L2 norm is at most ``radius``."""

    dimension: int
    radius: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", whole_number("dimension", self.dimension, 1))
        if self.dimension > MOST_COORDINATES:
            raise InvalidParameter("dimension", self.dimension, "is too large", f"use at most {MOST_COORDINATES:,}")
        object.__setattr__(self, "radius", positive("radius", self.radius))
        if self.radius > LARGEST:
            raise InvalidParameter("radius", self.radius, f"goes beyond {LARGEST:g}", "use a larger unit")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready values, with the digest."""
        return {
            "kind": "ball", "dimension": self.dimension, "radius": self.radius,
            "digest": _digest("ball", [self.dimension, self.radius]),
        }  # fmt: skip


Domain: TypeAlias = Categories | Bins | Interval | Ball


def categories(domain: int | Sequence[str] | Categories | Bins) -> Categories | Bins:
    """A list of answers; a number d stands for the answers 0 … d − 1."""
    if isinstance(domain, Categories | Bins):
        return domain
    if isinstance(domain, str):
        raise InvalidParameter("domain", domain, "is one text", "pass a list of answers")
    if isinstance(domain, Sequence):
        return Categories(labels=tuple(domain))
    size = whole_number("domain", domain, 2, "how many answers there are, or the answers themselves")
    if size > MOST_LABELS:
        raise InvalidParameter("domain", size, f"is more than {MOST_LABELS:,} answers", "use fewer, or bins")
    return Categories(labels=tuple(str(place) for place in range(size)))


def domain_from_dict(values: object) -> Domain:
    """The domain in a header. Raises :class:`Unreadable` where it is none, or not the one its digest names."""
    try:
        if not isinstance(values, Mapping):
            raise TypeError
        kind = values["kind"]
        domain: Domain
        if kind == "categories" and isinstance(values["labels"], list):
            domain = Categories(labels=tuple(values["labels"]))
        elif kind == "bins" and isinstance(values["edges"], list):
            domain = Bins(edges=tuple(values["edges"]))
        elif kind == "interval":
            domain = Interval(low=values["low"], high=values["high"])
        elif kind == "ball":
            domain = Ball(dimension=values["dimension"], radius=values["radius"])
        else:
            raise TypeError
    except (KeyError, TypeError, InvalidParameter):
        raise Unreadable("the header of the reports names no domain; ask for the file again") from None
    if domain.to_dict() != dict(values):
        raise Unreadable("the header's domain is not the one that its digest names; ask for the file again")
    return domain


def _digest(kind: str, values: list[Any]) -> str:
    return hashlib.sha256(json.dumps([kind, values], ensure_ascii=True).encode()).hexdigest()


def _numbers(values: ArrayLike | Iterable[Any], low: float, high: float) -> NDArray[np.float64]:
    listed = values if isinstance(values, np.ndarray) else list(values)  # type: ignore[arg-type]
    try:
        numbers = np.asarray(listed, dtype=np.float64)
    except (TypeError, ValueError):
        row = next(place for place, value in enumerate(listed) if not _is_number(value))
        raise Unfit(row, "is not a number", "a domain of numbers needs numbers") from None
    if numbers.ndim != 1:
        raise InvalidParameter("values", numbers.shape, "is not a list of numbers", "pass one number for each person")
    bad = np.flatnonzero(~np.isfinite(numbers))
    if bad.size:
        raise Unfit(int(bad[0]), "is not a finite number", "leave it out, or give it a value of its own")
    bad = np.flatnonzero((numbers < low) | (numbers > high))
    if bad.size:
        raise Unfit(int(bad[0]), f"lies outside {low:g} to {high:g}", "declare wider bounds, or clip to them")
    return numbers


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return True
