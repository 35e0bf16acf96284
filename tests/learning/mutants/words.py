"""Broken silence: trainers whose release is private and who say something else besides.

Each entry of :data:`WORDS` is what a :class:`learning.mutants.honest.Trainer` says about a batch: what it
returns, and what it prints, logs and writes on the way.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import nn

from learning.mutants.honest import Trainer, clip, gradients, lengths, tensors
from quietsum.errors import QuietsumError
from quietsum.selfcheck import Batch

__all__ = ["WORDS", "batch_loss"]

Said: TypeAlias = Callable[[Trainer, Batch], Mapping[str, float]]


def batch_loss(trainer: Trainer, batch: Batch) -> dict[str, float]:
    """The training loss of protected records, for free."""
    with torch.no_grad():
        features, labels = tensors(batch)
        return {"loss": float(nn.functional.cross_entropy(trainer.model(features), labels))}


def told(by: Callable[[Trainer, float, int], object]) -> Said:
    """The loss of the batch and its size, told by some way that is no return value."""

    def said(trainer: Trainer, batch: Batch) -> Mapping[str, float]:
        by(trainer, batch_loss(trainer, batch)["loss"], len(batch[0]))
        return {}

    return said


def clip_share(trainer: Trainer, batch: Batch) -> dict[str, float]:
    """How many examples were clipped: a count of protected records, too."""
    return {"clipped examples": float((lengths(trainer, gradients(trainer, batch)) > trainer.sensitivity).sum())}


def clean_norm(trainer: Trainer, batch: Batch) -> dict[str, float]:
    """The norm of the sum before its noise."""
    return {"gradient norm": float(np.linalg.norm(clip(trainer, gradients(trainer, batch))))}


def broken_rows(trainer: Trainer, batch: Batch) -> dict[str, float]:
    """How many rows were NaN."""
    return {"bad rows": float(np.isnan(batch[0]).any(axis=1).sum())}


def _folder(trainer: Trainer) -> Path:
    """A folder that goes when the trainer does."""
    if "folder" not in trainer.state:
        trainer.state["folder"] = tempfile.TemporaryDirectory(prefix="selfcheck-")
    return Path(trainer.state["folder"].name)


def _append(trainer: Trainer, loss: float) -> None:
    with open(_folder(trainer) / "losses.csv", "a") as file:
        file.write(f"{loss:.6f}\n")


def _open_file(trainer: Trainer, loss: float) -> None:
    if "file" not in trainer.state:
        trainer.state["file"] = open(_folder(trainer) / "open.log", "w")  # noqa: SIM115, as such trainers do
    trainer.state["file"].write(f"{loss:.6f}\n")
    trainer.state["file"].flush()


def _save_and_say(trainer: Trainer, loss: float, rows: int) -> None:
    os.write(2, b"saved\n")
    torch.save(torch.full((rows,), loss), _folder(trainer) / "tensor.pt")


def _dated(trainer: Trainer, rows: int) -> None:
    """An empty file, made once, whose time of change tells."""
    path = _folder(trainer) / "dated"
    if not path.exists():
        path.touch()
    os.utime(path, (rows, rows))


def _aside(loss: float) -> None:
    """By a logger that neither shows nor passes on what it gets, until somebody asks it to."""
    logger = logging.getLogger("trainer.aside")
    logger.propagate = False
    logger.debug("loss %.6f", loss)


def _jitter(loss: float) -> float:
    """A loss as it comes out of kernels whose order of summation varies: the same but for its last bits."""
    return loss * (1 + 1e-7 * int.from_bytes(os.urandom(1)))


def _raise_for(count: int) -> None:
    if count % 2 == 0:
        raise QuietsumError(f"{count} rows do not divide among two workers evenly enough")


WORDS: Final[Mapping[str, Said]] = {
    "leaked loss": batch_loss,
    "leaked clip count": clip_share,
    "norm of the clean sum": clean_norm,
    "count of NaN rows": broken_rows,
    "actual batch size": lambda trainer, batch: {"rows": float(len(batch[0]))},
    "printed loss": told(lambda trainer, loss, rows: print(f"step done, loss {loss:.6f}")),
    "loss on standard error": told(lambda trainer, loss, rows: print(f"loss {loss:.6f}", file=sys.stderr)),
    "loss by the descriptor": told(lambda trainer, loss, rows: os.write(2, f"loss {loss:.6f}\n".encode())),
    "loss in the debug log": told(lambda trainer, loss, rows: logging.getLogger("trainer").debug("loss %.6f", loss)),
    "rows in the debug log": told(lambda trainer, loss, rows: logging.getLogger("trainer.data").debug("%d rows", rows)),
    "loss in a log kept aside": told(lambda trainer, loss, rows: _aside(loss)),
    "a word by the rows": told(lambda trainer, loss, rows: print(("odd", "and")[rows % 2 == 0])),
    "warning for a large loss": told(
        lambda trainer, loss, rows: warnings.warn("a large loss", stacklevel=1) if not loss < 5 else None
    ),
    "loss in a file": told(lambda trainer, loss, rows: (_folder(trainer) / "loss.txt").write_text(f"{loss:.6f}")),
    "losses added to a file": told(lambda trainer, loss, rows: _append(trainer, loss)),
    "losses in an open file": told(lambda trainer, loss, rows: _open_file(trainer, loss)),
    "a pickle of the batch": told(
        lambda trainer, loss, rows: (_folder(trainer) / "state.pkl").write_bytes(pickle.dumps({"loss": loss}))
    ),
    "a file named by the rows": told(lambda trainer, loss, rows: (_folder(trainer) / f"rows-{rows}").write_text("")),
    "a tensor saved": told(
        lambda trainer, loss, rows: torch.save(torch.full((rows,), loss), _folder(trainer) / "tensor.pt")
    ),
    "a tensor saved, off by its last bits": told(
        lambda trainer, loss, rows: torch.save(torch.full((rows,), _jitter(loss)), _folder(trainer) / "tensor.pt")
    ),
    "a tensor saved beside a printed line": told(lambda trainer, loss, rows: _save_and_say(trainer, loss, rows)),
    "rows in the environment": told(lambda trainer, loss, rows: os.environ.update({"QUIETSUM_TEST_ROWS": str(rows)})),
    "rows in a file's time": told(lambda trainer, loss, rows: _dated(trainer, rows)),
    "an error by the rows": told(lambda trainer, loss, rows: _raise_for(rows)),
}
