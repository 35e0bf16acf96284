"""``quietsum local shuffle`` and ``amplify``: reports in random order, and the central ε that this buys."""

from __future__ import annotations

import contextlib
import functools
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next, text_width
from quietsum.errors import InvalidParameter
from quietsum.validate import positive

__all__ = ["amplify", "shuffle"]


def shuffle(
    reports: Annotated[list[Path], typer.Argument(metavar="REPORTS…", help="Files of reports of one survey.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="shuffled .csv or .jsonl", show_default=False)
    ],
    people: Annotated[
        int | None,
        typer.Option(
            "--n",
            metavar="N",
            help="People declared beforehand; fewer reports are refused. \\[default: the reports]",
            show_default=False,
        ),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", "-d", metavar="δ", help="δ of the central guarantee.")] = 1e-6,
    colluders: Annotated[
        int, typer.Option("--colluders", metavar="K", help="People who may tell the recipient what they sent.")
    ] = 0,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A public name for what was asked.")] = "",
    memory: Annotated[
        float, typer.Option("--memory", metavar="GIB", help="Memory for reports and their order, at most.")
    ] = 2.0,
    as_json: opt.JsonOption = False,
) -> None:
    """Mix the reports of many people, so that no reader can tell whose is whose.

    Example: quietsum local shuffle ward1.csv ward2.csv -o shuffled.csv

    Run it where neither the people nor the analyst sit: who shuffles sees
    who sent what, and against the shuffler one report has its local ε.
    Recipients of the shuffled file have the central ε that is printed. What
    the files said beside the reports (notes, versions, order) is left out.
    """
    from quietsum.mechanisms import shuffle_reports

    with _counting(as_json) as seen:
        bought = shuffle_reports(
            reports,
            output,
            delta=delta,
            declared=people,
            colluders=colluders,
            note=note,
            most_bytes=int(positive("memory", memory) * 2**30),
            progress=seen,
        )
    if as_json:
        print_json(
            {
                "written": str(output),
                "reports": bought.reports,
                "declared": people is not None,
                **bought.bought.to_dict(),
            }
        )
        return
    answer, found = bought.bought, bought.bought.guarantee
    print(f"wrote {output}: {bought.reports:,} reports by {bought.protocol} in random order\n")
    _say("central", f"ε ≤ {answer.epsilon:.4g} at δ = {answer.delta:g} against recipients of the shuffled file, for "
         f"{answer.n:,} people with one report each; {found.neighbours.value} neighbours; {found.method}")  # fmt: skip
    _say("local", f"ε₀ = {answer.local_epsilon:g} against the shuffler, and against everyone if the shuffler fails")
    for trust in answer.trusted:
        _say("trusted", trust)
    _say("cost", f"{answer.messages:,} messages, two for each report")
    known = "counted" if people is None else "declared"
    _say("n", f"{known}, and public: the shuffled file shows how many answered. What is protected is what they "
         "answered, not that they did")  # fmt: skip
    for warning in found.warnings:
        _say("warning", warning)
    _say("next", "destroy the files that were read, and all that shows when and from where they came")
    print_next(["local", "estimate", str(output)])


def amplify(
    people: Annotated[int, typer.Option("--n", metavar="N", help="People with one report each.", show_default=False)],
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", "-e", metavar="ε₀", help="What one report costs.", show_default=False)
    ] = None,
    central: Annotated[
        float | None,
        typer.Option("--central", metavar="ε", help="Instead: the central ε to stay within.", show_default=False),
    ] = None,
    delta: Annotated[float, typer.Option("--delta", "-d", metavar="δ", help="δ of the central guarantee.")] = 1e-6,
    categories: Annotated[
        int | None,
        typer.Option(
            "--categories", metavar="K", help="For k-rr among K answers. \\[default: any protocol]", show_default=False
        ),
    ] = None,
    colluders: Annotated[
        int, typer.Option("--colluders", metavar="K", help="People who may tell the recipient what they sent.")
    ] = 0,
    as_json: opt.JsonOption = False,
) -> None:
    """What shuffling would buy: from a local to a central ε, or back.

    Example: quietsum local amplify --epsilon 1 --n 10000

    No data is read. The numerical bound holds for every randomiser that is
    ε₀-private by itself; with --categories it is smaller.
    """
    from quietsum.mechanisms import largest_local_epsilon, shuffled_epsilon

    if (epsilon is None) == (central is None):
        problem = "is missing" if epsilon is None else "does not go with --central"
        raise InvalidParameter("epsilon", epsilon, problem, "state --epsilon ε₀ of one report, or --central ε")
    if central is not None:
        local = largest_local_epsilon(
            epsilon=central, n=people, delta=delta, categories=categories, colluders=colluders
        )
    else:
        local = positive("epsilon", epsilon)
    bound = functools.partial(
        shuffled_epsilon, epsilon0=local, n=people, delta=delta, categories=categories, colluders=colluders
    )
    answer = bound()
    closed: float | None
    try:
        closed, why = bound(method="closed form").epsilon, ""
    except InvalidParameter as error:
        closed, why = None, error.problem
    if as_json:
        print_json({**answer.to_dict(), "closed_form": closed, "wanted": central})
        return
    found = answer.guarantee
    if central is not None:
        _say("local", f"each of {people:,} people may use ε₀ = {local:.4g}")
    _say("central", f"ε ≤ {answer.epsilon:.4g} at δ = {delta:g} against recipients of {people:,} shuffled reports; "
         f"{found.neighbours.value} neighbours; {found.method}")  # fmt: skip
    if found.epsilon_lower:
        _say("", f"at least {found.epsilon_lower:.4g} for binary randomised response, by an attack")
    _say("closed", f"ε ≤ {closed:.4g} by the closed form of 2021" if closed is not None else f"none: ε₀ {why}")
    _say("local" if central is None else "", f"ε₀ = {local:.4g} against the shuffler, and if the shuffler fails")
    for trust in answer.trusted:
        _say("trusted", trust)
    _say("cost", f"{answer.messages:,} messages, two for each report")
    for warning in found.warnings:
        _say("warning", warning)
    print_next(["explain", "shuffle", "model"])


@contextlib.contextmanager
def _counting(quiet: bool) -> Iterator[Callable[[int], None]]:
    """A count of reports on a terminal, once as they are read and once as they are written."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} reports read and written")
    with Progress(*columns, console=Console(stderr=True, width=80), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.update(task, advance=done)


def _say(label: str, words: str) -> None:
    print(
        textwrap.fill(
            words, text_width(), initial_indent=f"{label:<10}", subsequent_indent=" " * 10, break_on_hyphens=False
        )
    )
