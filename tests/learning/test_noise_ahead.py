"""Noise that is drawn ahead is the same noise: each number once, of the scale that is asked for, in one process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietsum.learning.clipping import Flat
from quietsum.learning.noise.ahead import WholeAhead
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.learning.step import PrivateStep, cross_entropy

HERE = torch.device("cpu")
COUNT = 300_000  # more than one piece


def find_replay(draw: Callable[[], Tensor], times: int = 6) -> str:
    """Two draws that share numbers, or go together, by their numbers; empty where none do."""
    drawn = [draw().double().flatten() for _ in range(times)]
    for later in range(times):
        for earlier in range(later):
            one, two = drawn[earlier], drawn[later]
            for shift in (0, 1, len(one) // 2):
                other = two.roll(shift)
                if float((one == other).double().mean()) > 0.05:
                    return f"draw {later} holds numbers of draw {earlier}"
                if abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) > 6 / len(one) ** 0.5:
                    return f"draw {later} goes with draw {earlier}"
    return ""


def test_every_draw_is_fresh_and_has_the_scale_that_was_asked_for() -> None:
    ahead = WholeAhead()
    assert not find_replay(lambda: ahead.take(1e5, COUNT, HERE))
    for scale in (1e5, 3e6, 3e6, 1e5, 20.0):  # another scale throws away what was drawn ahead
        drawn = ahead.take(scale, COUNT, HERE).double()
        assert abs(float(drawn.mean())) < 6 * scale / COUNT**0.5
        assert abs(float(drawn.std()) / scale - 1) < 6 / (2 * COUNT) ** 0.5
    assert len(ahead.take(1e5, 7, HERE)) == 7


def test_the_mutants_that_replay_are_seen() -> None:
    ahead, kept = WholeAhead(), WholeAhead().take(1e5, COUNT, HERE)
    assert find_replay(lambda: kept)
    turns = iter(range(100))
    assert find_replay(lambda: kept if next(turns) % 4 == 3 else ahead.take(1e5, COUNT, HERE), 8)
    assert find_replay(lambda: torch.cat([kept[:100_000], ahead.take(1e5, 200_000, HERE)]))
    assert find_replay(lambda: kept + ahead.take(2e4, COUNT, HERE))


def _send(draw: Callable[[], Tensor], line: Any) -> None:
    line.send(draw().tolist())


@pytest.mark.parametrize("way", ["take", "draw"])
def test_a_forked_child_draws_its_own(way: str) -> None:
    ahead = WholeAhead()

    def draw() -> Tensor:
        return ahead.take(1e5, 1000, HERE) if way == "take" else ahead.draw(1e5, 1000)

    draw()  # others are drawn ahead now
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=_send, args=(draw, theirs))
    child.start()
    assert ours.poll(60)
    told = torch.tensor(ours.recv())
    child.join()
    for _ in range(4):
        assert int((draw() == told).sum()) < 5


@pytest.mark.parametrize("mode", ["fast", "secure"])
@pytest.mark.parametrize("card", [False, True])
def test_a_step_releases_fresh_noise_each_time(mode: str, card: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import quietsum.learning.noise.gradient_noise as noise

    if card:
        monkeypatch.setattr(noise, "is_on_card", lambda part: True)
    step = PrivateStep.build(
        nn.Linear(300, 200), cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.1, expected_batch=10.0,
        mode=mode,
    )  # fmt: skip
    zeros = [torch.zeros_like(part) for part in step.engine.parameters]

    def release() -> Tensor:
        return torch.cat([part.flatten() for part in step.release(zeros)])

    assert not find_replay(release)
    assert abs(float(release().std()) * 10 - 1) < 0.02
    add = TorchNoise.add
    kept: list[Any] = []

    def replay(self: TorchNoise, sums: Any) -> Any:
        kept.append(tuple(part.clone() for part in add(self, sums)))
        return tuple(part.clone() for part in kept[0])

    monkeypatch.setattr(TorchNoise, "add", replay)  # the mutant: a captured step without a new key
    assert find_replay(release)


def test_a_source_for_tests_is_drawn_from_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import quietsum.learning.noise.gradient_noise as noise
    from quietsum.mechanisms.rng import randomness_for_tests

    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    found = []
    for card in (False, True):
        monkeypatch.setattr(noise, "is_on_card", lambda part, card=card: card)
        made = TorchNoise(noise_multiplier=1.0, sensitivity=1.0, mode="secure", source=randomness_for_tests(3))
        found.append([made.add((torch.zeros(50),))[0] for _ in range(3)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
