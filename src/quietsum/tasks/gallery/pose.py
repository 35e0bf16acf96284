"""Which of 20 actions is it? Skeleton sequences of MSR Action3D, trained on five people and tested on five others.

The cross-subject protocol of Li, Zhang and Liu (2010), all 20 actions at once: odd subjects train (292 sequences), even
subjects test (275). Each sequence is prepared by itself (:func:`quietsum.tasks.gallery.files.pose.resample`) and no
constant is taken from the data.

292 records are few for noise. ``network="linear"`` therefore asks for little: 135 fixed features of how nine joints
move, and one linear layer on them. ``network="stgcn"`` learns its own features (:mod:`quietsum.tasks.gallery.stgcn`),
which noise leaves little of.

One person gives about 58 sequences, and :meth:`PoseTask.people` says whose each one is: ε per record protects one
*sequence*. A person is protected by ε per person, which is far larger or needs far fewer sequences each.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.learning import cross_entropy
from quietsum.tasks.checks import check_options, one_site_each
from quietsum.tasks.datafiles import data_folder
from quietsum.tasks.gallery.files.pose import (
    ACTIONS,
    HIPS,
    JOINTS,
    KNOWN,
    Sequences,
    find_sequences,
    read_sequences,
    resample,
)
from quietsum.tasks.gallery.stgcn import STGCN
from quietsum.tasks.models import outputs
from quietsum.tasks.protocol import Metrics, Settings
from quietsum.tasks.roots import check_root, split_root
from quietsum.tasks.scores import accuracy, majority

__all__ = ["FEATURES", "FRAMES", "PoseTask", "motion_features"]

FRAMES: Final = 32
MOVING: Final = (7, 8, 9, 10, 11, 12, 15, 16, 19)  # elbows, wrists, hands, ankles, head
WAVES: Final = 4
FEATURES: Final = len(MOVING) * 3 * (WAVES + 1)
VALIDATION_SUBJECTS: Final = (5, 1, 3, 7, 9)
"""Who is left out and scored while settings are chosen: one of those who train, by the number of the split."""
SIZES: Final = {"test": (292,), "validation": (235, 232, 236, 233, 232)}
"""The declared number of training sequences of each split."""
_SCALE: Final = 0.5  # metres
_STILL: Final = 0.2  # half the metres that a joint travels along one axis in an everyday movement, roughly


def motion_features(motion: NDArray[np.float32]) -> NDArray[np.float32]:
    """135 numbers of unit length for each (32, 20, 3) of ``motion``: where nine joints go, and how far they travel.

    Relative to the hips and to the first frame, each coordinate's path is written in four cosine waves (a DCT, so the
    first is its mean); beside them stands the distance that it travels. Guarantees: one sequence and constants alone.
    """
    body = motion - motion[:, :, HIPS : HIPS + 1]
    paths = body[:, :, list(MOVING)]
    moved = paths - paths[:, :1]
    moments = (np.arange(FRAMES) + 0.5) * np.pi / FRAMES
    waves = np.cos(np.arange(WAVES)[:, None] * moments) * (np.sqrt(2 / FRAMES) / 3)
    shape = np.einsum("kt,ntjc->nkjc", waves, moved).reshape(len(motion), -1)
    travelled = np.abs(np.diff(paths, axis=1)).sum(axis=1).reshape(len(motion), -1) / 2 - _STILL
    found = np.concatenate([shape, travelled], axis=1)
    lengths = np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-6)
    return np.asarray(found / lengths, dtype=np.float32)


@functools.cache
def _sequences(folder: Path) -> tuple[Sequences, NDArray[np.float32]]:
    found = read_sequences(folder, KNOWN)
    return found, np.stack([resample(each, FRAMES) for each in found.each()])


@final
class PoseTask:
    """Which action is it? ``network`` is ``linear`` (on fixed features) or ``stgcn``.

    With ``evaluate_on="validation"`` one of those who train is left out and scored instead of the test subjects, so
    that settings are chosen without them; ``split`` 0 … 4 says who.
    """

    name, title = "pose", "20 actions of 10 people, as moving skeletons"
    loss = staticmethod(cross_entropy)
    public = "the skeletons were published for research by Microsoft in 2010, without names or pictures"
    person = "subject"

    def __init__(
        self,
        *,
        network: str = "linear",
        evaluate_on: str = "test",
        split: int = 0,
        root: int | str = 0,
        folder: str | os.PathLike[str] | None = None,
    ) -> None:
        check_options(network, ("linear", "stgcn"), evaluate_on, split, len(SIZES.get(evaluate_on, (1,))))
        self.network, self.evaluate_on, self.split = network, evaluate_on, split
        self.root_size = check_root(root, self.name, why_not="no public constants move a body")
        self._folder = data_folder("msr_action3d") if folder is None else Path(folder)

    @property
    def _left_out(self) -> int:
        return VALIDATION_SUBJECTS[self.split]

    @property
    def size(self) -> int:
        """How many sequences train, declared."""
        return SIZES[self.evaluate_on][self.split]

    @property
    def settings(self) -> Settings:
        """The linear one by leaving out one odd subject at a time (benchmarks/utility.py --choose); stgcn's is the best
        of nine on one such subject, and far behind (docs/how-to/better-accuracy.md).

        Every step takes all records: with so few, nothing is gained by sampling them, and few steps keep the noise of
        each one small.
        """
        training = {"batch_size": self.size, "epochs": 60, "max_grad_norm": 1.0, "ema_decay": 0.9}
        if self.network == "stgcn":
            few = {"epochs": 40, "max_grad_norm": 0.3}
            return Settings(learning_rate=1.0, optimizer="momentum", training={**training, **few})
        chosen = {"epochs": 40, "max_grad_norm": 0.3, "clipping": "automatic"}
        return Settings(learning_rate=10.0, optimizer="momentum", training={**training, **chosen})

    @property
    def plain_settings(self) -> Settings:
        """Without privacy, chosen in the same way."""
        training = {"batch_size": self.size, "epochs": 30 if self.network == "linear" else 60, "ema_decay": 0.9}
        return Settings(
            learning_rate=30.0 if self.network == "linear" else 0.1, optimizer="momentum", training=training
        )

    def model(self) -> nn.Module:
        """A fresh model; the linear one starts without weights."""
        if self.network == "stgcn":
            return STGCN(JOINTS, 3, ACTIONS, (16, 32), (9, 9), dropout=0.0, use_attention=True)
        last = nn.Linear(FEATURES, ACTIONS)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        return nn.Sequential(last)

    def example(self) -> tuple[Tensor, ...]:
        """A made-up sequence without motion."""
        shape = (FEATURES,) if self.network == "linear" else (3, FRAMES, JOINTS)
        return torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64)

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the files are not there; nothing is read."""
        find_sequences(self._folder)

    def records(self) -> tuple[Tensor, ...]:
        """Features, or sequences as (n, 3, 32, 20), and actions 0 – 19."""
        return self._part(self._trains())

    def people(self) -> NDArray[np.int64]:
        """The subject of each record, in the order of :meth:`records`.

        Guarantees: no subject has sequences on both sides of the split, so that what one pays here is all they pay.
        """
        subject, trains = _sequences(self._folder)[0].subject, self._trains()
        one_site_each(subject, trains, person=self.person)
        return subject[trains].astype(np.int64)

    def sites(self) -> tuple[str, ...]:
        """The same as names: every person is a party of a federation."""
        return tuple(f"subject-{number:02d}" for number in self.people().tolist())

    def root(self) -> tuple[Tensor, ...]:
        """Some of the published records that would be scored, for trials at the server."""
        return split_root(self._read_scored(), self.root_size)[0]

    def evaluate(self, model: nn.Module) -> Metrics:
        """Accuracy on people who do not train."""
        values, labels = split_root(self._read_scored(), self.root_size)[1]
        found = outputs(model, values, piece=100).argmax(-1)
        who = "5 other people" if self.evaluate_on == "test" else f"subject {self._left_out}"
        right = accuracy(labels.numpy(), found.numpy())
        chance = {"accuracy": majority(labels.numpy())}
        return Metrics(values={"accuracy": right}, on=f"{len(labels)} published sequences of {who}", chance=chance)

    def _read_scored(self) -> tuple[Tensor, ...]:
        """Records that need no protection: those that are scored, and those of the root set."""
        subject = _sequences(self._folder)[0].subject
        return self._part(subject % 2 == 0 if self.evaluate_on == "test" else subject == self._left_out)

    def _trains(self) -> NDArray[np.bool_]:
        subject = _sequences(self._folder)[0].subject
        odd: NDArray[np.bool_] = subject % 2 == 1
        return odd if self.evaluate_on == "test" else odd & (subject != self._left_out)

    def _part(self, chosen: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        sequences, motion = _sequences(self._folder)
        labels = torch.from_numpy(sequences.action[chosen].astype(np.int64) - 1)
        if self.network == "linear":
            return torch.from_numpy(motion_features(motion[chosen])), labels
        return torch.from_numpy(np.ascontiguousarray(motion[chosen].transpose(0, 3, 1, 2) / np.float32(_SCALE))), labels
