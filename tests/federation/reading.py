"""What the books of a :class:`federation.killing.Story` must show, whatever was killed when.

Every check goes from what the world saw to what is on disk: nothing that left may be missing in a book. The ε of the
floor is computed by dp_accounting with its optimistic estimate, so it is never above the true one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path

from dp_accounting.pld import privacy_loss_distribution

from federation.killing import COORDINATOR, DELTA, RATE, SIDES, SITES, Left, Story
from quietsum.errors import LedgerBroken, QuietsumError
from quietsum.ledger import Head, Ledger
from quietsum.ledger.chain.entries import Kind
from quietsum.ledger.chain.verify import verify_file
from quietsum.privacy.units import PrivacyUnit

__all__ = ["Lost", "Pages", "check", "floor"]


class Lost(AssertionError):
    """A book shows less than what left, or two books contradict each other."""


@functools.cache
def floor(noise: float, rate: float, times: int) -> float:
    """No more than the ε that ``times`` releases of a Gaussian on a Poisson draw cost, by another library."""
    if times == 0:
        return 0.0
    one = privacy_loss_distribution.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        pessimistic_estimate=False,
        use_connect_dots=False,
        value_discretization_interval=1e-3,
    )
    return float(one.self_compose(times).get_epsilon_for_delta(DELTA))


class Pages:
    """One ledger as it lies on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = ""
        self.reserved: set[tuple[int, int]] = set()
        self.committed: set[tuple[int, int]] = set()
        self.kept: dict[str, list[Head]] = {}
        self.spent: dict[tuple[str, PrivacyUnit], float] = {}
        self.acts: list[tuple[str, int, int]] = []
        self.hashes: dict[int, str] = {}
        try:
            book = Ledger.open(path, read_only=True)
        except LedgerBroken as error:
            if not re.search("is empty|was never begun", str(error)):
                raise
            return
        except QuietsumError as error:
            if not re.search("there is no ledger|was never begun", str(error)):
                raise
            return
        with book:
            self._read(book)

    def _read(self, book: Ledger) -> None:
        self.ledger = book.identity.ledger
        for entry in book.entries():
            key = entry.body.get("round", -1), entry.body.get("attempt", -1)
            self.acts.append((entry.kind.value, *key))
            self.hashes[entry.sequence] = entry.hash
            if entry.kind is Kind.RESERVE:
                self.reserved.add(key)
            if entry.kind is Kind.COMMIT:
                self.committed.add(key)
            if entry.kind is Kind.WITNESS:
                for name, told in entry.body["heads"].items():
                    self.kept.setdefault(name, []).append(Head.from_dict(told["head"]))
        for run in book.runs():
            self.spent |= {account: one.epsilon for account, one in book.spending_by_party(run.run).items()}


def check(story: Story, *dead: str) -> dict[str, Pages]:
    """Raise :class:`Lost` where a book shows less than what left; the books.

    Where sides are named, only these are verified from their first entry on: nobody else's file has changed hands.
    """
    pages = {side: Pages(story.homes[side] / "ledger.db") for side in SIDES}
    _verify(pages, dead or SIDES)
    contents: dict[tuple[str, int, int], set[str]] = {}
    for one in story.notes.updates:
        contents.setdefault((one.site, one.round, one.attempt), set()).add(one.content)
    _require(all(len(found) == 1 for found in contents.values()), "one attempt left a site with two contents")
    for site in SITES:
        _check_site(story, site, pages[site])
        asked = {key for key in pages[site].reserved if key[0] > 0}
        _require(asked <= pages[COORDINATOR].reserved, f"{site} was charged for what the coordinator never reserved")
    _check_coordinator(story, pages[COORDINATOR])
    return pages


def _verify(pages: dict[str, Pages], sides: Iterable[str]) -> None:
    """Ledgers verify, and every one contains the heads that the other side has kept of it."""
    mine = [head for site in SITES for heads in pages[site].kept.values() for head in heads]
    kept = {COORDINATOR: mine, **{site: pages[COORDINATOR].kept.get(site, []) for site in SITES}}
    for side, book in pages.items():
        for head in kept[side]:
            there = head.ledger == book.ledger and book.hashes.get(head.sequence) == head.hash
            _require(there, f"a head of {side} that the other side has kept is not in its ledger")
        if side in sides and book.ledger:
            try:
                verify_file(book.path, anchors=kept[side][-1:])
            except LedgerBroken as error:
                raise Lost(f"the ledger of {side}: {error}") from None


def _check_site(story: Story, site: str, book: Pages) -> None:
    left = _keys(one for one in story.notes.updates if one.site == site)
    _require(left <= book.reserved, f"an update left {site} that was not reserved there: {left - book.reserved}")
    _require(left <= book.committed, f"an update left {site} that was not committed there: {left - book.committed}")
    rounds = {key for key in book.reserved if key[0] > 0}
    touched = story.notes.touched[site]
    _require(touched <= len(rounds), f"{site} touched its data {touched} times and reserved {len(rounds)}")
    record, client = _noises(story)
    if record is not None:
        _at_least(book, (site, PrivacyUnit.RECORD), floor(record, 0.5, len(left)))
    if client is not None and (left or site in story.notes.enrolled):
        attempts = story.plan.federation.rounds + story.plan.federation.spare_attempts
        _at_least(book, (site, PrivacyUnit.CLIENT), floor(client, RATE if story.trust else 1.0, attempts))


def _check_coordinator(story: Story, book: Pages) -> None:
    asked = _keys(story.notes.requests)
    _require(asked <= book.reserved, f"requests left that were not reserved: {asked - book.reserved}")
    saved = {
        int(path.stem.split("-")[1])
        for path in story.homes[COORDINATOR].glob("runs/run/checkpoints/round-*.safetensors")
    } - {0}
    committed = {number for number, _ in book.committed}
    _require(saved <= committed, f"models were saved of rounds that were not committed: {saved - committed}")
    record, client = _noises(story)
    for site in SITES:
        if record is not None:
            mine = _keys(one for one in story.notes.requests if one.site == site)
            _at_least(book, (site, PrivacyUnit.RECORD), floor(record, 0.5, len(mine)))
        if client is not None:
            _at_least(book, (site, PrivacyUnit.CLIENT), floor(client, RATE, len(asked)))


def _noises(story: Story) -> tuple[float | None, float | None]:
    privacy = story.plan.privacy
    return (
        None if story.style == "clients" or privacy.record is None else privacy.record.noise_multiplier,
        None if story.style == "records" or privacy.client is None else privacy.client.noise_multiplier,
    )


def _keys(left: Iterable[Left]) -> set[tuple[int, int]]:
    return {(one.round, one.attempt) for one in left}


def _at_least(book: Pages, account: tuple[str, PrivacyUnit], least: float) -> None:
    found = book.spent.get(account, 0.0)
    _require(found >= least, f"{book.path} shows ε = {found:g} per {account[1]} of {account[0]}, {least:g} has left")


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise Lost(problem)
