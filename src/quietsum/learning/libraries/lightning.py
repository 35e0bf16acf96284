"""A Lightning Trainer and a LightningModule whose training is private: :func:`wrap_lightning`.

As with the trainer of transformers a callback alone cannot make Lightning private: the loader shuffles and cuts, the
loss is a mean over a batch, and ``gradient_clip_val`` bounds that mean. So the batch and the step are ours, those of
:func:`~quietsum.learning.own_loop.make_private`, and everything around them stays Lightning's: epochs, validation,
callbacks, loggers, checkpoints, schedules, the progress bar.

Where a step of Lightning would draw a batch, call ``training_step``, go backward and move the weights:

    training_step     draws a Poisson batch, charges it first, and logs ε; returns nothing
    optimizer_step    clips each record's gradient, adds noise, moves the weights

The user's own ``training_step`` becomes the loss: with one value per record (``reduction="none"``) as it is; with one
number, the loss of a record is what it returns for that record alone. Inside it nothing can be logged, since what it
logs stands on records, without noise.

Guarantees: no batch reaches a hook, a callback or a logger. An optimizer that is stepped by anything else, and weights
that were written by anything else between two steps, raise. The trainer's own ``fit`` can no longer run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.learning.config import PrivacyConfig, TrainingSchedule, plan_training
from quietsum.learning.defaults import settle_config
from quietsum.learning.engines.batch_mixing import keep_unchanged, refuse_mixing
from quietsum.learning.engines.protocol import Batch, Loss
from quietsum.learning.own_loop import PoissonLoader, PrivateOptimizer, make_private
from quietsum.learning.rehearsal import scoring
from quietsum.learning.rows.named import read_named
from quietsum.learning.rows.records import Records
from quietsum.learning.validation import refuse_training_records
from quietsum.privacy import Guarantee

__all__ = ["WrappedLightning", "wrap_lightning"]


def wrap_lightning(
    trainer: Any,
    module: Any,
    data: Any,
    config: PrivacyConfig,
    *,
    validation: Any = None,
    loss: Loss | None = None,
    example: Any = None,
    selfcheck: bool = True,
) -> WrappedLightning:
    """The private training of a Lightning module; :meth:`WrappedLightning.fit` runs it.

    ``data`` is a data set, a loader or a LightningDataModule; its batches are replaced by Poisson batches. ``config``
    may leave the epochs to the trainer's ``max_epochs`` and the batch to the loader. ``validation``, or the module's
    own ``val_dataloader``, is declared unprotected. ``loss``, a function of (module, batch) with one value per record,
    takes the place of ``training_step``. ``example`` and ``selfcheck`` are those of :func:`quietsum.make_private`.
    """
    return WrappedLightning(trainer, module, data, config, validation, loss, example, selfcheck)


@final
class WrappedLightning:
    """What :func:`wrap_lightning` makes of a trainer and a module.

    Guarantees: the weights after :meth:`fit` cost :meth:`guarantee`. ``epsilon`` in the log is ε per record so far.
    """

    def __init__(
        self, trainer: Any, module: Any, data: Any, config: PrivacyConfig, validation: Any, loss: Loss | None,
        example: Any, selfcheck: bool,
    ) -> None:  # fmt: skip
        library = _find_library(trainer)
        _refuse_trainer(trainer)
        _refuse_module(library, trainer, module, own_loss=loss is not None)
        data, validation = _read_data(library, data, validation)
        self.trainer, self.module = trainer, module
        self.config = _read_config(trainer, data, config)
        self._data, self._validation, self._example = data, validation, example
        self._selfcheck = selfcheck
        mixed = _autocast(trainer)
        self._own = _StepLoss(module, _is_bare(data, example), mixed) if loss is None else _in_precision(loss, mixed)
        self._private: PrivateOptimizer | None = None
        self._loader: PoissonLoader | None = None
        self._batches: Iterator[Batch] | None = None
        self._written: _Written | None = None
        self._stepping = False
        self._guard = _make_guard(library, data)
        trainer.callbacks.append(self._guard)

    def guarantee(self) -> Guarantee:
        """What may be said about the module, once training has begun: the cost of the whole plan.

        Raises QuietsumError where weights were written by anything else than the private steps.
        """
        if self._private is None or self._written is None:
            raise QuietsumError("nothing was trained yet, so there is nothing to guarantee; call fit() first")
        self._written.confirm()
        return self._private.guarantee()

    def fit(self) -> Guarantee:
        """Run the plan; returns the guarantee. A callback may stop early, and the whole plan's guarantee stands."""
        if self._private is not None:
            raise QuietsumError("the plan was run already, and another run would overspend; make a new trainer")
        trainer, module = self.trainer, self.module
        device = trainer.strategy.root_device
        module.to(device)
        refuse_mixing(module)
        records, loss = self._read_records()
        plan = plan_training(settle_config(self.config, len(records), labelled=False), size=len(records))
        with _apart(module, plan):
            asked = module.configure_optimizers()
            optimizer = _find_optimizer(asked)
            config, own = self.config, self._own
            if isinstance(own, _StepLoss) and _gives_one_number(module, loss, own, records.make_up(device)):
                config = dataclasses.replace(config, engine="vmap" if config.engine == "auto" else config.engine)
            _, self._private, self._loader = make_private(
                module, optimizer, records, config=config, loss=loss, selfcheck=self._selfcheck
            )
        self._written = _Written(self._loader.step.engine.parameters)
        hook = optimizer.register_step_pre_hook(self._refuse_others)
        kept = trainer.fit_loop.max_epochs
        try:
            with self._in_place(asked, plan), self._guard.open(), _quiet():
                trainer.fit_loop.max_epochs = plan.epochs
                trainer.fit(module, train_dataloaders=_Places(plan), val_dataloaders=self._validation)
        finally:
            trainer.fit_loop.max_epochs = kept
            hook.remove()
            self._batches = None
        return self.guarantee()

    def _read_records(self) -> tuple[Records, Loss]:
        """The records, and the loss of each of them as the engines call it."""
        private_size = self.config.size_is_private
        named = read_named(
            self._data, None, self._example, model=self.module, loss=self._own, size_is_private=private_size
        )
        return Records.of(named.data, example=named.example, size_is_private=private_size), named.loss

    # --------------------------------------------------------------------------------------- a step of Lightning's

    @contextlib.contextmanager
    def _in_place(self, asked: Any, plan: TrainingSchedule) -> Iterator[None]:
        """While this is open the module's training_step draws, and its optimizer_step is the private step."""
        module = self.module

        def training_step(batch: Any, batch_idx: int) -> None:
            self._draw()

        def optimizer_step(epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer_closure()
            self._step(plan)

        def configure_optimizers() -> Any:
            return asked

        made = {
            "training_step": training_step,
            "optimizer_step": optimizer_step,
            "configure_optimizers": configure_optimizers,
        }
        module.__dict__.update(made)
        try:
            yield
        finally:
            for name in made:
                module.__dict__.pop(name, None)

    def _draw(self) -> None:
        """Charge and draw the next batch, which stays here, and log what has been spent."""
        private, loader, trainer = self._private, self._loader, self.trainer
        if private is None or loader is None or self._written is None:
            raise QuietsumError("there is no plan to draw from; call fit()")
        self._written.confirm()
        if self._batches is None or next(self._batches, None) is None:
            self._batches = iter(loader)
            next(self._batches)
        if loader.is_at_end or (trainer.global_step + 1) % max(1, trainer.log_every_n_steps) == 0:
            self.module.log("epsilon", private.get_privacy_spent()[0], prog_bar=True, batch_size=1)

    def _step(self, plan: TrainingSchedule) -> None:
        private, written = self._private, self._written
        if private is None or written is None:
            raise QuietsumError("there is no plan to step through; call fit()")
        self._stepping = True
        try:
            with _apart(self.module, plan):
                private.step()
        finally:
            self._stepping = False
            written.note()

    def _refuse_others(self, *given: Any) -> None:
        if not self._stepping:
            raise QuietsumError(
                "the optimizer was stepped by something else than the private step; what that moves is covered by no "
                "noise. Leave optimizer.step() and backward() out of hooks and callbacks"
            )


# ------------------------------------------------------------------------------------------------ the loss of a record


@final
class _StepLoss:
    """The user's ``training_step`` with one value per record."""

    def __init__(self, module: Any, bare: bool, precision: Callable[[], Any]) -> None:
        self._kind, self._bare, self._precision = type(module), bare, precision
        self._places = len(inspect.signature(type(module).training_step).parameters) > 2

    def call(self, module: Any, batch: Any) -> Tensor:
        """What ``training_step`` returns for a batch: a value per record, or one number."""
        given = batch if isinstance(batch, Mapping) else batch[0] if self._bare else list(batch)
        with self._precision():
            found = self._kind.training_step(module, given, 0) if self._places else self._kind.training_step(
                module, given
            )  # fmt: skip
        found = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(found, Tensor):
            problem = f"returns {type(found).__name__}, and every record needs a loss"
            remedy = "return the loss, with one value per record: cross_entropy(…, reduction='none')"
            raise InvalidParameter("training_step", self._kind.__name__, problem, remedy)
        return found.float() if found.dtype in (torch.bfloat16, torch.float16) else found

    def __call__(self, module: nn.Module, batch: Any) -> Tensor:
        """The loss of each record; of each one alone where ``training_step`` returns one number."""
        parts = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
        rows = len(parts[0])
        found = self.call(module, batch)
        if found.shape == (rows,):
            return found
        if found.numel() != 1:
            return found  # refused by the engines, which say what is needed
        if rows == 1:
            return found.reshape(1)
        return torch.stack([self.call(module, _row(batch, place)).reshape(()) for place in range(rows)])


def _row(batch: Any, place: int) -> Any:
    if isinstance(batch, Mapping):
        return {name: part[place : place + 1] for name, part in batch.items()}
    return tuple(part[place : place + 1] for part in batch)


def _gives_one_number(module: nn.Module, loss: Any, own: _StepLoss, rows: Batch) -> bool:
    """Whether ``training_step`` returns one number for made-up rows; refused unless that is the mean or the sum of what
    it returns for each of them alone, since a loss that mixes records has none for a single one."""
    columns = getattr(loss, "columns", None)
    batch: Any = rows if columns is None else dict(zip(columns.names, rows, strict=True))
    try:
        with keep_unchanged(module), scoring(module), torch.no_grad():
            together = own.call(module, batch)
            if together.numel() != 1 or together.shape == (len(rows[0]),):
                return False
            single = torch.stack([own.call(module, _row(batch, place)).reshape(()) for place in range(len(rows[0]))])
    except QuietsumError:
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        problem = f"cannot read made-up records ({told})"
        remedy = "read nothing but its batch and its own layers: inside a private step there is no logger and no loop"
        raise InvalidParameter("training_step", type(module).__name__, problem, remedy) from error
    whole = float(together)
    if not any(abs(whole - float(one)) <= 1e-3 * max(1.0, abs(whole)) for one in (single.mean(), single.sum())):
        problem = f"returns {whole:.4g} for made-up records, and {float(single.mean()):.4g} on average for each alone"
        remedy = (
            "let the loss of a record depend on that record alone, and return one value per record "
            "(reduction='none'), or pass loss=, a function of (module, batch)"
        )
        raise InvalidParameter("training_step", type(module).__name__, problem, remedy)
    return True


def _autocast(trainer: Any) -> Callable[[], Any]:
    """The context in which the loss is computed: autocast to bfloat16 if the trainer asks for it."""
    if str(trainer.precision) != "bf16-mixed":
        return contextlib.nullcontext
    device = trainer.strategy.root_device.type
    return lambda: torch.autocast(device, dtype=torch.bfloat16)


def _in_precision(loss: Loss, precision: Callable[[], Any]) -> Loss:
    if precision is contextlib.nullcontext:
        return loss

    def run_mixed(model: nn.Module, batch: Batch) -> Tensor:
        with precision():
            return loss(model, batch).float()

    return run_mixed


# ------------------------------------------------------------------------------------------ what stands in meanwhile


@final
class _Apart:
    """What a module sees as its trainer inside a private step: lengths of the plan, and no way out for a record."""

    logger = None
    loggers: Sequence[Any] = ()
    training, sanity_checking, validating, testing, predicting = True, False, False, False, False
    global_rank = local_rank = 0
    world_size = num_devices = 1

    def __init__(self, plan: TrainingSchedule, epoch: int, step: int) -> None:
        self.max_epochs, self.max_steps, self.estimated_stepping_batches = plan.epochs, plan.steps, plan.steps
        self.num_training_batches = plan.steps_per_epoch
        self.current_epoch, self.global_step = epoch, step

    def __getattr__(self, name: str) -> Any:
        raise QuietsumError(
            f"inside a private step there is no trainer.{name}: what training_step would do with it may tell of records"
        )


@contextlib.contextmanager
def _apart(module: Any, plan: TrainingSchedule) -> Iterator[None]:
    """While this is open the module and those inside it have no trainer, and what they log is thrown away."""
    inside = [one for one in module.modules() if hasattr(one, "_trainer") and hasattr(one, "log_dict")]
    kept = [one._trainer for one in inside]
    real = module._trainer
    now = _Apart(plan, 0 if real is None else real.current_epoch, 0 if real is None else real.global_step)
    for one in inside:
        one.__dict__.update(_trainer=now, log=_ignore, log_dict=_ignore)
    try:
        yield
    finally:
        for one, trainer in zip(inside, kept, strict=True):
            one.__dict__["_trainer"] = trainer
            for name in ("log", "log_dict"):
                one.__dict__.pop(name, None)


def _ignore(*given: Any, **named: Any) -> None:
    """In place of ``log``: what it would write stands on records, without noise."""


@final
class _Places:
    """What Lightning takes for its loader: as many empty batches as an epoch has steps. The records stay with us."""

    def __init__(self, plan: TrainingSchedule) -> None:
        self._count = plan.steps_per_epoch

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self._count):
            yield torch.zeros(0)


