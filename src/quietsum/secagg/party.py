"""The party's side of a secure session: five questions in, five answers out, and what it refuses.

A :class:`Party` serves one attempt of one round. It takes bytes and returns bytes; it has no clock, no socket and no
file. Bonawitz et al. 2017 with the consistency round (figure 4), over the complete graph or over the sparse one of Bell
et al. 2020.

Guarantees, against a server that may lie within the adversary class of the parameters:

* The vector leaves under one self-mask and one mask for each neighbour, from keys that exist in this session only.
* Of each peer, one share is revealed at most: of its seed if it is in the sum, of its key if it dropped out after
  sharing. The list of survivors decides it once; the other share is deleted at that moment, before the list is signed.
* Shares are revealed only if at least ``threshold`` holders signed the same list of survivors, and only if the part of
  the graph in which this party stands holds at least ``floor`` of them. Threshold and floor are the party's own
  (its orders and its policy), so the server cannot lower them.
* Each question is answered once. The same bytes again get the same answer (the masked vector until the next question is
  answered); anything else is refused.
* Where groups are drawn, this party works out its own from nonces that all had pledged before one was opened, its own
  among them (:mod:`quietsum.secagg.graph` says why no party chooses them). From then on the session is one among the
  group's members: floor, threshold, lists and signatures are the group's, and no other name is heard of.
* Own secrets are forgotten as soon as the masked vector is made, shares of others when the session ends. (Python
  cannot promise that the memory is overwritten.)

A frame that is not the server's for this party, session and step is refused and changes nothing. A question that the
server did sign and that breaks a rule ends the session for this party, and its secrets are dropped.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.mechanisms import RandomSource
from quietsum.secagg import graph, keys, masks, messages, shamir
from quietsum.secagg.messages import SERVER, Frame, Keys, KeyShare, SeedShare, SessionTerms, Share, Step
from quietsum.secagg.outcomes import Reason, Refused
from quietsum.secagg.parameters import Adversary
from quietsum.validate import whole_number

__all__ = ["Demands", "Party", "PeerState", "find_reachable", "sign_of"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Demands:
    """What a party demands of the terms that a server proposes."""

    threshold: int = 2
    floor: int = 2
    adversaries: frozenset[Adversary] = frozenset(Adversary)

    def __post_init__(self) -> None:
        whole_number("threshold", self.threshold, minimum=1)
        whole_number("floor", self.floor, minimum=1)

    def refuse(self, terms: SessionTerms) -> None:
        """Raise :class:`Refused` if ``terms`` give less than this policy asks for."""
        if terms.parameters.threshold < self.threshold:
            raise Refused(Reason.THRESHOLD_BELOW_POLICY)
        if terms.floor < self.floor:
            raise Refused(Reason.FLOOR_BELOW_POLICY)
        if terms.parameters.adversary not in self.adversaries:
            raise Refused(Reason.ADVERSARY_NOT_ALLOWED)


@final
class PeerState(enum.Enum):
    """Where a peer stands, as this party knows it. A peer is in one state, so one share of it can be due."""

    ADVERTISED = "advertised"
    SILENT = "dropped before sharing"
    SHARED = "shared"
    ALIVE = "in the sum"
    DROPPED = "dropped after sharing"


class _Peer:
    """A neighbour (or this party itself): its state, and the shares of its secrets that are held."""

    __slots__ = ("both", "one", "state")

    def __init__(self) -> None:
        self.state = PeerState.ADVERTISED
        self.both: tuple[SeedShare, KeyShare] | None = None
        self.one: Share | None = None

    def settle(self, *, survived: bool) -> None:
        """Fix the state for good, keep the one share that it calls for, and delete the other."""
        if self.state is not PeerState.SHARED:
            return
        self.state = PeerState.ALIVE if survived else PeerState.DROPPED
        if self.both is not None:
            self.one = self.both[0] if self.state is PeerState.ALIVE else self.both[1]
        self.both = None


class _Secrets:
    """What a party must not lose or tell before its masked vector is out."""

    __slots__ = ("channel", "channel_keys", "mask", "nonces", "seed")

    def __init__(self) -> None:
        self.mask = keys.KeyPair.fresh()
        self.channel = keys.KeyPair.fresh()
        self.seed = keys.draw_seed()
        self.nonces = tuple(keys.draw_seed() for _ in range(messages.DRAWS + 1))
        self.channel_keys: dict[str, bytes] = {}


def sign_of(party: str, peer: str) -> masks.Sign:
    """How ``party`` adds the mask that it shares with ``peer``: the one adds what the other subtracts."""
    return 1 if party < peer else -1


def find_reachable(start: str, members: Collection[str], near: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Those of ``members`` that are joined to ``start`` by masks: the server can read no smaller sum around it."""
    inside, found, queue = frozenset(members), {start}, [start]
    while queue:
        fresh = inside.intersection(near[queue.pop()]) - found
        found |= fresh
        queue.extend(fresh)
    return found


