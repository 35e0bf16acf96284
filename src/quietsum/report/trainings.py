"""The report of a training at one site (``quietsum train``, or ``PrivateTrainer`` with a workspace).

Its folder holds a model whose header says what it cost; the ledger holds the frozen plan and every charge. The report
is made from these, without torch: a header is JSON, and weights are not read. Scores are those that ``quietsum train``
kept beside the model, with the model's hash; a training from Python keeps none.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from quietsum.audit import AUDIT, read_audit
from quietsum.errors import CorruptState, LedgerBroken, QuietsumError
from quietsum.files import read_file
from quietsum.ledger import (
    PRICING,
    Charge,
    CostTally,
    Head,
    Ledger,
    RunHistory,
    Terms,
    budget_to,
    claim_guarantees,
    cost_of,
    ledger_exists,
    price_charge,
)
from quietsum.plan import NO_GUARANTEE
from quietsum.privacy import BOUNDED, Budget, Guarantee, PrivacyUnit, person_event
from quietsum.report.contents import SCHEMA, VERSION, over_all_runs
from quietsum.report.facts.audits import report_audit, warn_of_audit
from quietsum.report.facts.cards import card_of_training
from quietsum.report.facts.protection import UnitPromise, describe, name_nine, stages_of
from quietsum.report.facts.sections import (
    hash_file,
    list_artefacts,
    list_protected,
    name_dates,
    name_rule,
    name_versions,
    utility_of,
)
from quietsum.report.facts.verdict import judge_scores
from quietsum.report.figures import percent, show_bound, small
from quietsum.report.signed.signing import plain_values
from quietsum.report.verifier import fingerprint_of
from quietsum.runs import RunFolder, Workspace, plain_scores, take_check

__all__ = ["SCORES_FILE", "Training", "build_training", "find_run", "find_training", "list_training"]

SCORES_FILE = "scores.json"
"""The file beside a training that holds its scores on public rows."""
FORECAST = 60


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The folder of one training."""

    path: Path
    run: str

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.path / "model.safetensors"


def find_training(name: str, workspace: Workspace) -> Training | None:
    """The training ``name`` of ``workspace``, or in the folder ``name``; None if there is none."""
    marks = ("options.json", "checkpoint.safetensors", "model.safetensors")
    for path in (workspace.path / "training" / name, Path(name)):
        own = any((path / mark).is_file() for mark in marks) and not (path / "run.json").exists()
        if name != "latest" and own:
            return Training(path=path, run=path.resolve().name)
    return None


def find_run(name: str, workspace: Workspace) -> RunFolder | Training:
    """The run or the training ``name``; ``latest`` is the newest of both. Raises InvalidParameter if there is none."""
    found = find_training(name, workspace)
    if found is None and name == "latest":
        found = _newest_training(workspace)
    return workspace.find(name) if found is None else found


def _newest_training(workspace: Workspace) -> Training | None:
    """The newest training, where it was begun after all runs."""
    if not any((workspace.path / "training").glob("*/options.json")) or not ledger_exists(workspace.ledger):
        return None
    newest = max((folder.sequence for folder in workspace.folders()), default=0)
    with Ledger.open(workspace.ledger, read_only=True) as ledger:
        later = sorted(((one.sequence, one.run) for one in ledger.runs() if one.sequence > newest), reverse=True)
    found = (find_training(str(workspace.path / "training" / run), workspace) for _, run in later)
    return next((one for one in found if one is not None), None)


def list_training(training: Training, workspace: Workspace) -> dict[str, Any]:
    """A few words on it, in the form of :func:`~quietsum.report.listing.list_run`."""
    values = build_training(training, workspace)
    metric = values["metrics"][0] if values["metrics"] else {"name": None, "value": None, "on": ""}
    return {
        "run": training.run, "outcome": values["outcome"], "round": values["round"], "rounds": values["rounds"],
        "guarantees": [one for one in values["guarantees"] if one["observer"] == "recipients"],
        "metric": metric["name"], "value": metric["value"], "metric_on": metric["on"], "drill": False,
    }  # fmt: skip


