"""Clients side by side do what each would do alone."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402, N812
from torch import Tensor, nn  # noqa: E402

from learning import models  # noqa: E402
from quietsum.errors import InvalidParameter  # noqa: E402
from quietsum.learning.clients.local import LocalSteps  # noqa: E402
from quietsum.learning.clients.padded import Orders, PlainOrders, draw_padded  # noqa: E402
from quietsum.learning.clients.side_by_side import SideBySide  # noqa: E402
from quietsum.learning.clients.vectors import ModelLayout  # noqa: E402
from quietsum.mechanisms.gaussian import ClippedSum  # noqa: E402
from quietsum.mechanisms.rng import RandomSource, randomness_for_tests, system_randomness  # noqa: E402
from quietsum.plan.orders import LocalOrders  # noqa: E402
from quietsum.privacy.events import PrivacyEvent  # noqa: E402
from quietsum.privacy.units import Neighbours  # noqa: E402
from quietsum.sampling import Everyone, FixedSize, Poisson, Sampling  # noqa: E402

torch.set_num_threads(1)

Floats = NDArray[np.float64]
ORDERS = PlainOrders(steps=3, sampling=Everyone(), expected_batch=4.0, learning_rate=0.1)


def softmax_regression() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def some_records(rows: int = 40, features: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, features, generator=generator)
    return inputs, torch.randint(0, classes, (rows,), generator=generator)


def unequal_shards() -> list[NDArray[np.int64]]:
    """Clients of 1, 2, … 8 records, and one of none."""
    ends = np.cumsum([0, 1, 2, 3, 4, 5, 6, 7, 8, 0])
    return [np.arange(start, end) for start, end in itertools.pairwise(ends)]


def together(
    side_by_side: SideBySide,
    params: Floats,
    records: tuple[Tensor, ...],
    shards: Sequence[NDArray[np.int64]],
    orders: Sequence[Orders],
    rng: RandomSource | None = None,
) -> Floats:
    deltas = np.full((len(shards), len(params)), np.nan)
    for clients, found in side_by_side.train(params, records, shards, orders, rng or system_randomness()):
        assert np.isnan(deltas[clients]).all()  # every client once
        deltas[clients] = found
    return deltas


def naive(
    model: nn.Module, params: Floats, records: tuple[Tensor, ...], shard: NDArray[np.int64], orders: PlainOrders
) -> Floats:
    """The same steps with everybody in every batch, by torch.optim on a copy: an oracle without our code."""
    layout = ModelLayout.of(model)
    layout.write(model, params)
    start = layout.read(model)
    origin = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=orders.learning_rate, momentum=orders.momentum)
    for _ in range(orders.steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(records[0][shard]), records[1][shard], reduction="sum") / orders.expected_batch
        pull = sum(((own - old) ** 2).sum() for own, old in zip(model.parameters(), origin, strict=True))
        (loss + 0.5 * orders.proximal * pull).backward()
        optimizer.step()
    return layout.read(model) - start


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_unequal_clients_equal_torchs_own_sgd_one_at_a_time(momentum: float, proximal: float) -> None:
    records, shards = some_records(), unequal_shards()
    orders = [
        dataclasses.replace(
            ORDERS, steps=1 + i % 4, expected_batch=1.0 + i, learning_rate=0.1 + 0.05 * i, momentum=momentum,
            proximal=proximal,
        )
        for i in range(len(shards))
    ]  # fmt: skip
    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    found = together(SideBySide(model, models.cross_entropy), params, records, shards, orders)
    expected = np.stack(
        [naive(softmax_regression(), params, records, s, o) for s, o in zip(shards, orders, strict=True)]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
    assert np.abs(expected[:-1]).max(axis=1).min() > 1e-3  # they all moved, so the comparison can fail
    assert not found[-1].any()  # no records, no step


@pytest.mark.parametrize("name", ["MLP", "CNN", "GRU"])
def test_models_of_many_kinds_equal_themselves_alone(name: str) -> None:
    torch.manual_seed(0)
    subject = models.build(name, small=True)
    records = subject.batch(12)
    shards = [np.arange(5), np.arange(5, 8), np.arange(8, 12)]
    side_by_side = SideBySide(subject.model, models.cross_entropy)
    params = ModelLayout.of(subject.model).read(subject.model)
    assert side_by_side.why_alone(records, system_randomness()) == ""
    found = together(side_by_side, params, records, shards, [ORDERS] * 3)
    alone = [side_by_side.alone(params, records, shard, ORDERS, system_randomness()) for shard in shards]
    np.testing.assert_allclose(found, np.stack(alone), rtol=1e-3, atol=1e-5)
    assert np.array_equal(ModelLayout.of(subject.model).read(subject.model), params)  # the model is as it was


def test_the_comparison_fails_when_padding_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: without the mask the short clients are wrong."""

    def unmasked(*arguments: Any) -> Any:
        batch, mask, nobody = draw_padded(*arguments)
        return batch, torch.ones_like(mask), nobody

    records, shards = some_records(), unequal_shards()[:-1]
    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    side_by_side = SideBySide(model, models.cross_entropy)
    right = together(side_by_side, params, records, shards, [ORDERS] * 8)
    monkeypatch.setattr("quietsum.learning.clients.side_by_side.draw_padded", unmasked)
    wrong = together(side_by_side, params, records, shards, [ORDERS] * 8)
    assert np.abs(wrong - right).max() > 0.05
    assert "mix" in SideBySide(model, models.cross_entropy).why_alone(records, system_randomness())  # the trial sees it


