"""Does an audit by canaries find what it must, accuse nobody wrongly, and cost little? And beside jax-privacy's?

    python benchmarks/canaries.py [--faults] [--cost] [--peer DIR [--install]]

``--faults``: a correct trainer and three faulty ones (``tests/audit/faulty.py``), each on ``--seeds`` seeds, with as
many canaries, steps and draws as the smallest audit for which a promise is made: noise σ = 2 and canaries · steps ·
rate = 10⁴. ``--cost``: CPU time of a whole training with canaries over that of the same one without, taken by turns;
the ratio of each pair, and the spread of the ratios. ``--peer``: the scores of the same runs' canaries go to
jax-privacy's auditor (``peers/jax_auditing.py``), in an environment of its own in DIR, which ``--install`` makes: its
lower bounds on ε beside ours at the same δ and confidence. Without options the first two. Needs torch.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported
os.environ.setdefault("QUIETSUM_TEST_SEEDS", "1")

import argparse
import contextlib
import gc
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
for place in ("tests", "src"):
    sys.path.insert(0, str(HERE.parent / place))

import numpy as np
import torch
from torch import nn

from audit.faulty import BATCH, FAULTS, ROWS, faulty_trainers
from quietsum.audit import CanaryAudit, CanaryClaim, Conclusion, judge_canaries
from quietsum.audit.one_run import CONFIDENCE, score_canaries
from quietsum.learning import Canaries, CanaryRecord, PrivacyConfig, PrivateTrainer, StopTraining
from quietsum.learning.canaries.carrying import count_epochs
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.privacy import ExactAccountant, Gaussian

NOISE, DELTA, EPOCHS, COUNT = 2.0, 1e-5, 20, 500
CORRECT = "correct"
NAMES = (CORRECT, "half noise", "batch clip", "shuffled batches")
NEEDS = ("jax-privacy==2.0.0",)


def main() -> None:
    """The tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--peer", type=Path, metavar="DIR", help="the environment of jax-privacy")
    parser.add_argument("--install", action="store_true", help="make that environment first")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of trainings for the cost")
    told = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, torch {torch.__version__}, numpy "
          f"{np.__version__}, one thread, load {os.getloadavg()[0]:.1f} when it began")  # fmt: skip
    both = not (told.faults or told.cost or told.peer)
    if told.faults or both:
        faults(told.seeds)
    if told.peer:
        if told.install:
            install(told.peer)
        beside(told.peer, told.seeds)
    if told.cost or both:
        cost(told.pairs)


# --------------------------------------------------------------------------------------------- faults and false alarms


def clouds() -> tuple[torch.Tensor, torch.Tensor]:
    """Two clouds of made-up points."""
    labels = torch.arange(ROWS) % 2
    return torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)) + 2.0 * labels[:, None], labels


def record_of(name: str, seed: int) -> tuple[CanaryRecord, float]:
    """The canaries of one training, and the ε that it claims."""
    torch.manual_seed(0)
    config = PrivacyConfig(
        noise_multiplier=NOISE, epochs=EPOCHS, batch_size=BATCH, delta=DELTA, noise="fast"
    )  # fmt: skip
    fault = contextlib.nullcontext() if name == CORRECT else faulty_trainers(FAULTS[name][0])
    with fault:
        trainer = PrivateTrainer(
            nn.Linear(3, 2), config, audit=Canaries(count=COUNT), selfcheck=False, rng=randomness_for_tests(seed)
        )
        history = trainer.train(clouds(), learning_rate=0.5, optimizer="sgd", progress=False)
    assert trainer.canaries is not None
    return trainer.canaries, history.guarantee.epsilon


def judge(record: CanaryRecord, epsilon: float) -> CanaryAudit:
    """That record against the claim of the correct trainer."""
    return judge_canaries(record, CanaryClaim(noise=NOISE, rate=BATCH / ROWS, delta=DELTA, epsilon=epsilon))


