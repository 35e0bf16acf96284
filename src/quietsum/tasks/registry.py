"""Tasks: what is learned, from whose rows. ``heart`` travels with the package; your own is ``"my_module:MyTask"``.

:func:`task_of` makes the task of a plan, whichever kind it is: a numpy task as it is, a torch task with its records
dealt out to the plan's parties (:class:`quietsum.tasks.federated.FederatedTorch`).

>>> task_named("heart").dimension
15
>>> task_named("hart")
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: task = 'hart' is not known; did you mean "heart"?

``TRAINABLE`` are the tasks with torch models; torch is imported when one of them is made.

>>> sorted(TRAINABLE)
['cards', 'chest-xray', 'digits', 'fashion-mnist', 'fraud', 'mnist', 'nuclei', 'pose', 'text']
>>> trainable_task("digit")
Traceback (most recent call last):
...
quietsum.errors.InvalidParameter: task = 'digit' is not known; did you mean "digits"?
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.tasks.adapters import FederatedNumpy, FederatedOwn
from quietsum.tasks.classes import FEDERATED, NUMPY, TORCH, Shape, class_named, instantiate
from quietsum.tasks.protocol import NumpyTask, OwnTask, Task, TorchTask

if TYPE_CHECKING:
    from quietsum.plan import Plan

__all__ = [
    "TASKS",
    "TRAINABLE",
    "make_named_task",
    "make_own_task",
    "nearest_name",
    "refuse_lacking",
    "task_named",
    "task_of",
    "trainable_task",
]


def _heart(options: Mapping[str, Any]) -> NumpyTask:
    from quietsum.tasks.gallery.heart import HeartTask

    return HeartTask.from_options(options)


def _questions(options: Mapping[str, Any]) -> NumpyTask:
    from quietsum.tasks.questions import QuestionTask

    return QuestionTask.from_options(options)


def _table(options: Mapping[str, Any]) -> NumpyTask:
    from quietsum.tasks.table.task import TableTask

    return TableTask.from_options(options)


TASKS: Final[Mapping[str, Callable[[Mapping[str, Any]], NumpyTask]]] = {"heart": _heart}
"""The tasks that need no torch, by name."""
_MADE: Final = {**TASKS, "questions": _questions, "table": _table}  # quietsum ask and new --from write their plans


def task_named(name: str, options: Mapping[str, Any] | None = None) -> NumpyTask:
    """The task ``name``, made with ``options``; ``"module:Class"`` calls that class with the options by name."""
    options = {} if options is None else options
    if not isinstance(name, str):
        raise InvalidParameter("task", name, "is no name", nearest_name("", TASKS))
    if name in _MADE:
        return _MADE[name](options)
    if ":" in name:
        return _from_module(name, options)
    raise InvalidParameter("task", name, "is not known", nearest_name(name, TASKS, 'or write "my_module:MyTask"'))


def nearest_name(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A remedy: the nearest of the ``known`` names, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known: {', '.join(names)}" + (f"; {otherwise}" if otherwise else "")


def _from_module(name: str, options: Mapping[str, Any]) -> NumpyTask:
    task = make_own_task(name, options, NUMPY)
    refuse_lacking(name, task, NUMPY)
    return cast(NumpyTask, task)


# ------------------------------------------------------------------------------------------------- torch models


def _late(where: str) -> Callable[[Mapping[str, Any]], TorchTask]:
    """The class ``module:name``, imported when a task is made of it: torch is heavy."""

    def make(options: Mapping[str, Any]) -> TorchTask:
        module, _, kind = where.partition(":")
        return cast(TorchTask, getattr(importlib.import_module(module), kind)(**options))

    return make


TRAINABLE: Final[Mapping[str, Callable[[Mapping[str, Any]], TorchTask]]] = {
    "digits": _late("quietsum.tasks.gallery.digits:DigitsTask"),
    "mnist": _late("quietsum.tasks.gallery.mnist:MnistTask"),
    "fashion-mnist": _late("quietsum.tasks.gallery.mnist:FashionMnistTask"),
    "chest-xray": _late("quietsum.tasks.gallery.chest_xray:ChestXrayTask"),
    "nuclei": _late("quietsum.tasks.gallery.nuclei:NucleiTask"),
    "fraud": _late("quietsum.tasks.gallery.fraud:FraudTask"),
    "cards": _late("quietsum.tasks.gallery.cards:CardsTask"),
    "pose": _late("quietsum.tasks.gallery.pose:PoseTask"),
    "text": _late("quietsum.tasks.gallery.text:TextTask"),
}
"""The torch tasks that quietsum brings, by name."""


def _from_files(kind: str) -> Callable[[Mapping[str, Any]], TorchTask]:
    """A task from a folder of pictures, or from a file of landmarks."""

    def make(options: Mapping[str, Any]) -> TorchTask:
        require_torch()
        samples = importlib.import_module("quietsum.tasks.table.samples")
        return cast(TorchTask, samples.SamplesTask.from_options(kind, options))

    return make


_WRITTEN: Final = {"images": _from_files("images"), "landmarks": _from_files("landmarks")}
"""Those that quietsum new --from writes: they make no sense without options."""


def trainable_task(name: str, options: Mapping[str, Any] | None = None, *, made: Any = None) -> TorchTask:
    """The task ``name``, or your own as ``"my_module:MyTask"``, made with ``options`` unless it is ``made`` already."""
    options = {} if options is None else options
    if ":" in name:
        task = make_own_task(name, options, TORCH) if made is None else made
        refuse_lacking(name, task, TORCH)
        return cast(TorchTask, task)
    known = {**TRAINABLE, **_WRITTEN}
    if name in _MADE:
        problem = "is a task of sites and has no torch model, so it is not trained at one place"
        remedy = f"quietsum new run.toml --task {name}, then quietsum run" if name in TASKS else "quietsum run its plan"
        raise InvalidParameter("task", name, problem, remedy)
    if name not in known:
        remedy = nearest_name(name, TRAINABLE, 'or write "my_module:MyTask"')
        raise InvalidParameter("task", name, "is not known", remedy)
    require_torch()
    return known[name](options)


def require_torch() -> None:
    """Say how to install torch where it is missing."""
    try:
        importlib.import_module("torch")
    except ImportError:
        raise QuietsumError("training needs torch, which is not installed: pip install 'quietsum[train]'") from None


def make_named_task(name: str, options: Mapping[str, Any]) -> Any:
    """The user's object behind ``name``, of whichever kind: as a site makes it of what its policy allows."""
    if ":" in name:
        return make_own_task(name, options)
    if name in _MADE:
        return _MADE[name](options)
    if name not in TRAINABLE and name not in _WRITTEN:
        remedy = nearest_name(name, (*TASKS, *TRAINABLE), 'or write "my_module:MyTask"')
        raise InvalidParameter("tasks.name", name, "is not known", remedy)
    return trainable_task(name, options)


