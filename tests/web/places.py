"""Workspaces to look at, and a browser without a window: what the tests of the dashboard share."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.testclient import TestClient

from quietsum.runs import Workspace, add_check
from quietsum.web import DashboardAccess, PageReader, create_app
from quietsum.web.pages.planner import work_out
from quietsum.web.rendering import View

OLD = Path(__file__).parents[1] / "old_books" / "before_rooms" / "workspace"
RUNS = ("asked", "finished", "groups", "hybrid", "secure", "stopped")
TRAINING = "digits-20261118-170629-bfd5"
HOST = "testserver"


def copy_old(place: Path) -> Path:
    """A workspace with runs of every kind, a training and alerts."""
    shutil.copytree(OLD, place / "workspace")
    return place / "workspace"


@contextlib.contextmanager
def look(
    place: Path, *, operator: bool = False, token: str = "", beside: bool = False, **more: Any
) -> Iterator[TestClient]:
    """A client of the dashboard of the workspace at ``place``; errors of ours are raised in the test.

    The planner works in this process, which is quicker for a test, unless it is to be ``beside``.
    """
    access = DashboardAccess(hosts=frozenset({HOST}), token=token, operator=operator)
    app = create_app(PageReader(Workspace(path=place), **more), access)
    with TestClient(app, follow_redirects=False) as client:
        if not beside:
            view_of_app(client).thinker.ask = work_out  # type: ignore[method-assign]
        yield client


def view_of_app(client: TestClient) -> View:
    """What every page of the client's dashboard is made with."""
    view: View = client.app._app.state.view  # type: ignore[attr-defined]
    return view


def get_raw(client: TestClient, path: str) -> tuple[int, str]:
    """Status and text of an address as it stands: a client of the usual kind takes dots out before it asks."""
    scope = {
        "type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(), "query_string": b"",
        "headers": [(b"host", HOST.encode())], "root_path": "", "scheme": "http", "server": (HOST, 80),
        "http_version": "1.1",
    }  # fmt: skip
    status, parts = 0, []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    assert client.portal is not None
    client.portal.call(client.app, scope, receive, send)
    return status, b"".join(parts).decode()


def make_folder(workspace: Path, folder: str, run: str) -> Path:
    """A run folder as a stranger may have made it: whole by its own check, and of no ledger here."""
    place = workspace / "runs" / folder
    (place / "checkpoints").mkdir(parents=True)
    about = {"format": 1, "run": run, "plan": "0" * 64, "created": "2026-03-01T10:00:00", "ledger": "0" * 32,
             "sequence": 1, "sites": False}  # fmt: skip
    (place / "run.json").write_text(json.dumps(add_check(about)), encoding="utf-8")
    return place