@final
class Party:
    """One party in one session; see the module for what it guarantees.

    ``peers`` maps the names of all parties that this one knows to their public identities; the cohort that the server
    names must be among them and hold this party. ``server`` is the server's public identity. ``remember = False``
    does not keep the masked vector for a second delivery of the same question, which is then refused.
    """

    def __init__(
        self,
        *,
        name: str,
        identity: keys.Identity,
        server: bytes,
        peers: Mapping[str, bytes],
        terms: SessionTerms,
        policy: Demands | None = None,
        remember: bool = True,
        rng: RandomSource | None = None,
    ) -> None:
        messages.check_names((name,))
        self.name, self.terms = name, terms
        self._identity, self._server, self._known = identity, server, {**peers, name: identity.public}
        self._policy = policy or Demands()
        self._remember, self._rng = remember, rng
        self._due: Step | None = Step.OPEN
        self._else: Step | None = None  # what may come instead: another draw
        self._answered: dict[Step, tuple[bytes, bytes | None]] = {}
        self._ended: Reason | None = None
        self._cohort: tuple[str, ...] = ()
        self._identities: dict[str, bytes] = {}
        self._opening = self._session = b""
        self._secrets: _Secrets | None = None
        self._roster: dict[str, Keys] = {}
        self._chosen = terms.parameters
        self._pledges: dict[str, bytes] = {}
        self._drawing = b""
        self._graph: Mapping[str, tuple[str, ...]] = {}
        self._holders: tuple[str, ...] = ()
        self._peers: dict[str, _Peer] = {}
        self._sharing: frozenset[str] = frozenset()
        self._survivors: tuple[str, ...] = ()

    @property
    def ended(self) -> Reason | None:
        """Why the session is over for this party, None while it is not."""
        return self._ended

    @property
    def survivors(self) -> tuple[str, ...]:
        """The list of survivors that this party signed; empty before."""
        return self._survivors

    @property
    def group(self) -> tuple[str, ...]:
        """The members of this party's group, itself among them; the whole cohort where none are drawn."""
        return self._cohort

    @property
    def states(self) -> dict[str, PeerState]:
        """Where each neighbour stands."""
        return {name: peer.state for name, peer in self._peers.items() if name != self.name}

    def advertise(self, message: bytes) -> bytes:
        """Compare the server's terms with the party's own, and answer with two fresh public keys."""
        return self._answer(Step.OPEN, message, self._advertise)

    def reveal(self, step: Step, message: bytes) -> bytes:
        """Note everyone's keys and pledges, and answer with the nonce that was pledged for this draw of groups."""
        place = messages.DRAWING.index(step)
        return self._answer(step, message, lambda frame: self._reveal(frame, place))

    def share(self, message: bytes) -> bytes:
        """Check everyone's keys (or work out the group), and answer with sealed shares of this party's two secrets."""
        return self._answer(Step.ROSTER, message, self._share)

    def mask(self, message: bytes, vector: NDArray[np.uint32] | Callable[[], NDArray[np.uint32]]) -> bytes:
        """Answer with the masked ``vector``. It is not changed and not kept.

        ``vector`` may be a function that makes it: it is called once every check of the question has passed, so that no
        data is touched for a question that is refused, and not again for a second delivery.
        """
        if isinstance(vector, np.ndarray):
            self._require_vector(vector)
        return self._answer(Step.SHARES, message, lambda frame: self._mask(frame, vector))

    def agree(self, message: bytes) -> bytes:
        """Check the list of survivors, settle each peer by it, and answer with this party's signature."""
        return self._answer(Step.SURVIVORS, message, self._agree)

    def unmask(self, message: bytes) -> bytes:
        """Check that enough holders signed the same list, answer with one share of each peer, and forget everything."""
        reply = self._answer(Step.AGREED, message, self._unmask)
        self._end(self._ended or Reason.ENDED)
        return reply

    def stop(self) -> None:
        """End the session and forget its secrets. A second call does nothing."""
        self._end(self._ended or Reason.ENDED)

    def __repr__(self) -> str:
        return f"Party(name={self.name!r}, due={self._due.name if self._due else None})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a party of a session is not copied or saved: a retry is a new session with new keys")

    # ---------------------------------------------------------------------------------------- one question, one answer

    def _answer(self, step: Step, message: bytes, work: Callable[[Frame], bytes]) -> bytes:
        frame = self._authentic(step, message)
        asked = hashlib.sha256(message).digest()
        if step in self._answered:
            before, reply = self._answered[step]
            if before != asked or reply is None:
                raise Refused(Reason.ALREADY_ANSWERED)
            return reply
        if self._ended is not None:
            raise Refused(self._ended)
        if step is not self._due and step is not self._else:
            raise Refused(Reason.WRONG_STEP)
        try:
            reply = work(frame)
        except Refused as refusal:
            if step is not Step.OPEN:  # before that there is no secret, and the right question may still come
                self._end(refusal.reason)
            raise
        kept = reply if self._remember or step is not Step.SHARES else None
        self._answered[step] = (asked, kept)
        if step is Step.SURVIVORS:  # the masked vector has arrived: it need not be kept for a second delivery
            self._answered[Step.SHARES] = (self._answered[Step.SHARES][0], None)
        self._due, self._else = self._after(step)
        return reply

    def _after(self, step: Step) -> tuple[Step | None, Step | None]:
        """Which question is due after ``step``, and which may come instead."""
        if step is Step.OPEN and self.terms.parameters.groups > 1:
            return Step.DRAW, None
        if step in messages.DRAWING:
            return Step.ROSTER, None if step is messages.DRAWING[-1] else Step(step + 2)
        return (None if step is Step.AGREED else Step(step + 2)), None

    def _authentic(self, step: Step, message: bytes) -> Frame:
        """The frame, if the server signed it for this party, session and step."""
        frame = messages.read_frame(message, largest=messages.largest_payload(step, self.terms))
        if not keys.is_signed_by(self._server, frame.signature, frame.authentic_by):
            raise Refused(Reason.BAD_SIGNATURE)
        if frame.sender != SERVER:
            raise Refused(Reason.WRONG_SENDER)
        if frame.receiver != self.name:
            raise Refused(Reason.WRONG_RECEIVER)
        if frame.step is not step:
            raise Refused(Reason.WRONG_STEP)
        expected = self._opening if step.turn <= Step.ROSTER.turn else self._session
        if expected and frame.session != expected:
            raise Refused(Reason.WRONG_SESSION)
        return frame

    def _reply(self, step: Step, payload: messages.Raw) -> bytes:
        binding = self._opening if step is Step.ADVERTISE else self._session
        if step in messages.REVEALING:
            binding = self._drawing
        return messages.write_frame(
            step, binding, sender=self.name, receiver=SERVER, payload=payload, identity=self._identity
        )

    def _end(self, reason: Reason) -> None:
        self._ended, self._due, self._else, self._secrets = reason, None, None, None
        self._peers.clear()

    # ---------------------------------------------------------------------------------------- the five steps

    def _advertise(self, frame: Frame) -> bytes:
        theirs = messages.read_open(frame.payload, most=self.terms.parameters.parties)
        messages.refuse_other_terms(self.terms, theirs)
        self._policy.refuse(self.terms)
        cohort = theirs.cohort
        if list(cohort) != sorted(set(cohort)) or len(cohort) != self.terms.parameters.parties:
            raise Refused(Reason.OTHER_COHORT)
        for other in cohort:
            if other not in self._known:
                raise Refused(Reason.OTHER_COHORT, other)
        if self.name not in cohort:
            raise Refused(Reason.SELF_MISSING)
        identities = {other: self._known[other] for other in cohort}
        if len({self._server, *identities.values()}) != len(cohort) + 1:  # one identity under two names counts twice
            raise Refused(Reason.OTHER_COHORT)
        opened = messages.opening(self.terms, identities)
        if opened != frame.session:
            raise Refused(Reason.OTHER_COHORT)
        self._cohort, self._identities, self._opening = cohort, identities, opened
        self._secrets = _Secrets()
        mine = Keys(mask=self._secrets.mask.public, channel=self._secrets.channel.public)
        if self.terms.parameters.groups > 1:
            mine = dataclasses.replace(mine, pledge=self._pledge(0))
        self._roster = {self.name: mine}
        return self._reply(Step.ADVERTISE, mine.payload)

    def _pledge(self, place: int) -> bytes:
        return messages.pledge(self._opening, self.name, place, self._require_secrets().nonces[place])

    def _reveal(self, frame: Frame, place: int) -> bytes:
        secrets = self._require_secrets()
        if place == 0:
            self._roster = self._read_roster(frame, pledged=True)
            self._pledges = {name: each.pledge for name, each in self._roster.items()}
        else:
            pledges = messages.read_hashes(frame.payload, self._cohort)
            self._require_list(pledges, self._roster)
            if pledges[self.name] != self._pledge(place):
                raise Refused(Reason.PLEDGE_SUBSTITUTED)
            self._pledges = pledges
            self._roster = {name: self._roster[name] for name in pledges}
        self._drawing = messages.drawing(self.terms, self._opening, self._roster, self._pledges)
        return self._reply(messages.REVEALING[place], secrets.nonces[place] + self._pledge(place + 1))

    def _read_roster(self, frame: Frame, *, pledged: bool = False) -> dict[str, Keys]:
        """Everyone's keys, this party's own among them, none twice, and of enough parties."""
        roster = messages.read_roster(frame.payload, self._cohort, pledged=pledged)
        if self.name not in roster:
            raise Refused(Reason.SELF_MISSING)
        if roster[self.name].payload != self._roster[self.name].payload:
            raise Refused(Reason.KEY_SUBSTITUTED)
        public = [key for each in roster.values() for key in (each.mask, each.channel)]
        if len(set(public)) != len(public):
            raise Refused(Reason.KEY_REPEATED)
        if len(roster) < self._need:
            raise Refused(Reason.BELOW_FLOOR)
        return roster

    def _join(self, frame: Frame) -> bytes:
        """Open the draw, and go on among the members of this party's group; returns the seed."""
        nonces = messages.read_hashes(frame.payload, self._cohort)
        if nonces.keys() != self._pledges.keys():
            raise Refused(Reason.PLEDGE_NOT_OPENED)
        place = max(at for at, step in enumerate(messages.DRAWING) if step in self._answered)
        for name, nonce in nonces.items():
            if messages.pledge(self._opening, name, place, nonce) != self._pledges[name]:
                raise Refused(Reason.BROKEN_PLEDGE, name)
        seed = messages.hash_nonces(self._drawing, nonces)
        drawn = graph.groups(self._cohort, self.terms.parameters.groups, seed)
        self._cohort = next(members for members in drawn if self.name in members)
        self._chosen = self.terms.parameters.within(len(self._cohort))
        self._identities = {name: self._identities[name] for name in self._cohort}
        self._roster = {name: each for name, each in self._roster.items() if name in self._identities}
        self._session = messages.group_session(seed, self._cohort)
        if len(self._roster) < self._need:
            raise Refused(Reason.BELOW_FLOOR)
        return seed

    def _share(self, frame: Frame) -> bytes:
        secrets = self._require_secrets()
        if self.terms.parameters.groups > 1:
            drawn = self._join(frame)
        else:
            self._roster = self._read_roster(frame)
            drawn = graph.hash_keys({name: (each.mask, each.channel) for name, each in self._roster.items()})
            self._session = messages.session(self.terms, self._opening, self._roster)
        roster = self._roster
        self._graph = graph.neighbours(self._cohort, self._chosen, drawn)
        near = self._graph[self.name]
        self._check_advertised(roster, near)
        self._holders = graph.holders(self.name, near, self._chosen)
        self._require_holders(roster)
        points = {holder: place for place, holder in enumerate(self._holders, start=1) if holder in roster}
        seeds, private = shamir.share_many(
            (secrets.seed, secrets.mask.private_to_share()),
            threshold=self.terms.parameters.threshold,
            points=tuple(points.values()),
            rng=self._rng,
        )
        sealed: dict[str, bytes] = {}
        for holder, seed, key in zip(points, seeds, private, strict=True):
            self._peers[holder] = peer = _Peer()
            if holder == self.name:
                peer.both = SeedShare(seed), KeyShare(key)
                continue
            try:
                channel = keys.agree(secrets.channel, roster[holder].channel, session=self._session, role="channel")
            except InvalidParameter:
                raise Refused(Reason.BAD_KEY, holder) from None
            secrets.channel_keys[holder] = channel
            sealed[holder] = keys.seal(
                channel,
                messages.write_pair(seed, key),
                session=self._session,
                sender=self.name,
                receiver=holder,
            )
        commit = messages.commitment(self._session, self.name, secrets.seed)
        return self._reply(Step.SHARE, messages.write_share(commit, sealed, self._cohort))

    def _mask(self, frame: Frame, vector: NDArray[np.uint32] | Callable[[], NDArray[np.uint32]]) -> bytes:
        secrets = self._require_secrets()
        sharing, sealed = messages.read_shares(frame.payload, self._cohort)
        self._require_list(sharing, self._roster)
        self._require_holders(sharing)
        self._sharing = frozenset(sharing)
        near = [peer for peer in self._graph[self.name] if peer in self._sharing]
        if set(sealed) != set(near):
            raise Refused(Reason.MALFORMED)
        plain = vector if isinstance(vector, np.ndarray) else vector()
        self._require_vector(plain)
        for name, peer in self._peers.items():
            peer.state = PeerState.SHARED if name in self._sharing else PeerState.SILENT
        for name in near:
            self._open(name, sealed[name], secrets.channel_keys[name])
        chosen: list[tuple[bytes, masks.Sign]] = [(keys.derive(secrets.seed, session=self._session, role="self"), 1)]
        for name in near:
            try:
                shared = keys.agree(secrets.mask, self._roster[name].mask, session=self._session, role="mask")
            except InvalidParameter:
                raise Refused(Reason.BAD_KEY, name) from None
            chosen.append((shared, sign_of(self.name, name)))
        masked = plain.astype("<u4")
        masks.add_all(masked, chosen)
        self._secrets = None  # only the shares of others are needed from here on
        return self._reply(Step.MASKED, messages.write_vector(masked, self.terms))

    def _agree(self, frame: Frame) -> bytes:
        survivors = messages.read_members(frame.payload, self._cohort)
        self._require_list(survivors, self._sharing)
        self._require_holders(survivors)
        if not self._chosen.complete and len(find_reachable(self.name, survivors, self._graph)) < self._need:
            raise Refused(Reason.BELOW_FLOOR)
        for name, peer in self._peers.items():
            peer.settle(survived=name in survivors)
        self._survivors = survivors
        return self._reply(Step.AGREE, messages.bitmap(survivors, self._cohort))

    def _unmask(self, frame: Frame) -> bytes:
        signatures = messages.read_agreed(frame.payload, self._cohort)
        if not set(signatures) <= set(self._survivors):
            raise Refused(Reason.LIST_GREW)
        listed = messages.bitmap(self._survivors, self._cohort)
        for name, signature in signatures.items():
            said = messages.statement(Step.AGREE, self._session, name, SERVER, listed)
            if not keys.is_signed_by(self._identities[name], signature, said):
                raise Refused(Reason.FORGED_STATEMENT, name)
        if len(set(signatures) & set(self._holders)) < self.terms.parameters.threshold:
            raise Refused(Reason.TOO_FEW_SIGNATURES)
        revealed = {name: peer.one for name, peer in self._peers.items() if peer.one is not None}
        return self._reply(Step.UNMASK, messages.write_unmask(revealed, self._cohort))

    # ---------------------------------------------------------------------------------------- checks

    @property
    def _need(self) -> int:
        return max(self.terms.need, self._policy.floor)

    def _require_secrets(self) -> _Secrets:
        if self._secrets is None:
            raise Refused(Reason.ENDED)
        return self._secrets

    def _check_advertised(self, roster: Mapping[str, Keys], near: Collection[str]) -> None:
        """The neighbours signed their keys; all parties did, where a lying server could choose the graph by them."""
        everyone = self.terms.parameters.adversary is not Adversary.CURIOUS
        for name in roster if everyone else [each for each in near if each in roster]:
            said = messages.statement(Step.ADVERTISE, self._opening, name, SERVER, roster[name].payload)
            if not keys.is_signed_by(self._identities[name], roster[name].signature, said):
                raise Refused(Reason.FORGED_STATEMENT, name)

    def _require_list(self, members: Collection[str], before: Collection[str]) -> None:
        """A list may only shrink, must hold this party, and as many others as the floor and the threshold ask for."""
        if self.name not in members:
            raise Refused(Reason.SELF_MISSING)
        if not set(members) <= set(before):
            raise Refused(Reason.LIST_GREW)
        if len(members) < self._need:
            raise Refused(Reason.BELOW_FLOOR)

    def _require_vector(self, vector: object) -> None:
        if not isinstance(vector, np.ndarray) or vector.dtype != np.uint32 or vector.shape != (self.terms.dimension,):
            got = f"{vector.dtype} {vector.shape}" if isinstance(vector, np.ndarray) else type(vector).__name__
            raise InvalidParameter("vector", got, f"must be {self.terms.dimension} numbers of type uint32")

    def _require_holders(self, members: Collection[str]) -> None:
        if len(set(self._holders).intersection(members)) < self.terms.parameters.threshold:
            raise Refused(Reason.TOO_FEW_HOLDERS)

    def _open(self, sender: str, sealed: bytes, key: bytes) -> None:
        """Keep what ``sender`` sealed. What cannot be opened is not held: spare holders make up for it."""
        try:
            plain = keys.unseal(key, sealed, session=self._session, sender=sender, receiver=self.name)
            self._peers[sender].both = messages.read_pair(plain)
        except (keys.Unauthentic, Refused):
            self._peers[sender].both = None
