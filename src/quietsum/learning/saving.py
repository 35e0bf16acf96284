"""Model, plan and spend on disk, together; and the ledger that is charged before any step.

A training run in a workspace::

    ledger.db  ledger.db.key              shared with all other runs of the workspace
    training/digits-1/
      checkpoint.safetensors              weights, optimizer, averages; the plan, the spend and the ledger's head
      model.safetensors                   the finished model with its guarantee in the header

Every chunk of steps (an epoch) is reserved in the ledger before its first step and committed before anything of it is
written. A chunk that was killed stays charged: a resumed run goes on *behind* it, with the weights from before it, so
that the whole run never costs more than its plan and the ledger never shows less than what ran. No file holds the
state of a random generator.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken, QuietsumError
from quietsum.files import RESUME, check_room, no_room, write_atomically
from quietsum.learning.config import TrainingPlan
from quietsum.ledger import PRICING, Charge, Dataset, Head, Ledger, Receipt, RunHistory, Terms, ledger_exists
from quietsum.privacy import Budget, Guarantee, PrivacyUnit

__all__ = [
    "VERSION",
    "Checkpoint",
    "TrainingBooks",
    "check_checkpoint_fits",
    "load_model",
    "opened_pricing",
    "read_checkpoint",
    "save_model",
    "write_checkpoint",
]

VERSION = 2
Tensors = dict[str, Tensor]


# ---------------------------------------------------------------------------------------------- files


def save_model(path: str | os.PathLike[str], model: nn.Module, about: Mapping[str, Any]) -> None:
    """The model with plan and spend in its header, there as a whole or not at all."""
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    _write(Path(path), tensors, {**about, "version": VERSION, "kind": "model"})


def load_model(path: str | os.PathLike[str], model: nn.Module) -> Mapping[str, Any]:
    """Fill ``model`` from what :func:`save_model` wrote, and return the header."""
    tensors, about = _read(Path(path))
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise CorruptState(f"{path} holds another model: {str(error).splitlines()[-1].strip()}") from None
    return about


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights after some chunks, and what they had cost."""

    tensors: Tensors
    about: Mapping[str, Any]

    def part(self, name: str) -> Tensors:
        """The tensors of ``model``, ``optimizer`` or ``average``."""
        prefix = f"{name}/"
        return {key.removeprefix(prefix): value for key, value in self.tensors.items() if key.startswith(prefix)}

    def lost(self, run: str, charged: int) -> int:
        """How many of ``charged`` steps these weights know nothing of; a header that cannot be true is refused."""
        try:
            whose, done, before = self.about["run"], int(self.about["charged_steps"]), int(self.about["lost_steps"])
            float(self.about["clip"])
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptState(f"the checkpoint of {run} says too little of itself ({error})") from None
        if whose != run or not 0 <= before <= done <= charged:
            raise CorruptState(f"the checkpoint of {run} claims more than the ledger has charged, or another run")
        return charged - done + before


