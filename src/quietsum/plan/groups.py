"""Random groups under one roof: what masked group sums hide, and how many of them a few attackers can touch.

With ``aggregation.groups`` = m the cohort of n parties is cut at random into m groups, the server sees one masked sum a
group, and a robust rule between the group means makes the step. Two kinds of bad parties are counted apart: *colluders*
tell the server all they know, *attackers* send anything. Both are some of the n, chosen before the groups are drawn
(:mod:`quietsum.secagg.graph`), so the number of either in one group of s is hypergeometric, H(n, c, s).

**How many colluders sit in one group.** All numbers of a group (noise, threshold, floor) are made for ``inside`` = x of
them. An honest party whose group has more is unprotected. For one party and one draw that is P[H(n − 1, c, s − 1) > x],
also if the server lies to the others, and over all honest parties at most

    β = Σ_groups Σ_{x < i < s} (s − i) · P[H(n, c, s) = i],

the expected number of honest parties in such groups. A run has at most D = (planned attempts) · :data:`SESSIONS` ·
:data:`~quietsum.secagg.messages.DRAWS` draws, since parties take part in no more, so the chance over the run is at most
D β. Sites count over all runs (:meth:`quietsum.party.books.SiteBooks.draw`). x is the smallest number for which

* β ≤ 2⁻⁴⁰ a draw, where noise is added in shares, since then ε rests on it: D β is charged to δ beside the noise's own
  failure (:mod:`quietsum.plan.resolution.charging`), as total variation distance from what is priced;
* D β ≤ :data:`MASKS_FAIL` over the run where it is not, so that masks alone are at stake; the chance is printed;

and never more than c, with which nothing is left to chance. The smallest sum that is opened then holds floor − x honest
updates; fewer than three are refused.

**What a group costs.** Noise in shares is calibrated to one group's floor, so each share is about √m times as long as
in one sum over all. A party is in one group, and which one does not depend on data: to a neighbouring data set all
sums but one have the same law, and the joint release of all of them costs what its own group's sum costs. What the
rule, the server and the recipients make of the sums is post-processing. So ε is that of a group sum, for the server and
for recipients alike.

**How many groups attackers touch.** A rule between m group means sees up to f bad ones if f attackers sit apart. In the
measured table (docs/benchmarks.md) rules hold while 42 % of the groups hold an attacker, and fall behind that. So a
plan is refused if the expected share 1 − C(n − f, s) / C(n, s) is above :data:`CONTAMINATED`, or the chance that more
than half of the groups are touched is above :data:`MAJORITY`. Both are exact; so is the printed chance that more are
touched than the rule withstands.

>>> table = chances(100, 20, attackers=10)
>>> round(table.share, 3), table.majority, round(table.half, 2)
(0.416, 0.0, 0.1)
>>> f"{alone(100, 20, 10):.1g}"  # some honest party sits with colluders only
'0.005'
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from quietsum.errors import PlanRefused

if TYPE_CHECKING:
    from quietsum.aggregation import Rule
    from quietsum.plan.resolution.resolved import ResolvedPlan
    from quietsum.plan.values import Plan

__all__ = [
    "CONTAMINATED",
    "MAJORITY",
    "MASKS_FAIL",
    "SESSIONS",
    "Chances",
    "Grouping",
    "alone",
    "chances",
    "count_unprotected",
    "draws",
    "fewest_groups",
    "grouping",
    "inside",
    "most_in_bound",
    "nearest_groups",
    "sessions_of",
    "sizes",
]  # fmt: skip

SESSIONS = 2
"""Sessions with groups for each planned attempt that a party takes part in: one, and one that was lost or stopped."""
MASKS_FAIL = 0.01
"""The chance, over a run, that some honest party's group holds more colluders than its masks are made for."""
CONTAMINATED = 0.42
"""The largest expected share of groups with an attacker in them."""
MAJORITY = 1e-3
"""The largest chance that more than half of the groups hold an attacker."""
UNLIKELY = 0.01
"""A rule allows for so many bad groups that there are more with this chance, where it can bear them."""

Floats = NDArray[np.float64]
Marked = Callable[[int, int], bool]
"""Whether a group of some size (first) counts, with so many special members in it (second)."""


