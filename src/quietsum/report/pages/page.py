"""The report as one self-contained HTML page: no scripts, no network, readable on paper and in the dark.

It is written from the values of ``report.json`` alone, so the page can say nothing that the file does not. Every text
is escaped, also those that others chose; the page forbids its reader's browser to load or run anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from quietsum.charts import STYLE as CHART_STYLE, Chart, Series, svg
from quietsum.ledger import WHOLE_PLAN
from quietsum.report.figures import percent, plain, read, show_bound, small
from quietsum.report.pages.glossary import WORDS
from quietsum.report.pages.style import POLICY, STYLE

__all__ = ["curve", "render_page"]

_SHOWN = 50  # parties in the table
_FOUND = 100  # findings in the operator's edition
_AGAINST = {"server": "the server", "recipients": "recipients of the model"}
_WHETHER = {
    "record": "whether one given record was used", "person": "whether one given person's records were used",
    "client": "whether one given client took part",
}  # fmt: skip


def render_page(values: Mapping[str, Any]) -> str:
    """The whole page."""
    title = f"Privacy report: {values['run']}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}{CHART_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(values["summary"])}</p>',
        *_dates(values),
        *_claims(values),
        *_meaning(values),
        *_guarantees(values),
        *_curves(values),
        *_how(values),
        *_lists(values),
        *_metrics(values),
        *_answers(values),
        *_defence(values),
        *_operator(values),
        *_card(values),
        *_parties(values),
        *_files(values),
        *_ledger(values),
        *_terms(values),
        *_words(values),
        *_sign_off(values),
        "</body></html>",
    ]
    page = "\n".join(parts) + "\n"
    for text in (" %", "ε ≤ ", "δ = ", "1 in "):  # what belongs together stays on one line
        page = page.replace(text, text.replace(" ", "\N{NO-BREAK SPACE}"))
    return page


def _units(values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The units of the report, the binding one first; none in reports of older versions."""
    found: Sequence[Mapping[str, Any]] = values.get("privacy", {}).get("units", ())
    return found


def _dates(values: Mapping[str, Any]) -> Iterable[str]:
    dates = values.get("dates")
    if not dates:
        return
    said = [f"Begun {_day(dates['begun'])}"]
    if dates["released"]:
        said.append(f"last released {_day(dates['released'])}")
    if dates["as_of"]:
        said.append(f"books as of {_day(dates['as_of'])}")
    edition = "Edition for recipients." if values.get("edition") != "operator" else (
        "Operator's edition: it says what was found of single parties, and is not to be handed out."
    )  # fmt: skip
    yield f'<p class="quiet">{escape(", ".join(said))} (UTC). {escape(edition)}</p>'


def _day(time: str) -> str:
    return str(time).replace("T", " ")[:16]


# -------------------------------------------------------------------------------------------------- what is promised


def _claims(values: Mapping[str, Any]) -> Iterable[str]:
    units = _units(values)
    if units and not _is_drill(values):
        first = units[0]
        yield '<div class="figure">'
        for figure, text in (
            (f"ε ≤ {show_bound(first['epsilon'])}", f"per {first['whom']}"),
            (f"δ = {small(first['delta'])}", "the chance beyond the promise"),
            (percent(first["attacker"]["right"]), "the best attacker is right (a coin: 50 %)"),
        ):
            yield f"<div><strong>{escape(figure)}</strong><span>{escape(text)}</span></div>"
        yield "</div>"
    for sentence in values["sentences"]:
        style = "none" if not values["guarantees"] else "claim"
        yield f'<p class="{style}">{escape(sentence)}</p>'
    for warning in values["warnings"]:
        yield f'<p class="warning">{escape(warning)}</p>'
    for note in values["notes"]:
        yield f'<p class="quiet">{escape(note)}</p>'


def _is_drill(values: Mapping[str, Any]) -> bool:
    return bool(values.get("plan", {}).get("attack"))


