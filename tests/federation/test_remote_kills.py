"""More than a thousand kills of either side, at every step: neither book ever shows less than what left.

How a side is killed, and why that is honest, is told in :mod:`federation.killing`; what must hold after each kill, in
:mod:`federation.reading`. Here is who dies when, and that the checks can fail.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from federation.killing import COORDINATOR, EVERYBODY, SIDES, SITES, STYLES, Killed, Story, plan_for
from federation.reading import Lost, check
from quietsum.ledger import Ledger
from quietsum.ledger.entries import Receipt
from quietsum.party.books import SiteBooks
from quietsum.party.service import SiteService

POSTS = ("lost", "first", "behind")
KILLS: Counter[str] = Counter()
"""All kills of this file, by style."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Memory instead of a disk, where there is such a folder: a kill leaves what the kernel has, synced or not."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as name:
        yield Path(name)


def steps(folder: Path, style: str) -> tuple[dict[str, int], Counter[tuple[str, str]]]:
    """How many failpoints each side passes in a quiet run, and which."""
    quiet = Story(folder / "quiet", style)
    assert quiet.go().outcome == "finished"
    check(quiet)
    shutil.rmtree(quiet.folder)
    return {side: sum(n for (who, _), n in quiet.places.items() if who == side) for side in SIDES}, quiet.places


def told(story: Story) -> Story:
    """Play ``story`` to its end, with a look at all books after every kill and at the end."""
    story.after_kill = lambda *dead: check(story, *dead)
    result = story.go()
    assert result.outcome == "finished", (story.kills, result.error)
    check(story)
    KILLS[story.style] += len(story.kills)
    shutil.rmtree(story.folder)
    return story


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_killed_at_every_step_of_every_side_both_books_show_what_left(folder: Path, style: str) -> None:
    """Story n kills the coordinator at its n-th step, and each site at some step, so that all of theirs get a turn."""
    count, places = steps(folder, style)
    killed: Counter[tuple[str, str]] = Counter()
    for number in range(1, count[COORDINATOR] + 1):
        story = Story(folder / str(number), style, post=POSTS[number % 3], silent=number % 4 > 0)
        story.kill(COORDINATOR, number)
        for turn, site in enumerate(SITES):
            story.kill(site, 13 * (number + turn) % count[site] + 1)
        killed.update(told(story).kills)
    assert killed.total() == 3 * count[COORDINATOR]
    assert set(places) <= set(killed), f"nobody died at {set(places) - set(killed)}"
    assert all(killed[place] >= places[place] for place in places), "every visit of a quiet run is a place to die"


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_when_all_die_at_once_again_and_again_both_books_show_what_left(folder: Path, style: str) -> None:
    """A power cut every few steps, then one at the next number, so that lives end in all places."""
    killed: Counter[tuple[str, str]] = Counter()
    for pace in (17, 23, 29):
        plan = plan_for(style, rounds=3, spare=60, noise=20.0)
        story = Story(folder / str(pace), style, plan=plan, post=POSTS[pace % 3])
        story.kill(EVERYBODY, *range(pace, 40 * pace, pace))
        killed.update(told(story).kills)
    assert killed.total() > 60
