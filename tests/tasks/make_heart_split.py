"""Make ``heart_split.csv``: which of the 740 complete heart rows FLamby's rule holds out.

    python tests/tasks/make_heart_split.py          (needs scikit-learn)

FLamby's Fed-Heart-Disease splits each centre by scikit-learn's ``train_test_split`` with fractions .66 and .34 and
``random_state=43``, stratified by illness where each class has more than two rows (in Switzerland it has not). The rule
looks at labels. That is harmless for published data; a task on protected rows splits by a rule that looks at one row
at a time. A row is named by its number, from 0, among all rows of its centre's file.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[2] / "src" / "quietsum" / "tasks" / "data"
UNUSED = {"slope", "ca", "thal"}


def main() -> None:
    """Write the file anew."""
    from sklearn.model_selection import train_test_split  # here, because test collection imports this module

    rows: dict[str, list[dict[str, str]]] = {}
    with (DATA / "heart_4centers.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["center"], []).append(row)
    lines = ["center,row"]
    for centre, all_rows in rows.items():
        complete = [
            number
            for number, row in enumerate(all_rows)
            if not any(value == "?" for column, value in row.items() if column not in UNUSED)
        ]
        ill = np.array([float(all_rows[number]["num"]) > 0 for number in complete])
        stratify = ill if min(ill.sum(), (~ill).sum()) > 2 else None
        _, held_out = train_test_split(
            np.arange(len(complete)), test_size=1 - 0.66, train_size=0.66, random_state=43, stratify=stratify
        )
        lines += [f"{centre},{complete[position]}" for position in sorted(held_out)]
    (DATA / "heart_split.csv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
