"""Three sites on a real SuperLink with TLS and node keys: killed on either side, started again, every charge kept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietsum.cli.app import app
from quietsum.identity.certificates import Credentials, make_client
from quietsum.identity.nodekeys import read_node_key, read_public_key
from quietsum.ledger import Kind, Ledger

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow  # one stage, one story: in processes, a file is not shared out

SITES = ("cleveland", "hungarian", "va")
SIZES = {"cleveland": 199, "hungarian": 172, "va": 85}
PLAN = """
[task]
name = "held_task:HeldHeart"
[federation]
rounds = 4
spare_attempts = 4
deadline = 180.0
minimum_parties = 2
[training]
sample_rate = 0.2
local_steps = 2
[privacy]
style = "sample"
record = { epsilon = 4.0, delta = 1e-4, lifetime = { epsilon = 30.0, delta = 1e-4 } }
"""
POLICY = """
[site]
name = "{name}"
[coordinator]
address = "127.0.0.1:{port}"
root_certificate = "ca.crt"
node_key = "node.key"
[dataset]
name = "held-{name}"
size = {size}
[[tasks]]
name = "held_task:HeldHeart"
[record]
epsilon = {epsilon}
delta = 1e-4
smallest_noise = 0.5
largest_clip = 1.0
"""


def quietsum(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return str(result.output)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def until(true: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.05)


class Stage:
    """Folders, and the processes that were started in them; each is ended by its process id."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.keys, self.hold, self.workspace = folder / "keys", folder / "hold", folder / "workspace"
        self.hold.mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.plan = folder / "run.toml"
        self.plan.write_text(PLAN, encoding="utf-8")
        names = [word for name in SITES for word in ("--party", name)]
        quietsum("keys", "make", str(self.keys), *names)
        for name in SITES:
            self.policy(name)

    def policy(self, name: str) -> Path:
        epsilon = 4.5 if name == "va" else 30.0
        path = self.keys / name / "policy.toml"
        path.write_text(POLICY.format(name=name, port=self.port, size=SIZES[name], epsilon=epsilon), encoding="utf-8")
        return path

    def start(self, called: str, *words: str, most: int | None = None) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ, "PYTHONPATH": str(Path(__file__).parent), "HOLD": str(self.hold), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "quietsum", *words]
        if most is not None:  # the largest file that the process may write
            limit = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))"
            command = [sys.executable, "-c", f"{limit}; os.execv(sys.argv[1], sys.argv[1:])", *command]
        with self.log(called).open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=self.folder)
        self.processes[called] = process
        return process

    def log(self, called: str) -> Path:
        return self.folder / f"{called}.log"

    def said(self, called: str) -> str:
        return self.log(called).read_text(encoding="utf-8") if self.log(called).exists() else ""

    def superlink(self) -> None:
        before = self.said("superlink").count("SuperLink at")
        self.start(
            "superlink", "superlink", "--keys", str(self.keys), "--listen", f"127.0.0.1:{self.port}", "--folder", "link"
        )
        until(lambda: self.said("superlink").count("SuperLink at") > before, "the SuperLink listens")

    def site(self, name: str) -> None:
        self.start(name, "party", "serve", "--policy", str(self.keys / name / "policy.toml"))

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        return self.start(
            "run", "run", *words, "--on", "flower", "--keys", str(self.keys), "--superlink", "link",
            "--workspace", str(self.workspace), "--wait", "300", "-v",
        )  # fmt: skip

    def kill(self, called: str) -> None:
        process = self.processes.pop(called)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def ended(self, called: str = "run", code: int = 0) -> None:
        found = self.processes.pop(called).wait(500)
        assert found == code, self.said(called)[-3000:]

    def end(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()

    # ------------------------------------------------------------------------------------------- the books

    def books(self, name: str = "") -> Ledger:
        return Ledger.open((self.keys / name if name else self.workspace) / "ledger.db", read_only=True)

    def attempts(self, name: str = "", kind: Kind = Kind.RESERVE) -> list[tuple[int, int]]:
        with contextlib.suppress(Exception), self.books(name) as ledger:
            return [(e.body["round"], e.body["attempt"]) for e in ledger.entries() if e.kind is kind]
        return []


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("flower"))
    try:
        made.superlink()
        for name in SITES:
            made.site(name)
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def story(stage: Stage) -> Stage:
    """A run in which a site and both of the server's processes are killed; afterwards the lifetime of va is spent."""
    until(lambda: "waiting for" in stage.said("va"), "va has compared its rows with those it knows, and serves")
    held = stage.hold / "va"
    held.touch()
    stage.run(str(stage.plan))
    until(lambda: stage.attempts("va"), "va has reserved the first round")
    stage.kill("va")  # in the middle of its work: the charge is in its books, the update never leaves
    held.unlink()
    stage.site("va")
    until(lambda: (2, 1) in stage.attempts("va"), "va is back and takes part in the second round")

    held.touch()
    until(lambda: len(stage.attempts("va")) > len(stage.attempts("va", Kind.COMMIT)) + 1, "va is at work again")
    stage.kill("run")
    stage.kill("superlink")
    held.unlink()
    stage.superlink()
    stage.run("--resume", "latest")
    stage.ended()
    return stage


