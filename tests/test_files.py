"""The one durable writer: a file is there as a whole or not at all, and a refusal of the system has one kind."""

from __future__ import annotations

import ast
import errno
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quietsum
from quietsum import files
from quietsum.files import (
    DiskFull,
    NoRoom,
    draft_file,
    draft_folder,
    read_memory,
    remember,
    rename,
    sync_folder,
    write_atomically,
    write_new,
    write_output,
)

PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
LASTING = (errno.EACCES, errno.EROFS, errno.EPERM)


pytestmark = pytest.mark.usefixtures("empty_folder")


def left() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def refuse(patch: pytest.MonkeyPatch, act: str, number: int) -> None:
    def refused(*given: Any, **more: Any) -> None:
        raise OSError(number, os.strerror(number))

    patch.setattr(os, act, refused)


@pytest.mark.parametrize("act", ["fsync", "replace"])
@pytest.mark.parametrize("number", [*PASSING, *LASTING])
def test_a_refused_write_leaves_the_old_file_and_says_whether_it_may_pass(act: str, number: int) -> None:
    path = Path("file")
    path.write_bytes(b"old")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(NoRoom, match="file cannot be written") as caught:
        refuse(patch, act, number)
        write_atomically(path, b"new")
    assert caught.value.exit_code == (1 if number in PASSING else 2)
    assert isinstance(caught.value, DiskFull) == (number in PASSING)
    assert path.read_bytes() == b"old" and left() == ["file"]
    write_atomically(path, b"new")  # the control
    assert path.read_bytes() == b"new"


def test_the_order_is_write_sync_rename_sync_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    acts: list[str] = []
    fsync, replace = os.fsync, os.replace

    def syncing(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size} bytes"
        acts.append(f"sync {kind}")
        fsync(handle)

    def replacing(old: Any, new: Any) -> None:
        acts.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    write_atomically(Path("file"), b"whole")
    assert acts == ["sync file of 5 bytes", "rename", "sync folder"]


def test_nothing_of_somebody_else_is_overwritten_without_replace() -> None:
    Path("file").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        write_atomically(Path("file"), b"ours", replace=False)
    assert Path("file").read_bytes() == b"theirs" and left() == ["file"]
    write_atomically(Path("other"), b"ours", replace=False)
    assert Path("other").read_bytes() == b"ours" and left() == ["file", "other"]


def test_a_file_that_appears_meanwhile_is_not_overwritten_either() -> None:
    with pytest.raises(FileExistsError), draft_file(Path("file"), replace=False) as draft:
        draft.write(b"ours")
        Path("file").write_bytes(b"theirs")
    assert Path("file").read_bytes() == b"theirs" and left() == ["file"]


def test_one_of_many_writers_wins_and_none_leaves_a_part() -> None:
    won: list[int] = []

    def write(number: int) -> None:
        try:
            write_new(Path("file"), b"%d" % number)
            won.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and Path("file").read_bytes() == b"%d" % won[0] and left() == ["file"]


@pytest.mark.parametrize("write", [write_new, lambda path, content: write_atomically(path, content, mode=0o600)])
def test_what_is_private_is_never_readable_by_others(write: Callable[[Path, bytes], None]) -> None:
    before = os.umask(0)
    try:
        write(Path("key"), b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("key").stat().st_mode) == 0o600


def test_a_new_file_that_cannot_be_finished_is_gone() -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(DiskFull):
        refuse(patch, "fsync", errno.ENOSPC)
        write_new(Path("key"), b"secret")
    assert left() == []


def test_an_error_inside_the_block_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), draft_file(Path("file")) as draft:
        draft.write(b"half")
        raise ZeroDivisionError
    assert left() == []


def test_what_a_killed_writer_left_is_in_nobody_s_way() -> None:
    Path(f".file.{os.getpid()}.part").write_bytes(b"of a process that had our number")
    Path(".file.1.part").write_bytes(b"of another")
    write_atomically(Path("file"), b"whole")
    assert Path("file").read_bytes() == b"whole" and left() == [".file.1.part", "file"]


def test_a_failing_disk_is_not_overlooked_while_a_folder_is_synced() -> None:
    for number, told in ((errno.EIO, True), (errno.EINVAL, False)):  # EINVAL: this system syncs no folders
        with pytest.MonkeyPatch.context() as patch:
            refuse(patch, "fsync", number)
            if told:
                with pytest.raises(OSError, match="error"):
                    sync_folder(Path())
            else:
                sync_folder(Path())


def test_a_rename_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    Path("old").write_bytes(b"x")
    rename(Path("old"), Path("new"))
    assert left() == ["new"] and synced == [Path()]


def test_an_output_may_be_a_device_a_link_or_a_file_and_stays_what_it_is() -> None:
    write_output(Path("/dev/null"), "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    Path("target").write_text("old")
    Path("target").chmod(0o640)
    Path("link").symlink_to("target")
    write_output(Path("link"), "new")
    assert Path("link").is_symlink() and Path("target").read_text() == "new"
    assert stat.S_IMODE(Path("target").stat().st_mode) == 0o640
    with pytest.raises(NoRoom):
        write_output(Path("no/such/folder"), "x")


def test_what_can_be_made_again_is_whole_but_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "fsync", errno.EIO)
    write_atomically(Path("file"), b"whole", sync=False)
    assert Path("file").read_bytes() == b"whole" and left() == ["file"]
    with pytest.raises(DiskFull):  # the control
        write_atomically(Path("file"), b"whole")


