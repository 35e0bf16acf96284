"""A claim against its settings: their ε beside the true one, from both sides, and what the difference comes from.

The true ε is a pair of bounds. The settings *are* private with the upper one; no analysis of the same settings can show
less than the lower one. So three answers are possible, and two more where there is nothing to compare:

* **holds**: the stated ε is at least the upper bound;
* **does not hold**: it is below the lower bound;
* **needs an assumption**: it lies between, or hangs on something that the settings do not say; the remarks name it;
* **states no ε**: the bounds are printed, and that is all;
* **promises nothing**: no ε is finite, whether one is stated or not.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, final

from quietsum.audit.claims.values import ClaimFile, ClaimLine, Remark, RemarkKind, note
from quietsum.errors import UnsupportedEvent
from quietsum.privacy import ExactAccountant, Group, Guarantee, Neighbours, PrivacyEvent, group_guarantee, to_dict

__all__ = ["CheckedClaim", "CheckedLine", "Ruling", "check_claim", "check_line"]

LOOSE = 1.05
"""A stated ε that is this many times the true one is called loose."""


class Ruling(enum.StrEnum):
    """What is said of a stated ε."""

    HOLDS = "holds"
    """The settings promise at least as much as is stated."""
    FALSE = "does not hold"
    """The settings promise less than is stated."""
    OPEN = "needs an assumption"
    """Whether it holds is not decided by the settings."""
    UNSTATED = "states no ε"
    """There is no figure to hold against the settings."""
    NOTHING = "promises nothing"
    """No ε is finite for these settings, so none that is stated can hold."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedLine:
    """One promise with its true bounds. ``epsilon`` is infinite where no upper bound is known."""

    line: ClaimLine
    epsilon: float
    epsilon_lower: float
    method: str
    remarks: tuple[Remark, ...]

    @property
    def ruling(self) -> Ruling:
        """Whether the stated ε holds."""
        stated = self.line.epsilon
        if self.line.event is None and self.line.least is None:
            return Ruling.NOTHING
        if stated is None:
            return Ruling.UNSTATED
        if stated < self.epsilon_lower:
            return Ruling.FALSE
        blocked = any(one.always or one.kind is RemarkKind.ASSUMPTION for one in self.remarks)
        return Ruling.OPEN if blocked or stated < self.epsilon else Ruling.HOLDS

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; an infinite ε is the word "Infinity"."""
        line = self.line
        return {
            "label": line.label,
            "stated": {"epsilon": line.epsilon, "delta": line.delta},
            "true": {
                "epsilon": self.epsilon if math.isfinite(self.epsilon) else "Infinity",
                "epsilon_lower": self.epsilon_lower,
                "delta": line.delta,
                "unit": str(line.unit),
                "neighbours": line.neighbours.value,
                "observer": line.observer.value,
                "method": self.method,
            },
            "ruling": str(self.ruling),
            "remarks": [one.to_dict() for one in self.remarks],
            "event": None if line.event is None else to_dict(line.event),
        }


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedClaim:
    """A claim, line by line."""

    file: ClaimFile
    lines: tuple[CheckedLine, ...]

    @property
    def contradicted(self) -> bool:
        """Whether any line does not hold, or promises nothing."""
        return any(one.ruling in (Ruling.FALSE, Ruling.NOTHING) for one in self.lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "system": self.file.system,
            "title": self.file.title,
            "source": self.file.source,
            "contradicted": self.contradicted,
            "lines": [one.to_dict() for one in self.lines],
        }


def check_claim(file: ClaimFile) -> CheckedClaim:
    """Each promise of a claim, priced and held against what is stated.

    Raises :class:`~quietsum.errors.QuietsumError` if the settings contradict themselves or lack a number.

    >>> from quietsum.audit import read_claim
    >>> claim = read_claim({
    ...     "system": "flower-local-dp",
    ...     "settings": {"clipping_norm": 1.0, "sensitivity": 1e-4, "epsilon": 10.0, "delta": 1e-5},
    ... })
    >>> line = check_claim(claim).lines[0]
    >>> print(line.ruling, f"{line.epsilon_lower:.3g}", line.remarks[0].name)
    does not hold 2.13e+08 sensitivity
    """
    from quietsum.audit.claims.registry import reader_of
    from quietsum.plan import value_of

    reader = reader_of(file.system)
    settings = value_of(reader.settings, file.settings, where="settings", remedy="state the settings")
    return CheckedClaim(file=file, lines=tuple(check_line(line) for line in reader.read(settings, file.claim)))


def check_line(line: ClaimLine) -> CheckedLine:
    """One promise, priced: the upper bound of what happens, the lower bound of the least that happens."""
    upper = None if line.event is None else price_line(line.event, line.delta, line.neighbours)
    floor = upper if line.least is None else price_line(line.least, line.delta, line.neighbours)
    remarks = list(line.remarks)
    epsilon = math.inf if upper is None else upper.epsilon
    lower = line.floor if line.floor is not None else 0.0 if floor is None else floor.epsilon_lower
    stated = line.epsilon
    forgiven = stated >= epsilon if stated is not None else upper is not None
    remarks = [
        dataclasses.replace(one, kind=RemarkKind.NOTE)
        if forgiven and one.kind is RemarkKind.MISTAKE and not one.always
        else one
        for one in remarks
    ]
    if stated is not None and 0 < epsilon * LOOSE < stated:
        remarks.append(
            note(
                "loose",
                f"the stated ε is {stated / epsilon:.3g} times what the settings cost: true, and more noise or fewer "
                "steps than need be",
                "account exactly, not by Rényi orders or by adding ε up",
            )
        )
    if stated is not None and lower > stated and all(one.kind is RemarkKind.NOTE for one in remarks):
        remarks.append(_blame_accounting(stated, lower))
    method = "no upper bound is known" if upper is None else upper.method
    return CheckedLine(
        line=line, epsilon=epsilon, epsilon_lower=min(lower, epsilon), method=method, remarks=tuple(remarks)
    )


def _blame_accounting(stated: float, lower: float) -> Remark:
    """A mistake that has no other name: the accounting itself is wrong."""
    short = (
        f"{100 * (lower / stated - 1):.2g} %"
        if lower < 2 * stated
        else f"a factor of {lower / max(stated, 1e-300):.3g}"
    )
    return Remark(
        kind=RemarkKind.MISTAKE,
        name="accounting",
        text=f"these settings cost more than is stated, by {short}: no right accountant shows so small an ε for them",
        instead="account with quietsum spend, or with any exact accountant",
    )


def price_line(event: PrivacyEvent, delta: float, neighbours: Neighbours) -> Guarantee:
    """What ``event`` costs, from both sides; a group without a tight pair goes by the generic rule."""
    try:
        return ExactAccountant(neighbours=neighbours).compose(event).epsilon(delta=delta)
    except UnsupportedEvent:
        if not isinstance(event, Group):
            raise
        single = ExactAccountant(neighbours=neighbours).compose(event.event)
        return group_guarantee(single, size=event.size, delta=delta)
