"""What people really pass: it means the same as tensors, or one sentence says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from quietsum.errors import InvalidParameter
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.optimizers import SGD, Adam
from quietsum.learning.rows.inputs import CriterionLoss, as_loss, as_records, as_rule, join_labels, rate_of
from quietsum.learning.step import cross_entropy
from quietsum.learning.trainer import PrivateTrainer
from quietsum.mechanisms import randomness_for_tests

ROWS = 80


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")


def arrays(count: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % 2
    return rng.normal(size=(count, 3)) + 3.0 * labels[:, None], labels


def trainer(model: nn.Module | None = None, **values: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    config = PrivacyConfig(noise_multiplier=1.0, epochs=1, batch_size=40, noise="fast")
    return PrivateTrainer(
        nn.Linear(3, 2) if model is None else model, config, selfcheck=False, rng=randomness_for_tests(1), **values
    )


def weights(made: PrivateTrainer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in made.model.parameters()])


def trained(*data: Any, **options: Any) -> Tensor:
    made = trainer()
    made.train(*data, **options)
    return weights(made)


# ------------------------------------------------------------------------------------------------------- records


def test_arrays_and_tables_train_the_very_model_that_tensors_train() -> None:
    inputs, labels = arrays()
    ready = (torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels))
    expected = trained(ready)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(inputs, columns=["a", "b", "c"])
    for data in (
        ((inputs, labels),), (inputs, labels), (inputs, labels.tolist()), ready, ([inputs, labels],),
        (table, pandas.Series(labels)), ((table, labels),), (inputs[:, ::-1][:, ::-1], labels.astype(np.int8)),
    ):  # fmt: skip
        assert torch.equal(trained(*data), expected)
    assert not torch.equal(trained((inputs + 0.5, labels)), expected)  # and other records another one


def test_numbers_take_the_type_of_the_model_and_whole_ones_stay_whole() -> None:
    inputs, labels = arrays(4)
    converted = as_records((inputs, labels.astype(np.uint8), labels > 0), dtype=torch.float64)
    assert [part.dtype for part in converted] == [torch.float64, torch.int64, torch.int64]
    made = trainer(nn.Linear(3, 2).double())
    made.train(*arrays())
    assert made.model.weight.dtype is torch.float64


def test_an_array_that_cannot_be_written_to_is_left_alone() -> None:
    inputs = arrays(4)[0].astype(np.float32)
    inputs.flags.writeable = False
    (converted,) = as_records((inputs,))
    converted += 1
    assert np.array_equal(inputs, arrays(4)[0].astype(np.float32))


def test_columns_of_all_kinds_of_numbers_and_empty_cells_become_numbers() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1, 2], "b": [True, False], "c": pandas.array([3, None], dtype="Int64")})
    (converted,) = as_records((table,))
    assert converted.dtype is torch.float32
    assert converted.nan_to_num(-1.0).tolist() == [[1.0, 1.0, 3.0], [2.0, 0.0, -1.0]]


def test_what_is_neither_arrays_nor_tables_passes_through_untouched() -> None:
    listed = [(torch.zeros(3), 0)]
    for data in (listed, torch.zeros(3), None, [], (torch.zeros(2, 3), torch.zeros(2)), {"a": 1}):
        assert as_records(data) is data
    assert join_labels(listed, ([0],)) == (listed, [0])


def refused(*data: Any, **options: Any) -> str:
    made = trainer()
    with pytest.raises(InvalidParameter) as caught:
        made.train(*data, **options)
    assert made.plan is None  # nothing was planned, so nothing was charged
    return str(caught.value)


def test_words_are_refused_with_what_to_write() -> None:
    inputs, labels = arrays(4)
    assert re.search(r"data\[1\] = .*numbers; write classes as 0, 1, 2", refused(inputs, labels.astype(str)))
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"age": [1.0] * 4, "city": ["Rome"] * 4})
    assert "does not hold numbers in city; drop these columns" in refused(table, labels)
    assert "Rome" not in refused(table, labels)
    assert "has no columns" in refused(table[[]], labels)


def test_labels_of_another_length_or_of_the_inputs_shape_are_refused() -> None:
    inputs, labels = arrays()
    assert "train((X, y), (X_val, y_val))" in refused(inputs, labels[:10])
    assert "say which" in refused(inputs, inputs.copy())


def test_labels_by_place_go_with_validation_by_name() -> None:
    inputs, labels = arrays()
    others = inputs[:20].copy(), labels[:20].copy()
    first, second = trainer(), trainer()
    assert first.train(inputs, labels, val_loader=others).metrics == second.train((inputs, labels), others).metrics
    told = r"train\(X, y, val_loader=\(X_val, y_val\)\)"
    with pytest.raises(InvalidParameter, match=told):
        trainer().train(inputs, labels, others)
    with pytest.raises(InvalidParameter, match=told):
        trainer().train([(inputs[0], 0)], labels, val_loader=others)


def test_validation_arrays_are_scored_and_those_that_share_memory_with_the_records_are_refused() -> None:
    inputs, labels = arrays()
    others = inputs[:20].copy(), labels[:20].copy()
    assert set(trainer().train((inputs, labels), others).metrics) == {"accuracy", "loss"}
    assert "holds training records" in refused((inputs, labels), (inputs[:20], labels[:20]))
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(inputs)
    assert "holds training records" in refused((table, labels), (table.iloc[:20], labels[:20].copy()))


def test_records_and_options_at_the_wrong_place_are_told_where_they_belong() -> None:
    config = PrivacyConfig(epsilon=3.0)
    with pytest.raises(InvalidParameter, match=r"PrivateTrainer\(model, config\)\.train\(data\)"):
        PrivateTrainer(nn.Linear(3, 2), config, arrays())
    with pytest.raises(InvalidParameter, match=r"is no PrivacyConfig; pass PrivacyConfig\(epsilon=3\.0\)"):
        PrivateTrainer(nn.Linear(3, 2), 3.0)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- optimizers


def test_torch_s_rules_mean_ours_of_the_same_name() -> None:
    model = nn.Linear(3, 2)
    parameters = list(model.parameters())
    assert as_rule(torch.optim.SGD, parameters) == as_rule("sgd", parameters) == SGD()
    assert as_rule(torch.optim.Adam, parameters) == as_rule("adam", parameters) == Adam()
    assert as_rule(torch.optim.SGD(parameters, lr=1.0, momentum=0.8), parameters) == SGD(momentum=0.8)
    mine = torch.optim.Adam(parameters, lr=0.02, betas=(0.8, 0.99), eps=1e-6)
    assert as_rule(mine, parameters) == Adam(beta1=0.8, beta2=0.99, floor=1e-6)
    assert rate_of(mine) == 0.02 and rate_of(torch.optim.Adam) is None is rate_of("adam")


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.3), lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.99)),
])  # fmt: skip
def test_a_rule_that_is_taken_makes_the_steps_of_torch_s(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    theirs, ours = nn.Linear(3, 2), nn.Linear(3, 2)
    ours.load_state_dict(theirs.state_dict())
    optimizer = make(theirs.parameters())
    bound = as_rule(make(ours.parameters()), list(ours.parameters())).bind(list(ours.parameters()))
    for _ in range(5):
        gradient = tuple(torch.randn_like(parameter) for parameter in ours.parameters())
        for parameter, part in zip(theirs.parameters(), gradient, strict=True):
            parameter.grad = part.clone()
        optimizer.step()
        bound.step(gradient, learning_rate=rate_of(optimizer) or 0.0, noise_variance=0.0)
    for one, other in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_an_instance_brings_its_step_size_unless_one_is_stated() -> None:
    data = arrays()

    def run(**options: Any) -> Tensor:
        made = trainer()
        rate = options.pop("lr", None)
        if rate is not None:
            options["optimizer"] = torch.optim.SGD(made.model.parameters(), lr=rate)
        made.train(data, **options)
        return weights(made)

    assert torch.equal(run(lr=0.7), run(learning_rate=0.7, optimizer="sgd"))
    assert torch.equal(run(lr=0.7, learning_rate=0.2), run(learning_rate=0.2, optimizer="sgd"))
    assert not torch.equal(run(lr=0.7), run(lr=0.2))


@pytest.mark.parametrize(("make", "told"), [
    (lambda p: torch.optim.AdamW, "AdamW' has no private rule"), (lambda p: torch.optim.AdamW(p), "make_private"),
    (lambda p: torch.optim.Adam(p, weight_decay=0.1), "has weight_decay = 0.1"),
    (lambda p: torch.optim.Adam(p, amsgrad=True), "has amsgrad"),
    (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, nesterov=True), "has nesterov"),
    (lambda p: torch.optim.SGD([{"params": [one]} for one in p], lr=1.0), "has several groups"),
    (lambda p: torch.optim.Adam(p[:1]), "does not hold all"),
    (lambda p: torch.optim.Adam(nn.Linear(2, 2).parameters()), "does not hold all"), (lambda p: 3, "is no rule"),
    (lambda p: SGD, "is no rule"), (lambda p: "adma", "is not known"),
])  # fmt: skip
def test_another_optimizer_is_refused_in_one_sentence(make: Callable[[Any], Any], told: str) -> None:
    parameters = list(nn.Linear(3, 2).parameters())
    with pytest.raises(InvalidParameter, match=re.escape(told)):
        as_rule(make(parameters), parameters)


def test_an_optimizer_with_steps_behind_it_is_refused() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(InvalidParameter, match="has made steps already"):
        as_rule(optimizer, list(model.parameters()))


# -------------------------------------------------------------------------------------------------------- losses

NUMBERS = [nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCEWithLogitsLoss]


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.CrossEntropyLoss, nn.functional.cross_entropy])
def test_cross_entropy_of_torch_is_the_default_loss(loss: Any) -> None:
    assert as_loss(loss) is cross_entropy
    made = trainer(loss=loss)
    made.train(arrays())
    assert torch.equal(weights(made), trained(arrays()))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("shapes", [((1,), ()), ((1,), (1,)), ((4,), (4,))])
@pytest.mark.some(12)
def test_a_criterion_on_one_record_is_torch_s_own(kind: Any, reduction: str, shapes: Any) -> None:
    torch.manual_seed(1)
    model = nn.Linear(3, *shapes[0])
    inputs, targets = torch.randn(5, 3), torch.rand(5, *shapes[1])
    losses = as_loss(kind(reduction=reduction))(model, (inputs, targets))
    assert losses.shape == (5,)
    whole = kind(reduction="mean" if reduction == "none" else reduction)
    for row in range(5):
        scores = model(inputs[row : row + 1])
        torch.testing.assert_close(losses[row], whole(scores, targets[row : row + 1].reshape(scores.shape)))


def test_numbers_beside_a_column_are_not_spread_over_the_batch() -> None:
    """torch's own loss of (n, 1) beside (n,) is one of n × n pairs, which mixes records; the control shows it."""
    model, inputs, targets = nn.Linear(3, 1), torch.randn(5, 3), torch.randn(5)
    losses = as_loss(nn.MSELoss())(model, (inputs, targets))
    torch.testing.assert_close(losses, (model(inputs).squeeze(1) - targets).square())
    with pytest.warns(UserWarning, match="different to the input size"):
        assert nn.MSELoss(reduction="none")(model(inputs), targets).shape == (5, 5)