def test_threads_that_write_one_file_do_not_share_a_draft() -> None:
    contents = [bytes([number]) * 100_000 for number in range(8)]
    barrier = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        with draft_file(Path("file")) as draft:
            draft.write(content[:50_000])
            barrier.wait(timeout=30)
            draft.write(content[50_000:])

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path("file").read_bytes() in contents and left() == ["file"]


# ------------------------------------------------------------------------------------------------------- folders


def test_a_folder_appears_with_all_that_is_in_it() -> None:
    with draft_folder(Path("runs/first")) as draft:
        (draft / "inner").mkdir()
        write_new(draft / "inner" / "file", b"whole")
        assert not Path("runs/first").exists()
    assert Path("runs/first/inner/file").read_bytes() == b"whole" and os.listdir("runs") == ["first"]


@pytest.mark.parametrize("number", [*PASSING, *LASTING])
def test_a_folder_that_cannot_be_made_leaves_nothing_and_says_whether_it_may_pass(number: int) -> None:
    with pytest.raises(NoRoom, match="keys cannot be made") as caught, draft_folder(Path("keys")) as draft:
        write_new(draft / "file", b"whole")
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == (1 if number in PASSING else 2) and left() == []


def test_a_folder_never_takes_the_place_of_another() -> None:
    Path("keys").mkdir()
    with draft_folder(Path("keys")) as draft:  # an empty one is nobody's
        write_new(draft / "file", b"first")
    with pytest.raises(FileExistsError), draft_folder(Path("keys")):
        pass
    with pytest.raises(FileExistsError), draft_folder(Path("other")) as draft:
        write_new(draft / "file", b"second")
        Path("other").write_bytes(b"appeared meanwhile")
    assert Path("keys/file").read_bytes() == b"first" and Path("other").is_file() and left() == ["keys", "other"]


def test_a_private_folder_is_never_open_to_others() -> None:
    before = os.umask(0)
    try:
        with draft_folder(Path("keys"), mode=0o700) as draft:
            assert stat.S_IMODE(draft.stat().st_mode) == 0o700
    finally:
        os.umask(before)
    assert stat.S_IMODE(Path("keys").stat().st_mode) == 0o700


# ------------------------------------------------------------------------------------------------------- memory


def test_a_user_s_memory_holds_each_line_once_and_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    assert read_memory("ledgers") == frozenset()
    for line in ("second", "first", "second"):
        remember("ledgers", line)
    kept = Path("state/quietsum/ledgers")
    assert read_memory("ledgers") == {"first", "second"} and kept.read_text() == "first\nsecond\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_memory_that_cannot_be_written_or_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / "state"))
    Path("state").write_bytes(b"no folder")
    remember("ledgers", "first")
    assert read_memory("ledgers") == frozenset()


WRITERS = {
    "files.py": "the writer",
    "alerts/auditlog.py": "a log that is chained and synced line by line",
    "alerts/sinks.py": "alerts for the operator, line by line",
    "ledger/chain/high_water_mark.py": "in place: the mark may be late, not slow",
    "federation/flower/flwr_calls.py": "a file for the library under it, for as long as a process lives",
    "ledger/stores/sqlite.py": "an empty file for SQLite, which writes the rest",
    "federation/flower/childlog.py": "a log",
    "federation/flower/superlink.py": "a log",
    "runs/folder.py": "a lock",
    "learning/spending.py": "a lock",
    "cli/sites/check.py": "a lock",
    "cli/look/machine.py": "a file without a name, to see whether the disk takes one",
    "runs/progress.py": "events for the operator, line by line",
    "cli/app.py": "/dev/null, for a reader that has left",
}


def test_nothing_else_in_the_package_writes_files() -> None:
    root = Path(quietsum.__file__).parent
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and (what := _writes(node)):
                found.setdefault(str(path.relative_to(root)), set()).add(what)
    assert found.keys() <= WRITERS.keys(), {name: found[name] for name in found.keys() - WRITERS.keys()}
    assert {"fsync", "replace", "open"} <= found["files.py"]  # the control: the writer itself is seen


def _writes(node: ast.Call) -> str:
    """What a call writes by; empty where it writes nothing."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = getattr(getattr(node.func, "value", None), "id", "")
    if name in ("write_text", "write_bytes", "touch", "mkstemp", "NamedTemporaryFile"):
        return name
    if owner == "os" and name in ("fsync", "fdatasync", "replace", "link"):
        return name
    if name == "open":
        words = [*node.args, *(each.value for each in node.keywords if each.arg == "mode")]
        texts = [each.value for each in words if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if any(text and set(text) <= set("rwxabt+") and set(text) & set("wxa+") for text in texts):
            return name
        flags = {each.attr for word in words for each in ast.walk(word) if isinstance(each, ast.Attribute)}
        if flags & {"O_WRONLY", "O_RDWR", "O_CREAT"}:
            return name
    return ""
