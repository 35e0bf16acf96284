"""Four hospitals train one model for twenty rounds: what does it cost their patients' records?

``python -m quietsum.demo [FILE.svg]`` records the rounds as they would happen, with no data and no training: an
accountant only needs to know what touched the data. It prints a table and a plot, and writes the same plot as SVG.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, final

if TYPE_CHECKING:
    from quietsum.charts import Chart

__all__ = ["older_formula", "run"]

Row = tuple[int, float, float, float]
"""Round, ε exact, ε by Rényi, what the older formula says."""

ROUNDS = 20
DELTA = 1e-6
BUDGET = 3.0
CLIENT_NOISE = 4.0


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Hospital:
    """A party and the size it declared, which is public."""

    name: str
    records: int
    batch_size: int = 32

    @property
    def sample_rate(self) -> float:
        """The chance that one record is in a batch."""
        return self.batch_size / self.records

    @property
    def steps_per_round(self) -> int:
        """One local epoch."""
        return math.ceil(self.records / self.batch_size)


HOSPITALS = (
    Hospital(name="Northfield", records=12_000),
    Hospital(name="Riverside", records=7500),
    Hospital(name="St. Anne", records=4800),
    Hospital(name="Eastgate", records=2400),
)


def older_formula(*, noise_multiplier: float, sample_rate: float, steps: int, delta: float) -> float:
    """min over α = 2 … 64 of T·α q²/(2σ²) + ln(1/δ)/(α − 1): what older documents report. It is *not* a bound.

    It drops the tail of the sampled Gaussian: 5.30 for a run that costs 7.05.

    >>> round(older_formula(noise_multiplier=1.0, sample_rate=0.1, steps=100, delta=1e-5), 2)
    5.3
    """
    per_order = steps * sample_rate**2 / (2 * noise_multiplier**2)
    return min(order * per_order + math.log(1 / delta) / (order - 1) for order in range(2, 65))


def run(path: str = "quietsum-history.svg") -> None:
    """Record the rounds, print what they cost and write the picture to ``path``."""
    from quietsum import (
        ExactAccountant,
        Gaussian,
        PoissonSampled,
        PrivacyAccountant,
        RenyiAccountant,
        attacker_advantage,
        calibrate_noise,
    )
    from quietsum.charts import save, show

    smallest = min(HOSPITALS, key=lambda hospital: hospital.records)
    noise = calibrate_noise(
        target_epsilon=BUDGET,
        target_delta=DELTA,
        sample_rate=smallest.sample_rate,
        steps=smallest.steps_per_round * ROUNDS,
    )
    noise = math.ceil(noise * 100) / 100
    _say(
        f"Four hospitals train one model for {ROUNDS} rounds, each on batches of {smallest.batch_size} of its own "
        f"records, drawn by coins. Budget: ε = {BUDGET:g} per record at δ = {DELTA:g}. The smallest hospital draws "
        f"each record most often, so the noise is calibrated for it: noise_multiplier = {noise:.2f}."
    )
    print(f"{'hospital':<12}{'records':>9}{'sample rate':>13}{'steps a round':>15}")
    for hospital in HOSPITALS:
        print(f"{hospital.name:<12}{hospital.records:>9,}{hospital.sample_rate:>13.4f}{hospital.steps_per_round:>15}")
    print()
    accountant = PrivacyAccountant(delta=DELTA)
    worst, renyi = ExactAccountant(), RenyiAccountant()
    step = PoissonSampled(rate=smallest.sample_rate, event=Gaussian(noise_multiplier=noise))
    rows: list[Row] = []
    for number in range(1, ROUNDS + 1):
        for hospital in HOSPITALS:
            accountant.record_round(
                round_num=number,
                party=hospital.name,
                noise_multiplier_sample=noise,
                sample_rate_sample=hospital.sample_rate,
                steps_sample=hospital.steps_per_round,
            )
        accountant.record_round(
            round_num=number, noise_multiplier_user=CLIENT_NOISE, sample_rate_user=1.0, steps_user=1
        )
        worst.compose(step, smallest.steps_per_round)
        renyi.compose(step, smallest.steps_per_round)
        older = older_formula(
            noise_multiplier=noise,
            sample_rate=smallest.sample_rate,
            steps=smallest.steps_per_round * number,
            delta=DELTA,
        )
        rows.append((number, accountant.get_cumulative_sample_epsilon(), renyi.epsilon(delta=DELTA).epsilon, older))
    _print_table(rows)
    chart = _chart(rows)
    show(chart, height=12)
    print()
    save(chart, path)
    record, client = accountant.guarantees()
    _say(
        f"After {ROUNDS} rounds no record of any hospital has spent more than ε = {_up(record.epsilon)} at "
        f"δ = {DELTA:g}: nobody who receives the model can tell whether a given record was used and be right more "
        f"often than {_percent(attacker_advantage(worst))} % of the time, where a coin is right half of the time."
    )
    _say(
        f"Each hospital as a whole has spent ε = {_up(client.epsilon)}. The two numbers protect different things, "
        "records and hospitals, and are never added."
    )
    print(
        f"wrote {path}\n"
        f"next: quietsum spend --noise-multiplier {noise:.2f} --sample-rate {smallest.sample_rate:.6f} \\\n"
        f"      --steps {smallest.steps_per_round * ROUNDS} --delta {DELTA:g}"
    )


def _print_table(rows: Sequence[Row]) -> None:
    """Every fourth round: both bounds, the older formula and what is left."""
    print(f"{'round':>6}{'ε exact':>12}{'ε Rényi':>12}{'α q²/(2σ²)':>14}{'budget left':>14}")
    for number, exact, renyi, older in rows:
        if number == 1 or number % 4 == 0:
            print(f"{number:>6}{_up(exact):>12}{_up(renyi):>12}{older:>14.2f}{BUDGET - exact:>14.2f}")
    print()
    _say(
        "The fourth column is what older documents compute from α q²/(2σ²). "
        "It is no bound: it says less than the run costs."
    )


def _say(text: str) -> None:
    print(textwrap.fill(text, 78), end="\n\n")


def _chart(rows: Sequence[Row]) -> Chart:
    from quietsum.charts import Chart, Series

    lines: tuple[tuple[str, int, Literal["solid", "dashed", "dotted"]], ...] = (
        ("exact", 1, "solid"), ("Rényi", 2, "dashed"), ("no bound", 3, "dotted"),
    )  # fmt: skip
    return Chart(
        title="ε after each round, worst of four hospitals",
        x_label="round",
        y_label="ε per record",
        limit=("budget", BUDGET),
        description=(
            f"Over {ROUNDS} rounds ε per record grows to {rows[-1][1]:.2f} by exact accounting and to "
            f"{rows[-1][2]:.2f} by a Rényi bound. α q²/(2σ²), the formula of older documents, reaches "
            f"{rows[-1][3]:.2f}, which is no bound. The budget is {BUDGET:g}."
        ),
        series=tuple(
            Series(label=label, points=tuple((row[0], row[column]) for row in rows), dash=dash)
            for label, column, dash in lines
        ),
    )


def _up(value: float) -> str:
    """Two decimals, rounded up: a bound stays one."""
    return f"{math.ceil(value * 100) / 100:.2f}"


def _percent(advantage: float) -> str:
    return f"{math.ceil(50 * (1 + advantage))}"


if __name__ == "__main__":
    run(*sys.argv[1:2])
