"""Adam's first rate in a plan of few steps: 0.8/√T, beside that of 150 steps, where the default for tokens ends.

    python benchmarks/few_steps.py            the table, at ε 8 per record
    python benchmarks/few_steps.py --quick    one row of each

``text`` is a transformer over bytes on the texts of the task of that name, 128 records a step, in bits per byte on its
own test documents (8 is chance); ``digits`` is a network with one hidden layer, or none, on handwritten digits, in
accuracy.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))

DELTA, BATCH = 1e-5, 128


def train(model: Any, data: Any, steps: int, rate: float, loss: Any = None) -> None:
    """So many steps with this first rate, on a line to 0."""
    from quietsum import PrivacyConfig, PrivateTrainer
    from quietsum.learning import trainer as at_work

    size = min(len(data[0]), steps * BATCH)
    config = PrivacyConfig(epsilon=8.0, delta=DELTA, epochs=max(1, steps * BATCH // size), batch_size=BATCH)
    options = {} if loss is None else {"loss": loss}
    kept, at_work.choose_rate = at_work.choose_rate, lambda *given, **named: rate
    try:
        trainer = PrivateTrainer(model, config, selfcheck=False, **options)
        trainer.train(tuple(part[:size] for part in data))
    finally:
        at_work.choose_rate = kept


def score_text(steps: int, rate: float, seed: int) -> float:
    """Bits per byte."""
    import torch

    from quietsum.learning import fresh_model, scoring
    from quietsum.tasks.gallery.text import TextTask

    task = TextTask(network="small", length=64)
    model = fresh_model(task, seed)
    train(model, task.records(), steps, rate, task.loss)
    with torch.no_grad(), scoring(model):
        return float(task.evaluate(model).values["bits_per_byte"])


def score_digits(steps: int, rate: float, seed: int, *, hidden: bool = True) -> float:
    """Accuracy on every fifth digit."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.manual_seed(seed)
    inputs, labels = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    inputs, test = inputs.float() / 16, torch.arange(len(labels)) % 5 == 0
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) if hidden else nn.Linear(64, 10)
    train(model, (inputs[~test], labels[~test]), steps, rate)
    with torch.no_grad():
        return float((model(inputs[test]).argmax(1) == labels[test]).float().mean())


def main() -> None:
    """The table."""
    from quietsum.learning.defaults import choose_rate

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one row of each")
    quick = parser.parse_args().quick
    warnings.simplefilter("ignore")
    rows: dict[str, Any] = {
        "text, bits per byte": score_text,
        "digits, hidden layer, accuracy": score_digits,
        "digits, linear, accuracy": functools.partial(score_digits, hidden=False),
    }
    print("| model | steps | 0.8/√T | that of 150 steps |\n|---|---:|---:|---:|")
    for name, score in rows.items():
        for steps in (10,) if quick else (10, 30):
            cells = []
            for rate in (0.8 / math.sqrt(steps), choose_rate(150)):
                found = [score(steps, rate, seed) for seed in range(1 if quick else 2)]
                cells.append(f"{sum(found) / len(found):.3f} ({min(found):.3f} to {max(found):.3f})")
            print(f"| {name} | {steps} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
