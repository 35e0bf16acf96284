"""``quietsum calibrate``: the noise, steps, rounds or rate that fit a budget."""

from __future__ import annotations

import dataclasses
import enum
from typing import Annotated, Any, final

import typer

from quietsum.cli.account.events import MOST_STEPS, charge_of, choose_neighbours, mechanism_event
from quietsum.cli.account.pricing import exact_accountant
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import bounds, console, facts, figure, print_json, print_next
from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.privacy import Guarantee, Neighbours
from quietsum.validate import open_probability, positive, probability, whole_number

__all__ = ["calibrate"]


class Accounting(enum.StrEnum):
    """Which accountant must be content."""

    EXACT = "exact"
    RDP = "rdp"
    MOMENTS = "moments"


class Solve(enum.StrEnum):
    """What is wanted."""

    NOISE = "noise"
    STEPS = "steps"
    ROUNDS = "rounds"
    RATE = "rate"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A budget and what is known of the run; None is what is wanted, or not known."""

    epsilon: float
    delta: float
    noise_multiplier: float | None
    sample_rate: float | None
    steps: int | None
    rounds: int | None
    steps_per_round: int | None
    sampling: opt.Sampling
    neighbours: Neighbours
    accounting: Accounting


EpsilonOption = Annotated[
    float, typer.Option("--epsilon", "-e", metavar="ε", help="The most that may be spent.", show_default=False)
]
AccountingOption = Annotated[Accounting, typer.Option("--accounting", metavar="NAME", help="exact, rdp or moments.")]
SolveOption = Annotated[Solve, typer.Option("--solve", metavar="WHAT", help="noise, steps, rounds or rate.")]
RoundsOption = Annotated[
    int | None,
    typer.Option("--rounds", "-R", metavar="R", help="Instead of --steps, with --steps-per-round.", show_default=False),
]
PerRoundOption = Annotated[
    int | None, typer.Option("--steps-per-round", metavar="T", help="Local steps in one round.", show_default=False)
]
KnownNoiseOption = Annotated[
    float | None,
    typer.Option(
        "--noise-multiplier", "-s", metavar="σ", help="Known noise, to solve for something else.", show_default=False
    ),
]


def calibrate(
    epsilon: EpsilonOption,
    delta: opt.DeltaOption,
    sample_rate: opt.RateOption = None,
    steps: opt.StepsOption = None,
    rounds: RoundsOption = None,
    steps_per_round: PerRoundOption = None,
    noise_multiplier: KnownNoiseOption = None,
    solve: SolveOption = Solve.NOISE,
    sampling: opt.SamplingOption = None,
    neighbours: opt.NeighboursOption = None,
    accounting: AccountingOption = Accounting.EXACT,
    as_json: opt.JsonOption = False,
) -> None:
    """The smallest noise that fits a budget, or the most steps, rounds or rate.

    The answer never overspends: it is taken from the upper bound.

    Example: quietsum calibrate -e 3 -d 1e-5 -q 0.01 -T 10000
    """
    how = sampling or opt.Sampling.POISSON
    if how is opt.Sampling.SHUFFLED:
        raise InvalidParameter(
            "sampling", "shuffled", "earns no amplification", "count one step an epoch and use --sampling none"
        )
    plan = Target(
        epsilon=positive("epsilon", epsilon, "state what may be spent"),
        delta=open_probability("delta", delta),
        noise_multiplier=None if noise_multiplier is None else positive("noise_multiplier", noise_multiplier),
        sample_rate=_rate(how, sample_rate, solve),
        steps=_count("steps", steps),
        rounds=_count("rounds", rounds),
        steps_per_round=_count("steps_per_round", steps_per_round),
        sampling=how,
        neighbours=choose_neighbours(neighbours, [how]),
        accounting=accounting,
    )
    solved = _solve(plan, solve)
    guarantee = _guarantee_of(solved)
    if guarantee.epsilon > plan.epsilon:  # the library checks this as well; a wrong answer must not leave
        raise QuietsumError(
            f"the setting found costs {guarantee.epsilon:g}, more than {plan.epsilon:g}; nothing is reported"
        )
    if as_json:
        print_json(_values(plan, solved, guarantee, solve))
    else:
        _show(plan, solved, guarantee, solve)


def _rate(sampling: opt.Sampling, sample_rate: float | None, solve: Solve) -> float | None:
    if sampling is opt.Sampling.NONE:
        if solve is Solve.RATE or sample_rate not in (None, 1):
            name, value = ("solve", "rate") if solve is Solve.RATE else ("sample_rate", str(sample_rate))
            raise InvalidParameter(name, value, "contradicts sampling none", "choose poisson or fixed")
        return 1.0
    if solve is Solve.RATE:
        if sample_rate is not None:
            raise InvalidParameter("sample_rate", sample_rate, "is what shall be found", "leave it out")
        return None
    if sample_rate is None:
        remedy = "pass --sample-rate, as in -q 256/60000 for batches of 256 of 60,000; or --sampling none"
        raise InvalidParameter("sample_rate", None, "is missing", remedy)
    return probability("sample_rate", sample_rate)


def _count(name: str, value: int | None) -> int | None:
    if value is not None and whole_number(name, value, 1) > MOST_STEPS:
        raise InvalidParameter(name, value, f"is more than {MOST_STEPS:.0e}", "check it; no training takes so many")
    return value


def _solve(plan: Target, solve: Solve) -> Target:
    """``plan`` with everything known."""
    from quietsum.privacy import calibrate_noise, calibrate_rate, calibrate_steps

    known: dict[str, Any] = {
        "target_epsilon": plan.epsilon, "target_delta": plan.delta, "accounting": plan.accounting.value,
        "sampling": plan.sampling.value, "neighbours": plan.neighbours,
    }  # fmt: skip
    if solve is Solve.NOISE:
        if plan.noise_multiplier is not None:
            raise InvalidParameter("noise_multiplier", plan.noise_multiplier, "is what shall be found", "leave it out")
        steps = _steps(plan)
        noise = calibrate_noise(sample_rate=plan.sample_rate or 0.0, steps=steps, **known)
        return dataclasses.replace(plan, noise_multiplier=noise, steps=steps)
    if plan.noise_multiplier is None:
        raise InvalidParameter("noise_multiplier", None, "is missing", f"--solve {solve} needs to know the noise")
    known["noise_multiplier"] = plan.noise_multiplier
    if solve is Solve.RATE:
        steps = _steps(plan)
        return dataclasses.replace(plan, sample_rate=calibrate_rate(steps=steps, **known), steps=steps)
    if plan.steps is not None or plan.rounds is not None:
        name = "steps" if plan.steps is not None else "rounds"
        raise InvalidParameter(name, getattr(plan, name), "is what shall be found", "leave it out")
    if solve is Solve.ROUNDS and plan.steps_per_round is None:
        raise InvalidParameter("steps_per_round", None, "is missing", "pass the local steps of one round")
    if not plan.sample_rate:
        raise InvalidParameter("sample_rate", plan.sample_rate, "draws nothing, so any number of steps fits")
    steps = calibrate_steps(sample_rate=plan.sample_rate, **known)
    rounds = steps // plan.steps_per_round if plan.steps_per_round else None
    if solve is Solve.ROUNDS:
        steps = (rounds or 0) * (plan.steps_per_round or 0)
    if not steps:
        what = "round" if solve is Solve.ROUNDS else "step"
        raise InvalidParameter("epsilon", plan.epsilon, f"does not pay for a single {what}", "add noise or allow more")
    return dataclasses.replace(plan, steps=steps, rounds=rounds)


def _steps(plan: Target) -> int:
    """Steps of the whole run, as such or as rounds × steps per round."""
    if plan.rounds is not None and plan.steps_per_round is not None:
        product = plan.rounds * plan.steps_per_round
        if plan.steps not in (None, product):
            raise InvalidParameter("steps", plan.steps, f"is not rounds × steps_per_round = {product}", "leave it out")
        return product
    if plan.rounds is not None or plan.steps_per_round is not None:
        missing = "steps_per_round" if plan.steps_per_round is None else "rounds"
        raise InvalidParameter(missing, None, "is missing", "pass --rounds and --steps-per-round together")
    if plan.steps is None:
        raise InvalidParameter(
            "steps", None, "is missing", "pass the steps of the whole run, or rounds and steps per round"
        )
    return plan.steps


def _guarantee_of(plan: Target) -> Guarantee:
    """What the solved run costs in the accounting asked for."""
    from quietsum.privacy import accountant_for

    event, times = _charge(plan)
    accountant = accountant_for(plan.accounting.value, neighbours=plan.neighbours)
    return accountant.compose(event, times).epsilon(delta=plan.delta)


def _charge(plan: Target) -> tuple[Any, int]:
    event = mechanism_event(opt.Mechanism.GAUSSIAN, noise_multiplier=plan.noise_multiplier)
    rate = None if plan.sampling is opt.Sampling.NONE else plan.sample_rate
    return charge_of(event, plan.sampling, rate, plan.steps)


def _values(plan: Target, solved: Target, guarantee: Guarantee, solve: Solve) -> dict[str, Any]:
    return {
        "noise_multiplier": solved.noise_multiplier,
        "sample_rate": solved.sample_rate,
        "steps": solved.steps,
        "rounds": solved.rounds,
        **guarantee.to_dict(),
        "solved": solve.value,
        "target_epsilon": plan.epsilon,
        "accounting": plan.accounting.value,
        "sampling": plan.sampling.value,
    }


def _show(plan: Target, solved: Target, guarantee: Guarantee, solve: Solve) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    answer = {
        Solve.NOISE: f"noise_multiplier = {figure(solved.noise_multiplier or 0.0)}",
        Solve.STEPS: f"steps = {solved.steps:,}",
        Solve.ROUNDS: f"rounds = {solved.rounds:,}" if solved.rounds else "",
        Solve.RATE: f"sample_rate = {solved.sample_rate:.6g}",
    }[solve]
    run = f"{solved.steps:,} steps"
    run += ", every record in each" if plan.sampling is opt.Sampling.NONE else f" at sample_rate {solved.sample_rate:g}"
    run += "" if solve is Solve.NOISE else f", noise_multiplier {solved.noise_multiplier:g}"
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row("answer", Text(answer, style="bold"))
    table.add_row("run", Text(run))
    table.add_row("spends", Text(f"{bounds(guarantee)} of {plan.epsilon:g} at δ = {plan.delta:g}"))
    if plan.accounting is not Accounting.EXACT:
        exact = exact_accountant([_charge(solved)], neighbours=plan.neighbours).epsilon(delta=plan.delta)
        table.add_row("exactly", Text(f"{bounds(exact)}, so {plan.accounting} asks for more noise than needed"))
    for name, text in facts(guarantee):
        table.add_row(name, Text(text))
    console().print(Panel(table, title="what fits the budget", title_align="left", padding=(0, 1)))
    noise = figure(solved.noise_multiplier or 0.0) if solve is Solve.NOISE else f"{solved.noise_multiplier:g}"
    rate = [] if plan.sampling is opt.Sampling.NONE else ["--sample-rate", f"{solved.sample_rate:.6g}"]
    extra = [] if plan.sampling is opt.Sampling.POISSON else ["--sampling", plan.sampling.value]
    print_next(
        ["curve", "--noise-multiplier", noise, *rate, *extra, "--steps", solved.steps, "--delta", f"{plan.delta:g}"]
    )
