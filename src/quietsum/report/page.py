"""The report as one self-contained HTML page: no scripts, no network, readable on paper and in the dark.

It is written from the values of ``report.json`` alone, so the page can say nothing that the file does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from quietsum.charts import Chart, Series, svg
from quietsum.ledger import WHOLE_PLAN

__all__ = ["curve", "render_page"]

_SHOWN = 50  # parties in the table

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --quiet: #5b6b7b; --paper: #fff; --line: #d8dfe6; --mark: #0b6bcb;
  --warn: #a4460a; --warn-paper: #fff4ea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9fb0c0; --paper: #12181f; --line: #2c3946;
  --mark: #6cb6ff; --warn: #ffb27a; --warn-paper: #2b1d12; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 52rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .5rem 0; } .quiet { color: var(--quiet); }
.claim { border-left: 4px solid var(--mark); padding: .5rem 1rem; margin: 1.25rem 0; font-size: 1.1rem; }
.none, .warning { border-left: 4px solid var(--warn); background: var(--warn-paper); color: var(--warn);
  padding: .5rem 1rem; margin: 1.25rem 0; } .none { font-weight: 700; font-size: 1.25rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; }
code { font: .875em ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } svg { max-width: 100%; height: auto; }
"""


def render_page(values: Mapping[str, Any]) -> str:
    """The whole page."""
    title = f"Privacy report: {values['run']}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(values["summary"])}</p>',
        *_claims(values),
        *_curves(values),
        *_metrics(values),
        *_parties(values),
        *_card(values),
        *_ledger(values),
        *_terms(values),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _claims(values: Mapping[str, Any]) -> Iterable[str]:
    for sentence in values["sentences"]:
        style = "none" if not values["guarantees"] else "claim"
        yield f'<p class="{style}">{escape(sentence)}</p>'
    for warning in values["warnings"]:
        yield f'<p class="warning">{escape(warning)}</p>'
    for note in values["notes"]:
        yield f'<p class="quiet">{escape(note)}</p>'
    if not values["guarantees"]:
        return
    drill = " of the same plan without [attack]" if values.get("plan", {}).get("attack") else ""
    yield f"<h2>The guarantee{drill}</h2>"
    yield _table(
        ["protects one", "against", "ε at most", "ε at least", "δ", "neighbours", "method"],
        [
            [
                guarantee["unit"],
                {"server": "the server", "recipients": "recipients of the model"}[guarantee["observer"]],
                _figure(guarantee["epsilon"], up=True),
                _figure(guarantee["epsilon_lower"], up=False) if guarantee["epsilon_lower"] else "none stated",
                f"{guarantee['delta']:g}".replace("-", "\N{NON-BREAKING HYPHEN}"),
                guarantee["neighbours"],
                guarantee["method"] + (", certified" if guarantee["certified"] else ""),
            ]
            for guarantee in values["guarantees"]
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


def curve(values: Mapping[str, Any]) -> Chart | None:
    """What each round cost, as a chart; None where there is nothing to draw."""
    limit = values["limit"]
    unit = "record" if limit is None else limit["unit"]
    points = (point for point in values["spent"] if point["unit"] == unit)
    spent = tuple((float(point["round"]), float(point["epsilon"])) for point in points)
    if len(spent) < 2:
        return None
    return Chart(
        title=f"ε per {unit} after each round, worst party",
        x_label="round",
        y_label=f"ε per {unit}",
        series=(Series(label="spent", points=spent),),
        limit=None if limit is None else ("budget of this plan", float(limit["epsilon"])),
        description=f"ε per {unit} grows to {spent[-1][1]:.3g} after round {spent[-1][0]:g}.",
    )


def _curves(values: Mapping[str, Any]) -> Iterable[str]:
    chart = curve(values)
    if chart is not None:
        yield "<h2>What each round cost</h2>"
        yield svg(chart, height=360)
        yield '<p class="quiet">As recorded in the ledger, attempts that were repeated included.</p>'


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


def _ledger(values: Mapping[str, Any]) -> Iterable[str]:
    ledger = values["ledger"]
    yield "<h2>The ledger</h2>"
    yield _table(["what", "value"], [
        ["ledger", ledger["head"]["ledger"]],
        ["entries when this was written", f"{ledger['head']['sequence']:,}"],
        ["head", ledger["head"]["hash"]],
        ["signature (Ed25519)", ledger["head"]["signature"]],
        ["public key", ledger["public_key"]],
    ], code=True)  # fmt: skip
    yield (
        "<p>Every number above can be recomputed from the ledger: <code>quietsum ledger verify --anchor report.json"
        "</code>. Keep this page: its head shows later whether the ledger was cut or rewritten.</p>"
    )
    if ledger["sites_keep_books"]:
        yield (
            "<p>Every site also keeps a ledger of its own and may refuse. The heads of those ledgers, and of this one "
            "at the sites, came with every request and reply; <code>quietsum ledger receipts</code> lists them, for "
            "either side to verify the other's books.</p>"
        )


def _terms(values: Mapping[str, Any]) -> Iterable[str]:
    yield "<h2>The plan</h2>"
    yield _table(["setting", "value"], [[name, str(value)] for name, value in _flat(values["plan"])])
    digest, version = escape(values["plan_digest"]), escape(values["version"])
    yield f'<p class="quiet">Plan <code>{digest}</code>, made with quietsum {version}.</p>'


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and value not in ([], ()):
            yield f"{prefix}{name}", value


def _figure(value: float | str, *, up: bool) -> str:
    if isinstance(value, str):
        return "∞"
    scaled = value * 1e4
    return f"{(math.ceil(scaled - 1e-6) if up else math.floor(scaled + 1e-6)) / 1e4:.4f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, code: bool = False) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = []
    for row in rows:
        first, *rest = row
        shown = [f"<td><code>{escape(cell)}</code></td>" if code else f"<td>{escape(cell)}</td>" for cell in rest]
        lines.append(f"<tr><td>{escape(first)}</td>{''.join(shown)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
