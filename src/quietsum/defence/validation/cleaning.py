"""Rules that mend or leave out a row by its own values: allowed before private training, because no row sees another.

Guarantees: whether a row stays, and with which values, is a function of that row and the schema's constants. So a
dataset that differs in one record differs in at most that record after cleaning, and every guarantee holds as it was
accounted. How many rows a rule concerned is a count of protected rows: it is reported to the site's operator alone.

>>> import numpy as np
>>> from quietsum.defence.validation import Cleaning, SchemaColumn, Schema, clean, from_arrays
>>> rule = Cleaning(column="age", when="outside", do="clamp", bounds=(0, 120))
>>> schema = Schema(columns=(SchemaColumn(name="age"),), cleaning=(rule,))
>>> table, _ = from_arrays({"age": np.array([34.0, 700.0])}, schema)
>>> clean(table, schema).matrix(["age"]).ravel().tolist()
[34.0, 120.0]
"""

from __future__ import annotations

import dataclasses

import numpy as np

from quietsum.defence.validation.schema import Cleaning, Schema
from quietsum.defence.validation.tables import ColumnCells, Mask, Table

__all__ = ["clean"]


def clean(table: Table, schema: Schema) -> Table:
    """``table`` after the schema's rules, in their order."""
    cells, kept, counted = dict(table.cells), np.ones(len(table), dtype=bool), dict[str, int]()
    for place, rule in enumerate(schema.cleaning):
        found = cells.get(rule.column)
        if found is None:
            continue  # a column that is not there is a problem of its own
        met = _find_rows(found, rule) & kept
        counted[f"cleaning[{place}]"] = int(met.sum())
        if rule.do == "drop":
            kept &= ~met
        else:
            cells[rule.column] = _mend(found, rule, met)
    return dataclasses.replace(
        table,
        cells={name: one.select(kept) for name, one in cells.items()},
        lines=table.lines[kept],
        hashes=table.hashes[kept],
        cleaned=counted,
    )


def _find_rows(cells: ColumnCells, rule: Cleaning) -> Mask:
    """The rows that the rule is about."""
    if rule.when == "missing":
        return cells.missing
    if rule.when == "unreadable":
        return cells.wrong
    assert cells.numbers is not None and rule.bounds is not None
    low, high = rule.bounds
    with np.errstate(invalid="ignore"):
        found: Mask = (cells.numbers < low) | (cells.numbers > high)
    return found


def _mend(cells: ColumnCells, rule: Cleaning, met: Mask) -> ColumnCells:
    if cells.texts is not None:
        texts = cells.texts.copy()
        texts[met] = str(rule.constant)
        return dataclasses.replace(cells, texts=texts, missing=cells.missing & ~met)
    assert cells.numbers is not None
    if rule.do == "clamp":
        assert rule.bounds is not None
        numbers = np.where(met, np.clip(cells.numbers, *rule.bounds), cells.numbers)
    else:
        numbers = np.where(met, float(rule.constant), cells.numbers)
    return dataclasses.replace(cells, numbers=numbers, missing=cells.missing & ~met, wrong=cells.wrong & ~met)