def build_training(training: Training, workspace: Workspace) -> dict[str, Any]:
    """Everything its report says, as plain values; the ledger is opened for reading, without its key."""
    from quietsum import __version__

    with Ledger.open(workspace.ledger, read_only=True) as ledger:
        about = _header(training.model, ledger)
        if about is not None and about.get("run") != training.run:
            raise CorruptState(f"{training.model} is the model of another run; put this run's own file back")
        entry = ledger.run_entry(training.run)
        history = RunHistory(ledger, training.run).read()
        try:
            terms, settings = Terms.from_dict(entry.body["terms"]), entry.body["plan"]["training"]
            (charge,) = (Charge.from_dict(one) for one in entry.body["planned"])
            (dataset,) = entry.body["datasets"]
            rounds, rate = int(settings["epochs"]), float(settings["sample_rate"])
        except (LookupError, TypeError, ValueError, QuietsumError) as error:
            raise CorruptState(f"run {training.run} is no training of one site ({error!r})") from None
        promises = _promises(charge, terms, settings, history, about is not None, _find_stated(training))
        block = describe(promises, accounting=terms.accounting, neighbours=terms.neighbours, pricing=PRICING)
        claimed = [one for promise in promises for one in promise.guarantees]
        guarantees = [one.to_dict() for one in claimed]
        scores = _scores(training)
        artefacts = list_artefacts(training.path, ("model.safetensors", AUDIT))
        audit = report_audit(read_audit(training.path, training.run), carries=bool(settings.get("audit")))
        verdict, public = judge_scores(scores, {}), str(dataset["public"])
        clauses = card_of_training(
            block, settings, plan=str(entry.body["plan_hash"]), audited=bool(settings.get("audit")),
            summary=f"Training of one site on {dataset['dataset']}, {int(dataset['size']):,} records.",
        ).to_dict()  # fmt: skip
        size, limits = int(dataset["size"]), [budget_to(limit) for limit in terms.limits]
        books = _books(ledger, charge)
        head, public_key = ledger.head, ledger.identity.public_key
        outcome = "finished" if about is not None else "interrupted"
        charged = sum(sum(events.values()) for events in history.charged.values())
        done = min(rounds, math.ceil(charged / max(1, int(settings["steps_per_epoch"]))))
        values = {
            **name_nine(block, None, terms.accounting),
            "version": __version__,
            "format": VERSION,
            "schema": SCHEMA,
            "edition": "recipients",
            "kind": "training",
            "run": training.run,
            "created": entry.time,
            "dates": name_dates(ledger, created=entry.time, released=history.released),
            "versions": name_versions(),
            "summary": (
                f"Training of one site on {dataset['dataset']}: {size:,} records, {done} of {rounds} epochs, "
                + ("finished." if about is not None else "not finished.")
            ),
            "outcome": outcome,
            "round": done,
            "rounds": rounds,
            "style": "sample",
            "sentences": [*map(_sentence, block["units"]), *over_all_runs(books)],
            "warnings": [*warn_of_audit(audit), *_warnings(claimed, settings)],
            "notes": [f"No lifetime budget was used: {public}."] if public else [],
            "guarantees": guarantees,
            "privacy": block,
            "lifetime": books,
            "limit": limits[0] if limits else None,
            "limits": limits,
            "spent": [
                {"round": place, "epsilon": epsilon, "unit": "record"}
                for place, (_, epsilon) in enumerate(history.by_round(PrivacyUnit.RECORD), 1)
                if math.isfinite(epsilon)
            ],
            "metrics": scores,
            "references": {},
            "verdict": verdict,
            "utility": utility_of(scores, {}, verdict, artefacts=artefacts),
            "artefacts": artefacts,
            "audit": audit,
            "robustness": name_rule(None, None),
            **list_protected(block, guarantees, clauses, drill=False),
            "parties": [{**dataset, "name": dataset["party"], "clients": 1, "rate": rate}],
            "card": clauses,
            "layers": [],
            "plan": dict(entry.body["plan"]),
            "plan_digest": entry.body["plan_hash"],
            "ledger": {
                "head": head.to_dict(), "public_key": public_key, "sites_keep_books": False,
                "fingerprint": fingerprint_of(public_key),
            },
        }  # fmt: skip
        made: dict[str, Any] = plain_values(values)
        return made


def _header(path: Path, ledger: Ledger) -> Mapping[str, Any] | None:
    """What the finished model says of itself, whose head the ledger must contain; None if there is no model."""
    if not path.is_file():
        return None
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {})["quietsum"])
        head = Head.from_dict(about["head"])
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None
    if not ledger.contains(head):
        raise LedgerBroken(
            f"does not contain the head that {path} was saved with",
            at=head.sequence,
            remedy="it was rolled back, cut or replaced: restore the newest copy, then run quietsum ledger verify",
        )
    made: Mapping[str, Any] = about
    return made


def _promises(
    charge: Charge, terms: Terms, settings: Mapping[str, Any], history: RunHistory, finished: bool, asked: float | None
) -> list[UnitPromise]:
    limit = terms.limit(PrivacyUnit.RECORD)
    stages = stages_of(charge.event)
    if limit is None or not stages:
        return []
    steps = settings["stages"]
    common: dict[str, Any] = {
        "clip_norm": float(steps[0]["max_norm"]), "noise_multiplier": float(steps[0]["noise_multiplier"]),
    }  # fmt: skip
    rows = tuple(
        (place, epsilon, tally)
        for place, (_, epsilon, tally) in enumerate(history.list_charges_by_round(PrivacyUnit.RECORD), 1)
    )
    forecast = _forecast(charge, settings)
    record = UnitPromise(
        charge=charge, delta=limit.delta, budget=limit.epsilon, stated=settings.get("epsilon") is not None,
        guarantees=_claim(charge, limit, terms, finished), rows=rows, forecast=forecast, **common,
    )  # fmt: skip
    most = settings.get("max_records")
    if not isinstance(most, int) or charge.event is None:
        return [record]
    person = dataclasses.replace(charge, unit=PrivacyUnit.PERSON, event=person_event(charge.event, most))
    claimed = _claim(person, limit, terms, finished)
    asked = None if asked is None or claimed[0].epsilon > asked * (1 + 1e-6) else asked
    budget = claimed[0].epsilon if asked is None else asked
    own = UnitPromise(
        charge=person, delta=limit.delta, budget=budget, stated=asked is not None, guarantees=claimed,
        rows=tuple((place, 0.0, _as_person(tally, most)) for place, _, tally in rows),
        forecast=tuple((place, _as_person(tally, most)) for place, tally in forecast), **common,
    )  # fmt: skip
    return [own, record] if asked is not None else [record, own]


