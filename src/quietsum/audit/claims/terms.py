"""What a claim says of one step: noise, clip, rate and how many records there are, to hold a trainer against it."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from quietsum.audit.claims.registry import reader_of
from quietsum.audit.claims.values import ClaimFile
from quietsum.errors import InvalidParameter
from quietsum.plan import value_of

__all__ = ["StepTerms", "step_terms"]

_NOISE = ("noise_multiplier",)
_NORM = ("max_grad_norm", "clip_norm", "l2_norm_clip")
_RATE = ("sample_rate", "sampling_probability")
_RECORDS = ("records", "dataset_size", "number_of_examples", "n_samples")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTerms:
    """The noise multiplier, the clip norm, the chance that a record is drawn and the number of records of one step."""

    noise_multiplier: float
    max_norm: float
    rate: float
    population: int


def step_terms(file: ClaimFile) -> StepTerms:
    """What the settings of ``file`` say of a step; raises InvalidParameter if they do not say it.

    A clip norm that is not stated is 1, as ε does not hang on it; records that are not stated are 1000 made-up ones.
    """
    settings = value_of(reader_of(file.system).settings, file.settings, where="settings", remedy="state the settings")
    noise = _first(settings, _NOISE)
    if not noise:
        raise InvalidParameter(
            "noise_multiplier",
            noise,
            f"is missing in these settings of {file.system}",
            "a step is held against its noise",
        )
    records, batch = _first(settings, _RECORDS), getattr(settings, "batch_size", None)
    rate = _first(settings, _RATE) or (batch / records if batch and records else None)
    if rate is None:
        raise InvalidParameter(
            "sample_rate", None, "is missing", "state it, or the batch size and the number of records"
        )
    return StepTerms(
        noise_multiplier=float(noise),
        max_norm=float(_first(settings, _NORM) or 1.0),
        rate=float(rate),
        population=int(records or 1000),
    )


def _first(settings: Any, names: tuple[str, ...]) -> Any:
    """The first of some keys that the settings have."""
    return next((value for name in names if (value := getattr(settings, name, None)) is not None), None)
