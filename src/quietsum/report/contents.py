"""The first report of a run: ``report.json``, and the same as a page.

Everything is read from the run folder and the ledger; nothing is typed in, and no task is made: a plan is data. A
report is for recipients of the model, so it says what was promised and what it cost, and never who took part in which
round (rule 5).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from quietsum.audit import AUDIT, CLIENT_AUDIT, read_audit, read_client_audit
from quietsum.errors import CorruptState
from quietsum.files import read_file, write_atomically
from quietsum.ledger import (
    PRICING,
    Cost,
    CostTally,
    Kind,
    Ledger,
    RunHistory,
    bound_advantage,
    budget_to,
    claim_guarantees,
    cost_of,
    exceeds,
)
from quietsum.plan import NO_GUARANTEE, ClientPlan, Plan, RecordPlan, ResolvedPlan, SecurePlan, card, layers, resolve
from quietsum.privacy import Guarantee, Observer, PrivacyUnit
from quietsum.report.facts.audits import report_audit, report_client_audit, warn_of_audit
from quietsum.report.facts.protection import UnitPromise, binding_unit, describe, name_nine
from quietsum.report.facts.sections import (
    list_artefacts,
    list_protected,
    name_dates,
    name_rule,
    name_versions,
    utility_of,
)
from quietsum.report.facts.verdict import judge_scores
from quietsum.report.figures import percent, show_bound
from quietsum.report.pages.page import render_page
from quietsum.report.signed.signing import plain_values, sign
from quietsum.report.verifier import fingerprint_of, render
from quietsum.runs import (
    RunFolder,
    TaskFacts,
    Workspace,
    latest_checkpoint,
    plain_scores,
    read_model,
    scores_after,
)
from quietsum.validate import finite_number

__all__ = [
    "SCHEMA", "VERSION", "ReportMaterial", "build", "earlier", "look", "over_all_runs", "require_own", "scores_in",
    "sentence", "sign_report", "write",
]  # fmt: skip

VERSION = 1
SCHEMA = "quietsum-report-1"
"""The name of the published schema of this file."""
FORECAST = 60
"""Rounds of which a report states the forecast."""


def write(folder: RunFolder, workspace: Workspace) -> dict[str, Any]:
    """Write ``report.json`` and ``report.html`` into the run folder; returns the values."""
    values = sign_report(build(folder, workspace), workspace)
    write_atomically(folder.path / "report.json", render(values))
    write_atomically(folder.path / "report.html", render_page(values).encode())
    return values


def sign_report(values: Mapping[str, Any], workspace: Workspace) -> dict[str, Any]:
    """``values`` signed with the ledger's key; unsigned if that does not lie in the workspace."""
    return sign(plain_values(values), workspace.ledger, values["ledger"]["public_key"])