def _meaning(values: Mapping[str, Any]) -> Iterable[str]:
    if not _units(values) or _is_drill(values):
        return
    yield "<h2>What this means</h2>"
    yield (
        "<p>Suppose somebody has everything that was released, any amount of time, and knows all of the data but one "
        "unit. What can they find out about that one?</p>"
    )
    for unit in _units(values):
        odds, delta = read(unit["attacker"]["odds"]), read(unit["delta"])
        more = "" if unit["group_size"] == 1 else f": {unit['whom']}"
        yield f"<h3>{escape(_WHETHER.get(unit['unit'], unit['unit']).capitalize() + more)}</h3><ul>"
        yield (
            f"<li>Asked about one that took part as likely as not, they are right at most "
            f"{percent(unit['attacker']['right'])} of the time. A coin is right 50 %.</li>"
        )
        yield (
            f"<li>If they accept to accuse 1 in 1,000 wrongly, they find at most {percent(unit['attacker']['found'])} "
            "of those who are in the data. Guessing at random finds 0.1 %.</li>"
        )
        if math.isfinite(odds):
            likely = odds / (99 + odds)
            yield (
                "<li>What they believed before changes by a factor of at most e<sup>ε</sup> = "
                f"{escape(show_bound(odds))} in the odds: from 1 % to at most {percent(likely)}. With a chance of at "
                f"most {escape(small(2 * delta))} they may learn more than twice that.</li>"
            )
        yield "</ul>"


def _guarantees(values: Mapping[str, Any]) -> Iterable[str]:
    if not values["guarantees"]:
        return
    drill = " of the same plan without [attack]" if _is_drill(values) else ""
    order = {unit["unit"]: place for place, unit in enumerate(_units(values))}
    yield f"<h2>The guarantee{drill}</h2>"
    yield _table(
        ["protects one", "against", "ε at most", "ε at least", "δ", "neighbours", "method"],
        [
            [
                guarantee["unit"],
                _AGAINST[guarantee["observer"]],
                show_bound(guarantee["epsilon"]),
                show_bound(guarantee["epsilon_lower"], up=False) if guarantee["epsilon_lower"] else "none stated",
                small(guarantee["delta"]).replace("-", "\N{NON-BREAKING HYPHEN}"),
                guarantee["neighbours"],
                guarantee["method"] + (", certified" if guarantee["certified"] else ""),
            ]
            for guarantee in sorted(values["guarantees"], key=lambda one: order.get(one["unit"], 9))
        ],
    )
    yield (
        '<p class="quiet">Guarantees about different units are a list, never a sum. ε at least: no analysis of the '
        "same events can show less.</p>"
    )
    if any(WHOLE_PLAN in guarantee["method"] for guarantee in values["guarantees"]):
        yield (
            '<p class="quiet">None is stated where a plan pays for spare attempts, or a run ends early: less may have '
            "been done than was paid for, and how much less is not stated.</p>"
        )


# ------------------------------------------------------------------------------------------------------- curves


def curve(values: Mapping[str, Any]) -> Chart | None:
    """What each round cost the binding unit, as a chart; None where there is nothing to draw."""
    limit, units = values["limit"], _units(values)
    unit = "record" if limit is None else limit["unit"]
    if units and units[0]["by_round"]["rows"]:
        unit, budget = units[0]["unit"], units[0]["budget"]["epsilon"]
        spent = tuple((float(row[0]), read(row[1])) for row in units[0]["by_round"]["rows"])
    else:
        budget = None if limit is None else limit["epsilon"]
        points = (point for point in values["spent"] if point["unit"] == unit)
        spent = tuple((float(point["round"]), float(point["epsilon"])) for point in points)
    spent = tuple(point for point in spent if math.isfinite(point[1]))
    if len(spent) < 2:
        return None
    epoch = "epoch" if values.get("kind") == "training" else "round"
    return Chart(
        title=f"ε per {unit} after each {epoch}, worst party",
        x_label=epoch,
        y_label=f"ε per {unit}",
        series=(Series(label="spent", points=spent),),
        limit=None if budget is None else ("budget of this plan", float(show_bound(budget))),
        description=f"ε per {unit} grows to {show_bound(spent[-1][1])} after {epoch} {spent[-1][0]:g}.",
    )


