"""The list of runs, and one run: its budgets, its score against ε, its rounds as they come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from quietsum.charts import Gauge
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import StoreFailed
from quietsum.privacy import Budget, PrivacyUnit
from quietsum.report import Training, curve
from quietsum.runs import RunCourse, RunFolder
from quietsum.web.pictures import draw, draw_gauge, draw_spending, draw_utility
from quietsum.web.rendering import View, view_of

__all__ = ["list_runs", "live_values", "show_round_table", "show_rounds", "show_run"]

PAGE = 25
ROUNDS = 100
LATEST = 12
"""Rounds that the page of a run shows; the others stand on pages of their own."""
OUTCOMES: Mapping[str, tuple[str, str]] = {
    "running": ("running", "live"),
    "finished": ("finished", "good"),
    "interrupted": ("interrupted", "warn"),
    "budget": ("stopped by its budget", "warn"),
    "too-few-parties": ("stopped, too few parties", "warn"),
}
"""How a run stands, in words, and the colour of its badge."""


def read_whole(request: Request, name: str, default: int, most: int = 10**9) -> int:
    """A number in the address; the page says what is wrong with any other text."""
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 11 and 1 <= int(text) <= most):
        raise HTTPException(400, f"{name} in the address is no whole number from 1 to {most:,}.")
    return int(text)


def list_runs(request: Request) -> Response:
    """All runs, the newest first, some a page; with ``q`` those whose name holds it."""
    view = view_of(request)
    wanted, number = request.query_params.get("q", "")[:100], read_whole(request, "page", 1)
    folders, damaged = view.reader.folders()
    found = [folder for folder in folders if wanted.lower() in folder.run.lower()]
    pages = max(1, math.ceil(len(found) / PAGE))
    number = min(number, pages)
    broken, rows = "", []
    for folder in found[PAGE * (number - 1) : PAGE * number]:
        row, problem = read_line(view, folder)
        broken = problem or broken
        rows.append(row)
    trained, problem = _list_trained(view) if number == 1 else ([], "")
    return view.page(
        request, "runs.html", rows=rows, wanted=wanted, number=number, pages=pages, total=len(found),
        damaged=[(name, view.reader.say(Exception(text))) for name, text in damaged], broken=broken or problem,
        trained=[row for row in trained if wanted.lower() in row["run"].lower()],
        live=any(row["state"][1] == "live" for row in rows),
    )  # fmt: skip


def read_line(view: View, folder: RunFolder) -> tuple[dict[str, Any], str]:
    """One run for a table, and what is wrong with the ledger; a run that cannot be read says so in its row."""
    row: dict[str, Any] = {
        "run": folder.run, "folder": folder.path.name, "created": folder.created, "problem": "", "guarantees": [],
        "round": None, "rounds": None, "metric": None, "value": None, "metric_on": "", "drill": False,
        "state": ("not known", "warn"),
    }  # fmt: skip
    try:
        values = view.reader.line(folder)
        return {**row, **values, "state": OUTCOMES.get(values["outcome"], (values["outcome"], "warn"))}, ""
    except (LedgerBroken, StoreFailed) as error:
        return {**row, "problem": "what it cost is not known"}, view.reader.say(error)
    except QuietsumError as error:
        return {**row, "problem": view.reader.say(error), "state": ("damaged", "bad")}, ""


def _list_trained(view: View) -> tuple[list[dict[str, Any]], str]:
    try:
        return [{**row, "state": OUTCOMES[row["outcome"]]} for row in view.reader.list_charged()], ""
    except QuietsumError as error:
        return [], view.reader.say(error)


# ---------------------------------------------------------------------------------------------------- one run


def show_run(request: Request) -> Response:
    """One run or training."""
    view = view_of(request)
    found = view.reader.find(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    if isinstance(found, Training):
        return _show_training(view, request, found)
    plan = found.plan()
    return view.page(
        request, "run.html", run=found.run, created=found.created, settings=flatten(plan.to_dict()),
        has_report=(found.path / "report.html").is_file(), asked=(found.path / "answers.json").is_file(),
        **live_values(view, found),
    )  # fmt: skip


def live_values(view: View, folder: RunFolder) -> dict[str, Any]:
    """What changes while a run goes on: how far it is, its budgets, its curves and its latest rounds."""
    plan, course = folder.plan(), view.reader.course(folder)
    line, problem = read_line(view, folder)
    limits = {} if problem else {one.unit: one for one in view.reader.limits(folder.run)}
    over = line["state"][0] == "finished"
    forecast = _forecast(view, folder) if limits and not over else []
    last = course.last
    done = last.round if last is not None else line["round"] or 0
    gauges, pictures = [], []
    for unit, limit in limits.items():
        rows = [(number, spent[unit]) for number, spent in forecast if unit in spent]
        gauges.append(_gauge(unit, limit, course, line, rows))
        pictures.append((f"ε per {unit.value} by round", draw_spending(course, rows, unit, limit.epsilon)))
        pictures.append((f"Score against ε per {unit.value}", draw_utility(course, unit, limit.delta)))
    return {
        "folder": folder.path.name, "line": line, "problem": problem, "state": line["state"], "round": done,
        "rounds": plan.federation.rounds, "gauges": gauges,
        "pictures": [(title, picture) for title, picture in pictures if picture is not None],
        "table": _rows(course.rounds[-LATEST:]), "finished_rounds": len(course.rounds),
        "scores": list(course.measured_on), "measured_on": dict.fromkeys(course.measured_on.values()),
        "over": over, "units": [unit.value for unit in limits], "live": line["state"][1] == "live",
        "drill": plan.attack is not None,
    }  # fmt: skip


def _forecast(view: View, folder: RunFolder) -> list[tuple[int, dict[PrivacyUnit, float]]]:
    """Round and ε by unit; empty where the plan cannot be priced any more."""
    try:
        rows = view.reader.forecast(folder)
    except QuietsumError:
        return []
    found = []
    for row in rows:
        spent: dict[PrivacyUnit, float] = {}
        for one in row.guarantees:
            spent[one.unit] = max(one.epsilon, spent.get(one.unit, 0.0))
        found.append((row.round, spent))
    return found


def _gauge(
    unit: PrivacyUnit, limit: Budget, course: RunCourse, line: Mapping[str, Any], forecast: Sequence[tuple[int, float]]
) -> dict[str, Any]:
    """What is spent of one unit's limit. Where run.db is gone, what the whole plan costs stands for it."""
    last = course.last
    claims = [_number(one["epsilon"]) for one in line["guarantees"] if one["unit"] == unit.value]
    planned = max([*claims, *(epsilon for _, epsilon in forecast[-1:])], default=limit.epsilon)
    spent = planned if last is None and line["state"][0] == "finished" else 0.0
    if last is not None:
        spent = last.epsilon.get(unit, 0.0)
    gauge = Gauge(title=f"ε per {unit.value}", spent=spent, planned=max(planned, spent), limit=limit.epsilon)
    return {
        "unit": unit.value, "delta": limit.delta, "gauge": gauge, "picture": draw_gauge(gauge, f"gauge-{unit.value}"),
        "share": min(9.99, spent / limit.epsilon),
    }  # fmt: skip


