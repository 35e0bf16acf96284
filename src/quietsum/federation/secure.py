"""A secure round: five questions to each party, one sum, and the charge on disk before anybody is asked to unmask it.

The protocol's server (:class:`quietsum.secagg.Server`) relays and adds up; this drives it over what carries bytes
to parties (:class:`~quietsum.federation.messages.Federation`), in process, in worker processes or across machines:

    keys → shares → masked inputs → survivors fixed → **ledger.commit** → signatures under the list → unmasking → sum

Data is touched at one step, the masked inputs. The server holds no vector but the accumulator, which is uniformly
random until the last step. A session that does not get to its end is paid for and releases nothing; a retry is the
next attempt of the round, with fresh keys and fresh noise, and is charged again.

With groups they are drawn behind the keys, there is one accumulator and one sum a group, and a robust rule makes the
step (:mod:`quietsum.federation.groups`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, final

from quietsum.aggregation import Combined
from quietsum.errors import TooFewParties
from quietsum.failpoints import reach
from quietsum.federation.messages import Federation, Lost, PartyRefusal, StepAnswer, StepQuestion, TrainRequest
from quietsum.federation.replies import plain_reason
from quietsum.federation.watch import PartyDropped, PartySilent, Watcher, tell
from quietsum.party import absent, contribution_of, terms_of
from quietsum.secagg import DRAWING, Identity, Reason, Server, SessionOutcome, Step

if TYPE_CHECKING:
    from quietsum.federation.groups import Between
    from quietsum.plan import ResolvedPlan

__all__ = ["SHARES_OF_TIME", "Session", "ends_of_steps"]

log = logging.getLogger(__name__)

SHARES_OF_TIME: Mapping[Step, float] = {
    Step.OPEN: 0.1, Step.ROSTER: 0.1, Step.SHARES: 0.6, Step.SURVIVORS: 0.1, Step.AGREED: 0.1
}  # fmt: skip
"""How a round's deadline is divided: most of it is for the step in which parties train. What a step does not use is the
next one's."""
_FOR_A_DRAW = 0.1 / len(DRAWING)  # of the deadline, taken from the training's
_TOUCHED = (Step.SHARES, Step.SURVIVORS, Step.AGREED)


def ends_of_steps(limit: float, *, drawn: bool = False) -> dict[Step, float]:
    """When each step must be over, in seconds from the round's begin; with time for the draws of groups if ``drawn``.

    >>> {step.name: round(end, 6) for step, end in ends_of_steps(100.0).items()}
    {'OPEN': 10.0, 'ROSTER': 20.0, 'SHARES': 80.0, 'SURVIVORS': 90.0, 'AGREED': 100.0}
    """
    shares = dict(SHARES_OF_TIME)
    if drawn:
        shares |= dict.fromkeys(DRAWING, _FOR_A_DRAW)
        shares[Step.SHARES] -= 0.1
    ends, so_far = {}, 0.0
    for step in sorted(shares, key=lambda one: one.turn):
        so_far += shares[step]
        ends[step] = limit * so_far
    return ends


