"""Things that the ledger's tests need: charges, runs, whole ledgers, and ways to tamper with them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from quietsum import Budget, Gaussian, PoissonSampled, PrivacyUnit, Repeated
from quietsum.ledger import Charge, Dataset, Ledger, MemoryStore, Receipt, Terms
from quietsum.ledger.chain.keys import SigningKey
from quietsum.privacy import Observer
from quietsum.privacy.events import PrivacyEvent

RECORD = PrivacyUnit.RECORD
STEP = PoissonSampled(rate=0.1, event=Gaussian(noise_multiplier=2.0))
STEPS = 5
"""Steps of one round."""
BOTH = (Observer.SERVER, Observer.RECIPIENTS)


def charge(
    steps: int = STEPS,
    *,
    party: str = "Basel",
    dataset: str = "heart",
    step: PrivacyEvent | None = STEP,
    unit: PrivacyUnit = RECORD,
    failure: float = 0.0,
    observers: tuple[Observer, ...] = BOTH,
) -> Charge:
    event = None if step is None else Repeated(times=steps, event=step)
    return Charge(party=party, dataset=dataset, unit=unit, event=event, failure=failure, observers=observers)


def memory_ledger(**options: Any) -> Ledger:
    return Ledger.begin(MemoryStore(), SigningKey.generate(), **options)


def open_run(
    ledger: Ledger,
    run: str = "first",
    *,
    rounds: int = 4,
    parties: Iterable[str] = ("Basel",),
    dataset: str = "heart",
    limit: float = 3.0,
    lifetime: float | None = 20.0,
    delta: float = 1e-5,
    public: str = "",
    step: PrivacyEvent | None = STEP,
    terms: Terms | None = None,
) -> Any:
    parties = tuple(parties)
    limits = () if step is None else (Budget(epsilon=limit, delta=delta),)
    return ledger.open_run(
        run,
        plan={"federation": {"rounds": rounds}, "run": run},
        terms=terms or Terms(limits=limits),
        planned=[charge(rounds * STEPS, party=party, dataset=dataset, step=step) for party in parties],
        datasets=[Dataset(party=party, dataset=dataset, size=300, public=public) for party in parties],
        lifetimes=() if lifetime is None else (Budget(epsilon=lifetime, delta=delta),),
    )


def reserve(ledger: Ledger, run: str = "first", round: int = 1, **options: Any) -> Receipt:
    return ledger.reserve(run, round, ledger.next_attempt(run, round), [charge(**options)])


def play(ledger: Ledger, run: str = "first", *, rounds: Iterable[int] = (1, 2), **options: Any) -> None:
    """Reserve and commit each round."""
    for number in rounds:
        ledger.commit(reserve(ledger, run, number, **options))


def sample(path: Path) -> Path:
    """A small ledger on disk: two runs, a raised budget, a refund, an open reservation; 15 entries."""
    with Ledger.open(path, create=True) as ledger:
        open_run(ledger, parties=("Basel", "Bern"))  # 2-4
        for number in (1, 2):  # 5-8
            charges = [charge(party="Basel"), charge(party="Bern")]
            ledger.commit(ledger.reserve("first", number, 1, charges))
        receipt = ledger.reserve("first", 3, 1, [charge(party="Basel"), charge(party="Bern")])  # 9
        ledger.refund(receipt, "Bern", "its budget is gone")  # 10
        ledger.commit(receipt)  # 11
        ledger.raise_budget(party="Basel", dataset="heart", epsilon=25.0, reason="the board decided")  # 12
        open_run(ledger, "second")  # 13
        play(ledger, "second", rounds=(1,))  # 14, 15
        reserve(ledger, "second", 2)  # 16
    return path


def tamper(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> None:
    """What somebody with the file and SQLite can do: drop the triggers, change rows, put the triggers back."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        text, values = (statement, ()) if isinstance(statement, str) else statement
        connection.execute(text, values)
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()
