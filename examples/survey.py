"""A made-up survey, so that private estimates can be held against the truth.

    python examples/survey.py survey.csv [--people 20000]

Writes a CSV with one row a person (smokes, age) and prints the true shares and the true mean age. The rows come from a
fixed seed and belong to nobody.
"""

from __future__ import annotations

import argparse
import collections
import csv
import random
from pathlib import Path

ANSWERS = {"never": 0.55, "former": 0.22, "sometimes": 0.11, "daily": 0.12}


def main() -> None:
    """Write the survey, print the truth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--people", type=int, default=20_000)
    given = parser.parse_args()
    rng = random.Random(17)
    answers = rng.choices(list(ANSWERS), weights=list(ANSWERS.values()), k=given.people)
    ages = [min(100, max(18, round(rng.gauss(47, 17)))) for _ in answers]
    with given.path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["smokes", "age"])
        table.writerows(zip(answers, ages, strict=True))
    counts = collections.Counter(answers)
    print(", ".join(f"{answer} {counts[answer] / given.people:.4f}" for answer in ANSWERS))
    print(f"mean age {sum(ages) / given.people:.3f}")


if __name__ == "__main__":
    main()
