"""Code that was written for an older trainer runs, and trains privately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from quietsum.compat import (
    ManualDPTrainer,
    OpacusDPTrainer,
    PrivacyEngine,
    PrivacyPreservingTrainer,
    analyze_privacy_utility_tradeoff,
    create_privacy_config,
    make_private,
)
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning import PrivacyConfig


def loader(size: int = 120) -> DataLoader[tuple[torch.Tensor, ...]]:
    labels = torch.arange(size) % 2
    return DataLoader(TensorDataset(torch.randn(size, 3) + 2 * labels[:, None], labels), batch_size=30)


def config(**changes: object) -> object:
    given = {"epsilon": 4.0, "delta": 1e-5, "max_grad_norm": 1.0, "epochs": 2, "batch_size": 30, **changes}
    return create_privacy_config(learning_rate=0.05, **given)  # type: ignore[arg-type]


def test_the_documents_example_runs() -> None:
    trainer = PrivacyPreservingTrainer(nn.Linear(3, 2), config())  # type: ignore[arg-type]
    results = trainer.train(train_loader=loader(), val_loader=loader(40), num_epochs=2)
    analysis = analyze_privacy_utility_tradeoff(results)
    assert isinstance(analysis, Mapping)
    assert analysis["final_epsilon"] == trainer.guarantee().epsilon <= 4.0
    assert analysis["privacy_efficiency"] == analysis["final_accuracy"] / analysis["final_epsilon"]
    beside = analyze_privacy_utility_tradeoff(results, plain=0.8)
    assert isinstance(beside, Mapping) and beside["privacy_efficiency"] == analysis["final_accuracy"] / 0.8
    epsilon, delta = trainer.get_privacy_spent()
    assert epsilon == pytest.approx(analysis["final_epsilon"]) and delta == 1e-5


def test_a_training_without_scores_has_no_tradeoff() -> None:
    trainer = PrivacyPreservingTrainer(nn.Linear(3, 2), config())  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="val_loader"):
        analyze_privacy_utility_tradeoff(trainer.train(loader()))


def test_each_trainer_has_its_engine() -> None:
    pytest.importorskip("opacus")
    plain = PrivacyConfig(epsilon=4.0, epochs=1, batch_size=30)
    opacus = OpacusDPTrainer(nn.Linear(3, 2), plain)
    opacus.train(loader())
    manual = ManualDPTrainer(nn.Linear(3, 2), plain)
    manual.train(loader())
    assert opacus.trainer.engine.startswith("opacus") and not manual.trainer.engine.startswith("opacus")


def test_use_opacus_is_the_engine() -> None:
    assert create_privacy_config(epsilon=1.0, use_opacus=True).privacy.engine == "opacus"
    assert create_privacy_config(epsilon=1.0, use_opacus=False).privacy.engine == "auto"
    with pytest.raises(InvalidParameter, match="contradicts"):
        create_privacy_config(epsilon=1.0, use_opacus=True, engine="vmap")


@pytest.mark.parametrize(
    ("name", "words"),
    [("target_epsilon", "it is epsilon"), ("learning_ratee", "did you mean learning_rate"), ("zzz", "PrivacyConfig")],
)
def test_a_word_that_is_no_setting_is_answered(name: str, words: str) -> None:
    changes: dict[str, Any] = {name: 1.0}
    with pytest.raises(InvalidParameter, match=words):
        create_privacy_config(epsilon=1.0, **changes)


def test_a_loop_for_opacus_runs_without_backward() -> None:
    layer = nn.Linear(3, 2)
    engine = PrivacyEngine(accountant="prv")
    with pytest.raises(QuietsumError, match="make_private"):
        engine.get_epsilon(delta=1e-5)
    _, optimizer, batches = engine.make_private(
        module=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1), data_loader=loader(),
        noise_multiplier=1.5, max_grad_norm=1.0, epochs=1,
    )  # fmt: skip
    for _ in batches:
        optimizer.zero_grad()
        optimizer.step()
    assert engine.get_epsilon(delta=1e-5) == optimizer.get_epsilon(1e-5) > engine.get_epsilon(delta=1e-3) > 0
    assert engine.get_epsilon() == optimizer.get_privacy_spent()[0]


def test_a_target_is_kept_and_what_would_be_another_sampling_is_refused() -> None:
    model = nn.Linear(3, 2)
    words = {
        "module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "data_loader": loader(),
        "target_epsilon": 2.0, "target_delta": 1e-4, "max_grad_norm": 1.0,
    }  # fmt: skip
    _, optimizer, batches = PrivacyEngine().make_private_with_epsilon(**words, epochs=2)  # type: ignore[arg-type]
    for _ in range(2):
        for _ in batches:
            optimizer.step()
    assert 1.9 < optimizer.get_epsilon(1e-4) <= 2.0
    with pytest.raises(InvalidParameter, match="another sampling"):
        PrivacyEngine().make_private_with_epsilon(**words, epochs=2, poisson_sampling=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="pass epochs"):
        PrivacyEngine().make_private(
            module=model, optimizer=words["optimizer"], data_loader=loader(), noise_multiplier=1.0, max_grad_norm=1.0
        )


def test_opacus_keywords_make_the_loop_that_a_configuration_makes() -> None:
    spent = []
    for words in (
        {"noise_multiplier": 1.5, "max_grad_norm": 1.0, "epochs": 1},
        {"config": PrivacyConfig(noise_multiplier=1.5, max_grad_norm=1.0, epochs=1, batch_size=30)},
        {"config": create_privacy_config(noise_multiplier=1.5, max_grad_norm=1.0, epochs=1, batch_size=30)},
    ):
        layer, given = nn.Linear(3, 2), loader()
        _, optimizer, batches = make_private(
            module=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1), data_loader=given, **words
        )
        assert len(batches) == len(given)
        for _ in batches:
            optimizer.step()
        spent.append(optimizer.get_epsilon(delta=1e-5))
    assert spent[0] == spent[1] == spent[2] > 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ({}, "noise_multiplier, max_grad_norm, epochs"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1.0}, "epochs"),
        ({"config": PrivacyConfig(epsilon=1.0), "max_grad_norm": 1.0}, "in config alone"),
        ({"model": nn.Linear(3, 2)}, "give model alone"),
        ({"data_loader": None}, "pass data or data_loader"),
    ],
)
def test_what_is_missing_or_stated_twice_is_answered(words: dict[str, Any], answer: str) -> None:
    layer = nn.Linear(3, 2)
    given: dict[str, Any] = {
        "module": layer, "optimizer": torch.optim.SGD(layer.parameters(), lr=0.1), "data_loader": loader(), **words,
    }  # fmt: skip
    with pytest.raises(InvalidParameter, match=answer):
        make_private(**given)
