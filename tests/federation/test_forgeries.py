"""Whoever goes back behind a head that the other side has kept is found: at the next exchange, and offline.

A tail that was cut, yesterday's file, a chain rewritten with fresh hashes by somebody who holds its key, a new ledger
in the place of the old one; at a site and at the coordinator. Each forgery verifies by itself, which every test here
shows first.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from federation.killing import COORDINATOR, SITES, Story, plan_for
from federation.reading import check
from ledger.test_tampering import bodies, replace_rows, rewritten, rows_of
from quietsum.errors import LedgerBroken, TooFewParties
from quietsum.ledger import Head, Ledger
from quietsum.ledger.chain.keys import load_key
from quietsum.ledger.chain.verify import verify_file

FILES = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.head", "ledger.db.key")


class Pause(Exception):
    """The story stops here, and its processes end."""


def pause(story: Story, visit: int) -> None:
    """On to the ``visit``-th checkpoint, where the coordinator dies and the sites are stopped."""

    def stop(*dead: str) -> None:
        raise Pause

    story.kill(COORDINATOR, "run:checkpointed", visit)
    story.after_kill = stop
    with pytest.raises(Pause):
        story.go()
    for service in story.services.values():
        service.books.ledger.close()
    story.services.clear()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disks of a run of four rounds, stopped after its second; those of the first round lie beside them."""
    folder = tmp_path_factory.mktemp("told")
    story = Story(folder / "story", "records", plan=plan_for("records", rounds=4))
    pause(story, 1)
    for side, home in story.homes.items():
        shutil.copytree(home, folder / "older" / side)
    pause(story, 2)
    for side, home in story.homes.items():
        shutil.copytree(home, folder / "newest" / side)
    return folder


@pytest.fixture
def story(told: Path, tmp_path: Path) -> Story:
    """That run, to be forged and gone on with."""
    found = Story(tmp_path / "story", "records", plan=plan_for("records", rounds=4))
    for side, home in found.homes.items():
        shutil.copytree(told / "newest" / side, home, dirs_exist_ok=True)
    return found


# ------------------------------------------------------------------------------------------------------ forgeries


def cut(home: Path, older: Path) -> None:
    """The last three entries are gone."""
    replace_rows(home / "ledger.db", rows_of(home / "ledger.db")[:-3])


def restored(home: Path, older: Path) -> None:
    """Yesterday's file, which was whole yesterday."""
    for name in FILES[:3]:
        (home / name).unlink(missing_ok=True)
        if (older / name).exists():
            shutil.copy(older / name, home / name)


def rewrites(home: Path, older: Path) -> None:
    """Every hash and signature is fresh and right; somebody else has decided about the budget."""
    rows = rows_of(home / "ledger.db")
    key = load_key(home / "ledger.db", bodies(rows[0])["public_key"])
    replace_rows(home / "ledger.db", rewritten(rows, key, _other_reason))


def rewrites_and_goes_on(home: Path, older: Path) -> None:
    """The same, and longer than what the other side has seen."""
    rewrites(home, older)
    _drop_mark(home)
    with Ledger.open(home / "ledger.db") as ledger:
        for reason in ("more", "and more"):
            ledger.declare_public(party="nobody", dataset=f"a public one, {reason}", reason=reason)


def _other_reason(row: Any) -> dict[str, Any]:
    body = bodies(row)
    return {**body, "reason": "the board has decided otherwise"} if row.kind == "budget" else body


def replaced(home: Path, older: Path) -> None:
    """A new ledger that knows of nothing, made where no run reminds it of the one before."""
    elsewhere = home.with_name(f"{home.name}-elsewhere")
    elsewhere.mkdir()
    with Ledger.open(elsewhere / "ledger.db", create=True):
        pass
    for name in FILES:
        (home / name).unlink(missing_ok=True)
    for path in elsewhere.iterdir():
        path.rename(home / path.name)
    elsewhere.rmdir()


Forgery = Callable[[Path, Path], None]
SHORTER: tuple[Forgery, ...] = (cut, restored, rewrites)
SAME_KEY: tuple[Forgery, ...] = (*SHORTER, rewrites_and_goes_on)


def _drop_mark(home: Path) -> None:
    (home / "ledger.db.head").unlink(missing_ok=True)


def forge(story: Story, told: Path, side: str, forgery: Forgery) -> None:
    """Without its high-water mark the forged ledger is in order, as far as it can tell itself."""
    forgery(story.homes[side], told / "older" / side)
    _drop_mark(story.homes[side])
    verify_file(story.homes[side] / "ledger.db", every_signature=True)


def entries(story: Story, side: str) -> int:
    with Ledger.open(story.homes[side] / "ledger.db", read_only=True) as ledger:
        return ledger.head.sequence


def kept_by(story: Story, side: str, of: str) -> list[Head]:
    """The heads of ``of`` in the receipts of ``side``."""
    with Ledger.open(story.homes[side] / "ledger.db", read_only=True) as ledger:
        told = [told for _, heads in ledger.receipts() for name, told in heads.items() if of in (name, COORDINATOR)]
    return [one.head for one in told]


# -------------------------------------------------------------------------------------------------------- the control


def test_untouched_ledgers_go_on_and_are_found_in_order(story: Story) -> None:
    """At the end each side holds the other's newest head; the coordinator then writes the sites' own, and no more."""
    assert story.go().outcome == "finished"
    pages = check(story)
    for site in SITES:
        assert kept_by(story, COORDINATOR, site)[-1].sequence == len(pages[site].acts)
        assert kept_by(story, site, COORDINATOR)[-1].sequence == len(pages[COORDINATOR].acts) - 1


