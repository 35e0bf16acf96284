"""Skeleton sequences from text files and from the packed file, prepared one by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.datafiles import data_folder, sha256_of
from quietsum.tasks.gallery import pose, stgcn
from quietsum.tasks.gallery.files import pose as reader
from quietsum.tasks.gallery.files.pose import (
    KNOWN,
    KnownSequences,
    check_sequences,
    pack_sequences,
    read_sequences,
    resample,
)
from quietsum.tasks.gallery.pose import FEATURES, FRAMES, PoseTask, motion_features
from tasks.one_row import assert_row_local

HERE = data_folder("msr_action3d")
needs_data = pytest.mark.skipif(not os.environ.get("QUIETSUM_DATA"), reason="set QUIETSUM_DATA to read the real files")
Arrays = dict[str, NDArray[Any]]


def made() -> Arrays:
    """Every subject once does every second action, all 20 actions among them, in 5 to 9 frames each."""
    rng = np.random.default_rng(8)
    keys = [(action, subject, 1) for action in range(1, 21) for subject in range(1, 11) if (action + subject) % 2]
    lengths = rng.integers(5, 10, len(keys)).astype(np.int32)
    frames = rng.normal(size=(lengths.sum(), 20, 4)).round(6).astype(np.float32)
    frames[..., 3] = 1
    numbers = np.array(keys, dtype=np.int16)
    return {"frames": frames, "lengths": lengths, "action": numbers[:, 0], "subject": numbers[:, 1],
            "trial": numbers[:, 2]}  # fmt: skip


def known_of(arrays: Arrays) -> KnownSequences:
    sums = {name: sha256_of(values) for name, values in arrays.items()}
    return KnownSequences(sequences=len(arrays["lengths"]), frames=len(arrays["frames"]), sums=sums)


def write_npz(folder: Path, arrays: Arrays) -> KnownSequences:
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / "msr_action3d.npz", **arrays)  # type: ignore[arg-type]
    return known_of(arrays)


def write_texts(folder: Path, arrays: Arrays) -> KnownSequences:
    """The published form: one file for each sequence, one line for each joint of each frame."""
    folder.mkdir(exist_ok=True)
    sequences = np.split(arrays["frames"], np.cumsum(arrays["lengths"])[:-1])
    keys = zip(arrays["action"], arrays["subject"], arrays["trial"], strict=True)
    for (action, subject, trial), frames in zip(keys, sequences, strict=True):
        lines = ["  ".join(f"{value:.6f}" for value in joint) for joint in frames.reshape(-1, 4)]
        path = folder / f"a{action:02d}_s{subject:02d}_e{trial:02d}_skeleton3D.txt"
        path.write_text("\n".join(lines) + "\n", encoding="ascii")
    return known_of(arrays)


# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("below", ["", "data", "skeleton"])
def test_text_files_and_the_packed_file_give_the_same_arrays(tmp_path: Path, below: str) -> None:
    arrays = made()
    known = write_texts(tmp_path / below, arrays)
    found = read_sequences(tmp_path, known)
    assert pack_sequences(tmp_path, known) == tmp_path / "msr_action3d.npz"
    for path in (tmp_path / below).glob("*.txt"):
        path.unlink()
    again = read_sequences(tmp_path, known)
    for name, values in arrays.items():
        np.testing.assert_array_equal(getattr(found, name), values)
        np.testing.assert_array_equal(getattr(again, name), values)
    assert [len(part) for part in found.each()] == arrays["lengths"].tolist()


def test_missing_files_are_an_error_that_says_where_to_put_which(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"aXX_sYY_eZZ_skeleton3D\.txt.*QUIETSUM_DATA") as told:
        PoseTask(folder=tmp_path).records()
    assert str(tmp_path) in str(told.value)


@pytest.mark.parametrize("cut", [0, 7, 900, -20])
def test_a_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    known = write_texts(tmp_path / "texts", made())
    path = next((tmp_path / "texts").glob("a07*"))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataMissing, match="fetch it again"):
        read_sequences(tmp_path / "texts", known)
    known = write_npz(tmp_path / "npz", made())
    read_sequences(tmp_path / "npz", known)  # the control
    path = tmp_path / "npz" / "msr_action3d.npz"
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataMissing, match="fetch it again"):
        read_sequences(tmp_path / "npz", known)


def test_a_lost_sequence_a_whole_lost_frame_and_one_altered_number_are_refused(tmp_path: Path) -> None:
    known = write_texts(tmp_path, made())
    path = sorted(tmp_path.glob("*.txt"))[3]
    content = path.read_text(encoding="ascii")
    path.unlink()
    with pytest.raises(DataMissing, match="99 sequences where the published set has 100"):
        read_sequences(tmp_path, known)
    path.write_text("\n".join(content.splitlines()[20:]), encoding="ascii")
    with pytest.raises(DataMissing, match="shape"):
        read_sequences(tmp_path, known)
    path.write_text(content.replace("1", "2", 1), encoding="ascii")
    with pytest.raises(DataMissing, match="frames is not as published"):
        read_sequences(tmp_path, known)
    path.write_text(content.replace("1", "x", 1), encoding="ascii")
    with pytest.raises(DataMissing, match="no table of numbers"):
        read_sequences(tmp_path, known)
    path.write_text(content, encoding="ascii")
    read_sequences(tmp_path, known)  # the control


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("frames", np.nan, "NaN or infinite"), ("frames", np.inf, "NaN or infinite"), ("action", 21, "outside 0 … 19"),
        ("action", 0, "outside 0 … 19"), ("subject", 11, "outside 0 … 9"), ("trial", 9, "outside 0 … 2"),
        ("lengths", 0, "do not add up"), ("lengths", 500, "do not add up"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_named_even_where_the_sum_is_right(
    tmp_path: Path, name: str, value: float, said: str
) -> None:
    arrays = made()
    arrays[name].flat[3] = value
    with pytest.raises(DataMissing, match=said):
        read_sequences(tmp_path, write_npz(tmp_path, arrays))


def test_wrong_shapes_and_an_empty_class_are_named(tmp_path: Path) -> None:
    arrays = made()
    with pytest.raises(DataMissing, match="n × 20 × 4"):
        read_sequences(tmp_path, write_npz(tmp_path, {**arrays, "frames": arrays["frames"][:, :19]}))
    with pytest.raises(DataMissing, match="no example of class 4"):
        changed = np.where(arrays["action"] == 5, 6, arrays["action"]).astype(np.int16)
        read_sequences(tmp_path, write_npz(tmp_path, {**arrays, "action": changed}))
    with pytest.raises(DataMissing, match="do not fit"):
        read_sequences(tmp_path, write_npz(tmp_path, {**arrays, "subject": arrays["subject"][:-1]}))
    np.savez(tmp_path / "msr_action3d.npz", frames=arrays["frames"])
    with pytest.raises(DataMissing, match="no array"):
        read_sequences(tmp_path, KNOWN)


# ------------------------------------------------------------------------------------------ one sequence


def straight(length: int) -> NDArray[np.float32]:
    """All joints on one line, walking steadily along x."""
    frames = np.zeros((length, 20, 4), dtype=np.float32)
    frames[..., 1] = np.arange(20) / 10
    frames[..., 2] = 3
    frames[..., 0] = np.linspace(5, 6, length)[:, None]
    return frames


def test_resampling_keeps_a_steady_walk_steady_and_begins_at_the_hips() -> None:
    for length in (2, 13, 32, 77):
        found = resample(straight(length), 32)
        np.testing.assert_allclose(found[:, 6, 0], np.linspace(0, 1, 32), atol=1e-6)
        np.testing.assert_allclose(found[0, 6], 0, atol=1e-6)
    assert resample(straight(1), 32).shape == (32, 20, 3)


def test_frames_without_a_joint_are_left_out_and_very_long_sequences_are_cut() -> None:
    walk = straight(40)
    holes = np.insert(walk, [0, 7, 7, 20, 40], 0, axis=0)
    np.testing.assert_array_equal(resample(holes, 32), resample(walk, 32))
    np.testing.assert_array_equal(resample(straight(936)[:120], 32), resample(straight(936), 32))
    assert not resample(np.zeros((9, 20, 4), dtype=np.float32), 32).any()


def test_features_have_unit_length_and_do_not_see_where_somebody_stands() -> None:
    motion = np.stack([resample(straight(20), FRAMES), np.zeros((FRAMES, 20, 3), dtype=np.float32)])
    motion[0, :, 11] += np.sin(np.arange(FRAMES))[:, None].astype(np.float32)
    found = motion_features(motion)
    assert found.shape == (2, FEATURES) and np.isfinite(found).all()
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(motion_features(motion + np.float32(0.5)), found, atol=1e-5)


# ------------------------------------------------------------------------------------------------ the task


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pose, "KNOWN", write_npz(tmp_path, made()))
    return tmp_path


@pytest.mark.parametrize("network", ["linear", "stgcn"])
@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
def test_both_networks_read_records_of_odd_subjects(small: Path, network: str, evaluate_on: str) -> None:
    task = PoseTask(network=network, evaluate_on=evaluate_on, folder=small)
    values, labels = task.records()
    wanted = [1, 3, 5, 7, 9] if evaluate_on == "test" else [1, 3, 7, 9]
    assert np.unique(task.people()).tolist() == wanted
    assert len(values) == len(labels) == len(task.people()) == 10 * len(wanted)
    assert values.shape[1:] == ((FEATURES,) if network == "linear" else (3, FRAMES, 20))
    for made, real in zip(task.example(), (values, labels), strict=True):
        assert (made.shape[1:], made.dtype) == (real.shape[1:], real.dtype)
    model = task.model()
    assert task.loss(model, (values, labels)).shape == labels.shape
    scored = task.evaluate(model)
    assert list(scored.values) == ["accuracy"]
    assert scored.on.startswith("50 " if evaluate_on == "test" else "10 ") and task.person == "subject"


def test_a_subject_on_both_sides_of_the_split_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = PoseTask(folder=small)
    assert len(task.people()) == len(task.records()[0])  # the control
    monkeypatch.setattr(PoseTask, "_trains", lambda task: np.arange(100) % 3 == 0)
    with pytest.raises(InvalidParameter, match=r"one subject in two sites pays twice"):
        task.people()


@pytest.mark.parametrize("network", ["linear", "stgcn"])
def test_nothing_private_steers_the_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    arrays = made()
    trains = np.flatnonzero(arrays["subject"] % 2 == 1)
    starts = np.concatenate([[0], np.cumsum(arrays["lengths"])])
    altered = {name: values.copy() for name, values in arrays.items()}
    altered["frames"][starts[trains[4]] : starts[trains[4] + 1]] *= 50
    altered["action"][trains[4]] = 20
    monkeypatch.setattr(pose, "KNOWN", write_npz(tmp_path / "a", arrays))
    before = PoseTask(network=network, folder=tmp_path / "a")
    before.records()
    monkeypatch.setattr(pose, "KNOWN", write_npz(tmp_path / "b", altered))
    after = PoseTask(network=network, folder=tmp_path / "b")
    assert_row_local(before, after, 4, modules=[pose, reader, stgcn])


@pytest.mark.parametrize(
    ("options", "said"), [({"network": "lstm"}, "stgcn"), ({"evaluate_on": "x"}, "validation"), ({"split": 2}, "0")]
)
def test_options_must_be_known(options: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        PoseTask(**options)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ the published files


@needs_data
def test_the_published_sequences_have_the_known_sums_and_sizes() -> None:
    assert check_sequences(HERE) == "567 sequences of 10 people, 23,478 frames"
    for where, sizes in pose.SIZES.items():
        for split, size in enumerate(sizes):
            task = PoseTask(evaluate_on=where, split=split)
            assert task.size == size == len(task.records()[0]) == len(task.people())


@needs_data
def test_a_few_published_sequences_survive_the_way_through_text_files(tmp_path: Path) -> None:
    whole = read_sequences(HERE, KNOWN)
    longest = int(np.argmax(whole.lengths))
    assert (whole.action[longest], whole.subject[longest], whole.trial[longest]) == (13, 9, 3)
    chosen = np.unique(np.concatenate([np.arange(0, 567, 7), [longest]]))
    each = whole.each()
    arrays: Arrays = {
        "frames": np.concatenate([each[i] for i in chosen]), "lengths": whole.lengths[chosen],
        "action": whole.action[chosen], "subject": whole.subject[chosen], "trial": whole.trial[chosen],
    }  # fmt: skip
    found = read_sequences(tmp_path, write_texts(tmp_path, arrays))
    np.testing.assert_array_equal(found.frames, arrays["frames"])


@needs_data
def test_the_fixed_features_carry_the_answer_to_other_people() -> None:
    task = PoseTask(evaluate_on="validation")
    model, records = task.model(), task.records()
    optimizer = torch.optim.SGD(model.parameters(), lr=10.0, momentum=0.9)
    for _ in range(15):
        optimizer.zero_grad()
        task.loss(model, records).mean().backward()
        optimizer.step()
    assert task.evaluate(model).values["accuracy"] > 0.6  # chance is 0.05
