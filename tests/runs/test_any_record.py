"""Whatever somebody wrote into ``alerts.log`` or ``run.db`` is read, skipped or refused, and is no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from typer.testing import CliRunner

from quietsum.alerts import Alert, AlertKind as Kind, AuditLog, Severity, finding, for_others, hash_of
from quietsum.alerts.sinks import line_of
from quietsum.cli.app import app
from quietsum.defence.detection import Finding
from quietsum.errors import CorruptState, InvalidParameter
from quietsum.files import NoRoom
from quietsum.runs.record import SCHEMA, TABLES, findings, history, read_groups, read_left_out, scores_after
from quietsum.runs.sealed import add_check

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -(10**400), 2**63, 2**64, -1])
    | st.floats() | st.text(max_size=20) | st.sampled_from(["\x1b[2J", "\u202e", "a\nb", "inf", "nan", "1e999", ""])
)  # fmt: skip
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
WHOLE = Alert(kind=Kind.FINDING, severity=Severity.WARNING, sentence="odd", run="r", round=3, value=1.0).to_dict()
KEYS = sorted({*WHOLE, "subject", "subject_kind", "statistic", "threshold", "false_positive_rate", "evidence"})


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a power cut."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


# --------------------------------------------------------------------------------------------------- alerts


@given(values=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4) | JSON, whole=st.booleans())
@QUICK
def test_any_value_in_any_field_of_an_alert_is_an_alert_or_refused(values: Any, whole: bool) -> None:
    given = {**WHOLE, **values} if whole and isinstance(values, dict) else values
    try:
        alert = Alert.from_dict(given)
    except InvalidParameter:
        return
    again = Alert.from_dict(alert.to_dict())
    assert again.to_dict() == alert.to_dict()
    line_of(alert)
    for_others(alert)
    json.dumps(alert.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["value", "threshold", "false_positive_rate", "round"])
@pytest.mark.parametrize("odd", [10**400, -(10**400), "many", [], {}, True, "1e999"], ids=lambda odd: str(odd)[:6])
def test_a_number_that_no_float_can_hold_is_refused_by_name(name: str, odd: Any) -> None:
    with pytest.raises(InvalidParameter, match=name):
        Alert(kind=Kind.TEST, severity=Severity.NOTICE, sentence="x", **{name: odd})
    with pytest.raises(InvalidParameter, match=name):
        Alert.from_dict({**WHOLE, name: odd})


def test_a_detector_that_measures_beyond_a_float_is_refused_and_infinity_is_not() -> None:
    with pytest.raises(InvalidParameter, match="value"):
        finding(rule="norms", statistic="norm", value=10**400, threshold=3.0)
    assert finding(rule="norms", statistic="norm", value=float("inf"), threshold=3.0).to_dict()["value"] == "inf"


# ------------------------------------------------------------------------------------------------ alerts.log


def forged(path: Path, lines: list[dict[str, Any]]) -> None:
    """A log whose hashes are right, whatever stands in it."""
    before, content = "0" * 64, b""
    for number, line in enumerate(lines, start=1):
        values = {"line": number, "time": "2026-01-01T00:00:00", "event": "alert", "values": WHOLE, "before": before}
        values |= line
        try:
            before = hash_of(values)
        except ValueError:  # NaN, or half a letter
            before = "0" * 64
        content += json.dumps({**values, "hash": before}, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(content)
    path.with_name(path.name + ".head").write_text(json.dumps({"line": len(lines), "hash": before}), encoding="utf-8")


@given(
    lines=st.lists(
        st.dictionaries(st.sampled_from(["line", "time", "event", "values", "before"]), JSON, max_size=2)
        | st.fixed_dictionaries({"values": st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3)}),
        min_size=1, max_size=3,
    )
)  # fmt: skip
@QUICK
def test_any_value_in_any_field_of_the_log_is_read_or_told_as_damage(tmp_path: Path, lines: list[Any]) -> None:
    path = tmp_path / "alerts.log"
    forged(path, lines)
    log = AuditLog(path)
    try:
        found = list(log.lines())
        log.verify()
    except CorruptState:
        found = []
    for line in found:
        hash((line.time, line.event, *line.values.values()))  # nothing is nested
        if line.alert is not None:
            line_of(line.alert)
    with contextlib.suppress(NoRoom):  # what does not begin like a log stays as it is
        log.append("run-started", {"run": "r"})


@given(
    values=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
    words=st.sampled_from([[], ["--all"], ["--json", "--all"], ["--verify"], ["r"]]),
)
@settings(QUICK, max_examples=40)
def test_the_command_shows_a_log_of_whatever_kind_or_says_that_it_is_damaged(
    tmp_path: Path, values: dict[str, Any], words: list[str]
) -> None:
    forged(tmp_path / "alerts.log", [{}, {"values": {**WHOLE, **values}}, {"event": "note", "values": values}])
    done = CliRunner().invoke(app, ["alerts", *words, "--workspace", str(tmp_path)])
    assert done.exit_code in (0, 2, 4) and not isinstance(done.exception, Exception), done.exception
    assert "\x1b" not in done.output and "\u202e" not in done.output


# --------------------------------------------------------------------------------------------------- run.db

CELLS = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=10)
    | st.binary(max_size=10) | JSON.map(lambda value: json.dumps(value)) | st.just("[" * 5000)
)  # fmt: skip


LOOSE = SCHEMA.replace("STRICT", "").replace("NOT NULL", "").replace("INTEGER PRIMARY KEY", "")


def loose(path: Path, table: str, row: list[Any]) -> None:
    """A database as no run writes it: its tables take anything."""
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF; BEGIN;" + LOOSE)
    columns = [name for _, name, *_ in database.execute(f"PRAGMA table_info({table})")]
    filled = (row * len(columns))[: len(columns)]
    database.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", filled)
    database.execute("COMMIT")
    database.close()


@given(table=st.sampled_from(TABLES), row=st.lists(CELLS, min_size=1, max_size=13))
@settings(QUICK, max_examples=100)
def test_any_value_in_any_column_of_run_db_is_read_or_told_as_damage(
    tmp_path: Path, table: str, row: list[Any]
) -> None:
    path = tmp_path / "run.db"
    loose(path, table, row)
    for read in (
        findings,
        read_groups,
        read_left_out,
        lambda it: history(it, "accuracy"),
        lambda it: scores_after(it, 1),
    ):
        try:
            read(path)
        except CorruptState:
            continue


@given(values=st.dictionaries(st.sampled_from(["value", "threshold", "looked", "round", "subject", "time"]), CELLS))
@QUICK
def test_a_finding_with_any_value_in_place_of_its_own_is_told_as_damage_or_has_its_hash(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    one = Finding(
        round=4, rule="norm", statistic="length", value=9.0, threshold=3.0, false_positive_rate=1e-4,
        subject_kind="party", subject="a", looked={"a": 9.0, "b": 1.0}, time="2026-01-01T00:00:00",
    )  # fmt: skip
    row = {
        "round": one.round, "attempt": 1, "time": one.time, "rule": one.rule, "statistic": one.statistic,
        "value": one.value, "threshold": one.threshold, "rate": one.false_positive_rate, "kind": "party",
        "subject": one.subject, "window": one.window, "evidence": one.evidence, "looked": json.dumps(dict(one.looked)),
    }  # fmt: skip
    path = tmp_path / "run.db"
    loose(path, "findings", list({**row, **values}.values()))
    try:
        (found,) = findings(path)
    except CorruptState:
        return
    assert found.holds() and found.sentence


@given(scores=JSON, number=st.sampled_from([1, 10**400]) | JSON)
@settings(QUICK, max_examples=40)
def test_scores_of_any_kind_with_a_right_check_are_read_or_told_as_damage(
    tmp_path: Path, scores: Any, number: Any
) -> None:
    path = tmp_path / "run.db"
    for values in (scores, [scores], [{"name": scores, "value": 1.0, "on": "x"}], [{"name": "a", "value": scores}]):
        text = json.dumps(add_check({"round": number, "scores": values}))
        loose(path, "measured", [1, text])
        try:
            found = scores_after(path, 1)
        except CorruptState:
            continue
        for one in found:
            f"{one['name'].replace('_', ' '):<24} {one['value']:.3f}  on {one['on']}"


@given(members=JSON)
@settings(QUICK, max_examples=40)
def test_members_of_a_group_are_names_that_a_terminal_shows_or_damage(tmp_path: Path, members: Any) -> None:
    path = tmp_path / "run.db"
    for values in (members, [members]):
        loose(path, "judged_groups", [1, 1, 0, 1, "median", "", json.dumps(values), json.dumps(values), "{}"])
        try:
            found = read_groups(path)
        except CorruptState:
            continue
        assert all(name.isprintable() and name for _, names, _ in found for name in names)
