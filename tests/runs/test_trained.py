"""A finished model is used: weights by name, predictions, and refusals of what does not belong together."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quietsum as qs
from quietsum.errors import CorruptState, DataMissing, InvalidParameter
from quietsum.runs import TrainedModel, Workspace, open_model
from quietsum.runs.weights import read_weights, save_weights
from quietsum.tasks import task_of
from quietsum.tasks.gallery.heart import encode

HEART = """
[federation]
rounds = 1
[training]
sample_rate = 0.2
local_steps = 1
[privacy]
record = { epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
"""
DIGITS = HEART.replace("[federation]", '[task]\nname = "digits"\n[federation]\nsplit = "iid"\nparties = 3')
COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
PATIENT = "66,1,4,150,290,0,2,110,1,2.5"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a finished run of heart; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("trained")
    qs.run(HEART, workspace=folder, name="first")
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a finished run of digits."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pictures")
    qs.run(DIGITS, workspace=folder, name="first")
    return folder


def copied(place: Path, to: Path) -> Path:
    shutil.copytree(place, to / "copy")
    return to / "copy" / "runs" / "first"


def write_rows(path: Path, lines: Sequence[str], header: Sequence[str] = COLUMNS) -> Path:
    path.write_text("\n".join([",".join(header), *lines]) + "\n", encoding="utf-8")
    return path


def spoil(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


# -------------------------------------------------------------------------------------------------- numpy


def test_a_numpy_run_is_found_by_name_by_folder_and_as_a_run(place: Path) -> None:
    by_name = qs.load_model("first", workspace=place)
    assert isinstance(by_name, TrainedModel) and (by_name.run, by_name.task) == ("first", "heart")
    by_folder = qs.load_model(place / "runs" / "first")
    np.testing.assert_array_equal(by_name.params, by_folder.params)
    assert 0.5 < by_name.guarantees[0].epsilon <= 1.0
    assert not (place / "runs" / "first" / "weights.safetensors").exists()


def test_a_table_is_predicted_as_the_encoding_and_the_model_say(place: Path, tmp_path: Path) -> None:
    model = open_model("first", Workspace.at(place))
    found = model.predict_file(write_rows(tmp_path / "rows.csv", [PATIENT, "40,0,2,120,200,0,0,170,0,0"]))
    values = np.zeros((2, 14))
    values[:, :10] = np.array([[66, 1, 4, 150, 290, 0, 2, 110, 1, 2.5], [40, 0, 2, 120, 200, 0, 0, 170, 0, 0]])
    ill = 1 / (1 + np.exp(-encode(values).features @ model.params))
    np.testing.assert_allclose(found.values[:, 1], ill, rtol=1e-12)
    assert found.labels() == ["ill" if one > 0.5 else "well" for one in ill] and found.missing == 0


def test_columns_may_stand_in_any_order_and_beside_others(place: Path, tmp_path: Path) -> None:
    model = open_model("first", Workspace.at(place))
    straight = model.predict_file(write_rows(tmp_path / "rows.csv", [PATIENT]))
    turned = ",".join([*PATIENT.split(",")[::-1], "1", "Ann"])
    other = model.predict_file(write_rows(tmp_path / "other.csv", [turned], [*COLUMNS[::-1], "num", "name"]))
    np.testing.assert_array_equal(straight.values, other.values)


@pytest.mark.parametrize(
    "broken",
    ["?" + PATIENT[2:], "nan" + PATIENT[2:], "inf" + PATIENT[2:], "66,1", PATIENT + ",7", '"66,1', "9" * (1 << 20)],
    ids=["missing", "nan", "infinite", "short", "long", "unclosed quote", "a line of a megabyte"],
)
def test_a_broken_row_has_an_empty_prediction_and_changes_no_other(place: Path, tmp_path: Path, broken: str) -> None:
    model = open_model("first", Workspace.at(place))
    alone = model.predict_file(write_rows(tmp_path / "alone.csv", [PATIENT]))
    found = model.predict_file(write_rows(tmp_path / "rows.csv", [PATIENT, broken, PATIENT]))
    assert found.missing == 1 and found.labels()[1] == "" and len(found) == 3
    np.testing.assert_array_equal(found.values[[0, 2]], alone.values[[0, 0]])
    assert found.to_csv().splitlines()[2] == "2,,,"


def test_all_columns_that_are_missing_are_named(place: Path, tmp_path: Path) -> None:
    model = open_model("first", Workspace.at(place))
    table = write_rows(tmp_path / "rows.csv", ["66,1"], ["age", "sex"])
    with pytest.raises(InvalidParameter, match=r"cp, trestbps, chol, .* are not all in the table"):
        model.predict_file(table)
    twice = write_rows(tmp_path / "twice.csv", [PATIENT + ",66"], [*COLUMNS, "age"])
    with pytest.raises(InvalidParameter, match="'age' are in the table more than once"):
        model.predict_file(twice)


def test_arrays_are_read_without_unpickling_and_held_to_the_models_width(place: Path, tmp_path: Path) -> None:
    model, path = open_model("first", Workspace.at(place)), tmp_path / "rows.npy"
    np.save(path, np.zeros((2, 15)))
    assert model.predict_file(path).values.tolist() == [[0.5, 0.5]] * 2
    np.save(path, np.zeros((2, 1)))  # numpy would stretch it
    with pytest.raises(InvalidParameter, match=r"do not fit the model; pass one of shape \(n, 15\)"):
        model.predict_file(path)
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        model.predict_file(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(InvalidParameter, match="cannot be read"):
        model.predict_file(path)
    for header in (b"{'descr': (", b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,1)} ]"):
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        with pytest.raises(InvalidParameter, match="cannot be read"):
            model.predict_file(path)
    np.savez(tmp_path / "two.npz", a=np.zeros(1), b=np.zeros(1))
    with pytest.raises(InvalidParameter, match=r"holds 2 arrays \(a, b\)"):
        model.predict_file(tmp_path / "two.npz")


def test_a_model_with_a_turned_bit_is_refused(place: Path, tmp_path: Path) -> None:
    folder = copied(place, tmp_path)
    qs.load_model(folder)  # the control: the copy is good
    spoil(folder / "model.safetensors")
    with pytest.raises(CorruptState, match="cannot be read"):
        qs.load_model(folder)


def test_the_model_of_another_run_is_refused(place: Path, tmp_path: Path) -> None:
    folder = copied(place, tmp_path)
    other = qs.run(HEART.replace("epsilon = 1.0", "epsilon = 2.0"), workspace=tmp_path / "other", name="second")
    shutil.copy(other.path / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(CorruptState, match="is the model of another run or plan"):
        qs.load_model(folder)


def test_a_run_that_is_not_finished_has_no_model(place: Path, tmp_path: Path) -> None:
    folder = copied(place, tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidParameter, match=r"is not finished, so it has no model; .*--resume first"):
        qs.load_model(folder)


def test_a_run_that_has_gone_on_since_its_model_was_written_is_refused(place: Path, tmp_path: Path) -> None:
    folder = copied(place, tmp_path)
    checkpoints = folder / "checkpoints"
    shutil.copy(checkpoints / "round-000001.safetensors", checkpoints / "round-000002.safetensors")
    with pytest.raises(InvalidParameter, match="has gone on to round 2 since its model was written"):
        qs.load_model(folder)


TABLE = """
[task]
name = "table"
[task.options]
name = "visits"
table = "visits.csv"
label = { name = "back", kind = "category", categories = ["no", "yes"] }
columns = [{ name = "age", kind = "number", bounds = [0, 100] }]
sites = [{ name = "here", size = 200 }]
"""


def test_a_table_of_ones_own_is_predicted_by_its_plan_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoding is the plan's, labels are not needed, and neither are the rows that were trained on."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("visits.csv"), [f"{20 + place % 60},{'no' if place % 60 < 30 else 'yes'}" for place in range(200)],
               ["age", "back"])  # fmt: skip
    qs.run(TABLE + HEART, workspace=tmp_path / "place", name="visits")
    Path("visits.csv").unlink()
    model = open_model("visits", Workspace.at(tmp_path / "place"))
    found = model.predict_file(write_rows(Path("new.csv"), ["x,90", "y", "z,unknown", "w,10"], ["name", "age"]))
    age, missing, bias = model.params  # a number in [−1, 1], whether it is missing, and one
    logits = np.array([age * 0.8 + bias, missing + bias, -age * 0.8 + bias])
    np.testing.assert_allclose(found.values[[0, 2, 3], 1], 1 / (1 + np.exp(-logits)), rtol=1e-9)
    assert found.names == ("no", "yes") and found.missing == 1 and found.labels()[1] == ""
    with pytest.raises(InvalidParameter, match="'age' are not all in the table; its first line has name"):
        model.predict_file(write_rows(Path("other.csv"), ["x"], ["name"]))


def test_pictures_of_ones_own_are_predicted_by_the_names_of_their_classes() -> None:
    pytest.importorskip("torch")
    from quietsum.tasks import FederatedTorch
    from quietsum.tasks.table.samples import SamplesTask

    options = {"name": "scans", "classes": ["well", "ill"], "side": 32, "sites": [{"name": "here", "size": 400}]}
    task = FederatedTorch(SamplesTask.from_options("images", options))
    found = task.predict(task.initial(), np.zeros((2, 1, 32, 32)))
    assert found.names == ("well", "ill") and found.missing == 0
    with pytest.raises(InvalidParameter, match=r"pass one of shape \(n, 1, 32, 32\)"):
        task.predict(task.initial(), np.zeros((2, 1, 16, 16)))


def write_png(path: Path, gray: int) -> None:
    """A square picture of one gray, 20 pixels a side."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 20, 20, 8, 0, 0, 0, 0)
    pixels = zlib.compress((b"\0" + bytes([gray]) * 20) * 20)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))