@final
class _Written:
    """Whether parameters are as the last private step has left them, by torch's own count of changes."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = tuple(parameters)
        self.note()

    def note(self) -> None:
        """Take the parameters for what they are now."""
        self._seen = [one._version for one in self._parameters]

    def confirm(self) -> None:
        """Raise where a parameter was written to since."""
        if [one._version for one in self._parameters] != self._seen:
            raise QuietsumError(
                "the weights were changed by something else than the private step: another optimizer, or a callback "
                "that averages or prunes weights. What that writes is covered by no noise; leave it out, or do it to "
                "a copy of the finished model"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what Lightning says about a training_step that returns nothing, and a loader that has no workers."""
    with warnings.catch_warnings():
        for text in (".*`?training_step`? returned `?None`?.*", ".*does not have many workers.*"):
            warnings.filterwarnings("ignore", message=text)
        yield


# ------------------------------------------------------------------------------------------- what a trainer was given

_PACKAGES = {
    "pytorch_lightning.trainer.trainer": "pytorch_lightning",
    "lightning.pytorch.trainer.trainer": "lightning.pytorch",
}
_SUMS = "adds up batches, and every draw is a release of its own"
_EACH = "draws batches in each process for itself"
_ALONE = "train on one device, or with PrivateTrainer under torchrun"
_SHORT = "changes the number of steps, and charges for those that are made"
_BATCH = "state PrivacyConfig(batch_size=…), and micro_batch= for what is held in memory at once"
_NORM = "state PrivacyConfig(max_grad_norm=…), which clips the gradient of each record"

