"""Names and words of the source: one public meaning a name, verbs for functions, the field's words in every text.

Each rule is a function that lists what breaks it in a tree of source files, so that the controls below can hand it a
tree with a mistake in it. A table of exceptions gives each a reason, and an entry that is no longer needed fails.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

import quietsum

HOUSE = Path(quietsum.__file__).parent
COMMANDS = "cli"
"""The commands: their functions have the words that people type, and no other room imports them."""
WORDED = frozenset({path.stem for path in HOUSE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()})
"""All rooms: their texts keep the third rule."""
HELD = WORDED - {COMMANDS}
"""The rooms that keep all three rules."""

SHARED: Mapping[str, str] = {
    **dict.fromkeys(
        ("PrivacyAccountant", "analyze_privacy_utility_tradeoff", "make_private"),
        "compat keeps the names that older code was written for",
    ),
    **dict.fromkeys(
        ("canonical", "pack", "unpack"),
        "report/verifier.py is a file of its own, which reads a report where nothing of quietsum is installed",
    ),
}
"""Public names that two modules may define, and why."""
DOUBLES: Mapping[str, str] = {
    **{name: reason for name, reason in SHARED.items() if name not in ("canonical", "pack", "unpack")},
    "Batch": "examples as arrays with one first dimension: of torch in learning, of numpy in selfcheck",
}
"""Names that two rooms show for two things, and why."""
FIELD: Mapping[str, str] = {
    "clipped": "a clipped sum",
    "closed": "a closed form",
    "concentrated": "concentrated differential privacy",
    "dominated": "a law dominated by another, as dominating_pmf makes the one that dominates",
    "expected": "the expected size of a draw",
    "fixed": "a batch of fixed size",
    "named": "as in torch's named_parameters",
    "rounded": "rounded normals, the integers of a noise that is rounded to a grid",
    "sampled": "the sampled Gaussian mechanism",
    "shuffled": "shuffled batches, the shuffled model",
    "unsampled": "the curve of a mechanism without its sampling",
}
"""Participles that are adjectives of the field: a function may begin with one where a noun follows."""
PARTICIPLES: Mapping[str, str] = {
    "ledger/accounts.py spent_lines": "frozen tests of old books call it",
    "mechanisms/gaussian.py calibrated": "a constructor, named by what it makes: ClippedSum.calibrated",
    "contracts/federations.py registered": "the protocol of a federation calls it so",
    **{
        f"federation/{module}.py registered": "the protocol of a federation, which users implement, calls it so"
        for module in ("drills", "local", "messages", "remote/federation", "workers/crew", "workers/keepers")
    },
}
"""Other functions named by a participle, as "room/module.py name", and why."""
RIDDLES: Mapping[str, str] = {}
"""Texts with such a word that stay, as "room/module.py word", and why: what ledgers and files of users hold."""

PARTICIPLE = re.compile(
    r"[a-z]+ed|begun|broken|built|chosen|drawn|found|given|heard|held|kept|known|left|made|met|said|seen|sent|shown|spent"
    r"|taken|told|written"
)
VERBS = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"})
"""Verbs that end like participles."""
RIDDLE = re.compile(r"\b(nobody|whoever|whomever|whatever|told|unsaid)\b", re.IGNORECASE)
PROPERTIES = frozenset({"property", "cached_property", "setter", "deleter"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def room_of(path: Path, house: Path) -> str:
    return path.relative_to(house).parts[0].removesuffix(".py")


parse = functools.cache(ast.parse)


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """All of them are some hundred megabytes."""
    yield
    parse.cache_clear()


def modules(house: Path, rooms: Collection[str]) -> Iterator[tuple[str, ast.Module]]:
    """Each module of the rooms with its path below the house."""
    for path in sorted(house.rglob("*.py")):
        if room_of(path, house) in rooms:
            yield path.relative_to(house).as_posix(), parse(path.read_text(encoding="utf-8"))


def public_names(house: Path, rooms: Collection[str]) -> dict[str, list[str]]:
    """Where each public function or class of a module's top level is defined. A door defines none of its own."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for module, tree in modules(house, rooms):
        named = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        for node in named if not module.endswith("__init__.py") else ():
            if not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def list_shared(house: Path, rooms: Collection[str]) -> list[str]:
    """Public names that several modules define, with the modules."""
    return [f"{name}: {', '.join(where)}" for name, where in public_names(house, rooms).items() if len(where) > 1]


