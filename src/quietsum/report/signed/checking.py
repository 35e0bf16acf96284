"""Check a signed report on a clean machine: every privacy figure is computed again, and what was not checked is named.

The report alone holds each unit's charge, so prices, curves, odds and rounds follow from it. That shows that the
figures belong to the charges that it states. That these charges are what was planned and paid shows the exported
ledger, whose chain the report's signed head is held against. And that the ledger is the one it should be shows the
fingerprint of its key, if it was obtained some other way than with the report: a forger signs anew with a key of their
own, and everything fits together. Utility cannot be computed again without the data; it is held to its hash and to
those of the files.

Nothing of a stranger's file is executed, and no workspace, key or torch is needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

from quietsum.errors import CorruptState, InvalidParameter, LedgerBroken, QuietsumError
from quietsum.ledger import Charge, ExportedLedger, Head, RunHistory, Terms, Testimony, price_charge, read_export
from quietsum.plan import digest_of, load_plan
from quietsum.privacy import Guarantee, Neighbours, PrivacyUnit
from quietsum.report.facts.audits import check_audits, check_file_of_audit, contradicts_claim, name_missing
from quietsum.report.facts.curves import find_mu, profile_of, trade_off
from quietsum.report.facts.protection import NINE, attack, price_rows, price_unit, read_charge, stages_of
from quietsum.report.facts.sections import hash_utility
from quietsum.report.figures import percent, read, show_bound
from quietsum.report.pages.page import render_page
from quietsum.report.signed.packing import DERIVED, EXPORT, PLAN, VERIFIER, derive_files, own_verifier
from quietsum.report.signed.schema import require_form
from quietsum.report.verifier import Broken, check_key, check_pack, check_signed, fingerprint_of, read_document

__all__ = ["Checked", "check_pack_file", "check_report"]

_MOST_ROUNDS = 1 << 40
CLOSE = 1e-7
"""How far a figure may be from the one computed here, relatively: other versions of numpy round otherwise."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Checked:
    """What was checked, and what was not, each as a name and a sentence."""

    run: str
    fingerprint: str
    document: Mapping[str, Any]
    checked: tuple[tuple[str, str], ...]
    unchecked: tuple[tuple[str, str], ...]

    @property
    def contradicted(self) -> bool:
        """Whether the report holds, and says that an audit contradicts its claim."""
        return contradicts_claim(self.document)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "run": self.run, "fingerprint": self.fingerprint,
            "checked": [{"name": name, "text": text} for name, text in self.checked],
            "not_checked": [{"name": name, "text": text} for name, text in self.unchecked],
            "contradicted": self.contradicted,
        }  # fmt: skip


def check_report(
    content: bytes, *, export: bytes | None = None, key: str | None = None, files: Mapping[str, bytes] | None = None
) -> Checked:
    """Check the ``report.json`` in ``content``; ``files`` are released files by name, as they lie in a pack.

    Raises CorruptState or LedgerBroken if something is not what was signed, or a figure comes out otherwise, and
    InvalidParameter if ``key`` is no fingerprint.
    """
    try:
        return _check(content, export, key, files or {})
    except Broken as problem:
        raise CorruptState(f"the report is broken: {problem}") from None
    except QuietsumError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise CorruptState(f"the report is broken: a part of it is of another kind ({problem!r})") from None
    except (ArithmeticError, RecursionError, MemoryError) as problem:
        raise CorruptState(f"the report is broken: its figures lead nowhere ({problem})") from None


def check_pack_file(content: bytes, *, key: str | None = None) -> Checked:
    """Check an egress pack: its bytes, its manifest, and the report and the ledger in it."""
    try:
        files, _, _ = check_pack(content)
    except Broken as problem:
        raise CorruptState(f"the pack is broken: {problem}") from None
    inside = {name: one for name, one in files.items() if name != "report.html"}  # compared with the other texts
    found = check_report(files["report.json"], export=files.get(EXPORT), key=key, files=inside)
    whole = ("pack", f"{len(files)} files, each with its hash, in an archive without one odd byte")
    derived, odd = _check_derived(files, found.document)
    if files.get(VERIFIER) != own_verifier():
        odd = (*odd, ("verifier", f"{VERIFIER} in the pack is not the one of this package; do not run it"))
    return dataclasses.replace(found, checked=(whole, *derived, *found.checked), unchecked=(*found.unchecked, *odd))