_REFUSED: Mapping[str, tuple[tuple[Any, ...], str, str]] = {
    "accumulate_grad_batches": ((1,), _SUMS, _BATCH),
    "gradient_clip_val": ((None, 0, 0.0), "clips the mean of a batch, which bounds no record", _NORM),
    "overfit_batches": ((0, 0.0), "repeats some batches", "leave it out"),
    "fast_dev_run": ((False, 0), _SHORT, "use few epochs of made-up records"),
    "limit_train_batches": ((1.0,), "leaves batches out by their place", "state the epochs"),
    "max_steps": ((-1,), "counts the steps of another loop", "state max_epochs"),
    "reload_dataloaders_every_n_epochs": ((0,), "asks for new records in every epoch", "leave it out"),
    "num_nodes": ((1,), _EACH, _ALONE),
    "num_devices": ((1,), _EACH, _ALONE),
    "world_size": ((1,), _EACH, _ALONE),
}
"""Arguments of a trainer: what leaves them alone, why others are refused, and what instead."""
_PRECISIONS = ("32-true", "32", "bf16-mixed")
_STEP_HOOKS = (
    "optimizer_step", "optimizer_zero_grad", "backward", "configure_gradient_clipping", "on_before_backward",
    "on_after_backward", "on_before_optimizer_step", "transfer_batch_to_device", "on_before_batch_transfer",
    "on_after_batch_transfer", "configure_model", "configure_sharded_model",
)  # fmt: skip
_GRADIENT_HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")