@final
class Session:
    """One attempt at a secure round.

    Guarantees: :meth:`run` calls ``commit`` once, after the list of survivors is fixed and before anything of it
    is sent, and also where the session ends earlier. A party that refused before it was asked for its masked input is
    given to ``refused`` before that. Every party that is lost is shown to the watchers with the step and one of
    :class:`~quietsum.secagg.Reason`'s values. Nothing that arrives makes this raise anything but
    :class:`~quietsum.errors.TooFewParties`.
    """

    def __init__(
        self,
        request: TrainRequest,
        cohort: Sequence[str],
        *,
        resolved: ResolvedPlan,
        federation: Federation,
        refused: Callable[[str, str], bool],
        commit: Callable[[], None],
        between: Between | None = None,
        watchers: Iterable[Watcher] = (),
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request, self._cohort, self._resolved = request, tuple(cohort), resolved
        self._federation, self._identity = federation, Identity.fresh()
        self._refused, self._commit, self._watchers = refused, commit, tuple(watchers)
        self._between = between
        self._clock, self._begin = clock, clock()
        self._ends = None if deadline is None else ends_of_steps(deadline, drawn=between is not None)
        self._identities: Mapping[str, bytes] = {}
        self._refunded: set[str] = set()
        self._why: dict[str, tuple[Step, Reason, str]] = {}
        self._refusals: dict[str, str] = {}
        self._committed = False

    def run(self) -> Combined:
        """The step from the opened sum, and whose vectors are in it; :class:`~quietsum.errors.TooFewParties`."""
        request, resolved = self._request, self._resolved
        key, model = request.key[:3], request.key[3]
        known = self._federation.identities(self._cohort)
        self._identities = {name: known.get(name) or absent(request.run, name) for name in self._cohort}
        server = Server(terms=terms_of(resolved, key, model), identity=self._identity, identities=self._identities)
        letters = server.open()
        while letters:
            assert server.step is not None
            question = Step(server.step - 1)
            if question is Step.SURVIVORS:
                self._settle()
            reach(f"secure:{question.name.lower()}")
            for word in self._exchange(question, letters):
                self._hear(server, question, word)
            letters = server.advance()
        if not self._committed:
            self._settle()
        self._tell_lost(server)
        if server.outcome is not SessionOutcome.DONE:
            raise TooFewParties(self._explain(server))
        reach("secure:unmasked")
        how = contribution_of(resolved, request.round)
        if self._between is not None:
            return self._between.combine(server.sums(), how, request.round)
        step = how.step(server.total(), server.survivors)
        return Combined(step=step, kept=server.survivors)

    # ---------------------------------------------------------------------------------------------- one step

    def _exchange(self, question: Step, letters: Mapping[str, bytes]) -> Iterator[StepAnswer | PartyRefusal | Lost]:
        """What comes back before the step's time is over. A carrier that keeps no time is held to it here."""
        seconds = None
        if self._ends is not None:
            seconds = max(self._ends[question] - (self._clock() - self._begin), 0.001)
        begin = self._clock()
        asked = StepQuestion(
            request=self._request, step=question, letters=letters, server=self._identity.public,
            identities=self._identities, seconds=seconds,
        )  # fmt: skip
        for word in self._federation.exchange(asked):
            if seconds is not None and self._clock() - begin > seconds and isinstance(word, StepAnswer):
                yield Lost(party=word.party, reason=f"its answer came after the {seconds:.3g} s of this step")
                continue
            yield word

    def _hear(self, server: Server, question: Step, word: object) -> None:
        match word:
            case StepAnswer(party=str() as party, content=content):
                reason = server.take(party, content)
                if reason is not None:
                    self._note(party, question, reason, reason.sentence)
                reach("secure:answer")
            case PartyRefusal(party=str() as party, reason=str() as words):
                if question in _TOUCHED:  # its data may have been looked at: no word takes the charge back
                    self._note(party, question, Reason.NO_ANSWER, f"it refused: {words}")
                elif party in self._cohort:
                    self._refusals.setdefault(party, plain_reason(words))
                    self._note(party, question, Reason.NO_ANSWER, f"it refused: {plain_reason(words)}")
            case Lost(party=str() as party, reason=str() as words):
                self._note(party, question, Reason.NO_ANSWER, plain_reason(words))
            case _:
                log.info("round %d: a word is left out, it is of type %s", self._request.round, type(word).__name__)

    def _note(self, party: str, question: Step, reason: Reason, words: str) -> None:
        if party in self._cohort:
            self._why.setdefault(party, (question, reason, words))

    # ------------------------------------------------------------------------------------------ paying, telling

    def _settle(self) -> None:
        """Refund those who refused before their data was asked for, then commit: durable before a sum is opened."""
        self._committed = True
        self._refunded = {party for party, words in self._refusals.items() if self._refused(party, words)}
        reach("round:before-commit")
        self._commit()
        reach("round:committed")

    def _tell_lost(self, server: Server) -> None:
        number, kept = self._request.round, frozenset(server.survivors)
        for party, loss in server.lost.items():
            _, reason, words = self._why.get(party, (None, loss.reason, loss.reason.sentence))
            if loss.reason is not Reason.NO_ANSWER:
                reason, words = loss.reason, loss.reason.sentence
            step = loss.step.name.lower()
            if party in kept:
                log.info("round %d: %s is in the sum and was lost at %s, %s", number, party, step, words)
                told: PartySilent | PartyDropped = PartySilent(
                    round=number, party=party, reason=words, step=step, code=reason.value
                )
            else:
                log.info("round %d: %s is left out at %s, %s", number, party, step, words)
                told = PartyDropped(
                    round=number, party=party, reason=words, refunded=party in self._refunded, step=step,
                    code=reason.value,
                )  # fmt: skip
            tell(self._watchers, told)

    def _explain(self, server: Server) -> str:
        """What a person reads of a session without a sum."""
        assert server.outcome is not None
        there, every = len(self._cohort) - len(server.lost), len(self._cohort)
        each = " of each group" if self._between is not None else ""
        free = self._refunded >= set(self._cohort)
        charged = "It is charged, except to those who refused before they touched data. "
        return (
            f"round {self._request.round}: {server.outcome.sentence}; {there} of {every} parties were left, the plan "
            f"needs {server.terms.need}{each}. "
            + ("No party had touched data, so nothing was charged. " if free else charged)
            + "See why with -v, then resume"
        )
