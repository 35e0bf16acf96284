from __future__ import annotations

import copy
import itertools
import os
import pickle
import threading

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from mechanisms.laws import FITS, MISSES, ks_p
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.mechanisms import rng as rng_module
from quietsum.mechanisms.rng import RandomSource, random_keys, randomness_for_tests, system_randomness

N = 200_000
RANKS = {order: rank for rank, order in enumerate(itertools.permutations(range(4)))}


@pytest.fixture
def rng(monkeypatch: pytest.MonkeyPatch) -> RandomSource:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    return randomness_for_tests(2024)


class Scripted:
    """A keystream that says what it is told."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def fill(self, count: int) -> bytearray:
        answer = self.answers.pop(0)
        assert len(answer) == count
        return bytearray(answer)


def scripted(*words: list[int]) -> RandomSource:
    answers = [np.array(group, dtype=np.uint64).tobytes() for group in words]
    return rng_module._Source(Scripted(*answers), for_tests=True)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------- where it comes from


def test_seeds_are_refused_without_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", "0", "true"):
        monkeypatch.delenv("QUIETSUM_TEST_SEEDS", raising=False)
        if value is not None:
            monkeypatch.setenv("QUIETSUM_TEST_SEEDS", value)
        with pytest.raises(QuietsumError, match="subtract the noise"):
            randomness_for_tests(1)


def test_a_seeded_source_repeats_itself_and_says_so(rng: RandomSource) -> None:
    assert rng.for_tests
    again = randomness_for_tests(2024)
    assert rng.bytes(100) == again.bytes(100)
    assert np.array_equal(rng.words(10_000), again.words(10_000))
    assert randomness_for_tests(2025).bytes(16) != randomness_for_tests(2024).bytes(16)


def test_system_sources_share_nothing() -> None:
    one, other = system_randomness(), system_randomness()
    assert not one.for_tests
    assert one.bytes(32) != other.bytes(32)
    assert not np.intersect1d(one.words(5000), one.words(5000)).size


def test_the_stream_is_that_of_aes_in_counter_mode(rng: RandomSource) -> None:
    """An oracle: the same key and counter through the cipher's plain call, across the buffer's edges."""
    import hashlib

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = hashlib.sha256(b"quietsum test randomness 2024 1").digest()
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(1 << 16))
    assert rng.bytes(1000) + rng.bytes(4000) == stream[:5000]
    assert rng.bytes(1 << 14) == stream[1 << 14 : 1 << 15]  # a large piece comes straight from the cipher


def test_a_key_is_replaced_before_it_has_made_too_much(rng: RandomSource, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []

    def fresh() -> bytes:
        keys.append(os.urandom(32))
        return keys[-1]

    monkeypatch.setattr(rng_module, "_REKEY_AFTER", 3 << 20)
    source = rng_module._Source(rng_module._Keystream(fresh), for_tests=False)
    made = source.bytes(10 << 20)
    assert len(keys) == 4
    assert len(set(keys)) == 4
    blocks = np.frombuffer(made, dtype="V16")
    assert np.unique(blocks).size == blocks.size  # no counter block was used twice under one key


def test_what_was_handed_out_is_wiped_from_the_buffer(rng: RandomSource) -> None:
    taken = rng.bytes(64)
    assert taken not in bytes(rng._stream._buffer)  # type: ignore[attr-defined]


def test_a_source_can_be_neither_copied_nor_pickled_and_hides_its_key(rng: RandomSource) -> None:
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="never copied or saved"):
            attempt(rng)
    assert repr(rng) == "<random source, AES-256-CTR, seeded for tests>"
    assert not hasattr(rng, "__dict__")


def test_threads_that_share_a_source_never_get_the_same_bytes() -> None:
    source = system_randomness()
    pieces: list[bytes] = []
    threads = [threading.Thread(target=lambda: pieces.extend(source.bytes(16) for _ in range(5000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(pieces)) == 20_000


def from_a_child(source: RandomSource, count: int) -> bytes:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, source.bytes(count))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_never_repeats_its_parents_stream() -> None:
    source = system_randomness()
    source.bytes(10)  # what is left in the buffer would be shared
    first, second, own = from_a_child(source, 32), from_a_child(source, 32), source.bytes(32)
    assert len({first, second, own}) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_that_python_was_not_told_about_is_noticed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng_module, "_LIVING", set())
    source = system_randomness()
    rng_module._LIVING.clear()
    source.bytes(10)
    assert from_a_child(source, 32) != source.bytes(32)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_without_both_guards_the_child_would_repeat_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the two tests above."""
    monkeypatch.setattr(rng_module, "_LIVING", set())
    source = system_randomness()
    rng_module._LIVING.clear()
    monkeypatch.setattr(os, "getpid", lambda: source._stream._process)  # type: ignore[attr-defined]
    source.bytes(10)
    assert from_a_child(source, 32) == source.bytes(32)


# ------------------------------------------------------------------------------------------------ its laws


def test_bits_are_even_and_neighbours_independent(rng: RandomSource) -> None:
    bits = np.unpackbits(np.frombuffer(rng.bytes(250_000), dtype=np.uint8)).astype(np.int64)
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)
    for lag in (1, 2, 8, 64, 128):
        assert abs(np.mean((2 * bits[lag:] - 1) * (2 * bits[:-lag] - 1))) < 5 / np.sqrt(bits.size)


def test_uniforms_fit_and_never_reach_zero_or_one(rng: RandomSource) -> None:
    uniforms = rng.uniforms(N)
    assert ks_p(uniforms, lambda x: x) > FITS
    assert ks_p(uniforms**1.05, lambda x: x) < MISSES
    edges = scripted([0, 2**64 - 1]).uniforms(2)
    assert edges.tolist() == [2.0**-53, 1 - 2.0**-53]


