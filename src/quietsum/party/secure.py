"""A party's half of a secure round: one session at a time, and its data only at the one step that asks for it.

The protocol itself is :class:`quietsum.secagg.Party`, which takes bytes and returns bytes. Around it stands what a site
has to see to: the terms of the session come from the site's own copy of the plan and never from the server, an attempt
is opened once, and the vector is made, by work that may cost privacy, only when the shares of enough others are there.
What a party adds is made here too, on one grid with what the server reads from the sum (:class:`Weighted`,
:class:`Noisy`): both ends of one number stand in one file.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import QuietsumError
from quietsum.party.work import model_hash
from quietsum.plan import LARGEST, MAX_UPDATE, longest_update, sessions_of
from quietsum.privacy import PrivacyUnit
from quietsum.secagg import (
    DRAWING,
    Demands,
    Identity,
    Party,
    Reason,
    Refused,
    SessionTerms,
    Step,
    centre_lift,
    pad_to_power,
    rotate,
    rotate_back,
)

if TYPE_CHECKING:
    from quietsum.mechanisms import DistributedNoise, RandomSource
    from quietsum.plan import ResolvedPlan

__all__ = [
    "AttemptKey",
    "Contribution",
    "Noisy",
    "SecureSite",
    "Weighted",
    "absent",
    "contribution_of",
    "sessions_of",
    "terms_of",
]

Vector = NDArray[np.float64]
Masked = NDArray[np.uint32]
AttemptKey = tuple[str, int, int]
"""Run, round and attempt: what a session is known by before it has keys."""


def terms_of(resolved: ResolvedPlan, key: AttemptKey, model: str) -> SessionTerms:
    """What a session of this plan is about; both sides make it from their own copy, and must come to the same."""
    secure = resolved.secure
    if secure is None:
        raise QuietsumError("the plan does not ask for secure aggregation; this is a fault of quietsum")
    run, number, attempt = key
    grid = repr(contribution_of(resolved, number).grid)  # two sides with other grids would not notice otherwise
    return SessionTerms(
        run=run, round=number, attempt=attempt, model=model,
        plan=hashlib.sha256(f"{resolved.plan.digest}\n{grid}".encode()).hexdigest(),
        dimension=pad_to_power(resolved.dimension) if secure.bits < 32 else resolved.dimension,
        bits=secure.bits,
        parameters=secure.parameters,
        floor=secure.floor,
    )  # fmt: skip


def absent(run: str, party: str) -> bytes:
    """What stands for the key of a party that has never come: a hash, whose other half no one holds."""
    return hashlib.sha256(f"quietsum: {party} has not come to {run}".encode()).digest()


# ------------------------------------------------------------------------------------------- what is added


def contribution_of(resolved: ResolvedPlan, number: int) -> Contribution:
    """What parties add in round ``number``, from public numbers alone: the same on both sides."""
    names = tuple(facts.name for facts in resolved.parties)
    orders = resolved.orders(names[0], number)
    noise = orders.distributed
    if noise is not None:
        records = noise.unit is PrivacyUnit.RECORD
        seed = hashlib.sha256(f"quietsum: the rotation of round {number} of {resolved.plan.digest}".encode()).digest()
        return Noisy(
            noise=noise, divisor=resolved.divisor, factor=-orders.learning_rate if records else 1.0,
            dimension=resolved.dimension, seed=seed,
        )  # fmt: skip
    stated = resolved.plan.aggregation.max_update
    sizes = {facts.size: facts.name for facts in resolved.parties}  # orders differ by size alone
    largest = stated or max(_longest(resolved, name, number) for name in sizes.values())
    return Weighted(
        weights={name: resolved.weight_of(name) for name in names}, largest=largest, dimension=resolved.dimension
    )


def _longest(resolved: ResolvedPlan, party: str, number: int) -> float:
    orders, size = resolved.orders(party, number), resolved.facts_of(party).size
    found = longest_update(orders, size=size, dimension=resolved.dimension)
    return found if found < LARGEST else MAX_UPDATE


class Contribution(Protocol):
    """What one party adds to a masked sum, and what the sum says."""

    @property
    def grid(self) -> float:
        """Steps of the grid to one unit of what is added."""
        ...

    def of(self, party: str, vector: Vector, rng: RandomSource) -> Masked:
        """The vector of ``party`` in the ring of the masks. It must never leave the party without one."""
        ...

    def step(self, total: Masked, survivors: Sequence[str]) -> Vector:
        """The server's step, from the opened sum of the ``survivors``."""
        ...


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted:
    """Σ w·update / Σ w over the survivors, w public: every party weighs its own update, and rounds it to a grid.

    Guarantees: none of privacy. An update carries its party's noise already, or nothing is promised. The sum of as many
    updates as there are parties fits the ring: each is projected on the ball of ``largest``, so a coordinate of the
    weighted sum is at most Σ w · ``largest``, and with half a step of rounding for each party

        (Σ w · largest) · grid + n / 2 < 2³¹.

    Each coordinate of the mean is off by at most n / (2 · grid · Σ_survivors w).
    """

    weights: Mapping[str, float]
    largest: float
    dimension: int

    @property
    def grid(self) -> float:
        """Steps of the grid to one unit of a weighted update: a power of two, so that both sides have the same bits."""
        room = (2.0**31 - 1 - len(self.weights)) / (sum(self.weights.values()) * self.largest)
        return float(2.0 ** np.floor(np.log2(room) - 1e-9))

    def of(self, party: str, vector: Vector, rng: RandomSource) -> Masked:
        """The party's weighted update on the grid; a longer one than ``largest`` is shortened."""
        update = np.asarray(vector, dtype=np.float64)
        length = float(np.linalg.norm(update))
        if length > self.largest:
            update = update * (self.largest / length)
        whole = np.rint(update * (self.weights[party] * self.grid)).astype(np.int64)
        return _into_ring(whole)

    def step(self, total: Masked, survivors: Sequence[str]) -> Vector:
        """The weighted mean of the survivors' updates."""
        weight = sum(self.weights[party] for party in survivors)
        return np.asarray(centre_lift(total, bits=32) / (self.grid * weight))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Noisy:
    """The sum of bounded vectors with a share of noise from every party, over a public number.

    Guarantees: those of :class:`~quietsum.mechanisms.distributed.DistributedNoise`: what is opened costs
    ``noise.event()`` as soon as as many honest parties as its floor says are in it. ``divisor`` is made of public
    numbers and of who survived, which neither the protocol nor the noise hides. ``factor`` turns a sum of gradients
    into a step downhill. In a ring of fewer than 32 bits vectors are added in the rotated basis of ``seed``, which is
    public: it spreads a vector over all coordinates, so that the sum fits but for the chance that the noise states.
    """

    noise: DistributedNoise
    divisor: Callable[[Sequence[str]], float]
    dimension: int
    factor: float = 1.0
    seed: bytes = bytes(32)

    @property
    def grid(self) -> float:
        """That of the noise."""
        return self.noise.scale

    def of(self, party: str, vector: Vector, rng: RandomSource) -> Masked:
        """The party's vector, bounded, on the grid, with its share of the noise; of zeros where it is no vector."""
        try:
            share = self.noise.share(self._rotate(np.asarray(vector, dtype=np.float64)), rng)
        except Exception:  # its shape and its numbers may depend on data, too
            share = self.noise.share(np.zeros(self.noise.dimension), rng)
        return _into_ring(share)

    def step(self, total: Masked, survivors: Sequence[str]) -> Vector:
        """The noisy sum, times ``factor`` over the divisor."""
        found = self.noise.decode(centre_lift(total, bits=self.noise.bits))
        if self.noise.bits < 32:
            found = rotate_back(found, self.dimension, seed=self.seed)
        return np.asarray(found * (self.factor / self.divisor(survivors)))

    def _rotate(self, vector: Vector) -> Vector:
        return rotate(vector, seed=self.seed) if self.noise.bits < 32 else vector


