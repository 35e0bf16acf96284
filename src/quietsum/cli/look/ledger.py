"""``quietsum ledger``: what was spent, whether it is true, and what may still be spent.

``show`` and ``verify`` only read and need no key, so a copy of the file is enough. ``raise`` and ``declare-public`` are
decisions of the data's owner; each needs a reason, which stays in the ledger. ``move`` takes a ledger to a server that
several coordinators share.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.look.ledger_entries import print_corrections, print_entries, print_moved
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import console, figure, print_json, print_next, print_rows, text_width
from quietsum.errors import InvalidParameter
from quietsum.privacy import PrivacyUnit

if TYPE_CHECKING:
    from quietsum.ledger import Book, Entry, Head, Ledger, Verification
    from quietsum.privacy import Guarantee

__all__ = ["app"]

app = typer.Typer(
    name="ledger",
    help="What was spent, whether it is true, and what may still be spent.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)

RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="What one run has spent.", show_default=False)
]
AnchorOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--anchor", metavar="FILE", help="A file with a head kept elsewhere, such as report.json.", show_default=False
    ),
]
ExportOption = Annotated[
    Path | None,
    typer.Option("--export", metavar="FILE", help="Verify an exported ledger instead.", show_default=False),
]
EveryOption = Annotated[bool, typer.Option("--every-signature", help="Check the signature of every entry.")]
PartyOption = Annotated[str, typer.Option("--party", metavar="NAME", help="Whose data.", show_default=False)]
DatasetOption = Annotated[
    str, typer.Option("--dataset", metavar="NAME", help="The name that the party declared.", show_default=False)
]
PartiesOption = Annotated[
    list[str], typer.Option("--party", metavar="NAME", help="Whose data; may be repeated.", show_default=False)
]
DatasetsOption = Annotated[
    list[str],
    typer.Option(
        "--dataset", metavar="NAME", help="The name that the party declared: one for all, or one for each --party.",
        show_default=False,
    ),
]  # fmt: skip
EpsilonOption = Annotated[
    float, typer.Option("--epsilon", metavar="ε", help="The new lifetime budget.", show_default=False)
]
ReasonOption = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Who decided it and why.", show_default=False)
]
UnitOption = Annotated[PrivacyUnit, typer.Option("--unit", metavar="UNIT", help="record, person or client.")]
LifetimeDeltaOption = Annotated[
    float | None,
    typer.Option("--delta", metavar="δ", help="For a dataset's first budget only; it then stays.", show_default=False),
]
ToOption = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="ADDRESS",
        help="postgresql://user@host/database, without a password (schema quietsum, or ?schema=name); or sqlite.",
        show_default=False,
    ),
]


def ledger_path(workspace: str | None) -> Path:
    """``ledger.db`` in the stated workspace, else in $QUIETSUM_WORKSPACE, else in ``quietsum-workspace``."""
    return Path(workspace or os.environ.get("QUIETSUM_WORKSPACE") or "quietsum-workspace") / "ledger.db"


def _where(workspace: str | None) -> list[str]:
    return [] if workspace is None else ["--workspace", workspace]


# --------------------------------------------------------------------------------------------------- show


@app.command()
def show(workspace: opt.WorkspaceOption = None, run: RunOption = None, as_json: opt.JsonOption = False) -> None:
    """Show lifetime budgets and the last entries; with --run what one run spent."""
    from quietsum.ledger import Ledger

    with Ledger.open(ledger_path(workspace), read_only=True) as ledger:
        values = _run_values(ledger, run) if run else _values(ledger)
        if as_json:
            print_json(values)
            return
        if run:
            _print_run(values)
        else:
            _print_books(ledger.lifetime())
            print_entries(ledger)
        print_corrections(ledger, run)
    head = values["head"]
    print(f"\nhead    entry {head['sequence']}, {head['hash'][:16]}…")
    print_moved(values["moved_to"])
    print_next(["ledger", "verify", *_where(workspace)])


def _values(ledger: Ledger) -> dict[str, Any]:
    return {
        "ledger": ledger.identity.ledger,
        "public_key": ledger.identity.public_key,
        "head": ledger.head.to_dict(),
        "moved_to": ledger.moved_to,
        "books": [_book(book) for book in ledger.lifetime()],
        "runs": [
            {"run": run.run, "rounds": run.rounds, "attempts": run.attempts, "committed": run.committed}
            for run in ledger.runs()
        ],
        **_corrections(ledger),
    }


def _corrections(ledger: Ledger, run: str | None = None) -> dict[str, Any]:
    lines, entry = ledger.corrections()
    return {
        "corrections": [line.to_dict() for line in lines if run is None or line.run == run],
        "corrected_at": entry,
    }


def _book(book: Book) -> dict[str, Any]:
    return {
        "party": book.party,
        "dataset": book.dataset,
        "unit": book.unit.value,
        "budget": None if book.budget is None else {"epsilon": book.budget.epsilon, "delta": book.budget.delta},
        "public": book.public,
        "spent_fraction": book.spent_fraction,
        "plans": book.plans,
        "guarantee": None if book.guarantee is None else book.guarantee.to_dict(),
    }


def _run_values(ledger: Ledger, run: str) -> dict[str, Any]:
    parties = ledger.spending_by_party(run)
    return {
        "ledger": ledger.identity.ledger,
        "head": ledger.head.to_dict(),
        "moved_to": ledger.moved_to,
        "run": run,
        "parties": [{"party": party, **found.to_dict()} for (party, _), found in parties.items()],
        "spent": [found.to_dict() for found in ledger.spending(run)],
        **_corrections(ledger, run),
    }


def _print_books(books: tuple[Book, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from quietsum.ledger import say_budget, say_spent

    if not books:
        print("no dataset has been touched yet")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("party", "dataset", "lifetime budget", "spent", "plans"):
        table.add_column(name, justify="right" if name == "plans" else "left", overflow="fold")
    for book in books:
        cells = (book.party, book.dataset, say_budget(book), say_spent(book), str(book.plans))
        table.add_row(*map(Text, cells))
    print_rows(table)
    for reason in dict.fromkeys(book.public for book in books if book.public):
        names = list(dict.fromkeys(f"{book.party}/{book.dataset}" for book in books if book.public == reason))
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        console().print(Text(f"no gate for {shown}: {reason}"))


def _print_run(values: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from quietsum.privacy import BOUNDED, Guarantee

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("party", "spent so far, if the schedule runs as planned"):
        table.add_column(name, overflow="fold")
    for line in values["parties"]:
        found = Guarantee.from_dict({key: value for key, value in line.items() if key != "party"})
        table.add_row(Text(line["party"]), Text(_price(found)))
    print_rows(table)
    for spent in values["spent"]:
        found = Guarantee.from_dict(spent)
        against = "the server" if found.observer.value == "server" else "recipients of the model"
        print(f"worst   {_price(found)}, against {against}")
    conditions = dict.fromkeys(
        text for spent in values["spent"] for text in spent["warnings"] if text in BOUNDED.values()
    )
    for text in conditions:
        print(f"record  {text}")


def _price(found: Guarantee) -> str:
    if found.epsilon == float("inf"):
        return f"NO PRIVACY GUARANTEE per {found.whom}"
    return f"ε ≤ {figure(found.epsilon)} per {found.whom} at δ {found.delta:g}"


# ------------------------------------------------------------------------------------------------- verify


@app.command()
def verify(
    workspace: opt.WorkspaceOption = None,
    anchor: AnchorOption = None,
    export: ExportOption = None,
    every_signature: EveryOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Check chain, signatures, rules and every ε. Exit code 4 names the bad entry.

    Heads that the workspace's runs have kept, and the newest one beside the ledger, must be in it.
    """
    from quietsum.ledger import read_anchors

    files = {path: read_anchors(path) for path in anchor or ()}
    given = {head for heads in files.values() for head in heads}
    runs: set[Head] = set()
    if export is not None:
        from quietsum.ledger import verify_export

        found = verify_export(export, anchors=given, every_signature=every_signature)
    else:
        from quietsum.ledger import verify_file

        path = ledger_path(workspace)

        def heads_in(name: str) -> set[Head]:
            _check_files(name, files)
            runs.update(_heads_of_runs(path))
            return given | runs

        found = verify_file(path, anchors=heads_in, every_signature=every_signature)
    if as_json:
        print_json({**_verification(found), "anchors_of_runs": len(runs)})
        return
    print(f"whole   {found.entries} entries, {found.runs} runs, chain and rules in order")
    print(f"ε       {found.stated} stated, all recomputed ({found.computed} different histories)")
    print(f"signed  signatures checked: {found.signatures}, ledger {found.ledger[:16]}…")
    if found.corrected_at is not None:
        print(
            f"prices  corrected in entry {found.corrected_at}; what stands before it is right by the rules of its time"
        )
    if found.withheld:
        print(f"hidden  {found.withheld} bodies say who took part; the chain covers them")
    if found.marked:
        print("mark    the newest head that was written here is in the chain")
    for warning in found.warnings:
        print(textwrap.fill(f"warning {warning}", text_width(), subsequent_indent=" " * 8, break_on_hyphens=False,
                            break_long_words=False))  # fmt: skip
    print_moved(found.moved_to)
    if found.anchors:
        print(f"anchor  {found.anchors} kept heads are in the chain, {len(runs)} of them from run folders")
        print_next(["ledger", "show", *_where(workspace)])
    else:
        print("anchor  none: an older copy with its own mark would look the same" if found.marked else
              "anchor  none: a cut tail or an older copy would look the same")  # fmt: skip
        exported = [] if export is None else ["--export", export]
        print_next(["ledger", "verify", *exported, "--anchor", "report.json", *_where(workspace)])


