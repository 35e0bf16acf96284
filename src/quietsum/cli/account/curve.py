"""``quietsum curve``: ε over steps, noise, δ or rate, drawn in the terminal and as SVG."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Annotated, final

import typer

from quietsum.charts import Chart, Series, check_picture_name, save, show
from quietsum.cli.account.events import MOST_STEPS, charge_of, check_group, choose_neighbours, mechanism_event
from quietsum.cli.account.pricing import Priced, account
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next
from quietsum.errors import InvalidParameter
from quietsum.privacy import Neighbours
from quietsum.validate import open_probability, positive, probability, whole_number

__all__ = ["curve"]

POINTS = 48


class Over(enum.StrEnum):
    """What runs along the horizontal axis."""

    STEPS = "steps"
    NOISE = "noise"
    DELTA = "delta"
    RATE = "rate"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: a point of the curve."""

    noise_multiplier: float
    sample_rate: float | None
    steps: int
    delta: float
    sampling: opt.Sampling
    neighbours: Neighbours
    group: int

    def answer(self) -> Priced:
        """What this run costs."""
        event = mechanism_event(opt.Mechanism.GAUSSIAN, noise_multiplier=self.noise_multiplier)
        charge = charge_of(event, self.sampling, self.sample_rate, self.steps)
        return account([charge], delta=self.delta, neighbours=self.neighbours, group=self.group)

    def title(self, over: Over) -> str:
        """What stays the same along the curve."""
        known = {
            Over.NOISE: f"σ = {self.noise_multiplier:g}",
            Over.RATE: f"q = {self.sample_rate:g}" if self.sample_rate is not None else "all records in each step",
            Over.STEPS: f"{self.steps:,} steps",
            Over.DELTA: f"δ = {self.delta:g}",
        }
        return "ε at " + ", ".join(text for name, text in known.items() if name is not over)


OverOption = Annotated[Over, typer.Option("--over", metavar="WHAT", help="steps, noise, delta or rate.")]
OutputOption = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="FILE.svg", help="Draw it, too, as .svg or .png; - is stdout.", show_default=False
    ),
]
FromOption = Annotated[
    float | None, typer.Option("--from", metavar="X", help="Left end of the axis.", show_default=False)
]
ToOption = Annotated[float | None, typer.Option("--to", metavar="X", help="Right end of the axis.", show_default=False)]


