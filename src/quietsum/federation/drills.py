"""A drill: a federation of this machine in which some parties attack, as ``[attack]`` of the plan says.

:class:`Drill` stands between the parties and the round. It asks the federation inside for single updates, puts what the
attack makes in the place of the attackers' own, and passes all of them on. The round sees what it would see in earnest:
updates, under the limits and the rule of the plan. Every party is charged as if it had followed the plan, and no
row is protected: attackers see honest updates before the server's noise is on their sum, so that one client enters it
several times, and no ε of such a run would be true (:mod:`quietsum.plan.refusals.drills`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from quietsum.aggregation import Combined, Fold, RobustFold, Vector, problem_with_update
from quietsum.defence import Seen, attack_named
from quietsum.errors import PlanRefused
from quietsum.federation.messages import Federation, Reply, TrainRequest, Update
from quietsum.mechanisms import system_randomness

if TYPE_CHECKING:
    from quietsum.ledger import Ledger, Testimony
    from quietsum.mechanisms import RandomSource
    from quietsum.plan import AttackPlan, Plan, ResolvedPlan

__all__ = ["Drill", "refuse_drill"]

log = logging.getLogger(__name__)


@final
class Drill(Federation):
    """The parties of ``inside``, some of which attack.

    Guarantees: what honest parties sent is passed on untouched, and so is what is no update. Who attacks is decided
    by the plan alone. An attack that fails leaves the attackers' own updates, and the round goes on.
    """

    def __init__(self, inside: Federation, resolved: ResolvedPlan, *, rng: RandomSource | None = None) -> None:
        attack = resolved.plan.attack
        if attack is None:
            raise PlanRefused("a drill needs [attack] in the plan")
        if inside.remote:
            refuse_drill(resolved.plan)
        self._inside, self._attack = inside, attack
        self._names = tuple(inside.registered())
        self._attackers = frozenset(attack.among(self._names))
        self._rng = rng or system_randomness()
        self._model: NDArray[np.float64] | None = None

    @property
    def counts_deadline(self) -> bool:
        """As the federation inside does."""
        return self._inside.counts_deadline

    def registered(self) -> Sequence[str]:
        """All parties, attackers too."""
        return self._names

    def check_plan(self, resolved: ResolvedPlan) -> None:
        """As the federation inside does."""
        self._inside.check_plan(resolved)

    def join(self, run: str, resolved: ResolvedPlan, ledger: Ledger) -> None:
        """As the federation inside does."""
        self._inside.join(run, resolved, ledger)

    def ready(self) -> None:
        """As the federation inside does."""
        self._inside.ready()

    def leave(self, outcome: str) -> None:
        """As the federation inside does."""
        self._inside.leave(outcome)

    def testimonies(self) -> Mapping[str, Testimony] | None:
        """The heads of the ledgers of honest parties and attackers."""
        return self._inside.testimonies()

    def close(self) -> None:
        """End the federation inside."""
        self._inside.close()

    def ask(self, request: TrainRequest, cohort: Sequence[str], fold: Fold[Any]) -> Iterator[Reply]:
        """One reply each; those of attackers are what the attack makes."""
        last = None if self._model is None else request.params - self._model
        self._model = request.params.copy()
        if not self._attack.active(request.round) or self._attackers.isdisjoint(cohort):
            yield from self._inside.ask(request, cohort, fold)
            return
        sent: dict[str, Vector] = {}
        for reply in self._inside.ask(request, cohort, Singly(dimension=fold.dimension)):
            if isinstance(reply, Update) and not problem_with_update(reply.delta, fold.dimension):
                sent[reply.party] = reply.delta
            else:
                yield reply
        sent.update(self._craft(sent, fold, last))
        for party, update in sent.items():
            yield Update(party=party, delta=update)

    def _craft(self, sent: Mapping[str, Vector], fold: Fold[Any], last: Vector | None) -> dict[str, Vector]:
        """What the attackers send instead; nothing where none of them has an update."""
        attackers = [name for name in self._names if name in sent and name in self._attackers]
        honest = [name for name in self._names if name in sent and name not in self._attackers]
        if not attackers:
            return {}
        own = np.stack([sent[name] for name in attackers])
        others = np.stack([sent[name] for name in honest]) if honest else np.zeros((0, own.shape[1]))
        place = {name: at for at, name in enumerate(self._names)}
        places = np.array([place[name] for name in (*honest, *attackers)], dtype=np.int64)
        try:
            made = _attack_with(self._attack, self._look(others, own, places, fold, last))
        except Exception as error:  # the round is paid for
            log.warning(
                "the attack of this drill failed (%s: %s); its parties follow the plan", type(error).__name__, error
            )
            return {}
        return dict(zip(attackers, np.asarray(made, dtype=np.float64), strict=True))

    def _look(
        self, honest: Vector, own: Vector, places: NDArray[np.int64], fold: Fold[Any], last: Vector | None
    ) -> Seen:
        known = Seen(
            honest=honest, own=own, places=places, registered=len(self._names), last=last, rng=self._rng,
            direction=self._attack.direction,
        )  # fmt: skip
        if not isinstance(fold, RobustFold):
            return known
        return dataclasses.replace(known, rule=fold.rule, stated=fold.attackers, memory=fold.memory, trial=fold.trial)


def _attack_with(attack: AttackPlan, seen: Seen) -> NDArray[Any]:
    if attack.on_rows:  # honest training on poisoned rows, made longer where the plan says so
        return seen.own if attack.strength is None else attack_named("model-replacement")(seen, attack.strength)
    return attack_named(attack.kind)(seen, attack.strength)


def refuse_drill(plan: Plan) -> None:
    """:class:`~quietsum.errors.PlanRefused` for a plan with ``[attack]`` where real sites would be asked."""
    if plan.attack is not None:
        raise PlanRefused(
            "[attack] makes this plan a drill, and here real sites would be asked: no one needs a plan to attack, and "
            "no site should run one that does; run it on this machine (--on local), or take [attack] out"
        )


# ---------------------------------------------------------------------------------------- one update at a time


@final
@dataclasses.dataclass(kw_only=True)
class _Nothing:
    """What :class:`Singly` has folded: never anything."""

    kept: dict[str, None] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Singly:
    """A fold that folds nothing, so that every update arrives by itself."""

    dimension: int
    needs_individuals = True
    needs_updates = True

    def start(self) -> _Nothing:
        """Nothing."""
        return _Nothing()

    def problem_with(self, update: object, party: str = "") -> str:
        """Why ``update`` cannot be used, or an empty text."""
        return problem_with_update(update, self.dimension)

    def add(self, state: _Nothing, party: str, update: Vector) -> _Nothing:
        """Never asked: the round that folds is another one."""
        raise PlanRefused("a drill passes updates on one by one")

    def add_many(self, state: _Nothing, parties: Sequence[str], updates: Vector) -> tuple[_Nothing, dict[str, str]]:
        """Never asked."""
        raise PlanRefused("a drill passes updates on one by one")

    def merge(self, one: _Nothing, other: _Nothing) -> _Nothing:
        """Nothing and nothing."""
        return one

    def finish(self, state: _Nothing, rng: RandomSource) -> Combined:
        """Never asked."""
        raise PlanRefused("a drill passes updates on one by one")