def _into_ring(whole: NDArray[np.int64]) -> Masked:
    return (whole & 0xFFFFFFFF).astype(np.uint32)


# ----------------------------------------------------------------------------------------------- the session


@final
class SecureSite:
    """One party in the secure rounds of a run.

    Guarantees: a session is opened for later attempts only, in order, and its secrets live in this object alone. The
    model must be the one of the terms before ``contribute`` is called, at most once a session; what it returns
    leaves under masks or not at all. A question that comes twice gets the same bytes; another one in its place is
    refused. :class:`~quietsum.secagg.Refused` is all that a message can make this raise.
    """

    def __init__(
        self,
        name: str,
        *,
        identity: Identity,
        contribute: Callable[[AttemptKey, Vector], Masked],
        policy: Demands | None = None,
    ) -> None:
        self.name, self._identity, self._policy = name, identity, policy
        self._contribute = contribute
        self._last: dict[str, tuple[int, int]] = {}
        self._drawn: dict[str, int] = {}  # sessions with groups, by run
        self._key: AttemptKey | None = None
        self._party: Party | None = None
        self._made = False

    @property
    def public(self) -> bytes:
        """The key by which others know this party."""
        return self._identity.public

    def open(
        self,
        terms: SessionTerms,
        message: bytes,
        *,
        server: bytes,
        peers: Mapping[str, bytes],
        sessions: int | None = None,
        draw: Callable[[], None] | None = None,
    ) -> bytes:
        """Begin the session of ``terms`` and answer its first question; no data is touched.

        ``sessions`` is how often this object lets groups be drawn for a run (:func:`quietsum.plan.groups.sessions_of`);
        no limit if omitted. More draws would be more tries to seat it among colluders. ``draw`` is called before a
        session with groups is opened: a site whose memory must outlive its process counts there, and raises
        :class:`~quietsum.secagg.Refused` if there is to be no more.
        """
        key = terms.run, terms.round, terms.attempt
        if key != self._key:
            if (terms.round, terms.attempt) <= self._last.get(terms.run, (0, 0)):
                raise Refused(Reason.ALREADY_ANSWERED)
            if terms.parameters.groups > 1:
                if sessions is not None and self._drawn.get(terms.run, 0) >= sessions:
                    raise Refused(Reason.TOO_MANY_DRAWS)
                if draw is not None:
                    draw()
                self._drawn[terms.run] = self._drawn.get(terms.run, 0) + 1
            self.stop()
            self._last[terms.run] = terms.round, terms.attempt
            self._key, self._made = key, False
            self._party = Party(
                name=self.name, identity=self._identity, server=server, peers=peers, terms=terms, policy=self._policy
            )
        return self._session(key).advertise(message)

    def touches(self, key: AttemptKey, step: Step) -> bool:
        """Whether the answer to ``step`` would make the party's data be looked at."""
        return step is Step.SHARES and key == self._key and self._party is not None and not self._made

    def holds(self, model: str) -> bool:
        """Whether the open session is about the model of this hash."""
        return self._party is not None and self._party.terms.model == model

    def answer(self, key: AttemptKey, step: Step, message: bytes, params: Vector | None = None) -> bytes:
        """The answer to a later question of the session."""
        party = self._session(key)
        if step in DRAWING:
            return party.reveal(step, message)
        match step:
            case Step.ROSTER:
                return party.share(message)
            case Step.SHARES:
                return self._mask(party, key, message, params)
            case Step.SURVIVORS:
                return party.agree(message)
            case Step.AGREED:
                return party.unmask(message)
        raise Refused(Reason.WRONG_STEP)

    def stop(self) -> None:
        """Forget the session that is open, with its keys."""
        if self._party is not None:
            self._party.stop()
        self._party, self._key = None, None

    def _session(self, key: AttemptKey) -> Party:
        if self._party is None or key != self._key:
            raise Refused(Reason.ENDED)
        return self._party

    def _mask(self, party: Party, key: AttemptKey, message: bytes, params: Vector | None) -> bytes:
        def make() -> Masked:
            if self._made:  # the answer has left, or was lost in a failure: there is no second vector
                raise Refused(Reason.ALREADY_ANSWERED)
            if params is None or model_hash(params) != party.terms.model:
                raise Refused(Reason.OTHER_MODEL)
            self._made = True
            return self._contribute(key, params)

        return party.mask(message, make)
