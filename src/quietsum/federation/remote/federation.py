"""Sites on other machines: find them, enrol them, ask them, and be done on time.

The coordinator's side of :mod:`quietsum.party.service`. Who is there, and whether they are who they say, is for
:class:`~quietsum.federation.remote.sites.Sites`; the head that comes with every reply goes into the coordinator's own
ledger with the round's commit.

A round ends at its deadline. A site that was started anew meanwhile is asked once more, for the same attempt: it
answers if it had not reserved yet, and says so if it had. Nothing a site sends can end a round; a reply that is
unreadable, unsigned, of another run, or does not charge what the plan says, leaves that site out.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from quietsum import wire
from quietsum.aggregation import Fold
from quietsum.errors import CorruptState, LedgerBroken, PlanRefused, QuietsumError, TooFewParties
from quietsum.failpoints import reach
from quietsum.federation.messages import (
    Federation,
    Lost,
    PartyRefusal,
    Reply,
    StepAnswer,
    StepQuestion,
    TrainRequest,
    Update,
)
from quietsum.federation.remote.sites import ABSENT, NAP, NodeAccepts, Received, SentLetter, Sites, reason_in
from quietsum.federation.remote.transport import Transport
from quietsum.federation.secure import ends_of_steps
from quietsum.ledger import Charge, Ledger, Testimony
from quietsum.party import (
    UnknownPeer,
    charges_digest,
    enrolment_charges,
    key_in,
    model_hash,
    site_charges,
    write_resolved,
)
from quietsum.plan import ResolvedPlan, fewest_groups
from quietsum.secagg import Step

__all__ = ["DEADLINE", "RemoteFederation"]

log = logging.getLogger("quietsum.federation.remote")  # one name for all lines about sites

DEADLINE = 600.0
"""Seconds that a round may take where the plan states no deadline: across machines it must end some time."""
_FAREWELL = 5.0

_Word = Update | StepAnswer | PartyRefusal | Lost
"""What ends one request to a site."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class _Joined:
    """The run that the sites were enrolled in."""

    run: str
    resolved: ResolvedPlan
    ledger: Ledger
    sites: Sites


@final
@dataclasses.dataclass(frozen=True)
class _Asking:
    """A round under way: its request, and the hash of the charges that each site must report.

    In a secure round it is one step of it: the ``question``, and the ``peers``: their certificates go with the first.
    """

    request: TrainRequest
    expected: Mapping[str, str]
    question: StepQuestion | None = None
    peers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    requests: list[str] = dataclasses.field(default_factory=list)

    def times_asked(self, party: str) -> int:
        """How often the request went to ``party``: a process of it that is gone may have touched the data."""
        return self.requests.count(party)


