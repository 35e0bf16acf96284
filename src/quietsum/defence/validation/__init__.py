"""Data at the party: is this table what its operator says it is, before anything is trained on it?

Schema, types, ranges, missing values, duplicates, keys, label balance and outliers. It informs the site's operator and
no one else: whether protected rows pass is itself a fact about them, so a site that takes part sends the same kind of
message either way (:mod:`quietsum.party.data`).

>>> schema = parse_schema('columns = [{ name = "age", type = "integer", min = 0, max = 120 }]')
>>> validate({"age": [34, 700]}, schema).summary
'range in age'
"""

from __future__ import annotations

from quietsum.defence.validation.checks import fitting, robust_z, share_beyond, validate
from quietsum.defence.validation.cleaning import clean
from quietsum.defence.validation.describing import first_schema
from quietsum.defence.validation.files import read_table
from quietsum.defence.validation.labels import look_at_labels
from quietsum.defence.validation.plans import schema_of_plan
from quietsum.defence.validation.result import Problem, Result
from quietsum.defence.validation.schema import Cleaning, FileFormat, Label, Outliers, RowRules, Schema, SchemaColumn
from quietsum.defence.validation.schema_file import load_schema, parse_schema
from quietsum.defence.validation.tables import Table, from_arrays

__all__ = [
    "Cleaning",
    "FileFormat",
    "Label",
    "Outliers",
    "Problem",
    "Result",
    "RowRules",
    "Schema",
    "SchemaColumn",
    "Table",
    "clean",
    "first_schema",
    "fitting",
    "from_arrays",
    "load_schema",
    "look_at_labels",
    "parse_schema",
    "read_table",
    "robust_z",
    "schema_of_plan",
    "share_beyond",
    "validate",
]
