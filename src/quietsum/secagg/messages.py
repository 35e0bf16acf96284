"""What travels in a session of secure aggregation: frames of bytes, their parser, and the terms they are bound to.

A session has five questions of the server and five answers of each party::

    OPEN      terms and cohort               ADVERTISE  two fresh X25519 public keys
    ROSTER    everyone's keys, signed        SHARE      commitment to a seed, sealed shares
    SHARES    who shared, sealed shares      MASKED     the masked vector
    SURVIVORS the list of those in the sum   AGREE      the same list, signed
    AGREED    signatures under that list     UNMASK     one share of each neighbour: of its seed, or of its key

Where groups are drawn, ADVERTISE also pledges a nonce, and before ROSTER, which then holds the opened nonces, come ::

    DRAW      everyone's keys and pledges    REVEAL     the nonce that was pledged, and a pledge for another draw

If somebody does not reveal, those who did are asked again under their new pledges (DRAW_AGAIN, DRAW_LAST), at most
:data:`DRAWS` times in all. From SHARE on each group is a session of its own, among its members.

Every frame names step, session, sender and receiver, and is signed (Ed25519) over those and the SHA-256 of its payload.
ADVERTISE and AGREE reach the other parties too: the server relays payload and signature, and each party verifies them.

Layouts are fixed: no field is optional, none is unknown, and bytes left over are an error. A set of parties is a bitmap
over the sorted cohort, with zero bits as padding, so that one set has one writing.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter
from quietsum.secagg import keys, shamir
from quietsum.secagg.layout import BITS, from_wire, to_wire, wire_size
from quietsum.secagg.outcomes import Reason, Refused
from quietsum.secagg.parameters import Parameters
from quietsum.validate import whole_number

__all__ = [
    "DRAWING",
    "DRAWS",
    "REVEALING",
    "SERVER",
    "Frame",
    "KeyShare",
    "Keys",
    "Opened",
    "SeedShare",
    "SessionTerms",
    "Share",
    "Step",
    "drawing",
    "group_session",
    "hash_nonces",
    "opening",
    "pledge",
    "session",
]  # fmt: skip

SERVER = ""
"""The server's name in frames. A party's name is never empty, so the two cannot be mixed up."""

_MAGIC = b"QSA1"
_HASH, _SIGNATURE, _KEY = 32, keys.SIGNATURE_BYTES, keys.KEY_BYTES
_NAME = 255  # bytes of UTF-8
_PAIR = 2 * shamir.SHARE_BYTES
_SEALED = _PAIR + keys.SEAL_OVERHEAD
Raw: TypeAlias = bytes | bytearray | memoryview
_T = TypeVar("_T")


@final
class Step(enum.IntEnum):
    """Which message a frame is. Odd ones are the server's."""

    OPEN = 1
    ADVERTISE = 2
    ROSTER = 3
    SHARE = 4
    SHARES = 5
    MASKED = 6
    SURVIVORS = 7
    AGREE = 8
    AGREED = 9
    UNMASK = 10
    DRAW = 11
    REVEAL = 12
    DRAW_AGAIN = 13
    REVEAL_AGAIN = 14
    DRAW_LAST = 15
    REVEAL_LAST = 16

    @property
    def turn(self) -> int:
        """Its place in the order of steps, in which draws stand between ADVERTISE and ROSTER."""
        return _TURNS[self]


DRAWING = (Step.DRAW, Step.DRAW_AGAIN, Step.DRAW_LAST)
"""The questions by which groups are drawn: the first, and two more if somebody does not reveal."""
REVEALING = (Step.REVEAL, Step.REVEAL_AGAIN, Step.REVEAL_LAST)
DRAWS = len(DRAWING)
"""How often groups are drawn in a session at the most."""
_TURNS = {
    step: turn
    for turn, step in enumerate(
        sorted(Step, key=lambda step: step if step < Step.DRAW else 2 + step / 100)  # 2.11 … 2.16
    )
}


