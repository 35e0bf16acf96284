"""Scenes that many tests share: the command line, its words in one line, and the text of a tiny plan."""

from __future__ import annotations

import os

import pytest
from click.testing import Result
from typer.testing import CliRunner

from quietsum.cli.app import app

needs_data = pytest.mark.skipif(not os.environ.get("QUIETSUM_DATA"), reason="set QUIETSUM_DATA to read the real files")
"""For tests on downloaded data sets: skipped where there are none, run wherever the folder is named."""


def invoke(*words: object) -> Result:
    """Run ``quietsum WORDS`` in this process. An exception that a user would see as a traceback fails the test."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


def quietsum(*words: object, code: int = 0) -> Result:
    """Run ``quietsum WORDS``, which must end with ``code``."""
    result = invoke(*words)
    assert result.exit_code == code, result.output
    return result


def one_line(text: str) -> str:
    """``text`` without its line breaks, for sentences that a terminal folds."""
    return " ".join(text.split())


def tiny_toml(
    *,
    task: str = "tiny:TinyTask",
    options: str = "",
    rounds: int = 3,
    federation: str = "",
    sample_rate: float = 0.5,
    record: str = "{ epsilon = 2.0, delta = 1e-3 }",
) -> str:
    """The text of a run of ``tiny.TinyTask``; ``options`` and ``federation`` are further lines of their tables."""
    lines = [
        "",
        "[task]",
        f'name = "{task}"',
        f"options = {options}" if options else None,
        "[federation]",
        f"rounds = {rounds}",
        federation or None,
        "[training]",
        f"sample_rate = {sample_rate}",
        "local_steps = 1",
        "[privacy]",
        f"record = {record}",
        "",
    ]
    return "\n".join(line for line in lines if line is not None)
