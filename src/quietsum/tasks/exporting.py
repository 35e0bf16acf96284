"""A finished model as ONNX, the form that other programs and languages run.

The graph answers what ``quietsum predict`` answers: the chance of each class, or the number that is learned. It takes
rows in the form of the task's records, as many at a time as one likes, in single precision. Writing it needs torch's
own exporter, which needs the package ``onnxscript``; reading it needs neither, nor quietsum.

A numpy task whose model is made of plain layers says so by ``layers(params)``: for each layer its weights, its bias and
what follows: "", "tanh" or "clip" (to [−1, 1]). The last one's scores become chances where there are classes, one score
being the log-odds of the second of two.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.files import write_output
from quietsum.tasks.models import scores_classes
from quietsum.tasks.predictions import refuse_without_onnx

__all__ = ["Layer", "module_of_layers", "write_layers", "write_model"]

Layer = tuple[NDArray[np.float64], NDArray[np.float64], str]
"""Weights (outputs, inputs), bias (outputs), and what follows."""
_FOLLOWS = {"": (), "tanh": (nn.Tanh,), "clip": (nn.Hardtanh,)}


def module_of_layers(layers: Sequence[Layer]) -> nn.Module:
    """The torch model of a numpy task's layers.

    >>> layers = [(np.ones((1, 2)), np.zeros(1), "clip")]
    >>> module_of_layers(layers)(torch.tensor([[1.0, 2.0]])).tolist()
    [[1.0]]
    """
    parts: list[nn.Module] = []
    for weights, bias, follows in layers:
        made = nn.Linear(weights.shape[1], weights.shape[0])
        with torch.no_grad():
            made.weight.copy_(torch.from_numpy(np.ascontiguousarray(weights)))
            made.bias.copy_(torch.from_numpy(np.ascontiguousarray(bias)))
        parts += [made, *(kind() for kind in _FOLLOWS[follows])]
    return nn.Sequential(*parts)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A library's own remarks, on what it would need for other models, stay out of the terminal."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@final
class _Answers(nn.Module):
    """Scores as chances, where there are classes."""

    def __init__(self, model: nn.Module, *, chances: bool) -> None:
        super().__init__()
        self.model, self.chances = model, chances

    def forward(self, rows: Tensor) -> Tensor:
        """One answer a row."""
        scores: Tensor = self.model(rows)
        if not self.chances:
            return scores
        scores = scores[:, None] if scores.dim() == 1 else scores
        if scores.shape[1] == 1:
            scores = torch.cat([-scores / 2, scores / 2], dim=1)
        return scores.softmax(dim=1)


def write_model(path: Path, model: nn.Module, task: Any, about: Mapping[str, str]) -> None:
    """Write the model of a torch task; its answers are those of :func:`~quietsum.tasks.models.predict_with`."""
    rows = task.example()[0] if hasattr(task, "example") else task.records()[0][:2]
    named, kind = getattr(task, "classes", None), next((one.dtype for one in model.parameters()), torch.float32)
    rows = rows.to(kind) if rows.is_floating_point() else rows
    _write(path, model, rows, chances=scores_classes(task), names=tuple(map(str, named or ())), about=about)


def write_layers(path: Path, layers: Sequence[Layer], names: Sequence[str], about: Mapping[str, str]) -> None:
    """Write the model of a numpy task; with two names or more its answers are chances."""
    rows = torch.zeros(2, layers[0][0].shape[1])
    _write(path, module_of_layers(layers), rows, chances=len(names) > 1, names=names, about=about)


def _write(
    path: Path, model: nn.Module, example: Tensor, *, chances: bool, names: Sequence[str], about: Mapping[str, str]
) -> None:
    """Write ``model`` to ``path``; ``example`` are two rows, or one, in the form that it takes.

    ``names`` are those of the answers and stand in the file's metadata, beside ``about``. Raises
    :class:`~quietsum.errors.InvalidParameter` if the exporter knows no such model.
    """
    refuse_without_onnx()
    answers = _Answers(model, chances=chances).eval().float()
    rows = (example.float() if example.is_floating_point() else example)[:1].repeat(2, *(1,) * (example.dim() - 1))
    try:
        with warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                answers, (rows,), dynamo=True, input_names=["rows"], output_names=["answers"], verbose=False,
                dynamic_shapes={"rows": {0: torch.export.Dim("n")}},
            )  # fmt: skip
        told = {**about, "answers": ", ".join(names)}
        program.model.metadata_props.update(told)
        written = program.model_proto.SerializeToString()
    except QuietsumError:
        raise
    except Exception as error:  # each layer that is not known has a way of its own to say so
        why = " ".join(str(error).split())[:200]
        problem = f"has a model that torch cannot write as ONNX ({type(error).__name__}: {why})"
        raise InvalidParameter(
            "run", about.get("run", ""), problem, "use quietsum.load_model, or its .safetensors file"
        ) from None
    write_output(path, written)
