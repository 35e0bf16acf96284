"""Beside training: callbacks, early stopping on public scores, a bar and a log. None of them moves a charge."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quietsum.alerts.rules import Course
from quietsum.errors import InvalidParameter
from quietsum.learning.callbacks import EarlyStopping, Screen, StopTraining, as_callbacks
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.saving import read_model_header
from quietsum.learning.trainer import Epoch, PrivateTrainer

ROWS = 80


def records() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(ROWS) % 2
    return torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 3.0 * labels[:, None], labels


def trainer(**values: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    config = PrivacyConfig(epsilon=3.0, epochs=6, batch_size=40, noise="fast", ema_decay=0.5)
    return PrivateTrainer(nn.Linear(3, 2), config, selfcheck=False, **values)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# ------------------------------------------------------------------------------------------------------ callbacks


def test_callbacks_hear_of_each_epoch_in_their_order() -> None:
    heard: list[tuple[str, int]] = []
    made = trainer(watch=lambda epoch: heard.append(("watch", epoch.epoch)))
    both = [lambda epoch: heard.append(("a", epoch.epoch)), lambda epoch: heard.append(("b", epoch.epoch))]
    assert made.train(records(), callbacks=both).stopped == "finished"
    assert heard == [(name, number) for number in range(1, 7) for name in ("watch", "a", "b")]


def stop_at(number: int, error: BaseException) -> Any:
    def callback(epoch: Epoch) -> None:
        if epoch.epoch == number:
            raise error

    return callback


def test_a_run_that_is_stopped_early_keeps_its_model_and_the_whole_plan_s_guarantee() -> None:
    whole = trainer()
    whole.train(records())
    made = trainer()
    history = made.train(records(), callbacks=stop_at(2, StopTraining("enough")))
    assert history.stopped == "early" and len(history.epochs) == 2
    assert history.guarantee.epsilon == whole.guarantee().epsilon  # not the smaller ε of two epochs
    assert made.get_privacy_spent()[0] < history.guarantee.epsilon
    assert made.train(records()).stopped == "finished"  # what is left can be made later


def test_a_stop_after_the_last_epoch_is_no_early_one() -> None:
    assert trainer().train(records(), callbacks=stop_at(6, StopTraining())).stopped == "finished"


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_an_error_in_a_callback_loses_neither_charge_nor_model(tmp_path: Path, error: BaseException) -> None:
    made = trainer(workspace=tmp_path, run="one")
    with pytest.raises(type(error)):
        made.train(records(), callbacks=stop_at(2, error))
    made.close()
    about = read_model_header(tmp_path / "training" / "one" / "model.safetensors")
    assert about["charged_steps"] == 4 and about["guarantee"]["epsilon"] == made.guarantee().epsilon > 2.9
    again = trainer(workspace=tmp_path, run="one")
    history = again.train(records(), resume=True)
    again.close()
    assert history.lost_steps == 0 and [epoch.epoch for epoch in history.epochs] == [3, 4, 5, 6]


@pytest.mark.parametrize("wrong", [3, "abc", EarlyStopping, [EarlyStopping]])
def test_what_cannot_be_called_is_refused_before_any_charge(wrong: Any) -> None:
    with pytest.raises(InvalidParameter, match=r"callbacks = .*cannot be called with an Epoch"):
        as_callbacks(wrong)


# ------------------------------------------------------------------------------------------------- early stopping


def test_patience_counts_epochs_without_a_better_score() -> None:
    falling = EarlyStopping("val_loss", patience=2, least=0.1)
    assert [falling.is_done({"val_loss": v}) for v in (1.0, 0.95, 0.8, 0.85, 0.75)] == [
        False,
        False,
        False,
        False,
        True,
    ]
    rising = EarlyStopping("accuracy", patience=1)
    assert [rising.is_done({"accuracy": v}) for v in (0.5, 0.6, 0.6)] == [False, False, True]
    turned = EarlyStopping("accuracy", patience=1, lower_is_better=True)
    assert [turned.is_done({"accuracy": v}) for v in (0.6, 0.5, 0.6)] == [False, False, True]
    lost = EarlyStopping("loss", patience=2)
    assert [lost.is_done({"loss": v}) for v in (float("nan"), float("nan"))] == [False, True]


def test_early_stopping_ends_a_run_on_public_scores_and_begins_anew_in_the_next() -> None:
    patient = EarlyStopping("flat", patience=2)
    for _ in range(2):
        made = trainer(metrics=lambda model: {"flat": 1.0})
        history = made.train(records(), callbacks=patient)
        assert history.stopped == "early" and len(history.epochs) == 3
    rising = iter(range(100))
    made = trainer(metrics=lambda model: {"rises": float(next(rising))})
    assert made.train(records(), callbacks=EarlyStopping("rises", patience=1)).stopped == "finished"


@pytest.mark.parametrize(("options", "told"), [
    ({}, "pass records that need no protection"), ({"metrics": lambda model: {"auc": 1.0}}, "choose one of: auc"),
])  # fmt: skip
def test_early_stopping_without_its_public_score_is_refused_before_any_charge(
    options: dict[str, Any], told: str
) -> None:
    made = trainer(**options)
    with pytest.raises(InvalidParameter, match=told):
        made.train(records(), callbacks=EarlyStopping("accuracy"))
    assert made.plan is None


def test_an_alert_says_that_a_run_was_stopped_early() -> None:
    (told,) = Course(run="one").end("early", reason="loss has not got better for 2 epochs")
    assert "stopped early: loss has not got better" in told.sentence


# -------------------------------------------------------------------------------------------------- bar and log


def test_a_terminal_has_a_bar_with_the_time_left_and_keeps_the_last_line() -> None:
    now = iter(float(second) for second in range(100))
    screen = Screen(None, 4, stream=(out := Terminal()), clock=lambda: next(now))
    for number in range(1, 5):
        screen.step()
        screen.epoch(f"epoch {number}/4 · ε {number}")
    screen.end()
    drawn = [part.rstrip() for part in out.getvalue().split("\r")]
    assert "━━━━━─────" in drawn[4] and "left · epoch 2/4 · ε 2" in drawn[4]
    assert drawn[-1] == "epoch 4/4 · ε 4" and max(map(len, drawn)) <= 80


@pytest.mark.parametrize(("wanted", "terminal", "shown"), [
    (None, False, ""), (False, False, ""), (False, True, ""), (True, False, "epoch 1\nepoch 2\n"),
])  # fmt: skip
def test_without_a_terminal_there_are_plain_lines_if_they_are_wanted(wanted: Any, terminal: bool, shown: str) -> None:
    screen = Screen(wanted, 2, stream=(out := Terminal() if terminal else io.StringIO()))
    for number in (1, 2):
        screen.step()
        screen.epoch(f"epoch {number}")
    screen.end()
    assert out.getvalue() == shown


def test_a_stream_that_is_gone_stops_no_training() -> None:
    out = Terminal()
    screen = Screen(True, 1, stream=out)
    out.isatty = lambda: True  # type: ignore[method-assign]
    out.close()
    screen.step()
    screen.epoch("epoch 1")
    screen.end()


def test_the_trainer_shows_lines_on_request_and_logs_every_epoch_with_its_seconds(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="quietsum.learning"):
        trainer().train(records(), progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6 and lines[5].startswith("epoch 6/6 · ε 3.00 of 3 per record")
    told = [record.getMessage() for record in caplog.records if record.name == "quietsum.learning.trainer"]
    assert "12 steps, noise multiplier" in told[0] and all(line.endswith(" s)") for line in told[1:7])
    trainer().train(records())
    assert capsys.readouterr().err == ""
