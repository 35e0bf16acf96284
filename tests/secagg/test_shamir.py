"""Shamir over GF(2³¹ − 1): fixed vectors in Python integers, any t shares, and t − 1 that leave everything possible."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from quietsum.errors import InvalidParameter
from quietsum.mechanisms.rng import system_randomness
from quietsum.secagg import field, shamir

P = 2**31 - 1


def naive_shares(secret: bytes, coefficients: list[list[int]], points: list[int]) -> list[list[int]]:
    """The definition, one limb at a time; coefficients[j][i] belongs to x^(j + 1) of limb i."""
    whole = int.from_bytes(secret, "little")
    limbs = [(whole >> (30 * i)) & (2**30 - 1) for i in range(9)]
    return [
        [(limbs[i] + sum(row[i] * x ** (j + 1) for j, row in enumerate(coefficients))) % P for i in range(9)]
        for x in points
    ]


def naive_rebuild(points: list[int], shares: list[list[int]]) -> bytes:
    limbs = []
    for i in range(9):
        total = 0
        for a, share in zip(points, shares, strict=True):
            top = bottom = 1
            for b in points:
                if b != a:
                    top, bottom = top * -b % P, bottom * (a - b) % P
            total += share[i] * top * pow(bottom, -1, P)
        limbs.append(total % P)
    return sum(limb << (30 * i) for i, limb in enumerate(limbs)).to_bytes(32, "little")


class FixedWords:
    """A source whose next field elements are known."""

    def __init__(self, elements: list[int]) -> None:
        self.left = list(elements)

    def bytes(self, count: int) -> bytes:
        taken, self.left = self.left[: count // 4], self.left[count // 4 :]
        return np.array(taken, dtype=np.uint32).tobytes()


@pytest.mark.parametrize(("threshold", "points"), [(1, [1, 2]), (3, [1, 2, 3, 4, 5]), (20, [*range(7, 40)])])
def test_shares_under_fixed_coefficients_are_those_of_whole_numbers(threshold: int, points: list[int]) -> None:
    generator = random.Random(threshold)
    secret = generator.randbytes(32)
    coefficients = [[generator.randrange(P) for _ in range(9)] for _ in range(threshold - 1)]
    rng = FixedWords(list(itertools.chain.from_iterable(coefficients)))
    shares = shamir.split(secret, threshold=threshold, points=points, rng=rng)  # type: ignore[arg-type]
    assert shares.tolist() == naive_shares(secret, coefficients, points)
    assert not rng.left
    assert naive_rebuild(points[-threshold:], shares[-threshold:].tolist()) == secret


def test_a_vector_worked_out_by_hand() -> None:
    """Secret 5 with coefficients 7 and 2: f(1) = 14, f(2) = 27, f(3) = 44."""
    rng = FixedWords([7, *[0] * 8, 2, *[0] * 8])
    shares = shamir.split((5).to_bytes(32, "little"), threshold=3, points=(1, 2, 3), rng=rng)  # type: ignore[arg-type]
    assert shares[:, 0].tolist() == [14, 27, 44]
    assert not shares[:, 1:].any()


@given(data=st.data(), secret=st.binary(min_size=32, max_size=32), holders=st.integers(1, 40))
@settings(deadline=None)
def test_any_threshold_shares_in_any_order_rebuild_the_secret(data: st.DataObject, secret: bytes, holders: int) -> None:
    threshold = data.draw(st.integers(1, holders))
    points = data.draw(st.lists(st.integers(1, P - 1), min_size=holders, max_size=holders, unique=True))
    shares = shamir.split(secret, threshold=threshold, points=points)
    chosen = data.draw(st.permutations(range(holders)))[: data.draw(st.integers(threshold, holders))]
    assert shamir.rebuild([points[i] for i in chosen], shares[list(chosen)], threshold=threshold) == secret
    assert naive_rebuild([points[i] for i in chosen], shares[list(chosen)].tolist()) == secret


def test_many_secrets_are_shared_and_rebuilt_at_once_each_as_if_alone() -> None:
    rng = system_randomness()
    secrets = [rng.bytes(32) for _ in range(50)]
    points = range(1, 101)
    shares = shamir.share_many(secrets, threshold=67, points=points)
    assert shares.shape == (50, 100, 9)
    chosen = [*range(30, 100)]
    assert shamir.rebuild_many([i + 1 for i in chosen], shares[:, chosen], threshold=67) == tuple(secrets)


def test_all_shares_but_one_of_the_threshold_leave_every_secret_possible() -> None:
    """For any other secret there are coefficients that give the very same t − 1 shares (here: found, and checked)."""
    secret, other = bytes(range(32)), bytes(reversed(range(32)))
    shares = shamir.split(secret, threshold=4, points=(1, 2, 3, 4, 5, 6))
    known = shares[[1, 3, 4]].tolist()
    whole = int.from_bytes(other, "little")
    limbs = [(whole >> (30 * i)) & (2**30 - 1) for i in range(9)]
    points = [0, 2, 4, 5]  # the polynomial through the other secret and the known shares, at a fourth point
    fourth = []
    for i in range(9):
        values = [limbs[i], *(row[i] for row in known)]
        total = 0
        for a, value in zip(points, values, strict=True):
            top = bottom = 1
            for b in points:
                if b != a:
                    top, bottom = top * (6 - b) % P, bottom * (a - b) % P
            total += value * top * pow(bottom, -1, P)
        fourth.append(total % P)
    forged = np.array([*known, fourth], dtype=np.uint32)
    assert shamir.rebuild((2, 4, 5, 6), forged, threshold=4) == other


def test_a_share_alone_is_uniform_whatever_the_secret() -> None:
    from scipy.stats import chisquare

    for secret in (bytes(32), b"\xff" * 32):
        shares = shamir.share_many([secret] * 4000, threshold=2, points=(1, 2))[:, 0]
        counts = np.bincount((shares.ravel() >> 25).astype(np.int64), minlength=64)
        assert chisquare(counts).pvalue > 1e-6


def test_shares_of_zero_coefficients_would_not_be_uniform() -> None:
    """The negative control of the test above."""
    shares = shamir.values_at((1, 2), np.zeros((2, 9 * 4000), dtype=np.uint64))[:, 0]
    assert np.bincount((shares.ravel() >> 25).astype(np.int64), minlength=64)[0] == shares.size


def test_fewer_shares_than_the_threshold_are_refused() -> None:
    shares = shamir.split(bytes(32), threshold=3, points=(1, 2, 3))
    with pytest.raises(InvalidParameter, match="fewer than the threshold of 3"):
        shamir.rebuild((1, 2), shares[:2], threshold=3)


@pytest.mark.parametrize("points", [(0, 1, 2), (1, 1, 2), (1, 2, P), (-1, 2, 3)])
def test_points_that_are_zero_repeated_or_outside_the_field_are_refused(points: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameter, match="points"):
        shamir.split(bytes(32), threshold=2, points=points)


def test_a_wrong_share_is_named_by_the_spare_ones() -> None:
    shares = shamir.split(b"k" * 32, threshold=3, points=range(1, 8))
    assert shamir.disagreeing(range(1, 8), shares, threshold=3) == ()
    shares[4, 2] ^= 1
    shares[6, 8] ^= 1
    assert shamir.disagreeing(range(1, 8), shares, threshold=3) == (5, 7)


def test_a_wrong_share_among_those_used_gives_another_secret_or_none() -> None:
    shares = shamir.split(bytes(32), threshold=3, points=(1, 2, 3))
    shares[0, 8] ^= 1 << 20
    with pytest.raises(shamir.Unfitting, match="no 32-byte secret"):
        shamir.rebuild((1, 2, 3), shares, threshold=3)


def test_shares_travel_as_36_bytes_and_what_is_no_element_is_refused() -> None:
    shares = shamir.split(b"x" * 32, threshold=2, points=(1, 2, 3))
    raw = b"".join(shamir.share_bytes(one) for one in shares)
    assert len(raw) == 3 * 36
    assert (shamir.shares_from_bytes(raw) == shares).all()
    for broken in (raw[:-1], raw[:-4] + b"\xff\xff\xff\xff", raw[:-4] + P.to_bytes(4, "little")):
        with pytest.raises(shamir.Unfitting):
            shamir.shares_from_bytes(broken)


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="32 bytes"):
        shamir.split(bytes(31), threshold=1, points=(1,))


@pytest.mark.parametrize("terms", [1, 5, 700])
def test_products_of_the_largest_elements_are_exact(terms: int) -> None:
    left = np.full((3, terms), P - 1, dtype=np.uint64)
    right = np.full((terms, 2), P - 2, dtype=np.uint64)
    assert (field.product(left, right) == terms * (P - 1) * (P - 2) % P).all()


def test_products_of_random_matrices_agree_with_whole_numbers() -> None:
    generator = np.random.default_rng(0)
    left, right = generator.integers(0, P, (17, 200)), generator.integers(0, P, (200, 9))
    exact = (left.astype(object) @ right.astype(object)) % P
    assert (field.product(left, right) == exact).all()


def test_a_sum_of_the_most_terms_stays_below_what_float64_holds_exactly() -> None:
    assert field.LONGEST_SUM * (2**16 - 1) ** 2 < 2**53
    with pytest.raises(InvalidParameter, match="stay exact"):
        field.product(np.zeros((1, field.LONGEST_SUM + 1), dtype=np.uint8), np.zeros((1, 1), dtype=np.uint8))


def test_coefficients_that_spell_the_prime_are_drawn_again() -> None:
    rng = FixedWords([P, 5, 2**32 - 1, P, 6, 7])  # the top bit is cut off: 2³² − 1 spells p, too
    assert field.uniform(rng, 3).tolist() == [7, 5, 6]  # type: ignore[arg-type]


def test_inverses_multiply_to_one_and_zero_has_none() -> None:
    values = np.array([1, 2, 3, P - 1, 123456789], dtype=np.uint64)
    assert (field.inverse(values) * values % np.uint64(P) == 1).all()
    with pytest.raises(InvalidParameter, match="no inverse"):
        field.inverse(np.array([1, 0], dtype=np.uint64))
