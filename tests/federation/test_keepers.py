"""Secure rounds with worker processes: the same sums, keys that outlive a task's crash, a parent that saw nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from federation.marking import DIMENSION, NAMES, Marking, marker
from federation.masked import CLIENTS, NONE, Losing, Watched, secure_plan
from federation.memory import patterns, scan
from federation.test_crew import ends
from quietsum.errors import PlanRefused, QuietsumError, TooFewParties
from quietsum.federation.local import LocalFederation
from quietsum.federation.workers.keepers import Keepers
from quietsum.party.secure import contribution_of
from quietsum.plan import Plan, resolve
from quietsum.secagg import Step

Floats = NDArray[np.float64]
linux = pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="reads memory through /proc")


def plan_of(privacy: Any = NONE, *, secure: bool = True, fault: str = "", **tables: Any) -> Plan:
    public = "" if "client" in privacy else "made up"
    task = {"name": "federation.marking:Marking", "options": {"fault": fault, "public": public}}
    aggregation = {"weights": "equal", **tables.pop("aggregation", {})}
    return secure_plan(privacy, secure=secure, task=task, aggregation=aggregation, **tables)


@contextmanager
def keepers(folder: Path, plan: Plan, *, workers: int = 2, **options: Any) -> Iterator[Watched]:
    made: list[Keepers] = []

    def federation(task: Any, resolved: Any) -> Any:
        made.append(Keepers(resolved, workers=workers, **options))
        return made[0]

    def task(**given: Any) -> Marking:
        return Marking(**dict(plan.task.options))

    try:
        yield Watched(folder, plan, task=task, federation=federation, wrap=Losing)
    finally:
        for one in made:
            one.close()


def mean(names: Any = NAMES) -> Floats:
    return np.mean([marker(name) for name in names], axis=0)


def test_the_sum_of_keepers_is_the_mean_of_all_parties_round_after_round(tmp_path: Path) -> None:
    with keepers(tmp_path, plan_of()) as world:
        before = world.federation.processes
        for number in (1, 2):
            start = world.state.params
            assert set(world.round(number).kept) == set(NAMES)
            np.testing.assert_allclose(world.state.params - start, mean(), atol=1e-6)
        assert world.federation.processes == before and len(before) == 2


def test_a_sum_in_a_smaller_ring_is_the_same_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotated vectors are longer than the model; the noise is large, so that only its size can be looked at."""
    plan = plan_of(CLIENTS, aggregation={"bits": 16})
    with keepers(tmp_path, plan, workers=2) as world:
        start = world.state.params
        assert set(world.round().kept) == set(NAMES)
        how = contribution_of(world.resolved, 1)
        spread = how.noise.deviation(4) / world.resolved.divisor(NAMES)  # type: ignore[attr-defined]
        assert abs(np.std(world.state.params - start - mean()) / spread - 1) < 0.2


def test_the_local_federation_with_workers_is_one_of_keepers() -> None:
    plan = plan_of()
    task = Marking()
    resolved = resolve(plan, task.parties(), DIMENSION)
    made = LocalFederation.of(task, resolved, workers=2)
    try:
        assert isinstance(made, Keepers)
        with pytest.raises(PlanRefused, match="no party is asked for its update"):
            list(made.ask(None, (), None))  # type: ignore[arg-type]
    finally:
        made.close()
    children = made.processes
    assert not children


@pytest.mark.parametrize("fault", ["die", "raise"])
def test_a_task_that_ends_its_process_adds_noise_alone_and_takes_nobody_along(tmp_path: Path, fault: str) -> None:
    with keepers(tmp_path, plan_of(CLIENTS, fault=fault), workers=1) as world:
        before = world.federation.processes
        assert set(world.round().kept) == set(NAMES)
        assert not world.dropped and not world.silent and world.federation.processes == before


@pytest.mark.slow
def test_a_task_that_hangs_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    plan = plan_of(CLIENTS, fault="hang", federation={"rounds": 3, "spare_attempts": 5, "deadline": 1.0})
    with keepers(tmp_path, plan) as world:
        assert set(world.round().kept) == set(NAMES) and not world.dropped


