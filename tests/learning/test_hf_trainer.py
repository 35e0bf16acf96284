"""A transformers.Trainer whose training is private: what it was given is used, and its own loop cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytest.importorskip("accelerate")

from learning.test_named_rows import Tokenised, lora, tokenised  # noqa: E402
from quietsum import PrivacyConfig  # noqa: E402
from quietsum.errors import InvalidParameter, QuietsumError  # noqa: E402
from quietsum.learning import wrap_trainer  # noqa: E402
from quietsum.learning.config import plan_training  # noqa: E402
from quietsum.learning.own_loop import PoissonLoader  # noqa: E402
from quietsum.privacy import ExactAccountant, Gaussian, PoissonSampled  # noqa: E402

ROWS = 48


class Hears(transformers.TrainerCallback):  # type: ignore[misc]
    """Writes down what the callbacks of a trainer hear."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.logs: list[dict[str, float]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):

            def hear(args: Any, state: Any, control: Any, **given: Any) -> None:
                self.heard.append(name)
                assert given.get("train_dataloader") is None
                if name == "on_log":
                    self.logs.append(dict(given["logs"]))

            return hear
        return super().__getattribute__(name)


def trainer_of(folder: Path, *, callbacks: Any = (), rows: Any = None, scored: Any = None, **values: Any) -> Any:
    given: dict[str, Any] = {
        "output_dir": str(folder), "per_device_train_batch_size": 8, "num_train_epochs": 2, "learning_rate": 0.01,
        "logging_steps": 2, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True,
    }  # fmt: skip
    return transformers.Trainer(
        model=lora(), args=transformers.TrainingArguments(**{**given, **values}),
        train_dataset=tokenised("GPT-2", ROWS) if rows is None else rows,
        eval_dataset=scored, callbacks=list(callbacks),
    )  # fmt: skip


def config(**values: Any) -> PrivacyConfig:
    return PrivacyConfig(**{"epsilon": 8.0, "delta": 1e-3, **values})


def test_a_trainer_trains_privately_with_what_it_was_given(tmp_path: Path) -> None:
    hears = Hears()
    trainer = trainer_of(tmp_path, callbacks=[hears], save_strategy="epoch", lr_scheduler_type="linear")
    before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    private = wrap_trainer(trainer, config(), selfcheck=False)
    guarantee = private.train()
    moved = {name for name, one in trainer.model.named_parameters() if not torch.equal(one, before[name])}
    assert moved == {name for name, one in trainer.model.named_parameters() if one.requires_grad}
    assert guarantee.epsilon <= 8.0 and private.guarantee() == guarantee
    steps = 2 * ROWS // 8
    assert hears.heard.count("on_step_end") == hears.heard.count("on_step_begin") == steps == trainer.state.global_step
    assert hears.heard.count("on_epoch_end") == 2 and hears.heard[-1] == "on_train_end"
    assert len(hears.logs) == steps // 2
    assert all(set(log) == {"epsilon", "delta", "learning_rate", "epoch"} for log in hears.logs)
    spent = [log["epsilon"] for log in hears.logs]
    assert spent == sorted(spent) and spent[-1] == pytest.approx(guarantee.epsilon)
    assert [log["learning_rate"] for log in hears.logs][-1] == 0 < hears.logs[0]["learning_rate"] < 0.01
    assert (tmp_path / f"checkpoint-{steps}" / "adapter_model.safetensors").is_file()
    assert hears.heard.count("on_save") == 2


def test_what_is_claimed_is_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    trainer = trainer_of(tmp_path, gradient_accumulation_steps=2)
    private = wrap_trainer(trainer, config(), selfcheck=False)
    guarantee = private.train()
    assert private.config.batch_size == 16 and private.config.micro_batch == 8 and private.config.epochs == 2
    assert len(made) == 6 and set(made) == {(16 / ROWS, made[0][1])}
    accountant = ExactAccountant()
    accountant.compose(PoissonSampled(rate=16 / ROWS, event=Gaussian(noise_multiplier=made[0][1])), times=6)
    assert accountant.epsilon(delta=1e-3).epsilon == pytest.approx(guarantee.epsilon, rel=1e-3)
    assert len(set(drawn)) > 1  # each record has its own coin, so batches differ in size


