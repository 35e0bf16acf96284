"""A run in one line: how it ended, how far it came, what it cost and how good it is.

A workspace may hold hundreds of runs, and a line must not cost as much as a report. What a finished run has written
into the header of its model is enough, where the ledger bears it out: the header's head is in the ledger, the plan is
the one that the ledger opened the run with, and each ε is that of the limit under which the ledger let the plan in. Of
any other run, one that was interrupted say, the plan is priced anew. Models and checkpoints are not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from quietsum.errors import CorruptState, LedgerBroken, QuietsumError
from quietsum.ledger import Charge, Head, Ledger, RunSummary, Terms, claim_guarantees, exceeds, price_event
from quietsum.plan import digest_of
from quietsum.privacy import Guarantee
from quietsum.report.contents import earlier, look, require_own, scores_in
from quietsum.runs import RunFolder, Workspace, header_of, newest_checkpoint

__all__ = ["claim_of_training", "list_run"]

CLOSE = 0.99
"""A plan costs nearly its limit; a header that says less than this share of it is not believed."""


def list_run(folder: RunFolder, workspace: Workspace, ledger: Ledger) -> dict[str, Any]:
    """The line of one run, as plain values; ``ledger`` is the workspace's."""
    require_own(folder, workspace, ledger)
    plan = folder.plan()
    about = header_of(folder.model) if folder.model.is_file() else None
    if about is not None and _borne_out(about, folder, ledger):
        return _line(
            folder.run, str(about["outcome"]), about["round"], plan.federation.rounds, about["guarantees"],
            scores_in(folder, about["round"], about)[0], drill=plan.attack is not None,
        )  # fmt: skip
    found = look(folder, workspace, ledger)
    if found is None:
        values = earlier(folder)
        return _line(
            folder.run, values["outcome"], values["round"], values["rounds"], values["guarantees"], values["metrics"]
        )
    metrics, _ = scores_in(folder, found.round, found.about)
    claimed = [guarantee.to_dict() for guarantee in found.claimed]
    return _line(
        folder.run, found.outcome, found.round, plan.federation.rounds, claimed, metrics, drill=plan.attack is not None
    )


def _line(
    run: str,
    outcome: str,
    number: int,
    rounds: int,
    guarantees: Sequence[Mapping[str, Any]],
    metrics: Sequence[Mapping[str, Any]],
    *,
    drill: bool = False,
) -> dict[str, Any]:
    metric = metrics[0] if metrics else {"name": None, "value": None, "on": ""}
    spent = [guarantee for guarantee in guarantees if guarantee["observer"] == "recipients"]
    return {
        "run": run, "outcome": outcome, "round": number, "rounds": rounds, "guarantees": spent,
        "metric": metric["name"], "value": metric["value"], "metric_on": metric["on"], "drill": drill,
    }  # fmt: skip


def _borne_out(about: Mapping[str, Any], folder: RunFolder, ledger: Ledger) -> bool:
    """Whether the ledger bears out what a model's header says; an error where it contradicts it."""
    try:
        head = Head.from_dict(about["head"])
        whole = type(about["round"]) is int and about["round"] == newest_checkpoint(folder.checkpoints)
        if not whole or (about["run"], about["plan"]) != (folder.run, folder.plan_digest):
            return False
        figures = [Guarantee.from_dict(values) for values in about["guarantees"]]
        for one in about.get("metrics", ()):
            str(one["name"]), float(one["value"]), str(one["on"])
    except (LookupError, TypeError, ValueError, QuietsumError):
        return False
    if ledger.is_repriced(folder.run):
        return False
    entry = ledger.run_entry(folder.run)
    terms = Terms.from_dict(entry.body["terms"])
    if entry.body["plan_hash"] != folder.plan_digest and digest_of(entry.body["plan"]) != folder.plan_digest:
        raise CorruptState(
            f"{folder.path} holds another plan than the one that the ledger opened run {folder.run} with (entry "
            f"{entry.sequence}); restore the folder from a backup"
        )
    if not ledger.contains(head):
        raise LedgerBroken(
            f"does not contain the head that {folder.model} was saved with",
            at=head.sequence,
            remedy="it was rolled back, cut or replaced: restore the newest copy, then run quietsum ledger verify",
        )
    units = {limit.unit for limit in terms.limits}
    return units == {one.unit for one in figures} and all(_near(one, terms) for one in figures)


def _near(figure: Guarantee, terms: Terms) -> bool:
    limit = terms.limit(figure.unit)
    if limit is None or figure.delta != limit.delta or figure.neighbours is not terms.neighbours:
        return False
    return not exceeds(figure.epsilon, limit.epsilon) and figure.epsilon >= CLOSE * limit.epsilon


def claim_of_training(ledger: Ledger, known: RunSummary) -> list[Guarantee]:
    """What the plan of a training costs as a whole, as far as anything of it is charged."""
    spent = ledger.spending(known.run)
    body = next(ledger.entries(known.sequence)).body
    terms, planned = Terms.from_dict(body["terms"]), [Charge.from_dict(one) for one in body["planned"]]
    found: list[Guarantee] = []
    for one in spent:
        events = [charge.event for charge in planned if charge.unit is one.unit and charge.event is not None]
        whole = [
            price_event(event, delta=one.delta, accounting=terms.accounting, neighbours=terms.neighbours, unit=one.unit)
            for event in events
        ]
        worst = max(whole, key=lambda each: each.epsilon, default=one)
        finished = worst.epsilon <= one.epsilon * (1 + 1e-6)
        claimed = one if finished else dataclasses.replace(worst, observer=one.observer)
        found += claim_guarantees([claimed], finished=finished)
    return found
