"""The digits task: a public split, records normalised by themselves, and a private model that is good enough."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quietsum.errors import InvalidParameter
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.engines.protocol import rows_of
from quietsum.learning.trainer import PrivateTrainer
from quietsum.tasks.gallery import digits
from quietsum.tasks.gallery.digits import DigitsTask, choose_hold_out
from quietsum.tasks.registry import TRAINABLE, trainable_task


def test_the_split_is_a_rule_a_quarter_of_every_digit_and_nobody_is_on_both_sides() -> None:
    _, labels = digits._rows()
    held = choose_hold_out(labels)
    assert np.array_equal(held, choose_hold_out(labels.copy()))
    for label in range(10):
        assert held[labels == label].mean() == pytest.approx(0.25, abs=0.01)
    task = DigitsTask()
    assert task.size == int((~held).sum()) == rows_of(task.records())
    assert task.size + int(held.sum()) == 1797


def test_another_pixel_changes_its_own_record_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = DigitsTask().records()[0]
    pixels, labels = digits._rows()
    changed = pixels.copy()
    row = int(np.flatnonzero(~choose_hold_out(labels))[17])
    changed[row] = changed[row][::-1]
    monkeypatch.setattr(digits, "_rows", lambda: (changed, labels))
    after = DigitsTask().records()[0]
    moved = (before != after).any(dim=1)
    assert torch.equal(moved.nonzero().flatten(), torch.tensor([17]))


def test_records_are_finite_even_when_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    _, labels = digits._rows()
    monkeypatch.setattr(digits, "_rows", lambda: (np.zeros((1797, 64)), labels))
    assert bool(torch.isfinite(DigitsTask().records()[0]).all())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("data", np.nan, "NaN or infinite pixels, first in row 0"), ("target", 10, "row 3 lies outside 0 … 9"),
        ("data", None, "are not n × 64"), ("target", 8, "no example of class 9"),
    ],
)  # fmt: skip
def test_rows_of_another_kind_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float | None, said: str
) -> None:
    import sklearn.datasets

    found = sklearn.datasets.load_digits()
    digits._rows.__wrapped__()  # the control
    if name == "data" and value is None:
        found.data = found.data[:, :63]
    elif name == "data":
        found.data[0, 5] = value
    else:
        found.target[found.target == 9 if value == 8 else 3] = value
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: found)
    with pytest.raises(InvalidParameter, match=said):
        digits._rows.__wrapped__()


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_both_networks_train_and_say_on_which_data_they_are_scored(network: str) -> None:
    task = DigitsTask(network=network)
    trainer = PrivateTrainer(
        task.model(), PrivacyConfig(epsilon=3.0, batch_size=128, epochs=2, public_size=task.size), loss=task.loss
    )
    trainer.train(task.records(), learning_rate=0.5)
    scored = task.evaluate(trainer.model)
    assert scored.on == "445 published hold-out rows" and 0.2 < scored.values["accuracy"] <= 1


def test_at_epsilon_three_the_private_model_is_right_nine_times_in_ten() -> None:
    """benchmarks/mnist.py prints mean and deviation; this bound lies many deviations below the mean."""
    task = DigitsTask()
    config = PrivacyConfig(epsilon=3.0, public_size=task.size, **task.settings.training)
    trainer = PrivateTrainer(task.model(), config, loss=task.loss)
    trainer.train(task.records(), learning_rate=task.settings.learning_rate, optimizer=task.settings.optimizer)
    assert task.evaluate(trainer.model).values["accuracy"] > 0.90
    guarantee = trainer.guarantee()
    assert guarantee.epsilon <= 3.0 and guarantee.delta <= 1 / (10 * task.size)


def test_the_control_an_untrained_model_is_right_once_in_ten() -> None:
    torch.manual_seed(0)
    task = DigitsTask()
    assert task.evaluate(task.model()).values["accuracy"] < 0.4


def test_names() -> None:
    assert {"digits", "mnist"} <= set(TRAINABLE) and trainable_task("digits").name == "digits"
    with pytest.raises(InvalidParameter, match="mlp"):
        DigitsTask(network="transformer")
    with pytest.raises(InvalidParameter, match="importable"):
        trainable_task("no_such_module:Task")
    with pytest.raises(InvalidParameter, match="lacks size, settings"):
        trainable_task("tiny:TinyTask")


def test_settings_are_chosen_on_rows_that_neither_train_nor_test() -> None:
    whole, part = DigitsTask(), DigitsTask(evaluate_on="validation")
    everyone = {tuple(row) for row in whole.records()[0].tolist()}
    trained = {tuple(row) for row in part.records()[0].tolist()}
    assert trained < everyone
    assert part.size == len(part.records()[0]) < whole.size
    said = part.evaluate(part.model()).on
    assert said == f"{whole.size - part.size} published validation rows"
