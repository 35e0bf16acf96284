"""What a secure round costs: messages, bytes and seconds, for a party and for the server, before it is run.

Bytes follow from the layouts of :mod:`quietsum.secagg.messages` exactly. Seconds are counts of a few operations times
what each takes on the machine at hand, which :func:`measure` finds out in about a quarter of a second. With n
parties, k neighbours, t shares, d numbers and g drop-outs after the shares are out,

* a party makes k + 1 masks of d numbers, 2k key agreements, k seals and as many opened, and checks n or k keys and t
  signatures;
* the server makes n − g masks and k more for each drop-out's surviving neighbour, as many key agreements, checks five
  signatures a party, and rebuilds n secrets.

A mask of d numbers is by far the largest term from about 10⁵ numbers on, so a party's time grows as k d and the
server's as n d + g k d. In groups k and t are those of one group, and the draw adds one step. Noise and rounding add a
term in d of their own (``noise``). What training takes is not in it, nor waiting for the network.

>>> from quietsum.secagg.parameters import choose_parameters
>>> price = estimate(choose_parameters(10, corrupt=1, drop_outs=0.1), dimension=1000, machine=REFERENCE)
>>> price.party.messages, price.party.sent, price.party.received
(10, 5947, 3513)
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable
from typing import final

import numpy as np

from quietsum.errors import InvalidParameter
from quietsum.secagg import keys, masks, messages, shamir
from quietsum.secagg.layout import wire_size
from quietsum.secagg.messages import SeedShare
from quietsum.secagg.parameters import Adversary, Parameters
from quietsum.validate import whole_number

__all__ = ["REFERENCE", "Machine", "SessionCost", "SideCost", "estimate", "measure"]

_STEPS = 5
_FRAME = 4 + 1 + 32 + 1 + 1 + 4 + keys.SIGNATURE_BYTES
"""Bytes of a frame beside its payload and the party's name: magic, step, session, lengths, signature."""

_TERMS = 4 + 64 + 64 + 2 * 8 + 9 * 4 + 4
"""Bytes of the terms beside the words in them, and of the number of names."""

_NONCE = 32  # a nonce, or the pledge of one
_SEALED = 2 * shamir.SHARE_BYTES + keys.SEAL_OVERHEAD


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds of one processor core: for one number of a mask, one number otherwise handled, one operation each.

    ``share`` is one share of one secret, ``entry`` one entry of a message for a neighbour, on its way to the next.
    """

    mask: float
    number: float
    pair: float
    agreement: float
    seal: float
    sign: float
    verify: float
    share: float
    entry: float
    noise: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) >= 0:
                raise InvalidParameter(field.name, getattr(self, field.name), "is no number of seconds")


REFERENCE = Machine(
    mask=0.55e-9,
    number=1.9e-9,
    pair=20e-6,
    agreement=26e-6,
    seal=2e-6,
    sign=18e-6,
    verify=59e-6,
    share=0.7e-6,
    entry=1e-6,
    noise=5e-8,
)
"""One core of the machine that the benchmarks were run on, for forecasts without measuring; see docs/benchmarks.md."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SideCost:
    """Of one side in one round. ``seconds`` are of one core."""

    messages: int
    sent: int
    received: int
    seconds: float

    @property
    def summary(self) -> str:
        """One line for a plan."""
        sent, received = _bytes(self.sent), _bytes(self.received)
        return f"{self.messages} messages, {sent} sent, {received} received, {_seconds(self.seconds)} of one core"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionCost:
    """What one round costs a party that stays to the end, and the server."""

    party: SideCost
    server: SideCost


def estimate(
    parameters: Parameters,
    *,
    dimension: int,
    machine: Machine,
    drop_outs: int | None = None,
    noise: bool = False,
    name_bytes: int = 8,
    bits: int = 32,
) -> SessionCost:
    """The cost of one round for vectors of ``dimension`` numbers, with ``drop_outs`` parties lost before they send.

    ``drop_outs`` is what the parameters allow for, if omitted. ``name_bytes`` is the mean length of a party's name and
    of the run's. With ``noise``, vectors are rounded and get shares of noise at the party; ``bits`` of a number travel.
    """
    size = whole_number("dimension", dimension, minimum=1)
    gone = parameters.groups * parameters.may_drop if drop_outs is None else whole_number("drop_outs", drop_outs)
    most = parameters.groups * (parameters.smallest - parameters.threshold)
    if gone > most:
        remedy = f"at most {most} leave enough shares"
        raise InvalidParameter("drop_outs", gone, "would end the round without a sum", remedy)
    return SessionCost(
        party=_party(parameters, size, gone, machine, noise=noise, name_bytes=name_bytes, bits=bits),
        server=_server(parameters, size, gone, machine, noise=noise, name_bytes=name_bytes, bits=bits),
    )


