"""A watcher that writes a run into an MLflow tracking store: ε and δ of every round, metrics, plan, model and report.

``privacy_epsilon/record`` and ``privacy_delta/record`` (one pair a unit: record, person, client) have the round as
their step. The live ε is what the ledger has reserved, if the schedule runs as planned; where the server and the
recipients of the model would learn different amounts, the larger one is sent, and a tag says against whom it holds.
What the run may claim stands in its report. An infinite ε is no number: a tag then says that there is no guarantee.

The store is for the operator's circle, and every run there has the tag ``operator_only``. Tracking stores are read by
more people than run folders are, so who took part is never sent: not who was asked, kept or dropped, how many, or why,
nor the reason why a run stopped, which may name a party. A refusal before data was touched takes its charge back in the
ledger; the ε that is sent counts it all the same, because a smaller one would tell who refused.

Guarantees: no round waits for the store and no run fails with it. A thread of its own does the
talking, from a queue with a bound; what cannot be sent is tried again while the run goes on, logged in one warning of
each kind, and given up when the run has ended and nothing has moved for a few seconds. Rounds that the store does not
have are read from ``events.jsonl`` of the run folder: at the end of the run, and whenever it is resumed with a store.
Nothing that a run needs is kept there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import threading
import time
from collections import Counter, deque
from pathlib import Path
from types import TracebackType
from typing import Self, final

from quietsum.alerts import Alert, for_others
from quietsum.errors import QuietsumError
from quietsum.federation import RoundFinished, RunEvent, RunFinished, RunStarted
from quietsum.runs.checkpoint import head_of
from quietsum.runs.folder import RunFolder
from quietsum.runs.tracking.address import check_address, without_secrets
from quietsum.runs.tracking.pieces import EarlierRounds, Ending, File, Round, RunOpening, Store, StorePiece, Tags
from quietsum.runs.tracking.values import flatten_plan, round_values

__all__ = ["MlflowWatcher"]

log = logging.getLogger(__name__)

EVENTS = "events.jsonl"
PATIENCE = 10.0
ROOM = 1000
MOST_TRIES = 3
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
CALM = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}
"""How MLflow behaves as long as a watcher is open, where the environment sets nothing else."""
MUTE = {"MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
"""The same, always set: MLflow would print the address with its password, into a command's output."""
"""What :func:`without_secrets` takes out."""


