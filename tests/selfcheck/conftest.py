"""Seeds for the checks, through the explicit test switch."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