def _curves(values: Mapping[str, Any]) -> Iterable[str]:
    chart = curve(values)
    number = 0
    if chart is not None:
        yield f"<h2>What each {escape(chart.x_label)} cost</h2>"
        planned = _plan_series(values)
        spent = Series(label=f"spent: {show_bound(chart.series[0].points[-1][1])}", points=chart.series[0].points)
        drawn = Chart(
            title=chart.title.removesuffix(", worst party"), x_label=chart.x_label, y_label=chart.y_label,
            description=chart.description, limit=chart.limit, series=(spent, *planned),
            note="the most that any party has paid",
        )  # fmt: skip
        yield _picture(drawn, number)
        yield '<p class="quiet">As recorded in the ledger, attempts that were repeated included.</p>'
        number += 1
    for unit in _units(values):
        if len(unit["trade_off"]) < 2:
            continue
        if number < 2:
            yield "<h2>What an attacker can do</h2>"
        yield _picture(_attack_chart(unit), number + 1)
        number += 2
        yield _about_mu(unit)


def _plan_series(values: Mapping[str, Any]) -> tuple[Series, ...]:
    units = _units(values)
    rows = units[0]["forecast"]["rows"] if units else []
    points = tuple((float(row[0]), read(row[1])) for row in rows if math.isfinite(read(row[1])))
    if len(points) < 2:
        return ()
    return (Series(label=f"planned: {show_bound(points[-1][1])}", points=points, dash="dashed"),)


def _attack_chart(unit: Mapping[str, Any]) -> Chart:
    points = tuple((100 * rate, 100 * (1 - missed)) for rate, missed in unit["trade_off"])
    return Chart(
        title=f"One {unit['unit']}: what the best attacker finds",
        x_label="outsiders who are accused wrongly, %",
        y_label="members who are found, %",
        series=(
            Series(label="the best attacker, at most", points=points),
            Series(label="guessing", points=((0.0, 0.0), (100.0, 100.0)), dash="dashed"),
        ),
        note="every attack lies below the line",
        description=f"At 10 % wrong accusations at most {_at(points, 10):.1f} % of members are found.",
    )


def _at(points: Sequence[tuple[float, float]], x: float) -> float:
    return next((y for place, y in points if place >= x), points[-1][1])


def _about_mu(unit: Mapping[str, Any]) -> str:
    found = unit["gaussian"]
    if found is None:
        return '<p class="quiet">No μ of Gaussian privacy is stated: none is proven that would say anything.</p>'
    how = "exactly" if found["exact"] else f"beyond a chance of {small(found['slack'])}"
    return (
        f'<p class="quiet">As Gaussian privacy: μ = {escape(plain(found["mu"]))}, {escape(how)}. '
        "Telling whether the unit was there is no easier than telling a bell curve around 0 from one around μ.</p>"
    )


def _picture(chart: Chart, number: int) -> str:
    """The chart with names of its own: a page holds several."""
    drawn = svg(chart, width=490, height=340).replace("chart-title", f"chart-title-{number}")
    drawn = drawn.replace("chart-about", f"chart-about-{number}")
    begin, end = drawn.index("  <style>"), drawn.index("</style>") + len("</style>\n")
    return drawn[:begin] + drawn[end:]  # the page has it once


# --------------------------------------------------------------------------------------------------- how it was done


