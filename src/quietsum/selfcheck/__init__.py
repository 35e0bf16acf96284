"""The self-check: is this private step what it claims to be? Any step, in seconds, without torch.

:func:`run_selfcheck` replays a step on made-up rows and looks at its noise, its draws and its outputs; eleven tests,
each of which accuses a correct step at most once in ten million runs. :func:`one_step` is the short form to run
before a training of an unknown model.
"""

from __future__ import annotations

from quietsum.selfcheck.protocol import Batch, Law, OnAGrid, Outcome, StepUnderTest, Twin
from quietsum.selfcheck.report import CheckReport, Finding, Verdict
from quietsum.selfcheck.suite import TESTS, one_step, run_selfcheck

__all__ = [
    "TESTS",
    "Batch",
    "CheckReport",
    "Finding",
    "Law",
    "OnAGrid",
    "Outcome",
    "StepUnderTest",
    "Twin",
    "Verdict",
    "one_step",
    "run_selfcheck",
]
