"""The trainer: what it promises, what it refuses, and what it keeps to itself."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from quietsum import ExactAccountant, Gaussian, Neighbours, PoissonSampled, Repeated
from quietsum.errors import BudgetExhausted, CorruptState, InvalidParameter, PlanRefused, QuietsumError
from quietsum.learning.checks.before_training import ClaimContradicted
from quietsum.learning.checks.numpy_step import Silent
from quietsum.learning.clipping import QuantileClip
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.engines.protocol import Batch
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.learning.own_loop import make_private
from quietsum.learning.rows.records import LabelsOutOfRange, Records
from quietsum.learning.schedules import Growing, Stepwise
from quietsum.learning.step import cross_entropy
from quietsum.learning.trainer import Epoch, PrivateTrainer, progress_line

ROWS = 400


def records(count: int = ROWS) -> Batch:
    """Two clouds, far apart."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    return torch.randn(count, 3, generator=generator) + 3.0 * labels[:, None], labels


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def config(**values: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 4.0, "epochs": 4, "batch_size": 40, "max_grad_norm": 0.5, **values})


def train(model: nn.Module | None = None, data: Any = None, **values: Any) -> tuple[PrivateTrainer, Any]:
    trainer = PrivateTrainer(network() if model is None else model, config(**values), selfcheck=False)
    return trainer, trainer.train(records() if data is None else data, learning_rate=1.0)


# --------------------------------------------------------------------------------------------- it learns, at a price


def test_it_learns_and_states_what_an_accountant_says_of_its_steps() -> None:
    trainer = PrivateTrainer(network(), config(ema_decay=0.8))
    history = trainer.train(records(), records(100), learning_rate=1.0, optimizer="momentum")
    assert history.metrics["accuracy"] > 0.9
    plan = trainer.plan
    assert plan is not None and (plan.rate, plan.steps) == (0.1, 40)
    step = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=plan.stages[0].noise_multiplier))
    told = ExactAccountant(neighbours=Neighbours.ZERO_OUT).compose(Repeated(times=40, event=step))
    assert trainer.guarantee().epsilon == told.epsilon(delta=plan.delta).epsilon <= 4.0
    assert trainer.guarantee().epsilon > 3.99
    assert plan.delta == 1 / (10 * ROWS)


@pytest.mark.parametrize(
    "values",
    [
        {"clipping": "per-layer"}, {"clipping": "automatic"}, {"clipping": "adaptive", "count_noise": 4.0},
        {"noise": "secure"}, {"engine": "vmap"}, {"micro_batch": 7}, {"schedule": Growing(noise=1.5, clip=0.5)},
        {"schedule": Stepwise(every=2, noise=0.8)}, {"noise_type": "laplace", "max_grad_norm": 2.0},
        {"privacy_accounting": "rdp"}, {"privacy_accounting": "moments"},
    ],
)  # fmt: skip
@pytest.mark.some(4)
def test_every_setting_trains_within_its_budget(values: dict[str, Any]) -> None:
    trainer, history = train(**values)
    assert 3.0 < trainer.guarantee().epsilon <= 4.0 and history.stopped == "finished"
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "dp-adam"])
def test_every_optimizer_moves_the_weights(optimizer: str) -> None:
    model, before = network(), network()
    PrivateTrainer(model, config(epochs=1)).train(records(), learning_rate=0.1, optimizer=optimizer)
    assert not torch.equal(next(model.parameters()), next(before.parameters()))


def test_the_average_is_what_is_shown_and_released() -> None:
    model = network()
    trainer = PrivateTrainer(model, config(ema_decay=0.9, epochs=1))
    trainer.train(records(), learning_rate=1.0)
    assert trainer._averages is not None
    raw = trainer._averages._means[0]  # swapped: the average holds the raw weights now
    assert not torch.equal(next(model.parameters()), raw)


# ------------------------------------------------------------------------------------------------------- budgets


