"""``quietsum run``: train, with every round paid for first.

The command reads its options and prints; everything else is :mod:`quietsum.running`, which Python programs use, too.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.logs import watch_log
from quietsum.cli.shared.output import print_warning, text_width
from quietsum.cli.shared.signals import Interruption
from quietsum.cli.train.flower import (
    PATIENCE,
    InsecureOption,
    KeysOption,
    ListenOption,
    Runtime,
    SuperLinkOption,
    WaitOption,
)
from quietsum.cli.train.run_text import print_end, print_interruption, print_introduction
from quietsum.errors import InvalidParameter, QuietsumError, printable

if TYPE_CHECKING:
    from pathlib import Path

    from quietsum.federation import Watcher
    from quietsum.plan import Rehearsal, ResolvedPlan
    from quietsum.runs import RunFolder

__all__ = ["run"]

PlanArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN.TOML]", help="The plan; make one with quietsum new.", show_default=False)
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with this run; latest is the newest.",
        show_default=False,
        autocompletion=opt.complete_run,
    ),
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
DEVICES = ("cpu", "cuda", "mps", "xpu")
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
    runtime = Runtime(on=on, keys=keys, listen=listen, folder=superlink, wait=wait, insecure=insecure)
    _check_words(plan, resume, name, runtime, workers, device)
    watch_log(verbose)
    where = [] if workspace is None else ["--workspace", workspace]
    interruption = Interruption()
    folder: RunFolder | None = None

    def begin(begun: RunFolder) -> None:
        nonlocal folder
        folder = begun
        interruption.check()
        if runtime.remote and not as_json:
            text = f"this coordinator's ledger is {folder.ledger}; sites pin it as coordinator.ledger"
            print(textwrap.fill(text, text_width()), flush=True)

    with interruption.listen():
        try:
            from quietsum.plan import load_plan, resolve
            from quietsum.running import open_session
            from quietsum.runs import Workspace, check_whom
            from quietsum.tasks import task_of

            place = Workspace.at(workspace)
            if resume is not None:
                folder = place.find(resume)
                check_whom(folder, sites=runtime.remote, workspace=place)  # before a SuperLink is started
            lines = sys.stdout if as_json else None
            with open_session(place.path, mlflow=mlflow, warn=print_warning, alert_lines=lines) as here:
                with _screen(as_json) as screen, runtime.open(place.path / "superlink", quiet=as_json) as sites:
                    if folder is not None:
                        task = task_of(folder.plan(), device=device)
                        if not as_json:
                            print(f"run {folder.run} goes on after its last checkpoint")
                        done = here.resume(
                            folder, watchers=[screen], task=task, federation=sites, workers=workers, device=device,
                            opened=begin,
                        )  # fmt: skip
                    else:
                        loaded = load_plan(str(plan))
                        task = task_of(loaded, device=device)
                        if not as_json:
                            resolved = resolve(loaded, task.parties(), task.dimension)
                            print_introduction(resolved, printable(task.title), _foresee(resolved, place.ledger))
                        done = here.run(
                            loaded, name=name, watchers=[screen], task=task, federation=sites, workers=workers,
                            device=device, same_rows=same_rows, opened=begin,
                        )  # fmt: skip
                # alerts and MLflow are waited for when the block ends, with the result on the screen
                return print_end(done, place, where, as_json, runtime.words)
        except KeyboardInterrupt:
            print_interruption(folder, where, as_json, runtime.words)
            return interruption.exit_code


def _foresee(resolved: ResolvedPlan, ledger: Path) -> Rehearsal:
    """What the run would leave of the lifetimes; nothing if the ledger is out of order: the run says it."""
    from quietsum.plan import Rehearsal, rehearse

    try:
        return rehearse(resolved, ledger)
    except QuietsumError:
        return Rehearsal()


def _check_words(
    plan: str | None, resume: str | None, name: str | None, runtime: Runtime, workers: int, device: str
) -> None:
    """Refuse options that do not fit each other, before anything is loaded or started."""
    runtime.check()
    if runtime.remote and workers > 1:
        raise InvalidParameter("workers", workers, "are for parties of this machine", "leave --workers out")
    if (plan is None) == (resume is None):
        raise InvalidParameter(
            "plan", plan, "and --resume are alternatives", "quietsum run run.toml, or quietsum run --resume latest"
        )
    if not 1 <= workers <= MOST_WORKERS:
        remedy = f"choose 1 (this process) to {MOST_WORKERS}; about as many as there are cores"
        raise InvalidParameter("workers", workers, "is no number of processes", remedy)
    if device.partition(":")[0] not in DEVICES:
        remedy = f"choose one of {', '.join(DEVICES)}; a card has a number, cuda:0"
        raise InvalidParameter("device", device, "is no device that torch knows", remedy)
    if resume is not None and name is not None:
        raise InvalidParameter("name", name, "stands beside --resume", "a run keeps its name")
    if runtime.remote and plan is not None:
        from quietsum.federation import refuse_drill
        from quietsum.plan import load_plan

        refuse_drill(load_plan(plan))  # before a SuperLink is started


@contextlib.contextmanager
def _screen(as_json: bool) -> Iterator[Watcher]:
    """What a person or a program sees of the run; a terminal is given back in order, however it ends."""
    from quietsum.runs import EventLines, Progress

    progress = Progress()
    try:
        yield EventLines(sys.stdout) if as_json else progress
    finally:
        progress.stop()
