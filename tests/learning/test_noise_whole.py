"""Secure noise by torch: the integers of the exact sampler for the same bits, on every way to them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import quietsum.learning.checks.step as step
import quietsum.learning.noise.ahead as ahead
import quietsum.learning.noise.whole as whole
from learning.test_noise_ahead import find_replay
from learning.waiting import Watch
from mechanisms.laws import FITS, MISSES, chi_square_p
from mechanisms.noise.test_rounded_normal import rounded_pmf
from quietsum.learning.noise import chacha
from quietsum.learning.noise.ahead import WholeAhead
from quietsum.learning.noise.gradient_noise import TorchNoise, _add_whole
from quietsum.learning.noise.whole import MARGIN, REACH, CardDraw, as_tails, fill_whole, is_exact, round_quickly
from quietsum.mechanisms import RandomSource, is_from_system, randomness_for_tests, round_words, system_randomness

HERE, COUNT = torch.device("cpu"), 100_000
SCALES = (1e-3, 0.3, 3.0, 300.5, 2.0**24, 3e9, 2.0**40)
KEY = bytes(range(5, 37))


def exact(words: Tensor, scale: float) -> Tensor:
    return torch.from_numpy(round_words(as_tails(words.numpy().view(np.uint64)), scale, later))


def later(count: int) -> Any:
    """What is read when the first word does not decide: the same in any order."""
    return np.full(count, 0x9E3779B97F4A7C15, dtype=np.uint64)


class Replayed:
    """A source whose first words are known."""

    def __init__(self, first: Tensor) -> None:
        self._first, self._place = first.numpy().view(np.uint64), 0

    def words(self, count: int) -> Any:
        taken = self._first[self._place : self._place + count]
        self._place += count
        return taken.copy() if len(taken) == count else later(count)


@pytest.fixture
def words() -> Tensor:
    """Those of a key, and the ends: zero, the largest, the smallest, and both sides of where floats stop deciding."""
    edge = int((1 - 0.0026997960632601866) * 2.0**63)
    ends = [0, -1, 2**63 - 1, -(2**63), *(sign * (edge + step) for sign in (1, -1) for step in (-3000, 0, 3000))]
    return torch.cat([chacha.words(KEY, COUNT, HERE), torch.tensor(ends)])


@pytest.mark.parametrize("scale", SCALES)
def test_a_draw_is_that_of_the_exact_sampler_for_the_same_bits(words: Tensor, scale: float) -> None:
    out = torch.empty(len(words), dtype=torch.int64)
    fill_whole(out, scale, Replayed(words))  # type: ignore[arg-type]
    assert torch.equal(out, exact(words, scale))


def test_floats_alone_would_round_some_draws_wrongly(words: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: without the margin a wide grid gets other integers, and the test above would see them."""
    monkeypatch.setattr(whole, "MARGIN", 0.0)
    out = torch.empty(len(words), dtype=torch.int64)
    fill_whole(out, 2.0**40, Replayed(words))  # type: ignore[arg-type]
    assert not torch.equal(out, exact(words, 2.0**40))


@pytest.mark.parametrize("scale", [0.3, 2.5, 40.0])
def test_draws_fit_their_law_and_not_that_of_another_scale(scale: float) -> None:
    drawn = WholeAhead().draw(scale, 200_000).numpy()
    assert chi_square_p(drawn, rounded_pmf(scale)) > FITS
    assert chi_square_p(drawn, rounded_pmf(scale * 0.95)) < MISSES
    assert chi_square_p(drawn, rounded_pmf(scale * 1.05)) < MISSES


def test_floats_lie_within_a_sixteenth_of_the_margin_of_mpmath_where_they_decide() -> None:
    values = torch.cat([torch.linspace(-0.9973, 0.9973, 601, dtype=torch.float64), torch.tensor([1e-18, 1e-9])])
    words = (values * 2.0**63).to(torch.int64)
    found = words.to(torch.float64).mul_(2.0**-63).erfinv_().mul_(2.0**0.5)
    with mpmath.workdps(60):
        for word, value in zip(words.tolist(), found.tolist(), strict=True):
            right = mpmath.sqrt(2) * mpmath.erfinv((mpmath.mpf(word) + 0.5) / mpmath.mpf(2) ** 63)
            assert abs(right - value) < MARGIN / 16
    assert float(found.abs().max()) > REACH - 0.01


