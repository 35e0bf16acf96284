"""Who masks with whom: everyone with everyone, or a ring under an order that no one could choose.

In a small cohort every two parties share a mask. In a large one each party has k neighbours (SecAgg+, Bell et al.
2020): the parties stand on a ring in random order and each is joined to the k/2 before and the k/2 after it (a Harary
graph). The order is by SHA-256 of a seed and the name, and the seed is the hash of all committed public keys
(:func:`seed_of`), so it is fixed only after the keys are, and every party works out the same graph by itself: the
server tells no one who their neighbours are. A server that enrols parties of its own can still try several keys for
them before it commits; the failure bound of :mod:`quietsum.secagg.parameters` is per try.

>>> from quietsum.secagg.parameters import Adversary, choose
>>> small = choose(4, corrupt=1, drop_outs=0.25, adversary=Adversary.SEMI_MALICIOUS)
>>> neighbours(("Basel", "Bern", "Genf", "Zug"), small, seed=bytes(32))["Bern"]
('Basel', 'Genf', 'Zug')
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.secagg.keys import digest
from quietsum.secagg.parameters import Parameters

__all__ = ["holders", "neighbours", "ring", "seed_of"]


def seed_of(keys: Mapping[str, Sequence[bytes]]) -> bytes:
    """The seed of the graph: one hash of every party's name and committed public keys."""
    return digest("graph", *(digest("party", name.encode(), *keys[name]) for name in sorted(keys)))


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
    """The parties in the order of SHA-256(seed ‖ name): a random order for whoever could not choose the seed."""
    return tuple(sorted(parties, key=lambda name: (hashlib.sha256(seed + name.encode()).digest(), name)))