def test_with_noise_and_budget_given_it_stops_before_the_step_that_would_overspend() -> None:
    trainer, history = train(noise_multiplier=1.0, epochs=40)
    plan = trainer.plan
    assert plan is not None and history.stopped == "budget" and 0 < plan.steps < 400
    step = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=1.0))
    for steps, within in ((plan.steps, True), (plan.steps + 1, False)):
        spent = ExactAccountant().compose(step, steps).epsilon(delta=plan.delta).epsilon
        assert (spent <= 4.0) is within


def test_with_noise_alone_it_runs_through_and_says_what_it_cost() -> None:
    trainer, history = train(epsilon=None, noise_multiplier=0.6, epochs=2)
    assert history.stopped == "finished" and trainer.guarantee().epsilon > 4.0


def test_a_finished_plan_has_nothing_left_and_a_schedule_is_fixed_by_the_first_call() -> None:
    trainer, _ = train(epochs=1)
    with pytest.raises(BudgetExhausted, match="new plan"):
        trainer.train(records())
    other = PrivateTrainer(network(), config(epochs=3))
    other.train(records(), num_epochs=2)
    with pytest.raises(InvalidParameter, match="num_epochs"):
        other.train(records(), num_epochs=3)


def test_an_interrupted_run_claims_its_whole_plan_and_has_spent_what_was_charged() -> None:
    seen: list[Epoch] = []

    def stop(epoch: Epoch) -> None:
        seen.append(epoch)
        if len(seen) == 2:
            raise KeyboardInterrupt

    trainer = PrivateTrainer(network(), config(), watch=stop)
    with pytest.raises(KeyboardInterrupt):
        trainer.train(records())
    spent, _ = trainer.get_privacy_spent()
    assert spent == seen[1].spent.epsilon < trainer.guarantee().epsilon
    assert "however much of it ran" in trainer.guarantee().method and trainer.guarantee().epsilon_lower == 0
    history = trainer.train(records())
    assert len(history.epochs) == 2 and "however" not in history.guarantee.method


def test_unreachable_budgets_are_refused_with_what_is_reachable() -> None:
    with pytest.raises(PlanRefused, match=r"ε = [0-9.]+ is reachable") as refused:
        train(epsilon=0.001)
    reachable = float(str(refused.value).split("settings ε = ")[1].split(" is")[0])
    assert plan_training(config(epsilon=reachable), size=ROWS).forecast.epsilon <= reachable
    with pytest.raises(PlanRefused, match="one step"):
        train(epsilon=0.01, noise_multiplier=0.5)


# --------------------------------------------------------------------------------------------- the self-check


def test_before_training_the_step_is_checked_on_made_up_rows_and_too_little_noise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TorchNoise.draw
    monkeypatch.setattr(TorchNoise, "draw", lambda self, like: tuple(part / 2 for part in honest(self, like)))
    with pytest.raises(ClaimContradicted, match="T3"):
        PrivateTrainer(network(), config(), workspace=tmp_path).train(records())
    assert not (tmp_path / "ledger.db").exists()
    monkeypatch.setattr(TorchNoise, "draw", honest)
    trainer = PrivateTrainer(network(), config(epochs=1), workspace=tmp_path)  # the control
    trainer.train(records())
    trainer.close()


def test_adaptive_clipping_that_leaves_its_count_without_noise_is_refused_before_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = QuantileClip.next_norm

    def bare(self: QuantileClip, max_norm: float, **counts: Any) -> float:
        return honest(dataclasses.replace(self, rng=Silent()), max_norm, **counts)

    monkeypatch.setattr(QuantileClip, "next_norm", bare)
    with pytest.raises(ClaimContradicted, match=r"T3.*count"):
        PrivateTrainer(network(), config(clipping="adaptive", count_noise=4.0)).train(records())
    monkeypatch.setattr(QuantileClip, "next_norm", honest)
    PrivateTrainer(network(), config(epochs=1, clipping="adaptive", count_noise=4.0)).train(records())  # the control


