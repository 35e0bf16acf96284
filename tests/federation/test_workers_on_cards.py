"""Workers on one card: each is sent the device and its share of the memory, and says clearly where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import quietsum as qs
from federation.crowd import crowd_plan, resolved_crowd
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.federation.workers import crew, keepers, worker
from quietsum.federation.workers.crew import Crew
from quietsum.federation.workers.worker import FirstJob
from quietsum.learning.rows import memory
from quietsum.plan import FederationPlan, Plan, PrivacyPlan, Style, TaskPlan, resolve
from quietsum.tasks import task_of

CARD = "cuda:99"  # no machine has so many
DIGITS = Plan(
    task=TaskPlan(name="digits"),
    federation=FederationPlan(split="iid", parties=3),
    privacy=PrivacyPlan(style=Style.NONE),
)
RUN = """
[task]
name = "heart"
[federation]
rounds = 1
[training]
sample_rate = 0.25
[privacy]
record = { epsilon = 1.0, delta = 1e-5, max_grad_norm = 0.5 }
"""


class Reached(Exception):
    """Carries what got to the place where a test stops."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found


class Telling:
    """In the place of a process: its first job is raised."""

    process = None

    def __init__(self, *given: Any) -> None:
        pass

    def send(self, job: Any) -> None:
        raise Reached(job)

    def end(self) -> None:
        pass


def test_workers_and_the_process_that_starts_them_never_take_more_than_the_card_has() -> None:
    _, resolved = resolved_crowd(crowd_plan("CrowdTask"))
    for workers in (1, 2, 7, 64):
        share = FirstJob.of(resolved, "cuda", workers).share
        assert share > 0 and share * (workers + 1) < 0.96


def test_a_worker_process_is_sent_the_device_and_says_that_it_has_no_such_card() -> None:
    task = task_of(DIGITS)
    resolved = resolve(DIGITS, task.parties(), task.dimension)
    with pytest.raises(QuietsumError, match=r"cannot start: device = 'cuda:99' is not there: torch finds no .*card"):
        Crew(resolved, workers=1, device=CARD)


def test_crews_and_keepers_send_the_device_and_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    _, resolved = resolved_crowd(crowd_plan("CrowdTask"))
    sent = FirstJob.of(resolved, "cuda:1", 3)
    monkeypatch.setattr(crew, "Worker", Telling)
    monkeypatch.setattr(crew, "_end_all", lambda processes: None)
    with pytest.raises((Reached, AttributeError)) as told:
        Crew(resolved, workers=3, device="cuda:1")
    assert _job_of(told.value) == sent
    monkeypatch.setattr(keepers, "Worker", Telling)
    with pytest.raises(Reached) as told:
        keepers._Trainer(sent, ("nothing",), 1.0)
    assert told.value.found == sent


def _job_of(error: BaseException | None) -> Any:
    while error is not None:
        if isinstance(error, Reached):
            return error.found
        error = error.__context__
    return None


def test_a_worker_makes_its_task_there_and_with_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(plan: Any, **named: Any) -> Any:
        raise Reached(named)

    monkeypatch.setattr("quietsum.tasks.task_of", make)
    _, resolved = resolved_crowd(crowd_plan("CrowdTask"))
    with pytest.raises(Reached) as told:
        worker._enlist(FirstJob(resolved=resolved, device="cuda:1", share=0.2))
    assert told.value.found == {"device": "cuda:1", "share": 0.2}


def test_the_share_is_set_before_the_model_is_on_the_card_and_never_for_a_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def limit(share: float, device: torch.device) -> None:
        asked.append((share, device))
        raise Reached(device)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", limit)
    with pytest.raises(Reached):
        task_of(DIGITS, device="cuda:0", share=0.25)
    assert asked == [(0.25, torch.device("cuda:0"))]
    assert task_of(DIGITS, share=0.25).dimension == 4810 and len(asked) == 1
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(InvalidParameter, match="share"):
            task_of(DIGITS, device="cuda:0", share=share)


def test_a_process_with_a_share_knows_of_no_more_than_is_free_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    card, gibibyte = torch.device("cuda:3"), 2**30
    held = [0]
    monkeypatch.setattr(memory, "_LIMITS", {})
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (90 * gibibyte, 100 * gibibyte))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: held[0])
    assert memory.free_memory(card) == 90 * gibibyte
    memory.limit_memory(card, 0.25)
    assert memory.free_memory(card) == 25 * gibibyte and memory.free_memory(torch.device("cuda:2")) == 90 * gibibyte
    held[0] = 20 * gibibyte
    assert memory.free_memory(card) == 5 * gibibyte
    held[0] = 30 * gibibyte
    assert memory.free_memory(card) == 0 == memory.free_memory(torch.device("cpu"))


@pytest.mark.parametrize("secure", [False, True])
def test_a_run_hands_its_device_to_the_workers(secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(resolved: Any, **named: Any) -> Any:
        raise Reached(named)

    module, name = (keepers, "Keepers") if secure else (crew, "Crew")
    monkeypatch.setattr(module, name, make)
    plan = RUN + "[aggregation]\nsecure = true\n" if secure else RUN
    with pytest.raises(Reached) as told:
        qs.run(plan, workspace=tmp_path, workers=2, device="cpu:0")
    assert told.value.found == {"workers": 2, "device": "cpu:0"}