# ------------------------------------------------------------------------------------------ placing by chance


def sizes(parties: int, groups: int) -> dict[int, int]:
    """How many groups there are of each size; two sizes at most, one apart.

    >>> sizes(13, 3)
    {5: 1, 4: 2}
    """
    small, larger = divmod(parties, groups)
    return {size: count for size, count in ((small + 1, larger), (small, groups - larger)) if count}


def _hypergeometric(parties: int, special: int, size: int) -> Floats:
    """P[H = i] for i = 0 … size: special ones among ``size`` of ``parties``."""
    from scipy.special import gammaln

    def ways(n: Floats | float, k: Floats | float) -> Floats:
        return np.asarray(gammaln(np.add(n, 1.0)) - gammaln(np.add(k, 1.0)) - gammaln(np.subtract(n, k) + 1.0))

    counts = np.arange(size + 1.0)
    found = np.zeros(size + 1)
    able = (counts <= special) & (size - counts <= parties - special)
    at = counts[able]
    found[able] = np.exp(ways(special, at) + ways(parties - special, size - at) - ways(parties, size))
    return found


def _binomial(size: int, rate: float, most: int) -> Floats:
    """P[i of ``size`` are special] by a coin of ``rate`` each, for i = 0 … most."""
    from scipy.special import gammaln

    counts = np.arange(min(size, most) + 1.0)
    logs = gammaln(size + 1.0) - gammaln(counts + 1.0) - gammaln(size - counts + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = logs + np.where(counts > 0, counts * np.log(rate), 0.0)
        logs = logs + np.where(size > counts, (size - counts) * np.log1p(-rate), 0.0)
    found = np.zeros(most + 1)
    found[: len(counts)] = np.exp(logs)
    return found


def _times(one: Floats, other: Floats) -> Floats:
    return np.convolve(one, other)[: len(one)]


def _power(base: Floats, exponent: int) -> Floats:
    found = np.zeros_like(base)
    found[0] = 1.0
    while exponent:
        if exponent & 1:
            found = _times(found, base)
        base, exponent = _times(base, base), exponent >> 1
    return found


@lru_cache(maxsize=256)
def _touch_chances(parties: int, groups: int, special: int) -> tuple[float, ...]:
    """P[exactly k groups hold a special party], k = 0 … groups.

    Exact: coins of one rate for each party, given that as many as there are came up, place them uniformly. So the
    probability is a coefficient of a product of polynomials, one for each group, over P[Bin(n, p) = special].
    """
    if not 0 < special < parties:
        return tuple(float(k == (0 if special == 0 else groups)) for k in range(groups + 1))
    rate = special / parties
    found = np.zeros((1, special + 1))  # by groups that hold one (rows) and special parties so far (columns)
    found[0, 0] = 1.0
    for size, count in sizes(parties, groups).items():
        one = _binomial(size, rate, special)
        held = 1 - float(one[0])
        some = one / held  # given that a group holds one; more of them than there are need not be counted
        some[0] = 0.0
        touched = _binomial(count, held, count)  # P[k groups hold one], by the coins
        rows, power = [], _power(one, 0)
        for k in range(min(count, special) + 1):
            rows.append(touched[k] * power)
            power = _times(power, some)
        more = np.zeros((len(found) + len(rows) - 1, special + 1))
        for k, row in enumerate(rows):
            for before, part in enumerate(found):
                if part.any() and row.any():
                    more[before + k] += _times(part, row)
        found = more
    whole = _binomial(parties, rate, special)[special]
    chance = np.zeros(groups + 1)
    chance[: len(found)] = (found[:, special] / whole)[: groups + 1]
    return tuple((chance / chance.sum()).tolist())


def _expect(parties: int, groups: int, special: int, value: Callable[[int, int], float]) -> float:
    """The expected sum over groups of ``value``(size, special ones in it)."""
    total = 0.0
    for size, count in sizes(parties, groups).items():
        placed = _hypergeometric(parties, special, size)
        total += count * math.fsum(value(size, i) * p for i, p in enumerate(placed.tolist()) if p)
    return total


def _some(parties: int, groups: int, special: int, marked: Marked) -> float:
    """P[some group is marked]: exact by the coins of :func:`_touch_chances`; the expected number if tiny."""
    expected = _expect(parties, groups, special, lambda size, i: float(marked(size, i)))
    if expected < 1e-6 or not 0 < special < parties:  # P lies within expected² of it
        return min(expected, 1.0)
    rate = special / parties
    none = _power(_binomial(1, rate, special), 0)
    for size, count in sizes(parties, groups).items():
        one = _binomial(size, rate, special)
        one[[i for i in range(min(size, special) + 1) if marked(size, i)]] = 0.0
        none = _times(none, _power(one, count))
    return float(min(max(1 - none[special] / _binomial(parties, rate, special)[special], 0.0), 1.0))


def alone(parties: int, groups: int, colluders: int, *, honest: int = 1, floor: int | None = None) -> float:
    """P[some honest party's group has at most ``honest`` honest members], itself counted, in one draw.

    With a ``floor`` only so many members of a group need be in its sum, all colluders first if the server can choose.
    """
    return _some(
        parties, groups, colluders,
        lambda size, i: i < size and max((size if floor is None else floor) - i, 1) <= honest,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ colluders


def count_unprotected(parties: int, groups: int, colluders: int, inside: int) -> float:
    """β: the expected number of honest parties in groups with more than ``inside`` colluders, in one draw."""
    return _expect(parties, groups, colluders, lambda size, i: float(size - i) if i > inside else 0.0)


def inside(parties: int, groups: int, colluders: int, chance: float) -> int:
    """x: the fewest colluders in one group such that β is at most ``chance``."""
    return next(x for x in range(1, colluders + 1) if count_unprotected(parties, groups, colluders, x) <= chance)


def draws(plan: Plan) -> int:
    """D: how often groups are drawn in a run at the most."""
    from quietsum.secagg import DRAWS

    return DRAWS * SESSIONS * (plan.federation.rounds + plan.federation.spare_attempts)


def sessions_of(resolved: ResolvedPlan) -> int | None:
    """In how many sessions of a run a party lets groups be drawn; None where none are."""
    grouped = resolved.secure is not None and resolved.secure.grouping is not None
    return SESSIONS * resolved.attempts if grouped else None


# ------------------------------------------------------------------------------------------------ attackers


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Chances:
    """How many of ``groups`` some ``attackers`` touch in a draw: the expected ``share``, and three chances.

    ``half``: at least half of the groups; ``majority``: more than half; ``beyond(k)``: more than k.
    """

    parties: int
    groups: int
    attackers: int

    @property
    def _counts(self) -> tuple[float, ...]:
        return _touch_chances(self.parties, self.groups, self.attackers)

    @property
    def share(self) -> float:
        """The expected share of groups with an attacker in them."""
        return _expect(self.parties, self.groups, self.attackers, lambda size, i: float(i > 0)) / self.groups

    @property
    def half(self) -> float:
        """P[at least half of the groups hold an attacker]."""
        return min(math.fsum(self._counts[-(-self.groups // 2) :]), 1.0)

    @property
    def majority(self) -> float:
        """P[more than half of the groups hold an attacker]."""
        return self.beyond(self.groups // 2)

    def beyond(self, count: int) -> float:
        """P[more than ``count`` groups hold an attacker]."""
        return min(math.fsum(self._counts[count + 1 :]), 1.0)

    @property
    def in_bound(self) -> bool:
        """Whether a plan may rest on it."""
        return self.share <= CONTAMINATED and self.majority <= MAJORITY

    def likely(self) -> int:
        """So many groups hold an attacker at the most, but for a chance of :data:`UNLIKELY`."""
        return next(k for k in range(self.groups + 1) if self.beyond(k) <= UNLIKELY)


def chances(parties: int, groups: int, *, attackers: int) -> Chances:
    """What ``attackers`` of ``parties`` do to ``groups``."""
    return Chances(parties=parties, groups=groups, attackers=attackers)


def most_in_bound(parties: int, groups: int) -> int:
    """The most attackers for which groups of this size are within the bound; 0 where one is too many."""
    found = 0
    while found < parties and chances(parties, groups, attackers=found + 1).in_bound:
        found += 1
    return found


def nearest_groups(parties: int, attackers: int) -> int | None:
    """The fewest groups, so the largest ones, that stay within the bound; None where none do."""
    return next((m for m in range(2, parties + 1) if chances(parties, m, attackers=attackers).in_bound), None)


# ------------------------------------------------------------------------------------------- what a plan asks for


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouping:
    """The groups of a plan: ``count`` of them, ``colluders`` in all and ``inside`` one at the most, ``attackers``.

    ``chance`` is β, a bound on the chance that one draw seats some honest party with more than ``inside`` colluders;
    ``draws`` is D.
    """

    parties: int
    count: int
    colluders: int
    inside: int
    chance: float
    draws: int
    attackers: int

    @property
    def smallest(self) -> int:
        """Members of the smallest group."""
        return self.parties // self.count

    @property
    def chance_of_run(self) -> float:
        """D β, at most one."""
        return min(1.0, self.draws * self.chance)

    def among_colluders(self, floor: int, colluders: int | None = None) -> float:
        """P[some honest party is summed with fewer than two other honest ones], in one draw.

        ``floor`` is the fewest members of a group's sum. ``colluders`` are the plan's if omitted.
        """
        many = self.colluders if colluders is None else min(colluders, self.parties - 1)
        return alone(self.parties, self.count, many, honest=2, floor=floor)

    @property
    def touched(self) -> Chances:
        """What the attackers do to the groups."""
        return chances(self.parties, self.count, attackers=self.attackers)

    def bad(self, rule: Rule, opened: int | None = None) -> int:
        """f between groups: how many of ``opened`` group means (all if omitted) the rule takes to be anything.

        As many as hold an attacker but for a chance of 1 %, where the rule can bear so many; otherwise all it can.
        """
        from quietsum.aggregation import most_attackers

        return max(min(self.touched.likely(), most_attackers(rule, self.count if opened is None else opened)), 0)


def fewest_groups(rule: Rule, groups: int, attackers: int) -> int:
    """Groups that must be opened for a step: half of them, three, and as many as the rule needs for one bad mean."""
    return max(3, -(-groups // 2), rule.facts.least(1 if attackers else 0))


def grouping(plan: Plan, cohort: int, *, in_shares: bool) -> Grouping | None:
    """The groups that ``plan`` asks for among ``cohort`` parties; None where it asks for none.

    Omitted attackers are as many as the groups and the rule between them bear. Raises
    :class:`~quietsum.errors.PlanRefused` if a group would hold a single party.
    """
    from quietsum.secagg import SECURITY_FAILURE

    stated = plan.aggregation
    if stated.groups < 2:
        return None
    if cohort < 2 * stated.groups:
        raise PlanRefused(f"aggregation.groups = {stated.groups} of {cohort} parties leaves some party alone")
    colluders, many = min(stated.colluders, cohort - 1), draws(plan)
    x = inside(cohort, stated.groups, colluders, SECURITY_FAILURE if in_shares else MASKS_FAIL / many)
    return Grouping(
        parties=cohort,
        count=stated.groups,
        colluders=colluders,
        inside=x,
        chance=count_unprotected(cohort, stated.groups, colluders, x),
        draws=many,
        attackers=_borne(cohort, stated.groups, stated.rule, stated.before)
        if stated.attackers is None
        else min(stated.attackers, cohort),
    )


@lru_cache(maxsize=64)
def _borne(parties: int, groups: int, rule: str, before: str) -> int:
    """The most attackers within the bound that touch more groups than ``rule`` withstands in 1 % of rounds at most."""
    from quietsum.aggregation import RULES, find_rule, most_attackers

    most = most_in_bound(parties, groups)
    if rule not in RULES or (before == "bucketing" and RULES[rule].facts.remembers):
        return most
    withstood = most_attackers(find_rule(rule, before), groups)
    able = (f for f in range(most, 0, -1) if chances(parties, groups, attackers=f).beyond(withstood) <= UNLIKELY)
    return next(able, 0) if withstood >= 0 else 0
