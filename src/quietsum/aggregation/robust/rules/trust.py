"""Trust from trials, for four to ten sites: each update is tried on a small root set, and remembered over rounds.

With few sites there are too few signs and distances to compare, and if attackers are the majority, the updates that are
nearest to the others are theirs. A root set that the server holds, public or made up, depends on no site. Bant (arXiv
2505.07614) and server learning (2604.03226) go that way; only their abstracts were at hand, so this is a design of our
own. Per round, with g₀ the root set's own update, L the mean loss on the root set and ℓ = max(|g₀|, the (n − f)-th
shortest length):

* **Trial.** Each update is tried in both directions at the same length: gainᵢ(s) = (L(w − s·uᵢ) − L(w + s·uᵢ)) / 2 with
  uᵢ of length 1. The difference cancels what every step of that length does, curvature above all: an honest update
  under record noise would raise the loss of most models when it is taken whole, and does not here. It is tried near,
  at s = ℓ, and far, at s = 12 ℓ: an attack that hides in the spread of honest updates (LIE) gains near the model like
  an honest one, and drifts; where its drift leads to shows from afar.
* **Spread.** The same trial of some random directions says what an update that knows nothing gains by chance. An honest
  update under heavy noise gains that much by chance, too, so a single round proves little.
* **Memory.** merit = gain / max(gain of g₀, spread), the smaller of near and far, cut to [−1, 1], is averaged over
  rounds with a factor of ``keeps``; the spread is averaged in the same way, which gives a standard error. Trust is the
  average plus one standard error, so a site is left out once it harms *consistently*, and noise averages out.
* **Veto.** An update that gains less than −3 spreads is left out of this round in spite of earlier merit, so trust
  cannot be saved up and spent.
* **Step.** The mean of updates weighed by trust², none longer than ℓ: with at most f attackers that is never more than
  the longest honest update or |g₀|, also where they are the majority. Where they are not, no trust counts for more than
  the (n − f)-th least. If no site is trusted, the step is g₀, never the mean.

What it cannot see is what does not hurt the loss on the root set: a backdoor, a free rider (who is left in, with
a small weight where it sends noise), a class that is missing from the root set, a wrong that the root set shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np

from quietsum.aggregation.fold import length_of
from quietsum.aggregation.robust.judge import judge_rows, require_finite
from quietsum.aggregation.robust.rows.blocks import lengths, mixture, unit_rows
from quietsum.aggregation.robust.rule import Facts, Matrix, Sent, Trial, Vector, Verdict
from quietsum.aggregation.robust.rules.fltrust import trial_of
from quietsum.errors import InvalidParameter
from quietsum.validate import probability, whole_number

__all__ = ["TrustedByTrial"]

VETO = 3.0
"""Spreads below zero at which one round alone is enough."""
_SLOTS = ("merit", "evidence", "chance")
_LARGEST = 1e6
_REASONS = (
    "over rounds its updates raise the loss on the root set",
    "in this round it plainly raises the loss on the root set",
)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TrustedByTrial:
    """Updates weighed by what they gain on the root set, this round and before.

    ``keeps`` is the share of the memory that a round keeps, ``directions`` how many random ones give the spread, and
    ``reaches`` how far updates are tried, in lengths of an update.
    """

    keeps: float = 0.9
    directions: int = 16
    reaches: tuple[float, ...] = (1.0, 12.0)
    name = "trust"
    facts = Facts(
        title="trust from trials on a root set",
        source="own design; the idea of trials is that of arXiv 2505.07614 and 2604.03226",
        breakdown="none proved; made for a majority of attackers as long as one site is honest. No update counts for "
        "more than the longest honest one or the root's own, and where no site is trusted the root set decides alone",
        least=lambda attackers: attackers + 1,
        needs_trial=True,
        remembers=True,
        limits="what does not hurt the loss on the root set is not noticed: a backdoor, a free rider, a class that is "
        "missing from the root set",
    )

    def __post_init__(self) -> None:
        if probability("keeps", self.keeps, "the share of the memory that a round keeps") == 1:
            raise InvalidParameter("keeps", self.keeps, "never learns anything new", "stay below 1, 0.9 for instance")
        whole_number("directions", self.directions, 2)
        if not self.reaches or not all(0 < reach < np.inf for reach in self.reaches):
            raise InvalidParameter("reaches", self.reaches, "are no lengths", "pass numbers above 0, (1.0, 12.0) say")

    def memory(self, registered: int, dimension: int) -> Mapping[str, Vector]:
        """For each party its merit so far, how much evidence that is, and the variance of chance in it."""
        return {slot: np.zeros(registered) for slot in _SLOTS}

    def combine(self, sent: Sent) -> Verdict:
        """The step, and each row's merit in this round, its average, and its trust."""
        return judge_rows(self, sent, require_finite(self._combine))

    def _combine(self, sent: Sent) -> Verdict:
        trial = trial_of(sent, self.name)
        root = np.asarray(trial.update(), dtype=np.float64)
        size, honest = lengths(sent.updates), max(len(sent) - sent.attackers, 1)
        limit = max(length_of(root), float(np.sort(size)[honest - 1]))

        memory = {slot: np.array(sent.memory.get(slot, np.zeros(sent.registered))) for slot in _SLOTS}
        merit, chance, new, here = np.zeros(len(sent)), 1.0, 1 - self.keeps, sent.places
        if length_of(root) > 0:  # else the root set wants no step at all, and this round tells nothing
            merit, chance = self._try_rows(trial, sent, root, limit)
            memory["merit"][here] = self.keeps * memory["merit"][here] + new * np.clip(merit, -1.0, 1.0)
            memory["evidence"][here] = self.keeps * memory["evidence"][here] + new
            memory["chance"][here] = self.keeps**2 * memory["chance"][here] + (new * min(chance, 1.0)) ** 2
        evidence = np.where(memory["evidence"][here] > 0, memory["evidence"][here], 1.0)
        average, doubt = memory["merit"][here] / evidence, np.sqrt(memory["chance"][here]) / evidence
        vetoed = merit < -VETO * chance
        trust = np.where(vetoed, 0.0, np.maximum(average + doubt, 0.0))

        kept, shares, step = trust > 0, np.zeros(len(sent)), root
        if kept.any():
            if 2 * honest > len(sent):  # no attacker above the best honest row, as far as a majority can tell
                ranked = np.sort(trust[kept])
                trust = np.minimum(trust, ranked[min(honest, len(ranked)) - 1])
            shares = trust**2 / (trust**2).sum()
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                cut = np.where(size > limit, limit / size, 1.0)
            step = mixture(sent.updates, shares * cut)
        return Verdict(
            step=step, kept=kept, weights=shares, memory=memory,
            statistics={"merit": merit, "average_merit": average, "trust": trust},
            reasons={int(row): _REASONS[int(vetoed[row])] for row in np.flatnonzero(~kept)},
        )  # fmt: skip

    def _try_rows(self, trial: Trial, sent: Sent, root: Vector, length: float) -> tuple[Vector, float]:
        """The merit of each row, the smallest of all reaches, and what chance has at most."""
        count = len(sent)
        chance = unit_rows(sent.rng.normals((self.directions, sent.updates.shape[1])))
        steps = np.concatenate([unit_rows(sent.updates), unit_rows(root[None, :]), chance]) * min(length, 1e100)
        merits, spreads = [], []
        for reach in self.reaches:
            gains = _gains(trial, steps * reach)
            spread = float(np.sqrt(np.mean(gains[count + 1 :] ** 2)))
            whole = max(float(gains[count]), spread) or 1.0  # nothing moves the loss: no update has merit
            with np.errstate(over="ignore"):
                merits.append(np.clip(gains[:count] / whole, -_LARGEST, _LARGEST))
            spreads.append(spread / whole)
        return np.min(merits, axis=0), max(spreads)


def _gains(trial: Trial, steps: Matrix) -> Vector:
    """Half of what the loss is lower with each step than against it; a step with which it is no number gains least."""
    found = np.asarray(trial.losses(np.concatenate([steps, -steps])), dtype=np.float64)
    largest = 1e100
    there, back = np.split(np.clip(np.nan_to_num(found, nan=largest), -largest, largest), 2)
    return np.asarray((back - there) / 2)
