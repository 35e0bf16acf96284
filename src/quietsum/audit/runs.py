"""The audit of a finished run: a training at one site, or a federation whose parties carried canaries.

A federation is judged as a whole: every party's record against the noise and rate that the ledger's frozen plan gives
that party in that round. Noise and draws of different parties are independent, so their records are one larger record
under the claim; a test whose law depends on a party's rate or number of canaries counts as often as it is made. The
result is about all parties together, since who took part in which round is the operator's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from quietsum.audit.trainings import AUDIT, audit_training, write_audit
from quietsum.audit.verdict import CanaryAudit, CanaryClaim, judge_parties
from quietsum.errors import CorruptState, QuietsumError
from quietsum.learning import CANARIES, label_of, party_folder, read_party
from quietsum.ledger import Ledger, ledger_exists
from quietsum.plan import Plan, ResolvedPlan, resolve
from quietsum.privacy import PrivacyUnit
from quietsum.runs import RunFolder, TaskFacts, Workspace

__all__ = ["audit_run", "claims_of", "folder_of", "frozen_plan"]

_HOW = "canaries are part of a plan: training.canaries = 100 in run.toml, and quietsum train … --audit 500"


def folder_of(run: str, workspace: Workspace) -> Path:
    """Where a run or a training of this name lies; raises QuietsumError if there is none."""
    for folder in (workspace.path / "training" / run, workspace.runs / run):
        if folder.is_dir():
            return folder
    if not ledger_exists(workspace.ledger):
        raise QuietsumError(f"{workspace.ledger} does not exist, so there is no run to audit; name its --workspace")
    with Ledger.open(workspace.ledger, read_only=True) as ledger:
        known = ", ".join(summary.run for summary in ledger.runs()) or "none yet"
    raise QuietsumError(f"{run} is no run of {workspace.path}; known: {known}")


def audit_run(run: str, workspace: Workspace) -> CanaryAudit:
    """Judge ``run`` by its canaries and write ``audit.json`` into its folder."""
    folder = folder_of(run, workspace)
    if folder.parent != workspace.runs:
        return audit_training(run, workspace)
    known = workspace.find(run)
    resolved = frozen_plan(known, workspace)
    if not resolved.plan.training.canaries:
        raise QuietsumError(f"{run} carried no canaries, and they cannot be added afterwards; {_HOW}")
    if known.sites:
        raise QuietsumError(
            f"the sites of {run} keep what is recorded of their canaries, and audit themselves: quietsum audit {run} "
            "--site policy.toml at each of them"
        )
    found, claims = [], claims_of(resolved)
    for place, party in enumerate(resolved.parties):
        own = read_party(party_folder(folder, place), label_of(run, party.name))
        if own is None:
            raise CorruptState(
                f"{party_folder(folder, place)} is missing, and the plan of {run} has canaries; restore it"
            )
        found.append((own.record, claims(party.name, own.rounds.tolist(), own.more.tolist())))
    audit = judge_parties(found)
    write_audit(folder / AUDIT, run, audit.to_dict(), record=folder / CANARIES)
    return audit


def frozen_plan(folder: RunFolder, workspace: Workspace) -> ResolvedPlan:
    """The plan in the ledger with the sizes that were declared, priced as it was."""
    if not ledger_exists(workspace.ledger):
        raise QuietsumError(f"{workspace.ledger} does not exist, so there is no claim to audit; name its --workspace")
    with Ledger.open(workspace.ledger, read_only=True) as ledger:
        if ledger.identity.ledger != folder.ledger:
            raise CorruptState(f"{workspace.ledger} is not the ledger of run {folder.run}; state its --workspace")
        body, pricing = ledger.run_entry(folder.run).body, ledger.pricing_of(folder.run)
    plan = Plan.from_dict(body["plan"])
    facts = TaskFacts.read(folder.path)
    if facts is None:
        raise CorruptState(f"{folder.path} does not say what its task declared; restore task.json from a backup")
    declared = {(one["party"], one["dataset"]): one["size"] for one in body["datasets"]}
    for party in facts.parties:
        if declared.get((party.name, party.dataset), party.size) != party.size:
            raise CorruptState(f"task.json of {folder.run} and its ledger declare different sizes of {party.name}")
    return resolve(plan, facts.parties, facts.dimension, pricing=pricing)


def claims_of(resolved: ResolvedPlan) -> Callable[[str, list[int], list[float]], CanaryClaim]:
    """What the plan claims of the steps of a party, given their rounds and how far their grid is wider."""
    limit = resolved.limit_of(PrivacyUnit.RECORD)
    assert limit is not None  # a plan with canaries protects records
    worst = resolved.cost(PrivacyUnit.RECORD, resolved.attempts, limit.delta)[1].epsilon

    def claim(party: str, rounds: list[int], more: list[float]) -> CanaryClaim:
        noise = []
        for number, wider in zip(rounds, more, strict=True):
            mechanism = resolved.orders(party, number).mechanism
            assert mechanism is not None
            noise.append(mechanism.noise_multiplier * wider)
        rate = getattr(resolved.sampling_of(party), "rate", 1.0)
        return CanaryClaim(noise=tuple(noise) or 1.0, rate=rate, delta=limit.delta, epsilon=worst)

    return claim
