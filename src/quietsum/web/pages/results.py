"""What came out: runs beside each other, answers to questions, audits, and the report of a run."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from quietsum.audit import AUDIT, CLIENT_AUDIT, read_audit, read_client_audit
from quietsum.errors import QuietsumError, printable
from quietsum.federation import clients_folder
from quietsum.files import read_file
from quietsum.learning import CANARIES
from quietsum.report import Training, read_answers
from quietsum.runs import RunFolder
from quietsum.web.access import SANDBOX
from quietsum.web.pages.runs import flatten, read_line
from quietsum.web.pictures import draw_frontier, draw_intervals
from quietsum.web.rendering import View, view_of

__all__ = ["compare", "list_audits", "list_questions", "show_answers", "show_report"]

BESIDE = 30
"""Runs that are compared at a time."""
LISTED = 60
ESTIMATES = 40
"""Estimates of one answer that are drawn."""


def compare(request: Request) -> Response:
    """Runs beside each other: those that the address names, or the newest; score over ε, and what differs in plans."""
    view = view_of(request)
    folders, _ = view.reader.folders()
    wanted = request.query_params.getlist("run")[:BESIDE]
    chosen = [one for one in folders if one.path.name in wanted] if wanted else folders[:BESIDE]
    rows = [row for row in (_compare(view, folder) for folder in chosen) if row is not None]
    kinds = dict.fromkeys(row["kind"] for row in rows if row["metric"] and row["unit"])
    pictures: list[tuple[str, Markup]] = []
    for place, kind in enumerate(list(kinds)[:4]):
        task, metric, unit = kind
        some = [row for row in rows if row["kind"] == kind]
        picture = draw_frontier(some, metric, unit, f"frontier-{place}")
        if picture is not None:
            title = f"{task}: {metric.replace('_', ' ')} over ε per {unit}"
            pictures.append((f"{title}, {len(some)} run{'s' * (len(some) > 1)}", picture))
    plans = [(row["folder"], dict(row["settings"])) for row in rows[:8]]
    keys = sorted({key for _, plan in plans for key in plan if len({one.get(key) for _, one in plans}) > 1})
    return view.page(
        request, "compare.html", rows=rows, pictures=pictures, wanted=wanted, named=bool(wanted),
        choices=[one.path.name for one in folders[:LISTED]], total=len(folders),
        differing=[(key, [_write_setting(plan, key) for _, plan in plans]) for key in (keys if wanted else ())],
        plans=[name for name, _ in plans],
    )  # fmt: skip


def _write_setting(plan: Mapping[str, Any], key: str) -> str:
    """A setting as a plan writes it, or that it is not stated."""
    value = plan.get(key, "not stated")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _compare(view: View, folder: RunFolder) -> dict[str, Any] | None:
    row, _ = read_line(view, folder)
    try:
        settings = flatten(folder.plan().to_dict())
    except QuietsumError:
        return None
    first = next(iter(row["guarantees"]), None)
    epsilon = math.inf if first is None or isinstance(first["epsilon"], str) else float(first["epsilon"])
    if row["drill"]:
        epsilon = math.inf
    unit = "" if first is None else str(first["unit"])
    score = row["value"]
    unit = unit if score is not None else ""
    task = printable(dict(settings).get("task.name", ""))  # scores of different tasks are not compared
    kind = (task, row["metric"], unit)
    return {**row, "epsilon": epsilon, "unit": unit, "kind": kind, "settings": settings}


# --------------------------------------------------------------------------------------------- questions


def list_questions(request: Request) -> Response:
    """The runs that asked questions and have answers."""
    view = view_of(request)
    folders, _ = view.reader.folders()
    rows = [
        {"folder": one.path.name, "run": one.run, "created": one.created}
        for one in folders
        if (one.path / "answers.json").is_file()
    ]
    return view.page(request, "questions.html", rows=rows[:LISTED], more=max(0, len(rows) - LISTED))


def show_answers(request: Request) -> Response:
    """The answers of one run, each with its margins."""
    view = view_of(request)
    folder = view.reader.find(request.path_params["name"])
    if not isinstance(folder, RunFolder) or not (folder.path / "answers.json").is_file():
        raise HTTPException(404)
    path = folder.path / "answers.json"
    answers = view.reader.keep_file("answers", path, lambda: read_answers(folder.path))
    row, _ = read_line(view, folder)
    return view.page(
        request, "answers.html", run=folder.run, folder=folder.path.name, line=row,
        answers=[_answer(one, place) for place, one in enumerate(answers[:LISTED])],
    )  # fmt: skip


def _answer(values: dict[str, Any], place: int) -> dict[str, Any]:
    """One answer as a picture with error bars, and its values as text; what is no number is left out."""
    rows = []
    for one in values.get("estimates", ()):
        try:
            low, high = (float(end) for end in one["noise"])
            row = (printable(str(one["label"])), float(one["value"]), low, high)
        except (LookupError, TypeError, ValueError):
            continue
        if all(math.isfinite(number) for number in row[1:]):
            rows.append(row)
    name, asks = printable(str(values.get("name", ""))), printable(str(values.get("asks", "")))
    picture = draw_intervals(name, asks, rows[:ESTIMATES], f"answer-{place}") if rows else None
    return {
        "name": name, "asks": asks, "kind": printable(str(values.get("kind", ""))), "rows": rows, "picture": picture,
        "more": max(0, len(rows) - ESTIMATES), "remarks": [printable(str(text)) for text in values.get("remarks", ())],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ audits


def list_audits(request: Request) -> Response:
    """The audits of trainings and of runs, by canary records and canary clients: the claim beside what these say."""
    view = view_of(request)
    rows, waiting = [], []
    places: list[Training | RunFolder] = [*view.reader.trainings()[:LISTED], *view.reader.folders()[0][:LISTED]]
    for one in places:
        for unit, name, read in (("record", AUDIT, read_audit), ("client", CLIENT_AUDIT, read_client_audit)):
            try:
                reading = functools.partial(read, one.path, one.run)
                found = view.reader.keep_file(f"audit per {unit}", one.path / name, reading)
            except QuietsumError as error:
                rows.append({"run": one.run, "unit": unit, "problem": view.reader.say(error)})
                continue
            if found is not None:
                rows.append({"run": one.run, "unit": unit, "problem": "", **_describe_audit(found)})
            elif _waits(one.path, unit) and one.run not in waiting:
                waiting.append(one.run)
    return view.page(request, "audits.html", rows=rows, waiting=waiting)


def _waits(folder: Path, unit: str) -> bool:
    """Whether canaries of this kind left a record in ``folder``."""
    own = clients_folder(folder)
    if unit == "client":
        return own.is_dir()
    return (folder / CANARIES).is_dir() and any(one != own for one in (folder / CANARIES).iterdir())


def _describe_audit(found: dict[str, Any]) -> dict[str, Any]:
    claim, lower = found["claim"].get("epsilon"), found["lower_bound"]["epsilon"]
    return {
        "conclusion": str(found["conclusion"]), "sentence": printable(str(found["sentence"])), "claim": claim,
        "lower": lower, "steps": found["steps"], "canaries": found["canaries"],
        "evidence": [
            (printable(str(one.get("name", ""))), printable(str(one.get("found", ""))), bool(one.get("contradicts")))
            for one in found["evidence"]
        ],
        "powers": [printable(str(one.get("sentence", ""))) for one in found["powers"]],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ report


def show_report(request: Request) -> Response:
    """The report that lies in the run's folder, as it was written; the browser may only show it."""
    view = view_of(request)
    found = view.reader.find(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    path = found.path / "report.html"
    if not path.is_file() or path.is_symlink():
        command = f"quietsum report {found.run}"
        return view.page(
            request, "problem.html", title="No report yet", code=404,
            sentence=f"{'This training' if isinstance(found, Training) else 'This run'} has no report yet: {command} "
            "writes one.",
        )  # fmt: skip
    return HTMLResponse(read_file(path), headers={"content-security-policy": SANDBOX})
