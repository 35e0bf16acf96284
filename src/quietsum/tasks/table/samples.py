"""Tasks from a folder of pictures by class, or from a file of landmarks in motion: no class to write.

The options say everything that a model may know before it sees a record: the classes, the size of a picture or the
number of frames and joints, the sites with their declared sizes. A picture that cannot be read, a clip with a number
that is not finite and a label that is none of the classes count as zero in training, in silence.

>>> task = SamplesTask.from_options("images", {
...     "name": "scans", "classes": ["well", "ill"], "side": 32, "sites": [{"name": "here", "size": 400}]})
>>> task.title, tuple(task.example()[0].shape), task.site_sizes
('2 classes of scans (images of 32 × 32)', (2, 1, 32, 32), {'here': 400})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import DataMissing, InvalidParameter, PlanRefused
from quietsum.keys import FRACTION, NAME, choices, declarations, key, table, whole
from quietsum.learning import cross_entropy
from quietsum.tasks.gallery.stgcn import SKELETONS, STGCN
from quietsum.tasks.models import outputs
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.scores import accuracy, majority, mean_auc
from quietsum.tasks.table.landmarks import check_landmarks, encode_landmarks, labels_of_landmarks, read_landmarks
from quietsum.tasks.table.options import refuse_own_records
from quietsum.tasks.table.pictures import check_pictures, encode_pictures, read_pictures
from quietsum.tasks.table.records import Labelled, pick_records, share_of

__all__ = ["SamplesOptions", "SamplesTask", "count_samples"]

_MOST_SIDE: Final = 512
_NO_SCORE: Final = "no records: none are declared public, so there is no score"


@final
@table
class SamplesOptions:
    """The options of a task from a folder of pictures, or from a file of landmarks."""

    name: str = key("What the data is called; budgets are kept under this name.", default="samples", bound=NAME)
    path: str = key("The folder, or the file, that holds the records.", default="")
    classes: tuple[str, ...] = key("All classes, as folders or labels are called.", default=())
    sites: tuple[Mapping[str, Any], ...] = key("Who holds records, with declared sizes.", default=())
    site: str = key("At a site elsewhere: whose records lie in its folder or file.", default="")
    public: str = key("Why no record needs protection; leave it out for protected ones.", default="")
    held_out: float = key("The share of public records that is scored and not trained on.", default=0.0, bound=FRACTION)
    holdout: str = key("Other records, which need no protection: models are scored on them.", default="")
    holdout_public: str = key("Why those records need no protection.", default="")
    side: int = key("Images: pixels a side, to which each is brought.", default=64, bound=whole(8, _MOST_SIDE))
    frames: int = key("Landmarks: frames of a clip.", default=0, bound=whole(0, 10_000))
    joints: int = key("Landmarks: joints of a skeleton.", default=0, bound=whole(0, 1000))
    dims: int = key("Landmarks: numbers of a joint, 2 or 3.", default=3, bound=choices(2, 3))
    bones: tuple[tuple[int, ...], ...] = key(
        "Landmarks: pairs of joints; those of 17, 20, 25 or 33 joints are known.", default=()
    )
    largest: float = key("Landmarks: coordinates are clipped to this, once a clip is centred.", default=2.0)
    person: str = key("Landmarks: what the people in the file are called; empty if it names none.", default="")
    model: str = key(
        "Fixed layers and a linear one, or a network.", default="network", bound=choices("network", "linear")
    )
    stated: str = key("How classes and sizes came to be known.", default="")

    def __post_init__(self) -> None:
        if self.held_out and not self.public.strip():
            problem = "is scored, and the records are protected"
            raise InvalidParameter("held_out", self.held_out, problem, "name a holdout, or say why they are public")
        if len(set(self.classes)) < len(self.classes) or len(self.classes) == 1:
            raise InvalidParameter("classes", list(self.classes), "are no choice", "name two or more, each once")
        for place, one in enumerate(self.sites):
            if not set(one) <= {"name", "size"} or "name" not in one:
                raise InvalidParameter(f"sites[{place}]", "…", "is no site", 'write { name = "north", size = 1200 }')

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SamplesOptions:
        """The options that a plan states."""
        known = set(declarations(cls))
        if unknown := sorted(set(values) - known):
            problem = "is no option of this task"
            raise InvalidParameter(f"task.options.{unknown[0]}", "…", problem, f"known are {', '.join(sorted(known))}")
        given = {**values}
        if "bones" in given:
            given["bones"] = tuple(tuple(pair) for pair in given["bones"])
        return cls(**given)

    def blanks(self) -> Iterator[str]:
        """A sentence for each thing that the holder has still to say."""
        if not self.classes:
            yield 'classes: none are named: say classes = ["one", "other"]'
        if not self.sites:
            yield 'sites: none is named: say sites = [{ name = "north", size = 1200 }], with declared, public sizes'
        if unsized := [str(one["name"]) for one in self.sites if not one.get("size")]:
            yield f"sites: {', '.join(unsized)}: declare a round number above the records there, which is public"
        if self.holdout and not self.holdout_public.strip():
            yield 'holdout_public: say why those records need no protection: "published in 2024", for instance'


@final
class SamplesTask:
    """What the options say, with records read when they are first asked for.

    Guarantees: what becomes of a file or a clip depends on it and on the options alone.
    """

    loss = staticmethod(cross_entropy)
    settings = Settings(
        learning_rate=1.0, optimizer="momentum", training={"batch_size": 256, "epochs": 20, "clipping": "automatic"}
    )

    def __init__(self, kind: str, options: SamplesOptions) -> None:
        if found := list(options.blanks()):
            raise PlanRefused("[task.options] is still to be filled in:\n  " + "\n  ".join(found))
        refuse_own_records(options.holdout, [options.path], options.public)
        if kind == "landmarks" and not (options.frames and options.joints):
            problem = "are not declared"
            raise InvalidParameter("task.options.frames", 0, problem, "say frames = 32 and joints = 33, for instance")
        if kind == "landmarks" and options.model == "network" and not options.bones and options.joints not in SKELETONS:
            problem = "have no skeleton here"
            raise InvalidParameter("task.options.joints", options.joints, problem, "say bones = [[0, 1], …]")
        self.kind, self.options, self.name, self.public = kind, options, options.name, options.public.strip()
        self.site_sizes = {str(one["name"]): int(one["size"]) for one in options.sites}
        self.size = sum(self.site_sizes.values())
        self.person = options.person
        if self.person:
            self.people = self._people
        self._read: Labelled | None = None

    @classmethod
    def from_options(cls, kind: str, options: Mapping[str, Any]) -> SamplesTask:
        """The task of a plan's ``[task.options]``; no record is read."""
        return cls(kind, SamplesOptions.from_dict(options))

    @property
    def title(self) -> str:
        """One line for a report."""
        o = self.options
        what = f"images of {o.side} × {o.side}" if self.kind == "images" else f"{o.frames} frames of {o.joints} joints"
        return f"{len(o.classes)} classes of {self.name} ({what})"

    @property
    def _shape(self) -> tuple[int, ...]:
        o = self.options
        return (1, o.side, o.side) if self.kind == "images" else (o.dims, o.frames, o.joints)

    @property
    def classes(self) -> tuple[str, ...]:
        """The declared classes, in the order of the model's scores."""
        return self.options.classes

    def model(self) -> nn.Module:
        """A fresh model, in float64: secure noise covers the rounding of sums, not that of norms in float32."""
        return self._layers().double()

    def _layers(self) -> nn.Module:
        o, classes = self.options, len(self.options.classes)
        if o.model == "linear":
            small = nn.AdaptiveAvgPool2d(16) if self.kind == "images" else nn.Identity()
            inputs = min(o.side, 16) ** 2 if self.kind == "images" else int(np.prod(self._shape))
            pool = small if self.kind == "landmarks" or o.side >= 16 else nn.Identity()
            return nn.Sequential(pool, nn.Flatten(), nn.Linear(inputs, classes))
        if self.kind == "landmarks":
            return STGCN(o.joints, o.dims, classes, (16, 32), (9, 9), bones=o.bones or None)
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.GroupNorm(4, 16), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.Tanh(), nn.AdaptiveAvgPool2d(2),
            nn.Flatten(), nn.Linear(128, classes),
        )  # fmt: skip

    def example(self) -> tuple[Tensor, Tensor]:
        """Two made-up records."""
        return torch.zeros(2, *self._shape, dtype=torch.float64), torch.zeros(2, dtype=torch.int64)

    # ------------------------------------------------------------------------------------------ records

    def look_for_data(self, party: str) -> None:
        """Raise :class:`~quietsum.errors.DataMissing` if folder or file is not there; nothing is read of it."""
        if not self.options.path:
            raise DataMissing(f"no records are named for {party}: say path under here of its policy")
        self._check(Path(self.options.path))

    def _check(self, path: Path) -> None:
        check_pictures(path) if self.kind == "images" else check_landmarks(path)

    def _of(self, path: Path) -> Labelled:
        """All records of a folder or a file, with the site of each."""
        self._check(path)
        names, o = list(self.site_sizes), self.options
        if self.kind == "images":
            apart = len(names) > 1 and not o.site
            return read_pictures(path, o.classes, side=o.side, sites=names if apart else (), site=o.site or names[0])
        return read_landmarks(
            path, o.classes, frames=o.frames, joints=o.joints, dims=o.dims, largest=o.largest, site=o.site or names[0],
            with_sites=len(names) > 1 and not o.site, with_people=bool(self.person),
        )  # fmt: skip

    @property
    def _held(self) -> Labelled:
        if self._read is None:
            self.look_for_data(self.options.site or next(iter(self.site_sizes)))
            found = self._of(Path(self.options.path))
            self._read = pick_records(found, np.isin(found.sites, list(self.site_sizes)))
        return self._read

    @property
    def _trained(self) -> Labelled:
        return pick_records(self._held, ~share_of(self._held, self.options.held_out))

    def records(self) -> tuple[Tensor, Tensor]:
        """What is trained on. Private."""
        held = self._trained
        return torch.from_numpy(held.values).double(), torch.from_numpy(held.labels)

    def sites(self) -> list[str]:
        """The site of each record."""
        return [str(one) for one in self._trained.sites]

    def _people(self) -> NDArray[np.int64]:
        held = self._trained
        assert held.people is not None
        return held.people

    def _read_scored(self) -> tuple[Labelled, str] | None:
        o = self.options
        if o.holdout:
            return self._of_holdout(Path(o.holdout)), f"of {Path(o.holdout).name} ({o.holdout_public})"
        if o.held_out:
            return pick_records(self._held, share_of(self._held, o.held_out)), f"that were held out ({o.public})"
        return None

    def _of_holdout(self, path: Path) -> Labelled:
        """Records without sites and people: none of them is protected."""
        self._check(path)
        o = self.options
        if self.kind == "images":
            return read_pictures(path, o.classes, side=o.side, sites=(), site="public")
        return read_landmarks(
            path, o.classes, frames=o.frames, joints=o.joints, dims=o.dims, largest=o.largest, site="public",
            with_sites=False, with_people=False,
        )  # fmt: skip

    def encode_file(self, path: Path) -> NDArray[np.float32]:
        """New records without labels: a folder of pictures, in the order of their names, or an .npz with landmarks."""
        self._check(path)
        o = self.options
        if self.kind == "images":
            return encode_pictures(path, side=o.side)
        return encode_landmarks(path, frames=o.frames, joints=o.joints, dims=o.dims, largest=o.largest)

    def evaluate(self, model: nn.Module) -> Metrics:
        """Scores on records declared public; none where there are none."""
        found = self._read_scored()
        known = np.zeros(0, dtype=np.int64) if found is None else np.flatnonzero(found[0].labels >= 0)
        if found is None or not len(known):
            return Metrics(values={}, on=_NO_SCORE)
        held, what = found
        scores = outputs(model, torch.from_numpy(held.values[known]).double(), piece=256).numpy()
        labels = held.labels[known]
        scores = scores - scores.mean(axis=1, keepdims=True)  # of two classes: half their difference
        values = {"auc": mean_auc(labels, scores), "accuracy": accuracy(labels, scores.argmax(axis=1))}
        chance = {"auc": 0.5, "accuracy": majority(labels)}
        return Metrics(values=values, on=f"{len(known):,} public records {what}", chance=chance)


def count_samples(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """``options`` with what is open read off the records, which are public: classes of landmarks, and sizes.

    Guarantees: none to anybody in those records.
    """
    found = {**options, "classes": list(options["classes"])}
    sites = [{**one, "size": one.get("size") or 1} for one in options["sites"]]
    if kind == "landmarks" and not found["classes"]:
        found["classes"] = sorted(set(labels_of_landmarks(Path(str(options["path"])))))
    held = SamplesTask.from_options(kind, {**found, "sites": sites})._trained
    counts = [int((held.sites == one["name"]).sum()) for one in sites]
    found["sites"] = [
        {**one, "size": one.get("size") or max(1, count)} for one, count in zip(options["sites"], counts, strict=True)
    ]
    return found
