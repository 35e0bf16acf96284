"""``python -m quietsum.defence.validation reference``: the tables of docs/reference/data-toml.md."""

from __future__ import annotations

import sys

from quietsum.defence.validation.schema_file import SchemaTable
from quietsum.plan import page

if __name__ == "__main__":
    if sys.argv[1:] != ["reference"]:
        sys.exit("usage: python -m quietsum.defence.validation reference")
    print(page(SchemaTable), end="")
