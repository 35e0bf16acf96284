"""More than a thousand kills of either side, at every step: neither book ever shows less than what left.

How a side is killed, and why that is honest, is told in :mod:`federation.killing`; what must hold after each kill, in
:mod:`federation.reading`. Here is who dies when, and that the checks can fail.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from federation.killing import COORDINATOR, NOISE, SIDES, SITES, STYLES, Left, Story, Visit, plan_for
from federation.reading import Lost, check, floor
from quietsum.errors import InvalidParameter
from quietsum.ledger import Ledger, Receipt
from quietsum.party.books import SiteBooks, site_charges
from quietsum.privacy.units import PrivacyUnit

POSTS = ("lost", "first", "behind")
EVERY, CUTS = 240, 96
"""At least so many single deaths, and exactly so many power cuts, for each style."""
RECORD, CLIENT = PrivacyUnit.RECORD, PrivacyUnit.CLIENT


@pytest.fixture
def folder() -> Iterator[Path]:
    """Memory instead of a disk, where there is such a folder: a kill leaves what the kernel has, synced or not."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


def visits(folder: Path, style: str) -> dict[str, list[Visit]]:
    """Every visit of every side to every failpoint in a quiet run, in order."""
    quiet = Story(folder / "quiet", style)
    assert quiet.go().outcome == "finished"
    check(quiet)
    shutil.rmtree(quiet.folder)
    found: dict[str, list[Visit]] = {side: [] for side in SIDES}
    for (side, place), count in quiet.places.items():
        found[side] += [(side, place, visit) for visit in range(1, count + 1)]
    return found


