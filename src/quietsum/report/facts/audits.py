"""The audit in a report: what its canaries concluded, beside the claim, and whether the figures bear it out.

A report holds the figures of ten tests and what each fault's size is that would have been found. The conclusion follows
from them, so a check on another machine draws it again (:func:`check_audit`). That the figures are those of the run's
record cannot be checked without the record, which stays with the holder of the data; its SHA-256 is stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quietsum.audit import Conclusion, conclude
from quietsum.errors import CorruptState
from quietsum.report.facts.sections import NO_AUDIT
from quietsum.report.figures import show_bound

__all__ = ["NOT_YET", "check_audit", "report_audit", "warn_of_audit"]

NOT_YET = {
    "made": False,
    "text": "No audit was made, though the run carried canaries for one: quietsum audit makes it from their record.",
}
AT_SITES = {
    "made": False,
    "text": "No audit stands here, though the run carried canaries for one: what was recorded of them stays with each "
    "of its sites, which audit themselves.",
}
_KEPT = ("conclusion", "canaries", "included", "steps", "claim", "lower_bound", "record")


def report_audit(found: Mapping[str, Any] | None, *, carries: bool, sites: bool = False) -> dict[str, Any]:
    """The section of a report from what :func:`quietsum.audit.read_audit` returned; ``sites`` keep their records."""
    if found is None:
        return dict((AT_SITES if sites else NOT_YET) if carries else NO_AUDIT)
    values: dict[str, Any] = {
        "made": True,
        **{name: found[name] for name in _KEPT},
        "evidence": [{name: one[name] for name in ("name", "found", "p", "contradicts")} for one in found["evidence"]],
        "powers": [{name: one[name] for name in ("fault", "sentence", "enough")} for one in found["powers"]],
    }
    return {**values, "text": f"{found['sentence']}{_beside(values)}"}


def _beside(values: Mapping[str, Any]) -> str:
    claim, lower = values["claim"]["epsilon"], values["lower_bound"]
    if claim is None:
        return ""
    least = int(lower["epsilon"] * 100) / 100  # rounded down
    return (
        f" Beside the claim of ε ≤ {show_bound(claim)} stands ε ≥ {least:.2f} from the canaries alone, with "
        f"{100 * lower['confidence']:.0f} % confidence."
    )


def warn_of_audit(audit: Mapping[str, Any]) -> list[str]:
    """What stands among the warnings of the report: a claim that was contradicted."""
    return [audit["text"]] if audit.get("conclusion") == Conclusion.CONTRADICTED else []


def check_audit(document: Mapping[str, Any]) -> str:
    """What was checked, in words; empty if the report has no audit. CorruptState if its conclusion does not follow."""
    audit = document["audit"]
    if not audit["made"]:
        return ""
    try:
        found = conclude(
            [float(one["p"]) for one in audit["evidence"]], [bool(one["enough"]) for one in audit["powers"]],
            steps=int(audit["steps"]),
        )  # fmt: skip
        fits = (
            found == audit["conclusion"]
            and len(audit["evidence"]) == 10
            and all(one["contradicts"] is _contradicts(one) for one in audit["evidence"])
            and audit["text"].endswith(_beside(audit))
            and _WORDS[found] in audit["text"]
            and warn_of_audit(audit) == [text for text in document["warnings"] if text == audit["text"]]
        )
        claims = [one["epsilon"] for one in document["guarantees"] if one["unit"] == "record"]
        close = all(abs(one - audit["claim"]["epsilon"]) <= 1e-6 * one for one in claims)
    except (LookupError, TypeError, ValueError) as error:
        raise CorruptState(f"the report is broken: its audit lacks figures ({error!r})") from None
    if not fits or not close:
        raise CorruptState("the report is broken: the conclusion of its audit does not follow from its figures")
    return f"its conclusion, {found.value}, follows from its figures; the record they are of stays with its holder"


def _contradicts(one: Mapping[str, Any]) -> bool:
    return conclude([one["p"]], [True], steps=1) is Conclusion.CONTRADICTED


_WORDS = {
    Conclusion.CONTRADICTED: "contradicts the claim", Conclusion.CONSISTENT: "is consistent with the claim",
    Conclusion.INCONCLUSIVE: "is inconclusive",
}  # fmt: skip
