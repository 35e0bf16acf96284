"""One run across machines, by plain Flower's own commands or by ours; every machine is a process of this one.

Keys and certificates are made by ``quietsum keys make`` for both: a certificate for the SuperLink, a P-384 key a site.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import sites  # type: ignore[import-not-found]
from processes import Counter, Failed, Look, Stage, free_port  # type: ignore[import-not-found]

ACROSS = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
QUIETSUM = (sys.executable, "-m", "quietsum")


@dataclasses.dataclass(kw_only=True)
class Found:
    """What one run has shown."""

    problem: str = ""
    answers: float = 0.0
    startup: float = 0.0
    first: float = 0.0
    seconds: list[float] = dataclasses.field(default_factory=list)
    weights: Any = None
    memory: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    processor: float = 0.0
    wire: list[float] = dataclasses.field(default_factory=list)
    spent: str = ""
    verified: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """One run to make."""

    model: str
    sites: int
    rounds: int
    counted: bool = False

    @property
    def names(self) -> list[str]:
        """The sites."""
        return [f"site-{i}" for i in range(self.sites)]

    @property
    def patience(self) -> float:
        """Seconds after which a run is given up."""
        return 120.0 + 40.0 * self.rounds + 10.0 * self.sites


# ------------------------------------------------------------------------------------------------ plain Flower


def flower(folder: Path, asked: Asked) -> Found:
    """A SuperLink, SuperNodes and an app, as Flower's own commands start them."""
    if not (BIN / "flower-superlink").exists():
        raise Failed("Flower is not installed: pip install flwr==1.41.0")
    port, home, app = free_port(), folder / "flwr", folder / "app"
    home.mkdir()
    shutil.copytree(ACROSS / "app", app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ACROSS / "sites.py", app / "across_app" / "sites.py")
    environment = {
        "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "NO_COLOR": "1",
    }  # fmt: skip
    found, times, weights = Found(), folder / "times.jsonl", folder / "weights.npy"
    with Stage(folder, environment) as stage:
        keys = _keys(stage, asked)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{keys / "ca.crt"}"\n',
            encoding="utf-8",
        )
        began = time.monotonic()
        stage.start(
            "superlink",
            [
                str(BIN / "flower-superlink"), "--ssl-certfile", str(keys / "server.crt"),
                "--ssl-keyfile", str(keys / "server.key"), "--ssl-ca-certfile", str(keys / "ca.crt"),
                "--enable-supernode-auth", "--disable-runtime-dependency-installation",
                "--host", "127.0.0.1", "--port", str(port), "--database", str(folder / "state.db"),
            ],
        )  # fmt: skip
        stage.until(lambda: _answers(port), "the SuperLink answers", 60)
        found.answers = time.monotonic() - began
        for name in asked.names:
            stage.call(str(BIN / "flwr"), "supernode", "register", str(keys / name / "node.pub"), "here")
        counter, door = _door(asked, port)
        with Look(stage, apart="flwr-serverapp") as look:
            since = time.time()
            for i, name in enumerate(asked.names):
                stage.start(
                    name,
                    [
                        str(BIN / "flower-supernode"), "--root-certificates", str(keys / "ca.crt"),
                        "--auth-supernode-private-key", str(keys / name / "node.key"),
                        "--superlink", f"127.0.0.1:{door}", "--port", str(free_port()),
                        "--node-config", f"partition-id={i} num-partitions={asked.sites}",
                    ],
                )  # fmt: skip
            settings = f'rounds={asked.rounds} sites={asked.sites} model="{asked.model}" out="{folder}"'
            printed = stage.call(
                str(BIN / "flwr"), "run", str(app), "here", "--run-config", settings, "--format", "json"
            )
            try:
                stage.until(lambda: weights.exists() or look.vanished(5.0), "the app is done", asked.patience)
                if not weights.exists():
                    raise Failed("the ServerApp ended without a model")
            except Failed as failure:
                raise Failed(f"{failure}; flwr log says: {_flower_log(stage, printed)}") from None
        events = [json.loads(line) for line in times.read_text(encoding="utf-8").splitlines()]
        _times(found, events, since, look, counter, asked)
        found.weights = np.load(weights)
    return found


def _flower_log(stage: Stage, printed: str) -> str:
    try:
        number = str(json.loads(printed)["run-id"])
        return stage.call(str(BIN / "flwr"), "log", number, "here", "--show").strip()[-800:]
    except (Failed, ValueError, KeyError, TypeError, subprocess.TimeoutExpired) as failure:
        return f"nothing ({failure})"


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------- ours

PLAN = """
[task]
name = "sites_task:Sites"
options = {options}
[federation]
rounds = {rounds}
minimum_parties = {sites}
[training]
sample_rate = {rate}
local_steps = 1
optimizer = {{ kind = "sgd", learning_rate = {step} }}
[privacy]
{privacy}
[aggregation]
weights = "equal"
"""
POLICY = """
[site]
name = "{name}"
[coordinator]
address = "127.0.0.1:{port}"
root_certificate = "ca.crt"
node_key = "node.key"
[dataset]
name = "records-{number}"
size = {size}
{public}
[[tasks]]
name = "sites_task:Sites"
options = {options}
{budget}
"""
PROMISE = 'style = "sample"\nrecord = { epsilon = 8.0, delta = 1e-3 }'
BUDGET = "[record]\nepsilon = 8.0\ndelta = 1e-3\nsmallest_noise = 0.1\nlargest_clip = 1.0"
PUBLIC = 'public = "the records are made up"'


