"""Records: each is read alone, only those that may be used, and odd ones count as nothing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from quietsum.errors import InvalidParameter
from quietsum.learning.clipping import Flat
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.rehearsal import rehearse_model, rehearse_step
from quietsum.learning.rows.records import Records, RecordsOfOtherShapes
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.learning.trainer import PrivateTrainer

ROWS = 60
HERE = torch.device("cpu")


class Listed(Dataset[Any]):
    """Records by number, some of them of another length; remembers which were read."""

    def __init__(self, count: int = ROWS, odd: Callable[[int], bool] = lambda _: False) -> None:
        self.inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(0)) * 0.1
        self.odd, self.read = odd, set[int]()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.add(index)
        return (torch.ones(4) if self.odd(index) else self.inputs[index]), index % 2


def config(**values: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 3.0, "epochs": 2, "batch_size": 30, **values})


def train(data: Any, model: nn.Module | None = None, **values: Any) -> PrivateTrainer:
    trainer = PrivateTrainer(nn.Linear(3, 2) if model is None else model, config(**values), selfcheck=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(data)
    return trainer


def of(loader: Any) -> Records:
    return Records.of(loader, quiet=True)


def stacked(rows: list[Any]) -> tuple[Tensor, Tensor]:
    return torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])


def centred(rows: list[Any]) -> tuple[Tensor, Tensor]:
    inputs, labels = stacked(rows)
    return 1.0 + inputs - inputs.mean(0), labels


def padded(rows: list[Any]) -> tuple[Tensor, Tensor]:
    longest = max(len(row[0]) for row in rows)
    inputs = torch.stack([nn.functional.pad(row[0], (0, longest - len(row[0]))) for row in rows])
    return inputs, torch.tensor([row[1] for row in rows])


# ----------------------------------------------------------------------------------------------- collating


def test_a_collate_function_that_mixes_records_never_sees_two_of_them() -> None:
    data = Listed(ROWS + 1)
    data.inputs[ROWS] = 1e4
    records = of(DataLoader(data, collate_fn=centred))
    torch.manual_seed(0)
    step = PrivateStep.build(
        nn.Linear(3, 2), cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.5, expected_batch=30.0
    )

    def moved(batch_of: Callable[[np.ndarray[Any, Any]], Any]) -> float:
        sums = [step.deterministic(batch_of(np.arange(count))) for count in (ROWS, ROWS + 1)]
        return float(torch.cat([(a - b).flatten() for a, b in zip(*sums, strict=True)]).norm())

    assert moved(records.batch) <= 1.0 + 1e-5
    assert moved(lambda chosen: centred([data[i] for i in chosen])) > 10  # the control: together they mix


def test_a_row_is_the_same_whatever_else_is_drawn() -> None:
    data = Listed(odd=lambda index: index == 33)
    for collate in (None, stacked, padded):
        records = of(DataLoader(data, collate_fn=collate))
        alone, among = records.batch(np.array([7])), records.batch(np.array([33, 7]))
        assert all(torch.equal(one, two) for one, two in zip(alone, among, strict=True))
    assert padded([data[33], data[7]])[0].shape == (2, 4)  # the control: padding together tells of the longest


def test_a_collate_function_is_applied_to_every_record_and_the_loader_says_how() -> None:
    data = TensorDataset(*stacked([Listed()[i] for i in range(ROWS)]))

    def scaled(rows: list[Any]) -> Any:
        inputs, labels = default_collate(rows)
        return inputs / 10, labels

    with pytest.warns(UserWarning, match="collate_fn is called with one record at a time"):
        records = Records.of(DataLoader(data, collate_fn=scaled))
    assert torch.equal(records.batch(np.arange(ROWS))[0], data.tensors[0] / 10)
    with pytest.warns(UserWarning, match="accounted for$"):
        Records.of(DataLoader(data))


def test_a_collate_function_that_makes_two_rows_of_a_record_is_refused() -> None:
    def doubled(rows: list[Any]) -> Any:
        return tuple(torch.cat([part, part]) for part in stacked(rows))

    with pytest.raises(InvalidParameter, match="a record counts once"):
        of(DataLoader(Listed(), collate_fn=doubled))

    def sometimes(rows: list[Any]) -> Any:
        return doubled(rows) if rows[0][1] else stacked(rows)

    assert len(of(DataLoader(Listed(), collate_fn=sometimes)).batch(np.arange(4))[0]) == 2


# --------------------------------------------------------------------------------------------- odd records


@pytest.mark.parametrize("collate", [None, stacked, padded])
def test_a_record_of_another_length_counts_as_zero_and_nothing_stops(collate: Any) -> None:
    data = Listed(odd=lambda index: index == 33)
    assert train(DataLoader(data, collate_fn=collate), batch_size=ROWS).get_privacy_spent()[0] > 0
    assert 33 in data.read
    assert len(of(DataLoader(data, collate_fn=collate)).batch(np.arange(ROWS))[0]) == ROWS - 1


def test_where_most_records_are_unlike_the_first_the_holder_is_told_before_any_charge() -> None:
    data = Listed(odd=lambda index: index > 0)
    with pytest.raises(RecordsOfOtherShapes, match="for you alone"):
        train(data)
    quiet = PrivateTrainer(nn.Linear(3, 2), config(), selfcheck=False, check_labels=False)
    quiet.train(data)  # and nobody is told where others would notice
    train(Listed(odd=lambda index: index % 3 == 0 and index > 0))  # a third of them is silent


# ------------------------------------------------------------------------------------------------ samplers


def test_records_outside_a_subset_sampler_are_never_trained_on() -> None:
    data = Listed()
    trainer = train(DataLoader(data, batch_size=10, sampler=SubsetRandomSampler(range(20, 40))), batch_size=10)
    assert trainer.plan is not None and trainer.plan.size == 20
    assert data.read and data.read <= set(range(20, 40))
    batches = BatchSampler(SubsetRandomSampler([3, 1]), batch_size=2, drop_last=False)
    assert len(of(DataLoader(data, batch_sampler=batches))) == 2
    tensors = TensorDataset(data.inputs, torch.arange(ROWS))
    found = of(DataLoader(tensors, sampler=SubsetRandomSampler([5, 2])))
    assert found.tensors is not None and found.tensors[1].tolist() == [5, 2]
    assert len(of(DataLoader(data, sampler=range(7)))) == 7


def test_shuffled_and_ordered_loaders_give_all_records() -> None:
    data = Listed()
    batches = BatchSampler(RandomSampler(data), 4, drop_last=True)
    for loader in (DataLoader(data, shuffle=True), DataLoader(data), DataLoader(data, batch_sampler=batches)):
        assert len(of(loader)) == ROWS


class Halved(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(30))


class Backwards(SequentialSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    "arguments",
    [
        {"sampler": WeightedRandomSampler([1.0] * ROWS, ROWS)},
        {"sampler": Halved()},
        {"sampler": Backwards(Listed())},
        {"sampler": RandomSampler(range(30))},
        {"batch_sampler": BatchSampler(Halved(), 4, drop_last=False)},
    ],
    ids=["weighted", "one's own", "a subclass", "of another set", "in a batch sampler"],
)
def test_any_other_sampler_is_refused_with_the_remedy(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=r"torch\.utils\.data\.Subset"):
        of(DataLoader(Listed(), **arguments))


def test_whole_batches_and_records_named_twice_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="its own coin"):
        of(DataLoader(Listed(), batch_size=None))
    for data in (
        DataLoader(Listed(), sampler=SubsetRandomSampler([1, 2, 1])),
        DataLoader(Listed(), sampler=[-1, ROWS - 1]),
        Subset(Listed(), [4, 4]),
        Subset(Subset(Listed(), [4, 4]), [0, 1]),
    ):
        with pytest.raises(InvalidParameter, match="at most once"):
            of(data)
    chosen = of(Subset(TensorDataset(torch.arange(9.0), torch.arange(9)), [8, 3]))
    assert chosen.tensors is not None and chosen.tensors[1].tolist() == [8, 3]


def test_a_tensor_data_set_with_a_getitem_of_its_own_keeps_it() -> None:
    class Scaled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            inputs, label = super().__getitem__(index)
            return inputs / 100, label

    inputs, labels = stacked([Listed()[i] for i in range(ROWS)])
    assert torch.allclose(Records.of(Scaled(inputs, labels)).batch(np.arange(ROWS))[0], inputs / 100)
    assert torch.equal(Records.of(TensorDataset(inputs, labels)).batch(np.arange(ROWS))[0], inputs)  # the control


# ----------------------------------------------------------------------------------------------- rehearsal


class Watching(nn.Linear):
    seen: Tensor

    def __init__(self, *, sums: bool) -> None:
        super().__init__(3, 2)
        self.sums = sums
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + (x.detach().sum(0) if self.sums else 1.0)
        return super().forward(x)


def test_a_buffer_of_sums_is_refused_before_training_and_a_counter_is_not() -> None:
    data = stacked([Listed()[i] for i in range(ROWS)])
    with pytest.raises(InvalidParameter, match=r"Watching: seen.*without noise"):
        train(data, Watching(sums=True))
    train(data, Watching(sums=False))
    train(data, nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


def test_a_rehearsal_leaves_buffers_alone() -> None:
    model, records = Watching(sums=False), Records.of(stacked([Listed()[i] for i in range(ROWS)]))
    rehearse_model(model, cross_entropy, records, HERE)
    step = PrivateStep.build(
        model, cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.5, expected_batch=30.0
    )
    rehearse_step(step, records, HERE)
    assert torch.equal(model.get_buffer("seen"), torch.zeros(3))


class MixesAbove(nn.Linear):
    def __init__(self, rows: int) -> None:
        super().__init__(3, 2)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(0) if len(x) > self.rows else x)


def test_a_model_that_mixes_only_in_batches_as_large_as_ours_is_refused() -> None:
    data = torch.randn(200, 3), torch.arange(200) % 2
    with pytest.raises(InvalidParameter, match="mixes examples in a batch of"):
        train(data, MixesAbove(32), batch_size=40)
    with pytest.raises(InvalidParameter, match="mixes examples in a batch of"):
        train(data, MixesAbove(50), batch_size=40)  # Poisson batches are sometimes that large
    train(data, MixesAbove(200), batch_size=40)  # the control: never that many


@pytest.mark.parametrize("engine", ["auto", "naive"])
def test_a_counter_of_batches_holds_after_training_what_the_plan_says_whatever_was_drawn(engine: str) -> None:
    seen = set()
    for count in (0, 60, 61):
        model = Watching(sums=False)
        data = torch.randn(count, 3), torch.arange(count) % 2
        train(data, model, public_size=60, batch_size=10, engine=engine, micro_batch=3)
        seen.add(float(model.get_buffer("seen")[0]))
    assert len(seen) == 1
