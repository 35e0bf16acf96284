"""The planner says what the product's own plan says, refuses what it refuses, and gives up what would take long."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from quietsum.errors import PlanRefused
from quietsum.plan import (
    FederationPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    TrainingPlan,
    predict,
    resolve,
)
from quietsum.web import thinking
from quietsum.web.pages.planner import SLIDERS, work_out
from quietsum.web.thinking import Thinker
from web.places import look, view_of_app

PLACES = {one.name: one for one in SLIDERS}


def query(**chosen: float) -> dict[str, int]:
    """The places of the sliders for these values."""
    return {name: PLACES[name].values.index(value) + 1 for name, value in chosen.items()}


def plan_of(*, epsilon: float, delta: float, rate: float, rounds: int, clip: float) -> Plan:
    return Plan(
        federation=FederationPlan(rounds=rounds), training=TrainingPlan(local_steps=1, sample_rate=rate),
        privacy=PrivacyPlan(record=RecordPlan(epsilon=epsilon, delta=delta, max_grad_norm=clip)),
    )  # fmt: skip


def ask(client: TestClient, style: str = "record", **chosen: float) -> str:
    answer = client.get("/planner/answer", params={"style": style, **query(**chosen)})
    assert answer.status_code == 200
    return html.unescape(answer.text)


@pytest.mark.parametrize(("epsilon", "rate", "rounds"), [(1.0, 0.05, 20), (3.0, 0.2, 100), (0.2, 1.0, 5)])
def test_noise_and_forecast_are_the_plans_own(tmp_path: Path, epsilon: float, rate: float, rounds: int) -> None:
    parties = [PartyFacts(name=f"party-{n}", dataset=f"data-{n}", size=1000) for n in range(1, 5)]
    resolved = resolve(plan_of(epsilon=epsilon, delta=1e-5, rate=rate, rounds=rounds, clip=1.0), parties, 1000)
    with look(tmp_path) as client:
        text = ask(client, epsilon=epsilon, delta=1e-5, rate=rate, rounds=rounds, clip=1.0, parties=4, records=1000)
    told = predict(resolved)
    assert f"<dd>{resolved.noise_multiplier:.4g}</dd>" in text
    assert told is not None and told.sentence in text
    assert f"ε ≤ {epsilon:g} per record" in text


def test_the_curve_moves_with_the_slider(tmp_path: Path) -> None:
    with look(tmp_path) as client:
        pictures = {ask(client, epsilon=epsilon).split("<svg")[2] for epsilon in (0.5, 1.0, 2.0)}
    assert len(pictures) == 3


def test_a_refusal_is_the_plans_own_sentence(tmp_path: Path) -> None:
    parties = [PartyFacts(name=f"party-{n}", dataset=f"data-{n}", size=1000) for n in range(1, 5)]
    with pytest.raises(PlanRefused) as refused:
        resolve(plan_of(epsilon=1.0, delta=1e-3, rate=0.05, rounds=20, clip=1.0), parties, 1000)
    with look(tmp_path) as client:
        text = ask(client, delta=1e-3)
    assert "This plan would be refused." in text and "<svg" not in text
    for line in str(refused.value).splitlines():
        assert line.strip() in text


def test_clients_and_records_are_different_questions(tmp_path: Path) -> None:
    with look(tmp_path) as client:
        text = ask(client, "client", delta=1e-5, parties=1000)
        few = ask(client, "client", delta=1e-5, parties=4)
    assert "per client" in text and "per record" not in text
    assert few != text


def test_the_ends_of_sliders_have_an_answer_in_words_or_numbers(tmp_path: Path) -> None:
    with look(tmp_path) as client:
        for slider in (one for one in SLIDERS if one.name not in ("epsilon", "rate")):  # take seconds
            for value in (slider.values[0], slider.values[-1]):
                text = ask(client, "record", **{slider.name: value})
                assert ("What it costs" in text) != ("would be refused" in text), (slider.name, value)
                assert "nan" not in text.lower()


def test_sliders_have_round_values_in_order_and_a_start_among_them() -> None:
    for slider in SLIDERS:
        assert list(slider.values) == sorted(set(slider.values), reverse=slider.name == "delta")
        assert slider.start in slider.values and len(slider.values) < 64
        assert len({slider.text(value) for value in slider.values}) == len(slider.values)


def test_the_same_question_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def note(style: str, places: tuple[int, ...]) -> dict[str, object]:
        asked.append(places)
        return work_out(style, places)

    with look(tmp_path) as client:
        monkeypatch.setattr(view_of_app(client).thinker, "ask", note)
        assert len({ask(client, epsilon=0.5) for _ in range(3)}) == 1
    assert len(asked) == 1


def test_an_answer_that_takes_long_is_given_up_and_the_next_one_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with look(tmp_path, beside=True) as client:
        assert "What it costs" in ask(client)
        process = view_of_app(client).thinker._process
        monkeypatch.setattr(thinking, "PATIENCE", 0.0)
        assert "takes longer" in ask(client, epsilon=2.0)
        assert process is not None and process.poll() is not None
        monkeypatch.undo()
        assert "What it costs" in ask(client, epsilon=3.0)
        other = view_of_app(client).thinker._process
    assert other is not None and other.pid != process.pid and other.poll() is not None  # ended with the dashboard


def test_more_questions_than_may_wait_are_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr(thinking, "MOST", 0)
    thinker = Thinker()
    thinker._waiting = threading.BoundedSemaphore(1)
    thinker._waiting.acquire()
    with pytest.raises(thinking.Busy):
        thinker.ask("record", (0,))
