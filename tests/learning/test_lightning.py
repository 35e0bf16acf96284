"""A Lightning Trainer whose training is private: around the steps all is Lightning's, and no step is anybody else's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pl: Any = pytest.importorskip("pytorch_lightning")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset, TensorDataset  # noqa: E402

from quietsum import PrivacyConfig, PrivateTrainer, make_private  # noqa: E402
from quietsum.errors import InvalidParameter, QuietsumError  # noqa: E402
from quietsum.learning import wrap_lightning  # noqa: E402
from quietsum.learning.config import plan_training  # noqa: E402
from quietsum.learning.own_loop import PoissonLoader  # noqa: E402
from quietsum.mechanisms.rng import randomness_for_tests  # noqa: E402
from quietsum.privacy import ExactAccountant, Gaussian, PoissonSampled  # noqa: E402

ROWS = 48


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about torch and about how few workers there are
        yield


def rows(seed: int = 0, count: int = ROWS) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs.sum(1) > 0).long()


def loader(seed: int = 0, batch_size: int = 8) -> Any:
    return DataLoader(TensorDataset(*rows(seed)), batch_size=batch_size, shuffle=True)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Module(pl.LightningModule):  # type: ignore[misc]
    """What a user brings; ``reduction`` says whether training_step returns a value per record or one number."""

    def __init__(self, reduction: str = "none") -> None:
        super().__init__()
        self.net, self.reduction = network(), reduction

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self(inputs), labels, reduction=self.reduction)
        self.log("train_loss", loss.mean(), prog_bar=True)
        self.log_dict({"rows": float(len(inputs))})
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        inputs, labels = batch
        self.log("val_loss", nn.functional.cross_entropy(self(inputs), labels))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def trainer_of(**values: Any) -> Any:
    given: dict[str, Any] = {
        "max_epochs": 2, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
        "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1,
    }  # fmt: skip
    return pl.Trainer(**{**given, **values})


def config(**values: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 8.0, "delta": 1e-3, **values})


def weights_of(module: nn.Module) -> list[Tensor]:
    return [one.detach().clone() for one in module.parameters()]


class Hears(pl.Callback):  # type: ignore[misc]
    """Writes down which batches and metrics a callback is given."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.epsilons: list[float] = []
        self.metrics: set[str] = set()
        self.epochs = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert not outputs
        self.batches.append(batch)
        self.metrics |= set(trainer.callback_metrics)
        self.epsilons.append(float(trainer.callback_metrics["epsilon"]))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.epochs += 1


def test_a_module_trains_privately_and_all_around_its_steps_is_lightnings(tmp_path: Path) -> None:
    hears = Hears()
    saving = pl.callbacks.ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    trainer = trainer_of(callbacks=[hears, saving], enable_checkpointing=True)
    module = Module()
    before = weights_of(module)
    private = wrap_lightning(trainer, module, loader(), config(), validation=loader(seed=1))
    guarantee = private.fit()
    assert all(not torch.equal(one, two) for one, two in zip(weights_of(module), before, strict=True))
    assert guarantee.epsilon <= 8.0 and private.guarantee() == guarantee
    steps = 2 * ROWS // 8
    assert trainer.global_step == steps == len(hears.epsilons) and hears.epochs == 2
    assert hears.epsilons == sorted(hears.epsilons)
    assert hears.epsilons[-1] == pytest.approx(guarantee.epsilon)
    assert hears.metrics == {"epsilon", "val_loss"}  # neither train_loss nor rows, which stand on records
    assert all(batch.numel() == 0 for batch in hears.batches)
    loaded = torch.load(saving.best_model_path, weights_only=True)["state_dict"]
    assert set(loaded) == set(module.state_dict())
    assert not {"training_step", "optimizer_step", "configure_optimizers"} & set(vars(module))