@pytest.fixture(scope="module")
def stranger(stage: Stage) -> Path:
    """The policy of somebody who made keys of his own under a name that the SuperLink knows."""
    folder = stage.folder / "stranger"
    quietsum("keys", "make", str(folder), "--party", "va")
    policy = folder / "va" / "policy.toml"
    policy.write_text(POLICY.format(name="va", port=stage.port, size=85, epsilon=8.0), encoding="utf-8")
    return policy


@pytest.mark.timeout(900)
@pytest.mark.long
def test_sites_and_server_are_killed_and_no_charge_is_lost(story: Stage) -> None:
    stage = story
    assert "round 4/4" in stage.said("run")
    server = set(stage.attempts())
    assert {number for number, _ in server} == {1, 2, 3, 4}
    assert len(server) == 5, "the round in which the server was killed was made again, and charged again"
    for name in SITES:
        assert set(stage.attempts(name)) <= server, "a site was never charged for what the server had not reserved"
        assert set(stage.attempts(name, Kind.COMMIT)) <= set(stage.attempts(name))
    assert set(stage.attempts("va")) - set(stage.attempts("va", Kind.COMMIT)), "what was killed stays charged"
    assert set(stage.attempts("cleveland")) == server


@pytest.mark.timeout(600)
@pytest.mark.some(1)
def test_both_sides_find_the_heads_that_the_other_has_kept(story: Stage) -> None:
    stage = story
    seen = stage.folder / "seen.jsonl"
    for name in SITES:
        with stage.books(name) as ledger:
            mine = ledger.identity.ledger
        told = ("--workspace", str(stage.workspace), "--of", mine, "--output", str(seen))
        quietsum("ledger", "receipts", *told)
        quietsum("ledger", "verify", "--workspace", str(stage.keys / name), "--anchor", str(seen))
        quietsum("ledger", "receipts", "--workspace", str(stage.keys / name), "--output", str(seen))
        quietsum("ledger", "verify", "--workspace", str(stage.workspace), "--anchor", str(seen))


@pytest.mark.timeout(600)
def test_a_site_says_what_it_has_spent_for_whom_and_when(story: Stage) -> None:
    stage = story
    told = json.loads(quietsum("party", "status", "--policy", str(stage.keys / "va" / "policy.toml"), "--json"))
    with stage.books() as ledger:
        run = ledger.runs()[0]
        assert told["runs"][0]["run"] == run.run
        assert told["runs"][0]["coordinator"] == ledger.identity.ledger
        server = {party: found.epsilon for (party, _), found in ledger.spending_by_party(run.run).items()}
    assert told["runs"][0]["reserved"] == len(stage.attempts("va"))
    assert 0 < told["budgets"][0]["spent_epsilon"] <= server["va"] * (1 + 1e-9) <= 4.0 * (1 + 1e-9)
    shown = quietsum("party", "status", "--policy", str(stage.keys / "va" / "policy.toml"))
    assert "per record" in shown and max(map(len, shown.splitlines())) <= 80


@pytest.mark.timeout(600)
def test_a_site_whose_lifetime_is_spent_refuses_in_both_logs_and_the_others_go_on(story: Stage) -> None:
    stage = story
    before = stage.attempts("va")
    other = stage.folder / "other.toml"
    other.write_text(PLAN.replace("rounds = 4", "rounds = 2"), encoding="utf-8")
    stage.run(str(other), "--name", "second")
    stage.ended()
    assert stage.attempts("va") == before, "nothing was charged there, because no data was touched"
    assert "site va refuses: its budget does not allow this plan" in stage.said("run")
    assert "its budget does not allow this plan" in stage.said("va") and "lifetime" in stage.said("va")
    assert "2 of 3 parties" in stage.said("run")
    with stage.books() as ledger:
        spent = {party: found.epsilon for (party, _), found in ledger.spending_by_party("second").items()}
    assert spent["va"] == 0 < spent["cleveland"], "what va refused is refunded at the coordinator"