def test_what_is_no_number_or_far_out_is_certain_nowhere() -> None:
    words = torch.tensor([0, 2**63 - 1, -(2**63), int(0.9974 * 2.0**63)])
    assert round_quickly(words, 10.0)[1].tolist() == [True, False, False, False]
    assert not round_quickly(words, 2.0**40)[1].any()  # too wide a grid for floats


@pytest.mark.parametrize("count", [100, 100_000])
def test_a_long_sum_gets_its_noise_piece_by_piece_and_to_the_bit(count: int) -> None:
    part, extra = torch.randn(2, count), torch.randint(-(2**40), 2**40, (2, count))
    found = _add_whole(part, extra, 2.0**-24)
    rounded = part.double().div(2.0**-24).round().to(torch.int64)
    assert torch.equal(found, (rounded + extra).double() * 2.0**-24)
    assert torch.equal(_add_whole(part.T, extra.T, 2.0**-24), found.T)


def test_a_sum_is_read_from_a_card_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [torch.randn(3, 4), torch.randn(5).double(), torch.randn(2, 1)]
    apart = step.flat(parts)
    monkeypatch.setattr(step, "is_on_card", lambda part: True)
    read: list[int] = []
    cpu = torch.Tensor.cpu

    def note(self: Tensor) -> Tensor:
        read.append(len(self))
        return cpu(self)

    monkeypatch.setattr(torch.Tensor, "cpu", note)
    assert np.array_equal(step.flat(parts), apart) and read == [19]


# ---------------------------------------------------------------------------------- the way of a card


@pytest.mark.parametrize("scale", SCALES)
def test_a_card_s_draw_is_the_exact_one_of_its_keystream(scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_ON_CARD", 40_000)  # several pieces, each under the same key for once
    drawn = CardDraw(scale, COUNT, HERE, later, lambda count: KEY).finish()
    stream = [chacha.words(KEY, count, HERE) for count in (40_000, 40_000, 20_000)]
    assert torch.equal(drawn, exact(torch.cat(stream), scale))


@pytest.mark.parametrize("room", [1, COUNT])
def test_too_little_room_for_the_undecided_ones_changes_nothing(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_room", lambda count, scale: room)
    drawn = CardDraw(2.0**24, COUNT, HERE, later, lambda count: KEY).finish()
    assert torch.equal(drawn, exact(chacha.words(KEY, COUNT, HERE), 2.0**24))


def test_every_piece_of_a_card_s_draw_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "_ON_CARD", 40_000)
    keys: list[bytes] = []

    def make_key(count: int) -> bytes:
        keys.append(system_randomness().bytes(count))
        return keys[-1]

    CardDraw(3.0, COUNT, HERE, later, make_key).finish()
    assert len(keys) == len(set(keys)) == 3


def test_to_begin_a_draw_reads_nothing_back_from_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    words = chacha.words(KEY, COUNT, HERE)
    monkeypatch.setattr(chacha, "words", lambda key, count, device: words)
    with Watch([words]) as watch:
        CardDraw(2.0**24, COUNT, HERE, later)
    assert watch.waits == []
    monkeypatch.setattr(torch, "nonzero_static", lambda mask, size, fill_value: mask.nonzero()[:size])
    with Watch([words]) as watch:
        CardDraw(2.0**24, COUNT, HERE, later)
    assert watch.waits  # the control


def test_a_card_that_computes_otherwise_is_not_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = is_exact.__wrapped__
    assert ask(HERE)
    right, static = torch.Tensor.erfinv_, torch.nonzero_static
    mutants: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "erfinv_", lambda self: self.copy_(right(self.float()))),
        (torch.Tensor, "erfinv_", lambda self: right(self).mul_(1 + 2.0**-43)),
        (torch.Tensor, "erfinv_", lambda self: self.fill_(float("nan"))),
        (torch, "nonzero_static", lambda *a, **k: static(*a, **k).flip(0)),
        (torch.Tensor, "index_copy_", lambda self, *a: self),
    ]
    for owner, name, broken in mutants:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, broken)
            assert not ask(HERE), name
    monkeypatch.setattr(torch, "nonzero_static", lambda *a, **k: (_ for _ in ()).throw(NotImplementedError("none")))
    assert not ask(HERE)


def test_a_card_that_draws_itself_hands_out_each_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_draws_itself", lambda device: True)
    made = WholeAhead()
    assert not find_replay(lambda: made.take(1e5, COUNT, HERE))
    for scale in (1e5, 3e6, 20.0):
        drawn = made.take(scale, COUNT, HERE).double()
        assert abs(float(drawn.std()) / scale - 1) < 6 / (2 * COUNT) ** 0.5
    kept = CardDraw(1e5, COUNT, HERE, later, lambda count: KEY)
    again = CardDraw(1e5, COUNT, HERE, later, lambda count: KEY)
    both = iter([kept.finish(), again.finish()])
    assert find_replay(lambda: next(both), 2)  # the mutant: one key for two draws