_Lines = tuple[tuple[str, str], ...]


def _check_derived(files: Mapping[str, bytes], document: Mapping[str, Any]) -> tuple[_Lines, _Lines]:
    """What was written from the report says what the report says; where another version wrote it, that is not known.

    A file that is neither released nor written from the report has no place in a pack.
    """
    from quietsum import __version__

    released = {one["file"] for one in document["artefacts"]}
    texts = {name for name in files if name in DERIVED or name.startswith("views/")}
    if odd := sorted(set(files) - released - texts - {"report.json", "MANIFEST.json", EXPORT, VERIFIER}):
        raise CorruptState(f"the pack is broken: its report does not speak of {odd[0]!r}")
    if document["version"] != __version__:
        said = "were written by another version of quietsum and not compared with report.json, which may say otherwise"
        return (), (("texts", f"{', '.join(sorted(texts))} {said}"),)
    wanted = derive_files(document, files)
    for name in sorted((texts | set(wanted)) - {PLAN}):
        if name not in files or files[name] != wanted.get(name):
            raise CorruptState(f"the pack is broken: {name} is missing, or does not say what report.json says")
    if PLAN in files and _digest_of_text(files[PLAN]) != document["plan_digest"]:
        raise CorruptState(f"the pack is broken: {PLAN} is not the plan that report.json speaks of")
    return (("texts", f"{', '.join(sorted(texts))} say what report.json says"),), ()


def _digest_of_text(content: bytes) -> str:
    """The digest of a plan as it is written; empty if it is none."""
    try:
        return load_plan(content.decode("utf-8")).digest
    except (QuietsumError, ValueError):
        return ""


def _check_page(files: Mapping[str, bytes], document: Mapping[str, Any]) -> Iterable[tuple[bool, str]]:
    """Whether a page that was given was compared, and what came of it; CorruptState if it says something else."""
    from quietsum import __version__

    if "report.html" not in files:
        return
    if document["version"] != __version__:
        yield False, "the page beside it was written by another version of quietsum and not compared: read report.json"
    elif render_page(document).encode() != files["report.html"]:
        raise CorruptState("the report is broken: the page beside it does not say what report.json says")
    else:
        yield True, "the page beside it says what report.json says"


def _check(content: bytes, export: bytes | None, key: str | None, files: Mapping[str, bytes]) -> Checked:
    document = read_document(content)
    public_key = check_signed(document)
    require_form(document)
    done = [("signature", "the report is what was signed, to the byte")]
    left: list[tuple[str, str]] = []
    _check_ledger(document, public_key)
    if key is None:
        others = (
            "Others can sign another report; ask its maker for the fingerprint some other way and name it with --key"
        )
        left.append(("key", f"no fingerprint was named, so the signer is not known. {others}"))
    else:
        try:
            check_key(public_key, key)
        except ValueError as error:
            raise InvalidParameter("key", key, f"is no fingerprint: {error}", "copy all of it") from None
        done.append(("key", "the report was signed by the key that you named"))
    count = _check_figures(document)
    done.append(("figures", f"{count} privacy figures computed again, and all are as stated"))
    if hash_utility(document["utility"], document["artefacts"]) != document["utility"]["sha256"]:
        raise CorruptState("the report is broken: its utility does not fit its hash")
    utility = document["utility"]
    if [document[name] for name in ("metrics", "references", "verdict")] != [
        utility[name] for name in ("scores", "references", "verdict")
    ]:
        raise CorruptState("the report is broken: it states two utilities")
    done.append(("utility", "the scores fit their hash; they were measured where the data is, and not computed again"))
    done += check_audits(document)
    left += name_missing(document)
    _check_artefacts(document, files, done, left)
    for compared, said in _check_page(files, document):
        (done if compared else left).append(("page", said))
    if export is None:
        left.append(
            ("ledger", "no exported ledger was given, so nothing shows that these charges were planned and paid")
        )
    else:
        done += _check_export(document, export, public_key)
    return Checked(
        run=document["run"], fingerprint=fingerprint_of(public_key), document=document, checked=tuple(done),
        unchecked=tuple(left),
    )  # fmt: skip


