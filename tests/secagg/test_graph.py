"""The graph: regular, symmetric, the same for everybody, and in an order that follows from all committed keys."""

from __future__ import annotations

import collections

import pytest
from scipy.stats import chisquare

from quietsum.errors import InvalidParameter
from quietsum.secagg import graph
from quietsum.secagg.parameters import Adversary, choose_parameters

SPARSE = choose_parameters(100, corrupt=10, drop_outs=0.1, adversary=Adversary.SEMI_MALICIOUS)
MANY = tuple(f"site {place}" for place in range(100))


@pytest.mark.parametrize("count", [3, 4, 10, 49])
def test_in_a_small_cohort_everyone_is_everyones_neighbour(count: int) -> None:
    near = graph.neighbours(MANY[:count], choose_parameters(count), bytes(32))
    assert all(set(others) == set(MANY[:count]) - {name} for name, others in near.items())


def test_the_sparse_graph_is_regular_symmetric_and_connected() -> None:
    near = graph.neighbours(MANY, SPARSE, b"s" * 32)
    assert {len(set(others)) for others in near.values()} == {SPARSE.neighbours}
    assert all(name in near[other] and name != other for name, others in near.items() for other in others)
    reached, border = {MANY[0]}, [MANY[0]]
    while border:
        new = set(near[border.pop()]) - reached
        reached |= new
        border.extend(new)
    assert reached == set(MANY)


def test_honest_survivors_stay_connected_when_as_many_as_allowed_are_gone() -> None:
    for seed in range(200):
        near = graph.neighbours(MANY, SPARSE, seed.to_bytes(32, "big"))
        left = set(MANY[20:])  # 10 colluders and 10 drop-outs, fixed before the order is drawn
        reached, border = {MANY[99]}, [MANY[99]]
        while border:
            new = (set(near[border.pop()]) & left) - reached
            reached |= new
            border.extend(new)
        assert reached == left


def test_the_order_in_which_parties_are_named_does_not_matter_and_the_seed_does() -> None:
    seed = b"s" * 32
    assert graph.neighbours(MANY, SPARSE, seed) == graph.neighbours(MANY[::-1], SPARSE, seed)
    assert graph.neighbours(MANY, SPARSE, seed) != graph.neighbours(MANY, SPARSE, b"t" * 32)


def test_one_other_key_of_one_party_changes_the_seed() -> None:
    keys = {name: [name.encode(), b"mask"] for name in MANY}
    seed = graph.hash_keys(keys)
    assert seed == graph.hash_keys(dict(reversed(keys.items())))
    assert seed != graph.hash_keys(keys | {"site 7": [b"another", b"mask"]})
    assert seed != graph.hash_keys({name: keys[name] for name in MANY[:-1]})


def test_over_many_seeds_every_other_party_is_a_neighbour_equally_often() -> None:
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(600):
        order = graph.ring(MANY, seed.to_bytes(32, "big"))
        counts[order[(order.index(MANY[0]) + 1) % 100]] += 1
    assert chisquare([counts[name] for name in MANY[1:]]).pvalue > 1e-6


def test_the_owner_holds_a_share_of_its_own_in_the_complete_graph_only() -> None:
    small = choose_parameters(3)
    near = graph.neighbours(("a", "b", "c"), small, bytes(32))
    assert graph.holders("b", near["b"], small) == ("a", "b", "c")
    near = graph.neighbours(MANY, SPARSE, bytes(32))
    assert graph.holders(MANY[0], near[MANY[0]], SPARSE) == near[MANY[0]]
    assert len(near[MANY[0]]) == SPARSE.holders


@pytest.mark.parametrize("parties", [("a", "b"), ("a", "b", "b"), ("a", "b", "c", "d")])
def test_another_number_of_parties_or_a_repeated_name_is_refused(parties: tuple[str, ...]) -> None:
    with pytest.raises(InvalidParameter, match="3 different"):
        graph.neighbours(parties, choose_parameters(3), bytes(32))
