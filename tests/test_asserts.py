"""``python -O`` leaves every assert out, so none in the package may do work or refuse what somebody else wrote."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import quietsum

HOUSE = Path(quietsum.__file__).parent
NARROWS = {"isinstance", "len"}
"""What an assert may call: it asks and changes nothing."""


def parse(package: Path) -> dict[str, ast.Module]:
    """Each module but those of ``contracts``, whose asserts are tests."""
    paths = [path for path in sorted(package.rglob("*.py")) if path.relative_to(package).parts[0] != "contracts"]
    return {path.relative_to(package).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def parts(test: ast.expr) -> list[ast.expr]:
    """What is joined by ``and``."""
    return [one for part in test.values for one in parts(part)] if isinstance(test, ast.BoolOp) else [test]


def works(tree: ast.Module) -> list[ast.Assert]:
    """Asserts that do more than to narrow a type: they call something, or ask whether a value is true."""
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return [
        node
        for node in asserts
        if any(isinstance(one, ast.Call) and ast.unparse(one.func) not in NARROWS for one in ast.walk(node.test))
        or not all(isinstance(one, ast.Compare | ast.Call) for one in parts(node.test))
    ]


def catchers(tree: ast.Module) -> list[ast.ExceptHandler]:
    """Handlers that count on an assert to have been made."""
    named = [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.type is not None]
    return [node for node in named if node.type is not None and "AssertionError" in ast.unparse(node.type)]


def places(found: Collection[ast.AST], module: str) -> list[str]:
    return [f"{module}:{getattr(node, 'lineno', 0)}" for node in found]


def test_an_assert_only_narrows_a_type() -> None:
    trees = parse(HOUSE)
    assert len(trees) > 400
    assert [line for module, tree in trees.items() for line in places(works(tree), module)] == []
    assert [line for module, tree in trees.items() for line in places(catchers(tree), module)] == []


def test_the_control_an_assert_that_works_or_is_caught_is_seen() -> None:
    tree = ast.parse(
        "assert x is not None and isinstance(y, int)\nassert self.read()\nassert self.kept and z is not None\n"
        "try: assert set(x) == {1}\nexcept (ValueError, AssertionError): pass\n"
    )
    assert [node.lineno for node in works(tree)] == [2, 3, 4]
    assert [node.lineno for node in catchers(tree)] == [5]


def optimised(code: str) -> str:
    """What ``code`` prints under ``python -O``."""
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_asserts_the_tables_of_a_task_are_read_before_the_first_charge() -> None:
    code = (
        "from quietsum.tasks.gallery.heart import HeartTask\ntask = HeartTask.from_package()\n"
        "print('_private' in vars(task))\ntask.rehearse()\n"
        "print(*(name in vars(task) for name in ('_private', '_held_out')))"
    )
    assert optimised(code).split() == ["False", "True", "True"]


def test_without_asserts_a_certificate_with_other_keys_is_refused() -> None:
    code = (
        "from quietsum.party.peers import UnknownPeer, key_in\n"
        "for told in ({}, {'key': '00'}, 'text', None, {'key': '00', 'ledger': '00', 'signature': '', 'more': 1}):\n"
        "    try:\n        key_in(told, 'a')\n"
        "    except UnknownPeer:\n        print('refused')"
    )
    assert optimised(code).split() == ["refused"] * 5
