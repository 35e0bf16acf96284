"""A finished model to be used: its weights held to their hash, with the guarantee that they were trained under.

:func:`open_model` opens the model of a run or of a training in a workspace. The task that the frozen plan names is
made, because it knows the model's form and how a row is encoded; where that is a class of the user's own, its module
is imported. Nothing that lies in the folder is executed: weights and headers are data, and what does not fit is
refused. Using a model costs nothing: predictions are post-processing of what was released.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from quietsum.errors import CorruptState, InvalidParameter, QuietsumError
from quietsum.files import read_file
from quietsum.privacy import Guarantee
from quietsum.runs import checkpoint as checkpoints
from quietsum.runs.folder import RunFolder, Workspace
from quietsum.runs.weights import read_weights
from quietsum.tasks import Predictions, Task, task_of
from quietsum.validate import flag

__all__ = ["TrainedModel", "open_model"]

Array = npt.NDArray[Any]


@final
class TrainedModel:
    """The model of a finished run.

    ``params`` are its weights as one vector, ``module`` is the torch model in eval mode (None for a numpy task),
    ``guarantees`` state what the weights cost, and ``run`` is the run's name.
    """

    def __init__(
        self,
        *,
        run: str,
        task: str,
        params: npt.NDArray[np.float64],
        module: Any,
        guarantees: tuple[Guarantee, ...],
        predict: Callable[[Array], Predictions | None],
        encode: Callable[[Path], Array | None],
        write: Callable[[Path, Mapping[str, str]], bool],
    ) -> None:
        self._write = write
        self.run, self.task, self.params, self.module, self.guarantees = run, task, params, module, guarantees
        self._predict, self._encode = predict, encode

    def __repr__(self) -> str:
        return f"TrainedModel({self.run}, {self.task}, {len(self.params)} weights)"

    def predict(self, rows: Array) -> Predictions:
        """What the model answers for ``rows``, an array in the form of the task's records; row i for row i.

        A row with a value that is no number gets no answer. Raises :class:`~quietsum.errors.InvalidParameter` if the
        rows do not fit the model, or the task does not say how its model answers.
        """
        found = self._predict(rows)
        if found is None:
            problem = "does not say what its model answers for rows without labels"
            raise InvalidParameter("task", self.task, problem, "give it answers(params, features) and answer_names")
        return found

    def predict_file(self, path: Path) -> Predictions:
        """What the model answers for the rows of a file: ``.csv`` with the task's columns, or an array (``.npy``).

        A task from pictures takes a folder of them, in the order of their names, and one from landmarks an ``.npz``.
        """
        return self.predict(self._read(path))

    def write_onnx(self, path: Path) -> None:
        """Write the model as ONNX: rows in the form of the task's records in, what :meth:`predict` answers out.

        Its metadata holds the run, the task and the guarantees as JSON. Raises
        :class:`~quietsum.errors.QuietsumError` if what writes ONNX is not installed, and
        :class:`~quietsum.errors.InvalidParameter` if the model cannot be written so.
        """
        stated = json.dumps([one.to_dict() for one in self.guarantees])
        if not self._write(path, {"run": self.run, "task": self.task, "guarantees": stated}):
            problem = "does not say of which layers its model is made"
            raise InvalidParameter("task", self.task, problem, "give it layers(params); see quietsum.tasks.exporting")

    def _read(self, path: Path) -> Array:
        if path.suffix in (".npy", ".npz") and not _has_landmarks(path):
            return _read_array(path)
        rows = self._encode(path)
        if rows is None:
            problem = f"is no array, and {self.task} does not say how columns become what its model takes"
            remedy = "pass the rows as .npy, or give the task encode_file(path)"
            raise InvalidParameter("rows", str(path), problem, remedy)
        return rows


def open_model(run: str = "latest", workspace: Workspace | None = None) -> TrainedModel:
    """The model of the run ``run`` (its name, or its folder) in ``workspace``.

    Raises :class:`~quietsum.errors.InvalidParameter` if the run has no finished model, and
    :class:`~quietsum.errors.CorruptState` if weights, header, plan and task do not belong together.
    """
    place = Workspace.at() if workspace is None else workspace
    for folder in (place.path / "training" / run, Path(run)):
        if run != "latest" and (folder / "options.json").is_file() and not (folder / "run.json").exists():
            return _open_training(folder)
    return _open_run(place.find(run))


def _open_run(folder: RunFolder) -> TrainedModel:
    from quietsum.analytics import TASK

    plan, again = folder.plan(), f"finish it first: quietsum run --resume {folder.run}"
    if plan.task.name == TASK:
        remedy = f"quietsum ask --run {folder.run} shows its answers"
        raise InvalidParameter("run", folder.run, "asked questions, so it has no model", remedy)
    if not folder.model.is_file():
        raise InvalidParameter("run", folder.run, "is not finished, so it has no model", again)
    params, about = checkpoints.read_model(folder.model)
    if (about.get("run"), about.get("plan")) != (folder.run, folder.plan_digest):
        raise CorruptState(f"{folder.model} is the model of another run or plan; put this run's own file back")
    if (last := checkpoints.newest_checkpoint(folder.checkpoints)) is not None and last != about.get("round"):
        problem = f"has gone on to round {last} since its model was written"
        raise InvalidParameter("run", folder.run, problem, again)
    task = task_of(plan)
    if params.shape != (task.dimension,):
        raise CorruptState(
            f"{folder.model} holds {len(params)} weights, and the model of {task.name} has {task.dimension}: the task "
            "is not as it was when the run was made; use the version of it that trained this model"
        )
    module = _module(task, params, folder.weights, about)
    return TrainedModel(
        run=folder.run, task=task.name, params=params, module=module, guarantees=_guarantees(about, folder.model),
        predict=lambda rows: task.predict(params, rows), encode=task.encode_file,
        write=lambda path, about: task.write_onnx(params, path, about),
    )  # fmt: skip


def _module(task: Task, params: npt.NDArray[np.float64], path: Path, about: Mapping[str, Any]) -> Any:
    """The task's torch model with these weights, which must be those of the file at ``path`` if there is one."""
    module = task.module(params)
    if module is None or not path.exists():
        return module
    tensors, told = read_weights(path)
    if (told.get("run"), told.get("model")) != (about["run"], about["model"]):
        raise CorruptState(
            f"{path} is not of the model beside it; delete it, then quietsum run --resume writes it again"
        )
    own = {name: value.numpy() for name, value in module.state_dict().items()}
    different = sorted(
        name
        for name in own.keys() | tensors.keys()
        if name not in own
        or name not in tensors
        or own[name].shape != tensors[name].shape
        or own[name].tobytes() != tensors[name].tobytes()
    )
    if different:
        raise CorruptState(
            f"{path} and the model of {task.name} differ in {', '.join(different[:5])}: the task is not as it was when "
            "the run was made; use the version of it that trained this model"
        )
    return module


