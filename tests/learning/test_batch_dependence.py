"""A model whose answer for one record depends on the batch around it is refused at both doors; sound ones pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from quietsum.errors import InvalidParameter
from quietsum.learning import PrivacyConfig, PrivateTrainer, make_private
from quietsum.learning.engines.batch_mixing import what_mixes
from quietsum.learning.rehearsal import rehearse_large
from quietsum.learning.rows.records import Records
from quietsum.learning.step import cross_entropy


class Around(nn.Module):
    """A linear layer, and something that looks at the batch."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.inner, self.kind = nn.Linear(3, 2), kind
        self.gate = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out, rows = self.inner(x), len(x)
        place = torch.arange(rows)[:, None]
        match self.kind:
            case "capacity of 16":
                return torch.where(place < 16, out, 0.0)
            case "capacity of 100":
                return torch.where(place < 100, out, 0.0)
            case "truncated and padded":
                return torch.cat([self.inner(x[:16]), out.new_zeros(max(0, rows - 16), 2)])
            case "first row special":
                return torch.where(place == 0, out * 2, out)
            case "last row special":
                return torch.where(place == rows - 1, out * 2, out)
            case "position":
                return out * (1 + 0.01 * place)
            case "long batches scaled":
                return out * (1.5 if rows > 20 else 1.0)
            case "one size scaled":
                return out * (1.5 if rows == 13 else 1.0)
            case "odd sizes scaled":
                return out * (1.5 if rows % 2 else 1.0)
            case "by length":
                return out / rows
            case "centred in quarters":
                return torch.cat([part - part.mean(0) for part in out.chunk(4)])
            case "best half kept":
                score = out[:, 0]
                return torch.where((score >= score.median())[:, None], out, 0.0)
            case "expert with capacity":
                mine = (self.gate(x).argmax(1) == 0).int()
                return torch.where(((mine == 0) | (mine.cumsum(0) <= 6))[:, None], out, 0.0)
            case "previous row":
                return out + 0.1 * torch.cat([out[:1] * 0, out[:-1]])
        raise AssertionError(self.kind)


MIXING = [
    "capacity of 16", "truncated and padded", "first row special", "last row special", "position",
    "long batches scaled", "one size scaled", "odd sizes scaled", "by length", "centred in quarters", "best half kept",
    "expert with capacity", "previous row",
]  # fmt: skip


def data(size: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(1)
    return torch.randn(size, 3, generator=made), torch.arange(size) % 2


def doors(model: nn.Module, batch: int, loss: Any = cross_entropy) -> list[Callable[[], Any]]:
    """The two front doors; without the self-check, which has its own tests."""
    config, records = PrivacyConfig(epsilon=3.0, epochs=1, batch_size=batch), data(4 * batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [
        lambda: PrivateTrainer(model, config, loss=loss, selfcheck=False).train(records),
        lambda: make_private(model, optimizer, records, config=config, loss=loss, selfcheck=False),
    ]


@pytest.mark.parametrize("batch", [32, 128])
@pytest.mark.parametrize("kind", [*MIXING, "capacity of 100"])
def test_a_model_that_looks_at_the_batch_is_refused_at_both_doors(kind: str, batch: int) -> None:
    if (kind, batch) == ("capacity of 100", 32):
        pytest.skip("a batch of 32 never has a hundred rows")
    torch.manual_seed(0)
    model = Around(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for door in doors(model, batch):
        with pytest.raises(
            InvalidParameter, match=r"mixes examples in a batch of \d+: the loss of a record is another one"
        ):
            door()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_layer_with_a_capacity_is_refused_by_the_default_doors_too() -> None:
    config = PrivacyConfig(epsilon=3.0, epochs=1, batch_size=32)
    with pytest.raises(InvalidParameter, match="no capacity"):
        PrivateTrainer(Around("capacity of 16"), config).train(data(128))


def test_a_loss_that_divides_by_the_length_of_the_batch_is_refused() -> None:
    def mean(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return cross_entropy(model, batch) / len(batch[0])

    for door in doors(nn.Linear(3, 2), 8, mean):
        with pytest.raises(InvalidParameter, match="no division by its length"):
            door()


def test_a_batch_that_a_model_cannot_read_at_all_is_refused_with_its_size() -> None:
    class Short(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[:16])

    for door in doors(Short(3, 2), 32):
        with pytest.raises(InvalidParameter, match="cannot read 66 made-up records"):
            door()


def test_micro_batches_are_all_that_a_model_must_not_look_at() -> None:
    torch.manual_seed(0)
    config = PrivacyConfig(epsilon=3.0, epochs=1, batch_size=32, micro_batch=8)
    PrivateTrainer(Around("capacity of 16"), config, selfcheck=False).train(data(128))  # no pass has more than 8 rows
    with pytest.raises(InvalidParameter, match="mixes examples"):
        PrivateTrainer(Around("first row special"), config, selfcheck=False).train(data(128))


# ------------------------------------------------------------------------------------------ sound ones pass


class Cast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x).float()


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(3, 5, batch_first=True, num_layers=2, dropout=0.3, bidirectional=True)
        self.mixer = nn.TransformerEncoderLayer(10, 2, 8, dropout=0.1, batch_first=True)
        self.out = nn.Linear(10, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.mixer(self.inner(x[:, None].expand(-1, 4, -1))[0]).mean(1))


def deep() -> nn.Module:
    torch.manual_seed(2)
    inner = [part for _ in range(30) for part in (nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU())]
    return nn.Sequential(nn.Linear(3, 32), *inner, nn.Linear(32, 2))


def steep() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20)
    return model


SOUND: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(3, 2),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.RReLU(), nn.Linear(8, 2)),
    "cast": Cast,
    "sequence": Sequence,
    "deep": deep,
    "steep": steep,
    "norms": lambda: nn.Sequential(nn.Linear(3, 8), nn.GroupNorm(2, 8), spectral_norm(nn.Linear(8, 8)),
                                   weight_norm(nn.Linear(8, 2))),
    "double": lambda: nn.Linear(3, 2).double(),
}  # fmt: skip


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_model_is_not_taken_for_one_that_mixes(kind: str) -> None:
    model = SOUND[kind]()
    dtype = next(model.parameters()).dtype
    records = Records.of((data(400)[0].to(dtype), data(400)[1]))
    for batch in (8, 60):
        rehearse_large(model, cross_entropy, records, torch.device("cpu"), expected_batch=batch)


def test_a_model_with_draws_of_whole_numbers_is_not_judged_by_other_batch_sizes() -> None:
    class Shifted(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1 + torch.randint(0, 5, (len(x), 1)))

    assert what_mixes(Shifted(3, 2), cross_entropy, data(20)) is None


def test_the_trial_of_a_large_batch_costs_no_more_than_some_dozens_of_its_forward_passes() -> None:
    model, passes = nn.Sequential(nn.Linear(3, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.Linear(2000, 2)), 0

    def counted(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        nonlocal passes
        passes += len(batch[0])
        return cross_entropy(model, batch)

    assert what_mixes(model, counted, data(500)) is None
    assert passes <= 20 * 500, "rows, counted over all passes: no clock is asked"
