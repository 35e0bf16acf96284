"""Errors that teach: what was wrong, why it matters, and what to do instead.

Everything a user can get wrong raises a subclass of :class:`QuietsumError`. The command line turns
each of them into one sentence and an exit code; it never shows a traceback for a user's mistake.
"""

from __future__ import annotations

import errno
import re
from typing import Any, ClassVar

__all__ = [
    "BudgetExhausted",
    "CorruptState",
    "DataMissing",
    "DataUnfit",
    "InvalidParameter",
    "LedgerBroken",
    "MixedUnits",
    "PlanRefused",
    "QuietsumError",
    "TooFewParties",
    "UnsupportedEvent",
]


class QuietsumError(Exception):
    """The root of every error that quietsum raises on purpose.

    ``exit_code`` is what a command ends with: 1 for trouble that may pass (a full disk, a taken port, a peer that does
    not answer), so that starting again may help; 2 for usage and refused plans, 3 for an exhausted budget, 4 for a
    broken ledger or saved state, 5 for a claim that a self-check found false, 6 for too few parties.
    """

    exit_code: ClassVar[int] = 2


class InvalidParameter(QuietsumError, ValueError):
    """A value outside its domain. The message names the parameter, the value and the remedy.

    >>> raise InvalidParameter("sample_rate", 1.5, "must lie in [0, 1]", "use batch_size / dataset_size")
    Traceback (most recent call last):
    ...
    quietsum.errors.InvalidParameter: sample_rate = 1.5 must lie in [0, 1]; use batch_size / dataset_size
    """

    def __init__(self, parameter: str, value: object, problem: str, remedy: str = "") -> None:
        self.parameter = parameter
        self.value = value
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{parameter} = {value!r} {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.parameter, self.value, self.problem, self.remedy)


class UnsupportedEvent(QuietsumError, TypeError):
    """An accountant met an event it has no sound bound for. It refuses by name instead of guessing."""


class MixedUnits(QuietsumError, TypeError):
    """Guarantees about different units (records, people, clients) or relations met in one sum."""


class CorruptState(QuietsumError, ValueError):
    """A saved state that is not what was written: truncated, altered or of another version."""

    exit_code = 4


class Unreadable(CorruptState):
    """A key, certificate or roster that somebody was handed or typed, and that is not whole. Nothing was begun."""

    exit_code = 2


class DataMissing(QuietsumError):
    """Data is not where it should be. Raised before any record was read, so nothing was touched."""


class DataUnfit(QuietsumError):
    """A site's data does not fit what its operator has declared. Names checks and columns; no value, count or line."""


class BudgetExhausted(QuietsumError):
    """The next charge would exceed the budget. Nothing was released and nothing was charged."""

    exit_code = 3


class LedgerBroken(QuietsumError):
    """A ledger that is not what was written: altered, truncated, rolled back or unreadable.

    ``at`` is the sequence number of the first bad entry, None where the file as a whole is at fault.
    """

    exit_code = 4

    def __init__(self, problem: str, *, at: int | None = None, remedy: str = "") -> None:
        self.problem, self.at, self.remedy = problem, at, remedy
        where = "the ledger" if at is None else f"the ledger's entry {at}"
        super().__init__(f"{where} {problem}" + (f"; {remedy}" if remedy else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_broken, (self.problem, self.at, self.remedy)


def _rebuild_broken(problem: str, at: int | None, remedy: str) -> LedgerBroken:
    return LedgerBroken(problem, at=at, remedy=remedy)


class PlanRefused(QuietsumError, ValueError):
    """A plan that would break a promise or makes no sense. Nothing was started and nothing was charged.

    ``nearest`` are changes, by key of ``run.toml``, after each of which no refusal applies; None leaves a key out.
    """

    def __init__(self, message: str = "", *, nearest: tuple[dict[str, Any], ...] = ()) -> None:
        super().__init__(message)
        self.nearest = nearest


class PlanUnderstates(PlanRefused):
    """A plan that costs more than it says."""


class TooFewParties(QuietsumError):
    """Fewer parties replied than the plan needs. What was reserved stays charged."""

    exit_code = 6


CONTROLS = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # a control sequence: ESC [ … letter
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # a string for the terminal: title, clipboard, link
    r"|\x1b[ -/]*[0-~]?"  # any other escape
    r"|[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"  # single controls, and those that turn a line round
)
"""What a terminal obeys instead of showing it."""


def printable(text: str) -> str:
    """``text`` in one line, without anything that a terminal would obey; for titles and words that others choose.

    >>> printable("Heart\\x1b]0;owned\\x07 disease,\\x1b[8m four\\nhospitals")
    'Heart disease, four hospitals'
    """
    return " ".join(CONTROLS.sub(lambda found: " " if found[0].isspace() else "", text).split())


def may_pass(error: OSError) -> bool:
    """Whether the system's refusal may be over without anybody changing a word: a full disk, a port that is taken."""
    passing = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EMFILE, errno.ENFILE, errno.EADDRINUSE)
    return error.errno in passing