def test_what_is_claimed_is_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another oracle: the steps that were made, each a Poisson draw of this rate with this noise, priced by hand."""
    drawn: list[int] = []
    made: list[tuple[float, float]] = []
    drawing = PoissonLoader.__iter__

    def watch(self: PoissonLoader) -> Any:
        for batch in drawing(self):
            drawn.append(len(batch[0]))
            event: Any = self.step.event()
            made.append((event.rate, event.event.noise_multiplier))
            yield batch

    monkeypatch.setattr(PoissonLoader, "__iter__", watch)
    guarantee = wrap_lightning(trainer_of(), Module(), loader(), config(), selfcheck=False).fit()
    assert len(made) == 12 and set(made) == {(8 / ROWS, made[0][1])}
    accountant = ExactAccountant()
    accountant.compose(PoissonSampled(rate=8 / ROWS, event=Gaussian(noise_multiplier=made[0][1])), times=12)
    assert accountant.epsilon(delta=1e-3).epsilon == pytest.approx(guarantee.epsilon, rel=1e-3)
    assert len(set(drawn)) > 1


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws and the same noise in every training of this test."""
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    monkeypatch.setattr("quietsum.learning.step.system_randomness", lambda: randomness_for_tests(7))


def by_hand(settings: PrivacyConfig) -> list[Tensor]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    _, private, batches = make_private(model, optimizer, rows(), config=settings, selfcheck=False)
    for _ in range(2):
        for _ in batches:
            private.step()
    return weights_of(model)


def apart(one: list[Tensor], two: list[Tensor]) -> float:
    return max(float((first - second).abs().max()) for first, second in zip(one, two, strict=True))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.usefixtures("planted")
def test_the_same_draws_and_noise_give_the_weights_of_a_loop_by_hand_and_of_private_trainer(reduction: str) -> None:
    settings = config(batch_size=8, epochs=2)
    module = Module(reduction)
    wrap_lightning(trainer_of(), module, loader(), settings, selfcheck=False).fit()
    assert apart(weights_of(module), by_hand(settings)) < 1e-6
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    PrivateTrainer(model, settings, selfcheck=False).train(rows(), optimizer=optimizer, learning_rate=0.1)
    assert apart(weights_of(module), weights_of(model)) < 1e-6
    other = by_hand(config(batch_size=8, epochs=2, max_grad_norm=0.5))  # the control: another clip is another model
    assert apart(weights_of(module), other) > 1e-3


@pytest.mark.usefixtures("planted")
def test_a_schedule_steps_as_lightning_steps_it() -> None:
    rates: list[float] = []

    class Scheduled(Module):
        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            steps = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def on_train_batch_end(self, *given: Any) -> None:
            rates.append(self.lr_schedulers().get_last_lr()[0])

    wrap_lightning(trainer_of(), Scheduled(), loader(), config(), selfcheck=False).fit()
    assert rates == pytest.approx([0.1 * (1 - (step + 1) / 12) for step in range(12)], abs=1e-9)


# -------------------------------------------------------------------------------------------- what is refused


class OwnStep(Module):
    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Augments(Module):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class Two(Module):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[0].parameters(), lr=0.1), torch.optim.SGD(self.net[2].parameters(), lr=0.1)]


class Mixes(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0])
        return nn.functional.cross_entropy(scores @ scores.T, torch.arange(len(scores)))


class Norm(Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Keeps(Module):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach().mean())
        return loss