def _check_ledger(document: Mapping[str, Any], public_key: str) -> None:
    """The head was signed by the key that signed the report, and the nine names speak of the first unit."""
    ledger = document["ledger"]
    if ledger["public_key"] != public_key or ledger["fingerprint"] != fingerprint_of(public_key):
        raise CorruptState("the report is broken: it names another ledger's key than the one that signed it")
    try:
        Testimony(public_key=public_key, head=Head.from_dict(ledger["head"]))
    except QuietsumError as error:
        raise CorruptState(f"the report is broken: {error}") from None


def _check_artefacts(
    document: Mapping[str, Any], files: Mapping[str, bytes], done: list[tuple[str, str]], left: list[tuple[str, str]]
) -> None:
    for one in document["artefacts"]:
        name = one["file"]
        if name not in files:
            left.append(("file", f"{name} was not given; its SHA-256 must be {one['sha256']}"))
        elif hashlib.sha256(files[name]).hexdigest() != one["sha256"] or len(files[name]) != one["bytes"]:
            raise CorruptState(f"{name} is not the file that the report speaks of")
        else:
            check_file_of_audit(name, files[name], document)
            done.append(("file", f"{name} is the file that the report speaks of"))


# ---------------------------------------------------------------------------------------------- figures, once more


def _check_figures(document: Mapping[str, Any]) -> int:
    block = document["privacy"]
    accounting, neighbours = block["accounting"], Neighbours(block["neighbours"])
    charges = {unit["unit"]: read_charge(unit) for unit in block["units"]}
    client = charges.get("client")
    stated = [Guarantee.from_dict(values) for values in document["guarantees"]]
    if {one.unit.value for one in stated} != set(charges) or len(charges) != len(block["units"]):
        raise CorruptState("the report is broken: its guarantees and its units are not about the same")
    count = 0
    for one in stated:
        found = price_unit(charges[one.unit], one, accounting=accounting, neighbours=neighbours, client=client)
        _same(f"ε per {one.unit} against {one.observer}", one.epsilon, found.epsilon)
        if one.epsilon_lower:
            _same(f"the lower bound on ε per {one.unit}", one.epsilon_lower, found.epsilon_lower)
        if (one.unit, one.group_size, one.neighbours, one.certified) != (
            found.unit, found.group_size, found.neighbours, found.certified
        ):  # fmt: skip
            raise CorruptState(f"the report is broken: the guarantee per {one.unit} names another unit or relation")
        count += 2
    for place, unit in enumerate(block["units"]):
        if unit["binding"] is not (place == 0):
            raise CorruptState("the report is broken: the binding unit is not the first")
        own = [one for one in stated if one.unit.value == unit["unit"]]
        count += _check_unit(unit, charges[unit["unit"]], own, accounting, neighbours)
    return count + _check_top(document) + _check_words(document)


