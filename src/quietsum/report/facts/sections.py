"""The parts of a report beside its figures: files, dates, utility, what is protected and what is not.

None of it says who took part in which round, or what a rule made of a party (rule 5). That is added by
:func:`tell_operator`, for the operator's own edition alone.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quietsum.errors import CorruptState
from quietsum.ledger import Ledger, canonical, digest
from quietsum.plan import ResolvedPlan
from quietsum.report.figures import show_bound, small
from quietsum.runs import findings, read_groups, read_left_out

__all__ = [
    "NO_AUDIT",
    "WITHHELD",
    "hash_file",
    "hash_utility",
    "list_artefacts",
    "list_protected",
    "name_dates",
    "name_rule",
    "name_versions",
    "tell_operator",
    "utility_of",
]

NO_AUDIT = {"made": False, "text": "No audit was made: no attack was tried on what was released to test the claim."}
WITHHELD = "Findings about single parties are in the operator's edition alone."
_BLOCK = 1 << 20


# ------------------------------------------------------------------------------------------------ files and dates


def list_artefacts(folder: Path, names: Iterable[str]) -> list[dict[str, Any]]:
    """Name, size and SHA-256 of those files that are there."""
    found = []
    for name in names:
        path = folder / name
        if path.is_file():
            size, hashed = hash_file(path)
            found.append({"file": name, "bytes": size, "sha256": hashed})
    return found


def hash_file(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a plain file; CorruptState if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CorruptState(f"{path} is no plain file")
            total, size = hashlib.sha256(), 0
            while block := file.read(_BLOCK):
                total.update(block)
                size += len(block)
        return size, total.hexdigest()
    except OSError as error:
        raise CorruptState(f"{path} cannot be read ({error.strerror or error})") from None


def name_dates(ledger: Ledger, *, created: str, released: str) -> dict[str, Any]:
    """When the run was begun, when its last result was released, and as of when the ledger speaks."""
    newest = next(iter(ledger.entries(ledger.head.sequence)), None)
    return {"begun": created, "released": released or None, "as_of": None if newest is None else newest.time}


def name_versions() -> dict[str, str]:
    """What computed the figures."""
    import numpy
    import scipy

    from quietsum import __version__

    return {
        "quietsum": __version__, "python": platform.python_version(), "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------- utility


def utility_of(
    scores: Sequence[Mapping[str, Any]],
    references: Mapping[str, float],
    verdict: str,
    *,
    artefacts: Sequence[Mapping[str, Any]],
    answers: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """How good the release is, bound by a hash to itself and to the files that it speaks of."""
    values: dict[str, Any] = {
        "scores": [dict(one) for one in scores], "references": dict(references), "verdict": verdict,
        **({"answers": [dict(one) for one in answers]} if answers else {}),
    }  # fmt: skip
    return {**values, "sha256": hash_utility(values, artefacts)}


def hash_utility(utility: Mapping[str, Any], artefacts: Sequence[Mapping[str, Any]]) -> str:
    """SHA-256 of the utility and of the hashes of the released files, as canonical JSON."""
    said = {name: value for name, value in utility.items() if name != "sha256"}
    return digest(canonical([said, [one["sha256"] for one in artefacts]]))


# --------------------------------------------------------------------------------------- protected, not protected

_WHOM = {
    "record": "whether one record was used", "person": "whether one person's records were used",
    "client": "whether one client took part",
}  # fmt: skip
_AGAINST = {"server": "the server", "recipients": "recipients of the model"}


def list_protected(
    block: Mapping[str, Any], guarantees: Sequence[Mapping[str, Any]], card: Mapping[str, Any] | None, *, drill: bool
) -> dict[str, list[str]]:
    """Two lists in plain words: what this run protects, and what it does not."""
    kept: list[str] = []
    binding = {unit["unit"]: place for place, unit in enumerate(block["units"])}
    for one in sorted(guarantees, key=lambda one: binding.get(one["unit"], 9)):
        if one["epsilon"] == "Infinity" or drill:
            continue
        kept.append(
            f"{_WHOM[one['unit']]}, against {_AGAINST[one['observer']]}: ε ≤ {show_bound(one['epsilon'])} at "
            f"δ = {small(one['delta'])}"
        )
    missing: list[str] = []
    clauses = [] if card is None else card["clauses"]
    for clause in clauses:
        priced = clause["name"].startswith(("record-", "person-", "client-"))
        if clause["provided"] and not priced:
            kept.append(f"{clause['title']}: {clause['text']}")
        elif not clause["provided"] and clause.get("applies", True):
            missing.append(f"Not promised: {_lower(clause['title'])}. {clause['text']}")
    missing += [
        "What holds for many records together: patterns of a whole group are what the release is made to show.",
        "The plan, the task, the form of the model, the declared sizes and the scores: they are public.",
        "What is learnt of a record in other ways, from other releases or outside this system.",
    ]
    return {"protected": kept, "not_protected": missing}


def _lower(title: str) -> str:
    """The title in the middle of a sentence."""
    return title[:1].lower() + title[1:]


def name_rule(resolved: ResolvedPlan | None, card: Mapping[str, Any] | None) -> dict[str, Any]:
    """The robust rule and its limits, as the plan has them; what it made of single parties is not said here."""
    limits = next((one["text"] for one in (card or {}).get("clauses", ()) if one["name"] == "robustness"), "")
    if resolved is None:
        return {"rule": "none", "title": "no aggregation", "attackers": 0, "limits": "", "findings": WITHHELD}
    rule = resolved.robust
    return {
        "rule": "mean" if rule is None else rule.name,
        "title": "mean of all updates" if rule is None else rule.facts.title,
        "attackers": 0 if rule is None else resolved.attackers,
        "limits": limits, "findings": WITHHELD,
    }  # fmt: skip


def tell_operator(path: Path) -> dict[str, Any]:
    """What run.db holds about single parties, for the operator's edition."""
    rejected, groups, found = read_left_out(path), read_groups(path), findings(path)
    return {
        "left_out": None if rejected is None else rejected.to_dict(),
        "groups": {"judged": len(groups), "left_out": sum(not kept for *_, kept in groups)} if groups else None,
        "findings": [one.to_dict() for one in found],
    }