class Writes(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.trainer.strategy.barrier()
        return loss


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (OwnStep, "has optimizer_step of its own"), (Manual, "steps its optimizers itself"),
        (Augments, "has on_after_batch_transfer of its own"), (Two, "returns 2 optimizers"),
        (Mixes, "on average for each alone"), (Norm, "statistics over the batch"),
        (Keeps, r"losses.*would be saved without noise"), (Writes, r"there is no trainer\.strategy"),
    ],
)  # fmt: skip
def test_modules_that_a_private_step_cannot_serve_are_refused_before_a_charge(
    kind: type[Module], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoissonLoader, "__iter__", lambda self: pytest.fail("a batch was drawn"))
    module = kind()
    before = weights_of(module)
    with pytest.raises(QuietsumError, match=said):
        wrap_lightning(trainer_of(), module, loader(), config(), selfcheck=False).fit()
    assert apart(weights_of(module), before) == 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"accumulate_grad_batches": 2}, "every draw is a release"), ({"gradient_clip_val": 1.0}, "bounds no record"),
        ({"limit_train_batches": 3}, "by their place"), ({"overfit_batches": 2}, "repeats some batches"),
        ({"max_steps": 7}, "another loop"), ({"fast_dev_run": True}, "number of steps"),
        ({"reload_dataloaders_every_n_epochs": 1}, "new records"), ({"max_epochs": -1}, "a plan ends"),
        ({"devices": 2, "strategy": "ddp"}, "under torchrun"), ({"precision": "bf16-true"}, "another precision"),
    ],
)  # fmt: skip
def test_arguments_that_would_change_what_is_done_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said):
        wrap_lightning(trainer_of(**values), Module(), loader(), config())
    wrap_lightning(trainer_of(), Module(), loader(), config())


def test_a_scaler_of_losses_is_refused_and_bfloat_is_taken() -> None:
    class Half(pl.plugins.MixedPrecision):  # type: ignore[misc]
        def __init__(self) -> None:
            self.precision, self.scaler, self.device = "16-mixed", None, "cpu"

    with pytest.raises(InvalidParameter, match="which depends on the records"):
        wrap_lightning(trainer_of(plugins=[Half()]), Module(), loader(), config())
    seen: list[Any] = []

    class Module16(Module):
        def forward(self, inputs: Tensor) -> Any:
            found = self.net(inputs)
            seen.append(found.dtype)
            return found

    mixed = trainer_of(precision="bf16-mixed", max_epochs=1)
    assert wrap_lightning(mixed, Module16(), loader(), config(), selfcheck=False).fit().epsilon <= 8
    assert set(seen) == {torch.bfloat16}


def test_what_is_no_trainer_no_module_or_no_data_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="is no Trainer of Lightning"):
        wrap_lightning(object(), Module(), loader(), config())
    with pytest.raises(InvalidParameter, match="is no LightningModule"):
        wrap_lightning(trainer_of(), network(), loader(), config())
    with pytest.raises(InvalidParameter, match="no records by number"):
        wrap_lightning(trainer_of(), Module(), iter([1]), config()).fit()
    with pytest.raises(InvalidParameter, match="holds training records"):
        same = loader()
        wrap_lightning(trainer_of(), Module(), same, config(), validation=same, selfcheck=False).fit()


def test_lightnings_own_loop_can_never_run_under_the_claim() -> None:
    trainer, module = trainer_of(), Module("mean")
    private = wrap_lightning(trainer, module, loader(), config(), selfcheck=False)
    with pytest.raises(QuietsumError, match="nothing was trained yet"):
        private.guarantee()
    before = weights_of(module)
    with pytest.raises(QuietsumError, match="its own fit"):
        trainer.fit(module, loader())
    assert apart(weights_of(module), before) == 0
    private = wrap_lightning(trainer_of(), module, loader(), config(), selfcheck=False)
    private.fit()
    after = weights_of(module)
    with pytest.raises(QuietsumError, match="its own fit"):
        private.trainer.fit(module, loader())
    with pytest.raises(QuietsumError, match="run already"):
        private.fit()
    assert apart(weights_of(module), after) == 0
    control = trainer_of()
    control.fit(module, loader())  # the control: a trainer that is not wrapped trains, and cannot be wrapped then
    assert apart(weights_of(module), after) > 1e-3
    with pytest.raises(InvalidParameter, match="has trained already"):
        wrap_lightning(control, module, loader(), config())


def raw_step(module: Any) -> None:
    inputs, labels = rows()
    with torch.enable_grad():
        nn.functional.cross_entropy(module(inputs), labels).backward()
    module.optimizers().step()


def other_optimizer(module: Any) -> None:
    inputs, labels = rows()
    with torch.enable_grad():
        nn.functional.cross_entropy(module(inputs), labels).backward()
    torch.optim.SGD(module.parameters(), lr=0.1).step()
    module.zero_grad()


