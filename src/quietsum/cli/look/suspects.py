"""``quietsum suspects RUN``: who may have sent bad updates in a run with random groups. For the operator alone."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.look.runs import RunArgument
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next, print_rows, text_width

if TYPE_CHECKING:
    from quietsum.defence import Flag, Score
    from quietsum.runs import RunFolder

__all__ = ["suspects"]

MOST = 20
TrueOption = Annotated[
    float,
    typer.Option("--true-positive", metavar="RATE", help="Assumed share of groups with an attacker left out."),
]
FalseOption = Annotated[
    float, typer.Option("--false-positive", metavar="RATE", help="Assumed share of groups without one left out.")
]


def suspects(
    run: RunArgument = "latest",
    workspace: opt.WorkspaceOption = None,
    true_positive: TrueOption = 0.6,
    false_positive: FalseOption = 0.25,
    as_json: opt.JsonOption = False,
) -> None:
    """Score parties by how often their random groups were left out by the rule.

    Example: quietsum suspects latest

    Under secure aggregation with groups the server sees no single update. Groups
    are drawn anew in each round, so a party whose groups are left out again and
    again stands out. A score is a suspicion and no verdict; for the operator
    alone.
    """
    from quietsum.defence import Flag, Rates, scores
    from quietsum.runs import Workspace, read_groups

    rates = Rates(true_positive=true_positive, false_positive=false_positive)
    folder = Workspace.at(workspace).find(run)
    flags = [Flag(members=members, flagged=not kept) for _, members, kept in read_groups(folder.path / "run.db")]
    parties, attackers = _count_parties(folder, flags)
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
    where = [] if workspace is None else ["--workspace", workspace]
    if not flags:
        text = f"{folder.run} has judged no groups: only runs with aggregation.secure and aggregation.groups have some."
        print(textwrap.fill(text, text_width()))
        print_next(["show", folder.run, *where])
        return
    print(textwrap.fill(f"{left_out} of {len(flags)} groups were left out by the rule of {folder.run}.", text_width()))
    if not left_out:
        print("So no party is suspected more than another.")
        print_next(["show", folder.run, *where])
        return
    print()
    _print(found[:MOST], len(found))
    several = f"{attackers} attacker{'s' * (attackers != 1)}"
    text = (
        f"The score is the probability that a party attacks, if there are {several} among {parties} parties and the "
        f"rule leaves out {100 * rates.true_positive:g} % of groups with an attacker and "
        f"{100 * rates.false_positive:g} % of those without. These rates are assumed (--true-positive, "
        "--false-positive). A score is a suspicion, no finding about anybody: look before you exclude somebody, and "
        "keep this to yourself."
    )
    print(f"\n{textwrap.fill(text, text_width())}")
    print_next(["show", folder.run, *where])


def _count_parties(folder: RunFolder, flags: Sequence[Flag]) -> tuple[int, int]:
    """How many parties a round has, and how many of them the plan says may attack, without making the task."""
    from quietsum.plan import cohort_size, grouping
    from quietsum.runs import TaskFacts

    facts, plan = TaskFacts.read(folder.path), folder.plan()
    seen = len({name for flag in flags for name in flag.members})
    cohort = seen if facts is None else cohort_size(plan, facts.parties)
    seated = grouping(plan, cohort, in_shares=False) if flags else None
    return max(cohort, 2), 0 if seated is None else seated.attackers


def _print(rows: Sequence[Score], every: int) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("party", "suspicion", "rounds", "its group left out"):
        table.add_column(title, justify="left" if title == "party" else "right")
    for one in rows:
        table.add_row(
            one.party, f"{one.score:.3f}", str(one.rounds), f"{one.flagged} times" if one.flagged != 1 else "once"
        )
    print_rows(table)
    if every > len(rows):
        print(f"and {every - len(rows)} more with lower scores; --json lists all")
