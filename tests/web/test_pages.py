"""Every page says what the files and the ledger say, of whole workspaces and of broken ones."""

from __future__ import annotations

import html
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from scenes import quietsum
from web.places import RUNS, TRAINING, copy_old, look, make_folder

EVERYWHERE = ("/", "/compare", "/planner", "/planner/answer", "/ledger", "/questions", "/audits")
OPERATORS = ("/parties", "/alerts", "/alerts?all=1")


def text_of(page: str) -> str:
    """What a reader sees: no tags, and every space alike."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def addresses() -> list[str]:
    runs = [f"/runs/{name}" for name in (*RUNS, TRAINING)]
    rounds = [f"/runs/{name}/rounds" for name in RUNS]
    return [
        *EVERYWHERE,
        *OPERATORS,
        *runs,
        *rounds,
        "/runs/finished/report",
        "/questions/asked",
        "/compare?run=secure&run=groups",
    ]


def test_every_page_shows_a_workspace_with_runs_of_every_kind(tmp_path: Path) -> None:
    with look(copy_old(tmp_path), operator=True) as client:
        for address in addresses():
            answer = client.get(address)
            assert answer.status_code == 200, (address, text_of(answer.text)[-300:])


def test_the_runs_are_those_of_the_command_line_with_its_figures(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    said = json.loads(quietsum("runs", "--workspace", place, "--json").stdout)
    with look(place) as client:
        text = text_of(client.get("/").text)
    assert {row["run"] for row in said["runs"]} == set(RUNS)
    for row in said["runs"]:
        assert f"{row['run']} {'finished' if row['outcome'] == 'finished' else ''}".strip() in text
        assert f"{row['round']} / {row['rounds']}" in text
    assert TRAINING in text


def test_a_run_shows_what_is_spent_of_each_unit_by_its_own_records(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    database = sqlite3.connect(place / "runs" / "hybrid" / "run.db")
    record, client_level = database.execute(
        "SELECT epsilon_record, epsilon_client FROM rounds WHERE finished ORDER BY round DESC LIMIT 1"
    ).fetchone()
    database.close()
    with look(place) as client:
        page = client.get("/runs/hybrid").text
    assert f'id="gauge-record" data-spent="{record}"' in page
    assert f'id="gauge-client" data-spent="{client_level}"' in page
    assert "epsilons of different units are never added" in page


def test_an_empty_folder_and_one_without_runs_have_pages_that_say_so(tmp_path: Path) -> None:
    with look(tmp_path, operator=True) as client:
        assert "No runs yet." in client.get("/").text
        assert "No runs to compare yet." in client.get("/compare").text
        assert "No runs yet." in client.get("/parties").text
        for address in ("/questions", "/audits", "/alerts", "/planner"):
            assert client.get(address).status_code == 200
        lost = client.get("/ledger")
    assert lost.status_code == 500 and "there is no ledger" in text_of(lost.text)
    assert str(tmp_path) not in lost.text


@pytest.mark.parametrize("keep", [0, 40, 4000])
def test_a_truncated_run_db_is_named_on_the_page_of_its_run_alone(tmp_path: Path, keep: int) -> None:
    place = copy_old(tmp_path)
    path = place / "runs" / "finished" / "run.db"
    path.write_bytes(path.read_bytes()[:keep])
    with look(place, operator=True) as client:
        assert client.get("/").status_code == 200
        assert client.get("/runs/secure").status_code == 200
        broken = client.get("/runs/finished")
    assert broken.status_code == 500
    assert "run.db cannot be read" in text_of(broken.text) and str(tmp_path) not in broken.text


def test_a_ledger_that_is_gone_or_cut_is_named_and_the_runs_are_still_listed(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    (place / "ledger.db").unlink()
    with look(place) as client:
        page = client.get("/")
        assert page.status_code == 200 and "The ledger is out of order." in page.text
        assert "finished" in page.text and str(tmp_path) not in page.text
        assert client.get("/ledger").status_code == 500
        assert client.get("/runs/secure").status_code == 200
    (place / "ledger.db").write_bytes(b"no database at all")
    with look(place) as client:
        assert client.get("/ledger").status_code == 500 and client.get("/").status_code == 200


def test_an_entry_that_was_altered_is_found_where_it_is_read(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    with look(place) as client:
        assert client.get("/ledger").status_code == 200
    database = sqlite3.connect(place / "ledger.db")
    for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
        database.execute(f'DROP TRIGGER "{name}"')
    database.execute("UPDATE entries SET body = body || ' ' WHERE sequence = 9")
    database.commit()
    database.close()
    with look(place) as client:
        answer = client.get("/ledger")
    assert answer.status_code == 500 and "entry" in text_of(answer.text)


def test_a_damaged_run_folder_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    (place / "runs" / "groups" / "run.json").write_text("{", encoding="utf-8")
    with look(place) as client:
        page = text_of(client.get("/").text)
        assert "groups is damaged." in page and "finished" in page
        assert client.get("/runs/groups").status_code == 404


HOSTILE = "<script>alert(1)</script>\"'&{{7*7}}"


def test_what_strangers_wrote_is_shown_as_text(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    make_folder(place, "<img src=x onerror=alert(1)>", HOSTILE)
    database = sqlite3.connect(place / "runs" / "finished" / "run.db")
    database.execute("DELETE FROM metrics WHERE rowid NOT IN (SELECT min(rowid) FROM metrics GROUP BY round)")
    database.execute("UPDATE metrics SET name = ?, on_data = ?", (HOSTILE, HOSTILE))
    database.commit()
    database.close()
    with look(place, operator=True) as client:
        pages = [client.get(address).text for address in ("/", "/runs/finished", "/runs/finished/rounds", "/compare")]
        pages.append(client.get("/runs/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E").text)
        pages.append(client.get("/", params={"q": HOSTILE}).text)
    for page in pages:
        assert "<script>alert" not in page and "<img src=x" not in page and "49" not in re.findall(r"\{\{.*?\}\}", page)
    assert html.escape("<script>alert(1)</script>", quote=False) in pages[0]


def test_a_folder_whose_name_is_no_text_is_passed_over(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    (place / "runs" / "half\udcff").mkdir()
    make_folder(place, "plain", "half \ud800 a letter")
    with look(place) as client:
        assert client.get("/").status_code == 200
        assert client.get("/runs/plain").status_code == 500


def leaked(page: str, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if re.search(rf"\b{re.escape(name)}\b", text_of(page))]


def test_who_took_part_is_the_operators_alone(tmp_path: Path) -> None:
    """Rule 5: counts of a cohort, drop-outs, rejections, alerts and refunds are on no page without --operator."""
    place = copy_old(tmp_path)
    database = sqlite3.connect(place / "runs" / "finished" / "run.db")
    database.execute("UPDATE rounds SET asked = 91017, kept = 91016")
    database.execute("INSERT INTO left_out VALUES (1, 1, 'winterthur', 'timeoutish', 0)")
    database.execute("INSERT INTO rejected VALUES (1, 1, 'lugano', 'krum', 'farawayish', '{}')")
    database.commit()
    database.close()
    names = ("91017", "91016", "winterthur", "timeoutish", "lugano", "farawayish")
    with look(place) as client:
        for address in OPERATORS:
            assert client.get(address).status_code == 404
        for address in (*EVERYWHERE, "/runs/finished", "/runs/finished/rounds", "/runs/finished/live"):
            assert not leaked(client.get(address).text, names), address
    with look(place, operator=True) as client:  # the negative control
        assert set(leaked(client.get("/parties?run=finished").text, names)) == set(names)
        assert "91016 of 91017" in text_of(client.get("/runs/finished").text)


def test_entries_that_say_who_took_part_are_withheld_as_the_export_withholds_them(tmp_path: Path) -> None:
    from quietsum.ledger import Ledger, operator_only

    place = copy_old(tmp_path)
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        secret = [entry.sequence for entry in ledger.entries() if operator_only(entry)]
        last = ledger.head.sequence
    with look(place) as client:
        pages = [client.get(f"/ledger?before={end}").text for end in range(last + 1, 1, -40)]
    found = {int(number) for page in pages for number in re.findall(r'class="sequence">(\d+)<', page)}
    assert found == set(range(1, last + 1))
    assert sum(page.count("withheld: it says who took part") for page in pages) == len(secret)
    with look(place, operator=True) as client:
        assert "withheld" not in client.get("/ledger").text


def test_an_entry_reads_as_on_the_terminal_and_its_json_is_the_entry(tmp_path: Path) -> None:
    from quietsum.ledger import Ledger
    from quietsum.report import describe_entry

    place = copy_old(tmp_path)
    with Ledger.open(place / "ledger.db", read_only=True) as ledger:
        last = ledger.head.sequence
        entry = next(ledger.entries(last))
        about, _ = describe_entry(ledger, entry)
    with look(place, operator=True) as client:
        page = client.get("/ledger").text
    first = re.search(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert first is not None and about in text_of(page)
    values: dict[str, Any] = json.loads(html.unescape(first[1]))
    assert (values["sequence"], values["hash"], values["body"]) == (last, entry.hash, dict(entry.body))


def test_a_report_is_sent_as_it_lies_there_and_may_do_nothing(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    path = place / "runs" / "finished" / "report.html"
    with look(place) as client:
        answer = client.get("/runs/finished/report")
        assert answer.content == path.read_bytes()
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("sandbox;") and "script-src" not in policy and "default-src 'none'" in policy
        path.unlink()
        path.symlink_to("/etc/hostname")
        assert client.get("/runs/finished/report").status_code == 404


def test_looking_writes_nothing_and_needs_no_key(tmp_path: Path) -> None:
    """Rule 18."""
    place = copy_old(tmp_path)
    (place / "ledger.db.key").unlink()

    def listing() -> dict[str, bytes]:
        names = [
            path for path in sorted(place.rglob("*")) if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        ]
        return {str(path.relative_to(place)): path.read_bytes() for path in names}

    before = listing()
    with look(place, operator=True) as client:
        for address in addresses():
            assert client.get(address).status_code == 200, address
    assert listing() == before


@pytest.mark.parametrize(
    "address",
    [
        "/?page=0", "/?page=x", "/?page=99999999999", "/ledger?before=-1", "/ledger?before=%E0%A5%A7",
        "/planner?epsilon=999", "/planner?style=none", "/runs/finished/rounds?page=1.5", "/planner/answer?rounds=nan",
    ],
)  # fmt: skip
def test_a_number_in_an_address_that_is_none_is_refused_in_a_sentence(tmp_path: Path, address: str) -> None:
    with look(copy_old(tmp_path)) as client:
        answer = client.get(address)
    assert answer.status_code == 400 and "in the address" in text_of(answer.text)


def test_a_page_is_worked_out_again_when_its_files_have_changed(tmp_path: Path) -> None:
    place = copy_old(tmp_path)
    path = place / "runs" / "stopped" / "run.db"
    with look(place) as client:
        before = client.get("/runs/stopped").text
        assert client.get("/runs/stopped").text == before
        database = sqlite3.connect(path)
        database.execute(
            "UPDATE rounds SET epsilon_record = 0.123456 WHERE round = (SELECT max(round) FROM rounds WHERE finished)"
        )
        database.commit()
        database.close()
        assert 'data-spent="0.123456"' in client.get("/runs/stopped").text
    assert 'data-spent="0.123456"' not in before


def test_scores_of_different_tasks_stand_in_pictures_of_their_own(tmp_path: Path) -> None:
    with look(copy_old(tmp_path)) as client:
        text = text_of(client.get("/compare").text)
    assert "heart: accuracy over ε per record, 3 runs" in text and "digits: accuracy over ε per record, 1 run " in text


def test_each_party_stands_once_the_worst_first(tmp_path: Path) -> None:
    with look(copy_old(tmp_path), operator=True) as client:
        page = client.get("/parties?run=groups").text
    names = re.findall(r'<th scope="row">([^<]+)</th>', page.partition("Participation")[0])
    assert names == [f"client-{number:04d}" for number in range(1, 13)]
