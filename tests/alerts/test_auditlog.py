"""The log of alerts: every damage is found, by its line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from quietsum.alerts import Alert, AlertKind as Kind, AuditLog, Severity, auditlog
from quietsum.errors import CorruptState, QuietsumError
from quietsum.files import NoRoom


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "alerts.log")


def fill(log: AuditLog, count: int = 6) -> list[bytes]:
    for number in range(count):
        log.append("alert", Alert(kind=Kind.TEST, severity=Severity.WARNING, sentence=f"number {number}").to_dict())
    return log.path.read_bytes().splitlines(keepends=True)


def test_lines_are_chained_by_the_hash_that_the_page_says(log: AuditLog) -> None:
    fill(log)
    before = "0" * 64
    for number, line in enumerate(log.path.read_text(encoding="utf-8").splitlines(), start=1):
        values = json.loads(line)
        digest = values.pop("hash")
        text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert (values["line"], values["before"]) == (number, before)
        assert digest == hashlib.sha256(text.encode()).hexdigest()
        before = digest
    assert log.verify() == 6 and [line.alert is not None for line in log.lines()] == [True] * 6
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_an_empty_or_absent_log_is_in_order(log: AuditLog) -> None:
    assert log.verify() == 0 and list(log.lines()) == []


@pytest.mark.parametrize("number", [1, 3, 6])
def test_a_changed_line_is_found_by_its_number(log: AuditLog, number: int) -> None:
    lines = fill(log)
    lines[number - 1] = lines[number - 1].replace(b"number", b"Number")
    log.path.write_bytes(b"".join(lines))
    with pytest.raises(CorruptState, match=rf"line {number}: it was changed"):
        log.verify()


def test_a_line_that_was_changed_and_given_a_new_hash_is_found_by_the_next(log: AuditLog) -> None:
    lines = fill(log)
    values = json.loads(lines[2])
    values.pop("hash")
    values["values"]["sentence"] = "nothing happened"
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    values["hash"] = hashlib.sha256(text.encode()).hexdigest()
    lines[2] = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
    log.path.write_bytes(b"".join(lines))
    with pytest.raises(CorruptState, match=r"line 4: it does not follow"):
        log.verify()


@pytest.mark.parametrize(("keep", "found"), [((0, 1, 3, 4, 5), 3), ((0, 1, 2, 2, 3, 4, 5), 4), ((1, 0, 2, 3, 4, 5), 1)])
def test_lines_taken_out_put_in_or_exchanged_are_found(log: AuditLog, keep: tuple[int, ...], found: int) -> None:
    lines = fill(log)
    log.path.write_bytes(b"".join(lines[number] for number in keep))
    with pytest.raises(CorruptState, match=rf"line {found}: it does not follow"):
        log.verify()


@pytest.mark.parametrize("left", [0, 1, 5])
def test_a_tail_that_is_gone_is_found_and_stays_found_when_the_log_goes_on(log: AuditLog, left: int) -> None:
    lines = fill(log)
    log.path.write_bytes(b"".join(lines[:left]))
    with pytest.raises(CorruptState, match=rf"ends with line {left}, and line 6 was written"):
        log.verify()
    fill(log, 10)
    with pytest.raises(CorruptState, match=rf"line {left + 1}: .* a tail was taken away"):
        log.verify()


def test_a_log_or_head_that_was_deleted_is_found(log: AuditLog) -> None:
    fill(log)
    content, head = log.path.read_bytes(), log.head.read_bytes()
    log.path.unlink()
    with pytest.raises(CorruptState, match="its tail is gone"):
        log.verify()
    log.path.write_bytes(content)
    log.head.unlink()
    with pytest.raises(CorruptState, match="is gone, so nothing says"):
        log.verify()
    log.head.write_bytes(b"{}")
    with pytest.raises(CorruptState, match="cannot be read"):
        log.verify()
    log.head.write_bytes(head)
    assert log.verify() == 6


def test_a_line_cut_in_half_is_found_and_the_log_goes_on_behind_it(log: AuditLog) -> None:
    fill(log)
    with log.path.open("ab") as file:
        file.write(b'{"line":7,"ti')
    with pytest.raises(CorruptState, match=r"line 7: it is cut off"):
        log.verify()
    log.append("run-started", {"run": "r"})
    assert [line.event for line in log.lines()][-2:] == ["torn", "run-started"] and log.verify() == 8


def test_whatever_stands_in_a_line_is_an_error_with_its_number_and_no_traceback(log: AuditLog) -> None:
    lines = fill(log)
    for odd in (b"[]\n", b"null\n", b"\xff\xfe\n", b"{}\n", b"[" * 100_000 + b"\n", b'{"hash": 3}\n'):
        log.path.write_bytes(b"".join([lines[0], odd, *lines[2:]]))
        with pytest.raises(CorruptState, match="line 2"):
            log.verify()


def test_a_kill_between_line_and_head_leaves_a_log_in_order(log: AuditLog) -> None:
    fill(log, 2)
    code = (
        "import os, pathlib, quietsum.failpoints as f\n"
        "from quietsum.alerts import AuditLog, auditlog\n"
        "auditlog.reach = lambda name: os._exit(9) if name == 'auditlog:appended' else None\n"
        f"AuditLog(pathlib.Path({str(log.path)!r})).append('alert', {{}})\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 9
    assert log.verify() == 3
    fill(log, 1)
    assert log.verify() == 4


def many(count: int) -> list[tuple[str, dict[str, object]]]:
    return [("alert", {"number": number}) for number in range(count)]


def test_many_lines_are_synced_as_often_as_one_and_chained_like_it(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = list[int](), os.fsync

    def fsync(handle: int) -> None:
        synced.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    counts = []
    for count in (1, 1, 50):
        synced.clear()
        lines = log.extend(many(count))
        counts.append(len(synced))
    assert counts[0] == counts[1] == counts[2] and [line.line for line in lines] == list(range(3, 53))
    assert log.verify() == 52 and [line.values["number"] for line in list(log.lines())[2:]] == list(range(50))
    synced.clear()
    assert log.extend([]) == [] and synced == []


@pytest.mark.parametrize("left", [0.01, 0.32, 0.55, 0.99])
def test_lines_that_a_killed_process_wrote_in_part_leave_whole_lines_and_a_word_about_the_rest(
    log: AuditLog, left: float
) -> None:
    fill(log, 2)
    before, head = log.path.read_bytes(), log.head.read_bytes()
    log.extend(many(10))
    added = log.path.read_bytes()[len(before) :]
    log.path.write_bytes(before + added[: int(left * len(added))])  # as if killed before its head was written
    log.head.write_bytes(head)
    log.append("run-started", {"run": "r"})
    whole = added[: int(left * len(added))].count(b"\n")
    events = [line.event for line in log.lines()]
    assert events == ["alert"] * (2 + whole) + ["torn", "run-started"] and log.verify() == len(events)


def test_a_full_disk_takes_all_lines_of_a_round_or_none(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, 3)
    before = log.path.read_bytes()
    monkeypatch.setattr("quietsum.alerts.auditlog.os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(NoRoom):
        log.extend(many(5))
    monkeypatch.undo()
    assert log.path.read_bytes() == before and log.verify() == 3


def test_several_writers_make_one_chain(log: AuditLog) -> None:
    threads = [threading.Thread(target=fill, args=(AuditLog(log.path), 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.verify() == 40


def test_a_full_disk_leaves_the_log_as_it_was(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, 3)
    before = log.path.read_bytes()
    real = os.fsync

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoRoom, match="the disk is full"):
        log.append("alert", {})
    monkeypatch.setattr(os, "fsync", real)
    assert log.path.read_bytes() == before and log.verify() == 3


def test_a_pipe_or_folder_in_its_place_holds_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(NoRoom):
            AuditLog(tmp_path / name).append("alert", {})
        with pytest.raises(CorruptState):
            AuditLog(tmp_path / name).verify()


# ------------------------------------------------------------------------------------- what is not its own to write


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    """A stranger's workspace may hold one; what it points at stays as it is."""
    victim = tmp_path / "thesis.txt"
    victim.write_bytes(b"without an end of line")
    (tmp_path / "alerts.log").symlink_to(victim)
    with pytest.raises(QuietsumError, match="cannot be written"):
        AuditLog(tmp_path / "alerts.log").append("started", {})
    assert victim.read_bytes() == b"without an end of line"


