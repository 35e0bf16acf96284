"""``quietsum run``: train, with every round paid for first."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.logs import watch_log
from quietsum.cli.shared.output import command, print_next
from quietsum.cli.shared.signals import Interruption
from quietsum.cli.train.flower import (
    PATIENCE,
    InsecureOption,
    KeysOption,
    ListenOption,
    SuperLinkOption,
    WaitOption,
    called,
    flower,
)
from quietsum.errors import CorruptState, InvalidParameter, printable

if TYPE_CHECKING:
    from quietsum.federation import Guarded, RemoteFederation, RunEvent, Watcher
    from quietsum.runs import AlertWatcher, MlflowWatcher, RunFolder, RunResult, Workspace

__all__ = ["run"]

PlanArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN.TOML]", help="The plan; make one with quietsum new.", show_default=False)
]
ResumeOption = Annotated[
    str | None,
    typer.Option("--resume", metavar="RUN", help="Go on with this run; latest is the newest.", show_default=False),
]
NameOption = Annotated[str | None, typer.Option("--name", metavar="NAME", help="What to call the run.")]
OnOption = Annotated[
    str, typer.Option("--on", metavar="WHERE", help="local: all parties on this machine; flower: sites elsewhere.")
]
WorkersOption = Annotated[
    int, typer.Option("--workers", metavar="N", help="Processes that share the parties of a round.")
]
MlflowOption = Annotated[
    str | None,
    typer.Option("--mlflow", metavar="URI", help="Also write the run to this MLflow store.", show_default=False),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="D", help="Where torch models train: cpu or cuda.")]
MOST_WORKERS = 256
"""More processes than this are a slip of the finger."""


def run(
    plan: PlanArgument = None,
    resume: ResumeOption = None,
    name: NameOption = None,
    on: OnOption = "local",
    workers: WorkersOption = 1,
    device: DeviceOption = "cpu",
    mlflow: MlflowOption = None,
    keys: KeysOption = None,
    listen: ListenOption = None,
    superlink: SuperLinkOption = None,
    wait: WaitOption = PATIENCE,
    insecure: InsecureOption = False,
    same_rows: opt.SameRowsOption = "",
    workspace: opt.WorkspaceOption = None,
    verbose: opt.VerboseOption = 0,
    as_json: opt.JsonOption = False,
) -> int:
    """Run a plan: four hospitals, say, train one model, and every round is paid for first.

    Example: quietsum run run.toml

    Ends with exit code 3 when a budget is gone and 6 when too few parties
    answered; the model of the last round is kept, and --resume goes on. So it
    does after Ctrl-C.
    """
    if on not in ("local", "flower"):
        raise InvalidParameter("on", on, "is not a runtime of this version", "use --on local or --on flower")
    if on == "local" and (keys or listen or superlink or insecure):
        raise InvalidParameter("on", on, "asks nobody elsewhere", "say --on flower, or leave --keys and --listen out")
    if on == "flower" and workers > 1:
        raise InvalidParameter("workers", workers, "are for parties of this machine", "leave --workers out")
    if (plan is None) == (resume is None):
        raise InvalidParameter(
            "plan", plan, "and --resume are alternatives", "quietsum run run.toml, or quietsum run --resume latest"
        )
    if not 1 <= workers <= MOST_WORKERS:
        remedy = f"choose 1 (this process) to {MOST_WORKERS}; about as many as there are cores"
        raise InvalidParameter("workers", workers, "is no number of processes", remedy)
    if workers > 1 and device != "cpu":
        remedy = "on a graphics card parties train side by side in one process; leave --workers out"
        raise InvalidParameter("workers", workers, f"stands beside --device {device}", remedy)
    if resume is not None and name is not None:
        raise InvalidParameter("name", name, "stands beside --resume", "a run keeps its name")
    if on == "flower" and plan is not None:
        from quietsum.federation import refuse_drill
        from quietsum.plan import load_plan

        refuse_drill(load_plan(plan))  # before a SuperLink is started
    watch_log(verbose)
    again = [] if on == "local" else called(keys=keys, listen=listen, folder=superlink, wait=wait, insecure=insecure)
    where = [] if workspace is None else ["--workspace", workspace]
    interruption, kept = Interruption(), _Kept()
    with interruption.heard():
        try:
            from quietsum.runs import Workspace, alerting

            place = Workspace.at(workspace)
            if resume is not None:
                from quietsum.runs import check_whom

                kept.folder = place.find(resume)
                check_whom(kept.folder, sites=on == "flower", workspace=place)  # before a SuperLink is started
            # both are closed after the report is written: so it is sent, too, and nobody waits for a server before
            with _tracking(mlflow) as tracker, contextlib.ExitStack() as outside:
                how = _How(
                    quiet=as_json, workers=workers, device=device, tracker=tracker, interruption=interruption,
                    kept=kept, same_rows=same_rows,
                )  # fmt: skip
                alerts = outside.enter_context(alerting(place, lines=sys.stdout if as_json else None))
                how = dataclasses.replace(how, alerts=alerts)
                with _shown(as_json) as watcher, contextlib.ExitStack() as stack, _told(alerts):
                    if on == "flower":
                        sites = flower(
                            keys=keys, listen=listen, folder=superlink, own=place.path / "superlink", wait=wait,
                            insecure=insecure, quiet=as_json,
                        )  # fmt: skip
                        how = dataclasses.replace(how, federation=stack.enter_context(sites))
                    if kept.folder is not None:
                        result = _resumed(place, kept.folder, watcher, how)
                    else:
                        result = _started(place, str(plan), name, watcher, how)
                return _finish(result, place, where, as_json, again, alerts)
        except KeyboardInterrupt:
            return _interrupted(kept.folder, interruption.exit_code, where, as_json, again)


@contextlib.contextmanager
def _shown(as_json: bool) -> Iterator[Watcher]:
    """What a person or a program sees of the run; a terminal is given back in order, however it ends."""
    from quietsum.runs import JsonLines, Progress

    progress = Progress()
    try:
        yield JsonLines(sys.stdout) if as_json else progress
    finally:
        progress.stop()


@contextlib.contextmanager
def _told(alerts: AlertWatcher) -> Iterator[None]:
    """What ends a run, or keeps it from beginning, is an alert where it is one; the error goes on its way."""
    try:
        yield
    except Exception as error:
        alerts.failed(error)
        raise


def _tracking(uri: str | None) -> contextlib.AbstractContextManager[MlflowWatcher | None]:
    if uri is None:
        return contextlib.nullcontext()
    from quietsum.runs import MlflowWatcher

    return MlflowWatcher(uri)


@final
class _Kept:
    """The folder of the run, once there is one."""

    folder: RunFolder | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _How:
    """How a run is made: by which processes or sites, who else is told, and what may break it off."""

    quiet: bool
    workers: int
    device: str
    tracker: MlflowWatcher | None
    interruption: Interruption
    kept: _Kept
    federation: RemoteFederation | None = None
    same_rows: str = ""
    alerts: AlertWatcher | None = None


def _started(place: Workspace, path: str, name: str | None, watcher: Watcher, how: _How) -> RunResult:
    from quietsum.plan import load_plan, resolve
    from quietsum.runs import start
    from quietsum.tasks import task_of

    loaded = load_plan(path)
    task = task_of(loaded, device=how.device)
    resolved = resolve(loaded, task.parties(), task.dimension)
    if not how.quiet:
        _introduce(resolved, printable(task.title))

    def check_data() -> None:
        """Whoever runs it here holds the data, and is told alone."""
        from quietsum.ledger import check_rows
        from quietsum.party import dataset_readers

        remedy = 'say why with --same-rows "…"'
        for told in check_rows(place.ledger, dataset_readers(task, resolved), reason=how.same_rows, remedy=remedy):
            print(textwrap.fill(told, 80), file=sys.stderr)

    with contextlib.ExitStack() as stack:
        watchers = _Watching(watcher, stack, how)
        return start(
            loaded, workspace=place, name=name, watchers=[watchers], task=task, workers=how.workers,
            federation=how.federation, opened=watchers.opened,
            allowed=check_data if how.federation is None and resolved.protected else None,
        )  # fmt: skip


def _resumed(place: Workspace, folder: RunFolder, watcher: Watcher, how: _How) -> RunResult:
    from quietsum.runs import resume
    from quietsum.tasks import task_of

    task = task_of(folder.plan(), device=how.device)
    if not how.quiet:
        print(f"run {folder.run} goes on after its last checkpoint")
    with contextlib.ExitStack() as stack:
        watchers = _Watching(watcher, stack, how)
        return resume(
            folder, workspace=place, watchers=[watchers], task=task, workers=how.workers, federation=how.federation,
            opened=watchers.opened,
        )  # fmt: skip


class _Watching:
    """The watcher on the screen, and once there is a run folder, the files in it and the tracking store."""

    def __init__(self, first: Watcher, stack: contextlib.ExitStack, how: _How) -> None:
        from quietsum.federation import Guarded

        self._watchers: list[Guarded] = [Guarded(first)]
        self._stack, self._how = stack, how
        self._tracker, self._tell = how.tracker, how.federation is not None and not how.quiet

    def opened(self, folder: RunFolder) -> None:
        from quietsum.federation import guarded
        from quietsum.runs import JsonLines, Recorder

        self._how.kept.folder = folder
        self._how.interruption.check()
        if self._tell:
            text = f"this coordinator's ledger is {folder.ledger}; sites pin it as coordinator.ledger"
            print(textwrap.fill(text, 80), flush=True)
        kept: list[Watcher] = [self._stack.enter_context(JsonLines(folder.path / "events.jsonl"))]
        recorder: Recorder | None = None
        try:
            recorder = self._stack.enter_context(Recorder(folder.path / "run.db"))
            kept.append(recorder)
        except CorruptState as error:  # a full disk still ends the run here: nothing is reserved yet
            print(textwrap.fill(f"warning: {error}; the run goes on without it", 80), file=sys.stderr)
        if self._tracker is not None:
            self._tracker.opened(folder)
            kept.append(self._tracker)
        if self._how.alerts is not None:
            self._how.alerts.opened(recorder, self._tracker)
            kept.append(self._how.alerts)  # the last: what it says comes behind what happened
        self._watchers += guarded(kept)

    def saw(self, event: RunEvent) -> None:
        from quietsum.federation import RoundFinished, RunFinished, RunStarted

        for watcher in self._watchers:
            watcher.saw(event)
        if isinstance(event, RunStarted | RoundFinished | RunFinished):  # nothing is reserved, and no round is lost
            for watcher in self._watchers:
                watcher.check()


def _introduce(resolved: Any, title: str) -> None:
    from quietsum.runs import NO_GUARANTEE

    plan, limits = resolved.plan, resolved.limits
    count = len(resolved.parties)
    names = ", ".join(party.name for party in resolved.parties) if count <= 12 else f"{count:,} parties"
    print(textwrap.fill(f"{title}: {names}; {plan.federation.rounds} rounds", 80))
    if not limits:
        print(f"{NO_GUARANTEE}: the plan's style is none")
    for limit in limits:
        label = f", {resolved.label}" if resolved.label else ""
        budget = f"budget ε = {limit.epsilon:g} per {limit.unit} at δ = {limit.delta:g}"
        print(textwrap.fill(f"{budget}; noise multiplier {resolved.noise_of(limit.unit):.4g}{label}", 80))
    if resolved.secure is not None:
        chosen = resolved.secure.parameters
        text = (
            f"masked: the server sees {resolved.secure.sums} a round, of {resolved.secure.floor} parties or more; "
            f"{chosen.threshold} of {chosen.holders} must collude to unmask one update"
        )
        print(textwrap.fill(text, 80))
    reasons = dict.fromkeys(party.public for party in resolved.parties if party.public)
    for reason in reasons:
        text = f"No lifetime budget is used: {reason}. Run it as often as you like."
        print(textwrap.fill(text, 80))
    for warning in resolved.warnings:
        print(textwrap.fill(f"warning: {warning}", 80))
    print()


def _interrupted(folder: RunFolder | None, code: int, where: list[str], as_json: bool, again: list[str]) -> int:
    """Say what an interruption leaves: a run that goes on, and its charges."""
    if folder is None:
        print("stopped before the run began; nothing was charged", file=sys.stderr)
        return code
    text = f"stopped: run {folder.run} is kept as its last finished round left it; what was charged stays charged"
    print(textwrap.fill(text, 80), file=sys.stderr, flush=True)
    if not as_json:
        print_next(["run", "--resume", folder.run, *again, *where])
    return code


def _finish(
    result: RunResult, place: Workspace, where: list[str], as_json: bool, again: list[str], alerts: AlertWatcher
) -> int:
    from quietsum import report
    from quietsum.cli.shared.output import print_json

    values = report.write(result.folder, place)
    code = 0 if result.error is None else result.error.exit_code
    if as_json:
        print_json({"event": "result", "exit_code": code, **values}, indent=None)
        return code
    print()
    for sentence in values["sentences"]:
        print(textwrap.fill(sentence, 80), end="\n\n")
    for warning in values["warnings"]:
        print(textwrap.fill(f"warning: {warning}", 80), end="\n\n")
    _scores(values)
    print(f"wrote {result.folder.path / 'report.html'}")
    _print_alerts(alerts, result.folder.run, place, where)
    _operator_only(result.folder)
    if result.error is None:
        print_next(["show", result.folder.run, *where])
        return code
    print(textwrap.fill(f"stopped after round {result.round}: {result.error}", 80), file=sys.stderr)
    if result.outcome == "budget":
        print_next(["ledger", "show", *where])
    else:
        print_next(["run", "--resume", result.folder.run, *again, *where])
    return code


def _print_alerts(alerts: AlertWatcher, run: str, place: Workspace, where: list[str]) -> None:
    """How many there were, those that the terminal held back included, and the command that lists all of them."""
    from quietsum.alerts import LOG, AuditLog, Severity

    count, shown = alerts.raised, alerts.shown
    if not count:
        return
    more = "" if shown >= count else f", {shown or 'none'} of them shown above"
    with contextlib.suppress(CorruptState):  # a log that is damaged is told by the command that reads it
        logged = [line.alert for line in AuditLog(place.path / LOG).lines() if line.values.get("run") == run]
        before = sum(one is not None and one.severity is not Severity.NOTICE for one in logged) - count
        more += f", and {before} before it was resumed" if before > 0 else ""
    text, see = f"alerts: {count}{more}; see", command(["alerts", run, *where])
    print(f"{text} {see}" if len(text) + len(see) < 80 else f"{text}\n  {see}")


def _operator_only(folder: RunFolder) -> None:
    """How much of the whole run the rule left out and detection found; a run.db that cannot be read says nothing."""
    from quietsum.runs import findings, left_out

    with contextlib.suppress(CorruptState):
        found, rejected = len(findings(folder.path / "run.db")), left_out(folder.path / "run.db")
        updates = 0 if rejected is None else sum(rounds for _, rounds, _ in rejected.parties)
        told = [f"{updates} update{'s' * (updates > 1)} left out by the rule"] if updates else []
        told += [f"{found} finding{'s' * (found > 1)}"] if found else []
        if told:
            print(f"in all: {', '.join(told)}; see quietsum show")


def _scores(values: dict[str, Any]) -> None:
    """The first measure, with the models beside it that have no guarantee."""
    if not values["metrics"]:
        return
    metric = values["metrics"][0]
    rows = {"this model": metric["value"], **values["references"]}
    width = max(map(len, rows))
    print(f"{metric['name'].replace('_', ' ')} on {metric['on']}")
    for label, score in rows.items():
        print(f"  {label:<{width}}  {score:.3f}")
    print()