# ------------------------------------------------------------------------------------------ the task of a plan


def task_of(plan: Plan, *, device: str = "cpu", share: float = 1.0) -> Task:
    """The task of ``plan``, with its records at the plan's parties. ``device`` is where torch models train.

    Where that is a card, this process takes no more than ``share`` of its memory; what asks for more is out of memory.

    A class of the user's own, ``"my_module:MyTask"``, may be any of three: a torch task (model, loss, records), a
    numpy task (rows, gradients) or a task with a ``train`` of its own.

    >>> from quietsum.plan import FederationPlan, Plan, TaskPlan
    >>> federation = FederationPlan(split="iid", parties=4)
    >>> task = task_of(Plan(task=TaskPlan(name="digits"), federation=federation))
    >>> task.dimension, [party.size for party in task.parties()]
    (4810, [338, 338, 338, 338])
    """
    task = _task_of(plan, device, share)
    _check_person(task, plan)
    _check_base(task, plan)
    return task


def _check_base(task: Task, plan: Plan) -> None:
    """Raise InvalidParameter if the weights that are not trained are other ones here than ``plan`` names."""
    found, named = task.base, plan.task.base
    if found == named:
        return
    if not named:
        problem = f"is missing: {task.name} has weights that are not trained and do not travel"
        raise InvalidParameter("task.base", named, problem, f'write base = "{found}" under [task]')
    problem = f"are the frozen weights of the plan, and {task.name} has "
    problem += f"others here ({found[:12]}…)" if found else "none here: all of it is trained"
    raise InvalidParameter("task.base", f"{named[:12]}…", problem, "use the base model that the plan was made with")


