"""The process: its socket, its patience, its end, and what it prints."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quietsum.errors import InvalidParameter, QuietsumError
from quietsum.runs import Workspace
from quietsum.web import Dashboard, PageReader, open_dashboard, serving
from scenes import invoke, quietsum
from web.places import copy_old


@pytest.fixture
def dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dashboard]:
    monkeypatch.setattr(serving, "PATIENCE", 0.3)
    monkeypatch.setattr("quietsum.web.thinking.Thinker.begin", lambda _: None)
    opened = open_dashboard(PageReader(Workspace(path=copy_old(tmp_path))), port=0)
    thread = threading.Thread(target=opened.run)
    thread.start()
    yield opened
    opened.stop()
    thread.join(20)
    assert not thread.is_alive()


def connect(dashboard: Dashboard) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(dashboard.address.rpartition(":")[2])), timeout=20)


def test_it_answers_on_loopback_and_says_nothing_of_itself(dashboard: Dashboard) -> None:
    port = int(dashboard.address.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", "/")
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("server") is None
    assert dashboard.listening.getsockname()[0] == "127.0.0.1" and not dashboard.token


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: localhost", b"GET / HTTP/1.1\r\nHo"])
@pytest.mark.some(3)
def test_a_connection_without_a_whole_request_is_closed(dashboard: Dashboard, begun: bytes) -> None:
    with connect(dashboard) as stranger:
        stranger.sendall(begun)
        began = time.monotonic()
        assert stranger.recv(1000) == b""
        assert time.monotonic() - began < 10


def test_a_header_without_end_is_refused(dashboard: Dashboard) -> None:
    with connect(dashboard) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
        try:
            for _ in range(64):
                stranger.sendall(b"a" * 4096)
            answer = stranger.recv(1000)
        except OSError:  # it hung up
            answer = b""
    assert b"200" not in answer.split(b"\r\n")[0]


def test_a_taken_port_and_a_strange_address_are_one_sentence(tmp_path: Path, dashboard: Dashboard) -> None:
    port = int(dashboard.address.rpartition(":")[2])
    with pytest.raises(QuietsumError, match="is taken") as taken:
        open_dashboard(PageReader(Workspace(path=tmp_path)), port=port)
    assert taken.value.exit_code == 1
    with pytest.raises(InvalidParameter, match="is no address"):
        open_dashboard(PageReader(Workspace(path=tmp_path)), host="no.such.host.invalid", port=0)
    with pytest.raises(InvalidParameter, match="is no port"):
        open_dashboard(PageReader(Workspace(path=tmp_path)), port=70000)


def test_the_command_prints_its_address_and_ends_with_a_signal(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    words = [sys.executable, "-m", "quietsum", "serve", str(place), "--port", "0", "--operator", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        said = json.loads(process.stdout.readline())
        port = int(said["address"].rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/")
        assert connection.getresponse().status == 401
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", f"/parties?token={said['token']}")
        assert connection.getresponse().status == 303
        os.kill(process.pid, signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0 and output == b"" and errors == b""


def test_what_cannot_be_shown_is_refused_before_anything_listens(tmp_path: Path) -> None:
    assert "is not there" in quietsum("serve", tmp_path / "nowhere", code=2).output
    assert "named twice" in quietsum("serve", tmp_path, "--workspace", tmp_path, code=2).output
    assert "name one" in quietsum("serve", tmp_path, "--policy", tmp_path / "policy.toml", code=2).output
    (tmp_path / "policy.toml").write_text("nonsense = 1", encoding="utf-8")
    assert invoke("serve", tmp_path).exit_code == 2


@pytest.mark.parametrize("library", ["starlette", "uvicorn", "jinja2"])
def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == library else real(name, *more))
    output = quietsum("serve", tmp_path, code=2).output
    assert f"{library} is not installed" in output and "pip install 'quietsum[serve]'" in output.replace("\n ", "")
