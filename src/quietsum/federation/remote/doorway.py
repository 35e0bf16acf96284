"""Who is there, and what is under way: the coordinator's letters to its sites, and the sites as it knows them.

Sites are found by greeting every node that the carrier knows; a node is a site when it signs the greeting with the node
key that the roster holds for that name. From then on the site is known by its ledger: every letter of it is signed with
that ledger's key and shows its newest head.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum import wire
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.federation.remote.exchange import Known, Sent, reason_of
from quietsum.federation.remote.transport import Arrival, Transport
from quietsum.ledger import Ledger, Testimony, check_succession

__all__ = ["AGAIN", "NAP", "Doorway", "NodeAccepts"]

log = logging.getLogger("quietsum.federation.remote.coordinator")

NAP = 0.25
AGAIN = 2.0
"""Seconds before a known site is greeted once more, or asked after a message to it went astray."""
_GREETING = 10.0

NodeAccepts = Callable[[bytes, bytes], bool]
"""Whether a signature under a message is that of a site's node key."""


@final
class Doorway:
    """The coordinator's end of a carrier.

    Guarantees: a node is believed to be a party only where its node key says so, and where its ledger has not gone back
    behind what is kept of it. ``heads`` is what is kept, ``told`` what has come since somebody last looked.
    """

    def __init__(
        self,
        transport: Transport,
        roster: Mapping[str, NodeAccepts] | None,
        clock: Callable[[], float],
        ledger: Ledger,
        parties: Sequence[str],
    ) -> None:
        self._transport, self._roster, self._clock, self._ledger = transport, roster, clock, ledger
        self.parties = tuple(parties)
        self.known: dict[str, Known] = {}
        self.sent: dict[str, Sent] = {}
        self.heads: dict[str, Testimony] = dict(ledger.known_heads())
        self.told: dict[str, Testimony] = {}
        self.turned_away: dict[str, str] = {}
        self.seen: dict[str, float] = {}  # when each was last connected, or may have been
        self._greeted: dict[str, float] = {}
        self._claims: dict[str, str] = {}  # who a node says it is: its next greeting shows what we have kept of it

    def enrolled(self, name: str) -> bool:
        """Whether the present process of ``name`` has enrolled."""
        return name in self.known and self.known[name].enrolled

    def nodes(self) -> Sequence[str] | None:
        """The nodes that are connected; None where the carrier does not say."""
        try:
            return self._transport.nodes()
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            return None

    def strangers(self, nodes: Sequence[str]) -> bool:
        """Whether some node of ``nodes`` was greeted and has not answered: it may be any party that is not known."""
        sites = {site.node for site in self.known.values()}
        open_ = {sent.node for sent in self.sent.values() if sent.kind == "hello"}
        return any(node in open_ and node not in sites for node in nodes)

    def connected(self) -> int:
        """How many parties are known and there."""
        nodes = set(self.nodes() or ())
        return sum(name in self.known and self.known[name].node in nodes for name in self.parties)

    def greet(self, waiting: Mapping[str, None]) -> Sequence[str] | None:
        """Greet nodes that are not known as sites, and now and then those we wait for: they may have begun anew.

        The nodes that are connected, as :meth:`nodes` says.
        """
        now, nodes = self._clock(), self.nodes()
        sites = {site.node: name for name, site in self.known.items()}
        for node in nodes or ():
            if node in sites and sites[node] not in waiting:
                continue
            pause = AGAIN if node in sites else NAP * 4
            open_ = any(sent.node == node and sent.kind == "hello" for sent in self.sent.values())
            if now - self._greeted.get(node, -1e9) < (_GREETING if open_ else pause):
                continue
            self._greeted[node] = now
            for message in [m for m, sent in self.sent.items() if sent.node == node and sent.kind == "hello"]:
                self._drop(message)
            self.post("hello", {}, node=node, lasting=_GREETING)
        return nodes

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
        """Send a signed letter with our newest head, and with the newest that we have kept of who gets it."""
        site = self.known.get(party)
        knows = self.heads.get(party or self._claims.get(node, ""))
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
        self.sent[message] = Sent(node=where, kind=kind, digest=digest, party=party, session=session)

    def arrived(self, wait: float) -> Sequence[Arrival]:
        """What the carrier has; a carrier that fails for a while loses time, and no round."""
        try:
            return self._transport.arrived(wait)
        except QuietsumError as error:
            log.info("the carrier does not answer: %s", error)
            time.sleep(wait)
            return ()

    def forget(self, *kinds: str) -> None:
        """No longer wait for replies to messages of these kinds."""
        for message in [message for message, sent in self.sent.items() if sent.kind in kinds]:
            self._drop(message)

    def _drop(self, message: str) -> None:
        self.sent.pop(message)
        self._transport.forget(message)

    def check_ours(self, letter: wire.Letter) -> None:
        """A site that has kept a head of ours which our ledger does not contain has found us out."""
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

    def astray(self, sent: Sent, problem: str) -> None:
        """A message did not reach its site, or its reply did not come: the site is left in peace for a moment."""
        log.info("no reply to %r for %s: %s", sent.kind, sent.party or sent.node, problem)
        site = self.known.get(sent.party)
        if site is not None:
            site.rests = self._clock() + AGAIN

    def welcome(self, letter: wire.Letter, sent: Sent) -> None:
        """What came to a greeting: believed where the node key says so, and the ledger is the one it was."""
        if letter.kind == "refused":
            if self.turned_away.get(sent.node) != reason_of(letter):
                log.warning("node %s refuses: %s", sent.node, reason_of(letter))
            self.turned_away[sent.node] = reason_of(letter)
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
        known = self.known.get(party)
        if known is not None and (known.node, known.session) == (sent.node, session):
            return  # it may have been overtaken by what was sent after it
        self._claims[sent.node] = party
        check_succession(party, self.heads.get(party), letter.sender)
        log.info("site %s is there (node %s)", party, sent.node)
        self.heads.setdefault(party, letter.sender)  # one we have kept stays: the site must still contain it
        self.known[party] = Known(node=sent.node, session=session)
