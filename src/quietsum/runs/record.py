"""run.db: what the operator may query about a run. SQLite, one row a round, one a metric, one a party left out.

The schema is stable; new columns may come, none goes. Nothing here is needed to resume: that is what checkpoints and
the ledger are for, and a run whose run.db was deleted goes on.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Self, final

from quietsum.errors import CorruptState
from quietsum.federation.watch import PartyDropped, RoundFinished, RoundStarted, RunEvent
from quietsum.privacy.units import PrivacyUnit

__all__ = ["SCHEMA", "Recorder", "history"]

SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, asked INTEGER, kept INTEGER,
  epsilon_record REAL, epsilon_client REAL, delta REAL, finished INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (round, attempt)) STRICT;
CREATE TABLE IF NOT EXISTS metrics (
  round INTEGER NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, on_data TEXT NOT NULL,
  PRIMARY KEY (round, name)) STRICT;
CREATE TABLE IF NOT EXISTS left_out (
  round INTEGER NOT NULL, attempt INTEGER NOT NULL, party TEXT NOT NULL, reason TEXT NOT NULL,
  refunded INTEGER NOT NULL) STRICT;
"""


@final
class Recorder:
    """A watcher that writes run.db."""

    def __init__(self, path: Path) -> None:
        try:
            self._database = sqlite3.connect(path, isolation_level=None, timeout=10)
            path.chmod(0o600)
            self._database.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise CorruptState(f"{path} cannot be used ({error}); move it away, nothing in it is needed") from None
        self._attempt = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def saw(self, event: RunEvent) -> None:
        """Write it down."""
        match event:
            case RoundStarted():
                self._attempt = event.attempt
                self._put("INSERT OR IGNORE INTO rounds (round, attempt) VALUES (?, ?)", event.round, event.attempt)
            case PartyDropped():
                self._put(
                    "INSERT INTO left_out VALUES (?, ?, ?, ?, ?)",
                    event.round, self._attempt, event.party, event.reason, int(event.refunded),
                )  # fmt: skip
            case RoundFinished():
                self._finish(event)

    def _finish(self, event: RoundFinished) -> None:
        worst = {unit: max((g.epsilon for g in event.spent if g.unit is unit), default=None) for unit in PrivacyUnit}
        delta = next((guarantee.delta for guarantee in event.spent), None)
        self._put(
            "UPDATE rounds SET asked = ?, kept = ?, epsilon_record = ?, epsilon_client = ?, delta = ?, finished = 1 "
            "WHERE round = ? AND attempt = ?",
            event.asked, len(event.kept), worst[PrivacyUnit.RECORD], worst[PrivacyUnit.CLIENT], delta,
            event.round, self._attempt,
        )  # fmt: skip
        for name, value in event.metrics.items():
            self._put(
                "INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", event.round, name, value, event.metrics_on[name]
            )

    def _put(self, statement: str, *values: object) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise CorruptState(f"run.db cannot be written ({error}); make room, then go on with --resume") from None


def history(path: Path, metric: str) -> list[tuple[int, float | None, float | None]]:
    """(round, ε per record, value of ``metric``) of every finished round; empty where there is no run.db."""
    if not path.is_file():
        return []
    try:
        database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            rows = database.execute(
                "SELECT r.round, max(r.epsilon_record), m.value FROM rounds r "
                "LEFT JOIN metrics m ON m.round = r.round AND m.name = ? WHERE r.finished GROUP BY r.round ORDER BY 1",
                (metric,),
            ).fetchall()
        finally:
            database.close()
    except sqlite3.Error as error:
        raise CorruptState(f"{path} cannot be read ({error})") from None
    return [(int(number), epsilon, value) for number, epsilon, value in rows]