class Listed:
    """A sampler that draws what it is told: client by client, step by step."""

    def __init__(self, draws: list[list[int]]) -> None:
        self.draws = draws

    def draw(self, population: int, rng: RandomSource) -> NDArray[np.int64]:
        return np.array(self.draws.pop(0), dtype=np.int64)

    def amplify(self, event: PrivacyEvent) -> PrivacyEvent:
        return event

    def expected_size(self, population: int) -> float:
        return 1.0

    neighbours: tuple[Neighbours, ...] = ()


def test_drawn_batches_are_the_ones_used_and_empty_ones_are_steps_of_nothing() -> None:
    records = some_records()
    shards = [np.array([3, 5, 7]), np.array([2, 4])]
    draws: list[list[list[int]]] = [[[0, 2], [], [1]], [[], [], [1]]]

    def samplers() -> list[Sampling]:
        return [Listed([list(step) for step in client]) for client in draws]

    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    side_by_side = SideBySide(model, models.cross_entropy)
    orders = [dataclasses.replace(ORDERS, sampling=each, momentum=0.5) for each in samplers()]
    found = together(side_by_side, params, records, shards, orders)
    orders = [dataclasses.replace(ORDERS, sampling=each, momentum=0.5) for each in samplers()]
    rng = system_randomness()
    alone = [side_by_side.alone(params, records, s, o, rng) for s, o in zip(shards, orders, strict=True)]
    np.testing.assert_allclose(found, np.stack(alone), rtol=1e-5, atol=1e-6)
    one = naive(softmax_regression(), params, records, np.array([4]), dataclasses.replace(ORDERS, steps=1))
    np.testing.assert_allclose(found[1], one, rtol=1e-5, atol=1e-6)  # two empty batches, then its record 4


