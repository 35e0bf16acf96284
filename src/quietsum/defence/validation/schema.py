"""What a site's operator states about his table: columns, keys, labels, and what counts as unusual.

A schema is a statement, made from what is known about the data before it is looked at: ages lie in 0 … 120 in any
the rows say. It stays at the site. Bounds that were read off protected rows and are then published, in a paper or a
task's code, are a release of those rows that nothing charged.

Rows may be mended by rules that look at one row and at public constants (:class:`Cleaning`), and by no others: with a
rule that compares rows, one record decides what becomes of the next, and the privacy of training on what is left is
not what was accounted for (rule 7 of honest accounting).
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, final

from quietsum.errors import InvalidParameter
from quietsum.validate import finite_number, positive, probability, whole_number

__all__ = [
    "KINDS",
    "MISSING",
    "Cleaning",
    "FileFormat",
    "Label",
    "Outliers",
    "RowRules",
    "Schema",
    "SchemaColumn",
    "day",
]

KINDS = ("number", "integer", "text", "date")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")
MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?")
"""Words that stand for no value, if a schema names no others."""
WHENS, ACTS = ("missing", "unreadable", "outside"), ("drop", "fill", "clamp")
LARGEST_WHOLE = 2**53

Bound = float | int | datetime.date | None


def day(value: datetime.date) -> float:
    """A date or a time as days since year 1, the scale on which dates are compared; times with a zone as UTC.

    >>> day(datetime.datetime(2026, 1, 1, 12)) - day(datetime.date(2026, 1, 1))
    0.5
    """
    if not isinstance(value, datetime.datetime):
        return float(value.toordinal())
    shift = value.utcoffset() or datetime.timedelta(0)
    clock = value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6
    return value.toordinal() + (clock - shift.total_seconds()) / 86400


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SchemaColumn:
    """One column. ``missing`` is the largest share of rows without a value; ``usual`` are bounds beyond which a value
    counts as an outlier, declared instead of computed."""

    name: str
    type: str = "number"
    min: Bound = None
    max: Bound = None
    allowed: tuple[Any, ...] = ()
    missing: float = 0.0
    usual: tuple[float, float] | None = None
    format: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidParameter("name", self.name, "names no column", "write the name in the table's header")
        if self.type not in KINDS:
            raise InvalidParameter("type", self.type, "is unknown", f"choose {', '.join(KINDS)}")
        object.__setattr__(self, "allowed", tuple(self.allowed))
        probability("missing", self.missing, "the largest share of rows without a value: 0 for none, 1 for any")
        if self.type == "text" and (self.min is not None or self.max is not None or self.usual is not None):
            raise InvalidParameter("min", self.name, "bounds a text", "use allowed, or another type")
        if self.format and self.type != "date":
            raise InvalidParameter("format", self.format, "means nothing here", 'it is for type = "date"')
        for bound in ("min", "max"):
            self._check_bound(bound, getattr(self, bound))
        low, high = self.bounds
        if low > high:
            raise InvalidParameter("min", self.min, f"is above max = {self.max}", "exchange them")
        if self.usual is not None:
            object.__setattr__(self, "usual", _interval("usual", self.usual))
        self._check_allowed()

    def _check_bound(self, name: str, value: Bound) -> None:
        if value is None:
            return
        if self.type == "date" and not isinstance(value, datetime.date):
            raise InvalidParameter(name, value, "is no date", "write it without quotes: 2026-01-31")
        if self.type != "date":
            finite_number(name, value, "a number")

    def _check_allowed(self) -> None:
        for value in self.allowed:
            if self.type == "date":
                raise InvalidParameter("allowed", self.name, "lists dates", "use min and max")
            if self.type == "text" and not isinstance(value, str):
                raise InvalidParameter("allowed", value, "is no text", 'a text in quotes, or type = "number"')
            if self.type in ("number", "integer"):
                finite_number("allowed", value, 'a number, or type = "text"')

    @property
    def bounds(self) -> tuple[float, float]:
        """``min`` and ``max`` on the scale of the column's numbers."""
        low, high = (_to_number(value) for value in (self.min, self.max))
        return (-math.inf if low is None else low), (math.inf if high is None else high)


def _to_number(value: Bound) -> float | None:
    if value is None:
        return None
    return day(value) if isinstance(value, datetime.date) else float(value)


