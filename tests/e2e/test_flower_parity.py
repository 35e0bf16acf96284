"""The same plan and the same test seeds, once in this process and once across processes: one model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from federation.sites import PLAN, plan_of
from quietsum.federation.local import LocalFederation
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.party.work import Site
from quietsum.plan import Plan, resolve
from quietsum.runs.checkpoint import read_model
from quietsum.runs.folder import Workspace
from quietsum.runs.run import RunResult, start
from quietsum.tasks import task_of

pytest.importorskip("flwr")

SEEDS = {"cleveland": 11, "hungarian": 22, "switzerland": 33, "va": 44}


def here(plan: Plan, folder: Path) -> RunResult:
    task = task_of(plan)
    resolved = resolve(plan, task.parties(), task.dimension)
    sites = {
        name: Site(name, task=task, resolved=resolved, rng=randomness_for_tests(seed)) for name, seed in SEEDS.items()
    }
    federation = LocalFederation(sites, rng=randomness_for_tests(5))
    return start(plan, workspace=Workspace.at(folder), federation=federation, rng=randomness_for_tests(6))


def across(plan: Plan, folder: Path) -> RunResult:
    from quietsum.federation.flower.coordinator import FlowerTransport
    from quietsum.federation.flower.superlink import SuperLink
    from quietsum.federation.remote.federation import RemoteFederation
    from quietsum.identity.keyring import make_keyring
    from quietsum.identity.nodekeys import read_parties, read_verifiers

    keys = folder / "keys"
    make_keyring(keys, servers=(), parties=tuple(SEEDS), days=2)
    link = SuperLink(
        folder / "link", certificate=keys / "server.crt", key=keys / "server.key", authority=keys / "ca.crt"
    )
    processes = []
    with link:
        link.admit(read_parties(keys / "parties.toml"))
        tests = Path(__file__).parent.parent
        environment = {**os.environ, "PYTHONPATH": str(tests), "OMP_NUM_THREADS": "1"}
        try:
            for name, seed in SEEDS.items():
                words = [str(tests / "e2e" / "seeded_site.py"), str(keys), name, link.address, str(seed)]
                processes.append(subprocess.Popen([sys.executable, *words], env=environment))
            federation = RemoteFederation(
                FlowerTransport(link.access), roster=read_verifiers(keys / "parties.toml"), patience=300.0
            )
            try:
                return start(
                    plan, workspace=Workspace.at(folder / "across"), federation=federation, rng=randomness_for_tests(6)
                )
            finally:
                federation.close()
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(300)


@pytest.mark.timeout(600)
def test_one_process_and_four_sites_behind_a_superlink_train_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    plan = plan_of(PLAN)
    local, remote = here(plan, tmp_path / "here"), across(plan, tmp_path)
    assert (local.outcome, remote.outcome) == ("finished", "finished"), remote.error
    (one, _), (other, _) = read_model(local.folder.model), read_model(remote.folder.model)
    np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-12)  # replies arrive, and are added, in another order
    assert np.abs(one).max() > 0.01
