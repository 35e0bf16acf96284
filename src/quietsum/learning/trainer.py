"""Train one's own torch model on one's own records, privately.

    trainer = PrivateTrainer(model, PrivacyConfig(epsilon=3.0, epochs=20, batch_size=256))
    history = trainer.train(train_loader, val_loader, learning_rate=0.5)
    print(trainer.guarantee())

The whole run is planned before it starts (:mod:`quietsum.learning.config`), charged epoch by epoch before it is made,
and made of :class:`~quietsum.learning.step.PrivateStep` alone. No loss, metric or count of protected records is
computed, printed or returned: scores come from ``val_loader``, which you thereby declare unprotected, and say so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietsum.alerts import Alerts, BudgetFact, Subject
from quietsum.errors import BudgetExhausted, CorruptState, InvalidParameter, QuietsumError
from quietsum.failpoints import reach
from quietsum.learning.callbacks import EarlyStopping, Screen, StopTraining, as_callbacks
from quietsum.learning.canaries.carrying import Carrier, refuse_canaries
from quietsum.learning.canaries.record import Canaries, CanaryRecord
from quietsum.learning.checks.before_training import check_step
from quietsum.learning.checks.moved import FirstStep, refuse_dropped, refuse_others
from quietsum.learning.config import PrivacyConfig, TrainingSchedule, plan_training
from quietsum.learning.defaults import (
    Balance,
    Descending,
    choose_rate,
    count_classes,
    count_survey_steps,
    find_score_bias,
    fit_shift,
    has_classes,
    make_balance,
    settle_config,
)
from quietsum.learning.distributed.agreement import describe_training, match_processes, share_checkpoint
from quietsum.learning.distributed.processes import OneProcess, Processes, find_processes
from quietsum.learning.distributed.wrapped import refuse_several, refuse_wrapped
from quietsum.learning.engines.batch_mixing import refuse_mixing
from quietsum.learning.engines.hooks import refuse_hooks
from quietsum.learning.engines.protocol import Loss, trainable
from quietsum.learning.libraries.adapters import fill_trained, is_trained_alone, save_trained
from quietsum.learning.noise.gradient_noise import more_noise, refuse_coarse
from quietsum.learning.optimizers import SGD, Adam, AveragedWeights, BoundOptimizer, OptimizerKind
from quietsum.learning.rehearsal import rehearse_model, rehearse_step, scoring, training
from quietsum.learning.rows.inputs import as_loss, as_records, as_rule, join_labels, rate_of, refuse_shared
from quietsum.learning.rows.named import read_named
from quietsum.learning.rows.records import Records, bound_records
from quietsum.learning.saving import check_checkpoint_fits, fill_model, read_checkpoint, save_module, write_checkpoint
from quietsum.learning.spending import (
    OpenedTraining,
    Spending,
    TrainingBooks,
    as_priced_today,
    check_person,
    find_opened,
    person_guarantee,
)
from quietsum.learning.step import PrivateStep, build_step, cross_entropy
from quietsum.learning.validation import UNPROTECTED, chance, check_validation, score_model
from quietsum.ledger import PRICING, Receipt, check_rows
from quietsum.mechanisms import RandomSource
from quietsum.privacy import Guarantee
from quietsum.validate import positive, whole_number

__all__ = ["Epoch", "PrivateTrainer", "TrainingHistory", "progress_line"]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Epoch:
    """What may be known after an epoch. ``metrics`` stand on ``metrics_on``, never on training records."""

    epoch: int
    epochs: int
    steps: int
    spent: Guarantee
    budget: float | None
    metrics: Mapping[str, float]
    metrics_on: str
    max_grad_norm: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingHistory:
    """All epochs of a run. ``stopped`` is "finished", "early" where a callback has ended it, or "budget" where another
    step would have overspent.

    ``lost_steps`` were charged and then lost in a kill: the weights know nothing of them, and the guarantee holds them.
    """

    epochs: tuple[Epoch, ...]
    stopped: str
    guarantee: Guarantee
    lost_steps: int = 0

    @property
    def metrics(self) -> Mapping[str, float]:
        """Those of the last epoch."""
        return self.epochs[-1].metrics if self.epochs else {}

    def _repr_html_(self) -> str:
        from quietsum.charts import Chart, Series, svg
        from quietsum.notebook import show_table
        from quietsum.privacy import bounds_of, figure_of

        names = list(self.metrics)
        rows = [
            (str(one.epoch), figure_of(one.spent.epsilon), *(f"{one.metrics[name]:.3f}" for name in names))
            for one in self.epochs if set(names) <= set(one.metrics)
        ]  # fmt: skip
        points = tuple((float(one.epoch), one.spent.epsilon) for one in self.epochs)
        whom, budget = self.guarantee.whom, self.epochs[-1].budget if self.epochs else None
        drawn = len(points) > 1 and all(math.isfinite(epsilon) for _, epsilon in points)
        picture = svg(Chart(
            title=f"ε per {whom} after each epoch", x_label="epoch", y_label=f"ε per {whom}",
            series=(Series(label="spent", points=points),), limit=None if budget is None else ("budget", budget),
        ), width=620, height=360) if drawn else ""  # fmt: skip
        lost = [f"{self.lost_steps:,} steps were charged and lost in a kill"] if self.lost_steps else []
        on = [f"scores stand on {self.epochs[-1].metrics_on}"] if names else []
        return show_table(
            f"Training, {self.stopped} after {len(self.epochs)} epochs", rows, heads=("epoch", f"ε per {whom}", *names),
            notes=[f"{bounds_of(self.guarantee)} per {whom} at δ = {self.guarantee.delta:g}", *on, *lost],
            picture=picture,
        )  # fmt: skip


def progress_line(epoch: Epoch) -> str:
    """One line for people: ``epoch 3/20 · ε 1.21 of 3 per record · accuracy 0.913 on the hold-out``."""
    scale = 1e4 if epoch.budget is not None and epoch.budget < 0.1 else 1e2  # both are rounded up alike
    shown, most = (math.ceil((value or 0.0) * scale - 1e-7) / scale for value in (epoch.spent.epsilon, epoch.budget))
    limit = "" if epoch.budget is None else f" of {most:g}"
    digits = 4 if scale > 1e2 else 2
    parts = [f"epoch {epoch.epoch:>{len(str(epoch.epochs))}}/{epoch.epochs}", f"ε {shown:.{digits}f}{limit} per record"]
    if epoch.metrics:
        name, value = next(iter(epoch.metrics.items()))
        parts.append(f"{name} {value:.3f} on {epoch.metrics_on}")
    return " · ".join(parts)


logger = logging.getLogger(__name__)

_LOOKED_THROUGH = 50_000
"""So many records of a data set that is not in memory are read once more at the start, to know them again."""
_PLAIN_RATE = 0.1  # of plain descent, where nothing is stated beside it
_LARGEST_RATE = 1e6  # times a clipped gradient: more is a slip of the pen, and is heard of before it is paid for


@final
class PrivateTrainer:
    """Private training of one model.

    Guarantees: the weights are a function of Poisson-sampled noisy sums whose number and noise were fixed before the
    first of them; :meth:`guarantee` states their cost. With a ``workspace`` each epoch is charged to its ledger before
    it begins, a killed epoch stays charged, and a resumed run never costs more than its plan.

    ``loss(model, batch)`` returns one value per example; cross entropy unless stated. ``dataset`` and ``party`` name
    the data in the ledger; ``public`` says why its records need no protection, if so. With a workspace, so many epochs
    are charged and checkpointed together as ``checkpoint_every`` says, a twentieth of all unless stated: a kill loses
    them. Before the first charge the step passes a self-check on made-up rows, unless ``selfcheck`` is False, which is
    for models that passed the long one. ``same_rows`` says why records that are known in this workspace under another
    name have a budget of their own; without it they are refused (:mod:`quietsum.ledger.fingerprints`). ``alerts`` hears
    of budgets, and of scores that get worse or are no better than chance (:class:`quietsum.alerts.Alerts`); it is its
    owner's to close. With ``audit`` the training carries canaries, made-up records that change neither the model's law
    nor what it costs, and :attr:`canaries` is what :func:`quietsum.audit.judge_canaries` goes by. ``rng`` is for tests.

    Several processes of ``torch.distributed``, as ``torchrun`` starts them, make one training together, with one draw,
    one noise and one charge (:mod:`quietsum.learning.distributed.processes`). Each must be given the same model,
    settings and whole data set; the first one alone has the workspace, the scores, the callbacks and the alerts.

    What is raised before the first charge speaks to the holder of the data. One such error knows a record: labels that
    are no classes of the model (:class:`~quietsum.learning.rows.records.LabelsOutOfRange`). It says neither which nor
    how many, it is written nowhere, and it must not be passed on. Where others would see that a run was refused, say
    ``check_labels=False``: such records then count as zero, in silence, and nothing raised depends on what a record
    holds.
    """

    def __init__(
        self,
        model: nn.Module,
        config: PrivacyConfig,
        *data: Any,
        loss: Loss | nn.Module = cross_entropy,
        workspace: str | os.PathLike[str] | None = None,
        run: str = "training",
        dataset: str = "training-records",
        party: str = "here",
        public: str = "",
        metrics: Callable[[nn.Module], Mapping[str, float]] | None = None,
        watch: Callable[[Epoch], None] | None = None,
        checkpoint_every: int | None = None,
        selfcheck: bool = True,
        check_labels: bool = True,
        same_rows: str = "",
        alerts: Alerts | None = None,
        audit: Canaries | None = None,
        rng: RandomSource | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidParameter("model", type(model).__name__, "is no torch.nn.Module", "pass the model itself")
        if not isinstance(config, PrivacyConfig):
            remedy = "pass PrivacyConfig(epsilon=3.0), and the records to train()"
            raise InvalidParameter("config", type(config).__name__, "is no PrivacyConfig", remedy)
        if data:
            remedy = "PrivateTrainer(model, config).train(data); options of a trainer have names, as in loss=…"
            raise InvalidParameter("data", type(data[0]).__name__, "is passed to the trainer, not to train()", remedy)
        refuse_wrapped(model)
        with training(model):
            refuse_mixing(model)
        self.model, self.config, self.loss = model, config, as_loss(loss)
        names, self._parameters = trainable(model)
        refuse_coarse(names, self._parameters)
        self._workspace, self._run = workspace, run
        self._names = {"dataset": dataset, "party": party, "public": public}
        self._metrics, self._watch, self._rng, self._alerts = metrics, watch, rng, alerts
        self._device = self._parameters[0].device
        self._spending: Spending | None = None
        self._step: PrivateStep | None = None
        self._averages: AveragedWeights | None = None
        self._optimizer: BoundOptimizer | None = None
        self._books: TrainingBooks | None = None
        self._balance: Balance | None = None
        self._bias: nn.Parameter | None = None
        self._unshifted: Tensor | None = None
        self._kind: OptimizerKind | None = None
        self._chosen = ""
        self._shows_average, self._lost, self._confirmed = False, 0, False
        self._callbacks: tuple[Callable[[Epoch], object], ...] = ()
        self._progress: bool | None = False
        self._screen = Screen(False, 0)
        self._selfcheck, self._check_labels, self._same_rows = selfcheck, check_labels, same_rows
        self._every = 1 if checkpoint_every is None else whole_number("checkpoint_every", checkpoint_every, 1)
        self._every_stated = checkpoint_every is not None
        if audit is not None and not isinstance(audit, Canaries):
            remedy = "pass audit=Canaries(), or Canaries(count=500)"
            raise InvalidParameter("audit", type(audit).__name__, "is no Canaries", remedy)
        self._audit = audit
        self._carrier: Carrier | None = None
        self._processes: Processes = OneProcess()

    # ------------------------------------------------------------------------------------------- training

    def train(
        self,
        train_loader: Any,
        *second: Any,
        val_loader: Iterable[Any] | None = None,
        num_epochs: int | None = None,
        learning_rate: float | None = None,
        optimizer: str | OptimizerKind | type[torch.optim.Optimizer] | torch.optim.Optimizer | None = None,
        resume: bool = False,
        val_name: str = UNPROTECTED,
        example: Any = None,
        people: Sequence[Any] | NDArray[Any] | None = None,
        callbacks: Callable[[Epoch], object] | Iterable[Callable[[Epoch], object]] = (),
        progress: bool | None = None,
    ) -> TrainingHistory:
        """Run the plan, or what is left of it, and return what may be known.

        ``train_loader`` is a DataLoader (its batching is replaced by Poisson sampling), a Dataset, or a tuple of
        tensors, numpy arrays or tables; ``train(X, y)`` is ``train((X, y))``. Records may be dicts, as those of a
        tokenised ``datasets.Dataset`` are (:mod:`quietsum.learning.rows.named`).
        ``val_loader``, by name or in the second place, holds records that need no protection: scores on them are free
        and are printed.
        The first call fixes the schedule; a later one goes on where it stopped, and has nothing to do when the plan is
        done. ``resume`` goes on with a run of the workspace whose process has ended, behind the steps that were charged
        then: those of a killed chunk are lost, and where no others are left the last checkpoint is the model.

        With a declared ``public_size`` the number of records is private and may be zero; steps are then noise alone.
        The shape of a record is that of the tensors, or of ``example``, one made-up record as the data set would return
        it; a data set that is no tensor is refused without one, however many records it holds.

        Without ``learning_rate`` and ``optimizer`` both follow from the plan, and classes are balanced
        (:mod:`quietsum.learning.defaults`); :attr:`chosen` says what was chosen. With one of them the other is 0.1 or
        plain descent; Adam's rate follows from the plan.

        ``people`` names the person of each record. With ``max_records`` in the config at most so many records of one
        person are used, the first ones, and :meth:`person_guarantee` states what a whole person pays.

        ``callbacks`` are called with each :class:`Epoch`, after it is charged and saved. One that raises
        :class:`~quietsum.learning.callbacks.StopTraining` ends the training; after any other error the model is saved,
        as far as there is a workspace, and the error goes on. ``progress`` shows a bar with ε and time left on a
        terminal; True prints a line an epoch elsewhere, and False shows nothing. Both go to stderr, and the logger
        ``quietsum.learning.trainer`` has every epoch with its seconds at level INFO.
        """
        self._callbacks, self._progress = as_callbacks(callbacks), progress
        train_loader, val_loader = join_labels(train_loader, second, val_loader)
        refuse_shared(train_loader, val_loader)
        named = read_named(
            train_loader, val_loader, example, model=self.model, loss=self.loss,
            size_is_private=self.config.size_is_private,
        )  # fmt: skip
        train_loader, val_loader, example, self.loss = named.data, named.validation, named.example, named.loss
        dtype = self._parameters[0].dtype
        train_loader = as_records(train_loader, dtype=dtype)
        val_loader = as_records(val_loader, name="val_loader", dtype=dtype)
        rule = None if optimizer is None else as_rule(optimizer, self._parameters)
        rate = rate_of(optimizer) if learning_rate is None else learning_rate
        if self._audit is not None:
            refuse_several("a training with canaries")
        if self._spending is None:
            self._processes = find_processes()
        if not self._processes.first:
            self._alerts, self._progress = None, False
        try:
            with contextlib.nullcontext() if self._alerts is None else self._alerts.following(self._run):
                return self._train(train_loader, val_loader, num_epochs, rate, rule, resume, val_name, example, people)
        except BaseException:
            self._processes.leave()
            raise

    def _train(
        self,
        train_loader: Any,
        val_loader: Iterable[Any] | None,
        num_epochs: int | None,
        learning_rate: float | None,
        optimizer: OptimizerKind | None,
        resume: bool,
        val_name: str,
        example: Any,
        people: Sequence[Any] | NDArray[Any] | None,
    ) -> TrainingHistory:
        if learning_rate is not None and positive("learning_rate", learning_rate) > _LARGEST_RATE:
            problem = f"is more than {_LARGEST_RATE:,.0f}, and would throw the weights out of their range"
            raise InvalidParameter("learning_rate", learning_rate, problem, "0.1 to 10 is usual")
        records = Records.of(
            train_loader, example=example,
            quiet=self._spending is not None or not self._processes.first,  # replaced batches are said once
            size_is_private=self.config.size_is_private,
        )  # fmt: skip
        records = bound_records(records, people, self.config.max_records)
        rescued = False
        if self._spending is None:
            told = describe_training(self.model, self.loss, self.config, optimizer)
            match_processes(self._processes, records, {**told, "the learning rate": learning_rate, "resume": resume})
            self._processes.spread(list(self.model.state_dict().values()))
            self._rehearse(records)
            self._processes.do("the first scores", lambda: self._try_scores(val_loader, train_loader))
            self._begin(records, num_epochs, learning_rate, optimizer, resume)
            rescued = resume and self._processes.decide("the books", self._can_rescue)
        elif num_epochs is not None and num_epochs != self._spending.plan.epochs:
            problem = f"is not the {self._spending.plan.epochs} that the schedule was fixed with"
            raise InvalidParameter("num_epochs", num_epochs, problem, "make a new trainer, with a plan of its own")
        else:
            self._processes.do("the first scores", lambda: self._try_scores(val_loader, train_loader))
        assert self._spending is not None
        if self._spending.left <= 0 and not rescued:
            raise BudgetExhausted(
                f"the plan's {self._spending.plan.steps} steps are done: ε = {self._spending.claim().epsilon:.4g} per "
                "record is spent; keep the model, or make a new plan"
            )
        self._show_average(False)
        self._tell_beginning(val_loader)
        found: list[Epoch] = []
        planned, asked = self._spending.plan, ""
        self._screen = Screen(self._progress, planned.steps, self._spending.charged)
        noise, began = planned.stages[0].noise_multiplier, time.monotonic()
        self._log("%s: %d steps, noise multiplier %.4g; %s", self._run, planned.steps, noise, self.engine)
        try:
            with training(self.model):
                while self._spending.left > 0 or rescued:
                    if not rescued:
                        self._chunk(records, learning_rate)
                    rescued = False
                    found.append(self._report_epoch(val_loader, val_name))
                    self._tell(found[-1])
                    self._screen.epoch(progress_line(found[-1]))
                    self._log("%s (%.2f s)", progress_line(found[-1]), time.monotonic() - began)
                    began = time.monotonic()
                    self._processes.do("the callbacks", lambda: self._call_back(found[-1]))
        except StopTraining as request:
            asked = str(request) or "a callback has asked for it"
            self._log("%s was stopped early: %s", self._run, asked)
        except BudgetExhausted as error:  # by prices that were corrected since: the run's last weights are its model
            self._show_average(True)
            if self._books is None or not self._books.checkpoint.is_file():
                raise
            save_module(self._books.model, self.model, self._about())
            raise BudgetExhausted(
                f"{error}. The weights of its last checkpoint are kept: {self._books.model}"
            ) from None
        finally:
            records.close()
            self._screen.end()
            self._show_average(True)
        plan = self._spending.plan
        self._processes.do("the model's file", self._save_model)
        stopped = "early" if asked and self._spending.left else "budget" if plan.cut else "finished"
        if self._alerts is not None:
            whole = "another epoch would have cost more than the plan may" if stopped == "budget" else ""
            self._alerts.end(stopped, asked if stopped == "early" else whole)
        return TrainingHistory(epochs=tuple(found), stopped=stopped, guarantee=self.guarantee(), lost_steps=self._lost)

    def _save_model(self) -> None:
        if self._books is not None:
            save_module(self._books.model, self.model, self._about())
            reach("train:model")

    def _log(self, text: str, *about: object) -> None:
        if self._processes.first:
            logger.info(text, *about)

    def _call_back(self, epoch: Epoch) -> None:
        """Call what wants to hear of an epoch. Its steps are charged and saved; an error does not lose the model."""
        try:
            for callback in (*(() if self._watch is None else (self._watch,)), *self._callbacks):
                callback(epoch)
        except StopTraining:
            raise
        except BaseException:
            self._show_average(True)
            if self._books is not None:
                save_module(self._books.model, self.model, self._about())
            raise

    def _begin_callbacks(self, val_loader: Iterable[Any] | None) -> None:
        """Let early stopping begin anew; it is refused, before any charge, without the public score it goes by."""
        for callback in self._callbacks:
            if isinstance(callback, EarlyStopping):
                callback.begin()
                callback.check(self._scores(val_loader))

    def _rehearse(self, records: Records) -> None:
        """Try model and loss, before anything is planned, opened or charged. One process looks at the labels."""
        with training(self.model):
            checked = self._check_labels and self._processes.first
            rehearse_model(self.model, self.loss, records, self._device, check_labels=checked)
            refuse_dropped(self.model, self.loss, records.make_up(self._device), self._parameters)

    def _try_scores(self, val_loader: Any, train_loader: Any) -> None:
        """Try the scores, before anything is charged."""
        if val_loader is not None:
            check_validation(self.model, self.loss, val_loader, train_loader, self._device)
        if self._spending is None and self._metrics is not None:
            with torch.no_grad(), scoring(self.model):
                self._metrics(self.model)
        self._begin_callbacks(val_loader)

    def _begin(
        self, records: Records, epochs: int | None, learning_rate: float | None, optimizer: OptimizerKind | None,
        resume: bool,
    ) -> None:  # fmt: skip
        """Plan, rehearse and open the books: everything that can be refused is refused here, before any charge."""
        if resume and self._workspace is None:
            problem = "needs a workspace: only a ledger remembers what a killed run has cost"
            raise InvalidParameter("resume", True, problem, "pass workspace= when you make the trainer")
        opened = OpenedTraining(**self._processes.decide("the books", lambda: self._look_up(resume)))
        stated = dataclasses.replace(self.config, epochs=self.config.epochs if epochs is None else epochs)
        stated = opened.state(stated)
        self.config = settle_config(stated, len(records), labelled=self.loss is cross_entropy or has_classes(records))
        plan = plan_training(self.config, size=len(records), pricing=opened.pricing)
        open_choice = learning_rate is None and optimizer is None and not opened.descends
        if self.config.max_records is not None:
            check_person(plan, size=self.config.max_records, declared=self.config.public_size is not None)
        carrier = self._make_carrier(plan)
        with training(self.model):
            if carrier is None:
                step = build_step(self.model, self.loss, self.config, plan, self._rng)
                rehearse_step(step, records, self._device)
            else:
                step = build_step(carrier.model, carrier.loss, self.config, plan, self._rng)
                rehearse_step(step, carrier.rows(records), self._device)
            if open_choice and self.config.clipping != "adaptive" and count_survey_steps(plan.steps):
                self._balance = make_balance(self.model, records, self._device)
            self._find_bias(records)
        if self._selfcheck:
            with training(self.model):
                check_step(self.model, self.loss, self.config, plan, records, self._device)
        if optimizer is None:
            optimizer = Adam() if open_choice else SGD()
        self._kind = optimizer
        self._optimizer = optimizer.bind(self._parameters)
        if self.config.ema_decay is not None:
            self._averages = AveragedWeights(self._parameters, self.config.ema_decay)
        charged = 0
        if self._workspace is not None:
            if not self._every_stated:
                self._every = max(1, plan.epochs // 20)
            size = sum(parameter.numel() for parameter in self._parameters)
            drawn = size if self._balance is None else max(size, len(self._balance.counts))
            audit = {} if carrier is None else {
                "audit": {"canaries": carrier.count, "more": carrier.find_more(step, plan)}
            }  # fmt: skip
            books = TrainingBooks(
                self._workspace, self._run, plan, failure_per_step=step.mechanism.failure(drawn),
                details={**self.config.frozen(), "optimizer": _name_rule(optimizer), "parameters": size, **audit},
                **self._names,
            )  # fmt: skip
            self._books = books if self._processes.first else None
            try:
                charged = self._processes.decide(
                    "the books", lambda: books.open(resume=resume, allowed=lambda path: self._look_at(records, path))
                )
                if carrier is not None:
                    carrier.keep_in(books.canaries, self._run, resume=resume)
                if resume:
                    self._restore(step, charged)
                    self._find_bias(records)
            except BaseException:
                self.close()
                raise
        self._chosen = f"{_name_rule(optimizer)}; " + _describe(plan, self.config, balanced=self._balance is not None)
        if self._balance is not None and carrier is not None:
            self._balance.marks = 2  # behind inputs and class
        step.balance, step.processes, self._carrier = self._balance, self._processes, carrier
        self._step, self._spending = step, Spending(plan, charged, self._books, self._processes)

    def _look_up(self, resume: bool) -> dict[str, Any]:
        """How the run that is gone on with was opened."""
        known = resume and self._workspace is not None
        opened = find_opened(self._workspace or "", self._run) if known else OpenedTraining()
        return {"pricing": opened.pricing, "settings": dict(opened.settings)}

    def _make_carrier(self, plan: TrainingSchedule) -> Carrier | None:
        """The canaries of an audited training; None for any other."""
        if self._audit is None:
            return None
        refuse_canaries(self.config, plan)
        return Carrier(self._audit, self.model, self.loss, plan, rng=self._rng)

    def _find_bias(self, records: Records) -> None:
        """Find, from made-up rows, where the classes' own shares go back into the scores of a balanced model."""
        if self._balance is None:
            return
        if self._balance.classes != count_classes(self.model, records, self._device):
            raise CorruptState("the checkpoint counts other classes than the model has; restore it from a backup")
        with scoring(self.model):
            self._bias = find_score_bias(self.model, records.make_up(self._device), self._balance.classes)

    def _look_at(self, records: Records, ledger: Path) -> None:
        """Refuse, to the holder of the data, rows that have a budget under another name, unless a reason is given."""
        dataset, public = self._names["dataset"], self._names["public"]
        if public.strip() or (len(records) > _LOOKED_THROUGH and records.tensors is None):
            return

        def read() -> Any:
            return records.tensors if records.tensors is not None else records.batch(np.arange(len(records)))

        remedy = 'give a reason (PrivateTrainer(same_rows="…"), or --same-rows on the command line)'
        for line in check_rows(ledger, {dataset: read}, reason=self._same_rows, remedy=remedy):
            logger.warning("%s", line)

    def _rate(self, stated: float | None, records: Records) -> Callable[[int], float]:
        """The learning rate by step."""
        if stated is not None:
            return lambda step: stated
        assert self._spending is not None
        if not isinstance(self._kind, Adam):
            return lambda step: _PLAIN_RATE
        steps = self._spending.plan.steps
        pace = 1.0 if self._balance is None else self._balance.pace
        tokens = not records.schema[0][1].is_floating_point
        return Descending(peak=pace * choose_rate(steps, tokens=tokens), steps=steps)

    def _chunk(self, records: Records, learning_rate: float | None) -> None:
        """Some epochs: reserved, made, committed, checkpointed. In that order."""
        assert self._step is not None and self._spending is not None and self._optimizer is not None
        step, spending = self._step, self._spending
        refuse_hooks(self.model)  # one may have been hung up since the last chunk
        refuse_others(self.model, self._parameters)
        stage, count = spending.plan.alike(spending.charged, self._every)
        if self._books is not None:
            check_checkpoint_fits(self._books.checkpoint, self._parts())
        receipt = spending.charge(stage, count)
        reach("train:reserved")
        step.retune(
            noise_multiplier=stage.noise_multiplier,
            max_norm=stage.max_norm if step.scaled is not None and step.adaptive is None else None,
        )
        if step.event() != spending.plan.event_as_made(stage):
            raise QuietsumError("the step is not the one that was planned and charged; this is a fault of quietsum")
        rate, first = self._rate(learning_rate, records), spending.charged - count
        began = None if self._confirmed else FirstStep(self.model)
        asked = 0 if self._balance is None else count_survey_steps(spending.plan.steps)
        carrier = self._carrier
        rows = records if carrier is None or not carrier.rides_in(first, count) else carrier.rows(records)
        draws = step.sample_many(len(rows), count)  # as many as are reserved: a reader may be ahead
        if carrier is not None and rows is not records:
            read = carrier.read(records, draws, first, self._device)
        else:
            read = records.read(draws, self._device)
        with contextlib.closing(read) as batches:
            for number, (drawn, batch) in enumerate(batches, first):
                self._screen.step()
                if number < asked and self._balance is not None:
                    step.survey(batch)
                    if number == asked - 1:
                        self._balance.finish(steps=asked, noise=step.noise_multiplier)
                        rate = self._rate(learning_rate, records)
                    reach("train:step")
                    continue
                variance = step.mechanism.variance / step.expected_batch**2
                released: Sequence[Tensor]
                released = step.gradient(batch) if carrier is None else carrier.gradient(step, number, drawn, batch)
                self._optimizer.step(released, learning_rate=rate(number), noise_variance=variance)
                if began is not None and began.confirm(known_rule=isinstance(self._kind, SGD | Adam)):
                    began, self._confirmed = None, True
                if self._averages is not None:
                    self._averages.take()
                reach("train:step")
        if not all_finite(self._parameters):  # the one place where a card is waited for
            problem = "made the weights overflow"
            raise InvalidParameter("learning_rate", rate(first), problem, "take smaller steps; the charge stands")
        self._processes.compare(self._parameters, now=True)
        self._processes.do("the commit", lambda: self._keep(receipt, step.sensitivity))
        if self._carrier is not None:
            self._carrier.end_chunk(step)

    def _keep(self, receipt: Receipt | None, clip: float) -> None:
        """Commit what was reserved, then write the checkpoint."""
        if self._books is not None and receipt is not None:
            self._books.commit(receipt)
            reach("train:committed")
            write_checkpoint(self._books.checkpoint, self._parts(), {**self._about(), "clip": clip})
            reach("train:checkpointed")

    def _report_epoch(self, val_loader: Iterable[Any] | None, val_name: str) -> Epoch:
        assert self._spending is not None and self._step is not None
        plan = self._spending.plan
        metrics = self._processes.decide("the scores", lambda: dict(self._scores(val_loader)))
        return Epoch(
            epoch=-(-self._spending.charged // plan.steps_per_epoch), epochs=plan.epochs, steps=self._spending.charged,
            spent=self._spending.so_far(), budget=plan.epsilon, metrics=metrics, metrics_on=val_name if metrics else "",
            max_grad_norm=self._step.sensitivity,
        )  # fmt: skip

    def _scores(self, val_loader: Iterable[Any] | None) -> Mapping[str, float]:
        """On data that is not protected."""
        if val_loader is None and self._metrics is None:
            return {}
        self._show_average(True)
        try:
            with torch.no_grad(), scoring(self.model):
                if self._metrics is not None:
                    return dict(self._metrics(self.model))
                return score_model(self.model, self.loss, () if val_loader is None else val_loader, self._device)
        finally:
            self._show_average(False)

    def _tell_beginning(self, val_loader: Iterable[Any] | None) -> None:
        if self._alerts is not None and self._spending is not None:
            fresh = self._spending.charged == 0
            self._alerts.begin(
                (lambda: self._scores(val_loader)) if fresh else dict,
                lambda: {} if val_loader is None or self._metrics is not None else chance(self.loss, val_loader),
                steps=self._spending.plan.steps,
            )

    def _tell(self, epoch: Epoch) -> None:
        """Nothing is reserved at this moment."""
        if self._alerts is None:
            return
        share = None if epoch.budget is None else epoch.spent.epsilon / epoch.budget
        self._alerts.epoch(
            epoch.epoch, share=share, epsilon=epoch.budget, metrics=epoch.metrics, lifetimes=self._lifetimes
        )

    def _lifetimes(self) -> list[BudgetFact]:
        """How much of its data's lifetime budgets is used."""
        if self._books is None:
            return []
        mine = (self._names["party"], self._names["dataset"])
        return [
            BudgetFact(
                share=book.spent_fraction, epsilon=book.budget.epsilon, unit=book.unit.value,
                subject_kind=Subject.PARTY, subject=book.party, dataset=book.dataset,
            )
            for book in self._books.ledger.lifetime()
            if (book.party, book.dataset) == mine and book.budget is not None and not book.public
        ]  # fmt: skip

    # ------------------------------------------------------------------------------------------ privacy

    @property
    def plan(self) -> TrainingSchedule | None:
        """The plan, once training has begun."""
        return None if self._spending is None else self._spending.plan

    @property
    def engine(self) -> str:
        """The engine and why it was chosen, once training has begun."""
        return "" if self._step is None else f"{self._step.engine.name}: {self._step.engine.why}"

    @property
    def chosen(self) -> str:
        """Optimizer, batch, steps, clip, balance and pace in one line, stated or chosen, once training has begun."""
        said, balance = self._chosen, self._balance
        if balance is not None and balance.pace != 1 and isinstance(self._kind, Adam):
            said += f"; the rate × {balance.pace:.2g} for the length of the inputs"
        if balance is not None and balance.weights is not None:
            said += f"; weights of the classes {[round(w, 4) for w in balance.weights.tolist()]}"
        return said

    @property
    def canaries(self) -> CanaryRecord | None:
        """What was recorded of the canaries of an audited training; None for any other."""
        return None if self._carrier is None else self._carrier.record()

    def guarantee(self) -> Guarantee:
        """What may be said about the model: the cost of the whole plan, however much of it ran."""
        claim, told = self._require_spending().claim(), []
        if self._step is not None and (said := more_noise(self._step.mechanism, self._parameters)):
            told.append(said)
        if self._lost:
            lost = f"{self._lost} of {self._require_spending().plan.steps} steps were lost in a kill"
            told.append(f"{lost}: they are paid for, not learnt")
        return dataclasses.replace(claim, warnings=(*claim.warnings, *told))

    def person_guarantee(self) -> Guarantee | None:
        """What the whole plan costs a person with ``max_records`` records; None where no such bound was stated."""
        spending, most = self._require_spending(), self.config.max_records
        return None if most is None else person_guarantee(spending.plan, size=most)

    def get_privacy_spent(self) -> tuple[float, float]:
        """(ε, δ) per record charged so far, if the schedule runs as planned. A killed epoch counts."""
        spent = self._require_spending().so_far()
        return spent.epsilon, spent.delta

    def _require_spending(self) -> Spending:
        if self._spending is None:
            raise QuietsumError("nothing was trained yet, so there is nothing to guarantee; call train() first")
        return self._spending

    # ------------------------------------------------------------------------------------------- saving

    def save(self, path: str | os.PathLike[str], *, trained_only: bool = False) -> None:
        """Model, plan and spend in one safetensors file.

        With ``trained_only`` it holds the trained parameters alone, adapters for instance, and the hash of all others.
        """
        write = save_trained if trained_only else save_module
        write(path, self.model, self._about())

    def load(self, path: str | os.PathLike[str]) -> Guarantee:
        """Fill the model from a file of :meth:`save`, and return the guarantee that came with it, by today's prices.

        Trained parameters alone are put into a model whose other parameters are those that they were trained beside;
        another one is refused.
        """
        about = (fill_trained if is_trained_alone(path) else fill_model)(path, self.model)
        try:
            return as_priced_today(Guarantee.from_dict(about["guarantee"]), about)
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptState(f"{path} holds no guarantee ({error}); restore it from a backup") from None

    def close(self) -> None:
        """Let go of the ledger."""
        if self._books is not None:
            self._books.close()

    def _about(self) -> dict[str, Any]:
        spending = self._require_spending()
        about: dict[str, Any] = {
            "run": self._run, "plan": spending.plan.to_dict(), "charged_steps": spending.charged,
            "spent": spending.so_far().to_dict(), "guarantee": self.guarantee().to_dict(), "lost_steps": self._lost,
            "pricing": PRICING,
        }  # fmt: skip
        if self._books is not None:
            about["head"] = self._books.ledger.head.to_dict()
        person = self.person_guarantee()
        if person is not None:
            about["person"] = person.to_dict()
        return about

    def _parts(self) -> dict[str, dict[str, Tensor]]:
        assert self._optimizer is not None
        parts = {"model": dict(self.model.state_dict()), "optimizer": self._optimizer.state()}
        if self._balance is not None:
            parts["balance"] = self._balance.state()
        return parts if self._averages is None else {**parts, "average": self._averages.state()}

    def _restore(self, step: PrivateStep, charged: int) -> None:
        """Weights and memory of the last checkpoint; the generators start anew, as always."""
        assert self._optimizer is not None
        books = self._books
        saved = share_checkpoint(self._processes, lambda: None if books is None else read_checkpoint(books.checkpoint))
        self._lost = charged
        if saved is None:  # killed in its first epoch
            return
        self._lost, clip = saved.lost(self._run, charged), float(saved.about["clip"])
        try:
            self.model.load_state_dict(saved.part("model"))
        except RuntimeError as error:
            raise CorruptState(f"the checkpoint holds another model: {str(error).splitlines()[-1].strip()}") from None
        self._optimizer.restore(saved.part("optimizer"))
        kept = saved.part("balance")  # whether classes are balanced is the run's own choice, made when it began
        self._balance = Balance.of_state(kept) if kept else None
        if self._averages is not None:
            self._averages.restore(saved.part("average"))
        if step.adaptive is not None:
            step.retune(noise_multiplier=step.noise_multiplier, max_norm=clip)

    def _can_rescue(self) -> bool:
        """Whether all steps are charged and their model was never written: then the last checkpoint becomes it."""
        assert self._spending is not None and self._books is not None
        if self._spending.left > 0 or self._books.model.is_file():
            return False
        if not self._books.checkpoint.is_file():
            raise BudgetExhausted(
                f"run {self._run} was killed before its first checkpoint, and its whole plan is charged: there is no "
                "model to keep; make a new plan, with a smaller checkpoint_every"
            )
        return True

    def _show_average(self, wanted: bool) -> None:
        """Exchange the weights that train with those that are shown: averaged, and with the classes' own shares."""
        if wanted == self._shows_average:
            return
        if not wanted:
            self._shift(back=True)
        if self._averages is not None:
            self._averages.swap()
        if wanted:
            self._shift(back=False)
        self._shows_average = wanted

    @torch.no_grad()
    def _shift(self, *, back: bool) -> None:
        """Move the scores of a balanced model to the classes' own shares, or back, to the last bit."""
        if back:
            if self._unshifted is not None and self._bias is not None:
                self._bias.copy_(self._unshifted)
            self._unshifted = None
        elif self._balance is not None and self._balance.weights is not None and self._bias is not None:
            self._unshifted = self._bias.detach().clone()
            self._bias.add_(fit_shift(self._bias, self._balance.shift()))


def all_finite(parts: Sequence[Tensor]) -> bool:
    """Whether all numbers of all tensors are finite, by one look."""
    return bool(torch.stack([torch.isfinite(part).all() for part in parts]).all())


def _describe(plan: TrainingSchedule, config: PrivacyConfig, *, balanced: bool) -> str:
    """Batch, steps, clip and balance in words."""
    shares = ", the first of them for the classes' shares" if balanced else ""
    clip = f"{config.clipping} clip {config.max_grad_norm:g}"
    return f"{plan.steps} steps of {plan.expected_batch:g} expected records{shares}; {clip}"


def _name_rule(kind: OptimizerKind) -> str:
    """A rule by its settings; one that is no dataclass by its name."""
    return repr(kind) if dataclasses.is_dataclass(kind) else type(kind).__qualname__