# --------------------------------------------------------------------------------------------- what is public


def test_a_size_that_is_counted_names_zero_out_and_one_that_is_declared_add_or_remove() -> None:
    assert train(epochs=1)[0].guarantee().neighbours is Neighbours.ZERO_OUT
    assert train(epochs=1, public_size=ROWS)[0].guarantee().neighbours is Neighbours.ADD_REMOVE
    with pytest.raises(InvalidParameter, match="public_size"):
        train(neighbours=Neighbours.ADD_REMOVE)
    assert train(epochs=1, neighbours=Neighbours.REPLACE_ONE)[0].guarantee().neighbours is Neighbours.REPLACE_ONE


def test_with_a_declared_size_another_record_changes_no_public_number() -> None:
    plans = [train(data=records(count), epochs=1, public_size=ROWS)[0].plan for count in (ROWS, ROWS + 1, ROWS - 1)]
    assert plans[0] == plans[1] == plans[2]
    counted = [plan_training(config(), size=count) for count in (ROWS, ROWS + 1)]
    assert counted[0] != counted[1]  # the control


class Listed(Dataset[Any]):
    """Records by number that are no tensor, so that their shape is not known from the outside."""

    def __init__(self, count: int) -> None:
        self.rows = list(zip(*records(), strict=True))[:count]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


@pytest.mark.parametrize("kind", ["tensors", "a data set", "a loader"])
@pytest.mark.some(1)
def test_with_a_declared_size_no_records_train_like_one_record(kind: str) -> None:
    plans, weights = [], []
    for count in (0, 1):
        data: Any = tuple(part[:count] for part in records()) if kind == "tensors" else Listed(count)
        if kind == "a loader":
            data = DataLoader(data, sampler=range(count))
        trainer = PrivateTrainer(network(), config(epochs=1, public_size=ROWS))
        example = None if kind == "tensors" else (torch.zeros(3), 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            history = trainer.train(data, learning_rate=1.0, example=example)
        assert history.stopped == "finished" and len(history.epochs) == 1
        plans.append(trainer.plan)
        weights.append(next(trainer.model.parameters()).detach())
    assert plans[0] == plans[1]
    assert not torch.equal(weights[0], next(network().parameters())), "an empty set's steps are noise, and steps"


def test_a_missing_example_is_refused_whatever_the_data_set_holds() -> None:
    said = []
    for count in (0, 1, ROWS):
        with pytest.raises(InvalidParameter, match="example") as refused:
            train(data=Listed(count), epochs=1, public_size=ROWS)
        said.append(str(refused.value))
    assert len(set(said)) == 1
    assert train(data=Listed(ROWS), epochs=1)[1].stopped == "finished"  # zero-out: the shape is public with the size


def test_where_the_size_is_public_an_empty_set_is_refused() -> None:
    for data in (tuple(part[:0] for part in records()), Listed(0)):
        with pytest.raises(InvalidParameter, match="holds no records"):
            train(data=data)
    with pytest.raises(InvalidParameter, match="example"):
        Records.of(records(), example=(torch.zeros(5), 0))
    with pytest.raises(InvalidParameter, match="example"):
        Records.of(Listed(3), example=object())


def test_a_loop_by_hand_goes_over_no_records_too() -> None:
    model = network()
    _, optimizer, loader = make_private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), Listed(0), config=config(epochs=1, public_size=ROWS),
        example=(torch.zeros(3), 0),
    )  # fmt: skip
    for inputs, _ in loader:
        assert len(inputs) == 0
        optimizer.step()
    assert not torch.equal(next(model.parameters()), next(network().parameters()))


