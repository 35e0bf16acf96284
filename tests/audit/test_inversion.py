"""Inversion: closed forms, searches and class examples succeed without noise; with it gradients hide their record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quietsum.audit import Success, attack_classes, attack_gradients, invert_class, invert_dense, invert_update
from quietsum.audit.inversion.gradients import count_identified
from quietsum.errors import InvalidParameter
from quietsum.learning import cross_entropy
from quietsum.mechanisms import randomness_for_tests


@pytest.fixture(autouse=True)
def allow_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def records(count: int = 60) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    centres = 3 * torch.randn(4, 12, generator=generator)
    return centres[labels] + torch.randn(count, 12, generator=generator), labels


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def test_one_records_gradient_holds_the_record_whatever_lies_behind() -> None:
    model, (inputs, labels) = network(), records()
    for row in range(5):
        loss = cross_entropy(model, (inputs[row : row + 1], labels[row : row + 1])).sum()
        weight, bias = torch.autograd.grad(loss, [model[0].weight, model[0].bias])  # type: ignore[index]
        assert invert_dense(weight.numpy(), bias.numpy()) == pytest.approx(inputs[row].numpy(), rel=1e-3, abs=1e-4)
    assert (invert_dense(np.zeros((3, 2)), np.zeros(3)) == 0).all()
    with pytest.raises(InvalidParameter, match="dense layer"):
        invert_dense(np.zeros((3, 2)), np.zeros(2))


def test_without_noise_every_update_betrays_its_record_and_with_it_none() -> None:
    model, batch = network(), records()
    bare = attack_gradients(model, cross_entropy, batch)
    assert bare.successes == bare.trials == 60 and bare.conclusion is Success.SUCCEEDS
    clipped = attack_gradients(
        model, cross_entropy, batch, max_norm=0.1, noise_multiplier=1e-6, rng=randomness_for_tests(1)
    )
    assert clipped.successes == 60  # a clip alone hides nothing
    noisy = attack_gradients(
        model, cross_entropy, batch, max_norm=0.1, noise_multiplier=2.0, rng=randomness_for_tests(2)
    )
    assert noisy.conclusion is Success.NOT_SEEN and noisy.chance == 1 / 60


def test_a_search_finds_what_no_closed_form_reaches() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 12)), nn.Conv1d(1, 6, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(72, 4)
    )
    batch = tuple(part[:4] for part in records())
    with pytest.raises(InvalidParameter, match="search=200"):
        attack_gradients(model, cross_entropy, batch)
    found = attack_gradients(model, cross_entropy, batch, search=100)
    assert found.successes >= 3
    lost = attack_gradients(
        model, cross_entropy, batch, search=20, max_norm=0.1, noise_multiplier=5.0, rng=randomness_for_tests(4)
    )
    assert lost.successes <= 2


def test_what_is_no_gradient_of_the_model_is_refused() -> None:
    batch = tuple(part[:1] for part in records())
    with pytest.raises(InvalidParameter, match="one for each parameter"):
        invert_update(network(), cross_entropy, [torch.zeros(3)], batch)
    with pytest.raises(InvalidParameter, match="stands alone"):
        attack_gradients(network(), cross_entropy, records(), max_norm=1.0)
    with pytest.raises(InvalidParameter, match="tell apart"):
        attack_gradients(network(), cross_entropy, batch)


def test_reconstructions_of_nothing_are_identified_as_often_as_chance_has_it() -> None:
    truth = np.random.default_rng(0).normal(size=(50, 20))
    assert count_identified(truth.copy(), truth) == 50
    assert count_identified(np.zeros((50, 20)) + truth.mean(axis=0), truth) == 0  # ties count for nothing
    blind = np.random.default_rng(1).normal(size=(50, 20))
    assert count_identified(blind, truth) <= 6


def test_a_trained_model_shows_its_classes_and_a_fresh_one_does_not() -> None:
    model, (inputs, labels) = network(), records(200)
    fresh = attack_classes(model, inputs[100:], labels[100:].numpy())
    search = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(60):
        search.zero_grad()
        cross_entropy(model, (inputs[:100], labels[:100])).mean().backward()
        search.step()
    trained = attack_classes(model, inputs[100:], labels[100:].numpy())
    assert trained.successes == 4 and fresh.successes < 4 and trained.chance == 0.25
    assert model(invert_class(model, 2, (12,))[None]).softmax(-1)[0, 2].item() > 0.9
    with pytest.raises(InvalidParameter, match="two classes"):
        attack_classes(model, inputs, np.zeros(200))