@pytest.mark.parametrize("content", [b"a word", b"one line\nand a half", b"[1, 2]\n"])
def test_a_file_of_somebody_else_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "alerts.log"
    path.write_bytes(content)
    with pytest.raises(QuietsumError, match="is no log of alerts"):
        AuditLog(path).append("started", {})
    assert path.read_bytes() == content


def test_a_log_that_another_process_holds_is_given_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    log = AuditLog(tmp_path / "alerts.log")
    log.append("started", {})
    monkeypatch.setattr("quietsum.alerts.auditlog.PATIENCE", 0.05)
    with log.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(QuietsumError, match="another process has held it"):
            log.append("finished", {})
    log.append("finished", {})
    assert log.verify() == 2


@pytest.mark.parametrize("head", [b"[" * 60000, b'{"line": 1e400, "hash": ""}', b'{"line": [], "hash": ""}'])
def test_a_head_of_whatever_kind_is_told_as_damage(tmp_path: Path, head: bytes) -> None:
    log = AuditLog(tmp_path / "alerts.log")
    log.append("started", {})
    log.head.write_bytes(head)
    with pytest.raises(CorruptState):
        log.verify()


def test_a_log_of_any_length_is_read_a_line_at_a_time(log: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it is, no more than one line's limit is asked of the file at once."""
    lines = fill(log, 40)
    monkeypatch.setattr(auditlog, "LONGEST", max(map(len, lines)))
    assert log.path.stat().st_size > 16 * auditlog.LONGEST, "the control: more than is read at once"
    assert log.verify() == 40 and [line.line for line in log.lines()] == list(range(1, 41))
    reading = log.lines()
    assert next(reading).line == 1
    fill(log, 3)
    assert sum(1 for _ in reading) == 39, "what is appended meanwhile is left for the next time"
    assert log.verify() == 43


def test_a_line_without_an_end_is_told_by_its_number_and_not_read_whole(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = fill(log, 3)
    monkeypatch.setattr(auditlog, "LONGEST", max(map(len, lines)))
    with log.path.open("ab") as file:
        file.write(b"x" * (40 * auditlog.LONGEST) + b"\n")
    with pytest.raises(CorruptState, match="line 4: it is cut off"):
        log.verify()
