"""Who masks with whom: everyone with everyone, or a ring under an order that no one could choose.

In a small cohort every two parties share a mask. In a large one each party has k neighbours (SecAgg+, Bell et al.
2020): the parties stand on a ring in random order and each is joined to the k/2 before and the k/2 after it (a Harary
graph). The order is by SHA-256 of a seed and the name, and the seed is the hash of all committed public keys
(:func:`hash_keys`), so it is fixed only after the keys are, and every party works out the same graph by itself: the
server tells no one who their neighbours are. A server that enrols parties of its own can still try several keys for
them before it commits; the failure bound of :mod:`quietsum.secagg.parameters` is per try.

Groups are drawn by such an order, too, over all enrolled parties (:func:`groups`). Their seed is one that no party can
try out: every party pledges a nonce with its keys (a hash of it), the server shows all keys and pledges, and only then
the nonces are opened (:mod:`quietsum.secagg.messages`).

**Why no one chooses the groups.** Take an honest party. Its own nonce is 256 random bits that leave it in answer to one
list of keys and pledges; that list fixes everything else that the seed is made of, since a pledge is opened in one way
(SHA-256 has no known collisions) and the party insists that all are opened. So for the maker of the list, the order by
SHA-256(seed ‖ name) is a random one, even if the server shows others another list. Dropping a party before the draw
changes no one's place, since the order is over the names of the plan's cohort. What is left is to withhold a nonce or
to end the session, and so to ask for another draw: a party answers :data:`~quietsum.secagg.messages.DRAWS` of them in a
session, and a bounded number of sessions in a run (:data:`quietsum.plan.groups.SESSIONS`). A chance that counts is
therefore multiplied by the number of draws, and by nothing that grows with the number of colluders.

>>> from quietsum.secagg.parameters import Adversary, choose_parameters
>>> small = choose_parameters(4, corrupt=1, drop_outs=0.25, adversary=Adversary.SEMI_MALICIOUS)
>>> neighbours(("Basel", "Bern", "Genf", "Zug"), small, seed=bytes(32))["Bern"]
('Basel', 'Genf', 'Zug')
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.secagg.keys import hash_parts
from quietsum.secagg.parameters import Parameters

__all__ = ["groups", "hash_keys", "holders", "neighbours", "ring"]


def hash_keys(keys: Mapping[str, Sequence[bytes]]) -> bytes:
    """The seed of the graph: one hash of every party's name and committed public keys."""
    return hash_parts("graph", *(hash_parts("party", name.encode(), *keys[name]) for name in sorted(keys)))


def groups(parties: Sequence[str], count: int, seed: bytes) -> tuple[tuple[str, ...], ...]:
    """``parties`` in ``count`` groups whose sizes differ by one at most, larger ones first, each in order of names.

    >>> groups(("Basel", "Bern", "Genf", "Zug", "Chur"), 2, bytes(32))
    (('Bern', 'Chur', 'Zug'), ('Basel', 'Genf'))
    """
    order = ring(parties, hash_parts("groups", seed))
    size, larger = divmod(len(order), count)
    ends = [size * place + min(place, larger) for place in range(count + 1)]
    return tuple(tuple(sorted(order[begin:end])) for begin, end in itertools.pairwise(ends))


def neighbours(parties: Sequence[str], parameters: Parameters, seed: bytes) -> Mapping[str, tuple[str, ...]]:
    """Each party's neighbours in order of their names, never itself: the parties it shares masks with.

    ``parties`` are all that the plan enrolled. Those that sent no keys stand in the graph, too, and count as drop-outs,
    which the bounds of the parameters allow for. The relation is symmetric, with ``parameters.neighbours`` a party.
    """
    if len(set(parties)) != len(parties) or len(parties) != parameters.parties:
        problem = f"names must be {parameters.parties} different ones"
        raise InvalidParameter("parties", len(parties), problem, "enrol exactly the parties of the plan")
    if parameters.complete:
        return _Near(tuple(sorted(parties)), None)
    return _Near(ring(parties, seed), parameters.neighbours // 2)


@final
class _Near(Mapping[str, tuple[str, ...]]):
    """Neighbours, worked out when they are asked for and not kept: a party needs its own, hardly ever all of them."""

    def __init__(self, order: tuple[str, ...], half: int | None) -> None:
        self._order, self._half = order, half
        self._places = {name: place for place, name in enumerate(order)}

    def __getitem__(self, name: str) -> tuple[str, ...]:
        order, half, place = self._order, self._half, self._places[name]
        if half is None:
            return order[:place] + order[place + 1 :]
        count = len(order)
        around = tuple(order[(place + step) % count] for step in range(-half, half + 1))
        return tuple(sorted(around[:half] + around[half + 1 :]))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._order))

    def __len__(self) -> int:
        return len(self._order)


def holders(party: str, near: Sequence[str], parameters: Parameters) -> tuple[str, ...]:
    """Who holds the shares of ``party``'s secrets, in order: the holder at place i has the Shamir point i + 1.

    These are its neighbours; in the complete graph the party itself, too.
    """
    return tuple(sorted((*near, party) if parameters.complete else near))


def ring(parties: Sequence[str], seed: bytes) -> tuple[str, ...]:
    """The parties in the order of SHA-256(seed ‖ name): a random order for all who could not choose the seed."""
    return tuple(sorted(parties, key=lambda name: (hashlib.sha256(seed + name.encode()).digest(), name)))
