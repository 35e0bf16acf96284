"""What trust buys: the tables of docs/explanation/central-local-shuffled.md and from-local-to-central.md.

    python benchmarks/trust.py

No measurement, only formulas and bounds of the library; the tests hold the pages against this script.
"""

from __future__ import annotations

import math

from quietsum import calibrate_noise
from quietsum.mechanisms import largest_local_epsilon, shuffled_epsilon
from quietsum.mechanisms.local import make_protocol
from quietsum.privacy.exact.closed_forms import gaussian_epsilon

DELTA = 1e-8
SURVEYS = ((1_000, 1.0), (10_000, 0.1), (10_000, 1.0), (1_000_000, 0.1), (1_000_000, 1.0))
SITES = (10, 100, 1_000, 10_000)


def survey_rows() -> list[str]:
    """The standard error of a share of yes among n people at one central ε, by whom one trusts."""
    rows = ["| n | central ε | trusted curator | shuffled | its local ε₀ | local |", "|---|---|---|---|---|---|"]
    for n, epsilon in SURVEYS:
        curator = math.sqrt(2) / (epsilon * n)  # Laplace noise of scale 1/ε on the count
        local = largest_local_epsilon(epsilon=epsilon, n=n, delta=DELTA)
        errors = [math.sqrt(make_protocol("k-rr", 2, cost).variance(n)) for cost in (local, epsilon)]  # type: ignore[attr-defined]
        rows.append(f"| {n:,} | {epsilon:g} | {curator:.2g} | {errors[0]:.2g} | {local:.2f} | {errors[1]:.2g} |")
    return rows


def sum_rows() -> list[str]:
    """Noise and ε of a sum over n sites: everyone for itself, in shares, and shuffled pure reports."""
    rows = [
        "| n | own noise: noise of the sum | ε of the sum alone | shares: noise of the sum | ε of one share alone | "
        "shuffled ε₀ = 1 |",
        "|---|---|---|---|---|---|",
    ]
    delta = 1e-6
    sigma = calibrate_noise(target_epsilon=1.0, target_delta=delta, sample_rate=1.0, steps=1)
    for n in SITES:
        whole = sigma * math.sqrt(n)
        share = sigma / math.sqrt(n - 1)  # one colluder counts
        shuffled = shuffled_epsilon(epsilon0=1.0, n=n, delta=delta).epsilon
        rows.append(
            f"| {n:,} | {whole:.1f} C | {gaussian_epsilon(1 / whole, delta):.3f} | {share * math.sqrt(n):.1f} C | "
            f"{gaussian_epsilon(1 / share, delta):.1f} | {shuffled:.3f} |"
        )
    return rows


if __name__ == "__main__":
    print("\n".join([*survey_rows(), "", *sum_rows()]))
