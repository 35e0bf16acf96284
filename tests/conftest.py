"""What all tests share: reproducible random examples, a log that is heard. The rest a test builds in plain sight."""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.testing
from hypothesis import HealthCheck, settings

import tiers

# Quiet machines and busy ones must agree, so examples are fixed and untimed; "thorough" looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

if os.environ.get("QUIETSUM_TIER") == "quick":
    tiers.close()

# A process builds the command line once, not anew for each of some thousand commands that tests call in it.
vars(typer.testing)["_get_command"] = functools.cache(vars(typer.testing)["_get_command"])

# Tests go to folders of their own, from where a relative path would lead nowhere.
if folder := os.environ.get("QUIETSUM_DATA"):
    os.environ["QUIETSUM_DATA"] = os.path.abspath(folder)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what ``-m`` names
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first, so that no process is left alone with them at the end."""
    tiers.leave_to_long(items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end, so the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is remembered in the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("QUIETSUM_LEDGER_URL", raising=False)
        yield


@pytest.fixture(autouse=True)
def log_is_heard() -> Iterator[None]:
    """Each test finds the logger as a fresh process has it, whatever ran before in this one."""
    logger = logging.getLogger("quietsum")
    handlers, level = list(logger.handlers), logger.level
    logger.handlers[:] = []
    logger.setLevel(logging.WARNING)
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test works in an empty folder, with relative paths as people type them, and in no workspace of the shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUIETSUM_WORKSPACE", raising=False)
    return tmp_path
