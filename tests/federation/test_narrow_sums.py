"""Secure rounds in a ring of 16 to 24 bits: vectors are added in a rotated basis, with the noise that was charged."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.masked import CLIENTS, FOUR, RECORDS, Losing, Watched, secure_plan
from quietsum.mechanisms.distributed import DistributedNoise
from quietsum.mechanisms.rng import system_randomness
from quietsum.party.secure import Noisy, contribution_of, terms_of
from quietsum.party.work import Site
from quietsum.secagg import Step
from quietsum.secagg.layout import centre_lift
from tiny import TinyTask

Floats = NDArray[np.float64]


class Wide(TinyTask):
    dimension = 100

    def initial(self) -> Floats:
        return np.zeros(self.dimension)

    def gradients(self, params: Floats, features: Floats, labels: Floats) -> Floats:
        return np.tile(features[:, :1], (1, self.dimension)) * 3 - params

    def evaluate(self, params: Floats) -> Any:
        return super().evaluate(params[:2])


def zeros(self: Site, key: Any, params: Floats) -> Floats:
    return np.zeros(len(params))


@pytest.mark.parametrize("privacy", [CLIENTS, RECORDS], ids=["clients", "records"])
@pytest.mark.parametrize("bits", [16, 24])
@pytest.mark.some(1)
def test_the_noise_of_a_narrow_sum_is_that_of_the_survivors_shares(
    tmp_path: Path, privacy: Any, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "answer", zeros)
    rounds = 25
    plan = secure_plan(privacy, aggregation={"bits": bits}, federation={"rounds": rounds, "spare_attempts": 0})
    world = Watched(tmp_path, plan, task=Wide, wrap=lambda inner: Losing(inner, losses={"west": Step.SHARES}))
    how = contribution_of(world.resolved, 1)
    assert isinstance(how, Noisy) and how.noise.dimension == 128 and how.noise.honest == 2
    steps = []
    for number in range(1, rounds + 1):
        before = world.state.params
        assert len(world.round(number).kept) == 3
        steps.append(world.state.params - before)
    scale = abs(how.factor) / world.resolved.divisor(("east", "north", "south"))
    expected = how.noise.noise_multiplier * math.sqrt(3 / 2) * scale
    assert abs(np.std(np.array(steps)) / expected - 1) < 4 / math.sqrt(2 * rounds * Wide.dimension)


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_without_its_noise_a_narrow_record_round_is_the_pooled_step(
    tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DistributedNoise, "share", DistributedNoise.round_to_grid)
    plan = secure_plan(RECORDS, aggregation={"bits": bits}, training={"sample_rate": 1.0, "local_steps": 1})
    world = Watched(tmp_path, plan, task=Wide)
    world.round()
    total = np.zeros(Wide.dimension)
    for name in FOUR:
        rows = world.task.rows(name)
        for gradient in world.task.gradients(np.zeros(Wide.dimension), rows.features, rows.labels):
            total += gradient * min(1.0, 1 / max(float(np.linalg.norm(gradient)), 1e-12))
    how = contribution_of(world.resolved, 1)
    off = np.linalg.norm(world.state.params + 0.5 * total / sum(FOUR.values()))
    assert off <= 0.5 / sum(FOUR.values()) * 4 * math.sqrt(128) / (2 * how.grid) * 1.01
    assert np.linalg.norm(world.state.params) > 100 * off


def test_both_sides_turn_by_one_public_seed_a_round_and_the_terms_hold_the_padded_length(tmp_path: Path) -> None:
    world = Watched(tmp_path, secure_plan(CLIENTS, aggregation={"bits": 16}), task=Wide)
    first, second = contribution_of(world.resolved, 1), contribution_of(world.resolved, 2)
    assert isinstance(first, Noisy) and isinstance(second, Noisy)
    assert first.seed == contribution_of(world.resolved, 1).seed != second.seed  # type: ignore[attr-defined]
    terms = terms_of(world.resolved, ("run", 1, 0), "m")
    assert (terms.dimension, terms.bits) == (128, 16)
    wide = Watched(tmp_path / "wide", secure_plan(CLIENTS), task=Wide)
    terms = terms_of(wide.resolved, ("run", 1, 0), "m")
    assert (terms.dimension, terms.bits) == (100, 32)


def test_a_vector_on_one_coordinate_would_wrap_without_the_rotation_and_does_not_with_it(tmp_path: Path) -> None:
    """The negative control: all norm in one place, as the grid of a narrow ring does not allow for."""
    noise = DistributedNoise(
        max_norm=1.0, noise_multiplier=0.05, honest=20, dimension=4096, unit="client", bits=16, parties=30
    )
    how = Noisy(noise=noise, divisor=lambda names: 1.0, dimension=4096, seed=bytes(range(32)))
    spike = np.zeros(4096)
    spike[7] = 1.0
    assert 30 * noise.scale > 2**15
    rng = system_randomness()
    names = [f"p{place}" for place in range(30)]
    total = np.asarray(np.sum([how.of(name, spike, rng) for name in names], axis=0, dtype=np.uint32))
    assert np.linalg.norm(how.step(total, names) - 30 * spike) < 0.5 * 30
    plain = np.sum([noise.share(spike, rng) for _ in names], axis=0).astype(np.uint32)
    assert abs(noise.decode(centre_lift(plain, bits=16))[7] - 30) > 5
