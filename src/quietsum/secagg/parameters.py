"""How many neighbours and how many shares: (k, t) from the cohort, its colluders and its drop-outs, or a refusal.

Two things must hold. *Security*: the server and the colluding parties together never rebuild both secrets of an honest
party, and the honest parties that remain are joined by masks that only they know. *Progress*: a round in which no
more than the stated share of parties drops out ends with the sum. Write n for the parties, c for those that collude
with the server, d for those that may drop out, k for the neighbours of a party and t for the shares that rebuild.

**Complete graph** (k = n − 1; a party keeps one share of its own secrets, so n parties hold them). Certain, not
probable:

* curious server (it follows the protocol and looks): colluders hold c shares, so t > c;
* semi-malicious server (it may tell different parties different drop-outs once keys are committed): every honest party
  gives one kind of share and every colluder both, n + c in all, and it needs t of each kind, so 2t > n + c;
* a sum holds at least t inputs, so t ≥ c + 2: with one honest input in it, the colluders would read that input;
* progress: n − d ≥ t.

**Sparse graph** (k-regular ring in random order; k neighbours hold the shares). By hypergeometric tails and a union
bound, security fails with probability below 2⁻⁴⁰ a round and progress below 2⁻²⁰ (the events of Bell et al. 2020):

* n · P[H(n, c, k) ≥ t] < 2⁻⁴¹ for a curious server, n · P[H(n, c, k) ≥ 2t − k] < 2⁻⁴¹ for a semi-malicious one;
* the honest survivors stay connected: a ring with k/2 neighbours on each side falls apart only if two separate runs of
  k/2 parties are all gone, and n(n − 1)/2 · P[k given parties are among the c + d] < 2⁻⁴¹;
* n · P[H(n, d, k) > k − t] < 2⁻²⁰,

where H(n, s, k) counts the special ones among k drawn from n of which s are special. A party's neighbours are drawn
from the n − 1 others; summed over all n parties, special or not, the probabilities are n · P[H(n, s, k) …] exactly,
and the honest ones alone have less. Colluders and drop-outs must not depend on the order of the ring.

**Groups**. A session may be cut into several groups at random (:mod:`quietsum.secagg.graph`), with one sum each. Every
group is then a session of its own in what is said above: n, c and d count its members, its colluders and its drop-outs,
and both sizes that its groups have must satisfy the conditions. How many colluders may sit in one group is a question
of chance, which :mod:`quietsum.plan.groups` answers.

A :class:`Parameters` that breaks one of these cannot be made: a party that puts together what a server proposes gets an
error instead. At least one colluder always counts, since each party receives the model and knows its own share.

>>> choose_parameters(5, corrupt=1, drop_outs=0.2, adversary=Adversary.SEMI_MALICIOUS).summary
'4 of 5 shares rebuild a mask; complete graph; 1 drop-out and 1 colluder allowed for'
>>> large = choose_parameters(1000, corrupt=100, drop_outs=0.05, adversary=Adversary.CURIOUS)
>>> large.neighbours, large.threshold
(38, 24)
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from scipy.special import gammaln

from quietsum.errors import InvalidParameter, PlanRefused
from quietsum.validate import finite_number, whole_number

__all__ = ["SPARSE_FROM", "Adversary", "Parameters", "choose_groups", "choose_parameters", "dropping"]

SPARSE_FROM = 50
"""Cohorts of this size and above get the sparse graph where it has fewer neighbours than the complete one."""

MOST_NEIGHBOURS = 8192
"""A sparse graph with more neighbours than this is not looked for."""

ONE_IN = 20
"""A sparse graph is made for one colluder in so many at least, however few are stated."""

SECURITY_FAILURE = 2.0**-40
"""The chance that a sparse graph is insecure stays below this."""
PROGRESS_FAILURE = 2.0**-20
FEWEST_HONEST = 2
"""Honest inputs that every released sum holds at the least: a sum of one would be that one."""


FEWEST_IN_GROUP = 3
"""Honest inputs that a plan leaves in every group's sum: each is hidden among two others."""


