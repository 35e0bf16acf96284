"""A site or a coordinator of the test of secure rounds over Flower, in a process of its own that dies where it is told.

``die/WHO@PLACE`` in the folder ends the process by SIGKILL at that failpoint, once; ``hold/WHO@PLACE`` stops it there
for as long as the file lies, and ``held/WHO@PLACE`` says that it has stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from quietsum import failpoints
from quietsum.ledger import Ledger
from quietsum.plan import load_plan


def obey(folder: Path, who: str) -> None:
    """Die and wait where the files say so."""

    def hook(place: str) -> None:
        name = f"{who}@{place}"
        if (folder / "die" / name).exists():
            (folder / "die" / name).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        while (folder / "hold" / name).exists():
            (folder / "held" / name).touch()
            time.sleep(0.05)

    failpoints.install(hook)


def site(folder: Path, name: str, address: str) -> None:
    from quietsum.federation.flower.node import serve_node
    from quietsum.identity.nodekeys import read_signer
    from quietsum.party.policy import AllowedTask, CoordinatorAddress, Policy, Rules, SiteDataset, SiteName
    from quietsum.party.service import SiteService

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    keys = folder / "keys"
    policy = Policy(
        site=SiteName(name=name),
        coordinator=CoordinatorAddress(address=address),
        dataset=SiteDataset(name=f"marks-{name}", size=100, public="made up"),
        tasks=(AllowedTask(name="federation.marking:Marking"),),
        rules=Rules(aggregation=("mean",)),
        folder=keys / name,
    )
    with Ledger.open(keys / name / "ledger.db", create=True) as ledger:
        service = SiteService(policy, ledger, node_key=read_signer(keys / name / "node.key"))
        serve_node(
            service.answer, address=address, root_certificate=keys / "ca.crt", node_key=keys / name / "node.key",
            stop=stop,
        )  # fmt: skip


def coordinator(folder: Path, mode: str) -> None:
    from quietsum.federation.flower.coordinator import FlowerTransport
    from quietsum.federation.flower.superlink import read_access
    from quietsum.federation.remote.federation import RemoteFederation
    from quietsum.identity.nodekeys import read_verifiers
    from quietsum.runs.folder import Workspace
    from quietsum.runs.progress import EventLines
    from quietsum.runs.run import resume_run, start

    workspace = Workspace.at(folder / "workspace")
    roster = read_verifiers(folder / "keys" / "parties.toml")
    federation = RemoteFederation(FlowerTransport(read_access(folder / "link")), roster=roster, patience=300.0)
    try:
        with EventLines(folder / "events.jsonl") as lines:
            if mode == "start":
                plan = load_plan(folder / "run.toml")
                result = start(plan, workspace=workspace, federation=federation, watchers=[lines])
            else:
                found = workspace.find("latest")
                result = resume_run(found, workspace=workspace, federation=federation, watchers=[lines])
    finally:
        federation.close()
    print(f"outcome {result.outcome} {result.error or ''}", flush=True)


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    obey(where, role)
    if role == "coordinator":
        coordinator(where, sys.argv[3])
    else:
        site(where, role, sys.argv[3])