def _find_library(trainer: Any) -> Any:
    """The package that the trainer comes from: pytorch_lightning, or the same inside lightning."""
    for kind in type(trainer).__mro__:
        if kind.__name__ == "Trainer" and kind.__module__ in _PACKAGES:
            return importlib.import_module(_PACKAGES[kind.__module__])
    remedy = "pass pytorch_lightning.Trainer(max_epochs=…)"
    raise InvalidParameter("trainer", type(trainer).__name__, "is no Trainer of Lightning", remedy)


def _refuse_trainer(trainer: Any) -> None:
    for name, (fine, why, instead) in _REFUSED.items():
        value = getattr(trainer, name, fine[0])
        if not any(value is one or (type(value) is type(one) and value == one) for one in fine):
            raise InvalidParameter(f"trainer.{name}", value, why, instead)
    strategy = type(trainer.strategy).__name__
    if strategy != "SingleDeviceStrategy":
        problem = "moves or shares out weights by rules of its own"
        raise InvalidParameter("trainer.strategy", strategy, problem, "leave strategy out, and train on one device")
    if str(trainer.precision) not in _PRECISIONS:
        scaled = str(trainer.precision) == "16-mixed"
        problem = "scales losses by what overflowed, which depends on the records" if scaled else (
            "trains weights in another precision than that in which sums are clipped and noised"
        )  # fmt: skip
        raise InvalidParameter("trainer.precision", trainer.precision, problem, "use bf16-mixed, or 32-true")
    if trainer.global_step or trainer.current_epoch:
        raise InvalidParameter("trainer", type(trainer).__name__, "has trained already", "pass a new Trainer")
    library = _find_library(trainer)
    for callback in trainer.callbacks:
        found = [name for name in _GRADIENT_HOOKS if _differs(callback, library.Callback, name)]
        if found:
            problem = f"has {' and '.join(found)}, which a private step has no gradient to show"
            raise InvalidParameter("callback", type(callback).__name__, problem, "leave that callback out")
        if type(callback).__name__ == "GradientAccumulationScheduler":
            raise InvalidParameter("callback", type(callback).__name__, _SUMS, _BATCH)