# --------------------------------------------------------------------------------------------- terms


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionTerms:
    """What one session is about. Public, the same for all, and hashed into every signature and every mask.

    ``model`` and ``plan`` are SHA-256 digests in hexadecimal; ``floor`` is the smallest number of survivors, of a group
    where there are groups, whose sum may be unmasked. Of each of the ``dimension`` numbers the lowest ``bits`` bits
    travel, and the sum is modulo 2 to the ``bits``. A session under other terms is another session: no message, mask or
    share of one fits the other.
    """

    run: str
    round: int
    attempt: int
    model: str
    plan: str
    dimension: int
    parameters: Parameters
    floor: int
    bits: int = 32

    def __post_init__(self) -> None:
        for name in ("run", "model", "plan"):
            _check_text(name, getattr(self, name))
        for name, least, most in (("round", 0, 2**63), ("attempt", 0, 2**63), ("dimension", 1, 2**31)):
            if whole_number(name, getattr(self, name), least) >= most:
                raise InvalidParameter(name, getattr(self, name), f"must be below {most}")
        if self.bits not in BITS:
            raise InvalidParameter("bits", self.bits, "is no size of a ring", f"choose one of {list(BITS)}")
        whole_number("floor", self.floor, 1)
        if self.floor > self.parameters.smallest:
            whom = "members of a group" if self.parameters.groups > 1 else "parties"
            raise InvalidParameter(
                "floor",
                self.floor,
                f"is more than the {self.parameters.smallest} {whom}",
                "no sum could ever be unmasked; lower the floor or invite more parties",
            )

    def encode(self) -> bytes:
        """The one writing of these terms."""
        chosen = self.parameters
        return b"".join(
            (
                *(_text(part) for part in (self.run, self.model, self.plan, chosen.adversary.value)),
                _TERMS.pack(
                    self.round,
                    self.attempt,
                    self.dimension,
                    chosen.parties,
                    chosen.neighbours,
                    chosen.threshold,
                    chosen.corrupt,
                    chosen.may_drop,
                    self.floor,
                    self.bits,
                    chosen.groups,
                ),
            )
        )

    @property
    def need(self) -> int:
        """The number of survivors below which a session ends: the threshold or the floor, whichever is more."""
        return max(self.parameters.threshold, self.floor)


_TERMS = struct.Struct(">QQIIIIIIIII")


def refuse_other_terms(mine: SessionTerms, theirs: Opened) -> None:
    """Raise :class:`Refused` with the reason that names what differs, if the server's terms are not ``mine``."""
    chosen = mine.parameters
    pairs = (
        (Reason.OTHER_ROUND, (mine.run, mine.round, mine.attempt), (theirs.run, theirs.round, theirs.attempt)),
        (Reason.OTHER_MODEL, mine.model, theirs.model),
        (Reason.OTHER_PLAN, mine.plan, theirs.plan),
        (Reason.OTHER_DIMENSION, (mine.dimension, mine.bits), (theirs.dimension, theirs.bits)),
        (Reason.THRESHOLD_LOWERED, True, theirs.parameters["threshold"] >= chosen.threshold),
        (Reason.FLOOR_LOWERED, True, theirs.floor >= mine.floor),
        (
            Reason.OTHER_PARAMETERS,
            (chosen.to_dict(), mine.floor),
            (theirs.parameters, theirs.floor),
        ),
    )
    for reason, ours, other in pairs:
        if ours != other:
            raise Refused(reason)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened:
    """The payload of OPEN as read: the server's terms, not yet compared with anything."""

    run: str
    round: int
    attempt: int
    model: str
    plan: str
    dimension: int
    parameters: Mapping[str, Any]
    floor: int
    bits: int
    cohort: tuple[str, ...]


def opening(terms: SessionTerms, identities: Mapping[str, bytes]) -> bytes:
    """What the first messages are bound to: terms, cohort, and the identity of each of its parties."""
    named = (part for name in sorted(identities) for part in (name.encode(), identities[name]))
    return keys.hash_parts("opening", terms.encode(), *named)


def session(terms: SessionTerms, opened: bytes, advertised: Mapping[str, Keys]) -> bytes:
    """The name of a session: its opening, and the fresh keys of all who advertised.

    The model's hash is in it, and every mask, share and signature after this point is derived from or bound to the
    session, so parties that were given different models make masks that do not cancel.
    """
    return keys.session_id(
        parameters=terms.parameters,
        keys={name: (each.mask, each.channel) for name, each in advertised.items()},
        model=terms.model.encode(),
        run=terms.run,
        round=terms.round,
        attempt=terms.attempt,
        more=(opened,),
    )


