"""What a look at a site's data found: for the eyes of the site's operator.

A problem says which check, which column of the schema, how many rows and the first line numbers. Values of rows stand
in :attr:`Problem.examples` alone, which only a terminal shows: they are in no message, no ``repr``, no dictionary and
no pickle, because all of these end up in logs.

>>> found = Problem(check="range", column="age", message="is above 120", count=1, lines=(17,), examples=("700",))
>>> found
Problem(check='range', column='age', message='is above 120', count=1, lines=(17,), severity='error', remedy='')
>>> Result(problems=(found,), counts={"rows": 300}).summary
'range in age'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from quietsum.errors import DataUnfit

__all__ = ["MOST_SHOWN", "Problem", "Result"]

MOST_SHOWN = 5
"""Line numbers and examples of a problem."""
ERROR, WARNING = "error", "warning"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One kind of problem in one column, or in the table where ``column`` is empty.

    ``lines`` are the first of the ``count`` rows concerned: lines of a text file, else row numbers from 0. A
    ``warning`` informs and refuses nothing.

    Guarantees: ``message`` and ``remedy`` hold words of the schema and numbers of rows, never a value of a row.
    """

    check: str
    column: str = ""
    message: str
    count: int = 0
    lines: tuple[int, ...] = ()
    severity: str = ERROR
    remedy: str = ""
    examples: tuple[str, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Plain values without examples."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**{name: value for name, value in found.items() if name != "examples"}, "lines": list(self.lines)}


def _rebuilt(values: dict[str, Any]) -> Problem:
    return Problem(**{**values, "lines": tuple(values["lines"])})


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """All problems, and what was counted on the way. Both are facts about protected rows: they stay at the site."""

    problems: tuple[Problem, ...]
    counts: Mapping[str, Any] = dataclasses.field(repr=False)
    unit: str = "line"

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems for which the data does not fit."""
        return tuple(problem for problem in self.problems if problem.severity == ERROR)

    @property
    def ok(self) -> bool:
        """Whether the data fits; warnings may remain."""
        return not self.errors

    @property
    def summary(self) -> str:
        """Which checks failed in which columns, in the schema's own words: for a site's log, which may travel."""
        told = dict.fromkeys(f"{one.check} in {one.column}" if one.column else one.check for one in self.errors)
        return ", ".join(list(told)[:10]) + (f" and {len(told) - 10} more" if len(told) > 10 else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain values; no value of a row."""
        return {"ok": self.ok, "problems": [one.to_dict() for one in self.problems], "counts": dict(self.counts)}

    def require(self, command: str = "quietsum data check") -> None:
        """:class:`~quietsum.errors.DataUnfit` where the data does not fit; ``command`` is what shows more of it."""
        if not self.ok:
            raise DataUnfit(f"the data does not fit its schema: {self.summary}; {command} says where, on a terminal")