@final
class RemoteFederation(Federation):
    """The sites of a plan, over any :class:`~quietsum.federation.remote.transport.Transport`.

    Guarantees: every party of a cohort has one reply by the deadline. A refusal is passed on only where the site says,
    signed, that it has not touched its data. What a site is asked is reserved in the coordinator's ledger before, and
    the request carries the head that proves it.
    """

    remote = True
    carries_secure = True

    def __init__(
        self,
        transport: Transport,
        *,
        roster: Mapping[str, NodeAccepts] | None,
        patience: float = 120.0,
        most: int = 2**28,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``roster`` holds the sites' node keys by name; None, for a trial on one machine, believes what they say.

        ``patience`` is how long the sites may take to come before the first round, ``most`` the longest reply in bytes.
        """
        self._transport, self._roster, self._patience, self._most = transport, roster, patience, most
        self._clock = clock
        self._joined: _Joined | None = None
        self._certificates: dict[str, Mapping[str, Any]] = {}
        self._begun = 0.0  # when the secure round that is under way began

    @property
    def counts_deadline(self) -> bool:
        """The deadline is kept here: a site that is missing then is lost."""
        return True

    # ------------------------------------------------------------------------------------------------ joining

    def join(self, run: str, resolved: ResolvedPlan, ledger: Ledger) -> None:
        """Find the sites of the plan and enrol them: all, or after ``patience`` as many as the plan needs.

        A site that refuses is asked again in every round: its owner may change the policy, or raise a budget.
        """
        self.check_plan(resolved)
        sites = Sites(
            self._transport, self._roster, parties=[facts.name for facts in resolved.parties], ledger=ledger,
            most=min(self._most, wire.LARGEST_HEADER + 8 * resolved.dimension + 2**16), clock=self._clock,
        )  # fmt: skip
        self._joined = _Joined(run=run, resolved=resolved, ledger=ledger, sites=sites)
        end, names, refused = self._clock() + self._patience, sites.parties, dict[str, str]()
        while (left := end - self._clock()) > 0:
            waiting = [name for name in names if name not in refused and not sites.is_enrolled(name)]
            if not waiting:
                break
            sites.greet(waiting)
            for name in waiting:
                self._send_next(None, name, left)
            for received in sites.receive(min(NAP, left)):
                reply = self._judge(received)
                if isinstance(reply, PartyRefusal | Lost):
                    refused[reply.party] = reply.reason
        sites.forget("enrol")  # a round begins with it again
        for name, reason in refused.items():
            log.warning("site %s refuses: %s", name, reason)
        missing = [name for name in names if name not in refused and not sites.is_enrolled(name)]
        for name in missing:
            log.warning("site %s is not there; the rounds go on without it until it comes", name)
        there, needed = len(names) - len(missing) - len(refused), _count_needed(resolved)
        if there < needed:
            reasons = [f"{name} refuses: {reason}" for name, reason in refused.items()]
            reasons += [f"not there: {', '.join(missing[:8])}"] if missing else []
            reasons += [f"a node refuses: {reason}" for reason in sites.refusals()]
            raise TooFewParties(
                f"{there} of {len(names)} sites take part, the plan needs {needed}; no data was touched. "
                + "; ".join(reasons)
                + (". Is `quietsum party serve` running there, and can it reach this machine?" if missing else "")
            )

    def check_plan(self, resolved: ResolvedPlan) -> None:
        """Raise PlanRefused if the roster lacks a party, or the plan is one for this machine alone."""
        for facts in resolved.parties:
            if facts.account != facts.name:
                raise PlanRefused(
                    "this plan deals out the data of one holder, and across machines every site holds its own: choose "
                    "federation.split = 'natural' with a task that knows its sites, or run it with --on local"
                )
            if self._roster is not None and facts.name not in self._roster:
                known = ", ".join(sorted(self._roster)) or "no party"
                raise PlanRefused(
                    f"party {facts.name!r} is not in the roster, which knows {known}; add it: quietsum keys admit"
                )
        simulate = resolved.plan.federation.simulate
        if simulate.drop_outs or simulate.stragglers or simulate.refusing:
            raise PlanRefused("federation.simulate rehearses bad luck on one machine; remove it to ask real sites")

    def ready(self) -> None:
        """Wait, ``patience`` at most, until as many sites are connected as a round needs. Nothing is reserved before.

        If the carrier or all sites are gone, rounds would be paid for without a question. Who would be drawn plays no
        part in it.
        """
        sites = self._here.sites
        names, needed = sites.parties, _count_needed(self._here.resolved)
        end = self._clock() + self._patience
        while (there := sites.count_connected()) < needed:
            left = end - self._clock()
            if left <= 0:
                raise TooFewParties(
                    f"{there} of {len(names)} sites are connected, a round needs {needed}; nothing was reserved. "
                    "Resume when they are back"
                )
            sites.greet(names)
            for received in sites.receive(min(NAP, left)):
                self._judge(received)

    def leave(self, outcome: str) -> None:
        """Send every site the last head, and wait a moment for the word that it was kept."""
        if self._joined is None:
            return
        run, sites = self._joined.run, self._joined.sites
        for name in sites.parties:
            if sites.is_enrolled(name):
                sites.post("farewell", {"run": run, "outcome": outcome}, name, lasting=_FAREWELL)
        end = self._clock() + _FAREWELL
        try:
            while sites.is_under_way("farewell") and self._clock() < end:
                for received in sites.receive(NAP):
                    self._judge(received)
            self._joined.ledger.witness(run, self.testimonies())
        except LedgerBroken:
            raise
        except QuietsumError as error:
            log.info("not every site has heard that the run has ended: %s", error)

    def close(self) -> None:
        """Let go of the carrier."""
        self._transport.close()

    def registered(self) -> Sequence[str]:
        """The parties of the plan, whether they are there or not."""
        return self._here.sites.parties

    def testimonies(self) -> Mapping[str, Testimony]:
        """The sites' heads that came since the last time."""
        return self._here.sites.take_testimonies()

    @property
    def _here(self) -> _Joined:
        assert self._joined is not None, "join() comes first"
        return self._joined

    # ------------------------------------------------------------------------------------------------- asking

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """One reply a site, as they arrive; those that are missing at the deadline, or stay away, are lost."""
        limit = self._here.resolved.plan.federation.deadline or DEADLINE
        asking = _Asking(request, {name: self._expect(name, request.round) for name in cohort})
        late = f"it had not replied by the deadline of {limit:g} s"
        for reply in self._collect(asking, cohort, self._clock() + limit, late):
            if not isinstance(reply, StepAnswer):
                yield reply

    def _collect(self, asking: _Asking, cohort: Iterable[str], end: float, late: str) -> Iterator[_Word]:
        """One word from each of ``cohort``, as they arrive, by ``end``."""
        sites = self._here.sites
        waiting, began = dict.fromkeys(cohort), self._clock()
        invited = set[str]()
        try:
            while waiting and (left := end - self._clock()) > 0:
                for name in sites.find_absent(waiting, sites.greet(waiting), began):
                    del waiting[name]
                    yield Lost(party=name, reason=f"it was not connected for {ABSENT:g} s")
                for name in list(waiting):
                    self._send_next(asking, name, left)
                for name in [one for one in self._list_uncertified() if sites.knows(one) and one not in invited]:
                    invited.add(name)  # it came when the round had begun, and takes part from the next one on
                    self._send_next(None, name, left)
                reach("remote:waiting")
                for received in sites.receive(min(NAP, left)):
                    reply = self._judge(received, asking)
                    if reply is not None and reply.party in waiting:
                        del waiting[reply.party]
                        yield reply
        finally:  # also where the caller breaks the round off: what is under way would hold up the next one
            sites.forget("enrol", "train", "secure")
        for name in waiting:
            why = "" if sites.knows(name) else "; it was not there"
            yield Lost(party=name, reason=f"{late}{why}")

    # --------------------------------------------------------------------------------------- secure rounds

    def _list_uncertified(self) -> list[str]:
        """Sites without a known certificate, in a plan that needs one."""
        if self._here.resolved.secure is None:
            return []
        return [name for name in self._here.sites.parties if name not in self._certificates]

    def identities(self, cohort: Sequence[str]) -> Mapping[str, bytes]:
        """The keys of the sites that have come, by the certificates of their ledgers."""
        return {name: key_in(self._certificates[name], name)[0] for name in cohort if name in self._certificates}

    def exchange(self, question: StepQuestion) -> Iterator[StepAnswer | PartyRefusal | Lost]:
        """One word a site, as they arrive. The round's deadline is divided over its steps.

        A step that went astray is sent again, since a site answers the same bytes with the same bytes.
        """
        request, step = question.request, question.step
        if step is Step.OPEN:
            self._begun = self._clock()
        resolved = self._here.resolved
        grouped = resolved.secure is not None and resolved.secure.grouping is not None
        end = self._begun + ends_of_steps(resolved.plan.federation.deadline or DEADLINE, drawn=grouped)[step]
        strangers = [name for name in question.letters if name not in self._certificates]
        yield from (Lost(party=name, reason="it has not come to this run") for name in strangers)
        asking = _Asking(
            request,
            {name: self._expect(name, request.round) for name in question.letters},
            question=question,
            peers={name: self._certificates.get(name) for name in question.identities},
        )
        late = f"it had not replied within the {end - self._clock():.3g} s of this step"
        there = [name for name in question.letters if name not in strangers]
        for reply in self._collect(asking, there, end, late):
            if isinstance(reply, StepAnswer | PartyRefusal | Lost):
                yield reply

    # ------------------------------------------------------------------------------------------------- letters

    def _expect(self, party: str, number: int) -> str:
        return charges_digest(site_charges(self._here.resolved, party, number))

    def _send_next(self, asking: _Asking | None, name: str, lasting: float) -> None:
        """Send what comes next for ``name``: the plan if its process has not seen it yet, then the request."""
        sites, resolved = self._here.sites, self._here.resolved
        if not sites.can_ask(name):
            return
        if not sites.is_enrolled(name):
            sites.post("enrol", {"run": self._here.run, "resolved": write_resolved(resolved)}, name, lasting=lasting)
            return
        if asking is None:
            return
        request = asking.request
        body = {
            "run": request.run,
            "round": request.round,
            "attempt": request.attempt,
            "plan": resolved.plan.digest,
        }
        reach("remote:before-request")
        asking.requests.append(name)
        if asking.question is None:
            sites.post("train", body, name, lasting=lasting, vector=request.params)
        else:
            self._post_step(asking, asking.question, body, name, lasting)
        reach("remote:requested")

    def _post_step(
        self, asking: _Asking, question: StepQuestion, body: dict[str, Any], name: str, lasting: float
    ) -> None:
        """The first step names the model and all certificates; the model goes along where inputs are asked for."""
        body["step"] = question.step.name.lower()
        if question.step is Step.OPEN:
            body["model"] = model_hash(question.request.params)
            body["server"], body["peers"] = question.server.hex(), dict(asking.peers)
        vector = question.request.params if question.step is Step.SHARES else None
        self._here.sites.post("secure", body, name, lasting=lasting, vector=vector, payload=question.letters[name])

    # ------------------------------------------------------------------------------------------------ replies

    def _judge(self, received: Received, asking: _Asking | None = None) -> _Word | None:
        """What ``received`` means for the round; None if it does not end what its party was asked."""
        sent, party = received.sent, received.sent.party
        if received.letter is not None:
            try:
                return self._read(received.letter, sent, asking)
            except (wire.UnreadableLetter, CorruptState) as error:
                received = Received(sent=sent, problem=self._here.sites.leave_out(sent, error))
        waited_for = sent.kind in ("enrol", "train", "secure")
        if received.astray:  # a step of a secure round is sent again, and so is an enrolment before the first round
            waited_for = sent.kind == "train" or (sent.kind == "enrol" and asking is not None)
        return Lost(party=party, reason=received.problem) if waited_for else None

    def _read(self, letter: wire.Letter, sent: SentLetter, asking: _Asking | None) -> _Word | None:
        party = sent.party
        if letter.kind == "refused":
            if asking is not None and asking.question is None and asking.times_asked(party) > (sent.kind == "train"):
                return Lost(party=party, reason=f"asked a second time, it refused: {reason_in(letter)}")
            return PartyRefusal(party=party, reason=reason_in(letter))
        if letter.kind == "lost":
            return Lost(party=party, reason=reason_in(letter))
        if sent.kind == "enrol" and letter.kind == "enrolled":
            self._check_enrolment(letter, party)
            self._certify(letter, party)
            self._here.sites.note_enrolled(sent)
            return None
        if sent.kind == "train" and letter.kind == "update" and asking is not None:
            return self._update(letter, party, asking)
        if sent.kind == "secure" and letter.kind == "secured" and asking is not None and asking.question is not None:
            return self._answer(letter, party, asking, asking.question)
        if sent.kind == "farewell" and letter.kind == "noted":
            return None
        raise wire.UnreadableLetter(f"a {letter.kind[:20]!r} is no reply to a {sent.kind}")

    def _update(self, letter: wire.Letter, party: str, asking: _Asking) -> Update:
        request, body = asking.request, letter.body
        if (body.get("round"), body.get("attempt")) != (request.round, request.attempt) or letter.vector is None:
            raise wire.UnreadableLetter("it is not about this round")
        if _read_charges(letter) != asking.expected[party]:
            raise wire.UnreadableLetter("it charged other events than the plan says")
        return Update(party=party, delta=letter.vector)

    def _answer(self, letter: wire.Letter, party: str, asking: _Asking, question: StepQuestion) -> StepAnswer:
        request, body = asking.request, letter.body
        told = body.get("round"), body.get("attempt"), body.get("step")
        if told != (request.round, request.attempt, question.step.name.lower()) or not letter.payload:
            raise wire.UnreadableLetter("it is not about this step")
        if question.step is Step.SHARES and _read_charges(letter) != asking.expected[party]:
            raise wire.UnreadableLetter("it charged other events than the plan says")
        return StepAnswer(party=party, content=letter.payload)

    def _certify(self, letter: wire.Letter, party: str) -> None:
        """Keep by which key the site is known in secure rounds, if its own ledger says so."""
        if self._here.resolved.secure is None:
            return
        try:
            _, ledger = key_in(letter.body.get("identity"), party)
        except UnknownPeer as error:
            raise wire.UnreadableLetter(str(error)) from None
        if ledger.hex != letter.sender.public_key:
            raise wire.UnreadableLetter("the key that it shows for secure rounds is vouched for by another ledger")
        self._certificates[party] = letter.body["identity"]

    def _check_enrolment(self, letter: wire.Letter, party: str) -> None:
        """A site that pays for the whole plan when it enrols has charged what the plan says, amplified or not."""
        resolved, charged = self._here.resolved, _read_charges(letter)
        if charged not in {
            charges_digest(enrolment_charges(resolved, party, trusting=trust)) for trust in (True, False)
        }:
            raise wire.UnreadableLetter("it enrolled with other events than the plan says")


def _count_needed(resolved: ResolvedPlan) -> int:
    """How many sites a round needs to be worth its charge."""
    secure = resolved.secure
    least = 0 if secure is None else max(secure.floor, secure.parameters.threshold)
    if secure is not None and secure.grouping is not None and resolved.robust is not None:
        least *= fewest_groups(resolved.robust, secure.grouping.count, secure.grouping.attackers)
    return max(resolved.plan.federation.minimum_parties, least)


def _read_charges(letter: wire.Letter) -> str:
    """The digest of the charges that a site says it has written down."""
    try:
        return charges_digest([Charge.from_dict(values) for values in letter.body["charges"]])
    except (QuietsumError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise wire.UnreadableLetter("its charges cannot be read") from None
