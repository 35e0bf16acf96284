"""What an audit concludes: a claim is contradicted, or consistent with what was seen, or too little was seen.

"Consistent" is no proof. It says that each of the faults that are listed with a size would have been found in nine runs
of ten, and that none was. An audit that would have missed noise of half its size, a clip of the whole batch or shuffled
batches more often than that is inconclusive, however well its canaries fit.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.audit.evidence import LEVEL, Evidence, Observed, Part, Power, look_at_parts, observe_parts
from quietsum.audit.one_run import CONFIDENCE, bound_shares, count_shares, score_canaries
from quietsum.errors import InvalidParameter
from quietsum.learning import CanaryRecord
from quietsum.validate import open_probability, positive

__all__ = ["CanaryAudit", "CanaryClaim", "Conclusion", "conclude", "judge_canaries", "judge_parties"]


class Conclusion(enum.StrEnum):
    """What an audit comes to."""

    CONTRADICTED = "contradicted"
    CONSISTENT = "consistent"
    INCONCLUSIVE = "inconclusive"


def conclude(values: Sequence[float], enough: Sequence[bool], *, steps: int) -> Conclusion:
    """What p-values, and whether each kind of fault would have been found, come to."""
    if any(not value >= LEVEL for value in values):
        return Conclusion.CONTRADICTED
    return Conclusion.CONSISTENT if steps > 0 and all(enough) else Conclusion.INCONCLUSIVE


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryClaim:
    """What a run says of each of its steps, and of itself.

    ``noise`` holds the σ of step 0, 1, … in units of the clip bound, or one σ for all; ``rate`` is the chance that a
    batch holds one record. ``epsilon`` is what the run claims at ``delta``, None if it claims none.
    """

    noise: float | tuple[float, ...]
    rate: float
    delta: float
    epsilon: float | None = None

    def __post_init__(self) -> None:
        for value in (self.noise,) if isinstance(self.noise, int | float) else self.noise:
            positive("noise", value, "σ over the clip bound")
        if not 0 < self.rate <= 1:
            raise InvalidParameter("rate", self.rate, "is no chance", "pass batch size over number of records")
        open_probability("delta", self.delta)

    def noise_of(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """σ of these steps."""
        if isinstance(self.noise, int | float):
            return np.full(len(steps), float(self.noise))
        every = np.array(self.noise, dtype=np.float64)
        if len(steps) and int(steps.max()) >= len(every):
            raise InvalidParameter("noise", f"of {len(every)} steps", "does not reach the last recorded step")
        return every[steps]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryAudit:
    """The result of an audit by canaries.

    ``lower_bound`` is an ε that the canaries refute with 95 % confidence at the claim's δ; 0 if they refute none. It
    stands beside the claim and contradicts nothing by itself: one correct run in 20 may get one above its ε. It follows
    from ``guesses``, how many canaries were guessed to be in or out and how many rightly, and ``powers`` follow from
    what was ``observed``; so both can be computed again without the record.
    """

    claim: CanaryClaim
    canaries: int
    included: int
    steps: int
    evidence: tuple[Evidence, ...]
    powers: tuple[Power, ...]
    lower_bound: float
    guesses: tuple[tuple[int, int], ...]
    observed: Observed
    parties: int = 1

    @property
    def conclusion(self) -> Conclusion:
        """Contradicted, consistent or inconclusive."""
        return conclude([one.p for one in self.evidence], [one.enough for one in self.powers], steps=self.steps)

    @property
    def sentence(self) -> str:
        """The conclusion in plain words."""
        what = f"{self.canaries:,} canaries ({self.included:,} of them in) over {self.steps:,} steps"
        if self.parties > 1:
            what += f" at {self.parties:,} parties"
        if self.conclusion is Conclusion.CONTRADICTED:
            first = next(one for one in self.evidence if one.contradicts)
            return f"The audit contradicts the claim: {first.found}; {first.lesson}. Seen by {what}."
        if self.conclusion is Conclusion.CONSISTENT:
            return f"The audit is consistent with the claim: {what} show no fault that it would have found."
        return (
            f"The audit is inconclusive: {what} are too few to find half the noise, a clip of whole batches and "
            "shuffled batches nine times in ten."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "conclusion": self.conclusion.value, "sentence": self.sentence,
            "canaries": self.canaries, "included": self.included, "steps": self.steps,
            "parties": self.parties,
            "claim": {
                "epsilon": self.claim.epsilon, "delta": self.claim.delta, "sample_rate": self.claim.rate,
            },
            "lower_bound": {
                "epsilon": self.lower_bound, "confidence": CONFIDENCE, "guesses": [list(one) for one in self.guesses],
            },
            "observed": self.observed.to_dict(),
            "evidence": [one.to_dict() for one in self.evidence],
            "powers": [one.to_dict() for one in self.powers],
        }  # fmt: skip


def judge_canaries(record: CanaryRecord, claim: CanaryClaim) -> CanaryAudit:
    """Hold what a training recorded of its canaries against what it claims.

    Guarantees: a run whose draws, clip and noise are those of ``claim`` is contradicted with a chance of at most 1e-6.
    """
    return judge_parties([(record, claim)])


def judge_parties(records: Sequence[tuple[CanaryRecord, CanaryClaim]]) -> CanaryAudit:
    """The same for a federation: what each of its parties recorded, with what is claimed of it; all at one δ.

    ``powers`` are of faults that all parties share. The claim in the result is that with the largest ε.
    """
    parts = [Part(record=one, noise=claim.noise_of(one.steps), rate=claim.rate) for one, claim in records]
    scores = [score_canaries(part.record, noise=part.noise, rate=part.rate) for part in parts]
    claims = [claim for _, claim in records]
    if len({claim.delta for claim in claims}) != 1:
        raise InvalidParameter("delta", [claim.delta for claim in claims], "is not one for all parties")
    included = np.concatenate([part.record.included for part in parts])
    guesses, observed = count_shares(np.concatenate(scores), included), observe_parts(parts)
    return CanaryAudit(
        claim=max(claims, key=lambda claim: claim.epsilon or 0.0), canaries=len(included), included=int(included.sum()),
        steps=sum(len(part.record.steps) for part in parts), parties=len(parts),
        evidence=look_at_parts(parts), powers=observed.find_power(), guesses=guesses, observed=observed,
        lower_bound=bound_shares(guesses, canaries=len(included), delta=claims[0].delta),
    )  # fmt: skip
