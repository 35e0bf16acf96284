"""Tasks from pictures and landmarks: each record is read by itself, and what does not fit counts as zero."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quietsum.errors import DataMissing, InvalidParameter, PlanRefused
from quietsum.plan import FederationPlan, Plan, TaskPlan, load_plan
from quietsum.tasks import SamplesTask, class_folders, shape_of_landmarks, task_of
from scenes import invoke

SITES = [{"name": "here", "size": 100}]


def write_png(path: Path, values: np.ndarray) -> None:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    height, width = values.shape
    lines = b"".join(b"\0" + line.astype(np.uint8).tobytes() for line in values)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    )


def write_pictures(folder: Path, each: int = 6, seed: int = 0) -> Path:
    draw = np.random.default_rng(seed)
    for kind in ("ill", "well"):
        for number in range(each):
            values = draw.integers(0, 100, (12, 10))
            values[3:8, 3:8] += 120 * (kind == "ill")
            write_png(folder / kind / f"{number}.png", values)
    return folder


def make_pictures(folder: Path, **options: Any) -> SamplesTask:
    stated = {"name": "scans", "path": str(folder), "classes": ["ill", "well"], "side": 16, "sites": SITES, **options}
    return SamplesTask.from_options("images", stated)


def write_moves(path: Path, clips: int = 40, **changes: Any) -> Path:
    draw = np.random.default_rng(3)
    labels = draw.integers(0, 2, clips)
    moves = draw.normal(0, 0.05, (clips, 8, 33, 3))
    moves[labels == 1, :, 15, 1] += np.linspace(0, 1, 8)
    arrays = {"landmarks": moves, "labels": np.array(["rest", "wave"])[labels], "people": np.arange(clips) // 4}
    np.savez(path, **{**arrays, **changes})
    return path


def make_moves(path: Path, **options: Any) -> SamplesTask:
    stated = {
        "name": "moves",
        "path": str(path),
        "classes": ["rest", "wave"],
        "frames": 8,
        "joints": 33,
        "sites": SITES,
    }
    return SamplesTask.from_options("landmarks", {**stated, **options})


def losses(task: SamplesTask) -> torch.Tensor:
    torch.manual_seed(0)
    return task.loss(task.model(), task.records()).detach()


# ------------------------------------------------------------------------------------------------ pictures


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_picture_that_cannot_be_read_counts_as_zero_and_the_others_as_before(tmp_path: Path, content: bytes) -> None:
    task = make_pictures(write_pictures(tmp_path))
    before, found = task.records(), losses(task)
    (tmp_path / "ill" / "3.png").write_bytes(content)
    again = make_pictures(tmp_path)
    others = np.arange(12) != 3
    assert torch.equal(again.records()[0][others], before[0][others]) and (found > 0).all()
    assert losses(again)[3] == 0 and torch.equal(losses(again)[others], found[others])


def test_what_one_pictures_bytes_are_changes_its_own_record_alone(tmp_path: Path) -> None:
    before = make_pictures(write_pictures(tmp_path)).records()[0]
    write_png(tmp_path / "well" / "2.png", np.full((40, 50), 255))
    after = make_pictures(tmp_path).records()[0]
    assert torch.equal(torch.nonzero((before != after).flatten(1).any(1))[:, 0], torch.tensor([8]))
    assert (after[8] == 1).all() and after.abs().max() <= 1


def test_a_picture_that_is_a_program_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostScript under the name of a picture: Pillow would hand it to Ghostscript."""
    image, eps = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.EpsImagePlugin")
    called = list[object]()
    monkeypatch.setattr(eps, "Ghostscript", lambda *given, **options: called.append(given))
    write_pictures(tmp_path)
    file = tmp_path / "ill" / "9.jpg"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n")
    assert make_pictures(tmp_path).records()[1].tolist() == [0] * 6 + [-1] + [1] * 6
    assert not called
    for name in ("jpg", "bmp", "gif", "tiff"):
        image.fromarray(np.full((20, 20), 200, dtype=np.uint8)).save(file.with_suffix(f".{name}"))
    assert make_pictures(tmp_path).records()[1].tolist() == [0] * 10 + [1] * 6
    with image.open(file) as opened:  # negative control: without a list of formats PostScript is tried
        assert "EPS" in image.OPEN and opened.format == "JPEG"


