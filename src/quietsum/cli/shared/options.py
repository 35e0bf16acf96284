"""The options that several commands share, in the words people know."""

from __future__ import annotations

import enum
import os
from typing import Annotated

import typer

from quietsum.errors import InvalidParameter
from quietsum.privacy import Neighbours

__all__ = [
    "DeltaOption",
    "GroupOption",
    "JsonOption",
    "KeepOption",
    "Mechanism",
    "MechanismOption",
    "NeighboursOption",
    "NoiseOption",
    "RateOption",
    "SameRowsOption",
    "Sampling",
    "SamplingOption",
    "StepEpsilonOption",
    "StepsOption",
    "VerboseOption",
    "WorkspaceOption",
    "complete_run",
    "complete_task",
]


class Sampling(enum.StrEnum):
    """How the records of one step are chosen."""

    POISSON = "poisson"
    """Each record by its own coin."""
    FIXED = "fixed"
    """A random batch of fixed size."""
    SHUFFLED = "shuffled"
    """Shuffled once an epoch and cut into batches: what an ordinary data loader does."""
    NONE = "none"
    """Every record in every step."""


class Mechanism(enum.StrEnum):
    """What adds the noise."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    DISCRETE_LAPLACE = "discrete-laplace"
    DISCRETE_GAUSSIAN = "discrete-gaussian"
    SKELLAM = "skellam"
    RANDOMIZED_RESPONSE = "randomized-response"
    PURE = "pure"


NoiseOption = Annotated[
    float | None,
    typer.Option("--noise-multiplier", "-s", metavar="σ", help="Noise divided by the clip norm.", show_default=False),
]
SameRowsOption = Annotated[
    str,
    typer.Option(
        "--same-rows", metavar="REASON", show_default=False,
        help="Why these rows, known here under another name, get a budget of their own.",
    ),
]  # fmt: skip
RateOption = Annotated[
    float | None,
    typer.Option(
        "--sample-rate",
        "-q",
        metavar="q",
        help="Chance that a record is in a step: batch size / n.",
        show_default=False,
    ),
]
StepsOption = Annotated[
    int | None, typer.Option("--steps", "-T", metavar="T", help="Noisy steps in the whole run.", show_default=False)
]
DeltaOption = Annotated[
    float, typer.Option("--delta", "-d", metavar="δ", help="At most 1 / (10 n) for n records.", show_default=False)
]
SamplingOption = Annotated[
    Sampling | None,
    typer.Option(
        "--sampling", metavar="HOW", help="poisson, fixed, shuffled or none (all records). \\[default: poisson]"
    ),
]
MechanismOption = Annotated[
    Mechanism,
    typer.Option(
        "--mechanism", metavar="NAME",
        help="gaussian, laplace, discrete-laplace, discrete-gaussian, skellam, randomized-response or pure.",
    ),
]  # fmt: skip
NeighboursOption = Annotated[
    Neighbours | None,
    typer.Option(
        "--neighbours", metavar="RELATION",
        help="add-or-remove-one, zero-out or replace-one. \\[default: what the sampling implies]",
    ),
]  # fmt: skip
GroupOption = Annotated[int, typer.Option("--group", "-k", metavar="K", help="Protect a person with up to K records.")]
KeepOption = Annotated[
    float | None,
    typer.Option(
        "--keep-probability", metavar="p", help="Chance of a true answer, for randomized-response.", show_default=False
    ),
]
StepEpsilonOption = Annotated[
    float | None,
    typer.Option("--step-epsilon", "--epsilon", metavar="ε", help="ε of one step, for pure.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def complete_run(incomplete: str) -> list[str]:
    """Names of runs that a shell may complete, and ``latest``: folders are listed, and none is opened."""
    runs = os.path.join(os.environ.get("QUIETSUM_WORKSPACE") or "quietsum-workspace", "runs")
    try:
        names = sorted(os.listdir(runs))
    except OSError:
        names = []
    return [name for name in ["latest", *names] if name.startswith(incomplete)]


def complete_task(incomplete: str) -> list[str]:
    """Names of tasks that a shell may complete."""
    from quietsum.tasks import TASKS, TRAINABLE

    return [name for name in (*TASKS, *TRAINABLE) if name.startswith(incomplete)]


def _check_workspace(path: str | None) -> str | None:
    """Raise InvalidParameter where the workspace is a file; that it is not there yet is fine."""
    place = path or os.environ.get("QUIETSUM_WORKSPACE")
    if place and os.path.exists(place) and not os.path.isdir(place):
        raise InvalidParameter("workspace", place, "is a file", "name a folder; one is made where there is none")
    return path


WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "--workspace", metavar="DIR", callback=_check_workspace,
        help="Ledger and runs. \\[default: $QUIETSUM_WORKSPACE or quietsum-workspace]", show_default=False,
    ),
]  # fmt: skip
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, metavar="", help="Log what happens; -vv logs more.", show_default=False
    ),
]
