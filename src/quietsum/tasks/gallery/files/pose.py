"""MSR Action3D: 567 short recordings of 10 people doing 20 actions, as 20 joints a frame (Li, Zhang, Liu 2010).

Two forms are read, and give the same arrays to the last bit: the published folder of text files
``aXX_sYY_eZZ_skeleton3D.txt`` (action, subject, trial; a frame is 20 lines of x, y, z in metres and a confidence) and
one ``msr_action3d.npz`` with all frames in a row, which :func:`pack_sequences` makes from the first.

One oddity is left in, because dropping records by looking at them is a choice on private data: ``a13_s09_e03`` holds
936 frames where the next longest has 100, most of them empty, and ``a13_s09_e02`` has no tracked frame at all. What
:func:`resample` does with them it does to every sequence: frames without a tracked joint are left out, at most
the first 120 others are kept, and a sequence without any becomes a still skeleton of zeros.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import DataMissing, InvalidParameter
from quietsum.tasks.checks import check_images, check_labels
from quietsum.tasks.datafiles import load_npz, refuse_unknown

__all__ = [
    "ACTIONS",
    "JOINTS",
    "KNOWN",
    "KnownSequences",
    "Sequences",
    "check_sequences",
    "find_sequences",
    "pack_sequences",
    "read_sequences",
    "resample",
]

ACTIONS: Final = 20
JOINTS: Final = 20
SUBJECTS: Final = 10
HIPS: Final = 6
LONGEST: Final = 120  # frames that are looked at: eight seconds at the camera's 15 a second
_NAME: Final = re.compile(r"a(\d\d)_s(\d\d)_e(\d\d)_skeleton3D\.txt")
_KEYS: Final = ("frames", "lengths", "action", "subject", "trial")
_WHERE: Final = (
    "put the files aXX_sYY_eZZ_skeleton3D.txt there (or in a folder data or skeleton below), or msr_action3d.npz, and "
    "set QUIETSUM_DATA to the folder above; `quietsum datasets pose` says where they are found"
)


@final
@dataclass(frozen=True, kw_only=True)
class KnownSequences:
    """How the published set is recognised: how many sequences and frames, and the SHA-256 of each array."""

    sequences: int
    frames: int
    sums: dict[str, str]


KNOWN: Final = KnownSequences(
    sequences=567, frames=23_478,
    sums={
        "frames": "96b3477c7d4f2140fda088632655933caf8be2c305567632a831a63cea164a5f",
        "lengths": "51c3ea05a4ef8fcd7761327b24a85f139d5b09bf60b93e0a418ece9d876e7c4f",
        "action": "818da120477ab84d4f9bd5850b212953ac57f8d5749e0b51e03f0f595eba4885",
        "subject": "4d5dc65367638c65fdfa65567f0529b6d200050f314028ec5aab7bd8f4c382ff",
        "trial": "5bebf486a7759e3300bbdf1cf5b18653debccaf2a3963e18d45acef56b5c57cd",
    },
)  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Sequences:
    """All frames one after another, (f, 20, 4); of each sequence its length, action 1 – 20, subject 1 – 10, trial."""

    frames: NDArray[np.float32]
    lengths: NDArray[np.int32]
    action: NDArray[np.int16]
    subject: NDArray[np.int16]
    trial: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        return f"Sequences({len(self)} of {len(self.frames)} frames)"

    def each(self) -> list[NDArray[np.float32]]:
        """The frames of each sequence."""
        return np.split(self.frames, np.cumsum(self.lengths)[:-1])


def find_sequences(folder: Path) -> Path:
    """Where the set lies in ``folder``; :class:`DataMissing` where it does not. Nothing is read."""
    if _text_files(folder):
        return folder
    packed = folder / "msr_action3d.npz"
    if packed.is_file():
        return packed
    raise DataMissing(f"the skeletons of MSR Action3D are not in {folder}: {_WHERE}")


def read_sequences(folder: Path, known: KnownSequences = KNOWN) -> Sequences:
    """The sequences in ``folder``, sorted by action, subject and trial; an altered set is refused."""
    source = find_sequences(folder)
    arrays = _from_texts(folder, _text_files(folder), known) if source.is_dir() else load_npz(source, _KEYS)
    try:
        _refuse_broken(arrays)
    except InvalidParameter as error:
        raise DataMissing(f"{source}: {error}; fetch it again") from None
    shapes = {"frames": (known.frames, JOINTS, 4)}
    kinds = {"frames": np.float32, "lengths": np.int32}
    found: dict[str, NDArray[Any]] = {}
    for name in _KEYS:
        found[name] = np.ascontiguousarray(arrays[name], dtype=kinds.get(name, np.int16))
        refuse_unknown(source, name, found[name], shapes.get(name, (known.sequences,)), known.sums[name])
    return Sequences(**found)


def _refuse_broken(arrays: dict[str, NDArray[Any]]) -> None:
    frames, lengths = arrays["frames"], arrays["lengths"]
    check_images("frames", frames, shape=(JOINTS, 4))
    check_images("lengths", lengths, shape=())
    if (lengths < 1).any() or lengths.sum() != len(frames):
        problem = f"do not add up to the {len(frames)} frames there are"
        raise InvalidParameter("lengths", f"{len(lengths)} sequences", problem, "each has one frame at least")
    check_labels("action", arrays["action"] - 1, classes=ACTIONS, rows=len(lengths))
    check_labels("subject", arrays["subject"] - 1, classes=SUBJECTS, rows=len(lengths))
    check_labels("trial", arrays["trial"] - 1, classes=3, rows=len(lengths), every_class=False)


def _text_files(folder: Path) -> list[tuple[tuple[int, int, int], Path]]:
    for place in (folder, folder / "data", folder / "skeleton"):
        matches = [(_NAME.fullmatch(path.name), path) for path in place.glob("a*_skeleton3D.txt")]
        found = [((int(m[1]), int(m[2]), int(m[3])), path) for m, path in matches if m is not None]
        if found:
            return sorted(found)
    return []


def _from_texts(
    folder: Path, texts: list[tuple[tuple[int, int, int], Path]], known: KnownSequences
) -> dict[str, NDArray[Any]]:
    if len(texts) != known.sequences:
        raise DataMissing(
            f"{folder} holds {len(texts)} sequences where the published set has {known.sequences}; fetch it again"
        )
    frames = [_frames(path) for _, path in texts]
    numbers = np.array([key for key, _ in texts], dtype=np.int16)
    return {
        "frames": np.concatenate(frames), "lengths": np.array([len(part) for part in frames], dtype=np.int32),
        "action": numbers[:, 0], "subject": numbers[:, 1], "trial": numbers[:, 2],
    }  # fmt: skip


def _frames(path: Path) -> NDArray[np.float32]:
    """One text file as (frames, 20, 4)."""
    try:
        values = np.array(path.read_text(encoding="ascii").split(), dtype=np.float64)
    except (OSError, ValueError) as error:
        raise DataMissing(f"{path} is no table of numbers ({error}); fetch it again") from None
    if not len(values) or len(values) % (JOINTS * 4):
        raise DataMissing(
            f"{path} holds {len(values)} numbers, and a frame has {JOINTS} joints of 4; it is truncated: fetch it again"
        )
    return values.reshape(-1, JOINTS, 4).astype(np.float32)


def pack_sequences(folder: Path, known: KnownSequences = KNOWN) -> Path:
    """Write ``msr_action3d.npz`` beside the text files."""
    found = read_sequences(folder, known)
    target = folder / "msr_action3d.npz"
    np.savez_compressed(
        target, frames=found.frames, lengths=found.lengths, action=found.action, subject=found.subject,
        trial=found.trial,
    )  # fmt: skip
    return target


def resample(sequence: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """One sequence, (t, 20, 4), as (frames, 20, 3): hip-centred, in metres, linearly interpolated in time.

    Guarantees: a function of this sequence and public constants alone. Frames where no joint was tracked are left out,
    and of the others the first 120 are taken. The hips of the first frame become the origin, so that a walk stays one.
    """
    places = np.asarray(sequence[..., :3], dtype=np.float64)
    places = places[(places != 0).any(axis=(1, 2))][:LONGEST]
    if not len(places):
        return np.zeros((frames, JOINTS, 3), dtype=np.float32)
    places = places - places[0, HIPS]
    moments = np.linspace(0, len(places) - 1, frames)
    before = np.floor(moments).astype(np.int64)
    after = np.minimum(before + 1, len(places) - 1)
    share = (moments - before)[:, None, None]
    between = (1 - share) * places[before] + share * places[after]
    return np.asarray(between, dtype=np.float32)


def check_sequences(folder: Path) -> str:
    """One line of what is there, after its sums were compared."""
    found = read_sequences(folder)
    people = len(np.unique(found.subject))
    return f"{len(found)} sequences of {people} people, {len(found.frames):,} frames"
