"""A trainer's alerts: budgets and scores, never a training record, and never at the cost of an epoch."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from quietsum.alerts import Alert, AlertKind as Kind, Alerts, Audience, AuditLog, Limits, Sender, Severity, Thresholds
from quietsum.errors import BudgetExhausted, InvalidParameter
from quietsum.learning.config import PrivacyConfig
from quietsum.learning.trainer import PrivateTrainer
from quietsum.mechanisms.rng import randomness_for_tests


class Inbox:
    """A sink that keeps what it gets."""

    waits = limited = False
    least = Severity.NOTICE

    def __init__(self, audience: Audience = Audience.OPERATOR) -> None:
        self.name, self.audience, self.got = "an inbox", audience, list[Alert]()

    def send(self, alert: Alert, held_back: int) -> None:
        self.got.append(alert)

    @property
    def kinds(self) -> list[Kind]:
        return [alert.kind for alert in self.got if alert.severity is not Severity.NOTICE]


def records(count: int = 400, far: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    return torch.randn(count, 3, generator=generator) + far * labels[:, None], labels


def trainer(alerts: Alerts | None, **more: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    config = PrivacyConfig(
        **{"epsilon": 4.0, "epochs": 6, "batch_size": 40, "max_grad_norm": 0.5, **more.pop("config", {})}
    )
    return PrivateTrainer(model, config, selfcheck=False, alerts=alerts, **more)


def followed(rules: Thresholds | None = None, audience: Audience = Audience.OPERATOR) -> tuple[Alerts, Inbox]:
    inbox = Inbox(audience)
    return Alerts(Sender([inbox]), rules), inbox


def test_a_healthy_training_raises_no_alert() -> None:
    alerts, inbox = followed()
    history = trainer(alerts).train(records(), records(100), learning_rate=1.0)
    assert history.metrics["accuracy"] > 0.9
    assert inbox.kinds == [] and [one.kind for one in inbox.got] == [Kind.BUDGET_LOW, Kind.RUN_ENDED]
    assert inbox.got[0].severity is Severity.NOTICE and inbox.got[0].round == 4


def test_a_model_that_knows_nothing_and_one_that_gets_worse_are_told() -> None:
    alerts, inbox = followed()
    trainer(alerts).train(records(), records(100, far=0.0), learning_rate=1.0)
    assert inbox.kinds == [Kind.CHANCE]
    alerts, inbox = followed()
    inputs, labels = records()
    worse = trainer(alerts)
    with torch.no_grad():  # it begins as a good model, and learns the opposite
        worse.model.get_parameter("weight").copy_(torch.tensor([[-1.0] * 3, [1.0] * 3]))
        worse.model.get_parameter("bias").copy_(torch.tensor([4.5, -4.5]))
    worse.train((inputs, 1 - labels), records(100), learning_rate=2.0)
    assert inbox.kinds[0] is Kind.DIVERGENCE and Kind.CHANCE in inbox.kinds


class Explosive:
    """An optimizer that throws the weights away."""

    def bind(self, parameters: Any) -> Any:
        self.parameters = parameters
        return self

    def step(self, gradient: Any, *, learning_rate: float, noise_variance: float) -> None:
        with torch.no_grad():
            self.parameters[0].fill_(float("inf"))


def test_weights_that_overflow_are_a_divergence() -> None:
    alerts, inbox = followed()
    with pytest.raises(InvalidParameter, match="overflow"):
        trainer(alerts).train(records(), optimizer=Explosive())
    assert inbox.kinds == [Kind.DIVERGENCE]


def test_a_budget_that_cuts_a_training_short_and_one_that_is_gone_are_told(tmp_path: Path) -> None:
    with Alerts.at(tmp_path) as alerts:
        inbox = Inbox()
        alerts._sender.add(inbox)
        short = {"epsilon": 1.5, "epochs": 200, "noise_multiplier": 1.0}
        first = trainer(alerts, config=short, workspace=tmp_path, run="first")
        history = first.train(records(), learning_rate=0.1)
        assert history.stopped == "budget"
        first.close()
        assert Kind.BUDGET_LOW in inbox.kinds and inbox.kinds[-1] is Kind.BUDGET_GONE
        low = next(one for one in inbox.got if one.kind is Kind.BUDGET_LOW and one.severity is Severity.WARNING)
        assert (low.subject, low.threshold) == ("here", 0.8) and "training-records" in low.sentence
        with pytest.raises(BudgetExhausted):
            trainer(alerts, workspace=tmp_path, run="second").train(records(), learning_rate=0.1)
        assert inbox.got[-1].run == "second" or inbox.got[-1].kind is Kind.BUDGET_GONE
    log = AuditLog(tmp_path / "alerts.log")
    assert log.verify() > 3 and {"training-started", "training-finished", "alert"} <= {one.event for one in log.lines()}


def test_others_hear_numbers_that_are_charged_or_public() -> None:
    alerts, inbox = followed(audience=Audience.OTHERS)
    trainer(alerts, party="Basel", dataset="visits").train(records(), records(100, far=0.0), learning_rate=1.0)
    assert [one.kind for one in inbox.got] == [Kind.BUDGET_LOW, Kind.CHANCE, Kind.RUN_ENDED]
    assert "Basel" not in json.dumps([one.to_dict() for one in inbox.got])


@pytest.mark.parametrize("how", ["raise", "hang", "look"])
def test_whatever_goes_wrong_with_alerts_no_bit_of_a_training_changes(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    let_go = threading.Event()

    class Broken(Inbox):
        waits = how == "hang"

        def send(self, alert: Alert, held_back: int) -> None:
            super().send(alert, held_back)
            if how == "hang":
                let_go.wait(60)
            raise OSError(28, "No space left on device")

    sink = Broken()
    alerts = Alerts(Sender([sink], limits=Limits(patience=0.1)))
    if how == "look":
        monkeypatch.setattr(alerts._course.__class__, "round", lambda *given: 1 / 0)
    found = []
    for one in (alerts, None):
        made = trainer(one, rng=randomness_for_tests(3))
        made.train(records(), records(100), learning_rate=1.0)
        found.append(torch.cat([parameter.flatten() for parameter in made.model.parameters()]))
    alerts.close()
    let_go.set()
    assert torch.equal(*found) and sink.got  # the control: the sink was asked
