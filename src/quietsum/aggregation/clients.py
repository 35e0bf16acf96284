"""The clipped and noised sum of client updates: what a promise to whole clients rests on.

Every update is clipped to C, all count the same, and noise of σ·C is added to the *sum*, however many replied: also if
half of the cohort dropped out, and also if no client replied (a step of noise alone). The divisor is the expected
cohort, a public number. So one client, with any data and any amount of it, moves the step by at most
C / denominator, and neither the noise nor the divisor tells who took part (McMahan, Ramage, Talwar, Zhang 2018,
Algorithm 1, "fixed-denominator estimator" f̃_f).

>>> import numpy as np
>>> from quietsum.mechanisms.gaussian import ClippedSum
>>> from quietsum.mechanisms.rng import system_randomness
>>> fold = ClientSum(mechanism=ClippedSum(max_norm=1.0, noise_multiplier=1.1), denominator=100.0, dimension=2)
>>> state, broken = fold.add_many(fold.start(), ("a", "b"), np.array([[3.0, 4.0], [np.nan, 0.0]]))
>>> broken, (state.total * fold.mechanism.grid_unit).round(3)
({'b': 'holds a value that is not finite'}, array([0.6, 0.8]))
>>> fold.finish(fold.start(), system_randomness()).kept  # no reply: noise alone
()
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

from quietsum.aggregation.fold import Combined, Vector, problem_with_update, refuse_twice, usable_rows
from quietsum.errors import InvalidParameter
from quietsum.mechanisms import ClippedSum, Mode, QuantileRule, RandomSource, Vectors, within
from quietsum.validate import positive, whole_number

__all__ = ["ClientState", "ClientSum"]

_ROOM = 1 + 1e-9  # for rounding in the norm of a sum
_CHUNK = 1 << 17  # numbers of updates that are clipped at a time, so that they stay in the processor's cache


@final
@dataclasses.dataclass(kw_only=True)
class ClientState:
    """The sum of clipped updates (integers of the grid in secure mode), twice Σ (b_i − ½), and the parties in it."""

    total: Vectors
    doubled: int
    kept: dict[str, None]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSum:
    """(Σ clip(update, C) + noise) / denominator, with the noise of ``mechanism`` once, on the sum.

    Guarantees: one client moves the released sum by at most ``mechanism.max_norm``, in secure mode verified in
    integers, and the result has the same bits for every order and every partition of the updates. The
    noise depends on the mechanism alone, never on the number of replies. With ``adaptive`` the number of norms within C
    is a further coordinate with noise of its own (:mod:`quietsum.mechanisms.quantile`); ``mechanism`` then carries
    σ_Δ and both together cost ``adaptive.joint_noise(σ_Δ)``.
    """

    mechanism: ClippedSum
    denominator: float
    dimension: int
    adaptive: QuantileRule | None = None
    needs_individuals = False
    needs_updates = False

    def __post_init__(self) -> None:
        whole_number("dimension", self.dimension, 1)
        positive("denominator", self.denominator, "the expected cohort: the rate times the registered parties")

    def start(self) -> ClientState:
        """Nothing folded yet."""
        secure = self.mechanism.mode is Mode.SECURE
        zeros: Vectors = np.zeros(self.dimension, dtype=np.int64) if secure else np.zeros(self.dimension)
        return ClientState(total=zeros, doubled=0, kept={})

    def problem_with(self, update: object, party: str = "") -> str:
        """Why ``update`` cannot be used, or an empty text. A long one can: it is clipped."""
        return problem_with_update(update, self.dimension)

    def add(self, state: ClientState, party: str, update: Vector) -> ClientState:
        """``state`` with one more clipped update; a misshapen or non-finite one raises and changes nothing."""
        if problem := self.problem_with(update):
            raise InvalidParameter("update", f"of {party}", problem)
        return self.add_many(state, (party,), update[None, :])[0]

    def add_many(
        self, state: ClientState, parties: Sequence[str], updates: Vector
    ) -> tuple[ClientState, dict[str, str]]:
        """``state`` with the finite rows of ``updates``, each clipped, and by party what is wrong with the others."""
        usable, broken = usable_rows(parties, updates, self.dimension, state.kept)
        rows = updates[usable] if broken else updates
        total, doubled, few = self.start().total, 0, max(1, _CHUNK // self.dimension)
        for some in (rows[first : first + few] for first in range(0, len(rows), few)):
            total += self.mechanism.sum(self.mechanism.bound(some))
            if self.adaptive is not None:
                doubled += 2 * within(some, self.mechanism.max_norm) - len(some)
        return self._join(state, total, doubled, dict.fromkeys(parties[index] for index in usable)), broken

    def merge(self, one: ClientState, other: ClientState) -> ClientState:
        """Both together; a sum that so many clipped updates cannot have is refused."""
        refuse_twice(other.kept, one.kept)
        if problem := self._problem_with_sum(other):
            raise InvalidParameter("sum", f"of {len(other.kept)} parties", problem, "leave these parties out")
        return self._join(one, other.total, other.doubled, other.kept)

    def finish(self, state: ClientState, rng: RandomSource) -> Combined:
        """The noisy sum over the public denominator, and the next bound where it adapts."""
        if problem := self._problem_with_sum(state):
            raise InvalidParameter("sum", f"of {len(state.kept)} parties", problem, "pass what add() returned")
        step = self.mechanism.release(state.total, rng) / self.denominator
        clip = None
        if self.adaptive is not None:
            clip = self.adaptive.next_bound(
                self.mechanism.max_norm, doubled=state.doubled, expected=self.denominator, rng=rng
            )
        return Combined(step=step, kept=tuple(state.kept), clip=clip)

    def _join(self, state: ClientState, total: Vectors, doubled: int, kept: dict[str, None]) -> ClientState:
        state.total += total  # within 2^62 by the check of every sum, and of the whole in release()
        state.doubled += doubled
        state.kept.update(kept)
        return state

    def _problem_with_sum(self, state: ClientState) -> str:
        """Why this cannot be a sum of as many clipped updates as it says, or an empty text."""
        total, count, mechanism = state.total, len(state.kept), self.mechanism
        wanted = np.dtype(np.int64 if mechanism.mode is Mode.SECURE else np.float64)
        if not isinstance(total, np.ndarray) or total.dtype != wanted or total.shape != (self.dimension,):
            return f"is no {wanted} vector of {self.dimension}"
        bound = float(mechanism.grid_norm) if wanted == np.int64 else mechanism.max_norm
        length = float(np.linalg.norm(total.astype(np.float64)))
        if not length <= bound * count * _ROOM:  # the triangle inequality; NaN compares as False
            return "is longer than so many clipped updates can be"
        if not isinstance(state.doubled, int) or abs(state.doubled) > (count if self.adaptive is not None else 0):
            return "counts more norms than there are"
        return ""