def _open_training(folder: Path) -> TrainedModel:
    """The model of a run of ``quietsum train``."""
    from quietsum.learning import as_priced_today, fill_model, fix_batch_norm
    from quietsum.tasks import optional_part, predict_with, trainable_task, write_model

    path, again = folder / "model.safetensors", f"finish it first: quietsum train --resume {folder.name}"
    if not path.is_file():
        raise InvalidParameter("run", folder.name, "is not finished, so it has no model", again)
    try:
        options = json.loads(read_file(folder / "options.json"))
        name, fix = options["task"], flag("fix", options.get("fix", False))
        if not isinstance(name, str):
            raise TypeError("its task is no name")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptState(f"{folder / 'options.json'} cannot be read ({error}); restore it from a backup") from None
    task = trainable_task(name)
    module = fix_batch_norm(task.model()) if fix else task.model()
    about = fill_model(path, module)
    if about.get("run") != folder.name:
        raise CorruptState(f"{path} is the model of another run; put this run's own file back")
    (stated,) = _guarantees({"guarantees": [about.get("guarantee")]}, path)
    try:
        stated = as_priced_today(stated, about)
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(f"{path} does not say how it was trained ({error}); restore it from a backup") from None
    encode = optional_part(task, "encode_file")

    def write(path: Path, told: Mapping[str, str]) -> bool:
        write_model(path, module, task, told)
        return True

    return TrainedModel(
        run=folder.name, task=str(task.name), module=module.eval(), guarantees=(stated,),
        params=np.concatenate([one.detach().double().reshape(-1).numpy() for one in module.parameters()]),
        predict=lambda rows: predict_with(module, task, rows),
        encode=lambda path: None if encode is None else np.asarray(encode(path)),
        write=write,
    )  # fmt: skip


def _guarantees(about: Mapping[str, Any], path: Path) -> tuple[Guarantee, ...]:
    try:
        return tuple(Guarantee.from_dict(values) for values in about["guarantees"])
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(f"{path} does not say what it cost ({error}); restore it from a backup") from None


def _has_landmarks(path: Path) -> bool:
    """Whether ``path`` is an .npz with landmarks, which its task centres; only the names in it are read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "landmarks.npy" in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def _read_array(path: Path) -> Array:
    """The array in a file of numpy. Guarantees: nothing in it is unpickled."""
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            if len(found.files) != 1:
                problem = f"holds {len(found.files)} arrays ({', '.join(found.files[:5])})"
                raise InvalidParameter("rows", str(path), problem, "save one, the rows")
            return np.asarray(found[found.files[0]])
    except InvalidParameter:
        raise
    except Exception as error:  # zipfile, zlib, tokenize and numpy each have their own
        why = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise InvalidParameter("rows", str(path), f"cannot be read ({why})", "save it with numpy.save") from None
