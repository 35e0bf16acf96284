"""Files are read without trust: missing, truncated, damaged and foreign ones are refused with what to do."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quietsum import errors
from quietsum.tasks import datafiles, optional_part
from quietsum.tasks.datafiles import DATASETS, DataMissing, DataSet, data_folder, load_npz, refuse_unknown, sha256_of
from quietsum.tasks.registry import TRAINABLE, trainable_task


def test_there_is_one_data_missing() -> None:
    assert DataMissing is errors.DataMissing


def test_folders_lie_below_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path))
    assert data_folder("mnist") == tmp_path / "mnist" and data_folder("/usr/share/x") == Path("/usr/share/x")
    monkeypatch.setenv("QUIETSUM_DATA", "")
    assert data_folder("mnist") == Path("data/mnist")


def test_a_sum_knows_values_and_not_their_layout() -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert sha256_of(values) == sha256_of(values.astype(">i4")) == sha256_of(np.asfortranarray(values))
    assert sha256_of(values) == sha256_of(values.tobytes())
    assert sha256_of(values) != sha256_of(values.T)


def test_the_arrays_that_were_asked_for_are_returned(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", first=np.arange(3), second=np.ones(2))
    found = load_npz(tmp_path / "a.npz", ["first"])
    assert found.keys() == {"first"} and found["first"].tolist() == [0, 1, 2]


def test_a_missing_file_or_array_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"a\.npz is not there.*QUIETSUM_DATA"):
        load_npz(tmp_path / "a.npz", ["first"])
    np.savez(tmp_path / "a.npz", second=np.ones(2))
    with pytest.raises(DataMissing, match="has no array first"):
        load_npz(tmp_path / "a.npz", ["first", "second"])


@pytest.mark.parametrize("kept", [0, 1, 30, 0.5, -1])
def test_truncated_files_are_refused(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, first=np.random.default_rng(0).integers(0, 99, 5000))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(DataMissing, match="fetch it again"):
        load_npz(path, ["first"])


def test_a_flipped_byte_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, first=np.random.default_rng(0).integers(0, 99, 5000))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataMissing, match="truncated or damaged"):
        load_npz(path, ["first"])


class Trap:
    """What a hostile file might hold: unpickling it leaves a trace."""

    sprung = False

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return setattr, (Trap, "sprung", True)


def test_no_code_in_a_file_is_run(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, first=np.array([Trap()], dtype=object))
    with pytest.raises(DataMissing, match="damaged"):
        load_npz(path, ["first"])
    assert not Trap.sprung
    pickle.loads(pickle.dumps(Trap()))
    assert Trap.sprung  # the control: the trap works


def test_another_shape_or_another_value_is_refused() -> None:
    values = np.arange(6)
    refuse_unknown("a file", "values", values, (6,), sha256_of(values))
    with pytest.raises(DataMissing, match="shape"):
        refuse_unknown("a file", "values", values, (7,), sha256_of(values))
    with pytest.raises(DataMissing, match=r"SHA-256.*task for your own data"):
        refuse_unknown("a file", "values", values + 1, (6,), sha256_of(values))


def test_every_trainable_task_has_its_data_set_with_licence_and_source() -> None:
    assert set(TRAINABLE) <= set(DATASETS)
    for name, known in DATASETS.items():
        assert known.name == name and known.licence and known.source and known.title
        assert bool(known.folders) == bool(known.files)


def test_a_set_is_found_in_the_first_folder_that_holds_its_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QUIETSUM_DATA", str(tmp_path))
    known = DataSet(
        name="a", title="a", folders=("one", str(tmp_path / "two")), files=("*.npz",), licence="", source="",
        check=lambda folder: "",
    )  # fmt: skip
    assert known.find_folder() is None
    for place in ("two", "one"):
        (tmp_path / place).mkdir()
        assert known.find_folder() != tmp_path / place  # an empty folder holds nothing
        (tmp_path / place / "a.npz").touch()
        assert known.find_folder() == tmp_path / place


def test_the_sets_inside_packages_are_what_they_were() -> None:
    assert DATASETS["heart"].check(Path()) == "920 rows of 4 hospitals"
    assert DATASETS["digits"].check(Path()) == "1797 rows of 64 pixels"


def test_altered_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for constant in ("_DIGITS", "_DIGITS_LABELS"):
        with monkeypatch.context() as changed, pytest.raises(DataMissing, match="SHA-256"):
            changed.setattr(datafiles, constant, "0" * 64)
            DATASETS["digits"].check(Path())


def test_looking_at_data_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None\n"
    code += "from quietsum.tasks import checks, datafiles\n"
    code += "from quietsum.tasks.gallery.files import cards, chest_xray, fraud, idx, nuclei, pose\n"
    code += "print(datafiles.DATASETS['heart'].check(None))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "920 rows" in done.stdout, done.stderr


@pytest.mark.parametrize("name", [name for name in TRAINABLE if name not in ("digits", "text")])
def test_a_torch_task_says_that_its_files_are_not_there_and_reads_none_that_are(tmp_path: Path, name: str) -> None:
    task = trainable_task(name, {"folder": str(tmp_path)})
    look = optional_part(task, "look_for_data")
    assert look is not None
    with pytest.raises(DataMissing) as early:
        look("here")
    with pytest.raises(DataMissing) as late:
        task.records()
    assert str(early.value) == str(late.value), "the same words as of a training that reads"
    for stem in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "creditcard.csv", "fraud_transactions.csv",
                 "pneumoniamnist.npz", "nuclei_dsb2018_128.npz", "msr_action3d.npz"):  # fmt: skip
        (tmp_path / stem).write_bytes(b"nothing that could be read")
    look("here")
    with pytest.raises(DataMissing):
        task.records()