def _check_unit(
    unit: Mapping[str, Any], charge: Charge, own: Sequence[Guarantee], accounting: str, neighbours: Neighbours
) -> int:
    name = f"per {unit['unit']}"
    worst = max(own, key=lambda one: one.epsilon)
    for field, value in (("epsilon", worst.epsilon), ("epsilon_lower", worst.epsilon_lower), ("delta", worst.delta)):
        _same(f"{field} {name}", read(unit[field]), value)
    if (unit["group_size"], unit["whom"], unit["worst_party"], unit["dataset"]) != (
        worst.group_size, worst.whom, charge.party, charge.dataset
    ):  # fmt: skip
        raise CorruptState(f"the report is broken: the unit {name} names another one than its guarantee or its charge")
    if unit["against"] != [one.observer.value for one in own] or charge.unit.value != unit["unit"]:
        raise CorruptState(f"the report is broken: the unit {name} names other observers, or another charge")
    stages = stages_of(charge.event)
    if unit["stages"] != stages or unit["steps"] != sum(stage["steps"] for stage in stages):
        raise CorruptState(f"the report is broken: noise, rate or steps {name} are not those of its charge")
    if unit["sampling"] != (
        {"kind": stages[0]["sampling"], "rate": max(stage["rate"] for stage in stages)} if stages else None
    ):
        raise CorruptState(f"the report is broken: the sampling {name} is not that of its charge")
    curve = profile_of(charge, neighbours, points=[epsilon for epsilon, _ in unit["profile"]] or (0.0,))
    points = unit["profile"] if curve is not None else []
    if (curve is None) != (not unit["profile"]):
        raise CorruptState(f"the report is broken: the curve {name} is missing, or one is stated that is not known")
    for (epsilon, delta), found in zip(points, () if curve is None else curve.points, strict=True):
        _same(f"δ({epsilon:.4g}) {name}", delta, found[1], least=1e-13)
    for rate, least in unit["trade_off"]:
        _same(f"the trade-off at {rate:g} {name}", least, trade_off(points, rate))
    _check_gaussian(unit, None if curve is None else curve.mu, points, name)
    for field, value in attack(worst, charge, curve, accounting, neighbours).items():
        _same(f"the attacker's {field} {name}", read(unit["attacker"][field]), value)
    rows = 0
    for part in ("by_round", "forecast"):
        numbers = [row[0] for row in unit[part]["rows"]]
        if numbers != sorted({int(one) for one in numbers}) or any(not 0 < one <= _MOST_ROUNDS for one in numbers):
            raise CorruptState(f"the report is broken: the rounds {name} do not follow one another")
        for number, stated, priced in price_rows(
            unit[part], unit=PrivacyUnit(unit["unit"]), delta=worst.delta, accounting=accounting, neighbours=neighbours
        ):
            _same(f"ε {name} after round {number}", stated, priced)
            rows += 1
    return 8 + len(points) + len(unit["trade_off"]) + rows


def _check_gaussian(unit: Mapping[str, Any], mu: float | None, points: Sequence[Any], name: str) -> None:
    stated = unit["gaussian"]
    slack = 0.0 if mu is not None else float(unit["delta"])
    found = mu if mu is not None else find_mu(points, slack)
    if (stated is None) != (found is None or not points):
        raise CorruptState(f"the report is broken: μ {name} is missing, or is stated where it is not known")
    if stated is not None and found is not None:
        _same(f"μ {name}", stated["mu"], found, relative=1e-3 if mu is None else CLOSE)
        _same(f"the slack of μ {name}", stated["slack"], slack, least=1e-13)
        if stated["exact"] is not (mu is not None):
            raise CorruptState(f"the report is broken: μ {name} is not exact, or is")


def _check_top(document: Mapping[str, Any]) -> int:
    """The nine names, and the older keys that say the same."""
    units = document["privacy"]["units"]
    if not units:
        if document["achieved_epsilon"] != "Infinity" or document["target_epsilon"] is not None:
            raise CorruptState("the report is broken: it states an ε, and nothing was protected")
        return len(NINE)
    first = units[0]
    wanted = {
        "target_epsilon": first["budget"]["epsilon"], "target_delta": first["budget"]["delta"],
        "achieved_epsilon": first["epsilon"], "max_grad_norm": first["clip_norm"], "mechanism": first["mechanism"],
        "sampling_probability": None if first["sampling"] is None else first["sampling"]["rate"],
        "training_steps": first["steps"], "accounting": document["privacy"]["accounting"],
    }  # fmt: skip
    for name, value in wanted.items():
        if document[name] != value:
            raise CorruptState(f"the report is broken: {name} is not that of its binding unit")
    if document["noise_multiplier"] not in [unit["noise_multiplier"] for unit in units]:
        raise CorruptState("the report is broken: noise_multiplier is not that of any of its units")
    if document["limit"] is not None and document["limit"] not in document["limits"]:
        raise CorruptState("the report is broken: its limit is not one of its limits")
    limits = {one["unit"]: (one["epsilon"], one["delta"]) for one in document["limits"]}
    for unit in units:
        limit = limits.get(unit["unit"])
        if limit is not None and limit != (unit["budget"]["epsilon"], unit["budget"]["delta"]):
            raise CorruptState(f"the report is broken: two budgets are stated per {unit['unit']}")
        if limit is not None and read(unit["epsilon"]) > limit[0] * (1 + 1e-6):
            raise CorruptState(f"the report is broken: more than its budget was spent per {unit['unit']}")
    by_round = {(unit["unit"], number): epsilon for unit in units for number, epsilon, *_ in unit["by_round"]["rows"]}
    for point in document["spent"]:
        known = by_round.get((point["unit"], point["round"]))
        if known is not None:
            _same(f"ε per {point['unit']} after round {point['round']}", point["epsilon"], read(known))
    return len(NINE) + len(document["limits"])


