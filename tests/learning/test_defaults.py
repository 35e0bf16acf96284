"""What training chooses where nothing is stated, and the survey of classes that it is paid with a step's own event."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from quietsum.errors import CorruptState
from quietsum.learning import PrivacyConfig, PrivateTrainer
from quietsum.learning.callbacks import StopTraining
from quietsum.learning.clipping import Flat
from quietsum.learning.config import plan_training
from quietsum.learning.defaults import (
    Balance,
    Descending,
    choose_length,
    choose_rate,
    count_survey_steps,
    find_score_bias,
    fit_shift,
    settle_config,
    weigh_classes,
)
from quietsum.learning.rows.input_scale import PACES, PLACES, choose_pace, count_lengths, count_seen
from quietsum.learning.rows.records import Records
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms import FAILURE_PER_DRAW
from quietsum.tasks.scores import roc_auc


def skewed(rows: int, share: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes two deviations apart, far from the origin, the second one rare."""
    generator = torch.Generator().manual_seed(seed)
    labels = (torch.rand(rows, generator=generator) < share).to(torch.int64)
    inputs = torch.randn(rows, 6, generator=generator) + 1.0
    inputs[:, 0] += 2.0 * labels
    return inputs, labels


def auc_of(model: nn.Module, records: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.no_grad():
        scores = model(records[0])
    return roc_auc(records[1].numpy(), (scores[:, 1] - scores[:, 0]).double().numpy())


@pytest.mark.parametrize("size", [200, 300, 2_500, 60_000, 300_000])
def test_a_chosen_plan_has_about_two_hundred_steps_of_no_more_records_than_there_are(size: int) -> None:
    plan = plan_training(PrivacyConfig(epsilon=3.0, delta=1e-9), size=size)
    assert 190 <= plan.steps <= 220
    assert plan.expected_batch <= size
    assert plan.rate * plan.steps >= 19


def test_few_records_take_few_steps_of_all_of_them() -> None:
    assert [choose_length(size, None, None) for size in (1, 10, 50, 199)] == [
        (1, 20),
        (10, 20),
        (50, 50),
        (199, 199),
    ]


def test_what_is_stated_stays() -> None:
    config = settle_config(PrivacyConfig(epsilon=1.0, batch_size=32, epochs=3, max_grad_norm=0.5), 1000, labelled=False)
    assert (config.batch_size, config.epochs, config.max_grad_norm, config.clipping) == (32, 3, 0.5, "flat")
    assert choose_length(1000, 50, None) == (50, 10)
    assert settle_config(PrivacyConfig(epsilon=1.0), 1000, labelled=False).clipping == "automatic"
    assert settle_config(PrivacyConfig(epsilon=1.0), 1000).clipping == "flat"
    assert settle_config(PrivacyConfig(epsilon=1.0, noise_type="laplace"), 1000, labelled=False).clipping == "flat"


def test_the_choice_is_a_function_of_the_declared_size_alone() -> None:
    config = PrivacyConfig(epsilon=3.0, public_size=1000)
    assert settle_config(config, 900) == settle_config(config, 1100)
    assert plan_training(config, size=900).stages == plan_training(config, size=1100).stages


def test_the_rate_falls_on_a_line_and_noise_walks_as_far_in_any_number_of_steps() -> None:
    for steps in (50, 200, 800):
        rate = Descending(peak=choose_rate(steps), steps=steps)
        walked = math.sqrt(sum(rate(step) ** 2 for step in range(steps)))
        assert walked == pytest.approx(0.8 / math.sqrt(3), rel=0.02)
    assert Descending(peak=1.0, steps=4)(3) == 0.25


def test_a_short_plan_over_tokens_has_no_longer_steps_and_no_chosen_plan_is_so_short() -> None:
    assert choose_rate(10, tokens=True) == choose_rate(150, tokens=True) == choose_rate(150) < choose_rate(10)
    assert choose_rate(151, tokens=True) == choose_rate(151)
    for size in (*range(200, 3000, 7), *range(3000, 600_000, 9973)):
        chosen = settle_config(PrivacyConfig(noise_multiplier=1.0, public_size=size), size)
        assert chosen.epochs is not None and chosen.batch_size is not None
        assert chosen.epochs * round(size / chosen.batch_size) >= 150


def test_a_trainer_takes_the_rate_for_tokens_where_inputs_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def watch(steps: int, *, tokens: bool = False) -> float:
        asked.append(tokens)
        return choose_rate(steps, tokens=tokens)

    monkeypatch.setattr("quietsum.learning.trainer.choose_rate", watch)
    labels = torch.arange(40) % 2
    settings = PrivacyConfig(epsilon=8.0, delta=1e-3, epochs=1, batch_size=20)
    looked = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    PrivateTrainer(looked, settings, selfcheck=False).train((torch.arange(80).view(40, 2) % 5, labels))
    assert set(asked) == {True}
    PrivateTrainer(nn.Linear(2, 2), settings, selfcheck=False).train((torch.randn(40, 2), labels))
    assert set(asked) == {True, False}


# ------------------------------------------------------------------------------------------------ class balance


def test_a_survey_moves_by_the_sensitivity_for_one_record_and_is_noised_like_a_gradient() -> None:
    model = nn.Linear(3, 2)
    step = PrivateStep.build(
        model, cross_entropy, Flat(max_norm=0.5), noise_multiplier=2.0, rate=1.0, expected_batch=1.0, engine="vmap"
    )
    step.balance = Balance(2)
    batch = (torch.zeros(3, 3), torch.tensor([0, 1, 7]))
    assert step.balance.one_hot(batch).tolist() == [1.0, 1.0, 1.0]
    rows = []
    for _ in range(400):
        step.balance.counts.zero_()
        step.survey(batch)
        rows.append(step.balance.counts.clone())
    found = torch.stack(rows)
    assert found.mean(0).tolist() == pytest.approx([1.0, 1.0, 1.0], abs=0.4)
    assert found.std(0).tolist() == pytest.approx([2.0, 2.0, 2.0], rel=0.15)  # σ of one record, whatever the clip


def test_a_record_that_cannot_be_counted_takes_no_other_one_out_of_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    step = PrivateStep.build(
        nn.Linear(3, 2), cross_entropy, Flat(max_norm=1.0), noise_multiplier=1e-3, rate=1.0, expected_batch=1.0,
        engine="vmap",
    )  # fmt: skip
    step.balance, count = Balance(2), Balance.one_hot

    def broken(self: Balance, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if bool((batch[1] == 7).any()):
            raise ZeroDivisionError
        return count(self, batch)

    monkeypatch.setattr(Balance, "one_hot", broken)
    step.survey((torch.zeros(4, 3), torch.tensor([0, 1, 7, 1])))
    assert step.balance.counts.tolist() == pytest.approx([1.0, 2.0, 0.0], abs=0.1)


def test_weights_lessen_what_a_record_can_do_and_never_add_to_it() -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)  # every record's gradient is longer than the clip
    step = PrivateStep.build(
        model, cross_entropy, Flat(max_norm=0.5), noise_multiplier=1.0, rate=1.0, expected_batch=1.0, engine="vmap"
    )
    batch = (10 * torch.randn(5, 3), torch.tensor([0, 0, 0, 1, 9]))
    plain = [step.deterministic(tuple(part[i : i + 1] for part in batch)) for i in range(4)]
    step.balance = Balance(2)
    step.balance.counts += torch.tensor([4000.0, 1000.0, 0.0])
    step.balance.finish(steps=1, noise=1.0)
    assert step.balance.weights is not None
    assert step.balance.weights.tolist() == [0.25, 1.0]
    total = [torch.zeros_like(part) for part in step.engine.parameters]
    for i, own in enumerate(plain):
        weight = 0.25 if i < 3 else 1.0
        total = [whole + weight * part for whole, part in zip(total, own, strict=True)]
    for found, wanted in zip(step.deterministic(batch), total, strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)
    alone = step.deterministic(tuple(part[:1] for part in batch))
    assert math.sqrt(sum(float(part.square().sum()) for part in alone)) == pytest.approx(0.125, rel=1e-4)


def test_shares_within_the_noise_weigh_nothing() -> None:
    assert weigh_classes(torch.tensor([995.0, 5.0, 0.0]), 6.0).tolist() == [1.0, 1.0]
    assert weigh_classes(torch.tensor([995.0, 5.0, 500.0]), 3.0).tolist() == [1.0, 1.0]  # labels that are no classes
    many = weigh_classes(torch.tensor([900.0, 90.0, 9.0, 0.0, 0.0]), 3.0)
    assert many.min() >= 1 / 16 / 0.9 / 1.5 and many.max() == 1  # no class silences the others
    assert many[3] == 1  # a class that is not there


def test_the_bias_of_the_scores_is_found_and_another_is_not_taken_for_it() -> None:
    rows = (torch.randn(4, 5), torch.tensor([0, 1, 0, 1]))
    model = nn.Sequential(nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 2))
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    assert find_score_bias(model, rows, 2) is model[2].bias
    assert all(torch.equal(old, new) for old, new in zip(kept, model.parameters(), strict=True))
    assert find_score_bias(nn.Sequential(nn.Linear(5, 2), nn.Tanh()), rows, 2) is None
    assert find_score_bias(nn.Linear(5, 2, bias=False), rows, 2) is None
    single = nn.Linear(5, 1)
    assert find_score_bias(single, rows, 2) is single.bias
    shift = torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert fit_shift(single.bias, shift).tolist() == [-2.0]


