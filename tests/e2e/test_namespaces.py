"""A network that is not loopback: machines in network namespaces, with addresses and names, and a rough line between.

Skipped where namespaces cannot be made (that needs ``ip`` and root). ``QUIETSUM_SILENCE=30`` makes the line silent for
thirty seconds, as an outage is, and not for three.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from e2e.test_flower_parity import SEEDS, here
from federation.sites import PLAN, plan_of
from quietsum.errors import QuietsumError
from quietsum.identity.keyring import make_keyring
from quietsum.ledger import Head, Kind, Ledger
from quietsum.runs.checkpoint import read_model

pytest.importorskip("flwr")
TESTS = Path(__file__).parents[1]
NAME, PORT = "fl.quietsum.test", 9092
SILENCE = float(os.environ.get("QUIETSUM_SILENCE", "3"))
DELAY = 0.06
LASTING = PLAN.replace("deadline = 20.0", "deadline = 400.0")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machines:
    """Network namespaces on one bridge; ``start`` runs a program in one. All of it is gone at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._mark = folder, f"q{os.getpid() % 100000}"
        self._spaces: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._hosts: list[Path] = []
        self._switch = self._space("switch")
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")

    def _space(self, name: str) -> str:
        space = f"{self._mark}-{name}"
        ip("netns", "add", space)
        self._spaces.append(space)
        ip("-n", space, "link", "set", "lo", "up")
        return space

    def add(self, name: str, address: str, *, knows: str = "") -> None:
        """A machine with an address of its own, plugged into the switch; ``knows`` is the address behind ``NAME``."""
        space, number = self._space(name), len(self._spaces)
        cable = f"{self._mark}v{number}"
        ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", cable, "netns", self._switch)
        ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", self._switch, "link", "set", cable, "master", "bridge", "up")
        if knows:
            place = Path("/etc/netns") / space
            place.mkdir(parents=True)
            self._hosts.append(place)
            (place / "hosts").write_text(f"127.0.0.1 localhost\n{knows} {NAME} other.quietsum.test\n", encoding="utf-8")

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """A program of the tests on a machine; its words go to a file of that name."""
        environment = {**os.environ, "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1", "QUIETSUM_TEST_SEEDS": "1"}
        command = ["ip", "netns", "exec", f"{self._mark}-{name}", sys.executable, *words]
        with self.log(name).open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        self._processes.append(process)
        return process

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text(encoding="utf-8") if self.log(name).exists() else ""

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            if process.poll() is None:
                process.kill()
            process.wait()
        for space in self._spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        for place in self._hosts:
            shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path("/etc/netns").rmdir()  # where it was ours alone


def _path() -> str:
    return os.pathsep.join([str(TESTS), *(path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path)])


def until(fact: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.1)