def _party(
    chosen: Parameters, size: int, gone: int, machine: Machine, *, noise: bool, name_bytes: int, bits: int
) -> SideCost:
    n, k, t, own = chosen.parties, chosen.neighbours, chosen.threshold, int(chosen.complete)
    listed = -(-chosen.largest // 8)  # a list of the parties in the sum
    frame = _FRAME + name_bytes
    drawn = chosen.groups > 1
    everyone = -(-n // 8)
    sent = (_STEPS + drawn) * frame + (
        2 * keys.KEY_BYTES
        + drawn * 3 * _NONCE
        + (32 + listed + k * _SEALED)
        + wire_size(size, bits=bits)
        + listed
        + (listed + (k + own) * (1 + shamir.SHARE_BYTES))
    )
    words = name_bytes + len(chosen.adversary.value)
    received = (_STEPS + drawn) * frame + (
        (_TERMS + words + n * (1 + name_bytes))
        + (everyone + n * (2 * keys.KEY_BYTES + keys.SIGNATURE_BYTES))
        + drawn * (everyone + 2 * n * _NONCE)
        + (2 * listed + k * _SEALED)
        + listed
        + (listed + t * keys.SIGNATURE_BYTES)
    )
    checked = chosen.largest if chosen.adversary is Adversary.SEMI_MALICIOUS else k
    seconds = (
        (k + 1) * size * machine.mask
        + size * (machine.number + noise * machine.noise)
        + 2 * machine.pair
        + 2 * k * (machine.agreement + machine.seal)
        + (checked + t + _STEPS + drawn) * machine.verify
        + (_STEPS + drawn) * machine.sign
        + k * (2 * machine.share + machine.entry)
    )
    return SideCost(messages=2 * (_STEPS + drawn), sent=sent, received=received, seconds=seconds)


def _server(
    chosen: Parameters, size: int, gone: int, machine: Machine, *, noise: bool, name_bytes: int, bits: int
) -> SideCost:
    n, k, steps = chosen.parties, chosen.neighbours, _STEPS + (chosen.groups > 1)
    here = n - gone
    one = _party(chosen, size, gone, machine, noise=False, name_bytes=name_bytes, bits=bits)
    others = n if chosen.groups > 1 else max(n - 1, 1)
    rebuilt = gone * k * here / others  # masks of drop-outs with neighbours that stayed
    seconds = (
        (here + rebuilt) * size * machine.mask
        + here * size * machine.number
        + (2 * n + rebuilt) * machine.agreement
        + steps * n * (machine.verify + machine.sign)
        + n * (k * machine.entry + machine.share)
        + gone * machine.pair
    )
    return SideCost(
        messages=2 * steps * here + steps * gone, sent=one.received * here, received=one.sent * here, seconds=seconds
    )


# ------------------------------------------------------------------------------------------------------ measuring


def measure(*, size: int = 1 << 17) -> Machine:
    """The seconds of this machine, each the best of a few tries, in about a quarter of a second."""
    words = np.zeros(size, dtype=np.uint32)
    ours, theirs, identity = keys.KeyPair.fresh(), keys.KeyPair.fresh(), keys.Identity.fresh()
    session = bytes(keys.KEY_BYTES)
    key = keys.agree(ours, theirs.public, session=session, role="mask")
    names = {"session": session, "sender": "a", "receiver": "b"}
    sealed = keys.seal(key, bytes(72), **names)  # type: ignore[arg-type]
    signature = identity.sign(session)
    points = range(1, 65)
    return Machine(
        mask=_best(lambda: masks.add(words, key), 3) / size,
        number=_best(lambda: _handle(words), 3) / size,
        pair=_best(keys.KeyPair.fresh, 20),
        agreement=_best(lambda: keys.agree(ours, theirs.public, session=session, role="mask"), 20),
        seal=_best(lambda: keys.unseal(key, sealed, **names), 20),  # type: ignore[arg-type]
        sign=_best(lambda: identity.sign(session), 20),
        verify=_best(lambda: keys.is_signed_by(identity.public, signature, session), 20),
        share=_best(lambda: shamir.split(key, threshold=43, points=points), 3) / len(points),
        entry=_best(_relay(64), 3) / 64,
        noise=_best(_noise(size), 1) / size,
    )


def _handle(words: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> None:
    """What happens to every number beside masking: copied and hashed, or hashed and added."""
    hashlib.sha256(words.data)
    np.add(words, words, out=words)


def _relay(count: int) -> Callable[[], object]:
    """Shares of ``count`` neighbours on their way: read and written sealed, then read when they are revealed."""
    cohort = tuple(f"party {place:04d}" for place in range(count))
    sealed = dict.fromkeys(cohort, bytes(_SEALED))
    share = messages.write_share(bytes(32), sealed, cohort)
    unmask = messages.write_unmask(dict.fromkeys(cohort, SeedShare(np.zeros(shamir.LIMBS, dtype=np.uint32))), cohort)

    def work() -> None:
        messages.read_share(share, cohort)
        messages.write_shares(cohort, sealed, cohort)
        messages.read_unmask(unmask, cohort)

    return work


def _noise(size: int) -> Callable[[], object]:
    """One party's share of noise, with the rounding that comes before it."""
    from quietsum.mechanisms import DistributedNoise, system_randomness

    noise = DistributedNoise(max_norm=1.0, noise_multiplier=1.0, honest=4, dimension=size, unit="client")
    values, rng = np.full(size, 1 / size), system_randomness()
    return lambda: noise.share(values, rng)


def _best(work: Callable[[], object], times: int) -> float:
    """Seconds of the processor for one call: the best of five series."""
    work()
    found = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(times):
            work()
        found.append((time.process_time() - start) / times)
    return min(found)


# --------------------------------------------------------------------------------------------------------- wording


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"


def _seconds(seconds: float) -> str:
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    return f"{seconds:.2g} s"
