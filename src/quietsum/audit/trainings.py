"""The audit of a training in a workspace: its record of canaries against the plan that its ledger has frozen.

The claim is read from the ledger and not from the run: noise and rate of each step stand in the plan that was hashed
before the first of them. ``audit.json`` holds the result beside the model, with the hash of the record that it was made
from; it says nothing about a real record and may go to recipients, while the record stays.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietsum.audit.verdict import CanaryAudit, CanaryClaim, Conclusion, judge_canaries
from quietsum.errors import CorruptState, QuietsumError
from quietsum.files import read_file, write_atomically
from quietsum.learning import CANARIES, read_canaries
from quietsum.ledger import Charge, Ledger, Terms, ledger_exists, price_charge
from quietsum.runs import Workspace

__all__ = [
    "AUDIT", "FORMAT", "audit_training", "claim_of", "hash_canaries", "read_audit", "read_finding", "write_audit",
]  # fmt: skip

AUDIT = "audit.json"
"""The file beside a training that holds what its audit found."""
FORMAT = "quietsum-audit-1"
_HOW = "canaries are part of a training's plan: quietsum train … --audit 500, or PrivateTrainer(…, audit=Canaries())"


def claim_of(settings: Mapping[str, Any], *, epsilon: float | None, delta: float) -> CanaryClaim:
    """The claim in the frozen settings of a training; raises CorruptState if they are none."""
    try:
        more = float(settings["audit"]["more"])
        if not 1 <= more < math.inf:
            raise ValueError(f"its noise is said to be {more} times what its clip needs")
        noise = [float(one["noise_multiplier"]) * more for one in settings["stages"] for _ in range(int(one["steps"]))]
        return CanaryClaim(noise=tuple(noise), rate=float(settings["sample_rate"]), epsilon=epsilon, delta=delta)
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(f"the plan of the training cannot be read ({error})") from None


def audit_training(run: str, workspace: Workspace) -> CanaryAudit:
    """Judge the training ``run`` and write ``audit.json`` into its folder."""
    folder = workspace.path / "training" / run
    settings, epsilon, delta = _frozen(run, workspace)
    record = read_canaries(folder / CANARIES, run)
    if record is None:
        raise CorruptState(f"{folder / 'canaries'} is missing, and the plan of {run} has canaries; restore it")
    audit = judge_canaries(record, claim_of(settings, epsilon=epsilon, delta=delta))
    write_audit(folder / AUDIT, run, audit.to_dict(), record=folder / CANARIES)
    return audit


def _frozen(run: str, workspace: Workspace) -> tuple[Mapping[str, Any], float, float]:
    """The settings of a training in the ledger, and its ε and δ by today's prices."""
    if not ledger_exists(workspace.ledger):
        raise QuietsumError(f"{workspace.ledger} does not exist, so there is no run to audit; name its --workspace")
    with Ledger.open(workspace.ledger, read_only=True) as ledger:
        if all(summary.run != run for summary in ledger.runs()):
            known = ", ".join(summary.run for summary in ledger.runs()) or "none yet"
            raise QuietsumError(f"{run} is no run of {workspace.path}; known: {known}")
        body = ledger.run_entry(run).body
    settings = body["plan"].get("training")
    if not isinstance(settings, Mapping):
        raise QuietsumError(f"{run} is no training at one site; quietsum audit knows federations as well")
    if "audit" not in settings:
        raise QuietsumError(f"{run} carried no canaries, and they cannot be added afterwards; {_HOW}")
    try:
        terms, (charge,) = Terms.from_dict(body["terms"]), (Charge.from_dict(one) for one in body["planned"])
        delta = terms.limits[0].delta
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise CorruptState(f"run {run} is no training of one site ({error!r})") from None
    found = price_charge(charge, delta=delta, accounting=terms.accounting, neighbours=terms.neighbours)
    return settings, found.epsilon, delta


def hash_canaries(folder: Path) -> str:
    """SHA-256 over the files of a record, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        total.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def write_audit(place: Path, run: str, values: Mapping[str, Any], *, record: Path, mode: int | None = None) -> None:
    """Write what an audit of ``run`` found by the ``record`` of canaries in that folder."""
    whole = {"format": FORMAT, "run": run, "record": hash_canaries(record), **values}
    content = json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    write_atomically(place, content, mode=mode)


def read_audit(folder: Path, run: str) -> dict[str, Any] | None:
    """What the last audit of ``run`` in ``folder`` found; None if there was none. Raises CorruptState if it is none."""
    return read_finding(folder / AUDIT, run, record=folder / CANARIES)


def read_finding(path: Path, run: str, *, record: Path) -> dict[str, Any] | None:
    """What :func:`write_audit` wrote of ``run``; None if nothing. Raises CorruptState if it is of another record."""
    if not path.is_file():
        return None
    try:
        values: dict[str, Any] = json.loads(read_file(path))
        if values["format"] != FORMAT or values["run"] != run:
            raise ValueError("it is of another run or version")
        Conclusion(values["conclusion"])
        if not isinstance(values["sentence"], str) or not isinstance(values["record"], str):
            raise ValueError("it holds no conclusion")
        for name in ("canaries", "included", "steps"):
            if not isinstance(values[name], int):
                raise ValueError(f"{name} is no number")
        for name in ("evidence", "powers"):
            if not isinstance(values[name], list) or not all(isinstance(one, dict) for one in values[name]):
                raise ValueError(f"{name} is no list")
        float(values["lower_bound"]["epsilon"])
        if values["record"] != hash_canaries(record):
            raise ValueError("the record of canaries is not the one it was made from")
        return values
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); make it again: quietsum audit {run}") from None