def test_the_shuffled_loop_can_never_run_under_the_claim(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    private = wrap_trainer(trainer, config(), selfcheck=False)
    before = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    with pytest.raises(QuietsumError, match="shuffles batches"):
        trainer.train()
    assert all(torch.equal(one, before[name]) for name, one in trainer.model.named_parameters())
    private.train()
    after = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    with pytest.raises(QuietsumError, match="shuffles batches"):
        trainer.train()
    assert all(torch.equal(one, after[name]) for name, one in trainer.model.named_parameters())
    with pytest.raises(QuietsumError, match="run already"):
        private.train()
    rows = [tokenised("GPT-2", ROWS)[place] for place in range(ROWS)]
    labelled = Tokenised([{**row, "labels": row["input_ids"]} for row in rows])
    trained = trainer_of(
        tmp_path, rows=labelled
    )  # the control: a trainer that is not wrapped trains, and cannot be wrapped then
    trained.train()
    with pytest.raises(InvalidParameter, match="has trained already"):
        wrap_trainer(trained, config())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"train_sampling_strategy": "group_by_length"}, "orders batches by the records"),
        ({"train_sampling_strategy": "sequential"}, "orders batches by the records"),
        ({"max_grad_norm": 0.3}, "bounds no record"), ({"num_train_epochs": 1.5}, "no whole number of epochs"),
        ({"max_steps": 7}, "another loop"), ({"label_smoothing_factor": 0.1}, "loss of the model"),
        ({"neftune_noise_alpha": 5.0}, "is not done"), ({"auto_find_batch_size": True}, "begin anew"),
        ({"load_best_model_at_end": True, "eval_strategy": "no"}, "checkpoints"),
        ({"dataloader_drop_last": True}, "leaves records out"),
    ],
)  # fmt: skip
def test_arguments_that_would_change_what_is_done_are_refused(
    tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidParameter, match=said):
        wrap_trainer(trainer_of(tmp_path, **values), config())
    wrap_trainer(trainer_of(tmp_path), config())


def test_half_precision_by_a_scaler_is_refused_and_bfloat_is_taken(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.args.fp16 = True
    with pytest.raises(InvalidParameter, match="which depends on the records"):
        wrap_trainer(trainer, config())
    mixed = trainer_of(tmp_path, bf16=True, num_train_epochs=1)
    assert wrap_trainer(mixed, config(), selfcheck=False).train().epsilon <= 8


def test_a_trainer_with_a_loss_or_a_loader_of_its_own_is_refused(tmp_path: Path) -> None:
    class Own(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            return model(**inputs).loss

    args = transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    rows = tokenised("GPT-2", ROWS)
    with pytest.raises(InvalidParameter, match="compute_loss of its own"):
        wrap_trainer(Own(model=lora(), args=args, train_dataset=rows), config())
    with pytest.raises(InvalidParameter, match="no train_dataset"):
        wrap_trainer(transformers.Trainer(model=lora(), args=args), config())
    with pytest.raises(InvalidParameter, match=r"is no transformers\.Trainer"):
        wrap_trainer(lora(), config())


def test_scores_stand_on_the_evaluation_set_and_early_stopping_keeps_the_whole_price(tmp_path: Path) -> None:
    labelled: Any = Tokenised([
        {**row, "labels": row["input_ids"]} for row in (tokenised("GPT-2", 12)[place] for place in range(12))
    ])  # fmt: skip

    class Stop(transformers.TrainerCallback):  # type: ignore[misc]
        def on_evaluate(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            assert "eval_loss" in given["metrics"]
            control.should_training_stop = True

    trainer = trainer_of(tmp_path, callbacks=[Stop()], eval_strategy="epoch", scored=labelled)
    private = wrap_trainer(trainer, config(), selfcheck=False)
    guarantee = private.train()
    assert trainer.state.global_step == ROWS // 8 and trainer.model.training
    planned = config(epochs=2, batch_size=8, clipping="flat", max_grad_norm=1.0)
    whole = plan_training(planned, size=ROWS)
    assert guarantee.epsilon == pytest.approx(whole.epsilon, rel=0.02)


def test_a_collator_sees_one_record_at_a_time(tmp_path: Path) -> None:
    seen: list[int] = []

    def collate(rows: Any) -> Any:
        seen.append(len(rows))
        return transformers.default_data_collator(rows)

    trainer = trainer_of(tmp_path, num_train_epochs=1)
    trainer.data_collator = collate
    with pytest.warns(UserWarning, match="one record at a time"):
        wrap_trainer(trainer, config(), selfcheck=False).train()
    assert set(seen) == {1}
