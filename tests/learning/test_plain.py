"""Training without privacy: the same model and data, refused wherever somebody needs protection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.clients.plain import fresh_model, plain_learning_rate, train_plainly
from quietsum.learning.step import cross_entropy
from quietsum.tasks import Settings


class Clouds:
    """Two clouds of 60 points each."""

    name, loss = "clouds", staticmethod(cross_entropy)
    settings = Settings(
        learning_rate=2.0, optimizer="sgd", training={"batch_size": 20, "epochs": 3, "max_grad_norm": 0.1}
    )

    def __init__(self, public: str = "made up") -> None:
        self.public, self.read = public, 0

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2))

    def records(self) -> tuple[Tensor, ...]:
        self.read += 1
        labels = torch.arange(120) % 2
        return torch.randn(120, 2, generator=torch.Generator().manual_seed(0)) + 3.0 * labels[:, None], labels


class Tuned(Clouds):
    plain_settings = Settings(learning_rate=0.5, optimizer="momentum", training={"batch_size": 120, "epochs": 2})


def weights(model: nn.Module) -> Tensor:
    return torch.cat([part.detach().flatten() for part in model.parameters()])


def right(task: Clouds, model: nn.Module) -> float:
    values, labels = task.records()
    return float((model(values).argmax(1) == labels).double().mean())


def test_it_learns_what_can_be_learned() -> None:
    task = Clouds()
    assert right(task, train_plainly(task, epochs=20)) > 0.9
    assert right(task, fresh_model(task, 0)) < 0.9


@pytest.mark.parametrize("public", ["", "   "])
def test_a_task_with_protected_records_is_refused_before_one_is_read(public: str) -> None:
    task = Clouds(public)
    with pytest.raises(QuietsumError, match="training without privacy on protected records would publish them"):
        train_plainly(task)
    assert task.read == 0


def test_one_step_is_an_ordinary_gradient_step_without_clip_and_noise() -> None:
    task = Clouds()
    whole = Settings(learning_rate=0.7, optimizer="sgd", training={"batch_size": 120, "epochs": 1})
    before = fresh_model(task, 3)
    loss = cross_entropy(before, task.records()).mean()
    expected = weights(before) - 0.7 * torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(before.parameters()))]
    )
    torch.testing.assert_close(weights(train_plainly(task, settings=whole, seed=3)), expected)


def test_the_same_seed_gives_the_same_model_and_another_seed_another() -> None:
    task = Clouds()
    one, two, other = (weights(train_plainly(task, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one, two) and not torch.equal(one, other)


def test_first_weights_leave_torchs_own_generator_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fresh_model(Clouds(), 1)
    assert torch.equal(torch.rand(3), expected)


def test_without_plain_settings_the_learning_rate_is_the_private_one_times_the_clip() -> None:
    assert plain_learning_rate(Clouds.settings) == pytest.approx(0.2)
    wide = Settings(learning_rate=2.0, optimizer="sgd", training={"max_grad_norm": 5.0})
    assert plain_learning_rate(wide) == 2.0


def test_plain_settings_of_the_task_are_used_where_it_has_them() -> None:
    given = train_plainly(Clouds(), settings=Tuned.plain_settings)
    assert torch.equal(weights(train_plainly(Tuned())), weights(given))
    assert not torch.equal(weights(train_plainly(Clouds())), weights(given))


def test_a_model_that_is_passed_is_trained_where_it_is() -> None:
    model = fresh_model(Clouds(), 0).to(torch.float64)

    class Wide(Clouds):
        def records(self) -> tuple[Tensor, ...]:
            values, labels = super().records()
            return values.double(), labels

    assert train_plainly(Wide(), model=model) is model and weights(model).dtype == torch.float64


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_on_a_gpu_it_learns_too() -> None:
    model = fresh_model(Clouds(), 0).cuda()
    train_plainly(Clouds(), model=model, epochs=20)
    assert right(Clouds(), model.cpu()) > 0.9


def test_the_average_of_weights_is_returned_where_the_settings_ask_for_it() -> None:
    training: dict[str, Any] = {"batch_size": 20, "epochs": 3}
    last = Settings(learning_rate=0.5, optimizer="sgd", training=training)
    averaged = Settings(learning_rate=0.5, optimizer="sgd", training={**training, "ema_decay": 0.9})
    assert not torch.equal(
        weights(train_plainly(Clouds(), settings=last)), weights(train_plainly(Clouds(), settings=averaged))
    )


def test_each_epoch_is_told() -> None:
    seen: list[tuple[int, int]] = []
    train_plainly(Clouds(), watch=lambda epoch, epochs: seen.append((epoch, epochs)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(learning_rate=float("nan"), optimizer="sgd", training={}), "not finite"),
        (Settings(learning_rate=0.0, optimizer="sgd", training={}), "greater than 0"),
        (Settings(learning_rate=1.0, optimizer="best", training={}), "not known"),
        (Settings(learning_rate=1.0, optimizer="sgd", training={"batch_size": 0}), "at least 1"),
        (Settings(learning_rate=1.0, optimizer="sgd", training={"epochs": 1.5}), "whole number"),
        (Settings(learning_rate=1e38, optimizer="momentum", training={"epochs": 30}), "overflow"),
    ],
)
def test_bad_settings_are_refused_in_words(settings: Settings, said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        train_plainly(Clouds(), settings=settings)


def test_an_empty_set_is_refused() -> None:
    class Nobody(Clouds):
        def records(self) -> tuple[Tensor, ...]:
            return torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)

    with pytest.raises(InvalidParameter, match="holds no records"):
        train_plainly(Nobody())