def gradient_left(module: Any) -> None:
    inputs, labels = rows()
    with torch.enable_grad():
        nn.functional.cross_entropy(module(inputs), labels).backward()


@pytest.mark.parametrize(
    ("act", "said"),
    [(raw_step, "stepped by something else"), (other_optimizer, "changed by something else")],
)
@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_epoch_end", "on_train_end"])
def test_a_hook_that_moves_the_weights_on_raw_records_is_caught(
    act: Callable[[Any], None], said: str, hook: str
) -> None:
    module = Module()
    setattr(module, hook, lambda *given: act(module))
    private = wrap_lightning(trainer_of(), module, loader(), config(), selfcheck=False)
    with pytest.raises(QuietsumError, match=said):
        private.fit()
    if act is other_optimizer:
        with pytest.raises(QuietsumError, match=said):
            private.guarantee()


def test_a_gradient_of_somebody_elses_never_reaches_the_optimizer() -> None:
    class Leaves(Module):
        def optimizer_zero_grad(self, *given: Any) -> None:
            """Would keep what a hook has left."""

    with pytest.raises(InvalidParameter, match="has optimizer_zero_grad of its own"):
        wrap_lightning(trainer_of(), Leaves(), loader(), config())
    found = []
    for leaves in (False, True):
        module = Module()
        if leaves:
            setattr(module, "on_train_batch_start", lambda *given, own=module: gradient_left(own))  # noqa: B010
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("QUIETSUM_TEST_SEEDS", "1")
            patch.setattr("quietsum.learning.step.system_randomness", lambda: randomness_for_tests(7))
            wrap_lightning(trainer_of(), module, loader(), config(), selfcheck=False).fit()
        found.append(weights_of(module))
    assert apart(*found) < 1e-6


# ------------------------------------------------------------------------------------------------ other forms


class Rows(Dataset[Any]):
    """Records as dicts, or as single tensors."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> Any:
        inputs, labels = (part[place] for part in rows())
        return {"inputs": inputs, "label": labels} if self.form == "dict" else inputs


def test_records_come_to_training_step_in_the_form_they_have() -> None:
    class Dicts(Module):
        def training_step(self, batch: Any) -> Any:  # type: ignore[override]
            assert set(batch) == {"inputs", "labels"}
            return {"loss": nn.functional.cross_entropy(self(batch["inputs"]), batch["labels"], reduction="none")}

    class Bare(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            found: Tensor = self(batch).square().mean(1)
            return found

    assert wrap_lightning(trainer_of(), Dicts(), Rows("dict"), config(batch_size=8), selfcheck=False).fit().epsilon <= 8
    assert wrap_lightning(trainer_of(), Bare(), Rows("bare"), config(batch_size=8), selfcheck=False).fit().epsilon <= 8


def test_a_data_module_and_a_loss_beside_the_step_are_taken() -> None:
    class Data(pl.LightningDataModule):  # type: ignore[misc]
        def setup(self, stage: str) -> None:
            self.kept = loader()

        def train_dataloader(self) -> Any:
            return self.kept

        def val_dataloader(self) -> Any:
            return loader(seed=1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    trainer = trainer_of()
    private = wrap_lightning(trainer, Mixes(), Data(), config(), loss=loss, selfcheck=False)
    assert private.fit().epsilon <= 8 and "val_loss" in trainer.callback_metrics


def test_stopping_early_keeps_the_whole_price() -> None:
    class Stop(pl.Callback):  # type: ignore[misc]
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            trainer.should_stop = not trainer.sanity_checking

    trainer = trainer_of(callbacks=[Stop()])
    private = wrap_lightning(trainer, Module(), loader(), config(), validation=loader(seed=1), selfcheck=False)
    guarantee = private.fit()
    assert trainer.global_step == ROWS // 8
    whole = plan_training(config(epochs=2, batch_size=8, clipping="flat", max_grad_norm=1.0), size=ROWS)
    assert guarantee.epsilon == pytest.approx(whole.epsilon, rel=0.02)
