"""A site's own page: what it has spent, for whom, and what it refused; from its policy, its ledger and its log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from quietsum.alerts import LOG, AuditLog, alert_of_refusal
from quietsum.party import load_policy, status_of
from quietsum.runs import Workspace
from quietsum.web import DashboardAccess, PageReader, create_app
from scenes import quietsum
from web.places import HOST
from web.test_pages import text_of

SITES = Path(__file__).parents[1] / "old_books" / "sites"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    shutil.copytree(SITES / "cleveland", tmp_path / "site")
    path = tmp_path / "site" / "policy.toml"
    words = ["--name", "cleveland", "--dataset", "uci-heart-cleveland", "--size", "303"]
    quietsum("party", "new", path, *words)
    return path


def show(policy: Path, address: str = "/site") -> str:
    loaded = load_policy(policy)
    place = loaded.path(loaded.site.ledger).parent
    reader = PageReader(Workspace(path=place), policy=loaded)
    with TestClient(create_app(reader, DashboardAccess(hosts=frozenset({HOST})))) as client:
        answer = client.get(address)
    assert answer.status_code == 200
    return text_of(answer.text)


def test_it_says_what_was_spent_and_for_whom(policy: Path) -> None:
    from quietsum.ledger import Ledger

    loaded = load_policy(policy)
    with Ledger.open(loaded.path(loaded.site.ledger), read_only=True) as ledger:
        status = status_of(loaded, ledger)
    text = show(policy)
    assert status["runs"] and all(row["run"] in text for row in status["runs"])
    assert "cleveland" in text and "Nothing was refused." in text
    assert "held by its own ε" in text
    for row in status["runs"]:
        assert f" {row['reserved']} {row['committed']} " in text


def test_what_it_refused_stands_there_with_the_reason(policy: Path) -> None:
    loaded = load_policy(policy)
    log = AuditLog(loaded.path(loaded.site.ledger).parent / LOG)
    alert = alert_of_refusal("cleveland", "the plan asks for more than <b>the policy</b> allows", run="bold")
    log.append("alert", alert.to_dict())
    text = show(policy)
    assert "more than <b>the policy</b> allows" in text and "bold" in text and "Nothing was refused." not in text
    assert "more than <b>the policy</b> allows" in show(policy, "/alerts?all=1")


def test_a_log_that_was_cut_is_named_on_the_page(policy: Path) -> None:
    loaded = load_policy(policy)
    path = loaded.path(loaded.site.ledger).parent / LOG
    path.write_text('{"before":"x"}\n', encoding="utf-8")
    assert "line 1" in show(policy) and str(policy.parent) not in show(policy)