def _differs(thing: Any, base: type, name: str) -> bool:
    """Whether ``thing`` has a method ``name`` that is not that of ``base``."""
    if name in vars(thing):
        return True
    return getattr(type(thing), name, None) is not getattr(base, name, None)


def _refuse_module(library: Any, trainer: Any, module: Any, *, own_loss: bool) -> None:
    shown = type(module).__name__
    if not isinstance(module, library.LightningModule):
        problem = f"is no LightningModule of {library.__name__}"
        raise InvalidParameter("module", shown, problem, "pass the module that trainer.fit would take")
    if not module.automatic_optimization:
        problem = "steps its optimizers itself (automatic_optimization = False), and such steps have no noise"
        remedy = "return the loss of each record from training_step, or use make_private in a loop of your own"
        raise InvalidParameter("module", shown, problem, remedy)
    if not own_loss and not _differs(module, library.LightningModule, "training_step"):
        raise InvalidParameter("module", shown, "has no training_step", "write one, or pass loss=")
    found = [name for name in _STEP_HOOKS if _differs(module, library.LightningModule, name)]
    if found:
        problem = f"has {' and '.join(found)} of its own, which a private step does not call"
        remedy = "take them out: batch, gradient and step of a private training are not the module's to change"
        raise InvalidParameter("module", shown, problem, remedy)