def list_doubles(doors: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Names that two rooms show and that are not one and the same thing."""
    shown: defaultdict[str, dict[str, object]] = defaultdict(dict)
    for room, names in doors.items():
        for name, value in names.items():
            shown[name][room] = value
    return [
        f"{name}: {', '.join(rooms)}"
        for name, rooms in sorted(shown.items())
        if any(value is not next(iter(rooms.values())) for value in rooms.values())
    ]


def is_property(node: Function) -> bool:
    return any(ast.unparse(one).split("(")[0].rpartition(".")[2] in PROPERTIES for one in node.decorator_list)


def list_participles(house: Path, rooms: Collection[str]) -> list[str]:
    """Functions and methods whose name begins with a past participle, without properties."""
    found = []
    for module, tree in modules(house, rooms):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_property(node):
                first = node.name.strip("_").partition("_")[0]
                if PARTICIPLE.fullmatch(first) and first not in VERBS:
                    found.append(f"{module} {node.name}")
    return found


def list_riddles(house: Path, rooms: Collection[str]) -> list[str]:
    """Riddle words in strings, docstrings included, and in the texts that lie beside the code."""
    found = []
    for module, tree in modules(house, rooms):
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{module} {word[0].lower()}" for word in RIDDLE.finditer(node.value)]
    for path in sorted(house.rglob("*.toml")):
        if room_of(path, house) in rooms:
            words = RIDDLE.finditer(path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(house).as_posix()} {word[0].lower()}" for word in words]
    return found


def takes_noun(entry: str) -> str:
    """The adjective of the field that a function's name begins with, if a noun follows; else ""."""
    first, _, noun = entry.rpartition(" ")[2].strip("_").partition("_")
    return first if noun and first in FIELD else ""


# ------------------------------------------------------------------------------------------------ the source


def test_a_public_name_is_defined_in_one_module() -> None:
    found = list_shared(HOUSE, HELD)
    assert [one for one in found if one.partition(":")[0] not in SHARED] == []
    assert sorted(one.partition(":")[0] for one in found) == sorted(SHARED), "an exception is no longer needed"


def test_a_name_that_two_rooms_show_is_one_thing() -> None:
    pytest.importorskip("torch")
    rooms = [importlib.import_module(f"quietsum.{room}") for room in sorted(WORDED) if not room.startswith("__")]
    doors = {room.__name__.rpartition(".")[2]: {name: getattr(room, name) for name in _shown(room)} for room in rooms}
    found = list_doubles(doors)
    assert [one for one in found if one.partition(":")[0] not in DOUBLES] == []
    assert sorted(one.partition(":")[0] for one in found) == sorted(DOUBLES), "an exception is no longer needed"


def _shown(room: ModuleType) -> list[str]:
    """What a room shows at its door; a file that is a room shows at its door what its ``__all__`` lists."""
    return [name for name in getattr(room, "__all__", ()) if not isinstance(getattr(room, name), TypeVar | str)]


def test_the_control_two_things_of_one_name_are_found() -> None:
    one, other = object(), object()
    assert list_doubles({"a": {"x": one, "y": one}, "b": {"x": one, "y": other}}) == ["y: a, b"]


def test_a_function_is_named_by_a_verb_and_not_by_a_participle() -> None:
    found = list_participles(HOUSE, HELD)
    others = [one for one in found if not takes_noun(one)]
    assert [one for one in others if one not in PARTICIPLES] == []
    assert set(PARTICIPLES) == set(others), "an exception is no longer needed"
    assert {takes_noun(one) for one in found} - {""} == set(FIELD), "an adjective is no longer needed"


def test_texts_name_who_does_what() -> None:
    found = list_riddles(HOUSE, WORDED)
    assert [one for one in found if one not in RIDDLES] == []
    assert set(RIDDLES) == set(found), "an exception is no longer needed"


def test_the_rooms_that_are_held_exist() -> None:
    assert {room_of(path, HOUSE) for path in HOUSE.rglob("*.py")} >= WORDED
    assert all(SHARED.values()) and all(FIELD.values()) and all(PARTICIPLES.values()) and all(RIDDLES.values())


# ------------------------------------------------------------------------------------------------ controls


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A house of two rooms that break every rule once, and use what the rules allow."""
    files = {
        "ledger/__init__.py": "def open(): ...\n",
        "ledger/rows.py": "class Row: ...\ndef open(): ...\ndef _hidden(): ...\ndef needs_it(): ...\n",
        "ledger/heads.py": "class Row: ...\ndef _hidden(): ...\nclass Box:\n    def open(self): ...\n"
        "    @property\n    def spent(self): ...\n    @functools.cached_property\n    def kept(self): ...\n"
        "    def _listed(self): ...\n",
        "charts.py": '"""Whoever reads this."""\nasync def drawn_twice(): ...\ndef seed(): ...\n'
        'def sampled_ratio(): ...\ndef sampled(): ...\nsay = f"it was {1} Told"  # nobody\n',
        "glossary/words.toml": 'noise = "nobody knows"\n',
        "glossary/__init__.py": "",
        "other.py": '"""Nobody."""\nclass Row: ...\ndef told(): ...\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_name_in_two_modules_is_found_and_a_method_or_a_private_one_is_not(house: Path) -> None:
    assert list_shared(house, {"ledger", "charts"}) == ["Row: ledger/heads.py, ledger/rows.py"]
    assert list_shared(house, {"ledger", "other"}) == ["Row: ledger/heads.py, ledger/rows.py, other.py"]
    assert list_shared(house, {"charts", "other"}) == []


def test_participles_are_found_and_verbs_and_properties_are_not(house: Path) -> None:
    found = list_participles(house, {"ledger", "charts"})
    assert found == [
        "charts.py drawn_twice", "charts.py sampled_ratio", "charts.py sampled", "ledger/heads.py _listed"
    ]  # fmt: skip
    assert [takes_noun(one) for one in found] == ["", "sampled", "", ""], "an adjective alone is no name"


def test_riddles_are_found_in_docstrings_in_templates_and_in_toml(house: Path) -> None:
    assert list_riddles(house, {"ledger", "charts", "glossary"}) == [
        "charts.py whoever", "charts.py told", "glossary/words.toml nobody"
    ]  # fmt: skip
    assert list_riddles(house, {"other"}) == ["other.py nobody"]
