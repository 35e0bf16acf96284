"""Card payments from the published csv and from the packed file, whole, damaged and altered."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.learning.noise.gradient_noise import TorchNoise
from quietsum.tasks.datafiles import data_folder, sha256_of
from quietsum.tasks.gallery import fraud
from quietsum.tasks.gallery.files import fraud as reader
from quietsum.tasks.gallery.files.fraud import (
    KNOWN,
    KnownPayments,
    Payments,
    check_payments,
    pack_payments,
    payment_parts,
    read_payments,
)
from quietsum.tasks.gallery.fraud import FEATURES, FEW, FraudTask, payment_features
from tasks.one_row import assert_row_local

ROWS = 600
HERE = data_folder("creditcard_ulb")
needs_data = pytest.mark.skipif(not os.environ.get("QUIETSUM_DATA"), reason="set QUIETSUM_DATA to read the real file")


def made(rows: int = ROWS) -> dict[str, NDArray[np.float64]]:
    rng = np.random.default_rng(3)
    labels = (rng.random(rows) < 0.15).astype(np.float64)
    components = (rng.normal(size=(rows, 28)) + 2 * labels[:, None]).round(9)
    amounts = (rng.exponential(50, rows)).round(2)
    return {"V": components, "time": np.sort(rng.integers(0, 170_000, rows)).astype(float), "amount": amounts,
            "label": labels}  # fmt: skip


def text_of(arrays: dict[str, NDArray[np.float64]]) -> bytes:
    """The published form: quoted names and classes, plain numbers."""
    lines = [",".join(f'"{name}"' for name in ("Time", *(f"V{i}" for i in range(1, 29)), "Amount", "Class"))]
    for v, time, amount, label in zip(*(arrays[k] for k in ("V", "time", "amount", "label")), strict=True):
        numbers = ",".join(f"{value:.15g}" for value in v)
        lines.append(f'{time:g},{numbers},{amount:.15g},"{label:g}"')
    return ("\n".join(lines) + "\n").encode()


def known_of(content: bytes, arrays: dict[str, NDArray[np.float64]]) -> KnownPayments:
    kinds = {"V": np.float16, "time": np.int32, "amount": np.float32, "label": np.uint8}
    with np.errstate(invalid="ignore"):  # a sum of NaN is asked for too
        sums = {name: sha256_of(arrays[name].astype(kind)) for name, kind in kinds.items()}
    return KnownPayments(
        rows=len(arrays["label"]), md5=hashlib.md5(content, usedforsecurity=False).hexdigest(), sums=sums
    )  # fmt: skip


def write_csv(folder: Path, arrays: dict[str, NDArray[np.float64]]) -> KnownPayments:
    content = text_of(arrays)
    (folder / "creditcard.csv").write_bytes(content)
    return known_of(content, arrays)


def write_npz(folder: Path, arrays: dict[str, NDArray[np.float64]]) -> KnownPayments:
    kinds = {"V": np.float16, "time": np.int32, "amount": np.float32, "label": np.uint8}
    np.savez_compressed(folder / "creditcard.npz", **{k: arrays[k].astype(kind) for k, kind in kinds.items()})  # type: ignore[arg-type]
    return known_of(b"", arrays)


def same(one: Payments, other: Payments) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("components", "seconds", "amounts", "labels")
    )


# ------------------------------------------------------------------------------------------------ the files


def test_the_csv_and_the_packed_file_give_the_same_arrays(tmp_path: Path) -> None:
    arrays = made()
    known = write_csv(tmp_path, arrays)
    from_csv = read_payments(tmp_path, known)
    assert pack_payments(tmp_path, known).name == "creditcard.npz"
    (tmp_path / "creditcard.csv").unlink()
    assert same(from_csv, read_payments(tmp_path, known))
    np.testing.assert_allclose(from_csv.components, arrays["V"], rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(from_csv.labels, arrays["label"])


def test_a_missing_file_is_an_error_that_says_where_to_put_which(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"creditcard\.csv.*QUIETSUM_DATA") as told:
        FraudTask(folder=tmp_path).records()
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize("cut", [0, 10, 500, -40, -1])
def test_truncated_files_are_refused(tmp_path: Path, cut: int) -> None:
    for name, write in (("creditcard.csv", write_csv), ("creditcard.npz", write_npz)):
        folder = tmp_path / name[-3:]
        folder.mkdir()
        known = write(folder, made())
        read_payments(folder, known)  # the control
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:cut])
        with pytest.raises(DataMissing, match="fetch it again"):
            read_payments(folder, known)


def test_one_altered_value_is_refused(tmp_path: Path) -> None:
    arrays = made()
    known = write_csv(tmp_path, arrays)
    path = tmp_path / "creditcard.csv"
    path.write_bytes(path.read_bytes().replace(b'"0"\n', b'"1"\n', 1))
    with pytest.raises(DataMissing, match="MD5"):
        read_payments(tmp_path, known)
    path.unlink()
    known = write_npz(tmp_path, arrays)
    for name in arrays:
        altered = {key: values.copy() for key, values in arrays.items()}
        altered[name].flat[5] = 1 - altered[name].flat[5] if name == "label" else altered[name].flat[5] + 3
        write_npz(tmp_path, altered)
        with pytest.raises(DataMissing, match=f"{name} is not as published"):
            read_payments(tmp_path, known)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("label", 2.0, "outside 0 … 1"), ("V", np.nan, "NaN or infinite"), ("V", np.inf, "NaN or infinite"),
        ("amount", -5.0, "negative"), ("amount", np.nan, "NaN or infinite"), ("time", -1.0, "negative"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_named_even_where_the_sum_is_right(
    tmp_path: Path, name: str, value: float, said: str
) -> None:
    arrays = made(60)
    arrays[name].flat[7] = value
    known = write_csv(tmp_path, arrays)
    with pytest.raises(DataMissing, match=said):
        read_payments(tmp_path, known)


def test_wrong_shapes_and_an_empty_class_are_named(tmp_path: Path) -> None:
    arrays = made(60)
    known = write_npz(tmp_path, {**arrays, "V": arrays["V"][:, :27]})
    with pytest.raises(DataMissing, match="n × 28"):
        read_payments(tmp_path, known)
    known = write_npz(tmp_path, {**arrays, "amount": arrays["amount"][:50]})
    with pytest.raises(DataMissing, match="does not fit 60 rows"):
        read_payments(tmp_path, known)
    known = write_npz(tmp_path, {**arrays, "label": np.zeros(60)})
    with pytest.raises(DataMissing, match="no example of class 1"):
        read_payments(tmp_path, known)
    np.savez(tmp_path / "creditcard.npz", V=arrays["V"])
    with pytest.raises(DataMissing, match="no array"):
        read_payments(tmp_path, known)


def test_other_columns_and_words_in_the_csv_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "creditcard.csv"
    good = text_of(made(60))
    for content, said in (
        (good.replace(b'"V5"', b'"W5"'), "does not begin with the columns"),
        (good + b"and so on\n", "no table of numbers"),
        (b"", "does not begin"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataMissing, match=said):
            read_payments(tmp_path, known_of(content, made(60)))


# ------------------------------------------------------------------------------------------------ the splits


def payments_of(arrays: dict[str, NDArray[np.float64]]) -> Payments:
    return Payments(
        components=arrays["V"].astype(np.float16), seconds=arrays["time"].astype(np.int32),
        amounts=arrays["amount"].astype(np.float32), labels=arrays["label"].astype(np.uint8),
    )  # fmt: skip


def test_a_row_does_not_move_when_another_leaves_and_copies_stay_together() -> None:
    arrays = made()
    whole = payments_of(arrays)
    without = payments_of({name: np.delete(values, 17, axis=0) for name, values in arrays.items()})
    twice = payments_of({name: np.concatenate([values, values]) for name, values in arrays.items()})
    for split in range(10):
        part = payment_parts(whole, split)
        np.testing.assert_array_equal(np.delete(part, 17), payment_parts(without, split))
        np.testing.assert_array_equal(np.tile(part, 2), payment_parts(twice, split))


def test_splits_have_their_shares_and_differ() -> None:
    arrays = made(30_000)
    found = [payment_parts(payments_of(arrays), split) for split in range(10)]
    for part in found:  # six standard deviations
        for which, share in enumerate((0.7, 0.1, 0.2)):
            assert abs((part == which).mean() - share) < 6 * (share * (1 - share) / 30_000) ** 0.5
    assert all(np.array_equal(part == 1, found[0] == 1) for part in found)  # what chooses is never a test row
    same_test = ((found[0] == 2) & (found[1] == 2)).mean()
    share = 0.9 * (2 / 9) ** 2
    assert abs(same_test - share) < 6 * (share * (1 - share) / 30_000) ** 0.5
    with pytest.raises(InvalidParameter, match="does not exist"):
        payment_parts(payments_of(arrays), 10)


# ------------------------------------------------------------------------------------------------ the task


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(fraud, "KNOWN", write_csv(tmp_path, made()))
    return tmp_path


def test_noise_on_two_hundred_thousand_payments_is_what_the_clip_needs(small: Path) -> None:
    noise = TorchNoise(noise_multiplier=5.0, sensitivity=1.2, mode="secure", expected_batch=float(fraud.SIZES[0]))
    parameters = tuple(FraudTask(folder=small).model().parameters())
    assert noise.more(parameters) < 1.0001
    assert noise.more([parameter.float() for parameter in parameters]) > 2  # sums in single precision would need more


@pytest.mark.parametrize("network", ["linear", "mlp"])
@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_both_networks_read_records_and_are_scored(small: Path, network: str, evaluate_on: str) -> None:
    task = FraudTask(network=network, evaluate_on=evaluate_on, split=3, folder=small)
    rows, labels = task.records()
    part = payment_parts(payments_of(made()), 3)
    width = FEW if network == "linear" else FEATURES
    assert rows.shape == ((part == 0).sum(), width) and rows.dtype == torch.float32 and rows.abs().max() < 2
    model = task.model()
    assert task.loss(model, (rows, labels)).shape == labels.shape
    scores = task.evaluate(model)
    expected = ["auprc", "auc", "f1"] if evaluate_on == "test" else ["auprc", "auc"]
    assert list(scores.values) == expected
    assert scores.on.startswith(f"{(part == (2 if evaluate_on == 'test' else 1)).sum()} published {evaluate_on}")


def test_the_threshold_of_f1_comes_from_validation_rows(small: Path) -> None:
    task = FraudTask(network="mlp", folder=small)  # which reads all the features
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 1))
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(0.3)
    from quietsum.tasks.models import log_odds
    from quietsum.tasks.scores import best_f1_threshold, f1_score

    whole, part = payments_of(made()), payment_parts(payments_of(made()), 0)
    scores = log_odds(model, torch.from_numpy(payment_features(whole)))
    threshold = best_f1_threshold(whole.labels[part == 1], scores[part == 1])
    assert task.evaluate(model).values["f1"] == pytest.approx(
        f1_score(whole.labels[part == 2], scores[part == 2] >= threshold)
    )


def test_a_label_out_of_range_is_silent_in_the_loss() -> None:
    task = FraudTask(folder="nowhere")
    rows = torch.randn(3, FEW, generator=torch.Generator().manual_seed(0))
    losses = task.loss(task.model(), (rows, torch.tensor([0, 1, 7])))
    assert losses[0] > 0 and losses[1] > 0 and losses[2] == 0


def test_nothing_private_steers_the_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = made()
    training = np.flatnonzero(payment_parts(payments_of(arrays), 0) == 0)
    altered = {name: values.copy() for name, values in arrays.items()}
    altered["V"][training[5]] = 90.0
    altered["label"][training[5]] = 1 - altered["label"][training[5]]
    tasks = []
    for name, content in (("before", arrays), ("after", altered)):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(fraud, "KNOWN", write_csv(tmp_path / name, content))
        for network in ("linear", "mlp"):
            tasks.append(FraudTask(network=network, folder=tmp_path / name))
            tasks[-1].records()  # read while its file is the known one
    for before, after in zip(tasks[:2], tasks[2:], strict=True):
        assert_row_local(before, after, 5, modules=[fraud, reader])


def changed_in(part: int, arrays: dict[str, NDArray[np.float64]]) -> tuple[int, dict[str, NDArray[np.float64]]]:
    """The arrays with one row of a part of split 0 altered: its place in that part, and all arrays."""
    row = int(np.flatnonzero(payment_parts(payments_of(arrays), 0) == part)[5])
    altered = {name: values.copy() for name, values in arrays.items()}
    altered["V"][row] = 90.0
    altered["label"][row] = 1 - altered["label"][row]
    return 5, altered


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, arrays: dict[str, NDArray[np.float64]]) -> FraudTask:
    folder.mkdir()
    monkeypatch.setattr(fraud, "KNOWN", write_csv(folder, arrays))
    task = FraudTask(start="public", folder=folder)
    task.model()  # read while its file is the known one
    return task


def test_a_public_start_looks_at_no_training_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = started(tmp_path / "before", monkeypatch, made())
    row, altered = changed_in(0, made())
    after = started(tmp_path / "after", monkeypatch, altered)
    assert_row_local(before, after, row, modules=[fraud, reader])
    _, altered = changed_in(2, made())
    tested = started(tmp_path / "tested", monkeypatch, altered)
    assert torch.equal(before.model()[0].weight, tested.model()[0].weight)  # type: ignore[index]


def test_the_control_a_public_start_hears_of_a_public_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = started(tmp_path / "before", monkeypatch, made())
    _, altered = changed_in(1, made())
    after = started(tmp_path / "after", monkeypatch, altered)
    assert not torch.equal(before.model()[0].weight, after.model()[0].weight)  # type: ignore[index]


def test_a_public_start_is_the_same_in_every_split_and_when_it_is_fitted_again(small: Path) -> None:
    first = FraudTask(start="public", folder=small).model()
    again = FraudTask(start="public", split=7, folder=small).model()
    fraud._public_fit.cache_clear()
    later = FraudTask(start="public", folder=small).model()
    for other in (again, later):
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert first[0].weight.abs().max() > 0.1  # type: ignore[index]
    assert not FraudTask(folder=small).model()[0].weight.any()  # type: ignore[index]


def test_a_public_start_is_the_logistic_regression_that_another_library_finds() -> None:
    from sklearn.linear_model import LogisticRegression

    from quietsum.tasks.models import fit_public

    rows, labels = payment_features(payments_of(made())), made()["label"].astype(np.int64)
    labels = np.where(np.arange(len(labels)) % 4 == 0, 1 - labels, labels)  # not to be told apart perfectly
    for pull in (1e-2, 1e-4):
        weights, bias = fit_public(rows, labels, l2=pull)
        referee = LogisticRegression(C=1 / (pull * len(rows)), solver="newton-cholesky", tol=1e-10, max_iter=1000)
        referee.fit(rows.astype(np.float64), labels)
        np.testing.assert_allclose(weights, referee.coef_[0], rtol=1e-4, atol=1e-5)
        assert bias == pytest.approx(referee.intercept_[0], rel=1e-4, abs=1e-5)


def test_a_fit_of_rows_that_fit_nothing_is_refused_and_separable_ones_stay_finite() -> None:
    from quietsum.tasks.models import fit_public

    rows, labels = np.array([[-1.0], [1.0]], dtype=np.float32), np.array([0, 1])
    assert np.isfinite(fit_public(rows, labels, l2=1e-9)[0]).all()
    assert np.isfinite(fit_public(rows, np.array([0, 0]), l2=1e-5)[1])
    bad = [(rows, labels[:1]), (rows * np.float32(np.nan), labels), (rows[:0], labels[:0]), (rows[:, 0], labels)]
    for values, wanted in bad:
        with pytest.raises(InvalidParameter, match="features"):
            fit_public(values, wanted, l2=1e-5)
    with pytest.raises(InvalidParameter, match="l2"):
        fit_public(rows, labels, l2=0.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"start": "public", "network": "mlp"}, "linear"), ({"start": "warm"}, "'zeros' or 'public'"),
     ({"start": "public", "evaluate_on": "validation"}, "would flatter it"),
     ({"network": "forest"}, "linear"), ({"evaluate_on": "train"}, "validation"), ({"split": 10}, "0 … 9"),
     ({"split": True}, "0 … 9"), ({"split": 1.5}, "0 … 9")],
)  # fmt: skip
def test_options_must_be_known(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        FraudTask(**options)  # type: ignore[arg-type]


def test_delta_is_at_most_a_tenth_of_one_in_n() -> None:
    for split, size in enumerate(fraud.SIZES):
        assert FraudTask(split=split, folder="nowhere").settings.training["delta"] <= 1 / (10 * size)


# ------------------------------------------------------------------------------------------ the published file


@needs_data
def test_the_published_payments_have_the_known_sums_and_sizes() -> None:
    assert check_payments(HERE) == "284,807 payments with 492 frauds"
    payments = read_payments(HERE, KNOWN)
    for split, size in enumerate(fraud.SIZES):
        part = payment_parts(payments, split)
        assert (part == 0).sum() == size
        assert min(payments.labels[part == which].sum() for which in range(3)) >= 40


@needs_data
def test_what_a_public_tenth_alone_is_worth() -> None:
    """No private row is used, and most payments are ranked well: so no credit for that is due to private steps."""
    task = FraudTask(start="public")
    assert task.evaluate(task.model()).values["auprc"] > 0.75
    assert FraudTask().evaluate(FraudTask().model()).values["auprc"] < 0.01  # the control: no weights


@needs_data
def test_exact_copies_never_lie_on_both_sides_of_a_split() -> None:
    payments = read_payments(HERE, KNOWN)
    whole = np.column_stack([payments.components.astype(np.float32), payments.seconds, payments.amounts])
    _, group, count = np.unique(whole, axis=0, return_inverse=True, return_counts=True)
    assert len(whole) - len(count) == 1081
    part = payment_parts(payments, 0)
    for which in range(3):
        members = np.bincount(group[part == which], minlength=len(count))
        assert set(np.unique(members[members > 0] == count[members > 0])) == {True}
