"""``quietsum audit``: is a finished run what it claims to be?"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import figure, print_json, print_next

if TYPE_CHECKING:
    from quietsum.audit import CanaryAudit

__all__ = ["audit"]

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", show_default=False, help="A run or training that carried canaries.")
]
CONTRADICTED = 5


def audit(run: RunArgument, workspace: opt.WorkspaceOption = None, as_json: opt.JsonOption = False) -> int:
    """Hold a run against its claim by its canaries; exit code 5 if it differs.

    Example: quietsum audit digits-1

    Canaries are made-up records that went through the run's own draw, clip
    and noise: train with --audit 500, or state training.canaries in a plan.
    A correct run is accused at most once in a million; the result goes into
    audit.json and the report.
    """
    from quietsum.audit import Conclusion, audit_run, folder_of
    from quietsum.runs import Workspace

    place = Workspace.at(workspace)
    found = audit_run(run, place)
    if as_json:
        print_json({"run": run, **found.to_dict()})
    else:
        _show(found)
        print(f"wrote {folder_of(run, place) / 'audit.json'}")
        print_next(["report", run, *([] if workspace is None else ["--workspace", workspace])])
    return CONTRADICTED if found.conclusion is Conclusion.CONTRADICTED else 0


def _show(found: CanaryAudit) -> None:
    def line(name: str, text: str) -> None:
        print(textwrap.fill(f"{name:<14} {text}", 80, subsequent_indent=" " * 15))

    claim = found.claim
    print(textwrap.fill(found.sentence, 80), end="\n\n")
    if claim.epsilon is not None:
        line("claim", f"ε ≤ {figure(claim.epsilon)} per record at δ = {claim.delta:.3g}")
    line("canaries say", f"ε ≥ {figure(found.lower_bound, up=False)} at that δ, with 95 % confidence")
    print()
    for one in found.evidence:
        line(one.name, ("CONTRADICTS THE CLAIM: " if one.contradicts else "") + one.found)
    print("\nThis audit finds, in nine runs of ten unless it says otherwise:")
    for power in found.powers:
        print(f"  {power.sentence}" + ("" if power.enough else " (too little to conclude anything)"))
