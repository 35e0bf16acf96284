"""Between groups: masked sums of random groups become means, and a robust rule makes one step of the means.

The server sees a sum for each group (:mod:`quietsum.secagg`) and no single update. One row of the rule's matrix is one
group's mean; a group whose mean the rule leaves out has up to as many members as it has, of which most may have done
nothing wrong, so nothing here is said of a party. Who may have is a matter of many rounds with other groups
(:mod:`quietsum.defence.attribution`).

Guarantees: none of privacy beyond what the sums have; what the rule does is post-processing of noise that the
parties added. A group that was lost is not judged. With fewer groups than the plan's rule needs, and with fewer parties
than the plan's minimum, there is no step: :class:`~quietsum.errors.TooFewParties`, charged.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, final

from quietsum.aggregation import Combined, RobustFold, RobustState, Rule, Trial, Vector
from quietsum.errors import TooFewParties
from quietsum.federation.watch import GroupJudged, Watcher, tell
from quietsum.plan import Grouping, fewest_groups

if TYPE_CHECKING:
    from quietsum.mechanisms import RandomSource
    from quietsum.party import Contribution
    from quietsum.plan import ResolvedPlan
    from quietsum.secagg import GroupSum

__all__ = ["Between", "between", "group_name"]

log = logging.getLogger(__name__)


def group_name(number: int) -> str:
    """What a group is called in a round: groups of different rounds have nothing in common but the number."""
    return f"group {number + 1}"


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Between:
    """The rule between the group means of one round."""

    rule: Rule
    seated: Grouping
    dimension: int
    minimum: int
    rng: RandomSource
    memory: Mapping[str, Vector] = dataclasses.field(default_factory=dict)
    trial: Trial | None = None
    watchers: tuple[Watcher, ...] = ()
    look: Callable[[RobustState], None] | None = None

    def combine(self, sums: Sequence[GroupSum], how: Contribution, number: int) -> Combined:
        """The step of round ``number`` from the opened ``sums``. ``kept`` are the survivors of the groups in it."""
        self._refuse_few(sums, number)
        fold = RobustFold(
            rule=self.rule, registered=tuple(group_name(at) for at in range(self.seated.count)),
            attackers=self.seated.bad(self.rule, len(sums)), dimension=self.dimension, memory=self.memory,
            trial=self.trial,
        )  # fmt: skip
        state = fold.start()
        for one in sums:
            state = fold.add(state, group_name(one.number), how.step(one.total, one.survivors))
        if self.look is not None:
            self.look(state)
        found = fold.finish(state, self.rng)
        for one in sums:
            self._tell(one, found, number)
        kept = frozenset(found.kept)
        parties = sorted(name for one in sums if group_name(one.number) in kept for name in one.survivors)
        return Combined(step=found.step, kept=tuple(parties), memory=found.memory)

    def _refuse_few(self, sums: Sequence[GroupSum], number: int) -> None:
        least = fewest_groups(self.rule, self.seated.count, self.seated.attackers)
        there = sum(len(one.survivors) for one in sums)
        if len(sums) >= least and there >= self.minimum:
            return
        raise TooFewParties(
            f"round {number}: {len(sums)} of {self.seated.count} groups with {there} parties were left, the plan needs "
            f"{least} groups and {self.minimum} parties. It is charged, except to those who refused before they "
            "touched data. See why with -v, then resume"
        )

    def _tell(self, one: GroupSum, found: Combined, number: int) -> None:
        name = group_name(one.number)
        reason = found.rejected.get(name, "")
        if reason:
            log.info("round %d: the rule leaves %s out, %s", number, name, reason)
        measured = {label: values[name] for label, values in found.statistics.items() if name in values}
        tell(
            self.watchers,
            GroupJudged(
                round=number, group=one.number, members=one.members, survivors=one.survivors,
                kept=name not in found.rejected, rule=self.rule.name, reason=reason, statistics=measured,
            ),
        )  # fmt: skip


def between(
    resolved: ResolvedPlan,
    *,
    memory: Mapping[str, Vector],
    rng: RandomSource,
    trial: Trial | None = None,
    watchers: Iterable[Watcher] = (),
    look: Callable[[RobustState], None] | None = None,
) -> Between | None:
    """The rule between groups that a plan asks for; None where there is one sum over all. ``look`` sees their means."""
    secure, rule = resolved.secure, resolved.robust
    if secure is None or secure.grouping is None or rule is None:
        return None
    return Between(
        rule=rule, seated=secure.grouping, dimension=resolved.dimension, minimum=secure.minimum, rng=rng,
        memory=memory, trial=trial, watchers=tuple(watchers), look=look,
    )  # fmt: skip
