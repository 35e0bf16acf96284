"""How a site says no: what may be told, and what stays in its own log.

A coordinator hears what is wrong with its plan or its message, and which line of the policy forbids it. It does not
hear why the site's books object: what was spent, with whom and under which budget, is the site's own business. Nor how
work failed, since that may depend on data.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, final

from quietsum.errors import BudgetExhausted, LedgerBroken, PlanRefused, PlanUnderstates, QuietsumError
from quietsum.ledger import StoreFailed
from quietsum.party.work import AnsweredBefore, NotTouched, TooLate
from quietsum.privacy import PrivacyUnit

if TYPE_CHECKING:
    from quietsum.party.policy import Policy

__all__ = [
    "AGAIN", "LARGEST", "NOT_BOOKED", "TOO_LARGE", "Refused", "Said", "allowed", "booked", "kind_of", "remedy_here",
    "too_large", "whole",
]  # fmt: skip

log = logging.getLogger("quietsum.party.service")

Found = TypeVar("Found")

AGAIN = "this attempt, or a later one, was answered before"
NOT_BOOKED = "its books do not take this plan"
LARGEST = 2**53
"""The largest whole number of a message: what JSON carries exactly everywhere, and any store can hold."""
TOO_LARGE = "the message holds a whole number beyond 2^53"
_MOST_ROUNDS = 2**31 - 1
_MOST_SAID = 1000


@final
class Refused(QuietsumError):
    """The site says no, and has not touched its data. ``for_good``: the same request can never be taken.

    ``aside`` is for the site's own log.
    """

    def __init__(self, reason: str, *, for_good: bool = False, aside: str = "") -> None:
        super().__init__(reason)
        self.for_good, self.aside = for_good, aside


def allowed(ask: Callable[[], Found]) -> Found:
    """What ``ask`` says; a :class:`Refused` with its words where it refuses the plan, which the coordinator knows."""
    try:
        return ask()
    except PlanRefused as refusal:
        raise Refused(str(refusal)) from None


def booked(about: str, ask: Callable[[], Found]) -> Found:
    """What the books say; where they object, the site's log has their words and the coordinator a sentence."""
    try:
        return ask()
    except (LedgerBroken, StoreFailed):
        raise
    except QuietsumError as error:
        log.warning("%s: %s", about, error)
        match error:
            case BudgetExhausted():
                raise Refused("its budget does not allow this plan") from None
            case PlanUnderstates():
                raise Refused("the plan costs more than it states") from None
        raise Refused(NOT_BOOKED) from None


@contextlib.contextmanager
def remedy_here(policy: Policy) -> Iterator[None]:
    """A budget that does not suffice, in words that can be acted upon here: a site allows more in two places."""
    try:
        yield
    except BudgetExhausted as error:
        raise BudgetExhausted(_for_site(str(error), policy)) from None


def _for_site(words: str, policy: Policy) -> str:
    """The ledger's own remedy, with the folder of this site's ledger and, where it is too small, the policy's part."""
    before, command, rest = words.partition("quietsum ledger raise ")
    if not command:
        return words
    given = shlex.split(rest)
    options = dict(zip(given[::2], given[1::2], strict=False))
    wanted, table = options.get("--epsilon", "EPSILON"), options.get("--unit", PrivacyUnit.RECORD.value)
    allowed = policy.budgets.get(PrivacyUnit(table))
    first = f"set epsilon = {wanted} or more under [{table}] in the policy, serve again, and then "
    if allowed is not None and wanted != "EPSILON" and allowed.epsilon >= float(wanted):
        first = ""
    folder = policy.path(policy.site.ledger).parent
    return f"{before}{first}{command}{shlex.join(['--workspace', str(folder)])} {rest}"


def whole(body: Mapping[str, Any], name: str) -> int:
    """A whole number from 1 on, of a round or an attempt, that a message names."""
    value = body.get(name)
    if type(value) is not int or not 1 <= value <= _MOST_ROUNDS:
        raise Refused(f"the message names no {name}")
    return value


def too_large(body: object) -> bool:
    """Whether a whole number beyond :data:`LARGEST` stands anywhere in what came, however deep."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple):
            waiting.extend(value)
        elif isinstance(value, int) and abs(value) > LARGEST:
            return True
    return False


@final
class Said:
    """What was said of whom, so that the same trouble is said once, again when it changes, and once that it is over.

    Greetings come every second for as long as a site refuses them; a log that repeats itself hides the next trouble.
    """

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def anew(self, about: str, words: str) -> bool:
        """Whether ``words`` are not what was said last about it; they are from now on."""
        if self._said.get(about) == words:
            return False
        if about not in self._said and len(self._said) >= _MOST_SAID:  # names come from outside
            self._said.pop(next(iter(self._said)))
        self._said[about] = words
        return True

    def over(self, about: str) -> bool:
        """Whether something had been said about it; it is forgotten."""
        return self._said.pop(about, None) is not None


def kind_of(error: BaseException) -> str:
    """All that is told of work that failed."""
    match error:
        case AnsweredBefore():
            return AGAIN
        case TooLate():
            return "it had not finished by the deadline"
        case NotTouched():
            return "it has no data"
    return "its work failed"  # how, may depend on data