# ---------------------------------------------------------------------------------------------------- found by itself


@pytest.mark.parametrize("side", [COORDINATOR, "north"])
@pytest.mark.parametrize("forgery", SHORTER)
def test_the_mark_beside_it_finds_it_first(story: Story, told: Path, side: str, forgery: Forgery) -> None:
    forgery(story.homes[side], told / "older" / side)
    with pytest.raises(LedgerBroken) as broken:
        story.begin_site("north") if side == "north" else story.coordinate(story)
    assert broken.value.exit_code == 4


# -------------------------------------------------------------------------------------------------- found by the other


@pytest.mark.parametrize("forgery", [*SAME_KEY, replaced])
def test_a_forged_ledger_of_a_site_is_found_at_the_next_exchange(
    story: Story, told: Path, forgery: Forgery, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither side goes on: the site trains for nobody, and both logs say why. The others finish without it."""
    forge(story, told, "north", forgery)
    before = entries(story, "north")
    with caplog.at_level(logging.WARNING, logger="quietsum"):
        assert story.go().outcome == "finished"
    assert {one.site for one in story.notes.updates} == {"south"} and story.notes.touched["north"] == 0
    assert entries(story, "north") == before, "nothing is signed on top of it"
    at_site = [one for one in caplog.records if one.name == "quietsum.party.service"]
    assert any("until the ledger is in order" in one.getMessage() for one in at_site)
    here = [one.getMessage() for one in caplog.records if one.name == "quietsum.federation.remote"]
    assert any("its own ledger is not in order" in text or "the ledger of north" in text for text in here), here


@pytest.mark.parametrize("forgery", SAME_KEY)
def test_a_forged_ledger_of_the_coordinator_is_found_at_the_next_exchange(
    story: Story, told: Path, forgery: Forgery
) -> None:
    """Its own checkpoints would find it; so they are gone as well, and a new run begins. The sites remember."""
    shutil.rmtree(story.homes[COORDINATOR] / "runs")
    forge(story, told, COORDINATOR, forgery)
    with pytest.raises(LedgerBroken, match="a site has kept") as broken:
        story.go()
    assert broken.value.exit_code == 4
    assert not story.notes.requests and not story.notes.touched


@pytest.mark.parametrize("forgery", [*SAME_KEY, replaced])
def test_its_own_checkpoints_find_a_forged_ledger_of_the_coordinator(
    story: Story, told: Path, forgery: Forgery
) -> None:
    forge(story, told, COORDINATOR, forgery)
    with pytest.raises(LedgerBroken) as broken:
        story.go()
    assert broken.value.exit_code == 4 and not story.notes.requests


def test_a_coordinator_with_a_new_ledger_is_refused_by_every_site(
    story: Story, told: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is another coordinator now: nobody can tell it from a stranger, and strangers are refused."""
    shutil.rmtree(story.homes[COORDINATOR] / "runs")
    forge(story, told, COORDINATOR, replaced)
    with caplog.at_level(logging.WARNING, logger="quietsum"):
        result = story.coordinate(story)
    assert isinstance(result.error, TooFewParties) and result.error.exit_code == 6
    assert not story.notes.requests and not story.notes.touched
    assert sum("works for another coordinator" in one.getMessage() for one in caplog.records) >= 4  # in both logs


def test_a_workspace_that_was_put_back_as_a_whole_is_found_by_its_sites(story: Story, told: Path) -> None:
    """Ledger, mark and checkpoints of the first round fit each other; the sites have seen the second."""
    home = story.homes[COORDINATOR]
    shutil.rmtree(home)
    shutil.copytree(told / "older" / COORDINATOR, home)
    with pytest.raises(LedgerBroken, match="a site has kept") as broken:
        story.go()
    assert broken.value.exit_code == 4 and not story.notes.requests


def test_a_site_that_was_put_back_as_a_whole_is_found_by_the_coordinator(
    story: Story, told: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = story.homes["north"]
    shutil.rmtree(home)
    shutil.copytree(told / "older" / "north", home)
    with caplog.at_level(logging.WARNING, logger="quietsum"):
        assert story.go().outcome == "finished"
    assert story.notes.touched["north"] == 0
    assert "its tail was cut off, or an older copy was put back" in caplog.text


def test_the_known_limit_both_sides_put_back_together_are_not_found(story: Story, told: Path) -> None:
    """Heads kept at the other side are no help when that side goes back to the same day: keep one elsewhere, too."""
    newest = {side: kept_by(story, COORDINATOR, side)[-1] for side in SITES}
    for side, home in story.homes.items():
        shutil.rmtree(home)
        shutil.copytree(told / "older" / side, home)
    assert story.go().outcome == "finished"
    check(story)
    with pytest.raises(LedgerBroken, match="rewritten"):
        verify_file(story.homes["north"] / "ledger.db", anchors=[newest["north"]])


# ------------------------------------------------------------------------------------------------------------- offline


@pytest.mark.parametrize("forgery", [*SAME_KEY, replaced])
@pytest.mark.parametrize(("side", "other"), [("north", COORDINATOR), (COORDINATOR, "north")])
def test_receipts_of_the_other_side_find_a_forged_ledger_offline(
    story: Story, told: Path, side: str, other: str, forgery: Forgery
) -> None:
    path, heads = story.homes[side] / "ledger.db", kept_by(story, other, side)
    assert verify_file(path, anchors=heads).anchors == len(set(heads)) >= 2
    forge(story, told, side, forgery)
    with pytest.raises(LedgerBroken):
        verify_file(path, anchors=heads)
    with Ledger.open(path, read_only=True) as ledger, pytest.raises(LedgerBroken):
        ledger.verify(heads)
