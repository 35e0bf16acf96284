"""What does not work, kept so that nobody claims it again. The whole tables: benchmarks/robustness.py."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from quietsum.aggregation.robust import find_rule

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def bench() -> Any:
    """The benchmark, as a module."""
    path = Path(__file__).parents[2] / "benchmarks" / "robustness.py"
    made = importlib.util.spec_from_file_location("robustness_benchmark", path)
    assert made is not None and made.loader is not None
    module = importlib.util.module_from_spec(made)
    sys.modules[made.name] = module
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIETSUM_TEST_SEEDS", "1")
        made.loader.exec_module(module)
        yield module
    del sys.modules[made.name]


@pytest.mark.slow
def test_client_level_noise_defeats_sign_statistics(bench: Any) -> None:
    """Without noise every attacker is left out and hardly anybody else; with it, attackers as often as others."""
    setting = bench.Setting(parties=30, attackers=6, steps=60)
    for seed in SEEDS:
        calm, noisy = (
            bench.train(
                find_rule("signguard"), "lie", 1.0, seed=seed, setting=dataclasses.replace(setting, client_noise=noise)
            )
            for noise in (0.0, 1.0)
        )
        assert calm.caught > 0.95
        assert calm.accused < 0.2
        assert calm.accuracy > 0.9
        assert abs(noisy.caught - noisy.accused) < 0.15, "the rule tells attackers from others no better than a coin"


@pytest.mark.slow
@pytest.mark.long
def test_clip_and_noise_do_not_stop_a_persistent_backdoor(bench: Any) -> None:
    """Five of fifty parties hide a trigger of three pixels; a rule that judges updates keeps it out, as a control."""
    setting = bench.Setting(parties=50, attackers=5, steps=100)
    for seed in SEEDS:
        for boost in (1.0, 10.0):
            *_, noisy = bench.hidden(("clip + noise", boost, seed, setting))
            assert noisy.success > 0.85
            assert noisy.accuracy > 0.9, "and nothing of it shows in the accuracy"
        *_, judged = bench.hidden(("signguard", 1.0, seed, setting))
        assert judged.success < 0.1
        assert judged.accuracy > 0.9


def test_the_gradients_of_the_benchmark_are_those_of_finite_differences(bench: Any) -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    params = bench.first_weights(0)
    features, labels = rng.uniform(size=(2, 5, bench.INPUTS)), rng.integers(0, 10, size=(2, 5))

    def loss(at: Any, party: int) -> float:
        return -float(bench.answers(at, features[party])[np.arange(5), labels[party]].mean())

    found = bench.gradients(params, features, labels)
    for place in rng.integers(0, bench.DIMENSION, size=25):
        step = np.zeros_like(params)
        step[place] = 1e-5
        for party in (0, 1):
            slope = (loss(params + step, party) - loss(params - step, party)) / 2e-5
            assert found[party, place] == pytest.approx(slope, abs=1e-6)


def test_the_clipped_gradients_of_the_benchmark_are_clipped_row_by_row(bench: Any) -> None:
    import numpy as np

    rng = np.random.default_rng(1)
    params = bench.first_weights(1)
    features, labels = rng.uniform(size=(1, 6, bench.INPUTS)), rng.integers(0, 10, size=(1, 6))
    single = np.concatenate([bench.gradients(params, features[:, [row]], labels[:, [row]]) for row in range(6)])
    lengths = np.linalg.norm(single, axis=1, keepdims=True)
    bound = float(np.median(lengths))
    expected = (single * np.minimum(1, bound / lengths)).mean(axis=0)
    np.testing.assert_allclose(bench.gradients(params, features, labels, clip=bound)[0], expected, atol=1e-12)