def _check_person(task: Task, plan: Plan) -> None:
    """Raise InvalidParameter if ``plan`` promises something to people that ``task`` does not know by that name."""
    person, known = plan.privacy.person, task.person
    if person is None:
        return
    if known is None:
        problem = f"is promised something, and {plan.task.name} does not say whose its records are"
        raise InvalidParameter("privacy.person", person.id, problem, "remove it, or give the task people()")
    if known and known != person.id:
        raise InvalidParameter(
            "privacy.person.id",
            person.id,
            f"is not who stands behind records of {plan.task.name}",
            f'say id = "{known}"',
        )


def _task_of(plan: Plan, device: str, share: float) -> Task:
    name, options = plan.task.name, plan.task.options
    if ":" in name:
        task = make_own_task(name, options)
        if callable(getattr(task, "train", None)):
            refuse_lacking(name, task, FEDERATED)
            return _as_they_are(task if isinstance(task, Task) else FederatedOwn(cast(OwnTask, task)), plan)
        if getattr(task, "model", None) is None:
            refuse_lacking(name, task, NUMPY)
            return _as_they_are(FederatedNumpy(cast(NumpyTask, task)), plan)
        return _dealt_out(trainable_task(name, options, made=task), plan, device, share)
    if name in _MADE:
        return _as_they_are(FederatedNumpy(_MADE[name](options)), plan)
    if name not in TRAINABLE and name not in _WRITTEN:
        remedy = nearest_name(name, (*TASKS, *TRAINABLE), 'or write "my_module:MyTask"')
        raise InvalidParameter("task", name, "is not known", remedy)
    return _dealt_out(trainable_task(name, options), plan, device, share)


def _dealt_out(task: Any, plan: Plan, device: str, share: float) -> Task:
    from quietsum.tasks.federated import FederatedTorch, limit_card

    limit_card(device, share)
    split, parties, engine = plan.federation.split, plan.federation.parties, plan.training.engine
    return FederatedTorch(task, split=split, parties=parties, engine=engine, device=device)


def _as_they_are(task: Task, plan: Plan) -> Task:
    """A task with sites of its own, which cannot be dealt out anew."""
    if plan.federation.split != "natural" or isinstance(plan.federation.parties, int):
        asked = plan.federation.split if plan.federation.split != "natural" else plan.federation.parties
        where = "split" if plan.federation.split != "natural" else "parties"
        problem = f"makes new clients, and the rows of {task.name} lie at sites of their own"
        remedy = "choose split = 'natural' and leave parties out, or name some of the sites"
        raise InvalidParameter(where, asked, problem, remedy)
    return task


# --------------------------------------------------------------------------------------------- tasks of your own


def make_own_task(name: str, options: Mapping[str, Any], kind: Shape | None = None) -> Any:
    """What the class ``"module:Class"`` makes of the options. The working folder is searched last of all.

    Guarantees: only a class with the shape of a task is called (:func:`quietsum.tasks.classes.class_named`).
    """
    return instantiate(class_named(name, kind), name, options)


def refuse_lacking(name: str, task: Any, kind: Shape) -> None:
    """Raise where ``task`` lacks something that tasks of its ``kind`` have."""
    lacking = [each for each in (*kind.stated, *kind.done) if getattr(task, each, None) is None]
    if lacking:
        remedy = f"write what {kind.listed} lists"
        raise InvalidParameter("task", name, f"is no task: it lacks {', '.join(lacking)}", remedy)