def permitted() -> bool:
    """Whether namespaces can be made here: it needs ``ip`` and root, and a kernel that has them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    space, cable = f"q{os.getpid() % 100000}-try", ["type", "veth", "peer", "name", "qtry1"]
    if subprocess.run(["ip", "netns", "add", space], capture_output=True, check=False).returncode:
        return False
    try:
        for words in (["link", "add", "qtry0", *cable], ["link", "add", "qtry2", "type", "bridge"]):
            if subprocess.run(["ip", "-n", space, *words], capture_output=True, check=False).returncode:
                return False
        there = [sys.executable, "-c", ""]
        return not subprocess.run(["ip", "netns", "exec", space, *there], capture_output=True, check=False).returncode
    finally:
        subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if not permitted():
        pytest.skip("network namespaces cannot be made here")
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.end()


def attempts(folder: Path, kind: Kind) -> list[tuple[int, int]]:
    with Ledger.open(folder / "ledger.db", read_only=True) as ledger:
        ledger.verify()
        return sorted((entry.body["round"], entry.body["attempt"]) for entry in ledger.entries() if entry.kind is kind)


def kept_by(folder: Path, *, of: str = "") -> list[Head]:
    """The heads in the receipts of a ledger: those of one site, or the coordinator's where the ledger is a site's."""
    with Ledger.open(folder / "ledger.db", read_only=True) as ledger:
        return [told.head for _, heads in ledger.receipts() for name, told in heads.items() if of in ("", name)]


def confirmed(folder: Path, heads: list[Head]) -> int:
    """How many heads that others have kept were found in a ledger; one that does not fit raises."""
    with Ledger.open(folder / "ledger.db", read_only=True) as ledger:
        return ledger.verify(heads, every_signature=True).anchors


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.long
def test_over_a_line_that_delays_breaks_and_goes_silent_the_model_and_the_books_are_the_same(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    net = "10.77.5"
    coordinator, line = f"{net}.1", f"{net}.2"
    machines.add("hub", coordinator)
    machines.add("line", line)
    keys = tmp_path / "keys"
    make_keyring(keys, servers=[NAME, line], parties=tuple(SEEDS), days=2)
    (tmp_path / "run.toml").write_text(LASTING, encoding="utf-8")
    signs = tmp_path / "signs.json"
    address = {name: f"{net}.{11 + number}" for number, name in enumerate(SEEDS)}
    events = [
        f"break,{address['cleveland']},2500",  # while it makes itself known
        f"break,{address['cleveland']},{keys / 'cleveland/round-1'}",  # what has been paid for does not arrive at once
        f"break,{address['hungarian']},{keys / 'hungarian/round-1'}",
        f"break,{address['switzerland']},{keys / 'switzerland/round-2'}",
        f"silence,{address['va']},{keys / 'va/round-2'}",
    ]
    words = [line, str(PORT), coordinator, str(PORT), str(DELAY), str(SILENCE), str(signs), *events]
    machines.start("line", str(TESTS / "e2e/rough_line.py"), *words)
    until(signs.exists, "the line is there")
    begun = time.monotonic()
    run = machines.start("hub", str(TESTS / "e2e/far_coordinator.py"), str(tmp_path), coordinator, str(PORT))
    for number, (name, seed) in enumerate(SEEDS.items()):
        machines.add(name, address[name], knows=line)
        dialled = (
            f"{line}:{PORT}" if number == 0 else f"{NAME}:{PORT}"
        )  # an address and a name, both in the certificate
        machines.start(name, str(TESTS / "e2e/seeded_site.py"), str(keys), name, dialled, str(seed))
    # who dials a name that the certificate does not hold speaks to nobody
    machines.add("lost", f"{net}.30", knows=line)
    stray = tmp_path / "stray"
    shutil.copytree(keys, stray)
    machines.start("lost", str(TESTS / "e2e/seeded_site.py"), str(stray), "va", f"other.quietsum.test:{PORT}", "1")

    assert run.wait(800) == 0, machines.said("hub")[-3000:]
    told = json.loads(signs.read_text(encoding="utf-8"))
    print(f"{time.monotonic() - begun:.0f} s with {SILENCE:g} s of silence, {told['connections']} connections")
    assert "outcome finished" in machines.said("hub"), machines.said("hub")[-3000:]
    assert sorted(told["happened"]) == sorted(events)  # each reply had to go by the line: none can be left out
    assert "certificate does not fit" in machines.said("lost")

    local = here(plan_of(LASTING), tmp_path / "here")
    model = Path(machines.said("hub").split("model ")[1].splitlines()[0])
    (one, _), (other, _) = read_model(local.folder.model), read_model(model)
    np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-12)

    for kind in (Kind.RESERVE, Kind.COMMIT):
        ours = attempts(tmp_path / "across", kind)
        assert ours == attempts(tmp_path / "here", kind)
        for name in SEEDS:
            assert attempts(keys / name, kind) == ours, (name, kind)

    for (
        name
    ) in SEEDS:  # each side finds in its own books what the other has kept of them, one head of each round at least
        for book, heads in (
            (keys / name, kept_by(tmp_path / "across", of=name)),
            (tmp_path / "across", kept_by(keys / name)),
        ):
            assert confirmed(book, heads) == len(heads) >= 2, (name, book)
    with pytest.raises(QuietsumError):
        confirmed(keys / "va", kept_by(tmp_path / "across", of="cleveland"))
