"""MNIST from files that may be missing, truncated, altered or packed in any of the usual ways."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery import mnist
from quietsum.tasks.gallery.files.idx import MNIST, IdxSet, read_part
from quietsum.tasks.gallery.mnist import MnistTask
from quietsum.tasks.gallery.scattering import CHANNELS, scattering

SIZES = {"x_train": (30, 28, 28), "y_train": (30,), "x_test": (20, 28, 28), "y_test": (20,)}


def arrays() -> dict[str, NDArray[np.uint8]]:
    rng = np.random.default_rng(0)
    return {
        name: rng.integers(0, 256, size=shape, dtype=np.uint8)
        if name.startswith("x")
        else (rng.permutation(shape[0]) % 10).astype(np.uint8)
        for name, shape in SIZES.items()
    }


def tiny(made: dict[str, NDArray[np.uint8]]) -> IdxSet:
    parts = {
        name: (MNIST.parts[name][0], values.shape, hashlib.sha256(values.tobytes()).hexdigest())
        for name, values in made.items()
    }
    return dataclasses.replace(MNIST, parts=parts)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, NDArray[np.uint8]]:
    """A tiny MNIST whose sums are the known ones."""
    made = arrays()
    monkeypatch.setattr(mnist, "MNIST", tiny(made))
    monkeypatch.setattr(MnistTask, "size", 30)
    mnist._features.cache_clear()
    return made


def idx(values: NDArray[np.uint8]) -> bytes:
    return bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write(folder: Path, made: dict[str, NDArray[np.uint8]], pattern: str) -> None:
    for name, values in made.items():
        path = folder / pattern.format(stem=MNIST.parts[name][0], n=values.ndim)
        content = idx(values)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.mark.parametrize(
    "pattern", ["{stem}-idx{n}-ubyte.gz", "{stem}-idx{n}-ubyte", "{stem}.idx{n}-ubyte", "{stem}.idx{n}-ubyte.gz"]
)
def test_idx_files_are_read_under_all_their_names(
    tmp_path: Path, small: dict[str, NDArray[np.uint8]], pattern: str
) -> None:
    write(tmp_path, small, pattern)
    for name, values in small.items():
        np.testing.assert_array_equal(read_part(tmp_path, name, tiny(small)), values)


def test_one_npz_file_serves_as_well(tmp_path: Path, small: dict[str, NDArray[np.uint8]]) -> None:
    np.savez_compressed(tmp_path / "mnist.npz", allow_pickle=False, **small)
    for name, values in small.items():
        np.testing.assert_array_equal(read_part(tmp_path, name, tiny(small)), values)


def test_missing_files_are_an_error_that_says_where_to_put_which(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"train-images-idx3-ubyte\.gz.*QUIETSUM_DATA") as told:
        MnistTask(folder=tmp_path).records()
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize("cut", [0, 3, 10, -50, -1])
def test_truncated_files_are_refused(tmp_path: Path, small: dict[str, NDArray[np.uint8]], cut: int) -> None:
    for pattern in ("{stem}-idx{n}-ubyte.gz", "{stem}-idx{n}-ubyte"):
        folder = tmp_path / pattern[-2:]
        folder.mkdir()
        write(folder, small, pattern)
        path = folder / pattern.format(stem="train-images", n=3)
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(DataMissing, match="fetch it again"):
            read_part(folder, "x_train", tiny(small))
    np.savez_compressed(tmp_path / "mnist.npz", allow_pickle=False, **small)
    content = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(content[:cut])
    with pytest.raises(DataMissing, match="fetch it again"):
        read_part(tmp_path, "x_train", tiny(small))


def test_one_altered_pixel_or_label_is_refused(tmp_path: Path, small: dict[str, NDArray[np.uint8]]) -> None:
    for name in small:
        altered = {key: values.copy() for key, values in small.items()}
        altered[name].flat[5] ^= 1
        write(tmp_path, altered, "{stem}-idx{n}-ubyte.gz")
        with pytest.raises(DataMissing, match="SHA-256"):
            read_part(tmp_path, name, tiny(small))
    write(tmp_path, small, "{stem}-idx{n}-ubyte.gz")
    read_part(tmp_path, "x_train", tiny(small))  # the control


def test_another_set_of_the_same_kind_is_refused(tmp_path: Path, small: dict[str, NDArray[np.uint8]]) -> None:
    write(tmp_path, {**small, "x_train": small["x_test"]}, "{stem}-idx{n}-ubyte.gz")
    with pytest.raises(DataMissing, match="shape"):
        read_part(tmp_path, "x_train", tiny(small))
    write(tmp_path, {**small, "y_train": small["x_test"].reshape(-1)}, "{stem}-idx{n}-ubyte.gz")
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"no idx at all"))
    with pytest.raises(DataMissing, match="no idx file"):
        read_part(tmp_path, "y_train", tiny(small))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda labels: np.where(np.arange(30) == 7, 10, labels), "row 7 lies outside 0 … 9"),
        (lambda labels: np.where(labels == 4, 5, labels), "no example of class 4"),
    ],
)
def test_a_label_out_of_range_and_an_empty_class_are_called_so(
    tmp_path: Path, small: dict[str, NDArray[np.uint8]], change: Any, said: str
) -> None:
    altered = {**small, "y_train": change(small["y_train"]).astype(np.uint8)}
    for packed in (False, True):
        folder = tmp_path / str(packed)
        folder.mkdir()
        if packed:
            np.savez_compressed(folder / "mnist.npz", **altered)
        else:
            write(folder, altered, "{stem}-idx{n}-ubyte.gz")
        with pytest.raises(DataMissing, match=rf"y_train of MNIST.*{said}.*fetch it again"):
            read_part(folder, "y_train", tiny(small))
        read_part(folder, "y_test", tiny(small))  # the control


def test_the_folder_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=re.escape(str(tmp_path / "mnist"))):
        MnistTask().look_for_data("here")
    monkeypatch.delenv("QUIETSUM_DATA")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataMissing, match="MNIST is not in data/mnist:"):
        MnistTask().look_for_data("here")


@pytest.mark.parametrize("network", ["scattering", "cnn"])
def test_both_networks_read_their_records(tmp_path: Path, small: dict[str, NDArray[np.uint8]], network: str) -> None:
    write(tmp_path, small, "{stem}-idx{n}-ubyte.gz")
    task = MnistTask(network=network, folder=tmp_path)
    values, labels = task.records()
    assert len(values) == len(labels) == 30
    model = task.model()
    assert model(values).shape == (30, 10) and task.loss(model, (values, labels)).shape == (30,)
    assert task.evaluate(model).on == "20 published test images"


def test_settings_are_chosen_on_records_that_do_not_train(
    tmp_path: Path, small: dict[str, NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "_HELD_OUT", 10)
    write(tmp_path, small, "{stem}-idx{n}-ubyte.gz")
    whole, choosing = MnistTask(folder=tmp_path), MnistTask(folder=tmp_path, evaluate_on="validation")
    assert len(choosing.records()[0]) == choosing.size == 20 and len(whole.records()[0]) == whole.size == 30
    assert choosing.evaluate(choosing.model()).on == "10 training images held out for choosing"


def test_options_must_be_known() -> None:
    cases: list[tuple[dict[str, Any], str]] = [({"network": "resnet"}, "cnn"), ({"evaluate_on": "train"}, "validation")]
    for options, lesson in cases:
        with pytest.raises(InvalidParameter, match=lesson):
            MnistTask(**options)
    with pytest.raises(InvalidParameter, match="one split"):
        MnistTask(split=1)


# -------------------------------------------------------------------------------------------- the features


def test_features_of_an_image_depend_on_that_image_alone() -> None:
    images = torch.rand(6, 28, 28, generator=torch.Generator().manual_seed(0))
    before = scattering(images)
    images[2] = 1 - images[2]
    after = scattering(images)
    same = torch.isclose(before, after, atol=1e-6).flatten(1).all(dim=1)
    assert same.tolist() == [True, True, False, True, True, True]


def test_features_are_those_of_the_definition_in_slow_sums() -> None:
    """|x ⋆ ψ| ⋆ φ of one channel, by circular convolution written out, at every fourth pixel."""
    from quietsum.tasks.gallery import scattering as module

    image = torch.rand(28, 28, generator=torch.Generator().manual_seed(1))
    framed = torch.nn.functional.pad(image[None, None], (2, 2, 2, 2), mode="reflect")[0, 0].double().numpy()
    fine, _ = module._wavelets()
    psi = np.fft.ifft2(fine[3].double().numpy())
    line = np.minimum(np.arange(32), 32 - np.arange(32))
    low = np.exp(-(line[:, None] ** 2 + line[None, :] ** 2) / (2 * 1.6**2))
    low /= low.sum()

    def convolved(values: NDArray[np.float64], kernel: NDArray[np.complex128]) -> NDArray[np.complex128]:
        found = np.zeros((32, 32), dtype=np.complex128)
        for down in range(32):
            for right in range(32):
                found += kernel[down, right] * np.roll(values, (down, right), (0, 1))
        return found

    wanted = convolved(np.abs(convolved(framed, psi)), low.astype(np.complex128)).real[::4, ::4]
    found = scattering(image[None])[0, 1 + 3].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_wavelets_see_no_constant_and_turn_with_the_image() -> None:
    flat = scattering(torch.full((1, 28, 28), 0.7))
    assert float(flat[:, 1:].abs().max()) < 1e-5 and float(flat[:, 0].min()) == pytest.approx(0.7, rel=1e-4)
    stripes = (torch.arange(28) % 4 < 2).float().expand(28, 28)
    across, along = scattering(stripes[None]), scattering(stripes.T[None])
    strongest = [int(found[0, 1:9].mean((1, 2)).argmax()) for found in (across, along)]
    assert abs(strongest[0] - strongest[1]) == 4  # a quarter turn is half of eight orientations
    assert across.shape == (1, CHANNELS, 8, 8)


def test_other_sizes_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="28"):
        scattering(torch.zeros(2, 32, 32))


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("QUIETSUM_DATA"), reason="QUIETSUM_DATA names no folder with the downloaded data"
)
def test_the_published_files_have_the_known_sums() -> None:
    for part, (_, shape, _) in MNIST.parts.items():
        assert read_part(data_folder("mnist"), part).shape == shape
