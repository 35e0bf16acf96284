"""Records that come as dicts: tokenised data sets and what a model of transformers makes of them.

A tokenised ``datasets.Dataset``, or any data set whose rows are dicts of numbers, is read column by column in one fixed
order. A loss of one's own then gets a batch as a dict. Without one, a model of transformers is asked for its logits,
and the loss is the model's own: the mean over the labelled tokens of *one* record (or its class), where transformers
takes the mean over a batch, which would mix records. That both agree is tried on a made-up record before anything is
charged (:func:`check_own_loss`).

Which columns are used is decided by their names and types, never by what a record holds: those that the model's
``forward`` takes, and ``labels`` (``label`` counts as that, as with transformers). What is left out is logged.

>>> rows = [{"input_ids": [5, 6, 7], "labels": 1, "text": "left out"}, {"input_ids": [8, 9, 5], "labels": 0}]
>>> [part.tolist() for part in ByColumns(rows, RecordColumns(("input_ids", "labels")))[0]]
[[5, 6, 7], 1]
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.engines.batch_mixing import keep_unchanged
from quietsum.learning.engines.protocol import Batch, Loss
from quietsum.learning.rehearsal import scoring
from quietsum.learning.rows.output_layer import find_output_layer, score_next
from quietsum.learning.rows.packed import begins_document, refuse_packed
from quietsum.learning.rows.records import _choose as _choose_rows
from quietsum.learning.step import cross_entropy
from quietsum.learning.validation import refuse_training_records

__all__ = [
    "ByColumns",
    "ModelLoss",
    "NamedLoss",
    "NamedRecords",
    "RecordColumns",
    "base_of",
    "check_own_loss",
    "read_named",
]

log = logging.getLogger(__name__)

_IGNORED = -100  # the label that transformers leaves out of a loss
_CAUSAL = (None, "ForCausalLM", "ForConditionalGeneration")  # what predicts the next token: labels are shifted by one
_CLASSES = ("ForSequenceClassification", "ForImageClassification", "ForVideoClassification", "ForTokenClassification")
_KNOWN = (*_CAUSAL, *_CLASSES, "ForMaskedLM")
_SPELT = {"label": "labels", "label_ids": "labels"}


@final
@dataclasses.dataclass(frozen=True)
class RecordColumns:
    """The columns of a record in their order, and what a record that is shorter than ``length`` is filled up with.

    Guarantees: a record becomes tensors by itself, and by public constants.
    """

    names: tuple[str, ...]
    length: int | None = None
    padding: int = 0

    def tensors_of(self, row: Mapping[str, Any]) -> Batch:
        """The tensors of one record, in the columns' order."""
        spelt = {_SPELT.get(name, name): value for name, value in row.items()}
        return tuple(self._fill(name, _tensor(spelt[name])) for name in self.names)

    def of_batch(self, batch: Mapping[str, Any]) -> Batch:
        """The tensors of a batch that a collate function made, in the columns' order."""
        spelt = {_SPELT.get(name, name): value for name, value in batch.items()}
        return tuple(spelt[name] for name in self.names)

    def _fill(self, name: str, part: Tensor) -> Tensor:
        missing = 0 if self.length is None or part.dim() != 1 else self.length - len(part)
        if missing <= 0:
            return part
        with_what = {"input_ids": self.padding, "labels": _IGNORED}.get(name, 0)
        return functional.pad(part, (0, missing), value=with_what)


def _tensor(value: Any) -> Tensor:
    found = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    if found.dtype is torch.bool or found.is_floating_point():
        return found.to(torch.float32) if found.dtype is torch.float64 else found
    return found.to(torch.int64)


@final
class ByColumns(torch.utils.data.Dataset[Batch]):
    """A data set of dicts as one of tuples. Printing it shows nothing."""

    def __init__(self, rows: Any, columns: RecordColumns) -> None:
        self.rows, self.columns = rows, columns

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Batch:
        return self.columns.tensors_of(self.rows[place])

    def __repr__(self) -> str:
        return f"ByColumns({', '.join(self.columns.names)})"


