"""``quietsum tradeoff``: what privacy costs in score, run by run, with error bars."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import figure, print_json, print_next, text_width
from quietsum.errors import InvalidParameter, printable

if TYPE_CHECKING:
    from quietsum.privacy import Guarantee
    from quietsum.tasks import TorchTask
    from quietsum.tradeoff import Job, Outcome, SearchCost, Tradeoff

__all__ = ["tradeoff"]

TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="digits, fraud, … or my_module:MyTask.",
        show_default=False,
        autocompletion=opt.complete_task,
    ),
]
EpsilonsOption = Annotated[str, typer.Option("--epsilons", "-e", metavar="ε,ε,…", help="What one record may cost.")]
SeedsOption = Annotated[int, typer.Option("--seeds", metavar="N", help="Runs of each ε; they never seed noise.")]
DeltaOption = Annotated[
    float | None, typer.Option("--delta", "-d", metavar="δ", help="\\[default: the task's]", show_default=False)
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="\\[default: the task's]", show_default=False)
]
TriedOption = Annotated[int, typer.Option("--tried", metavar="K", help="Price a search over K settings, too.")]
SvgOption = Annotated[
    str | None,
    typer.Option("--svg", metavar="FILE.svg", help="Draw the table, as .svg or .png; - is stdout.", show_default=False),
]
WorkersOption = Annotated[int, typer.Option("--workers", metavar="N", help="Processes, one thread each.")]

_MOST_TRIED = 10**6


def tradeoff(
    task: TaskOption = None,
    epsilons: EpsilonsOption = ".5,1,2,4,8",
    seeds: SeedsOption = 3,
    delta: DeltaOption = None,
    epochs: EpochsOption = None,
    tried: TriedOption = 10,
    svg: SvgOption = None,
    workers: WorkersOption = 1,
    as_json: opt.JsonOption = False,
) -> int:
    """What privacy costs in score: train at several ε, and once without.

    Example: quietsum tradeoff --task digits --epsilons 1,3,8 --svg digits.svg

    Only for tasks whose records are published. Runs with the same seed share
    their first weights, and their split where the task has several.
    """
    from quietsum.charts import check_picture_name
    from quietsum.tasks import trainable_task
    from quietsum.tradeoff import analyze_privacy_utility_tradeoff, epsilons_in, jobs_for
    from quietsum.validate import whole_number

    if task is None:
        raise InvalidParameter("task", None, "is missing", "quietsum tradeoff --task digits")
    check_picture_name("svg", svg)
    if svg == "-" and as_json:
        raise InvalidParameter("svg", svg, "and --json both want stdout", "name a file for the picture")
    count = whole_number("workers", workers, 1)
    if whole_number("tried", tried, 1) > _MOST_TRIED:
        raise InvalidParameter("tried", tried, "is more than anybody tries", f"use at most {_MOST_TRIED}")
    jobs = jobs_for(task, epsilons_in(epsilons), seeds, delta=delta, epochs=epochs)
    quiet = as_json or svg == "-"
    if svg is not None:
        from quietsum.charts import check_picture

        check_picture(svg)
    work = trainable_task(task)
    if not quiet:
        print(textwrap.fill(f"{printable(work.title)}: {work.size} records.", text_width()))
        print(textwrap.fill(f"No lifetime budget is used: {work.public}.", text_width()))
    outcomes = _run(jobs, count, quiet)
    found = analyze_privacy_utility_tradeoff(outcomes)
    costs = _costs(work, found, delta, epochs, tried)
    everything = _everything(work, found, delta, epochs)
    if svg is not None:
        from quietsum.charts import save
        from quietsum.tradeoff import chart_of

        save(chart_of(found), svg)
    if as_json:
        values = found.to_dict() | {"search": [cost.to_dict() for cost in costs], "table": everything.to_dict()}
        print_json(values | {"outcomes": [outcome.to_dict() for outcome in outcomes]})
    elif not quiet:
        _print(found, costs, everything, len(jobs))
        if svg is not None:
            print(f"wrote {svg}")
        print_next(["train", "--task", task, "--epsilon", f"{found.rows[-1].epsilon:g}"])
    return 0


def _run(jobs: list[Job], workers: int, quiet: bool) -> list[Outcome]:
    """All runs, with a line for each; the primary score of each, in the order of the jobs."""
    from quietsum.tradeoff import Job, Outcome, run_here, run_in_processes

    found: dict[tuple[float, int], Outcome] = {}

    def report(job: Job, outcomes: list[Outcome]) -> None:
        first = outcomes[0]
        found[job.epsilon or 0.0, job.seed] = first
        if not quiet:
            what = "without privacy" if job.epsilon is None else f"ε {job.epsilon:g} per record"
            line = f"{len(found):>3}/{len(jobs)}  {what:<22} seed {job.seed:<3} {first.metric} {first.value:.4f}"
            print(line[: text_width()], flush=True)

    if workers == 1:
        run_here(jobs, report)
    else:
        run_in_processes(
            [job.to_dict() for job in jobs],
            lambda job, answer: report(Job(**job), [Outcome.from_dict(each) for each in answer]),
            workers=workers,
        )
    return [found[job.epsilon or 0.0, job.seed] for job in jobs]


def _costs(work: TorchTask, found: Tradeoff, delta: float | None, epochs: int | None, tried: int) -> list[SearchCost]:
    """For each ε, what trying so many settings on protected records would cost."""
    from quietsum.tradeoff import schedule_run, search_cost

    costs = []
    for row in found.rows:
        plan = schedule_run(work, epsilon=row.epsilon, delta=delta, epochs=epochs)
        costs.append(search_cost([plan.event()], delta=plan.delta, trials=tried, neighbours=plan.neighbours))
    return costs


def _everything(work: TorchTask, found: Tradeoff, delta: float | None, epochs: int | None) -> Guarantee:
    """What all private runs of the table together would cost."""
    from quietsum.privacy import ExactAccountant, PrivacyUnit
    from quietsum.tradeoff import schedule_run

    plans = [schedule_run(work, epsilon=row.epsilon, delta=delta, epochs=epochs) for row in found.rows]
    accountant = ExactAccountant(neighbours=plans[0].neighbours, unit=PrivacyUnit.RECORD)
    for plan in plans:
        accountant.compose(plan.event(), len(found.seeds))
    return accountant.epsilon(delta=plans[0].delta)


# --------------------------------------------------------------------------------------------- the table


def _print(found: Tradeoff, costs: list[SearchCost], everything: Guarantee, runs: int) -> None:
    from quietsum.tradeoff import interval_text

    print()
    metric = found.metric if len(found.metric) <= 10 else found.metric[:9] + "…"
    head = ("ε per record", "δ", metric, f"{100 * found.level:g} % interval", "share kept", "its interval")
    widths = (14, 9, 10, 17, 11, 17)
    print(_line(head, widths))
    if found.plain is not None:
        print(_line(("none", "–", f"{found.plain.mean:.4f}", interval_text(found.plain.interval), "1", ""), widths))
    for row in found.rows:
        print(_line((
            f"≤ {figure(row.guarantee.epsilon)}", f"{row.guarantee.delta:.2g}", f"{row.mean:.4f}",
            interval_text(row.interval), "–" if row.efficiency is None else f"{row.efficiency:.4f}",
            interval_text(row.efficiency_interval),
        ), widths))  # fmt: skip
    print()
    some = found.on[0] if len(found.on) == 1 else f"{found.on[0]}, and so on: {len(found.on)} paired splits"
    _paragraph(f"Scores stand on {some}.")
    if len(found.seeds) > 1:
        told = {True: "yes", False: "NO: some larger ε scores worse than a smaller one", None: "unknown"}
        _paragraph(
            f"Mean of {len(found.seeds)} seeds; intervals are Student's over seeds, and Fieller's for the share of the "
            f"score without privacy that is kept. More ε never hurts, within error bars: {told[found.monotone]}."
        )
    else:
        _paragraph("One seed has no error bars: add --seeds 3.")
    _print_search(costs, everything, runs)


def _print_search(costs: list[SearchCost], everything: Guarantee, runs: int) -> None:
    print()
    _paragraph(
        f"On protected records the {runs} runs above would cost ε ≤ {figure(everything.epsilon)} per record at δ = "
        f"{everything.delta:.2g} for the private ones, and the ones without privacy could not be paid for. Trying "
        f"{costs[0].trials} settings there and keeping the best one would cost, ε per record at the same δ:"
    )
    print()
    widths = (14, 16, 22, 22)
    print(_line(("one run", "all shown: sum", "best, geometric K", "best, Poisson K"), widths))
    for cost in costs:
        cells = (cost.single, cost.total, cost.geometric, cost.poisson)
        print(_line(tuple(f"≤ {figure(each.epsilon)}" for each in cells), widths))
    print()
    _paragraph(
        f"K, the number of runs, is drawn at random with mean {costs[0].trials}, and only the best run is shown "
        "(Papernot, Steinke 2022). Settings chosen on a public set cost nothing."
    )


def _line(cells: tuple[str, ...], widths: tuple[int, ...]) -> str:
    return "".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _paragraph(text: str) -> None:
    print(textwrap.fill(text, text_width(), break_on_hyphens=False))
