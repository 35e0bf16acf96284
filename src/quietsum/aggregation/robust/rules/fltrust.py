"""FLTrust: updates are trusted as far as they point where the server's own does (Cao, Fang, Liu, Gong 2021).

The server trains on a small root set by itself. With g₀ its update, each gᵢ has the trust TSᵢ = max(0, cos(gᵢ, g₀)), is
brought to the length of g₀, and the step is Σ TSᵢ·gᵢ·|g₀|/|gᵢ| / Σ TSᵢ. If no site is trusted, there is no step: the
model stays as it is.

Record noise hides the cosine: in d coordinates a noisy update is nearly at right angles to everything, and what is left
of it is brought to the length of an update without noise, so training becomes slow. :mod:`~quietsum.
aggregation.robust.rules.trust` is made for that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.fold import length_of
from quietsum.aggregation.robust.judge import judge_rows, require_finite
from quietsum.aggregation.robust.rows.blocks import mixture, unit_rows
from quietsum.aggregation.robust.rule import Facts, Sent, Trial, Vector, Verdict
from quietsum.errors import InvalidParameter

__all__ = ["FLTrust", "trial_of"]


def trial_of(sent: Sent, rule: str) -> Trial:
    """The server's root set, without which such a rule has nothing to go by."""
    if sent.trial is None:
        raise InvalidParameter(
            "rule", rule, "tries updates on a root set, and the server has none",
            "give the task one, [task] options = { root = 100 }, or choose another rule",
        )  # fmt: skip
    return sent.trial


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FLTrust:
    """The mean of updates at the root update's length, weighed by their cosine with it."""

    name = "fltrust"
    facts = Facts(
        title="FLTrust",
        source="Cao, Fang, Liu, Gong 2021",
        breakdown="any number of attackers moves the step by at most the length of the root update, and never against "
        "it; how good the step is rests on the root set",
        least=lambda attackers: attackers + 1,
        needs_trial=True,
        limits="record noise hides the cosine; what the root set does not show (a backdoor, a class that is not in "
        "it) is not noticed",
    )

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """Nothing is remembered."""
        return {}

    def combine(self, sent: Sent) -> Verdict:
        """The step, and the cosine of each row with the root update."""
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        root = np.asarray(trial_of(sent, self.name).update(), dtype=np.float64)
        units, length = unit_rows(sent.updates), length_of(root)
        cosine = units @ unit_rows(root[None, :])[0]
        trust = np.maximum(cosine, 0.0)
        kept = trust > 0
        if not kept.any():
            shares, step = np.zeros(len(sent)), np.zeros(sent.updates.shape[1])
        else:
            shares = trust / trust.sum()
            step = mixture(units, shares) * length
        return Verdict(
            step=step, kept=kept, weights=shares, statistics={"root_cosine": cosine},
            reasons={int(row): "it points away from the root update" for row in np.flatnonzero(~kept)},
        )  # fmt: skip
