"""Secure rounds over a real SuperLink with TLS and node keys: kills of either side, and what memory holds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federation.marking import DIMENSION, NAMES, Marking, marker
from federation.memory import patterns, scan
from quietsum.ledger import Kind, Ledger
from quietsum.plan import Plan, load_plan, resolve
from quietsum.runs.checkpoint import read_model
from quietsum.runs.folder import Workspace

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow

PLAN = """
[task]
name = "federation.marking:Marking"
[federation]
rounds = {rounds}
deadline = 300.0
[training]
sample_rate = 0.5
local_steps = 1
[privacy]
style = "none"
[aggregation]
weights = "equal"
"""
SECURE = PLAN + "secure = true\ndrop_outs = 0.25\n"
TESTS = Path(__file__).parent.parent
AT_SITE = ("party:open", "party:reserved", "party:before-reply", "party:agreed")
AT_COORDINATOR = ("secure:shares", "round:before-commit", "round:committed", "secure:agreed")
"""Every other place, without a network: tests/federation/test_secure_remote.py."""


def until(true: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.05)


class Stage:
    """A SuperLink, four sites and a coordinator, each in a process of its own, all ended by their ids."""

    def __init__(self, folder: Path, text: str) -> None:
        from quietsum.federation.flower.superlink import SuperLink
        from quietsum.identity.keyring import make_keyring
        from quietsum.identity.nodekeys import read_parties

        self.folder, self.keys = folder, folder / "keys"
        for name in ("die", "hold", "held"):
            (folder / name).mkdir(parents=True)
        (folder / "run.toml").write_text(text, encoding="utf-8")
        make_keyring(self.keys, servers=(), parties=NAMES, days=2)
        self.link = SuperLink(
            folder / "link", certificate=self.keys / "server.crt", key=self.keys / "server.key",
            authority=self.keys / "ca.crt",
        )  # fmt: skip
        self.link.admit(read_parties(self.keys / "parties.toml"))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def plan(self) -> Plan:
        return load_plan(self.folder / "run.toml")

    def start(self, who: str, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with (self.folder / f"{who}.log").open("ab") as out:
            command = [sys.executable, str(TESTS / "e2e" / "masked_actor.py"), who, str(self.folder), *words]
            self.processes[who] = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    def site(self, name: str) -> None:
        self.start(name, self.link.address)

    def said(self, who: str) -> str:
        path = self.folder / f"{who}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def hold(self, name: str) -> Path:
        path = self.folder / "hold" / name
        path.touch()
        return path

    def reach(self, name: str) -> None:
        until(lambda: (self.folder / "held" / name).exists(), f"{name} is reached: {self.said('coordinator')[-2000:]}")

    def ended(self) -> None:
        code = self.processes.pop("coordinator").wait(500)
        assert code == 0, self.said("coordinator")[-3000:]
        assert "outcome finished" in self.said("coordinator")

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def entries(self, kind: Kind, name: str = "") -> list[tuple[int, int]]:
        path = (self.keys / name if name else self.folder / "workspace") / "ledger.db"
        with Ledger.open(path, read_only=True) as ledger:
            return [(e.body["round"], e.body["attempt"]) for e in ledger.entries() if e.kind is kind]

    def model(self) -> np.ndarray:
        found: np.ndarray = read_model(Workspace.at(self.folder / "workspace").find("latest").model)[0]
        return found

    def files(self) -> Iterator[tuple[Path, bytes]]:
        for path in sorted(self.folder.rglob("*")):
            with contextlib.suppress(OSError):
                if path.is_file():
                    yield path, path.read_bytes()

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
            process.wait()
        self.link.close()


@contextlib.contextmanager
def stage(folder: Path, text: str) -> Iterator[Stage]:
    made = Stage(folder, text)
    try:
        for name in NAMES:
            made.site(name)
        yield made
    finally:
        made.end()


def mean(names: Any) -> np.ndarray:
    return np.mean([marker(name) for name in names], axis=0)


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_site_killed_at_any_step_costs_at_most_its_own_vector_and_its_books_show_what_it_touched(
    tmp_path: Path,
) -> None:
    """In each round south dies at another failpoint; it is started again, and takes part in the next one."""
    with stage(tmp_path, SECURE.format(rounds=len(AT_SITE) + 1)) as made:
        between = "coordinator@run:checkpointed"
        for place in AT_SITE:
            (made.folder / "die" / f"south@{place}").touch()
            if "coordinator" not in made.processes:
                made.start("coordinator", "start")
            else:  # it waits between two rounds
                (made.folder / "hold" / between).unlink()
            until(lambda: made.processes["south"].poll() is not None, f"south dies at {place}")
            (made.folder / "held" / between).unlink(missing_ok=True)
            gate = made.hold(between)
            made.site("south")
            made.reach(between)
        gate.unlink()
        made.ended()
        rounds = made.events("round-finished")
        assert len(rounds) == len(AT_SITE) + 1
        expected = np.zeros(DIMENSION)
        for event, place in zip(rounds, (*AT_SITE, ""), strict=True):
            assert set(event["kept"]) >= set(NAMES) - {"south"}
            if place == "party:agreed":  # its masked vector had left
                assert "south" in event["kept"]
            if place in ("party:reserved", "party:before-reply"):
                assert "south" not in event["kept"]
            expected += mean(event["kept"])
        np.testing.assert_allclose(made.model(), expected, atol=1e-5)
        assert set(rounds[-1]["kept"]) == set(NAMES)
        assert len(made.entries(Kind.COMMIT)) == len(rounds)
        reserved, committed = made.entries(Kind.RESERVE, "south"), made.entries(Kind.COMMIT, "south")
        in_sum = {event["round"] for event in rounds if "south" in event["kept"]}
        assert in_sum <= {number for number, _ in committed}  # nothing of it left unpaid
        assert len(reserved) == len(set(reserved)) and set(committed) <= set(reserved)
        assert {number for number, _ in reserved} - {number for number, _ in committed} == {2}  # killed in between
        lost = [event for event in made.events("party-dropped") if event["party"] == "south"]
        assert all(event["step"] and event["code"] for event in lost)


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_coordinator_killed_at_any_step_makes_the_round_anew_and_pays_again(tmp_path: Path) -> None:
    with stage(tmp_path, SECURE.format(rounds=2)) as made:
        mode = "start"
        for place in AT_COORDINATOR:
            (made.folder / "die" / f"coordinator@{place}").touch()
            made.start("coordinator", mode)
            assert made.processes["coordinator"].wait(300) == -9, made.said("coordinator")[-3000:]
            mode = "resume"
        made.start("coordinator", mode)
        made.ended()
        np.testing.assert_allclose(made.model(), 2 * mean(NAMES), atol=1e-5)
        reserved, committed = made.entries(Kind.RESERVE), made.entries(Kind.COMMIT)
        attempts = [attempt for number, attempt in reserved if number == 1]
        assert attempts == list(range(1, len(AT_COORDINATOR) + 2))  # each a new session, charged again
        assert [attempt for number, attempt in committed if number == 1] == attempts[2:]
        for name in NAMES:  # who was asked for its vector has paid for it, and for nothing twice
            mine = made.entries(Kind.COMMIT, name)
            assert len(mine) == len(set(mine))
            assert {attempt for number, attempt in mine if number == 1} == {2, 3, 4, 5}
            assert not {attempt for number, attempt in made.entries(Kind.RESERVE, name) if number == 1} & {1}


@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="reads memory through /proc")
@pytest.mark.long
def test_no_memory_of_the_coordinator_or_the_superlink_and_no_file_holds_an_unmasked_vector(tmp_path: Path) -> None:
    found: dict[str, set[str]] = {}
    for mode, text, places in (
        ("secure", SECURE, ("secure:survivors", "secure:unmasked")),
        ("plain", PLAN, ("round:before-commit",)),
    ):
        with stage(tmp_path / mode, text.format(rounds=1)) as made:
            wanted = patterns(resolve(load_plan(SECURE.format(rounds=1)), Marking().parties(), DIMENSION))
            gates = [made.hold(f"coordinator@{place}") for place in places]
            made.start("coordinator", "start")
            seen: set[str] = set()
            for place, gate in zip(places, gates, strict=True):
                made.reach(f"coordinator@{place}")
                seen |= scan(made.processes["coordinator"].pid, wanted) | scan(made.link.pid, wanted)
                gate.unlink()
            made.ended()
            found[mode] = seen
            for path, content in made.files():
                there = [name for name, pattern in wanted.items() if pattern in content]
                assert mode == "plain" or not there, (path, there)
    assert not found["secure"]
    assert found["plain"], "the control: without masks the same scan finds updates"