def faults(seeds: int) -> None:
    """How often each trainer is contradicted."""
    steps = EPOCHS * ROWS // BATCH
    print(f"\n### {COUNT} canaries, {steps} steps, rate {BATCH / ROWS:g}, σ {NOISE:g}: "
          f"canaries x steps x rate = {COUNT * steps * BATCH / ROWS:,.0f}\n")  # fmt: skip
    print("| trainer | seeds | contradicted | consistent | inconclusive | smallest p of any test | ε ≥, median |")
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for name in NAMES:
        found = [judge(*record_of(name, seed)) for seed in range(seeds)]
        counts = [sum(one.conclusion is which for one in found) for which in Conclusion]
        least = min(one.p for audit in found for one in audit.evidence)
        bound = statistics.median(one.lower_bound for one in found)
        cells = (name, seeds, *counts, f"{least:.1e}", f"{bound:.2f}")
        print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
    print("\nThe smallest faults that such an audit finds in nine runs of ten:")
    for power in judge(*record_of(CORRECT, 0)).powers:
        print(f"* {power.sentence}")


# ------------------------------------------------------------------------------------------------ beside jax-privacy


def install(environment: Path) -> None:
    """The environment of the peer."""
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    subprocess.run([str(environment / "bin" / "pip"), "install", "--quiet", *NEEDS], check=True)