@pytest.mark.parametrize("sampling", [Poisson(rate=0.3), FixedSize(size=3, population=10)])
def test_batches_are_drawn_anew_for_every_client_and_step(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record alone moves its own coordinate, so the result says how often it was drawn."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    clients, each, steps = 200, 10, 5
    inputs = torch.eye(each).repeat(clients, 1)
    shards = [np.arange(each * i, each * (i + 1)) for i in range(clients)]
    side_by_side = SideBySide(nn.Linear(each, 1, bias=False), lambda model, batch: model(batch[0]).flatten())
    orders = dataclasses.replace(ORDERS, steps=steps, sampling=sampling, expected_batch=1.0, learning_rate=1.0)
    rng = randomness_for_tests(7)
    found = together(side_by_side, np.zeros(each), (inputs,), shards, [orders] * clients, rng)
    times = -found
    assert set(np.unique(times)) <= set(range(steps + 1))
    rate = 0.3
    assert abs(times.mean() - rate * steps) < 0.15  # more than 6 standard deviations of 10,000 coins
    assert abs(times.var() - steps * rate * (1 - rate)) < 0.2  # one draw for all steps would give 5 times as much
    if isinstance(sampling, FixedSize):
        assert (times.sum(axis=1) == 3 * steps).all()


def test_a_broken_record_counts_as_zero_in_its_own_client_and_nowhere_else() -> None:
    inputs, labels = some_records()
    inputs[0] = torch.nan
    shards = [np.array([0, 1, 2]), np.array([0]), np.array([4, 5, 6, 7])]
    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    found = together(SideBySide(model, models.cross_entropy), params, (inputs, labels), shards, [ORDERS] * 3)
    whole = [shards[0][1:], shards[1][1:], shards[2]]
    expected = [naive(softmax_regression(), params, (inputs, labels), own, ORDERS) for own in whole]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)
    assert not found[1].any() and found[0].any()


def test_a_broken_record_that_is_not_drawn_does_nothing() -> None:
    inputs, labels = some_records()
    inputs[0] = torch.nan
    sampler: Sampling = Listed([[1]])
    orders = [dataclasses.replace(ORDERS, steps=1, sampling=sampler), dataclasses.replace(ORDERS, steps=1)]
    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    shards = [np.array([0, 3]), np.array([4, 5])]  # the first client's batch is padded, but not with record 0
    batch, mask, _ = draw_padded(
        (inputs, labels), shards[::-1], [Everyone(), Listed([[1]])], system_randomness(), inputs.device
    )
    assert mask.tolist() == [[True, True], [True, False]] and bool(torch.isfinite(batch[0]).all())
    found = together(SideBySide(model, models.cross_entropy), params, (inputs, labels), shards, orders)
    assert np.isfinite(found).all() and sampler.draws == []  # type: ignore[attr-defined]


def test_one_party_alone_and_side_by_side_take_the_same_steps() -> None:
    records, shards = some_records(), unequal_shards()[:-1]
    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    orders = [
        LocalOrders(steps=2, sampling=Everyone(), expected_batch=1.0 + i, learning_rate=0.3, momentum=0.5, proximal=0.1)
        for i in range(len(shards))
    ]
    found = together(SideBySide(model, models.cross_entropy), params, records, shards, orders)
    local = LocalSteps(softmax_regression(), models.cross_entropy)
    expected = [
        local.run(tuple(part[torch.from_numpy(own)] for part in records), params, told, system_randomness())
        for own, told in zip(shards, orders, strict=True)
    ]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-6)


def test_chunks_follow_the_room_and_change_nothing() -> None:
    records, shards = some_records(), unequal_shards()
    model = softmax_regression()
    params = ModelLayout.of(model).read(model)
    roomy = together(SideBySide(model, models.cross_entropy), params, records, shards, [ORDERS] * 9)
    narrow = SideBySide(model, models.cross_entropy, room=2000)
    rng = system_randomness()
    counts = [len(clients) for clients, _ in narrow.train(params, records, shards, [ORDERS] * 9, rng)]
    assert max(counts) < 9 and sum(counts) == 9 and len(counts) > 2
    np.testing.assert_allclose(together(narrow, params, records, shards, [ORDERS] * 9), roomy, rtol=1e-5, atol=1e-6)


