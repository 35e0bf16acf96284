"""What a command ends with: 1 where the same words may work later, 2 where they will not."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quietsum.ledger.stores.location import ledger_exists
from scenes import quietsum

SERVE = [sys.executable, "-m", "quietsum", "party", "serve", "--policy", "policy.toml"]


@pytest.fixture(autouse=True)
def _at_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quietsum("keys", "make", "keys", "--party", "Basel")
    monkeypatch.chdir(tmp_path / "keys" / "Basel")
    quietsum("party", "new", "policy.toml", "--coordinator", "127.0.0.1:9")


def serve_without_room() -> subprocess.CompletedProcess[str]:
    """A site on a disk that takes no byte more: the system's limit on the size of files stands in for it."""
    line = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *SERVE]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no such limit here")
def test_a_site_on_a_full_disk_ends_with_1_and_its_next_start_works() -> None:
    pytest.importorskip("flwr")
    full = serve_without_room()
    assert full.returncode == 1 and "the disk took no more" in full.stderr, full.stderr
    ledger = Path("ledger.db")
    assert ledger.exists() and ledger.stat().st_size == 0, "what such a start leaves behind"
    assert "quietsum party serve makes one" in quietsum("party", "status", "--policy", "policy.toml", code=2).stderr
    process = subprocess.Popen(SERVE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert any("waiting for" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    quietsum("party", "status", "--policy", "policy.toml")


@pytest.mark.parametrize("beside", [".key", ".head", "-wal"])
def test_an_empty_file_with_something_beside_it_was_a_ledger(beside: str) -> None:
    ledger = Path("ledger.db")
    assert not ledger_exists(ledger)
    ledger.touch()
    assert not ledger_exists(ledger)
    Path(f"ledger.db{beside}").touch()
    assert ledger_exists(ledger), "it was emptied, which somebody has to look at"
    if beside == ".key":
        quietsum("party", "status", "--policy", "policy.toml", code=4)


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EACCES, 2), (errno.ENOENT, 2)])
def test_what_the_system_refuses_may_pass_or_not(number: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("quietsum.party.policy_file.load_policy", refuse)
    assert os.strerror(number) in quietsum("party", "check", "policy.toml", code=code).stderr


def test_a_ledger_on_a_server_that_is_away_ends_with_1(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "ledger.db.url").write_text(f"postgresql://ward@/books?host={tmp_path}\n")
    result = quietsum(
        "ledger", "raise", "--workspace", str(tmp_path / "books"), "--party", "Basel", "--dataset", "rows",
        "--epsilon", "2", "--delta", "1e-6", "--reason", "a test", code=1,
    )  # fmt: skip
    assert "does not answer" in result.stderr and "Traceback" not in result.output
