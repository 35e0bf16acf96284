"""The same work for every framework: softmax regression 784 → 10, twenty records a client, full batches.

Needs numpy alone. Records are made up from a fixed seed. Client i holds rows 20·i … 20·i + 19 of a pool of 20,000 rows,
counted round: so ten thousand clients have as much data in memory as a thousand, and what grows is the framework's.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported: two cores, two processes at most

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES, EACH, POOL = 784, 10, 20, 20_000
RATE = 0.01
DIMENSION = CLASSES * FEATURES + CLASSES


def pool() -> tuple[Any, Any]:
    """All records: float32 features and int64 labels."""
    rng = np.random.default_rng(784)
    features = rng.random((POOL, FEATURES), dtype=np.float32)
    labels = (features @ rng.standard_normal((FEATURES, CLASSES), dtype=np.float32)).argmax(1)
    return features, labels.astype(np.int64)


def rows(client: int) -> slice:
    """The rows of one client."""
    start = client * EACH % POOL
    return slice(start, start + EACH)


def arguments() -> argparse.Namespace:
    """What a script of one framework is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="a folder for weights.npy and result.json")
    return parser.parse_args()


class Clock:
    """Seconds of every round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def start(self) -> None:
        """The first round begins."""
        self._last = time.perf_counter()

    def lap(self) -> None:
        """A round has ended."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


def finish(out: Path, weights: Any, seconds: list[float], **more: Any) -> None:
    """Leave the weights (weight by rows, then bias) and the times behind."""
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "weights.npy", np.asarray(weights, dtype=np.float64))
    (out / "result.json").write_text(json.dumps({"seconds": seconds, **more}), encoding="utf-8")
