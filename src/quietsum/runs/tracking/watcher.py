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
each kind, and given up when the run has ended and nothing has moved for a few seconds. Nothing that a run needs is kept
there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import math
import os
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from quietsum.alerts import Alert, for_others
from quietsum.errors import QuietsumError
from quietsum.federation import RoundFinished, RunEvent, RunFinished, RunStarted
from quietsum.privacy import Guarantee, Observer, PrivacyUnit
from quietsum.runs.checkpoint import head_of
from quietsum.runs.folder import RunFolder
from quietsum.runs.tracking.address import check_address, without_secrets
from quietsum.runs.tracking.pieces import Ending, File, Round, RunOpening, Store, StorePiece, Tags

__all__ = ["MlflowWatcher", "flatten_plan", "spent_values"]

log = logging.getLogger(__name__)

PATIENCE = 10.0
ROOM = 1000
MOST_TRIES = 3
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
LONGEST_VALUE = 500
"""What every server of MLflow 2 and 3 takes as a parameter's value; plan.toml has the whole."""
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
        self._moved = 0
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
        if self._thread is None:
            wanted = {name: value for name, value in CALM.items() if name not in os.environ} | MUTE
            self._before = {name: os.environ.get(name) for name in wanted}
            os.environ.update(wanted)
            self._thread = threading.Thread(target=self._talk, name="quietsum-mlflow", daemon=True)
            self._thread.start()

    def _round(self, event: RoundFinished) -> None:
        numbers, tags = spent_values(event.reserved)  # never event.spent, which tells who refused
        for name, value in event.metrics.items():
            key = _key(name)
            tags[f"quietsum.metric.{key}.on"] = event.metrics_on[name]
            if math.isfinite(value):
                numbers[key] = float(value)
            else:
                tags[f"quietsum.metric.{key}.not_finite"] = f"round {event.round}"
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
            self._warn("unsent", f"not sent to {self._where}: {_in_words(left)}; all of it is in {self._folder.path}")
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
                if unreachable and self._closing:
                    return
                if not unreachable and (store.is_refusal(error) or tries >= MOST_TRIES):
                    self._give_up(pieces)
                    tries = 0
                    continue
                with self._change:
                    self._change.wait_for(lambda: self._closing, timeout=wait)
                wait = min(2 * wait, LONGEST_WAIT)
            else:
                tries, wait = 0, FIRST_WAIT
                self._done(len(pieces))

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

    def _done(self, count: int) -> None:
        with self._change:
            self._moved += 1
            for _ in range(min(count, len(self._pending))):
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


def spent_values(spent: tuple[Guarantee, ...]) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of what is reserved: for each unit the largest ε, with its δ, and against whom it holds."""
    numbers: dict[str, float] = {}
    tags: dict[str, str] = {}
    for unit in PrivacyUnit:
        found = [guarantee for guarantee in spent if guarantee.unit is unit]
        if not found:
            continue
        worst = max(found, key=lambda guarantee: guarantee.epsilon)
        who = {one.observer for one in found if one.epsilon == worst.epsilon}
        texts = {Observer.SERVER: "the server", Observer.RECIPIENTS: "recipients of the model"}
        against = " and ".join(text for observer, text in texts.items() if observer in who)
        if math.isinf(worst.epsilon):
            tags[f"quietsum.privacy.{unit.value}"] = f"no guarantee per {worst.whom} against {against}"
            continue
        tags[f"quietsum.privacy.{unit.value}"] = f"per {worst.whom}, against {against}, if the schedule runs as planned"
        numbers[f"privacy_epsilon/{unit.value}"] = worst.epsilon
        numbers[f"privacy_delta/{unit.value}"] = worst.delta
    return numbers, tags


def flatten_plan(values: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """A plan's values as parameters, ``privacy.record.epsilon`` for instance; long ones are cut, absent ones left out.

    >>> flatten_plan({"privacy": {"record": {"epsilon": 1.0}, "client": None}, "tags": ["a"]})
    {'privacy.record.epsilon': '1.0', 'tags': '["a"]'}
    """
    found: dict[str, str] = {}
    for name, value in values.items():
        key = f"{before}{_key(str(name))}"
        if isinstance(value, Mapping):
            found.update(flatten_plan(value, f"{key}."))
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            found[key[:250]] = text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
    return found


def _key(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name, flags=re.ASCII)[:200]


def _change_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _name(piece: StorePiece) -> str:
    match piece:
        case Round():
            return "rounds"
        case Tags():
            return "alerts"
        case File(path=path):
            return path.name
        case Ending():
            return "the outcome"
    return "the run itself"


def _in_words(left: Counter[str]) -> str:
    return ", ".join(f"{count} rounds" if name == "rounds" else name for name, count in left.items())
