"""mpmath's precision is global; what a test sets here ends with the test."""

from __future__ import annotations

from collections.abc import Iterator

import mpmath as mp
import pytest


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    with mp.workprec(100):
        yield
