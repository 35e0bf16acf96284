"""About single parties: who took part and was rejected, what one site has spent, and what was raised as an alert.

Who took part is for the operator alone (rule 5): a reader of it gets no amplification from secret draws. So these
pages do not exist unless the dashboard was opened with ``--operator``, and then behind its token. What a site shows of
itself is the site's own affair.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from quietsum.alerts import LOG, AlertKind, AuditLog, Line, Severity
from quietsum.errors import CorruptState, QuietsumError, printable
from quietsum.privacy import Guarantee
from quietsum.runs import RunCourse, RunFolder, count_drop_outs, findings, read_groups, read_left_out
from quietsum.web.pages.runs import read_whole
from quietsum.web.rendering import View, view_of

__all__ = ["show_alerts", "show_parties", "show_site"]

MOST = 100
"""Rows of a page."""
REFUSALS = (AlertKind.REFUSED, AlertKind.BUDGET_GONE)


def _require_operator(view: View) -> None:
    if not view.access.operator:
        raise HTTPException(404)


def show_parties(request: Request) -> Response:
    """The parties of one run, the newest one unless the address names another: the one that has spent most first."""
    view = view_of(request)
    _require_operator(view)
    folders, _ = view.reader.folders()
    name = request.query_params.get("run", "")
    folder = next((one for one in folders if one.path.name == name), None) if name else next(iter(folders), None)
    if folder is None:
        if name:
            raise HTTPException(404)
        return view.page(request, "parties.html", run=None, names=[])
    number = read_whole(request, "page", 1)
    rows = _rows(view, folder)
    pages = max(1, math.ceil(len(rows) / MOST))
    number = min(number, pages)
    path = folder.path / "run.db"
    groups = view.reader.keep_file("groups", path, lambda: read_groups(path))
    found = view.reader.keep_file("findings", path, lambda: findings(path))
    course = view.reader.course(folder)
    return view.page(
        request, "parties.html", run=folder.run, folder=folder.path.name,
        names=[one.path.name for one in folders[:MOST]],
        rows=rows[MOST * (number - 1) : MOST * number], total=len(rows), number=number, pages=pages,
        participation=_participation(course), groups=(len(groups), sum(not kept for *_, kept in groups)),
        findings=[(one.round, one.sentence) for one in found[-MOST:]], more_findings=max(0, len(found) - MOST),
    )  # fmt: skip


def _rows(view: View, folder: RunFolder) -> list[dict[str, Any]]:
    """A row for each party: what it has spent of its limit, how often it was lost and left out, and why last."""
    path = folder.path / "run.db"
    lost = {
        name: (count, why) for name, count, why in view.reader.keep_file("lost", path, lambda: count_drop_outs(path))
    }
    left = view.reader.keep_file("left", path, lambda: read_left_out(path))
    out = {} if left is None else {party: (count, why) for party, count, why in left.parties}
    limits = {one.unit: one.epsilon for one in view.reader.limits(folder.run)}
    with view.reader.ledger() as ledger:
        spent = ledger.spending_by_party(folder.run)
    facts = view.reader.facts(folder)
    accounts: dict[str, list[tuple[Guarantee, float]]] = {}
    for (party, unit), found in spent.items():
        limit = limits.get(unit, 0.0)
        accounts.setdefault(party, []).append((found, found.epsilon / limit if limit else math.inf))
    account_of = {} if facts is None else {one.name: one.account for one in facts.parties}
    others = [name for name in accounts if name not in account_of.values()]  # clients of one account stand for it
    names = dict.fromkeys([*account_of, *others, *lost, *out])
    rows: list[dict[str, Any]] = [
        {
            "party": printable(name),
            "spent": accounts.get(name) or accounts.get(account_of.get(name, name), []),
            "lost": lost.get(name, (0, "")), "left": out.get(name, (0, "")),
        }
        for name in names
    ]  # fmt: skip
    rows.sort(key=lambda row: (-_worst(row), -(row["lost"][0] + row["left"][0]), row["party"]))
    return rows


def _worst(row: dict[str, Any]) -> float:
    return max((share for _, share in row["spent"]), default=0.0)


def _participation(course: RunCourse) -> list[tuple[int, int, int]]:
    """Round, asked and kept of the newest rounds."""
    rows = [(one.round, one.asked, one.kept) for one in course.rounds[-MOST:]]
    return [(number, asked, kept) for number, asked, kept in reversed(rows) if asked is not None and kept is not None]


# ------------------------------------------------------------------------------------------------- the site


def show_site(request: Request) -> Response:
    """What this site has spent, for whom, and what it refused."""
    from quietsum.party import layers_of, status_of

    view = view_of(request)
    policy = view.reader.policy
    if policy is None:
        raise HTTPException(404)
    values: dict[str, Any] | None = None
    problem = ""
    try:
        with view.reader.ledger() as ledger:
            values = view.reader.keep_value("site", ledger.head.sequence, lambda: status_of(policy, ledger))
    except QuietsumError as error:
        problem = view.reader.say(error)
    lines, trouble = _alert_lines(view)
    refused = [line for line in lines if (alert := line.alert) is not None and alert.kind in REFUSALS]
    return view.page(
        request, "site.html", site_name=policy.name, data=policy.dataset, found=values, problem=problem,
        trouble=trouble,
        refused=[_alert_row(line) for line in reversed(refused[-MOST:])],
        layers=[layer.to_dict() for layer in layers_of(policy)],
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------- the alerts


def show_alerts(request: Request) -> Response:
    """What was raised, the newest first; with ``all`` notices as well."""
    view = view_of(request)
    if view.reader.policy is None:
        _require_operator(view)
    everything = request.query_params.get("all") == "1"
    lines, trouble = _alert_lines(view)
    alerts = [line for line in lines if line.alert is not None and (everything or _is_grave(line))]
    number = read_whole(request, "page", 1)
    pages = max(1, math.ceil(len(alerts) / MOST))
    number = min(number, pages)
    newest = list(reversed(alerts))[MOST * (number - 1) : MOST * number]
    kinds = Counter(str(line.alert.severity) for line in alerts if line.alert is not None)
    return view.page(
        request, "alerts.html", rows=[_alert_row(line) for line in newest], trouble=trouble, everything=everything,
        number=number, pages=pages, total=len(alerts), kinds=kinds, lines=len(lines),
    )  # fmt: skip


def _is_grave(line: Line) -> bool:
    alert = line.alert
    return alert is not None and alert.severity is not Severity.NOTICE


def _alert_lines(view: View) -> tuple[list[Line], str]:
    """The lines of the log as far as they are in order, and what is wrong behind them."""
    path = view.reader.ledger_path.parent / LOG

    def read() -> tuple[list[Line], str]:
        found: list[Line] = []
        try:
            found.extend(AuditLog(path).lines())
        except CorruptState as error:
            return found, view.reader.say(error)
        return found, ""

    return view.reader.keep_file("alerts", path, read)


def _alert_row(line: Line) -> dict[str, Any]:
    alert = line.alert
    assert alert is not None
    return {
        "time": line.time, "severity": str(alert.severity), "kind": str(alert.kind), "run": alert.run,
        "sentence": printable(alert.sentence), "subject": printable(alert.subject), "round": alert.round,
    }  # fmt: skip
