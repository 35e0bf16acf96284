"""Doors: a room shows its names once, loads none of its modules for it, and no other room imports past it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quietsum
from quietsum.doors import open_door

ROOT = Path(__file__).parents[1]
HOUSE = Path(quietsum.__file__).parent
ROOMS = sorted(path.name for path in HOUSE.iterdir() if (path / "__init__.py").is_file())
DOORS = [room for room in ROOMS if "open_door" in (HOUSE / room / "__init__.py").read_text(encoding="utf-8")]
WITHOUT = {"cli", "contracts", "glossary"}
"""The commands, the suites for tests and the glossary: each ``__init__`` holds what there is to import."""
TORCH = {"compat", "learning", "tasks"}
"""Rooms of which a name needs torch."""


def test_every_room_has_a_door() -> None:
    assert set(ROOMS) - set(DOORS) == WITHOUT


@pytest.mark.parametrize("room", DOORS)
def test_every_name_of_a_door_is_found_and_is_no_modules_name(room: str) -> None:
    """A module of the same name would hide the name as soon as it is imported."""
    if room in TORCH:
        pytest.importorskip("torch")
    door = importlib.import_module(f"quietsum.{room}")
    assert door.__all__ == sorted(set(door.__all__)) and door.__all__
    for name in door.__all__:
        assert getattr(door, name) is not None and name in dir(door)
    assert not set(door.__all__) & {module.name for module in pkgutil.iter_modules(door.__path__)}


def test_importing_every_room_loads_nothing_heavy_and_none_of_its_modules() -> None:
    code = f"import sys; [__import__('quietsum.' + room) for room in {DOORS!r}]; print(' '.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    assert not {"torch", "numpy", "scipy", "flwr"} & set(loaded)
    ours = {name for name in loaded if name.startswith("quietsum.")}
    assert ours == {"quietsum.doors", *(f"quietsum.{room}" for room in DOORS)}


def test_a_name_that_is_not_shown_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'quietsum\.privacy' has no attribute 'log_tail'"):
        _ = importlib.import_module("quietsum.privacy").log_tail


def test_a_name_whose_library_is_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = tmp_path / "made_up_room"
    room.mkdir()
    (room / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made_up_room.inner import Thing as Thing\n"
    )
    (room / "inner.py").write_text("import no_such_library\nclass Thing: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("made_up_room")
    find, _, names = open_door("made_up_room", lacking={"no_such_library": "needs a library; pip install it"})
    assert names == ["Thing"]
    with pytest.raises(ImportError, match="Thing needs a library; pip install it"):
        find("Thing")
    find, _, _ = open_door("made_up_room")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        find("Thing")


def _contracts() -> dict[str, dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return {one["name"]: one for one in settings["contracts"]}


def test_import_linter_keeps_every_door() -> None:
    contracts = _contracts()
    for room in set(ROOMS) - {"glossary"}:  # one file
        contract = contracts[f"The door of {room}"]
        assert contract["protected_modules"] == [f"quietsum.{room}.*"]
        assert contract["allowed_importers"] == [f"quietsum.{room}"]
        assert "ignore_imports" not in contract  # a door has no exceptions


def _past(path: Path, room: str, source: str) -> list[str]:
    """Names and modules that ``source``, a file of ``room``, imports past another room's door."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "quietsum" and len(parts) > 1 and parts[1] in ROOMS and parts[1] != room:
                inside = {one.name for one in pkgutil.iter_modules([str(HOUSE / parts[1])])}
                names = [one.name for one in node.names if len(parts) > 2 or one.name in inside]
                found += [f"{path.name}: {node.module}.{name}" for name in names]
    return found


def test_no_room_imports_names_past_the_door_of_another() -> None:
    found = []
    for path in HOUSE.rglob("*.py"):
        parts = path.relative_to(HOUSE).parts
        found += _past(path, parts[0] if len(parts) > 1 else "", path.read_text(encoding="utf-8"))
    assert not found


def test_the_control_an_import_past_a_door_is_seen() -> None:
    assert _past(Path("x.py"), "ledger", "def f():\n    from quietsum.privacy.units import PrivacyUnit\n")
    assert _past(Path("x.py"), "ledger", "from quietsum.privacy import units\n")
    assert not _past(Path("x.py"), "ledger", "from quietsum.privacy import PrivacyUnit\n")
    assert not _past(Path("x.py"), "privacy", "from quietsum.privacy.units import PrivacyUnit\n")
