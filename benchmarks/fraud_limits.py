"""Why does card fraud lose so much at ε 1? The noise, the optimizer or the model: each alternative by itself.

    python benchmarks/fraud_limits.py [--splits 10] [--markdown]
    python benchmarks/fraud_limits.py --splits 2        a quick look

Every score is AUPRC on a fifth of a split's own *training* rows, held out by what a row holds; the other four fifths
train. No test row is looked at, so the answer may steer settings. The ten splits are those of the task.

    plain            no clip, no noise, the task's plain settings
    private          PrivateTrainer at ε 1 (the task's settings), 2 and 4 (larger steps and clip norm) per record
    one release      what is left when nothing but the noise is to blame (below)
    public tenth     the logistic regression of the tenth of the rows that the task declares public, no private row used
    from the tenth   private steps that start there

One release. T steps over all records with noise σ₁·√T cost exactly what one Gaussian release with noise σ₁ costs. So
spend all of it at once, at the best of places, the optimum itself, to which no step was paid for:

    w = argmin Σ_i ℓ_C(w; i) + λ/2·|w|² + b·w,   b ~ N(0, (σ₁C)²·1)

where ℓ_C is the logistic loss whose gradient is clipped to C: r → clamp(r, ±C/|x|) on each record's residual (convex,
as the clamp is monotone). This is objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011) with its price for
curvature left out: no private mechanism, but a reference that favours privacy. Where no λ brings it near the plain
model, what is missing is not a better optimizer of this loss. It proves nothing about other models or features. Each of
its scores is a mean over a few draws of b.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from typing import Any

import utility  # beside this file; it also finds quietsum, and keeps torch to one thread

from quietsum.errors import QuietsumError
from quietsum.tradeoff.intervals import difference_interval, mean_interval

RATES = {1.0: None, 2.0: (1.2, 1500.0), 4.0: (2.4, 1500.0)}  # clip norm and learning rate by ε; None: the task's own
CLIPS, PULLS = (1.2, 2.4), (1.0, 3.0, 10.0)  # C and λ of the one release
DRAWS = 4
STEPS = 100


def one_split(split: int, sigma: float) -> dict[str, float]:
    """AUPRC of every alternative on the held-out fifth of one split."""
    from quietsum.mechanisms.rng import system_randomness

    options = {"split": split, "fold": split}
    found = {"plain": trained(options, None)}
    for epsilon, rates in RATES.items():
        found[f"private, ε {epsilon:g}"] = trained(options, epsilon, rates)
    task = utility.made("fraud", options)
    rows, labels = (part.numpy().astype("float64") for part in task.records())
    draws = sigma * system_randomness().normals((DRAWS, rows.shape[1] + 1))
    for clip, pull in itertools.product(CLIPS, PULLS):
        scores = [scored(task, one_release(rows, labels, clip=clip, pull=pull, tilt=clip * draw)) for draw in draws]
        found[f"one release of ε 1, C {clip:g}, λ {pull:g}"] = statistics.fmean(scores)
    public = {**options, "start": "public"}
    task = utility.made("fraud", public)
    found["the public tenth alone"] = task.evaluate(task.model()).values["auprc"]
    found["from the public tenth, ε 1"] = trained(public, 1.0)
    return found


def trained(options: dict[str, Any], epsilon: float | None, rates: tuple[float, float] | None = None) -> float:
    """One run with the task's own settings, or with another clip norm and learning rate."""
    wanted = None
    if rates is not None:
        settings = utility.made("fraud", options).settings
        training = {**settings.training, "max_grad_norm": rates[0]}
        wanted = {"learning_rate": rates[1], "optimizer": settings.optimizer, "training": training}
    job = {"task": "fraud", "options": options, "epsilon": epsilon, "seed": options["split"], "device": "cpu",
           "wanted": wanted}  # fmt: skip
    done = utility.work(job)
    if epsilon is not None and done["spent"] > epsilon:
        raise QuietsumError(f"ε {done['spent']} per record was spent, more than {epsilon}")
    return float(done["values"]["auprc"])


