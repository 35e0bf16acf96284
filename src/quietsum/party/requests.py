"""A coordinator's request at a site: what it names, and how it is refused.

**What a refusal may reveal.** The coordinator is sent what is wrong with its plan or its letter, and which line of the
policy forbids it (:func:`refuse_on`). It is not sent why the site's books object: what was spent, in which run and
under which budget, stays in the site's own log (:func:`refuse_privately`). Neither is it sent how work failed, since
that may depend on data (:func:`describe_failure`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np

from quietsum.errors import BudgetExhausted, InvalidParameter, LedgerBroken, PlanUnderstates, QuietsumError
from quietsum.ledger import StoreFailed, label
from quietsum.party.books import name_in_books
from quietsum.party.secure import AttemptKey
from quietsum.party.work import AnsweredBefore, NotTouched, TooLate

if TYPE_CHECKING:
    from quietsum.plan import ResolvedPlan
    from quietsum.wire import Letter

__all__ = [
    "AGAIN",
    "NOT_BOOKED",
    "NOT_WRITTEN",
    "RequestRefused",
    "check_request",
    "describe_failure",
    "read_hash",
    "read_key",
    "read_params",
    "read_run",
    "refuse_on",
    "refuse_privately",
]

log = logging.getLogger(__name__)

AGAIN = "this attempt, or a later one, was answered before"
NOT_BOOKED = "its books do not take this plan"
NOT_WRITTEN = "its ledger could not be written"
_MOST_ROUNDS = 2**31 - 1


@final
class RequestRefused(QuietsumError):
    """The site refuses a request and has not touched its data.

    ``for_good``: the same request can never be taken. ``aside`` is for the site's own log. ``spent``: a budget does not
    suffice.
    """

    def __init__(self, reason: str, *, for_good: bool = False, aside: str = "", spent: bool = False) -> None:
        super().__init__(reason)
        self.for_good, self.aside, self.spent = for_good, aside, spent


@contextlib.contextmanager
def refuse_on(*kinds: type[QuietsumError]) -> Iterator[None]:
    """Raises :class:`RequestRefused` with the same words if an error of ``kinds`` is raised inside.

    A refusal, and trouble with the site's own ledger, pass through as they are.
    """
    try:
        yield
    except (RequestRefused, LedgerBroken, StoreFailed):
        raise
    except kinds as error:
        raise RequestRefused(str(error), spent=isinstance(error, BudgetExhausted)) from None


@contextlib.contextmanager
def refuse_privately(about: str) -> Iterator[None]:
    """Raises :class:`RequestRefused` with a general sentence if the books object; their words go to the site's log."""
    try:
        yield
    except (LedgerBroken, StoreFailed):
        raise
    except QuietsumError as error:
        log.warning("%s: %s", about, error)
        match error:
            case BudgetExhausted():
                raise RequestRefused("its budget does not allow this plan", spent=True) from None
            case PlanUnderstates():
                raise RequestRefused("the plan costs more than it states") from None
        raise RequestRefused(NOT_BOOKED) from None


def describe_failure(error: BaseException) -> str:
    """All that a coordinator is sent about work that failed."""
    match error:
        case AnsweredBefore():
            return AGAIN
        case TooLate():
            return "it had not finished by the deadline"
        case NotTouched():
            return "it has no data"
    return "its work failed"  # how, may depend on data


def read_run(letter: Letter) -> str:
    """The run that a request names."""
    try:
        run = label("run", letter.body.get("run"))
        name_in_books(run, letter.sender.ledger)  # which is longer
        return run
    except InvalidParameter:
        raise RequestRefused("the message names no run") from None


def _read_count(letter: Letter, name: str) -> int:
    """The round or the attempt that a request names, from 1 on."""
    value = letter.body.get(name)
    if type(value) is not int or not 1 <= value <= _MOST_ROUNDS:
        raise RequestRefused(f"the message names no {name}")
    return value


def read_key(letter: Letter) -> AttemptKey:
    """The run, round and attempt that a request names."""
    return read_run(letter), _read_count(letter, "round"), _read_count(letter, "attempt")


def read_hash(letter: Letter, name: str) -> str:
    """The field ``name`` of a request: 32 bytes in hexadecimal."""
    value = letter.body.get(name)
    if not isinstance(value, str) or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise RequestRefused(f"the message names no {name}", for_good=True)
    return value


def read_params(letter: Letter, resolved: ResolvedPlan) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The model that a request carries, of the plan's dimension."""
    params = letter.vector
    if params is None or params.shape != (resolved.dimension,) or not np.isfinite(params).all():
        problem = f"the model that came is not {resolved.dimension} finite numbers"
        raise RequestRefused(problem, for_good=True)
    return params


def check_request(letter: Letter, resolved: ResolvedPlan, number: int) -> None:
    """Raises :class:`RequestRefused` unless the request is about one of the rounds of ``resolved``."""
    if letter.body.get("plan") != resolved.plan.digest:
        problem = "the request belongs to another plan than the one that this site has enrolled with"
        raise RequestRefused(problem, for_good=True)
    if number > resolved.plan.federation.rounds:
        problem = f"the plan has {resolved.plan.federation.rounds} rounds, this is round {number}"
        raise RequestRefused(problem, for_good=True)
