"""The calls that the five documents show, as they show them: only the import is another one."""

from __future__ import annotations

import logging

import pytest

from quietsum.compat import (
    GaussianMechanism,
    LaplaceMechanism,
    PrivacyAccountant,
    RenyiAccountant,
    compute_noise_multiplier,
    get_privacy_spent,
)


def test_rounds_are_recorded_and_monitored() -> None:
    accountant, seen = PrivacyAccountant(target_delta=1e-5), []
    for round_num in range(1, 11):
        accountant.record_round(
            round_num=round_num, noise_multiplier_sample=1.0, sample_rate_sample=0.1, steps_sample=100,
            noise_multiplier_user=0.5, sample_rate_user=0.8, steps_user=1,
        )  # fmt: skip
        seen.append(accountant.get_cumulative_sample_epsilon())
    assert (
        seen == sorted(seen) and seen[0] == pytest.approx(7.05, abs=0.01) and seen[-1] == pytest.approx(25.2, abs=0.1)
    )
    assert len(accountant.sample_history) == len(accountant.user_history) == 10


def test_the_noise_for_a_target_is_computed_once() -> None:
    noise_multiplier = compute_noise_multiplier(
        target_epsilon=8.0, target_delta=1e-5, sample_rate=0.1, steps_per_round=100, num_rounds=10
    )
    assert noise_multiplier == pytest.approx(2.05, abs=0.01)


def test_fifty_gaussian_rounds_are_converted() -> None:
    accountant = RenyiAccountant()
    accountant.compose_gaussian(noise_multiplier=4.0, steps=50)
    guarantee = accountant.epsilon(delta=1e-5)
    assert guarantee.epsilon == pytest.approx(9.235, abs=0.001) and guarantee.order == pytest.approx(3.6)


def test_a_loop_that_steps_and_breaks_keeps_its_target() -> None:
    target_epsilon, target_delta = 1.0, 1e-5
    accountant = PrivacyAccountant(
        noise_multiplier=1.2, sampling_probability=0.0032, target_epsilon=target_epsilon, target_delta=target_delta
    )
    made = 0
    for _ in range(100):
        epsilon, delta = accountant.step(312)
        made += 1
        if accountant.is_budget_exhausted():
            break
    assert (epsilon, delta) == accountant.get_budget_spent()
    assert epsilon <= target_epsilon and delta == target_delta and made == 21


def test_an_accountant_of_four_arguments_steps_until_it_is_exceeded() -> None:
    accountant = PrivacyAccountant(noise_multiplier=1.0, sample_rate=0.01, delta=1e-5, max_epsilon=2.0)
    for _ in range(100):
        accountant.step(num_steps=100)
        if accountant.is_budget_exceeded():
            break
    assert 2.0 < accountant.get_epsilon() < 2.2
    spent = get_privacy_spent(noise_multiplier=1.0, sample_rate=0.01, steps=1000, delta=1e-5)
    assert spent[0] < accountant.get_epsilon()


def test_mechanisms_release_a_value() -> None:
    from quietsum import L1, L2

    assert LaplaceMechanism(epsilon=1.0, sensitivity=L1(1.0)).release(3.0) != 3.0
    assert GaussianMechanism(epsilon=1.0, delta=1e-5, sensitivity=L2(1.0)).release(3.0) != 3.0


def test_a_network_of_33_joints_trains_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, TensorDataset

    from quietsum.compat import (
        STGCN_PRISM,
        PrivacyPreservingTrainer,
        analyze_privacy_utility_tradeoff,
        create_privacy_config,
    )

    caplog.set_level(logging.DEBUG, logger="quietsum")
    train_loader, val_loader = (
        DataLoader(TensorDataset(torch.randn(size, 4, 6, 33), torch.arange(size) % 5), batch_size=8) for size in (24, 8)
    )
    model = STGCN_PRISM(
        num_joints=33, in_channels=4, num_classes=5, hidden_channels=[8, 16], temporal_kernel_sizes=[3, 3], dropout=0.1,
        use_attention=False,
    )  # fmt: skip
    privacy_config = create_privacy_config(
        epsilon=1.0, delta=1e-5, max_grad_norm=1.0, epochs=2, batch_size=8, learning_rate=0.001, use_opacus=False
    )
    privacy_trainer = PrivacyPreservingTrainer(model, privacy_config, selfcheck=False)
    results = privacy_trainer.train(train_loader=train_loader, val_loader=val_loader, num_epochs=2, learning_rate=0.001)
    analysis = analyze_privacy_utility_tradeoff(results)
    current_epsilon, current_delta = privacy_trainer.get_privacy_spent()
    assert analysis["final_epsilon"] == current_epsilon <= 1.0 and current_delta == 1e-5  # type: ignore[index]
    assert {"final_accuracy", "privacy_efficiency"} <= set(analysis)  # type: ignore[arg-type]
    told = [one.getMessage() for one in caplog.records if one.name.startswith("quietsum.learning")]
    assert any("noise multiplier" in text for text in told) and any("epoch 2/2" in text for text in told)
    assert not any("loss" in text for text in told)
