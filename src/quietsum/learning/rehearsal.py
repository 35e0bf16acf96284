"""A rehearsal on made-up records before anything is charged, and the modes in which a model trains and is scored.

:func:`rehearse_model` and :func:`rehearse_step` try model, loss and engine on made-up rows, so that a mistake raises
before a record is read or paid for. :func:`training` and :func:`scoring` set the mode module by module, so that a
module that was frozen stays frozen: ``model.train()`` would wake a batch norm in eval mode, which would then mix the
records of a batch.

>>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
>>> with training(model):
...     model[0].training, model[1].training
(True, False)
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator

import torch
from torch import nn

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.batch_mixing import NORMS, keep_unchanged, what_mixes, what_remembers
from quietsum.learning.engines.protocol import Batch, Loss, losses_of
from quietsum.learning.rows.records import MADE_UP_ROWS, LabelsOutOfRange, MadeUpRows, Records
from quietsum.learning.step import PrivateStep, cross_entropy

__all__ = ["rehearse_large", "rehearse_model", "rehearse_step", "scoring", "training"]


@contextlib.contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """In train mode; every module has its own mode back afterwards.

    Modules that were in eval mode inside a model in train mode stay as they are, and norms that may mix records stay so
    in any model.
    """
    with _restore(model):
        frozen = [m for m in model.modules() if not m.training and (model.training or isinstance(m, NORMS))]
        model.train()
        for module in frozen:
            module.training = False
        yield


@contextlib.contextmanager
def scoring(model: nn.Module) -> Iterator[None]:
    """In eval mode; every module has its own mode back afterwards."""
    with _restore(model):
        model.eval()
        yield


@contextlib.contextmanager
def _restore(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


log = logging.getLogger(__name__)


def rehearse_model(
    model: nn.Module, loss: Loss, records: Records, device: torch.device, *, check_labels: bool = True
) -> None:
    """Try model and loss on made-up rows, so that mistakes are heard of before a record is touched and paid for.

    Guarantees: with ``check_labels`` False nothing that is raised depends on what a record holds. With it, the labels
    of records in memory are compared with the model's classes, and the first records of other data sets with the
    schema: those errors are for the holder of the data, who knows the records, and must not be passed on, since they
    tell of them. Parameters and buffers of the model are afterwards what they were.
    """
    rows = records.make_up(device)
    if loss is cross_entropy and (len(rows) != 2 or rows[1].dtype.is_floating_point or rows[1].dim() != 1):
        shapes = [(shape, str(dtype)) for shape, dtype in records.schema]
        raise InvalidParameter("data", shapes, "is not (inputs, whole-number label)", "pass your own loss for it")
    with keep_unchanged(model):
        try:
            losses = losses_of(loss, model, rows, MADE_UP_ROWS)
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"and the loss cannot read made-up records of shapes {[shape for shape, _ in records.schema]}"
            remedy = f"they raise {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise InvalidParameter("model", type(model).__name__, problem, remedy) from error
        if not losses.requires_grad:
            problem = "does not depend on any trainable parameter"
            raise InvalidParameter("loss", "the loss", problem, "check for detach() or no_grad() in model and loss")
        _refuse_memory(model, loss, rows)
        _refuse_mixed(model, loss, rows)
        records.rehearsed = (model, loss)
        if loss is cross_entropy and check_labels:
            _check_labels(model, records, rows)
    if check_labels:
        records.check_shapes()


def _refuse_mixed(model: nn.Module, loss: Loss, rows: Batch) -> None:
    how = what_mixes(model, loss, rows)
    if how is not None:
        problem = f"mixes examples in a batch of {len(rows[0])}: the loss of a record is another one {how}"
        remedy = (
            "clipping then bounds nothing; let every loss depend on its own record alone, for any number and "
            "order of the records in a batch: no statistics over it, no capacity, no division by its length"
        )
        raise InvalidParameter("model", type(model).__name__, problem, remedy)


def _refuse_memory(model: nn.Module, loss: Loss, rows: Batch) -> None:
    found = what_remembers(model, loss, rows)
    if found is not None:
        problem = (
            "depends on the records that passed through the model, or on their number, and would be saved without noise"
        )
        remedy = (
            "keep nothing of a batch beyond forward() and the loss: a local variable, no attribute, list or closure; "
            "statistics of the data belong in fixed, public numbers that you set before training"
        )
        raise InvalidParameter("model", f"{type(model).__name__}: {found}", problem, remedy)


def rehearse_step(step: PrivateStep, records: MadeUpRows, device: torch.device) -> None:
    """Try the step's engine on made-up rows, one of them and several, and let it say aloud what it cannot do.

    In training a row that raises is silent, so a model that always raises would be trained on noise alone. The model of
    the last :func:`rehearse_model` with these records is also tried for mixing in large batches
    (:func:`rehearse_large`).
    """
    rows = records.make_up(device)
    model, loss = records.rehearsed or (None, None)
    with contextlib.ExitStack() as stack:
        if model is not None:
            stack.enter_context(keep_unchanged(model))
        for count in (1, MADE_UP_ROWS):
            try:
                step.engine.clipped_sum(tuple(part[:count] for part in rows))
            except QuietsumError:
                raise
            except Exception as error:
                problem = f"cannot be differentiated by the engine {step.engine.name} in a batch of {count}"
                remedy = f"it raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                raise InvalidParameter("model", "the model", problem, remedy) from error
    if step.engine.name == "naive" and step.engine.why.startswith("a loop over examples, which"):
        log.warning("the training steps run one record at a time: %s", step.engine.why)
    if model is not None and loss is not None:
        rehearse_large(model, loss, records, device, expected_batch=step.expected_batch, micro_batch=step.micro_batch)


def rehearse_large(
    model: nn.Module,
    loss: Loss,
    records: MadeUpRows,
    device: torch.device,
    *,
    expected_batch: float,
    micro_batch: int | None = None,
) -> None:
    """Refuse a model that mixes examples in a batch as large as Poisson batches get, or in any smaller one.

    That is six deviations above the expected size, a public number, or one micro-batch, if that is smaller: no forward
    pass sees more rows. It costs as much as a few steps of the training.
    """
    count = math.ceil(expected_batch + 6 * math.sqrt(expected_batch))
    count = count if micro_batch is None else min(count, micro_batch)
    while count > MADE_UP_ROWS:
        rows = records.make_up(device, count)
        try:
            with keep_unchanged(model), torch.no_grad():
                losses_of(loss, model, rows, count)
            return _refuse_mixed(model, loss, rows)
        except torch.OutOfMemoryError:
            count //= 2  # micro-batches may be all that fits
        except QuietsumError:
            raise
        except Exception as error:
            problem = f"and the loss cannot read {count} made-up records, as many as a batch may hold"
            remedy = f"they raise {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            raise InvalidParameter("model", type(model).__name__, problem, remedy) from error


def _check_labels(model: nn.Module, records: Records, rows: Batch) -> None:
    """Labels must be classes. The holder of the data hears that some are not, and neither which nor how many."""
    with torch.no_grad():
        classes = int(model(rows[0]).shape[-1])
    if records.tensors is not None:
        labels = records.tensors[1]
        if bool((labels < 0).any()) or bool((labels >= classes).any()):
            problem = f"lie outside 0 … {classes - 1}, the classes of the model"
            remedy = "number the classes from 0, or widen the model (this message is for you alone: do not pass it on)"
            raise LabelsOutOfRange("labels", "some labels", problem, remedy)