_EPSILON = re.compile(r"ε ≤ ([0-9.e+∞-]*[0-9∞])")
_PERCENT = re.compile(r"more often than ([0-9.]+ %)")


def _check_words(document: Mapping[str, Any]) -> int:
    """Each figure in a sentence is one of the figures of the report, in its one rounding."""
    figures = [one["epsilon"] for one in (*document["guarantees"], *document["lifetime"], *document["limits"])]
    known = {show_bound(one) for one in figures}
    odds = {percent(unit["attacker"]["right"]) for unit in document["privacy"]["units"]}
    odds |= {percent(0.5 * (1 + one)) for one in _alone(document)}
    count = 0
    for text in (*document["sentences"], *document["protected"]):
        for figure in _EPSILON.findall(text):
            if figure not in known:
                raise CorruptState(f"the report is broken: a sentence says ε ≤ {figure}, and no figure of it is that")
            count += 1
        for figure in _PERCENT.findall(text):
            if figure not in odds:
                raise CorruptState(f"the report is broken: a sentence says {figure}, and no figure of it is that")
            count += 1
    return count


def _alone(document: Mapping[str, Any]) -> Iterable[float]:
    """The advantage that each (ε, δ) allows by itself, which a sentence may state."""
    from quietsum.privacy import attacker_advantage

    for values in document["guarantees"]:
        yield attacker_advantage(Guarantee.from_dict(values))


def _same(what: str, stated: float, found: float, *, relative: float = CLOSE, least: float = 1e-9) -> None:
    if not (stated == found or math.isclose(stated, found, rel_tol=relative, abs_tol=least)):
        raise CorruptState(f"the report is broken: {what} is stated as {stated:.10g} and comes out as {found:.10g}")


# --------------------------------------------------------------------------------------------- the exported ledger


def _check_export(document: Mapping[str, Any], export: bytes, public_key: str) -> list[tuple[str, str]]:
    head = Head.from_dict(document["ledger"]["head"])
    ledger = read_export(export, anchors=[head])
    if ledger.identity.public_key != public_key:
        raise LedgerBroken(
            "was signed by another key than the report", remedy="export the ledger that paid for the run"
        )
    body = ledger.run_entry(document["run"]).body
    try:
        terms = Terms.from_dict(body["terms"])
        planned = [Charge.from_dict(one) for one in body["planned"]]
        datasets = {(one["party"], one["dataset"]): (one["size"], one["public"]) for one in body["datasets"]}
    except (LookupError, TypeError, ValueError, QuietsumError) as error:
        raise LedgerBroken(f"has no plan of run {document['run']!r} ({error!r})") from None
    _check_plan(document, body, terms, datasets)
    _check_charges(document, planned, terms)
    rounds = _check_rounds(document, ledger)
    _check_lifetimes(document, ledger)
    found = ledger.verification
    return [
        ("ledger", f"{found.entries} entries, chain, rules and signatures in order; the report's head is in it"),
        ("plan", "plan, terms, datasets and charges are those that the ledger opened the run with"),
        ("rounds", f"ε of {rounds} rounds computed again from what the ledger was charged"),
    ]