def test_a_picture_of_more_pixels_than_there_is_memory_for_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = list[int]()
    monkeypatch.setattr("quietsum.tasks.gallery.files.png._undo_filters", lambda *given: unpacked.append(1))
    lines = zlib.compress(b"\0" * 9_000 * 9_001)
    header = struct.pack(">IIBBBBB", 9_000, 9_000, 8, 0, 0, 0, 0)
    (tmp_path / "ill").mkdir()
    bodies = {b"IHDR": header, b"IDAT": lines, b"IEND": b""}
    (tmp_path / "ill" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in bodies.items()
    ))  # fmt: skip
    assert make_pictures(tmp_path).records()[1].tolist() == [-1] and not unpacked


def test_the_folders_are_the_classes_and_no_file_is_counted(tmp_path: Path) -> None:
    assert class_folders(write_pictures(tmp_path)) == ("ill", "well")
    for kind in ("ill", "well"):
        for file in (tmp_path / kind).iterdir():
            file.unlink()
    assert class_folders(tmp_path) == ("ill", "well")
    (tmp_path / "well").rmdir()
    with pytest.raises(InvalidParameter, match="one folder for each class"):
        class_folders(tmp_path)
    with pytest.raises(DataMissing, match="is not there"):
        class_folders(tmp_path / "nowhere")


def test_pictures_of_several_sites_lie_in_a_folder_for_each(tmp_path: Path) -> None:
    for place, site in enumerate(("north", "south")):
        write_pictures(tmp_path / site, each=3 + place, seed=place)
    sites = [{"name": "north", "size": 10}, {"name": "south", "size": 10}]
    options = {"name": "scans", "path": str(tmp_path), "classes": ["ill", "well"], "side": 16, "sites": sites}
    federated = task_of(Plan(task=TaskPlan(name="images", options=options), federation=FederationPlan()))
    assert [(one.name, one.size) for one in federated.parties()] == [("north", 10), ("south", 10)]
    records = federated.records_of("south")
    assert records is not None and len(records[0]) == 8
    # A site elsewhere has its own folder, and its name.
    alone = make_pictures(tmp_path / "south", sites=sites, site="south")
    assert alone.sites() == ["south"] * 8


def test_public_pictures_that_are_scored_are_not_trained_on(tmp_path: Path) -> None:
    task = make_pictures(write_pictures(tmp_path, each=30), public="made up", held_out=0.4)
    told = task.evaluate(task.model())
    assert int(told.on.split()[0]) + len(task.records()[1]) == 60 and "made up" in told.on
    assert "no score" in make_pictures(tmp_path).evaluate(task.model()).on


def test_protected_pictures_are_no_holdout(tmp_path: Path) -> None:
    write_pictures(tmp_path / "scans")
    with pytest.raises(InvalidParameter, match="a release without a charge"):
        make_pictures(tmp_path / "scans", holdout=str(tmp_path / "x" / ".." / "scans"), holdout_public="because")


# ----------------------------------------------------------------------------------------------- landmarks


def test_a_clip_that_is_not_finite_counts_as_zero_and_the_others_as_before(tmp_path: Path) -> None:
    path = write_moves(tmp_path / "moves.npz")
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    before = make_moves(path).records()
    arrays["landmarks"][5, 2, 7, 0] = np.nan
    arrays["labels"][9] = "????"
    np.savez(path, **arrays)
    task = make_moves(path)
    after, others = task.records(), ~np.isin(np.arange(40), [5, 9])
    assert after[1][[5, 9]].tolist() == [-1, -1] and torch.equal(after[0][others], before[0][others])
    found = losses(task)
    assert found[[5, 9]].tolist() == [0, 0] and (found[others] > 0).all()


def test_the_shape_of_a_clip_is_read_and_not_how_many_there_are(tmp_path: Path) -> None:
    few, many = (shape_of_landmarks(write_moves(tmp_path / f"{n}.npz", clips=n)) for n in (8, 40))
    assert few == many == (8, 33, 3, frozenset({"landmarks", "labels", "people"}))


