"""The planner: what a plan would cost, answered while its sliders move, and why it would be refused.

Everything is worked out by the product's own plan, forecast and accountants: what stands here is what ``quietsum plan``
would say. Nothing is written and no data is touched. A slider has a place for each value that may be asked for, so the
number of questions is finite, an answer is kept, and one that takes long is given up (:mod:`quietsum.web.thinking`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from quietsum.charts import Chart, Gauge, Series
from quietsum.errors import PlanRefused, QuietsumError
from quietsum.ledger import bound_advantage
from quietsum.plan import (
    ClientPlan,
    FederationPlan,
    PartyFacts,
    Plan,
    PrivacyPlan,
    RecordPlan,
    ResolvedPlan,
    SamplingPlan,
    Style,
    TrainingPlan,
    predict,
    resolve,
)
from quietsum.privacy import PrivacyUnit
from quietsum.report import percent, show_bound
from quietsum.web.pages.runs import read_whole
from quietsum.web.pictures import draw, draw_gauge
from quietsum.web.rendering import View, view_of
from quietsum.web.thinking import Busy, TooLong

__all__ = ["SLIDERS", "Slider", "answer", "show_planner", "work_out"]

POINTS = 16
DIMENSION = 1000
"""Parameters of the model for which noise is compared with signal."""
KEPT = 512
"""Answers that are kept."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Slider:
    """A choice among ``values``, at first ``start``; ``text`` says how one is written."""

    name: str
    label: str
    about: str
    values: tuple[float, ...]
    start: float
    text: Callable[[float], str] = "{:g}".format


_DIGITS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)


def _decades(low: int, high: int, digits: tuple[float, ...] = _DIGITS) -> tuple[float, ...]:
    """Round numbers from 10^low up to 10^high."""
    found = [float(f"{digit:g}e{power}") for power in range(low, high) for digit in digits]
    return (*found, float(f"1e{high}"))


_WHOLE = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0)
SLIDERS = (
    Slider(name="epsilon", label="ε, the promise", about="Smaller is more private.", values=(*_decades(-1, 1), 15, 20),
           start=1.0),
    Slider(name="delta", label="δ, the probability outside it", about="At most 1 in ten times the number of units.",
           values=tuple(reversed(_decades(-10, -2, (1.0, 3.0)))), start=1e-5, text="{:.0e}".format),
    Slider(name="rate", label="rate", about="The chance that a record is in a step, or a client in a round.",
           values=_decades(-3, 0), start=0.05),
    Slider(name="rounds", label="rounds", about="How often the parties are asked.",
           values=(*_decades(0, 3, _WHOLE), 2000), start=20, text="{:,.0f}".format),
    Slider(name="clip", label="clip", about="No gradient, or no update, is longer than this.",
           values=(*_decades(-2, 1), 20), start=1.0),
    Slider(name="parties", label="parties", about="Sites, or clients.", values=(*_decades(0, 3, _WHOLE), 2000),
           start=4, text="{:,.0f}".format),
    Slider(name="records", label="records a party", about="Declared, and so public.", values=_decades(1, 6, _WHOLE),
           start=1000, text="{:,.0f}".format),
)  # fmt: skip
STYLES: Mapping[str, tuple[str, Style]] = {
    "record": ("one record", Style.SAMPLE),
    "client": ("one party as a whole", Style.USER),
}


def show_planner(request: Request) -> Response:
    """The sliders, with the answer to where they stand."""
    view, values = view_of(request), _values(request)
    return view.page(request, "planner.html", **values, **_answer(view, values["style"], values["places"]))


def answer(request: Request) -> Response:
    """The answer alone, while a slider moves."""
    view, values = view_of(request), _values(request)
    return HTMLResponse(
        view.render("answer.html", alone=True, **values, **_answer(view, values["style"], values["places"]))
    )


def _values(request: Request) -> dict[str, Any]:
    style = request.query_params.get("style", "record")
    if style not in STYLES:
        raise HTTPException(400, "style in the address is neither record nor client.")
    places = tuple(
        read_whole(request, one.name, one.values.index(one.start) + 1, len(one.values)) - 1 for one in SLIDERS
    )
    sliders = [
        {"slider": one, "place": place + 1, "text": one.text(one.values[place])}
        for one, place in zip(SLIDERS, places, strict=True)
    ]
    return {"style": style, "styles": [(key, text) for key, (text, _) in STYLES.items()], "sliders": sliders,
            "places": places}  # fmt: skip