def test_without_a_promise_the_one_that_failed_is_left_out_by_the_kind_of_it(tmp_path: Path) -> None:
    with keepers(tmp_path, plan_of(fault="die")) as world:
        start = world.state.params
        assert set(world.round().kept) == set(NAMES) - {"south"}
        np.testing.assert_allclose(world.state.params - start, mean([n for n in NAMES if n != "south"]), atol=1e-6)
        assert "its worker process failed" in world.dropped["south"].reason


@pytest.mark.slow
@linux
@pytest.mark.long
def test_a_keeper_that_is_killed_takes_its_parties_out_of_one_round(tmp_path: Path) -> None:
    with keepers(tmp_path, plan_of(), workers=4) as world:
        victim, killed = world.federation.processes[0], list[int]()

        def kill(step: Step, word: Any) -> Any:
            if step is Step.ROSTER and word.party != "east" and not killed:
                killed.append(victim)
                os.kill(victim, signal.SIGKILL)
                ends(victim)
            return word

        world.federation.spoil = kill
        found = world.round(1)
        world.federation.spoil = lambda step, word: word
        assert set(found.kept) == set(NAMES) - {"east"} and "worker process" in world.dropped["east"].reason
        assert set(world.round(2).kept) == set(NAMES)
        assert len(set(world.federation.processes)) == 4


@linux
def test_no_process_is_left_behind(tmp_path: Path) -> None:
    with keepers(tmp_path, plan_of()) as world:
        world.round()
        every = {*world.federation.processes, *children(world.federation.processes)}
        assert len(every) == 4
    assert all(ends(process) for process in every)


def children(processes: Any) -> list[int]:
    found = []
    for process in processes:
        for task in Path(f"/proc/{process}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    return found


def test_too_few_keepers_are_too_few_parties(tmp_path: Path) -> None:
    plan = plan_of(federation={"rounds": 3, "spare_attempts": 5, "simulate": {"refusing": ["east", "west"]}})
    with keepers(tmp_path, plan) as world, pytest.raises(TooFewParties, match="2 of 4 parties were left"):
        world.round()


def test_a_task_that_no_worker_can_make_is_heard_of_at_once() -> None:
    plan = plan_of()
    resolved = resolve(plan, Marking().parties(), DIMENSION + 1)
    with pytest.raises(QuietsumError, match=f"{DIMENSION} parameters"):
        Keepers(resolved, workers=2)


# ----------------------------------------------------------------------------------------------------- memory


RUN = """
import pickle, sys, tempfile
from pathlib import Path
from federation.test_keepers import plan_of
from federation.masked import Watched
from federation.marking import Marking
from quietsum.federation.local import LocalFederation
secure = sys.argv[1] == "secure"
plan = plan_of(secure=secure)
folder = Path(sys.argv[2])
world = Watched(folder, plan, task=lambda **given: Marking(**dict(plan.task.options)),
    federation=lambda task, resolved: LocalFederation.of(task, resolved, workers=2))
held = []
if not secure:  # the control: a server that looks at what it is sent, and keeps it
    take = world.federation.ask
    def ask(*args):
        for reply in take(*args):
            held.append(reply)
            yield reply
    world.federation.ask = ask
world.round(1)
print("done", flush=True)
sys.stdin.readline()
world.federation.close()
"""


@pytest.mark.slow
@linux
def test_the_memory_of_the_coordinator_holds_no_unmasked_vector(tmp_path: Path) -> None:
    """A coordinator process of its own; its memory is read while it still runs, and so are all files that it wrote."""
    here = str(Path(__file__).parents[1])
    found, files = {}, {}
    wanted = patterns(resolve(plan_of(), Marking().parties(), DIMENSION))
    for mode in ("secure", "plain"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])}
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, mode, str(tmp_path / mode)], cwd=here, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline().strip() == "done"
            found[mode] = scan(process.pid, wanted)
        finally:
            process.communicate("\n", timeout=60)
        files[mode] = b"".join(path.read_bytes() for path in sorted((tmp_path / mode).rglob("*")) if path.is_file())
    assert not found["secure"]
    assert not any(pattern in files["secure"] for pattern in wanted.values())
    assert len(found["plain"]) == len(NAMES), "the control: without masks a coordinator holds what it was sent"