def _find_stated(training: Training) -> float | None:
    """The ε per person that the training was asked for, as its options have it; the ledger holds the noise alone."""
    path = training.path / "options.json"
    try:
        stated = json.loads(read_file(path))["config"].get("person_epsilon")
    except FileNotFoundError:  # made from Python
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); restore it from a backup") from None
    return float(stated) if isinstance(stated, int | float) and 0 < stated < math.inf else None


def _claim(charge: Charge, limit: Budget, terms: Terms, finished: bool) -> tuple[Guarantee, ...]:
    found = price_charge(charge, delta=limit.delta, accounting=terms.accounting, neighbours=terms.neighbours)
    (claimed,) = claim_guarantees([found], finished=finished)
    return tuple(dataclasses.replace(claimed, observer=one) for one in charge.observers)


def _as_person(tally: CostTally, most: int) -> CostTally:
    other = CostTally()
    other.leaves = {person_event(event, most): count for event, count in tally.leaves.items()}
    other.failures = dict(tally.failures)
    return other


def _forecast(charge: Charge, settings: Mapping[str, Any]) -> tuple[tuple[int, CostTally], ...]:
    """What is charged after each epoch; empty if the plan's stages are not those of the charge."""
    leaves = dict(cost_of(charge).leaves)
    by_noise = {stages_of(event)[0]["noise_multiplier"]: event for event in leaves}
    total = sum(leaves.values())
    tally, found = CostTally(), []
    for place, stage in enumerate(settings["stages"], 1):
        event = by_noise.get(stage["noise_multiplier"])
        if event is None or len(by_noise) < len(leaves) or not total:
            return ()
        own = tally.leaves.get(event, 0) + int(stage["steps"])
        tally = tally.copy()
        tally.leaves[event] = own
        share = math.fsum(tally.leaves.values()) / total
        tally.failures = {charge.failure * share: 1} if charge.failure else {}
        found.append((place, tally))
    every = max(1, len(found) // FORECAST)
    return tuple(one for place, one in enumerate(found, 1) if place % every == 0 or place == len(found))


def _scores(training: Training) -> list[dict[str, Any]]:
    """The scores that were kept beside the model; empty if there are none, an error if they are another model's."""
    path = training.path / SCORES_FILE
    if not path.is_file() or not training.model.is_file():
        return []
    try:
        values = take_check(json.loads(read_file(path)))
        found = plain_scores(values["scores"])
        model = values["model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); delete it: scores are then left out") from None
    if model != hash_file(training.model)[1]:
        raise CorruptState(f"{path} holds the scores of another model; delete it: scores are then left out")
    return found


def _books(ledger: Ledger, charge: Charge) -> list[dict[str, Any]]:
    from quietsum.ledger import exceeds

    return [
        {
            "party": book.party, "dataset": book.dataset, "unit": book.unit.value, "runs": book.plans,
            "epsilon": book.budget.epsilon, "delta": book.budget.delta,
            "observers": sorted(one.value for one in charge.observers), "floats": False,
            "within_budget": book.guarantee is None or not exceeds(book.guarantee.epsilon, book.budget.epsilon),
        }
        for book in ledger.lifetime()
        if (book.party, book.dataset) == (charge.party, charge.dataset) and book.budget is not None and not book.public
    ]  # fmt: skip


def _sentence(unit: Mapping[str, Any]) -> str:
    if unit["epsilon"] == "Infinity" or not math.isfinite(unit["epsilon"]):
        return NO_GUARANTEE
    whether = (
        "whether any one record was used" if unit["unit"] == "record" else "whether any one person was in the data"
    )
    return (
        f"From this run alone, no one who receives the model can tell {whether} and be right more often than "
        f"{percent(unit['attacker']['right'])} of the time, where a coin is right half of the time: "
        f"ε ≤ {show_bound(unit['epsilon'])} per {unit['whom']} at δ = {small(unit['delta'])}."
    )


def _warnings(claimed: list[Guarantee], settings: Mapping[str, Any]) -> list[str]:
    found = [text for one in claimed for text in one.warnings if text not in BOUNDED.values()]
    if settings.get("noise") == "fast":
        found.append(
            "The noise is not floating-point safe: its last bits may reveal more than the guarantee says. "
            'Use noise = "secure" for a release.'
        )
    return list(dict.fromkeys(found))
