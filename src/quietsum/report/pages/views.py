"""The same facts as others ask for them: the DP deployments registry, NIST SP 800-226, SATRE, and a model card.

Each view says which edition of the other text it was written from. What a run does not know, who curates the data and
what the model is for, is left open and marked so, never made up. All texts in a view come from the report.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quietsum.report.figures import percent, plain, show_bound, small

__all__ = ["OPEN", "list_views"]

OPEN = "TO BE FILLED IN"
"""What stands where a run does not know the answer."""
REGISTRY = "github.com/opendp/deployments-registry-data, schemas/deployments-schema.yaml, commit 3e9c812, 2026-07-15"
SATRE = "SATRE 2.0.1 (2026-07-23), docs/source/spec/specification.yaml of github.com/sa-tre/satre-specification"
NIST = (
    "the initial public draft of December 2023 (NIST SP 800-226 ipd), sections 2 to 4 and what they call privacy "
    "hazards, in our words; numbers are those of its sections. The text of the final edition (March 2025) could not be "
    "read when this view was written, and its sections may be numbered otherwise: hold the answers against your copy"
)


def list_views(values: Mapping[str, Any]) -> dict[str, str]:
    """By file name, the facts of the report ``values`` as others ask for them."""
    return {
        "dp-deployments-registry.yaml": _registry(values), "nist-sp-800-226.md": _nist(values),
        "satre-output-control.md": _satre(values), "model-card.md": _model_card(values),
    }  # fmt: skip


def _units(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = values["privacy"]["units"]
    return found


def _promises(values: Mapping[str, Any]) -> list[str]:
    return [
        f"ε ≤ {show_bound(unit['epsilon'])} per {unit['whom']} at δ = {small(unit['delta'])}, against "
        + " and ".join("the server" if one == "server" else "recipients of the model" for one in unit["against"])
        for unit in _units(values)
    ] or ["no privacy guarantee"]


def _noise(values: Mapping[str, Any]) -> list[str]:
    found = []
    for unit in _units(values):
        sampling = unit["sampling"] or {"kind": "none", "rate": 1.0}
        noise = "-" if unit["noise_multiplier"] is None else plain(unit["noise_multiplier"])
        found.append(
            f"per {unit['unit']}: {unit['mechanism']}, noise multiplier {noise}, clip norm {plain(unit['clip_norm'])}, "
            f"sampling {sampling['kind']} at rate {plain(sampling['rate'])}, {unit['steps']:,} steps"
        )
    return found or ["no noise was added"]


def _floating(values: Mapping[str, Any]) -> str:
    unsafe = any("floating-point" in text for text in values["warnings"])
    if unsafe:
        return "The noise is not floating-point safe: its last bits may reveal more than the guarantee says."
    return (
        "Noise is drawn on an integer grid from the operating system's random bits, so floating point reveals nothing."
    )


def _product(values: Mapping[str, Any]) -> str:
    return "Summary statistics" if values["kind"] == "questions" else "Machine learning model"


# ----------------------------------------------------------------------------------------------------- the registry


def _registry(values: Mapping[str, Any]) -> str:
    first = _units(values)[0] if _units(values) else None
    released = (values["dates"]["released"] or values["created"])[:10]
    federated = len(values["parties"]) > 1
    fields: list[tuple[str, list[tuple[str, Any]]]] = [
        ("basic", [
            ("name", values["run"]), ("data_curators", [OPEN]), ("intended_use", OPEN),
            ("data_product_type", _product(values)), ("data_product_region", OPEN), ("description", values["summary"]),
            ("publication_date", released),
        ]),
        ("dp_variant", [
            ("variant_name", "Approximate DP" if first else "Custom"),
            ("data_domain", "; ".join(f"{one['dataset']} of {one['name']}, {one['size']} records" for one in
                                      values["parties"][:20])),
            ("unprotected_quantities", "declared sizes, names of parties and data sets, the plan, scores"),
        ]),
        ("privacy_loss", [
            ("privacy_unit", first["whom"] if first else "none"),
            ("privacy_unit_details", f"neighbours: {values['privacy']['neighbours']}; " + "; ".join(_promises(values))),
            ("privacy_parameters", {"epsilon": first["epsilon"], "delta": first["delta"]} if first else {}),
        ]),
        ("deployment_model", [
            ("model_name", "Federated" if federated else "Central"),
            ("actors", "parties hold the records; a server adds up what they send; recipients have the releases; "
                       "against whom each guarantee holds stands in privacy_unit_details"),
            ("release_type", "One release" if values["rounds"] == 1 else "Many releases"),
            ("release_type_details", f"{values['round']} of {values['rounds']} were made; the guarantee covers all"),
            ("data_source_type", "Static"), ("access_type", "Non-interactive"),
        ]),
        ("accounting", [
            ("post_processing", "functions of the release alone cost nothing"),
            ("composition", f"{values['accounting']} accounting of the whole plan; lifetimes of each data set are held "
                            "by a signed ledger"),
        ]),
        ("implementation", [
            ("preprocessing_and_hyperparameter_tuning", OPEN),
            ("mechanisms", "; ".join(_noise(values)) + ". " + _floating(values)),
            ("justification", OPEN),
        ]),
        ("administrative", [
            ("sources", "report.html and report.json beside this file"),
            ("notes", f"ledger {values['ledger']['fingerprint']}"), ("registry_authors", [OPEN]),
        ]),
    ]  # fmt: skip
    lines = [
        *textwrap.wrap(f"A draft for the DP deployments registry, in the form of {REGISTRY}. Fields marked "
                       f"{OPEN} are yours: a run does not know them.", 100, initial_indent="# ",
                       subsequent_indent="# "),
        f"url_slug: {_yaml(OPEN)}", "status: Draft", "tier: 3", "deployment:",
    ]  # fmt: skip
    for part, pairs in fields:
        lines.append(f"  {part}:")
        lines += [f"    {name}: {_yaml(value)}" for name, value in pairs]
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    """A value as JSON, all of which is YAML."""
    return json.dumps(value, ensure_ascii=False).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# ----------------------------------------------------------------------------------------------------- pages


def _page(title: str, edition: str, questions: Iterable[tuple[str, str]]) -> str:
    parts = [f"# {title}", f"Written from {edition}."]
    parts += [f"## {head}\n\n{_quiet(text)}" for head, text in questions]
    return "\n\n".join(parts) + "\n"


def _quiet(text: str) -> str:
    """Text without what a page of Markdown would obey."""
    for mark in "\\`*_#<>[]|":
        text = text.replace(mark, f"\\{mark}") if mark != "<" else text.replace("<", "&lt;")
    return text


def _odds(values: Mapping[str, Any]) -> str:
    return "; ".join(
        f"about one {unit['unit']}: right at most {percent(unit['attacker']['right'])} of the time (a coin: 50 %), and "
        f"finding at most {percent(unit['attacker']['found'])} of members at 1 wrong accusation in 1,000"
        for unit in _units(values)
    ) or "an attacker may find everything"  # fmt: skip


def _audits(values: Mapping[str, Any]) -> str:
    """What audits came to, with the smallest faults that they would have found."""
    found = []
    for name, title in (("audit", "Audit"), ("client_audit", "Audit of whole clients")):
        if audit := values.get(name):
            sizes = "; ".join(one["sentence"] for one in audit.get("powers", ()))
            found.append(f"{title}: {audit['text']}" + (f" Found in nine audits of ten: {sizes}." if sizes else ""))
    return " ".join(found)


def _nist(values: Mapping[str, Any]) -> str:
    """By the sections of the draft, from the top of its pyramid down: parameters, unit, algorithms, deployment."""
    return _page(
        "NIST SP 800-226: evaluating differential privacy guarantees",
        NIST,
        [
            *_nist_parameters(values), *_nist_algorithms(values), *_nist_deployment(values),
            ("How the claim can be checked", "quietsum report --verify computes every figure again from the charges, "
             "which the exported ledger holds. " + _audits(values)),
        ],
    )  # fmt: skip


def _nist_parameters(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Section 2."""
    units = _units(values)
    whom = " and ".join(dict.fromkeys(unit["whom"] for unit in units))
    return [
        ("2.2 Are ε and δ small enough to mean something?",
         "; ".join(_promises(values)) + f". As an attacker's odds: {_odds(values)}. Whether that is enough: {OPEN}."),
        ("2.3 Which variant, and can its original parameters be read?",
         ("Approximate differential privacy is how the figures are stated; the mechanisms and their trade-off curve, "
          "from which ε follows at any other δ, stand in report.json. " + "; ".join(_noise(values)) + ".")
         if units else "None."),
        ("2.4 What is the unit, and may one person have several?",
         f"One {whom}; the relation is {values['privacy']['neighbours']}. A person with several records is covered as "
         "far as a guarantee per person stands here. Whether the harms that matter differ by more than one such unit: "
         f"{OPEN}." if units else "Nothing is protected."),
        ("2.5 What may it be compared with?",
         "With figures of the same unit, relation and δ alone. Figures of different units are not added."),
        ("2.6 What else was released from the same data?", "; ".join(
            f"{one['dataset']} of {one['party']}: lifetime ε {show_bound(one['epsilon'])} per {one['unit']}, "
            f"{one['runs']} runs so far" for one in values["lifetime"]) + (". " if values["lifetime"] else
            "No lifetime budget is held. ") + f"Releases that this ledger does not know, private or not: {OPEN}."),
    ]  # fmt: skip


