"""``quietsum ledger receipts``: the heads of other ledgers that this one has kept, to hold them against each other.

A ledger is verified against its *own* heads, which others have kept. So what is shown here is of use where those
ledgers are, not here, and the last line says where that is.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from quietsum.cli.look.ledger import ledger_path
from quietsum.cli.look.ledger_entries import short
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import WIDTH, print_json, print_next, print_rows
from quietsum.errors import InvalidParameter
from quietsum.files import write_output

__all__ = ["receipts"]

SHORT = 12
COORDINATOR = "the coordinator"


def receipts(
    workspace: opt.WorkspaceOption = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="NAME",
            help="Only of this party, run or ledger; the beginning of its name is enough.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write them, as anchors.", show_default=False)
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show the heads of the other side's ledgers that came with requests and replies.

    Example: quietsum ledger receipts --of Basel --output seen.jsonl

    The keeper of that ledger verifies it there, with --anchor seen.jsonl: a
    cut tail, an older copy and a rewritten chain are all found.
    """
    from quietsum.ledger import Ledger

    keepers: dict[str, str] = {}  # of each ledger, as people call them
    found: list[dict[str, Any]] = []
    with Ledger.open(ledger_path(workspace), read_only=True) as ledger:
        for entry, heads in ledger.receipts():
            for name, told in heads.items():
                found.append({"entry": entry.sequence, "time": entry.time, "name": name, "head": told.head.to_dict()})
                own = name == entry.body["run"] and name.endswith(f" @ {told.ledger[:SHORT]}")  # a site's, by run
                keepers[told.ledger] = COORDINATOR if own else name
    if of is not None:
        found = _choose(found, of, keepers)
    if not found:
        raise InvalidParameter(
            "receipts", "any", "are not in this ledger", "they come with rounds across machines (--on flower)"
        )
    if output is not None:
        write_output(output, "".join(json.dumps(line) + "\n" for line in found))
    if as_json:
        print_json({"receipts": found})
        return
    _print(found)
    ledgers = list(dict.fromkeys(line["head"]["ledger"] for line in found))
    keeper = keepers[ledgers[0]]
    if output is not None and len(ledgers) == 1:
        print(f"wrote {output}; give it to {short(keeper, 40)}")
        _print_there(keeper, output)
        return
    if output is not None:
        print(f"wrote {output}, for those who keep such files. A ledger verifies")
        print("against its own heads only, so write one file for each side:")
    where = [] if workspace is None else ["--workspace", workspace]
    one = ledgers[0][:SHORT] if keeper == COORDINATOR else keeper
    print_next(["ledger", "receipts", "--of", of or one, "--output", "seen.jsonl", *where])


def _choose(found: list[dict[str, Any]], of: str, keepers: dict[str, str]) -> list[dict[str, Any]]:
    """Lines about what ``of`` names exactly, else about the one ledger of which it is the beginning of a name."""
    chosen = [line for line in found if of in (line["name"], line["head"]["ledger"])]
    if chosen:
        return chosen
    chosen = [line for line in found if line["name"].startswith(of) or line["head"]["ledger"].startswith(of)]
    ledgers = dict.fromkeys(line["head"]["ledger"] for line in chosen or found)
    if len(ledgers) == 1 and chosen:
        return chosen
    names = [f"{keepers[name]} ({name[:SHORT]})" for name in ledgers]
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    if chosen:
        raise InvalidParameter("of", of, f"is the beginning of several names: {listed}", "write more of the one")
    remedy = f"it holds those of {listed}" if names else "they come with rounds across machines (--on flower)"
    raise InvalidParameter("receipts", of, "are not in this ledger", remedy)


def _print(found: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    newest = {line["name"]: line for line in found}
    print(f"{len(found)} heads of {len(newest)} ledgers or runs; the newest of each:")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("party or run", "ledger", "entry", "hash"):
        table.add_column(title, justify="right" if title == "entry" else "left", no_wrap=True)
    for name, line in newest.items():
        head = line["head"]
        table.add_row(Text(short(name, 36)), head["ledger"][:SHORT], str(head["sequence"]), f"{head['hash'][:SHORT]}…")
    print_rows(table)


def _print_there(keeper: str, output: Path) -> None:
    """The next command, and where it is run: here it would be held against the wrong ledger."""
    start, command = f"next, at {short(keeper, 40)}:", f"quietsum ledger verify --anchor {shlex.quote(output.name)}"
    print(f"{start} {command}" if len(start) + len(command) < WIDTH else f"{start}\n      {command}")
