"""The self-check: is this private step what it claims to be? Any step, in seconds, without torch.

:func:`run_selfcheck` replays a step on made-up rows and looks at its noise, its draws and its outputs; eleven tests,
each of which accuses a correct step at most once in ten million runs. :func:`one_step` is the short form to run
before a training of an unknown model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.selfcheck.function_step import FunctionStep as FunctionStep
    from quietsum.selfcheck.protocol import (
        Batch as Batch,
        Floats as Floats,
        Law as Law,
        OnAGrid as OnAGrid,
        StepUnderTest as StepUnderTest,
        TrainerOutput as TrainerOutput,
        Twin as Twin,
    )
    from quietsum.selfcheck.report import (
        CheckFinding as CheckFinding,
        CheckReport as CheckReport,
        CheckVerdict as CheckVerdict,
    )
    from quietsum.selfcheck.statistics import (
        binomial_p as binomial_p,
        kolmogorov_p as kolmogorov_p,
        normal_p as normal_p,
        spread_p as spread_p,
    )
    from quietsum.selfcheck.suite import TESTS as TESTS, one_step as one_step, run_selfcheck as run_selfcheck
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
