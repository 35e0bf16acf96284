"""Ten banks, two of which flip every label: what a robust rule saves, what noise hides from it, what is alarmed about.

    python benchmarks/fraud_defence.py                 the table: ε 8 and ε 1, five paired splits
    python benchmarks/fraud_defence.py --markdown      the same for docs/benchmarks.md
    python benchmarks/fraud_defence.py --seeds 1       does everything run?
    python benchmarks/fraud_defence.py --rounds 100 --epsilon 8 --rule signguard --attack none flip --seeds 3

The plan is ``examples/defended.toml``. Every run goes the whole way: a ledger, parties that clip and add their noise,
the drill of ``[attack]``, rule, detector, alerts and their log. The seed is the task's split, alike for all arms
(paired); noise comes from the operating system. Arms:

* *flip*: two banks train on rows whose labels are all flipped, and send what comes of it;
* *quiet flip*: the same, times 0.003, so that their updates are no longer than honest ones: what is left are signs.

Shares are means over splits, with the largest. "both rejected" is the share of rounds in which both were left out,
"by length" and "by signs" the share of the attackers' updates that each test of SignGuard left out, "honest rejected"
the share of honest updates that were left out. All rows are published, so nothing here costs anybody anything. Data is
read below $QUIETSUM_DATA.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before numpy and torch are imported

import argparse
import collections
import dataclasses
import io
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

from quietsum.alerts import AuditLog, Severity
from quietsum.errors import QuietsumError
from quietsum.federation.watch import PartyRejected, RunEvent
from quietsum.plan import AggregationPlan, AttackPlan, Plan, read_plan
from quietsum.runs.coordinator_alerts import LOG, alerting
from quietsum.runs.folder import Workspace
from quietsum.runs.run import start
from quietsum.tasks import AnyTask

EXAMPLE = ROOT / "examples" / "defended.toml"
ATTACKERS = ("client-0001", "client-0002")
QUIET = 0.003
ARMS = {"none": None, "flip": 1.0, "quiet flip": QUIET}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run came to: shares over its rounds, AUPRC, alerts by kind and, of those, who was named."""

    auprc: float
    both: float
    by_signs: float
    by_length: float
    honest: float
    by_either: float
    alerts: dict[str, int]
    named: frozenset[str]
    logged: int


def planned(base: Plan, *, epsilon: float, rule: str, arm: str, seed: int, rounds: int | None = None) -> Plan:
    """``base`` at another ε, with another rule and a drill, on split ``seed``."""
    record = dataclasses.replace(base.privacy.record, epsilon=epsilon)  # type: ignore[type-var]
    federation = base.federation if rounds is None else dataclasses.replace(base.federation, rounds=rounds)
    strength = ARMS[arm]
    return dataclasses.replace(
        base,
        task=dataclasses.replace(base.task, options={**base.task.options, "split": seed}),
        federation=federation,
        privacy=dataclasses.replace(base.privacy, record=record),
        aggregation=AggregationPlan() if rule == "mean" else dataclasses.replace(base.aggregation, rule=rule),
        attack=None if strength is None else AttackPlan(kind="label-flip", parties=2, strength=strength),
    )


