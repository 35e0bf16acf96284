"""What goes to an MLflow store, piece by piece, and how each piece is written there so that a second try does no harm.

Only this file imports ``mlflow``, and only when something is sent. A piece that was written and whose answer was lost
is written again: the run is found by its tags, a metric with the same round and time is the same metric, a parameter
with the same value stays, a file replaces itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import re
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from quietsum.errors import QuietsumError
from quietsum.federation import RoundFinished
from quietsum.files import NoRoom, write_atomically
from quietsum.privacy import Guarantee
from quietsum.runs.tracking.values import round_values

__all__ = ["EarlierRounds", "Ending", "File", "Round", "RunOpening", "Store", "StorePiece", "Tags"]

BATCH = 100
"""MLflow takes at most so many parameters and tags at once."""
PAGE = 100
BUSY = (408, 429, 503, 504)
"""Statuses of a server that may take the same later."""
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorePiece:
    """Something to send."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOpening(StorePiece):
    """A run begins or goes on."""

    folder: Path
    run: str
    ledger: str
    experiment: str
    tags: Mapping[str, str]
    params: Mapping[str, str]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Round(StorePiece):
    """The numbers of one round; ``time`` in milliseconds."""

    round: int
    time: int
    metrics: Mapping[str, float]
    tags: Mapping[str, str]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlierRounds(StorePiece):
    """Rounds up to ``last`` that stand in the run's ``events.jsonl`` and may be missing in the store."""

    path: Path
    last: int

    def read(self) -> Iterator[Round]:
        """Each round once, as its last line has it; a line that is none of ours is passed over.

        Guarantees: no more of a line is used than a round sends while its run goes on (rule 5).
        """
        places: dict[int, int] = {}
        try:
            with self.path.open("rb") as file:
                while line := file.readline():
                    if b'"round-finished"' in line and (found := self._round(line)) is not None:
                        places[found.round] = file.tell() - len(line)
                for number in sorted(places):
                    file.seek(places[number])
                    if (found := self._round(file.readline())) is not None:
                        yield found
        except FileNotFoundError:
            return

    def _round(self, line: bytes) -> Round | None:
        try:
            values = json.loads(line)
            number = values["round"]
            if values["event"] != RoundFinished.kind or type(number) is not int or not 1 <= number <= self.last:
                return None
            numbers, tags = round_values(
                number, [Guarantee.from_dict(each) for each in values["reserved"]], values["metrics"],
                values["metrics_on"],
            )  # fmt: skip
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, QuietsumError):
            return None
        if not all(isinstance(text, str) for text in tags.values()):
            return None
        return Round(round=number, time=int(time.time() * 1000), metrics=numbers, tags=tags)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Tags(StorePiece):
    """Tags of the run."""

    tags: Mapping[str, str]


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class File(StorePiece):
    """A file to keep beside the run."""

    path: Path


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending(StorePiece):
    """How the run ended."""

    status: str
    tags: Mapping[str, str]


