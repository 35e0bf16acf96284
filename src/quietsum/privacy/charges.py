"""A line in the books of :class:`quietsum.privacy.PrivacyAccountant`: a charge to one party, or to all clients."""

from __future__ import annotations

import dataclasses
from typing import final

from quietsum.errors import InvalidParameter
from quietsum.privacy.events import Gaussian, PoissonSampled, PrivacyEvent
from quietsum.validate import positive, probability, whole_number

__all__ = ["RoundCharge", "charge_of", "gaussian_step"]

_NOISE = "without noise nothing is private; leave the charge out"


def gaussian_step(noise_multiplier: float, sample_rate: float) -> PrivacyEvent:
    """One Poisson-sampled step of Gaussian noise."""
    return PoissonSampled(rate=sample_rate, event=Gaussian(noise_multiplier=noise_multiplier))


@final
@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RoundCharge:
    """One line of a history: ``steps`` Poisson-sampled Gaussian steps at one party (or, with None, at all)."""

    round_num: int
    noise_multiplier: float
    sample_rate: float
    steps: int
    party: str | None = None

    def __post_init__(self) -> None:
        values = {  # plain Python numbers, so that a numpy scalar survives the way through JSON
            "round_num": int(whole_number("round_num", self.round_num)),
            "noise_multiplier": positive("noise_multiplier", self.noise_multiplier, _NOISE),
            "sample_rate": probability("sample_rate", self.sample_rate),
            "steps": int(whole_number("steps", self.steps)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.party is not None and not (isinstance(self.party, str) and self.party):
            raise InvalidParameter("party", self.party, "is no name", "pass a non-empty string, or leave it out")

    @property
    def event(self) -> PrivacyEvent:
        """One step of this charge."""
        return gaussian_step(self.noise_multiplier, self.sample_rate)


def charge_of(
    level: str, round_num: int, noise: float | None, rate: float | None, steps: int | None, party: str | None
) -> RoundCharge | None:
    """The charge of one level (``sample`` or ``user``), None where nothing of it was given; errors name the level."""
    given = {f"noise_multiplier_{level}": noise, f"sample_rate_{level}": rate, f"steps_{level}": steps}
    if noise is None and rate is None and steps is None:
        return None
    for name, value in given.items():
        if value is None:
            raise InvalidParameter(name, None, "is missing", f"a {level}-level charge needs {', '.join(given)}")
    try:
        return RoundCharge(round_num=round_num, noise_multiplier=noise, sample_rate=rate, steps=steps, party=party)  # type: ignore[arg-type]
    except InvalidParameter as error:
        if error.parameter in ("noise_multiplier", "sample_rate", "steps"):
            raise InvalidParameter(f"{error.parameter}_{level}", error.value, error.problem, error.remedy) from None
        raise
