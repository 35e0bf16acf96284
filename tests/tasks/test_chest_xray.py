"""PneumoniaMNIST from files that may be missing, truncated, altered or shuffled; and the task on it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery import chest_xray, scattering
from quietsum.tasks.gallery.chest_xray import ChestXrayTask, xray_features
from quietsum.tasks.gallery.files import chest_xray as reader
from quietsum.tasks.gallery.files.chest_xray import Known, check_xrays, read_xrays, sum_of_records
from tasks.one_row import assert_row_local

SIZES = {"train": 12, "val": 6, "test": 8}
needs_data = pytest.mark.skipif(
    not os.environ.get("QUIETSUM_DATA"), reason="QUIETSUM_DATA names no folder with the downloaded data"
)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for part, size in SIZES.items():
        made[f"{part}_images"] = rng.integers(0, 256, size=(size, 28, 28), dtype=np.uint8)
        made[f"{part}_labels"] = (np.arange(size, dtype=np.uint8) % 3 > 0).astype(np.uint8)[:, None]
    return made


def facts(made: dict[str, Any]) -> dict[str, Known]:
    """A tiny set whose sums are the known ones."""
    return {
        part: Known(
            records=len(made[f"{part}_labels"]), normal=int((made[f"{part}_labels"] == 0).sum()),
            sum_of_records=sum_of_records(made[f"{part}_images"], made[f"{part}_labels"][:, 0].astype(np.int64)),
        )
        for part in SIZES
    }  # fmt: skip


def write(folder: Path, made: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "pneumoniamnist.npz", **made)
    return folder


def test_the_parts_are_read_as_they_are(tmp_path: Path) -> None:
    made = arrays()
    parts = read_xrays(write(tmp_path, made), facts(made))
    for part, images in parts.items():
        np.testing.assert_array_equal(images.pixels, made[f"{part}_images"])
        np.testing.assert_array_equal(images.labels, made[f"{part}_labels"][:, 0])
        assert str(images) == f"Images({SIZES[part]} records)"


def test_a_shuffled_copy_is_the_same_set(tmp_path: Path) -> None:
    made = arrays()
    order = np.random.default_rng(1).permutation(12)
    shuffled = {**made, **{name: made[name][order] for name in ("train_images", "train_labels")}}
    read_xrays(write(tmp_path, shuffled), facts(made))
    only_labels = {**made, "train_labels": made["train_labels"][order]}
    with pytest.raises(DataMissing, match="SHA-256"):
        read_xrays(write(tmp_path, only_labels), facts(made))


@pytest.mark.parametrize("part", SIZES)
def test_one_altered_pixel_or_label_is_refused(tmp_path: Path, part: str) -> None:
    made = arrays()
    known = facts(made)
    made[f"{part}_images"][2, 5, 5] ^= 1
    with pytest.raises(DataMissing, match=f"records of {part} have another SHA-256.*write a task"):
        read_xrays(write(tmp_path, made), known)
    made = arrays()
    made[f"{part}_labels"][[0, 1]] = made[f"{part}_labels"][[1, 0]]
    with pytest.raises(DataMissing, match="SHA-256"):
        read_xrays(write(tmp_path, made), known)
    read_xrays(write(tmp_path, arrays()), known)  # the control


def test_the_official_file_is_known_by_its_published_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = arrays()
    known = {part: Known(records=k.records, normal=k.normal, sum_of_records="") for part, k in facts(made).items()}
    path = write(tmp_path, made) / "pneumoniamnist.npz"
    with pytest.raises(DataMissing, match="SHA-256"):
        read_xrays(tmp_path, known)
    monkeypatch.setattr(reader, "OFFICIAL_MD5", hashlib.md5(path.read_bytes()).hexdigest())
    assert len(read_xrays(tmp_path, known)["train"].labels) == 12


def broken(name: str, values: Any) -> dict[str, Any]:
    return {**arrays(), name: values}


@pytest.mark.parametrize(
    ("made", "lesson"),
    [
        (broken("train_images", np.full((12, 28, 28), np.nan)), "NaN or infinite pixels, first in row 0"),
        (broken("train_images", np.zeros((12, 28, 28))), "float64, not bytes"),
        (broken("train_images", np.zeros((12, 64, 64), np.uint8)), "are not n × 28 × 28"),
        (broken("train_images", np.zeros((12, 28, 28, 3), np.uint8)), "are not n × 28 × 28"),
        (broken("train_images", np.zeros((11, 28, 28), np.uint8)), "do not fit 11 images"),
        (broken("val_labels", np.full((6, 1), 2)), "lies outside 0 … 1"),
        (broken("val_labels", np.full((6, 1), -1)), "lies outside 0 … 1"),
        (broken("test_labels", np.ones((8, 1), np.uint8)), "no example of class 0"),
        (broken("test_labels", np.arange(8)[:, None] % 2), "4 of them normal"),
        (broken("test_labels", np.zeros((8, 14), np.uint8)), "one label per row"),
    ],
)
def test_bad_records_are_an_error_that_teaches(tmp_path: Path, made: dict[str, Any], lesson: str) -> None:
    with pytest.raises(DataMissing, match=lesson) as told:
        read_xrays(write(tmp_path, made), facts(arrays()))
    assert "medmnist.com" in str(told.value) and str(tmp_path) in str(told.value)


def test_missing_and_truncated_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"not in .*medmnist\.com.*QUIETSUM_DATA"):
        ChestXrayTask(folder=tmp_path).records()
    path = write(tmp_path, arrays()) / "pneumoniamnist.npz"
    content = path.read_bytes()
    for kept in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:kept])
        with pytest.raises(DataMissing, match="fetch it again"):
            read_xrays(tmp_path)
    np.savez(path, train_images=arrays()["train_images"])
    with pytest.raises(DataMissing, match="no array train_labels"):
        read_xrays(tmp_path)


# ------------------------------------------------------------------------------------------------ the task


def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], **options: Any) -> ChestXrayTask:
    monkeypatch.setattr(chest_xray, "KNOWN", facts(made))
    monkeypatch.setattr(ChestXrayTask, "size", 12)
    task = ChestXrayTask(folder=write(folder, made), **options)
    task.records()  # read now, while these are the known sums
    return task


@pytest.mark.parametrize("network", ["scattering", "mlp", "cnn"])
def test_every_network_reads_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    task = tiny(tmp_path, monkeypatch, arrays(), network=network)
    values, labels = task.records()
    assert len(values) == len(labels) == task.size
    model = task.model()
    assert task.loss(model, (values, labels)).shape == (12,)
    score = task.evaluate(model)
    assert list(score.values) == ["auc", "accuracy"] and score.on == "8 published test images"
    held = tiny(tmp_path, monkeypatch, arrays(), network=network, evaluate_on="validation")
    assert held.evaluate(model).on == "6 published validation images" and held.size == task.size
    assert torch.equal(held.records()[0], values)


@pytest.mark.parametrize("network", ["scattering", "mlp", "cnn"])
def test_nothing_is_computed_over_several_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    before = tiny(tmp_path / "before", monkeypatch, arrays(), network=network)
    made = arrays()
    made["train_images"][3] = 255 - made["train_images"][3]
    after = tiny(tmp_path / "after", monkeypatch, made, network=network)
    assert_row_local(before, after, 3, modules=(chest_xray, scattering))
    made["train_images"][4] ^= 255
    two = tiny(tmp_path / "two", monkeypatch, made, network=network)
    with pytest.raises(AssertionError, match="another record changed"):  # the control
        assert_row_local(before, two, 3)


def test_black_and_white_pictures_have_finite_features() -> None:
    flat = np.stack([np.zeros((28, 28), np.uint8), np.full((28, 28), 255, np.uint8)])
    for network in ("scattering", "cnn"):
        assert bool(torch.isfinite(xray_features(flat, network)).all())


@pytest.mark.parametrize(
    ("options", "lesson"),
    [({"network": "resnet"}, "scattering"), ({"evaluate_on": "train"}, "validation"), ({"split": 1}, "one split")],
)
def test_options_must_be_known(options: dict[str, Any], lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        ChestXrayTask(**options)


def test_delta_is_at_most_a_tenth_of_a_record() -> None:
    assert ChestXrayTask().settings.training["delta"] <= 1 / (10 * ChestXrayTask.size)


@needs_data
def test_the_published_file_is_accepted() -> None:
    folder = data_folder("pneumoniamnist")
    assert check_xrays(folder) == "4708 / 524 / 624 images to train, validate and test"
    task = ChestXrayTask()
    values, labels = task.records()
    assert len(values) == task.size and int((labels == 0).sum()) == 1214


@needs_data
@pytest.mark.slow
@pytest.mark.long
def test_the_default_model_learns_privately() -> None:
    from quietsum.learning import PrivacyConfig, PrivateTrainer

    task = ChestXrayTask(evaluate_on="validation")
    training = {**task.settings.training, "epochs": 20}
    trainer = PrivateTrainer(task.model(), PrivacyConfig(epsilon=8.0, public_size=task.size, **training))
    trainer.train(task.records(), learning_rate=task.settings.learning_rate, optimizer=task.settings.optimizer)
    assert task.evaluate(trainer.model).values["auc"] > 0.97
    assert trainer.guarantee().epsilon <= 8.0
