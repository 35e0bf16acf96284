"""How long a site's table takes to be checked, and whether pandera finds the same cells.

    python benchmarks/data_check.py --rows 284807 --columns 30
    python benchmarks/data_check.py --labels

A made-up table of numbers is written as CSV with some broken cells: words among numbers, values out of range,
missing ones, exact copies of rows. Ours reads and checks it; pandera, where it is installed (with pandas, in an
environment of its own), does the same with the same bounds. Both must name the same cells.

With --labels: labels of heart, digits and fraud are flipped at random, half of a table's rows declare the disagreement
(their worst class's share) and the other half is held to it; of ten seeds, in how many a class is told.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from quietsum.defence.validation import Label, RowRules, Schema, SchemaColumn, read_table, validate

LOW, HIGH = -5.0, 5.0


def written(path: Path, rows: int, columns: int, seed: int = 0) -> Schema:
    """A table with words, missing and far values, one in a thousand cells each, and copies of rows."""
    made = np.random.default_rng(seed)
    values = made.normal(size=(rows, columns))
    values[made.random(values.shape) < 1e-3] *= 1000
    cells = np.char.mod("%.6f", values)
    cells[made.random(values.shape) < 1e-3] = "unknown"
    cells[made.random(values.shape) < 1e-3] = ""
    labels = made.integers(0, 2, rows).astype(str)
    lines = [",".join([*row, label]) for row, label in zip(cells.tolist(), labels, strict=True)]
    lines[rows // 2 :: 997] = lines[: len(lines[rows // 2 :: 997])]
    header = ",".join([*(f"v{place}" for place in range(columns)), "label"])
    path.write_text("\n".join([header, *lines, ""]), encoding="utf-8")
    found = [SchemaColumn(name=f"v{place}", min=LOW, max=HIGH, missing=1.0) for place in range(columns)]
    return Schema(
        columns=(*found, SchemaColumn(name="label", type="integer")),
        rows=RowRules(duplicates=1.0),
        label=Label(column="label", classes=(0, 1)),
    )


def ours(path: Path, schema: Schema) -> dict[str, int]:
    counts = {"type": 0, "range": 0, "duplicates": 0}
    for problem in validate(read_table(path, schema), schema).problems:
        if problem.check in counts:
            counts[problem.check] += problem.count
    return counts


def theirs(path: Path, schema: Schema) -> dict[str, int]:
    pandas: Any = importlib.import_module("pandas")
    pandera: Any = importlib.import_module("pandera.pandas")
    frame = pandas.read_csv(path, dtype=str, keep_default_na=False)
    names = [column.name for column in schema.columns if column.name != "label"]
    numbers = frame.copy()
    unreadable = 0
    for name in names:
        numbers[name] = pandas.to_numeric(frame[name], errors="coerce")
        unreadable += int((numbers[name].isna() & (frame[name] != "")).sum())
    held = pandera.DataFrameSchema(
        {name: pandera.Column(float, pandera.Check.in_range(LOW, HIGH), nullable=True) for name in names}
    )
    try:
        held.validate(numbers, lazy=True)
        outside = 0
    except pandera.errors.SchemaErrors as errors:
        outside = int((errors.failure_cases["check"].astype(str).str.startswith("in_range")).sum())
    return {"type": unreadable, "range": outside, "duplicates": int(frame.duplicated().sum())}


def flips(seeds: int = 10) -> None:
    from quietsum.defence.validation.labels import RATE, disagreements
    from quietsum.defence.validation.tasks import extract_rows
    from quietsum.tasks.gallery.heart import HeartTask
    from quietsum.tasks.registry import trainable_task

    sets = {"heart, cleveland": extract_rows(HeartTask.from_package(), "cleveland")}
    sets["digits"] = extract_rows(trainable_task("digits"))
    sets["fraud, a quarter"] = {name: array[::4] for name, array in extract_rows(trainable_task("fraud")).items()}
    print("| labels flipped | " + " | ".join(f"{name}: worst class, told" for name in sets) + " |")
    for share in (0.0, 0.02, 0.05, 0.1, 0.3, 1.0):
        cells = []
        for arrays in sets.values():
            features, labels = arrays["x"].astype(float), arrays["label"].astype(np.int64)
            worst, told = list[float](), 0
            for seed in range(seeds):
                made = np.random.default_rng(seed)
                half = made.permutation(len(labels)) % 2 == 0
                declared = max(one.share for one in disagreements(features[half], labels[half]).values())
                classes = labels.max() + 1
                away = np.where(made.random(len(labels)) < share, made.integers(1, classes, len(labels)), 0)
                found = disagreements(features[~half], ((labels + away) % classes)[~half]).values()
                worst.append(max(one.share for one in found))
                told += any(one.chance(declared) <= RATE for one in found)
            cells.append(f"{100 * np.mean(worst):.1f} %, {told} of {seeds}")
        print(f"| {100 * share:.0f} % | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=284_807)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--labels", action="store_true")
    given = parser.parse_args()
    if given.labels:
        flips()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        schema = written(path, given.rows, given.columns)
        print(f"{given.rows:,} rows, {given.columns} columns, {path.stat().st_size / 1e6:.0f} MB of CSV")
        for name, check in (("quietsum", ours), ("pandas + pandera", theirs)):
            start = time.process_time()
            try:
                found = check(path, schema)
            except ImportError:
                print(f"| {name} | not installed |")
                continue
            print(f"| {name} | {time.process_time() - start:.1f} CPU s | {found} |")


if __name__ == "__main__":
    main()
