"""When something is an alert: plain facts in, alerts out, nothing is sent.

:class:`Course` follows one run, of a federation or of a trainer, and says each thing once: again only after it had gone
away. Every threshold is a key of ``[rules]`` in ``alerts.toml``.

* **Budget.** A lifetime budget of which four fifths are reserved is a warning, one that is gone is critical. A run that
  uses its own plan's ε does what it was planned to do: four fifths of that are a notice, and no alert.
* **Rejected.** A robust rule leaves honest updates out, too. For each party the rounds in which it was left out are
  held against ``honest_rejections`` by a likelihood ratio, averaged over the rounds in which an attack may have begun:
  a test martingale, which by Ville's inequality exceeds parties/α with probability at most α/parties in the whole run,
  however long it is, as long as an honest party's chance to be left out in a round is at most ``honest_rejections``
  given all that happened before. "Rejected" never means "malicious".
* **Drop-outs.** Too large a share in the last rounds, or one party several times in a row.
* **Divergence.** A score that stays worse than at the start, or loses most of what it had gained, a loss that doubles,
  a score or step that is not finite, or steps ten times as long as they were.
* **Chance.** A finished model whose first score is no better than a stated chance level: the task's, the operator's, a
  half for an AUC, else that of the model it began with.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from quietsum.alerts.alert import SCORES, Alert, AlertKind, Severity, Subject, as_number
from quietsum.alerts.fields import setting
from quietsum.errors import InvalidParameter
from quietsum.validate import finite_number, positive, probability, whole_number

__all__ = [
    "CHANCE_LEVELS",
    "BudgetFact",
    "Course",
    "RoundFact",
    "Thresholds",
    "alert_of_refusal",
    "finding",
    "ledger_broken",
]

ATTACKED = 0.9
"""How often an update that a rule is made for is left out: the alternative in the likelihood ratio."""
LOSS_DOUBLES = 2.0
GAIN = 0.1
"""A score that rose by less than this above its start has nothing to lose."""
FIRST_STEPS = 5
MOST_NAMES = 5
CHANCE_LEVELS = {"auc": 0.5, "auroc": 0.5, "concordance": 0.5, "balanced accuracy": 0.5}
"""What a model that knows nothing scores on any data."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Thresholds:
    """``[rules]``: from where on something is an alert."""

    budget: float = setting(0.8, "The share of a budget from which on its use raises an alert.")
    rejected: float = setting(0.5, "The share of updates left out by the rule, over the last rounds.")
    honest_rejections: float = setting(0.4, "How often a robust rule may leave out an honest party.")
    false_alarms: float = setting(0.001, "The chance of a false alarm about rejected parties, in a whole run.")
    drop_outs: float = setting(0.5, "The share of parties lost, over the last rounds.")
    in_a_row: int = setting(3, "Losing a party so many times in a row raises an alert.")
    window: int = setting(10, "How many of the last rounds a share is taken of.")
    patience: int = setting(5, "A score is worse, or a step too long, when it was so for so many rounds in a row.")
    margin: float = setting(0.02, "So much above chance counts as chance, so much below the start as the start.")
    chance: Mapping[str, float] = setting(
        {}, "Chance levels by score, { accuracy = 0.54 }; they come before the task's."
    )
    growth: float = setting(10.0, "Steps so many times as long as the first ones raise an alert.")

    def __post_init__(self) -> None:
        for name in ("budget", "rejected", "drop_outs", "false_alarms", "honest_rejections"):
            if not 0 < probability(name, getattr(self, name)) < 1 + (name in ("budget", "rejected", "drop_outs")):
                raise InvalidParameter(name, getattr(self, name), "must lie between 0 and 1", "0.5, say")
        if self.honest_rejections >= ATTACKED:
            problem = f"leaves nothing to tell from an update that is left out in {ATTACKED:.0%} of rounds"
            raise InvalidParameter("honest_rejections", self.honest_rejections, problem, "0.4, say")
        for name in ("in_a_row", "window", "patience"):
            whole_number(name, getattr(self, name), 1)
        probability("margin", self.margin)
        positive("growth", self.growth)
        if not isinstance(self.chance, Mapping):
            raise InvalidParameter("chance", self.chance, "is no table", "write { accuracy = 0.54 }")
        for name, level in self.chance.items():
            finite_number(f"chance.{name}", level)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class BudgetFact:
    """How much of one budget is reserved. ``planned``: of the run's own plan, which means to use it up."""

    share: float
    epsilon: float
    unit: str
    planned: bool = False
    subject_kind: Subject = Subject.RUN
    subject: str = ""
    dataset: str = ""
    round: int | None = None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundFact:
    """One finished round. ``lost`` were asked and sent nothing, ``rejected`` were left out by the rule.

    ``metrics`` stand on public data, the first of them counts most; ``chance`` are the levels that the task states.
    """

    round: int
    asked: int = 0
    kept: Sequence[str] = ()
    lost: Sequence[str] = ()
    rejected: Sequence[str] = ()
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    chance: Mapping[str, float] = dataclasses.field(default_factory=dict)
    step_norm: float | None = None