def _nist_algorithms(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Section 3."""
    scores = "; ".join(f"{one['name']} {one['value']:.3f} on {one['on']}" for one in values["metrics"])
    return [
        ("3.1 Which mechanisms, of which library?",
         "; ".join(_noise(values)) + f". Made by quietsum {values['version']}, whose own check tries clip, noise and "
         "draw before the first charge."),
        ("3.2 Of what use is the result?", (scores or "not measured") + (
            f". {values['verdict']}" if values["verdict"] else "")),
        ("3.3 Does the noise, or the clip, treat groups unlike?",
         f"A clip biases sums, and noise weighs most on small groups. Scores by group: {OPEN}."),
        ("3.4 and 3.5 Queries, or a model that may remember?",
         "Counts and means of clipped values, each with its noise; categories and bounds were declared beforehand."
         if values["kind"] == "questions" else
         "A model, trained by noisy sums of clipped contributions alone: what it may remember of one unit is what the "
         "figures above bound."),
    ]  # fmt: skip


def _nist_deployment(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Section 4."""
    return [
        ("4.1 Who may ask, and what ends it?",
         "All that is released was planned and charged before it was made; a spent budget refuses the next run. "
         f"Runs of this ledger are in its export. Who may start one: {OPEN}."),
        ("4.2 Whom must one trust?",
         "Against whom each figure holds is stated with it: " + "; ".join(_promises(values)) + ". What does not hold: "
         + "; ".join(values["not_protected"][:12])),
        ("4.3 What could show beside the result?",
         _floating(values) + " Records that make the code fail count as nothing, in silence. Times of steps may depend "
         f"on batches; who can measure them: {OPEN}."),
        ("4.4 Who may reach the data and the keys?", f"{OPEN}: records, ledger and keys lie at their owners."),
        ("4.5 Was the data needed at all?", f"{OPEN}: how the records were collected, and who else holds them."),
    ]  # fmt: skip


def _satre(values: Mapping[str, Any]) -> str:
    files = "; ".join(f"{one['file']} (SHA-256 {one['sha256']})" for one in values["artefacts"])
    return _page(
        "SATRE: output management of a trusted research environment",
        SATRE + "; statements are given in short",
        [
            ("3.1.05 A data egress process", f"{OPEN}: who approved. This pack is what the request is about: {files}."),
            ("3.1.06 Egress by information asset owners or their delegates", OPEN),
            ("3.3.01 Classification of outputs", f"{_product(values)}, made under differential privacy: "
             + "; ".join(_promises(values))),
            ("3.3.02 The minimum that is required", f"{OPEN}. The pack holds the released files, their report and the "
             "ledger without who took part."),
            ("3.3.04 Disclosure control of outputs", "Noise before release, calibrated to a budget that a ledger holds "
             "as a gate: " + "; ".join(_noise(values))),
            ("3.3.05 Responsibility for output checking", f"{OPEN}: the person who signs report.html."),
            ("3.3.06 A statistical basis for the decision", f"An attacker is, {_odds(values)}. Not protected: "
             + "; ".join(values["not_protected"][-3:])),
            ("3.3.07 Outputs that cannot be checked by hand (Mandatory)", "A model's weights are such an output. The "
             "technical control is differential privacy over all of training, so what the model may have memorised of "
             "one " + (_units(values)[0]["whom"] if _units(values) else "record: nothing is promised") + " is bounded. "
             f"Whether the policy permits export: {OPEN}."),
            ("3.3.08 Semi-automated checks", "quietsum report --verify on this pack; a person decides. "
             + _audits(values)),
            ("3.3.09 A machine-readable record of the criteria", "report.json, signed, and bound to the files by their "
             "SHA-256 in MANIFEST.json."),
        ],
    )  # fmt: skip


def _model_card(values: Mapping[str, Any]) -> str:
    scores = "; ".join(
        f"{one['name'].replace('_', ' ')} {one['value']:.3f} on {one['on']}" for one in values["metrics"]
    )
    others = "; ".join(f"{name} {value:.3f}" for name, value in values["references"].items())
    return _page(
        f"Model card: {values['run']}",
        "report.json; its headings are those of Model Cards (Mitchell et al. 2019), of which no text was read",
        [
            ("Model details", f"{values['summary']} Made by quietsum {values['version']}, begun {values['created']}. "
             + "; ".join(f"{one['file']}, SHA-256 {one['sha256']}" for one in values["artefacts"])),
            ("Intended use", OPEN),
            ("Training data", "; ".join(f"{one['dataset']} of {one['name']}, {one['size']} records (declared)"
                                        for one in values["parties"][:50])),
            ("Metrics", (scores or "not measured") + (f". For comparison, without privacy: {others}" if others else "")
             + (f". {values['verdict']}" if values["verdict"] else "")),
            ("Privacy", "; ".join(_promises(values)) + f". An attacker is, {_odds(values)}."),
            ("Audit", _audits(values)),
            ("Robustness", f"{values['robustness']['title']}. {values['robustness']['limits']}"),
            ("Caveats", " ".join(values["warnings"]) or "none were raised"),
            ("Ethical considerations", OPEN),
        ],
    )  # fmt: skip
