"""Any sequence of acts, from two handles on one file: the ledger agrees with a naive list of what was reserved."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from ledger.build import RECORD, STEP, STEPS, charge, open_run
from quietsum import Budget, ExactAccountant
from quietsum.errors import QuietsumError
from quietsum.ledger import Ledger, Receipt
from quietsum.privacy import RenyiFilter

LIFETIME, LIMIT, ROUNDS = 1.9, 1.6, 8
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "commit", "refund", "open", "reopen"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 1),
        st.integers(1, 4),
    ),
    min_size=5,
    max_size=50,
)


@given(ACTS)
@settings(max_examples=40, deadline=None)
def test_the_ledger_agrees_with_a_naive_model(acts: list[tuple[str, str, int, int]]) -> None:
    reserved: dict[str, int] = {}
    pending: list[Receipt] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        handles = [Ledger.open(path, create=True), Ledger.open(path, create=True)]
        acts = [("open", "a", 0, 1), ("open", "b", 1, 1), *acts]
        for act, run, which, round in acts:
            ledger = handles[which]
            before = ledger.head
            try:
                match act:
                    case "open":
                        open_run(ledger, run, rounds=ROUNDS, limit=LIMIT, lifetime=LIFETIME)
                        reserved.setdefault(run, 0)
                    case "reserve":
                        pending.append(ledger.reserve(run, round, ledger.next_attempt(run, round), [charge()]))
                        reserved[run] += 1
                    case "commit" if pending:
                        ledger.commit(pending.pop())
                    case "refund" if pending:
                        ledger.refund(pending[-1], "Basel", "refused")
                        reserved[pending.pop().run] -= 1
                    case "reopen":
                        ledger.close()
                        handles[which] = Ledger.open(path)
            except QuietsumError:
                assert handles[which].head == before, "a refusal writes nothing"
        for run, count in reserved.items():
            naive = ExactAccountant().compose(STEP, count * STEPS).epsilon(delta=1e-5).epsilon
            for ledger in handles:
                found = ledger.spending_by_party(run)["Basel", RECORD].epsilon
                assert abs(found - naive) <= 1e-9 * naive
                assert found <= LIMIT * (1 + 1e-9)
        if sum(count > 0 for count in reserved.values()) > 1:
            gate = RenyiFilter(budget=Budget(epsilon=LIFETIME, delta=1e-5))
            assert gate.allows(STEP, times=STEPS * sum(reserved.values()))
        heads = [ledger.head for ledger in handles]
        handles[0].verify(heads, every_signature=True)
        for ledger in handles:
            ledger.close()