@final
class Store:
    """One run in one MLflow store."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._client: Any = None
        self._run = ""

    def send(self, pieces: Sequence[StorePiece]) -> None:
        """Write ``pieces``: one, or several rounds. Blocks as long as the store does, and raises what it raises."""
        from mlflow.tracking import MlflowClient

        if self._client is None:
            self._client = MlflowClient(tracking_uri=self._uri)
        match pieces[0]:
            case RunOpening() as opening:
                self._run = self._open(opening)
            case Tags(tags=tags):
                self._tag(tags)
            case File(path=path):
                self._client.log_artifact(self._run, str(path))
            case Ending(status=status, tags=tags):
                self._tag(tags)
                self._client.set_terminated(self._run, status=status)
            case EarlierRounds() as earlier:
                self._catch_up(earlier)
            case _:
                self._log([piece for piece in pieces if isinstance(piece, Round)])

    def _log(self, rounds: Sequence[Round], known: Mapping[str, Container[int]] = MappingProxyType({})) -> None:
        """Write ``rounds``, but for metrics whose round is ``known``."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, one.time, one.round)
            for one in rounds
            for name, value in one.metrics.items()
            if one.round not in known.get(name, ())
        ]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + BATCH])
        self._tag({name: text for one in rounds for name, text in one.tags.items()})

    def _catch_up(self, earlier: EarlierRounds) -> None:
        """Write the rounds of ``earlier`` that the store does not have; a second try asks again what it has."""
        known = {
            name: {one.step for one in self._client.get_metric_history(self._run, name)}
            for name in self._client.get_run(self._run).data.metrics
        }
        rounds = earlier.read()
        while some := list(itertools.islice(rounds, BATCH)):
            self._log(some, known)

    def _open(self, opening: RunOpening) -> str:
        from mlflow.entities import Param

        note = opening.folder / "mlflow.json"
        experiment = self._experiment(opening.experiment)
        run = self._remember(opening, note) or self._search(opening, experiment)
        if run is None:
            run = str(self._client.create_run(experiment, run_name=opening.run, tags=dict(opening.tags)).info.run_id)
        else:
            self._client.update_run(run, status="RUNNING")
        with contextlib.suppress(NoRoom):  # its tags find it again
            write_atomically(note, json.dumps({"run_id": run, "experiment_id": experiment}).encode() + b"\n")
        self._run = run
        self._tag(opening.tags)
        params = [Param(name, text) for name, text in opening.params.items()]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(run, params=params[start : start + BATCH])
        return run

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self._client.get_experiment_by_name(name)  # somebody else was quicker
        return str(found.experiment_id)

    def _remember(self, opening: RunOpening, note: Path) -> str | None:
        """The MLflow run that the run folder remembers, where the store has it and it is this run's."""
        from mlflow.exceptions import MlflowException

        try:
            run = json.loads(note.read_text(encoding="utf-8"))["run_id"]
        except (OSError, ValueError, LookupError, TypeError):
            return None
        try:
            found = self._client.get_run(run)
        except MlflowException as error:
            if not self.is_refusal(error):
                raise
            return None
        tags = found.data.tags
        ours = (tags.get("quietsum.run"), tags.get("quietsum.ledger")) == (opening.run, opening.ledger)
        return run if ours and found.info.lifecycle_stage == "active" else None

    def _search(self, opening: RunOpening, experiment: str) -> str | None:
        """The MLflow run with this run's tags. A filter knows no escapes, so what it cannot hold is compared here."""
        wanted = {"quietsum.run": opening.run, "quietsum.ledger": opening.ledger}
        where = " and ".join(f"tags.`{name}` = '{text}'" for name, text in wanted.items() if _PLAIN.fullmatch(text))
        token: str | None = None
        while True:
            page = self._client.search_runs([experiment], filter_string=where, max_results=PAGE, page_token=token)
            for run in page:
                if all(run.data.tags.get(name) == text for name, text in wanted.items()):
                    return str(run.info.run_id)
            token = page.token
            if not token:
                return None

    def _tag(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        every = [RunTag(name, text[:5000]) for name, text in tags.items()]
        for start in range(0, len(every), BATCH):
            self._client.log_batch(self._run, tags=every[start : start + BATCH])

    @staticmethod
    def is_silent(error: BaseException) -> bool:
        """Whether no server answered: no connection, no reply in time, or one that is too busy."""
        from mlflow.exceptions import MlflowException
        from requests.exceptions import RequestException

        if isinstance(error, MlflowException) and error.get_http_status_code() in BUSY:  # type: ignore[no-untyped-call]
            return True

        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, RequestException | ConnectionError | TimeoutError):
                return True
            seen = seen.__cause__ or seen.__context__
        return False

    @staticmethod
    def is_refusal(error: BaseException) -> bool:
        """Whether the store has answered that it will never take this."""
        from mlflow.exceptions import MlflowException

        if not isinstance(error, MlflowException):
            return False
        status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
        return 400 <= status < 500 and status not in BUSY
