"""Sites on other machines: find them, enrol them, ask them, and be done on time.

The coordinator's side of :mod:`quietsum.party.service`. Who is there, and whether they are who they say, is for the
:class:`~quietsum.federation.remote.doorway.Doorway`; the head that comes with every reply goes into the coordinator's
own ledger with the round's commit.

A round ends at its deadline, whatever became of whom. A site that was started anew meanwhile is asked once more, for
the same attempt: it answers if it had not reserved yet, and says so if it had. Nothing a site sends can end a round;
what is unreadable, unsigned, of another run, or does not charge what the plan says, leaves that site out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from quietsum import wire
from quietsum.aggregation import Fold
from quietsum.errors import CorruptState, LedgerBroken, PlanRefused, QuietsumError, TooFewParties
from quietsum.failpoints import reach
from quietsum.federation.messages import Answer, Federation, Lost, Question, Refusal, Reply, TrainRequest, Update
from quietsum.federation.remote.doorway import NAP, Doorway, NodeAccepts
from quietsum.federation.remote.exchange import Asking, Found, Sent, lost, reason_of
from quietsum.federation.remote.transport import Arrival, Transport
from quietsum.federation.secure import ends_of_steps
from quietsum.ledger import Charge, Ledger, Testimony, check_succession
from quietsum.party import (
    LogOnce,
    UnknownPeer,
    charges_digest,
    enrolment_charges,
    key_in,
    model_hash,
    resolved_to,
    site_charges,
)
from quietsum.plan import ResolvedPlan, fewest_groups
from quietsum.secagg import Step

__all__ = ["ABSENT", "DEADLINE", "NodeAccepts", "RemoteFederation"]

log = logging.getLogger(__name__)

DEADLINE = 600.0
"""Seconds that a round may take where the plan states no deadline: across machines it must end some time."""
_FAREWELL = 5.0
ABSENT = 60.0
"""Seconds that a round waits for a site that is not connected; a site tries again every fifteen."""
_WORK = ("enrol", "train", "secure")
GRACE = 1.0
"""Seconds that a round gives a site that was away for longer than that already."""


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
        self._logged = LogOnce()
        self._run = ""
        self._resolved: ResolvedPlan | None = None
        self._ledger: Ledger | None = None
        self._door: Doorway | None = None
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
        self._refuse(resolved)
        self._run, self._resolved, self._ledger = run, resolved, ledger
        parties = [facts.name for facts in resolved.parties]
        door = self._door = Doorway(self._transport, self._roster, self._clock, ledger, parties)
        self._most = min(self._most, wire.LARGEST_HEADER + 8 * resolved.dimension + 2**16)
        end, names, refused = self._clock() + self._patience, door.parties, dict[str, str]()
        while (left := end - self._clock()) > 0:
            waiting = [name for name in names if name not in refused and not door.enrolled(name)]
            if not waiting:
                break
            door.greet(dict.fromkeys(waiting))
            for name in waiting:
                self._go_on(None, name, left)
            for arrival in door.arrived(min(NAP, left)):
                found = self._take(arrival)
                if found is not None and isinstance(found.reply, Refusal | Lost):
                    refused[found.party] = found.reply.reason
        door.forget("enrol")  # a round begins with it again
        for name, reason in refused.items():
            log.warning("site %s refuses: %s", name, reason)
        missing = [name for name in names if name not in refused and not door.enrolled(name)]
        for name in missing:
            log.warning("site %s is not there; the rounds go on without it until it comes", name)
        there, needed = len(names) - len(missing) - len(refused), _needed(resolved)
        if there < needed:
            told = [f"{name} refuses: {reason}" for name, reason in refused.items()]
            told += [f"not there: {', '.join(missing[:8])}"] if missing else []
            told += [f"a node refuses: {reason}" for reason in dict.fromkeys(door.turned_away.values())]
            raise TooFewParties(
                f"{there} of {len(names)} sites take part, the plan needs {needed}; no data was touched. "
                + "; ".join(told)
                + (". Is `quietsum party serve` running there, and can it reach this machine?" if missing else "")
            )

    def _refuse(self, resolved: ResolvedPlan) -> None:
        for facts in resolved.parties:
            if facts.account != facts.name:
                raise PlanRefused(
                    "this plan deals out the data of one holder, and across machines every site holds its own: choose "
                    "federation.split = 'natural' with a task that knows its sites, or run it with --on local"
                )
            if self._roster is not None and facts.name not in self._roster:
                known = ", ".join(sorted(self._roster)) or "nobody"
                raise PlanRefused(
                    f"party {facts.name!r} is not in the roster, which knows {known}; add it: quietsum keys add"
                )
        simulate = resolved.plan.federation.simulate
        if simulate.drop_outs or simulate.stragglers or simulate.refusing:
            raise PlanRefused("federation.simulate rehearses bad luck on one machine; remove it to ask real sites")

    def ready(self) -> None:
        """Wait, ``patience`` at most, until as many sites are connected as a round needs. Nothing is reserved before.

        Where the carrier or all sites are gone, rounds would be paid for and nobody asked. Who would be drawn plays no
        part in it.
        """
        door, resolved = self._joined
        names, needed = door.parties, _needed(resolved)
        end = self._clock() + self._patience
        while (there := door.connected()) < needed:
            left = end - self._clock()
            if left <= 0:
                raise TooFewParties(
                    f"{there} of {len(names)} sites are connected, a round needs {needed}; nothing was reserved. "
                    "Resume when they are back"
                )
            door.greet(dict.fromkeys(names))
            for arrival in door.arrived(min(NAP, left)):
                self._take(arrival)

    def leave(self, outcome: str) -> None:
        """Send every site the last head, and wait a moment for the word that it was kept."""
        door = self._door
        if self._ledger is None or door is None:
            return
        for name, site in door.known.items():
            if site.enrolled:
                door.post("farewell", {"run": self._run, "outcome": outcome}, name, lasting=_FAREWELL)
        waiting = {message for message, sent in door.sent.items() if sent.kind == "farewell"}
        end = self._clock() + _FAREWELL
        try:
            while waiting & door.sent.keys() and self._clock() < end:
                for arrival in door.arrived(NAP):
                    self._take(arrival)
            self._ledger.witness(self._run, self.testimonies())
        except LedgerBroken:
            raise
        except QuietsumError as error:
            log.info("the sites could not all be told that the run has ended: %s", error)

    def close(self) -> None:
        """Let go of the carrier."""
        self._transport.close()

    def registered(self) -> Sequence[str]:
        """The parties of the plan, whether they are there or not."""
        return self._joined[0].parties

    def testimonies(self) -> Mapping[str, Testimony]:
        """The sites' heads that came since the last time."""
        door = self._joined[0]
        told, door.told = door.told, {}
        return told

    @property
    def _joined(self) -> tuple[Doorway, ResolvedPlan]:
        assert self._door is not None and self._resolved is not None, "join() comes first"
        return self._door, self._resolved

    # ------------------------------------------------------------------------------------------------- asking

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """One reply a site, as they arrive; those that are missing at the deadline, or stay away, are lost."""
        limit = self._joined[1].plan.federation.deadline or DEADLINE
        asking = Asking(request, {name: self._expected(name, request.round) for name in cohort})
        late = f"it had not replied by the deadline of {limit:g} s"
        for found in self._heard_by(asking, cohort, self._clock() + limit, late):
            if not isinstance(found, Answer):
                yield found

    def _heard_by(self, asking: Asking, cohort: Iterable[str], end: float, late: str) -> Iterator[Reply | Answer]:
        """One word from each of ``cohort``, as they arrive, by ``end``."""
        door = self._joined[0]
        waiting, began = dict.fromkeys(cohort), self._clock()
        invited = set[str]()
        while waiting and (left := end - self._clock()) > 0:
            for name in self._away(waiting, door.greet(waiting), began):
                del waiting[name]
                yield Lost(party=name, reason=f"it was not connected for {ABSENT:g} s")
            for name in list(waiting):
                self._go_on(asking, name, left)
            for name in [one for one in self._strangers() if one in door.known and one not in invited]:
                invited.add(name)  # it came when the round had begun, and takes part from the next one on
                self._go_on(None, name, left)
            reach("remote:waiting")
            for arrival in door.arrived(min(NAP, left)):
                found = self._take(arrival, asking)
                if found is not None and found.party in waiting:
                    del waiting[found.party]
                    yield found.reply
        door.forget("enrol", "train", "secure")
        for name in waiting:
            why = "" if name in door.known else "; it was not there"
            yield Lost(party=name, reason=f"{late}{why}")

    # --------------------------------------------------------------------------------------- secure rounds

    def _strangers(self) -> list[str]:
        """Sites that no certificate is known of, in a plan that needs one."""
        door, resolved = self._joined
        return [name for name in door.parties if resolved.secure is not None and name not in self._certificates]

    def identities(self, cohort: Sequence[str]) -> Mapping[str, bytes]:
        """The keys of the sites that have come, by the certificates of their ledgers."""
        return {name: key_in(self._certificates[name], name)[0] for name in cohort if name in self._certificates}

    def exchange(self, question: Question) -> Iterator[Answer | Refusal | Lost]:
        """One word a site, as they arrive. The round's deadline is divided over its steps.

        A step that went astray is sent again, since a site answers the same bytes with the same bytes.
        """
        request, step = question.request, question.step
        if step is Step.OPEN:
            self._begun = self._clock()
        resolved = self._joined[1]
        grouped = resolved.secure is not None and resolved.secure.grouping is not None
        end = self._begun + ends_of_steps(resolved.plan.federation.deadline or DEADLINE, drawn=grouped)[step]
        strangers = [name for name in question.letters if name not in self._certificates]
        yield from (Lost(party=name, reason="it has not come to this run") for name in strangers)
        asking = Asking(
            request,
            {name: self._expected(name, request.round) for name in question.letters},
            question=question,
            peers={name: self._certificates.get(name) for name in question.identities},
        )
        late = f"it had not replied within the {end - self._clock():.3g} s of this step"
        there = [name for name in question.letters if name not in strangers]
        for found in self._heard_by(asking, there, end, late):
            if isinstance(found, Answer | Refusal | Lost):
                yield found

    def _away(self, waiting: Mapping[str, None], nodes: Sequence[str] | None, began: float) -> list[str]:
        """Those that have not been connected for a while, and are not at work on a request either.

        Without a carrier nobody can be connected; and a node that has not said yet who it is may be any of them: a site
        at work answers a greeting when it is done.
        """
        door, now, away = self._joined[0], self._clock(), []
        at_work = {sent.party for sent in door.sent.values() if sent.kind in ("train", "secure")}
        strange = nodes is not None and door.strangers(nodes)
        for name in waiting:
            site = door.known.get(name)
            there = strange if site is None else nodes is not None and site.node in nodes
            if nodes is None or there or name in at_work:
                door.seen[name] = now
            elif now - door.seen.setdefault(name, began) > ABSENT and now - began > GRACE:
                away.append(name)
        return away

    def _expected(self, party: str, number: int) -> str:
        return charges_digest(site_charges(self._joined[1], party, number))

    def _go_on(self, asking: Asking | None, name: str, lasting: float) -> None:
        """Send what comes next for ``name``: the plan, where its process has not seen it yet, then the request."""
        door, resolved = self._joined
        site = door.known.get(name)
        if site is None or self._clock() < site.rests:
            return
        under_way = [sent for sent in door.sent.values() if sent.party == name and sent.kind in _WORK]
        if any(sent.session == site.session for sent in under_way):
            return
        if not site.enrolled:
            door.post("enrol", {"run": self._run, "resolved": resolved_to(resolved)}, name, lasting=lasting)
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
            door.post("train", body, name, lasting=lasting, vector=request.params)
        else:
            self._post_step(asking, asking.question, body, name, lasting)
        reach("remote:requested")

    def _post_step(self, asking: Asking, question: Question, body: dict[str, Any], name: str, lasting: float) -> None:
        """The first step names the model and all certificates; the model goes along where inputs are asked for."""
        body["step"] = question.step.name.lower()
        if question.step is Step.OPEN:
            body["model"] = model_hash(question.request.params)
            body["server"], body["peers"] = question.server.hex(), dict(asking.peers)
        vector = question.request.params if question.step is Step.SHARES else None
        self._joined[0].post("secure", body, name, lasting=lasting, vector=vector, payload=question.letters[name])

    # ------------------------------------------------------------------------------------------------ replies

    def _take(self, arrival: Arrival, asking: Asking | None = None) -> Found | None:
        """What became of a message; a reply where it ends what a party was asked."""
        door = self._joined[0]
        sent = door.sent.pop(arrival.message, None)
        if sent is None:  # forgotten, or never sent
            return None
        if arrival.problem:
            door.astray(sent, arrival.problem)
            if sent.kind == "secure":  # it is sent again, soon: a step is short, and the same question has one answer
                if (site := door.known.get(sent.party)) is not None:
                    site.rests = self._clock() + 2 * NAP
                return None
            asked = sent.kind == "train" or (sent.kind == "enrol" and asking is not None)
            return lost(sent, "its reply did not arrive") if asked else None
        try:
            letter = wire.read_letter(arrival.content, most=self._most)
            if letter.kind == "unreadable" and not letter.answers:
                raise wire.UnreadableLetter(f"it could not read the {sent.kind}: {reason_of(letter)}")
            if letter.answers != sent.digest:
                raise wire.UnreadableLetter("it answers another request")
            if wire.holds_huge_number(letter.body):
                raise wire.UnreadableLetter(wire.HUGE_NUMBER)
            door.check_ours(letter)
            found = self._heard(letter, sent, asking)
            return None if found is None else Found(party=sent.party, reply=found)
        except (wire.UnreadableLetter, CorruptState) as error:
            who = sent.party or f"node {sent.node}"
            anew = self._logged.is_new(f"{sent.kind} {who}", str(error)) or sent.kind != "hello"  # greetings come often
            log.log(logging.WARNING if anew else logging.DEBUG, "a reply of %s is left out: %s", who, error)
            return lost(sent, f"its reply is left out: {error}") if sent.kind in _WORK else None

    def _heard(self, letter: wire.Letter, sent: Sent, asking: Asking | None) -> Reply | Answer | None:
        door = self._joined[0]
        if sent.kind == "hello":
            door.welcome(letter, sent)
            return None
        party = sent.party
        check_succession(party, door.heads.get(party), letter.sender)
        site = door.known.get(party)
        if letter.kind == "refused":  # its head is not kept: the site may have found that its ledger was rewritten
            if site is not None:
                site.enrolled = False  # the next round begins with the plan again
            if asking is not None and asking.question is None and asking.asked(party) > (sent.kind == "train"):
                return Lost(party=party, reason=f"asked a second time, it refused: {reason_of(letter)}")
            return Refusal(party=party, reason=reason_of(letter))
        door.heads[party] = door.told[party] = letter.sender
        if letter.kind == "lost":
            return Lost(party=party, reason=reason_of(letter))
        if sent.kind == "enrol" and letter.kind == "enrolled":
            self._check_enrolment(letter, party)
            self._certify(letter, party)
            if site is not None and site.session == sent.session:
                site.enrolled = True
            return None
        if sent.kind == "train" and letter.kind == "update" and asking is not None:
            return self._update(letter, party, asking)
        if sent.kind == "secure" and letter.kind == "secured" and asking is not None and asking.question is not None:
            return self._answer(letter, party, asking, asking.question)
        if sent.kind == "farewell" and letter.kind == "noted":
            return None
        raise wire.UnreadableLetter(f"a {letter.kind[:20]!r} is no reply to a {sent.kind}")

    def _update(self, letter: wire.Letter, party: str, asking: Asking) -> Reply:
        request, body = asking.request, letter.body
        if (body.get("round"), body.get("attempt")) != (request.round, request.attempt) or letter.vector is None:
            raise wire.UnreadableLetter("it is not about this round")
        if _charged(letter) != asking.expected[party]:
            raise wire.UnreadableLetter("it charged other events than the plan says")
        return Update(party=party, delta=letter.vector)

    def _answer(self, letter: wire.Letter, party: str, asking: Asking, question: Question) -> Answer:
        request, body = asking.request, letter.body
        told = body.get("round"), body.get("attempt"), body.get("step")
        if told != (request.round, request.attempt, question.step.name.lower()) or not letter.payload:
            raise wire.UnreadableLetter("it is not about this step")
        if question.step is Step.SHARES and _charged(letter) != asking.expected[party]:
            raise wire.UnreadableLetter("it charged other events than the plan says")
        return Answer(party=party, content=letter.payload)

    def _certify(self, letter: wire.Letter, party: str) -> None:
        """Keep by which key the site is known in secure rounds, if its own ledger says so."""
        if self._joined[1].secure is None:
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
        resolved, told = self._joined[1], _charged(letter)
        if told not in {charges_digest(enrolment_charges(resolved, party, trusting=trust)) for trust in (True, False)}:
            raise wire.UnreadableLetter("it enrolled with other events than the plan says")


def _needed(resolved: ResolvedPlan) -> int:
    """How many sites a round needs to be worth its charge."""
    secure = resolved.secure
    least = 0 if secure is None else max(secure.floor, secure.parameters.threshold)
    if secure is not None and secure.grouping is not None and resolved.robust is not None:
        least *= fewest_groups(resolved.robust, secure.grouping.count, secure.grouping.attackers)
    return max(resolved.plan.federation.minimum_parties, least)


def _charged(letter: wire.Letter) -> str:
    """The digest of the charges that a site says it has written down."""
    try:
        return charges_digest([Charge.from_dict(values) for values in letter.body["charges"]])
    except (QuietsumError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        raise wire.UnreadableLetter("its charges cannot be read") from None