def commitment(of_session: bytes, sender: str, seed: bytes) -> bytes:
    """SHA-256 commitment to the seed of a self-mask. The seed has 256 random bits, so the hash hides it."""
    return keys.hash_parts("seed", of_session, sender.encode(), seed)


def pledge(opened: bytes, party: str, place: int, nonce: bytes) -> bytes:
    """SHA-256 commitment to ``party``'s nonce for the draw at ``place`` of this session; 256 random bits hide in it."""
    return keys.hash_parts("pledge", opened, party.encode(), bytes((place,)), nonce)


def drawing(terms: SessionTerms, opened: bytes, advertised: Mapping[str, Keys], pledges: Mapping[str, bytes]) -> bytes:
    """What a draw of groups is bound to: everyone's keys, and everyone's pledges for it."""
    pledged = (part for name in sorted(pledges) for part in (name.encode(), pledges[name]))
    return keys.hash_parts("drawing", session(terms, opened, advertised), *pledged)


def hash_nonces(of_drawing: bytes, nonces: Mapping[str, bytes]) -> bytes:
    """The seed of the groups, from all nonces of a draw: no party knows it before the last one is opened."""
    opened = (part for name in sorted(nonces) for part in (name.encode(), nonces[name]))
    return keys.hash_parts("drawn", of_drawing, *opened)


def group_session(seed: bytes, members: Sequence[str]) -> bytes:
    """The name of one group's session: the draw, by its seed, and who is in the group."""
    return keys.hash_parts("group", seed, *(name.encode() for name in members))


# --------------------------------------------------------------------------------------------- frames


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Frame:
    """One message. ``session`` is the opening's hash in OPEN, ADVERTISE, ROSTER and DRAW, and that of the draw in
    REVEAL; from SHARE on the session's, or that of the group's session."""

    step: Step
    session: bytes
    sender: str
    receiver: str
    payload: Raw
    signature: bytes

    @property
    def authentic_by(self) -> bytes:
        """What the signature is under."""
        return statement(self.step, self.session, self.sender, self.receiver, self.payload)


def statement(step: Step, session: bytes, sender: str, receiver: str, payload: Raw) -> bytes:
    """What is signed: (step, session, sender, receiver, SHA-256 of the payload), in one writing."""
    parts = (bytes((step,)), session, sender.encode(), receiver.encode(), hashlib.sha256(payload).digest())
    return keys.hash_parts("frame", *parts)


def write_frame(
    step: Step, session: bytes, *, sender: str, receiver: str, payload: Raw, identity: keys.Identity
) -> bytes:
    """A signed frame."""
    head = _MAGIC + bytes((step,)) + session + _text(sender) + _text(receiver) + struct.pack(">I", len(payload))
    return b"".join((head, payload, identity.sign(statement(step, session, sender, receiver, payload))))


def read_frame(data: Raw, *, largest: int) -> Frame:
    """The frame in ``data``; raises :class:`Refused`. ``largest`` bounds the payload. The signature is not checked."""
    try:
        data = memoryview(data).cast("B") if len(data) else b""
    except (TypeError, ValueError):
        raise Refused(Reason.MALFORMED) from None
    if len(data) > largest + len(_MAGIC) + 1 + _HASH + 2 * (1 + _NAME) + 4 + _SIGNATURE:
        raise Refused(Reason.OVERSIZE)
    reader = Reader(data)
    if bytes(reader.take(len(_MAGIC))) != _MAGIC:
        raise Refused(Reason.MALFORMED)
    try:
        step = Step(reader.take(1)[0])
    except ValueError:
        raise Refused(Reason.MALFORMED) from None
    of_session = bytes(reader.take(_HASH))
    sender, receiver = reader.text(), reader.text()
    size = reader.number()
    if size > largest:
        raise Refused(Reason.OVERSIZE)
    payload, signature = reader.take(size), bytes(reader.take(_SIGNATURE))
    reader.end()
    return Frame(step=step, session=of_session, sender=sender, receiver=receiver, payload=payload, signature=signature)