def _number(value: float | str) -> float:
    return math.inf if isinstance(value, str) else float(value)


def _rows(rounds: Sequence[Any]) -> list[Any]:
    return list(reversed(rounds))


def show_rounds(request: Request) -> Response:
    """All rounds of a run, a hundred a page, the newest first."""
    view = view_of(request)
    found = view.reader.find(request.path_params["name"])
    if not isinstance(found, RunFolder):
        raise HTTPException(404)
    course = view.reader.course(found)
    return show_round_table(view, request, found, course)


def show_round_table(view: View, request: Request, folder: RunFolder, course: RunCourse) -> Response:
    """One page of the rounds."""
    pages = max(1, math.ceil(len(course.rounds) / ROUNDS))
    number = min(read_whole(request, "page", 1), pages)
    end = len(course.rounds) - ROUNDS * (number - 1)
    units = [unit.value for unit in PrivacyUnit if any(unit in one.epsilon for one in course.rounds[-1:])]
    return view.page(
        request, "rounds.html", run=folder.run, folder=folder.path.name, number=number, pages=pages,
        table=_rows(course.rounds[max(0, end - ROUNDS) : end]), scores=list(course.measured_on), units=units,
        total=len(course.rounds), drill=False,
    )  # fmt: skip


def _show_training(view: View, request: Request, training: Training) -> Response:
    values = view.reader.training(training)
    chart = curve(values)
    return view.page(
        request, "training.html", run=training.run, values=values, state=OUTCOMES[values["outcome"]],
        picture=None if chart is None else draw(chart, "spending"), settings=flatten(values["plan"]),
        has_report=(training.path / "report.html").is_file(),
    )  # fmt: skip


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """The settings of a plan, one a line; what is not stated is left out."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += flatten(value, f"{prefix}{name}.")
        elif value is not None and value not in ([], ()):
            text = str(value)
            found.append((f"{prefix}{name}", text if len(text) <= 300 else f"{text[:300]}…"))
    return found