def _find_optimizer(asked: Any) -> torch.optim.Optimizer:
    """The one optimizer in what ``configure_optimizers`` returned."""
    several = [asked]
    if isinstance(asked, tuple | list):
        pair = len(asked) == 2 and isinstance(asked[0], tuple | list)
        several = list(asked[0] if pair else asked)
    found = [one.get("optimizer") if isinstance(one, Mapping) else one for one in several]
    if len(found) != 1 or not isinstance(found[0], torch.optim.Optimizer):
        problem = f"returns {len(found)} optimizers" if len(found) != 1 else f"returns {type(found[0]).__name__}"
        remedy = "return one torch optimizer of all that is trained; groups may have rates of their own"
        raise InvalidParameter("configure_optimizers", type(asked).__name__, problem, remedy)
    return found[0]


def _read_data(library: Any, data: Any, validation: Any) -> tuple[Any, Any]:
    """Records, and validation loaders, from a data module too."""
    if not isinstance(data, library.LightningDataModule):
        return data, validation
    hooks = ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer")
    found = [name for name in hooks if _differs(data, library.LightningDataModule, name)]
    if found:
        problem = f"has {' and '.join(found)} of its own, which a private step does not call"
        raise InvalidParameter("data", type(data).__name__, problem, "change records in the data set, one by one")
    data.prepare_data()
    data.setup("fit")
    if validation is None and _differs(data, library.LightningDataModule, "val_dataloader"):
        validation = data.val_dataloader()
    return data.train_dataloader(), validation


def _is_bare(data: Any, example: Any) -> bool:
    """Whether a record is one tensor, rather than several."""
    if example is not None:
        return isinstance(example, Tensor)
    rows = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(rows, TensorDataset | tuple):
        return False
    try:
        return isinstance(rows[0], Tensor)
    except Exception:  # whatever a record raises is said by Records, in its own words
        return False


def _read_config(trainer: Any, data: Any, config: PrivacyConfig) -> PrivacyConfig:
    """``config`` with the trainer's epochs and the loader's batch, where it leaves them open."""
    if not isinstance(config, PrivacyConfig):
        remedy = "pass PrivacyConfig(epsilon=8.0)"
        raise InvalidParameter("config", type(config).__name__, "is no PrivacyConfig", remedy)
    epochs, batch = trainer.max_epochs, getattr(data, "batch_size", None) if isinstance(data, DataLoader) else None
    if config.epochs is None and (epochs is None or epochs < 1):
        problem = "is no number of epochs, and a plan ends"
        raise InvalidParameter("trainer.max_epochs", epochs, problem, "write Trainer(max_epochs=3)")
    return dataclasses.replace(
        config,
        epochs=epochs if config.epochs is None else config.epochs,
        batch_size=batch if config.batch_size is None else config.batch_size,
    )


def _make_guard(library: Any, data: Any) -> Any:
    """The callback that lets our steps run and no others, and looks at what is scored."""

    class OnlyPrivateSteps(library.Callback):  # type: ignore[misc]
        """Stops the trainer's own loop before its first batch: its weights would not be covered by any guarantee."""

        _ours = False

        @contextlib.contextmanager
        def open(self) -> Iterator[None]:
            """While this is open our steps run."""
            self._ours = True
            try:
                yield
            finally:
                self._ours = False

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Before anything of a loop."""
            if stage == "fit" and not self._ours:
                raise QuietsumError(
                    "this trainer was made private, and its own fit() shuffles batches, averages losses and adds no "
                    "noise: what it trains would not be covered by the guarantee. Call fit() of what wrap_lightning "
                    "returned"
                )

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            """Scores on protected records would be a release without a charge."""
            found = trainer.val_dataloaders
            for one in found if isinstance(found, list) else [found]:
                if self._ours and one is not None:
                    refuse_training_records(one, data)

    return OnlyPrivateSteps()