def _how(values: Mapping[str, Any]) -> Iterable[str]:
    for unit in _units(values):
        binding = " (binding)" if unit["binding"] and len(_units(values)) > 1 else ""
        yield f"<h2>How one {escape(unit['whom'])} was protected{binding}</h2>"
        budget, sampling = unit["budget"], unit["sampling"] or {"kind": "none", "rate": 1.0}
        target = f"ε ≤ {show_bound(budget['epsilon'])} at δ = {small(budget['delta'])}"
        how = "" if budget["stated"] else " (the price of a stated noise; no target was set)"
        drawn = {"everyone": "all records in every step", "poisson": "each record by its own coin",
                 "fixed-size": "batches of fixed size"}.get(sampling["kind"], sampling["kind"])  # fmt: skip
        lower = show_bound(unit["epsilon_lower"], up=False) if unit["epsilon_lower"] else "none stated"
        noise = "as the stages below" if unit["noise_multiplier"] is None else plain(unit["noise_multiplier"])
        facts = [
            ["target", target + how],
            ["achieved", f"ε ≤ {show_bound(unit['epsilon'])} (at least {lower}) at δ = {small(unit['delta'])}"],
            ["mechanism", unit["mechanism"]],
            ["noise multiplier", noise],
            ["clip norm", plain(unit["clip_norm"])],
            ["drawn", f"{drawn}, rate {plain(sampling['rate'])}"],
            ["steps paid for", f"{unit['steps']:,}"],
            ["accounting", unit["method"]],
            ["worst party", f"{unit['worst_party']}, dataset {unit['dataset']}"],
        ]
        yield _facts(facts)
        if len(unit["stages"]) > 1:
            yield _table(["stage", "noise multiplier", "rate", "steps"], _stages(unit["stages"][:_SHOWN]))


