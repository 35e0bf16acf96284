"""Every public name resolves, says what it is, is known to type checkers and stands in the reference."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import quietsum

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
LISTED: list[str] = vars(quietsum)["__all__"]
NAMES = sorted(set(LISTED) - {"__version__"})
TRAINING = {"PrivacyConfig", "PrivateClassifier", "PrivateTrainer", "make_private"}
"""Those that load torch."""


def named(name: str) -> object:
    """The public name ``name``; the test is skipped if it needs torch and torch is not installed."""
    if name in TRAINING:
        pytest.importorskip("torch")
    return getattr(quietsum, name)


@pytest.mark.parametrize("name", NAMES)
def test_public_name_resolves_and_has_a_docstring_of_its_own(name: str) -> None:
    thing = named(name)
    assert thing.__doc__, f"{name} has no docstring"
    assert not thing.__doc__.startswith(f"{name}("), f"{name} only has the docstring that dataclasses make up"


@pytest.mark.parametrize("name", NAMES)
def test_public_name_stands_in_the_reference(name: str) -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.rglob("*.md")))
    assert re.search(rf"^\.\. auto\w+:: quietsum\.{name}$", text, re.MULTILINE), f"document {name} in docs/reference"


SUBSTITUTION = re.compile(
    r"""(?:^|(?<=[\s'"(\[{<\-/:]))\|(?=\S)[^|\n]*?(?<=\S)\|(?=$|[\s'")\]}>\-/:.,;!?])""", re.MULTILINE
)


def bars(text: str) -> list[str]:
    """What the documentation would take for the name of a substitution: |x| outside of literals."""
    plain = re.sub(r"``.*?``", "", "\n".join(line for line in text.splitlines() if ">>>" not in line), flags=re.DOTALL)
    return SUBSTITUTION.findall(plain)


DOCUMENTED = sorted({
    name
    for page in REFERENCE.rglob("*.md")
    for name in re.findall(r"^\.\. auto(?:class|function|exception):: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)
})  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documentation_reads_no_absolute_value_as_a_name(name: str) -> None:
    module, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(module), last)
    members = vars(thing).values() if isinstance(thing, type) else ()
    for one in (thing, *members):
        text = getattr(one, "__doc__", None)
        assert not isinstance(text, str) or not bars(text), f"write ``|x|`` in {name}: {bars(text)}"


def test_the_control_a_bare_absolute_value_is_found() -> None:
    assert bars("at most max(|lowest|, |highest|), verified") and bars("in sum: Σ |aᵢ − bᵢ| ≤ bound.")
    assert not bars("in sum: ``Σ |a − b| ≤ bound``, D(P‖Q) and a | b")


def test_the_reference_documents_no_name_that_is_gone() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.rglob("*.md")))
    documented = re.findall(r"^\.\. auto(?:class|function|exception):: quietsum\.(\w+)$", text, re.MULTILINE)
    assert sorted(documented) == NAMES


def test_every_name_of_a_room_in_the_reference_is_behind_that_rooms_door() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(REFERENCE.rglob("*.md")))
    named = re.findall(r"^\.\. auto(?:class|function):: (quietsum\.[\w.]+)\.(\w+)$", text, re.MULTILINE)
    assert {"quietsum.alerts", "quietsum.defence", "quietsum.defence.detection"} <= {room for room, _ in named}
    for room, name in named:
        assert name in importlib.import_module(room).__all__, f"{room}.{name}"


def test_type_checkers_and_the_interpreter_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(quietsum.__file__).read_text(encoding="utf-8"))
    branch = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module for node in branch.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(typed) == NAMES
    for name, module in typed.items():
        if name not in TRAINING:
            assert getattr(quietsum, name) is getattr(importlib.import_module(module or ""), name)


def test_all_is_sorted_without_repetition_and_shown_by_dir() -> None:
    assert sorted(set(LISTED)) == LISTED
    assert set(LISTED) <= set(dir(quietsum))


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="'quietsum' has no attribute 'Gausian'"):
        _ = quietsum.Gausian  # type: ignore[attr-defined]