def test_defaults_learn_where_one_class_is_rare_and_a_plain_descent_does_not() -> None:
    torch.manual_seed(0)
    train, test = skewed(20_000, 0.01), skewed(5_000, 0.05, seed=1)
    model = nn.Linear(6, 2)
    trainer = PrivateTrainer(model, PrivacyConfig(epsilon=3.0, noise="fast"), selfcheck=False)
    history = trainer.train(train)
    assert auc_of(model, test) > 0.85
    assert "weights of the classes" in trainer.chosen
    assert history.guarantee.epsilon <= 3.0
    with torch.no_grad():
        rare = model(train[0]).softmax(-1)[:, 1].mean()
    assert float(rare) < 0.15  # the scores fit the classes' own shares again; balanced ones would say about a third
    control = nn.Linear(6, 2)
    plain = PrivateTrainer(control, PrivacyConfig(epsilon=3.0, noise="fast"), selfcheck=False)
    plain.train(train, learning_rate=0.01, optimizer="sgd")
    assert "weights" not in plain.chosen
    assert auc_of(control, test) < auc_of(model, test)


def test_a_survey_is_part_of_the_plan_and_costs_nothing_beside_it() -> None:
    train = skewed(400, 0.4)
    trainer = PrivateTrainer(nn.Linear(6, 2), PrivacyConfig(epsilon=3.0, noise="fast"), selfcheck=False)
    trainer.train(train)
    plan = trainer.plan
    assert plan is not None
    assert count_survey_steps(plan.steps) == 10
    same = PrivateTrainer(nn.Linear(6, 2), PrivacyConfig(epsilon=3.0, noise="fast"), selfcheck=False)
    same.train(train, learning_rate=0.1)
    assert same.plan is not None
    assert plan.event() == same.plan.event()