@final
class MlflowWatcher:
    """Sends what a run shows to the MLflow store at ``uri``; a resumed run goes on in the MLflow run it began.

    Pass it to :func:`quietsum.runs.run.start` among the watchers, and its :meth:`open` as ``opened``. Close it after
    the report is written, so that the report is sent too.
    """

    def __init__(self, uri: str, *, experiment: str = "quietsum", patience: float = PATIENCE, room: int = ROOM) -> None:
        if importlib.util.find_spec("mlflow") is None:
            raise QuietsumError("MLflow is not installed here; pip install 'quietsum[mlflow]', or leave --mlflow out")
        self._uri, self._experiment, self._patience, self._room = check_address(uri), experiment, patience, room
        self._pending: deque[StorePiece] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._folder: RunFolder | None = None
        self._report_was: float | None = None
        self._outcome = ""
        self._tags: dict[str, str] = {}
        self._told: set[str] = set()
        self._before: dict[str, str | None] = {}
        self._lost: Counter[str] = Counter()
        self._moved = self._last_round = 0
        self._closing = self._hopeless = self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ the run's side

    def open(self, folder: RunFolder) -> None:
        """The run's folder is there: from here on something can be sent."""
        self._folder = folder
        self._report_was = _change_time(folder.path / "report.json")

    def saw(self, event: RunEvent) -> None:
        """Take note of ``event`` and return at once. It never raises."""
        try:
            match event:
                case RunStarted():
                    self._begin(event)
                case RoundFinished():
                    self._round(event)
                case RunFinished():
                    self._outcome = event.outcome
                    if self._folder is not None and event.outcome != "interrupted":
                        self._put(File(path=self._folder.model))
        except Exception as error:
            self._warn("event", f"an event could not be written for MLflow ({type(error).__name__}: {error})")

    def alert(self, alert: Alert) -> None:
        """Tag the run with what others may know of ``alert``, and with nothing where that is nothing (rule 5)."""
        told = for_others(alert)
        if told is not None and self._folder is not None:
            where = "" if told.round is None else f"round {told.round}: "
            self._put(Tags(tags={f"quietsum.alert.{told.kind}": f"{where}{told.sentence} ({told.severity})"}))

    def _begin(self, event: RunStarted) -> None:
        if self._folder is None:
            return
        tags = {
            "quietsum.run": event.run, "quietsum.ledger": self._folder.ledger, "quietsum.task": event.task,
            "quietsum.style": event.style, "quietsum.outcome": "running", "operator_only": "true",
        }  # fmt: skip
        if event.epsilon is None:
            tags["quietsum.privacy"] = "no guarantee"
        plan = self._folder.plan()
        self._put(
            RunOpening(
                folder=self._folder.path, run=event.run, ledger=self._folder.ledger, tags=tags,
                params=flatten_plan(plan.to_dict()), experiment=self._experiment,
            )
        )  # fmt: skip
        self._put(File(path=self._folder.path / "plan.toml"))
        self._last_round = event.first_round - 1
        if self._last_round:
            self._put(EarlierRounds(path=self._folder.path / EVENTS, last=self._last_round))
        if self._thread is None:
            wanted = {name: value for name, value in CALM.items() if name not in os.environ} | MUTE
            self._before = {name: os.environ.get(name) for name in wanted}
            os.environ.update(wanted)
            self._thread = threading.Thread(target=self._talk, name="quietsum-mlflow", daemon=True)
            self._thread.start()

    def _round(self, event: RoundFinished) -> None:
        numbers, tags = round_values(event.round, event.reserved, event.metrics, event.metrics_on)
        self._last_round = event.round
        fresh = {name: text for name, text in tags.items() if self._tags.get(name) != text}
        self._tags.update(fresh)
        self._put(Round(round=event.round, time=int(time.time() * 1000), metrics=numbers, tags=fresh))

    def _put(self, piece: StorePiece) -> None:
        with self._change:
            if self._hopeless or (isinstance(piece, Round) and len(self._pending) >= self._room):
                self._lost[_name(piece)] += 1
            else:
                self._pending.append(piece)
                self._change.notify_all()
                return
        if not self._hopeless:
            self._warn("full", f"{self._where} is too slow: the queue is full, and rounds are left out there")

    def close(self) -> None:
        """Send the report and the outcome, wait as long as things move, and say what was not sent."""
        if self._closed:
            return
        self._closed = True
        if self._thread is None or self._folder is None:
            return
        try:
            if self._lost["rounds"] and (events := self._folder.path / EVENTS).is_file():
                self._put(EarlierRounds(path=events, last=self._last_round))
            for piece in self._last_pieces(self._folder):
                self._put(piece)
        except Exception as error:
            self._warn("event", f"the end of the run could not be written for MLflow ({error})")
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._wait(self._thread)
        with self._change:
            left = self._lost + Counter(map(_name, self._pending))
            self._pending.clear()
            self._hopeless = True
        if left:
            later = f"quietsum run --resume {self._folder.run} --mlflow URI"
            kept = f"all of it is in {self._folder.path}, and {later} sends it"
            self._warn("unsent", f"not sent to {self._where}: {_in_words(left)}; {kept}")
        if not self._thread.is_alive():
            for name, value in self._before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def _last_pieces(self, folder: RunFolder) -> list[StorePiece]:
        pieces: list[StorePiece] = []
        if _change_time(folder.path / "report.json") != self._report_was:
            pieces += [File(path=folder.path / name) for name in ("report.json", "report.html")]
        tags = {"quietsum.outcome": self._outcome or "error"}
        saved = [folder.model] if self._outcome not in ("", "interrupted") else []
        saved += sorted(folder.checkpoints.glob("round-*.safetensors"), reverse=True)
        for path in saved[:1]:
            with contextlib.suppress(QuietsumError):
                head = head_of(path)
                tags["quietsum.ledger.head"] = f"{head.sequence} {head.hash}"
        status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(self._outcome, "FAILED")
        return [*pieces, Ending(status=status, tags=tags)]

    def _wait(self, thread: threading.Thread) -> None:
        """Until the thread has ended, or nothing has moved for ``patience`` seconds, or thrice that time is over."""
        now = time.monotonic()
        still, over, moved = now + self._patience, now + 3 * self._patience, self._moved
        while thread.is_alive() and now < min(still, over):
            thread.join(0.05)
            now = time.monotonic()
            if moved != self._moved:
                moved, still = self._moved, now + self._patience

    # --------------------------------------------------------------------------------------- the thread's side

    def _talk(self) -> None:
        """Send piece after piece. What fails stays in the queue for the next try, or is given up."""
        store, tries, wait = Store(self._uri), 0, FIRST_WAIT
        while (pieces := self._next()) is not None:
            try:
                store.send(pieces)
            except Exception as error:  # whatever a tracking store does is no business of the run
                tries += 1
                unreachable = store.is_silent(error)
                if unreachable:
                    self._warn("unreachable", f"{self._where} does not answer, or not well; the run goes on without it")
                else:
                    text = " ".join(without_secrets(str(error)).split())[:200]
                    self._warn("refused", f"{self._where} did not take something; the run goes on ({text})")
                opening, enough = isinstance(pieces[0], RunOpening), tries >= MOST_TRIES
                if self._closing and (unreachable or (opening and enough)):
                    return
                if not unreachable and (store.is_refusal(error) or (enough and not opening)):
                    self._give_up(pieces)
                    tries = 0
                    continue
                with self._change:
                    self._change.wait_for(lambda: self._closing, timeout=wait)
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                tries, wait = 0, FIRST_WAIT
                self._done(pieces)

    def _next(self) -> list[StorePiece] | None:
        """What to send now, left in the queue until it is sent: one piece, or all rounds in a row; None at the end."""
        with self._change:
            self._change.wait_for(lambda: self._pending or self._closing)
            if not self._pending:
                return None
            pieces = [self._pending[0]]
            if isinstance(pieces[0], Round):
                for piece in list(self._pending)[1:]:
                    if not isinstance(piece, Round) or len(pieces) >= 50:
                        break
                    pieces.append(piece)
            return pieces

    def _done(self, pieces: list[StorePiece]) -> None:
        with self._change:
            self._moved += 1
            if isinstance(pieces[0], EarlierRounds) and pieces[0].last == self._last_round:
                del self._lost["rounds"]
            for _ in range(min(len(pieces), len(self._pending))):
                self._pending.popleft()

    def _give_up(self, pieces: list[StorePiece]) -> None:
        with self._change:
            if not self._pending:  # closed in the meantime
                return
            if isinstance(pieces[0], RunOpening):  # without a run there, nothing has a place
                self._hopeless = True
                pieces = list(self._pending)
            self._lost.update(map(_name, pieces))
            for _ in pieces:
                self._pending.popleft()

    @property
    def _where(self) -> str:
        return f"the MLflow store at {without_secrets(self._uri)}"

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s", text)


def _change_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _name(piece: StorePiece) -> str:
    match piece:
        case Round():
            return "rounds"
        case EarlierRounds():
            return "earlier rounds"
        case Tags():
            return "alerts"
        case File(path=path):
            return path.name
        case Ending():
            return "the outcome"
    return "the run itself"


def _in_words(left: Counter[str]) -> str:
    return ", ".join(f"{count} rounds" if name == "rounds" else name for name, count in left.items())