# ------------------------------------------------------------------------------- the way of a processor


def test_a_small_model_s_numbers_are_handed_out_once_and_for_their_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    made = WholeAhead()
    assert not find_replay(lambda: made.draw(1e9, 20_000), 9)  # more than one stock of them
    assert len({made.draw(1e12, 1).item() for _ in range(500)}) > 490
    for scale in (1e9, 3.0, 1e9):
        drawn = torch.cat([made.draw(scale, 5_000) for _ in range(4)]).double()
        assert abs(float(drawn.std()) / scale - 1) < 6 / (2 * len(drawn)) ** 0.5
    asked: list[int] = []

    def note(out: Tensor, scale: float, source: RandomSource) -> None:
        asked.append(len(out))
        fill_whole(out, scale, source)

    monkeypatch.setattr(ahead, "fill_whole", note)
    fresh = WholeAhead()
    for _ in range(40):
        fresh.draw(1e9, 10_000)
    assert asked == [10_000, 20_000, 40_000, 80_000, ahead._PIECE, ahead._PIECE]  # the first is not larger than asked
    kept = made.draw(1e9, 20_000)
    assert find_replay(lambda: kept, 2)  # the mutant: a stock that does not move on


def test_a_stock_that_could_not_be_drawn_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = WholeAhead(), fill_whole
    made.draw(1e9, 60_000)

    def fail(out: Tensor, scale: float, source: RandomSource) -> None:
        raise ArithmeticError("no entropy")

    monkeypatch.setattr(ahead, "fill_whole", fail)
    with pytest.raises(ArithmeticError, match="no entropy"):
        made.draw(2e9, 60_000)
    with pytest.raises(ArithmeticError, match="no entropy"):
        made.draw(1e9, 60_000)
    monkeypatch.setattr(ahead, "fill_whole", real)
    assert int((made.draw(1e9, 60_000) == 0).sum()) < 20


def by_two_threads(make_source: Callable[[], RandomSource], patch: pytest.MonkeyPatch) -> Tensor:
    """A draw in two pieces, each by a thread of its own."""
    both = threading.Barrier(2, timeout=30)

    def make() -> RandomSource:
        both.wait()
        return make_source()

    patch.setattr(ahead, "_cores", lambda: 2)
    patch.setattr(torch, "get_num_threads", lambda: 2)
    ahead._threads.cache_clear()
    return WholeAhead(make).draw(1e5, 2 * ahead._PIECE).view(2, -1)


def test_two_threads_never_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(drawn: Tensor) -> bool:
        pieces = iter(drawn)
        return bool(find_replay(lambda: next(pieces), 2))

    assert not shared(by_two_threads(system_randomness, monkeypatch))
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    assert shared(by_two_threads(lambda: randomness_for_tests(3), monkeypatch))  # the mutant: one key for both


@pytest.mark.parametrize("way", ["draw", "take"])
def test_a_thread_that_fails_fails_the_draw_and_the_next_one_is_whole(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_cores", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    real, failures = fill_whole, iter([False, True])

    def fail_once(out: Tensor, scale: float, source: RandomSource) -> None:
        if next(failures, False):
            raise SystemExit("a thread ends")
        real(out, scale, source)

    made = WholeAhead()
    monkeypatch.setattr(ahead, "fill_whole", fail_once)
    count = 3 * ahead._PIECE
    draw = (lambda: made.draw(1e9, count)) if way == "draw" else lambda: made.take(1e9, count, HERE)
    with pytest.raises(SystemExit, match="a thread ends"):
        draw()
    after = draw()
    assert int((after == 0).sum()) < 20 and abs(float(after.double().std()) / 1e9 - 1) < 0.02


def test_only_the_system_s_source_is_drawn_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    assert is_from_system(system_randomness()) and not is_from_system(randomness_for_tests(1))

    class Counting:
        for_tests, asked = False, 0

        def rounded_normals(self, scale: float, shape: Any) -> Any:
            self.asked += 1
            return np.zeros(shape, dtype=np.int64)

    counting = Counting()
    assert not is_from_system(counting)  # type: ignore[arg-type]
    noise = TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode="secure", source=counting)  # type: ignore[arg-type]
    assert not noise.add((torch.zeros(5),))[0].any() and counting.asked == 1
