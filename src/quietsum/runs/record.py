"""run.db: what the operator may query about a run. SQLite, one row a round, a metric, a party left out, an alert.

The schema is stable; new columns may come, none goes. Nothing here is needed to resume: that is what checkpoints and
the ledger are for, and a run whose run.db was deleted goes on.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from quietsum.alerts import Alert
from quietsum.databases import for_reading
from quietsum.defence import Finding
from quietsum.errors import CorruptState, printable
from quietsum.federation import (
    FindingReported,
    GroupJudged,
    PartyDropped,
    PartyRejected,
    RoundFinished,
    RoundStarted,
    RunEvent,
    RunFinished,
    RunStarted,
)
from quietsum.files import DiskFull, NoRoom
from quietsum.privacy import PrivacyUnit
from quietsum.runs.sealed import add_check, take_check
from quietsum.validate import finite_number

__all__ = [
    "SCHEMA", "LeftOut", "Recorder", "findings", "history", "plain_scores", "read_groups", "read_left_out",
    "scores_after",
]  # fmt: skip

log = logging.getLogger(__name__)

LONGEST_NAME = 1000
SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, asked INTEGER, kept INTEGER,
  epsilon_record REAL, epsilon_client REAL, delta REAL, finished INTEGER NOT NULL DEFAULT 0,
  epsilon_person REAL, clip REAL,
  PRIMARY KEY (round, attempt)) STRICT;
CREATE TABLE IF NOT EXISTS metrics (
  round INTEGER NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, on_data TEXT NOT NULL,
  PRIMARY KEY (round, name)) STRICT;
CREATE TABLE IF NOT EXISTS measured (round INTEGER PRIMARY KEY, scores TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS left_out (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, party TEXT NOT NULL, reason TEXT NOT NULL,
  refunded INTEGER NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS rejected (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, party TEXT NOT NULL, rule TEXT NOT NULL, reason TEXT NOT NULL,
  statistics TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS findings (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, time TEXT NOT NULL, rule TEXT NOT NULL, statistic TEXT NOT NULL,
  value REAL NOT NULL, threshold REAL NOT NULL, false_positive_rate REAL NOT NULL, subject_kind TEXT NOT NULL,
  subject TEXT NOT NULL, "window" INTEGER NOT NULL, evidence TEXT NOT NULL, looked TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS judged_groups (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, number INTEGER NOT NULL, kept INTEGER NOT NULL, rule TEXT NOT NULL,
  reason TEXT NOT NULL, members TEXT NOT NULL, survivors TEXT NOT NULL, statistics TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS drill (words TEXT PRIMARY KEY) STRICT;
CREATE TABLE IF NOT EXISTS alerts (
  time TEXT NOT NULL, kind TEXT NOT NULL, severity TEXT NOT NULL, sentence TEXT NOT NULL, round INTEGER,
  subject_kind TEXT NOT NULL, subject TEXT NOT NULL, statistic TEXT NOT NULL, value REAL, threshold REAL,
  false_positive_rate REAL, evidence TEXT NOT NULL) STRICT;
"""
TABLES = (
    "rounds", "metrics", "measured", "left_out", "rejected", "findings", "judged_groups", "drill", "alerts",
)  # fmt: skip


