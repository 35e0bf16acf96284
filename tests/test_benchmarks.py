"""Every file in benchmarks/ starts, and every name that it takes from the package is there, late imports included."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))
START = """
import runpy, sys
folder, *paths = sys.argv[1:]
before = list(sys.path)
for path in paths:
    sys.argv[:], sys.path[:] = [path], [folder, *before]
    runpy.run_path(path)
    for name, module in list(sys.modules.items()):  # two folders have a file of the same name
        if (getattr(module, "__file__", None) or "").startswith(folder):
            del sys.modules[name]
"""


def start(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run the files up to their ``main``, in one fresh interpreter."""
    words = [sys.executable, "-c", START, str(FOLDER), *map(str, paths)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def missing(text: str) -> list[str]:
    """The modules and names of the package that ``text`` imports anywhere, and that do not exist."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            wanted = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        found += [
            f"{module} {name}".strip()
            for module, name in wanted
            if not (exists(module, name) or (name and exists(f"{module}.{name}", "")))
        ]
    return found


def exists(module: str, name: str) -> bool:
    if module.split(".")[0] != "quietsum":
        return True
    try:
        return hasattr(importlib.import_module(module), name) if name else bool(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "quietsum":
            pytest.skip(f"{error.name} is not installed")
        return False


def test_every_benchmark_starts() -> None:
    pytest.importorskip("torch")
    assert len(SCRIPTS) > 25
    done = start(*SCRIPTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_imports_names_that_exist(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8")) == []


def test_what_is_gone_would_be_noticed(tmp_path: Path) -> None:
    text = "import quietsum.gone\ndef main():\n    from quietsum import run, walk\n    from quietsum.plan import Plan\n"
    assert missing(text) == ["quietsum.gone", "quietsum walk"]
    (tmp_path / "broken.py").write_text("from quietsum.plan import gone\n", encoding="utf-8")
    assert "cannot import name 'gone'" in start(tmp_path / "broken.py").stderr