def curve(
    delta: opt.DeltaOption,
    noise_multiplier: opt.NoiseOption = None,
    sample_rate: opt.RateOption = None,
    steps: opt.StepsOption = None,
    over: OverOption = Over.STEPS,
    sampling: opt.SamplingOption = None,
    group: opt.GroupOption = 1,
    neighbours: opt.NeighboursOption = None,
    start: FromOption = None,
    end: ToOption = None,
    output: OutputOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """How ε grows: over steps, noise, delta or rate.

    Example: quietsum curve -s 1 -q 0.1 -T 1000 -d 1e-5 -o epsilon.svg
    """
    open_probability("delta", delta)
    how = sampling or opt.Sampling.POISSON
    if noise_multiplier is None:
        raise InvalidParameter("noise_multiplier", None, "is missing", "a curve starts from one run; pass its noise")
    check_picture_name("output", output)
    setting = Setting(
        noise_multiplier=positive("noise_multiplier", noise_multiplier),
        sample_rate=None if sample_rate is None else probability("sample_rate", sample_rate),
        steps=charge_of(mechanism_event(opt.Mechanism.GAUSSIAN, noise_multiplier=1.0), opt.Sampling.NONE, None, steps)[
            1
        ],
        delta=delta,
        sampling=how,
        neighbours=choose_neighbours(neighbours, [how]),
        group=check_group(group),
    )
    if over is Over.RATE and how is opt.Sampling.NONE:
        raise InvalidParameter("over", "rate", "contradicts sampling none", "choose poisson or fixed")
    points = [(x, setting_at.answer()) for x, setting_at in _settings(setting, over, start, end)]
    chart = _chart(setting, over, points)
    if output is not None:
        save(chart, output)
        if output == "-":
            return
    if as_json:
        _print_values(setting, over, points)
        return
    show(chart)
    if output is not None:
        print(f"wrote {output}")
    print_next(_suggestion(setting, points[-1][1]))


def _settings(setting: Setting, over: Over, start: float | None, end: float | None) -> list[tuple[float, Setting]]:
    """The runs along the axis, from left to right."""
    if over is Over.STEPS:
        low, high = start or max(1, setting.steps // POINTS), end or setting.steps
        first, last = whole_number("from", low, 1), whole_number("to", high, 1)
        if last > MOST_STEPS:
            raise InvalidParameter("to", last, "is too many steps", f"stay below {MOST_STEPS:.0e}")
        _check_order(first, last, strict=False)
        counts = sorted({round(first + (last - first) * index / (POINTS - 1)) for index in range(POINTS)})
        return [(count, dataclasses.replace(setting, steps=count)) for count in counts]
    if over is Over.DELTA:
        low, high = start or min(1e-10, setting.delta), end or max(1e-3, setting.delta)
        open_probability("from", low), open_probability("to", high)
        return [(x, dataclasses.replace(setting, delta=x)) for x in _spread(low, high)]
    if over is Over.NOISE:
        low, high = start or setting.noise_multiplier / 2, end or setting.noise_multiplier * 4
        positive("from", low), positive("to", high)
        return [(x, dataclasses.replace(setting, noise_multiplier=x)) for x in _spread(low, high)]
    if not setting.sample_rate:
        raise InvalidParameter("sample_rate", setting.sample_rate, "gives no rates to show", "pass a rate above 0")
    low, high = start or setting.sample_rate / 10, end or min(1.0, setting.sample_rate * 10)
    positive("from", probability("from", low)), probability("to", high)
    return [(x, dataclasses.replace(setting, sample_rate=x)) for x in _spread(low, high)]


def _check_order(low: float, high: float, strict: bool = True) -> None:
    if low > high or (strict and low == high):
        raise InvalidParameter("from", low, f"is not below --to = {high:g}", "swap them")


def _spread(low: float, high: float) -> list[float]:
    """Evenly on a logarithmic scale."""
    _check_order(low, high)
    inner = [low * (high / low) ** (index / (POINTS - 1)) for index in range(1, POINTS - 1)]
    return [low, *inner, high]


def _chart(setting: Setting, over: Over, points: list[tuple[float, Priced]]) -> Chart:
    y_log = over in (Over.NOISE, Over.RATE)

    def finite(values: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        return tuple((x, y) for x, y in values if math.isfinite(y) and (y > 0 or not y_log))

    exact = finite([(x, answer.guarantee.epsilon) for x, answer in points])
    renyi = finite([(x, answer.renyi.epsilon) for x, answer in points if answer.renyi])
    if not exact:
        raise InvalidParameter("noise_multiplier", setting.noise_multiplier, "leaves no finite ε to draw", "add noise")
    whom = points[-1][1].guarantee.whom
    names = {Over.STEPS: "steps", Over.NOISE: "noise multiplier σ", Over.DELTA: "δ", Over.RATE: "sampling rate q"}
    ends = "; ".join(
        f"{name} from {line[0][1]:.3g} to {line[-1][1]:.3g}"
        for name, line in (("exact", exact), ("Rényi", renyi))
        if line
    )
    return Chart(
        title=setting.title(over),
        x_label=names[over],
        y_label=f"ε per {whom}",
        x_log=over is not Over.STEPS,
        y_log=y_log,
        description=f"ε per {whom} over {names[over]} from {points[0][0]:g} to {points[-1][0]:g}: {ends}.",
        series=tuple(
            Series(label=name, points=line, dash="dashed" if name == "Rényi" else "solid")
            for name, line in (("exact", exact), ("Rényi", renyi))
            if line
        ),
    )


def _print_values(setting: Setting, over: Over, points: list[tuple[float, Priced]]) -> None:
    fixed = {
        "noise_multiplier": setting.noise_multiplier, "sample_rate": setting.sample_rate, "steps": setting.steps,
        "delta": setting.delta, "sampling": setting.sampling.value,
    }  # fmt: skip
    last = points[-1][1].guarantee
    print_json(
        {
            "over": over.value,
            **fixed,
            "unit": last.unit.value,
            "group_size": last.group_size,
            "neighbours": last.neighbours.value,
            "method": last.method,
            "x": [x for x, _ in points],
            "epsilon": [answer.guarantee.epsilon for _, answer in points],
            "epsilon_lower": [answer.guarantee.epsilon_lower for _, answer in points],
            "renyi_epsilon": [answer.renyi and answer.renyi.epsilon for _, answer in points],
        }
    )


def _suggestion(setting: Setting, last: Priced) -> list[object]:
    target = next((goal for goal in (8, 3, 1) if last.guarantee.epsilon > goal), 0.1)
    rate = ["--sampling", "none"] if setting.sample_rate is None else ["--sample-rate", f"{setting.sample_rate:g}"]
    return ["calibrate", "--epsilon", target, "--delta", f"{setting.delta:g}", *rate, "--steps", setting.steps]