class Adversary(enum.StrEnum):
    """What the server may do, together with the parties that collude with it."""

    CURIOUS = "curious"
    """It follows the protocol and remembers everything."""

    SEMI_MALICIOUS = "semi-malicious"
    """Once keys are committed it may lie: about who dropped out, differently to different parties."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """The public parameters of a secure round, sound by construction.

    ``parties`` enrolled, each with ``neighbours`` (``parties`` − 1: everyone), ``threshold`` shares to rebuild a
    secret, ``corrupt`` parties that may collude with the server and ``may_drop`` that may go missing. With several
    ``groups``, ``neighbours`` (their largest size − 1: everyone in the group), ``corrupt`` and ``may_drop`` (of the
    smallest) are those of one group. Raises :class:`~quietsum.errors.PlanRefused` if security or progress would not
    hold; see the module for the conditions.
    """

    parties: int
    neighbours: int
    threshold: int
    adversary: Adversary
    corrupt: int
    may_drop: int
    groups: int = 1

    def __post_init__(self) -> None:
        for name, least in (
            ("parties", 2), ("neighbours", 1), ("threshold", 1), ("corrupt", 1), ("may_drop", 0), ("groups", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if type(value) is not int:
                raise InvalidParameter(name, value, "is not a whole number")
            whole_number(name, value, minimum=least)
        object.__setattr__(self, "adversary", _adversary(self.adversary))
        if self.groups > 1:
            if self.smallest < 2:
                raise PlanRefused(f"{self.groups} groups of {self.parties} parties leave some party alone")
            for size in {self.smallest, self.largest}:
                self.within(size)
            return
        if reason := (_complete_problem(self) if self.complete else _sparse_problem(self)):
            raise PlanRefused(f"secure aggregation with {self._in_words} {reason}")

    @property
    def complete(self) -> bool:
        """Whether every two parties of a group share a mask."""
        return self.neighbours == self.largest - 1

    @property
    def smallest(self) -> int:
        """Members of the smallest group; all parties where there is one."""
        return self.parties // self.groups

    @property
    def largest(self) -> int:
        """Members of the largest group: one more than the smallest at most."""
        return -(-self.parties // self.groups)

    def within(self, size: int) -> Parameters:
        """The parameters of one group of ``size`` members, a session of its own with as many survivors."""
        return dataclasses.replace(
            self,
            parties=size,
            neighbours=size - 1 if self.complete else self.neighbours,
            may_drop=size - self.survivors,
            groups=1,
        )

    @property
    def holders(self) -> int:
        """How many parties hold a share of each secret; in the complete graph its owner is one of them."""
        return self.largest if self.complete else self.neighbours

    @property
    def survivors(self) -> int:
        """Parties of a group that are left when as many drop out as may."""
        return self.smallest - self.may_drop

    @property
    def honest(self) -> int:
        """Honest inputs in a sum when as many drop out as may, and none of them colludes."""
        return self.survivors - self.corrupt

    @property
    def _in_words(self) -> str:
        graph = "the complete graph" if self.complete else f"{self.neighbours} neighbours a party"
        return f"{self.parties} parties, {graph} and threshold {self.threshold}"

    @property
    def summary(self) -> str:
        """One line for a plan."""
        graph = "complete graph" if self.complete else f"{self.neighbours} neighbours a party"
        allowed = f"{_many(self.may_drop, 'drop-out')} and {_many(self.corrupt, 'colluder')} allowed for"
        if self.groups > 1:
            graph, allowed = f"{self.groups} groups, {graph} in each", f"{allowed} in each"
        return f"{self.threshold} of {self.holders} shares rebuild a mask; {graph}; {allowed}"

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, for messages and plans."""
        return dataclasses.asdict(self) | {"adversary": self.adversary.value}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Parameters:
        """What :meth:`to_dict` gave, checked like any other: unsound parameters raise."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(fields) != names:
            raise InvalidParameter("parameters", sorted(map(str, fields)), f"must have exactly {sorted(names)}")
        return cls(**fields)

    def to_bytes(self) -> bytes:
        """One spelling of these parameters, for hashing."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":")).encode()