def beside(environment: Path, seeds: int) -> None:
    """Lower bounds on ε from the same scores: ours, and those of jax-privacy."""
    settings: list[tuple[str, list[tuple[CanaryRecord, float, float, float]]]] = []
    for name in (CORRECT, "half noise"):
        runs = [record_of(name, seed) for seed in range(seeds)]
        settings.append((f"the trainings above, {name}", [(one, NOISE, BATCH / ROWS, eps) for one, eps in runs]))
    once = ExactAccountant().compose(Gaussian(noise_multiplier=1.0)).epsilon(delta=DELTA).epsilon
    for name, part in ((CORRECT, 1.0), ("half noise", 0.5)):
        settings.append((
            f"one release, σ 1, 1,000 canaries, {name}",
            [(simulate(seed, part), 1.0, 1.0, once) for seed in range(seeds)],
        ))  # fmt: skip
    print(f"\n### Lower bounds on ε at δ {DELTA:g} with {100 * CONFIDENCE:.0f} % confidence, {seeds} runs each\n")
    print("| canary scores of | claim ε ≤ | quietsum, median | beyond the claim | jax-privacy one run | f-DP | "
          "Clopper-Pearson | beyond the claim | our tests contradict |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for label, runs in settings:
        audits = [
            judge_canaries(one, CanaryClaim(noise=noise, rate=rate, delta=DELTA, epsilon=eps))
            for one, noise, rate, eps in runs
        ]
        theirs = ask_peer(environment, runs)
        claim = runs[0][3]
        ours = [one.lower_bound for one in audits]
        columns = [[one[name] for one in theirs] for name in ("one_run", "fdp", "clopper_pearson")]
        beyond = sum(max(row) > claim for row in zip(*columns, strict=True))
        caught = sum(one.conclusion is Conclusion.CONTRADICTED for one in audits)
        cells = (
            label, f"{claim:.2f}", f"{statistics.median(ours):.2f}", f"{sum(one > claim for one in ours)} of {seeds}",
            *(f"{statistics.median(column):.2f}" for column in columns), f"{beyond} of {seeds}", f"{caught} of {seeds}",
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def simulate(seed: int, part: float, canaries: int = 1000) -> CanaryRecord:
    """One release of a sum of 1 or 0 in each coordinate, with ``part`` of noise 1: the plainest game there is."""
    rng = np.random.default_rng(seed)
    included = rng.random(canaries) < 0.5
    released = included[None] + part * rng.standard_normal((1, canaries))
    return CanaryRecord(
        included=included, steps=np.zeros(1, dtype=np.int64), drawn=included[None], released=released.astype(np.float32)
    )


def ask_peer(environment: Path, runs: list[tuple[CanaryRecord, float, float, float]]) -> list[dict[str, float]]:
    """jax-privacy's bounds for each run, from the scores by which ours is made."""
    told = []
    for record, noise, rate, _ in runs:
        scores = score_canaries(record, noise=np.full(len(record.steps), noise), rate=rate)
        told.append({"inside": scores[record.included].tolist(), "outside": scores[~record.included].tolist()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scores.json"
        path.write_text(json.dumps({"delta": DELTA, "confidence": CONFIDENCE, "runs": told}), encoding="utf-8")
        command = [str((environment / "bin" / "python").absolute()), str(HERE / "peers" / "jax_auditing.py"), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(f"jax-privacy failed:\n{done.stderr[-4000:]}")
    found: list[dict[str, float]] = json.loads(done.stdout)
    return found


# ------------------------------------------------------------------------------------------------------------- the cost


def perceptron() -> nn.Module:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))


def convolutions() -> nn.Module:
    """Two convolutions and two layers, for pictures of 28 by 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


WORK: tuple[tuple[str, Callable[[], nn.Module], tuple[int, ...], int, str], ...] = (
    ("perceptron, 17,226 weights, fast noise", perceptron, (64,), 20_000, "fast"),
    ("perceptron, 17,226 weights", perceptron, (64,), 20_000, "secure"),
    ("convolutions, 26,010 weights, fast noise", convolutions, (1, 28, 28), 10_000, "fast"),
    ("convolutions, 26,010 weights", convolutions, (1, 28, 28), 10_000, "secure"),
)
"""What is trained, on how many rows, and with which noise."""
_LOT = 256
_LENGTHS = (20, 30, 60)
"""Epochs of the trainings whose cost is measured."""


def cost(pairs: int) -> None:
    """CPU time of trainings with canaries over that of trainings without, epoch by epoch by turns."""
    print(f"\n### The cost of an audit: CPU time with canaries over that without, epochs by turns, {pairs} pairs\n")
    print("| training | rows | epochs | canaries | they ride in | a step without, ms | ratio, median | smallest | "
          "largest |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for label, build, shape, rows, noise in WORK:
        data = torch.randn(rows, *shape), torch.arange(rows) % 10
        for epochs in _LENGTHS if build is perceptron else _LENGTHS[:1]:
            found = [by_turns(build, data, noise, epochs, first=number % 2 == 0) for number in range(pairs)]
            ratios = [audited / plain for plain, audited, _, _ in found]
            step = 1000 * statistics.median(plain for plain, _, _, _ in found) / (epochs * (rows // _LOT))
            cells = (
                label, f"{rows:,}", epochs, f"{found[0][2]:,}", f"{found[0][3]} epochs", f"{step:.2f}",
                f"{statistics.median(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}",
            )  # fmt: skip
            print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)


class Clocked:
    """A training that stops after each epoch, and the CPU time of its epochs: steps, ledger, checkpoint, record."""

    def __init__(self, build: Callable[[], nn.Module], data: Any, noise: str, epochs: int, audit: Canaries | None):
        torch.manual_seed(0)
        self._folder = tempfile.TemporaryDirectory()
        config = PrivacyConfig(noise_multiplier=NOISE, epochs=epochs, batch_size=_LOT, delta=DELTA, noise=noise)
        self.trainer = PrivateTrainer(
            build(), config, audit=audit, workspace=self._folder.name, run="one", public="made up", checkpoint_every=1
        )  # fmt: skip
        self._data, self._chunk, self.seconds = data, self.trainer._chunk, 0.0
        self.trainer._chunk = self._clock  # type: ignore[method-assign]

    def _clock(self, *told: Any) -> None:
        begun = time.process_time()
        self._chunk(*told)
        self.seconds += time.process_time() - begun

    def go_on(self) -> None:
        """One epoch."""

        def stop(epoch: Any) -> None:
            raise StopTraining

        self.trainer.train(self._data, learning_rate=0.1, optimizer="sgd", progress=False, callbacks=stop)

    def close(self) -> None:
        """Let go of the ledger and its folder."""
        self.trainer.close()
        self._folder.cleanup()


def by_turns(
    build: Callable[[], nn.Module], data: Any, noise: str, epochs: int, *, first: bool
) -> tuple[float, float, int, int]:
    """CPU seconds without and with canaries, how many there were, and in how many epochs they rode."""
    plain, audited = (Clocked(build, data, noise, epochs, audit) for audit in (None, Canaries()))
    gc.collect()
    for _ in range(epochs):
        for one in (plain, audited) if first else (audited, plain):
            one.go_on()
    carrier, plan = audited.trainer._carrier, audited.trainer.plan
    assert carrier is not None and plan is not None
    plain.close()
    audited.close()
    return plain.seconds, audited.seconds, carrier.count, count_epochs(carrier.count, plan)


if __name__ == "__main__":
    main()