@final
class Reader:
    """Takes bytes from the front, and refuses when there are too few or some are left over."""

    def __init__(self, data: Raw) -> None:
        self._left = memoryview(data).cast("B") if len(data) else memoryview(b"")

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes, not copied."""
        if count > len(self._left):
            raise Refused(Reason.TRUNCATED)
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def number(self) -> int:
        """A whole number in four bytes."""
        return int.from_bytes(self.take(4), "big")

    def text(self) -> str:
        """A name: its length in one byte, then UTF-8."""
        raw = bytes(self.take(self.take(1)[0]))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise Refused(Reason.MALFORMED) from None

    def members(self, cohort: Sequence[str]) -> tuple[str, ...]:
        """A set of parties, in the order of the cohort."""
        raw = self.take(-(-len(cohort) // 8))
        bits = np.unpackbits(np.frombuffer(raw, dtype=np.uint8), bitorder="little")
        if bits[len(cohort) :].any():
            raise Refused(Reason.MALFORMED)
        return tuple(cohort[index] for index in np.flatnonzero(bits[: len(cohort)]).tolist())

    def end(self) -> None:
        """Nothing may be left."""
        if len(self._left):
            raise Refused(Reason.MALFORMED)


def _text(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def bitmap(members: Collection[str], cohort: Sequence[str]) -> bytes:
    """``members`` as bits over the sorted cohort, padded with zeros."""
    inside = frozenset(members)
    return np.packbits([name in inside for name in cohort], bitorder="little").tobytes()


def check_names(names: Collection[str]) -> None:
    """Raises :class:`~quietsum.errors.InvalidParameter` if a name cannot be written in a frame."""
    for name in names:
        _check_text("party", name, "give the party a shorter name")


def _check_text(parameter: str, text: str, remedy: str = "") -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidParameter(parameter, text, "is no text that can be written in UTF-8", remedy) from None
    if not 0 < size <= _NAME:
        raise InvalidParameter(parameter, text, f"must have 1 to {_NAME} bytes", remedy)


# --------------------------------------------------------------------------------------------- payloads


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys:
    """The two public keys of one party in one session, for masks and for sealing shares, and its signature.

    ``pledge`` is the hash of its nonce for the first draw of groups, where groups are drawn.
    """

    mask: bytes
    channel: bytes
    signature: bytes = b""
    pledge: bytes = b""

    @property
    def payload(self) -> bytes:
        """What ADVERTISE says."""
        return self.mask + self.channel + self.pledge


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)  # a share is never printed
class SeedShare:
    """A share of the seed of a survivor's self-mask."""

    limbs: NDArray[np.uint32]


@final
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KeyShare:
    """A share of the mask key of a party that dropped out after sharing."""

    limbs: NDArray[np.uint32]


Share: TypeAlias = SeedShare | KeyShare
"""What may be revealed of one peer: one or the other. There is no value that holds both."""

_KINDS: dict[int, type[SeedShare] | type[KeyShare]] = {1: SeedShare, 2: KeyShare}
_CODES: dict[type[Share], int] = {SeedShare: 1, KeyShare: 2}


def write_open(terms: SessionTerms, cohort: Sequence[str]) -> bytes:
    """SessionTerms, and the names of the cohort."""
    return terms.encode() + struct.pack(">I", len(cohort)) + b"".join(_text(name) for name in cohort)


def read_open(payload: Raw, *, most: int) -> Opened:
    """The server's terms; at most ``most`` names."""
    reader = Reader(payload)
    run, model, plan, adversary = (reader.text() for _ in range(4))
    numbers = _TERMS.unpack(reader.take(_TERMS.size))
    count = reader.number()
    if count > most:
        raise Refused(Reason.OTHER_COHORT)
    cohort = tuple(reader.text() for _ in range(count))
    reader.end()
    round_, attempt, dimension, parties, neighbours, threshold, corrupt, may_drop, floor, bits, groups = numbers
    return Opened(
        run=run,
        round=round_,
        attempt=attempt,
        model=model,
        plan=plan,
        dimension=dimension,
        parameters={
            "parties": parties,
            "neighbours": neighbours,
            "threshold": threshold,
            "adversary": adversary,
            "corrupt": corrupt,
            "may_drop": may_drop,
            "groups": groups,
        },
        floor=floor,
        bits=bits,
        cohort=cohort,
    )


