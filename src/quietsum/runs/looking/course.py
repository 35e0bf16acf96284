"""The course of a run: each finished round with what had been spent by then and how good the model was.

It is read from run.db, which the run itself writes for people to look at; the books are the ledger. A round that was
repeated counts once, with its last attempt. Nothing is written, and no file but run.db is opened.
"""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import final

from quietsum.databases import for_reading
from quietsum.errors import CorruptState, printable
from quietsum.privacy import PrivacyUnit
from quietsum.runs.record import TABLES

__all__ = ["FinishedRound", "RunCourse", "count_drop_outs", "read_course"]

MOST = 200_000
"""Rounds that are read; a plan has 10⁶ at most, and no page shows as many."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FinishedRound:
    """One round: ε so far by unit, scores by name. ``asked`` and ``kept`` are the operator's alone (rule 5)."""

    round: int
    epsilon: Mapping[PrivacyUnit, float]
    scores: Mapping[str, float]
    asked: int | None = None
    kept: int | None = None


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunCourse:
    """The finished ``rounds`` in order; ``measured_on`` says by score on which data it stands."""

    rounds: tuple[FinishedRound, ...] = ()
    measured_on: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def last(self) -> FinishedRound | None:
        """The newest finished round."""
        return self.rounds[-1] if self.rounds else None

    def score(self) -> str | None:
        """The name of the score that is shown first; None where nothing was measured."""
        return next(iter(self.measured_on), None)


def read_course(path: Path) -> RunCourse:
    """The course in run.db at ``path``; an empty one if there is none. Raises CorruptState if it cannot be read."""
    if not path.is_file():
        return RunCourse()
    try:
        database = for_reading(path, TABLES)
        try:
            names = {str(row[1]) for row in database.execute("PRAGMA table_info(rounds)")}
            units = [unit for unit in PrivacyUnit if f"epsilon_{unit.value}" in names]
            columns = ", ".join(f"epsilon_{unit.value}" for unit in units)
            rows = database.execute(
                f"SELECT round, asked, kept, {columns} FROM rounds WHERE finished ORDER BY round, attempt LIMIT {MOST}"
            ).fetchall()
            scores = database.execute(
                f"SELECT round, name, value, on_data FROM metrics ORDER BY rowid LIMIT {8 * MOST}"
            ).fetchall()
        finally:
            database.close()
        by_round: dict[int, dict[str, float]] = {}
        measured_on: dict[str, str] = {}
        names_shown: dict[object, str] = {}
        for number, name, value, on in scores:
            shown = names_shown.get(name) or names_shown.setdefault(name, printable(str(name)))
            by_round.setdefault(int(number), {})[shown] = _finite(value)
            if shown not in measured_on:
                measured_on[shown] = printable(str(on))
        found = {
            int(number): FinishedRound(
                round=int(number), asked=_count(asked), kept=_count(kept), scores=by_round.get(int(number), {}),
                epsilon={unit: _bound(value) for unit, value in zip(units, epsilons, strict=True) if value is not None},
            )
            for number, asked, kept, *epsilons in rows
        }  # fmt: skip
        return RunCourse(rounds=tuple(found.values()), measured_on=measured_on)
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def count_drop_outs(path: Path) -> list[tuple[str, int, str]]:
    """Parties whose updates were lost: name, in how many rounds, and the reason that came last; most often first.

    For the operator alone (rule 5).
    """
    if not path.is_file():
        return []
    try:
        database = for_reading(path, TABLES)
        try:
            rows = database.execute("SELECT round, party, reason FROM left_out ORDER BY rowid").fetchall()
        finally:
            database.close()
        rounds: dict[str, set[int]] = {}
        last: dict[str, str] = {}
        for number, party, reason in rows:
            name = printable(str(party))
            rounds.setdefault(name, set()).add(int(number))
            last[name] = printable(str(reason))
        order = sorted(rounds, key=lambda name: (-len(rounds[name]), name))
        return [(name, len(rounds[name]), last[name]) for name in order]
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def _count(value: object) -> int | None:
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise ValueError(f"{value!r} is no count")


def _bound(value: object) -> float:
    if isinstance(value, float) and value >= 0:
        return value
    raise ValueError(f"{value!r} is no ε")


def _finite(value: object) -> float:
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(f"{value!r} is no score")