@final
class Recorder:
    """A watcher that writes run.db."""

    def __init__(self, path: Path) -> None:
        try:
            self._database = sqlite3.connect(path, isolation_level=None, timeout=10)
            path.chmod(0o600)
            self._database.executescript(SCHEMA)
        except (sqlite3.Error, ValueError) as error:
            if _full(error):
                raise DiskFull(f"{path} cannot be written ({error}); make room, then use --resume") from None
            raise CorruptState(f"{path} cannot be used ({error}); move it away, nothing in it is needed") from None
        self._attempt = 1
        self._waiting: list[tuple[str, tuple[object, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._write_waiting()
        except NoRoom as problem:  # whatever ends the run counts more
            log.warning("%s", problem)
        finally:
            self._database.close()

    def saw(self, event: RunEvent) -> None:
        """Write it down."""
        match event:
            case RunStarted() if event.note:
                self._put("INSERT OR IGNORE INTO drill VALUES (?)", event.note)
            case RoundStarted():
                self._write_waiting()
                self._attempt = event.attempt
                self._put("INSERT OR IGNORE INTO rounds (round, attempt) VALUES (?, ?)", event.round, event.attempt)
            case PartyDropped():
                values = (event.round, self._attempt, event.party, event.reason, int(event.refunded))
                self._later("INSERT INTO left_out VALUES (?, ?, ?, ?, ?)", *values)
            case PartyRejected():
                told = json.dumps(dict(event.statistics), sort_keys=True)
                judged = (event.round, self._attempt, event.party, event.rule, event.reason, told)
                self._later("INSERT INTO rejected VALUES (?, ?, ?, ?, ?, ?)", *judged)
            case GroupJudged():
                texts = (list(event.members), list(event.survivors), dict(event.statistics))
                self._later(
                    f"INSERT INTO judged_groups VALUES ({', '.join('?' * 9)})", event.round, self._attempt, event.group,
                    int(event.kept), event.rule, event.reason, *(json.dumps(text, sort_keys=True) for text in texts),
                )  # fmt: skip
            case FindingReported():
                one = event.finding
                self._later(
                    f"INSERT INTO findings VALUES ({', '.join('?' * 13)})", one.round, self._attempt, one.time,
                    one.rule, one.statistic, one.value, one.threshold, one.false_positive_rate, str(one.subject_kind),
                    one.subject, one.window, one.evidence, json.dumps(dict(one.looked), sort_keys=True),
                )  # fmt: skip
            case RoundFinished():
                self._write_waiting()
                self._finish(event)
            case RunFinished():
                self._write_waiting()

    def alert(self, alert: Alert) -> None:
        """Write an alert down."""
        names = (
            "round",
            "subject_kind",
            "subject",
            "statistic",
            "value",
            "threshold",
            "false_positive_rate",
            "evidence",
        )
        values = [alert.time, alert.kind.value, alert.severity.value, alert.sentence]
        values += [_plain(getattr(alert, name)) for name in names]
        self._put(f"INSERT INTO alerts VALUES ({', '.join('?' * len(values))})", *values)

    def _later(self, statement: str, *values: object) -> None:
        self._waiting.append((statement, values))

    def _write_waiting(self) -> None:
        """All at once: of ten thousand clients thousands may be left out, and a transaction each would take minutes."""
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        try:
            self._database.execute("BEGIN")
            for statement, values in rows:
                self._database.execute(statement, values)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._no_room(error) from None

    def _no_room(self, error: sqlite3.Error) -> NoRoom:
        problem = f"run.db cannot be written ({error}); nothing in it is needed"
        return DiskFull(problem) if _full(error) else NoRoom(problem)

    def _finish(self, event: RoundFinished) -> None:
        worst = {unit: max((g.epsilon for g in event.spent if g.unit is unit), default=None) for unit in PrivacyUnit}
        delta = next((guarantee.delta for guarantee in event.spent), None)  # of the first unit
        self._put(
            "UPDATE rounds SET asked = ?, kept = ?, epsilon_record = ?, epsilon_client = ?, epsilon_person = ?, "
            "delta = ?, clip = ?, finished = 1 WHERE round = ? AND attempt = ?",
            event.asked, len(event.kept), worst[PrivacyUnit.RECORD], worst[PrivacyUnit.CLIENT],
            worst[PrivacyUnit.PERSON], delta, event.clip, event.round, self._attempt,
        )  # fmt: skip
        for name, value in event.metrics.items():
            self._put(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", event.round, name, value, event.metrics_on[name]
            )
        scores = [{"name": name, "value": value, "on": event.metrics_on[name]} for name, value in event.metrics.items()]
        text = json.dumps(add_check({"round": event.round, "scores": scores}))
        self._put("INSERT OR REPLACE INTO measured VALUES (?, ?)", event.round, text)

    def _put(self, statement: str, *values: object) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._no_room(error) from None


def _plain(value: Any) -> Any:
    """A StrEnum as its text; a number that is not finite as no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value


def read_groups(path: Path) -> list[tuple[int, tuple[str, ...], bool]]:
    """(round, whose updates were in the sum, whether its mean was kept) of every group; empty where there is none.

    For the operator alone (rule 5).
    """
    if not path.is_file():
        return []
    try:
        database = for_reading(path, TABLES)
        try:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'judged_groups'").fetchone():
                return []
            rows = database.execute("SELECT round, survivors, kept FROM judged_groups ORDER BY rowid").fetchall()
        finally:
            database.close()
        found = []
        for number, text, kept in rows:
            members = json.loads(text)
            if not isinstance(members, list) or not all(_is_name(name) for name in members):
                raise ValueError("a group's members are no names")
            found.append((int(number), tuple(members), bool(kept)))
        return found
    except (sqlite3.Error, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def _is_name(name: object) -> bool:
    """Whether it could be a party's: a text in one line, of which a terminal obeys nothing."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name == printable(name) and name.isprintable()


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class LeftOut:
    """In how many of a run's finished ``rounds`` the rule left whose update out; most often first. Operator-only.

    ``parties`` holds the party, how many rounds, and the reason that was given last.
    """

    rule: str
    rounds: int
    parties: tuple[tuple[str, int, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        each = [{"party": party, "rounds": rounds, "reason": reason} for party, rounds, reason in self.parties]
        return {"rule": self.rule, "rounds": self.rounds, "parties": each}


def read_left_out(path: Path) -> LeftOut | None:
    """Parties that the rule left out, over all finished rounds; None if there are none. The operator's alone (rule 5).

    A round that was repeated counts once. That an update was left out says that it was unlike the others.
    """
    if not path.is_file():
        return None
    try:
        database = for_reading(path, TABLES)
        try:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'rejected'").fetchone():
                return None
            finished = {int(number) for (number,) in database.execute("SELECT round FROM rounds WHERE finished")}
            rows = database.execute("SELECT round, party, rule, reason FROM rejected ORDER BY rowid").fetchall()
        finally:
            database.close()
        seen: dict[str, set[int]] = {}
        last: dict[str, str] = {}
        for number, party, rule, reason in rows:
            if not (_is_name(party) and _is_name(rule) and isinstance(reason, str)):
                raise ValueError("a row about who was left out holds no names")
            if int(number) in finished:
                seen.setdefault(party, set()).add(int(number))
                last[party] = reason
        if not seen:
            return None
        order = sorted(seen, key=lambda party: (-len(seen[party]), party))
        parties = tuple((party, len(seen[party]), last[party]) for party in order)
        return LeftOut(rule=str(rows[-1][2]), rounds=len(finished), parties=parties)
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def _full(error: Exception) -> bool:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


def history(
    path: Path, metric: str, unit: PrivacyUnit = PrivacyUnit.RECORD
) -> list[tuple[int, float | None, float | None]]:
    """(round, ε per ``unit``, value of ``metric``) of every finished round; empty where there is no run.db."""
    if not path.is_file():
        return []
    try:
        database = for_reading(path, TABLES)
        try:
            rows = database.execute(
                f"SELECT r.round, max(r.epsilon_{PrivacyUnit(unit).value}), m.value FROM rounds r "
                "LEFT JOIN metrics m ON m.round = r.round AND m.name = ? WHERE r.finished GROUP BY r.round ORDER BY 1",
                (metric,),
            ).fetchall()
        finally:
            database.close()
        return [(int(number), _real(epsilon), _real(value)) for number, epsilon, value in rows]
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def _real(value: object) -> float | None:
    """A REAL or NULL; a damaged file may hold anything."""
    if value is None or isinstance(value, float):
        return value
    raise ValueError(f"{value!r} is not a number")


def findings(path: Path) -> list[Finding]:
    """What detection found, in its order; empty where there is no run.db, or an older one. For the operator alone.

    Guarantees: each has the hash that its numbers give; others raise :class:`~quietsum.errors.CorruptState`.
    """
    if not path.is_file():
        return []
    try:
        database = for_reading(path, TABLES)
        try:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'findings'").fetchone():
                return []
            names = (
                "round", "time", "rule", "statistic", "value", "threshold", "false_positive_rate", "subject_kind",
                "subject", "window", "evidence", "looked",
            )  # fmt: skip
            texts = ("time", "rule", "statistic", "subject_kind", "subject", "evidence", "looked")
            chosen = ", ".join(f'"{name}"' for name in names)
            rows = database.execute(f"SELECT {chosen} FROM findings ORDER BY rowid").fetchall()
        finally:
            database.close()
        found = []
        for row in rows:
            values = dict(zip(names, row, strict=True))
            if not all(isinstance(values[name], str) for name in texts):
                raise ValueError("a text of a finding is none")
            one = Finding(**{**values, "looked": dict(json.loads(values["looked"]))})
            if not one.holds():
                raise ValueError(f"a finding of round {one.round} is not what was written")
            found.append(one)
        return found
    except (sqlite3.Error, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def scores_after(path: Path, number: int) -> list[dict[str, Any]]:
    """The scores of the model after round ``number``: name, value and data; empty where they were not written down."""
    if not path.is_file():
        return []
    try:
        database = for_reading(path, TABLES)
        try:
            if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'measured'").fetchone():
                names = "SELECT name, value, on_data FROM metrics WHERE round = ? ORDER BY rowid"
                return plain_scores(
                    [{"name": n, "value": v, "on": on} for n, v, on in database.execute(names, (number,))]
                )
            row = database.execute("SELECT scores FROM measured WHERE round = ?", (number,)).fetchone()
        finally:
            database.close()
        if row is None:
            return []
        values = take_check(json.loads(row[0]))
        if values["round"] != number:
            raise ValueError("a row belongs to another round")
        return plain_scores(values["scores"])
    except (sqlite3.Error, ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptState(f"{path} cannot be read ({error}); move it away, nothing in it is needed") from None


def plain_scores(values: object) -> list[dict[str, Any]]:
    """``values`` if they are scores as a run writes them: name, value and data of each; else ValueError."""
    if not isinstance(values, list):
        raise ValueError("scores are no list")
    found = []
    for one in values:
        if not isinstance(one, dict) or not all(isinstance(one.get(name), str) for name in ("name", "on")):
            raise ValueError("a score has no name, or no data")
        finite_number("a score", one.get("value"))
        found.append({**one, "name": printable(one["name"]), "on": printable(one["on"])})
    return found