def _stages(stages: Sequence[Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    for place, stage in enumerate(stages, 1):
        noise = "-" if stage["noise_multiplier"] is None else plain(stage["noise_multiplier"])
        yield f"{place}: {stage['law']}", noise, plain(stage["rate"]), f"{stage['steps']:,}"


def _lists(values: Mapping[str, Any]) -> Iterable[str]:
    if not values.get("not_protected"):
        return
    yield '<h2>Protected, and not protected</h2><div class="two">'
    for style, title, lines in (
        ("yes", "Protected", values["protected"] or ["Nothing."]),
        ("no", "Not protected", values["not_protected"]),
    ):
        yield f'<div class="{style}"><h3>{title}</h3><ul>'
        yield from (f"<li>{escape(line)}</li>" for line in lines)
        yield "</ul></div>"
    yield "</div>"


# ------------------------------------------------------------------------------------------------------- utility


def _metrics(values: Mapping[str, Any]) -> Iterable[str]:
    metrics = values["metrics"]
    if not metrics:
        return
    yield "<h2>How good the model is</h2>"
    if values.get("verdict"):  # reports of older versions have none
        yield f'<p class="warning">{escape(values["verdict"])}</p>'
    yield _table(["measure", "value", "on which data"], [
        [metric["name"].replace("_", " "), f"{metric['value']:.3f}", metric["on"]] for metric in metrics
    ])  # fmt: skip
    if "chance" in metrics[0]:
        level = f"{metrics[0]['chance']:.3f}"
        yield f'<p class="quiet">A model that knows nothing scores {level} in {escape(metrics[0]["name"])}.</p>'
    if values["references"]:
        first = metrics[0]
        yield _table(["for comparison", first["name"].replace("_", " "), "on which data"], [
            [name, f"{value:.3f}", first["on"]] for name, value in values["references"].items()
        ])  # fmt: skip
        yield '<p class="quiet">The models for comparison have no privacy guarantee.</p>'
    yield '<p class="quiet">Scores were measured where the data is; a check of this report cannot measure them.</p>'


def _answers(values: Mapping[str, Any]) -> Iterable[str]:
    found = values.get("utility", {}).get("answers")
    if not found:
        return
    yield "<h2>What was released</h2>"
    yield _table(["answer", "kind"], [[str(one.get("name", "")), str(one.get("kind", ""))] for one in found[:_SHOWN]])
    yield '<p class="quiet">The values, with their margins, are in answers.json and report.json.</p>'


# ------------------------------------------------------------------------------------------------ defence and audit


def _defence(values: Mapping[str, Any]) -> Iterable[str]:
    rule, audit = values.get("robustness"), values.get("audit")
    if rule and values.get("kind") == "federation":
        yield "<h2>Against bad updates</h2>"
        made = f", made for {rule['attackers']} updates a round that may be anything" if rule["attackers"] else ""
        yield f"<p>Rule: {escape(rule['title'])}{escape(made)}. {escape(rule['limits'])}</p>"
        yield f'<p class="quiet">{escape(rule["findings"])}</p>'
    if audit:
        yield from _audit("Audit", audit)
    if clients := values.get("client_audit"):
        yield from _audit("Audit of whole clients", clients)


def _audit(title: str, audit: Mapping[str, Any]) -> Iterable[str]:
    yield f"<h2>{title}</h2>"
    sound = audit["made"] and audit.get("conclusion", "consistent") == "consistent"
    yield f'<p class="{"quiet" if sound else "warning"}">{escape(audit["text"])}</p>'
    if audit.get("estimate") is not None and audit.get("estimate_range"):
        low, high = audit["estimate_range"]
        yield (
            f'<p class="quiet">Who has the finished model alone may tell clients apart as if ε were about '
            f"{audit['estimate']:.3g}, between {low:.3g} and {high:.3g}: an estimate, and no bound to either side.</p>"
        )
    if audit.get("evidence"):
        yield _table(["test", "what was seen", "against the claim"], [
            [one["name"], one["found"], "contradicts it" if one["contradicts"] else f"p = {one['p']:.2g}"]
            for one in audit["evidence"]
        ])  # fmt: skip
        found = "; ".join(one["sentence"] for one in audit["powers"])
        yield f'<p class="quiet">Found in nine audits of ten, unless it says otherwise: {escape(found)}.</p>'


def _operator(values: Mapping[str, Any]) -> Iterable[str]:
    found = values.get("operator_only")
    if not found:
        return
    yield "<h2>Findings about parties, for the operator alone</h2>"
    yield (
        '<p class="warning">A reader of this gets no protection from secret draws. That an update was unlike the '
        "others is no verdict.</p>"
    )
    if left := found["left_out"]:
        yield _table(["party", "rounds left out", "reason given last"], [
            [one["party"], f"{one['rounds']} of {left['rounds']}", one["reason"]] for one in left["parties"][:_FOUND]
        ])  # fmt: skip
    if groups := found["groups"]:
        yield f"<p>The rule left out {groups['left_out']} of {groups['judged']} means of groups.</p>"
    if found["findings"]:
        yield _table(["round", "rule", "about", "evidence"], [
            [str(one["round"]), str(one["rule"]), str(one["subject"]), str(one["evidence"])]
            for one in found["findings"][:_FOUND]
        ])  # fmt: skip
    if not (found["left_out"] or found["groups"] or found["findings"]):
        yield "<p>Nothing was found.</p>"


def _card(values: Mapping[str, Any]) -> Iterable[str]:
    found = values.get("card")  # reports of older versions have none
    if not found:
        return
    yield "<h2>Who learns what</h2>"
    yield _table(["", "clause", "what holds", "assuming"], [
        [
            "provided" if clause["provided"] else "NOT PROVIDED" if clause.get("applies", True) else "NOT APPLICABLE",
            clause["title"],
            clause["text"],
            "; ".join(clause["assuming"]),
        ]
        for clause in found["clauses"]
    ])  # fmt: skip


# ------------------------------------------------------------------------------------------- parties, files, ledger


def _parties(values: Mapping[str, Any]) -> Iterable[str]:
    yield "<h2>Who is registered</h2>"
    yield _table(["party", "dataset", "declared size", "standing"], [
        [_party_name(party), party["dataset"], f"{party['size']:,}", party["public"] or "protected"]
        for party in values["parties"][:_SHOWN]
    ])  # fmt: skip
    if len(values["parties"]) > _SHOWN:
        yield f'<p class="quiet">And {len(values["parties"]) - _SHOWN:,} more.</p>'
    yield '<p class="quiet">Sizes are declared and public. Who took part in which round is not in this report.</p>'


def _party_name(party: Mapping[str, Any]) -> str:
    return f"{party['clients']:,} clients" if party["clients"] > 1 else str(party["name"])


def _files(values: Mapping[str, Any]) -> Iterable[str]:
    found = values.get("artefacts")
    if found is None:
        return
    yield "<h2>The released files</h2>"
    if not found:
        yield "<p>None was released.</p>"
        return
    yield _table(["file", "bytes", "SHA-256"], [
        [one["file"], f"{one['bytes']:,}", one["sha256"]] for one in found
    ], code=True)  # fmt: skip


def _ledger(values: Mapping[str, Any]) -> Iterable[str]:
    ledger = values["ledger"]
    yield "<h2>The ledger, and how to check this report</h2>"
    rows = [
        ["ledger", ledger["head"]["ledger"]],
        ["entries when this was written", f"{ledger['head']['sequence']:,}"],
        ["head", ledger["head"]["hash"]],
        ["signature (Ed25519)", ledger["head"]["signature"]],
        ["public key", ledger["public_key"]],
    ]
    if "fingerprint" in ledger:
        rows.append(["fingerprint of the key", ledger["fingerprint"]])
    if "signature" in values:
        rows.append(["signature of report.json", values["signature"]["signature"]])
    yield _table(["what", "value"], rows, code=True, facts=True)
    if "fingerprint" in ledger:
        yield (
            "<p>On any machine, without the data: <code>pip install quietsum</code>, then</p>"
            "<pre><code>quietsum report --verify report.json --export ledger-export.jsonl "
            "--key FINGERPRINT</code></pre>"
            "<p>That computes every privacy figure again, from the charges, and holds them against the ledger. Take "
            "the fingerprint from somewhere else than this report, by telephone or from a contract: others can sign "
            "another report with a key of their own, and the fingerprint alone tells.</p>"
        )
    yield (
        "<p>Where the ledger is kept: <code>quietsum ledger verify --anchor report.json</code>. Keep this page: its "
        "head shows later whether the ledger was cut or rewritten.</p>"
    )
    if ledger["sites_keep_books"]:
        yield (
            "<p>Every site also keeps a ledger of its own and may refuse. The heads of those ledgers, and of this one "
            "at the sites, came with every request and reply; <code>quietsum ledger receipts</code> lists them, for "
            "either side to verify the other's books.</p>"
        )


def _terms(values: Mapping[str, Any]) -> Iterable[str]:
    yield "<h2>The plan</h2>"
    yield _table(["setting", "value"], [[name, str(value)] for name, value in _flat(values["plan"])], facts=True)
    digest, version = escape(values["plan_digest"]), escape(values["version"])
    computed = ", ".join(f"{name} {version}" for name, version in values.get("versions", {}).items())
    yield f'<p class="quiet">Plan <code>{digest}</code>, made with quietsum {version}. {escape(computed)}</p>'


def _words(values: Mapping[str, Any]) -> Iterable[str]:
    if not _units(values):
        return
    yield "<h2>Words</h2><dl>"
    yield from (f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in WORDS)
    yield "</dl>"


def _sign_off(values: Mapping[str, Any]) -> Iterable[str]:
    yield '<div class="sign"><div>read and checked by</div><div>date</div><div>signature</div></div>'


# ---------------------------------------------------------------------------------------------------------- tables


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value not in ([], ()):
            yield f"{prefix}{name}", value


def _facts(rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="facts"><tbody>{cells}</tbody></table>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, code: bool = False, facts: bool = False) -> str:
    """A table; on a narrow screen each cell stands on a line of its own, behind the name of its column."""
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = []
    for row in rows:
        shown_cells = []
        for place, (name, cell) in enumerate(zip(head, row, strict=True)):
            text = f"<code>{escape(cell)}</code>" if code and place else escape(cell)
            label = f' data-name="{escape(name)}"' if place and not facts and cell else ""
            shown_cells.append(f"<td{label}>{text}</td>")
        lines.append(f"<tr>{''.join(shown_cells)}</tr>")
    style = ' class="facts"' if facts else ""
    return f"<table{style}><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