def read_keys(payload: Raw, *, pledged: bool = False) -> Keys:
    """The payload of ADVERTISE; with a pledge where groups are drawn."""
    reader = Reader(payload)
    found = _read_keys(reader, pledged)
    reader.end()
    return found


def _read_keys(reader: Reader, pledged: bool) -> Keys:
    mask, channel = bytes(reader.take(_KEY)), bytes(reader.take(_KEY))
    return Keys(mask=mask, channel=channel, pledge=bytes(reader.take(_HASH)) if pledged else b"")


def write_roster(advertised: Mapping[str, Keys], cohort: Sequence[str]) -> bytes:
    """Who advertised, then keys and signature of each, in the order of the cohort."""
    present = [advertised[name] for name in cohort if name in advertised]
    return bitmap(advertised, cohort) + b"".join(each.payload + each.signature for each in present)


def read_roster(payload: Raw, cohort: Sequence[str], *, pledged: bool = False) -> dict[str, Keys]:
    """The keys of all who advertised, with their pledges where groups are drawn."""
    reader = Reader(payload)
    found = {
        name: dataclasses.replace(_read_keys(reader, pledged), signature=bytes(reader.take(_SIGNATURE)))
        for name in reader.members(cohort)
    }
    reader.end()
    return found


def write_hashes(found: Mapping[str, bytes], cohort: Sequence[str]) -> bytes:
    """Pledges (DRAW_AGAIN, DRAW_LAST) or opened nonces (ROSTER, where groups are drawn), one of each party."""
    return _write_entries(found, cohort, bytes)


def read_hashes(payload: Raw, cohort: Sequence[str]) -> dict[str, bytes]:
    """What :func:`write_hashes` wrote."""
    return _read_listed(Reader(payload), cohort, _HASH)


def read_reveal(payload: Raw) -> tuple[bytes, bytes]:
    """The payload of REVEAL: the nonce, and the pledge for another draw."""
    reader = Reader(payload)
    nonce, following = bytes(reader.take(_HASH)), bytes(reader.take(_HASH))
    reader.end()
    return nonce, following


def write_share(commit: bytes, sealed: Mapping[str, bytes], cohort: Sequence[str]) -> bytes:
    """The commitment, then one sealed pair of shares for each receiver."""
    return commit + _write_entries(sealed, cohort, bytes)


def read_share(payload: Raw, cohort: Sequence[str]) -> tuple[bytes, dict[str, bytes]]:
    """The commitment, and the sealed pair of shares for each receiver."""
    reader = Reader(payload)
    commit = bytes(reader.take(_HASH))
    return commit, _read_listed(reader, cohort, _SEALED)


def write_shares(sharing: Collection[str], sealed: Mapping[str, bytes], cohort: Sequence[str]) -> bytes:
    """Who shared, then what each neighbour among them sealed for the receiver."""
    return bitmap(sharing, cohort) + _write_entries(sealed, cohort, bytes)


def read_shares(payload: Raw, cohort: Sequence[str]) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """Who shared, and what the neighbours among them sealed for this party."""
    reader = Reader(payload)
    sharing = reader.members(cohort)
    return sharing, _read_listed(reader, cohort, _SEALED)


def write_pair(seed: NDArray[np.uint32], key: NDArray[np.uint32]) -> bytes:
    """Both shares for one holder, before sealing."""
    return shamir.share_bytes(seed) + shamir.share_bytes(key)


def read_pair(plain: bytes) -> tuple[SeedShare, KeyShare]:
    """Both shares from one sender, after opening."""
    reader = Reader(plain)
    seed, key = _limbs(reader.take(_PAIR))
    reader.end()
    return SeedShare(seed), KeyShare(key)


def write_vector(masked: NDArray[np.uint32], terms: SessionTerms) -> Raw:
    """A masked vector as it travels: the lowest ``terms.bits`` bits of each word."""
    return masked.data.cast("B") if terms.bits == 32 else to_wire(masked, bits=terms.bits)