def test_the_failure_of_noise_is_paid_for_the_wider_of_gradient_and_count(tmp_path: Path) -> None:
    from quietsum.tasks.models import binary_cross_entropy

    model, train = nn.Linear(1, 1, bias=False), skewed(300, 0.3)
    trainer = PrivateTrainer(
        model, PrivacyConfig(epsilon=3.0), loss=binary_cross_entropy, workspace=tmp_path, selfcheck=False
    )
    trainer.train((train[0][:, :1], train[1]))
    assert trainer._books is not None and trainer.plan is not None and trainer._balance is not None
    found = sum(
        charge["failure"]
        for entry in trainer._books.ledger.entries()
        if str(entry.kind) == "reserve"
        for charge in entry.body["charges"]
    )
    numbers = 3 + PLACES  # two classes, the others, and lengths
    assert found == pytest.approx(numbers * trainer.plan.steps * FAILURE_PER_DRAW, rel=1e-9)
    trainer.close()


def test_a_killed_run_goes_on_with_its_balance(tmp_path: object) -> None:
    class Killed(BaseException):
        pass

    seen = []

    def watch(epoch: object) -> None:
        seen.append(epoch)
        if len(seen) == 2:
            raise Killed

    train, config = skewed(4_000, 0.02), PrivacyConfig(epsilon=8.0, noise="fast")
    options = {"workspace": tmp_path, "run": "one", "selfcheck": False, "checkpoint_every": 20}
    first = PrivateTrainer(nn.Linear(6, 2), config, watch=watch, **options)  # type: ignore[arg-type]
    with pytest.raises(Killed):
        first.train(train)
    first.close()
    again = PrivateTrainer(nn.Linear(6, 2), config, **options)  # type: ignore[arg-type]
    again.train(train, resume=True)
    assert "weights of the classes" in again.chosen
    assert auc_of(again.model, skewed(4_000, 0.1, seed=5)) > 0.8
    again.close()