def one_release(rows: Any, labels: Any, *, clip: float, pull: float, tilt: Any) -> Any:
    """Weights and bias of the formula above, by damped Newton steps in float64."""
    import numpy as np

    rows = np.column_stack([rows, np.ones(len(rows))])
    limit = clip / np.linalg.norm(rows, axis=1)
    found = np.zeros(rows.shape[1])
    found[-1] = -6.0

    def slope_at(weights: Any) -> tuple[Any, Any]:
        chance = 0.5 * (1 + np.tanh(rows @ weights / 2))
        residual = chance - labels
        slope = rows.T @ np.clip(residual, -limit, limit) + pull * weights + tilt
        return slope, np.where(np.abs(residual) <= limit, chance * (1 - chance), 0.0)

    slope, bend = slope_at(found)
    for _ in range(STEPS):
        some = bend > 1e-12
        second = rows[some].T @ (rows[some] * bend[some, None]) + (pull + 1e-3) * np.eye(len(found))
        move = np.linalg.solve(second, slope)
        share = min(1.0, 3.0 / float(np.linalg.norm(move)))
        then, next_bend = slope_at(found - share * move)
        while np.linalg.norm(then) > 1.5 * np.linalg.norm(slope) and share > 1e-3:
            share /= 2
            then, next_bend = slope_at(found - share * move)
        found, slope, bend = found - share * move, then, next_bend
        if np.linalg.norm(move) < 1e-5:
            break
    return found


def scored(task: Any, weights: Any) -> float:
    """AUPRC of the linear model with these weights."""
    import torch

    model = task.model()
    with torch.no_grad():
        model[0].weight.copy_(torch.from_numpy(weights[:-1]))
        model[0].bias.fill_(float(weights[-1]))
    return float(task.evaluate(model).values["auprc"])


def table(found: list[dict[str, float]], *, markdown: bool) -> None:
    """Means over splits, and what is lost against the plain run of the same split."""
    plain = [one["plain"] for one in found]
    if markdown:
        print("| AUPRC on rows held out; ε per record | mean [95 % interval] | less than plain |\n|---|---|---|")
    for name in found[0]:
        values = [one[name] for one in found]
        mean = f"{statistics.fmean(values):.4f} {span(mean_interval(values))}".strip()
        gap = statistics.fmean(plain) - statistics.fmean(values)
        less = "–" if name == "plain" else f"{gap:+.4f} {span(difference_interval(plain, values))}".strip()
        if markdown:
            print(f"| {name} | {mean} | {less} |")
        else:
            print(f"{name:<36} {mean}")
            if name != "plain":
                print(f"{'':<36} {less} less than plain")


def span(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"[{interval[0]:.4f}, {interval[1]:.4f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10, choices=range(1, 11), metavar="N", help="1 … 10")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    import torch

    from quietsum.privacy.calibration import calibrate_noise

    torch.set_num_threads(1)
    start = time.time()
    delta = utility.made("fraud", {}).settings.training["delta"]
    sigma, many = (
        calibrate_noise(target_epsilon=1.0, target_delta=delta, sample_rate=1.0, steps=steps) for steps in (1, STEPS)
    )
    print(f"ε 1 per record at δ {delta:g}: σ₁ = {sigma:.3f} for one release, {many:.2f} in each")
    print(f"of {STEPS} steps, {many / STEPS**0.5:.3f} · √{STEPS}; all ε are per record")
    found = []
    for split in range(asked.splits):
        found.append(one_split(split, sigma))
        print(f"split {split} after {time.time() - start:.0f} s", file=sys.stderr, flush=True)
    print(f"mean over {len(found)} splits\n")
    table(found, markdown=asked.markdown)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except QuietsumError as error:
        sys.exit(f"error: {error}")
