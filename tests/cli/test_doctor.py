"""``quietsum doctor``: what is fine, what would stop a run, and that it finds what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from quietsum.cli.look import machine
from quietsum.cli.look.machine import Requirement, check_base, check_clock, check_extra, check_folder, check_python
from scenes import invoke, quietsum

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = machine.read_pins()
OWN = ("all", "docs", "test")
"""Extras for those who work on the source."""

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_a_machine_that_runs_these_tests_is_fit_and_the_answer_fits_on_a_screen() -> None:
    shown = quietsum("doctor").stdout
    assert "Nothing here stops a run." in shown and "next: quietsum new run.toml" in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) <= 30
    assert list(Path().iterdir()) == []  # it has written nothing
    for name in ("python", "libraries", "randomness", "workspace", "disk", "clock", "graphics card", "[train]"):
        assert re.search(rf"^(ok|note) +{re.escape(name)} ", shown, re.MULTILINE), name


def test_the_same_as_json() -> None:
    values = json.loads(quietsum("doctor", "--json").stdout)
    states = {one["name"]: one["state"] for one in values["findings"]}
    assert values["fit"] is True and "stops" not in states.values()
    assert states["randomness"] == states["workspace"] == "fine"
    (audit,) = (one for one in values["findings"] if one["name"] == "pins looked up")
    assert audit["values"]["date"] == str(PINS["audit"]["date"])


def test_the_control_a_workspace_that_cannot_be_made_ends_with_2() -> None:
    Path("file").write_text("no folder")
    result = invoke("doctor", "--workspace", Path("file") / "inner")
    assert result.exit_code == 2 and re.search(r"^STOPS workspace", result.stdout, re.MULTILINE)
    assert "would stop a run" in result.stdout and "next:" not in result.stdout
    values = json.loads(invoke("doctor", "--workspace", Path("file") / "inner", "--json").stdout)
    assert values["fit"] is False


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no folder here in which even a superuser writes nothing")
def test_the_control_a_folder_in_which_nothing_can_be_made_is_found_even_by_a_superuser() -> None:
    found = check_folder(Path("/proc/quietsum"))
    assert found.state == "stops" and "cannot be written" in found.text and found.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits mean nothing to a superuser")
def test_the_control_a_read_only_folder_is_found(tmp_path: Path) -> None:
    place = tmp_path / "sealed"
    place.mkdir(mode=0o500)
    assert check_folder(place).state == "stops"


def test_the_control_a_full_disk_is_found() -> None:
    here = Path()
    assert machine.check_room(here, free=0).state == "stops"
    assert machine.check_room(here, free=machine.LEAST_ROOM).state == "note"
    assert machine.check_room(here, free=machine.LITTLE_ROOM).state == "fine"
    assert machine.check_room(here).values["free"] == pytest.approx(shutil.disk_usage(here).free, rel=0.2)


def test_the_control_a_library_that_is_missing_or_outside_of_its_range_stops_a_run() -> None:
    numpy = machine.version_of("numpy")
    assert numpy is not None
    for bounds, name, state in (
        ((("<", "2"),), "numpy", "stops"), (((">=", "2"), ("<", "3")), "numpy", "fine"), ((), "no-such-thing", "stops"),
    ):  # fmt: skip
        found = check_base(PINS, [Requirement(name=name, bounds=bounds, extra="")])
        assert found.state == state, (name, bounds)
    assert "numpy" in check_base(PINS, [Requirement(name="numpy", bounds=(("<", "2"),), extra="")]).text
    other = check_base({"pins": {"numpy": "2.0.1"}}, [Requirement(name="numpy", bounds=(), extra="")])
    assert other.state == "note" and f"numpy {numpy} (tested with 2.0.1)" in other.text


def test_the_control_an_extra_that_is_absent_says_what_it_is_for_and_how_to_get_it() -> None:
    absent = [Requirement(name="no-such-thing", bounds=(), extra="train")]
    found = check_extra("train", "torch models", PINS, absent)
    assert (found.state, found.remedy) == ("note", "pip install 'quietsum[train]'")
    assert "absent. torch models" in found.text
    part = check_extra("train", "x", PINS, [*absent, Requirement(name="numpy", bounds=(), extra="train")])
    assert part.state == "note" and "no-such-thing missing" in part.text
    old = check_extra("train", "x", PINS, [Requirement(name="numpy", bounds=(("<", "2"),), extra="train")])
    assert old.state == "note" and "needs <2" in old.text


def test_the_control_an_old_python_and_coins_that_repeat_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_python((3, 10, 9)).state == "stops" and check_python((3, 14, 0)).state == "fine"
    assert machine.check_randomness(lambda count: bytes(count)).state == "stops"
    monkeypatch.setenv("QUIETSUM_TEST_SEEDS", "1")
    assert machine.check_randomness().state == "note"
    monkeypatch.delenv("QUIETSUM_TEST_SEEDS")
    assert machine.check_randomness().state == "fine"


def test_the_control_a_clock_that_goes_back_or_is_wrong_is_found() -> None:
    import itertools
    import time

    count = itertools.count(0, -1)
    assert check_clock(Path(), steady=lambda: float(next(count))).state == "stops"
    early = check_clock(Path(), now=lambda: 1e9)
    assert early.state == "note" and "2001-09-09" in early.text and early.remedy
    ahead = check_clock(Path(), now=lambda: time.time() + 3600)
    assert ahead.state == "note" and "apart from the file system's" in ahead.text
    assert check_clock(Path()).state == "fine"
    unknown = check_clock(Path("/proc/none"))
    assert unknown.state == "fine" and unknown.values["skew"] is None


def test_a_check_that_fails_itself_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> machine.Finding:
        raise RuntimeError("torch is broken")

    monkeypatch.setattr(machine, "check_card", broken)
    found = {one.name: one for one in machine.examine(Path())}
    assert found["graphics card"].state == "note" and "RuntimeError" in found["graphics card"].text


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_pins_are_those_of_the_constraints_and_cover_what_users_install() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = {
        _plain(name): version for name, _, version in (line.partition("==") for line in lines if "==" in line)
    }
    extras = {name: lines for name, lines in PROJECT["optional-dependencies"].items() if name not in OWN}
    assert sorted(PINS["extras"]) == sorted(extras), "say in pins.toml what each extra is for"
    stated = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]
    names = {_plain(re.split(r"[\[<>=!~ ;]", line)[0]) for line in stated}
    assert PINS["pins"] == {name: constraints[name] for name in names}, "pins.toml and constraints.txt differ"


def test_only_the_two_signs_that_the_doctor_reads_stand_in_our_ranges() -> None:
    stated = [
        *PROJECT["dependencies"],
        *(line for lines in PROJECT["optional-dependencies"].values() for line in lines),
    ]
    for line in stated:
        if not line.startswith("quietsum"):
            assert set(re.findall(r"[<>=!~]+", line)) <= {">=", "<"}, line
    (one,) = machine.read_requirements(['torch<3,>=2.6; extra == "train"'])
    assert (one.name, one.extra, one.text) == ("torch", "train", ">=2.6,<3")
    assert one.allows("2.13.0+cpu") and not one.allows("3.0") and not one.allows("2.5.9")