def read_vector(payload: Raw, terms: SessionTerms) -> NDArray[np.uint32]:
    """A masked vector, not copied where all its bits travelled."""
    size = wire_size(terms.dimension, bits=terms.bits)
    if len(payload) != size:
        raise Refused(Reason.TRUNCATED if len(payload) < size else Reason.OVERSIZE)
    if terms.bits == 32:
        return np.frombuffer(payload, dtype="<u4")
    return from_wire(bytes(payload), size=terms.dimension, bits=terms.bits)


def read_members(payload: Raw, cohort: Sequence[str]) -> tuple[str, ...]:
    """The payload of SURVIVORS and of AGREE: one set of parties."""
    reader = Reader(payload)
    members = reader.members(cohort)
    reader.end()
    return members


def write_agreed(signatures: Mapping[str, bytes], cohort: Sequence[str]) -> bytes:
    """Who signed the list of survivors, and the signatures."""
    return _write_entries(signatures, cohort, bytes)


def read_agreed(payload: Raw, cohort: Sequence[str]) -> dict[str, bytes]:
    """The signatures under the list of survivors."""
    return _read_listed(Reader(payload), cohort, _SIGNATURE)


def write_unmask(shares: Mapping[str, Share], cohort: Sequence[str]) -> bytes:
    """One share of each peer, of one kind or the other."""
    return _write_entries(shares, cohort, lambda share: bytes((_CODES[type(share)],)) + shamir.share_bytes(share.limbs))


def read_unmask(payload: Raw, cohort: Sequence[str]) -> dict[str, Share]:
    """One share of each peer. A second share of the same peer has no place in this layout."""
    reader = Reader(payload)
    names = reader.members(cohort)
    size = 1 + shamir.SHARE_BYTES
    rows = np.frombuffer(reader.take(size * len(names)), dtype=np.uint8).reshape(-1, size)
    reader.end()
    kinds = rows[:, 0].tolist()
    if not _KINDS.keys() >= set(kinds):
        raise Refused(Reason.MALFORMED)
    shares = _limbs(rows[:, 1:].tobytes())
    return {name: _KINDS[kind](limbs) for name, kind, limbs in zip(names, kinds, shares, strict=True)}


def largest_payload(step: Step, terms: SessionTerms) -> int:
    """The most bytes that a payload of this step can have."""
    count = terms.parameters.parties
    bits = -(-count // 8)
    pledged = _HASH if terms.parameters.groups > 1 else 0
    each = {
        **dict.fromkeys(REVEALING, 2 * _HASH),
        **dict.fromkeys(DRAWING, bits + count * (2 * _KEY + _HASH + _SIGNATURE)),
        Step.OPEN: 8 * _NAME + _TERMS.size + 4 + count * (1 + _NAME),
        Step.ADVERTISE: 2 * _KEY + pledged,
        Step.ROSTER: bits + count * (2 * _KEY + _SIGNATURE),
        Step.SHARE: _HASH + bits + count * _SEALED,
        Step.SHARES: 2 * bits + count * _SEALED,
        Step.MASKED: wire_size(terms.dimension, bits=terms.bits),
        Step.SURVIVORS: bits,
        Step.AGREE: bits,
        Step.AGREED: bits + count * _SIGNATURE,
        Step.UNMASK: bits + count * (1 + shamir.SHARE_BYTES),
    }
    return each[step]


def _write_entries(entries: Mapping[str, _T], cohort: Sequence[str], form: Callable[[_T], bytes]) -> bytes:
    return bitmap(entries, cohort) + b"".join(form(entries[name]) for name in cohort if name in entries)


def _read_listed(reader: Reader, cohort: Sequence[str], size: int) -> dict[str, bytes]:
    def entries() -> Iterator[tuple[str, bytes]]:
        for name in reader.members(cohort):
            yield name, bytes(reader.take(size))

    found = dict(entries())
    reader.end()
    return found


def _limbs(raw: Raw) -> NDArray[np.uint32]:
    """Shares one after another, a row each."""
    try:
        return shamir.shares_from_bytes(bytes(raw))
    except shamir.Unfitting:
        raise Refused(Reason.MALFORMED) from None
