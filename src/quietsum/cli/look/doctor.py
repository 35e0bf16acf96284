"""``quietsum doctor``: is this machine fit to run, before anything is spent on finding out?"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next, text_width

if TYPE_CHECKING:
    from quietsum.cli.look.machine import Finding

__all__ = ["doctor"]

STOPPED = 2
_MARKS = {"fine": "ok", "note": "note", "stops": "STOPS"}


def doctor(workspace: opt.WorkspaceOption = None, as_json: opt.JsonOption = False) -> int:
    """Is this machine fit to run? Versions, randomness, folder, disk, clock, extras.

    Example: quietsum doctor

    Nothing is spent, written or changed, and no ledger or key is opened. Exit
    code 2 says that something here would stop a run; a note stops none.
    """
    from quietsum.cli.look.machine import examine
    from quietsum.runs import Workspace

    found = examine(Workspace.at(workspace).path)
    stops = [one for one in found if one.state == "stops"]
    if as_json:
        print_json({"fit": not stops, "findings": [one.to_dict() for one in found]})
    else:
        _show(found)
        print(_conclude(len(stops)))
        if not stops:
            print_next(["new", "run.toml"])
    return STOPPED if stops else 0


def _show(found: list[Finding]) -> None:
    for one in found:
        text = one.text + (f". {one.remedy[0].upper()}{one.remedy[1:]}" if one.state == "stops" else "")
        text += f" → {one.remedy}" if one.state == "note" and one.remedy else ""
        first = f"{_MARKS[one.state]:<6}{one.name:<15} "
        print(
            textwrap.fill(text, text_width(), initial_indent=first, subsequent_indent=" " * 22, break_on_hyphens=False)
        )


def _conclude(stops: int) -> str:
    if stops:
        return f"\n{stops} of these would stop a run."
    return "\nNothing here stops a run."