def test_labels_out_of_range_are_told_to_the_holder_or_counted_as_nothing_and_told_to_nobody(tmp_path: Path) -> None:
    inputs, labels = records()
    labels[7] = 2
    with pytest.raises(LabelsOutOfRange, match="do not pass it on") as refused:
        PrivateTrainer(network(), config(epochs=1), workspace=tmp_path).train((inputs, labels))
    assert "7" not in str(refused.value) and not any(tmp_path.iterdir())
    silent = PrivateTrainer(network(), config(epochs=1), check_labels=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert silent.train((inputs, labels)).stopped == "finished"


def test_a_model_that_raises_on_a_row_alone_is_refused_instead_of_trained_on_noise() -> None:
    alone = nn.Sequential(nn.Linear(3, 2), nn.GroupNorm(2, 2))  # torch does not normalise a single value
    with pytest.raises(InvalidParameter, match=r"differentiated by the engine .* in a batch of 1"):
        train(alone)


def test_history_says_on_which_data_its_scores_stand_and_holds_no_other_number() -> None:
    trainer = PrivateTrainer(network(), config(epochs=2))
    history = trainer.train(records(), records(50))
    assert {epoch.metrics_on for epoch in history.epochs} == {"validation data declared unprotected"}
    blind = PrivateTrainer(network(), config(epochs=2)).train(records())
    assert [dict(epoch.metrics) for epoch in blind.epochs] == [{}, {}]
    names = {field.name for field in dataclasses.fields(Epoch)}
    assert names == {"epoch", "epochs", "steps", "spent", "budget", "metrics", "metrics_on", "max_grad_norm"}


def test_the_progress_line_says_epsilon_of_the_budget_per_record_and_the_data() -> None:
    trainer = PrivateTrainer(network(), config(epochs=2))
    line = progress_line(trainer.train(records(), records(50)).epochs[-1])
    assert line.startswith("epoch 2/2 · ε 4.00 of 4 per record · accuracy ")
    assert line.endswith("on validation data declared unprotected")


def test_nothing_is_printed_and_no_warning_depends_on_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    inputs, labels = records()
    inputs[3] = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer, _ = train(data=(inputs, labels))
    assert capsys.readouterr() == ("", "")
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())


def test_fast_noise_is_labelled_and_nothing_here_is_called_certified() -> None:
    assert any("floating-point" in told for told in train(epochs=1, noise="fast")[0].guarantee().warnings)
    secure = train(epochs=1, noise="secure")[0].guarantee()
    assert not secure.warnings and not secure.certified


# --------------------------------------------------------------------------------------------------- loaders


class Rows(Dataset[Any]):
    """A data set that is no tensor; one record cannot be read and one has another shape."""

    def __init__(self, broken: bool = False) -> None:
        self.inputs, self.labels = records()
        self.broken = broken

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if self.broken and index == 5:
            raise OSError("a secret of record 5")
        if self.broken and index == 6:
            return torch.zeros(9), 1
        return self.inputs[index], int(self.labels[index])


def test_a_shuffled_loader_is_replaced_by_poisson_batches_and_that_is_said() -> None:
    loader = DataLoader(TensorDataset(*records()), batch_size=16, shuffle=True)
    trainer = PrivateTrainer(network(), config(epochs=1))
    with pytest.warns(UserWarning, match="replaced by Poisson"):
        trainer.train(loader)
    assert trainer.plan is not None and trainer.plan.expected_batch == 40  # the config's, not the loader's


def test_any_data_set_with_records_by_number_trains_and_broken_records_are_silent() -> None:
    _, history = train(data=Rows(broken=True), epochs=1)
    assert history.stopped == "finished"
    found = Records.of(Rows(broken=True)).batch(np.array([4, 5, 6, 7]))
    assert [tuple(part.shape) for part in found] == [(2, 3), (2,)]
    empty = Records.of(Rows()).batch(np.array([], dtype=np.int64))
    assert [tuple(part.shape) for part in empty] == [(0, 3), (0,)]