class Doubting(nn.Linear):
    """Asks about a value, which vmap cannot follow."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (2 if float(x.sum()) > 0 else 3)


def centred(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return losses * losses.detach().mean()


@pytest.mark.parametrize(
    ("model", "loss", "why"),
    [
        (Doubting(6, 3), models.cross_entropy, "cannot batch"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), models.cross_entropy, "statistics over the batch"),
        (nn.Linear(6, 3), centred, "mix"),
    ],
)
def test_what_cannot_go_side_by_side_goes_alone_and_the_log_says_why(
    model: nn.Module,
    loss: Callable[[nn.Module, tuple[Tensor, ...]], Tensor],
    why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="quietsum")
    records, shards = some_records(), unequal_shards()[2:6]
    side_by_side = SideBySide(model, loss)
    params = ModelLayout.of(model).read(model)
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    found = together(side_by_side, params, records, shards, [ORDERS] * 4)
    alone = [side_by_side.alone(params, records, shard, ORDERS, system_randomness()) for shard in shards]
    assert np.array_equal(found, np.stack(alone)) and np.abs(found).max() > 0
    assert why in caplog.text and caplog.text.count("one at a time") == 1
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())


def test_dropout_is_drawn_for_every_client_apart() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3, bias=False))
    side_by_side = SideBySide(model, models.cross_entropy)
    inputs, labels = torch.ones(64, 6), torch.zeros(64, dtype=torch.int64)
    shards = [np.array([i]) for i in range(64)]
    params = np.zeros(18)
    found = together(side_by_side, params, (inputs, labels), shards, [dataclasses.replace(ORDERS, steps=1)] * 64)
    assert side_by_side.why_alone((inputs, labels), system_randomness()) == ""
    assert len(np.unique(found, axis=0)) > 10  # of 64 patterns; alike they would be one
    assert model[0].p == 0.5


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model[0].weight.requires_grad_(False)
    params = ModelLayout.of(model).read(model)
    side_by_side = SideBySide(model, models.cross_entropy)
    assert side_by_side.dimension == len(params) == 5 + 15 + 3
    records, shards = some_records(), unequal_shards()[2:4]
    found = together(side_by_side, params, records, shards, [ORDERS] * 2)
    alone = [side_by_side.alone(params, records, shard, ORDERS, system_randomness()) for shard in shards]
    np.testing.assert_allclose(found, np.stack(alone), rtol=1e-5, atol=1e-6)


def test_orders_that_make_no_sense_are_refused() -> None:
    records, shards = some_records(), [np.arange(3)]
    side_by_side = SideBySide(softmax_regression(), models.cross_entropy)
    for change in (
        {"steps": 0}, {"expected_batch": 0.0}, {"learning_rate": float("nan")}, {"momentum": 1.0}, {"proximal": -1.0},
    ):  # fmt: skip
        with pytest.raises(InvalidParameter, match=next(iter(change))):
            together(side_by_side, np.zeros(21), records, shards, [dataclasses.replace(ORDERS, **change)])
    noisy = LocalOrders(
        steps=1, sampling=Everyone(), expected_batch=3.0, learning_rate=0.1,
        mechanism=ClippedSum(max_norm=1.0, noise_multiplier=1.0),
    )  # fmt: skip
    with pytest.raises(InvalidParameter, match="single records"):  # never silently without the noise
        list(side_by_side.train(np.zeros(21), records, shards, [noisy], system_randomness()))
    with pytest.raises(InvalidParameter, match="outside"):
        together(side_by_side, np.zeros(21), records, [np.array([99])], [ORDERS])
    with pytest.raises(InvalidParameter, match="one for each client"):
        together(side_by_side, np.zeros(21), records, shards, [])
    for params in (np.zeros(20), np.full(21, np.nan)):
        with pytest.raises(InvalidParameter, match="finite vector of 21"):
            together(side_by_side, params, records, shards, [ORDERS])
    assert together(side_by_side, np.zeros(21), records, [], []).shape == (0, 21)