@pytest.mark.parametrize("kind", ["images", "landmarks"])
def test_new_pictures_and_clips_are_read_as_those_that_trained(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from quietsum.tasks import FederatedTorch
    from quietsum.tasks.table.samples import SamplesTask

    options = {"name": "new", "classes": ["a", "b"], "sites": [{"name": "here", "size": 9}]}
    more: dict[str, Any]
    if kind == "images":
        for name in ("a/2.png", "b/1.png", "new/1.png", "new/2.png"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            write_png(tmp_path / name, 200 if name.endswith("2.png") else 20)
        (tmp_path / "new" / "3.png").write_bytes(b"no picture")
        more, new = {"path": str(tmp_path), "side": 16}, tmp_path / "new"
        wanted = [1, 0]  # by name, and not by class
    else:
        clips = np.random.default_rng(0).normal(size=(3, 6, 17, 3)).astype(np.float32)
        np.savez(tmp_path / "old.npz", landmarks=clips[:2], labels=np.array(["a", "b"]))
        clips[2, 1, 0, 0] = np.nan
        new = tmp_path / "new.npz"
        np.savez(new, landmarks=clips)
        more, wanted = {"path": str(tmp_path / "old.npz"), "frames": 6, "joints": 17}, [0, 1]
    task = SamplesTask.from_options(kind, {**options, **more})
    rows, trained = task.encode_file(new), task.records()[0].numpy()
    assert np.allclose(rows[:2], trained[wanted]) and np.isnan(rows[2]).all()
    adapted = FederatedTorch(task)
    found = adapted.predict(adapted.initial(), rows)
    assert found.labels()[2] == "" and found.missing == 1
    with pytest.raises((InvalidParameter, DataMissing)):
        task.encode_file(tmp_path / "gone")


# -------------------------------------------------------------------------------------------------- torch


def test_a_torch_run_leaves_a_state_dict_that_the_tasks_model_takes(pictures: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    from quietsum.tasks.gallery.digits import DigitsTask

    folder = pictures / "runs" / "first"
    fresh, loaded = DigitsTask().model(), qs.load_model("first", workspace=pictures)
    fresh.load_state_dict(load_file(folder / "weights.safetensors"))
    assert not loaded.training
    rows = DigitsTask().records()[0][:5]
    assert (fresh(rows) == loaded(rows)).all()
    with safe_open(folder / "weights.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["quietsum"])
    assert about["run"] == "first" and about["guarantees"][0]["unit"] == "record"


def test_predictions_are_the_models_own_forward_pass(pictures: Path, tmp_path: Path) -> None:
    from quietsum.tasks.gallery.digits import DigitsTask

    model = open_model("first", Workspace.at(pictures))
    rows = DigitsTask().records()[0][:7]
    chances = model.module(rows).double().softmax(1).detach().numpy()
    np.save(tmp_path / "rows.npy", rows.numpy())
    found = model.predict_file(tmp_path / "rows.npy")
    np.testing.assert_allclose(found.values, chances, rtol=1e-6)
    assert found.labels() == [str(one) for one in chances.argmax(1)]
    broken = rows.numpy().copy()
    broken.reshape(7, -1)[3, 0] = np.nan
    some = model.predict(broken)
    assert some.missing == 1 and some.labels()[3] == ""
    np.testing.assert_allclose(np.delete(some.values, 3, 0), np.delete(chances, 3, 0), rtol=1e-6)
    with pytest.raises(InvalidParameter, match="do not fit the model"):
        model.predict(np.zeros((2, 3)))
    with pytest.raises(InvalidParameter, match=r"pass the rows as \.npy"):
        model.predict_file(write_rows(tmp_path / "rows.csv", []))


def test_weights_that_were_altered_or_are_another_models_are_refused(pictures: Path, tmp_path: Path) -> None:
    folder = copied(pictures, tmp_path)
    weights = folder / "weights.safetensors"
    tensors, about = read_weights(weights)
    good = weights.read_bytes()
    spoil(weights)
    with pytest.raises(CorruptState, match="is not what was saved"):
        qs.load_model(folder)
    weights.write_bytes(good[:-8])
    with pytest.raises(CorruptState, match="cannot be read"):
        qs.load_model(folder)
    weights.write_bytes(good)
    params = open_model(str(folder)).params
    save_weights(weights, tensors, params + 1, about)  # of another vector
    with pytest.raises(CorruptState, match="is not of the model beside it"):
        qs.load_model(folder)
    name = min(tensors)
    save_weights(weights, {**tensors, name: tensors[name] + 1}, params, about)  # says it is this one, and is not
    with pytest.raises(CorruptState, match=f"differ in {name}"):
        qs.load_model(folder)
    weights.unlink()  # a folder of an older version: the vector alone
    assert not qs.load_model(folder).training


def test_another_tasks_model_is_refused(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.tasks.gallery.digits import DigitsTask

    def narrow(self: DigitsTask) -> Any:
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    monkeypatch.setattr(DigitsTask, "model", narrow)
    with pytest.raises(CorruptState, match="weights, and the model of digits has 650"):
        qs.load_model(copied(pictures, tmp_path))


def test_names_and_columns_follow_what_the_task_says_of_its_outputs() -> None:
    torch = pytest.importorskip("torch")
    from quietsum.learning import cross_entropy
    from quietsum.tasks.models import binary_cross_entropy, predict_with

    class Said:
        loss: Any = staticmethod(cross_entropy)

    model, rows = torch.nn.Linear(2, 1), np.array([[1.0, 2.0], [-3.0, 0.5]])
    logit = model(torch.from_numpy(rows).float()).double().detach().numpy()[:, 0]
    Said.loss = staticmethod(binary_cross_entropy)
    found = predict_with(model, Said(), rows)
    np.testing.assert_allclose(found.values[:, 1], 1 / (1 + np.exp(-logit)), rtol=1e-6)
    assert found.names == ("0", "1") and found.chances
    Said.loss = staticmethod(lambda model, batch: (model(batch[0]) - batch[1]).square())  # a number is learned
    found = predict_with(model, Said(), rows)
    np.testing.assert_allclose(found.values[:, 0], logit, rtol=1e-6)
    assert found.names == ("prediction",) and not found.chances
    assert found.to_csv().splitlines()[0] == "row,prediction"
    Said.classes = ("stays", "comes back", "neither")  # type: ignore[attr-defined]
    with pytest.raises(InvalidParameter, match="2 answers each from a model with 3 names"):
        predict_with(model, Said(), rows)


def test_a_model_that_keeps_what_is_no_tensor_is_still_released(tmp_path: Path) -> None:
    """The state dict is an extra: what cannot be written costs a warning, not the run."""
    pytest.importorskip("torch")

    task = task_of(qs.load_plan(DIGITS))

    class Broken(type(task)):  # type: ignore[misc]
        def named_weights(self, params: Any) -> Any:
            raise TypeError("no numpy for this kind")

    task.__class__ = Broken
    done = qs.run(DIGITS, workspace=tmp_path, task=task)
    assert done.outcome == "finished" and not (done.path / "weights.safetensors").exists()


def test_a_model_of_train_is_used_in_the_same_way(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from quietsum.learning.saving import _read, _write
    from quietsum.tasks.gallery.digits import DigitsTask
    from scenes import invoke

    place = tmp_path / "place"
    line = ("train", "--task", "digits", "--epsilon", "3", "--epochs", "1", "--workspace", str(place), "--json")
    result = invoke(*line)
    assert result.exit_code == 0, result.output
    name = json.loads(result.stdout)["run"]
    model, rows = open_model(name, Workspace.at(place)), DigitsTask().records()[0][:3]
    expected = model.module(rows).double().softmax(1).detach().numpy()
    np.testing.assert_allclose(model.predict(rows.numpy()).values, expected, rtol=1e-6)
    assert model.guarantees[0].epsilon <= 3.0 and not qs.load_model(place / "training" / name).training
    path = place / "training" / name / "model.safetensors"
    tensors, about = _read(path)
    older = {key: value for key, value in about.items() if key not in ("pricing", "digest")}
    for plan in (None, 7, {}, {**about["plan"], "stages": [1]}, {**about["plan"], "stages": [{"noise": 1}]}):
        _write(path, tensors, {**older, "person": {}, "plan": plan})
        with pytest.raises(CorruptState, match="does not say how it was trained"):
            open_model(name, Workspace.at(place))
    _write(path, tensors, {**older, "person": {}})
    assert open_model(name, Workspace.at(place)).guarantees[0].epsilon > model.guarantees[0].epsilon
    spoil(path)
    with pytest.raises(CorruptState):
        open_model(name, Workspace.at(place))
