"""The sites of a run as its coordinator knows them, and the signed letters between them.

Sites are found by greeting every node that the carrier knows; a node is a site when it signs the greeting with the node
key that the roster holds for that name. From then on the site is known by its ledger: every letter of it is signed with
that ledger's key and shows its newest head. What a letter asks for and what its reply means for a round is for
:mod:`quietsum.federation.remote.federation`.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum import wire
from quietsum.errors import CorruptState, LedgerBroken, QuietsumError
from quietsum.federation.remote.transport import Arrival, Transport
from quietsum.ledger import Ledger, Testimony, check_succession
from quietsum.party import LogOnce

__all__ = ["ABSENT", "GRACE", "NAP", "NodeAccepts", "Received", "SentLetter", "Sites", "reason_in"]

log = logging.getLogger("quietsum.federation.remote")  # one name for all lines about sites

NAP = 0.25
AGAIN = 2.0
"""Seconds before a known site is greeted once more, or asked after a message to it went astray."""
ABSENT = 60.0
"""Seconds that a round waits for a site that is not connected; a site tries again every fifteen."""
GRACE = 1.0
"""Seconds that a round gives a site that was away for longer than that already."""
_GREETING = 10.0
_WORK = ("enrol", "train", "secure")  # what a site answers one at a time

NodeAccepts = Callable[[bytes, bytes], bool]
"""Whether a signature under a message is that of a site's node key."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SentLetter:
    """A letter under way: to whom, of which kind, and the hash by which its reply names it."""

    node: str
    kind: str
    digest: str
    party: str = ""
    session: str = ""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Received:
    """What came of a letter to a site: its ``letter`` in reply, or the ``problem`` why there is none to be used.

    ``astray`` says that the carrier lost it; otherwise what came with a problem was no letter of that site.
    """

    sent: SentLetter
    letter: wire.Letter | None = None
    problem: str = ""
    astray: bool = False


@final
@dataclasses.dataclass(kw_only=True)
class _Site:
    """A site that has answered a greeting: where it is, and its process."""

    node: str
    session: str
    enrolled: bool = False
    rests: float = -math.inf
    """Until when it is not asked again: a letter to it went astray."""


