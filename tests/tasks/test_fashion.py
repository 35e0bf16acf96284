"""Fashion-MNIST in MNIST's form, from the data folder or from where Debian's package puts it.

Its files are in no prepared data folder, so the test on the real ones runs where somebody has them: here or there.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks import datafiles
from quietsum.tasks.datafiles import DATASETS
from quietsum.tasks.gallery import mnist, scattering
from quietsum.tasks.gallery.files import idx
from quietsum.tasks.gallery.mnist import FashionMnistTask
from tasks.one_row import assert_row_local
from tasks.test_mnist import arrays, write

REAL = DATASETS["fashion-mnist"].find_folder()


def known(monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], held_out: int = 10) -> None:
    """Make a tiny set the known one."""
    parts = {
        name: (idx.FASHION.parts[name][0], values.shape, hashlib.sha256(values.tobytes()).hexdigest())
        for name, values in made.items()
    }
    monkeypatch.setattr(mnist, "FASHION", dataclasses.replace(idx.FASHION, parts=parts))
    monkeypatch.setattr(FashionMnistTask, "size", 30)
    monkeypatch.setattr(mnist, "_HELD_OUT", held_out)
    mnist._features.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = arrays()
    known(monkeypatch, made)
    write(tmp_path, made, "{stem}-idx{n}-ubyte.gz")
    return tmp_path


@pytest.mark.parametrize("network", ["scattering", "cnn"])
def test_both_networks_read_their_records(folder: Path, network: str) -> None:
    task = FashionMnistTask(network=network, folder=folder)
    values, labels = task.records()
    assert len(values) == len(labels) == task.size == 30
    model = task.model()
    assert task.loss(model, (values, labels)).shape == (30,)
    assert task.evaluate(model).on == "20 published test images"


def test_settings_are_chosen_on_records_that_do_not_train(folder: Path) -> None:
    whole, choosing = FashionMnistTask(folder=folder), FashionMnistTask(folder=folder, evaluate_on="validation")
    values, labels = choosing.records()
    assert len(values) == len(labels) == choosing.size == 20
    assert torch.equal(values, whole.records()[0][:20])
    assert choosing.evaluate(choosing.model()).on == "10 training images held out for choosing"
    assert whole.size == 30  # the class keeps its own


def test_nothing_is_computed_over_several_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = []
    for place in ("before", "after"):
        made = arrays()
        if place == "after":
            made["x_train"][4] = 255 - made["x_train"][4]
        known(monkeypatch, made)
        (tmp_path / place).mkdir()
        write(tmp_path / place, made, "{stem}-idx{n}-ubyte")
        tasks.append(FashionMnistTask(folder=tmp_path / place))
        rows = tasks[-1].records()
        monkeypatch.setattr(tasks[-1], "records", lambda rows=rows: rows)
        scored = tasks[-1]._part("test")
        monkeypatch.setattr(tasks[-1], "_part", lambda which, scored=scored: scored)
    assert_row_local(tasks[0], tasks[1], 4, modules=(scattering,))


def test_both_places_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path / "nowhere"))
    entry = dataclasses.replace(DATASETS["fashion-mnist"], folders=("fashion_mnist", str(folder)))
    monkeypatch.setattr(datafiles, "DATASETS", {"fashion-mnist": entry})
    assert len(FashionMnistTask().records()[0]) == 30
    assert DATASETS["fashion-mnist"].folders == ("fashion_mnist", "/usr/share/datasets/fashion-mnist")


def test_missing_and_altered_files_say_what_to_do(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataMissing, match=r"Fashion-MNIST is not in .*apt-get install dataset-fashion-mnist"):
        FashionMnistTask(folder=tmp_path / "nowhere").records()
    path = folder / "train-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    path.write_bytes(content[:20])
    with pytest.raises(DataMissing, match="truncated or damaged"):
        FashionMnistTask(folder=folder).records()
    made = arrays()
    made["y_train"][3] ^= 1
    write(folder, made, "{stem}-idx{n}-ubyte.gz")
    with pytest.raises(DataMissing, match=r"y_train of Fashion-MNIST.*SHA-256"):
        FashionMnistTask(folder=folder).records()


def test_digits_are_no_clothes() -> None:
    assert all(idx.MNIST.parts[part][2] != idx.FASHION.parts[part][2] for part in idx.MNIST.parts)


def test_an_npz_of_other_numbers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {**arrays()}
    known(monkeypatch, made)
    np.savez(
        tmp_path / "fashion_mnist.npz", allow_pickle=False, **{**made, "y_train": made["y_train"].astype(np.int64)}
    )
    assert len(FashionMnistTask(folder=tmp_path).records()[0]) == 30  # whole numbers of another width are the same
    for wrong in (made["y_train"].astype(np.float32) * np.nan, made["y_train"].astype(np.int64) + 256):
        np.savez(tmp_path / "fashion_mnist.npz", allow_pickle=False, **{**made, "y_train": wrong})
        with pytest.raises(DataMissing, match="no whole numbers of 0 … 255"):
            FashionMnistTask(folder=tmp_path).records()


@pytest.mark.parametrize(
    ("options", "lesson"),
    [({"network": "resnet"}, "cnn"), ({"evaluate_on": "train"}, "validation"), ({"split": 1}, "one split")],
)
def test_options_must_be_known(options: dict[str, Any], lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        FashionMnistTask(**options)


@pytest.mark.skipif(REAL is None, reason="Fashion-MNIST is nowhere here: apt-get install dataset-fashion-mnist")
def test_the_published_files_have_the_known_sums() -> None:
    assert REAL is not None
    assert idx.check_fashion(REAL) == "60000 / 10000 images to train and test"
