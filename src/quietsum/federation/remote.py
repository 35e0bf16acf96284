"""Sites on other machines: find them, enrol them, ask them, and be done on time.

The coordinator's side of :mod:`quietsum.party.service`. Sites are found by greeting every node that the carrier knows;
a node is a site when it signs the greeting with the node key that the roster holds for that name. From then on the site
is known by its ledger: every reply is signed with that ledger's key and shows its newest head, which goes into the
coordinator's own ledger with the round's commit.

A round ends at its deadline, whatever became of whom. A site that was started anew meanwhile is asked once more, for
the same attempt: it answers if it had not reserved yet, and says so if it had. Nothing a site sends can end a round;
what is unreadable, unsigned, of another run, or does not charge what the plan says, leaves that site out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Fold
from quietsum.errors import CorruptState, LedgerBroken, PlanRefused, QuietsumError, TooFewParties
from quietsum.failpoints import reach
from quietsum.federation.exchange import Asking, Found, Known, Sent, lost, reason_of
from quietsum.federation.messages import Lost, Refusal, Reply, TrainRequest, Update
from quietsum.federation.transport import Arrival, Transport
from quietsum.ledger import Charge, Ledger, Testimony
from quietsum.ledger.witnesses import check_succession
from quietsum.party import wire
from quietsum.party.books import charges_digest, enrolment_charges, resolved_to, site_charges
from quietsum.party.wire import identity_message
from quietsum.plan import ResolvedPlan

__all__ = ["DEADLINE", "NodeAccepts", "RemoteFederation"]

log = logging.getLogger(__name__)

DEADLINE = 600.0
"""Seconds that a round may take where the plan states no deadline: across machines it must end some time."""
_NAP = 0.25
_GREETING = 10.0
_AGAIN = 2.0
_FAREWELL = 5.0

NodeAccepts = Callable[[bytes, bytes], bool]
"""Whether a signature under a message is that of a site's node key."""
Vector = NDArray[np.float64]


