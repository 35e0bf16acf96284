"""``quietsum predict``: what a finished model answers for new rows."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from quietsum.cli.look.runs import RunArgument
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import bounds, print_json, text_width
from quietsum.errors import InvalidParameter
from quietsum.files import check_output, write_output

__all__ = ["predict"]

RowsArgument = Annotated[
    str, typer.Argument(metavar="ROWS", help="Rows without labels: .csv, .npy, a folder of pictures or .npz.")
]
OutputOption = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE.csv", help="Where to write; standard output if omitted.")
]


def predict(
    run: RunArgument,
    rows: RowsArgument,
    output: OutputOption = None,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Predict with the model of a finished run: a class and its chance a row.

    Example: quietsum predict latest rows.csv -o out.csv

    Row i of the output is for row i of the input. A row that cannot be read
    has an empty prediction. The task that the plan names is made, so a task of
    your own is imported; nothing is trained and nothing is charged.
    """
    from quietsum.runs import Workspace, open_model

    place, table = Workspace.at(workspace), Path(rows)
    if output is not None:
        if Path(output).resolve() == table.resolve():
            raise InvalidParameter("output", output, "is the file of the rows", "name another file")
        check_output(Path(output))
    model = open_model(run, place)
    found = model.predict_file(table)
    cost = [
        f"{bounds(one)} per {one.unit} at δ = {one.delta:.3g}"
        for one in model.guarantees
        if one.observer.value == "recipients"
    ]
    claim = "; ".join(dict.fromkeys(cost)) or "no guarantee: it was trained without privacy"
    if output is None and not as_json:
        print(found.to_csv(), end="")
    elif output is not None:
        write_output(Path(output), found.to_csv())
    if found.missing:
        few = f"warning: {found.missing} of {len(found)} rows could not be read and have an empty prediction"
        print(few, file=sys.stderr)
    if as_json:
        print_json({
            "run": model.run, "task": model.task, "rows": len(found), "missing": found.missing, "output": output,
            "guarantees": [one.to_dict() for one in model.guarantees],
            **({} if output is not None else {"predictions": found.labels()}),
        })  # fmt: skip
    elif output is not None:
        print(
            textwrap.fill(
                f"wrote {output}: {len(found)} rows by the model of {model.run}, which cost {claim}", text_width()
            )
        )
