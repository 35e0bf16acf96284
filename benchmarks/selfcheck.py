"""What the self-check sees, and whom it accuses: broken trainers by test, and correct models on many seeds.

    python benchmarks/selfcheck.py [--mutants] [--honest 100] [--model NAME]

Without options both tables are printed. A mutant's line marks every test that accuses it, in bold those that must
(`tests/learning/mutants`). A correct model is built anew for each seed, with weights, made-up rows and the
check's own choices drawn from that seed, while its noise comes from the operating system; the table says how often it
was accused, the smallest p-value and the median seconds of a check. Needs torch.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

for place in ("tests", "src"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / place))
os.environ.setdefault("QUIETSUM_TEST_SEEDS", "1")  # of the check's own choices; noise is not seeded

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from learning.mutants.catalogue import MUTANTS, UNSEEN
from learning.mutants.honest import Trainer
from quietsum.learning.checks.before_training import while_checking
from quietsum.learning.checks.numpy_step import Field, MadeUp
from quietsum.learning.checks.step import CheckedStep
from quietsum.learning.clipping import Clip, Flat, FlatL1, QuantileClip
from quietsum.learning.engines.batch_mixing import SteadyEngine
from quietsum.learning.engines.protocol import engine_for
from quietsum.learning.step import PrivateStep, cross_entropy
from quietsum.mechanisms.rng import randomness_for_tests
from quietsum.selfcheck import TESTS, one_step, run_selfcheck

LABEL = Field(shape=(), dtype="int64", below=3)
VECTORS = MadeUp(fields=(Field(shape=(6,)), LABEL))
IMAGES = MadeUp(fields=(Field(shape=(1, 8, 8)), LABEL))
TOKENS = MadeUp(fields=(Field(shape=(6,), dtype="int64", below=12), LABEL))


class Recurrent(nn.Module):
    """An embedding and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(12, 6), nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the classes."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


class Gpt(nn.Module):
    """A causal transformer of one block, small enough to be checked a hundred times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(12, 8), nn.Embedding(6, 8)
        self.first, self.second, self.last = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)
        self.queries, self.mixed = nn.Linear(8, 24), nn.Linear(8, 8)
        self.wide, self.narrow, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the classes."""
        states = self.embedding(tokens) + self.places(torch.arange(tokens.shape[1]))
        query, key, value = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.queries(self.first(states)).chunk(3, dim=-1)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.mixed(seen.transpose(1, 2).flatten(2))
        states = states + self.narrow(nn.functional.gelu(self.wide(self.second(states))))
        return self.head(self.last(states)[:, -1])


def mlp() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    """A convolution and a layer."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


def normed() -> nn.Module:
    """Two layers of spectral norm 1, whose vectors are buffers."""
    return nn.Sequential(spectral_norm(nn.Linear(6, 8)), nn.Tanh(), spectral_norm(nn.Linear(8, 3)))


MODELS: dict[str, tuple[Callable[[], nn.Module], MadeUp, str, Clip, QuantileClip | None]] = {
    "MLP": (mlp, VECTORS, "fast", Flat(max_norm=1.0), None),
    "CNN": (cnn, IMAGES, "fast", Flat(max_norm=1.0), None),
    "spectral norm": (normed, VECTORS, "fast", Flat(max_norm=1.0), None),
    "GPT": (Gpt, TOKENS, "fast", Flat(max_norm=1.0), None),
    "embedding and LSTM": (Recurrent, TOKENS, "fast", Flat(max_norm=1.0), None),
    "MLP, secure noise": (mlp, VECTORS, "secure", Flat(max_norm=1.0), None),
    "MLP, Laplace noise": (mlp, VECTORS, "fast", FlatL1(max_norm=1.0), None),
    "MLP, adaptive clip": (mlp, VECTORS, "fast", Flat(max_norm=1.0), QuantileClip(count_noise=5.0)),
}


def checked(name: str, seed: int) -> tuple[CheckedStep, nn.Module]:
    """The step of a fresh model."""
    build, rows, mode, clip, adaptive = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()

    def make(some: nn.Module) -> PrivateStep:
        return PrivateStep.build(
            some,
            cross_entropy,
            clip,
            noise_multiplier=1.1,
            rate=0.05,
            expected_batch=20.0,
            mode=mode,
            adaptive=adaptive,
        )

    def naive(some: nn.Module) -> SteadyEngine:
        return SteadyEngine(engine_for("naive", some, cross_entropy, clip), some, cross_entropy)

    referee = None if adaptive else naive
    return CheckedStep(make, model, rows=rows, population=400, referee=referee, name=name), model


def honest(names: list[str], seeds: int, attack: float) -> bool:
    """The table of correct models. Whether none was accused."""
    print("| model | long checks | accused | short checks | accused | smallest p | seconds, long | short |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    fine = True
    for name in names:
        reports = []
        for seed in range(seeds):
            step, model = checked(name, seed)
            with while_checking(model):
                long = run_selfcheck(step, rng=randomness_for_tests(1000 + seed), seconds=attack)
                short = one_step(step, rng=randomness_for_tests(2000 + seed))
            reports.append((long, short))
            if seed % 10 == 9:
                print(f"{name}: {seed + 1} seeds", file=sys.stderr, flush=True)
            for report in (long, short):
                if not report.passed:
                    print(f"{name}, seed {seed}:", *report.lines(), sep="\n", file=sys.stderr)
        accused = [sum(not pair[place].passed for pair in reports) for place in (0, 1)]
        least = min(f.p_value for pair in reports for r in pair for f in r.findings if f.p_value is not None)
        times = [statistics.median(pair[place].seconds for pair in reports) for place in (0, 1)]
        fine = fine and not any(accused)
        cells = (name, seeds, accused[0], seeds, accused[1], f"{least:.1e}", f"{times[0]:.2f}", f"{times[1]:.2f}")
        print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
    return fine


def mutants(attack: float) -> bool:
    """The table of broken trainers. Whether each was caught by the tests that must see it."""
    print(f"| trainer | {' | '.join(TESTS)} |")
    print(f"|---|{'---|' * len(TESTS)}", flush=True)
    fine = True
    for name, make in {"honest": Trainer, **MUTANTS, **UNSEEN}.items():
        trainer = make()
        report = run_selfcheck(trainer, rng=randomness_for_tests(8), seconds=attack)
        fine = fine and set(trainer.caught_by) <= set(report.caught_by) and report.passed == (not trainer.caught_by)
        marks = ["**×**" if test in trainer.caught_by else "×" if test in report.caught_by else "" for test in TESTS]
        if not set(trainer.caught_by) <= set(report.caught_by):
            marks = [
                f"{mark} MISSED" if test in trainer.caught_by else mark for test, mark in zip(TESTS, marks, strict=True)
            ]
        print(f"| {name} | {' | '.join(marks)} |", flush=True)
    return fine


def main() -> int:
    """Both tables, or what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", action="store_true", help="only the broken trainers")
    parser.add_argument("--honest", type=int, metavar="SEEDS", help="only the correct models, on so many seeds")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="only this correct model")
    parser.add_argument("--seconds", type=float, default=0.3, help="that an attack may take")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    both, fine = not asked.mutants and asked.honest is None, True
    if asked.mutants or both:
        fine = mutants(asked.seconds)
    if asked.honest or both:
        fine = honest(asked.model or list(MODELS), asked.honest or 100, asked.seconds) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