@final
class Course:
    """What is worth an alert in the course of one run."""

    def __init__(self, thresholds: Thresholds | None = None, *, run: str = "", parties: int = 0) -> None:
        self._thresholds, self._run, self._parties = thresholds or Thresholds(), run, parties
        self._told: set[tuple[str, ...]] = set()
        self._rounds: collections.deque[RoundFact] = collections.deque(maxlen=self._thresholds.window)
        self._evidence: dict[str, float] = {}
        self._left_out: dict[str, tuple[int, int]] = {}
        self._in_a_row: dict[str, int] = {}
        self._start: Mapping[str, float] = {}
        self._seen: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._chance: dict[str, float] = {}
        self._worse: collections.Counter[str] = collections.Counter()
        self._steps: list[float] = []
        self._last = 0

    def begin(self, metrics: Mapping[str, float], chance: Mapping[str, float] | None = None) -> None:
        """The scores of the model that the run begins with; leave it out where a run goes on."""
        self._start = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._seen.update(self._start)
        self._chance.update(chance or {})

    # ------------------------------------------------------------------------------------------------ budget

    def budget(self, *facts: BudgetFact) -> list[Alert]:
        """Budgets that are nearly used up, each once; those of several parties that are so together are one alert."""
        limit = self._thresholds.budget
        fresh: dict[tuple[object, ...], list[BudgetFact]] = {}
        for fact in facts:
            key = ("budget", fact.subject_kind.value, fact.subject, fact.dataset, fact.unit, str(fact.planned))
            if self._anew(key, fact.share >= limit):
                fresh.setdefault((fact.subject_kind, fact.unit, fact.planned, fact.epsilon), []).append(fact)
        return [self._low(found, limit) for found in fresh.values()]

    def _low(self, facts: Sequence[BudgetFact], limit: float) -> Alert:
        first, share = facts[0], max(fact.share for fact in facts)
        names = _names(dict.fromkeys(fact.subject for fact in facts if fact.subject))
        if first.planned:
            whose, how = "the run's own", " is reserved, as its schedule says"
        else:
            data = dict.fromkeys(fact.dataset for fact in facts)
            on = f" on {first.dataset}" if len(data) == 1 and first.dataset else ""
            whose, how = f"the lifetime budget{f' of {names}' if names else ''}{on},", ", is reserved"
        return self._alert(
            AlertKind.BUDGET_LOW,
            Severity.NOTICE if first.planned else Severity.WARNING,
            f"{_percent(share)} of {whose} ε = {math.ceil(first.epsilon * 1e4 - 1e-3) / 1e4:g} per {first.unit}{how}",
            round=first.round, subject_kind=first.subject_kind, subject=names,
            statistic=f"share of ε per {first.unit}", value=share, threshold=limit,
        )  # fmt: skip

    def budget_gone(self, reason: str, **more: Any) -> list[Alert]:
        """That a charge did not fit, once."""
        if not self._anew(("gone", str(more.get("subject", "")))):
            return []
        return [self._alert(AlertKind.BUDGET_GONE, Severity.CRITICAL, f"a budget is spent: {reason}", **more)]

    # ------------------------------------------------------------------------------------------------ rounds

    def round(self, fact: RoundFact) -> list[Alert]:
        """What one more finished round tells."""
        self._last = fact.round
        self._rounds.append(fact)
        self._chance.update(fact.chance)
        found = [*self._about_lost(fact), *self._about_rejected(fact), *self._about_step(fact)]
        found += self._about_scores(fact)
        self._seen.update({name: value for name, value in fact.metrics.items() if math.isfinite(value)})
        return found

    def _about_lost(self, fact: RoundFact) -> Iterator[Alert]:
        limits, rows = self._thresholds, self._rounds
        asked, lost = sum(row.asked for row in rows), sum(len(row.lost) for row in rows)
        share = lost / asked if asked else 0.0
        enough = len(rows) >= min(limits.in_a_row, limits.window)
        if self._anew(("lost",), enough and share >= limits.drop_outs):
            yield self._alert(
                AlertKind.DROP_OUTS, Severity.WARNING,
                f"{_percent(share)} of the parties asked in the last {len(rows)} rounds were lost",
                round=fact.round, statistic="share of parties lost", value=share, threshold=limits.drop_outs,
            )  # fmt: skip
        for party in fact.lost:
            self._in_a_row[party] = self._in_a_row.get(party, 0) + 1
        for party in (*fact.kept, *fact.rejected):
            self._in_a_row.pop(party, None)
            self._told.discard(("lost", party))
        fresh = [
            party
            for party in dict.fromkeys(fact.lost)
            if self._anew(("lost", party), self._in_a_row.get(party, 0) >= limits.in_a_row)
        ]
        if fresh:
            yield self._alert(
                AlertKind.DROP_OUTS, Severity.WARNING,
                f"{_names(fresh)} {_were(fresh)} lost {limits.in_a_row} times in a row",
                round=fact.round, subject_kind=Subject.PARTY, subject=_names(fresh),
                statistic="rounds lost in a row", value=max(self._in_a_row[one] for one in fresh),
                threshold=limits.in_a_row,
            )  # fmt: skip

    def _about_rejected(self, fact: RoundFact) -> Iterator[Alert]:
        limits, rows = self._thresholds, self._rounds
        judged, out = sum(len(row.kept) + len(row.rejected) for row in rows), sum(len(row.rejected) for row in rows)
        share = out / judged if judged else 0.0
        enough = len(rows) >= min(limits.patience, limits.window)
        if self._anew(("rejected",), enough and share > limits.rejected):
            yield self._alert(
                AlertKind.REJECTED, Severity.WARNING,
                f"the rule left out {_percent(share)} of all updates in the last {len(rows)} rounds; "
                "with so few kept it may follow the wrong ones",
                round=fact.round, statistic="share of updates rejected", value=share, threshold=limits.rejected,
            )  # fmt: skip
        fresh = []
        rejected = set(fact.rejected)
        p, q = limits.honest_rejections, ATTACKED
        for party in {*fact.kept, *rejected}:
            was_out = party in rejected
            count, of = self._left_out.get(party, (0, 0))
            self._left_out[party] = count + was_out, of + 1
            # the sum over all rounds s in which it may have begun, with weights 1/(s (s + 1)), which add up to one
            begun = self._evidence.get(party, 0.0) + 1 / ((of + 1) * (of + 2))
            self._evidence[party] = min(1e300, begun * (q / p if was_out else (1 - q) / (1 - p)))
            known = max(self._parties, len(self._left_out))
            beyond = self._evidence[party] + 1 / (of + 2) >= known / limits.false_alarms
            if self._anew(("rejected", party), beyond, again=False):
                fresh.append(party)
        if fresh:
            fresh.sort()
            counts = {party: self._left_out[party] for party in fresh}
            shares = dict.fromkeys(f"{out} of {of} rounds" for out, of in list(counts.values())[:MOST_NAMES])
            told, whose = ", ".join(shares), "its" if len(fresh) == 1 else "their"
            worst = max(out / of for out, of in counts.values())
            yield self._alert(
                AlertKind.REJECTED, Severity.WARNING,
                f"the rule left out {_names(fresh)} in {told}; that is no proof of bad faith, {whose} data may differ",
                round=fact.round, subject_kind=Subject.PARTY, subject=_names(fresh),
                statistic="share of rounds rejected", value=worst, threshold=limits.honest_rejections,
                false_positive_rate=limits.false_alarms,
            )  # fmt: skip

    def _about_step(self, fact: RoundFact) -> Iterator[Alert]:
        norm, limits = fact.step_norm, self._thresholds
        if norm is None:
            return
        usual = statistics.median(self._steps) if len(self._steps) >= FIRST_STEPS else math.inf
        if math.isfinite(norm) and len(self._steps) < FIRST_STEPS:
            self._steps.append(norm)
        long = not math.isfinite(norm) or norm > limits.growth * usual > 0
        self._worse["a step"] = self._worse["a step"] + 1 if long else 0
        beyond = not math.isfinite(norm) or self._worse["a step"] >= limits.patience
        if self._anew(("step",), long and beyond):
            many = "is not finite" if not math.isfinite(norm) else f"is {norm / usual:.3g} times as long as at first"
            yield self._alert(
                AlertKind.STEP_NORM, Severity.WARNING,
                f"the model's step {many}; lower the learning rate, or stop the run", round=fact.round,
                subject_kind=Subject.MODEL, statistic="norm of the step", value=norm,
                threshold=None if math.isinf(usual) else limits.growth * usual,
            )  # fmt: skip

    def _about_scores(self, fact: RoundFact) -> Iterator[Alert]:
        limits = self._thresholds
        for name in dict.fromkeys((*fact.metrics, *self._seen)):
            value, better = fact.metrics.get(name), SCORES.get(_plain(name))
            gone = (value is not None and not math.isfinite(value)) or (value is None and bool(fact.metrics))
            # a score that a task could no longer compute is left out by it
            if gone and name == next(iter(self._start or self._seen), None):
                if self._anew(("not finite", name)):
                    yield self._divergence(fact, name, math.nan, None, f"{name} is no longer a number")
                continue
            start = self._start.get(name)
            if value is None or not math.isfinite(value) or better is None or start is None:
                continue
            if better:
                best = self._best[name] = max(self._best.get(name, start), value)
                lost = best - start >= GAIN and value < start + (best - start) / 2
                worse, bound = value < start - limits.margin or lost, start - limits.margin
                words = f"{name} fell to {value:.3f}" + (f" from {best:.3f}" if lost else f", and began at {start:.3f}")
                bound = start + (best - start) / 2 if lost else bound
            else:
                worse, bound = value > LOSS_DOUBLES * start > 0, LOSS_DOUBLES * start
                words = f"{name} rose to {value:.3g}, and began at {start:.3g}"
            self._worse[name] = self._worse[name] + 1 if worse else 0
            if self._anew(("worse", name), self._worse[name] >= limits.patience) and self._first(name):
                yield self._divergence(fact, name, value, bound, f"{words}, for {self._worse[name]} rounds")

    def _divergence(self, fact: RoundFact, name: str, value: float, bound: float | None, words: str) -> Alert:
        return self._alert(
            AlertKind.DIVERGENCE, Severity.WARNING, f"the model gets worse: {words}", round=fact.round,
            subject_kind=Subject.MODEL, statistic=name, value=value, threshold=bound,
        )  # fmt: skip

    def _first(self, name: str) -> bool:
        """Whether no other score has said the same already: scores fall together."""
        return not any(key[0] == "worse" and key[1] != name for key in self._told)

    # -------------------------------------------------------------------------------------------------- end

    def end(self, outcome: str, *, round: int | None = None, reason: str = "") -> list[Alert]:
        """What the end of a run tells: ``finished``, ``early``, ``budget``, ``too-few-parties`` or ``interrupted``."""
        where = self._last if round is None else round
        match outcome:
            case "budget":
                return [*self.budget_gone(reason or "the run has stopped", round=where), *self._no_better(where)]
            case "too-few-parties":
                said = reason or "too few parties answered"
                return [self._alert(AlertKind.TOO_FEW, Severity.CRITICAL, f"the run has stopped: {said}", round=where)]
            case "finished":
                done = self._alert(AlertKind.RUN_ENDED, Severity.NOTICE, "the run has ended as planned", round=where)
                return [*self._no_better(where), done]
            case "early":
                said = f"the run was stopped early: {reason or 'a callback has asked for it'}"
                early = self._alert(AlertKind.RUN_ENDED, Severity.NOTICE, said, round=where)
                return [*self._no_better(where), early]
        return [self._alert(AlertKind.RUN_ENDED, Severity.NOTICE, "the run was broken off by hand", round=where)]

    def _no_better(self, where: int) -> Iterator[Alert]:
        """By the first score alone: it is the one that the task is about."""
        last = self._rounds[-1].metrics if self._rounds else {}
        for name, value in last.items():
            better = SCORES.get(_plain(name))
            if better is None or not math.isfinite(value):
                return
            level, source = self._level(name)
            margin = self._thresholds.margin
            if level is None or (value > level + margin if better else value < level - margin * abs(level)):
                return
            yield self._alert(
                AlertKind.CHANCE, Severity.WARNING,
                f"the model is no better than chance: {name} {value:.3f}, {source} {level:.3f}", round=where,
                subject_kind=Subject.MODEL, statistic=name, value=value, threshold=level,
            )  # fmt: skip
            return

    def _level(self, name: str) -> tuple[float | None, str]:
        stated = {**self._chance, **self._thresholds.chance}
        for known, level in stated.items():
            if _plain(known) == _plain(name):
                return float(level), "by chance"
        if _plain(name) in CHANCE_LEVELS:
            return CHANCE_LEVELS[_plain(name)], "by chance"
        return self._start.get(name), "at the start"

    def _alert(self, kind: AlertKind, severity: Severity, sentence: str, **more: Any) -> Alert:
        return Alert(kind=kind, severity=severity, sentence=sentence, run=self._run, **more)

    def _anew(self, key: tuple[str, ...], holds: bool = True, *, again: bool = True) -> bool:
        """Whether ``holds`` has just become true; what is over may be raised again, unless ``again`` is False."""
        if not holds:
            if again:
                self._told.discard(key)
            return False
        if key in self._told:
            return False
        self._told.add(key)
        return True


