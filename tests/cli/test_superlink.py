"""``quietsum superlink`` as an operator meets it: started with wrong files, told to read its roster again, ended."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict

import pytest

from quietsum.federation.flower.superlink import SuperLink, SuperLinkFailed
from quietsum.identity.certificates import make_authority, make_server
from quietsum.identity.keyring import make_keyring
from quietsum.identity.nodekeys import read_parties
from scenes import invoke

NOW = datetime.datetime.now(datetime.UTC)
QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_keyring(Path("keys"), servers=["fl.example.org"], parties=["Basel"])


def words(text: str) -> str:
    return " ".join(text.split())


@contextlib.contextmanager
def running(*more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command in a process of its own, which is ended with the test."""
    line = [sys.executable, "-m", "quietsum", "superlink", "--keys", "keys", "--listen", "127.0.0.1:0", *more]
    with Path("out").open("wb") as out, Path("errors").open("wb") as errors:
        process = subprocess.Popen(line, stdout=out, stderr=errors, env=os.environ | QUIET)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        if process.poll() is None:
            process.kill()
        process.wait()


def until(process: subprocess.Popen[bytes], fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not fact():
        assert process.poll() is None, f"it ended with {process.returncode}: {Path('errors').read_text()}"
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def told(name: str) -> str:
    return words(Path(name).read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------- at work


@pytest.mark.some(1)
def test_a_roster_that_cannot_be_read_changes_nothing_and_the_next_good_one_counts() -> None:
    roster = Path("keys/parties.toml")
    good = roster.read_text(encoding="utf-8")
    table = "[parties.Basel]\n" + good.partition("[parties.Basel]\n")[2]
    with running("--insecure-loopback") as process:
        until(process, lambda: "next: " in told("out"))
        next_line = Path("out").read_text(encoding="utf-8").split("next: ")[1].replace("\\\n", " ")
        assert shlex.split(next_line)[-1] == "--insecure-loopback"
        broken = (good + "[parties.", good + table.replace("Basel", "Bern"), good.replace("AAAA", "AAA"), None)
        for count, text in enumerate(broken, 1):
            roster.unlink() if text is None else roster.write_text(text, encoding="utf-8")
            process.send_signal(signal.SIGHUP)
            until(process, lambda count=count: told("errors").count("the one from before still holds") == count)  # type: ignore[misc]
        assert "was read again" not in told("out")
        roster.write_text(good, encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        until(process, lambda: "the roster was read again; sites in it: 1" in told("out"))
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    assert told("out").endswith("ended; sites wait, and find it again when it is started on superlink")
    assert max(len(line) for name in ("out", "errors") for line in Path(name).read_text().splitlines()) <= 80


def test_ended_while_it_starts_it_names_no_next_command() -> None:
    with running("--insecure-loopback") as process:
        until(process, lambda: Path("superlink/superlink.log").exists())
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    assert "next:" not in told("out") and told("out").startswith("ended;") and told("errors") == ""


# ---------------------------------------------------------------------------------------------- wrong files


def foreign_key() -> None:
    Path("keys/server.key").write_bytes(make_server(make_authority()).key)


def expired() -> None:
    long_ago = NOW - datetime.timedelta(days=900)
    authority = make_authority(days=100, now=long_ago)
    server = make_server(authority, days=90, now=long_ago)
    for name, content in (("ca.crt", authority.certificate), ("server.crt", server.certificate)):
        Path("keys", name).write_bytes(content)
    Path("keys/server.key").write_bytes(server.key)


def readable() -> None:
    Path("keys/server.key").chmod(0o644)


def of_another_authority() -> None:
    Path("keys/ca.crt").write_bytes(make_authority().certificate)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (foreign_key, "keys/server.key does not belong to server.crt"),
        (expired, "has expired on"),
        (readable, "can be read by others (mode 644); chmod 600 keys/server.key"),
        (of_another_authority, "was not signed by any authority in ca.crt"),
    ],
)
@pytest.mark.parametrize("command", ["superlink", "run"])
def test_files_that_no_site_would_accept_are_refused_before_anything_starts(
    command: str, spoil: Callable[[], None], reason: str
) -> None:
    spoil()
    assert invoke("new", "run.toml").exit_code == 0
    how = ["superlink"] if command == "superlink" else ["run", "run.toml", "--on", "flower"]
    refused = invoke(*how, "--keys", "keys", "--listen", "127.0.0.1:0")
    assert refused.exit_code == 2, refused.output
    assert reason in words(refused.stderr) and len(refused.stderr.splitlines()) == 1
    assert not Path("superlink").exists() and not list(Path().rglob("access.json"))


class TlsFiles(TypedDict):
    certificate: Path
    key: Path
    authority: Path


def tls_files(folder: str) -> TlsFiles:
    place = Path(folder)
    return TlsFiles(certificate=place / "server.crt", key=place / "server.key", authority=place / "ca.crt")


def test_a_start_that_fails_in_the_child_tells_its_true_reason() -> None:
    foreign_key()
    with pytest.raises(SuperLinkFailed, match=r"(?i)key.values.mismatch") as failed:
        SuperLink(Path("link"), **tls_files("keys"))
    log = Path("link/superlink.log").read_text(encoding="utf-8")
    assert "Fatal Python error" not in log and "Fatal Python error" not in str(failed.value)


@pytest.mark.parametrize(
    ("names", "listen", "warned"),
    [
        ((), "0.0.0.0:0", "sites on other machines will refuse it"),
        (("fl.example.org",), "0.0.0.0:0", ""),
        (("fl.example.org",), "127.0.0.1:0", ""),
        (("fl.example.org",), "127.0.0.9:0", "a site that dials 127.0.0.9 will refuse it"),
    ],
)
def test_a_certificate_without_the_name_that_sites_dial_is_warned_of(
    names: tuple[str, ...], listen: str, warned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object, **__: object) -> None:
        raise SuperLinkFailed("far enough")

    monkeypatch.setattr("quietsum.federation.flower.superlink.SuperLink", nobody)
    make_keyring(Path("others"), servers=names, parties=["Basel"])
    ended = invoke("superlink", "--keys", "others", "--listen", listen)
    assert "far enough" in ended.stderr
    assert warned in words(ended.stderr) and ("warning:" in ended.stderr) == bool(warned)


def test_a_certificate_needs_no_name_but_the_one_that_sites_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quietsum.identity.certificates.OWN_NAMES", ())
    make_keyring(Path("bare"), servers=["fl.example.org"], parties=["Basel"])
    with SuperLink(Path("link"), host="0.0.0.0", **tls_files("bare")) as link:
        link.admit(read_parties(Path("bare/parties.toml")))
        assert link.running


# ------------------------------------------------------------------------------------------------- mistakes


def test_without_tls_beyond_this_machine_is_the_reason_that_is_told() -> None:
    refused = invoke("superlink", "--insecure-loopback", "--listen", "0.0.0.0:9092")
    assert refused.exit_code == 2 and "in the clear" in refused.stderr
    missing = invoke("superlink", "--insecure-loopback", "--listen", "127.0.0.1:9092")
    assert missing.exit_code == 2 and "needs --keys DIR;" in missing.stderr


def test_a_taken_port_may_become_free_so_it_is_another_exit_code_than_a_wrong_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = invoke("superlink", "--keys", "keys", "--listen", listen)
    assert refused.exit_code == 1 and "cannot be listened on" in refused.stderr
    assert invoke("superlink", "--keys", "keys", "--listen", "9092").exit_code == 2, "the control"


def test_the_help_speaks_of_this_command() -> None:
    assert "--on flower" not in words(invoke("superlink", "--help").stdout)
    assert "--on flower" in words(invoke("run", "--help").stdout), "the control: there it is"
