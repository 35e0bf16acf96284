"""Whatever the package imports is declared, and whatever is declared has a lower bound that CI can try."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHIPPED = ("train", "transformers", "lightning", "federate", "postgres", "mlflow", "onnx", "pictures", "serve")


def declared() -> dict[str, str]:
    """Every distribution of the base install and of the extras that users install, and its requirement."""
    lines = [*PROJECT["dependencies"], *(line for name in SHIPPED for line in PROJECT["optional-dependencies"][name])]
    return {_plain(re.split(r"[\[<>=!~ ;]", line)[0]): line for line in lines}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(source: str) -> set[str]:
    """The top-level packages that ``source`` imports, wherever in the text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"quietsum"}


def undeclared(packages: set[str]) -> set[str]:
    known, homes = declared(), importlib.metadata.packages_distributions()
    return {name for name in packages if not {_plain(home) for home in homes.get(name, [])} & set(known)}


def test_every_imported_library_is_declared() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    assert not undeclared(set().union(*map(imported, sources)))


@pytest.mark.parametrize("name", ["click", "sympy"])
def test_a_library_that_merely_lies_beside_ours_would_be_noticed(name: str) -> None:
    """The negative control: both are installed here, because others need them."""
    assert undeclared(imported(f"def late():\n    import {name}.core")) == {name}


@pytest.mark.parametrize("name", sorted(declared()))
def test_every_requirement_has_a_lower_bound(name: str) -> None:
    assert ">=" in declared()[name]
