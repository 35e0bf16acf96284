"""The workload in quietsum: whole rounds with their ledger, in this process or with worker processes."""

from __future__ import annotations

import workload  # type: ignore[import-not-found]  # isort: skip  # first: it decides about threads

import contextlib
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import softmax_task  # type: ignore[import-not-found]

from quietsum.federation.local import LocalFederation
from quietsum.federation.round import first_state, run_round
from quietsum.ledger import Ledger
from quietsum.mechanisms.rng import system_randomness
from quietsum.plan import Plan, resolve


def plan_of(clients: int, steps: int, rounds: int, privacy: dict[str, Any] | None = None) -> Plan:
    """Everybody in every round, full batches."""
    return Plan.from_dict(
        {
            "task": {"name": "softmax_task:Softmax", "options": {"clients": clients}},
            "federation": {"rounds": rounds},
            "training": {
                "sample_rate": 1.0,
                "local_steps": steps,
                "optimizer": {"kind": "sgd", "learning_rate": workload.RATE},
            },
            "privacy": privacy or {"style": "none"},
            "aggregation": {"weights": "equal"},
        }
    )


def main() -> None:
    """All rounds; the weights are those of the first ``--rounds``, the times those of three times as many."""
    told = workload.arguments()
    total = 3 * told.rounds
    plan = plan_of(told.clients, told.steps, total)
    task = softmax_task.Softmax(clients=told.clients)
    resolved = resolve(plan, task.parties(), task.dimension)
    began = time.perf_counter()
    federation = LocalFederation.of(task, resolved, workers=told.workers)
    clock, rng, weights = workload.Clock(), system_randomness(), None
    with contextlib.ExitStack() as stack:
        stack.callback(federation.close)
        ready = time.perf_counter() - began
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        ledger = stack.enter_context(Ledger.open(Path(folder) / "ledger.db", create=True))
        ledger.open_run(
            "run",
            plan=plan.to_dict(),
            terms=resolved.terms(),
            planned=resolved.all_charges(),
            datasets=resolved.datasets(),
        )
        state = first_state(resolved, task.initial())
        clock.start()
        for number in range(1, total + 1):
            result = run_round(
                "run", number, state, resolved=resolved, federation=federation, ledger=ledger, rng=rng
            )  # fmt: skip
            state = result.state
            clock.lap()
            if len(result.kept) != told.clients:
                raise SystemExit(f"round {number}: {len(result.kept)} of {told.clients} clients replied")
            if number == told.rounds:
                weights = state.params.copy()
    peak = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    workload.finish(told.out, weights, clock.seconds, ready=ready, peak_mb=peak)


if __name__ == "__main__":
    main()
