"""What a plan will cost, round by round, before anything is spent.

A party's round is the same event every time, so its cost depends on two public numbers only: the rate at which its
records are drawn and its steps a round (a :class:`Profile`). For records the guarantee of a run is the *worst* party's,
and which party that is may change with the rounds; so every profile that is not plainly cheaper than another is
composed, and the largest ε is taken in each row.

Prices are the ledger's own (:mod:`quietsum.ledger.pricing`), the noise's distance from its ideal law included, so what
is forecast here is what the book will say.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, final

from quietsum.charts import html_table
from quietsum.errors import PlanRefused, QuietsumError, UnsupportedEvent
from quietsum.privacy import (
    Budget,
    Gaussian,
    Guarantee,
    Neighbours,
    PrivacyEvent,
    Repeated,
    accountant_for,
    calibrate_noise,
)

if TYPE_CHECKING:
    from quietsum.ledger import Charge
    from quietsum.sampling import Sampling

__all__ = ["ClientSignal", "Forecast", "ForecastRow", "Profile", "Signal", "price", "smallest_noise", "worst"]

_ROOM = 1e-7  # of ε, for what the noise's distance from its ideal law takes off δ


@final
@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Profile:
    """How a party's records are drawn: each with probability ``rate``, ``steps`` times a round."""

    rate: float
    steps: int

    def sampling(self) -> Sampling:
        """The sampler that draws such batches and states what the draw is worth."""
        from quietsum.sampling import Everyone, Poisson

        return Everyone() if self.rate == 1 else Poisson(rate=self.rate)

    def event(self, noise_multiplier: float, rounds: int = 1) -> PrivacyEvent:
        """What ``rounds`` rounds do to a record. Drawing parties by chance changes nothing here."""
        step = self.sampling().amplify(Gaussian(noise_multiplier=noise_multiplier))
        return Repeated(times=self.steps * rounds, event=step)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ForecastRow:
    """What has been spent after ``round`` rounds: one guarantee for each unit and observer, the worst account's."""

    round: int
    party: str
    guarantees: tuple[Guarantee, ...]

    @property
    def epsilon(self) -> float:
        """The largest ε of the first unit; units are never mixed."""
        first = self.guarantees[0].unit
        return max(guarantee.epsilon for guarantee in self.guarantees if guarantee.unit is first)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Rows for rounds without losses, and the ``whole`` plan with its spare attempts. Empty where nothing is promised.

    Guarantees: holds if the schedule runs as planned.
    """

    rows: tuple[ForecastRow, ...] = ()
    whole: tuple[Guarantee, ...] = ()

    def _repr_html_(self) -> str:
        head = ("after round", *(f"ε per {one.whom}, {one.observer}" for one in self.whole))
        every = max(1, -(-len(self.rows) // 12))
        shown = [row for place, row in enumerate(self.rows, 1) if place % every == 0 or row is self.rows[-1]]
        lines = [(f"{row.round}", *(f"{one.epsilon:.4g}" for one in row.guarantees)) for row in shown]
        return html_table(head, [*lines, ("whole plan", *(f"{one.epsilon:.4g}" for one in self.whole))])


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Signal:
    """Noise against signal in one step of one party, in units of the clip C.

    The clipped gradients of a batch add up to at most (expected batch)·C, so the mean gradient is at most C long.
    ``coordinate`` is the standard deviation of its noise in one coordinate, ``length`` the root mean square length of
    the whole noise vector, σ √d / (rate · size). At a length of 1 the noise is as long as the longest mean gradient.
    """

    party: str
    coordinate: float
    length: float


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSignal:
    """Noise against signal on the mean of clients' updates, in units of the clip C.

    No update is longer than C, so the mean of the ``expected`` cohort is at most C long. ``length`` is the root mean
    square length of its noise; ``needed`` is how many registered parties would bring that to 1, with everything else
    as it is.
    """

    parties: int
    expected: float
    length: float
    needed: int


# ------------------------------------------------------------------------------------------------- costs


def price(
    charge: Charge, *, delta: float, accounting: str, neighbours: Neighbours, pricing: int | None = None
) -> Guarantee:
    """What ``charge`` costs at ``delta``, by the ledger's own prices: forecast and book agree to the last bit.

    ``pricing`` is an older version of the prices, for what a run of then stated.
    """
    from quietsum.ledger import PRICING, price_charge

    version = PRICING if pricing is None else pricing
    try:
        return price_charge(charge, delta=delta, accounting=accounting, neighbours=neighbours, version=version)
    except UnsupportedEvent as error:
        raise PlanRefused(f"privacy.accounting = '{accounting}' cannot account for this plan: {error}") from None


def worst(profiles: Iterable[Profile]) -> tuple[Profile, ...]:
    """The profiles that are not dominated: no other draws at least as often, at least as many times.

    >>> worst([Profile(rate=0.5, steps=1), Profile(rate=0.5, steps=2), Profile(rate=0.9, steps=1)])
    (Profile(rate=0.5, steps=2), Profile(rate=0.9, steps=1))
    """
    kept: list[Profile] = []
    for profile in sorted(set(profiles), reverse=True):
        if not kept or profile.steps > kept[-1].steps:
            kept.append(profile)
    return tuple(reversed(kept))


def smallest_noise(
    profiles: Sequence[Profile], rounds: int, budget: Budget, *, accounting: str, neighbours: Neighbours
) -> float:
    """The smallest noise multiplier with which every profile's ``rounds`` rounds stay within ``budget``."""
    target = budget.epsilon * (1 - _ROOM)
    found = 0.0
    for profile in sorted(worst(profiles), key=lambda p: p.rate * math.sqrt(p.steps), reverse=True):
        if found and _fits(profile, found, rounds, target, budget.delta, accounting, neighbours):
            continue
        with_steps = profile.steps * rounds
        try:
            found = max(
                found,
                calibrate_noise(
                    target_epsilon=target, target_delta=budget.delta, sample_rate=profile.rate, steps=with_steps,
                    accounting=accounting, neighbours=neighbours,
                ),
            )  # fmt: skip
        except UnsupportedEvent as error:
            raise PlanRefused(f"privacy.accounting = '{accounting}' cannot account for this plan: {error}") from None
        except QuietsumError as error:
            raise PlanRefused(f"no noise fits the promise per {budget.unit}: {error}") from None
    return found


def _fits(
    profile: Profile, noise: float, rounds: int, target: float, delta: float, accounting: str, neighbours: Neighbours
) -> bool:
    accountant = accountant_for(accounting, neighbours=neighbours)
    return accountant.compose(profile.event(noise, rounds)).epsilon(delta=delta).epsilon <= target