def told(story: Story) -> Story:
    """Play ``story`` to its end, with a look at all books after every kill and at the end."""
    story.after_kill = lambda *dead: check(story, *dead)
    result = story.go()
    assert result.outcome == "finished", (story.kills, result.error)
    check(story)
    shutil.rmtree(story.folder)
    return story


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.long
def test_killed_at_every_step_of_every_side_both_books_show_what_left(folder: Path, style: str) -> None:
    """Each story kills the coordinator at another step, and the sites too, until every visit of all had its turn."""
    steps, killed = visits(folder, style), Counter[Visit]()
    assert min(map(len, steps.values())) > 40
    for number, mine in enumerate(steps[COORDINATOR]):
        story = Story(folder / str(number), style, post=POSTS[number % 3], silent=number % 4 > 0)
        story.kill(*mine)
        for turn, site in enumerate(SITES):
            many = len(steps[site])
            far = next(stride for stride in (13, 11, 17) if math.gcd(stride, many) == 1)  # so that each has its turn
            story.kill(*steps[site][far * (number + turn) % many])
        killed.update(told(story).kills)
    assert set(killed) == {visit for side in SIDES for visit in steps[side]}
    assert killed.total() == len(SIDES) * len(steps[COORDINATOR]) >= EVERY


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.long
def test_when_all_die_at_once_again_and_again_both_books_show_what_left(folder: Path, style: str) -> None:
    """Power cuts after lives of 9 to 39 steps: nobody is left who remembers anything."""
    places, total = set[tuple[str, str]](), 0
    for turn in range(3):
        plan = plan_for(style, rounds=3, spare=80, noise=30.0)
        story = Story(folder / str(turn), style, plan=plan, post=POSTS[turn])
        story.power_cuts(9 + 7 * (3 * life + turn) % 31 for life in range(CUTS // 3))
        kills = told(story).kills
        total, places = total + len(kills), places | {visit[:2] for visit in kills}
    assert total == CUTS
    assert {side for side, _ in places} == set(SIDES) and len(places) > 20


# ----------------------------------------------------------------------------------------------- the same by SIGKILL


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.parametrize(("style", "side"), [("records", COORDINATOR), ("hybrid", COORDINATOR), ("hybrid", "north")])
@pytest.mark.some(1)
def test_a_true_kill_and_a_simulated_one_leave_the_same_books(folder: Path, style: str, side: str) -> None:
    """Three times twelve processes die by SIGKILL; what is on the disks then, and at the end, is the simulation's."""
    command = [sys.executable, "-m", "federation.killing_children", str(folder), style, side, "12"]
    where = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([where, os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=where, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    kills = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len({kill["step"] for kill in kills}) == 12
    for kill in kills:
        assert len(kill["true"]) == 2, "the books after the kill, and at the end"
        assert kill["true"] == kill["simulated"], kill["step"]
    assert len({json.dumps(kill["true"][0]) for kill in kills}) > 4, "they died at different moments"


# ------------------------------------------------------------------------------------------------- controls: it finds


def found(story: Story, problem: str) -> None:
    """The check stops this story with just this problem."""
    story.after_kill = lambda *dead: check(story, *dead)
    with pytest.raises(Lost, match=problem):
        story.go()
        check(story)


def test_the_control_a_site_that_reserves_after_its_data_was_touched_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing leaves unpaid, so only a kill between the two shows it: data was touched, and no book says so."""
    _later(monkeypatch, SiteBooks, of_site=True)
    story = Story(folder, "records")
    story.kill("north", "party:before-commit", 1)
    found(story, "north touched its data 1 times and reserved 0")


def test_the_control_a_coordinator_that_reserves_after_it_asked_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _later(monkeypatch, Ledger, of_site=False)
    story = Story(folder, "records")
    story.kill(COORDINATOR, "remote:requested", 1)
    found(story, "requests left that were not reserved")


def _later(monkeypatch: pytest.MonkeyPatch, books: type[Any], *, of_site: bool) -> None:
    """Reservations of one side wait until their commit."""
    reserve, commit = books.reserve, Ledger.commit

    def waits(self: Any, run: str, *given: Any, **named: Any) -> Any:
        if not of_site and run != "run":
            return reserve(self, run, *given, **named)
        if not of_site:
            return lambda: reserve(self, run, *given, **named)
        resolved, number = given[0], given[1]
        charges = site_charges(resolved, self.policy.name, number)
        return (lambda: reserve(self, run, *given, **named)[0]), charges

    def both(self: Ledger, receipt: Any, **named: Any) -> Any:
        return commit(self, receipt() if callable(receipt) else receipt, **named)

    monkeypatch.setattr(books, "reserve", waits)
    monkeypatch.setattr(Ledger, "commit", both)


@pytest.mark.parametrize(
    ("of_site", "problem"), [(True, "was not committed there"), (False, "saved of rounds that were not committed")]
)
def test_the_control_a_side_that_skips_its_commit_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch, of_site: bool, problem: str
) -> None:
    commit = Ledger.commit

    def skips(self: Ledger, receipt: Receipt, **named: Any) -> Any:
        return None if (receipt.run != "run") == of_site else commit(self, receipt, **named)

    monkeypatch.setattr(Ledger, "commit", skips)
    found(Story(folder, "records"), problem)


def test_the_control_a_site_that_answers_an_attempt_again_after_a_restart_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fresh noise on the same charge: the average of both would be less private than what was paid for (rule 10)."""
    reserve, commit = SiteBooks.reserve, Ledger.commit

    def forgives(self: SiteBooks, run: str, resolved: Any, number: int, attempt: int, coordinator: Any) -> Any:
        try:
            return reserve(self, run, resolved, number, attempt, coordinator)
        except InvalidParameter:
            return None, site_charges(resolved, self.policy.name, number)

    monkeypatch.setattr(SiteBooks, "is_answered", lambda *given: False)
    monkeypatch.setattr(SiteBooks, "reserve", forgives)
    monkeypatch.setattr(Ledger, "commit", lambda self, receipt, **named: receipt and commit(self, receipt, **named))
    story = Story(folder, "records")
    story.kill("north", "carrier:left", 3)  # greeted, enrolled, and now its update has left
    found(story, "two contents")


def test_the_control_a_disk_that_loses_its_newest_entries_is_found(folder: Path) -> None:
    story = Story(folder, "records")
    story.kill("north", "carrier:left", 3)

    def forget(*dead: str) -> None:
        for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.head", "ledger.db.key"):
            (story.homes["north"] / name).unlink(missing_ok=True)
        check(story)

    story.after_kill = forget
    with pytest.raises(Lost, match="an update left north that was not reserved there"):
        story.go()


def test_the_control_books_with_too_small_an_epsilon_are_found(folder: Path) -> None:
    """Books that trust the draw are not enough for a site that does not; and what suffices is not far above."""
    story = Story(folder, "hybrid", trust=True)
    story.go()
    pages = check(story)
    for (site, unit), times in ((("north", RECORD), 2), (("north", CLIENT), 6)):
        assert floor(NOISE, 0.5, times) <= pages["north"].spent[site, unit] <= 1.05 * floor(NOISE, 0.5, times)
    story.trust = False
    with pytest.raises(Lost, match="per client of north"):
        check(story)
    story.trust = True
    story.notes.updates.append(Left("north", 3, 1, "nobody reserved this"))
    with pytest.raises(Lost, match="not reserved there"):
        check(story)