def test_normals_fit_and_do_not_fit_at_another_scale(rng: RandomSource) -> None:
    draws = rng.normals((N // 100, 100))
    assert draws.shape == (N // 100, 100)
    assert draws.dtype == np.float64
    flat = draws.ravel()
    assert ks_p(flat, ndtr) > FITS
    assert ks_p(flat * 0.95, ndtr) < MISSES
    assert ks_p(flat * 1.05, ndtr) < MISSES


def test_normals_do_not_follow_one_another(rng: RandomSource) -> None:
    draws = rng.normals(N)
    for lag in (1, 2, 3, 100, 2048):
        for power in (1, 2):
            left, right = draws[lag:] ** power, draws[:-lag] ** power
            assert abs(np.corrcoef(left, right)[0, 1]) < 5 / np.sqrt(N)


def test_normals_far_beyond_what_float32_could_give() -> None:
    """The smallest tail probabilities, by hand; the farthest value is the one that the docstring states."""
    farthest = scripted([0], [0]).normals(1)[0]
    assert farthest == ndtri(2.0**-129)
    assert round(farthest, 1) == -13.1
    assert scripted([1], [0]).normals(1)[0] == -farthest
    assert scripted([2 * 2**40], [2**63]).normals(1)[0] == pytest.approx(ndtri(2.0**-24), rel=1e-9)
    middle = scripted([2**64 - 2, 2**64 - 1]).normals(2)
    assert np.all(np.abs(middle) < 1e-16)


def test_normals_above_four_sigma_are_as_frequent_as_they_should_be(rng: RandomSource) -> None:
    count = sum(int(np.count_nonzero(np.abs(rng.normals(1_000_000)) > 4)) for _ in range(4))
    expected = 4e6 * 2 * ndtr(-4.0)  # some 253
    assert abs(count - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("chance", [0.5, 0.3, 0.01, 1 - 2**-20])
def test_coins_fit_and_do_not_fit_at_another_chance(rng: RandomSource, chance: float) -> None:
    n = 4_000_000
    heads = int(np.count_nonzero(rng.coins(chance, n)))

    def deviation(p: float) -> float:
        return abs(heads - n * p) / np.sqrt(n * p * (1 - p))

    assert deviation(chance) < 4
    assert deviation(chance * 0.95) > 6
    if chance < 0.9:
        assert deviation(chance * 1.05) > 6


def test_coins_are_exact_to_the_last_bit_of_the_probability() -> None:
    chance = 0.3
    whole, rest = divmod(chance * 2.0**64, 1)
    assert scripted([int(whole) - 1]).coins(chance, 1).tolist() == [True]
    assert rest == 0  # 0.3 has no bits beyond the 64th
    assert scripted([int(whole)]).coins(chance, 1).tolist() == [False]
    tiny = 2.0**-64 * 0.75  # the first word ties once in 2^64, then three in four are heads
    assert scripted([0], [2**63 + 2**62 - 1]).coins(tiny, 1).tolist() == [True]
    assert scripted([0], [2**63 + 2**62]).coins(tiny, 1).tolist() == [False]
    assert scripted([1]).coins(tiny, 1).tolist() == [False]
    least = 2.0**-1074  # sixteen words tie, then the smallest float's only bit decides
    assert scripted(*[[0]] * 16, [2**14 - 1]).coins(least, 1).tolist() == [True]
    assert scripted(*[[0]] * 16, [2**14]).coins(least, 1).tolist() == [False]


def test_certain_coins(rng: RandomSource) -> None:
    assert rng.coins(1.0, 1000).all()
    assert not rng.coins(0.0, 1000).any()
    assert rng.coins(0.5, 0).size == 0


def test_every_permutation_is_equally_likely(rng: RandomSource) -> None:
    from scipy import stats

    counts = np.zeros(24)
    for _ in range(6000):
        order = rng.permutation(4)
        counts[RANKS[tuple(order.tolist())]] += 1
    assert stats.chisquare(counts).pvalue > FITS
    assert sorted(rng.permutation(1000).tolist()) == list(range(1000))
    assert rng.permutation(0).size == 0


def test_keys_that_tie_are_all_drawn_anew() -> None:
    assert random_keys(scripted([5, 7, 5], [1, 2, 3]), 3).tolist() == [1, 2, 3]


# ------------------------------------------------------------------------------------------------- bad input


def test_bad_requests_are_refused(rng: RandomSource) -> None:
    for chance in (-0.1, 1.1, float("nan"), float("inf")):
        with pytest.raises(InvalidParameter):
            rng.coins(chance, 1)
    for count in (-1, 1.5, float("nan"), 1 << 40):
        with pytest.raises(InvalidParameter):
            rng.words(count)  # type: ignore[arg-type]
    for shape in (-1, (2, -3), (1 << 20, 1 << 20)):
        with pytest.raises(InvalidParameter):
            rng.normals(shape)
    with pytest.raises(InvalidParameter):
        randomness_for_tests(-1)


def test_shapes_may_be_empty_or_scalar(rng: RandomSource) -> None:
    assert rng.normals(()).shape == ()
    assert rng.normals((0, 3)).shape == (0, 3)
    assert rng.rounded_normals(3.0, (2, 0)).dtype == np.int64
    assert rng.bytes(0) == b""


def test_the_reach_of_the_tail_in_another_arithmetic() -> None:
    mp.mp.prec = 200
    reach = mp.findroot(lambda x: mp.erfc(x / mp.sqrt(2)) / 2 - mp.mpf(2) ** -129, 13)
    assert abs(float(reach) + float(ndtri(2.0**-129))) < 1e-13
