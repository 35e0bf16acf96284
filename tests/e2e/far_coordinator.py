"""A coordinator for the test across network namespaces: a SuperLink on an address, and one run with test seeds."""

from __future__ import annotations

import sys
from pathlib import Path

from quietsum.federation.flower.coordinator import FlowerTransport
from quietsum.federation.flower.superlink import SuperLink
from quietsum.federation.remote.federation import RemoteFederation
from quietsum.identity.nodekeys import read_parties, read_verifiers
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.plan import load_plan
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start


def main() -> None:
    folder, host, port = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    keys = folder / "keys"
    with SuperLink(
        folder / "link",
        host=host,
        port=port,
        certificate=keys / "server.crt",
        key=keys / "server.key",
        authority=keys / "ca.crt",
        clients=keys / "clients.crt",
    ) as link:
        link.admit(read_parties(keys / "parties.toml"))
        roster = read_verifiers(keys / "parties.toml")
        federation = RemoteFederation(FlowerTransport(link.access), roster=roster, patience=600.0)
        try:
            result = start(
                load_plan(folder / "run.toml"),
                workspace=Workspace.at(folder / "across"),
                federation=federation,
                rng=randomness_for_tests(6),
            )
        finally:
            federation.close()
    print(f"outcome {result.outcome} {result.error or ''}")
    print(f"model {result.folder.model}", flush=True)


if __name__ == "__main__":
    main()
