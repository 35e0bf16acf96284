"""``quietsum datasets``: what data is here, where to get the rest, and whether it is what it claims to be."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import console, print_json, print_next, text_width
from quietsum.errors import DataMissing, InvalidParameter

if TYPE_CHECKING:
    from quietsum.tasks import DataSet

__all__ = ["datasets"]

NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="One of the sets.", show_default=False)]
VerifyOption = Annotated[bool, typer.Option("--verify", help="Read the files and compare them with known sums.")]

BROKEN = 2


def datasets(name: NameArgument = None, verify: VerifyOption = False, as_json: opt.JsonOption = False) -> int:
    """What data is present, where to get the rest, and whether it is intact.

    Example: quietsum datasets chest-xray --verify

    Nothing is downloaded. Files are looked for below QUIETSUM_DATA, else below
    data in the working folder. With --verify the command ends with code 2 when
    a set that was asked for is missing, or any set that is present is altered.
    """
    from quietsum.tasks import DATASETS, nearest_name

    if name is not None and name not in DATASETS:
        raise InvalidParameter("name", name, "is no data set", nearest_name(name, DATASETS))
    chosen = list(DATASETS.values()) if name is None else [DATASETS[name]]
    found = [_state(known, verify) for known in chosen]
    if as_json:
        print_json({"datasets": found})
    elif name is None:
        _table(found, verify)
    else:
        _one(found[0])
    bad = {"refused"} if name is None else {"refused", "missing"}
    return BROKEN if verify and any(state["state"] in bad for state in found) else 0


def _state(known: DataSet, verify: bool) -> dict[str, Any]:
    """What is known about one set: missing, present, verified or refused, with the folder and a line about it."""
    from quietsum.tasks import data_folder

    folder = known.find_folder()
    facts = {
        "name": known.name, "title": known.title, "licence": known.licence, "source": known.source,
        "folders": [str(data_folder(place)) for place in known.folders],
        "folder": None if folder is None else str(folder),
    }  # fmt: skip
    if (known.folders and folder is None) or not known.installed:
        return {**facts, "state": "missing", "detail": "not here"}
    if not verify:
        return {**facts, "state": "present", "detail": "not verified"}
    try:
        return {**facts, "state": "verified", "detail": known.check(folder or data_folder(""))}
    except DataMissing as error:
        return {**facts, "state": "refused" if known.folders else "missing", "detail": str(error)}


_STYLES = {"verified": "green", "present": "", "missing": "dim", "refused": "bold red"}


def _table(found: list[dict[str, Any]], verify: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("set", "state", "what it is"):
        table.add_column(heading, header_style="bold", no_wrap=heading != "what it is")
    for state in found:
        detail = state["detail"] if state["state"] == "verified" else state["title"]
        table.add_row(state["name"], Text(state["state"], style=_STYLES[state["state"]]), Text(detail))
    console().print(table)
    for state in found:
        if state["state"] == "refused":
            _paragraph(f"{state['name']} is refused: {state['detail']}")
    missing = [state for state in found if state["state"] == "missing"]
    if missing:
        print("\nWhere to get the rest:")
        for state in missing:
            _paragraph(f"{state['name']}: {state['source']}", "  ")
            if state["folders"]:
                print(f"    → {state['folders'][0]}")
    print()
    print_next(["datasets", missing[0]["name"]] if missing else ["datasets"] + ([] if verify else ["--verify"]))


def _one(state: dict[str, Any]) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for heading, text in (
        ("what", state["title"]), ("state", state["state"]), ("detail", state["detail"]),
        ("folder", state["folder"] or " or ".join(state["folders"]) or "inside a package"),
        ("licence", state["licence"]), ("source", state["source"]),
    ):  # fmt: skip
        table.add_row(heading, Text(text, style=_STYLES.get(text, "")))
    console().print(Panel(table, title=Text(state["name"], style="bold"), title_align="left", padding=(0, 1)))
    if state["state"] == "present":
        print_next(["datasets", state["name"], "--verify"])
    elif state["state"] == "verified" and state["name"] != "heart":
        print_next(["train", "--task", state["name"], "--epsilon", 3])


def _paragraph(text: str, indent: str = "") -> None:
    print(
        textwrap.fill(
            text, text_width(), initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
        )
    )
