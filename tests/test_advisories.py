"""When the pins were looked up is what the script wrote down, and it writes down what it found."""

from __future__ import annotations

import datetime
import importlib.util
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from quietsum.cli.look.machine import describe_audit, digest_of_pins, read_pins, report_audit

ROOT = Path(__file__).parents[1]
DAY = datetime.date(2031, 2, 3)
PINNED = {"flwr": "1.41.0", "numpy": "2.4.0"}


def load() -> ModuleType:
    path = ROOT / ".ci" / "advisories.py"
    specification = importlib.util.spec_from_file_location("advisories", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["advisories"] = module
    specification.loader.exec_module(module)
    return module


advisories = load()


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Copies of the two files that a look-up is recorded in."""
    table, page = tmp_path / "pins.toml", tmp_path / "SECURITY.md"
    shutil.copy(advisories.PINS, table)
    shutil.copy(advisories.SECURITY, page)
    return {"table": table, "page": page}


def answer(**vulnerable: list[dict[str, Any]]) -> str:
    known = [{"name": name, "version": version, "vulns": vulnerable.get(name, [])} for name, version in PINNED.items()]
    return json.dumps({"dependencies": known})


def test_the_page_about_security_says_what_the_doctor_says() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    sentence = describe_audit(read_pins())
    assert page.split(advisories.BEGIN)[1].split(advisories.END)[0].strip() == f"{sentence[0].upper()}{sentence[1:]}."


def test_a_range_and_a_single_version_are_found_and_a_withdrawn_or_mended_one_is_not() -> None:
    def about(events: list[dict[str, str]], **more: Any) -> dict[str, Any]:
        ranges = [{"type": "ECOSYSTEM", "events": events}]
        return {"affected": [{"package": {"name": "FLWR"}, "ranges": ranges}], **more}

    open_ended = [{"introduced": "0"}]
    assert advisories.affects(about(open_ended), "flwr", "1.41.0")
    assert advisories.affects(about([{"introduced": "1.40"}, {"fixed": "1.42"}]), "flwr", "1.41.0")
    assert not advisories.affects(about([{"introduced": "0"}, {"fixed": "1.41.0"}]), "flwr", "1.41.0")
    assert not advisories.affects(about([{"introduced": "0"}, {"last_affected": "1.40"}]), "flwr", "1.41.0")
    assert not advisories.affects(about(open_ended, withdrawn="2030-01-01"), "flwr", "1.41.0")
    assert not advisories.affects(about(open_ended), "numpy", "1.41.0")
    one = {"affected": [{"package": {"name": "flwr"}, "versions": ["1.41.0"]}]}
    assert advisories.affects(one, "flwr", "1.41.0") and not advisories.affects(one, "flwr", "1.41.1")


def test_a_checkout_is_read_and_its_own_date_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisories, "pins", lambda: PINNED)
    (tmp_path / "vulns" / "flwr").mkdir(parents=True)
    text = "id: PYSEC-1\naliases: [CVE-1]\naffected:\n- package: {name: flwr}\n  versions: ['1.41.0']\n"
    (tmp_path / "vulns" / "flwr" / "PYSEC-1.yaml").write_text(text, encoding="utf-8")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x", "--date", "2020-01-02T00:00:00"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True,
                       env={"GIT_COMMITTER_DATE": "2020-01-02T00:00:00", "PATH": "/usr/bin:/bin"})  # fmt: skip
    found = advisories.look_into(tmp_path)
    assert found.affected == ("flwr 1.41.0: PYSEC-1 CVE-1",) and not found.live
    assert "1 advisories" in found.source and "2020-01-02" in found.source


def test_what_pip_audit_answers_is_joined_and_what_it_leaves_out_was_not_looked_up() -> None:
    bad = [{"id": "GHSA-1", "aliases": ["CVE-2"]}]
    found = advisories.read_answers([answer(), answer(flwr=bad)], PINNED, "pip-audit 9")
    assert (found.affected, found.open, found.live) == (("flwr 1.41.0: GHSA-1 CVE-2",), (), True)
    less = json.dumps({"dependencies": [{"name": "numpy", "version": "2.4.0", "vulns": []}]})
    assert advisories.read_answers([less, answer()], PINNED, "").open == (
        "flwr 1.41.0 in pypi: it is not in the answer",
    )
    skipped = json.dumps({"dependencies": [{"name": name, "skip_reason": "no such file"} for name in PINNED]})
    assert len(advisories.read_answers([skipped, answer()], PINNED, "").open) == 2
    other = answer().replace("1.41.0", "1.40.0")
    assert "another version" in advisories.read_answers([answer(), other], PINNED, "").open[0]


def test_a_live_look_up_is_recorded_with_its_day_and_read_by_the_doctor(places: dict[str, Path]) -> None:
    found = advisories.read_answers([answer(), answer()], PINNED, "pip-audit 9")
    advisories.record(found, DAY, **places)
    pins = tomllib.loads(places["table"].read_text(encoding="utf-8"))
    assert pins["pins"] == read_pins()["pins"] and pins["audit"]["live"] == DAY
    finding = report_audit(pins)
    assert finding.state == "fine" and finding.text.startswith("last in live databases on 2031-02-03 in pypi and osv")
    assert "2031-02-03" in places["page"].read_text(encoding="utf-8")
    changed = {**pins, "pins": {**pins["pins"], "numpy": "9.9.9"}}
    assert report_audit(changed).state == "note" and "Pins have changed since" in report_audit(changed).text


def test_what_was_found_is_said_and_a_checkout_makes_no_live_look_up(places: dict[str, Path]) -> None:
    hit = advisories.LookUp(source="a checkout", live=False, pins=2, affected=("flwr 1.41.0: X",))
    advisories.record(hit, DAY, **places)
    pins = tomllib.loads(places["table"].read_text(encoding="utf-8"))
    finding = report_audit(pins)
    assert finding.state == "note" and finding.text == (
        "never in a live database; on 2031-02-03 in a checkout: 2 pins, affected: flwr 1.41.0: X"
    )
    assert digest_of_pins(pins["pins"]) == pins["audit"]["digest"]


def test_nothing_is_recorded_where_there_is_no_place_for_it(places: dict[str, Path]) -> None:
    places["page"].write_text("no place", encoding="utf-8")
    before = places["table"].read_text(encoding="utf-8")
    with pytest.raises(SystemExit):
        advisories.record(advisories.LookUp(source="", live=True, pins=0, affected=()), DAY, **places)
    assert places["table"].read_text(encoding="utf-8") == before
