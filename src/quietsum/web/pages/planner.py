"""The planner: what a plan would cost, answered while its sliders move, and why it would be refused.

Everything is worked out by the product's own plan, forecast and accountants: what stands here is what ``quietsum plan``
would say. Nothing is written and no data is touched. A slider has a place for each value that may be asked for, so the
number of questions is finite, each is bounded, and an answer is kept.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, final

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
from quietsum.report import percent, shown
from quietsum.web.pages.runs import whole
from quietsum.web.pictures import draw, draw_gauge
from quietsum.web.rendering import view_of

__all__ = ["Slider", "answer", "show"]

POINTS = 16
DIMENSION = 1000
"""Parameters of the model for which noise is compared with signal."""
_one_at_a_time = threading.Lock()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Slider:
    """A choice among ``steps`` + 1 values: ``value`` says which one stands at a place, ``text`` how it is written."""

    name: str
    label: str
    about: str
    steps: int
    start: int
    value: Callable[[int], float]
    text: Callable[[float], str]


def _power(low: float, high: float, steps: int, digits: int = 2) -> Callable[[int], float]:
    """Values from ``low`` to ``high`` by equal factors, to a few digits."""

    def value(place: int) -> float:
        return float(f"{low * (high / low) ** (place / steps):.{digits}g}")

    return value


SLIDERS = (
    Slider(name="epsilon", label="ε, the promise", about="Smaller is more private.", steps=60, start=30,
           value=_power(0.1, 20, 60), text=lambda value: f"{value:g}"),
    Slider(name="delta", label="δ, the chance beyond it", about="At most 1 in ten times the number of units.", steps=16,
           start=8, value=lambda place: float(f"{'31'[place % 2 == 1]}e-{3 + place // 2}"),
           text=lambda value: f"{value:.0e}"),
    Slider(name="rate", label="rate", about="The chance that a record is in a step, or a client in a round.", steps=40,
           start=20, value=_power(0.002, 1, 40), text=lambda value: f"{value:g}"),
    Slider(name="rounds", label="rounds", about="How often the parties are asked.", steps=36, start=14,
           value=lambda place: float(round(_power(1, 2000, 36)(place))), text=lambda value: f"{value:,.0f}"),
    Slider(name="clip", label="clip", about="No gradient, or no update, is longer than this.", steps=24, start=12,
           value=_power(0.05, 20, 24), text=lambda value: f"{value:g}"),
    Slider(name="parties", label="parties", about="Sites, or clients.", steps=36, start=10,
           value=lambda place: float(round(_power(1, 5000, 36)(place))), text=lambda value: f"{value:,.0f}"),
    Slider(name="records", label="records a party", about="Declared, and so public.", steps=36, start=16,
           value=lambda place: float(round(_power(10, 1_000_000, 36)(place))), text=lambda value: f"{value:,.0f}"),
)  # fmt: skip
STYLES: Mapping[str, tuple[str, Style]] = {
    "record": ("one record", Style.SAMPLE),
    "client": ("one party as a whole", Style.USER),
}


def show(request: Request) -> Response:
    """The sliders, with the answer to where they stand."""
    view, values = view_of(request), _values(request)
    return view.page(request, "planner.html", **values, **_answer(values["style"], values["places"]))


def answer(request: Request) -> Response:
    """The answer alone, while a slider moves."""
    view, values = view_of(request), _values(request)
    return HTMLResponse(view.render("answer.html", alone=True, **values, **_answer(values["style"], values["places"])))


def _values(request: Request) -> dict[str, Any]:
    style = request.query_params.get("style", "record")
    if style not in STYLES:
        raise HTTPException(400, "style in the address is neither record nor client.")
    places = tuple(whole(request, one.name, one.start + 1, one.steps + 1) - 1 for one in SLIDERS)
    sliders = [
        {"slider": one, "place": place + 1, "text": one.text(one.value(place))}
        for one, place in zip(SLIDERS, places, strict=True)
    ]
    return {"style": style, "styles": [(key, text) for key, (text, _) in STYLES.items()], "sliders": sliders,
            "places": places}  # fmt: skip


def _answer(style: str, places: tuple[int, ...]) -> dict[str, Any]:
    """One at a time: however many ask, one processor works on it."""
    with _one_at_a_time:
        return _work_out(style, places)


@functools.lru_cache(maxsize=512)
def _work_out(style: str, places: tuple[int, ...]) -> dict[str, Any]:
    chosen = {one.name: one.value(place) for one, place in zip(SLIDERS, places, strict=True)}
    try:
        resolved = _resolve(STYLES[style][1], chosen)
        return {"refusals": [], **_describe(resolved)}
    except PlanRefused as refused:
        said = [line.strip() for line in str(refused).splitlines() if line.strip()]
    except QuietsumError as error:
        said = [str(error)]
    return {"refusals": said, "facts": [], "picture": None, "gauge": None, "sentence": ""}


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
    advantage = bound_advantage(whole_plan, resolved.all_charges(), neighbours=resolved.plan.privacy.neighbours)
    chart = Chart(
        title=f"ε per {unit.value} by round", x_label="round", y_label=f"ε per {unit.value}",
        series=(Series(label="ε so far", points=tuple(points)),), limit=("promise", float(f"{limit.epsilon:.4g}")),
    )  # fmt: skip
    gauge = Gauge(title=f"ε per {unit.value}", spent=points[0][1], planned=whole_plan.epsilon, limit=limit.epsilon)
    noise = resolved.noise_of(unit)
    facts = [
        ("noise multiplier σ", "–" if noise is None else f"{noise:.4g}"),
        ("the whole plan", f"ε ≤ {shown(whole_plan.epsilon)} per {whole_plan.whom} at δ = {whole_plan.delta:g}"),
        ("the best attacker is right", f"at most {percent(0.5 * (1 + advantage))} of the time (a coin: 50 %)"),
        ("noise in a step", _noise(resolved, unit)),
        ("method", whole_plan.method),
    ]
    told = predict(resolved)
    return {
        "facts": facts, "picture": draw(chart, "planned"), "gauge": (gauge, draw_gauge(gauge, "planned-gauge")),
        "sentence": "" if told is None else told.sentence,
    }  # fmt: skip


def _noise(resolved: ResolvedPlan, unit: PrivacyUnit) -> str:
    if unit is PrivacyUnit.CLIENT:
        signal = resolved.client_signal()
        return "–" if signal is None else f"{signal.length:.3g} times as long as the longest mean update"
    worst = max(resolved.signal(), key=lambda one: one.coordinate, default=None)
    return "–" if worst is None else f"{worst.coordinate:.3g} of the clip in each coordinate of the mean gradient"