@pytest.mark.timeout(600)
def test_an_unregistered_key_is_refused(stage: Stage, stranger: Path) -> None:
    (stranger.parent / "ca.crt").write_bytes((stage.keys / "ca.crt").read_bytes())
    authority = Credentials(certificate=(stage.keys / "ca.crt").read_bytes(), key=(stage.keys / "ca.key").read_bytes())
    line = read_public_key((stranger.parent / "node.pub").read_bytes(), where="node.pub")
    (stranger.parent / "node.crt").write_bytes(make_client(authority, "va", line))  # even so: the roster decides
    stage.start("stranger", "party", "serve", "--policy", str(stranger))
    stage.ended("stranger", code=1)
    assert "does not know this node's key" in stage.said("stranger")


@pytest.mark.timeout(600)
def test_another_authority_is_refused_before_a_word_is_said(stage: Stage, stranger: Path) -> None:
    quietsum("keys", "make", str(stage.folder / "elsewhere"), "--party", "va")
    (stranger.parent / "ca.crt").write_bytes((stage.folder / "elsewhere" / "ca.crt").read_bytes())
    process = stage.start("misled", "party", "serve", "--policy", str(stranger))
    until(lambda: "certificate" in stage.said("misled").lower() or process.poll() is not None, "it does not trust it")
    process.terminate()
    stage.processes.pop("misled").wait(300)
    assert "certificate" in stage.said("misled").lower()


def one_round(stage: Stage, name: str) -> Path:
    """A short plan that any one site can carry."""
    text = PLAN.replace("rounds = 4", "rounds = 1").replace("minimum_parties = 2", "minimum_parties = 1")
    path = stage.folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_slow_loris_and_garbage_on_the_open_port_hold_nobody_up(story: Stage) -> None:
    stage = story
    trusting = ssl.create_default_context(cafile=str(stage.keys / "ca.crt"))
    from quietsum.federation.flower.flwr_calls import show_certificate

    show_certificate(
        trusting, (stage.keys / "va" / "node.crt").read_bytes(), read_node_key(stage.keys / "va" / "node.key")
    )
    with contextlib.ExitStack() as stack:
        for number in range(40):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", stage.port), timeout=300))
            if number % 2:
                plain.sendall(b"\x16\x03\x01" + os.urandom(40))  # the beginning of a handshake that never ends
                continue
            wrapped = stack.enter_context(trusting.wrap_socket(plain, server_hostname="127.0.0.1"))
            wrapped.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")
        stage.run(str(one_round(stage, "loris")), "--name", "loris")
        stage.ended()
    assert "round 1/1 · 2 of 3 parties" in stage.said("run")


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_full_disk_at_a_site_ends_its_part_and_the_others_go_on(story: Stage) -> None:
    """The site may write 33 kB to a file: enough to open its ledger, too little for the entries of four rounds."""
    stage = story
    stage.processes["hungarian"].terminate()
    stage.processes.pop("hungarian").wait(300)
    stage.start("hungarian", "party", "serve", "--policy", str(stage.keys / "hungarian" / "policy.toml"), most=33_000)
    full = stage.folder / "full.toml"
    full.write_text(PLAN.replace("minimum_parties = 2", "minimum_parties = 1"), encoding="utf-8")
    before = len(stage.said("run"))
    stage.run(str(full), "--name", "full")
    stage.ended()
    said = stage.said("run")[before:]
    assert "hungarian is left out" in said and "its ledger could not be written" in said
    assert "nothing was recorded" in stage.said("hungarian")
    assert "round 4/4 · 1 of 3 parties" in said
    with stage.books("hungarian") as ledger:
        ledger.verify()
    left = said.count("2 of 3 parties")
    with stage.books("hungarian") as ledger:
        found = {run.run.split(" @ ")[0]: run for run in ledger.runs()}
    assert ("full" in found and found["full"].committed >= left) or left == 0, "what left the site is in its books"
