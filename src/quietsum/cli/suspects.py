"""``quietsum suspects RUN``: who may have sent bad updates in a run with random groups. For the operator alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli import options as opt
from quietsum.cli.output import console, print_json
from quietsum.cli.runs import RunArgument

if TYPE_CHECKING:
    from quietsum.defence.attribution import Flag, Score
    from quietsum.runs.folder import RunFolder

__all__ = ["suspects"]

TrueOption = Annotated[
    float, typer.Option("--true-positive", metavar="RATE", help="Assumed: how often a group with one is left out.")
]
FalseOption = Annotated[
    float, typer.Option("--false-positive", metavar="RATE", help="Assumed: how often one without is left out.")
]


def suspects(
    run: RunArgument = "latest",
    workspace: opt.WorkspaceOption = None,
    true_positive: TrueOption = 0.6,
    false_positive: FalseOption = 0.25,
    as_json: opt.JsonOption = False,
) -> None:
    """Score the parties of a run with groups by how often their groups were left out. For the operator alone."""
    from quietsum.defence.attribution import Flag, Rates, scores
    from quietsum.runs.folder import Workspace
    from quietsum.runs.record import judged_groups

    rates = Rates(true_positive=true_positive, false_positive=false_positive)
    folder = Workspace.at(workspace).find(run)
    flags = [Flag(members=members, flagged=not kept) for _, members, kept in judged_groups(folder.path / "run.db")]
    parties, attackers = _counted(folder, flags)
    found = scores(flags, parties=parties, attackers=attackers, rates=rates) if flags else ()
    left_out = sum(flag.flagged for flag in flags)
    if as_json:
        print_json(
            {
                "run": folder.run, "groups": len(flags), "left_out": left_out, "attackers": attackers,
                "true_positive": rates.true_positive, "false_positive": rates.false_positive,
                "suspected": [one.to_dict() for one in found],
            }
        )  # fmt: skip
        return
    if not flags:
        print(f"{folder.run} has judged no groups; aggregation.groups with secure = true makes them")
        return
    _print(found[:20], len(found))
    print(
        textwrap.fill(
            f"{left_out} of {len(flags)} groups were left out. Scores assume {attackers} attackers among "
            f"{parties} parties, and that a group with one is left out with probability "
            f"{rates.true_positive:g}, one without with {rates.false_positive:g}. A score is a suspicion, no finding "
            "about anybody: look before you exclude somebody, and show this to nobody else.",
            80,
        )
    )


def _counted(folder: RunFolder, flags: Sequence[Flag]) -> tuple[int, int]:
    """How many parties a round has, and how many of them the plan says may attack, without making the task."""
    from quietsum.plan.groups import grouping
    from quietsum.plan.secure import cohort_size
    from quietsum.runs.facts import TaskFacts

    facts, plan = TaskFacts.read(folder.path), folder.plan()
    seen = len({name for flag in flags for name in flag.members})
    cohort = seen if facts is None else cohort_size(plan, facts.parties)
    seated = grouping(plan, cohort, in_shares=False) if flags else None
    return max(cohort, 2), 0 if seated is None else seated.attackers


def _print(rows: Sequence[Score], every: int) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("party", "suspected, score", "rounds", "left out"):
        table.add_column(title, justify="left" if title == "party" else "right")
    for one in rows:
        table.add_row(one.party, f"{one.score:.3f}", str(one.rounds), str(one.flagged))
    console().print(table)
    if every > len(rows):
        print(f"and {every - len(rows)} more")
