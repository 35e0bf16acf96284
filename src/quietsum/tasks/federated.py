"""Any torch task as a federation: its records at parties, its weights as one vector, a party's round as one call.

A :class:`~quietsum.tasks.protocol.TorchTask` knows one pile of records. :class:`FederatedTorch` deals it out
(:mod:`quietsum.tasks.splits`), trains one party at a time with :class:`~quietsum.learning.clients.local.LocalSteps`,
many small ones side by side with :class:`~quietsum.learning.clients.side_by_side.SideBySide`, and scores the server's
weights. One model serves all parties of a process.

Sizes are public in one of two ways. Where the task's ``public`` says that no record needs protection they are counted.
For protected records they are declared: by the task's ``size`` when clients are made, by its ``site_sizes`` when its
own sites take part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from quietsum.errors import InvalidParameter, QuietsumError, printable
from quietsum.learning import (
    Batch,
    Footprint,
    LocalSteps,
    Records,
    SideBySide,
    bound_people,
    fresh_model,
    hash_frozen,
    keep_unchanged,
    limit_memory,
    losses_of,
    measure_footprint,
    rehearse_model,
    rows_of,
    scoring,
    training,
)
from quietsum.plan import PartyFacts
from quietsum.tasks import splits
from quietsum.tasks.adapters import optional_part
from quietsum.tasks.checks import one_site_each
from quietsum.tasks.exporting import write_model
from quietsum.tasks.models import input_gradient, outputs, predict_with
from quietsum.tasks.predictions import Predictions
from quietsum.tasks.protocol import ChangeRows, Fits, Floats, Metrics, Slope, Task, TorchTask
from quietsum.tasks.roots import bound_update, root_orders
from quietsum.validate import whole_number

if TYPE_CHECKING:
    from quietsum.aggregation import Trial
    from quietsum.learning import CanaryRound
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import LocalOrders

__all__ = ["FederatedTorch"]

HOLDER = "here"
"""Who keeps the books of clients that are dealt out of one data set: its holder, as in ``quietsum train``."""
FIRST_WEIGHTS = 0
"""Decides the first weights, which are public: every process starts from the same ones."""


@final
class FederatedTorch(Task):
    """A torch task whose records lie at several parties.

    Guarantees: every record lies at one party, where it stays in every process and every run; where the task names
    people, each has records at one party only. The parties, their sizes and the first weights depend on no protected
    value. :meth:`train` costs what ``orders`` say (:class:`~quietsum.learning.clients.local.LocalSteps`).
    """

    name: str = ""
    title: str = ""
    follows_orders = True  # its steps are those of LocalOrders, so a plan bounds how long an update can be
    sums_gradients = True
    carries_canaries = True
    trains_many = True
    leaves_out = True

    def __init__(
        self,
        task: TorchTask,
        *,
        split: str = "natural",
        parties: int | Sequence[str] = (),
        engine: str = "auto",
        device: str = "cpu",
    ) -> None:
        self.task, self.split = task, splits.parse(split)
        self.name, self.title = str(task.name), str(task.title)
        self._count = parties if isinstance(parties, int) else None
        self._check(split, parties)
        if engine == "numpy":
            raise InvalidParameter("engine", engine, f"cannot train {self.name}, a torch model", 'choose "auto"')
        fresh = fresh_model(task, FIRST_WEIGHTS)
        self._model = fresh.to(_device(device))
        self._shown = self._model if self._model is fresh and device == "cpu" else copy.deepcopy(fresh).to("cpu")
        self._steps = LocalSteps(self._model, task.loss, engine=engine)
        self._initial = self._steps.layout.read(self._model)
        self._many = SideBySide(self._model, task.loss)
        self._fits: Fits | None = None
        self._fitting: dict[str, NDArray[np.int64]] = {}

    def _check(self, split: str, parties: int | Sequence[str]) -> None:
        made = self.split.kind != "natural"
        if made and self._count is None:
            problem = "makes clients, and it is not said how many" if not parties else "makes clients without names"
            raise InvalidParameter("split", split, problem, "state their number, federation.parties = 10 for instance")
        if made and self._sites is not None and not str(self.task.public).strip():
            problem = f"deals out protected records of {self.name} anew, and their sites keep books of them already"
            raise InvalidParameter("split", split, problem, "choose 'natural': one book for each record")
        if self.split.kind == "dirichlet" and not str(self.task.public).strip():
            problem = "looks at the labels of protected records to deal them out"
            raise InvalidParameter("split", split, problem, "choose 'iid', or 'natural' where the task knows its sites")
        if not made and self._sites is None:
            why = str(getattr(self.task, "without_sites", "")) or "it does not say where its records come from"
            problem = f"needs sites, and {self.name} has none: {why}"
            remedy = "choose split = 'iid' or 'dirichlet(0.5)' with parties = 10"
            raise InvalidParameter("split", split, problem, remedy)

    # ------------------------------------------------------------------------------------------- who holds what

    @property
    def _sites(self) -> Callable[[], Sequence[str]] | None:
        return optional_part(self.task, "sites")

    @property
    def person(self) -> str | None:
        """The task's ``person`` if it has ``people``; None otherwise."""
        return None if optional_part(self.task, "people") is None else str(getattr(self.task, "person", "") or "")

    @property
    def dimension(self) -> int:
        """How many weights are trained."""
        return self._steps.layout.dimension

    @cached_property
    def base(self) -> str:
        """SHA-256 of the weights that are not trained, which no update holds; empty if all are."""
        return hash_frozen(self._shown)

    @cached_property
    def footprint(self) -> Footprint | None:
        """Measured on the task's made-up records; None without ``example()``."""
        example = optional_part(self.task, "example")
        return None if example is None else measure_footprint(self._shown, self.task.loss, tuple(example()))

    @cached_property
    def partition(self) -> splits.Partition:
        """Which record lies at which party."""
        task, count, people, declared = self.task, self._count, self._people, self._declared
        if self.split.kind == "natural":
            assert self._sites is not None  # checked when the task was made
            sites = self._sites()
            if count is None:
                found = splits.natural(sites, None if declared is None else declared)
            else:
                found = splits.gather(sites, count, salt=self.name)
        elif people is not None and self.split.kind == "dirichlet":
            problem = f"deals out records one by one, and a {_person(task)}'s records must stay together"
            raise InvalidParameter("split", self.split.kind, problem, "choose 'natural' or 'iid'")
        elif people is not None:
            found = splits.gather(people, count or 0, what="people", salt=self.name)
        elif self.split.kind == "iid":
            found = splits.iid(task.size, count or 0, salt=self.name)
        else:
            found = splits.by_dirichlet(self._labels(), count or 0, self.split.alpha or 1.0, salt=self.name)
        if people is not None:
            one_site_each(people, found.party, person=_person(task))
        over = (
            []
            if declared is None
            else [name for name, size in zip(found.names, found.sizes.tolist(), strict=True) if size > declared[name]]
        )
        if declared is not None and over:  # which site, and not by how much: how many records it holds is its own
            names = ", ".join(map(printable, over[:4])) + (f" and {len(over) - 4} more" if len(over) > 4 else "")
            problem = f"is less than what {names} holds, so batches would be larger than is accounted for"
            remedy = "declare a round number above it"
            raise InvalidParameter(f"site_sizes[{over[0]!r}]", declared[over[0]], problem, remedy)
        return found

    @cached_property
    def _people(self) -> NDArray[Any] | None:
        own = optional_part(self.task, "people")
        return None if own is None else np.asarray(own())

    @cached_property
    def _records(self) -> Batch:
        """All records. Protected ones may be fewer than declared, when places were dealt out and not records."""
        records = tuple(self.task.records())
        dealt, here = len(self.partition.party), rows_of(records)
        places = self.split.kind == "iid" and self._people is None and not str(self.task.public).strip()
        if here > dealt or (here < dealt and not places):  # for the holder; a party's own failure stays with it
            problem = f"deals out {dealt} records, and there are {'more' if here > dealt else 'fewer'}"
            raise InvalidParameter("size", dealt, problem, "declare at least as many as there are")
        return records

    def _own(self, party: str) -> NDArray[np.int64]:
        """The numbers of the party's records."""
        own = self.partition.records(party)
        return own[own < rows_of(self._records)]

    def leave_out(self, fits: Fits) -> None:
        """From now on every party trains on those of its records alone for which ``fits`` holds.

        Guarantees: as private as before where ``fits`` looks at one record at a time: people are bounded first, so that
        no other record comes in for one that is left out. Sizes stay as they were declared.
        """
        self._fits, self._fitting = fits, {}

    def _select(self, party: str, orders: LocalOrders | None) -> NDArray[np.int64]:
        """The numbers of the records that ``party`` trains on: at most so many of each person, and those that fit."""
        own = self._own(party)
        if orders is not None and orders.max_records is not None:
            self._refuse_strangers(orders)
            assert self._people is not None
            own = own[bound_people(self._people[own], most=orders.max_records)]
        if self._fits is None:
            return own
        if party not in self._fitting:
            self._fitting[party] = self._own(party)[self._fits(self.records_of(party))]
        return own[np.isin(own, self._fitting[party])]

    def _labels(self) -> NDArray[np.int64]:
        last = tuple(self.task.records())[-1]
        if last.dim() != 1 or last.is_floating_point():
            problem = f"needs one label per record, and {self.name} has none"
            raise InvalidParameter("split", "dirichlet", problem, "choose 'iid', or 'natural' where there are sites")
        return np.asarray(last.cpu().numpy(), dtype=np.int64)

    def parties(self) -> tuple[PartyFacts, ...]:
        """Who takes part, with public sizes."""
        return self._facts

    @cached_property
    def _facts(self) -> tuple[PartyFacts, ...]:
        public, sizes = str(self.task.public), self._declared  # declared sizes are known where no record is
        if sizes is None:
            sizes = dict(zip(self.partition.names, self.partition.sizes.tolist(), strict=True))
        own = self.split.kind == "natural" and self._count is None
        together = not own or bool(getattr(self.task, "one_holder", False))
        return tuple(
            PartyFacts(
                name=name, size=sizes[name], public=public, dataset=self.name if together else f"{self.name}-{name}",
                holder=HOLDER if together else "",
            )
            for name in sizes
        )  # fmt: skip

    @cached_property
    def _declared(self) -> dict[str, int] | None:
        """The sizes that the task declares for its protected sites; None where clients are made or all is public."""
        if str(self.task.public).strip() or (self.split.kind == "iid" and self._people is None):
            return None
        sizes = getattr(self.task, "site_sizes", None)
        if self.split.kind != "natural" or self._count is not None or sizes is None:
            problem = "has protected records, whose number at a party is private unless it is declared"
            remedy = "give the task site_sizes, declared sizes by site, and let its sites take part as they are"
            raise InvalidParameter("task", self.name, problem, remedy)
        return {str(name): whole_number("site_sizes", size) for name, size in sorted(sizes.items())}

    # -------------------------------------------------------------------------------------------------- training

    def initial(self) -> Floats:
        """The first weights, the same in every process. No data is touched."""
        return self._initial.copy()

    def class_rows(self) -> dict[str, NDArray[np.int64]]:
        """By output of the last linear layer, the places of its weights and bias; none where that is the model."""
        layout = self._steps.layout
        linear = [name for name, layer in self._model.named_modules() if isinstance(layer, torch.nn.Linear)]
        weight, bias = (f"{linear[-1]}.{end}".lstrip(".") if linear else "" for end in ("weight", "bias"))
        places = dict(
            zip(layout.names, np.split(np.arange(layout.dimension), np.cumsum(layout.sizes)[:-1]), strict=True)
        )
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        if weight not in places:
            return {}
        rows = places[weight].reshape(shapes[weight])
        if bias in places:
            rows = np.column_stack([rows, places[bias]])
        if rows.size == layout.dimension:
            return {}
        return {f"class {place if len(rows) > 1 else 1}": row for place, row in enumerate(rows)}

    def records_of(self, party: str) -> Batch:
        """The records of ``party``. Private."""
        chosen = torch.from_numpy(self._own(party))
        return tuple(part[chosen] for part in self._records)

    def _select_records(self, party: str, orders: LocalOrders) -> Batch:
        chosen = torch.from_numpy(self._select(party, orders))
        return tuple(part[chosen] for part in self._records)

    def people_of(self, party: str) -> NDArray[Any] | None:
        """Whose each of them is; None if that is not known."""
        return None if self._people is None else self._people[self._own(party)]

    def labels_of(self, party: str) -> NDArray[Any]:
        """One label for each of its records; :class:`~quietsum.errors.InvalidParameter` where records have none."""
        last = self.records_of(party)[-1]
        if last.dim() != 1 or len(self._records) < 2:
            problem = "has no single label for each record"
            raise InvalidParameter("task", self.name, problem, "choose an attack on updates, sign-flip for instance")
        return last.cpu().numpy()

    def with_rows(self, parties: Sequence[str], change: ChangeRows) -> FederatedTorch:
        """The same task where the records of ``parties`` have other first parts and labels: for drills.

        ``change`` gets a party, the first part of its records and their labels. The records of other parties
        stay as they are, and so does who holds them.
        """
        records = [part.clone() for part in self._records]
        for party in parties:
            own = torch.from_numpy(self._own(party))
            features, labels = change(party, records[0][own].cpu().numpy(), self.labels_of(party))
            for part, new in ((records[0], features), (records[-1], labels)):
                part[own] = torch.from_numpy(np.asarray(new)).to(part)
        made = copy.copy(self)
        made.__dict__["_records"] = tuple(records)  # where the cached property keeps it
        return made

    def classes_of(self, params: Floats, features: NDArray[Any]) -> NDArray[np.int64]:
        """The class that these weights answer for each example; of two where the model has one output."""
        self._steps.layout.write(self._shown, params)
        with keep_unchanged(self._shown, weights=False), scoring(self._shown), torch.no_grad():
            answers = outputs(self._shown, torch.from_numpy(np.asarray(features)))
        several = answers.dim() > 1 and answers.shape[-1] > 1
        chosen = answers.argmax(-1) if several else answers.reshape(len(answers)) > 0
        return chosen.numpy().astype(np.int64)

    def module(self, params: Floats) -> torch.nn.Module:
        """A model of its own with these weights, on the CPU and ready to answer."""
        made = copy.deepcopy(self._shown)
        self._steps.layout.write(made, params)
        return made.eval()

    def named_weights(self, params: Floats) -> Mapping[str, NDArray[Any]]:
        """The state dict of :meth:`module`, as arrays."""
        return {name: value.numpy() for name, value in self.module(params).state_dict().items()}

    def predict(self, params: Floats, rows: NDArray[Any]) -> Predictions:
        """What these weights answer for rows in the form of the first part of the task's records."""
        return predict_with(self.module(params), self.task, rows)

    def write_onnx(self, params: Floats, path: Path, about: Mapping[str, str]) -> bool:
        """The torch model with these weights."""
        write_model(path, self.module(params), self.task, about)
        return True

    def encode_file(self, path: Path) -> NDArray[Any] | None:
        """The task's own, or None."""
        own = optional_part(self.task, "encode_file")
        return None if own is None else np.asarray(own(path))

    def train(self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """One round of ``party``: new − old weights."""
        return self._train(party, params, orders, rng, None)

    def train_with_canaries(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, carried: CanaryRound
    ) -> Floats:
        """The same with canaries behind the party's records."""
        return self._train(party, params, orders, rng, carried)

    def _train(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, carried: CanaryRound | None
    ) -> Floats:
        if self._fits is not None:
            records, orders = self._select_records(party, orders), replace(orders, max_records=None)
            return self._steps.run(records, params, orders, rng, carried=carried)
        records, people = self.records_of(party), self.people_of(party)
        return self._steps.run(records, params, orders, rng, people=people, carried=carried)

    def clipped_sum(
        self, party: str, params: Floats, orders: LocalOrders, rng: RandomSource, *, max_norm: float
    ) -> Floats:
        """Σ clip(∇ℓ_i) over one batch of ``party``, without noise: for a sum whose noise is distributed."""
        if self._fits is not None:
            records, orders = self._select_records(party, orders), replace(orders, max_records=None)
            return self._steps.clipped_sum(records, params, orders, rng, max_norm=max_norm)
        records, people = self.records_of(party), self.people_of(party)
        return self._steps.clipped_sum(records, params, orders, rng, max_norm=max_norm, people=people)

    def train_on_nothing(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        """One round of a party without a record: the noise of its steps, in the precision of the model."""
        nothing = (torch.zeros(0, 1, device=self._many.device),)
        return self._steps.run(nothing, params, replace(orders, max_records=None), rng)

    def look_for_data(self, party: str) -> None:
        """:class:`~quietsum.errors.DataMissing` where the task says that its files are not there; nothing is read."""
        if (own := optional_part(self.task, "look_for_data")) is not None:
            own(party)

    def train_many(
        self, parties: Sequence[str], params: Floats, orders: Sequence[LocalOrders], rng: RandomSource
    ) -> Iterator[tuple[tuple[str, ...], Floats]]:
        """The same for many parties without record-level noise, side by side: names, and one row of new − old each.

        A row that holds a record which cannot be differentiated is trained again by itself, where that record counts as
        zero; a row that is not finite even then is returned as it is, for the server to leave out.
        """
        if any(each.mechanism is not None for each in orders):
            problem = "clips every example, which cannot be done for many parties at once"
            raise InvalidParameter("orders", "mechanism", problem, "call train() for each party")
        shards = [self._select(party, each) for party, each in zip(parties, orders, strict=True)]
        for places, deltas in self._many.train(params, self._records, shards, orders, rng):
            for row in np.flatnonzero(~np.isfinite(deltas).all(axis=1)):
                place = int(places[row])
                try:
                    deltas[row] = self.train(parties[place], params, orders[place], rng)
                except (QuietsumError, ArithmeticError, ValueError, RuntimeError):
                    deltas[row] = np.nan
            yield tuple(parties[int(place)] for place in places), deltas

    def _refuse_strangers(self, orders: LocalOrders) -> None:
        """Raise if people are to be bounded and the task does not know them."""
        if orders.max_records is not None and self.person is None:
            problem = f"cannot be kept: {self.name} does not say whose each record is"
            remedy = "give the task people(), one person per record, or leave person = {…} out of the plan"
            raise InvalidParameter("max_records", orders.max_records, problem, remedy)

    def rehearse(self, orders: LocalOrders | None = None) -> None:
        """Try model and loss on made-up records of the right shape, before anything is charged.

        With ``orders`` that protect records, the step is also held to what it claims; with orders that bound people,
        they must be known. Guarantees: what is raised depends on no value of a protected record; but where one bad
        label would end the work for all, on a graphics card, it tells that there is one among the records that some
        party trains on. Records that are left out are not looked at.
        """
        if orders is not None:
            self._refuse_strangers(orders)
        records, check = Records.of(self._records), self._checks_labels
        if check and (self._fits is not None or (orders is not None and orders.max_records is not None)):
            used = [self._select(party, orders) for party in self.partition.names]
            records = records.only(np.concatenate(used) if used else np.zeros(0, dtype=np.int64))
        self._try(records, orders, check_labels=check)

    @property
    def _checks_labels(self) -> bool:
        """Whether labels are looked at before the first step: public ones, and those that go to a graphics card."""
        return bool(str(self.task.public).strip()) or self._many.device.type == "cuda"

    def rehearse_unseen(self, orders: LocalOrders | None = None) -> None:
        """The same with the task's own ``example()``, where it has one. Guarantees: no record is read or counted."""
        if orders is not None:
            self._refuse_strangers(orders)
        if (example := optional_part(self.task, "example")) is not None:
            self._try(Records.of(tuple(example())), orders, check_labels=False)

    def _try(self, records: Records, orders: LocalOrders | None, *, check_labels: bool) -> None:
        with training(self._model):
            rehearse_model(self._model, self.task.loss, records, self._many.device, check_labels=check_labels)
        if orders is not None:
            self._steps.check(records, orders)

    @property
    def root_size(self) -> int:
        """How many public records the task keeps for trials at the server."""
        return int(getattr(self.task, "root_size", 0))

    def trial(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Trial:
        """The task's root set tried on these weights. Guarantees: no party's record is looked at."""
        return _RootTrial(self, params, orders, rng)

    @cached_property
    def _root(self) -> Batch:
        if (own := optional_part(self.task, "root")) is None:
            problem = "holds no root set on which updates could be tried"
            raise InvalidParameter("task", self.name, problem, "give it root_size and root(), or choose another rule")
        return tuple(own())

    def _root_update(self, params: Floats, orders: LocalOrders, rng: RandomSource) -> Floats:
        own = replace(root_orders(orders, rows_of(self._root)), mechanism=orders.mechanism)
        try:
            return bound_update(orders, self._steps.run_on_public(self._root, params, own, rng))
        except InvalidParameter:  # its numbers overflow
            return np.zeros_like(params)

    def _root_losses(self, params: Floats, steps: NDArray[Any]) -> Floats:
        found, shown = [], self._shown
        with keep_unchanged(shown, weights=False), scoring(shown), torch.no_grad():
            for step in steps:
                self._steps.layout.write(shown, params + step)
                found.append(float(losses_of(self.task.loss, shown, self._root, rows_of(self._root)).double().mean()))
        return np.array(found)

    def evaluate(self, params: Floats) -> Metrics:
        """The task's scores of these weights, on data declared unprotected."""
        self._steps.layout.write(self._shown, params)
        with keep_unchanged(self._shown, weights=False), scoring(self._shown), torch.no_grad():
            return self.task.evaluate(self._shown)

    def confusion(self, params: Floats) -> NDArray[np.int64] | None:
        """Which class these weights take for which, on the rows that the task shows; None where it shows none."""
        if (hold_out := optional_part(self.task, "hold_out")) is None:
            return None
        self._steps.layout.write(self._shown, params)
        with keep_unchanged(self._shown, weights=False), scoring(self._shown), torch.no_grad():
            rows, labels = hold_out()
            scores = outputs(self._shown, rows)
        found = np.zeros((scores.shape[1],) * 2, dtype=np.int64)
        np.add.at(found, (labels.numpy(), scores.argmax(dim=1).numpy()), 1)
        return found

    def slopes(self, params: Floats, *, most: int) -> tuple[Slope, Floats, NDArray[np.int64]] | None:
        """How the answers of these weights change with the input, on rows that the task shows; None without any."""
        if (hold_out := optional_part(self.task, "hold_out")) is None:
            return None
        rows, labels = hold_out()
        if not rows.is_floating_point():
            return None
        some = slice(None, None, -(-len(rows) // most))
        rows, labels = rows[some], labels[some]
        model = copy.deepcopy(self._shown)
        self._steps.layout.write(model, params)
        asked, shape = input_gradient(model), rows.shape[1:]

        def slope(flat: Floats, target: int) -> tuple[Floats, Floats]:
            scores, found = asked(flat.reshape(len(flat), *shape), target)
            return scores, found.reshape(flat.shape)

        return slope, rows.double().flatten(1).numpy(), labels.numpy()


@final
class _RootTrial:
    """The root set of a federated torch task, at one model."""

    def __init__(self, task: FederatedTorch, params: Floats, orders: LocalOrders, rng: RandomSource) -> None:
        self._task, self._params, self._orders, self._rng = task, params, orders, rng

    def update(self) -> Floats:
        """What an honest party with these records would send, without noise."""
        return self._task._root_update(self._params, self._orders, self._rng)

    def losses(self, steps: NDArray[Any]) -> Floats:
        """The mean loss of weights + step for each row of ``steps``."""
        return self._task._root_losses(self._params, steps)


def limit_card(name: str, share: float) -> None:
    """Let this process take no more than ``share`` of a card's memory; where ``name`` is no card there is no limit."""
    if share != 1:
        limit_memory(_device(name), share)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InvalidParameter("device", name, "is not known to torch", "choose 'cpu' or 'cuda'") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidParameter("device", name, "is not there: torch finds no graphics card", "choose 'cpu'")
    if device.type not in ("cpu", "cuda"):
        raise InvalidParameter("device", name, "is none that we train on", "choose 'cpu' or 'cuda'")
    return device


def _person(task: TorchTask) -> str:
    return str(getattr(task, "person", "person"))
