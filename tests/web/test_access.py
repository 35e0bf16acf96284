"""Strangers: without the token, from another site, with another host, by another way than reading. Nothing is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from quietsum.web import DashboardAccess
from quietsum.web.access import LONGEST_HEADERS, LONGEST_PATH, LONGEST_QUERY, MOST_REQUESTS, POLICY, is_loopback_host
from web.places import HOST, copy_old, get_raw, look

TOKEN = "a-token-of-the-test"
ADDRESSES = (
    "/", "/runs/finished", "/runs/finished/live", "/runs/finished/report", "/ledger", "/ledger/state", "/planner",
    "/planner/answer", "/compare", "/parties", "/alerts", "/questions/asked", "/static/page.css", "/static/htmx.min.js",
    "/nothing-here", "/?token=", "/?token=wrong", f"/?token={TOKEN}x", f"/?token={TOKEN[:-1]}",
    f"/?token={TOKEN}&token={TOKEN}",
)  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_old(tmp_path_factory.mktemp("strangers"))


@pytest.fixture
def guarded(place: Path) -> Iterator[TestClient]:
    with look(place, operator=True, token=TOKEN) as client:
        yield client


@pytest.fixture
def unguarded(place: Path) -> Iterator[TestClient]:
    with look(place) as client:
        yield client


def tells(text: str) -> list[str]:
    """What a refusal must not hold: names of runs, parties or files, or a trace."""
    return re.findall(r"finished|hybrid|bern|basel|/work|/tmp|workspace|Traceback|quietsum-workspace|\.py", text)


@pytest.mark.parametrize("address", ADDRESSES)
def test_without_the_token_every_address_answers_alike(guarded: TestClient, address: str) -> None:
    answer = guarded.get(address)
    assert answer.status_code == 401 and not tells(answer.text)
    assert answer.text == guarded.get("/another").text and "set-cookie" not in answer.headers


def test_the_token_is_needed_once_and_leaves_the_address(guarded: TestClient) -> None:
    first = guarded.get(f"/runs/finished?page=2&token={TOKEN}")
    assert first.status_code == 303 and first.headers["location"] == "/runs/finished?page=2"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN not in cookie
    assert guarded.get("/runs/finished").status_code == 200
    guarded.cookies.clear()
    assert guarded.get("/runs/finished").status_code == 401


@pytest.mark.parametrize("cookie", ["quietsum-0=", "quietsum-0=x", f"quietsum-0={TOKEN}", "other=1", "quietsum-0"])
def test_another_cookie_lets_nobody_in(guarded: TestClient, cookie: str) -> None:
    assert guarded.get("/", headers={"cookie": cookie}).status_code == 401


def test_a_token_does_not_send_a_browser_to_another_host(guarded: TestClient) -> None:
    answer = guarded.get(f"http://{HOST}//evil.example/x?token={TOKEN}")
    assert answer.status_code == 303 and not answer.headers["location"].startswith("//")


@pytest.mark.parametrize(
    "host", ["evil.example", "testserver.evil.example", "127.0.0.1", "testserver:81", "", "TESTSERVER.", "localhost"]
)
def test_another_host_is_refused_as_after_dns_rebinding(unguarded: TestClient, host: str) -> None:
    answer = unguarded.get("/", headers={"host": host})
    assert answer.status_code == 421 and not tells(answer.text)


def test_two_hosts_are_refused(unguarded: TestClient) -> None:
    answer = unguarded.get("/", headers=[("host", HOST), ("host", HOST)])
    assert answer.status_code == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": f"http://{HOST}.evil.example"},
        {"origin": f"http://{HOST}:81"}, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"},
    ],
)  # fmt: skip
def test_another_site_is_refused(unguarded: TestClient, headers: dict[str, str]) -> None:
    answer = unguarded.get("/", headers=headers)
    assert answer.status_code == 403 and not tells(answer.text)
    assert "access-control-allow-origin" not in answer.headers


def test_its_own_pages_are_answered(unguarded: TestClient) -> None:
    """The negative control of the checks above."""
    headers = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert unguarded.get("/", headers=headers).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"])
def test_nothing_but_reading_is_answered(unguarded: TestClient, method: str) -> None:
    assert unguarded.request(method, "/").status_code == 405


def test_no_route_takes_anything_but_reading() -> None:
    """The routes themselves, behind the guard."""
    from quietsum.runs import Workspace
    from quietsum.web import PageReader, create_app

    app = create_app(PageReader(Workspace(path=Path("nowhere"))), DashboardAccess(hosts=frozenset()))
    routes = app._app.routes  # type: ignore[attr-defined]
    assert len(routes) > 10 and all(route.methods == {"GET", "HEAD"} for route in routes)


@pytest.mark.parametrize(
    "path",
    [
        "/runs/..", "/runs/../ledger.db", "/runs/%2e%2e%2fledger.db", "/runs/..%2f..%2fetc%2fpasswd",
        "/static/../app.py", "/static/..%2faccess.py", "/static/%2e%2e/%2e%2e/py.typed", "/runs/finished%2frun.json",
        "/runs/finished/run.db", "/runs/%00", "/runs/finished%00", "/questions/..%2f..%2fledger.db",
        "/runs//etc/passwd", "/runs/.", "/runs/%5c..%5c", "/runs/finished/../../ledger.db.key", "/static/",
        "/ledger.db", "/runs/latest",
    ],
)  # fmt: skip
def test_a_path_leads_nowhere_but_to_names_that_are_listed(unguarded: TestClient, path: str) -> None:
    status, text = get_raw(unguarded, path)
    assert status == 404
    assert "SQLite" not in text and "root:" not in text and "def " not in text


def test_a_listed_name_is_found_by_the_same_way(unguarded: TestClient) -> None:
    """The negative control."""
    assert get_raw(unguarded, "/runs/finished")[0] == 200


def test_long_and_loaded_requests_are_refused(unguarded: TestClient) -> None:
    assert unguarded.get("/" + "a" * LONGEST_PATH).status_code == 414
    assert unguarded.get("/?q=" + "a" * LONGEST_QUERY).status_code == 414
    assert unguarded.get("/", headers={"x-long": "a" * LONGEST_HEADERS}).status_code == 431
    assert unguarded.request("GET", "/", content=b"body").status_code == 413


def test_every_answer_forbids_what_pages_do_not_need(unguarded: TestClient) -> None:
    for address in ("/", "/nothing", "/static/page.css", "/ledger", "/?page=x"):
        headers = unguarded.get(address).headers
        assert headers["content-security-policy"] == POLICY, address
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin" and headers["x-frame-options"] == "DENY"
    assert "unsafe" not in POLICY and "*" not in POLICY and "http" not in POLICY


def test_pages_hold_no_script_style_or_address_of_another_place(unguarded: TestClient) -> None:
    for address in ("/", "/runs/finished", "/planner", "/ledger", "/questions/asked", "/compare"):
        page = unguarded.get(address).text
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|<iframe|<object|<base", page), address
        assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
        links = re.findall(r'(?:href|src|action|hx-get|sse-connect)="([^"]*)"', page)
        assert links and all(re.match(r"/(?!/)|#", link) for link in links), address


def test_a_mistake_of_ours_tells_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from quietsum.runs import Workspace
    from quietsum.web import PageReader, create_app

    def fail(_: PageReader) -> None:
        raise ValueError(f"secret of {place}")

    monkeypatch.setattr(PageReader, "folders", fail)
    app = create_app(PageReader(Workspace(path=place)), DashboardAccess(hosts=frozenset({HOST})))
    with TestClient(app, raise_server_exceptions=False) as client:
        answer = client.get("/")
    assert answer.status_code == 500 and answer.text == "something failed\n"


def test_a_token_is_asked_for_wherever_others_can_reach_it() -> None:
    assert (
        not DashboardAccess.for_address("127.0.0.1", 8642).token and not DashboardAccess.for_address("::1", 8642).token
    )
    for host in ("0.0.0.0", "192.168.1.7", "::", "example.org", "10.0.0.1"):
        assert len(DashboardAccess.for_address(host, 8642).token) >= 43, host
    assert DashboardAccess.for_address("127.0.0.1", 8642, operator=True).token
    assert DashboardAccess.for_address("0.0.0.0", 1).token != DashboardAccess.for_address("0.0.0.0", 1).token
    assert DashboardAccess.for_address("127.0.0.1", 8642).hosts == {"localhost:8642", "127.0.0.1:8642", "[::1]:8642"}
    assert "box.example:8642" in DashboardAccess.for_address("0.0.0.0", 8642, names=["Box.example"]).hosts


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
     ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("", False), ("128.0.0.1", False)],
)  # fmt: skip
def test_loopback_is_what_no_other_machine_can_reach(host: str, local: bool) -> None:
    assert is_loopback_host(host) is local


@pytest.mark.anyio
async def test_more_requests_than_it_takes_at_a_time_are_turned_away() -> None:
    import asyncio

    from starlette.types import Message, Receive, Scope, Send

    from quietsum.web.access import Guard

    gate = asyncio.Event()

    async def slow(_: Scope, __: Receive, send: Send) -> None:
        await gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def nothing() -> Message:
        return {"type": "http.request"}

    guard = Guard(slow, DashboardAccess(hosts=frozenset({HOST})))
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", HOST.encode())]}
    statuses: list[int] = []

    async def note(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    waiting = [asyncio.create_task(guard(dict(scope), nothing, note)) for _ in range(MOST_REQUESTS)]
    await asyncio.sleep(0)
    await guard(dict(scope), nothing, note)
    assert statuses == [503]
    gate.set()
    await asyncio.gather(*waiting)
    assert statuses.count(200) == MOST_REQUESTS
    await guard(dict(scope), nothing, note)
    assert statuses[-1] == 200


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.long
def test_ten_thousand_requests_leave_nothing_behind(place: Path) -> None:
    """What one more request could show: a file, a thread, a task or a kept value that each request leaves."""
    import os
    import threading

    def count() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    addresses = ["/", "/runs/finished", "/ledger", "/nothing", "/runs/%2e%2e", "/planner/answer?rounds=%d", "/?q=%d"]
    with look(place) as client:
        for number in range(200):
            client.get(addresses[number % len(addresses)].replace("%d", str(1 + number % 18)))
        before = count()
        for number in range(10_000):
            client.get(addresses[number % len(addresses)].replace("%d", str(1 + number % 18)))
        after = count()
    assert after[0] <= before[0] + 8 and after[1] <= before[1] + 2
