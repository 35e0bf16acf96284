"""The audits in a report: what canaries concluded, beside the claim, and whether the figures bear it out.

A run may be audited twice: by canary records, and by canary clients where the plan protects whole clients. A report
holds the figures of ten tests each, and what each fault's size is that would have been found. A check on another
machine (:func:`check_audits`) draws the conclusion again from the p-values, the sizes of faults again from what was
observed, and the lower bound on ε again from how many guesses were right; it holds the claim to the guarantee that the
report states, and the numbers of canaries and steps to the plan. That the p-values are those of the run's record cannot
be checked without the record, which stays with its holder; its SHA-256 is stated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quietsum.audit import AUDIT, CLIENT_AUDIT, Conclusion, Observed, bears_out, conclude, name_client_faults
from quietsum.errors import CorruptState
from quietsum.report.facts.sections import NO_AUDIT
from quietsum.report.figures import show_bound

__all__ = [
    "NOT_YET", "check_audits", "check_file_of_audit", "contradicts_claim", "name_missing", "report_audit",
    "report_client_audit", "warn_of_audit",
]  # fmt: skip

NOT_YET = {
    "made": False,
    "text": "No audit was made, though the run carried canaries for one: quietsum audit makes it from their record.",
}
AT_SITES = {
    "made": False,
    "text": "No audit stands here, though the run carried canaries for one: what was recorded of them stays with each "
    "of its sites, which audit themselves.",
}
CLIENTS_ALONE = {
    "made": False,
    "text": "No canary records rode in this run, so its steps at records were not audited; whole clients are below.",
}
CLIENTS_NOT_YET = {
    "made": False,
    "text": "No audit of whole clients was made, though the run carried canary clients for one: quietsum audit makes "
    "it from their record.",
}
SECTIONS = ("audit", "client_audit")
"""Where audits stand in a report; the second only if the plan has canary clients."""
_KEPT = ("conclusion", "canaries", "included", "steps", "claim", "lower_bound", "record")
_MANY = 500_000  # canaries; the lower bound of more of them is not computed again


def report_audit(
    found: Mapping[str, Any] | None, *, carries: bool, sites: bool = False, clients: bool = False
) -> dict[str, Any]:
    """The section of a report from what :func:`quietsum.audit.read_audit` returned.

    ``sites`` keep their records themselves; ``clients`` says that the run carried canary clients.
    """
    if found is not None:
        return _section(found)
    if carries:
        return dict(AT_SITES if sites else NOT_YET)
    return dict(CLIENTS_ALONE if clients else NO_AUDIT)


def report_client_audit(found: Mapping[str, Any] | None) -> dict[str, Any]:
    """The section on whole clients from what :func:`quietsum.audit.read_client_audit` returned."""
    if found is None:
        return dict(CLIENTS_NOT_YET)
    between = found["estimate_range"]
    return {
        **_section(found), "unit": "client", "estimate": found["estimate"],
        "estimate_range": None if between is None else list(between),
    }  # fmt: skip


def _section(found: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {
        "made": True,
        **{name: found[name] for name in _KEPT},
        "evidence": [{name: one[name] for name in ("name", "found", "p", "contradicts")} for one in found["evidence"]],
        "powers": [
            {name: one[name] for name in ("fault", "sentence", "enough", "smallest", "chance") if name in one}
            for one in found["powers"]
        ],
        **({"observed": found["observed"]} if "observed" in found else {}),
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


def warn_of_audit(*audits: Mapping[str, Any] | None) -> list[str]:
    """What stands among the warnings of the report: claims that were contradicted."""
    return [one["text"] for one in audits if one is not None and one.get("conclusion") == Conclusion.CONTRADICTED]


def contradicts_claim(document: Mapping[str, Any]) -> bool:
    """Whether an audit in this report contradicts what it claims."""
    return bool(warn_of_audit(*(document.get(name) for name in SECTIONS)))


# ---------------------------------------------------------------------------------------------------- the check


def check_audits(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was checked, as names and sentences. CorruptState if a conclusion or a figure does not follow."""
    done = []
    for name, unit in zip(SECTIONS, ("record", "client"), strict=True):
        audit = document.get(name)
        if audit is None or not audit["made"]:
            continue
        try:
            fits, said = _check_section(document, audit, unit)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptState(f"the report is broken: its audit lacks figures ({error!r})") from None
        if not fits:
            raise CorruptState("the report is broken: the conclusion of its audit does not follow from its figures")
        done.append((name.replace("_", " "), said))
    told = [audit["text"] for name in SECTIONS if (audit := document.get(name)) is not None]
    if warn_of_audit(*(document.get(name) for name in SECTIONS)) != [
        text for text in document["warnings"] if text in told
    ]:
        raise CorruptState("the report is broken: what its audit warns of does not follow from its figures")
    return done