@final
class Sites:
    """The coordinator's end of a carrier.

    Guarantees: a node is believed to be a party only if its node key says so, and if its ledger has not gone back
    behind the head that was kept of it. A letter that :meth:`receive` returns answers the one that was sent, and is
    signed by the ledger that the site is known by. Nothing that arrives raises, with one exception:
    :class:`~quietsum.errors.LedgerBroken` if a site has kept a head of ours that our ledger does not contain.
    """

    def __init__(
        self,
        transport: Transport,
        roster: Mapping[str, NodeAccepts] | None,
        *,
        parties: Sequence[str],
        ledger: Ledger,
        most: int,
        clock: Callable[[], float],
    ) -> None:
        """``roster`` holds the node keys by name, None believes what nodes say; ``most`` is the longest reply."""
        self._transport, self._roster, self._clock = transport, roster, clock
        self._ledger, self._most = ledger, most
        self.parties = tuple(parties)
        self._known: dict[str, _Site] = {}
        self._sent: dict[str, SentLetter] = {}
        self._heads: dict[str, Testimony] = dict(ledger.other_heads())
        self._fresh_heads: dict[str, Testimony] = {}
        self._turned_away: dict[str, str] = {}
        self._seen: dict[str, float] = {}  # when each was last connected, or may have been
        self._greeted: dict[str, float] = {}
        self._claims: dict[str, str] = {}  # who a node says it is: its next greeting shows what we have kept of it
        self._logged = LogOnce()

    # ------------------------------------------------------------------------------------------- who is there

    def knows(self, party: str) -> bool:
        """Whether ``party`` has answered a greeting."""
        return party in self._known

    def is_enrolled(self, party: str) -> bool:
        """Whether the present process of ``party`` has enrolled."""
        return party in self._known and self._known[party].enrolled

    def note_enrolled(self, sent: SentLetter) -> None:
        """The process that was ``sent`` the plan has enrolled; one that took its place meanwhile has not."""
        site = self._known.get(sent.party)
        if site is not None and site.session == sent.session:
            site.enrolled = True

    def refusals(self) -> tuple[str, ...]:
        """Why nodes refused their greeting, each reason once."""
        return tuple(dict.fromkeys(self._turned_away.values()))

    def count_connected(self) -> int:
        """How many parties are known and connected."""
        nodes = set(self._nodes() or ())
        return sum(name in self._known and self._known[name].node in nodes for name in self.parties)

    def greet(self, waiting: Collection[str]) -> Sequence[str] | None:
        """Greet nodes that are not known as sites, and now and then those of ``waiting``: they may have begun anew.

        Returns the nodes that are connected, None if the carrier does not answer.
        """
        now, nodes = self._clock(), self._nodes()
        sites = {site.node: name for name, site in self._known.items()}
        for node in nodes or ():
            if node in sites and sites[node] not in waiting:
                continue
            pause = AGAIN if node in sites else NAP * 4
            open_ = any(sent.node == node and sent.kind == "hello" for sent in self._sent.values())
            if now - self._greeted.get(node, -1e9) < (_GREETING if open_ else pause):
                continue
            self._greeted[node] = now
            for message in [m for m, sent in self._sent.items() if sent.node == node and sent.kind == "hello"]:
                self._drop(message)
            self.post("hello", {}, node=node, lasting=_GREETING)
        return nodes

    def find_absent(self, waiting: Collection[str], nodes: Sequence[str] | None, began: float) -> list[str]:
        """Those of ``waiting`` that have not been connected for a while, and are not at work on a request either.

        ``nodes`` is what :meth:`greet` returned, ``began`` when the round did. Without a carrier no site can be
        connected; and a node that has not said yet who it is may be any of them: a site at work answers a greeting when
        it is done.
        """
        now, absent = self._clock(), []
        at_work = {sent.party for sent in self._sent.values() if sent.kind in ("train", "secure")}
        strange = nodes is not None and self._has_strangers(nodes)
        for name in waiting:
            site = self._known.get(name)
            there = strange if site is None else nodes is not None and site.node in nodes
            if nodes is None or there or name in at_work:
                self._seen[name] = now
            elif now - self._seen.setdefault(name, began) > ABSENT and now - began > GRACE:
                absent.append(name)
        return absent

    def _nodes(self) -> Sequence[str] | None:
        try:
            return self._transport.nodes()
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            return None

    def _has_strangers(self, nodes: Sequence[str]) -> bool:
        """Whether some node of ``nodes`` was greeted and has not answered: it may be any party that is not known."""
        sites = {site.node for site in self._known.values()}
        open_ = {sent.node for sent in self._sent.values() if sent.kind == "hello"}
        return any(node in open_ and node not in sites for node in nodes)

    # ------------------------------------------------------------------------------------------------- letters

    def can_ask(self, party: str) -> bool:
        """Whether ``party`` is known, and its present process has nothing of ours to answer or to rest from."""
        site = self._known.get(party)
        if site is None or self._clock() < site.rests:
            return False
        under_way = (sent for sent in self._sent.values() if sent.party == party and sent.kind in _WORK)
        return not any(sent.session == site.session for sent in under_way)

    def is_under_way(self, kind: str) -> bool:
        """Whether the reply to some letter of this kind has not come."""
        return any(sent.kind == kind for sent in self._sent.values())

    def post(
        self,
        kind: str,
        body: Mapping[str, Any],
        party: str = "",
        *,
        lasting: float,
        node: str = "",
        vector: NDArray[np.float64] | None = None,
        payload: bytes = b"",
    ) -> None:
        """Send a signed letter with our newest head, and with the newest that we have kept of its receiver."""
        site = self._known.get(party)
        knows = self._heads.get(party or self._claims.get(node, ""))
        content, digest = wire.write_letter(
            kind, body, self._ledger, to=party, knows=knows, vector=vector, payload=payload
        )
        where = site.node if site is not None else node
        try:
            message = self._transport.send(where, content, lasting=lasting)
        except QuietsumError as error:
            log.info("%s could not be sent to %s: %s", kind, party or node, error)
            return
        session = site.session if site is not None else ""
        self._sent[message] = SentLetter(node=where, kind=kind, digest=digest, party=party, session=session)

    def receive(self, wait: float) -> Iterator[Received]:
        """What came of letters to sites; waits at most ``wait`` seconds. Replies to greetings are dealt with here.

        A carrier that fails for a while loses time, and no round.
        """
        try:
            arrivals = self._transport.receive(wait)
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            time.sleep(wait)
            return
        for arrival in arrivals:
            received = self._take(arrival)
            if received is not None:
                yield received

    def leave_out(self, sent: SentLetter, error: Exception) -> str:
        """Log why a reply is left out, a greeting's only once; returns the reason for the round."""
        who = sent.party or f"node {sent.node}"
        anew = self._logged.is_new(f"{sent.kind} {who}", str(error)) or sent.kind != "hello"  # greetings come often
        log.log(logging.WARNING if anew else logging.DEBUG, "a reply of %s is left out: %s", who, error)
        return f"its reply is left out: {error}"

    def forget(self, *kinds: str) -> None:
        """No longer wait for replies to letters of these kinds."""
        for message in [message for message, sent in self._sent.items() if sent.kind in kinds]:
            self._drop(message)

    def take_testimonies(self) -> Mapping[str, Testimony]:
        """The sites' heads that came since the last call."""
        fresh, self._fresh_heads = self._fresh_heads, {}
        return fresh

    def _drop(self, message: str) -> None:
        self._sent.pop(message)
        self._transport.forget(message)

    def _take(self, arrival: Arrival) -> Received | None:
        sent = self._sent.pop(arrival.message, None)
        if sent is None:  # forgotten, or never sent
            return None
        if arrival.problem:
            self._note_astray(sent, arrival.problem)
            lost = Received(sent=sent, problem="its reply did not arrive", astray=True)
            return None if sent.kind == "hello" else lost
        try:
            letter = self._read(arrival.content, sent)
            if sent.kind == "hello":
                self._welcome(letter, sent)
                return None
            self._keep_head(letter, sent.party)
        except (wire.UnreadableLetter, CorruptState) as error:
            problem = self.leave_out(sent, error)
            return None if sent.kind == "hello" else Received(sent=sent, problem=problem)
        return Received(sent=sent, letter=letter)

    def _note_astray(self, sent: SentLetter, problem: str) -> None:
        """The site is left in peace for a moment; a step of a secure round is sent again sooner."""
        log.info("no reply to %r for %s: %s", sent.kind, sent.party or sent.node, problem)
        site = self._known.get(sent.party)
        if site is not None:
            site.rests = self._clock() + (2 * NAP if sent.kind == "secure" else AGAIN)

    def _read(self, content: bytes, sent: SentLetter) -> wire.Letter:
        letter = wire.read_letter(content, most=self._most)
        if letter.kind == "unreadable" and not letter.answers:
            raise wire.UnreadableLetter(f"it could not read the {sent.kind}: {reason_in(letter)}")
        if letter.answers != sent.digest:
            raise wire.UnreadableLetter("it answers another request")
        if wire.holds_huge_number(letter.body):
            raise wire.UnreadableLetter(wire.HUGE_NUMBER)
        self._check_ours(letter)
        return letter

    def _check_ours(self, letter: wire.Letter) -> None:
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

    def _keep_head(self, letter: wire.Letter, party: str) -> None:
        check_succession(party, self._heads.get(party), letter.sender)
        if letter.kind != "refused":
            self._heads[party] = self._fresh_heads[party] = letter.sender
            return
        # The head of a refusal is not kept: the site may have seen that its ledger was rewritten.
        if (site := self._known.get(party)) is not None:
            site.enrolled = False  # the next round begins with the plan again

    def _welcome(self, letter: wire.Letter, sent: SentLetter) -> None:
        """The reply to a greeting: believed if the node key says so, and the ledger is the one it was."""
        if letter.kind == "refused":
            if self._turned_away.get(sent.node) != reason_in(letter):
                log.warning("node %s refuses: %s", sent.node, reason_in(letter))
            self._turned_away[sent.node] = reason_in(letter)
            return
        party, session = letter.body.get("party"), letter.body.get("session")
        if letter.kind != "here" or not isinstance(party, str) or not isinstance(session, str):
            raise wire.UnreadableLetter("it is no answer to a greeting")
        if party not in self.parties:
            log.info("node %s is %r, which is not in this plan", sent.node, party[:60])
            return
        if self._roster is not None:
            message = wire.node_statement(sent.digest, party, letter.sender.public_key)
            try:
                genuine = self._roster[party](bytes.fromhex(letter.body.get("signature", "")), message)
            except (ValueError, TypeError, LookupError):
                genuine = False
            if not genuine:
                raise wire.UnreadableLetter(f"node {sent.node} says that it is {party}, and its node key does not")
        known = self._known.get(party)
        if known is not None and (known.node, known.session) == (sent.node, session):
            return  # it may have been overtaken by what was sent after it
        self._claims[sent.node] = party
        check_succession(party, self._heads.get(party), letter.sender)
        log.info("site %s is there (node %s)", party, sent.node)
        self._heads.setdefault(party, letter.sender)  # one we have kept stays: the site must still contain it
        self._known[party] = _Site(node=sent.node, session=session)


def reason_in(letter: wire.Letter) -> str:
    """The reason that ``letter`` states, as one line that a log can hold: the text comes from elsewhere."""
    found = letter.body.get("reason")
    words = found[:500] if isinstance(found, str) else ""
    return "".join(sign if sign.isprintable() else " " for sign in words).strip() or "no reason given"