def build(folder: RunFolder, workspace: Workspace, ledger: Ledger | None = None) -> dict[str, Any]:
    """Everything a report says, as plain values.

    ``ledger`` is the workspace's, where the caller has it open; otherwise it is opened for reading, without its key.
    """
    if ledger is None:
        with Ledger.open(workspace.ledger, read_only=True) as opened:
            return build(folder, workspace, opened)
    from quietsum import __version__

    found = look(folder, workspace, ledger)
    if found is None:
        values = earlier(folder)
        if any(line.run == folder.run for line in ledger.corrections()[0]):
            told = f"ε of this report was corrected since: quietsum ledger show --run {folder.run} tells what it is."
            values["notes"] = [*values["notes"], told]
        return values
    plan, resolved, claimed, number, outcome = found.plan, found.resolved, found.claimed, found.round, found.outcome
    books = _books(ledger, resolved)
    history = RunHistory(ledger, folder.run).read()
    head, public_key = ledger.head, ledger.identity.public_key
    own_books = any(entry.body["run"] == folder.run for entry, _ in ledger.receipts())
    metrics, references = scores_in(folder, number, found.about)
    limit, privacy = resolved.limit, plan.privacy
    promises = _promises(resolved, claimed, history)
    block = describe(promises, accounting=privacy.accounting, neighbours=privacy.neighbours, pricing=PRICING)
    clauses, guarantees = card(resolved).to_dict(), [guarantee.to_dict() for guarantee in claimed]
    released = ("model.safetensors", "weights.safetensors", "answers.json", AUDIT, CLIENT_AUDIT)
    artefacts = list_artefacts(folder.path, released)
    audit, clients = _audits(folder, plan)
    verdict, drill = judge_scores(metrics, references), plan.attack is not None
    values = {
        **name_nine(block, resolved, privacy.accounting),
        "version": __version__,
        "format": VERSION,
        "schema": SCHEMA,
        "edition": "recipients",
        "kind": _kind(plan),
        "run": folder.run,
        "created": folder.created,
        "dates": name_dates(ledger, created=folder.created, released=history.released),
        "versions": name_versions(),
        "summary": _summary(resolved, found.title, number, outcome),
        "outcome": outcome,
        "round": number,
        "rounds": plan.federation.rounds,
        "style": plan.privacy.style.value,
        "sentences": [*_sentences(claimed, resolved, number), *over_all_runs(books)],
        "warnings": [*warn_of_audit(audit, clients), *_warnings(claimed, resolved)],
        "notes": [*_notes(resolved), *_corrections(resolved, ledger.pricing_of(folder.run))],
        "guarantees": guarantees,
        "privacy": block,
        "lifetime": books,
        "limit": None if limit is None else budget_to(limit),
        "limits": [budget_to(one) for one in resolved.limits],
        "spent": [
            {"round": round_number, "epsilon": epsilon, "unit": one.unit.value}
            for one in resolved.limits
            for round_number, epsilon in history.by_round(one.unit)
            if math.isfinite(epsilon)
        ],
        "metrics": metrics,
        "references": references,
        "verdict": verdict,
        "utility": utility_of(metrics, references, verdict, artefacts=artefacts, answers=read_answers(folder.path)),
        "artefacts": artefacts,
        "audit": audit,
        **({} if clients is None else {"client_audit": clients}),
        "robustness": name_rule(resolved, clauses),
        **list_protected(block, guarantees, clauses, drill=drill),
        "parties": _parties(resolved),
        "card": clauses,
        "layers": [layer.to_dict() for layer in layers(resolved, sites=folder.sites)],
        "plan": plan.to_dict(),
        "plan_digest": plan.digest,
        "ledger": {
            "head": head.to_dict(),
            "public_key": public_key,
            "sites_keep_books": own_books,
            "fingerprint": fingerprint_of(public_key),
        },
    }
    made: dict[str, Any] = plain_values(values)
    return made


