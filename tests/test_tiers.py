"""The tiers are what the Makefile and CONTRIBUTING say: quick has no torch and no servers, and each runs in CI."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tiers import HEAVY

ROOT = Path(__file__).parents[1]
TESTS = """
import socket

import pytest


def test_plain():
    assert True


def test_needs_torch():
    pytest.importorskip("torch")
    raise AssertionError("not reached")


def test_imports_torch():
    with pytest.raises(ModuleNotFoundError, match="make quick does without torch"):
        import torch


def test_serves():
    with socket.create_server(("127.0.0.1", 0)):
        raise AssertionError("not reached")
"""


def recipe(target: str) -> str:
    """The lines of one target of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_quick_tier_closes_the_door_to_torch_and_to_servers() -> None:
    assert "QUIETSUM_TIER=quick" in recipe("quick")
    assert all("QUIETSUM_TIER" not in recipe(target) for target in ("test", "long"))
    assert "tiers.close()" in (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")


def test_what_needs_torch_or_a_server_is_skipped_there(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("import tiers\ntiers.close()\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "2 passed, 2 skipped" in done.stdout, done.stdout + done.stderr


def test_the_control_without_the_barrier_they_are_reached(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr


def test_a_barrier_that_comes_too_late_says_so() -> None:
    here = str(ROOT / "tests")
    code = f"import sys, types; sys.path.insert(0, {here!r}); sys.modules['torch'] = types.ModuleType('')"
    command = [sys.executable, "-c", f"{code}; import tiers; tiers.close()"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode and "loaded before the barrier was there: torch" in done.stderr
    assert "torch" in HEAVY


def test_each_fact_runs_in_one_tier_or_the_other() -> None:
    assert '-m "not long" $(ARGS)' in recipe("test") and "-m long tests $(ARGS)" in recipe("long")
    assert not re.search(r"ignore|deselect", recipe("test") + recipe("long"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert {"make test", "make cover", "make long"} <= set(script)


SOME = """
import pytest


@pytest.mark.some(3)
@pytest.mark.parametrize("one", range(4))
@pytest.mark.parametrize("two", range(2))
def test_many(one, two):
    assert True


@pytest.mark.some(5)
@pytest.mark.parametrize("one", range(2))
def test_few(one):
    assert True


class TestBelow:
    @pytest.mark.some(1)
    @pytest.mark.parametrize("one", range(3))
    def test_inner(self, one):
        assert True
"""


def run_some(folder: Path, text: str, *words: str) -> str:
    (folder / "test_some.py").write_text(text)
    (folder / "conftest.py").write_text(
        "import pytest, tiers\n@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_collection_modifyitems(items):\n    tiers.leave_to_long(items)\n"
    )
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT / 'tests'}\nmarkers =\n  some\n  long\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    done = subprocess.run([*command, *words, str(folder)], cwd=folder, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_of_many_cases_some_stay_and_make_long_runs_all_others(tmp_path: Path) -> None:
    assert "6 passed, 7 deselected" in run_some(tmp_path, SOME, "-m", "not long")
    assert "7 passed, 6 deselected" in run_some(tmp_path, SOME, "-m", "long")
    assert "13 passed" in run_some(tmp_path, SOME)
    stay = run_some(tmp_path, SOME, "-m", "not long", "--collect-only")
    assert [case in stay for case in ("test_many[0-0]", "test_many[0-2]", "test_many[1-1]", "test_inner[0]")] == [
        True
    ] * 4
    assert "tiers.leave_to_long(items)" in (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("kept", ["0", "'all'"])
def test_a_test_that_would_keep_no_case_is_refused(kept: str, tmp_path: Path) -> None:
    said = run_some(tmp_path, SOME.replace("some(3)", f"some({kept})"), "-m", "not long")
    assert "keeps no case" in said
