"""``quietsum alerts``: what was raised and when, whether the log of it is whole, and whether alerts arrive."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietsum.cli.shared import options as opt
from quietsum.cli.shared.output import print_json, print_next, text_width
from quietsum.errors import CorruptState, InvalidParameter

if TYPE_CHECKING:
    from quietsum.alerts import Alert, AuditLog, Line, Sink

__all__ = ["alerts"]

RunArgument = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="Of this run alone; latest is the newest.", show_default=False)
]
VerifyOption = Annotated[bool, typer.Option("--verify", help="Check that no line was changed, taken out or lost.")]
TestOption = Annotated[
    bool, typer.Option("--test", help="Send a test by every sink of alerts.toml, and trust that file from now on.")
]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="Notices, and what was not sent, as well.")]
PolicyOption = Annotated[
    Path | None,
    typer.Option("--policy", metavar="POLICY.TOML", help="Of the site with this policy.", show_default=False),
]


def alerts(
    run: RunArgument = None,
    verify: VerifyOption = False,
    test: TestOption = False,
    everything: AllOption = False,
    policy: PolicyOption = None,
    workspace: opt.WorkspaceOption = None,
    as_json: opt.JsonOption = False,
) -> int:
    """Show the alerts of a workspace or site: what was raised, when and why.

    Example: quietsum alerts latest

    They are the operator's: they name sites. Nothing is sent, and no server
    is called, but by --test. Exit code 4 where the log is not in order.
    """
    if test and (verify or run is not None):
        raise InvalidParameter("test", True, "stands beside another wish", "quietsum alerts --test alone")
    place, log = _places(workspace, policy)
    if test:
        return _test(place, policy, as_json)
    name = None if run is None else _name(run, workspace, policy)
    if verify:
        count = log.verify()
        missing = [] if policy is not None else _missing(place, log.lines())
        if missing:
            raise CorruptState(
                f"{log.path} does not hold an alert that {missing[0]} holds: lines are gone; restore the log"
            )
        if as_json:
            print_json({"log": str(log.path), "lines": count, "in_order": True})
        else:
            print(f"{log.path}: {count} lines, in order")
        return 0
    shown = [line for line in log.lines() if _belongs(line, name, everything)]
    if as_json:
        print_json({"log": str(log.path), "alerts": [_plain(line) for line in shown]})
        return 0
    _print(shown, name, _where(workspace, policy))
    return 0


def _places(workspace: str | None, policy: Path | None) -> tuple[Path, AuditLog]:
    """The folder that alerts belong to, and their log."""
    from quietsum.alerts import LOG, AuditLog
    from quietsum.runs import Workspace

    if policy is None:
        place = Workspace.at(workspace).path
    else:
        from quietsum.party import load_policy

        loaded = load_policy(policy)
        place = loaded.path(loaded.site.ledger).parent
    if not place.is_dir():
        raise InvalidParameter("workspace", str(place), "is not there", "name one with --workspace")
    return place, AuditLog(place / LOG)


def _name(run: str, workspace: str | None, policy: Path | None) -> str:
    from quietsum.runs import Workspace

    return run if policy is not None else Workspace.at(workspace).find(run).run


def _belongs(line: Line, run: str | None, everything: bool) -> bool:
    from quietsum.alerts import Severity

    if run is not None and line.values.get("run") != run:
        return False
    alert = line.alert
    return everything or (alert is not None and alert.severity is not Severity.NOTICE)


def _plain(line: Line) -> dict[str, Any]:
    return {"line": line.line, "written": line.time, "event": line.event, **line.values}


def _where(workspace: str | None, policy: Path | None) -> list[str]:
    """The words that lead to the same place again."""
    if policy is not None:
        return ["--policy", str(policy)]
    return [] if workspace is None else ["--workspace", workspace]


def _print(shown: list[Line], run: str | None, where: list[str]) -> None:
    from quietsum.alerts import line_of
    from quietsum.errors import printable

    for line in shown:
        alert, when = line.alert, line.time[:19].replace("T", " ")
        if alert is not None:
            text = f"{when} {alert.severity}: {line_of(alert)}"
        else:
            rest = ", ".join(f"{name} {value}" for name, value in line.values.items())
            text = printable(f"{when} {line.event}: {rest}" if rest else f"{when} {line.event}")
        print(textwrap.fill(text, text_width(), subsequent_indent="  ", break_on_hyphens=False))
    if not shown:
        print("no alerts" + (f" of {run}" if run else ""))
    print_next(["alerts", "--verify", *where])


def _missing(place: Path, lines: Iterable[Line]) -> list[Path]:
    """Databases of runs with an alert that the log does not hold; one that cannot be read is another command's."""
    from quietsum.databases import for_reading
    from quietsum.runs import Workspace

    known = {_mark(alert.time, alert.kind.value, alert.sentence) for line in lines if (alert := line.alert) is not None}
    found = []
    for folder in Workspace(path=place).folders():
        path = folder.path / "run.db"
        if not path.is_file():
            continue
        try:
            database = for_reading(path, ("alerts",))
            try:
                rows = database.execute("SELECT time, kind, sentence FROM alerts").fetchall()
            finally:
                database.close()
        except sqlite3.Error:  # of an older version, or damaged
            continue
        if any(_mark(*row) not in known for row in rows):
            found.append(path)
    return found


def _mark(*parts: object) -> bytes:
    """An alert in sixteen bytes: a log may hold millions."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode(errors="replace"), digest_size=16).digest()


def _test(place: Path, policy: Path | None, as_json: bool) -> int:
    """Try every sink. The user asks for it by name, which is his word that the file may be used."""
    from quietsum.alerts import Alert, AlertKind, Severity, find, trust

    source: Path | None
    if policy is None:
        found = find(place)
        source, sinks = found.path, [] if found.path is None else found.settings.sinks(found.path.parent)
    else:
        from quietsum.party import load_policy

        loaded = load_policy(policy)
        source, sinks = policy, loaded.alerts.sinks(loaded.folder, service=True)
    if source is None:
        problem = f"has no alerts.toml: alerts are shown on the terminal and kept in {place}"
        raise InvalidParameter("workspace", str(place), problem, "write one, see docs/how-to/alerts.md")
    alert = Alert(kind=AlertKind.TEST, severity=Severity.CRITICAL, sentence="this is a test of quietsum's alerts")
    told = [(sink, _try(sink, alert)) for sink in sinks]
    failed = [sink for sink, problem in told if problem]
    if policy is None and not failed:
        trust(source)
    if as_json:
        values = [{"sink": sink.name, "audience": sink.audience.value, "problem": problem} for sink, problem in told]
        print_json({"settings": str(source), "sinks": values, "trusted": not failed})
        return 1 if failed else 0
    for sink, problem in told:
        words = f"error: {sink.name}: {problem}" if problem else f"{sink.name}: sent (for {sink.audience})"
        print(textwrap.fill(words, text_width(), subsequent_indent="  "), file=sys.stderr if problem else sys.stdout)
    if failed:
        return 1
    if policy is None:
        print(f"{source} is trusted from now on, as it is")
    return 0


def _try(sink: Sink, alert: Alert) -> str:
    from quietsum.errors import printable

    try:
        sink.send(alert, 0)
    except Exception as error:
        return printable(f"{type(error).__name__}: {error}")[:300]
    return ""
