"""The drawing of the rooms and the page about them say what the source says."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    specification.loader.exec_module(module)
    return module


house = load(ROOT / "docs" / "house.py")
ways = load(ROOT / "benchmarks" / "ways.py")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A package of three rooms, with its drawing and its page."""
    files = {
        "pyproject.toml": '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["quietsum"]\n'
        'layers = ["(high)", "(left) | (right)", "low"]\n',
        "src/quietsum/__init__.py": '"""The front door."""\n',
        "src/quietsum/high/__init__.py": '"""High: it uses the others. More words."""\nfrom quietsum.left import One\n',
        "src/quietsum/left/__init__.py": '"""Left."""\nfrom quietsum.left.inner import One\n__all__ = ["One"]\n',
        "src/quietsum/left/inner.py": "from typing import Protocol\nfrom quietsum.low import Two\n"
        "class One(Protocol): ...\n",
        "src/quietsum/right.py": '"""Right."""\nfrom quietsum.low import Two\n',
        "src/quietsum/low.py": '"""Low."""\nclass Two: ...\n',
        "docs/architecture.md": f"{house.BEGIN}\n{house.END}\n",
        "docs/_static/house.svg": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert house.main([], root=tmp_path) == 0
    return tmp_path


def add(root: Path, module: str, text: str) -> None:
    path = root / "src" / "quietsum" / module
    path.write_text(path.read_text() + text)


def test_drawing_and_table_are_what_the_source_gives(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "read_source", lambda _: source)
    assert house.main(["--check"]) == 0, "run python docs/house.py"


def test_an_altered_drawing_is_noticed(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house.main(["--check"], root=small) == 0
    drawing = small / "docs" / "_static" / "house.svg"
    drawing.write_text(drawing.read_text().replace("2 modules", "3 modules"))
    assert house.main(["--check"], root=small) == 1
    assert "house.svg" in capsys.readouterr().err


def test_an_altered_table_is_noticed(small: Path) -> None:
    page = small / "docs" / "architecture.md"
    page.write_text(page.read_text().replace("| `low` |", "| `deep` |"))
    assert [path.name for path in house.stale(small)] == ["architecture.md"]


def test_an_extra_import_is_noticed_though_its_line_is_not_drawn(small: Path) -> None:
    add(small, "high/__init__.py", "from quietsum.low import Two\n")
    assert ("high", "low") not in house.House.read(small).lines()
    assert small / "docs" / "_static" / "house.svg" in house.stale(small)


def test_an_extra_import_in_the_real_source_is_noticed(tmp_path: Path) -> None:
    for name in ("src/quietsum", "docs/_static"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.csv"))
    for name in ("pyproject.toml", "docs/architecture.md"):
        shutil.copy(ROOT / name, tmp_path / name)  # as it is, it passes: the first test here
    (tmp_path / "src" / "quietsum" / "privacy" / "made_up.py").write_text(
        "from quietsum.files import write_atomically\n"
    )
    assert house.stale(tmp_path)


def test_a_room_without_a_layer_is_an_error(small: Path) -> None:
    (small / "src" / "quietsum" / "stray.py").write_text('"""Stray."""\n')
    with pytest.raises(SystemExit, match="stray"):
        house.House.read(small)


def test_the_drawing_names_every_room_and_is_well_formed(source: Any) -> None:
    import xml.etree.ElementTree as ElementTree

    text = (ROOT / "docs" / "_static" / "house.svg").read_text(encoding="utf-8")
    words = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    for room in source.rooms:
        assert room in words
    assert min(float(size) for size in re.findall(r"font-size: ([\d.]+)px", text)) >= 11
    assert "prefers-color-scheme: dark" in text


def test_the_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.search(r"```\{toctree\}[^`]*^architecture$[^`]*```", index, re.MULTILINE)
    assert "_static/house.svg" in PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def source() -> Any:
    """The package as it is, parsed once."""
    return house.read_source(ROOT / "src")


@pytest.fixture(scope="module")
def defined(source: Any) -> tuple[set[str], set[str]]:
    """The names of its classes and of its functions."""
    nodes = [node for tree in source.trees.values() for node in ast.walk(tree)]
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return classes, {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def missing(text: str, defined: tuple[set[str], set[str]]) -> list[str]:
    """The functions, classes and files that ``text`` names and the source does not define."""
    classes, functions = defined
    found = [
        f"{owner}{name}"
        for owner, name in re.findall(r"`(\w+\.)?(\w+)\(\)`", text)
        if name not in functions or (owner and owner.removesuffix(".") not in classes)
    ]
    found += [name for name in re.findall(r"`([A-Z]\w*[a-z]\w*)`", text) if name not in classes]
    package = ROOT / "src" / "quietsum"
    return found + [path for path in re.findall(r"`(\w+/[\w/]+\.py)`", text) if not (package / path).is_file()]


def test_the_ways_name_functions_that_exist(defined: tuple[set[str], set[str]]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("()`") > 20
    assert missing(text, defined) == []
    wrong = "`run_round()`, `Ledger.reserves()`, `Legder.reserve()`"
    assert missing(wrong, defined) == ["Ledger.reserves", "Legder.reserve"]
    assert missing("`Gate`, `Gatter`, `ledger/pricing.py`, `ledger/gone.py`", defined) == ["Gatter", "ledger/gone.py"]


def test_the_survey_counts_what_is_there_and_notices_what_is_wrong(small: Path) -> None:
    before = ways.survey(small / "src")
    assert (before["modules"], before["folders"], before["most modules in a folder"], before["rooms"]) == (6, 3, 3, 4)
    assert (before["imports between rooms"], before["of these against the layers"]) == (3, 0)
    assert (before["of these past a door"], before["isinstance about Protocols"]) == (0, 0)
    add(small, "high/__init__.py", "from quietsum.left.inner import One as Again\nok = isinstance(1, Again)\n")
    add(small, "right.py", "from quietsum.left import One\n")
    add(small, "low.py", "def late():\n    from quietsum.right import Two\n")
    after = ways.survey(small / "src")
    assert (after["imports between rooms"], after["of these against the layers"]) == (6, 2)
    assert (after["of these past a door"], after["isinstance about Protocols"]) == (1, 1)


def test_a_way_is_counted_the_second_time_and_without_imports(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("def helper():\n    return 1\nhelper()\n")
    (tmp_path / "first.py").write_text(
        "import second\nfrom pathlib import Path\n"
        "def begin():\n    return second.work() + sum(second.work() for _ in range(2))\n"
    )
    (tmp_path / "second.py").write_text(
        "def open_door():\n    def find(name):\n        return len(name)\n    return find\n"
        "__getattr__ = open_door()\n"
        "def work():\n    from late import helper\n    __getattr__('a late name')\n    return helper()\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        first = load(tmp_path / "first.py")
        tracer = ways.Tracer(tmp_path, {"a way": ["begin"]})
        with tracer.following():
            first.begin()
            assert not tracer.ways
            first.begin()
            first.begin()
    finally:
        sys.path.remove(str(tmp_path))
        for name in ("first", "second", "late"):
            sys.modules.pop(name, None)
    found = tracer.ways["a way"]
    assert (sorted(found.files), len(found.functions)) == (["first.py", "late.py", "second.py"], 3)
    assert set(found.edges) == {("first.py", "second.py"), ("second.py", "late.py")}
    assert found.calls == 1 + 3 + 3 + 3  # begin, work, helper, and the generator: two values and its end


MOST = 15
"""Modules of one folder, its ``__init__`` aside: a crowded folder gets inner ones, by idea."""


def crowded(package: Path) -> dict[str, int]:
    """Folders with more modules than that, each with their number."""
    counts = Counter(path.parent for path in package.rglob("*.py") if not path.name.startswith("__"))
    return {str(folder.relative_to(package)): count for folder, count in counts.items() if count > MOST}


def test_no_folder_is_crowded() -> None:
    assert crowded(ROOT / "src" / "quietsum") == {}


def test_the_control_a_crowded_folder_is_found(tmp_path: Path) -> None:
    for number in range(MOST):
        (tmp_path / f"one_{number}.py").touch()
    (tmp_path / "__init__.py").touch()
    assert crowded(tmp_path) == {}
    (tmp_path / "another.py").touch()
    assert crowded(tmp_path) == {".": MOST + 1}


LONGEST = 600
"""Lines of one file: what is longer is one class or one state machine, which is not cut."""
GRACE = 60
LONG: dict[str, str] = {
    "learning/trainer.py": "PrivateTrainer, from the first look at the records to the model",
    "ledger/accounts.py": "the rule by which entries are written and read",
    "secagg/messages.py": "every message of the protocol, beside the one that reads it",
}
"""Files with more lines than that and some grace, and what each is."""


def too_long(package: Path) -> list[str]:
    """Files whose length would need a reason."""
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in package.rglob("*.py")}
    return sorted(path.relative_to(package).as_posix() for path, count in lines.items() if count > LONGEST + GRACE)


def test_a_long_file_is_one_idea() -> None:
    found = too_long(ROOT / "src" / "quietsum")
    assert [path for path in found if path not in LONG] == [], "move an idea into a file of its own; cut no class"
    assert all(LONG.values()) and all((ROOT / "src" / "quietsum" / path).is_file() for path in LONG)


def test_the_control_a_long_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("x = 1\n" * (LONGEST + GRACE))
    (tmp_path / "long.py").write_text("x = 1\n" * (LONGEST + GRACE + 1))
    assert too_long(tmp_path) == ["long.py"]