def _check_files(name: str, files: Mapping[Path, tuple[Head, ...]]) -> None:
    """A file with heads of other ledgers alone is named: it is in the wrong place, or the ledger is another."""
    from quietsum.errors import LedgerBroken

    for path, heads in files.items():
        others = {head.ledger for head in heads}
        if name and name not in others:
            raise LedgerBroken(
                f"here is {name[:16]}…, and {path} holds heads of another ledger, {min(others)[:16]}…: verify it "
                "there. If the file was kept of the ledger here, that one was replaced, or rewritten with another key",
                remedy="then restore it from a copy",
            )


def _heads_of_runs(ledger: Path) -> set[Head]:
    """Heads in checkpoints, models and reports of the ledger's workspace."""
    from quietsum.runs import Workspace

    return {head for _, head in Workspace.at(ledger.parent).anchors()}


def _verification(found: Verification) -> dict[str, Any]:
    return {
        "ledger": found.ledger, "entries": found.entries, "runs": found.runs, "stated": found.stated,
        "computed": found.computed, "signatures": found.signatures, "anchors": found.anchors, "marked": found.marked,
        "withheld": found.withheld, "corrected_at": found.corrected_at, "moved_to": found.moved_to,
        "head": found.head.to_dict(),
        "warnings": list(found.warnings),
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ export, raise


@app.command()
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write JSON lines.", show_default=False)],
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write the ledger for others to verify, without who took part."""
    from quietsum.ledger import Ledger, export_ledger

    with Ledger.open(ledger_path(workspace), read_only=True) as ledger:
        entries, withheld = export_ledger(ledger, file)
        head = ledger.head
    if as_json:
        print_json({"file": str(file), "entries": entries, "withheld": withheld, "head": head.to_dict()})
        return
    print(f"wrote   {entries} entries, {withheld} of them without their body")
    print_next(["ledger", "verify", "--export", file])


@app.command()
def move(to: ToOption, workspace: opt.WorkspaceOption = None, as_json: opt.JsonOption = False) -> None:
    """Move the ledger to a PostgreSQL server that several coordinators share, or back.

    It is verified first. After a crash the same command again ends what was begun.
    """
    from quietsum.ledger import move_to_postgres, move_to_sqlite

    path = ledger_path(workspace)
    back, anchors = to == "sqlite", _heads_of_runs(path)
    moved = move_to_sqlite(path, anchors=anchors) if back else move_to_postgres(path, to, anchors=anchors)
    head = moved.found.head
    if as_json:
        print_json(
            {"place": moved.place, "kept": str(moved.kept), "entries": moved.found.entries, "head": head.to_dict()}
        )
        return
    print(f"moved   {moved.found.entries} entries, verified before and compared after")
    print(f"head    entry {head.sequence}, {head.hash[:16]}…")
    if back:
        print(f"kept    {moved.kept.name}; what is on the server is sealed for good")
    else:
        print(f"kept    {moved.kept.name}, read-only and sealed")
        print(f"others  give each coordinator {path.name}.url and {path.name}.key, nothing else")
    print_next(["ledger", "verify", *_where(workspace)])


@app.command(name="raise")
def raise_budget(
    party: PartiesOption,
    dataset: DatasetsOption,
    epsilon: EpsilonOption,
    reason: ReasonOption,
    unit: UnitOption = PrivacyUnit.RECORD,
    delta: LifetimeDeltaOption = None,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Raise datasets' lifetime budgets, or set their first ones: of all that are named, or of none."""
    from quietsum.ledger import Ledger

    accounts = _accounts(party, dataset)
    with Ledger.open(ledger_path(workspace)) as ledger:
        entries = ledger.raise_budgets(accounts, unit=unit, epsilon=epsilon, delta=delta, reason=reason)
    if as_json:
        print_json(_entry(entries[0]) if len(entries) == 1 else {"entries": [_entry(entry) for entry in entries]})
    else:
        for entry in entries:
            _print_entry(entry, as_json)
        whose = "" if len(entries) == 1 else f" for each of {len(entries)} datasets"
        print(f"budget  ε {epsilon:g} per {unit} at δ {entries[0].body['delta']:g}{whose}, for all plans together")
        print_next(["ledger", "show", *_where(workspace)])


def _accounts(parties: Sequence[str], datasets: Sequence[str]) -> list[tuple[str, str]]:
    """(party, dataset) of each account that is named."""
    if len(datasets) not in (1, len(parties)):
        problem = f"is {len(datasets)} names for {len(parties)} parties"
        raise InvalidParameter("dataset", ", ".join(datasets), problem, "name one for all, or one for each party")
    named = list(zip(parties, list(datasets) * len(parties) if len(datasets) == 1 else datasets, strict=False))
    for account in named:
        if named.count(account) > 1:
            raise InvalidParameter("party", account[0], "is named twice with one dataset", "name each account once")
    return named


@app.command()
def declare_public(
    party: PartyOption,
    dataset: DatasetOption,
    reason: ReasonOption,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Declare a dataset public: nothing in it needs protection."""
    from quietsum.ledger import Ledger

    with Ledger.open(ledger_path(workspace)) as ledger:
        entry = ledger.declare_public(party=party, dataset=dataset, reason=reason)
    _print_entry(entry, as_json)
    if not as_json:
        print("gate    none until a budget is set; what was charged stays written")
        print_next(["ledger", "show", *_where(workspace)])


def _entry(entry: Entry) -> dict[str, Any]:
    values = {"sequence": entry.sequence, "kind": entry.kind.value, "time": entry.time, "hash": entry.hash}
    return {**values, "body": dict(entry.body)}


def _print_entry(entry: Entry, as_json: bool) -> None:
    if as_json:
        print_json(_entry(entry))
    else:
        print(f"entry   {entry.sequence} ({entry.kind.value}), {entry.hash[:16]}…")