def _answer(view: View, style: str, places: tuple[int, ...]) -> dict[str, Any]:
    """The answer, kept from the last time or worked out by the process beside the pages."""
    known = view.plans.get((style, places))
    if known is None:
        try:
            found = view.thinker.ask(style, places)
        except TooLong:
            found = _refuse("This takes longer to work out than a page may wait; quietsum plan works it out.")
        except Busy:
            return _refuse("Others are asking just now; try again in a moment.")
        known = view.plans[style, places] = {
            **found, "picture": Markup(found["picture"]), "gauge": Markup(found["gauge"]),
        }  # fmt: skip
        while len(view.plans) > KEPT:
            del view.plans[next(iter(view.plans))]
    return known


def _refuse(sentence: str) -> dict[str, Any]:
    return {"refusals": [sentence], "facts": [], "picture": "", "gauge": "", "sentence": "", "planned": 0, "limit": 0}


def work_out(style: str, places: tuple[int, ...]) -> dict[str, Any]:
    """The answer to where the sliders stand, as plain values."""
    chosen = {one.name: one.values[place] for one, place in zip(SLIDERS, places, strict=True)}
    try:
        return {"refusals": [], **_describe(_resolve(STYLES[style][1], chosen))}
    except PlanRefused as refused:
        said = [line.strip() for line in str(refused).splitlines() if line.strip()]
    except QuietsumError as error:
        said = [str(error)]
    return {**_refuse(""), "refusals": said}


def _resolve(style: Style, chosen: Mapping[str, float]) -> ResolvedPlan:
    clients = style is Style.USER
    promise: dict[str, Any] = {"epsilon": chosen["epsilon"], "delta": chosen["delta"]}
    rate = chosen["rate"]
    drawn = SamplingPlan(kind="poisson", rate=rate) if clients and rate < 1 else SamplingPlan()
    privacy = (
        PrivacyPlan(style=style, client=ClientPlan(**promise, max_norm=chosen["clip"]))
        if clients
        else PrivacyPlan(style=style, record=RecordPlan(**promise, max_grad_norm=chosen["clip"]))
    )
    training = TrainingPlan(local_steps=1) if clients else TrainingPlan(local_steps=1, sample_rate=rate)
    plan = Plan(
        federation=FederationPlan(rounds=int(chosen["rounds"]), sampling=drawn), training=training, privacy=privacy
    )
    size = int(chosen["records"])
    parties = tuple(
        PartyFacts(name=f"party-{number}", dataset=f"data-{number}", size=size)
        for number in range(1, int(chosen["parties"]) + 1)
    )
    return resolve(plan, parties, DIMENSION)


def _describe(resolved: ResolvedPlan) -> dict[str, Any]:
    rounds = resolved.plan.federation.rounds
    at = sorted({1 + place * (rounds - 1) // (POINTS - 1) for place in range(POINTS)})
    forecast = resolved.forecast(at=at)
    unit = resolved.limits[0].unit
    points = [(float(row.round), row.epsilon) for row in forecast.rows if math.isfinite(row.epsilon)]
    whole_plan = max(forecast.whole, key=lambda one: one.epsilon)
    limit = resolved.limits[0]
    alike = resolved.all_charges()[:1]  # all parties are of one size here
    advantage = bound_advantage(whole_plan, alike, neighbours=resolved.plan.privacy.neighbours)
    chart = Chart(
        title=f"ε per {unit.value} by round", x_label="round", y_label=f"ε per {unit.value}",
        series=(Series(label="ε so far", points=tuple(points)),), limit=("promise", float(f"{limit.epsilon:.4g}")),
    )  # fmt: skip
    gauge = Gauge(title=f"ε per {unit.value}", spent=0.0, planned=whole_plan.epsilon, limit=limit.epsilon)
    noise = resolved.noise_of(unit)
    facts = [
        ("noise multiplier σ", "–" if noise is None else f"{noise:.4g}"),
        ("the whole plan", f"ε ≤ {show_bound(whole_plan.epsilon)} per {whole_plan.whom} at δ = {whole_plan.delta:g}"),
        ("the best attacker is right", f"at most {percent(0.5 * (1 + advantage))} of the time (a coin: 50 %)"),
        ("noise in a step", _noise(resolved, unit)),
        ("method", whole_plan.method),
    ]
    prospect = predict(resolved)
    return {
        "facts": facts, "picture": draw(chart, "planned"), "gauge": draw_gauge(gauge, "planned-gauge"),
        "planned": gauge.planned, "limit": gauge.limit,
        "sentence": "" if prospect is None else prospect.sentence,
    }  # fmt: skip


def _noise(resolved: ResolvedPlan, unit: PrivacyUnit) -> str:
    if unit is PrivacyUnit.CLIENT:
        signal = resolved.client_signal()
        return "–" if signal is None else f"{signal.length:.3g} times as long as the longest mean update"
    worst = max(resolved.signal(), key=lambda one: one.coordinate, default=None)
    return "–" if worst is None else f"{worst.coordinate:.3g} of the clip in each coordinate of the mean gradient"