def test_a_record_that_breaks_a_collate_function_is_left_out_alone() -> None:
    def fussy(rows: list[Any]) -> tuple[Tensor, Tensor]:
        if any(float(row[0].abs().max()) > 100 for row in rows):
            raise ValueError("a secret")
        return torch.stack([row[0] for row in rows]), torch.tensor([row[1] for row in rows])

    data = Rows()
    data.inputs[7] = 1000.0
    found = Records.of(DataLoader(data, collate_fn=fussy), quiet=True).batch(np.array([6, 7, 8]))
    assert torch.equal(found[0], data.inputs[[6, 8]])


def test_a_stream_without_records_by_number_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter([])

    with pytest.raises(InvalidParameter, match="own coin"):
        train(data=Stream())


# ------------------------------------------------------------------------------------------------- bad input


def averaged(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def centred(model: nn.Module, batch: Batch) -> Tensor:
    losses = cross_entropy(model, batch)
    return losses - losses.mean()


class Mixer(nn.Module):
    """Subtracts the mean over the batch: no module that one would know by its type."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.inner(values - values.mean(0))
        return found


def batch_normed() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def frozen() -> nn.Module:
    return network().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "loss", "data", "lesson"),
    [
        (network, cross_entropy, (records()[0], records()[1] + 1), "lie outside 0 … 1"),
        (network, cross_entropy, (records()[0], records()[1] - 1), "lie outside 0 … 1"),
        (network, cross_entropy, (torch.randn(ROWS, 7), records()[1]), "cannot read made-up records"),
        (network, cross_entropy, (records()[0], torch.rand(ROWS)), "whole-number label"),
        (network, cross_entropy, (records()[0], records()[1][:50]), "unequal length"),
        (network, averaged, records(), "one value per example"),
        (network, centred, records(), "mixes examples"),
        (Mixer, cross_entropy, records(), "mixes examples"),
        (frozen, cross_entropy, records(), "no trainable parameter"),
        (batch_normed, cross_entropy, records(), "GroupNorm"),
        (network, cross_entropy, (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)), "no records"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_with_a_lesson_before_anything_is_charged(
    model: Any, loss: Any, data: Any, lesson: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidParameter, match=lesson) as refused:
        PrivateTrainer(model(), config(), loss=loss, workspace=tmp_path).train(data)
    assert "tensor(" not in str(refused.value)
    assert not (tmp_path / "ledger.db").exists()


@pytest.mark.parametrize(
    ("values", "lesson"),
    [
        ({"epsilon": None}, "both missing"), ({"epsilon": -1.0}, "greater than 0"), ({"delta": 0.01}, "1/n"),
        ({"batch_size": 401}, "more than the 400"), ({"epochs": 0}, "at least 1"), ({"noise_type": "cauchy"}, "choose"),
        ({"privacy_accounting": "guess"}, "choose"), ({"clipping": "none"}, "choose"), ({"engine": "magic"}, "engine"),
        ({"noise": "quick"}, "choose"), ({"ema_decay": 1.0}, "ema_decay"), ({"max_grad_norm": 0.0}, "max_grad_norm"),
        ({"noise_type": "laplace", "clipping": "per-layer"}, "L1"),
        ({"noise_type": "laplace", "noise": "secure"}, "fast"),
        ({"clipping": "adaptive", "schedule": Growing(clip=2.0)}, "constant"), ({"epsilon": float("nan")}, "finite"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        train(**values)


class Explosive:
    """An optimizer that throws the weights away."""

    def bind(self, parameters: Any) -> Any:
        self.parameters = parameters
        return self

    def step(self, gradient: Any, *, learning_rate: float, noise_variance: float) -> None:
        with torch.no_grad():
            self.parameters[0].fill_(math.inf)


def test_weights_that_overflow_say_that_the_charge_stands() -> None:
    trainer = PrivateTrainer(network(), config(epochs=1))
    with pytest.raises(InvalidParameter, match="the charge stands"):
        trainer.train(records(), optimizer=Explosive())
    assert trainer.get_privacy_spent()[0] > 0


@pytest.mark.parametrize("rate", [3e38, 1e39, 1.1e6, math.inf])
@pytest.mark.some(3)
def test_a_learning_rate_out_of_all_proportion_is_refused_before_anything_is_charged(
    rate: float, tmp_path: Path
) -> None:
    with pytest.raises(InvalidParameter, match="learning_rate"):
        PrivateTrainer(network(), config(epochs=1), workspace=tmp_path).train(records(), learning_rate=rate)
    assert not (tmp_path / "ledger.db").exists()
    _, history = train(epochs=1)  # the control, at 1
    assert history.stopped == "finished"


@pytest.mark.parametrize(
    ("values", "lesson"),
    [
        ([(torch.randn(9, 4), torch.zeros(9, dtype=torch.int64))], "cannot be scored"),
        ([(torch.randn(9, 3),)], "cannot be scored"),
        ([{"x": torch.randn(9, 3)}], "does not come as tensors"),
        (5, "holds no batches"),
        (torch.randn(9, 3), "holds no batches"),
        ([], "holds no records"),
        ([(torch.randn(9, 3), torch.zeros(3, dtype=torch.int64))], "unequal length"),
        (TensorDataset(torch.randn(9, 3), torch.zeros(9, dtype=torch.int64)), "holds no batches"),
        (iter([(torch.randn(9, 3), torch.zeros(9, dtype=torch.int64))]), "only once"),
    ],
)
@pytest.mark.some(4)
def test_validation_records_that_cannot_be_scored_are_refused_before_anything_is_charged(
    values: Any, lesson: str, tmp_path: Path
) -> None:
    trainer = PrivateTrainer(network(), config(epochs=1), workspace=tmp_path, selfcheck=False)
    with pytest.raises(InvalidParameter, match=lesson):
        trainer.train(records(), values)
    assert not (tmp_path / "ledger.db").exists()
    good = (torch.randn(9, 3), torch.zeros(9, dtype=torch.int64))
    assert trainer.train(records(), [good, good]).metrics["accuracy"] >= 0
    trainer.close()


def test_a_metric_that_raises_is_heard_of_before_anything_is_charged(tmp_path: Path) -> None:
    def broken(model: nn.Module) -> dict[str, float]:
        raise KeyError("no such file")

    with pytest.raises(KeyError):
        PrivateTrainer(network(), config(epochs=1), workspace=tmp_path, metrics=broken).train(records())
    assert not (tmp_path / "ledger.db").exists()


def test_training_records_are_not_taken_for_validation_records_and_other_rows_of_theirs_are() -> None:
    inputs, labels = records()
    dataset = TensorDataset(inputs, labels)
    loader = DataLoader(dataset, batch_size=40)
    mine, theirs = Subset(dataset, range(300)), Subset(dataset, range(300, 400))

    def scored(training: Any, validation: Any) -> bool:
        trainer = PrivateTrainer(network(), config(epochs=1), selfcheck=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "accuracy" in trainer.train(training, validation).metrics

    for training, validation in (
        (loader, loader),
        (loader, DataLoader(TensorDataset(inputs, labels), batch_size=10)),
        ((inputs, labels), (inputs, labels)),
        ((inputs, labels), [(inputs[5:9], labels[5:9])]),
        (mine, DataLoader(Subset(dataset, range(299, 310)))),
        (dataset, DataLoader(theirs)),
    ):
        with pytest.raises(InvalidParameter, match="holds training records"):
            scored(training, validation)
    assert scored(mine, DataLoader(theirs, batch_size=20))
    assert scored((inputs[:300], labels[:300]), (inputs[300:], labels[300:]))
    assert scored((inputs, labels), (inputs.clone(), labels))  # declared unprotected by whoever copies them


# ------------------------------------------------------------------------------------ models that are sound


class Drawing(nn.Module):
    """Draws random numbers in forward()."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.first, self.last, self.draw, self.p = nn.Linear(3, 4), nn.Linear(4, 2), draw, 3.0

    def forward(self, rows: Tensor) -> Tensor:
        assert self.p == 3.0, "an exponent, say, and no dropout"
        found: Tensor = self.last(self.draw(self.first(rows)))
        return found


def draws() -> dict[str, Any]:
    functional = nn.functional
    return {
        "dropout": lambda h: functional.dropout(h, 0.5),
        "noise": lambda h: h + torch.randn_like(h),
        "alpha": nn.AlphaDropout(0.3),
        "leaky": nn.RReLU(),
        "gumbel": functional.gumbel_softmax,
        "normal": lambda h: h + torch.normal(torch.zeros_like(h), 1.0),
        "uniform": lambda h: h * torch.empty_like(h).uniform_(0.5, 1.5),
    }


@pytest.mark.parametrize("name", draws())
@pytest.mark.some(2)
def test_a_model_that_draws_random_numbers_passes_the_check_before_training(name: str) -> None:
    trainer = PrivateTrainer(Drawing(draws()[name]), config(epochs=1))
    trainer.train(records())
    assert trainer.guarantee().epsilon > 0 and all(bool(p.isfinite().all()) for p in trainer.model.parameters())


def test_the_control_a_model_that_draws_whole_numbers_or_orders_cannot_be_replayed() -> None:
    def shuffled(hidden: Tensor) -> Tensor:  # of so many orders that two are never alike
        return hidden * (1 + torch.randperm(4096)[: hidden.shape[1]] / 4096)

    with pytest.raises(ClaimContradicted, match="two different sums"):
        PrivateTrainer(Drawing(shuffled), config(epochs=1)).train(records())


class Kept(nn.Module):
    """Keeps its norm in eval mode whatever it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def train(self, mode: bool = True) -> Kept:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, rows: Tensor) -> Tensor:
        found: Tensor = self.last(self.norm(self.first(rows)))
        return found


def test_a_batch_norm_in_eval_mode_stays_there_and_its_statistics_stay_what_they_were() -> None:
    frozen = batch_normed()
    frozen[1].eval()  # type: ignore[index]
    asleep = batch_normed().eval()
    for model in (frozen, Kept(), asleep):
        modes = [module.training for module in model.modules()]
        PrivateTrainer(model, config(epochs=2)).train(records(), records(50))
        assert [module.training for module in model.modules()] == modes
        norm = next(module for module in model.modules() if isinstance(module, nn.BatchNorm1d))
        assert norm.running_mean is not None and not norm.running_mean.any()
    with pytest.raises(InvalidParameter, match="GroupNorm"):
        PrivateTrainer(batch_normed(), config())  # the control


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_refused_in_words(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidParameter, match="use float32; autocast is fine"):
        PrivateTrainer(network().to(dtype), config())
    PrivateTrainer(network().to(torch.float64), config())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidParameter, match=r"torch\.nn\.Module"):
        PrivateTrainer("model", config())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values", [{"noise_type": "laplace"}, {}, {"clipping": "adaptive", "count_noise": 40.0, "clip_learning_rate": 0.01}]
)
def test_dp_adam_hears_the_variance_that_the_gradient_has(values: dict[str, Any]) -> None:
    stated, seen = [], []

    class Spy(Explosive):
        def step(self, gradient: Any, *, learning_rate: float, noise_variance: float) -> None:
            stated.append(noise_variance)
            seen.append(float(torch.cat([part.flatten() for part in gradient]).double().square().mean()))

    model = nn.Linear(40, 25)
    data = (torch.randn(400, 40, generator=torch.Generator().manual_seed(0)), torch.arange(400) % 25)
    trainer = PrivateTrainer(model, config(epsilon=None, noise_multiplier=20.0, epochs=10, **values), selfcheck=False)
    trainer.train(data, optimizer=Spy())
    # of 100 steps in 1025 coordinates: the standard error is below 0.8 %, and the sum adds less than 0.3 %
    assert sum(seen) / sum(stated) == pytest.approx(1.0, abs=0.06)


def test_before_training_there_is_nothing_to_guarantee() -> None:
    with pytest.raises(QuietsumError, match="train"):
        PrivateTrainer(network(), config()).guarantee()


# ---------------------------------------------------------------------------------------------------- files


def test_model_plan_and_spend_are_saved_together_and_come_back(tmp_path: Path) -> None:
    trainer, _ = train(epochs=1)
    trainer.save(tmp_path / "model.safetensors")
    other = PrivateTrainer(network(seed=9), config())
    guarantee = other.load(tmp_path / "model.safetensors")
    assert guarantee == trainer.guarantee()
    for one, two in zip(trainer.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    from safetensors import safe_open

    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["quietsum"])
    assert about["plan"]["expected_batch"] == 40 and about["spent"]["unit"] == "record"


def test_a_file_that_was_altered_or_holds_another_model_is_refused(tmp_path: Path) -> None:
    trainer, _ = train(epochs=1)
    path = tmp_path / "model.safetensors"
    trainer.save(path)
    with pytest.raises(CorruptState, match="another model"):
        PrivateTrainer(nn.Linear(3, 2), config()).load(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptState, match="not what was saved"):
        trainer.load(path)
    path.write_bytes(bytes(content)[:-10])
    with pytest.raises(CorruptState):
        trainer.load(path)


# ------------------------------------------------------------------------------------------- a loop by hand


def private_loop(**values: Any) -> tuple[nn.Module, Any, Any]:
    model = network()
    return make_private(model, torch.optim.SGD(model.parameters(), lr=1.0), records(), config=config(**values))


def test_a_loop_by_hand_spends_exactly_its_plan() -> None:
    model, optimizer, loader = private_loop(epochs=3)
    before = [p.detach().clone() for p in model.parameters()]
    sizes = []
    for _ in range(3):
        for inputs, _labels in loader:
            sizes.append(len(inputs))
            optimizer.step()
    assert len(sizes) == 30 and len(set(sizes)) > 5
    assert 3.9 < optimizer.guarantee().epsilon <= 4.0 and optimizer.get_privacy_spent()[0] <= 4.0
    assert not torch.equal(before[0], next(model.parameters()))
    with pytest.raises(BudgetExhausted):
        next(iter(loader))


def test_a_batch_that_was_drawn_must_be_used_once_and_with_our_gradient() -> None:
    model, optimizer, loader = private_loop()
    with pytest.raises(QuietsumError, match="not used"):
        for _ in loader:
            pass
    _, optimizer, loader = private_loop()
    with pytest.raises(QuietsumError, match="no drawn batch"):
        optimizer.step()
    model, optimizer, loader = private_loop()
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        with pytest.raises(QuietsumError, match=r"leave out loss\.backward"):
            optimizer.step()
        break


def test_drawing_is_charging() -> None:
    _, optimizer, loader = private_loop()
    assert optimizer.get_privacy_spent()[0] == 0
    next(iter(loader))
    assert optimizer.get_privacy_spent()[0] > 0


def test_a_training_has_the_noise_of_a_plan_unless_it_says_otherwise() -> None:
    from quietsum.plan.promises import PrivacyPlan, RecordPlan

    plan = PrivacyPlan(record=RecordPlan(epsilon=1, delta=1e-4))
    assert PrivacyConfig(epsilon=1.0).noise == plan.noise == "secure"
    assert PrivacyConfig(epsilon=1.0, noise_type="laplace").noise == "fast"  # it has no other
    with pytest.raises(InvalidParameter, match="has no Laplace noise"):
        PrivacyConfig(epsilon=1.0, noise_type="laplace", noise="secure")