def _interval(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidParameter(name, value, "is no interval", "write two numbers: [0, 120]")
    low, high = (finite_number(name, one, "two numbers: [0, 120]") for one in value)
    if low > high:
        raise InvalidParameter(name, list(value), "is empty", "write the smaller number first")
    return low, high


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FileFormat:
    """How a text file is written."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True
    missing: tuple[str, ...] = MISSING
    other_columns: str = "refuse"

    def __post_init__(self) -> None:
        object.__setattr__(self, "missing", tuple(self.missing))
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n\0 ':
            raise InvalidParameter("delimiter", self.delimiter, "separates nothing", 'one letter: ",", ";" or "\\t"')
        if self.decimal not in (".", ",") or self.decimal == self.delimiter:
            raise InvalidParameter("decimal", self.decimal, "is no decimal mark here", '"." or ",", not the delimiter')
        if self.encoding not in ENCODINGS:
            raise InvalidParameter("encoding", self.encoding, "is unknown", f"choose {', '.join(ENCODINGS)}")
        if self.other_columns not in ("refuse", "ignore"):
            raise InvalidParameter("other_columns", self.other_columns, "is unknown", "choose refuse or ignore")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRules:
    """The table's rows: how many, how many may repeat an earlier one exactly (a share), and which columns are keys."""

    least: int = 1
    most: int | None = None
    duplicates: float = 0.0
    keys: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        whole_number("least", self.least)
        if self.most is not None and whole_number("most", self.most, 1) < self.least:
            raise InvalidParameter("most", self.most, f"is below least = {self.least}", "exchange them")
        probability("duplicates", self.duplicates, "the largest share of repeated rows: 0 for none, 1 for any")
        keys = tuple((key,) if isinstance(key, str) else tuple(key) for key in self.keys)
        object.__setattr__(self, "keys", keys)
        for key in keys:
            if not key or not all(isinstance(name, str) for name in key):
                raise InvalidParameter("keys", list(key), "names no columns", 'write ["id"] or [["card", "time"]]')


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Label:
    """What is learned: the declared classes, and the share of the rows that each may have.

    ``least`` and ``most`` bind every class; ``shares`` gives single classes bounds of their own. No classes: the label
    is a number, and nothing is balanced. ``disagreement`` is the share of a class that a simple model is expected to
    label otherwise (:mod:`.labels`).
    """

    column: str
    classes: tuple[Any, ...] = ()
    least: float = 0.0
    most: float = 1.0
    shares: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    disagreement: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        if self.disagreement is not None:
            probability("disagreement", self.disagreement, "the share of a class that a simple model labels otherwise")
        names = [str(one) for one in self.classes]
        if len(set(names)) != len(names):
            raise InvalidParameter("classes", names, "repeat", "name each class once")
        if probability("least", self.least) > probability("most", self.most):
            raise InvalidParameter("least", self.least, f"is above most = {self.most}", "exchange them")
        if self.least * len(self.classes) > 1:
            problem = f"cannot hold for {len(self.classes)} classes"
            raise InvalidParameter("least", self.least, problem, f"at most {1 / len(self.classes):.3g}")
        found = {}
        for name, share in self.shares.items():
            if name not in names:
                raise InvalidParameter("shares", name, "is no declared class", f"choose among {', '.join(names)}")
            low, high = _interval(f"shares.{name}", share)
            found[name] = probability(f"shares.{name}", low), probability(f"shares.{name}", high)
        object.__setattr__(self, "shares", found)

    def bounds(self, name: str) -> tuple[float, float]:
        """The least and the largest share of the class called ``name``."""
        return self.shares.get(name, (self.least, self.most))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Outliers:
    """What counts as unusual where a column declares no ``usual`` bounds: a robust z beyond ``threshold``, or nothing.

    A column with more than a share ``most`` of outliers does not fit; without ``most`` outliers are reported and refuse
    nothing.
    """

    rule: str = "robust-z"
    threshold: float = 6.0
    most: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in ("robust-z", "none"):
            raise InvalidParameter("rule", self.rule, "is unknown", "choose robust-z or none")
        positive("threshold", self.threshold, "6 marks two values in a billion of a normal column")
        if self.most is not None:
            probability("most", self.most, "the largest share of outlying values in a column")


_COMPARES_ROWS = {
    "outlier": "an outlier is one among other rows: whether a record stays would depend on the others, and nothing "
    "charges that (rule 7)",
    "duplicate": "which of two equal rows stays depends on the other one, and nothing charges that (rule 7)",
}
_MEANT = {"outliers": "outlier", "robust-z": "outlier", "duplicates": "duplicate", "duplicated": "duplicate"}


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Cleaning:
    """A rule that mends or leaves out a row by its own values and public constants.

    ``when`` a value of ``column`` is missing, unreadable (not of its type) or outside ``bounds``: ``drop`` the row,
    ``fill`` in a ``constant``, or ``clamp`` it to the bounds.

    Guarantees: what becomes of a row depends on that row and on this rule. Rules that compare rows are refused.

    >>> Cleaning(column="age", when="outlier", do="drop")
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: when = 'outlier' compares rows: an outlier is one among other rows: whether a \
record stays would depend on the others, and nothing charges that (rule 7); say when = "outside" with public bounds
    """

    column: str
    when: str
    do: str
    bounds: tuple[float, float] | None = None
    constant: Any = None

    def __post_init__(self) -> None:
        meant = _MEANT.get(self.when, self.when)
        if meant in _COMPARES_ROWS:
            instead = 'say when = "outside" with public bounds' if meant == "outlier" else "mend the table itself"
            raise InvalidParameter("when", self.when, f"compares rows: {_COMPARES_ROWS[meant]}", instead)
        if self.when not in WHENS:
            raise InvalidParameter("when", self.when, "is unknown", f"choose {', '.join(WHENS)}")
        if self.constant in ("mean", "median", "mode"):
            problem = "is computed from other rows, and nothing charges that (rule 7)"
            raise InvalidParameter("constant", self.constant, problem, "write a public number")
        if self.do not in ACTS:
            raise InvalidParameter("do", self.do, "is unknown", f"choose {', '.join(ACTS)}")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _interval("bounds", self.bounds))
        if (self.when == "outside") != (self.bounds is not None):
            problem = "needs bounds" if self.when == "outside" else "has no use for bounds"
            raise InvalidParameter("when", self.when, problem, 'when = "outside" goes with bounds = [0, 120]')
        if self.do == "clamp" and self.when != "outside":
            raise InvalidParameter("do", self.do, f"clamps nothing when {self.when}", "choose drop or fill")
        if (self.do == "fill") != (self.constant is not None):
            problem = "has no constant" if self.do == "fill" else "fills nothing in"
            raise InvalidParameter("do", self.do, problem, 'do = "fill" goes with constant = 54')


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Schema:
    """All of it. ``reviewed``: the operator has read it, and put what he knows in place of what was read off rows."""

    columns: tuple[SchemaColumn, ...]
    reviewed: bool = True
    file: FileFormat = dataclasses.field(default_factory=FileFormat)
    rows: RowRules = dataclasses.field(default_factory=RowRules)
    label: Label | None = None
    outliers: Outliers = dataclasses.field(default_factory=Outliers)
    cleaning: tuple[Cleaning, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "cleaning", tuple(self.cleaning))
        names = [column.name for column in self.columns]
        if not names:
            raise InvalidParameter("columns", "[]", "describes nothing", 'columns = [{ name = "age" }]')
        for name, count in Counter(names).items():
            if count > 1:
                raise InvalidParameter("columns", name, "is described twice", "once is enough")
        used = [("rows.keys", name) for key in self.rows.keys for name in key]
        used += [("label.column", self.label.column)] if self.label is not None else []
        used += [(f"cleaning[{place}].column", rule.column) for place, rule in enumerate(self.cleaning)]
        for where, name in used:
            if name not in names:
                raise InvalidParameter(where, name, "is no column of the schema", _nearest(name, names))
        if self.label is not None:
            self._check_classes(self.label)
        for place, rule in enumerate(self.cleaning):
            self._check_rule(f"cleaning[{place}]", rule)

    def _check_classes(self, label: Label) -> None:
        kind = self.column(label.column).type
        if kind == "date" and label.classes:
            raise InvalidParameter("label.classes", label.column, "is a date", "name a column of texts or numbers")
        for name in label.classes:
            if isinstance(name, str) != (kind == "text"):
                wanted = "a text in quotes" if kind == "text" else "a number"
                raise InvalidParameter("label.classes", name, f"is not {wanted}, as column {label.column} is", wanted)
            if not isinstance(name, str):
                finite_number("label.classes", name, "a finite number")

    def _check_rule(self, where: str, rule: Cleaning) -> None:
        text = self.column(rule.column).type == "text"
        if text and rule.when != "missing":
            raise InvalidParameter(f"{where}.when", rule.when, "means nothing for a text", 'when = "missing"')
        if rule.constant is None:
            return
        if isinstance(rule.constant, str) != text:
            problem = f"is not {'a text' if text else 'a number'}, as column {rule.column} is"
            raise InvalidParameter(
                f"{where}.constant", rule.constant, problem, "a text in quotes" if text else "a number"
            )
        if not text:
            finite_number(f"{where}.constant", rule.constant, "a public number")

    def column(self, name: str) -> SchemaColumn:
        """The column called ``name``."""
        return next(column for column in self.columns if column.name == name)


def _nearest(name: str, names: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names[:20])}"