def finding(
    *,
    rule: str,
    statistic: str,
    value: float,
    threshold: float,
    subject_kind: str | Subject = Subject.PARTY,
    subject: str = "",
    round: int | None = None,
    run: str = "",
    false_positive_rate: float | None = None,
    evidence: str = "",
    time: str = "",
    severity: Severity = Severity.WARNING,
) -> Alert:
    """The alert for what a detector found; the keys of a finding are these.

    >>> found = finding(rule="norms", statistic="norm", value=9.5, threshold=3.0, subject="Basel", round=4)
    >>> found.sentence
    'norms: norm 9.5 of party Basel is beyond 3; that is a measurement, and no verdict'
    """
    value, threshold = as_number("value", value), as_number("threshold", threshold)
    kind = Subject(str(subject_kind))
    whom = "the model" if kind is Subject.MODEL else f"{kind} {subject}".strip()
    chance = "" if false_positive_rate is None else f" (by itself in {false_positive_rate:.2g} of cases)"
    return Alert(
        kind=AlertKind.FINDING, severity=severity, round=round, run=run, subject_kind=kind, subject=subject,
        sentence=f"{rule}: {statistic} {value:.3g} of {whom} is beyond {threshold:.3g}{chance}; "
        "that is a measurement, and no verdict",
        statistic=statistic, value=value, threshold=threshold, false_positive_rate=false_positive_rate,
        evidence=evidence, **({"time": time} if time else {}),
    )  # fmt: skip


def ledger_broken(problem: str, *, run: str = "", round: int | None = None) -> Alert:
    """The alert for a ledger that is not what was written."""
    return Alert(
        kind=AlertKind.LEDGER, severity=Severity.CRITICAL, run=run, round=round, subject_kind=Subject.LEDGER,
        sentence=problem,
    )  # fmt: skip


def alert_of_refusal(site: str, reason: str, *, run: str = "", round: int | None = None) -> Alert:
    """The alert for a request that a site has refused, for the site's own operator."""
    return Alert(
        kind=AlertKind.REFUSED, severity=Severity.WARNING, run=run, round=round, subject_kind=Subject.SITE,
        subject=site, sentence=f"a request was refused: {reason}",
    )  # fmt: skip


def _plain(name: str) -> str:
    return name.replace("_", " ").replace("-", " ").strip().lower()


def _names(parties: Iterable[str]) -> str:
    names = list(parties)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more


def _were(parties: Sequence[str]) -> str:
    return "was" if len(parties) == 1 else "were"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
