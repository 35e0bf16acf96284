"""The nuclei from files that may be missing, truncated or altered; the split by a public rule; and the small U-Net."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.datafiles import data_folder, sha256_of
from quietsum.tasks.gallery import nuclei
from quietsum.tasks.gallery.files import nuclei as reader
from quietsum.tasks.gallery.files.nuclei import check_nuclei, read_nuclei
from quietsum.tasks.gallery.nuclei import NucleiTask, SmallUNet, nuclei_features, segmentation_loss, split_group
from tasks.one_row import assert_row_local

RECORDS = 20
needs_data = pytest.mark.skipif(
    not os.environ.get("QUIETSUM_DATA"), reason="QUIETSUM_DATA names no folder with the downloaded data"
)


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    masks = np.zeros((RECORDS, 128, 128), np.uint8)
    for mask in masks:
        top, left = rng.integers(0, 90, 2)
        mask[top : top + 30, left : left + 30] = 1
    images = (masks * 120 + rng.integers(0, 60, masks.shape)).astype(np.uint8)
    sizes = np.array([(256, 256), (256, 320)], np.int16)[np.arange(RECORDS) % 2]
    return {"images": images, "masks": masks, "orig_hw": sizes}


def facts(made: dict[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
    """A tiny set whose sums are the known ones."""
    return {name: (values.shape, sha256_of(values)) for name, values in made.items()}


def write(folder: Path, made: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "nuclei_dsb2018_128.npz", **made)
    return folder


def test_pictures_are_read_as_they_are(tmp_path: Path) -> None:
    made = arrays()
    found = read_nuclei(write(tmp_path, {**made, "n_nuclei": np.ones(RECORDS)}), facts(made))
    np.testing.assert_array_equal(found.images, made["images"])
    np.testing.assert_array_equal(found.masks, made["masks"])
    assert found.sites()[:3] == ("256x256", "256x320", "256x256") and str(found) == "Pictures(20 records)"


@pytest.mark.parametrize("name", ["images", "masks", "orig_hw"])
def test_one_altered_value_is_refused(tmp_path: Path, name: str) -> None:
    made = arrays()
    known = facts(made)
    made[name].flat[5] ^= 1
    with pytest.raises(DataMissing, match=f"{name} is not as published"):
        read_nuclei(write(tmp_path, made), known)
    read_nuclei(write(tmp_path, arrays()), known)  # the control


def broken(name: str, change: Any) -> dict[str, Any]:
    made = arrays()
    made[name] = change(made[name])
    return made


def with_value(index: Any, value: float) -> Any:
    def change(values: Any) -> Any:
        values = values.astype(np.float32) if value != value else values.copy()
        values[index] = value
        return values

    return change


@pytest.mark.parametrize(
    ("made", "lesson"),
    [
        (broken("images", with_value((3, 0, 0), np.nan)), "NaN or infinite pixels, first in row 3"),
        (broken("images", lambda images: images.astype(np.float32)), "are not bytes"),
        (broken("images", lambda images: images[:, :64, :64]), "are not n × 128 × 128"),
        (broken("images", lambda images: images[:7]), "do not fit together"),
        (broken("images", lambda images: images[:0]), "no image at all"),
        (broken("masks", with_value((4, 1, 1), 2)), "labels other than 0 and 1"),
        (broken("masks", with_value(6, 0)), "the class is empty"),
        (broken("masks", lambda masks: masks[:, None]), "are not n × 128 × 128"),
        (broken("orig_hw", lambda sizes: sizes[:, 0]), "do not fit together"),
        (broken("orig_hw", with_value((0, 0), 0)), "above zero"),
    ],
)
def test_bad_pictures_are_an_error_that_teaches(tmp_path: Path, made: dict[str, Any], lesson: str) -> None:
    with pytest.raises(DataMissing, match=lesson) as told:
        read_nuclei(write(tmp_path, made), facts(made))
    assert "fetch it again" in str(told.value) and str(tmp_path) in str(told.value)


def test_missing_and_truncated_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"not in .*nuclei_dsb2018_128\.npz.*QUIETSUM_DATA"):
        NucleiTask(folder=tmp_path).records()
    path = write(tmp_path, arrays()) / "nuclei_dsb2018_128.npz"
    content = path.read_bytes()
    for kept in (0, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:kept])
        with pytest.raises(DataMissing, match="fetch it again"):
            read_nuclei(tmp_path)


# ------------------------------------------------------------------------------------------------ the split


def test_the_split_needs_no_file_and_its_parts_do_not_overlap() -> None:
    for split in range(10):
        test, validation = NucleiTask(split=split), NucleiTask(split=split, evaluate_on="validation")
        held, chosen = set(test._scored), set(validation._scored)
        assert not held & chosen and not held & set(test._trained) and chosen <= set(test._trained)
        assert not (held | chosen) & set(validation._trained)
        assert test.size + len(held) == 664 and validation.size + len(held) + len(chosen) == 664
        assert 90 < len(held) < 180 and 90 < len(chosen) < 180
        assert test.settings.training["delta"] <= 1 / (10 * test.size)
    assert (NucleiTask().size, NucleiTask(evaluate_on="validation").size) == (532, 388)


def test_splits_differ() -> None:
    assert len({tuple(NucleiTask(split=split)._scored) for split in range(10)}) == 10


@pytest.mark.parametrize(
    ("options", "lesson"),
    [
        ({"network": "resnet"}, "unet"),
        ({"evaluate_on": "train"}, "validation"),
        ({"split": 10}, "0 … 9"),
        ({"split": -1}, "split"),
        ({"split": 0.5}, "split"),
    ],
)
def test_options_must_be_known(options: dict[str, Any], lesson: str) -> None:
    with pytest.raises(InvalidParameter, match=lesson):
        NucleiTask(**options)


# ------------------------------------------------------------------------------------------------- the task


def tiny(folder: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Any], **options: Any) -> NucleiTask:
    monkeypatch.setattr(nuclei, "KNOWN", facts(made))
    monkeypatch.setattr(nuclei, "RECORDS", RECORDS)
    task = NucleiTask(folder=write(folder, made), **options)
    task.records()  # read now, while these are the known sums
    return task


def test_records_are_those_that_the_rule_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny(tmp_path, monkeypatch, arrays())
    values, masks = task.records()
    numbers = [number for number in range(RECORDS) if split_group(number) > 0]
    assert len(values) == len(masks) == task.size == len(numbers) == len(task.sites())
    np.testing.assert_array_equal(masks.numpy(), arrays()["masks"][numbers])
    assert task.sites() == tuple(("256x256", "256x320")[number % 2] for number in numbers)
    for made, real in zip(task.example(), (values, masks), strict=True):
        assert (made.shape[1:], made.dtype) == (real.shape[1:], real.dtype)
    score = task.evaluate(task.model())
    assert next(iter(score.values)) == "dice"
    assert score.on == f"{RECORDS - len(numbers)} published test pictures held out"


def test_nothing_is_computed_over_several_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tiny(tmp_path / "before", monkeypatch, arrays())
    made = arrays()
    number = [number for number in range(RECORDS) if split_group(number) > 0][2]
    made["images"][number] = 255 - made["images"][number]
    made["masks"][number] = 1
    after = tiny(tmp_path / "after", monkeypatch, made)
    assert_row_local(before, after, 2, modules=(nuclei, reader))


def test_a_picture_and_its_negative_look_alike_and_flat_ones_are_finite() -> None:
    dark = arrays()["images"][:2]
    assert dark.mean() < 127
    assert torch.allclose(nuclei_features(dark).float(), nuclei_features(255 - dark).float(), atol=1e-2)
    assert bool(torch.isfinite(nuclei_features(np.zeros((1, 128, 128), np.uint8))).all())


class Says(nn.Module):
    """A model that answers what it is told."""

    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self.answer = nn.Parameter(answer)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.answer[: len(values)]


def test_the_loss_is_one_value_per_picture_by_its_formula() -> None:
    masks = torch.from_numpy(arrays()["masks"][:3])
    answers = torch.randn(3, 128, 128, generator=torch.Generator().manual_seed(0))
    found = segmentation_loss(Says(answers), (torch.zeros(3, 1, 128, 128), masks)).detach()
    for row in range(3):
        chance, wanted = 1 / (1 + np.exp(-answers[row].double().numpy())), masks[row].double().numpy()
        entropy = -(wanted * np.log(chance) + (1 - wanted) * np.log(1 - chance)).mean()
        overlap = (2 * (chance * wanted).sum() + 1) / (chance.sum() + wanted.sum() + 1)
        assert float(found[row]) == pytest.approx(entropy + 1 - overlap, rel=1e-4)


def test_right_answers_have_dice_one_and_wrong_ones_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny(tmp_path, monkeypatch, arrays())
    masks = torch.from_numpy(arrays()["masks"][[n for n in range(RECORDS) if split_group(n) == 0]]).float()
    assert task.evaluate(Says(masks * 2 - 1)).values["dice"] == 1.0
    assert task.evaluate(Says(1 - masks * 2)).values["dice"] == 0.0


def test_the_network_answers_each_picture_by_itself() -> None:
    torch.manual_seed(0)
    model = SmallUNet()
    values = torch.randn(4, 1, 128, 128)
    together = model(values)
    assert together.shape == (4, 128, 128)
    assert torch.allclose(together[1], model(values[1:2])[0], atol=1e-5)


def test_our_engine_knows_every_layer_and_agrees_with_the_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from quietsum.learning.clipping import Flat
    from quietsum.learning.step import PrivateStep

    task = tiny(tmp_path, monkeypatch, arrays())
    torch.manual_seed(0)
    model, batch = task.model(), tuple(part[:3] for part in task.records())
    sums = [
        PrivateStep.build(
            model, task.loss, Flat(max_norm=0.5), noise_multiplier=1.0, rate=0.1, expected_batch=3.0, engine=engine
        ).deterministic(batch)
        for engine in ("bookkeeping", "naive")
    ]
    for fast, slow in zip(*sums, strict=True):
        assert np.allclose(fast, slow, atol=1e-4)


@needs_data
def test_the_prepared_file_is_accepted() -> None:
    folder = data_folder("nuclei_dsb2018")
    assert check_nuclei(folder) == "664 pictures with masks, 9 original sizes"
    task = NucleiTask()
    values, masks = task.records()
    assert len(values) == len(masks) == task.size == len(task.sites())