@final
class _Collated:
    """A collate function that returns dicts, as one that returns tuples. Without one, rows are collated as they are."""

    def __init__(self, columns: RecordColumns, collate: Callable[[list[Any]], Any] | None) -> None:
        self.columns, self.collate = columns, collate

    def __call__(self, rows: list[Any]) -> Batch:
        if self.collate is None:
            collated: Batch = tuple(default_collate([self.columns.tensors_of(row) for row in rows]))
            return collated
        return self.columns.of_batch(self.collate(rows))


@final
class _Batches:
    """Batches of dicts as batches of tuples, as often as they are asked for."""

    def __init__(self, batches: Iterable[Any], columns: RecordColumns) -> None:
        self.batches, self.columns = batches, columns

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches:
            yield self.columns.of_batch(batch)


# ------------------------------------------------------------------------------------------------------- losses


@final
class NamedLoss:
    """A loss of the user's own that gets every batch as a dict of tensors."""

    def __init__(self, columns: RecordColumns, loss: Loss) -> None:
        self.columns, self.loss = columns, loss

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of each record."""
        own: Any = self.loss
        found: Tensor = own(model, dict(zip(self.columns.names, batch, strict=True)))
        return found


@final
class ModelLoss:
    """The loss of a model of transformers, with one value per record.

    A language model's is the mean of −ln p over the labelled tokens of one record; without a column ``labels`` these
    are its own tokens where ``attention_mask`` is 1, but for the first of each document where ``position_ids`` begin
    again (:mod:`quietsum.learning.rows.packed`). A classifier's is −ln p(class); with one output, or labels that
    are no whole numbers, the squared or the binary error as transformers chooses it. Guarantees: a label that is no
    class costs zero, so that its record is silent rather than the reason of an error.
    """

    def __init__(
        self, columns: RecordColumns, *, kind: str | None, encoder_decoder: bool = False, caches: bool = False
    ) -> None:
        """``caches``: the model would keep keys and values for texts that go on, and see no documents in a row then."""
        self.columns, self.kind, self.encoder_decoder = columns, kind, encoder_decoder
        self.options = {"use_cache": False} if caches else {}
        self.direct = True  # until scores are seen to be changed behind the output layer

    @classmethod
    def of(cls, model: nn.Module, columns: RecordColumns) -> ModelLoss:
        """The loss that fits ``model``, or an error that teaches."""
        base: Any = base_of(model)
        kind, config = getattr(base, "loss_type", None), getattr(base, "config", None)
        encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        if kind not in _KNOWN:
            problem = f"has the loss {kind} of transformers, which is not known here for single records"
            remedy = "pass loss=, a function of (model, batch) with one value per record; batch is a dict of tensors"
            raise InvalidParameter("model", type(base).__name__, problem, remedy)
        labelled = "labels" in columns.names
        if not labelled and (kind not in _CAUSAL or encoder_decoder or "input_ids" not in columns.names):
            problem = f"has the columns {', '.join(columns.names)}, and none with labels"
            raise InvalidParameter("data", "rows that are dicts", problem, "give every record labels, or pass loss=")
        caches = "use_cache" in inspect.signature(base.forward).parameters
        return cls(columns, kind=kind, encoder_decoder=encoder_decoder, caches=caches)

    def split(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """What the model takes, and the labels; those of padding are ignored where they are the tokens themselves."""
        inputs = dict(zip(self.columns.names, batch, strict=True))
        if "labels" in inputs:
            return inputs, inputs.pop("labels")
        labels = inputs["input_ids"]
        if "attention_mask" in inputs:
            labels = torch.where(inputs["attention_mask"] > 0, labels, _IGNORED)
        if "position_ids" in inputs and inputs["position_ids"].shape == labels.shape:
            labels = labels.masked_fill(begins_document(inputs["position_ids"]), _IGNORED)
        return inputs, labels

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of each record."""
        inputs, labels = self.split(batch)
        if self.encoder_decoder and labels.dim() > 1:
            made: Any = getattr(base_of(model), "prepare_decoder_input_ids_from_labels")  # noqa: B009 (it is no Module's)
            inputs["decoder_input_ids"] = made(labels=labels)
        if self.kind in _CAUSAL and not self.encoder_decoder and self.direct:
            layer = find_output_layer(base_of(model), labels)
            each = None if layer is None else score_next(layer, lambda: self._logits(model, inputs), labels)
            if layer is not None and each is not None:
                known = (labels[:, 1:] >= 0) & (labels[:, 1:] < layer.out_features)
                return each.sum(1) / known.sum(1).clamp(min=1)
            self.direct = layer is None
        logits = self._logits(model, inputs)
        if self.kind in _CAUSAL and not self.encoder_decoder:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return _per_record(logits, labels)

    def _logits(self, model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        called: Any = model
        found: Tensor = called(**inputs, **self.options).logits
        return found


def _per_record(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point() or logits.shape[-1] == 1:
        wanted = labels.reshape(logits.shape).to(logits.dtype)
        several = labels.is_floating_point() and labels.dim() > 1
        by = functional.binary_cross_entropy_with_logits if several else functional.mse_loss
        return by(logits, wanted, reduction="none").flatten(1).mean(1)
    valid = (labels >= 0) & (labels < logits.shape[-1])
    exact = logits if logits.dtype is torch.float64 else logits.float()
    scores = exact.movedim(-1, 1)  # as transformers: half precision is too coarse for a vocabulary
    each = functional.cross_entropy(scores, torch.where(valid, labels, 0), reduction="none")
    each = torch.where(valid, each, 0.0)
    if each.dim() == 1:
        return each
    return each.flatten(1).sum(1) / valid.flatten(1).sum(1).clamp(min=1)


def check_own_loss(model: nn.Module, loss: ModelLoss, rows: Batch) -> None:
    """Refuse a model whose own loss on one made-up record is another one than ``loss`` takes it for.

    Guarantees: no record of the data is read. The model's parameters, buffers and modes stay as they are.
    """
    one = tuple(part[1:2] for part in rows)  # the second made-up row has ones, in its mask too
    inputs, labels = loss.split(one)
    try:
        with keep_unchanged(model), scoring(model), torch.no_grad():
            called: Any = model
            own, ours = float(called(**inputs, labels=labels, **loss.options).loss), float(loss(model, one)[0])
    except QuietsumError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        problem = f"cannot read a made-up record ({told})"
        remedy = "compare the columns of a record with what the model's forward takes, or pass loss="
        raise InvalidParameter("model", type(base_of(model)).__name__, problem, remedy) from error
    if not abs(own - ours) <= 1e-3 * max(1.0, abs(own)):
        problem = f"has a loss of its own ({own:.4g} on a made-up record, where the usual one is {ours:.4g})"
        remedy = "pass loss=, a function of (model, batch) with one value per record; batch is a dict of tensors"
        raise InvalidParameter("model", type(base_of(model)).__name__, problem, remedy)


def base_of(model: nn.Module) -> nn.Module:
    """The model inside PEFT's wrapper, or inside torch.compile's; itself otherwise."""
    inner = getattr(model, "_orig_mod", model)
    unwrap = getattr(inner, "get_base_model", None)
    found = unwrap() if callable(unwrap) else inner
    return found if isinstance(found, nn.Module) else model


# ------------------------------------------------------------------------------------------------ what is passed


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedRecords:
    """Data, validation data, a made-up record and a loss, all by columns; as they were where rows are no dicts."""

    data: Any
    validation: Any
    example: Any
    loss: Loss


def read_named(
    data: Any, validation: Any, example: Any, *, model: nn.Module, loss: Loss, size_is_private: bool = False
) -> NamedRecords:
    """What training reads of records that are dicts; everything else is returned as it is.

    Guarantees: with an ``example``, or with a private number of records, no record is read. Otherwise the first one is,
    for the names, shapes and types of its columns, which are public by declaration.
    """
    kept = NamedRecords(data=data, validation=validation, example=example, loss=loss)
    refuse_packed((), data.collate_fn if isinstance(data, DataLoader) else None)
    row = _first_row(data, example, size_is_private)
    if not isinstance(row, Mapping):
        return kept
    columns = loss.columns if isinstance(loss, NamedLoss | ModelLoss) else _choose(row, example, model, loss)
    if validation is not None:
        refuse_training_records(validation, data)
    made = loss
    if not isinstance(loss, NamedLoss | ModelLoss):
        made = ModelLoss.of(model, columns) if loss is cross_entropy else NamedLoss(columns, loss)
    if isinstance(made, ModelLoss) and made is not loss:
        device = next(model.parameters()).device
        check_own_loss(model, made, tuple(part.to(device) for part in _make_up(columns.tensors_of(row))))
    return NamedRecords(
        data=_by_columns(data, columns),
        validation=None if validation is None else _read_scored(validation, columns),
        example=None if example is None else columns.tensors_of(example),
        loss=made,
    )


def _first_row(data: Any, example: Any, size_is_private: bool) -> Any:
    """The example, or the first record, or what the collate function makes of it; None where none is to be read."""
    if example is not None or size_is_private:
        return example
    if isinstance(data, TensorDataset | IterableDataset) or not hasattr(data, "__len__"):
        return None
    rows, collate = (_choose_rows(data), data.collate_fn) if isinstance(data, DataLoader) else (data, None)
    if isinstance(rows, TensorDataset | IterableDataset) or isinstance(data, tuple):
        return None
    try:
        first = rows[0]
        if collate is None or collate is default_collate:
            return first
        made = collate([first])
        return {name: part[0] for name, part in made.items()} if isinstance(made, Mapping) else None
    except Exception:  # whatever a record raises is said by Records, in its own words
        return None


def _choose(row: Mapping[str, Any], example: Any, model: nn.Module, loss: Loss) -> RecordColumns:
    """The columns that hold numbers, and for a model of transformers those that its forward takes."""
    refuse_packed(row)
    spelt = {_SPELT.get(name, name): value for name, value in row.items()}
    numbers = [name for name, value in spelt.items() if _is_number(value)]
    if loss is cross_entropy:
        base: Any = base_of(model)
        taken = inspect.signature(base.forward).parameters
        if not hasattr(base, "config") or "labels" not in taken:
            problem = "comes with records that are dicts, and it is no model of transformers with a loss of its own"
            remedy = "pass loss=, a function of (model, batch) with one value per record; batch is a dict of tensors"
            raise InvalidParameter("model", type(base).__name__, problem, remedy)
        names = tuple(name for name in numbers if name in taken)
    else:
        names = tuple(numbers)
    left = sorted(set(map(str, spelt)) - set(names))
    if not names:
        problem = f"have no column that the model takes ({', '.join(map(str, spelt))})"
        raise InvalidParameter("data", "rows that are dicts", problem, "tokenise them first: input_ids, attention_mask")
    if left:
        log.warning("left out of the records: the columns %s", ", ".join(left))
    length = len(spelt["input_ids"]) if example is not None and "input_ids" in names else None
    padding = getattr(getattr(base_of(model), "config", None), "pad_token_id", None)
    return RecordColumns(names, length, padding if isinstance(padding, int) else 0)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Tensor) or np.asarray(value).dtype.kind in "biuf"
    except (TypeError, ValueError):
        return False


def _make_up(parts: Batch) -> Batch:
    """Four made-up rows in the shapes of ``parts``: of what they hold nothing is used."""
    made = []
    for part in parts:
        pattern = torch.arange(4).remainder(2).to(part.dtype).view(4, *([1] * part.dim()))
        made.append(pattern.expand(4, *part.shape).clone())
    return tuple(made)


def _by_columns(data: Any, columns: RecordColumns) -> Any:
    if not isinstance(data, DataLoader):
        return ByColumns(data, columns)
    own = None if data.collate_fn is default_collate else data.collate_fn
    other = copy.copy(data)
    other.collate_fn = _Collated(columns, own)
    return other


def _read_scored(validation: Any, columns: RecordColumns) -> Any:
    """Validation data by columns: a data set of dicts in batches of 64, or what gives batches of dicts."""
    if isinstance(validation, DataLoader):
        return _by_columns(validation, columns)
    if isinstance(validation, Mapping):
        return columns.of_batch(validation)
    if not hasattr(validation, "__getitem__"):
        return _Batches(validation, columns) if isinstance(validation, Iterable) else validation
    first = validation[0] if len(validation) else None
    if isinstance(first, Mapping) and all(isinstance(part, Tensor) and part.dim() > 1 for part in first.values()):
        return _Batches(validation, columns)
    if isinstance(first, Mapping):
        return DataLoader(ByColumns(validation, columns), batch_size=64)
    return validation