def write_checkpoint(path: Path, parts: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """One file, replaced as a whole."""
    tensors = {
        f"{part}/{name}": value.detach().cpu().clone().contiguous()
        for part, named in parts.items()
        for name, value in named.items()
    }
    _write(path, tensors, {**about, "version": VERSION, "kind": "checkpoint"})


def read_checkpoint(path: Path) -> Checkpoint | None:
    """The checkpoint, None where there is none yet; a damaged one is refused."""
    if not path.is_file():
        return None
    tensors, about = _read(path)
    return Checkpoint(tensors=tensors, about=about)


def check_checkpoint_fits(path: Path, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raise :class:`~quietsum.files.DiskFull` where the next checkpoint finds no room: before its steps are paid."""
    size = sum(tensor.nbytes for part in parts.values() for tensor in part.values())
    check_room(path.parent, size + 64 * 1024)


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> str:
    """Of the tensors and of all that the header says of them."""
    said = {name: value for name, value in about.items() if name != "digest"}
    total = hashlib.sha256(json.dumps(said, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        value = tensors[name]
        total.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _write(path: Path, tensors: Tensors, about: Mapping[str, Any]) -> None:
    from safetensors.torch import save

    text = json.dumps({**about, "digest": _digest(tensors, about)}, sort_keys=True, allow_nan=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise no_room(f"{path.parent} could not be made: {error.strerror or error}; {RESUME}", error) from None
    write_atomically(path, save(tensors, metadata={"quietsum": text}))


def _read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            about = json.loads((file.metadata() or {})["quietsum"])
        if about["version"] != VERSION:
            raise CorruptState(f"{path} has version {about['version']!r}, this quietsum reads {VERSION}")
        if about["digest"] != _digest(tensors, about):
            raise CorruptState(f"{path} is not what was saved; restore it from a backup")
    except CorruptState:
        raise
    except FileNotFoundError:
        raise InvalidParameter("path", str(path), "does not exist", "train first") from None
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None
    return tensors, about


# ------------------------------------------------------------------------------------------- the ledger


def opened_pricing(workspace: str | os.PathLike[str], run: str) -> int:
    """The version of prices by which a run of the workspace was opened; today's where there is no such run."""
    path = Path(workspace) / "ledger.db"
    if not ledger_exists(path):
        return PRICING
    with Ledger.open(path, read_only=True, trusted=True) as ledger:  # the training goes on to write there
        return next((known.pricing for known in ledger.runs() if known.run == run), PRICING)


@final
class TrainingBooks:
    """One training run in a workspace's ledger.

    Guarantees: :meth:`reserve` is on disk before it returns, and what is reserved stays charged whatever happens next.
    """

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        run: str,
        plan: TrainingPlan,
        *,
        dataset: str,
        party: str = "here",
        public: str = "",
        failure_per_step: float = 0.0,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder, self.run, self.plan = Path(workspace) / "training" / run, run, plan
        self._workspace, self._party, self._dataset = Path(workspace), party, dataset
        self._public, self._failure = public, failure_per_step
        self._about = {"training": {**plan.to_dict(), **(details or {})}}
        self._ledger: Ledger | None = None
        self._lock: Any = None

    @property
    def checkpoint(self) -> Path:
        """The file of the checkpoint."""
        return self.folder / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        """The file of the finished model."""
        return self.folder / "model.safetensors"

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        assert self._ledger is not None
        return self._ledger

    def open(self, *, resume: bool, allowed: Callable[[Path], None] | None = None) -> int:
        """Open the run, or go on with it; returns how many of its steps are charged already.

        ``allowed`` is called with the ledger's path before a new run is opened, and refuses it by raising.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hold()
        others = any(True for _ in self._anchored())
        self._ledger = Ledger.open(self._workspace / "ledger.db", create=not others)
        self._check_anchors()
        known = any(summary.run == self.run for summary in self._ledger.runs())
        if known and not resume:
            raise InvalidParameter("run", self.run, "was begun already", "go on with resume, or choose another name")
        if resume and not known:
            raise InvalidParameter("run", self.run, "is not in the ledger", "leave resume out to begin it")
        if not resume and allowed is not None:
            allowed(self._workspace / "ledger.db")
        limit = self.plan.forecast.epsilon * (1 + 1e-6) if self.plan.epsilon is None else self.plan.epsilon
        self._ledger.open_run(
            self.run, plan=self._about,
            terms=Terms(
                accounting=self.plan.accounting, neighbours=self.plan.neighbours,
                limits=(Budget(epsilon=limit, delta=self.plan.delta),),
            ),
            planned=[self._charge(self.plan.event(), self.plan.steps)],
            datasets=[Dataset(party=self._party, dataset=self._dataset, size=self.plan.size, public=self._public)],
        )  # fmt: skip
        return self.charged()

    def close(self) -> None:
        """Let go of ledger and lock; closing twice is fine."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def charged(self) -> int:
        """How many steps the ledger has charged to this run, killed chunks included."""
        paid = RunHistory(self.ledger, self.run).read().paid
        return sum(sum(events.values()) for events in paid.values())

    def spent(self) -> Guarantee:
        """ε as the ledger sees it."""
        return self.ledger.spending(self.run)[-1]

    def reserve(self, start: int, event: Any, steps: int) -> Receipt:
        """Charge ``steps`` steps from step ``start`` on, before the first of them."""
        number = start + 1
        return self.ledger.reserve(
            self.run, number, self.ledger.next_attempt(self.run, number), [self._charge(event, steps)]
        )

    def commit(self, receipt: Receipt) -> None:
        """What was reserved may now leave."""
        self.ledger.commit(receipt)

    def _charge(self, event: Any, steps: int) -> Charge:
        return Charge(
            party=self._party, dataset=self._dataset, unit=PrivacyUnit.RECORD, event=event,
            failure=min(1.0, self._failure * steps),
        )  # fmt: skip

    def _hold(self) -> None:
        import fcntl

        self._lock = (self.folder / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            self._lock = None
            raise QuietsumError(f"run {self.run} is being trained by another process; wait for it") from None

    def _anchored(self) -> Iterator[Path]:
        for name in ("checkpoint", "model"):
            yield from sorted((self._workspace / "training").glob(f"*/{name}.safetensors"))
        yield from sorted((self._workspace / "runs").glob("*/run.json"))

    def _check_anchors(self) -> None:
        """Every head that a training run has kept must be in the ledger; one that was rolled back pays for nothing."""
        for path in self._anchored():
            if path.suffix != ".safetensors":
                continue
            try:
                head = Head.from_dict(_read_about(path)["head"])
            except QuietsumError:
                raise
            except (LookupError, TypeError, ValueError) as error:
                raise CorruptState(f"{path} names no head of a ledger ({error}); restore it from a backup") from None
            if not self.ledger.contains(head):
                raise LedgerBroken(
                    f"does not contain the head that {path} was saved with", at=head.sequence,
                    remedy="it was rolled back, cut or replaced: restore it, then run quietsum ledger verify",
                )  # fmt: skip


def _read_about(path: Path) -> Mapping[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["quietsum"])
        about["head"]
        return about
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup, or delete it") from None
