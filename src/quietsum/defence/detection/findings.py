"""A finding: something that was measured beyond its threshold, how often that happens by itself, and about whom.

A finding is a measurement and no verdict. What stands out may be an attack, a site whose patients differ, a broken
scanner or chance; so a finding names its statistic, its value, the threshold and the rate at which the threshold is
passed where nothing is wrong, and never says "malicious". It holds the few numbers that were compared and their hash,
and no update: a holder of those numbers (the run's own database) can show later that they are the same.

Findings about parties and groups are for the operator alone (rule 5). They are post-processing of what the server saw,
so they cost no privacy there; anybody else who reads them learns who took part, and gets no amplification.

>>> one = Finding(round=4, rule="direction", statistic="cosine", value=-0.31, threshold=-0.12,
...     false_positive_rate=1e-4, subject_kind="party", subject="party-3", looked={"party-3": -0.31}, time="now")
>>> one.sentence
'party-3: its update points away from the others (cosine -0.31, below -0.12; expected once in 10,000 rounds)'
>>> one.holds()
True
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, final

from quietsum.alerts import Subject, hash_of, moment
from quietsum.errors import InvalidParameter, printable
from quietsum.validate import non_negative, whole_number

__all__ = ["RULES", "Finding", "round_figure", "several"]

MOST_NAMES = 5

RULES: Mapping[str, tuple[str, str]] = {
    "norm": ("its update is shorter than the others'", "its update is longer than the others'"),
    "noise": ("its update holds less noise than the plan asks for", ""),
    "direction": (
        "its update points away from the others",
        "its update agrees with the others' more than they agree with each other",
    ),
    "copy": ("", "the same update was sent more than once, or repeats the model's last step"),
    "class-rows": (
        "for one class its update points against the others'",
        "for one class its update goes further than the others' do",
    ),
    "confusion": ("a class is recognised less often than before", "one class is taken for another more than before"),
    "trigger": ("a small change of the input leads to this class", ""),
    "spectral": ("", "some records of one class lie apart from the others"),
    "step-length": ("", "the model's steps have become longer"),
    "step-direction": ("the model's steps have turned", ""),
}
"""What each rule of detection says where a value is below, and where it is above its threshold."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One statistic beyond its threshold.

    ``false_positive_rate`` is the chance that this test speaks about anybody where nothing is wrong, under the
    assumptions of its rule; it is made every ``window`` rounds, over that many. ``looked`` holds the numbers that were
    compared, by subject (operator only), and ``evidence`` the SHA-256 of all this.
    """

    round: int
    rule: str
    statistic: str
    value: float
    threshold: float
    false_positive_rate: float
    subject_kind: Subject | str
    subject: str
    window: int = 1
    looked: Mapping[str, float] = dataclasses.field(default_factory=dict, repr=False)
    time: str = dataclasses.field(default_factory=moment)
    evidence: str = ""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise InvalidParameter("rule", self.rule, "is unknown", f"choose among {', '.join(RULES)}")
        whole_number("round", self.round, 0)
        whole_number("window", self.window, 1)
        non_negative("false_positive_rate", self.false_positive_rate)
        object.__setattr__(self, "subject_kind", Subject(str(self.subject_kind)))
        object.__setattr__(self, "subject", printable(self.subject))
        object.__setattr__(self, "looked", {name: round_figure(value) for name, value in self.looked.items()})
        for name in ("value", "threshold"):
            object.__setattr__(self, name, round_figure(getattr(self, name)))
        object.__setattr__(self, "evidence", self.evidence or self._hash())

    def _hash(self) -> str:
        return hash_of({
            "round": self.round, "rule": self.rule, "statistic": self.statistic, "window": self.window,
            "value": str(self.value), "threshold": str(self.threshold), "rate": str(float(self.false_positive_rate)),
            "subject_kind": str(self.subject_kind), "subject": self.subject,
            "looked": {name: str(value) for name, value in self.looked.items()},
        })  # fmt: skip

    def holds(self) -> bool:
        """Whether ``evidence`` is the hash of these numbers; the time of day is no part of it."""
        return self.evidence == self._hash()

    @property
    def subjects(self) -> tuple[str, ...]:
        """Everybody whom it is about: all who sent one and the same update, else one."""
        return (tuple(self.looked) if self.rule == "copy" else ()) or (self.subject,)

    @property
    def above(self) -> bool:
        """Whether the value is above its threshold, and not below."""
        return self.value >= self.threshold

    @property
    def sentence(self) -> str:
        """For people: what was measured about whom, and how often that is so by itself."""
        side = "above" if self.above else "below"
        what = RULES[self.rule][self.above] or RULES[self.rule][not self.above]
        whom = "the model" if self.subject_kind == Subject.MODEL else self.subject
        over = f" over {self.window} rounds" if self.window > 1 else ""
        units = "models" if self.rule == "trigger" else "rounds"
        often = f"expected once in {_round_number(self.window / self.false_positive_rate)} {units}" if (
            self.false_positive_rate
        ) else "never expected"  # fmt: skip
        return f"{whom}: {what} ({self.statistic} {self.value:.3g}{over}, {side} {self.threshold:.3g}; {often})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for alerts and JSON; the compared numbers stay in the run's database."""
        return {
            "time": self.time, "round": self.round, "rule": self.rule, "statistic": self.statistic,
            "value": self.value, "threshold": self.threshold, "false_positive_rate": self.false_positive_rate,
            "subject_kind": str(self.subject_kind), "subject": self.subject, "window": self.window,
            "evidence": self.evidence, "sentence": self.sentence,
        }  # fmt: skip


def several(names: Sequence[str]) -> str:
    """Subjects in one text; all of them are in what was looked at.

    >>> several(["a", "b"]), several("abcdefg")
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def round_figure(value: float) -> float:
    """Six significant digits; the last bits of a sum depend on the machine, and evidence should not.

    >>> round_figure(0.12345678), round_figure(float("inf"))
    (0.123457, inf)
    """
    number = float(value)
    return float(f"{number:.6g}") if math.isfinite(number) else number


def _round_number(count: float) -> str:
    """``count`` with one significant digit, rounded down."""
    if not math.isfinite(count) or count >= 1e15:
        return f"{count:.0e}"
    size = 10 ** max(0, math.floor(math.log10(max(count, 1.0)) + 1e-9))
    return f"{max(1, math.floor(count / size + 1e-9)) * size:,}"
