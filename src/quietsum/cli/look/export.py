"""``quietsum export``: a finished model in a form that other programs run."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from quietsum.cli.look.runs import RunArgument
from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, text_width
from quietsum.errors import InvalidParameter
from quietsum.files import check_output

__all__ = ["export"]

OutputOption = Annotated[Path, typer.Option("--output", "-o", metavar="FILE.onnx", help="Where to write.")]


def export(
    run: RunArgument = "latest",
    output: OutputOption = Path("model.onnx"),
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Write the model of a finished run as ONNX, for other programs.

    Example: quietsum export latest -o model.onnx

    It takes rows in the form of the task's records and answers what quietsum
    predict answers; run, task and guarantees stand in its metadata. Needs
    pip install 'quietsum[onnx]'; costs nothing.
    """
    from quietsum.runs import Workspace, open_model

    if output.suffix.lower() != ".onnx":
        raise InvalidParameter("output", str(output), "is no name of an ONNX file", "name it model.onnx, say")
    check_output(output)
    model = open_model(run, Workspace.at(workspace))
    model.write_onnx(output)
    if as_json:
        print_json({"run": model.run, "task": model.task, "output": str(output),
                    "guarantees": [one.to_dict() for one in model.guarantees]})  # fmt: skip
    else:
        print(textwrap.fill(f"wrote {output}: the model of {model.run}, and what it cost", text_width()))
