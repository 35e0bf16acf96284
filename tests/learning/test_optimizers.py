"""Optimizers on released gradients, against torch's own and against formulas written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from quietsum.errors import CorruptState, InvalidParameter
from quietsum.learning.optimizers import SGD, Adam, AveragedWeights, OptimizerKind, optimizer_named


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 2, dtype=torch.float64)), nn.Parameter(torch.randn(4, dtype=torch.float64))]


def gradients(steps: int) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(3, 2, generator=generator, dtype=torch.float64), torch.randn(4, generator=generator).double())
        for _ in range(steps)
    ]


def ours(kind: OptimizerKind, steps: int, variance: float = 0.0) -> list[nn.Parameter]:
    moved = weights()
    optimizer = kind.bind(moved)
    for gradient in gradients(steps):
        optimizer.step(gradient, learning_rate=0.1, noise_variance=variance)
    return moved


def theirs(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], steps: int) -> list[nn.Parameter]:
    moved = weights()
    optimizer = make(moved)
    for gradient in gradients(steps):
        for parameter, part in zip(moved, gradient, strict=True):
            parameter.grad = part.clone()
        optimizer.step()
    return moved


def same(one: list[nn.Parameter], other: list[nn.Parameter]) -> bool:
    return all(torch.allclose(a, b, atol=1e-12) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
    ],
)
def test_sgd_momentum_and_adam_are_those_of_torch(
    kind: OptimizerKind, make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    assert same(ours(kind, 7), theirs(make, 7))
    assert not same(ours(kind, 7), theirs(make, 6))  # the control


def test_dp_adam_takes_the_known_variance_out_of_the_second_moment() -> None:
    variance, floor = 0.25, 1e-2
    kind = Adam(unbiased=True, unbiased_floor=floor)
    moved = ours(kind, 5, variance)
    for place, start in enumerate(weights()):  # the formula, written out
        value, first, second = start.detach().clone(), torch.zeros_like(start), torch.zeros_like(start)
        for count, gradient in enumerate(gradients(5), 1):
            first = 0.9 * first + 0.1 * gradient[place]
            second = 0.999 * second + 0.001 * gradient[place] ** 2
            mean, square = first / (1 - 0.9**count), second / (1 - 0.999**count)
            value = value - 0.1 * mean / (square - variance).clamp(min=floor**2).sqrt()
        assert torch.allclose(moved[place], value, atol=1e-10)


def test_on_pure_noise_dp_adam_sees_nothing_and_adam_sees_noise() -> None:
    """v̂ of noise alone is its variance: what is left after the correction is the floor, not the noise."""
    generator = torch.Generator().manual_seed(2)
    plain, corrected = nn.Parameter(torch.zeros(5000)), nn.Parameter(torch.zeros(5000))
    one, two = Adam(beta2=0.99).bind([plain]), Adam(beta2=0.99, unbiased=True, unbiased_floor=5e-4).bind([corrected])
    for _ in range(300):
        noise = (torch.randn(5000, generator=generator) * 0.1,)
        one.step(noise, learning_rate=0.0, noise_variance=0.01)
        two.step(noise, learning_rate=0.0, noise_variance=0.01)
    second = two.state()["second.0"] / (1 - 0.99**300)
    assert float(second.mean()) == pytest.approx(0.01, rel=0.05)
    assert abs(float((second - 0.01).mean())) < 5e-4
    assert float(two.state()["noise"]) / (1 - 0.99**300) == pytest.approx(0.01, rel=1e-9)


def test_the_correction_follows_a_schedule_of_noise_as_the_moment_does() -> None:
    optimizer = Adam(unbiased=True).bind([nn.Parameter(torch.zeros(1))])
    for variance in (0.04, 0.01):
        optimizer.step((torch.zeros(1),), learning_rate=0.0, noise_variance=variance)
    known = float(optimizer.state()["noise"]) / (1 - 0.999**2)
    assert known == pytest.approx((0.999 * 0.04 + 0.01) / 1.999, rel=1e-9)


def test_the_average_forgets_the_start_and_removes_noise() -> None:
    weight = nn.Parameter(torch.full((1,), 100.0))
    average = AveragedWeights([weight], decay=0.9)
    for value in range(200):
        with torch.no_grad():
            weight.fill_(1.0 + (-1) ** value)
        average.take()
    average.swap()
    assert weight.item() == pytest.approx(1.0, abs=0.06)
    average.swap()
    assert weight.item() == 0.0  # swapped back


@pytest.mark.parametrize("kind", [SGD(momentum=0.9), Adam(), Adam(unbiased=True)])
def test_an_optimizer_goes_on_from_its_saved_memory(kind: OptimizerKind) -> None:
    straight = ours(kind, 6, 0.1)
    moved = weights()
    first = kind.bind(moved)
    for gradient in gradients(6)[:3]:
        first.step(gradient, learning_rate=0.1, noise_variance=0.1)
    second = kind.bind(moved)
    second.restore({name: value.clone() for name, value in first.state().items()})
    for gradient in gradients(6)[3:]:
        second.step(gradient, learning_rate=0.1, noise_variance=0.1)
    assert same(straight, moved)


def test_the_memory_of_another_optimizer_is_refused() -> None:
    with pytest.raises(CorruptState):
        Adam().bind(weights()).restore(SGD(momentum=0.9).bind(weights()).state())


def test_bad_values_and_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="sgd, momentum, adam, dp-adam"):
        optimizer_named("sdg")
    for bad in (1.0, -0.1, float("nan")):
        with pytest.raises(InvalidParameter):
            SGD(momentum=bad)
    with pytest.raises(InvalidParameter):
        AveragedWeights(weights(), decay=1.0)