@pytest.mark.parametrize("kind", ["text", "flat", "objects", "unlabelled", "whole"])
def test_a_file_without_landmarks_is_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "moves.npz"
    if kind == "text":
        path.write_text("clip,frame,x,y\n")
    else:
        changes: dict[str, Any] = {
            "flat": {"landmarks": np.zeros((5, 7))}, "objects": {"landmarks": np.array([None, {}], dtype=object)},
            "unlabelled": {}, "whole": {"landmarks": np.zeros((40, 8, 33, 3), dtype=int)},
        }[kind]  # fmt: skip
        if kind == "unlabelled":
            np.savez(path, landmarks=np.zeros((5, 8, 33, 3)))
        else:
            write_moves(path, **changes)
    with pytest.raises(InvalidParameter, match="landmarks"):
        shape_of_landmarks(path)


def test_damaged_landmarks_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path, draw = write_moves(tmp_path / "whole.npz", clips=6), np.random.default_rng(5)
    with np.load(path) as held:
        np.savez_compressed(path, **{name: held[name] for name in held.files})
    content, refused = path.read_bytes(), 0
    for number in range(300):
        broken = bytearray(content)
        broken[draw.integers(len(broken) if number % 2 else 200)] ^= 1 << draw.integers(8)
        (tmp_path / "broken.npz").write_bytes(broken)
        for read in (shape_of_landmarks, lambda path: make_moves(path).records()):
            try:
                read(tmp_path / "broken.npz")
            except (DataMissing, InvalidParameter):
                refused += 1
    assert refused > 100


def test_landmarks_know_people_and_bones_may_be_of_ones_own(tmp_path: Path) -> None:
    path = write_moves(tmp_path / "moves.npz")
    task = make_moves(path, person="dancer", bones=[[0, 1], [1, 2]])
    assert len(set(task.people().tolist())) == 10 and task.model()(task.example()[0]).shape == (2, 2)
    with pytest.raises(InvalidParameter, match="bones"):
        make_moves(path, bones=[[0, 99]]).model()
    with pytest.raises(InvalidParameter, match="have no skeleton here"):
        make_moves(path, joints=12)
    with pytest.raises(InvalidParameter, match="another shape than is declared"):
        make_moves(path, frames=9).records()


# ------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"held_out": 0.2}, "the records are protected"), ({"classes": ["a"]}, "name two or more"),
        ({"classes": ["a", "a"]}, "name two or more"), ({"size": 3}, "is no option"),
        ({"sites": [{"nam": 1}]}, "no site"),
        ({"side": 4}, "side"), ({"model": "forest"}, "model"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidParameter, match=why):
        make_pictures(tmp_path, **options)


def test_blanks_are_told_at_once() -> None:
    with pytest.raises(PlanRefused) as raised:
        SamplesTask.from_options("images", {"sites": [{"name": "here", "size": 0}], "holdout": "x"})
    for told in ("classes: none", "here: declare a round number", "holdout_public"):
        assert told in str(raised.value)


# ----------------------------------------------------------------------------------------------- commands


@pytest.mark.usefixtures("empty_folder")
def test_from_a_folder_to_a_run_with_a_score() -> None:
    write_pictures(Path("scans"), each=60)
    write_pictures(Path("volunteers"), each=20, seed=1)
    made = invoke(
        "new", "run.toml", "--from", "scans", "--side", "16", "--model", "linear", "--site", "here=150", "--holdout",
        "volunteers", "--holdout-public", "volunteers agreed",
    )  # fmt: skip
    assert made.exit_code == 0 and "public by this layout: ill, well" in " ".join(made.output.split())
    ran = invoke("run", "run.toml")
    assert ran.exit_code == 0 and "40 public records of volunteers (volunteers agreed)" in " ".join(ran.output.split())


@pytest.mark.usefixtures("empty_folder")
def test_landmarks_are_declared_or_public() -> None:
    write_moves(Path("moves.npz"))
    made = invoke("new", "run.toml", "--from", "moves.npz")
    assert "classes: none are named" in made.output and "no clip" in made.output
    assert invoke("plan", "run.toml").exit_code == 2
    asked = ("--force", "--class", "rest", "--class", "wave", "--site", "here=60")
    assert invoke("new", "run.toml", "--from", "moves.npz", *asked).exit_code == 0
    assert invoke("plan", "run.toml").exit_code == 0
    assert invoke("new", "run.toml", "--from", "moves.npz", "--force", "--public", "made up").exit_code == 0
    assert load_plan("run.toml").task.options["classes"] == ("rest", "wave")
    refused = invoke("new", "run.toml", "--from", "moves.npz", "--force", "--label", "labels")
    assert refused.exit_code == 2 and "holds arrays" in refused.output