def choose_parameters(
    parties: int,
    *,
    corrupt: int = 1,
    drop_outs: float = 0.0,
    adversary: Adversary | str = Adversary.SEMI_MALICIOUS,
    threshold: int | None = None,
) -> Parameters:
    """Parameters for ``parties`` of which ``corrupt`` may collude and the share ``drop_outs`` may go missing.

    Below 50 parties, and above where the sparse graph has no room, the graph is complete. Its threshold is ⌊2n/3⌋ + 1
    (Bonawitz et al. 2017), moved into the range that security and progress leave. The sparse graph has the fewest
    neighbours that satisfy the bounds, and for them the smallest safe threshold; it is made for one colluder in
    twenty at least where that fits, so that a guess of too few does not end in a threshold of two. A ``threshold`` of
    the caller's is kept or refused, never changed. Raises :class:`~quietsum.errors.PlanRefused` if nothing fits.
    """
    parties = whole_number("parties", parties, minimum=1)
    corrupt = whole_number("corrupt", corrupt)
    if corrupt < 1:
        remedy = "state corrupt = 1 or more: each party receives the model and knows its own share"
        raise InvalidParameter("corrupt", corrupt, "leaves out the colluder that always counts", remedy)
    may_drop = dropping(parties, drop_outs)
    adversary = _adversary(adversary)
    if threshold is not None:
        threshold = whole_number("threshold", threshold, minimum=1)
    if parties >= SPARSE_FROM:
        believed = max(corrupt, parties // ONE_IN)
        for count in dict.fromkeys((believed, corrupt)):
            if sparse := _sparse(parties, count, may_drop, adversary, threshold):
                return dataclasses.replace(sparse, corrupt=corrupt)
    least, most = _complete_range(parties, corrupt, may_drop, adversary)
    if least > most:
        raise PlanRefused(_nothing_fits(parties, corrupt, may_drop, adversary, least))
    if threshold is None:
        threshold = min(max(2 * parties // 3 + 1, least), most)
    elif not least <= threshold <= most:
        side = "more" if threshold > most else "fewer"
        why = (
            f"{_many(may_drop, 'drop-out')} would leave fewer parties than it needs"
            if threshold > most
            else _why_least(parties, corrupt, adversary)
        )
        raise PlanRefused(
            f"secure aggregation with threshold = {threshold} is refused: that is {side} than {parties} parties allow, "
            f"since {why}; choose {_range(least, most)}, or leave threshold out"
        )
    return Parameters(
        parties=parties,
        neighbours=parties - 1,
        threshold=threshold,
        adversary=adversary,
        corrupt=corrupt,
        may_drop=may_drop,
    )


def choose_groups(
    parties: int,
    groups: int,
    *,
    corrupt: int,
    drop_outs: float | None = None,
    adversary: Adversary | str = Adversary.SEMI_MALICIOUS,
    threshold: int | None = None,
) -> Parameters:
    """Parameters for ``parties`` in ``groups`` of nearly one size, ``corrupt`` of each of which may collude.

    ``drop_outs`` is the share of each group that may go missing; if omitted, as many as the threshold leaves, and as
    leave :data:`FEWEST_IN_GROUP` honest. Threshold
    and graph are those of :func:`choose_parameters`, such that they hold for both sizes. Raises
    :class:`~quietsum.errors.PlanRefused` if nothing fits.
    """
    parties, groups = whole_number("parties", parties, minimum=2), whole_number("groups", groups, minimum=2)
    small, large = parties // groups, -(-parties // groups)
    adversary = _adversary(adversary)
    may_drop = dropping(small, drop_outs or 0.0)
    if small >= SPARSE_FROM and (found := _sparse_groups(small, large, corrupt, may_drop, adversary, threshold)):
        return dataclasses.replace(found, parties=parties, groups=groups)
    least, _ = _complete_range(large, corrupt, may_drop, adversary)
    most = small - may_drop
    if least > most:
        raise PlanRefused(_nothing_fits(small, corrupt, may_drop, adversary, least, "a group of "))
    if threshold is None:
        threshold = min(max(2 * small // 3 + 1, least), most)
    elif not least <= threshold <= most:
        raise PlanRefused(
            f"secure aggregation with threshold = {threshold} is refused: groups of {small} with "
            f"{_many(corrupt, 'colluder')} and {_many(may_drop, 'drop-out')} allow {_range(least, most)}; choose that, "
            "or leave threshold out"
        )
    return Parameters(
        parties=parties,
        neighbours=large - 1,
        threshold=threshold,
        adversary=adversary,
        corrupt=corrupt,
        may_drop=max(small - max(threshold, corrupt + FEWEST_IN_GROUP), 0) if drop_outs is None else may_drop,
        groups=groups,
    )


def _sparse_groups(
    small: int, large: int, corrupt: int, may_drop: int, adversary: Adversary, threshold: int | None
) -> Parameters | None:
    """A sparse graph whose numbers hold in groups of both sizes; None where only the complete one does."""
    believed = max(corrupt, small // ONE_IN)
    for size, count in itertools.product((small, large), dict.fromkeys((believed, corrupt))):
        lost = size - (small - may_drop)
        if found := _sparse(size, count, lost, adversary, threshold):
            try:
                for other in (small, large):
                    dataclasses.replace(found, parties=other, may_drop=other - (small - may_drop))
            except PlanRefused:
                continue
            return dataclasses.replace(found, parties=small, corrupt=corrupt, may_drop=may_drop)
    return None


def dropping(parties: int, share: float) -> int:
    """How many of ``parties`` may go missing when the share ``share`` may: rounded down, so 0.1 of 5 is 0."""
    share = finite_number("drop_outs", share)
    if not 0 <= share < 1:
        raise InvalidParameter("drop_outs", share, "must lie in [0, 1)", "pass the share that a round must survive")
    return math.floor(parties * share * (1 + 1e-12))


# --------------------------------------------------------------------------------------------- complete graph


def _complete_range(parties: int, corrupt: int, may_drop: int, adversary: Adversary) -> tuple[int, int]:
    """The smallest safe threshold and the largest that survives the drop-outs."""
    least = corrupt + FEWEST_HONEST
    if adversary is Adversary.SEMI_MALICIOUS:
        least = max(least, (parties + corrupt) // 2 + 1)
    return least, parties - may_drop


def _complete_problem(chosen: Parameters) -> str | None:
    least, most = _complete_range(chosen.parties, chosen.corrupt, chosen.may_drop, chosen.adversary)
    if chosen.threshold < least:
        why = _why_least(chosen.parties, chosen.corrupt, chosen.adversary)
        return f"is not secure: {why}, so the threshold must be at least {least}"
    if chosen.threshold > most:
        gone = _many(chosen.may_drop, "drop-out")
        return f"would not finish: {gone} of {chosen.parties} leave {most}, fewer than the threshold"
    return None


def _why_least(parties: int, corrupt: int, adversary: Adversary) -> str:
    if adversary is Adversary.SEMI_MALICIOUS and (parties + corrupt) // 2 + 1 >= corrupt + FEWEST_HONEST:
        return (
            f"a server that tells parties different drop-outs collects {parties} + {corrupt} shares with "
            f"{_many(corrupt, 'colluder')}, and half of them must be fewer than the threshold"
        )
    return f"{_many(corrupt, 'colluder')} and a single honest party would be enough to read that party's input"


def _nothing_fits(parties: int, corrupt: int, may_drop: int, adversary: Adversary, least: int, among: str = "") -> str:
    left = parties - may_drop
    needs = f"the threshold must be at least {least} ({_why_least(parties, corrupt, adversary)})"
    has = f"{_many(may_drop, 'drop-out')} of {parties} leave {left}"
    ways = ["enrol more parties"]
    if may_drop:
        ways.append("allow for fewer drop-outs")
    if corrupt > 1:
        ways.append("assume fewer colluders")
    if adversary is Adversary.SEMI_MALICIOUS and corrupt + FEWEST_HONEST <= left:
        ways.append('assume a server that follows the protocol (adversary = "curious")')
    return f"secure aggregation among {among}{parties} parties is refused: {needs}, and {has}; {_either(ways)}"


# ----------------------------------------------------------------------------------------------- sparse graph


def _sparse(
    parties: int, corrupt: int, may_drop: int, adversary: Adversary, threshold: int | None
) -> Parameters | None:
    """The fewest neighbours that satisfy the bounds, or None if only the complete graph can."""
    if corrupt + may_drop > parties - FEWEST_HONEST:
        return None
    for neighbours in range(2, min(parties - 1, MOST_NEIGHBOURS), 2):
        least, most = _sparse_range(parties, neighbours, corrupt, may_drop, adversary)
        chosen = least if threshold is None else threshold
        if not least <= chosen <= most or not _is_connected(parties, neighbours, corrupt, may_drop):
            continue
        return Parameters(
            parties=parties,
            neighbours=neighbours,
            threshold=chosen,
            adversary=adversary,
            corrupt=corrupt,
            may_drop=may_drop,
        )
    return None


def _sparse_problem(chosen: Parameters) -> str | None:
    parties, neighbours = chosen.parties, chosen.neighbours
    if neighbours % 2 or not 2 <= neighbours < parties - 1:
        return "has no such graph: neighbours stand in equal numbers on both sides, fewer than all the others"
    if chosen.corrupt + chosen.may_drop > parties - FEWEST_HONEST:
        return f"leaves fewer than {FEWEST_HONEST} honest parties after drop-outs and colluders"
    least, most = _sparse_range(parties, neighbours, chosen.corrupt, chosen.may_drop, chosen.adversary)
    if chosen.threshold < least:
        return (
            f"is not secure: {_many(chosen.corrupt, 'colluder')} may hold that many shares of one party with more than "
            f"probability 2⁻⁴⁰; the threshold must be at least {least}"
        )
    if chosen.threshold > most:
        gone = _many(chosen.may_drop, "drop-out")
        return f"may not finish: {gone} leave a party fewer shares with more than probability 2⁻²⁰ (at most {most})"
    if not _is_connected(parties, neighbours, chosen.corrupt, chosen.may_drop):
        return "may fall apart: the honest survivors are not connected with probability 1 − 2⁻⁴⁰; take more neighbours"
    return None


def _sparse_range(parties: int, neighbours: int, corrupt: int, may_drop: int, adversary: Adversary) -> tuple[int, int]:
    """The smallest safe threshold for so many neighbours, and the largest with which the round ends."""
    held = parties * _tails(parties, corrupt, neighbours)
    safe = int(np.argmax(held < SECURITY_FAILURE / 2))  # the smallest count of colluding neighbours that is unlikely
    # semi-malicious: 2t − k ≥ safe, which is the stronger of the two since t ≤ k
    least = (neighbours + safe + 1) // 2 if adversary is Adversary.SEMI_MALICIOUS else safe
    lost = parties * _tails(parties, may_drop, neighbours)
    unlikely = int(np.argmax(lost < PROGRESS_FAILURE))  # at least so many missing neighbours are unlikely
    return max(least, 1), neighbours - (unlikely - 1)


def _is_connected(parties: int, neighbours: int, corrupt: int, may_drop: int) -> bool:
    gone = corrupt + may_drop
    if gone < neighbours:
        return True
    logarithm = _log_choose(parties - neighbours, gone - neighbours) - _log_choose(parties, gone)
    return bool(math.log(parties * (parties - 1) / 2) + logarithm < math.log(SECURITY_FAILURE / 2))


def _tails(population: int, special: int, drawn: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """P[H ≥ x] for x = 0 … drawn + 1, H hypergeometric: special ones among ``drawn`` of ``population``."""
    counts = np.arange(drawn + 1)
    possible = (counts <= special) & (drawn - counts <= population - special)
    logarithms = np.full(drawn + 1, -np.inf)
    x = counts[possible]
    logarithms[possible] = (
        _log_choose(special, x) + _log_choose(population - special, drawn - x) - _log_choose(population, drawn)
    )
    masses = np.exp(logarithms)
    return np.append(np.cumsum(masses[::-1])[::-1], 0.0)  # the smallest masses are added first


def _log_choose(n: Any, k: Any) -> Any:
    return gammaln(np.add(n, 1.0)) - gammaln(np.add(k, 1.0)) - gammaln(np.subtract(n, k) + 1.0)


# ---------------------------------------------------------------------------------------------------- wording


def _adversary(value: object) -> Adversary:
    try:
        return Adversary(value)  # type: ignore[arg-type]
    except ValueError:
        names = " or ".join(repr(kind.value) for kind in Adversary)
        raise InvalidParameter("adversary", value, "is not known", f"use {names}") from None


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _either(ways: list[str]) -> str:
    return ways[0] if len(ways) == 1 else ", ".join(ways[:-1]) + " or " + ways[-1]
