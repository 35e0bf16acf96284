"""The server's side of a secure session: it relays, adds masked vectors into one accumulator, and unmasks their sum.

A :class:`Server` serves one attempt of one round, without clock, socket or file. The round drives it::

    messages = server.open()
    while messages:                       # until an outcome
        ...                               # deliver, and server.take(party, answer) for each answer until the deadline
        messages = server.advance()       # closes the step: who has not answered is lost

**Where the ledger commits.** The call of :meth:`Server.advance` that closes MASKED fixes ``survivors``, and returns the
list for them to sign; nothing is unmasked by that. The next call, which closes AGREE, returns the request to unmask.
The round commits its charge between the two.

**Groups.** Where the terms ask for several, the parties' pledges are opened once their keys are in (REVEAL), the groups
follow from them, and each is from then on a session of its own, with its own accumulator, survivors and floor. They
move in step. A group with too few left ends alone: nothing of it is unmasked, its members are lost with
``GROUP_LOST``, and the others go on. The session is ``DONE`` if one group is; :meth:`Server.sums` has a sum for each.

Guarantees: a masked vector is added at most once, only if its sender signed it for this session, and never after the
list of survivors is fixed; no vector is kept. A secret is used only if it is the one that its owner committed to: the
rebuilt key must have the advertised public key, the rebuilt seed the hash from the share step. Where shares do not fit,
spare ones find the right secret, and ``blamed`` names who sent wrong ones if those are at most half of the spare ones.
On any bytes, :meth:`Server.take` returns None or a :class:`Reason`, and a session without enough parties ends in an
:class:`SessionOutcome` without a sum.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.secagg import decoding, graph, keys, masks, messages, shamir
from quietsum.secagg.messages import SERVER, Frame, Keys, KeyShare, SeedShare, SessionTerms, Share, Step
from quietsum.secagg.outcomes import Reason, Refused, SessionOutcome
from quietsum.secagg.party import sign_of

__all__ = ["GroupSum", "LostParty", "Server"]

_TRIES = 2000  # sets of shares that are tried for one secret when some are wrong


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LostParty:
    """At which step a party was lost, and why."""

    step: Step
    reason: Reason


@final
@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GroupSum:
    """What was opened of one group: its number, all its members, those whose vectors are in it, and their sum."""

    number: int
    members: tuple[str, ...]
    survivors: tuple[str, ...]
    total: NDArray[np.uint32]


_END = {
    Step.ADVERTISE: SessionOutcome.TOO_FEW_KEYS,
    **dict.fromkeys(messages.REVEALING, SessionOutcome.NO_DRAW),
    Step.SHARE: SessionOutcome.TOO_FEW_SHARES,
    Step.MASKED: SessionOutcome.TOO_FEW_INPUTS,
    Step.AGREE: SessionOutcome.TOO_FEW_SIGNATURES,
    Step.UNMASK: SessionOutcome.TOO_FEW_UNMASKED,
}


@final
class Server:
    """The server in one session; see the module. ``identities`` are the public identities of the cohort."""

    def __init__(self, *, terms: SessionTerms, identity: keys.Identity, identities: Mapping[str, bytes]) -> None:
        messages.check_names(identities)
        if len(identities) != terms.parameters.parties:
            problem = f"must be the {terms.parameters.parties} of the parameters"
            raise InvalidParameter("identities", len(identities), problem, "invite exactly the parties of the plan")
        if len({identity.public, *identities.values()}) != len(identities) + 1:
            problem = "repeat one another, or the server's own"
            raise InvalidParameter("identities", sorted(identities), problem, "give every party a key of its own")
        self.terms = terms
        self._identity, self._identities = identity, dict(identities)
        self._cohort = tuple(sorted(identities))
        self._opening = messages.opening(terms, self._identities)
        self._session = b""
        self._largest = max(messages.largest_payload(step, terms) for step in Step)
        self._trial = keys.KeyPair.fresh()
        self._step: Step | None = None
        self._last = Step.ADVERTISE
        self._outcome: SessionOutcome | None = None
        self._asked: frozenset[str] = frozenset()
        self._answers: dict[str, bytes] = {}  # signature of the answer that counts, of the open step
        self._earlier: set[tuple[Step, bytes]] = set()
        self._refusals: dict[str, Reason] = {}
        self._lost: dict[str, LostParty] = {}
        self._blamed: dict[str, Reason] = {}
        self._misfits: set[tuple[str, str]] = set()  # holder and owner of shares that do not fit
        self._roster: dict[str, Keys] = {}
        self._graph: Mapping[str, tuple[str, ...]] = {}
        self._holding: dict[str, tuple[str, ...]] = {}
        self._commitments: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._sharing: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._alive: frozenset[str] = frozenset()
        self._sum: NDArray[np.uint32] | None = None
        self._revealed: dict[str, dict[str, Share]] = {}
        self._pledges: dict[str, bytes] = {}  # of the draw that is open
        self._opened: dict[str, tuple[bytes, bytes]] = {}  # nonces of that draw, and the pledges for another one
        self._drawing = b""
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._inner: tuple[Server, ...] = ()  # one for each group, once they are drawn
        self._place: dict[str, int] = {}

    # ---------------------------------------------------------------------------------------- what the round sees

    @property
    def step(self) -> Step | None:
        """Which answer is awaited: ADVERTISE, SHARE, MASKED, AGREE or UNMASK; None before and after."""
        if self._inner:
            return next((group.step for group in self._inner if group.step is not None), None)
        return self._step

    @property
    def outcome(self) -> SessionOutcome | None:
        """How the session ended, None while it has not."""
        return self._outcome

    @property
    def waiting(self) -> frozenset[str]:
        """The parties whose answer to the open step is still due."""
        if self._inner:
            return frozenset().union(*(group.waiting for group in self._inner))
        return self._asked - self._answers.keys() if self._step else frozenset()

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The members of each group; empty until they are drawn, and where there are none."""
        return self._groups

    @property
    def survivors(self) -> tuple[str, ...]:
        """The parties whose vectors are in the sum; empty until MASKED is closed, and fixed from then on."""
        if self._inner:
            return tuple(sorted(name for group in self._going for name in group.survivors))
        return self._survivors

    @property
    def _going(self) -> tuple[Server, ...]:
        """The groups that have not ended without a sum."""
        return tuple(group for group in self._inner if group.outcome in (None, SessionOutcome.DONE))

    @property
    def lost(self) -> Mapping[str, LostParty]:
        """The parties that dropped out, where, and why. One lost after MASKED was closed is in the sum all the same."""
        lost = dict(self._lost)
        for members, group in zip(self._groups, self._inner, strict=True):
            lost |= {name: loss for name, loss in group.lost.items() if name not in lost}
            if group.outcome not in (None, SessionOutcome.DONE):
                gone = LostParty(step=group.ended_at, reason=Reason.GROUP_LOST)
                lost |= {name: gone for name in members if name not in lost}
        return MappingProxyType(lost)

    @property
    def ended_at(self) -> Step:
        """The answer that was awaited when the session ended; that of the first step before it was opened."""
        return self._last

    @property
    def blamed(self) -> Mapping[str, Reason]:
        """The parties that sent something wrong under their own signature."""
        blamed = dict(self._blamed)
        for group in self._inner:
            blamed |= {name: reason for name, reason in group.blamed.items() if name not in blamed}
        return MappingProxyType(blamed)

    def open(self) -> dict[str, bytes]:
        """The first question to each party."""
        if self._step is not None or self._outcome is not None:
            raise QuietsumError("this session was opened before; a retry is a new session, with a new Server")
        self._begin(Step.ADVERTISE, self._cohort)
        payload = messages.write_open(self.terms, self._cohort)
        return self._ask(Step.OPEN, self._cohort, lambda _: payload)

    def take(self, party: str, data: messages.Raw) -> Reason | None:
        """Take an answer of ``party``. Returns None if it counts or is one that counts already, otherwise why not.

        A refused message changes nothing: until the step is closed, a good one may still come.
        """
        try:
            self._take(party, data)
        except Refused as refusal:
            session = self._inner[self._place[party]] if party in self._place else self
            if party in session.waiting:
                session._refusals[party] = refusal.reason
            return refusal.reason
        return None

    def advance(self) -> dict[str, bytes]:
        """Close the open step and return the next questions; an empty mapping if the session ended by it."""
        if self._outcome is not None:
            return {}
        if self._inner:
            return self._advance_groups()
        if self._step is None:
            raise QuietsumError("this session was not opened; call open() first")
        step, here = self._step, tuple(sorted(self._answers))
        for party in sorted(self.waiting):
            self._lose(party, self._refusals.get(party, Reason.NO_ANSWER))
        need = self.terms.parameters.threshold if step in (Step.AGREE, Step.UNMASK) else self.terms.need
        if len(here) < need:
            return self._finish(_END[step])
        if step in messages.REVEALING:
            return self._send_draw(here)
        if step is Step.ADVERTISE and self.terms.parameters.groups > 1:
            return self._ask_draw(0, {name: each.pledge for name, each in self._roster.items()})
        return {
            Step.ADVERTISE: self._send_roster,
            Step.SHARE: self._send_shares,
            Step.MASKED: self._send_survivors,
            Step.AGREE: self._send_agreed,
            Step.UNMASK: self._reveal,
        }[step](here)

    def stop(self) -> None:
        """End the session without a sum. Does nothing after its end."""
        if self._outcome is None:
            for group in self._inner:
                group.stop()
            self._finish(SessionOutcome.STOPPED)

    def total(self) -> NDArray[np.uint32]:
        """The survivors' sum modulo 2 to the terms' ``bits``. Raises if the session has not ended well."""
        if self._outcome is not SessionOutcome.DONE or self._sum is None:
            state = self._outcome.sentence if self._outcome else "the session is not over"
            raise QuietsumError(f"secure aggregation has no sum: {state}")
        return self._sum

    def sums(self) -> tuple[GroupSum, ...]:
        """One sum for each group that was unmasked, or the one sum where there are no groups. Raises as ``total``."""
        if not self._inner:
            return (GroupSum(number=0, members=self._cohort, survivors=self._survivors, total=self.total()),)
        if self._outcome is not SessionOutcome.DONE:
            return (self._inner[0].sums()[0],)  # which raises
        return tuple(
            GroupSum(number=number, members=members, survivors=group.survivors, total=group.total())
            for number, (members, group) in enumerate(zip(self._groups, self._inner, strict=True))
            if group.outcome is SessionOutcome.DONE
        )

    # ---------------------------------------------------------------------------------------- taking answers

    def _take(self, party: str, data: messages.Raw) -> None:
        if party not in self._identities:
            raise Refused(Reason.UNKNOWN_PARTY)
        frame = messages.read_frame(data, largest=self._largest)
        if self._inner and frame.step.turn >= Step.SHARE.turn:
            return self._inner[self._place[party]]._take(party, data)
        if frame.sender != party:
            raise Refused(Reason.WRONG_SENDER)
        if frame.receiver != SERVER:
            raise Refused(Reason.WRONG_RECEIVER)
        if not keys.is_signed_by(self._identities[party], frame.signature, frame.authentic_by):
            raise Refused(Reason.BAD_SIGNATURE)
        if (frame.step, frame.signature) in self._earlier:
            return None  # the same answer once more
        if frame.session != self._bound(frame.step):
            raise Refused(Reason.WRONG_SESSION)
        if self._step is None:
            raise Refused(Reason.ENDED if self._outcome else Reason.LATE if self._inner else Reason.WRONG_STEP)
        if frame.step is not self._step:
            raise Refused(Reason.LATE if frame.step.turn < self._step.turn else Reason.WRONG_STEP)
        if party not in self._asked:
            raise Refused(Reason.LATE)
        if party in self._answers:
            self._blamed.setdefault(party, Reason.ALREADY_ANSWERED)
            raise Refused(Reason.ALREADY_ANSWERED)
        if len(frame.payload) > messages.largest_payload(frame.step, self.terms):
            raise Refused(Reason.OVERSIZE)
        {
            Step.ADVERTISE: self._take_keys,
            Step.SHARE: self._take_shares,
            Step.MASKED: self._take_vector,
            Step.AGREE: self._take_agreement,
            Step.UNMASK: self._take_unmask,
            **dict.fromkeys(messages.REVEALING, self._take_nonce),
        }[frame.step](party, frame)
        self._answers[party] = frame.signature
        self._earlier.add((frame.step, frame.signature))
        return None

    def _bound(self, step: Step) -> bytes:
        """What a frame of ``step`` must be bound to."""
        if step is Step.ADVERTISE:
            return self._opening
        return self._drawing if step in messages.REVEALING else self._session

    def _take_nonce(self, party: str, frame: Frame) -> None:
        nonce, following = messages.read_reveal(frame.payload)
        place = messages.REVEALING.index(frame.step)
        if messages.pledge(self._opening, party, place, nonce) != self._pledges[party]:
            raise Refused(Reason.BROKEN_PLEDGE)
        self._opened[party] = nonce, following

    def _take_keys(self, party: str, frame: Frame) -> None:
        offered = messages.read_keys(frame.payload, pledged=self.terms.parameters.groups > 1)
        taken = {key for each in self._roster.values() for key in (each.mask, each.channel)}
        if offered.mask == offered.channel or not taken.isdisjoint((offered.mask, offered.channel)):
            raise Refused(Reason.KEY_REPEATED)
        try:  # a key of low order would make every neighbour refuse the roster
            self._trial.exchange(offered.mask), self._trial.exchange(offered.channel)
        except InvalidParameter:
            raise Refused(Reason.BAD_KEY) from None
        self._roster[party] = dataclasses.replace(offered, signature=frame.signature)

    def _take_shares(self, party: str, frame: Frame) -> None:
        commit, sealed = messages.read_share(frame.payload, self._cohort)
        if set(sealed) != {peer for peer in self._graph[party] if peer in self._roster}:
            raise Refused(Reason.WRONG_RECIPIENTS)
        self._commitments[party], self._sealed[party] = commit, sealed

    def _take_vector(self, party: str, frame: Frame) -> None:
        vector = messages.read_vector(frame.payload, self.terms)
        if self._sum is None:
            self._sum = np.zeros(self.terms.dimension, dtype=np.uint32)
        np.add(self._sum, vector, out=self._sum)

    def _take_agreement(self, party: str, frame: Frame) -> None:
        if messages.read_members(frame.payload, self._cohort) != self._survivors:
            raise Refused(Reason.OTHER_SURVIVORS)

    def _take_unmask(self, party: str, frame: Frame) -> None:
        shares = messages.read_unmask(frame.payload, self._cohort)
        for peer, share in shares.items():
            if peer not in self._sharing or party not in self._holders(peer):
                raise Refused(Reason.WRONG_KIND)
            if type(share) is not (SeedShare if peer in self._alive else KeyShare):
                raise Refused(Reason.WRONG_KIND)
        self._revealed[party] = shares

    # ---------------------------------------------------------------------------------------- closing steps

    def _ask_draw(self, place: int, pledges: Mapping[str, bytes]) -> dict[str, bytes]:
        """Show everyone's pledges, and the first time their keys: from here on no party can choose the groups."""
        self._roster = {name: self._roster[name] for name in pledges}
        self._pledges, self._opened = dict(pledges), {}
        self._drawing = messages.drawing(self.terms, self._opening, self._roster, pledges)
        self._begin(messages.REVEALING[place], pledges)
        payload = (
            messages.write_hashes(pledges, self._cohort) if place else messages.write_roster(self._roster, self._cohort)
        )
        return self._ask(messages.DRAWING[place], sorted(pledges), lambda _: payload)

    def _send_draw(self, here: Sequence[str]) -> dict[str, bytes]:
        """Draw the groups if every pledge was opened; otherwise ask those who did once more, or give up."""
        assert self._step is not None
        place = messages.REVEALING.index(self._step)
        if len(here) < len(self._pledges):
            if place + 1 == messages.DRAWS:
                return self._finish(SessionOutcome.NO_DRAW)
            return self._ask_draw(place + 1, {name: self._opened[name][1] for name in here})
        nonces = {name: nonce for name, (nonce, _) in self._opened.items()}
        seed = messages.hash_nonces(self._drawing, nonces)
        self._groups = graph.groups(self._cohort, self.terms.parameters.groups, seed)
        self._place = {name: number for number, members in enumerate(self._groups) for name in members}
        payload = messages.write_hashes(nonces, self._cohort)
        letters = self._ask(Step.ROSTER, here, lambda _: payload)
        self._inner = tuple(self._group(members, seed) for members in self._groups)
        self._step, self._opened = None, {}
        going = {name for group in self._going for name in group.waiting}
        return {name: letter for name, letter in letters.items() if name in going} or self._end_groups()

    def _group(self, members: tuple[str, ...], seed: bytes) -> Server:
        """The session of one group, which begins where its members are asked for their shares."""
        group = Server(
            terms=dataclasses.replace(self.terms, parameters=self.terms.parameters.within(len(members))),
            identity=self._identity,
            identities={name: self._identities[name] for name in members},
        )
        group._roster = {name: self._roster[name] for name in members if name in self._roster}
        group._session = messages.group_session(seed, members)
        group._graph = graph.neighbours(members, group.terms.parameters, seed)
        group._begin(Step.SHARE, group._roster)
        if len(group._roster) < group.terms.need:
            group._finish(SessionOutcome.TOO_FEW_KEYS)
        return group

    def _advance_groups(self) -> dict[str, bytes]:
        """Every group that goes on, one step further."""
        letters: dict[str, bytes] = {}
        for group in self._going:
            letters |= group.advance()
        return letters or self._end_groups()

    def _end_groups(self) -> dict[str, bytes]:
        """No group has a question left: done if one has a sum, otherwise as the one that came furthest."""
        found = [group.outcome for group in self._inner if group.outcome is not None]
        order = [SessionOutcome.DONE, *reversed([one for one in SessionOutcome if one is not SessionOutcome.DONE])]
        return self._finish(min(found, key=order.index))

    def _send_roster(self, here: Sequence[str]) -> dict[str, bytes]:
        committed = {name: (each.mask, each.channel) for name, each in self._roster.items()}
        self._graph = graph.neighbours(self._cohort, self.terms.parameters, graph.hash_keys(committed))
        self._session = messages.session(self.terms, self._opening, self._roster)
        self._begin(Step.SHARE, here)
        payload = messages.write_roster(self._roster, self._cohort)
        return self._ask(Step.ROSTER, here, lambda _: payload)

    def _send_shares(self, here: Sequence[str]) -> dict[str, bytes]:
        sharing = frozenset(here)
        while short := [party for party in sorted(sharing) if not self._rebuildable(party, sharing)]:
            for party in short:  # its secrets could not be rebuilt, so its vector is not asked for
                self._lose(party, Reason.TOO_FEW_HOLDERS)
            sharing = sharing.difference(short)
        if len(sharing) < self.terms.need:
            return self._finish(SessionOutcome.TOO_FEW_SHARES)
        self._sharing = tuple(sorted(sharing))
        sealed, self._sealed = self._sealed, {}
        self._begin(Step.MASKED, self._sharing)

        def payload(party: str) -> bytes:
            near = (peer for peer in self._graph[party] if peer in sharing)
            return messages.write_shares(self._sharing, {peer: sealed[peer][party] for peer in near}, self._cohort)

        return self._ask(Step.SHARES, self._sharing, payload)

    def _send_survivors(self, here: Sequence[str]) -> dict[str, bytes]:
        self._survivors, self._alive = tuple(here), frozenset(here)
        if not all(self._rebuildable(party, here) for party in self._list_wanted()):
            return self._finish(SessionOutcome.TOO_FEW_INPUTS)
        self._begin(Step.AGREE, here)
        payload = messages.bitmap(here, self._cohort)
        return self._ask(Step.SURVIVORS, here, lambda _: payload)

    def _send_agreed(self, here: Sequence[str]) -> dict[str, bytes]:
        if not all(self._rebuildable(party, here) for party in self._list_wanted()):
            return self._finish(SessionOutcome.TOO_FEW_SIGNATURES)
        signatures = dict(self._answers)
        self._begin(Step.UNMASK, here)

        def payload(party: str) -> bytes:
            signed = [name for name in self._holders(party) if name in signatures]
            enough = signed[: self.terms.parameters.threshold]  # more would only cost the party time
            return messages.write_agreed({name: signatures[name] for name in enough}, self._cohort)

        return self._ask(Step.AGREED, here, payload)

    def _reveal(self, here: Sequence[str]) -> dict[str, bytes]:
        """Rebuild every secret that is due, and subtract its masks. All or nothing."""
        wanted = self._list_wanted()
        if not all(len(self._shares_of(party)[0]) >= self.terms.parameters.threshold for party in wanted):
            return self._finish(SessionOutcome.TOO_FEW_UNMASKED)
        secrets = self._rebuild(wanted)
        self._attribute()
        if secrets is None or self._sum is None:
            return self._finish(SessionOutcome.WRONG_SHARES)
        masks.add_all(self._sum, self._standing(secrets))
        if self.terms.bits < 32:  # the bits above did not travel; what masks left in them says nothing
            self._sum &= np.uint32((1 << self.terms.bits) - 1)
        return self._finish(SessionOutcome.DONE)

    def _standing(self, secrets: Mapping[str, bytes]) -> Iterator[tuple[bytes, masks.Sign]]:
        """The masks that still stand in the sum, with the sign that removes them."""
        for party, secret in secrets.items():
            if party in self._alive:
                yield keys.derive(secret, session=self._session, role="self"), -1
                continue
            pair = keys.KeyPair.rebuilt(secret)
            for peer in self._graph[party]:
                if peer in self._alive:
                    shared = keys.agree(pair, self._roster[peer].mask, session=self._session, role="mask")
                    yield shared, (-1 if sign_of(peer, party) == 1 else 1)

    # ---------------------------------------------------------------------------------------- rebuilding secrets

    def _list_wanted(self) -> tuple[str, ...]:
        """Whose secret must be rebuilt: the seeds of survivors, and the keys of others that masked with a survivor."""
        alive = self._alive
        return tuple(party for party in self._sharing if party in alive or not alive.isdisjoint(self._graph[party]))

    def _rebuild(self, wanted: Sequence[str]) -> dict[str, bytes] | None:
        """Every wanted secret, each the one that was committed to; None if one cannot be had."""
        threshold = self.terms.parameters.threshold
        groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
        held = {party: self._shares_of(party) for party in wanted}
        for party in wanted:
            groups[held[party][0]].append(party)
        secrets: dict[str, bytes] = {}
        for points, parties in groups.items():
            shares = np.stack([held[party][1] for party in parties])
            try:
                found = shamir.rebuild_many(points, shares, threshold=threshold)
                secrets |= {party: one for party, one in zip(parties, found, strict=True) if self._is_of(party, one)}
            except shamir.Unfitting:
                continue
            if self.terms.parameters.complete and decoding.wrong(
                points, decoding.combine(shares), threshold=threshold
            ):  # the holders are the same for all, so that one look serves all; then each alone
                for party in parties:
                    self._doubt(party, *held[party])
        for party in wanted:
            if party not in secrets:
                found_one = self._search(party, *held[party])
                if found_one is None:
                    return None
                secrets[party] = found_one
        return secrets

    def _search(self, party: str, points: tuple[int, ...], shares: NDArray[np.uint32]) -> bytes | None:
        """The committed secret of ``party``, from shares of which some are wrong."""
        doubted = self._doubt(party, points, shares)
        threshold = self.terms.parameters.threshold
        trusted = tuple(at for at in range(len(points)) if at not in doubted)
        tries = itertools.chain((trusted[:threshold],), decoding.candidates(len(points), threshold=threshold))
        for chosen in itertools.islice(tries, _TRIES):
            try:
                there = [points[at] for at in chosen]
                secret = shamir.rebuild(there, shares[list(chosen)], threshold=threshold)
            except shamir.Unfitting:
                continue
            if self._is_of(party, secret):
                return secret
        return None

    def _doubt(self, party: str, points: tuple[int, ...], shares: NDArray[np.uint32]) -> tuple[int, ...]:
        """The places of shares of ``party``'s secret that do not fit, noted with their holders."""
        holders = self._holders(party)
        places = decoding.wrong(points, shares, threshold=self.terms.parameters.threshold)
        self._misfits.update((holders[points[at] - 1], party) for at in places)
        return places

    def _attribute(self) -> None:
        """Who is to blame for shares that do not fit: the holder, or the owner that dealt it wrongly.

        Of two parties one alone is at fault, and either could frame the other. A holder is named if its shares of more
        owners are wrong than there may be colluders, or its own is; then an owner likewise; else both are in doubt.
        """
        most, pairs = self.terms.parameters.corrupt, set(self._misfits)
        for reason, side in ((Reason.WRONG_SHARE, 0), (Reason.WRONG_DEALING, 1)):
            counts = Counter(pair[side] for pair in pairs)
            own = {holder for holder, owner in pairs if holder == owner}
            guilty = {name for name, count in counts.items() if count > most} | own
            self._blamed |= dict.fromkeys(guilty - self._blamed.keys(), reason)
            pairs = {pair for pair in pairs if pair[side] not in guilty}
        for name in set(itertools.chain.from_iterable(pairs)) - self._blamed.keys():
            self._blamed[name] = Reason.DISPUTED_SHARE

    def _shares_of(self, party: str) -> tuple[tuple[int, ...], NDArray[np.uint32]]:
        """The points and shares that were revealed of one party's secret."""
        found = [
            (point, self._revealed[holder][party].limbs)
            for point, holder in enumerate(self._holders(party), start=1)
            if party in self._revealed.get(holder, {})
        ]
        limbs = np.array([each for _, each in found], dtype=np.uint32).reshape(-1, shamir.LIMBS)
        return tuple(point for point, _ in found), limbs

    def _is_of(self, party: str, secret: bytes) -> bool:
        if party in self._alive:
            return messages.commitment(self._session, party, secret) == self._commitments[party]
        return keys.KeyPair.rebuilt(secret).public == self._roster[party].mask

    def _holders(self, party: str) -> tuple[str, ...]:
        if party not in self._holding:
            self._holding[party] = graph.holders(party, self._graph[party], self.terms.parameters)
        return self._holding[party]

    def _rebuildable(self, party: str, members: Collection[str]) -> bool:
        return len(set(self._holders(party)).intersection(members)) >= self.terms.parameters.threshold

    # ---------------------------------------------------------------------------------------- small things

    def _begin(self, step: Step, asked: Collection[str]) -> None:
        self._step, self._asked = step, frozenset(asked)
        self._answers, self._refusals = {}, {}

    def _lose(self, party: str, reason: Reason) -> None:
        if self._step is not None:
            self._lost.setdefault(party, LostParty(step=self._step, reason=reason))

    def _ask(self, step: Step, parties: Sequence[str], payload: Callable[[str], bytes]) -> dict[str, bytes]:
        binding = self._opening if step.turn <= Step.ROSTER.turn else self._session
        return {
            party: messages.write_frame(
                step, binding, sender=SERVER, receiver=party, payload=payload(party), identity=self._identity
            )
            for party in parties
        }

    def _finish(self, outcome: SessionOutcome) -> dict[str, bytes]:
        self._last, self._outcome, self._step = self._step or self._last, outcome, None
        self._answers, self._sealed, self._revealed = {}, {}, {}
        if outcome is not SessionOutcome.DONE:
            self._sum = None
        return {}
