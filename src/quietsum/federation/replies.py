"""What a round makes of its replies: each party is heard once, in time, and nothing that arrives ends the round.

A reply comes from elsewhere and may be anything. :func:`in_time` passes replies on until the deadline, and
:class:`Replies` folds them, leaves them out, or notes them as refusals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

from quietsum.aggregation import Fold, RobustFold
from quietsum.errors import QuietsumError
from quietsum.federation.messages import Lost, PartyRefusal, Reply, Sums, Update
from quietsum.federation.watch import PartyDropped, Watcher, tell
from quietsum.validate import positive

__all__ = ["Replies", "in_time", "plain_reason"]

log = logging.getLogger("quietsum.federation.round")  # one name for all lines of a round


@final
class Replies:
    """Replies as they arrive: folded, left out, or noted as refusals. Each party is heard once.

    Guarantees: nothing that arrives ends the round. What is no reply is left out, and so is its sender.
    """

    def __init__(self, fold: Fold[Any], number: int, cohort: Sequence[str], watchers: Iterable[Watcher]) -> None:
        self._fold, self._number, self._cohort, self._watchers = fold, number, frozenset(cohort), tuple(watchers)
        self._heard: set[str] = set()
        self.folded = fold.start()
        self.refused: dict[str, str] = {}

    def take(self, reply: Reply) -> None:
        """One more reply."""
        if problem := problem_with_reply(reply):
            return self._leave_out(reply, problem)
        if isinstance(reply, Sums):
            return self._take_sums(reply)
        if not self._first_word(reply.party):  # no second word, and above all no refund after an update
            self.drop(reply.party, "it replied twice or was not asked")
            self.refused.pop(reply.party, None)
            return None
        self._heard.add(reply.party)
        match reply:
            case Update() if problem := self._fold.problem_with(reply.delta, reply.party):
                if isinstance(self._fold, RobustFold):
                    self._fold.spoil(self.folded, reply.party)
                self.drop(reply.party, f"its update {problem}")
            case Update():
                try:
                    self.folded = self._fold.add(self.folded, reply.party, reply.delta)
                except Exception as error:
                    self.drop(reply.party, f"its update cannot be used ({type(error).__name__})")
            case PartyRefusal():
                self.refused[reply.party] = plain_reason(reply.reason)
            case Lost():
                self.drop(reply.party, plain_reason(reply.reason))
        return None

    def _leave_out(self, reply: object, problem: str) -> None:
        """What came is no reply; whom it names, as far as it names anybody, is not heard a second time."""
        names = _names_in(reply)
        if not names:
            log.info("round %d: a reply is left out, %s", self._number, problem)
        self._spoil(names, problem)

    def _take_sums(self, reply: Sums) -> None:
        """A sum is taken as a whole or not at all: one party that must not be in it spoils it."""
        self._spoil(reply.parties, self._merge(reply))

    def _spoil(self, parties: Iterable[str], problem: str) -> None:
        """Note that ``parties`` were heard, and where there is a ``problem``, that they are left out."""
        for party in dict.fromkeys(parties):
            if problem and self._first_word(party):
                self.drop(party, f"it is in a reply that is left out: {problem}")
            elif problem:
                self.refused.pop(party, None)
            if party in self._cohort:
                self._heard.add(party)

    def _merge(self, reply: Sums) -> str:
        """Why the sum was not merged; empty where it was."""
        odd = next((party for party in reply.parties if not self._first_word(party)), None)
        if odd is not None:
            return f"{odd} replied twice or was not asked"
        try:
            kept = reply.folded.kept
            if type(reply.folded) is not type(self.folded) or type(kept) is not dict:
                return "it is no sum of this round"
            if tuple(sorted(kept)) != tuple(sorted(reply.parties)):
                return "it does not say whose it is"
            self.folded = self._fold.merge(self.folded, reply.folded)
        except QuietsumError as error:
            return f"it cannot be used ({error})"
        except Exception as error:
            return f"it cannot be used ({type(error).__name__})"
        return ""

    def _first_word(self, party: str) -> bool:
        return party in self._cohort and party not in self._heard

    def drop(self, party: str, reason: str, *, refunded: bool = False) -> None:
        """``party`` is left out of this round's model."""
        _drop(self._watchers, self._number, party, reason, refunded=refunded)


def _names_in(reply: object) -> tuple[str, ...]:
    """Whom ``reply`` names, as far as that can be seen: replies come from elsewhere, and may be anything."""
    named: object = ()
    if isinstance(reply, Sums):
        named = getattr(reply, "parties", ())
    elif isinstance(reply, Update | PartyRefusal | Lost):
        named = (getattr(reply, "party", None),)
    return tuple(name for name in (named if isinstance(named, tuple) else ()) if isinstance(name, str))


def problem_with_reply(reply: object) -> str:
    """Why this is no reply, by its types; empty where it is one."""
    match reply:
        case Sums(parties=tuple() as parties) if len(_names_in(reply)) == len(parties):
            return "" if hasattr(reply, "folded") else "it holds no sum"
        case Update(party=str()):
            return "" if hasattr(reply, "delta") else "it holds no update"
        case PartyRefusal(party=str(), reason=str()) | Lost(party=str(), reason=str()):
            return ""
        case Sums() | Update() | PartyRefusal() | Lost():
            return f"a field of its {type(reply).__name__} has another type"
    return f"it is no reply but of type {type(reply).__name__}"


def _drop(watchers: Iterable[Watcher], number: int, party: str, reason: str, *, refunded: bool = False) -> None:
    log.info("round %d: %s is left out, %s", number, party, reason)
    tell(watchers, PartyDropped(round=number, party=party, reason=reason, refunded=refunded))


def in_time(
    replies: Iterable[Reply], cohort: Sequence[str], deadline: float | None, clock: Callable[[], float]
) -> Iterator[Reply]:
    """Replies until the deadline, by a clock that does not jump; who is missing then is lost, not refunded.

    For parties that work at the same time; those that wait for each other are counted one by one
    (:attr:`~quietsum.federation.messages.Federation.counts_deadline`).
    """
    if deadline is None:
        yield from replies
        return
    limit = positive("deadline", deadline)
    start = clock()
    heard: set[str] = set()
    for reply in replies:
        parties = _names_in(reply)
        late = clock() - start - limit
        if late > 0 and not isinstance(reply, PartyRefusal):
            reason = f"its reply came {late:.3g} s after the deadline of {limit:g} s"
            yield from (Lost(party=party, reason=reason) for party in parties)
        else:
            yield reply
        heard.update(parties)
        if clock() - start > limit:
            break
    for party in cohort:
        if party not in heard:
            yield Lost(party=party, reason=f"it had not replied by the deadline of {limit:g} s")


def plain_reason(reason: str) -> str:
    """A reason that a ledger can hold: text, of some length, and not nothing."""
    return reason.encode("utf-8", "replace").decode("utf-8").strip()[:500] or "no reason given"
