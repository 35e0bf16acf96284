"""A ``transformers.Trainer`` whose training is private: its model, data, optimizer, schedule and callbacks, our loop.

A callback cannot make that trainer private. Its loader shuffles and cuts, its loss is a mean over a batch, and its clip
bounds that mean; a callback sees all three when they are made. So :func:`wrap_trainer` takes what the trainer was given
and runs the steps of :func:`quietsum.make_private` with it: Poisson batches, a gradient per record, noise. Its
callbacks hear of steps, epochs, scores and saved checkpoints as they would, and its log shows ε where it would show the
loss of protected records, which is not computed.

What the arguments mean here:

    per_device_train_batch_size     times ``gradient_accumulation_steps`` the expected batch; if several, held at once
    num_train_epochs                the epochs of the plan, a whole number
    optim, learning_rate, lr_scheduler_type, warmup_steps, weight_decay     as they are
    bf16                            the forward pass under autocast; clipped sums and noise stay in single precision
    eval_strategy, save_strategy, logging_strategy, callbacks               as they are; ``eval_dataset`` is unprotected
    seed, data_seed                 nothing: draws and noise come from the system

All others that would change what is trained, or how it is drawn, are refused by name.

Guarantees: the trainer's own loop can no longer run. A callback of ours stops it before its first batch, since weights
that it moved would not be covered by the guarantee.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.config import PrivacyConfig, plan_training
from quietsum.learning.defaults import settle_config
from quietsum.learning.engines.protocol import Batch, Loss
from quietsum.learning.own_loop import PrivateOptimizer, make_private
from quietsum.learning.rehearsal import scoring, training
from quietsum.learning.rows.named import base_of, read_named
from quietsum.learning.step import cross_entropy
from quietsum.privacy import Guarantee

__all__ = ["WrappedTrainer", "wrap_trainer"]


def wrap_trainer(
    trainer: Any,
    config: PrivacyConfig,
    *,
    loss: Loss = cross_entropy,
    example: Any = None,
    check_labels: bool = True,
    selfcheck: bool = True,
) -> WrappedTrainer:
    """The private training of a ``transformers.Trainer``; :meth:`WrappedTrainer.train` runs it.

    The trainer must be new: weights that its own loop has moved have seen records without any noise. ``config`` may
    leave batch and epochs to the trainer's arguments. ``loss``, ``example`` and the checks are those of
    :func:`quietsum.make_private`; the loss of a model of transformers needs none.
    """
    return WrappedTrainer(
        trainer, config, {"loss": loss, "example": example, "check_labels": check_labels, "selfcheck": selfcheck}
    )


@final
class WrappedTrainer:
    """What :func:`wrap_trainer` makes of a trainer.

    Guarantees: the weights after :meth:`train` cost :meth:`guarantee`. A batch reaches no callback. The log holds ε per
    record so far, the learning rate, and scores on ``eval_dataset``, which is declared unprotected by being passed.
    """

    def __init__(self, trainer: Any, config: PrivacyConfig, options: Mapping[str, Any]) -> None:
        _refuse_trainer(trainer)
        self.trainer, self.config = trainer, _read_config(trainer.args, config)
        self._options = dict(options)
        self._private: PrivateOptimizer | None = None
        self._guard = _make_guard()
        trainer.add_callback(self._guard)

    def guarantee(self) -> Guarantee:
        """What may be said about the model, once training has begun: the cost of the whole plan."""
        if self._private is None:
            raise QuietsumError("nothing was trained yet, so there is nothing to guarantee; call train() first")
        return self._private.guarantee()

    def train(self) -> Guarantee:
        """Run the plan; returns the guarantee. A callback may stop early, and the whole plan's guarantee stands."""
        trainer, args = self.trainer, self.trainer.args
        if self._private is not None:
            raise QuietsumError("the plan was run already, and another run would overspend; make a new trainer")
        data = _read_data(trainer)
        settled = settle_config(self.config, len(trainer.train_dataset), labelled=False)
        plan = plan_training(settled, size=len(trainer.train_dataset))
        model = trainer.model
        with training(model), self._guard.open():
            model.train()
            trainer.create_optimizer_and_scheduler(num_training_steps=plan.steps)
            options, wrap = self._options, _autocast(args, model)
            private_size = self.config.size_is_private
            named = read_named(
                data, None, options["example"], model=model, loss=options["loss"], size_is_private=private_size
            )
            loss = named.loss if wrap is None else wrap(named.loss)
            _, private, loader = make_private(
                model, trainer.optimizer, named.data, config=self.config,
                **{**options, "loss": loss, "example": named.example},
            )  # fmt: skip
            self._private = private
            self._run(private, loader, plan.steps, plan.epochs)
        return private.guarantee()

    def _run(self, private: PrivateOptimizer, loader: Any, steps: int, epochs: int) -> None:
        trainer, args = self.trainer, self.trainer.args
        hear, state = trainer.callback_handler, trainer.state
        hear.model, hear.optimizer, hear.lr_scheduler = trainer.model, private, trainer.lr_scheduler
        hear.train_dataloader = None  # its batches are protected
        state.global_step, state.epoch, state.max_steps, state.num_train_epochs = 0, 0.0, steps, epochs
        state.is_local_process_zero = state.is_world_process_zero = True
        state.compute_steps(args, steps)
        trainer.control = hear.on_train_begin(args, state, trainer.control)
        for epoch in range(epochs):
            trainer.control = hear.on_epoch_begin(args, state, trainer.control)
            for number, _ in enumerate(loader, 1):
                trainer.control = hear.on_step_begin(args, state, trainer.control)
                private.step()
                trainer.lr_scheduler.step()
                state.global_step += 1
                state.epoch = epoch + number / len(loader)
                trainer.control = hear.on_step_end(args, state, trainer.control)
                self._say()
                if trainer.control.should_training_stop:
                    break
            trainer.control = hear.on_epoch_end(args, state, trainer.control)
            self._say()
            if trainer.control.should_training_stop:
                break
        trainer.control = hear.on_train_end(args, state, trainer.control)

    def _say(self) -> None:
        """Log, score and save where the trainer's callbacks have asked for it."""
        trainer, control = self.trainer, self.trainer.control
        if control.should_log:
            control.should_log = False
            epsilon, delta = self._private.get_privacy_spent() if self._private is not None else (0.0, 0.0)
            rate = trainer.lr_scheduler.get_last_lr()[0]
            trainer.log({"epsilon": epsilon, "delta": delta, "learning_rate": rate})
        if control.should_evaluate:
            control.should_evaluate = False
            with scoring(trainer.model):
                trainer.evaluate()
        if control.should_save:
            control.should_save = False
            trainer.save_model(str(Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"))
            trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, control)


# ------------------------------------------------------------------------------------------- what a trainer was given

_REFUSED: Mapping[str, tuple[Any, str, str]] = {
    "fp16": (False, "scales losses by what overflowed, which depends on the records", "use bf16=True, or neither"),
    "label_smoothing_factor": (0.0, "changes the loss of the model", "pass loss= to wrap_trainer"),
    "neftune_noise_alpha": (None, "is not done by this loop", "leave it out"),
    "use_liger_kernel": (False, "fuses layers that must be seen one by one", "leave it out"),
    "torch_compile": (False, "is done by the trainer's own loop alone", "compile the model yourself"),
    "auto_find_batch_size": (False, "would begin anew after records were used", "state a smaller micro-batch"),
    "load_best_model_at_end": (False, "needs checkpoints of the trainer's own loop", "keep the last model"),
    "train_sampling_strategy": ("random", "orders batches by the records", "leave it out: each has its own coin"),
    "dataloader_drop_last": (False, "leaves records out of an epoch by their place", "leave it out"),
    "max_steps": (-1, "counts the steps of another loop", "state num_train_epochs"),
    "resume_from_checkpoint": (None, "knows no charges", "use PrivateTrainer with a workspace, whose ledger does"),
    "deepspeed": (None, "moves weights by rules of its own", "train on one device"),
}  # fmt: skip
"""Arguments by name: what leaves them alone, why others are refused, and what instead."""
_OWN_LOOP = ("training_step", "compute_loss", "get_train_dataloader", "create_accelerator_and_postprocess")


def _refuse_trainer(trainer: Any) -> None:
    from transformers import Trainer

    if not isinstance(trainer, Trainer):
        remedy = "pass transformers.Trainer(model=…, args=…, train_dataset=…)"
        raise InvalidParameter("trainer", type(trainer).__name__, "is no transformers.Trainer", remedy)
    args = trainer.args
    for name, (default, why, instead) in _REFUSED.items():
        value = getattr(args, name, default)
        if value != default and not (default in (None, False) and not value):
            raise InvalidParameter(f"args.{name}", value, why, instead)
    if getattr(args, "fsdp", None) or args.world_size > 1 or args.n_gpu > 1:
        devices = max(args.world_size, args.n_gpu)
        raise InvalidParameter("args", f"{devices} devices", "draw batches each for itself", "train on one device")
    if args.max_grad_norm not in (None, 0, 0.0, 1.0):
        problem = "clips the mean of a batch, which bounds no record"
        remedy = "state PrivacyConfig(max_grad_norm=…), which clips the gradient of each record, and leave it out here"
        raise InvalidParameter("args.max_grad_norm", args.max_grad_norm, problem, remedy)
    own = [name for name in _OWN_LOOP if getattr(type(trainer), name, None) is not getattr(Trainer, name, None)]
    if own or getattr(trainer, "compute_loss_func", None) is not None:
        problem = f"has {' and '.join(own) or 'compute_loss_func'} of its own, which this loop does not call"
        remedy = "pass loss=, a function of (model, batch) with one value per record"
        raise InvalidParameter("trainer", type(trainer).__name__, problem, remedy)
    if trainer.model_init is not None or trainer.state.global_step:
        problem = "makes its model anew when it trains" if trainer.model_init is not None else "has trained already"
        raise InvalidParameter("trainer", type(trainer).__name__, problem, "pass a new Trainer with model=")
    if trainer.train_dataset is None:
        raise InvalidParameter("trainer", type(trainer).__name__, "has no train_dataset", "pass the records to it")


def _read_config(args: Any, config: PrivacyConfig) -> PrivacyConfig:
    """``config`` with the batch and the epochs of the arguments, where it leaves them open."""
    if not isinstance(config, PrivacyConfig):
        remedy = "pass PrivacyConfig(epsilon=8.0)"
        raise InvalidParameter("config", type(config).__name__, "is no PrivacyConfig", remedy)
    epochs, pieces = float(args.num_train_epochs), int(args.gradient_accumulation_steps)
    if config.epochs is None and (not epochs.is_integer() or epochs < 1):
        problem = "is no whole number of epochs, in which a plan is counted"
        raise InvalidParameter("args.num_train_epochs", args.num_train_epochs, problem, "write 3")
    at_once = int(args.per_device_train_batch_size)
    return dataclasses.replace(
        config,
        epochs=int(epochs) if config.epochs is None else config.epochs,
        batch_size=at_once * pieces if config.batch_size is None else config.batch_size,
        micro_batch=at_once if config.micro_batch is None and pieces > 1 else config.micro_batch,
    )


@final
class _Kept(Dataset[Any]):
    """A data set of dicts with those columns alone that the model takes, as the trainer's own loader would do."""

    def __init__(self, rows: Any, names: frozenset[str]) -> None:
        self.rows, self.names = rows, names

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        row = self.rows[place]
        return {name: row[name] for name in row if name in self.names} if isinstance(row, Mapping) else row


def _read_data(trainer: Any) -> Any:
    """The trainer's records, and its collator for one record at a time where it is not the plain one."""
    from transformers import default_data_collator

    rows: Any = trainer.train_dataset
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        problem = "has no records by number, and every record needs its own coin"
        raise InvalidParameter("train_dataset", type(rows).__name__, problem, "pass a data set with a length")
    if trainer.args.remove_unused_columns:
        taken: Any = base_of(trainer.model)
        names = frozenset(inspect.signature(taken.forward).parameters) | {"label", "label_ids", "labels"}
        rows = _Kept(rows, names)
    if trainer.data_collator is default_data_collator:
        return rows
    return DataLoader(rows, collate_fn=trainer.data_collator)


def _autocast(args: Any, model: nn.Module) -> Callable[[Loss], Loss] | None:
    """What makes a loss run under autocast to bfloat16, if the arguments ask for it."""
    if not args.bf16:
        return None
    device = next(model.parameters()).device.type

    def wrap(loss: Loss) -> Loss:
        def run_mixed(model: nn.Module, batch: Batch) -> Tensor:
            with torch.autocast(device, dtype=torch.bfloat16):
                return loss(model, batch).float()

        return run_mixed

    return wrap


def _make_guard() -> Any:
    """The callback that lets our loop run and no other one."""
    from transformers import TrainerCallback

    class OnlyPrivateSteps(TrainerCallback):
        """Stops the trainer's own loop before its first batch: its weights would not be covered by any guarantee."""

        _ours = False

        @contextlib.contextmanager
        def open(self) -> Any:
            """While this is open our loop runs."""
            self._ours = True
            try:
                yield
            finally:
                self._ours = False

        def _look(self, *args: Any, **kwargs: Any) -> None:
            if not self._ours:
                raise QuietsumError(
                    "this trainer was made private, and its own train() shuffles batches, averages losses and adds no "
                    "noise: what it trains would not be covered by the guarantee. Call train() of what wrap_trainer "
                    "returned"
                )

        on_train_begin = on_epoch_begin = on_step_begin = on_pre_optimizer_step = _look

    return OnlyPrivateSteps()
