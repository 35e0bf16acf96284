"""What a plan with a table says of it, as a schema: the same columns, ranges and classes by which its rows are encoded.

Training takes each row by itself and counts what does not fit as zero, in silence. The schema shows it to the table's
holder, line by line, before that.
"""

from __future__ import annotations

from quietsum.defence.validation.schema import FileFormat, Label, RowRules, Schema, SchemaColumn
from quietsum.tasks import TableOptions, TableTask

__all__ = ["schema_of_plan"]


def schema_of_plan(task: TableTask) -> Schema:
    """The schema of the rows that ``task`` trains on. Values may be missing, labels may not.

    >>> task = TableTask.from_options({
    ...     "name": "visits", "label": {"name": "back", "kind": "category", "categories": ["no", "yes"]},
    ...     "columns": [{"name": "age", "kind": "number", "bounds": [0, 120]}], "sites": [{"name": "north", "size": 9}],
    ... })
    >>> schema = schema_of_plan(task)
    >>> [(column.name, column.max) for column in schema.columns], schema.label.classes, schema.rows.most
    ([('age', 120.0), ('back', None)], ('no', 'yes'), 9)
    """
    options, label = task.options, task.encoding.label
    columns = []
    for column in (*task.encoding.columns, label):
        missing = 0.0 if column is label else 1.0
        if column.bounds is not None:
            low, high = column.bounds
            columns.append(SchemaColumn(name=column.name, type="number", min=low, max=high, missing=missing))
        else:
            allowed = () if column is label else column.categories
            columns.append(SchemaColumn(name=column.name, type="text", allowed=allowed, missing=missing))
    if options.site_column:
        columns.append(SchemaColumn(name=options.site_column, type="text", allowed=tuple(_sites(options))))
    if options.person_column:
        columns.append(SchemaColumn(name=options.person_column, type="text"))
    return Schema(
        columns=tuple(columns),
        file=FileFormat(
            delimiter=options.delimiter, decimal=options.decimal, encoding=options.encoding, other_columns="ignore"
        ),
        rows=RowRules(most=sum(facts.size for facts in task.parties()), duplicates=1.0),
        label=Label(column=label.name, classes=label.categories) if label.categories else None,
    )


def _sites(options: TableOptions) -> list[str]:
    return [str(one["name"]) for one in options.sites]
