"""What a check found: one finding a test, each with its figure, its threshold and a sentence that teaches."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

__all__ = ["CheckFinding", "CheckReport", "CheckVerdict"]


class CheckVerdict(enum.StrEnum):
    """How a test ended."""

    PASS = "pass"
    """Nothing speaks against the claim."""
    FAIL = "fail"
    """The claim is false."""
    SKIPPED = "skipped"
    """The step offers no seam for this question, or the claim is too weak for it to be asked."""


@final
@dataclass(frozen=True, kw_only=True)
class CheckFinding:
    """The result of one test.

    ``statistic`` is what was measured and ``threshold`` where it would fail. ``p_value`` is how often a correct step
    looks at least as bad; it is None where no chance is involved, and a failure then is certain.
    """

    test: str
    name: str
    verdict: CheckVerdict
    lesson: str
    statistic: float = 0.0
    threshold: float = 0.0
    p_value: float | None = None

    @property
    def failed(self) -> bool:
        """Whether the claim was found false."""
        return self.verdict is CheckVerdict.FAIL

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "test": self.test,
            "name": self.name,
            "verdict": str(self.verdict),
            "statistic": self.statistic,
            "threshold": self.threshold,
            "p_value": self.p_value,
            "lesson": self.lesson,
        }


@final
@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """All findings about one step.

    Guarantees: it holds statistics of made-up rows, of noise and of coins, never of a protected record, so that it may
    be shown to anyone. How seldom a correct step fails, :func:`quietsum.selfcheck.run_selfcheck` says.
    """

    step: str
    claim: Mapping[str, float]
    findings: tuple[CheckFinding, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no test failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[CheckFinding, ...]:
        """The findings that contradict the claim."""
        return tuple(finding for finding in self.findings if finding.failed)

    @property
    def caught_by(self) -> tuple[str, ...]:
        """The short names of the tests that failed."""
        return tuple(finding.test for finding in self.failures)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "step": self.step,
            "passed": self.passed,
            "claim": dict(self.claim),
            "seconds": round(self.seconds, 3),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def lines(self, width: int = 80) -> list[str]:
        """For people: a line a test, and below each failure why it matters."""
        lines = []
        for finding in self.findings:
            p_value = "" if finding.p_value is None else f"  p {finding.p_value:.1e}"
            figure = (
                "" if finding.verdict is CheckVerdict.SKIPPED else f"{finding.statistic:.5g} / {finding.threshold:.5g}"
            )
            lines.append(f"{finding.test:<4} {finding.name:<24} {finding.verdict:<8} {figure}{p_value}".rstrip())
            if finding.verdict is not CheckVerdict.PASS:
                lines += textwrap.wrap(finding.lesson, width - 5, initial_indent=" " * 5, subsequent_indent=" " * 5)
        return lines
