"""The contracts' parties as sites with policies and ledgers of their own, over the transport in memory."""

from __future__ import annotations

from pathlib import Path

from quietsum.federation.remote.federation import RemoteFederation
from quietsum.federation.remote.transport import ListTransport
from quietsum.ledger import Ledger
from quietsum.party.policy import AllowedTask, CoordinatorAddress, Policy, SiteDataset, SiteName
from quietsum.party.service import SiteService
from quietsum.plan import ResolvedPlan


def make_sites(resolved: ResolvedPlan, folder: Path) -> RemoteFederation:
    """The sites of ``resolved``, which have joined the run ``"run"``."""
    services = {}
    for facts in resolved.parties:
        policy = Policy(
            site=SiteName(name=facts.name), coordinator=CoordinatorAddress(address="127.0.0.1:9092"),
            dataset=SiteDataset(name=facts.dataset, size=facts.size, public=facts.public),
            tasks=(AllowedTask(name=resolved.plan.task.name),), folder=folder,
        )  # fmt: skip
        ledger = Ledger.open(folder / f"{facts.name}.db", create=True)
        services[f"node-{facts.name}"] = SiteService(policy, ledger).answer
    made = RemoteFederation(ListTransport(services), roster=None, patience=60.0)
    ledger = Ledger.open(folder / "coordinator.db", create=True)
    ledger.open_run(
        "run", plan=resolved.plan.to_dict(), terms=resolved.terms(), planned=resolved.all_charges(),
        datasets=resolved.datasets(),
    )  # fmt: skip
    made.join("run", resolved, ledger)
    return made