def _audits(folder: RunFolder, plan: Plan) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What canaries found, at records and at whole clients; the second is None where the plan has no such canaries."""
    client = plan.privacy.client
    carried = client is not None and client.canaries > 0
    records = report_audit(
        read_audit(folder.path, folder.run), carries=plan.training.canaries > 0, sites=folder.sites, clients=carried
    )
    return records, report_client_audit(read_client_audit(folder.path, folder.run)) if carried else None


def _kind(plan: Plan) -> str:
    from quietsum.analytics import TASK

    return "questions" if plan.task.name == TASK else "federation"


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """The answers of a run that asked questions, as plain values; empty if there are none."""
    path = folder / "answers.json"
    if not path.is_file():
        return []
    try:
        found = json.loads(read_file(path))["answers"]
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise ValueError("its answers are no list of objects")
        return found
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None


def _promises(resolved: ResolvedPlan, claimed: Sequence[Guarantee], history: RunHistory) -> list[UnitPromise]:
    """One promise for each unit of a plan that protects anything, the binding one first."""
    units = [limit.unit for limit in resolved.limits]
    first = binding_unit(resolved.plan, units)
    return [_promise(resolved, unit, claimed, history) for unit in sorted(units, key=lambda unit: unit is not first)]


def _promise(
    resolved: ResolvedPlan, unit: PrivacyUnit, claimed: Sequence[Guarantee], history: RunHistory
) -> UnitPromise:
    privacy = resolved.plan.privacy
    record, client, person = privacy.record or RecordPlan(), privacy.client or ClientPlan(), privacy.person
    limit = resolved.limit_of(unit)
    assert limit is not None
    worst = resolved.cost(unit, resolved.attempts, limit.delta)[0]
    planned = {one.party: one for one in resolved.all_charges() if one.unit is unit}
    target = {
        PrivacyUnit.RECORD: record.epsilon, PrivacyUnit.CLIENT: client.epsilon,
        PrivacyUnit.PERSON: None if person is None else person.epsilon,
    }[unit]  # fmt: skip
    own = PrivacyUnit.CLIENT if unit is PrivacyUnit.CLIENT else PrivacyUnit.RECORD
    return UnitPromise(
        charge=planned[worst], delta=limit.delta, budget=limit.epsilon,
        stated=target is not None or (privacy.preset is not None and unit is not PrivacyUnit.PERSON),
        clip_norm=client.max_norm if unit is PrivacyUnit.CLIENT else record.max_grad_norm,
        noise_multiplier=resolved.noise_of(own),
        guarantees=tuple(one for one in claimed if one.unit is unit),
        rows=tuple(history.list_charges_by_round(unit)), forecast=_forecast(resolved, unit, limit.delta),
        noise_at=client.noise_at if unit is PrivacyUnit.CLIENT else record.noise_at, kind=_kind(resolved.plan),
    )  # fmt: skip


def _forecast(resolved: ResolvedPlan, unit: PrivacyUnit, delta: float) -> tuple[tuple[int, CostTally], ...]:
    """What the worst party is charged after each round, if the schedule runs as planned; few rounds of long plans."""
    rounds = resolved.plan.federation.rounds
    wanted = sorted({1 + place * (rounds - 1) // (FORECAST - 1) for place in range(FORECAST)})
    by_stage: dict[tuple[str, float], Cost] = {}
    found = []
    for number in wanted:
        party = resolved.cost(unit, number, delta)[0]
        tally = CostTally()
        for noise, count in Counter(resolved.plan.stage(place).noise for place in range(1, number + 1)).items():
            if (party, noise) not in by_stage:
                place = next(one for one in range(1, rounds + 1) if resolved.plan.stage(one).noise == noise)
                charges = resolved.charges(number=place)
                by_stage[party, noise] = cost_of(next(o for o in charges if o.party == party and o.unit is unit))
            tally.add(by_stage[party, noise], count)
        found.append((number, tally))
    return tuple(found)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportMaterial:
    """What a run folder and its ledger say before anything is added up."""

    plan: Plan
    title: str
    resolved: ResolvedPlan
    claimed: tuple[Guarantee, ...]
    round: int
    outcome: str
    about: Mapping[str, Any] | None
    """The model's header; None where there is no model."""


def look(folder: RunFolder, workspace: Workspace, ledger: Ledger) -> ReportMaterial | None:
    """The plan as it is priced today, and how far the run came; None in folders that keep nothing but their report."""
    require_own(folder, workspace, ledger)
    plan = folder.plan()
    last = latest_checkpoint(folder.checkpoints, of_parties=False)
    about = read_model(folder.model)[1] if folder.model.is_file() else None
    outcome = _outcome(folder, about)
    facts = TaskFacts.read(folder.path)
    if facts is None:
        dimension = 0 if last is None else len(last.state.params)
        facts = TaskFacts.from_ledger(ledger, folder.run, plan, dimension) if dimension else None
    if facts is None:
        return None
    resolved = resolve(plan, facts.parties, facts.dimension, pricing=ledger.pricing_of(folder.run))
    claimed = claim_guarantees(
        resolved.forecast(at=()).whole,
        finished=outcome == "finished",
        spare_attempts=plan.federation.spare_attempts,
    )
    return ReportMaterial(
        plan=plan, title=facts.title, resolved=resolved, claimed=claimed,
        round=0 if last is None else last.round, outcome=outcome, about=about,
    )  # fmt: skip


