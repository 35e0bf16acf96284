"""``quietsum ledger receipts``: the heads of other ledgers that this one has kept, to hold them against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from quietsum.cli import options as opt
from quietsum.cli.ledger import ledger_path
from quietsum.cli.output import print_json, print_next
from quietsum.errors import InvalidParameter, QuietsumError

__all__ = ["receipts"]


def receipts(
    workspace: opt.WorkspaceOption = None,
    of: Annotated[
        str | None,
        typer.Option("--of", metavar="LEDGER", help="Only of the ledger whose name begins so.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write them, as anchors.", show_default=False)
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show the heads of the other side's ledgers that came with requests and replies.

    Example: quietsum ledger receipts --output seen.jsonl

    Whoever keeps such a ledger verifies it with --anchor seen.jsonl: a cut
    tail, an older copy and a rewritten chain are all found.
    """
    from quietsum.ledger import Ledger

    with Ledger.open(ledger_path(workspace), read_only=True) as ledger:
        found: list[dict[str, Any]] = [
            {"entry": entry.sequence, "time": entry.time, "name": name, "head": told.head.to_dict()}
            for entry, heads in ledger.receipts()
            for name, told in heads.items()
            if of is None or told.ledger.startswith(of)
        ]
    if not found:
        raise InvalidParameter(
            "receipts", of or "any", "are not in this ledger", "they come with rounds across machines (--on flower)"
        )
    if output is not None:
        try:
            output.write_text("".join(json.dumps(line) + "\n" for line in found), encoding="utf-8")
        except OSError as error:
            raise QuietsumError(f"{output} cannot be written: {error.strerror}; choose another place") from None
    if as_json:
        print_json({"receipts": found})
        return
    newest = {line["name"]: line for line in found}
    print(f"{len(found)} heads of {len(newest)} ledgers or runs; the newest of each:")
    for name, line in newest.items():
        head = line["head"]
        print(f"  {str(name)[:40]:<40} entry {head['sequence']:>6}  {head['hash'][:16]}…")
    if output is not None:
        print(f"wrote {output}; give it to whoever keeps those ledgers")
    print_next(["ledger", "verify", "--anchor", str(output or "FILE")])