def test_options_of_cross_entropy_stay() -> None:
    torch.manual_seed(1)
    model, batch = nn.Linear(3, 3), (torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]))
    cases: list[dict[str, Any]] = [
        {"weight": torch.tensor([1.0, 2.0, 0.5])}, {"label_smoothing": 0.1}, {"ignore_index": 1}, {"reduction": "sum"},
    ]  # fmt: skip
    for options in cases:
        loss = as_loss(nn.CrossEntropyLoss(**options))
        assert isinstance(loss, CriterionLoss)
        own = nn.CrossEntropyLoss(**{**options, "reduction": "none"})
        torch.testing.assert_close(loss(model, batch), own(model(batch[0]), batch[1]))


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(label_smoothing=0.1), nn.NLLLoss()])
def test_a_label_that_is_no_class_costs_nothing_where_torch_would_fail(criterion: nn.Module) -> None:
    model, batch = nn.Linear(3, 2), (torch.randn(3, 3), torch.tensor([0, 7, -1]))
    losses = as_loss(criterion)(model, batch)
    assert losses[1:].tolist() == [0.0, 0.0] and losses[0] != 0
    with pytest.raises((IndexError, RuntimeError)):
        criterion(model(batch[0]), batch[1])


@pytest.mark.parametrize("engine", ["bookkeeping", "vmap", "naive"])
@pytest.mark.some(1)
def test_criteria_train_with_every_engine(engine: str) -> None:
    inputs, labels = arrays()
    config = PrivacyConfig(noise_multiplier=1.0, epochs=1, batch_size=40, noise="fast", engine=engine)
    found = []
    for loss, targets in ((nn.MSELoss(), labels.astype(float)), (nn.BCEWithLogitsLoss(), labels)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        PrivateTrainer(model, config, loss=loss, rng=randomness_for_tests(1)).train(inputs, targets)
        found.append(model.weight.detach().clone())
    assert not torch.equal(*found)


@pytest.mark.parametrize("loss", [nn.CTCLoss(), nn.BCELoss, nn.Linear(3, 2), 3, "cross entropy"])
def test_another_loss_is_refused_in_one_sentence(loss: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"cannot be asked for one value per example.*loss\(model, batch\)"):
        trainer(loss=loss)


def test_a_criterion_of_one_s_own_and_a_label_that_does_not_fit_are_refused() -> None:
    class Mine(nn.MSELoss):
        pass

    with pytest.raises(InvalidParameter, match="one value per example"):
        as_loss(Mine())
    with pytest.raises(InvalidParameter, match="does not fit scores of shape"):
        as_loss(nn.MSELoss())(nn.Linear(3, 2), (torch.ones(4, 3), torch.ones(4, 3)))