def ours(folder: Path, asked: Asked, protected: bool) -> Found:
    """The same with our commands; the ledgers are checked afterwards."""
    port, found, workspace = free_port(), Found(), folder / "workspace"
    options = f'{{ model = "{asked.model}", sites = {asked.sites}, protected = {str(protected).lower()} }}'
    privacy, rate = (PROMISE, 0.1) if protected else ('style = "none"', 1.0)
    told = {"rounds": asked.rounds, "sites": asked.sites, "rate": rate, "step": sites.RATE}
    (folder / "run.toml").write_text(PLAN.format(options=options, privacy=privacy, **told), encoding="utf-8")
    with Stage(folder, {"PYTHONPATH": str(ACROSS)}) as stage:
        keys = _keys(stage, asked)
        began = time.monotonic()
        link = ("superlink", "--keys", str(keys), "--listen", f"127.0.0.1:{port}", "--folder", "link")
        stage.start("superlink", [*QUIETSUM, *link])
        stage.until(lambda: "SuperLink at" in stage.said("superlink"), "the SuperLink answers", 60)
        found.answers = time.monotonic() - began
        counter, door = _door(asked, port)
        for i, name in enumerate(asked.names):
            (keys / name / "policy.toml").write_text(
                POLICY.format(
                    name=name, number=i, port=door, size=sites.EACH, options=options,
                    public="" if protected else PUBLIC, budget=BUDGET if protected else "",
                ),
                encoding="utf-8",
            )  # fmt: skip
        with Look(stage) as look:
            since, events = time.time(), list[dict[str, Any]]()
            for name in asked.names:
                stage.start(name, [*QUIETSUM, "party", "serve", "--policy", str(keys / name / "policy.toml")])
            command = (
                "run", "run.toml", "--on", "flower", "--keys", str(keys), "--superlink", "link",
                "--workspace", str(workspace), "--wait", str(60 + 10 * asked.sites), "--json",
            )  # fmt: skip
            run = stage.start("coordinator", [*QUIETSUM, *command], stdout=subprocess.PIPE)
            reader = threading.Thread(target=_read, args=(run, events), daemon=True)
            reader.start()
            stage.until(lambda: run.poll() == 0, "the run is done", asked.patience)
            reader.join()
        _times(found, events, since, look, counter, asked)
        for name in asked.names:
            stage.roots[name].terminate()
        for name in asked.names:
            stage.roots.pop(name).wait(60)
        for place in (workspace, *(keys / name for name in asked.names)):
            try:
                stage.call(*QUIETSUM, "ledger", "verify", "--workspace", str(place))
            except Failed as failure:
                found.verified = False
                print(failure, file=sys.stderr)
        _learned(found, events, workspace, protected)
    return found


def _read(run: subprocess.Popen[bytes], events: list[dict[str, Any]]) -> None:
    """Every event with the time at which it came."""
    assert run.stdout is not None
    for line in run.stdout:
        events.append({**json.loads(line), "time": time.time()})


def _learned(found: Found, events: list[dict[str, Any]], workspace: Path, protected: bool) -> None:
    from safetensors.numpy import load_file

    last = [event for event in events if event["event"] == "round-finished"][-1]
    if not protected:
        (model,) = (workspace / "runs").glob("*/model.safetensors")
        found.weights = load_file(model)["params"]
        return
    spent = {f"ε {one['epsilon']:.3f} per {one['unit']} at δ {one['delta']:g}" for one in last["spent"]}
    found.spent = ", ".join(sorted(spent))


def _keys(stage: Stage, asked: Asked) -> Path:
    keys = stage.folder / "keys"
    names = [word for name in asked.names for word in ("--party", name)]
    stage.call(*QUIETSUM, "keys", "make", str(keys), *names)
    return keys


def _door(asked: Asked, port: int) -> tuple[Any, int]:
    """Where sites knock: at the SuperLink, or at the counter before it."""
    counter = Counter(port) if asked.counted else None
    return counter, counter.port if counter is not None else port


def _times(found: Found, events: list[dict[str, Any]], began: float, look: Look, counter: Any, asked: Asked) -> None:
    """Rounds from their events, and what was used between the end of the first and of the last."""
    started = [event["time"] for event in events if event["event"] == "round-started"]
    ended = [event["time"] for event in events if event["event"] == "round-finished"]
    if len(ended) != asked.rounds:
        raise Failed(f"{len(ended)} of {asked.rounds} rounds were whole")
    found.startup, found.first = started[0] - began, ended[0] - started[0]
    found.seconds = [float(gap) for gap in np.diff(ended)]
    found.processor = look.processor(ended[0], ended[-1]) / (asked.rounds - 1)
    if counter is not None:
        found.wire = [count / (asked.rounds - 1) for count in counter.between(ended[0], ended[-1])]
    found.memory = look.largest