def require_own(folder: RunFolder, workspace: Workspace, ledger: Ledger) -> None:
    """CorruptState where the run was paid from another ledger."""
    if ledger.identity.ledger != folder.ledger:
        raise CorruptState(f"{workspace.ledger} is not the ledger of run {folder.run}; state its --workspace")


def _parties(resolved: ResolvedPlan) -> list[dict[str, Any]]:
    """Who is registered; clients that were dealt out of one data set are one line."""
    counts = Counter(party.account for party in resolved.parties)
    return [
        {**dataset.to_dict(), "name": dataset.party, "clients": counts[dataset.party]}
        for dataset in resolved.datasets()
    ]


def _outcome(folder: RunFolder, about: Mapping[str, Any] | None) -> str:
    """How the run ended, as its model says; without one it goes on in some process, or was broken off."""
    if about is None:
        return "running" if folder.busy() else "interrupted"
    return str(about.get("outcome", "unknown"))


def scores_in(
    folder: RunFolder, number: int, about: Mapping[str, Any] | None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The scores after round ``number`` and those of models without privacy, as the run wrote them down."""
    if not number:  # the model that everybody begins with says nothing about this run
        return [], {}
    if about is not None and about.get("round") == number and "metrics" in about:
        try:
            references = {str(name): finite_number(name, value) for name, value in about["references"].items()}
            return plain_scores(about["metrics"]), references
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptState(f"{folder.model} cannot be read ({error}); restore it from a backup") from None
    if about is not None and (folder.path / "report.json").is_file():  # of an older version
        values = earlier(folder)
        if values["round"] == number:
            return values["metrics"], values["references"]
    return scores_after(folder.path / "run.db", number), {}


def earlier(folder: RunFolder) -> dict[str, Any]:
    """The report as the run wrote it, where an older version kept nothing else of its task."""
    path = folder.path / "report.json"
    try:
        values: dict[str, Any] = json.loads(read_file(path))
        if values["format"] != VERSION or values["run"] != folder.run:
            raise ValueError("it is of another run or version")
        return values
    except FileNotFoundError:
        raise CorruptState(
            f"{folder.path} was begun by an older quietsum and has no report: quietsum run --resume {folder.run} goes "
            "on with it and writes down what its task says; a report alone does not make the task"
        ) from None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None


def _summary(resolved: ResolvedPlan, title: str, number: int, outcome: str) -> str:
    how = {
        "finished": "finished", "running": "not finished", "interrupted": "not finished, interrupted",
        "budget": "stopped by its budget",
        "too-few-parties": "stopped, too few parties",
    }.get(outcome, outcome)  # fmt: skip
    parties, rounds = len(resolved.parties), resolved.plan.federation.rounds
    drill = " This was a drill." if resolved.plan.attack is not None else ""
    return f"{title}: {parties} parties, {number} of {rounds} rounds, {how}.{drill}"


def _sentences(claimed: tuple[Guarantee, ...], resolved: ResolvedPlan, number: int) -> list[str]:
    if not claimed:
        return [f"{NO_GUARANTEE}: this model was trained without noise; it may reveal the records it was trained on."]
    if not number:
        return ["No round was finished, so this run has no model to promise anything about."]
    alike: dict[tuple[PrivacyUnit, float], list[Guarantee]] = {}
    first = binding_unit(resolved.plan, [limit.unit for limit in resolved.limits])
    for guarantee in sorted(claimed, key=lambda one: one.unit is not first):
        alike.setdefault((guarantee.unit, guarantee.epsilon), []).append(guarantee)
    return [sentence(guarantees, resolved) for guarantees in alike.values()]


def sentence(guarantees: list[Guarantee], resolved: ResolvedPlan) -> str:
    """Guarantees of one unit in plain words; what is said holds against every observer that is named."""
    guarantee = max(guarantees, key=lambda one: one.epsilon)
    if math.isinf(guarantee.epsilon):
        return NO_GUARANTEE
    epsilon = show_bound(guarantee.epsilon)
    figure = f"ε ≤ {epsilon} per {guarantee.whom} at δ = {guarantee.delta:g}, for {_which(guarantee, resolved)}."
    if resolved.plan.attack is not None:
        return (
            "A drill promises nothing: its attackers see what the other parties send. The same plan without "
            f"[attack] promises {figure}"
        )
    observers = {one.observer for one in guarantees}
    who = {
        frozenset({Observer.SERVER, Observer.RECIPIENTS}): "neither the server nor anyone who receives the models",
        frozenset({Observer.SERVER}): "the server",
        frozenset({Observer.RECIPIENTS}): "no one who receives the models",
    }[frozenset(observers)]
    verb = "cannot" if observers == {Observer.SERVER} else "can"
    whether = {
        PrivacyUnit.RECORD: "whether any one record was used",
        PrivacyUnit.PERSON: "whether any one person's records were used",
        PrivacyUnit.CLIENT: "whether any one client took part"
        if resolved.central_noise
        else "what any one client holds",
    }[guarantee.unit]
    planned = (
        () if "through the client level" in guarantee.method else resolved.all_charges()
    )  # their curve is not its own
    advantage = bound_advantage(guarantee, planned, neighbours=resolved.plan.privacy.neighbours)
    right = percent(0.5 * (1 + advantage))
    return (
        f"From this run alone, {who} {verb} tell {whether} and be right more often than {right} of the time, "
        f"where a coin is right half of the time: {figure}"
    )


def _which(guarantee: Guarantee, resolved: ResolvedPlan) -> str:
    worst = f"the worst of {len(resolved.parties):,} parties"
    if guarantee.unit is PrivacyUnit.CLIENT:
        return f"each of {len(resolved.parties):,} registered clients"
    if guarantee.unit is PrivacyUnit.PERSON:  # rule 12
        return f"{worst}; it holds within one party, and a person with records at two pays at both"
    return worst


def _books(ledger: Ledger, resolved: ResolvedPlan) -> list[dict[str, Any]]:
    """What all runs together have used of each protected dataset's lifetime."""
    ours = {(party.account, party.dataset) for party in resolved.parties if not party.public}
    if not ours:
        return []
    told = _qualify(ledger, ours)
    return [
        {
            "party": book.party, "dataset": book.dataset, "unit": book.unit.value, "runs": book.plans,
            "epsilon": book.budget.epsilon, "delta": book.budget.delta,
            "observers": sorted(told.observers.get(book.unit.value, ())), "floats": told.floats,
            "within_budget": book.guarantee is None or not exceeds(book.guarantee.epsilon, book.budget.epsilon),
        }
        for book in ledger.lifetime()
        if (book.party, book.dataset) in ours and book.budget is not None
    ]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class _Qualified:
    """What runs on some datasets have in common: against whom each unit is protected, and whether by floats."""

    observers: dict[str, set[str]]
    floats: bool


def _qualify(ledger: Ledger, ours: set[tuple[str, str]]) -> _Qualified:
    observers: dict[str, set[str]] = {}
    floats = False
    for entry in ledger.entries():
        if entry.kind is not Kind.RUN:
            continue
        charges = [one for one in entry.body["planned"] if (one["party"], one["dataset"]) in ours]
        for one in charges:
            kept = observers.setdefault(one["unit"], set(one["observers"]))
            kept &= set(one["observers"])
        floats = floats or (bool(charges) and _by_floats(entry.body["plan"]))
    return _Qualified(observers, floats)


def _by_floats(plan: Any) -> bool:
    """Whether a plan's noise is made of floats: its ``noise`` is "fast", at any depth."""
    if not isinstance(plan, Mapping):
        return False
    return plan.get("noise") == "fast" or any(_by_floats(part) for part in plan.values())


def over_all_runs(books: list[dict[str, Any]]) -> list[str]:
    """What holds for everything that was and will be done with the same data."""
    if not books:
        return []
    found = []
    for unit in dict.fromkeys(book["unit"] for book in books):
        some = [book for book in books if book["unit"] == unit]
        found.append(_over_runs(some))
    return found


def _over_runs(books: list[dict[str, Any]]) -> str:
    runs, worst = max(book["runs"] for book in books), max(books, key=lambda book: book["epsilon"])
    if broken := [book for book in books if not book["within_budget"]]:
        return (
            f"From all runs on the same data no bound per {worst['unit']} holds: dataset {broken[0]['dataset']!r} of "
            f"{broken[0]['party']!r} was used beyond its budget, while it was declared public or by prices that were "
            "corrected since."
        )
    against = ", against recipients of the models" if worst["observers"] == [Observer.RECIPIENTS.value] else ""
    safe = " Some of these runs have noise that is not floating-point safe." if worst["floats"] else ""
    return (
        f"From all runs on the same data, past and future ({runs} so far): ε ≤ {show_bound(worst['epsilon'])} per "
        f"{worst['unit']} at δ = {worst['delta']:g}{against}. That is the largest lifetime budget among "
        f"these datasets, and the ledger lets no run exceed it.{safe}"
    )


def _warnings(claimed: tuple[Guarantee, ...], resolved: ResolvedPlan) -> list[str]:
    found = [*resolved.warnings, *(text for guarantee in claimed for text in guarantee.warnings)]
    if resolved.label:
        found.append(
            f"The noise is {resolved.label}: its last bits may reveal more than the guarantee says. "
            'Use noise = "secure" for a release.'
        )
    return list(dict.fromkeys(found))


def _notes(resolved: ResolvedPlan) -> list[str]:
    reasons = dict.fromkeys(party.public for party in resolved.parties if party.public)
    return [*_about_masks(resolved), *(f"No lifetime budget was used: {reason}." for reason in reasons)]


def _about_masks(resolved: ResolvedPlan) -> list[str]:
    """What the server saw under secure aggregation, and on what noise in shares rests."""
    secure = resolved.secure
    if secure is None:
        return []
    chosen = secure.parameters
    told = (
        f"The server sees {_sums_in_words(secure)} a round, of {secure.floor} parties or more; {chosen.threshold} of "
        f"{chosen.holders} must collude beside it to unmask one update."
    )
    if resolved.distributed_unit is not None:
        told += (
            f" The noise is added in shares and charged for {secure.honest} honest parties: it rests on at most "
            f"{secure.colluders} of {secure.seats if secure.grouping else secure.cohort} colluding with the server."
        )
    return [told]


def _sums_in_words(secure: SecurePlan) -> str:
    return "one masked sum" if secure.grouping is None else f"{secure.grouping.count} masked sums of random groups"


def _corrections(resolved: ResolvedPlan, pricing: int) -> list[str]:
    """What prices of then stated of the whole plan, where today's are others."""
    found = []
    for limit in resolved.limits:
        before, now = (
            resolved.cost(limit.unit, resolved.attempts, limit.delta, pricing=version)[1] for version in (pricing, None)
        )
        if exceeds(now.epsilon, before.epsilon) or exceeds(before.epsilon, now.epsilon):
            found.append(
                f"ε per {now.whom} was corrected: when this run was opened its whole plan was said to cost ε ≤ "
                f"{before.epsilon:.6g}, and it costs {now.epsilon:.6g} (docs/explanation/prices.md says why)."
            )
    return found
