"""Run the code cells of a notebook, as its kernel would, and print what each cell shows, one JSON line a cell.

``python run_notebook.py FILE``: all cells share one namespace, and the value of a last expression is shown by its
``_repr_html_`` if it has one, else by its repr. The first error ends the process. It stands in for Jupyter, which would
bring 27 libraries into the tests to execute three files (decision 53).
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run_cell(source: str, name: str, space: dict[str, Any]) -> dict[str, str]:
    """What the cell prints and shows."""
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, shown = io.StringIO(), ""
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), space)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), space)
            if value is not None:
                shown = value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
    return {"cell": name, "printed": printed.getvalue(), "shown": shown}


def main() -> None:
    """Run the file that the command line names."""
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            print(json.dumps(run_cell("".join(cell["source"]), cell["id"], space)), flush=True)


if __name__ == "__main__":
    main()