class Rejections:
    """A watcher that keeps whom the rule left out, and why."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, str]] = []

    def saw(self, event: RunEvent) -> None:
        """Keep it."""
        if isinstance(event, PartyRejected):
            self.rows.append((event.round, event.party, event.reason))


def ran(plan: Plan, task: AnyTask | None = None) -> Outcome:
    """One run in a workspace of its own, with everything that looks at it."""
    rejections, printed = Rejections(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        place = Workspace.at(Path(folder))
        with alerting(place, lines=printed) as watching:
            result = start(plan, workspace=place, watchers=[watching, rejections], task=task)
        if result.error is not None:
            raise result.error
        log = AuditLog(place.path / LOG)
        log.verify()
        logged = sum(one.alert is not None and one.alert.severity is not Severity.NOTICE for one in log.lines())
    alerts = [json.loads(line) for line in printed.getvalue().splitlines()]
    return _counted(rejections.rows, alerts, plan.federation.rounds, result.metrics.values["auprc"], logged)


def _counted(
    rows: Sequence[tuple[int, str, str]], alerts: Sequence[Mapping[str, Any]], rounds: int, auprc: float, logged: int
) -> Outcome:
    bad = [(number, reason) for number, party, reason in rows if party in ATTACKERS]
    times = collections.Counter(number for number, _ in bad)
    return Outcome(
        auprc=auprc,
        both=sum(count == 2 for count in times.values()) / rounds,
        by_signs=sum("signs" in reason for _, reason in bad) / (2 * rounds),
        by_length=sum("length" in reason for _, reason in bad) / (2 * rounds),
        honest=(len(rows) - len(bad)) / (8 * rounds),
        by_either=len(bad) / (2 * rounds),
        alerts=dict(collections.Counter(str(one["kind"]) for one in alerts)),
        named=frozenset(
            name.strip() for one in alerts if one["subject_kind"] == "party" for name in one["subject"].split(",")
        ),
        logged=logged,
    )


def table(
    rows: Sequence[tuple[float, str, str]], seeds: int, say: Callable[[str], None], rounds: int | None = None
) -> dict[Any, list[Outcome]]:
    """Every run, by (ε, rule, arm), in the order of seeds."""
    base, found = read_plan(EXAMPLE), collections.defaultdict(list)
    for seed in range(seeds):
        for epsilon, rule, arm in rows:
            begun = time.perf_counter()
            plan = planned(base, epsilon=epsilon, rule=rule, arm=arm, seed=seed, rounds=rounds)
            found[epsilon, rule, arm].append(ran(plan))
            say(f"split {seed}, ε {epsilon:g}, {rule}, {arm}: {time.perf_counter() - begun:.0f} s")
    return found


ROWS = [
    (epsilon, rule, arm)
    for epsilon in (8.0, 1.0)
    for rule, arms in (("mean", ("none", "flip")), ("signguard", ("none", "flip", "quiet flip")))
    for arm in arms
]
HEADS = ("ε per record", "rule", "attack", "both rejected", "by length", "by signs", "honest rejected",
         "AUPRC", "against no attack, same rule", "alerts a run", "who was named")  # fmt: skip


def lines(found: Mapping[tuple[float, str, str], Sequence[Outcome]]) -> Iterator[tuple[str, ...]]:
    """The table's rows."""
    for (epsilon, rule, arm), runs in found.items():
        before = found.get((epsilon, rule, "none"))
        paired = [one.auprc - other.auprc for one, other in zip(runs, before, strict=True)] if before else []
        judged = rule != "mean"
        named = frozenset[str]().union(*(one.named for one in runs))
        who = "both, and no other" if named == set(ATTACKERS) else ", ".join(sorted(named)) or "none"
        yield (
            f"{epsilon:g}", rule, arm,
            _share([one.both for one in runs]) if judged and arm != "none" else "–",
            _share([one.by_length for one in runs]) if judged and arm != "none" else "–",
            _share([one.by_signs for one in runs]) if judged and arm != "none" else "–",
            _share([one.honest if arm != "none" else _all(one) for one in runs]) if judged else "–",
            _spread([one.auprc for one in runs]),
            _spread(paired, signed=True) if arm != "none" and paired else "–",
            " ".join(f"{sum(one.alerts.values())}" for one in runs),
            who,
        )  # fmt: skip


def _all(one: Outcome) -> float:
    """Without an attack all ten are honest."""
    return one.honest * 0.8 + (one.by_either or 0.0) * 0.2


def _share(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.0f} % (largest {100 * max(values):.0f})"


def _spread(values: Sequence[float], *, signed: bool = False) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):{'+' if signed else ''}.3f} ± {spread:.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="splits, 1 to 10")
    parser.add_argument("--markdown", action="store_true", help="a table for the documentation")
    parser.add_argument("--rounds", type=int, help="another number of rounds, at the same ε")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0, 1.0], help="8 and 1 if left out")
    parser.add_argument("--rule", nargs="+", default=["mean", "signguard"], help="mean, signguard or both")
    parser.add_argument("--attack", nargs="+", default=list(ARMS), help="none, flip, 'quiet flip'")
    chosen = parser.parse_args()
    rows = [row for row in ROWS if row[0] in chosen.epsilon and row[1] in chosen.rule and row[2] in chosen.attack]
    logging.disable(logging.WARNING)
    try:
        found = table(rows, chosen.seeds, lambda text: print(text, file=sys.stderr, flush=True), chosen.rounds)
    except QuietsumError as error:
        sys.exit(f"error: {error}")
    for row in (HEADS, *(("---",) * len(HEADS),) * chosen.markdown, *lines(found)):
        print(f"| {' | '.join(row)} |" if chosen.markdown else "  ".join(row))


if __name__ == "__main__":
    main()