def _check_section(document: Mapping[str, Any], audit: Mapping[str, Any], unit: str) -> tuple[bool, str]:
    found = conclude(
        [float(one["p"]) for one in audit["evidence"]], [bool(one["enough"]) for one in audit["powers"]],
        steps=int(audit["steps"]),
    )  # fmt: skip
    fits = (
        found == audit["conclusion"]
        and len({one["name"] for one in audit["evidence"]}) == len(audit["evidence"]) == 10
        and all(one["contradicts"] is _contradicts(one) for one in audit["evidence"])
        and audit["text"].endswith(_beside(audit))
        and _WORDS[found] in audit["text"]
        and 0 <= audit["included"] <= audit["canaries"]
        and _fits_claim(document, audit["claim"], unit)
        and _fits_plan(document, audit, unit)
    )
    said = f"its conclusion, {found.value}, follows from its figures"
    if "observed" in audit:
        fits = fits and _fits_powers(audit, unit)
        said += "; what faults it finds was computed again"
    guesses = audit["lower_bound"].get("guesses")
    if guesses is not None and audit["canaries"] <= _MANY:
        fits = fits and bears_out(
            float(audit["lower_bound"]["epsilon"]), [(one, right) for one, right in guesses],
            canaries=int(audit["canaries"]), delta=float(audit["claim"]["delta"]),
        )  # fmt: skip
        said += ", and ε ≥ as well"
    return fits, f"{said}; the record they are of stays with its holder"


def _fits_claim(document: Mapping[str, Any], claim: Mapping[str, Any], unit: str) -> bool:
    """Whether what was audited is what the report guarantees per ``unit``.

    What whole clients' noise promises a record beside is not what canary records test.
    """
    own = [one for one in document["guarantees"] if one["unit"] == unit]
    stated = [one for one in own if "through the client level" not in one["method"]]
    return all(
        math.isclose(float(one["epsilon"]), float(claim["epsilon"]), rel_tol=1e-6) and one["delta"] == claim["delta"]
        for one in stated
    )


def _fits_plan(document: Mapping[str, Any], audit: Mapping[str, Any], unit: str) -> bool:
    """Whether canaries and steps are those of the plan: an audit of another run has other ones."""
    plan, canaries, steps = document["plan"], audit["canaries"], audit["steps"]
    federation, training = plan.get("federation"), plan.get("training", {})
    if federation is None:
        planned = sum(one["steps"] for one in training["stages"])
        return bool(canaries == training["audit"]["canaries"] and steps <= planned)
    if unit == "record":
        return bool(canaries > 0 and canaries % training["canaries"] == 0)  # as many at each party
    sampling, attempts = federation["sampling"], federation["rounds"] + federation.get("spare_attempts", 0)
    rate = sampling["rate"] if sampling["kind"] == "poisson" else 1.0
    same = canaries == plan["privacy"]["client"]["canaries"] and audit["claim"]["sample_rate"] == rate
    return bool(same and steps <= attempts)


def _fits_powers(audit: Mapping[str, Any], unit: str) -> bool:
    """Whether the sizes of faults follow from what was observed."""
    observed = Observed.from_dict(audit["observed"])
    powers: Sequence[Any] = observed.find_power()
    powers = name_client_faults(powers) if unit == "client" else powers
    return (
        len(powers) == len(audit["powers"])
        and (unit == "record" or observed.numbers == audit["steps"] * audit["canaries"])
        and all(
            (one["fault"], one["enough"]) == (power.fault, power.enough)
            and _near(one["smallest"], power.smallest)
            and _near(one["chance"], power.chance)
            for one, power in zip(audit["powers"], powers, strict=True)
        )
    )


def _near(stated: float | None, found: float | None) -> bool:
    if stated is None or found is None:
        return stated is found
    return math.isclose(stated, found, rel_tol=1e-6, abs_tol=1e-9)


def check_file_of_audit(name: str, content: bytes, document: Mapping[str, Any]) -> None:
    """CorruptState if ``content``, the file ``name`` of an audit, is of another run or says otherwise than the report.

    Any other file is no business of this check.
    """
    section = {AUDIT: "audit", CLIENT_AUDIT: "client_audit"}.get(name)
    if section is None:
        return
    audit = document.get(section) or {"made": False}
    try:
        values = json.loads(content)
        own = _section(values)
        same = audit["made"] and values["run"] == document["run"] and all(audit[one] == own[one] for one in own)
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise CorruptState(f"{name} is no audit ({error!r})") from None
    if not same:
        raise CorruptState(f"{name} is of another run than the report, or says otherwise")


def name_missing(document: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Audits for which the plan has canaries and that do not stand in the report."""
    plan = document["plan"]
    training, privacy = _part(plan, "training"), _part(plan, "privacy")
    asked = (training.get("canaries") or training.get("audit"), _part(privacy, "client").get("canaries"))
    for name, carries in zip(SECTIONS, asked, strict=True):
        if carries and not (document.get(name) or {}).get("made"):
            yield name.replace("_", " "), "the run carried canaries, and no result of an audit by them stands here"


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _contradicts(one: Mapping[str, Any]) -> bool:
    return conclude([one["p"]], [True], steps=1) is Conclusion.CONTRADICTED


_WORDS = {
    Conclusion.CONTRADICTED: "contradicts the claim", Conclusion.CONSISTENT: "is consistent with the claim",
    Conclusion.INCONCLUSIVE: "is inconclusive",
}  # fmt: skip