def _check_plan(
    document: Mapping[str, Any], body: Mapping[str, Any], terms: Terms, datasets: Mapping[Any, Any]
) -> None:
    block = document["privacy"]
    if json.dumps(body["plan"], sort_keys=True) != json.dumps(document["plan"], sort_keys=True):
        raise CorruptState("the report is broken: its plan is not the one that the ledger opened the run with")
    if document["plan_digest"] not in (body["plan_hash"], digest_of(body["plan"])):
        raise CorruptState("the report is broken: its plan_digest is not that of the plan in the ledger")
    if (terms.accounting, terms.neighbours.value) != (block["accounting"], block["neighbours"]):
        raise CorruptState("the report is broken: its accounting or relation is not that of the ledger")
    for limit in document["limits"]:
        own = terms.limit(PrivacyUnit(limit["unit"]))
        if own is None or own.delta != limit["delta"]:
            raise CorruptState(f"the report is broken: the ledger knows no such budget per {limit['unit']}")
        if _is_priced_today(body):
            _same(f"the budget per {limit['unit']}", limit["epsilon"], own.epsilon)
    for party in document["parties"]:
        if datasets.get((party["party"], party["dataset"])) != (party["size"], party["public"]):
            raise CorruptState(f"the report is broken: the ledger declares {party['party']!r} otherwise")
    if len(document["parties"]) != len(datasets):
        raise CorruptState("the report is broken: it leaves out a party")


def _is_priced_today(body: Mapping[str, Any]) -> bool:
    """Whether a run was opened by prices under which its budgets are still stated alike."""
    return int(body.get("pricing", 1)) > 1


def _check_charges(document: Mapping[str, Any], planned: Sequence[Charge], terms: Terms) -> None:
    """The charge of each unit is one that the ledger admitted, and no other party was to pay more."""
    for unit in document["privacy"]["units"]:
        charge, epsilon = read_charge(unit), read(unit["epsilon"])
        same = [one for one in planned if one.unit is charge.unit]
        if charge.unit is PrivacyUnit.PERSON and not same:  # a training at one site charges records alone
            continue
        if charge not in same:
            raise CorruptState(f"the report is broken: the ledger has no such charge per {charge.unit}")
        for other in {(one.event, one.failure): one for one in same}.values():
            limit = terms.limit(charge.unit)
            if limit is None:
                raise CorruptState(f"the report is broken: the ledger limits nothing per {charge.unit}")
            price = price_charge(other, delta=limit.delta, accounting=terms.accounting, neighbours=terms.neighbours)
            if price.epsilon > epsilon * (1 + CLOSE) and "through the client level" not in unit["method"]:
                raise CorruptState(f"the report is broken: {other.party!r} pays more per {charge.unit} than it states")


def _check_rounds(document: Mapping[str, Any], ledger: ExportedLedger) -> int:
    history = RunHistory(ledger, document["run"]).read()
    count = 0
    for unit in document["privacy"]["units"]:
        known = history.list_charges_by_round(PrivacyUnit(unit["unit"]))
        rows = {number: read(epsilon) for number, epsilon, *_ in unit["by_round"]["rows"]}
        for place, (number, epsilon, _) in enumerate(known, 1):
            number = place if document["kind"] == "training" else number
            if number in rows:
                _same(f"ε per {unit['unit']} after round {number}", rows[number], epsilon)
                count += 1
    return count


def _check_lifetimes(document: Mapping[str, Any], ledger: ExportedLedger) -> None:
    budgets = ledger.budgets()
    for one in document["lifetime"]:
        own = budgets.get((one["party"], one["dataset"], PrivacyUnit(one["unit"])))
        if own is None or (ledger.verification.head.sequence == document["ledger"]["head"]["sequence"] and (
            own.epsilon, own.delta) != (one["epsilon"], one["delta"])
        ):  # fmt: skip
            raise CorruptState(f"the report is broken: the ledger holds another lifetime of {one['party']!r}")