STATED: tuple[dict[str, str], ...] = ({"optimizer": "adam"}, {})


@pytest.mark.parametrize(("first", "then"), [STATED, STATED[::-1]])
def test_a_run_keeps_its_balance_or_the_lack_of_one_however_it_is_gone_on_with(
    tmp_path: Path, first: dict[str, str], then: dict[str, str]
) -> None:
    def stop(epoch: object) -> None:
        raise StopTraining

    train, config = skewed(600, 0.1), PrivacyConfig(epsilon=8.0, noise="fast")
    trainer = PrivateTrainer(nn.Linear(6, 2), config, workspace=tmp_path, selfcheck=False)
    trainer.train(train, callbacks=stop, **first)  # type: ignore[arg-type]
    trainer.close()
    again = PrivateTrainer(nn.Linear(6, 2), config, workspace=tmp_path, selfcheck=False)
    again.train(train, resume=True, **then)  # type: ignore[arg-type]
    assert ("the classes' shares" in again.chosen) == ("the classes' shares" in trainer.chosen) == (not first)
    again.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", [1.0, 1000.0]), ("weights", [1.0, -1.0]), ("weights", [1.0, math.nan]), ("weights", [1.0]),
        ("counts", [1.0, math.inf, 0.0]), ("counts", [[1.0, 2.0, 3.0]]),
    ],
)  # fmt: skip
def test_a_checkpoint_that_weighs_a_record_by_more_than_its_noise_covers_is_refused(
    name: str, value: list[float]
) -> None:
    balance = Balance(2)
    balance.counts += torch.tensor([900.0, 100.0, 0.0])
    balance.finish(steps=1, noise=1.0)
    kept = balance.state()
    assert Balance.of_state(kept).state()["weights"].tolist() == kept["weights"].tolist()
    with pytest.raises(CorruptState, match="restore it from a backup"):
        Balance.of_state({**kept, name: torch.tensor(value)})
    del kept[name]
    with pytest.raises(CorruptState, match="restore it from a backup"):
        Balance.of_state(kept)


# ---------------------------------------------------------------------------------------------- input scale


@pytest.mark.parametrize("length", [1e-9, 0.3, 1.0, 40.0, 1e9])
def test_a_record_adds_one_to_one_number_of_every_count(length: float) -> None:
    balance = Balance(2, seen=3)
    row = (torch.full((1, 3), length / math.sqrt(3)), torch.tensor([1]))
    places = []
    for _ in range(10):
        found = balance.one_hot(row)
        assert found.sum() == found.max() == 1
        places.append(int(found.argmax()))
        balance.take(torch.ones_like(found))  # noise beside what was asked for is not kept
    assert [place > 2 for place in places] == [False, False, False, False, True] * 2
    assert balance.counts[:3].tolist() == [8.0] * 3
    assert balance.counts[3:].tolist() == [2.0] * PLACES


def test_inputs_that_are_no_numbers_count_nowhere() -> None:
    rows = torch.tensor([[math.nan, 0.0], [math.inf, 1.0], [0.0, 0.0], [3.0, 4.0]])
    found = count_lengths(rows, 2)
    assert found.sum() == 1
    assert int(found.argmax()) == 2 + 6  # 2²
    assert count_lengths(rows[:0], 2).tolist() == [0.0] * PLACES