@final
class RemoteFederation:
    """The sites of a plan, over any :class:`~quietsum.federation.transport.Transport`.

    Guarantees: every party of a cohort has one reply by the deadline. A refusal is passed on only where the site says,
    signed, that it has not touched its data. What a site is asked is reserved in the coordinator's ledger before, and
    the request carries the head that proves it.
    """

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
        self._known: dict[str, Known] = {}
        self._sent: dict[str, Sent] = {}
        self._greeted: dict[str, float] = {}
        self._claims: dict[str, str] = {}  # who a node says it is: its next greeting shows what we have kept of it
        self._told: dict[str, Testimony] = {}
        self._turned_away: dict[str, str] = {}
        self._heads: dict[str, Testimony] = {}
        self._run = ""
        self._resolved: ResolvedPlan | None = None
        self._ledger: Ledger | None = None

    counts_deadline = True

    # ------------------------------------------------------------------------------------------------ joining

    def join(self, run: str, resolved: ResolvedPlan, ledger: Ledger) -> None:
        """Find the sites of the plan and enrol them: all, or after ``patience`` as many as the plan needs.

        A site that refuses is asked again in every round: its owner may change the policy, or raise a budget.
        """
        self._refuse(resolved)
        self._run, self._resolved, self._ledger = run, resolved, ledger
        self._heads = dict(ledger.witnessed())
        self._most = min(self._most, wire.LARGEST_HEADER + 8 * resolved.dimension + 2**16)
        end, names, refused = self._clock() + self._patience, self.registered(), dict[str, str]()
        while (left := end - self._clock()) > 0:
            waiting = [name for name in names if name not in refused and not self._enrolled(name)]
            if not waiting:
                break
            self._greet(dict.fromkeys(waiting))
            for name in waiting:
                self._go_on(None, name, left)
            for arrival in self._arrived(min(_NAP, left)):
                found = self._take(arrival)
                if found is not None and isinstance(found.reply, Refusal | Lost):
                    refused[found.party] = found.reply.reason
        self._forget("enrol")  # a round begins with it again
        for name, reason in refused.items():
            log.warning("site %s refuses: %s", name, reason)
        missing = [name for name in names if name not in refused and not self._enrolled(name)]
        for name in missing:
            log.warning("site %s is not there; the rounds go on without it until it comes", name)
        there, needed = len(names) - len(missing) - len(refused), resolved.plan.federation.minimum_parties
        if there < needed:
            told = [f"{name} refuses: {reason}" for name, reason in refused.items()]
            told += [f"not there: {', '.join(missing[:8])}"] if missing else []
            told += [f"a node refuses: {reason}" for reason in dict.fromkeys(self._turned_away.values())]
            raise TooFewParties(
                f"{there} of {len(names)} sites take part, the plan needs {needed}; no data was touched. "
                + "; ".join(told)
                + (". Is `quietsum party serve` running there, and can it reach this machine?" if missing else "")
            )

    def _forget(self, *kinds: str) -> None:
        """No longer wait for replies to messages of these kinds."""
        for message in [message for message, sent in self._sent.items() if sent.kind in kinds]:
            self._sent.pop(message)
            self._transport.forget(message)

    def _arrived(self, wait: float) -> Sequence[Arrival]:
        """What the carrier has; a carrier that fails for a while loses time, and no round."""
        try:
            return self._transport.arrived(wait)
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            time.sleep(wait)
            return ()

    def _enrolled(self, name: str) -> bool:
        return name in self._known and self._known[name].enrolled

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
        assert self._resolved is not None
        names, needed = self.registered(), self._resolved.plan.federation.minimum_parties
        end = self._clock() + self._patience
        while (there := self._connected(names)) < needed:
            left = end - self._clock()
            if left <= 0:
                raise TooFewParties(
                    f"{there} of {len(names)} sites are connected, a round needs {needed}; nothing was reserved. "
                    "Resume when they are back"
                )
            self._greet(dict.fromkeys(names))
            for arrival in self._arrived(min(_NAP, left)):
                self._take(arrival)

    def _connected(self, names: Sequence[str]) -> int:
        try:
            nodes = set(self._transport.nodes())
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            return 0
        return sum(name in self._known and self._known[name].node in nodes for name in names)

    def leave(self, outcome: str) -> None:
        """Send every site the last head, and wait a moment for the word that it was kept."""
        if self._ledger is None:
            return
        for name, site in self._known.items():
            if site.enrolled:
                self._post("farewell", {"run": self._run, "outcome": outcome}, name, lasting=_FAREWELL)
        waiting = {message for message, sent in self._sent.items() if sent.kind == "farewell"}
        end = self._clock() + _FAREWELL
        try:
            while waiting & self._sent.keys() and self._clock() < end:
                for arrival in self._arrived(_NAP):
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
        assert self._resolved is not None, "join() comes first"
        return tuple(facts.name for facts in self._resolved.parties)

    def testimonies(self) -> Mapping[str, Testimony]:
        """The sites' heads that came since the last time."""
        told, self._told = self._told, {}
        return told

    # ------------------------------------------------------------------------------------------------- asking

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """One reply a site, as they arrive; those that are missing at the deadline are lost."""
        assert self._resolved is not None
        limit = self._resolved.plan.federation.deadline or DEADLINE
        end, waiting = self._clock() + limit, dict.fromkeys(cohort)
        asking = Asking(request, {name: self._expected(name, request.round) for name in cohort})
        while waiting and (left := end - self._clock()) > 0:
            self._greet(waiting)
            for name in list(waiting):
                self._go_on(asking, name, left)
            reach("remote:waiting")
            for arrival in self._arrived(min(_NAP, left)):
                found = self._take(arrival, asking)
                if found is not None and found.party in waiting:
                    del waiting[found.party]
                    yield found.reply
        self._forget("enrol", "train")
        for name in waiting:
            why = "" if name in self._known else "; it was not there"
            yield Lost(party=name, reason=f"it had not replied by the deadline of {limit:g} s{why}")

    def _expected(self, party: str, number: int) -> str:
        assert self._resolved is not None
        return charges_digest(site_charges(self._resolved, party, number))

    def _go_on(self, asking: Asking | None, name: str, lasting: float) -> None:
        """Send what comes next for ``name``: the plan, where its process has not seen it yet, then the request."""
        assert self._resolved is not None
        site = self._known.get(name)
        if site is None:
            return
        under_way = [sent for sent in self._sent.values() if sent.party == name and sent.kind in ("enrol", "train")]
        if any(sent.session == site.session for sent in under_way):
            return
        if not site.enrolled:
            self._post("enrol", {"run": self._run, "resolved": resolved_to(self._resolved)}, name, lasting=lasting)
            return
        if asking is None:
            return
        request = asking.request
        body = {
            "run": request.run,
            "round": request.round,
            "attempt": request.attempt,
            "plan": self._resolved.plan.digest,
        }
        reach("remote:before-request")
        asking.requests.append(name)
        self._post("train", body, name, lasting=lasting, vector=request.params)
        reach("remote:requested")

    # ---------------------------------------------------------------------------------------------- greetings

    def _greet(self, waiting: Mapping[str, None] | None = None) -> None:
        """Greet nodes that are not known as sites, and now and then those we wait for: they may have begun anew."""
        now = self._clock()
        try:
            nodes = self._transport.nodes()
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            return
        sites = {site.node: name for name, site in self._known.items()}
        for node in nodes:
            if node in sites and (waiting is None or sites[node] not in waiting):
                continue
            pause = _AGAIN if node in sites else _NAP * 4
            open_ = any(sent.node == node and sent.kind == "hello" for sent in self._sent.values())
            if now - self._greeted.get(node, -1e9) < (_GREETING if open_ else pause):
                continue
            self._greeted[node] = now
            for message in [m for m, sent in self._sent.items() if sent.node == node and sent.kind == "hello"]:
                self._sent.pop(message)
                self._transport.forget(message)
            self._post("hello", {}, node=node, lasting=_GREETING)

    def _post(
        self,
        kind: str,
        body: Mapping[str, Any],
        party: str = "",
        *,
        lasting: float,
        node: str = "",
        vector: Vector | None = None,
    ) -> None:
        assert self._ledger is not None
        site = self._known.get(party)
        knows = self._heads.get(party or self._claims.get(node, ""))
        content, digest = wire.write(kind, body, self._ledger, to=party, knows=knows, vector=vector)
        where = site.node if site is not None else node
        try:
            message = self._transport.send(where, content, lasting=lasting)
        except QuietsumError as error:
            log.info("%s could not be sent to %s: %s", kind, party or node, error)
            return
        session = site.session if site is not None else ""
        self._sent[message] = Sent(node=where, kind=kind, digest=digest, party=party, session=session)

    # ------------------------------------------------------------------------------------------------ replies

    def _take(self, arrival: Arrival, asking: Asking | None = None) -> Found | None:
        """What became of a message; a reply where it ends what a party was asked."""
        sent = self._sent.pop(arrival.message, None)
        if sent is None:  # forgotten, or never sent
            return None
        if arrival.problem:
            log.info("no reply to a %s for %s: %s", sent.kind, sent.party or sent.node, arrival.problem)
            return lost(sent, "its reply did not arrive") if sent.kind == "train" else None
        try:
            letter = wire.read(arrival.content, most=self._most)
            if letter.kind == "unreadable" and not letter.answers:
                raise wire.Unreadable(f"it could not read the {sent.kind}: {reason_of(letter)}")
            if letter.answers != sent.digest:
                raise wire.Unreadable("it answers another request")
            self._check_ours(letter)
            found = self._heard(letter, sent, asking)
            return None if found is None else Found(party=sent.party, reply=found)
        except (wire.Unreadable, CorruptState) as error:
            log.warning("a reply of %s is left out: %s", sent.party or f"node {sent.node}", error)
            return lost(sent, f"its reply is left out: {error}") if sent.kind in ("train", "enrol") else None

    def _check_ours(self, letter: wire.Letter) -> None:
        """A site that has kept a head of ours which our ledger does not contain has found us out."""
        assert self._ledger is not None
        kept = letter.knows
        if kept is None or kept.ledger != self._ledger.identity.ledger:
            return
        if not self._ledger.contains(kept.head):
            raise LedgerBroken(
                "does not contain a head that it signed and a site has kept: it was cut, rewritten, or an older copy "
                "was put back",
                at=kept.head.sequence,
                remedy="restore the newest copy, then resume; nothing was asked of anybody",
            )

    def _heard(self, letter: wire.Letter, sent: Sent, asking: Asking | None) -> Reply | None:
        if sent.kind == "hello":
            if letter.kind == "refused":
                if self._turned_away.get(sent.node) != reason_of(letter):
                    log.warning("node %s refuses: %s", sent.node, reason_of(letter))
                self._turned_away[sent.node] = reason_of(letter)
                return None
            self._welcome(letter, sent)
            return None
        party = sent.party
        check_succession(party, self._heads.get(party), letter.sender)
        site = self._known.get(party)
        if letter.kind == "refused":  # its head is not kept: the site may have found that its ledger was rewritten
            if site is not None:
                site.enrolled = False  # the next round begins with the plan again
            if asking is not None and asking.asked(party) > (sent.kind == "train"):
                return Lost(party=party, reason=f"asked a second time, it refused: {reason_of(letter)}")
            return Refusal(party=party, reason=reason_of(letter))
        self._heads[party] = self._told[party] = letter.sender
        if letter.kind == "lost":
            return Lost(party=party, reason=reason_of(letter))
        if sent.kind == "enrol" and letter.kind == "enrolled":
            self._check_enrolment(letter, party)
            if site is not None and site.session == sent.session:
                site.enrolled = True
            return None
        if sent.kind == "train" and letter.kind == "update" and asking is not None:
            return self._update(letter, party, asking)
        if sent.kind == "farewell" and letter.kind == "noted":
            return None
        raise wire.Unreadable(f"a {letter.kind[:20]!r} is no reply to a {sent.kind}")

    def _update(self, letter: wire.Letter, party: str, asking: Asking) -> Reply:
        request, body = asking.request, letter.body
        if (body.get("round"), body.get("attempt")) != (request.round, request.attempt) or letter.vector is None:
            raise wire.Unreadable("it is not about this round")
        if _charged(letter) != asking.expected[party]:
            raise wire.Unreadable("it charged other events than the plan says")
        return Update(party=party, delta=letter.vector)

    def _check_enrolment(self, letter: wire.Letter, party: str) -> None:
        """A site that pays for the whole plan when it enrols has charged what the plan says, amplified or not."""
        assert self._resolved is not None
        told = _charged(letter)
        if told not in {charges_digest(enrolment_charges(self._resolved, party, trusting=t)) for t in (True, False)}:
            raise wire.Unreadable("it enrolled with other events than the plan says")

    def _welcome(self, letter: wire.Letter, sent: Sent) -> None:
        """A node that says who it is: believed where its node key says so, and its ledger is the one it was."""
        party, session = letter.body.get("party"), letter.body.get("session")
        if letter.kind != "here" or not isinstance(party, str) or not isinstance(session, str):
            raise wire.Unreadable("it is no answer to a greeting")
        if party not in self.registered():
            log.info("node %s is %r, which is not in this plan", sent.node, party[:60])
            return
        if self._roster is not None:
            message = identity_message(sent.digest, party, letter.sender.public_key)
            try:
                genuine = self._roster[party](bytes.fromhex(letter.body.get("signature", "")), message)
            except (ValueError, TypeError, LookupError):
                genuine = False
            if not genuine:
                raise wire.Unreadable(f"node {sent.node} says that it is {party}, and its node key does not")
        known = self._known.get(party)
        if known is not None and (known.node, known.session) == (sent.node, session):
            return  # it may have been overtaken by what was sent after it
        self._claims[sent.node] = party
        check_succession(party, self._heads.get(party), letter.sender)
        log.info("site %s is there (node %s)", party, sent.node)
        self._heads.setdefault(party, letter.sender)  # one we have kept stays: the site must still contain it
        self._known[party] = Known(node=sent.node, session=session)


def _charged(letter: wire.Letter) -> str:
    """The digest of the charges that a site says it has written down."""
    try:
        return charges_digest([Charge.from_dict(values) for values in letter.body["charges"]])
    except (QuietsumError, LookupError, TypeError, ValueError, AttributeError):
        raise wire.Unreadable("its charges cannot be read") from None
