"""A crew of worker processes: the same sums, whatever becomes of a worker, and no process is left behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.crowd import crowd_plan, expected_sum, resolved_crowd
from federation.test_local import Heard, plain, request
from quietsum.errors import QuietsumError
from quietsum.federation.local import LocalFederation
from quietsum.federation.messages import Lost, Sums
from quietsum.federation.workers.crew import Crew


@contextmanager
def crew(*, workers: int = 2, patience: float = 60.0, kind: str = "CrowdTogether", **changes: Any) -> Iterator[Crew]:
    _, resolved = resolved_crowd(crowd_plan(kind, **changes))
    with Crew(resolved, workers=workers, patience=patience) as made:
        yield made


def alive(process: int) -> bool:
    """Whether the process still runs; one that ended and is not yet waited for does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends(process: int, seconds: float = 300.0) -> bool:
    until = time.monotonic() + seconds
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(process)


linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")


def test_the_sums_of_a_crew_are_those_of_one_process_and_workers_are_kept() -> None:
    with crew() as made:
        before = made.processes
        for number in (1, 2, 3):
            heard = Heard(made, number=number)
            assert not heard.reasons and len(heard.kept) == 20
            np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))
            assert [type(reply) for reply in heard.replies] == [Sums, Sums]
        assert made.processes == before and len(set(before)) == 2
        again = Heard(made, number=3)
        assert not again.kept and all("answered before" in reason for reason in again.reasons.values())


def test_what_a_task_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with crew(fault="print") as made:
        assert len(Heard(made).kept) == 20
    captured = capfd.readouterr()
    assert "hello from a task" in captured.err and "its C code" in captured.err and not captured.out


def test_a_task_that_wants_to_end_its_worker_loses_one_client_and_no_worker() -> None:
    with crew(kind="CrowdTask", clients=32, fault="exit") as made:
        before = made.processes
        heard = Heard(made)
        assert heard.reasons == {"c003": "its work failed (SystemExit)"} and made.processes == before
        np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))


def test_when_a_worker_dies_one_client_is_lost_and_the_next_round_is_whole() -> None:
    with crew(kind="CrowdTask", clients=32, fault="die") as made:
        before = made.processes
        heard = Heard(made)
        assert heard.reasons == {"c003": "its worker process failed (EOFError)"} and not heard.refused
        np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))
        assert len(made.processes) == 2 and made.processes != before
        again = Heard(made)  # the new worker knows nothing of the first answer, but the crew does
        assert not again.kept
        assert len(Heard(made, number=2).kept) == len(heard.kept)


def test_a_worker_that_died_between_rounds_is_replaced_before_it_is_missed() -> None:
    with crew() as made:
        assert len(Heard(made).kept) == 20
        os.kill(made.processes[0], signal.SIGKILL)
        assert ends(made.processes[0])
        heard = Heard(made, number=2)
        assert len(heard.kept) == 20 and not heard.reasons


@pytest.mark.long
def test_a_worker_that_hangs_is_given_up() -> None:
    with crew(fault="hang", patience=5.0) as made:
        heard = Heard(made)
        assert heard.reasons == {"c003": "its worker was silent for 5 s"}
        np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))


@pytest.mark.long
def test_the_deadline_of_the_plan_is_counted_for_each_client() -> None:
    with crew(kind="CrowdTask", fault="hang", patience=12.0, federation={"deadline": 5.0}) as made:
        heard = Heard(made)
        assert made.counts_deadline and heard.reasons == {"c003": "it had not replied by the deadline of 5 s"}
        np.testing.assert_array_equal(heard.total, expected_sum(heard.kept))


def test_faults_of_single_clients_stay_with_them() -> None:
    for fault in ("raise", "nan"):
        with crew(fault=fault, workers=1) as made:
            assert set(Heard(made).reasons) == {"c003"}


class Unspeakable:
    """A fold that cannot travel."""

    needs_individuals = False

    def __reduce__(self) -> str:
        raise pickle.PicklingError("it stays here")


def test_a_message_that_cannot_be_sent_loses_the_round_and_not_the_crew() -> None:
    with crew() as made:
        before = made.processes
        heard = Heard(made, Unspeakable())
        assert len(heard.reasons) == 20 and "PicklingError" in heard.reasons["c000"]
        assert made.processes == before  # no worker is to blame
        assert len(Heard(made, number=2).kept) == 20


@linux
def test_every_process_is_ended_also_where_a_round_is_left_in_the_middle() -> None:
    with crew(fault="hang") as made:
        processes = made.processes
        replies = made.ask(request(), made.registered(), plain(made.registered()))
        assert isinstance(next(iter(replies)), Sums | Lost)
        replies.close()  # type: ignore[attr-defined]
        processes += made.processes
        assert sum(map(alive, set(processes))) == 1  # the one that hung is gone, the idle one stays
    made.close()  # a second time does nothing
    assert all(ends(process) for process in processes)


@linux
def test_a_crew_that_is_forgotten_ends_its_workers() -> None:
    _, resolved = resolved_crowd(crowd_plan())
    made = Crew(resolved, workers=2)
    processes = made.processes
    assert all(map(alive, processes))
    del made
    assert all(ends(process) for process in processes)


ROUND_THAT_HANGS = """
import signal, sys
from federation.crowd import crowd_plan, resolved_crowd
from federation.test_local import plain, request
from quietsum.federation.workers.crew import Crew
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
crew = Crew(resolved_crowd(crowd_plan(fault="hang"))[1], workers=2)
try:
    print(*crew.processes, flush=True)
    list(crew.ask(request(), crew.registered(), plain(crew.registered())))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""


@linux
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_and_sudden_death_leave_no_worker_behind(ending: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", ROUND_THAT_HANGS], stdout=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        workers = [int(number) for number in process.stdout.readline().split()]
        assert len(workers) == 2 and all(map(alive, workers))
        time.sleep(0.5)
        if ending is signal.SIGINT:
            os.killpg(process.pid, ending)  # as a terminal does it: to the workers, too
        else:
            os.kill(process.pid, ending)
        assert all(ends(worker) for worker in workers)
        assert process.wait(300) is not None
        if ending is signal.SIGINT:
            assert process.stdout.read() == "stopped\n"
    finally:
        process.kill()
        process.wait()


def test_a_task_that_a_worker_cannot_make_is_an_error_before_anything_is_asked() -> None:
    _, resolved = resolved_crowd(crowd_plan())
    for command in ((sys.executable, "-c", "pass"), (sys.executable, "-c", "print('hello')")):
        with pytest.raises(QuietsumError, match="cannot start"):
            Crew(resolved, workers=2, command=command)
    changed = crowd_plan(clients=20)
    task, resolved = resolved_crowd(changed)
    object.__setattr__(changed.task, "options", {"clients": 3})
    with pytest.raises(QuietsumError, match="other parties"):
        Crew(resolved, workers=1)
    object.__setattr__(changed.task, "options", {"colour": "red"})
    with pytest.raises(QuietsumError, match="colour"):
        LocalFederation.of(task, resolved, workers=2)