def test_the_pace_falls_with_the_length_and_noise_has_none() -> None:
    def pace_of(power: int) -> float:
        counts = torch.zeros(PLACES)
        counts[power + 6] = 500.0
        return choose_pace(counts, seen=100.0)

    assert [pace_of(power) for power in (-6, 2, 10)] == [PACES[1], 1.0, PACES[0]]
    paces = [pace_of(power) for power in range(-6, 11)]
    assert paces == sorted(paces, reverse=True)
    assert choose_pace(torch.full((PLACES,), 99.0), seen=100.0) == 1.0


def test_lengths_are_asked_for_where_they_say_something_about_the_first_layer() -> None:
    numbers = Records.of((torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)))
    words = Records.of((torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)))
    assert count_seen(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), numbers) == 3
    assert count_seen(nn.Conv2d(3, 8, 5), numbers) == 75
    assert count_seen(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), numbers) == 0
    assert count_seen(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), words) == 0
    frozen = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2))
    assert count_seen(frozen, numbers) == 0  # its second layer does not see the inputs


def test_short_inputs_are_learnt_as_fast_as_usual_ones() -> None:
    train, test = skewed(2_000, 0.4), skewed(2_000, 0.4, seed=5)

    def trained(scale: float) -> tuple[PrivateTrainer, float]:
        torch.manual_seed(0)
        model = nn.Linear(6, 2)
        trainer = PrivateTrainer(model, PrivacyConfig(epsilon=3.0, noise="fast"), selfcheck=False)
        trainer.train((train[0] * scale, train[1]))
        return trainer, auc_of(model, (test[0] * scale, test[1]))

    short, usual = trained(0.01), trained(1.0)
    assert "the rate × 3 for the length of the inputs" in short[0].chosen
    assert short[1] > usual[1] - 0.05


def test_a_run_from_before_lengths_were_asked_for_goes_on_without_them() -> None:
    balance = Balance(2)
    balance.counts += torch.tensor([900.0, 100.0, 0.0])
    balance.finish(steps=1, noise=1.0)
    kept = {name: part for name, part in balance.state().items() if name in ("counts", "weights", "done")}
    again = Balance.of_state(kept)
    assert again.pace == 1.0
    assert again.one_hot((torch.ones(1, 6), torch.tensor([0]))).tolist() == [1.0, 0.0, 0.0]


def test_a_survey_goes_on_where_it_stopped() -> None:
    balance, row = Balance(2, seen=6), (torch.ones(1, 6), torch.tensor([0]))
    for _ in range(4):
        balance.take(balance.one_hot(row))
    again = Balance.of_state(balance.state())
    assert int(again.one_hot(row).argmax()) > 2  # the fifth is about lengths
    for name, value in (("pace", 3.5), ("pace", math.nan), ("asked", -1), ("asked", [1])):
        with pytest.raises(CorruptState, match="restore it from a backup"):
            Balance.of_state({**balance.state(), name: torch.tensor(value)})


def test_classes_are_added_up_with_one_rounding_more() -> None:
    """Secure noise allows for the rounding of one sum; a sum for each weight in single precision would round more."""
    generator = torch.Generator().manual_seed(4)
    model = nn.Linear(50, 12)
    step = PrivateStep.build(
        model, cross_entropy, Flat(max_norm=1.0), noise_multiplier=1.0, rate=0.1, expected_batch=600.0, engine="vmap"
    )
    step.balance = Balance(12)
    step.balance.counts += torch.cat([2.0 ** -torch.arange(12, dtype=torch.float64) * 1e6, torch.zeros(1)])
    step.balance.finish(steps=1, noise=1e-3)
    batch = torch.randn(600, 50, generator=generator), torch.randint(0, 12, (600,), generator=generator)
    parts = step.balance.parts(batch)
    assert len(parts) > 4
    for place, found in enumerate(step.deterministic(batch)):
        terms = [step.engine.clipped_sum(rows)[place].clone().double() * weight for weight, rows in parts]
        assert torch.equal(found, sum(terms[1:], terms[0]).float())


def test_an_empty_set_of_a_declared_size_trains_on_noise_alone() -> None:
    config = PrivacyConfig(epsilon=3.0, public_size=1000, noise="fast")
    trainer = PrivateTrainer(nn.Linear(6, 2), config, selfcheck=False)
    trainer.train((torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)))
    assert trainer.plan is not None
    assert np.isfinite(trainer.guarantee().epsilon)
