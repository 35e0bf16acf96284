"""What an attack came to: successes in trials, beside what guessing reaches, and what would have been noticed at all.

An attack succeeds if its share is above chance by Clopper and Pearson's exact interval. If it is not, that says little
until one knows what would have been seen: so each outcome states the smallest chance of success that it would have
found in nine runs of ten, and where that lies above half the way from guessing to certainty, it is inconclusive. An
attack that fails is no proof; a better one may come.

Chances may differ from trial to trial, as with one name of three here and one of five there; ``chance`` is then their
mean. The sum of such trials has no heavier tails than a binomial law of that mean (Hoeffding 1956), so the interval
still holds.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from scipy import special

from quietsum.audit.shares import bound_share
from quietsum.errors import InvalidParameter
from quietsum.files import PRIVATE, write_atomically
from quietsum.validate import open_probability, whole_number

__all__ = ["AttackOutcome", "Success", "find_least_count", "find_least_success", "write_outcomes"]

CONFIDENCE = 0.95
POWER = 0.9
FORMAT = "quietsum-attacks-1"
STAYS = (
    "Measured on records that a model was trained on, at no charge: it stays with their holder. What is passed on has "
    "to be charged first."
)


class Success(enum.StrEnum):
    """What an attack came to."""

    SUCCEEDS = "succeeds"
    NOT_SEEN = "not seen"
    INCONCLUSIVE = "inconclusive"


def find_least_count(trials: int, chance: float, *, level: float) -> int:
    """The smallest number of successes that guessing reaches at most with probability ``level``; trials + 1 if none."""
    low, high = 0, trials + 1
    while low < high:
        middle = (low + high) // 2
        tail = float(special.bdtrc(middle - 1, trials, chance)) if middle else 1.0
        low, high = (low, middle) if tail <= level else (middle + 1, high)
    return low


def find_least_success(count: int, trials: int, *, power: float = POWER) -> float | None:
    """The smallest chance of success that reaches ``count`` of ``trials`` with probability ``power``, or None.

    >>> round(find_least_success(60, 100), 3)
    0.656
    """
    if count > trials:
        return None
    return float(special.betaincinv(count, trials - count + 1, power)) if count else 0.0


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackOutcome:
    """An attack and how often it succeeded. ``on`` says against what, ``chance`` what guessing reaches.

    >>> outcome = AttackOutcome(attack="guess", on="100 coins", successes=70, trials=100, chance=0.5)
    >>> outcome.conclusion.value, [round(end, 3) for end in outcome.interval], round(outcome.smallest, 3)
    ('succeeds', [0.6, 0.788], 0.666)
    """

    attack: str
    on: str
    successes: int
    trials: int
    chance: float
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        whole_number("trials", self.trials, 1, "an attack needs a trial")
        if whole_number("successes", self.successes) > self.trials:
            raise InvalidParameter("successes", self.successes, f"is more than the {self.trials} trials")
        open_probability("chance", self.chance, "state what guessing reaches, such as one in ten classes")
        open_probability("confidence", self.confidence, "0.95 is usual")

    @property
    def share(self) -> float:
        """How often it succeeded."""
        return self.successes / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The exact interval of that chance."""
        return bound_share(self.successes, self.trials, confidence=self.confidence)

    @property
    def smallest(self) -> float | None:
        """The smallest chance of success that would have been found in nine runs of ten; None if none would."""
        count = find_least_count(self.trials, self.chance, level=(1 - self.confidence) / 2)
        return find_least_success(count, self.trials)

    @property
    def conclusion(self) -> Success:
        """Succeeds, not seen, or inconclusive."""
        if self.interval[0] > self.chance:
            return Success.SUCCEEDS
        enough = self.smallest is not None and self.smallest <= (1 + self.chance) / 2
        return Success.NOT_SEEN if enough else Success.INCONCLUSIVE

    @property
    def sentence(self) -> str:
        """The outcome in plain words."""
        low, high = self.interval
        what = (
            f"{self.attack} on {self.on}: {self.successes} of {self.trials} ({self.share:.1%}, between {low:.1%} and "
            f"{high:.1%}), where guessing reaches {self.chance:.1%}"
        )
        if self.conclusion is Success.SUCCEEDS:
            return f"{what}: the attack succeeds."
        if self.conclusion is Success.INCONCLUSIVE:
            return f"{what}: inconclusive, too few trials."
        return f"{what}: no success seen; from {self.smallest:.1%} on it would have been, nine times in ten."

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **dataclasses.asdict(self), "share": self.share, "interval": list(self.interval),
            "smallest": self.smallest, "conclusion": self.conclusion.value, "sentence": self.sentence,
        }  # fmt: skip


def write_outcomes(path: Path, values: Mapping[str, Any]) -> None:
    """Write results that were measured on protected records: for their owner alone, and they say so themselves."""
    text = json.dumps(
        {"format": FORMAT, "stays": STAYS, **values}, indent=2, ensure_ascii=False, allow_nan=False
    ).encode()
    write_atomically(path, text + b"\n", mode=PRIVATE)
